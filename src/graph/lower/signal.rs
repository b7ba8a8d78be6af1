//! Windows and filter banks of signal processing: constants, since their lengths are.

use std::f64::consts::TAU;

use super::builder::Builder;
use super::operator::{Operator, Problem};
use crate::graph::TensorData;
use crate::workload::{DType, TensorId};

/// `HannWindow`, `HammingWindow` and `BlackmanWindow`: `a - b · cos θ + c · cos 2θ`.
pub fn window(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let (a, b, c) = match op.kind.as_str() {
        "HannWindow" => (0.5, 0.5, 0.0),
        "HammingWindow" => (25.0 / 46.0, 21.0 / 46.0, 0.0),
        "BlackmanWindow" => (0.42, 0.5, 0.08),
        other => return Err(Problem::Unsupported(other.to_string())),
    };
    let size = builder.integer_input(op, 0)?;
    if size < 1 {
        return Err(Problem::Shape(format!("a window of {size} elements")));
    }
    let dtype = output_type(op)?;
    builder.reserve(&[size], dtype)?;
    let period = if op.flag("periodic", true)? { size } else { size - 1 };
    let value = |at: i64| {
        // a symmetric window of one element is its own peak
        let angle = if period == 0 { TAU / 2.0 } else { TAU * at as f64 / period as f64 };
        a - b * angle.cos() + c * (2.0 * angle).cos()
    };
    Ok(vec![builder.constant(TensorData::from_f64(vec![size], dtype, (0..size).map(value)))])
}

/// `MelWeightMatrix`: triangles that are equally wide on the mel scale, `[bins of the spectrum, bands]`.
pub fn mel_weights(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let [bands, length, rate] = [0, 1, 2].map(|position| builder.integer_input(op, position));
    let (bands, length, rate) = (bands?, length?, rate?);
    let hertz = |position: usize| -> Result<f64, Problem> {
        builder.scalar(op.input(position)?).ok_or(Problem::NotConstant(position))
    };
    let (lowest, highest) = (hertz(3)?, hertz(4)?);
    let bound = 1 << 31;
    if [bands, length, rate].iter().any(|value| !(1..bound).contains(value)) || !(lowest > -700.0 && highest > -700.0) {
        let given = format!("{bands} bands of {length} samples at {rate} Hz, from {lowest} to {highest} Hz");
        return Err(Problem::Shape(format!("there are no mel weights for {given}")));
    }
    let dtype = output_type(op)?;
    let rows = length / 2 + 1;
    builder.reserve(&[rows, bands], dtype)?;
    let mel = |hertz: f64| 2595.0 * (1.0 + hertz / 700.0).log10();
    let step = (mel(highest) - mel(lowest)) / (bands + 2) as f64;
    // the bin of the spectrum where a triangle begins, and the one two before it ends
    let bin = |at: i64| {
        let hertz = 700.0 * (10f64.powf((at as f64 * step + mel(lowest)) / 2595.0) - 1.0);
        // no wider than what is cut off anyway, so that differences stay in 64 bits
        ((length + 1) as f64 * hertz / rate as f64).floor().clamp(-1e15, 1e15) as i64
    };
    let mut weights = vec![0.0; (rows * bands) as usize];
    for band in 0..bands {
        let [left, centre, right] = [bin(band), bin(band + 1), bin(band + 2)];
        let mut set = |row: i64, weight: f64| weights[(row * bands + band) as usize] = weight;
        for row in left.max(0)..(centre + 1).min(rows) {
            set(row, if left == centre { 1.0 } else { (row - left) as f64 / (centre - left) as f64 });
        }
        for row in centre.max(0)..right.min(rows) {
            set(row, (right - row) as f64 / (right - centre) as f64);
        }
    }
    Ok(vec![builder.constant(TensorData::from_f64(vec![rows, bands], dtype, weights))])
}

fn output_type(op: &Operator) -> Result<DType, Problem> {
    let code = op.int("output_datatype", 1)?;
    let numeric = DType::from_onnx(code).filter(|dtype| *dtype != DType::Bool);
    numeric.ok_or_else(|| Problem::AttributeValue { name: "output_datatype", value: code.to_string() })
}
