//! A reduction in parts: a rewrite of the workload.

use super::{Expr, Index, Role, Stage, Var, Workload};

impl Workload {
    /// The same results, one of the reduction axes of a stage cut into equal parts: a new stage leaves what
    /// each part comes to, the old one combines these. Where results are few and reductions deep, the parts
    /// can be computed side by side (split-K, rfactor).
    ///
    /// ```text
    /// y[i] = Σ_k f(i, k)
    /// =>
    /// p[s, i] = Σ_k f(i, s · K/parts + k)
    /// y[i] = Σ_s p[s, i]
    /// ```
    ///
    /// `axis` is a position among all axes of the stage. `None` where it is no reduction axis, or the parts
    /// would not be equal.
    pub fn split_reduction(&self, stage: usize, axis: usize, parts: i64) -> Option<Workload> {
        let whole = self.stages.get(stage)?;
        let (combiner, among) = (whole.combiner?, axis.checked_sub(whole.spatial.len())?);
        let extent = *whole.reduction.get(among)?;
        if parts < 1 || extent % parts != 0 || whole.extents.get(axis).is_some() {
            return None;
        }
        // the parts come first among the axes
        let behind = |var: Var| Index::var(Var(var.0 + 1));
        let moved = |var: Var| {
            if var.as_parameter().is_some() {
                return None;
            }
            let part = Index::var(Var(0)).times(extent / parts);
            Some(if var.0 as usize == axis { part.plus(&behind(var)) } else { behind(var) })
        };
        let mut reduction = whole.reduction.clone();
        reduction[among] = extent / parts;
        let spatial = [&[parts], &whole.spatial[..]].concat();
        let mut split = self.clone();
        let partial = split.add_tensor(spatial.clone(), self.tensor(whole.output).dtype, Role::Intermediate);
        let value = whole.value.substitute(&moved);
        let extents = whole.extents.moved(|at| Some(at + 1));
        split.tensors[partial.0 as usize].extents = extents.moved(|at| (at <= whole.spatial.len()).then_some(at));
        let first = Stage { extents, ..Stage::reduce(partial, spatial, reduction, combiner, value) };
        let last = whole.spatial.len() as u32;
        let indices = std::iter::once(last).chain(0..last).map(|axis| Index::var(Var(axis))).collect();
        let value = Expr::load(partial, indices);
        let extents = whole.extents.moved(|at| (at < whole.spatial.len()).then_some(at));
        let combined = Stage::reduce(whole.output, whole.spatial.clone(), vec![parts], combiner, value);
        split.stages[stage] = Stage { extents, ..combined };
        split.stages.insert(stage, first);
        Some(split)
    }
}

#[cfg(test)]
mod tests {
    use crate::workload::Workload;

    fn parsed(text: &str) -> Workload {
        text.parse().unwrap_or_else(|error| panic!("{error}\n{text}"))
    }

    #[test]
    fn parts_are_reduced_and_then_combined() {
        let text = "input t0 5 12\nconst t1 12 7\nlet t2 5 7 sum 12 mul t0 a c t1 c b\nout t3 5 7 max t2 a b 0.0\n";
        let split = parsed(text).split_reduction(0, 2, 3).unwrap();
        split.validate().unwrap();
        let found = split.to_string();
        for line in ["let t4 3 5 7 sum 4 mul t0 b + * 4 a d t1 + * 4 a d c", "let t2 5 7 sum 3 t4 c a b"] {
            assert!(found.contains(line), "{line} is not in\n{found}");
        }
        assert_eq!(split.flops() - parsed(text).flops(), 5 * 7 * 3);
    }

    #[test]
    fn what_cannot_be_cut_is_left_alone() {
        let workload = parsed("input t0 5 12\nlet t1 5 sum 12 t0 a b\nout t2 5 exp t1 a\n");
        for (stage, axis, parts) in [(0, 1, 5), (0, 1, 0), (0, 1, -3), (0, 0, 5), (0, 2, 2), (1, 0, 5), (2, 0, 1)] {
            assert_eq!(workload.split_reduction(stage, axis, parts), None, "{stage} {axis} {parts}");
        }
    }
}
