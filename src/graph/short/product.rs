//! Sums of products of what the network computes and what it knows.

use crate::graph::Program;
use crate::workload::{Element, Index, Stage};

/// The weight, which is a constant, and the other operand of a sum of products by a weight.
pub fn by_weight<'a>(program: &Program, stage: &'a Stage) -> Option<[Element<'a>; 2]> {
    let [x, y] = stage.multiplied()?;
    let is_gathered = |element: &Element| element.indices.iter().any(Index::has_value);
    if is_gathered(&x) || is_gathered(&y) {
        return None;
    }
    match [x, y].map(|element| program.data[element.tensor.0 as usize].is_some()) {
        [true, false] => Some([x, y]),
        [false, true] => Some([y, x]),
        _ => None,
    }
}
