//! Figures of machine code.

use tilescribe::analysis::{CodeFigures, KernelFigures, figures, kernel_figures};
use tilescribe::codegen::assembly;
use tilescribe::measure::roofline::{Arithmetic, Peak, array_kernel, dot_kernel, peak_kernel};
use tilescribe::nest::{Nest, statistics, verify};
use tilescribe::space::{Space, Untuned};
use tilescribe::target::{Architecture, Cpu, Task};

use crate::codegen::nests::tiled_product;
use crate::codegen::quality::avx512;

fn avx2() -> Cpu {
    let names = ["+avx", "+avx2", "+fma"].map(String::from).to_vec();
    Cpu { cpu: "haswell".into(), features: names, vector_bits: 256, vector_registers: 16, ..avx512() }
}

fn neon() -> Cpu {
    let features = vec!["+neon".to_string()];
    Cpu { architecture: Architecture::Aarch64, cpu: "neoverse-n1".into(), features, vector_bits: 128, ..avx512() }
}

fn code(nest: &Nest, target: &Cpu) -> KernelFigures {
    kernel_figures(&assembly(nest, target).unwrap(), target.architecture)
}

#[test]
fn a_register_tile_is_nothing_but_multiply_adds_and_loads() {
    let found = code(&tiled_product([1024, 256, 256], 6, 4, 16), &avx512());
    assert!(found.is_loop && found.function == "kernel.parallel", "{found:?}");
    let CodeFigures { fmas, loads, broadcasts, stores, shuffles, gathers, spills, reloads, .. } = found.hottest;
    assert_eq!((fmas, loads, broadcasts, stores), (24, 4 + 6, 6, 0), "{found:?}");
    assert_eq!((shuffles, gathers, spills, reloads), (0, 0, 0, 0), "{found:?}");
    assert!((25..=32).contains(&found.hottest.vector_registers), "{found:?}");
    assert!(found.whole.stores >= 24 && found.whole.instructions > found.hottest.instructions, "{found:?}");
}

/// 48 sums in 32 registers.
#[test]
fn too_large_a_register_tile_spills_in_its_loop() {
    let found = code(&tiled_product([1024, 256, 384], 16, 3, 16), &avx512());
    assert_eq!(found.hottest.fmas, 48, "{found:?}");
    assert!(found.hottest.spills >= 16 && found.hottest.reloads >= 16, "{found:?}");
    assert_eq!(found.hottest.vector_registers, 32, "{found:?}");
    let found = code(&tiled_product([64, 64, 64], 6, 4, 4), &neon());
    assert_eq!((found.hottest.fmas, found.hottest.spills), (24, 0), "{found:?}");
    let found = code(&tiled_product([64, 64, 64], 16, 4, 4), &neon());
    assert!(found.hottest.fmas == 64 && found.hottest.spills > 0, "{found:?}");
}

#[test]
fn elements_far_apart_are_gathered() {
    let gathers = |text: &str| {
        let task = Task { workload: text.parse().unwrap(), target: avx512().into() };
        let nest = Space::standard().drive(&task, &mut Untuned).1.unwrap();
        let found = figures(&task, &nest).unwrap();
        assert_eq!(found.demand.flops, task.workload.flops());
        found.kernel.whole
    };
    let far = gathers("input t0 64 137\nout t1 64 16 maxof 2 t0 a + * 9 b c\n");
    assert!(far.gathers > 0, "{far:?}");
    let near = gathers("input t0 64 32\nout t1 64 16 maxof 2 t0 a + * 2 b c\n");
    assert!(near.gathers == 0 && near.shuffles > 0, "{near:?}");
}

/// An outer loop, an inner one with a bit of everything, and the setup, which does not count.
const X86: &str = "\
kernel:                                 # @kernel
\tpushq\t%rbx
.LBB0_1:                                # =>This Loop Header: Depth=1
                                        #     Child Loop BB0_2 Depth 2
\tvmovups\t(%rdi), %zmm1
.LBB0_2:                                #   Parent Loop BB0_1 Depth=1
                                        # =>  This Inner Loop Header: Depth=2
\tvbroadcastss\t4(%rax,%rcx,4), %zmm2
\tvmovups\t64(%rsp), %zmm3                # 64-byte Reload
\tvfmadd231ps\t(%rdx){1to16}, %zmm2, %zmm3
\tvfmadd231ss\t%xmm1, %xmm2, %xmm4
# %bb.3:                                #   in Loop: Header=BB0_2 Depth=2
\tvaddps\t64(%rsi), %zmm3, %zmm3
\tvpermps\t%zmm1, %zmm5, %zmm1
\tvgatherdps\t(%rsi,%zmm1), %zmm6 {%k1}
\tvmovups\t%zmm3, 64(%rsp) {%k2}         # 64-byte Spill
\tincq\t8(%rsp)
\tcmpq\t%rax, 16(%rsp)
\tleaq\t8(%rsi), %rsi
\tjb\t.LBB0_2
# %bb.4:                                #   in Loop: Header=BB0_1 Depth=1
\tjb\t.LBB0_1
# %bb.5:
\tretq
.Lfunc_end0:
\t.size\tkernel, .Lfunc_end0-kernel
kernel_setup:                           # @kernel_setup
.LBB1_1:                                # =>This Inner Loop Header: Depth=1
\tvfmadd231ps\t%zmm7, %zmm8, %zmm9
\tvfmadd231ps\t%zmm7, %zmm8, %zmm9
\tjb\t.LBB1_1
";

#[test]
fn instructions_are_counted_by_kind() {
    let found = kernel_figures(X86, Architecture::X86_64);
    let expected = CodeFigures {
        instructions: 12,
        fmas: 1,
        scalar_fmas: 1,
        other_vector: 1,
        // broadcast, reload, both operands in memory, the counter and its comparison
        loads: 6,
        broadcasts: 2,
        stores: 2,
        shuffles: 1,
        gathers: 1,
        spills: 1,
        reloads: 1,
        vector_registers: 6,
    };
    assert_eq!(found.hottest, expected);
    assert_eq!((found.whole.instructions, found.whole.fmas, found.function.as_str()), (16, 1, "kernel"));
}

#[test]
fn aarch64_is_read_too() {
    let text = "\
kernel:                                 // @kernel
.LBB0_1:                                // =>This Inner Loop Header: Depth=1
\tldr\tq1, [x1, #16]
\tld1r\t{ v2.4s }, [x2]
\tfmla\tv0.4s, v1.4s, v2.s[0]
\tdup\tv3.4s, v1.s[1]
\tfadd\tv0.4s, v0.4s, v3.4s
\tstr\tq0, [sp, #32]                     // 16-byte Spill
\tsubs\tx0, x0, #1
\tb.ne\t.LBB0_1
";
    let found = kernel_figures(text, Architecture::Aarch64).hottest;
    let expected = CodeFigures {
        instructions: 8,
        fmas: 1,
        other_vector: 1,
        loads: 2,
        broadcasts: 1,
        stores: 1,
        shuffles: 1,
        spills: 1,
        vector_registers: 4,
        ..CodeFigures::default()
    };
    assert_eq!(found, expected);
}

#[test]
fn any_text_is_read() {
    for text in [
        "",
        "\n:\n",
        "kernel:\n\t(\n",
        "kernel:\n\tmovq )(,\n#\n# %bb.\n in Loop: Header=",
        "kernel:\n\tv %zmm99999999999",
    ] {
        for architecture in [Architecture::X86_64, Architecture::Aarch64] {
            let found = kernel_figures(text, architecture).whole.instructions as usize;
            assert!(found <= text.lines().count());
        }
    }
}

/// What measures the machine does nothing else in its loops.
#[test]
fn the_measuring_kernels_do_one_thing() {
    for target in [avx512(), avx2(), neon()] {
        let Peak { nest, flops } = peak_kernel(&target, 100);
        verify(&nest, target.lanes()).unwrap();
        assert_eq!(statistics(&nest).flops as f64, flops);
        let found = code(&nest, &target).hottest;
        assert_eq!(found.fmas, target.vector_registers - 4, "{target:?} {found:?}");
        assert_eq!((found.loads, found.stores, found.other_vector), (0, 0, 0), "{target:?} {found:?}");
        let read = array_kernel(&target, 1 << 14, 3);
        verify(&read, target.lanes()).unwrap();
        let found = code(&read, &target).hottest;
        assert_eq!((found.other_vector, found.stores, found.spills), (12, 0, 0), "{target:?} {found:?}");
        assert!((1..=12).contains(&found.loads), "{target:?} {found:?}");
    }
}

/// Products of short numbers, too, by the instruction that the machine has for them.
#[test]
fn the_measuring_kernels_of_short_numbers_do_one_thing() {
    let features = ["+avx512bf16", "+avx512f", "+avx512vnni", "+fma"].map(String::from).to_vec();
    let machine = Cpu { cpu: "znver4".into(), features, ..avx512() };
    for (arithmetic, instruction, group) in [(Arithmetic::Bf16, "vdpbf16ps", 2), (Arithmetic::Bytes, "vpdpbusd", 4)] {
        assert_eq!(arithmetic.operands(&avx2()), None);
        let Peak { nest, flops } = dot_kernel(&machine, arithmetic.operands(&machine).unwrap(), 100).unwrap();
        verify(&nest, machine.lanes()).unwrap();
        assert_eq!(flops, f64::from(2 * 28 * 16 * group * 100));
        let text = assembly(&nest, &machine).unwrap();
        let count = text.lines().filter(|line| line.trim_start().starts_with(instruction)).count();
        assert_eq!(count, 28, "{text}");
        let found = code(&nest, &machine).hottest;
        assert_eq!((found.stores, found.spills, found.reloads), (0, 0, 0), "{found:?}");
        assert!(found.loads <= 2, "{found:?}");
    }
}
