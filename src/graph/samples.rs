//! Small networks for tests.

use super::{Binding, Call, Callee, Network, NetworkBuffer, NetworkTask, Source};
use crate::workload::{Binary, DType, Expr, Index, Role, Stage, TensorId, Var, Workload};

/// Calls of `z = x + y`: the operands of each, where 0 is the input and others are the results of calls
/// before. The last one writes the output.
pub fn sums(operands: &[[usize; 2]]) -> Network {
    let mut workload = Workload::default();
    let load = |tensor| Expr::load(TensorId(tensor), vec![Index::var(Var(0))]);
    for role in [Role::Input, Role::Input, Role::Output] {
        workload.add_tensor(vec![16], DType::F32, role);
    }
    let sum = Expr::binary(Binary::Add, load(0), load(1));
    workload.stages.push(Stage::map(TensorId(2), vec![16], sum));
    let buffer = |source| NetworkBuffer { shape: vec![16], extents: Default::default(), dtype: DType::F32, source };
    let mut buffers = vec![buffer(Source::Input("x".into()))];
    buffers.extend(operands.iter().map(|_| buffer(Source::Intermediate)));
    buffers[operands.len()].source = Source::Output("y".into());
    let call = |(number, [x, y]): (usize, &[usize; 2])| Call {
        callee: Callee::Task(0),
        arguments: [*x, *y, number + 1].map(|buffer| Binding::fixed(buffer, 0)).to_vec(),
        parameters: Vec::new(),
        count: None,
    };
    let calls: Vec<Call> = operands.iter().enumerate().map(call).collect();
    let task = NetworkTask { name: "sum".into(), workload, weight: calls.len(), nodes: Vec::new() };
    Network { tasks: vec![task], calls, buffers, ..Network::default() }
}
