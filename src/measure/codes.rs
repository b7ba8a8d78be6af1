//! Machine code that stays: the fastest programs of a task are measured again and again, as what others are
//! held against and in finals, and are compiled once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::bench::Refusal;

/// Programs that are remembered, at most: some ten of each task of a large network. The code of one takes
/// some tens of kilobytes, and its nest about as much.
const MOST: usize = 1024;

/// What became of compiling a program.
pub(super) type Code<C> = Arc<Result<C, Refusal>>;

/// What was compiled, by task and trace; all clones know the same.
pub(super) struct Codes<C>(Arc<Mutex<Known<C>>>);

struct Known<C> {
    /// With the number of the last use.
    codes: HashMap<(Arc<str>, String), (u64, Code<C>)>,
    uses: u64,
    most: usize,
}

impl<C> Default for Codes<C> {
    fn default() -> Codes<C> {
        Codes::of_at_most(MOST)
    }
}

impl<C> Clone for Codes<C> {
    fn clone(&self) -> Codes<C> {
        Codes(Arc::clone(&self.0))
    }
}

impl<C> Codes<C> {
    fn of_at_most(most: usize) -> Codes<C> {
        Codes(Arc::new(Mutex::new(Known { codes: HashMap::new(), uses: 0, most })))
    }

    pub fn get(&self, task: &Arc<str>, trace: &str) -> Option<Code<C>> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.uses += 1;
        let now = known.uses;
        let (used, code) = known.codes.get_mut(&(Arc::clone(task), trace.to_string()))?;
        *used = now;
        Some(Arc::clone(code))
    }

    /// Remembers a program, in the place of the one that was asked for longest ago where there are too many.
    pub fn insert(&self, task: &Arc<str>, trace: &str, code: &Code<C>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.codes.len() >= known.most {
            let oldest = known.codes.iter().min_by_key(|(_, (used, _))| *used).map(|(key, _)| key.clone());
            oldest.and_then(|key| known.codes.remove(&key));
        }
        known.uses += 1;
        let used = (known.uses, Arc::clone(code));
        known.codes.insert((Arc::clone(task), trace.to_string()), used);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::Codes;

    #[test]
    fn what_was_not_asked_for_is_forgotten() {
        let codes: Codes<u32> = Codes::of_at_most(2);
        let [one, other]: [Arc<str>; 2] = ["one", "other"].map(Arc::from);
        codes.insert(&one, "a", &Arc::new(Ok(1)));
        codes.clone().insert(&other, "a", &Arc::new(Ok(2)));
        let number = |task, trace| codes.get(task, trace).map(|code| *code.as_ref().as_ref().unwrap());
        assert_eq!([number(&other, "a"), number(&one, "a"), number(&one, "b")], [Some(2), Some(1), None]);
        codes.insert(&one, "b", &Arc::new(Ok(3)));
        assert_eq!([number(&other, "a"), number(&one, "a"), number(&one, "b")], [None, Some(1), Some(3)]);
    }
}
