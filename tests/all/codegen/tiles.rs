//! Products of tiles, compiled against interpreted, where the processor has tile registers; and what is
//! written of them for processors that have.

use std::io::Write;

use tilescribe::codegen;
use tilescribe::measure::{Bench, OracleCache, Workbench};
use tilescribe::nest::{Nest, interpret, verify};
use tilescribe::propose::{History, Proposer, Random};
use tilescribe::space::{Next, Space, Untuned};
use tilescribe::target::{Cpu, Task};
use tilescribe::workload::{DType, dot_steps};

use super::dots::{PAIRS, arguments, check};
use super::target;

/// A machine with tile registers, to write code for.
pub fn with_tiles() -> Cpu {
    let features = "amx-bf16 amx-int8 amx-tile avx2 avx512bf16 avx512bw avx512dq avx512f avx512vl avx512vnni fma";
    Cpu {
        cpu: "sapphirerapids".into(),
        features: features.split(' ').map(|name| format!("+{name}")).collect(),
        vector_bits: 512,
        vector_registers: 32,
        l1_bytes: 48 << 10,
        l2_bytes: 2 << 20,
        ..target()
    }
}

/// Rows and columns of a block of sums, the depth of a product, and how many of these are added up.
#[derive(Clone, Copy, Debug)]
struct Size {
    rows: i64,
    columns: i64,
    depth: i64,
    steps: i64,
}

/// `matrix for` over rows and columns around a statement.
fn over_sums(rows: i64, columns: i64, statement: &str) -> String {
    format!("matrix for i in 0..{rows} {{\nmatrix for j in 0..{columns} {{\n{statement}\n}}\n}}\n")
}

/// A product of packed operands whose sums are kept between two blocks of the depth, and leave as `value`.
fn product([x, y]: [DType; 2], Size { rows, columns, depth, steps }: Size, value: &str) -> Nest {
    let (group, sum) = dot_steps([x, y]).unwrap();
    let zero = if sum == DType::F32 { "0.0" } else { "0" };
    let (x, y, sum) = (x.name(), y.name(), sum.name());
    let over = |statement: &str| over_sums(rows, columns, statement);
    let (start, again) = (over(&format!("r[i, j] = {zero}")), over("r[i, j] = part[i, j]"));
    let (keep, finish) = (over("part[i, j] = r[i, j]"), over(&format!("z[i, j] = {value}")));
    let text = format!(
        "buffers:
  x: {x}[{rows}, {steps}, {depth}, {group}] input
  y: {y}[{steps}, {depth}, {columns}, {group}] input
  z: {sum}[{rows}, {columns}] output
  part: {sum}[{rows}, {columns}] block-shared
  r: {sum}[{rows}, {columns}] register
body:
parallel for p in 0..1 {{
for b in 0..2 {{
if 0 <= b < 1 {{
{start}}}
if 1 <= b < 2 {{
{again}}}
for k in 0..{half} {{
matrix for i in 0..{rows} {{
matrix for s in 0..{depth} {{
matrix for j in 0..{columns} {{
dot for q in 0..{group} {{
r[i, j] += {sum}(x[i, {half}*b + k, s, q]) * {sum}(y[{half}*b + k, s, j, q])
}}
}}
}}
}}
}}
if 0 <= b < 1 {{
{keep}}}
if 1 <= b < 2 {{
{finish}}}
}}
}}
",
        half = steps / 2,
    );
    text.parse().unwrap_or_else(|error| panic!("{error}\n{text}"))
}

const SIZES: [(Size, &str); 9] = [
    (Size { rows: 16, columns: 16, depth: 16, steps: 2 }, "r[i, j]"),
    (Size { rows: 32, columns: 32, depth: 16, steps: 4 }, "r[i, j]"),
    (Size { rows: 19, columns: 24, depth: 5, steps: 2 }, "r[i, j] * r[i, j]"),
    (Size { rows: 1, columns: 48, depth: 3, steps: 4 }, "max(r[i, j], r[i, j])"),
    (Size { rows: 48, columns: 7, depth: 1, steps: 2 }, "r[i, j] + r[i, j]"),
    // more tiles below each other, or beside, than there are registers for their operands at once
    (Size { rows: 64, columns: 16, depth: 16, steps: 4 }, "r[i, j]"),
    (Size { rows: 77, columns: 16, depth: 4, steps: 2 }, "r[i, j] * r[i, j]"),
    (Size { rows: 16, columns: 80, depth: 16, steps: 2 }, "r[i, j]"),
    (Size { rows: 11, columns: 57, depth: 2, steps: 4 }, "max(r[i, j], r[i, j])"),
];

#[test]
fn tiles_fill_registers_and_mean_the_same() {
    let here = target();
    for types in PAIRS {
        for (size, value) in SIZES {
            let whole = product(types, size, value);
            let cut = whole.clone().in_tiles().strip_mine(16);
            verify(&cut, 16).unwrap_or_else(|error| panic!("{types:?} {size:?}: {error}\n{cut}"));
            let assembly = codegen::assembly(&cut, &with_tiles()).unwrap();
            for instruction in ["ldtilecfg", "tilezero", "tileloadd", "tilestored", "tilerelease", "\ttdpb"] {
                assert!(assembly.contains(instruction), "{types:?} {size:?}: no {instruction}\n{assembly}");
            }
            let plain = whole.to_string().replace("matrix for", "for").replace("dot for", "for");
            let plain: Nest = plain.replace("register", "block-shared").parse().unwrap();
            let [mut expected, mut actual] = [arguments(&plain, 5), arguments(&cut, 5)];
            interpret(&plain, &mut expected).unwrap();
            interpret(&cut, &mut actual).unwrap();
            assert_eq!(actual, expected, "{types:?} {size:?}\n{cut}");
            if here.has_tiles(types) {
                check(&cut, &here, 2 * size.depth * size.steps);
            } else {
                let _ = writeln!(std::io::stderr(), "not run: this processor has no tiles of {types:?}");
            }
        }
    }
}

#[test]
fn what_is_no_tiles_work_is_refused() {
    let nest = product(PAIRS[1], SIZES[0].0, "r[i, j]").in_tiles();
    let text = nest.to_string();
    for (from, to) in [
        ("matrix for i in 0..16", "matrix for i in 0..17"),
        ("matrix for s in 0..16", "for s in 0..16"),
        ("* i32(y[b + k, s, j, q])", "* i32(y[b + k, j, s, q])"),
        ("z[i, j] = r[i, j]", "z[j, i] = r[i, j]"),
        ("r[i, j] = 0", "r[i, j] = 1"),
    ] {
        assert!(text.contains(from), "{from}\n{text}");
        let changed: Nest = text.replace(from, to).parse().unwrap();
        let error = verify(&changed, 16).unwrap_err().to_string();
        assert!(error.contains("matrix") || error.contains("may leave"), "{to}: {error}");
    }
}

#[test]
fn operands_that_lie_otherwise_are_multiplied_without_tiles() {
    let text = product(PAIRS[0], SIZES[1].0, "r[i, j]").to_string();
    let across = text.replace("y[2*b + k, s, j, q]", "y[2*b + k, s, j, 1 - q]");
    assert_ne!(across, text);
    let written_out = across.parse::<Nest>().unwrap().in_tiles().strip_mine(16);
    verify(&written_out, 16).unwrap_or_else(|error| panic!("{error}\n{written_out}"));
    assert!(!written_out.to_string().contains("matrix for"), "{written_out}");
    check(&written_out, &target(), 2 * 16 * 4);
}

#[test]
fn programs_with_tiles_are_drawn_and_pass_the_gate() {
    let space = Space::standard();
    for (types, text) in [
        (
            PAIRS[0],
            "const t0 bf16 64 48\ninput t1 bf16 37 64\nlet t2 37 48 sum 64 mul cast f32 t0 c b cast f32 t1 a c\n\
             out t3 bf16 like t2 cast bf16 max 0.0 t2 a b\n",
        ),
        (
            PAIRS[1],
            "const t0 i8 64 40\ninput t1 u8 20 64\nout t2 i32 20 40 sum 64 mul cast i32 t0 c b cast i32 t1 a c\n",
        ),
        // a window, with a border of zero points
        (
            PAIRS[1],
            "const t0 i8 48 3 3 16\ninput t1 u8 9 9 16\nout t2 i32 9 9 48 sum 3 3 16 \
             mul cast i32 t0 c d e f cast i32 pad cast u8 int 77 t1 ? + a + d -1 ? + b + e -1 f\n",
        ),
        // rows that may be one: windows that skip elements, over two images
        (
            PAIRS[0],
            "const t0 bf16 16 8 3 2\ninput t1 bf16 2 7 9 8\nout t2 2 5 8 16 sum 8 3 2 \
             mul cast f32 t0 d e f g cast f32 pad cast bf16 0.0 t1 a ? + b + * 2 f -1 ? + c + g -1 e\n",
        ),
        // groups of channels, four of them as one
        (
            PAIRS[0],
            "const t0 bf16 32 4 3 3\ninput t1 bf16 9 9 32\nlet t2 9 9 8 4 sum 4 3 3 mul cast f32 t0 + * 4 c d e f g \
             cast f32 pad cast bf16 0.0 t1 ? + a + f -1 ? + b + g -1 + * 4 c e\n\
             out t3 bf16 like t2 cast bf16 max 0.0 t2 a b c d\n",
        ),
    ] {
        let here = target();
        let runs = here.has_tiles(types);
        let machine = if runs { here } else { with_tiles() };
        let task = Task { workload: text.parse().unwrap(), target: machine.into() };
        let (untuned, nest) = space.drive(&task, &mut Untuned);
        assert!(nest.unwrap().to_string().contains("matrix for"), "{untuned}");
        let expected = OracleCache::default().expected(&task.workload, 1).unwrap();
        let mut bench = runs.then(|| Workbench::new(task.clone(), expected).unwrap());
        let drawn = Random::new(&space, 3).propose(&task, &History::default(), 80).unwrap().candidates;
        let mut with_tiles = 0;
        for candidate in drawn {
            let Ok(Next::Done(nest)) = space.next(&task, &candidate.trace) else { panic!("{}", candidate.trace) };
            verify(&nest, 16).unwrap_or_else(|error| panic!("{error}\n{}", candidate.trace));
            with_tiles += usize::from(nest.to_string().contains("matrix for"));
            if let Some(bench) = &mut bench {
                let checked = bench.load(&nest).and_then(|mut loaded| bench.check(&mut loaded));
                checked.unwrap_or_else(|refusal| panic!("{}: {}\n{}", refusal.cause, refusal.detail, candidate.trace));
            }
        }
        assert!(with_tiles >= 8, "{with_tiles} programs with tiles of {types:?}");
    }
}
