//! `tilescribe records`

use std::fs::File;
use std::io::{BufReader, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use serde_json::json;
use tilescribe::files;
use tilescribe::record::{Agreements, CorpusReader, CorpusWriter, Filter, Limits, Prune, Store};
use tilescribe::space::Space;
use tilescribe::target::Kind as MachineKind;

use super::arguments::StoreArguments;
use super::exit::CommandError;
use super::output::{Kind, Output};
use super::words::{counted, duration};

/// List, export, import, compare or prune what was measured
#[derive(Args)]
pub struct Records {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Print a line for each task, target and space
    List {
        #[command(flatten)]
        store: StoreArguments,
        /// Print JSON objects, one a line
        #[arg(long)]
        json: bool,
    },
    /// Print a line for each plan of a network that `compile` timed, the fastest of a network first
    ///
    /// A network is named by a hash of what it calls where all decisions have their defaults. The time is the
    /// sum of its tasks', in finals or by the fastest records; where whole networks were run in turn, that of
    /// a run follows, and that of the default plan's.
    Plans {
        #[command(flatten)]
        store: StoreArguments,
        /// Only those of the network with this hash
        #[arg(long, value_name = "HASH")]
        network: Option<String>,
        /// Print JSON objects, one a line, with the plans' text
        #[arg(long)]
        json: bool,
    },
    /// Write records as a corpus file: JSON lines, compressed with zstd
    Export {
        /// File to write
        file: PathBuf,
        #[command(flatten)]
        store: StoreArguments,
        #[command(flatten)]
        filter: FilterArguments,
    },
    /// Take in the records of corpus files
    Import {
        /// Files that `export` or `collect` wrote
        #[arg(required = true)]
        files: Vec<PathBuf>,
        #[command(flatten)]
        store: StoreArguments,
    },
    /// Tell how far two measurements of the same programs agree
    ///
    /// `tilescribe plan --records FIRST` writes the programs of a corpus file as a plan, and `tilescribe
    /// measure --plan` measures them a second time. What the two disagree on is noise, which nothing that
    /// learns from either can rank.
    Agreement {
        /// Corpus file
        first: PathBuf,
        /// Corpus file of the same programs, the one that is trusted more
        second: PathBuf,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
    /// Throw records away
    Prune {
        #[command(flatten)]
        store: StoreArguments,
        /// Those of other versions of the search space
        #[arg(long, conflicts_with = "keep", required_unless_present = "keep")]
        other_spaces: bool,
        /// All but the N fastest of each task
        #[arg(long, value_name = "N")]
        keep: Option<u64>,
    },
}

/// Which records.
#[derive(Args)]
struct FilterArguments {
    /// Only those of the task with this hash
    #[arg(long, value_name = "HASH")]
    task: Option<String>,
    /// Only those of the target with this fingerprint
    #[arg(long, value_name = "FINGERPRINT")]
    target: Option<String>,
}

impl Records {
    pub fn execute(self, out: &mut dyn Write) -> Result<()> {
        match self.action {
            Action::List { store, json } => list(&store, json, out),
            Action::Plans { store, network, json } => plans(&store, network.as_deref(), json, out),
            Action::Export { file, store, filter } => {
                let Some(store) = store.open_existing()? else {
                    let reason = format!("there is no store {}", store.path()?.display());
                    return Err(CommandError::Usage(reason).into());
                };
                let output = Output::new(&file, Kind::Corpus, &[store.path()])?;
                let filter = Filter { task_hash: filter.task, target: filter.target, space: None };
                let count = output.write(|file| export(&store, &filter, file))?;
                Ok(writeln!(out, "{}", counted(count, "record"))?)
            }
            Action::Import { files, store } => {
                let mut store = store.open()?;
                for file in files {
                    let imported = store.import(corpus(&file)?).with_context(|| file.display().to_string())?;
                    let (new, replaced, kept) = (imported.new, imported.replaced, imported.kept);
                    writeln!(out, "{}: {new} new, {replaced} replaced, {kept} known already", file.display())?;
                }
                Ok(())
            }
            Action::Agreement { first, second, json } => agreement(&first, &second, json, out),
            Action::Prune { store, keep, other_spaces: _ } => {
                if store.open_existing()?.is_none() {
                    return Ok(writeln!(out, "0 records")?);
                }
                let mut store = store.open()?;
                let what = match keep {
                    Some(count) => Prune::AllBut(count),
                    None => {
                        // what this space reads stays, whatever its version
                        let kinds = [MachineKind::Cpu, MachineKind::Gpu];
                        Prune::OtherSpaces(store.readable_spaces(&Space::standard(), &kinds)?)
                    }
                };
                let count = store.prune(&what)?;
                Ok(writeln!(out, "{}", counted(count, "record"))?)
            }
        }
    }
}

/// Writes the records that are meant; none at all is an error, so that they replace nothing.
fn export(store: &Store, filter: &Filter, file: &mut dyn Write) -> Result<u64> {
    let mut writer = CorpusWriter::new(file)?;
    let count = store.export(filter, &mut writer)?;
    if count > 0 {
        writer.finish()?;
        return Ok(count);
    }
    let path = store.path().display();
    let of = |what: &str, name: &Option<String>| name.as_ref().map(|name| format!(" of {what} {name}"));
    let meant = [of("task", &filter.task_hash), of("target", &filter.target)].into_iter().flatten();
    let reason = format!("{path} holds no record{}; `tilescribe records list` lists them", meant.collect::<String>());
    Err(CommandError::Usage(reason).into())
}

/// Opens a corpus file.
pub(super) fn corpus(file: &Path) -> Result<CorpusReader<BufReader<File>>> {
    let opened = files::open(file).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(CorpusReader::new(BufReader::new(opened), Limits::default())?)
}

fn agreement(first: &Path, second: &Path, as_json: bool, out: &mut dyn Write) -> Result<()> {
    let mut agreements = Agreements::default();
    for (file, is_second) in [(first, false), (second, true)] {
        for entry in corpus(file)? {
            agreements.add(entry.with_context(|| file.display().to_string())?, is_second);
        }
    }
    let Some(found) = agreements.finish() else {
        let reason = format!("{} and {} have no timed program in common", first.display(), second.display());
        return Err(CommandError::Usage(reason).into());
    };
    if as_json {
        return Ok(writeln!(out, "{}", serde_json::to_string(&found)?)?);
    }
    writeln!(out, "{} of {}", counted(found.programs, "program"), counted(found.tasks, "task"))?;
    for band in &found.pairs {
        let to = band.to.map_or_else(|| "and more".into(), |to| format!("to {:.0} %", to * 100.0));
        let share = 100.0 * band.in_order as f64 / (band.pairs as f64).max(1.0);
        writeln!(
            out,
            "pairs that differ by {:>2.0} % {to:<8} {share:>5.1} % in the same order, of {}",
            band.from * 100.0,
            band.pairs
        )?;
    }
    for deviation in &found.deviations {
        let share = deviation.share * 100.0;
        writeln!(out, "{share:.0} % of times are off by a factor of {:.2} at most", deviation.factor)?;
    }
    Ok(())
}

fn list(store: &StoreArguments, as_json: bool, out: &mut dyn Write) -> Result<()> {
    let Some(store) = store.open_existing()? else { return Ok(()) };
    for row in store.list()? {
        if as_json {
            let line = json!({
                "task": row.task_hash, "target": row.target, "space": row.space, "records": row.records,
                "timed": row.timed, "best_ns": row.best_ns, "created_unix_s": row.created_unix_s,
            });
            writeln!(out, "{line}")?;
        } else {
            let best = row.best_ns.map_or_else(|| "-".into(), duration);
            let records = counted(row.records, "record");
            writeln!(out, "{} {} {records:>15} {:>7} timed, best {best}", row.task_hash, row.target, row.timed)?;
        }
    }
    Ok(())
}

fn plans(store: &StoreArguments, network: Option<&str>, as_json: bool, out: &mut dyn Write) -> Result<()> {
    let Some(store) = store.open_existing()? else { return Ok(()) };
    for plan in store.plans(network)? {
        if as_json {
            let line = json!({
                "network": plan.program, "name": plan.name, "target": plan.target, "plan": plan.plan,
                "tasks": plan.tasks, "calls": plan.calls, "tasks_ns": plan.tasks_ns, "timing": plan.timing.name(),
                "run_ns": plan.run.map(|run| run.ns), "default_run_ns": plan.run.map(|run| run.default_ns),
                "created_unix_s": plan.created_unix_s, "tilescribe": plan.tilescribe,
            });
            writeln!(out, "{line}")?;
            continue;
        }
        let decisions = counted(plan.plan.lines().count() as u64, "decision");
        let sum = format!("{:>10} by {}", duration(plan.tasks_ns as u64), plan.timing.name());
        let run = plan.run.map_or_else(String::new, |run| {
            format!(", a run {}, of the default plan {}", duration(run.ns as u64), duration(run.default_ns as u64))
        });
        writeln!(out, "{} {} {} {decisions:>13} {sum}{run}", plan.program, plan.target, plan.name)?;
    }
    Ok(())
}
