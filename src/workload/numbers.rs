//! Workloads that differ in numbers alone.

use super::{Expr, Index, Workload};

impl Workload {
    /// The workload with 1 in the place of every number that it computes with. Extents, and numbers in
    /// indices and conditions, stay: workloads that are equal without numbers read and write the same
    /// elements in the same order, by the same operators.
    #[must_use]
    pub fn without_numbers(&self) -> Workload {
        let mut alike = self.clone();
        for stage in &mut alike.stages {
            stage.value = stage.value.rewrite(&mut |expr| match expr {
                Expr::Float(_) => Expr::float(1.0),
                Expr::Index(index) if index.as_constant().is_some() => Expr::Index(Index::constant(1)),
                other => other,
            });
        }
        alike
    }
}

#[cfg(test)]
mod tests {
    use crate::workload::Workload;

    #[test]
    fn scales_and_zero_points_make_no_other_workload() {
        let scaled = |extent: i64, shift: i64, zero: i64, scale: f64| -> Workload {
            let text = format!(
                "input t0 u8 9 {extent}\nout t1 9 {extent} mul {scale:?} cast f32 sub cast i32 t0 a \
                 % + b {shift} {extent} cast i32 int {zero}\n"
            );
            text.parse().unwrap()
        };
        let one = scaled(7, 3, 124, 0.25).without_numbers();
        assert_eq!(one, scaled(7, 3, 133, 0.5).without_numbers());
        assert_eq!(one, one.without_numbers());
        assert_ne!(one, scaled(8, 3, 124, 0.25).without_numbers());
        assert_ne!(one, scaled(7, 4, 124, 0.25).without_numbers());
    }
}
