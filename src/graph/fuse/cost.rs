//! What it costs to compute an element again rather than to load it.
//!
//! The rule by which an element-wise value is recomputed in its readers instead of being stored:
//!
//! 1. Pure movement (reshape, transpose, slice, expand, zero padding, casts) is always an index map of its
//!    reader.
//! 2. Transcendental functions, divisions, roots and gathers (two loads, one behind the other) are never
//!    computed twice for one element.
//! 3. A few cheap operations on at most two tensors are recomputed in the only reader, even if it is a
//!    contraction that reads each element many times: packing its operand pays for them once per panel.
//! 4. Several readers that take each element about once may each recompute up to [`SHARED_OPERATIONS`] in
//!    total.

use crate::workload::{Binary, Expr, Index};

/// Cheap operations that a contraction may repeat with every read of an element.
const CONTRACTION_OPERATIONS: usize = 6;
/// A choice between two computed sides (a concatenation along an inner axis) counts as this many cheap
/// operations: it breaks vectors up, so that rotary positions are not worked out in every step of a product.
const CHOICE: usize = 4;
/// Tensors as large as the value that a contraction may read in its place.
const CONTRACTION_LOADS: usize = 2;
/// Cheap operations that several readers may spend together, per element.
const SHARED_OPERATIONS: usize = 9;
/// From how many reads of each element on a reader counts as a contraction.
const CONTRACTION_READS: f64 = 3.0;

/// Operations per element.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cost {
    /// Additions, multiplications, comparisons, selections: a cycle or less each.
    pub cheap: usize,
    /// Functions that take ten cycles and more.
    pub expensive: usize,
}

impl Cost {
    pub fn of(expr: &Expr) -> Cost {
        let own = match expr {
            Expr::Unary(op, _) => price(op.is_expensive()),
            Expr::Binary(op, x, y) => binary(*op, x, y),
            Expr::Select { .. } => Cost { cheap: 1, expensive: 0 },
            // Padding costs nothing where the reader copies its operand; choosing between two computed sides
            // does.
            Expr::Guard { outside, .. } if !matches!(**outside, Expr::Float(_) | Expr::Index(_)) => {
                Cost { cheap: CHOICE, expensive: 0 }
            }
            Expr::Load { indices, .. } if indices.iter().any(Index::has_value) => Cost { cheap: 0, expensive: 1 },
            Expr::Guard { .. }
            | Expr::Cast(..)
            | Expr::Bits(..)
            | Expr::Float(_)
            | Expr::Index(_)
            | Expr::Load { .. } => Cost::default(),
        };
        expr.children()
            .map(Cost::of)
            .fold(own, |sum, c| Cost { cheap: sum.cheap + c.cheap, expensive: sum.expensive + c.expensive })
    }

    pub fn is_free(self) -> bool {
        self == Cost::default()
    }
}

fn price(expensive: bool) -> Cost {
    Cost { cheap: usize::from(!expensive), expensive: usize::from(expensive) }
}

fn binary(op: Binary, x: &Expr, y: &Expr) -> Cost {
    let literal = |e: &Expr| matches!(e, Expr::Float(_) | Expr::Index(_));
    match op {
        // Two literals never meet: constants were folded. One literal divisor is a multiplication.
        Binary::Divide if literal(y) && !literal(x) => Cost { cheap: 1, expensive: 0 },
        op => price(op.is_expensive()),
    }
}

/// A stage that would recompute a value.
#[derive(Clone, Copy, Debug)]
pub struct Reader {
    /// How often it would compute each element.
    pub reads: f64,
}

/// Whether all readers recompute a value of this cost, which loads `loads` tensors of its own size.
pub fn recompute(cost: Cost, loads: usize, readers: &[Reader]) -> bool {
    let reads: f64 = readers.iter().map(|r| r.reads).sum();
    if cost.is_free() {
        return true;
    }
    if cost.expensive > 0 {
        return readers.len() == 1 && reads <= 1.0;
    }
    if readers.iter().any(|r| r.reads >= CONTRACTION_READS) {
        return readers.len() == 1 && cost.cheap <= CONTRACTION_OPERATIONS && loads <= CONTRACTION_LOADS;
    }
    readers.len() == 1 || cost.cheap as f64 * reads <= SHARED_OPERATIONS as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Condition, TensorId, Unary, Var};

    fn x() -> Expr {
        x_of(0)
    }

    fn x_of(tensor: u32) -> Expr {
        Expr::load(TensorId(tensor), vec![])
    }

    #[test]
    fn relu_goes_into_a_contraction_but_gelu_does_not() {
        let contraction = [Reader { reads: 64.0 }];
        let relu = Cost::of(&Expr::binary(Binary::Maximum, x(), Expr::float(0.0)));
        assert!(recompute(relu, 1, &contraction));
        assert!(!recompute(relu, 1, &[contraction[0], contraction[0]]));
        let gelu = Cost::of(&Expr::unary(Unary::Erf, x()));
        assert!(!recompute(gelu, 1, &contraction));
        assert!(recompute(gelu, 1, &[Reader { reads: 1.0 }]));
    }

    #[test]
    fn rotary_positions_stay_out_of_a_contraction() {
        // x cos + guard(-x, x) sin
        let product = |x| Expr::binary(Binary::Multiply, x, x_of(1));
        let within = Condition { index: Index::var(Var(0)), low: 0, high: 4 };
        let turned = Expr::guard(vec![within], Expr::unary(Unary::Negate, x()), x());
        let rotary = Cost::of(&Expr::binary(Binary::Add, product(x()), product(turned)));
        assert!(!recompute(rotary, 1, &[Reader { reads: 128.0 }]));
        assert!(recompute(rotary, 1, &[Reader { reads: 1.0 }]));
    }

    #[test]
    fn movement_is_free_for_everyone() {
        assert!(recompute(Cost::of(&x()), 1, &[Reader { reads: 500.0 }; 9]));
    }

    #[test]
    fn division_by_a_literal_is_a_multiplication() {
        let by_literal = Expr::binary(Binary::Divide, x(), Expr::float(8.0));
        assert_eq!(Cost::of(&by_literal), Cost { cheap: 1, expensive: 0 });
        assert_eq!(Cost::of(&Expr::binary(Binary::Divide, x(), x())), Cost { cheap: 0, expensive: 1 });
    }
}
