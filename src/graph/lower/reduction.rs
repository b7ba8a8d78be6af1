//! Reductions over axes, and softmax.

use super::builder::Builder;
use super::math::{
    absolute, cast, divide, equal, exp, float, literal, load, log, multiply, sqrt, square, subtract, var, vars, within,
};
use super::operator::{Operator, Problem, normal_axes, normal_axis};
use super::padding;
use super::reshape::reshape_to;
use super::reshape::reshape_to_extents;
use crate::workload::{Combiner, Condition, DType, Expr, Index, TensorId};

/// All `Reduce*` operators.
pub fn reduce(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let input = op.input(0)?;
    let (shape, dtype) = (builder.shape(input), builder.dtype(input));
    let takes_integers = matches!(
        op.kind.as_str(),
        "ReduceSum" | "ReduceMax" | "ReduceMin" | "ReduceProd" | "ReduceL1" | "ReduceSumSquare"
    );
    let is_extreme = matches!(op.kind.as_str(), "ReduceMax" | "ReduceMin");
    if (dtype == DType::Bool && !is_extreme) || (dtype != DType::F32 && !takes_integers) {
        return Err(Problem::Type { input: 0, dtype });
    }
    // axes: an attribute before opset 13 (ReduceSum) or 18 (the others), an input since
    let since_input = if op.kind == "ReduceSum" { 13 } else { 18 };
    let axes = match op.optional(1) {
        _ if op.opset < since_input => op.ints("axes")?.map(<[i64]>::to_vec),
        Some(tensor) => Some(builder.integers(tensor).ok_or(Problem::NotConstant(1))?),
        None => None,
    };
    let axes = match axes {
        Some(axes) if !axes.is_empty() => normal_axes(&axes, shape.len())?,
        _ if op.flag("noop_with_empty_axes", false)? => vec![],
        _ => (0..shape.len()).collect(),
    };
    let over = Axes::new(&shape, axes);
    let x = load(input, over.indices.clone());
    let sum = |builder: &mut Builder, value: Expr| over.reduce(builder, Combiner::Sum, dtype, value);
    let reduced = match op.kind.as_str() {
        "ReduceSum" => sum(builder, x)?,
        "ReduceMean" => {
            let total = sum(builder, x)?;
            let mean = over.mean(builder, input)?;
            over.finish(builder, total, mean)?
        }
        "ReduceMax" | "ReduceMin" => {
            let combiner = if op.kind == "ReduceMax" { Combiner::Maximum } else { Combiner::Minimum };
            // Booleans are no numbers to combine
            let counted = if dtype == DType::Bool { DType::U8 } else { dtype };
            let extreme = over.reduce(builder, combiner, counted, cast(dtype, counted, x))?;
            if counted == dtype {
                extreme
            } else {
                let value = cast(counted, dtype, load(extreme, over.outer()));
                builder.map(over.spatial.clone(), dtype, value)?
            }
        }
        "ReduceProd" => over.reduce(builder, Combiner::Product, dtype, x)?,
        "ReduceL1" => sum(builder, absolute(x))?,
        "ReduceSumSquare" => sum(builder, square(x))?,
        "ReduceL2" => {
            let total = sum(builder, square(x))?;
            over.finish(builder, total, sqrt)?
        }
        "ReduceLogSum" => {
            let total = sum(builder, x)?;
            over.finish(builder, total, log)?
        }
        "ReduceLogSumExp" => {
            let largest = over.reduce(builder, Combiner::Maximum, dtype, x.clone())?;
            let shift = load(largest, over.outer());
            let total = sum(builder, exp(subtract(x, shift)))?;
            let (shape, outer) = (over.spatial.clone(), vars(0, over.spatial.len()));
            let value = super::math::add(log(load(total, outer.clone())), load(largest, outer));
            builder.map(shape, dtype, value)?
        }
        other => return Err(Problem::Unsupported(other.to_string())),
    };
    if op.flag("keepdims", true)? {
        return Ok(vec![reshape_to(builder, reduced, over.kept_shape(&shape))?]);
    }
    Ok(vec![reduced])
}

/// A split of a tensor's axes: those that stay come first as spatial axes, those that are reduced follow.
#[derive(Clone, Debug)]
pub struct Axes {
    /// Extents that stay.
    pub spatial: Vec<i64>,
    /// Extents that are reduced.
    pub reduction: Vec<i64>,
    /// Where a stage over `spatial` and `reduction` reads the tensor.
    pub indices: Vec<Index>,
    reduced: Vec<usize>,
}

impl Axes {
    /// `reduced` holds normal, sorted axes.
    pub fn new(shape: &[i64], reduced: Vec<usize>) -> Axes {
        let kept = shape.len() - reduced.len();
        let (mut next_spatial, mut next_reduced) = (0, kept);
        let mut axes = Axes { spatial: vec![], reduction: vec![], indices: vec![], reduced };
        for (d, extent) in shape.iter().enumerate() {
            let (extents, next) = match axes.reduced.contains(&d) {
                true => (&mut axes.reduction, &mut next_reduced),
                false => (&mut axes.spatial, &mut next_spatial),
            };
            extents.push(*extent);
            axes.indices.push(var(*next));
            *next += 1;
        }
        axes
    }

    /// How many elements become one.
    pub fn count(&self) -> i64 {
        self.reduction.iter().product()
    }

    /// What makes a mean over a tensor's reduced axes of their sum.
    ///
    /// # Errors
    /// [`Problem::TooLarge`] for too many elements.
    pub fn mean(&self, builder: &mut Builder, tensor: TensorId) -> Result<impl Fn(Expr) -> Expr + use<>, Problem> {
        let extents = builder.extents(tensor);
        let reduced: Vec<Index> = self.reduced.iter().map(|d| extents[*d].clone()).collect();
        let fixed = self.count();
        let count = match reduced.iter().all(|extent| extent.as_constant().is_some()) {
            true => None,
            false => Some(builder.formulas.product(&reduced)?),
        };
        Ok(move |total: Expr| match &count {
            None => multiply(total, float(1.0 / fixed.max(1) as f64)),
            Some(count) => divide(total, Expr::Cast(DType::F32, Box::new(Expr::Index(count.clone())))),
        })
    }

    pub fn reduce(
        &self,
        builder: &mut Builder,
        combiner: Combiner,
        dtype: DType,
        value: Expr,
    ) -> Result<TensorId, Problem> {
        builder.reduce(self.spatial.clone(), self.reduction.clone(), combiner, dtype, value)
    }

    /// The last place of a tensor's reduced axes.
    fn last(&self, builder: &mut Builder, tensor: TensorId) -> Result<Index, Problem> {
        let extents = builder.extents(tensor);
        let reduced: Vec<Index> = self.reduced.iter().map(|d| extents[*d].clone()).collect();
        Ok(builder.formulas.product(&reduced)?.plus_constant(-1))
    }

    /// Where a stage over `spatial` reads a reduced tensor.
    pub fn outer(&self) -> Vec<Index> {
        vars(0, self.spatial.len())
    }

    /// Where a stage over the tensor's own axes reads a reduced tensor.
    pub fn outer_of_own(&self) -> Vec<Index> {
        (0..self.indices.len()).filter(|d| !self.reduced.contains(d)).map(var).collect()
    }

    /// A function of each reduced element.
    pub fn finish(
        &self,
        builder: &mut Builder,
        reduced: TensorId,
        function: impl Fn(Expr) -> Expr,
    ) -> Result<TensorId, Problem> {
        let dtype = builder.dtype(reduced);
        builder.map(self.spatial.clone(), dtype, function(load(reduced, self.outer())))
    }

    /// The shape with 1 in place of what was reduced.
    pub fn kept_shape(&self, shape: &[i64]) -> Vec<i64> {
        shape.iter().enumerate().map(|(d, extent)| if self.reduced.contains(&d) { 1 } else { *extent }).collect()
    }
}

/// `Softmax` and `LogSoftmax`: over one axis since opset 13, before it over that and all later ones.
pub fn softmax(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let input = op.input(0)?;
    let (shape, dtype) = (builder.shape(input), builder.dtype(input));
    if dtype != DType::F32 {
        return Err(Problem::Type { input: 0, dtype });
    }
    let axis = op.int("axis", if op.opset < 13 { 1 } else { -1 })?;
    let axes = match op.opset < 13 {
        true if axis == shape.len() as i64 => vec![],
        true => (normal_axis(axis, shape.len())?..shape.len()).collect(),
        false => vec![normal_axis(axis, shape.len())?],
    };
    let over = Axes::new(&shape, axes);
    if op.kind == "Softmax" {
        return Ok(vec![softmax_over(builder, input, &over)?]);
    }
    let largest = over.reduce(builder, Combiner::Maximum, dtype, load(input, over.indices.clone()))?;
    let shifted = |at: Vec<Index>, outer: Vec<Index>| subtract(load(input, at), load(largest, outer));
    let value = exp(shifted(over.indices.clone(), over.outer()));
    let total = over.reduce(builder, Combiner::Sum, dtype, value)?;
    let value = subtract(shifted(vars(0, shape.len()), over.outer_of_own()), log(load(total, over.outer_of_own())));
    Ok(vec![builder.map(shape, dtype, value)?])
}

/// The softmax of a tensor of f32 over some axes.
pub fn softmax_over(builder: &mut Builder, input: TensorId, over: &Axes) -> Result<TensorId, Problem> {
    let (shape, dtype) = (builder.shape(input), builder.dtype(input));
    let largest = over.reduce(builder, Combiner::Maximum, dtype, load(input, over.indices.clone()))?;
    let own = || vars(0, shape.len());
    let shifted = subtract(load(input, own()), load(largest, over.outer_of_own()));
    let exps = builder.map(shape.clone(), dtype, exp(shifted))?;
    let total = over.reduce(builder, Combiner::Sum, dtype, load(exps, over.indices.clone()))?;
    let value = divide(load(exps, own()), load(total, over.outer_of_own()));
    builder.map(shape.clone(), dtype, value)
}

/// `CumSum` and `CumProd`: all elements up to each.
pub fn cumulative(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let input = op.input(0)?;
    let (rank, dtype) = (builder.rank(input), builder.dtype(input));
    if dtype == DType::Bool {
        return Err(Problem::Type { input: 0, dtype });
    }
    let axis = normal_axis(builder.integer_input(op, 1)?, rank)?;
    let combiner = if op.kind == "CumSum" { Combiner::Sum } else { Combiner::Product };
    let (reverse, exclusive) = (op.flag("reverse", false)?, op.flag("exclusive", false)?);
    Ok(vec![Running { combiner, axis, reverse }.of(builder, input, exclusive)?])
}

/// Combines along an axis all elements up to each, or from each on.
#[derive(Clone, Copy)]
struct Running {
    combiner: Combiner,
    axis: usize,
    reverse: bool,
}

impl Running {
    /// Longer axes are cut into blocks, so that work grows with their length and not with its square.
    const LONGEST: i64 = 256;
    const BLOCK: i64 = 32;

    fn of(&self, builder: &mut Builder, x: TensorId, exclusive: bool) -> Result<TensorId, Problem> {
        let (shape, axis, combiner) = (builder.shape(x), self.axis, self.combiner);
        if shape[axis] <= Running::LONGEST {
            return self.short(builder, x, exclusive);
        }
        let dtype = builder.dtype(x);
        if builder.tensor(x).extents.get(axis).is_some() {
            return self.long_in_run(builder, x, exclusive);
        }
        let blocks = (shape[axis] + Running::BLOCK - 1) / Running::BLOCK;
        let mut pads = vec![(0, 0); shape.len()];
        pads[axis].1 = blocks * Running::BLOCK - shape[axis];
        let padded = padding::constant(builder, x, &pads, literal(dtype, combiner.identity()))?;
        let cut = [&shape[..axis], &[blocks, Running::BLOCK], &shape[axis + 1..]].concat();
        let cut_up = reshape_to(builder, padded, cut.clone())?;
        let inside = Running { axis: axis + 1, ..*self }.short(builder, cut_up, exclusive)?;
        let over = Axes::new(&cut, vec![axis + 1]);
        let totals = over.reduce(builder, combiner, dtype, load(cut_up, over.indices.clone()))?;
        let others = self.of(builder, totals, true)?;
        let value =
            Expr::binary(combiner.binary(), load(inside, vars(0, cut.len())), load(others, over.outer_of_own()));
        let joined = builder.map(cut, dtype, value)?;
        let mut whole = shape.clone();
        whole[axis] = blocks * Running::BLOCK;
        let joined = reshape_to(builder, joined, whole)?;
        padding::with_extent(builder, joined, axis, shape[axis])
    }

    /// By blocks, along an axis whose extent is known only when the network runs.
    fn long_in_run(&self, builder: &mut Builder, x: TensorId, exclusive: bool) -> Result<TensorId, Problem> {
        let (extents, axis, combiner) = (builder.extents(x), self.axis, self.combiner);
        let (dtype, most) = (builder.dtype(x), builder.shape(x)[axis]);
        let blocks =
            builder.formulas.simple(&extents[axis].clone().plus_constant(Running::BLOCK - 1).floor_div(Running::BLOCK));
        let own = || vars(0, extents.len());
        let mut whole = extents.clone();
        whole[axis] = blocks.clone().times(Running::BLOCK);
        let inside = Condition::within(&var(axis), Some(&extents[axis]), most);
        let value = Expr::guard(inside, load(x, own()), literal(dtype, combiner.identity()));
        let padded = builder.map_over(&whole, dtype, value)?;
        let cut = [&extents[..axis], &[blocks, Index::constant(Running::BLOCK)], &extents[axis + 1..]].concat();
        let cut_up = reshape_to_extents(builder, padded, &cut)?;
        let inside = Running { axis: axis + 1, ..*self }.short(builder, cut_up, exclusive)?;
        let over = Axes::new(&builder.shape(cut_up), vec![axis + 1]);
        let totals = over.reduce(builder, combiner, dtype, load(cut_up, over.indices.clone()))?;
        let others = self.of(builder, totals, true)?;
        let value =
            Expr::binary(combiner.binary(), load(inside, vars(0, cut.len())), load(others, over.outer_of_own()));
        let joined = builder.map_over(&cut, dtype, value)?;
        let joined = reshape_to_extents(builder, joined, &whole)?;
        let guards = builder.unproven(joined, &extents, &own())?;
        let value = Expr::guard(guards, load(joined, own()), literal(dtype, 0.0));
        builder.map_over(&extents, dtype, value)
    }

    /// As a reduction over those elements of the axis that are not behind.
    fn short(&self, builder: &mut Builder, x: TensorId, exclusive: bool) -> Result<TensorId, Problem> {
        let (shape, axis, combiner) = (builder.shape(x), self.axis, self.combiner);
        let (own, other) = (var(axis), var(shape.len()));
        let ahead = if self.reverse { other.clone().minus(&own) } else { own.minus(&other) };
        let first = i64::from(exclusive);
        let mut at = vars(0, shape.len());
        at[axis] = other;
        let counts = within(ahead, first, shape[axis].max(first));
        let dtype = builder.dtype(x);
        let value = Expr::guard(vec![counts], load(x, at), literal(dtype, combiner.identity()));
        let extents = builder.extents(x);
        builder.reduce_over(&extents, &extents[axis..=axis], combiner, dtype, value)
    }
}

/// The first or last place of the largest or smallest element: the extreme first, then the least or greatest
/// place of an element that equals it.
pub fn place_of_extreme(
    builder: &mut Builder,
    input: TensorId,
    over: &Axes,
    extreme: Combiner,
    takes_last: bool,
) -> Result<TensorId, Problem> {
    let dtype = builder.dtype(input);
    if dtype == DType::Bool || over.reduction.contains(&0) {
        return Err(Problem::Type { input: 0, dtype });
    }
    let x = load(input, over.indices.clone());
    let best = over.reduce(builder, extreme, dtype, x.clone())?;
    let is_best = equal(x, load(best, over.outer()));
    let place = Expr::Index(var(over.spatial.len()));
    // where nothing equals the extreme (not a number), the answer is still a place
    let (combiner, none) = match takes_last {
        true => (Combiner::Maximum, Index::constant(0)),
        false => (Combiner::Minimum, over.last(builder, input)?),
    };
    over.reduce(builder, combiner, DType::I64, Expr::select(is_best, place, Expr::Index(none)))
}

/// `ArgMax` and `ArgMin`.
pub fn position_of_extreme(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let input = op.input(0)?;
    let shape = builder.shape(input);
    let over = Axes::new(&shape, vec![normal_axis(op.int("axis", 0)?, shape.len())?]);
    let extreme = if op.kind == "ArgMax" { Combiner::Maximum } else { Combiner::Minimum };
    let place = place_of_extreme(builder, input, &over, extreme, op.flag("select_last_index", false)?)?;
    if op.flag("keepdims", true)? {
        return Ok(vec![reshape_to(builder, place, over.kept_shape(&shape))?]);
    }
    Ok(vec![place])
}

/// 1 at the first largest element along an axis (before opset 13: among that and all later ones), 0
/// elsewhere.
pub fn hardmax(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let input = op.input(0)?;
    let (shape, dtype) = (builder.shape(input), builder.dtype(input));
    if dtype != DType::F32 {
        return Err(Problem::Type { input: 0, dtype });
    }
    let axis = normal_axis(op.int("axis", if op.opset < 13 { 1 } else { -1 })?, shape.len())?;
    if op.opset < 13 && axis + 1 < shape.len() {
        let joined = [&shape[..axis], &[shape[axis..].iter().product()]].concat();
        let input = reshape_to(builder, input, joined)?;
        let result = hardmax_along(builder, input, axis)?;
        return Ok(vec![reshape_to(builder, result, shape)?]);
    }
    Ok(vec![hardmax_along(builder, input, axis)?])
}

fn hardmax_along(builder: &mut Builder, input: TensorId, axis: usize) -> Result<TensorId, Problem> {
    let (shape, dtype) = (builder.shape(input), builder.dtype(input));
    let over = Axes::new(&shape, vec![axis]);
    let place = place_of_extreme(builder, input, &over, Combiner::Maximum, false)?;
    let is_here = equal(load(place, over.outer_of_own()), Expr::Index(var(axis)));
    let extents = builder.extents(input);
    builder.map_over(&extents, dtype, Expr::select(is_here, float(1.0), float(0.0)))
}
