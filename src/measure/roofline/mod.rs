//! How fast a machine computes and reads, measured once and kept: the two lines of a roofline (Williams,
//! Waterman and Patterson, 2009).
//!
//! The peaks are those of independent multiply-adds in registers: of f32, and of the short numbers that the
//! machine has instructions for. The bandwidths are those of summing up
//! buffers that fit into each cache, and one that fits into none; all by kernels of our own code generator,
//! with vectors as wide as the target's. Each figure is the best of several runs: what disturbs a machine
//! only ever makes it slower.
//!
//! [`measure`] takes three seconds or so. [`save`] and [`load`] keep the figures in a file of a folder, one
//! for each machine.

mod arithmetic;
mod file;
mod kernels;
mod sample;

use serde::{Deserialize, Serialize};

pub use arithmetic::Arithmetic;
pub use file::{MAX_FILE_BYTES, RooflineError, load, path, save};
pub use kernels::{Peak, array_kernel, dot_kernel, peak_kernel, tile_kernel};
pub use sample::{measure, measure_peak};

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

/// How fast a machine multiplies and adds short numbers.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShortPeak {
    pub arithmetic: Arithmetic,
    /// 10⁹ operations a second, two for a multiply-add.
    pub gflops: Rate,
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
    /// Of what the machine has instructions for. Files of before 0.4.0 lack it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub short_peaks: Vec<ShortPeak>,
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
    /// What it multiplies.
    pub arithmetic: Arithmetic,
    /// GFLOP/s of that, whatever must be moved.
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

    /// GFLOP/s; `None` for short numbers whose peak was not measured.
    pub fn peak_gflops(&self, arithmetic: Arithmetic, cores: u32) -> Option<f64> {
        let rate = match arithmetic {
            Arithmetic::F32 => self.peak_gflops,
            short => self.short_peaks.iter().find(|peak| peak.arithmetic == short)?.gflops,
        };
        Some(self.at(rate, cores))
    }

    /// Whether it tells the peak of everything that the machine has instructions for.
    pub fn is_complete(&self, target: &Cpu) -> bool {
        let is_known = |short: Arithmetic| self.short_peaks.iter().any(|peak| peak.arithmetic == short);
        Arithmetic::SHORT.into_iter().all(|short| short.operands(target).is_none() || is_known(short))
    }

    /// GB/s; `None` for a level that this machine does not have.
    pub fn gb_per_s(&self, level: Level, cores: u32) -> Option<f64> {
        let found = self.bandwidths.iter().find(|bandwidth| bandwidth.level == level)?;
        Some(self.at(found.gb_per_s, cores))
    }

    /// The best that any program can reach for this demand on the target, whose figures these are; `None`
    /// where the peak of the arithmetic was not measured.
    pub fn ceiling(&self, demand: &Demand, arithmetic: Arithmetic, target: &Cpu) -> Option<Ceiling> {
        let bytes = demand.compulsory.total_bytes();
        let holds = |(level, capacity): &(Level, Option<u64>)| {
            let instances = if level.is_private() { u64::from(target.cores.max(1)) } else { 1 };
            capacity.is_none_or(|capacity| bytes <= capacity.saturating_mul(instances))
        };
        let level = target.levels().into_iter().find(holds).map_or(Level::Memory, |(level, _)| level);
        let peak_gflops = self.peak_gflops(arithmetic, target.cores)?;
        let gb_per_s = self.gb_per_s(level, target.cores).unwrap_or(f64::INFINITY);
        let roofline_gflops = peak_gflops.min(demand.intensity() * gb_per_s);
        Some(Ceiling { arithmetic, peak_gflops, level, gb_per_s, roofline_gflops })
    }
}
