//! Functions of a recurrent network's gates.

use super::elementwise::{elu, hard_sigmoid, leaky_relu, of_one, thresholded_relu};
use super::math::{add, float, maximum, minimum, multiply, tanh};
use super::operator::{Operator, Problem};
use crate::workload::{DType, Expr};

/// A function of a gate, with its parameters.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Activation {
    /// In lower case, as names are compared.
    name: String,
    alpha: f64,
    beta: f64,
    /// Values are cut off there before.
    clip: Option<f64>,
}

impl Activation {
    /// The next of a list; the parameters that it takes are the next of theirs.
    fn next(
        name: &str,
        alphas: &mut impl Iterator<Item = f64>,
        betas: &mut impl Iterator<Item = f64>,
        clip: Option<f64>,
    ) -> Result<Activation, Problem> {
        let name = name.to_ascii_lowercase();
        let (alpha, beta) = match name.as_str() {
            "sigmoid" | "tanh" | "relu" | "softsign" | "softplus" => (None, None),
            "leakyrelu" => (Some(0.01), None),
            "thresholdedrelu" | "elu" => (Some(1.0), None),
            "affine" => (Some(1.0), Some(0.0)),
            "scaledtanh" => (Some(1.0), Some(1.0)),
            "hardsigmoid" => (Some(0.2), Some(0.5)),
            other => return Err(Problem::AttributeValue { name: "activations", value: other.to_string() }),
        };
        let alpha = alpha.map_or(0.0, |default| alphas.next().unwrap_or(default));
        let beta = beta.map_or(0.0, |default| betas.next().unwrap_or(default));
        Ok(Activation { name, alpha, beta, clip })
    }

    pub fn of(&self, x: Expr) -> Expr {
        let x = match self.clip {
            Some(clip) => minimum(float(clip), maximum(float(-clip), x)),
            None => x,
        };
        let plain = |kind: &str, x: Expr| of_one(kind, DType::F32, x).unwrap_or_else(|| float(0.0));
        match self.name.as_str() {
            "sigmoid" => plain("Sigmoid", x),
            "relu" => plain("Relu", x),
            "softsign" => plain("Softsign", x),
            "softplus" => plain("Softplus", x),
            "leakyrelu" => leaky_relu(x, self.alpha),
            "thresholdedrelu" => thresholded_relu(x, self.alpha),
            "elu" => elu(x, self.alpha),
            "affine" => add(multiply(float(self.alpha), x), float(self.beta)),
            "scaledtanh" => multiply(float(self.alpha), tanh(multiply(float(self.beta), x))),
            "hardsigmoid" => hard_sigmoid(x, self.alpha, self.beta),
            _ => tanh(x),
        }
    }
}

/// Those of all directions, one after the other; of each, as many as there are by default.
pub(super) fn activations(
    op: &Operator,
    by_default: &[&'static str],
    directions: usize,
) -> Result<Vec<Activation>, Problem> {
    let clip = match op.has("clip") {
        true => Some(op.float("clip", 0.0)?),
        false => None,
    };
    let parameters = |name| -> Result<Vec<f64>, Problem> {
        Ok(op.floats(name)?.unwrap_or_default().iter().map(|value| f64::from(*value)).collect())
    };
    let (alphas, betas) = (parameters("activation_alpha")?, parameters("activation_beta")?);
    let (mut alphas, mut betas) = (alphas.into_iter(), betas.into_iter());
    let names: Vec<&str> = match op.texts("activations")? {
        Some(names) => names.iter().map(String::as_str).collect(),
        None => by_default.repeat(directions),
    };
    if names.len() != by_default.len() * directions {
        return Err(Problem::AttributeValue { name: "activations", value: format!("{names:?}") });
    }
    let named = names.into_iter().enumerate();
    named
        .map(|(at, name)| {
            // the specification does not say that the cell state is no gate; ONNX Runtime and OpenVINO do not
            // clip it
            let is_gate = at % by_default.len() < 2;
            Activation::next(name, &mut alphas, &mut betas, clip.filter(|_| is_gate))
        })
        .collect()
}
