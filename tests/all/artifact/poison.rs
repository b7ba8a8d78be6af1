//! The memory plan of whole networks, held by filling what it takes to be free.

use super::whole::{NETWORKS, Whole};

/// No call reads what the plan has given away, nor what nothing has written yet: such memory holds NaN.
#[test]
fn no_call_reads_memory_that_is_free() {
    let mut kinds = [0; 3];
    for name in NETWORKS {
        let whole = Whole::compile(name);
        let model = whole.model(2);
        let manifest = model.manifest();
        kinds[0] += usize::from(manifest.regions.iter().any(|region| region.count.is_some()));
        kinds[1] += usize::from(manifest.regions.iter().any(|region| region.count.is_none() && !region.is_choice));
        kinds[2] += usize::from(manifest.has_symbols());
        for case in &whole.cases {
            let expected = whole.run(&model, case);
            model.poison(true).unwrap();
            for _ in 0..2 {
                assert!(whole.run(&model, case) == expected, "{name}");
            }
            model.poison(false).unwrap();
        }
    }
    assert!(kinds.iter().all(|count| *count >= 3), "{kinds:?}");
}
