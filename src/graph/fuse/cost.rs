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
//! 4. A window never chooses between two computed sides: neighbours of several windows lie in one vector, and
//!    so does the choice.
//! 5. Several readers that take each element about once may each recompute up to [`SHARED_OPERATIONS`] in
//!    total.
//! 6. What is dequantised is always recomputed: the short integers are a quarter of what would be stored.

use crate::workload::{Binary, DType, Expr, Index, Stage, TensorId};

/// Cheap operations that a contraction may repeat with every read of an element.
const CONTRACTION_OPERATIONS: usize = 6;
/// A choice between two computed sides (a concatenation along an inner axis) counts as this many cheap
/// operations: it breaks vectors up, so that rotary positions are not worked out in every step of a product.
const CHOICE: usize = 4;
/// Tensors as large as the value that a contraction may read in its place.
const CONTRACTION_LOADS: usize = 2;
/// Cheap operations that several readers may spend together, per element.
const SHARED_OPERATIONS: usize = 9;
/// Operations of which what is dequantised is made at most: two subtractions and a product.
const DEQUANTIZING: usize = 3;
/// From how many reads of each element on a reader counts as a contraction.
const CONTRACTION_READS: f64 = 3.0;

/// Operations per element.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cost {
    /// Additions, multiplications, comparisons, selections: a cycle or less each.
    pub cheap: usize,
    /// Functions that take ten cycles and more.
    pub expensive: usize,
    /// Choices between two computed sides, whose operations are among the cheap ones.
    pub choices: usize,
}

impl Cost {
    pub fn of(expr: &Expr) -> Cost {
        let own = match expr {
            Expr::Unary(op, _) => price(op.is_expensive()),
            Expr::Binary(op, x, y) => binary(*op, x, y),
            Expr::Select { .. } => Cost { cheap: 1, ..Cost::default() },
            // Padding costs nothing where the reader copies its operand; choosing between two computed sides
            // does.
            Expr::Guard { outside, .. } if !is_literal(outside) => {
                Cost { cheap: CHOICE, choices: 1, ..Cost::default() }
            }
            Expr::Load { indices, .. } if indices.iter().any(Index::has_value) => {
                Cost { expensive: 1, ..Cost::default() }
            }
            Expr::Guard { .. }
            | Expr::Cast(..)
            | Expr::Bits(..)
            | Expr::Float(_)
            | Expr::Index(_)
            | Expr::Load { .. } => Cost::default(),
        };
        expr.children().map(Cost::of).fold(own, Cost::plus)
    }

    fn plus(self, other: Cost) -> Cost {
        Cost {
            cheap: self.cheap + other.cheap,
            expensive: self.expensive + other.expensive,
            choices: self.choices + other.choices,
        }
    }

    pub fn is_free(self) -> bool {
        self == Cost::default()
    }
}

/// Whether a value is a number that is known, of any type.
fn is_literal(value: &Expr) -> bool {
    match value {
        Expr::Float(_) | Expr::Index(_) => true,
        Expr::Cast(_, inner) => is_literal(inner),
        _ => false,
    }
}

fn price(expensive: bool) -> Cost {
    Cost { cheap: usize::from(!expensive), expensive: usize::from(expensive), choices: 0 }
}

fn binary(op: Binary, x: &Expr, y: &Expr) -> Cost {
    let literal = |e: &Expr| matches!(e, Expr::Float(_) | Expr::Index(_));
    match op {
        // Two literals never meet: constants were folded. One literal divisor is a multiplication.
        Binary::Divide if literal(y) && !literal(x) => Cost { cheap: 1, ..Cost::default() },
        op => price(op.is_expensive()),
    }
}

/// A stage that would recompute a value.
#[derive(Clone, Copy, Debug)]
pub struct Reader {
    /// How often it would compute each element.
    pub reads: f64,
    /// Whether it slides over its operands.
    pub window: bool,
}

impl Reader {
    /// A stage that reads values of `elements` elements.
    pub fn of(stage: &Stage, elements: i64) -> Reader {
        let mut window = false;
        stage.value.for_each_load(&mut |_, indices| window |= indices.iter().any(|index| stage.slides(index)));
        Reader { reads: stage.points() as f64 / elements as f64, window }
    }
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
    if cost.choices > 0 && readers.iter().any(|r| r.window) {
        return false;
    }
    if readers.iter().any(|r| r.reads >= CONTRACTION_READS) {
        return readers.len() == 1 && cost.cheap <= CONTRACTION_OPERATIONS && loads <= CONTRACTION_LOADS;
    }
    readers.len() == 1 || cost.cheap as f64 * reads <= SHARED_OPERATIONS as f64
}

/// Whether a value of f32 is `scale · (q - zero point)` of elements of a byte, be it in other words.
pub fn dequantizes(value: &Expr, of: &dyn Fn(TensorId) -> DType) -> bool {
    let cost = Cost::of(value);
    let mut bytes = 0;
    value.for_each_load(&mut |tensor, _| bytes += usize::from(matches!(of(tensor), DType::U8 | DType::I8)));
    let is_short = cost.expensive == 0 && cost.choices == 0 && cost.cheap <= DEQUANTIZING;
    is_short && bytes > 0 && value.dtype(of) == DType::F32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Condition, Unary, Var};

    fn x() -> Expr {
        x_of(0)
    }

    fn reader(reads: f64) -> Reader {
        Reader { reads, window: false }
    }

    fn x_of(tensor: u32) -> Expr {
        Expr::load(TensorId(tensor), vec![])
    }

    #[test]
    fn relu_goes_into_a_contraction_but_gelu_does_not() {
        let contraction = [reader(64.0)];
        let relu = Cost::of(&Expr::binary(Binary::Maximum, x(), Expr::float(0.0)));
        assert!(recompute(relu, 1, &contraction));
        assert!(!recompute(relu, 1, &[contraction[0], contraction[0]]));
        let gelu = Cost::of(&Expr::unary(Unary::Erf, x()));
        assert!(!recompute(gelu, 1, &contraction));
        assert!(recompute(gelu, 1, &[reader(1.0)]));
    }

    #[test]
    fn rotary_positions_stay_out_of_a_contraction() {
        // x cos + guard(-x, x) sin
        let product = |x| Expr::binary(Binary::Multiply, x, x_of(1));
        let within = Condition { index: Index::var(Var(0)), low: 0, high: 4 };
        let turned = Expr::guard(vec![within], Expr::unary(Unary::Negate, x()), x());
        let rotary = Cost::of(&Expr::binary(Binary::Add, product(x()), product(turned)));
        assert!(!recompute(rotary, 1, &[reader(128.0)]));
        assert!(recompute(rotary, 1, &[reader(1.0)]));
    }

    #[test]
    fn a_window_does_not_choose() {
        let first = Condition { index: Index::var(Var(0)), low: 0, high: 4 };
        let concatenation = Cost::of(&Expr::guard(vec![first], x(), x_of(1)));
        assert!(recompute(concatenation, 2, &[reader(64.0)]));
        assert!(!recompute(concatenation, 2, &[Reader { reads: 64.0, window: true }]));
        let padding = Cost::of(&Expr::guard(vec![], x(), Expr::float(0.0)));
        assert!(recompute(padding, 1, &[Reader { reads: 64.0, window: true }]));
    }

    #[test]
    fn movement_is_free_for_everyone() {
        assert!(recompute(Cost::of(&x()), 1, &[reader(500.0); 9]));
    }

    #[test]
    fn division_by_a_literal_is_a_multiplication() {
        let by_literal = Expr::binary(Binary::Divide, x(), Expr::float(8.0));
        assert_eq!(Cost::of(&by_literal), Cost { cheap: 1, ..Cost::default() });
        assert_eq!(Cost::of(&Expr::binary(Binary::Divide, x(), x())), Cost { expensive: 1, ..Cost::default() });
    }
}
