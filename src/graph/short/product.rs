//! Sums of products of what the network computes and what it knows.

use crate::graph::Program;
use crate::target::TILE_LANES;
use crate::workload::{Element, Index, Stage};

/// Steps of products of bf16 that one instruction for vectors takes, and one for tiles.
pub const PAIR: i64 = 2;
pub const STEPS_OF_TILE: i64 = PAIR * TILE_LANES;

/// The weight, which is a constant, and the other operand of a sum of products by a weight.
pub fn by_weight<'a>(program: &Program, stage: &'a Stage) -> Option<[Element<'a>; 2]> {
    let [x, y] = multiplied(stage)?;
    match [&x, &y].map(|element| is_constant(program, element)) {
        [true, false] => Some([x, y]),
        [false, true] => Some([y, x]),
        _ => None,
    }
}

/// The operands of a sum of products of two activations.
pub fn of_activations<'a>(program: &Program, stage: &'a Stage) -> Option<[Element<'a>; 2]> {
    multiplied(stage).filter(|operands| !operands.iter().any(|element| is_constant(program, element)))
}

fn multiplied(stage: &Stage) -> Option<[Element<'_>; 2]> {
    let is_gathered = |element: &Element| element.indices.iter().any(Index::has_value);
    stage.multiplied().filter(|operands| !operands.iter().any(is_gathered))
}

fn is_constant(program: &Program, element: &Element) -> bool {
    program.data[element.tensor.0 as usize].is_some()
}
