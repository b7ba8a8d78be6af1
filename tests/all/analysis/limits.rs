//! A machine's limits: kept, read back, refused where they are not what we wrote, and compared with.

use std::fs;

use tilescribe::analysis::{Demand, Moved};
use tilescribe::measure::roofline::{
    Arithmetic, Bandwidth, MAX_FILE_BYTES, Rate, Roofline, RooflineError, ShortPeak, key, load, path, save,
};
use tilescribe::target::{Cpu, Level};
use tilescribe::workload::Workload;

use crate::codegen::quality::avx512;

fn limits(target: &Cpu) -> Roofline {
    let rate = |one_core: f64| Rate { one_core, all_cores: 1.5 * one_core };
    let levels = [(Level::L1, 200.0), (Level::L2, 100.0), (Level::L3, 20.0), (Level::Memory, 10.0)];
    Roofline {
        format: 1,
        machine: key(target),
        cores: 4,
        peak_gflops: rate(100.0),
        short_peaks: vec![ShortPeak { arithmetic: Arithmetic::Bf16, gflops: rate(190.0) }],
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
        ("190.0", "0.0", "no rate"),
        ("\"bf16\"", "\"bf8\"", "bf8"),
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
    let at =
        |cores: u32, demand: Demand| known.ceiling(&demand, Arithmetic::F32, &Cpu { cores, ..target.clone() }).unwrap();
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

/// Tasks are held to the peak of what they multiply, and files of before there were others are read.
#[test]
fn each_kind_of_number_has_a_peak() {
    let plain = avx512();
    let features = plain.features.iter().cloned().chain(["+avx512bf16".to_string()]).collect();
    let target = Cpu { features, ..plain.clone() };
    let known = limits(&target);
    assert_eq!(known.peak_gflops(Arithmetic::F32, 1), Some(100.0));
    assert_eq!(known.peak_gflops(Arithmetic::Bf16, 4), Some(285.0));
    assert_eq!(known.peak_gflops(Arithmetic::Bytes, 1), None);
    let demand = Demand { flops: 200_000, compulsory: Moved { read_bytes: 2000, written_bytes: 0 } };
    let one = Cpu { cores: 1, ..target.clone() };
    assert_eq!(known.ceiling(&demand, Arithmetic::Bf16, &one).unwrap().roofline_gflops, 190.0);
    assert_eq!(known.ceiling(&demand, Arithmetic::Bytes, &one), None);

    let older = Roofline { short_peaks: Vec::new(), ..known.clone() };
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), &target, &older).unwrap();
    assert!(!fs::read_to_string(path(folder.path(), &target)).unwrap().contains("short_peaks"));
    assert_eq!(load(folder.path(), &target).unwrap().as_ref(), Some(&older));
    let complete = [&known, &older].map(|limits| (limits.is_complete(&target), limits.is_complete(&plain)));
    assert_eq!(complete, [(true, true), (false, true)]);

    let machine = Cpu { features: target.features.iter().cloned().chain(["+avx512vnni".into()]).collect(), ..target };
    for (text, expected) in [
        (
            "const t0 i8 64 48\ninput t1 u8 20 64\nout t2 i32 20 48 sum 64 mul cast i32 t0 c b cast i32 t1 a c\n",
            "8 bits",
        ),
        ("const t0 bf16 64 48\ninput t1 bf16 20 64\nout t2 20 48 sum 64 mul cast f32 t0 c b cast f32 t1 a c\n", "bf16"),
        ("const t0 64 48\ninput t1 20 64\nout t2 20 48 sum 64 mul t0 c b t1 a c\n", "f32"),
        ("input t0 20 64\nout t1 20 64 neg t0 a b\n", "f32"),
    ] {
        let workload: Workload = text.parse().unwrap();
        assert_eq!(Arithmetic::of(&workload, &machine).name(), expected, "{text}");
        // what there is no instruction for is written out
        assert_eq!(Arithmetic::of(&workload, &plain), Arithmetic::F32);
    }
}
