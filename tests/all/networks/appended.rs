//! Networks one behind the other, as one.

use tilescribe::graph::{Network, Source, partition};
use tilescribe::workload::Combiner;

use super::plans::{all_last, pool, random, random_network};
use super::{Builder, compare};

/// All networks in a row, tasks and all.
fn in_a_row(networks: &[&Network]) -> Network {
    let mut row = networks[0].emptied().expect("nothing is carried over or counted");
    for network in networks {
        assert!(row.can_append(network));
        let first = row.tasks.len();
        row.tasks.extend(network.tasks.iter().cloned());
        row.tasks[first..].iter_mut().for_each(|task| task.weight = 0);
        let task_of: Vec<usize> = (first..row.tasks.len()).collect();
        let calls = row.append(network, &task_of);
        assert_eq!((calls.len(), calls.end), (network.calls.len(), row.calls.len()));
    }
    row.validate().unwrap();
    row
}

fn constants(network: &Network) -> usize {
    network.buffers.iter().filter(|buffer| matches!(buffer.source, Source::Constant(_))).count()
}

#[test]
fn plans_in_a_row_compute_what_the_program_computes() {
    let mut b = Builder::default();
    let x = b.input("image", &[1, 3, 9, 7]);
    let x = b.conv(x, 4, 3, 1, 1);
    let x = pool(&mut b, x, Combiner::Maximum);
    let x = b.conv(x, 5, 1, 1, 1);
    b.output("y", x);
    for program in [b.program, random_network(3, 20..21)] {
        let (kept, last, other) = (partition(&program).unwrap(), all_last(&program), random(&program, 5));
        // whichever is the first has the outputs
        for order in [[&kept, &last, &other], [&other, &kept, &kept], [&last, &other, &kept]] {
            let row = in_a_row(&order);
            compare(&program, &row);
            let of_kind = |is_kind: fn(&Source) -> bool| row.buffers.iter().filter(|b| is_kind(&b.source)).count();
            assert_eq!(of_kind(|source| matches!(source, Source::Input(_))), program.inputs.len());
            assert_eq!(of_kind(|source| matches!(source, Source::Output(_))), program.outputs.len());
        }
        // what both have is there once
        assert_eq!(constants(&in_a_row(&[&kept, &kept, &kept])), constants(&kept));
    }
}
