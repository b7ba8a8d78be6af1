//! Laws: whatever decisions are taken, the nest is legal, runs without a fault, and computes what the plain
//! nest does.

use std::collections::BTreeMap;
use std::io::Write;

use half::{bf16, f16};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::iter::{IntoParallelIterator, ParallelIterator};
use tilescribe::codegen::ptx;
use tilescribe::nest::{Buffer, Nest, interpret, verify};
use tilescribe::space::{Choice, Decision, Next, NoProgram, Policy, Space, Trace, Untuned};
use tilescribe::target::{Architecture, Cpu, Target, Task};
use tilescribe::workload::{Array, DType, Role, TensorId, Workload, evaluate};

use super::gpu::{SHIPPED, gpu};
use super::workloads::random_workload;

/// Pairs of a workload and a trace that are checked: seeds count from 0.
pub const PAIRS: u64 = 5000;

pub struct Random<'a>(pub &'a mut ChaCha8Rng);

impl Policy for Random<'_> {
    fn pick(&mut self, decision: &Decision) -> usize {
        self.0.random_range(0..decision.candidates.len())
    }
}

/// Copies all operands, in many short steps, and rather far ahead; all else at random.
struct ManySteps<'a>(&'a mut ChaCha8Rng);

impl Policy for ManySteps<'_> {
    fn pick(&mut self, decision: &Decision) -> usize {
        let count = decision.candidates.len();
        match decision.site.to_string().split(' ').next() {
            Some("steps") => 0,
            // whole reductions rather than parts, which are short
            Some("split") => (0..3).map(|_| self.0.random_range(0..count)).min().unwrap_or(0),
            // the first is none
            Some("copy") => self.0.random_range(usize::from(decision.candidates[0].is("none"))..count),
            // as many as can be, or one less
            Some("stages") => count - 1 - self.0.random_range(0..count.min(2)),
            _ => self.0.random_range(0..count),
        }
    }
}

pub fn random_target(rng: &mut ChaCha8Rng) -> Target {
    let (vector_bits, vector_registers) = [(128, 16), (256, 16), (512, 32)][rng.random_range(0..3)];
    Target::Cpu(Cpu {
        architecture: Architecture::X86_64,
        cpu: "generic".into(),
        features: Vec::new(),
        vector_bits,
        vector_registers,
        cores: rng.random_range(1..=4),
        l1_bytes: 32 << 10,
        l2_bytes: 1 << 20,
        l3_bytes: 0,
    })
}

/// A workload for some machine, and decisions for it.
pub struct Pair {
    /// Of the workload.
    pub kind: &'static str,
    pub task: Task,
    pub trace: Trace,
    pub result: Result<Nest, NoProgram>,
}

impl Pair {
    /// Equal states of `rng` draw equal pairs.
    pub fn random(rng: &mut ChaCha8Rng) -> Pair {
        Pair::on(random_target, rng)
    }

    /// The same for a machine that `target` draws.
    pub fn on(target: impl FnOnce(&mut ChaCha8Rng) -> Target, rng: &mut ChaCha8Rng) -> Pair {
        Pair::by(|rng, task| Space::standard().drive(task, &mut Random(rng)), target, rng)
    }

    fn by(
        drive: impl FnOnce(&mut ChaCha8Rng, &Task) -> (Trace, Result<Nest, NoProgram>),
        target: impl FnOnce(&mut ChaCha8Rng) -> Target,
        rng: &mut ChaCha8Rng,
    ) -> Pair {
        let (kind, workload) = random_workload(rng);
        let task = Task { workload, target: target(rng) };
        let (trace, result) = drive(rng, &task);
        Pair { kind, task, trace, result }
    }

    /// For a GPU: at random, or with many steps in shared memory.
    pub fn for_gpu(target: Target, many_steps: bool, rng: &mut ChaCha8Rng) -> Pair {
        match many_steps {
            false => Pair::on(|_| target, rng),
            true => Pair::by(|rng, task| Space::standard().drive(task, &mut ManySteps(rng)), |_| target, rng),
        }
    }

    /// Of a given task: the untuned program, or one at random.
    pub fn of(task: Task, untuned: bool, rng: &mut ChaCha8Rng) -> Pair {
        let (trace, result) = match untuned {
            true => Space::standard().drive(&task, &mut Untuned),
            false => Space::standard().drive(&task, &mut Random(rng)),
        };
        Pair { kind: "given", task, trace, result }
    }
}

/// All arguments of the naive nest, floats positive so that sums do not cancel, positions of any sign, since
/// all are wrapped or clamped; outputs and packed buffers hold a poison.
fn arguments(nest: &Nest, rng: &mut ChaCha8Rng) -> Vec<Vec<u8>> {
    let random = |buffer: &Buffer, rng: &mut ChaCha8Rng| -> Vec<u8> {
        let mut element = |_| {
            let value: f32 = rng.random_range(0.25..1.0);
            match buffer.dtype {
                DType::F16 => f16::from_f32(value).to_ne_bytes().to_vec(),
                DType::BF16 => bf16::from_f32(value).to_ne_bytes().to_vec(),
                DType::I32 => rng.random_range(-200..200_i32).to_ne_bytes().to_vec(),
                DType::I64 => rng.random_range(-200..200_i64).to_ne_bytes().to_vec(),
                _ => value.to_ne_bytes().to_vec(),
            }
        };
        (0..buffer.elements()).flat_map(&mut element).collect()
    };
    nest.arguments().iter().map(|id| random(nest.buffer(*id), rng)).collect()
}

/// One workload and one trace; what is wrong with the nest, if anything.
fn check(seed: u64) -> Result<(), String> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let pair = Pair::random(&mut rng);
    pair.check(seed, &mut rng, false)
}

impl Pair {
    /// Runs the nest beside the plain one, and its PTX, too, where it shall be executed; what is wrong with
    /// it, if anything.
    pub fn check(self, seed: u64, rng: &mut ChaCha8Rng, executed: bool) -> Result<(), String> {
        let Pair { kind, task, trace, result } = self;
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

        let (given, expected) =
            agreement(&task.workload, [&naive, &nest], rng).map_err(|(what, nest)| describe(what, &*nest))?;
        let Target::Gpu(gpu) = &task.target else { return Ok(()) };
        if !executed {
            return Ok(());
        }
        let program = ptx(&nest, gpu).map_err(|error| describe(error.to_string(), &nest))?;
        agree(&nest, &given, &expected, &|bytes| crate::ptx::run(&program, bytes))
            .map_err(|difference| describe(format!("executed: {difference}\n{}", program.text), &nest))
    }
}

/// Arguments, and what is to come of them.
type Example = (Vec<Vec<u8>>, Vec<(TensorId, Array)>);

/// Interprets the naive nest and another one, and compares what they leave with the evaluator; what differs,
/// and in which nest.
pub fn agreement(workload: &Workload, nests: [&Nest; 2], rng: &mut ChaCha8Rng) -> Result<Example, (String, Box<Nest>)> {
    let [naive, _] = nests;
    let given = arguments(naive, rng);
    let expected = evaluated(workload, naive, &given).map_err(|error| (error, Box::new(naive.clone())))?;
    for nest in nests {
        let interpreted = |mut bytes: Vec<Vec<u8>>| match interpret(nest, &mut bytes) {
            Ok(_) => Ok(bytes),
            Err(fault) => Err(fault.to_string()),
        };
        agree(nest, &given, &expected, &interpreted).map_err(|difference| (difference, Box::new(nest.clone())))?;
    }
    Ok((given, expected))
}

/// Runs a nest on arguments, in one way or another, and compares what it leaves in the outputs.
fn agree(
    nest: &Nest,
    given: &[Vec<u8>],
    expected: &[(TensorId, Array)],
    run: &dyn Fn(Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, String>,
) -> Result<(), String> {
    let mut bytes = given.to_vec();
    for id in &nest.arguments()[given.len()..] {
        bytes.push(vec![0xa5; nest.buffer(*id).bytes()]);
    }
    let found: Vec<_> = nest.arguments().into_iter().zip(run(bytes)?).collect();
    for (id, array) in expected {
        let bytes = found.iter().find(|(other, _)| other == id).map(|(_, bytes)| bytes.as_slice());
        // errors that are independent of one another grow by the root
        let allowed = 1e-4 * f64::from(nest.error_growth).sqrt() + last_place(array.dtype());
        let found = Array::from_bytes(array.shape().to_vec(), array.dtype(), bytes.unwrap_or_default())
            .map_err(|error| error.to_string())?;
        // an algorithm of its own has errors of the size of an element's neighbours
        let scale = if nest.error_growth > 1 { root_mean_square(array) } else { 0.0 };
        compare(*id, array, &found, allowed, scale)?;
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

/// Two roundings of about the same value may be so far apart.
fn last_place(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2f64.powi(-10),
        DType::BF16 => 2f64.powi(-7),
        _ => 0.0,
    }
}

fn root_mean_square(array: &Array) -> f64 {
    let count = array.elements().len();
    let squares = (0..count).filter_map(|at| array.number(at)).map(|x| x * x).sum::<f64>();
    (squares / count.max(1) as f64).sqrt()
}

/// Inputs are positive and below 1, so that nothing cancels, except for what an algorithm adds: elements that
/// are small beside `scale` are compared with that.
fn compare(id: TensorId, expected: &Array, found: &Array, allowed: f64, scale: f64) -> Result<(), String> {
    for at in 0..expected.elements().len() {
        let (e, f) = (expected.number(at).unwrap_or(f64::NAN), found.number(at).unwrap_or(f64::NAN));
        // a NaN is close to nothing
        let close = (e - f).abs() <= allowed * e.abs().max(scale).max(1e-3);
        if e != f && !close {
            return Err(format!("element {at} of t{} is {f}, not {e}", id.0));
        }
    }
    Ok(())
}

/// What reasons of dead ends say: a block has no room, or no room for an operand, or an access is not proved
/// to stay inside.
const DEAD_ENDS: [&str; 3] = ["bytes of shared memory", "nothing fits `copy", "may leave its dimension"];
const UNPROVED: usize = 2;

/// What became of a pair for a GPU.
struct OnGpu {
    /// The verbs of its decisions, with the answer where there are only a few.
    decisions: Vec<String>,
    /// Of a dead end: which of [`DEAD_ENDS`].
    dead_end: Option<usize>,
}

fn on_gpu(seed: u64) -> Result<OnGpu, String> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    // half of them are small parts of one, whose multiprocessors get several steps each of small workloads,
    // too
    let target = |rng: &mut ChaCha8Rng| {
        let mut gpu = gpu(SHIPPED[rng.random_range(0..SHIPPED.len())].0);
        if rng.random_bool(0.5) {
            gpu.multiprocessors = rng.random_range(1..=4);
        }
        gpu.into()
    };
    let pair = match seed % 2 {
        0 => Pair::on(target, &mut rng),
        _ => Pair::by(|rng, task| Space::standard().drive(task, &mut ManySteps(rng)), target, &mut rng),
    };
    let decision = |choice: &Choice| {
        let (site, value) = (choice.site.to_string(), choice.value.to_string());
        match site.split(' ').next().unwrap_or_default() {
            verb @ ("epilogue" | "rows" | "copy" | "lanes" | "bank" | "stages" | "persistent") => {
                format!("{verb} {value}")
            }
            verb if value == "1" || value == "none" => format!("{verb} {value}"),
            verb => verb.to_string(),
        }
    };
    let decisions = pair.trace.0.iter().map(decision).collect();
    if let Err(reason) = &pair.result {
        let is_dead_end = matches!(reason, NoProgram::DeadEnd(_));
        let why = DEAD_ENDS.iter().position(|words| is_dead_end && reason.to_string().contains(words));
        return match why {
            Some(_) => Ok(OnGpu { decisions, dead_end: why }),
            None => Err(format!("seed {seed}, {}: {reason}\ntrace:\n{}", pair.kind, pair.trace)),
        };
    }
    pair.check(seed, &mut rng, seed.is_multiple_of(EXECUTED))?;
    Ok(OnGpu { decisions, dead_end: None })
}

/// Kinds of decisions for GPUs, each of which is drawn [`LEAST`] times.
const GPU_DECISIONS: [&str; 38] = [
    "split",
    "split 1",
    "mma",
    "mma none",
    "epilogue fused",
    "epilogue apart",
    "rows 0",
    "rows 1",
    "block",
    "block 1",
    "fuse",
    "fuse none",
    "vector",
    "vector none",
    "threads",
    "threads 1",
    "tile",
    "tile 1",
    "virtual",
    "virtual 1",
    "steps",
    "steps 1",
    "copy none",
    "copy panel",
    "copy box",
    "lanes 4",
    "bank 0",
    "bank 4",
    "stages 1",
    "stages 2",
    "stages 3",
    "stages 4",
    "stages 5",
    "persistent 0",
    "persistent 1",
    "persistent 2",
    "persistent 3",
    "persistent 4",
];
const LEAST: usize = 50;
/// One of so many pairs for GPUs is compiled, and its PTX executed.
const EXECUTED: u64 = 5;
/// Pairs for GPUs: seeds from here on.
const GPU_PAIRS: std::ops::Range<u64> = 100_000..102_400;

#[test]
fn every_trace_for_a_gpu_gives_a_legal_nest_without_races_that_computes_the_workload() {
    let done: Result<Vec<OnGpu>, String> = GPU_PAIRS.into_par_iter().map(on_gpu).collect();
    let done = done.unwrap_or_else(|report| panic!("{report}"));
    let mut drawn = BTreeMap::<&str, usize>::new();
    done.iter().flat_map(|pair| &pair.decisions).for_each(|kind| *drawn.entry(kind).or_default() += 1);
    let ended = |why: usize| done.iter().filter(|pair| pair.dead_end == Some(why)).count();
    let (unproved, dead_ends) = (ended(UNPROVED), ended(0) + ended(1));
    let table: String = drawn.iter().map(|(kind, count)| format!("{kind:<16} {count}\n")).collect();
    writeln!(
        std::io::stdout(),
        "{} pairs, {dead_ends} of them without room, {unproved} not proved\n{table}",
        done.len()
    )
    .unwrap();
    let rare: Vec<&&str> =
        GPU_DECISIONS.iter().filter(|kind| drawn.get(**kind).copied().unwrap_or(0) < LEAST).collect();
    assert!(rare.is_empty(), "drawn fewer than {LEAST} times: {rare:?}\n{table}");
    assert!(dead_ends * 10 < done.len() && unproved * 200 < done.len(), "{dead_ends} and {unproved} of {}", done.len());
}

#[test]
fn every_trace_gives_a_legal_nest_that_computes_the_workload() {
    let report = (0..PAIRS).into_par_iter().find_map_first(|seed| check(seed).err());
    assert_eq!(report, None, "{}", report.as_deref().unwrap_or_default());
}
