//! Operators of the domain `com.microsoft` that ONNX Runtime's optimizer makes of a convolution or a product,
//! and of what follows it.

use super::builder::Builder;
use super::contrib::{call, handed};
use super::operator::{Attribute, Operator, Problem};
use crate::workload::TensorId;

/// `FusedConv`: a convolution, what is added to its result, and an activation.
pub fn convolution(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let inputs = [op.optional(0), op.optional(1), op.optional(2)];
    let names = ["auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"];
    let mut result = call(builder, op, "Conv", &inputs, &handed(op, &names))?;
    if let Some(added) = op.optional(3) {
        if builder.extents(result) != builder.extents(added) {
            let shapes = [added, result].map(|tensor| builder.shape(tensor));
            return Err(Problem::Shape(format!("{:?} is not added to {:?}", shapes[0], shapes[1])));
        }
        result = call(builder, op, "Add", &[Some(result), Some(added)], &[])?;
    }
    let names: &[&str] = match op.text("activation", "")? {
        "LeakyRelu" => &["alpha"],
        "HardSigmoid" => &["alpha", "beta"],
        // bounds as they were before operator set 11, where they became inputs
        "Clip" => &["min", "max"],
        _ => &[],
    };
    let values = op.floats("activation_params")?.unwrap_or_default();
    let parameters =
        names.iter().zip(values).map(|(name, value)| (*name, Attribute::Float(*value))).collect::<Vec<_>>();
    Ok(vec![activated(builder, op, result, &parameters)?])
}

/// `FusedGemm`: a product, what is added to it, and an activation.
pub fn gemm(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let inputs = [op.optional(0), op.optional(1), op.optional(2)];
    let names = ["alpha", "beta", "transA", "transB"];
    let result = call(builder, op, "Gemm", &inputs, &handed(op, &names))?;
    let names = ["activation_alpha", "activation_beta", "activation_gamma"];
    let parameters: Vec<(&str, Attribute)> =
        handed(op, &names).into_iter().map(|(name, value)| (name.trim_start_matches("activation_"), value)).collect();
    Ok(vec![activated(builder, op, result, &parameters)?])
}

/// What the activation that an operator names makes of a tensor, with parameters as ONNX's own operator has
/// them.
fn activated(
    builder: &mut Builder,
    op: &Operator,
    x: TensorId,
    parameters: &[(&str, Attribute)],
) -> Result<TensorId, Problem> {
    match op.text("activation", "")? {
        "" => Ok(x),
        kind @ ("Relu" | "Tanh" | "Sigmoid" | "LeakyRelu" | "HardSigmoid" | "Clip" | "Elu" | "Selu" | "Softplus"
        | "Softsign" | "ThresholdedRelu") => {
            let early = Operator { opset: 1, ..op.clone() };
            call(builder, &early, kind, &[Some(x)], parameters)
        }
        other => Err(Problem::AttributeValue { name: "activation", value: other.to_string() }),
    }
}
