//! Nests in files: what rewrites make of them, what the verifier says, and what running them gives.
//!
//! A file in `tests/files/nests` holds sections, each after a line `== NAME`. What stands before the first
//! says what the file is about.
//!
//! | section | |
//! | --- | --- |
//! | `nest` | a nest, which the following sections are about |
//! | `workload` | the plain nest of a workload, instead |
//! | `again` | the same nest once more, as it was given |
//! | `rewrite NAME ARGUMENTS` | changes it (see [`rewrite`]) |
//! | `verify` | checks it, with vectors of 16 lanes |
//! | `interpret NAME=VALUES ...` | runs it; inputs that are not given are 0.5, 1.5, ... or 0, 1, ... |
//! | `statistics` | counts what it does |
//! | `expect` | what the section before gives: a nest, `ok`, outputs, or why not |
//!
//! Without `expect`, a section must succeed. `UPDATE_EXPECT=1` rewrites what is expected.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use tilescribe::nest::rewrite::Refusal;
use tilescribe::nest::{FaultKind, Nest, VerifyRule, interpret, statistics, verify};
use tilescribe::workload::{DType, Workload};

use super::rewrites::rewrite;
use super::{LANES, floats, integers, to_floats};

/// What a file is tested with.
#[derive(Default)]
struct Subject {
    given: Option<Nest>,
    nest: Option<Nest>,
    workload: Option<Workload>,
    /// Kinds of what was found: refusals, rules, faults; and rewrites that were done.
    found: BTreeSet<String>,
}

impl Subject {
    fn nest(&self) -> &Nest {
        self.nest.as_ref().expect("a section `nest` or `workload` comes first")
    }

    /// What a section gives.
    fn section(&mut self, head: &str, body: &str) -> Result<String, String> {
        let mut words = head.split(' ');
        match words.next().unwrap_or_default() {
            "nest" => {
                self.given = Some(body.parse().map_err(|error| format!("{error}\n"))?);
                self.nest.clone_from(&self.given);
                Ok(String::new())
            }
            "workload" => {
                let workload: Workload = body.parse().map_err(|error| format!("{error}\n"))?;
                self.given = Some(Nest::naive(&workload));
                self.nest.clone_from(&self.given);
                self.workload = Some(workload);
                Ok(String::new())
            }
            "again" => {
                self.nest.clone_from(&self.given);
                Ok(String::new())
            }
            "rewrite" => {
                let words: Vec<&str> = words.collect();
                match rewrite(self.nest().clone(), self.workload.as_ref(), &words) {
                    Ok(nest) => {
                        self.found.insert(format!("rewrite {}", words[0]));
                        let text = nest.to_string();
                        self.nest = Some(nest);
                        Ok(text)
                    }
                    Err(refusal) => {
                        self.found.insert(format!("refusal {}", variant(&refusal)));
                        Err(format!("refused: {}\n", named(&refusal, self.nest())))
                    }
                }
            }
            "verify" => match verify(self.nest(), LANES) {
                Ok(()) => Ok("ok\n".into()),
                Err(error) => {
                    self.found.insert(match &error.rule {
                        VerifyRule::Structure(flaw) => format!("flaw {}", variant(flaw)),
                        rule => format!("rule {}", variant(rule)),
                    });
                    Err(format!("{error}\n"))
                }
            },
            "interpret" => self.interpret(&words.collect::<Vec<_>>()),
            "statistics" => Ok(format!("{:#?}\n", statistics(self.nest()))),
            other => panic!("there is no section `{other}`"),
        }
    }

    /// The outputs, by name.
    fn interpret(&mut self, given: &[&str]) -> Result<String, String> {
        let nest = self.nest();
        let ids = nest.arguments();
        let values = |name: &str| given.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        let mut arguments: Vec<Vec<u8>> = Vec::new();
        for id in &ids {
            let buffer = nest.buffer(*id);
            arguments.push(match values(&buffer.name) {
                Some(values) => {
                    bytes_of(buffer.dtype, &values.split(',').map(|v| v.parse().unwrap()).collect::<Vec<_>>())
                }
                None => {
                    let start = if buffer.dtype.is_float() { 0.5 } else { 0.0 };
                    bytes_of(buffer.dtype, &(0..buffer.elements()).map(|v| v as f64 + start).collect::<Vec<_>>())
                }
            });
        }
        if given.contains(&"none") {
            arguments.clear();
        }
        let result = interpret(nest, &mut arguments);
        if let Err(fault) = result {
            self.found.insert(format!("fault {}", fault.kind().map_or_else(|| variant(&fault), variant::<FaultKind>)));
            return Err(format!("fault: {fault}\n"));
        }
        let shown = ids.iter().zip(&arguments).filter(|(id, _)| nest.buffer(**id).scope.name() == "output");
        Ok(shown
            .map(|(id, bytes)| format!("{} = {}\n", nest.buffer(*id).name, values_of(nest.buffer(*id).dtype, bytes)))
            .collect())
    }
}

/// The name of an enumeration's variant.
fn variant<T: std::fmt::Debug>(value: &T) -> String {
    format!("{value:?}").split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_string()
}

/// A refusal with the names of variables (`v3`) and buffers (`b2`).
fn named(refusal: &Refusal, nest: &Nest) -> String {
    let name = |word: &str| {
        let plain = word.trim_end_matches([',', ':']);
        let number = |letter| plain.strip_prefix(letter)?.parse::<usize>().ok();
        let var = number('v').and_then(|v| nest.vars.get(v)).cloned();
        let known = var.or_else(|| Some(nest.buffers.get(number('b')?)?.name.clone()));
        known.map_or(word.to_string(), |known| format!("`{known}`{}", &word[plain.len()..]))
    };
    refusal.to_string().split(' ').map(name).collect::<Vec<_>>().join(" ")
}

fn bytes_of(dtype: DType, values: &[f64]) -> Vec<u8> {
    match dtype {
        DType::F32 => floats(&values.iter().map(|v| *v as f32).collect::<Vec<_>>()),
        DType::I64 => integers(&values.iter().map(|v| *v as i64).collect::<Vec<_>>()),
        DType::I32 => values.iter().flat_map(|v| (*v as i32).to_ne_bytes()).collect(),
        DType::I8 | DType::U8 | DType::Bool => values.iter().map(|v| *v as i64 as u8).collect(),
        other => panic!("no values of type {}", other.name()),
    }
}

fn values_of(dtype: DType, bytes: &[u8]) -> String {
    match dtype {
        DType::F32 => format!("{:?}", to_floats(bytes)),
        DType::I64 => {
            let values: Vec<i64> = bytes.chunks_exact(8).map(|b| i64::from_ne_bytes(b.try_into().unwrap())).collect();
            format!("{values:?}")
        }
        DType::I32 => {
            let values: Vec<i32> = bytes.chunks_exact(4).map(|b| i32::from_ne_bytes(b.try_into().unwrap())).collect();
            format!("{values:?}")
        }
        DType::I8 => format!("{:?}", bytes.iter().map(|b| *b as i8).collect::<Vec<_>>()),
        DType::U8 | DType::Bool => format!("{bytes:?}"),
        other => panic!("no values of type {}", other.name()),
    }
}

/// A file with what was found in place of what is expected, and the kinds of it.
fn checked(path: &Path) -> (String, BTreeSet<String>) {
    let text = fs::read_to_string(path).unwrap();
    let (title, sections) = text.split_once("== ").unwrap_or_else(|| panic!("{}: no section", path.display()));
    let mut subject = Subject::default();
    let mut result = title.to_string();
    let mut last: Option<(String, Result<String, String>)> = None;
    let must = |last: Option<(String, Result<String, String>)>| {
        if let Some((head, Err(why))) = last {
            panic!("{}: `{head}`: {why}", path.display());
        }
    };
    for section in sections.split("\n== ") {
        let (head, body) = section.split_once('\n').unwrap_or((section, ""));
        let head = head.trim();
        if head == "expect" {
            let (_, found) = last.take().unwrap_or_else(|| panic!("{}: nothing to expect", path.display()));
            let found = found.unwrap_or_else(|why| why);
            result += &format!("== expect\n{found}");
        } else {
            must(last.take());
            let own = if body.is_empty() || body.ends_with('\n') { body.to_string() } else { format!("{body}\n") };
            result += &format!("== {head}\n{own}");
            last = Some((head.to_string(), subject.section(head, body)));
        }
    }
    must(last);
    (result, subject.found)
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect();
    files.sort();
    files
}

#[test]
fn nests_do_what_their_files_say() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files/nests");
    let mut found = BTreeSet::new();
    let mut differ = Vec::new();
    for path in files(&folder) {
        let (result, kinds) = checked(&path);
        found.extend(kinds);
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            fs::write(&path, result).unwrap();
        } else {
            let text = fs::read_to_string(&path).unwrap();
            let line = result.lines().zip(text.lines()).position(|(result, text)| result != text);
            if result != text {
                differ.push(format!("{}: line {}\n{result}", path.display(), line.map_or(0, |line| line + 1)));
            }
        }
    }
    assert!(differ.is_empty(), "{}\nUPDATE_EXPECT=1 rewrites what is expected", differ.join("\n"));
    let missing: Vec<&str> =
        ALL.split_whitespace().filter(|kind| !found.contains(&kind.replacen('.', " ", 1))).collect();
    assert!(missing.is_empty(), "no file shows {missing:?}");
}

/// All that files must show.
const ALL: &str = "
    flaw.Shape flaw.UnknownBuffer flaw.Unbound flaw.Rebound flaw.NoBounds flaw.Rank flaw.Operand flaw.Mixed flaw.Stored
    rule.FirstBound rule.Bound rule.VectorBound rule.VectorBody rule.UnrollBound rule.NestedParallel
    rule.OutOfBounds rule.ReadOnly rule.Setup rule.NeverWritten rule.SharedWrite rule.PrivateEscape
    rule.RegisterIndex rule.BlockPlace rule.ThreadPlace rule.MatrixPlace rule.Threads rule.OutsideOfThreads
    rule.ThreadReduction rule.ThreadRegister
    fault.Arguments fault.ArgumentBytes fault.Malformed fault.Unwritten fault.OutOfBounds fault.GatherOutOfBounds
    fault.Undefined fault.Race fault.OtherThread fault.LaneDependence fault.ReadOnly fault.DivisionByZero
    refusal.NoLoop refusal.NotPerfect refusal.BoundsDepend refusal.NotConstant refusal.NotSerial
    refusal.NothingToReorder refusal.BoundsDiffer refusal.NotInARow refusal.NotWorkspace refusal.OutsideOfRow
    refusal.LanesOfBlocks refusal.NoFactor refusal.NotRead refusal.BoxOfDivision refusal.BoxTooLarge refusal.BoxOfGuard
    refusal.UnknownInSetup refusal.OfRun refusal.NotScratch refusal.DimensionGroups refusal.PartOfCoreMatrix
    refusal.NoStages
    refusal.NotBlockShared refusal.NoCopiesAtStart refusal.CopyOverwritten refusal.CopyOfResults
    refusal.CopyUsedElsewhere refusal.NothingToDealOut refusal.StepsOutsideBlocks refusal.NotOneAccumulator
    rewrite.split rewrite.tile rewrite.fuse rewrite.reorder rewrite.set_kind rewrite.enclose
    rewrite.drop_unit_loops rewrite.accumulate rewrite.factor rewrite.pack rewrite.privatise rewrite.join rewrite.into_setup
    rewrite.redirect rewrite.relayout rewrite.in_core_matrices rewrite.cooperate rewrite.in_threads
    rewrite.fill_tails rewrite.persistent rewrite.pipeline rewrite.peel_tails rewrite.strip_mine
    rewrite.drop_unused rewrite.drop_setup_results";
