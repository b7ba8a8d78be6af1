//! A comparison as one self-contained page: curves, tables, every task.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::compare::{Comparison, NOTHING_FOUND, TaskComparison, checkpoints};

/// Colours of methods, in the order in which they appear; distinguishable in greyscale and for the
/// colour-blind (Okabe and Ito).
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];

/// Size of a plot in pixels, and the room for its labels.
struct Frame {
    width: f64,
    height: f64,
    left: f64,
    bottom: f64,
}

/// A named line through points (trials, quality).
struct Curve {
    name: String,
    points: Vec<(f64, f64)>,
    /// Lowest and highest quality over the seeds at each point.
    band: Vec<(f64, f64)>,
}

/// About the width of a character of a legend, in pixels.
const CHARACTER: f64 = 6.2;

/// The table of costs says how many programs each of these qualities takes.
const QUALITIES: [f64; 7] = [0.5, 0.7, 0.8, 0.9, 0.95, 0.97, 1.0];

/// The page as HTML, pictures as SVG inside of it; needs nothing from elsewhere.
pub fn html(comparison: &Comparison) -> String {
    let methods: Vec<&String> = comparison.summary.keys().collect();
    let mut page = String::from(HEAD);
    let _ = writeln!(
        page,
        "<h1>Tilescribe: methods compared</h1>\n<p>{} tasks, {} trials each, target {}. Quality is the time of the reference (the best \
         program that any method found, re-measured beside the others: every other run chose it, the rest tell its time) divided by the time of the method's best so far: 1.00 is as fast as the best known, noise may take it above. \
         A run without a correct program counts as {NOTHING_FOUND}. The program that the rules write without any search reaches {:.3}.</p>",
        comparison.tasks.len(),
        comparison.trials,
        escape(&comparison.target),
        comparison.untuned,
    );
    let overall = Frame { width: 720.0, height: 360.0, left: 60.0, bottom: 40.0 };
    let trials = Axis::trials(comparison.trials);
    page += &plot(&overall, &overall_curves(comparison), &trials, true);
    page += "<p>The same over the mean wall clock of a task, proposing and measuring.</p>\n";
    let timed = timed_curves(comparison);
    page += &plot(&overall, &timed, &Axis::seconds(&timed), true);
    page += &summary_table(comparison);
    page += &control_table(comparison);
    page += &cost_table(comparison);
    page += &failure_table(comparison);
    page += "<h2>Every task</h2>\n<div class=\"grid\">\n";
    for task in &comparison.tasks {
        let frame = Frame { width: 330.0, height: 190.0, left: 40.0, bottom: 30.0 };
        let reference = task.reference_ms.map_or("nothing correct".into(), |ms| format!("{ms:.4} ms"));
        let _ = write!(page, "<figure><figcaption>{} <small>{reference}</small></figcaption>", escape(&task.name));
        let curves: Vec<Curve> = methods.iter().map(|m| task_curve(task, m, &points_of(comparison, m))).collect();
        page += &plot(&frame, &curves, &trials, false);
        page += "</figure>\n";
    }
    page += "</div>\n</body></html>\n";
    page
}

const HEAD: &str = "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><title>Tilescribe: methods compared</title>\n<style>\
body{font:15px/1.5 system-ui,sans-serif;max-width:1080px;margin:2em auto;padding:0 1em;color:#222}\
table{border-collapse:collapse;display:block;overflow-x:auto;max-width:100%}td,th{padding:.2em .8em;text-align:right;white-space:nowrap;border-bottom:1px solid #ddd}th:first-child,td:first-child{text-align:left}\
svg{max-width:100%;height:auto}.grid{display:flex;flex-wrap:wrap;gap:1em}figure{margin:0;max-width:100%}figcaption{font-size:12px}small{color:#666}\
svg text{font:11px system-ui,sans-serif;fill:#444}\
@media(max-width:600px){svg[width=\"720\"] text{font-size:17px}}</style></head><body>\n";

/// Text as HTML, be it in an attribute.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn overall_curves(comparison: &Comparison) -> Vec<Curve> {
    let curve = |(name, points): (&String, &BTreeMap<usize, f64>)| Curve {
        name: name.clone(),
        points: points.iter().map(|(trials, quality)| (*trials as f64, *quality)).collect(),
        band: points.keys().map(|trials| seed_band(comparison, name, *trials)).collect(),
    };
    comparison.summary.iter().map(curve).collect()
}

/// Lowest and highest geometric mean over the tasks, of single seeds.
fn seed_band(comparison: &Comparison, method: &str, trials: usize) -> (f64, f64) {
    let mut by_seed: BTreeMap<u64, Vec<f64>> = Default::default();
    for task in &comparison.tasks {
        let Some(reference) = task.reference_ms else { continue };
        for run in task.runs.iter().filter(|r| r.method == method && r.trials >= trials) {
            let quality = run.checked_ms.get(&trials).map_or(NOTHING_FOUND, |ms| reference / ms);
            by_seed.entry(run.seed).or_default().push(quality.ln());
        }
    }
    let means = by_seed.values().map(|logs| (logs.iter().sum::<f64>() / logs.len() as f64).exp());
    means.fold((f64::INFINITY, 0.0), |(low, high), q| (low.min(q), high.max(q)))
}

/// The numbers of trials that a method is known at.
fn points_of(comparison: &Comparison, method: &str) -> Vec<usize> {
    comparison.summary.get(method).map_or(Vec::new(), |points| points.keys().copied().collect())
}

/// A method on one task: the mean over seeds, and their range.
fn task_curve(task: &TaskComparison, method: &str, trials: &[usize]) -> Curve {
    let reference = task.reference_ms.unwrap_or(0.0);
    let (mut points, mut band) = (Vec::new(), Vec::new());
    for point in trials.iter().copied() {
        let runs = task.runs.iter().filter(|r| r.method == method && r.trials >= point);
        let qualities: Vec<f64> =
            runs.map(|r| r.checked_ms.get(&point).map_or(NOTHING_FOUND, |ms| reference / ms)).collect();
        if qualities.is_empty() {
            continue;
        }
        let mean = (qualities.iter().map(|q| q.max(1e-9).ln()).sum::<f64>() / qualities.len() as f64).exp();
        points.push((point as f64, mean));
        band.push(qualities.iter().fold((f64::INFINITY, 0.0), |(low, high), q| (q.min(low), q.max(high))));
    }
    Curve { name: method.to_string(), points, band }
}

/// The same curves as [`overall_curves`], over seconds.
fn timed_curves(comparison: &Comparison) -> Vec<Curve> {
    let mut curves = overall_curves(comparison);
    for curve in &mut curves {
        let seconds = comparison.seconds.get(&curve.name);
        for (x, _) in &mut curve.points {
            *x = seconds.and_then(|seconds| seconds.get(&(*x as usize))).copied().unwrap_or(*x).max(1e-3);
        }
    }
    curves
}

/// A logarithmic horizontal axis.
struct Axis {
    low: f64,
    high: f64,
    ticks: Vec<f64>,
    label: &'static str,
}

impl Axis {
    fn trials(trials: usize) -> Axis {
        let ticks = checkpoints(trials).into_iter().map(|point| point as f64).collect();
        Axis { low: 1.0, high: trials.max(2) as f64, ticks, label: "measured programs" }
    }

    fn seconds(curves: &[Curve]) -> Axis {
        let all = || curves.iter().flat_map(|curve| &curve.points).map(|(seconds, _)| *seconds);
        let (low, high) = (all().fold(f64::INFINITY, f64::min), all().fold(0.0, f64::max));
        let (low, high) = if low < high { (low, high) } else { (0.1, 10.0) };
        let powers = (low.log10().floor() as i32)..=(high.log10().ceil() as i32);
        let ticks = powers.flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10f64.powi(power)));
        Axis { low, high, ticks: ticks.filter(|tick| (low..=high).contains(tick)).collect(), label: "seconds" }
    }
}

/// Quality over trials or seconds.
fn plot(frame: &Frame, curves: &[Curve], axis: &Axis, legend: bool) -> String {
    let Frame { width, height, left, bottom } = *frame;
    let x = |at: f64| left + (at / axis.low).ln() / (axis.high / axis.low).ln() * (width - left - 12.0);
    let y = |quality: f64| 8.0 + (1.05 - quality.min(1.05)) / 1.05 * (height - bottom - 8.0);
    let mut svg =
        format!("<svg viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" role=\"img\">\n");
    for tick in [0.0, 0.25, 0.5, 0.75, 1.0] {
        let at = y(tick);
        let _ = writeln!(
            svg,
            "<line x1=\"{left}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#e5e5e5\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{tick:.2}</text>",
            width - 12.0,
            left - 6.0,
            at + 4.0
        );
    }
    for tick in &axis.ticks {
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{tick}</text>",
            x(*tick),
            height - bottom + 16.0
        );
    }
    for (number, (curve, colour)) in curves.iter().zip(COLOURS.iter().cycle()).enumerate() {
        let dash = dash(number);
        let along = |value: &dyn Fn(usize) -> f64, order: &mut dyn Iterator<Item = usize>| {
            order.map(|i| format!("{:.1},{:.1}", x(curve.points[i].0), y(value(i)))).collect::<Vec<_>>().join(" ")
        };
        let count = curve.points.len();
        let upper = along(&|i| curve.band[i].1, &mut (0..count));
        let lower = along(&|i| curve.band[i].0, &mut (0..count).rev());
        let line = along(&|i| curve.points[i].1, &mut (0..count));
        let _ = writeln!(
            svg,
            "<polygon points=\"{upper} {lower}\" fill=\"{colour}\" opacity=\"0.12\"/><polyline points=\"{line}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>"
        );
    }
    if legend {
        let longest = curves.iter().map(|curve| curve.name.chars().count()).max().unwrap_or(0);
        let room = (longest as f64 * CHARACTER + 8.0).max(116.0);
        for (at, (curve, colour)) in curves.iter().zip(COLOURS.iter().cycle()).enumerate() {
            let top = height - bottom - 18.0 * (curves.len() - at) as f64;
            let _ = writeln!(
                svg,
                "<line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\" stroke-width=\"3\"{}/><text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                width - room - 26.0,
                width - room - 6.0,
                top - 4.0,
                top - 4.0,
                dash(at),
                width - room,
                top,
                escape(&curve.name)
            );
        }
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            (width + left) / 2.0,
            height - 4.0,
            axis.label
        );
    }
    svg + "</svg>\n"
}

/// Colours come again with dashes.
fn dash(number: usize) -> &'static str {
    if number < COLOURS.len() { "" } else { " stroke-dasharray=\"5 3\"" }
}

fn summary_table(comparison: &Comparison) -> String {
    let points: BTreeSet<usize> = comparison.summary.values().flat_map(|points| points.keys().copied()).collect();
    let mut table = String::from(
        "<h2>Quality by trials</h2>\n<p>Geometric mean over tasks and seeds; below it, where there are several seeds, its 95 % confidence interval over them.</p>\n<table><tr><th>method</th>",
    );
    points.iter().for_each(|p| {
        let _ = write!(table, "<th>{p}</th>");
    });
    table += "</tr>\n";
    for (method, qualities) in &comparison.summary {
        let _ = write!(table, "<tr><td>{}</td>", escape(method));
        for point in &points {
            let interval = comparison.intervals.get(method).and_then(|intervals| intervals.get(point));
            let interval =
                interval.map_or(String::new(), |(low, high)| format!("<br><small>{low:.3} to {high:.3}</small>"));
            let _ = match qualities.get(point) {
                Some(quality) => write!(table, "<td>{quality:.3}{interval}</td>"),
                None => write!(table, "<td>-</td>"),
            };
        }
        table += "</tr>\n";
    }
    table + "</table>\n"
}

/// What methods do better than their controls; nothing where there are none.
fn control_table(comparison: &Comparison) -> String {
    if comparison.controls.is_empty() {
        return String::new();
    }
    let points: BTreeSet<usize> =
        comparison.controls.iter().flat_map(|paired| paired.by_trials.keys()).copied().collect();
    let mut table = String::from(
        "<h2>Methods beside their controls</h2>\n<p>Quality of the method minus that of the control, over pairs of runs of one task and seed; below it \
         the 95 % interval over resampled tasks and seeds, where there are several tasks. A control asks the same search a model that has learned nothing.</p>\n\
         <table><tr><th>method - control</th>",
    );
    points.iter().for_each(|p| {
        let _ = write!(table, "<th>{p}</th>");
    });
    table += "</tr>\n";
    for paired in &comparison.controls {
        let _ = write!(table, "<tr><td>{} - {}</td>", escape(&paired.method), escape(&paired.control));
        for point in &points {
            let Some(found) = paired.by_trials.get(point) else {
                table += "<td>-</td>";
                continue;
            };
            let interval = found
                .interval
                .map_or(String::new(), |(low, high)| format!("<br><small>{low:+.3} to {high:+.3}</small>"));
            let _ = write!(table, "<td>{:+.3}{interval}</td>", found.difference);
        }
        table += "</tr>\n";
    }
    table + "</table>\n"
}

/// The first number of trials at which each quality is reached, and the seconds that it takes.
fn cost_table(comparison: &Comparison) -> String {
    let mut table = String::from(
        "<h2>Trials and time to quality</h2>\n<p>The first of the numbers of trials above after which the geometric mean reaches a quality, and the mean seconds of a \
         task until then, proposing and measuring.</p>\n<table><tr><th>method</th>",
    );
    for quality in QUALITIES {
        let _ = write!(table, "<th>{quality:.2}</th>");
    }
    table += "</tr>\n";
    for (method, qualities) in &comparison.summary {
        let _ = write!(table, "<tr><td>{}</td>", escape(method));
        for wanted in QUALITIES {
            let reached = qualities.iter().find(|(_, quality)| **quality >= wanted).map(|(point, _)| point);
            let seconds =
                reached.and_then(|point| comparison.seconds.get(method).and_then(|seconds| seconds.get(point)));
            let _ = match (reached, seconds) {
                (Some(point), Some(seconds)) => write!(table, "<td>{point}<br><small>{seconds:.2} s</small></td>"),
                _ => write!(table, "<td>never</td>"),
            };
        }
        table += "</tr>\n";
    }
    table + "</table>\n"
}

/// What did not get a time, by cause.
fn failure_table(comparison: &Comparison) -> String {
    let mut table = String::from(
        "<h2>Programs without a time</h2>\n<table><tr><th>method</th><th>measured</th><th>failed</th><th>causes</th></tr>\n",
    );
    for method in comparison.summary.keys() {
        let runs = || comparison.tasks.iter().flat_map(|t| &t.runs).filter(|r| r.method == *method);
        let mut causes: BTreeMap<&str, usize> = BTreeMap::new();
        for (cause, count) in runs().flat_map(|run| &run.failed) {
            *causes.entry(cause.name()).or_default() += count;
        }
        let measured: usize = runs().map(|run| run.best_ms.len()).sum();
        let failed: usize = causes.values().sum();
        let causes: Vec<String> = causes.iter().map(|(cause, count)| format!("{cause} {count}")).collect();
        let _ = writeln!(
            table,
            "<tr><td>{}</td><td>{measured}</td><td>{failed}</td><td>{}</td></tr>",
            escape(method),
            causes.join(", ")
        );
    }
    table + "</table>\n"
}
