//! What a search chooses from: programs that were looked at, best first, and what is left of them for the
//! next time.

use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap};

use super::Candidate;
use crate::model::{Adapted, Expected};
use crate::rank::Described;
use crate::space::Trace;

/// Features are rounded to multiples of 1/64 before they are compared: most of them are logarithms to base 2.
const ALIKE: f32 = 64.0;
/// Programs of a task that are kept for the next time: the most promising.
const KEPT: usize = 256;

/// A program that was looked at.
pub(super) struct Valued {
    pub candidate: Candidate,
    /// Empty where no estimator needs them.
    pub features: Vec<f32>,
    /// By the estimator, if there is one.
    pub expected: Option<Expected>,
}

impl Valued {
    pub fn new(candidate: Candidate, features: Vec<f32>, estimator: Option<&Adapted>) -> Valued {
        let expected = estimator.and_then(|estimator| estimator.expect(&features));
        let value = expected.as_ref().map(|expected| expected.score);
        Valued { candidate: Candidate { value, ..candidate }, features, expected }
    }
}

/// A sorted pool as it is worth measuring, where `wanted` programs are measured together: those that look
/// like one before them, or like one of `known`, come last.
pub(super) fn in_order<'a>(
    pool: Vec<Valued>,
    known: impl Iterator<Item = &'a Described>,
    estimator: Option<&Adapted>,
    wanted: usize,
) -> Vec<Valued> {
    let (mut ordered, alike) = distinct_looking(pool, known.map(|described| described.features.as_slice()));
    if let Some(estimator) = estimator {
        ordered = promising_first(ordered, estimator, wanted);
    }
    ordered.extend(alike);
    ordered
}

/// A pool in its order, but without those that look like one before them, or like one of `known` features;
/// and these.
pub(super) fn distinct_looking<'a>(
    pool: Vec<Valued>,
    known: impl Iterator<Item = &'a [f32]>,
) -> (Vec<Valued>, Vec<Valued>) {
    told_apart(pool, |valued| &valued.features, known)
}

/// The same for whatever has features.
pub(super) fn told_apart<'a, T>(
    pool: Vec<T>,
    features: impl Fn(&T) -> &[f32],
    known: impl Iterator<Item = &'a [f32]>,
) -> (Vec<T>, Vec<T>) {
    let rounded = |features: &[f32]| features.iter().map(|x| (x * ALIKE).round() as i64).collect::<Vec<i64>>();
    let mut looks: BTreeSet<Vec<i64>> = known.map(rounded).collect();
    pool.into_iter().partition(|one| features(one).is_empty() || looks.insert(rounded(features(one))))
}

/// Those first that are worth to be measured together.
fn promising_first(pool: Vec<Valued>, estimator: &Adapted, count: usize) -> Vec<Valued> {
    let expected: Option<Vec<Expected>> = pool.iter().map(|valued| valued.expected.clone()).collect();
    let Some(expected) = expected else { return pool };
    let mut left: Vec<Option<Valued>> = pool.into_iter().map(Some).collect();
    let mut ordered: Vec<Valued> =
        estimator.choose(&expected, count).into_iter().filter_map(|at| left[at].take()).collect();
    ordered.extend(left.into_iter().flatten());
    ordered
}

/// Moves a program up to a position, if it is there and stands behind it.
pub(super) fn bring_forward(chosen: &mut [Valued], trace: &Trace, position: usize) {
    let at = chosen.iter().position(|valued| valued.candidate.trace == *trace);
    if let Some(at) = at.filter(|at| *at > position) {
        chosen[position..=at].rotate_right(1);
    }
}

/// One of each in turn, as long as there are.
pub(super) fn interleaved<T>(one: Vec<T>, other: Vec<T>) -> Vec<T> {
    let (mut one, mut other) = (one.into_iter(), other.into_iter());
    let mut all = Vec::new();
    loop {
        let pair = [one.next(), other.next()];
        if pair.iter().all(Option::is_none) {
            return all;
        }
        all.extend(pair.into_iter().flatten());
    }
}

/// By value, best first; equal ones stay in the order in which they were drawn. Likelihood has no say: it
/// prefers short traces, which are not the fast ones.
pub(super) fn by_value(a: &Valued, b: &Valued) -> Ordering {
    let value = |valued: &Valued| valued.candidate.value.unwrap_or(f32::NEG_INFINITY);
    value(b).total_cmp(&value(a))
}

/// What was looked at and not chosen, by the task's hash: what is measured meanwhile may put it in another
/// light.
#[derive(Default)]
pub(super) struct Rest {
    tasks: HashMap<String, Vec<Valued>>,
}

impl Rest {
    /// Takes what is left of a task's pool, the most promising first.
    pub fn keep(&mut self, hash: String, mut left: Vec<Valued>) {
        left.truncate(KEPT);
        self.tasks.insert(hash, left);
    }

    /// Hands out what was kept of a task, in the light of the estimator.
    pub fn take(&mut self, hash: &str, estimator: Option<&Adapted>) -> Vec<Valued> {
        let kept = self.tasks.remove(hash).unwrap_or_default();
        kept.into_iter().map(|valued| Valued::new(valued.candidate, valued.features, estimator)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{Candidate, KEPT, Rest, Trace, Valued, bring_forward, distinct_looking, interleaved};

    fn valued(number: u64, features: &[f32]) -> Valued {
        Valued { candidate: Candidate::new(numbered(number)), features: features.to_vec(), expected: None }
    }

    fn numbered(number: u64) -> Trace {
        format!("tile s0 a = {number}\n").parse().unwrap()
    }

    fn traces(pool: &[Valued]) -> Vec<Trace> {
        pool.iter().map(|valued| valued.candidate.trace.clone()).collect()
    }

    #[test]
    fn what_looks_alike_is_told_apart() {
        let pool =
            vec![valued(0, &[1.0, 2.0]), valued(1, &[1.0, 2.001]), valued(2, &[1.0, 2.1]), valued(3, &[1.0, 2.0])];
        let (distinct, alike) = distinct_looking(pool, [].into_iter());
        assert_eq!((traces(&distinct), traces(&alike)), ([0, 2].map(numbered).into(), [1, 3].map(numbered).into()));
        // one looks like what was measured before
        let pool = vec![valued(0, &[1.0]), valued(1, &[2.0])];
        let (distinct, alike) = distinct_looking(pool, [&[1.001][..]].into_iter());
        assert_eq!((traces(&distinct), traces(&alike)), (vec![numbered(1)], vec![numbered(0)]));
        // nothing is known of their looks
        let (distinct, alike) = distinct_looking(vec![valued(0, &[]), valued(1, &[])], [].into_iter());
        assert_eq!((traces(&distinct), traces(&alike)), ([0, 1].map(numbered).into(), Vec::new()));
    }

    #[test]
    fn two_lists_take_turns() {
        assert_eq!(interleaved(vec![1, 3, 5], vec![2]), [1, 2, 3, 5]);
        assert_eq!(interleaved(vec![], vec![2, 4]), [2, 4]);
    }

    #[test]
    fn a_program_is_brought_forward_and_never_put_back() {
        for (trace, position, expected) in
            [(3, 1, [0, 3, 1, 2]), (2, 0, [2, 0, 1, 3]), (0, 1, [0, 1, 2, 3]), (9, 1, [0, 1, 2, 3])]
        {
            let mut pool: Vec<Valued> = (0..4).map(|number| valued(number, &[])).collect();
            bring_forward(&mut pool, &numbered(trace), position);
            assert_eq!(traces(&pool), expected.map(numbered));
        }
    }

    #[test]
    fn what_is_left_is_kept_once_and_up_to_a_limit() {
        let mut rest = Rest::default();
        rest.keep("a".into(), (0..KEPT as u64 + 5).map(|number| valued(number, &[1.0])).collect());
        rest.keep("b".into(), vec![valued(7, &[2.0])]);
        let found = rest.take("a", None);
        assert_eq!((found.len(), traces(&found)[KEPT - 1].clone()), (KEPT, numbered(KEPT as u64 - 1)));
        assert!(rest.take("a", None).is_empty());
        assert_eq!(rest.take("b", None)[0].features, [2.0]);
    }
}
