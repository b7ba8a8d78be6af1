//! What proposers are tested with.

use super::{Candidate, History, Proposer, Random};
use crate::rank::features;
use crate::space::{Choice, Next, Space, Trace};
use crate::target::{Task, avx512};
use crate::workload::{Binary, Combiner, DType, Expr, Index, Role, Stage, Var, Workload};

/// A product of 17×30 by 30×40, for a machine with AVX-512.
pub fn product() -> Task {
    let mut workload = Workload::default();
    let a = workload.add_tensor(vec![17, 30], DType::F32, Role::Input);
    let b = workload.add_tensor(vec![30, 40], DType::F32, Role::Constant);
    let c = workload.add_tensor(vec![17, 40], DType::F32, Role::Output);
    let load = |tensor, row, column| Expr::load(tensor, vec![Index::var(Var(row)), Index::var(Var(column))]);
    let value = Expr::binary(Binary::Multiply, load(a, 0, 2), load(b, 2, 1));
    workload.stages.push(Stage::reduce(c, vec![17, 40], vec![30], Combiner::Sum, value));
    Task { workload, target: avx512() }
}

/// A made-up time that decisions alone tell, in nanoseconds: the nearer numbers are to 3 and names to the
/// beginning of the alphabet, the faster.
pub fn slope(trace: &Trace) -> u64 {
    let far = |choice: &Choice| match choice.value.as_number() {
        Some(number) => ((number as f64 + 1.0) / 4.0).log2().abs(),
        None => f64::from(choice.value.to_string().bytes().next().unwrap_or(b'a').abs_diff(b'a')) / 26.0,
    };
    let all: f64 = trace.0.iter().map(far).sum();
    (1e6 * (all / 8.0).exp2()) as u64
}

/// A made-up time that the looks of a program of the product tell, in nanoseconds.
pub fn rough(trace: &Trace) -> u64 {
    match Space::standard().next(&product(), trace) {
        Ok(Next::Done(nest)) => (f64::from(features(&product(), &nest)[ROUGH_CYCLES]).exp2() * 1e3) as u64,
        _ => panic!("{trace} is no program"),
    }
}

/// The feature that tells the cycles if nothing overlaps.
pub const ROUGH_CYCLES: usize = 65;

/// Lets a method search for fast programs of the product, by made-up times, in batches of so many programs:
/// what it measured, and the best after each batch.
pub fn fall(proposer: &mut dyn Proposer, time: fn(&Trace) -> u64, batches: usize, count: usize) -> (History, Vec<u64>) {
    let (task, mut history, mut bests) = (product(), History::default(), Vec::new());
    for _ in 0..batches {
        for Candidate { trace, .. } in proposer.propose(&task, &history, count).unwrap().candidates {
            let ns = time(&trace);
            history.insert(trace, Some(ns));
        }
        bests.extend(history.best().map(|(_, ns)| ns));
    }
    (history, bests)
}

/// That of 64 programs, by [`rough`] times, a method finds a faster one than drawing them mostly does.
pub fn beats_chance(proposer: &mut dyn Proposer) {
    let space = Space::standard();
    let (history, bests) = fall(proposer, rough, 8, 8);
    let drawn = |seed| fall(&mut Random::new(&space, seed), rough, 8, 8).1[7];
    let mut drawn: Vec<u64> = (0..5).map(drawn).collect();
    drawn.sort_unstable();
    assert_eq!(history.len(), 64);
    assert!(bests[7] < drawn[2], "{bests:?}, {drawn:?}");
}
