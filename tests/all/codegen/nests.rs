//! Scheduled nests written by hand: what rewrites make, and what they might.

use tilescribe::codegen::{CodegenError, Kernel, ir, object};
use tilescribe::nest::{Buffer, Loop, LoopKind, Nest, Scope, Stmt};
use tilescribe::target::Target;
use tilescribe::workload::{Binary, Combiner, Condition, DType, Expr, Index, Role, TensorId, Unary, Var};

use super::{binary, check, load, target};

/// An empty nest with buffers `t0`, `t1`, ... of these shapes.
pub fn nest(buffers: &[(&[i64], DType, Scope)]) -> Nest {
    let named = |(n, (shape, dtype, scope)): (usize, &(&[i64], DType, Scope))| {
        Buffer::new(format!("t{n}"), shape.to_vec(), *dtype, *scope)
    };
    Nest { buffers: buffers.iter().enumerate().map(named).collect(), ..Nest::default() }
}

pub fn for_(var: Var, extent: i64, kind: LoopKind, body: Vec<Stmt>) -> Stmt {
    Stmt::Loop(Loop { var, bounds: vec![extent.into()], kind, body })
}

pub fn store(buffer: u32, indices: &[&Index], value: Expr) -> Stmt {
    Stmt::Store { buffer: TensorId(buffer), indices: indices.iter().map(|i| (*i).clone()).collect(), value }
}

pub fn accumulate(buffer: u32, indices: &[&Index], value: Expr) -> Stmt {
    let indices = indices.iter().map(|i| (*i).clone()).collect();
    Stmt::Accumulate { buffer: TensorId(buffer), indices, combiner: Combiner::Sum, value }
}

pub fn get(buffer: u32, indices: &[&Index]) -> Expr {
    load(TensorId(buffer), indices)
}

pub const INPUT: Scope = Scope::Argument(Role::Input);
pub const CONSTANT: Scope = Scope::Argument(Role::Constant);
pub const OUTPUT: Scope = Scope::Argument(Role::Output);
use LoopKind::{Parallel, Serial, Unroll, Vector};

/// A product of `rows × 64` in register tiles of `tile × lanes·4` over packed panels, the ragged rest of the
/// rows peeled.
///
/// ```text
/// parallel j in 0..n/w { for i in 0..m/tile {
///     unroll r, unroll q, vector l { acc[r, 16q + l] = 0 }
///     for k in 0..depth { unroll r, unroll q, vector l { acc[r, 16q + l] += a[i·tile + r, k] · panel[j, k, 16q + l] } }
///     unroll r, unroll q, vector l { c[i·tile + r, j·w + 16q + l] = acc[r, 16q + l] }
/// } }
/// ```
pub fn tiled_product([m, depth, n]: [i64; 3], tile: i64, vectors: i64, lanes: i64) -> Nest {
    let wide = vectors * lanes;
    assert_eq!(n % wide, 0);
    let f32 = DType::F32;
    let mut nest = nest(&[
        (&[m, depth], f32, INPUT),
        (&[depth, n], f32, CONSTANT),
        (&[m, n], f32, OUTPUT),
        (&[n / wide, depth, wide], f32, Scope::Packed),
        (&[tile, wide], f32, Scope::Register),
        (&[tile, wide], f32, Scope::Register),
    ]);
    let (j, k, l) = (nest.new_var("pj"), nest.new_var("pk"), nest.new_var("pl"));
    let (pj, pk, pl) = (Index::var(j), Index::var(k), Index::var(l));
    let copy = store(3, &[&pj, &pk, &pl], get(1, &[&pk, &pj.clone().times(wide).plus(&pl)]));
    let row = for_(l, wide, Vector, vec![copy]);
    nest.setup = vec![for_(j, n / wide, Serial, vec![for_(k, depth, Serial, vec![row])])];

    let j = nest.new_var("j");
    let mut body = Vec::new();
    for (acc, first, blocks, rows) in [(4, 0, m / tile, tile), (5, m / tile * tile, 1, m % tile)] {
        if rows == 0 || blocks == 0 {
            continue;
        }
        let i = nest.new_var("i");
        let tile_of = |nest: &mut Nest, point: &dyn Fn(&Index, &Index, &Index) -> Stmt| {
            let (r, q, l) = (nest.new_var("r"), nest.new_var("q"), nest.new_var("l"));
            let column = Index::var(q).times(lanes).plus(&Index::var(l));
            let row = Index::var(i).times(tile).plus(&Index::var(r)).plus_constant(first);
            let statement = point(&Index::var(r), &row, &column);
            for_(r, rows, Unroll, vec![for_(q, vectors, Unroll, vec![for_(l, lanes, Vector, vec![statement])])])
        };
        let k = nest.new_var("k");
        let zero = tile_of(&mut nest, &|r, _, column| store(acc, &[r, column], Expr::float(0.0)));
        let step = tile_of(&mut nest, &|r, row, column| {
            let (k, j) = (Index::var(k), Index::var(j));
            let product = binary(Binary::Multiply, get(0, &[row, &k]), get(3, &[&j, &k, column]));
            accumulate(acc, &[r, column], product)
        });
        let write = tile_of(&mut nest, &|r, row, column| {
            store(2, &[row, &Index::var(j).times(wide).plus(column)], get(acc, &[r, column]))
        });
        body.push(for_(i, blocks, Serial, vec![zero, for_(k, depth, Serial, vec![step]), write]));
    }
    nest.body = vec![for_(j, n / wide, Parallel, body)];
    nest
}

#[test]
fn register_tiles_over_packed_panels() {
    check("6x4", &tiled_product([20, 33, 128], 6, 4, 16), &target(), 1e-5);
    check("8x3 of 8", &tiled_product([16, 17, 48], 8, 3, 8), &target(), 1e-5);
    check("odd lanes", &tiled_product([5, 9, 26], 3, 2, 13), &target(), 1e-5);
}

#[test]
fn vectors_of_any_width() {
    for extent in [1, 2, 3, 5, 7, 8, 13, 16, 17, 31, 64] {
        let mut n = nest(&[(&[3, extent], DType::F32, INPUT), (&[3, extent], DType::F32, OUTPUT)]);
        let (i, l) = (n.new_var("i"), n.new_var("l"));
        let (row, lane) = (Index::var(i), Index::var(l));
        let value = Expr::unary(Unary::Exp, get(0, &[&row, &lane]));
        let body = store(1, &[&row, &lane], binary(Binary::Add, value, get(0, &[&row, &Index::constant(0)])));
        n.body = vec![for_(i, 3, Serial, vec![for_(l, extent, Vector, vec![body])])];
        check(&format!("{extent} lanes"), &n, &target(), 1e-6);
    }
}

/// A full tile of registers, and a narrower one into the same registers.
#[test]
fn registers_are_shared_by_accesses_of_different_width() {
    for narrow in [1, 5, 8, 13, 16] {
        let mut n = nest(&[
            (&[2, 16], DType::F32, INPUT),
            (&[2, 16], DType::F32, OUTPUT),
            (&[2, 16], DType::F32, Scope::Register),
            (&[1], DType::F32, OUTPUT),
        ]);
        let vars: Vec<Var> = (0..7).map(|i| n.new_var(format!("v{i}"))).collect();
        let at = |number: usize| Index::var(vars[number]);
        let fill = store(2, &[&at(0), &at(1)], get(0, &[&at(0), &at(1)]));
        let change = accumulate(2, &[&at(2), &at(3)], Expr::Cast(DType::F32, Box::new(Expr::Index(at(3)))));
        let write = store(1, &[&at(4), &at(5)], get(2, &[&at(4), &at(5)]));
        let single = store(3, &[&Index::constant(0)], get(2, &[&Index::constant(1), &Index::constant(3)]));
        n.body = vec![
            for_(vars[0], 2, Unroll, vec![for_(vars[1], 16, Vector, vec![fill])]),
            for_(vars[2], 2, Unroll, vec![for_(vars[3], narrow, Vector, vec![change])]),
            for_(vars[4], 2, Unroll, vec![for_(vars[5], 16, Vector, vec![write])]),
            single,
        ];
        check(&format!("{narrow} of 16 lanes"), &n, &target(), 1e-6);
    }
}

/// A register buffer with an index that only running tells lives in memory.
#[test]
fn registers_with_dynamic_indices_fall_back_to_memory() {
    let mut n = nest(&[(&[5, 4], DType::F32, INPUT), (&[5], DType::F32, OUTPUT), (&[4], DType::F32, Scope::Register)]);
    let (p, i, j) = (n.new_var("p"), n.new_var("i"), n.new_var("j"));
    let (row, a, b) = (Index::var(p), Index::var(i), Index::var(j));
    let fill = store(2, &[&a], get(0, &[&row, &a]));
    let clear = store(1, &[&row], Expr::float(0.0));
    let sum = accumulate(1, &[&row], get(2, &[&b]));
    let body = vec![for_(i, 4, Serial, vec![fill]), clear, for_(j, 4, Serial, vec![sum])];
    n.body = vec![for_(p, 5, Parallel, body)];
    check("dynamic registers", &n, &target(), 1e-6);
}

/// Guards and conditions on the vector variable become masks; what they hide lies outside of the buffer.
#[test]
fn masks_hide_what_lies_outside() {
    for (low, high) in [(0, 11), (3, 9), (0, 1)] {
        let mut n = nest(&[(&[11], DType::F32, INPUT), (&[16], DType::F32, OUTPUT), (&[16], DType::F32, OUTPUT)]);
        let (a, b, c) = (n.new_var("a"), n.new_var("b"), n.new_var("c"));
        let inside = |i: &Index| vec![Condition { index: i.clone().plus_constant(-2), low, high }];
        let i = Index::var(a);
        let value = Expr::guard(inside(&i), get(0, &[&i.clone().plus_constant(-2)]), Expr::float(-1.0));
        let all = for_(a, 16, Vector, vec![store(1, &[&i], value)]);
        let i = Index::var(b);
        let zero = for_(b, 16, Vector, vec![store(2, &[&i], Expr::float(0.0))]);
        let i = Index::var(c);
        let reversed = Index::constant(high + 1).minus(&i);
        let some = Stmt::If {
            conditions: vec![Condition { index: reversed.clone(), low: 0, high: 11 }],
            body: vec![accumulate(2, &[&i], get(0, &[&reversed]))],
        };
        n.body = vec![all, zero, for_(c, 16, Vector, vec![some])];
        check(&format!("mask {low}..{high}"), &n, &target(), 1e-6);
    }
}

/// Bounds that depend on outer loops, of serial, unrolled and vector loops.
#[test]
fn loops_with_ragged_ends() {
    for kind in [Serial, Unroll, Vector] {
        let mut n = nest(&[(&[21], DType::F32, INPUT), (&[21], DType::F32, OUTPUT)]);
        let (o, i) = (n.new_var("o"), n.new_var("i"));
        let at = Index::var(o).times(8).plus(&Index::var(i));
        let rest = Index::constant(21).minus(&Index::var(o).times(8));
        let body = vec![store(1, &[&at], binary(Binary::Multiply, get(0, &[&at]), Expr::float(3.0)))];
        let inner = Stmt::Loop(Loop { var: i, bounds: vec![8.into(), rest], kind, body });
        n.body = vec![for_(o, 3, Serial, vec![inner])];
        check(&format!("ragged {kind:?}"), &n, &target(), 0.0);
    }
}

/// Strided, transposed, divided and gathered accesses in a vector loop.
#[test]
fn lanes_that_are_not_neighbours() {
    let mut n = nest(&[
        (&[40], DType::F32, INPUT),
        (&[13], DType::I64, INPUT),
        (&[4, 13], DType::F32, OUTPUT),
        (&[13, 2], DType::F32, OUTPUT),
    ]);
    let l = n.new_var("l");
    let i = Index::var(l);
    let row = Index::constant;
    let gathered = Index::value(get(1, &[&i]));
    let beyond = gathered.clone().times(1000).plus_constant(-7);
    n.body = vec![for_(
        l,
        13,
        Vector,
        vec![
            store(2, &[&row(0), &i], get(0, &[&i.clone().times(3)])),
            store(2, &[&row(1), &i], get(0, &[&Index::constant(39).minus(&i)])),
            store(2, &[&row(2), &i], get(0, &[&i.clone().floor_div(3).plus(&i.clone().modulo(5).times(6))])),
            store(2, &[&row(3), &i], get(0, &[&gathered])),
            store(3, &[&i, &row(0)], Expr::Cast(DType::F32, Box::new(Expr::Index(i.clone().times(2))))),
            store(3, &[&i, &row(1)], get(0, &[&i])),
        ],
    )];
    check("lanes", &n, &target(), 0.0);
    // an index out of range is clamped, where the interpreter refuses it
    n.body = vec![for_(l, 13, Vector, vec![store(2, &[&row(0), &i], get(0, &[&beyond]))])];
    let kernel = Kernel::load(&n, &target()).unwrap();
    let x: Vec<f32> = (0..40).map(|i| i as f32).collect();
    let ids: Vec<i64> = (0..13).map(|i| i % 3).collect();
    let (mut y, mut z) = (vec![0f32; 52], vec![0f32; 26]);
    let pointers: [*mut u8; 4] =
        [x.as_ptr().cast_mut().cast(), ids.as_ptr().cast_mut().cast(), y.as_mut_ptr().cast(), z.as_mut_ptr().cast()];
    // SAFETY: the buffers have the shapes above
    unsafe { kernel.run(&pointers, std::ptr::null_mut()) };
    let expected: Vec<f32> = ids.iter().map(|id| if *id == 0 { 0.0 } else { 39.0 }).collect();
    assert_eq!(y[..13], expected);
}

/// Lanes go to rows of their own, unrolled iterations to neighbours; or come from there: blocks of all
/// shapes, whole registers and parts of them.
#[test]
fn blocks_across_the_lanes() {
    for (rows, lanes) in [(4, 4), (7, 16), (14, 32), (16, 16), (20, 23), (5, 40), (33, 5), (9, 64)] {
        let mut n = nest(&[
            (&[lanes, rows + 3], DType::F32, INPUT),
            (&[rows, lanes], DType::F32, INPUT),
            (&[lanes, rows], DType::F32, OUTPUT),
            (&[rows, lanes], DType::F32, OUTPUT),
        ]);
        let (row, lane) = (n.new_var("row"), n.new_var("lane"));
        let (r, l) = (Index::var(row), Index::var(lane));
        let sum = binary(Binary::Add, get(0, &[&l, &r.clone().plus_constant(2)]), get(1, &[&r, &l]));
        let block = |store: Stmt| for_(row, rows, Unroll, vec![for_(lane, lanes, Vector, vec![store])]);
        n.body = vec![block(store(2, &[&l, &r], sum.clone())), block(store(3, &[&r, &l], sum))];
        check(&format!("{rows} rows of {lanes}"), &n, &target(), 0.0);
    }
}

/// An iteration reads what the one before has stored.
#[test]
fn blocks_that_read_themselves_stay_in_order() {
    let (rows, lanes) = (8, 16);
    let mut n = nest(&[(&[lanes, rows], DType::F32, INPUT), (&[lanes, rows], DType::F32, OUTPUT)]);
    let (row, lane) = (n.new_var("row"), n.new_var("lane"));
    let (r, l, zero) = (Index::var(row), Index::var(lane), Index::constant(0));
    let next = r.clone().plus_constant(1);
    let sum = binary(Binary::Add, get(1, &[&l, &r]), get(0, &[&l, &next]));
    let running = for_(lane, lanes, Vector, vec![store(1, &[&l, &next], sum)]);
    n.body = vec![
        for_(lane, lanes, Vector, vec![store(1, &[&l, &zero], get(0, &[&l, &zero]))]),
        for_(row, rows - 1, Unroll, vec![running]),
    ];
    check("running sums", &n, &target(), 0.0);
}

/// Sums, products and extremes across lanes.
#[test]
fn reductions_across_lanes() {
    for combiner in [Combiner::Sum, Combiner::Product, Combiner::Maximum, Combiner::Minimum] {
        for (extent, dtype) in [(16, DType::F32), (11, DType::F32), (6, DType::I64), (3, DType::I32)] {
            let mut n = nest(&[(&[4, extent], dtype, INPUT), (&[4], dtype, OUTPUT)]);
            let (i, l) = (n.new_var("i"), n.new_var("l"));
            let (row, lane) = (Index::var(i), Index::var(l));
            let start = store(1, &[&row], get(0, &[&row, &Index::constant(0)]));
            let value = get(0, &[&row, &lane]);
            let step = Stmt::Accumulate { buffer: TensorId(1), indices: vec![row.clone()], combiner, value };
            n.body = vec![for_(i, 4, Parallel, vec![start, for_(l, extent, Vector, vec![step])])];
            check(&format!("{combiner:?} of {extent} {}", dtype.name()), &n, &target(), 1e-5);
        }
    }
}

/// Private buffers of the threads, and what is shared between two parallel loops.
#[test]
fn private_and_shared_scratch() {
    let mut n = nest(&[
        (&[37, 24], DType::F32, INPUT),
        (&[37, 24], DType::F32, OUTPUT),
        (&[24], DType::F32, Scope::BlockShared),
        (&[37, 24], DType::F32, Scope::Workspace),
    ]);
    let vars: Vec<Var> = (0..6).map(|i| n.new_var(format!("v{i}"))).collect();
    let at = |number: usize| Index::var(vars[number]);
    let copy = store(2, &[&at(1)], binary(Binary::Multiply, get(0, &[&at(0), &at(1)]), Expr::float(2.0)));
    let turned = Index::constant(23).minus(&at(2));
    let turn = store(3, &[&at(0), &at(2)], get(2, &[&turned]));
    let first = vec![for_(vars[1], 24, Serial, vec![copy]), for_(vars[2], 24, Serial, vec![turn])];
    let other = Index::constant(36).minus(&at(3));
    let write = store(1, &[&at(3), &at(4)], get(3, &[&other, &at(4)]));
    n.body = vec![
        for_(vars[0], 37, Parallel, first),
        for_(vars[3], 37, Parallel, vec![for_(vars[4], 24, Vector, vec![write])]),
    ];
    check("scratch", &n, &target(), 0.0);
}

/// Operators on integers and Booleans, small types in memory, casts.
#[test]
fn integers_and_booleans() {
    let ops = [
        Binary::Add,
        Binary::Subtract,
        Binary::Multiply,
        Binary::Maximum,
        Binary::Minimum,
        Binary::Divide,
        Binary::Remainder,
    ];
    for lanes in [1, 8] {
        for op in ops {
            let mut n = nest(&[(&[24], DType::I64, INPUT), (&[24], DType::I64, OUTPUT), (&[24], DType::Bool, OUTPUT)]);
            let (o, l) = (n.new_var("o"), n.new_var("l"));
            let at = Index::var(o).times(lanes).plus(&Index::var(l));
            let x = binary(Binary::Subtract, get(0, &[&at]), Expr::Index(at.clone()));
            let y = binary(Binary::Add, get(0, &[&at]), Expr::integer(1));
            let value = binary(op, x.clone(), y.clone());
            let less =
                Expr::unary(Unary::Not, binary(Binary::LessEqual, value.clone(), Expr::unary(Unary::Absolute, x)));
            let body = vec![store(1, &[&at], value), store(2, &[&at], less)];
            n.body = vec![for_(o, 24 / lanes, Serial, vec![for_(l, lanes, Vector, body)])];
            check(&format!("{op:?} of {lanes} integers"), &n, &target(), 0.0);
        }
        for (from, to) in
            [(DType::I32, DType::F32), (DType::U8, DType::I64), (DType::F32, DType::I32), (DType::Bool, DType::F32)]
        {
            let mut n = nest(&[(&[24], from, INPUT), (&[24], to, OUTPUT)]);
            let (o, l) = (n.new_var("o"), n.new_var("l"));
            let at = Index::var(o).times(lanes).plus(&Index::var(l));
            let body = vec![store(1, &[&at], Expr::Cast(to, Box::new(get(0, &[&at]))))];
            n.body = vec![for_(o, 24 / lanes, Serial, vec![for_(l, lanes, Vector, body)])];
            check(&format!("{} to {}", from.name(), to.name()), &n, &target(), 0.0);
        }
    }
}

/// Loops that cannot be executed as they ask run serially, and mean the same.
#[test]
fn promises_that_code_cannot_keep_cost_only_time() {
    // a vector of vectors, a parallel loop in one, and an unrolled loop that is too long
    let mut n = nest(&[(&[6, 5], DType::F32, INPUT), (&[6, 5], DType::F32, OUTPUT), (&[3000], DType::F32, OUTPUT)]);
    let (a, b, c, d) = (n.new_var("a"), n.new_var("b"), n.new_var("c"), n.new_var("d"));
    let (i, j) = (Index::var(a), Index::var(b));
    let inner = for_(b, 5, Vector, vec![store(1, &[&i, &j], get(0, &[&i, &j]))]);
    let long = Expr::unary(Unary::Tanh, Expr::Cast(DType::F32, Box::new(Expr::Index(Index::var(c)))));
    let long = for_(c, 3000, Unroll, vec![store(2, &[&Index::var(c)], long)]);
    n.body = vec![for_(d, 1, Parallel, vec![for_(a, 6, Vector, vec![inner]), long])];
    check("promises", &n, &target(), 1e-6);
}

#[test]
fn malformed_nests_are_refused() {
    let fails = |n: &Nest| Kernel::load(n, &target()).err().expect("an error");
    let mut n = nest(&[(&[4], DType::F32, INPUT), (&[4], DType::F32, OUTPUT)]);
    let i = n.new_var("i");
    n.body = vec![store(1, &[&Index::var(i)], Expr::float(0.0))];
    assert!(matches!(fails(&n), CodegenError::Malformed(m) if m.contains("outside of its loop")));
    n.body = vec![store(1, &[], Expr::float(0.0))];
    assert!(matches!(fails(&n), CodegenError::Malformed(m) if m.contains("dimensions")));
    n.body = vec![store(9, &[], Expr::float(0.0))];
    assert!(matches!(fails(&n), CodegenError::Malformed(_)));
    n.body = vec![for_(Var(7), 4, Serial, vec![])];
    assert!(matches!(fails(&n), CodegenError::Malformed(_)));
    n.body = vec![];
    n.buffers[1] = Buffer { shape: vec![1 << 40, 1 << 40], dtype: DType::F32, ..n.buffers[1].clone() };
    assert!(matches!(fails(&n), CodegenError::Limit(_)));
    let n = nest(&[]);
    assert!(matches!(object(&[("a b", &n)], &target()), Err(CodegenError::Malformed(_))));
    assert!(matches!(object(&[("a", &n), ("a", &n)], &target()), Err(CodegenError::Malformed(_))));
    let two = object(&[("a", &n), ("b", &n)], &target()).unwrap();
    assert_eq!(two.workspace_bytes, [0, 0]);
    assert_eq!(&two.bytes[..4], b"\x7fELF");
}

/// A processor with AVX2 alone. LLVM must not be the one that splits a row of which it finds late that no
/// lane of a half is reached: it then accesses all of them, or fails.
#[test]
fn masked_rows_are_no_wider_than_registers() {
    let haswell = std::fs::read_to_string("targets/haswell.toml").unwrap();
    let haswell = Target::from_toml(&haswell).unwrap().cpu().unwrap().clone();
    let mut n = nest(&[(&[20, 5], DType::F32, INPUT), (&[20, 9], DType::F32, OUTPUT)]);
    let (i, l) = (n.new_var("i"), n.new_var("l"));
    let (row, lane) = (Index::var(i), Index::var(l));
    // 5 elements between zeros; no lane above the ninth stores any
    let inside =
        vec![Condition { index: row.clone(), low: 0, high: 19 }, Condition { index: lane.clone(), low: 2, high: 7 }];
    let padded = Expr::guard(inside, get(0, &[&row, &lane.clone().plus_constant(-2)]), Expr::float(0.0));
    n.body = vec![for_(i, 20, Serial, vec![for_(l, 9, Vector, vec![store(1, &[&row, &lane], padded)])])];
    let ir = ir(&n, &haswell).unwrap();
    assert!(ir.contains("@llvm.masked.load.v8f32") && !ir.contains("16f32.p0("), "{ir}");
    assert!(object(&[("padded", &n)], &haswell).is_ok());
    check("padded", &n, &target(), 0.0);
    if is_x86_feature_detected!("avx2") {
        check("padded", &n, &haswell, 0.0);
    }
}
