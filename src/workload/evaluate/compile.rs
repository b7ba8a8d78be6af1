//! From an expression to a flat program over registers.

use super::program::{Affine, AffineLoad, AffineTest, Factor, Instruction, Program, Register, Root, Test, Value};
use crate::workload::bounds::StageFacts;
use crate::workload::{
    Atom, Binary, Combiner, Condition, DType, Expr, Index, Stage, TensorId, Workload, flatten, row_major_strides,
};

/// Outputs below which lanes run over the reduction instead.
const FEW_OUTPUTS: i64 = 32;

/// Compiles a stage of a valid workload.
pub(super) fn compile(workload: &Workload, number: usize) -> Program {
    let stage = &workload.stages[number];
    let outputs: i64 = stage.spatial.iter().product();
    let reduced: i64 = stage.reduction.iter().product();
    let lanes_are_outputs = outputs >= FEW_OUTPUTS || reduced < FEW_OUTPUTS;
    let mut compiler = Compiler { workload, stage, lanes_are_outputs, affines: Vec::new(), floats: 0, integers: 0 };
    let facts = StageFacts::of_stage(stage, &[]);
    let mut code = Vec::new();
    let result = match compiler.product(&stage.value, &facts) {
        Some(factors) => Root::Product(factors),
        None => Root::Register(compiler.expr(&stage.value, &facts, &mut code)),
    };
    let sizes = |extents: &[i64]| extents.iter().map(|e| *e as usize).collect();
    let (lanes, scalars) =
        if lanes_are_outputs { (&stage.spatial, &stage.reduction) } else { (&stage.reduction, &stage.spatial) };
    Program {
        lane_extents: sizes(lanes),
        scalar_extents: sizes(scalars),
        lanes_are_outputs,
        combiner: stage.combiner,
        dtype: workload.tensor(stage.output).dtype,
        affines: compiler.affines,
        code,
        result,
        floats: compiler.floats,
        integers: compiler.integers,
    }
}

struct Compiler<'a> {
    workload: &'a Workload,
    stage: &'a Stage,
    lanes_are_outputs: bool,
    affines: Vec<Affine>,
    floats: usize,
    integers: usize,
}

impl Compiler<'_> {
    fn float(&mut self) -> usize {
        self.floats += 1;
        self.floats - 1
    }

    fn integer(&mut self) -> usize {
        self.integers += 1;
        self.integers - 1
    }

    fn register(&mut self, dtype: DType) -> Register {
        if dtype.is_float() { Register::Float(self.float()) } else { Register::Integer(self.integer()) }
    }

    /// Another register of the same kind.
    fn like(&mut self, register: Register) -> Register {
        match register {
            Register::Float(_) => Register::Float(self.float()),
            Register::Integer(_) => Register::Integer(self.integer()),
        }
    }

    fn product(&mut self, value: &Expr, facts: &StageFacts) -> Option<[Factor; 2]> {
        let Expr::Binary(Binary::Multiply, x, y) = value else { return None };
        if self.stage.combiner != Some(Combiner::Sum) || !self.lanes_are_outputs {
            return None;
        }
        Some([self.factor(x, facts)?, self.factor(y, facts)?])
    }

    /// An operand in f32, or in a shorter type that is read as f32.
    fn factor(&mut self, expr: &Expr, facts: &StageFacts) -> Option<Factor> {
        match expr {
            Expr::Cast(DType::F32, short) => self.factor_of(short, &[DType::F16, DType::BF16], facts),
            _ => self.factor_of(expr, &[DType::F32], facts),
        }
    }

    fn factor_of(&mut self, expr: &Expr, dtypes: &[DType], facts: &StageFacts) -> Option<Factor> {
        match expr {
            Expr::Load { tensor, indices } if dtypes.contains(&self.workload.tensor(*tensor).dtype) => {
                let load = self.plain_load(*tensor, indices, facts)?;
                Some(Factor { load, tests: Vec::new(), outside: 0.0 })
            }
            Expr::Guard { conditions, inside, outside } if conditions.iter().all(|c| c.index.is_affine()) => {
                if !matches!(**inside, Expr::Load { .. }) {
                    return None;
                }
                let outside = match &**outside {
                    Expr::Float(outside) => literal(outside.0),
                    // a constant of a shorter type
                    Expr::Cast(_, constant) if matches!(**constant, Expr::Float(zero) if zero.0 == 0.0) => 0.0,
                    _ => return None,
                };
                let Factor { load, .. } = self.factor_of(inside, dtypes, &facts.and(conditions))?;
                let test = |c: &Condition| AffineTest { affine: self.affine(&c.index), low: c.low, high: c.high };
                Some(Factor { load, tests: conditions.iter().map(test).collect(), outside })
            }
            _ => None,
        }
    }

    /// A load whose position is affine and known to be inside.
    fn plain_load(&mut self, tensor: TensorId, indices: &[Index], facts: &StageFacts) -> Option<AffineLoad> {
        let shape = &self.workload.tensor(tensor).shape;
        let inside = |(index, extent): (&Index, &i64)| {
            index.is_affine() && facts.range(index).is_some_and(|r| r.low >= 0 && r.high < *extent)
        };
        if !indices.iter().zip(shape).all(inside) {
            return None;
        }
        let position = position(indices, shape)?;
        Some(AffineLoad { tensor, affine: self.affine(&position) })
    }

    fn affine(&mut self, index: &Index) -> usize {
        let spatial = self.stage.spatial.len();
        let coefficients: Vec<i64> =
            (0..self.stage.rank()).map(|axis| index.coefficient(crate::workload::Var(axis as u32))).collect();
        let (outer, inner) = coefficients.split_at(spatial);
        let (lane, scalar) = if self.lanes_are_outputs { (outer, inner) } else { (inner, outer) };
        let affine = Affine { constant: index.offset(), lane: lane.to_vec(), scalar: scalar.to_vec() };
        match self.affines.iter().position(|a| *a == affine) {
            Some(at) => at,
            None => {
                self.affines.push(affine);
                self.affines.len() - 1
            }
        }
    }

    /// An integer register with the index' value.
    fn index(&mut self, index: &Index, facts: &StageFacts, code: &mut Vec<Instruction>) -> usize {
        let mut linear = Index::constant(index.offset());
        let mut rest = Vec::new();
        for (atom, coefficient) in index.terms() {
            match atom {
                Atom::Var(var) => linear = linear.plus(&Index::var(*var).times(*coefficient)),
                other => rest.push((other, *coefficient)),
            }
        }
        let affine = self.affine(&linear);
        let mut sum = self.integer();
        code.push(Instruction::Affine { out: sum, affine });
        for (atom, coefficient) in rest {
            let y = match atom {
                Atom::FloorDiv(inner, divisor) => {
                    let x = self.index(inner, facts, code);
                    let out = self.integer();
                    code.push(Instruction::FloorDiv { out, x, divisor: *divisor });
                    out
                }
                Atom::Modulo(inner, divisor) => {
                    let x = self.index(inner, facts, code);
                    let out = self.integer();
                    code.push(Instruction::Modulo { out, x, divisor: *divisor });
                    out
                }
                Atom::Value(expr) => match self.expr(expr, facts, code) {
                    Register::Integer(register) => register,
                    Register::Float(x) => {
                        // not reached by valid workloads, whose gathered values are integers
                        let out = self.integer();
                        code.push(Instruction::ToInteger { out, x, dtype: DType::I64 });
                        out
                    }
                },
                Atom::Var(_) => continue,
            };
            let out = self.integer();
            code.push(Instruction::AddScaled { out, x: sum, y, coefficient });
            sum = out;
        }
        sum
    }

    fn expr(&mut self, expr: &Expr, facts: &StageFacts, code: &mut Vec<Instruction>) -> Register {
        match expr {
            Expr::Float(value) => {
                let out = self.float();
                code.push(Instruction::Literal { out, value: literal(value.0) });
                Register::Float(out)
            }
            Expr::Index(index) => Register::Integer(self.index(index, facts, code)),
            Expr::Load { tensor, indices } => self.load(*tensor, indices, facts, code),
            Expr::Unary(op, x) => {
                let dtype = self.dtype(x);
                match self.expr(x, facts, code) {
                    Register::Float(x) => {
                        let x = if op.is_rounding() { self.rounded(dtype, x, code) } else { x };
                        let out = self.float();
                        code.push(Instruction::Unary { op: *op, out, x });
                        Register::Float(out)
                    }
                    Register::Integer(x) => {
                        let out = self.integer();
                        code.push(Instruction::UnaryInteger { op: *op, dtype, out, x });
                        Register::Integer(out)
                    }
                }
            }
            Expr::Binary(op, x, y) => {
                let dtype = self.dtype(x);
                let (x, y) = (self.expr(x, facts, code), self.expr(y, facts, code));
                self.binary(*op, dtype, x, y, code)
            }
            Expr::Select { condition, yes, no } => {
                let condition = self.expr(condition, facts, code);
                let (yes, no) = (self.expr(yes, facts, code), self.expr(no, facts, code));
                let condition = self.integer_of(condition, DType::Bool, code);
                let out = self.like(yes);
                code.push(Instruction::Select { condition, out, yes, no });
                out
            }
            Expr::Guard { conditions, inside, outside } => self.guard(conditions, inside, outside, facts, code),
            Expr::Cast(dtype, x) => {
                let from = self.dtype(x);
                let x = self.expr(x, facts, code);
                self.cast(from, *dtype, x, code)
            }
            Expr::Bits(dtype, x) => {
                let from = self.dtype(x);
                let x = self.expr(x, facts, code);
                let out = self.register(*dtype);
                code.push(Instruction::Bits { out, x, from, dtype: *dtype });
                out
            }
        }
    }

    fn load(
        &mut self,
        tensor: TensorId,
        indices: &[Index],
        facts: &StageFacts,
        code: &mut Vec<Instruction>,
    ) -> Register {
        let out = self.register(self.workload.tensor(tensor).dtype);
        if let Some(load) = self.plain_load(tensor, indices, facts) {
            code.push(Instruction::Load { out, load });
            return out;
        }
        let data = self.workload.tensor(tensor);
        let (strides, shape) = (row_major_strides(&data.shape), data.shape.clone());
        let zero = Index::constant(0);
        let mut positions = self.index(&zero, facts, code);
        for (dimension, index) in indices.iter().enumerate() {
            let y = self.index(index, facts, code);
            code.push(Instruction::Check { x: y, extent: shape[dimension], tensor, dimension });
            let sum = self.integer();
            code.push(Instruction::AddScaled { out: sum, x: positions, y, coefficient: strides[dimension] });
            positions = sum;
        }
        code.push(Instruction::Gather { out, tensor, positions });
        out
    }

    fn dtype(&self, expr: &Expr) -> DType {
        expr.dtype(&|tensor| self.workload.tensor(tensor).dtype)
    }

    fn binary(&mut self, op: Binary, dtype: DType, x: Register, y: Register, code: &mut Vec<Instruction>) -> Register {
        match (x, y) {
            (Register::Float(x), Register::Float(y)) if op.is_comparison() => {
                let out = self.integer();
                code.push(Instruction::Compare { op, out, x, y });
                Register::Integer(out)
            }
            (Register::Float(x), Register::Float(y)) => {
                let out = self.float();
                code.push(Instruction::Binary { op, out, x, y });
                Register::Float(out)
            }
            (x, y) => {
                let (x, y) = (self.integer_of(x, DType::I64, code), self.integer_of(y, DType::I64, code));
                let out = self.integer();
                code.push(Instruction::BinaryInteger { op, dtype, out, x, y });
                Register::Integer(out)
            }
        }
    }

    fn guard(
        &mut self,
        conditions: &[Condition],
        inside: &Expr,
        outside: &Expr,
        facts: &StageFacts,
        code: &mut Vec<Instruction>,
    ) -> Register {
        let mut tests = Vec::new();
        for condition in conditions {
            let value = if condition.index.is_affine() {
                Value::Affine(self.affine(&condition.index))
            } else {
                Value::Register(self.index(&condition.index, facts, code))
            };
            tests.push(Test { value, low: condition.low, high: condition.high });
        }
        let (mut inside_code, mut outside_code) = (Vec::new(), Vec::new());
        let yes = self.expr(inside, &facts.and(conditions), &mut inside_code);
        let no = self.expr(outside, facts, &mut outside_code);
        let out = self.like(yes);
        code.push(Instruction::Guard { conditions: tests, inside: inside_code, yes, outside: outside_code, no, out });
        out
    }

    fn integer_of(&mut self, x: Register, dtype: DType, code: &mut Vec<Instruction>) -> usize {
        match x {
            Register::Integer(x) => x,
            Register::Float(x) => {
                let out = self.integer();
                code.push(Instruction::ToInteger { out, x, dtype });
                out
            }
        }
    }

    /// The nearest value of a type: what is rounded to an integer must not be nearer to another one than the
    /// value that a kernel sees.
    fn rounded(&mut self, dtype: DType, x: usize, code: &mut Vec<Instruction>) -> usize {
        let out = self.float();
        code.push(Instruction::Round { out, x, dtype });
        out
    }

    fn cast(&mut self, from: DType, dtype: DType, x: Register, code: &mut Vec<Instruction>) -> Register {
        let x = match x {
            Register::Float(x) if !dtype.is_float() && dtype != DType::Bool => {
                Register::Float(self.rounded(from, x, code))
            }
            x => x,
        };
        let out = self.register(dtype);
        code.push(match (x, out) {
            (Register::Float(x), Register::Float(out)) => Instruction::Round { out, x, dtype },
            (Register::Integer(x), Register::Integer(out)) => Instruction::Wrap { out, x, dtype },
            (Register::Float(x), Register::Integer(out)) => Instruction::ToInteger { out, x, dtype },
            (Register::Integer(x), Register::Float(out)) => Instruction::ToFloat { out, x, from, dtype },
        });
        out
    }
}

/// Literals are f32.
fn literal(value: f64) -> f64 {
    f64::from(value as f32)
}

/// The position of an element in its row-major tensor; `None` where a coefficient leaves 56 bits.
fn position(indices: &[Index], shape: &[i64]) -> Option<Index> {
    let small = |value: i64, stride: i64| value.checked_mul(stride).is_some_and(|v| v.abs() < 1 << 56);
    let fits = |(index, stride): (&Index, i64)| {
        small(index.offset(), stride) && index.terms().iter().all(|(_, coefficient)| small(*coefficient, stride))
    };
    indices.iter().zip(row_major_strides(shape)).all(fits).then(|| flatten(indices, shape))
}
