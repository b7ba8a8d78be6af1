//! The store and corpus files: what they keep, whatever happens, and what they refuse.

mod plans;

use std::io::{BufRead, BufReader, Cursor};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tilescribe::outcome::{Failure, Outcome};
use tilescribe::record::{
    CorpusError, CorpusReader, CorpusWriter, Entry, Filter, Imported, Inserted, Limits, Prune, Record, Store,
    StoreError,
};
use tilescribe::space::Trace;
use tilescribe::target::{Architecture, Cpu, Task};

/// Tells a test that runs itself again which part it plays.
const ROLE: &str = "TILESCRIBE_TEST_STORE";

fn task(rows: i64) -> Task {
    let text = format!("input t0 {rows} 8\nconst t1 8 3\nout t2 {rows} 3 sum 8 mul t0 a c t1 c b\n");
    let target = Cpu {
        architecture: Architecture::X86_64,
        cpu: "x86-64".into(),
        features: vec!["+avx".into()],
        vector_bits: 256,
        vector_registers: 16,
        cores: 2,
        l1_bytes: 32 << 10,
        l2_bytes: 1 << 20,
        l3_bytes: 0,
    };
    Task { workload: text.parse().unwrap(), target: target.into() }
}

fn record(task: &Task, number: u64, outcome: Outcome) -> Record {
    let trace: Trace = format!("tile a 0 = {number}\npack t1 = panel\n").parse().unwrap();
    Record::new(task, "cpu 1", trace, outcome, "random", u64::MAX - number)
}

fn timed(times_ns: &[u64]) -> Outcome {
    Outcome::Timed { times_ns: times_ns.to_vec(), compile_us: 1234 }
}

#[test]
fn records_come_back_as_they_went_in() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deep/er/a%20b?.db");
    let task = task(4);
    let records = [
        record(&task, 1, timed(&[30, 20, 25])),
        record(&task, 2, timed(&[10, 40])),
        record(&task, 3, Outcome::failed(Failure::Crash, "signal 11")),
    ];
    let mut store = Store::open(&path).unwrap();
    for record in &records {
        assert_eq!(store.insert(&task, record).unwrap(), Inserted::New);
    }
    drop(store);
    let store = Store::open(&path).unwrap();
    assert_eq!(store.records(&Filter::default()).unwrap(), records);
    let best = store.best(&records[0].task_hash, &task.target.fingerprint(), "cpu 1").unwrap();
    assert_eq!(best.as_ref(), Some(&records[1]));
    assert_eq!(store.best(&records[0].task_hash, &task.target.fingerprint(), "cpu 2").unwrap(), None);
    assert_eq!(store.tasks().unwrap(), [(records[0].task_hash.clone(), task.workload.clone())]);
    assert_eq!(store.targets().unwrap(), [(task.target.fingerprint(), task.target.clone())]);
    let summary = &store.list().unwrap()[0];
    assert_eq!((summary.records, summary.timed, summary.best_ns), (3, 2, Some(10)));
}

#[test]
fn one_record_for_a_trace_and_the_more_telling_stays() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = Store::open(&folder.path().join("s.db")).unwrap();
    let task = task(4);
    let steps = [
        (Outcome::failed(Failure::Timeout, "slow machine"), Inserted::New),
        (timed(&[50]), Inserted::Replaced),
        (timed(&[60, 50]), Inserted::Kept),
        (Outcome::failed(Failure::Memory, ""), Inserted::Kept),
        (timed(&[40]), Inserted::Replaced),
        (Outcome::failed(Failure::WrongResult, "a race"), Inserted::Replaced),
        (timed(&[1]), Inserted::Kept),
    ];
    for (outcome, expected) in steps {
        assert_eq!(store.insert(&task, &record(&task, 1, outcome.clone())).unwrap(), expected, "{outcome:?}");
    }
    let left = store.records(&Filter::default()).unwrap();
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].outcome.failure(), Some(Failure::WrongResult));
}

#[test]
fn prune_keeps_what_it_should() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = Store::open(&folder.path().join("s.db")).unwrap();
    let (small, large) = (task(4), task(5));
    for number in 0..5 {
        store.insert(&small, &record(&small, number, timed(&[100 + number]))).unwrap();
        let old = Record { space: "cpu 0".into(), ..record(&large, number, timed(&[10])) };
        store.insert(&large, &old).unwrap();
    }
    store.insert(&small, &record(&small, 9, Outcome::failed(Failure::Crash, ""))).unwrap();
    assert_eq!(store.prune(&Prune::OtherSpaces(vec!["cpu 1".into()])).unwrap(), 5);
    assert_eq!(store.prune(&Prune::AllBut(2)).unwrap(), 4);
    let left: Vec<_> = store.records(&Filter::default()).unwrap().iter().map(|r| r.outcome.best_ns()).collect();
    assert_eq!(left, [Some(100), Some(101)]);
    let other = Filter { task_hash: Some("none".into()), ..Filter::default() };
    assert_eq!(store.prune(&Prune::Matching(other)).unwrap(), 0);
    assert_eq!(store.prune(&Prune::Matching(Filter::default())).unwrap(), 2);
}

#[test]
fn foreign_files_are_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let check = |name: &str, bytes: &[u8], expected: fn(&StoreError) -> bool| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let error = Store::open(&path).err().unwrap_or_else(|| panic!("{name} was accepted"));
        assert!(expected(&error), "{name}: {error:?}");
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "{name} was modified");
    };
    let foreign = |e: &StoreError| matches!(e, StoreError::Foreign { .. });
    check("text", b"my precious notes, which are not a database at all", foreign);
    check("empty", b"", foreign);
    check("photo", &[0xff; 5000], foreign);

    let database = folder.path().join("database");
    let connection = rusqlite::Connection::open(&database).unwrap();
    connection
        .execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE records (x); INSERT INTO records VALUES (1);")
        .unwrap();
    connection.close().unwrap();
    check("other program", &std::fs::read(&database).unwrap(), foreign);

    let ours = folder.path().join("ours");
    drop(Store::open(&ours).unwrap());
    let connection = rusqlite::Connection::open(&ours).unwrap();
    connection.pragma_update(None, "user_version", 7).unwrap();
    connection.close().unwrap();
    check("newer", &std::fs::read(&ours).unwrap(), |e| matches!(e, StoreError::Version { found: 7, .. }));

    let error = Store::open(folder.path()).err().unwrap();
    assert!(foreign(&error), "a folder: {error:?}");
}

#[test]
fn damage_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.db");
    let task = task(4);
    let mut store = Store::open(&path).unwrap();
    for number in 0..200 {
        store.insert(&task, &record(&task, number, timed(&[number + 1]))).unwrap();
    }
    drop(store);
    let whole = std::fs::read(&path).unwrap();
    for (name, damage) in [("cut", 0..whole.len() / 2), ("overwritten", 0..whole.len())] {
        let mut bytes = whole[damage].to_vec();
        if name == "overwritten" {
            bytes[4096..].fill(0x5a);
        }
        std::fs::write(&path, &bytes).unwrap();
        let result = Store::open(&path).and_then(|store| store.records(&Filter::default()));
        assert!(matches!(result, Err(StoreError::Corrupt { .. })), "{name}: {result:?}");
    }
}

#[test]
fn a_failed_write_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.db");
    if std::env::var_os(ROLE).is_none() {
        // a limit on the size of files holds for the whole process, so it is another one that meets it
        let output = again("a_failed_write_loses_nothing", "full", &path).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        return;
    }
    let path = std::env::var_os(ROLE).unwrap();
    let path = Path::new(path.to_str().unwrap().split_once(':').unwrap().1);
    let task = task(4);
    let mut store = Store::open(path).unwrap();
    let room = libc::rlimit { rlim_cur: 256 << 10, rlim_max: 256 << 10 };
    // SAFETY: plain data, and a signal that is not wanted.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        libc::setrlimit(libc::RLIMIT_FSIZE, &room);
    }
    let mut kept = 0;
    let error = loop {
        match store.insert(&task, &record(&task, kept, timed(&[kept + 1; 50]))) {
            Ok(_) => kept += 1,
            Err(error) => break error,
        }
        assert!(kept < 100_000, "256 KiB hold no such store");
    };
    // a limit is not quite a full disk: that is StoreError::DiskFull, which the store's own tests provoke
    assert!(matches!(error, StoreError::Access { .. } | StoreError::DiskFull { .. }), "{error:?}");
    assert_eq!(store.records(&Filter::default()).unwrap().len() as u64, kept);
}

#[test]
fn killed_writers_lose_no_committed_record() {
    if let Some(role) = std::env::var_os(ROLE) {
        let role = role.into_string().unwrap();
        let (start, path) = role.split_once(':').unwrap();
        let task = task(4);
        let mut store = Store::open(Path::new(path)).unwrap();
        for number in start.parse::<u64>().unwrap().. {
            store.insert(&task, &record(&task, number, timed(&[number + 1]))).unwrap();
            println!("committed {number}");
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.db");
    let mut committed: Vec<u64> = Vec::new();
    for round in 0..8_u64 {
        // two at a time, on numbers of their own
        let mut writers = [2 * round, 2 * round + 1].map(|writer| {
            let start = (writer * 1_000_000).to_string();
            let mut command = again("killed_writers_lose_no_committed_record", &start, &path);
            command.stdout(Stdio::piped()).spawn().unwrap()
        });
        // the first rounds die while the store is being made, the others once both write to it
        std::thread::sleep(Duration::from_millis(3 + 17 * round));
        let mut lines = writers.each_mut().map(|writer| {
            let lines = BufReader::new(writer.stdout.take().unwrap()).lines().map_while(Result::ok);
            // the first line comes behind what the test harness prints
            lines.filter_map(|l| l.rsplit_once("committed ").and_then(|(_, n)| n.parse::<u64>().ok()))
        });
        if round >= 3 {
            committed.extend(lines.iter_mut().flat_map(|lines| lines.take(8)));
        }
        for writer in &mut writers {
            writer.kill().unwrap();
            writer.wait().unwrap();
        }
        committed.extend(lines.into_iter().flatten());
    }
    assert!(committed.len() >= 80, "only {} were committed", committed.len());
    let store = Store::open(&path).unwrap();
    let mut kept: Vec<Record> = store.records(&Filter::default()).unwrap();
    kept.sort_by_key(|record| std::cmp::Reverse(record.seed));
    committed.sort_unstable();
    let numbers: Vec<u64> = kept.iter().map(|record| u64::MAX - record.seed).collect();
    let lost: Vec<_> = committed.iter().filter(|number| numbers.binary_search(number).is_err()).collect();
    assert!(lost.is_empty(), "lost {lost:?}");
    // at most the one that each was about to report
    assert!(kept.len() <= committed.len() + 16, "{} kept, {} committed", kept.len(), committed.len());
}

/// This test binary, which plays a part in one of its tests.
fn again(test: &str, role: &str, path: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("record::{test}"), "--nocapture"]);
    command.env(ROLE, format!("{role}:{}", path.display()));
    command
}

#[test]
fn export_and_import_are_inverse() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = Store::open(&folder.path().join("a.db")).unwrap();
    for rows in [4, 5] {
        let task = task(rows);
        for number in 0..1500 {
            let outcome = if number % 7 == 0 {
                Outcome::failed(Failure::WrongResult, "t2: \"1\"\n")
            } else {
                timed(&[number; 3])
            };
            store.insert(&task, &record(&task, number * 3 % 1501, outcome)).unwrap();
        }
    }
    let export = |store: &Store| {
        let mut writer = CorpusWriter::new(Vec::new()).unwrap();
        assert_eq!(store.export(&Filter::default(), &mut writer).unwrap(), 3000);
        writer.finish().unwrap()
    };
    let bytes = export(&store);
    let mut other = Store::open(&folder.path().join("b.db")).unwrap();
    let imported = other.import(CorpusReader::new(Cursor::new(&bytes), Limits::default()).unwrap()).unwrap();
    assert_eq!(imported, Imported { new: 3000, replaced: 0, kept: 0 });
    assert_eq!(export(&other), bytes, "equal stores give equal files");
    let again = other.import(CorpusReader::new(Cursor::new(&bytes), Limits::default()).unwrap()).unwrap();
    assert_eq!(again, Imported { new: 0, replaced: 0, kept: 3000 });
}

/// A corpus file of one good line, changed by `edit`.
fn corpus(edit: impl Fn(&str) -> String) -> Vec<u8> {
    let task = Arc::new(task(4));
    let record = record(&task, 1, timed(&[7]));
    let mut writer = CorpusWriter::new(Vec::new()).unwrap();
    writer.write(&Entry { task, record }).unwrap();
    let line = String::from_utf8(zstd::decode_all(Cursor::new(writer.finish().unwrap())).unwrap()).unwrap();
    zstd::encode_all(Cursor::new(edit(&line)), 1).unwrap()
}

#[test]
fn corpus_lines_are_uniform_json() {
    let line = zstd::decode_all(Cursor::new(corpus(str::to_string))).unwrap();
    let value: serde_json::Value = serde_json::from_slice(&line).unwrap();
    let fields: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    let mut expected = include_str!("../files/record/fields.txt").lines().collect::<Vec<_>>();
    expected.sort_unstable();
    assert_eq!(fields, expected);
}

#[test]
fn bad_corpus_files_are_refused() {
    let read = |bytes: &[u8], limits: Limits| -> Result<Vec<Entry>, CorpusError> {
        CorpusReader::new(Cursor::new(bytes.to_vec()), limits)?.collect()
    };
    let good = corpus(str::to_string);
    assert_eq!(read(&good, Limits::default()).unwrap().len(), 1);
    let check = |edit: &dyn Fn(&str) -> String, expected: fn(&CorpusError) -> bool| {
        let error = read(&corpus(edit), Limits::default()).unwrap_err();
        assert!(expected(&error), "{error:?}");
    };
    let bad_line = |e: &CorpusError| matches!(e, CorpusError::Line { line: 1, .. });
    check(&|l| l.replace("\"format\":1", "\"format\":2"), |e| matches!(e, CorpusError::Version { found: 2, .. }));
    check(&|l| l.replace("input t0 4 8", "input t0 5 8"), bad_line);
    check(&|l| l.replace("\"cores\":2", "\"cores\":3"), bad_line);
    check(&|l| l.replace("\"timed\"", "\"sad\""), bad_line);
    check(&|l| l.replace("tile a 0", "TILE"), bad_line);
    check(&|l| l.replace("[7]", "[]"), bad_line);
    check(&|l| l.replace("\"seed\":", "\"extra\":1,\"seed\":"), bad_line);
    check(&|l| l[..l.len() / 2].to_string(), bad_line);
    check(&|l| format!("{l}nonsense\n"), |e| matches!(e, CorpusError::Line { line: 2, .. }));
    assert!(matches!(read(&good[..good.len() - 3], Limits::default()), Err(CorpusError::Io { .. })), "cut off");
    assert!(matches!(read(b"plain text", Limits::default()), Err(CorpusError::Io { .. })), "not compressed");
    let short = Limits { line_bytes: 100, ..Limits::default() };
    assert!(matches!(read(&good, short), Err(CorpusError::LineTooLong { line: 1, limit: 100 })));
    let small = Limits { file_bytes: 100, ..Limits::default() };
    assert!(matches!(read(&good, small), Err(CorpusError::FileTooLong { limit: 100 })));
    let exact = zstd::decode_all(Cursor::new(&good)).unwrap().len() as u64;
    assert_eq!(read(&good, Limits { file_bytes: exact, line_bytes: exact }).unwrap().len(), 1);
}
