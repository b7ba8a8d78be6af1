//! A training run of a world model on disk, to go on later exactly where it stopped.

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::{Device, Tensor};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{World, WorldConfig, WorldGroup, WorldOptions, WorldSpaces, WorldTrainer};
use crate::files;
use crate::model::tensors::{Stored, Tensors, decode, encode, with_shapes, write_whole};
use crate::model::{ModelError, Position};

/// No training state is larger.
const MAX_BYTES: u64 = 1 << 30;

/// What stands beside the tensors.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    config: WorldConfig,
    spaces: WorldSpaces,
    options: WorldOptions,
    /// SHA-256 of all groups: a run goes on with what it began with.
    groups: String,
    step: usize,
    best: Option<f64>,
}

/// Sets of tensors in the file: weights, first and second moments, and the best weights if there are some.
const SETS: [&str; 4] = ["weights", "first", "second", "best"];

impl<'a> WorldTrainer<'a> {
    /// Writes everything that [`WorldTrainer::resume`] needs to `path`, whole or not at all.
    ///
    /// # Errors
    /// The disk's, and weights that are no longer finite.
    pub fn save(&self, path: &Path) -> Result<(), ModelError> {
        let world = self.graph.world()?;
        let mut tensors = Tensors::new();
        let mut add = |set: &str, values: &BTreeMap<String, Vec<f32>>| {
            for (name, shape) in world.config.shapes() {
                let Some(values) = values.get(&name).cloned() else { continue };
                tensors.insert(format!("{set}.{name}"), Stored { shape, values });
            }
        };
        add(SETS[0], world.tensors());
        add(SETS[1], &on_host(&self.optimizer.first)?);
        add(SETS[2], &on_host(&self.optimizer.second)?);
        if let Some((_, best)) = &self.best {
            add(SETS[3], best.tensors());
        }
        let state = State {
            config: world.config.clone(),
            spaces: world.spaces.clone(),
            options: self.options.clone(),
            groups: fingerprint(self.groups),
            step: self.optimizer.step,
            best: self.best.as_ref().map(|(pairs, _)| *pairs),
        };
        let note = serde_json::to_string(&state).map_err(|error| ModelError::State(error.to_string()))?;
        let bytes = encode(tensors, Some(note)).map_err(ModelError::State)?;
        write_whole(path, &bytes).map_err(|source| ModelError::Io { path: path.to_path_buf(), source })
    }

    /// Goes on with the run that was saved at `path`.
    ///
    /// # Errors
    /// A file that is not a training state, or one of other groups; the disk's.
    pub fn resume(path: &Path, groups: &'a [WorldGroup]) -> Result<WorldTrainer<'a>, ModelError> {
        let bytes =
            files::read(path, MAX_BYTES).map_err(|source| ModelError::Io { path: path.to_path_buf(), source })?;
        let (tensors, note) = decode(&bytes).map_err(ModelError::State)?;
        let note = note.ok_or_else(|| ModelError::State("it holds no training state".into()))?;
        let state: State = serde_json::from_str(&note).map_err(|error| ModelError::State(error.to_string()))?;
        state.config.validate()?;
        if state.groups != fingerprint(groups) {
            return Err(ModelError::State("it was saved by a run over other programs".into()));
        }
        let mut sets: BTreeMap<&str, Tensors> = SETS.iter().map(|set| (*set, Tensors::new())).collect();
        for (name, stored) in tensors {
            let (set, name) = name.split_once('.').unwrap_or_default();
            let unknown = || ModelError::State(format!("tensor `{set}.{name}` does not belong to it"));
            sets.get_mut(set).ok_or_else(unknown)?.insert(name.to_string(), stored);
        }
        let shapes = state.config.shapes();
        let mut taken = |set: &str| {
            let tensors = sets.remove(set).unwrap_or_default();
            with_shapes(&shapes, tensors).map_err(ModelError::State)
        };
        let world_of = |tensors| {
            World::from_tensors(state.config.clone(), state.spaces.clone(), tensors).map_err(ModelError::State)
        };
        let (weights, first, second, best) = (taken(SETS[0])?, taken(SETS[1])?, taken(SETS[2])?, taken(SETS[3])?);
        let mut trainer = WorldTrainer::new(&world_of(weights)?, groups, state.options)?;
        for (moments, saved) in [(&mut trainer.optimizer.first, first), (&mut trainer.optimizer.second, second)] {
            for (name, moment) in moments {
                let missing = || ModelError::State(format!("the moments of `{name}` are missing"));
                let values =
                    saved.get(name).filter(|values| values.iter().all(|v| v.is_finite())).ok_or_else(missing)?;
                if values.len() != moment.elem_count() {
                    return Err(missing());
                }
                *moment = Tensor::from_slice(values, moment.shape(), &Device::Cpu)?;
            }
        }
        if let Some(pairs) = state.best {
            trainer.best = Some((pairs, world_of(best)?));
        }
        trainer.continue_from(state.step);
        Ok(trainer)
    }
}

fn on_host(tensors: &BTreeMap<String, Tensor>) -> Result<BTreeMap<String, Vec<f32>>, ModelError> {
    let copy = |(name, tensor): (&String, &Tensor)| Ok((name.clone(), tensor.flatten_all()?.to_vec1()?));
    tensors.iter().map(copy).collect()
}

fn fingerprint(groups: &[WorldGroup]) -> String {
    let mut hash = Sha256::new();
    let mut add = |tokens: &[u32]| {
        hash.update((tokens.len() as u64).to_le_bytes());
        tokens.iter().for_each(|token| hash.update(token.to_le_bytes()));
    };
    for WorldGroup { place, prompt, actions, programs } in groups {
        add(&[place.to_bits(), prompt.len() as u32, actions.len() as u32, programs.len() as u32]);
        for Position { answer, question } in prompt.iter().chain(actions) {
            add(answer);
            add(question);
        }
        for program in programs {
            add(&program.decisions);
            add(&program.features.iter().map(|value| value.to_bits()).collect::<Vec<u32>>());
            add(&[program.speed.to_bits()]);
        }
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
