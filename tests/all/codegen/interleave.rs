//! Copies of rows to groups of steps, compiled against interpreted, and what the compiled ones consist of.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tilescribe::codegen::assembly;
use tilescribe::nest::{Nest, interpret, verify};
use tilescribe::workload::DType;

use super::quality::avx512;
use super::{run_compiled, target, zero};

/// Elements that there are of a row of 2 · `lanes`.
fn columns(lanes: i64) -> i64 {
    if lanes.count_ones() == 1 { 2 * lanes - 5 } else { 2 * lanes }
}

/// A copy of 11 rows to groups of `steps`, the last of which has rows that there are not.
fn copy(dtype: DType, steps: i64, lanes: i64) -> Nest {
    let (groups, columns, name) = ((11 + steps) / steps, columns(lanes), dtype.name());
    let of_lanes = if columns < 2 * lanes { format!(" && {lanes}*u + v < {columns}") } else { String::new() };
    let zero = zero(dtype);
    let text = format!(
        "buffers:
  x: {name}[11, 40] input
  p: {name}[{groups}, 2, {lanes}, {steps}] output
body:
  for o in 0..{groups} {{
    unroll for q in 0..{steps} {{
      unroll for u in 0..2 {{
        vector for v in 0..{lanes} {{
          p[o, u, v, q] = guard({steps}*o + q < 11{of_lanes}, x[{steps}*o + q, {lanes}*u + v + 3], {zero})
        }}
      }}
    }}
  }}
"
    );
    let nest: Nest = text.parse().unwrap_or_else(|error| panic!("{error}\n{text}"));
    verify(&nest, 16).unwrap_or_else(|error| panic!("{error}\n{text}"));
    nest
}

#[test]
fn rows_become_groups_bit_by_bit() {
    let mut random = ChaCha8Rng::seed_from_u64(3);
    for dtype in [DType::BF16, DType::F16, DType::U8, DType::I8] {
        for (steps, lanes) in [(2, 16), (4, 16), (2, 8), (4, 4), (2, 12)] {
            let nest = copy(dtype, steps, lanes);
            // every pattern, NaN and subnormal numbers among them
            let x: Vec<u8> = (0..440 * dtype.bytes()).map(|_| random.random()).collect();
            let p = vec![0xff; nest.buffers[1].bytes()];
            let mut compiled = [x.clone(), p];
            run_compiled(&nest, &target(), &mut compiled);
            let element = |row: i64, column: i64| -> Vec<u8> {
                let at = (row * 40 + column + 3) as usize * dtype.bytes();
                if row < 11 && column < columns(lanes) {
                    x[at..at + dtype.bytes()].to_vec()
                } else {
                    vec![0; dtype.bytes()]
                }
            };
            let mut expected = Vec::new();
            for o in 0..(11 + steps) / steps {
                for column in 0..2 * lanes {
                    (0..steps).for_each(|q| expected.extend(element(steps * o + q, column)));
                }
            }
            assert_eq!(compiled[1], expected, "{nest}");
        }
    }
}

/// A copy of `groups` groups of steps of twice as many rows as there are lanes, the last three of which are
/// zeros.
fn regrouped(dtype: DType, [groups, lanes, steps]: [i64; 3]) -> Nest {
    let (name, rows, there) = (dtype.name(), 2 * lanes, 2 * lanes - 3);
    let zero = zero(dtype);
    let text = format!(
        "buffers:
  x: {name}[{rows}, 70] input
  p: {name}[{groups}, {rows}, {steps}] output
body:
  unroll for k in 0..{groups} {{
    unroll for q in 0..{steps} {{
      unroll for u in 0..2 {{
        vector for v in 0..{lanes} {{
          p[k, {lanes}*u + v, q] = guard({lanes}*u + v < {there}, x[{lanes}*u + v, {steps}*k + q + 5], {zero})
        }}
      }}
    }}
  }}
"
    );
    let nest: Nest = text.parse().unwrap_or_else(|error| panic!("{error}\n{text}"));
    verify(&nest, 16).unwrap_or_else(|error| panic!("{error}\n{text}"));
    nest
}

#[test]
fn groups_are_transposed_bit_by_bit() {
    let mut random = ChaCha8Rng::seed_from_u64(4);
    for (dtype, steps) in [(DType::BF16, 2), (DType::U8, 4), (DType::I8, 4), (DType::U8, 2)] {
        for (groups, lanes) in [(16, 16), (11, 16), (3, 12), (16, 4)] {
            let nest = regrouped(dtype, [groups, lanes, steps]);
            let x: Vec<u8> = (0..nest.buffers[0].bytes()).map(|_| random.random()).collect();
            let mut compiled = [x.clone(), vec![0xff; nest.buffers[1].bytes()]];
            run_compiled(&nest, &target(), &mut compiled);
            let row = |row: i64, group: i64| {
                let at = (row * 70 + steps * group + 5) as usize * dtype.bytes();
                let bytes = &x[at..at + steps as usize * dtype.bytes()];
                if row < 2 * lanes - 3 { bytes.to_vec() } else { vec![0; bytes.len()] }
            };
            let groups = (0..groups).flat_map(|k| (0..2 * lanes).flat_map(move |j| row(j, k)));
            assert_eq!(compiled[1], groups.collect::<Vec<u8>>(), "{nest}");
        }
    }
}

#[test]
fn integers_are_interpreted_alike() {
    for (steps, lanes) in [(2, 16), (4, 16)] {
        let nest = copy(DType::U8, steps, lanes);
        let x: Vec<u8> = (0..440).map(|at| (at * 7 % 251) as u8).collect();
        let mut expected = [x, vec![0xff; nest.buffers[1].bytes()]];
        let mut compiled = expected.clone();
        interpret(&nest, &mut expected).unwrap();
        run_compiled(&nest, &target(), &mut compiled);
        assert_eq!(compiled, expected, "{nest}");
    }
}

/// No element goes by itself.
#[test]
fn rows_are_shuffled_in_registers() {
    let rows = [(DType::BF16, 2), (DType::U8, 4)].map(|(dtype, steps)| copy(dtype, steps, 16));
    let groups = [(DType::BF16, 2), (DType::U8, 4)].map(|(dtype, steps)| regrouped(dtype, [16, 16, steps]));
    for nest in rows.into_iter().chain(groups) {
        let text = assembly(&nest, &avx512()).unwrap();
        for bad in ["vpextr", "vpinsr", "scatter"] {
            assert!(!text.contains(bad), "{bad}\n{text}");
        }
        let shuffles = ["vpunpck", "vunpck", "vpermt2", "vpermi2"];
        assert!(shuffles.iter().any(|name| text.contains(name)), "{text}");
    }
}
