//! Matrices that warps multiply: their shapes, and which products are of such a shape.
//!
//! A *wide* product has more columns than one warp multiplies by itself. Four warps whose numbers follow one
//! another execute it together, each for its own rows; its second operand comes from shared memory, in [core
//! matrices](core_matrices).

use super::{Loop, LoopKind, Stmt};
use crate::workload::{Binary, Combiner, Expr, Index, Var};

/// Rows of a product and of its first operand.
pub const ROWS: i64 = 16;
/// Columns of a product and of its second operand.
pub const COLUMNS: i64 = 8;
/// Columns of a wide product, which are a multiple of [`COLUMNS`], at most.
pub const MOST_COLUMNS: i64 = 256;
/// Warps that execute a wide product together.
pub const GROUP: i64 = 4;
/// Rows and columns of a core matrix of 16-bit values.
pub const CORE: i64 = 8;
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
/// It is 16 deep where both operands are converted to f32, which 16-bit values are, and only then may it be
/// wide.
pub fn is_product(l: &Loop) -> bool {
    let Some((loops, statement)) = sides(l) else { return false };
    let [rows, columns, depth] = loops[..] else { return false };
    let Stmt::Accumulate { indices, combiner: Combiner::Sum, value: Expr::Binary(Binary::Multiply, x, y), .. } =
        statement
    else {
        return false;
    };
    let [first, second] = operands(x, y, rows.var);
    let of_halves = is_converted(x) && is_converted(y);
    let wanted = if of_halves { DEPTH_OF_HALVES } else { DEPTH };
    [rows.extent(), depth.extent()] == [ROWS, wanted]
        && (columns.extent() == COLUMNS || of_halves && is_width(columns.extent()))
        && !first.mentions(columns.var)
        && !second.mentions(rows.var)
        && ends_in(indices, rows.var, columns.var)
}

/// Whether a product may have so many columns.
pub fn is_width(columns: i64) -> bool {
    (COLUMNS..=MOST_COLUMNS).contains(&columns) && columns % COLUMNS == 0
}

/// How the second operand of a wide product lies in shared memory: matrices of 8 × 8 of its elements, each in
/// 128 bytes without a gap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CoreMatrices {
    /// Elements between matrices that are neighbours along the depth.
    pub along_depth: i64,
    /// The same along the columns.
    pub along_columns: i64,
    /// Whether neighbours in memory are neighbours along the columns; otherwise they are along the depth.
    pub by_columns: bool,
}

/// Whether elements lie so: `offset` is how far that of a depth and a column is from the first, in elements.
pub fn core_matrices(columns: i64, offset: &dyn Fn(i64, i64) -> Option<i64>) -> Option<CoreMatrices> {
    let by_columns = offset(0, 1)? == 1;
    let found = CoreMatrices { along_depth: offset(CORE, 0)?, along_columns: offset(0, CORE)?, by_columns };
    let expected = |depth: i64, column: i64| {
        let inside = if by_columns { [depth % CORE, column % CORE] } else { [column % CORE, depth % CORE] };
        depth / CORE * found.along_depth + column / CORE * found.along_columns + inside[0] * CORE + inside[1]
    };
    let all = (0..DEPTH_OF_HALVES).flat_map(|depth| (0..columns).map(move |column| (depth, column)));
    let fits = |(depth, column)| offset(depth, column) == Some(expected(depth, column));
    (columns > COLUMNS && all.into_iter().all(fits)).then_some(found)
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

/// An operand as the product takes it: rounded to the nearest number of 11 significant bits, ties away from
/// zero, as `cvt.rna.tf32.f32` does. 16-bit values stay as they are.
pub fn rounded_operand(x: f32) -> f32 {
    if !x.is_finite() {
        return x;
    }
    f32::from_bits(x.to_bits().wrapping_add(0x1000) & !0x1fff)
}

#[cfg(test)]
mod tests {
    use super::{CoreMatrices, core_matrices, is_width, rounded_operand};

    #[test]
    fn core_matrices_are_recognized_either_way() {
        // a gap of 8 behind each of them, four along the columns
        let place = |row: i64, column: i64| Some(row / 8 * 288 + column / 8 * 72 + row % 8 * 8 + column % 8);
        let found = core_matrices(32, &place);
        assert_eq!(found, Some(CoreMatrices { along_depth: 288, along_columns: 72, by_columns: true }));
        let turned = |depth: i64, column: i64| Some(depth / 8 * 288 + column / 8 * 72 + column % 8 * 8 + depth % 8);
        let found = core_matrices(32, &turned);
        assert_eq!(found, Some(CoreMatrices { along_depth: 288, along_columns: 72, by_columns: false }));
        assert_eq!(core_matrices(32, &|depth, column| Some(depth * 32 + column)), None);
        assert_eq!(core_matrices(32, &|depth, column| (depth < 9).then_some(depth * 32 + column)), None);
    }

    #[test]
    fn products_are_as_wide_as_warps_can() {
        assert_eq!([0, 4, 8, 12, 24, 256, 264].map(is_width), [false, false, true, false, true, true, false]);
    }

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
