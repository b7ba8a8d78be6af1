//! From a trace to an outcome: compiled, checked and timed in a child process.
//!
//! ```text
//! Measurer (parent)                          worker (child: `tilescribe worker`)
//!   measure(task, trace)  -- request -->       trace -> space -> nest -> verifier -> machine code
//!                                              gate: run it on guarded buffers, compare with the oracle's outputs
//!                         <-- outcome --       time it
//! ```
//!
//! Invariants:
//! - Candidates are compiled and run in the child only; whatever happens to it is an outcome of the
//!   candidate, never of the parent.
//! - No time without a correct result: every kernel passes the [`Workbench`]'s gate before it is timed.
//! - The child never outlives the parent: it exits as soon as its standard input ends, even while a kernel
//!   loops for ever.
//! - Machines drift: a candidate runs in turn with a reference, a program of its task whose time is known.
//!   Its times are normalized to the speed at which the reference was timed, so that times of a task compare,
//!   however fast the machine was meanwhile.
//! - Caches are warm: a kernel is timed on the buffers it has just run on. Cold-cache times would need other
//!   kernels in between, and in a network the neighbouring task has just written the input.

mod angle;
mod batch;
mod bench;
mod child;
mod codes;
mod cold;
pub mod cuda;
mod faults;
mod gate;
mod inputs;
mod integers;
mod jump;
mod memory;
mod options;
mod oracle;
mod output;
mod parent;
mod prepared;
mod protocol;
mod quantised;
pub mod roofline;
mod roundings;
mod rounds;
mod timing;
mod tolerance;
mod worker;

pub use batch::{Batch, Mode, Running};
pub use bench::Bench;
pub use bench::Refusal;
pub use gate::{Loaded, Workbench};
pub use inputs::{InputsError, generate_inputs};
pub use memory::Region;
pub use options::{Limits, Options};
pub use oracle::{Example, Expected, OracleCache, OracleError};
pub use parent::{MeasureError, Measurer};
pub use timing::Timing;
pub use tolerance::{Mismatch, Tolerance};
pub use worker::{worker_main, worker_main_with};
