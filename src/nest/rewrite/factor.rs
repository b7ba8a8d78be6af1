//! Factors of a sum that its steps share, multiplied once.

use super::accumulate::take_chain;
use super::{Refusal, find_loop_mut, find_place};
use crate::nest::{Buffer, Loop, Nest, Scope, Stmt};
use crate::workload::{Binary, Combiner, Expr, Index, Var, identity};

impl Nest {
    /// Takes the factors of a sum of products that stay the same in a loop over its steps out of the loop:
    /// what the steps come to gets registers of its own, and is multiplied once.
    ///
    /// ```text
    /// for b { for k { for i { acc[i] += x[b, k] * (w[b, k, i] * s[b, i]) } } }                  factor at k
    /// =>
    /// for b {
    ///     for i { part[i] = 0 }
    ///     for k { for i { part[i] += x[b, k] * w[b, k, i] } }
    ///     for i { acc[i] += part[i] * s[b, i] }
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Refusal::NoLoop`]; [`Refusal::NotPerfect`] where the loops from there on are not one chain that ends
    /// in an accumulation; [`Refusal::NoFactor`] where it is no sum of products, one of whose factors stays
    /// the same.
    pub fn factor(mut self, steps: Var) -> Result<Nest, Refusal> {
        let over = find_loop_mut(&mut self.body, steps).ok_or(Refusal::NoLoop(steps))?;
        let chain = take_chain(&mut over.body, None).ok_or(Refusal::NotPerfect(steps))?;
        let is_result = |l: &Loop| chain.indices.iter().any(|index| index.mentions(l.var));
        let moving: Vec<Var> =
            chain.loops.iter().filter(|l| !is_result(l) && l.extent() > 1).map(|l| l.var).chain([steps]).collect();
        let is_kept = |factor: &Expr| !moving.iter().any(|var| factor.mentions(*var));
        let is_loaded = |index: &Index| index.mentions(steps);
        let (kept, moved): (Vec<Expr>, Vec<Expr>) = factors(&chain.value).into_iter().partition(is_kept);
        let is_sum = chain.combiner == Combiner::Sum && !chain.indices.iter().any(is_loaded);
        let ([Some(kept), Some(moved)], true) = ([product(kept), product(moved)], is_sum) else {
            return Err(Refusal::NoFactor(steps));
        };
        // loops of a single step stay inside: what is outside is at that step
        let kept = kept.substitute(&|var| {
            let is_unit = chain.loops.iter().any(|l| l.var == var && !is_result(l));
            is_unit.then(|| Index::constant(0))
        });
        let results: Vec<&Loop> = chain.loops.iter().filter(|l| is_result(l)).collect();
        let (name, dtype) = (format!("{}_part", self.buffer(chain.buffer).name), self.buffer(chain.buffer).dtype);
        let shape = results.iter().map(|l| l.extent()).collect();
        let part = self.add_buffer(Buffer::new(name, shape, dtype, Scope::Register));
        let indices: Vec<Index> = results.iter().map(|l| Index::var(l.var)).collect();
        let zero = Stmt::Store { buffer: part, indices: indices.clone(), value: identity(Combiner::Sum, dtype) };
        let start = self.copy_of_loops(&results, vec![zero]);
        let value = Expr::binary(Binary::Multiply, Expr::load(part, indices.clone()), kept);
        let sum = Stmt::Accumulate { buffer: chain.buffer, indices: chain.indices, combiner: chain.combiner, value };
        let finish = self.copy_of_loops(&results, vec![sum]);
        let step = Stmt::Accumulate { buffer: part, indices, combiner: Combiner::Sum, value: moved };
        let body = chain.loops.into_iter().rev().fold(vec![step], |body, l| vec![Stmt::Loop(Loop { body, ..l })]);
        let (stmts, at) = find_place(&mut self.body, steps).ok_or(Refusal::NoLoop(steps))?;
        if let Stmt::Loop(l) = &mut stmts[at] {
            l.body = body;
        }
        stmts.splice(at + 1..at + 1, finish);
        stmts.splice(at..at, start);
        Ok(self)
    }
}

/// The factors of a product, in order.
pub(crate) fn factors(value: &Expr) -> Vec<Expr> {
    match value {
        Expr::Binary(Binary::Multiply, x, y) => [factors(x), factors(y)].concat(),
        other => vec![other.clone()],
    }
}

fn product(factors: Vec<Expr>) -> Option<Expr> {
    factors.into_iter().reduce(|x, y| Expr::binary(Binary::Multiply, x, y))
}
