//! `tilescribe run`

use std::collections::HashMap;
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use tilescribe::artifact::{Model, Resources};
use tilescribe::graph::TensorData;

use super::arguments::Assignment;
use super::exit::CommandError;
use super::{inputs, npy};

/// Run a compiled network once
///
/// Prints a line for each output, and writes it as .npy where a folder is given.
#[derive(Args)]
pub struct Run {
    /// Folder that `tilescribe compile` wrote
    artifact: PathBuf,
    /// Value of an input, a NumPy file; inputs that are not given are random
    #[arg(long = "input", value_name = "NAME=FILE.npy")]
    inputs: Vec<Assignment<PathBuf>>,
    /// Where outputs are written, as NAME.npy
    #[arg(long, value_name = "DIR")]
    output_dir: Option<PathBuf>,
    /// Threads to use [default: the cores that the network was compiled for]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: Option<u32>,
    /// GPU to use, by its number in the driver's order [default: 0]
    #[arg(long, value_name = "N")]
    device: Option<u32>,
    /// Seed of random inputs
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

impl Run {
    pub fn execute(self, out: &mut dyn Write) -> Result<()> {
        let model = Model::load(&self.artifact, Resources { threads: self.threads, device: self.device })?;
        let mut given: HashMap<String, PathBuf> = HashMap::new();
        for Assignment { name, value } in self.inputs {
            if given.insert(name.clone(), value).is_some() {
                bail!(CommandError::Usage(format!("input `{name}` is given twice")));
            }
        }
        let mut values = Vec::new();
        for (number, port) in model.manifest().inputs.iter().enumerate() {
            values.push(match given.remove(&port.name) {
                Some(path) => npy::read(&path)?,
                None => inputs::random(port, self.seed.wrapping_add(number as u64))?,
            });
        }
        if let Some(name) = given.keys().min() {
            let names: Vec<&str> = model.manifest().inputs.iter().map(|port| port.name.as_str()).collect();
            bail!(CommandError::Usage(format!("the network has no input `{name}`; its inputs: {}", names.join(", "))));
        }
        let outputs = model.run(&values)?;
        if let Some(folder) = &self.output_dir {
            std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        }
        let mut used = HashMap::new();
        for (port, tensor) in model.manifest().outputs.iter().zip(&outputs) {
            writeln!(out, "{} {}{:?}: {}", port.name, port.dtype, port.shape, summary(tensor))?;
            if let Some(folder) = &self.output_dir {
                let file = file_name(&port.name, &mut used);
                npy::write(&folder.join(file), tensor)?;
            }
        }
        Ok(())
    }
}

/// A file name that stays in its folder, whatever the output is called, and that no other output has.
fn file_name(name: &str, used: &mut HashMap<String, usize>) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.') { c } else { '_' };
    let stem: String = name.chars().map(plain).take(100).collect();
    let stem = stem.trim_start_matches('.').to_string();
    let count = used.entry(stem.clone()).or_insert(0);
    *count += 1;
    if *count == 1 { format!("{stem}.npy") } else { format!("{stem}.{count}.npy") }
}

/// Range and mean of what was computed, so that a person sees at once when something is wrong.
fn summary(tensor: &TensorData) -> String {
    let values = tensor.to_f64();
    if values.is_empty() {
        return "empty".into();
    }
    let bad = values.iter().filter(|value| !value.is_finite()).count();
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let finite = if bad == 0 { String::new() } else { format!(", {bad} not finite") };
    format!("from {low:.6} to {high:.6}, mean {mean:.6}{finite}")
}
