//! Regression trees by gradient boosting (J. H. Friedman, *Greedy Function Approximation: A Gradient Boosting
//! Machine*, Annals of Statistics 2001), with the regularised gain of T. Chen and C. Guestrin, *XGBoost*, KDD
//! 2016: what Ansor and MetaSchedule learn from the programs of a single task. For some hundred rows; a
//! forest for many is the [`super::Estimator`]'s.

use rayon::iter::{IntoParallelIterator, ParallelIterator};

/// How trees are grown.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RegressionOptions {
    pub trees: usize,
    /// Questions from the root to a leaf, at most.
    pub depth: usize,
    pub learning_rate: f64,
    /// What is added to the weights of a leaf.
    pub smoothing: f64,
}

impl Default for RegressionOptions {
    fn default() -> RegressionOptions {
        RegressionOptions { trees: 40, depth: 6, learning_rate: 0.2, smoothing: 0.5 }
    }
}

/// Trees whose answers add up.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Regression {
    base: f64,
    trees: Vec<Vec<Node>>,
}

/// A part of the rows; the first of a tree is the root.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Node {
    Leaf(f64),
    /// Rows whose feature is at most the threshold go to the first of two further nodes.
    Split {
        feature: usize,
        threshold: f32,
        next: [usize; 2],
    },
}

/// Weighted residuals in sum, and the weights.
#[derive(Clone, Copy, Default)]
struct Sum {
    residual: f64,
    weight: f64,
}

impl Sum {
    fn plus(self, other: Sum) -> Sum {
        Sum { residual: self.residual + other.residual, weight: self.weight + other.weight }
    }

    fn minus(self, other: Sum) -> Sum {
        Sum { residual: self.residual - other.residual, weight: self.weight - other.weight }
    }

    fn gain(self, smoothing: f64) -> f64 {
        self.residual * self.residual / (self.weight + smoothing)
    }
}

/// A question that splits the rows of a node.
#[derive(Clone, Copy)]
struct Cut {
    gain: f64,
    feature: usize,
    threshold: f32,
}

/// The least that a question has to gain.
const LEAST_GAIN: f64 = 1e-6;

impl Regression {
    /// Learns from rows of features, what is to be said of each, and how much it weighs. What of these is
    /// longer than the shortest is left out.
    pub fn fit(rows: &[Vec<f32>], targets: &[f32], weights: &[f32], options: &RegressionOptions) -> Regression {
        let count = rows.len().min(targets.len()).min(weights.len());
        let width = rows.iter().map(Vec::len).min().unwrap_or(0);
        let weights: Vec<f64> = weights[..count].iter().map(|weight| f64::from(weight.max(0.0))).collect();
        let all: f64 = weights.iter().sum();
        let weighted = targets.iter().zip(&weights).map(|(target, weight)| f64::from(*target) * weight);
        let base = weighted.sum::<f64>() / all.max(f64::MIN_POSITIVE);
        let order = |feature: usize| {
            let mut order: Vec<usize> = (0..count).collect();
            order.sort_by(|a, b| rows[*a][feature].total_cmp(&rows[*b][feature]));
            order
        };
        let orders: Vec<Vec<usize>> = (0..width).into_par_iter().map(order).collect();
        let mut residuals: Vec<f64> = targets[..count].iter().map(|target| f64::from(*target) - base).collect();
        let mut trees = Vec::with_capacity(options.trees);
        for _ in 0..options.trees {
            let sums = residuals.iter().zip(&weights);
            let sums = sums.map(|(residual, weight)| Sum { residual: residual * weight, weight: *weight }).collect();
            let tree = grow(rows, &orders, sums, options);
            for (residual, row) in residuals.iter_mut().zip(rows) {
                *residual -= answer(&tree, row);
            }
            trees.push(tree);
        }
        Regression { base, trees }
    }

    /// What it says of a row.
    pub fn score(&self, row: &[f32]) -> f32 {
        (self.base + self.trees.iter().map(|tree| answer(tree, row)).sum::<f64>()) as f32
    }
}

fn answer(tree: &[Node], row: &[f32]) -> f64 {
    let mut at = 0;
    loop {
        match tree.get(at) {
            Some(Node::Leaf(value)) => return *value,
            Some(Node::Split { feature, threshold, next }) => {
                at = next[usize::from(row.get(*feature).is_some_and(|value| value > threshold))];
            }
            None => return 0.0,
        }
    }
}

/// Grows a tree level by level: all rows are looked at once for each feature and level.
fn grow(rows: &[Vec<f32>], orders: &[Vec<usize>], sums: Vec<Sum>, options: &RegressionOptions) -> Vec<Node> {
    let value = |sum: Sum| options.learning_rate * sum.residual / (sum.weight + options.smoothing);
    let total = sums.iter().fold(Sum::default(), |a, b| a.plus(*b));
    let (mut tree, mut node_of) = (vec![Node::Leaf(value(total))], vec![0usize; sums.len()]);
    // the nodes of this level, and what their rows add up to
    let mut level = vec![(0, total)];
    for _ in 0..options.depth {
        let first = level.first().map_or(0, |(node, _)| *node);
        let totals: Vec<Sum> = level.iter().map(|(_, sum)| *sum).collect();
        let of_feature = |(feature, order): (usize, &Vec<usize>)| {
            let place = |row: usize| node_of[row].checked_sub(first).filter(|place: &usize| *place < totals.len());
            best_cuts(rows, feature, order, &sums, &totals, options.smoothing, &place)
        };
        let by_feature: Vec<Vec<Option<Cut>>> =
            orders.iter().enumerate().collect::<Vec<_>>().into_par_iter().map(of_feature).collect();
        let mut next = Vec::new();
        for (place, (node, _)) in level.iter().enumerate() {
            let cuts = by_feature.iter().filter_map(|cuts| cuts[place]);
            // the first of equals
            let best = cuts.fold(None::<Cut>, |best, cut| match best {
                Some(best) if best.gain >= cut.gain => Some(best),
                _ => Some(cut),
            });
            let Some(Cut { feature, threshold, .. }) = best.filter(|cut| cut.gain > LEAST_GAIN) else { continue };
            let children = [tree.len(), tree.len() + 1];
            let mut parts = [Sum::default(); 2];
            for (row, at) in node_of.iter_mut().enumerate().filter(|(_, at)| **at == *node) {
                let side = usize::from(rows[row][feature] > threshold);
                (*at, parts[side]) = (children[side], parts[side].plus(sums[row]));
            }
            tree[*node] = Node::Split { feature, threshold, next: children };
            tree.extend(parts.map(|part| Node::Leaf(value(part))));
            next.extend(children.into_iter().zip(parts));
        }
        if next.is_empty() {
            break;
        }
        level = next;
    }
    tree
}

/// The best question about a feature for each node of a level.
fn best_cuts(
    rows: &[Vec<f32>],
    feature: usize,
    order: &[usize],
    sums: &[Sum],
    totals: &[Sum],
    smoothing: f64,
    place: &dyn Fn(usize) -> Option<usize>,
) -> Vec<Option<Cut>> {
    let mut best: Vec<Option<Cut>> = vec![None; totals.len()];
    // of each node: what lies below, and the last value that was met
    let mut below: Vec<(Sum, Option<f32>)> = vec![(Sum::default(), None); totals.len()];
    for row in order {
        let Some(at) = place(*row) else { continue };
        let (low, last) = below[at];
        let value = rows[*row][feature];
        if let Some(last) = last.filter(|last| *last < value) {
            let high = totals[at].minus(low);
            let gain = low.gain(smoothing) + high.gain(smoothing) - totals[at].gain(smoothing);
            if best[at].is_none_or(|cut| gain > cut.gain) {
                best[at] = Some(Cut { gain, feature, threshold: f32::midpoint(last, value) });
            }
        }
        below[at] = (low.plus(sums[*row]), Some(value));
    }
    best
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::{Regression, RegressionOptions};

    #[test]
    fn trees_learn_a_function_of_two_features() {
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let mut rows = |count: usize| -> Vec<Vec<f32>> {
            (0..count).map(|_| (0..5).map(|_| random.random_range(0.0..4.0f32)).collect()).collect()
        };
        let truth = |row: &Vec<f32>| row[1].max(3.0 - row[3]);
        let (seen, unseen) = (rows(200), rows(100));
        let targets: Vec<f32> = seen.iter().map(truth).collect();
        let learned = Regression::fit(&seen, &targets, &vec![1.0; 200], &RegressionOptions::default());
        assert_eq!(learned, Regression::fit(&seen, &targets, &vec![1.0; 200], &RegressionOptions::default()));
        let wrong = |regression: &Regression| {
            unseen.iter().map(|row| (regression.score(row) - truth(row)).powi(2)).sum::<f32>() / 100.0
        };
        let mean =
            Regression::fit(&seen, &targets, &vec![1.0; 200], &RegressionOptions { trees: 0, ..Default::default() });
        assert!(wrong(&learned) < wrong(&mean) / 8.0, "{} {}", wrong(&learned), wrong(&mean));
    }

    #[test]
    fn what_cannot_be_told_apart_gets_the_mean_that_weights_give() {
        let rows = vec![vec![1.0, 2.0]; 3];
        let learned = Regression::fit(&rows, &[1.0, 1.0, 4.0], &[1.0, 1.0, 2.0], &RegressionOptions::default());
        assert!((learned.score(&[1.0, 2.0]) - 2.5).abs() < 1e-5);
        let nothing = Regression::fit(&[], &[], &[], &RegressionOptions::default());
        assert_eq!(nothing.score(&[1.0]), 0.0);
        // fewer features than it was taught
        assert!(learned.score(&[]).is_finite());
    }
}
