//! Sums of products, as stages write them, and which of them processors have instructions for.

use super::{Binary, Combiner, DType, Expr, Index, Stage, TensorId, Var, Workload};

/// An element of a tensor that is read as it is: widened at most, and inside of a border of literals at most.
#[derive(Clone, Copy, Debug)]
pub struct Element<'a> {
    pub tensor: TensorId,
    pub indices: &'a [Index],
    pub widened_to: Option<DType>,
    /// Whether it is read only where the conditions of a border hold.
    pub is_guarded: bool,
}

/// Steps of a sum of products of such operands that one instruction takes, on some processors, and the type
/// of the sum; `None` where there is no such instruction.
pub fn dot_steps(operands: [DType; 2]) -> Option<(i64, DType)> {
    let is_byte = |dtype: DType| matches!(dtype, DType::U8 | DType::I8);
    match operands {
        [DType::BF16, DType::BF16] => Some((2, DType::F32)),
        both if both.into_iter().all(is_byte) => Some((4, DType::I32)),
        _ => None,
    }
}

impl Expr {
    /// The element that it is.
    pub fn as_element(&self) -> Option<Element<'_>> {
        let (inner, widened_to) = if let Expr::Cast(to, inner) = self { (&**inner, Some(*to)) } else { (self, None) };
        let (read, is_guarded) = match inner {
            Expr::Guard { inside, outside, .. } if outside.is_plain() => (&**inside, true),
            other => (other, false),
        };
        let Expr::Load { tensor, indices } = read else { return None };
        Some(Element { tensor: *tensor, indices, widened_to, is_guarded })
    }
}

impl Element<'_> {
    /// Whether it moves with an axis of its stage.
    pub fn mentions(&self, axis: usize) -> bool {
        self.indices.iter().any(|index| index.mentions(Var(axis as u32)))
    }
}

impl Stage {
    /// What it multiplies, if it sums products of two elements.
    pub fn multiplied(&self) -> Option<[Element<'_>; 2]> {
        match (self.combiner, &self.value) {
            (Some(Combiner::Sum), Expr::Binary(Binary::Multiply, x, y)) => Some([x.as_element()?, y.as_element()?]),
            _ => None,
        }
    }

    /// Whether an index moves with results and with the steps of each: it slides over its dimension.
    pub fn slides(&self, index: &Index) -> bool {
        let mentions = |mut axes: std::ops::Range<usize>| axes.any(|axis| index.mentions(Var(axis as u32)));
        let spatial = self.spatial.len();
        mentions(0..spatial) && mentions(spatial..self.rank())
    }
}

impl Workload {
    /// The types of what a stage multiplies and widens to the type of its sum; `None` where it does something
    /// else.
    pub fn widened_operands(&self, stage: &Stage) -> Option<[DType; 2]> {
        let sum = self.tensor(stage.output).dtype;
        let multiplied = stage.multiplied()?;
        let is_widened = multiplied.iter().all(|element| element.widened_to == Some(sum));
        is_widened.then(|| multiplied.map(|element| self.tensor(element.tensor).dtype))
    }
}
