//! The weights of an artifact: a safetensors file, written as a stream, one tensor at a time.
//!
//! Beyond what the format asks for, every tensor starts at a multiple of 64 bytes, so that a kernel reads it
//! where the file is mapped (bytes named `pad.N` fill the gaps), and the metadata opens with an `id`: the
//! SHA-256 of all bytes behind the header, which the shared object compares with its own.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use sha2::{Digest, Sha256};
use tilescribe_runtime::manifest::hex;

use super::error::ArtifactError;
use super::memory::ALIGNMENT;
use crate::workload::DType;

/// What the header starts with; the id follows.
const ID_PREFIX: &str = "{\"__metadata__\":{\"id\":\"";

/// A tensor that will be written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    pub name: String,
    pub dtype: DType,
    pub shape: Vec<i64>,
}

impl Entry {
    pub fn bytes(&self) -> u64 {
        self.shape.iter().product::<i64>() as u64 * self.dtype.bytes() as u64
    }
}

/// Where the tensors of a weights file are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout {
    /// In bytes from the start of the file, by entry.
    pub offsets: Vec<u64>,
    pub file_bytes: u64,
    header: String,
}

impl Layout {
    /// Places the entries, in order.
    pub fn new(entries: &[Entry]) -> Layout {
        let mut relative = Vec::with_capacity(entries.len());
        let mut fields = String::new();
        let mut end = 0;
        for (number, entry) in entries.iter().enumerate() {
            let next = end + entry.bytes();
            let field = field(&entry.name, entry.dtype.safetensors(), &entry.shape, end, next);
            fields.push_str(&field);
            relative.push(end);
            end = next.next_multiple_of(ALIGNMENT);
            if end > next {
                let padding = (end - next) as i64;
                fields.push_str(&self::field(&format!("pad.{number}"), "U8", &[padding], next, end));
            }
        }
        let mut header = format!("{ID_PREFIX}{}\"}}{fields}}}", "0".repeat(64));
        let padded = (8 + header.len() as u64).next_multiple_of(ALIGNMENT) - 8;
        header.push_str(&" ".repeat(padded as usize - header.len()));
        let start = 8 + padded;
        Layout { offsets: relative.iter().map(|at| start + at).collect(), file_bytes: start + end, header }
    }
}

fn field(name: &str, dtype: &str, shape: &[i64], start: u64, end: u64) -> String {
    let name = serde_json::Value::from(name);
    format!(",{name}:{{\"dtype\":\"{dtype}\",\"shape\":{shape:?},\"data_offsets\":[{start},{end}]}}")
}

/// Bytes that are written at once.
const BLOCK_BYTES: usize = 1 << 20;
/// Blocks that may wait to be hashed.
const BLOCKS_WAITING: usize = 4;

/// Writes a weights file. A thread of its own hashes what is written, which takes about as long as packing.
pub struct Writer<'a> {
    file: File,
    path: PathBuf,
    layout: &'a Layout,
    written: u64,
    /// What is not in the file yet.
    block: Vec<u8>,
    hasher: JoinHandle<String>,
    blocks: SyncSender<Arc<Vec<u8>>>,
}

impl<'a> Writer<'a> {
    /// # Errors
    /// [`ArtifactError::Write`] where the file cannot be written.
    pub fn create(path: &Path, layout: &'a Layout) -> Result<Writer<'a>, ArtifactError> {
        let write = || -> std::io::Result<File> {
            let mut file = File::create_new(path)?;
            file.write_all(&(layout.header.len() as u64).to_le_bytes())?;
            file.write_all(layout.header.as_bytes())?;
            Ok(file)
        };
        let file = write().map_err(|source| ArtifactError::write(path, source))?;
        let (blocks, waiting) = sync_channel::<Arc<Vec<u8>>>(BLOCKS_WAITING);
        let hash_all = move || {
            let mut hash = Sha256::new();
            waiting.iter().for_each(|block| hash.update(&*block));
            hex(&hash.finalize())
        };
        let hasher = thread::Builder::new().spawn(hash_all).map_err(|source| ArtifactError::write(path, source))?;
        let written = 8 + layout.header.len() as u64;
        let block = Vec::with_capacity(BLOCK_BYTES);
        Ok(Writer { file, path: path.to_path_buf(), layout, written, block, hasher, blocks })
    }

    /// Writes the tensor of entry `number`; entries come in order.
    ///
    /// # Errors
    /// [`ArtifactError::Write`] where the file cannot be written.
    pub fn write(&mut self, number: usize, bytes: &[u8]) -> Result<(), ArtifactError> {
        assert_eq!(self.written, self.layout.offsets[number], "entries are written in order, with the size announced");
        self.append(bytes)?;
        let padding = self.written.next_multiple_of(ALIGNMENT) - self.written;
        self.append(&[0; ALIGNMENT as usize][..padding as usize])
    }

    /// Completes the file and returns its id.
    ///
    /// # Errors
    /// [`ArtifactError::Write`] where the file cannot be written.
    pub fn finish(mut self) -> Result<String, ArtifactError> {
        assert_eq!(self.written, self.layout.file_bytes, "every entry is written");
        self.write_block()?;
        let Writer { mut file, path, hasher, blocks, .. } = self;
        drop(blocks);
        let id = hasher.join().map_err(|_| ArtifactError::Internal("the thread that hashes weights failed".into()))?;
        let mut complete = || -> std::io::Result<()> {
            file.seek(SeekFrom::Start(8 + ID_PREFIX.len() as u64))?;
            file.write_all(id.as_bytes())
        };
        complete().map_err(|source| ArtifactError::write(&path, source))?;
        Ok(id)
    }

    fn append(&mut self, mut bytes: &[u8]) -> Result<(), ArtifactError> {
        self.written += bytes.len() as u64;
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(BLOCK_BYTES - self.block.len()));
            self.block.extend_from_slice(now);
            bytes = later;
            if self.block.len() == BLOCK_BYTES {
                self.write_block()?;
            }
        }
        Ok(())
    }

    /// Writes what waits, and has it hashed.
    fn write_block(&mut self) -> Result<(), ArtifactError> {
        let block = Arc::new(std::mem::replace(&mut self.block, Vec::with_capacity(BLOCK_BYTES)));
        self.blocks
            .send(Arc::clone(&block))
            .map_err(|_| ArtifactError::Internal("the thread that hashes weights ended early".into()))?;
        self.file.write_all(&block).map_err(|source| ArtifactError::write(&self.path, source))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::SafeTensors;

    #[test]
    fn blocks_are_hashed_as_they_are_written() {
        let sizes = [BLOCK_BYTES + 64, 3 * BLOCK_BYTES, BLOCK_BYTES - 64];
        let entry = |bytes: &usize| Entry { name: bytes.to_string(), dtype: DType::U8, shape: vec![*bytes as i64] };
        let layout = Layout::new(&sizes.iter().map(entry).collect::<Vec<_>>());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights.safetensors");
        let mut writer = Writer::create(&path, &layout).unwrap();
        for (number, bytes) in sizes.into_iter().enumerate() {
            let data: Vec<u8> = (0..bytes).map(|at| (at / 4093 + at + number) as u8).collect();
            writer.write(number, &data).unwrap();
        }
        let id = writer.finish().unwrap();
        let payload = layout.offsets[0] as usize;
        assert_eq!(id, hex(&Sha256::digest(&std::fs::read(&path).unwrap()[payload..])));
    }

    #[test]
    fn a_written_file_is_safetensors_with_aligned_tensors() {
        let entries = [
            Entry { name: "a \"quoted\" name".into(), dtype: DType::F32, shape: vec![3, 5] },
            Entry { name: "empty".into(), dtype: DType::F32, shape: vec![0, 5] },
            Entry { name: "b".into(), dtype: DType::I64, shape: vec![16] },
            Entry { name: "scalar".into(), dtype: DType::Bool, shape: vec![] },
        ];
        let layout = Layout::new(&entries);
        let data: Vec<Vec<u8>> =
            entries.iter().enumerate().map(|(i, e)| vec![i as u8 + 1; e.bytes() as usize]).collect();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights.safetensors");
        let mut writer = Writer::create(&path, &layout).unwrap();
        data.iter().enumerate().for_each(|(number, bytes)| writer.write(number, bytes).unwrap());
        let id = writer.finish().unwrap();

        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes.len() as u64, layout.file_bytes);
        let file = SafeTensors::deserialize(&bytes).unwrap();
        for (number, (entry, data)) in entries.iter().zip(&data).enumerate() {
            let tensor = file.tensor(&entry.name).unwrap();
            assert_eq!(tensor.data(), data.as_slice());
            assert_eq!(tensor.shape().to_vec(), entry.shape.iter().map(|e| *e as usize).collect::<Vec<_>>());
            let at = layout.offsets[number];
            assert_eq!(at % ALIGNMENT, 0);
            assert_eq!(&bytes[at as usize..][..data.len()], data.as_slice());
        }
        let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
        assert_eq!(metadata.metadata().as_ref().and_then(|m| m.get("id")), Some(&id));
        let payload = layout.offsets[0] as usize;
        assert_eq!(id, hex(&Sha256::digest(&bytes[payload..])));
    }
}
