//! Where the time of a network's runs goes, as people read it, as JSON, and as a trace for browsers.

use serde_json::{Value, json};
use tilescribe::analysis::Demand;
use tilescribe::artifact::{CompiledCall, Manifest, Profile, TaskTime};
use tilescribe::measure::roofline::{Arithmetic, Roofline};
use tilescribe::target::Target;
use tilescribe::workload::Workload;

use super::figures::percent;
use super::words::{counted, duration};

/// A profile beside what is known of the tasks and of the machine.
pub struct Report<'a> {
    profile: &'a Profile,
    tasks: Vec<(&'a TaskTime, Figures)>,
    /// Why no limits of the machine are among the figures.
    unknown: Option<&'a str>,
}

/// What is known of a task. Of what is not known there is nothing: of routines, of tasks whose extents a run
/// says, and of machines that were not measured.
#[derive(Default)]
struct Figures {
    name: String,
    /// Of all its calls, where each was measured by itself, its operands in the caches.
    alone_ns: Option<f64>,
    /// The same in this run of the program, its constants in memory, as they are in a network of many.
    cold_ns: Option<f64>,
    gflops: Option<f64>,
    gb_per_s: Option<f64>,
    of_roofline: Option<f64>,
}

impl<'a> Report<'a> {
    /// `cold` holds the times of the same calls, each by itself; there is none where the network cannot tell.
    pub fn new(
        profile: &'a Profile,
        cold: Option<&Profile>,
        manifest: &Manifest,
        limits: &'a Result<Roofline, String>,
    ) -> Report<'a> {
        let figures = |time: &'a TaskTime| {
            let cold = cold.and_then(|cold| cold.tasks.iter().find(|cold| cold.callee == time.callee));
            let known = Figures::of(time, manifest, limits.as_ref().ok());
            (time, Figures { cold_ns: cold.map(|cold| cold.ns), ..known })
        };
        let unknown = limits.as_ref().err().map(String::as_str);
        Report { profile, tasks: profile.tasks.iter().map(figures).collect(), unknown }
    }
}

impl Figures {
    fn of(time: &TaskTime, manifest: &Manifest, limits: Option<&Roofline>) -> Figures {
        let number = match &time.callee {
            CompiledCall::Task(number) => *number,
            CompiledCall::Library(what) => return Figures { name: what.clone(), ..Figures::default() },
        };
        let (task, version) = (manifest.tasks.get(number), manifest.versions.first());
        let best_ns = version.and_then(|version| version.schedules.get(number)?.best_ns);
        let known = Figures {
            name: task.map_or_else(String::new, |task| task.name.clone()),
            alone_ns: best_ns.map(|ns| ns as f64 * time.calls as f64),
            ..Figures::default()
        };
        let workload = task.and_then(|task| task.workload.parse::<Workload>().ok());
        let Some(workload) = workload.filter(|workload| workload.parameters.is_empty()) else { return known };
        let demand = Demand::of(&workload);
        let per_ns = |amount: f64| amount * time.calls as f64 / time.ns.max(1.0);
        let gflops = (demand.flops > 0).then(|| per_ns(demand.flops as f64));
        let roofline = match (version.map(|version| &version.target), limits) {
            (Some(Target::Cpu(cpu)), Some(limits)) => limits.ceiling(&demand, Arithmetic::of(&workload, cpu), cpu),
            _ => None,
        };
        let of_roofline = gflops.zip(roofline).map(|(gflops, ceiling)| gflops / ceiling.roofline_gflops);
        Figures { gflops, gb_per_s: Some(per_ns(demand.compulsory.total_bytes() as f64)), of_roofline, ..known }
    }
}

impl Report<'_> {
    /// The time of all tasks alone, where all were measured.
    fn alone_ns(&self) -> Option<f64> {
        self.tasks.iter().map(|(_, figures)| figures.alone_ns).sum()
    }

    /// The same with the constants in memory.
    fn cold_ns(&self) -> Option<f64> {
        self.tasks.iter().map(|(_, figures)| figures.cold_ns).sum()
    }

    pub fn text(&self) -> String {
        let total: f64 = self.tasks.iter().map(|(time, _)| time.ns).sum();
        let mut text = row(["time", "share", "alone", "cold", "calls", "idle", "GFLOP/s", "GB/s", "roofline", "task"]);
        for (time, figures) in &self.tasks {
            let optional = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.1}"));
            text += &row([
                &duration(time.ns as u64),
                &percent(time.ns / total.max(1.0)),
                &figures.alone_ns.map_or(String::new(), |ns| duration(ns as u64)),
                &figures.cold_ns.map_or(String::new(), |ns| duration(ns as u64)),
                &time.calls.to_string(),
                &percent(time.idle),
                &optional(figures.gflops),
                &optional(figures.gb_per_s),
                &figures.of_roofline.map_or(String::new(), percent),
                &figures.name,
            ]);
        }
        let run = duration(self.profile.run_ns as u64);
        let runs = counted(self.profile.runs as u64, "run");
        text += &format!("{run} a run, of which tasks take {} (medians of {runs})", duration(total as u64));
        if let Some(alone) = self.alone_ns() {
            text += &format!("; when they were tuned, operands in caches, {}", duration(alone as u64));
        }
        if let Some(cold) = self.cold_ns() {
            text += &format!("; each by itself now, its constants in memory, {}", duration(cold as u64));
        }
        text.push('\n');
        if let Some(reason) = self.unknown {
            text += &format!("{reason}\n");
        }
        text
    }

    pub fn json(&self) -> Value {
        let tasks = self.tasks.iter().map(|(time, figures)| {
            json!({
                "task": figures.name,
                "calls": time.calls,
                "ns": time.ns,
                "alone_ns": figures.alone_ns,
                "cold_ns": figures.cold_ns,
                "idle": time.idle,
                "gflops": figures.gflops,
                "gb_per_s": figures.gb_per_s,
                "of_roofline": figures.of_roofline,
            })
        });
        json!({
            "run_ns": self.profile.run_ns,
            "alone_ns": self.alone_ns(),
            "cold_ns": self.cold_ns(),
            "runs": self.profile.runs,
            "tasks": tasks.collect::<Vec<_>>(),
        })
    }
}

fn row(cells: [&str; 10]) -> String {
    let [time, share, alone, cold, calls, idle, gflops, rate, roofline, task] = cells;
    let line = format!(
        "{time:>9} {share:>6} {alone:>9} {cold:>9} {calls:>6} {idle:>6} {gflops:>8} {rate:>7} {roofline:>8}  {task}"
    );
    format!("{}\n", line.trim_end())
}
