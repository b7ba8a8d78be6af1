//! What was measured of a task, on top of what is known from others: Gaussian process regression (Rasmussen
//! and Williams 2006, algorithm 2.1) of what an estimator gets wrong. Programs are the more alike, the more
//! trees of its forest they share a leaf of.

use super::{Estimator, Group};

/// How far estimates are off, in factors of two of the speed: their deviation, and that of measurements of
/// one program.
const WRONG: f64 = 0.55;
const NOISE: f64 = 0.2;
/// How many deviations above what is expected of it a program may be hoped to be, as long as only a few are
/// known; and by how much more with each doubling of what is known. A few programs are best spent on what is
/// likely to be good; many, spent so, would all be variations of one kind.
const BOLDNESS: f64 = 0.1;
const BOLDER: f64 = 1.0;
const FEW: f64 = 4.0;
/// Programs slower than this many factors of two below the best are all the same: by how much they are tells
/// nothing about the best.
const SLOWEST: f32 = -3.0;

/// An estimator that was shown programs of the task that it is asked about.
#[derive(Clone, PartialEq, Debug)]
pub struct Adapted {
    estimator: Estimator,
    /// Leaves of the programs that were shown.
    shown: Vec<Vec<u8>>,
    /// Of each: how much its error tells about programs like it.
    weights: Vec<f64>,
    /// The lower triangle whose square is the covariance of what was measured of them.
    root: Vec<Vec<f64>>,
}

/// What is expected of a program.
#[derive(Clone, PartialEq, Debug)]
pub struct Expected {
    /// The higher, the faster: log₂ of the speed, but for a constant of the task.
    pub score: f32,
    leaves: Vec<u8>,
}

impl From<Estimator> for Adapted {
    /// Without any measurement.
    fn from(estimator: Estimator) -> Adapted {
        Adapted { estimator, shown: Vec::new(), weights: Vec::new(), root: Vec::new() }
    }
}

impl Adapted {
    /// Shows it programs of a task. Those that do not have its features tell it nothing.
    pub fn new(estimator: Estimator, measured: &Group) -> Adapted {
        let known = measured.features.iter().zip(&measured.speeds);
        let known = known.filter_map(|(features, speed)| {
            let (known, leaves) = estimator.score_and_leaves(features)?;
            Some((leaves, f64::from(speed.max(SLOWEST) - known)))
        });
        let (shown, errors): (Vec<Vec<u8>>, Vec<f64>) = known.unzip();
        let mut covariance: Vec<Vec<f64>> =
            shown.iter().map(|a| shown.iter().map(|b| covariance(a, b)).collect()).collect();
        covariance.iter_mut().enumerate().for_each(|(at, row)| row[at] += NOISE * NOISE);
        let root = root(covariance);
        // The estimate is right but for a constant of the task: the mean of the errors, where many programs
        // that are alike weigh no more than one that is different from all. What all programs of one kind
        // have in common is then told from the constant.
        let (of_ones, of_errors) = (solve(&root, &vec![1.0; errors.len()]), solve(&root, &errors));
        let mean = of_errors.iter().sum::<f64>() / of_ones.iter().sum::<f64>().max(f64::MIN_POSITIVE);
        let weights = of_errors.iter().zip(&of_ones).map(|(error, one)| error - mean * one).collect();
        Adapted { estimator, shown, weights, root }
    }

    /// `None` for another number of features than the estimator's.
    pub fn expect(&self, features: &[f32]) -> Option<Expected> {
        let (known, leaves) = self.estimator.score_and_leaves(features)?;
        let told = self.shown.iter().zip(&self.weights).map(|(shown, weight)| weight * covariance(shown, &leaves));
        Some(Expected { score: known + told.sum::<f64>() as f32, leaves })
    }

    /// [`Expected::score`].
    pub fn score(&self, features: &[f32]) -> Option<f32> {
        Some(self.expect(features)?.score)
    }

    /// Chooses programs to measure together: the best by what they may be at best, one after the other, the
    /// others taken for known. The first few of a list by score are alike, and wrong for the same reason.
    /// (Upper confidence bounds of Gaussian processes, that grow with the logarithm of what was shown:
    /// Srinivas et al., ICML 2010; in batches: Desautels et al., ICML 2012.) Where nothing was shown, the
    /// first is the one of the highest score.
    pub fn choose(&self, pool: &[Expected], count: usize) -> Vec<usize> {
        let mut open: Vec<Open> = pool.iter().map(|expected| self.open(expected)).collect();
        let mut chosen = Vec::new();
        let mut left: Vec<usize> = (0..pool.len()).collect();
        while chosen.len() < count {
            let boldness = boldness(self.shown.len() + chosen.len());
            let bound = |at: &usize| f64::from(pool[*at].score) + boldness * open[*at].variance.max(0.0).sqrt();
            // the first of equals
            let best = left.iter().enumerate().rev().max_by(|(_, a), (_, b)| bound(a).total_cmp(&bound(b)));
            let Some((position, at)) = best.map(|(position, at)| (position, *at)) else { break };
            left.remove(position);
            chosen.push(at);
            let known = open[at].clone();
            let deviation = (known.variance + NOISE * NOISE).max(f64::MIN_POSITIVE).sqrt();
            for other in &left {
                let open = &mut open[*other];
                let explained: f64 = open.explained.iter().zip(&known.explained).map(|(a, b)| a * b).sum();
                let shared = (covariance(&pool[*other].leaves, &pool[at].leaves) - explained) / deviation;
                open.variance -= shared * shared;
                open.explained.push(shared);
            }
        }
        chosen
    }

    /// How much faster than `other` a program is, and how far that may be off. What two programs have in
    /// common, the estimate gets wrong for both alike.
    pub fn gain(&self, program: &Expected, other: &Expected) -> Gain {
        let (a, b) = (self.open(program), self.open(other));
        let explained: f64 = a.explained.iter().zip(&b.explained).map(|(a, b)| a * b).sum();
        let shared = covariance(&program.leaves, &other.leaves) - explained;
        let variance = a.variance + b.variance - 2.0 * shared;
        Gain { log2: f64::from(program.score - other.score), deviation: variance.max(0.0).sqrt() }
    }

    fn open(&self, expected: &Expected) -> Open {
        let covariances: Vec<f64> = self.shown.iter().map(|shown| covariance(shown, &expected.leaves)).collect();
        let explained = forwards(&self.root, &covariances);
        let variance = WRONG * WRONG - explained.iter().map(|x| x * x).sum::<f64>();
        Open { explained, variance }
    }
}

/// By how much a program is expected to be faster than another.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Gain {
    /// log₂ of the quotient of the speeds.
    pub log2: f64,
    /// The standard deviation of the same.
    pub deviation: f64,
}

/// What is not known about a program.
#[derive(Clone)]
struct Open {
    /// What each program that was shown or chosen explains of its error.
    explained: Vec<f64>,
    /// Of what they leave open.
    variance: f64,
}

/// Deviations that are hoped for when so many programs are known.
fn boldness(known: usize) -> f64 {
    BOLDNESS + BOLDER * ((known + 1) as f64 / FEW).log2().max(0.0)
}

/// Of the errors of two programs.
fn covariance(a: &[u8], b: &[u8]) -> f64 {
    WRONG * WRONG * alike(a, b)
}

/// The share of trees in whose same leaf two programs are.
fn alike(a: &[u8], b: &[u8]) -> f64 {
    let same = a.iter().zip(b).filter(|(a, b)| a == b).count();
    same as f64 / a.len().max(1) as f64
}

/// The lower triangle that times its transpose is a symmetric, positive definite matrix (Cholesky).
fn root(mut matrix: Vec<Vec<f64>>) -> Vec<Vec<f64>> {
    for at in 0..matrix.len() {
        let (above, below) = matrix.split_at_mut(at);
        let row = &mut below[0];
        for column in 0..at {
            let sum: f64 = (0..column).map(|k| row[k] * above[column][k]).sum();
            row[column] = (row[column] - sum) / above[column][column];
        }
        let sum: f64 = row[..at].iter().map(|x| x * x).sum();
        row[at] = (row[at] - sum).max(f64::MIN_POSITIVE).sqrt();
    }
    matrix
}

/// `x` where `root · x` is the right side.
fn forwards(root: &[Vec<f64>], right: &[f64]) -> Vec<f64> {
    let mut x: Vec<f64> = Vec::with_capacity(right.len());
    for (row, right) in root.iter().zip(right) {
        let sum: f64 = row.iter().zip(&x).map(|(a, x)| a * x).sum();
        x.push((right - sum) / row[x.len()]);
    }
    x
}

/// `x` where `root · rootᵀ · x` is the right side.
fn solve(root: &[Vec<f64>], right: &[f64]) -> Vec<f64> {
    let mut x = forwards(root, right);
    for at in (0..x.len()).rev() {
        let sum: f64 = (at + 1..x.len()).map(|k| root[k][at] * x[k]).sum();
        x[at] = (x[at] - sum) / root[at][at];
    }
    x
}

#[cfg(test)]
mod tests {
    use super::{Adapted, Expected, WRONG, boldness, root, solve};
    use crate::model::estimator::forest::{Forest, SPLITS, Split, Tree};
    use crate::model::{Estimator, Group};

    #[test]
    fn a_symmetric_system_is_solved() {
        let matrix = vec![vec![4.0, 2.0, 0.5], vec![2.0, 5.0, 1.0], vec![0.5, 1.0, 3.0]];
        let wanted = [1.0, -2.0, 0.5];
        let right: Vec<f64> = matrix.iter().map(|row| row.iter().zip(wanted).map(|(a, x)| a * x).sum()).collect();
        let solved = solve(&root(matrix), &right);
        assert!(solved.iter().zip(wanted).all(|(x, y): (&f64, f64)| (x - y).abs() < 1e-12), "{solved:?}");
    }

    /// Trees that tell apart what lies on either side of 1, 2, … 8 in the only feature; none says anything.
    fn steps() -> Estimator {
        let tree = |at: u16| Tree {
            splits: vec![Split { feature: 0, threshold: f32::from(at), next: [SPLITS as u8, SPLITS as u8 + 1] }],
            leaves: vec![0.0, 0.0],
        };
        let mut tensors: std::collections::BTreeMap<_, _> =
            Estimator::random(1, 1).tensors().map(|(name, _, values)| (name, values)).collect();
        tensors.insert("votes".into(), vec![0.0, 1.0]);
        let mut estimator = Estimator::from_tensors(tensors).unwrap();
        estimator.forest = Forest { trees: (1..=8).map(tree).collect() };
        estimator
    }

    #[test]
    fn what_was_measured_moves_its_neighbours_and_many_alike_count_as_one() {
        let features = [0.5, 0.6, 0.7, 0.8, 8.5].map(|x| vec![x]).to_vec();
        let adapted = Adapted::new(steps(), &Group { features, speeds: vec![-2.0, -2.0, -2.0, -2.0, 0.0] });
        let score = |x: f32| adapted.score(&[x]).unwrap();
        assert!(score(0.9) < -0.5 && score(8.9) > 0.5, "{} {}", score(0.9), score(8.9));
        let between: Vec<f32> = (1..9).map(|x| score(x as f32 + 0.5)).collect();
        assert!(between.is_sorted(), "{between:?}");
        assert_eq!(adapted.score(&[0.0, 1.0]), None);
    }

    #[test]
    fn programs_that_are_measured_together_are_different() {
        let of = |estimate: &Adapted, x: f32| estimate.expect(&[x]).unwrap();
        let nothing = Adapted::from(steps());
        let mut pool: Vec<Expected> = [0.5, 0.6, 4.5, 8.5].map(|x| of(&nothing, x)).to_vec();
        // the first two are alike, and a little better
        for (expected, score) in pool.iter_mut().zip([0.02, 0.01, 0.0, 0.0]) {
            expected.score = score;
        }
        assert_eq!(nothing.choose(&pool, 4), [0, 3, 2, 1]);
        assert_eq!(nothing.choose(&pool, 1), [0]);
        // what is known for good promises nothing more
        let shown = Group { features: vec![vec![0.5]; 8], speeds: vec![0.0; 8] };
        assert_eq!(Adapted::new(steps(), &shown).choose(&pool, 2), [3, 2]);
    }

    #[test]
    fn a_gain_over_a_program_that_is_alike_is_surer() {
        let nothing = Adapted::from(steps());
        let gain = |estimate: &Adapted, a: f32, b: f32| {
            estimate.gain(&estimate.expect(&[a]).unwrap(), &estimate.expect(&[b]).unwrap())
        };
        let deviations = [0.6, 1.5, 4.5, 8.5].map(|x| gain(&nothing, x, 0.5).deviation);
        assert!(deviations[0] == 0.0 && deviations.is_sorted(), "{deviations:?}");
        // nothing in common: the errors of both add up
        assert!((deviations[3] - 2.0f64.sqrt() * WRONG).abs() < 1e-6, "{deviations:?}");
        // what was measured of both leaves little doubt
        let shown = Group { features: vec![vec![0.5], vec![8.5]], speeds: vec![-2.0, 0.0] };
        let known = gain(&Adapted::new(steps(), &shown), 8.5, 0.5);
        assert!(known.log2 > 1.0 && known.deviation < deviations[3] / 2.0, "{known:?}");
    }

    #[test]
    fn the_more_is_known_the_more_the_unknown_is_worth() {
        assert!((0..100).map(boldness).is_sorted());
        // one kind is known, and good; the other is expected to be slower, by half as much as estimates err
        let chosen_of = |known: usize| {
            let shown = Group { features: vec![vec![0.5]; known], speeds: vec![0.0; known] };
            let estimate = Adapted::new(steps(), &shown);
            let mut pool: Vec<Expected> = [0.5, 8.5].map(|x| estimate.expect(&[x]).unwrap()).to_vec();
            pool[1].score = pool[0].score - (WRONG / 2.0) as f32;
            estimate.choose(&pool, 1)
        };
        assert_eq!((chosen_of(2), chosen_of(32)), (vec![0], vec![1]));
    }
}
