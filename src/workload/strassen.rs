//! Products of matrices by fewer multiplications: one level of Strassen's algorithm as a rewrite of the
//! workload.
//!
//! ```text
//! y[m, n] = Σ_k a[m, k] w[k, n], in halves of all three axes: a[i, k], w[k, j], y[i, j] for i, j, k of 0, 1
//!
//! U[p]    = Σ_kj W[p, kj] w[k, j]        of constants alone: computed when the network is compiled
//! V[p]    = Σ_ik A[p, ik] a[i, k]
//! M[p]    = V[p] U[p]                      seven products of half the size, where there were eight
//! y[i, j] = Σ_p Y[ij, p] M[p]            and the epilogue
//! ```
//!
//! (Strassen, "Gaussian Elimination is not Optimal", 1969.) Constants become 7/4 times as large, so it pays
//! where many rows go through them. Rounding errors are up to 2.5 times those of the sum itself.
//!
//! What is multiplied and what comes of it may be cut into [`Panels`]: a panel is a stretch of the rows or of
//! the columns of both halves. The products of one are added up while they are in the cache, as Huang et al.
//! do it ("Strassen's Algorithm Reloaded", SC 2016), whose products never are in memory as a whole.
//!
//! ```text
//! V[b, p]    = Σ_ik A[p, ik] a[i, k], of the rows of panel b; or V[p], where panels are of columns
//! M[b, p]    = V[b, p] U[p], or V[p] U[p, b]
//! y[b, i, j] = Σ_p Y[ij, p] M[b, p]
//! ```

use super::expr::Condition;
use super::rewritten::{Rewritten, Stages, Tiled, leading_sum};
use super::winograd::transform::{Sharing, combination, piecewise};
use super::{Binary, Combiner, DType, Expr, Index, Role, Stage, TensorId, Var, Workload};

/// Products of halves.
const PRODUCTS: i64 = 7;

/// What of the halves of the data each product multiplies, (0, 0) first, then (0, 1).
const DATA: [[f64; 4]; 7] = [
    [1.0, 0.0, 0.0, 1.0],
    [0.0, 0.0, 1.0, 1.0],
    [1.0, 0.0, 0.0, 0.0],
    [0.0, 0.0, 0.0, 1.0],
    [1.0, 1.0, 0.0, 0.0],
    [-1.0, 0.0, 1.0, 0.0],
    [0.0, 1.0, 0.0, -1.0],
];
/// By what of the halves of the weights.
const WEIGHTS: [[f64; 4]; 7] = [
    [1.0, 0.0, 0.0, 1.0],
    [1.0, 0.0, 0.0, 0.0],
    [0.0, 1.0, 0.0, -1.0],
    [-1.0, 0.0, 1.0, 0.0],
    [0.0, 0.0, 0.0, 1.0],
    [1.0, 1.0, 0.0, 0.0],
    [0.0, 0.0, 1.0, 1.0],
];
/// What each half of the results adds up of the products.
const RESULTS: [[f64; 7]; 4] = [
    [1.0, 0.0, 0.0, 1.0, -1.0, 0.0, 1.0],
    [0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0],
    [0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0],
    [1.0, -1.0, 1.0, 0.0, 0.0, 1.0, 0.0],
];
/// √(Σₙ Y² |A|² |W|² / 2) of the first result is 2.45; see the error growth of Winograd's algorithm.
const ERROR_GROWTH: u32 = 3;

/// Halves of axes that are shorter do not keep registers and caches busy.
const FEWEST_ROWS: i64 = 32;
const FEWEST_COLUMNS: i64 = 128;
const FEWEST_STEPS: i64 = 128;

/// Halves of an odd number of rows are of as many as these fill.
const ROWS_AT_ONCE: i64 = 4;

/// A sum of products of data and constant weights, and the axes that are halved.
struct Product<'a> {
    panels: Option<Panels>,
    workload: &'a Workload,
    stage: &'a Stage,
    data: &'a Expr,
    weights: &'a Expr,
    weights_first: bool,
    /// Positions among the stage's axes: one that only the data moves with, one that only the weights do, and
    /// one that is summed over.
    row: usize,
    column: usize,
    step: usize,
}

/// What panels are cut out of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Side {
    Rows,
    Columns,
}

impl Side {
    pub const ALL: [Side; 2] = [Side::Rows, Side::Columns];

    /// As it is spelled in schedules and traces.
    pub fn name(self) -> &'static str {
        match self {
            Side::Rows => "row",
            Side::Columns => "column",
        }
    }
}

/// Stretches of rows or of columns that stay together, of each half so many.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Panels {
    pub of: Side,
    pub width: i64,
}

/// Whether [`strassen`] gives anything, which is quicker to say.
pub fn applies(workload: &Workload) -> bool {
    Product::find(workload).is_some()
}

/// Rows and columns of a half, which panels may be cut out of; `None` where [`strassen`] gives nothing.
pub fn halves(workload: &Workload) -> Option<[i64; 2]> {
    let product = Product::find(workload)?;
    Some(Side::ALL.map(|of| product.half(product.axis(of))))
}

/// The rewritten workload; `None` for all that is no large product of f32 by constant weights, with columns
/// and steps of even numbers, each element of the data read once for each filter. Element-wise stages may
/// follow. Panels are of equal width.
pub fn strassen(workload: &Workload, panels: Option<Panels>) -> Option<Rewritten> {
    let product = Product { panels, ..Product::find(workload)? };
    if panels.is_some_and(|panels| panels.width < 1 || product.half(product.axis(panels.of)) % panels.width != 0) {
        return None;
    }
    let mut made = Stages::new(workload);
    let combined = |made: &mut Stages, role: Role, slots: &[Slot], value: Expr| {
        made.map((role, DType::F32), &product.extents(slots), value)
    };
    let (of_weights, of_data) = (product.of_weights(), product.of_data());
    let value = product.combined(product.weights, &of_weights, [product.step, product.column], &WEIGHTS);
    let constants = combined(&mut made, Role::Constant, &of_weights, value);
    let value = product.combined(product.data, &of_data, [product.row, product.step], &DATA);
    let data = combined(&mut made, Role::Intermediate, &of_data, value);
    let (products, of_products) = product.multiplied(&mut made, constants, data);
    let (outputs, indices, conditions) = product.results(&mut made, products, &of_products);
    let (workload, product) = made.finish();
    let constants = vec![(0, 1)];
    Some(Rewritten { workload, constants, product, outputs, error_growth: ERROR_GROWTH, indices, conditions })
}

impl<'a> Product<'a> {
    fn find(workload: &'a Workload) -> Option<Product<'a>> {
        let of = |tensor: TensorId| workload.tensor(tensor);
        let fits = |stage: &&Stage| of(stage.output).dtype == DType::F32 && stage.extents.is_fixed();
        let stage = leading_sum(workload).filter(fits)?;
        let Expr::Binary(Binary::Multiply, left, right) = &stage.value else { return None };
        let (first, second) = (left.as_element()?, right.as_element()?);
        let is_constant = [first.tensor, second.tensor].map(|tensor| of(tensor).role == Role::Constant);
        let (data, weights, weights_first) = match is_constant {
            [false, true] => (&**left, &**right, false),
            [true, false] => (&**right, &**left, true),
            _ => return None,
        };
        // short numbers are multiplied faster as they are
        if [&first, &second].iter().any(|element| of(element.tensor).dtype != DType::F32) {
            return None;
        }
        let element = if weights_first { second } else { first };
        let read: i64 = axes(stage, data).map(|axis| stage.extent(axis)).product();
        if read > of(element.tensor).elements() {
            return None;
        }
        let longest = |of_data: bool, of_weights: bool, is_summed: bool, least: i64| {
            let is_such = |axis: &usize| {
                let mentioned = [data, weights].map(|operand| operand.mentions(var(*axis)));
                mentioned == [of_data, of_weights] && (*axis >= stage.spatial.len()) == is_summed
            };
            // rows are filled up with zeros, which takes no weights
            let is_even = |axis: &usize| stage.extent(*axis) % 2 == 0 || !of_weights;
            let halves = |axis: &usize| is_even(axis) && stage.extent(*axis) >= 2 * least;
            (0..stage.rank()).filter(|axis| is_such(axis) && halves(axis)).max_by_key(|axis| stage.extent(*axis))
        };
        Some(Product {
            panels: None,
            row: longest(true, false, false, FEWEST_ROWS)?,
            column: longest(false, true, false, FEWEST_COLUMNS)?,
            step: longest(true, true, true, FEWEST_STEPS)?,
            workload,
            stage,
            data,
            weights,
            weights_first,
        })
    }

    /// The axis that panels of a side are cut out of.
    fn axis(&self, of: Side) -> usize {
        match of {
            Side::Rows => self.row,
            Side::Columns => self.column,
        }
    }

    /// What a half of an axis has. Those of an odd number of rows have more than they need, so that panels of
    /// several widths are possible.
    fn half(&self, axis: usize) -> i64 {
        let extent = self.stage.extent(axis);
        if extent % 2 == 0 { extent / 2 } else { (extent / 2 / ROWS_AT_ONCE + 1) * ROWS_AT_ONCE }
    }

    /// What has to hold for rows to be there.
    fn inside(&self, row: &Index) -> Vec<Condition> {
        let extent = self.stage.extent(self.row);
        if extent % 2 == 0 { Vec::new() } else { Condition::within(row, None, extent) }
    }

    fn has_panels(&self, of: Side) -> bool {
        self.panels.is_some_and(|panels| panels.of == of)
    }

    /// The axis that is cut into panels, and how many of it a panel has.
    fn cut(&self) -> Option<(usize, i64)> {
        self.panels.map(|panels| (self.axis(panels.of), panels.width))
    }

    fn extent(&self, slot: Slot) -> Index {
        Index::constant(match (slot, self.cut()) {
            (Slot::Product, _) => PRODUCTS,
            (Slot::Half(_), _) => 2,
            (Slot::Panel, None) => 1,
            (Slot::Panel, Some((axis, width))) => self.half(axis) / width,
            (Slot::Own(axis), Some((cut, width))) if axis == cut => width,
            (Slot::Own(axis), _) if [self.row, self.column, self.step].contains(&axis) => self.half(axis),
            (Slot::Own(axis), _) => self.stage.extent(axis),
        })
    }

    fn extents(&self, slots: &[Slot]) -> Vec<Index> {
        slots.iter().map(|slot| self.extent(*slot)).collect()
    }

    /// Where a point of these axes is along one of the sum's, in its half.
    fn within(&self, slots: &[Slot], axis: usize) -> Index {
        let own = at(slots, Slot::Own(axis));
        match self.cut() {
            Some((cut, width)) if cut == axis => at(slots, Slot::Panel).times(width).plus(&own),
            _ => own,
        }
    }

    /// Linear combinations of the halves of an operand, halves being those of two axes.
    fn combined(&self, operand: &Expr, slots: &[Slot], halved: [usize; 2], rows: &[[f64; 4]]) -> Expr {
        let in_half = |half: usize, axis: usize| {
            let first = match halved.iter().position(|halved| *halved == axis) {
                Some(at) if half >> (1 - at) & 1 == 1 => self.half(axis),
                _ => 0,
            };
            self.within(slots, axis).plus_constant(first)
        };
        let of_half = |half: usize| {
            let value = operand.substitute(&|read| {
                let axis = read.as_parameter().is_none().then_some(read.0 as usize)?;
                slots.contains(&Slot::Own(axis)).then(|| in_half(half, axis))
            });
            // all rows of the first half are there
            let is_second = halved[0] == self.row && half >> 1 == 1;
            let conditions = if is_second { self.inside(&in_half(half, self.row)) } else { Vec::new() };
            Expr::guard(conditions, value, Expr::float(0.0))
        };
        let branches = rows.iter().map(|row| combination(row, Sharing::Parity { stride: 1 }, &of_half)).collect();
        piecewise(var(place(slots, Slot::Product)), branches)
    }

    /// The axes of the weights: what a panel has of the columns is innermost.
    fn of_weights(&self) -> Vec<Slot> {
        let mut own: Vec<usize> = axes(self.stage, self.weights).collect();
        let mut slots = vec![Slot::Product];
        if self.has_panels(Side::Columns) {
            slots.push(Slot::Panel);
            own.sort_by_key(|axis| *axis == self.column);
        }
        slots.extend(own.into_iter().map(Slot::Own));
        slots
    }

    /// The axes of the data, those of the sum in the order that they have in memory.
    fn of_data(&self) -> Vec<Slot> {
        let mut own: Vec<usize> = axes(self.stage, self.data).collect();
        if let Some(element) = self.data.as_element() {
            own.sort_by_key(|axis| element.indices.iter().rposition(|index| index.mentions(var(*axis))));
        }
        let panel = self.has_panels(Side::Rows).then_some(Slot::Panel);
        panel.into_iter().chain([Slot::Product]).chain(own.into_iter().map(Slot::Own)).collect()
    }

    /// The products of weights and data, and their axes.
    fn multiplied(&self, made: &mut Stages, weights: TensorId, data: TensorId) -> (TensorId, Vec<Slot>) {
        let panel = self.panels.map(|_| Slot::Panel);
        let own = (0..self.stage.rank()).map(Slot::Own);
        let all: Vec<Slot> = panel.into_iter().chain([Slot::Product]).chain(own).collect();
        let load = |tensor: TensorId, slots: Vec<Slot>| {
            Expr::load(tensor, slots.into_iter().map(|slot| at(&all, slot)).collect())
        };
        let mut factors = [load(data, self.of_data()), load(weights, self.of_weights())];
        if self.weights_first {
            factors.reverse();
        }
        let [left, right] = factors;
        let value = Expr::binary(Binary::Multiply, left, right);
        let extents = self.extents(&all);
        let most = made.most(&extents);
        let (spatial, reduction) = most.split_at(all.len() - self.stage.reduction.len());
        let reduce = |output| Stage::reduce(output, spatial.to_vec(), reduction.to_vec(), Combiner::Sum, value);
        let products = made.append((Role::Intermediate, DType::F32), &extents, reduce);
        (products, all[..spatial.len()].to_vec())
    }

    /// The outputs, rows and columns as pairs of half and place in it.
    fn results(&self, made: &mut Stages, products: TensorId, of: &[Slot]) -> (Vec<Tiled>, Vec<Index>, Vec<Condition>) {
        let is_halved = |axis: &usize| [self.row, self.column].contains(axis);
        let own = (0..self.stage.spatial.len())
            .flat_map(|axis| is_halved(&axis).then_some(Slot::Half(axis)).into_iter().chain([Slot::Own(axis)]));
        let slots: Vec<Slot> = self.panels.map(|_| Slot::Panel).into_iter().chain(own).collect();
        let indices: Vec<Index> = (0..self.stage.spatial.len())
            .map(|axis| match is_halved(&axis) {
                true => {
                    let half = at(&slots, Slot::Half(axis)).times(self.half(axis));
                    half.plus(&self.within(&slots, axis))
                }
                false => at(&slots, Slot::Own(axis)),
            })
            .collect();
        let element = |p: usize| {
            let of_product = |slot: &Slot| match slot {
                Slot::Product => Index::constant(p as i64),
                own => at(&slots, *own),
            };
            Expr::load(products, of.iter().map(of_product).collect())
        };
        let of_half = |half: usize| combination(&RESULTS[half], Sharing::Parity { stride: 1 }, &element);
        let half = |axis: usize| var(place(&slots, Slot::Half(axis)));
        let of_row = |row: usize| piecewise(half(self.column), vec![of_half(2 * row), of_half(2 * row + 1)]);
        let sum = piecewise(half(self.row), vec![of_row(0), of_row(1)]);
        let conditions = self.inside(&indices[self.row]);
        let outputs = made.outputs(self.workload, &self.extents(&slots), sum, (&indices, &conditions));
        (outputs, indices, conditions)
    }
}

/// What an axis of a stage is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Slot {
    /// Which of the seven products it is of.
    Product,
    Panel,
    /// Which half of the rows, or of the columns, by their axis of the sum.
    Half(usize),
    /// An axis of the sum: of those in halves what is within one, and of those in panels what is within one.
    Own(usize),
}

fn place(slots: &[Slot], slot: Slot) -> usize {
    slots.iter().position(|own| *own == slot).unwrap_or(slots.len())
}

fn at(slots: &[Slot], slot: Slot) -> Index {
    Index::var(var(place(slots, slot)))
}

/// Positions of the stage's axes that an operand moves with.
fn axes<'s>(stage: &'s Stage, operand: &'s Expr) -> impl Iterator<Item = usize> + 's {
    (0..stage.rank()).filter(|axis| operand.mentions(var(*axis)))
}

fn var(axis: usize) -> Var {
    Var(axis as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Array, Elements, evaluate, row_major_strides};

    /// The largest difference between a workload's outputs and those of its rewritten form, on numbers in
    /// of one: both are exact.
    fn difference(workload: &Workload, panels: Option<Panels>) -> f64 {
        let rewritten = strassen(workload, panels).expect("it applies");
        let mut standalone = rewritten.workload.clone();
        workload.stages.iter().for_each(|stage| standalone.tensors[stage.output.0 as usize].role = Role::Input);
        let constant = standalone.stages[rewritten.constants[0].0].output;
        standalone.tensors[constant.0 as usize].role = Role::Intermediate;
        rewritten.outputs.iter().for_each(|of| standalone.tensors[of.tiled.0 as usize].role = Role::Output);
        let given = |of: &Workload, known: &[(TensorId, Array)]| -> Vec<(TensorId, Array)> {
            let is_given = |role: Role| matches!(role, Role::Input | Role::Constant);
            let array = |id: TensorId, shape: &[i64]| {
                let values = (0..shape.iter().product()).map(|at: i64| (at * 37 % 17) as f32 / 8.0 - 1.0);
                let computed = known.iter().find(|(known, _)| *known == id).map(|(_, array)| array.clone());
                computed.unwrap_or_else(|| Array::new(shape.to_vec(), Elements::F32(values.collect())).unwrap())
            };
            of.ids().filter(|(_, t)| is_given(t.role)).map(|(id, t)| (id, array(id, &t.shape))).collect()
        };
        let run = |of: &Workload, known: &[(TensorId, Array)]| {
            let given = given(of, known);
            evaluate(of, &given.iter().map(|(id, array)| (*id, array)).collect::<Vec<_>>()).unwrap()
        };
        let expected = run(workload, &[]);
        let found = run(&standalone, &expected);
        let mut worst: f64 = 0.0;
        for Tiled { tiled, output } in &rewritten.outputs {
            let of =
                |arrays: &[(TensorId, Array)], id| arrays.iter().find(|(known, _)| *known == id).unwrap().1.clone();
            let (tiled, output) = (of(&found, *tiled), of(&expected, *output));
            let strides = row_major_strides(output.shape());
            let mut written = vec![false; output.elements().len()];
            for at in 0..tiled.elements().len() as i64 {
                let steps = row_major_strides(tiled.shape()).into_iter().zip(tiled.shape());
                let point: Vec<i64> = steps.map(|(stride, extent)| at / stride % extent).collect();
                let value = |index: &Index| index.at(&|v: Var| point[v.0 as usize]).unwrap();
                let is_there = |of: &Condition| (of.low..of.high).contains(&value(&of.index));
                if !rewritten.conditions.iter().all(is_there) {
                    continue;
                }
                let place = rewritten.indices.iter().map(value);
                let flat: i64 = place.zip(&strides).map(|(place, stride)| place * stride).sum();
                assert!(!std::mem::replace(&mut written[flat as usize], true), "{flat} is written twice");
                let values = [tiled.number(at as usize), output.number(flat as usize)].map(Option::unwrap);
                worst = worst.max((values[0] - values[1]).abs());
            }
            assert!(written.iter().all(|written| *written));
        }
        worst
    }

    #[test]
    fn seven_products_are_the_same_as_eight() {
        let dense = "const t0 256 256\ninput t1 64 256\nconst t2 256\n\
            let t3 64 256 sum 256 mul t1 a c t0 b c\nout t4 like t3 max 0.0 add t2 b t3 a b\n";
        // images before pixels, weights first, and a sum that is an output itself
        let pointwise = "const t0 256 256\ninput t1 2 256 66\ninput t2 2 256 66\n\
            out t3 2 256 66 sum 256 mul t0 b d t1 a d c\nout t4 like t3 add t2 a b c t3 a b c\n";
        let odd = "const t0 256 256\ninput t1 93 256\nlet t2 93 256 sum 256 mul t1 a c t0 b c\n\
            out t3 like t2 max 0.0 t2 a b\n";
        for text in [dense, pointwise, odd] {
            let workload: Workload = text.parse().unwrap();
            let panels = [None, Some((Side::Rows, 16)), Some((Side::Rows, 11)), Some((Side::Columns, 32))];
            for panels in panels.map(|panels| panels.map(|(of, width)| Panels { of, width })) {
                let Some(rewritten) = strassen(&workload, panels) else {
                    // 32 and 33 rows have no panels of other widths
                    assert!(panels.is_some_and(|panels| panels.of == Side::Rows), "{text} {panels:?}");
                    continue;
                };
                assert_eq!(difference(&workload, panels), 0.0, "{text} {panels:?}");
                let sums = |of: &Workload| of.stages.iter().filter(|s| s.is_reduction()).map(Stage::points).sum();
                let [seven, eight]: [i64; 2] = [&rewritten.workload, &workload].map(sums);
                let rows = if text == odd { [93, 96] } else { [1, 1] };
                assert_eq!(seven * 8 * rows[0], eight * 7 * rows[1]);
            }
        }
    }

    #[test]
    fn what_is_no_large_product_is_left_alone() {
        let few_rows = "const t0 256 256\ninput t1 62 256\nout t2 62 256 sum 256 mul t1 a c t0 b c\n";
        let odd = "const t0 257 256\ninput t1 64 256\nout t2 64 257 sum 256 mul t1 a c t0 b c\n";
        let of_activations = "input t0 256 256\ninput t1 64 256\nout t2 64 256 sum 256 mul t1 a c t0 b c\n";
        let short = "const t0 bf16 256 256\ninput t1 bf16 64 256\n\
            out t2 64 256 sum 256 mul cast f32 t1 a c cast f32 t0 b c\n";
        let unrolled = "const t0 256 256 3\ninput t1 66 256\nout t2 64 256 sum 256 3 mul t1 + a d c t0 b c d\n";
        for text in [few_rows, odd, of_activations, short, unrolled] {
            assert!(!applies(&text.parse().unwrap()), "{text}");
        }
    }
}
