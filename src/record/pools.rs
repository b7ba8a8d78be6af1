//! Pool files: for each of some tasks, programs that samplers drew without any filter, every one measured
//! twice. JSON lines, compressed with zstd, as corpus files are; a line for each program, complete in itself,
//! those of a task together.
//!
//! | field | |
//! | --- | --- |
//! | `pools` | [`POOLS_FORMAT`]; a file of another one is refused |
//! | `task`, `name`, `workload` | canonical hash of the workload, a name for people, and its canonical text |
//! | `target`, `target_data` | fingerprint of the target, and the target |
//! | `space` | version of the space |
//! | `samplers`, `seeds`, `samples` | who drew programs of this task, with how many seeds from 0 on, and how many with each; the same in all lines of a task |
//! | `trace` | the decisions, a line each |
//! | `draws` | who drew it: `sampler`, `seed`, and its number `at` among what was drawn so, from 0 on. What no line was drawn at was a dead end |
//! | `untuned` | whether it is the program of the rules, which is there whether it was drawn or not |
//! | `outcome`, `detail` | `timed`, or why it failed in the first or the second pass |
//! | `first_ns`, `second_ns` | nanoseconds of a run, the lower quartile, in either pass, at the pace of that pass; 0 where failed |
//! | `checkpoint` | fingerprint of the model that samplers asked |
//! | `created_unix_s`, `tilescribe` | when, and by which version |

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufRead, Write};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::corpus::{CorpusError, Limits, Lines, Tasks, encoder};
use crate::outcome::Failure;
use crate::space::Trace;
use crate::target::{Target, Task};

/// Of the lines. Raised whenever a field changes.
pub const POOLS_FORMAT: u32 = 1;

/// The most samplers of a task, seeds of each, and samples of a seed.
const MOST_SAMPLERS: usize = 64;
const MOST_SEEDS: u32 = 10_000;
const MOST_SAMPLES: u32 = 1_000_000;
/// The most samples of all seeds.
const MOST_DRAWS: u64 = 1 << 20;
/// The longest name of a sampler, in bytes.
const LONGEST_NAME: usize = 64;

/// What samplers drew of a task.
#[derive(Clone, PartialEq, Debug)]
pub struct Pool {
    pub name: String,
    pub task: Arc<Task>,
    /// Version of the space that the traces belong to.
    pub space: String,
    /// Who drew.
    pub samplers: Vec<String>,
    /// Each with the seeds from 0 on ...
    pub seeds: u32,
    /// ... and so many programs with each, dead ends among them.
    pub samples: u32,
    /// Each once.
    pub programs: Vec<PoolProgram>,
    /// Fingerprint of the checkpoint that samplers asked.
    pub checkpoint: String,
    /// When the first program was measured.
    pub created_unix_s: u64,
    /// The Tilescribe that measured.
    pub tilescribe: String,
}

/// A program of a pool.
#[derive(Clone, PartialEq, Debug)]
pub struct PoolProgram {
    pub trace: Trace,
    /// Whether it is the program that the rules write without any search.
    pub untuned: bool,
    /// Where it was drawn; nowhere, if it is there as the untuned one only.
    pub draws: Vec<Draw>,
    /// Nanoseconds in the first and the second pass; or why there are none.
    pub times: Result<[u64; 2], (Failure, String)>,
}

/// A place among what samplers drew.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Draw {
    /// By its number among the samplers of the pool.
    pub sampler: usize,
    pub seed: u32,
    pub at: u32,
}

/// Why a file of pools cannot be read or written.
#[derive(Debug, Error)]
pub enum PoolsError {
    /// As of corpus files.
    #[error(transparent)]
    File(#[from] CorpusError),
    /// Bad input: of another Tilescribe.
    #[error("line {line}: pools of format {found}, this Tilescribe reads format {POOLS_FORMAT}")]
    Version { line: u64, found: u64 },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    pools: u32,
    task: String,
    name: String,
    workload: String,
    target: String,
    target_data: Target,
    space: String,
    samplers: Vec<String>,
    seeds: u32,
    samples: u32,
    trace: String,
    draws: Vec<LineDraw>,
    untuned: bool,
    outcome: String,
    detail: String,
    first_ns: u64,
    second_ns: u64,
    checkpoint: String,
    created_unix_s: u64,
    tilescribe: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LineDraw {
    sampler: String,
    seed: u32,
    at: u32,
}

/// Only what tells whether the rest can be read.
#[derive(Deserialize)]
struct Version {
    pools: u64,
}

/// Writes pools. Equal pools in equal order give equal bytes.
///
/// # Errors
/// [`CorpusError::Io`] where the file cannot be written.
pub fn write_pools<'a>(pools: impl Iterator<Item = &'a Pool>, out: impl Write) -> Result<(), CorpusError> {
    let (mut number, mut encoder) = (0, encoder(out).map_err(|source| CorpusError::Io { line: 0, source })?);
    for pool in pools {
        for program in &pool.programs {
            number += 1;
            let mut write = || -> io::Result<()> {
                serde_json::to_writer(&mut encoder, &line_of(pool, program))?;
                encoder.write_all(b"\n")
            };
            write().map_err(|source| CorpusError::Io { line: number, source })?;
        }
    }
    encoder.finish().map(drop).map_err(|source| CorpusError::Io { line: number, source })
}

fn line_of(pool: &Pool, program: &PoolProgram) -> Line {
    let (outcome, detail, [first_ns, second_ns]) = match &program.times {
        Ok(times) => ("timed", "", *times),
        Err((cause, detail)) => (cause.name(), detail.as_str(), [0, 0]),
    };
    let name_of = |sampler: usize| pool.samplers.get(sampler).cloned().unwrap_or_default();
    let draw = |draw: &Draw| LineDraw { sampler: name_of(draw.sampler), seed: draw.seed, at: draw.at };
    Line {
        pools: POOLS_FORMAT,
        task: pool.task.workload.hash().to_string(),
        name: pool.name.clone(),
        workload: pool.task.workload.to_string(),
        target: pool.task.target.fingerprint(),
        target_data: pool.task.target.clone(),
        space: pool.space.clone(),
        samplers: pool.samplers.clone(),
        seeds: pool.seeds,
        samples: pool.samples,
        trace: program.trace.to_string(),
        draws: program.draws.iter().map(draw).collect(),
        untuned: program.untuned,
        outcome: outcome.to_string(),
        detail: detail.to_string(),
        first_ns,
        second_ns,
        checkpoint: pool.checkpoint.clone(),
        created_unix_s: pool.created_unix_s,
        tilescribe: pool.tilescribe.clone(),
    }
}

/// Reads all pools of a file, in the order in which their tasks come first, and checks them: hashes and
/// fingerprints are those of what they name, times are above zero, places of draws are those of the task's
/// samplers and taken once, no program comes twice, and all lines of a task say the same of it.
///
/// # Errors
/// [`PoolsError`] for the first line that is not right.
pub fn read_pools(input: impl BufRead, limits: Limits) -> Result<Vec<Pool>, PoolsError> {
    let (mut lines, mut reading) = (Lines::new(input, limits)?, Reading::default());
    while let Some(bytes) = lines.read_line()? {
        let line = lines.number;
        let bad = |detail: String| CorpusError::Line { line, detail };
        let version: Version = serde_json::from_slice(&bytes).map_err(|error| bad(error.to_string()))?;
        if version.pools != u64::from(POOLS_FORMAT) {
            return Err(PoolsError::Version { line, found: version.pools });
        }
        let parsed: Line = serde_json::from_slice(&bytes).map_err(|error| bad(error.to_string()))?;
        reading.add(parsed).map_err(bad)?;
    }
    Ok(reading.pools)
}

/// Whether a file holds pools, of whatever version.
pub fn is_of_pools(input: impl BufRead) -> bool {
    let first = Lines::new(input, Limits::default()).and_then(|mut lines| lines.read_line());
    matches!(first, Ok(Some(line)) if serde_json::from_slice::<Version>(&line).is_ok())
}

/// What was read so far.
#[derive(Default)]
struct Reading {
    tasks: Tasks,
    pools: Vec<Pool>,
    /// Where a pool stands, by its task's hash, target and space.
    places: BTreeMap<[String; 3], usize>,
    /// By pool: the draws that were named, and the programs.
    named: Vec<(BTreeSet<Draw>, BTreeSet<Trace>)>,
}

impl Reading {
    fn add(&mut self, line: Line) -> Result<(), String> {
        let task = self.tasks.of(&line.task, &line.workload, &line.target, &line.target_data)?;
        let trace: Trace = line.trace.parse().map_err(|error| format!("trace: {error}"))?;
        let times = match (line.outcome.as_str(), [line.first_ns, line.second_ns]) {
            ("timed", times) if times.contains(&0) => return Err("timed, but without times".into()),
            ("timed", times) => Ok(times),
            (_, times) if times != [0, 0] => return Err("failed, but with times".into()),
            (other, _) => match Failure::from_name(other) {
                Some(cause) => Err((cause, line.detail)),
                None => return Err(format!("unknown outcome `{other}`")),
            },
        };
        check_samplers(&line.samplers, line.seeds, line.samples)?;
        let draws = line.draws.into_iter().map(|draw| place(&line.samplers, line.seeds, line.samples, draw));
        let draws: Vec<Draw> = draws.collect::<Result<_, String>>()?;
        let number = self.pools.len();
        let number = *self.places.entry([line.task, line.target, line.space.clone()]).or_insert(number);
        if number == self.pools.len() {
            self.named.push(Default::default());
            self.pools.push(Pool {
                name: line.name.clone(),
                task,
                space: line.space,
                samplers: line.samplers.clone(),
                seeds: line.seeds,
                samples: line.samples,
                programs: Vec::new(),
                checkpoint: line.checkpoint.clone(),
                created_unix_s: line.created_unix_s,
                tilescribe: line.tilescribe.clone(),
            });
        }
        let (pool, (places, traces)) = (&mut self.pools[number], &mut self.named[number]);
        let drawn = (&line.samplers, line.seeds, line.samples);
        let made = (&line.name, &line.checkpoint, line.created_unix_s, &line.tilescribe);
        if drawn != (&pool.samplers, pool.seeds, pool.samples)
            || made != (&pool.name, &pool.checkpoint, pool.created_unix_s, &pool.tilescribe)
        {
            return Err(format!("other samplers, seeds, samples or versions than before of {}", pool.name));
        }
        if line.untuned && pool.programs.iter().any(|program| program.untuned) {
            return Err(format!("{} has two untuned programs", pool.name));
        }
        if let Some(draw) = draws.iter().find(|draw| !places.insert(**draw)) {
            let Draw { sampler, seed, at } = *draw;
            return Err(format!("draw {at} of {} with seed {seed} is taken twice", pool.samplers[sampler]));
        }
        if !traces.insert(trace.clone()) {
            return Err(format!("a program of {} comes twice", pool.name));
        }
        pool.programs.push(PoolProgram { trace, untuned: line.untuned, draws, times });
        Ok(())
    }
}

fn check_samplers(samplers: &[String], seeds: u32, samples: u32) -> Result<(), String> {
    let distinct: BTreeSet<&String> = samplers.iter().collect();
    let is_name = |name: &&String| !name.is_empty() && name.len() <= LONGEST_NAME && !name.contains(char::is_control);
    if samplers.len() > MOST_SAMPLERS || distinct.len() != samplers.len() || !samplers.iter().all(|s| is_name(&s)) {
        return Err("the samplers have no names, long ones, twice the same, or are too many".into());
    }
    let too_many = u64::from(seeds) * u64::from(samples) > MOST_DRAWS;
    if too_many || !(1..=MOST_SEEDS).contains(&seeds) || !(1..=MOST_SAMPLES).contains(&samples) {
        let most = format!("up to {MOST_SAMPLES} of {MOST_SEEDS} and {MOST_DRAWS} in all are possible");
        return Err(format!("{samples} samples of {seeds} seeds, where {most}"));
    }
    Ok(())
}

fn place(samplers: &[String], seeds: u32, samples: u32, draw: LineDraw) -> Result<Draw, String> {
    let LineDraw { sampler, seed, at } = draw;
    let number = samplers.iter().position(|name| *name == sampler);
    match number.filter(|_| seed < seeds && at < samples) {
        Some(sampler) => Ok(Draw { sampler, seed, at }),
        None => Err(format!("there is no draw {at} of sampler `{sampler}` with seed {seed}")),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{Draw, Limits, Pool, PoolProgram, read_pools, write_pools};
    use crate::outcome::Failure;
    use crate::propose::example::product;

    fn pool() -> Pool {
        let draw = |sampler, seed, at| Draw { sampler, seed, at };
        let program = |number: u64, draws, times| PoolProgram {
            trace: format!("tile s0 a = {number}\n").parse().unwrap(),
            untuned: number == 1,
            draws,
            times,
        };
        Pool {
            name: "product".into(),
            task: Arc::new(product()),
            space: "cpu 1".into(),
            samplers: vec!["trained".into(), "mutation".into()],
            seeds: 2,
            samples: 3,
            programs: vec![
                program(1, Vec::new(), Ok([90, 100])),
                program(2, vec![draw(0, 0, 0), draw(0, 1, 2), draw(1, 0, 1)], Ok([50, 52])),
                program(4, vec![draw(0, 0, 1)], Err((Failure::Timeout, "late".into()))),
            ],
            checkpoint: "0123".into(),
            created_unix_s: 5,
            tilescribe: "0.3.0".into(),
        }
    }

    fn written(pools: &[Pool]) -> Vec<u8> {
        let mut bytes = Vec::new();
        write_pools(pools.iter(), &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn pools_come_back_as_they_were() {
        let mut other = pool();
        other.space = "cpu 2".into();
        let pools = [pool(), other];
        assert_eq!(read_pools(written(&pools).as_slice(), Limits::default()).unwrap(), pools);
        assert_eq!(written(&pools), written(&pools));
        assert!(read_pools(written(&[]).as_slice(), Limits::default()).unwrap().is_empty());
    }

    #[test]
    fn what_is_not_right_is_refused_with_its_line() {
        let text = String::from_utf8(zstd::decode_all(written(&[pool()]).as_slice()).unwrap()).unwrap();
        let read = |text: &str| {
            let bytes = zstd::encode_all(text.as_bytes(), 1).unwrap();
            read_pools(bytes.as_slice(), Limits::default()).unwrap_err().to_string()
        };
        let cases = [
            ("\"pools\":1", "\"pools\":2", "line 1: pools of format 2"),
            ("\"pools\":1", "\"format\":1", "line 1: missing field"),
            ("\"first_ns\":50", "\"first_ns\":0", "line 2: timed, but without times"),
            ("\"second_ns\":0", "\"second_ns\":7", "line 3: failed, but with times"),
            ("\"timeout\"", "\"bored\"", "line 3: unknown outcome `bored`"),
            (
                "\"seed\":1,\"at\":2",
                "\"seed\":1,\"at\":3",
                "line 2: there is no draw 3 of sampler `trained` with seed 1",
            ),
            ("\"seed\":1,\"at\":2", "\"seed\":0,\"at\":0", "line 2: draw 0 of trained with seed 0 is taken twice"),
            ("tile s0 a = 4", "tile s0 a = 2", "line 3: a program of product comes twice"),
            ("\"samples\":3", "\"samples\":0", "line 1: 0 samples of 2 seeds"),
            ("[\"trained\",\"mutation\"]", "[\"trained\",\"trained\"]", "line 1: the samplers have no names"),
            ("\"checkpoint\":\"0123\"", "\"checkpoint\":\"4\"", "line 2: other samplers"),
            ("\"untuned\":true", "\"untuned\":true,\"more\":1", "line 1: unknown field"),
            ("\"untuned\":false", "\"untuned\":true", "line 2: product has two untuned programs"),
        ];
        for (from, to, reason) in cases {
            let changed = text.replacen(from, to, 1);
            assert_ne!(changed, text, "{from}");
            assert!(read(&changed).starts_with(reason), "{}", read(&changed));
        }
        let hash = pool().task.workload.hash().to_string();
        assert!(read(&text.replace(&hash, &"0".repeat(32))).starts_with("line 1: the workload's hash is"));
        let small = Limits { line_bytes: 100, ..Limits::default() };
        let error = read_pools(written(&[pool()]).as_slice(), small).unwrap_err().to_string();
        assert_eq!(error, "line 1 is longer than 100 bytes");
        assert!(read_pools(&b"no zstd"[..], Limits::default()).unwrap_err().to_string().starts_with("line 1: "));
    }
}
