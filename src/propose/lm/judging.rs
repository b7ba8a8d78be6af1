//! What the model and its estimator think of programs.

use super::{LanguageModel, refused};
use crate::language::Want;
use crate::model::{Adapted, Position, Step};
use crate::propose::pool::{Valued, by_value, in_order};
use crate::propose::sequence::trace_positions;
use crate::propose::train::Shared;
use crate::propose::{Candidate, ProposeError};
use crate::space::{Decision, Next, Trace};
use crate::target::Task;

impl LanguageModel<'_> {
    /// Values of traces, by the value head: the higher, the faster.
    ///
    /// # Errors
    /// As [`Proposer::propose`](crate::propose::Proposer::propose).
    pub fn judge(&self, task: &Task, traces: &[Trace]) -> Result<Vec<f32>, ProposeError> {
        let blind = self.prompt(task, Want::Any)?;
        let reader = self.reader(task)?;
        let known = |trace: &Trace| Ok(trace_positions(&self.language, &reader.known_part(task, trace)?));
        let sequences: Vec<Vec<Position>> = traces.iter().map(known).collect::<Result<_, ProposeError>>()?;
        self.decoder.values(&blind, &sequences).map_err(refused)
    }

    /// Natural logarithms of the probabilities that the policy gives to finished traces, behind the prompt
    /// that asks for the best.
    ///
    /// # Errors
    /// As [`Proposer::propose`](crate::propose::Proposer::propose), and for traces that are no programs.
    pub fn log_likelihoods(&self, task: &Task, traces: &[Trace]) -> Result<Vec<f64>, ProposeError> {
        let prompt = self.prompt(task, self.heuristics.want)?;
        let reader = self.reader(task)?;
        let mut shared = Shared::default();
        let mut steps = |trace: &Trace| {
            let decisions = self.space.decisions(task, trace);
            let decisions = decisions.ok_or_else(|| ProposeError::Model("a trace is no program".into()))?;
            let known: Vec<Decision> = decisions.into_iter().filter(|decision| reader.knows(decision)).collect();
            Ok(shared.steps(&self.language, &reader.known_part(task, trace)?, &known))
        };
        let sequences: Vec<Vec<Step>> = traces.iter().map(&mut steps).collect::<Result<_, ProposeError>>()?;
        self.decoder.log_likelihoods(&prompt, &sequences).map_err(refused)
    }

    /// Looks at programs; dead ends are left out.
    pub(super) fn valued(
        &self,
        task: &Task,
        estimator: Option<&Adapted>,
        pool: Vec<Candidate>,
    ) -> Result<Vec<Valued>, ProposeError> {
        let traces: Vec<Trace> = pool.iter().map(|candidate| candidate.trace.clone()).collect();
        let Some(ranking) = &self.ranking else {
            let values = self.judge(task, &traces)?;
            let mut legal = Vec::new();
            for (candidate, value) in pool.into_iter().zip(values) {
                if matches!(self.space.next(task, &candidate.trace)?, Next::Done(_)) {
                    let candidate = Candidate { value: Some(value), ..candidate };
                    legal.push(Valued { candidate, features: Vec::new(), expected: None });
                }
            }
            return Ok(legal);
        };
        let described = ranking.describe(task, traces)?;
        let looked_at = pool
            .into_iter()
            .zip(described)
            .filter_map(|(candidate, described)| Some(Valued::new(candidate, described?.features, estimator)));
        Ok(looked_at.collect())
    }

    /// A pool in the order in which it is worth measuring, where `wanted` programs are measured together.
    pub(super) fn ordered(
        &self,
        task: &Task,
        estimator: Option<&Adapted>,
        mut pool: Vec<Valued>,
        wanted: usize,
    ) -> Vec<Valued> {
        if self.ingredients.ranking {
            pool.sort_by(by_value);
        }
        let measured = self.ranking.iter().flat_map(|ranking| ranking.proposed(task));
        in_order(pool, measured, estimator.filter(|_| self.ingredients.ranking), wanted)
    }
}
