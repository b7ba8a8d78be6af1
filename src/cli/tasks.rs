//! `tilescribe tasks`

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde_json::json;

use super::arguments::NetworkArguments;
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
    /// Print one JSON object for each task, on a line of its own
    #[arg(long)]
    json: bool,
}

impl Tasks {
    pub fn execute(self, out: &mut dyn Write) -> Result<()> {
        let network = self.network.load(&self.model)?;
        for (number, task) in network.tasks.iter().enumerate() {
            let (hash, flops) = (task.workload.hash().to_string(), task.workload.flops());
            if self.json {
                let line = json!({
                    "task": number, "name": task.name, "weight": task.weight, "hash": hash, "flops": flops,
                    "nodes": task.nodes, "workload": task.workload.to_string(),
                });
                writeln!(out, "{line}")?;
            } else {
                writeln!(out, "# {number} {} x{} {hash}, {}", task.name, task.weight, operations(flops))?;
                writeln!(out, "{}", task.workload)?;
            }
        }
        Ok(())
    }
}
