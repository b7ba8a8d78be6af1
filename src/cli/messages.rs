//! What a program that drives this one reads from standard error, with `--message-format json`: one JSON
//! object a line, for progress and for the error that ends a command. Results stay on standard output.

use std::ffi::OsString;
use std::sync::OnceLock;

use clap::ValueEnum;
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
    pub fn of_arguments(arguments: impl IntoIterator<Item = OsString>) -> Format {
        let arguments: Vec<OsString> = arguments.into_iter().collect();
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

/// Stands between the parts of what a bar draws for [`progress_line`]: no text has it.
pub const SEPARATOR: char = '\u{1f}';

/// What a bar drew as a line: what, done, total, text, seconds elapsed, seconds left, in this order and with
/// [`SEPARATOR`] between them. `None` where that was nothing, or cleared.
pub fn progress_line(drawn: &str) -> Option<String> {
    line(drawn).map(|line| line.to_string())
}

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
