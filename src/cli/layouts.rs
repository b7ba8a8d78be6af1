//! How a network is cut into tasks: as a plan in a file says, or all layouts alike; and what was decided.

use std::fmt::Display;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use tilescribe::artifact::{self, CompiledDecision, Manifest};
use tilescribe::graph::{self, Network, Plan, PlanKind, Prefer, Program};
use tilescribe::planning::Bounds;
use tilescribe::space::{Policy, Tape};
use tilescribe::target::Target;

use super::arguments::{NetworkArguments, read_trace};
use super::exit::CommandError;

/// How to cut a network into tasks.
#[derive(Args, Clone, Debug, Default)]
pub struct PlanArguments {
    /// File of decisions about the network as a whole, such as `layout 3 = last`; `show --plan` lists them.
    /// What it does not mention has its default
    #[arg(long, value_name = "FILE", conflicts_with = "layouts")]
    plan: Option<PathBuf>,
    #[command(flatten)]
    layouts: LayoutsArgument,
}

/// One answer for all layouts.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct LayoutsArgument {
    /// How images lie between tasks: `kept` as the network has them, or `last` with the channels last.
    /// `compile` searches what is faster by default
    #[arg(long, value_name = "kept|last")]
    layouts: Option<Layouts>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Layouts {
    Kept,
    Last,
}

impl PlanArguments {
    /// Reads a network and cuts it.
    ///
    /// # Errors
    /// Where the file is no network that Tilescribe supports, or the plan is not one of it.
    pub fn load(&self, model: &Path, network: &NetworkArguments, targets: &[Target]) -> Result<Network> {
        let Some(path) = &self.plan else { return self.layouts.load(model, network, targets) };
        PlannedProgram { model, network, program: network.program(model, targets)? }.planned(path)
    }
}

/// Which plans are compared.
#[derive(Args, Clone, Debug, Default)]
pub struct PlansArguments {
    #[command(flatten)]
    plan: PlanArguments,
    /// Kinds of decisions that are not searched but have their defaults
    #[arg(long, value_name = "KIND,...", value_delimiter = ',', value_parser = kind_parser(), conflicts_with = "plan")]
    without: Vec<PlanKind>,
}

/// The kinds that `--layouts` decides.
const OF_LAYOUTS: [PlanKind; 2] = [PlanKind::Layout, PlanKind::Concatenation];

/// Reads the name of a kind of decisions.
fn kind_parser() -> impl TypedValueParser<Value = PlanKind> {
    let values = PossibleValuesParser::new(PlanKind::ALL.map(PlanKind::name));
    values.try_map(|name| PlanKind::named(&name).ok_or("no such kind"))
}

/// The plans that are asked for: that of a network, or all within bounds.
pub enum Plans {
    One(Network),
    Within(Bounds),
}

impl PlansArguments {
    /// Reads a network, to cut it by several plans; and says by which.
    ///
    /// # Errors
    /// Where a file is no network that Tilescribe supports, or no plan.
    pub fn read<'a>(
        &self,
        model: &'a Path,
        network: &'a NetworkArguments,
        targets: &[Target],
    ) -> Result<(PlannedProgram<'a>, Plans)> {
        let program = PlannedProgram { model, network, program: network.program(model, targets)? };
        if let Some(path) = &self.plan.plan {
            let network = program.planned(path)?;
            return Ok((program, Plans::One(network)));
        }
        let decided = OF_LAYOUTS.iter().find(|kind| self.without.contains(kind));
        if let (Some(Layouts::Last), Some(kind)) = (self.plan.layouts.layouts, decided) {
            let kind = kind.name();
            let reason = format!("--layouts last decides what --without {kind} leaves at its default");
            return Err(CommandError::Usage(reason).into());
        }
        let mut bounds = Bounds::default();
        self.without.iter().for_each(|kind| bounds.fix(*kind, None));
        if let Some(layouts) = self.plan.layouts.layouts {
            let value = || matches!(layouts, Layouts::Last).then(|| "last".into());
            OF_LAYOUTS.into_iter().for_each(|kind| bounds.fix(kind, value()));
        }
        Ok((program, Plans::Within(bounds)))
    }
}

/// A network before it is cut.
pub struct PlannedProgram<'a> {
    model: &'a Path,
    network: &'a NetworkArguments,
    program: Program,
}

impl PlannedProgram<'_> {
    /// The network as a plan cuts it.
    ///
    /// # Errors
    /// Where the plan is not one of it.
    pub fn cut(&self, plan: &Plan) -> Result<Network> {
        self.network.tuned_at(graph::partition_as(&self.program, plan).context(self.name())?)
    }

    /// The network as the plan in a file cuts it.
    ///
    /// # Errors
    /// Where the file is no plan, or not one of it.
    fn planned(&self, path: &Path) -> Result<Network> {
        let bad = |error: &dyn Display| CommandError::Usage(format!("{}: {error}", path.display()));
        let plan: Plan = read_trace(path)?.parse().map_err(|error| bad(&error))?;
        self.network.tuned_at(graph::partition_as(&self.program, &plan).map_err(|error| bad(&error))?)
    }

    /// The network as a policy cuts it.
    ///
    /// # Errors
    /// Where the program is not well formed.
    pub fn driven(&self, policy: &mut dyn Policy) -> Result<Network> {
        let start = Instant::now();
        let network = graph::partition_with(&self.program, Tape::drive(policy)).context(self.name())?;
        let network = self.network.tuned_at(network)?;
        tracing::debug!("cut into {} tasks in {:?}", network.tasks.len(), start.elapsed());
        Ok(network)
    }

    /// What names it in a store: [`Network::hash`] of the network that is cut by default.
    ///
    /// # Errors
    /// As [`PlannedProgram::driven`].
    pub fn hash(&self) -> Result<String> {
        Ok(graph::partition(&self.program).context(self.name())?.hash())
    }

    fn name(&self) -> String {
        self.model.display().to_string()
    }
}

impl LayoutsArgument {
    /// Reads a network and cuts it with all layouts alike.
    ///
    /// # Errors
    /// Where the file is no network that Tilescribe supports.
    pub fn load(self, model: &Path, network: &NetworkArguments, targets: &[Target]) -> Result<Network> {
        let program = network.program(model, targets)?;
        network.tuned_at(self.cut(&program).with_context(|| model.display().to_string())?)
    }

    fn cut(self, program: &Program) -> Result<Network> {
        Ok(match self.layouts {
            None | Some(Layouts::Kept) => graph::partition(program)?,
            Some(Layouts::Last) => graph::partition_with(program, Tape::drive(&mut Prefer("last".into())))?,
        })
    }
}

/// Prints what was decided about a network as a whole: of a folder, or by default of an ONNX file.
///
/// # Errors
/// Where it is neither.
pub fn plan(what: &str, network: &NetworkArguments, targets: &[Target], out: &mut dyn Write) -> Result<()> {
    let (decisions, is_default) = match Path::new(what).is_dir() {
        true => {
            network.check([])?;
            let plan = Manifest::read(what.as_ref())?.plan;
            (plan.iter().flat_map(|plan| plan.decisions.clone()).collect(), plan.is_none())
        }
        false if what.ends_with(".onnx") => {
            (artifact::decisions(&graph::partition(&network.program(what.as_ref(), targets)?)?), false)
        }
        false => {
            let reason =
                format!("--plan is of a network: a folder that `compile` wrote, or an ONNX file, not `{what}`");
            return Err(CommandError::Usage(reason).into());
        }
    };
    if is_default {
        writeln!(out, "all decisions have their defaults")?;
    } else if decisions.is_empty() {
        writeln!(out, "nothing is to be decided")?;
    }
    for CompiledDecision { site, candidates, taken, concerns } in decisions {
        writeln!(out, "{site} = {taken} (of {})", candidates.join(", "))?;
        concerns.iter().try_for_each(|concern| writeln!(out, "    {concern}"))?;
    }
    Ok(())
}
