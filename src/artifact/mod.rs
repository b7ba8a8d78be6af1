//! The deployable network: a folder that runs without LLVM, Rust or Tilescribe.
//!
//! ```text
//! net/  libnet.so             kernels, the order of their calls, the runtime
//!       net.h                 the C functions: create, run, destroy
//!       weights.safetensors   constants, packed as the kernels read them
//!       manifest.json         what it is, what it needs, and the hashes of the other files
//! ```
//!
//! [`compile`] writes such a folder, in full or not at all; [`Model`] loads one, as any C program would.
//! A processor that lacks what the kernels need gets an error before any of them runs.

mod bind;
mod code;
mod compile;
mod error;
mod extents;
mod formula;
mod header;
mod link;
mod live;
mod margins;
mod memory;
mod model;
mod planned;
mod ports;
mod profile;
mod schedule;
mod tables;
mod weights;

pub use code::{check_network, check_targets};
pub use compile::{Judge, Options, Step, called, check_output, compile, compile_judged};
pub use error::ArtifactError;
pub use formula::text as formula_text;
pub use link::DRIVERS;
pub use memory::{Block, MemoryPlan, plan};
pub use model::{Bound, Model};
pub use planned::decisions;
pub use profile::{Profile, TaskTime, trace_events};
pub use schedule::{Schedule, Version};
pub use tilescribe_runtime::formula::{CompiledSymbol, Computed, Formula, Term};
pub use tilescribe_runtime::manifest::{
    CompiledCall, CompiledDecision, CompiledPlan, CompiledSchedule, CompiledTask, CompiledVersion, FORMAT, FileDigest,
    Memory, output_file,
};
pub use tilescribe_runtime::{
    Activity, Growth, Manifest, Port, Resources, RunTimeExtent, RuntimeError, StatePort, Trace,
};
