//! What names stand for: tensors, or sequences of them. Programs know of tensors alone, so that sequences are
//! there only while a network is read.

use std::rc::Rc;

use crate::graph::lower::Problem;
use crate::workload::TensorId;

#[derive(Clone, Debug)]
pub(super) enum Value {
    Tensor(TensorId),
    Sequence(Sequence),
}

#[derive(Clone, Debug)]
pub(super) enum Sequence {
    /// Tensors of any shapes.
    Listed(Rc<[TensorId]>),
    /// Tensors of one shape, as many as the run says: the parts of a tensor along its leading axis.
    Stacked(TensorId),
}

/// How a value comes apart into tensors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Form {
    Tensor,
    Listed(usize),
    Stacked,
}

impl Value {
    /// # Errors
    /// [`Problem::Unsupported`] for a sequence.
    pub fn tensor(&self) -> Result<TensorId, Problem> {
        match self {
            Value::Tensor(tensor) => Ok(*tensor),
            Value::Sequence(_) => Err(Problem::Unsupported("a sequence in the place of a tensor".to_string())),
        }
    }

    /// All of its tensors.
    pub fn parts(&self) -> &[TensorId] {
        match self {
            Value::Tensor(tensor) | Value::Sequence(Sequence::Stacked(tensor)) => std::slice::from_ref(tensor),
            Value::Sequence(Sequence::Listed(parts)) => parts,
        }
    }

    pub fn form(&self) -> Form {
        match self {
            Value::Tensor(_) => Form::Tensor,
            Value::Sequence(Sequence::Listed(parts)) => Form::Listed(parts.len()),
            Value::Sequence(Sequence::Stacked(_)) => Form::Stacked,
        }
    }
}

impl Form {
    /// The value of this form of the next of some tensors, of which there are enough.
    pub fn of(self, tensors: &mut impl Iterator<Item = TensorId>) -> Option<Value> {
        Some(match self {
            Form::Tensor => Value::Tensor(tensors.next()?),
            Form::Stacked => Value::Sequence(Sequence::Stacked(tensors.next()?)),
            Form::Listed(count) => {
                let parts: Rc<[TensorId]> = tensors.take(count).collect();
                (parts.len() == count).then_some(Value::Sequence(Sequence::Listed(parts)))?
            }
        })
    }
}

/// Values of some forms from all their tensors; `None` where these are not as many.
pub(super) fn formed(forms: &[Form], tensors: Vec<TensorId>) -> Option<Vec<Value>> {
    let mut tensors = tensors.into_iter();
    let values: Option<Vec<Value>> = forms.iter().map(|form| form.of(&mut tensors)).collect();
    values.filter(|_| tensors.next().is_none())
}

/// The tensors of all values.
pub(super) fn parts_of(values: &[Value]) -> Vec<TensorId> {
    values.iter().flat_map(Value::parts).copied().collect()
}

pub(super) fn forms_of(values: &[Value]) -> Vec<Form> {
    values.iter().map(Value::form).collect()
}
