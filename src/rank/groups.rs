//! Measurements as what an estimator learns from.

use std::collections::BTreeMap;

use rayon::iter::{IntoParallelRefIterator, ParallelIterator};

use super::features;
use crate::model::Group;
use crate::record::Entry;
use crate::space::{Next, Space};
use crate::target::Kind;

/// Features and nanoseconds of programs.
type Measured = Vec<(Vec<f32>, u64)>;

/// Speeds relative to the fastest, from nanoseconds.
pub(super) fn group(measured: Measured) -> Group {
    let best = measured.iter().map(|(_, ns)| *ns).min().unwrap_or(1).max(1);
    let speed = |ns: u64| (best as f32 / ns.max(1) as f32).log2();
    let (features, speeds) = measured.into_iter().map(|(features, ns)| (features, speed(ns))).unzip();
    Group { features, speeds }
}

/// Records of one kind of machine as groups to learn an estimate from, by task, target and the version of
/// this program that measured them, since versions measure in different ways: what was timed, and is still a
/// program of this space (see [`crate::space::Reader`]). With each group, its task.
pub fn estimator_groups(entries: &[Entry], space: &Space, kind: Kind) -> Vec<(String, Group)> {
    let timed: Vec<(&Entry, u64)> = entries
        .iter()
        .filter(|entry| entry.task.target.kind() == kind)
        .filter_map(|entry| Some((entry, entry.record.outcome.settled_ns()?)))
        .collect();
    let look = |(entry, ns): &(&Entry, u64)| {
        let record = entry.record.read_by(&entry.task, space).ok()?;
        let Ok(Next::Done(nest)) = space.next(&entry.task, &record.trace) else { return None };
        let key = (record.task_hash.clone(), record.target.clone(), record.tilescribe.clone());
        Some((key, features(&entry.task, &nest), *ns))
    };
    let described: Vec<_> = timed.par_iter().filter_map(look).collect();
    let mut groups: BTreeMap<(String, String, String), Measured> = BTreeMap::new();
    for (key, features, ns) in described {
        groups.entry(key).or_default().push((features, ns));
    }
    groups.into_iter().map(|((task, ..), measured)| (task, group(measured))).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::estimator_groups;
    use crate::outcome::{Failure, Outcome};
    use crate::propose::example::product;
    use crate::propose::{Proposer, Random};
    use crate::record::{Entry, History, Record};
    use crate::space::Space;
    use crate::target::Kind;

    #[test]
    fn records_become_groups() {
        let (space, task) = (Space::standard(), Arc::new(product()));
        let drawn = Random::new(&space, 1).propose(&task, &History::default(), 4).unwrap();
        let legal = drawn.candidates.into_iter().map(|candidate| candidate.trace);
        let timed = |ns| Outcome::Timed { times_ns: vec![2 * ns, ns], compile_us: 1 };
        let failed = Outcome::Failed { cause: Failure::Timeout, detail: String::new() };
        let outcomes = [timed(100), timed(400), failed, timed(800)];
        let mut entries: Vec<Entry> = legal
            .zip(outcomes)
            .map(|(trace, outcome)| {
                let record = Record::new(&task, &space.version(Kind::Cpu), trace, outcome, "random", 0);
                Entry { task: Arc::clone(&task), record }
            })
            .collect();
        entries[3].record.space = "another".into();
        assert_eq!(estimator_groups(&entries, &space, Kind::Gpu), []);
        let groups = estimator_groups(&entries, &space, Kind::Cpu);
        let [(hash, group)] = groups.as_slice() else { panic!("one task: {groups:?}") };
        assert_eq!(*hash, task.workload.hash().to_string());
        assert_eq!((group.speeds.as_slice(), group.features.len()), ([0.0, -2.0].as_slice(), 2));

        // what another version measured does not compare
        entries[1].record.tilescribe = "0.0.1".into();
        let speeds: Vec<Vec<f32>> =
            estimator_groups(&entries, &space, Kind::Cpu).into_iter().map(|(_, group)| group.speeds).collect();
        assert_eq!(speeds, [[0.0], [0.0]]);
    }
}
