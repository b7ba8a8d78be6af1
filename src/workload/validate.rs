//! The invariants of a [`Workload`], checked.

use std::collections::BTreeSet;

use thiserror::Error;

use super::bounds::StageFacts;
use super::form::{FormError, MAX_DEPTH, MAX_NODES, check_form};
use super::parameter::is_formula;
use super::{Atom, Combiner, Condition, DType, Expr, Extents, Index, Role, Stage, TensorId, Var, Workload};

/// Tensors of a workload.
pub const MAX_TENSORS: usize = 256;
/// Points that a workload is timed at.
pub const MAX_POINTS_TIMED: usize = 16;
/// Parameters of a workload.
pub const MAX_PARAMETERS: usize = 64;
/// Dimensions of a tensor, and axes of a stage.
pub const MAX_AXES: usize = 32;
/// Exclusive bound of an extent.
pub const MAX_EXTENT: i64 = 1 << 31;
/// Exclusive bound of the elements of a tensor.
pub const MAX_ELEMENTS: i64 = 1 << 40;
/// Exclusive bound of the points of a stage.
pub const MAX_POINTS: i64 = 1 << 56;
/// Where intervals do not prove an access inside, up to so many points are tried one by one.
const MAX_TRIED_POINTS: i64 = 1 << 18;

/// What is wrong with a workload: the fault of whoever built it.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum WorkloadError {
    #[error("{found} tensors; at most {MAX_TENSORS} are supported")]
    TooManyTensors { found: usize },
    #[error("{found} parameters; at most {MAX_PARAMETERS} are supported")]
    TooManyParameters { found: usize },
    #[error("parameter {parameter} lies in {low} to {high}; parameters lie in 0 to 2^31 - 1, and their ends in order")]
    Parameter { parameter: usize, low: i64, high: i64 },
    #[error(
        "point {point} has no number for each parameter, in its range; at most {MAX_POINTS_TIMED} points are supported"
    )]
    Point { point: usize },
    #[error("{what} has an extent that is no formula of the parameters for numbers from 0 to {most}")]
    Formula { what: String, most: i64 },
    #[error("there is no stage")]
    NoStage,
    #[error("{what} has {found} axes; at most {MAX_AXES} are supported")]
    TooManyAxes { what: String, found: usize },
    #[error("{what} has the extent {extent}; extents lie in 1 to 2^31 - 1")]
    Extent { what: String, extent: i64 },
    #[error("tensor t{} has too many elements; less than 2^40 are supported", tensor.0)]
    TooLarge { tensor: TensorId },
    #[error("stage {stage} has too many points; less than 2^56 are supported")]
    TooManyPoints { stage: usize },
    #[error("stage {stage}: there is no tensor t{}", tensor.0)]
    UnknownTensor { stage: usize, tensor: TensorId },
    #[error("tensor t{} is written by no stage", tensor.0)]
    NotWritten { tensor: TensorId },
    #[error("stage {stage} writes t{}, which is an argument or was written before", tensor.0)]
    WrittenTwice { stage: usize, tensor: TensorId },
    #[error("stage {stage} reads t{} before it is written", tensor.0)]
    ReadTooEarly { stage: usize, tensor: TensorId },
    #[error("stage {stage}: spatial axes {spatial:?} are neither the output's shape {shape:?} nor a part of it")]
    Shape { stage: usize, spatial: Vec<i64>, shape: Vec<i64> },
    #[error("stage {stage} has reduction axes, but nothing that combines values")]
    NoCombiner { stage: usize },
    #[error("stage {stage} combines Booleans; only numbers can be combined")]
    CombinesBooleans { stage: usize },
    #[error("stage {stage} has no axis {}", axis.0)]
    UnknownAxis { stage: usize, axis: Var },
    #[error("stage {stage} reads t{} with {found} indices; it has {expected} dimensions", tensor.0)]
    IndexCount { stage: usize, tensor: TensorId, expected: usize, found: usize },
    #[error("stage {stage}: the expression is deeper than {MAX_DEPTH} levels")]
    TooDeep { stage: usize },
    #[error("stage {stage}: the expression has more than {MAX_NODES} parts")]
    TooLong { stage: usize },
    #[error("stage {stage}: `{operator}` does not take {found}")]
    Type { stage: usize, operator: String, found: String },
    #[error("stage {stage} computes {found}, its output t{} holds {expected}", tensor.0, found = found.name(), expected = expected.name())]
    OutputType { stage: usize, tensor: TensorId, expected: DType, found: DType },
    #[error("stage {stage}: a literal is not a number")]
    NotANumber { stage: usize },
    #[error("stage {stage}: a number in an index is too large; less than 2^40 is supported")]
    Coefficient { stage: usize },
    #[error("stage {stage} may read t{} out of range: dimension {dimension} has the extent {extent}", tensor.0)]
    OutOfRange { stage: usize, tensor: TensorId, dimension: usize, extent: i64 },
}

impl FormError {
    fn of_stage(self, stage: usize) -> WorkloadError {
        match self {
            FormError::TooDeep => WorkloadError::TooDeep { stage },
            FormError::TooLong => WorkloadError::TooLong { stage },
            FormError::UnknownAxis(axis) => WorkloadError::UnknownAxis { stage, axis },
            FormError::NotANumber => WorkloadError::NotANumber { stage },
            FormError::Coefficient => WorkloadError::Coefficient { stage },
        }
    }
}

impl Workload {
    /// Checks all invariants. Accesses are proved to stay inside where their guards hold; an access through
    /// an unclamped gathered value is only known at run time and is accepted.
    ///
    /// # Errors
    /// The first violation found.
    pub fn validate(&self) -> Result<(), WorkloadError> {
        self.validate_for(1)
    }

    /// The same for extents of at least `least`: in a run, they may be 0.
    pub(super) fn validate_for(&self, least: i64) -> Result<(), WorkloadError> {
        self.check_parameters()?;
        if self.tensors.len() > MAX_TENSORS {
            return Err(WorkloadError::TooManyTensors { found: self.tensors.len() });
        }
        for (id, tensor) in self.ids() {
            let what = || format!("tensor t{}", id.0);
            check_extents(what, &tensor.shape, least)?;
            self.check_formulas(what, &tensor.extents, &tensor.shape)?;
            product_below(&tensor.shape, MAX_ELEMENTS).ok_or(WorkloadError::TooLarge { tensor: id })?;
        }
        if self.stages.is_empty() {
            return Err(WorkloadError::NoStage);
        }
        let argument = |role| matches!(role, Role::Input | Role::Constant);
        let mut written: BTreeSet<TensorId> = self.ids().filter(|(_, t)| argument(t.role)).map(|(id, _)| id).collect();
        for (number, stage) in self.stages.iter().enumerate() {
            Checker { workload: self, number, stage, written: &written }.check(least)?;
            if !written.insert(stage.output) {
                return Err(WorkloadError::WrittenTwice { stage: number, tensor: stage.output });
            }
        }
        match self.ids().find(|(id, _)| !written.contains(id)) {
            Some((tensor, _)) => Err(WorkloadError::NotWritten { tensor }),
            None => Ok(()),
        }
    }
}

impl Workload {
    fn check_parameters(&self) -> Result<(), WorkloadError> {
        let found = self.parameters.len();
        if found > MAX_PARAMETERS {
            return Err(WorkloadError::TooManyParameters { found });
        }
        let is_bad = |(_, p): &(usize, &super::Parameter)| p.low < 0 || p.low > p.high || p.high >= MAX_EXTENT;
        if let Some((parameter, bad)) = self.parameters.iter().enumerate().find(is_bad) {
            return Err(WorkloadError::Parameter { parameter, low: bad.low, high: bad.high });
        }
        let is_bad = |(at, values): &(usize, &Vec<i64>)| *at >= MAX_POINTS_TIMED || !self.accepts(values);
        match self.points.iter().enumerate().find(is_bad) {
            Some((point, _)) => Err(WorkloadError::Point { point }),
            None => Ok(()),
        }
    }

    /// Whether run-time extents are formulas of the parameters that never exceed what they are at most.
    fn check_formulas(&self, what: impl Fn() -> String, extents: &Extents, most: &[i64]) -> Result<(), WorkloadError> {
        for (at, formula) in extents.iter() {
            let most = most.get(at).copied().unwrap_or(0);
            let stays = |range: super::Interval| range.low >= 0 && range.high <= most;
            let is_known = is_formula(formula, self.parameters.len());
            if !is_known || !self.formula_range(formula).is_some_and(stays) {
                return Err(WorkloadError::Formula { what: what(), most });
            }
        }
        Ok(())
    }
}

fn check_extents(what: impl Fn() -> String, extents: &[i64], least: i64) -> Result<(), WorkloadError> {
    if extents.len() > MAX_AXES {
        return Err(WorkloadError::TooManyAxes { what: what(), found: extents.len() });
    }
    match extents.iter().find(|e| !(least..MAX_EXTENT).contains(*e)) {
        Some(extent) => Err(WorkloadError::Extent { what: what(), extent: *extent }),
        None => Ok(()),
    }
}

fn product_below(extents: &[i64], limit: i64) -> Option<i64> {
    extents.iter().try_fold(1i64, |product, extent| product.checked_mul(*extent).filter(|p| *p < limit))
}

struct Checker<'a> {
    workload: &'a Workload,
    number: usize,
    stage: &'a Stage,
    written: &'a BTreeSet<TensorId>,
}

impl Checker<'_> {
    fn check(&self, least: i64) -> Result<(), WorkloadError> {
        let stage = self.stage;
        let number = self.number;
        let Some(output) = self.workload.tensors.get(stage.output.0 as usize) else {
            return Err(WorkloadError::UnknownTensor { stage: number, tensor: stage.output });
        };
        if matches!(output.role, Role::Input | Role::Constant) {
            return Err(WorkloadError::WrittenTwice { stage: number, tensor: stage.output });
        }
        if !(stage.writes_all_of(output) || output.role == Role::Output && stage.writes_part_of(output)) {
            let (spatial, shape) = (stage.spatial.clone(), output.shape.clone());
            return Err(WorkloadError::Shape { stage: number, spatial, shape });
        }
        check_extents(|| format!("the reduction of stage {number}"), &stage.reduction, least)?;
        let extents: Vec<i64> = stage.spatial.iter().chain(&stage.reduction).copied().collect();
        let what = || format!("stage {number}");
        check_extents(what, &extents, least)?;
        self.workload.check_formulas(what, &stage.extents, &extents)?;
        product_below(&extents, MAX_POINTS).ok_or(WorkloadError::TooManyPoints { stage: number })?;
        if stage.combiner.is_none() && !stage.reduction.is_empty() {
            return Err(WorkloadError::NoCombiner { stage: number });
        }
        // form first: the range analysis relies on bounded depths and coefficients
        let highest = |parameter: usize| self.workload.parameters.get(parameter).map(|known| known.high);
        check_form(stage, &highest).map_err(|error| error.of_stage(number))?;
        self.check_loads()?;
        let found = self.check_types(&stage.value)?;
        if found != output.dtype {
            let (tensor, expected) = (stage.output, output.dtype);
            return Err(WorkloadError::OutputType { stage: number, tensor, expected, found });
        }
        if found == DType::Bool && stage.combiner.is_some() {
            return Err(WorkloadError::CombinesBooleans { stage: number });
        }
        if extents.contains(&0) {
            // it is computed nowhere
            return Ok(());
        }
        self.check_ranges(&stage.value, &StageFacts::of_stage(stage, &self.workload.parameters))
    }

    /// Names of tensors and the numbers of their indices.
    fn check_loads(&self) -> Result<(), WorkloadError> {
        let stage = self.number;
        let mut found = Ok(());
        self.stage.value.for_each_load(&mut |tensor, indices| {
            let Some(read) = self.workload.tensors.get(tensor.0 as usize) else {
                found = Err(WorkloadError::UnknownTensor { stage, tensor });
                return;
            };
            let expected = read.shape.len();
            if !self.written.contains(&tensor) {
                found = Err(WorkloadError::ReadTooEarly { stage, tensor });
            } else if expected != indices.len() {
                found = Err(WorkloadError::IndexCount { stage, tensor, expected, found: indices.len() });
            }
        });
        found
    }

    fn check_types(&self, expr: &Expr) -> Result<DType, WorkloadError> {
        let refuse = |operator: &str, found: &[DType]| {
            let names: Vec<&str> = found.iter().map(|t| t.name()).collect();
            let (operator, found) = (operator.to_string(), names.join(" and "));
            Err(WorkloadError::Type { stage: self.number, operator, found })
        };
        match expr {
            Expr::Float(_) => Ok(DType::F32),
            Expr::Index(index) => self.check_index_types(index).map(|()| DType::I64),
            Expr::Load { tensor, indices } => {
                indices.iter().try_for_each(|index| self.check_index_types(index))?;
                Ok(self.workload.tensor(*tensor).dtype)
            }
            Expr::Unary(op, x) => {
                let dtype = self.check_types(x)?;
                if op.takes().contain(dtype) { Ok(dtype) } else { refuse(op.name(), &[dtype]) }
            }
            Expr::Binary(op, x, y) => {
                let (x, y) = (self.check_types(x)?, self.check_types(y)?);
                if !op.takes().contain(x) || x != y {
                    return refuse(op.name(), &[x, y]);
                }
                Ok(if op.is_comparison() { DType::Bool } else { x })
            }
            Expr::Select { condition, yes, no } => {
                let (c, x, y) = (self.check_types(condition)?, self.check_types(yes)?, self.check_types(no)?);
                if c == DType::Bool && x == y { Ok(x) } else { refuse("select", &[c, x, y]) }
            }
            Expr::Guard { conditions, inside, outside } => {
                conditions.iter().try_for_each(|c| self.check_index_types(&c.index))?;
                let (x, y) = (self.check_types(inside)?, self.check_types(outside)?);
                if x == y { Ok(x) } else { refuse("guard", &[x, y]) }
            }
            Expr::Cast(dtype, x) => self.check_types(x).map(|_| *dtype),
            Expr::Bits(dtype, x) => {
                let found = self.check_types(x)?;
                if found.bytes() == dtype.bytes() { Ok(*dtype) } else { refuse("bits", &[found, *dtype]) }
            }
        }
    }

    /// Gathered values are integers.
    fn check_index_types(&self, index: &Index) -> Result<(), WorkloadError> {
        index.terms().iter().try_for_each(|(atom, _)| match atom {
            Atom::Var(_) => Ok(()),
            Atom::FloorDiv(inner, _) | Atom::Modulo(inner, _) => self.check_index_types(inner),
            Atom::Value(expr) => {
                let found = self.check_types(expr)?;
                if found.is_float() || found == DType::Bool {
                    let (operator, found) = ("gather".to_string(), found.name().to_string());
                    return Err(WorkloadError::Type { stage: self.number, operator, found });
                }
                Ok(())
            }
        })
    }

    fn check_ranges(&self, expr: &Expr, facts: &StageFacts) -> Result<(), WorkloadError> {
        match expr {
            Expr::Index(index) => return self.check_gathered_ranges(index, facts),
            Expr::Load { tensor, indices } => {
                let about = self.workload.tensor(*tensor);
                // there is nothing to read but what a stage wrote
                let shape = self.workload.part_of(*tensor).unwrap_or(&about.shape);
                for (dimension, (index, extent)) in indices.iter().zip(shape).enumerate() {
                    self.check_gathered_ranges(index, facts)?;
                    if !stays_inside(index, *extent, about.extents.get(dimension), facts) {
                        let (stage, tensor, extent) = (self.number, *tensor, *extent);
                        return Err(WorkloadError::OutOfRange { stage, tensor, dimension, extent });
                    }
                }
            }
            Expr::Guard { conditions, inside, outside } => {
                for condition in conditions {
                    self.check_gathered_ranges(&condition.index, facts)?;
                }
                if !conditions.iter().any(|c| facts.never(c)) {
                    self.check_ranges(inside, &facts.and(conditions))?;
                }
                return self.check_ranges(outside, facts);
            }
            Expr::Float(_)
            | Expr::Unary(..)
            | Expr::Binary(..)
            | Expr::Select { .. }
            | Expr::Cast(..)
            | Expr::Bits(..) => {}
        }
        expr.children().try_for_each(|child| self.check_ranges(child, facts))
    }

    fn check_gathered_ranges(&self, index: &Index, facts: &StageFacts) -> Result<(), WorkloadError> {
        index.terms().iter().try_for_each(|(atom, _)| match atom {
            Atom::Var(_) => Ok(()),
            Atom::FloorDiv(inner, _) | Atom::Modulo(inner, _) => self.check_gathered_ranges(inner, facts),
            Atom::Value(expr) => self.check_ranges(expr, facts),
        })
    }
}

/// Whether `0 <= index < extent` can be shown, or depends on gathered values only.
fn stays_inside(index: &Index, most: i64, extent: Option<&Index>, facts: &StageFacts) -> bool {
    is_below(index, most, facts) && extent.is_none_or(|extent| index.has_value() || facts.is_within(index, extent))
}

fn is_below(index: &Index, extent: i64, facts: &StageFacts) -> bool {
    if index.has_value() && facts.range(index).is_none() {
        return true;
    }
    if facts.range(index).is_some_and(|r| r.low >= 0 && r.high < extent) {
        return true;
    }
    index.has_value() || try_points(index, extent, facts)
}

/// Tries every point of the axes that the index and the conditions mention, if they are few.
fn try_points(index: &Index, extent: i64, facts: &StageFacts) -> bool {
    let conditions: Vec<&Condition> = facts.conditions().iter().filter(|c| !c.index.has_value()).collect();
    let mut vars = BTreeSet::new();
    for index in conditions.iter().map(|c| &c.index).chain([index]) {
        index.for_each_var(&mut |var| {
            vars.insert(var);
        });
    }
    let ranges: Vec<_> = vars.iter().map(|v| (*v, facts.var_range(*v))).collect();
    let points = ranges.iter().try_fold(1i64, |p, (_, r)| p.checked_mul(r.high - r.low + 1));
    if points.is_none_or(|p| p > MAX_TRIED_POINTS) {
        return false;
    }
    let mut point: Vec<i64> = ranges.iter().map(|(_, r)| r.low).collect();
    loop {
        let at = |var: Var| ranges.iter().position(|(v, _)| *v == var).map_or(0, |i| point[i]);
        let holds = |c: &&Condition| c.index.at(&at).is_some_and(|x| c.low <= x && x < c.high);
        if conditions.iter().all(holds) && !index.at(&at).is_some_and(|x| 0 <= x && x < extent) {
            return false;
        }
        let Some(next) = (0..point.len()).rev().find(|i| point[*i] < ranges[*i].1.high) else { return true };
        point[next] += 1;
        for later in next + 1..point.len() {
            point[later] = ranges[later].1.low;
        }
    }
}

impl Combiner {
    /// As it is spelled in texts.
    pub fn name(self) -> &'static str {
        match self {
            Combiner::Sum => "sum",
            Combiner::Product => "prod",
            Combiner::Maximum => "maxof",
            Combiner::Minimum => "minof",
        }
    }

    pub fn from_name(name: &str) -> Option<Combiner> {
        use Combiner::{Maximum, Minimum, Product, Sum};
        [Sum, Product, Maximum, Minimum].into_iter().find(|c| c.name() == name)
    }
}
