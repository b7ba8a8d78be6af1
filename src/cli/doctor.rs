//! `tilescribe doctor`

use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::Result;
use clap::Args;
use tilescribe::codegen;
use tilescribe::measure::cuda;
use tilescribe::space::Space;

use super::arguments::StoreArguments;
use super::exit::CommandError;

/// Say what this machine offers and lacks
///
/// Prints this machine as a target file, which `--target` takes elsewhere.
#[derive(Args)]
pub struct Doctor {
    #[command(flatten)]
    store: StoreArguments,
}

impl Doctor {
    pub fn execute(self, out: &mut dyn Write) -> Result<()> {
        writeln!(out, "# tilescribe {}, search space {}", env!("CARGO_PKG_VERSION"), Space::standard().version())?;
        writeln!(out, "# the machine:")?;
        writeln!(out, "{}", codegen::host()?.to_toml().trim_end())?;
        let mut lacking = Vec::new();
        let found = Command::new("cc").arg("--version").stdin(Stdio::null()).output();
        match found.ok().filter(|answer| answer.status.success()) {
            Some(answer) => {
                let text = String::from_utf8_lossy(&answer.stdout);
                writeln!(out, "# cc: {}", text.lines().next().unwrap_or_default())?;
            }
            None => {
                writeln!(out, "# cc: missing; it links the shared object of a compiled network")?;
                lacking.push("cc is missing (Debian: apt-get install gcc libc6-dev)".to_string());
            }
        }
        // no lack: everything but the CUDA back end works without
        match cuda::devices() {
            Ok(names) => names.iter().enumerate().try_for_each(|(at, name)| writeln!(out, "# cuda:{at}: {name}"))?,
            Err(reason) => writeln!(out, "# cuda: {reason}")?,
        }
        let path = self.store.path()?;
        match self.store.open_existing() {
            Ok(Some(store)) => {
                let records: u64 = store.list()?.iter().map(|row| row.records).sum();
                writeln!(out, "# store {}: {records} records", path.display())?;
            }
            Ok(None) => writeln!(out, "# store {}: none yet", path.display())?,
            Err(error) => {
                writeln!(out, "# store {}: {error}", path.display())?;
                lacking.push(error.to_string());
            }
        }
        if lacking.is_empty() { Ok(()) } else { Err(CommandError::Environment(lacking.join("; ")).into()) }
    }
}
