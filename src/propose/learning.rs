//! The order in which a search measures programs that are there already.

use std::collections::HashMap;

use super::pool::{Valued, by_value, in_order};
use super::{Candidate, History};
use crate::model::Estimators;
use crate::rank::{Described, RankError, Ranking};
use crate::space::{Space, Trace};
use crate::target::Task;

/// The first `count` of distinct programs of a task, in the order in which `lm` would measure them if it had
/// no others: batch by batch, each chosen by an estimator that was shown the batches before. `time_of` says
/// what measuring a program gives, `batch` how many are measured together after so many.
///
/// # Errors
/// As [`Ranking::estimator`].
pub fn learned_order(
    (space, task): (&Space, &Task),
    estimators: &Estimators,
    programs: &[Described],
    time_of: &dyn Fn(usize) -> Option<u64>,
    batch: &dyn Fn(usize) -> usize,
    count: usize,
) -> Result<Vec<usize>, RankError> {
    let mut ranking = Ranking::new(space, Some(estimators.clone()), 0);
    let numbers: HashMap<&Trace, usize> =
        programs.iter().enumerate().map(|(number, program)| (&program.trace, number)).collect();
    let (mut history, mut order) = (History::default(), Vec::new());
    let mut left: Vec<usize> = (0..programs.len()).collect();
    let count = count.min(programs.len());
    while order.len() < count {
        let estimator = ranking.estimator(task, &history)?;
        let valued = |number: &usize| {
            let Described { trace, features } = &programs[*number];
            Valued::new(Candidate::new(trace.clone()), features.clone(), estimator.as_ref())
        };
        let mut pool: Vec<Valued> = left.iter().map(valued).collect();
        pool.sort_by(by_value);
        let wanted = batch(order.len()).clamp(1, count - order.len());
        let chosen = in_order(pool, ranking.proposed(task).iter(), estimator.as_ref(), wanted);
        let chosen: Vec<usize> =
            chosen.iter().take(wanted).filter_map(|valued| numbers.get(&valued.candidate.trace).copied()).collect();
        for number in &chosen {
            history.insert(programs[*number].trace.clone(), time_of(*number));
        }
        left.retain(|number| !chosen.contains(number));
        ranking.remember(task, chosen.iter().map(|number| programs[*number].clone()));
        order.extend(chosen);
    }
    Ok(order)
}

#[cfg(test)]
mod tests {
    use super::learned_order;
    use crate::model::{EstimatorOptions, Group, train_estimator};
    use crate::propose::example::product;
    use crate::propose::{History, Proposer, Random};
    use crate::rank::{Described, Ranking};
    use crate::space::Space;

    #[test]
    fn what_is_measured_changes_what_follows() {
        let (space, task) = (Space::standard(), product());
        let drawn = Random::new(&space, 1).propose(&task, &History::default(), 40).unwrap().candidates;
        let traces = drawn.into_iter().map(|candidate| candidate.trace).collect();
        let described = Ranking::new(&space, None, 1).describe(&task, traces).unwrap();
        let programs: Vec<Described> = described.into_iter().flatten().collect();
        let features: Vec<Vec<f32>> = programs.iter().map(|program| program.features.clone()).collect();
        // taken for the slower, the higher their number
        let speeds = (0..programs.len()).map(|number| -(number as f32) / 8.0).collect();
        let options = EstimatorOptions { epochs: 1, trees: 20, ..EstimatorOptions::default() };
        let estimators = train_estimator(None, &[Group { features, speeds }], &options).unwrap().into();
        let order = |time_of: &dyn Fn(usize) -> Option<u64>, count| {
            learned_order((&space, &task), &estimators, &programs, time_of, &|_| 4, count).unwrap()
        };
        let all = order(&|number| Some(1000 + 100 * number as u64), usize::MAX);
        let mut sorted = all.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..programs.len()).collect::<Vec<usize>>(), "each once");
        assert!(order(&|_| Some(1), 7) == order(&|_| Some(1), 9)[..7]);
        // the first batch knows nothing of times; the next does, and of failures, too
        let other = order(&|number| (number % 2 == 0).then_some(100_000 - 100 * number as u64), usize::MAX);
        assert_eq!(all[..4], other[..4]);
        assert_ne!(all, other);
    }
}
