//! Executes a kernel: block by block, every thread up to where it has to wait for others.

use super::arithmetic::{Type, compare, compute, convert, float, mixed};
use super::group::{self, Around, Products};
use super::memory::{Memory, Who, argument};
use super::parse::{Function, Instruction, Operand};
use super::warp;

pub const WARP: usize = 32;
/// No thread of our tests executes so many instructions.
const MOST_STEPS: usize = 20_000_000;

/// One thread.
pub struct Thread {
    pub registers: Vec<u64>,
    next: usize,
    number: u32,
    /// Copies that it has started: those of each group that was closed, oldest first, and those since.
    groups: Vec<Vec<Copy>>,
    open: Vec<Copy>,
    pub products: Products,
}

struct Copy {
    to: u64,
    from: u64,
    bytes: usize,
    /// The rest of what is written is zeros.
    read: usize,
}

/// Where a thread stands still.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stop {
    End,
    /// All threads of the block meet at this instruction.
    Barrier(usize),
    /// All threads of the warp execute this instruction together.
    Together(usize),
}

/// A function with the grid that it is started with.
pub struct Start<'a> {
    pub function: &'a Function,
    pub blocks: u32,
    pub threads: u32,
    pub shared_bytes: usize,
}

/// Executes all blocks; parameter `n` is the address of argument `n` of the memory.
pub fn execute(start: &Start<'_>, memory: &mut Memory) -> Result<(), String> {
    if start.threads > start.function.most_threads {
        return Err(format!("{} threads of {}", start.threads, start.function.most_threads));
    }
    for block in 0..start.blocks {
        memory.enter_block(start.shared_bytes, start.function.local_bytes);
        Block { start, memory, number: block, epoch: 0 }.run().map_err(|fault| format!("block {block}, {fault}"))?;
    }
    memory.end_kernel();
    Ok(())
}

struct Block<'a> {
    start: &'a Start<'a>,
    memory: &'a mut Memory,
    number: u32,
    /// Barriers so far.
    epoch: u32,
}

impl Block<'_> {
    fn run(&mut self) -> Result<(), String> {
        let function = self.start.function;
        let mut threads: Vec<Thread> = (0..self.start.threads)
            .map(|number| Thread {
                registers: vec![0; function.registers],
                next: 0,
                number,
                groups: Vec::new(),
                open: Vec::new(),
                products: Products::of_thread(function.registers),
            })
            .collect();
        loop {
            let mut stops = Vec::with_capacity(threads.len());
            for warp in threads.chunks_mut(WARP) {
                stops.extend(self.run_warp(warp)?);
            }
            group::agree(&mut threads)?;
            if stops.iter().all(|stop| *stop == Stop::End) {
                break;
            }
            // who has ended is not waited for
            let mut waiting = stops.iter().filter(|stop| **stop != Stop::End);
            let first = waiting.next();
            if !waiting.all(|stop| Some(stop) == first) {
                return Err(format!("threads wait in different places: {stops:?}"));
            }
            self.epoch += 1;
            threads.iter_mut().zip(&stops).filter(|(_, stop)| **stop != Stop::End).for_each(|(t, _)| t.next += 1);
        }
        let is_idle = |t: &&Thread| t.open.is_empty() && t.groups.is_empty() && t.products.is_idle();
        match threads.iter().find(|thread| !is_idle(thread)) {
            Some(thread) => Err(format!("thread {} ends while it copies or multiplies", thread.number)),
            None => Ok(()),
        }
    }

    /// To the next barrier.
    fn run_warp(&mut self, warp: &mut [Thread]) -> Result<Vec<Stop>, String> {
        loop {
            let mut stops = Vec::with_capacity(warp.len());
            for thread in warp.iter_mut() {
                let stop = self.run_thread(thread);
                let at = &self.start.function.code.get(thread.next);
                stops.push(stop.map_err(|fault| {
                    format!("thread {}: {fault}\n  in {}", thread.number, at.map_or("", |at| &at.text))
                })?);
            }
            let Some(Stop::Together(at)) = stops.iter().find(|stop| matches!(stop, Stop::Together(_))).copied() else {
                return Ok(stops);
            };
            let instruction = &self.start.function.code[at];
            let here: Vec<bool> = stops.iter().map(|stop| *stop == Stop::Together(at)).collect();
            self.together(instruction, at, warp, &here)
                .map_err(|fault| format!("{fault}\n  in {}", instruction.text))?;
            warp.iter_mut().zip(here).filter(|(_, here)| *here).for_each(|(thread, _)| thread.next += 1);
        }
    }

    /// `here` are the threads that wait at the instruction.
    fn together(
        &mut self,
        instruction: &Instruction,
        at: usize,
        warp: &mut [Thread],
        here: &[bool],
    ) -> Result<(), String> {
        let op: Vec<&str> = instruction.op.iter().map(String::as_str).collect();
        match op[0] {
            "shfl" => warp::shuffle(&op, &instruction.operands, warp, here),
            _ if warp.len() < WARP || here.contains(&false) => {
                Err(format!("not all threads of a warp are here: {here:?}"))
            }
            "mma" => warp::multiply(&op, &instruction.operands, warp),
            "wgmma" => {
                let (number, epoch) = (self.number, self.epoch);
                let who = |thread: &Thread| Who { block: number, thread: thread.number, epoch };
                group::execute(&op, &instruction.operands, warp, Around { at, memory: self.memory, who: &who })
            }
            "ldmatrix" => {
                let (number, epoch) = (self.number, self.epoch);
                let mut read = |thread: &Thread, address: u64, bytes: usize| {
                    self.memory.read(address, bytes, Who { block: number, thread: thread.number, epoch })
                };
                warp::load_matrices(&op, &instruction.operands, warp, &mut read)
            }
            other => Err(format!("`{other}` is not known")),
        }
    }

    fn run_thread(&mut self, thread: &mut Thread) -> Result<Stop, String> {
        let function = self.start.function;
        for _ in 0..MOST_STEPS {
            let Some(instruction) = function.code.get(thread.next) else { return Err("no instruction".into()) };
            let holds = instruction.guard.is_none_or(|(register, wanted)| (thread.registers[register] != 0) == wanted);
            let op = instruction.op[0].as_str();
            match (op, instruction.op.get(1).map(String::as_str)) {
                ("bar", _) if holds => return Ok(Stop::Barrier(thread.next)),
                ("wgmma", _) if holds => {
                    thread.products.clock += 1;
                    return Ok(Stop::Together(thread.next));
                }
                ("shfl" | "mma" | "ldmatrix", _) if holds => {
                    thread.products.clock += 1;
                    thread.products.allow(&instruction.operands)?;
                    return Ok(Stop::Together(thread.next));
                }
                ("ret" | "exit", _) if holds => return Ok(Stop::End),
                ("bra", _) if holds => match instruction.operands.as_slice() {
                    [Operand::Label(at)] => {
                        thread.next = *at;
                        continue;
                    }
                    _ => return Err("a branch to nowhere".into()),
                },
                _ if holds => {
                    thread.products.clock += 1;
                    thread.products.allow(&instruction.operands)?;
                    self.step(thread, instruction)?;
                }
                _ => {}
            }
            thread.next += 1;
        }
        Err("it does not end".into())
    }

    fn who(&self, thread: &Thread) -> Who {
        Who { block: self.number, thread: thread.number, epoch: self.epoch }
    }

    fn value(&self, thread: &Thread, operand: &Operand) -> Result<u64, String> {
        Ok(match operand {
            Operand::Register(register) => thread.registers[*register],
            Operand::Immediate(value) => *value,
            Operand::Thread => u64::from(thread.number),
            Operand::Block => u64::from(self.number),
            Operand::Lane => u64::from(thread.number) % WARP as u64,
            other => return Err(format!("{other:?} is no value")),
        })
    }

    /// Whatever a thread does by itself.
    fn step(&mut self, thread: &mut Thread, instruction: &Instruction) -> Result<(), String> {
        let op: Vec<&str> = instruction.op.iter().map(String::as_str).collect();
        let unknown = || "the instruction is not known".to_string();
        let ty = op.last().and_then(|name| Type::named(name));
        match (op[0], instruction.operands.as_slice()) {
            ("ld", [to, Operand::Parameter(number)]) => {
                if *number >= self.start.function.parameters.len() {
                    return Err("no such parameter".into());
                }
                set(thread, to, argument(*number))
            }
            ("ld", [to, from]) => {
                let (ty, lanes) = (ty.ok_or_else(unknown)?, lanes(to));
                let bytes = ty.bits() as usize / 8;
                let found = self.memory.read(address(thread, from)?, bytes * lanes, self.who(thread))?;
                for (lane, value) in found.chunks(bytes).enumerate() {
                    set(thread, nth(to, lane), bits(value))?;
                }
                Ok(())
            }
            ("st", [to, from]) => {
                let (ty, lanes) = (ty.ok_or_else(unknown)?, lanes(from));
                let mut bytes = Vec::new();
                for lane in 0..lanes {
                    let value = self.value(thread, nth(from, lane))?;
                    bytes.extend_from_slice(&value.to_le_bytes()[..ty.bits() as usize / 8]);
                }
                self.memory.write(address(thread, to)?, &bytes, self.who(thread))
            }
            ("cp", operands) if op.get(1) == Some(&"async") => self.copy(&op, thread, operands),
            ("fence", []) if op[1..] == ["proxy", "async", "shared::cta"] => {
                self.memory.fence_proxy(thread.number);
                Ok(())
            }
            // two halves of a word
            ("mov", [Operand::Vector(to), from]) => {
                let (value, width) = (self.value(thread, from)?, ty.ok_or_else(unknown)?.bits() / to.len() as u32);
                to.iter()
                    .enumerate()
                    .try_for_each(|(at, to)| set(thread, to, Type::Bits(width).cut(value >> (width * at as u32))))
            }
            ("mov", [to, Operand::Vector(from)]) => {
                let width = ty.ok_or_else(unknown)?.bits() / from.len() as u32;
                let mut value = 0;
                for (at, from) in from.iter().enumerate() {
                    value |= Type::Bits(width).cut(self.value(thread, from)?) << (width * at as u32);
                }
                set(thread, to, value)
            }
            ("cvta", [to, from]) => {
                let value = self.value(thread, from)?;
                set(thread, to, value)
            }
            ("selp", [to, a, b, which]) => {
                let which = self.value(thread, which)? != 0;
                let value = self.value(thread, if which { a } else { b })?;
                set(thread, to, ty.ok_or_else(unknown)?.cut(value))
            }
            ("setp", [to, a, b, rest @ ..]) => {
                let (a, b) = (self.value(thread, a)?, self.value(thread, b)?);
                let mut holds = compare(op[1], ty.ok_or_else(unknown)?, a, b).ok_or_else(unknown)?;
                match (op.get(2), rest) {
                    (_, []) => {}
                    (Some(&"and"), [other]) => holds &= self.value(thread, other)? != 0,
                    (Some(&"or"), [other]) => holds |= self.value(thread, other)? != 0,
                    _ => return Err(unknown()),
                }
                set(thread, to, u64::from(holds))
            }
            ("cvt", [to, from]) if op[1..] == ["rna", "tf32", "f32"] => {
                // eleven significant bits, ties away from zero
                let value = self.value(thread, from)?;
                let rounded = if float(value).is_finite() { (value + 0x1000) & !0x1fff } else { value };
                set(thread, to, rounded)
            }
            ("cvt", [to, high, low]) if matches!(op[1..], ["rn", "f16x2" | "bf16x2", "f32"]) => {
                let half = if op[2] == "f16x2" { Type::F16 } else { Type::Bf16 };
                let [high, low] = [self.value(thread, high)?, self.value(thread, low)?]
                    .map(|value| convert(&["rn"], half, Type::F32, value).unwrap_or_default());
                set(thread, to, high << 16 | low)
            }
            ("cvt", [to, from]) => {
                let from_ty = ty.ok_or_else(unknown)?;
                let to_ty = Type::named(op[op.len() - 2]).ok_or_else(unknown)?;
                let value = self.value(thread, from)?;
                let value = convert(&op[1..op.len() - 2], to_ty, from_ty, value).ok_or_else(unknown)?;
                set(thread, to, value)
            }
            (_, [to, operands @ ..]) => {
                let values =
                    operands.iter().map(|operand| self.value(thread, operand)).collect::<Result<Vec<_>, _>>()?;
                if let ([before @ .., "f32", "f16" | "bf16"], Some(half)) = (op.as_slice(), ty) {
                    return set(thread, to, mixed(before, half, &values).ok_or_else(unknown)?);
                }
                let value = compute(&op[..op.len() - 1], ty.ok_or_else(unknown)?, &values).ok_or_else(unknown)?;
                set(thread, to, value)
            }
            _ => Err(unknown()),
        }
    }

    /// `cp.async`: what is copied arrives when the thread has waited for it, not before.
    fn copy(&mut self, op: &[&str], thread: &mut Thread, operands: &[Operand]) -> Result<(), String> {
        let who = self.who(thread);
        match (op[2], operands) {
            ("ca" | "cg", [to, from, Operand::Immediate(bytes), rest @ ..]) => {
                let bytes = *bytes as usize;
                if !(if op[2] == "cg" { vec![16] } else { vec![4, 8, 16] }).contains(&bytes) {
                    return Err(format!("{bytes} bytes"));
                }
                let read = match rest {
                    [] => bytes,
                    [size] => self.value(thread, size)? as usize,
                    _ => return Err("operands".into()),
                };
                let copy = Copy { to: address(thread, to)?, from: address(thread, from)?, bytes, read };
                self.memory.start_copy(copy.to, bytes, who)?;
                thread.open.push(copy);
                Ok(())
            }
            ("commit_group", []) => {
                let group = std::mem::take(&mut thread.open);
                thread.groups.push(group);
                Ok(())
            }
            ("wait_group", [Operand::Immediate(left)]) => {
                let done = thread.groups.len().saturating_sub(*left as usize);
                for copy in thread.groups.drain(..done).flatten() {
                    let mut bytes = match copy.read {
                        0 => Vec::new(),
                        read if read == copy.bytes => self.memory.read(copy.from, read, who)?,
                        read => return Err(format!("{read} bytes of {}", copy.bytes)),
                    };
                    bytes.resize(copy.bytes, 0);
                    self.memory.end_copy(copy.to, &bytes, who)?;
                }
                Ok(())
            }
            _ => Err("the copy is not known".into()),
        }
    }
}

/// Little-endian.
pub fn bits(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, byte| (value << 8) | u64::from(*byte))
}

pub fn set(thread: &mut Thread, to: &Operand, value: u64) -> Result<(), String> {
    match to {
        Operand::Register(register) => {
            thread.registers[*register] = value;
            thread.products.written[*register] = thread.products.clock;
            Ok(())
        }
        Operand::Nowhere => Ok(()),
        other => Err(format!("{other:?} cannot be written")),
    }
}

pub fn address(thread: &Thread, operand: &Operand) -> Result<u64, String> {
    match operand {
        Operand::Address(Some(base), offset) => Ok(thread.registers[*base].wrapping_add(*offset as u64)),
        Operand::Address(None, offset) => Ok(*offset as u64),
        other => Err(format!("{other:?} is no address")),
    }
}

fn lanes(operand: &Operand) -> usize {
    if let Operand::Vector(parts) = operand { parts.len() } else { 1 }
}

fn nth(operand: &Operand, lane: usize) -> &Operand {
    if let Operand::Vector(parts) = operand { &parts[lane] } else { operand }
}

/// The float in a register.
pub fn float_of(thread: &Thread, operand: &Operand) -> Result<f32, String> {
    match operand {
        Operand::Register(register) => Ok(float(thread.registers[*register])),
        Operand::Immediate(value) => Ok(float(*value)),
        other => Err(format!("{other:?} is no value")),
    }
}
