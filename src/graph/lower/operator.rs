//! An operator as plain data: what the lowering gets to see of an ONNX node.

use std::collections::BTreeMap;

use crate::graph::TensorData;
use crate::workload::{DType, TensorId};

#[derive(Clone, PartialEq, Debug)]
pub enum Attribute {
    Int(i64),
    Float(f32),
    Text(String),
    Tensor(TensorData),
    Ints(Vec<i64>),
    Floats(Vec<f32>),
    Texts(Vec<String>),
}

/// An input of an operator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operand {
    pub tensor: TensorId,
    /// Nothing else reads the value, and it is no output of the network.
    pub only_reader: bool,
}

/// One use of an operator.
#[derive(Clone, PartialEq, Debug)]
pub struct Operator {
    /// ONNX's name for the operator, as in `Conv`.
    pub kind: String,
    /// Version of the operator set.
    pub opset: i64,
    pub attributes: BTreeMap<String, Attribute>,
    /// `None`: left out.
    pub inputs: Vec<Option<Operand>>,
    /// Whether each output is used by anyone.
    pub outputs: Vec<bool>,
}

/// Why an operator cannot become stages; whoever calls the lowering knows the node's name.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Problem {
    #[error("input {0} is missing")]
    MissingInput(usize),
    #[error("attribute {0} is missing")]
    MissingAttribute(&'static str),
    #[error("attribute {0} has the wrong type")]
    AttributeType(&'static str),
    #[error("attribute {name} is {value}, which is out of range")]
    AttributeValue { name: &'static str, value: String },
    #[error("input {0} must be a constant")]
    NotConstant(usize),
    #[error("input {input} has type {}, which this operator does not take", dtype.name())]
    Type { input: usize, dtype: DType },
    #[error("{0}")]
    Shape(String),
    #[error("shape {0:?} is too large")]
    TooLarge(Vec<i64>),
    #[error(
        "the constants that import computes would take {bytes} bytes; {limit} are allowed: --constant-memory raises that"
    )]
    Memory { bytes: u64, limit: u64 },
    #[error("{0} is not supported")]
    Unsupported(String),
    #[error("a constant could not be computed: {0}")]
    Constant(String),
}

impl Operator {
    /// The tensor of an input that has to be there.
    pub fn input(&self, position: usize) -> Result<TensorId, Problem> {
        self.optional(position).ok_or(Problem::MissingInput(position))
    }

    pub fn optional(&self, position: usize) -> Option<TensorId> {
        self.inputs.get(position).copied().flatten().map(|operand| operand.tensor)
    }

    /// The axes that its attribute names, in that order, each once; without one, all.
    ///
    /// # Errors
    /// For axes that there are not, and for one that is named again.
    pub fn axes_or_all(&self, rank: usize) -> Result<Vec<usize>, Problem> {
        let Some(axes) = self.ints("axes")? else { return Ok((0..rank).collect()) };
        normal_axes(axes, rank)?;
        axes.iter().map(|axis| normal_axis(*axis, rank)).collect()
    }

    /// Whether this operator alone reads an input.
    pub fn is_only_reader(&self, position: usize) -> bool {
        self.inputs.get(position).copied().flatten().is_some_and(|operand| operand.only_reader)
    }

    /// All inputs, none of which may be left out; there is at least one.
    pub fn all_inputs(&self) -> Result<Vec<TensorId>, Problem> {
        if self.inputs.is_empty() {
            return Err(Problem::MissingInput(0));
        }
        (0..self.inputs.len()).map(|position| self.input(position)).collect()
    }

    /// Whether somebody uses an output.
    pub fn wants_output(&self, position: usize) -> bool {
        self.outputs.get(position).copied().unwrap_or(false)
    }

    pub fn has(&self, name: &str) -> bool {
        self.attributes.contains_key(name)
    }

    pub fn int(&self, name: &'static str, default: i64) -> Result<i64, Problem> {
        Ok(self.optional_int(name)?.unwrap_or(default))
    }

    pub fn optional_int(&self, name: &'static str) -> Result<Option<i64>, Problem> {
        match self.attributes.get(name) {
            None => Ok(None),
            Some(Attribute::Int(value)) => Ok(Some(*value)),
            Some(_) => Err(Problem::AttributeType(name)),
        }
    }

    /// A switch: 0 or 1.
    pub fn flag(&self, name: &'static str, default: bool) -> Result<bool, Problem> {
        Ok(self.int(name, i64::from(default))? != 0)
    }

    pub fn float(&self, name: &'static str, default: f64) -> Result<f64, Problem> {
        match self.attributes.get(name) {
            None => Ok(default),
            Some(Attribute::Float(value)) if value.is_nan() => Err(not_a_number(name)),
            Some(Attribute::Float(value)) => Ok(f64::from(*value)),
            Some(_) => Err(Problem::AttributeType(name)),
        }
    }

    pub fn text(&self, name: &'static str, default: &'static str) -> Result<&str, Problem> {
        Ok(self.optional_text(name)?.unwrap_or(default))
    }

    pub fn optional_text(&self, name: &'static str) -> Result<Option<&str>, Problem> {
        match self.attributes.get(name) {
            None => Ok(None),
            Some(Attribute::Text(value)) => Ok(Some(value)),
            Some(_) => Err(Problem::AttributeType(name)),
        }
    }

    pub fn floats(&self, name: &'static str) -> Result<Option<&[f32]>, Problem> {
        match self.attributes.get(name) {
            None => Ok(None),
            Some(Attribute::Floats(values)) if values.iter().any(|value| value.is_nan()) => Err(not_a_number(name)),
            Some(Attribute::Floats(values)) => Ok(Some(values)),
            Some(_) => Err(Problem::AttributeType(name)),
        }
    }

    pub fn texts(&self, name: &'static str) -> Result<Option<&[String]>, Problem> {
        match self.attributes.get(name) {
            None => Ok(None),
            Some(Attribute::Texts(values)) => Ok(Some(values)),
            Some(_) => Err(Problem::AttributeType(name)),
        }
    }

    pub fn ints(&self, name: &'static str) -> Result<Option<&[i64]>, Problem> {
        match self.attributes.get(name) {
            None => Ok(None),
            Some(Attribute::Ints(values)) => Ok(Some(values)),
            Some(_) => Err(Problem::AttributeType(name)),
        }
    }
}

/// Nothing is computed with it, and a stage cannot hold it.
fn not_a_number(name: &'static str) -> Problem {
    Problem::AttributeValue { name, value: "NaN".to_string() }
}

/// `axis` counted from the front, where negative ones count from the end.
pub fn normal_axis(axis: i64, rank: usize) -> Result<usize, Problem> {
    let positive = if axis < 0 { axis.checked_add(rank as i64) } else { Some(axis) };
    match positive {
        Some(a) if (0..rank as i64).contains(&a) => Ok(a as usize),
        _ => Err(Problem::AttributeValue { name: "axis", value: axis.to_string() }),
    }
}

/// [`normal_axis`] of each, sorted; a repeated axis is an error.
pub fn normal_axes(axes: &[i64], rank: usize) -> Result<Vec<usize>, Problem> {
    let mut normal = axes.iter().map(|axis| normal_axis(*axis, rank)).collect::<Result<Vec<_>, _>>()?;
    normal.sort_unstable();
    match normal.windows(2).any(|pair| pair[0] == pair[1]) {
        true => Err(Problem::AttributeValue { name: "axes", value: format!("{axes:?}") }),
        false => Ok(normal),
    }
}
