//! Work for the threads of a GPU's blocks.

use super::tree::replace_vars;
use super::{Refusal, find_loop_mut};
use crate::nest::{Buffer, Loop, LoopKind, Nest, Scope, Stmt, identity};
use crate::workload::{Combiner, Condition, Expr, Index, Var};

/// Steps up to this many are written out, so that all loads of a thread are under way together.
const WRITTEN_OUT: i64 = 16;

impl Nest {
    /// Deals the iterations of perfectly nested loops, from `outermost` on, out to the threads of a block, `lanes` neighbours at a time.
    ///
    /// ```text
    /// for u in 0..8 { for v in 0..32 { s[u, v] = t[u, v] } }           to 16 threads, 4 lanes
    /// =>
    /// thread for at in 0..16 { unroll for step in 0..4 { vector for lane in 0..4 {
    ///     s[(64·step + 4·at + lane) / 32, (64·step + 4·at + lane) % 32] = t[…]
    /// } } }
    /// ```
    ///
    /// Where the last step is not full, a condition leaves out what is too much.
    ///
    /// # Errors
    /// [`Refusal::NoLoop`].
    pub fn cooperate(mut self, outermost: Var, threads: i64, lanes: i64) -> Result<Nest, Refusal> {
        let buffers = self.buffers.clone();
        let [step, at, lane] = ["step", "at", "lane"].map(|name| self.new_var(name));
        let l = find_loop_mut(&mut self.body, outermost).ok_or(Refusal::NoLoop(outermost))?;
        let (mut loops, mut body) = (vec![l.head()], std::mem::take(&mut l.body));
        while let [Stmt::Loop(inner)] = body.as_mut_slice() {
            loops.push(inner.head());
            body = std::mem::take(&mut inner.body);
        }
        let total: i64 = loops.iter().map(Loop::extent).product();
        let together = threads * lanes;
        let point = Index::var(step).times(together).plus(&Index::var(at).times(lanes)).plus(&Index::var(lane));
        let mut digits = Vec::new();
        let mut below = 1;
        for (number, l) in loops.iter().enumerate().rev() {
            let digit = if below > 1 { point.clone().floor_div(below) } else { point.clone() };
            digits.push((l.var, if number > 0 { digit.modulo(l.extent()) } else { digit }));
            below *= l.extent();
        }
        let digit_of = |var: Var| digits.iter().find(|(of, _)| *of == var).map(|(_, digit)| digit);
        let ragged: Vec<(Var, Condition)> =
            loops.iter().flat_map(|l| l.bounds[1..].iter().map(|bound| (l.var, within(l.var, bound)))).collect();
        // before the variables go, which tell what a condition is about
        body.iter_mut().for_each(|statement| guard(&buffers, statement, &ragged));
        replace_vars(&mut body, &digit_of);
        if total % together != 0 {
            let conditions = vec![Condition { index: point.clone(), low: 0, high: total }];
            body = vec![Stmt::If { conditions, body }];
        }
        let steps = (total + together - 1) / together;
        let lane_kind = if lanes > 1 { LoopKind::Vector } else { LoopKind::Unroll };
        let step_kind = if steps <= WRITTEN_OUT { LoopKind::Unroll } else { LoopKind::Serial };
        for (var, extent, kind) in [(lane, lanes, lane_kind), (step, steps, step_kind)] {
            body = vec![Stmt::Loop(Loop { var, bounds: vec![Index::constant(extent)], kind, body })];
        }
        let place = find_loop_mut(&mut self.body, outermost).ok_or(Refusal::NoLoop(outermost))?;
        *place = Loop { var: at, bounds: vec![Index::constant(threads)], kind: LoopKind::Thread, body };
        Ok(self)
    }

    /// Lets ragged thread loops, and the ragged loops inside of them that are written out, run in full. What they compute too much goes to
    /// registers and shared memory as what changes nothing, and nowhere else.
    ///
    /// ```text
    /// thread for x in 0..min(8, n - 8·i) { r[x] += t[8·i + x] }       t1[8·i + x] = r[x]
    /// =>
    /// thread for x in 0..8 { r[x] += (8·i + x < n ? t[8·i + x] : 0) }     if 8·i + x < n { t1[8·i + x] = r[x] }
    /// ```
    #[must_use]
    pub fn fill_tails(mut self) -> Nest {
        let mut body = std::mem::take(&mut self.body);
        Self::fill(&self.buffers, &mut body, &mut Vec::new(), false);
        self.body = body;
        self
    }

    /// `pending`: what would hold inside of the ragged loops around, each with its loop's variable.
    fn fill(buffers: &[Buffer], statements: &mut [Stmt], pending: &mut Vec<(Var, Condition)>, in_threads: bool) {
        for statement in statements {
            match statement {
                Stmt::Loop(l) => {
                    let in_threads = in_threads || l.kind == LoopKind::Thread;
                    let known = pending.len();
                    if in_threads && matches!(l.kind, LoopKind::Thread | LoopKind::Unroll | LoopKind::Vector) {
                        let var = l.var;
                        pending.extend(l.bounds.drain(1..).map(|bound| (var, within(var, &bound))));
                    }
                    Self::fill(buffers, &mut l.body, pending, in_threads);
                    pending.truncate(known);
                }
                Stmt::If { body, .. } => Self::fill(buffers, body, pending, in_threads),
                Stmt::Store { .. } | Stmt::Accumulate { .. } => guard(buffers, statement, pending),
            }
        }
    }
}

/// That a variable stays below a bound.
fn within(var: Var, bound: &Index) -> Condition {
    Condition { index: bound.clone().minus(&Index::var(var)), low: 1, high: i64::MAX }
}

/// Lets a statement run where the conditions do not hold, each of which belongs to a loop's variable.
fn guard(buffers: &[Buffer], statement: &mut Stmt, pending: &[(Var, Condition)]) {
    let (Stmt::Store { buffer, indices, value } | Stmt::Accumulate { buffer, indices, value, .. }) = &*statement else {
        return;
    };
    let known = &buffers[buffer.0 as usize];
    let is_own = |scope: Scope| matches!(scope, Scope::Register | Scope::Private);
    let mut reaches_out = false;
    value.for_each_load(&mut |tensor, _| reaches_out |= !is_own(buffers[tensor.0 as usize].scope));
    let stays = is_own(known.scope);
    // an element too much may get any value that can be had without leaving a tensor
    let matters = |var: Var| !stays || reaches_out || !indices.iter().any(|index| index.mentions(var));
    let conditions: Vec<Condition> =
        pending.iter().filter(|(var, _)| matters(*var)).map(|(_, condition)| condition.clone()).collect();
    if conditions.is_empty() || (stays && matches!(value, Expr::Float(_))) {
        return;
    }
    if !stays {
        let body = vec![statement.clone()];
        *statement = Stmt::If { conditions, body };
        return;
    }
    match statement {
        Stmt::Accumulate { combiner, value, .. } => {
            *value = Expr::guard(conditions, value.clone(), identity(*combiner, known.dtype));
        }
        Stmt::Store { value, .. } => {
            *value = Expr::guard(conditions, value.clone(), identity(Combiner::Sum, known.dtype));
        }
        Stmt::Loop(_) | Stmt::If { .. } => {}
    }
}
