//! Runs a nest slowly and exactly, and finds what is wrong with it: the oracle of rewrites and of code
//! generation.
//!
//! Loops run serially, whatever their kind; what parallel and vector loops promise is checked on the way, by
//! a shadow of every element. Found are:
//! - accesses outside of a buffer, by an affine index or by one that was gathered;
//! - reads of elements that nobody wrote: outputs and scratch buffers start undefined, private ones
//!   with each iteration of a parallel loop; and outputs that are not written at the end;
//! - races: an element that one iteration of a parallel loop writes and another reads or writes; the same for
//!   the blocks of a GPU, and for the threads of a block within a phase; and registers that another thread
//!   has written;
//! - lanes that depend on each other: the same for a vector loop, but for an accumulation whose destination
//!   does not move with the vector variable, which is the reduction across lanes;
//! - writes to inputs and constants, integer divisions by zero.
//!
//! Floats are rounded to their type after each operation, integers wrap.

mod compile;
mod memory;
mod scalar;

use thiserror::Error;

use self::compile::{Access, Code, Other, Real, Reduces, Sum, Test, Together, Value, Whole};
use self::memory::{Around, Elements, Iteration, Memory};
use super::matrix::rounded_operand;
use super::structure::{self, Flaw};
use super::{LoopKind, Nest, Scope, Stmt};
use crate::workload::{Combiner, Role};

/// What running a nest showed to be wrong.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Fault {
    #[error("the nest takes {expected} arguments, {found} were given")]
    Arguments { expected: usize, found: usize },
    #[error("the nest has {0} parameters; `Nest::at` gives them values")]
    Parameters(usize),
    #[error("argument `{name}` has {expected} bytes, {found} were given")]
    ArgumentBytes { name: String, expected: usize, found: usize },
    #[error("{flaw}, in `{statement}`")]
    Malformed { flaw: Flaw, statement: String },
    #[error("{kind}, at {place}")]
    Run { kind: FaultKind, place: FaultPlace },
    #[error("output element {element} was never written")]
    Unwritten { element: String },
}

impl Fault {
    /// What happened while running, if the nest ran at all.
    pub fn kind(&self) -> Option<&FaultKind> {
        match self {
            Fault::Run { kind, .. } => Some(kind),
            _ => None,
        }
    }
}

/// What happened at one point of a run. Elements are printed as `name[indices]`.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum FaultKind {
    #[error("index {index} of dimension {dimension} of `{buffer}` is outside of 0..{extent}")]
    OutOfBounds { buffer: String, dimension: usize, index: i64, extent: i64 },
    #[error("gathered index {index} of dimension {dimension} of `{buffer}` is outside of 0..{extent}")]
    GatherOutOfBounds { buffer: String, dimension: usize, index: i64, extent: i64 },
    #[error("{element} is read before it is written")]
    Undefined { element: String },
    #[error("{element} is written by one iteration of a parallel loop and used by another")]
    Race { element: String },
    #[error("{element} is a register of another thread")]
    OtherThread { element: String },
    #[error("{element} is written by one lane of a vector loop and used by another")]
    LaneDependence { element: String },
    #[error("{element} is an argument that must not be written")]
    ReadOnly { element: String },
    #[error("division of an integer by zero")]
    DivisionByZero,
}

/// Where a run stopped: the statement, and the values of the loops' variables, outermost first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FaultPlace {
    pub statement: String,
    pub variables: Vec<(String, i64)>,
}

impl std::fmt::Display for FaultPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "`{}`", self.statement)?;
        for (position, (name, value)) in self.variables.iter().enumerate() {
            write!(f, "{} {name} = {value}", if position == 0 { " where" } else { "," })?;
        }
        Ok(())
    }
}

/// Runs `setup`, then `body`. `arguments` are in the order of [`Nest::arguments`], dense, row-major, in
/// native byte order; outputs and packed buffers are overwritten, whatever they held. What lies behind the
/// part of an output that the nest writes stays as it is.
///
/// # Errors
/// The first [`Fault`]; outputs then are as they were.
pub fn interpret(nest: &Nest, arguments: &mut [Vec<u8>]) -> Result<(), Fault> {
    structure::check(nest).map_err(|(flaw, statement)| Fault::Malformed { flaw, statement })?;
    if !nest.parameters.is_empty() {
        return Err(Fault::Parameters(nest.parameters.len()));
    }
    let ids = nest.arguments();
    if ids.len() != arguments.len() {
        return Err(Fault::Arguments { expected: ids.len(), found: arguments.len() });
    }
    for (id, bytes) in ids.iter().zip(&*arguments) {
        let buffer = nest.buffer(*id);
        if bytes.len() != buffer.bytes() {
            let name = buffer.name.clone();
            return Err(Fault::ArgumentBytes { name, expected: buffer.bytes(), found: bytes.len() });
        }
    }
    let mut machine = Machine::new(nest);
    for (id, bytes) in ids.iter().zip(&*arguments) {
        machine.memories[id.0 as usize].load(bytes);
    }
    for phase in [&nest.setup, &nest.body] {
        machine.memories.iter_mut().filter(|memory| !memory.outlives_setup()).for_each(Memory::begin_life);
        machine.block(&compile::block(nest, phase, &Together::default())).map_err(|mut stopped| {
            stopped.variables.reverse();
            let place = FaultPlace { statement: stopped.statement, variables: stopped.variables };
            Fault::Run { kind: stopped.kind, place }
        })?;
    }
    for (id, bytes) in ids.iter().zip(arguments) {
        let memory = &machine.memories[id.0 as usize];
        match nest.buffer(*id).scope {
            Scope::Argument(Role::Output) => {
                if let Some(element) = memory.first_undefined() {
                    return Err(Fault::Unwritten { element });
                }
                memory.store(bytes);
            }
            Scope::Packed => memory.store(bytes),
            _ => {}
        }
    }
    Ok(())
}

struct Machine<'a> {
    nest: &'a Nest,
    /// By `Var`.
    variables: Vec<i64>,
    /// By `TensorId`.
    memories: Vec<Memory>,
    around: Around,
    /// Iterations of parallel and vector loops that have begun so far.
    iterations: u64,
}

/// A fault on its way out of the loops.
struct Stopped {
    kind: FaultKind,
    statement: String,
    /// Innermost first.
    variables: Vec<(String, i64)>,
}

impl<'a> Machine<'a> {
    fn new(nest: &'a Nest) -> Machine<'a> {
        Machine {
            nest,
            variables: vec![0; nest.vars.len()],
            memories: nest.buffers.iter().map(Memory::new).collect(),
            around: Around::default(),
            iterations: 0,
        }
    }

    fn begin_lives(&mut self) {
        self.memories.iter_mut().filter(|memory| memory.is_private()).for_each(Memory::begin_life);
    }

    fn stopped(&self, source: &Stmt, kind: FaultKind) -> Stopped {
        Stopped { kind, statement: self.nest.show_statement(source), variables: Vec::new() }
    }

    fn block(&mut self, statements: &[Code<'_>]) -> Result<(), Stopped> {
        statements.iter().try_for_each(|statement| match statement {
            Code::Loop { .. } => self.run_loop(statement),
            Code::If { conditions, body, source } => {
                match self.tests(conditions).map_err(|kind| self.stopped(source, kind))? {
                    true => self.block(body),
                    false => Ok(()),
                }
            }
            Code::Store { to, value, source } => {
                self.assign(to, value, None).map_err(|kind| self.stopped(source, kind))
            }
            Code::Accumulate { to, combiner, value, reduces, source } => {
                self.assign(to, value, Some((*combiner, *reduces))).map_err(|kind| self.stopped(source, kind))
            }
        })
    }

    fn run_loop(&mut self, code: &Code<'_>) -> Result<(), Stopped> {
        let Code::Loop { var, bounds, kind, body, source } = code else { return Ok(()) };
        let mut count = i64::MAX;
        for bound in bounds {
            count = count.min(self.sum(bound).map_err(|kind| self.stopped(source, kind))?);
        }
        let outside = self.around;
        let first = self.iterations + 1;
        for value in 0..count {
            let iteration = |number| Some(Iteration { first, current: number });
            match kind {
                LoopKind::Serial | LoopKind::Unroll | LoopKind::Matrix | LoopKind::Dot => {}
                LoopKind::Parallel => {
                    self.iterations += 1;
                    self.around = Around { thread: iteration(self.iterations), ..Around::default() };
                    self.begin_lives();
                }
                LoopKind::Block => {
                    self.iterations += 1;
                    // blocks in several dimensions are told apart like those in one
                    let first = outside.thread.map_or(first, |outer| outer.first);
                    let thread = Some(Iteration { first, current: self.iterations });
                    self.around = Around { thread, ..Around::default() };
                    self.begin_lives();
                }
                LoopKind::Thread | LoopKind::Warp => {
                    self.iterations += 1;
                    let first = outside.mate.map_or(first, |outer| outer.first);
                    self.around.mate = Some(Iteration { first, current: self.iterations });
                    self.around.owner =
                        outside.owner.saturating_sub(1) * count.unsigned_abs() + value.unsigned_abs() + 1;
                }
                LoopKind::Vector => {
                    self.iterations += 1;
                    self.around.lane = iteration(self.iterations);
                }
            }
            self.variables[var.0 as usize] = value;
            if let Err(mut stopped) = self.block(body) {
                stopped.variables.push((self.nest.var_name(*var), value));
                return Err(stopped);
            }
        }
        self.around = outside;
        if matches!(kind, LoopKind::Parallel | LoopKind::Block) {
            self.begin_lives();
        }
        Ok(())
    }

    fn assign(
        &mut self,
        to: &Access,
        value: &Value,
        accumulation: Option<(Combiner, Reduces)>,
    ) -> Result<(), FaultKind> {
        let at;
        let (combiner, reduces) = accumulation.unzip();
        match value {
            Value::Real(value, dtype) => {
                let value = self.real(value)?;
                at = self.locate(to)?;
                self.touch(to.buffer, at, reduces)?;
                if let Elements::Real(elements) = &mut self.memories[to.buffer].elements {
                    elements[at] = match combiner {
                        None => value,
                        Some(c) => scalar::round_real(*dtype, scalar::real_binary(c.binary(), elements[at], value)),
                    };
                }
            }
            Value::Whole(value, dtype) => {
                let value = self.whole(value)?;
                at = self.locate(to)?;
                self.touch(to.buffer, at, reduces)?;
                if let Elements::Whole(elements) = &mut self.memories[to.buffer].elements {
                    elements[at] = match combiner {
                        None => value,
                        Some(c) => scalar::wrap_whole(*dtype, scalar::whole_combined(c, *dtype, elements[at], value)),
                    };
                }
            }
        }
        Ok(())
    }

    /// Notes a store or an accumulation.
    fn touch(&mut self, buffer: usize, at: usize, accumulation: Option<Reduces>) -> Result<(), FaultKind> {
        let (memory, around) = (&mut self.memories[buffer], self.around);
        match accumulation {
            Some(reduces) => memory.accumulate(at, around, reduces),
            None => memory.write(at, around),
        }
    }

    fn locate(&mut self, access: &Access) -> Result<usize, FaultKind> {
        let mut at = 0;
        for (dimension, d) in access.dimensions.iter().enumerate() {
            let index = self.sum(&d.index)?;
            if index < 0 || index >= d.extent {
                let (buffer, extent) = (self.nest.buffers[access.buffer].name.clone(), d.extent);
                return Err(match d.gathered {
                    true => FaultKind::GatherOutOfBounds { buffer, dimension, index, extent },
                    false => FaultKind::OutOfBounds { buffer, dimension, index, extent },
                });
            }
            at += index * d.stride;
        }
        Ok(at as usize)
    }

    fn load(&mut self, access: &Access) -> Result<usize, FaultKind> {
        let at = self.locate(access)?;
        self.memories[access.buffer].read(at, self.around)?;
        Ok(at)
    }

    fn tests(&mut self, tests: &[Test]) -> Result<bool, FaultKind> {
        for test in tests {
            let value = self.sum(&test.index)?;
            if value < test.low || value >= test.high {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn sum(&mut self, sum: &Sum) -> Result<i64, FaultKind> {
        let mut total = sum.constant;
        for (var, coefficient) in &sum.vars {
            total = total.wrapping_add(self.variables[*var].wrapping_mul(*coefficient));
        }
        for (other, coefficient) in &sum.others {
            let value = match other {
                Other::FloorDiv(inner, divisor) => self.sum(inner)?.div_euclid(*divisor),
                Other::Modulo(inner, divisor) => self.sum(inner)?.rem_euclid(*divisor),
                Other::Value(value) => self.whole(value)?,
            };
            total = total.wrapping_add(value.wrapping_mul(*coefficient));
        }
        Ok(total)
    }

    fn real(&mut self, code: &Real) -> Result<f64, FaultKind> {
        Ok(match code {
            Real::Literal(x) => *x,
            Real::Load(access) => {
                let at = self.load(access)?;
                match &self.memories[access.buffer].elements {
                    Elements::Real(elements) => elements[at],
                    Elements::Whole(elements) => elements[at] as f64,
                }
            }
            Real::Unary(op, x) => scalar::real_unary(*op, self.real(x)?),
            Real::Binary(op, xy) => scalar::real_binary(*op, self.real(&xy.0)?, self.real(&xy.1)?),
            Real::Select(parts) => {
                let (condition, yes, no) = (self.whole(&parts.0)?, self.real(&parts.1)?, self.real(&parts.2)?);
                if condition != 0 { yes } else { no }
            }
            Real::Guard(tests, sides) => match self.tests(tests)? {
                true => self.real(&sides.0)?,
                false => self.real(&sides.1)?,
            },
            Real::FromWhole(from, to, x) => scalar::real_from_whole(*from, *to, self.whole(x)?),
            Real::OfBits(dtype, x) => scalar::real_of_bits(*dtype, self.whole(x)?),
            Real::Round(dtype, x) => scalar::round_real(*dtype, self.real(x)?),
            Real::Operand(x) => f64::from(rounded_operand(self.real(x)? as f32)),
        })
    }

    fn whole(&mut self, code: &Whole) -> Result<i64, FaultKind> {
        Ok(match code {
            Whole::Index(sum) => self.sum(sum)?,
            Whole::Load(access) => {
                let at = self.load(access)?;
                match &self.memories[access.buffer].elements {
                    Elements::Whole(elements) => elements[at],
                    Elements::Real(elements) => elements[at] as i64,
                }
            }
            Whole::Unary(op, dtype, x) => scalar::whole_unary(*op, *dtype, self.whole(x)?),
            Whole::Binary(op, dtype, xy) => {
                let (x, y) = (self.whole(&xy.0)?, self.whole(&xy.1)?);
                scalar::whole_binary(*op, *dtype, x, y).ok_or(FaultKind::DivisionByZero)?
            }
            Whole::Compare(op, xy) => i64::from(scalar::real_compare(*op, self.real(&xy.0)?, self.real(&xy.1)?)),
            Whole::Select(parts) => {
                let (condition, yes, no) = (self.whole(&parts.0)?, self.whole(&parts.1)?, self.whole(&parts.2)?);
                if condition != 0 { yes } else { no }
            }
            Whole::Guard(tests, sides) => match self.tests(tests)? {
                true => self.whole(&sides.0)?,
                false => self.whole(&sides.1)?,
            },
            Whole::FromReal(dtype, x) => scalar::whole_from_real(*dtype, self.real(x)?),
            Whole::BitsOf(dtype, x) => scalar::bits_of_real(*dtype, self.real(x)?),
            Whole::Wrap(dtype, x) => scalar::wrap_whole(*dtype, self.whole(x)?),
        })
    }
}
