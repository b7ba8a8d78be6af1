//! The language model and the world model with something taken away, to tell what it is worth: for `compare`
//! alone.

use super::lm::{self, Ingredients, LanguageModel};
use super::world::Drafting;
use super::{History, Made, Make, Method, Proposal, ProposeError, Proposer, Purpose};
use crate::language::Language;
use crate::model::{Checkpoint, Config, Model};
use crate::space::Space;
use crate::target::Task;

pub(super) const GREEDY: Method = Method {
    learns: false,
    ..without(
        "lm-greedy",
        "The first program of lm out of 256 samples, without any measurement",
        |space, checkpoint, seed| {
            Ok(Box::new(Greedy(lm::pretrained(space, checkpoint, seed).with_samples(lm::SINGLE_SAMPLES))))
        },
    )
};

pub(super) const UNTRAINED: Method = Method {
    name: "lm-untrained",
    about: "lm without pretraining: random weights, and an estimate that learns from nothing",
    learns: true,
    purpose: Purpose::Comparison,
    make: Make::Plain(|space, seed| {
        let language = Language::standard();
        let model = Model::random(Config::standard(language.vocabulary().len()), 0)
            .map_err(|error| ProposeError::Model(error.to_string()))?;
        Ok(Box::new(LanguageModel::new(space, language, &model, seed).ranked_by(None)))
    }),
};

pub(super) const NO_WANT: Method =
    without("lm-no-want", "lm whose prompt asks for no quality", |space, checkpoint, seed| {
        with(space, checkpoint, seed, Ingredients { want: false, ..Ingredients::ALL })
    });

pub(super) const NO_WORKLOAD: Method =
    without("lm-no-workload", "lm whose prompt does not spell the workload out", |space, checkpoint, seed| {
        with(space, checkpoint, seed, Ingredients { workload: false, ..Ingredients::ALL })
    });

pub(super) const VALUE_HEAD: Method = without(
    "lm-value-head",
    "lm ranked by the transformer's value head in the estimator's place",
    |space, checkpoint, seed| Ok(Box::new(lm::unranked(space, checkpoint, seed))),
);

pub(super) const NO_RANKING: Method = without(
    "lm-no-ranking",
    "lm whose programs come in the order in which they were written",
    |space, checkpoint, seed| with(space, checkpoint, seed, Ingredients { ranking: false, ..Ingredients::ALL }),
);

pub(super) const NO_NEIGHBOURS: Method = without(
    "lm-no-neighbours",
    "lm without untuned programs, without children of good ones, and without going on from the fastest",
    |space, checkpoint, seed| with(space, checkpoint, seed, Ingredients { neighbours: false, ..Ingredients::ALL }),
);

pub(super) const NO_UNTUNED: Method = without(
    "lm-no-untuned",
    "lm that measures the program of the rules only where its ranking says",
    |space, checkpoint, seed| with(space, checkpoint, seed, Ingredients { untuned: false, ..Ingredients::ALL }),
);

pub(super) const MUTATION: Method = without(
    "lm-mutation",
    "lm with blindly changed children of good programs in the place of what it writes behind them",
    |space, checkpoint, seed| with(space, checkpoint, seed, Ingredients { mutation: true, ..Ingredients::ALL }),
);

pub(super) const NOTHING_SHOWN: Method =
    without("lm-nothing-shown", "lm that does not read what was measured", |space, checkpoint, seed| {
        with(space, checkpoint, seed, Ingredients { shown: false, ..Ingredients::ALL })
    });

pub(super) const NO_WORLD: Method =
    without("lm-no-world", "lm without the world model's drafts and its opinion", |space, checkpoint, seed| {
        with(space, checkpoint, seed, Ingredients { drafted: false, ..Ingredients::ALL })
    });

pub(super) const NOT_CONTINUED: Method = without(
    "lm-not-continued",
    "lm whose world model drafts nothing around what the language model wrote",
    |space, checkpoint, seed| with(space, checkpoint, seed, Ingredients { continued: false, ..Ingredients::ALL }),
);

pub(super) const WORLD_END: Method = without(
    "world-end",
    "world whose model sees the set of decisions, and has no dynamics",
    |space, checkpoint, seed| Ok(Box::new(Drafting::new(space, checkpoint, seed, false)?)),
);

/// An entry for a pretrained model that lacks something.
const fn without(
    name: &'static str,
    about: &'static str,
    make: for<'a> fn(&'a Space, &'a Checkpoint, u64) -> Made<'a>,
) -> Method {
    Method { name, about, learns: true, purpose: Purpose::Comparison, make: Make::Pretrained(make) }
}

fn with<'a>(space: &'a Space, checkpoint: &'a Checkpoint, seed: u64, ingredients: Ingredients) -> Made<'a> {
    Ok(Box::new(lm::pretrained(space, checkpoint, seed).with_ingredients(ingredients)))
}

/// Names a single program, before anything was measured.
struct Greedy<P>(P);

impl<P: Proposer> Proposer for Greedy<P> {
    fn propose(&mut self, task: &Task, history: &History, count: usize) -> Result<Proposal, ProposeError> {
        if history.is_empty() { self.0.propose(task, history, count.min(1)) } else { Ok(Proposal::default()) }
    }
}
