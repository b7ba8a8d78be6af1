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

use super::rewritten::{Rewritten, Stages, leading_sum};
use super::winograd::transform::{Sharing, combination, piecewise};
use super::{Binary, Combiner, DType, Expr, Index, Role, Stage, TensorId, Var, Workload};

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

/// A sum of products of data and constant weights, and the axes that are halved.
struct Product<'a> {
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

/// Whether [`strassen`] gives anything, which is quicker to say.
pub fn applies(workload: &Workload) -> bool {
    Product::find(workload).is_some()
}

/// The rewritten workload; `None` for all that is no large product of f32 by constant weights, with axes of
/// even extents, each element of the data read once for each filter. Element-wise stages may follow.
pub fn strassen(workload: &Workload) -> Option<Rewritten> {
    let product = Product::find(workload)?;
    let mut made = Stages::new(workload);
    let constants = product.weighed(&mut made);
    let data = product.combined(&mut made);
    let products = product.multiplied(&mut made, data, constants);
    let (outputs, indices) = product.results(&mut made, products);
    let (workload, product) = made.finish();
    let constants = vec![(0, 1)];
    Some(Rewritten { workload, constants, product, outputs, error_growth: ERROR_GROWTH, indices, conditions: vec![] })
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
            let halves = |axis: &usize| stage.extent(*axis) % 2 == 0 && stage.extent(*axis) >= 2 * least;
            (0..stage.rank()).filter(|axis| is_such(axis) && halves(axis)).max_by_key(|axis| stage.extent(*axis))
        };
        Some(Product {
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

    fn is_halved(&self, axis: usize) -> bool {
        [self.row, self.column, self.step].contains(&axis)
    }

    /// Of an axis, or of one of its halves.
    fn extent(&self, axis: usize) -> Index {
        let extent = self.stage.extent(axis);
        Index::constant(if self.is_halved(axis) { extent / 2 } else { extent })
    }

    /// Linear combinations of the halves of an operand: first the axis of products, then those that the
    /// operand moves with. Halves are those of two axes.
    fn halves(&self, operand: &Expr, halved: [usize; 2], rows: &[[f64; 4]; 7]) -> (Vec<Index>, Expr) {
        let own: Vec<usize> = axes(self.stage, operand).collect();
        let of_half = |half: usize| {
            operand.substitute(&|read| {
                let axis = read.as_parameter().is_none().then_some(read.0 as usize)?;
                let place = own.iter().position(|own| *own == axis)?;
                let at = halved.iter().position(|halved| *halved == axis);
                let second = at.is_some_and(|at| half >> (1 - at) & 1 == 1);
                let first = if second { self.stage.extent(axis) / 2 } else { 0 };
                Some(Index::var(var(place + 1)).plus_constant(first))
            })
        };
        let branches = rows.iter().map(|row| combination(row, Sharing::Parity { stride: 1 }, &of_half)).collect();
        let extents = std::iter::once(Index::constant(7)).chain(own.iter().map(|axis| self.extent(*axis)));
        (extents.collect(), piecewise(var(0), branches))
    }

    fn weighed(&self, made: &mut Stages) -> TensorId {
        let (extents, value) = self.halves(self.weights, [self.step, self.column], &WEIGHTS);
        made.map((Role::Constant, DType::F32), &extents, value)
    }

    fn combined(&self, made: &mut Stages) -> TensorId {
        let (extents, value) = self.halves(self.data, [self.row, self.step], &DATA);
        made.map((Role::Intermediate, DType::F32), &extents, value)
    }

    /// The axis of products, then those of the stage.
    fn multiplied(&self, made: &mut Stages, data: TensorId, weights: TensorId) -> TensorId {
        let load = |tensor: TensorId, operand: &Expr| {
            let own = axes(self.stage, operand).map(|axis| axis + 1);
            Expr::load(tensor, std::iter::once(0).chain(own).map(|axis| Index::var(var(axis))).collect())
        };
        let mut factors = [load(data, self.data), load(weights, self.weights)];
        if self.weights_first {
            factors.reverse();
        }
        let [left, right] = factors;
        let value = Expr::binary(Binary::Multiply, left, right);
        let own = (0..self.stage.rank()).map(|axis| self.extent(axis));
        let extents: Vec<Index> = std::iter::once(Index::constant(7)).chain(own).collect();
        let most = made.most(&extents);
        let (spatial, reduction) = most.split_at(self.stage.spatial.len() + 1);
        let reduce = |output| Stage::reduce(output, spatial.to_vec(), reduction.to_vec(), Combiner::Sum, value);
        made.append((Role::Intermediate, DType::F32), &extents, reduce)
    }

    /// The outputs, rows and columns as pairs of half and place in it.
    fn results(&self, made: &mut Stages, products: TensorId) -> (Vec<super::rewritten::Tiled>, Vec<Index>) {
        let (mut extents, mut indices, mut halves, mut places) = (Vec::new(), Vec::new(), [0; 2], Vec::new());
        for axis in 0..self.stage.spatial.len() {
            let mut index = Index::constant(0);
            if let Some(which) = [self.row, self.column].iter().position(|halved| *halved == axis) {
                halves[which] = extents.len();
                index = Index::var(var(extents.len())).times(self.stage.extent(axis) / 2);
                extents.push(Index::constant(2));
            }
            let place = Index::var(var(extents.len()));
            indices.push(index.plus(&place));
            places.push(place);
            extents.push(self.extent(axis));
        }
        let element = |p: usize| {
            let point = std::iter::once(Index::constant(p as i64)).chain(places.iter().cloned());
            Expr::load(products, point.collect())
        };
        let of_half = |half: usize| combination(&RESULTS[half], Sharing::Parity { stride: 1 }, &element);
        let of_row = |row: usize| piecewise(var(halves[1]), vec![of_half(2 * row), of_half(2 * row + 1)]);
        let sum = piecewise(var(halves[0]), vec![of_row(0), of_row(1)]);
        let outputs = made.outputs(self.workload, &extents, sum, (&indices, &[]));
        (outputs, indices)
    }
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
    use crate::workload::{Array, Elements, Tiled, evaluate, row_major_strides};

    /// The largest difference between a workload's outputs and those of its rewritten form, on numbers in
    /// of one: both are exact.
    fn difference(workload: &Workload) -> f64 {
        let rewritten = strassen(workload).expect("it applies");
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
                let place = rewritten.indices.iter().map(|index| index.at(&|v: Var| point[v.0 as usize]).unwrap());
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
        for text in [dense, pointwise] {
            let workload: Workload = text.parse().unwrap();
            assert_eq!(difference(&workload), 0.0, "{text}");
            let rewritten = strassen(&workload).unwrap();
            let flops = |of: &Workload| of.stages.iter().filter(|s| s.is_reduction()).map(Stage::points).sum::<i64>();
            assert_eq!(flops(&rewritten.workload) * 8, flops(&workload) * 7);
        }
    }

    #[test]
    fn what_is_no_large_product_is_left_alone() {
        let few_rows = "const t0 256 256\ninput t1 62 256\nout t2 62 256 sum 256 mul t1 a c t0 b c\n";
        let odd = "const t0 256 256\ninput t1 65 256\nout t2 65 256 sum 256 mul t1 a c t0 b c\n";
        let of_activations = "input t0 256 256\ninput t1 64 256\nout t2 64 256 sum 256 mul t1 a c t0 b c\n";
        let short = "const t0 bf16 256 256\ninput t1 bf16 64 256\n\
            out t2 64 256 sum 256 mul cast f32 t1 a c cast f32 t0 b c\n";
        let unrolled = "const t0 256 256 3\ninput t1 66 256\nout t2 64 256 sum 256 3 mul t1 + a d c t0 b c d\n";
        for text in [few_rows, odd, of_activations, short, unrolled] {
            assert!(!applies(&text.parse().unwrap()), "{text}");
        }
    }
}
