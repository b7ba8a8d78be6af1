//! Matrices that a warp multiplies: their shapes, and which products are of such a shape.

use super::{Loop, LoopKind, Stmt};
use crate::workload::{Binary, Combiner, Expr, Index, TensorId, Var};

/// Rows of a product and of its first operand.
pub const ROWS: i64 = 16;
/// Columns of a product and of its second operand.
pub const COLUMNS: i64 = 8;
/// Depth of a product of f32, whose operands are rounded to 11 significant bits (TF32).
pub const DEPTH: i64 = 8;

/// A product of two matrices, added to a third.
#[derive(Clone, Copy, Debug)]
pub struct Product<'a> {
    pub rows: Var,
    pub columns: Var,
    pub depth: Var,
    pub buffer: TensorId,
    /// All of them; the last two are `rows` and `columns`.
    pub indices: &'a [Index],
    /// Moves with `rows` and `depth`.
    pub first: &'a Expr,
    /// Moves with `depth` and `columns`.
    pub second: &'a Expr,
}

/// The product that the matrix loops from `l` on are, if they are one:
///
/// ```text
/// matrix for i in 0..16 { matrix for j in 0..8 { matrix for k in 0..8 { r[…, i, j] += x(i, k) * y(k, j) } } }
/// ```
pub fn product(l: &Loop) -> Option<Product<'_>> {
    let (loops, statement) = sides(l)?;
    let [rows, columns, depth] = loops[..] else { return None };
    let Stmt::Accumulate { buffer, indices, combiner: Combiner::Sum, value: Expr::Binary(Binary::Multiply, x, y) } =
        statement
    else {
        return None;
    };
    let shape = [rows.extent(), columns.extent(), depth.extent()] == [ROWS, COLUMNS, DEPTH];
    let (x, y): (&Expr, &Expr) = (x, y);
    let (first, second) = if x.mentions(rows.var) { (x, y) } else { (y, x) };
    let apart = !first.mentions(columns.var) && !second.mentions(rows.var);
    let fits = shape && apart && ends_in(indices, rows.var, columns.var);
    fits.then_some(Product {
        rows: rows.var,
        columns: columns.var,
        depth: depth.var,
        buffer: *buffer,
        indices,
        first,
        second,
    })
}

/// The matrix loops from `l` on, two or three of them, and the one statement inside.
pub fn sides(l: &Loop) -> Option<(Vec<&Loop>, &Stmt)> {
    let mut loops = vec![l];
    loop {
        let innermost = loops.last()?;
        if innermost.kind != LoopKind::Matrix || !innermost.is_constant() {
            return None;
        }
        match innermost.body.as_slice() {
            [Stmt::Loop(inner)] => loops.push(inner),
            [statement] if (2..=3).contains(&loops.len()) => return Some((loops, statement)),
            _ => return None,
        }
    }
}

/// Whether the last two indices are these variables.
pub fn ends_in(indices: &[Index], rows: Var, columns: Var) -> bool {
    matches!(indices, [.., i, j] if i.as_var() == Some(rows) && j.as_var() == Some(columns))
}

/// An operand as the product takes it: rounded to the nearest number of 11 significant bits, ties away from zero, as `cvt.rna.tf32.f32` does.
pub fn rounded_operand(x: f32) -> f32 {
    if !x.is_finite() {
        return x;
    }
    f32::from_bits(x.to_bits().wrapping_add(0x1000) & !0x1fff)
}

#[cfg(test)]
mod tests {
    use super::rounded_operand;

    #[test]
    fn operands_are_rounded_to_eleven_bits() {
        let step = 2f32.powi(-10);
        for (x, rounded) in
            [(1.0, 1.0), (1.0 + step, 1.0 + step), (1.0 + 0.49 * step, 1.0), (1.0 + 0.5 * step, 1.0 + step)]
        {
            assert_eq!((rounded_operand(x), rounded_operand(-x)), (rounded, -rounded));
        }
        assert_eq!(rounded_operand(f32::INFINITY), f32::INFINITY);
        assert!(rounded_operand(f32::NAN).is_nan());
    }
}
