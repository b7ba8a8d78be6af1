//! Stages joined by blocks of rows that do not divide their number.

use tilescribe::nest::rewrite::Refusal;
use tilescribe::nest::{LoopKind, Nest, Scope, StageVars, verify};
use tilescribe::workload::{Binary, Combiner, DType, Expr, Role, Stage, TensorId, Unary, Var, Workload};

use super::{LANES, binary, load, run, to_floats, var};

const SUM: TensorId = TensorId(1);

/// `t1[a] = Σ t0[a, b]`, `t2[a, b] = t0[a, b] - t1[a]`
fn centred(rows: i64, columns: i64) -> Workload {
    let mut w = Workload::default();
    let x = w.add_tensor(vec![rows, columns], DType::F32, Role::Input);
    let sum = w.add_tensor(vec![rows], DType::F32, Role::Intermediate);
    let out = w.add_tensor(vec![rows, columns], DType::F32, Role::Output);
    let (a, b) = (var(0), var(1));
    w.stages.push(Stage::reduce(sum, vec![rows], vec![columns], Combiner::Sum, load(x, &[&a, &b])));
    let difference = binary(Binary::Subtract, load(x, &[&a, &b]), load(sum, &[&a]));
    w.stages.push(Stage::map(out, vec![rows, columns], difference));
    w
}

/// The loops over rows split by `block`, and the outer ones joined.
fn joined(workload: &Workload, block: i64) -> Result<(Nest, Var), Refusal> {
    let (mut nest, stages) = Nest::naive_with_vars(workload);
    let mut heads = Vec::new();
    for StageVars { init, axes } in &stages {
        for first in [init.first(), axes.first()].into_iter().flatten() {
            let mut outer = *first;
            if block > 1 {
                (nest, outer, _) = nest.split(*first, block)?;
            }
            heads.push(outer);
        }
    }
    Ok((nest.join(&heads)?, heads[0]))
}

#[test]
fn a_block_of_rows_keeps_its_intermediates() {
    let workload = centred(7, 5);
    let expected = to_floats(&run(&Nest::naive(&workload)).unwrap()[1]);
    for (block, shape) in [(1, vec![]), (3, vec![3]), (7, vec![7]), (9, vec![7])] {
        let (nest, rows) = joined(&workload, block).unwrap();
        let nest = nest.privatise(SUM, &[(rows, block)]).unwrap();
        assert_eq!(nest.buffer(SUM).shape, shape, "{nest}");
        let scope = if block == 1 { Scope::Register } else { Scope::BlockShared };
        assert_eq!(nest.buffer(SUM).scope, scope);
        assert_eq!(verify(&nest, LANES), Ok(()), "{nest}");
        assert_eq!(to_floats(&run(&nest).unwrap()[1]), expected, "{nest}");
    }
}

#[test]
fn a_ragged_loop_is_split_into_the_tiles_that_it_fills() {
    let mut w = Workload::default();
    let x = w.add_tensor(vec![197], DType::F32, Role::Input);
    let y = w.add_tensor(vec![197], DType::F32, Role::Output);
    w.stages.push(Stage::map(y, vec![197], Expr::unary(Unary::Negate, load(x, &[&var(0)]))));
    let expected = to_floats(&run(&Nest::naive(&w)).unwrap()[1]);
    // blocks of 32, of tiles of 4, by three: the last block holds 5, a whole tile and a quarter of one
    for (block, tile, count) in [(32, 4, 3), (32, 8, 4), (32, 16, 1), (24, 12, 2), (48, 48, 1)] {
        let (nest, stages) = Nest::naive_with_vars(&w);
        let (nest, _, rows) = nest.split(stages[0].axes[0], block).unwrap();
        let (nest, tiles, point) = nest.split(rows, tile).unwrap();
        let (nest, _, _) = nest.split(tiles, count).unwrap();
        let nest = nest.set_kind(point, LoopKind::Vector).unwrap();
        let nest = nest.drop_unit_loops().peel_tails().strip_mine(LANES).drop_unit_loops();
        assert_eq!(verify(&nest, LANES), Ok(()), "{nest}");
        assert_eq!(to_floats(&run(&nest).unwrap()[1]), expected, "{nest}");
    }
}
