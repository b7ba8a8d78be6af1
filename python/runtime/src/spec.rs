//! What a network takes, gives and keeps.

use numpy::PyArrayDescr;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use tilescribe_runtime::{DType, Port};

/// An input, output or state.
#[pyclass(frozen, module = "tilescribe_runtime")]
#[derive(Debug)]
pub struct TensorSpec {
    pub port: Port,
    pub element: DType,
    pub descr: Py<PyArrayDescr>,
}

impl TensorSpec {
    pub fn new(py: Python<'_>, port: &Port) -> PyResult<TensorSpec> {
        let unknown = || PyTypeError::new_err(format!("`{}` has the unknown type {}", port.name, port.dtype));
        let element = port.dtype().ok_or_else(unknown)?;
        Ok(TensorSpec { port: port.clone(), element, descr: descr(py, element)?.unbind() })
    }

    /// Whether its shape is the same in every run.
    pub fn is_fixed(&self) -> bool {
        self.port.extents.is_empty()
    }
}

/// NumPy has no bfloat16: it is that of `ml_dtypes` where that is installed, and else two bytes without a
/// meaning.
fn descr(py: Python<'_>, element: DType) -> PyResult<Bound<'_, PyArrayDescr>> {
    if element == DType::BF16
        && let Ok(module) = py.import("ml_dtypes")
    {
        return PyArrayDescr::new(py, module.getattr("bfloat16")?);
    }
    PyArrayDescr::new(py, element.numpy())
}

#[pymethods]
impl TensorSpec {
    #[getter]
    fn name(&self) -> &str {
        &self.port.name
    }

    #[getter]
    fn dtype(&self, py: Python<'_>) -> Py<PyArrayDescr> {
        self.descr.clone_ref(py)
    }

    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let extent = |(axis, most): (usize, &i64)| match self.port.extents.get(&axis) {
            Some(extent) => extent.text.clone().into_pyobject(py).map(Bound::into_any).map_err(PyErr::from),
            None => most.into_pyobject(py).map(Bound::into_any).map_err(PyErr::from),
        };
        let extents = self.port.shape.iter().enumerate().map(extent).collect::<PyResult<Vec<_>>>()?;
        PyTuple::new(py, extents)
    }

    #[getter]
    fn min_shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.port.least_shape())
    }

    #[getter]
    fn max_shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.port.shape)
    }

    fn __repr__(&self) -> String {
        format!("<TensorSpec {}: {}>", self.port.name, self.port.text())
    }
}
