//! The Python module `tilescribe_runtime._native`: networks that Tilescribe compiled, as Python calls them.
//!
//! What a user sees of it is documented in `python/tilescribe_runtime/_native.pyi`.

mod arrays;
mod dlpack;
mod errors;
mod model;
mod runners;
mod spec;

#[pyo3::pymodule(gil_used = false)]
mod _native {
    #[pymodule_export]
    use super::model::{Model, load};
    #[pymodule_export]
    use super::spec::TensorSpec;
}
