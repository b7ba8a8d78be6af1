//! Elementary functions over the whole range of f32, against the evaluator, which computes in f64.

use half::{bf16, f16};
use tilescribe::codegen::{self, Kernel};
use tilescribe::nest::{Buffer, Loop, LoopKind, Nest, Scope, Stmt};
use tilescribe::target::{Architecture, Cpu};
use tilescribe::workload::{
    Array, Binary, DType, Elements, Expr, Index, Role, Stage, TensorId, Unary, Var, Workload, evaluate,
};

use super::{binary, load, target, v};

/// What the documentation promises, in units of the last place.
const ULPS: i64 = 4;

/// A stride through all bit patterns that has no factor in common with their number, and the corners.
fn sample(count: u32) -> Vec<f32> {
    let step = (u32::MAX / count) | 1;
    let mut values: Vec<f32> = (0..count).map(|i| f32::from_bits(i.wrapping_mul(step))).collect();
    let corners = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 0.625, 88.722_83, 88.72284, -87.336_54, -103.97208];
    let limits =
        [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, f32::MIN, f32::MIN_POSITIVE, 1e-45, -1e-45, 8388608.5];
    values.extend(corners.iter().chain(&limits));
    // where networks compute
    values.extend((0..count / 4).map(|i| (i as f32 / (count / 4) as f32 - 0.5) * 40.0));
    values
}

/// `y[i] = value(x[i], w[i])`, in vectors of `lanes`, or one by one.
fn nest(value: Expr, count: i64, lanes: i64) -> Nest {
    let buffer = |name: &str, role| Buffer::new(name, vec![count], DType::F32, Scope::Argument(role));
    let buffers = vec![buffer("x", Role::Input), buffer("w", Role::Input), buffer("y", Role::Output)];
    let mut nest = Nest { buffers, ..Nest::default() };
    let (outer, inner) = (nest.new_var("outer"), nest.new_var("lane"));
    let at = Index::var(outer).times(lanes).plus(&Index::var(inner));
    let value = value.substitute(&|var| (var == Var(0)).then(|| at.clone()));
    let store = Stmt::Store { buffer: TensorId(2), indices: vec![at.clone()], value };
    let vector = Loop { var: inner, bounds: vec![lanes.into()], kind: LoopKind::Vector, body: vec![store] };
    let body = vec![Stmt::Loop(vector)];
    nest.body.push(Stmt::Loop(Loop { var: outer, bounds: vec![(count / lanes).into()], kind: LoopKind::Serial, body }));
    nest
}

/// Results on x and w, computed by a kernel.
fn compiled(value: &Expr, x: &[f32], w: &[f32], lanes: usize, target: &Cpu) -> Vec<f32> {
    let mut y = vec![0f32; x.len()];
    let kernel = Kernel::load(&nest(value.clone(), x.len() as i64, lanes as i64), target).unwrap();
    assert_eq!(kernel.workspace_bytes(), 0);
    let arguments = [x.as_ptr().cast_mut().cast(), w.as_ptr().cast_mut().cast(), y.as_mut_ptr().cast()];
    // SAFETY: three buffers of one length, which the nest was made for; it needs no workspace
    unsafe { kernel.run(&arguments, std::ptr::null_mut()) };
    y
}

fn evaluated(value: &Expr, x: &[f32], w: &[f32]) -> Vec<f32> {
    let mut workload = Workload::default();
    let shape = vec![x.len() as i64];
    let ids = [Role::Input, Role::Input, Role::Output].map(|r| workload.add_tensor(shape.clone(), DType::F32, r));
    workload.stages.push(Stage::map(ids[2], shape.clone(), value.clone()));
    let array = |values: &[f32]| Array::new(shape.clone(), Elements::F32(values.to_vec())).unwrap();
    let (x, w) = (array(x), array(w));
    let results = evaluate(&workload, &[(ids[0], &x), (ids[1], &w)]).unwrap();
    results[0].1.as_f32().unwrap().to_vec()
}

/// Steps between two floats; NaN equals NaN only.
fn distance(x: f32, y: f32) -> i64 {
    if x.is_nan() || y.is_nan() {
        return if x.is_nan() && y.is_nan() { 0 } else { i64::MAX };
    }
    let ordered = |f: f32| {
        let bits = i64::from(f.to_bits().cast_signed());
        if bits < 0 { -(bits & 0x7fff_ffff) } else { bits }
    };
    (ordered(x) - ordered(y)).abs()
}

/// `distance`, where 0 stands for a denormal number, too.
fn distance_but_for_denormal(x: f32, y: f32) -> i64 {
    if x.is_subnormal() && y == 0.0 { 0 } else { distance(x, y) }
}

fn check(name: &str, value: &Expr, x: &[f32], w: &[f32], ulps: i64) {
    check_by(distance, name, value, x, w, ulps);
}

fn check_by(distance: impl Fn(f32, f32) -> i64, name: &str, value: &Expr, x: &[f32], w: &[f32], ulps: i64) {
    let whole = x.len() / 16 * 16;
    let (x, w) = (&x[..whole], &w[..whole]);
    let expected = evaluated(value, x, w);
    let baseline = Cpu {
        architecture: Architecture::X86_64,
        cpu: "x86-64".into(),
        features: vec![],
        vector_bits: 128,
        ..target()
    };
    // vectors as they are, without any extension, and scalars; of AVX2, and of AVX-512 as Intel divides them
    let intel = Cpu { cpu: "skylake-avx512".into(), ..target() };
    let others = [(8, crate::targets::shipped("haswell")), (16, intel)].into_iter();
    // what a processor is called brings features of its own
    let runs = |target: &Cpu| target.cpu == "haswell" || target.has_feature("avx512f");
    let others = others.filter(|(_, target)| runs(target) && codegen::check_runs_here(target).is_ok());
    let targets = [(16, target()), (4, baseline), (1, target())].into_iter();
    for (lanes, target) in targets.chain(others) {
        let actual = compiled(value, x, w, lanes, &target);
        let mut worst = (0, 0);
        for at in 0..whole {
            worst = worst.max((distance(expected[at], actual[at]), at));
        }
        let (ulp, at) = worst;
        let (e, a) = (expected[at], actual[at]);
        assert!(
            ulp <= ulps,
            "{name}({:e}, {:e}), {lanes} lanes of {}: {a:e}, not {e:e}: {ulp} ulps",
            x[at],
            w[at],
            target.cpu
        );
    }
}

#[test]
fn functions_of_one_value() {
    let x = sample(60_000);
    for op in Unary::ALL.into_iter().filter(|op| op.takes().contain(DType::F32)) {
        let is_exact = !op.is_expensive() || matches!(op, Unary::Sqrt | Unary::Reciprocal);
        let ulps = if is_exact { 0 } else { ULPS };
        let (name, value) = (format!("{op:?}"), Expr::unary(op, load(TensorId(0), &[&v(0)])));
        match op {
            // powers of e that would be denormal are 0
            Unary::Exp | Unary::Sigmoid => check_by(distance_but_for_denormal, &name, &value, &x, &x, ulps),
            _ => check(&name, &value, &x, &x, ulps),
        }
    }
}

/// `y[i] = x[i] / s` in vectors, where `s = w[16 · (i / 16)] + 0` was computed before.
fn divided_by_results(count: i64) -> Nest {
    let buffer = |name: &str, shape: &[i64], scope| Buffer::new(name, shape.to_vec(), DType::F32, scope);
    let [x, w, y] = [("x", Role::Input), ("w", Role::Input), ("y", Role::Output)]
        .map(|(name, role)| buffer(name, &[count], Scope::Argument(role)));
    let mut nest = Nest { buffers: vec![x, w, y, buffer("s", &[], Scope::Register)], ..Nest::default() };
    let (outer, inner) = (nest.new_var("outer"), nest.new_var("lane"));
    let first = Index::var(outer).times(16);
    let given = binary(Binary::Add, load(TensorId(1), &[&first]), Expr::float(0.0));
    let sum = Stmt::Store { buffer: TensorId(3), indices: vec![], value: given };
    let at = first.plus(&Index::var(inner));
    let quotient = binary(Binary::Divide, load(TensorId(0), &[&at]), load(TensorId(3), &[]));
    let store = Stmt::Store { buffer: TensorId(2), indices: vec![at], value: quotient };
    let vector = Loop { var: inner, bounds: vec![16.into()], kind: LoopKind::Vector, body: vec![store] };
    let body = vec![sum, Stmt::Loop(vector)];
    nest.body.push(Stmt::Loop(Loop { var: outer, bounds: vec![(count / 16).into()], kind: LoopKind::Serial, body }));
    nest
}

#[test]
fn what_was_computed_divides_all_lanes() {
    let all = sample(20_000);
    let x = &all[..all.len() / 16 * 16];
    // divisors of all magnitudes, and the corners, each of sixteen values
    let divisors: Vec<f32> = all.iter().rev().take(64).chain(x.iter().rev().step_by(15)).copied().collect();
    let w: Vec<f32> = (0..x.len()).map(|at| divisors[at / 16]).collect();
    let nest = divided_by_results(x.len() as i64);
    let kernel = Kernel::load(&nest, &target()).unwrap();
    let mut y = vec![0f32; x.len()];
    let arguments = [x.as_ptr().cast_mut().cast(), w.as_ptr().cast_mut().cast(), y.as_mut_ptr().cast()];
    // SAFETY: three buffers of one length, which the nest was made for; its workspace has no bytes
    unsafe { kernel.run(&arguments, std::ptr::null_mut()) };
    let mut is_exact = true;
    for (at, y) in y.iter().enumerate() {
        let (x, w) = (x[at], w[at] + 0.0);
        assert!(distance(x / w, *y) <= ULPS, "{x:e} / {w:e}: {y:e}, not {:e}", x / w);
        is_exact &= distance(x / w, *y) == 0;
    }
    assert!(!is_exact, "nothing was multiplied by a reciprocal");
}

#[test]
fn functions_of_two_values() {
    let x = sample(40_000);
    // pairs of all magnitudes, then of small and whole exponents
    let mut first: Vec<f32> = x.clone();
    let mut second: Vec<f32> = x.iter().rev().copied().collect();
    for (n, base) in x.iter().enumerate().step_by(2) {
        first.push(*base);
        second.push([0.0, 1.0, 2.0, 3.0, -1.0, -2.0, 0.5, -0.5, 1.0 / 3.0, 7.5, f32::INFINITY, f32::NAN][n / 2 % 12]);
    }
    let corners = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 3.0, -3.0];
    for a in corners {
        for b in corners {
            first.push(a);
            second.push(b);
        }
    }
    let (a, b) = (load(TensorId(0), &[&v(0)]), load(TensorId(1), &[&v(0)]));
    check("Power", &binary(Binary::Power, a.clone(), b.clone()), &first, &second, ULPS);
    check("Remainder", &binary(Binary::Remainder, a.clone(), b), &first, &second, 0);
    for exponent in [0.0, 1.0, 2.0, 3.0, -1.0, 0.5, 1.7] {
        let value = binary(Binary::Power, a.clone(), Expr::float(exponent));
        check(&format!("power of {exponent}"), &value, &first, &first, ULPS);
    }
}

#[test]
fn rounding_to_sixteen_bits() {
    // all numbers of both types, those half way between two of them, their neighbours, and others
    let mut x = sample(60_000);
    for bits in 0..=u16::MAX {
        let next = bits.saturating_add(1);
        for (number, next) in [
            (f16::from_bits(bits).to_f32(), f16::from_bits(next).to_f32()),
            (bf16::from_bits(bits).to_f32(), bf16::from_bits(next).to_f32()),
        ] {
            let between = number + (next - number) / 2.0;
            x.extend([number, between, between.next_up(), between.next_down()]);
        }
    }
    let rounded = |half: DType| {
        let rounded = Expr::Cast(half, Box::new(load(TensorId(0), &[&v(0)])));
        Expr::Cast(DType::F32, Box::new(rounded))
    };
    check("f16", &rounded(DType::F16), &x, &x, 0);
    // the instruction of x86 takes subnormal numbers for zeros
    let (subnormal, normal): (Vec<f32>, Vec<f32>) = x.iter().partition(|x| x.is_subnormal());
    check("bf16", &rounded(DType::BF16), &normal, &normal, 0);
    let subnormal = &subnormal[..subnormal.len() / 16 * 16];
    let exact = evaluated(&rounded(DType::BF16), subnormal, subnormal);
    for lanes in [16, 1] {
        let found = compiled(&rounded(DType::BF16), subnormal, subnormal, lanes, &target());
        for (e, f) in exact.iter().zip(found) {
            assert!(f == *e || f == 0.0, "{f:e}, not {e:e}, in {lanes} lanes");
            assert_eq!(f.is_sign_negative(), e.is_sign_negative());
        }
    }
}
