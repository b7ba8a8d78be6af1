//! Computing what depends on constants only, and dropping what no output needs.

use std::collections::BTreeSet;

use super::bulky::{AllBulky, Bulky};
use super::step::{Counting, loaded};
use super::{Program, State, Step, Symbols, TensorData};
use crate::workload::{Binary, DType, Expr, Index, Interval, Stage, Tensor, TensorId, Var, row_major_strides};

/// A result of so few elements is always stored.
const SMALL_ELEMENTS: i64 = 1 << 16;
/// A larger one is stored if it is at most so many times as large as what it is computed from.
const MAX_GROWTH: i64 = 2;
/// Nothing larger is stored.
const MAX_ELEMENTS: i64 = 1 << 29;
/// A stage of more points is left to the compiled network, and a sum of more products of two elements, which
/// take a tenth of the time.
const MAX_POINTS: i64 = 1 << 28;
const MAX_PRODUCTS: i64 = 1 << 32;
/// A map of so few operators and loads, with no function among them, is computed anew wherever it is read.
const CHEAP_NODES: usize = 8;

/// What to do with a stage.
#[derive(Debug)]
pub enum Fold {
    /// It only renames the elements of a constant.
    Data(TensorData),
    /// It reads constants only, and its elements are worth storing.
    Compute,
    /// It reads constants only, and is cheaper to compute than to load.
    Cheap,
    /// It comes of constants only, but is too large to be stored; what comes of it may be small again.
    Bulky(Bulky),
    /// It has to run with the network.
    No,
}

/// Decides about a stage.
pub fn fold(program: &Program, bulky: &AllBulky, stage: &Stage, dtype: DType) -> Fold {
    let loads = loaded(&stage.value);
    let is_constant = |tensor: &TensorId| program.data[tensor.0 as usize].is_some();
    if !loads.iter().all(|tensor| is_constant(tensor) || bulky.contains(*tensor)) {
        return Fold::No;
    }
    if !loads.iter().all(is_constant) {
        return behind_bulky(program, bulky, stage, dtype);
    }
    let is_cheap = !stage.is_reduction() && nodes(&stage.value) <= CHEAP_NODES && !has_function(&stage.value);
    if is_run_time(stage) {
        return if is_cheap { Fold::Cheap } else { Fold::No };
    }
    if let Some(data) = same_bytes(program, stage) {
        return Fold::Data(data);
    }
    let elements: i64 = stage.spatial.iter().product();
    if elements > 1 && widens(program, stage, dtype) {
        return Fold::Cheap;
    }
    let read: i64 = loads.iter().map(|tensor| program.tensor(*tensor).elements()).sum();
    let most = if stage.multiplied().is_some() { MAX_PRODUCTS } else { MAX_POINTS };
    if is_worthwhile(elements, read) && elements <= MAX_ELEMENTS && stage.points() <= most {
        return Fold::Compute;
    }
    if is_cheap { Fold::Cheap } else { bulky_or_no(Bulky::new(program, bulky, stage, dtype)) }
}

/// Decides about a stage that reads nothing but constants and bulky stages.
fn behind_bulky(program: &Program, bulky: &AllBulky, stage: &Stage, dtype: DType) -> Fold {
    if is_run_time(stage) {
        return Fold::No;
    }
    let found = Bulky::new(program, bulky, stage, dtype);
    let elements: i64 = stage.spatial.iter().product();
    if is_worthwhile(elements, found.read()) && found.is_computable() { Fold::Compute } else { bulky_or_no(found) }
}

fn bulky_or_no(found: Bulky) -> Fold {
    if found.is_computable() { Fold::Bulky(found) } else { Fold::No }
}

fn is_worthwhile(elements: i64, read: i64) -> bool {
    elements <= SMALL_ELEMENTS || elements <= read.saturating_mul(MAX_GROWTH)
}

/// Whether what a stage computes depends on what is known when it runs.
fn is_run_time(stage: &Stage) -> bool {
    !stage.extents.is_fixed() || stage.value.any_var(&|var| var.as_parameter().is_some())
}

/// Whether the elements of a stage that reads constants only can be stored at all.
pub fn is_storable(program: &Program, stage: &Stage, dtype: DType) -> bool {
    !is_run_time(stage) && stage.spatial.iter().product::<i64>() <= MAX_ELEMENTS && !widens(program, stage, dtype)
}

/// The elements of a stage that [`is_storable`].
///
/// # Errors
/// As for [`evaluate`].
pub fn materialize(program: &Program, stage: &Stage, dtype: DType) -> Result<TensorData, String> {
    if let (Expr::Float(value), DType::F32, None) = (&stage.value, dtype, stage.combiner) {
        // fills are common as stand-ins for weights, and may be hundreds of megabytes
        let elements: i64 = stage.spatial.iter().product();
        let bytes = (value.0 as f32).to_le_bytes().repeat(elements as usize);
        return Ok(TensorData { shape: stage.spatial.clone(), dtype, bytes: bytes.into() });
    }
    evaluate(program, stage, dtype)
}

/// Whether a stage gives short elements of a constant as f32: those of 16 bits, and those of 8 bits that are
/// dequantised. Weights stay as short as they are: they take less memory, tensor cores multiply 16 bits only
/// so, and integers are summed as such.
fn widens(program: &Program, stage: &Stage, dtype: DType) -> bool {
    if dtype != DType::F32 || stage.is_reduction() {
        return false;
    }
    if is_scaled_by_block(program, stage) {
        return true;
    }
    match &stage.value {
        Expr::Cast(_, value) => {
            is_load(value, &|tensor| matches!(program.tensor(tensor).dtype, DType::F16 | DType::BF16))
        }
        Expr::Binary(Binary::Multiply, value, _) => dequantizes_weight(program, value),
        _ => false,
    }
}

/// Whether a value is `f32(q)` or `f32(q - z)` of bytes in a constant that is no mere list.
fn dequantizes_weight(program: &Program, value: &Expr) -> bool {
    let is_weight = |tensor: TensorId| {
        let Tensor { shape, dtype, .. } = program.tensor(tensor);
        matches!(dtype, DType::U8 | DType::I8) && shape.iter().filter(|extent| **extent > 1).count() > 1
    };
    match value {
        Expr::Cast(DType::F32, inner) => match &**inner {
            Expr::Binary(Binary::Subtract, element, _) => {
                matches!(&**element, Expr::Cast(_, element) if is_load(element, &is_weight))
            }
            element => is_load(element, &is_weight),
        },
        _ => false,
    }
}

fn is_load(value: &Expr, of: &dyn Fn(TensorId) -> bool) -> bool {
    matches!(value, Expr::Load { tensor, .. } if of(*tensor))
}

/// Whether a stage widens integers of a byte or less and multiplies them by scales that blocks of them share.
fn is_scaled_by_block(program: &Program, stage: &Stage) -> bool {
    let Expr::Binary(Binary::Multiply, number, scale) = &stage.value else { return false };
    let Expr::Load { tensor, indices } = &**scale else { return false };
    let scales = program.tensor(*tensor).elements();
    let is_byte = |tensor: &TensorId| program.tensor(*tensor).dtype.bytes() == 1;
    let elements = stage.spatial.iter().product::<i64>();
    !stage.is_reduction()
        && indices.iter().any(|index| !index.is_affine() && !index.has_value())
        && scales < elements
        && loaded(number).iter().all(is_byte)
}

/// The elements of a stage that reads constants only.
///
/// # Errors
/// The message of the evaluator, where constants do not allow to compute it (a division of integers by 0,
/// say).
pub fn evaluate(program: &Program, stage: &Stage, dtype: DType) -> Result<TensorData, String> {
    AllBulky::default().evaluate(program, stage, dtype)
}

/// The result of a stage that only renames the elements of a constant: another shape, the same bytes.
fn same_bytes(program: &Program, stage: &Stage) -> Option<TensorData> {
    let Expr::Load { tensor, indices } = &stage.value else { return None };
    let data = program.data[tensor.0 as usize].as_ref()?;
    if stage.is_reduction() || data.elements() != stage.spatial.iter().product::<i64>() {
        return None;
    }
    let flat = |shape: &[i64], indices: &[Index]| {
        let terms = indices.iter().zip(row_major_strides(shape));
        terms.fold(Index::constant(0), |sum, (index, stride)| sum.plus(&index.clone().times(stride)))
    };
    let own: Vec<Index> = (0..stage.spatial.len()).map(|axis| Index::var(Var(axis as u32))).collect();
    let range = |var: Var| Interval::below(stage.extent(var.0 as usize));
    let written = flat(&stage.spatial, &own).simplify(&range);
    let read = flat(&data.shape, indices).simplify(&range);
    (written == read).then(|| TensorData { shape: stage.spatial.clone(), ..data.clone() })
}

/// Whether it takes a sine, a quotient or the like: every layer of a network may read positions.
fn has_function(value: &Expr) -> bool {
    let own = match value {
        Expr::Unary(op, _) => op.is_expensive(),
        Expr::Binary(op, ..) => op.is_expensive(),
        _ => false,
    };
    own || value.children().any(has_function)
}

fn nodes(value: &Expr) -> usize {
    1 + value.children().map(nodes).sum::<usize>()
}

/// Removes steps and constants that no output needs, and numbers tensors anew, in their old order. Inputs
/// stay.
pub fn remove_dead(program: &mut Program) {
    let steps = std::mem::take(&mut program.steps);
    let counting = Counting::of(&program.symbols, &steps);
    let mut live: BTreeSet<TensorId> = program.outputs.iter().map(|(_, tensor)| *tensor).collect();
    for (_, tensor) in &program.outputs {
        program.tensor(*tensor).extents.iter().for_each(|(_, formula)| live.extend(counting.tensors_of(formula)));
    }
    for requirement in &program.symbols.requirements {
        live.extend(counting.tensors_of(&requirement.formula));
    }
    program.steps = live_steps(program, &counting, steps, &mut live);
    live.extend(program.inputs.iter().map(|(_, tensor)| *tensor));
    let mut renamed = vec![None; program.tensors.len()];
    for (new, old) in live.iter().enumerate() {
        renamed[old.0 as usize] = Some(TensorId(new as u32));
    }
    let rename = |tensor: TensorId| renamed[tensor.0 as usize].unwrap_or(tensor);
    program.steps.iter_mut().for_each(|step| step.rename(&rename));
    program.tensors = live.iter().map(|tensor| program.tensors[tensor.0 as usize].clone()).collect();
    program.data = live.iter().map(|tensor| program.data[tensor.0 as usize].take()).collect();
    program.inputs.iter_mut().chain(&mut program.outputs).for_each(|(_, tensor)| *tensor = rename(*tensor));
}

/// The steps that write what is live, last ones first looked at; what they name becomes live.
fn live_steps(
    program: &Program,
    counting: &Counting<'_>,
    steps: Vec<Step>,
    live: &mut BTreeSet<TensorId>,
) -> Vec<Step> {
    let mut kept = Vec::new();
    for mut step in steps.into_iter().rev() {
        let is_live = |tensor: &TensorId| live.contains(tensor) && program.data[tensor.0 as usize].is_none();
        if !step.outputs().iter().any(is_live) {
            continue;
        }
        step.for_each_formula(&mut |formula| live.extend(counting.tensors_of(formula)));
        match &mut step {
            Step::Stage(stage) => live.extend(loaded(&stage.stage.value)),
            Step::Library(call) => live.extend(call.inputs.iter().chain(&call.outputs)),
            Step::If(branches) => {
                live.insert(branches.condition);
                live.extend(&branches.outputs);
                for branch in &mut branches.branches {
                    live.extend(&branch.results);
                    branch.steps = live_steps(program, counting, std::mem::take(&mut branch.steps), live);
                }
            }
            Step::Repeat(repeat) => {
                repeat.collected.retain(|collected| live.contains(&collected.whole));
                live.extend(repeat.collected.iter().map(|collected| collected.part));
                for State { initial, current, next, last } in &repeat.states {
                    live.extend([initial, current, next, last]);
                }
                repeat.body = live_steps(program, counting, std::mem::take(&mut repeat.body), live);
                repeat.scanned.retain(|scanned| live.contains(&scanned.part));
                live.extend(repeat.scanned.iter().map(|scanned| scanned.whole));
            }
        }
        kept.push(step);
    }
    kept.reverse();
    kept
}

impl Program {
    /// Removes symbols that neither extents nor values nor requirements depend on, and numbers the others
    /// anew, in their old order.
    pub(super) fn drop_unused_symbols(&mut self) {
        let mut used = vec![false; self.symbols.list.len()];
        let mut note = |index: &Index| {
            index.for_each_var(&mut |var| {
                if let Some(slot) = var.as_parameter().and_then(|number| used.get_mut(number)) {
                    *slot = true;
                }
            });
        };
        self.symbols.requirements.iter().for_each(|requirement| note(&requirement.formula));
        self.tensors.iter().flat_map(|tensor| tensor.extents.iter()).for_each(|(_, formula)| note(formula));
        let mut steps: Vec<&mut Step> = self.steps.iter_mut().collect();
        while let Some(step) = steps.pop() {
            match &*step {
                Step::Stage(held) => held.stage.for_each_formula(&mut note),
                Step::Repeat(repeat) => repeat.formula.iter().for_each(&mut note),
                Step::Library(call) => {
                    call.sizes.iter().for_each(&mut note);
                    call.count.iter().for_each(|count| note(&Index::var(Var::parameter(*count))));
                }
                Step::If(_) => {}
            }
            steps.extend(step.blocks_mut().into_iter().flatten());
        }
        for number in (0..self.symbols.list.len()).rev() {
            let of_symbol = self.symbols.list[number].origin.formulas();
            if used[number] {
                let mut needed = Vec::new();
                of_symbol.iter().for_each(|formula| formula.for_each_var(&mut |var| needed.extend(var.as_parameter())));
                needed.into_iter().for_each(|number| used[number] = true);
            }
        }
        if !used.contains(&false) {
            return;
        }
        let mut kept = 0..;
        let numbers: Vec<Option<usize>> = used.iter().map(|used| if *used { kept.next() } else { None }).collect();
        let replace = |var: Var| Some(Index::var(Var::parameter((*numbers.get(var.as_parameter()?)?)?)));
        let renamed = |index: &Index| index.substitute(&replace);
        let Symbols { list, requirements } = std::mem::take(&mut self.symbols);
        let list = list.into_iter().zip(&used).filter(|(_, used)| **used).map(|(mut symbol, _)| {
            symbol.origin.formulas_mut().into_iter().for_each(|formula| *formula = renamed(formula));
            symbol
        });
        self.symbols.list = list.collect();
        self.symbols.requirements = requirements;
        self.symbols.requirements.iter_mut().for_each(|needed| needed.formula = renamed(&needed.formula));
        for tensor in &mut self.tensors {
            tensor.extents = tensor.extents.map(|_, formula| renamed(formula));
        }
        let mut steps: Vec<&mut Step> = self.steps.iter_mut().collect();
        while let Some(step) = steps.pop() {
            match step {
                Step::Stage(held) => {
                    held.stage.extents = held.stage.extents.map(|_, formula| renamed(formula));
                    held.stage.value = held.stage.value.substitute(&replace);
                }
                Step::Repeat(repeat) => repeat.formula = repeat.formula.as_ref().map(renamed),
                Step::Library(call) => {
                    call.sizes.iter_mut().for_each(|size| *size = renamed(size));
                    call.count = call.count.and_then(|count| numbers.get(count).copied().flatten());
                }
                Step::If(_) => {}
            }
            steps.extend(step.blocks_mut().into_iter().flatten());
        }
    }
}
