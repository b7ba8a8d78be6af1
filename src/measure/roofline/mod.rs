//! How fast a machine computes and reads, measured once and kept: the two lines of a roofline (Williams,
//! Waterman and Patterson, 2009).
//!
//! The peak is that of independent f32 multiply-adds in registers, the bandwidths are those of summing up
//! buffers that fit into each cache, and one that fits into none; all by kernels of our own code generator,
//! with vectors as wide as the target's. Each figure is the best of several runs: what disturbs a machine
//! only ever makes it slower.
//!
//! [`measure`] takes two seconds or so. [`save`] and [`load`] keep the figures in a file of a folder, one for
//! each machine.

mod file;
mod kernels;
mod sample;

use serde::{Deserialize, Serialize};

pub use file::{MAX_FILE_BYTES, RooflineError, load, path, save};
pub use kernels::{array_kernel, peak_flops, peak_kernel};
pub use sample::measure;

use crate::analysis::Demand;
use crate::target::{Cpu, Level};

/// A figure of one core, and of all that the target has at once.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    pub one_core: f64,
    pub all_cores: f64,
}

/// How fast a level of memory can be read.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bandwidth {
    pub level: Level,
    /// Bytes of the buffers that one core has read.
    pub bytes: u64,
    /// GB/s, 10⁹ bytes a second.
    pub gb_per_s: Rate,
}

/// What a machine can do at most.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Roofline {
    /// The version of this description.
    pub format: u32,
    /// [`key`] of the machine.
    pub machine: String,
    /// That "all cores" were.
    pub cores: u32,
    /// Of f32 multiply-adds, in GFLOP/s.
    pub peak_gflops: Rate,
    /// Nearest level first.
    pub bandwidths: Vec<Bandwidth>,
    /// Seconds since 1970, UTC.
    pub measured_unix_s: u64,
}

/// What a machine's figures are kept by: the fingerprint of the target with a single core, since a kernel for
/// some of the cores runs on the same machine.
pub fn key(target: &Cpu) -> String {
    Cpu { cores: 1, ..target.clone() }.fingerprint()
}

/// What bounds a workload on a machine.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Ceiling {
    /// GFLOP/s, whatever must be moved.
    pub peak_gflops: f64,
    /// The nearest level that can hold all that must be moved: where it is found when the program ran just
    /// before.
    pub level: Level,
    /// Of this level.
    pub gb_per_s: f64,
    /// GFLOP/s: the peak, or intensity times bandwidth where that is less.
    pub roofline_gflops: f64,
}

impl Roofline {
    /// A figure for so many cores: that of all of them at most, and no more than so many times that of one.
    fn at(&self, rate: Rate, cores: u32) -> f64 {
        match cores {
            0 | 1 => rate.one_core,
            _ if cores >= self.cores => rate.all_cores,
            _ => (rate.one_core * f64::from(cores)).min(rate.all_cores),
        }
    }

    /// GFLOP/s.
    pub fn peak_gflops(&self, cores: u32) -> f64 {
        self.at(self.peak_gflops, cores)
    }

    /// GB/s; `None` for a level that this machine does not have.
    pub fn gb_per_s(&self, level: Level, cores: u32) -> Option<f64> {
        let found = self.bandwidths.iter().find(|bandwidth| bandwidth.level == level)?;
        Some(self.at(found.gb_per_s, cores))
    }

    /// The best that any program can reach for this demand on the target, whose figures these are.
    pub fn ceiling(&self, demand: &Demand, target: &Cpu) -> Ceiling {
        let bytes = demand.compulsory.total_bytes();
        let holds = |(level, capacity): &(Level, Option<u64>)| {
            let instances = if level.is_private() { u64::from(target.cores.max(1)) } else { 1 };
            capacity.is_none_or(|capacity| bytes <= capacity.saturating_mul(instances))
        };
        let level = target.levels().into_iter().find(holds).map_or(Level::Memory, |(level, _)| level);
        let peak_gflops = self.peak_gflops(target.cores);
        let gb_per_s = self.gb_per_s(level, target.cores).unwrap_or(f64::INFINITY);
        Ceiling { peak_gflops, level, gb_per_s, roofline_gflops: peak_gflops.min(demand.intensity() * gb_per_s) }
    }
}
