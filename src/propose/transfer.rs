//! Programs of other tasks, taken over.
//!
//! P. Gibson and J. Cano, *Transfer-Tuning: Reusing Auto-Schedules for Efficient Tensor Program Code
//! Generation*, PACT 2022: a schedule that was found for one kernel is applied to others of its class. Here
//! the decisions of a program are taken again in the space of the task, site by site; where one is not
//! offered, the nearest candidate takes its place, and what comes out is a trace of its own. Programs of
//! tasks of the same class come first, and among them those of the most similar extents.
//!
//! They come from a table of good programs of the corpus's training tasks, which is part of the program
//! (`checkpoints/transfer`), and from the tasks that the same search has worked on. Of the task's own
//! measurements nothing is learned: they tell only what was tried.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use rayon::iter::{IntoParallelIterator, ParallelIterator};

use super::replay::Answers;
use super::{Candidate, History, Make, Method, Proposal, ProposeError, Proposer, Purpose};
use crate::record::{CorpusReader, Limits};
use crate::space::{Space, Trace};
use crate::target::Task;
use crate::workload::Workload;

pub(super) const METHOD: Method = Method {
    name: "transfer",
    about: "Good programs of similar tasks, taken over decision by decision",
    learns: false,
    purpose: Purpose::Search,
    make: Make::Plain(|space, _| Ok(Box::new(Transfer::new(space, shipped_programs()?)))),
};

/// The table, as it was when the program was built: a corpus file.
static TABLE: &[u8] = include_bytes!("../../checkpoints/transfer/programs.jsonl.zst");
/// More than it will ever hold.
const LIMITS: Limits = Limits { line_bytes: 1 << 16, file_bytes: 64 << 20 };
/// The fastest programs of a task of the same search that are handed on.
const HANDED_ON: usize = 4;
/// Programs that are tried at once.
const AT_ONCE: usize = 32;

/// Good programs of a task.
#[derive(Clone, Debug)]
struct Source {
    looks: Looks,
    /// The best first.
    programs: Vec<Trace>,
}

/// What tells how similar tasks are.
#[derive(Clone, PartialEq, Debug)]
struct Looks {
    class: String,
    /// Of each stage, how many axes are spatial, and how many are of the reduction: tasks that agree are
    /// asked about the same sites.
    ranks: Vec<(usize, usize)>,
    /// Logarithms to base 2 of all stages' extents.
    extents: Vec<f64>,
    lanes: i64,
}

/// The class of a workload: its text without numbers and shapes. Workloads of a class compute the same with
/// other extents.
pub fn class_of(workload: &Workload) -> String {
    let mut class = String::new();
    for line in workload.to_string().lines() {
        let mut words = line.split(' ');
        while let Some(word) = words.next() {
            // a shape is written as numbers, or as that of another tensor
            if word == "like" {
                words.next();
            } else if word.parse::<f64>().is_err() {
                class.push_str(word);
                class.push(' ');
            }
        }
        class.push('\n');
    }
    class
}

impl Looks {
    fn of(task: &Task) -> Looks {
        let mut workload = &task.workload;
        let typical;
        if !workload.is_fixed() {
            typical = workload.at(&workload.typical_point());
            workload = &typical;
        }
        let stages = &workload.stages;
        let all = stages.iter().flat_map(|stage| stage.spatial.iter().chain(&stage.reduction));
        Looks {
            class: class_of(workload),
            ranks: stages.iter().map(|stage| (stage.spatial.len(), stage.reduction.len())).collect(),
            extents: all.map(|extent| (*extent.max(&1) as f64).log2()).collect(),
            lanes: task.target.lanes(),
        }
    }

    /// The less, the more similar: first by kinship, then by the machine, then by extents.
    fn distance(&self, other: &Looks) -> (u8, bool, f64) {
        let kinship = match () {
            () if self.class == other.class => 0,
            () if self.ranks == other.ranks => 1,
            () if self.ranks.iter().any(|rank| other.ranks.contains(rank)) => 2,
            () => 3,
        };
        let apart: f64 = self.extents.iter().zip(&other.extents).map(|(a, b)| (a - b).abs()).sum();
        let unmatched = self.extents.len().abs_diff(other.extents.len()) as f64;
        (kinship, self.lanes != other.lanes, apart + 8.0 * unmatched)
    }
}

/// The programs of the table.
fn shipped_programs() -> Result<&'static [Source], ProposeError> {
    static READ: OnceLock<Result<Vec<Source>, String>> = OnceLock::new();
    let read = READ.get_or_init(|| read_table(TABLE));
    read.as_deref().map_err(|detail| ProposeError::Table(detail.clone()))
}

fn read_table(bytes: &[u8]) -> Result<Vec<Source>, String> {
    let mut sources: BTreeMap<(String, String), Source> = BTreeMap::new();
    for entry in CorpusReader::new(bytes, LIMITS).map_err(|error| error.to_string())? {
        let entry = entry.map_err(|error| error.to_string())?;
        let key = (entry.record.task_hash.clone(), entry.record.target.clone());
        let source = sources.entry(key);
        let source = source.or_insert_with(|| Source { looks: Looks::of(&entry.task), programs: Vec::new() });
        source.programs.push(entry.record.trace);
    }
    Ok(sources.into_values().collect())
}

/// Takes programs over, the same ones for the same tasks.
pub struct Transfer<'a> {
    space: &'a Space,
    shipped: &'a [Source],
    /// Of this search, by the hash of the task.
    own: BTreeMap<String, Source>,
}

impl<'a> Transfer<'a> {
    fn new(space: &'a Space, shipped: &'a [Source]) -> Transfer<'a> {
        Transfer { space, shipped, own: BTreeMap::new() }
    }

    /// All programs of other tasks, the most similar tasks' first.
    fn ranked(&self, hash: &str, looks: &Looks) -> Vec<&Trace> {
        let own = self.own.iter().filter(|(other, _)| *other != hash).map(|(_, source)| source);
        let mut sources: Vec<_> =
            own.chain(self.shipped).map(|source| (looks.distance(&source.looks), source)).collect();
        sources.sort_by(|(a, _), (b, _)| (a.0, a.1).cmp(&(b.0, b.1)).then(a.2.total_cmp(&b.2)));
        sources.into_iter().flat_map(|(_, source)| &source.programs).collect()
    }
}

impl Proposer for Transfer<'_> {
    fn propose(&mut self, task: &Task, history: &History, count: usize) -> Result<Proposal, ProposeError> {
        let (hash, looks) = (task.workload.hash().to_string(), Looks::of(task));
        let mut proposal = Proposal::default();
        let mut seen = BTreeSet::new();
        let ranked = self.ranked(&hash, &looks);
        for some in ranked.chunks(AT_ONCE) {
            if proposal.candidates.len() == count {
                break;
            }
            let take = |program: &&Trace| Answers::of(program).program(self.space, task).map(|(trace, _)| trace);
            let taken: Vec<Option<Trace>> = some.into_par_iter().map(take).collect();
            for taken in taken {
                proposal.drawn += 1;
                let Some(trace) = taken else {
                    proposal.dead_ends += 1;
                    continue;
                };
                let is_new = !history.contains(&trace) && seen.insert(trace.clone());
                if is_new && proposal.candidates.len() < count {
                    proposal.candidates.push(Candidate::new(trace));
                }
            }
        }
        self.own.insert(hash, Source { looks, programs: history.fastest(HANDED_ON) });
        Ok(proposal)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{LIMITS, Looks, Source, TABLE, Transfer, class_of, read_table, shipped_programs};
    use crate::propose::example::product;
    use crate::propose::{History, Proposer, Random};
    use crate::record::{CorpusReader, hold_out_key};
    use crate::space::Space;
    use crate::target::{Task, avx512};

    /// The share of tasks that training is not shown.
    const HELD_OUT: f32 = 0.1;

    fn product_of(rows: i64, steps: i64, columns: i64) -> Task {
        let text = format!(
            "input t0 {rows} {steps}\nconst t1 {steps} {columns}\nout t2 {rows} {columns} sum {steps} mul t0 a c t1 c b\n"
        );
        Task { workload: text.parse().unwrap(), target: avx512() }
    }

    #[test]
    fn the_table_is_small_and_of_training_tasks_alone() {
        assert!(TABLE.len() <= 256 << 10, "{} bytes", TABLE.len());
        let excluded: BTreeSet<&str> = include_str!("../../corpus/excluded.txt")
            .lines()
            .filter_map(|line| line.split_whitespace().next())
            .collect();
        let mut programs = 0;
        for entry in CorpusReader::new(TABLE, LIMITS).unwrap() {
            let record = entry.unwrap().record;
            assert!(!excluded.contains(record.task_hash.as_str()) && hold_out_key(&record.task_hash) >= HELD_OUT);
            programs += 1;
        }
        assert!(programs >= 500 && shipped_programs().unwrap().len() >= 500, "{programs}");
        assert!(read_table(&TABLE[..TABLE.len() / 2]).is_err());
    }

    #[test]
    fn a_class_is_what_extents_are_not_part_of() {
        let [small, large] = [product_of(17, 30, 40), product_of(64, 512, 512)];
        assert_eq!(class_of(&small.workload), class_of(&large.workload));
        let other = Task { workload: "input t0 8\nout t1 8 neg t0 a\n".parse().unwrap(), target: avx512() };
        let distance = |to: &Task| Looks::of(&small).distance(&Looks::of(to));
        assert_eq!(distance(&small), (0, false, 0.0));
        assert!(distance(&large) > distance(&small) && distance(&other) > distance(&large));
    }

    #[test]
    fn programs_of_the_most_similar_task_come_first_and_fit() {
        let (space, task, nothing) = (Space::standard(), product(), History::default());
        let drawn = |of: &Task, seed| -> Source {
            let drawn = Random::new(&space, seed).propose(of, &nothing, 3).unwrap();
            let programs = drawn.candidates.into_iter().map(|candidate| candidate.trace).collect();
            Source { looks: Looks::of(of), programs }
        };
        let [near, far] = [product_of(17, 32, 40), product_of(640, 512, 512)];
        let sources = [drawn(&far, 1), drawn(&near, 2)];
        let mut transfer = Transfer::new(&space, &sources);
        let proposal = transfer.propose(&task, &nothing, 100).unwrap();
        assert!((3..=6).contains(&proposal.candidates.len()), "all there is: {proposal:?}");
        assert!(proposal.candidates.iter().all(|candidate| space.offers(&task, &candidate.trace)));
        // of the nearer one nearly all decisions are offered
        let (first, given) = (&proposal.candidates[0].trace, &sources[1].programs[0]);
        let kept = first.0.iter().filter(|choice| given.0.contains(choice)).count();
        assert!(2 * kept > first.0.len(), "{first}\n{given}");
        // what was fast for one task is handed on to another
        let mut history = History::default();
        history.insert(drawn(&near, 9).programs[0].clone(), Some(1));
        transfer.propose(&near, &history, 1).unwrap();
        assert_eq!(transfer.propose(&task, &nothing, 100).unwrap().candidates.len(), proposal.candidates.len() + 1);
    }
}
