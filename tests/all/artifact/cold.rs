//! Calls that are timed by themselves.

use tilescribe::artifact::Trace;
use tilescribe_runtime::Activity;

use super::whole::{NETWORKS, Whole};

const ROOM: usize = 1 << 16;

/// The calls of a run, in their order.
fn calls(run: &Trace) -> Vec<u32> {
    assert!(run.lost == 0);
    run.events.iter().filter(|event| event.activity() == Activity::Call).map(|event| event.call).collect()
}

/// Each call is made twice, and its weights are taken out of the caches in between: no output changes, and
/// the same calls are told of, each once.
#[test]
fn calls_by_themselves_compute_the_same() {
    for name in NETWORKS {
        let whole = Whole::compile(name);
        let model = whole.model(2);
        for case in &whole.cases {
            let mut bound = model.bind(&case.inputs).unwrap();
            let plain = bound.traced_in_turn(ROOM).unwrap().unwrap();
            let expected = bound.outputs();
            bound.give(&case.inputs).unwrap();
            let cold = bound.traced_cold(ROOM).unwrap().unwrap();
            assert!(!calls(&cold).is_empty() && calls(&cold) == calls(&plain), "{name}");
            assert!(bound.outputs() == expected, "{name}");
        }
    }
}
