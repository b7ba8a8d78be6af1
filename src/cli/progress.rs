//! Progress for people, on standard error: a bar where it is a terminal, and a line a minute where it is a file.

use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle, TermLike};

/// What is over sooner writes no line to a file.
const BETWEEN_LINES: Duration = Duration::from_secs(60);
/// Columns of a line in a file.
const WIDTH: u16 = 160;

/// A bar over `total` steps, with the time that is left.
pub fn bar(total: u64, what: &'static str) -> ProgressBar {
    let (target, template, tick) = match io::stderr().is_terminal() {
        true => (ProgressDrawTarget::stderr(), "{prefix} {wide_bar} {pos}/{len} {msg} {elapsed}, {eta} left", 200),
        false => {
            let lines = Lines::new(io::stderr(), BETWEEN_LINES);
            (ProgressDrawTarget::term_like(Box::new(lines)), "{prefix} {pos}/{len} {msg} {elapsed}, {eta} left", 1000)
        }
    };
    let bar = ProgressBar::with_draw_target(Some(total), target);
    // a template that does not parse would be seen at once; the plain bar does then
    bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_prefix(what);
    bar.enable_steady_tick(Duration::from_millis(tick));
    bar
}

/// A file as a terminal on which lines stand below each other: of all that is drawn, what comes first after each pause.
#[derive(Debug)]
struct Lines<W> {
    pause: Duration,
    state: Mutex<State<W>>,
}

#[derive(Debug)]
struct State<W> {
    file: W,
    /// What was drawn since the last flush.
    drawn: String,
    written: Instant,
}

impl<W> Lines<W> {
    fn new(file: W, pause: Duration) -> Lines<W> {
        Lines { pause, state: Mutex::new(State { file, drawn: String::new(), written: Instant::now() }) }
    }
}

impl<W: Write + Send + std::fmt::Debug> TermLike for Lines<W> {
    fn width(&self) -> u16 {
        WIDTH
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
        let line = drawn.trim();
        if line.is_empty() || state.written.elapsed() < self.pause {
            return Ok(());
        }
        state.written = Instant::now();
        writeln!(state.file, "{line}")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use indicatif::TermLike;

    use super::Lines;

    fn written(pause: Duration) -> String {
        let lines = Lines::new(Vec::new(), pause);
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
