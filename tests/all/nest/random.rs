//! Laws: whatever decisions are taken, the nest is legal, runs without a fault, and computes what the plain nest does.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::iter::{IntoParallelIterator, ParallelIterator};
use tilescribe::nest::{Nest, interpret, verify};
use tilescribe::space::{Decision, Next, Policy, Reason, Space, Trace};
use tilescribe::target::{Architecture, Target, Task};
use tilescribe::workload::{Array, Role, TensorId, Workload, evaluate};

use super::workloads::random_workload;
use super::{floats, to_floats};

/// Pairs of a workload and a trace that are checked: seeds count from 0.
pub const PAIRS: u64 = 5000;

struct Random<'a>(&'a mut ChaCha8Rng);

impl Policy for Random<'_> {
    fn pick(&mut self, decision: &Decision) -> usize {
        self.0.random_range(0..decision.candidates.len())
    }
}

fn random_target(rng: &mut ChaCha8Rng) -> Target {
    let (vector_bits, vector_registers) = [(128, 16), (256, 16), (512, 32)][rng.random_range(0..3)];
    Target {
        architecture: Architecture::X86_64,
        cpu: "generic".into(),
        features: Vec::new(),
        vector_bits,
        vector_registers,
        cores: rng.random_range(1..=4),
        l1_bytes: 32 << 10,
        l2_bytes: 1 << 20,
        l3_bytes: 0,
    }
}

/// A workload for some machine, and decisions for it.
pub struct Pair {
    /// Of the workload.
    pub kind: &'static str,
    pub task: Task,
    pub trace: Trace,
    pub result: Result<Nest, Reason>,
}

impl Pair {
    /// Equal states of `rng` draw equal pairs.
    pub fn random(rng: &mut ChaCha8Rng) -> Pair {
        let (kind, workload) = random_workload(rng);
        let task = Task { workload, target: random_target(rng) };
        let (trace, result) = Space::standard().drive(&task, &mut Random(rng));
        Pair { kind, task, trace, result }
    }
}

/// All arguments of the naive nest, positive so that sums do not cancel; outputs and packed buffers hold a poison.
fn arguments(nest: &Nest, rng: &mut ChaCha8Rng) -> Vec<Vec<u8>> {
    let random = |count: i64, rng: &mut ChaCha8Rng| {
        floats(&(0..count).map(|_| rng.random_range(0.25..1.0)).collect::<Vec<f32>>())
    };
    nest.arguments().iter().map(|id| random(nest.buffer(*id).elements(), rng)).collect()
}

/// One workload and one trace; what is wrong with the nest, if anything.
fn check(seed: u64) -> Result<(), String> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let Pair { kind, task, trace, result } = Pair::random(&mut rng);
    let describe = |what: String, nest: &dyn std::fmt::Display| {
        format!("seed {seed}, {kind}: {what}\ntrace:\n{trace}\nnest:\n{nest}")
    };
    let naive = Nest::naive(&task.workload);
    let nest = result.map_err(|reason| describe(reason.to_string(), &naive))?;
    match Space::standard().next(&task, &trace) {
        Ok(Next::Done(replayed)) if replayed == nest => {}
        other => return Err(describe(format!("replay gives {other:?}"), &nest)),
    }
    verify(&nest, task.target.lanes()).map_err(|error| describe(error.to_string(), &nest))?;

    let given = arguments(&naive, &mut rng);
    let expected = evaluated(&task.workload, &naive, &given).map_err(|error| describe(error, &naive))?;
    for nest in [&naive, &nest] {
        let mut bytes = given.clone();
        for id in &nest.arguments()[given.len()..] {
            bytes.push(vec![0xa5; nest.buffer(*id).bytes()]);
        }
        interpret(nest, &mut bytes).map_err(|fault| describe(fault.to_string(), nest))?;
        let found: Vec<_> = nest.arguments().into_iter().zip(bytes).collect();
        for (id, array) in &expected {
            let bytes = found.iter().find(|(other, _)| other == id).map(|(_, bytes)| bytes.as_slice());
            // errors that are independent of one another grow by the root
            let allowed = 1e-4 * f64::from(nest.error_growth).sqrt() as f32;
            compare(*id, &to_floats(&array.to_bytes()), &to_floats(bytes.unwrap_or_default()), allowed)
                .map_err(|difference| describe(difference, nest))?;
        }
    }
    Ok(())
}

/// The outputs by the naive evaluator.
fn evaluated(workload: &Workload, naive: &Nest, given: &[Vec<u8>]) -> Result<Vec<(TensorId, Array)>, String> {
    let mut arrays = Vec::new();
    for (id, bytes) in naive.arguments().into_iter().zip(given) {
        let tensor = workload.tensor(id);
        if tensor.role != Role::Output {
            let array = Array::from_bytes(tensor.shape.clone(), tensor.dtype, bytes).map_err(|e| e.to_string())?;
            arrays.push((id, array));
        }
    }
    let arguments: Vec<_> = arrays.iter().map(|(id, array)| (*id, array)).collect();
    evaluate(workload, &arguments).map_err(|error| error.to_string())
}

/// Inputs are positive and below 1, so that nothing cancels.
fn compare(id: TensorId, expected: &[f32], found: &[f32], allowed: f32) -> Result<(), String> {
    if expected.len() != found.len() {
        return Err(format!("t{} has {} elements, not {}", id.0, found.len(), expected.len()));
    }
    let differs = |(e, f): (&f32, &f32)| {
        // a NaN is close to nothing
        let close = (e - f).abs() <= allowed * e.abs().max(1e-3);
        e != f && !close
    };
    match expected.iter().zip(found).position(differs) {
        Some(at) => Err(format!("element {at} of t{} is {}, not {}", id.0, found[at], expected[at])),
        None => Ok(()),
    }
}

#[test]
fn every_trace_gives_a_legal_nest_that_computes_the_workload() {
    let report = (0..PAIRS).into_par_iter().find_map_first(|seed| check(seed).err());
    assert_eq!(report, None, "{}", report.as_deref().unwrap_or_default());
}
