use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use super::{MeasureError, Measurer, Options};
use crate::measure::protocol::{PROTOCOL, Phase, Reply, frame};
use crate::outcome::{Failure, Outcome};
use crate::space::{Space, Trace};
use crate::target::{Architecture, Cpu, Task};

fn task() -> Task {
    let target = Cpu {
        architecture: Architecture::X86_64,
        cpu: "x86-64".into(),
        features: Vec::new(),
        vector_bits: 128,
        vector_registers: 16,
        cores: 1,
        l1_bytes: 32 << 10,
        l2_bytes: 1 << 20,
        l3_bytes: 0,
    };
    Task { workload: "input t0 4\nout t1 4 exp t0 a\n".parse().unwrap(), target: target.into() }
}

fn started() -> Reply {
    Reply::Started { protocol: PROTOCOL, space: Space::standard().versions() }
}

/// A measurer whose worker is a shell script: it sends these messages, unasked, and a moment later, when
/// it has been asked, runs `after`. Each start leaves a line with the process' id in `starts`.
fn scripted(folder: &Path, messages: &[Reply], after: &str) -> Measurer {
    let bytes: Vec<u8> = messages.iter().flat_map(|message| frame(message).unwrap()).collect();
    std::fs::write(folder.join("messages"), bytes).unwrap();
    let script = folder.join("worker");
    let text = format!("#!/bin/sh\ncd '{}'\necho $$ >> starts\ncat messages\nsleep 0.1\n{after}\n", folder.display());
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut options = Options::new(script, &Space::standard());
    options.limits.start = Duration::from_secs(5);
    options.limits.prepare = Duration::from_secs(5);
    options.limits.candidate = Duration::from_secs(1);
    Measurer::new(options)
}

fn starts(folder: &Path) -> Vec<i32> {
    let text = std::fs::read_to_string(folder.join("starts")).unwrap();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

#[test]
fn what_is_no_worker_is_an_error() {
    let start_error = |messages: &[Reply], after: &str| {
        let folder = tempfile::tempdir().unwrap();
        let mut measurer = scripted(folder.path(), messages, after);
        measurer.options.limits.start = Duration::from_millis(500);
        measurer.measure(&task(), &Trace::default(), None).unwrap_err()
    };
    let check = |error: MeasureError, words: &str| {
        assert!(matches!(error, MeasureError::Worker { .. }), "{error:?}");
        assert!(error.to_string().contains(words), "{error}");
    };
    check(start_error(&[], "echo no such thing >&2; exit 3"), "exit code 3: no such thing");
    check(start_error(&[], "echo hello, I am no worker at all; sleep 9"), "nonsense");
    check(start_error(&[], "sleep 9"), "silent");
    check(start_error(&[Reply::Prepared], "sleep 9"), "another message");
    let other = Reply::Started { protocol: PROTOCOL + 1, space: String::new() };
    assert!(matches!(start_error(&[other], "sleep 9"), MeasureError::OtherBuild { .. }));
    let other = Reply::Started { protocol: PROTOCOL, space: "another".into() };
    assert!(matches!(start_error(&[other], "sleep 9"), MeasureError::OtherBuild { .. }));
    let mut missing = Measurer::new(Options::new("/nonexistent/worker".into(), &Space::standard()));
    check(missing.measure(&task(), &Trace::default(), None).unwrap_err(), "No such file");
}

#[test]
fn a_lost_worker_is_the_candidates_outcome() {
    let ready = || vec![started(), Reply::Prepared];
    let checking = || vec![started(), Reply::Prepared, Reply::Entered(Phase::Check)];
    let cases = [
        (ready(), "exec sleep 99", Failure::Timeout, "longer than 1"),
        (checking(), "exec sleep 99", Failure::Timeout, "checking"),
        (checking(), "kill -SEGV $$", Failure::Crash, "checking: signal 11 (segmentation fault)"),
        (ready(), "echo the reason >&2; exit 1", Failure::Crash, "exit code 1: the reason"),
        (ready(), "printf 'why\\nstack backtrace:\\n 0: f' >&2; exit 1", Failure::Crash, "exit code 1: why"),
        (ready(), "exec >&-; sleep 99", Failure::Timeout, "working"),
        (ready(), "kill -KILL $$", Failure::Memory, "signal 9"),
        (ready(), "echo LLVM ERROR: out of memory >&2; kill -ABRT $$", Failure::Memory, "signal 6"),
        (ready(), "echo memory allocation of 5 bytes failed >&2; kill -ABRT $$", Failure::Memory, "5 bytes"),
        (ready(), "echo some text that is no message; sleep 99", Failure::Crash, "nonsense"),
        (ready(), "printf '\\377\\377\\377\\377'; sleep 99", Failure::Crash, "4294967295 bytes"),
        (vec![started(), Reply::Prepared, Reply::Prepared], "sleep 99", Failure::Crash, "another question"),
    ];
    for (messages, after, cause, words) in cases {
        let folder = tempfile::tempdir().unwrap();
        let mut measurer = scripted(folder.path(), &messages, after);
        for round in 1..=2 {
            let outcome = measurer.measure(&task(), &Trace::default(), None).unwrap();
            let Outcome::Failed { cause: found, detail } = outcome else { panic!("{after}: {outcome:?}") };
            assert_eq!(found, cause, "{after}: {detail}");
            assert!(detail.contains(words) && !detail.contains("backtrace"), "{after}: {detail}");
            assert_eq!(starts(folder.path()).len(), round, "{after}: each round needs a worker of its own");
        }
        for process in starts(folder.path()) {
            // SAFETY: signal 0 only asks.
            assert_eq!(unsafe { libc::kill(process, 0) }, -1, "{after}: process {process} is still there");
        }
    }
}

#[test]
fn a_warm_worker_serves_again() {
    let folder = tempfile::tempdir().unwrap();
    let timed = Outcome::Timed { times_ns: vec![5, 4], compile_us: 3 };
    let messages = [
        started(),
        Reply::Prepared,
        Reply::Entered(Phase::Time),
        Reply::Measured(timed.clone()),
        Reply::Measured(Outcome::failed(Failure::DeadEnd, "no")),
        Reply::Refused { detail: "stale".into() },
        Reply::Compared(vec![timed.clone()]),
    ];
    let mut measurer = scripted(folder.path(), &messages, "exec sleep 99");
    let outcomes = measurer.measure_all(&task(), &[Trace::default(), Trace::default()]).unwrap();
    assert_eq!(outcomes, [timed.clone(), Outcome::failed(Failure::DeadEnd, "no")]);
    let error = measurer.measure(&task(), &Trace::default(), None).unwrap_err();
    assert!(matches!(error, MeasureError::Trace { .. }), "{error:?}");
    assert_eq!(measurer.finals(&task(), &[Trace::default()]).unwrap(), [timed]);
    assert_eq!(starts(folder.path()).len(), 1);
}

#[test]
fn an_unmeasurable_task_is_an_error() {
    let unprepared = Reply::Unprepared { detail: "too large".into() };
    let died = "echo memory allocation of 9 bytes failed >&2; echo stack backtrace: >&2; kill -ABRT $$";
    for (messages, after, words) in [
        (vec![started(), unprepared], "exec sleep 99", "too large"),
        (vec![started()], "echo too large >&2", "too large"),
        (vec![started()], died, "needs more memory than there is, or than the 16.0 GiB allowed"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let error = scripted(folder.path(), &messages, after).measure(&task(), &Trace::default(), None).unwrap_err();
        assert!(matches!(&error, MeasureError::Task { detail } if detail.ends_with(words)), "{error:?}");
    }
}

#[test]
fn a_fatal_finalist_fails_alone() {
    let folder = tempfile::tempdir().unwrap();
    let timed = |time| Outcome::Timed { times_ns: vec![time], compile_us: 3 };
    // all together kill it; then one alone; the others survive, alone and in the second final
    let rounds = [
        vec![started(), Reply::Prepared],
        vec![started(), Reply::Prepared, Reply::Measured(timed(1))],
        vec![started(), Reply::Prepared, Reply::Measured(timed(2)), Reply::Compared(vec![timed(3), timed(4)])],
    ];
    for (number, messages) in rounds.iter().enumerate() {
        let bytes: Vec<u8> = messages.iter().flat_map(|message| frame(message).unwrap()).collect();
        std::fs::write(folder.path().join(format!("round{}", number + 1)), bytes).unwrap();
    }
    let after = "n=$(wc -l < starts)\ncat round$n\n[ $n = 3 ] && exec sleep 99\nsleep 0.1\nkill -SEGV $$";
    let mut measurer = scripted(folder.path(), &[], after);
    let traces = vec![Trace::default(); 3];
    let outcomes = measurer.finals(&task(), &traces).unwrap();
    assert_eq!((&outcomes[0], &outcomes[2]), (&timed(3), &timed(4)));
    assert_eq!(outcomes[1].failure(), Some(Failure::Crash));
}

#[test]
fn what_was_begun_ahead_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let timed = Outcome::Timed { times_ns: vec![5, 4], compile_us: 3 };
    let messages = [started(), Reply::Prepared, Reply::CompiledAhead, Reply::Measured(timed.clone())];
    let mut measurer = scripted(folder.path(), &messages, "exec sleep 99");
    let traces = [Trace::default()];
    measurer.begin(&task(), &traces);
    // the worker has been asked for it already: another answer would be missing
    measurer.compile_ahead(&task(), &traces).unwrap();
    assert_eq!(measurer.measure(&task(), &traces[0], None).unwrap(), timed);
    assert_eq!(starts(folder.path()).len(), 1);
}

#[test]
fn what_fails_ahead_is_said_to_who_waits_for_it() {
    let other = || Task { workload: "input t0 8\nout t1 8 exp t0 a\n".parse().unwrap(), ..task() };
    let unprepared = || Reply::Unprepared { detail: "too large".into() };
    let timed = Outcome::Timed { times_ns: vec![4], compile_us: 3 };
    let then = || vec![Reply::Prepared, Reply::Measured(timed.clone())];
    for is_waited_for in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let mut messages = vec![started(), unprepared(), Reply::CompiledAhead];
        messages.extend(then());
        let mut measurer = scripted(folder.path(), &messages, "exec sleep 99");
        measurer.begin(&other(), &[Trace::default()]);
        if is_waited_for {
            let error = measurer.measure(&other(), &Trace::default(), None).unwrap_err();
            assert!(matches!(&error, MeasureError::Task { detail } if detail == "too large"), "{error:?}");
        }
        assert_eq!(measurer.measure(&task(), &Trace::default(), None).unwrap(), timed);
        assert_eq!(starts(folder.path()).len(), 1);
    }
    // a worker that is lost meanwhile is started again, and each candidate is compiled when it is measured
    let folder = tempfile::tempdir().unwrap();
    let mut second = vec![started()];
    second.extend(then());
    let rounds = [vec![started(), Reply::Prepared], second];
    for (number, messages) in rounds.iter().enumerate() {
        let bytes: Vec<u8> = messages.iter().flat_map(|message| frame(message).unwrap()).collect();
        std::fs::write(folder.path().join(format!("round{}", number + 1)), bytes).unwrap();
    }
    let after = "n=$(wc -l < starts)\ncat round$n\n[ $n = 2 ] && exec sleep 99\nsleep 0.1\nkill -SEGV $$";
    let mut measurer = scripted(folder.path(), &[], after);
    measurer.begin(&task(), &[Trace::default()]);
    measurer.compile_ahead(&task(), &[Trace::default()]).unwrap();
    assert_eq!(measurer.measure(&task(), &Trace::default(), None).unwrap(), timed);
    assert_eq!(starts(folder.path()).len(), 2);
}
