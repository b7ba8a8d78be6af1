//! Arrays that runs read and write: NumPy's, and tensors that are lent through DLPack.

use std::ffi::c_void;
use std::ptr::null_mut;

use numpy::npyffi::{NPY_ARRAY_WRITEABLE, NpyTypes, PY_ARRAY_API, get_type_object};
use numpy::{PyArrayDescr, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

use crate::dlpack::Lent;
use crate::errors::Kind;
use crate::spec::TensorSpec;

/// Memory of an input, for as long as a call runs.
#[derive(Debug)]
pub struct Given<'py> {
    pub shape: Vec<i64>,
    pub data: *const c_void,
    _owner: Owner<'py>,
}

/// Memory that a call writes an output to.
#[derive(Debug)]
pub struct Taken<'py> {
    pub data: *mut c_void,
    /// What the caller gets.
    pub object: Bound<'py, PyAny>,
    _owner: Owner<'py>,
}

/// Who keeps the memory.
#[derive(Debug)]
enum Owner<'py> {
    Array { _array: Bound<'py, PyUntypedArray> },
    Tensor { _lent: Lent<'py> },
    Copy { _bytes: Vec<u64> },
}

impl<'py> Given<'py> {
    /// Takes an argument: without a copy where it is dense, row-major and aligned.
    ///
    /// # Errors
    /// `DTypeError` and `ShapeError` with what is wanted and what was given, `InputError` for what is no
    /// tensor.
    pub fn new(spec: &TensorSpec, argument: &Bound<'py, PyAny>) -> PyResult<Given<'py>> {
        if let Ok(array) = argument.cast::<PyUntypedArray>() {
            return Given::of_array(spec, array);
        }
        match Lent::new(argument)? {
            Some(lent) => Given::of_tensor(argument.py(), spec, lent),
            None => Given::of_array(spec, &as_array(spec, argument)?),
        }
    }

    fn of_array(spec: &TensorSpec, array: &Bound<'py, PyUntypedArray>) -> PyResult<Given<'py>> {
        let py = array.py();
        let dtype = array.dtype();
        if !is_descr(&dtype, spec.descr.bind(py)) {
            return Err(wrong_type(py, spec, &dtype.to_string()));
        }
        let shape: Vec<i64> = array.shape().iter().map(|extent| *extent as i64).collect();
        check_shape(py, spec, &shape)?;
        let array = match array.is_c_contiguous() && array.is_aligned() {
            true => array.clone(),
            false => {
                check_room(py, spec, &shape)?;
                dense(array)?
            }
        };
        // SAFETY: the array is alive, and so is its data.
        let data = unsafe { (*array.as_array_ptr()).fields.data }.cast_const().cast();
        Ok(Given { shape, data, _owner: Owner::Array { _array: array } })
    }

    fn of_tensor(py: Python<'py>, spec: &TensorSpec, lent: Lent<'py>) -> PyResult<Given<'py>> {
        if lent.element != Some(spec.element) {
            return Err(wrong_type(py, spec, &lent.type_name()));
        }
        check_shape(py, spec, &lent.shape)?;
        let shape = lent.shape.clone();
        let size = spec.element.bytes();
        if lent.is_dense() && lent.data.align_offset(size) == 0 {
            return Ok(Given { shape, data: lent.data.cast_const().cast(), _owner: Owner::Tensor { _lent: lent } });
        }
        check_room(py, spec, &shape)?;
        // in words, so that elements are aligned
        let copy = lent.copied(size);
        let words: Vec<u64> = copy.chunks(8).map(word).collect();
        Ok(Given { shape, data: words.as_ptr().cast(), _owner: Owner::Copy { _bytes: words } })
    }
}

fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_ne_bytes(word)
}

impl<'py> Taken<'py> {
    /// A new array.
    ///
    /// # Errors
    /// `MemoryError`.
    pub fn new(py: Python<'py>, spec: &TensorSpec, shape: &[i64]) -> PyResult<Taken<'py>> {
        let mut dims: Vec<isize> = shape.iter().map(|extent| *extent as isize).collect();
        let descr = spec.descr.clone_ref(py).into_ptr().cast();
        // SAFETY: takes over the reference to the type; null without memory, with an exception set.
        let array = unsafe {
            let subtype = get_type_object(py, NpyTypes::PyArray_Type);
            let (rank, dims) = (dims.len() as i32, dims.as_mut_ptr());
            let (strides, data, like) = (null_mut(), null_mut(), null_mut());
            let array = PY_ARRAY_API.PyArray_NewFromDescr(py, subtype, descr, rank, dims, strides, data, 0, like);
            Bound::from_owned_ptr_or_err(py, array)?.cast_into_unchecked::<PyUntypedArray>()
        };
        Ok(Taken::of(array))
    }

    /// Writes into an array or tensor of the caller.
    ///
    /// # Errors
    /// `DTypeError`, `ShapeError`, and `InputError` for one that cannot be written to in place.
    pub fn into(spec: &TensorSpec, shape: &[i64], target: &Bound<'py, PyAny>) -> PyResult<Taken<'py>> {
        let py = target.py();
        let name = &spec.port.name;
        let fits = |found: &[i64]| match found == shape {
            true => Ok(()),
            false => {
                let message = format!("output `{name}` is {shape:?} in this run, the array for it {found:?}");
                Err(Kind::Shape.error(py, message))
            }
        };
        let unfit =
            || Kind::Input.error(py, format!("the array for output `{name}` is not dense, aligned and writable"));
        if let Ok(array) = target.cast::<PyUntypedArray>() {
            let dtype = array.dtype();
            if !is_descr(&dtype, spec.descr.bind(py)) {
                return Err(wrong_type(py, spec, &dtype.to_string()));
            }
            let found: Vec<i64> = array.shape().iter().map(|extent| *extent as i64).collect();
            fits(&found)?;
            // SAFETY: the array is alive.
            let flags = unsafe { (*array.as_array_ptr()).fields.flags };
            if !array.is_c_contiguous() || !array.is_aligned() || flags & NPY_ARRAY_WRITEABLE == 0 {
                return Err(unfit());
            }
            return Ok(Taken::of(array.clone()));
        }
        let Some(lent) = Lent::new(target)? else {
            return Err(Kind::Input.error(py, format!("what is given for output `{name}` is no array")));
        };
        if lent.element != Some(spec.element) {
            return Err(wrong_type(py, spec, &lent.type_name()));
        }
        fits(&lent.shape)?;
        if !lent.is_dense() || lent.data.align_offset(spec.element.bytes()) != 0 {
            return Err(unfit());
        }
        Ok(Taken { data: lent.data.cast(), object: target.clone(), _owner: Owner::Tensor { _lent: lent } })
    }

    fn of(array: Bound<'py, PyUntypedArray>) -> Taken<'py> {
        // SAFETY: the array is alive, and so is its data.
        let data = unsafe { (*array.as_array_ptr()).fields.data }.cast();
        let object = array.clone().into_any();
        Taken { data, object, _owner: Owner::Array { _array: array } }
    }
}

/// Types are mostly the very same object.
fn is_descr(found: &Bound<'_, PyArrayDescr>, wanted: &Bound<'_, PyArrayDescr>) -> bool {
    found.is(wanted) || found.is_equiv_to(wanted)
}

fn wrong_type(py: Python<'_>, spec: &TensorSpec, given: &str) -> PyErr {
    let (name, wanted) = (&spec.port.name, spec.element.name());
    let hint = match spec.descr.bind(py).str() {
        Ok(numpy) => format!(": convert it with `.astype(\"{numpy}\")`"),
        Err(_) => String::new(),
    };
    Kind::DType.error(py, format!("`{name}` is {wanted}, {given} was given{hint}"))
}

/// Extents that are open are checked when they are set.
fn check_shape(py: Python<'_>, spec: &TensorSpec, shape: &[i64]) -> PyResult<()> {
    match spec.port.check(spec.element, shape) {
        Ok(()) => Ok(()),
        Err(error) => Err(Kind::Shape.error(py, error.to_string())),
    }
}

/// Before a copy is made: a view of one row may say that it has any number of them.
fn check_room(py: Python<'_>, spec: &TensorSpec, shape: &[i64]) -> PyResult<()> {
    if spec.port.admits(shape) {
        return Ok(());
    }
    let (name, least, most) = (&spec.port.name, spec.port.least_shape(), &spec.port.shape);
    let message = format!("`{name}` is {shape:?}; the network takes {least:?} to {most:?}");
    Err(Kind::Shape.error(py, message))
}

fn module(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static NUMPY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let module = NUMPY.get_or_try_init(py, || py.import("numpy").map(|module| module.into_any().unbind()))?;
    Ok(module.bind(py))
}

/// The array in memory that the runtime reads.
fn dense<'py>(array: &Bound<'py, PyUntypedArray>) -> PyResult<Bound<'py, PyUntypedArray>> {
    let py = array.py();
    let options = PyDict::new(py);
    options.set_item("requirements", "CA")?;
    let dense = module(py)?.call_method("require", (array,), Some(&options))?;
    Ok(dense.cast_into::<PyUntypedArray>()?)
}

/// Numbers and lists of them.
fn as_array<'py>(spec: &TensorSpec, argument: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyUntypedArray>> {
    let py = argument.py();
    let array = module(py)?.call_method1("asarray", (argument, spec.descr.bind(py)));
    let array = array.map_err(|error| {
        let type_name = argument.get_type().name().map_or_else(|_| "?".to_string(), |name| name.to_string());
        Kind::Input.error(py, format!("`{}` is given by no array but {type_name}: {error}", spec.port.name))
    })?;
    Ok(array.cast_into::<PyUntypedArray>()?)
}

/// As many of the first elements of an output as there turned out to be.
///
/// # Errors
/// What NumPy raises.
pub fn leading<'py>(object: &Bound<'py, PyAny>, shape: &[i64]) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    let elements: i64 = shape.iter().product();
    let flat = object.call_method1("reshape", (-1,))?;
    let part = flat.get_item(pyo3::types::PySlice::new(py, 0, elements as isize, 1))?;
    part.call_method1("reshape", (pyo3::types::PyTuple::new(py, shape)?,))
}
