//! The program as fusion wants it: no axes of extent 1, no views, no copies of concatenated parts.
//!
//! Each pass is named in [`Prepared::new`]; concatenations follow in [`super::concat`]. All of them keep the
//! program's meaning.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::PartitionError;
use super::view::{flat, identity_address, reshape_access, tidy};
use crate::graph::{Program, ProgramStage, TensorData};
use crate::workload::{DType, Expr, Index, Role, Stage, Tensor, TensorId, Var, integer_from_bytes, real_from_bytes};

/// A program without views. Its tensors keep the ids that they have in the [`Program`]; parts of
/// concatenations and extra outputs are appended.
#[derive(Clone, Debug)]
pub struct Prepared {
    pub tensors: Vec<Tensor>,
    /// In topological order.
    pub stages: Vec<ProgramStage>,
    /// Tensors that live in the memory of another one, at an offset in elements. Chains end at a tensor
    /// without an entry.
    pub places: BTreeMap<TensorId, (TensorId, i64)>,
    /// Concatenations: no stage writes them, their parts fill them.
    pub assemblies: BTreeMap<TensorId, Vec<TensorId>>,
    /// Distinct tensors of role `Output`.
    pub outputs: Vec<(String, TensorId)>,
    /// Integers of at most 16 bits that floats were rounded to.
    quantized: HashSet<TensorId>,
}

impl Prepared {
    pub fn new(program: &Program) -> Result<Prepared, PartitionError> {
        check(program)?;
        let mut prepared = Prepared {
            tensors: program.tensors.clone(),
            stages: program.stages.clone(),
            places: BTreeMap::new(),
            assemblies: BTreeMap::new(),
            outputs: program.outputs.clone(),
            quantized: HashSet::new(),
        };
        prepared.separate_outputs();
        prepared.inline_literals(&program.data);
        prepared.drop_unit_axes();
        prepared.remove_views();
        prepared.quantized = prepared.find_quantized();
        Ok(prepared)
    }

    /// Whether a tensor has to exist in memory, whoever reads it. A quantised one does: it is small, and what
    /// reads it must not see the error of a float that was rounded the other way.
    pub fn is_stored(&self, tensor: TensorId) -> bool {
        self.places.contains_key(&tensor)
            || self.tensors[tensor.0 as usize].role == Role::Output
            || self.quantized.contains(&tensor)
    }

    fn find_quantized(&self) -> HashSet<TensorId> {
        let of = |tensor: TensorId| self.tensor(tensor).dtype;
        let is_short = |dtype: DType| dtype.bytes() <= 2 && !dtype.is_float() && dtype != DType::Bool;
        let stages = self.stages.iter().map(|held| &held.stage);
        let quantized = stages.filter(|stage| match &stage.value {
            Expr::Cast(dtype, value) => is_short(*dtype) && value.dtype(&of).is_float(),
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

    pub fn add_tensor(&mut self, shape: Vec<i64>, dtype: DType, role: Role) -> TensorId {
        self.tensors.push(Tensor { shape, dtype, role });
        TensorId(self.tensors.len() as u32 - 1)
    }

    /// Gives every output name a tensor of its own: an input, a constant or a tensor with a second name is
    /// copied.
    fn separate_outputs(&mut self) {
        let mut seen = HashSet::new();
        for at in 0..self.outputs.len() {
            let (name, tensor) = self.outputs[at].clone();
            let Tensor { shape, dtype, role } = self.tensor(tensor).clone();
            if role == Role::Intermediate {
                self.tensors[tensor.0 as usize].role = Role::Output;
            }
            if matches!(role, Role::Input | Role::Constant) || !seen.insert(tensor) {
                let copy = self.add_tensor(shape.clone(), dtype, Role::Output);
                let value = Expr::load(tensor, super::view::variables(0, shape.len()));
                self.stages.push(ProgramStage { stage: Stage::map(copy, shape, value), node: name });
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
        for ProgramStage { stage, .. } in &mut self.stages {
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
        let keep: Vec<Vec<bool>> = self.tensors.iter().map(|t| t.shape.iter().map(|e| *e != 1).collect()).collect();
        for tensor in &mut self.tensors {
            tensor.shape.retain(|extent| *extent != 1);
        }
        for ProgramStage { stage, .. } in &mut self.stages {
            let extents: Vec<i64> = (0..stage.rank()).map(|axis| stage.extent(axis)).collect();
            let mut next = 0;
            let axes: Vec<Index> = extents
                .iter()
                .map(|extent| {
                    if *extent == 1 {
                        return Index::constant(0);
                    }
                    next += 1;
                    Index::var(Var(next - 1))
                })
                .collect();
            stage.spatial.retain(|extent| *extent != 1);
            stage.reduction.retain(|extent| *extent != 1);
            let value = stage.value.substitute(&|var| axes.get(var.0 as usize).cloned());
            let value = value.map_loads(&mut |tensor, indices| {
                let kept = indices.iter().zip(&keep[tensor.0 as usize]).filter(|(_, keep)| **keep);
                Some(Expr::load(tensor, kept.map(|(index, _)| index.clone()).collect()))
            });
            stage.value = tidy(&value, &extents_of(stage));
            if stage.reduction.is_empty() {
                // A reduction over one element is the element.
                stage.combiner = None;
            }
        }
    }

    /// Readers of a view (reshape, squeeze, flatten: a copy of a whole tensor in its order) read its source
    /// instead. An output that is a view lends its memory to the source.
    fn remove_views(&mut self) {
        let mut views: HashMap<TensorId, Expr> = HashMap::new();
        for at in 0..self.stages.len() {
            let stage = &self.stages[at].stage;
            let extents = extents_of(stage);
            let value = stage.value.map_loads(&mut |tensor, indices| {
                let source = views.get(&tensor)?;
                Some(source.substitute(&|var| indices.get(var.0 as usize).cloned()))
            });
            let value = tidy(&value, &extents);
            let output = stage.output;
            self.stages[at].stage.value = value.clone();
            if self.stages[at].stage.is_reduction() {
                continue;
            }
            let Some(source) = self.whole_copy(&value, &extents, self.tensor(output).dtype) else { continue };
            let is_output = self.tensor(output).role == Role::Output;
            if !is_output || self.place(source, output, 0) {
                // The source's dimensions are kept where both shapes have them.
                let shape = self.tensor(source).shape.clone();
                let own = super::view::variables(0, extents.len());
                let indices = reshape_access(&own, &extents, &shape, &extents);
                views.insert(output, Expr::load(source, indices));
            }
            if is_output && self.places.get(&source) == Some(&(output, 0)) {
                self.assemblies.insert(output, vec![source]);
            }
        }
        let assemblies = &self.assemblies;
        self.stages.retain(|s| !views.contains_key(&s.stage.output) && !assemblies.contains_key(&s.stage.output));
    }

    /// The tensor of which `value` over `extents` is a copy, element by element in memory order.
    pub fn whole_copy(&self, value: &Expr, extents: &[i64], dtype: DType) -> Option<TensorId> {
        let Expr::Load { tensor, indices } = value else { return None };
        let source = self.tensor(*tensor);
        let same_size = source.elements() == extents.iter().product::<i64>() && source.dtype == dtype;
        let in_order = same_size && flat(indices, &source.shape, extents) == identity_address(extents, 0);
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
        for (_, tensor) in &self.outputs {
            needed.extend(self.filled_by(*tensor));
        }
        let mut kept = Vec::with_capacity(self.stages.len());
        for stage in std::mem::take(&mut self.stages).into_iter().rev() {
            if needed.contains(&stage.stage.output) {
                stage.stage.value.for_each_load(&mut |tensor, _| needed.extend(self.filled_by(tensor)));
                kept.push(stage);
            }
        }
        kept.reverse();
        self.stages = kept;
    }
}

/// Extents of all axes of a stage, spatial ones first.
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
        DType::F32 => Expr::float(real_from_bytes(data.dtype, first)),
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
fn check(program: &Program) -> Result<(), PartitionError> {
    let count = program.tensors.len();
    let tensor = |id: TensorId, node: &str| {
        program
            .tensors
            .get(id.0 as usize)
            .ok_or_else(|| PartitionError::UnknownTensor { id: id.0, node: node.to_owned() })
    };
    let given = |role: Role| matches!(role, Role::Input | Role::Constant);
    let mut written: Vec<bool> = program.tensors.iter().map(|t| given(t.role)).collect();
    for (at, t) in program.tensors.iter().enumerate() {
        if t.role == Role::Constant && program.data.get(at).is_none_or(Option::is_none) {
            return Err(PartitionError::NoData { id: at as u32 });
        }
    }
    for ProgramStage { stage, node } in &program.stages {
        let mut problem = None;
        stage.value.for_each_load(&mut |id, indices| {
            let found = tensor(id, node).and_then(|t| match written[id.0 as usize] {
                true if t.shape.len() == indices.len() => Ok(()),
                true => Err(PartitionError::Rank { id: id.0, node: node.clone() }),
                false => Err(PartitionError::ReadBeforeWrite { id: id.0, node: node.clone() }),
            });
            problem = problem.take().or(found.err());
        });
        if let Some(problem) = problem {
            return Err(problem);
        }
        if tensor(stage.output, node)?.shape != stage.spatial {
            return Err(PartitionError::Rank { id: stage.output.0, node: node.clone() });
        }
        if stage.points() < 1 {
            return Err(PartitionError::Extent { id: stage.output.0, node: node.clone() });
        }
        if std::mem::replace(&mut written[stage.output.0 as usize], true) {
            return Err(PartitionError::WrittenTwice { id: stage.output.0, node: node.clone() });
        }
    }
    for (name, id) in program.inputs.iter().chain(&program.outputs) {
        if id.0 as usize >= count || !written[id.0 as usize] {
            return Err(PartitionError::UnknownTensor { id: id.0, node: name.clone() });
        }
    }
    Ok(())
}
