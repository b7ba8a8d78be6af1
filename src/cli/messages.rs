//! What a program that drives this one reads from standard error, with `--message-format json`: one JSON
//! object a line, for progress and for the error that ends a command. Results stay on standard output.

use std::io::{self, Write};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use indicatif::TermLike;
use serde_json::{Map, Value, json};

/// How progress and errors are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum Format {
    /// Bars and sentences
    #[default]
    Human,
    /// One JSON object a line
    Json,
}

impl Format {
    /// What arguments ask for that are not understood otherwise.
    pub fn of_arguments(arguments: impl IntoIterator<Item = String>) -> Format {
        let arguments: Vec<String> = arguments.into_iter().collect();
        let apart = arguments.windows(2).any(|pair| pair == ["--message-format", "json"]);
        match apart || arguments.iter().any(|argument| argument == "--message-format=json") {
            true => Format::Json,
            false => Format::Human,
        }
    }
}

static FORMAT: OnceLock<Format> = OnceLock::new();

/// Says how this process writes; the first call counts.
pub fn set_format(format: Format) {
    let _ = FORMAT.set(format);
}

pub fn format() -> Format {
    FORMAT.get().copied().unwrap_or_default()
}

/// Writes the error that ends a command; `about` is what a caller tells apart.
pub fn error(text: &str, about: &Map<String, Value>) {
    match format() {
        Format::Human => eprintln!("error: {text}"),
        Format::Json => {
            let mut line = json!({"type": "error", "text": text});
            about.iter().for_each(|(field, value)| line[field] = value.clone());
            eprintln!("{line}");
        }
    }
}

/// Stands between the parts of what a bar draws for [`ProgressLines`]: no text has it.
pub const SEPARATOR: char = '\u{1f}';

/// Not more often, in a process that somebody watches.
const BETWEEN_LINES: Duration = Duration::from_millis(100);

/// A terminal that writes each state of a bar as a line: what, done, total, text, seconds elapsed, seconds
/// left, in this order and with [`SEPARATOR`] between them.
#[derive(Debug, Default)]
pub struct ProgressLines(Mutex<(String, Option<Instant>)>);

impl TermLike for ProgressLines {
    fn width(&self) -> u16 {
        u16::MAX
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
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0.push_str(text);
        Ok(())
    }

    fn clear_line(&self) -> io::Result<()> {
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let drawn = std::mem::take(&mut state.0);
        match line(&drawn) {
            Some(line) if state.1.is_none_or(|written| written.elapsed() >= BETWEEN_LINES) => {
                state.1 = Some(Instant::now());
                writeln!(io::stderr(), "{line}")
            }
            _ => Ok(()),
        }
    }
}

/// The object for what a bar drew; `None` where that was nothing, or cleared.
fn line(drawn: &str) -> Option<Value> {
    let parts: Vec<&str> = drawn.trim_matches(['\r', '\n', ' ']).split(SEPARATOR).collect();
    let &[what, done, total, text, elapsed, left] = parts.as_slice() else { return None };
    let count = |text: &str| text.parse::<u64>().ok();
    let seconds = |text: &str| text.parse::<f64>().ok();
    Some(json!({
        "type": "progress", "what": what, "done": count(done)?, "total": count(total), "text": text,
        "elapsed_s": seconds(elapsed)?, "left_s": seconds(left),
    }))
}

#[cfg(test)]
mod tests {
    use super::line;

    #[test]
    fn what_a_bar_draws_becomes_an_object() {
        let drawn = "\rmeasuring\u{1f}3\u{1f}9\u{1f}4 \"correct\"\u{1f}1.5\u{1f}?   ";
        let expected = serde_json::json!({
            "type": "progress", "what": "measuring", "done": 3, "total": 9, "text": "4 \"correct\"",
            "elapsed_s": 1.5, "left_s": null,
        });
        assert_eq!(line(drawn), Some(expected));
        assert_eq!(line("   "), None);
    }
}
