//! From nests and traces to outcomes: the gate against bad nests, and the worker as a process.

mod cuda_link;
mod gate;
mod mutants;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tilescribe::codegen;
use tilescribe::measure::{Bench, MeasureError, Measurer, Options, OracleCache, Timing, Workbench, generate_inputs};
use tilescribe::nest::{Buffer, Nest, Scope, Stmt};
use tilescribe::outcome::{Failure, Outcome};
use tilescribe::space::{Decision, Policy, Space, Trace, Untuned};
use tilescribe::target::{Target, Task};
use tilescribe::workload::{DType, Elements, Index, Role, TensorId, Workload, evaluate};

/// Tells a test that runs itself again that it is the inner one.
const INNER: &str = "TILESCRIBE_TEST_MEASURE";

fn host() -> Target {
    codegen::host().unwrap().into()
}

fn task(workload: &str) -> Task {
    Task { workload: workload.parse().unwrap(), target: host() }
}

fn product(depth: i64) -> String {
    format!("input t0 5 {depth}\nconst t1 {depth} 7\nout t2 5 7 sum {depth} mul t0 a c t1 c b\n")
}

const SOFTMAX: &str = "input t0 6 33\nlet t1 6 maxof 33 t0 a b\nlet t2 6 33 exp sub t0 a b t1 a\n\
     let t3 6 sum 33 t2 a b\nout t4 6 33 div t2 a b t3 a\n";

fn bench(task: &Task) -> Workbench {
    let expected = OracleCache::default().expected(&task.workload, 1).unwrap();
    Workbench::new(task.clone(), expected).unwrap()
}

/// Loads, checks and times a nest.
fn outcome(task: &Task, nest: &Nest) -> Outcome {
    let mut bench = bench(task);
    let run = |bench: &mut Workbench| {
        let mut loaded = bench.load(nest)?;
        bench.check(&mut loaded)?;
        bench.time(&mut loaded, &Timing::default(), None, None)
    };
    run(&mut bench).unwrap_or_else(Outcome::from)
}

/// The naive nest with all its outermost statements changed.
fn changed(task: &Task, change: &mut dyn FnMut(&mut Vec<Stmt>)) -> Nest {
    let mut nest = Nest::naive(&task.workload);
    change(&mut nest.body);
    nest
}

/// Shortens by one iteration all loops that are nested so deep.
fn shorten(body: &mut [Stmt], depth: usize) {
    for statement in body {
        if let Stmt::Loop(l) = statement {
            if depth == 0 {
                l.bounds = vec![Index::constant(l.extent() - 1)];
            } else {
                shorten(&mut l.body, depth - 1);
            }
        }
    }
}

fn detail(outcome: &Outcome, cause: Failure) -> &str {
    match outcome {
        Outcome::Failed { cause: found, detail } if *found == cause => detail,
        other => panic!("not {cause}: {other:?}"),
    }
}

#[test]
fn whoever_stops_waits_for_no_reference_result() {
    let stop = Arc::new(AtomicBool::new(true));
    let worker = Options::new(env!("CARGO_BIN_EXE_tilescribe").into(), &Space::standard());
    let mut measurer = Measurer::new(Options { cache: None, stop: Some(Arc::clone(&stop)), ..worker });
    let task = task(&product(30));
    let (untuned, _) = Space::standard().drive(&task, &mut Untuned);
    let stopped = measurer.measure(&task, &untuned, None);
    assert!(matches!(stopped, Err(MeasureError::Stopped)), "{stopped:?}");
    // with another worker it goes on
    stop.store(false, Ordering::Relaxed);
    assert!(measurer.measure(&task, &untuned, None).unwrap().best_ns().is_some());
}

#[test]
fn correct_nests_are_timed() {
    for workload in [&product(64), SOFTMAX] {
        let task = task(workload);
        let outcome = outcome(&task, &Nest::naive(&task.workload));
        let Outcome::Timed { times_ns, .. } = &outcome else { panic!("{outcome:?}") };
        assert!(times_ns.len() >= Timing::default().fewest);
        assert!(times_ns.iter().all(|time| *time > 0));
    }
}

#[test]
fn one_missing_step_of_a_sum_shows() {
    for depth in [2, 8, 197, 768, 4608, 20_000] {
        let task = task(&product(depth));
        let nest = changed(&task, &mut |body| shorten(body, 2));
        let outcome = outcome(&task, &nest);
        assert!(detail(&outcome, Failure::WrongResult).contains("t2: "), "{outcome:?}");
    }
    let sum = task("input t0 3 100000\nout t1 3 sum 100000 t0 a b\n");
    let nest = changed(&sum, &mut |body| shorten(body, 1));
    detail(&outcome(&sum, &nest), Failure::WrongResult);
}

#[test]
fn one_missing_row_shows() {
    let task = task(SOFTMAX);
    // the last loop nest only: otherwise intermediates would be read before they are written, which the
    // verifier finds
    let nest = changed(&task, &mut |body| shorten(body.last_mut().map(std::slice::from_mut).unwrap(), 0));
    let outcome = outcome(&task, &nest);
    assert!(detail(&outcome, Failure::WrongResult).contains("33 of 198 elements differ"), "{outcome:?}");
}

#[test]
fn another_workloads_nest_is_refused() {
    let (mine, other) = (task(&product(8)), task(&product(9)));
    let outcome = outcome(&mine, &Nest::naive(&other.workload));
    assert!(detail(&outcome, Failure::Compile).contains("no tensor of the workload"), "{outcome:?}");
}

#[test]
fn what_the_verifier_refuses_never_runs() {
    let task = task(&product(8));
    let nest = changed(&task, &mut |body| shorten(body, 0));
    let mut longer = nest.clone();
    for statement in &mut longer.body {
        if let Stmt::Loop(l) = statement {
            l.bounds = vec![Index::constant(6)];
        }
    }
    detail(&outcome(&task, &longer), Failure::Compile);
}

#[test]
fn what_does_not_fit_into_memory_is_a_memory_failure() {
    if std::env::var_os(INNER).is_none() {
        // the limit holds for the whole process, so it is another one that meets it
        let output = again("what_does_not_fit_into_memory_is_a_memory_failure").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        return;
    }
    let limit = libc::rlimit { rlim_cur: 8 << 30, rlim_max: 8 << 30 };
    // SAFETY: a valid structure.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_DATA, &raw const limit) }, 0);
    let task = task(&product(8));
    let mut nest = Nest::naive(&task.workload);
    let huge = Buffer::new("huge", vec![1 << 20, 1 << 17], DType::F32, Scope::Workspace);
    nest.buffers.push(huge);
    assert!(detail(&outcome(&task, &nest), Failure::Memory).contains("bytes"));
    let large: Workload = "input t0 1\nlet t1 1000000 1000000 t0 0\nout t2 1 t1 0 0\n".parse().unwrap();
    let error = OracleCache::default().expected(&large, 1).err().expect("4 TB do not fit into 8 GiB");
    assert!(error.to_string().contains("memory"), "{error}");
}

#[test]
fn writing_to_an_input_is_the_end_of_the_worker() {
    if std::env::var_os(INNER).is_some() {
        let task = task(&product(8));
        let mut region = tilescribe::measure::Region::new(100, "t0").unwrap();
        region.set_read_only(true).unwrap();
        // SAFETY: not safe at all, which is the point: the region is read-only, and the process must die
        // here.
        unsafe { region.address().write_volatile(1) };
        unreachable!("{task:?} was written to");
    }
    let output = again("writing_to_an_input_is_the_end_of_the_worker").output().unwrap();
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(output.status.signal(), Some(libc::SIGSEGV), "{output:?}");
}

/// This test binary, which plays a part in one of its tests.
fn again(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("measure::{test}"), "--nocapture"]).env(INNER, "1");
    command
}

#[test]
fn inputs_suit_the_workload() {
    let of = |workload: &str| generate_inputs(&workload.parse().unwrap(), &[], 3).unwrap();
    let floats = |workload: &str, at: usize| match of(workload)[at].1.elements() {
        Elements::F32(values) => values.clone(),
        other => panic!("{other:?}"),
    };
    let both_signs = |values: &[f32]| values.iter().any(|v| *v < 0.0) && values.iter().any(|v| *v > 0.0);
    assert!(both_signs(&floats(&product(64), 0)));
    assert!(both_signs(&floats(SOFTMAX, 0)), "a sum of exponentials is a safe divisor");
    let norm = "input t0 4 64\nlet t1 4 sum 64 mul t0 a b t0 a b\nout t2 4 64 mul t0 a b rsqrt add t1 a 0.00001\n";
    assert!(both_signs(&floats(norm, 0)), "a sum of squares is a safe radicand");
    for positive in ["input t0 99\nout t1 99 log t0 a\n", "input t0 99\ninput t1 99\nout t2 99 div t0 a t1 a\n"] {
        assert!(floats(positive, 0).iter().all(|v| (0.25..=1.0).contains(v)), "{positive}");
    }
    assert!(floats(&product(400), 1).iter().all(|v| (0.0124..=0.0501).contains(&v.abs())), "scaled by 1/20");
    let gather = "input t0 i64 40\ninput t1 7 3\nout t2 40 3 t1 value t0 a b\n";
    let Elements::I64(indices) = of(gather)[0].1.elements().clone() else { panic!("t0 is i64") };
    assert!(indices.iter().all(|i| (0..7).contains(i)) && indices.contains(&6) && indices.contains(&0), "{indices:?}");
    assert_eq!(of(gather), of(gather));
    let product_of_all = "input t0 2 3000\nout t1 2 prod 3000 t0 a b\n";
    let workload: Workload = product_of_all.parse().unwrap();
    let inputs = of(product_of_all);
    let outputs = evaluate(&workload, &inputs.iter().map(|(id, array)| (*id, array)).collect::<Vec<_>>()).unwrap();
    assert!(outputs[0].1.as_f32().unwrap().iter().all(|v| *v > 1e-20 && *v < 1e20), "{outputs:?}");
}

#[test]
fn the_oracles_cache_is_believed_only_when_it_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let cache = OracleCache::new(Some(folder.path().join("oracle")));
    // large enough to be worth keeping
    let workload: Workload =
        "input t0 400 500\nconst t1 500 400\nout t2 400 400 sum 500 mul t0 a c t1 c b\n".parse().unwrap();
    let outputs = |cache: &OracleCache, seed| cache.expected(&workload, seed).unwrap().outputs;
    let truth = outputs(&OracleCache::default(), 1);
    assert_eq!(outputs(&cache, 1), truth);
    let files: Vec<_> = std::fs::read_dir(folder.path().join("oracle")).unwrap().map(|e| e.unwrap().path()).collect();
    let [file] = files.as_slice() else { panic!("{files:?}") };
    let whole = std::fs::read(file).unwrap();
    for at in [0, whole.len() / 2, whole.len() - 1] {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        std::fs::write(file, &damaged).unwrap();
        assert_eq!(outputs(&cache, 1), truth, "byte {at}");
        assert_eq!(std::fs::read(file).unwrap(), whole, "a damaged file is written anew");
    }
    std::fs::write(file, &whole[..100]).unwrap();
    assert_eq!(outputs(&cache, 1), truth);
    // a whole file is read: another truth under its name is believed
    assert_ne!(outputs(&cache, 2), truth);
    let other = std::fs::read_dir(folder.path().join("oracle")).unwrap().map(|e| e.unwrap().path()).find(|p| p != file);
    std::fs::copy(other.unwrap(), file).unwrap();
    assert_ne!(outputs(&cache, 1), truth);
}

/// Answers by a fixed sequence of numbers, over and over.
struct Numbers(u64);

impl Policy for Numbers {
    fn pick(&mut self, decision: &Decision) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % decision.candidates.len()
    }
}

fn traces(task: &Task, count: u64) -> Vec<Trace> {
    (0..count).map(|seed| Space::standard().drive(task, &mut Numbers(seed)).0).collect()
}

fn measurer() -> Measurer {
    Measurer::new(options())
}

fn options() -> Options {
    let mut options = Options::new(env!("CARGO_BIN_EXE_tilescribe").into(), &Space::standard());
    options.cache = None;
    options
}

#[test]
fn traces_become_outcomes() {
    let mut options = options();
    // finalists that are slow leave early, as their times happen to be
    options.timing.knockout = usize::MAX;
    let mut measurer = Measurer::new(options);
    for workload in [&product(64), SOFTMAX] {
        let task = task(workload);
        let traces = traces(&task, 12);
        let outcomes = measurer.measure_all(&task, &traces).unwrap();
        for (trace, outcome) in traces.iter().zip(&outcomes) {
            let fine = matches!(outcome.failure(), None | Some(Failure::DeadEnd));
            assert!(fine, "{outcome:?}\n{trace}");
        }
        assert!(outcomes.iter().any(|o| o.best_ns().is_some()));
        let worker = measurer.worker_id();
        let timed: Vec<Trace> = traces
            .iter()
            .zip(&outcomes)
            .filter(|(_, o)| o.best_ns().is_some())
            .map(|(t, _)| t.clone())
            .take(3)
            .collect();
        let finals = measurer.finals(&task, &timed).unwrap();
        let rounds: Vec<usize> =
            finals.iter().map(|o| if let Outcome::Timed { times_ns, .. } = o { times_ns.len() } else { 0 }).collect();
        assert!(rounds.iter().all(|r| *r == rounds[0] && *r > 0), "{finals:?}");
        assert_eq!(measurer.worker_id(), worker, "one warm worker for all");
    }
}

#[test]
fn times_are_normalized_to_the_incumbent() {
    let mut options = options();
    options.timing.most_drift = 1e9;
    options.timing.most_drift_between_kinds = 1e9;
    let mut measurer = Measurer::new(options);
    let task = task(&product(64));
    for (time, slow) in beside_an_untuned_program_of_long_ago(&mut measurer, &task) {
        // nothing in this space is a thousand times as fast as what the rules write untuned
        assert!(time > slow / 1000, "{time} ns beside {slow} ns");
    }
}

#[test]
fn no_machine_is_believed_to_be_a_hundred_thousand_times_slower() {
    let mut measurer = measurer();
    let task = task(&product(64));
    for (time, slow) in beside_an_untuned_program_of_long_ago(&mut measurer, &task) {
        // nor a hundred times as slow
        assert!(time < slow / 1000, "{time} ns beside {slow} ns");
    }
}

/// Nanoseconds of programs, each with those of the incumbent, the program that the rules write untuned: as if
/// the machine had been a hundred thousand times slower when that was timed.
fn beside_an_untuned_program_of_long_ago(measurer: &mut Measurer, task: &Task) -> Vec<(u64, u64)> {
    let (untuned, _) = Space::standard().drive(task, &mut Untuned);
    let slow = measurer.measure(task, &untuned, None).unwrap().best_ns().unwrap() * 100_000;
    let others = traces(task, 12).into_iter().filter(|trace| *trace != untuned);
    let times: Vec<(u64, u64)> = others
        .filter_map(|trace| measurer.measure(task, &trace, Some((&untuned, slow))).unwrap().best_ns())
        .map(|time| (time, slow))
        .collect();
    assert!(!times.is_empty());
    times
}

#[test]
fn traces_that_do_not_fit_are_the_callers_mistake() {
    let mut measurer = measurer();
    let task = task(&product(64));
    for text in ["no such site = 1\n", ""] {
        let error = measurer.measure(&task, &text.parse().unwrap(), None).unwrap_err();
        assert!(matches!(error, MeasureError::Trace { .. }), "{error:?}");
    }
}

#[test]
fn the_worker_replays_traces_in_the_space_that_it_is_given() {
    let task = task(
        "input t0 1 16 20 20\nconst t1 16 16 3 3\n\
         out t2 1 16 18 18 sum 16 3 3 mul t0 a e + c f + d g t1 b e f g\n",
    );
    let plain = Space::standard();
    let algorithms = (0..100).find_map(|seed| {
        let (trace, nest) = plain.drive(&task, &mut Numbers(seed));
        (nest.is_ok() && trace.to_string().contains("winograd")).then_some(trace)
    });
    let winograd = algorithms.expect("one of 100 programs is Winograd's");
    assert!(!plain.exact(true).offers(&task, &winograd));
    let outcome = |exact| {
        let space = Space::standard().exact(exact);
        let options = Options { cache: None, ..Options::new(env!("CARGO_BIN_EXE_tilescribe").into(), &space) };
        Measurer::new(options).measure(&task, &winograd, None)
    };
    assert_eq!(outcome(false).unwrap().failure(), None);
    let refused = outcome(true);
    assert!(matches!(refused, Err(MeasureError::Trace { .. })), "{refused:?}");
}

#[test]
fn a_worker_that_was_killed_meanwhile_is_replaced() {
    let mut measurer = measurer();
    let task = task(&product(64));
    let traces = traces(&task, 1);
    let before = measurer.measure(&task, &traces[0], None).unwrap().failure();
    let worker = measurer.worker_id().unwrap();
    // SAFETY: our own child.
    assert_eq!(unsafe { libc::kill(worker.cast_signed(), libc::SIGKILL) }, 0);
    // SAFETY: asks, into a valid structure, whether it is dead with all its threads, and leaves it to be
    // waited for.
    let ended = || unsafe {
        let mut information: libc::siginfo_t = std::mem::zeroed();
        let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        libc::waitid(libc::P_PID, worker, &raw mut information, flags) == 0 && information.si_pid() != 0
    };
    while !ended() {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(measurer.measure(&task, &traces[0], None).unwrap().failure(), before);
    assert_ne!(measurer.worker_id().unwrap(), worker);
}

#[test]
fn a_task_beyond_memory_cannot_be_measured() {
    let mut options = options();
    options.limits.memory_bytes = 3 << 30;
    let mut measurer = Measurer::new(options);
    let large = task("input t0 2000000000\nout t1 2000000000 exp t0 a\n");
    let error = measurer.measure(&large, &Trace::default(), None).unwrap_err();
    assert!(matches!(error, MeasureError::Task { .. }), "{error:?}");
    let small = task(&product(64));
    measurer.measure(&small, &traces(&small, 1)[0], None).unwrap();
}

#[test]
fn a_worker_never_outlives_its_parent() {
    if std::env::var_os(INNER).is_some() {
        let mut measurer = measurer();
        let task = task(&product(64));
        for trace in traces(&task, 1).iter().cycle() {
            measurer.measure(&task, trace, None).unwrap();
            println!("worker {}", measurer.worker_id().unwrap());
        }
    }
    let mut parent = again("a_worker_never_outlives_its_parent").stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(parent.stdout.take().unwrap()).lines().map_while(Result::ok);
    let worker = lines.find_map(|l| l.rsplit_once("worker ").and_then(|(_, id)| id.parse::<i32>().ok())).unwrap();
    parent.kill().unwrap();
    parent.wait().unwrap();
    let start = Instant::now();
    // SAFETY: signal 0 only asks.
    while unsafe { libc::kill(worker, 0) } == 0 {
        assert!(start.elapsed() < Duration::from_secs(20), "worker {worker} lives on");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn outputs_are_bound_by_tensor_not_by_position() {
    // an output before an input, and two outputs
    let text = "input t0 4 6\nout t1 4 sum 6 t0 a b\nconst t2 6\nout t3 4 6 mul t0 a b t2 b\n";
    let task = task(text);
    assert_eq!(task.workload.tensor(TensorId(1)).role, Role::Output);
    let outcome = outcome(&task, &Nest::naive(&task.workload));
    assert!(outcome.best_ns().is_some(), "{outcome:?}");
}
