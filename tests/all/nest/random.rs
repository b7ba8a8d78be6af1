//! Laws: whatever decisions are taken, the nest is legal, runs without a fault, and computes what the plain nest does.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tilescribe::nest::{Nest, interpret, verify};
use tilescribe::space::{Decision, Next, Policy, Space};
use tilescribe::target::{Architecture, Target, Task};
use tilescribe::workload::Role;

use super::workloads::random_workload;
use super::{floats, to_floats};

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
    let (kind, workload) = random_workload(&mut rng);
    let task = Task { workload, target: random_target(&mut rng) };
    let (trace, result) = Space::standard().drive(&task, &mut Random(&mut rng));
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

    let mut expected = arguments(&naive, &mut rng);
    let mut found = expected.clone();
    for id in &nest.arguments()[expected.len()..] {
        found.push(vec![0xa5; nest.buffer(*id).bytes()]);
    }
    interpret(&naive, &mut expected).map_err(|fault| describe(format!("naive: {fault}"), &naive))?;
    interpret(&nest, &mut found).map_err(|fault| describe(fault.to_string(), &nest))?;
    for (id, (expected, found)) in naive.arguments().into_iter().zip(expected.iter().zip(&found)) {
        if task.workload.tensor(id).role != Role::Output {
            continue;
        }
        for (at, (e, f)) in to_floats(expected).into_iter().zip(to_floats(found)).enumerate() {
            if e != f && (e - f).abs() > 1e-4 * e.abs().max(1e-3) {
                return Err(describe(format!("element {at} of t{} is {f}, not {e}", id.0), &nest));
            }
        }
    }
    Ok(())
}

#[test]
fn every_trace_gives_a_legal_nest_that_computes_the_workload() {
    for seed in 0..2000 {
        if let Err(report) = check(seed) {
            eprintln!("XX {}", report.lines().next().unwrap());
        }
    }
    panic!("debug");
}
