//! Where scratch buffers lie in the workspace: first the shared ones, then a copy of the private ones for
//! each thread.

use std::ops::Range;

use crate::codegen::abi::WORKSPACE_ALIGNMENT;
use crate::codegen::error::CodegenError;
use crate::nest::{Nest, Scope};
use crate::workload::TensorId;

/// The largest buffer and workspace that we address, in bytes.
const MAX_BYTES: usize = 1 << 40;

pub struct Layout {
    /// By buffer: bytes from the start of the shared part, or of a thread's private part.
    offsets: Vec<usize>,
    pub shared_bytes: usize,
    /// Of one thread.
    pub private_bytes: usize,
}

impl Layout {
    /// # Errors
    /// [`CodegenError::Malformed`] for a negative extent, [`CodegenError::Limit`] for a size beyond 2⁴⁰
    /// bytes.
    pub fn new(nest: &Nest) -> Result<Layout, CodegenError> {
        let mut layout = Layout { offsets: vec![0; nest.buffers.len()], shared_bytes: 0, private_bytes: 0 };
        for (number, buffer) in nest.buffers.iter().enumerate() {
            let mut bytes = buffer.dtype.bytes();
            for extent in &buffer.shape {
                let extent = usize::try_from(*extent)
                    .map_err(|_| CodegenError::Malformed(format!("{} has a negative extent", buffer.name)))?;
                bytes = bytes.checked_mul(extent).filter(|b| *b <= MAX_BYTES).ok_or_else(|| too_large(&buffer.name))?;
            }
            let part = match buffer.scope {
                Scope::Argument(_) | Scope::Packed => continue,
                Scope::Workspace => &mut layout.shared_bytes,
                // registers too: those that are not accessed like registers live here
                Scope::BlockShared | Scope::Register => &mut layout.private_bytes,
            };
            layout.offsets[number] = *part;
            *part += bytes.next_multiple_of(WORKSPACE_ALIGNMENT);
            if *part > MAX_BYTES {
                return Err(too_large("the workspace"));
            }
        }
        Ok(layout)
    }

    /// Bytes from the start of the part that the buffer's scope names.
    pub fn offset(&self, buffer: TensorId) -> usize {
        self.offsets[buffer.0 as usize]
    }

    /// What a run with these values of the nest's parameters can reach of the workspace: of every buffer as
    /// much as has elements then.
    pub fn reached(&self, nest: &Nest, values: &[i64], threads: usize) -> Vec<Range<usize>> {
        let at = nest.at(values);
        let mut reached = Vec::new();
        for (buffer, offset) in at.buffers.iter().zip(&self.offsets) {
            let starts = match buffer.scope {
                Scope::Argument(_) | Scope::Packed => continue,
                Scope::Workspace => vec![*offset],
                Scope::BlockShared | Scope::Register => {
                    (0..threads).map(|thread| self.shared_bytes + thread * self.private_bytes + offset).collect()
                }
            };
            reached.extend(starts.into_iter().map(|start| start..start + buffer.bytes()));
        }
        reached
    }

    pub fn workspace_bytes(&self, threads: u32) -> Result<usize, CodegenError> {
        let scratch = Scratch { shared_bytes: self.shared_bytes, thread_bytes: self.private_bytes };
        scratch.bytes(threads).filter(|bytes| *bytes <= MAX_BYTES).ok_or_else(|| too_large("the workspace"))
    }
}

/// What a kernel wants as workspace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scratch {
    /// Once, whatever the number of threads.
    pub shared_bytes: usize,
    /// For each thread.
    pub thread_bytes: usize,
}

impl Scratch {
    /// For so many threads; `None`: more than can be addressed.
    pub fn bytes(&self, threads: u32) -> Option<usize> {
        self.thread_bytes.checked_mul(threads as usize)?.checked_add(self.shared_bytes)
    }
}

fn too_large(what: &str) -> CodegenError {
    CodegenError::Limit(format!("{what} has more than 2^40 bytes"))
}
