//! Searches over a fleet of simulated workers: they go on where they were, keep all workers busy, and end
//! with what the fleet holds.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tilescribe::target::Target;

use super::rig::{Process, Rig, repeats};
use crate::command::Sandbox;

const WORKLOADS: &str = "# one\ninput t0 16 24\nconst t1 24 32\nout t2 16 32 sum 24 mul t0 a c t1 c b\n\n# two\ninput t0 40 \
                         20\nout t1 40 sum 20 t0 a b\n\n# three\ninput t0 512\nout t1 512 exp t0 a\n";

/// The last line of what a command printed, as JSON.
fn summary(printed: &str) -> Value {
    serde_json::from_str(printed.lines().last().unwrap()).unwrap()
}

fn start(sandbox: &Sandbox, arguments: &[&str]) -> Child {
    sandbox.tilescribe(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

#[test]
fn a_coordinator_dies_and_goes_on() {
    let Some(rig) = Rig::start(120) else { return };
    let worker = rig.start_worker("steady", &["--program-ms", "4"]);
    rig.wait_for("workers", 1);
    for turn in 0..repeats() as u64 {
        let sandbox = Sandbox::new();
        sandbox.file(
            "workloads.txt",
            ["16", "40", "512"].iter().fold(WORKLOADS.to_string(), |text, extent| {
                // each turn has tasks of its own: what the fleet knows is not measured again
                text.replace(extent, &(extent.parse::<u64>().unwrap() + 2 * turn).to_string())
            }),
        );
        let seed = turn.to_string();
        let collect = ["collect", "--workloads", "workloads.txt", "-o", "corpus.zst", "--method", "random"];
        let collect =
            [&collect[..], &["--trials-per-task", "70", "--seed", &seed, "--fleet", &rig.coordinator, "--json"]]
                .concat();
        let before = rig.count("records");
        for kill_at in [1, 40] {
            let mut run = start(&sandbox, &collect);
            let until = Instant::now() + Duration::from_secs(60);
            while rig.count("records") < before + kill_at {
                assert!(Instant::now() < until && run.try_wait().unwrap().is_none(), "it ended too soon");
                std::thread::sleep(Duration::from_millis(3));
            }
            run.kill().unwrap();
            run.wait().unwrap();
        }
        let found = summary(&sandbox.succeed(&collect));
        // the space of the last task is small
        let records = found["records"].as_u64().unwrap();
        assert!((140..=210).contains(&records), "{found}");
        // nothing was measured a second time, and what the store holds is what the fleet holds
        assert_eq!(rig.count("records") - before, records);
        assert_eq!(rig.count("plans WHERE state <> 'done'"), 0);
        // known, all of it
        let again = summary(&sandbox.succeed(&collect));
        assert_eq!((again["trials"].as_u64(), again["records"].as_u64()), (Some(0), Some(records)));
        // and a store that knows nothing has it from the fleet
        let elsewhere = [&collect[..], &["--store", "other.db"]].concat();
        assert_eq!(summary(&sandbox.succeed(&elsewhere))["records"].as_u64(), Some(records));
        assert_eq!(rig.count("records") - before, records);
    }
    worker.signal(libc::SIGTERM);
    worker.end();
}

#[test]
fn a_search_keeps_several_workers_and_targets_busy() {
    let Some(rig) = Rig::start(120) else { return };
    let mut other = rig.target.cpu().unwrap().clone();
    other.cores = 1;
    std::fs::write(rig.path("other.toml"), Target::from(other.clone()).to_toml()).unwrap();
    let there = rig.path("other.toml");
    let there = ["--target", there.to_str().unwrap()];
    let workers: Vec<Process> = [("a", &[][..]), ("b", &[]), ("c", &there), ("d", &there)]
        .map(|(name, arguments)| rig.start_worker(name, &[arguments, &["--program-ms", "20"]].concat()))
        .into();
    rig.wait_for("workers", 4);
    let named = Target::from(other).fingerprint();
    let session = rig.session();
    let there_are =
        |targets: &[&String]| session.coordinator().workers(&targets.iter().copied().cloned().collect::<Vec<_>>());
    assert_eq!((there_are(&[&named]), there_are(&[&named, &rig.target.fingerprint()]), there_are(&[])), (2, 4, 0));
    let sandbox = Sandbox::new();
    sandbox.file("task.txt", WORKLOADS.split("\n\n").next().unwrap().to_string() + "\n");
    let tune = ["tune", "task.txt", "--method", "evolution", "--trials-per-task", "60", "--store", "s.db", "--json"];
    let printed = sandbox.succeed(&[&tune[..], &["--fleet", &rig.coordinator]].concat());
    let found = summary(&printed);
    assert_eq!((found["trials"].as_u64(), found["tasks"].as_u64()), (Some(120), Some(2)), "{printed}");
    let targets: Vec<&str> =
        found["jobs"].as_array().unwrap().iter().map(|job| job["target"].as_str().unwrap()).collect();
    assert!(targets.contains(&rig.target.fingerprint().as_str()) && targets[0] != targets[1], "{printed}");
    // all four took part, and several plans were out at a time
    assert_eq!(rig.server.sql("SELECT count(DISTINCT worker) FROM fleet.leases"), "4");
    let together = "SELECT max(n) FROM (SELECT count(*) AS n FROM fleet.leases a JOIN fleet.leases b
        ON a.taken BETWEEN b.taken AND b.ended GROUP BY a.plan, a.fence) AS counted";
    assert!(rig.server.sql(together).parse::<u32>().unwrap() >= 3);
    // the winners were compared by one worker each, and those times are no records
    assert_eq!(rig.count("plans WHERE kind = 'finals' AND state = 'done'"), 2);
    assert_eq!(sandbox.succeed(&["records", "list", "--store", "s.db"]).lines().count(), 2);
    // one of the targets, by the beginning of its name
    let printed = sandbox.succeed(&[&tune[..], &["--fleet", &rig.coordinator, "--on", &named[..6]]].concat());
    assert_eq!(summary(&printed)["tasks"].as_u64(), Some(1), "{printed}");
    sandbox.fail(
        &[&tune[..], &["--fleet", &rig.coordinator, "--on", "nothing"]].concat(),
        2,
        "the fleet has no target `nothing`",
    );
    workers.iter().for_each(|worker| worker.signal(libc::SIGTERM));
    workers.into_iter().for_each(Process::end);
}

#[test]
fn methods_are_compared_over_a_fleet_as_they_are_here() {
    let Some(rig) = Rig::start(120) else { return };
    let workers: Vec<Process> = ["a", "b"].map(|name| rig.start_worker(name, &[])).into();
    rig.wait_for("workers", 2);
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.path("tasks")).unwrap();
    for (number, text) in WORKLOADS.split("\n\n").enumerate() {
        sandbox.file(&format!("tasks/{number}.txt"), text.trim_end().to_string() + "\n");
    }
    let compare = ["compare", "--methods", "random,evolution", "--workloads", "tasks", "--trials", "8", "--seeds", "2"];
    let compare = [&compare[..], &["-o", "out", "--fleet", &rig.coordinator]].concat();
    let printed = sandbox.succeed(&compare);
    assert!(printed.contains("random: reference / best by number of trials 1: "), "{printed}");
    let results: Value = serde_json::from_slice(&std::fs::read(sandbox.path("out/results.json")).unwrap()).unwrap();
    let tasks = results["tasks"].as_array().unwrap();
    assert_eq!(tasks.len(), 3);
    assert!(tasks.iter().all(|task| task["runs"].as_array().unwrap().len() == 4 && task["reference_ms"].is_number()));
    assert_eq!(rig.count("plans WHERE kind = 'finals'"), 3);
    // what is known is not measured again, but for the finals
    let before = rig.count("plans WHERE kind = 'each'");
    sandbox.succeed(&compare);
    assert_eq!(rig.count("plans WHERE kind = 'each'"), before);
    workers.iter().for_each(|worker| worker.signal(libc::SIGTERM));
    workers.into_iter().for_each(Process::end);
}

#[test]
fn a_comparison_that_cannot_go_on_ends_for_all_who_take_part() {
    let Some(rig) = Rig::start(120) else { return };
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.path("tasks")).unwrap();
    for (number, text) in WORKLOADS.split("\n\n").enumerate() {
        sandbox.file(&format!("tasks/{number}.txt"), text.trim_end().to_string() + "\n");
    }
    let target = rig.path("target.toml");
    let compare = ["compare", "--methods", "random", "--workloads", "tasks", "--trials", "8", "--seeds", "1"];
    // no worker will ever come
    let mut run = start(
        &sandbox,
        &[&compare[..], &["-o", "out", "--target", target.to_str().unwrap(), "--fleet", &rig.coordinator]].concat(),
    );
    rig.wait_for("plans WHERE state = 'waiting'", 3);
    assert_eq!(rig.server.sql("SELECT fleet.cancel(ARRAY[(SELECT min(id) FROM fleet.plans)])"), "1");
    let until = Instant::now() + Duration::from_secs(60);
    let status = loop {
        if let Some(status) = run.try_wait().unwrap() {
            break status;
        }
        assert!(Instant::now() < until, "it waits for what nobody measures");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(!status.success());
    assert_eq!((rig.count("plans WHERE state = 'cancelled'"), rig.count("plans")), (3, 3));
}

#[test]
fn who_is_interrupted_withdraws_what_nobody_has_begun() {
    let Some(rig) = Rig::start(120) else { return };
    let sandbox = Sandbox::new();
    sandbox.file("workloads.txt", WORKLOADS);
    let target = rig.path("target.toml");
    let collect = ["collect", "--workloads", "workloads.txt", "-o", "corpus.zst", "--method", "random", "--target"];
    let collect = [&collect[..], &[target.to_str().unwrap(), "--fleet", &rig.coordinator]].concat();
    // no worker has joined yet
    let mut run = start(&sandbox, &collect);
    rig.wait_for("plans WHERE state = 'waiting'", 3);
    // SAFETY: a process of ours that has not been waited for.
    unsafe { libc::kill(run.id().cast_signed(), libc::SIGINT) };
    assert_eq!(run.wait().unwrap().code(), Some(130));
    assert_eq!((rig.count("plans WHERE state = 'cancelled'"), rig.count("plans")), (3, 3));
    let all = ["collect", "--workloads", "workloads.txt", "-o", "corpus.zst", "--fleet", &rig.coordinator];
    rig.server.sql("TRUNCATE fleet.plans, fleet.leases, fleet.records; DELETE FROM fleet.targets");
    sandbox.fail(&all, 2, "no worker has joined the fleet yet");
}
