//! The matrices of a minimal filtering algorithm, and the linear combinations that they stand for.
//!
//! F(m, r) computes m neighbouring outputs of a filter of length r by t = m + r - 1 multiplications:
//!
//! ```text
//! y = Aᵀ [(G g) ⊙ (Bᵀ d)]
//! ```
//!
//! (Winograd, "Arithmetic Complexity of Computations", 1980; for networks: Lavin and Gray, "Fast Algorithms
//! for Convolutional Neural Networks", 2016). They come from evaluating polynomials at t - 1 points and at
//! infinity (Toom and Cook), transposed: with the points p, the rows of `G` are the powers of p over the
//! product of its differences to the others, those of `Bᵀ` the coefficients of the product of all other (x -
//! p), and the columns of `Aᵀ` the powers of p.
//!
//! A filter that moves by s elements from one output to the next is the sum of s filters: the elements of the
//! data at each distance from a multiple of s meet only those of the filter at the same distance. So it takes
//! F(m, r₀), ..., F(m, rₛ₋₁) beside one another, t = s·m + r - s multiplications in all.

use crate::workload::{Binary, Condition, Expr, Index, Var};

/// Points in the order in which they are taken: small ones and their negatives, which keep rounding errors
/// and the number of additions small.
const POINTS: [f64; 5] = [0.0, 1.0, -1.0, 2.0, -2.0];

/// F(m, r), or those of all phases of a filter that moves by more than one element.
#[derive(Clone, PartialEq, Debug)]
pub struct Transform {
    /// s.
    pub stride: usize,
    /// t rows of r.
    pub filter: Vec<Vec<f64>>,
    /// t rows of t.
    pub data: Vec<Vec<f64>>,
    /// m rows of t.
    pub output: Vec<Vec<f64>>,
}

impl Transform {
    /// Whether there are enough points, for as many outputs, a window and a stride.
    pub fn exists([outputs, window, stride]: [usize; 3]) -> bool {
        outputs >= 1 && stride >= 1 && window >= stride && outputs + window.div_ceil(stride) <= POINTS.len() + 2
    }

    /// For as many outputs, a window and a stride; `None` where there are not enough points.
    pub fn new([outputs, window, stride]: [usize; 3]) -> Option<Transform> {
        if !Transform::exists([outputs, window, stride]) {
            return None;
        }
        let size = stride * outputs + window - stride;
        let (mut filter, mut data, mut output) = (Vec::new(), Vec::new(), vec![Vec::new(); outputs]);
        for phase in 0..stride {
            let own = Transform::of_phase(outputs, (window - phase).div_ceil(stride))?;
            // its elements are every s-th
            let spread = |row: Vec<f64>, length: usize| {
                let mut all = vec![0.0; length];
                all.iter_mut().skip(phase).step_by(stride).zip(row).for_each(|(to, from)| *to = from);
                all
            };
            filter.extend(own.filter.into_iter().map(|row| spread(row, window)));
            data.extend(own.data.into_iter().map(|row| spread(row, size)));
            output.iter_mut().zip(own.output).for_each(|(all, row): (&mut Vec<f64>, _)| all.extend(row));
        }
        Some(Transform { stride, filter, data, output })
    }

    /// F(m, r) of stride 1.
    fn of_phase(outputs: usize, window: usize) -> Option<Transform> {
        if window == 1 {
            let unit = |at: usize| (0..outputs).map(|other| f64::from(other == at)).collect::<Vec<f64>>();
            let unit: Vec<Vec<f64>> = (0..outputs).map(unit).collect();
            return Some(Transform { stride: 1, filter: vec![vec![1.0]; outputs], data: unit.clone(), output: unit });
        }
        let size = outputs + window - 1;
        let points = POINTS.get(..size - 1)?;
        let powers = |p: f64, count: usize| -> Vec<f64> { (0..count).map(|e| p.powi(e as i32)).collect() };
        let at_infinity = |count: usize| -> Vec<f64> { (0..count).map(|e| f64::from(e + 1 == count)).collect() };
        let mut filter = Vec::new();
        let mut data = Vec::new();
        for (at, p) in points.iter().enumerate() {
            let others: Vec<f64> = points.iter().enumerate().filter(|(o, _)| *o != at).map(|(_, q)| *q).collect();
            let scale: f64 = others.iter().map(|q| p - q).product();
            filter.push(powers(*p, window).into_iter().map(|x| x / scale).collect());
            let mut row = product(&others);
            row.push(0.0);
            data.push(row);
        }
        filter.push(at_infinity(window));
        data.push(product(points));
        let mut output = vec![Vec::new(); outputs];
        for column in points.iter().map(|p| powers(*p, outputs)).chain([at_infinity(outputs)]) {
            output.iter_mut().zip(column).for_each(|(row, x)| row.push(x));
        }
        Some(Transform { stride: 1, filter, data, output })
    }

    /// How many times larger than the sum's own the rounding errors of the worst of its outputs are in one
    /// dimension, where each product has an independent relative error and data and filter are alike in size
    /// everywhere: of output p,
    ///
    /// ```text
    /// √(Σᵢ Aᵀ[p, i]² |G[i]|² |Bᵀ[i]|² / r)
    /// ```
    pub fn error_growth(&self) -> f64 {
        let squares = |row: &[f64]| row.iter().map(|x| x * x).sum::<f64>();
        let window = self.filter[0].len() as f64;
        let of_output = |row: &Vec<f64>| {
            let products = row.iter().zip(&self.filter).zip(&self.data);
            let sum: f64 = products.map(|((a, g), b)| a * a * squares(g) * squares(b)).sum();
            (sum / window).sqrt()
        };
        self.output.iter().map(of_output).fold(1.0, f64::max)
    }

    /// Multiplications for each dimension.
    pub fn size(&self) -> usize {
        self.data.len()
    }
}

/// The coefficients of `(x - a)(x - b)...`, the constant first.
fn product(roots: &[f64]) -> Vec<f64> {
    roots.iter().fold(vec![1.0], |polynomial, root| {
        let mut next = vec![0.0; polynomial.len() + 1];
        for (power, coefficient) in polynomial.iter().enumerate() {
            next[power + 1] += coefficient;
            next[power] -= root * coefficient;
        }
        next
    })
}

/// Which terms of a sum are added up first, so that rows for p and -p share them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sharing {
    /// Those of even and those of odd position, among those of a phase: rows of `Bᵀ` and `G` differ in the
    /// sign of the odd ones.
    Parity { stride: usize },
    /// Those with coefficients of equal size: columns of `Aᵀ` differ in sign.
    Size,
}

/// The sum of terms times coefficients; zeros are left out.
pub fn combination(coefficients: &[f64], sharing: Sharing, term: &dyn Fn(usize) -> Expr) -> Expr {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for at in (0..coefficients.len()).filter(|at| coefficients[*at] != 0.0) {
        let together = |group: &&mut Vec<usize>| match sharing {
            Sharing::Parity { stride } => group[0] / stride % 2 == at / stride % 2,
            Sharing::Size => coefficients[group[0]].abs() == coefficients[at].abs(),
        };
        match groups.iter_mut().find(together) {
            Some(group) => group.push(at),
            None => groups.push(vec![at]),
        }
    }
    let mut sum: Option<Expr> = None;
    for group in groups {
        let first = coefficients[group[0]];
        let factor = if sharing == Sharing::Size { first } else { first.signum() };
        let shared = group.iter().fold(None, |sum, at| Some(add(sum, coefficients[*at] / factor, term(*at))));
        sum = shared.map(|shared| add(sum.take(), factor, shared));
    }
    sum.unwrap_or(Expr::float(0.0))
}

/// `sum + factor * term`
fn add(sum: Option<Expr>, factor: f64, term: Expr) -> Expr {
    let size = factor.abs();
    let scaled = if size == 1.0 { term } else { Expr::binary(Binary::Multiply, Expr::float(size), term) };
    match sum {
        None if factor < 0.0 => Expr::binary(Binary::Multiply, Expr::float(-1.0), scaled),
        None => scaled,
        Some(sum) if factor < 0.0 => Expr::binary(Binary::Subtract, sum, scaled),
        Some(sum) => Expr::binary(Binary::Add, sum, scaled),
    }
}

/// `branches[axis]`: a value that is written differently for each point of an axis.
pub fn piecewise(axis: Var, mut branches: Vec<Expr>) -> Expr {
    let last = branches.pop().unwrap_or(Expr::float(0.0));
    branches.into_iter().enumerate().rev().fold(last, |otherwise, (at, branch)| {
        let here = Condition { index: Index::var(axis), low: at as i64, high: at as i64 + 1 };
        Expr::guard(vec![here], branch, otherwise)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_matrices_filter() {
        let moved = [[2, 3, 2], [4, 3, 2], [4, 5, 2], [3, 4, 2], [2, 2, 2], [2, 5, 3], [1, 3, 3]];
        for sizes in [[2, 3, 1], [3, 3, 1], [4, 3, 1], [2, 5, 1], [2, 2, 1]].into_iter().chain(moved) {
            let Transform { filter, data, output, .. } = Transform::new(sizes).unwrap();
            let ([outputs, window, stride], size) = (sizes, data.len());
            assert_eq!(size, stride * outputs + window - stride);
            for (p, r, d) in (0..outputs * window * size).map(|at| (at / size / window, at / size % window, at % size))
            {
                let product: f64 = (0..size).map(|i| output[p][i] * filter[i][r] * data[i][d]).sum();
                let expected = f64::from(d == p * stride + r);
                assert!((product - expected).abs() < 1e-12, "{sizes:?} at {p} {r} {d}: {product}");
            }
        }
        assert!([[5, 3, 1], [6, 3, 2], [2, 1, 2], [0, 3, 1]].iter().all(|sizes| Transform::new(*sizes).is_none()));
        let growth = |outputs, stride| Transform::new([outputs, 3, stride]).unwrap().error_growth().powi(2);
        let [small, large] = [2, 4].map(|outputs| growth(outputs, 1));
        assert!((1.0..2.0).contains(&small) && (30.0..32.0).contains(&large), "{small} {large}");
        assert!(growth(4, 2) < large, "{}", growth(4, 2));
    }
}
