//! Sizes that are computed in floats: half of a height, on the way to a whole number of rows. Small tensors
//! of them are computed as all tensors are; what is found here is which whole numbers they become.

use super::builder::Builder;
use super::fraction::Fraction;
use super::operator::{Operator, Problem};
use crate::workload::{DType, Index, TensorId};

/// Most elements of a tensor that is followed.
const MAX_ELEMENTS: i64 = 64;

/// Fractions that an operator makes whole numbers of; `None` for all else.
///
/// # Errors
/// [`Problem`] for what is too large.
pub fn lower(builder: &mut Builder, op: &Operator) -> Result<Option<Vec<TensorId>>, Problem> {
    let Some(input) = op.inputs.first().copied().flatten().map(|operand| operand.tensor) else { return Ok(None) };
    let Some(fractions) = builder.fractions.get(&input).cloned() else { return Ok(None) };
    let dtype = match op.kind.as_str() {
        "Cast" => op.optional_int("to")?.and_then(DType::from_onnx),
        _ => Some(builder.dtype(input)),
    };
    let is_whole = |dtype: &DType| op.kind != "Cast" || matches!(dtype, DType::I32 | DType::I64);
    let Some(dtype) = dtype.filter(is_whole) else { return Ok(None) };
    let mut whole = Vec::new();
    for fraction in &fractions {
        match fraction.to_whole(&mut builder.formulas, &op.kind)? {
            Some(number) => whole.push(number),
            None => return Ok(None),
        }
    }
    let shape = builder.shape(input);
    builder.known_tensor(shape, dtype, whole).map(|tensor| Some(vec![tensor]))
}

/// Follows the results of an operator that has been lowered, where they are fractions.
pub fn follow(builder: &mut Builder, op: &Operator, results: &[TensorId]) {
    let ([Some(x), rest @ ..], [result]) = (&op.inputs[..], results) else { return };
    // a square root has one operand, which stands for both
    let y = match rest {
        [] if op.kind == "Sqrt" => x,
        [Some(y)] => y,
        _ => return,
    };
    let operands = [x.tensor, y.tensor];
    let is_followed = |tensor: &TensorId| builder.known.contains_key(tensor) || builder.fractions.contains_key(tensor);
    if builder.dtype(*result) != DType::F32 || !operands.iter().any(is_followed) {
        return;
    }
    let [Some(x), Some(y)] = operands.map(|tensor| elements(builder, tensor)) else { return };
    let count = builder.tensor(*result).elements();
    let is_spread = |own: &[Fraction]| own.len() == 1 || own.len() as i64 == count;
    if !is_spread(&x) || !is_spread(&y) {
        return;
    }
    let place = |own: &[Fraction], at: usize| own[if own.len() == 1 { 0 } else { at }].clone();
    let pairs = (0..count as usize).map(|at| (place(&x, at), place(&y, at)));
    let combined = |(x, y): (Fraction, Fraction)| match op.kind.as_str() {
        "Sqrt" => x.root(),
        "Pow" => x.root().filter(|_| y.is_half()),
        kind => Fraction::combined(&builder.formulas, kind, &x, &y),
    };
    let fractions: Option<Vec<Fraction>> = pairs.map(combined).collect();
    if let Some(fractions) = fractions {
        builder.fractions.insert(*result, fractions);
    }
}

/// The elements of a small tensor of floats, where they are fractions.
fn elements(builder: &Builder, tensor: TensorId) -> Option<Vec<Fraction>> {
    if let Some(known) = builder.fractions.get(&tensor) {
        return Some(known.clone());
    }
    if builder.tensor(tensor).elements() > MAX_ELEMENTS {
        return None;
    }
    if let Some(known) = builder.known.get(&tensor) {
        let is_one = |formula: &Index| !builder.is_of_iteration(formula);
        let whole = |formula: &Index| Fraction::whole(&builder.formulas, formula.clone()).filter(|_| is_one(formula));
        return known.iter().map(whole).collect();
    }
    builder.data(tensor)?.to_f64().into_iter().map(Fraction::constant).collect()
}
