//! Operators of integers at the ends of their types, compiled against interpreted.

use tilescribe::nest::{Buffer, Loop, LoopKind, Nest, Scope, Stmt, interpret};
use tilescribe::workload::{Binary, DType, Expr, Index, Operands, Role, TensorId, Unary, Var, put_integer};

use super::{binary, load, run_compiled, target, v};

/// The bits of both ends of each type, of small numbers and of widths.
const NUMBERS: [i64; 16] =
    [0, 1, 2, 7, 8, 15, 16, 63, 64, 65, -1, -2, i64::MIN, i64::MIN + 1, i64::MAX, 0x7fff_8000_ffff_0001];

/// `y[i] = value(x[i], w[i])` of all pairs of numbers, in vectors and one by one.
fn check(name: &str, dtype: DType, result: DType, value: &Expr, divides: bool) {
    let pairs = NUMBERS.iter().flat_map(|x| NUMBERS.map(|y| (*x, if divides && y == 0 { 3 } else { y })));
    let (mut x, mut w) = (Vec::new(), Vec::new());
    for (left, right) in pairs {
        put_integer(dtype, left, &mut x);
        let before = w.len();
        put_integer(dtype, right, &mut w);
        // the low bits of a number may be none
        if divides && w[before..].iter().all(|byte| *byte == 0) {
            w[before] = 3;
        }
    }
    let count = (NUMBERS.len() * NUMBERS.len()) as i64;
    for lanes in [1, 8] {
        let nest = nest(value, [dtype, dtype, result], count, lanes);
        let mut expected = vec![x.clone(), w.clone(), vec![0xff; count as usize * result.bytes()]];
        let mut actual = expected.clone();
        interpret(&nest, &mut expected).unwrap_or_else(|fault| panic!("{name}: {fault}"));
        run_compiled(&nest, &target(), &mut actual);
        let size = result.bytes();
        for at in 0..count as usize {
            let of = |bytes: &[Vec<u8>]| bytes[2][at * size..][..size].to_vec();
            let pair = (NUMBERS[at / NUMBERS.len()], NUMBERS[at % NUMBERS.len()]);
            assert_eq!(of(&actual), of(&expected), "{name} of {} {pair:?}, {lanes} lanes", dtype.name());
        }
    }
}

fn nest(value: &Expr, dtypes: [DType; 3], count: i64, lanes: i64) -> Nest {
    let roles = [("x", Role::Input), ("w", Role::Input), ("y", Role::Output)];
    let buffer =
        |((name, role), dtype): ((&str, Role), DType)| Buffer::new(name, vec![count], dtype, Scope::Argument(role));
    let buffers = roles.into_iter().zip(dtypes).map(buffer).collect();
    let mut nest = Nest { buffers, ..Nest::default() };
    let (outer, inner) = (nest.new_var("outer"), nest.new_var("lane"));
    let at = Index::var(outer).times(lanes).plus(&Index::var(inner));
    let value = value.substitute(&|var| (var == Var(0)).then(|| at.clone()));
    let store = Stmt::Store { buffer: TensorId(2), indices: vec![at], value };
    let vector = Loop { var: inner, bounds: vec![lanes.into()], kind: LoopKind::Vector, body: vec![store] };
    let body = vec![Stmt::Loop(vector)];
    nest.body.push(Stmt::Loop(Loop { var: outer, bounds: vec![(count / lanes).into()], kind: LoopKind::Serial, body }));
    nest
}

#[test]
fn operators_at_the_ends_of_types() {
    let (x, w) = (load(TensorId(0), &[&v(0)]), load(TensorId(1), &[&v(0)]));
    for dtype in [DType::I8, DType::U16, DType::I16, DType::U32, DType::I64, DType::U64] {
        let takes = |operands: Operands| operands.contain(dtype) && operands != Operands::Floats;
        for op in Binary::ALL.into_iter().filter(|op| takes(op.takes())) {
            let result = if op.is_comparison() { DType::Bool } else { dtype };
            let divides = matches!(op, Binary::Divide | Binary::Remainder);
            check(op.name(), dtype, result, &binary(op, x.clone(), w.clone()), divides);
        }
        for op in [Unary::Negate, Unary::Absolute, Unary::Sign] {
            check(op.name(), dtype, dtype, &Expr::unary(op, x.clone()), false);
        }
    }
}

#[test]
fn conversions_at_the_ends_of_types() {
    let x = load(TensorId(0), &[&v(0)]);
    let cast = |dtype: DType, x: Expr| Expr::Cast(dtype, Box::new(x));
    for dtype in [DType::I16, DType::U16, DType::I32, DType::U32, DType::I64, DType::U64] {
        for float in [DType::F32, DType::F64] {
            check("to a float", dtype, float, &cast(float, x.clone()), false);
            for back in [DType::I64, DType::U64, DType::I32] {
                check("to a float and back", dtype, back, &cast(back, cast(float, x.clone())), false);
            }
        }
        for other in DType::ALL.into_iter().filter(|other| other.bytes() == dtype.bytes()) {
            let bits = Expr::Bits(dtype, Box::new(Expr::Bits(other, Box::new(x.clone()))));
            // a NaN need not keep its bits
            if !other.is_float() {
                check("bits", dtype, dtype, &bits, false);
            }
        }
    }
}
