//! What the rewrite of a convolution computes and moves, from its extents alone: quicker than to write it.

use super::{Convolution, axis};
use crate::workload::Workload;

/// Extents that the stages of Winograd's algorithm go through, at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Figures {
    /// Multiplications and additions of the convolution as it is written.
    pub direct_flops: i64,
    /// Images, and groups of channels: everything is done for each of them.
    pub images: i64,
    /// Tiles in each dimension of an image.
    pub tiles: [i64; 2],
    /// Outputs of a tile in a dimension: m.
    pub outputs: i64,
    /// Extent of the window: r.
    pub width: i64,
    /// Elements of the data between two outputs: s.
    pub stride: i64,
    /// Channels that are summed up.
    pub channels: i64,
    /// Filters of a group.
    pub filters: i64,
    /// Groups, which have filters of their own.
    pub groups: i64,
    /// Whether columns are innermost in the data's memory.
    pub by_columns: bool,
}

/// The figures for tiles of `outputs` × `outputs`; `None` where the algorithm does not apply.
pub fn figures(workload: &Workload, outputs: i64) -> Option<Figures> {
    choices(workload, &[outputs]).pop()
}

/// The figures for tiles of each of these numbers of outputs, as far as the algorithm applies.
pub fn choices(workload: &Workload, outputs: &[i64]) -> Vec<Figures> {
    let Some(convolution) = Convolution::find(workload) else { return Vec::new() };
    outputs.iter().filter(|outputs| convolution.divides(**outputs)).map(|o| of_tiles(&convolution, *o)).collect()
}

fn of_tiles(convolution: &Convolution<'_>, outputs: i64) -> Figures {
    let Convolution { stage, data, weights, windows, width, stride, .. } = *convolution;
    let is_window = |at: &usize| windows.iter().any(|w| w.spatial == *at || w.reduction == *at);
    let product = |of: &dyn Fn(usize) -> bool| -> i64 {
        (0..stage.rank()).filter(|at| !is_window(at) && of(*at)).map(|at| stage.extent(at)).product()
    };
    let is_spatial = |at: usize| at < stage.spatial.len();
    let groups = product(&|at| is_spatial(at) && data.mentions(axis(at)) && weights.mentions(axis(at)));
    Figures {
        direct_flops: 2 * stage.points(),
        images: product(&|at| is_spatial(at) && data.mentions(axis(at))),
        tiles: windows.map(|w| (stage.extent(w.spatial) + outputs - 1) / outputs),
        outputs,
        width,
        stride,
        channels: product(&|at| !is_spatial(at)),
        filters: product(&|at| is_spatial(at) && !data.mentions(axis(at))),
        groups,
        by_columns: convolution.is_by_columns(),
    }
}

impl Figures {
    /// t: points of a transform in a dimension.
    pub fn size(&self) -> i64 {
        self.outputs * self.stride + self.width - self.stride
    }

    fn all_tiles(&self) -> i64 {
        self.images * self.tiles.iter().product::<i64>()
    }

    /// Multiplications and additions of the products.
    pub fn flops(&self) -> i64 {
        2 * self.size() * self.size() * self.all_tiles() * self.channels * self.filters
    }

    /// Elements of the transformed filters.
    pub fn filter_elements(&self) -> i64 {
        self.size() * self.size() * self.groups * self.channels * self.filters
    }

    /// Elements of the filters as they are given.
    pub fn given_filter_elements(&self) -> i64 {
        self.width * self.width * self.groups * self.channels * self.filters
    }

    /// Elements that stages leave to the next ones.
    pub fn left_elements(&self) -> i64 {
        let (t, m) = (self.size(), self.outputs);
        let [rows, columns] = self.tiles;
        let read = self.images * rows * t * (columns * m * self.stride + self.width - self.stride) * self.channels;
        let data = t * t * self.all_tiles() * self.channels;
        let products = t * t * self.all_tiles() * self.filters;
        let summed = m * t * self.all_tiles() * self.filters;
        read + data + products + summed
    }

    /// Elements that the last stage writes, beyond the borders too.
    pub fn output_elements(&self) -> i64 {
        self.outputs * self.outputs * self.all_tiles() * self.filters
    }
}
