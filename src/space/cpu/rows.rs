//! Whether the stages of a task go through memory one after the other, or row by row.

use super::{number, numbers, site};
use crate::nest::rewrite::Refusal;
use crate::space::plan::shared_rows;
use crate::space::{Built, Plan, Rule, Stop, Tape};
use crate::target::Task;
use crate::workload::Role;

/// Joins the loops over leading axes that all stages share.
pub(super) struct Rows;

impl Rule for Rows {
    fn name(&self) -> &'static str {
        "rows"
    }

    fn version(&self) -> u32 {
        1
    }

    fn decide(&self, _: &Task, plan: &mut Plan, tape: &mut Tape<'_>) -> Result<(), Stop> {
        // joined rows pay where what one reduction leaves is reduced again, or used after another reduction
        let reductions = plan.groups.iter().filter(|g| plan.workload.stages[g.stage].is_reduction()).count();
        if reductions < 2 {
            return Ok(());
        }
        let shared = shared_rows(&plan.workload) as i64;
        let candidates: Vec<i64> = (0..=shared).collect();
        let answer = tape.choose(site(&["rows"]), numbers(&candidates), candidates.len() - 1)?;
        plan.rows = number(&answer) as usize;
        for group in &mut plan.groups {
            group.axes.drain(..plan.rows);
        }
        Ok(())
    }

    fn realise(&self, _: &Task, plan: &Plan, built: &mut Built) -> Result<(), Refusal> {
        for row in 0..plan.rows {
            let mut heads = Vec::new();
            for stage in &built.stages {
                heads.extend(stage.init.get(row));
                heads.extend(stage.axes.get(row));
            }
            built.nest = built.nest.join(&heads)?;
            let first = heads[0];
            for stage in &mut built.stages {
                if let Some(var) = stage.init.get_mut(row) {
                    *var = first;
                }
                stage.axes[row] = first;
            }
            built.rows.push(first);
        }
        Ok(())
    }
}

/// Gives every row its own instance of the intermediates.
pub(super) struct Privatise;

impl Rule for Privatise {
    fn name(&self) -> &'static str {
        "privatise"
    }

    fn version(&self) -> u32 {
        1
    }

    fn decide(&self, _: &Task, _: &mut Plan, _: &mut Tape<'_>) -> Result<(), Stop> {
        Ok(())
    }

    fn realise(&self, _: &Task, plan: &Plan, built: &mut Built) -> Result<(), Refusal> {
        if plan.rows == 0 {
            return Ok(());
        }
        for (id, tensor) in plan.workload.ids() {
            if tensor.role == Role::Intermediate && built.nest.uses(id) {
                built.nest = built.nest.privatise(id, &built.rows)?;
            }
        }
        Ok(())
    }
}
