//! What LLVM makes of programs for each target: objects of the right machine, without calls into libraries,
//! in registers that it has.

use std::collections::BTreeSet;

use rayon::iter::{IntoParallelRefIterator, ParallelIterator};
use tilescribe::codegen::{assembly, object};
use tilescribe::space::{Space, Untuned};
use tilescribe::target::{Architecture, Cpu, Task};
use tilescribe::workload::generate::Limits;

use super::elf::{AARCH64, Object, X86_64};
use super::pairs::{functions, pairs};
use super::programs::Pair;
use super::{names, shipped};

/// All that a kernel may call.
const RUNTIME: &str = "tilescribe_parallel_for";

/// Names of registers, by their first letters, of a whole program.
fn registers(text: &str) -> BTreeSet<&str> {
    let words = text.lines().map(|line| line.split(['#', '@']).next().unwrap_or_default());
    let words = words.map(|line| line.split("//").next().unwrap_or_default());
    let words = words.flat_map(|line| line.split(|c: char| !c.is_ascii_alphanumeric()));
    let is_register = |word: &&str| {
        let kind = word.trim_end_matches(|c: char| c.is_ascii_digit());
        kind.len() < word.len() && matches!(kind, "xmm" | "ymm" | "zmm" | "k" | "q" | "v" | "z" | "p")
    };
    words.filter(is_register).map(|word| word.trim_end_matches(|c: char| c.is_ascii_digit())).collect()
}

/// LLVM's verifier accepts the module, which compiling it includes; the object is what it should be.
fn check_object(pair: &Pair) {
    let Pair { name, task, nest } = pair;
    let target = task.target.cpu().unwrap();
    let object = object(&[("kernel", nest)], target).unwrap_or_else(|error| panic!("{name}{error}"));
    let object = Object::parse(&object.bytes);
    let machine = if target.architecture == Architecture::X86_64 { X86_64 } else { AARCH64 };
    assert_eq!(object.machine, machine, "{name}");
    let foreign: Vec<&str> = object.symbols.iter().filter(|s| !s.1).map(|s| s.0.as_str()).collect();
    assert!(foreign.iter().all(|symbol| *symbol == RUNTIME), "{name}calls {foreign:?}");
    for symbol in ["kernel", "kernel_setup"] {
        assert!(object.symbols.contains(&(symbol.into(), true)), "{name}");
    }
}

#[test]
fn every_target_has_legal_objects() {
    for name in names() {
        let target = shipped(&name);
        let mut pairs = pairs(&target, Limits::LARGE, 1, 2);
        pairs.extend(functions(&target));
        pairs.par_iter().for_each(check_object);
    }
}

/// Vectors are those of the target, never another's.
#[test]
fn code_uses_the_registers_of_its_target() {
    let used = |target: &Cpu| {
        let pairs = pairs(target, Limits::SMALL, 1, 1);
        let texts: Vec<String> = pairs.par_iter().map(|pair| assembly(&pair.nest, target).unwrap()).collect();
        // so are the numbers of registers: those from 16 on belong to AVX-512
        assert!(target.vector_registers > 16 || !texts.iter().any(|text| text.contains("mm16")), "{}", target.cpu);
        texts.iter().flat_map(|text| registers(text)).map(String::from).collect::<Vec<_>>()
    };
    for (name, wanted, foreign) in [
        ("x86-64", &["xmm"][..], &["ymm", "zmm", "k"][..]),
        ("haswell", &["xmm", "ymm"], &["zmm", "k"]),
        ("neoverse-n1", &["q", "v"], &["z", "p"]),
        ("neoverse-v1", &["z", "p"], &[]),
    ] {
        let used = used(&shipped(name));
        assert!(wanted.iter().all(|kind| used.iter().any(|u| u == kind)), "{name}: {used:?}");
        assert!(foreign.iter().all(|kind| used.iter().all(|u| u != kind)), "{name}: {used:?}");
    }
}

/// Instructions of the loop without inner ones that has the most multiply-adds.
fn hottest_loop(text: &str) -> Vec<&str> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let multiplies = |line: &&&str| ["vfmadd", "mulps", "fmla", "fmad"].iter().any(|m| line.starts_with(m));
    let jumps = |line: &str| line.starts_with('j') || line.starts_with("b.") || line.starts_with("b\t");
    let mut best = Vec::new();
    for (end, line) in lines.iter().enumerate().filter(|(_, line)| jumps(line)) {
        let Some(label) = line.split_whitespace().nth(1) else { continue };
        let Some(start) = lines[..end].iter().rposition(|l| l.starts_with(&format!("{label}:"))) else { continue };
        let body: Vec<&str> =
            lines[start + 1..=end].iter().copied().filter(|l| !l.starts_with(['.', '#', '/'])).collect();
        let count = |body: &[&str]| body.iter().filter(multiplies).count();
        if body.iter().filter(|l| jumps(l)).count() == 1 && count(&body) > count(&best) {
            best = body;
        }
    }
    best
}

/// As many accumulators as the target has registers for: none is kept in memory. Without fused multiply-adds
/// products need registers too, and windows spill some.
#[test]
fn untuned_register_tiles_have_no_spills() {
    let dense = "input t0 128 768\nconst t1 768 768\nout t2 128 768 sum 768 mul t0 a c t1 c b\n";
    let convolution = "const t0 64 64 3 3\ninput t1 64 56 56\nout t2 64 56 56 sum 64 3 3 mul t0 a d e f pad 0.0 t1 d ? + b + e -1 ? + c + f -1\n";
    for name in names() {
        let target = shipped(&name);
        let fused = target.architecture == Architecture::Aarch64 || target.has_feature("fma");
        for workload in [Some(dense), fused.then_some(convolution)].into_iter().flatten() {
            let task = Task { workload: workload.parse().unwrap(), target: target.clone().into() };
            let (trace, nest) = Space::standard().exact(true).drive(&task, &mut Untuned);
            let text = assembly(&nest.unwrap(), &target).unwrap();
            let body = hottest_loop(&text);
            let multiplies =
                body.iter().filter(|l| ["vfmadd", "mulps", "fmla", "fmad"].iter().any(|m| l.starts_with(m)));
            let wanted = target.vector_registers as usize * 2 / 3;
            assert!(multiplies.count() >= wanted, "{name}\n{trace}\n{}", body.join("\n"));
            let on_the_stack = |line: &&&str| line.contains("(%rsp)") || line.contains("[sp");
            let spills: Vec<_> = body.iter().filter(on_the_stack).collect();
            assert!(spills.is_empty(), "{name}: {spills:?}\n{trace}\n{}", body.join("\n"));
        }
    }
}
