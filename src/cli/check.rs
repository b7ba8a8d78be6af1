//! `tilescribe check`

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};
use tilescribe::artifact;
use tilescribe::graph::{Network, Source};

use super::arguments::{NetworkArguments, TargetArguments};
use super::extents;
use super::words::{counted, operations};

/// Say whether a network can be compiled, and what goes in and comes out
///
/// Takes seconds: nothing is searched for or written. A network that is not supported is an error, which
/// names every operator that is missing.
#[derive(Args)]
pub struct Check {
    /// ONNX file
    model: PathBuf,
    #[command(flatten)]
    network: NetworkArguments,
    #[command(flatten)]
    target: TargetArguments,
    /// Print a line of JSON instead
    #[arg(long)]
    json: bool,
}

impl Check {
    pub fn execute(self, out: &mut dyn Write) -> Result<()> {
        let target = self.target.resolve()?;
        let network = self.network.load(&self.model, std::slice::from_ref(&target))?;
        artifact::check_targets([&target])?;
        artifact::check_network(&network, [&target])?;
        let flops = network
            .tasks
            .iter()
            .map(|task| task.workload.flops().saturating_mul(task.weight as i64))
            .fold(0, i64::saturating_add);
        let (inputs, outputs) = (ports(&network, true), ports(&network, false));
        if self.json {
            let line = json!({
                "tasks": network.tasks.len(), "calls": network.calls.len(), "flops": flops,
                "precision": network.precision,
                "inputs": inputs, "outputs": outputs, "dimensions": dimensions(&network),
            });
            return Ok(writeln!(out, "{line}")?);
        }
        for (what, ports) in [("input", &inputs), ("output", &outputs)] {
            for port in ports {
                writeln!(out, "{what} {}: {}[{}]", text(&port["name"]), text(&port["dtype"]), text(&port["shape"]))?;
            }
        }
        extents::print_assumed(&network, &self.network.dimensions, out)?;
        let (tasks, calls) = (counted(network.tasks.len(), "task"), counted(network.calls.len(), "call"));
        let most = if network.symbols.is_empty() { "" } else { " at most" };
        Ok(writeln!(out, "{}: {tasks}, {calls}, {}{most}", self.model.display(), operations(flops))?)
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::Array(items) => items.iter().map(text).collect::<Vec<_>>().join(", "),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Inputs or outputs that runs are given, without states: a name, a type, and extents that are numbers or
/// formulas.
fn ports(network: &Network, of_inputs: bool) -> Vec<Value> {
    let names: Vec<&str> = network.symbols.list.iter().map(|symbol| symbol.name.as_str()).collect();
    let named = network.buffers.iter().filter_map(|buffer| match &buffer.source {
        Source::Input(name) if of_inputs => Some((name, buffer)),
        Source::Output(name) if !of_inputs => Some((name, buffer)),
        _ => None,
    });
    let is_state = |number: usize| {
        let mut carried = network.carried.iter();
        carried.any(|carried| number == if of_inputs { carried.input } else { carried.output })
    };
    let described = named.enumerate().filter(|(number, _)| !is_state(*number)).map(|(_, (name, buffer))| {
        let extent = |(axis, most): (usize, &i64)| match buffer.extents.get(axis) {
            Some(formula) => json!(artifact::formula_text(formula, &names)),
            None => json!(most),
        };
        let shape: Vec<Value> = buffer.shape.iter().enumerate().map(extent).collect();
        json!({"name": name, "dtype": buffer.dtype.name(), "shape": shape})
    });
    described.collect()
}

/// The dimensions that stay open, and their ranges.
fn dimensions(network: &Network) -> Vec<Value> {
    let given = network.symbols.list.iter().filter(|symbol| symbol.origin.is_given());
    let range = |symbol: &tilescribe::graph::Symbol| {
        json!({
            "name": symbol.name, "low": symbol.range.low, "high": symbol.range.high, "multiple": symbol.multiple,
        })
    };
    given.map(range).collect()
}
