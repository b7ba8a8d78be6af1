//! A network from ONNX to an artifact, loaded and run, without the command line.
//!
//! usage: cargo run --release --example compile_and_run -- NETWORK.onnx [FOLDER]
//!
//! Every task takes the program that the rules write without any measurement. A search would give traces
//! for `Schedule::recorded`; `tilescribe compile` does that.

use std::error::Error;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Instant;

use tilescribe::artifact::{self, Model, Options, Resources, Schedule, Version};
use tilescribe::codegen;
use tilescribe::graph::{self, ImportOptions, Precision, Products, TensorData};
use tilescribe::space::Space;
use tilescribe::target::{Target, Task};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let path = arguments.next().ok_or("usage: compile_and_run NETWORK.onnx [FOLDER]")?;
    let folder = arguments.next().unwrap_or_else(|| std::env::temp_dir().join("compiled_and_run"));

    let mut program = graph::import(&path, &ImportOptions::default())?;
    program.shorten(Precision::F32, Products::ByWeights);
    let network = graph::partition(&program)?;
    println!("{}: {} tasks, {} calls", path.display(), network.tasks.len(), network.calls.len());

    let (space, target) = (Space::standard(), Target::from(codegen::host()?));
    let mut schedules = Vec::new();
    for task in &network.tasks {
        let task = Task { workload: task.workload.clone(), target: target.clone() };
        schedules.push(Schedule::untuned(&space, &task)?);
    }
    let version = Version { target: &target, schedules: &schedules };
    let options = Options { name: "net", folder: &folder };
    artifact::compile(&network, &[version], &options, &mut |_| ControlFlow::Continue(()))?;

    let model = Model::load(&folder, Resources::default())?;
    let mut inputs = Vec::new();
    for port in &model.manifest().inputs {
        let dtype = port.dtype().ok_or("a type that this version does not know")?;
        let bytes = port.bytes().ok_or("an input of no size")?;
        inputs.push(TensorData { shape: port.shape.clone(), dtype, bytes: vec![0; bytes].into() });
    }
    let mut bound = model.bind(&inputs)?;
    let started = Instant::now();
    bound.run()?;
    println!("the first run took {:.3} ms", started.elapsed().as_secs_f64() * 1e3);
    for (port, output) in model.manifest().outputs.iter().zip(bound.outputs()) {
        let values = output.to_f64();
        println!("{} {:?}: {:?} ...", port.name, port.shape, &values[..values.len().min(4)]);
    }
    Ok(())
}
