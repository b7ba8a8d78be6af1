//! The architecture of a model, and its limits: a config comes from a file that anyone may have written.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Sizes of the transformer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Number of token ids.
    pub vocabulary: usize,
    /// Length of a hidden state; a multiple of `2 · heads`.
    pub width: usize,
    pub layers: usize,
    /// Query heads of each layer; all share one key and one value head (multi-query attention, Shazeer 2019).
    pub heads: usize,
    /// Hidden width of the gated feed-forward.
    pub feed_forward: usize,
    /// Most positions in a sequence, prompt included.
    pub max_sequence: usize,
    /// Tokens of a question or an answer that are told apart by where they stand in it.
    pub slots: usize,
    /// Base of the rotary wavelengths (RoFormer, 2021).
    pub rope_base: f32,
}

/// A config outside of its limits.
#[derive(Clone, PartialEq, Debug, Error)]
#[error("model config: {field} is {value}, {expected}")]
pub struct InvalidConfig {
    pub field: &'static str,
    pub value: String,
    pub expected: String,
}

/// The most parameters that a model may have: ten times what Tilescribe's CPU decoding is made for.
const MAX_PARAMETERS: usize = 100_000_000;

impl Config {
    /// The architecture that Tilescribe ships: about 1.3 million parameters.
    pub fn standard(vocabulary: usize) -> Config {
        Config {
            vocabulary,
            width: 128,
            layers: 6,
            heads: 4,
            feed_forward: 448,
            max_sequence: 1024,
            slots: 6,
            rope_base: 10_000.0,
        }
    }

    /// Length of one head's queries, keys and values.
    pub fn head_width(&self) -> usize {
        self.width / self.heads
    }

    /// Width of the joint projection: all query heads, then the key, then the value.
    pub(super) fn projection(&self) -> usize {
        (self.heads + 2) * self.head_width()
    }

    /// # Errors
    /// The first field outside of its limits.
    pub fn validate(&self) -> Result<(), InvalidConfig> {
        within("vocabulary", self.vocabulary, 2, 65_536)?;
        within("width", self.width, 4, 2048)?;
        within("layers", self.layers, 1, 64)?;
        within("heads", self.heads, 1, 64)?;
        within("feed_forward", self.feed_forward, 1, 8192)?;
        within("max_sequence", self.max_sequence, 2, 16_384)?;
        within("slots", self.slots, 1, 64)?;
        if !self.width.is_multiple_of(2 * self.heads) {
            return Err(invalid("width", self.width, format!("expected a multiple of {}", 2 * self.heads)));
        }
        if !(10.0..=1e7).contains(&self.rope_base) {
            return Err(invalid("rope_base", self.rope_base, "expected 10 to 10000000".into()));
        }
        // the limits above keep this sum far from overflow
        within("number of parameters", self.parameters(), 1, MAX_PARAMETERS)
    }

    /// Number of weights.
    pub fn parameters(&self) -> usize {
        self.shapes().iter().map(|(_, shape)| shape.iter().product::<usize>()).sum()
    }

    /// Every tensor's name and shape, row-major; projections as `[out, in]`.
    pub fn shapes(&self) -> Vec<(String, Vec<usize>)> {
        let width = self.width;
        let mut shapes = vec![(super::EMBEDDING.to_string(), vec![self.vocabulary, width])];
        for layer in 0..self.layers {
            let mut add = |name: &str, shape: Vec<usize>| shapes.push((format!("layers.{layer}.{name}"), shape));
            add("attention_norm.weight", vec![width]);
            add("query_key_value.weight", vec![self.projection(), width]);
            add("attention_output.weight", vec![width, width]);
            add("feed_forward_norm.weight", vec![width]);
            add("gate_up.weight", vec![2 * self.feed_forward, width]);
            add("down.weight", vec![width, self.feed_forward]);
        }
        // of what is read (questions, then answers), and of what is chosen from
        shapes.push(("read_slots.weight".into(), vec![2 * self.slots, width]));
        shapes.push((super::CHOICE.into(), vec![self.slots, width]));
        shapes.push(("norm.weight".into(), vec![width]));
        shapes.push(("value.weight".into(), vec![1, width]));
        shapes.push(("value.bias".into(), vec![1]));
        shapes
    }

    /// Cosine and sine of each position's rotation: two tables `[max_sequence, head_width / 2]`.
    pub(super) fn rotation(&self) -> (Vec<f32>, Vec<f32>) {
        let half = self.head_width() / 2;
        let angles = (0..self.max_sequence).flat_map(|position| {
            (0..half).map(move |i| {
                let frequency = f64::from(self.rope_base).powf(-(i as f64) / half as f64);
                position as f64 * frequency
            })
        });
        angles.map(|angle| (angle.cos() as f32, angle.sin() as f32)).unzip()
    }
}

/// Refuses a size that is out of its limits.
pub(super) fn within(field: &'static str, value: usize, low: usize, high: usize) -> Result<(), InvalidConfig> {
    match (low..=high).contains(&value) {
        true => Ok(()),
        false => Err(invalid(field, value, format!("expected {low} to {high}"))),
    }
}

fn invalid(field: &'static str, value: impl ToString, expected: String) -> InvalidConfig {
    InvalidConfig { field, value: value.to_string(), expected }
}

#[cfg(test)]
mod tests {
    use super::Config;

    #[test]
    fn the_standard_is_within_its_limits_and_fits_ten_megabytes() {
        let config = Config::standard(512);
        assert_eq!(config.validate(), Ok(()));
        assert!((1_100_000..1_600_000).contains(&config.parameters()), "{}", config.parameters());
    }

    #[test]
    fn hostile_sizes_are_refused_by_name() {
        let standard = Config::standard(512);
        let cases = [
            ("vocabulary", Config { vocabulary: usize::MAX, ..standard.clone() }),
            ("width", Config { width: 130, ..standard.clone() }),
            ("layers", Config { layers: 0, ..standard.clone() }),
            ("heads", Config { heads: 0, ..standard.clone() }),
            ("feed_forward", Config { feed_forward: 1 << 40, ..standard.clone() }),
            ("max_sequence", Config { max_sequence: 1, ..standard.clone() }),
            ("slots", Config { slots: 0, ..standard.clone() }),
            ("rope_base", Config { rope_base: f32::NAN, ..standard.clone() }),
            ("number of parameters", Config { width: 2048, layers: 64, feed_forward: 8192, heads: 16, ..standard }),
        ];
        for (field, config) in cases {
            assert_eq!(config.validate().unwrap_err().field, field);
        }
    }
}
