//! Elements of tensors, from the model itself or from files beside it.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};

use prost::bytes::Bytes;

use super::error::{ImportError, TensorProblem};
use super::proto::TensorProto;
use crate::files;
use crate::graph::TensorData;
use crate::graph::lower::Builder;
use crate::workload::DType;

/// Maps a file into memory: its pages are read on demand and belong to the system's cache.
pub fn map_file(path: &Path) -> std::io::Result<Bytes> {
    let file = files::open(path)?;
    let metadata = file.metadata()?;
    if metadata.len() == 0 {
        return Ok(Bytes::new());
    }
    // SAFETY: the mapping is private and only read. Whoever cuts the file off meanwhile makes reads fail with
    // a signal, as with every program that maps files; no byte is trusted after it was checked.
    let map = unsafe { memmap2::Mmap::map(&file) }?;
    Ok(Bytes::from_owner(map))
}

/// Files with external data, each mapped once.
#[derive(Debug, Default)]
pub struct ExternalFiles {
    /// The model's folder; `None` if it came without one.
    folder: Option<PathBuf>,
    maps: HashMap<PathBuf, Bytes>,
}

impl ExternalFiles {
    pub fn beside(model: Option<&Path>) -> ExternalFiles {
        let parent = model.and_then(Path::parent);
        let folder = parent.map(|p| if p.as_os_str().is_empty() { PathBuf::from(".") } else { p.to_path_buf() });
        ExternalFiles { folder, maps: HashMap::new() }
    }

    /// The bytes that a location names. It has to stay in the model's folder, by its spelling and after links
    /// are followed.
    fn open(&mut self, location: &str) -> Result<(PathBuf, Bytes), TensorProblem> {
        let folder = self.folder.as_ref().ok_or(TensorProblem::NoFolder)?;
        let relative = Path::new(location);
        let is_plain = !location.is_empty()
            && !location.contains(['\\', '\0'])
            && relative.components().all(|c| matches!(c, Component::Normal(_) | Component::CurDir));
        if !is_plain {
            return Err(TensorProblem::Location(location.to_string()));
        }
        let read = |path: &Path, source| TensorProblem::Read { path: path.to_path_buf(), source };
        let root = folder.canonicalize().map_err(|e| read(folder, e))?;
        let path = folder.join(relative);
        let real = path.canonicalize().map_err(|e| read(&path, e))?;
        if !real.starts_with(&root) {
            return Err(TensorProblem::Location(location.to_string()));
        }
        if let Some(bytes) = self.maps.get(&real) {
            return Ok((path, bytes.clone()));
        }
        let bytes = map_file(&real).map_err(|e| read(&path, e))?;
        self.maps.insert(real, bytes.clone());
        Ok((path, bytes))
    }
}

/// Checks a tensor and takes its elements.
pub fn tensor_data(
    proto: &TensorProto,
    files: &mut ExternalFiles,
    what: &'static str,
) -> Result<TensorData, ImportError> {
    let dtype = DType::from_onnx(i64::from(proto.data_type)).ok_or_else(|| ImportError::ElementType {
        what,
        name: proto.name.clone(),
        code: proto.data_type,
    })?;
    let count = element_count(proto)?;
    let bytes = stored(proto, files, count * dtype.bytes() as u64, &|| typed(proto, dtype))?;
    let bytes = if dtype == DType::Bool && bytes.iter().any(|b| *b > 1) {
        bytes.iter().map(|b| u8::from(*b != 0)).collect()
    } else {
        bytes
    };
    Ok(TensorData { shape: proto.dims.clone(), dtype, bytes })
}

/// The elements of a constant of `int4` or `uint4` as 8-bit integers, one a byte; `None` of other types.
///
/// ONNX packs two of them in a byte, the first in the low bits.
///
/// # Errors
/// As [`tensor_data`].
pub fn four_bit_data(proto: &TensorProto, files: &mut ExternalFiles) -> Result<Option<TensorData>, ImportError> {
    let dtype = match proto.data_type {
        UINT4 => DType::U8,
        INT4 => DType::I8,
        _ => return Ok(None),
    };
    let count = element_count(proto)?;
    let first_bytes = || proto.int32_data.iter().map(|value| value.to_le_bytes()[0]).collect();
    let packed = stored(proto, files, count.div_ceil(2), &first_bytes)?;
    let widened = |bits: u8| if dtype == DType::I8 { ((bits << 4).cast_signed() >> 4).cast_unsigned() } else { bits };
    let numbers = packed.iter().flat_map(|byte| [widened(byte & 15), widened(byte >> 4)]);
    let bytes: Vec<u8> = numbers.take(count as usize).collect();
    Ok(Some(TensorData { shape: proto.dims.clone(), dtype, bytes: bytes.into() }))
}

/// ONNX's numbers of the types of four bits.
const UINT4: i32 = 21;
const INT4: i32 = 22;

fn element_count(proto: &TensorProto) -> Result<u64, ImportError> {
    let problem = |problem| ImportError::Tensor { tensor: proto.name.clone(), problem: TensorProblem::Shape(problem) };
    Builder::check_shape(&proto.dims).map(|count| count as u64).map_err(problem)
}

/// The bytes of a tensor, wherever they are: `typed` gives those of the field of its element type.
fn stored(
    proto: &TensorProto,
    files: &mut ExternalFiles,
    expected: u64,
    typed: &dyn Fn() -> Bytes,
) -> Result<Bytes, ImportError> {
    let elements = |problem: TensorProblem| ImportError::Tensor { tensor: proto.name.clone(), problem };
    let bytes = match proto.data_location {
        1 => external(proto, files, expected).map_err(elements)?,
        _ if !proto.raw_data.is_empty() => proto.raw_data.clone(),
        _ => typed(),
    };
    if bytes.len() as u64 != expected {
        let (shape, found) = (proto.dims.clone(), bytes.len() as u64);
        return Err(elements(TensorProblem::Size { shape, expected, found }));
    }
    Ok(bytes)
}

/// From the field of the element type.
fn typed(proto: &TensorProto, dtype: DType) -> Bytes {
    let small = proto.int32_data.iter();
    match dtype {
        DType::F32 => proto.float_data.iter().flat_map(|v| v.to_le_bytes()).collect(),
        DType::F64 => proto.double_data.iter().flat_map(|v| v.to_le_bytes()).collect(),
        DType::I64 => proto.int64_data.iter().flat_map(|v| v.to_le_bytes()).collect(),
        DType::U32 | DType::U64 => {
            proto.uint64_data.iter().flat_map(|v| v.to_le_bytes().into_iter().take(dtype.bytes())).collect()
        }
        DType::Bool => small.map(|v| u8::from(*v != 0)).collect(),
        // all shorter types, floats as their bits
        dtype => small.flat_map(|v| v.to_le_bytes().into_iter().take(dtype.bytes())).collect(),
    }
}

fn external(proto: &TensorProto, files: &mut ExternalFiles, expected: u64) -> Result<Bytes, TensorProblem> {
    let entry = |key: &str| proto.external_data.iter().find(|e| e.key == key).map(|e| e.value.as_str());
    let number = |key: &'static str| -> Result<Option<u64>, TensorProblem> {
        let parse = |value: &str| value.parse().map_err(|_| TensorProblem::Number { key, value: value.to_string() });
        entry(key).map(parse).transpose()
    };
    let location = entry("location").ok_or(TensorProblem::NoLocation)?;
    let offset = number("offset")?.unwrap_or(0);
    let length = number("length")?.unwrap_or(expected);
    if length != expected {
        return Err(TensorProblem::Size { shape: proto.dims.clone(), expected, found: length });
    }
    let (path, bytes) = files.open(location)?;
    let end = offset.checked_add(length).filter(|end| *end <= bytes.len() as u64);
    match end {
        Some(end) => Ok(bytes.slice(offset as usize..end as usize)),
        None => Err(TensorProblem::Range { path, offset, length, file: bytes.len() as u64 }),
    }
}
