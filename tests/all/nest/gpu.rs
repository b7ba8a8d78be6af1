//! Nests for GPUs: blocks, threads, and what the threads of a block share.
//!
//! Where `.ci/setup cuda` has put NVIDIA's assembler, kernels are assembled, too. Elsewhere a line on the
//! error output says that they were not.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use tilescribe::codegen::{CodegenError, ptx, ptx_of};
use tilescribe::nest::rewrite::Refusal;
use tilescribe::nest::rewrite::accumulate::Reduction;
use tilescribe::nest::rewrite::pack::{Content, Layout, Place};
use tilescribe::nest::{Buffer, FaultKind, Loop, LoopKind, Nest, Scope, Stmt, VerifyRule, verify};
use tilescribe::target::gpu::Gpu;
use tilescribe::workload::{Binary, Combiner, Condition, DType, Expr, Index, TensorId, Var, Workload};

use super::{LANES, binary, broken, fault, load, looped, run, store, to_floats};

pub const X: TensorId = TensorId(0);
const Y: TensorId = TensorId(1);
const OUT: TensorId = TensorId(2);
/// Tiles of both operands in shared memory, and a sum for each thread.
pub const X_TILE: TensorId = TensorId(3);
pub const Y_TILE: TensorId = TensorId(4);
pub const SUM: TensorId = TensorId(5);
/// Rows and columns of a tile.
const TILE: i64 = 8;

/// Descriptions that come with Tilescribe.
pub const SHIPPED: [(&str, &str); 6] = [
    ("sm_80", include_str!("../../../targets/gpus/sm_80.toml")),
    ("sm_86", include_str!("../../../targets/gpus/sm_86.toml")),
    ("sm_89", include_str!("../../../targets/gpus/sm_89.toml")),
    ("sm_90", include_str!("../../../targets/gpus/sm_90.toml")),
    ("sm_90a", include_str!("../../../targets/gpus/sm_90a.toml")),
    ("sm_100", include_str!("../../../targets/gpus/sm_100.toml")),
];

/// One of them.
pub fn gpu(name: &str) -> Gpu {
    let (_, text) = SHIPPED.iter().find(|(known, _)| *known == name).unwrap();
    Gpu::from_toml(text).unwrap()
}

fn h100() -> Gpu {
    gpu("sm_90")
}

pub fn product(rows: i64, columns: i64, depth: i64) -> Workload {
    let text = format!(
        "input t0 {rows} {depth}\ninput t1 {depth} {columns}\nout t2 {rows} {columns} sum {depth} mul t0 a c t1 c b\n"
    );
    text.parse().unwrap()
}

/// Two thread loops over a tile.
pub fn threads(nest: &mut Nest, body: impl FnOnce(&Index, &Index) -> Vec<Stmt>) -> Stmt {
    let (y, x) = (nest.new_var("y"), nest.new_var("x"));
    let inner = looped(LoopKind::Thread, x.0, TILE, body(&Index::var(y), &Index::var(x)));
    looped(LoopKind::Thread, y.0, TILE, vec![inner])
}

fn below(index: &Index, extent: i64) -> Condition {
    Condition { index: index.clone(), low: 0, high: extent }
}

/// A tile of a matrix, zero outside of it.
fn part_of(tensor: TensorId, shape: [i64; 2], indices: [&Index; 2]) -> Expr {
    let conditions = indices.iter().zip(shape).map(|(index, extent)| below(index, extent)).collect();
    Expr::guard(conditions, load(tensor, &indices), Expr::float(0.0))
}

/// A block for each tile of the output; tiles of the operands pass through shared memory.
pub fn tiled(rows: i64, columns: i64, depth: i64) -> Nest {
    let mut nest = Nest::naive(&product(rows, columns, depth));
    nest.body.clear();
    for (name, shape, scope) in [
        ("x", vec![TILE, TILE], Scope::BlockShared),
        ("y", vec![TILE, TILE], Scope::BlockShared),
        ("sum", vec![TILE, TILE], Scope::Register),
    ] {
        nest.add_buffer(Buffer::new(name, shape, DType::F32, scope));
    }
    let (i, j, k) = (nest.new_var("i"), nest.new_var("j"), nest.new_var("k"));
    let in_tile = |outer: Var, inner: &Index| Index::var(outer).times(TILE).plus(inner);
    let begin = threads(&mut nest, |y, x| vec![store(SUM.0, &[y.clone(), x.clone()], Expr::float(0.0))]);
    let fetch = threads(&mut nest, |y, x| {
        let tile_of_x = part_of(X, [rows, depth], [&in_tile(i, y), &in_tile(k, x)]);
        let tile_of_y = part_of(Y, [depth, columns], [&in_tile(k, y), &in_tile(j, x)]);
        vec![store(X_TILE.0, &[y.clone(), x.clone()], tile_of_x), store(Y_TILE.0, &[y.clone(), x.clone()], tile_of_y)]
    });
    let c = nest.new_var("c");
    let multiply = threads(&mut nest, |y, x| {
        let c_index = Index::var(c);
        let value = binary(Binary::Multiply, load(X_TILE, &[y, &c_index]), load(Y_TILE, &[&c_index, x]));
        let sum = Stmt::Accumulate { buffer: SUM, indices: vec![y.clone(), x.clone()], combiner: Combiner::Sum, value };
        vec![looped(LoopKind::Unroll, c.0, TILE, vec![sum])]
    });
    let end = threads(&mut nest, |y, x| {
        let (row, column) = (in_tile(i, y), in_tile(j, x));
        let conditions = vec![below(&row, rows), below(&column, columns)];
        vec![Stmt::If { conditions, body: vec![store(OUT.0, &[row.clone(), column.clone()], load(SUM, &[y, x]))] }]
    });
    let blocks = |extent: i64| (extent + TILE - 1) / TILE;
    let steps = looped(LoopKind::Serial, k.0, blocks(depth), vec![fetch, multiply]);
    let inner = looped(LoopKind::Block, j.0, blocks(columns), vec![begin, steps, end]);
    nest.body = vec![looped(LoopKind::Block, i.0, blocks(rows), vec![inner])];
    nest
}

/// The statements of the innermost block loop.
pub fn inside(nest: &mut Nest) -> &mut Vec<Stmt> {
    let mut body = &mut nest.body;
    loop {
        match body.as_mut_slice() {
            [Stmt::Loop(Loop { kind: LoopKind::Block, .. })] => {}
            _ => return body,
        }
        let [Stmt::Loop(l)] = body.as_mut_slice() else { unreachable!("it was one") };
        body = &mut l.body;
    }
}

/// What two thread loops hold.
pub fn of_threads(statement: &mut Stmt) -> &mut Vec<Stmt> {
    let Stmt::Loop(outer) = statement else { panic!("a loop") };
    let [Stmt::Loop(inner)] = outer.body.as_mut_slice() else { panic!("one loop inside of another") };
    &mut inner.body
}

#[test]
fn a_tiled_product_is_right_where_tiles_are_ragged_and_where_not() {
    for (rows, columns, depth) in [(16, 8, 24), (19, 13, 11), (1, 1, 1)] {
        let expected = to_floats(&run(&Nest::naive(&product(rows, columns, depth))).unwrap()[2]);
        let nest = tiled(rows, columns, depth);
        assert_eq!(verify(&nest, LANES), Ok(()), "{nest}");
        let found = to_floats(&run(&nest).unwrap()[2]);
        for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert!((found - expected).abs() <= 1e-5 * expected.abs().max(1.0), "{at}: {found} {expected}\n{nest}");
        }
    }
}

#[test]
fn what_a_condition_reads_is_waited_for() {
    let barriers = |nest: &Nest| {
        assert_eq!(verify(nest, LANES), Ok(()), "{nest}");
        ptx(nest, &h100()).map(|found| found.text.matches("bar.sync").count())
    };
    let mut nest = tiled(16, 16, 16);
    let flags = nest.add_buffer(Buffer::new("flags", vec![TILE, TILE], DType::I64, Scope::BlockShared));
    let raise = threads(&mut nest, |y, x| vec![store(flags.0, &[y.clone(), x.clone()], Expr::integer(1))]);
    let at = inside(&mut nest).len() - 1;
    inside(&mut nest).insert(at, raise);
    assert_eq!(barriers(&nest).unwrap(), 2, "{nest}");
    let zero = Index::constant(0);
    let raised = Condition { index: Index::value(load(flags, &[&zero, &zero])), low: 1, high: 2 };
    // of a thread
    let mut within = nest.clone();
    if let Stmt::If { conditions, .. } = &mut of_threads(inside(&mut within).last_mut().unwrap())[0] {
        conditions.push(raised.clone());
    }
    assert_eq!(barriers(&within).unwrap(), 3, "{within}");
    run(&within).unwrap();
    // of all threads, who would have to wait before they ask
    let last = inside(&mut nest).pop().unwrap();
    inside(&mut nest).push(Stmt::If { conditions: vec![raised], body: vec![last] });
    assert!(matches!(barriers(&nest), Err(CodegenError::Unsupported(_))));
}

fn replace(statement: &mut Stmt, by: &dyn Fn(Var) -> Option<Index>) {
    match statement {
        Stmt::Loop(l) => l.body.iter_mut().for_each(|statement| replace(statement, by)),
        Stmt::If { body, .. } => body.iter_mut().for_each(|statement| replace(statement, by)),
        Stmt::Store { indices, value, .. } | Stmt::Accumulate { indices, value, .. } => {
            indices.iter_mut().for_each(|index| *index = index.substitute(by));
            *value = value.substitute(by);
        }
    }
}

#[test]
fn a_block_waits_where_it_must_and_nowhere_else() {
    let found = ptx(&tiled(19, 13, 11), &h100()).unwrap();
    let [launch] = found.launches.as_slice() else { panic!("one grid") };
    assert_eq!((launch.blocks, launch.threads, launch.shared_bytes), (3 * 2, 64, 2 * 256));
    assert!(found.text.contains(".target sm_90") && found.text.contains(&format!(".entry {}", launch.symbol)));
    // before a tile is fetched over the last one, and before it is used; the sums are every thread's own
    let barriers = found.text.matches("bar.sync").count() + found.text.matches("barrier.sync").count();
    assert_eq!(barriers, 2, "{}", found.text);
    assert_eq!(found.workspace_bytes, 0);
    // sums live in registers: nothing is kept in local memory
    assert!(!found.text.contains(".local"), "{}", found.text);
}

/// Rows of `threads` elements, summed: a thread for each element, which combine in shared memory.
fn summed(rows: i64, threads: i64) -> Nest {
    let text = format!("input t0 {rows} {threads}\nout t1 {rows} sum {threads} t0 a b\n");
    let mut nest = Nest::naive(&text.parse().unwrap());
    nest.body.clear();
    let sum = Buffer::new("sum", vec![rows], DType::F32, Scope::BlockShared);
    let sum = nest.add_buffer(sum);
    let one = nest.new_var("one");
    let mut phase = |body: &dyn Fn(&Index, &Index) -> Stmt, threads: i64| {
        let (y, x) = (nest.new_var("y"), nest.new_var("x"));
        let inner = looped(LoopKind::Thread, x.0, threads, vec![body(&Index::var(y), &Index::var(x))]);
        looped(LoopKind::Thread, y.0, rows, vec![inner])
    };
    let begin = phase(&|y, _| store(sum.0, std::slice::from_ref(y), Expr::float(0.0)), 1);
    let add = |y: &Index, x: &Index| {
        let value = load(TensorId(0), &[y, x]);
        Stmt::Accumulate { buffer: sum, indices: vec![y.clone()], combiner: Combiner::Sum, value }
    };
    let combine = phase(&add, threads);
    let end = phase(&|y, _| store(1, std::slice::from_ref(y), load(sum, &[y])), 1);
    nest.body = vec![looped(LoopKind::Block, one.0, 1, vec![begin, combine, end])];
    nest
}

#[test]
fn threads_combine_their_values() {
    let nest = summed(3, 8);
    assert_eq!(verify(&nest, LANES), Ok(()), "{nest}");
    run(&nest).unwrap();
    let text = ptx(&nest, &h100()).unwrap().text;
    assert_eq!(text.matches("shfl.sync.bfly").count(), 3, "{text}");
    // no power of two, and more than a warp
    for threads in [6, 64] {
        assert!(matches!(broken(&summed(3, threads)), VerifyRule::ThreadReduction { .. }), "{threads}");
    }
    // a condition keeps some of them out
    let mut nest = summed(3, 8);
    let combine = of_threads(&mut inside(&mut nest)[1]);
    let conditions = vec![below(&Index::constant(0), 1)];
    *combine = vec![Stmt::If { conditions, body: combine.clone() }];
    assert!(matches!(broken(&nest), VerifyRule::ThreadReduction { .. }), "{nest}");
    // what they combine nobody reads before they meet
    let mut nest = summed(3, 8);
    let [_, combine, end] = inside(&mut nest).as_mut_slice() else { panic!("three phases") };
    let Stmt::Loop(outer) = combine else { panic!("threads") };
    let y = Index::var(outer.var);
    let Stmt::Loop(last) = end else { panic!("threads") };
    let own = last.var;
    let mut early = of_threads(end).clone();
    early.iter_mut().for_each(|statement| replace(statement, &|var| (var == own).then(|| y.clone())));
    of_threads(combine).extend(early);
    assert!(matches!(fault(&nest), FaultKind::Race { .. }), "{nest}");
}

#[test]
fn matrices_have_their_places() {
    let mut nest = summed(3, 8);
    let Stmt::Loop(outer) = &mut inside(&mut nest)[1] else { panic!("threads") };
    let Stmt::Loop(inner) = &mut outer.body[0] else { panic!("threads") };
    inner.kind = LoopKind::Matrix;
    assert_eq!(broken(&nest), VerifyRule::MatrixPlace, "{nest}");
}

/// Registers of a thread, and bytes that it spills, of each kernel; `None` where there is no assembler.
pub fn assembled(text: &str, architecture: &str) -> Option<Vec<(u32, u32)>> {
    let ptxas = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/cuda/nvidia/cu13/bin/ptxas");
    if !ptxas.exists() {
        let _ = writeln!(std::io::stderr(), "not assembled: there is no {}", ptxas.display());
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("kernel.ptx");
    std::fs::write(&source, text).unwrap();
    let mut command = Command::new(ptxas);
    command.args(["-v", &format!("-arch={architecture}"), "-o", "/dev/null"]).arg(source).stdin(Stdio::null());
    let done = command.output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr).to_string();
    assert!(done.status.success(), "{said}\n{text}");
    let number = |line: &str, before: &str| -> Option<u32> {
        line[..line.find(before)?].rsplit([' ', ',']).next()?.trim().parse().ok()
    };
    let registers = said.lines().filter_map(|line| number(line, " registers"));
    let spills = said.lines().filter_map(|line| number(line, " bytes spill stores"));
    Some(registers.zip(spills).collect())
}

#[test]
fn the_assembler_takes_kernels_of_every_generation() {
    for (architecture, _) in SHIPPED {
        let found = ptx(&tiled(19, 13, 11), &gpu(architecture)).unwrap();
        if let Some(kernels) = assembled(&found.text, architecture) {
            let [(registers, spilled)] = kernels[..] else { panic!("one kernel: {kernels:?}") };
            assert!((1..=64).contains(&registers) && spilled == 0, "{architecture}: {registers} {spilled}");
        }
    }
}

/// The same product by rewrites of the plain nest: tiles of 32 by 16 for a block, of 4 by 2 for each of its
/// 64 threads, 8 of the depth at a time.
fn scheduled(workload: &Workload) -> Result<Nest, Refusal> {
    let (nest, stages) = Nest::naive_with_vars(workload);
    let [a, b, c] = stages[0].axes[..] else { panic!("three axes") };
    let (nest, block_a, a) = nest.split(a, 32)?;
    let (nest, thread_a, a) = nest.split(a, 4)?;
    let (nest, block_b, b) = nest.split(b, 16)?;
    let (nest, thread_b, b) = nest.split(b, 2)?;
    let (nest, step, c) = nest.split(c, 8)?;
    let mut nest = nest.reorder(&[block_a, block_b, step, thread_a, thread_b, c, a, b])?;
    for (var, kind) in [
        (block_a, LoopKind::Block),
        (block_b, LoopKind::Block),
        (thread_a, LoopKind::Thread),
        (thread_b, LoopKind::Thread),
        (c, LoopKind::Unroll),
        (a, LoopKind::Unroll),
        (b, LoopKind::Unroll),
    ] {
        nest = nest.set_kind(var, kind)?;
    }
    nest = nest.accumulate(OUT, block_b, &Reduction::default(), None)?;
    for (tensor, lanes) in [(X, 1), (Y, 2)] {
        nest = nest.pack(block_a, (tensor, 0), Place::Inside(step), (Layout::Panel, Content::Own))?;
        let Some(copy) = first_loop_inside(&nest.body, step) else { panic!("a copy") };
        nest = nest.cooperate(copy, 64, lanes)?;
    }
    Ok(nest.fill_tails())
}

/// The first loop among the statements of another.
fn first_loop_inside(statements: &[Stmt], of: Var) -> Option<Var> {
    statements.iter().find_map(|statement| match statement {
        Stmt::Loop(l) if l.var == of => match l.body.first() {
            Some(Stmt::Loop(inner)) => Some(inner.var),
            _ => None,
        },
        Stmt::Loop(Loop { body, .. }) | Stmt::If { body, .. } => first_loop_inside(body, of),
        Stmt::Store { .. } | Stmt::Accumulate { .. } => None,
    })
}

#[test]
fn rewrites_schedule_a_product_for_threads() {
    for (rows, columns, depth) in [(64, 32, 16), (37, 29, 19), (5, 3, 2)] {
        let workload = product(rows, columns, depth);
        let expected = to_floats(&run(&Nest::naive(&workload)).unwrap()[2]);
        let nest = scheduled(&workload).unwrap();
        assert_eq!(verify(&nest, LANES), Ok(()), "{nest}");
        let found = to_floats(&run(&nest).unwrap_or_else(|e| panic!("{e}\n{nest}"))[2]);
        for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert!((found - expected).abs() <= 1e-5 * expected.abs().max(1.0), "{at}: {found} {expected}\n{nest}");
        }
        let text = ptx(&nest, &h100()).unwrap().text;
        // before a tile is used, and where there are several, before the next one is fetched over it
        let barriers = text.matches("bar.sync").count() + text.matches("barrier.sync").count();
        assert_eq!(barriers, if depth > 8 { 2 } else { 1 }, "{nest}\n{text}");
        if let Some(kernels) = assembled(&text, "sm_90") {
            assert!(kernels.iter().all(|(_, spilled)| *spilled == 0), "{kernels:?}");
        }
    }
}

/// Twice a vector, in steps of four elements a thread, from an element on.
fn doubled(first: i64) -> Nest {
    let (steps, threads, lanes) = (4, 32, 4);
    let extent = steps * threads * lanes;
    let workload: Workload =
        format!("input t0 {}\nout t1 {extent} mul 2.0 t0 + a {first}\n", extent + first).parse().unwrap();
    let (nest, stages) = Nest::naive_with_vars(&workload);
    let (nest, outer, lane) = nest.split(stages[0].axes[0], lanes).unwrap();
    let (nest, block, thread) = nest.split(outer, threads).unwrap();
    let kinds = [(block, LoopKind::Block), (thread, LoopKind::Thread), (lane, LoopKind::Vector)];
    kinds.into_iter().fold(nest, |nest, (var, kind)| nest.set_kind(var, kind).unwrap())
}

#[test]
fn vectors_are_loaded_at_once_where_their_place_allows() {
    for (first, loads) in [(0, "v4"), (4, "v4"), (6, "v2")] {
        let nest = doubled(first);
        assert_eq!(verify(&nest, LANES), Ok(()), "{nest}");
        run(&nest).unwrap();
        let text = ptx(&nest, &h100()).unwrap().text;
        let wide = |kind: &str, of: &str| text.lines().any(|line| line.contains(kind) && line.contains(of));
        assert!(wide("ld.global", loads) && wide("st.global", "v4"), "{first}: {text}");
        // arguments that start anywhere in a buffer
        let text = ptx_of("kernel", &nest, &h100(), 4).unwrap().text;
        assert!(text.contains("ld.global") && !text.contains(".v2") && !text.contains(".v4"), "{first}: {text}");
    }
}

#[test]
fn what_a_gpu_cannot_start_is_refused() {
    let naive = ptx(&Nest::naive(&product(4, 4, 4)), &h100());
    assert!(matches!(naive, Err(CodegenError::Malformed(_))), "{naive:?}");
    // a thread loop that does not always run in full
    let mut nest = tiled(16, 16, 16);
    if let Stmt::Loop(threads) = inside(&mut nest).last_mut().unwrap() {
        threads.bounds.push(Index::constant(3));
    }
    assert!(matches!(ptx(&nest, &h100()), Err(CodegenError::Malformed(_))));
    let mut nest = tiled(16, 16, 16);
    nest.buffers[X_TILE.0 as usize].shape = vec![TILE, 1 << 20];
    assert!(matches!(ptx(&nest, &h100()), Err(CodegenError::Limit(_))));
}
