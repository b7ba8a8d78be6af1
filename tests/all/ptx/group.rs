//! Products that four warps execute together, `wgmma` (PTX ISA, "Asynchronous Warpgroup Level Matrix
//! Instructions").

use super::machine::{Thread, WARP, set};
use super::memory::{Memory, Who};
use super::parse::{Operand, SHARED};
use super::warp::{Element, left, parts, value};

/// What a thread's products do while they are under way, and what it did before.
#[derive(Default)]
pub struct Products {
    /// Instructions so far, at the last fence, and when each register was written by anything but a product.
    pub clock: u32,
    fence: Option<u32>,
    pub written: Vec<u32>,
    /// Registers that products under way write, and those that they read.
    open: UnderWay,
    committed: UnderWay,
    /// The instructions and the descriptors that this thread gave: what the other warps of its group have to
    /// give as well.
    given: Vec<(usize, u64)>,
}

#[derive(Default)]
struct UnderWay {
    written: Vec<usize>,
    read: Vec<usize>,
}

impl Products {
    pub fn of_thread(registers: usize) -> Products {
        Products { written: vec![0; registers], ..Products::default() }
    }

    /// Whether an instruction may touch its operands now; the first is written.
    pub fn allow(&self, operands: &[Operand]) -> Result<(), String> {
        if self.open.written.is_empty() && self.committed.written.is_empty() {
            return Ok(());
        }
        for (number, operand) in operands.iter().enumerate() {
            for register in registers(operand) {
                let all = [&self.open, &self.committed];
                let is_written = all.iter().any(|products| products.written.contains(&register));
                let is_read = number == 0 && all.iter().any(|products| products.read.contains(&register));
                if is_written || is_read {
                    return Err("touches a register of a product that was not waited for".into());
                }
            }
        }
        Ok(())
    }

    pub fn is_idle(&self) -> bool {
        self.open.written.is_empty() && self.committed.written.is_empty()
    }
}

fn registers(operand: &Operand) -> Vec<usize> {
    match operand {
        Operand::Register(register) | Operand::Address(Some(register), _) => vec![*register],
        Operand::Vector(parts) => parts.iter().flat_map(registers).collect(),
        _ => Vec::new(),
    }
}

/// What a warp sees of its block: the number of the instruction that it executes, memory, and as whom a
/// thread accesses that.
pub struct Around<'a> {
    pub at: usize,
    pub memory: &'a mut Memory,
    pub who: &'a dyn Fn(&Thread) -> Who,
}

/// All of `wgmma`.
pub fn execute(op: &[&str], operands: &[Operand], warp: &mut [Thread], around: Around<'_>) -> Result<(), String> {
    match (op[1..].as_ref(), operands) {
        (["fence", "sync", "aligned"], []) => {
            warp.iter_mut().for_each(|thread| thread.products.fence = Some(thread.products.clock));
            Ok(())
        }
        (["commit_group", "sync", "aligned"], []) => {
            for Products { open, committed, .. } in warp.iter_mut().map(|thread| &mut thread.products) {
                committed.written.append(&mut open.written);
                committed.read.append(&mut open.read);
            }
            Ok(())
        }
        (["wait_group", "sync", "aligned"], [Operand::Immediate(0)]) => {
            warp.iter_mut().for_each(|thread| thread.products.committed = UnderWay::default());
            Ok(())
        }
        (["mma_async", "sync", "aligned", shape, "f32", first, second], operands) if first == second => {
            let columns = shape.strip_prefix("m64n").and_then(|rest| rest.strip_suffix("k16"));
            let columns: usize = columns.and_then(|n| n.parse().ok()).ok_or("the shape is not known")?;
            let element = match *first {
                "f16" => Element::F16,
                "bf16" => Element::Bf16,
                _ => return Err("the type is not known".into()),
            };
            multiply((columns, element), operands, warp, around)
        }
        _ => Err("the instruction is not known".into()),
    }
}

fn multiply(
    (columns, element): (usize, Element),
    operands: &[Operand],
    warp: &mut [Thread],
    around: Around<'_>,
) -> Result<(), String> {
    let [
        sum,
        first,
        second,
        Operand::Immediate(1),
        Operand::Immediate(1),
        Operand::Immediate(1),
        Operand::Immediate(by_columns),
    ] = operands
    else {
        return Err(format!("operands {operands:?}"));
    };
    let counts = [parts(sum).len(), parts(first).len()];
    if !(8..=256).contains(&columns) || columns % 8 != 0 || counts != [columns / 2, 4] || *by_columns > 1 {
        return Err(format!("{columns} columns, {counts:?} registers"));
    }
    let descriptor = value(&warp[0], second)?;
    for thread in warp.iter_mut() {
        if value(thread, second)? != descriptor {
            return Err("threads of a warp give different descriptors".into());
        }
        let fence = thread.products.fence.ok_or("no fence before a product")?;
        let (sums, operands) = (registers(sum), registers(first));
        let products = &mut thread.products;
        if sums.iter().chain(&operands).any(|register| products.written[*register] > fence) {
            return Err("no fence between a register's value and the product that takes it".into());
        }
        if operands.iter().any(|register| products.open.written.contains(register)) {
            return Err("an operand is the result of a product that was not waited for".into());
        }
        products.open.written.extend(sums);
        products.open.read.extend(operands);
        products.given.push((around.at, descriptor));
    }
    let second = right(descriptor, columns, *by_columns == 1, element, &warp[0], around)?;
    let first = left(element, first, warp)?;
    for (lane, thread) in warp.iter_mut().enumerate() {
        let (group, member) = (lane / 4, lane % 4);
        for (number, to) in parts(sum).iter().enumerate() {
            let (row, column) = (group + 8 * (number / 2 % 2), 8 * (number / 4) + 2 * member + number % 2);
            let start = f32::from_bits(value(thread, to)? as u32);
            let result = (0..16).fold(start, |sum, k| sum + first[row][k] * second[column][k]);
            let Operand::Register(register) = to else { return Err("a sum that is no register".into()) };
            let before = thread.products.written[*register];
            set(thread, to, u64::from(result.to_bits()))?;
            // not by the thread itself
            thread.products.written[*register] = before;
        }
    }
    Ok(())
}

/// The columns of the second operand, out of core matrices of eight rows of 16 bytes ("Strides", no
/// swizzling): the leading offset is between those that are neighbours along the depth, the stride between
/// those along the columns, whichever of both lies in rows.
fn right(
    descriptor: u64,
    columns: usize,
    by_columns: bool,
    element: Element,
    thread: &Thread,
    around: Around<'_>,
) -> Result<Vec<[f32; 16]>, String> {
    let field = |first: u32| (descriptor >> first & 0x3fff) << 4;
    let (start, leading, stride) = (field(0), field(16), field(32));
    if descriptor >> 46 != 0 || descriptor & (0b11 << 14 | 0b11 << 30) != 0 {
        return Err(format!("descriptor {descriptor:#x}"));
    }
    let mut result = vec![[0f32; 16]; columns];
    for (deep, wide) in (0..2).flat_map(|deep| (0..columns / 8).map(move |wide| (deep, wide))) {
        for row in 0..8 {
            let address = SHARED + start + deep as u64 * leading + wide as u64 * stride + 16 * row as u64;
            let bytes = around.memory.read_by_proxy(address, 16, (around.who)(thread))?;
            for (at, half) in bytes.chunks(2).enumerate() {
                let (k, n) = if by_columns { (row, at) } else { (at, row) };
                let bits = u64::from(u16::from_le_bytes([half[0], half[1]]));
                result[8 * wide + n][8 * deep + k] = element.of(bits, 0);
            }
        }
    }
    Ok(result)
}

/// Between barriers, the four warps of a group have to give the same products.
pub fn agree(threads: &mut [Thread]) -> Result<(), String> {
    for group in threads.chunks_mut(4 * WARP) {
        if group.iter().all(|thread| thread.products.given.is_empty()) {
            continue;
        }
        let first = std::mem::take(&mut group[0].products.given);
        if group.len() < 4 * WARP || group[1..].iter().any(|thread| thread.products.given != first) {
            return Err("the warps of a group do not execute the same products".into());
        }
        group.iter_mut().for_each(|thread| thread.products.given.clear());
    }
    Ok(())
}
