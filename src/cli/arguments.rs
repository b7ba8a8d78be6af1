//! Arguments that several commands share.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;

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
    /// `host`, or a TOML file that describes a machine (`tilescribe doctor` prints this one's)
    #[arg(long, default_value = "host", value_name = "host|FILE.toml")]
    pub target: PathBuf,
    /// Cores that kernels may use [default: those of the target]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub threads: Option<u32>,
}
