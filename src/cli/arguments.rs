//! Arguments that several commands share.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, anyhow};
use clap::Args;
use tilescribe::codegen;
use tilescribe::graph::{self, ImportOptions, Network};
use tilescribe::measure::cuda;
use tilescribe::record::{self, Store};
use tilescribe::space::Space;
use tilescribe::target::{Cpu, Target, Task};

use super::exit::CommandError;

/// `NAME=VALUE`
#[derive(Clone, Debug)]
pub struct Assignment<T> {
    pub name: String,
    pub value: T,
}

impl<T: FromStr> FromStr for Assignment<T>
where
    T::Err: std::fmt::Display,
{
    type Err = String;

    fn from_str(text: &str) -> Result<Assignment<T>, String> {
        let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
        let value = value.parse().map_err(|error: T::Err| error.to_string())?;
        Ok(Assignment { name: name.to_string(), value })
    }
}

/// A network to read.
#[derive(Args, Clone, Debug)]
pub struct NetworkArguments {
    /// Value of a symbolic dimension
    #[arg(long = "dim", value_name = "NAME=N")]
    pub dimensions: Vec<Assignment<u32>>,
}

/// The machine to compile for.
#[derive(Args, Clone, Debug)]
pub struct TargetArguments {
    /// `host`, a GPU of this machine, or a TOML file that describes a machine (`tilescribe doctor` prints
    /// this one's)
    #[arg(long, default_value = "host", value_name = "host|cuda|cuda:N|FILE.toml")]
    pub target: PathBuf,
    /// Cores that kernels may use [default: those of the target]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub threads: Option<u32>,
}

impl NetworkArguments {
    /// Reads a network and cuts it into tasks.
    ///
    /// # Errors
    /// Where the file is no network that Tilescribe supports.
    pub fn load(&self, model: &Path) -> Result<Network> {
        let dims = self.dimensions.iter().map(|dim| (dim.name.clone(), i64::from(dim.value))).collect();
        let program = graph::import(model, &ImportOptions { dims }).with_context(|| model.display().to_string())?;
        Ok(graph::partition(&program)?)
    }
}

impl TargetArguments {
    /// The machine, detected or read.
    ///
    /// # Errors
    /// Where the file describes no machine, or there is no such GPU.
    pub fn resolve(&self) -> Result<Target> {
        let mut target = match (self.target.to_str(), self.named_device()?) {
            (Some("host"), _) => Target::Cpu(codegen::host()?),
            (_, Some(number)) => Target::Gpu(cuda::detect(number)?),
            (_, None) => read_target(&self.target)?,
        };
        match (&mut target, self.threads) {
            (Target::Cpu(cpu), Some(threads)) => cpu.cores = threads,
            (Target::Gpu(_), Some(_)) => {
                return Err(CommandError::Usage("--threads is about cores, and the target is a GPU".into()).into());
            }
            (_, None) => {}
        }
        Ok(target)
    }

    /// The number of the GPU to measure on, where the target is one: the first, unless another was named.
    ///
    /// # Errors
    /// Where the name of a GPU ends in no number.
    pub fn device(&self) -> Result<usize> {
        Ok(self.named_device()?.unwrap_or(0))
    }

    fn named_device(&self) -> Result<Option<usize>> {
        let Some(rest) = self.target.to_str().and_then(|name| name.strip_prefix("cuda")) else { return Ok(None) };
        match rest.strip_prefix(':').map(str::parse) {
            Some(Ok(number)) => Ok(Some(number)),
            Some(Err(_)) => {
                let name = self.target.display();
                Err(CommandError::Usage(format!("`{name}` names no GPU: cuda:0 is the first")).into())
            }
            // a file may be called so, too
            None => Ok(rest.is_empty().then_some(0)),
        }
    }

    /// The same for what CPUs alone can do so far.
    ///
    /// # Errors
    /// As [`TargetArguments::resolve`], and where it is a GPU.
    pub fn resolve_cpu(&self) -> Result<Cpu> {
        Ok(self.resolve()?.cpu()?.clone())
    }
}

/// Reads and checks the description of a machine.
///
/// # Errors
/// Where the file describes none.
pub fn read_target(path: &Path) -> Result<Target> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read the target {}", path.display()))?;
    let read = || -> Result<Target> {
        let target = Target::from_toml(&text)?;
        if let Target::Cpu(cpu) = &target {
            codegen::check(cpu)?;
        }
        Ok(target)
    };
    read().with_context(|| path.display().to_string())
}

/// Where measurements are kept.
#[derive(Args, Clone, Debug)]
pub struct StoreArguments {
    /// File of records [default: tilescribe/records.db in the user's cache folder]
    #[arg(long, value_name = "FILE")]
    pub store: Option<PathBuf>,
}

impl StoreArguments {
    /// The file that is meant, whether it exists or not.
    ///
    /// # Errors
    /// Where no file was named and the user has no cache folder.
    pub fn path(&self) -> Result<PathBuf> {
        let missing = || CommandError::Environment("no cache folder: set HOME, or name a file with --store".into());
        self.store.clone().or_else(record::default_path).ok_or_else(|| missing().into())
    }

    /// Opens the store; makes it where it is missing.
    ///
    /// # Errors
    /// Where it is not ours, damaged or not to be opened.
    pub fn open(&self) -> Result<Store> {
        Ok(Store::open(&self.path()?)?)
    }

    /// Opens the store to read from it; `None` where there is none and none was named.
    ///
    /// # Errors
    /// As [`StoreArguments::open`], and where the file that was named does not exist.
    pub fn open_existing(&self) -> Result<Option<Store>> {
        let path = self.path()?;
        if path.exists() {
            return Ok(Some(Store::open(&path)?));
        }
        match &self.store {
            Some(path) => Err(anyhow!(CommandError::Usage(format!("there is no store {}", path.display())))),
            None => Ok(None),
        }
    }
}

/// Reads a task: a file with the text of a workload, in which lines that start with `#` are comments; or
/// `MODEL.onnx#TASK`, where TASK is a number or a name that `tilescribe tasks` prints, and may be left out
/// where the network is a single task.
///
/// # Errors
/// Where there is no such task.
pub fn read_task(task: &str, target: Target) -> Result<(String, Task)> {
    if let Some((model, wanted)) = task.rsplit_once('#') {
        let network = NetworkArguments { dimensions: Vec::new() }.load(Path::new(model))?;
        let number = wanted.parse::<usize>().ok();
        let mut tasks = network.tasks.into_iter().enumerate();
        let found = tasks.find(|(at, task)| task.name == wanted || Some(*at) == number);
        let missing =
            || CommandError::Usage(format!("{model} has no task `{wanted}`; `tilescribe tasks {model}` lists them"));
        let (_, found) = found.ok_or_else(missing)?;
        return Ok((found.name, Task { workload: found.workload, target }));
    }
    let path = Path::new(task);
    if path.extension().is_some_and(|extension| extension == "onnx") {
        let mut tasks = NetworkArguments { dimensions: Vec::new() }.load(path)?.tasks;
        return match (tasks.pop(), tasks.len()) {
            (Some(only), 0) => Ok((only.name, Task { workload: only.workload, target })),
            (_, others) => Err(anyhow!(CommandError::Usage(format!(
                "{task} has {} tasks: name one of them as {task}#TASK; `tilescribe tasks {task}` lists them",
                others + 1
            )))),
        };
    }
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read the task {task}"))?;
    let lines: Vec<&str> = text.lines().map(|line| if line.starts_with('#') { "" } else { line }).collect();
    let workload = lines.join("\n").parse();
    let workload = workload.map_err(|error| CommandError::Usage(format!("{task} holds no task: {error}")))?;
    let name = path.file_stem().map_or_else(|| task.to_string(), |stem| stem.to_string_lossy().into_owned());
    Ok((name, Task { workload, target }))
}

/// What programs may be like.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct SpaceArguments {
    /// Leave out algorithms with larger rounding errors than the plain one's: Winograd's for convolutions
    #[arg(long)]
    pub exact: bool,
}

impl SpaceArguments {
    pub fn space(self) -> Space {
        Space::standard().exact(self.exact)
    }
}
