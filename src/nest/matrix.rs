//! Matrices that a warp multiplies: their shapes, and which products are of such a shape.

use super::{Loop, LoopKind, Stmt};
use crate::workload::{Binary, Combiner, Expr, Index, Var};

/// Rows of a product and of its first operand.
pub const ROWS: i64 = 16;
/// Columns of a product and of its second operand.
pub const COLUMNS: i64 = 8;
/// Depth of a product of f32, whose operands are rounded to 11 significant bits (TF32).
pub const DEPTH: i64 = 8;
/// Depth of a product of 16-bit values.
pub const DEPTH_OF_HALVES: i64 = 16;

/// Whether the matrix loops from `l` on are a product of two operands, added to a matrix:
///
/// ```text
/// matrix for i in 0..16 { matrix for j in 0..8 { matrix for k in 0..8 { r[…, i, j] += x(i, k) * y(k, j) } } }
/// ```
///
/// It is 16 deep where both operands are converted to f32, which 16-bit values are.
pub fn is_product(l: &Loop) -> bool {
    let Some((loops, statement)) = sides(l) else { return false };
    let [rows, columns, depth] = loops[..] else { return false };
    let Stmt::Accumulate { indices, combiner: Combiner::Sum, value: Expr::Binary(Binary::Multiply, x, y), .. } =
        statement
    else {
        return false;
    };
    let [first, second] = operands(x, y, rows.var);
    let wanted = if is_converted(x) && is_converted(y) { DEPTH_OF_HALVES } else { DEPTH };
    [rows.extent(), columns.extent(), depth.extent()] == [ROWS, COLUMNS, wanted]
        && !first.mentions(columns.var)
        && !second.mentions(rows.var)
        && ends_in(indices, rows.var, columns.var)
}

/// Whether an operand is of another type than f32.
fn is_converted(operand: &Expr) -> bool {
    matches!(operand, Expr::Cast(..))
}

/// The factors of a product: first the one that moves with its rows.
pub fn operands<'a>(x: &'a Expr, y: &'a Expr, rows: Var) -> [&'a Expr; 2] {
    if x.mentions(rows) { [x, y] } else { [y, x] }
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
/// 16-bit values stay as they are.
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
