//! The last finals: the best programs of each task, where they are to run.
//!
//! A task that is measured alone finds its operands in the caches; in the network it finds weights in
//! memory, and what other tasks have left where these have left it. So the runners-up of all tasks are
//! compiled beside them, all run in turn, and a task takes a runner-up where it was faster there.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use tilescribe::artifact::{self, CompiledCall, Model, Options, Profile, Resources, Schedule, Version};
use tilescribe::files::{DraftFolder, folder_of};
use tilescribe::graph::Network;
use tilescribe::record::{Record, Store};
use tilescribe::space::{Space, Trace, Words};
use tilescribe::target::{Target, Task};

use super::exit::CommandError;
use super::packing::write_artifact;
use super::runner::Runner;
use super::search::stop_on_interrupt;
use super::variants::{Row, Variant};
use super::words::bytes;
use super::{progress, variants};

/// Runners-up of each task.
const RIVALS: usize = 2;
/// As many of the fastest programs are looked at for one by another algorithm than the winner's.
const LOOKED_AT: usize = 32;
/// A runner-up that was slower alone than this many times the winner loses in the network, too.
const MOST: f64 = 1.25;
/// What it has to be faster by, in the network, to take the winner's place: less is noise.
const MARGIN: f64 = 0.97;
/// Runs of each artifact, at least and at most, and how long they may take together.
const RUNS: std::ops::RangeInclusive<usize> = 5..=400;
const LONGEST: Duration = Duration::from_secs(2);
/// So many runs are enough, once they have taken so long together: those of a short network are told apart
/// from noise by their number.
const ENOUGH: (usize, Duration) = (40, Duration::from_millis(800));

/// What the comparison came to.
pub enum Settled {
    /// No task has a runner-up.
    Nothing,
    /// Why there was none, for people.
    Skipped(String),
    /// Tasks that had a runner-up, and those of them that took it.
    Compared { compared: usize, taken: usize },
}

/// Puts runners-up in the place of those winners that are slower in the network, unless all networks
/// together may need more than `allowed_bytes` of memory, or a run takes long. Several networks that compute
/// the same run in turn with one another: for each, what the comparison came to, and nanoseconds of a run as
/// it was left.
pub fn settle(
    networks: &mut [(&Network, &mut [Schedule])],
    target: &Target,
    space: &Space,
    store: Option<&Store>,
    memory: (&Path, u64),
) -> Result<Vec<(Settled, Option<f64>)>> {
    let of = |(network, chosen): &(&Network, &mut [Schedule])| match store {
        Some(store) => rivals(network, target, space, store, chosen),
        None => Ok(vec![Vec::new(); chosen.len()]),
    };
    let rivals: Vec<Vec<Vec<Schedule>>> = networks.iter().map(of).collect::<Result<_>>()?;
    let nothing = |reason: Option<&String>| (reason.cloned().map_or(Settled::Nothing, Settled::Skipped), None);
    if networks.len() < 2 && rivals.iter().flatten().all(Vec::is_empty) {
        return Ok(networks.iter().map(|_| nothing(None)).collect());
    }
    let all: Vec<Vec<Vec<Schedule>>> =
        networks.iter().zip(&rivals).map(|((_, chosen), rivals)| by_rank(chosen, rivals)).collect();
    let cuts: Vec<&Network> = networks.iter().map(|(network, _)| *network).collect();
    let (profiles, skipped) = match timed(&ranked(&cuts, &all, usize::MAX), target, memory)? {
        Ok(profiles) => (profiles, None),
        // the networks themselves may be few enough
        Err(reason) if networks.len() > 1 => match timed(&ranked(&cuts, &all, 1), target, memory)? {
            Ok(profiles) => (profiles, Some(reason)),
            Err(_) => return Ok(networks.iter().map(|_| nothing(Some(&reason))).collect()),
        },
        Err(reason) => return Ok(networks.iter().map(|_| nothing(Some(&reason))).collect()),
    };
    let (mut profiles, mut settled) = (profiles.as_slice(), Vec::with_capacity(networks.len()));
    for (((_, chosen), rivals), all) in networks.iter_mut().zip(rivals).zip(&all) {
        let (own, behind) = profiles.split_at(if skipped.is_some() { 1 } else { all.len() });
        profiles = behind;
        let Some((own, others)) = own.split_first() else { break };
        let compared = rivals.iter().filter(|rivals| !rivals.is_empty()).count();
        let (taken, saved_ns) = take_rivals(chosen, rivals, own, others);
        let what = match (&skipped, compared) {
            (Some(reason), _) => Settled::Skipped(reason.clone()),
            (None, 0) => Settled::Nothing,
            (None, _) => Settled::Compared { compared, taken },
        };
        settled.push((what, Some(own.run_ns - saved_ns)));
    }
    Ok(settled)
}

/// The schedules that were chosen, and then, rank by rank, those in which each task has a rival's place, if
/// there are as many.
fn by_rank(chosen: &[Schedule], rivals: &[Vec<Schedule>]) -> Vec<Vec<Schedule>> {
    let most = rivals.iter().map(Vec::len).max().unwrap_or(0);
    let of_rank = |rank: usize| {
        let each = chosen.iter().zip(rivals);
        each.map(|(own, rivals)| rivals.get(rank).unwrap_or(own).clone()).collect()
    };
    std::iter::once(chosen.to_vec()).chain((0..most).map(of_rank)).collect()
}

/// So many of the ranks of each network.
fn ranked<'a>(networks: &[&'a Network], all: &'a [Vec<Vec<Schedule>>], ranks: usize) -> Vec<Variant<'a>> {
    let of = |(network, all): (&&'a Network, &'a Vec<Vec<Schedule>>)| {
        let network: &'a Network = network;
        all.iter().take(ranks).map(move |schedules| Variant { network, schedules })
    };
    networks.iter().zip(all).flat_map(of).collect()
}

/// Gives tasks to rivals that were faster in the network: how many, and the nanoseconds of a run that they
/// save.
fn take_rivals(chosen: &mut [Schedule], rivals: Vec<Vec<Schedule>>, own: &Profile, others: &[Profile]) -> (usize, f64) {
    let (mut taken, mut saved_ns) = (0, 0.0);
    for (number, (schedule, rivals)) in chosen.iter_mut().zip(rivals).enumerate() {
        let Some(own) = time_of(own, number) else { continue };
        let timed = rivals.into_iter().zip(others);
        let timed = timed.filter_map(|(rival, profile)| Some((rival, time_of(profile, number)?)));
        let faster = timed
            .filter(|(rival, other)| *other < margin([&*schedule, rival].map(|of| of.nest.constant_bytes())) * own);
        if let Some((rival, other)) = faster.min_by(|a, b| a.1.total_cmp(&b.1)) {
            *schedule = rival;
            taken += 1;
            saved_ns += own - other;
        }
    }
    (taken, saved_ns)
}

/// Compiles variants of one network beside `output`, and runs them in turn: a profile of each, in their
/// order. The inner error says why not, for people: they may need more than `allowed_bytes` of memory
/// together, or take long.
fn timed(
    variants: &[Variant<'_>],
    target: &Target,
    (output, allowed_bytes): (&Path, u64),
) -> Result<Result<Vec<Profile>, String>> {
    if variants.iter().any(|variant| variant.network.may_run_forever()) {
        return Ok(Err("a loop that a condition alone ends might never end on inputs that mean nothing".to_string()));
    }
    let rows = variants::rows(variants);
    // all artifacts lie in memory at once
    let needed = rows.iter().map(Row::bytes_at_most).fold(0, u64::saturating_add);
    if needed > allowed_bytes {
        let (needed, allowed) = (bytes(needed), bytes(allowed_bytes));
        return Ok(Err(format!(
            "that may take {needed} of memory; {allowed} are allowed: --measuring-memory raises that"
        )));
    }
    let parent = std::path::absolute(output)?;
    let scratch = DraftFolder::create_in(folder_of(&parent))?;
    let threads = target.processors();
    let mut models = Vec::with_capacity(rows.len());
    for (number, Row { network, schedules, .. }) in rows.iter().enumerate() {
        let name = format!("row{number}");
        let folder = scratch.path().join(&name);
        let options = Options { name: &name, folder: &folder };
        let manifest = write_artifact(network, &[Version { target, schedules }], &options)?;
        let resources = Resources { threads: Some(threads), ..Resources::default() };
        models.push(Model::load_written(&folder, manifest, resources)?);
    }
    let Some(runs) = in_turn(&models, threads)? else {
        return Ok(Err(format!("a run takes more than {} s", LONGEST.as_secs())));
    };
    let threads = u16::try_from(threads).unwrap_or(u16::MAX);
    let profiles: Option<Vec<Vec<Profile>>> =
        rows.iter().zip(&runs).map(|(row, runs)| row.profiles(runs, threads)).collect();
    Ok(profiles.map(|profiles| profiles.concat()).ok_or_else(|| "a run tells of no call".into()))
}

/// By task: the fastest other programs of it, as far as they are nearly as fast as the chosen one. One of
/// them is by another algorithm, if there is one: what multiplies less reads more constants, and may lose in
/// the network what it wins alone.
fn rivals(
    network: &Network,
    target: &Target,
    space: &Space,
    store: &Store,
    chosen: &[Schedule],
) -> Result<Vec<Vec<Schedule>>> {
    let mut all = Vec::with_capacity(chosen.len());
    for (task, own) in network.tasks.iter().zip(chosen) {
        let task = Task { workload: task.workload.clone(), target: target.clone() };
        let fastest = store.fastest_few(&task, space, LOOKED_AT)?;
        let is_near = |ns: u64| own.best_ns.is_some_and(|own| ns as f64 <= MOST * own as f64);
        let others = fastest.into_iter().filter(|record| record.trace != own.trace);
        let near = others.filter(|record| record.outcome.best_ns().is_some_and(is_near)).collect();
        let rivals = first_and_other(near, |record| algorithm(&record.trace) != algorithm(&own.trace));
        let schedule = |record: &Record| Schedule::recorded(space, &task, &record.trace, record.outcome.best_ns());
        all.push(rivals.iter().map(schedule).collect::<Result<_, _>>()?);
    }
    Ok(all)
}

/// The first of some, the last of which gives way to the first other one where they hold none of that kind.
fn first_and_other<T>(mut all: Vec<T>, is_other: impl Fn(&T) -> bool) -> Vec<T> {
    if let Some(at) = all.iter().position(is_other).filter(|at| *at >= RIVALS) {
        all.swap(RIVALS - 1, at);
    }
    all.truncate(RIVALS);
    all
}

/// How many times the winner's time a rival may take, by the bytes of constants that both read: a tie goes to
/// the one that reads fewer. How many of them a cache holds that others share is another matter in every
/// process; and what reads fewest computes the task as it is written, with smaller errors of rounding.
fn margin([own, rival]: [usize; 2]) -> f64 {
    if rival < own { 1.0 } else { MARGIN }
}

/// What computes the task other than as it is written.
fn algorithm(trace: &Trace) -> Option<&Words> {
    let decided = trace.0.iter().find(|choice| choice.site.is("algorithm"));
    decided.map(|choice| &choice.value).filter(|value| !value.is("direct"))
}

/// What models do, run by run in turn: the runs of each; nothing where that would take long.
fn in_turn(models: &[Model], threads: u32) -> Result<Option<Vec<Vec<artifact::Trace>>>> {
    let stopped = stop_on_interrupt()?;
    let mut runners: Vec<Runner<'_>> = models.iter().map(Runner::new).collect::<Result<_>>()?;
    let (start, mut traces) = (Instant::now(), vec![Vec::new(); models.len()]);
    runners.iter_mut().try_for_each(|runner| runner.in_turn(threads).map(drop))?;
    if start.elapsed() > LONGEST {
        return Ok(None);
    }
    let bar = progress::bar(*RUNS.end() as u64, "comparing in the network");
    for run in 0..*RUNS.end() {
        bar.set_position(run as u64);
        let elapsed = start.elapsed();
        if run >= *RUNS.start() && elapsed > LONGEST || run >= ENOUGH.0 && elapsed > ENOUGH.1 {
            break;
        }
        if stopped.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(CommandError::Interrupted.into());
        }
        for (runner, traces) in runners.iter_mut().zip(&mut traces) {
            traces.extend(runner.in_turn(threads)?);
        }
    }
    bar.finish_and_clear();
    Ok(Some(traces))
}

/// Nanoseconds of all calls of a task in a run.
fn time_of(profile: &Profile, task: usize) -> Option<f64> {
    profile.tasks.iter().find(|time| time.callee == CompiledCall::Task(task)).map(|time| time.ns)
}

#[cfg(test)]
mod tests {
    use tilescribe::space::Trace;

    use super::{MARGIN, algorithm, first_and_other, margin};

    fn trace(text: &str) -> Trace {
        text.parse().unwrap()
    }

    #[test]
    fn a_tie_goes_to_who_reads_fewer_constants() {
        assert_eq!([[36, 16], [16, 36], [9, 9]].map(margin), [1.0, MARGIN, MARGIN]);
    }

    #[test]
    fn one_by_another_algorithm_is_compared_too() {
        let of = |text: &str| algorithm(&trace(text)).map(ToString::to_string);
        assert_eq!(of("algorithm = winograd 4\nparallel s0 = 1\n"), Some("winograd 4".into()));
        assert_eq!((of("algorithm = direct\n"), of("parallel s0 = 1\n")), (None, None));

        let chosen = |all: &[u32]| first_and_other(all.to_vec(), |number| *number >= 10);
        assert_eq!(chosen(&[1, 2, 3, 11, 12]), [1, 11]);
        assert_eq!(chosen(&[1, 10, 3, 11]), [1, 10]);
        assert_eq!(chosen(&[10, 2, 3]), [10, 2]);
        assert_eq!((chosen(&[1, 2, 3]), chosen(&[1])), (vec![1, 2], vec![1]));
    }
}
