//! `struct kernels` of `deploy/cpu.c`.

use super::{CpuKernels, object, put, strings};

pub(super) fn kernels(text: &mut String, kernels: &CpuKernels) {
    text.push_str("\t.section .rodata\n");
    strings(text, "feature", kernels.features.iter().map(String::as_str));
    text.push_str("\t.section .data.rel.ro, \"aw\"\n\t.balign 8\n");
    put(text, format_args!(".Lfeatures:"));
    (0..kernels.features.len()).for_each(|number| put(text, format_args!("\t.quad .Lfeature{number}")));
    put(text, format_args!(".Lkernels:"));
    kernels.symbols.iter().for_each(|symbol| put(text, format_args!("\t.quad {symbol}")));
    put(text, format_args!(".Lscratch:"));
    let scratch = kernels.scratch.iter();
    scratch.for_each(|of| put(text, format_args!("\t.quad {}, {}", of.shared_bytes, of.thread_bytes)));
    object(text, "tilescribe_kernels");
    put(text, format_args!("\t.quad {}, .Lfeatures, .Lkernels, .Lscratch", kernels.features.len()));
}
