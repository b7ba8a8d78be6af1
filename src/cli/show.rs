//! `tilescribe show`

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Result, anyhow};
use clap::Args;
use tilescribe::artifact::Manifest;

use super::exit::CommandError;

/// Look inside a compiled network
///
/// Prints its inputs and outputs, what it needs of a machine, and for each task the time and the decisions of its schedule.
#[derive(Args)]
pub struct Show {
    /// Folder that `tilescribe compile` wrote
    artifact: PathBuf,
    /// Only this task, by number or name
    #[arg(long)]
    task: Option<String>,
}

impl Show {
    pub fn execute(self, out: &mut dyn Write) -> Result<()> {
        let manifest = Manifest::read(&self.artifact)?;
        if let Some(wanted) = &self.task {
            let number = wanted.parse::<usize>().ok();
            let mut tasks = manifest.tasks.iter().enumerate();
            let found = tasks.find(|(at, task)| Some(*at) == number || task.name == *wanted);
            let missing = || anyhow!(CommandError::Usage(format!("the network has no task `{wanted}`")));
            let (at, _) = found.ok_or_else(missing)?;
            return task(&manifest, at, out);
        }
        writeln!(out, "{}, compiled by tilescribe {} for {}", manifest.name, manifest.tilescribe, manifest.target.cpu)?;
        writeln!(out, "needs {}", manifest.required_features.join(" "))?;
        for (what, ports) in [("input", &manifest.inputs), ("output", &manifest.outputs)] {
            for port in ports {
                writeln!(out, "{what} {} {}{:?}", port.name, port.dtype, port.shape)?;
            }
        }
        (0..manifest.tasks.len()).try_for_each(|number| task(&manifest, number, out))
    }
}

fn task(manifest: &Manifest, number: usize, out: &mut dyn Write) -> Result<()> {
    let task = &manifest.tasks[number];
    let time = task.best_ns.map_or_else(|| "untuned".into(), |ns| format!("{:.4} ms", ns as f64 / 1e6));
    writeln!(out, "\ntask {number} {} x{}: {time}", task.name, task.weight)?;
    writeln!(out, "nodes {}", task.nodes.join(" "))?;
    Ok(write!(out, "{}", task.trace)?)
}
