//! Tile registers: which one holds what, and the instructions that move and multiply tiles.
//!
//! LLVM allocates these registers only where a program is written with values of their own; here each has its
//! number already. Their shapes are set for all of them at once, which clears them, so that it happens where
//! sums start: a *region* of statements, from the first that starts a sum to the last that takes one, has its
//! own shapes, and a function sets them where they are not those that it has set last.

use std::collections::HashMap;
use std::rc::Rc;

use inkwell::AddressSpace;
use inkwell::IntPredicate;
use inkwell::basic_block::BasicBlock;
use inkwell::module::Linkage;
use inkwell::values::PointerValue;

use crate::codegen::emit::ir::{Element, Value};
use crate::codegen::emit::{Binding, Emitter, Processor};
use crate::codegen::error::CodegenError;
use crate::codegen::gpu::barriers::stmt_id;
use crate::nest::tiles::{Action, Tile, action, variables};
use crate::nest::{Loop, LoopKind, Nest, Stmt};
use crate::target::TILE_REGISTERS;
use crate::workload::{Index, Interval, TensorId, Var};

type Result<T> = std::result::Result<T, CodegenError>;

/// Bytes that say the shapes of all registers, and the number of the way in which they do (Intel's manual,
/// `LDTILECFG`).
const SHAPES_BYTES: usize = 64;
const PALETTE: u8 = 1;
/// Where in them the bytes of a register's rows stand, 16 bits each, and where its rows.
const ROW_BYTES_AT: usize = 16;
const ROWS_AT: usize = 48;

/// The registers of a region.
#[derive(Default, Debug)]
pub(super) struct Registers {
    /// What is in registers, and in which of them: some hold one operand after the other.
    held: Vec<(Content, u8)>,
    /// By number.
    shapes: Vec<Shape>,
}

/// Rows of a tile, and the bytes of each of them.
type Shape = (i64, i64);
type Content = (Held, Shape);

/// What a register is for.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Held {
    /// Sums of a buffer, by the first of them.
    Sums(TensorId, Vec<i64>),
    /// The operand of sums from this row on, of all columns, or from this column on.
    Rows(Vec<i64>),
    Column(i64),
}

/// By the first statement of a region, told apart by its address: its registers.
pub(super) type Regions = HashMap<usize, Rc<Registers>>;

/// Where a function stands with its tile registers.
#[derive(Default)]
pub(super) struct State<'c> {
    /// Those of the current region.
    registers: Rc<Registers>,
    /// Shapes that the function sets somewhere; and a variable with the number of those that are set, from 1,
    /// or 0.
    shapes: Vec<[u8; SHAPES_BYTES]>,
    set: Option<PointerValue<'c>>,
    /// Operands in registers: the block of instructions that loaded them, and what they are.
    loaded: HashMap<u8, (BasicBlock<'c>, TensorId, Vec<Index>)>,
}

/// The regions of a function's statements.
pub(super) fn plan(nest: &Nest, body: &[Stmt]) -> Result<Regions> {
    let mut found = HashMap::new();
    visit(nest, body, &mut found)?;
    Ok(found)
}

fn visit(nest: &Nest, body: &[Stmt], found: &mut Regions) -> Result<()> {
    // the first statement of a region, and whether it has multiplied yet
    let mut open: Option<(usize, bool)> = None;
    for (at, statement) in body.iter().enumerate() {
        let (starts, multiplies) = uses(nest, statement);
        match (starts, multiplies) {
            (true, false) if open.is_none_or(|(_, has_multiplied)| has_multiplied) => {
                open = Some((at, false));
                let region = region_from(nest, &body[at..]);
                found.insert(stmt_id(statement), Rc::new(Registers::of(nest, region)?));
            }
            (false, true) => open = open.map(|(at, _)| (at, true)),
            (true, true) => {
                if let Stmt::Loop(Loop { body, .. }) | Stmt::If { body, .. } = statement {
                    visit(nest, body, found)?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Up to where the next region starts; what is a region by itself does not belong to it.
fn region_from<'a>(nest: &Nest, body: &'a [Stmt]) -> Vec<&'a Stmt> {
    let mut has_multiplied = false;
    let mut region = Vec::new();
    for statement in body {
        match uses(nest, statement) {
            (true, true) => continue,
            (true, false) if has_multiplied => break,
            (false, true) => has_multiplied = true,
            _ => {}
        }
        region.push(statement);
    }
    region
}

/// Whether a statement starts sums, and whether it multiplies.
fn uses(nest: &Nest, statement: &Stmt) -> (bool, bool) {
    let (mut starts, mut multiplies) = (false, false);
    for_each_action(nest, statement, &mut Vec::new(), &mut |action, _| match action {
        Action::Start { .. } | Action::Fetch { .. } => starts = true,
        Action::Multiply { .. } => multiplies = true,
        Action::Store { .. } => {}
    });
    (starts, multiplies)
}

/// Takes an action, and the values of variables around it.
type Visit<'a> = &'a mut dyn FnMut(Action<'_>, &[(Var, i64)]);

/// What tile registers do in a statement, with the values of the variables whose loops are written out.
fn for_each_action(nest: &Nest, statement: &Stmt, known: &mut Vec<(Var, i64)>, visit: Visit<'_>) {
    match statement {
        Stmt::Loop(l) if l.kind == LoopKind::Matrix => {
            if let Some(action) = action(nest, l) {
                visit(action, known);
            }
        }
        Stmt::Loop(l) if l.kind == LoopKind::Unroll => {
            for iteration in 0..l.extent() {
                known.push((l.var, iteration));
                l.body.iter().for_each(|inner| for_each_action(nest, inner, known, visit));
                known.pop();
            }
        }
        Stmt::Loop(Loop { body, .. }) | Stmt::If { body, .. } => {
            body.iter().for_each(|inner| for_each_action(nest, inner, known, visit));
        }
        Stmt::Store { .. } | Stmt::Accumulate { .. } => {}
    }
}

impl Registers {
    fn of(nest: &Nest, region: Vec<&Stmt>) -> Result<Registers> {
        let (mut sums, mut rows, mut columns) = (Vec::new(), Vec::new(), Vec::new());
        for statement in region {
            for_each_action(nest, statement, &mut Vec::new(), &mut |action, known| {
                let value = |var| known.iter().find(|(of, _)| *of == var).map(|(_, value)| *value);
                let (Action::Start { sums: of }
                | Action::Multiply { sums: of, .. }
                | Action::Store { sums: of, .. }
                | Action::Fetch { sums: of, .. }) = &action;
                let place = place(of, &value);
                if let (Action::Multiply { operands: [first, second], .. }, Some(place)) = (&action, &place) {
                    let [of_rows, of_column] = operands_of(place);
                    add(&mut rows, (of_rows, (first.rows, first.row_bytes)));
                    add(&mut columns, (of_column, (second.rows, second.row_bytes)));
                }
                add(&mut sums, place.map(|place| (Held::Sums(of.buffer, place), (of.rows, of.row_bytes))));
            });
        }
        let moves = || CodegenError::Malformed("a tile that is not always the same part of its buffer".into());
        let sums: Vec<Content> = sums.into_iter().collect::<Option<_>>().ok_or_else(moves)?;
        let mut found = Registers::default();
        sums.into_iter().for_each(|one| found.hold(one));
        let (fewer, more) = if rows.len() <= columns.len() { (rows, columns) } else { (columns, rows) };
        fewer.into_iter().for_each(|one| found.hold(one));
        found.pass(more);
        match found.shapes.len() <= TILE_REGISTERS {
            true => Ok(found),
            false => Err(CodegenError::Malformed("more tiles than there are registers for them".into())),
        }
    }

    /// Gives something a register of its own.
    fn hold(&mut self, one: Content) {
        // more than there are is an error in the end
        let number = u8::try_from(self.shapes.len()).unwrap_or(u8::MAX);
        self.shapes.push(one.1);
        self.held.push((one, number));
    }

    /// Gives operands the registers that are left: each its own, or else those of equal shapes several in
    /// turn.
    fn pass(&mut self, operands: Vec<Content>) {
        let free = TILE_REGISTERS.saturating_sub(self.shapes.len());
        if operands.len() <= free {
            operands.into_iter().for_each(|one| self.hold(one));
            return;
        }
        let mut shapes: Vec<(Shape, usize)> = Vec::new();
        for (_, shape) in &operands {
            match shapes.iter_mut().find(|(known, _)| known == shape) {
                Some((_, count)) => *count += 1,
                None => shapes.push((*shape, 1)),
            }
        }
        // one for each, and the rest for the shape with the most tiles
        let others = free.saturating_sub(shapes.len());
        shapes.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        for (at, (shape, count)) in shapes.into_iter().enumerate() {
            let first = self.shapes.len();
            let registers = if at == 0 { count.min(1 + others) } else { 1 };
            self.shapes.extend(vec![shape; registers]);
            let of_shape = operands.iter().filter(|(_, of)| *of == shape);
            for (at, one) in of_shape.enumerate() {
                self.held.push((one.clone(), u8::try_from(first + at % registers).unwrap_or(u8::MAX)));
            }
        }
    }

    fn number(&self, of: &Content) -> Result<u8> {
        let found = self.held.iter().find(|(one, _)| one == of).map(|(_, number)| *number);
        found.ok_or_else(|| CodegenError::Malformed("a tile outside of the statements that start it".into()))
    }

    fn shapes(&self) -> [u8; SHAPES_BYTES] {
        let mut shapes = [0; SHAPES_BYTES];
        shapes[0] = PALETTE;
        for (number, (rows, bytes)) in self.shapes.iter().enumerate() {
            // both are at most those of a tile
            shapes[ROW_BYTES_AT + 2 * number] = *bytes as u8;
            shapes[ROWS_AT + number] = *rows as u8;
        }
        shapes
    }
}

/// Puts something behind others, if it is not among them.
fn add<T: PartialEq>(all: &mut Vec<T>, one: T) {
    if !all.contains(&one) {
        all.push(one);
    }
}

/// Where the first sum of a tile is in its buffer; `None` where that is not a constant place. `known` are
/// variables other than those of its sides.
fn place(tile: &Tile<'_>, known: &dyn Fn(Var) -> Option<i64>) -> Option<Vec<i64>> {
    let others = tile.indices.len().checked_sub(2)?;
    let first = |(at, index): (usize, &Index)| {
        let index = index.substitute(&|var| known(var).map(Index::constant));
        let sides = usize::from(at >= others);
        (index.is_affine() && index.terms().len() == sides).then(|| index.offset())
    };
    tile.indices.iter().enumerate().map(first).collect()
}

/// What the operands are for of the sums at a place.
fn operands_of(place: &[i64]) -> [Held; 2] {
    let (column, rows) = place.split_last().map_or((0, place), |(column, rows)| (*column, rows));
    [Held::Rows(rows.to_vec()), Held::Column(column)]
}

impl<'c> Emitter<'_, 'c> {
    /// Sets the registers' shapes where a region begins.
    pub(super) fn enter_region(&mut self, statement: &Stmt) -> Result<()> {
        let Some(registers) = self.shared.regions.get(&stmt_id(statement)) else { return Ok(()) };
        self.tiles.registers = Rc::clone(registers);
        self.tiles.loaded.clear();
        let shapes = registers.shapes();
        let number = match self.tiles.shapes.iter().position(|known| *known == shapes) {
            Some(at) => at,
            None => {
                self.tiles.shapes.push(shapes);
                self.tiles.shapes.len() - 1
            }
        };
        let number = self.ir.integer(Element::I64, number as i64 + 1);
        let set = self.shapes_that_are_set()?;
        let current = self.ir.builder.build_load(self.ir.scalar_type(Element::I64), set, "")?;
        let differs = self.ir.icmp(IntPredicate::NE, current, number)?;
        let (load, after) = (self.new_block("shapes"), self.new_block("shapes.end"));
        self.ir.builder.build_conditional_branch(differs.into_int_value(), load, after)?;
        self.ir.builder.position_at_end(load);
        let shapes = self.constant_shapes(&shapes);
        self.ir.intrinsic_call(self.shared.module, "llvm.x86.ldtilecfg", &[], &[shapes.into()])?;
        self.ir.builder.build_store(set, number)?;
        self.ir.builder.build_unconditional_branch(after)?;
        self.ir.builder.position_at_end(after);
        Ok(())
    }

    /// Others may have set shapes of their own.
    pub(super) fn forget_shapes(&mut self) -> Result<()> {
        if !self.shared.regions.is_empty() {
            let set = self.shapes_that_are_set()?;
            self.ir.builder.build_store(set, self.ir.integer(Element::I64, 0))?;
        }
        Ok(())
    }

    /// Leaves the registers as they are for who does not use them, at the end of a function.
    pub(super) fn release_tiles(&self) -> Result<()> {
        if !self.tiles.shapes.is_empty() {
            self.ir.intrinsic_call(self.shared.module, "llvm.x86.tilerelease", &[], &[])?;
        }
        Ok(())
    }

    fn shapes_that_are_set(&mut self) -> Result<PointerValue<'c>> {
        if let Some(set) = self.tiles.set {
            return Ok(set);
        }
        let set = self.entry_variable(self.ir.scalar_type(Element::I64), "shapes.set")?;
        let here = self.current_block()?;
        self.ir.builder.position_at_end(self.frame.entry);
        self.ir.builder.build_store(set, self.ir.integer(Element::I64, 0))?;
        self.ir.builder.position_at_end(here);
        self.tiles.set = Some(set);
        Ok(set)
    }

    fn constant_shapes(&self, shapes: &[u8; SHAPES_BYTES]) -> PointerValue<'c> {
        let byte = self.shared.context.i8_type();
        let bytes: Vec<_> = shapes.iter().map(|value| byte.const_int(u64::from(*value), false)).collect();
        let of = byte.array_type(SHAPES_BYTES as u32);
        let global = self.shared.module.add_global(of, Some(AddressSpace::default()), "shapes");
        global.set_linkage(Linkage::Private);
        global.set_constant(true);
        global.set_initializer(&byte.const_array(&bytes));
        global.as_pointer_value()
    }

    /// The work of tile registers that loops stand for.
    pub(super) fn tile(&mut self, l: &Loop) -> Result<()> {
        let nest = self.shared.nest;
        let Some(action) = action(nest, l) else {
            return Err(CodegenError::Malformed("matrix loops that no tile register executes".into()));
        };
        let sides = variables(l);
        for var in &sides {
            self.bind(*var, Binding::Constant(0), Interval::point(0))?;
        }
        self.act(&action, &sides)?;
        sides.iter().rev().for_each(|var| self.unbind(*var));
        Ok(())
    }

    fn act(&mut self, action: &Action<'_>, sides: &[Var]) -> Result<()> {
        match action {
            Action::Start { sums } => {
                let register = self.register_of(sums)?;
                self.tile_instruction("llvm.x86.tilezero", &[register])
            }
            Action::Store { sums, to } => {
                let register = self.register_of(sums)?;
                self.tiles.loaded.clear();
                self.move_tile("llvm.x86.tilestored64", register, to)
            }
            Action::Fetch { sums, from } => {
                let register = self.register_of(sums)?;
                self.move_tile("llvm.x86.tileloadd64", register, from)
            }
            Action::Multiply { sums, operands: [first, second] } => {
                let into = self.register_of(sums)?;
                let [rows, column] = operands_of(&self.place_of(sums)?);
                let first_register = self.operand_in(rows, first, sides)?;
                let second_register = self.operand_in(column, second, sides)?;
                let types = [first, second].map(|tile| self.shared.nest.buffer(tile.buffer).dtype);
                let Processor::Cpu(target) = self.shared.processor else {
                    return Err(CodegenError::Malformed("tile registers of a GPU".into()));
                };
                let found = target.architecture.tile_product(types, &|name| target.has_feature(name));
                let product = found.ok_or_else(|| CodegenError::Malformed("no product of such tiles".into()))?;
                self.tile_instruction(product.intrinsic, &[into, first_register, second_register])
            }
        }
    }

    fn register_of(&self, sums: &Tile<'_>) -> Result<u8> {
        let held = Held::Sums(sums.buffer, self.place_of(sums)?);
        self.tiles.registers.number(&(held, (sums.rows, sums.row_bytes)))
    }

    fn place_of(&self, sums: &Tile<'_>) -> Result<Vec<i64>> {
        // the sides are bound to their first iterations
        let is_side = |var: Var| sums.indices.iter().rev().take(2).any(|index| index.coefficient(var) == 1);
        let known = |var: Var| match self.variables.bindings.get(var.0 as usize) {
            Some(Binding::Constant(value)) if !is_side(var) => Some(*value),
            _ => None,
        };
        let moves = || CodegenError::Malformed("a tile that is not always the same part of its buffer".into());
        place(sums, &known).ok_or_else(moves)
    }

    /// The register of an operand, which is loaded where it does not hold it already.
    fn operand_in(&mut self, held: Held, tile: &Tile<'_>, sides: &[Var]) -> Result<u8> {
        let register = self.tiles.registers.number(&(held, (tile.rows, tile.row_bytes)))?;
        let constant = |var: Var| match self.variables.bindings.get(var.0 as usize) {
            _ if sides.contains(&var) => Some(Index::constant(0)),
            Some(Binding::Constant(value)) => Some(Index::constant(*value)),
            _ => None,
        };
        let place: Vec<Index> = tile.indices.iter().map(|index| index.substitute(&constant)).collect();
        let loaded = (self.current_block()?, tile.buffer, place);
        if self.tiles.loaded.get(&register) != Some(&loaded) {
            self.move_tile("llvm.x86.tileloadd64", register, tile)?;
            // where its address was computed, the block may have changed
            let loaded = (self.current_block()?, loaded.1, loaded.2);
            self.tiles.loaded.insert(register, loaded);
        }
        Ok(register)
    }

    fn move_tile(&mut self, intrinsic: &str, register: u8, tile: &Tile<'_>) -> Result<()> {
        let pointer = self.element_pointer(tile.buffer, tile.indices)?;
        let bytes = self.shared.nest.buffer(tile.buffer).dtype.bytes() as i64;
        let stride = self.ir.integer(Element::I64, tile.stride * bytes);
        let arguments = [self.register_number(register), pointer.into(), stride];
        self.ir.intrinsic_call(self.shared.module, intrinsic, &[], &arguments)?;
        Ok(())
    }

    fn tile_instruction(&self, intrinsic: &str, registers: &[u8]) -> Result<()> {
        let arguments: Vec<Value> = registers.iter().map(|register| self.register_number(*register)).collect();
        self.ir.intrinsic_call(self.shared.module, intrinsic, &[], &arguments)?;
        Ok(())
    }

    fn register_number(&self, register: u8) -> Value<'c> {
        self.shared.context.i8_type().const_int(u64::from(register), false).into()
    }
}
