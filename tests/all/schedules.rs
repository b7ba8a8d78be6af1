//! Schedules in files: what steps make of a nest, why they are refused, and what decisions come to.
//!
//! A file in `tests/files/schedules` holds sections, each after a line `== NAME`:
//!
//! | section | |
//! | --- | --- |
//! | `target` | a file of `targets`; only where there are decisions |
//! | `workload` | a task's workload |
//! | `decisions` | answers, by site; all others are those of the untuned program |
//! | `steps` | a schedule, instead of decisions |
//! | `schedule` | expected: the steps that follow from the decisions |
//! | `before`, `after` | expected: the nest before and after the last of the steps |
//! | `nest` | expected: the nest that the decisions lead to |
//! | `refused` | expected: why there is none |
//!
//! `UPDATE_EXPECT=1` rewrites what is expected.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use tilescribe::space::schedule::{Program, VERBS};
use tilescribe::space::{Decision, Policy, Schedule, Space, Step, Tape, Trace};
use tilescribe::target::{Target, Task};
use tilescribe::workload::Workload;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn files(folder: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(root().join("tests/files/schedules").join(folder)).unwrap();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty());
    files
}

/// The sections of a file.
struct Sections(Vec<(String, String)>);

impl Sections {
    fn of(text: &str) -> Sections {
        let mut sections: Vec<(String, String)> = Vec::new();
        for line in text.lines() {
            match (line.strip_prefix("== "), sections.last_mut()) {
                (Some(name), _) => sections.push((name.to_string(), String::new())),
                (None, Some((_, body))) => *body += &format!("{line}\n"),
                (None, None) => panic!("`{line}` stands before the first section"),
            }
        }
        Sections(sections)
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, body)| body.as_str())
    }

    fn workload(&self) -> Workload {
        self.get("workload").expect("a workload").trim().parse().unwrap()
    }
}

/// Compares what was found with the sections of a file that hold it, or rewrites them.
fn expect(path: &Path, given: &[&str], found: &[(&str, String)]) {
    let text = fs::read_to_string(path).unwrap();
    let sections = Sections::of(&text);
    let kept = sections.0.iter().filter(|(name, _)| given.contains(&name.as_str()));
    let kept = kept.map(|(name, body)| (name.as_str(), body.clone()));
    let section = |(name, body): (&str, String)| format!("== {name}\n{body}");
    let whole: String = kept.chain(found.iter().map(|(name, body)| (*name, body.clone()))).map(section).collect();
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        fs::write(path, whole).unwrap();
    } else {
        assert_eq!(whole, text, "{} differs; UPDATE_EXPECT=1 rewrites it", path.display());
    }
}

/// The programs before and after the last step, or why a step is refused.
fn applied(workload: Workload, schedule: &Schedule) -> Result<[Program; 2], String> {
    let (last, first) = schedule.0.split_last().expect("a step");
    let apply = |program: Program, step: &Step| program.apply(step).map_err(|problem| format!("{step}: {problem}\n"));
    let before = first.iter().try_fold(Program::new(workload), apply)?;
    let after = apply(before.clone(), last)?;
    Ok([before, after])
}

#[test]
fn each_step_does_what_its_file_shows() {
    let mut verbs = Vec::new();
    for path in files("steps") {
        let sections = Sections::of(&fs::read_to_string(&path).unwrap());
        let schedule: Schedule = sections.get("steps").expect("steps").parse().unwrap();
        assert_eq!(schedule.to_string(), sections.get("steps").unwrap(), "{}", path.display());
        let [before, after] =
            applied(sections.workload(), &schedule).unwrap_or_else(|refused| panic!("{}: {refused}", path.display()));
        let nests = [("before", before.nest.to_string()), ("after", after.nest.to_string())];
        expect(&path, &["workload", "steps"], &nests);
        verbs.extend(schedule.0.last().map(|step| step.to_string().split(' ').next().unwrap_or_default().to_string()));
    }
    let missing: Vec<&&str> = VERBS.iter().filter(|verb| !verbs.iter().any(|known| known == **verb)).collect();
    assert!(missing.is_empty(), "no file shows {missing:?}");
}

#[test]
fn steps_that_do_not_fit_are_refused_as_their_files_say() {
    for path in files("refused") {
        let sections = Sections::of(&fs::read_to_string(&path).unwrap());
        let steps = sections.get("steps").expect("steps");
        let refused = match steps.parse::<Schedule>() {
            Ok(schedule) => applied(sections.workload(), &schedule).map(|_| ()),
            Err(error) => Err(format!("{error}\n")),
        };
        let refused = refused.expect_err(&path.display().to_string());
        expect(&path, &["workload", "steps"], &[("refused", refused)]);
    }
}

/// Answers by site, and all else as the rules do.
struct Answers {
    answers: BTreeMap<String, String>,
    unknown: Option<String>,
}

impl Policy for Answers {
    fn pick(&mut self, decision: &Decision) -> usize {
        let Some(answer) = self.answers.remove(&decision.site.to_string()) else { return decision.default };
        let found = decision.candidates.iter().position(|candidate| candidate.to_string() == answer);
        self.unknown = self.unknown.take().or((found.is_none()).then_some(answer));
        found.unwrap_or(decision.default)
    }
}

#[test]
fn decisions_come_to_the_schedules_and_nests_in_their_files() {
    let space = Space::standard();
    for path in files("programs") {
        let sections = Sections::of(&fs::read_to_string(&path).unwrap());
        let target = root().join("targets").join(sections.get("target").expect("a target").trim());
        let target = Target::from_toml(&fs::read_to_string(target).unwrap()).unwrap();
        let task = Task { workload: sections.workload(), target };
        let trace: Trace = sections.get("decisions").unwrap_or_default().parse().unwrap();
        let answers = trace.0.iter().map(|choice| (choice.site.to_string(), choice.value.to_string())).collect();
        let mut policy = Answers { answers, unknown: None };
        let (trace, program) = space.drive(&task, &mut policy);
        let at = path.display();
        assert!(policy.unknown.is_none(), "{at}: {:?} is no candidate", policy.unknown);
        assert!(policy.answers.is_empty(), "{at}: {:?} was not asked", policy.answers);
        let found = match program {
            Err(reason) => vec![("refused", format!("{reason}\n"))],
            Ok(nest) => {
                let schedule = space.schedule(&task, &mut Tape::replay(&trace)).unwrap();
                let read: Schedule = schedule.to_string().parse().unwrap();
                assert_eq!(read.build(&task.workload).unwrap(), nest, "{at}: the printed schedule makes another nest");
                vec![("schedule", schedule.to_string()), ("nest", nest.to_string())]
            }
        };
        expect(&path, &["target", "workload", "decisions"], &found);
    }
}
