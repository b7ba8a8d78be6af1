//! What is computed from constants when a program is made shorter.

use std::collections::BTreeSet;

use crate::graph::lower::math::{literal, var};
use crate::graph::{Program, TensorData, fold};
use crate::workload::{Combiner, DType, Expr, Extents, Index, Stage, TensorId, Var};

/// No more points are gone through for one constant.
const MAX_POINTS: i64 = 1 << 28;

/// The elements of an expression of constants, over those axes of a stage that it depends on.
#[derive(Clone, Debug)]
pub struct Known {
    pub data: TensorData,
    /// Of the stage, by dimension of the data.
    axes: Vec<usize>,
}

/// Which axes of the stage a value is summed over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Over {
    Nothing,
    Reduction,
}

impl Known {
    /// Computes `value`, an expression over a stage's axes; `None` where it is known only when the network
    /// runs, or takes too long.
    pub fn new(program: &Program, stage: &Stage, value: &Expr, dtype: DType, over: Over) -> Option<Known> {
        let first = stage.spatial.len();
        let reduced: Vec<usize> = if over == Over::Reduction { (first..stage.rank()).collect() } else { vec![] };
        let is_own = |axis: &usize| value.mentions(Var(*axis as u32)) && !reduced.contains(axis);
        let axes: Vec<usize> = (0..stage.rank()).filter(is_own).collect();
        let all: Vec<usize> = axes.iter().chain(&reduced).copied().collect();
        let mut is_known = all.iter().all(|axis| stage.extents.get(*axis).is_none());
        value.for_each_load(&mut |tensor, _| is_known &= program.data[tensor.0 as usize].is_some());
        if !is_known || value.any_var(&|var| var.as_parameter().is_some()) {
            return None;
        }
        let extents = |axes: &[usize]| axes.iter().map(|axis| stage.extent(*axis)).collect::<Vec<i64>>();
        let place = |var: Var| all.iter().position(|axis| *axis == var.0 as usize).map(self::var);
        let own = Stage {
            output: TensorId(program.tensors.len() as u32),
            spatial: extents(&axes),
            reduction: extents(&reduced),
            combiner: (!reduced.is_empty()).then_some(Combiner::Sum),
            value: value.substitute(&place),
            extents: Extents::fixed(),
        };
        if own.points() > MAX_POINTS {
            return None;
        }
        let data = fold::evaluate(program, &own, dtype).ok()?;
        Some(Known { data, axes })
    }

    /// What all elements are, if they are equal.
    pub fn uniform(&self) -> Option<f64> {
        let size = self.data.dtype.bytes();
        let first = self.data.bytes.get(..size)?;
        let is_uniform = self.data.bytes.chunks_exact(size).all(|element| element == first);
        let first = TensorData { shape: vec![], dtype: self.data.dtype, bytes: self.data.bytes.slice(..size) };
        is_uniform.then(|| first.to_f64().first().copied()).flatten()
    }

    /// The elements as an expression over the stage's axes: a literal, or a constant of the program.
    pub fn read(&self, program: &mut Program) -> Expr {
        match self.uniform().filter(|value| value.is_finite()) {
            Some(value) => literal(self.data.dtype, value),
            None => {
                let indices: Vec<Index> = self.axes.iter().map(|axis| var(*axis)).collect();
                Expr::load(program.add_constant(self.data.clone()), indices)
            }
        }
    }

    /// Other elements over the same axes.
    pub fn of_type(&self, dtype: DType, elements: impl Iterator<Item = i64>) -> Known {
        let data = TensorData::from_f64(self.data.shape.clone(), dtype, elements.map(|element| element as f64));
        Known { data, axes: self.axes.clone() }
    }

    /// The elements as a constant of the program, and where its element for the point of the stage lies.
    pub fn stored(&self, program: &mut Program) -> (TensorId, Vec<Index>) {
        (program.add_constant(self.data.clone()), self.axes.iter().map(|axis| var(*axis)).collect())
    }

    /// The least and the greatest element of integers.
    pub fn range(&self) -> Option<(i64, i64)> {
        let elements: BTreeSet<i64> = self.data.integers()?.into_iter().collect();
        Some((*elements.first()?, *elements.last()?))
    }
}
