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
//! Where a step multiplies tiles, and no loop uses a part again, what the next steps read is fetched into the
//! nearest cache.
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
/// The same for each product of tiles in a step, which takes as long as many instructions.
const LINES_OF_TILE: i64 = 8;
/// Steps of tiles that weights are fetched before, where they are read one after the other and once: vector
/// loads are seen through by the processor, those of tiles are too many at once.
const STEPS_AHEAD: i64 = 2;
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
    level: Level,
}

/// Where to: the caches, nearest first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Level {
    First,
    Second,
}

impl Level {
    /// As the instruction has it: how near it is wanted.
    fn locality(self) -> i64 {
        match self {
            Level::First => 3,
            Level::Second => 2,
        }
    }
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

/// A read of a packed constant, and the loops around it inside of the innermost counted loop.
struct Read<'n> {
    buffer: TensorId,
    /// In elements from the buffer's start.
    index: Index,
    inside: Vec<&'n Loop>,
}

/// What the steps of the last loop of a path fetch.
fn prefetches(nest: &Nest, path: &[&Loop], target: &Cpu) -> Vec<Prefetch> {
    let Some(innermost) = path.last() else { return Vec::new() };
    let mut found = Vec::new();
    collect(nest, &innermost.body, &mut Vec::new(), &mut found);
    let tiles = tiles(&innermost.body);
    let most_lines = MAXIMAL_LINES.max(LINES_OF_TILE * tiles);
    let mut buffers: Vec<TensorId> = found.iter().map(|read| read.buffer).collect();
    buffers.dedup();
    let large = |buffer: &TensorId| nest.buffer(*buffer).bytes() as u64 > target.l1_bytes;
    let of = |buffer: TensorId| found.iter().filter(|read| read.buffer == buffer).collect::<Vec<_>>();
    let fetch = |buffer: TensorId| {
        let reads = of(buffer);
        let next = next_part(nest, path, &reads, most_lines);
        next.or_else(|| if tiles > 0 { next_steps(nest, path, &reads, most_lines) } else { None })
    };
    buffers.into_iter().filter(large).filter_map(fetch).collect()
}

/// The different reads of packed constants among what is accumulated, those of a buffer next to each other.
fn collect<'n>(nest: &Nest, body: &'n [Stmt], inside: &mut Vec<&'n Loop>, reads: &mut Vec<Read<'n>>) {
    for statement in body {
        match statement {
            Stmt::Loop(l) => {
                inside.push(l);
                collect(nest, &l.body, inside, reads);
                inside.pop();
            }
            Stmt::If { body, .. } => collect(nest, body, inside, reads),
            Stmt::Accumulate { value, .. } => value.for_each_load(&mut |buffer, indices| {
                let known = nest.buffer(buffer);
                let index = flatten(indices, &known.shape);
                let is_new = reads.iter().all(|other| (other.buffer, &other.index) != (buffer, &index));
                if known.scope == Scope::Packed && is_new {
                    let behind =
                        reads.iter().rposition(|other| other.buffer == buffer).map_or(reads.len(), |at| at + 1);
                    reads.insert(behind, Read { buffer, index, inside: inside.clone() });
                }
            }),
            Stmt::Store { .. } => {}
        }
    }
}

/// Products of tiles in one step.
fn tiles(body: &[Stmt]) -> i64 {
    let of = |statement: &Stmt| match statement {
        Stmt::Loop(l) if l.kind == LoopKind::Matrix => 1,
        Stmt::Loop(l) => l.extent() * tiles(&l.body),
        Stmt::If { body, .. } => tiles(body),
        Stmt::Store { .. } | Stmt::Accumulate { .. } => 0,
    };
    body.iter().map(of).sum()
}

/// Where a buffer is read by some loops, the others standing still: from the first element to the last.
/// `None` where that is scattered over the buffer: it would take as many loops as it has pieces.
fn part(reads: &[&Read<'_>], loops: &[&Loop]) -> Option<Interval> {
    let (mut offsets, mut elements): (Option<Interval>, i64) = (None, 0);
    for read in reads {
        let inner: Vec<&Loop> = loops.iter().chain(&read.inside).copied().collect();
        let extent_of = |v: Var| inner.iter().find(|l| l.var == v).map(|l| l.extent());
        let of_read = read.index.range(&|v| extent_of(v).map_or(Interval::point(0), Interval::below))?;
        offsets = Some(
            offsets.map_or(of_read, |all| Interval { low: all.low.min(of_read.low), high: all.high.max(of_read.high) }),
        );
        elements += inner.iter().filter(|l| read.index.mentions(l.var)).map(|l| l.extent()).product::<i64>();
    }
    offsets.filter(|of| of.high - of.low < elements + elements / 4)
}

/// What each step fetches of the next part of a buffer, while it uses a part again.
fn next_part(nest: &Nest, path: &[&Loop], reads: &[&Read<'_>], most_lines: i64) -> Option<Prefetch> {
    let first = reads.first()?;
    // from the inside: loops over a part of the buffer, loops that use it again, and the loop over parts
    let mentions = |l: &Loop| reads.iter().any(|read| read.index.mentions(l.var));
    let used_again = path.iter().rposition(|l| l.extent() > 1 && !mentions(l))?;
    let over_parts = path[..used_again].iter().rposition(|l| l.extent() > 1 && mentions(l))?;
    let offsets = part(reads, &path[used_again + 1..])?;
    let span = offsets.high - offsets.low + 1;
    let steps: i64 = path[over_parts + 1..].iter().map(|l| l.extent()).fold(1, i64::saturating_mul);
    let size = nest.buffer(first.buffer).dtype.bytes() as i64;
    let lines = (span * size + LINE_BYTES - 1) / LINE_BYTES;
    if lines.saturating_mul(MAXIMAL_STEPS_PER_LINE) < steps || lines > steps.saturating_mul(most_lines) {
        return None;
    }
    let share = (span + steps - 1) / steps;
    let next = Index::var(path[over_parts].var).plus_constant(1);
    let is_inner = |v: Var| path[used_again + 1..].iter().chain(&first.inside).any(|l| l.var == v);
    let start = first.index.substitute(&|v| match is_inner(v) {
        true => Some(Index::constant(0)),
        false => (v == path[over_parts].var).then(|| next.clone()),
    });
    let origin = first.index.range(&|_| Interval::point(0))?;
    let step = path[over_parts + 1..]
        .iter()
        .fold(Index::constant(0), |step, l| step.times(l.extent()).plus(&Index::var(l.var)));
    let index = start.plus_constant(offsets.low - origin.low).plus(&step.times(share));
    let lines = (share * size + LINE_BYTES - 1) / LINE_BYTES;
    Some(Prefetch { buffer: first.buffer, index, lines, level: Level::Second })
}

/// What each step fetches of what the steps behind it read, one after the other.
fn next_steps(nest: &Nest, path: &[&Loop], reads: &[&Read<'_>], most_lines: i64) -> Option<Prefetch> {
    let (first, innermost) = (reads.first()?, path.last()?);
    let offsets = part(reads, &[])?;
    let span = offsets.high - offsets.low + 1;
    let size = nest.buffer(first.buffer).dtype.bytes() as i64;
    let lines = (span * size + LINE_BYTES - 1) / LINE_BYTES;
    if first.index.step(innermost.var) != Some(span) || lines > most_lines {
        return None;
    }
    let inner = |v: Var| first.inside.iter().any(|l| l.var == v).then(|| Index::constant(0));
    let origin = first.index.range(&|_| Interval::point(0))?;
    let index = first.index.substitute(&inner).plus_constant(offsets.low - origin.low + STEPS_AHEAD * span);
    Some(Prefetch { buffer: first.buffer, index, lines, level: Level::First })
}

impl<'c> Emitter<'_, 'c> {
    /// Asks for what the steps of a loop fetch.
    pub(super) fn prefetch(&mut self, l: &Loop) -> Result<(), CodegenError> {
        for Prefetch { buffer, index, lines, level } in self.shared.prefetches.get(&loop_id(l)).into_iter().flatten() {
            let Some(base) = self.pointers[buffer.0 as usize] else { continue };
            let (element, byte) =
                (self.memory_type(self.shared.nest.buffer(*buffer).dtype), self.shared.context.i8_type());
            let terms = self.terms(index)?;
            let start = self.pointer_to(*buffer, element, base, &terms)?;
            let start = self.ir.offset(element, start, self.ir.integer(Element::I64, terms.constant))?;
            for line in 0..*lines {
                let address = self.ir.offset(byte.into(), start, self.ir.integer(Element::I64, line * LINE_BYTES))?;
                // to read, data
                let number = |value| self.ir.integer(Element::I32, value);
                let arguments = [address.as_basic_value_enum(), number(0), number(level.locality()), number(1)];
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

    use super::{LINE_BYTES, Level, plan};
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

    /// What a step of two products of tiles fetches, whose weights are read `passes` times for each part.
    fn fetched_of_tiles(passes: i64) -> Vec<(Level, i64, i64)> {
        let product = |first: i64| {
            format!(
                "matrix for i in 0..16 {{\nmatrix for s in 0..16 {{\nmatrix for j in 0..16 {{\ndot for q in 0..2 {{\n\
                 r[i + {first}, j] += f32(x[m, i + {first}, k, s, q]) * f32(w[p, k, s, j, q])\n}}\n}}\n}}\n}}\n"
            )
        };
        let text = format!(
            "buffers:\n  x: bf16[4, 32, 64, 16, 2] input\n  w: bf16[32, 64, 16, 16, 2] packed\n\
             \x20 y: f32[16, 16] output\n  r: f32[32, 16] register\nbody:\nfor p in 0..32 {{\n\
             for m in 0..{passes} {{\nfor k in 0..64 {{\n{}{}}}\n}}\n}}\n",
            product(0),
            product(16)
        );
        let nest: Nest = text.parse().unwrap_or_else(|error| panic!("{error}\n{text}"));
        let Target::Cpu(cpu) = avx512() else { panic!("a CPU") };
        let found = plan(&nest, &nest.body, &cpu).into_values().flatten();
        let at = |name: &str| nest.vars.iter().position(|v| v == name).map(|at| Var(at as u32)).unwrap();
        // in the second pass, or the only one, over part 3
        let point =
            |v: Var| [("p", 3), ("m", passes - 1), ("k", 7)].iter().find(|(n, _)| at(n) == v).map_or(0, |(_, i)| *i);
        found.map(|fetch| (fetch.level, 2 * fetch.index.at(&point).unwrap() / LINE_BYTES, fetch.lines)).collect()
    }

    #[test]
    fn tiles_are_fetched_ahead() {
        let (lines_of_step, steps) = (16, 64);
        // two steps ahead, all of its lines
        assert_eq!(fetched_of_tiles(1), [(Level::First, (3 * steps + 7 + 2) * lines_of_step, lines_of_step)]);
        // of the next part, half of the lines in each of two passes
        let half = lines_of_step / 2;
        assert_eq!(fetched_of_tiles(2), [(Level::Second, 4 * steps * lines_of_step + (steps + 7) * half, half)]);
    }

    #[test]
    fn what_is_read_once_or_all_at_once_is_left_to_the_machine() {
        // no loop uses a part again; no loop goes to another part
        assert!(fetched("for p in 0..16", "for r in 0..1", "p").iter().all(|(_, lines)| lines.is_empty()));
        assert!(fetched("for p in 0..1", "for r in 0..6", "p").iter().all(|(_, lines)| lines.is_empty()));
    }
}
