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
        digest(&canonical(self).workload)
    }

    /// Whether a hash names this workload: that of its canonical form or, since earlier versions simplified
    /// less, of itself, as a record of such a version spells it.
    pub fn is_named(&self, hash: &str) -> bool {
        self.hash() == hash || digest(self) == hash
    }
}

/// The first 32 hexadecimal digits of the SHA-256 of a workload's text.
fn digest(workload: &Workload) -> String {
    let digest = Sha256::digest(workload.to_string().as_bytes());
    digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::{Workload, canonical, digest};

    #[test]
    fn a_window_stays_in_its_block_and_hashes_of_before_are_read() {
        // channels are shuffled, and convolved by twos: rows, columns and blocks are one address
        let shuffled: Workload =
            "const t0 96 3 3\ninput t1 96 13 13\nout t2 48 2 7 7 sum 3 3 mul t0 + * 2 a b e f pad 0.0 \
            t1 + a + * 48 b + / + * 169 b + * 26 c + * 2 d + * 13 e + f 324 338 -1 ? + * 2 c + e -1 ? + * 2 d + f -1\n"
                .parse()
                .unwrap();
        let simple = canonical(&shuffled).workload;
        assert!(simple.to_string().contains("pad 0.0 t1 + a * 48 b ? + * 2 c + e -1"), "{simple}");
        // until 0.3 this was canonical, and records say so
        let [now, before] = [digest(&simple), digest(&shuffled)];
        assert!(shuffled.is_named(&now) && shuffled.is_named(&before) && now != before);
        assert!(simple.is_named(&now) && !simple.is_named(&before));
    }
}
