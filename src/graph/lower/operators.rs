//! Every operator that can be lowered: the rule that does it, and what the rule takes.

use super::{
    Builder, Operator, Problem, attention, bits, columns, constants, contraction, contrib, convolution, deform,
    determinant, einsum, elementwise, few_bits, found, fourier, fused, gather, grid, grouped, layout, losses,
    normalization, padding, parts, pooling, qlinear, quantization, random, recurrence, recurrent, reduction, resize,
    roi, rotary, scatter, signal, sort,
};
use crate::workload::TensorId;

pub(super) type Lower = fn(&mut Builder, &Operator) -> Result<Vec<TensorId>, Problem>;

/// How an operator is lowered.
#[derive(Clone, Copy)]
pub(super) struct Lowering {
    pub rule: Lower,
    /// Whether inputs may have extents that are known only when the network runs. All others are refused with
    /// them, so that none takes what an extent is at most for what it is.
    pub takes_run_time_extents: bool,
    pub types: Types,
}

/// Which types of operands a rule knows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Types {
    /// It computes: in f32 with 16-bit floats, in f64 with that.
    Usual,
    /// It calls the run-time library, which knows all but 16-bit floats.
    Library,
    /// All: it hands elements on, or converts them itself.
    All,
}

impl Lowering {
    fn of_library(self) -> Lowering {
        Lowering { types: Types::Library, ..self }
    }

    fn of_all_types(self) -> Lowering {
        Lowering { types: Types::All, ..self }
    }
}

/// A rule that takes run-time extents.
fn open(rule: Lower) -> Lowering {
    Lowering { rule, takes_run_time_extents: true, types: Types::Usual }
}

/// A rule that does not.
fn fixed(rule: Lower) -> Lowering {
    Lowering { takes_run_time_extents: false, ..open(rule) }
}

/// Of an operator of ONNX's own domain, or of another one, whose name stands before it.
pub(super) fn lowering(kind: &str) -> Option<Lowering> {
    Some(match kind {
        "LeakyRelu" | "Elu" | "Selu" | "Celu" | "HardSigmoid" | "ThresholdedRelu" | "Shrink" | "Swish" | "Gelu" => {
            open(elementwise::activation)
        }
        "Add" | "Mul" => open(foldable),
        "Sub" | "Div" | "Mod" | "Pow" | "PRelu" | "Equal" | "Less" | "LessOrEqual" | "Greater" | "GreaterOrEqual"
        | "And" | "Or" | "Xor" | "Where" => open(elementwise::broadcasting),
        "Sum" | "Mean" | "Max" | "Min" => open(elementwise::variadic),
        "Clip" => open(elementwise::clip),
        "Cast" | "CastLike" => open(elementwise::convert).of_all_types(),
        "Not" | "IsNaN" | "IsInf" => open(elementwise::predicate),
        "BitwiseAnd" | "BitwiseOr" | "BitwiseXor" | "BitShift" => open(bits::bitwise),
        "BitwiseNot" => open(bits::complement),
        "BitCast" => open(bits::reinterpret).of_all_types(),

        "Identity" => open(layout::identity).of_all_types(),
        "Reshape" => open(layout::reshape).of_all_types(),
        "Flatten" => open(layout::flatten).of_all_types(),
        "Squeeze" => open(layout::squeeze).of_all_types(),
        "Unsqueeze" => open(layout::unsqueeze).of_all_types(),
        "Transpose" => open(layout::transpose).of_all_types(),
        "Expand" => open(layout::expand).of_all_types(),
        "Tile" => open(layout::tile).of_all_types(),
        "Concat" => open(parts::concat).of_all_types(),
        "Split" => open(parts::split).of_all_types(),
        "Slice" => open(layout::slice).of_all_types(),
        "DepthToSpace" | "SpaceToDepth" => open(layout::depth_and_space).of_all_types(),
        "Trilu" => open(layout::trilu).of_all_types(),
        "Pad" => open(padding::pad).of_all_types(),
        "CenterCropPad" => fixed(padding::centre).of_all_types(),
        "Resize" | "Upsample" => open(resize::resize),
        "GridSample" => open(grid::grid_sample),
        "AffineGrid" => open(grid::affine_grid),
        "RoiAlign" => open(roi::align),

        "TopK" => open(sort::top_k).of_library(),
        "NonZero" => open(found::non_zero).of_library(),
        "Compress" => open(found::compress).of_library(),
        "Unique" => open(found::unique).of_library(),
        "NonMaxSuppression" => open(found::non_max_suppression).of_library(),
        "Scatter" | "ScatterElements" => open(scatter::scatter_elements).of_library(),
        "ScatterND" => open(scatter::scatter_nd).of_library(),
        "TensorScatter" => fixed(scatter::tensor_scatter),
        "MaxUnpool" => fixed(scatter::max_unpool).of_library(),

        "LSTM" | "GRU" | "RNN" | "com.microsoft.DynamicQuantizeLSTM" => open(recurrent::recurrent),

        "Gather" => open(gather::gather).of_all_types(),
        "GatherElements" => open(gather::gather_elements).of_all_types(),
        "GatherND" => open(gather::gather_nd).of_all_types(),
        "ReverseSequence" => open(gather::reverse_sequence).of_all_types(),
        "OneHot" => open(gather::one_hot),
        "EyeLike" => open(gather::eye_like).of_all_types(),

        "Constant" => fixed(constants::constant).of_all_types(),
        "ConstantOfShape" => open(constants::constant_of_shape).of_all_types(),
        "Shape" | "Size" => open(constants::shape).of_all_types(),
        "Range" => open(constants::range),
        "CumSum" | "CumProd" => open(reduction::cumulative),
        "HannWindow" | "HammingWindow" | "BlackmanWindow" => fixed(signal::window),
        "MelWeightMatrix" => fixed(signal::mel_weights),

        "DFT" => open(fourier::dft),
        "STFT" => open(fourier::stft),

        "Einsum" => open(einsum::einsum),
        "MatMul" => open(contraction::matmul),
        "Gemm" => open(contraction::gemm),
        "Conv" => open(convolution::convolution),
        "ConvTranspose" => open(convolution::transposed),
        "DeformConv" => fixed(deform::deformable),
        "Col2Im" => open(columns::col2im),
        "Det" => fixed(determinant::determinant),

        "RandomUniform" | "RandomNormal" => open(random::random),
        "RandomUniformLike" | "RandomNormalLike" => open(random::random).of_all_types(),
        "Bernoulli" => open(random::bernoulli).of_all_types(),
        "Multinomial" => open(random::multinomial).of_all_types(),
        "Dropout" => open(random::dropout).of_all_types(),

        "QuantizeLinear" => open(quantization::quantize).of_all_types(),
        "DequantizeLinear" => open(quantization::dequantize).of_all_types(),
        "DynamicQuantizeLinear" => open(quantization::dynamic),
        "MatMulInteger" | "QLinearMatMul" => open(quantization::matmul),
        "ConvInteger" | "QLinearConv" => open(quantization::convolution),

        "MaxPool" | "AveragePool" | "LpPool" => open(pooling::pool),
        "GlobalMaxPool" | "GlobalAveragePool" | "GlobalLpPool" => open(pooling::global),
        "LRN" => open(pooling::local_response),

        "ReduceSum" | "ReduceMean" | "ReduceMax" | "ReduceMin" | "ReduceProd" | "ReduceL1" | "ReduceL2"
        | "ReduceSumSquare" | "ReduceLogSum" | "ReduceLogSumExp" => open(reduction::reduce),
        "Softmax" | "LogSoftmax" => open(reduction::softmax),
        "ArgMax" | "ArgMin" => open(reduction::position_of_extreme),
        "Hardmax" => open(reduction::hardmax),

        "BatchNormalization" => open(normalization::batch),
        "LayerNormalization" | "RMSNormalization" => open(normalization::layer),
        "InstanceNormalization" => open(normalization::instance),
        "GroupNormalization" => open(normalization::group),
        "MeanVarianceNormalization" | "LpNormalization" => open(normalization::plain),
        "Attention" => open(attention::attention),
        "ai.onnx.preview.FlexAttention" => fixed(attention::flex_attention),
        "LinearAttention" => open(recurrence::linear_attention),
        "CausalConvWithState" => open(recurrence::causal_convolution),
        "RotaryEmbedding" => open(rotary::rotary_embedding),

        "NegativeLogLikelihoodLoss" => fixed(losses::negative_log_likelihood),
        "SoftmaxCrossEntropyLoss" => fixed(losses::softmax_cross_entropy),

        "com.microsoft.Gelu" | "com.microsoft.BiasGelu" | "com.microsoft.FastGelu" | "com.microsoft.QuickGelu" => {
            open(contrib::gelu)
        }
        "com.microsoft.FusedMatMul" => open(contrib::fused_matmul),
        "com.microsoft.FusedConv" => open(fused::convolution),
        "com.microsoft.FusedGemm" => open(fused::gemm),
        "com.microsoft.QAttention" => open(qlinear::attention),
        "com.microsoft.SkipLayerNormalization" | "com.microsoft.SkipSimplifiedLayerNormalization" => {
            open(contrib::skip_normalization)
        }
        // of ONNX Runtime, but in ONNX's own domain
        "SimplifiedLayerNormalization" => open(contrib::simplified_normalization),
        "com.microsoft.RotaryEmbedding" => open(contrib::rotary_embedding),
        "com.microsoft.MultiHeadAttention" => open(contrib::multi_head_attention),
        "com.microsoft.MatMulNBits" => open(few_bits::matmul),
        "com.microsoft.Attention" => open(contrib::attention),
        "com.microsoft.GroupQueryAttention" => open(grouped::group_query_attention),
        "com.microsoft.EmbedLayerNormalization" => open(contrib::embed_normalization),
        "com.microsoft.QuantizeLinear" | "com.microsoft.DequantizeLinear" => open(qlinear::plain),
        "com.microsoft.QLinearAdd" | "com.microsoft.QLinearMul" => open(qlinear::binary),
        "com.microsoft.QLinearSigmoid"
        | "com.microsoft.QLinearLeakyRelu"
        | "com.microsoft.QLinearSoftmax"
        | "com.microsoft.QLinearAveragePool"
        | "com.microsoft.QLinearGlobalAveragePool" => open(qlinear::unary),
        "com.microsoft.QLinearConcat" => open(qlinear::concat),
        "com.microsoft.QLinearWhere" => open(qlinear::select),
        "com.microsoft.QGemm" => open(qlinear::gemm),
        "com.microsoft.MatMulIntegerToFloat" => open(qlinear::product_to_float),
        "com.microsoft.DynamicQuantizeMatMul" => open(qlinear::dynamic_product),
        kind if elementwise::is_unary(kind) => open(elementwise::unary),
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
