//! `tilescribe compare --replay`

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use tilescribe::files;
use tilescribe::language::Language;
use tilescribe::model::{Checkpoint, ModelControl};
use tilescribe::record::{Limits, Pool, read_pools};
use tilescribe::space::Space;
use tilescribe::tune::bootstrap::{Difference, Interval, Score};
use tilescribe::tune::replay::{RANKERS, Ranker, RankerKind, Replay, replay};

use super::arguments::Assignment;
use super::progress;
use super::search::CheckpointArguments;
use super::words::counted;

/// Scoring without measuring.
#[derive(Args)]
pub struct ReplayArguments {
    /// Instead of searching: score samplers and rankers on pools of programs that `tilescribe pools` measured
    #[arg(long, num_args = 1.., value_name = "FILE")]
    #[arg(conflicts_with_all = ["methods", "workloads", "output", "fleet"])]
    pub replay: Vec<PathBuf>,
    /// With --replay: who ranks, separated by commas, beside chance and the first measurement [default:
    /// estimator]; each with the controls of --control and the checkpoints of --rival, too
    #[arg(long, value_name = "RANKER", value_delimiter = ',', requires = "replay", value_parser = ranker_parser())]
    rankers: Vec<RankerKind>,
    /// With --replay: end with a line of JSON
    #[arg(long, requires = "replay")]
    json: bool,
}

/// Reads the name of a ranker.
fn ranker_parser() -> impl TypedValueParser<Value = RankerKind> {
    let values = RANKERS.iter().map(|ranker| PossibleValue::new(ranker.name).help(ranker.about));
    PossibleValuesParser::new(values).try_map(|name| RankerKind::named(&name).ok_or("no such ranker"))
}

/// Rankers that are always there, and the one that is where nobody chose others.
const ALWAYS: [&str; 2] = ["chance", "first-pass"];
const DEFAULT: &str = "estimator";

/// The most bytes of a file of pools, decompressed: all of it is held in memory.
const MAX_FILE_BYTES: u64 = 8 << 30;

impl ReplayArguments {
    pub fn execute(
        &self,
        checkpoint: &CheckpointArguments,
        rivals: &[Assignment<String>],
        controls: &[ModelControl],
        out: &mut dyn Write,
    ) -> Result<()> {
        let space = Space::standard();
        let mut pools: Vec<Pool> = Vec::new();
        for path in &self.replay {
            pools.extend(read(path)?);
        }
        let rankers = self.rankers(&space, checkpoint, rivals, controls)?;
        let bar = progress::bar(pools.len() as u64, "scoring");
        let found = replay(&space, &pools, &rankers, &|| bar.inc(1))?;
        bar.finish_and_clear();
        print(&found, out)?;
        if self.json {
            writeln!(out, "{}", serde_json::to_string(&found)?)?;
        }
        Ok(())
    }

    /// Each kind with the checkpoint, its controls, and the rivals' checkpoints.
    fn rankers(
        &self,
        space: &Space,
        checkpoint: &CheckpointArguments,
        rivals: &[Assignment<String>],
        controls: &[ModelControl],
    ) -> Result<Vec<Ranker>> {
        let chosen = self.rankers.iter().map(|kind| kind.name);
        let default = self.rankers.is_empty().then_some(DEFAULT);
        let mut names = BTreeSet::new();
        let names = ALWAYS.into_iter().chain(chosen).chain(default).filter(|name| names.insert(*name));
        let kinds: Vec<RankerKind> = names.filter_map(RankerKind::named).collect();
        let language = Language::standard();
        let mut known: BTreeMap<Option<&str>, Arc<Checkpoint>> = BTreeMap::new();
        let mut rankers = Vec::new();
        let contestants = std::iter::once(None).chain(rivals.iter().map(Some));
        for rival in contestants {
            let own = CheckpointArguments { checkpoint: rival.map(|rival| rival.value.clone()) };
            let arguments = if rival.is_some() { &own } else { checkpoint };
            for kind in kinds.iter().filter(|kind| rival.is_none() || kind.needs_checkpoint()) {
                let key = rival.map(|rival| rival.name.as_str());
                let once = || -> Result<Arc<Checkpoint>> {
                    if let Some(known) = known.get(&key) {
                        return Ok(Arc::clone(known));
                    }
                    let read = Arc::new(arguments.load(space, &language)?);
                    known.insert(key, Arc::clone(&read));
                    Ok(read)
                };
                let ranker = Ranker::new(*kind, once)?;
                let ranker = match key {
                    None => ranker,
                    Some(name) => ranker.called(format!("{}@{name}", kind.name)),
                };
                let controlled: Vec<Ranker> =
                    controls.iter().filter_map(|control| ranker.controlled(*control)).collect();
                rankers.push(ranker);
                rankers.extend(controlled);
            }
        }
        Ok(rankers)
    }
}

fn read(path: &Path) -> Result<Vec<Pool>> {
    let shown = path.display();
    let file = files::open(path).with_context(|| format!("cannot read {shown}"))?;
    let limits = Limits { file_bytes: MAX_FILE_BYTES, ..Limits::default() };
    read_pools(BufReader::new(file), limits).with_context(|| format!("the pools {shown}"))
}

/// Two tables, as Markdown.
fn print(found: &Replay, out: &mut dyn Write) -> Result<()> {
    let Replay { tasks, programs, failed, untuned, samplers, differences, rankers } = found;
    let (of, all) = (counted(*tasks, "task"), counted(*programs, "program"));
    writeln!(out, "{of}, {all}, {failed} failed; the rules' programs: {}\n", score(untuned))?;
    let points: BTreeSet<usize> = samplers.values().flat_map(|sampler| sampler.best_of.keys().copied()).collect();
    writeln!(out, "Best of N by sampler: the time of the task's best program divided by its own.\n")?;
    header(&["sampler", "draws", "dead ends", "distinct"], &points, out)?;
    for (name, sampler) in samplers {
        let cells = points.iter().map(|point| sampler.best_of.get(point).map_or(String::new(), score));
        let counts = [sampler.draws, sampler.dead_ends, sampler.distinct].map(|count| count.to_string());
        row([name.clone()].into_iter().chain(counts).chain(cells), out)?;
    }
    for pair in differences {
        let cells = points.iter().map(|point| pair.best_of.get(point).map_or(String::new(), difference));
        let name = format!("{} - {}", pair.sampler, pair.other);
        row([name, String::new(), String::new(), String::new()].into_iter().chain(cells), out)?;
    }
    writeln!(out, "\nRegret of the first k by ranker: how much slower the best of them is than the sampler's best.\n")?;
    header(&["sampler", "ranker"], &points, out)?;
    for (sampler, by_ranker) in rankers {
        for (ranker, scores) in by_ranker {
            let cells = points.iter().map(|point| scores.get(point).map_or(String::new(), regret));
            row([sampler.clone(), ranker.clone()].into_iter().chain(cells), out)?;
        }
    }
    Ok(())
}

fn header(names: &[&str], points: &BTreeSet<usize>, out: &mut dyn Write) -> Result<()> {
    row(names.iter().map(ToString::to_string).chain(points.iter().map(ToString::to_string)), out)?;
    row((0..names.len() + points.len()).map(|_| "---".to_string()), out)
}

fn row(cells: impl Iterator<Item = String>, out: &mut dyn Write) -> Result<()> {
    let cells: Vec<String> = cells.collect();
    Ok(writeln!(out, "| {} |", cells.join(" | "))?)
}

fn score(score: &Score) -> String {
    format!("{:.3}{}", score.quality, in_brackets(score.interval, |bound| format!("{bound:.3}")))
}

fn difference(found: &Difference) -> String {
    format!("{:+.3}{}", found.difference, in_brackets(found.interval, |bound| format!("{bound:+.3}")))
}

/// In hundredths of the best time; the interval's ends change places.
fn regret(score: &Score) -> String {
    let percent = |quality: f64| format!("{:.1}", (1.0 / quality - 1.0) * 100.0);
    let interval = score.interval.map(|(low, high)| (high, low));
    format!("{} %{}", percent(score.quality), in_brackets(interval, percent))
}

fn in_brackets(interval: Option<Interval>, bound: impl Fn(f64) -> String) -> String {
    interval.map_or(String::new(), |(low, high)| format!(" ({} to {})", bound(low), bound(high)))
}
