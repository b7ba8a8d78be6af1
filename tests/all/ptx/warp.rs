//! What the threads of a warp do together.

use half::{bf16, f16};

use super::machine::{Thread, WARP, bits, float_of, set};
use super::parse::Operand;

/// `shfl.sync.bfly.b32`: every thread gets the value of the one whose number differs in these bits, among
/// those that it names.
pub fn shuffle(op: &[&str], operands: &[Operand], warp: &mut [Thread], here: &[bool]) -> Result<(), String> {
    let [to, from, Operand::Immediate(lanes), Operand::Immediate(31), members] = operands else {
        return Err(format!("operands {operands:?}"));
    };
    if op != ["shfl", "sync", "bfly", "b32"] {
        return Err("the shuffle is not known".into());
    }
    let members = warp.iter().map(|thread| value(thread, members)).collect::<Result<Vec<_>, _>>()?;
    let values = warp.iter().map(|thread| value(thread, from)).collect::<Result<Vec<_>, _>>()?;
    for lane in (0..warp.len()).filter(|lane| here[*lane]) {
        let (named, other) = (members[lane] as u32, lane ^ *lanes as usize);
        let is_member = |lane: usize| lane < WARP && named >> lane & 1 == 1;
        let agrees = |lane: usize| here.get(lane) == Some(&true) && members[lane] as u32 == named;
        if !is_member(lane) || !is_member(other) || !(0..WARP).all(|lane| !is_member(lane) || agrees(lane)) {
            return Err(format!("threads {named:#x} are named by {lane}, which asks {other}; here are {here:?}"));
        }
        set(&mut warp[lane], to, values[other])?;
    }
    Ok(())
}

pub fn value(thread: &Thread, operand: &Operand) -> Result<u64, String> {
    match operand {
        Operand::Register(register) => Ok(thread.registers[*register]),
        Operand::Immediate(value) => Ok(*value),
        other => Err(format!("{other:?} is no value")),
    }
}

pub fn parts(operand: &Operand) -> &[Operand] {
    if let Operand::Vector(parts) = operand { parts } else { std::slice::from_ref(operand) }
}

/// Elements of a product's operands.
#[derive(Clone, Copy)]
pub enum Element {
    Tf32,
    F16,
    Bf16,
}

impl Element {
    /// In a register.
    fn count(self) -> usize {
        if matches!(self, Element::Tf32) { 1 } else { 2 }
    }

    pub fn of(self, register: u64, at: usize) -> f32 {
        let half = (register >> (16 * at)) as u16;
        match self {
            // the last thirteen bits are not looked at
            Element::Tf32 => f32::from_bits(register as u32 & !0x1fff),
            Element::F16 => f16::from_bits(half).to_f32(),
            Element::Bf16 => bf16::from_bits(half).to_f32(),
        }
    }
}

/// The rows of a left operand, of which every thread of a group of four holds a part.
pub fn left(element: Element, operand: &Operand, warp: &[Thread]) -> Result<Vec<[f32; 16]>, String> {
    let mut rows = vec![[0f32; 16]; 16];
    for (lane, thread) in warp.iter().enumerate() {
        let (group, member) = (lane / 4, lane % 4);
        let per_register = element.count();
        for (number, register) in parts(operand).iter().enumerate() {
            let held = value(thread, register)?;
            // registers 1 and 3 are of the lower rows, 2 and 3 of the right half
            let (row, first) = (group + 8 * (number % 2), 4 * per_register * (number / 2) + per_register * member);
            (0..per_register).for_each(|at| rows[row][first + at] = element.of(held, at));
        }
    }
    Ok(rows)
}

/// `mma.sync.aligned.m16n8kK.row.col.f32.T.T.f32` (PTX ISA, figures of the fragments of m16n8k8 and
/// m16n8k16): a row of the left operand, and a column of the right one, are with the four threads of a group.
pub fn multiply(op: &[&str], operands: &[Operand], warp: &mut [Thread]) -> Result<(), String> {
    let (element, depth) = match op[1..] {
        ["sync", "aligned", "m16n8k8", "row", "col", "f32", "tf32", "tf32", "f32"] => (Element::Tf32, 8),
        ["sync", "aligned", "m16n8k16", "row", "col", "f32", "f16", "f16", "f32"] => (Element::F16, 16),
        ["sync", "aligned", "m16n8k16", "row", "col", "f32", "bf16", "bf16", "f32"] => (Element::Bf16, 16),
        _ => return Err("the product is not known".into()),
    };
    let [to, first, right, sum] = operands else { return Err(format!("operands {operands:?}")) };
    let counts = [to, first, right, sum].map(|operand| parts(operand).len());
    if counts != [4, 4, 2, 4] {
        return Err(format!("{counts:?} registers"));
    }
    let (a, mut b) = (left(element, first, warp)?, vec![[0f32; 16]; 8]);
    for (lane, thread) in warp.iter().enumerate() {
        let (group, member) = (lane / 4, lane % 4);
        let per_register = element.count();
        for (number, register) in parts(right).iter().enumerate() {
            let held = value(thread, register)?;
            let first = 4 * per_register * number + per_register * member;
            (0..per_register).for_each(|at| b[group][first + at] = element.of(held, at));
        }
    }
    for (lane, thread) in warp.iter_mut().enumerate() {
        let (group, member) = (lane / 4, lane % 4);
        for (number, (to, sum)) in parts(to).iter().zip(parts(sum)).enumerate() {
            let (row, column) = (group + 8 * (number / 2), 2 * member + number % 2);
            let start = float_of(thread, sum)?;
            let product = (0..depth).fold(start, |sum, k| sum + a[row][k] * b[column][k]);
            set(thread, to, u64::from(product.to_bits()))?;
        }
    }
    Ok(())
}

/// Reads so many bytes at an address for a thread.
pub type Read<'a> = dyn FnMut(&Thread, u64, usize) -> Result<Vec<u8>, String> + 'a;

/// `ldmatrix.sync.aligned.m8n8.xN[.trans].shared.b16`: N matrices of 8 × 8 halves; every eight threads hold
/// the addresses of one's rows.
pub fn load_matrices(
    op: &[&str],
    operands: &[Operand],
    warp: &mut [Thread],
    read: &mut Read<'_>,
) -> Result<(), String> {
    let (count, transposed) = match op[1..] {
        ["sync", "aligned", "m8n8", count, "shared", "b16"] => (count, false),
        ["sync", "aligned", "m8n8", count, "trans", "shared", "b16"] => (count, true),
        _ => return Err("the load is not known".into()),
    };
    let count = match count {
        "x1" => 1,
        "x2" => 2,
        "x4" => 4,
        _ => return Err("so many matrices cannot be loaded".into()),
    };
    let [to, from] = operands else { return Err(format!("operands {operands:?}")) };
    if parts(to).len() != count {
        return Err(format!("{} registers for {count} matrices", parts(to).len()));
    }
    for matrix in 0..count {
        let mut rows = Vec::with_capacity(8);
        for thread in &warp[8 * matrix..8 * matrix + 8] {
            let row = read(thread, super::machine::address(thread, from)?, 16)?;
            rows.push(row.chunks(2).map(bits).collect::<Vec<u64>>());
        }
        for (lane, thread) in warp.iter_mut().enumerate() {
            let (row, column) = (lane / 4, 2 * (lane % 4));
            let [low, high] = match transposed {
                false => [rows[row][column], rows[row][column + 1]],
                true => [rows[column][row], rows[column + 1][row]],
            };
            set(thread, &parts(to)[matrix], low | high << 16)?;
        }
    }
    Ok(())
}
