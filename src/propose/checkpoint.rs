//! The checkpoint that is built into the program.

use super::versions;
use crate::language::Language;
use crate::model::{Checkpoint, CheckpointError};
use crate::space::Space;

/// The checkpoint under `checkpoints/default`, as it was when the program was built.
///
/// # Errors
/// [`CheckpointError::Version`] where the space or the language has changed since it was trained.
pub fn shipped_checkpoint(language: &Language, space: &Space) -> Result<Checkpoint, CheckpointError> {
    Checkpoint::from_bytes(
        include_bytes!("../../checkpoints/default/config.json"),
        include_bytes!("../../checkpoints/default/tokenizer.json"),
        include_bytes!("../../checkpoints/default/README.md"),
        include_bytes!("../../checkpoints/default/model.safetensors"),
        &versions(language, space),
    )
}
