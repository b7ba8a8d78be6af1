//! Packing: copying an operand into the order in which it is read.

use super::tree::{replace_vars, replace_vars_of_head};
use super::{Refusal, change_exprs, find_loop, find_loop_mut, find_place, for_each_stmt};
use crate::nest::{Buffer, Loop, LoopKind, Nest, Scope, Stmt};
use crate::workload::{Combiner, Condition, DType, Expr, Index, Interval, TensorId, Var, typed_identity};

/// How a packed operand is laid out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Layout {
    /// In the order of the loops that read it, an element for each iteration: panels of a matrix product; of
    /// a convolution, the matrix of unrolled patches (im2col).
    Panel,
    /// The box that the loops touch, in the tensor's own order of dimensions, padding written out.
    Box,
}

/// In which type an operand is packed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Content {
    /// In the tensor's own.
    Own,
    /// In the one that is computed with: 16-bit values as f32.
    Converted,
}

/// Where an operand is packed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Place {
    /// Once, when the network is compiled.
    Setup,
    /// Whole, before the loop, spread over the threads.
    Before(Var),
    /// At the start of every iteration of the loop.
    Inside(Var),
}

impl Nest {
    /// Packs what the accumulations inside of `stage` (a loop) read of a tensor, with the guards around the
    /// access and, for a [`Content::Converted`] copy, the conversion around both. Where they read it in
    /// several ways, `which` counts these from 0, in the order of their expressions, those that are packed
    /// already left out.
    ///
    /// ```text
    /// for i { for k { for j { t[i, j] += a[i, k] * b[k, j] } } }           pack b inside i as panel, k and j inside
    /// =>
    /// for i { for k { for j { p[k, j] = b[k, j] } }  for k { for j { t[i, j] += a[i, k] * p[k, j] } } }
    /// ```
    ///
    /// # Errors
    /// [`Refusal::NoLoop`]; [`Refusal::NotRead`] where the tensor is not read in so many ways;
    /// [`Refusal::OfRun`] for what is packed too early; [`Refusal::BoxOfDivision`], [`Refusal::BoxTooLarge`]
    /// and [`Refusal::BoxOfGuard`] where what is read is no box.
    pub fn pack(
        mut self,
        stage: Var,
        (tensor, which): (TensorId, usize),
        place: Place,
        (layout, content): (Layout, Content),
    ) -> Result<Nest, Refusal> {
        let whole = find_loop(&self.body, stage).ok_or(Refusal::NoLoop(stage))?;
        let read =
            reads(whole, tensor, content).into_iter().nth(which).ok_or(Refusal::NotRead { buffer: tensor, which })?;
        if matches!(place, Place::Setup) && read.any_var(&|var| self.is_parameter(var)) {
            return Err(Refusal::OfRun(tensor));
        }
        let mut path = Vec::new();
        loops_to_read(whole, &read, &mut path);
        let inside = match place {
            Place::Setup | Place::Before(_) => &path[..],
            Place::Inside(var) => {
                let at = path.iter().position(|l| l.var == var).ok_or(Refusal::NoLoop(var))?;
                &path[at + 1..]
            }
        };
        let (copy, access) = match layout {
            Layout::Panel => self.panel(tensor, &read, inside, place)?,
            Layout::Box => self.copied_box(tensor, &read, inside, place)?,
        };
        let around = match place {
            Place::Setup | Place::Before(_) => stage,
            Place::Inside(var) => var,
        };
        let l = find_loop_mut(&mut self.body, around).ok_or(Refusal::NoLoop(around))?;
        change_exprs(&mut l.body, &mut |value| swap(value, &read, &access));
        match place {
            Place::Setup => self.setup.extend(copy),
            Place::Before(_) => {
                let (stmts, at) = find_place(&mut self.body, stage).ok_or(Refusal::NoLoop(stage))?;
                stmts.splice(at..at, copy);
            }
            Place::Inside(_) => {
                l.body.splice(0..0, copy);
            }
        }
        Ok(self)
    }

    fn panel(
        &mut self,
        tensor: TensorId,
        read: &Expr,
        inside: &[Loop],
        place: Place,
    ) -> Result<(Vec<Stmt>, Expr), Refusal> {
        let moves: Vec<&Loop> = inside.iter().filter(|l| read.mentions(l.var)).collect();
        let (apart, row) = moves.split_at(moves.len() - Self::loops_of_row(&moves, read));
        let (mut shape, mut indices): (Vec<i64>, Vec<Index>) =
            apart.iter().map(|l| (l.extent(), Index::var(l.var))).unzip();
        if !row.is_empty() {
            shape.push(row.iter().map(|l| l.extent()).product());
            indices.push(row.iter().fold(Index::constant(0), |at, l| at.times(l.extent()).plus(&Index::var(l.var))));
        }
        let packed = self.packed_buffer(tensor, self.read_type(tensor, read), shape, place);
        let mut store = Stmt::Store { buffer: packed, indices: indices.clone(), value: read.clone() };
        // what is packed when the network is compiled is packed for all numbers of a run
        let is_early = matches!(place, Place::Setup);
        let is_parameter = |var: Var| self.is_parameter(var);
        let known = |bound: &Index| {
            inside.iter().all(|l| !bound.mentions(l.var) || read.mentions(l.var))
                && !(is_early && bound.any_var(&is_parameter))
        };
        let copied = |l: &Loop, is_last: bool| Loop {
            var: l.var,
            bounds: l.bounds.iter().filter(|b| known(b)).cloned().collect(),
            kind: copy_kind(l, is_last),
            body: Vec::new(),
        };
        let mut loops: Vec<Loop> = apart.iter().map(|l| copied(l, false)).collect();
        match row {
            [] => {
                if let (Some(l), Some(last)) = (moves.last(), loops.last_mut()) {
                    *last = copied(l, true);
                }
                if moves.last().is_some_and(|l| l.kind == LoopKind::Dot) {
                    loops = self.in_groups(loops, read);
                }
                (loops, store) = self.by_lines(loops, read, store);
            }
            row => loops.push(self.row_of(row, &mut store)),
        }
        let loops: Vec<&Loop> = loops.iter().collect();
        let mut copy = self.copy_of_loops(&loops, vec![store]);
        // programs of before, whose copies have no rows, keep the loops that they have
        if row.is_empty() {
            spread(&mut copy, place)
        } else {
            spread_within_units(&mut copy, place)
        }
        Ok((copy, Expr::load(packed, indices)))
    }

    /// How many of the innermost loops that read groups of steps run through a part of a row of a tensor,
    /// all of it or nothing there: that is copied by vectors as it lies. None where a single loop does it.
    ///
    /// ```text
    /// for r in 0..49 { for k in 0..16 { for q in 0..2 { p[r, k, q] = b[r % 7, 2*k + q] } } }
    /// =>
    /// for r in 0..49 { vector k in 0..32 { p[r, k] = b[r % 7, k] } }
    /// ```
    fn loops_of_row(moves: &[&Loop], read: &Expr) -> usize {
        let (conditions, read) = guarded(read);
        let Expr::Load { indices, .. } = read else { return 0 };
        if moves.last().is_none_or(|l| l.kind != LoopKind::Dot) {
            return 0;
        }
        let Some((last, before)) = indices.split_last() else { return 0 };
        let (mut loops, mut elements) = (0, 1);
        for l in moves.iter().rev() {
            // within a row of the tensor: what is behind its last dimension is no neighbour to a nest
            let is_next = last.step(l.var) == Some(elements) && !before.iter().any(|index| index.mentions(l.var));
            let of_rows = conditions.iter().all(|condition| !condition.index.mentions(l.var));
            if !(l.is_constant() && is_next && of_rows && elements * l.extent() <= MAXIMAL_UNROLLED_ROW) {
                break;
            }
            (loops, elements) = (loops + 1, elements * l.extent());
        }
        if loops > 1 && elements >= LINE { loops } else { 0 }
    }

    /// The loop over a row in the place of several, and its copy.
    fn row_of(&mut self, row: &[&Loop], store: &mut Stmt) -> Loop {
        let var = self.new_var("row");
        let (zero, at) = (Index::constant(0), Index::var(var));
        let innermost = row.last().map(|l| l.var);
        let elements = row.iter().map(|l| l.extent()).product();
        replace_vars_of_head(store, &|v| {
            row.iter().any(|l| l.var == v).then_some(if Some(v) == innermost { &at } else { &zero })
        });
        Loop { var, bounds: vec![Index::constant(elements)], kind: LoopKind::Vector, body: Vec::new() }
    }

    /// A copy writes the steps of a lane side by side, as instructions for short numbers take them. Where it
    /// reads the lanes of a step so, it takes a row of each step, which can be interleaved in registers;
    /// where it reads the steps so, it takes a row of each lane, whose groups can be transposed.
    ///
    /// ```text
    /// for j in 0..16 { for q in 0..2 { p[j, q] = b[q, j] } }
    /// =>
    /// unroll q in 0..2 { vector j in 0..16 { p[j, q] = b[q, j] } }
    ///
    /// for k in 0..8 { for j in 0..16 { for q in 0..2 { p[k, j, q] = b[j, 2*k + q] } } }
    /// =>
    /// unroll k in 0..8 { unroll q in 0..2 { vector j in 0..16 { p[k, j, q] = b[j, 2*k + q] } } }
    /// ```
    fn in_groups(&self, mut loops: Vec<Loop>, read: &Expr) -> Vec<Loop> {
        let (inside, read) = guarded(read);
        let Expr::Load { tensor, indices } = read else { return loops };
        let step = |l: &Loop| self.buffer(*tensor).step(indices, l.var);
        let [before @ .., lanes, steps] = loops.as_mut_slice() else { return loops };
        if !steps.is_constant() {
            return loops;
        }
        if step(lanes) == Some(1) && step(steps) != Some(1) {
            (lanes.kind, steps.kind) = (LoopKind::Vector, LoopKind::Unroll);
            std::mem::swap(lanes, steps);
            return loops;
        }
        // what is there of a lane, is there in all of its groups
        let of_lanes = |l: &Loop| !inside.iter().any(|condition| condition.index.mentions(l.var));
        let is_along =
            |l: &Loop| l.is_constant() && l.extent() <= LINE && step(l) == Some(steps.extent()) && of_lanes(l);
        let along = before.iter().rposition(is_along);
        let is_free = |at: usize| before[at + 1..].iter().all(|l| l.bounds.iter().all(|b| !b.mentions(before[at].var)));
        if let Some(at) = along.filter(|at| step(steps) == Some(1) && of_lanes(steps) && is_free(*at)) {
            (lanes.kind, steps.kind, before[at].kind) = (LoopKind::Vector, LoopKind::Unroll, LoopKind::Unroll);
            std::mem::swap(lanes, steps);
            before[at..].rotate_left(1);
        }
        loops
    }

    /// Where a copy reads neighbours along one of its loops, and lanes far apart along the vector loop, it
    /// takes a line of neighbours at a time, which can be transposed in registers.
    ///
    /// ```text
    /// for k in 0..64 { vector j in 0..16 { p[k, j] = b[j, k] } }
    /// =>
    /// for o in 0..4 { unroll i in 0..16 { vector j in 0..16 { p[16*o + i, j] = b[j, 16*o + i] } } }
    /// ```
    fn by_lines(&mut self, mut loops: Vec<Loop>, read: &Expr, store: Stmt) -> (Vec<Loop>, Stmt) {
        let Expr::Load { tensor, indices } = read else { return (loops, store) };
        let known = self.buffer(*tensor);
        let step = |var: Var| known.step(indices, var);
        let is_free = |var: Var| loops.iter().all(|l| l.bounds.iter().all(|bound| !bound.mentions(var)));
        let far = |l: &Loop| l.kind == LoopKind::Vector && step(l.var).is_none_or(|stride| stride.abs() > 1);
        let near = |l: &Loop| l.is_constant() && l.extent() >= LINE && step(l.var) == Some(1) && is_free(l.var);
        let found = loops.iter().position(near).filter(|_| loops.last().is_some_and(far));
        let Some(at) = found else { return (loops, store) };
        let along = loops[at].clone();
        let (line, within) = (self.new_var("line"), self.new_var("within"));
        let base = Index::var(line).times(LINE);
        let mut bounds = vec![Index::constant(LINE)];
        if along.extent() % LINE != 0 {
            bounds.push(Index::constant(along.extent()).minus(&base));
        }
        let lines = vec![Index::constant((along.extent() + LINE - 1) / LINE)];
        loops[at] = Loop { var: line, bounds: lines, ..along.clone() };
        let last = loops.len() - 1;
        loops.insert(last, Loop { var: within, bounds, kind: LoopKind::Unroll, body: Vec::new() });
        let point = base.plus(&Index::var(within));
        let mut store = store;
        replace_vars_of_head(&mut store, &|v| (v == along.var).then_some(&point));
        (loops, store)
    }

    fn copied_box(
        &mut self,
        tensor: TensorId,
        read: &Expr,
        inside: &[Loop],
        place: Place,
    ) -> Result<(Vec<Stmt>, Expr), Refusal> {
        let mut found = None;
        read.for_each_load(&mut |loaded, indices| {
            if loaded == tensor {
                found = Some(indices.to_vec());
            }
        });
        let original = found.ok_or(Refusal::NotRead { buffer: tensor, which: 0 })?;
        let known = self.buffer(tensor).clone();
        let range =
            |v: Var| inside.iter().find(|l| l.var == v).map_or(Interval::point(0), |l| Interval::below(l.extent()));
        let is_inner = |v: Var| inside.iter().any(|l| l.var == v);
        let (mut shape, mut access, mut vars, mut sources) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut widths = Vec::new();
        for (dim, index) in original.iter().enumerate() {
            if !index.is_affine() {
                return Err(Refusal::BoxOfDivision(tensor));
            }
            let outer = index.substitute(&|v| is_inner(v).then(|| Index::constant(0)));
            let inner = index.clone().minus(&outer);
            let span = inner.range(&range).ok_or(Refusal::BoxTooLarge(tensor))?;
            let var = self.new_var(format!("{}{}", self.buffer(tensor).name, crate::nest::axis_name(dim)));
            shape.push(span.high - span.low + 1);
            widths.push(reach(&inner, inside, self.parameters.len()).map(|reach| reach.plus_constant(1 - span.low)));
            access.push(inner.plus_constant(-span.low));
            sources.push(outer.plus_constant(span.low).plus(&Index::var(var)));
            vars.push(var);
        }
        let dtype = self.read_type(tensor, read);
        let mut held = shape.clone();
        if let (Some(row), Some(Some(_))) = (held.last_mut(), widths.last()) {
            *row = (*row + LINE - 1) / LINE * LINE;
        }
        let packed = self.packed_buffer(tensor, dtype, held, place);
        let (read, is_converted) = match read {
            Expr::Cast(_, inner) => (&**inner, true),
            other => (other, false),
        };
        // what lies outside of the tensor is never used but where a guard says so, and zero is what the guard
        // would give
        let outside = match read {
            Expr::Guard { outside, .. } => (**outside).clone(),
            _ => typed_identity(Combiner::Sum, self.buffer(tensor).dtype),
        };
        let conditions: Vec<Condition> = sources
            .iter()
            .zip(&shape)
            .enumerate()
            .filter(|(dim, (source, most))| {
                let is_below = match known.extents.get(*dim) {
                    None => **most <= known.shape[*dim],
                    extent => extent == widths[*dim].as_ref(),
                };
                let in_lines = dim + 1 == shape.len() && widths[*dim].is_some();
                !(is_below && !in_lines && source.terms().len() == 1 && source.offset() == 0)
            })
            .flat_map(|(dim, (source, _))| Condition::within(source, known.extents.get(dim), known.shape[dim]))
            .collect();
        let is_own = |c: &Condition| {
            let within = |(dim, index): (usize, &Index)| {
                Condition::within(index, known.extents.get(dim), known.shape[dim]).contains(c)
            };
            original.iter().enumerate().any(within)
        };
        if let Expr::Guard { conditions: own, .. } = read
            && !own.iter().all(is_own)
        {
            return Err(Refusal::BoxOfGuard(tensor));
        }
        let value = Expr::guard(conditions, Expr::load(tensor, sources), outside);
        let value = if is_converted { Expr::Cast(dtype, Box::new(value)) } else { value };
        let indices = vars.iter().map(|v| Index::var(*v)).collect();
        let store = Stmt::Store { buffer: packed, indices, value };
        let innermost = vars.last().copied();
        let mut copy = vec![store];
        for ((var, extent), width) in vars.iter().zip(&shape).zip(widths).rev() {
            let is_row = Some(*var) == innermost;
            let is_short = *extent <= MAXIMAL_UNROLLED_ROW.max(MAXIMAL_UNROLLED_BYTES / dtype.bytes() as i64);
            let kind = if is_row && is_short { LoopKind::Vector } else { LoopKind::Serial };
            let bounds = std::iter::once(Index::constant(*extent));
            copy = match width {
                Some(width) if is_row => self.line_by_line(*var, &width, *extent, copy),
                width => vec![Stmt::Loop(Loop { var: *var, bounds: bounds.chain(width).collect(), kind, body: copy })],
            };
        }
        spread(&mut copy, place);
        Ok((copy, Expr::load(packed, access)))
    }

    /// A row of a copy whose width is known only when it runs: whole lines, since vectors are of constant
    /// width.
    fn line_by_line(&mut self, var: Var, width: &Index, most: i64, mut body: Vec<Stmt>) -> Vec<Stmt> {
        let (line, within) = (self.new_var("line"), self.new_var("within"));
        let lines = (most + LINE - 1) / LINE;
        let point = Index::var(line).times(LINE).plus(&Index::var(within));
        replace_vars(&mut body, &|v| (v == var).then_some(&point));
        let vector = Loop { var: within, bounds: vec![Index::constant(LINE)], kind: LoopKind::Vector, body };
        let of_run = width.clone().plus_constant(LINE - 1).floor_div(LINE);
        let bounds = vec![Index::constant(lines), of_run];
        vec![Stmt::Loop(Loop { var: line, bounds, kind: LoopKind::Serial, body: vec![Stmt::Loop(vector)] })]
    }

    /// The type of what is read of a tensor.
    fn read_type(&self, tensor: TensorId, read: &Expr) -> DType {
        if let Expr::Cast(dtype, _) = read { *dtype } else { self.buffer(tensor).dtype }
    }

    fn packed_buffer(&mut self, tensor: TensorId, dtype: DType, shape: Vec<i64>, place: Place) -> TensorId {
        let scope = match place {
            Place::Setup => Scope::Packed,
            Place::Before(_) => Scope::Workspace,
            Place::Inside(_) => Scope::BlockShared,
        };
        let mut name = format!("{}_pack", self.buffer(tensor).name);
        if self.buffers.iter().any(|buffer| buffer.name == name) {
            name = format!("{name}{}", self.buffers.len());
        }
        self.add_buffer(Buffer::new(name, shape, dtype, scope))
    }
}

/// Elements that lie in one cache line.
const LINE: i64 = 16;
/// Rows of a box up to this many elements, or bytes, are copied by written-out vector operations.
const MAXIMAL_UNROLLED_ROW: i64 = 256;
const MAXIMAL_UNROLLED_BYTES: i64 = 1024;

/// Copies run along their innermost loop in vectors.
fn copy_kind(l: &Loop, innermost: bool) -> LoopKind {
    if innermost && l.kind == LoopKind::Vector { LoopKind::Vector } else { LoopKind::Serial }
}

/// What an index is at most in a run, where bounds of its loops are known only then; `None` where none is.
/// Tiles are computed whole, so that only what stands outside of them stops earlier.
fn reach(index: &Index, inside: &[Loop], parameters: usize) -> Option<Index> {
    let is_inner = |v: Var| inside.iter().any(|l| l.var == v);
    let is_parameter = |v: Var| (v.0 as usize) < parameters;
    let of_run = |l: &Loop| -> Option<Index> {
        let is_whole = !matches!(l.kind, LoopKind::Serial | LoopKind::Parallel);
        let sums = |bound: &&Index| bound.any_var(&is_parameter) && inside.iter().all(|l| bound.step(l.var).is_some());
        l.bounds.iter().find(sums).filter(|_| !is_whole).cloned()
    };
    let (mut highest, mut is_known) = (index.clone(), false);
    // a bound of a loop, as in `n - 8*o`, is about the loops around it, too
    for l in inside.iter().rev() {
        let last = match highest.coefficient(l.var) {
            0 => continue,
            ..0 => Index::constant(0),
            1.. => of_run(l).unwrap_or_else(|| Index::constant(l.extent())).plus_constant(-1),
        };
        is_known |= last.any_var(&is_parameter);
        highest = highest.substitute(&|v| (v == l.var).then(|| last.clone()));
    }
    (is_known && !highest.any_var(&is_inner)).then_some(highest)
}

/// What is read, and the conditions that are around it.
fn guarded(read: &Expr) -> (&[Condition], &Expr) {
    match read {
        Expr::Guard { conditions, inside, .. } => (conditions.as_slice(), inside),
        other => (&[], other),
    }
}

/// The copy of a whole operand is shared by the threads.
fn spread(copy: &mut [Stmt], place: Place) {
    if let (Place::Before(_), [Stmt::Loop(l)]) = (place, copy)
        && l.kind == LoopKind::Serial
    {
        l.kind = LoopKind::Parallel;
    }
}

/// The same, where loops of one iteration are around it.
fn spread_within_units(copy: &mut [Stmt], place: Place) {
    match copy {
        [Stmt::Loop(l)] if l.extent() == 1 && l.kind == LoopKind::Serial => spread_within_units(&mut l.body, place),
        other => spread(other, place),
    }
}

/// Puts `access` wherever an expression has `read`.
fn swap(expr: &mut Expr, read: &Expr, access: &Expr) {
    expr.children_mut().for_each(|child| swap(child, read, access));
    if expr == read {
        *expr = access.clone();
    }
}

/// The distinct accesses to a tensor of what is accumulated inside of a loop, each with its guard. Copies
/// that packing has made are stores.
fn reads(l: &Loop, tensor: TensorId, content: Content) -> Vec<Expr> {
    let mut all = Vec::new();
    for_each_stmt(&l.body, &mut |stmt| {
        if let Stmt::Accumulate { value, .. } = stmt {
            collect_reads(value, tensor, content, &mut all);
        }
    });
    let mut distinct = Vec::new();
    for read in all {
        if !distinct.contains(&read) {
            distinct.push(read);
        }
    }
    distinct
}

fn collect_reads(expr: &Expr, tensor: TensorId, content: Content, reads: &mut Vec<Expr>) {
    let is_read = match expr {
        Expr::Cast(_, inner) => content == Content::Converted && is_plain_read(inner, tensor),
        other => is_plain_read(other, tensor),
    };
    match is_read {
        true => reads.push(expr.clone()),
        false => expr.children().for_each(|child| collect_reads(child, tensor, content, reads)),
    }
}

/// Whether an expression is a load of the tensor, perhaps with a guard around it.
fn is_plain_read(expr: &Expr, tensor: TensorId) -> bool {
    match expr {
        Expr::Load { tensor: loaded, .. } => *loaded == tensor,
        Expr::Guard { inside, outside, .. } => {
            matches!(&**inside, Expr::Load { tensor: loaded, .. } if *loaded == tensor) && outside.is_plain()
        }
        _ => false,
    }
}

/// The loops on the way to the accumulation that has an operand, from the outermost, itself included.
fn loops_to_read(l: &Loop, read: &Expr, path: &mut Vec<Loop>) -> bool {
    path.push(l.head());
    for stmt in &l.body {
        if descend(stmt, read, path) {
            return true;
        }
    }
    path.pop();
    false
}

fn descend(stmt: &Stmt, read: &Expr, path: &mut Vec<Loop>) -> bool {
    match stmt {
        Stmt::Loop(l) => loops_to_read(l, read, path),
        Stmt::If { body, .. } => body.iter().any(|s| descend(s, read, path)),
        Stmt::Accumulate { value, .. } => contains(value, read),
        Stmt::Store { .. } => false,
    }
}

fn contains(expr: &Expr, part: &Expr) -> bool {
    expr == part || expr.children().any(|child| contains(child, part))
}
