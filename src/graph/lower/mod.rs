//! Operators become stages.
//!
//! One function for each family of operators; what it returns are the tensors of the operator's outputs.
//! Shapes are static, so inferring them is part of the lowering, and so is computing what depends on
//! constants only (see [`Builder`]).
//!
//! Invariant: nothing here trusts an attribute or a shape. Extents, ranks and sizes go through
//! [`Builder::check_shape`] before anything is computed or allocated with them.

mod attention;
mod bits;
mod blocks;
mod builder;
mod columns;
mod constants;
mod contraction;
mod contrib;
mod convolution;
mod deform;
mod determinant;
mod einsum;
mod elementwise;
mod extent;
mod few_bits;
mod formulas;
mod found;
mod fourier;
mod gather;
mod grid;
mod grouped;
mod interpolate;
mod known;
mod layout;
mod losses;
pub mod math;
mod normalization;
mod operator;
mod padding;
mod polynomial;
mod pooling;
mod qlinear;
mod quantization;
mod random;
mod read;
mod recurrence;
mod recurrent;
mod reduction;
mod reshape;
mod resampling;
mod resize;
mod roi;
mod rotary;
mod sampling;
mod scatter;
mod slice;
mod signal;
mod sort;
mod window;

pub use blocks::MAX_ITERATIONS;
pub use builder::Builder;
pub use formulas::Conflict;
pub use layout::{element, move_axis, stack};
pub use operator::{Attribute, Operand, Operator, Problem, normal_axis};
pub use reshape::reshape_to;

use crate::workload::{DType, TensorId};

type Lower = fn(&mut Builder, &Operator) -> Result<Vec<TensorId>, Problem>;

/// Whether an operator of ONNX's own domain can be lowered at all.
pub fn is_supported(kind: &str) -> bool {
    rule(kind).is_some()
}

/// Appends the stages of an operator, and gives the tensors of its outputs, trailing ones left out where
/// nobody can use them.
///
/// # Errors
/// What about the operator's inputs or attributes stands against it.
pub fn lower(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let rule = rule(&op.kind).ok_or_else(|| Problem::Unsupported(op.kind.clone()))?;
    if let Some(known) = known::lower(builder, op)? {
        return Ok(known);
    }
    let mut inputs = op.inputs.iter().flatten();
    if inputs.any(|operand| builder.is_run_time(operand.tensor)) && !takes_run_time_extents(&op.kind) {
        return Err(Problem::Unsupported(format!("{} with run-time extents", op.kind)));
    }
    let halves = op.inputs.iter().flatten().map(|operand| builder.dtype(operand.tensor));
    match halves.into_iter().find(|dtype| matches!(dtype, DType::F16 | DType::BF16)) {
        Some(half) if !moves(&op.kind) => lower_in_f32(builder, op, rule, half),
        None if !moves(&op.kind) && !calls_library(&op.kind) && has_double(builder, op) => {
            lower_in_f64(builder, op, rule)
        }
        _ => rule(builder, op),
    }
}

fn has_double(builder: &Builder, op: &Operator) -> bool {
    op.inputs.iter().flatten().any(|operand| builder.dtype(operand.tensor) == DType::F64)
}

/// Whether an operator becomes a call of the run-time library, which knows all types.
fn calls_library(kind: &str) -> bool {
    matches!(
        kind,
        "TopK"
            | "Scatter"
            | "ScatterElements"
            | "ScatterND"
            | "MaxUnpool"
            | "NonZero"
            | "Compress"
            | "Unique"
            | "NonMaxSuppression"
    )
}

/// Operators on f64 compute in f64.
fn lower_in_f64(builder: &mut Builder, op: &Operator, rule: Lower) -> Result<Vec<TensorId>, Problem> {
    let first = builder.dtype(op.input(0)?);
    let mut results = builder.in_double(|builder| rule(builder, op))?;
    // what has another type by definition: a power that of its base, mean and deviation f32
    let single = match op.kind.as_str() {
        "Pow" if first == DType::F32 => 0..results.len(),
        "LayerNormalization" => 1.min(results.len())..results.len(),
        _ => 0..0,
    };
    for result in &mut results[single] {
        *result = builder.converted(*result, DType::F32)?;
    }
    Ok(results)
}

/// Whether an operator takes 16-bit floats and f64 as they are: it hands them on, or converts them itself.
fn moves(kind: &str) -> bool {
    matches!(
        kind,
        "Cast"
            | "CastLike"
            | "Identity"
            | "Dropout"
            | "Reshape"
            | "Flatten"
            | "Squeeze"
            | "Unsqueeze"
            | "Transpose"
            | "Expand"
            | "Tile"
            | "Concat"
            | "Split"
            | "Slice"
            | "DepthToSpace"
            | "SpaceToDepth"
            | "Trilu"
            | "Pad"
            | "Gather"
            | "GatherElements"
            | "GatherND"
            | "ReverseSequence"
            | "CenterCropPad"
            | "EyeLike"
            | "BitCast"
            | "QuantizeLinear"
            | "RandomUniformLike"
            | "RandomNormalLike"
            | "Bernoulli"
            | "DequantizeLinear"
            | "Constant"
            | "ConstantOfShape"
            | "Shape"
            | "Size"
    )
}

/// Whether an operator takes tensors whose extents are known only when the network runs. All others are
/// refused with them, so that none takes what an extent is at most for what it is.
fn takes_run_time_extents(kind: &str) -> bool {
    elementwise::is_unary(kind)
        || matches!(
            kind,
            "LeakyRelu"
                | "Elu"
                | "Selu"
                | "Celu"
                | "HardSigmoid"
                | "ThresholdedRelu"
                | "Shrink"
                | "Swish"
                | "Gelu"
                | "Add"
                | "Mul"
                | "Sub"
                | "Div"
                | "Mod"
                | "Pow"
                | "PRelu"
                | "Equal"
                | "Less"
                | "LessOrEqual"
                | "Greater"
                | "GreaterOrEqual"
                | "And"
                | "Or"
                | "Xor"
                | "Where"
                | "Sum"
                | "Mean"
                | "Max"
                | "Min"
                | "Clip"
                | "Cast"
                | "CastLike"
                | "Not"
                | "IsNaN"
                | "IsInf"
                | "BitwiseAnd"
                | "BitwiseOr"
                | "BitwiseXor"
                | "BitShift"
                | "BitwiseNot"
                | "BitCast"
                | "Identity"
                | "Dropout"
                | "Reshape"
                | "Flatten"
                | "Squeeze"
                | "Unsqueeze"
                | "Transpose"
                | "Expand"
                | "Concat"
                | "Split"
                | "Slice"
                | "Gather"
                | "Shape"
                | "Size"
                | "Range"
                | "ConstantOfShape"
                | "MatMul"
                | "Gemm"
                | "Einsum"
                | "Conv"
                | "Resize"
                | "Upsample"
                | "Pad"
                | "MaxPool"
                | "AveragePool"
                | "LpPool"
                | "GlobalMaxPool"
                | "GlobalAveragePool"
                | "GlobalLpPool"
                | "ReduceSum"
                | "ReduceMean"
                | "ReduceMax"
                | "ReduceMin"
                | "ReduceProd"
                | "ReduceL1"
                | "ReduceL2"
                | "ReduceSumSquare"
                | "ReduceLogSum"
                | "ReduceLogSumExp"
                | "Softmax"
                | "LogSoftmax"
                | "ArgMax"
                | "ArgMin"
                | "BatchNormalization"
                | "LayerNormalization"
                | "RMSNormalization"
                | "InstanceNormalization"
                | "LSTM"
                | "GRU"
                | "RNN"
                | "LinearAttention"
                | "CausalConvWithState"
                | "Hardmax"
                | "Trilu"
                | "CumSum"
                | "CumProd"
                | "DepthToSpace"
                | "SpaceToDepth"
                | "GroupNormalization"
                | "MeanVarianceNormalization"
                | "LpNormalization"
                | "LRN"
                | "GatherElements"
                | "GatherND"
                | "OneHot"
                | "Tile"
                | "QuantizeLinear"
                | "DequantizeLinear"
                | "DynamicQuantizeLinear"
                | "MatMulInteger"
                | "QLinearMatMul"
                | "ConvInteger"
                | "QLinearConv"
                | "ReverseSequence"
                | "EyeLike"
                | "TopK"
                | "Scatter"
                | "ScatterElements"
                | "ScatterND"
                | "NonZero"
                | "Compress"
                | "Unique"
                | "NonMaxSuppression"
                | "ConvTranspose"
                | "GridSample"
                | "RotaryEmbedding"
                | "Attention"
                | "SimplifiedLayerNormalization"
                | "com.microsoft.Gelu"
                | "com.microsoft.BiasGelu"
                | "com.microsoft.FastGelu"
                | "com.microsoft.QuickGelu"
                | "com.microsoft.FusedMatMul"
                | "com.microsoft.SkipLayerNormalization"
                | "com.microsoft.SkipSimplifiedLayerNormalization"
                | "com.microsoft.RotaryEmbedding"
                | "com.microsoft.MultiHeadAttention"
                | "com.microsoft.MatMulNBits"
                | "com.microsoft.Attention"
                | "com.microsoft.GroupQueryAttention"
                | "com.microsoft.EmbedLayerNormalization"
                | "com.microsoft.QuantizeLinear"
                | "com.microsoft.DequantizeLinear"
                | "com.microsoft.QLinearAdd"
                | "com.microsoft.QLinearMul"
                | "com.microsoft.QLinearSigmoid"
                | "com.microsoft.QLinearLeakyRelu"
                | "com.microsoft.QLinearSoftmax"
                | "com.microsoft.QLinearAveragePool"
                | "com.microsoft.QLinearGlobalAveragePool"
                | "com.microsoft.QLinearConcat"
                | "com.microsoft.QLinearWhere"
                | "com.microsoft.QGemm"
                | "com.microsoft.MatMulIntegerToFloat"
                | "com.microsoft.DynamicQuantizeMatMul"
                | "com.microsoft.DynamicQuantizeLSTM"
        )
}

/// Operators on 16-bit floats compute in f32, sums among them, and round their results.
fn lower_in_f32(builder: &mut Builder, op: &Operator, rule: Lower, half: DType) -> Result<Vec<TensorId>, Problem> {
    let mut wide = op.clone();
    for operand in wide.inputs.iter_mut().flatten() {
        if matches!(builder.dtype(operand.tensor), DType::F16 | DType::BF16) {
            operand.tensor = builder.converted(operand.tensor, DType::F32)?;
        }
    }
    let mut results = rule(builder, &wide)?;
    // mean and deviation, which follow the normalised values, are of f32 by definition
    let rounded = if op.kind == "LayerNormalization" { 1 } else { results.len() };
    for result in results.iter_mut().take(rounded) {
        if builder.dtype(*result) == DType::F32 {
            *result = builder.converted(*result, half)?;
        }
    }
    Ok(results)
}

fn rule(kind: &str) -> Option<Lower> {
    Some(match kind {
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
        "BitwiseAnd" | "BitwiseOr" | "BitwiseXor" | "BitShift" => bits::bitwise,
        "BitwiseNot" => bits::complement,
        "BitCast" => bits::reinterpret,

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
        "Pad" => padding::pad,
        "CenterCropPad" => padding::centre,
        "Resize" | "Upsample" => resize::resize,
        "GridSample" => grid::grid_sample,
        "AffineGrid" => grid::affine_grid,
        "RoiAlign" => roi::align,

        "TopK" => sort::top_k,
        "NonZero" => found::non_zero,
        "Compress" => found::compress,
        "Unique" => found::unique,
        "NonMaxSuppression" => found::non_max_suppression,
        "Scatter" | "ScatterElements" => scatter::scatter_elements,
        "ScatterND" => scatter::scatter_nd,
        "TensorScatter" => scatter::tensor_scatter,
        "MaxUnpool" => scatter::max_unpool,

        "LSTM" | "GRU" | "RNN" | "com.microsoft.DynamicQuantizeLSTM" => recurrent::recurrent,

        "Gather" => gather::gather,
        "GatherElements" => gather::gather_elements,
        "GatherND" => gather::gather_nd,
        "ReverseSequence" => gather::reverse_sequence,
        "OneHot" => gather::one_hot,
        "EyeLike" => gather::eye_like,

        "Constant" => constants::constant,
        "ConstantOfShape" => constants::constant_of_shape,
        "Shape" | "Size" => constants::shape,
        "Range" => constants::range,
        "CumSum" | "CumProd" => reduction::cumulative,
        "HannWindow" | "HammingWindow" | "BlackmanWindow" => signal::window,
        "MelWeightMatrix" => signal::mel_weights,

        "DFT" => fourier::dft,
        "STFT" => fourier::stft,

        "Einsum" => einsum::einsum,
        "MatMul" => contraction::matmul,
        "Gemm" => contraction::gemm,
        "Conv" => convolution::convolution,
        "ConvTranspose" => convolution::transposed,
        "DeformConv" => deform::deformable,
        "Col2Im" => columns::col2im,
        "Det" => determinant::determinant,

        "RandomUniform" | "RandomUniformLike" | "RandomNormal" | "RandomNormalLike" => random::random,
        "Bernoulli" => random::bernoulli,

        "QuantizeLinear" => quantization::quantize,
        "DequantizeLinear" => quantization::dequantize,
        "DynamicQuantizeLinear" => quantization::dynamic,
        "MatMulInteger" | "QLinearMatMul" => quantization::matmul,
        "ConvInteger" | "QLinearConv" => quantization::convolution,

        "MaxPool" | "AveragePool" | "LpPool" => pooling::pool,
        "GlobalMaxPool" | "GlobalAveragePool" | "GlobalLpPool" => pooling::global,
        "LRN" => pooling::local_response,

        "ReduceSum" | "ReduceMean" | "ReduceMax" | "ReduceMin" | "ReduceProd" | "ReduceL1" | "ReduceL2"
        | "ReduceSumSquare" | "ReduceLogSum" | "ReduceLogSumExp" => reduction::reduce,
        "Softmax" | "LogSoftmax" => reduction::softmax,
        "ArgMax" | "ArgMin" => reduction::position_of_extreme,
        "Hardmax" => reduction::hardmax,

        "BatchNormalization" => normalization::batch,
        "LayerNormalization" | "RMSNormalization" => normalization::layer,
        "InstanceNormalization" => normalization::instance,
        "GroupNormalization" => normalization::group,
        "MeanVarianceNormalization" | "LpNormalization" => normalization::plain,
        "Attention" => attention::attention,
        "ai.onnx.preview.FlexAttention" => attention::flex_attention,
        "LinearAttention" => recurrence::linear_attention,
        "CausalConvWithState" => recurrence::causal_convolution,
        "RotaryEmbedding" => rotary::rotary_embedding,

        "NegativeLogLikelihoodLoss" => losses::negative_log_likelihood,
        "SoftmaxCrossEntropyLoss" => losses::softmax_cross_entropy,

        "com.microsoft.Gelu" | "com.microsoft.BiasGelu" | "com.microsoft.FastGelu" | "com.microsoft.QuickGelu" => {
            contrib::gelu
        }
        "com.microsoft.FusedMatMul" => contrib::fused_matmul,
        "com.microsoft.SkipLayerNormalization" | "com.microsoft.SkipSimplifiedLayerNormalization" => {
            contrib::skip_normalization
        }
        // of ONNX Runtime, but in ONNX's own domain
        "SimplifiedLayerNormalization" => contrib::simplified_normalization,
        "com.microsoft.RotaryEmbedding" => contrib::rotary_embedding,
        "com.microsoft.MultiHeadAttention" => contrib::multi_head_attention,
        "com.microsoft.MatMulNBits" => few_bits::matmul,
        "com.microsoft.Attention" => contrib::attention,
        "com.microsoft.GroupQueryAttention" => grouped::group_query_attention,
        "com.microsoft.EmbedLayerNormalization" => contrib::embed_normalization,
        "com.microsoft.QuantizeLinear" | "com.microsoft.DequantizeLinear" => qlinear::plain,
        "com.microsoft.QLinearAdd" | "com.microsoft.QLinearMul" => qlinear::binary,
        "com.microsoft.QLinearSigmoid"
        | "com.microsoft.QLinearLeakyRelu"
        | "com.microsoft.QLinearSoftmax"
        | "com.microsoft.QLinearAveragePool"
        | "com.microsoft.QLinearGlobalAveragePool" => qlinear::unary,
        "com.microsoft.QLinearConcat" => qlinear::concat,
        "com.microsoft.QLinearWhere" => qlinear::select,
        "com.microsoft.QGemm" => qlinear::gemm,
        "com.microsoft.MatMulIntegerToFloat" => qlinear::product_to_float,
        "com.microsoft.DynamicQuantizeMatMul" => qlinear::dynamic_product,
        kind if elementwise::is_unary(kind) => elementwise::unary,
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
