//! `tilescribe compile`

use std::cell::OnceCell;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use serde_json::json;
use tilescribe::artifact::{self, Manifest, Options, Version};
use tilescribe::graph::{Network, Plan};
use tilescribe::target::Target;
use tilescribe::tune::Report;

use super::arguments::{NetworkArguments, StoreArguments, TargetArguments, read_target, seconds};
use super::in_network::{self, Settled};
use super::layouts::{Plans, PlansArguments};
use super::packing::write_judged;
use super::planning::{self, Contest};
use super::precision;
use super::search::{SearchArguments, jobs, judge};
use super::tuned::{Draft, LEAST_GAIN, Setting, Tuned};
use super::words::{bytes, counted, duration};
use super::{extents, forks};

/// Compile a network into a folder that any C program can use
///
/// Schedules are searched for first: 6 programs for each task are measured, those in the store counted, of
/// the tasks that promise most, and fewer where a further second is expected to save less than 0.35 % of the
/// network's time; unless another budget is given. Of tasks that differ in numbers alone (the scales of a
/// quantised network), one is searched for, with up to three times the programs, and the others take its
/// winner over. What is measured goes into the store. With `--trials-per-task 1` a task takes the model's
/// first choice where the model is sure, before anything is measured, that it is faster than the untuned
/// program, and the untuned program otherwise. With `--trials-per-task 0` every task takes the best schedule
/// that the store holds for this target, or else the untuned one.
///
/// How the network is cut into tasks is searched, too: for each kind of decisions (`show --plan` lists them),
/// schedules are searched for its tasks with all defaults and with all others, in full where a few programs
/// say that they come near the fastest, then single decisions are changed where times say so. At last the
/// best network, that with all defaults, and those that decide all alike run in turn, where their tasks say
/// that they are near. `--plan` and `--layouts` decide beforehand, `--without` leaves a kind of decisions
/// out.
///
/// Calls that need nothing of one another run at the same time where that is faster, which is measured in the
/// end; `--in-turn` leaves that out.
#[derive(Args)]
pub struct Compile {
    /// ONNX file
    model: PathBuf,
    /// Folder to write; an artifact that stands there is replaced
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    #[command(flatten)]
    network: NetworkArguments,
    #[command(flatten)]
    plans: PlansArguments,
    #[command(flatten)]
    target: TargetArguments,
    /// Another GPU that the artifact shall run on, beside that of --target; its tasks take the best schedules
    /// in the store, or the untuned ones
    #[arg(long = "also", value_name = "FILE.toml")]
    others: Vec<PathBuf>,
    #[command(flatten)]
    search: SearchArguments,
    /// Search as long as it pays, and so long at most: each program is one of the task where a second is
    /// expected to save most of the network's time, until a further second is expected to save less than
    /// 0.35 % of it
    #[arg(long, value_name = "S", value_parser = seconds, conflicts_with_all = ["time_budget", "trials_per_task"])]
    seconds: Option<f64>,
    #[command(flatten)]
    store: StoreArguments,
    /// Run all calls one after the other, those that need nothing of one another as well
    #[arg(long)]
    in_turn: bool,
    /// Prefix of the C functions [default: the folder's name]
    #[arg(long)]
    name: Option<String>,
    /// End with a line of JSON
    #[arg(long)]
    json: bool,
}

impl Compile {
    pub fn execute(self, out: &mut dyn Write) -> Result<()> {
        let mut targets = vec![self.target.resolve()?];
        for path in &self.others {
            targets.push(read_target(path)?);
        }
        artifact::check_targets(&targets)?;
        // said now, rather than after the search
        artifact::check_output(&self.output)?;
        precision::warn_of_slow(self.network.precision, &targets[0]);
        let (draft, mut contest) = self.planned(&targets, out)?;
        let Draft { mut network, found, mut chosen } = draft;
        if !found.jobs.is_empty() {
            judge(&jobs(&network, &targets[0]), &found)?;
        }
        let memory = (self.output.as_path(), self.search.measuring.measuring_memory);
        let settled = match (contest.take_settled(), self.store.open_if_there()?, &targets[0]) {
            (Some(settled), ..) => settled,
            (None, Some(store), Target::Cpu(_)) if !found.jobs.is_empty() => {
                let (space, mut alone) = (self.search.space.space(), [(&network, chosen[0].as_mut_slice())]);
                let settled = in_network::settle(&mut alone, &targets[0], &space, Some(&store), memory)?;
                settled.into_iter().next().map_or(Settled::Nothing, |(settled, _)| settled)
            }
            _ => Settled::Nothing,
        };
        // where nothing is measured, nothing says that it pays
        if !found.jobs.is_empty() && !self.in_turn && !network.may_run_forever() {
            forks::fork(&mut network, &targets[0], &chosen[0]);
        }
        let untuned = chosen.iter().flatten().filter(|schedule| schedule.best_ns.is_none()).count();
        let name = self.name.clone().unwrap_or_else(|| identifier(&self.output));
        let options = Options { name: &name, folder: &self.output };
        let versions: Vec<Version<'_>> =
            targets.iter().zip(&chosen).map(|(target, schedules)| Version { target, schedules }).collect();
        let mut judged = None;
        let manifest = write_judged(&network, &versions, &options, |folder, manifest| {
            let (stays, all) = forks::judge(folder, manifest, &targets[0])?;
            judged = Some(all);
            Ok(stays)
        })?;
        times(&network, &found, out)?;
        if found.enough {
            let (trials, after) = (counted(found.trials, "program"), found.seconds);
            writeln!(out, "the search ended after {trials} and {after:.1} s: a further second promises little")?;
        }
        if contest.has_rivals() {
            writeln!(out, "{contest}")?;
        }
        match &settled {
            Settled::Nothing => {}
            Settled::Skipped(reason) => writeln!(out, "runners-up were not compared in the network: {reason}")?,
            Settled::Compared { compared, taken } => {
                let compared = counted(*compared, "task");
                writeln!(out, "of {compared} with a runner-up, {taken} take it: it is faster in the network")?;
            }
        }
        if let Some(judged) = &judged {
            writeln!(out, "{judged}")?;
        }
        report(&manifest, &self.output, untuned, out)?;
        if self.json {
            let mut line = json!(found);
            line["untuned"] = json!(untuned);
            if let Settled::Compared { compared, taken } = settled {
                line["runners_up"] = json!({ "compared": compared, "taken": taken });
            }
            if let Some(judged) = &judged {
                line["forks"] = judged.json();
            }
            line["calls"] = json!(manifest.calls.len());
            line["precision"] = json!(manifest.precision);
            line["memory"] = json!(manifest.memory);
            if contest.has_rivals() {
                line["plans"] = contest.json();
            }
            if let Some(plan) = &manifest.plan {
                line["plan"] = json!(plan.text);
            }
            if manifest.has_symbols() {
                line["symbols"] = json!(manifest.symbols);
            }
            writeln!(out, "{line}")?;
        }
        Ok(())
    }

    /// How to search, where `--seconds` is given for as long as it pays.
    fn searching(&self) -> SearchArguments {
        let mut arguments = self.search.clone();
        if let Some(seconds) = self.seconds {
            (arguments.time_budget, arguments.least_gain) = (Some(seconds), Some(LEAST_GAIN));
        }
        arguments
    }

    /// The network by the plan that is taken, with schedules that were searched for on the first target. What
    /// was learned of plans goes into the store.
    fn planned(&self, targets: &[Target], out: &mut dyn Write) -> Result<(Draft, Contest)> {
        let (program, plans) = self.plans.read(&self.model, &self.network, targets)?;
        let first = match &plans {
            Plans::One(network) => network,
            Plans::Within(_) => &program.cut(&Plan::default())?,
        };
        artifact::check_network(first, targets)?;
        extents::print_assumed(first, &self.network.dimensions, out)?;
        let search = self.searching();
        let (space, searcher) = (search.space.space(), OnceCell::new());
        let setting = Setting {
            search: &search,
            target: &self.target,
            store: &self.store,
            space: &space,
            searcher: &searcher,
            targets,
        };
        let mut tuned = Tuned::new(setting, first);
        let (hash, target) = (program.hash()?, &targets[0]);
        let (draft, contest) = match plans {
            Plans::One(network) => planning::single(network, &mut tuned)?,
            Plans::Within(bounds) => {
                let known = self.store.open_if_there()?.map(|store| planning::known(&store, &hash, target));
                let known = known.transpose()?.unwrap_or_default();
                let memory = (self.output.as_path(), self.search.measuring.measuring_memory);
                planning::search(&program, &bounds, &mut tuned, &known, target, memory)?
            }
        };
        if tuned.measures() {
            let name = self.model.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
            let kept = self.store.open()?.insert_plans(target, &contest.records(&hash, &name, target));
            // what was searched for is kept already, and the network can be written all the same
            kept.unwrap_or_else(|error| tracing::warn!("the times of plans are not kept: {error}"));
        }
        Ok((draft, contest))
    }
}

/// What tuning gained: a line for each task that was searched, and one for all calls together.
fn times(network: &Network, found: &Report, out: &mut dyn Write) -> Result<()> {
    let row = |cells: [&str; 4], name: &str| {
        format!("{:>10} {:>10} {:>8} {:>6}  {name}", cells[0], cells[1], cells[2], cells[3])
    };
    let (mut tuned_ns, mut untuned_ns) = (0, 0);
    for (number, (task, job)) in network.tasks.iter().zip(&found.jobs).enumerate() {
        if number == 0 {
            writeln!(out, "{}", row(["tuned", "untuned", "faster", "calls"], "task"))?;
        }
        let tuned = job.best.as_ref().map(|(_, ns)| *ns);
        let time = |ns: Option<u64>| ns.map_or_else(|| "-".into(), duration);
        let factor = |tuned: u64, untuned: u64| format!("{:.2} x", untuned as f64 / tuned.max(1) as f64);
        let gain = tuned.zip(job.untuned_ns).map_or_else(|| "-".into(), |(tuned, untuned)| factor(tuned, untuned));
        let calls = task.weight.to_string();
        writeln!(out, "{}", row([&time(tuned), &time(job.untuned_ns), &gain, &calls], &task.name))?;
        tuned_ns += tuned.unwrap_or(0) * task.weight as u64;
        untuned_ns += job.untuned_ns.or(tuned).unwrap_or(0) * task.weight as u64;
        if number + 1 == found.jobs.len() {
            let cells = [duration(tuned_ns), duration(untuned_ns), factor(tuned_ns, untuned_ns)];
            let calls: usize = network.tasks.iter().map(|task| task.weight).sum();
            writeln!(out, "{}", row([&cells[0], &cells[1], &cells[2], &calls.to_string()], "all"))?;
        }
    }
    Ok(())
}

fn report(manifest: &Manifest, folder: &Path, untuned: usize, out: &mut dyn Write) -> Result<()> {
    let memory = &manifest.memory;
    let (tasks, calls) = (counted(manifest.tasks.len(), "task"), counted(manifest.calls.len(), "call"));
    let untuned = counted(untuned, "task");
    let machines = match manifest.versions.len() {
        1 => String::new(),
        count => format!(" on {count} machines"),
    };
    writeln!(out, "{}: {tasks}, {calls}, {untuned} untuned{machines}", folder.display())?;
    writeln!(
        out,
        "memory: weights {}, arena {} (lower bound {}, without sharing {}), workspace {}",
        bytes(memory.weights_bytes),
        bytes(memory.arena_bytes),
        bytes(memory.lower_bound_bytes),
        bytes(memory.intermediate_bytes),
        bytes(memory.workspace_bytes)
    )?;
    Ok(())
}

/// The name of a folder, as a C identifier.
pub fn identifier(folder: &Path) -> String {
    let stem = folder.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
    let plain: String = stem.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).take(50).collect();
    let prefix = if plain.starts_with(|c: char| c.is_ascii_alphabetic()) && !plain.starts_with("tilescribe") {
        ""
    } else {
        "net_"
    };
    format!("{prefix}{plain}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_folder_gives_an_identifier() {
        for (folder, name) in [
            ("out/bert-base/", "bert_base"),
            ("3x3", "net_3x3"),
            ("tilescribe", "net_tilescribe"),
            ("..", "net_"),
            ("é.v2", "net__"),
        ] {
            assert_eq!(identifier(Path::new(folder)), name);
        }
    }
}
