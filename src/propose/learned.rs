//! What a model knows of the rules of a space: those whose questions the records answer that it learned from.
//!
//! A rule may ask of some machines or tasks only, and records may be older than it: upgraded, they give the
//! answer of before, whatever would have been better. A model that learned from these would be asked for
//! decisions of which it has seen nothing. It is not: its versions leave such rules out, and their decisions
//! take their defaults ([`Reader`]).

use std::collections::BTreeSet;

use rayon::iter::{IntoParallelRefIterator, ParallelIterator};

use super::versions;
use crate::language::Language;
use crate::model::{GpuVersions, Versions};
use crate::record::Entry;
use crate::space::{Reader, Space, Unreadable};
use crate::target::Kind;

/// Entries that are looked at before it is asked whether there is anything left to find.
const CHUNK: usize = 1 << 12;

/// The versions of a checkpoint that learns from these entries, as they were written; `before` are those of
/// the one that it goes on from.
pub fn learned(language: &Language, space: &Space, entries: &[Entry], before: Option<&Versions>) -> Versions {
    let all = versions(language, space);
    let of = |kind| learned_of(space, entries, kind, before.filter(|before| kind == Kind::Cpu || before.gpu.is_some()));
    Versions {
        space: of(Kind::Cpu),
        gpu: all.gpu.clone().map(|gpu| GpuVersions { space: of(Kind::Gpu), ..gpu }),
        ..all
    }
}

/// The version of the space for one kind of machine, without additive rules that nothing was learned of.
fn learned_of(space: &Space, entries: &[Entry], kind: Kind, before: Option<&Versions>) -> String {
    let mut unknown = space.additive_rules(kind);
    if let Some(before) = before.and_then(|before| reader_of(space, Some(before), kind).ok()) {
        unknown.retain(|rule| !before.has(*rule));
    }
    for some in entries.chunks(CHUNK) {
        if unknown.is_empty() {
            break;
        }
        let asked: BTreeSet<usize> =
            some.par_iter().filter_map(|entry| asked(space, entry, kind)).flatten_iter().collect();
        unknown.retain(|rule| !asked.contains(rule));
    }
    space.version_without(kind, &unknown).to_string()
}

/// The rules of an entry's own version that asked for its decisions; `None` where it cannot be read, or is of
/// another kind of machine.
fn asked(space: &Space, entry: &Entry, kind: Kind) -> Option<Vec<usize>> {
    let is_of_kind = entry.task.target.kind() == kind;
    let reader = is_of_kind.then(|| space.reader(kind, &entry.record.space).ok())??;
    reader.asked(&entry.task, &entry.record.trace).ok()
}

/// Reads what a model of these versions knows; without any, all of it.
pub(super) fn reader_of<'s>(
    space: &'s Space,
    versions: Option<&Versions>,
    kind: Kind,
) -> Result<Reader<'s>, Unreadable> {
    let version = versions.and_then(|versions| match kind {
        Kind::Cpu => Some(versions.space.clone()),
        Kind::Gpu => versions.gpu.as_ref().map(|gpu| gpu.space.clone()),
    });
    space.reader(kind, &version.unwrap_or_else(|| space.version(kind)))
}
