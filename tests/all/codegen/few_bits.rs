//! Weights of 4 and 8 bits: widened in registers, scales multiplied once a block, and programs of all kinds
//! that give what the evaluator does.

use tilescribe::codegen;
use tilescribe::measure::{Bench, OracleCache, Workbench};
use tilescribe::nest::Nest;
use tilescribe::propose::{History, Proposer, Random};
use tilescribe::space::{Decision, Next, Policy, Space, Untuned};
use tilescribe::target::{Architecture, Cpu, Kind, Task};
use tilescribe::workload::Workload;

use super::{check, target};

/// `rows` rows times weights of 3 blocks of 32, in as many bits: with zero points, or without.
fn product(rows: i64, bits: i64, zeros: bool) -> Workload {
    let weight = match bits {
        4 => "cast f32 bitand cast i32 int 15 shr cast i32 t2 b c d cast i32 int * 4 e",
        _ => "cast f32 t2 b c d",
    };
    let (steps, at) = if bits == 4 { ("16 2", "+ * 32 c + * 2 d e") } else { ("32", "+ * 32 c d") };
    let (table, zero) = if zeros { ("const t3 u8 80 3\n", "cast f32 t3 b c") } else { ("const t3 80 3\n", "t3 b c") };
    let text = format!(
        "input t0 {rows} 96\nconst t1 80 3\nconst t2 u8 80 3 {}\n{table}\
         out t4 {rows} 80 sum 3 {steps} mul t0 a {at} mul t1 b c sub {weight} {zero}\n",
        if bits == 4 { 16 } else { 32 },
    );
    text.parse().unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// The same of weights that `DequantizeLinear` gives, whose columns lie side by side.
fn dequantized(rows: i64) -> Workload {
    let text = format!(
        "input t0 {rows} 96\nconst t1 3 80\nconst t2 i8 96 80\nconst t3 i8 3 80\nout t4 {rows} 80 sum 3 32 \
         mul t0 a + * 32 c d mul t1 c b cast f32 sub cast i64 t2 + * 32 c d b cast i64 t3 c b\n"
    );
    text.parse().unwrap_or_else(|error| panic!("{error}\n{text}"))
}

#[test]
fn programs_give_what_the_evaluator_does() {
    let (space, target) = (Space::standard(), target());
    let mut factored = 0;
    for rows in [1, 3, 8] {
        let products = [(4, true), (4, false), (8, true)].map(|(bits, zeros)| product(rows, bits, zeros));
        for workload in products.into_iter().chain([dequantized(rows)]) {
            let task = Task { workload, target: target.clone().into() };
            let expected = OracleCache::default().expected(&task.workload, 1).unwrap();
            let mut bench = Workbench::new(task.clone(), expected).unwrap();
            let mut passes = |nest: &Nest, program: &str| {
                let checked = bench.load(nest).and_then(|mut loaded| bench.check(&mut loaded));
                checked.unwrap_or_else(|refusal| panic!("{}: {}\n{program}", refusal.cause, refusal.detail));
            };
            let (untuned, nest) = space.drive(&task, &mut Untuned);
            passes(&nest.unwrap(), &untuned.to_string());
            let drawn = Random::new(&space, 5).propose(&task, &History::default(), 30).unwrap().candidates;
            for candidate in drawn {
                let Ok(Next::Done(nest)) = space.next(&task, &candidate.trace) else { panic!("{}", candidate.trace) };
                factored += usize::from(nest.to_string().contains("_acc_part"));
                passes(&nest, &candidate.trace.to_string());
            }
        }
    }
    assert!(factored >= 5, "{factored} programs multiply by a scale once a block");
}

/// A machine of this kind with other vectors.
fn machine(features: &[&str], bits: u32, registers: u32) -> Cpu {
    Cpu {
        architecture: Architecture::X86_64,
        cpu: "x86-64-v3".into(),
        features: features.iter().map(ToString::to_string).collect(),
        vector_bits: bits,
        vector_registers: registers,
        ..target()
    }
}

/// The innermost loop that reads weights.
fn innermost(assembly: &str) -> Vec<&str> {
    let lines: Vec<&str> = assembly.lines().map(str::trim).collect();
    let fma = lines.iter().position(|line| line.starts_with("vfmadd")).unwrap_or_else(|| panic!("{assembly}"));
    let start = lines[..fma].iter().rposition(|line| line.starts_with(".LBB")).unwrap();
    let end = lines[fma..].iter().position(|line| line.starts_with('j')).unwrap() + fma;
    lines[start..=end].iter().copied().filter(|line| !line.starts_with('#')).collect()
}

#[test]
fn the_untuned_program_widens_whole_vectors() {
    let wide = machine(&["+avx512f", "+avx512bw", "+avx512vl", "+avx512dq", "+avx2", "+fma"], 512, 32);
    let narrow = machine(&["+avx2", "+fma"], 256, 16);
    for (target, bits, needed) in [
        (&wide, 4, &["vpmovzxbd", "vperm", "vfmadd"][..]),
        (&wide, 8, &["vpmovzxbd", "vcvtdq2ps", "vfmadd"]),
        (&narrow, 4, &["vpmovzxbd", "vcvtdq2ps", "vfmadd"]),
        (&narrow, 8, &["vpmovzxbd", "vcvtdq2ps", "vfmadd"]),
    ] {
        let task = Task { workload: product(1, bits, true), target: target.clone().into() };
        let (trace, nest) = Space::standard().drive(&task, &mut Untuned);
        let assembly = codegen::assembly(&nest.unwrap(), target).unwrap();
        let inner = innermost(&assembly);
        let has = |name: &str| inner.iter().any(|line| line.starts_with(name));
        assert!(needed.iter().all(|name| has(name)), "{bits} bits, {trace}\n{}", inner.join("\n"));
        for bad in ["vpgather", "vpinsr", "vcvtqq", "vmulps", "call"] {
            assert!(!has(bad), "{bits} bits: {bad}\n{}", inner.join("\n"));
        }
    }
}

#[test]
fn what_depends_on_four_bits_is_looked_up() {
    let target = target();
    for (lanes, value) in [
        (16, "f32(bitand(shr(i32(x[16*i + j]), i32(4)), i32(15))) - 8.0"),
        (16, "3.0 * f32(bitand(i32(15), i32(x[16*i + j])))"),
        (16, "f32(bitand(i32(x[16*i + j]), i32(15))) * 0.5"),
        (16, "f32(bitand(x[16*i + j] - w[16*i + j], u8(15)))"),
        (8, "f32(bitand(shr(i32(x[8*i + j]), i32(4)), i32(15))) - 8.0"),
    ] {
        let text = format!(
            "buffers:
  x: u8[64] input
  w: u8[64] input
  y: f32[64] output
body:
  for i in 0..{} {{
    vector for j in 0..{lanes} {{
      y[{lanes}*i + j] = {value}
    }}
  }}
",
            64 / lanes
        );
        let nest: Nest = text.parse().unwrap_or_else(|error| panic!("{error}\n{text}"));
        check(value, &nest, &target, 0.0);
    }
}

/// Answers as before there was a rule that is asked.
struct Before;

impl Policy for Before {
    fn pick(&mut self, decision: &Decision) -> usize {
        decision.before
    }
}

#[test]
fn what_was_written_before_there_were_the_rules_means_what_it_did() {
    let space = Space::standard();
    let text = "input t0 96\nconst t1 80 3\nconst t2 u8 80 3 32\nconst t3 u8 80 3\nout t4 80 sum 3 32 \
                mul t0 + * 32 b c mul t1 a b sub cast f32 t2 a b c cast f32 t3 a b\n";
    let task = Task { workload: text.parse().unwrap(), target: target().into() };
    let version = space.version(Kind::Cpu);
    let reader = space.reader(Kind::Cpu, &version.replace("+stream-1+factor-1", "")).unwrap();
    let (now, _) = space.drive(&task, &mut Untuned);
    assert!(now.to_string().contains("pack s0 t2 = setup panel\nlate s0 = c\n"), "{now}");
    let (old, _) = space.drive(&task, &mut Before);
    let is_new = |line: &&str| line.starts_with("late ") || line.starts_with("pack s0 t2 ");
    let text = old.to_string();
    let written: String = text.lines().filter(|line| !is_new(line)).map(|line| format!("{line}\n")).collect();
    assert_ne!(text, written);
    assert_eq!(reader.upgrade(&task, &written.parse().unwrap()).unwrap(), old);
}
