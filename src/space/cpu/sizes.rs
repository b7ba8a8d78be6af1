//! How large the tiles of an axis may be, and which of them covers it best.

/// Vectors in the register tile of an axis, at most.
const MAXIMAL_VECTORS: i64 = 8;

/// Whole registers, or the whole axis where it ends within the last of them.
pub(super) fn vector_tiles(extent: i64, lanes: i64) -> Vec<i64> {
    let mut tiles: Vec<i64> = (1..=MAXIMAL_VECTORS).map(|k| k * lanes).filter(|t| *t <= extent).collect();
    if extent < MAXIMAL_VECTORS * lanes && extent % lanes != 0 {
        tiles.push(extent);
    }
    tiles
}

/// The position of the largest tile up to `most` that leaves the least of its last copy unused.
pub(super) fn default_tile(extent: i64, candidates: &[i64], most: i64) -> usize {
    let waste = |t: i64| {
        let covered = (extent + t - 1) / t * t;
        1000 * (covered - extent) / extent
    };
    let fits = |at: &usize| candidates[*at] <= most;
    // a tile half the size costs more than a tenth of waste
    (0..candidates.len())
        .filter(fits)
        .max_by_key(|at| candidates[*at] * 1000 / (1000 + 5 * waste(candidates[*at])))
        .unwrap_or(0)
}
