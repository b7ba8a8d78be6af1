//! What the inner loops of a hand-written product compile to.

use tilescribe::codegen::{assembly, ir};
use tilescribe::space::{Space, Trace, Untuned};
use tilescribe::target::{Architecture, Cpu, Task};

use super::nests::tiled_product;

pub fn avx512() -> Cpu {
    let names = ["+avx", "+avx2", "+avx512bw", "+avx512cd", "+avx512dq", "+avx512f", "+avx512vl", "+fma"];
    Cpu {
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

fn untuned(text: &str) -> (Trace, String) {
    let task = Task { workload: text.parse().unwrap(), target: avx512().into() };
    // as it is written: what Winograd's algorithm makes of it has other loops
    let (trace, nest) = Space::standard().exact(true).drive(&task, &mut Untuned);
    (trace, assembly(&nest.unwrap(), &avx512()).unwrap())
}

/// Two steps of a window read the same pixels, which would take all registers if they were kept.
#[test]
fn windows_over_a_large_register_tile_have_no_spills() {
    let (trace, text) = untuned(
        "const t0 64 64 3 3\ninput t1 64 56 56\nout t2 64 56 56 sum 64 3 3 mul t0 a d e f pad 0.0 t1 d ? + b + e -1 ? + c + f -1\n",
    );
    assert!(trace.to_string().contains("vector s0 = a\ntile s0 a = 32\ntile s0 b = 1\ntile s0 c = 14\n"), "{trace}");
    let body = hottest_loop(&text, "vfmadd");
    let listing = body.join("\n");
    assert!(body.iter().filter(|l| l.starts_with("vfmadd231ps")).count() >= 28, "{listing}");
    assert!(!listing.contains("%rsp"), "{listing}");
}

/// Every other element comes as two masked rows and a permutation; elements far apart are gathered.
#[test]
fn small_strides_are_not_gathered() {
    let pooling = |stride: i64| {
        let width = 15 * stride + 2;
        format!("input t0 64 {width}\nout t1 64 16 maxof 2 t0 a + * {stride} b c\n")
    };
    for stride in [2, 3, 4] {
        let (trace, text) = untuned(&pooling(stride));
        assert!(trace.to_string().contains("vector s0 = b\n"), "{trace}");
        assert!(!text.contains("gather") && text.contains("vpermt2ps"), "stride {stride}:\n{text}");
    }
    assert!(untuned(&pooling(9)).1.contains("gather"));
}

/// Vectors of channels over rows of pixels are transposed in registers, on the way to the output and from
/// what is added to it.
#[test]
fn blocks_across_the_lanes_are_neither_scattered_nor_gathered() {
    let (trace, text) = untuned(
        "const t0 64 64 3 3\ninput t1 64 56 56\ninput t2 64 56 56\n\
         let t3 64 56 56 sum 64 3 3 mul t0 a d e f pad 0.0 t1 d ? + b + e -1 ? + c + f -1\n\
         out t4 like t3 max 0.0 add t2 a b c t3 a b c\n",
    );
    assert!(trace.to_string().contains("vector s0 = a\ntile s0 a = 32\ntile s0 b = 1\ntile s0 c = 14\n"), "{trace}");
    let (kernel, _setup) = text.split_once("kernel_setup:").unwrap();
    assert!(!kernel.contains("scatter") && !kernel.contains("gather") && kernel.contains("vunpcklps"), "{kernel}");
}
