//! The gate itself: wrong kernels of every kind are refused, for every type and depth, and right ones pass.
//!
//! A wrong kernel is the plain nest of a product with a fault in it. It runs after the right one, so that
//! what it leaves alone holds the right result, unless the gate poisons it.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Mutex;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::iter::{IntoParallelIterator, ParallelIterator};
use tilescribe::codegen;
use tilescribe::measure::{Bench, MeasureError, Measurer, OracleCache, OracleError, Refusal, Tolerance, Workbench};
use tilescribe::nest::{Nest, Stmt};
use tilescribe::outcome::Failure;
use tilescribe::space::{Decision, Policy, Space, Trace};
use tilescribe::target::Task;
use tilescribe::workload::{Array, Binary, Condition, DType, Elements, Expr, Index, TensorId, Unary, Workload};

use super::{INNER, again, host, options};

const DEPTHS: [i64; 3] = [64, 512, 4096];

/// Operands, and what their products are added up in.
const TYPES: [(DType, DType); 7] = [
    (DType::F32, DType::F32),
    (DType::F16, DType::F32),
    (DType::BF16, DType::F32),
    (DType::I8, DType::I32),
    (DType::U8, DType::I32),
    (DType::I32, DType::I32),
    (DType::I64, DType::I64),
];

/// Rows and columns of results.
const ROWS: i64 = 5;
const COLUMNS: i64 = 24;

/// Steps of the reduction that a fault takes for a tile.
const TILE: i64 = 16;

/// A product whose result is stored in the operands' type if that is of floats: negated, where that needs no
/// conversion.
fn product(operands: DType, sums: DType, rows: i64, columns: i64, depth: i64) -> Workload {
    let widened = |load: &str| if operands == sums { load.into() } else { format!("cast {} {load}", sums.name()) };
    let (x, y) = (widened("t0 a c"), widened("t1 c b"));
    let is_converted = operands.is_float() && operands != sums;
    let (stored, last) =
        if is_converted { (operands, format!("cast {} t2 a b", operands.name())) } else { (sums, "neg t2 a b".into()) };
    let (operands, sums, stored) = (operands.name(), sums.name(), stored.name());
    format!(
        "input t0 {operands} {rows} {depth}\nconst t1 {operands} {depth} {columns}\n\
         let t2 {sums} {rows} {columns} sum {depth} mul {x} {y}\nout t3 {stored} {rows} {columns} {last}\n"
    )
    .parse()
    .unwrap()
}

/// A kind of wrong kernel.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Fault {
    /// It writes nothing.
    Nothing,
    Zeros,
    /// The last of eight columns is not written.
    MissingLane,
    /// The last of eight steps of the reduction is left out.
    MissingSteps,
    MissingFirstStep,
    MissingLastStep,
    /// The last steps read one operand where those before them do.
    StaleTile,
    /// The last columns hold what those before them do.
    StaleResults,
    /// Floats are 1.03 times as large, the last integer is off by one.
    Larger,
    /// Twice as far from the right value as floats may be.
    TwiceTheTolerance,
}

const FAULTS: [Fault; 10] = [
    Fault::Nothing,
    Fault::Zeros,
    Fault::MissingLane,
    Fault::MissingSteps,
    Fault::MissingFirstStep,
    Fault::MissingLastStep,
    Fault::StaleTile,
    Fault::StaleResults,
    Fault::Larger,
    Fault::TwiceTheTolerance,
];

/// Visits all statements that write.
pub fn each_write(body: &mut [Stmt], change: &mut dyn FnMut(&mut Stmt)) {
    for statement in body {
        match statement {
            Stmt::Loop(l) => each_write(&mut l.body, change),
            Stmt::If { body, .. } => each_write(body, change),
            write => change(write),
        }
    }
}

pub fn within(index: &Index, low: i64, high: i64) -> Condition {
    Condition { index: index.clone(), low, high }
}

fn binary(op: Binary, x: Expr, y: Expr) -> Expr {
    Expr::binary(op, x, y)
}

/// The variable of the loop over the steps of the reduction.
pub fn reduced(value: &Expr) -> Index {
    let mut found = None;
    value.for_each_load(&mut |tensor, indices| {
        if tensor == TensorId(0) {
            found = indices.last().cloned();
        }
    });
    found.unwrap()
}

/// `value` with something done to the right result, before it is converted.
fn unconverted(value: Expr, change: impl FnOnce(Expr) -> Expr) -> Expr {
    match value {
        Expr::Cast(to, inner) => Expr::Cast(to, Box::new(change(*inner))),
        other => change(other),
    }
}

impl Fault {
    /// The plain nest of [`product`] with this fault. `allowed` tells how far from a value it may be: the
    /// part of its size, and a constant.
    fn plant(self, workload: &Workload, depth: i64, allowed: [f64; 2]) -> Nest {
        let mut nest = Nest::naive(workload);
        let is_float = workload.tensor(TensorId(3)).dtype.is_float();
        each_write(&mut nest.body, &mut |statement| match statement {
            Stmt::Accumulate { value, .. } => {
                let step = reduced(value);
                let zero = Expr::Cast(workload.tensor(TensorId(2)).dtype, Box::new(Expr::float(0.0)));
                let right = value.clone();
                let kept = |conditions| Expr::guard(conditions, right.clone(), zero.clone());
                *value = match self {
                    Fault::MissingSteps => kept(vec![within(&step.clone().modulo(8), 0, 7)]),
                    Fault::MissingFirstStep => kept(vec![within(&step, 1, depth)]),
                    Fault::MissingLastStep => kept(vec![within(&step, 0, depth - 1)]),
                    Fault::StaleTile => {
                        let stale = right.map_loads(&mut |tensor, indices| {
                            let indices = vec![indices[0].clone().plus_constant(-TILE), indices.get(1)?.clone()];
                            (tensor == TensorId(1)).then(|| Expr::load(tensor, indices))
                        });
                        Expr::guard(vec![within(&step, depth - TILE, depth)], stale, right)
                    }
                    _ => right,
                };
            }
            Stmt::Store { buffer: TensorId(3), indices, value } => {
                let (row, column) = (indices[0].clone(), indices[1].clone());
                let right = value.clone();
                let dtype = workload.tensor(TensorId(3)).dtype;
                let skipped = match self {
                    Fault::Nothing => Some(within(&row, ROWS, ROWS + 1)),
                    Fault::MissingLane => Some(within(&column.clone().modulo(8), 0, 7)),
                    _ => None,
                };
                *value = match self {
                    Fault::Zeros => Expr::Cast(dtype, Box::new(Expr::float(0.0))),
                    Fault::StaleResults => {
                        let stale = right.substitute(&|var| {
                            (Index::var(var) == column).then(|| Index::var(var).plus_constant(-TILE / 2))
                        });
                        Expr::guard(vec![within(&column, COLUMNS - TILE / 2, COLUMNS)], stale, right)
                    }
                    Fault::Larger if is_float => {
                        unconverted(right, |x| binary(Binary::Multiply, x, Expr::float(f64::from(1.03_f32))))
                    }
                    Fault::Larger => {
                        let one = Expr::Cast(dtype, Box::new(Expr::integer(1)));
                        let last = vec![within(&row, ROWS - 1, ROWS), within(&column, COLUMNS - 1, COLUMNS)];
                        Expr::guard(last, binary(Binary::Add, right.clone(), one), right)
                    }
                    Fault::TwiceTheTolerance if is_float => unconverted(right, |x| away(x, allowed, 2.0)),
                    _ => right,
                };
                if let Some(condition) = skipped {
                    let store = std::mem::replace(statement, Stmt::If { conditions: vec![], body: vec![] });
                    *statement = Stmt::If { conditions: vec![condition], body: vec![store] };
                }
            }
            _ => {}
        });
        nest
    }
}

/// `x`, away from it by so many times what is allowed.
fn away(x: Expr, [per_size, constant]: [f64; 2], times: f64) -> Expr {
    let literal = |value: f64| Expr::float(f64::from((times * value) as f32));
    let size = Expr::unary(Unary::Absolute, x.clone());
    let by = binary(Binary::Add, binary(Binary::Multiply, size, literal(per_size)), literal(constant));
    binary(Binary::Add, x, by)
}

/// By how much results of [`product`] may be wrong, as the formula in `tolerance.rs` has it: 16 u √depth for
/// f32, one place for a 16-bit store.
fn allowed(stored: DType, depth: i64, expected: &Array) -> [f64; 2] {
    let values: Vec<f64> = (0..expected.elements().len()).filter_map(|at| expected.number(at)).collect();
    let scale = (values.iter().map(|x| x * x).sum::<f64>() / values.len() as f64).sqrt();
    let (place, operators) = match stored {
        DType::F16 => (2f64.powi(-10), 2),
        DType::BF16 => (2f64.powi(-7), 2),
        _ => (0.0, 3),
    };
    let arithmetic = 16.0 * 2f64.powi(-24) * ((depth + operators) as f64).sqrt();
    [arithmetic + place, arithmetic * scale]
}

pub fn run(bench: &mut Workbench, nest: &Nest) -> Result<(), Refusal> {
    let mut loaded = bench.load(nest)?;
    let checked = bench.check(&mut loaded);
    bench.unload(loaded);
    checked
}

#[test]
fn every_planted_fault_is_refused_at_every_type_and_depth() {
    codegen::set_threads(1);
    let cases: Vec<(DType, DType, i64)> =
        TYPES.into_iter().flat_map(|(operands, sums)| DEPTHS.map(|depth| (operands, sums, depth))).collect();
    let refused: Vec<Vec<(Fault, usize)>> = cases
        .into_par_iter()
        .map(|(operands, sums, depth)| {
            let name = format!("{} in {} at {depth}", operands.name(), sums.name());
            let workload = product(operands, sums, ROWS, COLUMNS, depth);
            let expected = OracleCache::default().expected(&workload, 1).unwrap();
            let (_, result) = &expected.outputs[0];
            let allowed = allowed(result.dtype(), depth, result);
            let task = Task { workload, target: host() };
            let mut bench = Workbench::new(task.clone(), expected).unwrap();
            let right = Nest::naive(&task.workload);
            let mut refused = Vec::new();
            for fault in FAULTS {
                if fault == Fault::TwiceTheTolerance && !operands.is_float() {
                    continue;
                }
                run(&mut bench, &right).unwrap_or_else(|refusal| panic!("{name}: {refusal:?}"));
                match run(&mut bench, &fault.plant(&task.workload, depth, allowed)) {
                    Err(Refusal { cause: Failure::WrongResult, .. }) => refused.push((fault, 1)),
                    other => panic!("{name}: {fault:?}: {other:?}"),
                }
            }
            refused
        })
        .collect();
    let mut counts = BTreeMap::<Fault, usize>::new();
    refused.into_iter().flatten().for_each(|(fault, count)| *counts.entry(fault).or_default() += count);
    writeln!(std::io::stdout(), "refused, of 7 types at 3 depths: {counts:?}").unwrap();
    let floats = TYPES.iter().filter(|(operands, _)| operands.is_float()).count();
    for fault in FAULTS {
        let types = if fault == Fault::TwiceTheTolerance { floats } else { TYPES.len() };
        assert_eq!(counts.get(&fault), Some(&(types * DEPTHS.len())), "{fault:?}");
    }
}

/// What is refused is more than rounding: f32 results may be wrong by half of what is allowed, and by a place
/// where they are stored in 16 bits.
#[test]
fn rounding_is_no_fault() {
    for (operands, sums) in TYPES.into_iter().filter(|(operands, _)| operands.is_float()) {
        for depth in DEPTHS {
            let workload = product(operands, sums, ROWS, COLUMNS, depth);
            let expected = OracleCache::default().expected(&workload, 1).unwrap();
            let (id, result) = expected.outputs[0].clone();
            let [_, constant] = allowed(result.dtype(), depth, &result);
            let tolerance = Tolerance::new(&workload, id, &result);
            let off = |by: &dyn Fn(f64) -> f64| {
                let values = (0..result.elements().len()).map(|at| result.number(at).map(by).unwrap());
                let elements = match result.dtype() {
                    DType::F16 => Elements::F16(values.map(half::f16::from_f64).collect()),
                    DType::BF16 => Elements::BF16(values.map(half::bf16::from_f64).collect()),
                    _ => Elements::F32(values.map(|x| x as f32).collect()),
                };
                let found = Array::new(result.shape().to_vec(), elements).unwrap();
                tolerance.compare(id, &result, &found.to_bytes())
            };
            let next = match result.dtype() {
                DType::F16 => 2f64.powi(-11) * 1.01,
                DType::BF16 => 2f64.powi(-8) * 1.01,
                _ => 0.0,
            };
            assert_eq!(off(&|x| x * (1.0 + next)), Ok(()), "{} at {depth}", operands.name());
            assert_eq!(off(&|x| x + constant / 2.0), Ok(()), "{} at {depth}", operands.name());
        }
    }
}

struct Random(ChaCha8Rng);

impl Policy for Random {
    fn pick(&mut self, decision: &Decision) -> usize {
        self.0.random_range(0..decision.candidates.len())
    }
}

/// Programs for each type and depth of [`right_programs_pass`], in tasks of so many.
const TASKS: usize = 4;
const PROGRAMS: usize = 28;

/// New code may take its process down, so it runs in another one.
#[test]
fn right_programs_pass() {
    if std::env::var_os(INNER).is_none() {
        let output = again("gate::right_programs_pass").output().unwrap();
        let (printed, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{}\n{printed}\n{said}", output.status);
        let line = printed.lines().find_map(|line| line.split_once("passed: ")).unwrap().1;
        writeln!(std::io::stdout(), "passed: {line}").unwrap();
        return;
    }
    let floats: Vec<(DType, DType)> = TYPES.into_iter().filter(|(operands, _)| operands.is_float()).collect();
    let cases: Vec<(usize, DType, DType, i64, u64)> = floats
        .into_iter()
        .enumerate()
        .flat_map(|(number, (operands, sums))| DEPTHS.map(|depth| (number, operands, sums, depth)))
        .flat_map(|(number, operands, sums, depth)| {
            (0..TASKS as u64).map(move |task| (number, operands, sums, depth, task))
        })
        .collect();
    codegen::set_threads(2);
    // programs share the threads that run them
    let running = Mutex::new(());
    let passed: Vec<(String, usize)> = cases
        .into_par_iter()
        .map(|(number, operands, sums, depth, task)| {
            let mut random = ChaCha8Rng::seed_from_u64(1000 * depth as u64 + 10 * number as u64 + task);
            let (rows, columns) = (random.random_range(1..9), random.random_range(1..33));
            let workload = product(operands, sums, rows, columns, depth);
            let expected = OracleCache::default().expected(&workload, task).unwrap();
            let task = Task { workload, target: host() };
            let mut bench = Workbench::new(task.clone(), expected).unwrap();
            let space = Space::standard();
            let mut policy = Random(random);
            for _ in 0..PROGRAMS {
                let (trace, nest) = space.drive(&task, &mut policy);
                let machine = bench.machine().clone();
                let checked = Workbench::compile(&machine, nest.unwrap()).and_then(|compiled| {
                    let _alone = running.lock().unwrap();
                    let mut loaded = bench.place(&compiled)?;
                    let checked = bench.check(&mut loaded);
                    bench.unload(loaded);
                    checked
                });
                checked.unwrap_or_else(|refusal| panic!("{}{refusal:?}\n{trace}", task.workload));
            }
            (format!("{} at {depth}", operands.name()), PROGRAMS)
        })
        .collect();
    let mut counts = BTreeMap::new();
    passed.iter().for_each(|(name, count)| *counts.entry(name.as_str()).or_insert(0) += count);
    let total: usize = counts.values().sum();
    writeln!(std::io::stdout(), "\npassed: {total} of {total} random programs: {counts:?}").unwrap();
    assert!(total >= 1000);
}

/// A network may ask for such a sum by hand: import makes none.
#[test]
fn sums_that_no_check_can_judge_are_refused() {
    let direct = |half: &str, depth: i64| -> Workload {
        let text = format!("input t0 {half} 5 {depth}\nout t1 {half} 5 sum {depth} t0 a b\n");
        text.parse().unwrap()
    };
    let expected = |workload: &Workload| OracleCache::default().expected(workload, 1);
    for (half, deepest) in [("bf16", 64), ("f16", 512)] {
        let workload = direct(half, deepest);
        let mut bench =
            Workbench::new(Task { workload: workload.clone(), target: host() }, expected(&workload).unwrap()).unwrap();
        run(&mut bench, &Nest::naive(&workload)).unwrap();
        let error = expected(&direct(half, deepest + 1)).err().unwrap();
        assert!(matches!(error, OracleError::Rounded { .. }), "{error:?}");
        assert!(error.to_string().contains("accumulate in f32"), "{error}");
    }
    // the largest of many is none of them
    expected(&"input t0 bf16 5 4096\nout t1 bf16 5 maxof 4096 t0 a b\n".parse().unwrap()).unwrap();
}

/// The tolerance is of each output alone.
#[test]
fn an_output_in_16_bits_widens_nothing_for_another() {
    let both: Workload = "input t0 5 64\nconst t1 64 7\nout t2 5 7 sum 64 mul t0 a c t1 c b\n\
         out t3 bf16 5 7 cast bf16 t2 a b\n"
        .parse()
        .unwrap();
    let expected = OracleCache::default().expected(&both, 1).unwrap();
    let tolerance = |at: usize| {
        let (id, array) = &expected.outputs[at];
        Tolerance::new(&both, *id, array)
    };
    assert_eq!((tolerance(0).place, tolerance(0).stored), (0.0, 0.0));
    assert_eq!((tolerance(1).place, tolerance(1).stored), (2f64.powi(-7), 0.0));
    assert!(tolerance(0).allowed(1.0) < 1e-4 && tolerance(1).allowed(1.0) < 1e-2);
    // a stage that is stored in 16 bits on the way adds its rounding once
    let chained: Workload =
        "input t0 5 64\nlet t1 f16 5 64 cast f16 exp t0 a b\nout t2 5 sum 64 cast f32 t1 a b\n".parse().unwrap();
    let expected = OracleCache::default().expected(&chained, 1).unwrap();
    let found = Tolerance::new(&chained, expected.outputs[0].0, &expected.outputs[0].1);
    assert_eq!((found.place, found.stored), (0.0, 2f64.powi(-10)));
}

/// Nothing is allocated, let alone a process lost, for a task of terabytes.
#[test]
fn a_task_of_terabytes_is_refused_before_anything_is_allocated() {
    let large: Workload = "input t0 1000000 1000000\nout t1 1000000 maxof 1000000 t0 a b\n".parse().unwrap();
    let error = OracleCache::default().expected(&large, 1).err().unwrap();
    assert_eq!(
        error.to_string(),
        "it needs 7.3 TiB of memory for its tensors; 16.0 GiB are allowed: --measuring-memory raises that"
    );
    let mut measurer = Measurer::new(options());
    let error = measurer.measure(&Task { workload: large, target: host() }, &Trace::default(), None).unwrap_err();
    assert!(matches!(error, MeasureError::Task { .. }));
    assert_eq!(
        error.to_string(),
        "the task cannot be measured: it needs 7.3 TiB of memory for its tensors; 16.0 GiB are allowed: --measuring-memory raises that"
    );
    let worker = measurer.worker_id();
    assert!(worker.is_some(), "the worker lives on");
    // a limit may be raised or lowered
    let small: Workload = "input t0 1000\nout t1 1000 exp t0 a\n".parse().unwrap();
    let within = |bytes| OracleCache::default().within(bytes).expected(&small, 1).is_ok();
    assert!(within(16_000) && !within(15_999));
}
