//! Random workloads of short numbers with random programs: interpreted, compiled, and run.

use std::ops::Range;
use std::sync::Mutex;

use rayon::iter::{IntoParallelIterator, IntoParallelRefIterator, ParallelIterator};
use tilescribe::codegen;
use tilescribe::measure::{Bench, Workbench};
use tilescribe::nest::interpret;
use tilescribe::target::{Cpu, Task};
use tilescribe::workload::DType;
use tilescribe::workload::generate::{Limits, ShortKind, generate_short};

use super::emulated;
use super::programs::{Pair, shipped};

/// Programs in an executable for another processor.
const AT_ONCE: usize = 250;

/// What runs the programs for a machine.
#[derive(Clone, Copy)]
enum Runner {
    Here,
    /// As this processor.
    Emulated(&'static str),
}

/// A machine that programs are drawn for.
pub struct Machine {
    pub name: &'static str,
    target: Cpu,
    runner: Runner,
}

/// What was checked.
#[derive(Default)]
pub struct Checked {
    pub pairs: usize,
    /// Programs with dot products.
    pub dots: usize,
}

impl Machine {
    /// This one.
    pub fn here() -> Machine {
        Machine { name: "this machine", target: codegen::host().unwrap(), runner: Runner::Here }
    }

    /// One without instructions for short numbers, which this one can be.
    pub fn avx2() -> Machine {
        Machine { name: "AVX2", target: shipped("haswell"), runner: Runner::Here }
    }

    /// With all instructions for short numbers.
    pub fn aarch64() -> Machine {
        let mut target = shipped("neoverse-n1");
        target.features.extend(["+bf16", "+i8mm"].map(String::from));
        Machine { name: "AArch64", target, runner: Runner::Emulated("max") }
    }

    /// Why its programs cannot be run here, if they cannot.
    pub fn missing(&self) -> Option<String> {
        match self.runner {
            Runner::Here => codegen::check_runs_here(&self.target).err().map(|reason| reason.to_string()),
            Runner::Emulated(_) => None,
        }
    }

    /// Whether it has instructions for bf16 and for bytes.
    pub fn has_all_dots(&self) -> bool {
        [[DType::BF16; 2], [DType::U8, DType::I8]].into_iter().all(|operands| self.target.has_dot(operands))
    }

    /// Checks a pair of a workload and a random trace for each seed: the program interpreted and compiled
    /// gives what the evaluator does, within the gate's tolerance. Panics where it does not.
    pub fn check(&self, seeds: Range<u64>) -> Checked {
        let pairs: Vec<Pair> = seeds.into_par_iter().map(|seed| self.pair(seed)).collect();
        match self.runner {
            Runner::Here => {
                // programs share the threads that run them
                let running = Mutex::new(());
                pairs.par_iter().for_each(|pair| run(pair, &running));
            }
            Runner::Emulated(processor) => {
                pairs.par_iter().for_each(interpreted);
                pairs.chunks(AT_ONCE).for_each(|pairs| emulated::run(pairs, &self.target, processor));
            }
        }
        let dots = pairs.iter().filter(|pair| pair.nest.to_string().contains("dot for ")).count();
        Checked { pairs: pairs.len(), dots }
    }

    fn pair(&self, seed: u64) -> Pair {
        let kind = ShortKind::ALL[seed as usize % ShortKind::ALL.len()];
        let workload = generate_short(kind, seed, Limits::SMALL);
        let task = Task { workload, target: self.target.clone().into() };
        Pair::new(&format!("{kind:?} {seed} for {}", self.name), &task, seed + 1)
    }
}

fn interpreted(pair: &Pair) {
    let expected = pair.expected();
    let mut bytes = pair.arguments(&expected);
    let fault = interpret(&pair.nest, &mut bytes).err().map(|fault| fault.to_string());
    let fault = fault.or_else(|| pair.compare(&expected, &bytes).err());
    assert!(fault.is_none(), "interpreted: {}{}\n{}", pair.name, fault.unwrap_or_default(), pair.nest);
}

/// Interprets it, and sends it through the gate that measured programs pass.
fn run(pair: &Pair, running: &Mutex<()>) {
    interpreted(pair);
    let mut bench = Workbench::new(pair.task.clone(), pair.expected()).unwrap();
    let machine = bench.machine().clone();
    let checked = Workbench::compile(&machine, pair.nest.clone()).and_then(|compiled| {
        let _alone = running.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut loaded = bench.place(&compiled)?;
        bench.check(&mut loaded)
    });
    let refusal = checked.err().map(|refusal| format!("{}: {}", refusal.cause, refusal.detail));
    assert!(refusal.is_none(), "compiled: {}{}\n{}", pair.name, refusal.unwrap_or_default(), pair.nest);
}
