//! Arguments that several commands share.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, anyhow};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use tilescribe::codegen;
use tilescribe::files;
use tilescribe::graph::{self, Dim, ImportError, ImportOptions, Network, Precision, Program};
use tilescribe::measure::cuda;
use tilescribe::record::{self, Store};
use tilescribe::space::{Restriction, Space};
use tilescribe::target::{Cpu, Target, Task};

use super::exit::CommandError;
use super::extents::{self, Dimension, Point};
use super::precision::products;
use super::states::{self, StatePattern};

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

/// A number, or a Boolean as one.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Scalar(pub f64);

impl FromStr for Scalar {
    type Err = String;

    fn from_str(text: &str) -> Result<Scalar, String> {
        match text {
            "true" => Ok(Scalar(1.0)),
            "false" => Ok(Scalar(0.0)),
            number => number.parse().map(Scalar).map_err(|_| format!("`{text}` is neither a number nor true or false")),
        }
    }
}

/// How to read a network.
#[derive(Args, Clone, Debug)]
pub struct NetworkArguments {
    /// Extent of a symbolic dimension of a network; or the range of its extents, both ends included; or
    /// extents to tune for, which range from the least to the greatest of them. Without it a range is assumed
    #[arg(long = "dim", value_name = "NAME=N|LOW..HIGH|A,B,C")]
    pub dimensions: Vec<Dimension>,
    /// Extents to tune for, together, where they are known only at run time; can be given several times.
    /// Without them a few are chosen between the ends of the ranges
    #[arg(long = "tune-at", value_name = "NAME=N,...")]
    pub points: Vec<Point>,
    /// An output that the next run has as this input, kept by the compiled network: `past=present` (it grows
    /// where the output is longer along an axis), or several at once with `*`: `past_*=present_*`
    #[arg(long = "state", value_name = "INPUT=OUTPUT")]
    pub states: Vec<StatePattern>,
    /// An input that is this number in every run, or `true` or `false`: it becomes a constant, and a branch
    /// that it decides is no branch any more: `use_cache_branch=true`
    #[arg(long = "constant", value_name = "INPUT=NUMBER")]
    pub constants: Vec<Assignment<Scalar>>,
    /// What products by weights, and those of attention, are computed in: `bf16` rounds what they read to 8
    /// bits of significand, sums in f32, and is faster where `doctor` measures more in bf16 than in f32
    #[arg(long, value_name = "f32|bf16", default_value = "f32")]
    pub precision: Precision,
    /// Memory for the constants that are computed as a network is read, as 4GiB
    #[arg(long, value_name = "SIZE", default_value = "2GiB", value_parser = size)]
    pub constant_memory: u64,
}

/// How to measure.
#[derive(Args, Clone, Copy, Debug)]
pub struct MeasuringArguments {
    /// Memory for measuring a program and for its reference result, as 64GiB
    #[arg(long, value_name = "SIZE", default_value = "16GiB", value_parser = size)]
    pub measuring_memory: u64,
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
    /// Reads a network for some machines, and cuts it into tasks.
    ///
    /// # Errors
    /// Where the file is no network that Tilescribe supports, or lacks a dimension that is set.
    pub fn load(&self, model: &Path, targets: &[Target]) -> Result<Network> {
        self.check_names(&[model])?;
        self.load_among(model, targets)
    }

    /// Reads one of several networks: dimensions that are set may be another one's.
    ///
    /// # Errors
    /// Where the file is no network that Tilescribe supports.
    pub fn load_among(&self, model: &Path, targets: &[Target]) -> Result<Network> {
        self.tuned_at(graph::partition(&self.program_among(model, targets)?)?)
    }

    /// Reads a network, to cut it otherwise.
    ///
    /// # Errors
    /// As [`NetworkArguments::load`].
    pub fn program(&self, model: &Path, targets: &[Target]) -> Result<Program> {
        self.check_names(&[model])?;
        self.program_among(model, targets)
    }

    /// A network that was cut, with the points that its tasks are tuned at.
    ///
    /// # Errors
    /// Where there are no such points.
    pub fn tuned_at(&self, mut network: Network) -> Result<Network> {
        let points = extents::points(&network.symbols, &self.points, &self.dimensions)?;
        network.tune_at(&points);
        network.specialise();
        Ok(network)
    }

    fn program_among(&self, model: &Path, targets: &[Target]) -> Result<Program> {
        let dims: BTreeMap<String, Dim> =
            self.dimensions.iter().map(|given| (given.name.clone(), given.dim.clone())).collect();
        let constant_bytes = self.constant_memory;
        let constants: BTreeMap<String, f64> =
            self.constants.iter().map(|given| (given.name.clone(), given.value.0)).collect();
        let import = |dims| graph::import(model, &ImportOptions { dims, constants: constants.clone(), constant_bytes });
        let program = match import(dims.clone()) {
            Err(ImportError::UnknownDims { unknown, .. }) => {
                import(dims.into_iter().filter(|(name, _)| !unknown.contains(name)).collect())
            }
            other => other,
        };
        let mut program = program.with_context(|| model.display().to_string())?;
        program.shorten(self.precision, products(targets));
        program
            .carry(&states::pairs(&program, &self.states)?)
            .map_err(|error| CommandError::Usage(error.to_string()))?;
        Ok(program)
    }

    /// Refuses dimensions that none of the networks has that the arguments name, be it for a task, and a
    /// precision where there is none.
    ///
    /// # Errors
    /// Where there is such a dimension, or no network at all that it would be set in.
    pub fn check<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Result<()> {
        let models: Vec<&Path> = arguments.into_iter().filter_map(network_of).collect();
        if models.is_empty() && !self.precision.is_f32() {
            let reason = format!("--precision {} is of a network, and none is read", self.precision.name());
            return Err(CommandError::Usage(reason).into());
        }
        if let Some(first) = self.constants.first().filter(|_| models.is_empty()) {
            let reason = format!("--constant {}=... is an input of a network, and none is read", first.name);
            return Err(CommandError::Usage(reason).into());
        }
        self.check_names(&models)
    }

    fn check_names(&self, models: &[&Path]) -> Result<()> {
        let mut constant = BTreeSet::new();
        if let Some(again) = self.constants.iter().find(|given| !constant.insert(&given.name)) {
            return Err(CommandError::Usage(format!("input `{}` is set twice", again.name)).into());
        }
        let Some(first) = self.dimensions.first() else { return Ok(()) };
        if models.is_empty() {
            let reason = format!("--dim {}=... sets a dimension of a network, and none is read", first.name);
            return Err(CommandError::Usage(reason).into());
        }
        let mut known = BTreeSet::new();
        for model in models {
            known.extend(graph::open_dims(model).with_context(|| model.display().to_string())?);
        }
        let mut set = BTreeSet::new();
        for Dimension { name, .. } in &self.dimensions {
            let reason = match (known.is_empty(), known.contains(name), set.insert(name)) {
                (_, true, true) => continue,
                (_, true, false) => format!("dimension `{name}` is set twice"),
                (true, ..) => format!("there is no dimension `{name}`: all extents are known"),
                (false, ..) => {
                    let names: Vec<String> = known.iter().map(|name| format!("`{name}`")).collect();
                    format!("there is no dimension `{name}`; those without an extent are {}", names.join(", "))
                }
            };
            return Err(CommandError::Usage(reason).into());
        }
        Ok(())
    }
}

/// The network in `MODEL.onnx` or `MODEL.onnx#TASK`.
fn network_of(argument: &str) -> Option<&Path> {
    let model = argument.rsplit_once('#').map_or(argument, |(model, _)| model);
    model.ends_with(".onnx").then_some(Path::new(model))
}

/// Refuses to measure on more cores than this process may use: they would wait for each other.
///
/// # Errors
/// [`CommandError::Usage`] with how many there are.
pub fn check_cores(wanted: u32) -> Result<()> {
    let there = codegen::host()?.cores;
    if wanted <= there {
        return Ok(());
    }
    let reason = format!(
        "{wanted} cores cannot be measured with: this process may use {there}. Give --threads {there}, or fewer"
    );
    Err(CommandError::Usage(reason).into())
}

impl TargetArguments {
    /// Whether a machine is named, and not this one by default.
    pub fn is_given(&self) -> bool {
        self.target != Path::new("host") || self.threads.is_some()
    }

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
    let text = files::read_text(path, MAX_TARGET_BYTES);
    let text = text.with_context(|| format!("cannot read the target {}", path.display()))?;
    let read = || -> Result<Target> {
        let target = Target::from_toml(&text)?;
        if let Target::Cpu(cpu) = &target {
            codegen::check(cpu)?;
        }
        Ok(target)
    };
    read().with_context(|| path.display().to_string())
}

/// No description of a machine is larger.
const MAX_TARGET_BYTES: u64 = 1 << 20;
/// No task is larger as text.
const MAX_TASK_BYTES: u64 = 64 << 20;
/// No list of decisions is larger.
const MAX_TRACE_BYTES: u64 = 16 << 20;

/// Reads a list of decisions, as text.
///
/// # Errors
/// Where the file cannot be read.
pub fn read_trace(path: &Path) -> Result<String> {
    files::read_text(path, MAX_TRACE_BYTES).with_context(|| format!("cannot read {}", path.display()))
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

    /// Opens the store to read from it; `None` where there is none.
    ///
    /// # Errors
    /// As [`StoreArguments::open`].
    pub fn open_if_there(&self) -> Result<Option<Store>> {
        let path = self.path()?;
        // a link that leads nowhere is nothing that is there
        if path.try_exists().with_context(|| format!("cannot read {}", path.display()))? {
            return Ok(Some(Store::open_to_read(&path)?));
        }
        Ok(None)
    }

    /// Opens the store to read from it; `None` where there is none and none was named.
    ///
    /// # Errors
    /// As [`StoreArguments::open`], and where the file that was named does not exist.
    pub fn open_existing(&self) -> Result<Option<Store>> {
        match (self.open_if_there()?, &self.store) {
            (None, Some(path)) => Err(CommandError::Usage(format!("there is no store {}", path.display())).into()),
            (store, _) => Ok(store),
        }
    }
}

/// Reads a task: a file with the text of a workload, in which lines that start with `#` are comments; or
/// `MODEL.onnx#TASK`, where TASK is a number or a name that `tilescribe tasks` prints, and may be left out
/// where the network is a single task.
///
/// # Errors
/// Where there is no such task.
pub fn read_task(task: &str, target: Target, dimensions: &NetworkArguments) -> Result<(String, Task)> {
    if let Some((model, wanted)) = task.rsplit_once('#') {
        let network = dimensions.load_among(Path::new(model), std::slice::from_ref(&target))?;
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
        let mut tasks = dimensions.load_among(path, std::slice::from_ref(&target))?.tasks;
        return match (tasks.pop(), tasks.len()) {
            (Some(only), 0) => Ok((only.name, Task { workload: only.workload, target })),
            (_, others) => Err(anyhow!(CommandError::Usage(format!(
                "{task} has {} tasks: name one of them as {task}#TASK; `tilescribe tasks {task}` lists them",
                others + 1
            )))),
        };
    }
    let text = files::read_text(path, MAX_TASK_BYTES).with_context(|| format!("cannot read the task {task}"))?;
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
    /// Offer only what another system's space has: bolt, register tiles that fill the machine's registers;
    /// hidet, sizes that do not follow from the extents
    #[arg(long = "space", value_name = "SPACE", value_parser = restriction_parser())]
    pub restriction: Option<Restriction>,
}

fn restriction_parser() -> impl TypedValueParser<Value = Restriction> {
    let parse = |name: String| Restriction::named(&name).ok_or("no such space");
    PossibleValuesParser::new(Restriction::ALL.map(Restriction::name)).try_map(parse)
}

impl SpaceArguments {
    pub fn space(self) -> Space {
        Space::standard().exact(self.exact).restricted(self.restriction)
    }
}

/// Reads a number of bytes, with its unit.
pub fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match &text[digits.len()..] {
        "" | "B" => 0,
        "KiB" | "K" => 10,
        "MiB" | "M" => 20,
        "GiB" | "G" => 30,
        "TiB" | "T" => 40,
        unit => return Err(format!("there is no unit `{unit}`; those known are KiB, MiB, GiB and TiB")),
    };
    let count: u64 = digits.parse().map_err(|_| "expected a number and its unit, as 4GiB".to_string())?;
    count.checked_mul(1 << shift).ok_or_else(|| "more than there can be".to_string())
}

/// A number of seconds that makes sense.
pub fn seconds(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "not a number".to_string())?;
    if (0.0..=1e7).contains(&value) { Ok(value) } else { Err("between 0 and 10,000,000".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        let read = ["0", "17B", "3KiB", "3K", "2GiB", "1TiB"].map(|text| size(text).unwrap());
        assert_eq!(read, [0, 17, 3 << 10, 3 << 10, 2 << 30, 1 << 40]);
        for wrong in ["", "GiB", "1.5GiB", "-1", "1 GB", "99999999999TiB", "é"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
