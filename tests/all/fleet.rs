//! A fleet with a real server: whatever dies, is lost or lies, every record that a worker has committed to
//! its own store arrives exactly once.
//!
//! Workers are those of `tools/simulated_worker.rs`, so that nothing here measures; `commands.rs` has real
//! ones. `TILESCRIBE_FAULTS=20` repeats each fault so often instead of twice.

mod commands;
mod deaths;
mod lies;
mod losses;
mod proxy;
mod rig;
mod searches;
mod server;
