//! `struct kernels` of `deploy/cuda.c`.

use super::{Generation, object, put, strings};
use crate::codegen::Launch;

pub(super) fn kernels(text: &mut String, generations: &[Generation]) {
    for (number, generation) in generations.iter().enumerate() {
        tables_of(text, number, generation);
    }
    put(text, format_args!(".Lgenerations:"));
    for (number, generation) in generations.iter().enumerate() {
        let most = launches(generation).map(|launch| launch.shared_bytes).max().unwrap_or(0);
        let (capability, count) = (generation.capability, launches(generation).count());
        put(text, format_args!("\t.long {}, {}", capability.major, capability.minor));
        put(text, format_args!("\t.quad {}", u32::from(capability.specific)));
        put(text, format_args!("\t.quad {most}, {}, {count}", generation.workspace_bytes));
        put(text, format_args!("\t.quad .Lmodules{number}, .Llaunches{number}"));
    }
    object(text, "tilescribe_kernels");
    put(text, format_args!("\t.quad {}, .Lgenerations", generations.len()));
}

fn launches(generation: &Generation) -> impl Iterator<Item = &Launch> {
    generation.modules.iter().flat_map(|(_, launches)| launches)
}

/// `struct module` and `struct launch` of one generation.
fn tables_of(text: &mut String, number: usize, generation: &Generation) {
    text.push_str("\t.section .rodata\n");
    for (task, (file, _)) in generation.modules.iter().enumerate() {
        put(text, format_args!(".Lptx{number}_{task}:\n\t.incbin \"{file}\"\n\t.byte 0"));
    }
    strings(text, &format!("symbol{number}_"), launches(generation).map(|launch| launch.symbol.as_str()));
    text.push_str("\t.section .data.rel.ro, \"aw\"\n\t.balign 8\n");
    put(text, format_args!(".Lmodules{number}:"));
    let mut first = 0;
    for (task, (_, launches)) in generation.modules.iter().enumerate() {
        put(text, format_args!("\t.quad .Lptx{number}_{task}, {first}, {}", launches.len()));
        first += launches.len();
    }
    put(text, format_args!(".Llaunches{number}:"));
    for (at, Launch { blocks, threads, shared_bytes, .. }) in launches(generation).enumerate() {
        put(text, format_args!("\t.quad .Lsymbol{number}_{at}"));
        put(text, format_args!("\t.long {blocks}, {threads}\n\t.quad {shared_bytes}"));
    }
}
