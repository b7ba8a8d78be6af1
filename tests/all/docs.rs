//! The documentation: links lead somewhere, lines are narrow enough to read, and the tutorial shows what the
//! code prints. `UPDATE_EXPECT=1` rewrites what the tutorial shows.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tilescribe::codegen;
use tilescribe::space::{Next, Space, Tape, Trace, Untuned};
use tilescribe::target::{Target, Task};

/// Columns of prose, at most. Tables, code and lines that are one link may be wider.
const PROSE_WIDTH: usize = 110;
/// Columns of the README, at most, tables and code too.
const README_WIDTH: usize = 120;
const README_LINES: usize = 150;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All Markdown files, but for those that builds and commands write.
fn pages() -> Vec<PathBuf> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().to_string();
            if path.is_dir() && !name.starts_with('.') && !["target", "demo", "rebuilt", "changes"].contains(&&*name) {
                walk(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(root(), &mut found);
    found.sort();
    assert!(found.len() > 10, "the pages are where this test looks for them");
    found
}

/// Lines outside of fenced code, with their numbers from 1.
fn prose(text: &str) -> Vec<(usize, &str)> {
    let mut fenced = false;
    let mut lines = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let is_fence = line.trim_start().starts_with("```");
        fenced ^= is_fence;
        if !fenced && !is_fence {
            lines.push((number + 1, line));
        }
    }
    lines
}

/// The parts of a line outside of `code`, and those inside.
fn split_code(line: &str) -> (String, Vec<&str>) {
    let (mut outside, mut inside) = (String::new(), Vec::new());
    for (number, part) in line.split('`').enumerate() {
        if number % 2 == 0 { outside.push_str(part) } else { inside.push(part) }
    }
    (outside, inside)
}

/// What a line links to.
fn links(line: &str) -> Vec<String> {
    let (text, _) = split_code(line);
    let targets = text.split("](").skip(1);
    targets.filter_map(|rest| Some(rest.split_once(')')?.0.to_string())).collect()
}

/// A heading's anchor, as GitHub makes it.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.collect::<String>().trim().to_lowercase().replace(' ', "-")
}

fn anchors(text: &str) -> Vec<String> {
    let headings = prose(text).into_iter().filter(|(_, line)| line.starts_with('#'));
    headings.map(|(_, line)| anchor(line.trim_start_matches('#'))).collect()
}

/// What is wrong with a link of a page: nothing where it leaves the repository.
fn broken(page: &Path, text: &str, link: &str) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (path, heading) = link.split_once('#').map_or((link, None), |(path, heading)| (path, Some(heading)));
    let target = if path.is_empty() { page.to_path_buf() } else { page.parent().unwrap().join(path) };
    if !target.exists() {
        return Some(format!("there is no {path}"));
    }
    let heading = heading?;
    let there = if path.is_empty() { text.to_string() } else { fs::read_to_string(&target).unwrap_or_default() };
    (!anchors(&there).iter().any(|anchor| anchor == heading)).then(|| format!("{link} has no such heading"))
}

/// Whether `code` names a file or folder of this repository, and not a pattern or one of a user's own.
fn is_our_path(code: &str) -> bool {
    let folders = ["src", "docs", "tests", "tools", "benches", "examples", "corpus", "targets", "checkpoints"];
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-');
    // made by `make checkpoint`
    let is_made = code.starts_with("checkpoints/rebuilt");
    code.chars().all(is_plain) && folders.iter().any(|f| code.starts_with(&format!("{f}/"))) && !is_made
}

fn assert_none(violations: Vec<String>) {
    assert!(violations.is_empty(), "{}", violations.join("\n"));
}

#[test]
fn links_lead_somewhere() {
    let mut violations = Vec::new();
    let mut count = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for (number, line) in prose(&text) {
            let found = links(line);
            count += found.len();
            let broken = found.iter().filter_map(|link| broken(&page, &text, link));
            violations.extend(broken.map(|what| format!("{}:{number}: {what}", page.display())));
        }
    }
    assert!(count > 30, "links are found: {count}");
    assert_none(violations);
}

#[test]
fn files_that_pages_name_exist() {
    let mut violations = Vec::new();
    // what was true of an older release may not be any more
    for page in pages().into_iter().filter(|page| !page.ends_with("CHANGELOG.md")) {
        let text = fs::read_to_string(&page).unwrap();
        for (number, line) in prose(&text) {
            let (_, codes) = split_code(line);
            // a file that a worked example adds
            let is_new = |code: &str| line.contains(&format!("`{code}`, new"));
            let ours = codes.into_iter().filter(|code| is_our_path(code) && !is_new(code));
            let missing = ours.filter(|code| !root().join(code).exists());
            violations.extend(missing.map(|code| format!("{}:{number}: there is no {code}", page.display())));
        }
    }
    assert_none(violations);
}

#[test]
fn what_is_broken_is_found() {
    let page = root().join("README.md");
    let text = "# One\n\n[a](docs) and `[b](nowhere)`\n\n```text\n[c](nowhere)\n```\n## Two words: x!\n";
    let found: Vec<String> = prose(text).into_iter().flat_map(|(_, line)| links(line)).collect();
    assert_eq!(found, ["docs"]);
    assert_eq!(anchors(text), ["one", "two-words-x"]);
    for link in ["docs", "#two-words-x", "docs/tutorial.md#decisions", "https://example.org/nowhere"] {
        assert_eq!(broken(&page, text, link), None, "{link}");
    }
    for link in ["nowhere.md", "#three", "docs/tutorial.md#nothing", "../nowhere"] {
        assert!(broken(&page, text, link).is_some(), "{link}");
    }
    assert!(is_our_path("docs/nowhere.md") && !is_our_path("docs/*.md") && !is_our_path("net/net.h"));
}

#[test]
fn pages_are_narrow_enough_to_read() {
    let mut violations = Vec::new();
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for (number, line) in prose(&text) {
            let is_link = line.trim_start_matches(['-', '!', ' ']).starts_with('[') && line.ends_with(')');
            if line.chars().count() > PROSE_WIDTH && !line.starts_with('|') && !is_link {
                violations.push(format!("{}:{number}: {} columns", page.display(), line.chars().count()));
            }
        }
    }
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let wide = readme.lines().enumerate().filter(|(_, line)| line.chars().count() > README_WIDTH);
    violations.extend(wide.map(|(number, _)| format!("README.md:{}: more than {README_WIDTH} columns", number + 1)));
    if readme.lines().count() > README_LINES {
        violations.push(format!("README.md: more than {README_LINES} lines"));
    }
    assert_none(violations);
}

/// What the tutorial shows, by the names in its comments.
fn printed() -> BTreeMap<&'static str, String> {
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    let workload = read("docs/tutorial/dense.txt").parse().unwrap();
    let target = Target::from_toml(&read("targets/haswell.toml")).unwrap();
    let (space, task) = (Space::standard(), Task { workload, target });
    let (untuned, _) = space.drive(&task, &mut Untuned);
    let trace: Trace = read("docs/tutorial/trace.txt").parse().unwrap();
    let Next::Done(nest) = space.next(&task, &trace).unwrap() else { panic!("the trace is complete") };
    let schedule = space.schedule(&task, &mut Tape::replay(&trace)).unwrap();
    let assembly = codegen::assembly(&nest, task.target.cpu().unwrap()).unwrap();
    let multiply_adds = assembly.lines().filter(|line| line.contains("vfmadd"));
    // without LLVM's comments
    let multiply_adds = multiply_adds.map(|line| line.split('#').next().unwrap().trim().replace('\t', " "));
    BTreeMap::from([
        ("untuned", untuned.to_string()),
        ("schedule", schedule.to_string()),
        ("nest", nest.to_string()),
        ("multiply-adds", multiply_adds.collect::<Vec<_>>().join("\n")),
    ])
}

#[test]
fn the_tutorial_shows_what_the_code_prints() {
    let path = root().join("docs/tutorial.md");
    let text = fs::read_to_string(&path).unwrap();
    let printed = printed();
    let (mut parts, mut rest, mut shown) = (String::new(), text.as_str(), Vec::new());
    let open = "\n```text\n";
    while let Some((before, after)) = rest.split_once("<!-- prints: ") {
        let (name, after) = after.split_once(" -->").unwrap();
        let block = after.strip_prefix(open).unwrap_or_else(|| panic!("a text block follows {name}"));
        let expected = printed.get(name).unwrap_or_else(|| panic!("nothing is called {name}"));
        let end = block.find("```\n").unwrap();
        parts.push_str(&format!("{before}<!-- prints: {name} -->{open}{}\n", expected.trim_end()));
        shown.push(name);
        rest = &block[end..];
    }
    parts.push_str(rest);
    let file = "dense.txt";
    let content = fs::read_to_string(root().join("docs/tutorial").join(file)).unwrap();
    assert!(text.contains(&format!("<!-- file: {file} -->{open}{content}```\n")), "{file} is shown as it is");
    assert_eq!(shown.len(), printed.len(), "all of it is shown: {shown:?}");
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        fs::write(&path, &parts).unwrap();
        return;
    }
    assert_eq!(parts, text, "docs/tutorial.md shows something else; UPDATE_EXPECT=1 rewrites it");
}

#[test]
fn excerpts_are_what_the_sources_say() {
    let text = fs::read_to_string(root().join("docs/extending.md")).unwrap();
    let excerpts: Vec<&str> = text.split("<!-- excerpt: ").skip(1).collect();
    assert!(excerpts.len() >= 2, "there are excerpts");
    for excerpt in excerpts {
        let (file, rest) = excerpt.split_once(" -->\n```rs\n").expect("code follows");
        let code = rest.split("```\n").next().unwrap();
        assert!(fs::read_to_string(root().join(file)).unwrap().contains(code), "{file} does not say\n{code}");
    }
}

#[test]
fn a_c_program_embeds_an_artifact_as_the_example_says() {
    let folder = tempfile::tempdir().unwrap();
    let made = Command::new("make")
        .args(["-s", "-C", "examples/embed", &format!("OUT={}", folder.path().display())])
        .arg(format!("TILESCRIBE={}", env!("CARGO_BIN_EXE_tilescribe")))
        .current_dir(root())
        .env("XDG_CACHE_HOME", folder.path())
        .output()
        .unwrap();
    let (out, error) = (String::from_utf8_lossy(&made.stdout), String::from_utf8_lossy(&made.stderr));
    assert!(made.status.success(), "{error}");
    // what small_residual.onnx computes, ten logits
    let line = out.lines().find(|line| line.ends_with("(40 bytes)")).unwrap_or_else(|| panic!("no output: {out}"));
    let values: Vec<f32> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    assert!(values.len() == 4 && values.iter().all(|value| value.abs() < 1.0), "{line}");
    assert!(values.iter().any(|value| *value != values[0]), "{line}");
}
