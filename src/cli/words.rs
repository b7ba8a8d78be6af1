//! Figures in words: units that fit, and nouns that agree with their number.

use std::fmt::Display;

/// `1 task`, `2 tasks`.
pub fn counted<N: Display + PartialEq + From<u8>>(count: N, noun: &str) -> String {
    if count == N::from(1) { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

/// Nanoseconds with four digits and the unit that fits.
pub fn duration(ns: u64) -> String {
    let ns = ns as f64;
    let units = [("s", 1e9), ("ms", 1e6), ("µs", 1e3)];
    match units.into_iter().find(|(_, factor)| ns >= factor * 0.99995) {
        Some((unit, factor)) => format!("{} {unit}", digits(ns / factor)),
        None => format!("{ns} ns"),
    }
}

/// `1.25 MiB`: three digits or four.
pub fn bytes(count: u64) -> String {
    let mut value = count as f64;
    let mut units = ["KiB", "MiB", "GiB", "TiB"].into_iter();
    let mut unit = "B";
    while value >= 1024.0
        && let Some(next) = units.next()
    {
        value /= 1024.0;
        unit = next;
    }
    match unit {
        "B" => format!("{count} B"),
        _ if value < 10.0 => format!("{value:.2} {unit}"),
        _ if value < 100.0 => format!("{value:.1} {unit}"),
        _ => format!("{value:.0} {unit}"),
    }
}

/// Operations with the unit that fits.
pub fn operations(flops: i64) -> String {
    let units = [("Tflop", 1e12), ("Gflop", 1e9), ("Mflop", 1e6), ("kflop", 1e3)];
    match units.into_iter().find(|(_, factor)| flops as f64 >= factor * 0.99995) {
        Some((unit, factor)) => format!("{} {unit}", digits(flops as f64 / factor)),
        None => format!("{flops} flop"),
    }
}

/// Four significant digits of a number of at least 1.
fn digits(value: f64) -> String {
    let places = [1000.0, 100.0, 10.0].iter().take_while(|limit| value < **limit * 0.99995).count();
    format!("{value:.places$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_fit() {
        let durations = [
            (0, "0 ns"),
            (999, "999 ns"),
            (1000, "1.000 µs"),
            (12_345, "12.35 µs"),
            (999_999, "1.000 ms"),
            (1_234_567_890, "1.235 s"),
            (123_456_789_000, "123.5 s"),
        ];
        for (ns, text) in durations {
            assert_eq!(duration(ns), text);
        }
        for (count, text) in [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (3 << 30, "3.00 GiB")] {
            assert_eq!(bytes(count), text);
        }
        for (count, text) in [(0, "0 flop"), (320, "320 flop"), (6144, "6.144 kflop"), (1_000_000, "1.000 Mflop")] {
            assert_eq!(operations(count), text);
        }
        assert_eq!([counted(0u64, "task"), counted(1, "task"), counted(2, "task")], ["0 tasks", "1 task", "2 tasks"]);
    }
}
