//! Pairs of reductions that a plan makes one task of.

use tilescribe::graph::{Network, PlanKind, Program, partition_as};
use tilescribe::space::{Decision, Policy};
use tilescribe::workload::TensorId;

use super::super::{Builder, compare};
use super::drive;

/// Takes the last candidate of all decisions but those of pairs, and the same of the pairs that are chosen.
struct Joining<'j>(&'j dyn Fn(&str) -> bool);

impl Policy for Joining<'_> {
    fn pick(&mut self, decision: &Decision) -> usize {
        let is_pair = PlanKind::of(decision) == Some(PlanKind::Join);
        let is_taken = !is_pair || (self.0)(&decision.site.to_string());
        if is_taken { decision.candidates.len() - 1 } else { decision.default }
    }
}

fn separable(b: &mut Builder, x: TensorId, kernel: i64, outputs: i64) -> TensorId {
    let channels = b.shape(x)[1];
    let each = b.conv(x, channels, kernel, 1, channels);
    let each = b.relu(each);
    let all = b.conv(each, outputs, 1, 1, 1);
    b.relu(all)
}

/// Two separable convolutions between two that no plan lays out anew.
fn network() -> Program {
    let mut b = Builder::default();
    let x = b.input("image", &[1, 3, 12, 11]);
    let first = b.conv(x, 16, 3, 1, 1);
    let first = separable(&mut b, first, 3, 8);
    let second = separable(&mut b, first, 3, 6);
    let out = b.conv(second, 2, 3, 1, 1);
    b.output("image", out);
    b.program
}

fn joined(program: &Program, chosen: &dyn Fn(&str) -> bool) -> Network {
    let network = drive(program, &mut Joining(chosen));
    compare(program, &network);
    network
}

fn names(network: &Network) -> Vec<&str> {
    network.tasks.iter().map(|task| task.name.as_str()).collect()
}

#[test]
fn what_only_one_reduction_takes_is_computed_with_it() {
    let program = network();
    let apart = joined(&program, &|_| false);
    assert_eq!(apart.tasks.len(), 6, "{:?}", names(&apart));
    let sites = |network: &Network| -> Vec<String> {
        let pairs = network.planned.iter().filter(|p| PlanKind::of(&p.decision) == Some(PlanKind::Join));
        pairs.map(|planned| planned.decision.site.to_string()).collect()
    };
    // the reductions are numbered: the depthwise ones are the second and the fourth
    assert!(sites(&apart).contains(&"join 1".into()) && sites(&apart).contains(&"join 3".into()));
    let first = joined(&program, &|site| site == "join 1");
    assert_eq!(first.tasks.len(), 5);
    assert!(names(&first).contains(&"depthwise_3x3_12x11x16_to_conv_1x1_16x12x11_8"), "{:?}", names(&first));
    let both = joined(&program, &|site| ["join 1", "join 3"].contains(&site));
    assert_eq!(both.tasks.len(), 4);
    // a plan is what its text says
    let read = both.plan().to_string().parse().expect("a plan");
    let again = partition_as(&program, &read).expect("a plan of the network");
    assert_eq!((names(&again), again.plan()), (names(&both), both.plan()));
}

#[test]
fn numbers_of_pairs_do_not_depend_on_layouts() {
    let program = network();
    let plan = "layout 3 = last\nlayout 4 = last\njoin 3 = rows\n".parse().expect("a plan");
    let network = partition_as(&program, &plan).expect("a plan of the network");
    compare(&program, &network);
    assert!(names(&network).contains(&"depthwise_3x3_8x12x11_to_conv_1x1_8x12x11_6"), "{:?}", names(&network));
}

#[test]
fn what_several_read_stays_apart() {
    let mut b = Builder::default();
    let x = b.input("image", &[1, 12, 11, 16]);
    let x = b.transpose(x, &[0, 3, 1, 2]);
    let each = b.conv(x, 16, 3, 1, 16);
    let (left, right) = (b.conv(each, 8, 1, 1, 1), b.conv(each, 4, 1, 1, 1));
    for (name, side) in [("left", left), ("right", right)] {
        let out = b.conv(side, 2, 3, 1, 1);
        b.output(name, out);
    }
    let network = joined(&b.program, &|_| true);
    assert!(names(&network).iter().any(|name| name.starts_with("depthwise") && !name.contains("_to_")));
}
