//! What programs look like to estimators: estimators on disk know features by their position.

use std::fmt::Write;
use std::path::Path;

use tilescribe::language::Language;
use tilescribe::propose::shipped_checkpoint;
use tilescribe::rank::{FEATURES, Feature, GPU_FEATURES, features, features_of, named_features};
use tilescribe::space::{Next, Space};
use tilescribe::target::Kind;

use crate::nest::kept;

/// The features of the first programs of both kinds of machines, and the scores that the shipped estimator
/// gives to programs of many tasks. Rewritten when UPDATE_EXPECT is set; a value may differ by rounding on
/// another machine.
#[test]
fn features_and_scores_are_as_they_were() {
    let (space, language) = (Space::standard(), Language::standard());
    let estimator = shipped_checkpoint(&language, &space).unwrap().checkpoint.estimators.cpu;
    let (mut text, mut told) = (String::new(), Vec::new());
    let mut scores = String::from("scores\n");
    for (number, kept) in kept::read().into_iter().enumerate() {
        let task = kept::task(&kept.workload, &kept.target);
        let kind = task.target.kind();
        let wanted = !told.contains(&kind);
        if !wanted && (kind == Kind::Gpu || !number.is_multiple_of(40)) {
            continue;
        }
        let reader = space.reader(kind, &kept::version(kind)).unwrap();
        let trace = reader.upgrade(&task, &kept.programs[0].trace.parse().unwrap()).unwrap();
        let Ok(Next::Done(nest)) = space.next(&task, &trace) else { panic!("{trace}") };
        let values = features(&task, &nest);
        assert_eq!(values.len(), features_of(kind));
        if wanted {
            told.push(kind);
            writeln!(text, "{kind:?}\n{}\n{}", kept.workload.trim(), kept.programs[0].trace.trim()).unwrap();
            for Feature { group, name, value } in named_features(&task, &nest) {
                writeln!(text, "{group}, {name}: {:.4}", value as f32).unwrap();
            }
        }
        if kind == Kind::Cpu {
            writeln!(scores, "task {number}: {:.4}", estimator.score(&values).unwrap()).unwrap();
        }
    }
    assert_eq!(told.len(), 2);
    text.push_str(&scores);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files/rank/features.txt");
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text.lines().count(), expected.lines().count());
    for (found, expected) in text.lines().zip(expected.lines()) {
        let value = |line: &str| line.rsplit_once(": ").and_then(|(_, value)| value.parse::<f64>().ok());
        match (value(found), value(expected)) {
            (Some(value), Some(other)) => {
                assert!((value - other).abs() <= 0.001, "{found} where {expected} was");
                assert_eq!(found.rsplit_once(": ").unwrap().0, expected.rsplit_once(": ").unwrap().0);
            }
            _ => assert_eq!(found, expected),
        }
    }
}

#[test]
fn features_have_names_of_their_own() {
    let space = Space::standard();
    for (kind, count) in [(Kind::Cpu, FEATURES), (Kind::Gpu, GPU_FEATURES)] {
        let of_kind = kept::read().into_iter().map(|kept| (kept::task(&kept.workload, &kept.target), kept));
        let (task, kept) = of_kind.into_iter().find(|(task, _)| task.target.kind() == kind).unwrap();
        let reader = space.reader(kind, &kept::version(kind)).unwrap();
        let trace = reader.upgrade(&task, &kept.programs[0].trace.parse().unwrap()).unwrap();
        let Ok(Next::Done(nest)) = space.next(&task, &trace) else { panic!("{trace}") };
        let mut names: Vec<(&str, &str)> =
            named_features(&task, &nest).into_iter().map(|feature| (feature.group, feature.name)).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
