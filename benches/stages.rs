//! What a candidate costs, stage by stage: deciding, building the nest, verifying, machine code, encoding for
//! the model.

use criterion::{Criterion, criterion_group, criterion_main};
use tilescribe::codegen::{self, Kernel};
use tilescribe::language::{Language, Want};
use tilescribe::nest::verify;
use tilescribe::space::{Next, Space, Trace, Untuned};
use tilescribe::target::Task;

/// `relu(a · b + bias)` of BERT's size, and a padded 3×3 convolution of ResNet's.
const TASKS: [(&str, &str); 2] = [
    (
        "dense_128x768x768",
        "input t0 128 768\nconst t1 768 768\nconst t2 768\nlet t3 128 768 sum 768 mul t0 a c t1 c b\n\
         out t4 like t3 max add t2 b t3 a b 0.0\n",
    ),
    (
        "conv_3x3_64x28x28_64",
        "input t0 64 28 28\nconst t1 64 64 3 3\nlet t2 64 28 28 sum 64 3 3 mul pad 0.0 t0 d ? + b + e -1 ? + c + f -1 t1 a d e f\n\
         out t3 like t2 max t2 a b c 0.0\n",
    ),
];

fn stages(criterion: &mut Criterion) {
    let (space, language) = (Space::standard(), Language::standard());
    let host = codegen::host().expect("a host");
    for (name, text) in TASKS {
        let task = Task { workload: text.parse().expect("a workload"), target: host.clone().into() };
        let (trace, nest) = space.drive(&task, &mut Untuned);
        let nest = nest.expect("the untuned program");
        let half = Trace(trace.0[..trace.0.len() / 2].to_vec());
        let mut group = criterion.benchmark_group(name);
        group.bench_function("question after half of the decisions", |b| b.iter(|| space.question(&task, &half)));
        group.bench_function("next: the finished nest", |b| {
            b.iter(|| matches!(space.next(&task, &trace), Ok(Next::Done(_))));
        });
        group.bench_function("verify", |b| b.iter(|| verify(&nest, task.target.lanes())));
        group.bench_function("machine code", |b| b.iter(|| Kernel::load(&nest, &host).map(|k| k.code_bytes())));
        group.bench_function("encode prompt and trace", |b| {
            b.iter(|| (language.encode_prompt(&task, Want::Decile(9)), language.encode_trace(&trace)));
        });
        group.finish();
    }
}

criterion_group! { name = benches; config = Criterion::default().sample_size(20); targets = stages }
criterion_main!(benches);
