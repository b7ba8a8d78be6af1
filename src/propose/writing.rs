//! What the model is asked while it writes a trace: the space's questions, one after the other.

use crate::language::Language;
use crate::model::{Guide, Next};
use crate::space::{Choice, Decision, Space, Stale, Trace};
use crate::target::Task;

/// Guides the model along the space: sites are questions, values are answers.
pub(super) struct Writing<'a> {
    space: &'a Space,
    language: &'a Language,
    task: &'a Task,
    /// Decisions to take over, from the first on.
    start: Vec<Choice>,
    pub trace: Trace,
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
    pub fn new(space: &'a Space, language: &'a Language, task: &'a Task, start: Vec<Choice>) -> Writing<'a> {
        Writing { space, language, task, start, trace: Trace::default(), decision: None, end: None }
    }
}

impl Guide for Writing<'_> {
    fn next(&mut self, chosen: Option<usize>) -> Next {
        if let (Some(Decision { site, mut candidates, .. }), Some(chosen)) = (self.decision.take(), chosen) {
            self.trace.0.push(Choice { site, value: candidates.swap_remove(chosen) });
        }
        let end = match self.space.question(self.task, &self.trace) {
            Ok(Ok(Some(decision))) => {
                let question = self.language.encode_words(&decision.site);
                if let Some(choice) = self.start.get(self.trace.0.len()).filter(|choice| choice.site == decision.site) {
                    self.trace.0.push(choice.clone());
                    return Next::Told { question, answer: self.language.encode_words(&choice.value) };
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
