//! Copies that run ahead: what they compute, where they are refused, and what becomes of them in PTX.

use tilescribe::codegen::{ptx, ptx_of};
use tilescribe::nest::rewrite::Refusal;
use tilescribe::nest::{FaultKind, Loop, LoopKind, Nest, Stmt, verify};
use tilescribe::space::{Decision, Policy, Space};
use tilescribe::target::Task;
use tilescribe::workload::{Index, TensorId};

use super::gpu::{X_TILE, Y_TILE, assembled, gpu, inside, of_threads, product, tiled};
use super::{LANES, fault, run, to_floats};

const TILES: [TensorId; 2] = [X_TILE, Y_TILE];
/// Descriptions, and what the assembler calls them.
const GENERATIONS: [(&str, &str); 2] = [("sm_80", "sm_80"), ("sm_90", "sm_90a")];

/// The loop over the steps of [`tiled`], behind the copies before it.
fn steps(nest: &mut Nest) -> &mut Loop {
    let found = inside(nest).iter_mut().rev().find_map(|statement| match statement {
        Stmt::Loop(l) if l.kind == LoopKind::Serial => Some(l),
        _ => None,
    });
    found.unwrap()
}

fn pipelined(mut nest: Nest, stages: i64) -> Result<Nest, Refusal> {
    let var = steps(&mut nest).var;
    nest.pipeline(var, &TILES, stages)
}

#[test]
fn copies_that_run_ahead_change_nothing() {
    for (rows, columns, depth) in [(16, 8, 64), (9, 8, 37), (8, 8, 16), (5, 3, 9), (8, 8, 1)] {
        let expected = to_floats(&run(&Nest::naive(&product(rows, columns, depth))).unwrap()[2]);
        for stages in 1..=5 {
            let nest = pipelined(tiled(rows, columns, depth), stages).unwrap();
            assert_eq!(verify(&nest, LANES), Ok(()), "{nest}");
            let found = to_floats(&run(&nest).unwrap_or_else(|e| panic!("{e}\n{nest}"))[2]);
            for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
                assert!((found - expected).abs() <= 1e-5 * expected.abs().max(1.0), "{at}: {found} {expected}\n{nest}");
            }
            let shape = &nest.buffer(X_TILE).shape;
            assert_eq!(shape.len(), if stages > 1 { 3 } else { 2 }, "{nest}");
        }
    }
    assert_eq!(pipelined(tiled(16, 16, 16), 1), Ok(tiled(16, 16, 16)));
}

#[test]
fn a_slot_that_is_overwritten_too_early_is_found() {
    // the slot that is read, instead of the one that was read before
    let mut nest = pipelined(tiled(8, 8, 64), 3).unwrap();
    let l = steps(&mut nest);
    let Stmt::If { body, .. } = &mut l.body[0] else { panic!("a condition") };
    let slot = Index::var(l.var).modulo(3);
    for statement in of_threads(&mut body[0]) {
        let Stmt::Store { indices, .. } = statement else { panic!("a copy") };
        indices[0] = slot.clone();
    }
    assert_eq!(verify(&nest, LANES), Ok(()), "{nest}");
    let expected = to_floats(&run(&Nest::naive(&product(8, 8, 64))).unwrap()[2]);
    assert_ne!(to_floats(&run(&nest).unwrap()[2]), expected);
    // no slot was filled before the first step
    let mut nest = pipelined(tiled(8, 8, 64), 3).unwrap();
    inside(&mut nest).remove(1);
    assert!(matches!(fault(&nest), FaultKind::Undefined { .. }), "{nest}");
}

/// How often a text occurs.
fn count(text: &str, what: &str) -> usize {
    text.matches(what).count()
}

#[test]
fn a_step_waits_once_and_leaves_the_youngest_under_way() {
    for (description, architecture) in GENERATIONS {
        for stages in 2..=5 {
            // guarded elements, 4 bytes at a time
            let nest = pipelined(tiled(19, 13, 150), stages).unwrap();
            let text = ptx(&nest, &gpu(description)).unwrap().text;
            assert_eq!(count(&text, "bar.sync"), 1, "{nest}\n{text}");
            assert_eq!(count(&text, &format!("cp.async.wait_group \t{};", stages - 2)), 1 + usize::from(stages == 2));
            // before the steps, and ahead in each of them
            assert_eq!(count(&text, "cp.async.ca.shared.global") as i64, 2 * stages, "{text}");
            assert_eq!(count(&text, "cp.async.commit_group") as i64, stages, "{text}");
            assert_eq!(count(&text, "st.shared"), 0, "{text}");
            if let Some(kernels) = assembled(&text, architecture) {
                assert!(kernels.iter().all(|(_, spilled)| *spilled == 0), "{kernels:?}");
            }
        }
        // one stage is as it was
        let text = ptx(&tiled(19, 13, 150), &gpu(description)).unwrap().text;
        assert_eq!((count(&text, "bar.sync"), count(&text, "cp.async")), (2, 0), "{text}");
    }
}

/// Copies operands, in so many stages where that can be, and does everything else as the rules would.
struct Staged(&'static str);

impl Policy for Staged {
    fn pick(&mut self, decision: &Decision) -> usize {
        let wanted = |candidate: &tilescribe::space::Words| candidate.to_string() == self.0;
        match decision.site.to_string().split(' ').next() {
            Some("stages") => decision.candidates.iter().position(wanted).unwrap(),
            // the first is none
            Some("copy") => decision.default.max(decision.candidates.len().min(2) - 1),
            _ => decision.default,
        }
    }
}

#[test]
fn programs_of_the_space_copy_in_wide_pieces() {
    for (description, architecture) in GENERATIONS {
        let gpu = gpu(description);
        // 16 bytes at a time, or 8 where tiles are narrow
        for (stages, wide, text) in [
            (
                "3",
                "cg.shared.global",
                "input t0 1024 512\nconst t1 512 1024\nout t2 1024 1024 sum 512 mul t0 a c t1 c b\n",
            ),
            (
                "5",
                "cg.shared.global",
                "input t0 512 1024\nconst t1 512 1024\nout t2 1024 1024 sum 512 mul t0 c a t1 c b\n",
            ),
            ("2", "ca.shared.global", "input t0 509 503\nconst t1 503 512\nout t2 509 512 sum 503 mul t0 a c t1 c b\n"),
        ] {
            let task = Task { workload: text.parse().unwrap(), target: gpu.clone().into() };
            let (trace, nest) = Space::standard().drive(&task, &mut Staged(stages));
            let nest = nest.unwrap_or_else(|reason| panic!("{reason}\n{trace}"));
            assert_eq!(verify(&nest, LANES), Ok(()), "{trace}\n{nest}");
            let text = ptx(&nest, &gpu).unwrap().text;
            assert!(count(&text, &format!("cp.async.{wide}")) > 0, "{trace}\n{nest}\n{text}");
            assert_eq!(count(&text, "st.shared"), 0, "{trace}\n{nest}\n{text}");
            assert_eq!(count(&text, "bar.sync"), 1, "{trace}\n{nest}\n{text}");
            if let Some(kernels) = assembled(&text, architecture) {
                assert!(kernels.iter().all(|(_, spilled)| *spilled == 0), "{kernels:?}");
            }
        }
    }
}

/// As [`Staged`], as many lanes at a time as can be.
struct Wide;

impl Policy for Wide {
    fn pick(&mut self, decision: &Decision) -> usize {
        match decision.site.to_string().starts_with("lanes") {
            true => decision.candidates.len() - 1,
            false => Staged("3").pick(decision),
        }
    }
}

#[test]
fn arguments_that_start_in_the_middle_of_a_word_are_copied_at_once() {
    let gpu = gpu("sm_90");
    let text = "input t0 f16 256 1024\nconst t1 f16 256 1024\nlet t2 1024 1024 sum 256 mul cast f32 t0 c a cast f32 t1 c b\n\
         out t3 f16 1024 1024 cast f16 t2 a b\n";
    let task = Task { workload: text.parse().unwrap(), target: gpu.clone().into() };
    let nest = Space::standard().drive(&task, &mut Wide).1.unwrap();
    // bytes that arguments start at multiples of, and those of the widest copy
    for (alignment, copied) in [(16, Some(16)), (8, Some(8)), (4, Some(4)), (2, None)] {
        let text = ptx_of("kernel", &nest, &gpu, alignment).unwrap().text;
        let widest = [16, 8, 4].into_iter().find(|bytes| {
            text.lines().any(|line| line.contains("cp.async.c") && line.trim_end().ends_with(&format!(", {bytes};")))
        });
        assert_eq!(widest, copied, "{alignment}: {nest}\n{text}");
        assert_eq!(count(&text, "st.shared") > 0, copied.is_none(), "{alignment}: {nest}\n{text}");
        let parameter = format!(".param .u64 .ptr .global .align {alignment} kernel_0_param_0");
        assert!(text.contains(&parameter), "{text}");
        if let Some(kernels) = assembled(&text, "sm_90a") {
            assert!(!kernels.is_empty());
        }
    }
}
