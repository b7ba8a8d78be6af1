//! From measurements to a model and back: collecting, training, searching with what was trained, comparing.

use std::fs;

use serde_json::Value;
use tilescribe::propose::METHODS;

use super::{Sandbox, TASK};

/// A row-wise sum of another size than `TASK`'s rows.
const OTHER_TASK: &str = "input t0 12 40\nout t1 12 sum 40 t0 a b\n";

/// The heading of a model card's part about the estimator.
const ESTIMATOR: &str = "## Estimator\n";

/// A sandbox with two tasks and a few measured programs of each.
pub fn collected() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.file("tasks.txt", format!("{TASK}\n{OTHER_TASK}"));
    let collect = ["collect", "--workloads", "tasks.txt", "--method", "random", "--trials-per-task", "6"];
    let printed = sandbox.succeed(&[&collect[..], &["-o", "corpus.jsonl.zst"]].concat());
    assert!(printed.contains("12 records of 2 tasks"), "{printed}");
    sandbox
}

#[test]
fn a_checkpoint_is_trained_searched_with_and_trained_further() {
    let sandbox = collected();
    let pretrain = ["pretrain", "--corpus", "corpus.jsonl.zst", "-o", "own", "--epochs", "1", "--held-out", "0"];
    sandbox.succeed(&pretrain);
    let read = |folder: &str, name: &str| fs::read(sandbox.path(folder).join(name)).unwrap();
    let card = String::from_utf8(read("own", "README.md")).unwrap();
    assert!(card.contains("12 records of 2 tasks") && card.contains(ESTIMATOR), "{card}");

    // another estimator in the place of the first; the transformer stays
    let (model, estimator) = (read("own", "model.safetensors"), read("own", "estimator.safetensors"));
    sandbox.succeed(&[&pretrain[..], &["--estimator-only", "--seed", "5"]].concat());
    assert_eq!(read("own", "model.safetensors"), model);
    assert_ne!(read("own", "estimator.safetensors"), estimator);
    let card = String::from_utf8(read("own", "README.md")).unwrap();
    assert_eq!(card.matches(ESTIMATOR).count(), 1, "{card}");

    // a world model beside them
    let world = [&pretrain[..], &["--world-only", "--programs", "5"]].concat();
    assert!(sandbox.succeed(&world).contains("own: a new world model"));
    assert!(sandbox.succeed(&[&world[..], &["--world-end"]].concat()).contains("own: a new world model of the end"));
    assert_eq!(read("own", "model.safetensors"), model);
    let card = String::from_utf8(read("own", "README.md")).unwrap();
    let parts = [ESTIMATOR, "## World model\n", "## World model without dynamics\n"];
    assert!(parts.iter().all(|part| card.matches(part).count() == 1), "{card}");
    sandbox.fail(&[&world[..], &["--estimator-only"]].concat(), 2, "cannot be used with");

    // preferences move the transformer alone
    let world = read("own", "world.safetensors");
    let preferences = [&pretrain[..], &["--preferences"]].concat();
    assert!(sandbox.succeed(&preferences).contains(" on 12 programs."));
    assert_ne!(read("own", "model.safetensors"), model);
    assert_eq!(read("own", "world.safetensors"), world);
    let card = String::from_utf8(read("own", "README.md")).unwrap();
    assert!(parts.iter().chain(&["## Preferences\n"]).all(|part| card.matches(part).count() == 1), "{card}");
    sandbox.fail(&[&preferences[..], &["--world-only"]].concat(), 2, "cannot be used with");

    // a task is held out, and both checkpoints are tried on it
    let rebuilt = ["pretrain", "--corpus", "corpus.jsonl.zst", "-o", "rebuilt", "--epochs", "1", "--held-out", "0.1"];
    let printed =
        sandbox.succeed(&[&rebuilt[..], &["--estimator-corpus", "corpus.jsonl.zst", "--beside", "own"]].concat());
    for part in ["transformer, policy loss", "estimator, pairs ordered"] {
        assert!(printed.contains(&format!("{part} on held-out tasks: ")), "{printed}");
    }
    sandbox.fail(&[&rebuilt[..], &["--beside", "nowhere"]].concat(), 2, "nowhere");

    sandbox.file("task.txt", TASK);
    for method in ["lm", "guided", "world"] {
        let store = format!("{method}.db");
        let tune = ["tune", "task.txt", "--method", method, "--checkpoint", "own", "--trials-per-task", "3"];
        let printed = sandbox.succeed(&[&tune[..], &["--store", &store, "--json"]].concat());
        let summary: Value = serde_json::from_str(printed.lines().last().unwrap()).unwrap();
        assert_eq!((&summary["trials"], &summary["valid"]), (&3.into(), &3.into()), "{printed}");
    }
    sandbox.succeed(&["finetune", "--checkpoint", "own", "--store", "lm.db", "-o", "finer", "--held-out", "0"]);
    assert_ne!(read("finer", "model.safetensors"), model);
    assert_eq!(read("finer", "world.safetensors"), read("own", "world.safetensors"));
    // what lies in a file, as other machines export it
    sandbox.succeed(&["records", "export", "lm.jsonl.zst", "--store", "lm.db"]);
    let further = ["finetune", "--checkpoint", "own", "--corpus", "lm.jsonl.zst", "-o", "further", "--held-out", "0"];
    assert!(sandbox.succeed(&further).starts_with("further: "));
    assert!(read("further", "model.safetensors") != model, "it has learned nothing");
    assert!(read("further", "world.safetensors") == read("own", "world.safetensors"), "the world model has changed");
    sandbox.fail(&[&further[..], &["--store", "lm.db"]].concat(), 2, "cannot be used with");
    let world_end = ["compare", "--methods", "world-end", "--workloads", "task.txt", "-o", "end"];
    sandbox.fail(&world_end, 2, "pretrain --world-only");
    sandbox.succeed(&["tune", "task.txt", "--checkpoint", "finer", "--trials-per-task", "4", "--store", "lm.db"]);

    // nothing tells whether it gained: it does not become the one that is used
    let printed = sandbox.succeed(&["finetune", "--checkpoint", "own", "--store", "lm.db", "--held-out", "0"]);
    assert!(printed.contains("it is not used unless it is named: --checkpoint "), "{printed}");
    assert!(!sandbox.path("cache/tilescribe/checkpoint").exists());
    assert!(sandbox.path("cache/tilescribe/checkpoint-unjudged/config.json").exists());

    sandbox.fail(&["finetune", "--checkpoint", "own", "--store", "none.db", "-o", "none"], 2, "there is no store");
}

#[test]
fn methods_and_ablations_are_compared_side_by_side() {
    let sandbox = Sandbox::new();
    sandbox.file("task.txt", TASK);
    // the built-in checkpoint has no world model of the end
    let methods = METHODS.iter().map(|method| method.name).filter(|name| *name != "world-end");
    let methods: Vec<&str> = methods.collect();
    let methods = methods.join(",");
    let methods = methods.as_str();
    let compare =
        ["compare", "--methods", methods, "--workloads", "task.txt", "--trials", "5", "--seeds", "2", "-o", "out"];
    let printed = sandbox.succeed(&compare);
    let results: Value = serde_json::from_slice(&fs::read(sandbox.path("out/results.json")).unwrap()).unwrap();
    let page = fs::read_to_string(sandbox.path("out/report.html")).unwrap();
    for method in methods.split(',') {
        assert!(printed.contains(&format!("{method}: reference / best")), "{printed}");
        assert!(page.contains(&format!("<td>{method}</td>")), "{method}");
        let quality = results["summary"][method]["5"].as_f64().unwrap();
        // about 1 at most: what decides on the best is not what tells its time
        assert!(quality > 0.0 && quality < 2.0, "{method}: {quality}");
        let interval = &results["intervals"][method]["5"];
        let (low, high) = (interval[0].as_f64().unwrap(), interval[1].as_f64().unwrap());
        assert!(low <= quality && quality <= high, "{method}: {low} to {high} around {quality}");
    }
    // the same again measures nothing; more trials and seeds of one method join
    let kept = fs::read_to_string(sandbox.path("out/runs.jsonl")).unwrap();
    sandbox.succeed(&compare);
    assert_eq!(fs::read_to_string(sandbox.path("out/runs.jsonl")).unwrap(), kept);
    let longer =
        ["compare", "--methods", "random", "--workloads", "task.txt", "--trials", "7", "--seeds", "1", "-o", "out"];
    let printed = sandbox.succeed(&longer);
    assert!(
        printed.contains("random: reference / best by number of trials 1: ") && printed.contains(", 7: "),
        "{printed}"
    );
    // runs in another space do not
    let restricted = [&longer[..9], &["--space", "bolt", "-o", "out"]].concat();
    sandbox.fail(&restricted, 2, "(bolt); choose another folder");
    sandbox
        .succeed(&["tune", "task.txt", "--method", "droplet", "--space", "hidet", "--trials", "3", "--store", "s.db"]);
    // lm with a checkpoint of its own does
    let rival = |name: &'static str| {
        let arguments = ["compare", "--rival", name, "--workloads", "task.txt"];
        [&arguments[..], &["--trials", "5", "--seeds", "1", "-o", "out"]].concat()
    };
    assert!(sandbox.succeed(&rival("shipped=built-in")).contains("shipped: reference / best"));
    sandbox.fail(&rival("lm=built-in"), 2, "another contestant is called so");
    sandbox.fail(&rival("lm+uniform=built-in"), 2, "controls are called so");
    sandbox.fail(&rival("other=nowhere"), 2, "nowhere");
    let runs = results["tasks"][0]["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 2 * methods.split(',').count());
    for run in runs {
        let trials = run["best_ms"].as_array().unwrap().len();
        let expected = if run["method"] == "lm-greedy" { 1 } else { 5 };
        assert_eq!((trials, run["seconds"].as_array().unwrap().len()), (expected, expected), "{run}");
    }
}

#[test]
fn methods_are_compared_with_their_controls() {
    let sandbox = Sandbox::new();
    fs::create_dir(sandbox.path("tasks")).unwrap();
    sandbox.file("tasks/one.txt", TASK);
    sandbox.file("tasks/other.txt", OTHER_TASK);
    let methods = "lm-greedy,lm-no-neighbours,random";
    let compare = |seeds: &'static str, controls: &'static [&'static str]| {
        let arguments = ["compare", "--methods", methods, "--workloads", "tasks", "--trials", "3", "--seeds", seeds];
        [&arguments[..], &["-o", "out"], controls].concat()
    };
    let printed = sandbox.succeed(&compare("2", &["--control", "shuffled,uniform,shuffled-all"]));
    let results: Value = serde_json::from_slice(&fs::read(sandbox.path("out/results.json")).unwrap()).unwrap();
    let page = fs::read_to_string(sandbox.path("out/report.html")).unwrap();
    let controls = results["controls"].as_array().unwrap();
    assert_eq!(controls.len(), 2 * 3, "random asks no model");
    for paired in controls {
        let [method, control] = ["method", "control"].map(|field| paired[field].as_str().unwrap());
        assert!(control.starts_with(&format!("{method}+")), "{paired}");
        assert!(results["summary"][control]["3"].as_f64().unwrap() > 0.0, "{control}");
        assert!(printed.contains(&format!("{control}: reference / best")), "{printed}");
        assert!(printed.contains(&format!("{method} - {control}: difference by number of trials 1: ")), "{printed}");
        assert!(
            page.contains(&format!("<td>{method} - {control}</td>")) && page.contains(&format!("<td>{control}</td>"))
        );
        let found = &paired["by_trials"]["3"];
        assert_eq!((found["tasks"].as_u64(), found["pairs"].as_u64()), (Some(2), Some(4)));
        let (low, high) = (found["interval"][0].as_f64().unwrap(), found["interval"][1].as_f64().unwrap());
        assert!(low <= high && found["ratio"].as_f64().unwrap() > 0.0, "{found}");
    }
    // the runs are kept as those of methods are, and are told of when others join
    let kept = fs::read_to_string(sandbox.path("out/runs.jsonl")).unwrap();
    assert!(kept.contains("\"method\":\"lm-greedy+shuffled\""));
    let again = sandbox.succeed(&compare("1", &[]));
    assert_eq!(fs::read_to_string(sandbox.path("out/runs.jsonl")).unwrap(), kept);
    assert!(again.contains("lm-greedy - lm-greedy+uniform: difference"), "{again}");
    sandbox.fail(&compare("1", &["--control", "other"]), 2, "invalid value 'other'");
}

#[test]
fn a_plan_is_measured_and_taken_up_again() {
    let sandbox = Sandbox::new();
    sandbox.file("tasks.txt", format!("{TASK}\n{OTHER_TASK}"));
    let plan = ["plan", "--workloads", "tasks.txt", "--programs", "4", "-o", "plan.jsonl"];
    let printed = sandbox.succeed(&plan);
    assert!(printed.contains("8 programs of 2 tasks"), "{printed}");
    let measure = ["measure", "--plan", "plan.jsonl", "-o", "corpus.jsonl.zst", "--json"];
    let summary = |printed: &str| -> Value { serde_json::from_str(printed.lines().last().unwrap()).unwrap() };
    let first = summary(&sandbox.succeed(&measure));
    // the untuned programs, too, unless the plan holds them
    let trials = first["trials"].as_u64().unwrap();
    assert!((8..=10).contains(&trials), "{first}");
    assert_eq!(
        (&first["tasks"], first["records"].as_u64(), first["valid"].as_u64()),
        (&2.into(), Some(trials), Some(trials))
    );
    let again = summary(&sandbox.succeed(&measure));
    assert_eq!((again["trials"].as_u64(), &again["records"]), (Some(0), &first["records"]));
    sandbox.file("plan.jsonl", "{\"name\": \"a\"}\n");
    sandbox.fail(&measure, 2, "line 1: missing field");
    sandbox.fail(&["measure", "--plan", "none.jsonl", "-o", "corpus.jsonl.zst"], 2, "cannot read none.jsonl");
}

#[test]
fn measuring_twice_tells_how_noisy_times_are() {
    let sandbox = Sandbox::new();
    sandbox.file("tasks.txt", format!("{TASK}\n{OTHER_TASK}"));
    sandbox.succeed(&["plan", "--workloads", "tasks.txt", "--programs", "6", "-o", "plan.jsonl"]);
    sandbox.succeed(&["measure", "--plan", "plan.jsonl", "-o", "first.jsonl.zst"]);
    let repeat = ["plan", "--records", "first.jsonl.zst", "-o", "repeat.jsonl"];
    let printed = sandbox.succeed(&repeat);
    assert!(printed.contains(" programs of 2 tasks"), "{printed}");
    let printed = sandbox.succeed(&[&repeat[..], &["--tasks", "1"]].concat());
    assert!(printed.contains(" programs of 1 task"), "{printed}");
    sandbox.fail(&[&repeat[..], &["--workloads", "tasks.txt"]].concat(), 2, "cannot be used with");
    sandbox.succeed(&["measure", "--plan", "repeat.jsonl", "-o", "second.jsonl.zst"]);
    let agreement = ["records", "agreement", "first.jsonl.zst", "second.jsonl.zst"];
    let printed = sandbox.succeed(&agreement);
    assert!(printed.contains(" programs of 1 task") && printed.contains("95 % of times are off"), "{printed}");
    let found: Value = serde_json::from_str(&sandbox.succeed(&[&agreement[..], &["--json"]].concat())).unwrap();
    let programs = found["programs"].as_u64().unwrap();
    let pairs: u64 = found["pairs"].as_array().unwrap().iter().map(|band| band["pairs"].as_u64().unwrap()).sum();
    assert!((6..=7).contains(&programs) && pairs <= programs * (programs - 1) / 2, "{found}");
    // the same file twice: nothing deviates, everything is in order
    let same: Value = serde_json::from_str(&sandbox.succeed(&[
        "records",
        "agreement",
        "first.jsonl.zst",
        "first.jsonl.zst",
        "--json",
    ]))
    .unwrap();
    assert!(same["deviations"].as_array().unwrap().iter().all(|deviation| deviation["factor"] == 1.0), "{same}");
    assert!(same["pairs"].as_array().unwrap().iter().all(|band| band["pairs"] == band["in_order"]), "{same}");
    sandbox.fail(&["records", "agreement", "first.jsonl.zst", "plan.jsonl"], 2, "plan.jsonl");
}
