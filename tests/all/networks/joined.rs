//! Concatenations whose parts lie in rows: channels last, written in place.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use rand::{Rng, SeedableRng, rngs::StdRng};
use tilescribe::artifact::{self, Model, Options, Resources, Schedule, Version};
use tilescribe::codegen;
use tilescribe::graph::{
    Network, NetworkBuffer, NetworkError, NetworkTask, Plan, Prefer, Program, Source, TensorData, partition,
    partition_as,
};
use tilescribe::space::{Decision, Policy, Space};
use tilescribe::target::{Target, Task};
use tilescribe::workload::{Array, Binary, Combiner, Role, TensorId};

use super::plans::{all_last, drive, pool, random};
use super::symbolic::{axis, compare as compare_at, symbol, symbolic};
use super::{Builder, compare, listing};

/// As SqueezeNet has it: few channels, and of these many, by two kernels side by side.
fn fire(b: &mut Builder, x: TensorId, few: i64, many: [i64; 2]) -> TensorId {
    let squeezed = b.conv(x, few, 1, 1, 1);
    let squeezed = b.relu(squeezed);
    let sides = [(many[0], 1), (many[1], 3)].map(|(channels, kernel)| {
        let side = b.conv(squeezed, channels, kernel, 1, 1);
        b.relu(side)
    });
    b.concat(&sides, 1)
}

/// As DenseNet has it: each layer adds channels to all that came before.
fn dense_block(b: &mut Builder, x: TensorId, layers: usize, growth: i64) -> TensorId {
    let mut all = vec![x];
    let mut joined = x;
    for _ in 0..layers {
        let channels = b.shape(joined)[1];
        let (scale, shift) = (b.constant(&[channels, 1, 1]), b.constant(&[channels, 1, 1]));
        let normal = b.binary(Binary::Multiply, joined, scale);
        let normal = b.binary(Binary::Add, normal, shift);
        let normal = b.relu(normal);
        let narrow = b.conv(normal, 8, 1, 1, 1);
        let narrow = b.relu(narrow);
        all.push(b.conv(narrow, growth, 3, 1, 1));
        joined = b.concat(&all, 1);
    }
    joined
}

fn random_network(seed: u64) -> Program {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut b = Builder::default();
    let batch = if rng.random_bool(0.3) { 2 } else { 1 };
    let image = b.input("image", &[batch, 4, 6, 7]);
    let mut x = b.conv(image, 8, 3, 1, 1);
    let mut others = Vec::new();
    for _ in 0..rng.random_range(1..4) {
        let shape = b.shape(x);
        x = match rng.random_range(0..10) {
            0 | 1 => fire(&mut b, x, 4, [3, 5]),
            2 | 3 => {
                let layers = rng.random_range(2..4);
                dense_block(&mut b, x, layers, 3)
            }
            // a part that is read by itself, too, and one that is given
            4 => {
                let side = b.conv(x, 5, 3, 1, 1);
                let both = b.concat(&[x, side], 1);
                let more = b.conv(side, 2, 1, 1, 1);
                others.push(more);
                if shape[2..] == [6, 7] { b.concat(&[both, image], 1) } else { both }
            }
            // nested in the middle, and twice in different concatenations
            5 => {
                let sides = [4, 3, 2].map(|channels| b.conv(x, channels, 3, 1, 1));
                let inner = b.concat(&sides[1..], 1);
                let whole = b.concat(&[sides[0], inner, x], 1);
                let again = b.concat(&[sides[2], sides[0]], 1);
                let again = b.conv(again, 4, 1, 1, 1);
                let of_inner = b.conv(inner, 4, 1, 1, 1);
                others.push(b.binary(Binary::Add, again, of_inner));
                whole
            }
            // what comes behind is computed part by part
            6 => {
                let sides = [4, 6].map(|channels| b.conv(x, channels, 1, 1, 1));
                let both = b.concat(&sides, 1);
                b.relu(both)
            }
            // rows under one another
            7 => {
                let sides = [1, 3].map(|kernel| b.conv(x, 4, kernel, 1, 1));
                b.concat(&sides, rng.random_range(2..4))
            }
            8 if shape[2] > 4 && shape[3] > 4 => pool(&mut b, x, Combiner::Maximum),
            // of one tensor
            8 => b.concat(&[x, x], 1),
            _ => {
                let both = fire(&mut b, x, 4, [4, 4]);
                let other = b.conv(x, 8, 1, 1, 1);
                b.binary(Binary::Add, both, other)
            }
        };
    }
    let last = b.conv(x, 3, 1, 1, 1);
    b.output("image_of_all", last);
    for (number, other) in others.into_iter().enumerate() {
        b.output(&format!("other{number}"), other);
    }
    b.program
}

/// Calls that write a part of a tensor: the elements of their buffers at which they begin.
fn parts(network: &Network) -> Vec<i64> {
    let mut found = Vec::new();
    for call in &network.calls {
        let Some(task) = call.task() else { continue };
        let workload = &network.tasks[task].workload;
        let bound = workload.ids().filter(|(_, tensor)| tensor.role != Role::Intermediate);
        for ((id, _), binding) in bound.zip(&call.arguments) {
            found.extend(workload.part_of(id).map(|_| binding.offset));
        }
    }
    found
}

#[test]
fn random_concatenations_compute_what_their_programs_compute() {
    let (mut networks, mut written, mut longer) = (0, 0, 0);
    for seed in 0..160 {
        let program = random_network(seed);
        let kept = partition(&program).expect("a well-formed program");
        assert!(parts(&kept).is_empty() && kept.plan().is_default());
        compare(&program, &kept);
        let mut seen = BTreeSet::from([Plan::default()]);
        for network in [all_last(&program), random(&program, seed), random(&program, 1000 + seed)] {
            if !seen.insert(network.plan()) {
                continue;
            }
            networks += 1;
            written += parts(&network).len();
            longer += usize::from(network.calls.len() > kept.calls.len());
            compare(&program, &network);
            let again = partition_as(&program, &network.plan()).expect("its own plan");
            assert_eq!(listing(&again), listing(&network));
        }
    }
    assert!(networks > 200 && written > 400, "{networks} networks, {written} parts");
    assert!(longer <= networks / 20, "{longer} of {networks} networks have more calls than without a plan");
}

#[test]
fn sides_of_a_fire_module_lie_in_each_pixel() {
    let mut b = Builder::default();
    let x = b.input("image", &[1, 4, 6, 5]);
    let first = b.conv(x, 8, 3, 1, 1);
    let wide = fire(&mut b, first, 4, [8, 8]);
    let wide = fire(&mut b, wide, 4, [6, 10]);
    let out = b.conv(wide, 3, 1, 1, 1);
    b.output("image", out);
    let (kept, last) = (partition(&b.program).expect("a well-formed program"), all_last(&b.program));
    compare(&b.program, &last);
    assert_eq!(parts(&last), [0, 8, 0, 6]);
    assert_eq!((last.calls.len(), last.tasks.len()), (kept.calls.len(), kept.tasks.len()), "{}", listing(&last));
    let texts: Vec<String> = last.tasks.iter().map(|task| task.workload.to_string()).collect();
    let with = |words: &str| texts.iter().filter(|text| text.contains(words)).count();
    assert_eq!((with("30 8 like 30 16"), with("6 5 8 like 6 5 16")), (1, 1), "{}", listing(&last));
}

fn densely_connected(layers: usize) -> Builder {
    let mut b = Builder::default();
    let x = b.input("image", &[1, 3, 6, 5]);
    let first = b.conv(x, 8, 3, 1, 1);
    let all = dense_block(&mut b, first, layers, 4);
    let out = b.conv(all, 3, 1, 1, 1);
    b.output("image", out);
    b
}

#[test]
fn a_densely_connected_block_has_one_task_for_all_layers_and_one_buffer() {
    let program = densely_connected(5).program;
    let (kept, last) = (partition(&program).expect("a well-formed program"), all_last(&program));
    compare(&program, &last);
    assert_eq!((last.calls.len(), last.tasks.len()), (kept.calls.len(), kept.tasks.len()), "{}", listing(&last));
    assert_eq!(parts(&last), [0, 8, 12, 16, 20, 24]);
    assert_eq!(last.tasks.iter().filter(|task| task.weight == 5).count(), 1, "{}", listing(&last));
    let is_joined =
        |b: &NetworkBuffer| matches!(b.source, Source::Intermediate) && b.shape.iter().product::<i64>() == 28 * 30;
    assert_eq!(last.buffers.iter().filter(|buffer| is_joined(buffer)).count(), 1);

    // a part that lies elsewhere meets another, or leaves a hole that is read, or ends behind its row
    let (mut moved, mut refused) = (0, 0);
    for number in 0..last.calls.len() {
        let Some(task) = last.calls[number].task() else { continue };
        let workload = &last.tasks[task].workload;
        let bound = workload.ids().filter(|(_, tensor)| tensor.role != Role::Intermediate);
        for (argument, (id, _)) in bound.enumerate() {
            if workload.part_of(id).is_none() {
                continue;
            }
            for by in [-4, -1, 1, 4, 28] {
                let mut damaged = last.clone();
                damaged.calls[number].arguments[argument].offset += by;
                moved += 1;
                refused += usize::from(damaged.validate().is_err());
            }
        }
    }
    assert_eq!((moved, refused), (30, 30));
    let mut damaged = last.clone();
    let source = damaged.buffers[0].source.clone();
    damaged.buffers.iter_mut().filter(|buffer| is_joined(buffer)).for_each(|b| b.source = source.clone());
    assert!(matches!(damaged.validate(), Err(NetworkError::Part { .. })));
}

/// Rows through dense layers that are concatenated in many ways; channels are last from the beginning.
fn random_rows(seed: u64) -> Program {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut b = Builder::default();
    let shape: &[i64] = if rng.random_bool(0.5) { &[6, 4] } else { &[2, 5, 4] };
    let image = b.input("image", shape);
    let last = shape.len() - 1;
    let mut x = b.dense(image, 8);
    let mut others = Vec::new();
    for _ in 0..rng.random_range(1..5) {
        let sides: Vec<TensorId> = (0..rng.random_range(2..4)).map(|at| b.dense(x, 2 + 3 * at)).collect();
        x = match rng.random_range(0..7) {
            0 => b.concat(&sides, last),
            1 => {
                let inner = b.concat(&sides[1..], last);
                let all = b.concat(&[sides[0], inner, x], last);
                others.push(b.dense(inner, 3));
                all
            }
            // what comes behind is computed part by part
            2 => {
                let all = b.concat(&sides, last);
                b.relu(all)
            }
            // a part that others read, one that is given, and a part twice
            3 => {
                others.push(b.dense(sides[0], 2));
                b.concat(&[sides[0], image, sides[1]], last)
            }
            4 => {
                let all = b.concat(&sides, last);
                others.push(b.relu(all));
                b.concat(&[sides[1], all], last)
            }
            // a residual sum is a part
            5 => {
                let width = b.shape(x)[last];
                let side = b.dense(x, width);
                let sum = b.binary(Binary::Add, x, side);
                b.concat(&[sum, sides[0]], last)
            }
            _ => {
                others.push(x);
                let sides: Vec<TensorId> = sides.into_iter().map(|side| b.relu(side)).collect();
                b.concat(&sides, last)
            }
        };
    }
    let out = if rng.random_bool(0.3) { x } else { b.dense(x, 3) };
    b.output("all", out);
    for (number, other) in others.into_iter().enumerate() {
        b.output(&format!("other{number}"), other);
    }
    b.program
}

#[test]
fn random_parts_of_rows_compute_what_their_programs_compute() {
    let (mut networks, mut written) = (0, 0);
    for seed in 0..160 {
        let program = random_rows(seed);
        let copied = partition(&program).expect("a well-formed program");
        assert!(parts(&copied).is_empty() && copied.plan().is_default());
        compare(&program, &copied);
        let mut seen = BTreeSet::from([Plan::default()]);
        for network in [drive(&program, &mut Prefer("placed".into())), random(&program, seed)] {
            if !seen.insert(network.plan()) {
                continue;
            }
            networks += 1;
            written += parts(&network).len();
            compare(&program, &network);
            let again = partition_as(&program, &network.plan()).expect("its own plan");
            assert_eq!(listing(&again), listing(&network));
        }
    }
    assert!(networks > 100 && written > 200, "{networks} networks, {written} parts");
}

/// Channels are last from the beginning: a decision of its own, whose default is to copy.
#[test]
fn parts_of_rows_are_written_where_they_are_read() {
    let mut b = Builder::default();
    let x = b.input("image", &[6, 5, 4]);
    let sides = [8, 6, 2].map(|width| {
        let side = b.dense(x, width);
        b.relu(side)
    });
    let inner = b.concat(&sides[1..], 2);
    let all = b.concat(&[sides[0], inner], 2);
    let (out, of_inner) = (b.dense(all, 3), b.dense(inner, 3));
    let out = b.binary(Binary::Add, out, of_inner);
    b.output("all", out);
    let program = b.program;
    let copied = partition(&program).expect("a well-formed program");
    let placed = drive(&program, &mut Prefer("placed".into()));
    compare(&program, &copied);
    compare(&program, &placed);
    assert!(parts(&copied).is_empty() && copied.plan().is_default());
    assert_eq!(placed.plan().to_string(), "parts 0 = placed\nparts 1 = placed\n");
    assert_eq!(parts(&placed), [0, 8, 14], "{}", listing(&placed));
    for seed in [0, 1] {
        let (_folder, model) = compiled(&placed, seed);
        run_both(&placed, &model, &[6, 5, 4], seed);
    }
}

/// Batch, height and width are known when it runs.
#[test]
fn images_of_any_size_are_joined_in_place() {
    let mut b = Builder::default();
    let x = b.input("image", &[5, 3, 13, 11]);
    let first = b.conv(x, 8, 3, 1, 1);
    let wide = fire(&mut b, first, 4, [8, 6]);
    let all = dense_block(&mut b, wide, 3, 4);
    let out = b.conv(all, 2, 1, 1, 1);
    b.output("image_of_all", out);
    let formulas = [(13, symbol(0)), (11, symbol(1)), (5, symbol(2))];
    let program = symbolic(b, &[axis(0, 2, 1, 13), axis(0, 3, 1, 11), axis(0, 0, 1, 5)], &formulas);
    let last = all_last(&program);
    // the module's sides are the first parts of the block
    assert_eq!(parts(&last), [0, 8, 14, 18, 22], "{}", listing(&last));
    for seed in [0, 1] {
        let (_folder, model) = compiled(&last, seed);
        for [height, width, batch] in [[1, 1, 1], [4, 11, 2], [13, 3, 1], [13, 11, 5]] {
            compare_at(&program, &last, &[height, width, batch]);
            run_both(&last, &model, &[batch, 3, height, width], seed);
        }
    }
}

/// Any program of a task.
struct Any(StdRng);

impl Policy for Any {
    fn pick(&mut self, decision: &Decision) -> usize {
        self.0.random_range(0..decision.candidates.len())
    }
}

/// The network as an artifact: of untuned programs for even seeds, of random ones for others.
fn compiled(network: &Network, seed: u64) -> (tempfile::TempDir, Model) {
    let space = Space::standard();
    let target = Target::Cpu(codegen::host().expect("this machine"));
    let mut policy = Any(StdRng::seed_from_u64(seed));
    let schedule = |task: &NetworkTask| {
        let task = Task { workload: task.workload.clone(), target: target.clone() };
        match space.drive(&task, &mut policy) {
            (trace, Ok(nest)) if seed % 2 == 1 => Schedule { nest, trace, best_ns: None },
            _ => Schedule::untuned(&space, &task).expect("an untuned program"),
        }
    };
    let schedules: Vec<Schedule> = network.tasks.iter().map(schedule).collect();
    let folder = tempfile::tempdir().expect("a folder");
    let options = Options { name: "net", folder: &folder.path().join("net") };
    let version = Version { target: &target, schedules: &schedules };
    artifact::compile(network, &[version], &options, &mut |_| ControlFlow::Continue(())).expect("an artifact");
    let model = Model::load(options.folder, Resources { threads: Some(2), ..Resources::default() });
    (folder, model.expect("a model"))
}

/// Runs an artifact of a network, with and without poison, and compares what it gives with the evaluator.
fn run_both(network: &Network, model: &Model, shape: &[i64], seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let values: Vec<f32> = (0..shape.iter().product::<i64>()).map(|_| rng.random_range(-1.0..1.0)).collect();
    let image = TensorData::from_f32(shape.to_vec(), &values);
    let array = Array::from_bytes(shape.to_vec(), image.dtype, &image.bytes).expect("an array");
    let expected = network.evaluate(&[("image", &array)]).expect("a valid network");
    for poison in [false, true] {
        model.poison(poison).expect("a model of a CPU");
        let found = model.run(std::slice::from_ref(&image)).expect("a run");
        assert_eq!(found.len(), expected.len());
        for ((name, expected), found) in expected.iter().zip(&found) {
            let expected = expected.as_f32().expect("floats");
            let largest = expected.iter().fold(0.0f32, |most, value| most.max(value.abs()));
            for (expected, found) in expected.iter().zip(found.to_f64()) {
                let off = (f64::from(*expected) - found).abs();
                assert!(off <= 1e-3 * f64::from(largest), "{seed}, {name}: {found} is not {expected}");
            }
        }
    }
}

#[test]
fn compiled_concatenations_compute_what_their_programs_compute() {
    let mut programs: Vec<(Program, u64)> = (0..14).map(|seed| (random_network(seed), seed)).collect();
    programs.extend([(densely_connected(4).program, 0), (densely_connected(3).program, 1)]);
    let mut written = 0;
    for (program, seed) in programs {
        let network = all_last(&program);
        written += parts(&network).len();
        let (_folder, model) = compiled(&network, seed);
        run_both(&network, &model, &program.tensors[program.inputs[0].1.0 as usize].shape, seed);
    }
    assert!(written > 40, "{written} parts");
}
