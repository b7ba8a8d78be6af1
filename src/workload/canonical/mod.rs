//! The canonical form: computations that are equal up to names, shapes and redundancy become one workload,
//! and one text.
//!
//! The elements of arguments and outputs stay where they are in memory; only the shapes through which
//! row-major tensors are viewed change. Results stay equal to the bit: reductions keep their order, and only
//! exact rewrites of expressions apply.

mod order;
mod simplify;
mod views;

use sha2::{Digest, Sha256};

use super::{Stage, TensorId, Workload};

/// Rounds after which the passes have settled; each of them removes something.
const MAX_ROUNDS: usize = 64;

/// A workload in canonical form, and where its tensors came from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Canonical {
    pub workload: Workload,
    /// By old id: the new one. `None` for tensors that no output depends on.
    pub tensors: Vec<Option<TensorId>>,
    /// By old number: the new one. `None` for parameters that nothing depends on.
    pub parameters: Vec<Option<usize>>,
}

/// Brings a valid workload into canonical form: indices and expressions simplified, axes of extent 1 removed,
/// axes split where they are read in parts, and merged where they are read as one; unused tensors dropped;
/// arguments numbered by first use, then the others in the order in which they are written. An invalid
/// workload is returned as it is.
pub fn canonical(workload: &Workload) -> Canonical {
    let mut tensors: Vec<Option<TensorId>> = workload.ids().map(|(id, _)| Some(id)).collect();
    let mut parameters: Vec<Option<usize>> = (0..workload.parameters.len()).map(Some).collect();
    let mut current = workload.clone();
    if workload.validate().is_err() {
        return Canonical { workload: current, tensors, parameters };
    }
    for _ in 0..MAX_ROUNDS {
        let viewed = views::trim(views::merge(views::split(views::drop_unit_axes(simplify::simplify(&current)))));
        let ordered = order::order(&viewed);
        for id in &mut tensors {
            *id = id.and_then(|id| ordered.tensors[id.0 as usize]);
        }
        for number in &mut parameters {
            *number = number.and_then(|number| ordered.parameters[number]);
        }
        let settled = ordered.workload == current;
        current = ordered.workload;
        if settled {
            break;
        }
    }
    Canonical { workload: current, tensors, parameters }
}

impl Workload {
    /// The workload where its parameters have these values, simplified as fixed ones are and without the axes
    /// of extent 1 that this leaves; and, by stage, which axes are left.
    #[must_use]
    pub fn plain_at(&self, values: &[i64]) -> (Workload, Vec<Vec<usize>>) {
        let fixed = simplify::simplify(&self.at(values));
        let left = |stage: &Stage| {
            let units = views::unit_axes(stage, &fixed.tensors);
            (0..stage.rank()).filter(|axis| !units[*axis]).collect()
        };
        let axes = fixed.stages.iter().map(left).collect();
        (simplify::simplify(&views::drop_unit_axes(fixed)), axes)
    }

    /// The first 32 hexadecimal digits of the SHA-256 of the canonical text: the same for equal computations.
    pub fn hash(&self) -> String {
        let digest = Sha256::digest(canonical(self).workload.to_string().as_bytes());
        digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
    }
}
