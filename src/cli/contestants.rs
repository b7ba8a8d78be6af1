//! Who takes part in `compare`: the methods of a search, and ablations of the language model.

use std::collections::HashSet;

use anyhow::Result;
use clap::ValueEnum;
use tilescribe::language::Language;
use tilescribe::model::{Checkpoint, Config, Model};
use tilescribe::propose::{Evolution, Greedy, Ingredients, LanguageModel, Proposer, Random};
use tilescribe::space::Space;
use tilescribe::tune::Job;
use tilescribe::tune::compare::Method;

use super::arguments::Assignment;
use super::exit::CommandError;
use super::search::{CheckpointArguments, check_method};

/// A method, or one with something taken away.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Contestant {
    /// The language model writes candidates
    Lm,
    /// Its first program, without any measurement, out of 256 samples
    LmGreedy,
    /// Every candidate of every decision is equally likely
    Random,
    /// Mutations of the fastest programs measured so far, ranked by an estimate that is learned from them
    Evolution,
    /// Evolution that starts from the checkpoint's estimator
    Guided,
    /// lm without pretraining: random weights, and an estimate that learns from nothing
    LmUntrained,
    /// lm whose prompt asks for no quality
    LmNoWant,
    /// lm whose prompt does not spell the workload out
    LmNoWorkload,
    /// lm ranked by the transformer's value head in the estimator's place
    LmValueHead,
    /// lm whose programs come in the order in which they were written
    LmNoRanking,
    /// lm without untuned programs, without children of good ones, and without going on from the fastest
    LmNoNeighbours,
    /// lm that measures the program of the rules only where its ranking says
    LmNoUntuned,
}

/// Samples that the greedy program is chosen from.
const GREEDY_SAMPLES: usize = 256;

impl Contestant {
    /// As the command line spells it.
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_string())
    }

    /// Whether it asks a checkpoint.
    pub fn needs_checkpoint(self) -> bool {
        !matches!(self, Contestant::Random | Contestant::Evolution | Contestant::LmUntrained)
    }

    fn ingredients(self) -> Ingredients {
        Ingredients {
            want: self != Contestant::LmNoWant,
            workload: self != Contestant::LmNoWorkload,
            ranking: self != Contestant::LmNoRanking,
            neighbours: self != Contestant::LmNoNeighbours,
            untuned: self != Contestant::LmNoUntuned,
        }
    }
}

/// Contestants with what they need; each checkpoint is read once.
pub struct Contestants<'a> {
    space: &'a Space,
    language: Language,
    checkpoint: Option<Known>,
    untrained: Model,
    rivals: Vec<(String, Known)>,
}

/// A checkpoint and its fingerprint.
struct Known {
    checkpoint: Checkpoint,
    fingerprint: String,
}

impl Known {
    fn load(arguments: &CheckpointArguments, space: &Space, language: &Language) -> Result<Known> {
        let checkpoint = arguments.load(space, language)?;
        Ok(Known { fingerprint: checkpoint.fingerprint()?, checkpoint })
    }
}

impl<'a> Contestants<'a> {
    /// `rivals` are `lm` with checkpoints of their own, by name.
    ///
    /// # Errors
    /// As [`CheckpointArguments::load`]; a rival that is called as a contestant is, or as another rival.
    pub fn new(
        space: &'a Space,
        of: &[Contestant],
        checkpoint: &CheckpointArguments,
        rivals: &[Assignment<String>],
    ) -> Result<Contestants<'a>> {
        let language = Language::standard();
        let mut names: HashSet<String> = Contestant::value_variants().iter().map(|known| known.name()).collect();
        if let Some(rival) = rivals.iter().find(|rival| rival.name.is_empty() || !names.insert(rival.name.clone())) {
            let reason = format!("`--rival {}=...`: another contestant is called so", rival.name);
            return Err(CommandError::Usage(reason).into());
        }
        let needed = of.iter().any(|contestant| contestant.needs_checkpoint());
        let checkpoint = needed.then(|| Known::load(checkpoint, space, &language)).transpose()?;
        let load = |rival: &Assignment<String>| {
            let arguments = CheckpointArguments { checkpoint: Some(rival.value.clone()) };
            Ok((rival.name.clone(), Known::load(&arguments, space, &language)?))
        };
        let rivals = rivals.iter().map(load).collect::<Result<_>>()?;
        let untrained = Model::random(Config::standard(language.vocabulary().len()), 0)?;
        Ok(Contestants { space, language, checkpoint, untrained, rivals })
    }

    /// Whether all that ask a checkpoint can search for programs of these tasks.
    ///
    /// # Errors
    /// As [`check_method`].
    pub fn check(&self, of: &[Contestant], jobs: &[Job]) -> Result<()> {
        let asking = of.iter().filter(|contestant| contestant.needs_checkpoint());
        let named = asking.filter_map(|contestant| Some((contestant.name(), self.checkpoint.as_ref()?)));
        let rivals = self.rivals.iter().map(|(name, known)| (name.clone(), known));
        named.chain(rivals).try_for_each(|(name, known)| check_method(jobs, &name, &known.checkpoint))
    }

    pub fn method(&'a self, contestant: Contestant) -> Method<'a> {
        let known = self.checkpoint.as_ref().filter(|_| contestant.needs_checkpoint());
        Method {
            name: contestant.name(),
            checkpoint: known.map(|known| known.fingerprint.clone()),
            make: Box::new(move |seed| Ok(self.proposer(contestant, known, seed))),
        }
    }

    /// All rivals.
    pub fn rivals(&'a self) -> impl Iterator<Item = Method<'a>> {
        self.rivals.iter().map(move |(name, known)| Method {
            name: name.clone(),
            checkpoint: Some(known.fingerprint.clone()),
            make: Box::new(move |seed| Ok(self.proposer(Contestant::Lm, Some(known), seed))),
        })
    }

    fn proposer(&'a self, contestant: Contestant, known: Option<&Known>, seed: u64) -> Box<dyn Proposer + 'a> {
        let model = known.map_or(&self.untrained, |known| &known.checkpoint.model);
        let prior = || known.map(|known| known.checkpoint.estimators.clone());
        let lm = || {
            LanguageModel::new(self.space, self.language.clone(), model, seed)
                .with_ingredients(contestant.ingredients())
        };
        match contestant {
            Contestant::Random => Box::new(Random::new(self.space, seed)),
            Contestant::Evolution => Box::new(Evolution::new(self.space, None, seed)),
            Contestant::Guided => Box::new(Evolution::new(self.space, prior(), seed)),
            Contestant::LmGreedy => Box::new(Greedy(lm().ranked_by(prior()).with_samples(GREEDY_SAMPLES))),
            Contestant::LmValueHead => Box::new(lm()),
            Contestant::Lm
            | Contestant::LmUntrained
            | Contestant::LmNoWant
            | Contestant::LmNoWorkload
            | Contestant::LmNoRanking
            | Contestant::LmNoNeighbours
            | Contestant::LmNoUntuned => Box::new(lm().ranked_by(prior())),
        }
    }
}
