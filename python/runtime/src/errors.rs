//! Errors of the runtime as Python's exceptions, which `tilescribe_runtime/errors.py` declares.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use tilescribe_runtime::RuntimeError;

/// By name, in the module of errors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Artifact,
    Input,
    DType,
    Shape,
    Target,
    Machine,
}

impl Kind {
    fn class(self, py: Python<'_>) -> PyResult<Bound<'_, PyType>> {
        static CLASSES: [PyOnceLock<Py<PyType>>; 6] = [const { PyOnceLock::new() }; 6];
        let name = match self {
            Kind::Artifact => "ArtifactError",
            Kind::Input => "InputError",
            Kind::DType => "DTypeError",
            Kind::Shape => "ShapeError",
            Kind::Target => "TargetError",
            Kind::Machine => "MachineError",
        };
        CLASSES[self as usize].import(py, "tilescribe_runtime.errors", name).cloned()
    }

    /// The exception; where its class cannot be imported, why not.
    pub fn error(self, py: Python<'_>, message: impl Into<String>) -> PyErr {
        match self.class(py) {
            Ok(class) => PyErr::from_type(class, message.into()),
            Err(error) => error,
        }
    }
}

/// Whose fault it is that a run is refused: types and ranks are checked before, what is left are extents.
pub fn of_run(py: Python<'_>, found: &RuntimeError) -> PyErr {
    match found {
        RuntimeError::Input(message) => Kind::Shape.error(py, message.clone()),
        other => error(py, other),
    }
}

/// Whose fault it is.
pub fn error(py: Python<'_>, error: &RuntimeError) -> PyErr {
    let kind = match error {
        RuntimeError::Invalid { .. } => Kind::Artifact,
        RuntimeError::Read { source, .. } => return PyErr::from(std::io::Error::new(source.kind(), error.to_string())),
        RuntimeError::Input(_) => Kind::Input,
        RuntimeError::Target(_) => Kind::Target,
        RuntimeError::Machine(_) => Kind::Machine,
        RuntimeError::Internal(_) => return PyRuntimeError::new_err(error.to_string()),
    };
    kind.error(py, error.to_string())
}
