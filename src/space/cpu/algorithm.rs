//! Which algorithm computes the task: as it is written, or a convolution by Winograd's.

use crate::space::{Rule, Step, Stop, Tape, View, Words, name, site};
use crate::target::Cpu;
use crate::workload::winograd;

/// Rewrites the workload before anything else is decided.
pub(super) struct Algorithm;

/// Outputs of a tile in each dimension.
const WINOGRAD_TILES: [i64; 2] = [2, 4];

impl Rule<Cpu> for Algorithm {
    fn name(&self) -> &'static str {
        "algorithm"
    }

    fn version(&self) -> u32 {
        1
    }

    fn decide(&self, view: &View<'_, Cpu>, tape: &mut Tape<'_>) -> Result<Vec<Step>, Stop> {
        let applies = |m: &i64| !view.exact && winograd::applies(&view.workload, *m);
        let sizes: Vec<i64> = WINOGRAD_TILES.into_iter().filter(applies).collect();
        if sizes.is_empty() {
            return Ok(Vec::new());
        }
        let mut candidates = vec![name("direct")];
        candidates.extend(sizes.iter().map(|m| Words(vec!["winograd".into(), m.unsigned_abs().into()])));
        let answer = tape.choose(site("algorithm", []), candidates.clone(), 0)?;
        let chosen = candidates.iter().position(|c| *c == answer).filter(|c| *c > 0).map(|c| sizes[c - 1]);
        Ok(chosen.map(|outputs| Step::Winograd { outputs }).into_iter().collect())
    }
}
