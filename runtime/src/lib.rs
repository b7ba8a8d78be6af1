//! Runs what Tilescribe compiled: reads an artifact's manifest, loads its library, and calls it. Needs no
//! LLVM.
//!
//! The compiler builds on the same types: an artifact means what it meant when it was written.
//!
//! Modules in the order in which data flows:

pub mod error;
pub mod files;
pub mod dtype;
pub mod precision;
pub mod target;
pub mod formula;
pub mod port;
pub mod manifest;
mod library;
pub mod model;

pub use dtype::DType;
pub use error::RuntimeError;
pub use library::{Activity, Event};
pub use manifest::Manifest;
pub use model::{Artifact, Model, Resources, Trace};
pub use port::{Growth, Port, RunTimeExtent, StatePort};
pub use precision::Precision;
