//! Controls: what a checkpoint would be that had learned nothing, but is used in every other way as it is.
//! What a model is worth is what it does better than its controls under the same search.

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use super::{Checkpoint, Estimator, Estimators, Model};

/// What a control takes away.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ModelControl {
    /// Every tensor of the transformer is permuted within itself.
    Shuffled,
    /// The transformer says nothing: all answers are equally likely, all programs equally good.
    Uniform,
    /// Every tensor of the world models is permuted within itself, and the transformer stays as it is.
    ShuffledWorld,
    /// The transformer and the world models, which either do the other's work where only one is taken away.
    ShuffledNetworks,
    /// As [`ModelControl::ShuffledNetworks`], and so are the estimators' networks, and the leaves of each of
    /// their trees.
    ShuffledAll,
}

/// Of the permutations: a control of a checkpoint is the same one everywhere.
const SEED: u64 = 0;

impl ModelControl {
    pub const ALL: [ModelControl; 5] = [
        ModelControl::Shuffled,
        ModelControl::Uniform,
        ModelControl::ShuffledWorld,
        ModelControl::ShuffledNetworks,
        ModelControl::ShuffledAll,
    ];

    /// As it is spelled in texts and files.
    pub fn name(self) -> &'static str {
        match self {
            ModelControl::Shuffled => "shuffled",
            ModelControl::Uniform => "uniform",
            ModelControl::ShuffledWorld => "shuffled-world",
            ModelControl::ShuffledNetworks => "shuffled-networks",
            ModelControl::ShuffledAll => "shuffled-all",
        }
    }

    /// One line for people, without a full stop.
    pub fn about(self) -> &'static str {
        match self {
            ModelControl::Shuffled => "The transformer's weights, each tensor permuted within itself",
            ModelControl::Uniform => "Every candidate of every decision that the model is asked for is equally likely",
            ModelControl::ShuffledWorld => "The world model's weights, each tensor permuted within itself",
            ModelControl::ShuffledNetworks => "The transformer's weights and the world model's, permuted",
            ModelControl::ShuffledAll => "The transformer's weights, the estimator's and the world model's, permuted",
        }
    }

    pub fn from_name(name: &str) -> Option<ModelControl> {
        ModelControl::ALL.into_iter().find(|control| control.name() == name)
    }

    /// What a method is called that is asked with this control: `lm+shuffled`.
    pub fn of(self, method: &str) -> String {
        format!("{method}{BETWEEN}{}", self.name())
    }

    /// The method and the control of such a name.
    pub fn split(name: &str) -> Option<(&str, ModelControl)> {
        let (method, control) = name.rsplit_once(BETWEEN)?;
        Some((method, ModelControl::from_name(control)?))
    }
}

/// Between the names of a method and of its control.
const BETWEEN: char = '+';

impl Checkpoint {
    /// The same with something taken away.
    #[must_use]
    pub fn controlled(&self, control: ModelControl) -> Checkpoint {
        use ModelControl::{Shuffled, ShuffledAll, ShuffledNetworks, ShuffledWorld, Uniform};
        let mut changed = self.clone();
        match control {
            Shuffled | ShuffledNetworks | ShuffledAll => changed.model = self.model.shuffled(SEED),
            Uniform => changed.model = self.model.indifferent(),
            ShuffledWorld => (),
        }
        if matches!(control, ShuffledWorld | ShuffledNetworks | ShuffledAll) {
            changed.worlds = self.worlds.shuffled(SEED);
        }
        if control == ShuffledAll {
            let Estimators { cpu, gpu } = &self.estimators;
            let shuffled = |estimator: &Estimator| estimator.shuffled(SEED);
            changed.estimators = Estimators { cpu: shuffled(cpu), gpu: gpu.as_ref().map(shuffled) };
        }
        changed
    }
}

impl Model {
    /// With the same weights in another order: each tensor is permuted within itself. What is known of the
    /// scales of weights is kept, all else is lost.
    #[must_use]
    pub fn shuffled(&self, seed: u64) -> Model {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut shuffled = self.clone();
        shuffled.tensors.values_mut().for_each(|values| values.shuffle(&mut random));
        shuffled
    }

    /// With heads that say nothing: all answers have the same score, all programs the same value.
    #[must_use]
    pub fn indifferent(&self) -> Model {
        let mut indifferent = self.clone();
        let is_head = |name: &str| name == super::CHOICE || name.starts_with(super::VALUE);
        for (_, values) in indifferent.tensors.iter_mut().filter(|(name, _)| is_head(name)) {
            values.fill(0.0);
        }
        indifferent
    }
}

#[cfg(test)]
mod tests {
    use super::ModelControl;
    use crate::model::{Config, Decoder, Guide, Model, Next, Position, SamplingOptions};

    fn model() -> Model {
        let config = Config { layers: 1, width: 16, feed_forward: 16, ..Config::standard(80) };
        Model::random(config, 3).unwrap()
    }

    #[test]
    fn names_lead_to_controls_and_back() {
        for control in ModelControl::ALL {
            assert_eq!(ModelControl::from_name(control.name()), Some(control));
            assert_eq!(ModelControl::split(&control.of("lm-greedy")), Some(("lm-greedy", control)));
            assert!((10..100).contains(&control.about().len()) && !control.about().ends_with('.'));
        }
        assert_eq!(ModelControl::split("a+b+uniform"), Some(("a+b", ModelControl::Uniform)));
        assert!(["lm", "lm+other", "lm-uniform", "+"].iter().all(|name| ModelControl::split(name).is_none()));
    }

    #[test]
    fn each_tensor_is_permuted_within_itself_in_the_same_way_every_time() {
        let (model, sorted) = (model(), |values: &[f32]| {
            let mut values = values.to_vec();
            values.sort_by(f32::total_cmp);
            values
        });
        let shuffled = model.shuffled(0);
        assert_eq!(shuffled, model.shuffled(0));
        assert_ne!(shuffled, model.shuffled(1));
        for (name, values) in model.tensors() {
            let other = &shuffled.tensors()[name];
            assert_eq!(sorted(values), sorted(other), "{name}");
            // norms are all ones yet, and the value head all zeros
            let has_order = values.iter().any(|value| *value != values[0]);
            assert_eq!(values != other, has_order, "{name}");
        }
    }

    /// Asks one question of many answers.
    struct Once(bool);

    impl Guide for Once {
        fn next(&mut self, _: Option<usize>) -> Next {
            if std::mem::replace(&mut self.0, true) {
                return Next::Finished;
            }
            Next::Ask { question: vec![1], answers: (0..64).map(|answer| vec![2 + answer]).collect() }
        }
    }

    #[test]
    fn an_indifferent_model_gives_all_answers_equally_often() {
        let decoder = Decoder::new(&model().indifferent());
        let prompt = decoder.prompt(&[Position::word(vec![1])]).unwrap();
        let mut guides: Vec<Once> = (0..64 * 50).map(|_| Once(false)).collect();
        // the tail that is cut off from other models' answers would be some of the equals
        let options = SamplingOptions { top_p: 0.9, ..SamplingOptions::default() };
        let sampled = decoder.sample(&prompt, &mut guides, &options).unwrap();
        let mut counts = [0u32; 64];
        for sequence in &sampled {
            counts[sequence.choices[0]] += 1;
            assert!((sequence.log_likelihood + 64f64.ln()).abs() < 1e-6);
        }
        // 50 are expected of each, with a deviation of 7
        assert!(counts.iter().all(|count| (22..90).contains(count)), "{counts:?}");
        assert_eq!(
            decoder.values(&prompt, &[vec![Position::word(vec![2])], vec![Position::word(vec![5])]]).unwrap(),
            [0.0, 0.0]
        );
    }
}
