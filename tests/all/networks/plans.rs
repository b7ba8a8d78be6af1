//! Plans: whatever is decided, networks compute what their programs compute.

mod halos;
mod many;
mod pairs;

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;

use rand::{Rng, SeedableRng, rngs::StdRng};
use tilescribe::graph::{
    ImportOptions, Network, PartitionError, Plan, PlanKind, Planned, Prefer, Program, Step, TensorData, import,
    partition, partition_as, partition_with,
};
use tilescribe::space::{Decision, Policy, Stale, Tape, Trace, Word};
use tilescribe::workload::{Binary, Combiner, Expr, Role, TensorId, Unary};

use super::symbolic::{axis, compare as compare_at, symbol, symbolic};
use super::{Builder, compare, layer, listing, var};

/// Takes any candidate.
struct Random(StdRng);

impl Policy for Random {
    fn pick(&mut self, decision: &Decision) -> usize {
        assert_eq!(decision.default, 0);
        self.0.random_range(0..decision.candidates.len())
    }
}

pub fn drive(program: &Program, policy: &mut dyn Policy) -> Network {
    let network = partition_with(program, Tape::drive(policy)).expect("a well-formed program");
    network.validate().unwrap_or_else(|error| panic!("{}{error}\n{}", network.plan(), listing(&network)));
    for task in &network.tasks {
        task.workload.validate().unwrap_or_else(|error| panic!("{}: {error}\n{}", task.name, task.workload));
    }
    network
}

pub fn all_last(program: &Program) -> Network {
    drive(program, &mut Prefer("last".into()))
}

pub fn random(program: &Program, seed: u64) -> Network {
    drive(program, &mut Random(StdRng::seed_from_u64(seed)))
}

pub fn pool(b: &mut Builder, x: TensorId, combiner: Combiner) -> TensorId {
    let shape = b.shape(x);
    let out = |extent: i64| (extent - 3) / 2 + 1;
    let at = |d: usize| var(d).times(2).plus(&var(d + 2));
    let value = Expr::load(x, vec![var(0), var(1), at(2), at(3)]);
    b.reduce("Pool", &[shape[0], shape[1], out(shape[2]), out(shape[3])], &[3, 3], combiner, value)
}

/// The mean over rows and columns: `[n, c, 1, 1]`.
fn global_pool(b: &mut Builder, x: TensorId) -> TensorId {
    let shape = b.shape(x);
    let value = Expr::load(x, vec![var(0), var(1), var(4), var(5)]);
    let total = b.reduce("GlobalPool", &[shape[0], shape[1], 1, 1], &shape[2..], Combiner::Sum, value);
    b.scalar(Binary::Divide, total, (shape[2] * shape[3]) as f32)
}

fn gated(b: &mut Builder, x: TensorId) -> TensorId {
    let mean = global_pool(b, x);
    let channels = b.shape(x)[1];
    let gate = b.conv(mean, channels, 1, 1, 1);
    let gate = b.unary(Unary::Sigmoid, gate);
    b.binary(Binary::Multiply, x, gate)
}

/// A layer of a transformer over pixels, and back.
fn attended(b: &mut Builder, x: TensorId) -> TensorId {
    let [batch, _, height, width] = b.shape(x)[..] else { panic!("an image") };
    let wide = b.conv(x, 12, 1, 1, 1);
    let rows = b.reshape(wide, &[batch, 12, height * width]);
    let rows = b.transpose(rows, &[0, 2, 1]);
    let rows = layer(b, rows, [batch, height * width]);
    let image = b.transpose(rows, &[0, 2, 1]);
    b.reshape(image, &[batch, 12, height, width])
}

fn doubled(b: &mut Builder, x: TensorId) -> TensorId {
    let shape = b.shape(x);
    let indices = vec![var(0), var(1), var(2).floor_div(2), var(3).floor_div(2)];
    b.map("Resize", &[shape[0], shape[1], shape[2] * 2, shape[3] * 2], Expr::load(x, indices))
}

/// An image through so many random operators. Results of before are read again, outputs lie anywhere.
pub fn random_network(seed: u64, operators: Range<usize>) -> Program {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut b = Builder::default();
    let batch = rng.random_range(1..3);
    let image = b.input("image", &[batch, 4, 6, 7]);
    let first = b.conv(image, 8, 3, 1, 1);
    let mut all = vec![first];
    let mut used = BTreeSet::new();
    for _ in 0..rng.random_range(operators) {
        let recent = rng.random_range(0..all.len().min(3));
        let x = all[all.len() - 1 - recent];
        used.insert(x);
        let shape = b.shape(x);
        let (channels, large) = (shape[1], shape[2] > 4 && shape[3] > 4);
        let next = match rng.random_range(0..15) {
            0 => b.conv(x, 6, 3, 1, 1),
            1 => b.conv(x, channels, 3, 1, channels),
            2 => b.conv(x, channels, 3, if large { 2 } else { 1 }, channels),
            3 => b.conv(x, 8, 1, 1, 1),
            4 if channels % 2 == 0 => b.conv(x, 4, 3, 1, 2),
            5 => b.relu(x),
            6 if large => pool(&mut b, x, Combiner::Maximum),
            7 if large => pool(&mut b, x, Combiner::Sum),
            8 => gated(&mut b, x),
            9 => {
                let scale = b.constant(&[channels, 1, 1]);
                b.binary(Binary::Multiply, x, scale)
            }
            10 => {
                let last = b.transpose(x, &[0, 2, 3, 1]);
                let dense = b.dense(last, 8);
                b.transpose(dense, &[0, 3, 1, 2])
            }
            11 if shape[2] * shape[3] <= 16 => attended(&mut b, x),
            12 if !large => doubled(&mut b, x),
            13 => {
                let middle = b.slice(x, 2, 0, shape[2] - 1);
                b.conv(middle, channels, 3, 1, 1)
            }
            _ => {
                let other = b.conv(x, channels, 3, 1, 1);
                b.binary(Binary::Add, x, other)
            }
        };
        all.push(next);
        let of_shape: Vec<TensorId> = all.iter().copied().filter(|t| b.shape(*t) == b.shape(next)).collect();
        let other = of_shape[rng.random_range(0..of_shape.len())];
        if other != next && rng.random_bool(0.6) {
            used.extend([other, next]);
            all.push(b.binary(Binary::Add, next, other));
        } else if other != next && rng.random_bool(0.3) {
            used.extend([other, next]);
            all.push(b.concat(&[next, other], 1));
        }
    }
    for (number, left) in all.into_iter().filter(|tensor| !used.contains(tensor)).enumerate() {
        let shape = b.shape(left);
        let out = match rng.random_range(0..3) {
            0 => left,
            1 => {
                let flat = b.reshape(left, &[shape[0], shape[1..].iter().product()]);
                b.dense(flat, 5)
            }
            _ => {
                let mean = global_pool(&mut b, left);
                let flat = b.reshape(mean, &shape[..2]);
                b.dense(flat, 5)
            }
        };
        b.output(&format!("out{number}"), out);
    }
    b.program
}

#[test]
fn random_plans_compute_what_their_programs_compute() {
    let (mut decisions, mut networks, mut longer) = (0, 0, 0);
    for seed in 0..200 {
        let program = random_network(seed, 4..10);
        let kept = partition(&program).expect("a well-formed program");
        assert!(kept.plan().is_default());
        let mut seen = BTreeSet::from([Plan::default()]);
        let plans = [all_last(&program), random(&program, seed), random(&program, 1000 + seed)];
        decisions += plans[0].planned.len();
        for network in plans {
            longer += usize::from(network.calls.len() > kept.calls.len());
            if !seen.insert(network.plan()) {
                continue;
            }
            networks += 1;
            compare(&program, &network);
            let again = partition_as(&program, &network.plan()).expect("its own plan");
            assert_eq!(listing(&again), listing(&network));
        }
    }
    assert!(decisions > 350 && networks > 250, "{decisions} decisions, {networks} networks");
    // a gate on what is gated is computed with the mean behind it where rows of a channel are together, and a
    // part of a concatenation that is cheap is computed by whoever reads it where nothing is written in place
    assert!(longer <= 4, "{longer} networks have more calls than without a plan");
}

/// A residual network with a depthwise convolution, pooling, a gate, and dense layers at its end.
fn residual_network(batch: i64) -> Builder {
    let mut b = Builder::default();
    let x = b.input("image", &[batch, 3, 13, 11]);
    let first = b.conv(x, 8, 3, 1, 1);
    let first = b.relu(first);
    let wide = b.conv(first, 16, 1, 1, 1);
    let wide = b.relu(wide);
    let moved = b.conv(wide, 16, 3, 1, 16);
    let moved = b.relu(moved);
    let moved = gated(&mut b, moved);
    let narrow = b.conv(moved, 8, 1, 1, 1);
    let sum = b.binary(Binary::Add, narrow, first);
    let block = b.relu(sum);
    let strided = b.conv(block, 8, 3, 2, 1);
    let strided = b.relu(strided);
    let last = b.conv(strided, 8, 3, 1, 2);
    let sum = b.binary(Binary::Add, last, strided);
    let flat = b.reshape(sum, &[batch, 8 * 7 * 6]);
    let (mean, flat) = (global_pool(&mut b, sum), b.dense(flat, 4));
    let mean = b.reshape(mean, &[batch, 8]);
    let mean = b.dense(mean, 4);
    let out = b.binary(Binary::Add, mean, flat);
    b.output("classes", out);
    b
}

#[test]
fn channels_last_are_cut_into_the_same_tasks() {
    for batch in [1, 2] {
        let program = residual_network(batch).program;
        let (kept, last) = (partition(&program).expect("a well-formed program"), all_last(&program));
        compare(&program, &last);
        assert_eq!(last.planned.len(), 4, "{}", last.plan());
        assert_eq!(last.tasks.len(), kept.tasks.len(), "{}\n{}", listing(&kept), listing(&last));
        let nodes = |network: &Network| network.tasks.iter().map(|task| task.nodes.clone()).collect::<Vec<_>>();
        assert_eq!(nodes(&last), nodes(&kept));
        // the residual stream is one decision: what it adds, and what it adds to
        let residual = &last.planned[0].concerns;
        assert_eq!(residual.len(), 7, "{residual:?}");
        assert!(residual.iter().all(|concern| concern.shape.ends_with(&[8, 13, 11])), "{residual:?}");
    }
}

/// Batch, height and width are known when it runs.
#[test]
fn images_of_any_size_have_plans() {
    let mut b = Builder::default();
    let x = b.input("image", &[5, 3, 13, 11]);
    let first = b.conv(x, 8, 3, 1, 1);
    let first = b.relu(first);
    let moved = b.conv(first, 8, 3, 1, 8);
    let moved = b.relu(moved);
    let narrow = b.conv(moved, 8, 1, 1, 1);
    let block = b.binary(Binary::Add, narrow, first);
    let strided = b.conv(block, 4, 3, 2, 1);
    let strided = b.relu(strided);
    let other = b.conv(strided, 4, 3, 1, 1);
    let total = b.binary(Binary::Add, other, strided);
    let value = Expr::load(total, vec![var(0), var(1), var(4), var(5)]);
    let largest = b.reduce("GlobalPool", &[5, 4, 1, 1], &[7, 6], Combiner::Maximum, value);
    let flat = b.reshape(largest, &[5, 4]);
    let out = b.dense(flat, 2);
    b.output("classes", out);
    let out = b.conv(total, 2, 1, 1, 1);
    b.output("image", out);
    let half = |number| symbol(number).plus_constant(-1).floor_div(2).plus_constant(1);
    let formulas = [(13, symbol(0)), (11, symbol(1)), (7, half(0)), (6, half(1)), (5, symbol(2))];
    let program = symbolic(b, &[axis(0, 2, 1, 13), axis(0, 3, 2, 11), axis(0, 0, 1, 5)], &formulas);
    let last = all_last(&program);
    assert!(last.planned.len() >= 3, "{}", last.plan());
    assert_eq!(last.tasks.len(), partition(&program).expect("a well-formed program").tasks.len());
    let networks = (0..12).map(|seed| random(&program, seed)).chain([last]);
    for network in networks {
        for values in [[1, 2, 1], [8, 5, 3], [13, 11, 5]] {
            compare_at(&program, &network, &values);
        }
    }
}

#[test]
fn imported_networks_have_plans() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files/networks");
    for name in ["small_residual", "small_attention"] {
        let program = import(&folder.join(format!("{name}.onnx")), &ImportOptions::default()).expect("an ONNX file");
        for seed in 0..8 {
            compare(&program, &random(&program, seed));
        }
        compare(&program, &all_last(&program));
    }
}

#[test]
fn transposes_into_the_chosen_layout_are_views() {
    let mut b = Builder::default();
    let x = b.input("image", &[1, 3, 6, 5]);
    let conv = b.conv(x, 8, 3, 1, 1);
    let last = b.transpose(conv, &[0, 2, 3, 1]);
    let rows = b.reshape(last, &[30, 8]);
    let normal = b.layer_norm(rows);
    let out = b.dense(normal, 4);
    b.output("rows", out);
    let program = b.program;
    let network = all_last(&program);
    compare(&program, &network);
    let of_layouts = |planned: &&Planned| PlanKind::of(&planned.decision) == Some(PlanKind::Layout);
    assert_eq!(network.planned.iter().filter(of_layouts).count(), 1);
    let names: Vec<&str> = network.tasks.iter().map(|task| task.name.as_str()).collect();
    assert!(names.iter().all(|name| !name.starts_with("copy")), "{names:?}");
}

#[test]
fn tokens_that_become_an_image_may_stay_as_they_lie() {
    let mut b = Builder::default();
    let x = b.input("tokens", &[1, 30, 8]);
    let rows = b.reshape(x, &[30, 8]);
    let wide = b.dense(rows, 16);
    let tokens = b.reshape(wide, &[1, 30, 16]);
    let turned = b.transpose(tokens, &[0, 2, 1]);
    let image = b.reshape(turned, &[1, 16, 6, 5]);
    let conv = b.conv(image, 12, 3, 1, 1);
    let flat = b.reshape(conv, &[1, 12, 30]);
    let back = b.transpose(flat, &[0, 2, 1]);
    let rows = b.reshape(back, &[30, 12]);
    let out = b.dense(rows, 4);
    b.output("rows", out);
    let program = b.program;
    let network = all_last(&program);
    compare(&program, &network);
    let turns = |network: &Network| {
        let tensors = network.tasks.iter().flat_map(|task| &task.workload.tensors);
        tensors.clone().any(|tensor| tensor.role == Role::Output && tensor.shape == [16, 30])
    };
    assert!(turns(&partition(&program).expect("a well-formed program")) && !turns(&network));
    let concerns = network.planned.iter().flat_map(|planned| &planned.concerns);
    assert!(concerns.clone().any(|concern| concern.node.starts_with("Transpose")), "{:?}", network.planned);
    for seed in 0..8 {
        compare(&program, &random(&program, seed));
    }
}

#[test]
fn what_others_see_is_not_decided() {
    // inputs, outputs, and what is connected with them stay as they are, concatenations and their parts too
    let mut b = Builder::default();
    let x = b.input("image", &[1, 4, 6, 5]);
    let (left, right) = (b.conv(x, 4, 3, 1, 1), b.conv(x, 8, 1, 1, 1));
    let both = b.concat(&[left, right], 1);
    let both = b.relu(both);
    b.output("both", both);
    let out = b.conv(both, 4, 3, 1, 1);
    let out = b.binary(Binary::Add, out, x);
    b.output("image", out);
    assert_eq!(partition(&b.program).expect("a well-formed program").planned, []);
}

#[test]
fn hashes_name_programs_by_what_is_called() {
    let build = |batch: i64, other: bool| {
        let mut builder = residual_network(batch);
        if other {
            builder.program.steps.iter_mut().filter_map(Step::stage_mut).for_each(|held| held.node.push_str(" too"));
            builder.program.inputs[0].0 = "picture".into();
            for data in builder.program.data.iter_mut().flatten().filter(|data| data.elements() > 1) {
                let halved: Vec<f32> = data.f32s().expect("floats").iter().map(|x| 0.5 * x).collect();
                *data = TensorData::from_f32(data.shape.clone(), &halved);
            }
        }
        builder.program
    };
    let hash = |program: &Program| partition(program).expect("a well-formed program").hash();
    let program = build(1, false);
    assert_eq!(hash(&program), hash(&build(1, true)));
    assert_ne!(hash(&program), hash(&build(2, false)));
    assert_ne!(hash(&program), all_last(&program).hash());
    assert_eq!(hash(&program).len(), 32);
}

#[test]
fn kinds_of_decisions_have_names() {
    for kind in PlanKind::ALL {
        assert_eq!(PlanKind::named(kind.name()), Some(kind));
    }
    assert_eq!(PlanKind::named("colour"), None);
    for planned in all_last(&residual_network(1).program).planned {
        let kind = PlanKind::of(&planned.decision).expect("a kind");
        assert_eq!(planned.decision.site.0.first(), Some(&Word::from(kind.name())));
    }
}

#[test]
fn plans_print_and_parse_and_go_stale() {
    let program = residual_network(1).program;
    let network = all_last(&program);
    let text = "layout 0 = last\nlayout 1 = last\nlayout 2 = last\nlayout 3 = last\n";
    assert_eq!(network.plan().to_string(), text);
    assert_eq!(text.parse(), Ok(network.plan()));
    // what a plan does not mention has its default, and a default that it mentions changes nothing
    let some: Plan = "layout 1 = kept\nlayout 3 = last\n".parse().expect("a plan");
    let cut = partition_as(&program, &some).expect("a plan of it");
    assert_eq!(cut.plan().to_string(), "layout 3 = last\n");
    // a tape decides all
    let trace: Trace = text.parse().expect("a trace");
    let replayed = partition_with(&program, Tape::replay(&trace)).expect("a trace of it");
    assert_eq!(listing(&replayed), listing(&network));
    let short: Trace = "layout 0 = last\n".parse().expect("a trace");
    let open = partition_with(&program, Tape::replay(&short)).expect_err("it decides one");
    assert_eq!(open.to_string(), "the plan ends where `layout 1` is asked");

    let stale = |text: &str| partition_as(&program, &text.parse().expect("a plan")).expect_err(text);
    assert!(matches!(stale("layout 9 = last"), PartitionError::Stale(Stale::LeftOver { left: 1, .. })));
    assert!(matches!(stale("layout 0 = last\nlayout 0 = kept"), PartitionError::Stale(Stale::LeftOver { .. })));
    assert!(matches!(stale("cut 0 = yes"), PartitionError::Stale(Stale::LeftOver { .. })));
    let other = stale("layout 1 = first");
    assert!(matches!(other, PartitionError::Stale(Stale::Value { at: 0, .. })));
    assert_eq!(
        other.to_string(),
        "the plan is not one of this network: decision 0: `layout 1 = first` is none of the 2 candidates"
    );
}
