//! A program while it is made: its tensors, and what is known of them.

mod stages;

use std::collections::{BTreeMap, HashMap};

use super::formulas::Formulas;
use super::fraction::Fraction;
use super::math::{float, load, var};
use super::operator::{Operator, Problem};
use crate::graph::bulky::AllBulky;
use crate::graph::fold;
use crate::graph::{Program, Step, TensorData};
use crate::workload::{DType, Expr, Extents, Index, Role, Stage, Tensor, TensorId, row_major_strides};

/// Most dimensions of a tensor, and axes of a stage.
const MAX_AXES: usize = 32;
/// Exclusive bound of an extent.
const MAX_EXTENT: i64 = 1 << 31;
/// Exclusive bound of a tensor's elements.
const MAX_ELEMENTS: i64 = 1 << 40;
/// Exclusive bound of a stage's points.
const MAX_POINTS: i64 = 1 << 56;
/// Of all constants that are computed, as many as take half a minute.
const MAX_COMPUTED_POINTS: i64 = 1 << 35;

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
    /// Stages that come of constants only, and are too large to be stored.
    bulky: AllBulky,
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
    /// Small tensors of floats that are fractions of extents, by element.
    pub(super) fractions: HashMap<TensorId, Vec<Fraction>>,
    /// By tensor, row-major place and what it is at least: elements that are read as extents.
    pub(super) numbers_read: HashMap<(TensorId, i64, i64), Index>,
    /// By symbol: the tensors that hold the numbers of iterations.
    pub(super) iterations: BTreeMap<usize, TensorId>,
    /// Bytes of the constants that were computed, and the maximum of those.
    computed_bytes: u64,
    computed_limit: u64,
    /// Points of the stages that were.
    computed_points: i64,
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

    /// How many tensors there are so far.
    pub(super) fn tensors(&self) -> usize {
        self.program.tensors.len()
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
