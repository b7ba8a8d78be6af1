//! Algorithms that compute a workload otherwise than it is written, and what they made of it before: a search
//! asks for the same thousands of times, and what Winograd's algorithm makes of a convolution takes longer to
//! write down than all decisions about it.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use super::Workload;
use super::flat::flat;
use super::merged::merged;
use super::rewritten::Rewritten;
use super::strassen::{Panels, strassen};
use super::winograd::{Order, winograd};

/// An algorithm with fewer multiplications.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Algorithm {
    /// See [`winograd`].
    Winograd { outputs: i64, order: Order },
    /// See [`strassen`].
    Strassen { panels: Option<Panels> },
    /// See [`merged`].
    Merged { groups: i64 },
    /// See [`flat`].
    Flat,
}

/// By algorithm, what it made of workloads; `None` where it does not apply.
type Remembered = HashMap<Algorithm, HashMap<Workload, Option<Arc<Rewritten>>>>;

static REMEMBERED: LazyLock<RwLock<Remembered>> = LazyLock::new(RwLock::default);
/// Workloads of an algorithm that are remembered, at most: more than networks have. Behind that it begins
/// anew.
const MOST: usize = 256;

impl Algorithm {
    /// What it makes of a workload; `None` where it does not apply.
    pub fn of(self, workload: &Workload) -> Option<Arc<Rewritten>> {
        let remembered = REMEMBERED.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = remembered.get(&self).and_then(|of| of.get(workload)) {
            return known.clone();
        }
        drop(remembered);
        let made = match self {
            Algorithm::Winograd { outputs, order } => winograd(workload, outputs, order),
            Algorithm::Strassen { panels } => strassen(workload, panels),
            Algorithm::Merged { groups } => merged(workload, groups),
            Algorithm::Flat => flat(workload),
        }
        .map(Arc::new);
        let mut remembered = REMEMBERED.write().unwrap_or_else(PoisonError::into_inner);
        let of = remembered.entry(self).or_default();
        if of.len() >= MOST {
            of.clear();
        }
        of.insert(workload.clone(), made.clone());
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_is_what_the_algorithm_makes() {
        let text = "const t0 6 8 3 3\ninput t1 8 10 11\nout t2 6 8 9 sum 8 3 3 mul t1 d + b e + c f t0 a d e f\n";
        let workload: Workload = text.parse().unwrap();
        let algorithm = Algorithm::Winograd { outputs: 2, order: Order::Points };
        let first = algorithm.of(&workload).expect("it applies");
        assert_eq!(Some(&*first), winograd(&workload, 2, Order::Points).as_ref());
        assert!(Arc::ptr_eq(&first, &algorithm.of(&workload).unwrap()));
        assert_eq!(Algorithm::Strassen { panels: None }.of(&workload), None);
        let by_rows = Algorithm::Winograd { outputs: 2, order: Order::Rows }.of(&workload).unwrap();
        assert_ne!(by_rows, first);
    }
}
