//! Blocks that go through equal shares of all steps: what they compute, how parts are combined, and what is
//! refused.

use tilescribe::codegen::ptx;
use tilescribe::nest::rewrite::Refusal;
use tilescribe::nest::rewrite::persistent::Shares;
use tilescribe::nest::{LoopKind, Nest, Scope, Stmt, verify};
use tilescribe::space::{Decision, Policy, Space};
use tilescribe::target::Task;
use tilescribe::workload::{Combiner, Var};

use super::gpu::{X_TILE, Y_TILE, gpu, inside, product, tiled};
use super::{LANES, run, to_floats};

/// The loop over the steps of [`tiled`].
fn steps(nest: &mut Nest) -> Var {
    let found = inside(nest).iter().find_map(|statement| match statement {
        Stmt::Loop(l) if l.kind == LoopKind::Serial => Some(l.var),
        _ => None,
    });
    found.unwrap()
}

fn persistent(mut nest: Nest, workers: i64) -> Result<(Nest, Var), Refusal> {
    let steps = steps(&mut nest);
    nest.persistent(steps, workers, Combiner::Sum)
}

/// The blocks of each grid.
fn blocks(nest: &Nest) -> Vec<i64> {
    let of = |statement: &Stmt| {
        let (mut blocks, mut next) = (1, Some(statement));
        while let Some(Stmt::Loop(l)) = next.filter(|s| matches!(s, Stmt::Loop(l) if l.kind == LoopKind::Block)) {
            blocks *= l.extent();
            next = l.body.first();
        }
        blocks
    };
    nest.body.iter().map(of).collect()
}

#[test]
fn shares_of_any_size_compute_the_same() {
    // 12 results of 4 steps, 6 of 5 with ragged tiles, 1 of 8, 3 of 1
    for (rows, columns, depth) in [(32, 24, 32), (19, 13, 37), (5, 8, 64), (24, 3, 8)] {
        let expected = to_floats(&run(&Nest::naive(&product(rows, columns, depth))).unwrap()[2]);
        for workers in 1..=13 {
            for stages in 1..=4 {
                let (nest, share) = persistent(tiled(rows, columns, depth), workers).unwrap();
                let nest = nest.pipeline(share, &[X_TILE, Y_TILE], stages).unwrap();
                assert_eq!(verify(&nest, LANES), Ok(()), "{workers} workers\n{nest}");
                let found = to_floats(&run(&nest).unwrap_or_else(|e| panic!("{workers} workers: {e}\n{nest}"))[2]);
                for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
                    let close = (found - expected).abs() <= 1e-5 * expected.abs().max(1.0);
                    assert!(close, "{workers} workers, element {at}: {found} {expected}\n{nest}");
                }
            }
        }
    }
}

#[test]
fn work_is_even_and_parts_are_kept_only_where_results_are_cut() {
    let parts = |nest: &Nest| nest.buffers.iter().filter(|buffer| buffer.scope == Scope::Workspace).count();
    // 48 steps, of 12 results
    let of = |workers: i64| {
        let (nest, share) = persistent(tiled(32, 24, 32), workers).unwrap();
        let [Stmt::Loop(grid), ..] = nest.body.as_slice() else { panic!("a grid\n{nest}") };
        let Some(Stmt::Loop(l)) = grid.body.iter().find(|s| matches!(s, Stmt::Loop(l) if l.var == share)) else {
            panic!("a loop over a share\n{nest}")
        };
        (blocks(&nest), l.extent(), l.is_constant(), parts(&nest))
    };
    assert_eq!(of(6), (vec![6], 8, true, 0));
    assert_eq!(of(8), (vec![8, 12], 6, true, 2));
    assert_eq!(of(7), (vec![7, 12], 7, false, 2));
    // no fewer than a step each
    assert_eq!(of(100), (vec![48, 12], 1, true, 2));
    // in shares of 8, 6, 3 steps and one
    let most_parts = |workers: i64| Shares::new(12, 4, workers).map(Shares::most_parts);
    assert_eq!([6, 8, 16, 48].map(most_parts), [1, 2, 2, 4].map(Some));
    assert_eq!([Shares::new(12, 4, 0), Shares::new(0, 4, 3), Shares::new(i64::MAX, 4, 3)], [None; 3]);
}

/// As the rules would, with tensor cores where there is a way, and a persistent block for each
/// multiprocessor.
struct OneEach;

impl Policy for OneEach {
    fn pick(&mut self, decision: &Decision) -> usize {
        match decision.site.to_string().split(' ').next() {
            Some("split") => 0,
            Some("mma" | "wgmma" | "persistent") if decision.candidates.len() > 1 => 1,
            _ => decision.default,
        }
    }
}

#[test]
fn a_machine_is_filled_whatever_the_number_of_results() {
    let f32s = "input t0 640 1024\nconst t1 1024 896\nlet t2 640 896 sum 1024 mul t0 a c t1 c b\nout t3 640 896 max t2 a b 0.0\n";
    let f16s = "input t0 f16 640 1024\nconst t1 f16 1024 896\nlet t2 640 896 sum 1024 mul cast f32 t0 a c cast f32 t1 c b\n\
                out t3 f16 640 896 cast f16 t2 a b\n";
    for (description, text, instruction) in [("sm_80", f32s, "mma.sync"), ("sm_90a", f16s, "wgmma.mma_async")] {
        let gpu = gpu(description);
        let task = Task { workload: text.parse().unwrap(), target: gpu.clone().into() };
        let (trace, nest) = Space::standard().drive(&task, &mut OneEach);
        let nest = nest.unwrap_or_else(|reason| panic!("{reason}\n{trace}"));
        assert_eq!(verify(&nest, LANES), Ok(()), "{trace}\n{nest}");
        let program = ptx(&nest, &gpu).unwrap();
        assert!(program.text.contains(instruction), "{trace}");
        assert_eq!(program.launches.len(), 2, "{trace}\n{nest}");
        let (workers, all) = (program.launches[0].blocks, gpu.multiprocessors);
        assert!(workers <= all && workers * 10 > all * 9, "{workers} of {all}\n{trace}");
    }
}
