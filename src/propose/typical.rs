//! Programs for extents that are known only at run time, carried over from programs for fixed ones.
//!
//! A model that has learned from fixed workloads writes for one: the workload at
//! [`Workload::typical_point`](crate::workload::Workload::typical_point), without the axes of extent 1 that
//! this leaves. Its decisions are then taken again in the space of the workload itself, by the names that
//! axes have there. An axis that was left out is not tiled, and its loop is the outermost; a size that is not
//! offered gives way to the nearest.

use std::collections::BTreeMap;

use super::replay::nearest;
use crate::nest::axis_name;
use crate::space::{Choice, Decision, Policy, Space, Tape, Trace, Word, Words};
use crate::target::Task;
use crate::workload::Stage;

/// The fixed workload that stands for one with run-time extents.
pub(super) struct Typical {
    pub task: Task,
}

impl Typical {
    /// `None` where all extents are fixed anyway.
    pub fn of(task: &Task) -> Option<Typical> {
        if task.workload.is_fixed() {
            return None;
        }
        let (workload, _) = task.workload.plain_at(&task.workload.typical_point());
        // what is nothing but a few elements there has no decisions to carry over
        (workload.validate().is_ok() && workload.stages.iter().all(|stage| stage.rank() > 0))
            .then(|| Typical { task: Task { workload, target: task.target.clone() } })
    }

    /// The program of `task` that decides as a program of the typical one does; `None` where there is none.
    pub fn carry(&self, space: &Space, task: &Task, trace: &Trace) -> Option<Trace> {
        let names = Names::new(space, task, &self.task, trace)?;
        let mut answers: BTreeMap<Words, Vec<Words>> = BTreeMap::new();
        for Choice { site, value } in &trace.0 {
            let stage = stage_of(site);
            answers.entry(names.translated(site, stage)).or_default().push(names.translated(value, stage));
        }
        let (carried, nest) = space.drive(task, &mut Carried { names: &names, answers });
        super::usable(&carried, nest).map(|_| carried)
    }
}

/// What the axes of the typical workload's stages are called in the workload itself.
struct Names(Vec<Axes>);

/// Of a stage.
struct Axes {
    /// The axes that the typical stage has, too.
    kept: Vec<usize>,
    /// How many of all axes are spatial.
    spatial: usize,
}

impl Names {
    /// After the algorithm that a trace chooses has rewritten both workloads; `None` where they have come
    /// apart.
    fn new(space: &Space, task: &Task, typical: &Task, trace: &Trace) -> Option<Names> {
        let steps = space.schedule(typical, &mut Tape::replay(trace)).ok()?.0;
        let (own, fixed) = (space.rewritten(&task.workload, &steps), space.rewritten(&typical.workload, &steps));
        let point = task.workload.typical_point();
        let axes = |stage: &Stage| {
            let at = stage.at(&point);
            let is_left = |axis: &usize| stage.extents.get(*axis).is_none() || !at.is_unit(*axis);
            Axes { kept: (0..stage.rank()).filter(is_left).collect(), spatial: stage.spatial.len() }
        };
        let names = Names(own.stages.iter().map(axes).collect());
        let ranks = fixed.stages.iter().map(Stage::rank);
        names.0.iter().map(|axes| axes.kept.len()).eq(ranks).then_some(names)
    }

    /// Words about a stage, its axes by their own names.
    fn translated(&self, words: &Words, stage: usize) -> Words {
        let Some(Axes { kept, .. }) = self.0.get(stage) else { return words.clone() };
        let own = |word: &Word| {
            let Word::Name(name) = word else { return word.clone() };
            let axis = (0..kept.len()).find(|axis| axis_name(*axis) == *name);
            axis.map_or_else(|| word.clone(), |axis| Word::Name(axis_name(kept[axis])))
        };
        Words(words.0.iter().map(own).collect())
    }

    /// The spatial axes of a stage that the typical workload does not have.
    fn left_out(&self, stage: usize) -> impl Iterator<Item = usize> {
        let of_stage = |axes: &Axes| (0..axes.spatial).filter(|axis| !axes.kept.contains(axis)).collect::<Vec<_>>();
        self.0.get(stage).map(of_stage).unwrap_or_default().into_iter()
    }

    /// How many leading axes hold so many that the typical workload has, too.
    fn leading(&self, stage: usize, count: usize) -> usize {
        let last = count.checked_sub(1).and_then(|last| self.0.get(stage)?.kept.get(last));
        last.map_or(count, |axis| axis + 1)
    }
}

/// The stage that a site is about; rows are those of the first one.
fn stage_of(site: &Words) -> usize {
    let number = |word: &Word| match word {
        Word::Name(name) => name.strip_prefix('s')?.parse().ok(),
        Word::Number(_) => None,
    };
    site.0.iter().find_map(number).unwrap_or(0)
}

/// Decides as a program of the typical workload does.
struct Carried<'a> {
    names: &'a Names,
    /// In the order in which they were given, by site.
    answers: BTreeMap<Words, Vec<Words>>,
}

impl Policy for Carried<'_> {
    fn pick(&mut self, decision: &Decision) -> usize {
        let Decision { site, candidates, default, .. } = decision;
        let stage = stage_of(site);
        let given = self.answers.get(site).map_or(&[][..], Vec::as_slice);
        let begins = |name: &'static str| site.0.first() == Some(&Word::from(name));
        let is_left_out = |words: &Words| self.names.left_out(stage).any(|axis| words.is(&axis_name(axis)));
        if begins("outer")
            && let Some(first) = candidates.iter().position(is_left_out)
        {
            return first;
        }
        if let Some(same) = given.iter().find_map(|value| candidates.iter().position(|other| other == value)) {
            let count = candidates[same].as_number().unwrap_or(0) as usize;
            let of_rows = begins("rows") || begins("parallel") && site.0.contains(&Word::from("rows"));
            let further = match count {
                0 => 0,
                _ if of_rows => self.names.leading(0, count) - count,
                // the outermost loops are those over what the typical workload does not have
                _ if begins("parallel") => self.names.left_out(stage).count(),
                _ => 0,
            };
            return (same + further).min(candidates.len() - 1);
        }
        let wanted = match given.first().and_then(Words::as_number) {
            Some(number) => number,
            None if begins("tile") || begins("block") => 1,
            None => return *default,
        };
        nearest(candidates, wanted).unwrap_or(*default)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::Typical;
    use crate::propose::example::product;
    use crate::propose::{History, Proposer, Random};
    use crate::space::{Space, Trace};
    use crate::target::{Task, avx512};

    /// A convolution of up to 64 images of any size, which is tuned for one of 60×60.
    const CONVOLUTION: &str = "
        param len0 1 64
        param len1 1 512
        param len2 1 512
        tune 1 60 60
        const t0 32 96 3 3
        input t1 len0 96 len1 len2
        out t2 len0 32 len1 len2 sum 96 3 3 mul t0 b e f g guard 4 + c + f -1 0 512 + * -1 c + * -1 f + len1 1 1 \
        9223372036854775807 + d + g -1 0 512 + * -1 d + * -1 g + len2 1 1 9223372036854775807 t1 a e + c + f -1 \
        + d + g -1 0.0
    ";

    fn decisions(trace: &Trace) -> BTreeMap<String, String> {
        trace.0.iter().map(|choice| (choice.site.to_string(), choice.value.to_string())).collect()
    }

    #[test]
    fn decisions_are_carried_over_by_the_names_of_axes() {
        let (space, target) = (Space::standard(), avx512());
        let task = Task { workload: CONVOLUTION.parse().unwrap(), target };
        let typical = Typical::of(&task).unwrap();
        assert!(typical.task.workload.is_fixed() && typical.task.workload.stages[0].spatial == [32, 60, 60]);
        let drawn = Random::new(&space, 1).propose(&typical.task, &History::default(), 40).unwrap();
        let (mut carried, mut pairs) = (0, 0);
        for candidate in &drawn.candidates {
            let Some(trace) = typical.carry(&space, &task, &candidate.trace) else { continue };
            assert!(space.offers(&task, &trace), "{trace}");
            carried += 1;
            let (fixed, own) = (decisions(&candidate.trace), decisions(&trace));
            // images stay apart; what is decided about rows is decided about the same axis under its own name
            assert_eq!(own.get("tile s0 a").map_or("1", String::as_str), "1");
            // where rows and columns are not one axis, which a run-time one cannot be part of
            let apart = fixed.get("fuse s0").is_none_or(|fused| fused == "none");
            if let Some((fixed, own)) = fixed.get("tile s0 b").zip(own.get("tile s0 c")).filter(|_| apart) {
                pairs += 1;
                // a tile of the whole axis becomes what is nearest to it
                let whole = fixed == "60" && own == "64";
                assert!(fixed == own || whole, "{fixed}, {own}: {}\n{trace}", candidate.trace);
            }
            assert_eq!(fixed.get("algorithm"), own.get("algorithm"));
        }
        assert!(carried >= 30 && pairs >= 5, "{carried} of {}, {pairs} tiles", drawn.candidates.len());
        assert!(Typical::of(&product()).is_none());
    }
}
