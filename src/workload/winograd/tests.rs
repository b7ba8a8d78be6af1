//! The rewritten forms compute what the convolutions do.

use super::*;
use crate::workload::{Array, Elements, Tensor, Tiled, evaluate, row_major_strides, shared_axes};

const ORDERS: [Order; 2] = [Order::Points, Order::Rows];

/// An array for every tensor but those that `workload` leaves between its stages.
fn arrays(workload: &Workload) -> Vec<(TensorId, Array)> {
    let given = workload.ids().filter(|(_, t)| t.role != Role::Intermediate);
    let array = |(id, t): (TensorId, &Tensor)| {
        // in bf16 as well
        let values = (0..t.elements()).map(|at| ((at * 37 + 11 * i64::from(id.0)) % 64) as f32 / 32.0 - 1.0);
        let elements = match t.dtype {
            DType::BF16 => Elements::BF16(values.map(half::bf16::from_f32).collect()),
            _ => Elements::F32(values.collect()),
        };
        (id, Array::new(t.shape.clone(), elements).unwrap())
    };
    given.map(array).collect()
}

/// The rewritten form as a workload that the evaluator takes: the constants' stages are ordinary ones,
/// what is not written is an input, outputs that are read among it.
fn standalone(rewritten: &Rewritten, original: &Workload) -> Workload {
    let mut workload = rewritten.workload.clone();
    original.stages.iter().for_each(|s| workload.tensors[s.output.0 as usize].role = Role::Input);
    let filters = rewritten.constants.iter().map(|(at, _)| rewritten.workload.stages[*at].output);
    filters.for_each(|tensor| workload.tensors[tensor.0 as usize].role = Role::Intermediate);
    rewritten.outputs.iter().for_each(|of| workload.tensors[of.tiled.0 as usize].role = Role::Output);
    workload
}

/// The elements of the output that are in its tiles, each exactly once.
fn untiled(rewritten: &Rewritten, tiled: &Array, shape: &[i64]) -> Vec<f64> {
    let mut output = vec![f64::NAN; shape.iter().product::<i64>() as usize];
    for at in 0..tiled.elements().len() as i64 {
        let steps = row_major_strides(tiled.shape()).into_iter().zip(tiled.shape());
        let point: Vec<i64> = steps.map(|(stride, extent)| at / stride % extent).collect();
        let of = |index: &Index| index.at(&|v: Var| point[v.0 as usize]).unwrap();
        let place: Vec<i64> = rewritten.indices.iter().map(of).collect();
        let holds = rewritten.conditions.iter().all(|c| (c.low..c.high).contains(&of(&c.index)));
        assert_eq!(holds, place.iter().zip(shape).all(|(p, extent)| p < extent));
        if holds {
            let flat: i64 = place.iter().zip(row_major_strides(shape)).map(|(p, stride)| p * stride).sum();
            let element = &mut output[flat as usize];
            assert!(element.is_nan());
            *element = tiled.number(at as usize).unwrap();
        }
    }
    assert!(output.iter().all(|element| !element.is_nan()));
    output
}

/// The rewritten form where parameters have these values.
fn at(rewritten: &Rewritten, values: &[i64]) -> Rewritten {
    let number = |var: Var| var.as_parameter().map(|number| Index::constant(values[number]));
    let set = |c: &Condition| Condition { index: c.index.substitute(&number), ..c.clone() };
    let conditions = rewritten.conditions.iter().map(set).collect();
    Rewritten { workload: rewritten.workload.at(values), conditions, ..rewritten.clone() }
}

/// The convolution and its rewritten form, on the same arguments: the largest difference.
fn difference(text: &str, outputs: i64, order: Order, values: &[i64]) -> f64 {
    let workload: Workload = text.parse().unwrap();
    let rewritten = winograd(&workload, outputs, order).expect("it applies");
    let (workload, rewritten) = (workload.at(values), at(&rewritten, values));
    let standalone = standalone(&rewritten, &workload);
    let mut arrays = arrays(&standalone);
    let of = |workload: &Workload, arrays: &[(TensorId, Array)]| -> Vec<(TensorId, Array)> {
        let is_given = |id: TensorId| {
            let known = (id.0 as usize) < workload.tensors.len();
            known && matches!(workload.tensor(id).role, Role::Input | Role::Constant)
        };
        let given = arrays.iter().filter(|(id, _)| is_given(*id)).map(|(id, array)| (*id, array));
        evaluate(workload, &given.collect::<Vec<_>>()).unwrap()
    };
    let expected = of(&workload, &arrays);
    // a stage reads the output before it where that is
    for (id, array) in &expected {
        arrays.iter_mut().filter(|(given, _)| given == id).for_each(|(_, given)| given.clone_from(array));
    }
    let found = of(&standalone, &arrays);
    assert_eq!((expected.len(), found.len()), (rewritten.outputs.len(), rewritten.outputs.len()));
    let mut worst: f64 = 0.0;
    for Tiled { tiled, output } in &rewritten.outputs {
        let array_of =
            |arrays: &[(TensorId, Array)], id| arrays.iter().find(|(known, _)| *known == id).unwrap().1.clone();
        let expected = array_of(&expected, *output);
        let found = untiled(&rewritten, &array_of(&found, *tiled), expected.shape());
        for (at, found) in found.into_iter().enumerate() {
            worst = worst.max((found - expected.number(at).unwrap()).abs());
        }
    }
    worst
}

#[test]
fn convolutions_stay_what_they_are() {
    let padded = "const t0 5 9 3 3\ninput t1 2 9 7 10\nconst t2 5\n\
        let t3 2 5 7 10 sum 9 3 3 mul t0 b e f g pad 0.0 t1 a e ? + c + f -1 ? + d + g -1\n\
        out t4 like t3 max 0.0 add t2 b t3 a b c d\n";
    let valid = "const t0 6 8 3 3\ninput t1 8 10 11\nout t2 6 8 9 sum 8 3 3 mul t1 d + b e + c f t0 a d e f\n";
    let grouped = "const t0 2 3 8 5 5\ninput t1 2 8 9 9\n\
        out t2 2 3 9 9 sum 8 5 5 mul t0 a b e f g pad 0.0 t1 a e ? + c + f -2 ? + d + g -2\n";
    let last = "const t0 5 9 3 3\ninput t1 2 7 10 9\nconst t2 5\n\
        let t3 2 7 10 5 sum 9 3 3 mul t0 d e f g pad 0.0 t1 a ? + b + f -1 ? + c + g -1 e\n\
        out t4 like t3 max 0.0 add t2 d t3 a b c d\n";
    let strided = "const t0 5 9 3 3\ninput t1 9 15 20\nconst t2 5\n\
        let t3 5 8 10 sum 9 3 3 mul t0 a d e f pad 0.0 t1 d ? + * 2 b + e -1 ? + * 2 c + f -1\n\
        out t4 like t3 max 0.0 add t2 a t3 a b c\n";
    let strided_last = "const t0 4 8 5 5\ninput t1 2 11 12 8\n\
        out t2 2 6 6 4 sum 8 5 5 mul pad 0.0 t1 a ? + * 2 b + f -2 ? + * 2 c + g -2 e t0 d e f g\n";
    let cases = [
        (padded, 2),
        (padded, 4),
        (valid, 2),
        (valid, 4),
        (grouped, 2),
        (last, 2),
        (last, 4),
        (strided, 2),
        (strided, 4),
        (strided_last, 2),
        (strided_last, 4),
    ];
    for ((text, outputs), order) in cases.into_iter().flat_map(|case| ORDERS.map(|order| (case, order))) {
        let worst = difference(text, outputs, order, &[]);
        assert!(worst < 1e-4, "F({outputs}), {order:?}: {worst} in\n{text}");
    }
}

#[test]
fn short_numbers_are_multiplied_as_f32() {
    let text = "const t0 bf16 5 9 3 3\ninput t1 bf16 7 10 9\n\
        let t2 7 10 5 sum 9 3 3 mul cast f32 t0 c d e f \
        cast f32 pad cast bf16 0.0 t1 ? + a + e -1 ? + b + f -1 d\n\
        out t3 bf16 like t2 cast bf16 max 0.0 t2 a b c\n";
    for (outputs, order) in [2, 4].into_iter().flat_map(|outputs| ORDERS.map(|order| (outputs, order))) {
        let rewritten = winograd(&text.parse().unwrap(), outputs, order).unwrap();
        let made = &rewritten.workload.tensors[4..];
        assert!(made[..made.len() - 1].iter().all(|tensor| tensor.dtype == DType::F32));
        assert_eq!(made[made.len() - 1].dtype, DType::BF16);
        // sums of up to 81 products of numbers up to 1: in bf16, a last place is 1/16 at most
        let worst = difference(text, outputs, order, &[]);
        assert!(worst <= 0.0625, "F({outputs}), {order:?}: {worst}");
    }
}

#[test]
fn all_results_of_a_residual_block_are_written() {
    // a sum that is kept, what is made of it, and a value between the two that is not
    let text = "const t0 5 9 3 3\ninput t1 7 10 9\ninput t2 7 10 5\n\
        let t3 7 10 5 sum 9 3 3 mul t0 c d e f pad 0.0 t1 ? + a + e -1 ? + b + f -1 d\n\
        out t4 like t3 add t3 a b c t2 a b c\n\
        let t5 like t3 mul t4 a b c t3 a b c\n\
        out t6 like t3 max 0.0 t5 a b c\n";
    let workload: Workload = text.parse().unwrap();
    assert!(figures(&workload, 4).is_some() && !is_plain(&workload));
    for (outputs, order) in [2, 4].into_iter().flat_map(|outputs| ORDERS.map(|order| (outputs, order))) {
        let worst = difference(text, outputs, order, &[]);
        assert!(worst < 1e-3, "F({outputs}), {order:?}: {worst}");
    }
}

#[test]
fn extents_of_a_run_stay_what_they_are() {
    let text = "param len0 1 3\nparam len1 1 12\nconst t0 5 9 3 3\ninput t1 len0 9 len1 10\nconst t2 5\n\
        let t3 len0 5 len1 10 sum 9 3 3 mul t0 b e f g \
        guard 3 + c + f -1 0 12 + len1 + * -1 c + * -1 f 1 1 9223372036854775807 + d + g -1 0 10 \
        t1 a e + c + f -1 + d + g -1 0.0\n\
        out t4 like t3 max 0.0 add t2 b t3 a b c d\n";
    for values in [[1, 1], [2, 3], [3, 8], [3, 12]] {
        for order in ORDERS {
            let worst = difference(text, 4, order, &values);
            assert!(worst < 1e-4, "{values:?}, {order:?}: {worst}");
        }
    }
}

#[test]
fn strides_keep_the_extents_of_a_run() {
    let text = "param len0 1 3\nconst t0 5 9 3 3\ninput t1 len0 9 21 10\n\
        out t2 len0 5 10 5 sum 9 3 3 mul t0 b e f g pad 0.0 t1 a e + * 2 c f ? + * 2 d + g -1\n";
    for (values, order) in [[1], [3]].into_iter().flat_map(|values| ORDERS.map(|order| (values, order))) {
        let worst = difference(text, 4, order, &values);
        assert!(worst < 1e-4, "{values:?}, {order:?}: {worst}");
    }
}

#[test]
fn all_stages_that_run_share_the_rows_of_tiles() {
    let text = "const t0 5 9 3 3\ninput t1 2 9 7 10\n\
        out t2 2 5 7 10 sum 9 3 3 mul t0 b e f g pad 0.0 t1 a e ? + c + f -1 ? + d + g -1\n";
    let rewritten = winograd(&text.parse().unwrap(), 2, Order::Rows).unwrap();
    let shared = shared_axes(&rewritten.workload.stages[rewritten.constants.len()..].iter().collect::<Vec<_>>());
    // images, and rows of tiles
    assert_eq!(shared, 2);
}

#[test]
fn what_is_no_such_convolution_is_left_alone() {
    let strided =
        "const t0 6 8 3 3\ninput t1 8 30 30\nout t2 6 10 10 sum 8 3 3 mul t1 d + * 3 b e + * 3 c f t0 a d e f\n";
    let uneven = "const t0 6 8 3 3\ninput t1 8 12 21\nout t2 6 10 10 sum 8 3 3 mul t1 d + b e + * 2 c f t0 a d e f\n";
    let dilated =
        "const t0 6 8 3 3\ninput t1 8 14 14\nout t2 6 10 10 sum 8 3 3 mul t1 d + b * 2 e + c * 2 f t0 a d e f\n";
    let shallow = "const t0 6 3 3 3\ninput t1 3 10 11\nout t2 6 8 9 sum 3 3 3 mul t1 d + b e + c f t0 a d e f\n";
    let product = "const t0 16 3\ninput t1 8 3\nout t2 8 16 sum 3 mul t1 a c t0 b c\n";
    let unknown_weights =
        "input t0 6 8 3 3\ninput t1 8 10 11\nout t2 6 8 9 sum 8 3 3 mul t1 d + b e + c f t0 a d e f\n";
    let unknown_channels = "param len0 8 16\nconst t0 6 16 3 3\ninput t1 len0 10 11\n\
        out t2 6 8 9 sum len0 3 3 mul t1 d + b e + c f t0 a d e f\n";
    // a later stage reads a neighbour
    let blurred = "const t0 6 8 3 3\ninput t1 8 10 11\nlet t2 6 8 9 sum 8 3 3 mul t1 d + b e + c f t0 a d e f\n\
        out t3 6 7 9 add t2 a b c t2 a + b 1 c\n";
    let of_bytes = "const t0 i8 6 8 3 3\ninput t1 u8 8 10 11\n\
        out t2 i32 6 8 9 sum 8 3 3 mul cast i32 t1 d + b e + c f cast i32 t0 a d e f\n";
    for text in [strided, uneven, dilated, shallow, product, unknown_weights, unknown_channels, blurred, of_bytes] {
        assert!(figures(&text.parse().unwrap(), 2).is_none(), "{text}");
    }
}
