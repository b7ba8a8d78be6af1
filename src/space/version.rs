//! Versions of a space, and how a space reads what older ones wrote.
//!
//! A record keeps the version of the space that wrote it: the rules, and the version of each. A space that
//! has grown since reads it still, if every rule that the record lacks is additive
//! ([`Rule::absent_is_default`]): the decisions of such a rule took their default when the record was
//! written, though nobody asked for them. A [`Reader`] writes these defaults down. Nothing else is ever added
//! to a trace or changed in one.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use super::{Decision, Policy, Rule, Space, Stale, Stop, Tape, Trace};
use crate::target::{Kind, Task};

/// The rules for one kind of machine and the version of each, as in `cpu:algorithm-1+tile-3`. Prints and
/// parses.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SpaceVersion {
    pub kind: Kind,
    /// In the order in which the rules decide.
    pub rules: Vec<(String, u32)>,
}

/// Text that is no version of a space: the fault of whoever wrote it.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("`{0}` is no version of a search space: expected `cpu:` or `gpu:`, then rules as in `tile-3+order-3`")]
pub struct InvalidVersion(pub String);

/// Why a space cannot read what another version of it wrote.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Unreadable {
    #[error(transparent)]
    Invalid(#[from] InvalidVersion),
    #[error("it is of programs for another kind of machine: {found}")]
    Kind { found: SpaceVersion },
    /// A newer Tilescribe wrote it, or one with rules of its own.
    #[error("its rule `{rule}` is unknown here; a Tilescribe that has this rule can read it")]
    UnknownRule { rule: String },
    #[error("it is of version {found} of the rule `{rule}`, which has version {expected} here")]
    ChangedRule { rule: String, found: u32, expected: u32 },
    #[error("it is older than the rule `{rule}`, which is not additive")]
    MissingRule { rule: String },
    #[error("its rules decide in another order: {found}")]
    Order { found: SpaceVersion },
}

impl fmt::Display for SpaceVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = match self.kind {
            Kind::Cpu => CPU,
            Kind::Gpu => GPU,
        };
        f.write_str(prefix)?;
        for (number, (rule, version)) in self.rules.iter().enumerate() {
            let plus = if number > 0 { "+" } else { "" };
            write!(f, "{plus}{rule}-{version}")?;
        }
        Ok(())
    }
}

const CPU: &str = "cpu:";
const GPU: &str = "gpu:";
/// Maximum length of a version, and how much of a broken one an error shows, in bytes and characters.
const LONGEST: usize = 4096;
const SHOWN: usize = 80;

impl FromStr for SpaceVersion {
    type Err = InvalidVersion;

    fn from_str(text: &str) -> Result<SpaceVersion, InvalidVersion> {
        let bad = || InvalidVersion(text.chars().take(SHOWN).collect());
        let (kind, rules) = match (text.strip_prefix(CPU), text.strip_prefix(GPU)) {
            (Some(rules), _) => (Kind::Cpu, rules),
            (None, Some(rules)) => (Kind::Gpu, rules),
            (None, None) => return Err(bad()),
        };
        if text.len() > LONGEST {
            return Err(bad());
        }
        let rule = |rule: &str| {
            let (name, version) = rule.rsplit_once('-')?;
            let number: u32 = version.parse().ok()?;
            // one spelling for each version
            let is_canonical = number.to_string() == version && !name.is_empty() && !name.contains(char::is_whitespace);
            is_canonical.then(|| (name.to_string(), number))
        };
        let rules = match rules.is_empty() {
            true => Some(Vec::new()),
            false => rules.split('+').map(rule).collect(),
        };
        Ok(SpaceVersion { kind, rules: rules.ok_or_else(bad)? })
    }
}

/// A rule of this space, as far as versions go.
struct Known {
    name: &'static str,
    version: u32,
    absent_is_default: bool,
}

fn known<M>(rules: &[Box<dyn Rule<M>>]) -> Vec<Known> {
    let known = |rule: &dyn Rule<M>| Known {
        name: rule.name(),
        version: rule.version(),
        absent_is_default: rule.absent_is_default(),
    };
    rules.iter().map(|rule| known(rule.as_ref())).collect()
}

impl Space {
    /// The rules for one kind of machine and their versions; [`Space::version`] is its text.
    pub fn rule_versions(&self, kind: Kind) -> SpaceVersion {
        let rules = self.known(kind).into_iter().map(|rule| (rule.name.to_string(), rule.version)).collect();
        SpaceVersion { kind, rules }
    }

    /// How to read what was written by a space of that version, which is text of [`Space::version`], for
    /// machines of that kind.
    ///
    /// # Errors
    /// [`Unreadable`], which names the rule that keeps it from being read.
    pub fn reader(&self, kind: Kind, version: &str) -> Result<Reader<'_>, Unreadable> {
        let absent = match version == self.version(kind) {
            true => vec![false; self.known(kind).len()],
            false => absent(&self.known(kind), kind, version.parse()?)?,
        };
        Ok(Reader { space: self, kind, absent })
    }

    /// The numbers of the additive rules for one kind of machine.
    pub fn additive_rules(&self, kind: Kind) -> BTreeSet<usize> {
        let rules = self.known(kind).into_iter().enumerate();
        rules.filter(|(_, rule)| rule.absent_is_default).map(|(number, _)| number).collect()
    }

    /// The version that lacks some additive rules, by their numbers.
    pub fn version_without(&self, kind: Kind, absent: &BTreeSet<usize>) -> SpaceVersion {
        let rules = self.known(kind).into_iter().enumerate();
        let is_there = |(number, rule): &(usize, Known)| !rule.absent_is_default || !absent.contains(number);
        let rules = rules.filter(is_there).map(|(_, rule)| (rule.name.to_string(), rule.version)).collect();
        SpaceVersion { kind, rules }
    }

    fn known(&self, kind: Kind) -> Vec<Known> {
        match kind {
            Kind::Cpu => known(&self.cpu.rules),
            Kind::Gpu => known(&self.gpu.rules),
        }
    }
}

/// Which rules a version lacks, by the number of the rule.
fn absent(known: &[Known], kind: Kind, found: SpaceVersion) -> Result<Vec<bool>, Unreadable> {
    if found.kind != kind {
        return Err(Unreadable::Kind { found });
    }
    for (rule, version) in &found.rules {
        let mut of_name = known.iter().filter(|known| known.name == rule).peekable();
        let Some(first) = of_name.peek() else { return Err(Unreadable::UnknownRule { rule: rule.clone() }) };
        let expected = first.version;
        if of_name.all(|known| known.version != *version) {
            return Err(Unreadable::ChangedRule { rule: rule.clone(), found: *version, expected });
        }
    }
    let mut left = found.rules.iter().peekable();
    let mut absent = Vec::with_capacity(known.len());
    for rule in known {
        let is_there = left.next_if(|(name, version)| name == rule.name && *version == rule.version).is_some();
        if !is_there && !rule.absent_is_default {
            return Err(match found.rules.iter().any(|(name, _)| name == rule.name) {
                true => Unreadable::Order { found },
                false => Unreadable::MissingRule { rule: rule.name.to_string() },
            });
        }
        absent.push(!is_there);
    }
    match left.peek() {
        None => Ok(absent),
        Some(_) => Err(Unreadable::Order { found }),
    }
}

/// Reads what an older version of a space wrote, for one kind of machine.
#[derive(Clone)]
pub struct Reader<'a> {
    space: &'a Space,
    kind: Kind,
    /// By the number of the rule: whether the older version lacks it.
    absent: Vec<bool>,
}

/// A trace, and the number of the rule that asked for each of its decisions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Decided {
    pub trace: Trace,
    rules: Vec<usize>,
}

impl Decided {
    /// By the policy that a tape asked.
    pub fn by(tape: Tape<'_>) -> Decided {
        let (trace, rules) = tape.into_decided();
        Decided { trace, rules }
    }
}

impl Reader<'_> {
    /// Whether the version is the space's own, so that nothing is to be upgraded.
    pub fn is_current(&self) -> bool {
        !self.absent.contains(&true)
    }

    /// The names of the rules that the version lacks.
    pub fn absent_rules(&self) -> Vec<String> {
        let rules = self.space.known(self.kind).into_iter().zip(&self.absent);
        rules.filter(|(_, absent)| **absent).map(|(rule, _)| rule.name.to_string()).collect()
    }

    /// Whether the version has the rule that asks for a decision.
    pub fn knows(&self, decision: &Decision) -> bool {
        self.has(decision.rule)
    }

    /// Whether the version has a rule of this space, by its number.
    pub fn has(&self, rule: usize) -> bool {
        !self.absent.get(rule).copied().unwrap_or(false)
    }

    /// The rule of each decision of a trace of the version, by its number.
    ///
    /// # Errors
    /// As [`Reader::upgrade`].
    pub fn asked(&self, task: &Task, trace: &Trace) -> Result<Vec<usize>, Stale> {
        let (_, rules) = Following::run(self.space, task, trace, &self.absent)?;
        Ok(rules.into_iter().filter(|rule| self.has(*rule)).collect())
    }

    /// The trace as this space writes it: decisions of rules that the version lacks are added, with the
    /// answers that give the programs of before; all others stay. An unfinished trace stays unfinished, one
    /// of the space's own version comes back unchecked.
    ///
    /// # Errors
    /// [`Stale`] where another decision of the trace is not what this space asks for or offers.
    pub fn upgrade(&self, task: &Task, trace: &Trace) -> Result<Trace, Stale> {
        if self.is_current() {
            return Ok(trace.clone());
        }
        Ok(Following::run(self.space, task, trace, &self.absent)?.0)
    }

    /// What the version would have written of a trace of this space: the decisions of its own rules.
    ///
    /// # Errors
    /// [`Stale`] where the trace is not of this space.
    pub fn known_part(&self, task: &Task, trace: &Trace) -> Result<Trace, Stale> {
        if self.is_current() {
            return Ok(trace.clone());
        }
        let (trace, rules) = Following::run(self.space, task, trace, &[])?;
        Ok(self.known_part_of(&Decided { trace, rules }))
    }

    /// Whether the version can write a program of this space: one that decisions of rules which it lacks make
    /// differ from all programs of before it cannot.
    ///
    /// # Errors
    /// [`Stale`] where the trace is not of this space.
    pub fn writes(&self, task: &Task, trace: &Trace) -> Result<bool, Stale> {
        let known = self.known_part(task, trace)?;
        // what is left need not be a trace of the version: it may answer what only such a rule lets be asked
        Ok(self.upgrade(task, &known).is_ok_and(|upgraded| upgraded == *trace))
    }

    /// [`Reader::known_part`] where it is known which rules asked.
    pub fn known_part_of(&self, Decided { trace, rules }: &Decided) -> Trace {
        let is_absent = |rule: usize| self.absent.get(rule).copied().unwrap_or(false);
        let own = trace.0.iter().zip(rules).filter(|(_, rule)| !is_absent(**rule));
        Trace(own.map(|(choice, _)| choice.clone()).collect())
    }
}

/// Answers as a trace does, and decisions of absent rules by their defaults.
struct Following<'a> {
    trace: &'a Trace,
    absent: &'a [bool],
    /// Decisions of the trace that were asked for.
    followed: usize,
    /// The rule of each decision, until the trace ran out.
    rules: Vec<usize>,
    ran_out: bool,
    stale: Option<Stale>,
}

impl Following<'_> {
    /// What was decided until the trace ran out, and the rule of each decision.
    fn run(space: &Space, task: &Task, trace: &Trace, absent: &[bool]) -> Result<(Trace, Vec<usize>), Stale> {
        let mut policy = Following { trace, absent, followed: 0, rules: Vec::new(), ran_out: false, stale: None };
        let mut tape = Tape::drive(&mut policy);
        let decided = space.schedule(task, &mut tape);
        let mut taken = Trace(tape.taken().to_vec());
        let Following { followed, rules, stale, .. } = policy;
        match (stale, decided) {
            (Some(stale), _) | (None, Err(Stop::Stale(stale))) => return Err(stale),
            (None, Ok(_) | Err(Stop::DeadEnd(_) | Stop::Choose(_))) => {}
        }
        if let Some(extra) = trace.0.get(followed) {
            return Err(Stale::LeftOver { left: trace.0.len() - followed, site: extra.site.clone() });
        }
        taken.0.truncate(rules.len());
        Ok((taken, rules))
    }

    /// The position of the trace's answer.
    fn follow(&mut self, decision: &Decision) -> Option<usize> {
        let (at, choice) = (self.followed, self.trace.0.get(self.followed)?);
        if choice.site != decision.site {
            let (expected, found) = (decision.site.clone(), choice.site.clone());
            self.stale = Some(Stale::Site { at, expected, found });
            return None;
        }
        let answer = decision.candidates.iter().position(|candidate| *candidate == choice.value);
        if answer.is_none() {
            let (site, value) = (choice.site.clone(), choice.value.clone());
            self.stale = Some(Stale::Value { at, site, value, candidates: decision.candidates.len() });
        }
        self.followed += 1;
        answer
    }
}

impl Policy for Following<'_> {
    fn pick(&mut self, decision: &Decision) -> usize {
        if self.ran_out || self.stale.is_some() {
            return decision.default;
        }
        let is_absent = self.absent.get(decision.rule).copied().unwrap_or(false);
        let answer = if is_absent { Some(decision.before) } else { self.follow(decision) };
        match answer {
            Some(_) => self.rules.push(decision.rule),
            // the rest is asked for, and forgotten
            None => self.ran_out = true,
        }
        answer.unwrap_or(decision.default)
    }
}
