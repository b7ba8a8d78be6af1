//! Where in a range of extents something holds.

use crate::workload::Parameter;

/// Values of a range that are tried.
const MAX_SAMPLES: i64 = 1 << 12;

/// The longest run of values in a range for which something holds, as far as [`MAX_SAMPLES`]
/// of it tell; to its ends it is followed exactly.
pub fn longest_run(range: Parameter, holds: &dyn Fn(i64) -> bool) -> Option<Parameter> {
    let step = ((range.high - range.low) / MAX_SAMPLES).max(1);
    // between a value for which it holds and one for which it does not, the last for which it does
    let last = |mut inside: i64, mut outside: i64| {
        while (outside - inside).abs() > 1 {
            let middle = inside + (outside - inside) / 2;
            if holds(middle) { inside = middle } else { outside = middle }
        }
        inside
    };
    let (mut longest, mut start): (Option<Parameter>, Option<i64>) = (None, None);
    let mut sample = range.low;
    while sample <= range.high + step {
        match (sample <= range.high && holds(sample), start) {
            (true, None) if sample == range.low => start = Some(sample),
            (true, None) => start = Some(last(sample, sample - step)),
            (false, Some(low)) => {
                let found = Parameter { low, high: last(sample - step, sample.min(range.high + 1)) };
                longest = longest.filter(|known| known.high - known.low >= found.high - found.low).or(Some(found));
                start = None;
            }
            _ => {}
        }
        sample += step;
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_run_is_found_to_its_ends() {
        let of = |low, high, holds: &dyn Fn(i64) -> bool| {
            longest_run(Parameter { low, high }, holds).map(|run| (run.low, run.high))
        };
        assert_eq!(of(400, 524_288, &|value| value < 32_000), Some((400, 31_999)));
        assert_eq!(of(1, 100_000, &|value| (777..=2_000).contains(&value) || value == 90_000), Some((777, 2_000)));
        assert_eq!(of(5, 9, &|value| value != 6), Some((7, 9)));
        assert_eq!(of(5, 9, &|value| value == 9), Some((9, 9)));
        assert_eq!(of(3, 3, &|_| true), Some((3, 3)));
        assert_eq!(of(0, 1 << 30, &|_| true), Some((0, 1 << 30)));
        assert_eq!(of(0, 50, &|_| false), None);
    }
}
