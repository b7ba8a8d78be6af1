//! `Scan`: a loop over elements of tensors.

use super::body::Body;
use super::control::MAX_UNROLLED_NODES;
use super::error::ImportError;
use super::network::{Import, problem_of};
use super::proto::NodeProto;
use crate::graph::lower::{Problem, element, move_axis, normal_axis, stack};
use crate::workload::{Index, TensorId};

/// The last states, and what was collected.
type Results = (Vec<TensorId>, Vec<TensorId>);

/// What a `Scan` does with each of its tensors.
struct Plan {
    /// Its tensors, the axis that is gone through in front; whether backwards.
    scanned: Vec<(TensorId, bool)>,
    /// How many elements each of them has: a constant, or a formula.
    count: Index,
    /// Where the new axis of what is collected lies, and whether it is filled backwards.
    collected: Vec<(i64, bool)>,
}

impl<'a> Import<'a> {
    pub(super) fn add_scan(&mut self, node: &'a NodeProto) -> Result<Vec<TensorId>, ImportError> {
        let body = self.graph_of(node, "body")?;
        let inputs = self.ints_of(node, "num_scan_inputs")?;
        let Some([scanned]) = inputs.as_deref() else {
            return Err(problem_of(node, Problem::MissingAttribute("num_scan_inputs")));
        };
        let batched = self.opset() < 9;
        if batched && self.operands(node)?.first().copied().flatten().is_some() {
            return Err(problem_of(node, Problem::Unsupported("a Scan over sequences of different lengths".into())));
        }
        let first = usize::from(batched);
        let given = (first..node.input.len()).map(|position| self.required(node, position));
        let given = given.collect::<Result<Vec<_>, _>>()?;
        let states = usize::try_from(*scanned).ok().filter(|n| *n >= 1).and_then(|n| given.len().checked_sub(n));
        let states = states.filter(|states| body.inputs.len() == given.len() && body.outputs.len() >= *states);
        let Some(states) = states else {
            let (inputs, outputs) = (body.inputs.len(), body.outputs.len());
            let what = format!("a body of {inputs} inputs and {outputs} outputs for {} inputs", given.len());
            return Err(problem_of(node, Problem::Shape(what)));
        };
        let mut results = match batched {
            true => self.scan_batch(node, &body, &given, states)?,
            false => self.scan(node, &body, &given, states)?,
        };
        results.truncate(node.output.len());
        Ok(results)
    }

    /// Before opset 9, all tensors have a batch in front, whose parts are independent of one another.
    fn scan_batch(
        &mut self,
        node: &'a NodeProto,
        body: &Body<'a>,
        given: &[TensorId],
        states: usize,
    ) -> Result<Vec<TensorId>, ImportError> {
        let wrong = |problem| problem_of(node, problem);
        let is_open = |tensor: &TensorId| self.builder.tensor(*tensor).extents.get(0).is_some();
        if given.iter().any(is_open) {
            let what = "a Scan of an opset before 9 over a run-time number of sequences";
            return Err(wrong(Problem::Unsupported(what.to_string())));
        }
        let batch = self.builder.shape(given[0]).first().copied().unwrap_or(0);
        if batch < 1 || given.iter().any(|tensor| self.builder.shape(*tensor).first() != Some(&batch)) {
            return Err(wrong(Problem::Shape("the inputs have no common batch".to_string())));
        }
        let mut parts: Vec<Vec<TensorId>> = vec![Vec::new(); node.output.len()];
        for row in 0..batch {
            self.enter(node);
            let rows = given.iter().map(|tensor| element(&mut self.builder, *tensor, 0, row));
            let rows = rows.collect::<Result<Vec<_>, _>>().map_err(wrong)?;
            let results = self.scan(node, body, &rows, states)?;
            parts.iter_mut().zip(results).for_each(|(parts, result)| parts.push(result));
        }
        self.enter(node);
        parts.iter().map(|parts| stack(&mut self.builder, parts, 0).map_err(wrong)).collect()
    }

    fn scan(
        &mut self,
        node: &'a NodeProto,
        body: &Body<'a>,
        given: &[TensorId],
        states: usize,
    ) -> Result<Vec<TensorId>, ImportError> {
        let wrong = |problem| problem_of(node, problem);
        let plan = self.scan_plan(node, body, &given[states..], states)?;
        let states = given[..states].to_vec();
        let is_short = |count: &i64| count.saturating_mul(body.size.max(1) as i64) <= MAX_UNROLLED_NODES as i64;
        let (mut results, collected) = match plan.count.as_constant().filter(is_short) {
            Some(count) => self.unroll_scan(node, body, &plan, count, states)?,
            None => self.repeat_scan(node, body, &plan, states)?,
        };
        for (whole, (axis, _)) in collected.into_iter().zip(&plan.collected) {
            let rank = self.builder.rank(whole);
            let axis = normal_axis(*axis, rank).map_err(wrong)?;
            results.push(move_axis(&mut self.builder, whole, 0, axis).map_err(wrong)?);
        }
        Ok(results)
    }

    fn scan_plan(
        &mut self,
        node: &'a NodeProto,
        body: &Body<'a>,
        scanned: &[TensorId],
        states: usize,
    ) -> Result<Plan, ImportError> {
        let wrong = |problem| problem_of(node, problem);
        let outputs = body.outputs.len() - states;
        let list = |this: &Self, name: &'static str, count: usize| -> Result<Vec<i64>, ImportError> {
            let values = this.ints_of(node, name)?.unwrap_or_else(|| vec![0; count]);
            match values.len() == count {
                true => Ok(values),
                false => Err(wrong(Problem::AttributeValue { name, value: format!("{values:?}") })),
            }
        };
        let forward = if self.opset() < 9 { "directions" } else { "scan_input_directions" };
        let directions = list(self, forward, scanned.len())?;
        let axes = list(self, "scan_input_axes", scanned.len())?;
        let output_axes = list(self, "scan_output_axes", outputs)?;
        let output_directions = list(self, "scan_output_directions", outputs)?;
        self.enter(node);
        let mut plan = Plan { scanned: Vec::new(), count: Index::constant(0), collected: Vec::new() };
        for ((tensor, axis), direction) in scanned.iter().zip(&axes).zip(&directions) {
            let axis = normal_axis(*axis, self.builder.rank(*tensor)).map_err(wrong)?;
            let moved = move_axis(&mut self.builder, *tensor, axis, 0).map_err(wrong)?;
            let length = self.builder.extents(moved)[0].clone();
            let first = plan.scanned.first().map_or(moved, |(first, _)| *first);
            let lengths = [length.as_constant(), self.builder.extents(first)[0].as_constant()].map(|n| n.unwrap_or(1));
            let misfit = || Problem::Unsupported(format!("a Scan over {} elements beside {}", lengths[0], lengths[1]));
            if lengths[0] < 1 {
                return Err(wrong(misfit()));
            }
            self.builder.unify_dimensions((moved, 0), (first, 0), misfit).map_err(wrong)?;
            if plan.scanned.is_empty() {
                plan.count = length;
            }
            plan.scanned.push((moved, *direction != 0));
        }
        plan.collected = output_axes.into_iter().zip(output_directions.iter().map(|d| *d != 0)).collect();
        Ok(plan)
    }

    fn unroll_scan(
        &mut self,
        node: &'a NodeProto,
        body: &Body<'a>,
        plan: &Plan,
        count: i64,
        mut states: Vec<TensorId>,
    ) -> Result<Results, ImportError> {
        let wrong = |problem| problem_of(node, problem);
        let kept = states.len();
        let mut collected: Vec<Vec<TensorId>> = vec![Vec::new(); plan.collected.len()];
        for iteration in 0..count {
            self.enter(node);
            let mut arguments = states;
            for (whole, reversed) in &plan.scanned {
                let place = if *reversed { count - 1 - iteration } else { iteration };
                arguments.push(element(&mut self.builder, *whole, 0, place).map_err(wrong)?);
            }
            let results = self.run_on_tensors(node, body, &arguments)?;
            states = results[..kept].to_vec();
            for (parts, part) in collected.iter_mut().zip(&results[kept..]) {
                parts.push(*part);
            }
        }
        self.enter(node);
        let mut stacked = Vec::new();
        for (mut parts, (_, reversed)) in collected.into_iter().zip(&plan.collected) {
            if *reversed {
                parts.reverse();
            }
            stacked.push(stack(&mut self.builder, &parts, 0).map_err(wrong)?);
        }
        Ok((states, stacked))
    }

    fn repeat_scan(
        &mut self,
        node: &'a NodeProto,
        body: &Body<'a>,
        plan: &Plan,
        states: Vec<TensorId>,
    ) -> Result<Results, ImportError> {
        let wrong = |problem| problem_of(node, problem);
        self.enter(node);
        let open = self.builder.open_repeat(&plan.count, &states, &plan.scanned).map_err(wrong)?;
        let arguments = [open.currents(), open.parts()].concat();
        let results = self.run_on_tensors(node, body, &arguments)?;
        self.enter(node);
        let (next, parts) = results.split_at(states.len());
        let parts: Vec<(TensorId, bool)> =
            parts.iter().zip(&plan.collected).map(|(part, (_, reversed))| (*part, *reversed)).collect();
        let closed = self.builder.close_repeat(open, next, &parts).map_err(wrong)?;
        Ok(closed)
    }
}
