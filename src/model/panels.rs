//! Weights laid out for products by a few rows.
//!
//! A step of decoding multiplies some twenty rows by each weight, and all weights together are larger than
//! a core's own cache. A general product copies its operands into the order in which it reads them, which for
//! so few rows takes half as long as the product itself; weights do not change, so they are laid out once.

use super::kernels::{Matrix, multiply};

/// Columns of a panel: two vectors of AVX-512.
#[cfg(target_arch = "x86_64")]
const COLUMNS: usize = 32;

/// A weight `[depth, columns]`.
pub(super) struct Panels {
    depth: usize,
    columns: usize,
    layout: Layout,
}

enum Layout {
    /// Panels of neighbouring columns, one after the other, the last one filled up with zeros: of each, its
    /// rows. Only where the processor has AVX-512.
    #[cfg(target_arch = "x86_64")]
    Panels(Vec<[f32; COLUMNS]>),
    RowMajor(Vec<f32>),
}

impl Panels {
    /// Of a row-major weight.
    pub fn new(weight: Vec<f32>, depth: usize, columns: usize) -> Panels {
        assert_eq!(weight.len(), depth * columns);
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx512f") {
            let mut panels = vec![[0.0; COLUMNS]; columns.div_ceil(COLUMNS) * depth];
            for (row, elements) in weight.chunks_exact(columns.max(1)).enumerate() {
                for (panel, elements) in elements.chunks(COLUMNS).enumerate() {
                    panels[panel * depth + row][..elements.len()].copy_from_slice(elements);
                }
            }
            return Panels { depth, columns, layout: Layout::Panels(panels) };
        }
        Panels { depth, columns, layout: Layout::RowMajor(weight) }
    }

    /// `output = left · weight`, or `output += left · weight`, of as many rows as `left` has, row-major. What
    /// a row becomes does not depend on the others.
    pub fn multiply(&self, output: &mut [f32], left: &[f32], accumulate: bool) {
        let rows = left.len() / self.depth.max(1);
        let output = &mut output[..rows * self.columns];
        match &self.layout {
            #[cfg(target_arch = "x86_64")]
            Layout::Panels(panels) => {
                let panels = panels.chunks_exact(self.depth.max(1));
                for (number, panel) in panels.enumerate() {
                    // SAFETY: panels are only made where the processor has the feature.
                    unsafe { wide::multiply(output, (self.columns, number * COLUMNS), left, panel, accumulate) };
                }
            }
            Layout::RowMajor(weight) => {
                let weight = Matrix::row_major(weight, self.depth, self.columns);
                multiply(output, Matrix::row_major(left, rows, self.depth), weight, accumulate);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod wide {
    use std::arch::x86_64::{
        __m512, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_set1_ps, _mm512_setzero_ps, _mm512_storeu_ps,
    };

    use super::COLUMNS;

    const LANES: usize = COLUMNS / 2;

    /// The columns from `begin` on of all rows of the output, which has so many `columns`.
    #[target_feature(enable = "avx512f")]
    pub(super) fn multiply(
        mut output: &mut [f32],
        (columns, begin): (usize, usize),
        mut left: &[f32],
        panel: &[[f32; COLUMNS]],
        accumulate: bool,
    ) {
        while !left.is_empty() {
            // as many sums as registers hold
            let rows = match left.len() / panel.len() {
                12.. => block::<12>(output, (columns, begin), left, panel, accumulate),
                8.. => block::<8>(output, (columns, begin), left, panel, accumulate),
                4.. => block::<4>(output, (columns, begin), left, panel, accumulate),
                2.. => block::<2>(output, (columns, begin), left, panel, accumulate),
                _ => block::<1>(output, (columns, begin), left, panel, accumulate),
            };
            output = &mut output[rows * columns..];
            left = &left[rows * panel.len()..];
        }
    }

    /// The first rows of it: how many.
    #[target_feature(enable = "avx512f")]
    fn block<const ROWS: usize>(
        output: &mut [f32],
        (columns, begin): (usize, usize),
        left: &[f32],
        panel: &[[f32; COLUMNS]],
        accumulate: bool,
    ) -> usize {
        let rows: [&[f32]; ROWS] = std::array::from_fn(|row| &left[row * panel.len()..][..panel.len()]);
        let mut sums = [[_mm512_setzero_ps(); 2]; ROWS];
        for (at, weights) in panel.iter().enumerate() {
            let weights = halves(weights);
            for (sums, row) in sums.iter_mut().zip(rows) {
                let element = _mm512_set1_ps(row[at]);
                *sums = [0, 1].map(|half| _mm512_fmadd_ps(element, weights[half], sums[half]));
            }
        }
        for (sums, output) in sums.into_iter().zip(output.chunks_exact_mut(columns)) {
            let output = &mut output[begin..columns.min(begin + COLUMNS)];
            let sums = whole(sums);
            match accumulate {
                true => output.iter_mut().zip(sums).for_each(|(output, sum)| *output += sum),
                false => output.copy_from_slice(&sums[..output.len()]),
            }
        }
        ROWS
    }

    #[target_feature(enable = "avx512f")]
    fn halves(elements: &[f32; COLUMNS]) -> [__m512; 2] {
        let first = elements.as_ptr();
        // SAFETY: both read within the array.
        unsafe { [_mm512_loadu_ps(first), _mm512_loadu_ps(first.add(LANES))] }
    }

    #[target_feature(enable = "avx512f")]
    fn whole(halves: [__m512; 2]) -> [f32; COLUMNS] {
        let mut elements = [0.0; COLUMNS];
        let first = elements.as_mut_ptr();
        // SAFETY: both write within the array.
        unsafe {
            _mm512_storeu_ps(first, halves[0]);
            _mm512_storeu_ps(first.add(LANES), halves[1]);
        }
        elements
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panels_multiply_as_the_weight_does_and_rows_are_of_their_own() {
        for (depth, columns) in [(1, 1), (3, 32), (16, 40), (128, 95)] {
            let weight: Vec<f32> = (0..depth * columns).map(|i| ((i * 7 + 3) % 13) as f32 - 6.0).collect();
            let panels = Panels::new(weight.clone(), depth, columns);
            let one = |left: &[f32]| {
                let mut output = vec![1.0; columns];
                panels.multiply(&mut output, left, true);
                output
            };
            for rows in [1, 2, 3, 5, 8, 12, 31] {
                let left: Vec<f32> = (0..rows * depth).map(|i| ((i * 5 + rows) % 11) as f32 - 5.0).collect();
                let (mut expected, mut output) = (vec![1.0; rows * columns], vec![1.0; rows * columns]);
                let of_weight = Matrix::row_major(&weight, depth, columns);
                multiply(&mut expected, Matrix::row_major(&left, rows, depth), of_weight, true);
                panels.multiply(&mut output, &left, true);
                // all sums are whole numbers
                assert_eq!(output, expected, "{rows} rows of {depth} by {columns}");
                let each: Vec<f32> = left.chunks_exact(depth).flat_map(one).collect();
                assert_eq!(output, each);
                panels.multiply(&mut output, &left, false);
                assert!(output.iter().zip(&expected).all(|(output, expected)| *output == expected - 1.0));
            }
        }
    }
}
