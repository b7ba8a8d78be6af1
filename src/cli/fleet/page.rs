//! A fleet as one self-contained page.

use std::fmt::Write as _;

use tilescribe::fleet::{Overview, WorkerRow, WorkerState};
use tilescribe::tune::report::escape;

/// Plans and workers by state; distinguishable in greyscale and for the colour-blind (Okabe and Ito).
const COLOURS: [(&str, &str); 5] = [
    ("done", "#009e73"),
    ("leased", "#0072b2"),
    ("waiting", "#56b4e9"),
    ("parked", "#d55e00"),
    ("cancelled", "#999999"),
];

const STYLE: &str = "
body { font: 15px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; width: 100% } .wide { overflow-x: auto }
th, td { text-align: left; padding: .2rem .8rem .2rem 0; white-space: nowrap } th { font-weight: 600 }
tr + tr { border-top: 1px solid #ddd } th.n, td.n { text-align: right; font-variant-numeric: tabular-nums }
.bar { display: flex; height: 1.4rem; border-radius: 3px; overflow: hidden; background: #eee }
  .key b { font-weight: normal; white-space: nowrap; margin-right: 1em } .key span { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .3em }
.share { display: inline-block; width: 8rem; height: .7rem; background: #eee; border-radius: 2px; overflow: hidden }
.share i { display: block; height: 100%; background: #0072b2 } .warn { color: #a04000 }
svg { width: 100%; height: 6rem } .quiet { color: #777 }";

/// The page; where it is written again every so many seconds, the browser reads it again as often.
pub(super) fn html(overview: &Overview, again: Option<f64>) -> String {
    let refresh = again.map_or_else(String::new, |seconds| {
        format!("<meta http-equiv=\"refresh\" content=\"{}\">", seconds.ceil().max(1.0))
    });
    let mut page = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>Tilescribe fleet {}</title>\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">{refresh}<style>{STYLE}</style></head>\
         <body><h1>Fleet {}</h1><p>{} programs measured, {} in the last minute. As of {}.{}</p>",
        escape(&format!("{:.8}", overview.fleet)),
        escape(&format!("{:.8}", overview.fleet)),
        overview.programs,
        overview.last_minute,
        escape(&overview.now),
        if overview.draining { " <b class=\"warn\">Draining: no worker takes anything new.</b>" } else { "" },
    );
    page += &minutes(&overview.by_minute);
    page += &plans(overview);
    page += &workers(&overview.workers);
    page += &failures(overview);
    page += "</body></html>\n";
    page
}

/// Programs for each of the last sixty minutes.
fn minutes(counts: &[i64]) -> String {
    let most = counts.iter().copied().max().unwrap_or(0).max(1);
    let mut bars = String::new();
    for (at, count) in counts.iter().enumerate() {
        let height = 100.0 * *count as f64 / most as f64;
        // writing to a string does not fail
        let _ = write!(
            bars,
            "<rect x=\"{}\" y=\"{:.1}\" width=\"9\" height=\"{height:.1}\" fill=\"#0072b2\"><title>{count} programs, \
             {} min ago</title></rect>",
            at * 10,
            100.0 - height,
            counts.len() - 1 - at,
        );
    }
    let width = counts.len() * 10;
    format!(
        "<h2>Programs a minute, the last hour</h2><svg viewBox=\"0 0 {width} 100\" preserveAspectRatio=\"none\" \
         role=\"img\" aria-label=\"programs a minute\">{bars}</svg><p class=\"quiet\">at most {most} a minute</p>"
    )
}

fn plans(overview: &Overview) -> String {
    let total: i64 = overview.plans.values().sum();
    let mut text = "<h2>Plans</h2>".to_string();
    if total == 0 {
        return text + "<p class=\"quiet\">none yet</p>";
    }
    let count = |state: &str| overview.plans.get(state).copied().unwrap_or(0);
    text += "<div class=\"bar\">";
    for (state, colour) in COLOURS {
        let share = 100.0 * count(state) as f64 / total as f64;
        let _ = write!(text, "<div style=\"width:{share:.3}%;background:{colour}\" title=\"{state}\"></div>");
    }
    text += "</div><p class=\"key\">";
    for (state, colour) in COLOURS {
        let _ = write!(text, "<b><span style=\"background:{colour}\"></span>{} {state}</b> ", count(state));
    }
    text += "</p><div class=\"wide\"><table><tr><th>target<th class=\"n\">workers<th class=\"n\">waiting<th class=\"n\">leased<th \
             class=\"n\">parked<th class=\"n\">done<th>space";
    for target in &overview.targets {
        let is_stuck = target.workers == 0 && target.waiting > 0;
        let _ = write!(
            text,
            "<tr><td>{}<td class=\"n{}\">{}<td class=\"n\">{}<td class=\"n\">{}<td class=\"n\">{}<td class=\"n\">{}\
             <td class=\"quiet\" title=\"{}\">{}",
            escape(&format!("{:.8}", target.fingerprint)),
            if is_stuck { " warn" } else { "" },
            target.workers,
            target.waiting,
            target.leased,
            target.parked,
            target.done,
            escape(&target.space),
            escape(&format!("{:.24}…", target.space)),
        );
    }
    text + "</table></div>"
}

fn workers(workers: &[WorkerRow]) -> String {
    let is_there = |worker: &&WorkerRow| worker.state != WorkerState::Gone;
    let most = workers.iter().filter(is_there).map(|worker| worker.last_minute).max().unwrap_or(0).max(1);
    let mut text = "<h2>Workers</h2><div class=\"wide\"><table><tr><th class=\"n\">worker<th>name<th>target\
                    <th>state<th class=\"n\">programs<th>the last minute<th class=\"n\">share of time measuring"
        .to_string();
    for worker in workers.iter().filter(is_there) {
        let whole = (worker.busy_s + worker.idle_s).max(1e-9);
        let is_silent = worker.state == WorkerState::Silent;
        let _ = write!(
            text,
            "<tr><td class=\"n\">{}<td>{}<td>{}<td{}>{}<td class=\"n\">{}<td><span class=\"share\"><i \
             style=\"width:{:.1}%\"></i></span> {}<td class=\"n\">{:.0} %",
            worker.id,
            escape(&worker.name),
            escape(&format!("{:.8}", worker.target)),
            if is_silent { " class=\"warn\"" } else { "" },
            worker.state.name(),
            worker.programs,
            100.0 * worker.last_minute as f64 / most as f64,
            worker.last_minute,
            100.0 * worker.busy_s / whole,
        );
    }
    text + "</table></div>"
}

fn failures(overview: &Overview) -> String {
    if overview.failed.is_empty() {
        return String::new();
    }
    let most = overview.failed.values().copied().max().unwrap_or(1).max(1);
    let mut text = "<h2>Programs without a time</h2><table><tr><th>cause<th class=\"n\">programs<th>".to_string();
    for (cause, count) in &overview.failed {
        let _ = write!(
            text,
            "<tr><td>{}<td class=\"n\">{count}<td><span class=\"share\"><i style=\"width:{:.1}%\"></i></span>",
            escape(cause),
            100.0 * *count as f64 / most as f64,
        );
    }
    text + "</table>"
}
