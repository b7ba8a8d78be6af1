//! What the model is asked while it writes a trace: the space's questions, one after the other, but for those
//! of rules that it does not know.

use crate::language::Language;
use crate::model::{Guide, Next};
use crate::space::{Choice, Decision, Reader, Reason, Space, Stale, Trace, Walk};
use crate::target::Task;

/// Guides the model along the space: sites are questions, values are answers.
pub(super) struct Writing<'a> {
    /// Tells which rules the model knows.
    reader: &'a Reader<'a>,
    language: &'a Language,
    /// Decisions to take over, from the first on.
    start: Vec<Choice>,
    walk: Walk<'a>,
    /// The decision whose site the model has read and whose value it writes next.
    decision: Option<Decision>,
    /// Once it has ended.
    pub end: Option<Ending>,
}

/// How a sequence ended.
pub(super) enum Ending {
    Complete,
    /// A dead end of the space.
    Nowhere,
    Stale(Stale),
}

impl<'a> Writing<'a> {
    /// Begins with the decisions of `start`, as long as they answer what is asked.
    pub fn new(
        reader: &'a Reader<'a>,
        space: &'a Space,
        language: &'a Language,
        task: &'a Task,
        start: Vec<Choice>,
    ) -> Writing<'a> {
        Writing { reader, language, start, walk: Walk::new(space, task), decision: None, end: None }
    }
}

impl Writing<'_> {
    /// What was decided so far.
    pub fn into_trace(self) -> Trace {
        self.walk.into_trace()
    }

    /// The next question that the model knows; the others are answered as the start does, or by their
    /// default.
    fn question(&mut self) -> Result<Result<Option<Decision>, Reason>, Stale> {
        loop {
            let next = self.walk.question()?;
            let Ok(Some(decision)) = next else { return Ok(next) };
            if self.reader.knows(&decision) {
                return Ok(Ok(Some(decision)));
            }
            let told = self.told(&decision);
            let default = |Decision { site, mut candidates, default, .. }: Decision| {
                let value = candidates.swap_remove(default.min(candidates.len() - 1));
                Choice { site, value }
            };
            self.walk.take(told.unwrap_or_else(|| default(decision)));
        }
    }

    /// What the start answers.
    fn told(&self, decision: &Decision) -> Option<Choice> {
        self.start.get(self.walk.trace().0.len()).filter(|choice| choice.site == decision.site).cloned()
    }
}

impl Guide for Writing<'_> {
    fn next(&mut self, chosen: Option<usize>) -> Next {
        if let (Some(Decision { site, mut candidates, .. }), Some(chosen)) = (self.decision.take(), chosen) {
            self.walk.take(Choice { site, value: candidates.swap_remove(chosen) });
        }
        let end = match self.question() {
            Ok(Ok(Some(decision))) => {
                let question = self.language.encode_words(&decision.site);
                if let Some(choice) = self.told(&decision) {
                    let answer = self.language.encode_words(&choice.value);
                    self.walk.take(choice);
                    return Next::Told { question, answer };
                }
                let answers = decision.candidates.iter().map(|value| self.language.encode_words(value)).collect();
                self.decision = Some(decision);
                return Next::Ask { question, answers };
            }
            Ok(Ok(None)) => Ending::Complete,
            Ok(Err(_)) => Ending::Nowhere,
            Err(stale) => Ending::Stale(stale),
        };
        self.end = Some(end);
        Next::Finished
    }
}
