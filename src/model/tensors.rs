//! Tensors on disk: safetensors of `f32`, checked before anything of them is used.

use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::path::Path;

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};

use crate::files::{self, DraftFile};

/// A tensor of a file.
pub(in crate::model) struct Stored {
    pub shape: Vec<usize>,
    pub values: Vec<f32>,
}

/// Tensors by name.
pub(in crate::model) type Tensors = BTreeMap<String, Stored>;

/// Takes away the shapes after they were compared with those that belong.
pub(in crate::model) fn with_shapes(
    shapes: &[(String, Vec<usize>)],
    tensors: Tensors,
) -> Result<BTreeMap<String, Vec<f32>>, String> {
    for (name, shape) in shapes {
        if let Some(stored) = tensors.get(name).filter(|stored| stored.shape != *shape) {
            return Err(format!("tensor `{name}` has shape {:?} where {shape:?} belongs", stored.shape));
        }
    }
    Ok(tensors.into_iter().map(|(name, stored)| (name, stored.values)).collect())
}

/// Safetensors of `f32`, with one text beside them.
pub(in crate::model) fn encode(tensors: Tensors, note: Option<String>) -> Result<Vec<u8>, String> {
    let bytes: Vec<(String, Vec<usize>, Vec<u8>)> = tensors
        .into_iter()
        .map(|(name, stored)| (name, stored.shape, stored.values.iter().flat_map(|v| v.to_le_bytes()).collect()))
        .collect();
    let mut views = Vec::with_capacity(bytes.len());
    for (name, shape, bytes) in &bytes {
        views.push((name, TensorView::new(Dtype::F32, shape.clone(), bytes).map_err(|e| e.to_string())?));
    }
    let note = note.map(|note| HashMap::from([(NOTE.to_string(), note)]));
    safetensors::serialize(views, note).map_err(|e| e.to_string())
}

const NOTE: &str = "note";

/// Reads what [`encode`] wrote; any other bytes give an error that says why.
pub(in crate::model) fn decode(bytes: &[u8]) -> Result<(Tensors, Option<String>), String> {
    let file = SafeTensors::deserialize(bytes).map_err(|e| e.to_string())?;
    let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(|e| e.to_string())?;
    let note = metadata.metadata().as_ref().and_then(|notes| notes.get(NOTE).cloned());
    let mut tensors = Tensors::new();
    for (name, view) in file.tensors() {
        if view.dtype() != Dtype::F32 {
            return Err(format!("tensor `{name}` is of type {:?}, not F32", view.dtype()));
        }
        let (chunks, _) = view.data().as_chunks::<4>();
        let values = chunks.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        tensors.insert(name, Stored { shape: view.shape().to_vec(), values });
    }
    Ok((tensors, note))
}

/// Writes a file beside its place and moves it there, so that nobody sees half of it.
pub(in crate::model) fn write_whole(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = DraftFile::create_in(files::folder_of(path))?;
    file.write_all(bytes)?;
    file.replace(path)
}
