//! Calls that run at the same time.

use std::collections::BTreeSet;

use tilescribe_runtime::{Activity, Trace};

use super::whole::{NETWORKS, Whole};

/// With any number of threads, and calls one after the other or not, networks compute the same bits.
#[test]
fn strands_compute_what_calls_in_turn_do() {
    let mut forks = 0;
    for name in NETWORKS {
        let whole = Whole::compile(name);
        let found = whole.model(2).manifest().forks.len();
        forks += found;
        if found == 0 {
            continue;
        }
        for case in &whole.cases {
            let expected = whole.run(&whole.model(1), case);
            for threads in [2, 3, 8] {
                let model = whole.model(threads);
                for _ in 0..20 {
                    assert!(whole.run(&model, case) == expected, "{name} on {threads} threads");
                }
            }
        }
    }
    assert!(forks >= 8, "{forks} forks");
}

/// Calls that run one after the other after all may share memory.
#[test]
fn forks_that_a_judge_leaves_out_need_no_memory() {
    let (mut all_bytes, mut none_bytes) = (0, 0);
    for name in NETWORKS {
        let [all, some, none] =
            [0, 1, 2].map(|how| Whole::judged(name, "net", |fork| how == 0 || how == 1 && fork % 2 == 1));
        let [of_all, of_some, of_none] = [&all, &some, &none].map(|whole| whole.model(2));
        let forks = [&of_all, &of_some, &of_none].map(|model| model.manifest().forks.len());
        assert_eq!((forks[1], forks[2]), (forks[0] / 2, 0), "{name}");
        let bytes = [&of_all, &of_none].map(|model| model.manifest().memory.arena_bytes);
        (all_bytes, none_bytes) = (all_bytes + bytes[0], none_bytes + bytes[1]);
        let case = &all.cases[0];
        let expected = all.run(&of_all, case);
        assert!(all.run(&of_some, case) == expected && all.run(&of_none, case) == expected, "{name}");
    }
    assert!(none_bytes < all_bytes, "{none_bytes} and {all_bytes}");
}

/// Threads that made calls, and whether any two calls were made at the same time.
fn calls(trace: &Trace) -> (BTreeSet<u16>, bool) {
    let calls: Vec<_> = trace.events.iter().filter(|event| event.activity() == Activity::Call).collect();
    let meet = calls
        .iter()
        .enumerate()
        .any(|(at, own)| calls[..at].iter().any(|other| own.begin < other.end && other.begin < own.end));
    (calls.iter().map(|event| event.thread).collect(), meet)
}

#[test]
fn profiles_have_calls_in_turn() {
    let whole = Whole::compile("networks/attention");
    let (model, case) = (whole.model(2), &whole.cases[0]);
    let forks = model.manifest().forks.len();
    assert!(forks > 0);
    let mut bound = model.bind(&case.inputs).unwrap();
    let room = 10_000;
    for _ in 0..20 {
        let in_turn = bound.traced_in_turn(room).unwrap().unwrap();
        assert_eq!(calls(&in_turn), (BTreeSet::from([0]), false));
        let at_once = bound.traced(room).unwrap().unwrap();
        for trace in [&in_turn, &at_once] {
            let of = |activity| trace.events.iter().filter(|event| event.activity() == activity).count();
            assert_eq!((of(Activity::Fork), of(Activity::Call)), (forks, model.manifest().calls.len()));
        }
    }
}
