//! Values of quantised numbers. A network's scales are made for bytes of the whole range: with smaller ones,
//! results would be rounded to a few steps around the zero point, and hide what a kernel does wrong. And what
//! zero points leave to be taken off a sum is as large as the sum, so that neither hides the other.

use crate::workload::{Binary, Combiner, DType, Expr, Interval, Role, TensorId, Workload};

/// By tensor: what an argument holds that is quantised; `None` for all others.
pub(super) fn values_of_quantised(workload: &Workload) -> Vec<Option<Interval>> {
    let mut found =
        Quantised { workload, spreads: vec![None; workload.tensors.len()], values: vec![None; workload.tensors.len()] };
    for stage in &workload.stages {
        if stage.combiner == Some(Combiner::Sum) && workload.tensor(stage.output).dtype == DType::I32 {
            let depth: f64 = stage.reduction.iter().map(|extent| *extent as f64).product();
            found.spreads[stage.output.0 as usize] = found.sum(&stage.value).map(|one| one * depth.sqrt());
        }
        found.visit(&stage.value);
    }
    found.values
}

struct Quantised<'a> {
    workload: &'a Workload,
    /// Root mean square of integer sums of bytes.
    spreads: Vec<Option<f64>>,
    values: Vec<Option<Interval>>,
}

impl Quantised<'_> {
    /// Root mean square of what is added up, if bytes are. Other operands are bytes that were widened before.
    fn sum(&mut self, value: &Expr) -> Option<f64> {
        let mut loaded = Vec::new();
        value.for_each_load(&mut |tensor, _| loaded.push(tensor));
        let dtype = |tensor: &TensorId| self.workload.tensor(*tensor).dtype;
        if !loaded.iter().map(dtype).any(is_byte) {
            return None;
        }
        let mut product = 1.0;
        for tensor in loaded {
            let dtype = self.workload.tensor(tensor).dtype;
            let held = if is_byte(dtype) { dtype } else { DType::I8 };
            self.values[tensor.0 as usize] = Some(Interval { low: held.least(), high: held.greatest() });
            product *= held.greatest() as f64 / 3.0_f64.sqrt();
        }
        Some(product)
    }

    fn visit(&mut self, expr: &Expr) {
        match expr {
            // scale · (number - zero point)
            Expr::Binary(Binary::Multiply, x, y) if is_scaled(x, y) || is_scaled(y, x) => self.bytes(expr),
            _ => {}
        }
        if matches!(expr, Expr::Binary(Binary::Add | Binary::Subtract, ..))
            && let Some(spread) = self.spread(expr)
        {
            return self.correction(expr, 0.0, spread);
        }
        expr.children().for_each(|child| self.visit(child));
    }

    /// Bytes that are loaded here have the whole range.
    fn bytes(&mut self, expr: &Expr) {
        let workload = self.workload;
        expr.for_each_load(&mut |tensor, _| {
            let dtype = workload.tensor(tensor).dtype;
            if is_byte(dtype) {
                self.values[tensor.0 as usize] = Some(Interval { low: dtype.least(), high: dtype.greatest() });
            }
        });
    }

    /// How large the sums are that a term of integers holds.
    fn spread(&self, expr: &Expr) -> Option<f64> {
        if expr.dtype(&|tensor| self.workload.tensor(tensor).dtype).is_float() {
            return None;
        }
        let mut largest: Option<f64> = None;
        expr.for_each_load(&mut |tensor, _| {
            largest = largest.into_iter().chain(self.spreads[tensor.0 as usize]).reduce(f64::max);
        });
        largest
    }

    /// Arguments whose term shall be about as large as `spread`, around `centre`.
    fn correction(&mut self, expr: &Expr, centre: f64, spread: f64) {
        match expr {
            Expr::Load { tensor, .. } => {
                let held = self.workload.tensor(*tensor);
                if held.dtype == DType::I32 && held.role != Role::Intermediate {
                    let [low, high] = [centre - spread, centre + spread].map(|bound| bound as i64);
                    self.values[tensor.0 as usize] = Some(Interval { low, high });
                }
            }
            Expr::Binary(op, x, y) => match (op, constant(x), constant(y)) {
                (Binary::Multiply, Some(factor), None) if factor != 0 => {
                    self.correction(y, centre / factor as f64, spread / factor.abs() as f64);
                }
                (Binary::Multiply, None, Some(factor)) if factor != 0 => {
                    self.correction(x, centre / factor as f64, spread / factor.abs() as f64);
                }
                (Binary::Subtract, None, Some(off)) => self.correction(x, centre + off as f64, spread),
                (Binary::Add, None, Some(off)) => self.correction(x, centre - off as f64, spread),
                (Binary::Add | Binary::Subtract, ..) => {
                    self.correction(x, 0.0, spread);
                    self.correction(y, 0.0, spread);
                }
                _ => {}
            },
            _ => {}
        }
    }
}

/// Whether integers are multiplied by a literal in f32.
fn is_scaled(scale: &Expr, integers: &Expr) -> bool {
    matches!((scale, integers), (Expr::Float(_), Expr::Cast(DType::F32, _)))
}

fn is_byte(dtype: DType) -> bool {
    matches!(dtype, DType::U8 | DType::I8)
}

/// What a product of integer literals is.
fn constant(expr: &Expr) -> Option<i64> {
    match expr {
        Expr::Binary(Binary::Multiply, x, y) => constant(x)?.checked_mul(constant(y)?),
        literal => literal.as_integer(),
    }
}

#[cfg(test)]
mod tests {
    use super::values_of_quantised;
    use crate::workload::Interval;

    #[test]
    fn bytes_have_their_range_and_corrections_are_as_large_as_sums() {
        let workload = "const t0 i8 20 64\ninput t1 u8 3 64\nconst t2 i32 20\ninput t3 i32 3\ninput t4 u8 3 20\n\
             let t5 i32 3 20 sum 64 mul cast i32 t0 b c cast i32 t1 a c\n\
             out t6 u8 3 20 cast u8 min 255.0 max 0.0 round add mul 0.5 cast f32 sub cast i32 t4 a b cast i32 int 9 \
             mul 0.001 cast f32 sub sub t5 a b t2 b mul cast i32 int -10 sub t3 a mul cast i32 int 64 cast i32 int 114\n";
        let values = values_of_quantised(&workload.parse().unwrap());
        let range = |low, high| Some(Interval { low, high });
        let spread = 8.0 * 255.0 * 127.0 / 3.0;
        assert_eq!(values[0], range(-128, 127));
        assert_eq!((values[1], values[4]), (range(0, 255), range(0, 255)));
        assert_eq!(values[2], range(-spread as i64, spread as i64));
        assert_eq!(values[3], range((7296.0 - spread / 10.0) as i64, (7296.0 + spread / 10.0) as i64));
        // what nobody scales may be anything
        let plain = "input t0 u8 9\nout t1 9 exp cast f32 t0 a\n";
        assert_eq!(values_of_quantised(&plain.parse().unwrap()), [None, None]);
    }
}
