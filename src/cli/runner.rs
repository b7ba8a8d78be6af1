//! Runs of a network that tell what its threads do, each from the same inputs and states.

use anyhow::Result;
use tilescribe::artifact::{Bound, Manifest, Model, Trace};

use super::bench::{Before, room_for};
use super::{extents, inputs};

/// A model, with inputs made up.
pub struct Runner<'m> {
    bound: Bound<'m>,
    before: Before<'m>,
    manifest: &'m Manifest,
}

impl<'m> Runner<'m> {
    pub fn new(model: &'m Model) -> Result<Runner<'m>> {
        let manifest = model.manifest();
        let symbols = extents::values(manifest, None, &vec![None; manifest.inputs.len()], None)?;
        let given = inputs::complete(manifest, manifest.inputs.iter().map(|_| None), &symbols, 0)?;
        let before = Before::of(model, &symbols)?;
        before.restore()?;
        Ok(Runner { bound: model.bind(&given)?, before, manifest })
    }

    /// One run on so many threads, calls one after the other.
    pub fn in_turn(&mut self, threads: u32) -> Result<Option<Trace>> {
        let trace = self.bound.traced_in_turn(room_for(self.manifest, threads as usize))?;
        self.before.restore()?;
        Ok(trace)
    }

    /// One run, calls at the same time where they may.
    pub fn at_once(&mut self, threads: u32) -> Result<Option<Trace>> {
        let trace = self.bound.traced(room_for(self.manifest, threads as usize))?;
        self.before.restore()?;
        Ok(trace)
    }
}
