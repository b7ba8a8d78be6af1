//! What a GPU has room for.

use crate::nest::{Nest, Scope, VerifyRule, verify};
use crate::space::{Reason, View, rows};
use crate::target::Gpu;

/// What rules take a thread to have room for.
pub(super) struct ThreadLimits {
    /// Accumulators, at most.
    pub maximal_accumulators: i64,
    /// Registers that it wants beside them.
    pub other_registers: i64,
    /// Elements of the widest load.
    pub maximal_vector: i64,
}

pub(super) const THREAD: ThreadLimits =
    ThreadLimits { maximal_accumulators: 128, other_registers: 32, maximal_vector: MAXIMAL_LANES };

/// Lanes of a vector loop, at most.
const MAXIMAL_LANES: i64 = 4;
/// Of buffers in shared memory, in bytes.
const ALIGNMENT: usize = 64;

/// Refuses programs that ask a GPU for more than it has. All private buffers count together: few programs
/// have several grids with such buffers.
pub(super) fn check(nest: &Nest, gpu: &Gpu) -> Result<(), Reason> {
    let private = nest.buffers.iter().filter(|buffer| buffer.scope == Scope::BlockShared);
    let asked: usize = private.map(|buffer| buffer.bytes().next_multiple_of(ALIGNMENT)).sum();
    let most = gpu.shared_bytes_per_block as usize;
    if asked > most {
        return Err(Reason(format!("{asked} bytes of shared memory in a block, of {most}")));
    }
    match verify(nest, MAXIMAL_LANES) {
        // quotients and remainders are beyond the prover now and then: such programs are not offered
        Err(error) if matches!(error.rule, VerifyRule::OutOfBounds { .. }) => {
            Err(Reason(format!("not proved: {error}")))
        }
        // any other rule that is broken is a defect of ours, which whoever compiles the nest will say
        _ => Ok(()),
    }
}

/// Bytes of a block's shared memory that operands may take: what intermediates of joined rows leave.
pub(super) fn room_for_operands(view: &View<'_, Gpu>) -> i64 {
    let whole = i64::from(view.machine.shared_bytes_per_block);
    let kept = if view.rows.is_empty() { 0 } else { rows::bytes(&view.workload, &view.rows) };
    (whole - kept).max(0)
}
