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
    let over_parts = path[..used_again].iter().rposition(|l| l.extent() > 1 && index.mentions(l.var))?;
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{LINE_BYTES, plan};
    use crate::nest::Nest;
    use crate::target::{Target, avx512};
    use crate::workload::Var;

    /// What a product fetches whose weights lie in parts, each of 64 steps of 32 columns, by part.
    fn fetched(parts: &str, rows: &str, part: &str) -> Vec<(i64, BTreeSet<i64>)> {
        let text = format!(
            "buffers:\n  a: f32[24, 64] input\n  w: f32[16, 64, 32] packed\n  y: f32[24, 512] output\n\
             \x20 acc: f32[32] register\nbody:\n  {parts} {{\n    {rows} {{\n      for k in 0..64 {{\n        \
             unroll for u in 0..2 {{\n          vector for l in 0..16 {{\n            \
             acc[16*u + l] += w[{part}, k, 16*u + l] * a[r, k]\n          }}\n        }}\n      }}\n    }}\n  }}\n"
        );
        let nest: Nest = text.parse().unwrap();
        let Target::Cpu(cpu) = avx512() else { panic!("a CPU") };
        let found: Vec<_> = plan(&nest, &nest.body, &cpu).into_values().flatten().collect();
        let var = |name: &str| nest.vars.iter().position(|v| v == name).map(|at| Var(at as u32)).unwrap();
        let lines_at = |p: i64| {
            let mut lines = BTreeSet::new();
            for (r, k) in (0..6).flat_map(|r| (0..64).map(move |k| (r, k))) {
                let point = |v: Var| {
                    if v == var("p") {
                        p
                    } else if v == var("r") {
                        r
                    } else {
                        k
                    }
                };
                for fetch in &found {
                    let first = 4 * fetch.index.at(&point).unwrap();
                    lines.extend((0..fetch.lines).map(|line| (first + line * LINE_BYTES) / LINE_BYTES));
                }
            }
            (p, lines)
        };
        (0..15).map(lines_at).collect()
    }

    #[test]
    fn while_a_part_is_used_the_next_one_is_fetched() {
        let lines_of_part = 64 * 32 * 4 / LINE_BYTES;
        for (p, lines) in fetched("for p in 0..16", "for r in 0..6", "p") {
            let next = (p + 1) * lines_of_part..(p + 2) * lines_of_part;
            assert!(next.clone().all(|line| lines.contains(&line)), "part {p} fetches {lines:?}");
            // and no more than the last share leaves over
            assert!(lines.iter().all(|line| (next.start..next.end + 64).contains(line)), "part {p} fetches {lines:?}");
        }
        // parallel loops over several axes at once divide their variable
        for (p, lines) in fetched("parallel for p in 0..32", "for r in 0..6", "p % 16").into_iter().take(14) {
            assert!(lines.contains(&((p + 1) * lines_of_part)));
        }
    }

    #[test]
    fn what_is_read_once_or_all_at_once_is_left_to_the_machine() {
        // no loop uses a part again; no loop goes to another part
        assert!(fetched("for p in 0..16", "for r in 0..1", "p").iter().all(|(_, lines)| lines.is_empty()));
        assert!(fetched("for p in 0..1", "for r in 0..6", "p").iter().all(|(_, lines)| lines.is_empty()));
    }
}
