//! Figures of programs: footprints and traffic counted by hand, machine code with and without spills, and the
//! machine's limits.

mod code;
mod limits;

use tilescribe::analysis::{Demand, Moved, loop_footprints, traffic, translations};
use tilescribe::nest::{Loop, LoopKind, Nest, Stmt};
use tilescribe::target::{Cpu, Level, Target};
use tilescribe::workload::{DType, Index, Workload};

use crate::codegen::nests::{INPUT, OUTPUT, for_, get, nest, store, tiled_product};
use crate::codegen::quality::avx512;

fn moved(read_bytes: u64, written_bytes: u64) -> Moved {
    Moved { read_bytes, written_bytes }
}

/// With caches of these many KiB.
fn machine(cores: u32, [l1, l2, l3]: [u64; 3]) -> Target {
    Cpu { cores, l1_bytes: l1 << 10, l2_bytes: l2 << 10, l3_bytes: l3 << 10, ..avx512() }.into()
}

/// What each level hands over.
fn by_level(nest: &Nest, target: &Target) -> Vec<(Level, Moved)> {
    traffic(nest, target).into_iter().map(|level| (level.level, level.moved)).collect()
}

#[test]
fn a_product_computes_and_moves_what_its_formula_says() {
    let demand = Demand::of(&"input t0 8 16\nconst t1 16 24\nout t2 8 24 sum 16 mul t0 a c t1 c b\n".parse().unwrap());
    assert_eq!(demand.flops, 2 * 8 * 16 * 24);
    assert_eq!(demand.compulsory, moved(4 * (8 * 16 + 16 * 24), 4 * 8 * 24));
    assert_eq!(demand.intensity(), 6144.0 / 2816.0);
}

#[test]
fn what_is_not_used_need_not_be_read() {
    // two of three columns
    let demand = Demand::of(&"input t0 64 47\nout t1 64 16 maxof 2 t0 a + * 3 b c\n".parse().unwrap());
    assert_eq!(demand.compulsory, moved(4 * 64 * 32, 4 * 64 * 16));
    // intermediates need not exist
    let chain = "input t0 6 33\nlet t1 6 maxof 33 t0 a b\nout t2 6 33 sub t0 a b t1 a\n";
    assert_eq!(Demand::of(&chain.parse().unwrap()).compulsory, moved(4 * 6 * 33, 4 * 6 * 33));
}

/// `c[64, 128] = a[64, 96] · b[96, 128]` in register tiles of 8 × 32. In bytes: a 24576, packed b 49152 in
/// panels of 12288, c 32768.
fn product() -> Nest {
    tiled_product([64, 96, 128], 8, 2, 16)
}

#[test]
fn footprints_of_a_tiled_product() {
    let found = loop_footprints(&product(), &machine(1, [16, 64, 0]));
    let rows: Vec<_> =
        found.iter().map(|l| (l.name.as_str(), l.depth, l.iterations, l.footprint_bytes, l.fits)).collect();
    // a panel with the whole of a and a quarter of c; a panel with eight rows of a
    let (column, sliver) = (24576 + 12288 + 8192, 12288 + 3072);
    assert_eq!(
        rows,
        [
            ("j", 0, 4, 24576 + 49152 + 32768, Level::Memory),
            ("i", 1, 8, column, Level::L2),
            ("k", 2, 96, sliver, Level::L1)
        ]
    );
    assert!(found[0].is_parallel && !found[1].is_parallel);
}

#[test]
fn traffic_of_a_tiled_product() {
    // every tile loads its rows of a and its panel; of c, every element is stored once
    let registers = (Level::L1, moved(32 * (3072 + 12288), 32768));
    // a tile fits into the first level, and the panel stays there while the tiles of a column pass
    let first = (Level::L2, moved(4 * (24576 + 12288), 32768));
    // a column fits into the second level: a stays there, each panel comes once
    let second = moved(24576 + 49152, 32768);
    assert_eq!(by_level(&product(), &machine(1, [16, 64, 0])), [registers, first, (Level::Memory, second)]);
    // everything fits into the third
    assert_eq!(
        by_level(&product(), &machine(1, [16, 64, 512])),
        [registers, first, (Level::L3, second), (Level::Memory, second)]
    );
    // nothing does but tiles
    let third = by_level(&product(), &machine(1, [16, 40, 0]))[2];
    assert_eq!(third, (Level::Memory, first.1));
}

#[test]
fn columns_want_a_page_for_each_row() {
    // 512 rows of 4 KiB, summed along rows and along columns
    let sums = |along: &str| {
        let text = format!("input t0 512 1024\nout t1 512 sum 512 t0 {along}\n");
        Nest::naive(&text.parse::<Workload>().unwrap())
    };
    let (rows, columns) = (sums("a b"), sums("b a"));
    let machine = machine(1, [16, 64, 512]);
    // half of every row, each on its page; zeros and sums on a page more
    assert_eq!(translations(&rows, &machine, 1536), 512 + 1);
    assert_eq!(translations(&columns, &machine, 1536), 512 + 1);
    // too few entries for a column: all are fetched for each
    let few = translations(&columns, &machine, 64);
    assert!((512 * 512..=513 * 513).contains(&few), "{few}");
    assert!(translations(&rows, &machine, 64) < 2 * 513);
}

#[test]
fn cores_share_the_last_cache_only() {
    let second = |target: &Target| by_level(&product(), target)[2].1;
    // two cores with two columns each: both load a
    assert_eq!(second(&machine(2, [16, 64, 512])), moved(2 * 24576 + 49152, 32768));
    assert_eq!(second(&machine(4, [16, 64, 512])), moved(4 * 24576 + 49152, 32768));
    // three cores: two columns, two columns, none
    assert_eq!(second(&machine(3, [16, 64, 512])), moved(2 * 24576 + 49152, 32768));
    let last = |kib: u64| by_level(&product(), &machine(2, [16, 40, kib]))[3].1;
    // one column for each core, then less
    assert_eq!(last(96), moved(24576 + 49152, 32768));
    assert_eq!(last(64), moved(4 * (24576 + 12288), 32768));
}

#[test]
fn tails_count_as_often_as_they_run() {
    // rows 0..20 of 6, 6, 6 and 2: the last tile is peeled
    let n = tiled_product([20, 32, 64], 6, 2, 16);
    let read = 4 * 20 * 32;
    assert_eq!(by_level(&n, &machine(1, [1, 1, 512]))[3].1, moved(read + 4 * 32 * 64, 4 * 20 * 64));
    // y[5o + i] = x[5o + i] for i below min(5, 17 - 5o)
    let f32 = DType::F32;
    let mut n = nest(&[(&[17, 16], f32, INPUT), (&[17, 16], f32, OUTPUT)]);
    let (o, i, l) = (n.new_var("o"), n.new_var("i"), n.new_var("l"));
    let (at, lane) = (Index::var(o).times(5).plus(&Index::var(i)), Index::var(l));
    let copy = for_(l, 16, LoopKind::Vector, vec![store(1, &[&at, &lane], get(0, &[&at, &lane]))]);
    let bounds = vec![5.into(), Index::constant(17).minus(&Index::var(o).times(5))];
    let tile = Stmt::Loop(Loop { var: i, bounds, kind: LoopKind::Serial, body: vec![copy] });
    n.body = vec![for_(o, 4, LoopKind::Serial, vec![tile])];
    assert!(by_level(&n, &machine(1, [1, 1, 1])).iter().all(|(_, all)| *all == moved(17 * 64, 17 * 64)));
}

#[test]
fn scattered_elements_take_a_line_each() {
    // a column of a wide matrix into a row
    let f32 = DType::F32;
    let mut n = nest(&[(&[100, 64], f32, INPUT), (&[100], f32, OUTPUT)]);
    let i = n.new_var("i");
    n.body =
        vec![for_(i, 100, LoopKind::Serial, vec![store(1, &[&i.into()], get(0, &[&i.into(), &Index::constant(3)]))])];
    let levels = by_level(&n, &avx512().into());
    assert_eq!(levels[0].1, moved(400, 400));
    assert_eq!(levels[1].1, moved(100 * 64, 448));
}
