//! Growth without loss: what was written before there was a rule or a word is read by those who have it.

use rayon::iter::{IntoParallelRefIterator, ParallelIterator};
use tilescribe::codegen;
use tilescribe::language::{Language, tokenizer_json};
use tilescribe::model::{Checkpoint, CheckpointError, Model, Source, SourceError, Versions};
use tilescribe::nest::LoopKind;
use tilescribe::outcome::{Failure, Outcome};
use tilescribe::propose::train::examples;
use tilescribe::propose::{
    History, LanguageModel, Loaded, Notice, Proposer, Random, learned, load_checkpoint, shipped_checkpoint, versions,
    world_groups, world_spaces,
};
use tilescribe::rank::estimator_groups;
use tilescribe::record::{Entry, Record, Store, readable};
use tilescribe::space::{Next, Rule, Space, Step, Stop, Tape, Trace, View, Word, Words};
use tilescribe::target::{Cpu, Kind, Task};

use crate::nest::kept::{self, Kept};

/// A rule as a user adds it: what it asks for by default changes nothing.
#[derive(Clone, Copy)]
struct Prefetch {
    version: u32,
    is_additive: bool,
}

const PREFETCH: Prefetch = Prefetch { version: 1, is_additive: true };
const NO: &str = "no";

impl<M> Rule<M> for Prefetch {
    fn name(&self) -> &'static str {
        "prefetch"
    }

    fn version(&self) -> u32 {
        self.version
    }

    fn absent_is_default(&self) -> bool {
        self.is_additive
    }

    fn decide(&self, _: &View<'_, M>, tape: &mut Tape<'_>) -> Result<Vec<Step>, Stop> {
        tape.choose("prefetch".into(), vec![NO.into(), "early".into(), "late".into()], 0)?;
        Ok(Vec::new())
    }
}

/// The rule of docs/extending.md.
struct UnrollReduction;

impl Rule<Cpu> for UnrollReduction {
    fn name(&self) -> &'static str {
        "unroll-reduction"
    }

    fn version(&self) -> u32 {
        1
    }

    fn absent_is_default(&self) -> bool {
        true
    }

    fn decide(&self, view: &View<'_, Cpu>, tape: &mut Tape<'_>) -> Result<Vec<Step>, Stop> {
        let mut steps = Vec::new();
        for group in &view.groups {
            let innermost = group.positions(true).last().and_then(|at| group.loops(*at));
            let Some(loops) = innermost else { continue };
            tape.defaults_only(group.defaults_only);
            let site = Words(vec![Word::from("unroll"), Word::Name(group.name())]);
            let factor = tape.choose_number(site, &[1, 2, 4, 8], 0)?;
            if factor > 1 {
                let (split, _, inner) = Step::split(&loops.inner, factor);
                steps.push(split);
                steps.extend(Step::mark(LoopKind::Unroll, vec![inner]));
            }
        }
        Ok(steps)
    }
}

/// Spaces with an additive rule more.
fn grown_spaces() -> [Space; 2] {
    [with(PREFETCH), Space::standard().with(Box::new(UnrollReduction))]
}

fn with(rule: Prefetch) -> Space {
    Space::standard().with(Box::new(rule)).with_gpu(Box::new(rule))
}

/// A task that generated code of this machine could be measured on.
fn task() -> Task {
    let workload = "input t0 96 80\nconst t1 80 64\nout t2 96 64 sum 80 mul t0 a c t1 c b\n".parse().unwrap();
    Task { workload, target: codegen::host().unwrap().into() }
}

fn prefetches(trace: &Trace) -> Vec<String> {
    let asked = trace.0.iter().filter(|choice| choice.site == Words::from("prefetch"));
    asked.map(|choice| choice.value.to_string()).collect()
}

#[test]
fn all_kept_programs_are_read_by_a_space_with_a_new_rule() {
    let kept = kept::read();
    for grown in grown_spaces() {
        let counts: Vec<(usize, usize)> = kept.par_iter().map(|kept| check_kept(kept, &grown)).collect();
        let (programs, added) = counts.iter().fold((0, 0), |(a, b), (c, d)| (a + c, b + d));
        assert!(programs == 6_000 && added > 3_000, "{added} decisions of new rules in {programs} programs");
    }
}

/// Upgrades the programs of a task; says how many there were, and how many decisions were added to them.
fn check_kept(kept: &Kept, grown: &Space) -> (usize, usize) {
    let task = kept::task(&kept.workload, &kept.target);
    let kind = task.target.kind();
    let reader = grown.reader(kind, &kept::version(kind)).unwrap();
    let mut all_added = 0;
    for program in &kept.programs {
        let trace: Trace = program.trace.parse().unwrap();
        let upgraded = reader.upgrade(&task, &trace).unwrap();
        let added = upgraded.0.len() - trace.0.len();
        all_added += added;
        assert!(prefetches(&upgraded).iter().all(|value| value == NO) && prefetches(&upgraded).len() <= added);
        assert_eq!(reader.known_part(&task, &upgraded).as_ref(), Ok(&trace));
        let Ok(Next::Done(nest)) = grown.next(&task, &upgraded) else { panic!("{upgraded}") };
        assert_eq!(kept::hash(&nest), program.nest, "{}\n{upgraded}", kept.workload);
        // nothing is upgraded in passing
        assert_eq!(added == 0, matches!(grown.next(&task, &trace), Ok(Next::Done(_))), "{trace}");
    }
    (kept.programs.len(), all_added)
}

#[test]
fn versions_that_cannot_be_read_are_refused_by_the_name_of_the_rule() {
    let (standard, grown) = (Space::standard(), with(PREFETCH));
    let (old, new) = (standard.version(Kind::Cpu), grown.version(Kind::Cpu));
    let refused = |space: &Space, version: &str| space.reader(Kind::Cpu, version).err().map(|error| error.to_string());
    let later = with(Prefetch { version: 2, ..PREFETCH });
    let not_additive = with(Prefetch { is_additive: false, ..PREFETCH });
    let reordered = old.replace("algorithm-1+further-algorithm-1", "further-algorithm-1+algorithm-1");
    for (space, version, expected) in [
        (&later, new.as_str(), "it is of version 1 of the rule `prefetch`, which has version 2 here"),
        (&not_additive, old.as_str(), "it is older than the rule `prefetch`, which is not additive"),
        (&standard, new.as_str(), "its rule `prefetch` is unknown here"),
        (&grown, &old.replace("tile-3", "tile-2"), "it is of version 2 of the rule `tile`, which has version 3 here"),
        (&grown, &old.replace("+tile-3", ""), "it is older than the rule `tile`, which is not additive"),
        (&grown, &reordered, "its rules decide in another order"),
        (&grown, &standard.version(Kind::Gpu), "it is of programs for another kind of machine"),
        (&grown, "cpu 1", "`cpu 1` is no version of a search space"),
        (&grown, "cpu:tile-03", "is no version of a search space"),
        (&grown, "cpu:tile", "is no version of a search space"),
        (&grown, &format!("cpu:{}", "a-1+".repeat(2000)), "is no version of a search space"),
    ] {
        let found = refused(space, version).unwrap_or_else(|| panic!("{version} is read"));
        assert!(found.starts_with(expected) || found.ends_with(expected) || found.contains(expected), "{found}");
    }
    for (space, version) in [(&grown, &old), (&grown, &new), (&standard, &old), (&later, &old)] {
        assert_eq!(refused(space, version), None);
    }
    for kind in [Kind::Cpu, Kind::Gpu] {
        let version = grown.version(kind);
        assert_eq!(version.parse().as_ref(), Ok(&grown.rule_versions(kind)));
    }
}

/// Programs of the space, as if they had been measured.
fn measured(space: &Space, task: &Task, count: usize, seed: u64) -> Vec<Record> {
    let drawn = Random::new(space, seed).propose(task, &History::default(), count).unwrap().candidates;
    let version = space.version(task.target.kind());
    let record = |(number, candidate): (usize, tilescribe::propose::Candidate)| {
        let outcome = Outcome::Timed { times_ns: vec![1000 + number as u64], compile_us: 1 };
        Record::new(task, &version, candidate.trace, outcome, "random", 0)
    };
    drawn.into_iter().enumerate().map(record).collect()
}

#[test]
fn stores_and_training_read_what_was_written_before_the_rule() {
    let (standard, grown, task) = (Space::standard(), with(PREFETCH), task());
    let folder = tempfile::tempdir().unwrap();
    let mut store = Store::open(&folder.path().join("records.db")).unwrap();
    let old = measured(&standard, &task, 10, 1);
    old.iter().for_each(|record| assert!(store.insert(&task, record).is_ok()));
    // the slowest was measured again since, and what came out was wrong
    let again = store.readable(&task, &grown).unwrap().records.into_iter().max_by_key(|r| r.outcome.best_ns()).unwrap();
    let wrong = Outcome::Failed { cause: Failure::WrongResult, detail: String::new() };
    store.insert(&task, &Record { outcome: wrong.clone(), ..again.clone() }).unwrap();
    let other = Record { space: old[0].space.replace("tile-3", "tile-2"), ..old[0].clone() };
    store.insert(&task, &other).unwrap();

    let found = store.readable(&task, &grown).unwrap();
    assert_eq!((found.records.len(), found.unread.values().sum::<u64>()), (10, 1));
    assert!(found.warning().unwrap().to_string().contains("of the rule `tile`"));
    for record in &found.records {
        assert_eq!((record.space.as_str(), prefetches(&record.trace).len()), (&*grown.version(Kind::Cpu), 1));
        assert!(grown.offers(&task, &record.trace));
    }
    assert_eq!(found.records.iter().find(|record| record.trace == again.trace).unwrap().outcome, wrong);
    let fastest = store.fastest(&task, &grown).unwrap().unwrap();
    assert_eq!((fastest.outcome.best_ns(), prefetches(&fastest.trace)), (Some(1000), vec![NO.to_string()]));
    assert_eq!(store.fastest(&task, &standard).unwrap().unwrap().trace, old[0].trace);
    assert_eq!(store.readable_spaces(&grown, &[Kind::Cpu]).unwrap().len(), 2);

    let task = std::sync::Arc::new(task);
    let entry = |record: &Record| Entry { task: std::sync::Arc::clone(&task), record: record.clone() };
    let entries: Vec<Entry> = old.iter().chain([&other]).map(entry).collect();
    let read = readable(&entries, &grown);
    assert_eq!((read.records.len(), read.unread.len()), (10, 1));
    let language = Language::standard();
    let made = examples(&read.records, &language, &grown, &versions(&language, &grown), 1024);
    assert_eq!((made.examples.len(), made.skipped), (10, 0));
    // of a rule that asked none of them nothing is learned, unless a model knew of it before
    let all = versions(&language, &grown);
    let unlearned = |entries: &[Entry], before| {
        let versions = learned(&language, &grown, entries, before);
        let absent = grown.reader(Kind::Cpu, &versions.space).unwrap().absent_rules();
        (versions, absent.contains(&"prefetch".to_string()))
    };
    let (old_versions, is_absent) = unlearned(&entries, None);
    assert!(is_absent && !unlearned(&read.records, None).1);
    assert_eq!(unlearned(&entries, Some(&all)).0, all);
    let shorter = examples(&read.records, &language, &grown, &old_versions, 1024);
    assert_eq!(shorter.examples.len(), 10);
    for (short, long) in shorter.examples.iter().zip(&made.examples) {
        assert!(short.steps.len() < long.steps.len(), "{} {}", short.steps.len(), long.steps.len());
    }
    // nor does a world model read what it has not learned of
    let decisions = |entries: &[Entry]| {
        let spaces = world_spaces(&language, &grown, entries);
        let groups = world_groups(&read.records, &grown, &spaces, &language, None, 0);
        groups[0].programs.iter().map(|program| program.decisions.len()).sum::<usize>()
    };
    assert!(decisions(&entries) < decisions(&read.records));
    let speeds = |space: &Space| estimator_groups(&entries, space, Kind::Cpu).remove(0).1;
    assert_eq!(speeds(&grown), speeds(&standard));
    // a trace that does not fit its own version is not made to fit
    let mut broken = entries[0].clone();
    broken.record.trace.0[0].value = "frobnicate".into();
    assert_eq!(readable(&[broken], &grown).unread.len(), 1);
}

/// Programs of a model for the task.
fn written(lm: &mut LanguageModel<'_>, task: &Task) -> Vec<Trace> {
    let proposal = lm.propose(task, &History::default(), 8).unwrap();
    proposal.candidates.into_iter().map(|candidate| candidate.trace).collect()
}

#[test]
fn the_shipped_checkpoint_writes_in_a_space_with_a_new_rule() {
    for (grown, rule) in grown_spaces().into_iter().zip(["prefetch", "unroll-reduction"]) {
        check_shipped(&grown, rule);
    }
    let raised = shipped_checkpoint(&Language::standard(), &with(Prefetch { is_additive: false, ..PREFETCH }));
    match raised {
        Err(error @ CheckpointError::Version { .. }) => {
            assert!(error.to_string().contains("rule `prefetch`"), "{error}")
        }
        other => panic!("{other:?}"),
    }
}

/// What is said of new words.
fn new_words(notices: &[Notice]) -> Vec<Notice> {
    notices.iter().filter(|notice| matches!(notice, Notice::NewWords { .. })).cloned().collect()
}

/// The rules for CPUs that a checkpoint lacks.
fn new_rules(notices: &[Notice]) -> Vec<String> {
    let rules = notices.iter().filter_map(|notice| match notice {
        Notice::NewRules { kind: Kind::Cpu, rules } => Some(rules.clone()),
        _ => None,
    });
    rules.flatten().collect()
}

/// The shipped checkpoint in a space with this rule more.
fn check_shipped(grown: &Space, rule: &str) {
    let (standard, language, task) = (Space::standard(), Language::standard(), task());
    let Loaded { checkpoint, notices } = shipped_checkpoint(&language, grown).unwrap();
    // the words that came since it was trained are known of in either space
    let known = shipped_checkpoint(&language, &standard).unwrap();
    assert_eq!(known.checkpoint, checkpoint);
    assert_eq!(new_words(&notices), new_words(&known.notices));
    // and so are rules
    assert_eq!(new_rules(&notices), [new_rules(&known.notices), vec![rule.to_string()]].concat());
    let lm = |space, seed| LanguageModel::new(space, language.clone(), &checkpoint.model, seed);
    let mut before = lm(&standard, 5);
    let mut since = lm(grown, 5).trained_on(&checkpoint.versions);
    // what it is asked is what it was trained on, so it answers as before
    let [before, since] = [&mut before, &mut since].map(|lm| lm.sample(&task, 40).unwrap());
    let reader = grown.reader(Kind::Cpu, &checkpoint.versions.space).unwrap();
    for (before, since) in before.iter().zip(&since) {
        assert_eq!(before.log_likelihood, since.log_likelihood);
        assert_eq!(reader.upgrade(&task, &before.trace).as_ref(), Ok(&since.trace));
    }
    // the search still varies what the model does not know
    for prior in [None, Some(checkpoint.estimators.clone())] {
        let mut lm = lm(grown, 5).trained_on(&checkpoint.versions);
        if let Some(prior) = prior {
            lm = lm.ranked_by(Some(prior));
        }
        let traces = written(&mut lm, &task);
        assert_eq!(traces.len(), 8);
        assert!(traces.iter().all(|trace| matches!(grown.next(&task, trace), Ok(Next::Done(_)))));
    }
}

/// Saves a checkpoint and loads it as a user does.
fn loaded(checkpoint: &Checkpoint, language: &Language) -> Result<Loaded, SourceError> {
    let folder = tempfile::tempdir().unwrap();
    checkpoint.save(folder.path()).unwrap();
    load_checkpoint(&Source::Folder(folder.path().to_path_buf()), language, &Space::standard())
}

/// The shipped vocabulary with one spare word named, and one word behind it.
fn later_language() -> Language {
    let words = Language::standard().vocabulary().join("\n").replace("<spare7>", "cubes");
    Language::from_words(&format!("{words}\ncones\n")).unwrap()
}

#[test]
fn checkpoints_of_smaller_vocabularies_load() {
    let (language, space, task) = (Language::standard(), Space::standard(), task());
    let shipped = shipped_checkpoint(&language, &space).unwrap().checkpoint;
    let program = |checkpoint: &Checkpoint, language: &Language| {
        let lm = LanguageModel::new(&space, language.clone(), &checkpoint.model, 3);
        written(&mut lm.ranked_by(Some(checkpoint.estimators.clone())), &task)
    };
    let expected = program(&shipped, &language);

    // as if there had been 670 tokens when it was trained: only spare ones are missing
    let words = &language.vocabulary()[..670];
    let width = shipped.model.config().width;
    let mut tensors = shipped.model.tensors().clone();
    tensors.get_mut("embedding.weight").unwrap().truncate(670 * width);
    let config = tilescribe::model::Config { vocabulary: 670, ..shipped.model.config().clone() };
    let smaller = Checkpoint {
        model: Model::from_tensors(config, tensors).unwrap(),
        tokenizer: tokenizer_json(&Language::from_words(&words.join("\n")).unwrap()),
        ..shipped.clone()
    };
    let found = loaded(&smaller, &language).unwrap();
    assert_eq!(new_words(&found.notices), []);
    assert_eq!(found.checkpoint.model.config().vocabulary, 702);
    assert_eq!(program(&found.checkpoint, &language), expected);

    let later = later_language();
    for older in [&smaller, &shipped] {
        let found = loaded(older, &later).unwrap();
        assert_eq!(new_words(&found.notices), [Notice::NewWords { count: 2, first: "cubes".into() }]);
        assert_eq!(found.checkpoint.model.config().vocabulary, 703);
        assert_eq!(program(&found.checkpoint, &later), expected);
        // saved, it is one of today
        let again = loaded(&found.checkpoint, &later).unwrap();
        assert!(again.checkpoint == found.checkpoint && new_words(&again.notices).is_empty());
    }
}

#[test]
fn checkpoints_of_other_vocabularies_are_refused_with_what_to_do() {
    let (language, space, later) = (Language::standard(), Space::standard(), later_language());
    let shipped = shipped_checkpoint(&language, &space).unwrap().checkpoint;
    let refused = |checkpoint: &Checkpoint| loaded(checkpoint, &language).unwrap_err().to_string();
    let newer = loaded(&shipped, &later).unwrap().checkpoint;
    assert!(refused(&newer).contains("the first of them `cubes`") && refused(&newer).contains("update this one"));
    let swapped = |text: &str| text.replace("\"tile\":", "\"swapped\":").replace("\"block\":", "\"tile\":");
    let swapped =
        Checkpoint { tokenizer: swapped(&shipped.tokenizer).replace("\"swapped\":", "\"block\":"), ..shipped.clone() };
    assert!(refused(&swapped).contains("train a model for this one"), "{}", refused(&swapped));
    let short = Checkpoint { tokenizer: newer.tokenizer, ..shipped.clone() };
    assert!(refused(&short).contains("it has 703 words where config.json has 702"), "{}", refused(&short));
    for (of, versions) in [
        ("tensor language", Versions { language: "0123".into(), ..shipped.versions.clone() }),
        ("search space", Versions { space: "cpu:tile-0".into(), ..shipped.versions.clone() }),
        ("features", Versions { features: "0".into(), ..shipped.versions.clone() }),
    ] {
        match loaded(&Checkpoint { versions, ..shipped.clone() }, &language) {
            Err(SourceError::Checkpoint(CheckpointError::Version { of: found, .. })) => assert_eq!(found, of),
            other => panic!("{other:?}"),
        }
    }
}
