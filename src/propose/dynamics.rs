//! Tasks and traces as the world model reads them, and records as what it learns from.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::path::Path;

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use rayon::iter::{IntoParallelIterator, IntoParallelRefIterator, ParallelIterator};

use super::sequence::prompt_positions;
use super::{ProposeError, learned};
use crate::language::{Language, Want};
use crate::model::{
    ModelError, Position, World, WorldEvaluation, WorldGroup, WorldOptions, WorldProgram, WorldProgress, WorldSpaces,
    WorldTrainer, Worlds,
};
use crate::rank::{FEATURES, features};
use crate::record::{Entry, hold_out_key};
use crate::space::{Choice, Decided, Next, Reader, Space, Trace, Unreadable};
use crate::target::{Kind, Task};

/// The versions of a space that a world model learns the decisions of; see [`learned`].
pub fn world_spaces(language: &Language, space: &Space, entries: &[Entry]) -> WorldSpaces {
    let learned = learned(language, space, entries, None);
    let gpu = learned.gpu.map_or_else(|| space.version(Kind::Gpu), |gpu| gpu.space);
    WorldSpaces { cpu: learned.space, gpu }
}

/// The world model of a checkpoint with or without dynamics.
///
/// # Errors
/// [`ProposeError::Model`] where there is none, which says how to get it.
pub fn world_of(worlds: &Worlds, dynamics: bool) -> Result<&World, ProposeError> {
    let (which, option) = if dynamics { ("world model", "") } else { ("world model of the end", " --world-end") };
    worlds.of(dynamics).ok_or_else(|| {
        ProposeError::Model(format!(
            "the checkpoint has no {which}: `tilescribe pretrain --world-only{option} --corpus ... --output FOLDER` \
             trains one into it"
        ))
    })
}

/// The decisions of a task, each with its answer, by numbers.
struct Actions<'a> {
    language: &'a Language,
    numbers: HashMap<&'a Choice, u32>,
    positions: Vec<Position>,
}

impl<'a> Actions<'a> {
    fn new(language: &'a Language) -> Actions<'a> {
        Actions { language, numbers: HashMap::new(), positions: Vec::new() }
    }

    /// The numbers of a trace's decisions.
    fn of(&mut self, trace: &'a Trace) -> Vec<u32> {
        let Actions { language, numbers, positions } = self;
        let number = |choice: &'a Choice| {
            *numbers.entry(choice).or_insert_with(|| {
                let (question, answer) = (language.encode_words(&choice.site), language.encode_words(&choice.value));
                positions.push(Position { answer, question });
                positions.len() as u32 - 1
            })
        };
        trace.0.iter().map(number).collect()
    }
}

/// What a task is begun with.
fn prompt(language: &Language, task: &Task) -> Vec<Position> {
    prompt_positions(language, task, Want::Any)
}

/// Log₂ of the speeds of programs relative to the best of their task, as a world model imagines them: no nest
/// is built. It may have learned an older version of the space, and does not read decisions of newer rules.
///
/// # Errors
/// [`ProposeError::Model`] where it has learned of another space, [`ProposeError::Space`] for traces that are
/// not of this one.
pub fn imagined(
    world: &World,
    (space, language): (&Space, &Language),
    task: &Task,
    traces: &[Trace],
) -> Result<Vec<f32>, ProposeError> {
    let reader = reader(world, space, task.target.kind())?;
    if reader.is_current() {
        return ranks(world, language, task, traces);
    }
    // who asked for what is found out once more
    let known = traces.par_iter().map(|trace| reader.known_part(task, trace)).collect::<Result<Vec<_>, _>>()?;
    ranks(world, language, task, &known)
}

/// The same where it is known which rules asked for the decisions.
///
/// # Errors
/// As [`imagined`].
pub(super) fn imagined_of(
    world: &World,
    (space, language): (&Space, &Language),
    task: &Task,
    programs: &[Decided],
) -> Result<Vec<f32>, ProposeError> {
    let reader = reader(world, space, task.target.kind())?;
    let known: Vec<Trace> = programs.iter().map(|decided| reader.known_part_of(decided)).collect();
    ranks(world, language, task, &known)
}

/// Tells which decisions a world model has learned.
fn reader<'s>(world: &World, space: &'s Space, kind: Kind) -> Result<Reader<'s>, ProposeError> {
    reader_of(world.spaces(), space, kind).map_err(|error| {
        ProposeError::Model(format!("its world model has learned of another space ({error}): train it again"))
    })
}

fn reader_of<'s>(spaces: &WorldSpaces, space: &'s Space, kind: Kind) -> Result<Reader<'s>, Unreadable> {
    let version = match kind {
        Kind::Cpu => &spaces.cpu,
        Kind::Gpu => &spaces.gpu,
    };
    space.reader(kind, version)
}

/// The same of programs of which nothing is left but decisions that the model has learned.
fn ranks(world: &World, language: &Language, task: &Task, read: &[Trace]) -> Result<Vec<f32>, ProposeError> {
    let mut actions = Actions::new(language);
    let programs: Vec<Vec<u32>> = read.iter().map(|trace| actions.of(trace)).collect();
    let programs: Vec<&[u32]> = programs.iter().map(Vec::as_slice).collect();
    let begun = world.begin(&prompt(language, task), &actions.positions);
    begun.ranks(&programs).map_err(|error| ProposeError::Model(error.to_string()))
}

/// What was measured together: a task, a target and a version of this program.
type Measured<'a> = (&'a str, &'a str, &'a str);

/// Programs that were timed, as groups for a world model to learn from: by task, target and the version of
/// this program that measured them, since versions measure in different ways. Of a group that has more than
/// `most` of them, so many are drawn. They hold the decisions of the rules that `spaces` have.
pub fn world_groups(
    entries: &[Entry],
    space: &Space,
    spaces: &WorldSpaces,
    language: &Language,
    most: Option<usize>,
    seed: u64,
) -> Vec<WorldGroup> {
    let mut members: BTreeMap<Measured<'_>, Vec<(&Entry, u64)>> = BTreeMap::new();
    for entry in entries {
        let record = &entry.record;
        if let Some(ns) = record.outcome.settled_ns() {
            let key = (record.task_hash.as_str(), record.target.as_str(), record.tilescribe.as_str());
            members.entry(key).or_default().push((entry, ns));
        }
    }
    let of_group = |((hash, ..), mut members): ((&str, _, _), Vec<(&Entry, u64)>)| {
        if let Some(most) = most.filter(|most| members.len() > *most) {
            let own = u64::from_str_radix(hash.get(..12).unwrap_or_default(), 16).unwrap_or(0);
            members.shuffle(&mut ChaCha8Rng::seed_from_u64(seed ^ own));
            members.truncate(most);
        }
        let task = &members.first()?.0.task;
        let mut looked_at = Vec::with_capacity(members.len());
        for (entry, ns) in &members {
            let Ok(record) = entry.record.read_by(&entry.task, space) else { continue };
            let Ok(Next::Done(nest)) = space.next(&entry.task, &record.trace) else { continue };
            let mut features = features(&entry.task, &nest);
            // those of GPUs have others behind them
            features.truncate(FEATURES);
            let Ok(reader) = reader_of(spaces, space, entry.task.target.kind()) else { continue };
            let Ok(known) = reader.known_part(&entry.task, &record.trace) else { continue };
            if !known.0.is_empty() {
                looked_at.push((known, features, (*ns).max(1)));
            }
        }
        let mut actions = Actions::new(language);
        let programs: Vec<_> =
            looked_at.iter().map(|(trace, features, ns)| (actions.of(trace), features.clone(), *ns)).collect();
        let best = programs.iter().map(|(_, _, ns)| *ns).min()?;
        let program = |(decisions, features, ns): (_, _, u64)| WorldProgram {
            decisions,
            features,
            speed: (best as f32 / ns as f32).log2(),
        };
        Some(WorldGroup {
            place: hold_out_key(hash),
            prompt: prompt(language, task),
            programs: programs.into_iter().map(program).collect(),
            actions: actions.positions,
        })
    };
    let members: Vec<_> = members.into_iter().collect();
    members.into_par_iter().filter_map(of_group).collect()
}

/// What training a world model came to.
#[derive(Clone, Debug)]
pub struct TrainedWorld {
    /// The best weights by the tasks held out; the latest where none are.
    pub world: World,
    /// After how many steps, and how good, on tasks held out.
    pub evaluations: Vec<(usize, WorldEvaluation)>,
    /// Of `world`.
    pub evaluation: Option<WorldEvaluation>,
    pub steps: usize,
    /// Groups and programs that it learned from, and groups held out.
    pub counts: (usize, usize, usize),
    /// `watch` said stop before the end.
    pub interrupted: bool,
}

/// Steps between two states on disk: the most that a killed run loses.
const STEPS_BETWEEN_SAVES: usize = 50;

/// Trains a world model until the steps are done, or `watch` breaks off. With a path, the state of the run is
/// kept there, and a run that is found there is gone on with.
///
/// # Errors
/// [`ModelError`]; a state of other programs is refused.
pub fn train_world(
    start: &World,
    groups: &[WorldGroup],
    options: WorldOptions,
    state: Option<&Path>,
    watch: &mut dyn FnMut(&WorldProgress) -> ControlFlow<()>,
) -> Result<TrainedWorld, ModelError> {
    let mut trainer = match state.filter(|path| path.exists()) {
        Some(path) => WorldTrainer::resume(path, groups)?,
        None => WorldTrainer::new(start, groups, options)?,
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
    let world = trainer.world()?;
    Ok(TrainedWorld {
        evaluation: trainer.evaluate(&world)?,
        evaluations,
        steps,
        counts: trainer.counts(),
        world,
        interrupted,
    })
}
