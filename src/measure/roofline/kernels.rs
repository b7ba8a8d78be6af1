//! Nests that do one thing as fast as a machine can.

use crate::nest::{Buffer, Loop, LoopKind, Nest, Scope, Stmt};
use crate::target::{Cpu, TILE_LANES, TILE_ROWS};
use crate::workload::{Binary, Combiner, DType, Expr, Index, Role, TensorId, Var, dot_steps, identity};

use LoopKind::{Dot, Matrix, Serial, Unroll, Vector};

/// Registers that are left for factors and addresses.
const OTHER_REGISTERS: i64 = 4;
/// Independent sums; more than the latency of an addition times the loads of a cycle.
const SUMS: i64 = 12;

/// Products of a tile with the same operands that are written out.
const TILE_STEPS: i64 = 8;

/// A nest that does nothing but multiply and add.
pub struct Peak {
    pub nest: Nest,
    /// Operations of one run, two for a multiply-add.
    pub flops: f64,
}

/// Independent chains of multiply-adds in the registers of one core, as many as there are registers for,
/// `steps` long. Arguments: inputs `f32[chains, lanes]` and `f32[2, lanes]`, output `f32[chains, lanes]`.
///
/// ```text
/// acc[r, l] = start[r, l]; for step { unroll r, vector l { acc[r, l] += x[0, l] * x[1, l] } }; out[r, l] = acc[r, l]
/// ```
pub fn peak_kernel(target: &Cpu, steps: i64) -> Peak {
    let (chains, lanes) = (chains(target), target.lanes());
    let mut nest = Nest::default();
    let start = buffer(&mut nest, "start", &[chains, lanes], Scope::Argument(Role::Input));
    let factors = buffer(&mut nest, "factors", &[2, lanes], Scope::Argument(Role::Input));
    let out = buffer(&mut nest, "out", &[chains, lanes], Scope::Argument(Role::Output));
    let x = buffer(&mut nest, "x", &[2, lanes], Scope::Register);
    let acc = buffer(&mut nest, "acc", &[chains, lanes], Scope::Register);
    let step = nest.new_var("step");
    let fetch = tile(&mut nest, 2, lanes, &|r, l| store(x, &[r, l], load(factors, &[r, l])));
    let begin = tile(&mut nest, chains, lanes, &|r, l| store(acc, &[r, l], load(start, &[r, l])));
    let add = tile(&mut nest, chains, lanes, &|r, l| {
        let factor = |number: i64| load(x, &[&number.into(), l]);
        accumulate(acc, &[r, l], Expr::binary(Binary::Multiply, factor(0), factor(1)))
    });
    let end = tile(&mut nest, chains, lanes, &|r, l| store(out, &[r, l], load(acc, &[r, l])));
    nest.body = vec![fetch, begin, looped(Serial, step, steps, vec![add]), end];
    Peak { nest, flops: 2.0 * (chains * lanes) as f64 * steps as f64 }
}

/// The same of dot products of short numbers, whose sum has another type; `None` where there are none of such
/// operands. Arguments: inputs `sum[chains, lanes]`, `x[lanes, group]` and `y[lanes, group]`, output
/// `sum[chains, lanes]`.
///
/// ```text
/// ... for step { unroll r, vector l, dot q { acc[r, l] += sum x[l, q] * sum y[l, q] } } ...
/// ```
pub fn dot_kernel(target: &Cpu, operands: [DType; 2], steps: i64) -> Option<Peak> {
    let (chains, lanes) = (chains(target), target.lanes());
    let (group, sum) = dot_steps(operands)?;
    let mut nest = Nest::default();
    let mut argument = |name: &str, shape: [i64; 2], dtype: DType, role: Role| {
        nest.add_buffer(Buffer::new(name, shape.to_vec(), dtype, Scope::Argument(role)))
    };
    let start = argument("start", [chains, lanes], sum, Role::Input);
    let x = argument("x", [lanes, group], operands[0], Role::Input);
    let y = argument("y", [lanes, group], operands[1], Role::Input);
    let out = argument("out", [chains, lanes], sum, Role::Output);
    let acc = nest.add_buffer(Buffer::new("acc", vec![chains, lanes], sum, Scope::Register));
    let (step, q) = (nest.new_var("step"), nest.new_var("q"));
    let begin = tile(&mut nest, chains, lanes, &|r, l| store(acc, &[r, l], load(start, &[r, l])));
    let add = tile(&mut nest, chains, lanes, &|r, l| {
        let factor = |buffer: TensorId| Expr::Cast(sum, Box::new(load(buffer, &[l, &q.into()])));
        let product = Expr::binary(Binary::Multiply, factor(x), factor(y));
        looped(Dot, q, group, vec![accumulate(acc, &[r, l], product)])
    });
    let end = tile(&mut nest, chains, lanes, &|r, l| store(out, &[r, l], load(acc, &[r, l])));
    nest.body = vec![begin, looped(Serial, step, steps, vec![add]), end];
    Some(Peak { nest, flops: 2.0 * (chains * lanes * group) as f64 * steps as f64 })
}

/// The same of products of tiles, two below each other times two beside each other, whose operands stay in
/// registers while eight of them follow each other. Arguments: inputs `x[rows, depth, group]` and
/// `y[depth, columns, group]`, output `sum[rows, columns]`.
///
/// ```text
/// ... for step { unroll u, matrix i, matrix k, matrix j, dot q { acc[i, j] += sum x[i, k, q] * sum y[k, j, q] } } ...
/// ```
pub fn tile_kernel(target: &Cpu, operands: [DType; 2], steps: i64) -> Option<Peak> {
    let (group, sum) = dot_steps(operands).filter(|_| target.has_tiles(operands))?;
    let (rows, depth, columns) = (2 * TILE_ROWS, TILE_ROWS, 2 * TILE_LANES);
    let mut nest = Nest::default();
    let mut buffer = |name: &str, shape: &[i64], dtype: DType, scope: Scope| {
        nest.add_buffer(Buffer::new(name, shape.to_vec(), dtype, scope))
    };
    let x = buffer("x", &[rows, depth, group], operands[0], Scope::Argument(Role::Input));
    let y = buffer("y", &[depth, columns, group], operands[1], Scope::Argument(Role::Input));
    let out = buffer("out", &[rows, columns], sum, Scope::Argument(Role::Output));
    let acc = buffer("acc", &[rows, columns], sum, Scope::Register);
    let [step, u, k, q] = ["step", "u", "k", "q"].map(|name| nest.new_var(name));
    let mut sums = |point: &dyn Fn(&Index, &Index) -> Stmt, along: &dyn Fn(Stmt) -> Stmt| {
        let (i, j) = (nest.new_var("i"), nest.new_var("j"));
        let columns = looped(Matrix, j, columns, vec![point(&i.into(), &j.into())]);
        looped(Matrix, i, rows, vec![along(columns)])
    };
    let begin = sums(&|i, j| store(acc, &[i, j], identity(Combiner::Sum, sum)), &|inner| inner);
    let factor = |buffer: TensorId, at: &[&Index]| Expr::Cast(sum, Box::new(load(buffer, at)));
    let add = sums(
        &|i, j| {
            let factors = [factor(x, &[i, &k.into(), &q.into()]), factor(y, &[&k.into(), j, &q.into()])];
            let [first, second] = factors;
            looped(Dot, q, group, vec![accumulate(acc, &[i, j], Expr::binary(Binary::Multiply, first, second))])
        },
        &|inner| looped(Matrix, k, depth, vec![inner]),
    );
    let end = sums(&|i, j| store(out, &[i, j], load(acc, &[i, j])), &|inner| inner);
    let add = looped(Unroll, u, TILE_STEPS, vec![add]);
    nest.body = vec![begin, looped(Serial, step, steps, vec![add]), end];
    Some(Peak {
        nest: nest.in_tiles(),
        flops: 2.0 * (rows * depth * columns * group * TILE_STEPS) as f64 * steps as f64,
    })
}

fn chains(target: &Cpu) -> i64 {
    i64::from(target.vector_registers) - OTHER_REGISTERS
}

/// One core sums up an array, `repeats` times. Arguments: input `f32[bytes / 4]`, output `f32[sums, lanes]`;
/// bytes are rounded down to what one step takes.
///
/// ```text
/// acc[u, l] = 0; for repeat { for i { unroll u, vector l { acc[u, l] += data[(i·sums + u)·lanes + l] } } }; out[u, l] = acc[u, l]
/// ```
pub fn array_kernel(target: &Cpu, bytes: u64, repeats: i64) -> Nest {
    let lanes = target.lanes();
    let step = SUMS * lanes;
    let steps = (i64::try_from(bytes / 4).unwrap_or(i64::MAX) / step).max(1);
    let mut nest = Nest::default();
    let data = buffer(&mut nest, "data", &[steps * step], Scope::Argument(Role::Input));
    let out = buffer(&mut nest, "out", &[SUMS, lanes], Scope::Argument(Role::Output));
    let acc = buffer(&mut nest, "acc", &[SUMS, lanes], Scope::Register);
    let (repeat, i) = (nest.new_var("repeat"), nest.new_var("i"));
    let begin = tile(&mut nest, SUMS, lanes, &|u, l| store(acc, &[u, l], Expr::float(0.0)));
    let add = tile(&mut nest, SUMS, lanes, &|u, l| {
        let at = Index::var(i).times(step).plus(&u.clone().times(lanes)).plus(l);
        accumulate(acc, &[u, l], load(data, &[&at]))
    });
    let end = tile(&mut nest, SUMS, lanes, &|u, l| store(out, &[u, l], load(acc, &[u, l])));
    let pass = looped(Serial, i, steps, vec![add]);
    nest.body = vec![begin, looped(Serial, repeat, repeats, vec![pass]), end];
    nest
}

fn buffer(nest: &mut Nest, name: &str, shape: &[i64], scope: Scope) -> TensorId {
    nest.add_buffer(Buffer::new(name, shape.to_vec(), DType::F32, scope))
}

/// Unrolled rows of one vector each.
fn tile(nest: &mut Nest, rows: i64, lanes: i64, point: &dyn Fn(&Index, &Index) -> Stmt) -> Stmt {
    let (row, lane) = (nest.new_var("r"), nest.new_var("l"));
    let statement = point(&row.into(), &lane.into());
    looped(Unroll, row, rows, vec![looped(Vector, lane, lanes, vec![statement])])
}

fn looped(kind: LoopKind, var: Var, extent: i64, body: Vec<Stmt>) -> Stmt {
    Stmt::Loop(Loop { var, bounds: vec![extent.into()], kind, body })
}

fn load(buffer: TensorId, indices: &[&Index]) -> Expr {
    Expr::load(buffer, indices.iter().map(|index| (*index).clone()).collect())
}

fn store(buffer: TensorId, indices: &[&Index], value: Expr) -> Stmt {
    Stmt::Store { buffer, indices: indices.iter().map(|index| (*index).clone()).collect(), value }
}

fn accumulate(buffer: TensorId, indices: &[&Index], value: Expr) -> Stmt {
    let indices = indices.iter().map(|index| (*index).clone()).collect();
    Stmt::Accumulate { buffer, indices, combiner: Combiner::Sum, value }
}
