//! Convolutions over images of few channels, as the three of a photograph: an instruction for tiles adds up
//! 64 bytes of steps, of which neither so few channels nor a row of a window has enough. Where the channels
//! of a column lie side by side, a row of a window has, with all of its channels:
//!
//! ```text
//! y[f, h, w] = Σ_cij k[f, c, i, j] · x[c, h + i, 2·w + j]             c < 3, j < 7
//! =>
//! X[h, g] = x[g % 4, h, g / 4], or 0 where g % 4 = 3
//! y[f, h, w] = Σ_ig K[f, i, g] · X[h + i, 8·w + g]                    K[f, i, 4·j + c] = k[f, c, i, j]
//! ```

use super::product::by_weight;
use crate::graph::{Program, ProgramStage, Step, TensorData};
use crate::workload::{
    Combiner, Condition, Element, Expr, Index, Role, Stage, TensorId, Var, dot_steps, typed_identity,
};

/// Channels of an image that are few, and not a single one.
const FEW: std::ops::RangeInclusive<i64> = 2..=4;

/// Lays the channels of images side by side, for all convolutions over few of them.
pub fn lay_side_by_side(program: &mut Program) {
    let mut at = 0;
    while at < program.steps.len() {
        let found = program.steps[at].stage().and_then(|held| Convolution::find(program, &held.stage));
        if let Some(found) = found {
            at += found.rewrite(program, at);
        }
        at += 1;
    }
}

/// A convolution over an image of few channels.
struct Convolution {
    weight: TensorId,
    image: TensorId,
    /// What is read of both.
    weight_indices: Vec<Index>,
    image_indices: Vec<Index>,
    /// Axes of the sum: channels, and columns of the window.
    channel: usize,
    column: usize,
    /// Dimensions of the image and of the weight that are of channels, and of the weight's columns.
    image_channel: usize,
    weight_channel: usize,
    weight_column: usize,
    channels: i64,
    /// Side by side, those that there are not included.
    laid: i64,
    window: i64,
}

impl Convolution {
    fn find(program: &Program, stage: &Stage) -> Option<Convolution> {
        let [weight, image] = by_weight(program, stage)?;
        let (steps, _) = dot_steps([weight, image].map(|operand| program.tensor(operand.tensor).dtype))?;
        let about = program.tensor(image.tensor);
        let last = image.indices.last().filter(|last| stage.slides(last))?;
        let reduced = || stage.spatial.len()..stage.rank();
        let column = reduced().find(|axis| last.coefficient(var(*axis)) == 1)?;
        let is_channel = |axis: &usize| image.indices.iter().any(|index| index.as_var() == Some(var(*axis)));
        let channel = reduced().find(is_channel)?;
        let dimension_of = |operand: &Element<'_>, axis: usize| {
            let mut dimensions = (0..operand.indices.len()).filter(|at| operand.indices[*at].mentions(var(axis)));
            let (only, next) = (dimensions.next()?, dimensions.next());
            (next.is_none() && operand.indices[only].as_var() == Some(var(axis))).then_some(only)
        };
        let image_channel = dimension_of(&image, channel)?;
        let (weight_channel, weight_column) = (dimension_of(&weight, channel)?, dimension_of(&weight, column)?);
        let channels = stage.extent(channel);
        let before = &image.indices[..image.indices.len() - 1];
        let width = image.indices.len() - 1;
        let fits = last.is_affine()
            && !last.mentions(var(channel))
            && !before.iter().any(|index| index.mentions(var(column)))
            && FEW.contains(&channels)
            && channels == about.shape[image_channel]
            && [channel, column].into_iter().all(|axis| stage.extents.get(axis).is_none())
            && [image_channel, width].into_iter().all(|dimension| about.extents.get(dimension).is_none())
            && !weight.is_guarded;
        let laid = (channels.unsigned_abs().next_power_of_two() as i64).max(steps);
        let found = Convolution {
            weight: weight.tensor,
            image: image.tensor,
            weight_indices: weight.indices.to_vec(),
            image_indices: image.indices.to_vec(),
            channel,
            column,
            image_channel,
            weight_channel,
            weight_column,
            channels,
            laid,
            window: stage.extent(column),
        };
        (fits && found.is_bordered(&stage.value)).then_some(found)
    }

    /// Whether conditions around the image are about its rows and columns alone, those about columns whole.
    fn is_bordered(&self, value: &Expr) -> bool {
        let is_own = |condition: &Condition| {
            let index = &condition.index;
            let moves = [self.channel, self.column].into_iter().any(|axis| index.mentions(var(axis)));
            !moves || Some(index) == self.image_indices.last()
        };
        match value {
            Expr::Guard { conditions, .. } => conditions.iter().all(is_own),
            other => other.children().all(|child| self.is_bordered(child)),
        }
    }

    /// How many steps came before the one that is rewritten.
    fn rewrite(&self, program: &mut Program, at: usize) -> usize {
        let Some(data) = program.data[self.weight.0 as usize].clone() else { return 0 };
        let weight = program.add_constant(self.laid_weight(&data));
        let (image, before) = self.laid_image(program);
        let Some(held) = program.steps[at].stage_mut() else { return 0 };
        let (node, spatial) = (held.node.clone(), held.stage.spatial.len());
        let stage = &mut held.stage;
        stage.value = self.operand(&stage.value, weight, image);
        stage.reduction[self.column - spatial] = self.window * self.laid;
        stage.reduction.remove(self.channel - spatial);
        stage.extents =
            stage.extents.moved(|axis| (axis != self.channel).then(|| axis - usize::from(axis > self.channel)));
        program.steps.insert(at, Step::Stage(ProgramStage { stage: before, node }));
        1
    }

    /// The weight with rows of all channels, in its own order of dimensions.
    fn laid_weight(&self, data: &TensorData) -> TensorData {
        let mut shape = data.shape.clone();
        shape[self.weight_column] = self.window * self.laid;
        shape.remove(self.weight_channel);
        let size = data.dtype.bytes();
        let elements: i64 = shape.iter().product();
        let mut bytes = Vec::with_capacity(elements as usize * size);
        let mut place = vec![0; data.shape.len()];
        for element in 0..elements {
            let mut rest = element;
            for dimension in (0..place.len()).rev().filter(|dimension| *dimension != self.weight_channel) {
                let of_new = dimension - usize::from(dimension > self.weight_channel);
                place[dimension] = rest % shape[of_new];
                rest /= shape[of_new];
            }
            place[self.weight_channel] = place[self.weight_column] % self.laid;
            place[self.weight_column] /= self.laid;
            let from = place.iter().zip(&data.shape).fold(0, |flat, (at, extent)| flat * extent + at) as usize * size;
            match place[self.weight_channel] < self.channels {
                true => bytes.extend_from_slice(&data.bytes[from..from + size]),
                false => bytes.resize(bytes.len() + size, 0),
            }
        }
        TensorData { shape, dtype: data.dtype, bytes: bytes.into() }
    }

    /// The image with its channels side by side in its rows, and the stage that writes it.
    fn laid_image(&self, program: &mut Program) -> (TensorId, Stage) {
        let about = program.tensor(self.image).clone();
        let rank = about.shape.len();
        let kept: Vec<usize> = (0..rank).filter(|dimension| *dimension != self.image_channel).collect();
        let extents = about.extents.moved(|dimension| kept.iter().position(|own| *own == dimension));
        let mut shape: Vec<i64> = kept.iter().map(|dimension| about.shape[*dimension]).collect();
        let in_row = Index::var(var(shape.len() - 1));
        if let Some(width) = shape.last_mut() {
            *width *= self.laid;
        }
        let channel = in_row.clone().modulo(self.laid);
        let source = |dimension: usize| match kept.iter().position(|own| *own == dimension) {
            _ if dimension + 1 == rank => in_row.clone().floor_div(self.laid),
            Some(axis) => Index::var(var(axis)),
            None => channel.clone(),
        };
        let there = Condition { index: channel.clone(), low: 0, high: self.channels };
        let zero = typed_identity(Combiner::Sum, about.dtype);
        let value = Expr::guard(vec![there], Expr::load(self.image, (0..rank).map(source).collect()), zero);
        let tensor = program.add_tensor(shape.clone(), about.dtype, Role::Intermediate);
        program.tensors[tensor.0 as usize].extents = extents.clone();
        (tensor, Stage { extents, ..Stage::map(tensor, shape, value) })
    }

    /// An index over the axes of the stage without that of channels.
    fn moved(&self, index: &Index) -> Index {
        index.substitute(&|read| {
            let axis = read.as_parameter().is_none().then_some(read.0 as usize)?;
            Some(Index::var(var(axis - usize::from(axis > self.channel))))
        })
    }

    /// An index of columns, in elements of a row of all channels.
    fn in_row(&self, index: &Index) -> Index {
        let window = Index::var(var(self.column));
        let others = index.clone().minus(&window);
        self.moved(&others.times(self.laid).plus(&window))
    }

    fn operand(&self, value: &Expr, weight: TensorId, image: TensorId) -> Expr {
        let changed = |inner: &Expr| Box::new(self.operand(inner, weight, image));
        match value {
            Expr::Binary(op, x, y) => Expr::Binary(*op, changed(x), changed(y)),
            Expr::Cast(to, inner) => Expr::Cast(*to, changed(inner)),
            Expr::Guard { conditions, inside, outside } => {
                let own = |condition: &Condition| match Some(&condition.index) == self.image_indices.last() {
                    true => Condition {
                        index: self.in_row(&condition.index),
                        low: condition.low.saturating_mul(self.laid),
                        high: condition.high.saturating_mul(self.laid),
                    },
                    false => Condition { index: self.moved(&condition.index), ..condition.clone() },
                };
                Expr::guard(conditions.iter().map(own).collect(), *changed(inside), (**outside).clone())
            }
            Expr::Load { tensor, .. } if *tensor == self.weight => {
                let kept = (0..self.weight_indices.len()).filter(|dimension| *dimension != self.weight_channel);
                Expr::load(weight, kept.map(|dimension| self.moved(&self.weight_indices[dimension])).collect())
            }
            Expr::Load { .. } => {
                let kept = (0..self.image_indices.len()).filter(|dimension| *dimension != self.image_channel);
                let last = self.image_indices.len() - 1;
                let index = |dimension: usize| match dimension == last {
                    true => self.in_row(&self.image_indices[dimension]),
                    false => self.moved(&self.image_indices[dimension]),
                };
                Expr::load(image, kept.map(index).collect())
            }
            other => other.clone(),
        }
    }
}

fn var(axis: usize) -> Var {
    Var(axis as u32)
}
