//! The transformer as a differentiable candle graph, on the CPU or on CUDA.
//!
//! A batch is one prefix and several continuations of it. The prefix goes through the network once, and every
//! continuation attends to it: the records of a task share their prompt, so that training does not pay for it
//! again and again.

use std::collections::BTreeMap;
use std::sync::Arc;

use candle_core::{D, DType, Device, Tensor, Var};

use super::fused;
use super::kernels::NORM_EPSILON;
use super::position::{check_answers, check_positions, slotted};
use super::{Config, Model, ModelError, Position};

/// Where to train.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Compute {
    #[default]
    Cpu,
    /// The CUDA device of this number; needs a build with the feature `cuda`.
    Cuda(usize),
}

impl Compute {
    pub(super) fn device(self) -> Result<Device, ModelError> {
        match self {
            Compute::Cpu => Ok(Device::Cpu),
            Compute::Cuda(_) if !cfg!(feature = "cuda") => {
                Err(ModelError::Device("this build has no CUDA back end; `make cuda` makes one that has".into()))
            }
            Compute::Cuda(number) => Device::new_cuda(number).map_err(|error| {
                // candle's errors may go on with a backtrace
                let error = error.to_string();
                ModelError::Device(format!("cuda:{number}: {}", error.lines().next().unwrap_or_default()))
            }),
        }
    }
}

/// Weights on a device, as variables.
pub struct Network {
    config: Config,
    device: Device,
    variables: BTreeMap<String, Var>,
    /// `[max_sequence, head_width / 2]`
    cosines: Arc<Vec<f32>>,
    sines: Arc<Vec<f32>>,
    /// Whether the operations of [`fused`] are used: on the CPU, where they are at home.
    fused: bool,
}

/// What a batch shares between its layers.
struct Frame {
    /// Positions of the prefix.
    prefix: usize,
    members: usize,
    /// Positions of each continuation, padding included.
    length: usize,
    /// What attention needs where it is not fused.
    composed: Option<Composed>,
}

struct Composed {
    /// Rotations of every row, `[prefix + members · length, 1, head_width / 2]`.
    cosine: Tensor,
    sine: Tensor,
    /// `[heads · prefix, prefix]` and `[length · heads, length]`: 0, or minus infinity where a position would
    /// see a later one.
    prefix_mask: Option<Tensor>,
    own_mask: Tensor,
}

impl Network {
    /// # Errors
    /// A device that is not there.
    pub fn new(model: &Model, compute: Compute) -> Result<Network, ModelError> {
        let (config, device) = (model.config().clone(), compute.device()?);
        let mut variables = BTreeMap::new();
        for (name, shape) in config.shapes() {
            let tensor = Tensor::from_slice(model.tensor(&name), shape, &device)?;
            variables.insert(name, Var::from_tensor(&tensor)?);
        }
        let (cosines, sines) = config.rotation();
        let fused = device.is_cpu();
        Ok(Network { config, device, variables, cosines: Arc::new(cosines), sines: Arc::new(sines), fused })
    }

    /// The weights as they are now, copied to the host.
    ///
    /// # Errors
    /// Weights that are no longer finite.
    pub fn model(&self) -> Result<Model, ModelError> {
        let mut tensors = BTreeMap::new();
        for (name, variable) in &self.variables {
            tensors.insert(name.clone(), variable.as_tensor().flatten_all()?.to_vec1()?);
        }
        Model::from_tensors(self.config.clone(), tensors).map_err(ModelError::State)
    }

    /// Scores of `answers` after each position of one sequence, `[positions, answers]`, and the value after
    /// each, `[positions]`; without any cache.
    ///
    /// # Errors
    /// A sequence that is empty or too long, positions or answers without tokens, a token outside of the
    /// vocabulary.
    pub fn evaluate(&self, positions: &[Position], answers: &[Vec<u32>]) -> Result<(Vec<f32>, Vec<f32>), ModelError> {
        let hidden = self.hidden(&[], &positions.iter().collect::<Vec<_>>(), 1)?;
        let questions: Vec<&[Vec<u32>]> = positions.iter().map(|_| answers).collect();
        Ok((self.scores(&hidden, &questions)?.to_vec1()?, self.value(&hidden)?.to_vec1()?))
    }

    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    pub(super) fn variables(&self) -> &BTreeMap<String, Var> {
        &self.variables
    }

    fn weight(&self, name: &str) -> Result<&Tensor, ModelError> {
        let missing = || ModelError::State(format!("tensor `{name}` is missing"));
        self.variables.get(name).map(Var::as_tensor).ok_or_else(missing)
    }

    /// Normed hidden states `[members · length, width]` of continuations `[members · length]` that all follow
    /// `prefix`.
    ///
    /// # Errors
    /// Sequences that are empty or too long, positions without tokens, a token outside of the vocabulary.
    pub(super) fn hidden(
        &self,
        prefix: &[&Position],
        suffixes: &[&Position],
        members: usize,
    ) -> Result<Tensor, ModelError> {
        let positions = [prefix, suffixes].concat();
        for position in &positions {
            check_positions(std::slice::from_ref(*position), self.config.vocabulary)?;
        }
        let frame = self.frame(prefix.len(), suffixes.len(), members)?;
        let slotted = positions.iter().map(|position| position.slotted(self.config.slots));
        let mut x = self.pooled("read_slots.weight", slotted)?;
        for layer in 0..self.config.layers {
            let weight = |name: &str| self.weight(&format!("layers.{layer}.{name}.weight"));
            let normed = self.rms_norm(&x, weight("attention_norm")?)?;
            let attended = self.attention(&normed.matmul(&weight("query_key_value")?.t()?)?, &frame)?;
            x = (x + attended.matmul(&weight("attention_output")?.t()?)?)?;
            let normed = self.rms_norm(&x, weight("feed_forward_norm")?)?;
            let gated = self.gate(&normed.matmul(&weight("gate_up")?.t()?)?)?;
            x = (x + gated.matmul(&weight("down")?.t()?)?)?;
        }
        self.rms_norm(&x.narrow(0, prefix.len(), suffixes.len())?, self.weight("norm.weight")?)
    }

    /// A vector for each row, which is a few tokens in slots: the sum of their embeddings, each times the
    /// weight of its slot. `[rows, width]`.
    fn pooled(
        &self,
        slots: &str,
        rows: impl ExactSizeIterator<Item = impl Iterator<Item = (u32, usize)>>,
    ) -> Result<Tensor, ModelError> {
        let (mut row_of, mut tokens, mut slot_of) = (Vec::new(), Vec::new(), Vec::new());
        let count = rows.len();
        for (row, slotted) in rows.enumerate() {
            for (token, slot) in slotted {
                row_of.push(row as u32);
                tokens.push(token);
                slot_of.push(slot as u32);
            }
        }
        let ids = |ids: Vec<u32>| Tensor::new(ids, &self.device);
        let embedded = self.weight("embedding.weight")?.index_select(&ids(tokens)?, 0)?;
        let weighed = (embedded * self.weight(slots)?.index_select(&ids(slot_of)?, 0)?)?;
        let rows = Tensor::zeros((count, self.config.width), DType::F32, &self.device)?;
        Ok(rows.index_add(&ids(row_of)?, &weighed, 0)?)
    }

    /// Scores of the answers to each row's question, one after the other, of normed hidden states
    /// `[questions, width]`. Answers were checked.
    fn scores(&self, hidden: &Tensor, questions: &[&[Vec<u32>]]) -> Result<Tensor, ModelError> {
        let answers: Vec<&Vec<u32>> = questions.iter().copied().flatten().collect();
        let slotted = answers.iter().map(|tokens| slotted(tokens, self.config.slots));
        let answers = self.pooled("choice_slots.weight", slotted)?;
        let asked = hidden.index_select(&Tensor::new(rows_of(questions), &self.device)?, 0)?;
        Ok((asked * answers)?.sum(1)?)
    }

    /// Values `[rows]` of normed hidden states `[rows, width]`.
    pub(super) fn value(&self, hidden: &Tensor) -> Result<Tensor, ModelError> {
        let value = hidden.matmul(&self.weight("value.weight")?.t()?)?;
        Ok(value.broadcast_add(self.weight("value.bias")?)?.squeeze(1)?)
    }

    fn frame(&self, prefix: usize, rows: usize, members: usize) -> Result<Frame, ModelError> {
        let length = rows.checked_div(members).unwrap_or(0);
        let (total, limit) = (prefix + length, self.config.max_sequence);
        if length == 0 || total > limit {
            return Err(ModelError::Length { length: total, limit });
        }
        let composed = if self.fused { None } else { Some(self.composed(prefix, members, total)?) };
        Ok(Frame { prefix, members, length, composed })
    }

    fn composed(&self, prefix: usize, members: usize, total: usize) -> Result<Composed, ModelError> {
        let (heads, device) = (self.config.heads, &self.device);
        let own = (0..members).flat_map(|_| prefix as u32..total as u32);
        let positions = Tensor::new((0..prefix as u32).chain(own).collect::<Vec<_>>(), device)?;
        let shape = (self.config.max_sequence, self.config.head_width() / 2);
        let table = |angles: &[f32]| -> Result<Tensor, ModelError> {
            Ok(Tensor::from_slice(angles, shape, device)?.index_select(&positions, 0)?.unsqueeze(1)?)
        };
        Ok(Composed {
            cosine: table(&self.cosines)?,
            sine: table(&self.sines)?,
            prefix_mask: if prefix > 0 { Some(causal_mask(prefix, heads, device)?) } else { None },
            own_mask: causal_mask(total - prefix, heads, device)?,
        })
    }

    fn rms_norm(&self, x: &Tensor, scale: &Tensor) -> Result<Tensor, ModelError> {
        if self.fused {
            return Ok(x.apply_op2(scale, fused::RmsNorm)?);
        }
        let mean = x.sqr()?.mean_keepdim(D::Minus1)?;
        let root = (mean + f64::from(NORM_EPSILON))?.sqrt()?;
        Ok(x.broadcast_div(&root)?.broadcast_mul(scale)?)
    }

    /// Squared ReLU of the gates, `[rows, feed_forward]`, times what they gate, of both side by side.
    fn gate(&self, gate_up: &Tensor) -> Result<Tensor, ModelError> {
        if self.fused {
            return Ok(gate_up.apply_op1(fused::SquaredReluGate)?);
        }
        let hidden = self.config.feed_forward;
        let gate = gate_up.narrow(1, 0, hidden)?.relu()?.sqr()?;
        Ok((gate * gate_up.narrow(1, hidden, hidden)?)?)
    }

    /// The log-likelihood of the `chosen` answer to each row's question, `[questions]`. Of normed hidden
    /// states `[questions, width]`.
    ///
    /// # Errors
    /// Questions without answers, answers without tokens, a token outside of the vocabulary, no such answer.
    pub(super) fn log_likelihoods(
        &self,
        hidden: &Tensor,
        questions: &[&[Vec<u32>]],
        chosen: &[usize],
    ) -> Result<Tensor, ModelError> {
        let mut targets = Vec::with_capacity(chosen.len());
        let mut first = 0;
        for (answers, chosen) in questions.iter().zip(chosen) {
            check_answers(answers, self.config.vocabulary)?;
            if *chosen >= answers.len() {
                return Err(ModelError::Answer { answer: *chosen, answers: answers.len() });
            }
            targets.push((first + chosen) as u32);
            first += answers.len();
        }
        let scores = self.scores(hidden, questions)?;
        // the highest score of each question is taken off, so that no exponential overflows; it cancels out
        let of_each = scores.to_vec1::<f32>()?;
        let mut rest = of_each.as_slice();
        let mut highest = Vec::with_capacity(of_each.len());
        for answers in questions {
            let (own, others) = rest.split_at(answers.len());
            rest = others;
            let most = own.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            highest.resize(highest.len() + own.len(), most);
        }
        let scores = (scores - Tensor::new(highest, &self.device)?)?;
        let rows = Tensor::new(rows_of(questions), &self.device)?;
        let sums = Tensor::zeros(questions.len(), DType::F32, &self.device)?.index_add(&rows, &scores.exp()?, 0)?;
        Ok((scores.index_select(&Tensor::new(targets, &self.device)?, 0)? - sums.log()?)?)
    }

    /// Multi-query attention of projections `[rows, projection]`; returns `[rows, width]`. Rows are first the
    /// prefix's, then each member's. Heads fold into the rows of one product, since all share one key and one
    /// value.
    fn attention(&self, projected: &Tensor, frame: &Frame) -> Result<Tensor, ModelError> {
        let (heads, head, width) = (self.config.heads, self.config.head_width(), self.config.width);
        let (prefix, members, length) = (frame.prefix, frame.members, frame.length);
        let Some(composed) = &frame.composed else {
            let (cosines, sines) = (Arc::clone(&self.cosines), Arc::clone(&self.sines));
            return Ok(projected.apply_op1(fused::Attention {
                heads,
                head,
                prefix,
                members,
                length,
                cosines,
                sines,
            })?);
        };
        let rows = projected.dim(0)?;
        let scale = 1.0 / (head as f64).sqrt();
        // queries and keys rotate together: [rows, heads + 1, head]
        let rotated = projected.narrow(1, 0, width + head)?.reshape((rows, heads + 1, head))?;
        let rotated = rotate(&rotated, &composed.cosine, &composed.sine)?;
        let queries = (rotated.narrow(1, 0, heads)? * scale)?.contiguous()?;
        let keys = rotated.narrow(1, heads, 1)?.squeeze(1)?.contiguous()?;
        let values = projected.narrow(1, width + head, head)?.contiguous()?;

        let own = |tensor: &Tensor| tensor.narrow(0, prefix, members * length);
        let own_queries = own(&queries)?.reshape((members, length * heads, head))?;
        let own_keys = own(&keys)?.reshape((members, length, head))?;
        let own_values = own(&values)?.reshape((members, length, head))?;
        let own_scores = own_queries.matmul(&own_keys.t()?)?.broadcast_add(&composed.own_mask)?;
        let Some(mask) = &composed.prefix_mask else {
            let attended = softmax(&own_scores)?.matmul(&own_values)?;
            return Ok(attended.reshape((rows, width))?);
        };

        let queries_of_prefix = queries.narrow(0, 0, prefix)?.reshape((prefix * heads, head))?;
        let prefix_keys = keys.narrow(0, 0, prefix)?;
        let prefix_values = values.narrow(0, 0, prefix)?;
        let scores = (queries_of_prefix.matmul(&prefix_keys.t()?)? + mask)?;
        let of_prefix = softmax(&scores)?.matmul(&prefix_values)?.reshape((prefix, width))?;

        let flat = members * length * heads;
        let scores = own_queries.reshape((flat, head))?.matmul(&prefix_keys.t()?)?;
        let scores = scores.reshape((members, length * heads, prefix))?;
        let probabilities = softmax(&Tensor::cat(&[scores, own_scores], D::Minus1)?)?;
        let to_prefix = probabilities.narrow(2, 0, prefix)?.contiguous()?.reshape((flat, prefix))?;
        let to_own = probabilities.narrow(2, prefix, length)?.contiguous()?;
        let of_members = to_prefix.matmul(&prefix_values)?.reshape((members, length * heads, head))?;
        let of_members = (of_members + to_own.matmul(&own_values)?)?.reshape((members * length, width))?;
        Ok(Tensor::cat(&[of_prefix, of_members], 0)?)
    }
}

/// The number of its question for each answer.
fn rows_of(questions: &[&[Vec<u32>]]) -> Vec<u32> {
    let rows = questions.iter().enumerate();
    rows.flat_map(|(row, answers)| std::iter::repeat_n(row as u32, answers.len())).collect()
}

/// `[length · heads, length]`: row `time · heads + head` sees columns up to `time`.
fn causal_mask(length: usize, heads: usize, device: &Device) -> Result<Tensor, ModelError> {
    let mask: Vec<f32> = (0..length * heads)
        .flat_map(|row| (0..length).map(move |column| if column <= row / heads { 0.0 } else { f32::NEG_INFINITY }))
        .collect();
    Ok(Tensor::from_vec(mask, (length * heads, length), device)?)
}

/// Rotates `[rows, heads, head_width]` by the angles `[rows, 1, head_width / 2]`.
fn rotate(x: &Tensor, cosine: &Tensor, sine: &Tensor) -> Result<Tensor, ModelError> {
    let half = x.dim(2)? / 2;
    let (low, high) = (x.narrow(2, 0, half)?, x.narrow(2, half, half)?);
    let rotated_low = (low.broadcast_mul(cosine)? - high.broadcast_mul(sine)?)?;
    let rotated_high = (low.broadcast_mul(sine)? + high.broadcast_mul(cosine)?)?;
    Ok(Tensor::cat(&[rotated_low, rotated_high], 2)?)
}

fn softmax(scores: &Tensor) -> Result<Tensor, ModelError> {
    debug_assert_eq!(scores.dtype(), DType::F32);
    Ok(candle_nn::ops::softmax(scores, D::Minus1)?)
}

#[cfg(test)]
mod tests {
    use candle_core::Tensor;

    use super::{Compute, Network};
    use crate::model::{Config, Model, ModelError, Position};

    /// The weighted sum of the negative log-likelihoods of what was chosen.
    fn cross_entropy(
        network: &Network,
        hidden: &Tensor,
        (questions, chosen): (&[&[Vec<u32>]], &[usize]),
        weights: &[f32],
    ) -> Result<Tensor, ModelError> {
        let likelihoods = network.log_likelihoods(hidden, questions, chosen)?;
        Ok((likelihoods * Tensor::new(weights, network.device())?)?.sum_all()?.neg()?)
    }

    /// Two layers, and weights that are no longer those of the start: norms differ from one.
    fn small() -> Network {
        let config =
            Config { vocabulary: 11, width: 16, layers: 2, heads: 2, feed_forward: 24, ..Config::standard(11) };
        let network = Network::new(&Model::random(config, 3).unwrap(), Compute::Cpu).unwrap();
        for variable in network.variables().values().filter(|variable| variable.rank() == 1) {
            let noise = variable.as_tensor().rand_like(0.5, 1.5).unwrap();
            variable.set(&noise).unwrap();
        }
        network
    }

    /// Positions of one or two tokens.
    fn positions(tokens: &[u32]) -> Vec<Position> {
        let position = |(at, token): (usize, &u32)| match at % 3 {
            0 => Position { answer: vec![*token], question: vec![1, *token] },
            _ => Position::word(vec![*token]),
        };
        tokens.iter().enumerate().map(position).collect()
    }

    #[test]
    fn fused_operations_have_the_values_and_gradients_of_composed_ones() {
        let mut network = small();
        let (all, suffixes) = (positions(&[1, 2, 3]), positions(&[4, 5, 6, 7, 8, 9, 10, 0]));
        let suffixes: Vec<&Position> = suffixes.iter().collect();
        let answers = [vec![vec![3], vec![4, 5], vec![5, 4]], vec![vec![2]], vec![vec![9, 9], vec![9]]];
        let questions: Vec<&[Vec<u32>]> = (0..8).map(|row| answers[row % 3].as_slice()).collect();
        for prefix in [&all[..], &[]] {
            let prefix: Vec<&Position> = prefix.iter().collect();
            let mut results = Vec::new();
            for fused in [true, false] {
                network.fused = fused;
                let hidden = network.hidden(&prefix, &suffixes, 2).unwrap();
                let weights = [1.0, 0.5, 2.0, 0.0, 1.0, 1.0, 0.3, 1.0];
                let loss = cross_entropy(&network, &hidden, (&questions, &[2, 0, 1, 0, 0, 0, 1, 0]), &weights).unwrap();
                let values = network.value(&hidden).unwrap().sqr().unwrap().sum_all().unwrap();
                let gradients = (loss.clone() + values).unwrap().backward().unwrap();
                results.push((loss.to_scalar::<f32>().unwrap(), gradients));
            }
            let [(loss, gradients), (expected_loss, expected)] = &results[..] else { unreachable!() };
            assert!(*loss > 1.0 && (loss - expected_loss).abs() < 1e-4, "{loss} {expected_loss}");
            for (name, variable) in network.variables() {
                let of = |gradients: &candle_core::backprop::GradStore| {
                    gradients.get(variable).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap()
                };
                let (found, expected) = (of(gradients), of(expected));
                let scale = expected.iter().fold(1e-3f32, |scale, x| scale.max(x.abs()));
                for (a, b) in found.iter().zip(&expected) {
                    assert!((a - b).abs() < 1e-4 * scale, "{name}: {a} instead of {b}");
                }
            }
        }
    }

    #[test]
    fn the_likelihood_of_an_answer_is_its_share_of_the_exponentials() {
        let network = small();
        let positions = positions(&[4, 5, 6]);
        let answers = vec![vec![3], vec![4, 5], vec![5, 4], vec![7]];
        let (scores, _) = network.evaluate(&positions, &answers).unwrap();
        let hidden = network.hidden(&[], &positions.iter().collect::<Vec<_>>(), 1).unwrap();
        let questions = [answers.as_slice(); 3];
        let loss = cross_entropy(&network, &hidden, (&questions, &[1, 2, 3]), &[1.0, 0.0, 2.0]).unwrap();
        let loss = loss.to_scalar::<f32>().unwrap();
        let likelihood = |row: usize, answer: usize| {
            let scores = &scores[row * 4..][..4];
            (scores[answer].exp() / scores.iter().map(|score| score.exp()).sum::<f32>()).ln()
        };
        let expected = -likelihood(0, 1) - 2.0 * likelihood(2, 3);
        assert!((loss - expected).abs() < 1e-5, "{loss} {expected}");
        // the order of an answer's tokens counts
        assert!((scores[1] - scores[2]).abs() > 1e-6);
        let refused = |answers: &[Vec<u32>], chosen| {
            cross_entropy(&network, &hidden, (&[answers; 3], &[chosen; 3]), &[1.0; 3]).is_err()
        };
        assert!(refused(&[], 0) && refused(&[vec![]], 0) && refused(&[vec![11]], 0) && refused(&[vec![1]], 1));
    }

    #[test]
    fn members_behind_a_shared_prefix_see_what_each_would_see_alone() {
        let network = small();
        let (prefix, suffixes) = (positions(&[1, 2, 3]), positions(&[4, 5, 6, 7, 8, 9, 10, 0]));
        let (prefix, suffixes): (Vec<&Position>, Vec<&Position>) = (prefix.iter().collect(), suffixes.iter().collect());
        let together: Vec<Vec<f32>> = network.hidden(&prefix, &suffixes, 2).unwrap().to_vec2().unwrap();
        for (member, together) in suffixes.chunks(4).zip(together.chunks(4)) {
            let alone: Vec<Vec<f32>> =
                network.hidden(&[], &[&prefix[..], member].concat(), 1).unwrap().to_vec2().unwrap();
            for (a, b) in alone[prefix.len()..].concat().iter().zip(together.concat()) {
                assert!((a - b).abs() < 1e-5, "{a} {b}");
            }
        }
    }
}
