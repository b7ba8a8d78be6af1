//! Times of a candidate and of a reference that ran in turn, and the pace at which they are told.
//!
//! The pace of a machine drifts with other users of the same processor: by half within seconds on virtual ones. Neighbouring runs of two programs
//! meet the same pace, so their ratio is steady where the times are not.

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
    /// By both.
    spent: Duration,
}

impl Rounds {
    /// Beside a reference that is known to take so many nanoseconds.
    pub(super) fn beside(known_ns: u64) -> Rounds {
        Rounds { known_ns, ..Rounds::default() }
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

    /// Whether the ratio to the reference errs by less than this factor: by the distance of its quartiles, over the root of their number.
    pub(super) fn is_settled(&self, fewest: usize, factor: f64) -> bool {
        let ratios = self.ratios();
        let count = ratios.len();
        if count < 2 * fewest.max(1) {
            return false;
        }
        let width = ratios[3 * count / 4] / ratios[count / 4] - 1.0;
        width / (count as f64).sqrt() <= factor - 1.0
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

    /// What times are multiplied by, so that the fastest is what the reference is known to take, times the median ratio of neighbouring runs; 1
    /// where no reference ran whose time is known. Ratios, since the fastest runs of the two may be of different moments.
    fn pace(&self) -> f64 {
        let ratios = self.ratios();
        let fastest = self.times.iter().copied().min().unwrap_or(0) as f64;
        match ratios.get(ratios.len() / 2) {
            Some(ratio) if fastest > 0.0 && self.known_ns > 0 => self.known_ns as f64 * ratio / fastest,
            _ => 1.0,
        }
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
        let mut rounds = Rounds::beside(known_ns);
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
