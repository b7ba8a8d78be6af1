//! Tensors and stages whose extents are known when the network runs.
//!
//! Rules see shapes that say what extents are at most. Where a stage reads a tensor at a plain axis, the axis
//! runs as far as that dimension does; what runs otherwise says so ([`Builder::map_over`]).

use super::builder::{Builder, broadcast_shape};
use super::formulas::Conflict;
use super::operator::Problem;
use crate::graph::symbol::{Symbol, Symbols};
use crate::workload::{Atom, Combiner, Condition, DType, Expr, Extents, Index, Stage, StageFacts, TensorId, Var};

impl Builder {
    /// A symbol that inputs have as an extent.
    pub fn add_symbol(&mut self, symbol: Symbol) -> Var {
        self.formulas.symbols.add(symbol)
    }

    /// A formula is at least 0: a run is refused in which it is not.
    pub fn assume(&mut self, formula: &Index) {
        self.formulas.assume(formula);
    }

    /// Why the last problem arose, if other values of the symbols would avoid it.
    pub fn conflict(&self) -> Option<&Conflict> {
        self.formulas.conflict.as_ref()
    }

    /// What the extents of the network depend on.
    pub fn symbols(&self) -> &Symbols {
        &self.formulas.symbols
    }

    /// The formulas of a tensor's extents.
    pub fn extents(&self, tensor: TensorId) -> Vec<Index> {
        self.tensor(tensor).formulas()
    }

    /// The lesser of two formulas.
    ///
    /// # Errors
    /// [`Problem`] where it may be negative, or is too large.
    pub fn lesser(&mut self, x: &Index, y: &Index) -> Result<Index, Problem> {
        self.formulas.lesser(x, y)
    }

    /// Whether a number is 0 in every run in which another one is.
    pub fn vanishes_with(&self, number: &Index, other: &Index) -> bool {
        self.formulas.vanishes_with(number, other)
    }

    /// Whether some of a tensor's extents are known only when the network runs.
    pub fn is_run_time(&self, tensor: TensorId) -> bool {
        !self.tensor(tensor).extents.is_fixed()
    }

    /// What shapes come to when they are broadcast: 1 gives way to all others, which are the same.
    ///
    /// # Errors
    /// [`Problem::Shape`] where they do not fit.
    pub(super) fn broadcast_extents(&mut self, shapes: &[Vec<Index>]) -> Result<Vec<Index>, Problem> {
        let rank = shapes.iter().map(Vec::len).max().unwrap_or(0);
        let one = Index::constant(1);
        let mut result = vec![one.clone(); rank];
        for shape in shapes {
            for (extent, own) in result[rank - shape.len()..].iter_mut().zip(shape) {
                if *extent == one {
                    extent.clone_from(own);
                } else if *own != one {
                    self.formulas.unify(extent, own)?;
                }
            }
        }
        Ok(result)
    }

    /// The shape to which tensors broadcast, at most.
    ///
    /// # Errors
    /// As [`Builder::broadcast_extents`].
    pub(super) fn broadcast_shape_of(&mut self, tensors: &[TensorId]) -> Result<Vec<i64>, Problem> {
        if !tensors.iter().any(|tensor| self.is_run_time(*tensor)) {
            let shapes: Vec<Vec<i64>> = tensors.iter().map(|tensor| self.shape(*tensor)).collect();
            return broadcast_shape(&shapes);
        }
        let shapes: Vec<Vec<Index>> = tensors.iter().map(|tensor| self.extents(*tensor)).collect();
        self.broadcast_extents(&shapes)?.iter().map(|extent| self.formulas.most(extent)).collect()
    }

    /// Two dimensions of tensors have the same extent.
    ///
    /// # Errors
    /// `misfit` where both are fixed and differ, [`Problem::Shape`] where they may differ in a run.
    pub fn unify_dimensions(
        &mut self,
        a: (TensorId, usize),
        b: (TensorId, usize),
        misfit: impl Fn() -> Problem,
    ) -> Result<(), Problem> {
        let (a, b) = (self.extents(a.0)[a.1].clone(), self.extents(b.0)[b.1].clone());
        match (a.as_constant(), b.as_constant()) {
            (Some(a), Some(b)) if a == b => Ok(()),
            (Some(_), Some(_)) => Err(misfit()),
            _ => self.formulas.unify(&a, &b),
        }
    }

    /// A dimension has the extent that something else says it has.
    ///
    /// # Errors
    /// `misfit` where it is fixed and another one, [`Problem::Shape`] where it may be in a run.
    pub(super) fn fix_dimension(
        &mut self,
        (tensor, axis): (TensorId, usize),
        extent: i64,
        misfit: impl Fn() -> Problem,
    ) -> Result<(), Problem> {
        let own = self.extents(tensor).get(axis).cloned().ok_or_else(&misfit)?;
        match own.as_constant() {
            Some(own) if own == extent => Ok(()),
            Some(_) => Err(misfit()),
            None => self.formulas.unify(&own, &Index::constant(extent)),
        }
    }

    /// An extent is no more than another.
    ///
    /// # Errors
    /// `misfit` where both are fixed and it is more, [`Problem::Shape`] where it may be in a run.
    pub(super) fn fit_into(
        &mut self,
        part: &Index,
        whole: &Index,
        misfit: impl Fn() -> Problem,
    ) -> Result<(), Problem> {
        match (part.as_constant(), whole.as_constant()) {
            (Some(part), Some(whole)) if part <= whole => Ok(()),
            (Some(_), Some(_)) => Err(misfit()),
            _ if self.formulas.is_at_most(part, whole) => Ok(()),
            _ => self.formulas.require(&whole.clone().minus(part), "what is left of an extent"),
        }
    }

    /// The operands of a matrix product fit one another: the depth, and the dimensions before, which
    /// broadcast.
    ///
    /// # Errors
    /// `misfit` for what never fits, [`Problem::Shape`] for what may not.
    pub(super) fn fit_product(
        &mut self,
        a: TensorId,
        b: TensorId,
        misfit: &dyn Fn() -> Problem,
    ) -> Result<(), Problem> {
        let (left, right) = (self.rank(a), self.rank(b));
        self.unify_dimensions((a, left - 1), (b, right.saturating_sub(2)), misfit)?;
        let batch = |builder: &Builder, tensor| -> Vec<Index> {
            let extents = builder.extents(tensor);
            extents[..extents.len().saturating_sub(2)].to_vec()
        };
        let shapes = [batch(self, a), batch(self, b)];
        self.broadcast_extents(&shapes).map(|_| ())
    }

    /// An element-wise stage over axes with these formulas.
    pub(super) fn map_over(&mut self, extents: &[Index], dtype: DType, value: Expr) -> Result<TensorId, Problem> {
        self.emit_over(extents, &[], None, dtype, value)
    }

    /// A stage that combines `value` over further axes, with formulas for all.
    pub(super) fn reduce_over(
        &mut self,
        extents: &[Index],
        reduction: &[Index],
        combiner: Combiner,
        dtype: DType,
        value: Expr,
    ) -> Result<TensorId, Problem> {
        self.emit_over(extents, reduction, Some(combiner), dtype, value)
    }

    fn emit_over(
        &mut self,
        spatial: &[Index],
        reduction: &[Index],
        combiner: Option<Combiner>,
        dtype: DType,
        value: Expr,
    ) -> Result<TensorId, Problem> {
        let mut most = |formulas: &[Index]| -> Result<Vec<i64>, Problem> {
            formulas.iter().map(|formula| self.formulas.most(formula)).collect()
        };
        let (shape, reduced) = (most(spatial)?, most(reduction)?);
        let extents = Extents::new(spatial.iter().chain(reduction).cloned().enumerate());
        self.emit_known(shape, reduced, combiner, dtype, value, extents)
    }

    /// How far the axes of a stage run that reads tensors at plain axes: as far as those dimensions do.
    ///
    /// # Errors
    /// [`Problem::Unsupported`] for a dimension whose extent is known only when the network runs that is read
    /// in another way; [`Problem::Shape`] for two at one axis whose extents may differ.
    pub(super) fn inferred_extents(&mut self, most: &[i64], value: &Expr) -> Result<Extents, Problem> {
        let mut is_run_time = value.any_var(&|var| var.as_parameter().is_some());
        value.for_each_load(&mut |tensor, _| is_run_time |= self.is_run_time(tensor));
        if !is_run_time {
            return Ok(Extents::fixed());
        }
        let (mut reads, mut guarded) = (Vec::new(), Vec::new());
        let mut is_direct = true;
        collect_reads(value, &mut Vec::new(), &mut |tensor, dimension, index, is_guarded| {
            let about = self.tensor(tensor);
            let open = about.extents.get(dimension);
            match index.as_var().filter(|var| var.as_parameter().is_none()) {
                Some(var) => {
                    let formula = about.extents.formula(dimension, about.shape[dimension]);
                    if !is_guarded(var) {
                        reads.push((var.0 as usize, formula));
                    } else if open.is_some() {
                        guarded.push((var.0 as usize, formula));
                    }
                }
                None => {
                    let constant = index.as_constant().unwrap_or(i64::MAX);
                    let least = open.and_then(|formula| self.formulas.range_of(formula)).map_or(0, |range| range.low);
                    is_direct &= open.is_none() || (0..least).contains(&constant);
                }
            }
        });
        // a guard may leave a part out: what it is about does not say how far an axis runs
        is_direct &= guarded.iter().all(|read| reads.contains(read));
        if !is_direct {
            return Err(self.unsupported_extents());
        }
        let mut extents: Vec<Option<Index>> = vec![None; most.len()];
        for (axis, formula) in reads {
            let Some(slot) = extents.get_mut(axis) else { continue };
            match slot {
                Some(known) => {
                    let known = known.clone();
                    self.formulas.unify(&known, &formula)?;
                }
                None => *slot = Some(formula),
            }
        }
        for (formula, most) in extents.iter().zip(most) {
            let Some(formula) = formula.as_ref().filter(|formula| formula.as_constant().is_none()) else { continue };
            if self.formulas.most(formula)? != *most {
                return Err(self.unsupported_extents());
            }
        }
        let known = extents.into_iter().enumerate().filter_map(|(axis, formula)| Some((axis, formula?)));
        Ok(Extents::new(known))
    }

    /// The guards that an access needs, by a map over these extents, so that it is seen to stay inside: none
    /// where the extents say that it does.
    ///
    /// # Errors
    /// As [`Builder::most`].
    pub(super) fn unproven(
        &mut self,
        tensor: TensorId,
        extents: &[Index],
        indices: &[Index],
    ) -> Result<Vec<Condition>, Problem> {
        let most = extents.iter().map(|extent| self.formulas.most(extent)).collect::<Result<Vec<_>, _>>()?;
        let stage = Stage {
            extents: Extents::new(extents.iter().cloned().enumerate()),
            ..Stage::map(tensor, most, Expr::integer(0))
        };
        let facts = StageFacts::of_stage(&stage, &self.formulas.symbols.ranges());
        let mut guards = Vec::new();
        for ((index, own), most) in indices.iter().zip(self.extents(tensor)).zip(self.shape(tensor)) {
            let is_below = facts.range(index).is_some_and(|range| range.low >= 0 && range.high < most);
            if !is_below || !facts.is_within(index, &own) {
                let open = Some(&own).filter(|extent| extent.as_constant().is_none());
                guards.extend(Condition::within(index, open, most));
            }
        }
        Ok(guards)
    }

    /// What an operator says that does not handle its input's extents.
    pub(super) fn unsupported_extents(&self) -> Problem {
        let node = self.node();
        let kind = node.split(' ').next().unwrap_or_default().to_string();
        Problem::Unsupported(format!("{kind} with run-time extents in this way"))
    }
}

type IsGuarded<'a> = &'a dyn Fn(Var) -> bool;

/// Every index of every load, with what tells whether a guard around it is about a variable.
fn collect_reads<'a>(
    value: &'a Expr,
    guards: &mut Vec<&'a Index>,
    visit: &mut dyn FnMut(TensorId, usize, &Index, IsGuarded<'_>),
) {
    if let Expr::Load { tensor, indices } = value {
        let is_guarded = |var: Var| guards.iter().any(|guard| guard.mentions(var));
        for (dimension, index) in indices.iter().enumerate() {
            visit(*tensor, dimension, index, &is_guarded);
        }
    }
    for index in own_indices(value) {
        for (atom, _) in index.terms() {
            collect_gathered(atom, guards, visit);
        }
    }
    if let Expr::Guard { conditions, inside, outside } = value {
        let before = guards.len();
        guards.extend(conditions.iter().map(|condition| &condition.index));
        collect_reads(inside, guards, visit);
        // what lies outside of the conditions is as guarded
        collect_reads(outside, guards, visit);
        guards.truncate(before);
        return;
    }
    for child in value.children() {
        collect_reads(child, guards, visit);
    }
}

fn collect_gathered<'a>(
    atom: &'a Atom,
    guards: &mut Vec<&'a Index>,
    visit: &mut dyn FnMut(TensorId, usize, &Index, IsGuarded<'_>),
) {
    match atom {
        Atom::Var(_) => {}
        Atom::FloorDiv(inner, _) | Atom::Modulo(inner, _) => {
            inner.terms().iter().for_each(|(atom, _)| collect_gathered(atom, guards, visit));
        }
        Atom::Value(expr) => collect_reads(expr, guards, visit),
    }
}

/// The indices of an expression itself.
fn own_indices(value: &Expr) -> Vec<&Index> {
    match value {
        Expr::Index(index) => vec![index],
        Expr::Load { indices, .. } => indices.iter().collect(),
        Expr::Guard { conditions, .. } => conditions.iter().map(|condition| &condition.index).collect(),
        _ => Vec::new(),
    }
}
