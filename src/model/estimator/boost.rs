//! How a forest learns to order the programs of a task: gradient boosting (Friedman 2001) of LambdaMART's
//! loss (Burges 2010), over histograms and leaf by leaf as LightGBM does (Ke et al., NeurIPS 2017).
//!
//! A pair of programs that stands in the wrong order pushes as hard as swapping it would change the
//! discounted gain of the order. The gain of a program falls with the third power of its time, so the best
//! few count.

use rand::SeedableRng;
use rand::seq::index;
use rand_chacha::ChaCha8Rng;
use rayon::iter::{IntoParallelIterator, IntoParallelRefIterator, ParallelIterator};

use super::Group;
use super::forest::{Forest, LEAVES, SPLITS, Split, Tree};

/// Different values of a feature that are told apart, at most.
const BINS: usize = 255;
/// Part of the features that a tree may ask for.
const FEATURE_SHARE: f64 = 0.5;
const LEARNING_RATE: f64 = 0.05;
/// Programs of a leaf, at least, and the sum of their second derivatives.
const LEAST_MEMBERS: u32 = 20;
const LEAST_HESSIAN: f64 = 1e-3;
/// Pairs count whose better placed member is among so many.
const TOP: usize = 16;
/// Speeds closer than this are noise.
pub(super) const SAME: f32 = 0.05;
/// The gain of a program falls with this power of its time.
const GAIN: f32 = 3.0;

/// Adds trees to a forest.
pub(super) fn boost(start: Forest, groups: &[&Group], trees: usize, seed: u64) -> Forest {
    let rows: Vec<&[f32]> = groups.iter().flat_map(|group| group.features.iter().map(Vec::as_slice)).collect();
    let columns = columns(&rows);
    let lists: Vec<List> = lists(groups);
    let mut scores: Vec<f64> = rows.par_iter().map(|row| f64::from(start.score(row))).collect();
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut forest = start;
    let asked = ((columns.len() as f64 * FEATURE_SHARE).ceil() as usize).min(columns.len());
    for _ in 0..trees {
        let slopes = slopes(&lists, &scores);
        let mut features = index::sample(&mut random, columns.len(), asked).into_vec();
        features.sort_unstable();
        let grower = Grower { columns: &columns, features: &features, slopes: &slopes };
        let (tree, members) = grower.grow();
        for (leaf, members) in members.iter().enumerate() {
            members.iter().for_each(|row| scores[*row as usize] += f64::from(tree.leaves[leaf]));
        }
        forest.trees.push(tree);
    }
    forest
}

/// A feature of all rows.
struct Column {
    /// Bin `b` holds what is at most threshold `b`, and above the one before.
    thresholds: Vec<f32>,
    bins: Vec<u8>,
}

fn columns(rows: &[&[f32]]) -> Vec<Column> {
    let column = |feature: usize| {
        let mut sorted: Vec<f32> = rows.iter().map(|row| row[feature]).collect();
        sorted.sort_unstable_by(f32::total_cmp);
        let mut distinct = sorted.clone();
        distinct.dedup();
        let thresholds: Vec<f32> = if distinct.len() <= BINS {
            distinct.windows(2).map(|pair| f32::midpoint(pair[0], pair[1])).collect()
        } else {
            // as many rows in each, where equal values allow it
            let mut cuts: Vec<f32> = (1..BINS)
                .map(|part| sorted[part * sorted.len() / BINS])
                .filter(|cut| *cut < sorted[sorted.len() - 1])
                .collect();
            cuts.dedup();
            cuts
        };
        let bin = |row: &&[f32]| thresholds.partition_point(|threshold| *threshold < row[feature]) as u8;
        let bins = rows.iter().map(bin).collect();
        Column { thresholds, bins }
    };
    let count = rows.first().map_or(0, |row| row.len());
    (0..count).into_par_iter().map(column).collect()
}

/// The rows of a group.
struct List {
    start: usize,
    speeds: Vec<f32>,
    /// Of each program; the ideal order has a discounted gain of 1.
    gains: Vec<f64>,
}

fn discount(place: usize) -> f64 {
    1.0 / (place as f64 + 2.0).log2()
}

fn lists(groups: &[&Group]) -> Vec<List> {
    let mut start = 0;
    let list = |group: &&Group| {
        let gains: Vec<f64> = group.speeds.iter().map(|speed| f64::from((GAIN * speed).exp2())).collect();
        let mut ideal = gains.clone();
        ideal.sort_by(|a, b| b.total_cmp(a));
        let best: f64 = ideal.iter().take(TOP).enumerate().map(|(place, gain)| gain * discount(place)).sum();
        let gains = gains.into_iter().map(|gain| gain / best.max(f64::MIN_POSITIVE)).collect();
        let list = List { start, speeds: group.speeds.clone(), gains };
        start += group.speeds.len();
        list
    };
    groups.iter().map(list).collect()
}

/// First and second derivative of the loss by a row's score.
type Slope = (f64, f64);

fn slopes(lists: &[List], scores: &[f64]) -> Vec<Slope> {
    let of_list = |list: &List| {
        let scores = &scores[list.start..list.start + list.speeds.len()];
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
        let mut slopes = vec![(0.0, 0.0); scores.len()];
        for (place, first) in order.iter().enumerate().take(TOP) {
            for (other_place, second) in order.iter().enumerate().skip(place + 1) {
                let apart = list.speeds[*first] - list.speeds[*second];
                if apart.abs() <= SAME {
                    continue;
                }
                let (faster, slower) = if apart > 0.0 { (*first, *second) } else { (*second, *first) };
                let swapped = (list.gains[faster] - list.gains[slower]) * (discount(place) - discount(other_place));
                let wrong = 1.0 / (1.0 + (scores[faster] - scores[slower]).exp());
                let (force, curvature) = (wrong * swapped, wrong * (1.0 - wrong) * swapped);
                slopes[faster].0 -= force;
                slopes[slower].0 += force;
                slopes[faster].1 += curvature;
                slopes[slower].1 += curvature;
            }
        }
        slopes
    };
    lists.par_iter().map(of_list).collect::<Vec<_>>().concat()
}

/// What the rows of a bin, or of a leaf, add up to.
#[derive(Clone, Copy, Default)]
struct Sum {
    slope: f64,
    curvature: f64,
    members: u32,
}

impl Sum {
    fn plus(self, other: Sum) -> Sum {
        let members = self.members + other.members;
        Sum { slope: self.slope + other.slope, curvature: self.curvature + other.curvature, members }
    }

    fn minus(self, other: Sum) -> Sum {
        let members = self.members - other.members;
        Sum { slope: self.slope - other.slope, curvature: self.curvature - other.curvature, members }
    }

    /// By how much a leaf's best value lowers the loss, twice.
    fn gain(self) -> f64 {
        self.slope * self.slope / self.curvature.max(LEAST_HESSIAN)
    }

    fn is_enough(self) -> bool {
        self.members >= LEAST_MEMBERS && self.curvature >= LEAST_HESSIAN
    }
}

/// Sums by feature asked for, and by bin.
type Histogram = Vec<Vec<Sum>>;

/// A way to cut a leaf in two.
#[derive(Clone, Copy)]
struct Cut {
    gain: f64,
    /// Among those asked for, and the last bin of the lower part.
    feature: usize,
    bin: usize,
}

struct Leaf {
    rows: Vec<u32>,
    histogram: Histogram,
    all: Sum,
    cut: Option<Cut>,
    /// The split above, and on which side of it.
    parent: Option<(usize, usize)>,
}

struct Grower<'a> {
    columns: &'a [Column],
    features: &'a [usize],
    slopes: &'a [Slope],
}

impl Grower<'_> {
    /// A tree, and the rows of each leaf.
    fn grow(&self) -> (Tree, Vec<Vec<u32>>) {
        let rows: Vec<u32> = (0..self.slopes.len() as u32).collect();
        let histogram = self.histogram(&rows);
        let mut leaves = vec![self.leaf(rows, histogram, None)];
        let mut splits: Vec<Split> = Vec::new();
        while leaves.len() < LEAVES {
            let gain = |leaf: &Leaf| leaf.cut.map_or(0.0, |cut| cut.gain);
            let best = (0..leaves.len()).max_by(|a, b| gain(&leaves[*a]).total_cmp(&gain(&leaves[*b])));
            let Some((at, cut)) = best.and_then(|at| Some((at, leaves[at].cut?))) else { break };
            let leaf = leaves.swap_remove(at);
            let feature = self.features[cut.feature];
            let column = &self.columns[feature];
            if let Some((above, side)) = leaf.parent {
                splits[above].next[side] = splits.len() as u8;
            }
            let (low, high): (Vec<u32>, Vec<u32>) =
                leaf.rows.iter().partition(|row| usize::from(column.bins[**row as usize]) <= cut.bin);
            // the smaller part is summed up, the other one is what is left
            let low_is_smaller = low.len() <= high.len();
            let smaller = self.histogram(if low_is_smaller { &low } else { &high });
            let larger = difference(&leaf.histogram, &smaller);
            let [of_low, of_high] = if low_is_smaller { [smaller, larger] } else { [larger, smaller] };
            leaves.push(self.leaf(low, of_low, Some((splits.len(), 0))));
            leaves.push(self.leaf(high, of_high, Some((splits.len(), 1))));
            let next = [SPLITS as u8; 2];
            splits.push(Split { feature: feature as u16, threshold: column.thresholds[cut.bin], next });
        }
        for (number, leaf) in leaves.iter().enumerate() {
            if let Some((above, side)) = leaf.parent {
                splits[above].next[side] = (SPLITS + number) as u8;
            }
        }
        let value = |all: Sum| (-LEARNING_RATE * all.slope / all.curvature.max(LEAST_HESSIAN)) as f32;
        let values = leaves.iter().map(|leaf| value(leaf.all)).collect();
        (Tree { splits, leaves: values }, leaves.into_iter().map(|leaf| leaf.rows).collect())
    }

    fn leaf(&self, rows: Vec<u32>, histogram: Histogram, parent: Option<(usize, usize)>) -> Leaf {
        let all = histogram.first().map_or(Sum::default(), |bins| bins.iter().fold(Sum::default(), |a, b| a.plus(*b)));
        let cut = best_cut(&histogram, all);
        Leaf { rows, histogram, all, cut, parent }
    }

    fn histogram(&self, rows: &[u32]) -> Histogram {
        let slopes: Vec<Slope> = rows.iter().map(|row| self.slopes[*row as usize]).collect();
        let of_feature = |feature: &usize| {
            let column = &self.columns[*feature];
            let mut sums = vec![Sum::default(); column.thresholds.len() + 1];
            for (row, (slope, curvature)) in rows.iter().zip(&slopes) {
                let sum = &mut sums[usize::from(column.bins[*row as usize])];
                sum.slope += slope;
                sum.curvature += curvature;
                sum.members += 1;
            }
            sums
        };
        self.features.par_iter().map(of_feature).collect()
    }
}

fn difference(all: &Histogram, part: &Histogram) -> Histogram {
    let of_feature = |(all, part): (&Vec<Sum>, &Vec<Sum>)| all.iter().zip(part).map(|(a, b)| a.minus(*b)).collect();
    all.iter().zip(part).map(of_feature).collect()
}

/// The cut that lowers the loss the most, if one does.
fn best_cut(histogram: &Histogram, all: Sum) -> Option<Cut> {
    let mut best: Option<Cut> = None;
    for (feature, bins) in histogram.iter().enumerate() {
        let mut low = Sum::default();
        for (bin, sum) in bins.iter().enumerate().take(bins.len().saturating_sub(1)) {
            low = low.plus(*sum);
            let high = all.minus(low);
            if !low.is_enough() || !high.is_enough() {
                continue;
            }
            let gain = low.gain() + high.gain() - all.gain();
            if gain > best.map_or(1e-12, |best| best.gain) {
                best = Some(Cut { gain, feature, bin });
            }
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::{Forest, Group, boost, columns};
    use crate::model::Estimator;

    /// Speeds that the larger of two counts decides, among features that say nothing.
    fn groups(count: usize, seed: u64) -> Vec<Group> {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let group = |_| {
            let features: Vec<Vec<f32>> =
                (0..30).map(|_| (0..4).map(|_| random.random_range(0.0..6.0f32)).collect()).collect();
            let times: Vec<f32> = features.iter().map(|f| f[1].max(f[2])).collect();
            let best = times.iter().copied().fold(f32::INFINITY, f32::min);
            Group { features, speeds: times.iter().map(|time| best - time).collect() }
        };
        (0..count).map(group).collect()
    }

    fn first(forest: &Forest, groups: &[Group]) -> f64 {
        let mut estimator = Estimator::random(4, 1);
        estimator.forest = forest.clone();
        estimator.tensors.insert("votes".into(), vec![0.0, 1.0]);
        estimator.evaluate(groups).first
    }

    #[test]
    fn trees_learn_what_is_fast_and_more_of_them_learn_more() {
        let (seen, unseen) = (groups(80, 1), groups(20, 2));
        let seen: Vec<&Group> = seen.iter().collect();
        let few = boost(Forest::default(), &seen, 3, 7);
        let more = boost(few.clone(), &seen, 60, 7);
        assert_eq!((few.trees.len(), more.trees.len()), (3, 63));
        assert_eq!(more, boost(few.clone(), &seen, 60, 7));
        let (few, more) = (first(&few, &unseen), first(&more, &unseen));
        assert!(more > 0.85 && more > few, "{few} {more}");
    }

    #[test]
    fn nothing_to_learn_from_gives_trees_that_say_nothing() {
        let none = boost(Forest::default(), &[], 2, 1);
        assert_eq!(none.score(&[1.0]), 0.0);
        let same = Group { features: vec![vec![1.0]; 50], speeds: vec![0.0; 50] };
        assert_eq!(boost(Forest::default(), &[&same], 2, 1).score(&[1.0]), 0.0);
    }

    #[test]
    fn bins_are_ranges_of_values() {
        let rows: Vec<Vec<f32>> = (0..1000).map(|row| vec![(row % 3) as f32, row as f32]).collect();
        let rows: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
        let [few, many] = &columns(&rows)[..] else { panic!("two columns") };
        assert_eq!((few.thresholds.as_slice(), &few.bins[..4]), ([0.5, 1.5].as_slice(), [0, 1, 2, 0].as_slice()));
        assert!(many.thresholds.len() <= 254 && many.bins.is_sorted() && many.thresholds.is_sorted());
        for (row, bin) in many.bins.iter().enumerate() {
            let bin = usize::from(*bin);
            assert!(bin == 0 || many.thresholds[bin - 1] < row as f32);
            assert!(many.thresholds.get(bin).is_none_or(|above| row as f32 <= *above));
        }
    }
}
