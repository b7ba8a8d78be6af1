//! Progress for people, on standard error: a bar where it is a terminal, and a line a minute where it is a
//! file.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::style::ProgressTracker;
use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle, TermLike};

use super::messages::{self, Format, SEPARATOR, progress_line};

/// What is over sooner writes no line to a file.
const BETWEEN_LINES: Duration = Duration::from_secs(60);
/// The same for a program that watches.
const BETWEEN_MESSAGES: Duration = Duration::from_millis(100);
/// The pace is a mean over so much at least.
const SHORTEST_WINDOW: Duration = Duration::from_secs(60);
/// Columns of a line in a file.
const WIDTH: u16 = 160;

/// A bar over `total` steps, or over a number that is set later (0), with the time that is left.
pub fn bar(total: u64, what: &'static str) -> ProgressBar {
    let json = ["{prefix}", "{done}", "{total}", "{msg}", "{seconds}", "{seconds_left}"].join(&SEPARATOR.to_string());
    let (target, template, tick) = match io::stderr().is_terminal() {
        _ if messages::format() == Format::Json => {
            let lines = Lines::of_messages(io::stderr(), BETWEEN_MESSAGES);
            (ProgressDrawTarget::term_like(Box::new(lines)), json.as_str(), 200)
        }
        true => (ProgressDrawTarget::stderr(), "{prefix} {wide_bar} {count} {msg} {elapsed}, {left} left", 200),
        false => {
            let lines = Lines::of_sentences(io::stderr(), BETWEEN_LINES);
            (ProgressDrawTarget::term_like(Box::new(lines)), "{prefix} {count} {msg} {elapsed}, {left} left", 1000)
        }
    };
    // a total that is not known yet: the bar is empty until it is
    let bar = ProgressBar::with_draw_target((total > 0).then_some(total), target);
    // a template that does not parse would be seen at once; the plain bar does then
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    let style = style.with_key("left", Pace::default()).with_key("count", count);
    let number = |number: fn(&ProgressState) -> Option<f64>| {
        move |state: &ProgressState, text: &mut dyn fmt::Write| {
            // a line that cannot be written is not shown
            let _ = match number(state) {
                Some(number) => write!(text, "{number}"),
                None => text.write_str("?"),
            };
        }
    };
    bar.set_style(
        style
            .with_key("done", number(|state| Some(state.pos() as f64)))
            .with_key("total", number(|state| state.len().filter(|total| *total > 0).map(|total| total as f64)))
            .with_key("seconds", number(|state| Some(state.elapsed().as_secs_f64())))
            .with_key("seconds_left", Left(Pace::default())),
    );
    bar.set_prefix(what);
    bar.enable_steady_tick(Duration::from_millis(tick));
    bar
}

/// Steps done and to do, where that is known.
fn count(state: &ProgressState, text: &mut dyn fmt::Write) {
    // a line that cannot be written is not shown
    let _ = match state.len().filter(|total| *total > 0) {
        Some(total) => write!(text, "{}/{total}", state.pos()),
        None => write!(text, "{}", state.pos()),
    };
}

/// The time that is left, at the mean pace of the later half of the time so far. Steps may come in bursts
/// with half a minute between them (a comparison takes known runs from its log, and measures winners again),
/// which the pace of the last seconds would make hours or nothing of.
#[derive(Clone, Default, Debug)]
struct Pace {
    started: Option<Instant>,
    /// How many steps were done when, at most one entry a second.
    seen: VecDeque<(Instant, u64)>,
}

impl Pace {
    fn see(&mut self, now: Instant, done: u64) {
        if self.seen.back().is_some_and(|(last, _)| now.duration_since(*last) < Duration::from_secs(1)) {
            return;
        }
        self.seen.push_back((now, done));
        let started = *self.started.get_or_insert(now);
        let window = SHORTEST_WINDOW.max(now.duration_since(started) / 2);
        while self.seen.get(1).is_some_and(|(second, _)| now.duration_since(*second) >= window) {
            self.seen.pop_front();
        }
    }

    /// `None` where nothing was done lately.
    fn left(&self, total: u64) -> Option<Duration> {
        let ((first, before), (last, done)) = (self.seen.front()?, self.seen.back()?);
        let seconds = last.duration_since(*first).as_secs_f64();
        let share = total.saturating_sub(*done) as f64 / done.checked_sub(*before)? as f64;
        Duration::try_from_secs_f64(seconds * share).ok()
    }
}

impl ProgressTracker for Pace {
    fn clone_box(&self) -> Box<dyn ProgressTracker> {
        Box::new(self.clone())
    }

    fn tick(&mut self, state: &ProgressState, now: Instant) {
        self.see(now, state.pos());
    }

    fn reset(&mut self, _: &ProgressState, _: Instant) {
        *self = Pace::default();
    }

    fn write(&self, state: &ProgressState, text: &mut dyn fmt::Write) {
        let left = state.len().and_then(|total| self.left(total));
        // a line that cannot be written is not shown
        let _ = match left {
            Some(left) => write!(text, "{:#}", HumanDuration(left)),
            None => write!(text, "?"),
        };
    }
}

/// The seconds that are left, as a number.
#[derive(Clone, Debug)]
struct Left(Pace);

impl ProgressTracker for Left {
    fn clone_box(&self) -> Box<dyn ProgressTracker> {
        Box::new(self.clone())
    }

    fn tick(&mut self, state: &ProgressState, now: Instant) {
        self.0.see(now, state.pos());
    }

    fn reset(&mut self, _: &ProgressState, _: Instant) {
        self.0 = Pace::default();
    }

    fn write(&self, state: &ProgressState, text: &mut dyn fmt::Write) {
        let left = state.len().and_then(|total| self.0.left(total));
        // a line that cannot be written is not shown
        let _ = match left {
            Some(left) => write!(text, "{:.1}", left.as_secs_f64()),
            None => text.write_str("?"),
        };
    }
}

/// A file as a terminal on which lines stand below each other: of all that is drawn, what comes first after
/// each pause.
#[derive(Debug)]
struct Lines<W> {
    pause: Duration,
    width: u16,
    /// The line for what was drawn, if there is one.
    render: fn(&str) -> Option<String>,
    state: Mutex<State<W>>,
}

#[derive(Debug)]
struct State<W> {
    file: W,
    /// What was drawn since the last flush.
    drawn: String,
    /// `None`: the first line need not wait.
    written: Option<Instant>,
}

impl<W> Lines<W> {
    /// For people: the first line comes after a pause, too.
    fn of_sentences(file: W, pause: Duration) -> Lines<W> {
        let render = |drawn: &str| Some(drawn.trim().to_string()).filter(|line| !line.is_empty());
        let state = State { file, drawn: String::new(), written: Some(Instant::now()) };
        Lines { pause, width: WIDTH, render, state: Mutex::new(state) }
    }

    /// For a program that watches: nothing is cut off.
    fn of_messages(file: W, pause: Duration) -> Lines<W> {
        let state = State { file, drawn: String::new(), written: None };
        Lines { pause, width: u16::MAX, render: progress_line, state: Mutex::new(state) }
    }
}

impl<W: Write + Send + std::fmt::Debug> TermLike for Lines<W> {
    fn width(&self) -> u16 {
        self.width
    }

    fn move_cursor_up(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_down(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_right(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_left(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.write_str(text)
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).drawn.push_str(text);
        Ok(())
    }

    fn clear_line(&self) -> io::Result<()> {
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let drawn = std::mem::take(&mut state.drawn);
        match (self.render)(&drawn) {
            Some(line) if state.written.is_none_or(|written| written.elapsed() >= self.pause) => {
                state.written = Some(Instant::now());
                writeln!(state.file, "{line}")
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use indicatif::TermLike;

    use super::{Lines, Pace};

    #[test]
    fn the_time_left_is_that_of_the_mean_pace() {
        let start = Instant::now();
        let mut pace = Pace::default();
        assert_eq!(pace.left(1000), None);
        // a hundred steps every 25 seconds, in one burst each
        for second in 0..=200 {
            pace.see(start + Duration::from_secs(second), second / 25 * 100);
        }
        assert_eq!(pace.left(1000), Some(Duration::from_secs(50)));
        // nothing is done any more
        for second in 201..=1000 {
            pace.see(start + Duration::from_secs(second), 800);
        }
        assert_eq!(pace.left(1000), None);
        assert!(pace.seen.len() <= 502, "{}", pace.seen.len());
    }

    fn written(pause: Duration) -> String {
        let lines = Lines::of_sentences(Vec::new(), pause);
        for drawn in ["measuring 1/9", "", "measuring 2/9"] {
            lines.write_str("\r").unwrap();
            lines.write_str(drawn).unwrap();
            lines.write_str("    ").unwrap();
            lines.flush().unwrap();
        }
        String::from_utf8(lines.state.into_inner().unwrap().file).unwrap()
    }

    #[test]
    fn a_file_gets_a_line_after_each_pause() {
        assert_eq!(written(Duration::ZERO), "measuring 1/9\nmeasuring 2/9\n");
        assert_eq!(written(Duration::from_secs(3600)), "");
    }
}
