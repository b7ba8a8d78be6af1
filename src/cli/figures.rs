//! Figures of a program and of the machine, as people read them, and as JSON.

use std::fmt::Write as _;

use serde_json::{Value, json};
use tilescribe::analysis::{CodeFigures, Figures, KernelFigures, LevelTraffic, LoopFootprint};
use tilescribe::measure::roofline::{self, Arithmetic, Ceiling, Roofline};
use tilescribe::record;
use tilescribe::target::{Cpu, Level};

use super::words::bytes;

/// What to do where the machine's limits are not known.
pub const MEASURE: &str = "`tilescribe doctor --measure` measures them";

/// What is known about the limits of a target.
///
/// # Errors
/// Why nothing is, for people.
pub fn limits(target: &Cpu) -> Result<Roofline, String> {
    let unknown = || format!("peak and bandwidth of this machine are not known; {MEASURE}");
    let folder = record::cache_folder().ok_or_else(unknown)?;
    roofline::load(&folder, target).map_err(|error| format!("{error}; {MEASURE}"))?.ok_or_else(unknown)
}

/// Figures of a program next to the limits of its machine.
pub struct Comparison<'a> {
    pub figures: &'a Figures,
    pub target: &'a Cpu,
    /// What it multiplies.
    pub arithmetic: Arithmetic,
    pub limits: &'a Result<Roofline, String>,
    /// Floating-point operations where it was timed.
    pub timed_flops: f64,
    /// The best of its times.
    pub best_ns: Option<u64>,
}

impl Comparison<'_> {
    /// What bounds it; or why that is not known.
    fn ceiling(&self) -> Result<Ceiling, String> {
        let found = self.limits.as_ref()?.ceiling(&self.figures.demand, self.arithmetic, self.target);
        found.ok_or_else(|| format!("the peak of {} on this machine is not known; {MEASURE}", self.arithmetic.name()))
    }

    fn gflops(&self) -> Option<f64> {
        self.best_ns.map(|ns| self.timed_flops / ns.max(1) as f64)
    }

    /// What a level takes for its bytes at the bandwidth that was measured.
    fn level_ns(&self, traffic: &LevelTraffic) -> Option<f64> {
        let rate = self.limits.as_ref().ok()?.gb_per_s(traffic.level, self.target.cores)?;
        Some(traffic.moved.total_bytes() as f64 / rate)
    }

    pub fn json(&self) -> Value {
        let ceiling = self.ceiling();
        let share = |of: &dyn Fn(&Ceiling) -> f64| Some(self.gflops()? / of(ceiling.as_ref().ok()?));
        let times: Vec<_> = self.figures.traffic.iter().map(|level| self.level_ns(level)).collect();
        json!({
            "best_ns": self.best_ns,
            "gflops": self.gflops(),
            "intensity_flops_per_byte": self.figures.demand.intensity(),
            "figures": self.figures,
            "limits": match &ceiling { Ok(ceiling) => json!(ceiling), Err(reason) => json!({ "error": reason }) },
            "level_ns": times,
            "of_peak": share(&|ceiling| ceiling.peak_gflops),
            "of_roofline": share(&|ceiling| ceiling.roofline_gflops),
        })
    }

    pub fn text(&self) -> String {
        let parts =
            [self.demand(), self.levels(), loops(&self.figures.loops), kernel(&self.figures.kernel, self.target)];
        parts.join("\n")
    }

    fn demand(&self) -> String {
        let (demand, moved) = (self.figures.demand, self.figures.demand.compulsory);
        let (read, written) = (bytes(moved.read_bytes), bytes(moved.written_bytes));
        let mut text = format!("must read {read}, write {written}: {:.1} flops a byte\n", demand.intensity());
        let ceiling = match self.ceiling() {
            Ok(ceiling) => ceiling,
            Err(reason) => return format!("{text}{reason}\n"),
        };
        let Ceiling { arithmetic, peak_gflops, level, gb_per_s, roofline_gflops } = ceiling;
        let from = level.name();
        let _ = writeln!(
            text,
            "peak {peak_gflops:.1} GFLOP/s{}, roofline {roofline_gflops:.1} ({from} at {gb_per_s:.1} GB/s)",
            of(arithmetic)
        );
        if let Some(gflops) = self.gflops() {
            let (peak, roofline) = (percent(gflops / peak_gflops), percent(gflops / roofline_gflops));
            let _ = writeln!(text, "reached {gflops:.1} GFLOP/s: {peak} of the peak, {roofline} of the roofline");
            if gflops > 1.05 * roofline_gflops {
                let _ = writeln!(text, "faster than the machine was when its limits were measured: {MEASURE} anew");
            }
        }
        text
    }

    fn levels(&self) -> String {
        let is_timed = self.limits.is_ok();
        let header = if is_timed { "at least, ms" } else { "" };
        let mut text = row(&["from", "holds", "read", "written", header], 10);
        for level in &self.figures.traffic {
            let holds = level.capacity_bytes.map_or(String::new(), bytes);
            let time = self.level_ns(level).map_or(String::new(), |ns| format!("{:.4}", ns / 1e6));
            let moved = level.moved;
            text +=
                &row(&[level.level.name(), &holds, &bytes(moved.read_bytes), &bytes(moved.written_bytes), &time], 10);
        }
        text
    }
}

fn loops(loops: &[LoopFootprint]) -> String {
    let name = |l: &LoopFootprint| {
        format!("{:indent$}{}{}", "", if l.is_parallel { "parallel " } else { "" }, l.name, indent = 2 * l.depth)
    };
    let width = loops.iter().map(|l| name(l).len()).max().unwrap_or(0).max(10);
    let mut text = row(&["loop", "iterations", "touches", "fits into"], width);
    for l in loops {
        let fits = match l.fits {
            Level::Memory => "none",
            level => level.name(),
        };
        text += &row(&[&name(l), &l.iterations.to_string(), &bytes(l.footprint_bytes), fits], width);
    }
    text
}

/// Reads one of the figures.
type Count = fn(&CodeFigures) -> u32;

fn kernel(kernel: &KernelFigures, target: &Cpu) -> String {
    let (hottest, whole) = (if kernel.is_loop { "hottest loop" } else { "hottest code" }, "whole kernel");
    let mut text = row(&["", hottest, whole], 20);
    let counts: [(&str, Count); 10] = [
        ("instructions", |code| code.instructions),
        ("vector multiply-adds", |code| code.fmas),
        ("other arithmetic", |code| code.other_vector + code.scalar_fmas),
        ("loads", |code| code.loads),
        ("of them broadcasts", |code| code.broadcasts),
        ("stores", |code| code.stores),
        ("shuffles", |code| code.shuffles),
        ("gathers", |code| code.gathers),
        ("spills", |code| code.spills),
        ("reloads", |code| code.reloads),
    ];
    for (what, count) in counts {
        text += &row(&[what, &count(&kernel.hottest).to_string(), &count(&kernel.whole).to_string()], 20);
    }
    let registers = |code: &CodeFigures| format!("{} of {}", code.vector_registers, target.vector_registers);
    text + &row(&["vector registers", &registers(&kernel.hottest), &registers(&kernel.whole)], 20)
}

/// The first cell is aligned to the left.
fn row(cells: &[&str], first: usize) -> String {
    let [head, rest @ ..] = cells else { return String::new() };
    let rest: String = rest.iter().map(|cell| format!("  {cell:>12}")).collect();
    format!("{}\n", format!("{head:<first$}{rest}").trim_end())
}

/// Says of a peak what it is of, where that is not f32.
pub fn of(arithmetic: Arithmetic) -> String {
    match arithmetic {
        Arithmetic::F32 => String::new(),
        short => format!(" in {}", short.name()),
    }
}

pub fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn bytes_have_three_digits_and_a_unit() {
        let texts = [0, 1023, 1024, 1 << 20, 35 << 20, 150 << 10, u64::MAX].map(bytes);
        assert_eq!(texts, ["0 B", "1023 B", "1.00 KiB", "1.00 MiB", "35.0 MiB", "150 KiB", "16777216 TiB"]);
    }
}
