//! What kernels and those who call them agree on, and the widths that all passes of this back end know.

/// The name of a kernel that is loaded into this process, or printed.
pub(crate) const SYMBOL: &str = "kernel";

/// The function that fills a kernel's packed arguments.
pub(super) fn setup_symbol(kernel: &str) -> String {
    format!("{kernel}_setup")
}

/// The runtime's entry that kernels call.
pub(super) const PARALLEL_FOR: &str = "tilescribe_parallel_for";

/// Alignment of every buffer in the workspace, and of the workspace itself, in bytes: a cache line, and the
/// widest vector.
pub const WORKSPACE_ALIGNMENT: usize = 64;

/// Of the workspace, in bytes, and of arguments unless it is said otherwise: what the widest loads of a
/// thread want.
pub const DEVICE_ALIGNMENT: u64 = 16;

/// The widest vector loop that is executed at once; LLVM spreads it over several registers.
pub(super) const MAX_VECTOR_LANES: i64 = 64;

/// Strides up to this many elements are loaded as whole rows, of which every so many lanes are kept: a gather
/// takes about as long as twenty such instructions.
pub const MAXIMAL_STRIDE: i64 = 4;
