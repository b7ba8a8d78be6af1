//! Stages that come of constants only, and are too large to be stored: what comes of them may be small again,
//! as the bias of relative positions that a small network computes of tables of them.

use std::collections::HashMap;

use super::evaluate::evaluate_stage;
use super::step::loaded;
use super::{Program, TensorData};
use crate::workload::{DType, Stage, TensorId};

/// No larger stages are computed.
const MAX_ELEMENTS: i64 = 1 << 24;
/// Nor any with more points than this, those that they come of included.
const MAX_POINTS: i64 = 1 << 26;

/// Such a stage.
#[derive(Debug)]
pub struct Bulky {
    stage: Stage,
    dtype: DType,
    /// Elements of the constants that it comes of.
    read: i64,
    /// Its own points, and those of the bulky stages that it comes of.
    points: i64,
    /// Its elements, once something else is computed from them.
    data: Option<TensorData>,
}

/// All of a program, by what they write.
#[derive(Default, Debug)]
pub struct AllBulky(HashMap<TensorId, Bulky>);

impl Bulky {
    /// A stage that reads nothing but constants and others like it.
    pub fn new(program: &Program, others: &AllBulky, stage: &Stage, dtype: DType) -> Bulky {
        let (mut read, mut points) = (0_i64, stage.points());
        for tensor in loaded(&stage.value) {
            let (its_read, its_points) = match others.0.get(&tensor) {
                Some(other) => (other.read, other.points),
                None => (program.tensor(tensor).elements(), 0),
            };
            (read, points) = (read.saturating_add(its_read), points.saturating_add(its_points));
        }
        Bulky { stage: stage.clone(), dtype, read, points, data: None }
    }

    /// Elements of the constants that it comes of.
    pub fn read(&self) -> i64 {
        self.read
    }

    /// Whether something may be computed from its elements.
    pub fn is_computable(&self) -> bool {
        self.stage.spatial.iter().product::<i64>() <= MAX_ELEMENTS && self.points <= MAX_POINTS
    }
}

impl AllBulky {
    pub fn contains(&self, tensor: TensorId) -> bool {
        self.0.contains_key(&tensor)
    }

    pub fn insert(&mut self, tensor: TensorId, bulky: Bulky) {
        self.0.insert(tensor, bulky);
    }

    /// The stage that writes a tensor has changed.
    pub fn forget(&mut self, tensor: TensorId) {
        self.0.remove(&tensor);
    }

    /// Those that a stage comes of whose elements are not known yet, each behind those that it comes of.
    pub fn missing(&self, stage: &Stage) -> Vec<TensorId> {
        let mut ordered = Vec::new();
        let mut open = vec![(None, loaded(&stage.value))];
        while let Some((writes, mut loads)) = open.pop() {
            let Some(load) = loads.pop_first() else {
                ordered.extend(writes);
                continue;
            };
            open.push((writes, loads));
            let is_missing = |other: &&Bulky| other.data.is_none() && !ordered.contains(&load);
            open.extend(self.0.get(&load).filter(is_missing).map(|other| (Some(load), loaded(&other.stage.value))));
        }
        ordered
    }

    /// Points of one of them.
    pub fn points(&self, tensor: TensorId) -> i64 {
        self.0.get(&tensor).map_or(0, |found| found.stage.points())
    }

    /// Computes one of them, of which nothing is [`AllBulky::missing`].
    ///
    /// # Errors
    /// As [`AllBulky::evaluate`].
    pub fn compute(&mut self, program: &Program, tensor: TensorId) -> Result<(), String> {
        let Some(found) = self.0.get(&tensor) else { return Ok(()) };
        let data = self.evaluate(program, &found.stage, found.dtype)?;
        self.0.entry(tensor).and_modify(|found| found.data = Some(data));
        Ok(())
    }

    /// The elements of a stage that reads constants and computed stages.
    ///
    /// # Errors
    /// The message of the evaluator, where constants do not allow to compute it (a division of integers by 0,
    /// say).
    pub fn evaluate(&self, program: &Program, stage: &Stage, dtype: DType) -> Result<TensorData, String> {
        let computed = |tensor: TensorId| self.0.get(&tensor).and_then(|found| found.data.as_ref());
        let find = |tensor: TensorId| program.data[tensor.0 as usize].as_ref().or_else(|| computed(tensor));
        evaluate_stage(&find, stage, dtype, "constant").map_err(|error| error.to_string())
    }
}
