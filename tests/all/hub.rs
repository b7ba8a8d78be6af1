//! Checkpoints from a hub: a server in this process speaks the hub's file interface, well or badly.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Output;
use std::sync::{Arc, Mutex};

use sha2::{Digest, Sha256};
use tilescribe::model::{Checkpoint, CheckpointError, HubOptions, Source, SourceError, Versions};
use tilescribe::record::{Filter, Store};

use crate::command::refusals::untrained;
use crate::command::{Sandbox, TASK, expect_failure};
use crate::model::{accepts, checkpoint, same, versions};
use crate::worlds::with_world;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// One file as the server tells of it.
#[derive(Clone)]
struct Served {
    etag: String,
    commit: String,
    /// The size that the server claims.
    size: u64,
    bytes: Vec<u8>,
}

/// A hub that serves one repository, and counts the requests.
struct Hub {
    endpoint: String,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Hub {
    /// Serves `files` at every revision until the test's process ends.
    fn serve(files: BTreeMap<&'static str, Served>) -> Hub {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requests);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                answer(stream, &files, &seen);
            }
        });
        Hub { endpoint, requests }
    }

    /// The test's checkpoint, after `change`.
    fn of_checkpoint(change: impl Fn(&str, &mut Served)) -> Hub {
        Hub::of_files(checkpoint().files().unwrap(), change)
    }

    /// Files, after `change`.
    fn of_files(files: Vec<(&'static str, Vec<u8>)>, change: impl Fn(&str, &mut Served)) -> Hub {
        let files = files.into_iter().map(|(name, bytes)| {
            let etag = Sha256::digest(&bytes).iter().map(|b| format!("{b:02x}")).collect();
            let mut served = Served { etag, commit: COMMIT.into(), size: bytes.len() as u64, bytes };
            change(name, &mut served);
            (name, served)
        });
        Hub::serve(files.collect())
    }

    fn load(&self, cache: &Path, name: &str) -> Result<Checkpoint, SourceError> {
        let options = HubOptions { endpoint: self.endpoint.clone(), cache: cache.to_path_buf() };
        name.parse::<Source>()?.load_from(&accepts, &options)
    }
}

/// Answers one request for `/owner/name/resolve/REVISION/FILE`, whole or from the start of a range, and
/// closes.
fn answer(mut stream: TcpStream, files: &BTreeMap<&'static str, Served>, seen: &Mutex<Vec<String>>) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
    let request = lines.next().unwrap_or_default();
    let range = lines
        .take_while(|line| !line.is_empty())
        .find_map(|line| line.to_ascii_lowercase().strip_prefix("range: bytes=").map(str::to_string));
    let path = request.split(' ').nth(1).unwrap_or_default().to_string();
    seen.lock().unwrap().push(path.clone());
    let file = path.strip_prefix("/owner/name/resolve/").and_then(|rest| rest.split_once('/'));
    let Some(served) = file.and_then(|(_, file)| files.get(file)) else {
        let _ = stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        return;
    };
    let (start, end) = match range.as_deref().and_then(|range| range.split_once('-')) {
        Some((start, end)) => {
            (start.parse().unwrap_or(0), end.parse().map_or(served.bytes.len(), |end: usize| end + 1))
        }
        None => (0, served.bytes.len()),
    };
    let body = &served.bytes[start.min(served.bytes.len())..end.min(served.bytes.len())];
    let head = format!(
        "HTTP/1.1 206 Partial Content\r\nX-Repo-Commit: {}\r\nETag: \"{}\"\r\nAccept-Ranges: bytes\r\n\
         Content-Range: bytes {start}-{}/{}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        served.commit,
        served.etag,
        start + body.len().saturating_sub(1),
        served.size,
        body.len(),
    );
    // the client may hang up first; that is its business
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
}

#[test]
fn a_checkpoint_comes_from_the_hub_and_stays_in_the_cache() {
    let hub = Hub::of_checkpoint(|_, _| {});
    let cache = tempfile::tempdir().unwrap();
    assert_eq!(hub.load(cache.path(), "hf:owner/name@v1").unwrap(), checkpoint());
    assert!(hub.requests.lock().unwrap().iter().all(|path| path.starts_with("/owner/name/resolve/v1/")));
    // a commit never changes: the second time nobody is asked
    let pinned = format!("hf:owner/name@{COMMIT}");
    assert_eq!(hub.load(cache.path(), &pinned).unwrap(), checkpoint());
    let asked = hub.requests.lock().unwrap().len();
    assert_eq!(hub.load(cache.path(), &pinned).unwrap(), checkpoint());
    assert_eq!(hub.requests.lock().unwrap().len(), asked);
}

#[test]
fn a_world_model_comes_with_the_checkpoint_that_names_it() {
    let hub = Hub::of_files(with_world().files().unwrap(), |_, _| {});
    let cache = tempfile::tempdir().unwrap();
    assert_eq!(hub.load(cache.path(), "hf:owner/name@main").unwrap(), with_world());
    let without = with_world().files().unwrap().into_iter().filter(|(name, _)| *name != "world.safetensors").collect();
    let cache = tempfile::tempdir().unwrap();
    let error = Hub::of_files(without, |_, _| {}).load(cache.path(), "hf:owner/name@main").unwrap_err().to_string();
    assert!(error.contains("world.safetensors") && error.contains("404"), "{error}");
}

#[test]
fn a_checkpoint_of_another_version_is_refused() {
    let hub = Hub::of_checkpoint(|_, _| {});
    let cache = tempfile::tempdir().unwrap();
    let options = HubOptions { endpoint: hub.endpoint, cache: cache.path().to_path_buf() };
    let other = Versions { space: "cpu-2".into(), ..versions() };
    let refused = "hf:owner/name".parse::<Source>().unwrap().load_from(&|found| same(found, &other), &options);
    assert!(matches!(refused, Err(SourceError::Checkpoint(CheckpointError::Version { of: "search space", .. }))));
}

/// The problem that a bad hub's download ends with; then, that a good hub can still fill the same cache.
fn refused(change: impl Fn(&str, &mut Served)) -> String {
    let cache = tempfile::tempdir().unwrap();
    let error = Hub::of_checkpoint(change).load(cache.path(), "hf:owner/name@main").unwrap_err();
    assert!(matches!(error, SourceError::Download { .. }), "{error}");
    let good = Hub::of_checkpoint(|_, _| {});
    assert_eq!(good.load(cache.path(), "hf:owner/name@main").unwrap(), checkpoint());
    error.to_string()
}

#[test]
fn broken_and_wrong_downloads_are_refused() {
    let weights = |name: &str| name == "model.safetensors";
    let truncated = refused(|name, served| {
        if weights(name) {
            served.bytes.truncate(served.bytes.len() / 2);
        }
    });
    assert!(truncated.contains("bytes arrived"), "{truncated}");
    let flipped = refused(|name, served| {
        if weights(name) {
            let middle = served.bytes.len() / 2;
            served.bytes[middle] ^= 1;
        }
    });
    assert!(flipped.contains("SHA-256"), "{flipped}");
    let huge = refused(|name, served| {
        if weights(name) {
            served.size = 1 << 40;
        }
    });
    assert!(huge.contains("more than"), "{huge}");
    let climbing = refused(|_, served| served.etag = "../../../outside".into());
    assert!(climbing.contains("impossible"), "{climbing}");
    let other_commit = refused(|name, served| {
        if weights(name) {
            served.commit = COMMIT.replace('0', "f");
        }
    });
    assert!(other_commit.contains("moved"), "{other_commit}");
}

#[test]
fn what_the_hub_lacks_is_named() {
    let cache = tempfile::tempdir().unwrap();
    let error = Hub::serve(BTreeMap::new()).load(cache.path(), "hf:owner/name@main").unwrap_err();
    assert!(error.to_string().contains("config.json") && error.to_string().contains("404"), "{error}");
    let nobody = HubOptions { endpoint: "http://127.0.0.1:1".into(), cache: cache.path().to_path_buf() };
    let error = "hf:owner/name".parse::<Source>().unwrap().load_from(&accepts, &nobody).unwrap_err();
    assert!(matches!(error, SourceError::Download { .. }), "{error}");
}

#[test]
fn names_that_are_no_checkpoint_are_refused() {
    for bad in
        ["", "hf:", "hf:name", "hf:a/b/c", "hf:a/../b", "hf:../b", "hf:a/b@", "hf:a/b@../x", "hf:a/b@x y", "hf:a/b@x?y"]
    {
        assert!(matches!(bad.parse::<Source>(), Err(SourceError::Syntax(_))), "{bad}");
    }
    let hub = |revision: &str| Source::Hub { repository: "a/b".into(), revision: revision.into() };
    assert_eq!("hf:a/b".parse::<Source>().unwrap(), hub("main"));
    assert_eq!("hf:a/b@refs/pr/1".parse::<Source>().unwrap(), hub("refs/pr/1"));
    assert_eq!("some/folder".parse::<Source>().unwrap(), Source::Folder("some/folder".into()));
}

/// The program itself, with this hub: two trials, written by the checkpoint of a name.
fn tune(sandbox: &Sandbox, hub: &Hub, name: &str) -> Output {
    sandbox.file("task.txt", TASK);
    let mut command =
        sandbox.tilescribe(&["tune", "task.txt", "--trials", "2", "--store", "s.db", "--checkpoint", name]);
    command.env("HF_ENDPOINT", &hub.endpoint).env("HF_HOME", sandbox.path("hub")).output().unwrap()
}

fn measured(sandbox: &Sandbox) -> usize {
    let records = Store::open(&sandbox.path("s.db")).unwrap().records(&Filter::default()).unwrap();
    assert!(records.iter().all(|record| record.proposer == "lm"), "{records:?}");
    records.len()
}

#[test]
fn the_program_takes_a_checkpoint_from_a_hub() {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("checkpoints/default");
    let read = |name| (name, std::fs::read(shipped.join(name)).unwrap());
    let tensors = ["estimator.safetensors", "model.safetensors", "world.safetensors"].map(read);
    let shipped = [["config.json", "tokenizer.json", "README.md"].map(read), tensors].concat();
    for files in [untrained().files().unwrap(), shipped] {
        let (hub, sandbox) = (Hub::of_files(files, |_, _| {}), Sandbox::new());
        let output = tune(&sandbox, &hub, "hf:owner/name@v1");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(measured(&sandbox), 2);
        let requests = hub.requests.lock().unwrap();
        assert!(requests.iter().all(|path| path.starts_with("/owner/name/resolve/v1/")), "{requests:?}");
        assert!(requests.iter().any(|path| path.ends_with("/model.safetensors")), "{requests:?}");
    }
}

#[test]
fn the_program_refuses_what_a_bad_hub_sends() {
    let weights = |name: &str| name == "model.safetensors";
    let truncated = |name: &str, served: &mut Served| {
        if weights(name) {
            served.bytes.truncate(served.bytes.len() / 2);
        }
    };
    let flipped = |name: &str, served: &mut Served| {
        if weights(name) {
            served.bytes[100] ^= 1;
        }
    };
    let files = || untrained().files().unwrap();
    let other = || checkpoint().files().unwrap();
    let mixed = || vec![files().remove(0), other().remove(1), files().remove(2), files().remove(3), files().remove(4)];
    let cases = [
        (Hub::of_files(files(), truncated), 3, "cannot download `model.safetensors` of hf:owner/name@v1: "),
        (Hub::of_files(files(), flipped), 3, "its SHA-256 is "),
        (Hub::serve(BTreeMap::new()), 3, "cannot download `config.json` of hf:owner/name@v1: "),
        (Hub { endpoint: "http://127.0.0.1:1".into(), requests: Arc::default() }, 3, "cannot download `config.json`"),
        // whole, but of another program, or with a file of one
        (Hub::of_files(other(), |_, _| {}), 2, "the checkpoint was made for version "),
        (Hub::of_files(mixed(), |_, _| {}), 2, "checkpoint file `tokenizer.json`"),
    ];
    for (hub, code, reason) in cases {
        let sandbox = Sandbox::new();
        expect_failure(&tune(&sandbox, &hub, "hf:owner/name@v1"), code, reason);
        assert_eq!(measured(&sandbox), 0);
        if code == 3 {
            // nothing bad has stayed in the cache
            let output = tune(&sandbox, &Hub::of_files(files(), |_, _| {}), "hf:owner/name@v1");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
    }
    let nowhere = Hub::serve(BTreeMap::new());
    expect_failure(&tune(&Sandbox::new(), &nowhere, "hf:owner"), 2, "give a folder or hf:owner/name");
}
