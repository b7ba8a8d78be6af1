use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tilescribe::codegen::{self, Kernel};
use tilescribe::space::{Decision, Policy, Space, Untuned};
use tilescribe::target::Task;
struct Uniform(ChaCha8Rng);
impl Policy for Uniform {
    fn pick(&mut self, d: &Decision) -> usize {
        self.0.random_range(0..d.candidates.len())
    }
}
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let text = std::fs::read_to_string(&args[1]).unwrap();
    let text: String = text.lines().filter(|l| !l.starts_with('#')).map(|l| format!("{l}\n")).collect();
    let workload: tilescribe::workload::Workload = text.trim().parse().unwrap();
    let samples: u64 = args[2].parse().unwrap();
    let target = codegen::host().unwrap();
    let task = Task { workload, target };
    let space = Space::standard();
    let mut rows = vec![];
    for seed in 0..=samples {
        let t0 = std::time::Instant::now();
        let (trace, nest) = if seed == 0 {
            space.drive(&task, &mut Untuned)
        } else {
            space.drive(&task, &mut Uniform(ChaCha8Rng::seed_from_u64(seed)))
        };
        let nest = nest.unwrap();
        let t1 = std::time::Instant::now();
        let verify = tilescribe::nest::verify(&nest, 16).is_ok();
        let t2 = std::time::Instant::now();
        let kernel = Kernel::load(&nest, &task.target).unwrap();
        let t3 = std::time::Instant::now();
        let stats = tilescribe::nest::statistics(&nest);
        let _ = verify;
        rows.push((t3 - t2, t1 - t0, t2 - t1, kernel.timings(), kernel.code_bytes(), stats.operations, seed, trace));
    }
    rows.sort_by_key(|r| r.0);
    for r in [0, rows.len() / 4, rows.len() / 2, rows.len() * 3 / 4, rows.len() * 95 / 100] {
        let r = &rows[r.min(rows.len() - 1)];
        println!(
            "load {:?} drive {:?} verify {:?} {:?} code {} ops {} seed {}\n  {}",
            r.0,
            r.1,
            r.2,
            r.3,
            r.4,
            r.5,
            r.6,
            r.7.to_string().replace('\n', "; ")
        );
    }
    if args.len() > 3 {
        let seed: u64 = args[3].parse().unwrap();
        let (_, nest) = if seed == 0 {
            space.drive(&task, &mut Untuned)
        } else {
            space.drive(&task, &mut Uniform(ChaCha8Rng::seed_from_u64(seed)))
        };
        let nest = nest.unwrap();
        std::fs::write("/tmp/probe.nest", nest.to_string()).unwrap();
        std::fs::write("/tmp/probe.s", codegen::assembly(&nest, &task.target).unwrap()).unwrap();
        std::fs::write("/tmp/probe.ll", codegen::ir(&nest, &task.target).unwrap()).unwrap();
    }
}
