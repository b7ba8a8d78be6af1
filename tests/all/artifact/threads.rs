//! What runs tell of their threads, and where weights lie.

use std::path::Path;

use tilescribe::artifact::{CompiledCall, Model, Profile, Resources, trace_events};
use tilescribe_runtime::Activity;

use super::{Mlp, shared, threads};

fn traced(count: u32, room: usize) -> (Model, tilescribe::artifact::Trace) {
    let model = Model::load(shared(), threads(count)).unwrap();
    let mlp = Mlp::new();
    let trace = {
        let mut bound = model.bind(&[mlp.input()]).unwrap();
        bound.run().unwrap();
        let trace = bound.traced(room).unwrap().unwrap();
        mlp.assert_close(&bound.outputs()[0].f32s().unwrap());
        // nobody asks any more
        bound.run().unwrap();
        trace
    };
    (model, trace)
}

#[test]
fn a_run_tells_what_its_threads_did() {
    let (model, trace) = traced(2, 1000);
    let manifest = model.manifest();
    let calls: Vec<_> = trace.events.iter().filter(|event| event.activity() == Activity::Call).collect();
    // one after the other, in the order of the manifest
    assert_eq!(calls.iter().map(|event| event.call as usize).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(calls.len(), manifest.calls.len());
    assert!(calls.windows(2).all(|pair| pair[0].end <= pair[1].begin));
    assert_eq!(trace.lost, 0);
    for event in trace.events.iter().filter(|event| event.activity() != Activity::Call) {
        let around = calls.iter().find(|call| call.call == event.call).unwrap();
        assert!(around.begin <= event.begin && event.begin <= event.end && event.end <= around.end, "{event:?}");
        assert!(event.thread < 2 && (event.activity() == Activity::Loop || event.thread == 0), "{event:?}");
    }

    let profile = Profile::of(manifest, &[trace.clone(), trace.clone()], 2).unwrap();
    assert_eq!((profile.runs, profile.tasks.len()), (2, 2));
    for task in &profile.tasks {
        assert!(matches!(task.callee, CompiledCall::Task(_)) && task.calls == 1);
        assert!(task.ns > 0.0 && (0.0..=1.0).contains(&task.idle), "{task:?}");
    }
    assert!(profile.tasks[0].ns >= profile.tasks[1].ns);
    assert!(profile.run_ns >= profile.tasks.iter().map(|task| task.ns).sum());

    let json = trace_events(manifest, &trace);
    let events = json["traceEvents"].as_array().unwrap();
    let complete: Vec<_> = events.iter().filter(|event| event["ph"] == "X").collect();
    assert_eq!(complete.len(), trace.events.len());
    assert!(complete.iter().any(|event| event["name"] == manifest.tasks[0].name.as_str() && event["tid"] == 0));
}

#[test]
fn events_without_room_are_counted() {
    let (model, trace) = traced(1, 1);
    assert_eq!((trace.events.len(), trace.lost > 0), (1, true));
    let nothing = tilescribe::artifact::Trace { events: Vec::new(), lost: 0 };
    assert_eq!(Profile::of(model.manifest(), &[nothing], 1), None);
    assert_eq!(Profile::of(model.manifest(), &[], 1), None);
}

/// Mappings of this process that are of a file with this name.
fn mappings(name: &str) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.ends_with(name)).count()
}

#[test]
fn models_have_their_weights_in_common_copied_or_mapped() {
    let mlp = Mlp::new();
    for share_weights in [false, true] {
        // a folder of its own, so that no other test has the library loaded
        let (_folder, copy) = super::copied();
        let weights = copy.join("weights.safetensors");
        let weights = weights.to_str().unwrap();
        let resources = Resources { threads: Some(1), share_weights, ..Resources::default() };
        let artifact = tilescribe_runtime::Artifact::load(&copy, resources).unwrap();
        let models = [artifact.model().unwrap(), artifact.model().unwrap()];
        assert_eq!(mappings(weights), usize::from(share_weights));
        drop(models);
        assert_eq!(mappings(weights), 0);
        // the next one loads them anew
        let model = Model::load(&copy, resources).unwrap();
        mlp.assert_close(&model.run(&[mlp.input()]).unwrap()[0].f32s().unwrap());
        assert_eq!(mappings(weights), usize::from(share_weights));
        check_file_is_still_needed(&copy, resources);
    }
}

/// A model whose file is gone, or another network's, is refused, though others have the weights in memory.
fn check_file_is_still_needed(folder: &Path, resources: Resources) {
    let artifact = tilescribe_runtime::Artifact::load(folder, resources).unwrap();
    let (file, aside) = (folder.join("weights.safetensors"), folder.join("aside"));
    std::fs::rename(&file, &aside).unwrap();
    assert!(artifact.model().unwrap_err().to_string().contains("cannot be read"));
    let mut bytes = std::fs::read(&aside).unwrap();
    bytes[40] ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    assert!(artifact.model().unwrap_err().to_string().contains("does not belong"));
    std::fs::write(&file, &bytes[1..]).unwrap();
    assert!(artifact.model().unwrap_err().to_string().contains("does not belong"));
    std::fs::remove_file(&file).unwrap();
    std::fs::rename(&aside, &file).unwrap();
    assert!(artifact.model().is_ok());
}
