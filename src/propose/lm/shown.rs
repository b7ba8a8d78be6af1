//! What the model is shown of a task: programs and how fast they are, measured or expected.

use crate::language::Language;
use crate::model::{MOST_SHOWN, Position};
use crate::propose::pool::Valued;
use crate::propose::sequence::{shown, trace_positions};
use crate::propose::{History, ProposeError};
use crate::space::{Reader, Trace};
use crate::target::Task;

/// Of the programs that are shown, so many are the fastest; the others are spread over the rest.
const FASTEST: usize = 5;

/// A program and its speed.
pub(super) struct Known {
    trace: Trace,
    /// log₂ of the speed, but for a constant of the task.
    log2: f64,
}

impl Known {
    /// As fast as it is expected to be.
    pub fn expected(valued: &Valued) -> Option<Known> {
        let expected = valued.expected.as_ref()?;
        Some(Known { trace: valued.candidate.trace.clone(), log2: f64::from(expected.score) })
    }
}

/// What a history remembers.
pub(super) fn measured(history: &History) -> Vec<Known> {
    let known = |trace: Trace| Some(Known { log2: -(history.best_ns(&trace)?.max(1) as f64).log2(), trace });
    history.fastest(History::KEPT).into_iter().filter_map(known).collect()
}

/// The positions of a prompt that shows some of what is known, at least the fastest, and leaves room for a
/// program that is twice as long as the longest.
pub(super) fn positions(
    language: &Language,
    reader: &Reader<'_>,
    task: &Task,
    known: Vec<Known>,
    max_sequence: usize,
) -> Result<Vec<Position>, ProposeError> {
    let how = shown(language, task);
    let chosen = chosen(known);
    let best = chosen.last().map_or(0.0, |known| known.log2);
    let mut programs: Vec<Vec<Position>> = Vec::with_capacity(chosen.len());
    for Known { trace, log2 } in &chosen {
        let mut positions = trace_positions(language, &reader.known_part(task, trace)?);
        positions.push(how.measured((log2 - best).exp2() as f32).clone());
        programs.push(positions);
    }
    let longest = programs.iter().map(Vec::len).max().unwrap_or(0);
    let room = max_sequence.saturating_sub(how.prompt.len() + 2 * longest);
    while programs.iter().map(Vec::len).sum::<usize>() > room && !programs.is_empty() {
        programs.remove(0);
    }
    Ok(how.prompt.into_iter().chain(programs.into_iter().flatten()).collect())
}

/// The fastest and some of the others, the slowest first.
fn chosen(mut known: Vec<Known>) -> Vec<Known> {
    known.sort_by(|a, b| b.log2.total_cmp(&a.log2));
    let others = known.split_off(FASTEST.min(known.len()));
    let few = (MOST_SHOWN - FASTEST).min(others.len());
    let count = others.len();
    // from each of `few` stretches the last: the slowest is among them
    let spread = (1..=few).map(|part| part * count / few - 1);
    let picked: Vec<usize> = spread.collect();
    known.extend(others.into_iter().enumerate().filter(|(at, _)| picked.contains(at)).map(|(_, known)| known));
    known.reverse();
    known
}

#[cfg(test)]
mod tests {
    use super::{Known, MOST_SHOWN, Trace, chosen};

    #[test]
    fn the_fastest_and_the_slowest_are_shown() {
        let of = |count: u64| -> Vec<f64> {
            let known = (0..count).map(|i| Known { trace: Trace::default(), log2: -((i * 11 % count) as f64) });
            chosen(known.collect()).into_iter().map(|known| known.log2).collect()
        };
        assert!(of(0).is_empty());
        assert_eq!(of(3), [-2.0, -1.0, 0.0]);
        assert_eq!(of(7), [-6.0, -5.0, -4.0, -3.0, -2.0, -1.0, 0.0]);
        let many = of(50);
        assert_eq!(many.len(), MOST_SHOWN);
        assert!(many.is_sorted() && many[0] == -49.0 && many[4..] == [-4.0, -3.0, -2.0, -1.0, 0.0], "{many:?}");
    }
}
