//! A checkpoint folder, as Hugging Face lays it out: `model.safetensors`, `config.json`, `tokenizer.json`,
//! `README.md`; and `estimator.safetensors` beside them, and `world.safetensors` where there are world
//! models.
//!
//! Nothing of a checkpoint is used before all of it was checked: sizes, header, shapes, finite values, and
//! the versions of the language and of the search space that its tokens belong to, and of the features that
//! the estimator reads.

use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use thiserror::Error;

use super::estimator::SCORE_RANGE;
use super::tensors::{Stored, Tensors, decode, encode, with_shapes, write_whole};
use super::world::{decode_worlds, encode_worlds};
use super::{Config, Estimator, Estimators, Model, Worlds};
use crate::files;

/// Names of the files of a checkpoint, and the most bytes that each may have.
pub(super) const FILES: [(&str, u64); 5] = [
    ("config.json", 64 << 10),
    ("tokenizer.json", 4 << 20),
    ("README.md", 1 << 20),
    ("estimator.safetensors", 8 << 20),
    // 100 million weights of 4 bytes, and a header
    ("model.safetensors", 401 << 20),
];

/// The file of world models, which `config.json` names where it is there, and the most bytes that it may
/// have.
pub(super) const WORLD_FILE: (&str, u64) = ("world.safetensors", 32 << 20);

/// What a model's tokens mean: the versions of what it was trained on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Versions {
    /// Of the program that trained it; told, not checked.
    pub tilescribe: String,
    pub language: String,
    pub space: String,
    /// Of what the estimator reads.
    pub features: String,
    /// Whether it has learned behind prompts that show what was measured.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub measured: bool,
    /// Where it has learned from GPUs, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuVersions>,
}

/// What belongs to programs for GPUs alone.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuVersions {
    pub space: String,
    pub features: String,
}

/// A model and what belongs to it.
#[derive(Clone, PartialEq, Debug)]
pub struct Checkpoint {
    pub model: Model,
    pub estimators: Estimators,
    pub worlds: Worlds,
    pub versions: Versions,
    /// The text of `tokenizer.json`.
    pub tokenizer: String,
    /// The text of the model card.
    pub card: String,
}

/// A checkpoint that cannot be used. Never our fault, but that of the file, or of the disk.
#[derive(Debug, Error)]
pub enum CheckpointError {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    #[error("checkpoint file `{file}` is larger than {limit} bytes")]
    TooLarge { file: &'static str, limit: u64 },
    #[error("checkpoint file `{file}` is broken: {problem}")]
    Broken { file: &'static str, problem: String },
    #[error(
        "the checkpoint was made for version {found} of the {of}, this program has {expected}; retrain or choose another checkpoint: {reason}"
    )]
    Version { of: &'static str, found: String, expected: String, reason: String },
    #[error("checkpoint file `tokenizer.json` does not fit this program's vocabulary: {problem}")]
    Vocabulary { problem: String },
}

/// Judges the versions of a checkpoint: whether what it writes means something to this program.
pub type Accepts<'a> = &'a dyn Fn(&Versions) -> Result<(), CheckpointError>;

/// The form of `config.json`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigFile {
    model_type: String,
    architecture: Config,
    versions: Versions,
    /// Whether there are world models.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    world: bool,
}

const MODEL_TYPE: &str = "tilescribe";

impl Checkpoint {
    /// Writes the folder; each file appears whole or not at all, the weights last.
    ///
    /// # Errors
    /// [`CheckpointError::Io`] where the folder cannot be written.
    pub fn save(&self, folder: &Path) -> Result<(), CheckpointError> {
        let io = |path: &Path| {
            let path = path.to_path_buf();
            move |source| CheckpointError::Io { path, source }
        };
        std::fs::create_dir_all(folder).map_err(io(folder))?;
        for (name, bytes) in self.files()? {
            let path = folder.join(name);
            write_whole(&path, &bytes).map_err(io(&path))?;
        }
        // one of a checkpoint that was there before would contradict this one
        let world = folder.join(WORLD_FILE.0);
        if self.worlds.is_empty() && world.exists() {
            std::fs::remove_file(&world).map_err(io(&world))?;
        }
        Ok(())
    }

    /// The names of a checkpoint's files.
    pub fn file_names() -> impl Iterator<Item = &'static str> {
        FILES.into_iter().chain([WORLD_FILE]).map(|(file, _)| file)
    }

    /// Whether a folder holds a checkpoint of this or any other version of Tilescribe.
    pub fn is_there(folder: &Path) -> bool {
        #[derive(Deserialize)]
        struct Kind {
            model_type: String,
        }
        let bytes = files::read(&folder.join("config.json"), FILES[0].1).unwrap_or_default();
        serde_json::from_slice::<Kind>(&bytes).is_ok_and(|kind| kind.model_type == MODEL_TYPE)
    }

    /// Reads a folder and checks it; `accepts` judges its versions.
    ///
    /// # Errors
    /// Whatever [`CheckpointError`] names; nothing is guessed or repaired.
    pub fn load(folder: &Path, accepts: Accepts<'_>) -> Result<Checkpoint, CheckpointError> {
        let read = |(file, limit): (&str, u64)| -> Result<Vec<u8>, CheckpointError> {
            let path = folder.join(file);
            let mut bytes = Vec::new();
            let read = files::open(&path).and_then(|f| f.take(limit + 1).read_to_end(&mut bytes));
            read.map(|_| bytes).map_err(|source| CheckpointError::Io { path, source })
        };
        let contents = FILES.into_iter().map(read).collect::<Result<Vec<_>, _>>()?;
        let [config, tokenizer, card, estimator, weights] = &contents[..] else {
            unreachable!("one content for each file")
        };
        let world = if names_world(config) { Some(read(WORLD_FILE)?) } else { None };
        Checkpoint::from_bytes([config, tokenizer, card, estimator, weights], world.as_deref(), accepts)
    }

    /// The same from memory, for the checkpoint that is built into the program: `config.json`,
    /// `tokenizer.json`, `README.md`, `estimator.safetensors` and `model.safetensors`; and
    /// `world.safetensors`, where there is one.
    ///
    /// # Errors
    /// As [`Checkpoint::load`], except for the disk's.
    pub fn from_bytes(
        files: [&[u8]; 5],
        world: Option<&[u8]>,
        accepts: Accepts<'_>,
    ) -> Result<Checkpoint, CheckpointError> {
        let [config, tokenizer, card, estimator, weights] = files;
        let all = FILES.into_iter().chain([WORLD_FILE]);
        for ((file, limit), bytes) in all.zip(files.into_iter().chain(world)) {
            if bytes.len() as u64 > limit {
                return Err(CheckpointError::TooLarge { file, limit });
            }
        }
        let broken = |file| move |problem: String| CheckpointError::Broken { file, problem };
        let file: ConfigFile = serde_json::from_slice(config).map_err(|e| broken("config.json")(e.to_string()))?;
        if file.model_type != MODEL_TYPE {
            return Err(broken("config.json")(format!("model_type is `{}`, not `{MODEL_TYPE}`", file.model_type)));
        }
        // versions first: what differs there may well be laid out differently, and should be told so
        accepts(&file.versions)?;
        file.architecture.validate().map_err(|e| broken("config.json")(e.to_string()))?;
        let text = |file, bytes: &[u8]| String::from_utf8(bytes.to_vec()).map_err(|e| broken(file)(e.to_string()));
        let tokenizer = text("tokenizer.json", tokenizer)?;
        if let Err(error) = serde_json::from_str::<serde::de::IgnoredAny>(&tokenizer) {
            return Err(broken("tokenizer.json")(error.to_string()));
        }
        let card = text("README.md", card)?;
        let (tensors, _) = decode(weights).map_err(broken("model.safetensors"))?;
        let tensors = with_shapes(&file.architecture.shapes(), tensors).map_err(broken("model.safetensors"))?;
        let model = Model::from_tensors(file.architecture, tensors).map_err(broken("model.safetensors"))?;
        let (tensors, _) = decode(estimator).map_err(broken("estimator.safetensors"))?;
        let knows_gpus = file.versions.gpu.is_some();
        let estimators = estimators(tensors, knows_gpus).map_err(broken("estimator.safetensors"))?;
        let worlds = match (world, file.world) {
            (Some(bytes), true) => decode_worlds(bytes).map_err(broken(WORLD_FILE.0))?,
            (None, false) => Worlds::default(),
            (Some(_), false) => return Err(broken(WORLD_FILE.0)("config.json does not name it".into())),
            (None, true) => return Err(broken(WORLD_FILE.0)("config.json names it, and it is not there".into())),
        };
        Ok(Checkpoint { model, estimators, worlds, versions: file.versions, tokenizer, card })
    }

    /// The first 16 hexadecimal digits of the SHA-256 of its weights: what it writes depends on nothing else.
    ///
    /// # Errors
    /// As [`Checkpoint::files`].
    pub fn fingerprint(&self) -> Result<String, CheckpointError> {
        let mut digest = Sha256::new();
        for (_, bytes) in self.files()?.iter().filter(|(name, _)| name.ends_with(".safetensors")) {
            digest.update(bytes);
        }
        Ok(digest.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect())
    }

    /// The files of the folder and their bytes, in the order in which they are written.
    ///
    /// # Errors
    /// [`CheckpointError::Broken`] where a file cannot be written as its format wants.
    pub fn files(&self) -> Result<Vec<(&'static str, Vec<u8>)>, CheckpointError> {
        let broken = |file| move |problem: String| CheckpointError::Broken { file, problem };
        let config = ConfigFile {
            model_type: MODEL_TYPE.into(),
            architecture: self.model.config().clone(),
            versions: self.versions.clone(),
            world: !self.worlds.is_empty(),
        };
        let mut config = serde_json::to_vec_pretty(&config).map_err(|e| broken("config.json")(e.to_string()))?;
        config.push(b'\n');
        let shapes = self.model.config().shapes();
        let tensors = shapes.into_iter().map(|(name, shape)| {
            let values = self.model.tensor(&name).to_vec();
            (name, Stored { shape, values })
        });
        let weights = encode(tensors.collect(), None).map_err(broken("model.safetensors"))?;
        let Estimators { cpu, gpu } = &self.estimators;
        let stored = |prefix: &'static str, estimator: &Estimator| -> Vec<(String, Stored)> {
            let named = |(name, shape, values)| (format!("{prefix}{name}"), Stored { shape, values });
            estimator.tensors().map(named).collect()
        };
        let of_gpus = gpu.iter().flat_map(|gpu| stored(OF_GPUS, gpu));
        let tensors = stored("", cpu).into_iter().chain(of_gpus);
        let estimator = encode(tensors.collect(), None).map_err(broken("estimator.safetensors"))?;
        let mut files = vec![
            ("config.json", config),
            ("tokenizer.json", self.tokenizer.clone().into_bytes()),
            ("README.md", self.card.clone().into_bytes()),
            ("estimator.safetensors", estimator),
        ];
        if !self.worlds.is_empty() {
            files.push((WORLD_FILE.0, encode_worlds(&self.worlds).map_err(broken(WORLD_FILE.0))?));
        }
        files.push(("model.safetensors", weights));
        Ok(files)
    }

    /// Puts a part into the model card, in the place of the one with that heading, or behind all others.
    pub fn replace_part(&mut self, heading: &str, part: &str) {
        let card = &self.card;
        let start = card.find(heading).unwrap_or(card.len());
        let rest = &card[start..].get(1..).unwrap_or("");
        let end = rest.find("\n## ").map_or(card.len(), |at| start + 1 + at);
        let before = card[..start].trim_end();
        self.card = format!("{before}\n\n{part}{}", &card[end..]);
    }
}

/// Whether a `config.json` says that there are world models; what is wrong with it is told elsewhere.
pub(super) fn names_world(config: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Named {
        #[serde(default)]
        world: bool,
    }
    serde_json::from_slice::<Named>(config).is_ok_and(|named| named.world)
}

/// What names of the tensors of the estimator for GPUs begin with.
const OF_GPUS: &str = "gpu.";

/// The estimators of a file, for GPUs, too, if that is what the checkpoint says of itself.
fn estimators(tensors: Tensors, knows_gpus: bool) -> Result<Estimators, String> {
    let (of_gpus, of_cpus): (Tensors, Tensors) = tensors.into_iter().partition(|(name, _)| name.starts_with(OF_GPUS));
    let of_gpus: Tensors = of_gpus
        .into_iter()
        .filter_map(|(name, stored)| Some((name.strip_prefix(OF_GPUS)?.to_string(), stored)))
        .collect();
    if of_gpus.is_empty() == knows_gpus {
        return Err(match knows_gpus {
            true => "there is none for GPUs, which config.json names".into(),
            false => "there is one for GPUs, which config.json does not name".into(),
        });
    }
    let gpu = if knows_gpus { Some(estimator(of_gpus)?) } else { None };
    Ok(Estimators { cpu: estimator(of_cpus)?, gpu })
}

fn estimator(tensors: Tensors) -> Result<Estimator, String> {
    let values = |name: &str| tensors.get(name).map(|stored| stored.values.len());
    let bounded = tensors.contains_key(SCORE_RANGE);
    let shapes = Estimator::shapes(values("mean").unwrap_or(0), Estimator::trees(values("forest.leaves")), bounded);
    Estimator::from_tensors(with_shapes(&shapes, tensors)?)
}
