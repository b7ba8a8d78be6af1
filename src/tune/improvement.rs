//! How much faster a task's best program is expected to become by measuring one more.
//!
//! The curve that is expected of any task is a power of the number of programs measured. It was fitted to the
//! searches that the corpus holds from their first program on (`lm` on 4,625 tasks and two machines;
//! `tools/corpus/improvement_curve.py`), for improvements as natural logarithms. What a task gained itself
//! moves it up or down, by the ratio of what the last programs gained and what was expected of them: the
//! posterior mean of a rate under a gamma prior (Gelman et al., Bayesian Data Analysis, section 2.6), of
//! which older programs count half as much with each further one. In the corpus that ratio says little: at
//! its best, the prior weighs as much as twenty programs.

/// Expected improvement by the second program.
const SECOND: f64 = 0.104;
/// The exponent by which it falls with the number of programs.
const FALL: f64 = 1.16;
/// How fast what was gained is forgotten, per program.
const FADE: f64 = 0.5;
/// Programs that the prior weighs as much as.
const PRIOR_PROGRAMS: f64 = 20.0;
/// The most that a program is taken to have gained: factors beyond it tell how bad the first one was.
const MOST: f64 = 1.0;

/// What a task has gained lately.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub(super) struct Improvement {
    /// Natural logarithms of the quotients of the best times before and after, faded.
    gained: f64,
    /// What was expected of the same programs.
    expected: f64,
}

impl Improvement {
    /// Takes note of a program behind `measured` others, which brought the best time from `before` to `now`.
    pub fn observe(&mut self, measured: u64, before: u64, now: u64) {
        let gained = (before.max(1) as f64 / now.max(1) as f64).ln();
        self.gained = FADE * self.gained + gained.clamp(0.0, MOST);
        self.expected = FADE * self.expected + prior(measured);
    }

    /// The part of the best time that the next program behind `measured` others is expected to save.
    pub fn next(&self, measured: u64) -> f64 {
        let prior = prior(measured);
        let weight = PRIOR_PROGRAMS * prior;
        let rate = (weight + self.gained) / (weight + self.expected);
        1.0 - (-rate * prior).exp()
    }
}

/// What is expected of the next program of any task.
fn prior(measured: u64) -> f64 {
    SECOND * (measured.max(1) as f64).powf(-FALL)
}

#[cfg(test)]
mod tests {
    use super::Improvement;

    #[test]
    fn the_prior_falls_with_what_was_measured() {
        let improvement = Improvement::default();
        let next = [1, 2, 10, 100].map(|measured| improvement.next(measured));
        // 0.104, by 2, 10 and 100 to the power of 1.16
        let expected = [0.104, 0.046_542, 0.007_195, 0.000_497_8].map(|log: f64| 1.0 - (-log).exp());
        for (next, expected) in next.into_iter().zip(expected) {
            assert!((next / expected - 1.0).abs() < 1e-3, "{next} {expected}");
        }
        assert_eq!(improvement.next(0), improvement.next(1));
    }

    #[test]
    fn what_was_gained_moves_it_and_is_forgotten() {
        let (mut gains, mut stays) = (Improvement::default(), Improvement::default());
        gains.observe(10, 1000, 900);
        stays.observe(10, 1000, 1000);
        let before = Improvement::default().next(11);
        assert!(gains.next(11) > 1.3 * before && stays.next(11) < before && stays.next(11) > 0.9 * before);
        for measured in 11..31 {
            gains.observe(measured, 900, 900);
        }
        let (after, prior) = (gains.next(31), Improvement::default().next(31));
        assert!((0.85 * prior..prior).contains(&after), "{after} {prior}");
        // a first program that was hopelessly slow says no more than one that was bad, and a time that comes
        // out longer nothing
        let (mut hopeless, mut bad) = (Improvement::default(), Improvement::default());
        hopeless.observe(1, u64::MAX, 1);
        bad.observe(1, 1000, 100);
        assert_eq!(hopeless, bad);
        bad.observe(2, 100, 110);
        assert!(bad.next(3).is_finite() && bad.gained == 0.5);
    }
}
