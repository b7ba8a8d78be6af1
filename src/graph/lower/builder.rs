//! Appends stages to a program, and computes at once what depends on constants only.

use std::collections::HashMap;

use super::formulas::Formulas;
use super::math::{float, load, var};
use super::operator::{Operator, Problem};
use crate::graph::fold::{self, Fold};
use crate::graph::{Program, ProgramStage, Step, TensorData};
use crate::workload::form::check_form;
use crate::workload::{
    Combiner, DType, Expr, Extents, Index, Interval, Role, Stage, Tensor, TensorId, Var, row_major_strides,
};

/// Most dimensions of a tensor, and axes of a stage.
const MAX_AXES: usize = 32;
/// Exclusive bound of an extent.
const MAX_EXTENT: i64 = 1 << 31;
/// Exclusive bound of a tensor's elements.
const MAX_ELEMENTS: i64 = 1 << 40;
/// Exclusive bound of a stage's points.
const MAX_POINTS: i64 = 1 << 56;

/// A convolution or matrix product by a constant, plus a constant per output channel: what a following scale
/// and shift per channel can be folded into.
#[derive(Clone, Debug)]
pub(super) struct Affine {
    /// The contraction's position among the stages.
    pub stage: usize,
    /// Its result, as seen by whatever adds the bias.
    pub product: TensorId,
    pub weight: TensorId,
    /// The dimension of the weight that counts output channels.
    pub weight_axis: usize,
    /// The dimension of the result that counts output channels.
    pub channel_axis: usize,
    /// `[channels]`
    pub bias: Option<TensorId>,
}

/// Steps that wait until a block inside of them is complete, and what is known of their contractions.
#[derive(Debug, Default)]
pub(super) struct Outer {
    pub steps: Vec<Step>,
    pub affine: HashMap<TensorId, Affine>,
    /// Whether the block inside of them runs again and again.
    pub repeats: bool,
}

/// The program while it is made.
#[derive(Debug, Default)]
pub struct Builder {
    program: Program,
    /// Operator and name of the node that is being lowered.
    node: String,
    /// Map stages over constants that are cheaper to compute where they are read than to store, by the tensor
    /// they write.
    cheap: HashMap<TensorId, Stage>,
    /// Cheap tensors that are other cheap ones in another type.
    conversion_of: HashMap<TensorId, TensorId>,
    /// By the tensor that holds the result.
    pub(super) affine: HashMap<TensorId, Affine>,
    /// Whether an operator of f64 is being lowered: to it, f64 is f32 (see [`Builder::in_double`]).
    is_double: bool,
    /// How many random operators there were.
    randoms: u64,
    /// What surrounds the block of steps that is being made, the innermost last.
    pub(super) outer: Vec<Outer>,
    /// Branches and repetitions so far.
    pub(super) operations: usize,
    /// Extents that are known when the network runs.
    pub(super) formulas: Formulas,
    /// Small tensors of integers that are known as formulas, by element.
    pub(super) known: HashMap<TensorId, Vec<Index>>,
    /// By tensor, row-major place and what it is at least: elements that are read as extents.
    pub(super) numbers_read: HashMap<(TensorId, i64, i64), Index>,
    /// Bytes of the constants that were computed, and the maximum of those.
    computed_bytes: u64,
    computed_limit: u64,
}

impl Builder {
    /// A program without stages, whose computed constants may take so many bytes.
    pub fn new(constant_bytes: u64) -> Builder {
        Builder { computed_limit: constant_bytes, ..Builder::default() }
    }

    /// A constant of the file may be computed anew in another form, as often as twice.
    pub fn grant(&mut self, given: &TensorData) {
        self.computed_limit = self.computed_limit.saturating_add(2 * given.bytes.len() as u64);
    }

    /// Makes room for a constant that is about to be computed.
    ///
    /// # Errors
    /// [`Problem::Memory`] where all of them would take more than is allowed.
    pub fn reserve(&mut self, shape: &[i64], dtype: DType) -> Result<(), Problem> {
        let elements = Builder::check_shape(shape)?;
        let bytes = self.computed_bytes.saturating_add((elements as u64).saturating_mul(dtype.bytes() as u64));
        if bytes > self.computed_limit {
            return Err(Problem::Memory { bytes, limit: self.computed_limit });
        }
        self.computed_bytes = bytes;
        Ok(())
    }

    /// What comes next belongs to this node.
    pub fn enter(&mut self, node: String) {
        self.node = node;
    }

    /// Whether a shape stays below all limits; every shape from outside goes through here before anything is
    /// computed with it.
    pub fn check_shape(shape: &[i64]) -> Result<i64, Problem> {
        let too_large = || Problem::TooLarge(shape.iter().copied().take(MAX_AXES).collect());
        if shape.iter().any(|extent| *extent < 0) {
            return Err(Problem::Shape(format!("shape {shape:?} has a negative extent")));
        }
        if shape.len() > MAX_AXES || shape.iter().any(|extent| *extent >= MAX_EXTENT) {
            return Err(too_large());
        }
        product_below(shape, MAX_ELEMENTS).ok_or_else(too_large)
    }

    /// An input with these extents, formulas of symbols.
    pub fn input(&mut self, name: String, extents: &[Index], dtype: DType) -> Result<TensorId, Problem> {
        let shape = extents.iter().map(|extent| self.formulas.most(extent)).collect::<Result<Vec<_>, _>>()?;
        Builder::check_shape(&shape)?;
        let tensor = self.add_tensor(shape, dtype, Role::Input);
        self.program.tensors[tensor.0 as usize].extents = Extents::new(extents.iter().cloned().enumerate());
        self.program.inputs.push((name, tensor));
        Ok(tensor)
    }

    /// A tensor with known elements.
    pub fn constant(&mut self, data: TensorData) -> TensorId {
        self.program.add_constant(data)
    }

    /// Makes a tensor one of the results. Inputs and constants are copied, since a result is written by a
    /// stage.
    pub fn output(&mut self, name: String, tensor: TensorId) -> Result<(), Problem> {
        self.check_written(tensor)?;
        let result = match self.tensor(tensor).role {
            Role::Intermediate | Role::Output => tensor,
            Role::Input | Role::Constant => {
                self.node = format!("output {name}");
                self.copied(tensor)?
            }
        };
        self.program.tensors[result.0 as usize].role = Role::Output;
        self.program.outputs.push((name, result));
        Ok(())
    }

    /// A copy that a stage writes, whatever is copied.
    pub(super) fn copied(&mut self, tensor: TensorId) -> Result<TensorId, Problem> {
        let Tensor { shape, dtype, extents, .. } = self.tensor(tensor).clone();
        if shape.contains(&0) {
            return Err(without_elements(&shape));
        }
        let copy = self.add_intermediate(shape.clone(), dtype, extents.clone());
        let value = load(tensor, (0..shape.len()).map(var).collect());
        let stage = self.simplified(Stage { extents, ..Stage::map(copy, shape, value) });
        let stage = self.inline_cheap(stage);
        self.append(stage);
        Ok(copy)
    }

    /// Whether some step writes a tensor, or it is known: not what has no elements, but open extents.
    ///
    /// # Errors
    /// [`Problem::Unsupported`] where nobody does.
    pub(super) fn check_written(&self, tensor: TensorId) -> Result<(), Problem> {
        let about = self.tensor(tensor);
        match about.role == Role::Intermediate && about.elements() == 0 {
            true => Err(without_elements(&about.shape)),
            false => Ok(()),
        }
    }

    /// The program, without what no output needs.
    pub fn finish(mut self) -> Program {
        self.program.symbols = std::mem::take(&mut self.formulas.symbols);
        fold::remove_dead(&mut self.program);
        self.program.drop_unused_symbols();
        self.program
    }

    pub fn tensor(&self, tensor: TensorId) -> &Tensor {
        self.program.tensor(tensor)
    }

    pub fn shape(&self, tensor: TensorId) -> Vec<i64> {
        self.tensor(tensor).shape.clone()
    }

    pub fn rank(&self, tensor: TensorId) -> usize {
        self.tensor(tensor).shape.len()
    }

    pub fn dtype(&self, tensor: TensorId) -> DType {
        match self.tensor(tensor).dtype {
            DType::F64 if self.is_double => DType::F32,
            dtype => dtype,
        }
    }

    /// Lowers an operator that has f64 inputs by the rule for f32: meanwhile f64 tensors pass for f32, and
    /// whatever the rule computes in f32 is computed in f64.
    pub fn in_double<T>(&mut self, lower: impl FnOnce(&mut Builder) -> T) -> T {
        let before = std::mem::replace(&mut self.is_double, true);
        let result = lower(self);
        self.is_double = before;
        result
    }

    /// The number of the random operator that is being lowered.
    pub(super) fn next_random(&mut self) -> u64 {
        self.randoms += 1;
        self.randoms
    }

    /// An expression of f32 as one of f64. Literals that f32 does not hold become constants.
    fn doubled(&mut self, value: &Expr) -> Expr {
        let wide = |x: Expr| Expr::Cast(DType::F64, Box::new(x));
        value.rewrite(&mut |expr| match expr {
            Expr::Float(literal) if f64::from(literal.0 as f32) == literal.0 => wide(Expr::Float(literal)),
            Expr::Float(literal) => {
                let bytes = literal.0.to_le_bytes().to_vec().into();
                load(self.constant(TensorData { shape: vec![], dtype: DType::F64, bytes }), vec![])
            }
            Expr::Load { tensor, indices } if self.tensor(tensor).dtype == DType::F32 => wide(load(tensor, indices)),
            Expr::Cast(DType::F32, x) => Expr::Cast(DType::F64, x),
            other => other,
        })
    }

    /// The elements of a constant.
    pub fn data(&self, tensor: TensorId) -> Option<&TensorData> {
        self.program.data[tensor.0 as usize].as_ref()
    }

    /// The elements of a constant of integers.
    pub fn integers(&self, tensor: TensorId) -> Option<Vec<i64>> {
        self.data(tensor)?.integers()
    }

    /// The single integer that an operator wants to know while it is lowered.
    pub fn integer_input(&self, op: &Operator, position: usize) -> Result<i64, Problem> {
        match self.integers_input(op, position)?.as_slice() {
            [value] => Ok(*value),
            values => Err(Problem::Shape(format!("input {position} has to hold one number, not {}", values.len()))),
        }
    }

    /// The integers that an operator wants to know while it is lowered.
    pub fn integers_input(&self, op: &Operator, position: usize) -> Result<Vec<i64>, Problem> {
        self.integers(op.input(position)?).ok_or(Problem::NotConstant(position))
    }

    /// The single element of a constant.
    pub fn scalar(&self, tensor: TensorId) -> Option<f64> {
        let data = self.data(tensor)?;
        if data.elements() == 1 { data.to_f64().first().copied() } else { None }
    }

    /// The element of a tensor that broadcasts to `shape`, at the point of the first `shape.len()` axes.
    pub fn broadcast(&self, tensor: TensorId, shape: &[i64]) -> Expr {
        if let (Some(value), DType::F32) = (self.scalar(tensor), self.dtype(tensor))
            && !value.is_nan()
        {
            return float(value);
        }
        let own = &self.tensor(tensor).shape;
        let skipped = shape.len() - own.len();
        let about = self.tensor(tensor);
        let index = |d: usize| if about.is_unit(d) { Index::constant(0) } else { var(skipped + d) };
        load(tensor, (0..own.len()).map(index).collect())
    }

    /// A tensor's elements in another type.
    pub fn converted(&mut self, tensor: TensorId, dtype: DType) -> Result<TensorId, Problem> {
        let shape = self.shape(tensor);
        let value = load(tensor, (0..shape.len()).map(var).collect());
        let converted = self.map(shape, dtype, Expr::Cast(dtype, Box::new(value)))?;
        if self.cheap.contains_key(&tensor) && self.cheap.contains_key(&converted) {
            self.conversion_of.insert(converted, tensor);
        }
        Ok(converted)
    }

    /// An element-wise stage over axes of these extents.
    pub fn map(&mut self, shape: Vec<i64>, dtype: DType, value: Expr) -> Result<TensorId, Problem> {
        self.emit(shape, vec![], None, dtype, value)
    }

    /// A stage that combines `value` over further axes, which follow those of `shape`.
    pub fn reduce(
        &mut self,
        shape: Vec<i64>,
        reduction: Vec<i64>,
        combiner: Combiner,
        dtype: DType,
        value: Expr,
    ) -> Result<TensorId, Problem> {
        self.emit(shape, reduction, Some(combiner), dtype, value)
    }

    fn emit(
        &mut self,
        shape: Vec<i64>,
        reduction: Vec<i64>,
        combiner: Option<Combiner>,
        dtype: DType,
        value: Expr,
    ) -> Result<TensorId, Problem> {
        let most: Vec<i64> = shape.iter().chain(&reduction).copied().collect();
        let extents = self.inferred_extents(&most, &value)?;
        self.emit_known(shape, reduction, combiner, dtype, value, extents)
    }

    /// Appends a stage with these extents, those that are known only when it runs among them.
    pub(super) fn emit_known(
        &mut self,
        shape: Vec<i64>,
        reduction: Vec<i64>,
        combiner: Option<Combiner>,
        dtype: DType,
        value: Expr,
        extents: Extents,
    ) -> Result<TensorId, Problem> {
        let elements = Builder::check_shape(&shape)?;
        Builder::check_shape(&reduction)?;
        if elements > 0 && !reduction.contains(&0) {
            let mut read = Vec::new();
            value.for_each_load(&mut |tensor, _| read.push(tensor));
            read.into_iter().try_for_each(|tensor| self.check_written(tensor))?;
        }
        let most: Vec<i64> = shape.iter().chain(&reduction).copied().collect();
        if most.len() > MAX_AXES || product_below(&most, MAX_POINTS).is_none() {
            return Err(Problem::TooLarge(most.into_iter().take(MAX_AXES).collect()));
        }
        if elements == 0 && !extents.is_fixed() {
            // no step writes it, and none may read it: what it is joined to is joined to nothing
            let rank = shape.len();
            return Ok(self.add_intermediate(shape, dtype, extents.moved(|axis| (axis < rank).then_some(axis))));
        }
        if elements == 0 {
            return Ok(self.constant(TensorData { shape, dtype, bytes: Default::default() }));
        }
        if reduction.contains(&0) {
            let identity = combiner.map_or(0.0, Combiner::identity);
            let (value, rank) = (super::math::literal(dtype, identity), shape.len());
            let extents = extents.moved(|axis| (axis < rank).then_some(axis));
            return self.emit_known(shape, vec![], None, dtype, value, extents);
        }
        let (dtype, value) = match (self.is_double, dtype) {
            (true, DType::F32) => (DType::F64, self.doubled(&value)),
            (true, _) => (dtype, self.doubled(&value)),
            (false, _) => (dtype, value),
        };
        let output = TensorId(self.program.tensors.len() as u32);
        let rank = shape.len();
        let own = extents.moved(|axis| (axis < rank).then_some(axis));
        let stage = self.simplified(Stage { output, spatial: shape.clone(), reduction, combiner, value, extents });
        let stage = self.inline_cheap(stage);
        self.check_form(&stage)?;
        match fold::fold(&self.program, &stage, dtype) {
            Fold::Data(data) => Ok(self.constant(data)),
            Fold::Compute => {
                self.reserve(&shape, dtype)?;
                let data = fold::evaluate(&self.program, &stage, dtype).map_err(Problem::Constant)?;
                Ok(self.constant(data))
            }
            Fold::Cheap => {
                self.add_intermediate(shape, dtype, own);
                self.cheap.insert(output, stage.clone());
                self.append(stage);
                Ok(output)
            }
            Fold::No => {
                self.add_intermediate(shape, dtype, own);
                self.append(stage);
                Ok(output)
            }
        }
    }

    /// Replaces loads of cheap tensors by what computes them.
    fn inline_cheap(&self, stage: Stage) -> Stage {
        let mut changed = false;
        let value = stage.value.map_loads(&mut |tensor, indices| {
            let producer = self.cheap.get(&tensor)?;
            changed = true;
            Some(producer.value.substitute(&|var: Var| indices.get(var.0 as usize).cloned()))
        });
        if changed { self.simplified(Stage { value, ..stage }) } else { stage }
    }

    /// Computes a cheap tensor after all, if it fits: contractions pack their constant operands. Its stage
    /// stays behind, dead, so that positions of stages do not change.
    pub fn materialize(&mut self, tensor: TensorId) -> Result<(), Problem> {
        if let Some(source) = self.conversion_of.remove(&tensor) {
            // an operand stays in the type in which the network holds it
            self.materialize(source)?;
            self.compute_from(tensor, source);
        }
        let Some(stage) = self.cheap.get(&tensor).cloned() else { return Ok(()) };
        let dtype = self.tensor(tensor).dtype;
        if !fold::is_storable(&self.program, &stage, dtype) {
            return Ok(());
        }
        self.reserve(&stage.spatial, dtype)?;
        let data = fold::materialize(&self.program, &stage, dtype).map_err(Problem::Constant)?;
        self.cheap.remove(&tensor);
        self.program.tensors[tensor.0 as usize].role = Role::Constant;
        self.program.data[tensor.0 as usize] = Some(data);
        Ok(())
    }

    /// A cheap tensor is from now on a conversion of another one, as that was stored.
    fn compute_from(&mut self, tensor: TensorId, source: TensorId) {
        let Tensor { shape, dtype, .. } = self.tensor(tensor).clone();
        let value = Expr::Cast(dtype, Box::new(load(source, (0..shape.len()).map(var).collect())));
        let extents = self.tensor(tensor).extents.clone();
        let stage = self.simplified(Stage { extents, ..Stage::map(tensor, shape, value) });
        let open = self.outer.iter_mut().flat_map(|outer| &mut outer.steps).chain(&mut self.program.steps);
        open.filter_map(Step::stage_mut)
            .filter(|held| held.stage.output == tensor)
            .for_each(|held| held.stage = stage.clone());
        self.cheap.insert(tensor, stage);
    }

    /// The position that the next stage will have.
    pub(super) fn next_stage(&self) -> usize {
        self.program.steps.len()
    }

    /// Lets a stage read another tensor of the same shape.
    pub(super) fn replace_load(&mut self, stage: usize, from: TensorId, to: TensorId) {
        let Some(ProgramStage { stage, .. }) = self.program.steps[stage].stage_mut() else { return };
        stage.value =
            stage.value.map_loads(&mut |tensor, indices| (tensor == from).then(|| Expr::load(to, indices.to_vec())));
    }

    fn check_form(&self, stage: &Stage) -> Result<(), Problem> {
        let highest = |symbol: usize| self.formulas.symbols.list.get(symbol).map(|known| known.range.interval().high);
        check_form(stage, &highest).map_err(|error| Problem::Unsupported(error.to_string()))
    }

    fn append(&mut self, stage: Stage) {
        self.program.steps.push(Step::Stage(ProgramStage { stage, node: self.node.clone() }));
    }

    /// The node that is being lowered.
    pub(super) fn node(&self) -> String {
        self.node.clone()
    }

    /// The steps of the block that is being made, so far.
    pub(super) fn written_steps(&self) -> &[Step] {
        &self.program.steps
    }

    /// The steps of the block that is being made.
    pub(super) fn steps(&mut self) -> &mut Vec<Step> {
        &mut self.program.steps
    }

    pub(super) fn add_intermediate(&mut self, shape: Vec<i64>, dtype: DType, extents: Extents) -> TensorId {
        let tensor = self.add_tensor(shape, dtype, Role::Intermediate);
        self.program.tensors[tensor.0 as usize].extents = extents;
        tensor
    }

    pub(super) fn add_tensor(&mut self, shape: Vec<i64>, dtype: DType, role: Role) -> TensorId {
        self.program.add_tensor(shape, dtype, role)
    }
}

impl Builder {
    /// Indices without needless divisions, without axes of extent 1, and without reduction axes of extent 1;
    /// a reduction over nothing but those is a map.
    fn simplified(&self, mut stage: Stage) -> Stage {
        let extents: Vec<i64> = stage.spatial.iter().chain(&stage.reduction).copied().collect();
        let fixed = |axis: usize| stage.extents.get(axis).is_none();
        let kept_unit = |axis: usize| extents.get(axis) == Some(&1) && !fixed(axis);
        let range = |var: Var| match var.as_parameter() {
            Some(_) => self.formulas.symbol_range(var),
            // an axis that may not run is no constant: what reads by it has elements only where it runs
            None if kept_unit(var.0 as usize) => Interval { low: 0, high: 1 },
            None => Interval::below(extents.get(var.0 as usize).copied().unwrap_or(1)),
        };
        stage.value = stage.value.map_indices(&mut |index| index.simplify(&range));
        let spatial = stage.spatial.len();
        let is_dropped = |axis: usize| axis >= spatial && extents[axis] == 1 && !kept_unit(axis);
        if (spatial..extents.len()).any(is_dropped) {
            let mut kept = spatial;
            let position: Vec<usize> = (0..extents.len())
                .map(|axis| {
                    if axis < spatial {
                        return axis;
                    }
                    kept += usize::from(!is_dropped(axis));
                    kept.saturating_sub(1)
                })
                .collect();
            stage.value = stage.value.substitute(&|v: Var| position.get(v.0 as usize).map(|p| var(*p)));
            stage.reduction =
                (spatial..extents.len()).filter(|axis| !is_dropped(*axis)).map(|axis| extents[axis]).collect();
            stage.extents = stage.extents.moved(|axis| Some(position[axis]));
        }
        if stage.reduction.is_empty() {
            stage.combiner = None;
        }
        stage
    }
}

fn product_below(extents: &[i64], limit: i64) -> Option<i64> {
    if extents.contains(&0) {
        return Some(0);
    }
    extents.iter().try_fold(1i64, |product, extent| product.checked_mul(*extent).filter(|p| *p < limit))
}

fn without_elements(shape: &[i64]) -> Problem {
    Problem::Unsupported(format!("a result of shape {shape:?}, which has no elements,"))
}

/// The row-major position of a point in a tensor.
pub fn flat_index(shape: &[i64], indices: &[Index]) -> Index {
    let strides = row_major_strides(shape);
    indices.iter().zip(strides).fold(Index::constant(0), |sum, (index, stride)| sum.plus(&index.clone().times(stride)))
}

/// The point of a tensor at a row-major position.
pub fn unflatten(shape: &[i64], flat: &Index) -> Vec<Index> {
    let strides = row_major_strides(shape);
    shape
        .iter()
        .zip(strides)
        .map(|(extent, stride)| flat.clone().floor_div(stride.max(1)).modulo((*extent).max(1)))
        .collect()
}

/// The shape to which shapes broadcast.
pub fn broadcast_shape(shapes: &[Vec<i64>]) -> Result<Vec<i64>, Problem> {
    let rank = shapes.iter().map(Vec::len).max().unwrap_or(0);
    let mut result = vec![1i64; rank];
    for shape in shapes {
        for (extent, own) in result[rank - shape.len()..].iter_mut().zip(shape) {
            match (*extent, *own) {
                (a, b) if a == b || b == 1 => {}
                (1, b) => *extent = b,
                _ => return Err(Problem::Shape(format!("shapes {shapes:?} do not broadcast"))),
            }
        }
    }
    Ok(result)
}
