use crate::graph::lower::{Attribute, Builder, Operand, Operator, lower};
use crate::graph::{Precision, Products, Program, TensorData};
use crate::workload::{Combiner, DType, Expr, Index, TensorId};

/// A network in the making.
struct Net(Builder);

impl Net {
    /// A network whose input `x` is of this shape.
    fn new(shape: &[i64]) -> (Net, TensorId) {
        let mut builder = Builder::new(1 << 24);
        let extents: Vec<Index> = shape.iter().map(|extent| Index::constant(*extent)).collect();
        let x = builder.input("x".into(), &extents, DType::F32).unwrap();
        (Net(builder), x)
    }

    fn apply(&mut self, kind: &str, inputs: &[TensorId], attributes: &[(&str, Attribute)]) -> TensorId {
        let operand = |tensor: &TensorId| Some(Operand { tensor: *tensor, only_reader: true });
        let inputs = inputs.iter().map(operand).collect();
        let attributes = attributes.iter().map(|(name, value)| (name.to_string(), value.clone())).collect();
        let op = Operator { kind: kind.to_string(), opset: 21, attributes, inputs, outputs: vec![true] };
        lower(&mut self.0, &op).unwrap()[0]
    }

    fn bytes(&mut self, shape: &[i64], dtype: DType, values: impl IntoIterator<Item = i64>) -> TensorId {
        let values = values.into_iter().map(|value| value as f64);
        self.0.constant(TensorData::from_f64(shape.to_vec(), dtype, values))
    }

    fn scale(&mut self, values: &[f32]) -> TensorId {
        let shape = if values.len() == 1 { vec![] } else { vec![values.len() as i64] };
        self.0.constant(TensorData::from_f32(shape, values))
    }

    /// Quantised to a type, and back.
    fn quantized(&mut self, x: TensorId, scale: f32, zero: i64, dtype: DType) -> TensorId {
        let (scale, zero) = (self.scale(&[scale]), self.bytes(&[], dtype, [zero]));
        let q = self.apply("QuantizeLinear", &[x, scale, zero], &[]);
        self.apply("DequantizeLinear", &[q, scale, zero], &[])
    }

    /// As imported, and shortened; both give the same.
    fn finish(mut self, y: TensorId) -> Program {
        self.0.output("y".into(), y).unwrap();
        let plain = self.0.finish();
        let mut short = plain.clone();
        short.shorten(Precision::F32, Products::All);
        short.validate().unwrap();
        let difference = largest_difference(&plain, &short);
        assert!(difference <= 1e-5, "{difference}");
        short
    }
}

/// The types and values of the sums of a program.
fn sums(program: &Program) -> Vec<(DType, Expr)> {
    let sums = program.stages().filter(|held| held.stage.combiner == Some(Combiner::Sum));
    sums.map(|held| (program.tensor(held.stage.output).dtype, held.stage.value.clone())).collect()
}

fn weights(count: i64, low: i64, high: i64) -> impl Iterator<Item = i64> {
    (0..count).map(move |at| low + at * 53 % (high - low + 1))
}

#[test]
fn a_border_holds_zero_points() {
    let (mut net, x) = Net::new(&[1, 3, 5, 5]);
    let x = net.quantized(x, 0.02, 111, DType::U8);
    let (w, scales, zeros) = (
        net.bytes(&[4, 3, 3, 3], DType::I8, weights(108, -128, 127)),
        net.scale(&[0.5, 0.25, 0.125, 1.0]),
        net.bytes(&[4], DType::I8, [0; 4]),
    );
    let w = net.apply("DequantizeLinear", &[w, scales, zeros], &[("axis", Attribute::Int(0))]);
    let y = net.apply("Conv", &[x, w], &[("pads", Attribute::Ints(vec![1, 1, 1, 1]))]);
    let program = net.finish(y);
    let [(DType::I32, sum)] = &sums(&program)[..] else { panic!("{:?}", sums(&program)) };
    let text = format!("{sum:?}");
    assert!(text.contains("outside: Cast(U8, Index(Index { terms: [], constant: 111 }))"), "{text}");
    let bytes = program.data.iter().flatten().filter(|data| data.dtype == DType::I8).map(TensorData::elements);
    // with a fourth step of weight 0 beside each three
    assert_eq!(bytes.sum::<i64>(), 144, "{program:?}");
}

#[test]
fn weights_with_a_zero_point_become_signed_where_they_fit() {
    for (low, high, expected) in [(20, 230, 1), (0, 255, 2)] {
        let (mut net, x) = Net::new(&[3, 40]);
        let x = net.quantized(x, 0.02, 128, DType::U8);
        let (w, scale) = (net.bytes(&[40, 6], DType::U8, weights(240, low, high)), net.scale(&[0.5]));
        let zero = net.bytes(&[], DType::U8, [110]);
        let w = net.apply("DequantizeLinear", &[w, scale, zero], &[]);
        let y = net.apply("MatMul", &[x, w], &[]);
        let found = sums(&net.finish(y));
        // what does not fit is multiplied by sums of activations
        assert_eq!(found.len(), expected, "{found:?}");
        assert!(found.iter().all(|(dtype, _)| *dtype == DType::I32), "{found:?}");
    }
}

#[test]
fn sums_over_each_channel_are_of_exact_floats() {
    let (mut net, x) = Net::new(&[1, 4, 6, 6]);
    let x = net.quantized(x, 0.02, 3, DType::U8);
    let (w, scale) = (net.bytes(&[4, 1, 3, 3], DType::U8, weights(36, 0, 255)), net.scale(&[0.5]));
    let zero = net.bytes(&[], DType::U8, [100]);
    let w = net.apply("DequantizeLinear", &[w, scale, zero], &[]);
    let y = net.apply("Conv", &[x, w], &[("group", Attribute::Int(4))]);
    let program = net.finish(y);
    let [(DType::F32, _)] = &sums(&program)[..] else { panic!("{:?}", sums(&program)) };
    // weights less their zero point fit no byte
    let of_floats = |count| program.data.iter().flatten().any(|d| d.dtype == DType::F32 && d.elements() == count);
    assert!(of_floats(36), "{program:?}");
    assert!(program.tensors.iter().all(|tensor| tensor.dtype != DType::I32), "{program:?}");
}

#[test]
fn sums_that_may_leave_32_bits_stay_as_they_are() {
    for (depth, expected) in [(1 << 15, DType::I32), (1 << 17, DType::F32)] {
        let (mut net, x) = Net::new(&[1, depth]);
        let x = net.quantized(x, 0.02, 128, DType::U8);
        let (w, scale) = (net.bytes(&[depth, 2], DType::I8, weights(2 * depth, -128, 127)), net.scale(&[0.5]));
        let zero = net.bytes(&[], DType::I8, [0]);
        let w = net.apply("DequantizeLinear", &[w, scale, zero], &[]);
        let y = net.apply("MatMul", &[x, w], &[]);
        assert_eq!(sums(&net.finish(y))[0].0, expected);
    }
}

#[test]
fn scales_along_the_reduction_stay_inside() {
    let (mut net, x) = Net::new(&[3, 4]);
    let x = net.quantized(x, 0.02, 128, DType::U8);
    let (w, scales) = (net.bytes(&[4, 5], DType::I8, weights(20, -99, 99)), net.scale(&[0.5, 1.0, 2.0, 4.0]));
    let zeros = net.bytes(&[4], DType::I8, [0; 4]);
    let w = net.apply("DequantizeLinear", &[w, scales, zeros], &[("axis", Attribute::Int(0))]);
    let y = net.apply("MatMul", &[x, w], &[]);
    let program = net.finish(y);
    assert_eq!(sums(&program)[0].0, DType::F32);
    // and yet the weights are read as bytes
    assert!(program.data.iter().flatten().any(|data| data.dtype == DType::I8 && data.elements() == 20));
}

#[test]
fn signed_activations_are_stored_without_a_sign() {
    let (mut net, x) = Net::new(&[3, 8]);
    let x = net.quantized(x, 0.02, -5, DType::I8);
    let (w, scale) = (net.bytes(&[8, 5], DType::I8, weights(40, -99, 99)), net.scale(&[0.5]));
    let zero = net.bytes(&[], DType::I8, [0]);
    let w = net.apply("DequantizeLinear", &[w, scale, zero], &[]);
    let moved = net.apply("Transpose", &[x], &[("perm", Attribute::Ints(vec![1, 0]))]);
    let again = net.quantized(moved, 0.02, -5, DType::I8);
    let back = net.apply("Transpose", &[again], &[("perm", Attribute::Ints(vec![1, 0]))]);
    let y = net.apply("MatMul", &[back, w], &[]);
    let program = net.finish(y);
    assert_eq!(sums(&program)[0].0, DType::I32);
    let stored: Vec<DType> = program.stages().map(|held| program.tensor(held.stage.output).dtype).collect();
    assert!(stored.contains(&DType::U8) && !stored.contains(&DType::I8), "{stored:?}");
    let rounds = program.stages().filter(|held| format!("{:?}", held.stage.value).contains("Round")).count();
    assert_eq!(rounds, 1, "what is only transposed is not quantised again");
}

#[test]
fn an_output_keeps_its_type() {
    let (mut net, x) = Net::new(&[8]);
    let (scale, zero) = (net.scale(&[0.02]), net.bytes(&[], DType::I8, [-5]));
    let q = net.apply("QuantizeLinear", &[x, scale, zero], &[]);
    let program = net.finish(q);
    assert_eq!(program.tensor(program.outputs[0].1).dtype, DType::I8);
}

#[test]
fn two_activations_are_multiplied_as_whole_numbers() {
    let (mut net, x) = Net::new(&[2, 5, 8]);
    let left = net.quantized(x, 0.02, 7, DType::U8);
    let right = net.quantized(x, 0.03, 90, DType::U8);
    let right = net.apply("Transpose", &[right], &[("perm", Attribute::Ints(vec![0, 2, 1]))]);
    let y = net.apply("MatMul", &[left, right], &[]);
    let program = net.finish(y);
    let halves = program.tensors.iter().filter(|tensor| tensor.dtype == DType::BF16).count();
    assert_eq!(halves, 2, "{program:?}");
    let text = format!("{:?}", sums(&program)[0].1);
    assert!(text.starts_with("Binary(Multiply, Cast(F32, Load {"), "{text}");
}

/// A 1 x 1 convolution with so many filters.
fn pointwise(net: &mut Net, x: TensorId, [filters, channels]: [i64; 2]) -> TensorId {
    let values: Vec<f32> = weights(filters * channels, -60, 60).map(|value| value as f32 / 100.0).collect();
    let w = net.0.constant(TensorData::from_f32(vec![filters, channels, 1, 1], &values));
    net.apply("Conv", &[x, w], &[])
}

#[test]
fn what_is_concatenated_for_products_is_rounded_before() {
    for is_read_itself in [false, true] {
        let (mut net, x) = Net::new(&[1, 4, 6, 6]);
        let sides = [pointwise(&mut net, x, [6, 4]), pointwise(&mut net, x, [8, 4])];
        let both = net.apply("Concat", &sides, &[("axis", Attribute::Int(1))]);
        let mut y = pointwise(&mut net, both, [6, 14]);
        if is_read_itself {
            // somebody reads a part as it is: it stays so
            y = net.apply("Add", &[y, sides[0]], &[]);
        }
        net.0.output("y".into(), y).unwrap();
        let plain = net.0.finish();
        let mut short = plain.clone();
        short.shorten(Precision::Bf16, Products::All);
        short.validate().unwrap();
        let joined: Vec<DType> = short
            .stages()
            .filter(|held| held.stage.value.chooses())
            .map(|held| short.tensor(held.stage.output).dtype)
            .collect();
        assert_eq!(joined, [if is_read_itself { DType::F32 } else { DType::BF16 }]);
        let difference = largest_difference(&plain, &short);
        assert!(difference > 0.0 && difference <= 0.02, "{difference}");
    }
}

/// Attention of an input with itself, its scores scaled on both sides.
fn attention(tokens: i64) -> Net {
    let (mut net, x) = Net::new(&[2, tokens, 32]);
    let (half, quarter) = (net.scale(&[0.5]), net.scale(&[0.25]));
    let value = net.apply("Relu", &[x], &[]);
    let query = net.apply("Mul", &[x, half], &[]);
    let turned = net.apply("Transpose", &[value], &[("perm", Attribute::Ints(vec![0, 2, 1]))]);
    let key = net.apply("Mul", &[quarter, turned], &[]);
    let scores = net.apply("MatMul", &[query, key], &[]);
    let shares = net.apply("Softmax", &[scores], &[("axis", Attribute::Int(-1))]);
    let y = net.apply("MatMul", &[shares, value], &[]);
    net.0.output("y".into(), y).unwrap();
    net
}

#[test]
fn factors_of_what_is_summed_are_multiplied_behind() {
    let plain = attention(24).0.finish();
    let mut short = plain.clone();
    short.shorten(Precision::F32, Products::All);
    short.validate().unwrap();
    let (_, scores) = &sums(&short)[0];
    let is_product = |x: &Expr| matches!(x, Expr::Load { .. });
    assert!(matches!(scores, Expr::Binary(_, x, y) if is_product(x) && is_product(y)), "{scores:?}");
    let behind = short.stages().any(|held| format!("{:?}", held.stage.value).contains("Float(0.125)"));
    assert!(behind, "{short:?}");
    assert!(largest_difference(&plain, &short) <= 1e-6);
}

/// Of what two programs give, beside the largest element.
fn largest_difference(plain: &Program, short: &Program) -> f64 {
    let shape = plain.tensor(plain.inputs[0].1).shape.clone();
    let elements = shape.iter().product::<i64>();
    let x: Vec<f32> = (0..elements).map(|at| (at * 37 % 101) as f32 / 20.0 - 2.5).collect();
    let x = [TensorData::from_f32(shape, &x)];
    let [before, after] = [plain, short].map(|program| program.evaluate(&x).unwrap().remove(0).to_f64());
    let largest = before.iter().fold(0.0f64, |most, value| most.max(value.abs()));
    assert!(largest > 0.0 && before.len() == after.len());
    before.iter().zip(&after).fold(0.0f64, |most, (a, b)| most.max((a - b).abs())) / largest
}

#[test]
fn products_of_activations_are_rounded() {
    // as they are; with a further key; with as many as fill the last tile
    for (tokens, keys) in [(24, 24), (41, 42), (197, 224)] {
        let plain = attention(tokens).0.finish();
        let mut short = plain.clone();
        short.shorten(Precision::Bf16, Products::All);
        short.validate().unwrap();
        let products = short.stages().filter_map(|held| held.stage.multiplied());
        let types = products.map(|both| both.map(|operand| short.tensor(operand.tensor).dtype));
        assert_eq!(types.collect::<Vec<_>>(), [[DType::BF16; 2]; 2]);
        let reduced: Vec<i64> = short.stages().filter_map(|held| held.stage.reduction.first().copied()).collect();
        assert_eq!(reduced, [32, keys, keys, keys]);
        let difference = largest_difference(&plain, &short);
        assert!(difference > 0.0 && difference <= 0.02, "{difference}");
    }
}

#[test]
fn products_of_activations_that_are_used_little_stay_as_they_are() {
    let mut short = attention(8).0.finish();
    short.shorten(Precision::Bf16, Products::All);
    assert!(short.tensors.iter().all(|tensor| tensor.dtype == DType::F32), "{short:?}");
}

#[test]
fn maxima_of_quantised_numbers_are_of_integers() {
    for (zero, dtype) in [(60, DType::U8), (-60, DType::I8)] {
        let (mut net, x) = Net::new(&[1, 2, 6, 6]);
        let x = net.quantized(x, 0.02, zero, dtype);
        let sizes = [("kernel_shape", Attribute::Ints(vec![3, 3])), ("pads", Attribute::Ints(vec![1, 1, 1, 1]))];
        let pooled = net.apply("MaxPool", &[x], &sizes);
        let y = net.quantized(pooled, 0.02, zero, dtype);
        let program = net.finish(y);
        let pools = program.stages().filter(|held| held.stage.combiner == Some(Combiner::Maximum));
        let types: Vec<DType> = pools.map(|held| program.tensor(held.stage.output).dtype).collect();
        assert!(types == [DType::U8] || types == [DType::I8], "{types:?}");
    }
}

#[test]
fn products_of_integers_are_cleared_of_zero_points() {
    let (mut net, x) = Net::new(&[3, 8]);
    let (scale, zero) = (net.scale(&[0.02]), net.bytes(&[], DType::U8, [77]));
    let q = net.apply("QuantizeLinear", &[x, scale, zero], &[]);
    let (w, of_weight) = (net.bytes(&[8, 5], DType::U8, weights(40, 90, 160)), net.bytes(&[], DType::U8, [128]));
    let y = net.apply("MatMulInteger", &[q, w, zero, of_weight], &[]);
    let found = sums(&net.finish(y));
    let text = format!("{found:?}");
    assert!(found.len() == 1 && found[0].0 == DType::I32 && !text.contains("Subtract"), "{text}");
}

#[test]
fn few_channels_lie_side_by_side_in_rows() {
    let (mut net, x) = Net::new(&[2, 3, 9, 10]);
    let w = net.0.constant(TensorData::from_f64(vec![5, 3, 7, 5], DType::F32, weights(525, -8, 9).map(|w| w as f64)));
    let attributes = [("strides", Attribute::Ints(vec![2, 2])), ("pads", Attribute::Ints(vec![3, 2, 3, 2]))];
    let y = net.apply("Conv", &[x, w], &attributes);
    net.0.output("y".into(), y).unwrap();
    let plain = net.0.finish();
    let shortened = |products: Products| {
        let mut short = plain.clone();
        short.shorten(Precision::Bf16, products);
        short.validate().unwrap();
        short
    };
    let (apart, together) = (shortened(Products::ByWeights), shortened(Products::All));
    let window = |program: &Program| {
        program.stages().find(|held| held.stage.is_reduction()).map(|held| held.stage.reduction.clone()).unwrap()
    };
    // the steps of a group come from five columns, which become six; or from four channels of each of them
    assert_eq!([window(&apart), window(&together)], [vec![3, 7, 6], vec![7, 20]]);
    let difference = largest_difference(&apart, &together);
    assert!(difference <= 1e-5, "{difference}");
}
