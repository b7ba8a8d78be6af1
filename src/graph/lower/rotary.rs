//! Rotary position embeddings.

use super::attention::{by_heads, join_heads};
use super::builder::Builder;
use super::math::{add, float, gathered, load, multiply, subtract, var, within};
use super::operator::{Operator, Problem};
use crate::workload::{DType, Expr, Index, TensorId};

/// `RotaryEmbedding` of `[batch, heads, time, depth]` or `[batch, time, heads · depth]`: pairs of elements
/// are turned by the angle of their position.
pub fn rotary_embedding(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let angles = Angles { cosine: op.input(1)?, sine: op.input(2)?, positions: op.optional(3) };
    let (x, is_joined) = (op.input(0)?, builder.rank(op.input(0)?) == 3);
    let x = if is_joined { by_heads(builder, x, op.int("num_heads", 0)?, "num_heads")? } else { x };
    let rotated = op.optional_int("rotary_embedding_dim")?.filter(|rotated| *rotated != 0);
    let result = rotate(builder, x, rotated, op.flag("interleaved", false)?, &angles)?;
    Ok(vec![if is_joined { join_heads(builder, result)? } else { result }])
}

/// Cosine and sine of half of the rotated elements, by position or by batch and time.
pub(super) struct Angles {
    pub cosine: TensorId,
    pub sine: TensorId,
    /// `[batch, time]`: rows of the tables.
    pub positions: Option<TensorId>,
}

impl Angles {
    fn check(&self, builder: &Builder, batch: i64, time: i64, half: i64) -> Result<(), Problem> {
        let table = builder.shape(self.cosine);
        let misfit = |shape: &[i64]| Problem::Shape(format!("angles of shape {shape:?} do not fit"));
        let fits = match (self.positions, table.as_slice()) {
            (Some(_), [rows, columns]) => *rows > 0 && *columns == half,
            (None, [own_batch, own_time, columns]) => [*own_batch, *own_time, *columns] == [batch, time, half],
            _ => false,
        };
        let is_float = |tensor: TensorId| builder.dtype(tensor) == DType::F32;
        if !fits || builder.shape(self.sine) != table || !is_float(self.cosine) || !is_float(self.sine) {
            return Err(misfit(&table));
        }
        let Some(positions) = self.positions else { return Ok(()) };
        match builder.dtype(positions) {
            DType::I32 | DType::I64 if builder.shape(positions) == [batch, time] => Ok(()),
            DType::I32 | DType::I64 => Err(misfit(&builder.shape(positions))),
            dtype => Err(Problem::Type { input: 3, dtype }),
        }
    }

    /// Cosine and sine of an angle of the position at the axes 0 and 2.
    fn at(&self, builder: &Builder, angle: Index) -> (Expr, Expr) {
        let row = match self.positions {
            Some(positions) => {
                let rows = builder.shape(self.cosine)[0];
                vec![gathered(load(positions, vec![var(0), var(2)]), rows)]
            }
            None => vec![var(0), var(2)],
        };
        let at = [row, vec![angle]].concat();
        (load(self.cosine, at.clone()), load(self.sine, at))
    }
}

/// The first `rotated` elements of each head turned (all, if it is left out), the others as they are.
/// `x`: `[batch, heads, time, depth]`.
pub(super) fn rotate(
    builder: &mut Builder,
    x: TensorId,
    rotated: Option<i64>,
    interleaved: bool,
    angles: &Angles,
) -> Result<TensorId, Problem> {
    let shape = builder.shape(x);
    let &[batch, _, time, depth] = shape.as_slice() else {
        return Err(Problem::Shape(format!("{shape:?} is not batch, heads, time and depth")));
    };
    if builder.dtype(x) != DType::F32 {
        return Err(Problem::Type { input: 0, dtype: builder.dtype(x) });
    }
    let rotated = rotated.unwrap_or(depth);
    if rotated < 2 || rotated > depth || rotated % 2 != 0 {
        return Err(Problem::AttributeValue { name: "rotary_embedding_dim", value: rotated.to_string() });
    }
    let half = rotated / 2;
    angles.check(builder, batch, time, half)?;
    let element = |at: Index| load(x, vec![var(0), var(1), var(2), at]);
    // real and imaginary part of the pair's product with the angle's rotation, each at its own place
    let first = |angle: Index, partner: Index| {
        let (cosine, sine) = angles.at(builder, angle);
        subtract(multiply(cosine, element(var(3))), multiply(sine, element(partner)))
    };
    let second = |angle: Index, partner: Index| {
        let (cosine, sine) = angles.at(builder, angle);
        add(multiply(sine, element(partner)), multiply(cosine, element(var(3))))
    };
    let rest = || if rotated < depth { element(var(3)) } else { float(0.0) };
    let value = if interleaved {
        // the remainders keep both in bounds where elements are not rotated
        let angle = var(3).floor_div(2).modulo(half);
        let parity = var(3).modulo(2);
        let partner = var(3).floor_div(2).times(2).plus_constant(1).minus(&parity).modulo(depth);
        let is_first = vec![within(parity, 0, 1)];
        let both = Expr::guard(is_first, first(angle.clone(), partner.clone()), second(angle, partner));
        if rotated < depth { Expr::guard(vec![within(var(3), 0, rotated)], both, rest()) } else { both }
    } else {
        let later = second(var(3).plus_constant(-half), var(3).plus_constant(-half));
        let later = Expr::guard(vec![within(var(3), half, rotated)], later, rest());
        Expr::guard(vec![within(var(3), 0, half)], first(var(3), var(3).plus_constant(half)), later)
    };
    builder.map(shape, DType::F32, value)
}
