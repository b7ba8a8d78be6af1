//! Where programs are measured: here, or on the machines of a fleet.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Args;
use tilescribe::codegen;
use tilescribe::fleet::{Coordinator, Settings};
use tilescribe::measure::{self, Measurer, Timing, cuda};
use tilescribe::space::Space;
use tilescribe::target::Target;
use tilescribe::tune::{self, Runner};

use super::arguments::{MeasuringArguments, TargetArguments, check_cores};
use super::exit::{CommandError, stop_on_interrupt};

/// Measuring elsewhere.
#[derive(Args, Clone, Debug, Default)]
pub struct FleetArguments {
    /// Measure on the machines of a fleet instead of this one: postgres://USER@HOST/DATABASE, or a file of
    /// settings
    #[arg(long, value_name = "URL|FILE")]
    pub fleet: Option<String>,
    /// With --fleet: the targets to measure on, by their fingerprints or what these begin with, separated by
    /// commas [default: that of --target, or else all that workers have registered]
    #[arg(long = "on", value_name = "FINGERPRINT", value_delimiter = ',', requires = "fleet")]
    pub on: Vec<String>,
}

/// Who measures, and what for.
pub struct Lab {
    /// What programs are written for.
    pub targets: Vec<Target>,
    /// Whether finalists find their constants far away instead of in the caches of a core.
    pub finds_constants_cold: bool,
    who: Who,
}

enum Who {
    /// This machine. Whether it can is found out when something is measured: what makes no sense is said
    /// before.
    Here {
        options: Box<Prepare>,
        measurer: Option<Box<Measurer>>,
    },
    Fleet(Arc<Coordinator>),
}

/// Finds out how this machine measures.
type Prepare = dyn Fn(&Space, &[Target]) -> Result<measure::Options> + Send;

/// At least so many searches go on at a time where a fleet measures: workers may come yet.
const LEAST_SEARCHES: usize = 4;
/// And at most: each has a thread, and its proposer's memory.
const MOST_SEARCHES: usize = 32;

impl FleetArguments {
    /// The targets that are meant; with a fleet, its coordinator under the name of the run: what a command
    /// does and where it keeps what it does.
    ///
    /// # Errors
    /// Where there is no such target, or no such fleet.
    pub fn targets(
        &self,
        target: &TargetArguments,
        space: &Space,
        run: (&str, &Path),
    ) -> Result<(Vec<Target>, Option<Arc<Coordinator>>)> {
        let Some(fleet) = &self.fleet else { return Ok((vec![target.resolve()?], None)) };
        let (command, place) = run;
        let place = std::path::absolute(place).unwrap_or_else(|_| place.to_path_buf());
        let run = format!("{command} {}:{}", host_name(), place.display());
        let settings = Settings::read(fleet)?.called(&format!("tilescribe {command}"));
        let coordinator = Coordinator::connect(&settings, &run, space, stop_on_interrupt()?)?;
        let targets = match (target.is_given(), self.on.is_empty()) {
            (true, true) => {
                let target = target.resolve()?;
                coordinator.know(&target)?;
                vec![target]
            }
            (true, false) => {
                return Err(CommandError::Usage("--on names targets of the fleet: leave --target out".into()).into());
            }
            (false, _) => chosen(coordinator.targets()?, &self.on)?,
        };
        Ok((targets, Some(Arc::new(coordinator))))
    }

    /// Where programs are measured.
    ///
    /// # Errors
    /// As [`FleetArguments::targets`].
    pub fn lab(
        &self,
        target: &TargetArguments,
        space: &Space,
        how: MeasuringArguments,
        run: (&str, &Path),
    ) -> Result<Lab> {
        let (targets, coordinator) = self.targets(target, space, run)?;
        Ok(match coordinator {
            Some(coordinator) => Lab::far(targets, coordinator),
            None => Lab::here(targets, target.device()?, how),
        })
    }
}

/// Those of a fleet's targets that are meant.
fn chosen(known: Vec<Target>, wanted: &[String]) -> Result<Vec<Target>> {
    if known.is_empty() {
        let reason = "no worker has joined the fleet yet: start `tilescribe worker --fleet ...`, or name a target with \
                      --target FILE.toml";
        return Err(CommandError::Usage(reason.into()).into());
    }
    let names = fingerprints(&known);
    for wanted in wanted {
        let found = names.iter().filter(|name| name.starts_with(wanted.as_str())).count();
        if found != 1 || wanted.is_empty() {
            let how_many = if found == 0 { "no target" } else { "several targets" };
            let reason = format!("the fleet has {how_many} `{wanted}`; it has {}", names.join(", "));
            return Err(CommandError::Usage(reason).into());
        }
    }
    let is_wanted = |name: &String| wanted.is_empty() || wanted.iter().any(|wanted| name.starts_with(wanted.as_str()));
    let targets = known.into_iter().zip(&names).filter(|(_, name)| is_wanted(name));
    Ok(targets.map(|(target, _)| target).collect())
}

impl Lab {
    /// This machine, or a GPU of it.
    pub fn here(targets: Vec<Target>, device: usize, how: MeasuringArguments) -> Lab {
        Lab::here_timed(targets, device, how, |timing| timing)
    }

    /// The same where finalists differ by little.
    pub fn here_with_long_finals(targets: Vec<Target>, device: usize, how: MeasuringArguments) -> Lab {
        Lab::here_timed(targets, device, how, Timing::with_long_finals)
    }

    /// The same for tasks of a network that reads so many bytes of constants from one run of a task to the
    /// next.
    pub fn here_for_network(targets: Vec<Target>, device: usize, how: MeasuringArguments, read_between: u64) -> Lab {
        let lab = Lab::here_timed(targets, device, how, move |timing| timing.of_network(read_between));
        Lab { finds_constants_cold: read_between > 0, ..lab }
    }

    fn here_timed(
        targets: Vec<Target>,
        device: usize,
        how: MeasuringArguments,
        change: impl Fn(Timing) -> Timing + Send + 'static,
    ) -> Lab {
        let options = Box::new(move |space: &Space, targets: &[Target]| {
            let options = measuring(space, targets, device, how)?;
            Ok(measure::Options { timing: change(options.timing), ..options })
        });
        Lab { targets, finds_constants_cold: false, who: Who::Here { options, measurer: None } }
    }

    /// Of a fleet.
    pub fn far(targets: Vec<Target>, coordinator: Arc<Coordinator>) -> Lab {
        Lab { targets, finds_constants_cold: false, who: Who::Fleet(coordinator) }
    }

    /// What tells the targets apart in the names of tasks, where there are several.
    pub fn suffix(&self, target: &Target) -> String {
        match self.targets.len() {
            1 => String::new(),
            _ => format!(" @ {:.8}", target.fingerprint()),
        }
    }

    /// Makes sure that something can be measured, before anything is written.
    ///
    /// # Errors
    /// Where this machine cannot measure for a target.
    pub fn prepare(&mut self, space: &Space) -> Result<()> {
        self.runners(space).map(|_| ())
    }

    /// For one search that keeps all busy.
    ///
    /// # Errors
    /// Where this machine cannot measure for a target.
    pub fn runner(&mut self, space: &Space) -> Result<Box<dyn Runner + Send + '_>> {
        Ok(match &mut self.who {
            Who::Here { options, measurer } => Box::new(local(space, &self.targets, options, measurer)?),
            Who::Fleet(coordinator) => Box::new(tune::Fleet::new(coordinator.session(), &self.targets, true)),
        })
    }

    /// For as many searches as keep all busy together.
    ///
    /// # Errors
    /// Where this machine cannot measure for a target.
    pub fn runners(&mut self, space: &Space) -> Result<Vec<Box<dyn Runner + Send + '_>>> {
        Ok(match &mut self.who {
            Who::Here { options, measurer } => vec![Box::new(local(space, &self.targets, options, measurer)?)],
            Who::Fleet(coordinator) => {
                let targets = &self.targets;
                let workers = coordinator.workers(&fingerprints(targets));
                let of_many =
                    |_| -> Box<dyn Runner + Send> { Box::new(tune::Fleet::new(coordinator.session(), targets, false)) };
                (0..(2 * workers).clamp(LEAST_SEARCHES, MOST_SEARCHES)).map(of_many).collect()
            }
        })
    }

    /// Where the machines are, in words for a progress bar; nothing where it is this one.
    pub fn whereabouts(&self) -> impl Fn() -> String + Send + Sync + use<> {
        let coordinator = match &self.who {
            Who::Here { .. } => None,
            Who::Fleet(coordinator) => Some((Arc::clone(coordinator), fingerprints(&self.targets))),
        };
        move || match &coordinator {
            None => String::new(),
            Some((coordinator, targets)) => match coordinator.workers(targets) {
                0 => ", no worker is there".into(),
                1 => ", 1 worker".into(),
                workers => format!(", {workers} workers"),
            },
        }
    }
}

fn fingerprints(targets: &[Target]) -> Vec<String> {
    targets.iter().map(Target::fingerprint).collect()
}

/// This machine's measurer, made where it is first needed.
fn local<'a>(
    space: &Space,
    targets: &[Target],
    options: &Prepare,
    measurer: &'a mut Option<Box<Measurer>>,
) -> Result<tune::Local<'a>> {
    let made = match measurer.take() {
        Some(made) => made,
        None => Box::new(Measurer::new(options(space, targets)?)),
    };
    Ok(tune::Local::new(measurer.insert(made)))
}

/// How a measurer measures whose workers are this program.
///
/// # Errors
/// Where this machine cannot run kernels for a target.
pub fn measuring(
    space: &Space,
    targets: &[Target],
    device: usize,
    how: MeasuringArguments,
) -> Result<measure::Options> {
    let mut options = measure::Options::for_this_executable(space).context("cannot tell which program this is")?;
    options.limits.memory_bytes = how.measuring_memory;
    options.stop = Some(Arc::clone(stop_on_interrupt()?));
    for target in targets {
        match target {
            Target::Cpu(cpu) => {
                codegen::check_runs_here(cpu)?;
                check_cores(cpu.cores)?;
            }
            Target::Gpu(gpu) => {
                cuda::check_runs_on(gpu, device)?;
                options.device = Some(device);
            }
        }
    }
    Ok(options)
}

/// What people call this machine.
pub fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "unknown".into(),
        name => name.chars().take(100).collect(),
    }
}
