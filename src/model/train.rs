//! Training: what is learned from examples, step by step.
//!
//! The policy learns the decisions by cross entropy among the answers that were possible, weighted by
//! example. The value head learns to order the members of a group: a logistic loss on every pair (RankNet,
//! Burges et al. 2005), weighted by how much speed the pair is apart (as LambdaRank weighs by what a swap
//! would cost), at the last position and at a random earlier one; a small squared error keeps its scale.
//! Where prompts tell the quality that was reached, the value head could read it off: a quarter of the
//! batches stand behind prompts that do not, and half behind prompts that show other programs of the group
//! with their speeds, faster ones being asked for. Values are learned from those alone.
//!
//! A trained policy may go on to learn preferences, behind the prompt that asks for the best: to like the
//! faster of two members better than it did, more than the slower one (direct preference optimisation,
//! Rafailov et al., NeurIPS 2023), weighted by how far they are apart as above, beside the cross entropy of
//! the best decile.

use std::collections::BTreeMap;
use std::time::Instant;

use candle_core::Tensor;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rayon::iter::{IntoParallelRefIterator, ParallelIterator};
use serde::{Deserialize, Serialize};

use super::batch::{Batch, Behind, Lesson, epoch, split};
use super::example::{Example, check};
use super::losses::{Losses, Objective, Scales, total};
use super::optimizer::{AdamW, clip};
use super::shown::Groups;
use super::{Compute, Model, ModelError, Network};

/// How to train. Equal options, examples and models train equal weights on equal devices.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TrainingOptions {
    /// Passes over the examples, each of which leaves out some of the less important ones.
    pub epochs: f32,
    /// How likely an example of weight 0 is drawn for an epoch, relative to one of weight 1; 1 for epochs
    /// that show everything.
    pub least_share: f32,
    /// Examples of one group that share a prefix in a batch.
    pub members_per_batch: usize,
    /// Batches of one update.
    pub batches_per_step: usize,
    /// Learning rate after warm-up; it falls to a tenth along a cosine.
    pub learning_rate: f64,
    pub warmup_steps: usize,
    /// Decay of matrices (decoupled, AdamW).
    pub weight_decay: f64,
    /// Largest Euclidean norm of an update's gradients.
    pub gradient_clip: f64,
    /// Share of the value head's loss.
    pub value_weight: f64,
    /// Share of the squared error in the value head's loss.
    pub value_anchor: f64,
    /// Share of the loss of preferences; 0 where none are learned.
    pub preference_weight: f64,
    /// How fast that loss falls with what the policy likes one better than the other, in nats of the whole
    /// sequences; the lower, the farther the policy goes from where it started.
    pub preference_sharpness: f64,
    /// Share of the groups that is held out to stop by; 0 for none.
    pub held_out: f32,
    /// Steps between evaluations on the held-out groups; 0 for once an epoch.
    pub evaluate_every: usize,
    /// Evaluations without improvement before training ends.
    pub patience: usize,
    pub seed: u64,
}

impl Default for TrainingOptions {
    fn default() -> TrainingOptions {
        TrainingOptions {
            epochs: 10.0,
            least_share: 0.2,
            members_per_batch: 16,
            batches_per_step: 4,
            learning_rate: 2e-3,
            warmup_steps: 100,
            weight_decay: 0.05,
            gradient_clip: 1.0,
            value_weight: 0.5,
            value_anchor: 0.1,
            preference_weight: 0.0,
            preference_sharpness: 0.1,
            held_out: 0.1,
            evaluate_every: 0,
            patience: 4,
            seed: 0,
        }
    }
}

/// Quality on the held-out groups.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Evaluation {
    /// Nats for each decision, among its possible answers.
    pub policy_loss: f32,
    pub value_loss: f32,
    /// Share of pairs of a group that the value head orders rightly; 0.5 is chance.
    pub ranking_accuracy: f32,
    /// Nats for each decision of programs faster than those that are shown before them.
    pub shown_policy_loss: f32,
    /// Share of pairs that are ordered rightly behind other programs of the group.
    pub shown_ranking_accuracy: f32,
    /// Where preferences are learned: their loss, and the share of pairs of which the policy gives the faster
    /// one the higher probability.
    pub preferences: Option<(f32, f32)>,
}

impl Evaluation {
    /// The share of pairs of which the policy gives the faster one the higher probability, where preferences
    /// are learned.
    pub fn preferred(&self) -> Option<f32> {
        self.preferences.map(|(_, accuracy)| accuracy)
    }

    /// Whether a policy has become better: where preferences are learned, if it likes the faster of two
    /// programs better more often. Their likelihoods fall then, those of fast ones, too, so that the policy
    /// loss tells nothing.
    pub fn is_better_than(&self, before: &Evaluation) -> bool {
        match (self.preferred(), before.preferred()) {
            (Some(after), Some(before)) => after > before,
            _ => self.policy_loss < before.policy_loss,
        }
    }
}

/// After a step.
#[derive(Clone, Debug)]
pub struct Progress {
    /// Steps done, of `steps`.
    pub step: usize,
    pub steps: usize,
    /// Nats for each decision of this step.
    pub policy_loss: f32,
    pub value_loss: f32,
    pub learning_rate: f64,
    /// Since this trainer was made; shared prefixes count once.
    pub positions_per_second: f64,
    /// Seconds to the last step at this rate.
    pub seconds_left: f64,
    /// If this step was evaluated.
    pub evaluation: Option<Evaluation>,
}

/// Batches of the held-out groups that an evaluation looks at: more would tell little more, and take minutes.
const MOST_EVALUATED: usize = 600;

/// A training run. [`Trainer::step`] until it returns `None`; [`Trainer::save`] whenever the run should be
/// resumable.
pub struct Trainer<'a> {
    pub(super) network: Network,
    /// The policy that preferences are relative to, where they are learned: as it was at first.
    pub(super) reference: Option<Network>,
    pub(super) optimizer: AdamW,
    pub(super) options: TrainingOptions,
    pub(super) examples: &'a [Example],
    train: Vec<usize>,
    held: Vec<usize>,
    /// Of those that are trained with, and of those held out.
    groups: [Groups; 2],
    steps_per_epoch: usize,
    /// Batches of the epoch of this number.
    schedule: (u64, Vec<Vec<usize>>),
    pub(super) best: Option<Best>,
    /// Evaluations since the best.
    pub(super) stale: usize,
    started: Instant,
    done_before: usize,
    positions: usize,
}

/// The weights with the lowest held-out objective.
pub(super) struct Best {
    pub model: Model,
    pub objective: f32,
}

impl<'a> Trainer<'a> {
    /// # Errors
    /// Examples that do not fit the model, options out of range, a device that is not there.
    pub fn new(
        model: &Model,
        examples: &'a [Example],
        options: TrainingOptions,
        compute: Compute,
    ) -> Result<Trainer<'a>, ModelError> {
        validate(&options)?;
        check(examples, model.config())?;
        let (train, held) = split(examples, options.held_out);
        let schedule = epoch(examples, &train, options.members_per_batch, options.least_share, (options.seed, 0));
        if schedule.is_empty() {
            return Err(ModelError::Options("there are no examples to train with".into()));
        }
        let network = Network::new(model, compute)?;
        let reference = match options.preference_weight > 0.0 {
            true => Some(Network::new(model, compute)?),
            false => None,
        };
        Ok(Trainer {
            reference,
            optimizer: AdamW::new(network.variables(), options.weight_decay)?,
            network,
            steps_per_epoch: schedule.len().div_ceil(options.batches_per_step),
            schedule: (0, schedule),
            options,
            examples,
            groups: [Groups::new(examples, &train), Groups::new(examples, &held)],
            train,
            held,
            best: None,
            stale: 0,
            started: Instant::now(),
            done_before: 0,
            positions: 0,
        })
    }

    /// Number of steps if nothing stops early.
    pub fn steps(&self) -> usize {
        (self.steps_per_epoch as f64 * f64::from(self.options.epochs)).ceil() as usize
    }

    /// One update; `None` once all steps are done or the held-out groups no longer improve.
    ///
    /// # Errors
    /// [`ModelError::Diverged`], or a failure of the device.
    pub fn step(&mut self) -> Result<Option<Progress>, ModelError> {
        let (step, steps) = (self.optimizer.step, self.steps());
        if step >= steps || (!self.held.is_empty() && self.stale >= self.options.patience) {
            return Ok(None);
        }
        let batches = self.batches_of(step);
        let weight: f32 = batches.iter().flat_map(|batch| &batch.weights).sum();
        let (losses, mut gradients) = self.gradients(&batches, weight.max(f32::MIN_POSITIVE))?;
        let policy_loss = losses.policy_sum / losses.policy_weight.max(f32::MIN_POSITIVE);
        let value_loss = losses.values.mean_loss();
        let norm = clip(&mut gradients, self.options.gradient_clip)?;
        if !(policy_loss.is_finite() && value_loss.is_finite() && norm.is_finite()) {
            return Err(ModelError::Diverged { step, loss: policy_loss + value_loss });
        }
        let learning_rate = self.learning_rate(step, steps);
        self.optimizer.update(self.network.variables(), &gradients, learning_rate)?;
        self.positions += batches.iter().map(|batch| batch.positions).sum::<usize>();

        let step = step + 1;
        let every = if self.options.evaluate_every == 0 { self.steps_per_epoch } else { self.options.evaluate_every };
        let due = !self.held.is_empty() && (step.is_multiple_of(every) || step == steps);
        let evaluation = if due { Some(self.evaluate_and_keep_best()?) } else { None };
        let seconds = self.started.elapsed().as_secs_f64();
        let done = step - self.done_before;
        Ok(Some(Progress {
            step,
            steps,
            policy_loss,
            value_loss,
            learning_rate,
            positions_per_second: self.positions as f64 / seconds.max(1e-9),
            seconds_left: seconds / done.max(1) as f64 * (steps - step) as f64,
            evaluation,
        }))
    }

    /// The best model so far by the held-out groups, or the latest where none are held out.
    ///
    /// # Errors
    /// Weights that are no longer finite.
    pub fn model(&self) -> Result<Model, ModelError> {
        match &self.best {
            Some(best) => Ok(best.model.clone()),
            None => self.network.model(),
        }
    }

    /// Quality on the held-out groups, of the weights as they are now; `None` where none are held out.
    ///
    /// # Errors
    /// A failure of the device.
    pub fn evaluate(&self) -> Result<Option<Evaluation>, ModelError> {
        if self.held.is_empty() {
            return Ok(None);
        }
        let mut chunks = epoch(self.examples, &self.held, self.options.members_per_batch, 1.0, (self.options.seed, 0));
        // they come in random order
        chunks.truncate(MOST_EVALUATED);
        let mut random = ChaCha8Rng::seed_from_u64(self.options.seed);
        let mut measured = |behind: Behind<'_>| -> Result<Losses, ModelError> {
            let batch = |chunk: &Vec<usize>| Batch::new(self.examples, chunk, behind, &mut random);
            let batches: Vec<Batch<'_>> = chunks.iter().map(batch).collect();
            let objective = self.objective();
            let alike = Scales { policy: 1.0, values: 1.0, preferences: 1.0 };
            let one =
                |batch: &Batch<'_>| objective.losses(batch, alike).map(|losses| Losses { objective: None, ..losses });
            Ok(total(self.each(&batches, one)?))
        };
        let (told, blind) = (measured(Behind::Told)?, measured(Behind::Blind)?);
        let shown = measured(Behind::Shown(&self.groups[1], self.network.config().max_sequence))?;
        let preferences = match self.reference {
            Some(_) => Some(measured(Behind::Asking)?.preferences),
            None => None,
        };
        let policy_loss = |losses: &Losses| losses.policy_sum / losses.policy_weight.max(f32::MIN_POSITIVE);
        Ok(Some(Evaluation {
            policy_loss: policy_loss(&told),
            value_loss: blind.values.mean_loss(),
            ranking_accuracy: blind.values.accuracy(),
            shown_policy_loss: policy_loss(&shown),
            shown_ranking_accuracy: shown.values.accuracy(),
            preferences: preferences.map(|found| (found.mean_loss(), found.accuracy())),
        }))
    }

    /// Continues behind `steps` updates that another trainer did.
    pub(super) fn continue_from(&mut self, steps: usize) {
        self.optimizer.step = steps;
        self.done_before = steps;
    }

    fn evaluate_and_keep_best(&mut self) -> Result<Evaluation, ModelError> {
        let none = || ModelError::Options("no group is held out".into());
        let evaluation = self.evaluate()?.ok_or_else(none)?;
        // what is preferred is good, whether it was measured or not
        let policy = match evaluation.preferences {
            Some((loss, _)) => loss,
            None => evaluation.policy_loss,
        };
        let objective = policy + self.options.value_weight as f32 * evaluation.value_loss;
        if self.best.as_ref().is_none_or(|best| objective < best.objective) {
            self.best = Some(Best { model: self.network.model()?, objective });
            self.stale = 0;
        } else {
            self.stale += 1;
        }
        Ok(evaluation)
    }

    /// Linear warm-up, then a cosine down to a tenth.
    fn learning_rate(&self, step: usize, steps: usize) -> f64 {
        let (peak, warmup) = (self.options.learning_rate, self.options.warmup_steps);
        if step < warmup {
            return peak * (step + 1) as f64 / warmup as f64;
        }
        let done = (step - warmup) as f64 / steps.saturating_sub(warmup).max(1) as f64;
        peak * (0.55 + 0.45 * (std::f64::consts::PI * done).cos())
    }

    /// A step's batches: a function of the seed and the step, so that a resumed run sees what an unbroken one
    /// would.
    fn batches_of(&mut self, step: usize) -> Vec<Batch<'a>> {
        let number = (step / self.steps_per_epoch) as u64;
        if self.schedule.0 != number {
            let TrainingOptions { members_per_batch: size, least_share, seed, .. } = self.options;
            self.schedule = (number, epoch(self.examples, &self.train, size, least_share, (seed, number)));
        }
        let mut random = ChaCha8Rng::seed_from_u64(self.options.seed);
        random.set_stream(2 * step as u64 + 1);
        let first = (step % self.steps_per_epoch) * self.options.batches_per_step;
        let chunks = self.schedule.1.iter().enumerate().skip(first).take(self.options.batches_per_step);
        let shown = Behind::Shown(&self.groups[0], self.network.config().max_sequence);
        let behind = match self.reference {
            Some(_) => [Behind::Asking, shown, Behind::Asking, Behind::Blind],
            None => [Behind::Told, shown, Behind::Blind, shown],
        };
        chunks.map(|(at, chunk)| Batch::new(self.examples, chunk, behind[at % 4], &mut random)).collect()
    }

    /// Losses and gradients of several batches together.
    fn gradients(&self, batches: &[Batch<'_>], weight: f32) -> Result<(Losses, BTreeMap<String, Tensor>), ModelError> {
        let share =
            |lesson| 1.0 / batches.iter().filter(|batch: &&Batch<'_>| batch.lesson == lesson).count().max(1) as f64;
        let scales = Scales {
            policy: 1.0 / f64::from(weight),
            values: share(Lesson::Values) * self.options.value_weight,
            preferences: share(Lesson::Preferences) * self.options.preference_weight,
        };
        let objective = self.objective();
        let results = self.each(batches, |batch| {
            let mut losses = objective.losses(batch, scales)?;
            let mut gradients = BTreeMap::new();
            if let Some(objective) = losses.objective.take() {
                let store = objective.backward()?;
                for (name, variable) in self.network.variables() {
                    if let Some(gradient) = store.get(variable) {
                        gradients.insert(name.clone(), gradient.clone());
                    }
                }
            }
            Ok((losses, gradients))
        })?;
        let (losses, gradients): (Vec<_>, Vec<_>) = results.into_iter().unzip();
        let mut sum: BTreeMap<String, Tensor> = BTreeMap::new();
        for (name, gradient) in gradients.into_iter().flatten() {
            let added = match sum.get(&name) {
                Some(before) => (before + gradient)?,
                None => gradient,
            };
            sum.insert(name, added);
        }
        Ok((total(losses), sum))
    }

    fn objective(&self) -> Objective<'_> {
        Objective {
            network: &self.network,
            reference: self.reference.as_ref(),
            anchor: self.options.value_anchor,
            sharpness: self.options.preference_sharpness,
        }
    }

    /// Applies `function` to each batch: on the CPU on all cores at once, since most of candle's kernels use
    /// one; on a GPU one after the other.
    fn each<T: Send>(
        &self,
        batches: &[Batch<'_>],
        function: impl Fn(&Batch<'_>) -> Result<T, ModelError> + Sync,
    ) -> Result<Vec<T>, ModelError> {
        if self.network.device().is_cpu() {
            batches.par_iter().map(&function).collect()
        } else {
            batches.iter().map(&function).collect()
        }
    }
}

fn validate(options: &TrainingOptions) -> Result<(), ModelError> {
    let positive = [
        ("epochs", f64::from(options.epochs)),
        ("learning_rate", options.learning_rate),
        ("gradient_clip", options.gradient_clip),
        ("members_per_batch", options.members_per_batch as f64),
        ("batches_per_step", options.batches_per_step as f64),
        ("preference_sharpness", options.preference_sharpness),
    ];
    let not_negative = [
        ("weight_decay", options.weight_decay),
        ("value_weight", options.value_weight),
        ("value_anchor", options.value_anchor),
        ("preference_weight", options.preference_weight),
    ];
    if let Some((name, value)) = positive.iter().find(|(_, v)| !(v.is_finite() && *v > 0.0)) {
        return Err(ModelError::Options(format!("{name} is {value}, it must be above 0")));
    }
    if let Some((name, value)) = not_negative.iter().find(|(_, v)| !(v.is_finite() && *v >= 0.0)) {
        return Err(ModelError::Options(format!("{name} is {value}, it must be 0 or more")));
    }
    if !(0.0..=1.0).contains(&options.least_share) {
        return Err(ModelError::Options(format!("least_share is {}, it must be from 0 to 1", options.least_share)));
    }
    match options.held_out {
        share if (0.0..1.0).contains(&share) => Ok(()),
        share => Err(ModelError::Options(format!("held_out is {share}, it must be 0 or more and below 1"))),
    }
}
