//! Random programs of the space compute what the plain nest computes.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Decision, Next, Policy, Space, Trace, Untuned};
use crate::nest::{Nest, Scope, interpret, verify};
use crate::target::{Kind, Task, avx512};
use crate::workload::{Binary, Combiner, Condition, DType, Expr, Index, Role, Stage, TensorId, Unary, Var, Workload};

struct Uniform(ChaCha8Rng);

impl Policy for Uniform {
    fn pick(&mut self, decision: &Decision) -> usize {
        self.0.random_range(0..decision.candidates.len())
    }
}

fn v(axis: u32) -> Index {
    Index::var(Var(axis))
}

fn multiply(x: Expr, y: Expr) -> Expr {
    Expr::binary(Binary::Multiply, x, y)
}

/// `relu(a[m, k] · b[k, n] + bias[n])`
fn dense(m: i64, k: i64, n: i64) -> Workload {
    let mut w = Workload::default();
    let a = w.add_tensor(vec![m, k], DType::F32, Role::Input);
    let b = w.add_tensor(vec![k, n], DType::F32, Role::Constant);
    let bias = w.add_tensor(vec![n], DType::F32, Role::Constant);
    let t = w.add_tensor(vec![m, n], DType::F32, Role::Intermediate);
    let y = w.add_tensor(vec![m, n], DType::F32, Role::Output);
    let product = multiply(Expr::load(a, vec![v(0), v(2)]), Expr::load(b, vec![v(2), v(1)]));
    w.stages.push(Stage::reduce(t, vec![m, n], vec![k], Combiner::Sum, product));
    let sum = Expr::binary(Binary::Add, Expr::load(t, vec![v(0), v(1)]), Expr::load(bias, vec![v(1)]));
    let relu = Expr::binary(Binary::Maximum, sum, Expr::float(0.0));
    w.stages.push(Stage::map(y, vec![m, n], relu));
    w
}

/// A padded convolution of `c` channels of `h × w` pixels to `o` channels.
fn convolution(c: i64, h: i64, w_: i64, o: i64, kernel: i64, stride: i64) -> Workload {
    let pad = kernel / 2;
    let (oh, ow) = ((h + 2 * pad - kernel) / stride + 1, (w_ + 2 * pad - kernel) / stride + 1);
    let mut w = Workload::default();
    let x = w.add_tensor(vec![c, h, w_], DType::F32, Role::Input);
    let f = w.add_tensor(vec![o, c, kernel, kernel], DType::F32, Role::Constant);
    let y = w.add_tensor(vec![o, oh, ow], DType::F32, Role::Output);
    let row = v(1).times(stride).plus(&v(4)).plus_constant(-pad);
    let column = v(2).times(stride).plus(&v(5)).plus_constant(-pad);
    let inside =
        vec![Condition { index: row.clone(), low: 0, high: h }, Condition { index: column.clone(), low: 0, high: w_ }];
    let pixel = Expr::guard(inside, Expr::load(x, vec![v(3), row, column]), Expr::float(0.0));
    let product = multiply(pixel, Expr::load(f, vec![v(0), v(3), v(4), v(5)]));
    w.stages.push(Stage::reduce(y, vec![o, oh, ow], vec![c, kernel, kernel], Combiner::Sum, product));
    w
}

fn softmax(rows: i64, columns: i64) -> Workload {
    let mut w = Workload::default();
    let x = w.add_tensor(vec![rows, columns], DType::F32, Role::Input);
    let most = w.add_tensor(vec![rows], DType::F32, Role::Intermediate);
    let e = w.add_tensor(vec![rows, columns], DType::F32, Role::Intermediate);
    let sum = w.add_tensor(vec![rows], DType::F32, Role::Intermediate);
    let y = w.add_tensor(vec![rows, columns], DType::F32, Role::Output);
    w.stages.push(Stage::reduce(most, vec![rows], vec![columns], Combiner::Maximum, Expr::load(x, vec![v(0), v(1)])));
    let shifted = Expr::binary(Binary::Subtract, Expr::load(x, vec![v(0), v(1)]), Expr::load(most, vec![v(0)]));
    w.stages.push(Stage::map(e, vec![rows, columns], Expr::unary(Unary::Exp, shifted)));
    w.stages.push(Stage::reduce(sum, vec![rows], vec![columns], Combiner::Sum, Expr::load(e, vec![v(0), v(1)])));
    let quotient = Expr::binary(Binary::Divide, Expr::load(e, vec![v(0), v(1)]), Expr::load(sum, vec![v(0)]));
    w.stages.push(Stage::map(y, vec![rows, columns], quotient));
    w
}

/// `softmax(q · kᵀ) · v`, `[heads, queries, width]`
fn attention(heads: i64, queries: i64, keys: i64, width: i64) -> Workload {
    let mut w = Workload::default();
    let q = w.add_tensor(vec![heads, queries, width], DType::F32, Role::Input);
    let k = w.add_tensor(vec![heads, keys, width], DType::F32, Role::Input);
    let values = w.add_tensor(vec![heads, keys, width], DType::F32, Role::Input);
    let (rows, wide) = (vec![heads, queries], vec![heads, queries, keys]);
    let scores = w.add_tensor(wide.clone(), DType::F32, Role::Intermediate);
    let most = w.add_tensor(rows.clone(), DType::F32, Role::Intermediate);
    let e = w.add_tensor(wide.clone(), DType::F32, Role::Intermediate);
    let sum = w.add_tensor(rows.clone(), DType::F32, Role::Intermediate);
    let weights = w.add_tensor(wide.clone(), DType::F32, Role::Intermediate);
    let y = w.add_tensor(vec![heads, queries, width], DType::F32, Role::Output);
    let row = |t| Expr::load(t, vec![v(0), v(1)]);
    let point = |t| Expr::load(t, vec![v(0), v(1), v(2)]);
    let product = multiply(Expr::load(q, vec![v(0), v(1), v(3)]), Expr::load(k, vec![v(0), v(2), v(3)]));
    w.stages.push(Stage::reduce(scores, wide.clone(), vec![width], Combiner::Sum, product));
    w.stages.push(Stage::reduce(most, rows.clone(), vec![keys], Combiner::Maximum, point(scores)));
    let shifted = Expr::binary(Binary::Subtract, point(scores), row(most));
    w.stages.push(Stage::map(e, wide.clone(), Expr::unary(Unary::Exp, shifted)));
    w.stages.push(Stage::reduce(sum, rows, vec![keys], Combiner::Sum, point(e)));
    w.stages.push(Stage::map(weights, wide, Expr::binary(Binary::Divide, point(e), row(sum))));
    let product = multiply(Expr::load(weights, vec![v(0), v(1), v(3)]), Expr::load(values, vec![v(0), v(3), v(2)]));
    w.stages.push(Stage::reduce(y, vec![heads, queries, width], vec![keys], Combiner::Sum, product));
    w
}

fn transpose(rows: i64, columns: i64) -> Workload {
    let mut w = Workload::default();
    let x = w.add_tensor(vec![columns, rows], DType::F32, Role::Input);
    let y = w.add_tensor(vec![rows, columns], DType::F32, Role::Output);
    w.stages.push(Stage::map(y, vec![rows, columns], Expr::load(x, vec![v(1), v(0)])));
    w
}

fn total(n: i64) -> Workload {
    let mut w = Workload::default();
    let x = w.add_tensor(vec![n], DType::F32, Role::Input);
    let y = w.add_tensor(vec![], DType::F32, Role::Output);
    w.stages.push(Stage::reduce(y, vec![], vec![n], Combiner::Sum, Expr::load(x, vec![v(0)])));
    w
}

/// Runs a nest on fixed random inputs and gives the outputs.
fn run(nest: &Nest) -> Result<Vec<f32>, String> {
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let ids = nest.arguments();
    let mut memory: Vec<Vec<u8>> = ids
        .iter()
        .map(|id| {
            let buffer = nest.buffer(*id);
            let element = |_| match buffer.scope {
                Scope::Argument(Role::Input | Role::Constant) => rng.random_range(-1.0f32..1.0),
                _ => f32::NAN,
            };
            (0..buffer.elements()).map(element).flat_map(f32::to_le_bytes).collect()
        })
        .collect();
    interpret(nest, &mut memory).map_err(|fault| fault.to_string())?;
    let outputs = ids.iter().zip(&memory).filter(|(id, _)| nest.buffer(**id).scope == Scope::Argument(Role::Output));
    Ok(outputs
        .flat_map(|(_, bytes)| bytes.chunks_exact(4).map(|c| f32::from_le_bytes([c[0], c[1], c[2], c[3]])))
        .collect())
}

fn check(name: &str, workload: Workload, samples: u64) {
    let task = Task { workload, target: avx512() };
    let expected = run(&Nest::naive(&task.workload)).expect("the plain nest runs");
    let space = Space::standard();
    for seed in 0..=samples {
        let (trace, nest) = match seed {
            0 => space.drive(&task, &mut Untuned),
            _ => space.drive(&task, &mut Uniform(ChaCha8Rng::seed_from_u64(seed))),
        };
        let nest = nest.unwrap_or_else(|reason| panic!("{name}, seed {seed}: {reason}\n{trace}"));
        verify(&nest, task.target.lanes()).unwrap_or_else(|e| panic!("{name}, seed {seed}: {e}\n{trace}\n{nest}"));
        let actual = run(&nest).unwrap_or_else(|fault| panic!("{name}, seed {seed}: {fault}\n{trace}\n{nest}"));
        let close = |(x, y): (&f32, &f32)| (x - y).abs() <= 1e-4 * (1.0 + y.abs());
        let equal = actual.len() == expected.len() && actual.iter().zip(&expected).all(close);
        assert!(equal, "{name}, seed {seed}: wrong result\n{trace}\n{nest}");
        replays(&space, &task, &trace, &nest);
    }
}

/// Every choice was a candidate at its prefix, and the whole trace leads to the same nest.
fn replays(space: &Space, task: &Task, trace: &Trace, nest: &Nest) {
    for length in 0..trace.0.len() {
        let prefix = Trace(trace.0[..length].to_vec());
        let Ok(Next::Choose(decision)) = space.next(task, &prefix) else { panic!("no decision after\n{prefix}") };
        assert_eq!(decision.site, trace.0[length].site);
        assert!(decision.candidates.contains(&trace.0[length].value));
    }
    let Ok(Next::Done(again)) = space.next(task, trace) else { panic!("not finished after\n{trace}") };
    assert_eq!(&again, nest);
}

#[test]
fn dense_programs_are_right() {
    check("dense", dense(13, 37, 41), 60);
    check("dense deep", dense(7, 197, 19), 40);
    check("dense one row", dense(1, 131, 53), 30);
}

#[test]
fn convolutions_are_right() {
    check("convolution", convolution(3, 9, 11, 7, 3, 1), 60);
    check("strided convolution", convolution(5, 13, 13, 6, 3, 2), 40);
    check("deep convolution", convolution(17, 5, 7, 19, 3, 1), 40);
}

/// As untuned, but for one site, where the first candidate is taken.
struct First(&'static str);

impl Policy for First {
    fn pick(&mut self, decision: &Decision) -> usize {
        if decision.site.to_string() == self.0 { 0 } else { decision.default }
    }
}

#[test]
fn what_a_reduction_block_leaves_lies_in_the_order_of_the_registers() {
    let task = Task { workload: convolution(64, 8, 14, 32, 3, 1), target: avx512() };
    let (trace, nest) = Space::standard().drive(&task, &mut First("depth s0 d"));
    let nest = nest.unwrap();
    let tile =
        |axis: &str| trace.0.iter().find(|c| c.site.to_string() == format!("tile s0 {axis}")).unwrap().value.clone();
    assert_eq!((tile("a").as_number(), tile("c").as_number()), (Some(32), Some(14)), "{trace}");
    let partial = nest.buffers.iter().find(|b| b.name.ends_with("_part")).expect("the reduction is blocked");
    assert_eq!(partial.scope, Scope::BlockShared);
    assert_eq!(partial.shape.last(), Some(&32), "vectors run along the last dimension: {:?}", partial.shape);
    // the output is written once, after the last block
    assert_eq!(nest.to_string().matches("t2[").count(), 1, "{nest}");
}

#[test]
fn untuned_convolutions_run_in_vectors_of_output_channels() {
    let vector = |workload| {
        let task = Task { workload, target: avx512() };
        let (trace, _) = Space::standard().exact(true).drive(&task, &mut Untuned);
        trace.0.into_iter().find(|c| c.site.to_string() == "vector s0").unwrap().value.to_string()
    };
    assert_eq!(vector(convolution(64, 14, 14, 64, 3, 1)), "a");
    assert_eq!(vector(convolution(64, 28, 28, 64, 3, 2)), "a");
    // too few of them, or neighbours that need no copy
    assert_eq!(vector(convolution(64, 56, 56, 3, 3, 1)), "c");
    assert_eq!(vector(dense(64, 64, 64)), "b");
}

#[test]
fn untuned_products_of_few_steps_run_in_vectors_of_results() {
    let vector = |operand: &str, rows: i64, results: i64, steps: i64| {
        let text = format!(
            "{operand} t0 {results} {steps}\ninput t1 {rows} {steps}\nout t2 {rows} {results} sum {steps} mul t0 b c t1 a c\n"
        );
        let task = Task { workload: text.parse().unwrap(), target: avx512() };
        let (trace, _) = Space::standard().drive(&task, &mut Untuned);
        trace.0.into_iter().find(|c| c.site.to_string() == "vector s0").unwrap().value.to_string()
    };
    assert_eq!((vector("const", 190, 48, 13), vector("const", 190, 48, 40)), ("b".into(), "b".into()));
    // the lanes of a reduction are worth combining behind more steps where nothing is packed beforehand, and
    // where results fill no vector
    assert_eq!((vector("input", 190, 48, 72), vector("const", 8, 10, 13)), ("c".into(), "c".into()));
}

#[test]
fn rows_are_right() {
    check("softmax", softmax(5, 37), 60);
    check("attention", attention(2, 17, 19, 8), 60);
    check("attention of one head", attention(1, 37, 8, 3), 30);
    check("transpose", transpose(23, 37), 30);
    check("total", total(1009), 20);
}

#[test]
fn untuned_attention_goes_through_the_keys_once_for_a_block_of_queries() {
    let block = |workload: Workload| {
        let task = Task { workload, target: avx512() };
        let (trace, nest) = Space::standard().drive(&task, &mut Untuned);
        let nest = nest.unwrap_or_else(|reason| panic!("{reason}\n{trace}"));
        verify(&nest, task.target.lanes()).unwrap_or_else(|e| panic!("{e}\n{trace}\n{nest}"));
        // nothing of the size of the scores is left
        let scratch = nest.buffers.iter().filter(|b| matches!(b.scope, Scope::Workspace | Scope::BlockShared));
        assert!(scratch.clone().all(|b| b.scope == Scope::BlockShared && b.bytes() <= 64 << 10), "{nest}");
        trace.0.into_iter().find(|c| c.site.to_string() == "block rows b").unwrap().value.as_number()
    };
    assert_eq!(block(attention(12, 128, 128, 64)), Some(32));
    assert_eq!(block(attention(12, 197, 197, 64)), Some(32));
    // otherwise some thread has nothing to do
    assert_eq!(block(attention(2, 37, 37, 64)), Some(12));
    // nothing is shared by rows of a softmax
    let task = Task { workload: softmax(64, 37), target: avx512() };
    let (trace, _) = Space::standard().drive(&task, &mut Untuned);
    let rows = trace.0.into_iter().find(|c| c.site.to_string() == "block rows a").unwrap();
    assert_eq!(rows.value.as_number(), Some(1));
}

/// Keys and values belong to a head: where those of all heads are more than the cache holds, all rows of one
/// come before the next head.
#[test]
fn heads_come_before_rows_where_their_keys_are_many() {
    let of_tokens = |tokens: i64| -> Workload {
        let text = format!(
            "input t0 {tokens} 6 64\ninput t1 6 64 {tokens}\ninput t2 6 {tokens} 64\n\
             let t3 {tokens} 6 {tokens} sum 64 mul t0 a b d t1 b d c\nlet t4 {tokens} 6 maxof {tokens} t3 a b c\n\
             let t5 like t3 exp sub t3 a b c t4 a b\nlet t6 like t4 sum {tokens} t5 a b c\n\
             let t7 like t3 div t5 a b c t6 a b\nout t8 {tokens} 6 64 sum {tokens} mul t2 b d c t7 a b d\n"
        );
        text.parse().unwrap()
    };
    let outermost = |tokens: i64| {
        let task = Task { workload: of_tokens(tokens), target: avx512() };
        let (trace, nest) = Space::standard().drive(&task, &mut Untuned);
        assert!(nest.is_ok(), "{trace}");
        trace.0.into_iter().find(|c| c.site.to_string() == "outer rows").unwrap().value.to_string()
    };
    assert_eq!((outermost(64), outermost(1500)), ("a".into(), "b".into()));
    check("attention, heads inside", of_tokens(9), 40);
}

/// Steps that lie powers of two apart leave the second cache before the next tile reads them again; and what
/// comes from beyond it page by page is not fetched ahead.
#[test]
fn what_is_read_again_from_far_away_is_copied() {
    let copied = |steps: i64, columns: i64| {
        let text = format!(
            "const t0 64 {steps}\ninput t1 {steps} {columns}\nout t2 64 {columns} sum {steps} mul t0 a c t1 c b\n"
        );
        let task = Task { workload: text.parse().unwrap(), target: avx512() };
        let (trace, nest) = Space::standard().drive(&task, &mut Untuned);
        assert!(nest.is_ok(), "{trace}");
        let answer = |site: &str| trace.0.iter().find(|c| c.site.to_string() == site).unwrap().value.to_string();
        (answer("vector s0"), answer("pack s0 t1"))
    };
    let expected = |vector: &str, pack: &str| (vector.to_string(), pack.to_string());
    assert_eq!(copied(256, 4096), expected("b", "outer panel"));
    assert_eq!(copied(256, 4000), expected("b", "none"));
    assert_eq!(copied(1024, 3136), expected("a", "before panel"));
    assert_eq!(copied(1024, 196), expected("a", "none"));
}

/// Decisions of rules that came later are unknown to a version, but only some programs need them.
#[test]
fn a_version_writes_the_programs_of_before() {
    let space = Space::standard();
    let task = Task { workload: attention(12, 128, 128, 64), target: avx512() };
    let before = space.version(Kind::Cpu).replace("+row-order-1", "");
    let reader = space.reader(Kind::Cpu, &before).unwrap();
    let (trace, _) = space.drive(&task, &mut Untuned);
    assert!(reader.writes(&task, &trace).unwrap(), "{trace}");
    let mut other = trace.clone();
    let order = other.0.iter_mut().find(|c| c.site.to_string() == "outer rows").unwrap();
    assert_eq!(order.value.to_string(), "a");
    order.value = "b".into();
    assert!(space.offers(&task, &other) && !reader.writes(&task, &other).unwrap(), "{other}");
    assert!(space.reader(Kind::Cpu, &space.version(Kind::Cpu)).unwrap().writes(&task, &other).unwrap());
}

#[test]
fn a_window_without_padding_is_packed_both_ways() {
    let mut w = Workload::default();
    let x = w.add_tensor(vec![4, 20], DType::F32, Role::Input);
    let f = w.add_tensor(vec![6, 4, 3], DType::F32, Role::Input);
    let y = w.add_tensor(vec![6, 18], DType::F32, Role::Output);
    let product = multiply(Expr::load(x, vec![v(2), v(1).plus(&v(3))]), Expr::load(f, vec![v(0), v(2), v(3)]));
    w.stages.push(Stage::reduce(y, vec![6, 18], vec![4, 3], Combiner::Sum, product));
    assert_eq!(w.stages[0].output, TensorId(2));
    check("window", w, 60);
}

/// As a zero point that is computed when the network runs: it goes into the copies of what it borders.
#[test]
fn what_borders_hold_is_no_operand_of_its_own() {
    let text = "const t0 8 4 3 3\ninput t1 4 9 9\ninput t2\n\
        out t3 8 9 9 sum 4 3 3 mul t0 a d e f pad t2 t1 d ? + b + e -1 ? + c + f -1\n";
    check("border", text.parse().unwrap(), 60);
}

#[test]
fn an_exact_space_leaves_winograd_out() {
    let text = "const t0 8 16 3 3\ninput t1 16 12 12\n\
        out t2 8 12 12 sum 16 3 3 mul t0 a d e f pad 0.0 t1 d ? + b + e -1 ? + c + f -1\n";
    let task = Task { workload: text.parse().unwrap(), target: avx512() };
    let (all, exact) = (Space::standard(), Space::standard().exact(true));
    assert_eq!(all.version(Kind::Cpu), exact.version(Kind::Cpu));

    let algorithm: Trace = "algorithm = winograd 4\n".parse().unwrap();
    assert!(matches!(all.question(&task, &algorithm), Ok(Ok(Some(_)))));
    assert!(exact.question(&task, &algorithm).is_err());

    let mut preset = Preset { answer: "winograd 4" };
    let (trace, nest) = all.drive(&task, &mut preset);
    assert!(nest.unwrap().error_growth > 1);
    assert!(all.offers(&task, &trace) && !exact.offers(&task, &trace));

    let (trace, nest) = exact.drive(&task, &mut Untuned);
    assert_eq!(nest.unwrap().error_growth, 1);
    assert!(trace.0.iter().all(|choice| choice.site.to_string() != "algorithm"));
}

/// One answer wherever it is offered, else the untuned one.
struct Preset {
    answer: &'static str,
}

impl Policy for Preset {
    fn pick(&mut self, decision: &Decision) -> usize {
        decision.candidates.iter().position(|c| c.to_string() == self.answer).unwrap_or(decision.default)
    }
}
