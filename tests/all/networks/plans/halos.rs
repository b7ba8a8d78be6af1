//! Reductions whose windows slide over what another one leaves, as one task over blocks of rows.

use tilescribe::graph::{Network, PlanKind, Program, partition_as};
use tilescribe::space::{Decision, Policy};
use tilescribe::workload::{Binary, Combiner, TensorId};

use super::super::{Builder, compare};
use super::{drive, pool};

/// Channels last, and halos where they are offered.
struct WithHalos;

impl Policy for WithHalos {
    fn pick(&mut self, decision: &Decision) -> usize {
        let is_wanted = |name: &str| decision.candidates.iter().position(|candidate| candidate.is(name));
        is_wanted("halos").or(is_wanted("last")).unwrap_or(decision.default)
    }
}

/// What lies between two convolutions, of an image of these rows.
fn program(images: i64, rows: i64, between: impl FnOnce(&mut Builder, TensorId) -> TensorId) -> Program {
    let mut b = Builder::default();
    let x = b.input("image", &[images, 2, rows, 262]);
    let first = b.conv(x, 4, 3, 1, 1);
    let first = b.relu(first);
    let last = between(&mut b, first);
    let out = b.conv(last, 2, 1, 1, 1);
    b.output("image", out);
    b.program
}

fn offers(network: &Network) -> usize {
    let pairs = network.planned.iter().filter(|planned| PlanKind::of(&planned.decision) == Some(PlanKind::Join));
    pairs.filter(|planned| planned.decision.candidates.iter().any(|candidate| candidate.is("halos"))).count()
}

/// The name of the one task that halos make of two.
fn joined(program: &Program) -> String {
    let network = drive(program, &mut WithHalos);
    compare(program, &network);
    let apart = partition_as(program, &"".parse().expect("no decisions")).expect("a well-formed program");
    let name = network.tasks.iter().find(|task| task.name.contains("_to_")).map(|task| task.name.clone());
    assert!(name.is_some() && network.tasks.len() < apart.tasks.len(), "{:?}", network.plan());
    let again = partition_as(program, &network.plan()).expect("its own plan");
    assert_eq!(again.hash(), network.hash());
    name.unwrap_or_default()
}

fn widened(b: &mut Builder, x: TensorId) -> TensorId {
    let wide = b.conv(x, 8, 1, 1, 1);
    b.relu(wide)
}

fn depthwise(b: &mut Builder, x: TensorId, stride: i64) -> TensorId {
    let channels = b.shape(x)[1];
    let each = b.conv(x, channels, 3, stride, channels);
    b.relu(each)
}

#[test]
fn windows_slide_over_blocks_of_rows() {
    // 32 rows would be 8 blocks, but of more bytes than stay near; a row beyond either end is in two blocks
    let by_one = program(1, 256, |b, x| {
        let wide = widened(b, x);
        depthwise(b, wide, 1)
    });
    assert_eq!(joined(&by_one), "conv_1x1_4x8x34x262_8_to_depthwise_3x3_8x34x262x8");
    // 255 rows, of which the last window finds two
    let by_two = program(1, 255, |b, x| {
        let wide = widened(b, x);
        depthwise(b, wide, 2)
    });
    assert_eq!(joined(&by_two), "conv_1x1_4x8x33x262_8_to_depthwise_3x3s2_8x33x262x8");
}

#[test]
fn a_pooling_takes_what_a_convolution_leaves() {
    let maxima = program(1, 257, |b, x| {
        let wide = b.conv(x, 8, 3, 1, 1);
        let wide = b.relu(wide);
        pool(b, wide, Combiner::Maximum)
    });
    assert_eq!(joined(&maxima), "conv_3x3_257x262x4_8_to_max_pool_3x3s2_8x33x262x8");
}

#[test]
fn images_of_a_batch_have_blocks_of_their_own() {
    let two = program(2, 128, |b, x| {
        let wide = widened(b, x);
        depthwise(b, wide, 1)
    });
    assert!(joined(&two).contains("_to_depthwise"));
}

#[test]
fn what_else_is_read_is_read_at_rows_that_there_are() {
    let with_others = program(1, 256, |b, x| {
        let beside = b.input("beside", &[1, 8, 256, 262]);
        let wide = b.conv(x, 8, 1, 1, 1);
        let wide = b.binary(Binary::Add, wide, beside);
        let each = depthwise(b, wide, 1);
        b.binary(Binary::Multiply, each, beside)
    });
    assert!(joined(&with_others).contains("_to_depthwise"));
}

#[test]
fn halos_are_offered_where_much_is_saved_and_little_repeated() {
    let offered = |program: &Program| offers(&drive(program, &mut WithHalos));
    let separable = |rows: i64, channels: i64| {
        program(1, rows, |b, x| {
            let many = b.conv(x, channels, 1, 1, 1);
            let wide = b.conv(many, 8, 1, 1, 1);
            depthwise(b, wide, 1)
        })
    };
    assert_eq!(offered(&separable(256, 4)), 1);
    // fewer bytes than two megabytes stay in caches anyway
    assert_eq!(offered(&separable(64, 4)), 0);
    // rows that cannot be dealt out in equal blocks: each of them would be computed three times
    assert_eq!(offered(&separable(257, 32)), 0);
    // products that are worth more than what is written
    let twice = program(1, 256, |b, x| {
        let wide = b.conv(x, 32, 3, 1, 1);
        b.conv(wide, 32, 3, 1, 1)
    });
    assert_eq!(offered(&twice), 0);
}
