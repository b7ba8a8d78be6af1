//! Operators on sequences, which mean what others do on their tensors.
//!
//! Of most sequences it is known how long they are: they are lists of tensors while the network is read, and
//! leave no trace. Those that a loop collects, or that are the parts of an open extent, lie in one tensor.

use std::collections::BTreeMap;

use super::NEWEST_OPSET;
use super::error::ImportError;
use super::network::{Import, problem_of};
use super::proto::{NodeProto, attribute_kind};
use super::value::{Sequence, Value};
use crate::graph::TensorData;
use crate::graph::lower::{
    self, Attribute, Operand, Operator, Problem, chained, element, move_axis, normal_axis, stack,
};
use crate::workload::{Index, TensorId};

/// Maximum number of elements that lists of a network have, all together.
const MAX_LISTED: usize = 1 << 22;
/// Maximum number of tensors that others are taken apart into, all together.
const MAX_PARTS: usize = 1 << 16;
/// A tensor that is taken apart into more elements than this stays in one piece.
const MAX_APART: i64 = 1 << 8;

/// Operators of ONNX that read or give sequences.
pub(super) fn is_sequence(kind: &str) -> bool {
    matches!(
        kind,
        "SequenceEmpty"
            | "SequenceConstruct"
            | "SequenceInsert"
            | "SequenceErase"
            | "SequenceAt"
            | "SequenceLength"
            | "SplitToSequence"
            | "ConcatFromSequence"
    )
}

impl<'a> Import<'a> {
    /// Whether a node reads or gives a sequence.
    pub(super) fn is_about_sequences(&self, node: &'a NodeProto) -> Result<bool, ImportError> {
        let is_handed_on = node.op_type == "Identity"
            && self.values(node)?.iter().flatten().any(|value| matches!(value, Value::Sequence(_)));
        Ok(is_handed_on || is_sequence(&node.op_type))
    }

    pub(super) fn add_sequence(&mut self, node: &'a NodeProto) -> Result<Value, ImportError> {
        let values = self.values(node)?;
        self.enter(node);
        let wrong = |problem| problem_of(node, problem);
        let sequence = |position: usize| match values.get(position) {
            Some(Some(Value::Sequence(sequence))) => Ok(sequence),
            Some(Some(Value::Tensor(_))) => Err(wrong(Problem::Shape(format!("input {position} is no sequence")))),
            _ => Err(wrong(Problem::MissingInput(position))),
        };
        let tensor = |position: usize| -> Result<TensorId, ImportError> {
            let value = values.get(position).and_then(Option::as_ref);
            value.ok_or(Problem::MissingInput(position)).and_then(Value::tensor).map_err(wrong)
        };
        let place = match values.get(if node.op_type == "SequenceInsert" { 2 } else { 1 }) {
            Some(Some(Value::Tensor(place))) => Some(*place),
            _ => None,
        };
        let result = match node.op_type.as_str() {
            "SequenceEmpty" => self.listed(Vec::new()).map_err(wrong)?,
            "SequenceConstruct" => {
                let parts = (0..values.len()).map(tensor).collect::<Result<Vec<_>, _>>()?;
                self.listed(parts).map_err(wrong)?
            }
            "SequenceInsert" => self.inserted(sequence(0)?, tensor(1)?, place).map_err(wrong)?,
            "SequenceErase" => self.erased(sequence(0)?, place).map_err(wrong)?,
            "SequenceAt" => Value::Tensor(self.at(sequence(0)?, tensor(1)?).map_err(wrong)?),
            "SequenceLength" => Value::Tensor(self.length(sequence(0)?).map_err(wrong)?),
            "ConcatFromSequence" => {
                let axis = self.int_of(node, "axis")?.ok_or(Problem::MissingAttribute("axis")).map_err(wrong)?;
                let is_new = self.int_of(node, "new_axis")?.unwrap_or(0) != 0;
                Value::Tensor(self.joined(sequence(0)?, axis, is_new).map_err(wrong)?)
            }
            "SplitToSequence" => {
                let axis = self.int_of(node, "axis")?.unwrap_or(0);
                let keeps = self.int_of(node, "keepdims")?.unwrap_or(1) != 0;
                self.apart(tensor(0)?, place, axis, keeps).map_err(wrong)?
            }
            _ => Value::Sequence(sequence(0)?.clone()),
        };
        Ok(result)
    }

    fn int_of(&self, node: &'a NodeProto, name: &'static str) -> Result<Option<i64>, ImportError> {
        let proto = node.attribute.iter().find(|attribute| attribute.name == name);
        match proto.and_then(|proto| self.attribute(proto)) {
            None => Ok(None),
            Some(proto) if proto.kind == attribute_kind::INT => Ok(Some(proto.i)),
            Some(_) => Err(problem_of(node, Problem::AttributeType(name))),
        }
    }

    fn listed(&mut self, parts: Vec<TensorId>) -> Result<Value, Problem> {
        self.listed = self.listed.saturating_add(parts.len());
        match self.listed > MAX_LISTED {
            true => Err(Problem::Unsupported(format!("more than {MAX_LISTED} elements of sequences"))),
            false => Ok(Value::Sequence(Sequence::Listed(parts.into()))),
        }
    }

    /// A known place in a list, negative ones counted from the end; `beyond` is how many there are behind it.
    fn place(&self, place: TensorId, length: usize, beyond: usize) -> Result<usize, Problem> {
        let known = self.builder.integers(place).filter(|known| known.len() == 1);
        let unknown = || Problem::Unsupported("a computed place in a sequence that changes".to_string());
        let place = known.and_then(|known| known.first().copied()).ok_or_else(unknown)?;
        let counted = if place < 0 { place.saturating_add(length as i64) } else { place };
        let found = usize::try_from(counted).ok().filter(|found| *found < length + beyond);
        found.ok_or_else(|| Problem::Shape(format!("there is no place {place} in a sequence of {length}")))
    }

    fn inserted(&mut self, sequence: &Sequence, part: TensorId, place: Option<TensorId>) -> Result<Value, Problem> {
        match (sequence, place) {
            (Sequence::Listed(parts), place) => {
                let end = parts.len();
                let place = place.map_or(Ok(end), |place| self.place(place, end, 1))?;
                self.listed([&parts[..place], &[part], &parts[place..]].concat())
            }
            (Sequence::Stacked(_), None) => {
                let part = stack(&mut self.builder, &[part], 0)?;
                self.lengthened(sequence, part)
            }
            (Sequence::Stacked(_), Some(_)) => {
                Err(Problem::Unsupported("inserting into a sequence as long as the run says".to_string()))
            }
        }
    }

    fn erased(&mut self, sequence: &Sequence, place: Option<TensorId>) -> Result<Value, Problem> {
        let Sequence::Listed(parts) = sequence else {
            return Err(Problem::Unsupported("erasing from a sequence as long as the run says".to_string()));
        };
        let last = || parts.len().checked_sub(1).ok_or(Problem::Shape("nothing can be erased from nothing".into()));
        let place = place.map_or_else(last, |place| self.place(place, parts.len(), 0))?;
        self.listed([&parts[..place], &parts[place + 1..]].concat())
    }

    fn at(&mut self, sequence: &Sequence, place: TensorId) -> Result<TensorId, Problem> {
        if let (Sequence::Listed(parts), Some(_)) = (sequence, self.builder.integers(place)) {
            return Ok(parts[self.place(place, parts.len(), 0)?]);
        }
        let whole = self.stacked(sequence)?;
        let axis = [("axis".to_string(), Attribute::Int(0))];
        self.applied("Gather", axis, &[whole, place])
    }

    fn length(&mut self, sequence: &Sequence) -> Result<TensorId, Problem> {
        match sequence {
            Sequence::Listed(parts) => Ok(self.builder.constant(TensorData::from_i64(vec![], &[parts.len() as i64]))),
            Sequence::Stacked(whole) => {
                let leading = [("start".to_string(), Attribute::Int(0)), ("end".to_string(), Attribute::Int(1))];
                let length = self.applied("Shape", leading, &[*whole])?;
                element(&mut self.builder, length, 0, 0)
            }
        }
    }

    /// All elements in one tensor, which have one shape.
    fn stacked(&mut self, sequence: &Sequence) -> Result<TensorId, Problem> {
        match sequence {
            Sequence::Stacked(whole) => Ok(*whole),
            Sequence::Listed(parts) if parts.is_empty() => {
                Err(Problem::Unsupported("a tensor of the elements of an empty sequence".to_string()))
            }
            Sequence::Listed(parts) => stack(&mut self.builder, parts, 0),
        }
    }

    /// A sequence with stacked elements behind its own.
    pub(super) fn lengthened(&mut self, sequence: &Sequence, parts: TensorId) -> Result<Value, Problem> {
        let whole = match sequence {
            Sequence::Listed(before) if before.is_empty() => parts,
            before => {
                let before = self.stacked(before)?;
                self.applied("Concat", [("axis".to_string(), Attribute::Int(0))], &[before, parts])?
            }
        };
        Ok(Value::Sequence(Sequence::Stacked(whole)))
    }

    fn joined(&mut self, sequence: &Sequence, axis: i64, is_new: bool) -> Result<TensorId, Problem> {
        if let (Sequence::Listed(parts), false) = (sequence, is_new) {
            return self.applied("Concat", [("axis".to_string(), Attribute::Int(axis))], parts);
        }
        let whole = self.stacked(sequence)?;
        let rank = self.builder.rank(whole);
        match is_new {
            true => move_axis(&mut self.builder, whole, 0, normal_axis(axis, rank)?),
            false => chained(&mut self.builder, whole, normal_axis(axis, rank - 1)?),
        }
    }

    /// The parts of a tensor along an axis: of given sizes, of one size but for the last, or single elements.
    fn apart(
        &mut self,
        whole: TensorId,
        sizes: Option<TensorId>,
        axis: i64,
        keeps_axis: bool,
    ) -> Result<Value, Problem> {
        let axis = normal_axis(axis, self.builder.rank(whole))?;
        let extent = self.builder.extents(whole)[axis].clone();
        let Some(sizes) = sizes else {
            return self.elements(whole, axis, &extent, keeps_axis);
        };
        if self.builder.rank(sizes) > 0 {
            let count = self.builder.shape(sizes)[0];
            return self.split(whole, axis, sizes, count);
        }
        let size = self.builder.integers(sizes).and_then(|found| found.first().copied()).filter(|size| *size > 0);
        match (size, extent.as_constant()) {
            // by ONNX's words sizes that are given keep the axis; exporters write this for single elements,
            // and ONNX Runtime takes it for these
            (Some(1), _) => self.elements(whole, axis, &extent, keeps_axis),
            (Some(size), Some(extent)) => {
                let parts = (0..extent).step_by(size as usize).take(MAX_PARTS + 1);
                let parts: Vec<i64> = parts.map(|start| size.min(extent - start)).collect();
                let count = parts.len() as i64;
                let sizes = self.builder.constant(TensorData::from_i64(vec![count], &parts));
                self.split(whole, axis, sizes, count)
            }
            _ => Err(Problem::Unsupported("taking an open extent apart into parts of several elements".to_string())),
        }
    }

    fn elements(&mut self, whole: TensorId, axis: usize, extent: &Index, keeps_axis: bool) -> Result<Value, Problem> {
        if let Some(count) = extent.as_constant().filter(|count| *count <= MAX_APART) {
            self.count_parts(count)?;
            let parts = (0..count).map(|place| element(&mut self.builder, whole, axis, place));
            let mut parts = parts.collect::<Result<Vec<_>, _>>()?;
            if keeps_axis {
                for part in &mut parts {
                    *part = stack(&mut self.builder, &[*part], axis)?;
                }
            }
            return self.listed(parts);
        }
        let moved = move_axis(&mut self.builder, whole, axis, 0)?;
        let stacked = if keeps_axis { stack(&mut self.builder, &[moved], axis + 1)? } else { moved };
        Ok(Value::Sequence(Sequence::Stacked(stacked)))
    }

    fn split(&mut self, whole: TensorId, axis: usize, sizes: TensorId, count: i64) -> Result<Value, Problem> {
        let count = self.count_parts(count)?;
        let axis = [("axis".to_string(), Attribute::Int(axis as i64))];
        let parts = self.apply("Split", axis, &[whole, sizes], count)?;
        self.listed(parts)
    }

    /// That so many tensors may be made of others, after all that were.
    fn count_parts(&mut self, count: i64) -> Result<usize, Problem> {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        self.taken_apart = self.taken_apart.saturating_add(count);
        match self.taken_apart > MAX_PARTS {
            true => Err(Problem::Unsupported(format!("taking tensors apart into more than {MAX_PARTS}"))),
            false => Ok(count),
        }
    }

    /// The result of an operator that the meaning of one on sequences names.
    fn applied<const N: usize>(
        &mut self,
        kind: &str,
        attributes: [(String, Attribute); N],
        inputs: &[TensorId],
    ) -> Result<TensorId, Problem> {
        self.apply(kind, attributes, inputs, 1)?.first().copied().ok_or(Problem::MissingInput(0))
    }

    fn apply<const N: usize>(
        &mut self,
        kind: &str,
        attributes: [(String, Attribute); N],
        inputs: &[TensorId],
        count: usize,
    ) -> Result<Vec<TensorId>, Problem> {
        let operand = |tensor: &TensorId| Some(Operand { tensor: *tensor, only_reader: false });
        let operator = Operator {
            kind: kind.to_string(),
            opset: NEWEST_OPSET,
            attributes: BTreeMap::from(attributes),
            inputs: inputs.iter().map(operand).collect(),
            outputs: vec![true; count],
        };
        lower::lower(&mut self.builder, &operator)
    }
}
