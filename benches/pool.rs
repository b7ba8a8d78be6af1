//! What sharing a loop costs: an empty parallel loop on 1 to 64 threads, and 13 equal tiles on 2 of them, as
//! a share of the serial time.
//!
//! More threads than processors measure the operating system: its time slices, not the pool.

use std::hint::black_box;
use std::time::Instant;

use tilescribe::codegen::{parallel_for, set_threads};

/// Loops that are timed for each figure; the least of so many rounds counts.
const LOOPS: u32 = 2000;
const ROUNDS: u32 = 15;

/// Microseconds of a loop: the least, and the median of the rounds.
fn microseconds(mut work: impl FnMut()) -> (f64, f64) {
    work();
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let clock = Instant::now();
            (0..LOOPS).for_each(|_| work());
            clock.elapsed().as_secs_f64() * 1e6 / f64::from(LOOPS)
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    (rounds[0], rounds[rounds.len() / 2])
}

/// A few microseconds of arithmetic that no optimiser removes.
fn tile(seed: i64) {
    let mut x = seed as f64;
    (0..4000).for_each(|_| x = black_box(x * 0.999 + 1.0));
}

fn main() {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    println!("{processors} processors; microseconds for a loop, least and median of {ROUNDS} rounds of {LOOPS}");
    for threads in [1, 2, 4, 8, 16, 32, 64] {
        set_threads(threads);
        let (least, median) = microseconds(|| parallel_for(threads as i64, threads as i64, |_, _, _| ()));
        let beyond = if threads > processors { " (more threads than processors)" } else { "" };
        println!("fork and join, {threads:>2} threads: {least:8.2} {median:8.2}{beyond}");
    }
    for (tiles, threads) in [(13, 2), (14, 2), (64, 2)] {
        set_threads(threads);
        let serial = microseconds(|| (0..tiles).for_each(tile)).0;
        let shared = microseconds(|| {
            parallel_for(tiles, threads as i64, |begin, end, _| (begin..end).for_each(tile));
        });
        let best = (tiles as f64 / threads as f64).ceil() / tiles as f64;
        println!(
            "{tiles} tiles on {threads} threads: {:.3} of the serial time of {serial:.1}; {best:.3} at best",
            shared.0 / serial
        );
    }
}
