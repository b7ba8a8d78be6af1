//! What the inner loops of a hand-written product compile to.

use tilescribe::codegen::{assembly, ir};
use tilescribe::target::{Architecture, Target};

use super::nests::tiled_product;

fn avx512() -> Target {
    let names = ["+avx", "+avx2", "+avx512bw", "+avx512cd", "+avx512dq", "+avx512f", "+avx512vl", "+fma"];
    Target {
        architecture: Architecture::X86_64,
        cpu: "cascadelake".into(),
        features: names.map(String::from).to_vec(),
        vector_bits: 512,
        vector_registers: 32,
        cores: 2,
        l1_bytes: 32 << 10,
        l2_bytes: 1 << 20,
        l3_bytes: 32 << 20,
    }
}

/// Instructions of the loop (label to backward jump) with the most of `mnemonic`.
fn hottest_loop<'a>(text: &'a str, mnemonic: &str) -> Vec<&'a str> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let mut best = Vec::new();
    for (end, line) in lines.iter().enumerate() {
        let Some(label) = line.strip_prefix('j').and_then(|rest| rest.split_whitespace().nth(1)) else { continue };
        let Some(start) = lines[..end].iter().rposition(|l| l.starts_with(&format!("{label}:"))) else { continue };
        let body: Vec<&str> = lines[start..=end].iter().copied().filter(|l| !l.starts_with(['.', '#'])).collect();
        let count = |body: &[&str]| body.iter().filter(|l| l.starts_with(mnemonic)).count();
        let jumps = body.iter().filter(|l| l.starts_with('j')).count();
        if jumps == 1 && count(&body) > count(&best) {
            best = body;
        }
    }
    best
}

/// All accumulators in registers, nothing but multiply-adds, loads of the panel, and broadcasts.
#[test]
fn a_register_tile_has_no_spills() {
    for (tile, vectors) in [(6, 4), (8, 3), (12, 2)] {
        let nest = tiled_product([1024, 1536, 1536], tile, vectors, 16);
        let text = assembly(&nest, &avx512()).unwrap();
        let body = hottest_loop(&text, "vfmadd");
        let count = |what: &str| body.iter().filter(|l| l.starts_with(what)).count() as i64;
        let listing = body.join("\n");
        assert_eq!(count("vfmadd231ps"), tile * vectors, "{tile}x{vectors}:\n{listing}");
        assert!(!listing.contains("Spill") && !listing.contains("Reload"), "{tile}x{vectors}:\n{listing}");
        assert!(
            body.len() as i64 <= tile * vectors + vectors + tile + 6,
            "{tile}x{vectors}: {}\n{listing}",
            body.len()
        );
        assert!(listing.contains("zmm"));
    }
}

#[test]
fn intermediate_forms_can_be_read() {
    let nest = tiled_product([7, 5, 32], 6, 2, 16);
    let text = ir(&nest, &avx512()).unwrap();
    assert!(text.contains("define void @kernel(") && text.contains("define void @kernel_setup("));
    assert!(text.contains("tilescribe_parallel_for"));
    assert!(assembly(&nest, &avx512()).unwrap().contains("kernel:"));
}
