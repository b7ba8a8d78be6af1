//! Artifacts on other numbers of threads than they were compiled for.

use tilescribe::artifact::{Model, Resources};

use super::whole::{NETWORKS, Whole};

/// How a program shares its loops is decided when it is compiled, by what they write: no sum is split between
/// threads. So outputs are the same, bit by bit.
#[test]
fn outputs_are_the_same_on_any_number_of_threads() {
    let (mut with_shared_loops, mut own_bytes) = (0, 0);
    for name in NETWORKS {
        let whole = Whole::compile(name);
        let (shared, own) = whole.shares();
        with_shared_loops += usize::from(shared > 0);
        own_bytes = own_bytes.max(own);
        let alone = whole.model(1);
        for count in [2, 4, 8, 16, 64] {
            let model = whole.model(count);
            for case in &whole.cases {
                let expected = whole.run(&alone, case);
                for _ in 0..2 {
                    assert!(whole.run(&model, case) == expected, "{name} on {count} threads");
                }
            }
        }
    }
    // memory for too few threads would not be found by chance
    assert!(with_shared_loops >= 12 && own_bytes >= 1 << 16, "{with_shared_loops} and {own_bytes}");
}

/// More than any machine of today has, of models that come and go, one after the other and side by side.
#[test]
fn models_of_different_numbers_share_the_threads_of_a_library() {
    let whole = Whole::compile("networks/attention");
    let case = &whole.cases[0];
    let expected = whole.run(&whole.model(1), case);
    let counts = [3, 256, 1, 100_000, 2, 17];
    for count in counts {
        assert!(whole.run(&whole.model(count), case) == expected, "{count} threads");
    }
    let models = counts.map(|count| whole.model(count));
    std::thread::scope(|scope| {
        for model in models {
            let (whole, expected) = (&whole, &expected);
            scope.spawn(move || (0..50).for_each(|_| assert!(whole.run(&model, case) == *expected)));
        }
    });
    // where no number is given, all cores
    let all = Model::load(&whole.path(), Resources::default()).unwrap();
    assert!(whole.run(&all, case) == expected);
}

/// Threads belong to an artifact; another's models may have them, too, whatever goes first.
#[test]
fn models_of_different_artifacts_share_threads() {
    let [first, second] = ["networks/attention", "open/layers"].map(Whole::compile);
    for lender_goes_first in [true, false] {
        let (lender, mut borrower) = (first.model(2), second.model(4));
        let expected = second.run(&borrower, &second.cases[0]);
        borrower.share_threads(&lender).unwrap();
        std::thread::scope(|scope| {
            let (second, borrower, expected) = (&second, &mut borrower, &expected);
            scope.spawn(move || {
                (0..100).for_each(|_| assert!(second.run(borrower, &second.cases[0]) == *expected));
            });
            (0..100).for_each(|_| drop(first.run(&lender, &first.cases[0])));
        });
        if lender_goes_first {
            drop(lender);
            assert!(second.run(&borrower, &second.cases[0]) == expected);
            // its own again
            let own = second.model(2);
            borrower.share_threads(&own).unwrap();
            drop(own);
            assert!(second.run(&borrower, &second.cases[0]) == expected);
        } else {
            drop(borrower);
            first.run(&lender, &first.cases[0]);
        }
    }
}
