//! `tilescribe tasks`

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde_json::json;
use tilescribe::artifact;
use tilescribe::graph::Network;
use tilescribe::nest::parameter_name;
use tilescribe::workload::Parameter;

use super::arguments::{NetworkArguments, TargetArguments};
use super::layouts::PlanArguments;
use super::words::operations;

/// Print the tasks that a network is made of
///
/// A task is a fused part of the network; equal parts are one task. Each is printed as text, behind a comment
/// with its number, name, how often the network calls it, and its hash.
#[derive(Args)]
pub struct Tasks {
    /// ONNX file
    model: PathBuf,
    #[command(flatten)]
    network: NetworkArguments,
    #[command(flatten)]
    plan: PlanArguments,
    /// The machine to cut it for: `host`, a GPU of this machine, or a TOML file that describes a machine
    #[arg(long, default_value = "host", value_name = "host|cuda|cuda:N|FILE.toml")]
    target: PathBuf,
    /// Print one JSON object for each task, on a line of its own
    #[arg(long)]
    json: bool,
}

impl Tasks {
    pub fn execute(self, out: &mut dyn Write) -> Result<()> {
        let target = TargetArguments { target: self.target, threads: None };
        let network = self.plan.load(&self.model, &self.network, &[target.resolve()?])?;
        let names: Vec<&str> = network.symbols.list.iter().map(|symbol| symbol.name.as_str()).collect();
        for (number, task) in network.tasks.iter().enumerate() {
            let (hash, flops) = (task.workload.hash().to_string(), task.workload.flops());
            if self.json {
                let mut line = json!({
                    "task": number, "name": task.name, "weight": task.weight, "hash": hash, "flops": flops,
                    "nodes": task.nodes, "workload": task.workload.to_string(),
                });
                if !task.workload.is_fixed() {
                    line["parameters"] = json!(parameters(&network, number, &names));
                }
                writeln!(out, "{line}")?;
            } else {
                writeln!(out, "# {number} {} x{} {hash}, {}", task.name, task.weight, operations(flops))?;
                let ranges = task.workload.parameters.iter().enumerate();
                for ((at, Parameter { low, high }), formula) in ranges.zip(parameters(&network, number, &names)) {
                    writeln!(out, "# {} is {formula}, {low}..{high}", parameter_name(at))?;
                }
                writeln!(out, "{}", task.workload)?;
            }
        }
        Ok(())
    }
}

/// What the parameters of a task are in its first call, by the names of the network's symbols.
fn parameters(network: &Network, task: usize, names: &[&str]) -> Vec<String> {
    let first = network.calls.iter().find(|call| call.task() == Some(task));
    let formulas = first.map_or(&[][..], |call| &call.parameters);
    formulas.iter().map(|formula| artifact::formula_text(formula, names)).collect()
}
