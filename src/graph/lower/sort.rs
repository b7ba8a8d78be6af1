//! Operators that sort.

use super::builder::Builder;
use super::operator::{Operator, Problem, normal_axis};
use crate::graph::{Routine, TensorData};
use crate::workload::{DType, Index, TensorId};

/// The `k` greatest or least along an axis, and their places. Of equal ones the earlier comes first, and a
/// NaN is above all numbers; where the order does not matter (`sorted` is 0), it is the same one.
pub fn top_k(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let input = op.input(0)?;
    let (own, dtype) = (builder.extents(input), builder.dtype(input));
    if dtype == DType::Bool {
        return Err(Problem::Type { input: 0, dtype });
    }
    let axis = normal_axis(op.int("axis", -1)?, own.len())?;
    let count = match op.opset < 10 {
        true => Index::constant(op.optional_int("k")?.ok_or(Problem::MissingAttribute("k"))?),
        false => match builder.numbers_input(op, 1, 0)?.as_slice() {
            [count] => count.clone(),
            _ => return Err(Problem::Shape("k has to hold one element".to_string())),
        },
    };
    if let (Some(count), Some(extent)) = (count.as_constant(), own[axis].as_constant())
        && !(0..=extent).contains(&count)
    {
        return Err(Problem::Shape(format!("{count} of the {extent} elements along axis {axis}")));
    }
    let what = format!("the number of elements that {} takes", builder.node());
    let count = builder.formulas.bounded(&count, &own[axis], &what)?;
    let mut shape = own.clone();
    shape[axis] = count.clone();
    if shape.iter().any(|extent| extent.as_constant() == Some(0)) {
        let shape: Vec<i64> = shape.iter().map(|extent| builder.formulas.most(extent)).collect::<Result<_, _>>()?;
        let empty = |dtype| TensorData { shape: shape.clone(), dtype, bytes: Default::default() };
        return Ok([dtype, DType::I64].map(|dtype| builder.constant(empty(dtype))).to_vec());
    }
    let (outer, inner) = (builder.formulas.product(&own[..axis])?, builder.formulas.product(&own[axis + 1..])?);
    let largest = op.flag("largest", true)?;
    let routine = Routine::TopK { outer: 0, extent: 0, inner: 0, count: 0, largest, dtype };
    let sizes = [outer, own[axis].clone(), inner, count];
    builder.library(&routine, &sizes, &[input], &[shape.clone(), shape])
}
