//! Grouped convolutions with few channels in a group: several groups as one, as a rewrite of the workload.
//!
//! ```text
//! y[g, f] = Σ_c w[g, f, c] x[g, c]            f, c: filters and channels of a group
//!
//! U[h, f', c'] = w where f' and c' are of one group, else 0          of constants alone
//! y[h, f'] = Σ_c' U[h, f', c'] x[h, c']       h: several groups, whose filters and channels are in a row
//! ```
//!
//! It multiplies by zeros, so it pays only where instructions take many filters and channels at once that a
//! group does not have: tile registers do.

use super::rewritten::{Rewritten, Stages, leading_sum};
use super::{Combiner, Condition, Element, Expr, Index, Role, Stage, TensorId, Var, Workload, typed_identity};

/// Filters of what several groups become, at least and at most.
const FILTERS: std::ops::RangeInclusive<i64> = 8..=32;

/// A convolution in groups, and its axes: positions among the stage's.
struct Grouped<'a> {
    workload: &'a Workload,
    stage: &'a Stage,
    weight: Element<'a>,
    image: Element<'a>,
    group: usize,
    filter: usize,
    channel: usize,
}

/// How many groups may become one; none where there is nothing of the kind.
pub fn choices(workload: &Workload) -> Vec<i64> {
    let Some(grouped) = Grouped::find(workload) else { return Vec::new() };
    let [groups, filters] = [grouped.group, grouped.filter].map(|axis| grouped.stage.extent(axis));
    let together = std::iter::successors(Some(2), |count| Some(count * 2)).take_while(|count| *count <= groups);
    together.filter(|count| groups % count == 0 && FILTERS.contains(&(count * filters))).collect()
}

/// The position of the choice with which filters fill so many lanes, and no group's own do.
pub fn to_fill(workload: &Workload, choices: &[i64], lanes: i64) -> Option<usize> {
    let grouped = Grouped::find(workload)?;
    let filters = grouped.stage.extent(grouped.filter);
    choices.iter().position(|groups| groups * filters == lanes && filters < lanes)
}

/// The workload with so many groups as one; `None` where that is no [choice](choices).
pub fn merged(workload: &Workload, together: i64) -> Option<Rewritten> {
    if !choices(workload).contains(&together) {
        return None;
    }
    let grouped = Grouped::find(workload)?;
    let mut made = Stages::new(workload);
    let constant = grouped.weights(&mut made, together);
    let products = grouped.products(&mut made, constant, together);
    let (extents, indices) = grouped.places(together);
    let own = (0..extents.len()).map(|axis| Index::var(var(axis))).collect();
    let outputs = made.outputs(workload, &extents, Expr::load(products, own), (&indices, &[]));
    let (workload, product) = made.finish();
    Some(Rewritten {
        workload,
        constants: vec![(0, 0)],
        product,
        outputs,
        error_growth: 1,
        indices,
        conditions: vec![],
    })
}

impl<'a> Grouped<'a> {
    fn find(workload: &'a Workload) -> Option<Grouped<'a>> {
        let stage = leading_sum(workload).filter(|stage| stage.extents.is_fixed())?;
        workload.widened_operands(stage)?;
        let [x, y] = stage.multiplied()?;
        let is_constant = |element: &Element<'_>| workload.tensor(element.tensor).role == Role::Constant;
        let (weight, image) = match [is_constant(&x), is_constant(&y)] {
            [true, false] => (x, y),
            [false, true] => (y, x),
            _ => return None,
        };
        let filter = (1..stage.spatial.len()).find(|axis| weight.mentions(*axis) && !image.mentions(*axis))?;
        let group = filter - 1;
        let reduced = stage.spatial.len()..stage.rank();
        let found = |channel: usize| {
            let grouped = Grouped { workload, stage, weight, image, group, filter, channel };
            grouped.is_such().then_some(grouped)
        };
        reduced.into_iter().find_map(found)
    }

    /// Whether both operands have filters and channels of a group in a row, group by group.
    fn is_such(&self) -> bool {
        let in_rows = |element: &Element<'_>, axis: usize| {
            let row = Index::var(var(self.group)).times(self.stage.extent(axis)).plus(&Index::var(var(axis)));
            let is_moved = |index: &&Index| index.mentions(var(self.group)) || index.mentions(var(axis));
            let found: Vec<&Index> = element.indices.iter().filter(is_moved).collect();
            matches!(found[..], [only] if *only == row)
        };
        let of_weight = |axis: usize| self.weight.indices.iter().filter(move |index| index.mentions(var(axis)));
        let channels: Vec<&Index> = of_weight(self.channel).collect();
        !self.weight.is_guarded
            && in_rows(&self.weight, self.filter)
            && in_rows(&self.image, self.channel)
            && matches!(channels[..], [only] if only.as_var() == Some(var(self.channel)))
            && !self.image.indices.iter().any(Index::has_value)
    }

    /// The axes of the weights of several groups: those, their filters and channels, and the rest of the sum.
    fn axes_of_weights(&self) -> Vec<usize> {
        let rest = (self.stage.spatial.len()..self.stage.rank()).filter(|axis| *axis != self.channel);
        [self.group, self.filter, self.channel].into_iter().chain(rest).collect()
    }

    /// Of an axis of several groups.
    fn extent(&self, axis: usize, together: i64) -> i64 {
        let extent = self.stage.extent(axis);
        match axis {
            _ if axis == self.group => extent / together,
            _ if axis == self.filter || axis == self.channel => extent * together,
            _ => extent,
        }
    }

    fn weights(&self, made: &mut Stages, together: i64) -> TensorId {
        let axes = self.axes_of_weights();
        let at = |axis: usize| Index::var(var(axes.iter().position(|own| *own == axis).unwrap_or(0)));
        let [filters, channels] = [self.filter, self.channel].map(|axis| self.stage.extent(axis));
        let (filter, channel) = (at(self.filter), at(self.channel));
        let [of_filter, of_channel] = [filter.clone().floor_div(filters), channel.clone().floor_div(channels)];
        let read = self.weight.indices.iter().map(|index| {
            index.substitute(&|read| match read.0 as usize {
                axis if axis == self.group => Some(at(self.group).times(together)),
                axis if axis == self.channel => Some(channel.clone().modulo(channels)),
                axis => Some(at(axis)),
            })
        });
        let dtype = self.workload.tensor(self.weight.tensor).dtype;
        let is_of_one = Condition { index: of_filter.minus(&of_channel), low: 0, high: 1 };
        let inside = Expr::load(self.weight.tensor, read.collect());
        let value = Expr::guard(vec![is_of_one], inside, typed_identity(Combiner::Sum, dtype));
        let extents: Vec<Index> = axes.iter().map(|axis| Index::constant(self.extent(*axis, together))).collect();
        made.map((Role::Constant, dtype), &extents, value)
    }

    fn products(&self, made: &mut Stages, constant: TensorId, together: i64) -> TensorId {
        let moved = self
            .stage
            .value
            .substitute(&|read| (read == var(self.group)).then(|| Index::var(var(self.group)).times(together)));
        let own = self.axes_of_weights().into_iter().map(|axis| Index::var(var(axis))).collect::<Vec<_>>();
        let value =
            moved.map_loads(&mut |tensor, _| (tensor == self.weight.tensor).then(|| Expr::load(constant, own.clone())));
        let extents: Vec<i64> = (0..self.stage.rank()).map(|axis| self.extent(axis, together)).collect();
        let formulas: Vec<Index> = extents.iter().map(|extent| Index::constant(*extent)).collect();
        let (spatial, reduction) = extents.split_at(self.stage.spatial.len());
        let dtype = self.workload.tensor(self.stage.output).dtype;
        let reduce = |output| Stage::reduce(output, spatial.to_vec(), reduction.to_vec(), Combiner::Sum, value);
        made.append((Role::Intermediate, dtype), &formulas, reduce)
    }

    /// The axes of results, and where each is among those of the original.
    fn places(&self, together: i64) -> (Vec<Index>, Vec<Index>) {
        let filters = self.stage.extent(self.filter);
        let place = |axis: usize| {
            let own = Index::var(var(axis));
            match axis {
                _ if axis == self.group => own.times(together).plus(&Index::var(var(self.filter)).floor_div(filters)),
                _ if axis == self.filter => own.modulo(filters),
                _ => own,
            }
        };
        let axes = 0..self.stage.spatial.len();
        let extents = axes.clone().map(|axis| Index::constant(self.extent(axis, together))).collect();
        (extents, axes.map(place).collect())
    }
}

fn var(axis: usize) -> Var {
    Var(axis as u32)
}

#[cfg(test)]
mod tests {
    use super::{choices, merged, to_fill};
    use crate::workload::Workload;

    /// Of so many groups, filters and channels of each.
    fn grouped(groups: i64, filters: i64, channels: i64) -> Workload {
        let (all, read) = (groups * filters, groups * channels);
        let text = format!(
            "const t0 bf16 {all} {channels} 3\ninput t1 bf16 10 {read}\nout t2 8 {groups} {filters} sum {channels} 3 \
             mul cast f32 t0 + * {filters} b c d e cast f32 t1 + a e + * {channels} b d\n"
        );
        text.parse().unwrap()
    }

    #[test]
    fn groups_are_merged_as_far_as_filters_are_few() {
        let of_four = grouped(32, 4, 4);
        assert_eq!(choices(&of_four), [2, 4, 8]);
        assert_eq!(to_fill(&of_four, &[2, 4, 8], 16), Some(1));
        let rewritten = merged(&of_four, 4).unwrap();
        let product = &rewritten.workload.stages[rewritten.product];
        assert_eq!((&product.spatial[..], &product.reduction[..]), (&[8, 8, 16][..], &[16, 3][..]));
        assert_eq!(merged(&of_four, 3), None);
        // those of 32 fill lanes by themselves, and six are divided by two only
        assert!(choices(&grouped(4, 32, 8)).is_empty());
        assert_eq!(choices(&grouped(6, 8, 2)), [2]);
        assert_eq!(to_fill(&grouped(6, 8, 2), &[2], 16), Some(0));
    }

    #[test]
    fn what_is_not_in_groups_is_left_alone() {
        let dense = "const t0 bf16 16 4\ninput t1 bf16 8 4\nout t2 8 16 sum 4 mul cast f32 t0 b c cast f32 t1 a c\n";
        let across = "const t0 bf16 16 4\ninput t1 bf16 8 16\nout t2 8 4 4 sum 4 \
            mul cast f32 t0 + * 4 b c d cast f32 t1 a + * 4 d b\n";
        let long = "const t0 16 4\ninput t1 8 16\nout t2 8 4 4 sum 4 mul t0 + * 4 b c d t1 a + * 4 b d\n";
        for text in [dense, across, long] {
            assert!(choices(&text.parse().unwrap()).is_empty(), "{text}");
        }
    }
}
