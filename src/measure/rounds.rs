//! Times of a candidate and of a reference that ran in turn, and the pace at which they are told.
//!
//! The pace of a machine drifts with other users of the same processor: by half within seconds on virtual
//! ones. Neighbouring runs of two programs meet the same pace, so their ratio is steady where the times are
//! not.

use std::time::Duration;

/// What was measured so far.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    /// Nanoseconds of single runs of the candidate.
    times: Vec<u64>,
    /// Of the reference, in the same rounds; empty where there is none.
    beside: Vec<u64>,
    /// What the reference is known to take.
    known_ns: u64,
    /// The most that the pace of the machine is believed to have changed since the reference was timed. Where
    /// more is found, something befell one of the two alone: when another process takes a core, a program of
    /// several threads waits for it again and again, and one of a single thread does not.
    most_drift: f64,
    /// By both.
    spent: Duration,
}

impl Rounds {
    /// Beside a reference that is known to take so many nanoseconds, on a machine whose pace changes by such
    /// a factor at most.
    pub(super) fn beside(known_ns: u64, most_drift: f64) -> Rounds {
        Rounds { known_ns, most_drift, ..Rounds::default() }
    }

    /// A sample of the candidate.
    pub(super) fn push(&mut self, elapsed: Duration, runs: u32) {
        self.spent += elapsed;
        self.times.push(nanoseconds(elapsed, runs));
    }

    /// A sample of the reference, in the same round.
    pub(super) fn push_beside(&mut self, elapsed: Duration, runs: u32) {
        self.spent += elapsed;
        self.beside.push(nanoseconds(elapsed, runs));
    }

    /// What went by without a sample.
    pub(super) fn spend(&mut self, elapsed: Duration) {
        self.spent += elapsed;
    }

    pub(super) fn count(&self) -> usize {
        self.times.len()
    }

    pub(super) fn spent(&self) -> Duration {
        self.spent
    }

    /// Whether so many samples at least, and a third of all, are within this factor of the fastest.
    pub(super) fn agree(&self, fewest: usize, factor: f64) -> bool {
        let fastest = self.times.iter().copied().min().unwrap_or(0);
        let close = self.times.iter().filter(|time| **time as f64 <= fastest as f64 * factor).count();
        self.count() >= 2 * fewest && close >= fewest.max(self.count() / 3)
    }

    /// Whether the ratio to the reference errs by less than this factor.
    pub(super) fn is_settled(&self, fewest: usize, factor: f64) -> bool {
        self.beside.len() >= 2 * fewest.max(1) && self.error() <= factor - 1.0
    }

    /// Whether the ratio to the reference may err by more than this factor, or one of the two was disturbed.
    pub(super) fn is_doubtful(&self, factor: f64) -> bool {
        self.error() > factor - 1.0 || self.drift().is_some_and(|drift| !self.is_possible(drift))
    }

    /// By what part the median ratio may err: by the distance of the quartiles, over the root of their
    /// number.
    fn error(&self) -> f64 {
        let ratios = self.ratios();
        let count = ratios.len();
        if count == 0 { 0.0 } else { (ratios[3 * count / 4] / ratios[count / 4] - 1.0) / (count as f64).sqrt() }
    }

    /// The fastest run, at the reference's pace.
    pub(super) fn best_ns(&self) -> f64 {
        self.times.iter().copied().min().unwrap_or(0) as f64 * self.pace()
    }

    /// All times, at the reference's pace.
    pub(super) fn told(self) -> Vec<u64> {
        let pace = self.pace();
        self.times.into_iter().map(|time| ((time as f64 * pace).round() as u64).max(1)).collect()
    }

    /// What times are multiplied by: the drift of the machine, if it can be that.
    fn pace(&self) -> f64 {
        self.drift().filter(|drift| self.is_possible(*drift)).unwrap_or(1.0)
    }

    /// By what factor times are too long or too short, if the fastest is what the reference is known to take,
    /// times the median ratio of neighbouring runs; `None` where no reference ran whose time is known.
    /// Ratios, since the fastest runs of the two may be of different moments.
    fn drift(&self) -> Option<f64> {
        let ratios = self.ratios();
        let fastest = self.times.iter().copied().min().unwrap_or(0) as f64;
        let ratio = ratios.get(ratios.len() / 2)?;
        (fastest > 0.0 && self.known_ns > 0).then(|| self.known_ns as f64 * ratio / fastest)
    }

    fn is_possible(&self, drift: f64) -> bool {
        (1.0 / self.most_drift..=self.most_drift).contains(&drift)
    }

    /// Of neighbouring runs, the smallest first.
    fn ratios(&self) -> Vec<f64> {
        let rounds = self.times.iter().zip(&self.beside);
        let mut ratios: Vec<f64> = rounds.map(|(time, beside)| *time as f64 / (*beside).max(1) as f64).collect();
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
        let mut rounds = Rounds::beside(known_ns, 2.0);
        for (time, beside) in times {
            rounds.push(Duration::from_nanos(*time), 1);
            rounds.push_beside(Duration::from_nanos(*beside), 1);
        }
        rounds
    }

    #[test]
    fn the_reference_sets_the_pace() {
        // twice as slow as when the reference was timed, with a disturbance of each
        let rounds = rounds(100, &[(400, 200), (404, 202), (5000, 200), (400, 9000), (400, 200), (402, 201)]);
        assert_eq!(rounds.best_ns(), 200.0);
        assert_eq!(rounds.told(), [200, 202, 2500, 200, 200, 201]);
    }

    #[test]
    fn a_reference_that_was_disturbed_sets_no_pace() {
        // ten times as slow as it is known to be, and the candidate is not
        let disturbed = [(900, 10_000), (910, 9_000), (905, 11_000)];
        assert_eq!(rounds(1000, &disturbed).told(), [900, 910, 905]);
        // a time that was told so would be the next one's measure, and so on
        let mut known = 1000;
        for _ in 0..40 {
            known = rounds(known, &disturbed).told().into_iter().min().unwrap();
        }
        assert_eq!(known, 900);
        // nor is a time believed any more that was told too short once
        assert_eq!(rounds(10, &[(900, 1000), (910, 1000), (905, 1000)]).told(), [900, 910, 905]);
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
        assert_eq!(alone.told(), [30, 40]);
        // nor does anything compare with a program that is said to take no time
        assert_eq!(rounds(0, &[(400, 200), (500, 200)]).told(), [400, 500]);
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
