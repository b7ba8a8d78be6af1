//! Checkpoints that write this program's language: the one that is built in, and others.

use super::versions;
use crate::language::{Language, tokenizer_json};
use crate::model::{Checkpoint, CheckpointError, Estimator, Source, SourceError};
use crate::rank::{estimator_of, features_of};
use crate::space::Space;
use crate::target::Kind;

/// The checkpoint under `checkpoints/default`, as it was when the program was built.
///
/// # Errors
/// [`CheckpointError::Version`] where the space or the language has changed since it was trained.
pub fn shipped_checkpoint(language: &Language, space: &Space) -> Result<Checkpoint, CheckpointError> {
    let files: [&[u8]; 5] = [
        include_bytes!("../../checkpoints/default/config.json"),
        include_bytes!("../../checkpoints/default/tokenizer.json"),
        include_bytes!("../../checkpoints/default/README.md"),
        include_bytes!("../../checkpoints/default/estimator.safetensors"),
        include_bytes!("../../checkpoints/default/model.safetensors"),
    ];
    let checkpoint = Checkpoint::from_bytes(files, &versions(language, space))?;
    fitting(language, checkpoint)
}

/// Gets a checkpoint from a folder or a hub, and checks that it is for this language and space.
///
/// # Errors
/// [`SourceError`]: where it cannot be had, is damaged, or belongs to another version.
pub fn load_checkpoint(source: &Source, language: &Language, space: &Space) -> Result<Checkpoint, SourceError> {
    Ok(fitting(language, source.load(&versions(language, space))?)?)
}

/// The model's ids mean the language's tokens, whatever `tokenizer.json` says; but a folder whose files
/// contradict each other is not to be trusted.
fn fitting(language: &Language, checkpoint: Checkpoint) -> Result<Checkpoint, CheckpointError> {
    let json = |text: &str| serde_json::from_str::<serde_json::Value>(text).ok();
    if json(&checkpoint.tokenizer) != json(&tokenizer_json(language)) {
        let problem = format!("it is not the tokenizer of version {} of the tensor language", language.version());
        return Err(CheckpointError::Broken { file: "tokenizer.json", problem });
    }
    for kind in [Kind::Cpu, Kind::Gpu] {
        let (inputs, features) = (estimator_of(&checkpoint.estimators, kind).map(Estimator::inputs), features_of(kind));
        if let Some(inputs) = inputs.filter(|inputs| *inputs != features) {
            let problem = format!("it reads {inputs} features where programs have {features}");
            return Err(CheckpointError::Broken { file: "estimator.safetensors", problem });
        }
    }
    Ok(checkpoint)
}
