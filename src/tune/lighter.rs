//! Finalists for networks that find their constants in memory.
//!
//! A search times programs with operands in caches. Where constants come from further away, a program that
//! is a little slower then but reads fewer of them may be faster: Winograd's algorithm reads up to four times
//! the filters that a convolution is given.

use crate::propose::History;
use crate::space::{Next, Space, Trace};
use crate::target::Task;

/// As many of the fastest programs are looked at.
const LOOKED_AT: usize = 16;

/// The fastest programs, beside `others`, that read fewer bytes of constants than all of these and than all
/// faster ones; `most` at most.
pub(super) fn lighter(space: &Space, task: &Task, history: &History, others: &[Trace], most: usize) -> Vec<Trace> {
    let mut found = Vec::new();
    if most == 0 {
        return found;
    }
    let bytes = |trace: &Trace| match space.next(task, trace) {
        Ok(Next::Done(nest)) => Some(nest.constant_bytes()),
        _ => None,
    };
    let mut least = others.iter().filter_map(bytes).min();
    for trace in history.fastest(LOOKED_AT).into_iter().filter(|trace| !others.contains(trace)) {
        let Some(bytes) = bytes(&trace) else { continue };
        if found.len() < most && least.is_none_or(|least| bytes < least) {
            least = Some(bytes);
            found.push(trace);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::lighter;
    use crate::propose::History;
    use crate::space::{Decision, Policy, Space, Trace};
    use crate::target::{Task, avx512};

    /// The untuned program but for the algorithm.
    struct By(&'static str);

    impl Policy for By {
        fn pick(&mut self, decision: &Decision) -> usize {
            let wanted = decision.candidates.iter().position(|candidate| candidate.to_string() == self.0);
            wanted.filter(|_| decision.site.is("algorithm")).unwrap_or(decision.default)
        }
    }

    #[test]
    fn programs_join_that_read_fewer_constants_than_all_faster_ones() {
        let text = "const t0 64 64 3 3\ninput t1 28 28 64\n\
                    out t2 28 28 64 sum 64 3 3 mul t0 c d e f pad 0.0 t1 ? + a + e -1 ? + b + f -1 d\n";
        let (space, task) = (Space::standard(), Task { workload: text.parse().unwrap(), target: avx512() });
        let program = |algorithm| -> (Trace, usize) {
            let (trace, nest) = space.drive(&task, &mut By(algorithm));
            (trace, nest.unwrap().constant_bytes())
        };
        let programs = ["winograd 4", "winograd 2", "direct"].map(program);
        let taps = programs.each_ref().map(|(_, bytes)| bytes / (64 * 64 * 4));
        // panels are padded
        assert!(taps[..2] == [36, 16] && (9..16).contains(&taps[2]), "{taps:?}");
        let [four, two, direct] = programs.map(|(trace, _)| trace);
        let mut history = History::default();
        for (trace, ns) in [(&four, 100), (&two, 150), (&direct, 200)] {
            history.insert(trace.clone(), Some(ns));
        }
        let found = |others: &[&Trace], most| {
            lighter(&space, &task, &history, &others.iter().map(|trace| (*trace).clone()).collect::<Vec<_>>(), most)
        };
        assert_eq!(found(&[&four], 2), [two.clone(), direct.clone()]);
        assert_eq!(found(&[&four], 1), std::slice::from_ref(&two));
        assert_eq!(found(&[&two], 2), std::slice::from_ref(&direct));
        // faster, but it reads more; nothing is asked for
        assert!(found(&[&direct], 2).is_empty() && found(&[&four], 0).is_empty());
    }
}
