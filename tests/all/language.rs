//! The tensor language: text and tokens, both ways.

use std::collections::HashSet;

use rayon::iter::{IntoParallelIterator, ParallelIterator};
use tilescribe::language::{
    Growth, Language, LanguageError, VocabularyMismatch, Want, parse_task, print_task, target_line, tokenizer_json,
    tokenizer_words,
};
use tilescribe::space::{Choice, Decision, Policy, Space, Trace, Word, Words};
use tilescribe::target::{Architecture, Cpu, Gpu, Target, Task};
use tilescribe::workload::generate::{Limits, generate};
use tilescribe::workload::text::KEYWORDS;
use tilescribe::workload::{Binary, Combiner, DType, Unary, Workload, canonical};
use tokenizers::Tokenizer;

fn target() -> Target {
    Target::Cpu(Cpu {
        architecture: Architecture::X86_64,
        cpu: "sapphirerapids".into(),
        features: vec!["+avx2".into(), "+avx512f".into()],
        vector_bits: 512,
        vector_registers: 32,
        cores: 2,
        l1_bytes: 48 << 10,
        l2_bytes: 2 << 20,
        l3_bytes: 33 << 20,
    })
}

fn task(workload: &str) -> Task {
    Task { workload: workload.parse().unwrap(), target: target() }
}

fn trace(text: &str) -> Trace {
    text.parse().unwrap()
}

/// Tokens to trace and back.
fn check_trace(language: &Language, trace: &Trace) {
    let tokens = language.encode_trace(trace);
    assert_eq!(language.decode_trace(&tokens).as_ref(), Ok(trace));
    assert_eq!(language.decode_trace(&tokens[..tokens.len() - 1]).as_ref(), Ok(trace), "the end may be missing");
}

fn one_value(value: Words) -> Trace {
    Trace(vec![Choice { site: "tile s0 a".into(), value }])
}

#[test]
fn every_number_has_one_short_spelling() {
    let language = Language::standard();
    let edges = (0..64).flat_map(|k| [(1u64 << k) - 1, 1 << k, (1 << k) + 1, 3 << k, 5u64.wrapping_shl(k)]);
    let mut seen = HashSet::new();
    for number in (0..5000).chain(edges).chain([u64::MAX, u64::MAX - 1, 1 << 63]) {
        let tokens = language.encode_value(&Words::from(number));
        seen.insert((number, tokens.clone()));
        check_trace(&language, &one_value(Words::from(number)));
        if number < 1 << 31 {
            assert!(tokens.len() <= 8, "{number}: {}", language.spell(&tokens).unwrap());
        }
    }
    let spellings: HashSet<&Vec<u32>> = seen.iter().map(|(_, tokens)| tokens).collect();
    assert_eq!(spellings.len(), seen.len());
    let spelled = |n: u64| language.spell(&language.encode_value(&Words::from(n))).unwrap();
    assert_eq!(spelled(64), "64 ;");
    assert_eq!(spelled(128), "2^7 1 ;");
    assert_eq!(spelled(3072), "2^10 3 ;");
    assert_eq!(spelled(197), "3: 5 ;");
    assert_eq!(spelled(3136), "2^6 49 ;");
}

#[test]
fn any_name_can_be_spelled() {
    let language = Language::standard();
    for name in
        ["frobnicate", "x-1", "-", "-5", "-500", "-0.3", "e.e", "inf", "a.b_c", "t999", "s99", "\\", "übel", "A b"]
    {
        let word = Word::Name(name.to_string().into());
        let tokens = language.encode_value(&Words(vec![word]));
        assert_eq!(language.decode(&tokens[..tokens.len() - 1]), name);
        if name.parse::<Word>().is_ok() {
            check_trace(&language, &trace(&format!("{name} = {name} 7\n")));
        }
    }
}

#[test]
fn traces_round_trip() {
    let language = Language::standard();
    check_trace(&language, &Trace::default());
    let text = "algorithm = direct\ntile s0 a = 16\npack s0 t1 = setup panel\nouter s0 = b\nfoo bar 77777 = 1 2 3 x\n";
    check_trace(&language, &trace(text));
    assert_eq!(language.decode(&language.encode_trace(&trace(text))), format!("{text}<end>"));
    let mut padded = language.encode_trace(&trace(text));
    padded.extend([language.padding(); 3]);
    assert_eq!(language.decode_trace(&padded), Ok(trace(text)));
}

#[test]
fn wrong_tokens_are_refused() {
    let language = Language::standard();
    let id = |spelling: &str| language.vocabulary().iter().position(|s| s == spelling).unwrap() as u32;
    let ids = |text: &str| text.split(' ').map(id).collect::<Vec<u32>>();
    for bad in [
        "tile",
        "tile =",
        "tile = 4",
        "= 4 ;",
        "tile = ;",
        "tile = 2^3 ;",
        "tile = 2^3 1 ;",
        "tile = 0: 5 ;",
        "tile = 1: 2^3 ;",
        "tile = 2^63 3 ;",
        "tile = 63: 63: 63: 63: 63: 63: 63: 63: 63: 63: 63 ;",
        "tile = 2^1 2^1 33 ;",
        "tile = ~t ~i ~l e~ ;",
        "tile = ~a ;",
        "tile = #- 3 ;",
        "tile = ~\\ z~ ;",
        "tile = <end>",
        "tile = 4 ; <end> 5",
    ] {
        assert!(language.decode_trace(&ids(bad)).is_err(), "{bad}");
    }
    assert!(matches!(language.decode_trace(&[1_000_000]), Err(LanguageError::UnknownToken { at: 0, .. })));
    assert_eq!(language.decode(&[1_000_000]), "<?>");
}

#[test]
fn prompts_hold_the_task_without_loss() {
    let language = Language::standard();
    let spelled: HashSet<u32> = language
        .vocabulary()
        .iter()
        .enumerate()
        .filter(|(_, s)| s.len() == 2 && (s.starts_with('~') || s.ends_with('~')))
        .map(|(id, _)| id as u32)
        .collect();
    assert_eq!(spelled.len(), 80);
    (0..100_000).into_par_iter().for_each(|seed: u64| {
        let limits = if seed.is_multiple_of(2) { Limits::SMALL } else { Limits::LARGE };
        let task = Task { workload: generate(seed, limits), target: target() };
        let tokens = language.encode_prompt(&task, Want::Decile((seed % 10) as u8));
        assert!(!tokens.iter().any(|t| spelled.contains(t)), "{}", task.workload);
        let text = language.decode(&tokens);
        let expected = format!("{}\n{}want {}\n", target_line(&task.target), task.workload, seed % 10);
        assert_eq!(text, expected);
        let workload: Vec<&str> = text.lines().skip(1).take_while(|line| !line.starts_with("want")).collect();
        assert_eq!(workload.join("\n").parse::<Workload>().as_ref(), Ok(&task.workload));
    });
}

#[test]
fn floats_have_tokens() {
    let language = Language::standard();
    for value in [
        "0.1",
        "-0.3",
        "1e-10",
        "3.4028235e38",
        "-0.0",
        "1e300d",
        "0.1d",
        "5e-324d",
        "1.7976931348623157e308d",
        "0.33333334",
    ] {
        let task = task(&format!("out t0 4 {value}\n"));
        let text = language.decode(&language.encode_prompt(&task, Want::Any));
        assert_eq!(text, format!("{}\nout t0 4 {value}\nwant any\n", target_line(&task.target)));
    }
}

#[test]
fn what_prompts_are_made_of_are_words() {
    let language = Language::standard();
    let unary = Unary::ALL.map(|op| op.name());
    let binary = Binary::ALL.map(|op| op.name());
    let combiners = [Combiner::Sum, Combiner::Product, Combiner::Maximum, Combiner::Minimum].map(|c| c.name());
    let dtypes = DType::ALL.map(|t| t.name());
    let gpu = Gpu::from_toml(include_str!("../../targets/gpus/sm_90a.toml")).unwrap();
    let lines = format!("{} {}", target_line(&target()), target_line(&Target::Gpu(gpu)));
    let of_targets = lines.split(' ').filter(|word| word.parse::<u64>().is_err());
    let of_workloads = unary.iter().chain(&binary).chain(&combiners).chain(&dtypes).chain(&KEYWORDS).copied();
    for name in of_workloads.chain(of_targets).chain(["want", "any"]) {
        assert!(language.vocabulary().iter().any(|s| s == name), "{name}");
    }
}

#[test]
fn a_typical_sequence_is_short() {
    let language = Language::standard();
    let gelu = "const t0 768 3072\nconst t1 3072\ninput t2 128 768\nlet t3 128 3072 sum 768 mul t0 c b t2 a c\n\
                let t4 like t3 add t1 b t3 a b\nout t5 like t3 mul mul 0.5 t4 a b add 1.0 erf mul 0.70710677 t4 a b\n";
    let mut task = task(gelu);
    task.workload = canonical(&task.workload).workload;
    let prompt = language.encode_prompt(&task, Want::Decile(9));
    let decisions = (0..20).map(|i| format!("tile s0 {} = {}\n", ["a", "b", "c"][i % 3], [6, 64, 768, 12][i % 4]));
    let trace = trace(&decisions.collect::<String>());
    let total = prompt.len() + language.encode_trace(&trace).len();
    assert!(total <= 220, "{} + {}", prompt.len(), total - prompt.len());
}

/// Picks at random, by a simple generator of its own.
struct Roll(u64);

impl Policy for Roll {
    fn pick(&mut self, decision: &Decision) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % decision.candidates.len()
    }
}

/// Names of the space that are younger than the list of words. A model that has learned them by their letters
/// learns them anew once they are words.
const SPELLED_BY_LETTERS: [&str; 3] = ["stages", "tiles", "each"];

#[test]
fn traces_of_the_space_are_made_of_words() {
    let (language, space) = (Language::standard(), Space::standard());
    let gpu = Target::Gpu(Gpu::from_toml(include_str!("../../targets/gpus/sm_90a.toml")).unwrap());
    for target in [target(), gpu] {
        let mut decisions = 0;
        for seed in 0..200 {
            let workload = canonical(&generate(seed, Limits::LARGE)).workload;
            let task = Task { workload, target: target.clone() };
            let (trace, _) = space.drive(&task, &mut Roll(seed));
            check_trace(&language, &trace);
            let words = trace.0.iter().flat_map(|choice| choice.site.0.iter().chain(&choice.value.0));
            let words = words.filter(|word| !SPELLED_BY_LETTERS.contains(&word.to_string().as_str())).cloned();
            let spelled = language.spell(&language.encode_words(&Words(words.collect()))).unwrap();
            assert!(!spelled.contains('~'), "a name of the space is no word of the vocabulary: {spelled}");
            decisions += trace.0.len();
        }
        assert!(decisions > 200, "{decisions}");
    }
}

/// The words of the shipped checkpoint, which never change.
fn shipped_words() -> Vec<String> {
    tokenizer_words(include_str!("../../checkpoints/default/tokenizer.json")).unwrap()
}

/// The shipped vocabulary with some words in other places, and others behind it.
fn grown(named: &[(usize, &str)], behind: &[&str]) -> Language {
    let mut words = Language::standard().vocabulary().to_vec();
    named.iter().for_each(|(id, word)| words[*id] = word.to_string());
    words.extend(behind.iter().map(|word| word.to_string()));
    Language::from_words(&words.join("\n")).unwrap()
}

#[test]
fn every_word_keeps_its_id() {
    let language = Language::standard();
    let shipped = shipped_words();
    assert_eq!(shipped.len(), 702);
    for (id, word) in shipped.iter().enumerate().filter(|(_, word)| !word.starts_with("<spare")) {
        assert_eq!(language.vocabulary()[id], *word, "token {id}");
    }
    assert!(language.growth_since(&shipped).is_ok());
    // the version that the shipped checkpoint names
    assert_eq!(language.version(), "a0a5f29d9564291d");
}

#[test]
fn new_words_leave_the_version_as_it_is() {
    let standard = Language::standard();
    let later = grown(&[(605, "cubes"), (607, "spheres")], &["cones"]);
    assert_eq!(later.version(), standard.version());
    let is_word = |id: &u32| !standard.vocabulary()[*id as usize].starts_with("<spare");
    let shared = (0..702).filter(is_word).collect();
    assert_eq!(later.growth_since(standard.vocabulary()), Ok(Growth { new: vec![605, 607, 702], shared }));
    // what was said before is said as before
    let text = trace("algorithm = direct\ntile s0 a = 16\nfoo = 777\n");
    assert_eq!(later.encode_trace(&text), standard.encode_trace(&text));
    assert_eq!(later.encode_site(&"cubes".into())[0], 605);
    // a word that means something else is another language
    assert_ne!(grown(&[(300, "cubes")], &[]).version(), standard.version());
}

#[test]
fn other_vocabularies_are_told_apart() {
    let standard = Language::standard();
    let grown_since = |other: &Language| standard.growth_since(other.vocabulary());
    let newer = |count, id, first: &str| Err(VocabularyMismatch::Newer { count, id, first: first.into() });
    assert_eq!(grown_since(&grown(&[(605, "cubes")], &["cones"])), newer(2, 605, "cubes"));
    assert_eq!(grown_since(&grown(&[], &["cones"])), newer(1, 702, "cones"));
    let mut swapped = standard.vocabulary().to_vec();
    swapped.swap(300, 301);
    let (found, expected) = (swapped[300].clone(), swapped[301].clone());
    assert_eq!(standard.growth_since(&swapped), Err(VocabularyMismatch::Other { id: 300, found, expected }));
    let moved = grown(&[(605, "cubes")], &[]);
    let other = grown(&[(606, "cubes")], &[]);
    assert!(matches!(moved.growth_since(other.vocabulary()), Err(VocabularyMismatch::Other { id: 606, .. })));
}

#[test]
fn lists_that_are_no_vocabulary_are_refused() {
    let words = Language::standard().vocabulary().to_vec();
    assert!(Language::from_words(&words.join("\n")).is_ok());
    for (changed, problem) in [
        (words[..500].to_vec(), "is missing"),
        ([&words[..], &words[300..301]].concat(), "is there already"),
        ([&words[..], &["two words".to_string()]].concat(), "holds blanks"),
        ([&words[..], &[String::new(), "x".to_string()]].concat(), "is empty"),
        ((0..70_000).map(|n| format!("w{n}")).collect(), "more than"),
    ] {
        let error = Language::from_words(&changed.join("\n")).unwrap_err().to_string();
        assert!(error.contains(problem), "{error}");
    }
    for (from, to) in [
        ("\"tile\":", "\"tiel\":"),
        ("\"WordLevel\"", "\"BPE\""),
        ("\"<unk>\": 2,", "\"<unk>\": 3,"),
        ("\"<unk>\": 2,", "\"<unk>\": -2,"),
        ("\"<unk>\": 2,", "\"<unk>\": 70000,"),
        ("\"vocab\"", "\"words\""),
    ] {
        let text = tokenizer_json(&Language::standard());
        assert!(text.contains(from), "{from}");
        let words = tokenizer_words(&text.replace(from, to));
        assert!(words.is_err() || Language::standard().growth_since(&words.unwrap()).is_err(), "{from} {to}");
    }
}

#[test]
fn spellings_are_distinct_and_without_blanks() {
    let language = Language::standard();
    let distinct: HashSet<&String> = language.vocabulary().iter().collect();
    assert_eq!(distinct.len(), language.vocabulary().len());
    assert!(language.vocabulary().iter().all(|s| !s.is_empty() && !s.contains(char::is_whitespace)));
    assert_eq!(language.version().len(), 16);
    assert_eq!(language.version(), Language::standard().version());
}

/// Rewritten when UPDATE_EXPECT is set.
#[test]
fn the_tokenizer_file_gives_the_same_ids() {
    let language = Language::standard();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tokenizer/tokenizer.json");
    let expected = tokenizer_json(&language);
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(path, &expected).unwrap();
    }
    assert_eq!(std::fs::read_to_string(path).unwrap(), expected, "run the tests with UPDATE_EXPECT=1 to rewrite it");
    let tokenizer = Tokenizer::from_file(path).unwrap();
    assert_eq!(tokenizer.get_vocab_size(true), language.vocabulary().len());
    for seed in 0..200 {
        let task = Task { workload: generate(seed, Limits::LARGE), target: target() };
        let mut tokens = language.encode_prompt(&task, Want::Any);
        tokens.extend(language.encode_trace(&trace("tile s0 a = 300\nsomething else = zzz\n")));
        let encoded = tokenizer.encode(language.spell(&tokens).unwrap(), false).unwrap();
        assert_eq!(encoded.get_ids(), tokens);
    }
    let every: Vec<u32> = (0..language.vocabulary().len() as u32).collect();
    assert_eq!(tokenizer.encode(language.spell(&every).unwrap(), false).unwrap().get_ids(), every);
}

#[test]
fn tasks_print_and_parse() {
    let task = task("input t0 128 768\nout t1 128 sum 768 t0 a b\n");
    assert_eq!(parse_task(&print_task(&task)), Ok(task.clone()));
    for bad in ["", "target", "cpu = 1\n\nout t0 1.0\n", &print_task(&task).replace("sum", "some")] {
        assert!(parse_task(bad).is_err(), "{bad}");
    }
}
