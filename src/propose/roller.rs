//! Aligned programs, by construction, and nothing that is learned.
//!
//! H. Zhu et al., *ROLLER: Fast and Efficient Tensor Compilation for Deep Learning*, OSDI 2022: tiles whose
//! shapes suit the machine are made larger step by step, where a model of the machine's units and memories
//! says it gains most, and the few best programs are measured. Here, what the numbers of a trace say about an
//! axis must, multiplied, divide its extent but for a little padding, or cover all of it; and the first of
//! them, on the axis that runs in vectors, must be whole vectors. Tiles that registers cannot hold cost more.
//! The search begins with the smallest tiles, goes up from the best program each time, and tries all names.

use std::collections::{BTreeMap, HashMap, HashSet};

use rayon::iter::{IntoParallelRefIterator, ParallelIterator};

use super::costs::{Costs, Positions};
use super::replay::{Answers, described, steps};
use super::{Candidate, History, Make, Method, Proposal, ProposeError, Proposer, Purpose};
use crate::nest::axis_name;
use crate::rank::Described;
use crate::space::{Decision, Policy, Space, Trace, Untuned, Word, Words};
use crate::target::Task;

pub(super) const METHOD: Method = Method {
    name: "roller",
    about: "Aligned tiles made larger step by step, ranked by a model of the machine; nothing is learned",
    learns: false,
    purpose: Purpose::Search,
    make: Make::Plain(|space, _| Ok(Box::new(Roller::new(space)))),
};

/// Programs looked at before the first is named, and more of them for each one asked for later.
const LOOKS: usize = 512;
const LOOKS_LATER: usize = 8;
/// Programs that are gone up from at once.
const AT_ONCE: usize = 4;
/// The part of an extent that may be padding: one in so many.
const PADDED: u64 = 5;
/// What a value that has no register adds to the cycles of the core's units.
const SPILL: f64 = 0.125;
/// How far up the list of candidates the next aligned one is looked for.
const FARTHEST: usize = 8;

/// The extents of a task's axes, by stage and name; and how many elements a vector holds.
struct Alignment {
    extents: BTreeMap<(usize, Word), u64>,
    lanes: u64,
}

/// What was said of axes so far.
#[derive(Clone, Default)]
struct Said {
    /// The product of the numbers.
    products: BTreeMap<(usize, Word), u64>,
    /// The axis that runs in vectors, by stage.
    vectors: BTreeMap<usize, Word>,
}

/// The stage and the axis that a site names.
fn axis_of(site: &Words) -> Option<(usize, Word)> {
    let [_, Word::Name(stage), axis @ Word::Name(_)] = site.0.as_slice() else { return None };
    Some((stage.strip_prefix('s')?.parse().ok()?, axis.clone()))
}

impl Alignment {
    fn of(task: &Task) -> Alignment {
        let mut extents = BTreeMap::new();
        for (number, stage) in task.workload.stages.iter().enumerate() {
            for (at, extent) in stage.spatial.iter().chain(&stage.reduction).enumerate() {
                extents.insert((number, Word::Name(axis_name(at))), extent.unsigned_abs());
            }
        }
        Alignment { extents, lanes: task.target.lanes().unsigned_abs().max(1) }
    }

    /// Whether an answer fits what was said before.
    fn is_aligned(&self, said: &Said, site: &Words, value: &Words) -> bool {
        let Some((axis, number)) = axis_of(site).zip(value.as_number()) else { return true };
        // axes that were made by fusing others have no extent of their own here
        let Some(extent) = self.extents.get(&axis) else { return true };
        let before = said.products.get(&axis);
        let product = before.copied().unwrap_or(1).saturating_mul(number);
        let is_vector = before.is_none() && said.vectors.get(&axis.0) == Some(&axis.1);
        let padding = extent.div_ceil(product.max(1)).saturating_mul(product).saturating_sub(*extent);
        product >= *extent || padding <= extent / PADDED && (!is_vector || number % self.lanes == 0)
    }

    fn say(&self, said: &mut Said, site: &Words, value: &Words) {
        if let Some((axis, number)) = axis_of(site).zip(value.as_number()) {
            let product = said.products.entry(axis).or_insert(1);
            *product = product.saturating_mul(number.max(1));
        }
        if let ([Word::Name(verb), Word::Name(stage)], [axis]) = (site.0.as_slice(), value.0.as_slice())
            && verb == "vector"
            && let Some(stage) = stage.strip_prefix('s').and_then(|stage| stage.parse().ok())
        {
            said.vectors.insert(stage, axis.clone());
        }
    }

    /// How many answers of a trace do not fit.
    fn misaligned(&self, trace: &Trace) -> usize {
        let mut said = Said::default();
        let mut count = 0;
        for choice in &trace.0 {
            count += usize::from(!self.is_aligned(&said, &choice.site, &choice.value));
            self.say(&mut said, &choice.site, &choice.value);
        }
        count
    }
}

/// Names as in the answers, else by default; of numbers about axes the smallest that fits.
struct Smallest<'a> {
    alignment: &'a Alignment,
    said: Said,
    names: Answers,
}

impl Policy for Smallest<'_> {
    fn pick(&mut self, decision: &Decision) -> usize {
        let Decision { site, candidates, default, .. } = decision;
        let is_size = axis_of(site).is_some() && candidates.iter().all(|value| value.as_number().is_some());
        let fits = |value: &Words| self.alignment.is_aligned(&self.said, site, value);
        let at = match is_size {
            true => candidates.iter().position(fits).unwrap_or(*default),
            false => self.names.pick(decision),
        };
        self.alignment.say(&mut self.said, site, &candidates[at]);
        at
    }
}

/// What is known of a task.
struct Search {
    alignment: Alignment,
    positions: Positions,
    /// The fewest misaligned answers that a program can have, as far as is known.
    allowed: usize,
    seen: HashSet<Trace>,
    /// Expected cycles, and whether it was gone up from; the fastest first.
    programs: Vec<(f64, Trace, bool)>,
    drawn: u64,
    dead_ends: u64,
}

/// Constructs, always the same way.
pub struct Roller<'a> {
    space: &'a Space,
    /// By the task's hash.
    searches: HashMap<String, Search>,
}

impl<'a> Roller<'a> {
    pub fn new(space: &'a Space) -> Roller<'a> {
        Roller { space, searches: HashMap::new() }
    }

    /// The smallest programs: that of all default names, and those with one name changed.
    fn begin(&self, task: &Task) -> Option<Search> {
        let (untuned, nest) = self.space.drive(task, &mut Untuned);
        let positions = Positions::of(task, &super::usable(&untuned, nest)?);
        let alignment = Alignment::of(task);
        let smallest = |names: Answers| {
            let mut policy = Smallest { alignment: &alignment, said: Said::default(), names };
            self.space.drive(task, &mut policy).0
        };
        let mut starts = vec![smallest(Answers::default())];
        for step in steps(self.space, task, &starts[0], 1).iter().filter(|step| step.value.as_number().is_none()) {
            starts.push(smallest(Answers::default().with(&step.site, &step.value)));
        }
        let allowed = starts.iter().map(|trace| alignment.misaligned(trace)).min().unwrap_or(0);
        let (seen, programs) = (HashSet::new(), Vec::new());
        let mut search = Search { alignment, positions, allowed, seen, programs, drawn: 0, dead_ends: 0 };
        let new = starts.into_iter().filter(|trace| search.seen.insert(trace.clone())).collect();
        self.look(task, &mut search, new);
        Some(search)
    }

    fn look(&self, task: &Task, search: &mut Search, new: Vec<Trace>) {
        let looked_at = described(self.space, task, new.iter().map(Answers::of).collect());
        search.drawn += looked_at.len() as u64;
        search.dead_ends += looked_at.iter().filter(|program| program.is_none()).count() as u64;
        for Described { trace, features } in looked_at.into_iter().flatten() {
            let costs = Costs::of(task, &search.positions, &features);
            search.programs.push((cycles(&costs), trace, false));
        }
        search.programs.sort_by(|a, b| a.0.total_cmp(&b.0));
    }

    /// Goes up from the best; `false` where there is nothing left to go up from.
    fn go_up(&self, task: &Task, search: &mut Search) -> bool {
        let mut open: Vec<_> = search.programs.iter_mut().filter(|(.., done)| !done).take(AT_ONCE).collect();
        open.iter_mut().for_each(|(.., done)| *done = true);
        let from: Vec<Trace> = open.into_iter().map(|(_, trace, _)| trace.clone()).collect();
        let larger = |trace: &Trace| larger(self.space, task, search, trace);
        let all: Vec<Vec<Trace>> = from.par_iter().map(larger).collect();
        let new = all.into_iter().flatten().filter(|trace| search.seen.insert(trace.clone())).collect();
        self.look(task, search, new);
        !from.is_empty()
    }
}

/// The aligned programs that come next: each number by itself up to the next that fits, each name changed.
fn larger(space: &Space, task: &Task, search: &Search, trace: &Trace) -> Vec<Trace> {
    let answers = Answers::of(trace);
    let mut found: Vec<Trace> = Vec::new();
    let mut done: Option<Words> = None;
    for step in steps(space, task, trace, FARTHEST) {
        let is_number = step.value.as_number().is_some();
        if is_number && (!step.up || done.as_ref() == Some(&step.site)) {
            continue;
        }
        let next = answers.clone().with(&step.site, &step.value).trace(space, task);
        if let Some(next) = next.filter(|next| search.alignment.misaligned(next) <= search.allowed) {
            found.push(next);
            done = is_number.then_some(step.site);
        }
    }
    found
}

/// Of the unit or the memory that is the bottleneck, beside the control of loops.
fn cycles(costs: &Costs) -> f64 {
    let executing = costs.executing() * (1.0 + SPILL * costs.spilled);
    costs.levels.iter().fold(executing, |most, level| most.max(*level)) + costs.control
}

impl Proposer for Roller<'_> {
    fn propose(&mut self, task: &Task, history: &History, count: usize) -> Result<Proposal, ProposeError> {
        let hash = task.workload.hash().to_string();
        let Some(mut search) = self.searches.remove(&hash).or_else(|| self.begin(task)) else {
            return Ok(Proposal { dead_ends: 1, drawn: 1, ..Proposal::default() });
        };
        let before = (search.drawn, search.dead_ends);
        let wanted = if search.drawn < LOOKS as u64 { LOOKS } else { search.programs.len() + LOOKS_LATER * count };
        while search.programs.len() < wanted && self.go_up(task, &mut search) {}
        let new = |search: &Search| -> Vec<Candidate> {
            let new = search.programs.iter().filter(|(_, trace, _)| !history.contains(trace)).take(count);
            new.map(|(cycles, trace, _)| {
                let value = Some(-cycles.max(1.0).log2() as f32);
                Candidate { value, ..Candidate::new(trace.clone()) }
            })
            .collect()
        };
        let mut candidates = new(&search);
        while candidates.len() < count && self.go_up(task, &mut search) {
            candidates = new(&search);
        }
        let proposal = Proposal { candidates, drawn: search.drawn - before.0, dead_ends: search.dead_ends - before.1 };
        self.searches.insert(hash, search);
        Ok(proposal)
    }
}

#[cfg(test)]
mod tests {
    use super::{Alignment, Roller};
    use crate::propose::{History, Proposer};
    use crate::space::{Space, Trace, Untuned};
    use crate::target::{Task, avx512};

    fn even_product() -> Task {
        let text = "input t0 48 256\nconst t1 256 96\nout t2 48 96 sum 256 mul t0 a c t1 c b\n";
        Task { workload: text.parse().unwrap(), target: avx512() }
    }

    #[test]
    fn numbers_that_divide_or_nearly_do_are_aligned() {
        let alignment = Alignment::of(&even_product());
        for (text, misaligned) in [
            ("vector s0 = b\ntile s0 b = 32\ntile s0 a = 12\nblock s0 a = 2\n", 0),
            ("vector s0 = b\ntile s0 b = 24\n", 1),
            ("tile s0 b = 24\n", 0),
            ("tile s0 a = 12\nblock s0 a = 3\n", 1),
            ("tile s0 a = 12\nblock s0 a = 9\nparallel s0 = 7\n", 0),
            ("tile s0 a = 5\ntile s0 b = 7\n", 0),
            ("tile s0 a = 20\ntile s0 b = 40\n", 2),
        ] {
            assert_eq!(alignment.misaligned(&text.parse().unwrap()), misaligned, "{text}");
        }
    }

    #[test]
    fn programs_are_aligned_and_the_model_prefers_larger_tiles() {
        let (space, task, nothing) = (Space::standard(), even_product(), History::default());
        let proposal = Roller::new(&space).propose(&task, &nothing, 10).unwrap();
        assert_eq!(proposal.candidates.len(), 10);
        let alignment = Alignment::of(&task);
        for candidate in &proposal.candidates {
            assert_eq!(alignment.misaligned(&candidate.trace), 0, "{}", candidate.trace);
            assert!(space.offers(&task, &candidate.trace));
        }
        assert!(proposal.candidates.is_sorted_by(|a, b| a.value >= b.value));
        let tile = |trace: &Trace| -> u64 {
            let tiles = trace.0.iter().filter(|choice| choice.site.to_string().starts_with("tile s0"));
            tiles.filter_map(|choice| choice.value.as_number()).product()
        };
        let best = &proposal.candidates[0].trace;
        assert!(tile(best) >= 64, "{best}\n{}", space.drive(&task, &mut Untuned).0);
    }
}
