//! Progress for people: on standard error, and only where it is a terminal.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar over `total` steps, with the time that is left. Silent for scripts.
pub fn bar(total: u64, what: &'static str) -> ProgressBar {
    let target = if std::io::stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(Some(total), target);
    let template = "{prefix} {wide_bar} {pos}/{len} {msg} {elapsed}, {eta} left";
    // a template that does not parse would be seen at once; the plain bar does then
    bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_prefix(what);
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
