//! Operators that sort.

use super::builder::Builder;
use super::operator::{Operator, Problem, normal_axis};
use crate::graph::{Routine, TensorData};
use crate::workload::{DType, TensorId};

/// The `k` greatest or least along an axis, and their places. Of equal ones the earlier comes first, and a
/// NaN is above all numbers; where the order does not matter (`sorted` is 0), it is the same one.
pub fn top_k(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let input = op.input(0)?;
    let (own, dtype) = (builder.shape(input), builder.dtype(input));
    if dtype == DType::Bool {
        return Err(Problem::Type { input: 0, dtype });
    }
    let axis = normal_axis(op.int("axis", -1)?, own.len())?;
    let count = match op.opset < 10 {
        true => op.optional_int("k")?.ok_or(Problem::MissingAttribute("k"))?,
        false => match builder.integers(op.input(1)?).as_deref() {
            Some([count]) => *count,
            Some(_) => return Err(Problem::Shape("k has to hold one element".to_string())),
            None => return Err(Problem::NotConstant(1)),
        },
    };
    if !(0..=own[axis]).contains(&count) {
        return Err(Problem::Shape(format!("{count} of the {} elements along axis {axis}", own[axis])));
    }
    let mut shape = own.clone();
    shape[axis] = count;
    if shape.contains(&0) {
        let empty = |dtype| TensorData { shape: shape.clone(), dtype, bytes: Default::default() };
        return Ok([dtype, DType::I64].map(|dtype| builder.constant(empty(dtype))).to_vec());
    }
    let (outer, inner) = (own[..axis].iter().product(), own[axis + 1..].iter().product());
    let largest = op.flag("largest", true)?;
    let routine = Routine::TopK { outer, extent: own[axis], inner, count, largest, dtype };
    builder.library(routine, &[input], &[shape.clone(), shape])
}
