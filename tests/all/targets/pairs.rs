//! Workloads of every kind with programs of the space for them.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tilescribe::measure::OracleCache;
use tilescribe::nest::Nest;
use tilescribe::space::{Decision, Policy, Space, Trace, Untuned};
use tilescribe::target::{Cpu, Task};
use tilescribe::workload::generate::{Kind, Limits, generate_kind};
use tilescribe::workload::{Array, Binary, Operands, TensorId, Unary, Workload};

/// A workload for a machine, and a program for it.
pub struct Pair {
    /// What it is, for people who must find it again.
    pub name: String,
    pub task: Task,
    pub nest: Nest,
}

struct Random(ChaCha8Rng);

impl Policy for Random {
    fn pick(&mut self, decision: &Decision) -> usize {
        self.0.random_range(0..decision.candidates.len())
    }
}

/// Of each kind `workloads` workloads, each with its untuned program and `programs` random ones. Equal
/// arguments give equal pairs.
pub fn pairs(target: &Cpu, limits: Limits, workloads: u64, programs: u64) -> Vec<Pair> {
    let mut pairs = Vec::new();
    for kind in Kind::ALL {
        for seed in 0..workloads {
            let task = Task { workload: generate_kind(kind, seed, limits), target: target.clone().into() };
            add(&mut pairs, &format!("{kind:?} {seed} for {}", target.cpu), &task, programs);
        }
    }
    pairs
}

/// All functions of floats, and conversions, which have code of their own on some processors, with a random
/// program for each.
pub fn functions(target: &Cpu) -> Vec<Pair> {
    let unary = Unary::ALL.into_iter().filter(|op| op.takes() != Operands::Booleans);
    let unary = unary.map(|op| (op.name(), format!("input t0 3 37\nout t1 3 37 {} t0 a b\n", op.name())));
    let binary = Binary::ALL.into_iter().filter(|op| op.takes() != Operands::Booleans);
    let binary = binary.map(|op| {
        let value = format!("{} t0 a b t1 b", op.name());
        let value = if op.is_comparison() { format!("select {value} t0 a b t1 b") } else { value };
        (op.name(), format!("input t0 3 37\ninput t1 37\nout t2 3 37 {value}\n"))
    });
    let conversions = ["f16", "bf16"].into_iter().flat_map(|half| {
        [
            (half, format!("input t0 3 37\nout t1 {half} 3 37 cast {half} t0 a b\n")),
            (half, format!("input t0 {half} 3 37\nout t1 3 37 cast f32 t0 a b\n")),
        ]
    });
    let mut pairs = Vec::new();
    for (function, text) in unary.chain(binary).chain(conversions) {
        let workload = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
        let task = Task { workload, target: target.clone().into() };
        add(&mut pairs, &format!("{function} for {}", target.cpu), &task, 1);
    }
    pairs
}

fn add(pairs: &mut Vec<Pair>, name: &str, task: &Task, programs: u64) {
    let space = Space::standard();
    for seed in 0..=programs {
        let (trace, nest): (Trace, _) = match seed {
            0 => space.drive(task, &mut Untuned),
            _ => space.drive(task, &mut Random(ChaCha8Rng::seed_from_u64(seed))),
        };
        let name = format!("{name}, program {seed}\n{}{trace}", task.workload);
        let nest = nest.unwrap_or_else(|reason| panic!("{name}{reason}"));
        pairs.push(Pair { name, task: task.clone(), nest });
    }
}

/// Inputs and constants, and the evaluator's outputs for them.
pub struct Oracle {
    pub inputs: Vec<(TensorId, Array)>,
    pub outputs: Vec<(TensorId, Array)>,
}

pub fn oracle(workload: &Workload) -> Oracle {
    let expected = OracleCache::default().expected(workload, 1).unwrap();
    Oracle { inputs: expected.inputs, outputs: expected.outputs }
}
