//! What depends on four bits alone is looked up: a vector of 16 numbers holds all that it can be.

use inkwell::types::VectorType;

use crate::codegen::emit::ir::{Element, Value};
use crate::codegen::emit::{Emitter, Processor};
use crate::codegen::error::CodegenError;
use crate::workload::{Binary, DType, Expr};

type Result<T> = std::result::Result<T, CodegenError>;

/// Values of four bits.
const ENTRIES: u32 = 16;
/// Whole numbers below this are exact in f32.
const EXACT: i64 = 1 << 24;

impl<'c> Emitter<'_, 'c> {
    /// An expression of f32 that is a whole number, and depends on the low four bits of an integer and on
    /// nothing else, where the processor can look up as many lanes. `None` for all others.
    ///
    /// ```text
    /// f32(bitand(x, 15)) - 8.0    =>    [-8.0, -7.0, .. 7.0][x]
    /// ```
    pub(super) fn looked_up(&mut self, expr: &Expr) -> Result<Option<Value<'c>>> {
        let (Processor::Cpu(target), Some(lanes)) = (self.shared.processor, self.lanes) else { return Ok(None) };
        let instruction = target.architecture.lookup(&|name| target.has_feature(name));
        let Some(instruction) = instruction.filter(|_| lanes.width == ENTRIES) else { return Ok(None) };
        let Some(bits) = four_bits(expr).filter(|bits| bits.mentions(lanes.var)) else { return Ok(None) };
        let entries: Option<Vec<f32>> = (0..ENTRIES).map(|at| Some(entry(expr, at.into())? as f32)).collect();
        let Some(entries) = entries else { return Ok(None) };
        let at = self.low_bits(bits)?;
        let number = self.shared.context.f32_type();
        let entries: Vec<_> = entries.into_iter().map(|entry| number.const_float(entry.into())).collect();
        let table = VectorType::const_vector(&entries).into();
        self.ir.intrinsic(self.shared.module, instruction, &[], &[table, at]).map(Some)
    }

    /// Lanes of 32 bits whose low four bits are those of an integer.
    ///
    /// A shift becomes a rotation, which is as good: LLVM shifts what is widened later while it is short, and
    /// then has to widen both what it was and what it becomes.
    fn low_bits(&mut self, bits: &Expr) -> Result<Value<'c>> {
        let by = match bits {
            Expr::Binary(Binary::ShiftRight, _, by) => self.expression(by)?,
            _ => return self.lanes_of_32(bits),
        };
        let known = if let Value::IntValue(by) = by { by.get_zero_extended_constant() } else { None };
        match (bits, known) {
            (Expr::Binary(_, x, _), Some(0)) => self.lanes_of_32(x),
            (Expr::Binary(_, x, _), Some(1..=28)) => {
                let x = self.lanes_of_32(x)?;
                let by = self.ir.splat(self.convert(by, Element::I32)?, ENTRIES)?;
                self.ir.intrinsic(self.shared.module, "llvm.fshr", &[x.get_type()], &[x, x, by])
            }
            _ => self.lanes_of_32(bits),
        }
    }

    fn lanes_of_32(&mut self, expr: &Expr) -> Result<Value<'c>> {
        let value = self.expression(expr)?;
        self.convert(value, Element::I32)
    }
}

/// The integer whose low four bits are all that an expression of f32 reads.
fn four_bits(expr: &Expr) -> Option<&Expr> {
    match expr {
        Expr::Cast(DType::F32, x) => match &**x {
            Expr::Binary(Binary::BitAnd, x, y) if y.as_integer() == Some(15) => Some(&**x),
            Expr::Binary(Binary::BitAnd, x, y) if x.as_integer() == Some(15) => Some(&**y),
            _ => None,
        },
        Expr::Binary(Binary::Add | Binary::Subtract | Binary::Multiply, x, y) => match (&**x, &**y) {
            (x, Expr::Float(_)) => four_bits(x),
            (Expr::Float(_), y) => four_bits(y),
            _ => None,
        },
        _ => None,
    }
}

/// The value where those bits are a number; `None` where it is not exact.
fn entry(expr: &Expr, number: i64) -> Option<i64> {
    let value = match expr {
        Expr::Cast(DType::F32, _) => number,
        Expr::Float(value) => Some(value.0 as i64).filter(|whole| *whole as f64 == value.0)?,
        Expr::Binary(op, x, y) => {
            let (x, y) = (entry(x, number)?, entry(y, number)?);
            match op {
                Binary::Add => x.checked_add(y)?,
                Binary::Subtract => x.checked_sub(y)?,
                Binary::Multiply => x.checked_mul(y)?,
                _ => return None,
            }
        }
        _ => return None,
    };
    (-EXACT..=EXACT).contains(&value).then_some(value)
}
