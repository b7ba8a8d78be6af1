//! Elements at places that are known when the network runs, and values between them.

use super::builder::Builder;
use super::math::{
    absolute, add, and, cast, clamped_within, divide, float, less, less_equal, literal, load, maximum, minimum,
    multiply, real, square, subtract, var, vars,
};
use super::operator::Problem;
use super::resampling::FEW_TAPS;
use crate::workload::{Combiner, DType, Expr, Index, TensorId, Unary};

/// How a value is made of the elements around.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interpolation {
    Nearest,
    Linear,
    /// R. Keys, "Cubic convolution interpolation for digital image processing", 1981, with -3/4.
    Cubic,
}

/// What stands in for elements outside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outside {
    Zeros,
    /// The outermost elements.
    Border,
    /// The elements inside, mirrored.
    Reflection,
}

/// One dimension that is sampled.
#[derive(Clone, PartialEq, Debug)]
pub struct Line {
    /// At least 1 in every run.
    pub extent: Index,
    /// How far it reaches beyond the centres of the outermost elements, in elements.
    pub margin: f64,
    pub interpolation: Interpolation,
    pub outside: Outside,
}

/// The elements along one dimension of which the values at places are made, and their weights. Both tables
/// are `[.. places, taps]`.
#[derive(Clone, Debug)]
pub struct Taps {
    /// Positions of elements. Readers clamp them: tables come from data.
    pub positions: TensorId,
    /// `None`: 1.
    pub weights: Option<TensorId>,
    pub count: i64,
    /// As of [`Line`].
    pub extent: Index,
    /// Whether a position outside of the dimension stands for 0.
    pub reads_zeros: bool,
}

impl Line {
    /// The taps of places, which are counted in elements.
    pub fn taps(&self, builder: &mut Builder, places: TensorId) -> Result<Taps, Problem> {
        let shape = builder.shape(places);
        let own = vars(0, shape.len());
        let place = load(places, own.clone());
        let place = match self.interpolation {
            Interpolation::Nearest => Expr::unary(Unary::Round, place),
            Interpolation::Linear | Interpolation::Cubic => place,
        };
        let place = builder.map(shape.clone(), DType::F32, self.brought_inside(place))?;
        let place = load(place, own.clone());
        let (before, count) = match self.interpolation {
            Interpolation::Nearest => (0.0, 1),
            Interpolation::Linear => (0.0, 2),
            Interpolation::Cubic => (1.0, 4),
        };
        // positions and weights follow from one number, so that they agree
        let first = subtract(Expr::unary(Unary::Floor, place.clone()), float(before));
        let first = builder.map(shape.clone(), DType::F32, first)?;
        let first = load(first, own);
        let tap = || cast(DType::I64, DType::F32, Expr::Index(var(shape.len())));
        let table = [shape.clone(), vec![count]].concat();
        let position = add(first.clone(), tap());
        let position = if self.outside == Outside::Reflection { self.reflected(position) } else { position };
        let positions = builder.map(table.clone(), DType::I64, Expr::Cast(DType::I64, Box::new(position)))?;
        let distance = absolute(subtract(subtract(place, first), tap()));
        let weight = match self.interpolation {
            Interpolation::Nearest => None,
            Interpolation::Linear => Some(subtract(float(1.0), distance)),
            Interpolation::Cubic => Some(cubic(distance)),
        };
        let weights = weight.map(|weight| builder.map(table, DType::F32, weight)).transpose()?;
        let reads_zeros = self.outside == Outside::Zeros;
        Ok(Taps { positions, weights, count, extent: self.extent.clone(), reads_zeros })
    }

    /// A place for which the taps are defined, and which is no larger than it has to be.
    fn brought_inside(&self, place: Expr) -> Expr {
        match self.outside {
            // all taps of places that are farther away are outside, too
            Outside::Zeros => bounded(place, float(-3.0), real(&self.extent, 2.0)),
            Outside::Border => {
                let below = Expr::select(less(place.clone(), self.low()), float(0.0), place.clone());
                Expr::select(less(self.high(), place), real(&self.extent, -1.0), below)
            }
            Outside::Reflection => self.reflected(place),
        }
    }

    /// Where the dimension begins, counted in elements from the centre of the first one.
    fn low(&self) -> Expr {
        float(-self.margin)
    }

    fn high(&self) -> Expr {
        real(&self.extent, self.margin - 1.0)
    }

    /// A triangular wave: `high - | |x - low| mod 2 span - span |`.
    fn reflected(&self, place: Expr) -> Expr {
        let reach = 2.0 * self.margin - 1.0;
        let (span, period, divisor) = match self.extent.as_constant().map(|extent| extent as f64 + reach) {
            Some(span) if span <= 0.0 => return self.low(),
            Some(span) => (float(span), float(2.0 * span), float(2.0 * span)),
            None => {
                let span = real(&self.extent, reach);
                let period = multiply(float(2.0), span.clone());
                // one element that ends at its centre has no span
                (span, period.clone(), maximum(period, float(1.0)))
            }
        };
        let distance = absolute(subtract(place, self.low()));
        let periods = Expr::unary(Unary::Floor, divide(distance.clone(), divisor));
        let rest = subtract(distance, multiply(period, periods));
        bounded(subtract(self.high(), absolute(subtract(rest, span))), self.low(), self.high())
    }
}

fn bounded(x: Expr, low: Expr, high: Expr) -> Expr {
    minimum(maximum(x, low), high)
}

/// The weight of a tap at a distance.
fn cubic(distance: Expr) -> Expr {
    const A: f64 = -0.75;
    let x = || distance.clone();
    // ((a + 2) x - (a + 3)) x² + 1
    let near = subtract(multiply(float(A + 2.0), x()), float(A + 3.0));
    let near = add(multiply(near, square(x())), float(1.0));
    // a (((x - 5) x + 8) x - 4)
    let far = add(multiply(subtract(x(), float(5.0)), x()), float(8.0));
    let far = multiply(float(A), subtract(multiply(far, x()), float(4.0)));
    Expr::select(less_equal(x(), float(1.0)), near, far)
}

/// The element that each dimension's tap stands for, times the taps' weights. `at` says for each dimension
/// where its tables are read, the tap last; `read` loads an element.
pub fn weighted(taps: &[Taps], at: &[Vec<Index>], dtype: DType, read: &dyn Fn(Vec<Index>) -> Expr) -> Expr {
    let position = |(taps, at): (&Taps, &Vec<Index>)| load(taps.positions, at.clone());
    let places = taps.iter().zip(at).map(|pair| clamped_within(position(pair), &pair.0.extent)).collect();
    let weights = taps.iter().zip(at).filter_map(|(taps, at)| Some(load(taps.weights?, at.clone())));
    let value = weights.fold(read(places), multiply);
    let inside = |pair: (&Taps, &Vec<Index>)| {
        let extent = Expr::Index(pair.0.extent.clone());
        and(less_equal(Expr::integer(0), position(pair)), less(position(pair), extent))
    };
    let misses = taps.iter().zip(at).filter(|(taps, _)| taps.reads_zeros);
    match misses.map(inside).reduce(and) {
        Some(inside) => Expr::select(inside, value, literal(dtype, 0.0)),
        None => value,
    }
}

/// A tensor with these extents, of which each element is interpolated. `at` says where the tables are read,
/// without the tap; `read` loads an element.
pub fn interpolated(
    builder: &mut Builder,
    extents: &[Index],
    dtype: DType,
    taps: &[Taps],
    at: &[Index],
    read: &dyn Fn(Vec<Index>) -> Expr,
) -> Result<TensorId, Problem> {
    let counts: Vec<i64> = taps.iter().map(|taps| taps.count).collect();
    let total: i64 = counts.iter().product();
    let term = |chosen: &dyn Fn(usize) -> Index| {
        let at: Vec<Vec<Index>> = (0..taps.len()).map(|d| [at, &[chosen(d)]].concat()).collect();
        weighted(taps, &at, dtype, read)
    };
    if total > FEW_TAPS as i64 {
        let value = term(&|d| var(extents.len() + d));
        let counts: Vec<Index> = counts.into_iter().map(Index::constant).collect();
        return builder.reduce_over(extents, &counts, Combiner::Sum, dtype, value);
    }
    let terms = (0..total).map(|flat| {
        let chosen = super::builder::unflatten(&counts, &Index::constant(flat));
        term(&|d| chosen[d].clone())
    });
    let value = terms.reduce(add).unwrap_or_else(|| literal(dtype, 0.0));
    builder.map_over(extents, dtype, value)
}
