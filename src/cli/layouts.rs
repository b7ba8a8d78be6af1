//! How a network is cut into tasks: as a plan in a file says, or all layouts alike; and what was decided.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use clap::{Args, ValueEnum};
use tilescribe::artifact::{self, CompiledDecision, Manifest};
use tilescribe::graph::{self, Network, Plan, Prefer, Program};
use tilescribe::space::Tape;

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
    /// `compile` tries both by default, and takes what is faster
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
    pub fn load(&self, model: &Path, network: &NetworkArguments) -> Result<Network> {
        let Some(path) = &self.plan else { return self.layouts.load(model, network) };
        let bad = |error: &dyn std::fmt::Display| anyhow!(CommandError::Usage(format!("{}: {error}", path.display())));
        let plan: Plan = read_trace(path)?.parse().map_err(|error| bad(&error))?;
        let program = network.program(model)?;
        let cut = graph::partition_as(&program, &plan).map_err(|error| bad(&error))?;
        network.tuned_at(cut)
    }

    /// What is worth a comparison: the network that is asked for, or else that of the default plan and, where
    /// it is another one, that with the channels last.
    ///
    /// # Errors
    /// As [`PlanArguments::load`].
    pub fn alternatives(&self, model: &Path, network: &NetworkArguments) -> Result<Vec<Network>> {
        if self.plan.is_some() || self.layouts.layouts.is_some() {
            return Ok(vec![self.load(model, network)?]);
        }
        let program = network.program(model)?;
        let cut = |layouts| -> Result<Network> {
            let cut = LayoutsArgument { layouts: Some(layouts) }.cut(&program);
            network.tuned_at(cut.with_context(|| model.display().to_string())?)
        };
        let (kept, last) = (cut(Layouts::Kept)?, cut(Layouts::Last)?);
        let differs = !last.plan().is_default();
        Ok(std::iter::once(kept).chain(differs.then_some(last)).collect())
    }
}

impl LayoutsArgument {
    /// Reads a network and cuts it with all layouts alike.
    ///
    /// # Errors
    /// Where the file is no network that Tilescribe supports.
    pub fn load(self, model: &Path, network: &NetworkArguments) -> Result<Network> {
        let program = network.program(model)?;
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
pub fn plan(what: &str, network: &NetworkArguments, out: &mut dyn Write) -> Result<()> {
    let (decisions, is_default) = match Path::new(what).is_dir() {
        true => {
            network.check([])?;
            let plan = Manifest::read(what.as_ref())?.plan;
            (plan.iter().flat_map(|plan| plan.decisions.clone()).collect(), plan.is_none())
        }
        false if what.ends_with(".onnx") => {
            (artifact::decisions(&graph::partition(&network.program(what.as_ref())?)?), false)
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
