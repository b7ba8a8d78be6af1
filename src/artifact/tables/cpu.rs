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
    object(text, "tilescribe_kernels");
    let (bytes, features) = (kernels.workspace_bytes, kernels.features.len());
    put(text, format_args!("\t.quad {bytes}, {features}, .Lfeatures, .Lkernels"));
}
