//! What a batch of examples teaches a network, as losses.

use candle_core::{DType, Tensor};

use super::batch::{Batch, Lesson};
use super::{ModelError, Network};

/// Losses of one batch, as sums.
#[derive(Default)]
pub(super) struct Losses {
    /// To be differentiated.
    pub objective: Option<Tensor>,
    /// Nats of all decisions that count, and how many these are, by their weights.
    pub policy_sum: f32,
    pub policy_weight: f32,
    pub values: Ranked,
    pub preferences: Ranked,
}

/// How members were ranked.
#[derive(Clone, Copy, Default)]
pub(super) struct Ranked {
    /// The sum of the losses of so many batches.
    loss: f32,
    batches: usize,
    /// Pairs in order, of all that differ.
    ordered: usize,
    pairs: usize,
}

impl Ranked {
    fn plus(self, other: Ranked) -> Ranked {
        Ranked {
            loss: self.loss + other.loss,
            batches: self.batches + other.batches,
            ordered: self.ordered + other.ordered,
            pairs: self.pairs + other.pairs,
        }
    }

    pub fn mean_loss(self) -> f32 {
        self.loss / self.batches.max(1) as f32
    }

    pub fn accuracy(self) -> f32 {
        self.ordered as f32 / self.pairs.max(1) as f32
    }
}

/// What the losses of a batch count in an update.
#[derive(Clone, Copy)]
pub(super) struct Scales {
    pub policy: f64,
    pub values: f64,
    pub preferences: f64,
}

/// What losses are computed with.
#[derive(Clone, Copy)]
pub(super) struct Objective<'a> {
    pub network: &'a Network,
    /// What preferences are relative to, where they are learned.
    pub reference: Option<&'a Network>,
    /// Share of the squared error in the loss of values.
    pub anchor: f64,
    /// See [`TrainingOptions::preference_sharpness`](super::TrainingOptions::preference_sharpness).
    pub sharpness: f64,
}

impl Objective<'_> {
    /// The objective is the sum of the losses, each times its scale.
    pub fn losses(&self, batch: &Batch<'_>, scales: Scales) -> Result<Losses, ModelError> {
        let device = self.network.device();
        let hidden = self.network.hidden(&batch.prefix, &batch.suffixes, batch.members)?;
        let mut losses = Losses { policy_weight: batch.weights.iter().sum(), ..Losses::default() };
        let mut objective = Tensor::zeros((), DType::F32, device)?;
        if batch.lesson == Lesson::Values {
            let (loss, ranked) = self.values(&hidden, batch)?;
            losses.values = ranked;
            objective = (objective + (loss * scales.values)?)?;
        }
        if !batch.rows.is_empty() {
            let likelihoods = likelihoods(self.network, &hidden, batch)?;
            let weights = Tensor::new(batch.weights.as_slice(), device)?;
            let policy_loss = (&likelihoods * weights)?.sum_all()?.neg()?;
            losses.policy_sum = policy_loss.to_scalar()?;
            objective = (objective + (policy_loss * scales.policy)?)?;
            if let (Lesson::Preferences, Some(reference)) = (batch.lesson, self.reference) {
                let (loss, ranked) = self.preferences(&likelihoods, batch, reference)?;
                losses.preferences = ranked;
                objective = (objective + (loss * scales.preferences)?)?;
            }
        }
        Ok(Losses { objective: Some(objective), ..losses })
    }

    /// The loss of the values of a batch, at the end of its members and at an earlier position of each.
    fn values(&self, hidden: &Tensor, batch: &Batch<'_>) -> Result<(Tensor, Ranked), ModelError> {
        let value_at = |rows: &[u32]| -> Result<Tensor, ModelError> {
            self.network.value(&hidden.index_select(&Tensor::new(rows, self.network.device())?, 0)?)
        };
        let (last, early) = (value_at(&batch.last_rows)?, value_at(&batch.early_rows)?);
        let loss = ((self.ranking_loss(&last, &batch.scores)? + self.ranking_loss(&early, &batch.scores)?)? / 2.0)?;
        let (ordered, pairs) = count_ordered(&last.to_vec1()?, &batch.scores);
        let ranked = Ranked { loss: loss.to_scalar()?, batches: 1, ordered, pairs };
        Ok((loss, ranked))
    }

    /// The loss of the preferences of a batch: by how much its members became likelier is to order them.
    fn preferences(
        &self,
        likelihoods: &Tensor,
        batch: &Batch<'_>,
        reference: &Network,
    ) -> Result<(Tensor, Ranked), ModelError> {
        let device = self.network.device();
        let of_members = |likelihoods: &Tensor| -> Result<Tensor, ModelError> {
            let owners = Tensor::new(batch.member_of.as_slice(), device)?;
            Ok(Tensor::zeros(batch.members, DType::F32, device)?.index_add(&owners, likelihoods, 0)?)
        };
        let before = likelihoods_by(reference, batch)?.detach();
        let gained = of_members(&(likelihoods - before)?)?;
        let scaled = (gained * self.sharpness)?;
        let loss = match pairs_loss(&scaled, &batch.scores)? {
            Some(loss) => loss,
            None => Tensor::zeros((), DType::F32, device)?,
        };
        let (ordered, pairs) = count_ordered(&of_members(likelihoods)?.to_vec1()?, &batch.scores);
        let ranked = Ranked { loss: loss.to_scalar()?, batches: 1, ordered, pairs };
        Ok((loss, ranked))
    }

    /// The logistic loss of all pairs, and the anchor; a scalar.
    fn ranking_loss(&self, values: &Tensor, scores: &[f32]) -> Result<Tensor, ModelError> {
        let anchor = (values - Tensor::new(scores, self.network.device())?)?.sqr()?.mean_all()?;
        let anchor = (anchor * self.anchor)?;
        match pairs_loss(values, scores)? {
            Some(loss) => Ok((loss + anchor)?),
            None => Ok(anchor),
        }
    }
}

/// The log-likelihood of each thing that was chosen in a batch, by hidden states of its continuations.
fn likelihoods(network: &Network, hidden: &Tensor, batch: &Batch<'_>) -> Result<Tensor, ModelError> {
    let asked = hidden.index_select(&Tensor::new(batch.rows.as_slice(), network.device())?, 0)?;
    network.log_likelihoods(&asked, &batch.questions, &batch.chosen)
}

/// The same by a network alone.
fn likelihoods_by(network: &Network, batch: &Batch<'_>) -> Result<Tensor, ModelError> {
    likelihoods(network, &network.hidden(&batch.prefix, &batch.suffixes, batch.members)?, batch)
}

/// Mean logistic loss of all pairs, weighted by their distance in speed: a scalar; `None` where all are
/// equally fast.
fn pairs_loss(values: &Tensor, scores: &[f32]) -> Result<Option<Tensor>, ModelError> {
    let count = scores.len();
    let speeds: Vec<f32> = scores.iter().map(|score| score.min(0.0).exp()).collect();
    let weights: Vec<f32> =
        speeds.iter().flat_map(|better| speeds.iter().map(move |worse| (better - worse).max(0.0))).collect();
    let sum: f32 = weights.iter().sum();
    if sum <= 0.0 {
        return Ok(None);
    }
    let weights = Tensor::from_vec(weights, (count, count), values.device())?;
    let margins = values.unsqueeze(1)?.broadcast_sub(&values.unsqueeze(0)?)?;
    // ln(1 + exp(-m)) without overflow
    let tails = (margins.abs()?.neg()?.exp()? + 1.0)?.log()?;
    let logistic = (margins.neg()?.relu()? + tails)?;
    Ok(Some(((logistic * weights)?.sum_all()? / f64::from(sum))?))
}

/// Pairs with different scores, and how many of them the values order the same way.
fn count_ordered(values: &[f32], scores: &[f32]) -> (usize, usize) {
    let (mut ordered, mut pairs) = (0, 0);
    for i in 0..scores.len() {
        for j in (0..scores.len()).filter(|j| scores[i] > scores[*j]) {
            pairs += 1;
            ordered += usize::from(values[i] > values[j]);
        }
    }
    (ordered, pairs)
}

pub(super) fn total(losses: Vec<Losses>) -> Losses {
    losses.into_iter().fold(Losses::default(), |sum, one| Losses {
        objective: None,
        policy_sum: sum.policy_sum + one.policy_sum,
        policy_weight: sum.policy_weight + one.policy_weight,
        values: sum.values.plus(one.values),
        preferences: sum.preferences.plus(one.preferences),
    })
}
