//! `If` and `Loop`. What follows from constants is settled at once: one branch is taken, a short loop is
//! unrolled. The rest stays in the program.

use super::body::Body;
use super::counting::Count;
use super::error::ImportError;
use super::network::{Import, problem_of};
use super::proto::NodeProto;
use super::repetition::{End, Results};
use super::value::{Value, formed, forms_of, parts_of};
use crate::graph::TensorData;
use crate::graph::lower::{MAX_ITERATIONS, Problem, reshape_to, stack};
use crate::workload::{Index, TensorId};

/// A loop is unrolled if that makes so many nodes at most, those of inner loops counted once.
pub(super) const MAX_UNROLLED_NODES: usize = 1 << 12;

impl<'a> Import<'a> {
    /// An operator that holds graphs.
    pub(super) fn add_control(&mut self, node: &'a NodeProto) -> Result<Vec<Value>, ImportError> {
        match node.op_type.as_str() {
            "If" => self.add_if(node),
            "Loop" => self.add_loop(node),
            _ => Ok(self.add_scan(node)?.into_iter().map(Value::Tensor).collect()),
        }
    }

    /// What is appended next belongs to this node.
    pub(super) fn enter(&mut self, node: &NodeProto) {
        self.builder.enter(format!("{} {}", node.op_type, super::node_name(node)));
    }

    fn add_if(&mut self, node: &'a NodeProto) -> Result<Vec<Value>, ImportError> {
        let condition = self.required(node, 0)?;
        if let Some(known) = self.builder.integers(condition) {
            let [value] = known[..] else {
                return Err(problem_of(node, Problem::Shape("its condition is no single value".to_string())));
            };
            let branch = self.graph_of(node, if value != 0 { "then_branch" } else { "else_branch" })?;
            self.check_outputs(node, &branch)?;
            return self.run_graph(node, &branch, &[]);
        }
        if let Some(results) = self.add_only_branch(node, condition)? {
            return Ok(results);
        }
        self.enter(node);
        let (mut branches, mut forms) = (Vec::new(), Vec::new());
        for name in ["then_branch", "else_branch"] {
            let body = self.graph_of(node, name)?;
            self.check_outputs(node, &body)?;
            self.builder.open_branch();
            let mut results = self.run_graph(node, &body, &[])?;
            results.truncate(node.output.len());
            self.enter(node);
            forms.push(forms_of(&results));
            let closed = self.builder.close_branch(&parts_of(&results));
            branches.push(closed.map_err(|problem| problem_of(node, problem))?);
        }
        let Ok(branches) = branches.try_into() else { return Ok(Vec::new()) };
        let differ = || Problem::Unsupported("branches that give sequences of different lengths".to_string());
        if forms[0] != forms[1] {
            return Err(problem_of(node, differ()));
        }
        let results = self.builder.conditional(condition, branches);
        let results = results.and_then(|results| formed(&forms[0], results).ok_or_else(differ));
        results.map_err(|problem| problem_of(node, problem))
    }

    /// The results of the one branch that is needed: the other one gives tensors without elements, in the
    /// place of what has no elements then, either. Exporters write that where something may not be found:
    ///
    /// ```text
    /// if boxes · 4 == 0 { [] } else { f(boxes) }
    /// ```
    fn add_only_branch(&mut self, node: &'a NodeProto, condition: TensorId) -> Result<Option<Vec<Value>>, ImportError> {
        let known = self.builder.integer_formulas(condition);
        let Some([condition]) = known.as_deref() else { return Ok(None) };
        let holds_not = Index::constant(1).minus(condition);
        // what is 0 where the first of the branches is taken
        let ways = [("then_branch", "else_branch", &holds_not), ("else_branch", "then_branch", condition)];
        for (empty, other, zero) in ways {
            let (empty, other) = (self.graph_of(node, empty)?, self.graph_of(node, other)?);
            self.check_outputs(node, &empty)?;
            self.check_outputs(node, &other)?;
            if !empty.nodes.iter().all(|node| node.op_type == "Constant") {
                continue;
            }
            let nothing = self.run_graph(node, &empty, &[])?;
            let is_empty = |value: &Value| value.tensor().is_ok_and(|tensor| self.builder.shape(tensor).contains(&0));
            if !nothing.iter().all(is_empty) {
                continue;
            }
            let results = self.run_graph(node, &other, &[])?;
            self.enter(node);
            let fits = |(nothing, result): (&Value, &Value)| {
                let (Ok(nothing), Ok(result)) = (nothing.tensor(), result.tensor()) else { return false };
                self.builder.dtype(nothing) == self.builder.dtype(result)
                    && self.builder.rank(nothing) == self.builder.rank(result)
                    && self.builder.extents(result).iter().any(|extent| self.builder.vanishes_with(extent, zero))
            };
            if nothing.iter().zip(&results).take(node.output.len()).all(fits) {
                return Ok(Some(results));
            }
        }
        Ok(None)
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

    /// Number of iterations, condition, states -> last states, collected values. The body takes the
    /// iteration, the condition and the states, and gives the condition, the states, and what is collected.
    fn add_loop(&mut self, node: &'a NodeProto) -> Result<Vec<Value>, ImportError> {
        let values = self.values(node)?;
        let given = |position: usize| match values.get(position) {
            Some(Some(value)) => value.tensor().map(Some).map_err(|problem| problem_of(node, problem)),
            _ => Ok(None),
        };
        let missing = |position: usize| problem_of(node, Problem::MissingInput(position));
        let states = values.iter().enumerate().skip(2);
        let states = states.map(|(position, state)| state.clone().ok_or_else(|| missing(position)));
        let states = states.collect::<Result<Vec<_>, _>>()?;
        let body = self.graph_of(node, "body")?;
        if body.inputs.len() != 2 + states.len() || body.outputs.len() < 1 + states.len() {
            let what = format!("a body of {} inputs and {} outputs", body.inputs.len(), body.outputs.len());
            return Err(problem_of(node, Problem::Shape(format!("{what} for {} states", states.len()))));
        }
        // exporters write the greatest number of all where there is no bound
        let trips = self.trips(node, given(0)?)?;
        let trips = trips.filter(|trips| trips.as_constant().is_none_or(|trips| trips <= MAX_ITERATIONS));
        let fixed = trips.as_ref().and_then(Index::as_constant);
        let condition = match given(1)? {
            Some(condition) => Some(self.as_scalar(node, condition)?),
            None => None,
        };
        let known = condition.map(|condition| self.builder.integers(condition));
        if fixed.is_some_and(|trips| trips <= 0) || known == Some(Some(vec![0])) {
            return self.without_iteration(node, states);
        }
        let going = condition.filter(|_| known == Some(None));
        let counted = match going {
            None => self.counted_iterations(node, &body, trips.as_ref(), &states)?,
            Some(_) => None,
        };
        let is_counted = matches!(counted, Some(Count::Exactly(_)));
        let trips = counted.map(Count::into_formula).or(trips);
        let fixed = trips.as_ref().and_then(Index::as_constant);
        let size = body.size.max(1);
        let is_short = |trips: i64| trips.saturating_mul(size as i64) <= MAX_UNROLLED_NODES as i64;
        let unrolled = trips.is_none() || fixed.is_some_and(is_short);
        let found = match unrolled && going.is_none() {
            true => self.unroll_loop(node, &body, fixed, states.clone())?,
            false => None,
        };
        let Results { mut last, collected } = match found {
            Some(found) => found,
            None => {
                let end = if is_counted { End::Count } else { End::Condition { begins: going } };
                self.repeat_loop(node, &body, trips.as_ref(), end, &states)?
            }
        };
        last.extend(collected.into_iter().map(Value::Tensor));
        last.truncate(node.output.len());
        Ok(last)
    }

    /// The greatest number of iterations, which may be computed; `None`: there is no bound.
    fn trips(&mut self, node: &'a NodeProto, tensor: Option<TensorId>) -> Result<Option<Index>, ImportError> {
        let Some(tensor) = tensor else { return Ok(None) };
        self.enter(node);
        let found = match self.builder.integer_formulas(tensor) {
            Some(found) => Ok(found),
            None if self.builder.is_in_block() => Err(Problem::NotConstant(0)),
            None => self.builder.read(tensor, 1),
        };
        match found.map_err(|problem| problem_of(node, problem))?.as_slice() {
            [value] => Ok(Some(value.clone())),
            _ => Err(problem_of(node, Problem::Shape("its number of iterations is no single value".to_string()))),
        }
    }

    /// A condition of one element, in whatever shape it comes.
    pub(super) fn as_scalar(&mut self, node: &NodeProto, condition: TensorId) -> Result<TensorId, ImportError> {
        self.enter(node);
        reshape_to(&mut self.builder, condition, vec![]).map_err(|problem| problem_of(node, problem))
    }

    /// The states are as they were; nothing tells the shape of what would have been collected.
    fn without_iteration(&self, node: &'a NodeProto, states: Vec<Value>) -> Result<Vec<Value>, ImportError> {
        match node.output.iter().skip(states.len()).all(String::is_empty) {
            true => Ok(states),
            false => Err(problem_of(node, Problem::Unsupported("a loop that never runs, but collects values".into()))),
        }
    }

    /// `None` where the condition is not known after an iteration.
    fn unroll_loop(
        &mut self,
        node: &'a NodeProto,
        body: &Body<'a>,
        trips: Option<i64>,
        mut states: Vec<Value>,
    ) -> Result<Option<Results>, ImportError> {
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
            let fixed = [number, going].map(Value::Tensor);
            let arguments: Vec<Value> = fixed.into_iter().chain(states.iter().cloned()).collect();
            let mut results = self.run_graph(node, body, &arguments)?.into_iter();
            let goes_on = results.next().and_then(|goes_on| self.builder.integers(goes_on.tensor().ok()?));
            states = results.by_ref().take(kept).collect();
            for (parts, part) in collected.iter_mut().zip(results) {
                parts.push(part.tensor().map_err(|problem| problem_of(node, problem))?);
            }
            match goes_on.as_deref() {
                Some([0]) => break,
                Some([_]) => {}
                _ => return Ok(None),
            }
        }
        self.enter(node);
        let wanted = node.output.len().saturating_sub(kept);
        let stacked = collected.iter().take(wanted).map(|parts| stack(&mut self.builder, parts, 0));
        let stacked = stacked.collect::<Result<Vec<_>, _>>().map_err(|problem| problem_of(node, problem))?;
        Ok(Some(Results { last: states, collected: stacked }))
    }
}
