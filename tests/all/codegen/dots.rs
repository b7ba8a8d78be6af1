//! Dot products of short numbers, compiled against interpreted: by instructions, and written out where there
//! are none.

use std::io::Write;

use half::bf16;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tilescribe::codegen;
use tilescribe::measure::{Bench, OracleCache, Workbench};
use tilescribe::nest::{Nest, interpret, verify};
use tilescribe::propose::{History, Proposer, Random};
use tilescribe::space::{Decision, Next, Policy, Space, Untuned};
use tilescribe::target::{Architecture, Cpu, Kind, Task};
use tilescribe::workload::DType;

use super::{floats, run_compiled, target};

/// Lanes, columns of a block, rows of a tile, and the depth in steps of the instruction.
#[derive(Clone, Copy, Debug)]
struct Size {
    lanes: i64,
    columns: i64,
    rows: i64,
    depth: i64,
}

/// How the second operand lies: in the order of the loops, as it is packed, or by rows of the depth.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Layout {
    Packed,
    ByDepth,
}

/// A product of a matrix of `x` and one of `y`, added to registers.
fn product([x, y]: [DType; 2], Size { lanes, columns, rows, depth }: Size, layout: Layout) -> Nest {
    let (steps, sum) = tilescribe::workload::dot_steps([x, y]).unwrap();
    let (whole, blocks) = (depth * steps, columns / lanes);
    let (shape, access) = match layout {
        Layout::Packed => (format!("{blocks}, {depth}, {lanes}, {steps}"), "c, k, j, q".to_string()),
        Layout::ByDepth => (format!("{whole}, {columns}"), format!("{steps}*k + q, {lanes}*c + j")),
    };
    let zero = if sum == DType::F32 { "0.0" } else { "0" };
    let (x, y, sum) = (x.name(), y.name(), sum.name());
    let text = format!(
        "buffers:
  x: {x}[{rows}, {whole}] input
  y: {y}[{shape}] input
  z: {sum}[{rows}, {columns}] output
  r: {sum}[{rows}, {lanes}] register
body:
  parallel for c in 0..{blocks} {{
    unroll for i in 0..{rows} {{
      vector for j in 0..{lanes} {{
        r[i, j] = {zero}
      }}
    }}
    for k in 0..{depth} {{
      unroll for i in 0..{rows} {{
        vector for j in 0..{lanes} {{
          dot for q in 0..{steps} {{
            r[i, j] += {sum}(x[i, {steps}*k + q]) * {sum}(y[{access}])
          }}
        }}
      }}
    }}
    unroll for i in 0..{rows} {{
      vector for j in 0..{lanes} {{
        z[i, {lanes}*c + j] = r[i, j]
      }}
    }}
  }}
"
    );
    let nest: Nest = text.parse().unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert_eq!(nest.to_string(), text);
    verify(&nest, 16).unwrap_or_else(|error| panic!("{error}\n{text}"));
    nest
}

pub(super) fn arguments(nest: &Nest, seed: u64) -> Vec<Vec<u8>> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut fill = |dtype: DType, bytes: usize| -> Vec<u8> {
        match dtype {
            DType::BF16 => (0..bytes / 2)
                .flat_map(|_| bf16::from_f32(random.random_range(-1.0f32..1.0)).to_bits().to_ne_bytes())
                .collect(),
            // the ends of the types among them
            DType::U8 | DType::I8 => (0..bytes).map(|_| random.random()).collect(),
            _ => vec![0xff; bytes],
        }
    };
    nest.arguments().iter().map(|id| fill(nest.buffer(*id).dtype, nest.buffer(*id).bytes())).collect()
}

/// Compiled and interpreted, sums of bytes are equal, and those of bf16 as near as rounding once for each of
/// so many steps leaves them.
pub(super) fn check(nest: &Nest, target: &Cpu, depth: i64) {
    let mut expected = arguments(nest, 5);
    let mut actual = expected.clone();
    interpret(nest, &mut expected).unwrap_or_else(|fault| panic!("{fault}\n{nest}"));
    run_compiled(nest, target, &mut actual);
    if nest.buffers[2].dtype != DType::F32 {
        return assert_eq!(expected, actual, "{nest}");
    }
    for (at, (e, a)) in floats(&expected[2]).into_iter().zip(floats(&actual[2])).enumerate() {
        let allowed = 2.0 * depth as f32 * depth as f32 * f32::EPSILON;
        assert!((e - a).abs() <= allowed, "[{at}] is {a}, not {e}\n{nest}");
    }
}

pub(super) const PAIRS: [[DType; 2]; 5] = [
    [DType::BF16, DType::BF16],
    [DType::U8, DType::I8],
    [DType::I8, DType::U8],
    [DType::U8, DType::U8],
    [DType::I8, DType::I8],
];

/// The tests' machine without what its instructions for dot products are called.
fn without_dots(target: &Cpu) -> Cpu {
    let features = target.features.iter().filter(|name| !name.contains("bf16") && !name.contains("vnni")).cloned();
    Cpu { features: features.collect(), ..target.clone() }
}

#[test]
fn dot_products_compute_what_they_say() {
    let here = target();
    for target in [here.clone(), without_dots(&here)] {
        for types in PAIRS {
            for (lanes, rows, depth) in [(16, 3, 9), (8, 2, 5), (4, 1, 33), (13, 2, 4), (3, 1, 7)] {
                for layout in [Layout::Packed, Layout::ByDepth] {
                    let size = Size { lanes, columns: 2 * lanes, rows, depth };
                    check(&product(types, size, layout), &target, 2 * depth);
                }
            }
        }
    }
}

#[test]
fn processors_with_instructions_for_dot_products_are_given_them() {
    let x86 = |features: &[&str], bits| Cpu {
        architecture: Architecture::X86_64,
        cpu: "x86-64-v3".into(),
        features: features.iter().map(ToString::to_string).collect(),
        vector_bits: bits,
        vector_registers: if bits == 512 { 32 } else { 16 },
        cores: 1,
        l1_bytes: 32 << 10,
        l2_bytes: 1 << 20,
        l3_bytes: 0,
    };
    let arm = |features: &[&str]| Cpu {
        architecture: Architecture::Aarch64,
        cpu: "generic".into(),
        features: features.iter().map(ToString::to_string).collect(),
        vector_bits: 128,
        vector_registers: 32,
        cores: 1,
        l1_bytes: 32 << 10,
        l2_bytes: 1 << 20,
        l3_bytes: 0,
    };
    let wide = ["+avx512f", "+avx512bw", "+avx512vl", "+avx512bf16", "+avx512vnni"];
    let [bf16, u8i8, i8u8, u8u8, i8i8] = PAIRS;
    for (target, types, lanes, instruction) in [
        (x86(&wide, 512), bf16, 16, Some("vdpbf16ps")),
        (x86(&wide, 512), bf16, 8, Some("vdpbf16ps")),
        (x86(&wide, 512), u8i8, 16, Some("vpdpbusd")),
        (x86(&wide, 512), i8u8, 4, Some("vpdpbusd")),
        (x86(&wide, 512), u8u8, 16, None),
        (x86(&["+avx2", "+fma", "+avxvnni"], 256), u8i8, 8, Some("vpdpbusd")),
        (x86(&["+avx2", "+fma"], 256), u8i8, 8, None),
        (x86(&["+avx2", "+fma"], 256), bf16, 8, None),
        (arm(&["+neon", "+bf16"]), bf16, 4, Some("bfdot")),
        (arm(&["+neon", "+dotprod"]), u8u8, 4, Some("udot")),
        (arm(&["+neon", "+dotprod"]), i8i8, 4, Some("sdot")),
        (arm(&["+neon", "+i8mm"]), i8u8, 4, Some("usdot")),
        (arm(&["+neon"]), i8i8, 4, None),
    ] {
        let nest = product(types, Size { lanes, columns: lanes, rows: 3, depth: 64 }, Layout::Packed);
        let assembly = codegen::assembly(&nest, &target).unwrap();
        let all = ["vdpbf16ps", "vpdpbusd", "bfdot", "udot", "sdot", "usdot"];
        let found: Vec<&str> = all.into_iter().filter(|name| assembly.contains(&format!("\t{name}\t"))).collect();
        let found: Vec<&str> = if found.is_empty() {
            all.into_iter()
                .filter(|name| assembly.lines().any(|line| line.trim().starts_with(&format!("{name} "))))
                .collect()
        } else {
            found
        };
        assert_eq!(found, instruction.into_iter().collect::<Vec<_>>(), "{types:?} in {lanes}\n{assembly}");
    }
}

#[test]
fn what_is_no_dot_product_is_refused() {
    let nest = product(PAIRS[1], Size { lanes: 8, columns: 8, rows: 1, depth: 2 }, Layout::Packed);
    let text = nest.to_string();
    for (from, to) in [
        ("dot for q in 0..4", "dot for q in 0..2"),
        ("dot for q in 0..4", "dot for q in 0..min(4, 3 + k)"),
        ("r[i, j] += i32(x", "r[i, j] max= i32(x"),
        ("* i32(y[c, k, j, q])", "+ i32(y[c, k, j, q])"),
        ("y: i8[", "y: i16["),
    ] {
        assert!(text.contains(from), "{text}");
        let changed: Nest = text.replace(from, to).parse().unwrap();
        let error = verify(&changed, 16).unwrap_err().to_string();
        assert!(error.contains("dot loop") || error.contains("may leave"), "{to}: {error}");
    }
}

#[test]
fn programs_with_dot_products_pass_the_gate() {
    let (space, target) = (Space::standard(), target());
    let has = |name: &str| target.has_feature(name);
    for (types, text) in [
        (
            PAIRS[0],
            "const t0 bf16 64 48\ninput t1 bf16 20 64\nout t2 20 48 sum 64 mul cast f32 t0 c b cast f32 t1 a c\n",
        ),
        (
            PAIRS[1],
            "const t0 i8 64 48\ninput t1 u8 20 64\nout t2 i32 20 48 sum 64 mul cast i32 t0 c b cast i32 t1 a c\n",
        ),
        // a border of zero points
        (
            PAIRS[1],
            "const t0 i8 48 3 8\ninput t1 u8 20 8\n\
             out t2 i32 20 48 sum 3 8 mul cast i32 t0 b c d cast i32 pad cast u8 int 77 t1 ? + a + c -1 d\n",
        ),
    ] {
        if target.architecture.dot(types, u32::try_from(target.lanes()).unwrap(), &has).is_none() {
            let _ = writeln!(std::io::stderr(), "not run: this processor has no dot products of {types:?}");
            continue;
        }
        let task = Task { workload: text.parse().unwrap(), target: target.clone().into() };
        let (untuned, nest) = space.drive(&task, &mut Untuned);
        assert!(nest.unwrap().to_string().contains("dot for "), "{untuned}");
        let expected = OracleCache::default().expected(&task.workload, 1).unwrap();
        let mut bench = Workbench::new(task.clone(), expected).unwrap();
        let drawn = Random::new(&space, 3).propose(&task, &History::default(), 40).unwrap().candidates;
        let mut with_dots = 0;
        for candidate in drawn {
            let Ok(Next::Done(nest)) = space.next(&task, &candidate.trace) else { panic!("{}", candidate.trace) };
            with_dots += usize::from(nest.to_string().contains("dot for "));
            let checked = bench.load(&nest).and_then(|mut loaded| bench.check(&mut loaded));
            checked.unwrap_or_else(|refusal| panic!("{}: {}\n{}", refusal.cause, refusal.detail, candidate.trace));
        }
        assert!(with_dots >= 10, "{with_dots} programs with dot products");
    }
}

#[test]
fn what_was_written_before_there_were_dot_products_means_what_it_did() {
    let space = Space::standard();
    let text = "const t0 bf16 64 48\ninput t1 bf16 20 64\nout t2 20 48 sum 64 mul cast f32 t0 c b cast f32 t1 a c\n";
    let mut machine = target();
    machine.features = ["+avx512f", "+avx512bf16", "+avx512vl"].map(String::from).to_vec();
    (machine.vector_bits, machine.vector_registers) = (512, 32);
    let task = Task { workload: text.parse().unwrap(), target: machine.into() };
    let version = space.version(Kind::Cpu);
    assert!(version.contains("+dot-1"), "{version}");
    let reader = space.reader(Kind::Cpu, &version.replace("+dot-1", "")).unwrap();
    let (now, _) = space.drive(&task, &mut Untuned);
    assert!(now.to_string().contains("dot s0 = c\n"), "{now}");
    // as it was written then: nothing was asked about dot products
    let (old, _) = space.drive(&task, &mut Before);
    let text = old.to_string();
    let written: String =
        text.lines().filter(|line| !line.starts_with("dot ")).map(|line| format!("{line}\n")).collect();
    let upgraded = reader.upgrade(&task, &written.parse().unwrap()).unwrap();
    assert_eq!(upgraded, old);
    let Ok(Next::Done(nest)) = space.next(&task, &upgraded) else { panic!("{upgraded}") };
    assert!(!nest.to_string().contains("dot for "));
}

/// Answers as before there was a rule that is asked.
struct Before;

impl Policy for Before {
    fn pick(&mut self, decision: &Decision) -> usize {
        decision.before
    }
}
