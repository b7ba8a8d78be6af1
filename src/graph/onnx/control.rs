//! `If` and `Loop`. What follows from constants is settled at once: one branch is taken, a short loop is unrolled.
//! The rest stays in the program.

use super::body::Body;
use super::error::ImportError;
use super::network::{Import, problem_of};
use super::proto::NodeProto;
use crate::graph::TensorData;
use crate::graph::lower::{Operand, Problem, stack};
use crate::workload::TensorId;

/// A loop is unrolled if that makes so many nodes at most, those of inner loops counted once.
pub(super) const MAX_UNROLLED_NODES: usize = 1 << 12;
/// Maximum number of operations that stay in the program.
const MAX_OPERATIONS: usize = 1 << 10;

/// What a loop leaves: its last states, and what it collected.
pub(super) type Results = (Vec<TensorId>, Vec<TensorId>);

impl<'a> Import<'a> {
    /// An operator that holds graphs.
    pub(super) fn add_control(&mut self, node: &'a NodeProto) -> Result<Vec<TensorId>, ImportError> {
        match node.op_type.as_str() {
            "If" => self.add_if(node),
            "Loop" => self.add_loop(node),
            _ => self.add_scan(node),
        }
    }

    /// What is appended next belongs to this node.
    pub(super) fn enter(&mut self, node: &NodeProto) {
        self.builder.enter(format!("{} {}", node.op_type, super::node_name(node)));
    }

    /// Counts an operation that stays in the program.
    pub(super) fn enter_operation(&mut self, node: &NodeProto) -> Result<(), ImportError> {
        self.enter(node);
        self.operations += 1;
        match self.operations > MAX_OPERATIONS {
            true => {
                Err(problem_of(node, Problem::Unsupported(format!("more than {MAX_OPERATIONS} loops and branches"))))
            }
            false => Ok(()),
        }
    }

    fn add_if(&mut self, node: &'a NodeProto) -> Result<Vec<TensorId>, ImportError> {
        let condition = self.required(node, 0)?;
        if let Some(known) = self.builder.integers(condition) {
            let [value] = known[..] else {
                return Err(problem_of(node, Problem::Shape("its condition is no single value".to_string())));
            };
            let branch = self.graph_of(node, if value != 0 { "then_branch" } else { "else_branch" })?;
            self.check_outputs(node, &branch)?;
            return self.run_graph(node, &branch, &[]);
        }
        self.enter_operation(node)?;
        let mut branches = Vec::new();
        for name in ["then_branch", "else_branch"] {
            let body = self.graph_of(node, name)?;
            self.check_outputs(node, &body)?;
            self.builder.open_branch();
            let mut results = self.run_graph(node, &body, &[])?;
            results.truncate(node.output.len());
            self.enter(node);
            branches.push(self.builder.close_branch(&results).map_err(|problem| problem_of(node, problem))?);
        }
        let Ok(branches) = branches.try_into() else { return Ok(Vec::new()) };
        self.builder.conditional(condition, branches).map_err(|problem| problem_of(node, problem))
    }

    fn check_outputs(&self, node: &NodeProto, body: &Body<'a>) -> Result<(), ImportError> {
        let (given, wanted) = (body.outputs.len(), node.output.len());
        match given < wanted {
            true => Err(problem_of(node, Problem::Shape(format!("a branch has {given} outputs, not {wanted}")))),
            false => Ok(()),
        }
    }

    /// The tensor of an input that has to be there.
    pub(super) fn required(&self, node: &'a NodeProto, position: usize) -> Result<TensorId, ImportError> {
        let operand = self.operands(node)?.get(position).copied().flatten();
        operand.map(|operand| operand.tensor).ok_or_else(|| problem_of(node, Problem::MissingInput(position)))
    }

    /// Number of iterations, condition, states -> last states, collected values. The body takes the iteration, the
    /// condition and the states, and gives the condition, the states, and what is collected.
    fn add_loop(&mut self, node: &'a NodeProto) -> Result<Vec<TensorId>, ImportError> {
        let operands = self.operands(node)?;
        let given = |position: usize| operands.get(position).copied().flatten().map(|Operand { tensor, .. }| tensor);
        let states =
            (2..operands.len()).map(|position| self.required(node, position)).collect::<Result<Vec<_>, _>>()?;
        let body = self.graph_of(node, "body")?;
        if body.inputs.len() != 2 + states.len() || body.outputs.len() < 1 + states.len() {
            let what = format!("a body of {} inputs and {} outputs", body.inputs.len(), body.outputs.len());
            return Err(problem_of(node, Problem::Shape(format!("{what} for {} states", states.len()))));
        }
        let trips = self.single(node, given(0), 0)?;
        match self.single(node, given(1), 1)? {
            Some(0) => return self.without_iteration(node, states),
            _ if trips.is_some_and(|trips| trips <= 0) => return self.without_iteration(node, states),
            _ => {}
        }
        let size = body.size.max(1);
        let unrolled = trips.is_none_or(|trips| trips.saturating_mul(size as i64) <= MAX_UNROLLED_NODES as i64);
        let (mut last, collected) = match trips {
            Some(trips) if !unrolled => self.repeat_loop(node, &body, trips, states)?,
            _ => self.unroll_loop(node, &body, trips, states)?,
        };
        last.extend(collected);
        last.truncate(node.output.len());
        Ok(last)
    }

    /// An integer or a Boolean that has to be known; `None` where it is left out.
    fn single(
        &self,
        node: &'a NodeProto,
        tensor: Option<TensorId>,
        position: usize,
    ) -> Result<Option<i64>, ImportError> {
        let Some(tensor) = tensor else { return Ok(None) };
        match self.builder.integers(tensor).as_deref() {
            Some([value]) => Ok(Some(*value)),
            Some(_) => Err(problem_of(node, Problem::Shape(format!("input {position} is no single value")))),
            None => Err(problem_of(node, Problem::NotConstant(position))),
        }
    }

    /// The states are as they were; nothing tells the shape of what would have been collected.
    fn without_iteration(&self, node: &'a NodeProto, states: Vec<TensorId>) -> Result<Vec<TensorId>, ImportError> {
        match node.output.iter().skip(states.len()).all(String::is_empty) {
            true => Ok(states),
            false => Err(problem_of(node, Problem::Unsupported("a loop that never runs, but collects values".into()))),
        }
    }

    fn unroll_loop(
        &mut self,
        node: &'a NodeProto,
        body: &Body<'a>,
        trips: Option<i64>,
        mut states: Vec<TensorId>,
    ) -> Result<Results, ImportError> {
        let kept = states.len();
        let mut collected: Vec<Vec<TensorId>> = vec![Vec::new(); body.outputs.len() - 1 - kept];
        for iteration in 0.. {
            if trips.is_some_and(|trips| iteration >= trips) {
                break;
            }
            if (iteration as usize).saturating_mul(body.size.max(1)) > MAX_UNROLLED_NODES {
                let what = format!("a loop whose end is not found within {MAX_UNROLLED_NODES} nodes");
                return Err(problem_of(node, Problem::Unsupported(what)));
            }
            let number = self.builder.constant(TensorData::from_i64(vec![], &[iteration]));
            let going = self.builder.constant(TensorData::from_bool(vec![], &[true]));
            let arguments: Vec<TensorId> = [number, going].into_iter().chain(states.iter().copied()).collect();
            let results = self.run_graph(node, body, &arguments)?;
            states = results[1..1 + kept].to_vec();
            for (parts, part) in collected.iter_mut().zip(&results[1 + kept..]) {
                parts.push(*part);
            }
            match self.builder.integers(results[0]).as_deref() {
                Some([0]) => break,
                Some([_]) => {}
                _ => return Err(problem_of(node, Problem::Unsupported(RUN_TIME_CONDITION.to_string()))),
            }
        }
        self.enter(node);
        let wanted = node.output.len().saturating_sub(kept);
        let stacked = collected.iter().take(wanted).map(|parts| stack(&mut self.builder, parts, 0));
        let stacked = stacked.collect::<Result<Vec<_>, _>>().map_err(|problem| problem_of(node, problem))?;
        Ok((states, stacked))
    }

    fn repeat_loop(
        &mut self,
        node: &'a NodeProto,
        body: &Body<'a>,
        trips: i64,
        states: Vec<TensorId>,
    ) -> Result<Results, ImportError> {
        let wanted = node.output.len().saturating_sub(states.len());
        let wrong = |problem| problem_of(node, problem);
        self.enter_operation(node)?;
        let numbers = match body.readers.contains_key(body.inputs[0]) {
            true if trips <= crate::graph::lower::MAX_ITERATIONS => {
                let numbers: Vec<i64> = (0..trips).collect();
                self.builder.reserve(&[trips], crate::workload::DType::I64).map_err(wrong)?;
                vec![(self.builder.constant(TensorData::from_i64(vec![trips], &numbers)), false)]
            }
            _ => vec![],
        };
        let going = self.builder.constant(TensorData::from_bool(vec![], &[true]));
        let zero = self.builder.constant(TensorData::from_i64(vec![], &[0]));
        let open = self.builder.open_repeat(trips, &states, &numbers).map_err(wrong)?;
        let number = open.parts().first().copied().unwrap_or(zero);
        let arguments: Vec<TensorId> = [number, going].into_iter().chain(open.currents()).collect();
        let results = self.run_graph(node, body, &arguments)?;
        if self.builder.integers(results[0]).as_deref() != Some(&[1]) {
            return Err(wrong(Problem::Unsupported(RUN_TIME_CONDITION.to_string())));
        }
        self.enter(node);
        let (next, parts) = results[1..].split_at(states.len());
        let parts: Vec<(TensorId, bool)> = parts.iter().take(wanted).map(|part| (*part, false)).collect();
        let closed = self.builder.close_repeat(open, next, &parts).map_err(wrong)?;
        Ok(closed)
    }
}

const RUN_TIME_CONDITION: &str = "a loop that ends when a computed condition says so";
