//! Predicting before measuring: which of many finished programs of a task are worth a measurement.
//!
//! [`features()`] describes a program by numbers, a [`crate::model::Estimator`] orders programs by them, and
//! a [`Ranking`] keeps the estimator of a search up to date with what was measured. [`estimator_groups`]
//! makes of records what an estimator is trained on.

mod features;
mod gpu_features;
mod groups;
mod ranking;
mod table;

use thiserror::Error;

use crate::model::ModelError;
use crate::space::{Defect, Stale};

pub use features::{
    FEATURES, FEATURES_VERSION, GPU_FEATURES, GPU_FEATURES_VERSION, features, features_of, named_features,
};
pub use groups::estimator_groups;
pub use ranking::{Described, Ranking, estimator_of};
pub use table::Feature;

use groups::group;

/// Why programs cannot be ranked.
#[derive(Debug, Error)]
pub enum RankError {
    /// Our bug: the space and its own decisions do not fit together.
    #[error("the space contradicts itself: {0}")]
    Space(#[from] Stale),
    /// A rule's bug.
    #[error("a rule is at fault: {0}")]
    Defect(#[from] Defect),
    /// Limit, or our bug: nothing can be learned from what was measured.
    #[error("the estimate cannot be learned: {0}")]
    Estimator(#[from] ModelError),
}
