//! Times of a candidate and of a reference that ran in turn, normalized to the machine's speed when the
//! reference was first timed.
//!
//! The speed of a machine drifts with other users of the same processor: by half within seconds on virtual
//! ones. Neighbouring runs of two programs meet the same speed, so their ratio is steady where their times
//! are not.

use std::time::Duration;

/// What was measured so far.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    /// Nanoseconds of single runs of the candidate.
    times: Vec<u64>,
    /// Nanoseconds of single runs of the reference, in the same rounds; empty where there is none.
    reference: Vec<u64>,
    /// Known time of the reference.
    known_ns: u64,
    /// Largest believable drift of the machine since the reference was timed. A larger one has befallen one
    /// of the two programs alone: when another process takes a core, a program of several threads waits for
    /// it again and again, and one of a single thread does not.
    most_drift: f64,
    /// Time spent on both.
    spent: Duration,
}

impl Rounds {
    /// With a reference of known time, on a machine whose speed drifts by this factor at most.
    pub(super) fn with_reference(known_ns: u64, most_drift: f64) -> Rounds {
        Rounds { known_ns, most_drift, ..Rounds::default() }
    }

    /// A sample of the candidate.
    pub(super) fn push(&mut self, elapsed: Duration, runs: u32) {
        self.spent += elapsed;
        self.times.push(nanoseconds(elapsed, runs));
    }

    /// A sample of the reference, in the same round.
    pub(super) fn push_reference(&mut self, elapsed: Duration, runs: u32) {
        self.spent += elapsed;
        self.reference.push(nanoseconds(elapsed, runs));
    }

    /// Counts time that gave no sample.
    pub(super) fn spend(&mut self, elapsed: Duration) {
        self.spent += elapsed;
    }

    pub(super) fn count(&self) -> usize {
        self.times.len()
    }

    pub(super) fn spent(&self) -> Duration {
        self.spent
    }

    /// Whether a third of the samples, and no fewer than `fewest`, are within this factor of the fastest.
    pub(super) fn agree(&self, fewest: usize, factor: f64) -> bool {
        let fastest = self.times.iter().copied().min().unwrap_or(0);
        let close = self.times.iter().filter(|time| **time as f64 <= fastest as f64 * factor).count();
        self.count() >= 2 * fewest && close >= fewest.max(self.count() / 3)
    }

    /// Whether the ratio to the reference errs by less than this factor.
    pub(super) fn is_settled(&self, fewest: usize, factor: f64) -> bool {
        self.reference.len() >= 2 * fewest.max(1) && self.error() <= factor - 1.0
    }

    /// Whether the ratio to the reference may err by more than this factor, or one of the two was disturbed.
    pub(super) fn is_doubtful(&self, factor: f64) -> bool {
        self.error() > factor - 1.0 || self.drift().is_some_and(|drift| !self.is_possible(drift))
    }

    /// Relative error of the median ratio: the distance of the quartiles over the root of the number of
    /// ratios.
    fn error(&self) -> f64 {
        let ratios = self.ratios();
        let count = ratios.len();
        if count == 0 { 0.0 } else { (ratios[3 * count / 4] / ratios[count / 4] - 1.0) / (count as f64).sqrt() }
    }

    /// The fastest run, normalized.
    pub(super) fn best_ns(&self) -> f64 {
        self.times.iter().copied().min().unwrap_or(0) as f64 * self.normalization()
    }

    /// All times, normalized.
    pub(super) fn normalized_times(self) -> Vec<u64> {
        let factor = self.normalization();
        self.times.into_iter().map(|time| ((time as f64 * factor).round() as u64).max(1)).collect()
    }

    /// The factor of normalized times: the drift, where it is believable, else 1.
    fn normalization(&self) -> f64 {
        self.drift().filter(|drift| self.is_possible(*drift)).unwrap_or(1.0)
    }

    /// The factor by which the machine drifted: the reference's known time, times the median ratio of
    /// neighbouring runs, over the fastest run. `None` where no reference of known time ran. The fastest runs
    /// of the two may be of different moments, so ratios are taken.
    fn drift(&self) -> Option<f64> {
        let ratios = self.ratios();
        let fastest = self.times.iter().copied().min().unwrap_or(0) as f64;
        let ratio = ratios.get(ratios.len() / 2)?;
        (fastest > 0.0 && self.known_ns > 0).then(|| self.known_ns as f64 * ratio / fastest)
    }

    fn is_possible(&self, drift: f64) -> bool {
        (1.0 / self.most_drift..=self.most_drift).contains(&drift)
    }

    /// Ratios of neighbouring runs, the smallest first.
    fn ratios(&self) -> Vec<f64> {
        let rounds = self.times.iter().zip(&self.reference);
        let mut ratios: Vec<f64> = rounds.map(|(time, other)| *time as f64 / (*other).max(1) as f64).collect();
        ratios.sort_by(f64::total_cmp);
        ratios
    }
}

pub(super) fn nanoseconds(elapsed: Duration, runs: u32) -> u64 {
    u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX) / u64::from(runs.max(1))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Rounds;

    fn rounds(known_ns: u64, times: &[(u64, u64)]) -> Rounds {
        let mut rounds = Rounds::with_reference(known_ns, 2.0);
        for (time, other) in times {
            rounds.push(Duration::from_nanos(*time), 1);
            rounds.push_reference(Duration::from_nanos(*other), 1);
        }
        rounds
    }

    #[test]
    fn times_are_normalized_to_the_reference() {
        // twice as slow as when the reference was timed, with a disturbance of each
        let rounds = rounds(100, &[(400, 200), (404, 202), (5000, 200), (400, 9000), (400, 200), (402, 201)]);
        assert_eq!(rounds.best_ns(), 200.0);
        assert_eq!(rounds.normalized_times(), [200, 202, 2500, 200, 200, 201]);
    }

    #[test]
    fn a_disturbed_reference_normalizes_nothing() {
        // ten times as slow as it is known to be, and the candidate is not
        let disturbed = [(900, 10_000), (910, 9_000), (905, 11_000)];
        assert_eq!(rounds(1000, &disturbed).normalized_times(), [900, 910, 905]);
        // a time that was told so would be the next one's measure, and so on
        let mut known = 1000;
        for _ in 0..40 {
            known = rounds(known, &disturbed).normalized_times().into_iter().min().unwrap();
        }
        assert_eq!(known, 900);
        // nor is a time believed that was recorded as too short once
        assert_eq!(rounds(10, &[(900, 1000), (910, 1000), (905, 1000)]).normalized_times(), [900, 910, 905]);
    }

    #[test]
    fn what_disagrees_is_doubtful() {
        assert!(!rounds(100, &[]).is_doubtful(1.2));
        assert!(!rounds(100, &[(200, 100), (210, 100), (205, 101)]).is_doubtful(1.2));
        assert!(rounds(100, &[(200, 100), (210, 9000), (205, 8000)]).is_doubtful(1.2));
        // in agreement, but with the reference five times as slow as it is known to be
        assert!(rounds(100, &[(200, 500), (210, 500), (205, 500)]).is_doubtful(1.2));
    }

    #[test]
    fn without_a_reference_times_are_as_measured() {
        let mut alone = Rounds::default();
        alone.push(Duration::from_nanos(90), 3);
        alone.push(Duration::from_nanos(40), 1);
        assert_eq!((alone.best_ns(), alone.spent()), (30.0, Duration::from_nanos(130)));
        assert_eq!(alone.normalized_times(), [30, 40]);
        // nor does anything compare with a program that is said to take no time
        assert_eq!(rounds(0, &[(400, 200), (500, 200)]).normalized_times(), [400, 500]);
    }

    #[test]
    fn what_scatters_is_not_settled() {
        let steady: Vec<(u64, u64)> = (0..6).map(|round| (1000 + round, 500)).collect();
        assert!(rounds(500, &steady).is_settled(3, 1.01));
        assert!(!rounds(500, &steady[..5]).is_settled(3, 1.01), "too few");
        let scattered: Vec<(u64, u64)> = (0..6).map(|round| (1000 + 100 * round, 500)).collect();
        assert!(!rounds(500, &scattered).is_settled(3, 1.01));
    }
}
