//! Checkpoints that write this program's language: the one that is built in, and others, those of older
//! vocabularies and spaces among them.

use std::fmt;

use super::versions;
use crate::language::{Language, VocabularyMismatch, tokenizer_json, tokenizer_words};
use crate::model::{Checkpoint, CheckpointError, Estimator, Source, SourceError, Versions};
use crate::rank::{estimator_of, features_of};
use crate::space::Space;
use crate::target::Kind;

/// A checkpoint that fits this program, and what it has not learned of it.
#[derive(Clone, PartialEq, Debug)]
pub struct Loaded {
    /// With an embedding for each token of the language; its versions are what it was trained on.
    pub checkpoint: Checkpoint,
    pub notices: Vec<Notice>,
}

/// What a checkpoint has not learned of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Notice {
    /// Words that were added since. Their embeddings are the mean of the others', and some noise.
    NewWords { count: usize, first: String },
    /// Rules that were added since, or that asked for nothing in what it learned from. The model is not asked
    /// for their decisions, which take their defaults in what it writes.
    NewRules { kind: Kind, rules: Vec<String> },
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::NewWords { count, first } => {
                write!(f, "the checkpoint is older than {count} words of the language (`{first}` is the first)")?;
                write!(f, "; it has learned nothing of them")
            }
            Notice::NewRules { kind, rules } => {
                let machines = match kind {
                    Kind::Cpu => "CPUs",
                    Kind::Gpu => "GPUs",
                };
                let rules = rules.join("`, `");
                write!(f, "the checkpoint has learned nothing of these rules for {machines}: `{rules}`")?;
                write!(f, "; their decisions take their defaults in what it writes")
            }
        }
    }
}

/// The checkpoint under `checkpoints/default`, as it was when the program was built.
///
/// # Errors
/// [`CheckpointError::Version`] where the space or the language means something else since it was trained.
pub fn shipped_checkpoint(language: &Language, space: &Space) -> Result<Loaded, CheckpointError> {
    let files: [&[u8]; 5] = [
        include_bytes!("../../checkpoints/default/config.json"),
        include_bytes!("../../checkpoints/default/tokenizer.json"),
        include_bytes!("../../checkpoints/default/README.md"),
        include_bytes!("../../checkpoints/default/estimator.safetensors"),
        include_bytes!("../../checkpoints/default/model.safetensors"),
    ];
    let world: &[u8] = include_bytes!("../../checkpoints/default/world.safetensors");
    let accepts = |found: &Versions| accept(found, language, space).map(|_| ());
    fitting(language, space, Checkpoint::from_bytes(files, Some(world), &accepts)?)
}

/// Gets a checkpoint from a folder or a hub, and checks that it is for this language and space, or for older
/// ones that these have grown out of.
///
/// # Errors
/// [`SourceError`]: where it cannot be had, is damaged, or belongs to another version.
pub fn load_checkpoint(source: &Source, language: &Language, space: &Space) -> Result<Loaded, SourceError> {
    let accepts = |found: &Versions| accept(found, language, space).map(|_| ());
    Ok(fitting(language, space, source.load(&accepts)?)?)
}

/// How much of a version an error shows, in characters.
const LONGEST_VERSION: usize = 200;

/// Judges the versions of a checkpoint, and tells which rules it has learned nothing of.
fn accept(found: &Versions, language: &Language, space: &Space) -> Result<Vec<Notice>, CheckpointError> {
    let own = versions(language, space);
    let same = |of: &'static str, found: &str, expected: &str, reason: &str| match found == expected {
        true => Ok(()),
        false => Err(CheckpointError::Version {
            of,
            found: found.chars().take(LONGEST_VERSION).collect(),
            expected: expected.to_string(),
            reason: reason.to_string(),
        }),
    };
    same("tensor language", &found.language, &own.language, "its tokens mean something else")?;
    let mut notices = Vec::new();
    let of_gpus = found.gpu.as_ref().map(|gpu| ("search space for GPUs", &gpu.space, Kind::Gpu));
    for (of, version, kind) in [("search space", &found.space, Kind::Cpu)].into_iter().chain(of_gpus) {
        match space.reader(kind, version) {
            Ok(reader) if reader.is_current() => {}
            Ok(reader) => notices.push(Notice::NewRules { kind, rules: reader.absent_rules() }),
            Err(unreadable) => same(of, version, &space.version(kind), &unreadable.to_string())?,
        }
    }
    let reason = "its estimator reads other features of programs";
    same("features", &found.features, &own.features, reason)?;
    if let (Some(found), Some(own)) = (&found.gpu, &own.gpu) {
        same("features of programs for GPUs", &found.features, &own.features, reason)?;
    }
    Ok(notices)
}

/// Lets the model grow with the vocabulary. A folder whose files contradict each other is not to be trusted.
fn fitting(language: &Language, space: &Space, mut checkpoint: Checkpoint) -> Result<Loaded, CheckpointError> {
    let mut notices = accept(&checkpoint.versions, language, space)?;
    let broken = |file, problem| CheckpointError::Broken { file, problem };
    let words = tokenizer_words(&checkpoint.tokenizer).map_err(|problem| broken("tokenizer.json", problem))?;
    let config = checkpoint.model.config();
    if config.vocabulary != words.len() {
        let problem = format!("it has {} words where config.json has {}", words.len(), config.vocabulary);
        return Err(broken("tokenizer.json", problem));
    }
    let unfitting = |mismatch: VocabularyMismatch| CheckpointError::Vocabulary { problem: mismatch.to_string() };
    let growth = language.growth_since(&words).map_err(unfitting)?;
    let vocabulary = language.vocabulary();
    if words != vocabulary {
        let grown = checkpoint.model.with_vocabulary(vocabulary.len(), &growth.new, &growth.shared);
        checkpoint.model = grown.map_err(|error| broken("config.json", error.to_string()))?;
        checkpoint.tokenizer = tokenizer_json(language);
    }
    if let Some(first) = growth.new.first().and_then(|id| vocabulary.get(*id as usize)) {
        notices.push(Notice::NewWords { count: growth.new.len(), first: first.clone() });
    }
    for kind in [Kind::Cpu, Kind::Gpu] {
        let (inputs, features) = (estimator_of(&checkpoint.estimators, kind).map(Estimator::inputs), features_of(kind));
        if let Some(inputs) = inputs.filter(|inputs| *inputs != features) {
            let problem = format!("it reads {inputs} features where programs have {features}");
            return Err(broken("estimator.safetensors", problem));
        }
    }
    Ok(Loaded { checkpoint, notices })
}
