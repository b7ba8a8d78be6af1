//! NumPy's `.npy` files (format versions 1 to 3), as described in `numpy.lib.format`: a magic string, a
//! header that is a Python dictionary, then the elements.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use tilescribe::artifact::Port;
use tilescribe::files;
use tilescribe::graph::TensorData;
use tilescribe::workload::DType;

use super::exit::CommandError;

const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// Headers beyond this many bytes are refused.
const HEADER_LIMIT: usize = 1 << 16;
/// Files that do not fit are read up to this many bytes.
const MISFIT_LIMIT: usize = 1 << 28;

/// Reads an array for an input of a network.
///
/// # Errors
/// [`CommandError::Usage`] where the file is none, or larger or of another type or order than the input.
pub fn read(path: &Path, port: &Port) -> Result<TensorData> {
    // a file that is somewhat too large is told its shape
    let limit = port.bytes().unwrap_or(0).max(MISFIT_LIMIT) + HEADER_LIMIT;
    let bytes = files::read(path, limit as u64).with_context(|| format!("cannot read {}", path.display()))?;
    parse(&bytes, port.dtype()).map_err(|reason| CommandError::Usage(format!("{}: {reason}", path.display())).into())
}

/// Writes an array, in version 1.
///
/// # Errors
/// [`std::io::Error`] where the file cannot be written.
pub fn write(file: &mut dyn Write, tensor: &TensorData) -> Result<()> {
    let extents: Vec<String> = tensor.shape.iter().map(|extent| format!("{extent},")).collect();
    let descriptor = tensor.dtype.numpy();
    let mut header = format!("{{'descr': '{descriptor}', 'fortran_order': False, 'shape': ({}), }}", extents.join(" "));
    // the elements start at a multiple of 64 bytes
    let padded = (10 + header.len() + 1).next_multiple_of(64) - 10;
    header.push_str(&" ".repeat(padded - header.len() - 1));
    header.push('\n');
    file.write_all(MAGIC)?;
    file.write_all(&[1, 0])?;
    file.write_all(&(header.len() as u16).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    Ok(file.write_all(&tensor.bytes)?)
}

/// `wanted` is the type that the reader hopes for.
fn parse(bytes: &[u8], wanted: Option<DType>) -> Result<TensorData, String> {
    let (length_bytes, rest) = match bytes.strip_prefix(MAGIC) {
        Some([1, _, rest @ ..]) => (2, rest),
        Some([2 | 3, _, rest @ ..]) => (4, rest),
        Some(_) => return Err("a version of the .npy format that is not known".into()),
        None => return Err("no .npy file".into()),
    };
    let mut length = [0; 4];
    length[..length_bytes].copy_from_slice(rest.get(..length_bytes).ok_or("the header is cut off")?);
    let length = u32::from_le_bytes(length) as usize;
    if length > HEADER_LIMIT {
        return Err(format!("a header of {length} bytes"));
    }
    let header = rest.get(length_bytes..length_bytes + length).ok_or("the header is cut off")?;
    let header = str::from_utf8(header).map_err(|_| "the header is no text")?;
    let descriptor = value(header, "descr")?.trim_matches(['\'', '"']).to_string();
    if value(header, "fortran_order")? != "False" {
        return Err("elements in column-major order: save numpy.ascontiguousarray(x)".into());
    }
    let dtype = DType::from_numpy(&descriptor).ok_or_else(|| {
        let other = wanted.unwrap_or(DType::F32).numpy();
        let found = descriptor.escape_debug();
        format!("elements of type `{found}`, which networks do not take: save x.astype(\"{other}\")")
    })?;
    if let Some(wanted) = wanted.filter(|wanted| *wanted != dtype) {
        let (found, other) = (dtype.name(), wanted.numpy());
        return Err(format!(
            "elements of {found}, and the network takes {}: save x.astype(\"{other}\")",
            wanted.name()
        ));
    }
    let shape = shape(value(header, "shape")?)?;
    let elements = shape.iter().try_fold(1usize, |product, extent| product.checked_mul(*extent as usize));
    let expected = elements.and_then(|elements| elements.checked_mul(dtype.bytes()));
    let data = &rest[length_bytes + length..];
    if expected != Some(data.len()) {
        return Err(format!("{} bytes of elements do not fit the shape {shape:?}", data.len()));
    }
    Ok(TensorData { shape, dtype, bytes: data.to_vec().into() })
}

/// The text of a value in the header's dictionary; a tuple with its parentheses.
fn value<'h>(header: &'h str, key: &str) -> Result<&'h str, String> {
    let missing = || format!("the header lacks `{key}`");
    let (_, after) = header.split_once(&format!("'{key}'")).ok_or_else(missing)?;
    let after = after.trim_start().strip_prefix(':').ok_or_else(missing)?.trim_start();
    let end = if after.starts_with('(') { after.find(')').map(|at| at + 1) } else { after.find([',', '}']) };
    Ok(after[..end.ok_or_else(missing)?].trim())
}

fn shape(tuple: &str) -> Result<Vec<i64>, String> {
    let inner = tuple.strip_prefix('(').and_then(|t| t.strip_suffix(')')).ok_or("the shape is no tuple")?;
    let extents = inner.split(',').map(str::trim).filter(|extent| !extent.is_empty());
    extents.map(|extent| extent.parse::<u32>().map(i64::from).map_err(|_| format!("an extent of `{extent}`"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_reads_back() {
        for (shape, dtype) in
            [(vec![2, 3], DType::F32), (vec![], DType::I64), (vec![7], DType::Bool), (vec![0, 4], DType::I8)]
        {
            let bytes = shape.iter().product::<i64>() as usize * dtype.bytes();
            let tensor =
                TensorData { shape, dtype, bytes: (0..bytes).map(|b| b as u8 % 2).collect::<Vec<u8>>().into() };
            let mut file = Vec::new();
            write(&mut file, &tensor).unwrap();
            assert_eq!(parse(&file, None).unwrap(), tensor);
            assert_eq!((file.len() - bytes) % 64, 0);
        }
    }

    #[test]
    fn damaged_files_are_refused() {
        let (bytes, mut good) = (vec![0; 24].into(), Vec::new());
        write(&mut good, &TensorData { shape: vec![6], dtype: DType::F32, bytes }).unwrap();
        assert!(parse(&good, None).is_ok());
        for cut in [0, 5, 8, 9, 40, good.len() - 1] {
            assert!(parse(&good[..cut], None).is_err(), "cut at {cut}");
        }
        let change = |from: &str, to: &str| {
            let text: String = good.iter().map(|byte| *byte as char).collect::<String>().replace(from, to);
            text.chars().map(|c| c as u8).collect::<Vec<u8>>()
        };
        for (from, to) in [("<f4", "<c8"), ("False", "True "), ("(6,)", "(-6)"), ("shape", "shake"), ("NUMPY", "NUMPX")]
        {
            assert!(parse(&change(from, to), None).is_err(), "{to}");
        }
    }
}
