//! Chooses the table of good programs that the method `transfer` takes over.
//!
//! usage: good_programs [--held-out SHARE] [--most-kib N] -o FILE RECORDS...
//!
//! RECORDS are corpus files. Of each task and machine, the fastest program that this version reads; tasks
//! that training holds out (by their hashes: the default share is that of `pretrain`) are left out, and as
//! many of each class are chosen as the file has room for. The choice follows from the hashes alone.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::BufReader;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use tilescribe::outcome::Outcome;
use tilescribe::propose::class_of;
use tilescribe::record::{CorpusReader, CorpusWriter, Entry, Limits, hold_out_key};
use tilescribe::space::Space;

#[derive(Parser)]
struct Arguments {
    #[arg(long, default_value_t = 0.1)]
    held_out: f32,
    #[arg(long, default_value_t = 240)]
    most_kib: usize,
    #[arg(short, long)]
    output: PathBuf,
    #[arg(required = true)]
    records: Vec<PathBuf>,
}

/// The most tasks of a class, and the most machines whose programs are kept of each.
const OF_CLASS: usize = 64;
const MACHINES: usize = 2;

fn main() -> Result<()> {
    let Arguments { held_out, most_kib, output, records } = Arguments::parse();
    let space = Space::standard();
    let mut best: BTreeMap<(String, String), Entry> = BTreeMap::new();
    for path in &records {
        let file = BufReader::new(fs::File::open(path).with_context(|| path.display().to_string())?);
        for entry in CorpusReader::new(file, Limits::default())? {
            let entry = entry?;
            let Some(ns) = entry.record.outcome.best_ns() else { continue };
            if hold_out_key(&entry.record.task_hash) < held_out {
                continue;
            }
            let key = (entry.record.task_hash.clone(), entry.record.target.clone());
            let known = best.get(&key).and_then(|known| known.record.outcome.best_ns());
            if known.is_none_or(|known| ns < known) {
                best.insert(key, entry);
            }
        }
    }
    let mut tasks: BTreeMap<String, Vec<Entry>> = BTreeMap::new();
    for ((hash, _), Entry { task, record }) in best {
        let Ok(mut record) = record.read_by(&task, &space) else { continue };
        let of_task = tasks.entry(hash).or_default();
        let is_new = of_task.iter().all(|other| other.record.trace != record.trace);
        if is_new && of_task.len() < MACHINES && space.offers(&task, &record.trace) {
            // how fast it is elsewhere tells nothing here
            record.outcome = Outcome::Timed { times_ns: record.outcome.best_ns().into_iter().collect(), compile_us: 0 };
            of_task.push(Entry { task, record });
        }
    }
    for most in (1..=OF_CLASS).rev() {
        let chosen = chosen(&tasks, most);
        let mut writer = CorpusWriter::new(Vec::new())?;
        chosen.iter().try_for_each(|entry| writer.write(entry))?;
        let bytes = writer.finish()?;
        if bytes.len() <= most_kib << 10 {
            let tasks: BTreeSet<&str> = chosen.iter().map(|entry| entry.record.task_hash.as_str()).collect();
            println!("{} programs of {} tasks, {} bytes", chosen.len(), tasks.len(), bytes.len());
            return fs::write(&output, bytes).with_context(|| output.display().to_string());
        }
    }
    ensure!(!tasks.is_empty(), "no record can be used");
    anyhow::bail!("one program of each class is more than {most_kib} KiB")
}

/// Programs of up to so many tasks of each class, those of a class together.
fn chosen(tasks: &BTreeMap<String, Vec<Entry>>, most: usize) -> Vec<&Entry> {
    let mut classes: BTreeMap<String, Vec<&Vec<Entry>>> = BTreeMap::new();
    for of_task in tasks.values().filter(|of_task| !of_task.is_empty()) {
        classes.entry(class_of(&of_task[0].task.workload)).or_default().push(of_task);
    }
    classes.values().flat_map(|of_class| of_class.iter().take(most)).flat_map(|of_task| of_task.iter()).collect()
}
