//! Work for the threads of a GPU's blocks.

use std::collections::{HashMap, HashSet};

use super::tree::replace_vars;
use super::{Refusal, find_loop_mut, for_each_stmt};
use crate::nest::{Buffer, Loop, LoopKind, Nest, Scope, Stmt};
use crate::workload::{Atom, Binary, Combiner, Condition, Expr, Index, Interval, TensorId, Var, typed_identity};

/// Steps up to this many are written out, so that all loads of a thread are under way together.
const WRITTEN_OUT: i64 = 16;

impl Nest {
    /// Deals the iterations of perfectly nested loops, from `outermost` on, out to the threads of a block,
    /// `lanes` neighbours at a time.
    ///
    /// ```text
    /// for u in 0..8 { for v in 0..32 { s[u, v] = t[u, v] } }           to 16 threads, 4 lanes
    /// =>
    /// thread for at in 0..16 { unroll for step in 0..4 { vector for lane in 0..4 {
    ///     s[(16·step + at) / 8, 4·((16·step + at) % 8) + lane] = t[…]
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
        let unit = Index::var(step).times(threads).plus(&Index::var(at));
        let digits = digits(&loops, &unit, lane, lanes, total % together != 0);
        let digit_of = |var: Var| digits.iter().find(|(of, _)| *of == var).map(|(_, digit)| digit);
        let ragged: Vec<(Var, Condition)> = loops
            .iter()
            .flat_map(|l| l.bounds[1..].iter().map(|bound| (l.var, within(l.var, l.extent(), bound))))
            .collect();
        // before the variables go, which tell what a condition is about
        let ranges = loops.iter().map(|l| (l.var, Interval::below(l.extent()))).collect();
        let [partly_written, not_filled] = [HashSet::new(), HashSet::new()];
        let room = Room { buffers: &buffers, ranges, partly_written, not_filled, combined: HashSet::new() };
        body.iter_mut().for_each(|statement| room.guard(statement, &ragged));
        replace_vars(&mut body, &digit_of);
        if total % together != 0 {
            // all lanes of a thread are too much, or none
            let conditions = match total % lanes {
                0 => vec![Condition { index: unit, low: 0, high: total / lanes }],
                _ => vec![Condition { index: point.clone(), low: 0, high: total }],
            };
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

    /// Lets a single thread do what stands between the phases of a block, and a single block what stands
    /// outside of all.
    ///
    /// ```text
    /// block for i in 0..8 { s = 0  thread for x in 0..32 { … } }
    /// =>
    /// block for i in 0..8 { thread for one in 0..1 { s = 0 }  thread for x in 0..32 { … } }
    /// ```
    #[must_use]
    pub fn in_threads(mut self) -> Nest {
        let mut body = std::mem::take(&mut self.body);
        for statement in &mut body {
            if !matches!(statement, Stmt::Loop(Loop { kind: LoopKind::Block, .. })) {
                self.in_one(statement, LoopKind::Block);
            }
        }
        self.deal(&mut body);
        self.body = body;
        self
    }

    fn in_one(&mut self, statement: &mut Stmt, kind: LoopKind) {
        let (var, bounds) = (self.new_var("one"), vec![Index::constant(1)]);
        let body = vec![statement.clone()];
        *statement = Stmt::Loop(Loop { var, bounds, kind, body });
    }

    fn deal(&mut self, statements: &mut Vec<Stmt>) {
        for statement in statements {
            match statement {
                Stmt::Loop(l) if l.kind.is_in_block() => {}
                Stmt::Loop(Loop { body, kind, .. }) if *kind == LoopKind::Block || has_threads(body) => self.deal(body),
                Stmt::If { body, .. } if has_threads(body) => self.deal(body),
                alone => self.in_one(alone, LoopKind::Thread),
            }
        }
    }

    /// Lets ragged thread loops, and the ragged loops inside of them that are written out, run in full. What
    /// they compute too much goes to registers and shared memory as what changes nothing, and nowhere else.
    ///
    /// ```text
    /// thread for x in 0..min(8, n - 8·i) { r[x] += t[8·i + x] }       t1[8·i + x] = r[x]
    /// =>
    /// thread for x in 0..8 { r[x] += (8·i + x < n ? t[8·i + x] : 0) }     if 8·i + x < n { t1[8·i + x] = r[x] }
    /// ```
    #[must_use]
    pub fn fill_tails(mut self) -> Nest {
        let mut body = std::mem::take(&mut self.body);
        let mut room = Room {
            buffers: &self.buffers,
            ranges: HashMap::new(),
            partly_written: HashSet::new(),
            not_filled: HashSet::new(),
            combined: combined(&body),
        };
        room.note_ranges(&body);
        room.note_stores(&body);
        Filling { room: &room, pending: Vec::new() }.fill(&mut body, false);
        self.body = body;
        self
    }
}

/// Lets loops run in full that one bound makes ragged, wherever they are: what they compute too much goes to
/// registers as what changes nothing, and nowhere else.
/// Buffers come with those among them that hold less than they have room for, and what is [`combined`].
pub(super) fn fill(
    (buffers, partly_written, combined): (&[Buffer], &HashSet<TensorId>, &Combined),
    body: &mut [Stmt],
    is_ragged: &dyn Fn(&Loop) -> bool,
    bound: &Index,
) {
    let mut room = Room {
        buffers,
        ranges: HashMap::new(),
        partly_written: partly_written.clone(),
        not_filled: partly_written.clone(),
        combined: combined.clone(),
    };
    room.note_ranges(body);
    room.note_stores(body);
    fill_ragged(&room, body, is_ragged, bound, &mut Vec::new());
}

fn fill_ragged(
    room: &Room<'_>,
    body: &mut [Stmt],
    is_ragged: &dyn Fn(&Loop) -> bool,
    bound: &Index,
    pending: &mut Vec<(Var, Condition)>,
) {
    for statement in body {
        match statement {
            Stmt::Loop(l) => {
                let known = pending.len();
                if is_ragged(l) {
                    l.bounds.retain(|other| other != bound);
                    pending.push((l.var, within(l.var, l.extent(), bound)));
                }
                fill_ragged(room, &mut l.body, is_ragged, bound, pending);
                if l.kind == LoopKind::Dot {
                    l.body.iter_mut().for_each(|statement| room.guard_factors(statement));
                }
                pending.truncate(known);
            }
            Stmt::If { body, .. } => fill_ragged(room, body, is_ragged, bound, pending),
            Stmt::Store { .. } | Stmt::Accumulate { .. } => room.guard(statement, pending),
        }
    }
}

/// Dimensions of accumulators along which all elements are combined into others, as those of lanes are.
pub(super) type Combined = HashSet<(TensorId, usize)>;

/// Those of all accumulators.
pub(super) fn combined(statements: &[Stmt]) -> Combined {
    let mut found = HashSet::new();
    for_each_stmt(statements, &mut |statement| {
        if let Stmt::Accumulate { indices, value: Expr::Load { tensor, indices: of_parts }, .. } = statement {
            let is_reduced = |index: &Index| index.any_var(&|var| !indices.iter().any(|own| own.mentions(var)));
            let dimensions = of_parts.iter().enumerate().filter(|(_, index)| is_reduced(index));
            found.extend(dimensions.map(|(dimension, _)| (*tensor, dimension)));
        }
    });
    found
}

/// The variables of perfectly nested loops, at the point `lanes · unit + lane` of all their iterations. Lanes
/// that the innermost loops divide, or that divide them, stay outside of divisions by anything else, so that
/// neighbours are seen to be neighbours. `runs_over`: there are more points than iterations.
fn digits(loops: &[Loop], unit: &Index, lane: Var, lanes: i64, runs_over: bool) -> Vec<(Var, Index)> {
    let (mut units_below, mut lanes_below) = (1, 1);
    let mut digits = Vec::new();
    for (number, l) in loops.iter().enumerate().rev() {
        let extent = l.extent();
        let left = lanes / lanes_below;
        let wraps = number > 0 || runs_over;
        let of_unit = |extent: i64| {
            let digit = unit.clone().floor_div(units_below);
            if wraps { digit.modulo(extent) } else { digit }
        };
        let own_lane = Index::var(lane).floor_div(lanes_below);
        let digit = if left == 1 {
            let digit = of_unit(extent);
            units_below *= extent;
            digit
        } else if extent % left == 0 {
            let digit = of_unit(extent / left).times(left).plus(&own_lane);
            units_below *= extent / left;
            lanes_below = lanes;
            digit
        } else if left % extent == 0 {
            lanes_below *= extent;
            own_lane.modulo(extent)
        } else {
            // what is left of the lanes goes across the loop's end
            return whole_digits(loops, &unit.clone().times(lanes).plus(&Index::var(lane)), runs_over);
        };
        digits.push((l.var, digit));
    }
    digits
}

/// The same of a point that is not told apart.
fn whole_digits(loops: &[Loop], point: &Index, runs_over: bool) -> Vec<(Var, Index)> {
    let mut below = 1;
    let mut digits = Vec::new();
    for (number, l) in loops.iter().enumerate().rev() {
        let digit = point.clone().floor_div(below);
        digits.push((l.var, if number > 0 || runs_over { digit.modulo(l.extent()) } else { digit }));
        below *= l.extent();
    }
    digits
}

/// The way of [`Nest::fill_tails`] through a nest.
struct Filling<'a> {
    room: &'a Room<'a>,
    /// What would hold inside of the ragged loops around, each with its loop's variable.
    pending: Vec<(Var, Condition)>,
}

impl Filling<'_> {
    fn fill(&mut self, statements: &mut [Stmt], in_threads: bool) {
        for statement in statements {
            match statement {
                Stmt::Loop(l) => {
                    let in_threads = in_threads || l.kind.is_in_block();
                    let known = self.pending.len();
                    if in_threads && !matches!(l.kind, LoopKind::Serial | LoopKind::Parallel | LoopKind::Block) {
                        let (var, extent) = (l.var, l.extent());
                        self.pending.extend(l.bounds.drain(1..).map(|bound| (var, within(var, extent, &bound))));
                    }
                    self.fill(&mut l.body, in_threads);
                    self.pending.truncate(known);
                }
                Stmt::If { body, .. } => self.fill(body, in_threads),
                Stmt::Store { .. } | Stmt::Accumulate { .. } => self.room.guard(statement, &self.pending),
            }
        }
    }
}

fn has_threads(statements: &[Stmt]) -> bool {
    statements.iter().any(|statement| match statement {
        Stmt::Loop(l) => l.kind.is_in_block() || has_threads(&l.body),
        Stmt::If { body, .. } => has_threads(body),
        Stmt::Store { .. } | Stmt::Accumulate { .. } => false,
    })
}

/// That a variable of a loop of `extent` iterations stays below a bound. Where the bound is a multiple of the
/// extent, all iterations do, or none.
fn within(var: Var, extent: i64, bound: &Index) -> Condition {
    let whole = bound.offset() % extent == 0 && bound.terms().iter().all(|(_, coefficient)| coefficient % extent == 0);
    match whole {
        true => Condition { index: bound.clone(), low: extent, high: i64::MAX },
        false => Condition { index: bound.clone().minus(&Index::var(var)), low: 1, high: i64::MAX },
    }
}

/// What may be touched when loops run in full.
struct Room<'a> {
    buffers: &'a [Buffer],
    /// Of loops that run in full.
    ranges: HashMap<Var, Interval>,
    /// Buffers with elements that are not written then.
    partly_written: HashSet<TensorId>,
    /// Buffers with elements that are written otherwise than zero where there is nothing.
    not_filled: HashSet<TensorId>,
    /// Where every element of an accumulator counts.
    combined: Combined,
}

impl Room<'_> {
    fn note_ranges(&mut self, statements: &[Stmt]) {
        for_each_stmt(statements, &mut |statement| {
            if let Stmt::Loop(l) = statement {
                self.ranges.insert(l.var, Interval::below(l.extent()));
            }
        });
    }

    fn note_stores(&mut self, statements: &[Stmt]) {
        for statement in statements {
            match statement {
                // what a condition leaves out of a copy is beyond its end
                Stmt::Loop(Loop { body, .. }) | Stmt::If { body, .. } => self.note_stores(body),
                Stmt::Store { buffer, indices, value } => {
                    if !self.is_inside(*buffer, indices) {
                        self.partly_written.insert(*buffer);
                    }
                    let zero = Expr::float(0.0);
                    if !matches!(value, Expr::Guard { outside, .. } if *unconverted(outside) == zero) {
                        self.not_filled.insert(*buffer);
                    }
                }
                Stmt::Accumulate { buffer, .. } => {
                    self.not_filled.insert(*buffer);
                }
            }
        }
    }

    /// Whether an access stays inside of a buffer of a block or a thread, whatever the loops around do.
    fn is_inside(&self, buffer: TensorId, indices: &[Index]) -> bool {
        let buffer = &self.buffers[buffer.0 as usize];
        let unknown = Interval { low: i64::MIN, high: i64::MAX };
        let range = |var: Var| self.ranges.get(&var).copied().unwrap_or(unknown);
        let fits = |(index, extent): (&Index, &i64)| {
            index.range(&range).is_some_and(|values| values.low >= 0 && values.high < *extent)
        };
        matches!(buffer.scope, Scope::Register | Scope::BlockShared)
            && buffer.extents.is_fixed()
            && indices.iter().zip(&buffer.shape).all(fits)
    }

    /// Whether a factor is an element of a copy that holds zeros wherever a reduction's variable runs over; a
    /// window would move over what is there.
    fn is_zero_beyond(&self, factor: &Expr, var: Var, spatial: &[Index]) -> bool {
        let Expr::Load { tensor, indices } = unconverted(factor) else { return false };
        let is_own = |other: Var| spatial.iter().any(|index| index.mentions(other));
        let mut along = indices.iter().filter(|index| index.mentions(var)).peekable();
        let is_alone = |index: &Index| {
            let mut alone = true;
            index.for_each_var(&mut |other| alone &= !is_own(other));
            alone
        };
        let plain = |index: &Index| is_alone(index) || are_digits(index);
        self.buffers[tensor.0 as usize].scope == Scope::BlockShared
            && !self.not_filled.contains(tensor)
            && along.peek().is_some()
            && along.all(plain)
    }

    /// Puts the conditions on a product in front of its factors, each by itself: a dot product has none else.
    fn guard_factors(&self, statement: &mut Stmt) {
        let Stmt::Accumulate { value, .. } = statement else { return };
        let Expr::Guard { conditions, inside, .. } = &*value else { return };
        let Expr::Binary(Binary::Multiply, x, y) = &**inside else { return };
        let zero = |tensor: TensorId| typed_identity(Combiner::Sum, self.buffers[tensor.0 as usize].dtype);
        let [x, y] = [x, y].map(|factor| guarded_operand((**factor).clone(), conditions, &zero));
        *value = Expr::binary(Binary::Multiply, x, y);
    }

    /// Lets a statement run where the conditions do not hold, each of which belongs to a loop's variable.
    fn guard(&self, statement: &mut Stmt, pending: &[(Var, Condition)]) {
        let (Stmt::Store { buffer, indices, value } | Stmt::Accumulate { buffer, indices, value, .. }) = &*statement
        else {
            return;
        };
        let stays = self.is_inside(*buffer, indices);
        let mut reaches_out = false;
        value.for_each_load(&mut |tensor, at| {
            reaches_out |= self.partly_written.contains(&tensor) || !self.is_inside(tensor, at);
        });
        // an element too much may get any value that can be had without leaving a buffer, unless it is a part
        // of a result; and a sum of products zeros
        let adds_nothing = |var: Var| match &*statement {
            Stmt::Accumulate { combiner: Combiner::Sum, value: Expr::Binary(Binary::Multiply, x, y), .. } => {
                [x, y].into_iter().all(|factor| self.is_zero_beyond(factor, var, indices))
            }
            _ => false,
        };
        let accumulates = matches!(&*statement, Stmt::Accumulate { .. });
        let is_part = |dimension: usize| accumulates && self.combined.contains(&(*buffer, dimension));
        let is_own = |var: Var| indices.iter().enumerate().any(|(at, index)| index.mentions(var) && !is_part(at));
        let matters = |var: Var| !stays || reaches_out || (!is_own(var) && !adds_nothing(var));
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
        let dtype = self.buffers[buffer.0 as usize].dtype;
        match statement {
            Stmt::Accumulate { combiner, value, .. } => {
                *value = Expr::guard(conditions, value.clone(), typed_identity(*combiner, dtype));
            }
            Stmt::Store { value, .. } => {
                *value = Expr::guard(conditions, value.clone(), typed_identity(Combiner::Sum, dtype));
            }
            Stmt::Loop(_) | Stmt::If { .. } => {}
        }
    }
}

/// An operand of a product, under conditions: read where they hold, and zero elsewhere.
fn guarded_operand(operand: Expr, conditions: &[Condition], zero: &dyn Fn(TensorId) -> Expr) -> Expr {
    match operand {
        Expr::Cast(to, inner) => Expr::Cast(to, Box::new(guarded_operand(*inner, conditions, zero))),
        Expr::Guard { conditions: own, inside, outside } => Expr::guard([conditions, &own].concat(), *inside, *outside),
        Expr::Load { tensor, indices } => Expr::guard(conditions.to_vec(), Expr::load(tensor, indices), zero(tensor)),
        other => other,
    }
}

/// Whether an index is made of remainders that do not run into each other, each like an index of its own.
fn are_digits(index: &Index) -> bool {
    let mut digits = Vec::with_capacity(index.terms().len());
    for (atom, coefficient) in index.terms() {
        let Atom::Modulo(_, divisor) = atom else { return false };
        digits.push((*coefficient, *divisor));
    }
    digits.sort_unstable();
    let mut below = 1;
    digits.into_iter().all(|(coefficient, divisor)| {
        let is_apart = coefficient >= below;
        below = coefficient.saturating_mul(divisor);
        is_apart
    })
}

/// What is converted, if it is.
fn unconverted(value: &Expr) -> &Expr {
    if let Expr::Cast(_, inner) = value { inner } else { value }
}
