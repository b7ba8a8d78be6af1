//! How a network is cut into tasks: as a plan in a file says, or all layouts alike.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use clap::{Args, ValueEnum};
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
    /// How images lie between tasks: `kept` as the network has them, or `last` with the channels last
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
