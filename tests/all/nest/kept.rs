//! Programs of before: the nests of a fixed sample of traces come out as they always did. They come back from
//! their text, as do the plain nests of their tasks; their schedules are read as they are printed.
//!
//! `tests/files/nest/kept.jsonl.zst` holds a line for each task: its workload, its target, and its programs,
//! each a trace and the hash of its nest. 5,000 programs are of the shipped corpus, of all kinds of
//! workloads; 1,000 are for GPUs. A change of the space that is additive leaves all of them as they are
//! (DESIGN, "Growth without loss"). The file is drawn anew only where it is missing and UPDATE_EXPECT is set.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::iter::{IntoParallelRefIterator, ParallelIterator};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tilescribe::nest::Nest;
use tilescribe::record::{CorpusReader, Limits, read_workloads};
use tilescribe::space::{Next, Schedule, Space, Tape, Trace};
use tilescribe::target::{Kind, Target, Task};

use super::gpu::{SHIPPED, gpu};
use super::random::Pair;
use super::text::lost;

const OF_CORPUS: usize = 5_000;
const OF_GPUS: usize = 1_000;

/// Programs of one task.
#[derive(Serialize, Deserialize)]
pub struct Kept {
    pub workload: String,
    /// As TOML.
    pub target: String,
    pub programs: Vec<Program>,
}

#[derive(Serialize, Deserialize)]
pub struct Program {
    pub trace: String,
    /// [`hash`] of its nest.
    pub nest: String,
}

/// Half of the SHA-256 of a nest as text, spelled as it was when the file was drawn: scopes had other names,
/// the growth of errors came last, and nothing told names apart that are the same.
pub fn hash(nest: &Nest) -> String {
    let text = nest.to_string();
    let growth = format!("error growth {}\n", nest.error_growth);
    let text = text.strip_prefix(&growth).unwrap_or(&text).to_string() + &growth;
    let text = without_numbers(&text);
    let text = text.replace(" workspace\n", " shared\n").replace(" block-shared\n", " private\n");
    Sha256::digest(text.as_bytes())[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A text without the numbers of names: `step#2` is `step`.
fn without_numbers(text: &str) -> String {
    let mut parts = text.split('#');
    let first = parts.next().unwrap_or_default().to_string();
    parts.fold(first, |text, part| text + part.trim_start_matches(|c: char| c.is_ascii_digit()))
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn path() -> PathBuf {
    root().join("tests/files/nest/kept.jsonl.zst")
}

pub fn task(workload: &str, target: &str) -> Task {
    Task { workload: workload.parse().unwrap(), target: Target::from_toml(target).unwrap() }
}

/// The version of the space that the programs were written in: rules that came later are additive.
pub fn version(kind: Kind) -> String {
    Space::standard()
        .version(kind)
        .replace("further-algorithm-1+strided-algorithm-1+product-panels-1+tile-rows-1+", "")
        .replace("row-order-1+", "")
}

/// All programs.
pub fn read() -> Vec<Kept> {
    let input = BufReader::new(zstd::Decoder::new(File::open(path()).unwrap()).unwrap());
    input.lines().map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect()
}

#[test]
fn programs_of_before_come_out_as_they_were() {
    if std::env::var_os("UPDATE_EXPECT").is_some() && !path().exists() {
        draw();
    }
    let kept = read();
    let programs: usize = kept.iter().map(|kept| kept.programs.len()).sum();
    assert_eq!(programs, OF_CORPUS + OF_GPUS);
    let changed: Vec<String> = kept.par_iter().flat_map_iter(changed).collect();
    let first = changed.first().cloned().unwrap_or_default();
    assert!(changed.is_empty(), "{} of {programs} programs differ, the first:\n{first}", changed.len());
}

/// What became of the programs of a task that are not as they were, or do not come back from their text.
fn changed(kept: &Kept) -> Vec<String> {
    let task = task(&kept.workload, &kept.target);
    let space = Space::standard();
    let reader = space.reader(task.target.kind(), &version(task.target.kind())).unwrap();
    let check = |program: &Program| {
        let written: Trace = program.trace.parse().unwrap();
        let trace = reader.upgrade(&task, &written).unwrap_or_else(|stale| panic!("{stale}\n{written}"));
        let schedule = space.schedule(&task, &mut Tape::replay(&trace)).unwrap();
        let read: Schedule = schedule.to_string().parse().unwrap_or_else(|error| panic!("{error}\n{schedule}"));
        match space.next(&task, &trace) {
            Ok(Next::Done(_)) if read != schedule => Some(format!("another schedule\n{schedule}\n{read}")),
            Ok(Next::Done(nest)) if hash(&nest) == program.nest => lost(&nest),
            Ok(Next::Done(nest)) => Some(format!("another nest\n{}\n{}\n{nest}", kept.workload, program.trace)),
            other => Some(format!("{other:?}\n{}\n{}", kept.workload, program.trace)),
        }
    };
    let naive = lost(&Nest::naive(&task.workload));
    naive.into_iter().chain(kept.programs.iter().filter_map(check)).collect()
}

/// Programs by workload and target.
type Drawn = BTreeMap<(String, String), Vec<Program>>;

fn draw() {
    let mut drawn = Drawn::new();
    of_corpus(&mut drawn);
    of_gpus(&mut drawn);
    let mut output = zstd::Encoder::new(File::create(path()).unwrap(), 19).unwrap();
    for ((workload, target), programs) in drawn {
        let line = serde_json::to_string(&Kept { workload, target, programs }).unwrap();
        writeln!(output, "{line}").unwrap();
    }
    output.finish().unwrap();
}

/// Records that this space reads, of each kind of workload as many as of others where there are so many:
/// those with the smallest hashes.
fn of_corpus(drawn: &mut Drawn) {
    let mut kinds = BTreeMap::new();
    for path in files("corpus/workloads") {
        let kind = path.file_stem().unwrap().to_string_lossy().into_owned();
        for named in read_workloads(&path).unwrap() {
            kinds.insert(named.workload.hash().to_string(), kind.clone());
        }
    }
    let space = Space::standard();
    let mut by_kind = BTreeMap::<String, BTreeMap<[u8; 32], (String, String, String)>>::new();
    for path in files("corpus/records") {
        let reader = CorpusReader::new(BufReader::new(File::open(path).unwrap()), Limits::default()).unwrap();
        for entry in reader {
            let entry = entry.unwrap();
            let kind = kinds.get(&entry.record.task_hash).cloned().unwrap_or_else(|| "other".to_string());
            let trace = entry.record.trace.to_string();
            let key = Sha256::digest(format!("{} {} {trace}", entry.record.task_hash, entry.record.target));
            let of_kind = by_kind.entry(kind).or_default();
            if of_kind.len() < OF_CORPUS || of_kind.keys().next_back().is_some_and(|last| key[..] < last[..]) {
                let text = || (entry.task.workload.to_string(), entry.task.target.to_toml(), trace);
                of_kind.insert(key.into(), text());
                if of_kind.len() > OF_CORPUS {
                    of_kind.pop_last();
                }
            }
        }
    }
    let mut of_kinds: Vec<_> = by_kind.into_values().map(|of_kind| of_kind.into_values()).collect();
    let mut count = 0;
    while count < OF_CORPUS {
        for of_kind in &mut of_kinds {
            let Some((workload, target, trace)) = of_kind.next().filter(|_| count < OF_CORPUS) else { continue };
            if let Ok(Next::Done(nest)) = space.next(&task(&workload, &target), &trace.parse().unwrap()) {
                drawn.entry((workload, target)).or_default().push(Program { trace, nest: hash(&nest) });
                count += 1;
            }
        }
    }
}

/// Random programs, and those of the rules, for all GPUs that are described here: of small random workloads
/// and of tasks of the corpus.
fn of_gpus(drawn: &mut Drawn) {
    let mut rng = ChaCha8Rng::seed_from_u64(0x6b657074);
    let tasks: Vec<_> = files("corpus/workloads").iter().flat_map(|path| read_workloads(path).unwrap()).collect();
    let mut count = 0;
    while count < OF_GPUS {
        let target: Target = gpu(SHIPPED[rng.random_range(0..SHIPPED.len())].0).into();
        let pair = match rng.random_range(0..5) {
            0..3 => Pair::for_gpu(target, count % 2 == 0, &mut rng),
            drawn => {
                let workload = tasks[rng.random_range(0..tasks.len())].workload.clone();
                Pair::of(Task { workload, target }, drawn == 3, &mut rng)
            }
        };
        if let Ok(nest) = &pair.result {
            let program = Program { trace: pair.trace.to_string(), nest: hash(nest) };
            let programs = drawn.entry((pair.task.workload.to_string(), pair.task.target.to_toml())).or_default();
            if programs.iter().all(|other| other.trace != program.trace) {
                programs.push(program);
                count += 1;
            }
        }
    }
}

fn files(folder: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root().join(folder)).unwrap();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}
