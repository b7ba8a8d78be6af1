//! Operators whose results are known while the network is compiled.

use super::builder::Builder;
use super::math::{add, float, literal, load, maximum, multiply, subtract, var};
use super::operator::{Attribute, Operator, Problem};
use crate::graph::TensorData;
use crate::workload::{Binary, DType, Expr, Index, TensorId, Unary, put_real};

/// Most elements of a `Range`.
const MAX_RANGE: i64 = 1 << 24;

pub fn constant(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let [(name, attribute)] = op.attributes.iter().collect::<Vec<_>>()[..] else {
        return Err(Problem::MissingAttribute("value"));
    };
    let data = match (name.as_str(), attribute) {
        ("value", Attribute::Tensor(data)) => data.clone(),
        ("value_float", Attribute::Float(value)) => TensorData::from_f32(vec![], &[*value]),
        ("value_floats", Attribute::Floats(values)) => TensorData::from_f32(vec![values.len() as i64], values),
        ("value_int", Attribute::Int(value)) => TensorData::from_i64(vec![], &[*value]),
        ("value_ints", Attribute::Ints(values)) => TensorData::from_i64(vec![values.len() as i64], values),
        _ => return Err(Problem::Unsupported(format!("a constant given by {name}"))),
    };
    builder.grant(&data);
    Ok(vec![builder.constant(data)])
}

/// A tensor of one repeated value, by default the float 0.
pub fn constant_of_shape(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let extents = builder.numbers_input(op, 0, 0)?;
    let (dtype, value) = match op.attributes.get("value") {
        None => (DType::F32, float(0.0)),
        Some(Attribute::Tensor(data)) if data.elements() == 1 && data.dtype.is_float() => {
            let value = data.to_f64().first().copied().unwrap_or(0.0);
            if value.is_nan() {
                return Err(Problem::AttributeValue { name: "value", value: "not a number".to_string() });
            }
            match data.dtype {
                DType::F64 => {
                    let scalar = TensorData { shape: vec![], ..data.clone() };
                    (DType::F64, load(builder.constant(scalar), vec![]))
                }
                dtype => (dtype, literal(dtype, value)),
            }
        }
        Some(Attribute::Tensor(data)) if data.elements() == 1 => {
            let dtype = data.dtype;
            match data.integers().as_deref() {
                Some([value]) if value.unsigned_abs() < 1 << 39 => (dtype, literal(dtype, *value as f64)),
                _ => return Err(Problem::AttributeValue { name: "value", value: format!("{data:?}") }),
            }
        }
        Some(_) => return Err(Problem::AttributeType("value")),
    };
    Ok(vec![builder.map_over(&extents, dtype, value)?])
}

/// All shapes are static, so this is a constant. Opset 15 can take a part of the shape.
pub fn shape(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let shape = builder.shape(op.input(0)?);
    if op.kind == "Size" {
        let size = TensorData::from_i64(vec![], &[shape.iter().product()]);
        return Ok(vec![builder.constant(size)]);
    }
    let rank = shape.len() as i64;
    let bound = |name, default| -> Result<usize, Problem> {
        let at = op.int(name, default)?;
        Ok((if at < 0 { at.saturating_add(rank) } else { at }).clamp(0, rank) as usize)
    };
    let (start, end) = (bound("start", 0)?, bound("end", rank)?);
    let part = shape.get(start..end.max(start)).unwrap_or_default();
    let data = TensorData::from_i64(vec![part.len() as i64], part);
    Ok(vec![builder.constant(data)])
}

/// Start, limit and step where some are formulas.
fn range_in_run(builder: &mut Builder, op: &Operator) -> Result<TensorId, Problem> {
    let dtype = builder.dtype(op.input(0)?);
    let mut bounds = Vec::new();
    for position in 0..3 {
        let Some(own) = builder.whole_numbers(op.input(position)?) else { return range_of_data(builder, op, dtype) };
        let [own] = own.as_slice() else { return Err(Problem::NotConstant(position)) };
        if own.offset().unsigned_abs() >= 1 << 40 {
            return Err(Problem::TooLarge(vec![own.offset()]));
        }
        bounds.push(own.clone());
    }
    let [start, limit, step] = [&bounds[0], &bounds[1], &bounds[2]];
    let step = step.as_constant().ok_or(Problem::NotConstant(2))?;
    if step == 0 {
        return Err(Problem::Shape("a range with step 0".to_string()));
    }
    let span = if step > 0 { limit.clone().minus(start) } else { start.clone().minus(limit) };
    let span = builder.formulas.greater(&span, &Index::constant(0))?;
    let size = step.abs();
    let extent = builder.formulas.simple(&span.plus_constant(size - 1).floor_div(size));
    let value = Expr::Index(var(0).times(step).plus(start));
    let value = if dtype == DType::I64 { value } else { Expr::Cast(dtype, Box::new(value)) };
    builder.map_over(&[extent], dtype, value)
}

/// Start, limit and step where the network computes them.
fn range_of_data(builder: &mut Builder, op: &Operator, dtype: DType) -> Result<TensorId, Problem> {
    if builder.is_in_block() {
        return Err(Problem::NotConstant(0));
    }
    let bounds = [op.input(0)?, op.input(1)?, op.input(2)?];
    for (position, tensor) in bounds.into_iter().enumerate() {
        if builder.dtype(tensor) != dtype || builder.shape(tensor).iter().product::<i64>() != 1 {
            return Err(Problem::Type { input: position, dtype: builder.dtype(tensor) });
        }
    }
    let bound = |builder: &Builder, at: usize| load(bounds[at], vec![Index::constant(0); builder.rank(bounds[at])]);
    let [start, limit, step] = [0, 1, 2].map(|at| bound(builder, at));
    let wide = |value: Expr| Expr::Cast(DType::F64, Box::new(value));
    let span = wide(subtract(limit, start.clone()));
    let length = Expr::unary(Unary::Ceil, Expr::binary(Binary::Divide, span, wide(step.clone())));
    let length = maximum(length, wide(float(0.0)));
    let length = builder.map(vec![], DType::I64, Expr::Cast(DType::I64, Box::new(length)))?;
    let extent = builder.read(length, 0)?;
    let place = Expr::Cast(dtype, Box::new(Expr::Index(var(0))));
    let place = if dtype == DType::I64 { Expr::Index(var(0)) } else { place };
    builder.map_over(&extent, dtype, add(start, multiply(place, step)))
}

impl Builder {
    /// The numbers below one that may be a formula, in a tensor.
    ///
    /// # Errors
    /// [`Problem`] where there are too many.
    pub fn numbers(&mut self, count: &Index) -> Result<TensorId, Problem> {
        let Some(count) = count.as_constant() else {
            return self.map_over(std::slice::from_ref(count), DType::I64, Expr::Index(var(0)));
        };
        self.reserve(&[count], DType::I64)?;
        let numbers: Vec<i64> = (0..count).collect();
        Ok(self.constant(TensorData::from_i64(vec![count], &numbers)))
    }
}

/// Start, limit and step.
pub fn range(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let tensors = [op.input(0)?, op.input(1)?, op.input(2)?];
    if tensors.iter().any(|tensor| builder.data(*tensor).is_none()) {
        return Ok(vec![range_in_run(builder, op)?]);
    }
    let mut bounds = Vec::new();
    for (position, tensor) in tensors.into_iter().enumerate() {
        bounds.push(builder.data(tensor).filter(|data| data.elements() == 1).ok_or(Problem::NotConstant(position))?);
    }
    let dtype = bounds[0].dtype;
    let length = |exact: f64| -> Result<i64, Problem> {
        let length = exact.ceil().max(0.0);
        if length <= MAX_RANGE as f64 { Ok(length as i64) } else { Err(Problem::TooLarge(vec![i64::MAX])) }
    };
    let zero_step = || Problem::Shape("a range with step 0".to_string());
    let integers: Option<Vec<i64>> = bounds.iter().map(|b| b.integers().and_then(|v| v.first().copied())).collect();
    let data = match (integers, dtype) {
        (Some(bounds), DType::I64 | DType::I32) => {
            let [start, limit, step] = [bounds[0], bounds[1], bounds[2]];
            if step == 0 {
                return Err(zero_step());
            }
            let span = limit.checked_sub(start).ok_or_else(|| Problem::TooLarge(vec![i64::MAX]))?;
            let length = length(span as f64 / step as f64)?;
            let values: Vec<i64> = (0..length).map(|i| start.wrapping_add(i.wrapping_mul(step))).collect();
            match dtype {
                DType::I64 => TensorData::from_i64(vec![length], &values),
                _ => {
                    let bytes = values.iter().flat_map(|v| (*v as i32).to_le_bytes()).collect();
                    TensorData { shape: vec![length], dtype, bytes }
                }
            }
        }
        (_, DType::F32 | DType::F64) => {
            let value = |at: usize| bounds[at].to_f64().first().copied().unwrap_or(0.0);
            let (start, limit, step) = (value(0), value(1), value(2));
            if step == 0.0 {
                return Err(zero_step());
            }
            let length = length((limit - start) / step)?;
            let mut bytes = Vec::new();
            (0..length).for_each(|i| put_real(dtype, start + i as f64 * step, &mut bytes));
            TensorData { shape: vec![length], dtype, bytes: bytes.into() }
        }
        _ => return Err(Problem::Type { input: 0, dtype }),
    };
    Ok(vec![builder.constant(data)])
}
