//! A machine's limits: kept, read back, refused where they are not what we wrote, and compared with.

use std::fs;

use tilescribe::analysis::{Demand, Moved};
use tilescribe::measure::roofline::{Bandwidth, MAX_FILE_BYTES, Rate, Roofline, RooflineError, key, load, path, save};
use tilescribe::target::{Cpu, Level};

use crate::codegen::quality::avx512;

fn limits(target: &Cpu) -> Roofline {
    let rate = |one_core: f64| Rate { one_core, all_cores: 1.5 * one_core };
    let levels = [(Level::L1, 200.0), (Level::L2, 100.0), (Level::L3, 20.0), (Level::Memory, 10.0)];
    Roofline {
        format: 1,
        machine: key(target),
        cores: 4,
        peak_gflops: rate(100.0),
        bandwidths: levels.map(|(level, speed)| Bandwidth { level, bytes: 1, gb_per_s: rate(speed) }).to_vec(),
        measured_unix_s: 1,
    }
}

#[test]
fn what_is_kept_is_read_back_for_any_number_of_cores() {
    let folder = tempfile::tempdir().unwrap();
    let inner = folder.path().join("cache/tilescribe");
    let target = avx512();
    assert_eq!(load(&inner, &target).unwrap(), None);
    let known = limits(&target);
    save(&inner, &target, &known).unwrap();
    assert_eq!(load(&inner, &target).unwrap().as_ref(), Some(&known));
    assert_eq!(load(&inner, &Cpu { cores: 1, ..target.clone() }).unwrap().as_ref(), Some(&known));
    assert_eq!(load(&inner, &Cpu { l2_bytes: 1 << 21, ..target.clone() }).unwrap(), None);
    let newer = Roofline { measured_unix_s: 2, ..known };
    save(&inner, &target, &newer).unwrap();
    assert_eq!(load(&inner, &target).unwrap(), Some(newer));
    assert_eq!(fs::read_dir(&inner).unwrap().count(), 1);
}

#[test]
fn files_that_are_not_ours_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let target = avx512();
    save(folder.path(), &target, &limits(&target)).unwrap();
    let file = path(folder.path(), &target);
    let good = fs::read_to_string(&file).unwrap();
    let other = key(&Cpu { vector_bits: 256, ..target.clone() });
    let refused = |bytes: &[u8], expected: &str| {
        fs::write(&file, bytes).unwrap();
        match load(folder.path(), &target) {
            Err(RooflineError::Damaged { reason, .. }) if reason.contains(expected) => {}
            other => panic!("{expected}: {other:?}"),
        }
    };
    let changes = [
        ("100.0", "0.0", "no rate"),
        ("100.0", "-3.0", "no rate"),
        ("100.0", "1e300", "no rate"),
        ("100.0", "1e999", ""),
        ("100.0", "null", ""),
        ("\"format\": 1", "\"format\": 2", "format 2, not 1"),
        ("\"format\": 1", "\"format\": 1, \"more\": 1", "more"),
        ("\"cores\": 4", "\"cores\": 0", "0 cores"),
        ("\"cores\": 4", "\"cores\": 4000000000", "4000000000 cores"),
        ("\"l3\"", "\"l2\"", "bandwidths of"),
        ("\"l3\"", "\"l4\"", "l4"),
        (&key(&target), &other, "another machine"),
    ];
    for (from, to, expected) in changes {
        assert!(good.contains(from), "{from}");
        refused(good.replacen(from, to, 1).as_bytes(), expected);
    }
    for length in [0, 1, good.len() / 2, good.len() - 3] {
        refused(&good.as_bytes()[..length], "");
    }
    refused(&[0xff; 100], "");
    refused("[".repeat(10_000).as_bytes(), "");
    refused(&vec![b' '; MAX_FILE_BYTES as usize + 1], "more than");
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    assert!(matches!(load(folder.path(), &target), Err(RooflineError::Damaged { .. })));
}

#[test]
fn the_lower_line_of_the_roofline_bounds() {
    let target = avx512();
    let known = limits(&target);
    let demand = |flops: i64, bytes: u64| Demand { flops, compulsory: Moved { read_bytes: bytes, written_bytes: 0 } };
    let at = |cores: u32, demand: Demand| known.ceiling(&demand, &Cpu { cores, ..target.clone() });
    // 10 flops a byte, in the first cache of one core: computing takes longer
    let found = at(1, demand(200_000, 20_000));
    assert_eq!(
        (found.level, found.gb_per_s, found.peak_gflops, found.roofline_gflops),
        (Level::L1, 200.0, 100.0, 100.0)
    );
    // too much for one such cache, not for two of them
    assert_eq!(at(1, demand(1, 40_000)).level, Level::L2);
    assert_eq!(at(2, demand(1, 40_000)).level, Level::L1);
    assert_eq!(at(2, demand(1, 8 << 20)).level, Level::L3);
    // half a flop a byte, from memory, on one, two and all cores
    let sparse = demand(1 << 29, 1 << 30);
    assert_eq!(at(1, sparse).roofline_gflops, 5.0);
    assert_eq!(at(2, sparse).roofline_gflops, 7.5);
    assert_eq!(at(4, sparse).roofline_gflops, 7.5);
    assert_eq!((at(4, sparse).level, at(4, sparse).peak_gflops), (Level::Memory, 150.0));
}
