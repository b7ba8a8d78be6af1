//! Workloads: validation, text, the evaluator.

use tilescribe::workload::{
    Array, Binary, Combiner, Condition, DType, Elements, EvaluateError, Expr, Index, Operands, Role, Stage, TensorId,
    TextError, Unary, Var, Workload, WorkloadError, evaluate,
};

fn parse(text: &str) -> Workload {
    text.parse().unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// The only output, given the arguments in the order of the tensors.
fn run(workload: &Workload, arguments: Vec<Elements>) -> Result<Array, EvaluateError> {
    let ids = workload.ids().filter(|(_, t)| matches!(t.role, Role::Input | Role::Constant));
    let arrays: Vec<(TensorId, Array)> =
        ids.zip(arguments).map(|((id, t), e)| (id, Array::new(t.shape.clone(), e).unwrap())).collect();
    let borrowed: Vec<(TensorId, &Array)> = arrays.iter().map(|(id, a)| (*id, a)).collect();
    Ok(evaluate(workload, &borrowed)?.remove(0).1)
}

fn floats(values: impl IntoIterator<Item = f32>) -> Elements {
    Elements::F32(values.into_iter().collect())
}

fn ramp(count: usize, modulus: usize) -> Vec<f32> {
    (0..count).map(|i| (i * 7 % modulus) as f32 - modulus as f32 / 3.0).collect()
}

#[test]
fn matrix_product_with_bias() {
    let workload = parse(
        "input t0 5 300\nconst t1 300 67\nconst t2 67\nlet t3 5 67 sum 300 mul t0 a c t1 c b\nout t4 like t3 add t2 b t3 a b\n",
    );
    let (x, w, b) = (ramp(1500, 31), ramp(20100, 17), ramp(67, 5));
    let result = run(&workload, vec![floats(x.clone()), floats(w.clone()), floats(b.clone())]).unwrap();
    let values = result.as_f32().unwrap();
    for i in 0..5 {
        for j in 0..67 {
            let sum: f64 = (0..300).map(|k| f64::from(x[i * 300 + k]) * f64::from(w[k * 67 + j])).sum();
            let expected = (f64::from(sum as f32) + f64::from(b[j])) as f32;
            assert_eq!(values[i * 67 + j], expected, "{i} {j}");
        }
    }
}

#[test]
fn padded_convolution() {
    let text = "input t0 2 3 9 7\nconst t1 4 3 3 3\n\
                out t2 2 4 5 4 sum 3 3 3 mul pad 0.0 t0 a e ? + * 2 c + f -1 ? + * 2 d + g -1 t1 b e f g\n";
    let workload = parse(text);
    let (x, w) = (ramp(2 * 3 * 9 * 7, 23), ramp(4 * 3 * 3 * 3, 11));
    let result = run(&workload, vec![floats(x.clone()), floats(w.clone())]).unwrap();
    let values = result.as_f32().unwrap();
    for n in 0..2 {
        for o in 0..4 {
            for h in 0..5i64 {
                for v in 0..4i64 {
                    let mut sum = 0.0f64;
                    for c in 0..3 {
                        for p in 0..3i64 {
                            for q in 0..3i64 {
                                let (y, z) = (2 * h + p - 1, 2 * v + q - 1);
                                if (0..9).contains(&y) && (0..7).contains(&z) {
                                    let input = x[((n * 3 + c) * 9 + y as usize) * 7 + z as usize];
                                    let weight = w[((o * 3 + c) * 3 + p as usize) * 3 + q as usize];
                                    sum += f64::from(input) * f64::from(weight);
                                }
                            }
                        }
                    }
                    let at = ((n * 4 + o) * 5 + h as usize) * 4 + v as usize;
                    assert_eq!(values[at], sum as f32, "{n} {o} {h} {v}");
                }
            }
        }
    }
}

#[test]
fn reductions_over_lanes_and_over_points_agree() {
    // one output: lanes run over the reduction; 40 equal outputs: lanes run over them
    let few = parse("input t0 7 99\nout t1 sum 7 99 mul 0.5 t0 a b\n");
    let many = parse("input t0 7 99\nout t1 40 sum 7 99 mul 0.5 t0 b c\n");
    let x = ramp(693, 101);
    let one = run(&few, vec![floats(x.clone())]).unwrap();
    let all = run(&many, vec![floats(x)]).unwrap();
    assert_eq!(one.shape(), &[] as &[i64]);
    assert!(all.as_f32().unwrap().iter().all(|v| *v == one.as_f32().unwrap()[0]));
    let max = parse("input t0 i32 693\nout t1 i32 maxof 693 neg t0 a\n");
    let values = Elements::I32((0..693).map(|i| (i * 37) % 100 - 50).collect());
    assert_eq!(*run(&max, vec![values]).unwrap().elements(), Elements::I32(vec![50]));
}

#[test]
fn gathers_are_checked_at_run_time() {
    let workload = parse("input t0 i64 3\nconst t1 5 2\nout t2 3 2 t1 value t0 a b\n");
    let table: Vec<f32> = (0..10).map(|i| i as f32).collect();
    let result = run(&workload, vec![Elements::I64(vec![4, 0, 2]), floats(table.clone())]).unwrap();
    assert_eq!(result.as_f32().unwrap(), [8.0, 9.0, 0.0, 1.0, 4.0, 5.0]);
    let error = run(&workload, vec![Elements::I64(vec![4, -1, 2]), floats(table)]).unwrap_err();
    assert_eq!(error, EvaluateError::OutOfRange { stage: 0, tensor: TensorId(1), dimension: 0, index: -1, extent: 5 });
}

#[test]
fn integers_divide_by_zero_only_where_guards_hold() {
    let guarded = parse("input t0 i64 4\nout t1 i64 4 guard 1 a 1 4 div int 12 t0 a int -1\n");
    let result = run(&guarded, vec![Elements::I64(vec![0, 5, -5, 12])]).unwrap();
    assert_eq!(*result.elements(), Elements::I64(vec![-1, 2, -3, 1]));
    let plain = parse("input t0 i64 4\nout t1 i64 4 div int 12 t0 a\n");
    let error = run(&plain, vec![Elements::I64(vec![0, 5, -5, 12])]).unwrap_err();
    assert_eq!(error, EvaluateError::DivisionByZero { stage: 0 });
}

#[test]
fn types_convert() {
    let workload = parse(
        "input t0 6\nout t1 i8 6 cast i8 t0 a\nout t2 bool 6 lt t0 a 0.5\nout t3 f16 6 cast f16 t0 a\nout t4 6 select t2 a 1.0 cast f32 t1 a\n",
    );
    let x = Array::new(vec![6], floats([-1.5, 0.1, 200.0, 2.7, 1e9, -0.0])).unwrap();
    let outputs = evaluate(&workload, &[(TensorId(0), &x)]).unwrap();
    assert_eq!(*outputs[0].1.elements(), Elements::I8(vec![-1, 0, 200u8 as i8, 2, 1_000_000_000i64 as i8, 0]));
    assert_eq!(*outputs[1].1.elements(), Elements::Bool(vec![true, true, false, false, false, true]));
    assert_eq!(outputs[2].1.number(1), Some(half::f16::from_f32(0.1).to_f64()));
    assert_eq!(outputs[3].1.as_f32().unwrap(), [1.0, 1.0, -56.0, 2.0, 0.0, 1.0]);
}

#[test]
fn products_of_short_operands_are_those_of_the_same_numbers_in_f32() {
    let text = |product: &str| format!("input t0 SHORT 40 30\ninput t1 SHORT 30 9\nout t2 40 9 sum 30 {product}\n");
    // the second is no product, which is computed another way
    let [fast, plain] = [
        "mul cast f32 guard 1 c 3 30 t0 a c cast SHORT 0.0 cast f32 t1 c b",
        "add 0.0 mul cast f32 guard 1 c 3 30 t0 a c cast SHORT 0.0 cast f32 t1 c b",
    ]
    .map(text);
    let (x, w) = (ramp(1200, 31), ramp(270, 17));
    let rounded = |short: fn(f32) -> f32| [&x, &w].map(|values| values.iter().map(|v| short(v / 7.0)).collect());
    let f16 = |values: Vec<f32>| Elements::F16(values.into_iter().map(half::f16::from_f32).collect());
    let bf16 = |values: Vec<f32>| Elements::BF16(values.into_iter().map(half::bf16::from_f32).collect());
    type Converted<'a> = &'a dyn Fn(Vec<f32>) -> Elements;
    let cases: [(&str, [Vec<f32>; 2], Converted<'_>); 2] = [
        ("f16", rounded(|v| half::f16::from_f32(v).to_f32()), &f16),
        ("bf16", rounded(|v| half::bf16::from_f32(v).to_f32()), &bf16),
    ];
    for (short, values, elements) in cases {
        let arguments = || values.clone().map(elements).to_vec();
        let [fast, plain] =
            [&fast, &plain].map(|text| run(&parse(&text.replace("SHORT", short)), arguments()).unwrap());
        let wide = text("mul guard 1 c 3 30 t0 a c 0.0 t1 c b").replace("SHORT ", "");
        let wide = run(&parse(&wide), values.clone().map(floats).to_vec()).unwrap();
        assert_eq!((fast.as_f32(), plain.as_f32()), (wide.as_f32(), wide.as_f32()), "{short}");
        assert!(fast.as_f32().unwrap().iter().any(|v| *v != 0.0));
    }
}

#[test]
fn what_is_rounded_to_an_integer_is_rounded_to_its_type_before() {
    // as f32, the quotient is 25.5, which is even rounded up; as f64 it is a little less
    let workload = parse("input t0 1\ninput t1 1\nout t2 1 round div t0 a t1 a\n");
    let result = run(&workload, vec![floats([0.5]), floats([5.0 / 255.0])]).unwrap();
    assert_eq!(result.as_f32(), Some(&[26.0][..]));
}

#[test]
fn arguments_are_checked() {
    let workload = parse("input t0 2\nout t1 2 t0 a\n");
    let right = Array::new(vec![2], floats([1.0, 2.0])).unwrap();
    let wrong = Array::new(vec![3], floats([1.0, 2.0, 3.0])).unwrap();
    let id = TensorId(0);
    assert_eq!(evaluate(&workload, &[]).unwrap_err(), EvaluateError::Missing { tensor: id });
    assert!(matches!(evaluate(&workload, &[(id, &wrong)]), Err(EvaluateError::Argument { .. })));
    assert!(matches!(evaluate(&workload, &[(id, &right), (id, &right)]), Err(EvaluateError::NotAnArgument { .. })));
    assert!(matches!(evaluate(&workload, &[(TensorId(1), &right)]), Err(EvaluateError::NotAnArgument { .. })));
    assert!(matches!(evaluate(&workload, &[(TensorId(9), &right)]), Err(EvaluateError::NotAnArgument { .. })));
}

#[test]
fn text_round_trips() {
    let texts = [
        "input t0 128 768\nconst t1 768 3072\nconst t2 3072\nlet t3 128 3072 sum 768 mul t0 a c t1 c b\nout t4 like t3 add t2 b t3 a b\n",
        "input t0 1 3 224 224\nconst t1 64 3 7 7\nout t2 1 64 112 112 sum 3 7 7 mul pad 0.0 t0 a e ? + * 2 c + f -3 ? + * 2 d + g -3 t1 b e f g\n",
        "input t0 i64 7\nconst t1 f16 99 5\nout t2 35 cast f32 t1 value max int 0 min t0 / a 5 int 98 % a 5\n",
        "out t0 bool 4 eq int % a 2 int 0\n",
        "input t0\nout t1 3 guard 2 a 1 3 * -1 a -2 1 t0 inf\n",
    ];
    for text in texts {
        assert_eq!(parse(text).to_string(), text);
    }
}

#[test]
fn every_operator_prints_and_parses() {
    for op in Unary::ALL {
        let dtype = if op.takes() == Operands::Booleans { DType::Bool } else { DType::F32 };
        check_operator(dtype, dtype, |x| Expr::unary(op, x));
    }
    for op in Binary::ALL {
        let dtype = match op.takes() {
            Operands::Booleans => DType::Bool,
            Operands::Integers => DType::U16,
            _ => DType::F32,
        };
        let result = if op.is_comparison() { DType::Bool } else { dtype };
        check_operator(dtype, result, |x| Expr::binary(op, x.clone(), x));
    }
    for dtype in DType::ALL {
        check_operator(dtype, dtype, |x| Expr::Cast(dtype, Box::new(x)));
        check_operator(dtype, dtype, |x| Expr::Bits(dtype, Box::new(x)));
    }
}

fn check_operator(from: DType, to: DType, build: impl Fn(Expr) -> Expr) {
    let mut workload = Workload::default();
    let input = workload.add_tensor(vec![3], from, Role::Input);
    let output = workload.add_tensor(vec![3], to, Role::Output);
    let value = build(Expr::load(input, vec![Index::var(Var(0))]));
    workload.stages.push(Stage::map(output, vec![3], value));
    assert_eq!(workload.validate(), Ok(()));
    assert_eq!(workload.to_string().parse(), Ok(workload));
}

#[test]
fn hostile_text_is_refused() {
    let deep = format!("out t0 {}1.0\n", "neg ".repeat(100_000));
    let deep_index = format!("out t0 4 int {}a{}\n", "/ ".repeat(100_000), " 2".repeat(100_000));
    type IsRight = fn(&TextError) -> bool;
    let cases: Vec<(&str, IsRight)> = vec![
        ("", |e| matches!(e, TextError::Invalid(WorkloadError::NoStage))),
        ("what t0", |e| matches!(e, TextError::Word { line: 1, .. })),
        ("out t0", |e| matches!(e, TextError::End { line: 1, .. })),
        ("out t0 4 neg", |e| matches!(e, TextError::End { .. })),
        ("out t0 4 1.0 1.0", |e| matches!(e, TextError::Word { .. })),
        ("out t1 4 1.0", |e| matches!(e, TextError::Gap(0))),
        ("out t0 4 1.0\nout t0 4 1.0", |e| matches!(e, TextError::Redefined { line: 2, tensor: 0 })),
        ("out t4000000000 4 1.0", |e| matches!(e, TextError::Word { .. })),
        ("out t0 4 guard 9000000000000000000 a 0 1", |e| matches!(e, TextError::End { .. })),
        ("out t0 4 t0 a", |e| matches!(e, TextError::Word { .. })),
        ("out t0 like t7 1.0", |e| matches!(e, TextError::Word { .. })),
        ("out t0 i64 4 int * 1099511627776 a", |e| matches!(e, TextError::Coefficient { .. })),
        ("out t0 i64 4 int * 1048576 * 1048576 * 1048576 * 1048576 a", |e| matches!(e, TextError::Coefficient { .. })),
        ("out t0 i64 4 int / a 0", |e| matches!(e, TextError::Word { .. })),
        ("out t0 4611686018427387904 1.0", |e| matches!(e, TextError::Invalid(WorkloadError::Extent { .. }))),
        ("out t0 0 1.0", |e| matches!(e, TextError::Invalid(WorkloadError::Extent { .. }))),
        ("out t0 2147483647 2147483647 1.0", |e| matches!(e, TextError::Invalid(WorkloadError::TooLarge { .. }))),
        ("input t0 4\nout t1 5 t0 a", |e| matches!(e, TextError::Invalid(WorkloadError::OutOfRange { .. }))),
        ("input t0 4\nout t1 4 t0 b", |e| matches!(e, TextError::Invalid(WorkloadError::UnknownAxis { .. }))),
        ("input t0 4\nout t1 4 add t0 a int 1", |e| matches!(e, TextError::Invalid(WorkloadError::Type { .. }))),
        ("input t0 4\nout t1 i64 4 t0 a", |e| matches!(e, TextError::Invalid(WorkloadError::OutputType { .. }))),
        (&deep, |e| matches!(e, TextError::TooDeep { .. })),
        (&deep_index, |e| matches!(e, TextError::TooDeep { .. })),
    ];
    for (text, expected) in cases {
        let error = text.parse::<Workload>().expect_err(text.get(..60).unwrap_or(text));
        assert!(expected(&error), "{error:?}");
    }
}

#[test]
fn validation_refuses_what_text_cannot_say() {
    let mut workload = parse("input t0 4\nout t1 4 t0 a\n");
    workload.stages[0].output = TensorId(0);
    assert!(matches!(workload.validate(), Err(WorkloadError::WrittenTwice { .. })));
    workload.stages[0].output = TensorId(7);
    assert!(matches!(workload.validate(), Err(WorkloadError::UnknownTensor { .. })));
    let mut workload = parse("input t0 4\nout t1 4 t0 a\n");
    workload.stages[0].value = Expr::float(f64::NAN);
    assert_eq!(workload.validate(), Err(WorkloadError::NotANumber { stage: 0 }));
    workload.stages[0].value = Expr::load(TensorId(0), vec![]);
    assert!(matches!(workload.validate(), Err(WorkloadError::IndexCount { .. })));
    workload.stages[0].reduction = vec![2];
    assert_eq!(workload.validate(), Err(WorkloadError::NoCombiner { stage: 0 }));
    workload.stages[0].combiner = Some(Combiner::Sum);
    workload.stages[0].value = Expr::float(1.0);
    assert_eq!(workload.validate(), Ok(()));
    workload.stages.push(workload.stages[0].clone());
    assert!(matches!(workload.validate(), Err(WorkloadError::WrittenTwice { .. })));
}

#[test]
fn guards_prove_accesses_that_intervals_cannot() {
    // a transposed convolution of stride 2: only every second row has a source
    let transposed = "input t0 5\nconst t1 3\n\
                      out t2 11 sum 3 mul guard 2 % + a * 2 b 2 0 1 / + a + * -1 b 0 2 0 5 t0 / + a * -1 b 2 0.0 t1 b\n";
    assert_eq!(transposed.parse::<Workload>().map(|w| w.stages.len()), Ok(1));
    // 6 a + 10 b = 0 modulo 4 exactly where a + b is even: found by trying
    let mut workload = parse("input t0 3\nout t1 2 2 t0 0\n");
    let index = Index::var(Var(0)).plus(&Index::var(Var(1))).times(2);
    let even = Condition { index: Index::var(Var(0)).plus(&Index::var(Var(1))).modulo(2), low: 0, high: 1 };
    workload.stages[0].value =
        Expr::guard(vec![even], Expr::load(TensorId(0), vec![index.clone().floor_div(2)]), Expr::float(0.0));
    assert_eq!(workload.validate(), Ok(()));
    workload.stages[0].value = Expr::load(TensorId(0), vec![index]);
    assert!(matches!(workload.validate(), Err(WorkloadError::OutOfRange { .. })));
}

mod canonical;
mod parts;
