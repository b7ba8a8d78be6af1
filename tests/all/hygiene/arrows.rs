//! Who may import whom, and in how many files one kind of thing is told apart from others of its kind.

use std::collections::{BTreeMap, BTreeSet};

use super::{RUNTIME, Source, assert_none, files, root, sources};

/// Folders of which no two parts import each other. A part is a file, or a folder with all that is in it. Of
/// `workload`, expressions and indices do, since each may hold the other.
const WITHOUT_CIRCLES: [&str; 41] = [
    "analysis",
    "artifact",
    "artifact/tables",
    "cli",
    "cli/training",
    "codegen",
    "codegen/emit",
    "codegen/gpu",
    "codegen/gpu/barriers",
    "graph",
    "graph/fuse",
    "graph/lower",
    "graph/onnx",
    "language",
    "measure",
    "measure/cuda",
    "measure/roofline",
    "model",
    "model/estimator",
    "nest",
    "nest/interpret",
    "nest/parse",
    "nest/rewrite",
    "planning",
    "propose",
    "propose/lm",
    "rank",
    "record",
    "runtime",
    "runtime/target",
    "space",
    "space/cpu",
    "space/gpu",
    "space/schedule",
    "tune",
    "tune/compare",
    "workload/canonical",
    "workload/evaluate",
    "workload/generate",
    "workload/text",
    "workload/winograd",
];

type Module = Vec<String>;

/// The modules in the order of both `lib.rs`; the command line comes last.
fn order() -> Vec<Module> {
    let listed = |file: &str, before: &[&str]| -> Vec<Module> {
        let text = std::fs::read_to_string(root().join(file)).unwrap();
        let name =
            |line: &str| Some(line.trim_start_matches("pub ").strip_prefix("mod ")?.strip_suffix(';')?.to_string());
        let below = |name: String| before.iter().map(ToString::to_string).chain([name]).collect();
        text.lines().filter_map(name).map(below).collect()
    };
    let mut order = listed("runtime/src/lib.rs", &[RUNTIME]);
    order.extend(listed("src/lib.rs", &[]));
    assert!(order.len() > 25, "both lists are found");
    order.push(vec!["cli".into()]);
    order
}

fn module(source: &Source) -> Module {
    let path = source.path.with_extension("");
    let mut parts: Module = path.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if parts.last().is_some_and(|last| last == "mod") {
        parts.pop();
    }
    parts
}

/// The paths that a file names, from the crate's root on.
fn paths(source: &Source) -> Vec<Module> {
    let code: String = source.code().map(|(_, line)| format!("{line}\n")).collect();
    let mut found = Vec::new();
    let mut rest = code.as_str();
    while let Some(at) = ["crate::", "tilescribe::", "tilescribe_runtime::", "super::", "self::"]
        .iter()
        .filter_map(|w| start(rest, w))
        .min()
    {
        let end =
            rest[at..].find(|c: char| !c.is_alphanumeric() && !matches!(c, '_' | ':')).map_or(rest.len(), |n| at + n);
        let list = rest[end..].strip_prefix('{').filter(|_| rest[at..end].ends_with("::"));
        let before: Module = parts(&rest[at..end]);
        match list {
            Some(list) => {
                expand(&before, list, &mut found);
            }
            None => found.push(before),
        }
        rest = &rest[end.max(at + 1)..];
    }
    found.into_iter().map(|path| absolute(&module(source), path)).collect()
}

/// Where `word` begins as a word of its own.
fn start(text: &str, word: &str) -> Option<usize> {
    let is_own = |at: usize| !text[..at].ends_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | ':'));
    text.match_indices(word).map(|(at, _)| at).find(|at| is_own(*at))
}

fn parts(path: &str) -> Module {
    path.split("::").filter(|part| !part.is_empty()).map(String::from).collect()
}

/// The paths of `{a, b::{c, d}}`, which starts behind its brace; gives what follows it.
fn expand<'a>(before: &Module, list: &'a str, found: &mut Vec<Module>) -> &'a str {
    let mut rest = list;
    loop {
        rest = rest.trim_start();
        let end = rest.find([',', '{', '}']).unwrap_or(rest.len());
        let name = rest[..end].split(" as ").next().unwrap_or("").trim();
        let path: Module = before.iter().cloned().chain(parts(name)).collect();
        rest = &rest[end..];
        if let Some(inner) = rest.strip_prefix('{') {
            rest = expand(&path, inner, found);
        } else if !name.is_empty() {
            found.push(path);
        }
        match rest.strip_prefix(',') {
            Some(behind) => rest = behind,
            None => return rest.strip_prefix('}').unwrap_or(""),
        }
    }
}

/// Without the crate, `super` and `self`.
fn absolute(of: &Module, path: Module) -> Module {
    let is_runtime = |own: bool| if own { vec![RUNTIME.to_string()] } else { Module::new() };
    let mut result = match path[0].as_str() {
        "super" | "self" => of.clone(),
        "crate" => is_runtime(of[0] == RUNTIME),
        first => is_runtime(first == "tilescribe_runtime"),
    };
    for part in path {
        match part.as_str() {
            "crate" | "tilescribe" | "tilescribe_runtime" | "self" => {}
            "super" => drop(result.pop()),
            _ => result.push(part),
        }
    }
    result
}

/// Which file of ours imports which.
fn imports() -> BTreeMap<Module, BTreeSet<Module>> {
    let sources = sources();
    let known: BTreeSet<Module> = sources.iter().map(module).collect();
    let file_of = |path: &Module| (1..=path.len()).rev().find_map(|n| known.get(&path[..n]).cloned());
    let of = |source: &Source| (module(source), paths(source).iter().filter_map(file_of).collect());
    let all: BTreeMap<Module, BTreeSet<Module>> = sources.iter().map(of).collect();
    let edges: usize = all.values().map(BTreeSet::len).sum();
    assert!(edges > 500, "{edges} imports: more are there to be found");
    all
}

#[test]
fn modules_import_only_what_stands_before_them() {
    let order = order();
    let place = |module: &Module| order.iter().position(|listed| module.starts_with(listed));
    let mut violations = Vec::new();
    for (module, imported) in imports() {
        let Some(own) = place(&module) else { continue };
        let later = imported.iter().filter(|other| place(other).is_some_and(|other| other > own));
        violations.extend(later.map(|other| format!("{} imports {}", module.join("/"), other.join("/"))));
    }
    assert_none(violations);
}

#[test]
fn no_two_parts_of_a_folder_import_each_other() {
    let all = imports();
    let mut violations = Vec::new();
    for folder in WITHOUT_CIRCLES {
        let folder: Module = folder.split('/').map(String::from).collect();
        let part = |module: &Module| module.strip_prefix(folder.as_slice()).and_then(|rest| rest.first()).cloned();
        let mut edges = BTreeSet::new();
        for (module, imported) in &all {
            let Some(own) = part(module) else { continue };
            edges.extend(imported.iter().filter_map(&part).filter(|other| *other != own).map(|o| (own.clone(), o)));
        }
        assert!(!edges.is_empty() || folder.len() > 1, "{} has parts", folder.join("/"));
        let circles = edges.iter().filter(|(a, b)| a < b && edges.contains(&(b.clone(), a.clone())));
        violations.extend(circles.map(|(a, b)| format!("{}: {a} and {b} import each other", folder.join("/"))));
    }
    assert_none(violations);
}

/// The files below `src` that name `word` outside of comments and tests.
fn naming(word: &str) -> Vec<String> {
    let is_own = |line: &str| line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|found| found == word);
    let named = |source: &Source| source.code().any(|(_, line)| is_own(line));
    let found = sources().into_iter().filter(named);
    found.map(|source| source.path.display().to_string()).collect()
}

#[test]
fn a_scalar_primitive_stands_in_four_files() {
    let expected =
        ["codegen/emit/math.rs", "graph/lower/elementwise.rs", "workload/primitive.rs", "workload/scalar.rs"];
    assert_eq!(naming("Cos"), expected);
}

#[test]
fn a_data_type_stands_in_few_files() {
    // one that no operator has a rule of its own for
    assert_eq!(naming("I16"), ["measure/integers.rs", "workload/array.rs", "runtime/dtype.rs"]);
}

#[test]
fn an_architecture_stands_in_few_files() {
    let c = ["c", "h"].into_iter().flat_map(|extension| files(&root().join("src"), extension));
    let c = c.filter(|path| std::fs::read_to_string(path).unwrap().contains("__aarch64__")).count();
    let found = naming("Aarch64");
    assert!(
        found.iter().any(|file| file == "runtime/target/architecture.rs") && found.len() + c <= 5,
        "{found:?}, {c} in C"
    );
}
