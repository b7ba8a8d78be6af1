//! The world model's part: programs drafted by the thousand without nests, and a second opinion on the first
//! program that is measured.

use std::collections::HashSet;

use rand_chacha::ChaCha8Rng;

use super::options::{Heuristics, OPINION};
use super::{Asked, LanguageModel};
use crate::model::World;
use crate::propose::ProposeError;
use crate::propose::dynamics::{imagined, imagined_of};
use crate::propose::mutation::draft;
use crate::propose::pool::Valued;
use crate::space::{Decided, Trace};
use crate::target::{Kind, Task};

impl LanguageModel<'_> {
    /// The world model, where there is one that has learned of such machines, and knows the rules that make
    /// the rules' own program what it is.
    fn world(&self, task: &Task, rules: Option<&Trace>) -> Result<Option<&World>, ProposeError> {
        let is_of_a_cpu = task.target.kind() == Kind::Cpu && task.workload.is_fixed();
        let Some(world) = self.world.filter(|_| is_of_a_cpu && self.ingredients.drafted) else { return Ok(None) };
        let Ok(reader) = self.space.reader(Kind::Cpu, &world.spaces().cpu) else { return Ok(None) };
        let knows = rules.map_or(Ok(true), |rules| reader.writes(task, rules))?;
        Ok(knows.then_some(world))
    }

    /// The programs that the world model likes best of many that are drawn without a nest: mutations of the
    /// parents and of the best that was written, and others; fewer of either behind fewer samples. None where
    /// there is no such model.
    pub(super) fn drafted(
        &self,
        Asked { task, untuned, fastest, .. }: &Asked<'_>,
        written: &[&Trace],
        samples: usize,
        random: &mut ChaCha8Rng,
    ) -> Result<Vec<Trace>, ProposeError> {
        let Some(world) = self.world(task, untuned.first())? else { return Ok(Vec::new()) };
        let mut parents = [untuned.as_slice(), fastest].concat();
        let Heuristics { drafted, fresh, liked, continued, .. } = self.heuristics;
        let [drafted, liked] = [drafted, liked].map(|amount| self.heuristics.share_of(amount, samples));
        let best = |of: Vec<Trace>, ranks: Vec<f32>, count: usize| -> Vec<Trace> {
            let mut ranked: Vec<(f32, Trace)> = ranks.into_iter().zip(of).collect();
            ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
            ranked.into_iter().take(count).map(|(_, trace)| trace).collect()
        };
        if self.ingredients.continued {
            let written: Vec<Trace> = written.iter().copied().cloned().collect();
            let ranks = imagined(world, (self.space, &self.language), task, &written)?;
            parents.extend(best(written, ranks, continued));
        }
        let mut seen: HashSet<Trace> = HashSet::new();
        let drawn = draft(self.space, task, &parents, (drafted, fresh), random).into_iter().flatten();
        let drawn: Vec<Decided> = drawn.filter(|decided| seen.insert(decided.trace.clone())).collect();
        let ranks = imagined_of(world, (self.space, &self.language), task, &drawn)?;
        Ok(best(drawn.into_iter().map(|decided| decided.trace).collect(), ranks, liked))
    }

    /// Moves the program to the front that estimator and world model like best together. They see different
    /// things, nests and decisions, and err about different programs; the largest of many estimates by one of
    /// them is the one that errs most.
    pub(super) fn liked_by_both_first(&self, asked: &Asked<'_>, chosen: &mut [Valued]) -> Result<(), ProposeError> {
        let Asked { task, untuned, .. } = asked;
        let Some(world) = self.world(task, untuned.first())? else { return Ok(()) };
        let traces: Vec<Trace> = chosen.iter().map(|valued| valued.candidate.trace.clone()).collect();
        let ranks = imagined(world, (self.space, &self.language), task, &traces)?;
        let scores: Option<Vec<f32>> = chosen.iter().map(|valued| valued.candidate.value).collect();
        let Some(scores) = scores else { return Ok(()) };
        let both = liked_together(&scores, &ranks);
        // the first of equals
        if let Some(at) = (0..both.len()).rev().max_by(|a, b| both[*a].total_cmp(&both[*b])) {
            chosen[..=at].rotate_right(1);
        }
        Ok(())
    }
}

/// Scores by the estimator and the ranks of the world model, together.
pub fn liked_together(scores: &[f32], ranks: &[f32]) -> Vec<f32> {
    let together = |(score, rank): (f32, f32)| score + OPINION * rank;
    standard(scores).into_iter().zip(standard(ranks)).map(together).collect()
}

/// With mean 0 and deviation 1.
fn standard(values: &[f32]) -> Vec<f32> {
    let count = values.len().max(1) as f32;
    let mean = values.iter().sum::<f32>() / count;
    let deviation = (values.iter().map(|v| (v - mean) * (v - mean)).sum::<f32>() / count).sqrt().max(1e-6);
    values.iter().map(|v| (v - mean) / deviation).collect()
}
