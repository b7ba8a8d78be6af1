//! Runs the kernels, and takes their rates.
//!
//! Each core has a thread of its own, bound to it; all begin a run together and the last one ends it. The
//! pool that programs run on would not do: where another process is busy, its threads come late, and the
//! first one does the work of all.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::kernels::{Peak, array_kernel, dot_kernel, peak_kernel, tile_kernel};
use super::{Arithmetic, Bandwidth, Rate, Roofline, RooflineError, ShortPeak, file, key};
use crate::codegen::Kernel;
use crate::measure::Region;
use crate::nest::Nest;
use crate::target::{Cpu, Level};

/// How long one kernel is run again and again.
const BUDGET: Duration = Duration::from_millis(150);
/// Fewest runs, however long they take.
const FEWEST: usize = 3;
/// Links of a chain of multiply-adds: a fraction of a millisecond, so that some runs are not disturbed.
const PEAK_STEPS: i64 = 1 << 15;
/// A step of tiles takes about as long as so many of vectors.
const STEPS_OF_TILES: i64 = 40;
/// What a core reads in one run, at least: as long as that for the nearest cache.
const RUN_BYTES: u64 = 32 << 20;
/// Bounds of what fits into no cache, for all cores together.
const MEMORY_BYTES: (u64, u64) = (128 << 20, 2 << 30);
/// A thread that waits for longer lets others run.
const SPINS: u32 = 10_000;
/// Instead of the number of a run: there is none any more.
const END: usize = usize::MAX;

/// Measures the machine that this process runs on, in about three seconds; `target` describes it.
///
/// # Errors
/// [`RooflineError::Codegen`] where no kernel can be loaded, [`RooflineError::Memory`] where there is too
/// little.
pub fn measure(target: &Cpu) -> Result<Roofline, RooflineError> {
    let both = |of: &dyn Fn(u32) -> Result<f64, RooflineError>| {
        let (one, cores) = (of(1)?, f64::from(target.cores));
        let all = if target.cores > 1 { of(target.cores)? } else { one };
        // what a core does beside others it does alone, and all of them do what one does: disturbances say
        // otherwise
        Ok::<Rate, RooflineError>(Rate { one_core: one.max(all / cores), all_cores: all.max(one) })
    };
    let rate = |peak: &Peak| both(&|cores| gflops(peak, target, cores));
    let peak_gflops = rate(&peak_kernel(target, PEAK_STEPS))?;
    let mut short_peaks = Vec::new();
    for arithmetic in Arithmetic::SHORT {
        if let Some(peak) = kernel(arithmetic, target) {
            short_peaks.push(ShortPeak { arithmetic, gflops: rate(&peak)? });
        }
    }
    let mut bandwidths = Vec::new();
    for (level, _) in target.levels() {
        let gb_per_s = both(&|cores| gb_per_s(level, target, cores))?;
        bandwidths.push(Bandwidth { level, bytes: array(level, target, 1).0, gb_per_s });
    }
    let measured_unix_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    Ok(Roofline {
        format: file::FORMAT,
        machine: key(target),
        cores: target.cores,
        peak_gflops,
        short_peaks,
        bandwidths,
        measured_unix_s,
    })
}

/// Measures the GFLOP/s that all cores of this machine reach together, in a fraction of a second; `None`
/// where it has no instructions for these numbers.
///
/// # Errors
/// As [`measure`].
pub fn measure_peak(arithmetic: Arithmetic, target: &Cpu) -> Result<Option<f64>, RooflineError> {
    kernel(arithmetic, target).map(|peak| gflops(&peak, target, target.cores)).transpose()
}

fn kernel(arithmetic: Arithmetic, target: &Cpu) -> Option<Peak> {
    match arithmetic {
        Arithmetic::F32 => Some(peak_kernel(target, PEAK_STEPS)),
        short => {
            let operands = short.operands(target)?;
            tile_kernel(target, operands, PEAK_STEPS / STEPS_OF_TILES)
                .or_else(|| dot_kernel(target, operands, PEAK_STEPS))
        }
    }
}

fn gflops(Peak { nest, flops }: &Peak, target: &Cpu, cores: u32) -> Result<f64, RooflineError> {
    Ok(flops * f64::from(cores) / nanoseconds(fastest(nest, target, cores, false)?))
}

fn gb_per_s(level: Level, target: &Cpu, cores: u32) -> Result<f64, RooflineError> {
    let (bytes, is_shared) = array(level, target, cores);
    let repeats = i64::try_from(RUN_BYTES / bytes.max(1)).unwrap_or(1).max(1);
    let nest = array_kernel(target, bytes, repeats);
    let read = nest.buffers.first().map_or(0, |data| data.bytes()) as f64 * repeats as f64 * f64::from(cores);
    Ok(read / nanoseconds(fastest(&nest, target, cores, is_shared)?))
}

/// The bytes that each core reads to show a level, and whether all of them read the same ones. They fill half
/// of a cache, so that what else is in it does not matter; a core's part of a shared cache must not fit into
/// its own.
fn array(level: Level, target: &Cpu, cores: u32) -> (u64, bool) {
    let cores = u64::from(cores.max(1));
    match level {
        Level::L1 => (target.l1_bytes / 2, false),
        Level::L2 => (target.l2_bytes / 2, false),
        Level::L3 if target.l3_bytes / 2 / cores >= 2 * target.l2_bytes => (target.l3_bytes / 2 / cores, false),
        Level::L3 => (target.l3_bytes / 2, true),
        Level::Memory => {
            let largest = target.l3_bytes.max(cores.saturating_mul(target.l2_bytes));
            (largest.saturating_mul(4).clamp(MEMORY_BYTES.0, MEMORY_BYTES.1) / cores, false)
        }
    }
}

fn nanoseconds(duration: Duration) -> f64 {
    duration.as_nanos().max(1) as f64
}

/// What one core works on.
struct Bench {
    arguments: Vec<Region>,
    workspace: Region,
    /// In place of the first argument.
    shared: Option<*mut u8>,
}

// SAFETY: what is shared is only read, and outlives the threads
unsafe impl Send for Bench {}

impl Bench {
    fn new(nest: &Nest, kernel: &Kernel, shared: Option<*mut u8>) -> Result<Bench, RooflineError> {
        let map = |bytes: usize, name: &str| {
            Region::new(bytes, name).map_err(|source| RooflineError::Memory { bytes, source })
        };
        let ids = nest.arguments().into_iter().enumerate();
        let arguments = ids.map(|(at, id)| {
            let bytes = if at == 0 && shared.is_some() { 0 } else { nest.buffer(id).bytes() };
            map(bytes, &nest.buffer(id).name)
        });
        let arguments = arguments.collect::<Result<_, _>>()?;
        Ok(Bench { arguments, workspace: map(kernel.workspace_bytes(), "workspace")?, shared })
    }

    /// Writes to the memory: untouched pages would all be the same one, and a page belongs to the core that
    /// touches it first.
    fn touch(&mut self) {
        self.arguments.iter_mut().for_each(|region| region.bytes_mut().fill(0));
    }

    fn run(&self, kernel: &Kernel) {
        let mut addresses: Vec<*mut u8> = self.arguments.iter().map(Region::address).collect();
        if let (Some(first), Some(shared)) = (addresses.first_mut(), self.shared) {
            *first = shared;
        }
        // SAFETY: buffers are as large as the nest says and nothing is packed; outputs and workspace are this
        // thread's own
        unsafe { kernel.run(&addresses, self.workspace.address()) }
    }
}

/// The shortest of several runs of a kernel on so many cores at once, from the first that begins to the last
/// that ends.
fn fastest(nest: &Nest, target: &Cpu, cores: u32, is_shared: bool) -> Result<Duration, RooflineError> {
    let kernel = Kernel::load(nest, target)?;
    let mut common = is_shared.then(|| Bench::new(nest, &kernel, None)).transpose()?;
    common.iter_mut().for_each(Bench::touch);
    let shared = common.as_ref().and_then(|bench| bench.arguments.first()).map(Region::address);
    let benches = (0..cores).map(|_| Bench::new(nest, &kernel, shared)).collect::<Result<Vec<_>, _>>()?;
    let processors = if cores > 1 { processors() } else { Vec::new() };
    let runs =
        &Runs { kernel: &kernel, cores: benches.len(), begun: AtomicUsize::new(0), finished: AtomicUsize::new(0) };
    let best = thread::scope(|scope| {
        let parts =
            benches.into_iter().enumerate().map(|(number, bench)| (number, processors.get(number).copied(), bench));
        // the leader has a thread too: this one must not stay bound
        let threads = parts.map(|(number, processor, bench)| {
            scope.spawn(move || {
                bind(processor);
                if number == 0 { runs.lead(bench) } else { runs.follow(bench) }
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).min()
    });
    Ok(best.unwrap_or(Duration::MAX))
}

/// Runs that all cores begin together.
struct Runs<'a> {
    kernel: &'a Kernel,
    cores: usize,
    /// The number of the run that has begun, from 1.
    begun: AtomicUsize,
    /// How many cores have finished one, over all runs.
    finished: AtomicUsize,
}

impl Runs<'_> {
    /// Begins runs until the time is over; returns the shortest.
    fn lead(&self, mut bench: Bench) -> Duration {
        bench.touch();
        let mut best = Duration::MAX;
        let begin = Instant::now();
        let mut number = 0;
        while number <= FEWEST || begin.elapsed() < BUDGET {
            number += 1;
            let start = Instant::now();
            self.begun.store(number, Ordering::Release);
            bench.run(self.kernel);
            self.finished.fetch_add(1, Ordering::AcqRel);
            wait(&|| self.finished.load(Ordering::Acquire) >= number * self.cores);
            // the first one waits for everyone's memory
            if number > 1 {
                best = best.min(start.elapsed());
            }
        }
        self.begun.store(END, Ordering::Release);
        best
    }

    /// Takes part in every run; knows nothing about how long they take.
    fn follow(&self, mut bench: Bench) -> Duration {
        bench.touch();
        for number in 1.. {
            wait(&|| self.begun.load(Ordering::Acquire) >= number);
            if self.begun.load(Ordering::Acquire) == END {
                break;
            }
            bench.run(self.kernel);
            self.finished.fetch_add(1, Ordering::AcqRel);
        }
        Duration::MAX
    }
}

fn wait(is_over: &dyn Fn() -> bool) {
    let mut spins = 0;
    while !is_over() {
        spins += 1;
        if spins % SPINS == 0 {
            thread::yield_now();
        }
        spin_loop();
    }
}

/// The processors that this process may run on.
fn processors() -> Vec<usize> {
    // SAFETY: a set of plain bits, which the system fills
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) != 0 {
            return Vec::new();
        }
        (0..libc::CPU_SETSIZE as usize).filter(|number| libc::CPU_ISSET(*number, &set)).collect()
    }
}

/// Binds this thread to a processor; where that fails it runs wherever the system likes.
fn bind(processor: Option<usize>) {
    let Some(number) = processor else { return };
    // SAFETY: a set of plain bits, which the system reads
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(number, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
    }
}
