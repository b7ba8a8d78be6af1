//! Confidence intervals of means over tasks and seeds, by resampling.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

/// Resampled means. Their quantiles vary by about a hundredth of the interval's width.
const RESAMPLES: usize = 4000;
/// The interval holds this part of them.
const CONFIDENCE: f64 = 0.95;

/// A confidence interval.
pub type Interval = (f64, f64);

/// The mean over tasks of each task's mean over seeds, of values that come `N` at a time.
pub fn mean_of_means<const N: usize>(tasks: &[Vec<[f64; N]>]) -> [f64; N] {
    mean(tasks.iter().filter(|seeds| !seeds.is_empty()).map(|seeds| mean(seeds.iter().copied())))
}

/// The 95 % interval of a statistic of [`mean_of_means`]: tasks are drawn with replacement, and of each that
/// was drawn its seeds (the two-stage percentile bootstrap; Davison and Hinkley 1997, sections 3.8 and
/// 5.3). What belongs together, as runs of two methods with one seed do, stands in one array and is drawn
/// together. `None` for a single task, which says nothing about others. Equal input gives equal intervals.
pub fn interval<const N: usize>(tasks: &[Vec<[f64; N]>], statistic: impl Fn([f64; N]) -> f64) -> Option<Interval> {
    let tasks: Vec<&Vec<[f64; N]>> = tasks.iter().filter(|seeds| !seeds.is_empty()).collect();
    if tasks.len() < 2 {
        return None;
    }
    let mut random = ChaCha8Rng::seed_from_u64(0);
    let mut resampled: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            let drawn = (0..tasks.len()).map(|_| {
                let seeds = tasks[random.random_range(0..tasks.len())];
                mean((0..seeds.len()).map(|_| seeds[random.random_range(0..seeds.len())]))
            });
            statistic(mean(drawn))
        })
        .collect();
    resampled.sort_by(f64::total_cmp);
    let at = |share: f64| resampled[((RESAMPLES - 1) as f64 * share).round() as usize];
    Some((at((1.0 - CONFIDENCE) / 2.0), at((1.0 + CONFIDENCE) / 2.0)))
}

/// A geometric mean of qualities.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Score {
    pub tasks: usize,
    pub quality: f64,
    /// Its 95 % interval; none for a single task.
    pub interval: Option<Interval>,
}

impl Score {
    /// Of logarithms of qualities, by task and seed.
    pub fn of(tasks: &[Vec<[f64; 1]>]) -> Score {
        let factor = |[mean]: [f64; 1]| mean.exp();
        Score { tasks: tasks.len(), quality: factor(mean_of_means(tasks)), interval: interval(tasks, factor) }
    }
}

/// How two geometric means of qualities differ, over pairs of one task and seed.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Difference {
    pub tasks: usize,
    pub pairs: usize,
    /// The first minus the second.
    pub difference: f64,
    /// Its 95 % interval; none for a single task.
    pub interval: Option<Interval>,
    /// The first divided by the second: how many times as fast its programs are.
    pub ratio: f64,
    pub ratio_interval: Option<Interval>,
}

impl Difference {
    /// Of logarithms of both qualities, by task and seed.
    pub fn of(tasks: &[Vec<[f64; 2]>]) -> Difference {
        let minus = |[first, second]: [f64; 2]| first.exp() - second.exp();
        let over = |[first, second]: [f64; 2]| (first - second).exp();
        let means = mean_of_means(tasks);
        Difference {
            tasks: tasks.len(),
            pairs: tasks.iter().map(Vec::len).sum(),
            difference: minus(means),
            interval: interval(tasks, minus),
            ratio: over(means),
            ratio_interval: interval(tasks, over),
        }
    }
}

fn mean<const N: usize>(values: impl Iterator<Item = [f64; N]>) -> [f64; N] {
    let (mut count, mut sum) = (0usize, [0.0; N]);
    for value in values {
        count += 1;
        sum.iter_mut().zip(value).for_each(|(sum, value)| *sum += value);
    }
    sum.map(|sum| sum / count.max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::{interval, mean_of_means};

    #[test]
    fn tasks_weigh_the_same_however_many_seeds_they_have() {
        let tasks = [vec![[1.0, 10.0], [3.0, 20.0]], vec![], vec![[6.0, 30.0]]];
        assert_eq!(mean_of_means(&tasks), [4.0, 22.5]);
        assert_eq!(mean_of_means::<1>(&[]), [0.0]);
    }

    #[test]
    fn one_task_says_nothing_and_equal_ones_leave_no_doubt() {
        assert_eq!(interval(&[vec![[1.0], [2.0]]], |[mean]| mean), None);
        assert_eq!(interval(&[vec![[1.0], [2.0]], vec![]], |[mean]| mean), None);
        let tasks = vec![vec![[2.0, 5.0]; 3]; 4];
        assert_eq!(interval(&tasks, |[one, other]| other - one), Some((3.0, 3.0)));
    }

    #[test]
    fn the_interval_is_that_of_the_mean() {
        // of 100 tasks, half 0 and half 1: the mean's deviation is 0.05
        let tasks: Vec<Vec<[f64; 1]>> = (0..100).map(|task| vec![[f64::from(task % 2)]; 2]).collect();
        let (low, high) = interval(&tasks, |[mean]| mean).unwrap();
        assert!((low - (0.5 - 0.098)).abs() < 0.011 && (high - (0.5 + 0.098)).abs() < 0.011, "{low} {high}");
        // seeds that differ widen it: each task's mean of two seeds has a deviation of 0.5 · √2 / 2 more
        let tasks: Vec<Vec<[f64; 1]>> = (0..100).map(|_| vec![[0.0], [1.0]]).collect();
        let (low, high) = interval(&tasks, |[mean]| mean).unwrap();
        let half = 1.96 * 0.5 / 200f64.sqrt();
        assert!((low - (0.5 - half)).abs() < 0.011 && (high - (0.5 + half)).abs() < 0.011, "{low} {high}");
        // what is drawn together has no spread where it always differs by the same
        let paired: Vec<Vec<[f64; 2]>> = (0..50).map(|task| vec![[f64::from(task), f64::from(task) + 2.0]]).collect();
        let (low, high) = interval(&paired, |[one, other]| other - one).unwrap();
        assert!((low - 2.0).abs() < 1e-9 && (high - 2.0).abs() < 1e-9);
    }
}
