//! Loops, conditions, stores and accumulations.

use inkwell::IntPredicate;
use inkwell::values::PointerValue;

use crate::codegen::emit::hoist::LoopLevel;
use crate::codegen::emit::ir::{Element, Value};
use crate::codegen::emit::{Binding, Emitter, Lanes, Processor};
use crate::codegen::error::CodegenError;
use crate::codegen::gpu::barriers::stmt_id;
use crate::codegen::legalize::any_mentions;
use crate::nest::{Loop, LoopKind, Stmt};
use crate::workload::{Condition, Expr, Index, Interval, TensorId, Var};

type Result<T> = std::result::Result<T, CodegenError>;

impl<'c> Emitter<'_, 'c> {
    pub(super) fn statement(&mut self, statement: &Stmt) -> Result<()> {
        let plan = &self.shared.plan;
        let id = stmt_id(statement);
        if let Some(wait) = plan.barriers.get(&id) {
            self.barrier(*wait)?;
        }
        let outer = self.block.asynchronous;
        self.block.asynchronous |= plan.copies.contains(&id);
        self.plain_statement(statement)?;
        self.block.asynchronous = outer;
        if plan.commits.contains(&id) { self.commit_copies() } else { Ok(()) }
    }

    fn plain_statement(&mut self, statement: &Stmt) -> Result<()> {
        match statement {
            Stmt::Loop(l) => self.loop_(l),
            Stmt::If { conditions, body } => self.conditional(conditions, body),
            Stmt::Store { buffer, indices, value } if self.block.asynchronous => self.copy(*buffer, indices, value),
            Stmt::Store { buffer, indices, value: Expr::Load { tensor, indices: from } }
                if self.copies_bits(*buffer, *tensor) =>
            {
                let bits = self.load_bits(*tensor, from)?;
                let address = self.address(*buffer, indices)?;
                self.store_bits(*buffer, &address, bits)
            }
            Stmt::Store { buffer, indices, value } => {
                let value = match (value, self.stored_type(*buffer)) {
                    // a literal takes the nearest value that its destination can hold
                    (Expr::Index(index), dtype) if let Some(value) = index.as_constant() => {
                        self.ir.integer(Element::I64, dtype.clamp_literal(value))
                    }
                    _ => self.expression(value)?,
                };
                self.store(*buffer, indices, value)
            }
            Stmt::Accumulate { buffer, indices, combiner, value } => {
                self.accumulate(*buffer, indices, *combiner, value)
            }
        }
    }

    fn loop_(&mut self, l: &Loop) -> Result<()> {
        let extent = l.extent();
        if extent == i64::MAX {
            return Err(CodegenError::Malformed("a loop without a constant bound".into()));
        }
        if extent <= 0 {
            return Ok(());
        }
        match l.kind {
            LoopKind::Vector if self.block.asynchronous && !self.copies_neighbours(l)? => self.unrolled_loop(l, extent),
            LoopKind::Vector => self.vector_loop(l),
            LoopKind::Parallel => self.parallel_loop(l),
            LoopKind::Block => Err(CodegenError::Malformed("a block loop inside of a kernel".into())),
            LoopKind::Thread => self.phase(l),
            LoopKind::Warp => Err(CodegenError::Malformed("a warp loop that was not dealt out".into())),
            LoopKind::Matrix if matches!(self.shared.processor, Processor::Cpu(_)) => self.tile(l),
            LoopKind::Matrix => self.matrix_product(l),
            LoopKind::Dot => self.dot_product(l),
            LoopKind::Unroll => self.unrolled_loop(l, extent),
            LoopKind::Serial if extent == 1 => self.single_iteration(l, 0),
            LoopKind::Serial => {
                let zero = self.ir.integer(Element::I64, 0);
                let end = self.minimum(&l.bounds)?;
                self.counted_loop(l, zero, end)
            }
        }
    }

    /// Reduction steps over a register tile that leaves no room for more than its operands are kept apart:
    /// what two steps both read, as the window of a convolution does, is loaded twice rather than spilled. On
    /// a GPU that is its assembler's business.
    fn unrolled_loop(&mut self, l: &Loop, extent: i64) -> Result<()> {
        if self.store_as_row(l)? || self.store_in_groups(l)? {
            return Ok(());
        }
        if let Some(block) = self.block(l).filter(|_| !self.block.asynchronous) {
            return self.store_block(l, &block);
        }
        let full = self.shared.processor.vector_registers() / 2;
        let apart = matches!(self.shared.processor, Processor::Cpu(_))
            && accumulates_across(&l.body, l.var, &|buffer| self.shared.slots.contains_key(&buffer))
            && accumulations(&l.body) > full;
        for i in 0..extent {
            if apart && i > 0 {
                self.ir.keep_loads_apart()?;
            }
            self.single_iteration(l, i)?;
        }
        Ok(())
    }

    /// All iterations, one after the other.
    pub(super) fn written_out(&mut self, l: &Loop) -> Result<()> {
        (0..l.extent()).try_for_each(|i| self.single_iteration(l, i))
    }

    /// The iteration `i`, behind a check of the bounds that are not constant.
    fn single_iteration(&mut self, l: &Loop, i: i64) -> Result<()> {
        self.bind(l.var, Binding::Constant(i), Interval::point(i))?;
        // i < bound
        let conditions: Vec<Condition> = l.bounds[1..]
            .iter()
            .map(|bound| Condition { index: bound.clone().plus_constant(-i), low: 1, high: i64::MAX })
            .collect();
        self.conditional(&conditions, &l.body)?;
        self.unbind(l.var);
        Ok(())
    }

    fn counted_loop(&mut self, l: &Loop, begin: Value<'c>, end: Value<'c>) -> Result<()> {
        let steps = (!holds_counted_loop(&l.body)).then_some(l.var);
        self.counted((l.var, steps), begin, end, |this, value| {
            this.bind(l.var, Binding::Scalar(value, this.levels.len() - 1), Interval::below(l.extent()))?;
            this.prefetch(l)?;
            this.statements_apart(&l.body)?;
            this.unbind(l.var);
            Ok(())
        })
    }

    /// One loop over all iterations of several, the last of them innermost, with the number of iterations of
    /// each.
    fn counted_loops(&mut self, loops: &[&Loop], counts: &[Value<'c>], begin: Value<'c>, end: Value<'c>) -> Result<()> {
        let (Some(first), Some(last)) = (loops.first(), loops.last()) else { return Ok(()) };
        self.counted((first.var, None), begin, end, |this, value| {
            let level = this.levels.len() - 1;
            let mut rest = value;
            for (l, count) in loops.iter().zip(counts).skip(1).rev() {
                let digit = this.at_level(level, |this| this.ir.urem(rest, *count))?;
                rest = this.at_level(level, |this| this.ir.udiv(rest, *count))?;
                this.bind(l.var, Binding::Scalar(digit, level), Interval::below(l.extent()))?;
            }
            this.bind(first.var, Binding::Scalar(rest, level), Interval::below(first.extent()))?;
            this.statements_apart(&last.body)?;
            loops.iter().for_each(|l| this.unbind(l.var));
            Ok(())
        })
    }

    /// `for i in begin..end`, tested at the bottom, which is the form that LLVM's loop passes want. With a
    /// variable that steps, pointers may step along.
    fn counted(
        &mut self,
        (var, steps): (Var, Option<Var>),
        begin: Value<'c>,
        end: Value<'c>,
        body_of: impl FnOnce(&mut Self, Value<'c>) -> Result<()>,
    ) -> Result<()> {
        let name = self.shared.nest.vars.get(var.0 as usize).map_or("loop", String::as_str).to_string();
        let (body, exit) = (self.new_block(&name), self.new_block(&format!("{name}.end")));
        let before = self.current_block()?;
        if surely_less(begin, end) {
            self.ir.builder.build_unconditional_branch(body)?;
        } else {
            let enters = self.ir.icmp(IntPredicate::SLT, begin, end)?;
            self.ir.builder.build_conditional_branch(enters.into_int_value(), body, exit)?;
        }
        self.ir.builder.position_at_end(body);
        let phi = self.ir.builder.build_phi(self.shared.context.i64_type(), &name)?;
        phi.add_incoming(&[(&begin.into_int_value(), before)]);
        let from_zero = begin.into_int_value().is_null();
        self.levels.push(match steps.filter(|_| from_zero) {
            Some(var) => LoopLevel::stepping(body, var, before),
            None => LoopLevel::new(body),
        });
        body_of(self, phi.as_basic_value())?;
        self.step_pointers()?;
        self.levels.pop();
        let next = self.ir.add_nsw(phi.as_basic_value(), self.ir.integer(Element::I64, 1))?;
        phi.add_incoming(&[(&next.into_int_value(), self.current_block()?)]);
        let again = self.ir.icmp(IntPredicate::SLT, next, end)?;
        self.ir.builder.build_conditional_branch(again.into_int_value(), body, exit)?;
        self.ir.builder.position_at_end(exit);
        Ok(())
    }

    fn vector_loop(&mut self, l: &Loop) -> Result<()> {
        if self.store_as_row(l)? {
            return Ok(());
        }
        let extent = u32::try_from(l.extent()).map_err(|_| CodegenError::Malformed("a vector loop too wide".into()))?;
        self.lanes = Some(Lanes { var: l.var, extent, width: extent.next_power_of_two() });
        self.bind(l.var, Binding::Lane, Interval::below(l.extent()))?;
        // lane < bound
        let conditions: Vec<Condition> = l.bounds[1..]
            .iter()
            .map(|bound| Condition { index: bound.clone().minus(&Index::var(l.var)), low: 1, high: i64::MAX })
            .collect();
        self.conditional(&conditions, &l.body)?;
        self.unbind(l.var);
        self.lanes = None;
        Ok(())
    }

    /// Moves the body into a function of its own and lets the runtime call it. Parallel loops that are all
    /// that such a loop holds are shared out together with it.
    ///
    /// ```text
    /// context = { arguments, workspace, values of the enclosing loops' variables }
    /// tilescribe_parallel_for(body, &context, iterations, threads)
    /// ```
    fn parallel_loop(&mut self, l: &Loop) -> Result<()> {
        let mut loops = vec![l];
        while let [Stmt::Loop(inner)] = loops[loops.len() - 1].body.as_slice()
            && inner.kind == LoopKind::Parallel
        {
            loops.push(inner);
        }
        let counts = loops.iter().map(|l| self.minimum(&l.bounds)).collect::<Result<Vec<_>>>()?;
        let mut count = counts[0];
        for other in &counts[1..] {
            count = self.ir.mul_nsw(count, *other)?;
        }
        let captured: Vec<_> = self
            .variables
            .order
            .iter()
            .copied()
            .filter(|v| matches!(self.variables.bindings[v.0 as usize], Binding::Scalar(..)))
            .collect();
        let pointer_type = self.shared.context.ptr_type(inkwell::AddressSpace::default());
        let integer = self.shared.context.i64_type();
        let mut fields = vec![pointer_type.into(), pointer_type.into()];
        fields.extend(captured.iter().map(|_| inkwell::types::BasicTypeEnum::from(integer)));
        fields.extend(counts[1..].iter().map(|_| inkwell::types::BasicTypeEnum::from(integer)));
        let record = self.shared.context.struct_type(&fields, false);

        let context = self.entry_variable(record.into(), "context")?;
        let mut values: Vec<Value> = vec![self.frame.arguments.into(), self.frame.workspace.into()];
        for var in &captured {
            if let Binding::Scalar(value, _) = self.variables.bindings[var.0 as usize] {
                values.push(value);
            }
        }
        values.extend(&counts[1..]);
        for (number, value) in values.into_iter().enumerate() {
            let field = self.ir.builder.build_struct_gep(record, context, number as u32, "")?;
            self.ir.builder.build_store(field, value)?;
        }

        let function = self.body_function();
        self.parallel_body(&loops, function, record, &captured)?;
        let body: PointerValue = function.as_global_value().as_pointer_value();
        let Processor::Cpu(target) = self.shared.processor else {
            return Err(CodegenError::Malformed("a parallel loop in code for a GPU".into()));
        };
        let threads = self.ir.integer(Element::I64, i64::from(target.cores.max(1)));
        let arguments = [body.into(), context.into(), count.into(), threads.into()];
        self.ir.builder.build_call(self.parallel_for(), &arguments, "")?;
        self.forget_shapes()
    }

    fn parallel_body(
        &mut self,
        loops: &[&Loop],
        function: inkwell::values::FunctionValue<'c>,
        record: inkwell::types::StructType<'c>,
        captured: &[crate::workload::Var],
    ) -> Result<()> {
        let parameters = function.get_params();
        let [context, begin, end, thread] = parameters[..] else {
            return Err(CodegenError::Internal("a parallel body takes four parameters".into()));
        };
        let context = context.into_pointer_value();
        // placeholders until the context is read
        let mut inner = self.body_emitter(function, context, context);
        let mut loaded = Vec::new();
        for (number, field_type) in record.get_field_types().into_iter().enumerate() {
            let field = inner.ir.builder.build_struct_gep(record, context, number as u32, "")?;
            loaded.push(inner.ir.builder.build_load(field_type, field, "")?);
        }
        inner.frame.arguments = loaded[0].into_pointer_value();
        inner.frame.workspace = loaded[1].into_pointer_value();
        inner.variables.bindings.clone_from(&self.variables.bindings);
        inner.variables.ranges.clone_from(&self.variables.ranges);
        inner.variables.order.clone_from(&self.variables.order);
        for (var, value) in captured.iter().zip(&loaded[2..]) {
            inner.variables.bindings[var.0 as usize] = Binding::Scalar(*value, 0);
        }
        inner.materialize_buffers(thread)?;
        match loops {
            [l] => inner.counted_loop(l, begin, end)?,
            // the outermost count is what the division leaves
            _ => inner.counted_loops(loops, &loaded[1 + captured.len()..], begin, end)?,
        }
        inner.finish()
    }

    /// Runs the body where the conditions hold: a branch for those that are equal in all lanes, a mask for
    /// the others.
    fn conditional(&mut self, conditions: &[Condition], body: &[Stmt]) -> Result<()> {
        let (masks, branches): (Vec<Condition>, Vec<Condition>) = conditions
            .iter()
            .cloned()
            .partition(|c| self.lane_var().is_some_and(|var| any_mentions(std::slice::from_ref(c), var)));
        let branch = match self.conditions(&branches)? {
            Truth::Always => None,
            Truth::Never => return Ok(()),
            Truth::Depends(condition) => Some(condition),
        };
        let after = match branch {
            None => None,
            Some(condition) => {
                let (yes, after) = (self.new_block("if"), self.new_block("if.end"));
                self.ir.builder.build_conditional_branch(condition.into_int_value(), yes, after)?;
                self.ir.builder.position_at_end(yes);
                Some(after)
            }
        };
        let outer = self.predicate;
        match self.conditions(&masks)? {
            Truth::Always => self.statements(body)?,
            Truth::Never => {}
            Truth::Depends(mask) => {
                self.narrow_predicate(mask)?;
                self.statements(body)?;
            }
        }
        self.predicate = outer;
        if let Some(after) = after {
            self.execute_wide_products()?;
            self.ir.builder.build_unconditional_branch(after)?;
            self.ir.builder.position_at_end(after);
        }
        Ok(())
    }

    /// The condition of the first of two neighbours, if the second holds wherever the first does not. Its
    /// parts are loop variables only, which no body changes.
    pub(super) fn alternative<'s>(&self, first: &'s [Condition], second: &[Condition]) -> Option<&'s Condition> {
        let ([one], [other]) = (first, second) else { return None };
        let moves = self.lane_var().is_some_and(|var| one.index.mentions(var));
        if moves || one.index != other.index || !one.index.is_affine() {
            return None;
        }
        let Interval { low, high } = one.index.range(&|var| self.range(var))?;
        let below_first = one.low <= low && one.high == other.low && high < other.high;
        let above_first = other.low <= low && other.high == one.low && high < one.high;
        (below_first || above_first).then_some(one)
    }

    /// ```text
    /// before: if 0 <= i < 1 { r = 0 }  if 1 <= i < 12 { r = t[i] }      where 0 <= i < 12
    /// after:  if i < 1 { r = 0 } else { r = t[i] }
    /// ```
    ///
    /// So that LLVM sees `r` set on every path: it would keep all registers alive through the loops around it
    /// otherwise.
    pub(super) fn either(&mut self, condition: &Condition, body: &[Stmt], otherwise: &[Stmt]) -> Result<()> {
        let holds = match self.conditions(std::slice::from_ref(condition))? {
            Truth::Always => return self.statements(body),
            Truth::Never => return self.statements(otherwise),
            Truth::Depends(holds) => holds,
        };
        let (yes, no, after) = (self.new_block("if"), self.new_block("else"), self.new_block("if.end"));
        self.ir.builder.build_conditional_branch(holds.into_int_value(), yes, no)?;
        for (block, statements) in [(yes, body), (no, otherwise)] {
            self.ir.builder.position_at_end(block);
            self.statements_apart(statements)?;
            self.ir.builder.build_unconditional_branch(after)?;
        }
        self.ir.builder.position_at_end(after);
        Ok(())
    }

    /// The smallest of the bounds.
    fn minimum(&mut self, bounds: &[Index]) -> Result<Value<'c>> {
        let mut smallest = None;
        for bound in bounds {
            let value = self.scalar_index(bound)?;
            smallest = Some(match smallest {
                None => value,
                Some(other) => {
                    let less = self.ir.icmp(IntPredicate::SLT, value, other)?;
                    self.ir.select(less, value, other)?
                }
            });
        }
        smallest.ok_or_else(|| CodegenError::Malformed("a loop without bounds".into()))
    }

    pub(super) fn current_block(&self) -> Result<inkwell::basic_block::BasicBlock<'c>> {
        self.ir.builder.get_insert_block().ok_or_else(|| CodegenError::Internal("no block to write into".into()))
    }
}

/// Whether all iterations of a loop over `var` accumulate into the same registers.
fn accumulates_across(statements: &[Stmt], var: Var, is_register: &dyn Fn(TensorId) -> bool) -> bool {
    statements.iter().any(|statement| match statement {
        Stmt::Loop(Loop { body, .. }) | Stmt::If { body, .. } => accumulates_across(body, var, is_register),
        Stmt::Accumulate { buffer, indices, .. } => {
            is_register(*buffer) && !indices.iter().any(|index| index.mentions(var))
        }
        Stmt::Store { .. } => false,
    })
}

/// How many accumulations are written out, each of a vector or a scalar.
fn accumulations(statements: &[Stmt]) -> i64 {
    let count = |statement: &Stmt| match statement {
        Stmt::Loop(l) if l.kind == LoopKind::Unroll => l.extent().saturating_mul(accumulations(&l.body)),
        Stmt::Loop(Loop { body, .. }) | Stmt::If { body, .. } => accumulations(body),
        Stmt::Accumulate { .. } => 1,
        Stmt::Store { .. } => 0,
    };
    statements.iter().map(count).fold(0, i64::saturating_add)
}

/// Whether a loop that is neither written out nor in vectors is among the statements, or inside of them.
pub(super) fn holds_counted_loop(statements: &[Stmt]) -> bool {
    statements.iter().any(|statement| match statement {
        Stmt::Loop(l) => match l.kind {
            LoopKind::Serial | LoopKind::Parallel if l.extent() > 1 => true,
            _ => holds_counted_loop(&l.body),
        },
        Stmt::If { body, .. } => holds_counted_loop(body),
        Stmt::Store { .. } | Stmt::Accumulate { .. } => false,
    })
}

/// Whether two constants, and the first is the smaller one.
fn surely_less(a: Value<'_>, b: Value<'_>) -> bool {
    let constant = |value: Value<'_>| value.into_int_value().get_sign_extended_constant();
    constant(a).zip(constant(b)).is_some_and(|(a, b)| a < b)
}

/// What is known of a condition when the code is written.
pub(super) enum Truth<'c> {
    Always,
    Never,
    Depends(Value<'c>),
}
