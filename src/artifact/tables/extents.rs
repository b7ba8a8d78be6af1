//! `struct extents` of `deploy.h`: what follows from the extents of the inputs, as formulas that
//! `deploy/extents.c` computes.

use super::super::error::ArtifactError;
use super::{put, strings};
use crate::graph::{Origin, Symbols};
use crate::workload::{Atom, Index, Parameter};

/// What depends on the extents of a run.
#[derive(Clone, Debug)]
pub struct ExtentTables {
    pub symbols: Symbols,
    pub ports: PortExtents,
    /// Each behind those that lie below it.
    pub blocks: Vec<TableBlock>,
    /// Of all calls, one after the other, and what the kernels take.
    pub parameters: Vec<(Index, Parameter)>,
    /// By region: how often its calls run, and how often they may; 0 under a condition.
    pub counts: Vec<(Index, Parameter)>,
    pub shifts: Vec<Shift>,
    pub choices: Vec<Choice>,
    /// In the order of their calls.
    pub countings: Vec<Counting>,
}

/// A call that counts what it finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counting {
    pub call: usize,
    pub symbol: usize,
    /// The number among all arguments of the one that holds the count, in i64.
    pub argument: usize,
}

/// The extents of what goes in and comes out.
#[derive(Clone, Default, Debug)]
pub struct PortExtents {
    /// Of all inputs, one after the other; and of all outputs.
    pub inputs: Vec<Extent>,
    pub outputs: Vec<Extent>,
    /// Of all outputs, what they are at most before anything is counted.
    pub rooms: Vec<Extent>,
    /// The same of states, as a run finds them.
    pub states: Vec<Extent>,
    /// By state: its rows after a run; a constant 0 where it is replaced.
    pub grown: Vec<Extent>,
    /// By input of the network: its number among those that a run is given.
    pub given: Vec<Option<usize>>,
}

/// Calls of which one runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Choice {
    pub region: usize,
    /// The first of the numbers that its first call gives its kernel, among those of all calls.
    pub first_number: usize,
    /// As in [`RegionKind::Nearest`](crate::graph::RegionKind).
    pub points: Vec<(usize, Vec<i64>)>,
}

/// An argument of a call, or the condition of a region, whose place depends on the extents of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shift {
    /// Its number among all.
    pub argument: usize,
    /// Bytes from the start of what it is in to where the offset counts from.
    pub base: i64,
    pub element_bytes: usize,
    /// In elements: the formula, and what it is at most (or at least, where it is negative).
    pub offset: (Index, i64),
    pub step: (Index, i64),
}

/// An extent as a formula of the symbols.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Extent {
    pub formula: Index,
    pub least: i64,
    pub most: i64,
}

/// An intermediate in the arena.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TableBlock {
    pub extents: Vec<Extent>,
    pub element_bytes: usize,
    /// Blocks before this one that it must not meet.
    pub below: Vec<usize>,
}

/// As `enum operation` has them.
const PUSH_CONSTANT: i64 = 0;
const PUSH_SYMBOL: i64 = 1;
const FLOOR_DIVIDE: i64 = 2;
const MODULO: i64 = 3;
const SCALE: i64 = 4;
const ADD: i64 = 5;
const MULTIPLY: i64 = 6;
const QUOTIENT: i64 = 7;
const MINIMUM: i64 = 8;
const MAXIMUM: i64 = 9;

/// Instructions for a stack, of all formulas.
#[derive(Default)]
struct Code {
    /// Operation and operand.
    instructions: Vec<(i64, i64)>,
    /// Numbers on the stack, now and at most.
    depth: usize,
    deepest: usize,
}

/// Where the instructions of a formula are: the first, and the one behind the last.
type Formula = (usize, usize);

impl Code {
    fn push(&mut self, operation: i64, operand: i64) {
        self.instructions.push((operation, operand));
        match operation {
            PUSH_CONSTANT | PUSH_SYMBOL => self.depth += 1,
            FLOOR_DIVIDE | MODULO | SCALE => {}
            _ => self.depth -= 1,
        }
        self.deepest = self.deepest.max(self.depth);
    }

    /// Leaves the value of an index on the stack.
    fn index(&mut self, index: &Index) -> Result<(), ArtifactError> {
        self.push(PUSH_CONSTANT, index.offset());
        for (atom, coefficient) in index.terms() {
            match atom {
                Atom::Var(var) => {
                    let symbol = var.as_parameter().ok_or_else(no_formula)?;
                    self.push(PUSH_SYMBOL, symbol as i64);
                }
                Atom::FloorDiv(inner, divisor) => {
                    self.index(inner)?;
                    self.push(FLOOR_DIVIDE, *divisor);
                }
                Atom::Modulo(inner, divisor) => {
                    self.index(inner)?;
                    self.push(MODULO, *divisor);
                }
                Atom::Value(_) => return Err(no_formula()),
            }
            if *coefficient != 1 {
                self.push(SCALE, *coefficient);
            }
            self.push(ADD, 0);
        }
        Ok(())
    }

    fn formula(&mut self, index: &Index) -> Result<Formula, ArtifactError> {
        self.program(|code| code.index(index))
    }

    /// What a symbol is computed from; nothing where it is an extent itself.
    fn origin(&mut self, origin: &Origin) -> Result<Formula, ArtifactError> {
        let (x, y, operation) = match origin {
            Origin::Axis { .. } | Origin::Rows { .. } => return Ok((0, 0)),
            Origin::Count { most } => return self.formula(most),
            Origin::Product(x, y) => (x, y, MULTIPLY),
            Origin::Quotient(x, y) => (x, y, QUOTIENT),
            Origin::Minimum(x, y) => (x, y, MINIMUM),
            Origin::Maximum(x, y) => (x, y, MAXIMUM),
        };
        self.program(|code| {
            code.index(x)?;
            code.index(y)?;
            code.push(operation, 0);
            Ok(())
        })
    }

    fn program(&mut self, write: impl Fn(&mut Code) -> Result<(), ArtifactError>) -> Result<Formula, ArtifactError> {
        let first = self.instructions.len();
        self.depth = 0;
        write(self)?;
        Ok((first, self.instructions.len()))
    }

    /// `struct number`.
    fn numbers<'n>(
        &mut self,
        numbers: impl IntoIterator<Item = (&'n Index, i64, i64)>,
    ) -> Result<Vec<String>, ArtifactError> {
        let row = |(formula, low, high): (&Index, i64, i64)| {
            let (first, end) = self.formula(formula)?;
            Ok(format!("\t.quad {first}, {end}, {low}, {high}"))
        };
        numbers.into_iter().map(row).collect()
    }
}

fn no_formula() -> ArtifactError {
    ArtifactError::Internal("an extent that is no formula of the network's symbols".into())
}

fn ranges(extents: &[Extent]) -> impl Iterator<Item = (&Index, i64, i64)> {
    extents.iter().map(|extent| (&extent.formula, 0, extent.most))
}

/// The tables, and the structure that names them: the label of it is the one that is returned.
///
/// # Errors
/// [`ArtifactError::Internal`] where an extent depends on anything but symbols.
pub(super) fn extents(text: &mut String, tables: &ExtentTables) -> Result<&'static str, ArtifactError> {
    let coded = Coded::of(tables)?;
    let ExtentTables { symbols, ports, .. } = tables;
    text.push_str("\t.section .rodata\n");
    strings(text, "symbol_name", symbols.list.iter().map(|symbol| symbol.name.as_str()));
    strings(text, "what", symbols.requirements.iter().map(|requirement| requirement.what.as_str()));
    text.push_str("\t.balign 8\n");
    let instruction = |(operation, operand): &(i64, i64)| format!("\t.quad {operation}, {operand}");
    table(text, "instructions", coded.code.instructions.iter().map(instruction));
    for (label, rows) in coded.numbers {
        table(text, label, rows);
    }
    put_calls(text, tables);
    let least = |extent: &Extent| format!("\t.quad {}", extent.least);
    table(text, "input_least", ports.inputs.iter().map(least));
    table(text, "output_least", ports.outputs.iter().map(least));
    put_blocks(text, &tables.blocks);

    text.push_str("\t.section .data.rel.ro, \"aw\"\n\t.balign 8\n");
    put_symbols(text, tables, &coded.origins);
    put_requirements(text, tables, &coded.required);
    put_structure(text, tables, coded.code.deepest);
    Ok(LABEL)
}

/// Formulas as instructions, and what refers to them.
struct Coded {
    code: Code,
    /// By symbol.
    origins: Vec<Formula>,
    /// By requirement.
    required: Vec<Formula>,
    /// Rows of `struct number`, by label.
    numbers: Vec<(&'static str, Vec<String>)>,
}

impl Coded {
    fn of(tables: &ExtentTables) -> Result<Coded, ArtifactError> {
        let mut code = Code::default();
        let origins = tables.symbols.list.iter().map(|symbol| code.origin(&symbol.origin)).collect::<Result<_, _>>()?;
        let requirements = &tables.symbols.requirements;
        let required = requirements.iter().map(|it| code.formula(&it.formula)).collect::<Result<_, _>>()?;
        let mut numbers = Vec::new();
        let ports = &tables.ports;
        for (label, extents) in [
            ("input_extents", &ports.inputs),
            ("output_extents", &ports.outputs),
            ("output_rooms", &ports.rooms),
            ("state_extents", &ports.states),
            ("grown", &ports.grown),
        ] {
            numbers.push((label, code.numbers(ranges(extents))?));
        }
        let of_blocks = code.numbers(tables.blocks.iter().flat_map(|block| ranges(&block.extents)))?;
        numbers.push(("block_extents", of_blocks));
        for (label, list) in [("parameters", &tables.parameters), ("counts", &tables.counts)] {
            let own = list.iter().map(|(formula, range)| (formula, range.low, range.high));
            numbers.push((label, code.numbers(own)?));
        }
        let within = |(formula, most): &'_ (Index, i64)| (formula.clone(), (*most).min(0), (*most).max(0));
        let shifted: Vec<_> =
            tables.shifts.iter().flat_map(|shift| [within(&shift.offset), within(&shift.step)]).collect();
        let shifted = code.numbers(shifted.iter().map(|(formula, low, high)| (formula, *low, *high)))?;
        numbers.push(("shift_numbers", shifted));
        Ok(Coded { code, origins, required, numbers })
    }
}

/// What calls and regions need.
fn put_calls(text: &mut String, tables: &ExtentTables) {
    let shift =
        |Shift { argument, base, element_bytes, .. }: &Shift| format!("\t.quad {argument}, {base}, {element_bytes}");
    table(text, "shifts", tables.shifts.iter().map(shift));
    let points = || tables.choices.iter().flat_map(|choice| &choice.points);
    table(text, "points", points().flat_map(|(_, point)| point).map(|value| format!("\t.quad {value}")));
    table(text, "variants", points().map(|(variant, _)| format!("\t.quad {variant}")));
    let choice = |choice: &Choice| {
        let numbers = choice.points.first().map_or(0, |(_, point)| point.len());
        format!("\t.quad {}, {}, {numbers}, {}", choice.region, choice.first_number, choice.points.len())
    };
    table(text, "choices", tables.choices.iter().map(choice));
    let counting = |Counting { call, symbol, argument }: &Counting| format!("\t.quad {call}, {symbol}, {argument}");
    table(text, "countings", tables.countings.iter().map(counting));
}

fn put_blocks(text: &mut String, blocks: &[TableBlock]) {
    let below = blocks.iter().flat_map(|block| &block.below);
    table(text, "below", below.map(|block| format!("\t.quad {block}")));
    let mut first = 0;
    let rows = blocks.iter().map(|block| {
        first += block.below.len();
        let (rank, size, start) = (block.extents.len(), block.element_bytes, first - block.below.len());
        format!("\t.quad {rank}, {size}, {start}, {first}")
    });
    table(text, "blocks", rows);
}

fn put_symbols(text: &mut String, tables: &ExtentTables, origins: &[Formula]) {
    let rows = tables.symbols.list.iter().zip(origins).enumerate().map(|(number, (symbol, (first, end)))| {
        let (Parameter { low, high }, (input, axis, state)) =
            (symbol.range, given_by(&symbol.origin, &tables.ports.given));
        let (multiple, counting) = (symbol.multiple, tables.countings.iter().position(|it| it.symbol == number));
        let counting = counting.map_or(-1, |at| at as i64);
        let given = format!("{input}, {axis}, {state}, {counting}");
        format!("\t.quad .Lsymbol_name{number}, {low}, {high}, {multiple}, {given}, {first}, {end}")
    });
    table(text, "symbols", rows);
}

fn put_requirements(text: &mut String, tables: &ExtentTables, required: &[Formula]) {
    let rows = tables.symbols.requirements.iter().zip(required).enumerate().map(|(number, (it, (first, end)))| {
        // the last call that counts anything it depends on
        let counts = tables.symbols.counts_in(&it.formula);
        let counting = tables.countings.iter().rposition(|counting| counts.contains(&counting.symbol));
        format!("\t.quad .Lwhat{number}, {first}, {end}, {}", counting.map_or(-1, |at| at as i64))
    });
    table(text, "requirements", rows);
}

/// `struct extents`: how many there are of each, and where.
fn put_structure(text: &mut String, tables: &ExtentTables, deepest: usize) {
    put(text, format_args!("{LABEL}:"));
    let ExtentTables { symbols, blocks, parameters, shifts, choices, countings, .. } = tables;
    for count in [
        symbols.list.len(),
        symbols.requirements.len(),
        blocks.len(),
        parameters.len(),
        shifts.len(),
        choices.len(),
        countings.len(),
        deepest,
    ] {
        put(text, format_args!("\t.quad {count}"));
    }
    put(text, format_args!("\t.quad .Lsymbols, .Lrequirements, .Linput_extents, .Loutput_extents"));
    put(text, format_args!("\t.quad .Loutput_rooms, .Lstate_extents, .Lgrown"));
    put(text, format_args!("\t.quad .Linput_least, .Loutput_least, .Lblocks, .Lblock_extents"));
    put(text, format_args!("\t.quad .Lbelow, .Lparameters, .Lcounts, .Lshifts, .Lshift_numbers, .Linstructions"));
    put(text, format_args!("\t.quad .Lchoices, .Lpoints, .Lvariants, .Lcountings"));
}

const LABEL: &str = ".Lextents";

fn table(text: &mut String, label: &str, rows: impl IntoIterator<Item = String>) {
    put(text, format_args!(".L{label}:"));
    rows.into_iter().for_each(|row| put(text, format_args!("{row}")));
}

/// The input and axis that a symbol is the extent of, and the state whose rows it counts; -1: it is neither.
fn given_by(origin: &Origin, given: &[Option<usize>]) -> (i64, usize, i64) {
    match *origin {
        Origin::Axis { input, axis } => (given.get(input).copied().flatten().map_or(-1, |at| at as i64), axis, -1),
        Origin::Rows { state } => (-1, 0, state as i64),
        _ => (-1, 0, -1),
    }
}
