//! Where the time of a network's runs goes: what its threads wrote down, by task.

use tilescribe_runtime::{Activity, Event, Manifest, Trace};

use super::CompiledCall;

/// One task, or one kind of routine of the run-time library, over all its calls in a run.
#[derive(Clone, PartialEq, Debug)]
pub struct TaskTime {
    pub callee: CompiledCall,
    /// In a run; of calls in repetitions and choices, those that happened.
    pub calls: u64,
    /// Nanoseconds of a run: the median of runs.
    pub ns: f64,
    /// The share of that for which its threads had nothing to do, 0 to 1: those that a loop does not use, or
    /// that had finished their part of it, or slept while one computed alone.
    pub idle: f64,
}

/// The tasks of a network, slowest first.
#[derive(Clone, PartialEq, Debug)]
pub struct Profile {
    pub tasks: Vec<TaskTime>,
    /// Nanoseconds from the start of the first call to the end of the last one: the median of runs.
    pub run_ns: f64,
    pub runs: usize,
}

impl Profile {
    /// What runs on so many threads wrote down; `None` where no call is among it.
    pub fn of(manifest: &Manifest, runs: &[Trace], threads: u16) -> Option<Profile> {
        Profile::of_calls(&manifest.calls, 0, runs, threads)
    }

    /// The same of some calls of a network, the first of which has this number in it.
    pub fn of_calls(calls: &[CompiledCall], first: usize, runs: &[Trace], threads: u16) -> Option<Profile> {
        let mut callees: Vec<&CompiledCall> = Vec::new();
        let by_call: Vec<usize> = calls.iter().map(|callee| number_of(&mut callees, callee)).collect();
        let calls = Calls { first, callee_of: &by_call, callees: callees.len() };
        let sums: Vec<Vec<Sum>> = runs.iter().map(|run| calls.sums(run, threads)).collect();
        let tasks = callees.iter().enumerate().filter_map(|(at, callee)| {
            let median_of = |value: &dyn Fn(&Sum) -> f64| median(sums.iter().map(|run| value(&run[at])).collect());
            let ns = median_of(&|sum| sum.ns as f64)?;
            let idle = median_of(&|sum| sum.idle_ns as f64 / (sum.ns.max(1) * u64::from(threads.max(1))) as f64)?;
            let calls = sums.last().map_or(0, |run| run[at].calls);
            (calls > 0).then(|| TaskTime { callee: (*callee).clone(), calls, ns, idle })
        });
        let mut tasks: Vec<TaskTime> = tasks.collect();
        tasks.sort_by(|a, b| b.ns.total_cmp(&a.ns));
        let run_ns = median(runs.iter().filter_map(|run| calls.length(run)).collect())?;
        Some(Profile { tasks, run_ns, runs: runs.len() })
    }
}

#[derive(Clone, Copy, Default)]
struct Sum {
    calls: u64,
    ns: u64,
    /// Over all threads.
    idle_ns: u64,
}

fn number_of<'m>(callees: &mut Vec<&'m CompiledCall>, callee: &'m CompiledCall) -> usize {
    callees.iter().position(|known| *known == callee).unwrap_or_else(|| {
        callees.push(callee);
        callees.len() - 1
    })
}

/// Neighbouring calls of a network, of which a run tells.
struct Calls<'c> {
    /// The number of the first in the network.
    first: usize,
    /// By call.
    callee_of: &'c [usize],
    callees: usize,
}

impl Calls<'_> {
    /// The callee of the call that an event is about, if that is one of these.
    fn callee_of(&self, event: &Event) -> Option<usize> {
        self.callee_of.get((event.call as usize).checked_sub(self.first)?).copied()
    }

    /// By callee, what one run took. Threads other than the caller work in loops alone; the caller works
    /// unless it waits.
    fn sums(&self, run: &Trace, threads: u16) -> Vec<Sum> {
        let mut sums = vec![Sum::default(); self.callees];
        let mut busy_ns = vec![0; self.callees];
        for event in &run.events {
            let Some(at) = self.callee_of(event) else { continue };
            let sum = &mut sums[at];
            match event.activity() {
                Activity::Call => {
                    sum.calls += 1;
                    sum.ns += event.duration();
                }
                Activity::Loop if event.thread > 0 => busy_ns[at] += event.duration(),
                Activity::Loop => {}
                Activity::Wait => sum.idle_ns += event.duration(),
                Activity::Fork => {}
            }
        }
        for (sum, busy_ns) in sums.iter_mut().zip(busy_ns) {
            sum.idle_ns += (sum.ns * u64::from(threads.saturating_sub(1))).saturating_sub(busy_ns);
        }
        sums
    }

    /// Nanoseconds from the start of the first to the end of the last one.
    fn length(&self, run: &Trace) -> Option<f64> {
        let is_own = |event: &&Event| event.activity() == Activity::Call && self.callee_of(event).is_some();
        let calls = || run.events.iter().filter(is_own);
        let (first, last) = (calls().map(|event| event.begin).min()?, calls().map(|event| event.end).max()?);
        Some(last.saturating_sub(first) as f64)
    }
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// A run as browsers draw it (`chrome://tracing`, Perfetto): the Trace Event Format's complete events, in
/// microseconds, a row for the calls and one for each thread.
pub fn trace_events(manifest: &Manifest, run: &Trace) -> serde_json::Value {
    let start = run.events.iter().map(|event| event.begin).min().unwrap_or(0);
    let name = |event: &Event| match manifest.calls.get(event.call as usize) {
        Some(CompiledCall::Task(task)) => manifest.tasks.get(*task).map_or("", |task| task.name.as_str()),
        Some(CompiledCall::Library(what)) => what.as_str(),
        None => "",
    };
    let events = run.events.iter().map(|event| {
        let (row, category) = match event.activity() {
            Activity::Call => (0, "call"),
            Activity::Loop => (1 + event.thread, "loop"),
            Activity::Wait => (1 + event.thread, "wait"),
            Activity::Fork => (0, "fork"),
        };
        let name = if event.activity() == Activity::Wait { "wait" } else { name(event) };
        serde_json::json!({
            "name": name, "cat": category, "ph": "X", "pid": 1, "tid": row,
            "ts": event.begin.saturating_sub(start) as f64 / 1e3, "dur": event.duration() as f64 / 1e3,
            "args": { "call": event.call },
        })
    });
    let rows = run.events.iter().map(|event| event.thread + 1).max().map_or(0, |threads| threads + 1);
    let names = (0..rows).map(|row| {
        let name = if row == 0 { "calls".to_string() } else { format!("thread {}", row - 1) };
        serde_json::json!({ "name": "thread_name", "ph": "M", "pid": 1, "tid": row, "args": { "name": name } })
    });
    serde_json::json!({ "traceEvents": names.chain(events).collect::<Vec<_>>() })
}
