//! Runs a compiled stage over all its points, block by block, blocks spread over threads.

use std::borrow::Cow;

use rayon::iter::{IndexedParallelIterator, ParallelIterator};
use rayon::slice::ParallelSliceMut;

use super::EvaluateError;
use super::lanes::{Offsets, Pattern, Walk, dot, step, unravel};
use super::product::add_products;
use super::program::{Affine, AffineLoad, Instruction, Program, Register, Root, Test, Value};
use crate::workload::array::{Array, Element, Elements, each_type};
use crate::workload::scalar::{
    binary, binary_integer, bits_of_real, combine, combine_integer, compare, identity, identity_integer, real_of_bits,
    round_to, to_integer, to_real, unary, unary_integer, wrap_to,
};
use crate::workload::{Binary, Combiner, DType, TensorId, Unary};

/// Points that a register holds.
const LANES: usize = 256;

/// Writes every element of `output`.
pub(super) fn run(
    program: &Program,
    stage: usize,
    arrays: &[Option<Cow<'_, Array>>],
    output: &mut Elements,
) -> Result<(), EvaluateError> {
    let mut data: Vec<Option<&Elements>> = arrays.iter().map(|a| a.as_ref().map(|a| a.elements())).collect();
    let widened: Vec<(usize, Elements)> = match &program.result {
        Root::Product(factors) => factors.iter().filter_map(|factor| widened(&data, factor.load.tensor)).collect(),
        Root::Register(_) => Vec::new(),
    };
    for (tensor, elements) in &widened {
        data[*tensor] = Some(elements);
    }
    each_type!(output, out => fill(program, stage, &data, out))
}

/// An operand of products in f32 that is there in a shorter type: converted once, not for every product.
fn widened(data: &[Option<&Elements>], tensor: TensorId) -> Option<(usize, Elements)> {
    let number = tensor.0 as usize;
    let wide = match data[number]? {
        Elements::F16(short) => short.iter().map(|x| x.to_f32()).collect(),
        Elements::BF16(short) => short.iter().map(|x| x.to_f32()).collect(),
        _ => return None,
    };
    Some((number, Elements::F32(wide)))
}

/// One result.
#[derive(Clone, Copy)]
enum Scalar {
    Float(f64),
    Integer(i64),
}

impl Scalar {
    fn element<T: Element>(self) -> T {
        match self {
            Scalar::Float(x) => T::from_real(x),
            Scalar::Integer(x) => T::from_integer(x),
        }
    }
}

fn fill<T: Element>(
    program: &Program,
    stage: usize,
    data: &[Option<&Elements>],
    output: &mut [T],
) -> Result<(), EvaluateError> {
    let block = if program.lanes_are_outputs { LANES } else { 1 };
    output.par_chunks_mut(block).enumerate().try_for_each_init(
        || Machine::new(program, stage, data),
        |machine, (number, outputs)| {
            if program.lanes_are_outputs {
                machine.reduce_lanes(number * LANES, outputs.len())?;
                for (lane, output) in outputs.iter_mut().enumerate() {
                    *output = machine.result(lane).element();
                }
            } else {
                let result = machine.reduce_across_lanes(number)?;
                outputs.iter_mut().for_each(|output| *output = result.element());
            }
            Ok(())
        },
    )
}

/// Registers of one thread.
struct Machine<'a> {
    program: &'a Program,
    stage: usize,
    data: &'a [Option<&'a Elements>],
    offsets: Vec<Offsets>,
    floats: Vec<Vec<f64>>,
    integers: Vec<Vec<i64>>,
    float_sums: Vec<f64>,
    integer_sums: Vec<i64>,
    /// Buffers for operands of products.
    scratch: [Vec<f64>; 2],
    count: usize,
}

impl<'a> Machine<'a> {
    fn new(program: &'a Program, stage: usize, data: &'a [Option<&'a Elements>]) -> Machine<'a> {
        let offsets = |_| Offsets { lanes: vec![0; LANES], ..Offsets::empty() };
        Machine {
            program,
            stage,
            data,
            offsets: program.affines.iter().map(offsets).collect(),
            floats: vec![vec![0.0; LANES]; program.floats],
            integers: vec![vec![0; LANES]; program.integers],
            float_sums: vec![0.0; LANES],
            integer_sums: vec![0; LANES],
            scratch: [vec![0.0; LANES], vec![0.0; LANES]],
            count: 0,
        }
    }

    /// A result for each lane: `count` outputs from `start` on.
    fn reduce_lanes(&mut self, start: usize, count: usize) -> Result<(), EvaluateError> {
        let program = self.program;
        self.set_lanes(start, count);
        let combiner = program.combiner;
        if let Some(combiner) = combiner {
            self.float_sums.fill(identity(combiner));
            self.integer_sums.fill(identity_integer(combiner, program.dtype));
        }
        let mut walk = Walk::new(&program.scalar_extents, 0);
        for (offsets, affine) in self.offsets.iter_mut().zip(&program.affines) {
            offsets.shift = affine.constant;
        }
        loop {
            match &program.result {
                Root::Product(factors) => {
                    let sums = &mut self.float_sums[..self.count];
                    add_products(factors, self.data, &self.offsets, &mut self.scratch, sums);
                }
                Root::Register(register) => {
                    self.execute(&program.code, None)?;
                    self.combine_lanes(combiner, *register);
                }
            }
            if !walk.advance(|axis, reset| self.shift(axis, reset, |a| &a.scalar, &program.scalar_extents)) {
                return Ok(());
            }
        }
    }

    /// Moves the scalar part of all indices: axis `axis` by one, and the axes after it back to 0 if `reset`.
    fn shift(&mut self, axis: usize, reset: bool, part: impl Fn(&Affine) -> &Vec<i64>, extents: &[usize]) {
        for (offsets, affine) in self.offsets.iter_mut().zip(&self.program.affines) {
            offsets.shift = offsets.shift.wrapping_add(step(part(affine), axis, reset, extents));
        }
    }

    fn combine_lanes(&mut self, combiner: Option<Combiner>, register: Register) {
        let n = self.count;
        match (combiner, register) {
            (None, Register::Float(r)) => self.float_sums[..n].copy_from_slice(&self.floats[r][..n]),
            (None, Register::Integer(r)) => self.integer_sums[..n].copy_from_slice(&self.integers[r][..n]),
            (Some(Combiner::Sum), Register::Float(r)) => {
                for (sum, x) in self.float_sums[..n].iter_mut().zip(&self.floats[r][..n]) {
                    *sum += x;
                }
            }
            (Some(combiner), Register::Float(r)) => {
                for (sum, x) in self.float_sums[..n].iter_mut().zip(&self.floats[r][..n]) {
                    *sum = combine(combiner, *sum, *x);
                }
            }
            (Some(combiner), Register::Integer(r)) => {
                for (sum, x) in self.integer_sums[..n].iter_mut().zip(&self.integers[r][..n]) {
                    *sum = combine_integer(combiner, self.program.dtype, *sum, *x);
                }
            }
        }
    }

    fn result(&self, lane: usize) -> Scalar {
        match self.program.result {
            Root::Product(_) | Root::Register(Register::Float(_)) => Scalar::Float(self.float_sums[lane]),
            Root::Register(Register::Integer(_)) => Scalar::Integer(self.integer_sums[lane]),
        }
    }

    /// The result of one output; lanes are points of the reduction, combined in order.
    fn reduce_across_lanes(&mut self, output: usize) -> Result<Scalar, EvaluateError> {
        let program = self.program;
        let point = unravel(output, &program.scalar_extents);
        for (offsets, affine) in self.offsets.iter_mut().zip(&program.affines) {
            offsets.shift = affine.constant.wrapping_add(dot(&affine.scalar, &point));
        }
        let (code, Root::Register(register)) = (&program.code, &program.result) else {
            unreachable!("products are compiled for lanes over outputs only")
        };
        let combiner = program.combiner.unwrap_or(Combiner::Sum);
        let (mut float, mut integer) = (identity(combiner), identity_integer(combiner, program.dtype));
        let points: usize = program.lane_extents.iter().product();
        for start in (0..points).step_by(LANES) {
            self.set_lanes(start, LANES.min(points - start));
            self.execute(code, None)?;
            match register {
                Register::Float(r) => {
                    float = self.floats[*r][..self.count].iter().fold(float, |sum, x| combine(combiner, sum, *x));
                }
                Register::Integer(r) => {
                    let values = &self.integers[*r][..self.count];
                    integer = values.iter().fold(integer, |sum, x| combine_integer(combiner, program.dtype, sum, *x));
                }
            }
        }
        Ok(match register {
            Register::Float(_) => Scalar::Float(float),
            Register::Integer(_) => Scalar::Integer(integer),
        })
    }

    /// Places the lanes at `count` points of the lane axes, from `start` on.
    fn set_lanes(&mut self, start: usize, count: usize) {
        self.count = count;
        let extents = &self.program.lane_extents;
        let mut walk = Walk::new(extents, start);
        for (offsets, affine) in self.offsets.iter_mut().zip(&self.program.affines) {
            offsets.lanes[0] = dot(&affine.lane, &walk.point);
        }
        for lane in 1..count {
            walk.advance(|axis, reset| {
                for (offsets, affine) in self.offsets.iter_mut().zip(&self.program.affines) {
                    let moved = step(&affine.lane, axis, reset, extents);
                    offsets.lanes[lane] = offsets.lanes[lane - 1].wrapping_add(moved);
                }
            });
        }
        for offsets in &mut self.offsets {
            let moves = |by: i64| offsets.lanes[..count].windows(2).all(|w| w[1].wrapping_sub(w[0]) == by);
            offsets.low = offsets.lanes[..count].iter().copied().min().unwrap_or(0);
            offsets.high = offsets.lanes[..count].iter().copied().max().unwrap_or(0);
            offsets.pattern = match () {
                () if moves(0) => Pattern::Uniform,
                () if moves(1) => Pattern::Contiguous,
                () => Pattern::General,
            };
        }
    }

    fn execute(&mut self, code: &[Instruction], mask: Option<&[bool]>) -> Result<(), EvaluateError> {
        code.iter().try_for_each(|instruction| self.instruction(instruction, mask))
    }

    fn instruction(&mut self, instruction: &Instruction, mask: Option<&[bool]>) -> Result<(), EvaluateError> {
        let n = self.count;
        match instruction {
            Instruction::Literal { out, value } => self.floats[*out][..n].fill(*value),
            Instruction::Affine { out, affine } => {
                let offsets = &self.offsets[*affine];
                for (out, lane) in self.integers[*out][..n].iter_mut().zip(&offsets.lanes) {
                    *out = lane.wrapping_add(offsets.shift);
                }
            }
            Instruction::FloorDiv { out, x, divisor } => self.map_integer(*out, *x, |x| x.div_euclid(*divisor)),
            Instruction::Modulo { out, x, divisor } => self.map_integer(*out, *x, |x| x.rem_euclid(*divisor)),
            Instruction::AddScaled { out, x, y, coefficient } => {
                self.zip_integer(*out, *x, *y, |x, y| x.wrapping_add(y.wrapping_mul(*coefficient)));
            }
            Instruction::Check { x, extent, tensor, dimension } => {
                let outside = |(lane, x): (usize, &i64)| active(mask, lane) && !(0..*extent).contains(x);
                if let Some(lane) = self.integers[*x][..n].iter().enumerate().position(outside) {
                    return Err(EvaluateError::OutOfRange {
                        stage: self.stage,
                        tensor: *tensor,
                        dimension: *dimension,
                        index: self.integers[*x][lane],
                        extent: *extent,
                    });
                }
            }
            Instruction::Load { out, load } => self.load(*out, *load, mask),
            Instruction::Gather { out, tensor, positions } => {
                let taken = std::mem::take(&mut self.integers[*positions]);
                self.gather(*out, *tensor, |lane| taken[lane], mask);
                self.integers[*positions] = taken;
            }
            Instruction::Unary { op, out, x } => self.unary(*op, *out, *x),
            Instruction::UnaryInteger { op, dtype, out, x } => {
                self.map_integer(*out, *x, |x| unary_integer(*op, *dtype, x));
            }
            Instruction::Binary { op, out, x, y } => self.binary(*op, *out, *x, *y),
            Instruction::BinaryInteger { op, dtype, out, x, y } => {
                return self.binary_integer((*op, *dtype), *out, *x, *y, mask);
            }
            Instruction::Compare { op, out, x, y } => {
                let mut result = std::mem::take(&mut self.integers[*out]);
                for (lane, result) in result[..n].iter_mut().enumerate() {
                    *result = i64::from(compare(*op, self.floats[*x][lane], self.floats[*y][lane]));
                }
                self.integers[*out] = result;
            }
            Instruction::Select { condition, out, yes, no } => {
                // borrowed, not moved: Booleans may be chosen by themselves
                let chosen = self.integers[*condition].clone();
                self.blend(*out, *yes, *no, |lane| chosen[lane] != 0);
            }
            Instruction::Guard { conditions, inside, yes, outside, no, out } => {
                return self.guard(conditions, (inside, *yes), (outside, *no), *out, mask);
            }
            Instruction::Round { out, x, dtype } => self.map(*out, *x, |x| round_to(*dtype, x)),
            Instruction::Wrap { out, x, dtype } => self.map_integer(*out, *x, |x| wrap_to(*dtype, x)),
            Instruction::ToInteger { out, x, dtype } => {
                let mut result = std::mem::take(&mut self.integers[*out]);
                for (result, x) in result[..n].iter_mut().zip(&self.floats[*x]) {
                    *result = to_integer(*dtype, *x);
                }
                self.integers[*out] = result;
            }
            Instruction::Bits { out, x, from, dtype } => {
                for lane in 0..n {
                    let bits = match x {
                        Register::Float(x) => bits_of_real(*from, self.floats[*x][lane]),
                        Register::Integer(x) => self.integers[*x][lane],
                    };
                    match out {
                        Register::Float(out) => self.floats[*out][lane] = real_of_bits(*dtype, bits),
                        Register::Integer(out) => self.integers[*out][lane] = wrap_to(*dtype, bits),
                    }
                }
            }
            Instruction::ToFloat { out, x, from, dtype } => {
                let mut result = std::mem::take(&mut self.floats[*out]);
                for (result, x) in result[..n].iter_mut().zip(&self.integers[*x]) {
                    *result = round_to(*dtype, to_real(*from, *x));
                }
                self.floats[*out] = result;
            }
        }
        Ok(())
    }

    fn map(&mut self, out: usize, x: usize, f: impl Fn(f64) -> f64) {
        let mut result = std::mem::take(&mut self.floats[out]);
        for (result, x) in result[..self.count].iter_mut().zip(&self.floats[x]) {
            *result = f(*x);
        }
        self.floats[out] = result;
    }

    fn map_integer(&mut self, out: usize, x: usize, f: impl Fn(i64) -> i64) {
        let mut result = std::mem::take(&mut self.integers[out]);
        for (result, x) in result[..self.count].iter_mut().zip(&self.integers[x]) {
            *result = f(*x);
        }
        self.integers[out] = result;
    }

    fn zip(&mut self, out: usize, x: usize, y: usize, f: impl Fn(f64, f64) -> f64) {
        let mut result = std::mem::take(&mut self.floats[out]);
        for ((result, x), y) in result[..self.count].iter_mut().zip(&self.floats[x]).zip(&self.floats[y]) {
            *result = f(*x, *y);
        }
        self.floats[out] = result;
    }

    fn zip_integer(&mut self, out: usize, x: usize, y: usize, f: impl Fn(i64, i64) -> i64) {
        let mut result = std::mem::take(&mut self.integers[out]);
        for ((result, x), y) in result[..self.count].iter_mut().zip(&self.integers[x]).zip(&self.integers[y]) {
            *result = f(*x, *y);
        }
        self.integers[out] = result;
    }

    fn unary(&mut self, op: Unary, out: usize, x: usize) {
        self.map(out, x, |x| unary(op, x));
    }

    fn binary(&mut self, op: Binary, out: usize, x: usize, y: usize) {
        match op {
            // the common ones without a branch for each lane
            Binary::Add => self.zip(out, x, y, |x, y| x + y),
            Binary::Multiply => self.zip(out, x, y, |x, y| x * y),
            op => self.zip(out, x, y, |x, y| binary(op, x, y)),
        }
    }

    fn binary_integer(
        &mut self,
        (op, dtype): (Binary, DType),
        out: usize,
        x: usize,
        y: usize,
        mask: Option<&[bool]>,
    ) -> Result<(), EvaluateError> {
        for lane in 0..self.count {
            let result = binary_integer(op, dtype, self.integers[x][lane], self.integers[y][lane]);
            if result.is_none() && active(mask, lane) {
                return Err(EvaluateError::DivisionByZero { stage: self.stage });
            }
            self.integers[out][lane] = result.unwrap_or(0);
        }
        Ok(())
    }

    fn blend(&mut self, out: Register, yes: Register, no: Register, first: impl Fn(usize) -> bool) {
        for lane in 0..self.count {
            match (out, if first(lane) { yes } else { no }) {
                (Register::Float(out), Register::Float(x)) => self.floats[out][lane] = self.floats[x][lane],
                (Register::Integer(out), Register::Integer(x)) => self.integers[out][lane] = self.integers[x][lane],
                // both sides have one type in a valid workload
                (Register::Float(_), Register::Integer(_)) | (Register::Integer(_), Register::Float(_)) => {}
            }
        }
    }

    fn guard(
        &mut self,
        conditions: &[Test],
        (inside, yes): (&[Instruction], Register),
        (outside, no): (&[Instruction], Register),
        out: Register,
        mask: Option<&[bool]>,
    ) -> Result<(), EvaluateError> {
        let n = self.count;
        let mut holds: Vec<bool> = Vec::new();
        for test in conditions {
            let (values, low, high) = match test.value {
                Value::Affine(affine) => match self.offsets[affine].test(test.low, test.high) {
                    Some(true) => continue,
                    Some(false) => {
                        holds = vec![false; n];
                        break;
                    }
                    None => {
                        let Offsets { lanes, shift, .. } = &self.offsets[affine];
                        (lanes, test.low.saturating_sub(*shift), test.high.saturating_sub(*shift))
                    }
                },
                Value::Register(register) => (&self.integers[register], test.low, test.high),
            };
            holds.resize(n, true);
            holds.iter_mut().zip(values).for_each(|(holds, x)| *holds &= low <= *x && *x < high);
        }
        if holds.is_empty() {
            self.execute(inside, mask)?;
            self.blend(out, yes, yes, |_| true);
            return Ok(());
        }
        let inside_lanes = (0..n).filter(|lane| holds[*lane] && active(mask, *lane)).count();
        let outside_lanes = (0..n).filter(|lane| !holds[*lane] && active(mask, *lane)).count();
        if outside_lanes == 0 {
            self.execute(inside, mask)?;
        } else if inside_lanes == 0 {
            self.execute(outside, mask)?;
        } else {
            let both =
                |wanted: bool| (0..n).map(|lane| holds[lane] == wanted && active(mask, lane)).collect::<Vec<_>>();
            self.execute(inside, Some(&both(true)))?;
            self.execute(outside, Some(&both(false)))?;
        }
        self.blend(out, yes, no, |lane| outside_lanes == 0 || (inside_lanes > 0 && holds[lane]));
        Ok(())
    }

    fn load(&mut self, out: Register, load: AffineLoad, mask: Option<&[bool]>) {
        let n = self.count;
        let data = self.data[load.tensor.0 as usize];
        let offsets = &self.offsets[load.affine];
        let first = offsets.lanes[0].wrapping_add(offsets.shift);
        if let (Register::Float(out), Some(Elements::F32(data)), None) = (out, data, mask) {
            let at = first as usize;
            let out = &mut self.floats[out][..n];
            match offsets.pattern {
                Pattern::Uniform => out.fill(f64::from(data[at])),
                Pattern::Contiguous => {
                    out.iter_mut().zip(&data[at..at + n]).for_each(|(out, x)| *out = f64::from(*x));
                }
                Pattern::General => {
                    for (out, lane) in out.iter_mut().zip(&offsets.lanes) {
                        *out = f64::from(data[(lane + offsets.shift) as usize]);
                    }
                }
            }
            return;
        }
        let offsets = std::mem::replace(&mut self.offsets[load.affine], Offsets::empty());
        self.gather(out, load.tensor, |lane| offsets.lanes[lane].wrapping_add(offsets.shift), mask);
        self.offsets[load.affine] = offsets;
    }

    /// Loads element by element; lanes that are masked out become 0.
    fn gather(&mut self, out: Register, tensor: TensorId, position: impl Fn(usize) -> i64, mask: Option<&[bool]>) {
        let n = self.count;
        let Some(data) = self.data[tensor.0 as usize] else { return };
        let positions = (0..n).map(|lane| active(mask, lane).then(|| position(lane) as usize));
        match out {
            Register::Float(out) => {
                let lanes = self.floats[out].iter_mut().zip(positions);
                each_type!(data, d => lanes.for_each(|(out, p)| *out = p.map_or(0.0, |p| d[p].real())));
            }
            Register::Integer(out) => {
                let lanes = self.integers[out].iter_mut().zip(positions);
                each_type!(data, d => lanes.for_each(|(out, p)| *out = p.map_or(0, |p| d[p].integer())));
            }
        }
    }
}

fn active(mask: Option<&[bool]>, lane: usize) -> bool {
    mask.is_none_or(|mask| mask[lane])
}
