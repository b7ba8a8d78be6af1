//! Convolutions of small images with the rows of the padded image as one, as a rewrite of the workload.
//!
//! ```text
//! y[a, b, c] = Σ_efd w[c, d, e, f] · x[a + e - 1, b + f - 1, d]      a below H, b below W
//!
//! P[i, d] = x[i / V - 1, i % V - 1, d], or 0 outside                 V = W + 2: a row with its borders
//! Y[p, c] = Σ_efd w[c, d, e, f] · P[p + V·e + f, d]                  p below V·(H - 1) + W
//! y[a, b, c] = Y[V·a + b, c]
//! ```
//!
//! Sums at the borders between rows are computed for nothing. It pays where instructions take many rows at
//! once that a row of the image does not have, as tile registers do. (oneDNN's kernels for these call it
//! blocking over the output's spatial extent.)

use super::rewritten::{Rewritten, Stages, leading_sum};
use super::{
    Binary, Combiner, Condition, Element, Expr, Index, Interval, Role, Stage, TensorId, Var, Workload, typed_identity,
};

/// A convolution over images, and where its windows slide.
struct Windows<'a> {
    workload: &'a Workload,
    stage: &'a Stage,
    image: Element<'a>,
    /// Whether the image is the first factor.
    image_first: bool,
    rows: Slide,
    columns: Slide,
}

/// How windows slide over a dimension of the image.
#[derive(Clone, Copy)]
struct Slide {
    /// Of the image.
    dimension: usize,
    /// Among the axes of the results.
    axis: usize,
    /// What the index is at most and at least, over all windows.
    range: Interval,
}

impl Slide {
    fn span(&self) -> i64 {
        self.range.high - self.range.low + 1
    }
}

/// Extents of the results of one image, rows and columns, and how many results there are once all rows are
/// one; `None` where there are no such windows.
pub fn extents(workload: &Workload) -> Option<([i64; 2], i64)> {
    let windows = Windows::find(workload)?;
    Some(([windows.rows, windows.columns].map(|slide| windows.stage.extent(slide.axis)), windows.results()))
}

/// The workload with the rows of each image as one; `None` where it is no such convolution.
pub fn flat(workload: &Workload) -> Option<Rewritten> {
    let windows = Windows::find(workload)?;
    let mut made = Stages::new(workload);
    let padded = windows.pad(&mut made);
    let products = windows.products(&mut made, padded)?;
    let (extents, indices) = windows.places();
    let own = (0..extents.len()).map(|axis| Index::var(var(axis))).collect();
    let column = indices[windows.columns.axis].clone();
    let width = windows.stage.extent(windows.columns.axis);
    let conditions = Condition::within(&column, None, width);
    let outputs = made.outputs(workload, &extents, Expr::load(products, own), (&indices, &conditions));
    let (workload, product) = made.finish();
    Some(Rewritten { workload, constants: vec![], product, outputs, error_growth: 1, indices, conditions })
}

impl<'a> Windows<'a> {
    fn find(workload: &'a Workload) -> Option<Windows<'a>> {
        let stage = leading_sum(workload).filter(|stage| stage.extents.is_fixed())?;
        workload.widened_operands(stage)?;
        let [x, y] = stage.multiplied()?;
        let slides = |element: &Element<'_>| element.indices.iter().any(|index| stage.slides(index));
        let (image, other, image_first) = match [slides(&x), slides(&y)] {
            [true, false] => (x, y, true),
            [false, true] => (y, x, false),
            _ => return None,
        };
        let slide = |dimension: usize| Slide::find(stage, &image, dimension);
        let sliding: Vec<Slide> = (0..image.indices.len()).filter_map(slide).collect();
        let [rows, columns] = sliding[..] else { return None };
        // all results of an image share what is no image: there is none for sums between its rows
        let is_shared = ![rows, columns].iter().any(|slide| other.mentions(slide.axis));
        let windows = Windows { workload, stage, image, image_first, rows, columns };
        (is_shared && windows.is_such()).then_some(windows)
    }

    /// Whether all that is read of the image is what the windows cover, or lies outside of it.
    fn is_such(&self) -> bool {
        let known = self.workload.tensor(self.image.tensor);
        let borders =
            |slide: &Slide| Condition::within(&self.image.indices[slide.dimension], None, known.shape[slide.dimension]);
        let borders: Vec<Condition> = [&self.rows, &self.columns].into_iter().flat_map(borders).collect();
        let is_border = |condition: &Condition| borders.contains(condition);
        let guard = self.guard();
        let covers = |slide: &Slide| slide.range.low >= 0 && slide.range.high < known.shape[slide.dimension];
        known.extents.is_fixed()
            && self.rows.axis < self.columns.axis
            && guard.is_none_or(|(conditions, _)| conditions.iter().all(is_border))
            && (guard.is_some() || [&self.rows, &self.columns].into_iter().all(covers))
            && !self.image.indices.iter().any(Index::has_value)
    }

    /// The factor that reads the image.
    fn factor(&self) -> Option<(&'a Expr, &'a Expr)> {
        match &self.stage.value {
            Expr::Binary(Binary::Multiply, x, y) if self.image_first => Some((&**x, &**y)),
            Expr::Binary(Binary::Multiply, x, y) => Some((&**y, &**x)),
            _ => None,
        }
    }

    /// Where the image is read, and what there is outside of it.
    fn guard(&self) -> Option<(&'a [Condition], &'a Expr)> {
        let (factor, _) = self.factor()?;
        let read = if let Expr::Cast(_, inner) = factor { &**inner } else { factor };
        match read {
            Expr::Guard { conditions, outside, .. } => Some((conditions, outside)),
            _ => None,
        }
    }

    /// Results of one image, those for nothing included.
    fn results(&self) -> i64 {
        let [rows, columns] = [self.rows, self.columns].map(|slide| self.stage.extent(slide.axis));
        (rows - 1) * self.columns.span() + columns
    }

    /// The image with its borders, its rows in the place of the columns.
    fn pad(&self, made: &mut Stages) -> TensorId {
        let known = self.workload.tensor(self.image.tensor);
        let row_length = self.columns.span();
        let dimensions: Vec<usize> =
            (0..known.shape.len()).filter(|dimension| *dimension != self.rows.dimension).collect();
        let own =
            |dimension: usize| Index::var(var(dimensions.iter().position(|one| *one == dimension).unwrap_or_default()));
        let at = own(self.columns.dimension);
        let source = |dimension: usize| match dimension {
            _ if dimension == self.rows.dimension => {
                at.clone().floor_div(row_length).plus_constant(self.rows.range.low)
            }
            _ if dimension == self.columns.dimension => {
                at.clone().modulo(row_length).plus_constant(self.columns.range.low)
            }
            _ => own(dimension),
        };
        let sources: Vec<Index> = (0..known.shape.len()).map(source).collect();
        let borders = [self.rows, self.columns].map(|slide| slide.dimension);
        let conditions = borders
            .into_iter()
            .flat_map(|dimension| Condition::within(&sources[dimension], None, known.shape[dimension]))
            .collect();
        let outside = match self.guard() {
            Some((_, outside)) => outside.clone(),
            None => typed_identity(Combiner::Sum, known.dtype),
        };
        let extents: Vec<Index> = dimensions
            .iter()
            .map(|dimension| match *dimension == self.columns.dimension {
                true => Index::constant(self.rows.span() * row_length),
                false => Index::constant(known.shape[*dimension]),
            })
            .collect();
        let value = Expr::guard(conditions, Expr::load(self.image.tensor, sources.clone()), outside);
        made.map((Role::Intermediate, known.dtype), &extents, value)
    }

    /// Where an axis of the original is among those of the products: that of rows is none of them.
    fn moved(&self, axis: usize) -> usize {
        axis - usize::from(axis > self.rows.axis)
    }

    fn products(&self, made: &mut Stages, padded: TensorId) -> Option<TensorId> {
        let moved = |read: Var| read.as_parameter().is_none().then(|| Index::var(var(self.moved(read.0 as usize))));
        // in all rows at once, an axis of rows moves by whole rows
        let place = |slide: Slide| {
            let index = &self.image.indices[slide.dimension];
            let index = index.clone().plus_constant(-slide.range.low);
            index.substitute(&|read| match read.0 as usize {
                axis if axis == self.rows.axis => Some(Index::constant(0)),
                _ => moved(read),
            })
        };
        let flat = place(self.rows).times(self.columns.span()).plus(&place(self.columns));
        let index = |(dimension, index): (usize, &Index)| match dimension {
            _ if dimension == self.rows.dimension => None,
            _ if dimension == self.columns.dimension => Some(flat.clone()),
            _ => Some(index.substitute(&moved)),
        };
        let read = Expr::load(padded, self.image.indices.iter().enumerate().filter_map(index).collect());
        let (image, other) = self.factor()?;
        let image = if let Expr::Cast(dtype, _) = image { Expr::Cast(*dtype, Box::new(read)) } else { read };
        let other = other.substitute(&moved);
        let (x, y) = if self.image_first { (image, other) } else { (other, image) };
        let value = Expr::Binary(Binary::Multiply, Box::new(x), Box::new(y));
        let extent = |axis: usize| match axis {
            _ if axis == self.rows.axis => None,
            _ if axis == self.columns.axis => Some(self.results()),
            _ => Some(self.stage.extent(axis)),
        };
        let extents: Vec<i64> = (0..self.stage.rank()).filter_map(extent).collect();
        let formulas: Vec<Index> = extents.iter().map(|extent| Index::constant(*extent)).collect();
        let (spatial, reduction) = extents.split_at(self.stage.spatial.len() - 1);
        let dtype = self.workload.tensor(self.stage.output).dtype;
        let reduce = |output| Stage::reduce(output, spatial.to_vec(), reduction.to_vec(), Combiner::Sum, value);
        Some(made.append((Role::Intermediate, dtype), &formulas, reduce))
    }

    /// The axes of results, and where each is among those of the original.
    fn places(&self) -> (Vec<Index>, Vec<Index>) {
        let flat = Index::var(var(self.moved(self.columns.axis)));
        let spatial = 0..self.stage.spatial.len();
        let place = |axis: usize| match axis {
            _ if axis == self.rows.axis => flat.clone().floor_div(self.columns.span()),
            _ if axis == self.columns.axis => flat.clone().modulo(self.columns.span()),
            _ => Index::var(var(self.moved(axis))),
        };
        let extent = |axis: usize| match axis {
            _ if axis == self.rows.axis => None,
            _ if axis == self.columns.axis => Some(Index::constant(self.results())),
            _ => Some(Index::constant(self.stage.extent(axis))),
        };
        (spatial.clone().filter_map(extent).collect(), spatial.map(place).collect())
    }
}

impl Slide {
    /// How windows slide over a dimension, one element further for the next result.
    fn find(stage: &Stage, image: &Element<'_>, dimension: usize) -> Option<Slide> {
        let index = &image.indices[dimension];
        if !stage.slides(index) || !index.is_affine() {
            return None;
        }
        let spatial: Vec<usize> = (0..stage.spatial.len()).filter(|axis| index.mentions(var(*axis))).collect();
        let [axis] = spatial[..] else { return None };
        let others = image.indices.iter().enumerate().filter(|(at, _)| *at != dimension);
        let is_alone = others.into_iter().all(|(_, other)| !other.mentions(var(axis)));
        let forwards = (stage.spatial.len()..stage.rank()).all(|axis| index.coefficient(var(axis)) >= 0);
        let range = index.range(&|read| Interval::below(stage.extent(read.0 as usize)))?;
        (is_alone && forwards && index.coefficient(var(axis)) == 1).then_some(Slide { dimension, axis, range })
    }
}

fn var(axis: usize) -> Var {
    Var(axis as u32)
}

#[cfg(test)]
mod tests {
    use super::{extents, flat};
    use crate::workload::Workload;

    fn parsed(text: &str) -> Workload {
        text.parse().unwrap_or_else(|error| panic!("{error}\n{text}"))
    }

    #[test]
    fn rows_with_their_borders_become_one() {
        let workload = parsed(
            "const t0 bf16 32 64 3 3\ninput t1 bf16 7 9 64\nlet t2 7 9 32 sum 64 3 3 mul cast f32 t0 c d e f cast f32 \
             pad cast bf16 0.0 t1 ? + a + e -1 ? + b + f -1 d\nout t3 7 9 32 max 0.0 t2 a b c\n",
        );
        assert_eq!(extents(&workload), Some(([7, 9], 6 * 11 + 9)));
        let rewritten = flat(&workload).unwrap();
        let product = &rewritten.workload.stages[rewritten.product];
        assert_eq!((&product.spatial[..], &product.reduction[..]), (&[75, 32][..], &[64, 3, 3][..]));
        // of the padded image: 9 rows of 11
        assert_eq!(rewritten.workload.stages[0].spatial, [99, 64]);
        let text = rewritten.workload.to_string();
        assert!(text.contains("* 11 d"), "{text}");
    }

    #[test]
    fn what_does_not_slide_by_one_over_two_dimensions_is_left_alone() {
        let strided = "const t0 bf16 8 4 3 3\ninput t1 bf16 9 9 4\nout t2 4 4 8 sum 4 3 3 \
            mul cast f32 t0 c d e f cast f32 t1 + * 2 a e + * 2 b f d\n";
        let row =
            "const t0 bf16 8 4 3\ninput t1 bf16 9 4\nout t2 7 8 sum 4 3 mul cast f32 t0 b c d cast f32 t1 + a d c\n";
        let long = "const t0 8 4 3 3\ninput t1 9 9 4\nout t2 7 7 8 sum 4 3 3 mul t0 c d e f t1 + a e + b f d\n";
        // weights of their own for each place
        let local = "const t0 bf16 7 7 8 4 3 3\ninput t1 bf16 9 9 4\nout t2 7 7 8 sum 4 3 3 \
            mul cast f32 t0 a b c d e f cast f32 t1 + a e + b f d\n";
        for text in [strided, row, long, local] {
            assert_eq!(extents(&parsed(text)), None, "{text}");
        }
    }
}
