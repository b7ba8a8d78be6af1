//! Tasks and traces as what the model reads: a word of the prompt at a position, then a decision at each.

use crate::language::{Language, Want};
use crate::model::{Position, Shown};
use crate::space::Trace;
use crate::target::Task;

/// The prompt of [`Language::prompt_words`]; where extents are known only at run time, that of the workload
/// at [`Workload::typical_point`](crate::workload::Workload::typical_point), which asks for the same
/// decisions and looks like what the model learned from.
pub(super) fn prompt_positions(language: &Language, task: &Task, want: Want) -> Vec<Position> {
    if !task.workload.is_fixed() {
        let workload = task.workload.at(&task.workload.typical_point());
        return prompt_positions(language, &Task { workload, target: task.target.clone() }, want);
    }
    language.prompt_words(task, want).into_iter().map(Position::word).collect()
}

/// How a prompt shows programs of the task that were measured: it asks for a faster one.
pub(super) fn shown(language: &Language, task: &Task) -> Shown {
    let deciles = (0..10).map(|decile| Position::word(language.encode_measured(decile))).collect();
    Shown { prompt: prompt_positions(language, task, Want::Better), deciles }
}

/// A position for each decision, which asks it, and one for the end: each holds the answer to the one before.
pub(super) fn trace_positions(language: &Language, trace: &Trace) -> Vec<Position> {
    let mut answer = Vec::new();
    let mut positions = Vec::with_capacity(trace.0.len() + 1);
    for choice in &trace.0 {
        let question = language.encode_words(&choice.site);
        let before = std::mem::replace(&mut answer, language.encode_words(&choice.value));
        positions.push(Position { answer: before, question });
    }
    positions.push(Position { answer, question: vec![language.end()] });
    positions
}
