//! `tilescribe worker`

use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use tilescribe::measure::worker_main;

/// Measure candidates for another Tilescribe, which starts this by itself
#[derive(Args)]
pub struct Worker {}

impl Worker {
    pub fn execute(self, _: &mut dyn Write) -> Result<()> {
        let code = worker_main();
        if code == ExitCode::SUCCESS { Ok(()) } else { anyhow::bail!("the worker cannot go on") }
    }
}
