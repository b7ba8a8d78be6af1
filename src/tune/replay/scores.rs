//! What is found among programs whose times are known.

use crate::tune::compare::NOTHING_FOUND;

/// Numbers of programs that are told of: 1, 3, 10, 32, ... and the most that there are.
pub fn points(most: usize) -> Vec<usize> {
    let mut points: Vec<usize> = [1, 3, 10, 32, 100, 320, 1000, 3200].into_iter().filter(|n| *n < most).collect();
    points.push(most);
    points
}

/// The natural logarithm of a quality: the best time divided by a program's own. A program that has none
/// counts as [`NOTHING_FOUND`].
pub fn log_quality(best_ns: u64, ns: Option<u64>) -> f64 {
    ns.map_or(NOTHING_FOUND, |ns| best_ns as f64 / ns as f64).ln()
}

/// What the best of `count` is expected to be that are drawn from these at random, none twice.
pub fn expected_best(mut values: Vec<f64>, count: usize) -> f64 {
    values.sort_by(|a, b| b.total_cmp(a));
    let (all, count) = (values.len(), count.min(values.len()));
    let mut sum = 0.0;
    // that this one is drawn, and none before it
    let mut probability = count as f64 / all.max(1) as f64;
    for (at, value) in values.iter().enumerate().take(all + 1 - count) {
        sum += probability * value;
        let behind = all - 1 - at;
        probability *= behind.saturating_sub(count - 1) as f64 / behind.max(1) as f64;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::{expected_best, log_quality, points};

    #[test]
    fn the_best_of_some_is_expected_as_by_counting() {
        let values = || vec![1.0, 4.0, 2.0];
        assert!((expected_best(values(), 1) - 7.0 / 3.0).abs() < 1e-12);
        // of three pairs, two hold the 4
        assert!((expected_best(values(), 2) - (2.0 * 4.0 + 2.0) / 3.0).abs() < 1e-12);
        assert_eq!((expected_best(values(), 3), expected_best(values(), 9)), (4.0, 4.0));
        assert_eq!((expected_best(vec![5.0], 1), expected_best(Vec::new(), 3)), (5.0, 0.0));
        // 252 fives of ten, of which 126, 70, 35, 15, 5 and 1 have their best at each of the first six
        let many: Vec<f64> = (0..10).map(f64::from).collect();
        let counted = [126.0, 70.0, 35.0, 15.0, 5.0, 1.0].iter().zip(0..).map(|(n, at)| n * (9.0 - f64::from(at)));
        assert!((expected_best(many, 5) - counted.sum::<f64>() / 252.0).abs() < 1e-12);
    }

    #[test]
    fn qualities_are_logarithms_and_failures_count() {
        assert!((log_quality(50, Some(100)) - 0.5f64.ln()).abs() < 1e-12);
        assert!((log_quality(50, None) - 0.01f64.ln()).abs() < 1e-12);
        assert_eq!((points(1), points(32), points(50)), (vec![1], vec![1, 3, 10, 32], vec![1, 3, 10, 32, 50]));
    }
}
