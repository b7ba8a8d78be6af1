//! Extents of a workload made parameters, at random.
//!
//! An axis that runs less far reads less and writes less. So any axis can end at a parameter, as long as
//! those who read what it writes end there, too: axes and dimensions that index one another fall into
//! classes, which stay or change as a whole.

use std::collections::BTreeMap;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::workload::{Condition, Expr, Extents, Index, Parameter, Role, TensorId, Var, Workload};

/// The same computation over extents that are known when it runs; some stay as they are. The same seed gives
/// the same workload.
pub fn with_run_time_extents(workload: &Workload, seed: u64) -> Workload {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut classes = Classes::of(workload);
    let mut result = workload.clone();
    let mut formulas: BTreeMap<usize, Index> = BTreeMap::new();
    let mut extent_of = |classes: &mut Classes, node: Node, most: i64, result: &mut Workload| -> Option<Index> {
        let class = classes.find(node)?;
        if most < 2 || classes.pinned[class] {
            return None;
        }
        let formula = formulas.entry(class).or_insert_with(|| formula(most, result, &mut random));
        formula.as_constant().is_none().then(|| formula.clone())
    };
    for (number, stage) in workload.stages.iter().enumerate() {
        let known: Vec<(usize, Index)> = (0..stage.rank())
            .filter_map(|axis| {
                let formula = extent_of(&mut classes, Node::Axis(number, axis), stage.extent(axis), &mut result)?;
                Some((axis, formula))
            })
            .collect();
        for (axis, formula) in &known {
            let most = result.formula_range(formula).map_or(0, |range| range.high);
            let stage = &mut result.stages[number];
            let spatial = stage.spatial.len();
            *(if *axis < spatial { &mut stage.spatial[*axis] } else { &mut stage.reduction[axis - spatial] }) = most;
        }
        result.stages[number].extents = Extents::new(known);
    }
    for (id, tensor) in workload.ids() {
        let known: Vec<(usize, Index)> = (0..tensor.shape.len())
            .filter_map(|at| {
                Some((at, extent_of(&mut classes, Node::Dimension(id, at), tensor.shape[at], &mut result)?))
            })
            .collect();
        for (at, formula) in &known {
            let most = result.formula_range(formula).map_or(0, |range| range.high);
            result.tensors[id.0 as usize].shape[*at] = most;
        }
        result.tensors[id.0 as usize].extents = Extents::new(known);
    }
    let tensors = result.tensors.clone();
    for stage in &mut result.stages {
        stage.value = stage.value.rewrite(&mut |expr| border(expr, workload, &tensors));
    }
    result
}

/// A formula of a parameter of its own, of at most `most`; or all of it.
fn formula(most: i64, workload: &mut Workload, random: &mut ChaCha8Rng) -> Index {
    if random.random_bool(0.4) {
        return Index::constant(most);
    }
    let low = i64::from(random.random_bool(0.8));
    let mut parameter = |high: i64| Index::var(workload.add_parameter(Parameter { low: low.min(high), high }));
    match random.random_range(0..6) {
        0 => parameter(most / 2).times(2),
        1 => parameter(most - 1).plus_constant(1),
        2 => parameter(2 * most - 1).floor_div(2),
        _ => parameter(most),
    }
}

/// The guard of a tensor's border, where that is known only when it runs.
fn border(expr: Expr, before: &Workload, tensors: &[crate::workload::Tensor]) -> Expr {
    let Expr::Guard { conditions, inside, outside } = expr else { return expr };
    let mut moved = Vec::new();
    for condition in conditions {
        let mut found = None;
        inside.for_each_load(&mut |tensor, indices| {
            let at = border_of(&condition, before, tensor, indices);
            found = found.take().or(at.map(|at| (tensor, at)));
        });
        match found {
            Some((tensor, at)) => {
                let tensor = &tensors[tensor.0 as usize];
                moved.extend(Condition::within(&condition.index, tensor.extents.get(at), tensor.shape[at]));
            }
            None => moved.push(condition),
        }
    }
    Expr::Guard { conditions: moved, inside, outside }
}

/// The dimension of an access whose border a condition tests.
fn border_of(condition: &Condition, workload: &Workload, tensor: TensorId, indices: &[Index]) -> Option<usize> {
    let shape = &workload.tensor(tensor).shape;
    let is_border = |(index, extent): (&Index, &i64)| {
        index.as_var().is_none() && *index == condition.index && (condition.low, condition.high) == (0, *extent)
    };
    indices.iter().zip(shape).position(is_border)
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Node {
    Axis(usize, usize),
    Dimension(TensorId, usize),
}

/// Axes and dimensions that end at the same place.
struct Classes {
    /// By node: another one of its class, or itself.
    parents: BTreeMap<Node, Node>,
    numbers: BTreeMap<Node, usize>,
    /// By class: whether it stays as it is.
    pinned: Vec<bool>,
}

impl Classes {
    fn of(workload: &Workload) -> Classes {
        let mut classes = Classes { parents: BTreeMap::new(), numbers: BTreeMap::new(), pinned: Vec::new() };
        let mut pinned = Vec::new();
        for (id, tensor) in workload.ids() {
            (0..tensor.shape.len()).for_each(|at| classes.add(Node::Dimension(id, at)));
            // what is known when the network is compiled has all its elements
            if tensor.role == Role::Constant {
                pinned.extend((0..tensor.shape.len()).map(|at| Node::Dimension(id, at)));
            }
        }
        for (number, stage) in workload.stages.iter().enumerate() {
            for axis in 0..stage.rank() {
                classes.add(Node::Axis(number, axis));
                if axis < stage.spatial.len() {
                    classes.join(Node::Axis(number, axis), Node::Dimension(stage.output, axis));
                }
            }
            classes.note(workload, number, &stage.value, &[], &mut pinned);
        }
        // what reads only the beginning of a dimension ends where it does, whatever the dimension does
        let extent = |node: Node| match node {
            Node::Axis(stage, axis) => workload.stages[stage].extent(axis),
            Node::Dimension(tensor, at) => workload.tensor(tensor).shape[at],
        };
        for node in classes.parents.keys() {
            if extent(*node) != extent(classes.root(*node)) {
                pinned.push(*node);
            }
        }
        let roots: Vec<Node> = classes.parents.keys().copied().collect::<Vec<_>>();
        for node in roots {
            let root = classes.root(node);
            let next = classes.numbers.len();
            classes.numbers.entry(root).or_insert(next);
        }
        classes.pinned = vec![false; classes.numbers.len()];
        for node in pinned {
            if let Some(class) = classes.find(node) {
                classes.pinned[class] = true;
            }
        }
        classes
    }

    /// What the accesses of a value, under these conditions, have to do with one another.
    fn note(&mut self, workload: &Workload, stage: usize, value: &Expr, around: &[Condition], pinned: &mut Vec<Node>) {
        let in_index = |this: &mut Classes, index: &Index, pinned: &mut Vec<Node>| {
            Expr::Index(index.clone()).for_each_load(&mut |tensor, indices| {
                let load = Expr::load(tensor, indices.to_vec());
                this.note_load(workload, stage, &load, around, pinned);
            });
        };
        match value {
            Expr::Load { indices, .. } => {
                self.note_load(workload, stage, value, around, pinned);
                indices.iter().for_each(|index| in_index(self, index, pinned));
            }
            Expr::Index(index) => in_index(self, index, pinned),
            Expr::Guard { conditions, inside, outside } => {
                conditions.iter().for_each(|condition| in_index(self, &condition.index, pinned));
                self.note(workload, stage, inside, &[around, conditions].concat(), pinned);
                self.note(workload, stage, outside, around, pinned);
            }
            _ => value.children().for_each(|child| self.note(workload, stage, child, around, pinned)),
        }
    }

    fn note_load(
        &mut self,
        workload: &Workload,
        stage: usize,
        load: &Expr,
        around: &[Condition],
        pinned: &mut Vec<Node>,
    ) {
        let Expr::Load { tensor, indices } = load else { return };
        let role = workload.tensor(*tensor).role;
        for (at, index) in indices.iter().enumerate() {
            let dimension = Node::Dimension(*tensor, at);
            match index.as_var() {
                Some(Var(axis)) if role != Role::Constant => self.join(Node::Axis(stage, axis as usize), dimension),
                Some(_) => {}
                None => {
                    let is_guarded = around.iter().any(|c| border_of(c, workload, *tensor, indices) == Some(at));
                    if role != Role::Input || !is_guarded {
                        pinned.push(dimension);
                    }
                }
            }
        }
    }

    fn add(&mut self, node: Node) {
        self.parents.entry(node).or_insert(node);
    }

    fn root(&self, mut node: Node) -> Node {
        while let Some(parent) = self.parents.get(&node).filter(|parent| **parent != node) {
            node = *parent;
        }
        node
    }

    fn join(&mut self, x: Node, y: Node) {
        let (x, y) = (self.root(x), self.root(y));
        self.parents.insert(x, y);
    }

    fn find(&self, node: Node) -> Option<usize> {
        self.numbers.get(&self.root(node)).copied()
    }
}
