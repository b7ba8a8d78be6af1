//! Checkpoints and stores that cannot be used, and disks that are full: each with its exit code, and a
//! message that names the file.

use std::fs;
use std::process::Stdio;

use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tilescribe::language::{Language, tokenizer_json};
use tilescribe::model::{Checkpoint, Config, Estimator, Model, Versions, Worlds};
use tilescribe::propose::versions;
use tilescribe::rank::FEATURES;
use tilescribe::record::{Filter, Store};
use tilescribe::space::Space;
use tilescribe::target::Kind;

use super::{Sandbox, TASK, expect_failure, small_model};

/// An untrained model that this program takes.
pub fn untrained() -> Checkpoint {
    let (language, space) = (Language::standard(), Space::standard());
    let config = Config::standard(language.vocabulary().len());
    Checkpoint {
        model: Model::random(Config { layers: 1, width: 32, feed_forward: 32, ..config }, 1).unwrap(),
        estimators: Estimator::random(FEATURES, 1).into(),
        worlds: Worlds::default(),
        versions: Versions { gpu: None, ..versions(&language, &space) },
        tokenizer: tokenizer_json(&language),
        card: "# Untrained\n".into(),
    }
}

/// Measures one candidate that the model in the folder `checkpoint` writes.
const TUNE: [&str; 6] = ["tune", "task.txt", "--trials", "2", "--checkpoint", "checkpoint"];

/// What is wrong with a file after a change.
type Change = (&'static str, fn(Vec<u8>) -> Vec<u8>, &'static str);

/// Puts one text for another, which must be there.
fn replaced(bytes: Vec<u8>, from: &str, to: &str) -> Vec<u8> {
    let text = String::from_utf8(bytes).unwrap();
    assert!(text.contains(from), "{from}");
    text.replace(from, to).into_bytes()
}

fn flipped(mut bytes: Vec<u8>, at: usize, bits: u8) -> Vec<u8> {
    bytes[at] ^= bits;
    bytes
}

#[test]
fn checkpoints_that_are_broken_are_refused() {
    let sandbox = Sandbox::new();
    sandbox.file("task.txt", TASK);
    let folder = sandbox.path("checkpoint");
    untrained().save(&folder).unwrap();
    sandbox.succeed(&TUNE);
    let weights = "checkpoint file `model.safetensors` is broken: ";
    let changes: &[Change] = &[
        ("model.safetensors", |bytes| bytes[..bytes.len() / 2].to_vec(), weights),
        ("model.safetensors", |bytes| bytes[..bytes.len() - 1].to_vec(), weights),
        ("model.safetensors", |bytes| bytes[..20].to_vec(), weights),
        ("model.safetensors", |_| Vec::new(), weights),
        // the length of the header, its first character, one of its names
        ("model.safetensors", |bytes| flipped(bytes, 0, 0x01), weights),
        ("model.safetensors", |bytes| flipped(bytes, 7, 0x80), weights),
        ("model.safetensors", |bytes| flipped(bytes, 8, 0x01), weights),
        ("model.safetensors", |bytes| flipped(bytes, 11, 0x01), weights),
        ("model.safetensors", |bytes| [&bytes[..bytes.len() - 4], &f32::NAN.to_le_bytes()].concat(), "is not finite"),
        ("tokenizer.json", |bytes| bytes[..bytes.len() / 2].to_vec(), "checkpoint file `tokenizer.json` is broken: "),
        ("tokenizer.json", |bytes| replaced(bytes, "\"sqrt\":", "\"root\":"), "checkpoint file `tokenizer.json`"),
        ("tokenizer.json", |_| b"{\"version\": \"1.0\"}".to_vec(), "checkpoint file `tokenizer.json`"),
        ("config.json", |bytes| bytes[..bytes.len() / 2].to_vec(), "checkpoint file `config.json` is broken: "),
        ("config.json", |bytes| replaced(bytes, "\"layers\": 1", "\"layers\": 2"), "is missing"),
        ("config.json", |bytes| replaced(bytes, "\"tilescribe\",", "\"llama\","), "model_type is `llama`"),
    ];
    for (file, change, reason) in changes {
        let path = folder.join(file);
        let good = fs::read(&path).unwrap();
        fs::write(&path, change(good.clone())).unwrap();
        sandbox.fail(&TUNE, 2, reason);
        fs::write(&path, good).unwrap();
    }
    fs::remove_file(folder.join("tokenizer.json")).unwrap();
    sandbox.fail(&TUNE, 2, "checkpoint/tokenizer.json: No such file");
    fs::remove_dir_all(folder).unwrap();
    sandbox.fail(&TUNE, 2, "checkpoint/config.json: No such file");
}

#[test]
fn checkpoints_of_another_version_are_refused() {
    let sandbox = Sandbox::new();
    sandbox.file("task.txt", TASK);
    sandbox.file("small.onnx", small_model());
    let (language, space) = (Language::standard().version(), Space::standard().version(Kind::Cpu));
    for (of, found, expected) in [("search space", "cpu:tile-0", &space), ("tensor language", "0123", &language)] {
        untrained().save(&sandbox.path("checkpoint")).unwrap();
        let config = sandbox.path("checkpoint/config.json");
        fs::write(&config, replaced(fs::read(&config).unwrap(), expected, found)).unwrap();
        let reason =
            format!("the checkpoint was made for version {found} of the {of}, this program has {expected}; retrain");
        for arguments in [&TUNE[..4], &["compile", "small.onnx", "-o", "out"], &["finetune", "-o", "out"]] {
            sandbox.fail(&[arguments, &["--checkpoint", "checkpoint"]].concat(), 2, &reason);
            assert!(!sandbox.path("out").exists(), "{arguments:?}");
        }
    }
}

#[test]
fn a_store_that_is_not_ours_is_left_alone() {
    let sandbox = Sandbox::new();
    sandbox.file("task.txt", TASK);
    sandbox.file("small.onnx", small_model());
    let mut noise = vec![0; 20_000];
    ChaCha8Rng::seed_from_u64(1).fill_bytes(&mut noise);
    sandbox.file("noise", noise);
    sandbox.file("diary", "Dear diary, ".repeat(400));
    sandbox.file("empty", "");
    for (name, journal) in [("database", "DELETE"), ("logged", "WAL")] {
        let database = rusqlite::Connection::open(sandbox.path(name)).unwrap();
        database.pragma_update_and_check(None, "journal_mode", journal, |_| Ok(())).unwrap();
        database.execute_batch("CREATE TABLE records (id, x); INSERT INTO records VALUES (1, 'mine');").unwrap();
        database.close().unwrap();
    }
    drop(Store::open(&sandbox.path("newer")).unwrap());
    let newer = rusqlite::Connection::open(sandbox.path("newer")).unwrap();
    newer.pragma_update(None, "user_version", 7).unwrap();
    newer.close().unwrap();
    let commands: [&[&str]; 5] = [
        &["records", "list"],
        &["records", "import", "task.txt"],
        &["tune", "task.txt", "--method", "random"],
        &["compile", "small.onnx", "-o", "out", "--method", "random"],
        &["bench", "small.onnx"],
    ];
    for (name, reason) in [
        ("noise", "is not a Tilescribe record store: no SQLite database"),
        ("diary", "is not a Tilescribe record store: no SQLite database"),
        ("empty", "is not a Tilescribe record store: an empty file"),
        ("database", "is not a Tilescribe record store: another program's SQLite database"),
        ("logged", "is not a Tilescribe record store: another program's SQLite database"),
        ("newer", "is a record store of version 7, this Tilescribe reads version 1"),
    ] {
        let before = fs::read(sandbox.path(name)).unwrap();
        for arguments in commands {
            sandbox.fail(&[arguments, &["--store", name]].concat(), 2, &format!("{name} {reason}"));
        }
        assert_eq!(fs::read(sandbox.path(name)).unwrap(), before, "{name}");
    }
    assert!(!sandbox.path("out").exists());
}

#[test]
fn a_damaged_store_is_told_apart_from_a_foreign_one() {
    let sandbox = Sandbox::new();
    sandbox.file("task.txt", TASK);
    let tune = ["tune", "task.txt", "--method", "random", "--trials", "20", "--store", "records.db"];
    sandbox.succeed(&tune);
    let store = sandbox.path("records.db");
    let whole = fs::read(&store).unwrap();
    fs::write(&store, &whole[..whole.len() / 2]).unwrap();
    for arguments in [&tune[..], &["records", "list", "--store", "records.db"]] {
        sandbox.fail(arguments, 2, "records.db: the record store is damaged: ");
    }
}

#[test]
fn a_full_disk_is_the_environments_fault() {
    let sandbox = Sandbox::new();
    sandbox.file("small.onnx", small_model());
    let full = || fs::File::options().write(true).open("/dev/full").unwrap();
    let printing = sandbox.tilescribe(&["tasks", "small.onnx"]).stdout(full()).stderr(Stdio::piped()).spawn().unwrap();
    expect_failure(&printing.wait_with_output().unwrap(), 3, "No space left");

    let compile = ["compile", "small.onnx", "-o", "out", "--trials-per-task", "0"];
    expect_failure(&sandbox.tilescribe_with_room(1, &compile).output().unwrap(), 3, "File too large");
    assert!(!sandbox.path("out").exists());
    sandbox.succeed(&compile);
    let run = sandbox.tilescribe_with_room(0, &["run", "out", "--output-dir", "outputs"]).output().unwrap();
    expect_failure(&run, 3, "File too large");
}

#[test]
fn a_full_disk_loses_no_record() {
    let sandbox = Sandbox::new();
    sandbox.file("task.txt", TASK);
    let tune = ["tune", "task.txt", "--method", "random", "--trials-per-task", "60", "--store", "records.db"];
    let output = sandbox.tilescribe_with_room(300, &tune).output().unwrap();
    expect_failure(&output, 3, "records.db: ");
    let records =
        |sandbox: &Sandbox| Store::open(&sandbox.path("records.db")).unwrap().records(&Filter::default()).unwrap();
    let kept = records(&sandbox);
    assert!((1..60).contains(&kept.len()), "{} records", kept.len());
    // with room again it goes on
    sandbox.succeed(&tune);
    let all = records(&sandbox);
    assert_eq!(all.len(), 60);
    assert_eq!(all[..kept.len()], kept);
    expect_failure(&sandbox.run(&["records", "export", "/dev/full", "--store", "records.db"]), 3, "No space left");
}
