//! What goes into a network and comes out of it, as its manifest describes it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::dtype::DType;
use crate::error::RuntimeError;
use crate::formula::Formula;

/// An input or output of the network.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Port {
    pub name: String,
    /// As [`DType::name`] spells it.
    pub dtype: String,
    /// At most.
    pub shape: Vec<i64>,
    /// The extents that may be less, by axis.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub extents: BTreeMap<usize, RunTimeExtent>,
}

/// An output of the network that comes back as an input: neither is given to a run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StatePort {
    /// As a run finds it.
    pub input: Port,
    /// The output's name.
    pub output: String,
    /// `None`: it is replaced by every run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grows: Option<Growth>,
}

impl StatePort {
    pub(crate) fn is_possible(&self) -> bool {
        self.grows.as_ref().is_none_or(|Growth { axis, capacity }| {
            let mut roomy = self.input.shape.clone();
            let Some(rows) = roomy.get_mut(*axis).filter(|rows| **rows <= *capacity) else { return false };
            *rows = *capacity;
            self.input.bytes_at(&roomy).is_some()
        })
    }
}

/// A state to which runs append.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Growth {
    pub axis: usize,
    /// Rows that there is room for.
    pub capacity: i64,
}

/// An extent that is known when the network runs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunTimeExtent {
    pub least: i64,
    pub formula: Formula,
    /// The same for people.
    pub text: String,
}

impl Port {
    /// Whether it has this shape in some run.
    pub fn admits(&self, shape: &[i64]) -> bool {
        let is_admissible =
            |(axis, (found, most)): (usize, (&i64, &i64))| (self.least(axis, *most)..=*most).contains(found);
        shape.len() == self.shape.len() && shape.iter().zip(&self.shape).enumerate().all(is_admissible)
    }

    fn least(&self, axis: usize, most: i64) -> i64 {
        self.extents.get(&axis).map_or(most, |extent| extent.least)
    }

    /// The extents at least.
    pub fn least_shape(&self) -> Vec<i64> {
        self.shape.iter().enumerate().map(|(axis, most)| self.least(axis, *most)).collect()
    }

    /// Its size in bytes in a run; `None` as for [`Port::bytes`].
    pub fn bytes_at(&self, shape: &[i64]) -> Option<usize> {
        let elements = shape.iter().try_fold(1usize, |product, extent| {
            usize::try_from(*extent).ok().and_then(|extent| product.checked_mul(extent))
        })?;
        elements.checked_mul(self.dtype()?.bytes()).filter(|bytes| *bytes <= isize::MAX as usize)
    }

    /// Its shape where symbols have these values; `None` where some extent has no value.
    pub fn shape_at(&self, values: &[i64]) -> Option<Vec<i64>> {
        let extent = |(axis, most): (usize, &i64)| match self.extents.get(&axis) {
            Some(extent) => extent.formula.at(values),
            None => Some(*most),
        };
        self.shape.iter().enumerate().map(extent).collect()
    }

    /// Extents as people write them: `batch, 3, 2*width + 1`.
    pub fn shape_text(&self) -> String {
        let extent = |(axis, most): (usize, &i64)| match self.extents.get(&axis) {
            Some(extent) => extent.text.clone(),
            None => most.to_string(),
        };
        self.shape.iter().enumerate().map(extent).collect::<Vec<_>>().join(", ")
    }

    /// Type and extents as people write them: `f32[batch, 3, 2*width + 1]`.
    pub fn text(&self) -> String {
        format!("{}[{}]", self.dtype, self.shape_text())
    }

    /// Whether an input may be this; the extents that are open are checked when they are set.
    ///
    /// # Errors
    /// [`RuntimeError::Input`] with what is wanted and what was given.
    pub fn check(&self, dtype: DType, shape: &[i64]) -> Result<(), RuntimeError> {
        let has_rank = shape.len() == self.shape.len();
        let may_fit = if self.extents.is_empty() { shape == self.shape } else { has_rank };
        if self.dtype() == Some(dtype) && may_fit {
            return Ok(());
        }
        let (wanted, given) = (self.text(), described(dtype, shape));
        Err(RuntimeError::Input(format!("input `{}` is {wanted}, {given} was given", self.name)))
    }

    pub fn dtype(&self) -> Option<DType> {
        DType::from_name(&self.dtype)
    }

    /// Size in bytes, at most; `None` where the shape or the type makes no sense.
    pub fn bytes(&self) -> Option<usize> {
        self.bytes_at(&self.shape)
    }
}

/// A tensor in words: `f32[2, 3]`.
pub fn described(dtype: DType, shape: &[i64]) -> String {
    let extents: Vec<String> = shape.iter().map(i64::to_string).collect();
    format!("{}[{}]", dtype.name(), extents.join(", "))
}
