//! Reading schedules. Whatever is written is either read whole or refused with its line; nothing is guessed.

use std::str::FromStr;

use thiserror::Error;

use super::print::{MARKS, PLAIN};
use super::{Copy, Level, LoopName, Reads, Schedule, Step};
use crate::nest::axis_name;
use crate::nest::rewrite::pack::{Content, Layout};
use crate::workload::strassen::{Panels, Side};
use crate::workload::winograd::Order;
use crate::workload::{Combiner, DType, TensorId};

/// A text that is no schedule.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ScheduleError {
    #[error("line {line}: expected {expected}, found {found}")]
    Unexpected { line: usize, expected: &'static str, found: String },
    #[error("line {line}: `{found}` is no step; these are: {}", VERBS.join(", "))]
    Verb { line: usize, found: String },
    #[error("{found} steps are more than {MOST_STEPS}")]
    TooLong { found: usize },
}

/// The verbs of all steps.
pub const VERBS: [&str; 38] = [
    "winograd",
    "strassen",
    "merge_groups",
    "flatten_rows",
    "split_reduction",
    "epilogue",
    "split",
    "group",
    "tile",
    "fuse",
    "enclose",
    "reorder",
    "join",
    "serial",
    "parallel",
    "vectorize",
    "unroll",
    "block",
    "thread",
    "warp",
    "matrix",
    "multiply",
    "accumulate",
    "factor",
    "pack",
    "fetch",
    "privatise",
    "drop_unit_loops",
    "peel_tails",
    "in_tiles",
    "strip_mine",
    "share_in_blocks",
    "in_threads",
    "fill_tails",
    "persist",
    "pipeline",
    "drop_setup_results",
    "drop_unused",
];

/// Lines of a schedule.
const MOST_STEPS: usize = 10_000;
/// Iterations of a loop, and whatever else is counted: as large as extents may be.
const MOST: i64 = u32::MAX as i64;
/// Letters of a word.
const MOST_LETTERS: usize = 400;
/// Axes of a stage.
const MOST_AXES: usize = 64;

impl FromStr for Schedule {
    type Err = ScheduleError;

    /// A step for each line; empty lines and what follows `#` are skipped.
    fn from_str(text: &str) -> Result<Schedule, ScheduleError> {
        let code = |line| str::split(line, '#').next().unwrap_or_default().trim();
        let lines = || text.lines().map(code).enumerate().filter(|(_, line)| !line.is_empty());
        let found = lines().count();
        if found > MOST_STEPS {
            return Err(ScheduleError::TooLong { found });
        }
        lines().map(|(number, line)| Words::of(line, number + 1).step()).collect::<Result<_, _>>().map(Schedule)
    }
}

/// The words of a line that are not read yet. Brackets are words of their own.
struct Words<'a> {
    line: usize,
    words: std::iter::Peekable<std::vec::IntoIter<&'a str>>,
}

impl<'a> Words<'a> {
    fn of(text: &'a str, line: usize) -> Words<'a> {
        let mut words = Vec::new();
        for word in text.split_ascii_whitespace() {
            let mut rest = word;
            while let Some(at) = rest.find(['[', ']']) {
                words.extend([&rest[..at], &rest[at..=at]].into_iter().filter(|word| !word.is_empty()));
                rest = &rest[at + 1..];
            }
            words.extend((!rest.is_empty()).then_some(rest));
        }
        Words { line, words: words.into_iter().peekable() }
    }

    fn unexpected<T>(&mut self, expected: &'static str, found: Option<&str>) -> Result<T, ScheduleError> {
        let found = found.map_or("the end of the line".to_string(), |word| {
            format!("`{}`", word.chars().take(40).collect::<String>())
        });
        Err(ScheduleError::Unexpected { line: self.line, expected, found })
    }

    fn word(&mut self, expected: &'static str) -> Result<&'a str, ScheduleError> {
        match self.words.next() {
            Some(word) => Ok(word),
            None => self.unexpected(expected, None),
        }
    }

    /// Whether the next word is this one, which is taken then.
    fn take(&mut self, word: &str) -> bool {
        self.words.next_if(|next| *next == word).is_some()
    }

    fn keyword(&mut self, keyword: &'static str) -> Result<(), ScheduleError> {
        match self.words.next() {
            Some(found) if found == keyword => Ok(()),
            found => self.unexpected(keyword, found),
        }
    }

    fn number(&mut self) -> Result<i64, ScheduleError> {
        let word = self.word("a number")?;
        match word.parse() {
            Ok(number) if (0..=MOST).contains(&number) => Ok(number),
            _ => self.unexpected("a number", Some(word)),
        }
    }

    /// What a product's halves are cut into, if they are.
    fn panels(&mut self) -> Result<Option<Panels>, ScheduleError> {
        if self.words.peek().is_none() {
            return Ok(None);
        }
        self.keyword("by")?;
        let word = self.word("row or column")?;
        match Side::ALL.into_iter().find(|side| side.name() == word) {
            Some(of) => Ok(Some(Panels { of, width: self.number()? })),
            None => self.unexpected("row or column", Some(word)),
        }
    }

    /// A letter and a number.
    fn numbered(&mut self, letter: char, expected: &'static str) -> Result<u32, ScheduleError> {
        let word = self.word(expected)?;
        match word.strip_prefix(letter).and_then(|number| number.parse().ok()) {
            Some(number) => Ok(number),
            None => self.unexpected(expected, Some(word)),
        }
    }

    fn stage(&mut self) -> Result<usize, ScheduleError> {
        Ok(self.numbered('s', "a stage")? as usize)
    }

    fn tensor(&mut self) -> Result<TensorId, ScheduleError> {
        self.numbered('t', "a tensor").map(TensorId)
    }

    fn axis(&mut self) -> Result<usize, ScheduleError> {
        let word = self.word("an axis")?;
        match (0..MOST_AXES).find(|axis| axis_name(*axis) == word) {
            Some(axis) => Ok(axis),
            None => self.unexpected("an axis", Some(word)),
        }
    }

    fn name(&mut self) -> Result<LoopName, ScheduleError> {
        let word = self.word("a loop")?;
        let is_name = word.len() <= MOST_LETTERS
            && word.starts_with(|c: char| c.is_ascii_alphabetic())
            && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if is_name { Ok(word.into()) } else { self.unexpected("a loop", Some(word)) }
    }

    /// The names up to one of these words, or to the end.
    fn names(&mut self, ends: &[&str]) -> Result<Vec<LoopName>, ScheduleError> {
        let mut names = vec![self.name()?];
        while self.words.peek().is_some_and(|word| !ends.contains(word)) {
            names.push(self.name()?);
        }
        Ok(names)
    }

    fn reads(&mut self) -> Result<Reads, ScheduleError> {
        let (tensor, which) = (self.tensor()?, self.number()? as usize);
        self.keyword("of")?;
        Ok(Reads { tensor, which, of: self.name()? })
    }

    fn step(mut self) -> Result<Step, ScheduleError> {
        let verb = self.word("a step")?;
        let step = if let Some((_, kind)) = MARKS.iter().find(|(mark, _)| *mark == verb) {
            Step::Mark { kind: *kind, loops: self.names(&[])? }
        } else if let Some((_, step)) = PLAIN.iter().find(|(plain, _)| *plain == verb) {
            step.clone()
        } else {
            self.arguments(verb)?
        };
        match self.words.next() {
            None => Ok(step),
            further => self.unexpected("the end of the line", further),
        }
    }

    fn arguments(&mut self, verb: &str) -> Result<Step, ScheduleError> {
        Ok(match verb {
            "winograd" => {
                let outputs = self.number()?;
                let order = match self.words.peek() {
                    None => Order::Points,
                    Some(_) => {
                        self.keyword("by")?;
                        self.keyword("rows")?;
                        Order::Rows
                    }
                };
                Step::Winograd { outputs, order }
            }
            "strassen" => Step::Strassen { panels: self.panels()? },
            "merge_groups" => Step::MergeGroups { groups: self.number()? },
            "flatten_rows" => Step::FlattenRows,
            "split_reduction" => {
                let (stage, axis) = (self.stage()?, self.axis()?);
                self.keyword("into")?;
                Step::SplitReduction { stage, axis, parts: self.number()? }
            }
            "epilogue" => {
                let stage = self.stage()?;
                self.keyword("of")?;
                Step::Epilogue { stage, of: self.stage()? }
            }
            "split" => {
                let over = self.name()?;
                self.keyword("by")?;
                let by = self.number()?;
                self.keyword("into")?;
                Step::Split { over, by, into: [self.name()?, self.name()?] }
            }
            "group" => {
                let over = self.name()?;
                self.keyword("by")?;
                let by = self.number()?;
                self.keyword("into")?;
                Step::Group { over, by, into: [self.name()?, self.name()?] }
            }
            "tile" => {
                let over = self.name()?;
                self.keyword("by")?;
                let mut by = vec![self.number()?];
                while !self.take("into") {
                    by.push(self.number()?);
                }
                Step::Tile { over, by, into: self.names(&[])? }
            }
            "fuse" => {
                let (outer, inner) = (self.name()?, self.name()?);
                self.keyword("into")?;
                Step::Fuse { outer, inner, into: self.name()? }
            }
            "enclose" => {
                let over = self.name()?;
                self.keyword("in")?;
                Step::Enclose { over, by: self.name()? }
            }
            "reorder" => Step::Reorder { order: self.names(&[])? },
            "join" => Step::Join { loops: self.names(&[])? },
            "multiply" => {
                let (rows, columns, depth) = (self.name()?, self.name()?, self.name()?);
                let word = self.word("a data type")?;
                let Some(operands) = DType::from_name(word) else { return self.unexpected("a data type", Some(word)) };
                Step::Multiply { rows, columns, depth, operands }
            }
            "accumulate" => self.accumulate()?,
            "pack" => self.pack()?,
            "fetch" => self.fetch()?,
            "privatise" => {
                let tensor = self.tensor()?;
                self.keyword("over")?;
                let mut rows = Vec::new();
                while rows.is_empty() || self.words.peek().is_some() {
                    rows.push((self.name()?, self.number()?));
                }
                Step::Privatise { tensor, rows }
            }
            "strip_mine" => Step::StripMine { lanes: self.number()? },
            "persist" => {
                let steps = self.name()?;
                self.keyword("over")?;
                let grid_blocks = self.number()?;
                let word = self.word("a combiner")?;
                let Some(combiner) = Combiner::from_name(word) else {
                    return self.unexpected("a combiner", Some(word));
                };
                Step::Persist { steps, grid_blocks, combiner }
            }
            "factor" => Step::Factor { steps: self.name()? },
            "pipeline" => {
                let steps = self.name()?;
                self.keyword("depth")?;
                Step::Pipeline { steps, depth: self.number()? }
            }
            other => {
                let found = other.chars().take(40).collect();
                return Err(ScheduleError::Verb { line: self.line, found });
            }
        })
    }

    fn accumulate(&mut self) -> Result<Step, ScheduleError> {
        let stage = self.stage()?;
        self.keyword("at")?;
        let at = self.name()?;
        let mut blocks = None;
        if self.take("over") {
            let over = self.name()?;
            self.keyword("inside")?;
            blocks = Some((over, self.names(&["lanes"])?));
        }
        let lanes = if self.take("lanes") { self.names(&[])? } else { Vec::new() };
        Ok(Step::Accumulate { stage, at, blocks, lanes })
    }

    fn pack(&mut self) -> Result<Step, ScheduleError> {
        let operand = self.reads()?;
        let level = match self.word("a level")? {
            "setup" => Level::Setup,
            "before" => Level::Before,
            "inside" => Level::Inside(self.name()?),
            other => return self.unexpected("setup, before or inside", Some(other)),
        };
        let layout = match self.word("a layout")? {
            "panel" => Layout::Panel,
            "box" => Layout::Box,
            other => return self.unexpected("panel or box", Some(other)),
        };
        let content = if self.take("converted") { Content::Converted } else { Content::Own };
        Ok(Step::Pack { operand, level, layout, content })
    }

    fn fetch(&mut self) -> Result<Step, ScheduleError> {
        let operand = self.reads()?;
        self.keyword("inside")?;
        let inside = self.name()?;
        let kind = self.word("a layout")?;
        let mut dimensions = Vec::new();
        while self.take("[") {
            dimensions.push(self.names(&["]"])?);
            self.keyword("]")?;
        }
        let copy = match kind {
            "box" if dimensions.is_empty() => Copy::Box,
            "panel" => Copy::Panel { dimensions },
            "matrices_by_columns" => Copy::CoreMatrices { dimensions, by_columns: true },
            "matrices_by_rows" => Copy::CoreMatrices { dimensions, by_columns: false },
            other => return self.unexpected("box, panel, matrices_by_columns or matrices_by_rows", Some(other)),
        };
        self.keyword("padding")?;
        let padding = self.number()?;
        self.keyword("lanes")?;
        let lanes = self.number()?;
        self.keyword("threads")?;
        Ok(Step::Fetch { operand, inside, copy, padding, lanes, threads: self.number()? })
    }
}
