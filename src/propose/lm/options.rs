//! The numbers of the search, and what it makes use of.

use crate::language::Want;

/// The numbers of the search.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heuristics {
    /// The quality that the prompt asks for: the best decile.
    pub want: Want,
    /// How freely to sample; see [`SamplingOptions`].
    pub temperature: f64,
    pub top_p: f64,
    /// Traces sampled at once, at least: what the ranking chooses from.
    pub samples: usize,
    /// The same where a single program is measured.
    pub single: usize,
    /// Both where many tasks share the time. On 60 held-out tasks, one seed, the first program has 0.981
    /// (0.947 to 1.008) of the speed that it has with twice as many, that of three 0.991, and that of ten
    /// 1.009 (0.997 to 1.021), and ten are found in 0.79 of the time.
    pub few_samples: usize,
    /// Traces sampled for each one asked for, at least.
    pub samples_per_candidate: usize,
    /// Where programs are left from the time before, the samples are divided by this, and all that goes with
    /// them. On 60 held-out tasks, with that and half as many drafts as before, ten programs are found in
    /// 0.70 of the time, 1.014 (0.997 to 1.031) times as fast.
    pub later: usize,
    /// Rounds of sampling before a small space, or a very certain model, is taken to be exhausted.
    pub rounds: u64,
    /// How many of the fastest programs others begin like; they and as many of the most promising have
    /// children.
    pub parents: usize,
    /// Generations of blindly changed children, where there are any.
    pub generations: usize,
    /// Programs of a generation, written or changed, for each sample.
    pub children: f64,
    /// Programs that are drawn without nests for the world model; the share of them that comes from all of
    /// the space, the others being mutations; and how many join the pool.
    pub drafted: usize,
    pub fresh: f64,
    pub liked: usize,
    /// How many of the programs that were written have mutations among those: those that the world model
    /// likes best. On 60 held-out tasks, two seeds, the first program has 0.018 (-0.003 to 0.040) more of the
    /// best known speed than without, and 0.033 (0.001 to 0.068) more than where the language model's weights
    /// are shuffled; without, that made no difference.
    pub continued: usize,
    /// The model's choice is shipped without a comparison if it is faster than the rules' program even when
    /// the prediction is off by this many deviations. With 1.28, one in ten is slower if errors are normal.
    /// Held against the corpus's records of tasks that the estimator was not trained on (708 pairs of task
    /// and machine): 150 choices pass, 6 of them are slower, and they bring 72 % of what all choices would.
    pub doubt: f64,
}

impl Heuristics {
    /// How many programs a generation has behind so many samples.
    pub fn generation(&self, samples: usize) -> usize {
        (self.children * samples.min(self.samples) as f64) as usize
    }

    /// Of an amount for all samples, that for so many.
    pub fn share_of(&self, amount: usize, samples: usize) -> usize {
        amount * samples.min(self.samples) / self.samples.max(1)
    }
}

pub(super) const HEURISTICS: Heuristics = Heuristics {
    want: Want::Decile(9),
    temperature: 1.0,
    top_p: 0.98,
    samples: 128,
    single: SINGLE_SAMPLES,
    few_samples: 64,
    samples_per_candidate: 8,
    later: 2,
    rounds: 8,
    parents: 4,
    generations: 2,
    children: 0.5,
    drafted: 1000,
    fresh: 0.25,
    liked: 64,
    continued: 8,
    doubt: 1.28,
};

/// The world model's say on the first program, relative to the estimator's: both scores have a deviation of 1
/// over the pool. On 60 held-out tasks, two seeds, the first program is 1.08 times as fast (1.02 to 1.14) as
/// without drafts and opinion with 0.5, 1.05 times with none, 1.07 times with 1.
pub(super) const OPINION: f32 = 0.5;

/// Samples that a single program is chosen from.
pub(in crate::propose) const SINGLE_SAMPLES: usize = 256;

/// What the search makes use of: all of it, unless an ablation takes something away or changes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ingredients {
    /// The prompt asks for the best quality; otherwise for nothing in particular.
    pub want: bool,
    /// The prompt spells the workload out; otherwise it names the machine only.
    pub workload: bool,
    /// Programs are ranked; otherwise they come in the order in which they were written.
    pub ranking: bool,
    /// Sequences begin as the fastest measured ones do, and the untuned programs and a generation around the
    /// most promising join the pool.
    pub neighbours: bool,
    /// The generations are children of good programs, whose decisions are changed blindly, in the place of
    /// what the model writes once it has read the most promising.
    pub mutation: bool,
    /// Half of the sequences are written behind prompts that show what was measured; and so is the generation
    /// around the most promising.
    pub shown: bool,
    /// A world model drafts programs without nests, and has a say on the first that is measured.
    pub drafted: bool,
    /// Among the drafts are mutations of what the model wrote.
    pub continued: bool,
    /// The program of the rules is among the first two that are measured, whatever the ranking says;
    /// otherwise where it says.
    pub untuned: bool,
}

impl Ingredients {
    /// All but blind mutation, which the model's own changes stand in the place of.
    pub const ALL: Ingredients = Ingredients {
        want: true,
        workload: true,
        ranking: true,
        neighbours: true,
        mutation: false,
        shown: true,
        drafted: true,
        continued: true,
        untuned: true,
    };
}
