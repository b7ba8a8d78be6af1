//! `Det`: by formula for small matrices, by elimination for larger ones.

use super::builder::Builder;
use super::math::{absolute, clamped, divide, equal, float, load, multiply, subtract, var};
use super::operator::{Operator, Problem};
use super::reduction::{Axes, place_of_extreme};
use super::reshape::reshape_to;
use crate::workload::{Combiner, DType, Expr, Index, TensorId};

/// Every row takes a handful of stages of its own.
const MAX_ORDER: i64 = 16;

pub fn determinant(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let x = op.input(0)?;
    let shape = builder.shape(x);
    if builder.dtype(x) != DType::F32 {
        return Err(Problem::Type { input: 0, dtype: builder.dtype(x) });
    }
    let [outer @ .., rows, columns] = shape.as_slice() else {
        return Err(Problem::Shape(format!("{shape:?} is no matrix")));
    };
    if rows != columns {
        return Err(Problem::Shape(format!("{rows} x {columns} is no square")));
    }
    let order = *rows;
    let batch: i64 = outer.iter().product();
    let x = reshape_to(builder, x, vec![batch, order, order])?;
    let element = |row: i64, column: i64| load(x, vec![var(0), Index::constant(row), Index::constant(column)]);
    let minor = |row: i64, [a, b]: [i64; 2]| {
        let product = |a: i64, b: i64| multiply(element(row, a), element(row + 1, b));
        subtract(product(a, b), product(b, a))
    };
    let flat = match order {
        0 => builder.map(vec![batch], DType::F32, float(1.0))?,
        1 => builder.map(vec![batch], DType::F32, element(0, 0))?,
        2 => builder.map(vec![batch], DType::F32, minor(0, [0, 1]))?,
        3 => {
            let term = |column: i64, others: [i64; 2]| multiply(element(0, column), minor(1, others));
            let value = super::math::add(subtract(term(0, [1, 2]), term(1, [0, 2])), term(2, [0, 1]));
            builder.map(vec![batch], DType::F32, value)?
        }
        4..=MAX_ORDER => by_elimination(builder, x, batch, order)?,
        _ => return Err(Problem::Unsupported(format!("a determinant of more than {MAX_ORDER} rows"))),
    };
    Ok(vec![reshape_to(builder, flat, outer.to_vec())?])
}

/// The product of the pivots, each the largest element of its column, with a change of sign for each exchange
/// of rows.
fn by_elimination(builder: &mut Builder, mut x: TensorId, batch: i64, order: i64) -> Result<TensorId, Problem> {
    let mut product: Option<TensorId> = None;
    let times = |product: Option<TensorId>, value: Expr| match product {
        Some(product) => multiply(load(product, vec![var(0)]), value),
        None => value,
    };
    for size in (2..=order).rev() {
        let sizes = absolute(load(x, vec![var(0), var(1), Index::constant(0)]));
        let sizes = builder.map(vec![batch, size], DType::F32, sizes)?;
        let over = Axes::new(&[batch, size], vec![1]);
        let place = place_of_extreme(builder, sizes, &over, Combiner::Maximum, false)?;
        let place = || load(place, vec![var(0)]);
        let at = |row: Index, column: Index| load(x, vec![var(0), row, column]);
        let pivot = || at(clamped(place(), size), Index::constant(0));
        let is_first = equal(place(), Expr::integer(0));
        let signed = Expr::select(is_first, pivot(), Expr::unary(crate::workload::Unary::Negate, pivot()));
        let next = builder.map(vec![batch], DType::F32, times(product, signed))?;
        // the first row takes the place of the pivot's, which leaves
        let row = || Expr::Index(var(1).plus_constant(1));
        let source = || clamped(Expr::select(equal(place(), row()), Expr::integer(0), row()), size);
        // where all of a column is 0, so is the determinant
        let is_singular = equal(pivot(), float(0.0));
        let ratio = Expr::select(is_singular, float(0.0), divide(at(source(), Index::constant(0)), pivot()));
        let ratio = builder.map(vec![batch, size - 1], DType::F32, ratio)?;
        let column = var(2).plus_constant(1);
        let eliminated = multiply(load(ratio, vec![var(0), var(1)]), at(clamped(place(), size), column.clone()));
        let value = subtract(at(source(), column), eliminated);
        x = builder.map(vec![batch, size - 1, size - 1], DType::F32, value)?;
        product = Some(next);
    }
    let last = load(x, vec![var(0), Index::constant(0), Index::constant(0)]);
    builder.map(vec![batch], DType::F32, times(product, last))
}
