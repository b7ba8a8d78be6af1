//! Programs of tasks, and what they must compute.

use std::fs;
use std::path::{Path, PathBuf};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tilescribe::codegen;
use tilescribe::measure::{Expected, OracleCache, Tolerance};
use tilescribe::nest::Nest;
use tilescribe::space::{Decision, Policy, Space, Untuned};
use tilescribe::target::{Cpu, Task};
use tilescribe::workload::Role;

/// The file of a target.
pub fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("targets").join(format!("{name}.toml"))
}

/// A target that we ship.
pub fn shipped(name: &str) -> Cpu {
    let target = Cpu::from_toml(&fs::read_to_string(file(name)).unwrap()).unwrap();
    codegen::check(&target).unwrap();
    target
}

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

impl Pair {
    /// The untuned program of a task, seed 0, or a random one. Equal arguments give equal pairs.
    pub fn new(name: &str, task: &Task, seed: u64) -> Pair {
        let space = Space::standard();
        let (trace, nest) = match seed {
            0 => space.drive(task, &mut Untuned),
            _ => space.drive(task, &mut Random(ChaCha8Rng::seed_from_u64(seed))),
        };
        let name = format!("{name}, program {seed}\n{}{trace}", task.workload);
        let nest = nest.unwrap_or_else(|reason| panic!("{name}{reason}"));
        Pair { name, task: task.clone(), nest }
    }

    /// Inputs and constants, and the evaluator's outputs for them.
    pub fn expected(&self) -> Expected {
        OracleCache::default().expected(&self.task.workload, 1).unwrap_or_else(|error| panic!("{}{error}", self.name))
    }

    /// The content of each argument before the run; outputs and packed buffers hold a poison.
    pub fn arguments(&self, expected: &Expected) -> Vec<Vec<u8>> {
        let given = |id| expected.inputs.iter().find(|(input, _)| *input == id).map(|(_, array)| array.to_bytes());
        let ids = self.nest.arguments().into_iter();
        ids.map(|id| given(id).unwrap_or_else(|| vec![POISON; self.nest.buffer(id).bytes()])).collect()
    }

    /// Compares what a program left in its arguments, one after the other, with the evaluator's outputs.
    pub fn compare(&self, expected: &Expected, left: &[Vec<u8>]) -> Result<(), String> {
        let workload = &self.task.workload;
        for (id, bytes) in self.nest.arguments().into_iter().zip(left) {
            let wanted = expected.outputs.iter().find(|(output, _)| *output == id).map(|(_, array)| array);
            let is_output = workload.tensors.get(id.0 as usize).is_some_and(|tensor| tensor.role == Role::Output);
            if let (Some(wanted), true) = (wanted, is_output) {
                let tolerance = Tolerance::new(workload, id, wanted).grown(self.nest.error_growth);
                tolerance.compare(id, wanted, bytes).map_err(|mismatch| mismatch.to_string())?;
            }
        }
        Ok(())
    }
}

const POISON: u8 = 0xff;
