//! Copies of rows that are there or not, compiled against what they mean, and what they consist of.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tilescribe::codegen::assembly;
use tilescribe::nest::{Nest, verify};
use tilescribe::workload::DType;

use super::quality::avx512;
use super::{run_compiled, target, zero};

/// The rows 0 to 8 of 9, of `pieces` vectors each, those before the second and behind the eighth of zeros.
fn copy(dtype: DType, [pieces, lanes]: [i64; 2]) -> Nest {
    let (name, elements) = (dtype.name(), pieces * lanes);
    let zero = zero(dtype);
    let text = format!(
        "buffers:
  x: {name}[7, {pitch}] input
  p: {name}[9, {elements}] output
body:
  for r in 0..9 {{
    unroll for u in 0..{pieces} {{
      vector for v in 0..{lanes} {{
        p[r, {lanes}*u + v] = guard(0 <= r - 1 < 7, x[r - 1, {lanes}*u + v + 3], {zero})
      }}
    }}
  }}
",
        pitch = elements + 5,
    );
    let nest: Nest = text.parse().unwrap_or_else(|error| panic!("{error}\n{text}"));
    verify(&nest, 16).unwrap_or_else(|error| panic!("{error}\n{text}"));
    nest
}

#[test]
fn rows_are_copied_bit_by_bit() {
    let mut random = ChaCha8Rng::seed_from_u64(7);
    for dtype in [DType::F32, DType::BF16, DType::F16, DType::U8, DType::I8, DType::I32] {
        for size in [[1, 16], [4, 16], [3, 12], [1, 7], [8, 8]] {
            let nest = copy(dtype, size);
            let (bytes, elements) = (dtype.bytes(), (size[0] * size[1]) as usize);
            let pitch = (elements + 5) * bytes;
            // every pattern, NaN and subnormal numbers among them
            let x: Vec<u8> = (0..7 * pitch).map(|_| random.random()).collect();
            let mut expected = vec![0; elements * bytes];
            for row in 0..7 {
                let first = row * pitch + 3 * bytes;
                expected.extend(&x[first..first + elements * bytes]);
            }
            expected.resize(9 * elements * bytes, 0);
            let mut compiled = [x, vec![0xff; 9 * elements * bytes]];
            run_compiled(&nest, &target(), &mut compiled);
            assert_eq!(compiled[1], expected, "{nest}");
        }
    }
}

#[test]
fn a_row_is_tested_once_and_never_converted() {
    let text = assembly(&copy(DType::BF16, [8, 16]), &avx512()).unwrap();
    for instruction in ["vcvt", "vpmovzx", "vpslld", "{%k"] {
        assert!(!text.contains(instruction), "{instruction} in\n{text}");
    }
    // four lines of bytes, loaded, stored, and set to zero
    let moves = text.matches("zmm").count();
    assert!(moves <= 4 * 3 + 4, "{moves} moves in\n{text}");
}
