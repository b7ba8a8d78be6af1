//! The rules that a legal nest keeps, checked without running it.
//!
//! | rule | what it asks |
//! | --- | --- |
//! | [`VerifyRule::Structure`] | variables are bound once where they are used, buffers exist, ranks and types fit |
//! | [`VerifyRule::FirstBound`] | the first bound of a loop is a constant |
//! | [`VerifyRule::Bound`] | the others are sums of enclosing variables, quotients and remainders: nothing is gathered |
//! | [`VerifyRule::VectorBound`] | a vector loop has one bound, at most the lanes given |
//! | [`VerifyRule::VectorBody`] | it holds no loop but a dot product's |
//! | [`VerifyRule::DotShape`] | a dot loop is a sum of products of short numbers, in [`dot`]'s shapes |
//! | [`VerifyRule::UnrollBound`] | an unrolled loop has one bound |
//! | [`VerifyRule::NestedParallel`] | no parallel loop stands inside another |
//! | [`VerifyRule::OutOfBounds`] | an access provably stays inside its buffer; only loads from inputs and constants may be gathered without proof |
//! | [`VerifyRule::ReadOnly`] | inputs and constants are not written |
//! | [`VerifyRule::Setup`] | `setup` touches neither inputs nor outputs, and only it writes packed buffers |
//! | [`VerifyRule::NeverWritten`] | what is read was written somewhere; all outputs and packed buffers are |
//! | [`VerifyRule::SharedWrite`] | what a parallel loop writes to memory that its threads share moves with its variable, unless conditions leave one iteration only |
//! | [`VerifyRule::PrivateEscape`] | a private or register buffer is used inside of parallel loops or outside, not both |
//! | [`VerifyRule::RegisterIndex`] | a register buffer's indices are made of unrolled variables and at most one vector variable |
//! | [`VerifyRule::BlockPlace`] | block loops have one bound and stand inside of nothing but block loops |
//! | [`VerifyRule::ThreadPlace`] | thread loops have one bound and stand inside of a block; one inside of another is all that this one holds |
//! | [`VerifyRule::MatrixPlace`] | matrix loops stand inside of warps, perfectly nested around a product of two operands, or around one store, in the shapes of products |
//! | [`VerifyRule::Threads`] | a block has at most 1024 threads |
//! | [`VerifyRule::OutsideOfThreads`] | in a block, only thread loops write |
//! | [`VerifyRule::ThreadReduction`] | threads that combine their values into one element are neighbours, a power of two up to a warp, and no condition keeps one of them out |
//! | [`VerifyRule::ThreadRegister`] | there, a register buffer's first indices are the variables of the thread loops, and its first extents theirs; loops of a single thread may be missing |
//!
//! Sound for what it proves, but not complete: races, undefined reads and lanes that depend on each other in
//! subtler ways show in [`super::interpret`].

use thiserror::Error;

use super::structure::{self, Flaw};
use super::{Loop, LoopKind, Nest, Scope, Stmt, dot, matrix, tiles};
use crate::target::gpu::WARP;
use crate::workload::prove::Facts;
use crate::workload::{Atom, Expr, Index, Role, TensorId, Var};

/// A rule that a nest breaks.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum VerifyRule {
    #[error(transparent)]
    Structure(#[from] Flaw),
    #[error("the first bound of a loop must be a constant")]
    FirstBound,
    #[error("bound `{bound}` is only known at run time")]
    Bound { bound: String },
    #[error("a vector loop must have one constant bound from 1 to {max_lanes}")]
    VectorBound { max_lanes: i64 },
    #[error("a loop inside of a vector loop")]
    VectorBody,
    #[error("a dot loop must be a sum of products of short numbers, of as many steps as one instruction takes")]
    DotShape,
    #[error("an unrolled loop must have one bound")]
    UnrollBound,
    #[error("a parallel loop inside of another that holds more, or that its bounds depend on")]
    NestedParallel,
    #[error("`{access}` may leave its dimension {dimension}, of extent {extent}")]
    OutOfBounds { access: String, dimension: usize, extent: String },
    #[error("`{buffer}` is an input or constant and must not be written")]
    ReadOnly { buffer: String },
    #[error("`{buffer}` is {scope}: {reason}")]
    Setup { buffer: String, scope: &'static str, reason: &'static str },
    #[error("`{buffer}` is never stored to before it is used")]
    NeverWritten { buffer: String },
    #[error("every iteration of the parallel loop over `{var}` writes to `{access}`")]
    SharedWrite { var: String, access: String },
    #[error("`{buffer}` is private, and used both inside and outside of parallel loops")]
    PrivateEscape { buffer: String },
    #[error("`{access}` is a register, and `{index}` is neither unrolled nor one vector")]
    RegisterIndex { access: String, index: String },
    #[error("a block loop must have one bound and stand inside of nothing but block loops")]
    BlockPlace,
    #[error("a thread loop must have one bound and stand inside of a block, or be all that another thread loop holds")]
    ThreadPlace,
    #[error("matrix loops must stand inside of warps, around a product or one store, in the shapes of products")]
    MatrixPlace,
    #[error("{threads} threads in a block, of at most {MAX_THREADS}")]
    Threads { threads: i64 },
    #[error("`{access}` is written in a block, but in none of its threads")]
    OutsideOfThreads { access: String },
    #[error(
        "`{access}` combines the values of threads that are no neighbours, no power of two up to {WARP}, or kept out by a condition"
    )]
    ThreadReduction { access: String },
    #[error(
        "`{access}` is a register: its first indices must be the variables of the thread loops, and its first extents theirs"
    )]
    ThreadRegister { access: String },
}

/// The most threads of a block, on any GPU.
pub const MAX_THREADS: i64 = 1024;

/// The first rule broken, and where.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{rule}; in `{statement}`{}", inside(.loops))]
pub struct VerifyError {
    pub rule: VerifyRule,
    /// The statement's first line.
    pub statement: String,
    /// The loops and conditions around it, outermost first.
    pub loops: Vec<String>,
}

fn inside(loops: &[String]) -> String {
    loops.iter().rev().map(|head| format!(" inside of `{head}`")).collect()
}

/// Checks all rules; a vector loop may have at most `max_lanes` iterations.
///
/// # Errors
/// The first rule that is broken, in the order of the program.
pub fn verify(nest: &Nest, max_lanes: i64) -> Result<(), VerifyError> {
    structure::check(nest).map_err(|(flaw, statement)| VerifyError {
        rule: flaw.into(),
        statement,
        loops: Vec::new(),
    })?;
    let packed = |buffer: TensorId| nest.buffer(buffer).scope == Scope::Packed;
    let mut written = vec![false; nest.buffers.len()];
    for (is_setup, statements) in [(true, &nest.setup), (false, &nest.body)] {
        for_each_store(statements, &mut |buffer| written[buffer.0 as usize] = true);
        let mut verifier = Verifier {
            nest,
            max_lanes,
            is_setup,
            facts: known_of_parameters(nest),
            loops: Vec::new(),
            path: Vec::new(),
            written: written.clone(),
            used_in_parallel: vec![None; nest.buffers.len()],
        };
        verifier.block(statements)?;
        let due = if is_setup { Scope::Packed } else { Scope::Argument(Role::Output) };
        let unwritten = nest.buffers.iter().zip(&written).find(|(b, written)| b.scope == due && !**written);
        if let Some((buffer, _)) = unwritten {
            let rule = VerifyRule::NeverWritten { buffer: buffer.name.clone() };
            return Err(VerifyError { rule, statement: buffer.to_string(), loops: Vec::new() });
        }
        // only packed buffers outlive setup
        (0..).map(TensorId).zip(&mut written).for_each(|(buffer, written)| *written &= packed(buffer));
    }
    Ok(())
}

struct Verifier<'a> {
    nest: &'a Nest,
    max_lanes: i64,
    is_setup: bool,
    facts: Facts,
    /// Around the statement, outermost first.
    loops: Vec<&'a Loop>,
    /// `loops`, and the conditions between them.
    path: Vec<&'a Stmt>,
    /// By buffer: whether a store to it stands anywhere in this phase, or in `setup` if it is packed.
    written: Vec<bool>,
    /// By buffer: whether it was used inside of a parallel loop, once it was used.
    used_in_parallel: Vec<Option<bool>>,
}

impl<'a> Verifier<'a> {
    fn block(&mut self, statements: &'a [Stmt]) -> Result<(), VerifyError> {
        statements.iter().try_for_each(|statement| {
            self.statement(statement).map_err(|rule| VerifyError {
                rule,
                statement: self.nest.show_statement(statement),
                loops: self.path.iter().map(|outer| self.nest.show_statement(outer)).collect(),
            })?;
            let mark = self.facts.enter();
            self.path.push(statement);
            match statement {
                Stmt::Loop(l) => {
                    self.facts.assume_below(l.var, &l.bounds);
                    self.loops.push(l);
                    self.block(&l.body)?;
                    self.loops.pop();
                }
                Stmt::If { conditions, body } => {
                    self.facts.assume_all(conditions);
                    self.block(body)?;
                }
                Stmt::Store { .. } | Stmt::Accumulate { .. } => {}
            }
            self.path.pop();
            self.facts.leave(mark);
            Ok(())
        })
    }

    /// The rules for one statement, without its body.
    fn statement(&mut self, statement: &'a Stmt) -> Result<(), VerifyRule> {
        match statement {
            Stmt::Loop(l) => self.head(l),
            Stmt::If { conditions, .. } => conditions.iter().try_for_each(|c| self.index(&c.index)),
            Stmt::Store { buffer, indices, value } => {
                self.write(*buffer, indices, &[])?;
                self.expr(value)
            }
            Stmt::Accumulate { buffer, indices, value, .. } => {
                self.read(*buffer, indices, false)?;
                let reducing = self.reducing(*buffer, indices, value)?;
                self.write(*buffer, indices, &reducing)?;
                self.expr(value)
            }
        }
    }

    fn head(&self, l: &Loop) -> Result<(), VerifyRule> {
        if l.bounds.first().is_none_or(|bound| bound.as_constant().is_none()) {
            return Err(VerifyRule::FirstBound);
        }
        if let Some(bound) = l.bounds.iter().find(|bound| bound.has_value()) {
            return Err(VerifyRule::Bound { bound: self.nest.show_index(bound) });
        }
        if self.loops.iter().any(|outer| outer.kind == LoopKind::Vector) && l.kind != LoopKind::Dot {
            return Err(VerifyRule::VectorBody);
        }
        match l.kind {
            LoopKind::Vector if !l.is_constant() || !(1..=self.max_lanes).contains(&l.extent()) => {
                Err(VerifyRule::VectorBound { max_lanes: self.max_lanes })
            }
            LoopKind::Unroll if !l.is_constant() => Err(VerifyRule::UnrollBound),
            LoopKind::Parallel if self.parallel().is_some() && !self.is_shared_with_outer(l) => {
                Err(VerifyRule::NestedParallel)
            }
            LoopKind::Block => self.block_head(l),
            LoopKind::Thread | LoopKind::Warp => self.thread_head(l),
            LoopKind::Matrix => self.matrix_head(l),
            LoopKind::Dot if !dot::is_product(self.nest, l) => Err(VerifyRule::DotShape),
            _ => Ok(()),
        }
    }

    /// Whether all that the loop around holds is this one, whose iterations are the same in each of its own:
    /// threads share the iterations of both.
    fn is_shared_with_outer(&self, l: &Loop) -> bool {
        let Some(Stmt::Loop(outer)) = self.path.last() else { return false };
        outer.kind == LoopKind::Parallel
            && outer.body.len() == 1
            && !l.bounds.iter().any(|bound| bound.mentions(outer.var))
    }

    fn block_head(&self, l: &Loop) -> Result<(), VerifyRule> {
        let is_block = |outer: &&Stmt| matches!(outer, Stmt::Loop(outer) if outer.kind == LoopKind::Block);
        let fits = !self.is_setup && l.is_constant() && self.path.iter().all(is_block);
        if fits { Ok(()) } else { Err(VerifyRule::BlockPlace) }
    }

    fn thread_head(&self, l: &Loop) -> Result<(), VerifyRule> {
        let threads: i64 = self.threads().map(Loop::extent).fold(l.extent(), i64::saturating_mul);
        let inside = self.loops.iter().any(|outer| outer.kind == LoopKind::Block);
        let alone = match self.path.last() {
            _ if self.threads().next().is_none() => true,
            Some(Stmt::Loop(outer)) => outer.kind == l.kind && outer.body.len() == 1,
            _ => false,
        };
        let threads = if l.kind == LoopKind::Warp { threads.saturating_mul(WARP) } else { threads };
        match inside && alone && l.is_constant() {
            false => Err(VerifyRule::ThreadPlace),
            true if threads > MAX_THREADS => Err(VerifyRule::Threads { threads }),
            true => Ok(()),
        }
    }

    /// Matrix loops stand inside of warps, around a product, or around one statement that starts or stores
    /// matrices; on a CPU, they are the work of tile registers.
    fn matrix_head(&self, l: &Loop) -> Result<(), VerifyRule> {
        if self.loops.last().is_some_and(|outer| outer.kind == LoopKind::Matrix) {
            // judged with the outermost
            return Ok(());
        }
        if !self.loops.iter().any(|outer| outer.kind == LoopKind::Block) {
            return if tiles::action(self.nest, l).is_some() { Ok(()) } else { Err(VerifyRule::MatrixPlace) };
        }
        let in_warp = self.threads().next().is_some_and(|outer| outer.kind == LoopKind::Warp);
        let fits = matrix::is_product(l)
            || matrix::sides(l).is_some_and(|(loops, statement)| {
                let [rows, columns] = loops[..] else { return false };
                rows.extent() == matrix::ROWS
                    && matrix::is_width(columns.extent())
                    && self.deals_out(statement, rows, columns)
            });
        if in_warp && fits { Ok(()) } else { Err(VerifyRule::MatrixPlace) }
    }

    /// Whether a statement stores something for each element of a matrix, which every thread can do for its
    /// own.
    fn deals_out(&self, statement: &Stmt, rows: &Loop, columns: &Loop) -> bool {
        let Stmt::Store { buffer, indices, .. } = inner_statement(statement) else { return false };
        let is_register = self.nest.buffer(*buffer).scope == Scope::Register;
        !is_register || matrix::ends_in(indices, rows.var, columns.var)
    }

    /// The loop that private buffers have an instance for each iteration of.
    fn parallel(&self) -> Option<&'a Loop> {
        self.loops.iter().copied().find(|outer| matches!(outer.kind, LoopKind::Parallel | LoopKind::Block))
    }

    /// The thread loops around, outermost first.
    fn threads(&self) -> impl Iterator<Item = &'a Loop> {
        self.loops.iter().copied().filter(|outer| outer.kind.is_in_block())
    }

    fn expr(&mut self, expr: &Expr) -> Result<(), VerifyRule> {
        match expr {
            Expr::Float(_) => Ok(()),
            Expr::Index(index) => self.index(index),
            Expr::Load { tensor, indices } => {
                indices.iter().try_for_each(|index| self.index(index))?;
                self.read(*tensor, indices, true)
            }
            Expr::Guard { conditions, inside, outside } => {
                conditions.iter().try_for_each(|c| self.index(&c.index))?;
                let mark = self.facts.enter();
                self.facts.assume_all(conditions);
                self.expr(inside)?;
                self.facts.leave(mark);
                self.expr(outside)
            }
            other => other.children().try_for_each(|child| self.expr(child)),
        }
    }

    /// The loads inside of gathered indices.
    fn index(&mut self, index: &Index) -> Result<(), VerifyRule> {
        index.terms().iter().try_for_each(|(atom, _)| match atom {
            Atom::Var(_) => Ok(()),
            Atom::FloorDiv(inner, _) | Atom::Modulo(inner, _) => self.index(inner),
            Atom::Value(value) => self.expr(value),
        })
    }

    fn read(&mut self, buffer: TensorId, indices: &[Index], may_gather: bool) -> Result<(), VerifyRule> {
        let scope = self.nest.buffer(buffer).scope;
        let given = matches!(scope, Scope::Argument(Role::Input | Role::Constant));
        if self.is_setup && matches!(scope, Scope::Argument(Role::Input | Role::Output)) {
            return Err(self.misplaced(buffer, "setup must not read it"));
        }
        if !given && !self.written[buffer.0 as usize] {
            return Err(VerifyRule::NeverWritten { buffer: self.nest.buffer(buffer).name.clone() });
        }
        self.access(buffer, indices, may_gather && given)
    }

    /// The thread loops whose iterations an accumulation combines in one element.
    fn reducing(&self, buffer: TensorId, indices: &[Index], value: &Expr) -> Result<Vec<Var>, VerifyRule> {
        if self.nest.buffer(buffer).scope == Scope::Register {
            return Ok(Vec::new());
        }
        let threads: Vec<&Loop> = self.threads().filter(|l| l.extent() > 1).collect();
        let stays = |l: &Loop| !indices.iter().any(|index| self.facts.simplify(index).mentions(l.var));
        let first = threads.iter().position(|l| stays(l)).unwrap_or(threads.len());
        let reducing = &threads[first..];
        if reducing.is_empty() {
            return Ok(Vec::new());
        }
        let together: i64 = reducing.iter().map(|l| l.extent()).product();
        let inside = self.path.iter().rev().take_while(|outer| !matches!(outer, Stmt::Loop(l) if l.kind.is_in_block()));
        let mut reads_itself = false;
        value.for_each_load(&mut |loaded, _| reads_itself |= loaded == buffer);
        let fits = reducing.iter().all(|l| stays(l))
            && together <= WARP
            && together.count_ones() == 1
            && inside.into_iter().all(|outer| matches!(outer, Stmt::Loop(l) if l.is_constant()))
            && !reads_itself;
        match fits {
            true => Ok(reducing.iter().map(|l| l.var).collect()),
            false => Err(VerifyRule::ThreadReduction { access: self.nest.show_access(buffer, indices) }),
        }
    }

    /// `reducing`: loops whose iterations may meet in one element.
    fn write(&mut self, buffer: TensorId, indices: &[Index], reducing: &[Var]) -> Result<(), VerifyRule> {
        let scope = self.nest.buffer(buffer).scope;
        match scope {
            Scope::Argument(Role::Input | Role::Constant) => {
                return Err(VerifyRule::ReadOnly { buffer: self.nest.buffer(buffer).name.clone() });
            }
            Scope::Argument(_) if self.is_setup => return Err(self.misplaced(buffer, "setup must not write it")),
            Scope::Packed if !self.is_setup => return Err(self.misplaced(buffer, "only setup may write it")),
            _ => {}
        }
        indices.iter().try_for_each(|index| self.index(index))?;
        self.access(buffer, indices, false)?;
        let access = || self.nest.show_access(buffer, indices);
        if self.parallel().is_some_and(|l| l.kind == LoopKind::Block) && self.threads().next().is_none() {
            return Err(VerifyRule::OutsideOfThreads { access: access() });
        }
        let spread = self.loops.iter().copied().filter(|l| match l.kind {
            LoopKind::Parallel | LoopKind::Block => !matches!(scope, Scope::BlockShared | Scope::Register),
            LoopKind::Thread | LoopKind::Warp => scope != Scope::Register,
            // what a matrix's elements go to moves with both sides
            LoopKind::Matrix => self.nest.buffer(buffer).scope != Scope::Register,
            LoopKind::Serial | LoopKind::Vector | LoopKind::Unroll | LoopKind::Dot => false,
        });
        for l in spread.filter(|l| l.extent() > 1 && !reducing.contains(&l.var)) {
            let moves = indices.iter().any(|index| self.facts.simplify(index).mentions(l.var));
            if !moves && !self.facts.is_pinned(l.var) {
                return Err(VerifyRule::SharedWrite { var: self.nest.var_name(l.var), access: access() });
            }
        }
        Ok(())
    }

    fn access(&mut self, buffer: TensorId, indices: &[Index], may_gather: bool) -> Result<(), VerifyRule> {
        let nest = self.nest;
        let known = nest.buffer(buffer);
        for (dimension, (index, most)) in indices.iter().zip(known.reach()).enumerate() {
            let trusted = may_gather && index.has_value();
            let is_inside = match known.extents.get(dimension) {
                None => trusted || self.facts.within(index, *most),
                Some(extent) => trusted || self.facts.is_within(index, extent),
            };
            if !is_inside {
                let (access, extent) = (nest.show_access(buffer, indices), nest.show_index(&known.extent(dimension)));
                return Err(VerifyRule::OutOfBounds { access, dimension, extent });
            }
        }
        if matches!(known.scope, Scope::BlockShared | Scope::Register) {
            let inside = self.parallel().is_some();
            if *self.used_in_parallel[buffer.0 as usize].get_or_insert(inside) != inside {
                return Err(VerifyRule::PrivateEscape { buffer: known.name.clone() });
            }
        }
        if known.scope == Scope::Register { self.register(buffer, indices) } else { Ok(()) }
    }

    fn register(&self, buffer: TensorId, indices: &[Index]) -> Result<(), VerifyRule> {
        let shape = &self.nest.buffer(buffer).shape;
        let mut own = 0;
        for l in self.threads() {
            if indices.get(own).and_then(Index::as_var) == Some(l.var) && shape.get(own) == Some(&l.extent()) {
                own += 1;
            } else if l.extent() > 1 {
                return Err(VerifyRule::ThreadRegister { access: self.nest.show_access(buffer, indices) });
            }
        }
        for index in &indices[own..] {
            let simple = self.facts.simplify(index);
            let mut fits = !simple.has_value();
            simple.for_each_var(&mut |var| {
                let bound = self.loops.iter().find(|l| l.var == var);
                fits &= bound.is_some_and(|l| matches!(l.kind, LoopKind::Unroll | LoopKind::Vector | LoopKind::Matrix));
            });
            if !fits {
                let access = self.nest.show_access(buffer, indices);
                return Err(VerifyRule::RegisterIndex { access, index: self.nest.show_index(index) });
            }
        }
        Ok(())
    }

    fn misplaced(&self, buffer: TensorId, reason: &'static str) -> VerifyRule {
        let known = self.nest.buffer(buffer);
        VerifyRule::Setup { buffer: known.name.clone(), scope: known.scope.name(), reason }
    }
}

/// What is known of a nest's parameters.
fn known_of_parameters(nest: &Nest) -> Facts {
    let mut facts = Facts::new(nest.vars.len());
    nest.parameter_ranges().for_each(|(var, range)| facts.assume_range(var, range));
    facts
}

/// What conditions leave a single statement of.
fn inner_statement(statement: &Stmt) -> &Stmt {
    match statement {
        Stmt::If { body, .. } => match body.as_slice() {
            [only] => inner_statement(only),
            _ => statement,
        },
        _ => statement,
    }
}

fn for_each_store(statements: &[Stmt], visit: &mut dyn FnMut(TensorId)) {
    for statement in statements {
        match statement {
            Stmt::Loop(Loop { body, .. }) | Stmt::If { body, .. } => for_each_store(body, visit),
            Stmt::Store { buffer, .. } => visit(*buffer),
            Stmt::Accumulate { .. } => {}
        }
    }
}
