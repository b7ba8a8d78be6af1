//! Writing artifacts.

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use anyhow::Result;
use tilescribe::artifact::{self, Manifest, Options, Step, Version};
use tilescribe::graph::Network;

use super::progress;
use super::search::stop_on_interrupt;

/// Compiles with a bar for those who wait.
pub fn write_artifact(network: &Network, versions: &[Version<'_>], options: &Options<'_>) -> Result<Manifest> {
    let (bar, stopped) = (progress::bar(0, "packing"), stop_on_interrupt()?);
    let manifest = artifact::compile(network, versions, options, &mut |step| {
        match step {
            Step::Weights { done, of } => {
                bar.set_length(of as u64);
                bar.set_position(done as u64);
            }
            Step::Kernels => bar.set_prefix("generating code"),
            Step::Linking => bar.set_prefix("linking"),
            Step::Hashing => bar.set_prefix("hashing"),
        }
        if stopped.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    bar.finish_and_clear();
    Ok(manifest?)
}
