//! `tilescribe run`

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use tilescribe::artifact::{self, Model, Port, Resources};
use tilescribe::graph::TensorData;

use super::exit::CommandError;
use super::extents::Point;
use super::npy;
use super::output::{Kind, Output};
use super::stream::{self, Stream};
use super::words::counted;

/// Run a compiled network
///
/// Prints a line for each output, and writes it as .npy where a folder is given. A network runs once, or as
/// often as --loop says; what it keeps from run to run (see `compile --state`) starts empty.
#[derive(Args)]
pub struct Run {
    /// Folder that `tilescribe compile` wrote
    artifact: PathBuf,
    /// Value of an input, a NumPy file; inputs that are not given are random
    #[arg(long = "input", value_name = "NAME=FILE.npy")]
    inputs: Vec<String>,
    /// Extents of random inputs, where the network takes several [default: those of inputs that are given, or
    /// else a middle value]
    #[arg(long, value_name = "NAME=N,...")]
    at: Option<Point>,
    /// Run so often, and say how long runs take. An input with one more axis in front is a stream, of which
    /// each run is given the next part; without N there are as many runs as it has parts. Outputs get such an
    /// axis, too
    #[arg(long = "loop", value_name = "N", num_args = 0..=1, value_parser = clap::value_parser!(u32).range(1..))]
    #[expect(clippy::option_option, reason = "clap's form of an option with an optional value")]
    looped: Option<Option<u32>>,
    /// Folder that outputs are written to, each as NAME.npy; in NAME, what file names should not hold is
    /// written as in web addresses (`a:2` as `a%3A2`). manifest.json lists the files as `output_files`
    #[arg(long, value_name = "DIR")]
    output_dir: Option<PathBuf>,
    /// Threads to use [default: the cores that this process may use]
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
        if self.artifact.is_file() {
            let (path, folder) = (self.artifact.display(), self.artifact.with_extension(""));
            let reason = format!(
                "{path} is a file, not a compiled network: `tilescribe compile {path} -o {}` makes one",
                folder.display()
            );
            bail!(CommandError::Usage(reason));
        }
        let model = Model::load(
            &self.artifact,
            Resources { threads: self.threads, device: self.device, ..Resources::default() },
        )?;
        let names: Vec<&str> = model.manifest().inputs.iter().map(|port| port.name.as_str()).collect();
        let mut given: HashMap<&str, PathBuf> = HashMap::new();
        for assignment in &self.inputs {
            let (name, value) = assigned(assignment, &names)?;
            if given.insert(name, value.into()).is_some() {
                bail!(CommandError::Usage(format!("input `{name}` is given twice")));
            }
        }
        let ports = model.manifest().inputs.iter();
        let read = |port: &Port| given.get(port.name.as_str()).map(|path| npy::read(path, port)).transpose();
        let given: Vec<Option<TensorData>> = ports.map(read).collect::<Result<_>>()?;
        let files = self.output_dir.as_deref().map(|folder| self.output_files(&model, folder)).transpose()?;
        let mut stream = Stream::new(&model, given, self.at.as_ref(), self.seed);
        let outputs = match self.looped {
            None => stream.run(1)?.remove(0),
            Some(count) => {
                let count = stream.count(count)?;
                let outputs = stream.run(count)?;
                writeln!(out, "{}", stream.times())?;
                stream::stacked(outputs, model.manifest())?
            }
        };
        for (number, (port, tensor)) in model.manifest().outputs.iter().zip(&outputs).enumerate() {
            write!(out, "{} {}{:?}: {}", port.name, port.dtype, tensor.shape, summary(tensor))?;
            match files.as_ref().and_then(|files| files.get(number)) {
                Some((path, file)) => {
                    file.write(|file| npy::write(file, tensor))?;
                    writeln!(out, " -> {}", path.display())?;
                }
                None => writeln!(out)?,
            }
        }
        Ok(())
    }

    /// The files of the outputs, in their order; looked at before anything is computed.
    fn output_files(&self, model: &Model, folder: &Path) -> Result<Vec<(PathBuf, Output)>> {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let output = |port: &Port| {
            let path = folder.join(artifact::output_file(&port.name));
            let file = Output::new(&path, Kind::Array, &[])?;
            Ok((path, file))
        };
        model.manifest().outputs.iter().map(output).collect()
    }
}

/// Parts `NAME=FILE`, where both may hold `=`: at the longest name that the network has.
fn assigned<'a>(assignment: &'a str, names: &[&str]) -> Result<(&'a str, &'a str)> {
    let parts = || assignment.match_indices('=').map(|(at, _)| (&assignment[..at], &assignment[at + 1..]));
    if let Some(found) = parts().rfind(|(name, _)| names.contains(name)) {
        return Ok(found);
    }
    let reason = match parts().next() {
        Some((name, _)) => format!("the network has no input `{name}`; its inputs: {}", names.join(", ")),
        None => format!("--input {assignment}: expected NAME=FILE.npy"),
    };
    Err(CommandError::Usage(reason).into())
}

/// Range and mean of what was computed, so that a person sees at once when something is wrong.
fn summary(tensor: &TensorData) -> String {
    let (values, bad): (Vec<f64>, Vec<f64>) = tensor.to_f64().into_iter().partition(|value| value.is_finite());
    if values.is_empty() {
        return if bad.is_empty() { "empty".into() } else { format!("{} not finite", counted(bad.len(), "element")) };
    }
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let finite = if bad.is_empty() { String::new() } else { format!(", {} not finite", bad.len()) };
    format!("from {low:.6} to {high:.6}, mean {mean:.6}{finite}")
}
