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
        let (shape, own) = (builder.extents(result), builder.extents(added));
        if shape != own {
            return Err(Problem::Shape(format!("{own:?} is not added to {shape:?}")));
        }
        result = call(builder, op, "Add", &[Some(result), Some(added)], &[])?;
    }
    let parameters = op.floats("activation_params")?.unwrap_or_default().to_vec();
    Ok(vec![activated(builder, op, result, &parameters)?])
}

/// `FusedGemm`: a product, what is added to it, and an activation.
pub fn gemm(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let inputs = [op.optional(0), op.optional(1), op.optional(2)];
    let names = ["alpha", "beta", "transA", "transB"];
    let result = call(builder, op, "Gemm", &inputs, &handed(op, &names))?;
    let names = ["activation_alpha", "activation_beta"].into_iter().filter(|name| op.has(name));
    let parameters = names.map(|name| Ok(op.float(name, 0.0)? as f32)).collect::<Result<Vec<_>, Problem>>()?;
    Ok(vec![activated(builder, op, result, &parameters)?])
}

/// What the activation that an operator names makes of a tensor; its parameters are in the order of those of
/// ONNX's own operator.
fn activated(builder: &mut Builder, op: &Operator, x: TensorId, parameters: &[f32]) -> Result<TensorId, Problem> {
    let kind = op.text("activation", "")?;
    let names: &[&str] = match kind {
        "" => return Ok(x),
        "Relu" | "Tanh" | "Sigmoid" => &[],
        "LeakyRelu" => &["alpha"],
        "HardSigmoid" => &["alpha", "beta"],
        // bounds as they were before operator set 11, where they became inputs
        "Clip" => &["min", "max"],
        other => return Err(Problem::AttributeValue { name: "activation", value: other.to_string() }),
    };
    let given: Vec<(&str, Attribute)> =
        names.iter().zip(parameters).map(|(name, value)| (*name, Attribute::Float(*value))).collect();
    let early = Operator { opset: 1, ..op.clone() };
    call(builder, &early, kind, &[Some(x)], &given)
}
