//! What numbers networks are computed in.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The numbers that products by weights are computed in, where a network does not say so itself.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
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

    pub fn is_f32(&self) -> bool {
        *self == Precision::F32
    }
}

impl FromStr for Precision {
    type Err = String;

    fn from_str(text: &str) -> Result<Precision, String> {
        let found = Precision::ALL.into_iter().find(|precision| precision.name() == text);
        found.ok_or_else(|| format!("`{text}` is no precision: f32 or bf16"))
    }
}
