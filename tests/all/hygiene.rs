//! Rules about the source itself (see STYLE: owners of foreign crates, purity, who prints), checked by
//! reading it.

mod arrows;
mod patches;

use std::fs;
use std::path::{Path, PathBuf};

/// A foreign crate, and the only folders or files below `src` that may name it; `runtime` stands for the
/// crate of that name.
const OWNERS: &[(&str, &[&str])] = &[
    ("inkwell", &["codegen"]),
    ("llvm_sys", &["codegen"]),
    ("cudarc", &["measure"]),
    ("candle_core", &["model"]),
    ("candle_nn", &["model"]),
    ("candle_transformers", &["model"]),
    ("hf_hub", &["model"]),
    ("tokenizers", &["language"]),
    ("rusqlite", &["record", "fleet/outbox.rs"]),
    ("tokio_postgres", &["fleet"]),
    ("tokio_postgres_rustls", &["fleet"]),
    ("tokio", &["fleet"]),
    ("rustls", &["fleet"]),
    ("zstd", &["record"]),
    ("prost", &["graph"]),
    ("libloading", &["runtime"]),
    ("clap", &["cli"]),
    ("indicatif", &["cli"]),
    ("ctrlc", &["cli"]),
    ("anyhow", &["cli"]),
    ("tracing_subscriber", &["cli"]),
    ("mimalloc", &["main.rs"]),
];

/// Equal inputs give equal schedules: nothing here reads a file, a clock, a random number or the environment.
const PURE: &[&str] = &["trace.rs", "workload", "nest", "space", "language"];
const IMPURE: &[&str] = &[
    "std::fs",
    "std::env",
    "std::net",
    "std::process",
    "std::time",
    "Instant::",
    "SystemTime",
    "rand::",
    "rand_chacha",
];

/// The crate that artifacts are run with, beside that of the compiler.
const RUNTIME: &str = "runtime";

/// A file of ours, without its test modules.
struct Source {
    /// Below `src`, or `runtime/` and below `runtime/src`.
    path: PathBuf,
    /// Line numbers from 1.
    lines: Vec<(usize, String)>,
}

impl Source {
    fn is_in(&self, places: &[&str]) -> bool {
        places.iter().any(|place| self.path.starts_with(place))
    }

    /// Lines that are no comments.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        self.lines
            .iter()
            .map(|(number, line)| (*number, line.as_str()))
            .filter(|(_, line)| !line.trim_start().starts_with("//"))
    }

    fn at(&self, number: usize, what: &str) -> String {
        let file = match self.path.strip_prefix(RUNTIME) {
            Ok(file) => Path::new("runtime/src").join(file),
            Err(_) => Path::new("src").join(&self.path),
        };
        format!("{}:{number}: {what}", file.display())
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|e| e == extension) {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn sources() -> Vec<Source> {
    let (src, runtime) = (root().join("src"), root().join("runtime/src"));
    let is_test = |path: &Path| path.components().any(|c| c.as_os_str() == "tests" || c.as_os_str() == "tests.rs");
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap();
        let (code, _) = text.split_once("#[cfg(test)]\nmod tests {").unwrap_or((&text, ""));
        let lines = code.lines().enumerate().map(|(number, line)| (number + 1, line.to_string())).collect();
        let path = match path.strip_prefix(&runtime) {
            Ok(path) => Path::new(RUNTIME).join(path),
            Err(_) => path.strip_prefix(&src).unwrap().to_path_buf(),
        };
        Source { path, lines }
    };
    let all = [&src, &runtime].into_iter().flat_map(|folder| files(folder, "rs"));
    let sources: Vec<Source> = all.filter(|path| !is_test(path)).map(read).collect();
    assert!(sources.len() > 20, "the sources are where this test looks for them");
    sources
}

fn assert_none(violations: Vec<String>) {
    assert!(violations.is_empty(), "{}", violations.join("\n"));
}

/// Whether `name` occurs as a path or attribute of its own, and not as part of a longer word.
fn names(line: &str, name: &str) -> bool {
    line.match_indices(name).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = &line[at + name.len()..];
        before.is_none_or(|c| !c.is_alphanumeric() && !matches!(c, '_' | ':' | '"' | '.')) && after.starts_with("::")
    })
}

/// Whether `word` begins anywhere in the line as a word of its own.
fn is_word(line: &str, word: &str) -> bool {
    line.match_indices(word)
        .any(|(at, _)| line[..at].chars().next_back().is_none_or(|before| !before.is_alphanumeric() && before != '_'))
}

#[test]
fn every_foreign_crate_has_one_owner() {
    let mut violations = Vec::new();
    for source in sources() {
        for (foreign, owners) in OWNERS.iter().filter(|(_, owners)| !source.is_in(owners)) {
            let found = source.code().filter(|(_, line)| names(line, foreign));
            violations.extend(found.map(|(n, _)| source.at(n, &format!("{foreign} belongs to {}", owners.join(", ")))));
        }
    }
    assert_none(violations);
}

#[test]
fn scheduling_is_pure() {
    let mut violations = Vec::new();
    // the generator draws from a seed that its caller gives, and from nothing else
    let seeded = ["workload/generate"];
    for source in sources().iter().filter(|source| source.is_in(PURE) && !source.is_in(&seeded)) {
        for (number, line) in source.code() {
            let found = IMPURE.iter().filter(|impure| is_word(line, impure));
            violations.extend(found.map(|impure| source.at(number, &format!("{impure} in a pure module"))));
        }
    }
    assert_none(violations);
}

#[test]
fn only_the_command_line_prints() {
    let printing = ["println!(", "print!(", "eprintln!(", "eprint!(", "dbg!("];
    let mut violations = Vec::new();
    for source in sources().iter().filter(|source| !source.is_in(&["cli"])) {
        let found = source.code().filter(|(_, line)| printing.iter().any(|p| line.contains(p)));
        violations.extend(found.map(|(number, line)| source.at(number, line.trim())));
    }
    assert_none(violations);
}

#[test]
fn nothing_is_left_undone() {
    let unfinished = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("unimplemented", "!("), concat!("to", "do!(")];
    let elsewhere = ["/root/", "/home/", "/work/"];
    let mut violations = Vec::new();
    for source in sources() {
        for (number, line) in &source.lines {
            let found = unfinished.iter().chain(&elsewhere).filter(|word| line.contains(**word));
            violations.extend(found.map(|word| source.at(*number, word)));
            if line.contains("#[allow(") && !line.contains("reason = ") {
                violations.push(source.at(*number, "#[allow] without a reason"));
            }
            if line.starts_with("use ") && line.ends_with("::*;") {
                violations.push(source.at(*number, "glob import"));
            }
        }
    }
    assert_none(violations);
}

#[test]
fn no_test_is_ignored() {
    let ignored = concat!("#[ig", "nore");
    let folders = ["src", "runtime/src", "tests"].map(|folder| root().join(folder));
    let paths = folders.iter().flat_map(|folder| files(folder, "rs"));
    let found = paths.filter(|path| fs::read_to_string(path).unwrap().contains(ignored));
    assert_none(found.map(|path| path.display().to_string()).collect());
}

#[test]
fn parameters_are_arguments_and_not_environment_variables() {
    // cache folders, where the hub is, and PostgreSQL's passwords; logging goes through tracing's own filter
    let allowed = ["folders.rs", "model/hub.rs", "fleet/password.rs"];
    let mut violations = Vec::new();
    for source in sources().iter().filter(|source| !source.is_in(&allowed)) {
        let found = source.code().filter(|(_, line)| line.contains("env::var"));
        violations.extend(found.map(|(number, line)| source.at(number, line.trim())));
    }
    assert_none(violations);
}

#[test]
fn files_stay_short_enough_to_read() {
    let long = sources().into_iter().filter(|source| source.lines.len() > 600);
    assert_none(long.map(|source| source.at(source.lines.len(), "too long")).collect());
}

/// Columns of a comment, at most.
const COMMENT_WIDTH: usize = 110;

#[test]
fn comments_are_narrow_enough_to_read() {
    let folders = ["src", "runtime", "tests", "benches", "examples", "tools"].map(|folder| root().join(folder));
    let mut violations = Vec::new();
    for path in folders.iter().flat_map(|folder| ["rs", "c", "h"].map(|kind| files(folder, kind))).flatten() {
        let mut fenced = false;
        for (number, line) in fs::read_to_string(&path).unwrap().lines().enumerate() {
            let Some(comment) = line.trim_start().strip_prefix("//") else { continue };
            fenced ^= comment.trim_start_matches(['/', '!', ' ']).starts_with("```");
            let is_table = comment.trim_start_matches(['/', '!', ' ']).starts_with('|');
            if line.chars().count() > COMMENT_WIDTH && !fenced && !is_table {
                violations.push(format!("{}:{}: {} columns", path.display(), number + 1, line.chars().count()));
            }
        }
    }
    assert_none(violations);
}
