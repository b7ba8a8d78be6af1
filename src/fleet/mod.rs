//! Many machines: a coordinator writes plans into a PostgreSQL database, workers measure them wherever they
//! are, and what they measured comes back.
//!
//! ```text
//! coordinator (tune, collect, compare, plan)      server                     worker
//!   task, traces  -- submit -->                    plans   -- lease -->       compiled, checked, timed
//!                                                                             committed to its outbox
//!   history, store  <-- poll --                   records  <-- report --      forgotten once confirmed
//! ```
//!
//! Tasks and traces travel, never binaries. Invariants:
//! - What a worker has committed to its own store arrives at the server exactly once, whatever dies or is
//!   lost meanwhile: it is sent until the server confirms it, and a record's key is its lease and the number
//!   of its program.
//! - Nothing depends on the clock of a worker or a coordinator: leases expire by the server's.
//! - A lease has a fencing number. What comes under an older one is kept, and ends nothing.
//! - A worker believes nothing: tasks and traces are read within limits, and held to its own target and
//!   space. What a worker sends is about leases of its own.

mod console;
mod coordinator;
mod device;
mod error;
mod link;
mod outbox;
mod password;
mod schema;
mod settings;
mod wire;
mod worker;

pub use console::{Console, ExportFilter, Overview, PlanRow, TargetRow, WorkerRow, WorkerState};
pub use coordinator::{Adopted, Coordinator, News, Origin, Session};
pub use device::{Device, DeviceLock, Held, Machine, Stopped, Watch};
pub use error::FleetError;
pub use schema::{Initialised, init};
pub use settings::Settings;
pub use worker::{Event, WorkerReport, WorkerSettings, work};
