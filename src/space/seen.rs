//! The workload that rules see.

use std::ops::Deref;
use std::sync::Arc;

use crate::workload::{Rewritten, Workload};

/// A task's workload, or what steps made of it.
#[derive(Clone, Debug)]
pub enum Seen<'a> {
    Given(&'a Workload),
    /// By an algorithm.
    Rewritten(Arc<Rewritten>),
    /// With a reduction in parts.
    Split(Arc<Workload>),
}

impl Deref for Seen<'_> {
    type Target = Workload;

    fn deref(&self) -> &Workload {
        match self {
            Seen::Given(workload) => workload,
            Seen::Rewritten(rewritten) => &rewritten.workload,
            Seen::Split(workload) => workload,
        }
    }
}
