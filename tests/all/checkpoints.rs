//! Checkpoints that anyone may have written: thousands of damaged ones load as they are, or are refused with
//! a reason.

use std::fs;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tilescribe::language::Language;
use tilescribe::model::{CheckpointError, Source, SourceError};
use tilescribe::propose::{LanguageModel, Loaded, load_checkpoint};
use tilescribe::space::Space;
use tilescribe::target::Task;

use crate::command::refusals::untrained;

const MUTATIONS: u64 = 2_000;

/// Numbers that sizes, offsets and shapes had better not be.
const NUMBERS: [&str; 8] = ["0", "-1", "1", "702", "65536", "4294967296", "18446744073709551615", "1e999"];

/// Damages a file in one of many ways.
fn damage(bytes: &mut Vec<u8>, random: &mut ChaCha8Rng) {
    let at = random.random_range(0..bytes.len());
    // headers and JSON stand at the beginning
    let early = random.random_range(0..bytes.len().min(600));
    match random.random_range(0..9) {
        0 => bytes[at] ^= 1 << random.random_range(0..8),
        1 => bytes[early] = random.random(),
        2 => bytes.truncate(at),
        3 => bytes[..8.min(at)].fill(random.random()),
        4 => {
            let copy = bytes[early..(early + 40).min(bytes.len())].to_vec();
            bytes.splice(at..at, copy);
        }
        5 => drop(bytes.drain(early..(early + random.random_range(1..9)).min(bytes.len()))),
        6 => {
            // all bits of a weight: infinite, not a number, or very large
            let start = at.min(bytes.len().saturating_sub(4)) & !3;
            let value = [f32::INFINITY, f32::NAN, f32::MAX, 1e30, -1e30][random.random_range(0..5)];
            bytes.splice(start..(start + 4).min(bytes.len()), value.to_le_bytes());
        }
        _ => {
            // a number of the text becomes another
            let Some(start) = (early..bytes.len()).find(|at| bytes[*at].is_ascii_digit()) else { return };
            let length = bytes[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
            bytes.splice(start..start + length, NUMBERS[random.random_range(0..NUMBERS.len())].bytes());
        }
    }
}

#[test]
fn damaged_checkpoints_are_refused_or_load() {
    let (language, space) = (Language::standard(), Space::standard());
    let folder = tempfile::tempdir().unwrap();
    let source = Source::Folder(folder.path().to_path_buf());
    let good = untrained();
    good.save(folder.path()).unwrap();
    let files = good.files().unwrap();
    let workload = "input t0 9 8\nconst t1 8 64\nout t2 9 64 sum 8 mul t0 a c t1 c b\n".parse().unwrap();
    let task = Task { workload, target: tilescribe::codegen::host().unwrap().into() };
    let (mut refused, mut loaded) = (0, 0);
    for seed in 0..MUTATIONS {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let (name, bytes) = &files[[0, 1, 3, 4][seed as usize % 4]];
        let mut changed = bytes.clone();
        for _ in 0..random.random_range(1..3) {
            damage(&mut changed, &mut random);
            if changed.is_empty() {
                break;
            }
        }
        fs::write(folder.path().join(name), &changed).unwrap();
        match load_checkpoint(&source, &language, &space) {
            Ok(Loaded { checkpoint, .. }) => {
                loaded += 1;
                // what loads can be used, whatever its weights are
                let lm = LanguageModel::new(&space, language.clone(), &checkpoint.model, seed);
                let _ = lm.trained_on(&checkpoint.versions).sample(&task, 1);
                let _ = checkpoint.estimators.cpu.score(&vec![1.0; checkpoint.estimators.cpu.inputs()]);
            }
            Err(SourceError::Checkpoint(error)) => {
                refused += 1;
                assert!(!matches!(error, CheckpointError::Io { .. }), "{error}");
                assert!(error.to_string().len() < 2_000, "{error}");
            }
            Err(other) => panic!("{other}"),
        }
        fs::write(folder.path().join(name), bytes).unwrap();
    }
    assert!(refused > 1_000 && loaded > 100, "{refused} refused, {loaded} loaded");
}
