//! The pairs of `random.rs`, compiled: each kernel passes the gate that the measurer uses, which compares it
//! with the evaluator and has guard pages around every buffer.
//!
//! Code that was never run before may take its process down, so it runs in others: this test program, once
//! for each core, each on its share of the seeds. The table of what was checked shows with `--nocapture`.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZero;
use std::process::Command;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tilescribe::codegen;
use tilescribe::measure::{Bench, OracleCache, Workbench};
use tilescribe::nest::Nest;
use tilescribe::space::Choice;
use tilescribe::target::{Cpu, Task};
use tilescribe::workload::Workload;

use super::random::{PAIRS, Pair};

/// Tells a test that runs itself again which share it has: `FIRST/STEP`.
const SHARE: &str = "TILESCRIBE_TEST_COMPILED";

/// In front of what a share says about a pair.
const BEGINS: &str = "begins: ";
const AGREES: &str = "agrees: ";

/// One seed in so many is compiled for any x86-64 processor, the others for this one: vectors wider than the
/// processor's are split.
const GENERIC: u64 = 4;

/// A pair that was compiled and agrees with the evaluator.
#[derive(Serialize, Deserialize)]
struct Agreed {
    seed: u64,
    /// Of workload, machine and trace.
    digest: String,
    kind: String,
    cpu: String,
    /// Some axis has an odd extent above 1; a prime one above 2.
    odd: bool,
    prime: bool,
    /// How many decisions of each kind.
    decisions: BTreeMap<String, usize>,
}

/// Compiles and checks one pair.
fn check(seed: u64, host: &Cpu) -> Result<Agreed, String> {
    let Pair { kind, task, trace, result } = Pair::random(&mut ChaCha8Rng::seed_from_u64(seed));
    let mut target = task.target.cpu().unwrap().clone();
    if !seed.is_multiple_of(GENERIC) {
        (target.cpu, target.features) = (host.cpu.clone(), host.features.clone());
    }
    let task = Task { target: target.clone().into(), ..task };
    let nest = result.map_err(|reason| format!("seed {seed}, {kind}: {reason}\ntrace:\n{trace}"))?;
    pass_the_gate(&task, &nest, seed)
        .map_err(|why| format!("seed {seed}, {kind} for {}: {why}\ntrace:\n{trace}\nnest:\n{nest}", target.cpu))?;
    let mut decisions = BTreeMap::new();
    for choice in &trace.0 {
        kinds_of(choice).into_iter().for_each(|kind| *decisions.entry(kind).or_default() += 1);
    }
    let identity = format!("{}{}{trace}", task.workload, target.to_toml());
    let extents = extents(&task.workload);
    Ok(Agreed {
        seed,
        digest: Sha256::digest(identity).iter().map(|byte| format!("{byte:02x}")).collect(),
        kind: kind.into(),
        cpu: target.cpu,
        odd: extents.iter().any(|extent| *extent > 1 && extent % 2 == 1),
        prime: extents.iter().any(|extent| *extent > 2 && is_prime(*extent)),
        decisions,
    })
}

/// What a decision does: its verb, with the answer where there are only a few.
fn kinds_of(choice: &Choice) -> Vec<String> {
    let (site, value) = (choice.site.to_string(), choice.value.to_string());
    let verb = if site.starts_with("block rows") { "block rows" } else { site.split(' ').next().unwrap_or_default() };
    match verb {
        "algorithm" | "epilogue" | "parallel" | "rows" => vec![format!("{verb} {value}")],
        // level and layout
        "pack" => value.split(' ').map(|word| format!("pack {word}")).collect(),
        "fuse" if value == "none" => vec!["fuse none".into()],
        "tile" | "block" | "block rows" if value == "1" => vec![format!("{verb} 1")],
        _ => vec![verb.into()],
    }
}

/// Every kind of decision is drawn at least so often.
const LEAST: usize = 100;

/// All kinds of decision.
const KINDS: [&str; 30] = [
    "algorithm direct",
    "algorithm winograd 2",
    "algorithm winograd 4",
    "epilogue fused",
    "epilogue apart",
    "rows 0",
    "rows 1",
    "rows 2",
    "block rows 1",
    "block rows",
    "fuse none",
    "fuse",
    "vector",
    "tile 1",
    "tile",
    "block 1",
    "block",
    "depth",
    "outer",
    "inner",
    "steps",
    "pack none",
    "pack setup",
    "pack before",
    "pack outer",
    "pack block",
    "pack panel",
    "pack box",
    "parallel 0",
    "parallel 1",
];

pub fn pass_the_gate(task: &Task, nest: &Nest, seed: u64) -> Result<(), String> {
    codegen::set_threads(task.target.processors() as usize);
    let expected = OracleCache::default().examples(&task.workload, seed).map_err(|error| error.to_string())?;
    let mut bench = Workbench::new(task.clone(), expected).map_err(|refusal| refusal.detail)?;
    let checked = bench.load(nest).and_then(|mut loaded| bench.check(&mut loaded));
    checked.map_err(|refusal| format!("{}: {}", refusal.cause, refusal.detail))
}

fn extents(workload: &Workload) -> Vec<i64> {
    workload.stages.iter().flat_map(|stage| stage.spatial.iter().chain(&stage.reduction)).copied().collect()
}

fn is_prime(number: i64) -> bool {
    number > 1 && (2..number).take_while(|divisor| divisor * divisor <= number).all(|divisor| number % divisor != 0)
}

/// Runs a share in a process of its own; the pairs that agreed.
fn share<T: DeserializeOwned>(test: &str, first: u64, step: usize) -> Vec<T> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]);
    let output = command.env(SHARE, format!("{first}/{step}")).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    let after = |mark: &'static str| printed.lines().filter_map(move |line| Some(line.split_once(mark)?.1));
    let (last, said) = (after(BEGINS).next_back().unwrap_or("none"), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}, the last seed was {last}\n{said}", output.status);
    after(AGREES).map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Runs a test in other processes, one for each core: what they say about each of `count` seeds. `None` in
/// one of these, which has done its share then.
pub fn in_shares<T: Serialize + DeserializeOwned + Send>(
    test: &str,
    count: u64,
    check: impl Fn(u64) -> Result<T, String>,
) -> Option<Vec<T>> {
    if let Ok(share) = std::env::var(SHARE) {
        let (first, step) = share.split_once('/').unwrap();
        let (first, step): (u64, usize) = (first.parse().unwrap(), step.parse().unwrap());
        for seed in (first..count).step_by(step) {
            println!("{BEGINS}{seed}");
            match check(seed) {
                Ok(agreed) => println!("{AGREES}{}", serde_json::to_string(&agreed).unwrap()),
                Err(report) => panic!("{report}"),
            }
        }
        return None;
    }
    let shares = std::thread::available_parallelism().map_or(1, NonZero::get);
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..shares).map(|first| scope.spawn(move || share(test, first as u64, shares))).collect();
        Some(running.into_iter().flat_map(|share| share.join().unwrap()).collect())
    })
}

#[test]
fn every_compiled_nest_computes_the_workload() {
    let host = codegen::host().unwrap();
    let test = "nest::compiled::every_compiled_nest_computes_the_workload";
    let Some(agreed) = in_shares(test, PAIRS, |seed| check(seed, &host)) else { return };
    print_table(&agreed);
    let seeds: BTreeSet<u64> = agreed.iter().map(|pair| pair.seed).collect();
    assert_eq!(seeds, (0..PAIRS).collect(), "none is skipped");
    let distinct: BTreeSet<&str> = agreed.iter().map(|pair| pair.digest.as_str()).collect();
    assert!(distinct.len() as u64 > PAIRS * 99 / 100, "{} distinct pairs", distinct.len());
    for count in [agreed.iter().filter(|pair| pair.odd).count(), agreed.iter().filter(|pair| pair.prime).count()] {
        assert!(count as u64 > PAIRS / 2, "{count} of {PAIRS} pairs with such an extent");
    }
    let drawn = |kind: &str| -> usize { agreed.iter().filter_map(|pair| pair.decisions.get(kind)).sum() };
    let rare: Vec<_> = KINDS.into_iter().map(|kind| (kind, drawn(kind))).filter(|(_, n)| *n < LEAST).collect();
    assert!(rare.is_empty(), "drawn less than {LEAST} times: {rare:?}");
}

fn print_table(agreed: &[Agreed]) {
    let count = |of: &dyn Fn(&Agreed) -> bool| agreed.iter().filter(|pair| of(pair)).count();
    let (odd, prime) = (count(&|pair| pair.odd), count(&|pair| pair.prime));
    println!(
        "{} pairs, compiled, all as the evaluator: {odd} with an odd extent, {prime} with a prime one",
        agreed.len()
    );
    let (mut processors, mut kinds, mut decisions) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    for pair in agreed {
        *processors.entry(&pair.cpu).or_insert(0) += 1;
        *kinds.entry(&pair.kind).or_insert(0) += 1;
        pair.decisions.iter().for_each(|(verb, count)| *decisions.entry(verb).or_insert(0) += count);
    }
    for (title, counts) in [("pairs for", processors), ("pairs of", kinds), ("decisions of", decisions)] {
        counts.iter().for_each(|(name, count)| println!("{title:<12} {name:<16} {count:>6}"));
    }
}
