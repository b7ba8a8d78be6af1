//! How large angles are: a sine rounds its argument before anything else, and by the more the larger it is.

use crate::workload::{Binary, Expr, Index, Stage, TensorId, Workload};

/// By tensor: the largest angle on the way from the arguments to it, at least 0. Inputs count as numbers of
/// size 1, and so does what is summed up; positions count as what they are.
pub fn angles(workload: &Workload) -> Vec<f64> {
    let mut found = vec![0.0_f64; workload.tensors.len()];
    let mut sizes = vec![1.0_f64; workload.tensors.len()];
    for stage in &workload.stages {
        let mut largest = 0.0_f64;
        stage.value.for_each_load(&mut |tensor, _| largest = largest.max(found[tensor.0 as usize]));
        let scope = Scope { stage, sizes: &sizes };
        let size = scope.size(&stage.value, &mut largest);
        let output = stage.output.0 as usize;
        (found[output], sizes[output]) = (largest, if stage.is_reduction() { 1.0 } else { size });
    }
    found
}

struct Scope<'a> {
    stage: &'a Stage,
    /// Of the tensors so far.
    sizes: &'a [f64],
}

impl Scope<'_> {
    /// What a value is at most; `angle` grows to the largest argument of a sine in it.
    fn size(&self, expr: &Expr, angle: &mut f64) -> f64 {
        let inner: Vec<f64> = expr.children().map(|child| self.size(child, angle)).collect();
        let largest = inner.iter().copied().fold(0.0, f64::max);
        match expr {
            Expr::Float(value) => value.0.abs(),
            Expr::Index(index) => self.position(index),
            Expr::Load { tensor: TensorId(tensor), .. } => self.sizes.get(*tensor as usize).copied().unwrap_or(1.0),
            Expr::Unary(op, _) if op.is_periodic() => {
                *angle = angle.max(largest);
                1.0
            }
            Expr::Binary(Binary::Multiply, ..) => inner.iter().product(),
            Expr::Binary(Binary::Add | Binary::Subtract, ..) => inner.iter().sum(),
            Expr::Binary(Binary::Divide, _, by) => match **by {
                Expr::Float(value) if value.0 != 0.0 => inner[0] / value.0.abs(),
                _ => inner[0],
            },
            _ => largest,
        }
    }

    fn position(&self, index: &Index) -> f64 {
        let range = index.range(&|var| self.stage.axis_range(var));
        range.map_or(1.0, |range| range.low.unsigned_abs().max(range.high.unsigned_abs()) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::angles;
    use crate::workload::Workload;

    #[test]
    fn positions_make_angles_large() {
        let rotary = "input t0 100 32\nconst t1 32\nlet t2 100 32 mul t1 b cast f32 int + a 900\n\
                      out t3 100 32 mul t0 a b cos t2 a b\n";
        let rotary: Workload = rotary.parse().unwrap();
        assert_eq!(angles(&rotary), [0.0, 0.0, 0.0, 999.0]);
        let data: Workload = "input t0 64 64\nlet t1 64 sum 64 t0 a b\nout t2 64 sin t1 a\n".parse().unwrap();
        assert_eq!(angles(&data), [0.0, 0.0, 1.0]);
    }
}
