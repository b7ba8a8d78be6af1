//! What a network keeps from one run to the next: outputs that come back as inputs.
//!
//! ```text
//! h -> h'                                     replaced: the next run reads what this one wrote
//! past [2, n, 64] -> present [2, n + m, 64]   appended: rows stay where they are, new ones come behind them
//! ```
//!
//! A tensor that is appended to has room for all rows that it can ever have, so that strides never change.
//! In the program it is a tensor of that capacity, of which runs see the first rows: a run writes its new
//! rows ([`Routine::Append`]), and nothing is copied.

use thiserror::Error;

use super::library::Routine;
use super::symbol::{self, Origin};
use super::{LibraryCall, Program, ProgramStage, Step};
use crate::workload::{Condition, Expr, Extents, Index, Role, Stage, Tensor, TensorId, Var};

/// An output that the next run has as an input.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Carried {
    /// Both by position.
    pub input: usize,
    pub output: usize,
    /// `None`: the output replaces the input, whose shape it has.
    pub appended: Option<Appended>,
}

/// How a tensor grows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Appended {
    pub axis: usize,
    /// How many rows there are before a run, and after it: formulas of the symbols. The first is a symbol.
    pub before: Index,
    pub after: Index,
    /// The least and the most of both.
    pub rows: [(i64, i64); 2],
}

/// Why an output cannot be carried over.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum CarryError {
    #[error("there is no input `{name}`; the network's are {known}")]
    NoInput { name: String, known: String },
    #[error("there is no output `{name}`; the network's are {known}")]
    NoOutput { name: String, known: String },
    #[error("`{0}` belongs to two states")]
    Twice(String),
    #[error(
        "output `{output}` ({found}) does not fit input `{input}` ({expected}): a state has the same shape, or is longer along one axis"
    )]
    Misfit { input: String, output: String, expected: String, found: String },
    #[error(
        "output `{output}` is not input `{input}` with more behind it along axis {axis}, so it cannot be appended to"
    )]
    NotAppended { input: String, output: String, axis: usize },
    #[error("output `{output}` has another name, too, and cannot be appended to in place")]
    Shared { output: String },
    #[error(
        "state `{input}` starts empty, but the network takes {low} rows at least; --dim {name}=0..HIGH may change that"
    )]
    NeverEmpty { input: String, name: String, low: i64 },
    #[error("only states say what the extent `{name}` is: fix it with --dim {name}=N")]
    Unknown { name: String },
}

impl Program {
    /// Carries outputs over to the inputs of the next run: pairs of an input's name and an output's.
    ///
    /// # Errors
    /// [`CarryError`] for names that are not there, and outputs that are neither of the input's shape nor the
    /// input with more behind it.
    pub fn carry(&mut self, pairs: &[(String, String)]) -> Result<(), CarryError> {
        for (input, output) in pairs {
            self.carry_over(input, output)?;
        }
        self.find_extents_of_states()
    }

    fn carry_over(&mut self, input_name: &str, output_name: &str) -> Result<(), CarryError> {
        let known = |list: &[(String, TensorId)]| {
            list.iter().map(|(name, _)| format!("`{name}`")).collect::<Vec<_>>().join(", ")
        };
        let input = self
            .inputs
            .iter()
            .position(|(name, _)| name == input_name)
            .ok_or_else(|| CarryError::NoInput { name: input_name.to_string(), known: known(&self.inputs) })?;
        let output = self
            .outputs
            .iter()
            .position(|(name, _)| name == output_name)
            .ok_or_else(|| CarryError::NoOutput { name: output_name.to_string(), known: known(&self.outputs) })?;
        for other in &self.carried {
            if other.input == input {
                return Err(CarryError::Twice(input_name.to_string()));
            }
            if other.output == output {
                return Err(CarryError::Twice(output_name.to_string()));
            }
        }
        let mut carried = Carried { input, output, appended: None };
        let (before, after) = (self.inputs[input].1, self.outputs[output].1);
        let (old, new) = (self.tensor(before), self.tensor(after));
        let (own, grown) = (old.formulas(), new.formulas());
        let differing: Vec<usize> = (0..own.len().min(grown.len())).filter(|axis| own[*axis] != grown[*axis]).collect();
        match differing[..] {
            _ if old.dtype != new.dtype || own.len() != grown.len() || differing.len() > 1 => {
                return Err(CarryError::Misfit {
                    input: input_name.to_string(),
                    output: output_name.to_string(),
                    expected: described(old),
                    found: described(new),
                });
            }
            [axis] => {
                let appended = self.append_in_place(axis, (input_name, before), (output_name, after))?;
                carried.appended = Some(appended);
            }
            _ => {}
        }
        self.carried.push(carried);
        Ok(())
    }

    /// Makes what grows along an axis a tensor of its capacity, of which a run writes the new rows.
    fn append_in_place(
        &mut self,
        axis: usize,
        (input_name, before): (&str, TensorId),
        (output_name, after): (&str, TensorId),
    ) -> Result<Appended, CarryError> {
        let not_appended =
            || CarryError::NotAppended { input: input_name.to_string(), output: output_name.to_string(), axis };
        if self.outputs.iter().filter(|(_, tensor)| *tensor == after).count() > 1 {
            return Err(CarryError::Shared { output: output_name.to_string() });
        }
        let symbols = self.symbols.ranges();
        let (old, new) = (self.tensor(before).clone(), self.tensor(after).clone());
        let extent = |tensor: &Tensor| tensor.extents.formula(axis, tensor.shape[axis]);
        let (length, grown) = (extent(&old), extent(&new));
        let Some(number) = length.as_var().and_then(Var::as_parameter) else { return Err(not_appended()) };
        let range = |formula: &Index| {
            symbol::range(formula, &symbols).map(|range| (range.low, range.high)).ok_or_else(not_appended)
        };
        let rows = [range(&length)?, range(&grown)?];
        let added = grown.clone().minus(&length);
        let (least, most) = range(&added)?;
        if least < 0 {
            return Err(not_appended());
        }
        let place = Place { axis, length: &length, most: rows[0].1 };
        let at = self.concatenation(before, after, &place).ok_or_else(not_appended)?;
        if rows[0].0 > 0 {
            let (input, name, low) = (input_name.to_string(), self.symbols.list[number].name.clone(), rows[0].0);
            return Err(CarryError::NeverEmpty { input, name, low });
        }
        let Step::Stage(ProgramStage { stage, node }) = self.steps[at].clone() else { return Err(not_appended()) };
        let Expr::Guard { outside, .. } = &stage.value else { return Err(not_appended()) };

        // what comes behind the rows that are there
        let mut shape = new.shape.clone();
        shape[axis] = most;
        let mut extents = new.formulas();
        extents[axis] = added.clone();
        let extents = Extents::new(extents.into_iter().enumerate());
        let shifted = |var: Var| (var.0 as usize == axis).then(|| Index::var(var).plus(&length));
        let value = outside.substitute(&shifted);
        let behind = self.add_tensor(shape.clone(), new.dtype, Role::Intermediate);
        self.tensors[behind.0 as usize].extents = extents.clone();
        let stage = Stage { extents, ..Stage::map(behind, shape, value) };

        let capacity = new.shape[axis];
        for tensor in [before, after] {
            let about = &mut self.tensors[tensor.0 as usize];
            about.shape[axis] = capacity;
            about.extents = about.extents.moved(|other| (other != axis).then_some(other));
        }
        let formulas = new.formulas();
        let outer = formulas[..axis].iter().fold(Index::constant(1), |all, extent| self.symbols.product(&all, extent));
        let block =
            formulas[axis + 1..].iter().fold(Index::constant(1), |all, extent| self.symbols.product(&all, extent));
        let routine = Routine::Append {
            outer: new.shape[..axis].iter().product(),
            first: rows[0].1,
            rows: most,
            capacity,
            block: new.shape[axis + 1..].iter().product(),
            dtype: new.dtype,
        };
        let sizes = vec![outer, length.clone(), added, Index::constant(capacity), block];
        let call = LibraryCall {
            routine,
            sizes,
            inputs: vec![before, behind],
            outputs: vec![after],
            count: None,
            node: node.clone(),
        };
        self.steps.splice(at..=at, [Step::Stage(ProgramStage { stage, node }), Step::Library(call)]);
        Ok(Appended { axis, before: length, after: grown, rows })
    }

    /// The step that writes an output as an input with more behind it. Where the output is a copy of that,
    /// it takes its place.
    fn concatenation(&mut self, before: TensorId, after: TensorId, place: &Place<'_>) -> Option<usize> {
        let writes = |steps: &[Step], tensor: TensorId| {
            steps.iter().position(|step| step.stage().is_some_and(|stage| stage.stage.output == tensor))
        };
        let at = writes(&self.steps, after)?;
        let stage = &self.steps[at].stage()?.stage;
        if let Some(original) = self.loads_all(&stage.value, None) {
            let same_shape = self.tensor(original).formulas() == self.tensor(after).formulas();
            let is_own = self.tensor(original).role == Role::Intermediate;
            let first = writes(&self.steps, original)?;
            if !(same_shape && is_own && self.tensor(original).dtype == self.tensor(after).dtype) {
                return None;
            }
            self.steps.remove(at);
            let rename = |tensor: TensorId| if tensor == original { after } else { tensor };
            self.steps.iter_mut().for_each(|step| step.rename(&rename));
            return self.concatenation(before, after, place).filter(|found| *found == first);
        }
        match &stage.value {
            Expr::Guard { conditions, inside, .. } if !stage.is_reduction() && place.is_where(conditions) => {
                self.loads_all(inside, Some(before)).map(|_| at)
            }
            _ => None,
        }
    }

    /// The tensor (`of`, if that is given) whose elements a value is, one after the other.
    fn loads_all(&self, value: &Expr, of: Option<TensorId>) -> Option<TensorId> {
        let Expr::Load { tensor, indices, .. } = value else { return None };
        let shape = &self.tensor(*tensor).shape;
        let is_own = |(d, index): (usize, &Index)| {
            // an extent of 1 has no position but 0
            index.as_var() == Some(Var(d as u32)) || (shape[d] == 1 && index.as_constant() == Some(0))
        };
        let in_order = indices.iter().enumerate().all(is_own);
        (in_order && of.is_none_or(|of| of == *tensor)).then_some(*tensor)
    }

    /// Extents that no input says any more that is given to a run.
    fn find_extents_of_states(&mut self) -> Result<(), CarryError> {
        let is_carried = |input: usize| self.carried.iter().position(|carried| carried.input == input);
        let mut found = Vec::new();
        for (number, symbol) in self.symbols.list.iter().enumerate() {
            let Origin::Axis { input, axis } = symbol.origin else { continue };
            let Some(state) = is_carried(input) else { continue };
            if self.carried[state].appended.as_ref().is_some_and(|appended| appended.axis == axis) {
                found.push((number, Origin::Rows { state }));
                continue;
            }
            let is_extent = |(position, (_, tensor)): (usize, &(String, TensorId))| {
                let axis =
                    self.tensor(*tensor).formulas().iter().position(|f| f.as_var() == Some(Var::parameter(number)))?;
                is_carried(position).is_none().then_some(Origin::Axis { input: position, axis })
            };
            let other = self.inputs.iter().enumerate().find_map(is_extent);
            found.push((number, other.ok_or_else(|| CarryError::Unknown { name: symbol.name.clone() })?));
        }
        for (number, origin) in found {
            self.symbols.list[number].origin = origin;
        }
        Ok(())
    }
}

/// The rows that are there before a run.
struct Place<'a> {
    axis: usize,
    length: &'a Index,
    /// The length at most.
    most: i64,
}

impl Place<'_> {
    /// Whether conditions hold for these rows, and for no others.
    fn is_where(&self, conditions: &[Condition]) -> bool {
        let row = Index::var(Var(self.axis as u32));
        let end = Condition::below(&row, self.length);
        let is_wider =
            |condition: &Condition| condition.index == row && condition.low <= 0 && condition.high >= self.most;
        conditions.contains(&end) && conditions.iter().all(|condition| *condition == end || is_wider(condition))
    }
}

fn described(tensor: &Tensor) -> String {
    format!("{}{:?} at most", tensor.dtype.name(), tensor.shape)
}
