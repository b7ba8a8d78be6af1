//! A fleet as text.

use std::fmt::{Display, Write as _};

use tilescribe::fleet::{Overview, PlanRow, WorkerRow, WorkerState};

use super::super::words::counted;

/// Whether a worker belongs into a list of those that work.
pub(super) fn is_there(worker: &WorkerRow) -> bool {
    !matches!(worker.state, WorkerState::Silent | WorkerState::Gone)
}

/// Rows of cells as columns, each as wide as it has to be. The first row is the heading.
fn columns(rows: &[Vec<String>]) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..count).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

fn row<const N: usize>(cells: [&dyn Display; N]) -> Vec<String> {
    cells.iter().map(ToString::to_string).collect()
}

/// A time of so many seconds, in the unit that suits it.
fn time(seconds: f64) -> String {
    match seconds {
        s if s < 90.0 => format!("{s:.0} s"),
        s if s < 5400.0 => format!("{:.0} min", s / 60.0),
        s if s < 129_600.0 => format!("{:.0} h", s / 3600.0),
        s => format!("{:.0} d", s / 86_400.0),
    }
}

pub(super) fn overview(overview: &Overview) -> String {
    let Overview { fleet, now, programs, last_minute, failed, targets, draining, .. } = overview;
    let mut text = String::new();
    // writing to a string does not fail
    let _ = writeln!(
        text,
        "fleet {fleet:.8} at {now}: {}, {last_minute} in the last minute{}",
        counted(*programs, "program"),
        if *draining { "; draining" } else { "" }
    );
    let failures: Vec<String> = failed.iter().map(|(cause, count)| format!("{count} {cause}")).collect();
    if !failures.is_empty() {
        let _ = writeln!(text, "without a time: {}", failures.join(", "));
    }
    let mut rows = vec![row([&"target", &"workers", &"waiting", &"leased", &"parked", &"done", &"cancelled"])];
    for target in targets {
        let name = format!("{:.8}", target.fingerprint);
        rows.push(row([
            &name,
            &target.workers,
            &target.waiting,
            &target.leased,
            &target.parked,
            &target.done,
            &target.cancelled,
        ]));
    }
    let _ = write!(text, "\n{}", columns(&rows));
    for target in targets.iter().filter(|target| target.workers == 0 && target.waiting > 0) {
        let waiting = counted(u64::try_from(target.waiting).unwrap_or(0), "plan");
        let _ = writeln!(
            text,
            "no worker is there for {:.8}, space {}, for which {waiting} wait",
            target.fingerprint, target.space
        );
    }
    let there: Vec<WorkerRow> = overview.workers.iter().filter(|worker| is_there(worker)).cloned().collect();
    let _ = write!(text, "\n{}", workers(&there));
    let away = overview.workers.iter().filter(|worker| worker.state == WorkerState::Silent).count();
    if away > 0 {
        let _ = writeln!(text, "{} fell silent: `tilescribe fleet workers --all`", counted(away, "worker"));
    }
    text
}

pub(super) fn workers(workers: &[WorkerRow]) -> String {
    let heading = ["worker", "name", "target", "state", "plan", "programs", "a minute", "busy", "idle", "heard of"];
    let mut rows = vec![heading.map(String::from).to_vec()];
    for worker in workers {
        rows.push(row([
            &worker.id,
            &worker.name,
            &format!("{:.8}", worker.target),
            &worker.state.name(),
            &worker.plan.map_or_else(|| "-".into(), |plan| plan.to_string()),
            &worker.programs,
            &worker.last_minute,
            &time(worker.busy_s),
            &time(worker.idle_s),
            &format!("{} ago", time(worker.silent_s)),
        ]));
    }
    columns(&rows)
}

pub(super) fn plans(plans: &[PlanRow]) -> String {
    let heading = ["plan", "state", "kind", "task", "target", "measured", "leases", "age", "run", "cause"];
    let mut rows = vec![heading.map(String::from).to_vec()];
    for plan in plans {
        rows.push(row([
            &plan.id,
            &plan.state,
            &plan.kind,
            &format!("{:.12}", plan.task),
            &format!("{:.8}", plan.target),
            &format!("{}/{}", plan.measured, plan.programs),
            &plan.leases,
            &time(plan.age_s),
            &plan.run,
            &plan.cause.as_deref().unwrap_or(""),
        ]));
    }
    columns(&rows)
}
