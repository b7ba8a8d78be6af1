//! Channels last: what an instruction takes several steps of at once lies side by side, without a copy.
//!
//! ONNX keeps images as `[n, c, h, w]`; a convolution adds up over `c`, whose steps are then far apart. Where
//! a convolution multiplies short numbers, what it reads and writes becomes `[n, h, w, c]`, and so does
//! whatever goes through stages that leave the channels what they are: element-wise ones, pooling, borders,
//! resizing. Inputs and outputs of the network stay what they are.

use std::collections::BTreeMap;

use super::free_tensors;
use super::product::by_weight;
use crate::graph::Program;
use crate::workload::{Index, Stage, TensorId, Var, dot_steps};

/// Where the channels of a tensor are: dimensions `1..1 + count`.
type Channels = usize;

/// Puts the channels of what convolutions of short numbers read and write behind the other dimensions.
pub fn put_last(program: &mut Program) {
    let moved = spread(program, convolved(program));
    if moved.is_empty() {
        return;
    }
    for step in &mut program.steps {
        if let Some(held) = step.stage_mut() {
            rearrange(&mut held.stage, &moved);
        }
    }
    for (tensor, channels) in moved {
        let about = &mut program.tensors[tensor.0 as usize];
        let order = order(about.shape.len(), channels);
        about.extents = about.extents.moved(|dimension| order.iter().position(|old| *old == dimension));
        about.shape = order.iter().map(|old| about.shape[*old]).collect();
    }
}

/// Which of the old dimensions is at each place.
fn order(rank: usize, channels: Channels) -> Vec<usize> {
    std::iter::once(0).chain(1 + channels..rank).chain(1..1 + channels).collect()
}

/// What convolutions of short numbers read and write.
fn convolved(program: &Program) -> Vec<(TensorId, Channels)> {
    let mut found = Vec::new();
    for stage in program.stages().map(|held| &held.stage) {
        let Some([weight, image]) = by_weight(program, stage) else { continue };
        let channels = (1..stage.spatial.len()).take_while(|axis| weight.mentions(*axis)).count();
        let others = 1 + channels..stage.spatial.len();
        let is_convolution = channels > 0
            && !others.is_empty()
            && !others.clone().chain([0]).any(|axis| weight.mentions(axis))
            && image.indices.len() == 2 + others.len();
        let types = [weight, image].map(|operand| program.tensor(operand.tensor).dtype);
        let Some((steps, _)) = dot_steps(types).filter(|_| is_convolution) else { continue };
        // what an instruction takes at once
        let is_group = |axis: usize| image.indices[1].mentions(Var(axis as u32)) && stage.extent(axis) % steps == 0;
        if (stage.spatial.len()..stage.rank()).any(is_group) {
            found.extend([(image.tensor, 1), (stage.output, channels)]);
        }
    }
    found
}

/// These tensors, and those that they reach through stages that leave channels what they are.
fn spread(program: &Program, seeds: Vec<(TensorId, Channels)>) -> BTreeMap<TensorId, Channels> {
    let free = free_tensors(program);
    let mut moved: BTreeMap<TensorId, Channels> =
        seeds.into_iter().filter(|(tensor, _)| free.contains(tensor)).collect();
    loop {
        let before = moved.len();
        for stage in program.stages().map(|held| &held.stage) {
            stage.value.for_each_load(&mut |tensor, indices| match (
                moved.get(&stage.output).copied(),
                moved.get(&tensor).copied(),
            ) {
                (Some(own), None) if free.contains(&tensor) => {
                    let kept = (1..indices.len().saturating_sub(1)).find(|read| keeps(stage, own, indices, *read));
                    moved.extend(kept.map(|read| (tensor, read)));
                }
                (None, Some(read)) if free.contains(&stage.output) => {
                    let ranks = 1..stage.spatial.len().saturating_sub(1);
                    moved.extend(
                        ranks.clone().find(|own| keeps(stage, *own, indices, read)).map(|own| (stage.output, own)),
                    );
                }
                _ => {}
            });
        }
        if moved.len() == before {
            return moved;
        }
    }
}

/// Whether a stage whose result has so many dimensions of channels reads an operand's channels by its own
/// alone, and the rest without them.
fn keeps(stage: &Stage, own: Channels, indices: &[Index], read: Channels) -> bool {
    let is_channel = |axis: usize| (1..1 + own).contains(&axis);
    let axes = || 0..stage.rank();
    let mut of_channels = indices.iter().skip(1).take(read);
    let mut others = indices.iter().take(1).chain(indices.iter().skip(1 + read));
    let by_channels = |index: &Index| axes().all(|axis| is_channel(axis) || !index.mentions(Var(axis as u32)));
    let moves = |index: &Index| axes().any(|axis| is_channel(axis) && index.mentions(Var(axis as u32)));
    of_channels.clone().all(by_channels) && of_channels.any(moves) && !others.any(moves)
}

/// The stage over the axes of its result, reading what was rearranged where it is now.
fn rearrange(stage: &mut Stage, moved: &BTreeMap<TensorId, Channels>) {
    if let Some(channels) = moved.get(&stage.output) {
        let spatial = stage.spatial.len();
        let order = order(spatial, *channels);
        let place = |axis: usize| order.iter().position(|old| *old == axis).unwrap_or(axis);
        let places: Vec<Index> = (0..spatial).map(|axis| Index::var(Var(place(axis) as u32))).collect();
        stage.value = stage.value.substitute(&|var| {
            let axis = var.as_parameter().is_none().then_some(var.0 as usize)?;
            places.get(axis).cloned()
        });
        stage.extents = stage.extents.moved(|axis| Some(if axis < spatial { place(axis) } else { axis }));
        stage.spatial = order.iter().map(|old| stage.spatial[*old]).collect();
    }
    stage.value.for_each_load_mut(&mut |tensor, indices| {
        if let Some(channels) = moved.get(&tensor) {
            let old = std::mem::take(indices);
            *indices = order(old.len(), *channels).into_iter().map(|dimension| old[dimension].clone()).collect();
        }
    });
}
