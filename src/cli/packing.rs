//! Writing artifacts.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::Ordering;

use anyhow::Result;
use tilescribe::artifact::{self, Manifest, Options, Step, Version};
use tilescribe::graph::Network;

use super::progress;
use super::search::stop_on_interrupt;

/// Compiles with a bar for those who wait.
pub fn write_artifact(network: &Network, versions: &[Version<'_>], options: &Options<'_>) -> Result<Manifest> {
    let all = |_: &Path, manifest: &Manifest| Ok(vec![true; manifest.forks.len()]);
    write_judged(network, versions, options, all)
}

/// The same, where somebody decides about the network's forks.
pub fn write_judged(
    network: &Network,
    versions: &[Version<'_>],
    options: &Options<'_>,
    mut judge: impl FnMut(&Path, &Manifest) -> Result<Vec<bool>>,
) -> Result<Manifest> {
    let (bar, stopped) = (progress::bar(0, "packing"), stop_on_interrupt()?);
    let mut failed = None;
    let mut judge = |folder: &Path, manifest: &Manifest| match judge(folder, manifest) {
        Ok(stays) => ControlFlow::Continue(stays),
        Err(error) => {
            failed = Some(error);
            ControlFlow::Break(())
        }
    };
    let mut progress = |step| {
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
    };
    let manifest = artifact::compile_judged(network, versions, options, &mut progress, &mut judge);
    bar.finish_and_clear();
    match failed {
        Some(error) => Err(error),
        None => Ok(manifest?),
    }
}
