//! The loop with real workers; the corpus; what the shipped model writes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tilescribe::codegen;
use tilescribe::language::Language;
use tilescribe::measure::{Measurer, Options};
use tilescribe::outcome::Failure;
use tilescribe::propose::{
    Candidate, History, LM, LanguageModel, Proposal, ProposeError, Proposer, Random, Searcher, shipped_checkpoint,
};
use tilescribe::record::{CorpusReader, Limits, Store, hold_out_key, read_pools, read_workloads};
use tilescribe::space::{Next, Space, Trace, Untuned};
use tilescribe::target::Task;
use tilescribe::tune::{Batches, Budget, Control, Event, First, Job, Local, Settings, tune};
use tilescribe::workload::generate::{Limits as Sizes, generate};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_path_buf()
}

fn worker() -> Options {
    Options { cache: None, ..Options::new(env!("CARGO_BIN_EXE_tilescribe").into(), &Space::standard()) }
}

fn job(name: &str, text: &str) -> Job {
    let task = Task { workload: text.parse().unwrap(), target: codegen::host().unwrap().into() };
    Job { name: name.into(), task, weight: 1.0 }
}

const PRODUCT: &str = "input t0 17 30\nconst t1 30 40\nout t2 17 40 sum 30 mul t0 a c t1 c b\n";
const SUM: &str = "input t0 33 65\nout t1 33 sum 65 t0 a b\n";

fn settings(trials_per_task: u64) -> Settings {
    let budget = Budget { trials_per_task: Some(trials_per_task), ..Budget::default() };
    let (batches, first, method) = (Batches::growing(4), First::Sure, "random".to_string());
    Settings { budget, batches, first, finalists: 2, lighter: 0, hands_on: false, method, seed: 1 }
}

#[test]
fn a_run_goes_on_where_the_store_ends() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("records.db");
    let jobs = [job("product", PRODUCT), job("sum", SUM)];
    let space = Space::standard();
    let run = |trials: u64, stop_after: u64| {
        let mut proposer = Random::new(&space, 1);
        let mut measurer = Measurer::new(worker());
        let mut store = Store::open(&path).unwrap();
        let mut watch = |event: &Event<'_>| match event {
            Event::Measured { progress, .. } if progress.trials >= stop_after => Control::Stop,
            _ => Control::Continue,
        };
        tune(
            &space,
            &jobs,
            &mut proposer,
            &mut Local::new(&mut measurer),
            Some(&mut store),
            &settings(trials),
            &mut watch,
        )
        .unwrap()
    };
    let first = run(6, 5);
    assert!(first.interrupted);
    assert_eq!(first.trials, 5, "what was measured before the stop, and no more");
    let second = run(6, u64::MAX);
    assert!(!second.interrupted);
    assert_eq!(second.trials, 12 - 5, "the store's records count");
    assert_eq!((second.valid, second.failed.len()), (second.trials, 0));
    let third = run(6, u64::MAX);
    assert_eq!(third.trials, 0);
    for report in &second.jobs {
        let (_, best) = report.best.as_ref().unwrap();
        assert!(report.untuned_ns.unwrap() >= *best, "the untuned program is among the finalists");
    }
}

#[test]
fn a_run_ends_where_a_further_second_promises_too_little() {
    let jobs = [job("product", PRODUCT), job("sum", SUM)];
    let space = Space::standard();
    let run = |least_gain: f64| {
        let (mut proposer, mut measurer) = (Random::new(&space, 1), Measurer::new(worker()));
        let settings = settings(6);
        let budget = Budget { least_gain: Some(least_gain), ..settings.budget };
        let (settings, mut watch) = (Settings { budget, ..settings }, |_: &Event<'_>| Control::Continue);
        tune(&space, &jobs, &mut proposer, &mut Local::new(&mut measurer), None, &settings, &mut watch).unwrap()
    };
    let (little, much) = (run(0.0), run(1e9));
    assert_eq!((little.trials, little.enough), (12, false));
    // each task has a program all the same
    assert_eq!((much.trials, much.enough, much.interrupted), (2, true, false));
    assert!(much.jobs.iter().all(|job| job.best.is_some()));
}

#[test]
fn a_budget_of_all_tasks_goes_where_most_is_promised_and_counts_what_is_known() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("records.db");
    // a run of the network takes the product a hundred times
    let jobs = [Job { weight: 100.0, ..job("product", PRODUCT) }, job("sum", SUM)];
    let space = Space::standard();
    let run = |of_all_tasks: u64| {
        let (mut proposer, mut measurer) = (Random::new(&space, 1), Measurer::new(worker()));
        let mut store = Store::open(&path).unwrap();
        let budget = Budget { of_all_tasks: Some(of_all_tasks), ..Budget::default() };
        let (settings, mut watch) = (Settings { budget, ..settings(0) }, |_: &Event<'_>| Control::Continue);
        let mut runner = Local::new(&mut measurer);
        tune(&space, &jobs, &mut proposer, &mut runner, Some(&mut store), &settings, &mut watch).unwrap()
    };
    // less than there are tasks: each has a program all the same
    assert_eq!(run(1).trials, 2);
    let more = run(10);
    assert_eq!(more.trials, 8, "the store's records count");
    let [product, sum] = [0, 1].map(|at| more.jobs[at].trials);
    assert!(product > sum, "{product} of the product, {sum} of the sum");
    assert_eq!(run(10).trials, 0);
}

/// The layers of a quantised network: scales and zero points of their own.
fn scaled(name: &str, scale: f64, zero: i64) -> Job {
    let sum = "let t2 i32 17 40 sum 30 mul cast i32 t0 a c cast i32 t1 c b";
    let scaled = format!("mul {scale:?} cast f32 sub t2 a b cast i32 int {zero}");
    job(name, &format!("input t0 u8 17 30\nconst t1 i8 30 40\n{sum}\nout t3 17 40 {scaled}\n"))
}

#[test]
fn tasks_that_differ_in_numbers_take_over_what_is_found_for_the_first() {
    let jobs = [scaled("first", 0.25, 3), job("sum", SUM), scaled("second", 0.5, -7), scaled("third", 0.75, 11)];
    let space = Space::standard();
    let run = |budget: Budget, store: Option<&mut Store>| {
        let (mut proposer, mut measurer) = (Random::new(&space, 1), Measurer::new(worker()));
        let settings = Settings { budget, hands_on: true, ..settings(0) };
        let (mut runner, mut watch) = (Local::new(&mut measurer), |_: &Event<'_>| Control::Continue);
        tune(&space, &jobs, &mut proposer, &mut runner, store, &settings, &mut watch).unwrap()
    };
    let folder = tempfile::tempdir().unwrap();
    let mut store = Store::open(&folder.path().join("records.db")).unwrap();
    let per_task = |trials| Budget { trials_per_task: Some(trials), ..Budget::default() };
    let report = run(per_task(4), Some(&mut store));
    // three times the budget for what stands for three
    let trials: Vec<u64> = report.jobs.iter().map(|job| job.trials).collect();
    assert_eq!((trials, report.failed.len()), (vec![12, 4, 1, 1], 0));
    let best: Vec<&Trace> = report.jobs.iter().map(|job| &job.best.as_ref().unwrap().0).collect();
    assert_eq!([best[2], best[3]], [best[0]; 2]);
    assert!(store.fastest(&jobs[3].task, &space).unwrap().unwrap().trace == *best[0]);
    assert_eq!(run(per_task(4), Some(&mut store)).trials, 0, "the store's records count");
    // budgets of all tasks leave enough for each to have one
    let report = run(Budget { of_all_tasks: Some(10), ..Budget::default() }, None);
    assert_eq!(report.trials, 10);
    assert!(report.jobs.iter().all(|job| job.best.is_some() && job.trials > 0));
    let report = run(Budget { time: Some(Duration::ZERO), first_of_each: true, ..Budget::default() }, None);
    let trials: Vec<u64> = report.jobs.iter().map(|job| job.trials).collect();
    assert_eq!(trials, [1; 4]);
    // and no more is measured than a run may
    assert_eq!(run(Budget { trials: Some(3), ..Budget::default() }, None).trials, 3);
}

#[test]
fn a_first_program_of_each_task_is_measured_where_there_is_no_time() {
    let jobs = [job("product", PRODUCT), job("sum", SUM)];
    let space = Space::standard();
    let run = |first_of_each: bool| {
        let (mut proposer, mut measurer) = (Random::new(&space, 1), Measurer::new(worker()));
        let settings = settings(6);
        let budget = Budget { time: Some(Duration::ZERO), first_of_each, ..settings.budget };
        let (settings, mut watch) = (Settings { budget, ..settings }, |_: &Event<'_>| Control::Continue);
        tune(&space, &jobs, &mut proposer, &mut Local::new(&mut measurer), None, &settings, &mut watch).unwrap()
    };
    let (none, first) = (run(false), run(true));
    assert_eq!((none.trials, first.trials), (0, 2));
    assert!(none.jobs.iter().all(|job| job.best.is_none()) && first.jobs.iter().all(|job| job.best.is_some()));
}

/// Sure of a program before anything is measured, or of none; proposes nothing else.
struct Sure(Option<Trace>);

impl Proposer for Sure {
    fn propose(&mut self, _: &Task, _: &History, _: usize) -> Result<Proposal, ProposeError> {
        Ok(Proposal::default())
    }

    fn sure(&mut self, _: &Task) -> Result<Option<Candidate>, ProposeError> {
        Ok(self.0.clone().map(Candidate::new))
    }
}

#[test]
fn a_budget_of_one_program_ships_what_the_method_is_sure_of() {
    let (space, jobs) = (Space::standard(), [job("product", PRODUCT)]);
    let task = &jobs[0].task;
    let (untuned, _) = space.drive(task, &mut Untuned);
    let mut drawn = Random::new(&space, 5).propose(task, &History::default(), 2).unwrap().candidates;
    drawn.retain(|candidate| candidate.trace != untuned);
    let other = drawn.remove(0).trace;
    let run = |sure: Option<&Trace>, trials: u64, first: First, options: Options| {
        let mut measurer = Measurer::new(options);
        let mut measured = Vec::new();
        let mut watch = |event: &Event<'_>| {
            if let Event::Measured { trace, .. } = event {
                measured.push((*trace).clone());
            }
            Control::Continue
        };
        let settings = Settings { first, ..settings(trials) };
        let mut proposer = Sure(sure.cloned());
        let report =
            tune(&space, &jobs, &mut proposer, &mut Local::new(&mut measurer), None, &settings, &mut watch).unwrap();
        (measured, report.jobs[0].best.as_ref().map(|(trace, _)| trace.clone()), report.failed)
    };
    let one = |trace: &Trace| (vec![trace.clone()], Some(trace.clone()), BTreeMap::new());
    assert_eq!(
        run(Some(&other), 1, First::Sure, worker()),
        one(&other),
        "one program is measured, and it is the winner"
    );
    assert_eq!(run(None, 1, First::Sure, worker()), one(&untuned));
    // there is room for both, or nobody asked: the untuned program comes first
    assert_eq!(run(Some(&other), 2, First::Sure, worker()), one(&untuned));
    assert_eq!(run(Some(&other), 1, First::Untuned, worker()), one(&untuned));
    // the untuned program takes the place of one that cannot be shipped; here nothing has time enough
    let mut hurried = worker();
    hurried.limits.candidate = Duration::from_micros(1);
    let (measured, best, failed) = run(Some(&other), 1, First::Sure, hurried);
    assert_eq!((measured, best), (vec![other, untuned], None));
    assert_eq!(failed, BTreeMap::from([(Failure::Timeout, 2)]));
}

/// A product of a matrix and a vector, for which the rules have no good program on most machines, and a sum
/// of two matrices, for which they have one.
const VECTOR: &str = "const t0 10 448\ninput t1 448\nout t2 10 sum 448 mul t0 a b t1 b\n";
const ADDITION: &str = "input t0 64 96\ninput t1 64 96\nout t2 64 96 add t0 a b t1 a b\n";

#[test]
fn a_budget_of_one_program_ships_the_models_choice_or_the_rules_as_the_estimator_says() {
    let (space, language) = (Space::standard(), Language::standard());
    let checkpoint = Arc::new(shipped_checkpoint(&language, &space).unwrap().checkpoint);
    let searcher = Searcher::new(LM, &space, || Ok::<_, ()>(Arc::clone(&checkpoint))).unwrap();
    let jobs = [job("vector", VECTOR), job("addition", ADDITION)];
    let (mut proposer, mut measurer) = (searcher.proposer(3).unwrap(), Measurer::new(worker()));
    let settings = Settings { method: searcher.name.clone(), ..settings(1) };
    let mut watch = |_: &Event<'_>| Control::Continue;
    let report =
        tune(&space, &jobs, proposer.as_mut(), &mut Local::new(&mut measurer), None, &settings, &mut watch).unwrap();
    assert_eq!((report.trials, report.valid), (2, 2));
    for (job, found) in jobs.iter().zip(&report.jobs) {
        let (untuned, _) = space.drive(&job.task, &mut Untuned);
        let sure = searcher.proposer(3).unwrap().sure(&job.task).unwrap();
        let expected = sure.map_or(untuned, |candidate| candidate.trace);
        assert_eq!(found.best.as_ref().map(|(trace, _)| trace), Some(&expected), "{}", job.name);
    }
}

/// (hash, name) of the evaluation networks' tasks.
fn excluded() -> BTreeSet<String> {
    let text = std::fs::read_to_string(root().join("corpus/excluded.txt")).unwrap();
    text.lines().map(|line| line.split_whitespace().next().unwrap().to_string()).collect()
}

#[test]
fn no_evaluation_task_is_in_the_corpus() {
    let excluded = excluded();
    assert!(excluded.len() > 100, "the list is where this test looks for it");
    let workloads = read_workloads(&root().join("corpus/workloads")).unwrap();
    assert!(workloads.len() >= 60);
    for named in &workloads {
        assert!(!excluded.contains(&named.workload.hash().to_string()), "{}", named.name);
    }
    let mut records = 0;
    for entry in std::fs::read_dir(root().join("corpus/records")).unwrap() {
        let path = entry.unwrap().path();
        for entry in CorpusReader::new(BufReader::new(File::open(&path).unwrap()), Limits::default()).unwrap() {
            let entry = entry.unwrap();
            assert!(!excluded.contains(&entry.record.task_hash), "{} in {}", entry.record.task_hash, path.display());
            records += 1;
        }
    }
    assert!(records >= 20_000, "{records} records");
}

#[test]
fn pools_are_of_tasks_that_nothing_learned_from() {
    let excluded = excluded();
    let mut programs = 0;
    for entry in std::fs::read_dir(root().join("corpus/pools")).unwrap() {
        let path = entry.unwrap().path();
        let is_held_out = path.file_name().unwrap().to_string_lossy().starts_with("held_out");
        for pool in read_pools(BufReader::new(File::open(&path).unwrap()), Limits::default()).unwrap() {
            let hash = pool.task.workload.hash().to_string();
            assert_eq!(excluded.contains(&hash), !is_held_out, "{} in {}", pool.name, path.display());
            assert!(!is_held_out || hold_out_key(&hash) < 0.05, "{} in {}", pool.name, path.display());
            programs += pool.programs.len();
        }
    }
    assert!(programs >= 10_000, "{programs} programs");
}

#[test]
fn test_tasks_that_nothing_was_tuned_on_are_excluded() {
    let excluded = excluded();
    let workloads = read_workloads(&root().join("corpus/preregistered.txt")).unwrap();
    assert!(workloads.len() >= 100, "{} tasks", workloads.len());
    for named in &workloads {
        assert!(excluded.contains(&named.workload.hash().to_string()), "{}", named.name);
    }
}

#[test]
fn the_shipped_model_writes_legal_programs_for_workloads_it_has_never_seen() {
    let (space, language) = (Space::standard(), Language::standard());
    let checkpoint = shipped_checkpoint(&language, &space).unwrap().checkpoint;
    let target = codegen::host().unwrap();
    let (mut drawn, mut dead_ends) = (0, 0);
    for seed in 0..24 {
        let task = Task { workload: generate(seed, Sizes::LARGE), target: target.clone().into() };
        let mut lm = LanguageModel::new(&space, language.clone(), &checkpoint.model, seed);
        let proposal = lm.propose(&task, &History::default(), 8).unwrap();
        (drawn, dead_ends) = (drawn + proposal.drawn, dead_ends + proposal.dead_ends);
        for candidate in &proposal.candidates {
            assert!(matches!(space.next(&task, &candidate.trace), Ok(Next::Done(_))), "{}", candidate.trace);
        }
    }
    assert!(dead_ends * 100 <= drawn, "{dead_ends} dead ends in {drawn} traces");
}
