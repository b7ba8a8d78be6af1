//! Where programs of run-time extents are to be fast: values of a network's symbols, and what tasks are tuned
//! at for them.

use thiserror::Error;

use super::symbol::{self, Origin, Symbol, Symbols};
use super::{Callee, Network, Region, RegionKind};
use crate::workload::{MAX_POINTS_TIMED, Parameter};

/// A point that no run of the network can have.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum PointError {
    #[error("{name} is {found}; the network takes {values}")]
    Range { name: String, found: i64, values: String },
    #[error("no run has the extents {0}")]
    Requirement(String),
}

impl Symbols {
    /// Values of all symbols, from those of symbols that are extents of inputs: `of` gives one for a name, or
    /// leaves it to the middle of the range, by ratio.
    ///
    /// # Errors
    /// [`PointError`] for values that the network does not take.
    pub fn point(&self, of: impl Fn(&str) -> Option<i64>) -> Result<Vec<i64>, PointError> {
        self.completed(|symbol| of(&symbol.name).unwrap_or_else(|| between(symbol, 0.5)))
    }

    fn completed(&self, of: impl Fn(&Symbol) -> i64) -> Result<Vec<i64>, PointError> {
        let mut values = Vec::with_capacity(self.list.len());
        for symbol in &self.list {
            let found = match &symbol.origin {
                origin if origin.is_given() => of(symbol),
                // few or many are found: the middle, by ratio
                Origin::Count { most } => {
                    let high = symbol::at(most, &values).unwrap_or(-1);
                    let found = Symbol { range: Parameter { low: 0, high }, ..symbol.clone() };
                    if high > 0 { between(&found, 0.5) } else { high }
                }
                origin => symbol::derived(origin, &values).unwrap_or(-1),
            };
            if !symbol.admits(found) {
                return Err(PointError::Range { name: symbol.name.clone(), found, values: symbol.values() });
            }
            values.push(found);
        }
        match self.broken_requirement(&values) {
            Some(requirement) => Err(PointError::Requirement(requirement.what.clone())),
            None => Ok(values),
        }
    }

    /// What programs are tuned at where nobody says: the least of everything; a short and a long run of the
    /// least batch; and a batch. Where an extent may be 0, it is what earlier runs have left, as in a cache
    /// of past tokens: then runs with nothing of it, and the least run with much of it, for one and many.
    pub fn usual_points(&self) -> Vec<Vec<i64>> {
        let is_batch = |Symbol { name, origin, .. }: &Symbol| {
            let leads = matches!(origin, Origin::Axis { axis: 0, .. });
            symbol::names_batch(name) || leads && !symbol::names_time(name)
        };
        let is_past = |own: &Symbol| own.range.low == 0 && own.range.high > 0 && !is_batch(own);
        let has_past = self.list.iter().any(|symbol| symbol.origin.is_given() && is_past(symbol));
        // how far along its range, by ratio, the batch is, how far the others are, and what is past
        let points: &[[Option<f64>; 3]] = if has_past { &WITH_PAST } else { &WITHOUT_PAST };
        let point = |[batch, other, past]: &[Option<f64>; 3]| {
            self.completed(|symbol| {
                let share = match (is_batch(symbol), is_past(symbol)) {
                    (true, _) => batch,
                    (false, true) => past,
                    (false, false) => other,
                };
                share.map_or(symbol.range.low, |share| between(symbol, share))
            })
        };
        let mut usual: Vec<Vec<i64>> = points.iter().map(point).filter_map(Result::ok).collect();
        usual.dedup();
        usual
    }
}

/// Shares of ranges, by ratio: of the batch, of other extents, and of what may be 0. `None` is the low end,
/// even if that is 0.
const WITHOUT_PAST: [[Option<f64>; 3]; 4] = [
    [Some(0.0), Some(0.0), None],
    [Some(0.0), Some(0.5), None],
    [Some(0.0), Some(0.75), None],
    [Some(0.5), Some(0.5), None],
];
const WITH_PAST: [[Option<f64>; 3]; 5] = [
    [Some(0.0), Some(0.5), None],
    [Some(0.0), Some(0.75), None],
    [Some(0.0), Some(0.0), Some(0.75)],
    [Some(0.5), Some(0.5), None],
    [Some(0.5), Some(0.0), Some(0.75)],
];

/// A value between the ends of a symbol's range, by ratio; 0 is no end of a ratio.
fn between(symbol: &Symbol, share: f64) -> i64 {
    let Symbol { range, multiple, .. } = symbol;
    let least = range.low.max(1).min(range.high);
    let ratio = range.high.max(1) as f64 / least.max(1) as f64;
    let value = (least as f64 * ratio.powf(share) / *multiple as f64).round() as i64 * multiple;
    value.clamp(least, range.high)
}

impl Network {
    /// Has each task tuned at what its calls are given at these values of the symbols: at most 16 points, the
    /// first ones, of calls in order. What is repeated counts as often as it is at these points.
    pub fn tune_at(&mut self, points: &[Vec<i64>]) {
        self.weigh_at(points);
        let mut of_task: Vec<Vec<Vec<i64>>> = vec![Vec::new(); self.tasks.len()];
        for values in points {
            for call in &self.calls {
                let Callee::Task(task) = call.callee else { continue };
                let given = call.parameters.iter().map(|formula| symbol::at(formula, values));
                let Some(given) = given.collect::<Option<Vec<i64>>>() else { continue };
                let (workload, found) = (&self.tasks[task].workload, &mut of_task[task]);
                if !given.is_empty() && workload.accepts(&given) && !found.contains(&given) {
                    found.push(given);
                }
            }
        }
        for (task, mut points) in self.tasks.iter_mut().zip(of_task) {
            points.truncate(MAX_POINTS_TIMED);
            task.workload.points = points;
        }
    }

    /// Counts calls whose number is known only when the network runs: the geometric mean over these points,
    /// as their times are.
    fn weigh_at(&mut self, points: &[Vec<i64>]) {
        if points.is_empty() || !self.regions.iter().any(Region::is_open) {
            return;
        }
        let iterations = |region: &Region| {
            let most = region.expected_iterations();
            let RegionKind::Repeat { formula: Some(formula), .. } = &region.kind else { return most as f64 };
            let at = |values: &Vec<i64>| symbol::at(formula, values).unwrap_or(most).clamp(1, most);
            let logarithms = points.iter().map(|values| (at(values) as f64).ln());
            (logarithms.sum::<f64>() / points.len() as f64).exp()
        };
        let mut weights = vec![0.0; self.tasks.len()];
        for (number, call) in self.calls.iter().enumerate() {
            let Callee::Task(task) = call.callee else { continue };
            let around = self.regions.iter().filter(|region| region.calls.contains(&number));
            weights[task] += around.map(iterations).product::<f64>();
        }
        for (task, weight) in self.tasks.iter_mut().zip(weights) {
            task.weight = (weight.round() as usize).clamp(1, task.weight.max(1));
        }
    }
}
