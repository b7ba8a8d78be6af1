//! Numbers: which tensor comes first, and which operand.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use crate::workload::{Expr, Index, Role, Stage, TensorId, Var, Workload};

/// A workload, and the new numbers of tensors and parameters by old number.
pub(super) struct Ordered {
    pub workload: Workload,
    pub tensors: Vec<Option<TensorId>>,
    pub parameters: Vec<Option<usize>>,
}

/// Drops what no output depends on, sorts operands, and numbers tensors and parameters by first use.
pub(super) fn order(workload: &Workload) -> Ordered {
    let mut sorted = workload.clone();
    for stage in &mut sorted.stages {
        stage.value = sort_operands(&stage.value, workload);
    }
    let stages = reachable(&sorted);
    let mut renumbered: Vec<Option<TensorId>> = vec![None; sorted.tensors.len()];
    let mut tensors = Vec::new();
    let mut number = |id: TensorId| {
        if renumbered[id.0 as usize].is_none() {
            renumbered[id.0 as usize] = Some(TensorId(tensors.len() as u32));
            tensors.push(sorted.tensor(id).clone());
        }
    };
    for stage in &stages {
        stage.value.for_each_load(&mut |id, _| {
            if matches!(sorted.tensor(id).role, Role::Input | Role::Constant) {
                number(id);
            }
        });
    }
    stages.iter().for_each(|stage| number(stage.output));
    let new_id = |id: TensorId| renumbered[id.0 as usize].unwrap_or(id);
    let stages = stages
        .into_iter()
        .map(|stage| Stage {
            output: new_id(stage.output),
            value: stage.value.map_loads(&mut |id, indices| Some(Expr::load(new_id(id), indices.to_vec()))),
            ..stage.clone()
        })
        .collect();
    let (workload, parameters) = renumbered_parameters(Workload {
        parameters: workload.parameters.clone(),
        points: workload.points.clone(),
        tensors,
        stages,
    });
    Ordered { workload, tensors: renumbered, parameters }
}

/// The stages that outputs depend on, each after what it reads, in the order in which the outputs ask for
/// them.
fn reachable(workload: &Workload) -> Vec<&Stage> {
    let by_output: BTreeMap<TensorId, &Stage> = workload.stages.iter().map(|s| (s.output, s)).collect();
    let mut done: BTreeMap<TensorId, bool> = BTreeMap::new();
    let mut result = Vec::new();
    let outputs = workload.stages.iter().map(|s| s.output).filter(|id| workload.tensor(*id).role == Role::Output);
    // a stack of stages, each pushed again to be taken after its operands
    for output in outputs {
        let mut stack = vec![output];
        while let Some(id) = stack.pop() {
            let Some(stage) = by_output.get(&id) else { continue };
            match done.get(&id) {
                Some(true) => {}
                Some(false) => {
                    done.insert(id, true);
                    result.push(*stage);
                }
                None => {
                    done.insert(id, false);
                    stack.push(id);
                    let mut reads = Vec::new();
                    stage.value.for_each_load(&mut |read, _| reads.push(read));
                    stack.extend(reads.into_iter().rev().filter(|read| !done.contains_key(read)));
                }
            }
        }
    }
    result
}

/// Operands of commutative operators, in an order that does not depend on the tensors' numbers.
fn sort_operands(expr: &Expr, workload: &Workload) -> Expr {
    expr.rewrite(&mut |expr| match expr {
        Expr::Binary(op, x, y) if op.is_commutative() && is_before(&y, &x, workload) => Expr::Binary(op, y, x),
        other => other,
    })
}

/// Larger operands come last. Only those of one size are spelled out, so that a long chain of operators is
/// not spelled out at each of them.
fn is_before(one: &Expr, other: &Expr, workload: &Workload) -> bool {
    match size(one).cmp(&size(other)) {
        Ordering::Equal => key(one, workload) < key(other, workload),
        order => order == Ordering::Less,
    }
}

/// What an operand is, with the kind of a tensor in place of its number.
fn key(expr: &Expr, workload: &Workload) -> (String, Expr) {
    let mut tensors = String::new();
    let anonymous = expr.map_loads(&mut |id, indices: &[Index]| {
        let tensor = workload.tensor(id);
        tensors.push_str(&format!("{:?} {:?} {:?};", tensor.role, tensor.dtype, tensor.shape));
        Some(Expr::load(TensorId(0), indices.to_vec()))
    });
    (tensors, anonymous)
}

fn size(expr: &Expr) -> usize {
    1 + expr.children().map(size).sum::<usize>()
}

/// Parameters in the order of their first use, and no others.
fn renumbered_parameters(mut workload: Workload) -> (Workload, Vec<Option<usize>>) {
    let mut renumbered: Vec<Option<usize>> = vec![None; workload.parameters.len()];
    if renumbered.is_empty() {
        return (workload, renumbered);
    }
    let mut parameters = Vec::new();
    let mut note = |index: &Index| {
        index.for_each_var(&mut |var| {
            if let Some(number) = var.as_parameter()
                && let Some(place) = renumbered.get_mut(number)
            {
                place.get_or_insert_with(|| {
                    parameters.push(workload.parameters[number]);
                    parameters.len() - 1
                });
            }
        });
    };
    workload.tensors.iter().for_each(|tensor| tensor.extents.iter().for_each(|(_, formula)| note(formula)));
    for stage in &workload.stages {
        stage.extents.iter().for_each(|(_, formula)| note(formula));
        stage.value.for_each_index(&mut note);
    }
    let by = |var: Var| Some(Index::var(Var::parameter(*renumbered.get(var.as_parameter()?)?.as_ref()?)));
    for tensor in &mut workload.tensors {
        tensor.extents = tensor.extents.map(|_, formula| formula.substitute(&by));
    }
    for stage in &mut workload.stages {
        stage.extents = stage.extents.map(|_, formula| formula.substitute(&by));
        stage.value = stage.value.substitute(&by);
    }
    for values in &mut workload.points {
        let mut kept = vec![0; parameters.len()];
        let moved = renumbered.iter().zip(values.iter()).filter_map(|(place, value)| Some(((*place)?, *value)));
        moved.for_each(|(place, value)| kept[place] = value);
        *values = kept;
    }
    workload.points.sort();
    workload.points.dedup();
    workload.parameters = parameters;
    (workload, renumbered)
}
