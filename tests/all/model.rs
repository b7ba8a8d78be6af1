//! The transformer: two implementations of one function, sampling, learning, and files.

use std::path::Path;
use std::sync::Arc;

use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};
use tilescribe::model::{
    Checkpoint, CheckpointError, Compute, Config, Continuing, Decoder, Estimator, Estimators, Example, GpuVersions,
    Guide, Model, ModelError, Network, Next, Position, Prompt, Sampled, SamplingOptions, Step, Trainer,
    TrainingOptions, Versions, Worlds,
};

fn small() -> Config {
    let config = Config { vocabulary: 23, width: 32, layers: 2, heads: 4, feed_forward: 48, ..Config::standard(23) };
    Config { max_sequence: 96, slots: 3, rope_base: 1000.0, ..config }
}

/// Weights large enough that attention matters.
fn model(seed: u64) -> Model {
    let model = Model::random(small(), seed).unwrap();
    let scaled = model.tensors().iter().map(|(name, values)| {
        let factor = if name.contains("norm") || name.contains("slots") { 1.0 } else { 8.0 };
        let values = values.iter().enumerate();
        let offset = if name.starts_with("value") { 0.1 } else { 0.0 };
        (name.clone(), values.map(|(i, v)| v * factor + offset * (i % 3) as f32).collect())
    });
    Model::from_tensors(small(), scaled.collect()).unwrap()
}

fn tokens(seed: u32, count: u32) -> Vec<u32> {
    (0..count).map(|i| (seed.wrapping_mul(2_654_435_761).wrapping_add(i * i * 31 + i * 7) >> 3) % 23).collect()
}

/// Positions of one to eight tokens: more than there are slots.
fn positions(seed: u32, count: u32) -> Vec<Position> {
    let position = |i: u32| Position { answer: tokens(seed + i, i % 5), question: tokens(seed * 3 + i, 1 + i % 3) };
    (0..count).map(position).collect()
}

fn assert_close(left: &[f32], right: &[f32], tolerance: f32) {
    assert_eq!(left.len(), right.len());
    for (i, (a, b)) in left.iter().zip(right).enumerate() {
        assert!((a - b).abs() <= tolerance, "at {i}: {a} and {b}");
    }
}

#[test]
fn cached_decoding_equals_the_full_forward_pass() {
    let model = model(1);
    let (decoder, network) = (Decoder::new(&model), Network::new(&model, Compute::Cpu).unwrap());
    for (prompt_length, length) in [(1, 1), (1, 40), (7, 9), (70, 26)] {
        let (prompt, rest) = (positions(5, prompt_length), positions(9, length));
        let read = decoder.prompt(&prompt).unwrap();
        let (scores, values) = network.evaluate(&[prompt.clone(), rest.clone()].concat(), &answers()).unwrap();
        let from = prompt.len() * answers().len();
        assert_close(&decoder.scores(&read, &rest, &answers()).unwrap(), &scores[from..], 2e-4);
        let value = decoder.values(&read, std::slice::from_ref(&rest)).unwrap();
        assert_close(&value, &values[values.len() - 1..], 2e-4);
    }
}

#[test]
fn a_batch_equals_its_sequences_one_by_one() {
    let decoder = Decoder::new(&model(2));
    let prompt = decoder.prompt(&positions(1, 12)).unwrap();
    let sequences: Vec<Vec<Position>> = (0..70).map(|i| positions(i, 1 + i % 37)).collect();
    let together = decoder.values(&prompt, &sequences).unwrap();
    for (sequence, value) in sequences.iter().zip(&together) {
        assert_close(&decoder.values(&prompt, std::slice::from_ref(sequence)).unwrap(), &[*value], 1e-5);
    }
}

/// Asks the same question again and again; of the first rounds the answers are known.
#[derive(Clone)]
struct Script {
    question: Vec<u32>,
    answers: Vec<Vec<u32>>,
    /// Positions of known answers.
    known: Vec<usize>,
    rounds: usize,
    asked: usize,
    chosen: Vec<usize>,
}

impl Script {
    fn new(known: Vec<usize>, answers: Vec<Vec<u32>>, rounds: usize) -> Script {
        Script { question: vec![10, 11], answers, known, rounds, asked: 0, chosen: Vec::new() }
    }

    /// What was read, if `choices` were made, but for the last answer.
    fn positions(&self, choices: &[usize]) -> Vec<Position> {
        let mut answer = Vec::new();
        let mut positions = Vec::new();
        for choice in self.known.iter().chain(choices) {
            positions.push(Position { answer, question: self.question.clone() });
            answer = self.answers[*choice].clone();
        }
        positions
    }
}

impl Guide for Script {
    fn next(&mut self, chosen: Option<usize>) -> Next {
        self.chosen.extend(chosen);
        assert_eq!(self.chosen.len() + self.known.len().min(self.asked), self.asked, "every answer is told");
        self.asked += 1;
        let question = self.question.clone();
        if self.asked > self.rounds {
            return Next::Finished;
        }
        match self.known.get(self.asked - 1) {
            Some(known) => Next::Told { question, answer: self.answers[*known].clone() },
            None => Next::Ask { question, answers: self.answers.clone() },
        }
    }
}

fn answers() -> Vec<Vec<u32>> {
    vec![vec![1, 2], vec![2, 1], vec![4], vec![1, 2, 5], vec![7, 8, 9, 6]]
}

#[test]
fn samples_depend_on_the_seed_and_on_nothing_else() {
    let decoder = Decoder::new(&model(3));
    let prompt = decoder.prompt(&positions(4, 6)).unwrap();
    let sample = |count: usize, seed: u64| {
        let mut guides = vec![Script::new(vec![3, 1], answers(), 7); count];
        let options = SamplingOptions { seed, ..SamplingOptions::default() };
        let sampled = decoder.sample(&prompt, &mut guides, &options).unwrap();
        assert!(guides.iter().zip(&sampled).all(|(guide, sampled)| guide.chosen == sampled.choices));
        sampled
    };
    let many = sample(80, 7);
    assert_eq!(many, sample(80, 7));
    // the size of the batch does not change what is sampled
    for (a, b) in sample(3, 7).iter().zip(&many) {
        assert_eq!(a.choices, b.choices);
        assert!((a.log_likelihood - b.log_likelihood).abs() < 1e-3);
    }
    let distinct: std::collections::BTreeSet<_> = many.iter().map(|s| s.choices.clone()).collect();
    assert!(distinct.len() > 40, "{}", distinct.len());
    assert_ne!(many, sample(80, 8));
    assert!(many.iter().all(|s| s.complete && s.choices.len() == 5 && s.log_likelihood < 0.0));
}

#[test]
fn several_prompts_at_once_are_continued_as_each_by_itself() {
    let decoder = Decoder::new(&model(3));
    let prompts = [4, 9].map(|count| decoder.prompt(&positions(count, 6)).unwrap());
    let mut guides = [50, 3].map(|count| vec![Script::new(vec![3, 1], answers(), 7); count]);
    let options = [7, 8].map(|seed| SamplingOptions { seed, ..SamplingOptions::default() });
    let of_each = |((prompt, guides), options): ((&Prompt, &Vec<Script>), &SamplingOptions)| {
        decoder.sample(prompt, &mut guides.clone(), options).unwrap()
    };
    let apart: Vec<Vec<Sampled>> = prompts.iter().zip(&guides).zip(&options).map(of_each).collect();
    let continuing = prompts.iter().zip(&mut guides).zip(options);
    let continuing = continuing.map(|((prompt, guides), options)| Continuing { prompt, guides, options });
    let together = decoder.sample_all(continuing.collect()).unwrap();
    assert_eq!(together.iter().map(Vec::len).collect::<Vec<_>>(), [50, 3]);
    for (a, b) in together.iter().flatten().zip(apart.iter().flatten()) {
        assert_eq!(a.choices, b.choices);
        assert!((a.log_likelihood - b.log_likelihood).abs() < 1e-3);
    }
}

#[test]
fn the_likelihood_is_the_product_of_the_choices() {
    let model = model(4);
    let (decoder, network) = (Decoder::new(&model), Network::new(&model, Compute::Cpu).unwrap());
    let start = positions(8, 5);
    let prompt = decoder.prompt(&start).unwrap();
    let script = Script::new(vec![2], answers(), 3);
    for sampled in decoder.sample(&prompt, &mut vec![script.clone(); 20], &SamplingOptions::default()).unwrap() {
        let positions = [start.clone(), script.positions(&sampled.choices)].concat();
        let (scores, _) = network.evaluate(&positions, &answers()).unwrap();
        let rows = scores.chunks(answers().len()).skip(start.len() + 1);
        let likelihood = |(row, choice): (&[f32], &usize)| {
            let sum: f64 = row.iter().map(|score| f64::from(*score).exp()).sum();
            f64::from(row[*choice]) - sum.ln()
        };
        let expected: f64 = rows.zip(&sampled.choices).map(likelihood).sum();
        assert!((sampled.log_likelihood - expected).abs() < 1e-3, "{} {expected}", sampled.log_likelihood);
    }
}

#[test]
fn a_temperature_of_zero_takes_the_likeliest_and_a_full_sequence_ends_incomplete() {
    let decoder = Decoder::new(&model(5));
    let prompt = decoder.prompt(&positions(4, 6)).unwrap();
    let options = SamplingOptions { temperature: 0.0, ..SamplingOptions::default() };
    let mut guides = vec![Script::new(vec![0], answers(), 1000); 4];
    let sampled = decoder.sample(&prompt, &mut guides, &options).unwrap();
    assert!(sampled.iter().all(|s| s.choices == sampled[0].choices && !s.complete));
    // 90 positions fit, of which the first is told
    assert!(sampled.iter().all(|s| s.choices.len() == 89));
    let mut guides = vec![Script::new(vec![0], answers(), 90); 4];
    assert!(decoder.sample(&prompt, &mut guides, &options).unwrap().iter().all(|sampled| sampled.complete));
}

#[test]
fn answers_and_options_that_cannot_be_sampled_are_refused() {
    let decoder = Decoder::new(&model(5));
    let prompt = decoder.prompt(&[Position::word(vec![1])]).unwrap();
    let sample = |answers: Vec<Vec<u32>>, options: SamplingOptions| {
        decoder.sample(&prompt, &mut [Script::new(vec![], answers, 1)], &options)
    };
    let standard = SamplingOptions::default;
    assert!(matches!(sample(vec![], standard()), Err(ModelError::Empty)));
    assert!(matches!(sample(vec![vec![1], vec![]], standard()), Err(ModelError::Empty)));
    assert!(matches!(sample(vec![vec![1], vec![99]], standard()), Err(ModelError::Token { token: 99, .. })));
    assert!(matches!(sample(vec![vec![99]], standard()), Err(ModelError::Token { token: 99, .. })));
    let mut strange = [Script { question: vec![23], ..Script::new(vec![], answers(), 1) }];
    assert!(matches!(decoder.sample(&prompt, &mut strange, &standard()), Err(ModelError::Token { token: 23, .. })));
    for (temperature, top_p) in [(f64::NAN, 1.0), (-1.0, 1.0), (1.0, 0.0), (1.0, 1.5)] {
        let options = SamplingOptions { temperature, top_p, seed: 0 };
        assert!(matches!(sample(answers(), options), Err(ModelError::Options(_))));
    }
    assert!(matches!(decoder.prompt(&[]), Err(ModelError::Length { .. })));
    assert!(matches!(decoder.prompt(&[Position::default()]), Err(ModelError::Empty)));
    assert!(matches!(decoder.prompt(&[Position::word(vec![23])]), Err(ModelError::Token { .. })));
    assert!(matches!(decoder.prompt(&positions(1, 97)), Err(ModelError::Length { .. })));
}

proptest! {
    #[test]
    fn every_sample_is_complete_and_of_the_answers(
        strings in proptest::collection::btree_set(proptest::collection::vec(0u32..23, 1..5), 1..30),
        temperature in 0.0..3.0f64,
        top_p in 0.05..1.0f64,
        seed in any::<u64>(),
        known in 0usize..3,
    ) {
        let answers: Vec<Vec<u32>> = strings.into_iter().collect();
        let decoder = Decoder::new(&model(6));
        let prompt = decoder.prompt(&positions(1, 2)).unwrap();
        let mut guides = vec![Script::new(vec![0; known], answers.clone(), 3); 5];
        let sampled = decoder.sample(&prompt, &mut guides, &SamplingOptions { temperature, top_p, seed }).unwrap();
        for (sampled, guide) in sampled.into_iter().zip(guides) {
            prop_assert!(sampled.complete && sampled.choices.len() == 3 - known);
            prop_assert!(sampled.choices.iter().all(|choice| *choice < answers.len()));
            prop_assert!(sampled.log_likelihood <= 0.0);
            prop_assert_eq!(sampled.choices, guide.chosen);
        }
    }
}

/// Two words of a prompt, then three decisions; the best answer to each is a function of the task, and the
/// score counts the right ones.
fn grammar() -> Vec<Example> {
    let mut examples = Vec::new();
    for task in 0..8u32 {
        for variant in 0..16u32 {
            let right = [(task + 1) % 8, (3 * task) % 8, (task * task) % 8];
            let wrong: Vec<bool> = (0..3).map(|i| (variant >> i) & 1 == 1).collect();
            let decided = (0..3).map(|i| ((right[i] + u32::from(wrong[i]) * (1 + variant / 8)) % 8) as usize);
            let score = -(wrong.iter().filter(|w| **w).count() as f32);
            examples.push(Example {
                prompt: [Position::word(vec![1]), Position::word(vec![2 + task])].into(),
                steps: steps(&decided.collect::<Vec<usize>>()),
                weight: if score == 0.0 { 1.0 } else { 0.0 },
                group: u64::from(task),
                place: task as f32 / 8.0,
                score,
                blind: None,
                asking: None,
                shown: None,
            });
        }
    }
    examples
}

/// Eight answers, to the one question.
fn digits() -> Vec<Vec<u32>> {
    (10..18).map(|token| vec![token]).collect()
}

fn steps(decided: &[usize]) -> Vec<Step> {
    let answers: Arc<[Vec<u32>]> = digits().into();
    let mut steps = Vec::new();
    let mut answer = Vec::new();
    for chosen in decided {
        let position = Arc::new(Position { answer, question: vec![20] });
        answer = answers[*chosen].clone();
        steps.push(Step { position, answers: Arc::clone(&answers), chosen: *chosen });
    }
    let end = Position { answer, question: vec![21] };
    steps.push(Step { position: Arc::new(end), answers: Arc::new([]), chosen: 0 });
    steps
}

fn options() -> TrainingOptions {
    TrainingOptions {
        epochs: 100.0,
        learning_rate: 1e-2,
        warmup_steps: 10,
        weight_decay: 0.0,
        least_share: 1.0,
        held_out: 0.0,
        seed: 5,
        ..TrainingOptions::default()
    }
}

#[test]
fn training_learns_a_grammar_and_the_value_head_an_order() {
    let examples = grammar();
    let model = Model::random(small(), 1).unwrap();
    let mut trainer = Trainer::new(&model, &examples, options(), Compute::Cpu).unwrap();
    let (mut first, mut last) = (None, f32::INFINITY);
    while let Some(progress) = trainer.step().unwrap() {
        first.get_or_insert(progress.policy_loss);
        last = progress.policy_loss;
    }
    assert!(first.unwrap() > 1.9 && last < 0.1, "{first:?} to {last}");
    let decoder = Decoder::new(&trainer.model().unwrap());
    let (mut pairs, mut ordered) = (0, 0);
    for task in 0..8u32 {
        let group: Vec<&Example> = examples.iter().filter(|e| e.group == u64::from(task)).collect();
        let best = group.iter().find(|e| e.score == 0.0).unwrap();
        let prompt = decoder.prompt(&best.prompt).unwrap();
        let greedy = SamplingOptions { temperature: 0.0, ..SamplingOptions::default() };
        let mut script = [Script { question: vec![20], ..Script::new(vec![], digits(), 3) }];
        let sampled = decoder.sample(&prompt, &mut script, &greedy).unwrap();
        assert_eq!(sampled[0].choices, best.steps[..3].iter().map(|step| step.chosen).collect::<Vec<usize>>());
        let sequence = |e: &&Example| e.steps.iter().map(|step| step.position.as_ref().clone()).collect();
        let sequences: Vec<Vec<Position>> = group.iter().map(sequence).collect();
        let values = decoder.values(&prompt, &sequences).unwrap();
        for (a, left) in group.iter().zip(&values) {
            for (_, right) in group.iter().zip(&values).filter(|(b, _)| a.score > b.score) {
                pairs += 1;
                ordered += usize::from(left > right);
            }
        }
    }
    assert!(ordered * 10 > pairs * 9, "{ordered} of {pairs} pairs are ordered");
}

#[test]
fn preferences_make_the_faster_of_two_the_likelier_one() {
    // nothing is imitated: the fastest of each group is left out
    let mut examples = grammar();
    examples.retain(|example| example.score < 0.0);
    let model = Model::random(small(), 1).unwrap();
    let preferences = |model: &Model, preference_weight: f64| {
        let options = TrainingOptions { preference_weight, held_out: 0.9, ..options() };
        Trainer::new(model, &examples, options, Compute::Cpu).unwrap().evaluate().unwrap().unwrap().preferences
    };
    let (loss, before) = preferences(&model, 1.0).unwrap();
    assert!((loss - 2f32.ln()).abs() < 1e-5, "nothing is preferred at first: {loss}");
    let options = TrainingOptions { preference_weight: 1.0, epochs: 200.0, ..options() };
    let mut trainer = Trainer::new(&model, &examples, options, Compute::Cpu).unwrap();
    while trainer.step().unwrap().is_some() {}
    let (_, after) = preferences(&trainer.model().unwrap(), 1.0).unwrap();
    assert!(before < 0.7 && after > 0.9, "{before} to {after}");
    assert_eq!(preferences(&model, 0.0), None);
}

#[test]
fn a_resumed_run_ends_as_an_unbroken_one() {
    resumed_is_unbroken(TrainingOptions { epochs: 2.0, held_out: 0.25, ..options() });
    resumed_is_unbroken(TrainingOptions { preference_weight: 1.0, epochs: 2.0, held_out: 0.25, ..options() });
}

fn resumed_is_unbroken(options: TrainingOptions) {
    let examples = grammar();
    let model = Model::random(small(), 1).unwrap();
    let run =
        |trainer: &mut Trainer<'_>, steps: usize| (0..steps).take_while(|_| trainer.step().unwrap().is_some()).count();
    let mut whole = Trainer::new(&model, &examples, options.clone(), Compute::Cpu).unwrap();
    let steps = run(&mut whole, usize::MAX);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.safetensors");
    let mut broken = Trainer::new(&model, &examples, options, Compute::Cpu).unwrap();
    assert_eq!(run(&mut broken, 2), 2);
    broken.save(&path).unwrap();
    let mut resumed = Trainer::resume(&path, &examples, Compute::Cpu).unwrap();
    assert_eq!(run(&mut resumed, usize::MAX), steps - 2);
    assert_eq!(whole.model().unwrap(), resumed.model().unwrap());
    assert_eq!(whole.evaluate().unwrap(), resumed.evaluate().unwrap());

    let others = &examples[1..];
    assert!(matches!(Trainer::resume(&path, others, Compute::Cpu), Err(ModelError::State(_))));
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    assert!(matches!(Trainer::resume(&path, &examples, Compute::Cpu), Err(ModelError::State(_))));
}

#[test]
fn training_ends_early_when_held_out_groups_no_longer_improve() {
    // labels that depend on nothing: whatever is learned does not carry over to other groups
    let mut examples = grammar();
    for (i, example) in examples.iter_mut().enumerate() {
        example.steps = steps(&[3, 4, 5].map(|k| (i * 7919 + k * 104_729) / 13 % 8));
        example.weight = 1.0;
    }
    let options = TrainingOptions { epochs: 10_000.0, held_out: 0.25, patience: 2, ..options() };
    let mut trainer = Trainer::new(&Model::random(small(), 1).unwrap(), &examples, options, Compute::Cpu).unwrap();
    let (mut steps, mut best, mut last) = (0, f32::INFINITY, f32::INFINITY);
    while let Some(progress) = trainer.step().unwrap() {
        steps += 1;
        if let Some(evaluation) = progress.evaluation {
            last = evaluation.policy_loss;
            best = best.min(last);
        }
    }
    assert!(steps < trainer.steps() && last > best, "{steps} steps");
}

#[test]
fn examples_and_options_that_cannot_be_learned_from_are_refused() {
    let model = Model::random(small(), 1).unwrap();
    let good = grammar();
    let refuse = |change: &dyn Fn(&mut Example)| {
        let mut examples = good.clone();
        change(&mut examples[3]);
        let result = Trainer::new(&model, &examples, options(), Compute::Cpu);
        assert!(matches!(result.err(), Some(ModelError::Example { index: 3, .. })));
    };
    refuse(&|e| e.prompt = [Position::word(vec![23])].into());
    refuse(&|e| e.steps.clear());
    refuse(&|e| e.steps[0].chosen = 8);
    refuse(&|e| e.weight = -1.0);
    refuse(&|e| e.score = f32::NAN);
    let bad = TrainingOptions { learning_rate: 0.0, ..options() };
    assert!(matches!(Trainer::new(&model, &good, bad, Compute::Cpu).err(), Some(ModelError::Options(_))));
    assert!(matches!(Trainer::new(&model, &[], options(), Compute::Cpu).err(), Some(ModelError::Options(_))));
}

pub fn versions() -> Versions {
    Versions {
        tilescribe: "0.1.0".into(),
        language: "1".into(),
        space: "cpu-1".into(),
        features: "1".into(),
        measured: false,
        gpu: None,
    }
}

/// Takes these versions and no others.
pub fn same(found: &Versions, expected: &Versions) -> Result<(), CheckpointError> {
    let others = [("search space", &found.space, &expected.space), ("language", &found.language, &expected.language)];
    match others.into_iter().find(|(_, found, expected)| found != expected) {
        None => Ok(()),
        Some((of, found, expected)) => Err(CheckpointError::Version {
            of,
            found: found.clone(),
            expected: expected.clone(),
            reason: "another".into(),
        }),
    }
}

/// Takes [`versions`].
pub fn accepts(found: &Versions) -> Result<(), CheckpointError> {
    same(found, &versions())
}

pub fn checkpoint() -> Checkpoint {
    Checkpoint {
        model: model(7),
        estimators: Estimator::random(5, 3).into(),
        worlds: Worlds::default(),
        versions: versions(),
        tokenizer: "{\"version\": \"1.0\"}".into(),
        card: "# A model\n".into(),
    }
}

#[test]
fn a_checkpoint_loads_as_it_was_saved() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new");
    checkpoint().save(&path).unwrap();
    assert_eq!(Checkpoint::load(&path, &accepts).unwrap(), checkpoint());
}

#[test]
fn versions_are_judged_before_anything_else() {
    let mut older = checkpoint();
    older.versions.space = "cpu-0".into();
    let mut files = older.files().unwrap();
    files[1..].iter_mut().for_each(|(_, bytes)| *bytes = vec![0xff]);
    let contents: Vec<&[u8]> = files.iter().map(|(_, bytes)| &bytes[..]).collect();
    let refused = Checkpoint::from_bytes(contents.try_into().unwrap(), None, &accepts);
    assert!(matches!(refused, Err(CheckpointError::Version { of: "search space", .. })), "{refused:?}");
}

#[test]
fn a_vocabulary_grows_and_nothing_else_changes() {
    let model = model(3);
    let grown = model.clone().with_vocabulary(26, &[20, 23, 24, 25], &(0..20).collect::<Vec<u32>>()).unwrap();
    assert_eq!(grown, model.clone().with_vocabulary(26, &[20, 23, 24, 25], &(0..20).collect::<Vec<u32>>()).unwrap());
    let (width, embedding) = (model.config().width, "embedding.weight");
    let rows = |model: &Model| model.tensors()[embedding].chunks(width).map(<[f32]>::to_vec).collect::<Vec<_>>();
    let (before, after) = (rows(&model), rows(&grown));
    assert_eq!((after.len(), grown.config().vocabulary), (26, 26));
    assert_eq!((&after[..20], &after[21..23]), (&before[..20], &before[21..]));
    let mean: Vec<f32> = (0..width).map(|at| before[..20].iter().map(|row| row[at]).sum::<f32>() / 20.0).collect();
    for new in [20, 23, 24, 25] {
        assert_close(&after[new], &mean, 0.04);
        assert!(after.iter().enumerate().all(|(other, row)| other == new || *row != after[new]));
    }
    for (name, values) in model.tensors().iter().filter(|(name, _)| *name != embedding) {
        assert_eq!(grown.tensors()[name], *values);
    }
    // the same programs as before where no new token is met
    let prompt = positions(3, 8);
    let scores = |model: &Model| {
        let decoder = Decoder::new(model);
        let known = decoder.prompt(&prompt).unwrap();
        decoder.values(&known, &[positions(1, 5)]).unwrap()
    };
    let known: Vec<u32> = (0..23).collect();
    assert_eq!(scores(&model), scores(&model.clone().with_vocabulary(30, &[23, 29], &known).unwrap()));
    assert!(model.clone().with_vocabulary(22, &[], &known).is_err());
    assert!(model.with_vocabulary(1 << 20, &[], &known).is_err());
}

#[test]
fn what_a_checkpoint_knows_of_gpus_is_kept_and_checked() {
    let gpu = Some(GpuVersions { space: "gpu-1".into(), features: "1".into() });
    let estimators = Estimators { cpu: Estimator::random(5, 3), gpu: Some(Estimator::random(7, 4)) };
    let known = Checkpoint { estimators, versions: Versions { gpu, ..versions() }, ..checkpoint() };
    let load = |from: [&Checkpoint; 2]| {
        // the versions of one, all else of another
        let [config, others] = from.map(|checkpoint| checkpoint.files().unwrap());
        let contents: Vec<&[u8]> = [&config[0]].into_iter().chain(&others[1..]).map(|(_, bytes)| &bytes[..]).collect();
        Checkpoint::from_bytes(contents.try_into().unwrap(), None, &accepts)
    };
    assert_eq!(load([&known; 2]).unwrap(), known);
    assert_eq!(load([&checkpoint(); 2]).unwrap(), checkpoint());
    for (files, problem) in [([&known, &checkpoint()], "none for GPUs"), ([&checkpoint(), &known], "one for GPUs")] {
        match load(files) {
            Err(CheckpointError::Broken { file: "estimator.safetensors", problem: found }) => {
                assert!(found.contains(problem), "{found}");
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Loads the checkpoint after one file was changed.
fn load_changed(file: &str, change: impl Fn(Vec<u8>) -> Vec<u8>) -> Result<Checkpoint, CheckpointError> {
    let folder = tempfile::tempdir().unwrap();
    checkpoint().save(folder.path()).unwrap();
    let path = folder.path().join(file);
    std::fs::write(&path, change(std::fs::read(&path).unwrap())).unwrap();
    Checkpoint::load(folder.path(), &accepts)
}

fn replace(from: &'static str, to: &'static str) -> impl Fn(Vec<u8>) -> Vec<u8> {
    move |bytes| {
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.contains(from), "{from}");
        text.replace(from, to).into_bytes()
    }
}

#[test]
fn corrupt_checkpoints_are_refused_and_never_panic() {
    let broken =
        |file: &'static str, change: &dyn Fn(Vec<u8>) -> Vec<u8>, expected: &str| match load_changed(file, change) {
            Err(CheckpointError::Broken { file: found, problem }) => {
                let blamed = if expected.starts_with("tensor") { "model.safetensors" } else { file };
                assert_eq!(found, blamed);
                assert!(problem.contains(expected), "`{problem}` lacks `{expected}`");
            }
            other => panic!("{other:?}"),
        };
    broken("config.json", &replace("\"width\": 32", "\"width\": 4294967296"), "width");
    broken(
        "config.json",
        &replace("\"layers\": 2", "\"layers\": 3"),
        "tensor `layers.2.attention_norm.weight` is missing",
    );
    broken(
        "config.json",
        &replace("\"layers\": 2", "\"layers\": 1"),
        "tensor `layers.1.attention_norm.weight` does not belong",
    );
    broken(
        "config.json",
        &replace("\"feed_forward\": 48", "\"feed_forward\": 24"),
        "tensor `layers.0.gate_up.weight` has shape",
    );
    broken("config.json", &replace("\"tilescribe\",", "\"gpt2\","), "gpt2");
    broken("config.json", &replace("\"heads\"", "\"tails\""), "tails");
    broken("config.json", &|bytes| bytes[..bytes.len() / 2].to_vec(), "EOF");
    broken("tokenizer.json", &|_| b"{".to_vec(), "EOF");
    broken("README.md", &|_| vec![0xff, 0xfe], "utf-8");
    broken("model.safetensors", &|bytes| bytes[..bytes.len() - 4].to_vec(), "");
    broken("model.safetensors", &|_| Vec::new(), "");
    broken("model.safetensors", &|_| b"not a safetensors file, but a long enough text".to_vec(), "");
    broken("model.safetensors", &|bytes| [&u64::MAX.to_le_bytes(), &bytes[8..]].concat(), "");
    let not_finite = |mut bytes: Vec<u8>| {
        let at = bytes.len() - 4;
        bytes[at..].copy_from_slice(&f32::NAN.to_le_bytes());
        bytes
    };
    broken("model.safetensors", &not_finite, "not finite");
    broken("estimator.safetensors", &|bytes| bytes[..bytes.len() - 4].to_vec(), "");
    broken("estimator.safetensors", &not_finite, "not finite");
    assert!(matches!(load_changed("README.md", |_| vec![b'x'; (1 << 20) + 1]), Err(CheckpointError::TooLarge { .. })));
}

proptest! {
    #[test]
    fn flipped_bytes_never_panic(at in 0usize..4000, bit in 0u8..8, file in 0usize..5) {
        let name = ["config.json", "tokenizer.json", "README.md", "estimator.safetensors", "model.safetensors"][file];
        let loaded = load_changed(name, |mut bytes| {
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
            bytes
        });
        // a flipped bit of a weight or of the card may go unseen, but then all else is as it was
        if let Ok(loaded) = loaded {
            prop_assert_eq!(loaded.versions.language, versions().language);
        }
    }
}

#[test]
fn a_missing_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let missing = Checkpoint::load(folder.path(), &accepts).unwrap_err();
    assert!(
        matches!(&missing, CheckpointError::Io { path, .. } if path == Path::new(&folder.path().join("config.json")))
    );
}
