//! One test binary, so that LLVM links once.

mod workload;
mod language;
mod nest;
mod schedules;
mod ptx;
mod graph;
mod networks;
mod codegen;
mod targets;
mod analysis;
mod measure;
mod record;
mod model;
mod checkpoints;
mod worlds;
mod rank;
mod fleet;
mod tune;
mod planning;
mod artifact;
mod command;
mod hub;
mod growth;
mod hygiene;
mod docs;
