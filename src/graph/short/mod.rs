//! Products of short numbers, which processors multiply two to four times as many of in the same time: what a
//! program's products are computed in, and how what they read lies in memory.

mod channels;
mod product;
mod rounded;
mod steps;

use std::collections::BTreeSet;
use std::str::FromStr;

use super::Program;
use crate::workload::{Role, TensorId};

/// The numbers that products by weights are computed in, where a network does not say so itself.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Precision {
    /// As the network is written.
    #[default]
    F32,
    /// Operands are rounded to bf16 (8 bits of significand), their products are summed in f32.
    Bf16,
}

impl Precision {
    pub const ALL: [Precision; 2] = [Precision::F32, Precision::Bf16];

    pub fn name(self) -> &'static str {
        match self {
            Precision::F32 => "f32",
            Precision::Bf16 => "bf16",
        }
    }
}

impl FromStr for Precision {
    type Err = String;

    fn from_str(text: &str) -> Result<Precision, String> {
        let found = Precision::ALL.into_iter().find(|precision| precision.name() == text);
        found.ok_or_else(|| format!("`{text}` is no precision: f32 or bf16"))
    }
}

impl Program {
    /// Computes products in short numbers, as far as the precision allows it, and lets the channels of what
    /// they read lie side by side. Once, before the program is cut into tasks.
    pub fn shorten(&mut self, precision: Precision) {
        if precision == Precision::Bf16 {
            rounded::round_products(self);
        }
        steps::complete(self);
        channels::put_last(self);
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
