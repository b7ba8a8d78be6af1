//! Weights are asked for before they are read.
//!
//! A network reads its weights once a run, from memory, and the pass over a part of them that is the first
//! waits for it; the others find the part in the cache. So while a part is used, the next one is fetched, a
//! little with every step:
//!
//! ```text
//! for part { for rows { for step { … weights[part, step] … } } }
//! =>
//! for part { for rows { for step { prefetch weights[part + 1, (rows·steps + step)·share]  … weights[part, step] … } } }
//! ```
//!
//! Where the loop over parts ends, addresses leave the buffer: that is no access, and harms nobody.

use std::collections::HashMap;

use inkwell::values::BasicValue;

use crate::codegen::emit::ir::Element;
use crate::codegen::emit::statement::holds_counted_loop;
use crate::codegen::emit::{Emitter, ir};
use crate::codegen::error::CodegenError;
use crate::nest::{Loop, LoopKind, Nest, Scope, Stmt};
use crate::target::Cpu;
use crate::workload::{Index, Interval, TensorId, Var, flatten};

/// Bytes that one instruction fetches.
const LINE_BYTES: i64 = 64;
/// More instructions than these in one step would delay it by more than the wait that they save.
const MAXIMAL_LINES: i64 = 4;
/// A part that is used for so many steps for each of its lines is a small share of the time.
const MAXIMAL_STEPS_PER_LINE: i64 = 32;

/// What a step fetches.
#[derive(Clone, Debug)]
pub(super) struct Prefetch {
    buffer: TensorId,
    /// In elements from the buffer's start.
    index: Index,
    /// One after the other.
    lines: i64,
}

/// By loop, told apart by its address: what each of its steps fetches.
pub(super) type Prefetches = HashMap<usize, Vec<Prefetch>>;

pub(super) fn loop_id(l: &Loop) -> usize {
    std::ptr::from_ref(l).addr()
}

/// What the innermost loops of a nest fetch of the constants that were packed for it.
pub(super) fn plan(nest: &Nest, body: &[Stmt], target: &Cpu) -> Prefetches {
    let mut found = HashMap::new();
    visit(nest, body, target, &mut Vec::new(), &mut found);
    found
}

fn visit<'n>(nest: &Nest, body: &'n [Stmt], target: &Cpu, path: &mut Vec<&'n Loop>, found: &mut Prefetches) {
    for statement in body {
        match statement {
            Stmt::Loop(l) => {
                path.push(l);
                if l.kind == LoopKind::Serial && l.extent() > 1 && !holds_counted_loop(&l.body) {
                    let all = prefetches(nest, path, target);
                    if !all.is_empty() {
                        found.insert(loop_id(l), all);
                    }
                } else {
                    visit(nest, &l.body, target, path, found);
                }
                path.pop();
            }
            Stmt::If { body, .. } => visit(nest, body, target, path, found),
            Stmt::Store { .. } | Stmt::Accumulate { .. } => {}
        }
    }
}

/// What the steps of the last loop of a path fetch.
fn prefetches(nest: &Nest, path: &[&Loop], target: &Cpu) -> Vec<Prefetch> {
    let Some(innermost) = path.last() else { return Vec::new() };
    let mut inside = Vec::new();
    let mut reads: Vec<(TensorId, Index)> = Vec::new();
    collect(nest, &innermost.body, &mut inside, &mut reads);
    let large = |buffer: TensorId| nest.buffer(buffer).bytes() as u64 > target.l1_bytes;
    let wanted = reads.into_iter().filter(|(buffer, _)| large(*buffer));
    wanted.filter_map(|(buffer, index)| prefetch(nest, path, &inside, buffer, &index)).collect()
}

/// The first read of every packed constant among what is accumulated, and the loops around these inside.
fn collect<'n>(nest: &Nest, body: &'n [Stmt], inside: &mut Vec<&'n Loop>, reads: &mut Vec<(TensorId, Index)>) {
    for statement in body {
        match statement {
            Stmt::Loop(l) => {
                inside.push(l);
                collect(nest, &l.body, inside, reads);
            }
            Stmt::If { body, .. } => collect(nest, body, inside, reads),
            Stmt::Accumulate { value, .. } => value.for_each_load(&mut |buffer, indices| {
                let known = nest.buffer(buffer);
                if known.scope == Scope::Packed && reads.iter().all(|(other, _)| *other != buffer) {
                    reads.push((buffer, flatten(indices, &known.shape)));
                }
            }),
            Stmt::Store { .. } => {}
        }
    }
}

fn prefetch(nest: &Nest, path: &[&Loop], inside: &[&Loop], buffer: TensorId, index: &Index) -> Option<Prefetch> {
    // from the inside: loops over a part of the buffer, loops that use it again, and the loop over parts
    let used_again = path.iter().rposition(|l| l.extent() > 1 && !index.mentions(l.var))?;
    let over_parts = path[..used_again].iter().rposition(|l| index.mentions(l.var))?;
    let part: Vec<&Loop> = path[used_again + 1..].iter().chain(inside).copied().collect();
    let extent_of = |v: Var| part.iter().find(|l| l.var == v).map(|l| l.extent());
    let offsets = index.range(&|v| extent_of(v).map_or(Interval::point(0), Interval::below))?;
    let origin = index.range(&|_| Interval::point(0))?;
    let span = offsets.high - offsets.low + 1;
    let elements: i64 = part.iter().filter(|l| index.mentions(l.var)).map(|l| l.extent()).product();
    // a part that is scattered over the buffer would take as many loops as it has pieces
    if span > elements + elements / 4 {
        return None;
    }
    let steps: i64 = path[over_parts + 1..].iter().map(|l| l.extent()).fold(1, i64::saturating_mul);
    let size = nest.buffer(buffer).dtype.bytes() as i64;
    let lines = (span * size + LINE_BYTES - 1) / LINE_BYTES;
    if lines.saturating_mul(MAXIMAL_STEPS_PER_LINE) < steps || lines > steps.saturating_mul(MAXIMAL_LINES) {
        return None;
    }
    let share = (span + steps - 1) / steps;
    let next = Index::var(path[over_parts].var).plus_constant(1);
    let start = index.substitute(&|v| match extent_of(v) {
        Some(_) => Some(Index::constant(0)),
        None => (v == path[over_parts].var).then(|| next.clone()),
    });
    let step = path[over_parts + 1..]
        .iter()
        .fold(Index::constant(0), |step, l| step.times(l.extent()).plus(&Index::var(l.var)));
    let index = start.plus_constant(offsets.low - origin.low).plus(&step.times(share));
    Some(Prefetch { buffer, index, lines: (share * size + LINE_BYTES - 1) / LINE_BYTES })
}

impl<'c> Emitter<'_, 'c> {
    /// Asks for what the steps of a loop fetch.
    pub(super) fn prefetch(&mut self, l: &Loop) -> Result<(), CodegenError> {
        for Prefetch { buffer, index, lines } in self.shared.prefetches.get(&loop_id(l)).into_iter().flatten() {
            let Some(base) = self.pointers[buffer.0 as usize] else { continue };
            let (element, byte) =
                (self.memory_type(self.shared.nest.buffer(*buffer).dtype), self.shared.context.i8_type());
            let terms = self.terms(index)?;
            let start = self.pointer_to(*buffer, element, base, &terms)?;
            let start = self.ir.offset(element, start, self.ir.integer(Element::I64, terms.constant))?;
            for line in 0..*lines {
                let address = self.ir.offset(byte.into(), start, self.ir.integer(Element::I64, line * LINE_BYTES))?;
                // to read, into the second level, data
                let number = |value| self.ir.integer(Element::I32, value);
                let arguments = [address.as_basic_value_enum(), number(0), number(2), number(1)];
                let pointer: ir::Value = address.as_basic_value_enum();
                self.ir.intrinsic_call(self.shared.module, "llvm.prefetch", &[pointer.get_type()], &arguments)?;
            }
        }
        Ok(())
    }
}
