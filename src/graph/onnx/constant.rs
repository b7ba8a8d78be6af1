//! Inputs that are the same number in every run: they become constants of the network, and what depends on
//! them alone (a branch, a number of heads, a rate) is known as it is read.

use std::collections::BTreeMap;

use super::error::ImportError;
use super::proto::{DimensionValue, ValueInfoProto};
use crate::graph::TensorData;
use crate::workload::DType;

/// Elements of such an input.
const MAX_ELEMENTS: i64 = 1 << 16;
/// Whole numbers beyond this are not told apart by a float.
const MAX_WHOLE: f64 = 9_007_199_254_740_992.0;

/// An input that is no input any more.
#[derive(Debug)]
pub(super) struct ConstantInput<'a> {
    pub name: &'a str,
    pub data: TensorData,
}

/// Takes those inputs that are given out of the others.
///
/// # Errors
/// [`ImportError::UnknownInput`] for what is no input, [`ImportError::BadConstant`] for one that cannot be
/// that number everywhere.
pub(super) fn constant_inputs<'a>(
    inputs: Vec<&'a ValueInfoProto>,
    given: &BTreeMap<String, f64>,
) -> Result<(Vec<&'a ValueInfoProto>, Vec<ConstantInput<'a>>), ImportError> {
    if let Some(unknown) = given.keys().find(|name| !inputs.iter().any(|input| input.name == **name)) {
        let known = inputs.iter().map(|input| input.name.clone()).collect();
        return Err(ImportError::UnknownInput { unknown: unknown.clone(), known });
    }
    let (constant, open): (Vec<_>, Vec<_>) = inputs.into_iter().partition(|input| given.contains_key(&input.name));
    let made = constant.into_iter().map(|input| {
        let bad = |reason| ImportError::BadConstant { input: input.name.clone(), reason };
        let data = filled(input, given[&input.name]).map_err(bad)?;
        Ok(ConstantInput { name: &input.name, data })
    });
    Ok((open, made.collect::<Result<_, ImportError>>()?))
}

fn filled(input: &ValueInfoProto, value: f64) -> Result<TensorData, String> {
    let tensor = input.r#type.as_ref().and_then(|t| t.tensor_type.as_ref());
    let (tensor, dims) =
        tensor.and_then(|tensor| Some((tensor, &tensor.shape.as_ref()?.dim))).ok_or("it is no tensor of known rank")?;
    let dtype = DType::from_onnx(i64::from(tensor.elem_type)).ok_or("its element type is not supported")?;
    let mut shape = Vec::new();
    for dim in dims {
        match dim.value {
            Some(DimensionValue::Value(extent)) if extent >= 0 => shape.push(extent),
            _ => return Err("the file leaves an extent of it open".to_string()),
        }
    }
    let elements = shape.iter().try_fold(1_i64, |product, extent| product.checked_mul(*extent));
    let elements = elements.filter(|count| *count <= MAX_ELEMENTS).ok_or("it has too many elements")?;
    if !represents(dtype, value) {
        return Err(format!("{value} is no {}", dtype.name()));
    }
    Ok(TensorData::from_f64(shape, dtype, (0..elements).map(|_| value)))
}

/// Whether a type has a number: floats have all, rounded.
fn represents(dtype: DType, value: f64) -> bool {
    let range = dtype.least() as f64..=dtype.greatest() as f64;
    dtype.is_float() || value.fract() == 0.0 && value.abs() <= MAX_WHOLE && range.contains(&value)
}
