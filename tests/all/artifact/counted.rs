//! Artifacts of networks that find out while they run how much there is.

use std::path::{Path, PathBuf};

use tilescribe::artifact::{Manifest, Model, RuntimeError};
use tilescribe::graph::{ImportOptions, TensorData, import, import_tensor, partition};

use super::{extents, threads};

fn case(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files/graph/networks").join(name)
}

fn data(name: &str, kind: &str, count: usize) -> Vec<TensorData> {
    let file = |at: usize| case(name).join(format!("test_data_set_0/{kind}_{at}.pb"));
    (0..count).map(|at| import_tensor(&file(at)).unwrap()).collect()
}

/// A network compiled into a folder, which has to be kept.
fn compiled(name: &str) -> (tempfile::TempDir, Manifest, Model) {
    let folder = tempfile::tempdir().unwrap();
    let network = partition(&import(&case(name).join("model.onnx"), &ImportOptions::default()).unwrap()).unwrap();
    let manifest = extents::compile(&network, &folder.path().join("net")).unwrap();
    let model = Model::load(&folder.path().join("net"), threads(2)).unwrap();
    (folder, manifest, model)
}

#[test]
fn outputs_are_as_large_as_what_was_found() {
    for name in ["boxes_0", "compress_0", "computed_0", "non_zero_3", "unique_1"] {
        let (_folder, manifest, model) = compiled(name);
        assert_eq!(manifest.format, 6, "{name}");
        let inputs = data(name, "input", manifest.inputs.len());
        let expected = data(name, "output", manifest.outputs.len());
        let shapes: Vec<&[i64]> = inputs.iter().map(|input| input.shape.as_slice()).collect();
        let most = model.output_shapes(&shapes).unwrap();
        let mut bound = model.bind(&inputs).unwrap();
        // the second run finds as much as the first, whatever that has left
        for _ in 0..2 {
            bound.run().unwrap();
            for ((found, expected), most) in bound.outputs().iter().zip(&expected).zip(&most) {
                assert_eq!((&found.shape, found.dtype), (&expected.shape, expected.dtype), "{name}");
                assert!(found.shape.iter().zip(most).all(|(found, most)| found <= most), "{name}: {most:?}");
                let near = |(x, y): (&f64, &f64)| (x - y).abs() <= 1e-5 * (1.0 + y.abs());
                assert!(found.to_f64().iter().zip(&expected.to_f64()).all(near), "{name}");
            }
        }
    }
}

#[test]
fn a_run_is_refused_that_computes_extents_that_the_network_does_not_take() {
    let (_folder, manifest, model) = compiled("computed_0");
    let inputs = data("computed_0", "input", manifest.inputs.len());
    let place = manifest.inputs.iter().position(|port| port.name == "number").unwrap();
    let with = |number: i64| {
        let mut inputs = inputs.clone();
        inputs[place] = TensorData::from_i64(vec![1], &[number]);
        model.run(&inputs)
    };
    let rows = inputs[0].shape[0];
    for (number, message) in [
        (5000, "what Slice rest finds is 5000; the network takes 0 to 2048".to_string()),
        (-1, "what Slice rest finds is -1; the network takes 0 to 2048".to_string()),
        (rows + 1, format!("the number of elements that TopK best takes is at most {rows}")),
    ] {
        match with(number) {
            Err(RuntimeError::Input(reason)) => assert!(reason.ends_with(&message), "{number}: {reason}"),
            other => panic!("{number}: {other:?}"),
        }
    }
    assert!(with(2).is_ok());
}
