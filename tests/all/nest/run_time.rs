//! Run-time extents: one nest serves all of them.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::iter::{IntoParallelIterator, ParallelIterator};
use tilescribe::codegen;
use tilescribe::nest::{Nest, verify};
use tilescribe::space::Space;
use tilescribe::target::{Cpu, Target, Task};
use tilescribe::workload::Workload;
use tilescribe::workload::generate::with_run_time_extents;

use super::compiled::{in_shares, pass_the_gate};
use super::random::{Random, agreement, random_target};
use super::workloads::random_workload;
use crate::codegen::tiles::with_tiles;

/// Triples of a workload, a trace and numbers for its parameters: seeds count from 0.
pub const TRIPLES: u64 = 2000;

/// A workload with parameters, and a program for it.
pub struct Symbolic {
    pub kind: &'static str,
    pub task: Task,
    pub trace: String,
    pub nest: Result<Nest, String>,
    /// One for each parameter.
    pub values: Vec<i64>,
}

impl Symbolic {
    /// Equal states of `rng` draw equal ones.
    pub fn random(rng: &mut ChaCha8Rng) -> Symbolic {
        let (kind, workload) = loop {
            let (kind, fixed) = random_workload(rng);
            let workload = with_run_time_extents(&fixed, rng.random());
            if !workload.is_fixed() {
                break (kind, workload);
            }
        };
        let values = values(&workload, rng);
        let task = Task { workload, target: random_target(rng) };
        let (trace, nest) = Space::standard().drive(&task, &mut Random(rng));
        let nest = nest.map_err(|reason| reason.to_string());
        Symbolic { kind, task, trace: trace.to_string(), nest, values }
    }
}

/// The least, the greatest, or any.
fn values(workload: &Workload, rng: &mut ChaCha8Rng) -> Vec<i64> {
    let which = rng.random_range(0..8);
    let value = |parameter: &tilescribe::workload::Parameter| match which {
        0 => parameter.low,
        1 => parameter.high,
        _ => rng.random_range(parameter.low..=parameter.high),
    };
    workload.parameters.iter().map(value).collect()
}

fn check(seed: u64) -> Result<(), String> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let Symbolic { kind, task, trace, nest, values } = Symbolic::random(&mut rng);
    let describe = |what: String, nest: &dyn std::fmt::Display| {
        format!("seed {seed}, {kind}, {values:?}: {what}\n{}\ntrace:\n{trace}\nnest:\n{nest}", task.workload)
    };
    let naive = Nest::naive(&task.workload);
    task.workload.validate().map_err(|error| describe(error.to_string(), &naive))?;
    let nest = nest.map_err(|reason| describe(reason, &naive))?;
    for nest in [&naive, &nest] {
        verify(nest, task.target.lanes()).map_err(|error| describe(error.to_string(), nest))?;
        let read: Nest = nest.to_string().parse().map_err(|error| describe(format!("{error}"), nest))?;
        if read.to_string() != nest.to_string() {
            return Err(describe(format!("reads as\n{read}"), nest));
        }
    }
    let text = task.workload.to_string();
    match text.parse::<Workload>() {
        Ok(read) if read.to_string() == text => {}
        other => return Err(describe(format!("reads as {other:?}"), &naive)),
    }
    agreement(&task.workload.at(&values), [&naive.at(&values), &nest.at(&values)], &mut rng)
        .map(|_| ())
        .map_err(|(what, at_values)| describe(what, &format!("{nest}\nat these values:\n{at_values}")))
}

#[test]
fn one_nest_computes_what_each_fixed_workload_does() {
    let failures: Vec<String> = (0..TRIPLES).into_par_iter().filter_map(|seed| check(seed).err()).collect();
    assert!(
        failures.is_empty(),
        "{} of {TRIPLES}:\n{}",
        failures.len(),
        failures[..failures.len().min(3)].join("\n\n")
    );
}

/// Compiles the program of a triple, and runs it through the gate with its numbers and with the least ones.
fn check_compiled(seed: u64, host: &Cpu) -> Result<u64, String> {
    let Symbolic { kind, task, trace, nest, values } = Symbolic::random(&mut ChaCha8Rng::seed_from_u64(seed));
    let mut target = task.target.cpu().map_err(|error| error.to_string())?.clone();
    (target.cpu, target.features) = (host.cpu.clone(), host.features.clone());
    let workload = Workload { points: vec![values.clone()], ..task.workload };
    let task = Task { workload, target: target.into() };
    let describe = |what: String, nest: &dyn std::fmt::Display| {
        format!("seed {seed}, {kind}, {values:?}: {what}\n{}\ntrace:\n{trace}\nnest:\n{nest}", task.workload)
    };
    let nest = nest.map_err(|reason| describe(reason, &""))?;
    pass_the_gate(&task, &nest, seed).map(|()| seed).map_err(|what| describe(what, &nest))
}

#[test]
fn one_kernel_serves_all_extents() {
    let host = codegen::host().unwrap();
    let test = "nest::run_time::one_kernel_serves_all_extents";
    let Some(agreed) = in_shares(test, TRIPLES, |seed| check_compiled(seed, &host)) else { return };
    let seeds: std::collections::BTreeSet<u64> = agreed.into_iter().collect();
    assert_eq!(seeds, (0..TRIPLES).collect(), "none is skipped");
}

/// Checks random programs of a workload at some extents; gives how many have a choice that begins so.
fn agree_at<const N: usize>(
    text: &str,
    points: &[[i64; N]],
    target: impl Fn(&mut ChaCha8Rng) -> Target,
    choice: &str,
) -> usize {
    let workload: Workload = text.parse().unwrap();
    let mut chosen = 0;
    for seed in 0..64 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let task = Task { workload: workload.clone(), target: target(&mut rng) };
        let (trace, nest) = Space::standard().drive(&task, &mut Random(&mut rng));
        let Ok(nest) = nest else { continue };
        chosen += usize::from(trace.to_string().contains(choice));
        verify(&nest, task.target.lanes()).unwrap_or_else(|error| panic!("{trace}\n{error}"));
        for values in points {
            let outcome =
                agreement(&workload.at(values), [&Nest::naive(&workload).at(values), &nest.at(values)], &mut rng);
            assert!(outcome.is_ok(), "{values:?}\n{trace}\n{:?}", outcome.err());
        }
    }
    chosen
}

/// A mean divides by an extent, which an epilogue must know as its nest does.
#[test]
fn epilogues_know_extents_of_the_run() {
    let mean = "param len0 1 64\nparam len1 1 2048\ninput t0 len0 len1 4\n\
                let t1 len0 4 sum len1 t0 a c b\nout t2 like t1 div t1 a b cast f32 int len1";
    assert!(agree_at(mean, &[[1, 1], [3, 37], [2, 2048]], random_target, "epilogue s0 = fused") > 0);
}

/// Rows of tiles beyond those that there are read nothing, and are written nowhere.
#[test]
fn rows_of_tiles_are_as_many_as_there_are_in_a_run() {
    let product = "param len0 1 40\nconst t0 bf16 64 40\ninput t1 bf16 len0 64\n\
                   let t2 len0 40 sum 64 mul cast f32 t0 c b cast f32 t1 a c\n\
                   out t3 bf16 like t2 cast bf16 max 0.0 t2 a b\n";
    let target = |_: &mut ChaCha8Rng| Target::Cpu(with_tiles());
    assert!(agree_at(product, &[[1], [16], [37], [40]], target, "mma s0 = a") > 4);
}

/// Lanes beyond the end of a window are no part of its result, though all that they read is there.
#[test]
fn lanes_beyond_a_window_of_the_run_count_for_nothing() {
    let pooled = "param len0 0 2\nparam len1 0 1\ninput t0 8 9 11\nconst t1 8\nlet t2 8 9 11 mul t1 a t0 a b c\n\
                  out t3 8 4 5 maxof len0 * 2 len1 t2 a + * 2 b d + * 2 c e\n";
    assert!(agree_at(pooled, &[[2, 1], [2, 0], [1, 1], [0, 1]], random_target, "vector s1 = e") > 0);
}
