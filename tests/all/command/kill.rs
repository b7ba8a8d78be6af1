//! A tuning run that is killed again and again. `tests/kill.py` does the same at random moments, and more
//! often.

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::time::Duration;

use rusqlite::types::Value;
use rusqlite::{Connection, OpenFlags};

use super::{Sandbox, TASK};

/// Trials of the whole run; the kills come when so many records are committed.
const TRIALS: usize = 60;
const KILLS: [usize; 3] = [1, 12, 30];

/// All records, whole, by their number.
fn records(connection: &Connection) -> rusqlite::Result<BTreeMap<i64, Vec<Value>>> {
    let mut statement = connection.prepare("SELECT * FROM records")?;
    let columns = statement.column_count();
    let rows = statement
        .query_map([], |row| Ok((row.get("id")?, (0..columns).map(|at| row.get(at)).collect::<Result<_, _>>()?)))?;
    rows.collect()
}

/// Reads beside a run, and disturbs nothing.
fn read_along(sandbox: &Sandbox) -> rusqlite::Result<BTreeMap<i64, Vec<Value>>> {
    records(&Connection::open_with_flags(sandbox.path("records.db"), OpenFlags::SQLITE_OPEN_READ_ONLY)?)
}

/// Kills a run and its worker.
fn kill(mut run: Child) {
    // SAFETY: the group that the run was started in; it is ours until it is waited for.
    assert_eq!(unsafe { libc::kill(-run.id().cast_signed(), libc::SIGKILL) }, 0);
    run.wait().unwrap();
}

/// The store as the kill left it: a copy, so that the next run finds the log that it has to recover from.
fn left_behind(sandbox: &Sandbox) -> BTreeMap<i64, Vec<Value>> {
    let folder = tempfile::tempdir().unwrap();
    for name in ["records.db", "records.db-wal"] {
        let there = sandbox.path(name);
        if there.exists() {
            std::fs::copy(there, folder.path().join(name)).unwrap();
        }
    }
    let connection = Connection::open(folder.path().join("records.db")).unwrap();
    let verdict: String = connection.pragma_query_value(None, "integrity_check", |row| row.get(0)).unwrap();
    assert_eq!(verdict, "ok");
    records(&connection).unwrap()
}

#[test]
fn a_killed_run_goes_on_without_losing_a_record() {
    let sandbox = Sandbox::new();
    sandbox.file("task.txt", TASK);
    let trials = TRIALS.to_string();
    let tune = ["tune", "task.txt", "--method", "random", "--trials-per-task", &trials, "--store", "records.db"];
    let mut seen = BTreeMap::new();
    let expect_all = |seen: &BTreeMap<i64, Vec<Value>>, found: &BTreeMap<i64, Vec<Value>>| {
        for (id, record) in seen {
            assert_eq!(found.get(id), Some(record), "record {id}");
        }
    };
    for enough in KILLS {
        let mut command = sandbox.tilescribe(&tune);
        let mut run = command.process_group(0).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let committed = loop {
            assert_eq!(run.try_wait().unwrap(), None, "the run is over before it is killed");
            // there is no store at first, and a moment later none that can be read without being changed
            match read_along(&sandbox) {
                Ok(found) if found.len() >= enough => break found,
                _ => std::thread::sleep(Duration::from_millis(2)),
            }
        };
        kill(run);
        expect_all(&seen, &committed);
        let found = left_behind(&sandbox);
        expect_all(&committed, &found);
        assert!(found.len() < TRIALS, "the run was not over");
        seen = found;
    }
    sandbox.succeed(&tune);
    let found = left_behind(&sandbox);
    expect_all(&seen, &found);
    assert_eq!(found.len(), TRIALS);
}
