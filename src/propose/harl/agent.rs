//! The actor and the critic.

use crate::propose::replay::Step;

/// Weights of the actor, which steps share by hashes; learning rates; what later rewards count.
const BUCKETS: usize = 1024;
const ACTOR_RATE: f32 = 0.5;
const CRITIC_RATE: f32 = 0.01;
const DISCOUNT: f32 = 0.9;
/// Features, most of them logarithms, are divided by this for the critic.
const SCALE: f32 = 16.0;

/// Takes sizes a step up or down, and learns which steps pay.
pub(super) struct Agent {
    /// Of the actor, by the hash of a step; of the critic, by feature.
    preferences: Vec<f32>,
    values: Vec<f32>,
}

/// The weights that a step's preference is the sum of.
fn traits(step: &Step) -> [usize; 2] {
    let site = step.site.to_string();
    let verb = site.split(' ').next().unwrap_or_default();
    [site.as_str(), verb].map(|text| {
        // FNV-1a
        let hash = text
            .bytes()
            .chain([u8::from(step.up)])
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        (hash ^ hash >> 32) as usize % BUCKETS
    })
}

impl Agent {
    pub fn new() -> Agent {
        Agent { preferences: vec![0.0; BUCKETS], values: Vec::new() }
    }

    /// The probabilities of steps.
    pub fn policy(&self, steps: &[Step]) -> Vec<f32> {
        let preference = |step: &Step| traits(step).iter().map(|at| self.preferences[*at]).sum::<f32>();
        let preferences: Vec<f32> = steps.iter().map(preference).collect();
        let most = preferences.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weights: Vec<f32> = preferences.iter().map(|preference| (preference - most).exp()).collect();
        let sum: f32 = weights.iter().sum();
        weights.into_iter().map(|weight| weight / sum).collect()
    }

    /// What a program will still gain.
    fn value(&self, features: &[f32]) -> f32 {
        features.iter().zip(&self.values).map(|(feature, weight)| feature / SCALE * weight).sum()
    }

    /// Learns from a step, and tells its advantage.
    pub fn learn(&mut self, taken: &Taken, reward: f32, after: Option<&[f32]>) -> f32 {
        let advantage =
            reward + DISCOUNT * after.map_or(0.0, |features| self.value(features)) - self.value(&taken.before);
        self.values.resize(taken.before.len().max(self.values.len()), 0.0);
        let norm = 1.0 + taken.before.iter().map(|feature| (feature / SCALE).powi(2)).sum::<f32>();
        for (weight, feature) in self.values.iter_mut().zip(&taken.before) {
            *weight += CRITIC_RATE * advantage * feature / SCALE / norm.sqrt();
        }
        for (number, (step, chance)) in taken.steps.iter().zip(&taken.chances).enumerate() {
            let slope = f32::from(u8::from(number == taken.choice)) - chance;
            for at in traits(step) {
                let preference = &mut self.preferences[at];
                *preference = (*preference + ACTOR_RATE * advantage.clamp(-1.0, 1.0) * slope).clamp(-4.0, 4.0);
            }
        }
        advantage
    }
}

/// A step that a track takes.
pub(super) struct Taken {
    /// Features of the program that it is taken from.
    pub before: Vec<f32>,
    /// The steps that there were, their probabilities, and the one that was taken.
    pub steps: Vec<Step>,
    pub chances: Vec<f32>,
    pub choice: usize,
}
