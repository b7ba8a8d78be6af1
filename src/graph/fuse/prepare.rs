//! The program as fusion wants it: no axes of extent 1, no views, no copies of concatenated parts.
//!
//! Each pass is named in [`Prepared::new`]; concatenations follow in [`super::concat`]. All of them keep the
//! program's meaning.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::PartitionError;
use super::extent::{self, Extent, are_views, of_tensor};
use super::short::found_in_memory;
use super::view::{flat, identity_address, reshape_access, tidy, without_ends};
use crate::graph::{Program, ProgramStage, Step, TensorData, symbol};
use crate::workload::{
    DType, Expr, Index, Parameter, Role, Stage, Tensor, TensorId, Var, integer_from_bytes, real_from_bytes,
};

/// A program without views. Its tensors keep the ids that they have in the [`Program`]; parts of
/// concatenations and extra outputs are appended.
#[derive(Clone, Debug)]
pub struct Prepared {
    pub tensors: Vec<Tensor>,
    /// In topological order.
    pub steps: Vec<Step>,
    /// Tensors that live in the memory of another one, at an offset in elements. Chains end at a tensor
    /// without an entry.
    pub places: BTreeMap<TensorId, (TensorId, i64)>,
    /// Of those, the ones that are a part of each row of the other one, by dimension and its extent there.
    pub pitches: BTreeMap<TensorId, (usize, i64)>,
    /// Tensors whose layout was chosen: concatenations among them may be assembled along any axis.
    pub arranged: BTreeSet<TensorId>,
    /// Concatenations: no stage writes them, their parts fill them.
    pub assemblies: BTreeMap<TensorId, Vec<TensorId>>,
    /// Distinct tensors of role `Output`.
    pub outputs: Vec<(String, TensorId)>,
    /// Whole numbers of at most 16 bits that floats were rounded to, and bf16 that are [found
    /// there](super::short).
    quantized: HashSet<TensorId>,
    /// Tensors that operations read: they are in memory.
    pub kept: BTreeSet<TensorId>,
    /// Of those, the ones that are other tensors in another shape.
    pub aliases: HashMap<TensorId, TensorId>,
    /// Tensors that a repetition writes over: nothing else can live in their memory.
    pub overwritten: BTreeSet<TensorId>,
    /// The ranges of the program's symbols.
    symbols: Vec<Parameter>,
}

/// Steps that are cut into tasks together: a program, or a block inside of one.
#[derive(Clone, Copy, Debug)]
pub struct Block<'a> {
    pub steps: &'a [Step],
    /// Tensors that have memory of their own, and are written by the steps.
    pub results: &'a [TensorId],
    /// Empty for a block inside of a program.
    pub outputs: &'a [(String, TensorId)],
}

impl Prepared {
    /// A block of a program that was [`check`]ed.
    pub fn new(program: &Program, block: Block<'_>) -> Prepared {
        let mut prepared = Prepared {
            tensors: program.tensors.clone(),
            steps: block.steps.to_vec(),
            places: BTreeMap::new(),
            pitches: BTreeMap::new(),
            arranged: BTreeSet::new(),
            assemblies: BTreeMap::new(),
            outputs: block.outputs.to_vec(),
            quantized: HashSet::new(),
            kept: BTreeSet::new(),
            aliases: HashMap::new(),
            overwritten: BTreeSet::new(),
            symbols: program.symbols.ranges(),
        };
        prepared.set_roles(&block);
        prepared.separate_outputs();
        prepared.inline_literals(&program.data);
        prepared.drop_unit_axes();
        prepared.remove_views();
        prepared.quantized = prepared.find_quantized();
        prepared
    }

    /// What the block does not write is given to it, and so are states, whose memory a repetition chooses.
    fn set_roles(&mut self, block: &Block<'_>) {
        let mut written: BTreeSet<TensorId> = block.steps.iter().flat_map(Step::outputs).collect();
        for step in block.steps {
            if let Step::Repeat(repeat) = step {
                for state in &repeat.states {
                    written.remove(&state.last);
                    self.overwritten.insert(state.initial);
                }
            }
            if step.stage().is_none() {
                self.kept.extend(step.reads());
            }
        }
        for (at, tensor) in self.tensors.iter_mut().enumerate() {
            let id = TensorId(at as u32);
            tensor.role = match tensor.role {
                Role::Constant => Role::Constant,
                _ if !written.contains(&id) => Role::Input,
                _ if self.overwritten.contains(&id) => Role::Output,
                role => role,
            };
        }
        for result in block.results {
            self.tensors[result.0 as usize].role = Role::Output;
        }
    }

    /// The tensor in whose shape and memory an operation finds what it reads.
    pub fn resolved(&self, tensor: TensorId) -> TensorId {
        let mut resolved = tensor;
        while let Some(source) = self.aliases.get(&resolved) {
            resolved = *source;
        }
        resolved
    }

    /// Whether a tensor has to exist in memory, whoever reads it.
    pub fn must_exist(&self, tensor: TensorId) -> bool {
        self.kept.contains(&tensor)
            || self.places.contains_key(&tensor)
            || self.tensors[tensor.0 as usize].role == Role::Output
    }

    /// Whether it has to, or is worth to.
    pub fn is_stored(&self, tensor: TensorId) -> bool {
        self.must_exist(tensor) || self.is_quantized(tensor)
    }

    /// Whether a tensor holds short numbers that floats were rounded to. It is small, so it is stored where
    /// another task reads it, as products of short numbers and windows do; element-wise stages may join the
    /// task that computes it.
    pub fn is_quantized(&self, tensor: TensorId) -> bool {
        self.quantized.contains(&tensor)
    }

    fn find_quantized(&self) -> HashSet<TensorId> {
        let of = |tensor: TensorId| self.tensor(tensor).dtype;
        let is_short = |dtype: DType| dtype.bytes() <= 2 && !dtype.is_float() && dtype != DType::Bool;
        let stages = || self.steps.iter().filter_map(|step| step.stage()).map(|held| &held.stage);
        let multiplied = found_in_memory(stages(), &|tensor| self.tensor(tensor).role == Role::Constant);
        let quantized = stages().filter(|stage| match &stage.value {
            Expr::Cast(DType::BF16, value) => {
                value.is_whole_float() || (multiplied.contains(&stage.output) && value.dtype(&of).is_float())
            }
            Expr::Cast(dtype, value) => is_short(*dtype) && value.dtype(&of).is_float(),
            // read again and again, it is not assembled every time
            value @ Expr::Guard { .. } => {
                let dtype = value.dtype(&of);
                let is_chosen = value.chooses() && dtype == DType::BF16;
                let is_laid = lays_side_by_side(stage) && (is_short(dtype) || dtype == DType::BF16);
                (is_chosen || is_laid) && multiplied.contains(&stage.output)
            }
            _ => false,
        });
        quantized.map(|stage| stage.output).collect()
    }

    /// The buffer and the offset in elements at which a tensor lives.
    pub fn storage(&self, tensor: TensorId) -> (TensorId, i64) {
        let (mut root, mut offset) = (tensor, 0);
        while let Some((parent, at)) = self.places.get(&root) {
            (root, offset) = (*parent, offset + at);
        }
        (root, offset)
    }

    /// The shape of the memory that a tensor is the first part of, seen through `view`, a shape of the same
    /// elements; `None` where rows as far apart cannot be seen so.
    pub fn memory_shape(&self, tensor: TensorId, view: &[i64]) -> Option<Vec<i64>> {
        let mut whole = view.to_vec();
        let Some((axis, pitch)) = self.pitches.get(&tensor) else { return Some(whole) };
        let shape = &self.tensor(tensor).shape;
        let (rows, inner): (i64, i64) = (shape[..*axis].iter().product(), shape[axis + 1..].iter().product());
        let at = (0..view.len()).rev().find(|at| view[..*at].iter().product::<i64>() == rows)?;
        let (behind, row): (i64, i64) = (view[at + 1..].iter().product(), pitch * inner);
        (behind > 0 && row % behind == 0).then(|| {
            whole[at] = row / behind;
            whole
        })
    }

    /// Whether a stage can write its output where that lies.
    pub fn fits_memory(&self, stage: &Stage) -> bool {
        self.memory_shape(stage.output, &stage.spatial).is_some()
    }

    /// The tensors whose stages fill a tensor: itself, or a concatenation's parts.
    pub fn filled_by(&self, tensor: TensorId) -> Vec<TensorId> {
        match self.assemblies.get(&tensor) {
            Some(parts) => parts.iter().flat_map(|part| self.filled_by(*part)).collect(),
            None => vec![tensor],
        }
    }

    pub fn tensor(&self, id: TensorId) -> &Tensor {
        &self.tensors[id.0 as usize]
    }

    pub fn add_tensor(&mut self, tensor: Tensor) -> TensorId {
        self.tensors.push(tensor);
        TensorId(self.tensors.len() as u32 - 1)
    }

    /// The least that an extent is in any run.
    pub fn least(&self, extent: &Extent) -> i64 {
        match &extent.formula {
            Some(formula) => symbol::range(formula, &self.symbols).map_or(0, |range| range.low.max(0)),
            None => extent.most,
        }
    }

    /// Gives every output name a tensor of its own: an input, a constant or a tensor with a second name is
    /// copied.
    fn separate_outputs(&mut self) {
        let mut seen = HashSet::new();
        for at in 0..self.outputs.len() {
            let (name, tensor) = self.outputs[at].clone();
            let about = self.tensor(tensor).clone();
            let role = about.role;
            if role == Role::Intermediate {
                self.tensors[tensor.0 as usize].role = Role::Output;
            }
            if matches!(role, Role::Input | Role::Constant) || !seen.insert(tensor) {
                let copy = self.add_tensor(Tensor { role: Role::Output, ..about.clone() });
                let value = Expr::load(tensor, super::view::variables(0, about.shape.len()));
                let stage = Stage { extents: about.extents, ..Stage::map(copy, about.shape, value) };
                self.steps.push(Step::Stage(ProgramStage { stage, node: name }));
                self.outputs[at].1 = copy;
            }
        }
    }

    /// Constants of one element become literals, and so do operands of element-wise arithmetic that hold only
    /// zeros or only ones (a mask that masks nothing). A weight stays a weight, whatever it holds.
    fn inline_literals(&mut self, data: &[Option<TensorData>]) {
        let mut known: HashMap<TensorId, Option<Expr>> = HashMap::new();
        let mut literal = |tensor: TensorId, uniform: bool| {
            let data = data.get(tensor.0 as usize)?.as_ref()?;
            let single = data.shape.iter().product::<i64>() == 1;
            (single || uniform).then(|| known.entry(tensor).or_insert_with(|| uniform_literal(data)).clone())?
        };
        for ProgramStage { stage, .. } in self.steps.iter_mut().filter_map(Step::stage_mut) {
            let mut value = stage.value.map_loads(&mut |tensor, _| literal(tensor, false));
            if !stage.is_reduction() {
                let mut operand = |expr: Box<Expr>| match *expr {
                    Expr::Load { tensor, .. } => literal(tensor, true).map_or(expr, Box::new),
                    _ => expr,
                };
                value = value.rewrite(&mut |expr| match expr {
                    Expr::Binary(op, x, y) => Expr::Binary(op, operand(x), operand(y)),
                    other => other,
                });
            }
            stage.value = value;
        }
    }

    /// Removes dimensions and axes of extent 1 everywhere.
    fn drop_unit_axes(&mut self) {
        let keep: Vec<Vec<bool>> =
            self.tensors.iter().map(|t| (0..t.shape.len()).map(|dimension| !t.is_unit(dimension)).collect()).collect();
        for (tensor, keep) in self.tensors.iter_mut().zip(&keep) {
            let kept: Vec<Extent> = kept(&of_tensor(tensor), keep).cloned().collect();
            (tensor.shape, tensor.extents) = (extent::most(&kept), extent::formulas(&kept));
        }
        for ProgramStage { stage, .. } in self.steps.iter_mut().filter_map(Step::stage_mut) {
            let mut next = 0;
            let axes: Vec<Index> = (0..stage.rank())
                .map(|axis| {
                    if stage.is_unit(axis) {
                        return Index::constant(0);
                    }
                    next += 1;
                    Index::var(Var(next - 1))
                })
                .collect();
            let longer = |extents: Vec<Extent>| -> Vec<Extent> {
                extents.into_iter().filter(|extent| *extent != Extent::fixed(1)).collect()
            };
            let (spatial, reduction) = (longer(extent::spatial(stage)), longer(extent::reduction(stage)));
            (stage.spatial, stage.reduction) = (extent::most(&spatial), extent::most(&reduction));
            stage.extents = extent::formulas(&[spatial, reduction].concat());
            let value = stage.value.substitute(&|var| axes.get(var.0 as usize).cloned());
            let value = value.map_loads(&mut |tensor, indices| {
                Some(Expr::load(tensor, kept(indices, &keep[tensor.0 as usize]).cloned().collect()))
            });
            stage.value = tidy(&value, &extents_of(stage));
            if !stage.extents.is_fixed() {
                stage.value = without_ends(&stage.value, &extent::axes(stage));
            }
            if stage.reduction.is_empty() {
                // A reduction over one element is the element.
                stage.combiner = None;
            }
        }
    }

    /// Readers of a view (reshape, squeeze, flatten: a copy of a whole tensor in its order) read its source
    /// instead. An output that is a view lends its memory to the source.
    pub fn remove_views(&mut self) {
        let mut views: HashMap<TensorId, Expr> = HashMap::new();
        for at in 0..self.steps.len() {
            let Some(ProgramStage { stage, .. }) = self.steps[at].stage() else { continue };
            let extents = extents_of(stage);
            let value = stage.value.map_loads(&mut |tensor, indices| {
                let source = views.get(&tensor)?;
                Some(source.substitute(&|var| indices.get(var.0 as usize).cloned()))
            });
            let value = tidy(&value, &extents);
            let (output, is_reduction, own) = (stage.output, stage.is_reduction(), extent::spatial(stage));
            if let Some(held) = self.steps[at].stage_mut() {
                held.stage.value = value.clone();
            }
            if is_reduction || self.overwritten.contains(&output) {
                continue;
            }
            let Some(source) = self.whole_copy(&value, &own, self.tensor(output).dtype) else { continue };
            let is_output = self.tensor(output).role == Role::Output;
            if !is_output || self.place(source, output, 0) {
                // The source's dimensions are kept where both shapes have them.
                let shape = of_tensor(self.tensor(source));
                let axes = super::view::variables(0, extents.len());
                let indices = reshape_access(&axes, &own, &shape, &extents);
                views.insert(output, Expr::load(source, indices));
                if self.kept.remove(&output) {
                    self.kept.insert(source);
                    self.aliases.insert(output, source);
                }
            }
            if is_output && self.places.get(&source) == Some(&(output, 0)) {
                self.assemblies.insert(output, vec![source]);
            }
        }
        let assemblies = &self.assemblies;
        let is_gone = |tensor: TensorId| views.contains_key(&tensor) || assemblies.contains_key(&tensor);
        self.steps.retain(|step| step.stage().is_none_or(|stage| !is_gone(stage.stage.output)));
    }

    /// The tensor of which `value` over `extents` is a copy, element by element in memory order.
    pub fn whole_copy(&self, value: &Expr, extents: &[Extent], dtype: DType) -> Option<TensorId> {
        let Expr::Load { tensor, indices } = value else { return None };
        let (source, ranges) = (self.tensor(*tensor), extent::most(extents));
        let same_size = source.dtype == dtype && are_views(&of_tensor(source), extents);
        let in_order = same_size && flat(indices, &source.shape, &ranges) == identity_address(&ranges, 0);
        in_order.then_some(*tensor)
    }

    /// Lets `tensor` live inside of `root`, unless it has a place already or memory of its own.
    pub fn place(&mut self, tensor: TensorId, root: TensorId, offset: i64) -> bool {
        let free = self.tensor(tensor).role == Role::Intermediate && !self.places.contains_key(&tensor);
        let cyclic = self.storage(root).0 == tensor;
        if free && !cyclic {
            self.places.insert(tensor, (root, offset));
        }
        free && !cyclic
    }

    pub fn remove_dead_stages(&mut self) {
        let mut needed: HashSet<TensorId> = HashSet::new();
        for (at, tensor) in self.tensors.iter().enumerate() {
            if tensor.role == Role::Output {
                needed.extend(self.filled_by(TensorId(at as u32)));
            }
        }
        for tensor in &self.kept {
            needed.extend(self.filled_by(*tensor));
        }
        let mut kept = Vec::with_capacity(self.steps.len());
        for step in std::mem::take(&mut self.steps).into_iter().rev() {
            let Some(ProgramStage { stage, .. }) = step.stage() else {
                kept.push(step);
                continue;
            };
            if needed.contains(&stage.output) {
                stage.value.for_each_load(&mut |tensor, _| needed.extend(self.filled_by(tensor)));
                kept.push(step);
            }
        }
        kept.reverse();
        self.steps = kept;
    }
}

/// Whether a stage puts what lies apart behind one another, and something else behind the last of it: readers
/// find groups of it in memory alone.
fn lays_side_by_side(stage: &Stage) -> bool {
    let Expr::Guard { conditions, inside, .. } = &stage.value else { return false };
    let Some(last) = stage.spatial.len().checked_sub(1).map(|axis| Var(axis as u32)) else { return false };
    let mut is_moved = false;
    inside.for_each_load(&mut |_, indices| is_moved |= indices.iter().rev().skip(1).any(|index| index.mentions(last)));
    is_moved && conditions.iter().any(|condition| condition.index.mentions(last))
}

/// Those of a list that are to be kept.
fn kept<'a, T>(list: &'a [T], keep: &'a [bool]) -> impl Iterator<Item = &'a T> {
    list.iter().zip(keep).filter(|(_, keep)| **keep).map(|(item, _)| item)
}

/// Extents of all axes of a stage at most, spatial ones first.
pub fn extents_of(stage: &Stage) -> Vec<i64> {
    (0..stage.rank()).map(|axis| stage.extent(axis)).collect()
}

/// Exclusive bound of a literal integer's magnitude; larger constants are read from memory.
const LITERAL: u64 = 1 << 40;

/// The literal of a constant with one element, or with only zeros or ones.
fn uniform_literal(data: &TensorData) -> Option<Expr> {
    let size = data.dtype.bytes();
    let first: &[u8] = data.bytes.get(..size)?;
    let integer = || Some(integer_from_bytes(data.dtype, first)).filter(|value| value.unsigned_abs() < LITERAL);
    let literal = match data.dtype {
        DType::F32 => {
            let value = real_from_bytes(data.dtype, first);
            // what is no number cannot be written down in a workload
            if value.is_nan() {
                return None;
            }
            Expr::float(value)
        }
        dtype if dtype.is_float() => return None,
        dtype if dtype.is_literal() => Expr::integer(integer()?),
        dtype => Expr::Cast(dtype, Box::new(Expr::integer(integer()?))),
    };
    let single = data.bytes.len() == size;
    let neutral = matches!(literal, Expr::Float(value) if value.0 == 0.0 || value.0 == 1.0);
    let uniform = || data.bytes.chunks_exact(size).all(|element| element == first);
    (single || (neutral && uniform())).then_some(literal)
}

/// Ids name tensors, accesses have their tensor's rank, and everything that is read was given or written
/// before.
pub fn check(program: &Program) -> Result<(), PartitionError> {
    let given = |role: Role| matches!(role, Role::Input | Role::Constant);
    let mut written: Vec<bool> = program.tensors.iter().map(|t| given(t.role)).collect();
    for (at, t) in program.tensors.iter().enumerate() {
        if t.role == Role::Constant && program.data.get(at).is_none_or(Option::is_none) {
            return Err(PartitionError::NoData { id: at as u32 });
        }
    }
    check_steps(program, &program.steps, &mut written)?;
    for (name, id) in program.inputs.iter().chain(&program.outputs) {
        if !written.get(id.0 as usize).is_some_and(|written| *written) {
            return Err(PartitionError::UnknownTensor { id: id.0, node: name.clone() });
        }
    }
    Ok(())
}

fn check_steps(program: &Program, steps: &[Step], written: &mut [bool]) -> Result<(), PartitionError> {
    for step in steps {
        let node = step.node();
        if let Step::Stage(ProgramStage { stage, .. }) = step {
            check_stage(program, stage, node, written)?;
        } else {
            step.reads().into_iter().try_for_each(|tensor| check_read(tensor, node, written))?;
        }
        match step {
            Step::Stage(_) | Step::Library(_) => {}
            Step::If(branches) => {
                branches.branches.iter().try_for_each(|branch| check_steps(program, &branch.steps, written))?;
            }
            Step::Repeat(repeat) => {
                let given = repeat.states.iter().map(|state| state.current);
                for given in given.chain(repeat.scanned.iter().map(|scanned| scanned.part)) {
                    check_write(given, node, written)?;
                }
                check_steps(program, &repeat.body, written)?;
            }
        }
        step.outputs().into_iter().try_for_each(|output| check_write(output, node, written))?;
    }
    Ok(())
}

fn check_read(tensor: TensorId, node: &str, written: &[bool]) -> Result<(), PartitionError> {
    match written.get(tensor.0 as usize) {
        None => Err(PartitionError::UnknownTensor { id: tensor.0, node: node.to_owned() }),
        Some(true) => Ok(()),
        Some(false) => Err(PartitionError::ReadBeforeWrite { id: tensor.0, node: node.to_owned() }),
    }
}

fn check_write(tensor: TensorId, node: &str, written: &mut [bool]) -> Result<(), PartitionError> {
    match written.get_mut(tensor.0 as usize).map(|written| std::mem::replace(written, true)) {
        None => Err(PartitionError::UnknownTensor { id: tensor.0, node: node.to_owned() }),
        Some(false) => Ok(()),
        Some(true) => Err(PartitionError::WrittenTwice { id: tensor.0, node: node.to_owned() }),
    }
}

fn check_stage(program: &Program, stage: &Stage, node: &str, written: &[bool]) -> Result<(), PartitionError> {
    let mut problem = None;
    stage.value.for_each_load(&mut |id, indices| {
        let has_rank = |id: TensorId| program.tensor(id).shape.len() == indices.len();
        let found = check_read(id, node, written).and_then(|()| match has_rank(id) {
            true => Ok(()),
            false => Err(PartitionError::Rank { id: id.0, node: node.to_owned() }),
        });
        problem = problem.take().or(found.err());
    });
    if let Some(problem) = problem {
        return Err(problem);
    }
    let Some(output) = program.tensors.get(stage.output.0 as usize) else {
        return Err(PartitionError::UnknownTensor { id: stage.output.0, node: node.to_owned() });
    };
    if of_tensor(output) != extent::spatial(stage) {
        return Err(PartitionError::Rank { id: stage.output.0, node: node.to_owned() });
    }
    match stage.points() < 1 {
        true => Err(PartitionError::Extent { id: stage.output.0, node: node.to_owned() }),
        false => Ok(()),
    }
}
