//! The numbers that a machine multiplies and adds, each of which it has a peak of.

use serde::{Deserialize, Serialize};

use crate::target::Cpu;
use crate::workload::{DType, Workload};

/// What products are made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arithmetic {
    F32,
    /// Of two bf16, summed in f32.
    Bf16,
    /// Of two bytes, summed in i32.
    Bytes,
}

impl Arithmetic {
    /// Those that some machines have instructions of their own for.
    pub const SHORT: [Arithmetic; 2] = [Arithmetic::Bf16, Arithmetic::Bytes];

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Arithmetic::F32 => "f32",
            Arithmetic::Bf16 => "bf16",
            Arithmetic::Bytes => "8 bits",
        }
    }

    /// That of a workload on a machine: of the sums of most products. What a machine has no instruction for,
    /// it computes by those for f32.
    pub fn of(workload: &Workload, target: &Cpu) -> Arithmetic {
        let mut counts = [Arithmetic::F32, Arithmetic::Bf16, Arithmetic::Bytes].map(|known| (known, 0));
        for stage in workload.stages.iter().filter(|stage| stage.is_reduction()) {
            let operands = workload.widened_operands(stage).filter(|operands| target.has_dot(*operands));
            let found = operands.map_or(Arithmetic::F32, Arithmetic::of_operands);
            counts.iter_mut().filter(|(known, _)| *known == found).for_each(|(_, points)| *points += stage.points());
        }
        // of equals the first
        counts.iter().rev().max_by_key(|(_, points)| *points).map_or(Arithmetic::F32, |(found, _)| *found)
    }

    fn of_operands(operands: [DType; 2]) -> Arithmetic {
        if operands == [DType::BF16; 2] { Arithmetic::Bf16 } else { Arithmetic::Bytes }
    }

    /// Operands that a machine has an instruction for; `None` where it has none, and of f32.
    pub fn operands(self, target: &Cpu) -> Option<[DType; 2]> {
        let pairs: &[[DType; 2]] = match self {
            Arithmetic::F32 => &[],
            Arithmetic::Bf16 => &[[DType::BF16, DType::BF16]],
            Arithmetic::Bytes => &[[DType::U8, DType::I8], [DType::U8, DType::U8], [DType::I8, DType::I8]],
        };
        pairs.iter().copied().find(|operands| target.has_dot(*operands))
    }
}
