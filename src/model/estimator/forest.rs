//! Regression trees whose leaves add up.

use std::collections::{BTreeMap, BTreeSet};

use rand::Rng;
use rand::seq::SliceRandom;

/// The most leaves of a tree, and the most splits.
pub(super) const LEAVES: usize = 63;
pub(super) const SPLITS: usize = LEAVES - 1;
/// The most trees that a file may hold.
const MAX_TREES: usize = 1 << 12;
/// Numbers that a split is stored as: feature, threshold, and what follows on either side.
const STORED: usize = 4;

/// Names of the tensors of a forest that is not empty.
pub(super) const SPLITS_NAME: &str = "forest.splits";
pub(super) const LEAVES_NAME: &str = "forest.leaves";

/// A question about one feature.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Split {
    pub feature: u16,
    pub threshold: f32,
    /// Where the feature is at most the threshold, and where it is above: a split further down the list, or,
    /// from [`SPLITS`] on, a leaf.
    pub next: [u8; 2],
}

/// A tree: its first split is the root.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Tree {
    pub splits: Vec<Split>,
    pub leaves: Vec<f32>,
}

impl Tree {
    /// The number of the leaf that a program falls into.
    pub fn leaf(&self, features: &[f32]) -> u8 {
        let mut at = 0;
        while let Some(split) = self.splits.get(at) {
            let above = features.get(usize::from(split.feature)).is_some_and(|value| *value > split.threshold);
            at = usize::from(split.next[usize::from(above)]);
            if at >= SPLITS {
                return (at - SPLITS) as u8;
            }
        }
        0
    }

    /// Permutes its leaves: those that a program can fall into.
    pub fn shuffle(&mut self, random: &mut impl Rng) {
        let ends = self.splits.iter().flat_map(|split| split.next).map(usize::from).filter(|next| *next >= SPLITS);
        let reached: BTreeSet<usize> =
            ends.map(|next| next - SPLITS).filter(|leaf| *leaf < self.leaves.len()).collect();
        let mut values: Vec<f32> = reached.iter().map(|leaf| self.leaves[*leaf]).collect();
        values.shuffle(random);
        reached.into_iter().zip(values).for_each(|(leaf, value)| self.leaves[leaf] = value);
    }
}

/// Trees, each of which knows what the ones before it got wrong.
#[derive(Clone, PartialEq, Default, Debug)]
pub(super) struct Forest {
    pub trees: Vec<Tree>,
}

impl Forest {
    /// The sum of what the trees say.
    pub fn score(&self, features: &[f32]) -> f32 {
        self.score_of(&self.leaves(features))
    }

    /// The same, of a program that falls into these leaves.
    pub fn score_of(&self, leaves: &[u8]) -> f32 {
        self.trees
            .iter()
            .zip(leaves)
            .map(|(tree, leaf)| tree.leaves.get(usize::from(*leaf)).copied().unwrap_or(0.0))
            .sum()
    }

    /// The leaf of each tree. Programs that share many of them are alike, as far as speed is concerned.
    pub fn leaves(&self, features: &[f32]) -> Vec<u8> {
        self.trees.iter().map(|tree| tree.leaf(features)).collect()
    }

    /// Names and shapes of the tensors of a forest of so many trees.
    pub fn shapes(trees: usize) -> Vec<(String, Vec<usize>)> {
        if trees == 0 {
            return Vec::new();
        }
        vec![(SPLITS_NAME.into(), vec![trees, SPLITS, STORED]), (LEAVES_NAME.into(), vec![trees, LEAVES])]
    }

    /// As tensors of [`Forest::shapes`]; what a tree lacks is filled with zeros.
    pub fn tensors(&self) -> BTreeMap<String, Vec<f32>> {
        if self.trees.is_empty() {
            return BTreeMap::new();
        }
        let (mut splits, mut leaves) = (Vec::new(), Vec::new());
        for (number, tree) in self.trees.iter().enumerate() {
            for split in &tree.splits {
                splits.extend([f32::from(split.feature), split.threshold]);
                splits.extend(split.next.map(f32::from));
            }
            leaves.extend_from_slice(&tree.leaves);
            splits.resize((number + 1) * SPLITS * STORED, 0.0);
            leaves.resize((number + 1) * LEAVES, 0.0);
        }
        BTreeMap::from([(SPLITS_NAME.to_string(), splits), (LEAVES_NAME.to_string(), leaves)])
    }

    /// From tensors of [`Forest::shapes`], with finite values: every split asks for one of `inputs` features
    /// and leads further down, or to a leaf.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn from_tensors(splits: &[f32], leaves: &[f32], inputs: usize) -> Result<Forest, String> {
        let trees = leaves.len() / LEAVES;
        if trees > MAX_TREES {
            return Err(format!("{trees} trees, where {MAX_TREES} are possible"));
        }
        let mut forest = Forest::default();
        for (number, (splits, leaves)) in
            splits.chunks_exact(SPLITS * STORED).zip(leaves.chunks_exact(LEAVES)).enumerate()
        {
            let (stored, _) = splits.as_chunks::<STORED>();
            let used = stored.iter().take_while(|split| **split != [0.0; STORED]).count();
            let read = |(at, [feature, threshold, low, high]): (usize, &[f32; STORED])| {
                let wrong = || format!("tensor `{SPLITS_NAME}`: split {at} of tree {number} makes no sense");
                let whole = |value: f32, below: usize| {
                    let fits = value.fract() == 0.0 && (0.0..below as f32).contains(&value);
                    if fits { Ok(value as usize) } else { Err(wrong()) }
                };
                let next = [whole(*low, SPLITS + LEAVES)?, whole(*high, SPLITS + LEAVES)?];
                let leads_on = |next: &usize| *next >= SPLITS || (at + 1..used).contains(next);
                if !next.iter().all(leads_on) {
                    return Err(wrong());
                }
                let feature = whole(*feature, inputs.min(usize::from(u16::MAX)))? as u16;
                Ok(Split { feature, threshold: *threshold, next: next.map(|next| next as u8) })
            };
            let splits = stored[..used].iter().enumerate().map(read).collect::<Result<_, String>>()?;
            forest.trees.push(Tree { splits, leaves: leaves.to_vec() });
        }
        Ok(forest)
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::{Forest, LEAVES, SPLITS, STORED, Split, Tree};

    fn split(feature: u16, threshold: f32, next: [usize; 2]) -> Split {
        Split { feature, threshold, next: next.map(|next| next as u8) }
    }

    /// Below 1; from there on by the second feature.
    fn tree() -> Tree {
        let splits = vec![split(0, 1.0, [SPLITS, 1]), split(1, -2.0, [SPLITS + 2, SPLITS + 1])];
        Tree { splits, leaves: vec![0.5, 1.0, 2.0] }
    }

    #[test]
    fn programs_fall_into_leaves() {
        let forest = Forest { trees: vec![tree(), Tree { splits: Vec::new(), leaves: vec![0.25] }] };
        for (features, leaf, score) in [([1.0, 9.0], 0, 0.75), ([1.5, -2.0], 2, 2.25), ([1.5, -1.0], 1, 1.25)] {
            assert_eq!(forest.leaves(&features), [leaf, 0]);
            assert_eq!(forest.score(&features), score);
        }
    }

    #[test]
    fn leaves_that_are_reached_are_permuted_among_themselves() {
        let mut random = ChaCha8Rng::seed_from_u64(5);
        let before = Tree { leaves: [tree().leaves, vec![9.0; 4]].concat(), ..tree() };
        let mut orders = std::collections::BTreeSet::new();
        for _ in 0..40 {
            let mut tree = before.clone();
            tree.shuffle(&mut random);
            assert_eq!((&tree.splits, &tree.leaves[3..]), (&before.splits, &before.leaves[3..]));
            let mut sorted = tree.leaves[..3].to_vec();
            sorted.sort_by(f32::total_cmp);
            assert_eq!(sorted, [0.5, 1.0, 2.0]);
            orders.insert(tree.leaves[..3].iter().map(|leaf| leaf.to_bits()).collect::<Vec<u32>>());
        }
        assert_eq!(orders.len(), 6, "all orders come up");
        let mut single = Tree { splits: Vec::new(), leaves: vec![0.25, 7.0] };
        single.shuffle(&mut random);
        assert_eq!(single.leaves, [0.25, 7.0]);
    }

    #[test]
    fn stored_forests_are_read_back_and_broken_ones_refused() {
        let forest = Forest { trees: vec![tree()] };
        let tensors = forest.tensors();
        let (splits, leaves) = (&tensors["forest.splits"], &tensors["forest.leaves"]);
        assert_eq!((splits.len(), leaves.len()), (SPLITS * STORED, LEAVES));
        let read = Forest::from_tensors(splits, leaves, 2).unwrap();
        assert_eq!(read.trees[0].splits, forest.trees[0].splits);
        assert_eq!(read.score(&[1.5, 0.0]), 1.0);
        // a feature that is not there, one that is no number of one, a way back, a split that is not there,
        // no leaf
        for (at, value) in [(0, 2.0), (0, 0.5), (0, -1.0), (2, 0.0), (7, 1.0), (6, 5.0), (3, 125.0), (3, f32::MAX)] {
            let mut broken = splits.clone();
            broken[at] = value;
            let error = Forest::from_tensors(&broken, leaves, 2).unwrap_err();
            assert!(error.contains("of tree 0 makes no sense"), "{at} {value}: {error}");
        }
        assert!(Forest::from_tensors(&[], &vec![0.0; LEAVES * 5000], 2).unwrap_err().contains("5000 trees"));
    }
}
