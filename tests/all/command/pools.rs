//! Pools: all that samplers draw, measured twice, and what is scored on them.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::BufReader;

use serde_json::Value;
use tilescribe::propose::SAMPLERS;
use tilescribe::record::{Limits, PoolProgram, Store, read_pools};
use tilescribe::tune::replay::RANKERS;

use super::{Sandbox, TASK};

const OTHER_TASK: &str = "input t0 12 40\nout t1 12 sum 40 t0 a b\n";

fn last_line(printed: &str) -> Value {
    serde_json::from_str(printed.lines().last().unwrap()).unwrap()
}

/// As JSON has it.
fn trace_of(program: &PoolProgram) -> String {
    Value::from(program.trace.to_string()).to_string()
}

#[test]
fn pools_are_measured_taken_up_again_and_scored() {
    let sandbox = Sandbox::new();
    sandbox.file("tasks.txt", format!("{TASK}\n{OTHER_TASK}"));
    let pools = ["pools", "--workloads", "tasks.txt", "--samples", "4", "--seeds", "2", "-o", "pools.zst", "--json"];
    let first = last_line(&sandbox.succeed(&pools));
    let read = || {
        let file = BufReader::new(File::open(sandbox.path("pools.zst")).unwrap());
        read_pools(file, Limits::default()).unwrap()
    };
    let found = read();
    assert_eq!((first["tasks"].as_u64(), found.len()), (Some(2), 2));
    let programs: usize = found.iter().map(|pool| pool.programs.len()).sum();
    assert_eq!(first["programs"].as_u64(), Some(programs as u64));
    assert_eq!(first["trials"].as_u64(), Some(2 * programs as u64), "each program twice");
    for pool in &found {
        let names: Vec<&str> = SAMPLERS.iter().map(|sampler| sampler.name).collect();
        assert_eq!(
            (pool.samplers.clone(), pool.seeds, pool.samples),
            (names.iter().map(ToString::to_string).collect(), 2, 4)
        );
        assert_eq!(pool.programs.iter().filter(|program| program.untuned).count(), 1);
        assert!(pool.programs.iter().all(|program| program.times.is_ok()), "{pool:?}");
        let draws: usize = pool.programs.iter().map(|program| program.draws.len()).sum();
        assert!(draws > 16 && draws <= 4 * 2 * 4, "{draws}");
    }
    // nothing is measured that both stores hold; what one of them lacks is
    let again = last_line(&sandbox.succeed(&pools));
    assert_eq!((again["trials"].as_u64(), &again["programs"]), (Some(0), &first["programs"]));
    assert_eq!(read(), found);
    fs::remove_file(sandbox.path("pools.second.db")).unwrap();
    let again = last_line(&sandbox.succeed(&pools));
    assert_eq!(again["trials"].as_u64(), Some(programs as u64));
    // fewer of them are a part of it
    let fewer = [&pools[..], &["--samplers", "mutation"]].concat();
    assert_eq!(last_line(&sandbox.succeed(&fewer))["trials"].as_u64(), Some(0));
    assert_eq!(read()[0].samplers, ["mutation"]);
    // a plan of the same sampler has the same programs
    let plan = ["plan", "--workloads", "tasks.txt", "--sampler", "mutation", "--programs", "4", "-o", "plan.jsonl"];
    sandbox.succeed(&plan);
    let planned = fs::read_to_string(sandbox.path("plan.jsonl")).unwrap();
    let planned: BTreeSet<String> = planned.lines().map(|line| last_line(line)["trace"].to_string()).collect();
    let is_first = |program: &&PoolProgram| program.draws.iter().any(|draw| draw.seed == 0);
    let drawn: BTreeSet<String> =
        read().iter().flat_map(|pool| pool.programs.iter().filter(is_first).map(trace_of)).collect();
    assert_eq!(planned, drawn);
    sandbox.succeed(&pools);

    // the built-in checkpoint has no world model of the end
    let asked = || RANKERS.iter().filter(|ranker| ranker.name != "world-end");
    let rankers: Vec<&str> = asked().map(|ranker| ranker.name).collect();
    let (rankers, replay) = (rankers.join(","), ["compare", "--replay", "pools.zst", "--json"]);
    let all = [&replay[..], &["--rankers", &rankers, "--control", "shuffled-all,uniform", "--rival", "same=built-in"]]
        .concat();
    let printed = sandbox.succeed(&all);
    assert_eq!(printed, sandbox.succeed(&all), "nothing is drawn or measured");
    let found = last_line(&printed);
    assert_eq!((found["tasks"].as_u64(), found["failed"].as_u64()), (Some(2), Some(0)));
    let quality = |score: &Value| score["quality"].as_f64().unwrap();
    for sampler in SAMPLERS {
        let best_of = &found["samplers"][sampler.name]["best_of"];
        assert!(quality(&best_of["1"]) <= quality(&best_of["3"]) && quality(&best_of["3"]) <= quality(&best_of["4"]));
        assert!(printed.contains(&format!("| {} | ", sampler.name)), "{printed}");
        let own = &found["rankers"][sampler.name];
        for ranker in asked() {
            let names =
                [ranker.name.to_string(), format!("{}+shuffled-all", ranker.name), format!("{}@same", ranker.name)];
            let count = if ranker.needs_checkpoint() { 3 } else { 1 };
            for name in &names[..count] {
                let scores = &own[name];
                assert!(quality(&scores["1"]) > 0.0 && quality(&scores["4"]) <= 1.0 + 1e-9, "{name}: {scores}");
            }
            if ranker.needs_checkpoint() {
                assert_eq!(own[&names[0]], own[&names[2]], "the same checkpoint under another name");
            }
        }
    }
    // a model whose answers are uniform has the same estimator, but another value head
    let of_trained = &found["rankers"]["trained"];
    assert!(of_trained["estimator+uniform"].is_null() && !of_trained["value-head+uniform"].is_null());
    // which of the two ranks better is a matter of times
    assert!(!of_trained["policy"].is_null() && !of_trained["policy+shuffled-all"].is_null());
    let [low, high] = [0, 1].map(|end| found["differences"][0]["best_of"]["1"]["interval"][end].as_f64().unwrap());
    assert!(low <= high && found["differences"][0]["sampler"] == "trained");
}

#[test]
fn what_are_no_pools_is_refused() {
    let sandbox = Sandbox::new();
    sandbox.file("tasks.txt", TASK);
    sandbox.file("note.txt", "mine\n");
    let pools =
        |output: &'static str| ["pools", "--workloads", "tasks.txt", "--samples", "1", "--seeds", "1", "-o", output];
    sandbox.fail(&pools("note.txt"), 2, "is not a file of pools");
    sandbox.fail(&pools("tasks.txt"), 2, "is read from");
    sandbox.fail(&["compare", "--replay", "note.txt"], 2, "the pools note.txt");
    sandbox.fail(&["compare", "--replay", "none.zst"], 2, "cannot read none.zst");
    sandbox.fail(&["compare", "--replay", "a", "--methods", "lm"], 2, "cannot be used with");
    sandbox.fail(&["compare", "--methods", "lm", "--rankers", "chance"], 2, "--replay");
    sandbox.fail(&["compare", "--replay", "a", "--rankers", "other"], 2, "invalid value 'other'");
    // a corpus file is none
    sandbox.succeed(&[
        "collect",
        "--workloads",
        "tasks.txt",
        "--trials-per-task",
        "2",
        "--method",
        "random",
        "-o",
        "c.zst",
    ]);
    sandbox.fail(&["compare", "--replay", "c.zst"], 2, "line 1: missing field `pools`");
    sandbox.fail(&pools("c.zst"), 2, "is not a file of pools");
    Store::open(&sandbox.path("c.db")).unwrap();
}
