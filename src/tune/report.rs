//! A comparison as one self-contained page: curves, tables, every task.

use std::fmt::Write as _;

use super::compare::{Comparison, NOTHING_FOUND, TaskComparison, checkpoints};

/// Colours of methods, in the order in which they appear; distinguishable in greyscale and for the colour-blind (Okabe and Ito).
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

/// The page as HTML, pictures as SVG inside of it; needs nothing from elsewhere.
pub fn html(comparison: &Comparison) -> String {
    let methods: Vec<&String> = comparison.summary.keys().collect();
    let mut page = String::from(HEAD);
    let _ = writeln!(
        page,
        "<h1>Tilescribe: methods compared</h1>\n<p>{} tasks, {} trials each, target {}. Quality is the time of the reference (the fastest \
         program that any method found, re-measured beside the others) divided by the time of the method's best so far: 1.00 is as fast as the best known. \
         A run without a correct program counts as {NOTHING_FOUND}. The program that the rules write without any search reaches {:.3}.</p>",
        comparison.tasks.len(),
        comparison.trials,
        escape(&comparison.target),
        comparison.untuned,
    );
    let overall = Frame { width: 720.0, height: 360.0, left: 60.0, bottom: 40.0 };
    page += &plot(&overall, &overall_curves(comparison), comparison.trials, true);
    page += &summary_table(comparison);
    page += "<h2>Every task</h2>\n<div class=\"grid\">\n";
    for task in &comparison.tasks {
        let frame = Frame { width: 330.0, height: 190.0, left: 40.0, bottom: 30.0 };
        let reference = task.reference_ms.map_or("nothing correct".into(), |ms| format!("{ms:.4} ms"));
        let _ = write!(page, "<figure><figcaption>{} <small>{reference}</small></figcaption>", escape(&task.name));
        let curves: Vec<Curve> = methods.iter().map(|m| task_curve(task, m, comparison.trials)).collect();
        page += &plot(&frame, &curves, comparison.trials, false);
        page += "</figure>\n";
    }
    page += "</div>\n</body></html>\n";
    page
}

const HEAD: &str = "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Tilescribe: methods compared</title>\n<style>\
body{font:15px/1.5 system-ui,sans-serif;max-width:1080px;margin:2em auto;padding:0 1em;color:#222}\
table{border-collapse:collapse}td,th{padding:.2em .8em;text-align:right;border-bottom:1px solid #ddd}th:first-child,td:first-child{text-align:left}\
.grid{display:flex;flex-wrap:wrap;gap:1em}figure{margin:0}figcaption{font-size:12px}small{color:#666}\
svg text{font:11px system-ui,sans-serif;fill:#444}</style></head><body>\n";

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn overall_curves(comparison: &Comparison) -> Vec<Curve> {
    let curve = |(name, points): (&String, &std::collections::BTreeMap<usize, f64>)| Curve {
        name: name.clone(),
        points: points.iter().map(|(trials, quality)| (*trials as f64, *quality)).collect(),
        band: points.keys().map(|trials| seed_band(comparison, name, *trials)).collect(),
    };
    comparison.summary.iter().map(curve).collect()
}

/// Lowest and highest geometric mean over the tasks, of single seeds.
fn seed_band(comparison: &Comparison, method: &str, trials: usize) -> (f64, f64) {
    let mut by_seed: std::collections::BTreeMap<u64, Vec<f64>> = Default::default();
    for task in &comparison.tasks {
        let Some(reference) = task.reference_ms else { continue };
        for run in task.runs.iter().filter(|r| r.method == method) {
            let quality = run.checked_ms.get(&trials).map_or(NOTHING_FOUND, |ms| reference / ms);
            by_seed.entry(run.seed).or_default().push(quality.ln());
        }
    }
    let means = by_seed.values().map(|logs| (logs.iter().sum::<f64>() / logs.len() as f64).exp());
    means.fold((f64::INFINITY, 0.0), |(low, high), q| (low.min(q), high.max(q)))
}

/// A method on one task: the mean over seeds, and their range.
fn task_curve(task: &TaskComparison, method: &str, trials: usize) -> Curve {
    let reference = task.reference_ms.unwrap_or(0.0);
    let runs: Vec<_> = task.runs.iter().filter(|r| r.method == method).collect();
    let (mut points, mut band) = (Vec::new(), Vec::new());
    for point in checkpoints(trials) {
        let qualities: Vec<f64> =
            runs.iter().map(|r| r.checked_ms.get(&point).map_or(NOTHING_FOUND, |ms| reference / ms)).collect();
        if qualities.is_empty() {
            continue;
        }
        let mean = (qualities.iter().map(|q| q.max(1e-9).ln()).sum::<f64>() / qualities.len() as f64).exp();
        points.push((point as f64, mean));
        band.push(qualities.iter().fold((f64::INFINITY, 0.0), |(low, high), q| (q.min(low), q.max(high))));
    }
    Curve { name: method.to_string(), points, band }
}

/// Quality over trials, trials on a logarithmic scale.
fn plot(frame: &Frame, curves: &[Curve], trials: usize, legend: bool) -> String {
    let Frame { width, height, left, bottom } = *frame;
    let last = (trials.max(2) as f64).ln();
    let x = |trial: f64| left + trial.ln() / last * (width - left - 12.0);
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
    for point in checkpoints(trials) {
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{point}</text>",
            x(point as f64),
            height - bottom + 16.0
        );
    }
    for (curve, colour) in curves.iter().zip(COLOURS.iter().cycle()) {
        let along = |value: &dyn Fn(usize) -> f64, order: &mut dyn Iterator<Item = usize>| {
            order.map(|i| format!("{:.1},{:.1}", x(curve.points[i].0), y(value(i)))).collect::<Vec<_>>().join(" ")
        };
        let count = curve.points.len();
        let upper = along(&|i| curve.band[i].1, &mut (0..count));
        let lower = along(&|i| curve.band[i].0, &mut (0..count).rev());
        let line = along(&|i| curve.points[i].1, &mut (0..count));
        let _ = writeln!(
            svg,
            "<polygon points=\"{upper} {lower}\" fill=\"{colour}\" opacity=\"0.12\"/><polyline points=\"{line}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>"
        );
    }
    if legend {
        for (at, (curve, colour)) in curves.iter().zip(COLOURS.iter().cycle()).enumerate() {
            let top = height - bottom - 18.0 * (curves.len() - at) as f64;
            let _ = writeln!(
                svg,
                "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"14\" height=\"4\" fill=\"{colour}\"/><text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                width - 130.0,
                top - 4.0,
                width - 110.0,
                top,
                escape(&curve.name)
            );
        }
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">measured programs</text>",
            (width + left) / 2.0,
            height - 4.0
        );
    }
    svg + "</svg>\n"
}

fn summary_table(comparison: &Comparison) -> String {
    let points = checkpoints(comparison.trials);
    let mut table =
        String::from("<h2>Quality by trials (geometric mean over tasks and seeds)</h2>\n<table><tr><th>method</th>");
    points.iter().for_each(|p| {
        let _ = write!(table, "<th>{p}</th>");
    });
    table += "<th>seconds for all trials</th><th>failed</th></tr>\n";
    for (method, qualities) in &comparison.summary {
        let _ = write!(table, "<tr><td>{}</td>", escape(method));
        for point in &points {
            let _ = match qualities.get(point) {
                Some(quality) => write!(table, "<td>{quality:.3}</td>"),
                None => write!(table, "<td>-</td>"),
            };
        }
        let runs = || comparison.tasks.iter().flat_map(|t| &t.runs).filter(|r| r.method == *method);
        let seconds: f64 = runs().filter_map(|r| r.seconds.last()).sum();
        let (failed, all) = runs().fold((0, 0), |(f, a), r| (f + r.failed, a + r.best_ms.len()));
        let _ = writeln!(table, "<td>{seconds:.1}</td><td>{failed} of {all}</td></tr>");
    }
    table + "</table>\n"
}
