//! Decisions as data: sites, values, traces; and the tape that records or replays them.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// A word of the tensor language: a lower-case name, or a number.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Word {
    Name(Cow<'static, str>),
    Number(u64),
}

impl From<&'static str> for Word {
    fn from(name: &'static str) -> Word {
        Word::Name(Cow::Borrowed(name))
    }
}

impl From<u64> for Word {
    fn from(number: u64) -> Word {
        Word::Number(number)
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Word::Name(name) => f.write_str(name),
            Word::Number(number) => write!(f, "{number}"),
        }
    }
}

/// Words in a row, printed with blanks between them.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Words(pub Vec<Word>);

impl Words {
    /// The number, if the words are exactly one.
    pub fn as_number(&self) -> Option<u64> {
        match self.0.as_slice() {
            [Word::Number(number)] => Some(*number),
            _ => None,
        }
    }

    /// Whether the words are exactly this name.
    pub fn is(&self, name: &str) -> bool {
        matches!(self.0.as_slice(), [Word::Name(n)] if n == name)
    }
}

impl fmt::Display for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, word) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(" ")?;
            }
            write!(f, "{word}")?;
        }
        Ok(())
    }
}

impl From<u64> for Words {
    fn from(number: u64) -> Words {
        Words(vec![Word::Number(number)])
    }
}

impl From<&'static str> for Words {
    /// One word for each name between blanks.
    fn from(names: &'static str) -> Words {
        Words(names.split(' ').map(Word::from).collect())
    }
}

/// A word or line that is not of the language.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ParseError {
    #[error("`{0}` is neither a number up to {max} nor a name of letters a to z, digits, `.`, `_` and `-`", max = u64::MAX)]
    Word(String),
    #[error("line {line}: expected `site = value`, found `{text}`")]
    Choice { line: usize, text: String },
}

impl FromStr for Word {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Word, ParseError> {
        let bad = || ParseError::Word(text.chars().take(40).collect());
        if text.starts_with(|c: char| c.is_ascii_digit()) {
            let number: u64 = text.parse().map_err(|_| bad())?;
            // one spelling for each number: no leading zeros
            return if number.to_string() == text { Ok(Word::Number(number)) } else { Err(bad()) };
        }
        let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '_' | '-');
        if text.is_empty() || text.len() > 40 || !text.chars().all(allowed) {
            return Err(bad());
        }
        Ok(Word::Name(Cow::Owned(text.to_string())))
    }
}

impl FromStr for Words {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Words, ParseError> {
        text.split_whitespace().map(str::parse).collect::<Result<_, _>>().map(Words)
    }
}

/// One decision taken: `site = value`. The site names what is decided, the value is one of its candidates.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Choice {
    pub site: Words,
    pub value: Words,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}", self.site, self.value)
    }
}

/// The decisions taken, in order: the identity of a program. Prints a line for each and parses back.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Trace(pub Vec<Choice>);

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|choice| writeln!(f, "{choice}"))
    }
}

impl FromStr for Trace {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Trace, ParseError> {
        let mut choices = Vec::new();
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let bad = || ParseError::Choice { line: number + 1, text: line.chars().take(80).collect() };
            let (site, value) = line.split_once(" = ").ok_or_else(bad)?;
            let choice = Choice { site: site.parse()?, value: value.parse()? };
            if choice.site.0.is_empty() || choice.value.0.is_empty() {
                return Err(bad());
            }
            choices.push(choice);
        }
        Ok(Trace(choices))
    }
}

/// A question: what is decided, and the legal answers: distinct, ordered, at least two.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Decision {
    pub site: Words,
    pub candidates: Vec<Words>,
    /// The position of the candidate that the rule itself would take, unmeasured.
    pub default: usize,
    /// The position of the candidate that gives the program that was written before there was the rule; only
    /// of an additive rule does it mean anything.
    pub before: usize,
    /// The number of the rule that asks, in the order of the space's rules for this kind of machine.
    pub rule: usize,
}

/// Why no program follows a prefix. Not an error: an outcome to learn from.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("dead end: {0}")]
pub struct Reason(pub String);

/// A prefix does not fit this task and space.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Stale {
    #[error("decision {at}: the trace decides `{found}` where the space asks for `{expected}`")]
    Site { at: usize, expected: Words, found: Words },
    #[error("decision {at}: `{site} = {value}` is none of the {candidates} candidates")]
    Value { at: usize, site: Words, value: Words, candidates: usize },
    #[error("{left} decisions are left over, from `{site}`")]
    LeftOver { left: usize, site: Words },
}

/// Why a rule stopped; what [`Tape::choose`] and rules return as `Err`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stop {
    /// The recorded prefix ran out here.
    Choose(Decision),
    DeadEnd(Reason),
    Stale(Stale),
}

impl From<Reason> for Stop {
    fn from(reason: Reason) -> Stop {
        Stop::DeadEnd(reason)
    }
}

/// Answers decisions in one pass, without suspending.
pub trait Policy {
    /// The position of the answer among the candidates.
    fn pick(&mut self, decision: &Decision) -> usize;
}

/// Says which candidates of a question are left, when so much is decided.
pub type Filter = Box<dyn Fn(&Words, &[Words], &[Choice]) -> Vec<bool>>;

/// Where rules ask for decisions. Replays a prefix and then suspends, or is driven by a policy.
pub struct Tape<'a> {
    mode: Mode<'a>,
    filter: Option<Filter>,
    /// The number of the rule that decides now.
    rule: usize,
    defaults_only: bool,
}

enum Mode<'a> {
    /// A trace and how many of its decisions have been asked for.
    Replay(&'a Trace, usize),
    /// A policy, what it decided, and the rule that asked for each decision.
    Drive(&'a mut dyn Policy, Trace, Vec<usize>),
}

impl<'a> Tape<'a> {
    /// Answers from `prefix`, then stops with [`Stop::Choose`].
    pub fn replay(prefix: &'a Trace) -> Tape<'a> {
        Tape::replay_behind(prefix, 0)
    }

    /// The same where the first `taken` decisions were asked for before.
    pub fn replay_behind(prefix: &'a Trace, taken: usize) -> Tape<'a> {
        let taken = taken.min(prefix.0.len());
        Tape { mode: Mode::Replay(prefix, taken), filter: None, rule: 0, defaults_only: false }
    }

    /// Answers by `policy`, to the end.
    pub fn drive(policy: &'a mut dyn Policy) -> Tape<'a> {
        Tape { mode: Mode::Drive(policy, Trace::default(), Vec::new()), filter: None, rule: 0, defaults_only: false }
    }

    /// From here on, only some of the candidates are offered: two at least, since what is decided must be the
    /// same with all of them. Where the filter leaves none, all stay; where it leaves one, the default stays
    /// beside it.
    pub fn keep_only(&mut self, filter: Filter) {
        self.filter = Some(filter);
    }

    /// From here on, the rule of that number asks, and its decisions are recorded.
    pub fn enter(&mut self, rule: usize) {
        (self.rule, self.defaults_only) = (rule, false);
    }

    /// From here on, defaults are taken without being recorded, or not any more.
    pub fn defaults_only(&mut self, defaults_only: bool) {
        self.defaults_only = defaults_only;
    }

    /// Asks for a decision. A single candidate is taken without being recorded; none is a dead end. `default`
    /// is the position of the candidate that the rule would take without any measurement.
    ///
    /// # Errors
    /// [`Stop::Choose`] where the prefix has run out, [`Stop::Stale`] where it decides something else,
    /// [`Stop::DeadEnd`] where there is no candidate.
    pub fn choose(&mut self, site: Words, candidates: Vec<Words>, default: usize) -> Result<Words, Stop> {
        self.choose_since(site, candidates, default, default)
    }

    /// The same for a decision of an additive rule whose default is another answer than `before`, which gives
    /// the program that was written before there was the rule.
    ///
    /// # Errors
    /// As [`Tape::choose`].
    pub fn choose_since(
        &mut self,
        site: Words,
        candidates: Vec<Words>,
        default: usize,
        before: usize,
    ) -> Result<Words, Stop> {
        debug_assert!(candidates.iter().collect::<std::collections::BTreeSet<_>>().len() == candidates.len());
        match candidates.as_slice() {
            [] => return Err(Reason(format!("nothing fits `{site}`")).into()),
            [only] => return Ok(only.clone()),
            all if self.defaults_only => return Ok(all[default.min(all.len() - 1)].clone()),
            _ => {}
        }
        let (candidates, [default, before]) = self.kept(&site, candidates, [default, before]);
        match &mut self.mode {
            Mode::Drive(policy, taken, rules) => {
                let decision = Decision { site: site.clone(), candidates, default, before, rule: self.rule };
                let at = policy.pick(&decision).min(decision.candidates.len() - 1);
                let value = decision.candidates.into_iter().nth(at).unwrap_or_default();
                taken.0.push(Choice { site, value: value.clone() });
                rules.push(self.rule);
                Ok(value)
            }
            Mode::Replay(prefix, next) => {
                let at = *next;
                let Some(choice) = prefix.0.get(at) else {
                    return Err(Stop::Choose(Decision { site, candidates, default, before, rule: self.rule }));
                };
                if choice.site != site {
                    return Err(Stop::Stale(Stale::Site { at, expected: site, found: choice.site.clone() }));
                }
                if !candidates.contains(&choice.value) {
                    let value = choice.value.clone();
                    return Err(Stop::Stale(Stale::Value { at, site, value, candidates: candidates.len() }));
                }
                *next += 1;
                Ok(choice.value.clone())
            }
        }
    }

    /// What the filter leaves of candidates, and where the nearest to some of them stand among these.
    fn kept(&self, site: &Words, candidates: Vec<Words>, of: [usize; 2]) -> (Vec<Words>, [usize; 2]) {
        let Some(filter) = &self.filter else { return (candidates, of) };
        let mut kept = filter(site, &candidates, self.taken());
        kept.resize(candidates.len(), true);
        let default = of[0].min(candidates.len() - 1);
        let count = |kept: &[bool]| kept.iter().filter(|kept| **kept).count();
        match count(&kept) {
            0 => return (candidates, of),
            1 => kept[default] = true,
            _ => {}
        }
        if count(&kept) == 1 {
            kept[if default == 0 { 1 } else { default - 1 }] = true;
        }
        let left: Vec<usize> = (0..candidates.len()).filter(|at| kept[*at]).collect();
        let nearest = |wanted: usize| {
            let apart = left.iter().map(|at| at.abs_diff(wanted)).enumerate();
            apart.min_by_key(|(_, apart)| *apart).map_or(0, |(place, _)| place)
        };
        let some = candidates.into_iter().zip(kept).filter(|(_, kept)| *kept).map(|(value, _)| value).collect();
        (some, of.map(nearest))
    }

    /// [`Tape::choose`] between numbers; the candidates are put into words only where somebody reads them.
    ///
    /// # Errors
    /// As [`Tape::choose`].
    pub fn choose_number(&mut self, site: Words, candidates: &[i64], default: usize) -> Result<i64, Stop> {
        if let Mode::Replay(prefix, next) = &mut self.mode
            && !self.defaults_only
            && self.filter.is_none()
            && candidates.len() > 1
            && let Some(choice) = prefix.0.get(*next)
            && let Some(number) = as_count(&choice.value)
            && choice.site == site
            && candidates.contains(&number)
        {
            *next += 1;
            return Ok(number);
        }
        let words = candidates.iter().map(|number| Words::from(number.unsigned_abs())).collect();
        Ok(as_count(&self.choose(site, words, default)?).unwrap_or(0))
    }

    /// A prefix with decisions left over does not fit.
    ///
    /// # Errors
    /// [`Stale::LeftOver`] when the replayed prefix is longer than what was asked.
    pub fn finish(self) -> Result<(), Stale> {
        if let Mode::Replay(prefix, next) = self.mode
            && let Some(extra) = prefix.0.get(next)
        {
            return Err(Stale::LeftOver { left: prefix.0.len() - next, site: extra.site.clone() });
        }
        Ok(())
    }

    /// The decisions taken so far.
    pub fn taken(&self) -> &[Choice] {
        match &self.mode {
            Mode::Replay(prefix, next) => &prefix.0[..*next],
            Mode::Drive(_, taken, _) => &taken.0,
        }
    }
}

impl Tape<'_> {
    /// What a policy decided, and the number of the rule that asked for each decision.
    pub fn into_decided(self) -> (Trace, Vec<usize>) {
        match self.mode {
            Mode::Replay(..) => (Trace::default(), Vec::new()),
            Mode::Drive(_, taken, rules) => (taken, rules),
        }
    }
}

fn as_count(value: &Words) -> Option<i64> {
    value.as_number().and_then(|number| i64::try_from(number).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(values: &[u64]) -> Vec<Words> {
        values.iter().map(|v| Words::from(*v)).collect()
    }

    #[test]
    fn replay_suspends_past_the_prefix_and_never_repairs() {
        let prefix: Trace = "tile a 0 = 4\n".parse().unwrap();
        let mut tape = Tape::replay(&prefix);
        assert_eq!(tape.choose("tile a 0".parse().unwrap(), numbers(&[2, 4]), 0), Ok(Words::from(4)));
        assert_eq!(tape.choose("forced".into(), numbers(&[7]), 0), Ok(Words::from(7)));
        let next = tape.choose("tile b 0".parse().unwrap(), numbers(&[1, 2]), 0);
        assert!(matches!(next, Err(Stop::Choose(d)) if d.candidates.len() == 2));
        let mut tape = Tape::replay(&prefix);
        let stale = tape.choose("tile a 0".parse().unwrap(), numbers(&[2, 3]), 0);
        assert!(matches!(stale, Err(Stop::Stale(Stale::Value { at: 0, .. }))));
        let tape = Tape::replay(&prefix);
        assert!(matches!(tape.finish(), Err(Stale::LeftOver { left: 1, .. })));
    }

    #[test]
    fn a_filter_leaves_two_candidates_and_the_nearest_default() {
        struct Default;
        impl Policy for Default {
            fn pick(&mut self, decision: &Decision) -> usize {
                assert!(decision.candidates.len() >= 2);
                decision.default
            }
        }
        let even = |number: &Words| number.as_number().is_some_and(|number| number.is_multiple_of(2));
        for (candidates, default, expected) in [
            (&[1, 2, 3, 4, 8][..], 2, 2),
            (&[1, 2, 3, 4, 8], 4, 8),
            (&[1, 2, 3], 0, 1),
            (&[1, 2], 1, 2),
            (&[1, 3, 5], 1, 3),
            (&[7], 0, 7),
        ] {
            let policy = &mut Default;
            let mut tape = Tape::drive(policy);
            tape.keep_only(Box::new(move |_, all, _| all.iter().map(even).collect()));
            let answer = tape.choose("size".into(), numbers(candidates), default);
            assert_eq!(answer, Ok(Words::from(expected)), "{candidates:?}");
        }
        let prefix: Trace = "size = 3\n".parse().unwrap();
        let mut tape = Tape::replay(&prefix);
        tape.keep_only(Box::new(move |_, all, _| all.iter().map(even).collect()));
        let stale = tape.choose_number("size".into(), &[1, 2, 3, 4], 0);
        assert!(matches!(stale, Err(Stop::Stale(Stale::Value { candidates: 2, .. }))));
    }

    #[test]
    fn text_has_one_spelling() {
        let trace: Trace = "tile s0 b 0 = 16 2\npack t1 = panel\n".parse().unwrap();
        assert_eq!(trace.to_string().parse::<Trace>(), Ok(trace));
        for bad in ["x = 007", "x = A", "x", " = 3", "x = 99999999999999999999"] {
            assert!(bad.parse::<Trace>().is_err(), "{bad}");
        }
    }
}
