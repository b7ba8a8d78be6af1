//! Elements between elements: what `Resize` reads along an axis, by tables computed here.

use super::builder::Builder;
use super::math::{add, literal, load, multiply, var, vars};
use super::operator::{Operator, Problem};
use super::padding;
use crate::graph::TensorData;
use crate::workload::{Combiner, DType, Expr, Index, TensorId};

/// Most taps of an antialiasing filter.
const MAX_TAPS: usize = 1 << 12;
/// Up to so many taps are written out; more become a reduction.
pub const FEW_TAPS: usize = 4;

/// What one output position is made of: input positions and their weights.
type Taps = Vec<(i64, f64)>;

/// One axis.
#[derive(Clone, Copy, Debug)]
pub struct Line {
    pub input: i64,
    pub output: i64,
    /// Of the output's extent to the input's, before the output's was rounded to whole elements.
    pub scale: f64,
    /// The part of the input that is read, where 1 is all of it.
    pub part: (f64, f64),
}

/// The order in which axes are resized, by the scale of each, as far as it is known. The fewer elements there
/// are when an axis's turn comes, the better: those that shrink come first. The last axis has its turn while
/// the others are short, since elements are picked one by one along it, and whole rows of them along others.
pub fn turns(scales: &[Option<f64>]) -> Vec<usize> {
    let scale = |axis: &usize| scales[*axis].unwrap_or(1.0);
    let mut axes: Vec<usize> = (0..scales.len().saturating_sub(1)).collect();
    axes.sort_by(|a, b| scale(a).total_cmp(&scale(b)));
    let shrinking = axes.iter().take_while(|axis| scale(axis) < 1.0).count();
    axes.splice(shrinking..shrinking, scales.len().checked_sub(1));
    axes
}

/// How elements between others come about, on any axis.
#[derive(Clone, Debug)]
pub struct Plan {
    pub mode: String,
    pub coordinates: String,
    pub nearest: String,
    pub cubic: f64,
    pub excludes_outside: bool,
    pub antialias: bool,
    /// What lies outside of the input; `None`: the outermost elements.
    pub outside: Option<f64>,
}

impl Plan {
    /// What the attributes say.
    ///
    /// # Errors
    /// For values of attributes that the operator does not know.
    pub fn of(op: &Operator) -> Result<Plan, Problem> {
        let old = op.kind == "Upsample" || op.opset < 11;
        let coordinates = op.text("coordinate_transformation_mode", if old { "asymmetric" } else { "half_pixel" })?;
        let crops = coordinates == "tf_crop_and_resize";
        let mode = match op.text("mode", "nearest")? {
            "bilinear" | "linear" => "linear",
            other @ ("nearest" | "cubic") => other,
            other => return Err(Problem::AttributeValue { name: "mode", value: other.to_string() }),
        };
        Ok(Plan {
            mode: mode.to_string(),
            coordinates: coordinates.to_string(),
            nearest: op.text("nearest_mode", if old { "floor" } else { "round_prefer_floor" })?.to_string(),
            cubic: op.float("cubic_coeff_a", -0.75)?,
            excludes_outside: op.flag("exclude_outside", false)?,
            antialias: op.flag("antialias", false)?,
            outside: if crops { Some(op.float("extrapolation_value", 0.0)?) } else { None },
        })
    }

    /// A tensor with one axis resized.
    pub fn resized(&self, builder: &mut Builder, x: TensorId, axis: usize, line: &Line) -> Result<TensorId, Problem> {
        // the least that the taps of an output take while they are worked out
        builder.reserve(&[line.output, 8], DType::I64)?;
        let places = (0..line.output).map(|at| self.coordinate(at, line)).collect::<Result<Vec<f64>, Problem>>()?;
        let counts = |place: &&f64| self.outside.is_none() || (0.0..=(line.input - 1) as f64).contains(*place);
        let before = places.iter().take_while(|place| !counts(place)).count();
        let inside: Vec<f64> = places[before..].iter().take_while(counts).copied().collect();
        let after = places.len() - before - inside.len();
        let filling = literal(builder.dtype(x), self.outside.unwrap_or(0.0));
        if inside.is_empty() {
            let (mut shape, dtype) = (builder.shape(x), builder.dtype(x));
            shape[axis] = line.output;
            return builder.map(shape, dtype, filling);
        }
        let taps = inside.iter().map(|place| self.taps_at(*place, line.input, line.scale));
        let x = resample(builder, x, axis, inside.len() as i64, &taps.collect::<Result<Vec<Taps>, Problem>>()?)?;
        let mut pads = vec![(0, 0); builder.rank(x)];
        pads[axis] = (before as i64, after as i64);
        padding::constant(builder, x, &pads, filling)
    }

    /// Where an output position lies among the input's.
    fn coordinate(&self, at: i64, line: &Line) -> Result<f64, Problem> {
        let Line { input, output, scale, part } = *line;
        let (at, length) = (at as f64, output as f64);
        let half_pixel = (at + 0.5) / scale - 0.5;
        Ok(match self.coordinates.as_str() {
            "half_pixel" => half_pixel,
            "half_pixel_symmetric" => {
                let adjustment = length / (scale * input as f64);
                input as f64 / 2.0 * (1.0 - adjustment) + half_pixel
            }
            "pytorch_half_pixel" => {
                if output > 1 {
                    half_pixel
                } else {
                    0.0
                }
            }
            "align_corners" if output == 1 => 0.0,
            // the length before it was rounded to whole elements
            "align_corners" => at * (input - 1) as f64 / (scale * input as f64 - 1.0),
            "tf_crop_and_resize" => {
                let (last, read) = ((input - 1) as f64, part.1 - part.0);
                let share =
                    if output > 1 { at * read * last / (scale * input as f64 - 1.0) } else { read * last / 2.0 };
                share + part.0 * last
            }
            "asymmetric" => at / scale,
            "tf_half_pixel_for_nn" => (at + 0.5) / scale,
            other => {
                let value = other.to_string();
                return Err(Problem::AttributeValue { name: "coordinate_transformation_mode", value });
            }
        })
    }

    fn taps_at(&self, place: f64, input: i64, scale: f64) -> Result<Taps, Problem> {
        let inside = |at: f64| (at as i64).clamp(0, input - 1);
        if self.mode == "nearest" {
            let at = match self.nearest.as_str() {
                "round_prefer_floor" => (place - 0.5).ceil(),
                "round_prefer_ceil" => (place + 0.5).floor(),
                "floor" => place.floor(),
                "ceil" => place.ceil(),
                other => return Err(Problem::AttributeValue { name: "nearest_mode", value: other.to_string() }),
            };
            return Ok(vec![(inside(at), 1.0)]);
        }
        // the filter is wider where the input is denser than the output
        let stretch = if self.antialias { scale.min(1.0) } else { 1.0 };
        let radius = if self.mode == "cubic" { 2.0 } else { 1.0 };
        let first = (-radius / stretch).floor() + 1.0;
        let count = (2.0 - 2.0 * first) as usize;
        if count > MAX_TAPS {
            return Err(Problem::TooLarge(vec![count as i64]));
        }
        let start = place.floor();
        let mut taps: Vec<(f64, f64)> = (0..count)
            .map(|tap| {
                let at = start + first + tap as f64;
                (at, self.weight((at - place) * stretch))
            })
            .collect();
        if self.excludes_outside {
            taps.iter_mut().filter(|(at, _)| *at < 0.0 || *at >= input as f64).for_each(|(_, weight)| *weight = 0.0);
        }
        if self.excludes_outside || self.antialias {
            let total: f64 = taps.iter().map(|(_, weight)| weight).sum();
            taps.iter_mut().for_each(|(_, weight)| *weight /= total);
        }
        Ok(taps.into_iter().map(|(at, weight)| (inside(at), weight)).collect())
    }

    /// Of a tap at a distance: linear, or R. Keys' cubic convolution.
    fn weight(&self, distance: f64) -> f64 {
        let (x, a) = (distance.abs(), self.cubic);
        match self.mode.as_str() {
            "linear" => (1.0 - x).max(0.0),
            _ if x <= 1.0 => ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0,
            _ if x < 2.0 => a * (((x - 5.0) * x + 8.0) * x - 4.0),
            _ => 0.0,
        }
    }
}

fn resample(builder: &mut Builder, x: TensorId, axis: usize, output: i64, taps: &[Taps]) -> Result<TensorId, Problem> {
    let (own, dtype) = (builder.shape(x), builder.dtype(x));
    let mut shape = own.clone();
    shape[axis] = output;
    let count = taps.first().map_or(0, Vec::len);
    if count == 1 {
        let places: Vec<i64> = taps.iter().map(|taps| taps[0].0).collect();
        let mut at = vars(0, own.len());
        at[axis] = stepwise(&places, &var(axis)).unwrap_or_else(|| {
            let table = builder.constant(TensorData::from_i64(vec![output], &places));
            Index::value(load(table, vec![var(axis)]))
        });
        return builder.map(shape, dtype, load(x, at));
    }
    // [taps, output], so that neighbours of the output read neighbours
    let flat = || (0..count).flat_map(|tap| taps.iter().map(move |taps| &taps[tap]));
    let dims = vec![count as i64, output];
    let places: Vec<i64> = flat().map(|(place, _)| *place).collect();
    let weights: Vec<f32> = flat().map(|(_, weight)| *weight as f32).collect();
    let places = builder.constant(TensorData::from_i64(dims.clone(), &places));
    let weights = builder.constant(TensorData::from_f32(dims, &weights));
    let term = |tap: Index| {
        let cell = vec![tap, var(axis)];
        let mut at = vars(0, own.len());
        at[axis] = Index::value(load(places, cell.clone()));
        multiply(load(x, at), load(weights, cell))
    };
    if count > FEW_TAPS {
        let value = term(var(own.len()));
        return builder.reduce(shape, vec![count as i64], Combiner::Sum, DType::F32, value);
    }
    let terms = (0..count).map(|tap| term(Index::constant(tap as i64)));
    let value = terms.reduce(add).unwrap_or_else(|| Expr::float(0.0));
    builder.map(shape, DType::F32, value)
}

/// `i / s` or `s · i + a`, where that is what the places are: whole factors need no table.
fn stepwise(places: &[i64], i: &Index) -> Option<Index> {
    let last = i64::try_from(places.len()).ok()? - 1;
    let first = *places.first()?;
    let holds = |function: &dyn Fn(i64) -> i64| (0..=last).all(|at| places[at as usize] == function(at));
    let step = if last > 0 { places[1] - first } else { 1 };
    if holds(&|at| first + step * at) {
        return Some(i.clone().times(step).plus_constant(first));
    }
    let repeat = places.iter().take_while(|place| **place == first).count() as i64;
    (repeat > 1 && holds(&|at| first + at.div_euclid(repeat))).then(|| i.clone().floor_div(repeat).plus_constant(first))
}

#[cfg(test)]
mod tests {
    use super::turns;

    #[test]
    fn elements_are_picked_one_by_one_while_there_are_few() {
        let known = |scales: &[f64]| scales.iter().copied().map(Some).collect::<Vec<_>>();
        assert_eq!(turns(&known(&[1.0, 1.0, 4.0, 8.0])), [3, 0, 1, 2]);
        assert_eq!(turns(&known(&[1.0, 0.5, 0.25, 0.5])), [2, 1, 3, 0]);
        assert_eq!(turns(&known(&[0.5, 2.0, 0.1])), [0, 2, 1]);
        assert_eq!(turns(&[None, None]), [1, 0]);
        assert!(turns(&[]).is_empty());
    }
}
