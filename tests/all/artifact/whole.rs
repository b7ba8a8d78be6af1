//! Networks of `tests/files/graph` as artifacts in which threads share every loop that they can, calls
//! run at the same time where they can, and cases of inputs with what ONNX Runtime computes.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use tilescribe::artifact::{self, Manifest, Model, Options, Schedule, Version};
use tilescribe::graph::{self, ImportOptions, TensorData, import_tensor};
use tilescribe::nest::{LoopKind, Nest, Scope, Stmt};
use tilescribe::space::{Decision, Policy, Space, Word};
use tilescribe::target::{Target, Task};

use super::{host, threads};

/// With branches, repetitions, library calls, results that are counted, quantised sums, and extents that are
/// known only at run time.
pub const NETWORKS: [&str; 22] = [
    "networks/attention",
    "networks/conv_batch_norm",
    "networks/depthwise",
    "networks/pooling",
    "networks/regions",
    "networks/if_0",
    "networks/lstm_2",
    "networks/scan_5",
    "networks/while_0",
    "networks/loop_1",
    "networks/inside_1",
    "networks/top_k_0",
    "networks/non_zero_3",
    "quantized/convolutions",
    "open/heads",
    "open/layers",
    "open/either",
    "open/pictures",
    "open/scan",
    "open/until",
    "open/positions",
    "open/found",
];

pub struct Case {
    pub inputs: Vec<TensorData>,
    outputs: Vec<TensorData>,
}

pub struct Whole {
    name: String,
    folder: tempfile::TempDir,
    schedules: Vec<Schedule>,
    pub cases: Vec<Case>,
}

/// Answers that every loop is shared.
struct Shared;

impl Policy for Shared {
    fn pick(&mut self, decision: &Decision) -> usize {
        let asks_for_threads = decision.site.0.first() == Some(&Word::from("parallel"));
        if asks_for_threads { decision.candidates.len() - 1 } else { decision.default }
    }
}

impl Whole {
    pub fn compile(name: &str) -> Whole {
        Whole::compile_as(name, "net")
    }

    pub fn compile_as(name: &str, prefix: &str) -> Whole {
        Whole::judged(name, prefix, |_| true)
    }

    /// With the forks that a judge lets be, by number.
    pub fn judged(name: &str, prefix: &str, stays: impl Fn(usize) -> bool) -> Whole {
        let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files/graph").join(name);
        let mut program = graph::import(&files.join("model.onnx"), &ImportOptions::default()).unwrap();
        program.shorten(graph::Precision::F32, graph::Products::ByWeights);
        let mut network = graph::partition(&program).unwrap();
        network.fork(&|_| 1.0);
        let (space, target) = (Space::standard(), Target::Cpu(host()));
        let schedule = |task: &graph::NetworkTask| {
            let task = Task { workload: task.workload.clone(), target: target.clone() };
            let (trace, nest) = space.drive(&task, &mut Shared);
            nest.map_or_else(
                |_| Schedule::untuned(&space, &task).unwrap(),
                |nest| Schedule { nest, trace, best_ns: None },
            )
        };
        let schedules: Vec<Schedule> = network.tasks.iter().map(schedule).collect();
        let folder = tempfile::tempdir().unwrap();
        let version = Version { target: &target, schedules: &schedules };
        let options = Options { name: prefix, folder: &folder.path().join("net") };
        let mut judge = |folder: &Path, manifest: &Manifest| {
            // what is judged can run
            Model::load_written(folder, manifest.clone(), threads(2)).unwrap();
            ControlFlow::Continue((0..manifest.forks.len()).map(&stays).collect())
        };
        let progress = &mut |_| ControlFlow::Continue(());
        artifact::compile_judged(&network, &[version], &options, progress, &mut judge).unwrap();
        let case = |folder: PathBuf| {
            let data = |kind: &str, count: usize| -> Vec<TensorData> {
                (0..count).map(|at| import_tensor(&folder.join(format!("{kind}_{at}.pb"))).unwrap()).collect()
            };
            Case { inputs: data("input", program.inputs.len()), outputs: data("output", program.outputs.len()) }
        };
        let cases = ["test_data_set_0", "case_0", "case_1", "case_2", "case_3"].map(|case| files.join(case));
        let cases = cases.into_iter().filter(|folder| folder.is_dir()).map(case).collect();
        Whole { name: name.into(), folder, schedules, cases }
    }

    pub fn path(&self) -> PathBuf {
        self.folder.path().join("net")
    }

    pub fn model(&self, count: u32) -> Model {
        Model::load(&self.path(), threads(count)).unwrap()
    }

    /// How many kernels have loops for threads, and the most bytes that one of these gives each thread.
    pub fn shares(&self) -> (usize, i64) {
        fn is_shared(body: &[Stmt]) -> bool {
            body.iter().any(|statement| match statement {
                Stmt::Loop(l) => l.kind == LoopKind::Parallel || is_shared(&l.body),
                Stmt::If { body, .. } => is_shared(body),
                Stmt::Store { .. } | Stmt::Accumulate { .. } => false,
            })
        }
        let nests: Vec<&Nest> = self.schedules.iter().map(|s| &s.nest).filter(|nest| is_shared(&nest.body)).collect();
        let own = |nest: &&Nest| {
            let own = nest.buffers.iter().filter(|b| matches!(b.scope, Scope::BlockShared | Scope::Register));
            own.map(|buffer| buffer.bytes() as i64).sum()
        };
        (nests.len(), nests.iter().map(own).max().unwrap_or(0))
    }

    /// What a run of the case gives, which has to be near what ONNX Runtime gives.
    pub fn run(&self, model: &Model, case: &Case) -> Vec<TensorData> {
        let outputs = model.run(&case.inputs).unwrap_or_else(|error| panic!("{}: {error}", self.name));
        for (found, expected) in outputs.iter().zip(&case.outputs) {
            assert_eq!(found.shape, expected.shape, "{}", self.name);
            let (found, expected) = (found.to_f64(), expected.to_f64());
            let largest = expected.iter().fold(0.0f64, |most, value| most.max(value.abs()));
            for (found, expected) in found.iter().zip(&expected) {
                let is_near = (found - expected).abs() <= 1e-4 * largest || found == expected;
                assert!(is_near, "{}: {found} is not {expected}", self.name);
            }
        }
        outputs
    }
}
