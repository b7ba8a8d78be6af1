//! The estimator and the transformer's value head together: they err in different ways.

use serde::{Deserialize, Serialize};

use super::estimator::{SLOWEST_CALIBRATED, weights_of_two};

/// How the estimator for CPUs and the transformer's value head are weighed against each other. Both tell the
/// logarithm of a program's speed, but for a constant of the task: the former to base 2, the latter the
/// natural one.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Judgement {
    pub estimator: f32,
    pub value: f32,
}

/// What is said of the programs of a task, and what is true.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Judged {
    /// By the estimator.
    pub scores: Vec<f32>,
    /// By the value head.
    pub values: Vec<f32>,
    /// log₂ of the speed relative to the best.
    pub speeds: Vec<f32>,
}

impl Judgement {
    /// The weights that fit these tasks best (least squares, within each task); `None` where nothing fits.
    /// Tasks that neither part was trained on are meant.
    pub fn fit(tasks: &[Judged]) -> Option<Judgement> {
        let tasks = tasks.iter().filter(|task| task.speeds.len() > 1).map(|task| {
            let speeds = task.speeds.iter().map(|speed| speed.max(SLOWEST_CALIBRATED)).collect();
            ([task.scores.clone(), task.values.clone()], speeds)
        });
        let [estimator, value] = weights_of_two(tasks)?.map(|weight| weight as f32);
        Judgement { estimator, value }.checked().ok()
    }

    /// One number of both.
    pub fn of(self, score: f32, value: f32) -> f32 {
        self.estimator * score + self.value * value
    }

    /// The speed of the program that is liked best relative to the best, geometric mean over tasks.
    pub fn first(self, tasks: &[Judged]) -> f64 {
        let mut sum = 0.0;
        for task in tasks {
            let both = task.scores.iter().zip(&task.values).map(|(score, value)| self.of(*score, *value));
            let first = both.zip(&task.speeds).max_by(|a, b| a.0.total_cmp(&b.0));
            sum += first.map_or(0.0, |(_, speed)| f64::from(*speed));
        }
        (sum / tasks.len().max(1) as f64).exp2()
    }

    /// Refuses weights that no fit gives.
    pub(super) fn checked(self) -> Result<Judgement, String> {
        let Judgement { estimator, value } = self;
        let possible = |weight: f32| (0.0..=1000.0).contains(&weight);
        match possible(estimator) && possible(value) && estimator + value > 0.0 {
            true => Ok(self),
            false => Err(format!("a judgement cannot weigh its parts by {estimator} and {value}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Judged, Judgement};

    /// Two parts, each of which tells half of the truth beside some error of its own.
    fn tasks() -> Vec<Judged> {
        let wave = |i: usize, step: usize| ((i * step) % 17) as f32 / 17.0 - 0.5;
        (0..8usize)
            .map(|task| {
                let at = |i: usize| 40 * task + i;
                let members = 0..20usize;
                let truth: Vec<f32> = members.clone().map(|i| wave(at(i), 5) + wave(at(i), 7) - 1.0).collect();
                Judged {
                    scores: members.clone().map(|i| 2.0 * wave(at(i), 5) + 7.0).collect(),
                    values: members.map(|i| 0.5 * wave(at(i), 7) - task as f32).collect(),
                    speeds: truth,
                }
            })
            .collect()
    }

    #[test]
    fn both_parts_together_tell_what_each_tells_by_half() {
        let tasks = tasks();
        let both = Judgement::fit(&tasks).unwrap();
        assert!((both.estimator - 0.5).abs() < 1e-3 && (both.value - 2.0).abs() < 1e-3, "{both:?}");
        let best = |task: &Judged| task.speeds.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let ceiling = (tasks.iter().map(|task| f64::from(best(task))).sum::<f64>() / 8.0).exp2();
        let alone = Judgement { estimator: 1.0, value: 0.0 };
        assert!((both.first(&tasks) - ceiling).abs() < 1e-9 && alone.first(&tasks) < ceiling - 0.01);
        // what knows nothing, or the opposite, gets no say
        let mut blind = tasks.clone();
        blind.iter_mut().for_each(|task| task.values = task.speeds.iter().map(|speed| -speed).collect());
        let scores_alone = Judgement::fit(&blind).unwrap();
        assert!(scores_alone.value == 0.0 && scores_alone.estimator > 0.0, "{scores_alone:?}");
        assert_eq!(Judgement::fit(&[]), None);
    }

    #[test]
    fn impossible_weights_are_refused() {
        for (estimator, value) in [(f32::NAN, 1.0), (-1.0, 1.0), (0.0, 0.0), (1.0, f32::INFINITY), (1e9, 0.0)] {
            assert!(Judgement { estimator, value }.checked().is_err());
        }
        assert!(Judgement { estimator: 1.0, value: 0.0 }.checked().is_ok());
    }
}
