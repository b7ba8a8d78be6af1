//! What instructions compute from the bits of their operands.

use half::{bf16, f16};

/// How bits are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Type {
    Bits(u32),
    Unsigned(u32),
    Signed(u32),
    F16,
    Bf16,
    F32,
    /// Two of them each.
    F16x2,
    Bf16x2,
    F32x2,
    Predicate,
}

impl Type {
    pub fn named(name: &str) -> Option<Type> {
        Some(match name {
            "f16" => Type::F16,
            "bf16" => Type::Bf16,
            "f32" => Type::F32,
            "f16x2" => Type::F16x2,
            "bf16x2" => Type::Bf16x2,
            "f32x2" => Type::F32x2,
            "pred" => Type::Predicate,
            _ => {
                let bits = name.get(1..)?.parse().ok().filter(|bits| [8, 16, 32, 64, 128].contains(bits))?;
                match name.get(..1)? {
                    "b" => Type::Bits(bits),
                    "u" => Type::Unsigned(bits),
                    "s" => Type::Signed(bits),
                    _ => return None,
                }
            }
        })
    }

    pub fn bits(self) -> u32 {
        match self {
            Type::Bits(bits) | Type::Unsigned(bits) | Type::Signed(bits) => bits,
            Type::F16 | Type::Bf16 => 16,
            Type::F32 | Type::F16x2 | Type::Bf16x2 => 32,
            Type::F32x2 => 64,
            Type::Predicate => 1,
        }
    }

    /// Without what is above.
    pub fn cut(self, value: u64) -> u64 {
        if self.bits() >= 64 { value } else { value & ((1 << self.bits()) - 1) }
    }

    /// As a number; 64 unsigned bits fit, too.
    fn integer(self, value: u64) -> i128 {
        let value = self.cut(value);
        match self {
            Type::Signed(bits) if bits < 64 => i128::from((value << (64 - bits)) as i64 >> (64 - bits)),
            Type::Signed(_) => i128::from(value as i64),
            _ => i128::from(value),
        }
    }
}

pub fn float(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

fn of(value: f32) -> u64 {
    u64::from(value.to_bits())
}

/// Instructions of one, two or three operands without effects; `None` for those that are not known.
pub fn compute(op: &[&str], ty: Type, operands: &[u64]) -> Option<u64> {
    match ty {
        Type::F32 => floats(op, operands),
        Type::F16x2 => in_pairs(op, Type::F16, operands),
        Type::Bf16x2 => in_pairs(op, Type::Bf16, operands),
        Type::F32x2 => in_pairs(op, Type::F32, operands),
        Type::F16 | Type::Bf16 => halves(op, ty, operands),
        Type::Predicate => logic(op[0], operands).map(|value| value & 1),
        _ => integers(op, ty, operands),
    }
}

/// The same of both halves of the operands.
fn in_pairs(op: &[&str], ty: Type, operands: &[u64]) -> Option<u64> {
    let part = |shift: u32| compute(op, ty, &operands.iter().map(|value| ty.cut(value >> shift)).collect::<Vec<_>>());
    Some(part(0)? | part(ty.bits())? << ty.bits())
}

fn logic(op: &str, operands: &[u64]) -> Option<u64> {
    Some(match (op, operands) {
        ("and", [a, b]) => a & b,
        ("or", [a, b]) => a | b,
        ("xor", [a, b]) => a ^ b,
        ("not", [a]) => !a,
        ("mov", [a]) => *a,
        _ => return None,
    })
}

fn integers(op: &[&str], ty: Type, operands: &[u64]) -> Option<u64> {
    if let Some(value) = logic(op[0], operands) {
        return Some(ty.cut(value));
    }
    let bits = ty.bits();
    let number = |at: usize| ty.integer(operands[at]);
    let product = || number(0).wrapping_mul(number(1));
    let part = |product: i128, op: &[&str]| match op.get(1) {
        Some(&"lo") => Some(product),
        Some(&"hi") => Some(product >> bits),
        Some(&"wide") => Some(product),
        _ => None,
    };
    // of shifts, the number of bits is unsigned, and may be more than there are
    let by = || (operands[1] & 0xffff_ffff).min(u64::from(bits));
    let value = match (op[0], operands.len()) {
        ("add", 2) => number(0) + number(1),
        ("sub", 2) => number(0) - number(1),
        ("neg", 1) => -number(0),
        ("abs", 1) => number(0).abs(),
        ("mul", 2) => part(product(), op)?,
        ("mad", 3) if op.get(1) == Some(&"wide") => {
            let wide = if matches!(ty, Type::Signed(_)) { Type::Signed(2 * bits) } else { Type::Unsigned(2 * bits) };
            product() + wide.integer(operands[2])
        }
        ("mad", 3) => part(product(), op)? + number(2),
        ("div", 2) if number(1) != 0 => number(0) / number(1),
        ("rem", 2) if number(1) != 0 => number(0) % number(1),
        ("min", 2) => number(0).min(number(1)),
        ("max", 2) => number(0).max(number(1)),
        ("shl", 2) => number(0) << by(),
        ("shr", 2) => number(0) >> by(),
        // bits from one on, so many; of a signed number, the last one is its sign
        ("bfe", 3) => {
            let (start, length) = (operands[1] & 0xff, operands[2] & 0xff);
            let field = (number(0) >> start) & ((1i128 << length) - 1);
            let is_negative = matches!(ty, Type::Signed(_)) && length > 0 && field >> (length - 1) & 1 == 1;
            if is_negative { field - (1i128 << length) } else { field }
        }
        // the upper word of two that are moved up together
        ("shf", 3) if op[1..] == ["l", "wrap"] => {
            let both = (operands[1] & 0xffff_ffff) << 32 | operands[0] & 0xffff_ffff;
            i128::from(both << (operands[2] & 31) >> 32)
        }
        // four bytes, each by its number among those of both words, or its sign all over
        ("prmt", 3) if op.len() == 1 => {
            let bytes = ((operands[1] & 0xffff_ffff) << 32 | operands[0] & 0xffff_ffff).to_le_bytes();
            let picked = (0..4).map(|at| operands[2] >> (4 * at) & 0xf).map(|pick| match bytes[(pick & 7) as usize] {
                byte if pick < 8 => byte,
                byte => {
                    if byte >= 0x80 {
                        0xff
                    } else {
                        0
                    }
                }
            });
            picked.rev().fold(0, |word, byte| word << 8 | i128::from(byte))
        }
        ("popc", 1) => i128::from(ty.cut(operands[0]).count_ones()),
        ("clz", 1) => i128::from(ty.cut(operands[0]).leading_zeros()) - i128::from(64 - bits),
        _ => return None,
    };
    let width = if op.get(1) == Some(&"wide") { 2 * bits } else { bits };
    Some(Type::Bits(width).cut(value as u64))
}

fn floats(op: &[&str], operands: &[u64]) -> Option<u64> {
    let number = |at: usize| float(operands[at]);
    // only what is rounded to the nearest: everything else would be less exact than we think
    let exact = op.get(1).is_none_or(|modifier| *modifier == "rn");
    Some(match (op[0], operands.len()) {
        ("add", 2) if exact => of(number(0) + number(1)),
        ("sub", 2) if exact => of(number(0) - number(1)),
        ("mul", 2) if exact => of(number(0) * number(1)),
        ("div", 2) if exact => of(number(0) / number(1)),
        ("fma", 3) if exact => of(number(0).mul_add(number(1), number(2))),
        ("sqrt", 1) if exact => of(number(0).sqrt()),
        ("rcp", 1) if exact => of(1.0 / number(0)),
        ("neg", 1) => operands[0] ^ 0x8000_0000,
        ("abs", 1) => operands[0] & 0x7fff_ffff,
        ("copysign", 2) => (operands[0] & 0x8000_0000) | (operands[1] & 0x7fff_ffff),
        ("min" | "max", 2) if op.get(1) == Some(&"NaN") && (number(0) + number(1)).is_nan() => of(f32::NAN),
        ("min", 2) if op.get(1) == Some(&"NaN") => of(number(0).min(number(1))),
        ("max", 2) if op.get(1) == Some(&"NaN") => of(number(0).max(number(1))),
        ("min", 2) if op.len() == 1 => of(number(0).min(number(1))),
        ("max", 2) if op.len() == 1 => of(number(0).max(number(1))),
        ("mov", 1) => operands[0],
        _ => return None,
    })
}

fn halves(op: &[&str], ty: Type, operands: &[u64]) -> Option<u64> {
    // a product of two is exact in an f64, so that sums are rounded once
    let number = |at: usize| convert(&[], Type::F32, ty, operands[at]).map(|wide| f64::from(float(wide)));
    let rounded = |value: f64| match ty {
        Type::F16 => u64::from(f16::from_f64(value).to_bits()),
        _ => u64::from(bf16::from_f64(value).to_bits()),
    };
    let exact = op.get(1).is_none_or(|modifier| *modifier == "rn");
    match (op[0], operands) {
        ("add", [_, _]) if exact => Some(rounded(number(0)? + number(1)?)),
        ("sub", [_, _]) if exact => Some(rounded(number(0)? - number(1)?)),
        ("mul", [_, _]) if exact => Some(rounded(number(0)? * number(1)?)),
        ("fma", [_, _, _]) if exact => Some(rounded(number(0)? * number(1)? + number(2)?)),
        ("mov", [value]) => Some(ty.cut(*value)),
        ("neg", [value]) => Some(ty.cut(value ^ 0x8000)),
        ("abs", [value]) => Some(value & 0x7fff),
        _ => None,
    }
}

/// Sums and products of f32 whose factors are halves.
pub fn mixed(op: &[&str], half: Type, operands: &[u64]) -> Option<u64> {
    let wide = |value: &u64| convert(&[], Type::F32, half, *value);
    let values = match operands {
        [a, c] => vec![wide(a)?, *c],
        [a, b, c] => vec![wide(a)?, wide(b)?, *c],
        _ => return None,
    };
    floats(op, &values).filter(|_| ["add", "sub", "fma"].contains(&op[0]))
}

/// A comparison; `None` for those that are not known.
pub fn compare(how: &str, ty: Type, a: u64, b: u64) -> Option<bool> {
    use std::cmp::Ordering::{Equal, Greater, Less};
    let order = match ty {
        Type::F32 => float(a).partial_cmp(&float(b)),
        Type::F16 | Type::Bf16 => {
            let wide = |bits: u64| convert(&[], Type::F32, ty, bits).map(float);
            wide(a)?.partial_cmp(&wide(b)?)
        }
        Type::F16x2 | Type::Bf16x2 | Type::F32x2 | Type::Predicate => return None,
        _ => Some(ty.integer(a).cmp(&ty.integer(b))),
    };
    Some(match (how, order) {
        ("num", order) => order.is_some(),
        ("nan", order) => order.is_none(),
        // a comparison with a NaN does not hold, unless its name ends so
        ("equ" | "neu" | "ltu" | "leu" | "gtu" | "geu", None) => true,
        ("eq" | "ne" | "lt" | "le" | "gt" | "ge", None) => false,
        ("eq" | "equ", Some(order)) => order == Equal,
        ("ne" | "neu", Some(order)) => order != Equal,
        ("lt" | "ltu" | "lo", Some(order)) => order == Less,
        ("le" | "leu" | "ls", Some(order)) => order != Greater,
        ("gt" | "gtu" | "hi", Some(order)) => order == Greater,
        ("ge" | "geu" | "hs", Some(order)) => order != Less,
        _ => return None,
    })
}

/// A conversion; `None` for those that are not known.
pub fn convert(modifiers: &[&str], to: Type, from: Type, value: u64) -> Option<u64> {
    let rounded = |value: f32| match modifiers {
        ["rni"] => Some(value.round_ties_even()),
        ["rzi"] => Some(value.trunc()),
        ["rmi"] => Some(value.floor()),
        ["rpi"] => Some(value.ceil()),
        _ => None,
    };
    Some(match (from, to) {
        (Type::F16, Type::F32) => of(f16::from_bits(value as u16).to_f32()),
        (Type::Bf16, Type::F32) => of(bf16::from_bits(value as u16).to_f32()),
        (Type::F32, Type::F16) if modifiers == ["rn"] => u64::from(f16::from_f32(float(value)).to_bits()),
        (Type::F32, Type::Bf16) if modifiers == ["rn"] => u64::from(bf16::from_f32(float(value)).to_bits()),
        (Type::F32, Type::F32) => of(rounded(float(value))?),
        (Type::F32, Type::Signed(bits)) => {
            // a NaN is 0, and what is beyond the range is its end
            let most = (1i128 << (bits - 1)) - 1;
            let whole = rounded(float(value))?;
            to.cut((whole as i128).clamp(-most - 1, most) as u64)
        }
        (Type::F32, Type::Unsigned(bits)) => {
            to.cut((rounded(float(value))? as i128).clamp(0, (1i128 << bits) - 1) as u64)
        }
        (Type::F32 | Type::F16 | Type::Bf16 | Type::F16x2 | Type::Bf16x2 | Type::F32x2, _) => return None,
        (_, Type::F32) if modifiers == ["rn"] => of(from.integer(value) as f32),
        (_, Type::F32 | Type::F16 | Type::Bf16 | Type::F16x2 | Type::Bf16x2 | Type::F32x2) => return None,
        _ => to.cut(from.integer(value) as u64),
    })
}
