//! The patches that docs/extending.md shows: how many files an extension takes, and that they still fit.

use std::fs;

use super::root;

/// What a hunk replaces: its lines that are there before.
fn before(hunk: &str) -> String {
    let lines = hunk.lines().skip(1).filter(|line| !line.starts_with('+'));
    lines.map(|line| format!("{}\n", line.get(1..).unwrap_or(""))).collect()
}

fn check(name: &str, files: &[&str]) {
    let patch = fs::read_to_string(root().join("tests/files/extending").join(name)).unwrap();
    let mut changed = Vec::new();
    for part in patch.split("diff --git ").skip(1) {
        let (head, hunks) = part.split_once("\n@@ ").unwrap();
        let file = head.lines().find_map(|line| line.strip_prefix("+++ b/")).unwrap();
        let source = fs::read_to_string(root().join(file)).unwrap();
        for hunk in hunks.split("\n@@ ") {
            let before = before(hunk);
            assert!(!before.is_empty() && source.contains(&before), "{name}: {file} does not hold\n{before}");
        }
        changed.push(file);
    }
    assert_eq!(changed, files, "{name}");
}

#[test]
fn extensions_take_as_many_files_as_the_page_says() {
    check(
        "scalar_primitive.patch",
        &[
            "src/codegen/emit/math.rs",
            "src/graph/lower/elementwise.rs",
            "src/workload/primitive.rs",
            "src/workload/scalar.rs",
        ],
    );
    check(
        "architecture.patch",
        &[
            "Cargo.toml",
            "src/analysis/assembly.rs",
            "src/artifact/deploy/processor.c",
            "src/codegen/machine.rs",
            "src/codegen/names.txt",
            "runtime/src/target/architecture.rs",
        ],
    );
}
