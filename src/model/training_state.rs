//! A training run on disk, to go on later exactly where it stopped.

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::Tensor;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::example::Example;
use super::tensors::{Stored, Tensors, decode, encode, with_shapes, write_whole};
use super::train::Best;
use super::{Compute, Config, Model, ModelError, Network, Trainer, TrainingOptions};
use crate::files;

/// No training state is larger.
const MAX_BYTES: u64 = 16 << 30;

/// What stands beside the tensors.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    config: Config,
    options: TrainingOptions,
    /// SHA-256 of all examples: a run goes on with what it began with.
    examples: String,
    step: usize,
    best_objective: Option<f32>,
    stale: usize,
}

/// Sets of tensors in the file: weights, first and second moments, the best weights and those that
/// preferences are relative to, if there are some.
const SETS: [&str; 5] = ["weights", "first", "second", "best", "reference"];

impl<'a> Trainer<'a> {
    /// Writes everything that [`Trainer::resume`] needs to `path`, whole or not at all.
    ///
    /// # Errors
    /// The disk's, and weights that are no longer finite.
    pub fn save(&self, path: &Path) -> Result<(), ModelError> {
        let config = self.network.config();
        let mut tensors = Tensors::new();
        let mut add = |set: &str, values: &BTreeMap<String, Vec<f32>>| {
            for (name, shape) in config.shapes() {
                let values = values.get(&name).cloned().unwrap_or_default();
                tensors.insert(format!("{set}.{name}"), Stored { shape, values });
            }
        };
        add(SETS[0], self.network.model()?.tensors());
        add(SETS[1], &on_host(&self.optimizer.first)?);
        add(SETS[2], &on_host(&self.optimizer.second)?);
        if let Some(best) = &self.best {
            add(SETS[3], best.model.tensors());
        }
        if let Some(reference) = &self.reference {
            add(SETS[4], reference.model()?.tensors());
        }
        let state = State {
            config: config.clone(),
            options: self.options.clone(),
            examples: fingerprint(self.examples),
            step: self.optimizer.step,
            best_objective: self.best.as_ref().map(|best| best.objective),
            stale: self.stale,
        };
        let note = serde_json::to_string(&state).map_err(|e| ModelError::State(e.to_string()))?;
        let bytes = encode(tensors, Some(note)).map_err(ModelError::State)?;
        write_whole(path, &bytes).map_err(|source| ModelError::Io { path: path.to_path_buf(), source })
    }

    /// Goes on with the run that was saved at `path`, on any device.
    ///
    /// # Errors
    /// A file that is not a training state, or one of other examples; the disk's; a device that is not there.
    pub fn resume(path: &Path, examples: &'a [Example], compute: Compute) -> Result<Trainer<'a>, ModelError> {
        let bytes =
            files::read(path, MAX_BYTES).map_err(|source| ModelError::Io { path: path.to_path_buf(), source })?;
        let (tensors, note) = decode(&bytes).map_err(ModelError::State)?;
        let note = note.ok_or_else(|| ModelError::State("it holds no training state".into()))?;
        let state: State = serde_json::from_str(&note).map_err(|e| ModelError::State(e.to_string()))?;
        state.config.validate()?;
        if state.examples != fingerprint(examples) {
            return Err(ModelError::State("it was saved by a run over other examples".into()));
        }
        let mut sets: BTreeMap<&str, Tensors> = SETS.iter().map(|set| (*set, Tensors::new())).collect();
        for (name, stored) in tensors {
            let (set, name) = name.split_once('.').unwrap_or_default();
            let unknown = || ModelError::State(format!("tensor `{set}.{name}` does not belong to it"));
            sets.get_mut(set).ok_or_else(unknown)?.insert(name.to_string(), stored);
        }
        let mut model_of = |set: &str| -> Result<Model, ModelError> {
            let tensors = with_shapes(&state.config.shapes(), sets.remove(set).unwrap_or_default());
            tensors.and_then(|t| Model::from_tensors(state.config.clone(), t)).map_err(ModelError::State)
        };
        let mut trainer = Trainer::new(&model_of(SETS[0])?, examples, state.options, compute)?;
        trainer.optimizer.first = on_device(&model_of(SETS[1])?, &trainer)?;
        trainer.optimizer.second = on_device(&model_of(SETS[2])?, &trainer)?;
        if let Some(objective) = state.best_objective {
            trainer.best = Some(Best { model: model_of(SETS[3])?, objective });
        }
        if trainer.reference.is_some() {
            trainer.reference = Some(Network::new(&model_of(SETS[4])?, compute)?);
        }
        trainer.stale = state.stale;
        trainer.continue_from(state.step);
        Ok(trainer)
    }
}

fn on_host(tensors: &BTreeMap<String, Tensor>) -> Result<BTreeMap<String, Vec<f32>>, ModelError> {
    let copy = |(name, tensor): (&String, &Tensor)| Ok((name.clone(), tensor.flatten_all()?.to_vec1()?));
    tensors.iter().map(copy).collect()
}

fn on_device(model: &Model, trainer: &Trainer<'_>) -> Result<BTreeMap<String, Tensor>, ModelError> {
    let shapes = model.config().shapes().into_iter();
    let copy = |(name, shape): (String, Vec<usize>)| {
        let tensor = Tensor::from_slice(model.tensor(&name), shape, trainer.network.device())?;
        Ok((name, tensor))
    };
    shapes.map(copy).collect()
}

fn fingerprint(examples: &[Example]) -> String {
    let mut hash = Sha256::new();
    let mut add = |tokens: &[u32]| {
        hash.update((tokens.len() as u64).to_le_bytes());
        tokens.iter().for_each(|token| hash.update(token.to_le_bytes()));
    };
    for example in examples {
        let shown = example.shown.as_deref();
        let prompts = [
            Some(example.prompt.as_ref()),
            example.blind.as_deref(),
            example.asking.as_deref(),
            shown.map(|shown| shown.prompt.as_slice()),
            shown.map(|shown| shown.deciles.as_slice()),
        ];
        for prompt in prompts {
            add(&[prompt.map_or(0, |prompt| prompt.len() as u32)]);
            for position in prompt.into_iter().flatten() {
                add(&position.answer);
                add(&position.question);
            }
        }
        for step in &example.steps {
            add(&step.position.answer);
            add(&step.position.question);
            step.answers.iter().for_each(|answer| add(answer));
            add(&[step.chosen as u32]);
        }
        add(&[example.weight.to_bits(), example.score.to_bits(), example.group as u32, (example.group >> 32) as u32]);
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
