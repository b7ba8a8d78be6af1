//! Programs of the GPU space, compiled and assembled: those of random decisions, and the untuned ones of the
//! operator suite.

use std::io::Write;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::iter::{IntoParallelIterator, IntoParallelRefIterator, ParallelIterator};
use tilescribe::codegen::ptx;
use tilescribe::nest::{Nest, verify};
use tilescribe::space::{Decision, NoProgram, Policy, Space, Untuned};
use tilescribe::target::{Gpu, Target, Task};

use super::LANES;
use super::gpu::{assembled, gpu};
use super::random::Pair;

/// Generations that are assembled for: descriptions, and what the assembler calls them.
const GENERATIONS: [(&str, &str); 2] = [("sm_80", "sm_80"), ("sm_90", "sm_90a")];
/// Random programs for each of them: seeds from here on.
const RANDOM: std::ops::Range<u64> = 200_000..200_250;

/// The 27 operators that Tilescribe is compared by, each behind a line with its name.
const OPERATORS: &str = include_str!("../../files/nest/operators.txt");

/// Registers of a thread, and bytes spilled, of each kernel of a program; none where there is no assembler.
fn kernels(nest: &Nest, gpu: &Gpu, architecture: &str) -> Result<Vec<(u32, u32)>, String> {
    let program = ptx(nest, gpu).map_err(|error| format!("{error}\n{nest}"))?;
    let kernels = assembled(&program.text, architecture).unwrap_or_default();
    assert!(kernels.is_empty() || kernels.len() == program.launches.len(), "{kernels:?} {:?}", program.launches);
    Ok(kernels)
}

#[test]
fn random_programs_assemble() {
    for (description, architecture) in GENERATIONS {
        let gpu = gpu(description);
        let check = |seed: u64| -> Result<Vec<(u32, u32)>, String> {
            let pair = Pair::on(|_| gpu.clone().into(), &mut ChaCha8Rng::seed_from_u64(seed));
            // without room: a dead end
            let Ok(nest) = pair.result else { return Ok(Vec::new()) };
            let told = |what: String| format!("seed {seed}, {}: {what}\n{}", pair.kind, pair.trace);
            kernels(&nest, &gpu, architecture).map_err(told)
        };
        let done: Result<Vec<_>, String> = RANDOM.into_par_iter().map(check).collect();
        let done: Vec<(u32, u32)> = done.unwrap_or_else(|error| panic!("{error}")).concat();
        let spilling = done.iter().filter(|(_, spilled)| *spilled > 0).count();
        let most = done.iter().map(|(registers, _)| *registers).max().unwrap_or(0);
        writeln!(
            std::io::stdout(),
            "{architecture}: {} kernels of {} programs, at most {most} registers, {spilling} with spills",
            done.len(),
            RANDOM.count()
        )
        .unwrap();
    }
}

/// Takes the first way to multiply matrices, and everything else as the rules would.
struct Matrices;

impl Policy for Matrices {
    fn pick(&mut self, decision: &Decision) -> usize {
        if decision.site.to_string().starts_with("mma") { 1 } else { decision.default }
    }
}

#[test]
fn tensor_cores_multiply_where_it_was_decided() {
    let gpu = gpu("sm_80");
    let tf32 = "m16n8k8.row.col.f32.tf32.tf32.f32";
    let f16 = "m16n8k16.row.col.f32.f16.f16.f32";
    let bf16 = "m16n8k16.row.col.f32.bf16.bf16.f32";
    for (text, instruction) in [
        ("input t0 197 768\nconst t1 768 300\nout t2 197 300 sum 768 mul t0 a c t1 c b\n", tf32),
        ("input t0 16 30 30\nconst t1 24 16 3 3\nout t2 24 28 28 sum 16 3 3 mul t1 a d e f t0 d + b e + c f\n", tf32),
        (
            "input t0 f16 197 768\nconst t1 f16 768 300\nlet t2 197 300 sum 768 mul cast f32 t0 a c cast f32 t1 c b\n\
             out t3 f16 197 300 cast f16 t2 a b\n",
            f16,
        ),
        (
            "input t0 bf16 16 30 30\nconst t1 bf16 24 16 3 3\n\
             out t2 24 28 28 sum 16 3 3 mul cast f32 t1 a d e f cast f32 t0 d + b e + c f\n",
            bf16,
        ),
    ] {
        let task = Task { workload: text.parse().unwrap(), target: gpu.clone().into() };
        let (trace, nest) = Space::standard().drive(&task, &mut Matrices);
        let nest = nest.unwrap_or_else(|reason| panic!("{reason}\n{trace}"));
        let program = ptx(&nest, &gpu).unwrap_or_else(|error| panic!("{error}\n{nest}"));
        assert!(program.text.contains(&format!("mma.sync.aligned.{instruction}")), "{trace}\n{nest}");
        // pairs of 16-bit values go into registers as they are
        assert!(instruction == tf32 || !program.text.contains("cvt.f32"), "{}", program.text);
        let kernels = kernels(&nest, &gpu, "sm_80").unwrap();
        assert!(kernels.iter().all(|(_, spilled)| *spilled == 0), "{kernels:?}\n{nest}");
        // TF32 rounds more coarsely: not where exactness is asked for
        let exact = Space::standard().exact(true);
        assert_eq!(exact.offers(&task, &trace), instruction != tf32);
    }
}

/// Takes tensor cores and copies of operands wherever it can, and all else at random.
struct RandomMatrices(ChaCha8Rng);

impl Policy for RandomMatrices {
    fn pick(&mut self, decision: &Decision) -> usize {
        let count = decision.candidates.len();
        match decision.site.to_string().split(' ').next() {
            Some("mma") => 1,
            // the first is none
            Some("wgmma") => self.0.random_range(1..count),
            Some("copy") => self.0.random_range(usize::from(decision.candidates[0].is("none") && count > 1)..count),
            _ => self.0.random_range(0..count),
        }
    }
}

#[test]
fn operands_in_shared_memory_are_loaded_as_matrices() {
    let [mut plain, mut transposed] = [0, 0];
    for (number, [x, y, of_x, of_y]) in [
        ["48 64", "64 40", "a c", "c b"],
        ["48 64", "40 64", "a c", "b c"],
        ["64 48", "64 40", "c a", "c b"],
        ["64 48", "40 64", "c a", "b c"],
    ]
    .into_iter()
    .enumerate()
    {
        for (half, seed) in [("f16", 0), ("f16", 1), ("bf16", 2), ("f16", 3), ("bf16", 4), ("f16", 5)] {
            let text = format!(
                "input t0 {half} {x}\nconst t1 {half} {y}\nlet t2 48 40 sum 64 mul cast f32 t0 {of_x} cast f32 t1 {of_y}\n\
                 out t3 {half} 48 40 cast {half} t2 a b\n"
            );
            let seed = seed + 10 * number as u64;
            let task = Task { workload: text.parse().unwrap(), target: gpu("sm_90").into() };
            let (trace, result) = Space::standard().drive(&task, &mut RandomMatrices(ChaCha8Rng::seed_from_u64(seed)));
            if let (Ok(nest), Target::Gpu(gpu)) = (&result, &task.target) {
                let text = ptx(nest, gpu).unwrap().text;
                plain += usize::from(text.contains("ldmatrix") && text.contains(".shared.b16"));
                transposed += usize::from(text.contains("ldmatrix") && text.contains(".trans"));
            }
            let pair = Pair { kind: "a product of halves", task, trace, result };
            pair.check(seed, &mut ChaCha8Rng::seed_from_u64(seed), true).unwrap_or_else(|report| panic!("{report}"));
        }
    }
    assert!(plain >= 6 && transposed >= 6, "{plain} and {transposed} of 24");
}

/// Takes copies of operands wherever it can, rows one by one, and all else at random.
struct SingleRows(ChaCha8Rng);

impl Policy for SingleRows {
    fn pick(&mut self, decision: &Decision) -> usize {
        let count = decision.candidates.len();
        match decision.site.to_string().split(' ').next() {
            Some("copy") => self.0.random_range(1.min(count - 1)..count),
            Some("rows") => 1.min(count - 1),
            Some("block") if decision.site.to_string().starts_with("block rows") => 0,
            _ => self.0.random_range(0..count),
        }
    }
}

/// A sum over a row, which does not move with the columns that threads share, is copied by one of them.
#[test]
fn what_all_threads_read_is_copied_like_the_rest() {
    // what is left after the mean is subtracted is squared: no result is near zero where its operands are not
    let text = "input t0 6 40\nlet t1 6 sum 40 t0 a b\n\
        let t2 6 sum 40 mul sub t0 a b mul 0.025 t1 a sub t0 a b mul 0.025 t1 a\n\
        out t3 like t0 mul t0 a b rsqrt add 1.0 mul 0.025 t2 a\n";
    let single = |seed: u64| -> Result<bool, String> {
        let task = Task { workload: text.parse().unwrap(), target: gpu("sm_90").into() };
        let (trace, result) = Space::standard().drive(&task, &mut SingleRows(ChaCha8Rng::seed_from_u64(seed)));
        if let Err(NoProgram::DeadEnd(_)) = result {
            return Ok(false);
        }
        let is_single = trace.to_string().lines().any(|line| line == "copy s1 t1 = panel");
        let pair = Pair { kind: "a norm of a norm", task, trace, result };
        pair.check(seed, &mut ChaCha8Rng::seed_from_u64(seed), true)?;
        Ok(is_single)
    };
    let single: Result<Vec<bool>, String> = (0..120u64).into_par_iter().map(single).collect();
    let single = single.unwrap_or_else(|report| panic!("{report}")).into_iter().filter(|single| *single).count();
    assert!(single > 0, "no mean was copied");
}

/// Computes reductions in as many parts as it can, with tensor cores or without, and takes everything else as
/// the rules would.
struct Parts {
    matrices: bool,
}

impl Policy for Parts {
    fn pick(&mut self, decision: &Decision) -> usize {
        match decision.site.to_string().split(' ').next() {
            Some("split") => decision.candidates.len() - 1,
            Some("mma") => usize::from(self.matrices),
            _ => decision.default,
        }
    }
}

#[test]
fn groups_of_warps_multiply_core_matrices() {
    let gpu = gpu("sm_90a");
    let layouts = [
        ["70 64", "64 48", "a c", "c b"],
        ["70 64", "48 64", "a c", "b c"],
        ["64 70", "64 48", "c a", "c b"],
        ["64 70", "48 64", "c a", "b c"],
    ];
    let check = |seed: u64| -> Result<Option<usize>, String> {
        let [x, y, of_x, of_y] = layouts[seed as usize % layouts.len()];
        let half = if seed.is_multiple_of(3) { "bf16" } else { "f16" };
        let text = format!(
            "input t0 {half} {x}\nconst t1 {half} {y}\nlet t2 70 48 sum 64 mul cast f32 t0 {of_x} cast f32 t1 {of_y}\n\
             out t3 {half} 70 48 cast {half} t2 a b\n"
        );
        let task = Task { workload: text.parse().unwrap(), target: gpu.clone().into() };
        let (trace, result) = Space::standard().drive(&task, &mut RandomMatrices(ChaCha8Rng::seed_from_u64(seed)));
        // without room: a dead end
        let Ok(nest) = result.clone() else { return Ok(None) };
        let text = ptx(&nest, &gpu).map_err(|error| format!("{error}\n{trace}\n{nest}"))?.text;
        assert!(text.contains("wgmma.mma_async.sync.aligned.m64n"), "{trace}\n{nest}");
        assert!(text.contains(".target sm_90a"));
        let spilled = kernels(&nest, &gpu, "sm_90a").map_err(|error| format!("{error}\n{trace}\n{nest}"))?;
        let spilled = spilled.iter().filter(|(_, bytes)| *bytes > 0).count();
        let pair = Pair { kind: "a wide product of halves", task, trace, result };
        pair.check(seed, &mut ChaCha8Rng::seed_from_u64(seed), true)?;
        Ok(Some(spilled))
    };
    let done: Result<Vec<_>, String> = (0..72u64).into_par_iter().map(check).collect();
    let done: Vec<usize> = done.unwrap_or_else(|report| panic!("{report}")).into_iter().flatten().collect();
    let spilled: usize = done.iter().sum();
    writeln!(std::io::stdout(), "{} wide products, {spilled} kernels with spills", done.len()).unwrap();
    assert!(done.len() >= 50 && spilled * 10 < done.len(), "{spilled} of {}", done.len());
}

#[test]
fn untuned_products_of_halves_keep_tensor_cores_fed() {
    for (name, instruction) in [("sm_80", "mma.sync.aligned.m16n8k16"), ("sm_90a", "wgmma.mma_async")] {
        for [x, y, of_x, of_y] in [["4096 1024", "1024 4096", "a c", "c b"], ["4096 1024", "4096 1024", "a c", "b c"]] {
            let text = format!(
                "input t0 f16 {x}\nconst t1 f16 {y}\nlet t2 4096 4096 sum 1024 mul cast f32 t0 {of_x} cast f32 t1 {of_y}\n\
                 out t3 f16 4096 4096 cast f16 t2 a b\n"
            );
            let task = Task { workload: text.parse().unwrap(), target: gpu(name).into() };
            let (trace, nest) = Space::standard().drive(&task, &mut Untuned);
            let nest = nest.unwrap();
            let text = ptx(&nest, &gpu(name)).unwrap().text;
            assert!(text.contains(instruction) && text.contains("ldmatrix"), "{trace}\n{text}");
            // operands go to shared memory in pieces of 16 bytes, several steps ahead, and through no
            // register
            assert!(text.contains("cp.async.cg.shared.global") && !text.contains("st.shared"), "{trace}\n{text}");
            assert!(!text.contains("cp.async.ca.shared.global"), "{trace}\n{text}");
            let kernels = kernels(&nest, &gpu(name), name).unwrap();
            assert!(kernels.iter().all(|(_, spilled)| *spilled == 0), "{kernels:?}\n{trace}");
        }
    }
}

#[test]
fn reductions_are_computed_in_parts() {
    let gpu = gpu("sm_90");
    for (number, text) in [
        "input t0 48 96\nconst t1 96 40\nlet t2 48 40 sum 96 mul t0 a c t1 c b\nout t3 48 40 max t2 a b 0.0\n",
        "input t0 f16 40 128\nconst t1 f16 24 128\nlet t2 40 24 sum 128 mul cast f32 t0 a c cast f32 t1 b c\n\
         out t3 f16 40 24 cast f16 t2 a b\n",
        "input t0 16 9 9\nconst t1 20 16 3 3\nout t2 20 7 7 sum 16 3 3 mul t1 a d e f t0 d + b e + c f\n",
        "input t0 3 600\nout t1 3 maxof 600 t0 a b\n",
    ]
    .into_iter()
    .enumerate()
    {
        for matrices in [false, true] {
            let task = Task { workload: text.parse().unwrap(), target: gpu.clone().into() };
            let (trace, result) = Space::standard().drive(&task, &mut Parts { matrices });
            let nest = result.as_ref().unwrap_or_else(|reason| panic!("{reason}\n{trace}"));
            let program = ptx(nest, &gpu).unwrap();
            assert_eq!(program.launches.len(), 2, "{trace}\n{nest}");
            assert_eq!(program.text.contains("mma.sync"), matrices && number < 3, "{trace}");
            let seed = number as u64;
            let pair = Pair { kind: "a reduction in parts", task, trace, result };
            pair.check(seed, &mut ChaCha8Rng::seed_from_u64(seed), true).unwrap_or_else(|report| panic!("{report}"));
        }
    }
}

#[test]
fn the_untuned_program_cuts_reductions_where_there_are_few_results() {
    let gpu = gpu("sm_90");
    let parts = |rows: i64, columns: i64, depth: i64| {
        let task = Task { workload: super::gpu::product(rows, columns, depth), target: gpu.clone().into() };
        let (trace, nest) = Space::standard().drive(&task, &mut Untuned);
        let program = ptx(&nest.unwrap(), &gpu).unwrap();
        // columns of a part are still copied in pieces as wide as there are
        (trace.0[0].value.to_string(), program.launches[0].blocks, program.text.contains("], 8;"))
    };
    // as many blocks as there are multiprocessors, where parts stay deep
    assert_eq!(parts(128, 768, 3072), ("2".into(), 192, true));
    assert_eq!(parts(64, 64, 4096), ("32".into(), 128, true));
    assert_eq!(parts(1024, 1024, 1024).0, "1");
    // a row of results has threads for each part of its reduction
    assert_eq!(parts(1, 1000, 2048).0, "1");
}

#[test]
fn threads_of_a_warp_combine_by_shuffles() {
    let gpu = gpu("sm_80");
    let task =
        Task { workload: "input t0 7 1000\nout t1 7 sum 1000 t0 a b\n".parse().unwrap(), target: gpu.clone().into() };
    let (trace, nest) = Space::standard().drive(&task, &mut Untuned);
    let nest = nest.unwrap();
    let text = ptx(&nest, &gpu).unwrap().text;
    assert!(text.matches("shfl.sync.bfly.b32").count() >= 5, "{trace}\n{nest}\n{text}");
}

#[test]
fn untuned_programs_of_the_operators_spill_nothing() {
    let operators: Vec<(&str, &str)> = OPERATORS.split("# ").filter_map(|part| part.split_once('\n')).collect();
    assert_eq!(operators.len(), 27);
    for (description, architecture) in GENERATIONS {
        let gpu = gpu(description);
        let row = |(name, text): &(&str, &str)| -> String {
            let task = Task { workload: text.parse().unwrap(), target: gpu.clone().into() };
            let (trace, nest) = Space::standard().drive(&task, &mut Untuned);
            let nest = nest.unwrap_or_else(|reason| panic!("{name}: {reason}\n{trace}"));
            assert_eq!(verify(&nest, LANES), Ok(()), "{name}\n{trace}\n{nest}");
            let kernels = kernels(&nest, &gpu, architecture).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(kernels.iter().all(|(_, spilled)| *spilled == 0), "{name}: {kernels:?}\n{trace}\n{nest}");
            let registers: Vec<u32> = kernels.iter().map(|(registers, _)| *registers).collect();
            format!("{architecture} {name:<28} registers {registers:?}\n")
        };
        let table: Vec<String> = operators.par_iter().map(row).collect();
        write!(std::io::stdout(), "{}", table.concat()).unwrap();
    }
}
