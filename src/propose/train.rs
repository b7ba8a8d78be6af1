//! From records to training examples: what was measured, as sequences conditioned on the quality that they
//! reached.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use rayon::iter::{IntoParallelRefIterator, ParallelIterator};

use super::learned::reader_of;
use super::sequence::{prompt_positions, shown, trace_positions};
use crate::language::{Language, Want};
use crate::model::{
    Compute, Evaluation, Example, Model, ModelError, Position, Progress, Shown, Step, Trainer, TrainingOptions,
    Versions, decile,
};
use crate::outcome::{Failure, Outcome};
use crate::record::{Entry, hold_out_key};
use crate::space::{Decision, Space, Trace};
use crate::target::{Kind, Task};

/// The lowest score: of programs e⁵ ≈ 150 times slower than the best, and of those that failed.
const LOWEST_SCORE: f32 = -5.0;
/// The policy's weight of the slowest program; that of the best is 1.
const LEAST_WEIGHT: f32 = 0.1;

/// Examples, and what could not become one.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Examples {
    pub examples: Vec<Example>,
    /// Tasks that the examples are of; each is a group.
    pub tasks: usize,
    /// Sequences longer than the model's.
    pub too_long: usize,
    /// Records that teach nothing: dead ends, our own bugs, tasks where nothing was timed, and traces that
    /// are not of this space.
    pub skipped: usize,
}

/// What training came to.
#[derive(Clone, Debug)]
pub struct Trained {
    /// The best weights by the held-out groups; the latest where none are held out.
    pub model: Model,
    /// After how many steps, and how good, on groups held out.
    pub evaluations: Vec<(usize, Evaluation)>,
    pub steps: usize,
    /// `watch` said stop before the end.
    pub interrupted: bool,
}

/// Steps between two states on disk: the most that a killed run loses.
const STEPS_BETWEEN_SAVES: usize = 100;

/// Trains until the steps are done, the held-out groups no longer improve, or `watch` breaks off. With a
/// path, the state of the run is kept there, and a run that is found there is gone on with.
///
/// # Errors
/// [`ModelError`]; a state of other examples or another architecture is refused.
pub fn train(
    start: &Model,
    examples: &[Example],
    options: TrainingOptions,
    compute: Compute,
    state: Option<&Path>,
    watch: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
) -> Result<Trained, ModelError> {
    let mut trainer = match state.filter(|path| path.exists()) {
        Some(path) => Trainer::resume(path, examples, compute)?,
        None => Trainer::new(start, examples, options, compute)?,
    };
    let (mut evaluations, mut steps, mut interrupted) = (Vec::new(), 0, false);
    while let Some(progress) = trainer.step()? {
        steps = progress.step;
        evaluations.extend(progress.evaluation.map(|evaluation| (progress.step, evaluation)));
        interrupted = watch(&progress).is_break();
        if let Some(path) = state.filter(|_| interrupted || steps.is_multiple_of(STEPS_BETWEEN_SAVES)) {
            trainer.save(path)?;
        }
        if interrupted {
            break;
        }
    }
    Ok(Trained { model: trainer.model()?, evaluations, steps, interrupted })
}

/// Quality of a model on the groups that [`train`] with these options would hold out; `None` where it would
/// hold out none.
///
/// # Errors
/// As [`train`].
pub fn evaluate(
    model: &Model,
    examples: &[Example],
    options: TrainingOptions,
    compute: Compute,
) -> Result<Option<Evaluation>, ModelError> {
    Trainer::new(model, examples, options, compute)?.evaluate()
}

/// One example for each record, grouped by task and target. The quality asked for in a prompt is the decile
/// of the speed reached relative to the best of the group that the same version of this program measured:
/// versions measure in different ways. Programs that failed teach the value head only.
/// Sequences hold the decisions of the rules that these versions have.
pub fn examples(
    entries: &[Entry],
    language: &Language,
    space: &Space,
    versions: &Versions,
    max_sequence: usize,
) -> Examples {
    let [cpu, gpu] = [Kind::Cpu, Kind::Gpu].map(|kind| reader_of(space, Some(versions), kind).ok());
    let mut groups: BTreeMap<(&str, &str), Vec<&Entry>> = BTreeMap::new();
    for entry in entries {
        groups.entry((&entry.record.task_hash, &entry.record.target)).or_default().push(entry);
    }
    let mut result = Examples { tasks: groups.len(), ..Examples::default() };
    let mut shared = Shared::default();
    for (group, members) in groups.into_values().enumerate() {
        let mut best: BTreeMap<&str, u64> = BTreeMap::new();
        for entry in &members {
            if let Some(ns) = entry.record.outcome.settled_ns() {
                let ns = ns.max(1);
                best.entry(&entry.record.tilescribe).and_modify(|best| *best = ns.min(*best)).or_insert(ns);
            }
        }
        let known = |entry: &&Entry| {
            let reader = match entry.task.target.kind() {
                Kind::Cpu => &cpu,
                Kind::Gpu => &gpu,
            };
            let (trace, reader) = (&entry.record.trace, reader.as_ref()?);
            let decided = trace.0.iter().cloned().zip(space.decisions(&entry.task, trace)?);
            let (choices, decisions) = decided.filter(|(_, decision)| reader.knows(decision)).unzip();
            Some((Trace(choices), decisions))
        };
        let known: Vec<Option<(Trace, Vec<Decision>)>> = members.par_iter().map(known).collect();
        let mut prompts = Prompts { language, by_want: HashMap::new() };
        let how: Option<Arc<Shown>> = members.first().map(|entry| shown(language, &entry.task).into());
        for (entry, known) in members.into_iter().zip(known) {
            let best = best.get(entry.record.tilescribe.as_str());
            let speed = best.and_then(|best| speed(&entry.record.outcome, *best));
            let (Some(speed), Some((trace, decisions))) = (speed, known) else {
                result.skipped += 1;
                continue;
            };
            let weight = if speed > 0.0 { LEAST_WEIGHT + (1.0 - LEAST_WEIGHT) * speed * speed } else { 0.0 };
            let example = Example {
                prompt: prompts.of(&entry.task, Want::Decile(decile(speed))),
                steps: shared.steps(language, &trace, &decisions),
                weight,
                group: group as u64,
                place: hold_out_key(&entry.record.task_hash),
                score: speed.ln().max(LOWEST_SCORE),
                blind: Some(prompts.of(&entry.task, Want::Any)),
                asking: Some(prompts.of(&entry.task, Want::Decile(9))),
                shown: how.clone(),
            };
            if example.length() > max_sequence {
                result.too_long += 1;
            } else {
                result.examples.push(example);
            }
        }
    }
    result
}

/// Prompts of one task.
struct Prompts<'a> {
    language: &'a Language,
    by_want: HashMap<Want, Arc<[Position]>>,
}

impl Prompts<'_> {
    fn of(&mut self, task: &Task, want: Want) -> Arc<[Position]> {
        let prompt = self.by_want.entry(want).or_insert_with(|| prompt_positions(self.language, task, want).into());
        Arc::clone(prompt)
    }
}

/// What many examples have in common: hundreds of thousands of them fit into memory so.
#[derive(Default)]
pub(super) struct Shared {
    positions: HashMap<Position, Arc<Position>>,
    answers: HashMap<Vec<Vec<u32>>, Arc<[Vec<u32>]>>,
}

impl Shared {
    /// A finished trace as what is read and decided, from what was possible at each decision.
    pub(super) fn steps(&mut self, language: &Language, trace: &Trace, decisions: &[Decision]) -> Vec<Step> {
        let mut steps = Vec::with_capacity(decisions.len() + 1);
        for (number, position) in trace_positions(language, trace).into_iter().enumerate() {
            let candidates = decisions.get(number).map_or(&[][..], |decision| &decision.candidates);
            let value = trace.0.get(number).map(|choice| &choice.value);
            let answers: Vec<Vec<u32>> = candidates.iter().map(|value| language.encode_words(value)).collect();
            steps.push(Step {
                position: share(&mut self.positions, position),
                answers: share(&mut self.answers, answers),
                chosen: candidates.iter().position(|candidate| Some(candidate) == value).unwrap_or(0),
            });
        }
        steps
    }
}

/// The one copy of something.
fn share<T: Hash + Eq + Clone, S: ?Sized>(known: &mut HashMap<T, Arc<S>>, value: T) -> Arc<S>
where
    Arc<S>: From<T>,
{
    match known.get(&value) {
        Some(shared) => Arc::clone(shared),
        None => {
            let shared: Arc<S> = value.clone().into();
            known.insert(value, Arc::clone(&shared));
            shared
        }
    }
}

/// Speed relative to the best: 1 for the best, 0 for a failure of the program; `None` for what is not the
/// program's doing.
fn speed(outcome: &Outcome, best_ns: u64) -> Option<f32> {
    match outcome {
        Outcome::Timed { .. } => outcome.settled_ns().map(|ns| best_ns as f32 / ns.max(1) as f32),
        Outcome::Failed { cause: Failure::DeadEnd | Failure::Compile, .. } => None,
        Outcome::Failed { .. } => Some(0.0),
    }
}
