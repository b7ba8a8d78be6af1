//! Operators become stages.
//!
//! One function for each family of operators; what it returns are the tensors of the operator's outputs. Shapes are static, so
//! inferring them is part of the lowering, and so is computing what depends on constants only (see [`Builder`]).
//!
//! Invariant: nothing here trusts an attribute or a shape. Extents, ranks and sizes go through [`Builder::check_shape`] before
//! anything is computed or allocated with them.

mod builder;
mod constants;
mod contraction;
mod convolution;
mod elementwise;
mod gather;
mod layout;
mod math;
mod normalization;
mod operator;
mod pooling;
mod reduction;
mod window;

pub use builder::Builder;
pub use elementwise::dtype_of_code;
pub use operator::{Attribute, Operand, Operator, Problem};

use crate::workload::TensorId;

type Lower = fn(&mut Builder, &Operator) -> Result<Vec<TensorId>, Problem>;

/// Whether an operator of ONNX's own domain can be lowered at all.
pub fn is_supported(kind: &str) -> bool {
    rule(kind).is_some()
}

/// Appends the stages of an operator, and gives the tensors of its outputs, trailing ones left out where nobody can use them.
///
/// # Errors
/// What about the operator's inputs or attributes stands against it.
pub fn lower(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let rule = rule(&op.kind).ok_or_else(|| Problem::Unsupported(op.kind.clone()))?;
    rule(builder, op)
}

fn rule(kind: &str) -> Option<Lower> {
    Some(match kind {
        "Abs" | "Neg" | "Sign" | "Relu" | "Exp" | "Log" | "Sqrt" | "Reciprocal" | "Erf" | "Tanh" | "Sigmoid"
        | "Sin" | "Cos" | "Tan" | "Floor" | "Ceil" | "Round" | "Sinh" | "Cosh" | "Asinh" | "Acosh" | "Atanh"
        | "Softplus" | "Softsign" | "HardSwish" | "Mish" => elementwise::unary,
        "LeakyRelu" | "Elu" | "Selu" | "Celu" | "HardSigmoid" | "ThresholdedRelu" | "Shrink" | "Swish" | "Gelu" => {
            elementwise::activation
        }
        "Add" | "Mul" => foldable,
        "Sub" | "Div" | "Mod" | "Pow" | "PRelu" | "Equal" | "Less" | "LessOrEqual" | "Greater" | "GreaterOrEqual"
        | "And" | "Or" | "Xor" | "Where" => elementwise::broadcasting,
        "Sum" | "Mean" | "Max" | "Min" => elementwise::variadic,
        "Clip" => elementwise::clip,
        "Cast" | "CastLike" => elementwise::convert,
        "Not" | "IsNaN" | "IsInf" => elementwise::predicate,

        "Identity" | "Dropout" => layout::identity,
        "Reshape" => layout::reshape,
        "Flatten" => layout::flatten,
        "Squeeze" => layout::squeeze,
        "Unsqueeze" => layout::unsqueeze,
        "Transpose" => layout::transpose,
        "Expand" => layout::expand,
        "Tile" => layout::tile,
        "Concat" => layout::concat,
        "Split" => layout::split,
        "Slice" => layout::slice,
        "DepthToSpace" | "SpaceToDepth" => layout::depth_and_space,
        "Trilu" => layout::trilu,

        "Gather" => gather::gather,
        "GatherElements" => gather::gather_elements,
        "GatherND" => gather::gather_nd,
        "OneHot" => gather::one_hot,
        "EyeLike" => gather::eye_like,

        "Constant" => constants::constant,
        "ConstantOfShape" => constants::constant_of_shape,
        "Shape" | "Size" => constants::shape,
        "Range" => constants::range,
        "CumSum" => constants::cumulative_sum,

        "MatMul" => contraction::matmul,
        "Gemm" => contraction::gemm,
        "Conv" => convolution::convolution,
        "ConvTranspose" => convolution::transposed,

        "MaxPool" | "AveragePool" | "LpPool" => pooling::pool,
        "GlobalMaxPool" | "GlobalAveragePool" | "GlobalLpPool" => pooling::global,
        "LRN" => pooling::local_response,

        "ReduceSum" | "ReduceMean" | "ReduceMax" | "ReduceMin" | "ReduceProd" | "ReduceL1" | "ReduceL2"
        | "ReduceSumSquare" | "ReduceLogSum" | "ReduceLogSumExp" => reduction::reduce,
        "Softmax" | "LogSoftmax" => reduction::softmax,

        "BatchNormalization" => normalization::batch,
        "LayerNormalization" | "RMSNormalization" => normalization::layer,
        "InstanceNormalization" => normalization::instance,
        "GroupNormalization" => normalization::group,
        "MeanVarianceNormalization" | "LpNormalization" => normalization::plain,
        _ => return None,
    })
}

/// `Add` and `Mul`, which a preceding convolution may absorb.
fn foldable(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    match normalization::fold_channel_constant(builder, op)? {
        Some(result) => Ok(vec![result]),
        None => elementwise::broadcasting(builder, op),
    }
}
