//! What proposers are tested with.

use crate::target::{Task, avx512};
use crate::workload::{Binary, Combiner, DType, Expr, Index, Role, Stage, Var, Workload};

/// A product of 17×30 by 30×40, for a machine with AVX-512.
pub fn product() -> Task {
    let mut workload = Workload::default();
    let a = workload.add_tensor(vec![17, 30], DType::F32, Role::Input);
    let b = workload.add_tensor(vec![30, 40], DType::F32, Role::Constant);
    let c = workload.add_tensor(vec![17, 40], DType::F32, Role::Output);
    let load = |tensor, row, column| Expr::load(tensor, vec![Index::var(Var(row)), Index::var(Var(column))]);
    let value = Expr::binary(Binary::Multiply, load(a, 0, 2), load(b, 2, 1));
    workload.stages.push(Stage::reduce(c, vec![17, 40], vec![30], Combiner::Sum, value));
    Task { workload, target: avx512() }
}
