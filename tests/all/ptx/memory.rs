//! Memory of the device: what may be accessed, how it has to be aligned, and who accessed it without having
//! waited for the other.

use std::collections::HashMap;
use std::ops::Range;

use super::parse::{LOCAL, SHARED};

/// Each argument has as much room for its addresses.
const ARGUMENT: u64 = 1 << 40;

/// Where an argument starts; so far apart that no address of one is near to another.
pub fn argument(number: usize) -> u64 {
    (number as u64 + 1) * ARGUMENT
}

/// Who accessed a byte, in which of the times between two barriers of its block.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Access {
    block: u32,
    thread: u32,
    epoch: u32,
}

/// What is known of a byte.
#[derive(Clone, Copy, Default)]
struct Byte {
    written: Option<Access>,
    /// The last, and whether there were others in its epoch.
    read: Option<Access>,
    read_by_several: bool,
    /// The thread that copies something here, and has not waited for it yet.
    copied_by: Option<u32>,
    /// Written by a thread that has executed no fence since, without which nobody sees it who reads by
    /// another way than threads do.
    is_unfenced: bool,
}

/// A range of bytes, and their past.
struct Region {
    bytes: Vec<u8>,
    past: Vec<Byte>,
}

impl Region {
    fn new(bytes: Vec<u8>) -> Region {
        Region { past: vec![Byte::default(); bytes.len()], bytes }
    }
}

/// All memory, as one block sees it.
pub struct Memory {
    arguments: Vec<Region>,
    shared: Region,
    /// By thread: what it wrote of it since its last fence.
    unfenced: HashMap<u32, Vec<Range<usize>>>,
    /// Of each thread.
    local: HashMap<u32, Vec<u8>>,
    local_bytes: usize,
}

/// Who accesses memory.
#[derive(Clone, Copy)]
pub struct Who {
    pub block: u32,
    pub thread: u32,
    pub epoch: u32,
}

impl Who {
    fn access(self) -> Access {
        Access { block: self.block, thread: self.thread, epoch: self.epoch }
    }

    /// Whether nothing orders an earlier access before those of this thread.
    fn races(self, other: Access) -> bool {
        other.block != self.block || (other.thread != self.thread && other.epoch == self.epoch)
    }
}

fn nothing(address: u64) -> String {
    format!("nothing is at {address:#x}")
}

/// Bytes of nothing in particular: no number that a kernel should compute with.
const POISON: u8 = 0xff;

impl Memory {
    pub fn new(arguments: Vec<Vec<u8>>) -> Memory {
        let arguments = arguments.into_iter().map(Region::new).collect();
        Memory {
            arguments,
            shared: Region::new(Vec::new()),
            unfenced: HashMap::new(),
            local: HashMap::new(),
            local_bytes: 0,
        }
    }

    /// A block starts: nobody knows what is in its shared memory, or in its threads' own.
    pub fn enter_block(&mut self, shared_bytes: usize, local_bytes: usize) {
        self.shared = Region::new(vec![POISON; shared_bytes]);
        self.unfenced.clear();
        self.local.clear();
        self.local_bytes = local_bytes;
    }

    /// A kernel has ended: the next one waits for it.
    pub fn end_kernel(&mut self) {
        self.arguments.iter_mut().for_each(|region| region.past.fill(Byte::default()));
    }

    pub fn into_arguments(self) -> Vec<Vec<u8>> {
        self.arguments.into_iter().map(|region| region.bytes).collect()
    }

    fn region(&mut self, address: u64, bytes: usize, reads: bool) -> Result<(&mut Region, Range<usize>), String> {
        let (region, start) = match address {
            ARGUMENT.. => {
                let number = (address / ARGUMENT - 1) as usize;
                let region = self.arguments.get_mut(number).ok_or_else(|| format!("no argument at {address:#x}"))?;
                (region, address % ARGUMENT)
            }
            SHARED.. if address < LOCAL => (&mut self.shared, address - SHARED),
            _ => return Err(nothing(address)),
        };
        let (start, end) = (start as usize, start as usize + bytes);
        // aligned loads are widened by LLVM up to 16 bytes, and memory comes in larger pieces than that
        if start >= region.bytes.len() || end > region.bytes.len().next_multiple_of(if reads { 16 } else { 1 }) {
            return Err(format!("{bytes} bytes at {address:#x}, of {} from its start", region.bytes.len()));
        }
        if !start.is_multiple_of(bytes) {
            return Err(format!("{bytes} bytes at {address:#x}, which is no multiple"));
        }
        Ok((region, start..end))
    }

    fn own(&mut self, address: u64, bytes: usize, who: Who) -> Option<&mut [u8]> {
        let start = address.checked_sub(LOCAL).filter(|_| address < ARGUMENT)? as usize;
        let size = self.local_bytes;
        let own = self.local.entry(who.thread).or_insert_with(|| vec![POISON; size]);
        own.get_mut(start..start + bytes).filter(|_| start.is_multiple_of(bytes))
    }

    /// So many bytes, a power of two, at an address that is a multiple of it.
    pub fn read(&mut self, address: u64, bytes: usize, who: Who) -> Result<Vec<u8>, String> {
        if (LOCAL..ARGUMENT).contains(&address) {
            return self.own(address, bytes, who).map(|own| own.to_vec()).ok_or_else(|| nothing(address));
        }
        let (region, mut range) = self.region(address, bytes, true)?;
        range.end = range.end.min(region.bytes.len());
        for byte in &mut region.past[range.clone()] {
            if let Some(thread) = byte.copied_by {
                return Err(format!("reads at {address:#x} what thread {thread} still copies"));
            }
            if let Some(other) = byte.written.filter(|other| who.races(*other)) {
                return Err(format!(
                    "reads at {address:#x} what thread {} of block {} writes",
                    other.thread, other.block
                ));
            }
            let own = who.access();
            byte.read_by_several = match byte.read {
                Some(other) if other.epoch == own.epoch && other.block == own.block => {
                    byte.read_by_several || other.thread != own.thread
                }
                _ => false,
            };
            byte.read = Some(own);
        }
        let mut found = region.bytes[range].to_vec();
        found.resize(bytes, POISON);
        Ok(found)
    }

    /// As [`Memory::read`], by a product of a group of warps.
    pub fn read_by_proxy(&mut self, address: u64, bytes: usize, who: Who) -> Result<Vec<u8>, String> {
        let (region, range) = self.region(address, bytes, false)?;
        if region.past[range].iter().any(|byte| byte.is_unfenced) {
            return Err(format!("reads at {address:#x} what was written without a fence"));
        }
        self.read(address, bytes, who)
    }

    /// What the thread has written to shared memory can be read by any way from now on.
    pub fn fence_proxy(&mut self, thread: u32) {
        for range in self.unfenced.remove(&thread).into_iter().flatten() {
            self.shared.past[range].iter_mut().for_each(|byte| byte.is_unfenced = false);
        }
    }

    fn note_unfenced(&mut self, address: u64, range: &Range<usize>, thread: u32) {
        if (SHARED..LOCAL).contains(&address) {
            self.shared.past[range.clone()].iter_mut().for_each(|byte| byte.is_unfenced = true);
            self.unfenced.entry(thread).or_default().push(range.clone());
        }
    }

    pub fn write(&mut self, address: u64, bytes: &[u8], who: Who) -> Result<(), String> {
        if (LOCAL..ARGUMENT).contains(&address) {
            let own = self.own(address, bytes.len(), who).ok_or_else(|| nothing(address))?;
            own.copy_from_slice(bytes);
            return Ok(());
        }
        self.take(address, bytes.len(), who, None)?;
        let (region, range) = self.region(address, bytes.len(), false)?;
        region.bytes[range.clone()].copy_from_slice(bytes);
        self.note_unfenced(address, &range, who.thread);
        Ok(())
    }

    /// A thread starts to copy something here.
    pub fn start_copy(&mut self, address: u64, bytes: usize, who: Who) -> Result<(), String> {
        self.take(address, bytes, who, Some(who.thread))
    }

    /// It has waited for that.
    pub fn end_copy(&mut self, address: u64, bytes: &[u8], who: Who) -> Result<(), String> {
        let (region, range) = self.region(address, bytes.len(), false)?;
        region.past[range.clone()].iter_mut().for_each(|byte| {
            byte.copied_by = None;
            byte.written = Some(who.access());
        });
        region.bytes[range.clone()].copy_from_slice(bytes);
        self.note_unfenced(address, &range, who.thread);
        Ok(())
    }

    /// Makes these bytes a thread's to write.
    fn take(&mut self, address: u64, bytes: usize, who: Who, copied_by: Option<u32>) -> Result<(), String> {
        let (region, range) = self.region(address, bytes, false)?;
        for byte in &mut region.past[range] {
            if let Some(thread) = byte.copied_by {
                return Err(format!("writes at {address:#x} where thread {thread} still copies"));
            }
            if let Some(other) = byte.written.filter(|other| who.races(*other)) {
                return Err(format!(
                    "writes at {address:#x}, as does thread {} of block {}",
                    other.thread, other.block
                ));
            }
            let is_read = |other: &Access| {
                who.races(*other) || (byte.read_by_several && other.epoch == who.epoch && other.block == who.block)
            };
            if let Some(other) = byte.read.filter(is_read) {
                return Err(format!(
                    "writes at {address:#x} what thread {} of block {} reads",
                    other.thread, other.block
                ));
            }
            byte.written = Some(who.access());
            byte.copied_by = copied_by;
        }
        Ok(())
    }
}
