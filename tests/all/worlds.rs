//! World models in checkpoints: files that may be there, and the card that tells of them.

use tilescribe::model::{Checkpoint, CheckpointError, World, WorldConfig, WorldSpaces, Worlds};

use crate::model::{accepts, checkpoint};

/// The test's checkpoint with a world model.
pub fn with_world() -> Checkpoint {
    let config = WorldConfig { vocabulary: 23, slots: 3, width: 8, hidden: 8, features: 5, dynamics: true };
    let world = World::random(config, WorldSpaces::default(), 1).unwrap();
    Checkpoint { worlds: Worlds { dynamic: Some(world), end: None }, ..checkpoint() }
}

#[test]
fn a_world_model_is_there_where_the_checkpoint_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let (path, file) = (folder.path().join("new"), folder.path().join("new/world.safetensors"));
    let names =
        |checkpoint: &Checkpoint| checkpoint.files().unwrap().into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    assert!(
        names(&with_world()).contains(&"world.safetensors") && !names(&checkpoint()).contains(&"world.safetensors")
    );
    assert_ne!(with_world().fingerprint().unwrap(), checkpoint().fingerprint().unwrap());
    with_world().save(&path).unwrap();
    assert_eq!(Checkpoint::load(&path, &accepts).unwrap(), with_world());
    let bytes = std::fs::read(&file).unwrap();
    let broken = |bytes: &[u8]| {
        std::fs::write(&file, bytes).unwrap();
        match Checkpoint::load(&path, &accepts) {
            Err(CheckpointError::Broken { file: "world.safetensors", problem }) => problem,
            other => panic!("{other:?}"),
        }
    };
    broken(&bytes[..bytes.len() - 4]);
    broken(b"{}");
    let not_finite = [&bytes[..bytes.len() - 4], &f32::NAN.to_le_bytes()].concat();
    assert!(broken(&not_finite).contains("not finite"));
    std::fs::remove_file(&file).unwrap();
    assert!(matches!(Checkpoint::load(&path, &accepts), Err(CheckpointError::Io { .. })));
    // another checkpoint in its place has none
    with_world().save(&path).unwrap();
    checkpoint().save(&path).unwrap();
    assert!(!file.exists());
    assert_eq!(Checkpoint::load(&path, &accepts).unwrap(), checkpoint());
}

#[test]
fn parts_of_a_card_are_replaced_or_added() {
    let mut checkpoint = checkpoint();
    checkpoint.replace_part("## One\n", "## One\n\nfirst\n");
    checkpoint.replace_part("## Two\n", "## Two\n\nsecond\n");
    assert_eq!(checkpoint.card, "# A model\n\n## One\n\nfirst\n\n## Two\n\nsecond\n");
    checkpoint.replace_part("## One\n", "## One\n\nthird\n");
    assert_eq!(checkpoint.card, "# A model\n\n## One\n\nthird\n\n## Two\n\nsecond\n");
}
