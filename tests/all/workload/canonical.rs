//! The canonical form, and generated workloads.

use std::collections::BTreeSet;

use tilescribe::workload::generate::{Kind, Limits, ShortKind, generate, generate_kind, generate_short};
use tilescribe::workload::{Array, DType, Elements, Role, TensorId, Workload, canonical, evaluate};

use super::parse;

/// Arguments with small integers and halves in them, so that differences are no rounding.
fn arguments(workload: &Workload, seed: u64) -> Vec<(TensorId, Array)> {
    let argument = |role| matches!(role, Role::Input | Role::Constant);
    workload
        .ids()
        .filter(|(_, t)| argument(t.role))
        .map(|(id, tensor)| {
            let mut state = seed.wrapping_mul(31).wrapping_add(u64::from(id.0)).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let mut next = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 40) as i64 % 17 - 8
            };
            let count = tensor.elements() as usize;
            let elements = match tensor.dtype {
                DType::I64 => Elements::I64((0..count).map(|_| next()).collect()),
                DType::I32 => Elements::I32((0..count).map(|_| next() as i32).collect()),
                DType::I8 => Elements::I8((0..count).map(|_| next() as i8).collect()),
                DType::U8 => Elements::U8((0..count).map(|_| next().unsigned_abs() as u8).collect()),
                DType::BF16 => Elements::BF16((0..count).map(|_| half::bf16::from_f32(next() as f32)).collect()),
                _ => Elements::F32((0..count).map(|_| next() as f32 * 0.37).collect()),
            };
            (id, Array::new(tensor.shape.clone(), elements).unwrap())
        })
        .collect()
}

/// Checks that the canonical form is valid, settled, printable, and computes the same bits.
fn check(workload: &Workload, seed: u64) {
    assert_eq!(workload.validate(), Ok(()), "{seed}\n{workload}");
    let form = canonical(workload);
    assert_eq!(form.workload.validate(), Ok(()), "{seed}\n{workload}\n{}", form.workload);
    assert_eq!(form.workload.to_string().parse().as_ref(), Ok(&form.workload), "{seed}");
    assert_eq!(canonical(&form.workload).workload.to_string(), form.workload.to_string(), "{seed}\n{workload}");
    let given = arguments(workload, seed);
    let before: Vec<_> = given.iter().map(|(id, array)| (*id, array)).collect();
    let expected = evaluate(workload, &before).unwrap();
    let viewed: Vec<(TensorId, Array)> = given
        .iter()
        .filter_map(|(id, array)| {
            let new = form.tensors[id.0 as usize]?;
            Some((new, array.reshaped(form.workload.tensor(new).shape.clone()).unwrap()))
        })
        .collect();
    let after: Vec<_> = viewed.iter().map(|(id, array)| (*id, array)).collect();
    let found = evaluate(&form.workload, &after).unwrap();
    assert_eq!(found.len(), expected.len());
    for (id, array) in expected {
        let new = form.tensors[id.0 as usize].unwrap();
        let result = &found.iter().find(|(found, _)| *found == new).unwrap().1;
        assert_eq!(result.to_bytes(), array.to_bytes(), "{seed}\n{workload}\n{}", form.workload);
    }
}

#[test]
fn generated_workloads_have_a_settled_form_that_computes_the_same() {
    for seed in 0..60 {
        for kind in Kind::ALL {
            check(&generate_kind(kind, seed, Limits { elements: 1500, points: 15_000 }), seed);
        }
        for kind in ShortKind::ALL {
            check(&generate_short(kind, seed, Limits { elements: 1500, points: 15_000 }), seed);
        }
    }
}

#[test]
fn generation_is_repeatable_and_varied() {
    let texts: BTreeSet<String> = (0..300).map(|seed| generate(seed, Limits::SMALL).to_string()).collect();
    assert_eq!(texts, (0..300).map(|seed| generate(seed, Limits::SMALL).to_string()).collect());
    assert!(texts.len() > 290, "{}", texts.len());
    for kind in Kind::ALL {
        for seed in 0..40 {
            let workload = generate_kind(kind, seed, Limits::LARGE);
            assert_eq!(workload.validate(), Ok(()), "{kind:?} {seed}\n{workload}");
        }
    }
    for kind in ShortKind::ALL {
        for seed in 0..40 {
            let workload = generate_short(kind, seed, Limits::LARGE);
            assert_eq!(workload.validate(), Ok(()), "{kind:?} {seed}\n{workload}");
            assert_eq!(workload, generate_short(kind, seed, Limits::LARGE));
        }
    }
}

/// Workloads that must be one.
fn check_equal(texts: &[&str]) {
    let forms: BTreeSet<String> = texts.iter().map(|text| canonical(&parse(text)).workload.to_string()).collect();
    assert_eq!(forms.len(), 1, "{forms:#?}");
    let hashes: BTreeSet<String> = texts.iter().map(|text| parse(text).hash()).collect();
    assert_eq!(hashes.len(), 1);
    assert!(hashes.iter().all(|hash| hash.len() == 32));
}

fn check_form(text: &str, expected: &str) {
    assert_eq!(canonical(&parse(text)).workload.to_string(), expected);
}

#[test]
fn names_and_operand_order_do_not_matter() {
    check_equal(&[
        "input t0 12 34\nconst t1 34 56\nout t2 12 56 sum 34 mul t0 a c t1 c b\n",
        "const t0 34 56\ninput t1 12 34\nout t2 12 56 sum 34 mul t0 c b t1 a c\n",
        "const t1 34 56\ninput t0 9\nlet t4 9 t0 a\ninput t2 1 12 34\nout t3 1 12 56 sum 34 mul t1 d c t2 a b d\n",
    ]);
}

#[test]
fn pointwise_convolution_is_a_matrix_product() {
    check_form(
        "input t0 1 64 56 56\nconst t1 256 64 1 1\nout t2 1 256 56 56 sum 64 1 1 mul t0 a e + c f + d g t1 b e f g\n",
        "const t0 256 64\ninput t1 64 3136\nout t2 256 3136 sum 64 mul t0 a c t1 c b\n",
    );
}

#[test]
fn element_wise_work_has_one_axis() {
    check_form(
        "input t0 1 64 56 56\nout t1 1 64 56 56 max t0 a b c d 0.0\n",
        "input t0 200704\nout t1 200704 max 0.0 t0 a\n",
    );
    check_form(
        "input t0 2 3 4\nconst t1 3 1\nout t2 2 3 4 add t0 a b c t1 b 0\n",
        "const t0 3\ninput t1 2 3 4\nout t2 like t1 add t0 b t1 a b c\n",
    );
}

#[test]
fn reshapes_become_axes() {
    // heads are split off and moved to the front
    check_form(
        "input t0 128 768\nout t1 12 128 64 t0 b + * 64 a c\n",
        "input t0 128 768\nout t1 12 128 64 t0 b + * 64 a c\n",
    );
    check_form(
        "input t0 12 128 64\nout t1 128 768 t0 / b 64 a % b 64\n",
        "input t0 12 128 64\nout t1 128 12 64 t0 b a c\n",
    );
    // a shuffle of channels: [2, 3, 5] read as [3, 2, 5]
    check_form(
        "input t0 30\nout t1 30 t0 + + * 15 % / a 5 2 * 5 / a 10 % a 5\n",
        "input t0 30\nout t1 3 2 5 t0 + * 5 a + * 15 b c\n",
    );
    check_equal(&["input t0 30\nout t1 30 t0 a\n", "input t0 5 6\nout t1 30 t0 / a 6 % a 6\n"]);
}

#[test]
fn what_always_holds_goes() {
    check_form("input t0 8 9\nout t1 8 9 guard 2 a 0 8 + b 1 1 10 t0 a b 0.0\n", "input t0 72\nout t1 72 t0 a\n");
    check_form("input t0 8\nout t1 8 guard 1 a 8 12 t0 + a -8 2.0\n", "out t0 8 2.0\n");
    check_form("input t0 8\nout t1 8 mul 1.0 cast f32 neg neg t0 a\n", "input t0 8\nout t1 8 t0 a\n");
}

#[test]
fn different_computations_keep_different_hashes() {
    let texts = [
        "input t0 12 34\nconst t1 34 56\nout t2 12 56 sum 34 mul t0 a c t1 c b\n",
        "input t0 12 34\nconst t1 56 34\nout t2 12 56 sum 34 mul t0 a c t1 b c\n",
        "input t0 12 34\ninput t1 34 56\nout t2 12 56 sum 34 mul t0 a c t1 c b\n",
        "input t0 12 34\nconst t1 34 56\nout t2 12 56 maxof 34 mul t0 a c t1 c b\n",
        "input t0 12 35\nconst t1 35 56\nout t2 12 56 sum 35 mul t0 a c t1 c b\n",
    ];
    let hashes: BTreeSet<String> = texts.iter().map(|text| parse(text).hash()).collect();
    assert_eq!(hashes.len(), texts.len());
}
