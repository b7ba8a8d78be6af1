//! What a checkpoint's value head adds to its estimator, found out on records.

use std::collections::BTreeMap;

use super::{LanguageModel, ProposeError};
use crate::language::Language;
use crate::model::{Checkpoint, Judged};
use crate::rank::Ranking;
use crate::record::Entry;
use crate::space::{Space, Trace};
use crate::target::Kind;

/// What both parts of a checkpoint say of the programs of CPUs among some records, by task, target and the
/// version that measured them: of those at least half as fast as the best, between which a search has to
/// choose.
///
/// # Errors
/// [`ProposeError`] where the model cannot read a program.
pub fn judged(
    checkpoint: &Checkpoint,
    entries: &[Entry],
    language: &Language,
    space: &Space,
) -> Result<Vec<Judged>, ProposeError> {
    let mut groups: BTreeMap<(&str, &str, &str), Vec<(&Entry, u64)>> = BTreeMap::new();
    for entry in entries.iter().filter(|entry| entry.task.target.kind() == Kind::Cpu) {
        let record = &entry.record;
        if let Some(ns) = record.outcome.settled_ns() {
            let key = (record.task_hash.as_str(), record.target.as_str(), record.tilescribe.as_str());
            groups.entry(key).or_default().push((entry, ns));
        }
    }
    let model = LanguageModel::new(space, language.clone(), &checkpoint.model, 0).trained_on(&checkpoint.versions);
    let ranking = Ranking::new(space, None, 0);
    let mut all = Vec::new();
    for members in groups.into_values() {
        let best = members.iter().map(|(_, ns)| *ns).min().unwrap_or(1);
        let near = members.iter().filter(|(_, ns)| *ns <= 2 * best);
        let read =
            near.filter_map(|(entry, ns)| Some((entry.record.read_by(&entry.task, space).ok()?.trace.clone(), *ns)));
        let (traces, times): (Vec<Trace>, Vec<u64>) = read.unzip();
        let Some((entry, _)) = members.first().filter(|_| traces.len() > 1) else { continue };
        let values = model.judge(&entry.task, &traces)?;
        let mut judged = Judged::default();
        for ((described, value), ns) in ranking.describe(&entry.task, traces)?.into_iter().zip(values).zip(times) {
            let score = described.and_then(|described| checkpoint.estimators.cpu.score(&described.features));
            if let Some(score) = score {
                judged.scores.push(score);
                judged.values.push(value);
                judged.speeds.push((best as f32 / ns.max(1) as f32).log2());
            }
        }
        all.push(judged);
    }
    Ok(all)
}
