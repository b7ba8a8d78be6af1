//! Sums of products in shorter numbers than f32, which processors multiply two to four times as many of in
//! the same time: passes from program to program, between import and fusion.
//!
//! In any case:
//!
//! - [`factors`]: literal factors of what is summed are multiplied behind the sums.
//!
//! Where the network is quantised to 8 bits, they keep its meaning, up to the order in which f32 are added:
//!
//! - [`integer_store`]: quantised activations are stored as u8, which is what processors multiply by i8.
//! - [`integer_again`]: what is quantised as it was before keeps its integers.
//! - [`integer`]: sums of dequantised products become sums of integers, scaled behind.
//! - [`integer_products`]: where both factors are activations, these are whole numbers of 16 bits.
//!
//! Where [`Precision::Bf16`] is asked for:
//!
//! - [`lengthened`]: attention gets as many keys as fill tiles.
//! - [`rounded`]: what products read is rounded to bf16.
//! - [`moved`]: so are the parts of what is concatenated for them.
//!
//! And so that instructions find what they take at once side by side:
//!
//! - [`steps`]: sums get as many steps as make whole groups.
//! - [`channels`]: channels of images come last.
//! - [`few_channels`]: where they are few, a row of a window has them side by side.

mod channels;
mod factors;
mod few_channels;
mod integer;
mod integer_again;
mod integer_constants;
mod integer_factor;
mod integer_products;
mod integer_store;
mod lengthened;
mod moved;
mod product;
mod rounded;
mod steps;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};

use tilescribe_runtime::Precision;

use super::fold::remove_dead;
use super::{Program, ProgramStage, Step};
use crate::workload::{Role, Stage, TensorId};

/// Which products are computed in bf16, where that is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Products {
    /// Those by weights.
    ByWeights,
    /// Those of activations, too, of which every element is used often, as in attention: both have to be
    /// rounded, and copied, which only instructions for tiles make up for. They are for machines that have
    /// these.
    All,
}

/// Element-wise stages by the tensor that they write, as far as the program was gone through.
type Maps = HashMap<TensorId, Stage>;

/// Gives the stages that compute what one does, or `None` to leave it as it is.
type Change<'a> = &'a mut dyn FnMut(&mut Program, &Maps, &Stage) -> Option<Vec<Stage>>;

impl Program {
    /// Computes products in short numbers: those that the network gives in short numbers, and the others as
    /// far as the precision allows it. To be called once, between import and [`partition`](super::partition).
    pub fn shorten(&mut self, precision: Precision, products: Products) {
        let changes = [integer_store::unsigned(self), integer_again::unchanged(self), integer::sums(self)];
        if changes.contains(&true) {
            remove_dead(self);
            integer_products::in_sixteen_bits(self);
        }
        factors::move_behind(self);
        self.precision = precision;
        if precision == Precision::Bf16 {
            if products == Products::All {
                lengthened::complete(self);
            }
            rounded::round_products(self, products);
        }
        if products == Products::All {
            few_channels::lay_side_by_side(self);
        }
        steps::complete(self);
        channels::put_last(self);
        remove_dead(self);
    }

    /// Puts other stages in the place of those for which `change` gives some, in every block; whether it gave
    /// any. It is told the element-wise stages before.
    fn replace_stages(&mut self, change: Change<'_>) -> bool {
        let steps = std::mem::take(&mut self.steps);
        let mut replacing = Replacing { program: self, change, maps: Maps::new(), changes: false };
        let steps = replacing.block(steps);
        let changes = replacing.changes;
        self.steps = steps;
        changes
    }
}

struct Replacing<'a> {
    program: &'a mut Program,
    change: Change<'a>,
    maps: Maps,
    changes: bool,
}

impl Replacing<'_> {
    fn block(&mut self, steps: Vec<Step>) -> Vec<Step> {
        let mut changed = Vec::with_capacity(steps.len());
        for mut step in steps {
            let Step::Stage(ProgramStage { stage, node }) = &step else {
                step.blocks_mut().into_iter().for_each(|block| *block = self.block(std::mem::take(block)));
                changed.push(step);
                continue;
            };
            let stages = (self.change)(self.program, &self.maps, stage);
            self.changes |= stages.is_some();
            let stages = stages.unwrap_or_else(|| vec![stage.clone()]);
            for stage in stages {
                if !stage.is_reduction() {
                    self.maps.insert(stage.output, stage.clone());
                }
                changed.push(Step::Stage(ProgramStage { stage, node: node.clone() }));
            }
        }
        changed
    }
}

/// Visits the stages of all blocks.
fn for_each_stage(steps: &[Step], visit: &mut dyn FnMut(&Stage)) {
    for step in steps {
        if let Step::Stage(held) = step {
            visit(&held.stage);
        }
        step.blocks().into_iter().for_each(|block| for_each_stage(block, visit));
    }
}

/// The same, to change them.
fn for_each_stage_mut(steps: &mut [Step], visit: &mut dyn FnMut(&mut Stage)) {
    for step in steps {
        if let Step::Stage(held) = step {
            visit(&mut held.stage);
        }
        step.blocks_mut().into_iter().for_each(|block| for_each_stage_mut(block, visit));
    }
}

/// The tensors that nobody but stages knows, none of them inside of another step.
fn free_tensors(program: &Program) -> BTreeSet<TensorId> {
    let mut free: BTreeSet<TensorId> = program.stages().map(|held| held.stage.output).collect();
    free.retain(|tensor| program.tensor(*tensor).role == Role::Intermediate);
    for step in program.steps.iter().filter(|step| step.stage().is_none()) {
        step.reads().iter().chain(&step.outputs()).for_each(|tensor| {
            free.remove(tensor);
        });
    }
    free
}
