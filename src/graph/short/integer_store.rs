//! Quantised activations of i8 are stored as u8, 128 more: processors multiply u8 by i8.
//!
//! ```text
//! q = i8(min(max(round(x / s) + z, -128), 127))     q = u8(min(max(round(x / s) + z + 128, 0), 255))
//! y = f32(i64 q - i64 z) · s                        y = f32(i64 q - 128 - i64 z) · s
//! ```

use std::collections::{HashMap, HashSet};

use super::for_each_stage;
use crate::graph::lower::math::{add, cast, float, literal, maximum, minimum, subtract};
use crate::graph::{Conditional, Program, Repeat, Step};
use crate::workload::{DType, Expr, Role, Stage, TensorId};

/// What is added to each element.
const SHIFT: f64 = 128.0;

/// Stores as u8 what is quantised to i8, where nobody but stages that widen it reads it; whether there was
/// any such tensor.
pub fn unsigned(program: &mut Program) -> bool {
    let shifted = shifted(program);
    for tensor in &shifted {
        program.tensors[tensor.0 as usize].dtype = DType::U8;
    }
    super::for_each_stage_mut(&mut program.steps, &mut |stage| {
        let reads = |inner: &Expr| matches!(inner, Expr::Load { tensor, .. } if shifted.contains(tensor));
        stage.value = stage.value.rewrite(&mut |expr| match expr {
            Expr::Cast(to, inner) if reads(&inner) => subtract(cast(DType::U8, to, *inner), literal(to, SHIFT)),
            other => other,
        });
        if let Some(sum) = quantized_to_i8(&stage.value).filter(|_| shifted.contains(&stage.output)) {
            let value = minimum(maximum(add(sum.clone(), float(SHIFT)), float(0.0)), float(255.0));
            stage.value = cast(DType::F32, DType::U8, value);
        }
    });
    !shifted.is_empty()
}

/// The type of bytes that a stage quantises to, and the sum of rounded value and zero point that is cut to
/// its range.
pub fn quantized(value: &Expr) -> Option<(DType, &Expr)> {
    let Expr::Cast(dtype @ (DType::U8 | DType::I8), bounded) = value else { return None };
    let (low, high, sum) = bounded.as_clamped()?;
    (low == dtype.least() as f64 && high == dtype.greatest() as f64).then_some((*dtype, sum))
}

fn quantized_to_i8(value: &Expr) -> Option<&Expr> {
    quantized(value).filter(|(dtype, _)| *dtype == DType::I8).map(|(_, sum)| sum)
}

/// The tensors of i8 that become u8.
fn shifted(program: &Program) -> HashSet<TensorId> {
    let starts = |stage: &Stage| quantized_to_i8(&stage.value).is_some();
    Copies::of(program, &starts).read_only(program, &keep_widened)
}

/// Tensors that stages of a kind write, and copies of them, by what they are copies of.
pub struct Copies {
    pub sources: HashMap<TensorId, TensorId>,
    all: HashSet<TensorId>,
}

impl Copies {
    /// Those that no operation names, whose type would be another's, too.
    pub fn of(program: &Program, starts: &dyn Fn(&Stage) -> bool) -> Copies {
        let mut fixed = HashSet::new();
        note_operands(&program.steps, &mut fixed);
        let (mut all, mut sources) = (HashSet::new(), HashMap::new());
        for_each_stage(&program.steps, &mut |stage| {
            let is_free = program.tensor(stage.output).role == Role::Intermediate && !fixed.contains(&stage.output);
            if !is_free || stage.is_reduction() {
                return;
            }
            match &stage.value {
                Expr::Load { tensor, .. } if all.contains(tensor) => {
                    sources.insert(stage.output, *tensor);
                    all.insert(stage.output);
                }
                _ if starts(stage) => {
                    all.insert(stage.output);
                }
                _ => {}
            }
        });
        Copies { sources, all }
    }

    /// Those that only copies and stages read that `keep` bears; it removes the others.
    pub fn read_only(&self, program: &Program, keep: &dyn Fn(&Stage, &mut HashSet<TensorId>)) -> HashSet<TensorId> {
        let mut found = self.all.clone();
        loop {
            let before = found.len();
            for_each_stage(&program.steps, &mut |stage| {
                if !(self.sources.contains_key(&stage.output) && found.contains(&stage.output)) {
                    keep(stage, &mut found);
                }
            });
            let of_lost = |tensor: &TensorId| self.sources.get(tensor).is_some_and(|source| !found.contains(source));
            let lost: Vec<TensorId> = found.iter().filter(|tensor| of_lost(tensor)).copied().collect();
            found.retain(|tensor| !lost.contains(tensor));
            if found.len() == before {
                return found;
            }
        }
    }

    /// The tensor at the beginning of a chain of copies.
    pub fn root(&self, mut tensor: TensorId) -> TensorId {
        while let Some(source) = self.sources.get(&tensor) {
            tensor = *source;
        }
        tensor
    }
}

/// Removes the tensors that a stage reads otherwise than widened.
fn keep_widened(stage: &Stage, found: &mut HashSet<TensorId>) {
    let mut reads: HashMap<TensorId, i64> = HashMap::new();
    stage.value.for_each_load(&mut |tensor, _| *reads.entry(tensor).or_default() += 1);
    count_widened(&stage.value, &mut reads);
    for (tensor, others) in reads {
        if others > 0 {
            found.remove(&tensor);
        }
    }
}

/// Subtracts the loads that are converted to a type that holds what is 128 more.
fn count_widened(value: &Expr, reads: &mut HashMap<TensorId, i64>) {
    if let Expr::Cast(DType::I32 | DType::I64 | DType::F32, inner) = value
        && let Expr::Load { tensor, .. } = &**inner
    {
        *reads.entry(*tensor).or_default() -= 1;
    }
    value.children().for_each(|child| count_widened(child, reads));
}

/// What operations name: its type is theirs, too.
fn note_operands(steps: &[Step], fixed: &mut HashSet<TensorId>) {
    for step in steps {
        match step {
            Step::Stage(_) => {}
            Step::Library(call) => fixed.extend(call.inputs.iter().chain(&call.outputs)),
            Step::If(Conditional { condition, branches, outputs, .. }) => {
                fixed.insert(*condition);
                fixed.extend(branches.iter().flat_map(|branch| &branch.results).chain(outputs));
            }
            Step::Repeat(Repeat { states, scanned, collected, .. }) => {
                fixed.extend(states.iter().flat_map(|state| [state.initial, state.current, state.next, state.last]));
                fixed.extend(scanned.iter().flat_map(|scanned| [scanned.whole, scanned.part]));
                fixed.extend(collected.iter().flat_map(|collected| [collected.whole, collected.part]));
            }
        }
        step.blocks().into_iter().for_each(|block| note_operands(block, fixed));
    }
}
