//! Buffers that notice writes before their start and behind their end.
//!
//! ```text
//! | guard page | guard bytes ............ | data | guard bytes | guard page |
//!              ^ page                     ^ 64 bytes aligned     ^ page
//! ```
//!
//! The data lies as far behind as its alignment allows: at most 63 guard bytes stand between it and the guard
//! page. A touched guard page kills the process, changed guard bytes are found afterwards.
//!
//! What is not small lies in large pages, as the tensors of a compiled network do. Which sets of a cache a
//! small page falls into is chance: half a megabyte of them in a cache of one puts out some of itself, in one
//! process by a third of the time of a kernel, in the next one not at all.

use std::io;
use std::ops::Range;
use std::ptr::NonNull;

use super::faults;

/// Alignment of the data in bytes: a cache line, and the widest vector register.
pub const ALIGNMENT: usize = 64;

/// Bytes of a large page.
const LARGE_PAGE: usize = 2 << 20;

/// Data of so many bytes lies in large pages.
const LARGE: usize = 128 << 10;

/// Value of guard bytes: an odd pattern that no kernel writes by chance.
const GUARD_BYTE: u8 = 0xa5;

/// Maximum number of guard bytes before the data.
const FRONT_BYTES: usize = 1024;

/// Value of bytes that were not written yet: a NaN in every float type, an implausible number in the others.
pub(in crate::measure) const POISON: u8 = 0xff;

/// A guarded buffer.
pub struct Region {
    /// First byte of the mapping, which starts with a guard page.
    base: NonNull<u8>,
    /// Bytes of the mapping, guard pages included.
    mapped: usize,
    /// Bytes of data.
    length: usize,
    read_only: bool,
}

// SAFETY: a region owns its mapping; nothing in it belongs to a thread.
unsafe impl Send for Region {}

/// A write to guard bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Breach {
    /// Distance in bytes from the first byte of the data.
    Before(usize),
    /// Distance in bytes from the byte behind the last one of the data.
    Behind(usize),
}

impl Region {
    /// Maps memory for `length` bytes. `name` is what a fault at its guard pages is reported by.
    ///
    /// # Errors
    /// What the system says, out of memory above all.
    pub fn new(length: usize, name: &str) -> io::Result<Region> {
        let mut region = Region::closed(length, name)?;
        region.open(page_bytes()..region.mapped - page_bytes())?;
        region.arm();
        Ok(region)
    }

    /// Of the data only these parts can be touched, and take up memory; all else is guard pages, but for what
    /// stands in the same pages.
    ///
    /// # Errors
    /// As [`Region::new`].
    pub fn sparse(length: usize, parts: &[Range<usize>], name: &str) -> io::Result<Region> {
        let mut region = Region::closed(length, name)?;
        let (start, end) = (region.start(), region.mapped - page_bytes());
        region.open(region.front_start()..start)?;
        region.open(start + length..end)?;
        for part in parts.iter().filter(|part| !part.is_empty()) {
            region.open(start + part.start..start + part.end.min(length))?;
        }
        region.arm();
        Ok(region)
    }

    /// Nothing but guard pages.
    fn closed(length: usize, name: &str) -> io::Result<Region> {
        let page = page_bytes();
        let unit = if length < LARGE { page } else { LARGE_PAGE.max(page) };
        let body = length.checked_add(2 * ALIGNMENT).and_then(|b| b.checked_next_multiple_of(unit));
        let mapped = body.and_then(|b| b.checked_add(2 * page)).ok_or(io::ErrorKind::OutOfMemory)?;
        let base = map_aligned(mapped, unit)?;
        faults::watch(base.as_ptr() as usize, mapped, name);
        Ok(Region { base, mapped, length, read_only: false })
    }

    /// Makes the pages of a part of the mapping accessible.
    fn open(&mut self, part: Range<usize>) -> io::Result<()> {
        let page = page_bytes();
        let (first, end) = (part.start / page * page, part.end.next_multiple_of(page));
        // SAFETY: pages of our own mapping. Weights of several megabytes miss the second-level TLB on small
        // ones.
        unsafe {
            let inner = self.base.as_ptr().add(first);
            if libc::mprotect(inner.cast(), end - first, libc::PROT_READ | libc::PROT_WRITE) != 0 {
                return Err(io::Error::last_os_error());
            }
            libc::madvise(inner.cast(), end - first, libc::MADV_HUGEPAGE);
        }
        Ok(())
    }

    /// Bytes that fit into the mapping.
    pub fn capacity(&self) -> usize {
        self.mapped - 2 * page_bytes() - 2 * ALIGNMENT
    }

    /// Takes the mapping for data of another length; the old contents are lost.
    ///
    /// Panics where it does not fit: ask [`Region::capacity`] first.
    pub fn reuse(&mut self, length: usize, name: &str) {
        assert!(length <= self.capacity(), "{length} bytes in a region for {}", self.capacity());
        self.length = length;
        faults::watch(self.base.as_ptr() as usize, self.mapped, name);
        self.arm();
    }

    /// The data's address, aligned to a cache line at least.
    pub fn address(&self) -> *mut u8 {
        // SAFETY: inside of the mapping, since the body holds the length and twice the alignment.
        unsafe { self.base.as_ptr().add(self.start()) }
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: mapped, readable, and initialised by the system.
        unsafe { std::slice::from_raw_parts(self.address(), self.length) }
    }

    /// Panics where the region is read-only.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        assert!(!self.read_only, "a read-only region");
        // SAFETY: mapped, writable, and owned by us.
        unsafe { std::slice::from_raw_parts_mut(self.address(), self.length) }
    }

    /// Fills the data with values that no correct kernel reads or leaves.
    pub fn poison(&mut self) {
        self.bytes_mut().fill(POISON);
    }

    /// The same for a part of it, and for what stands behind it in its last page.
    pub fn poison_part(&mut self, part: Range<usize>) {
        let start = self.start();
        let end = (start + part.end).next_multiple_of(page_bytes()) - start;
        let end = if part.is_empty() { part.start } else { end.min(self.length) };
        assert!(part.start <= end && !self.read_only, "a part of a region that can be written");
        // SAFETY: open, writable, and ours.
        unsafe { self.address().add(part.start).write_bytes(POISON, end - part.start) };
    }

    /// Forbids or allows writing.
    ///
    /// # Errors
    /// What the system says.
    pub fn set_read_only(&mut self, read_only: bool) -> io::Result<()> {
        if read_only == self.read_only {
            return Ok(());
        }
        let page = page_bytes();
        let protection = if read_only { libc::PROT_READ } else { libc::PROT_READ | libc::PROT_WRITE };
        // SAFETY: the inner part of our own mapping.
        let result = unsafe { libc::mprotect(self.base.as_ptr().add(page).cast(), self.mapped - 2 * page, protection) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        self.read_only = read_only;
        Ok(())
    }

    /// Looks for writes to the guard bytes.
    pub fn breach(&self) -> Option<Breach> {
        let (front, behind) = self.guard_bytes();
        if let Some(at) = front.iter().rposition(|byte| *byte != GUARD_BYTE) {
            return Some(Breach::Before(front.len() - at));
        }
        behind.iter().position(|byte| *byte != GUARD_BYTE).map(Breach::Behind)
    }

    fn arm(&mut self) {
        let (front, end) = (self.front_start(), self.mapped - page_bytes());
        let (start, length) = (self.start(), self.length);
        // SAFETY: both ranges lie in the writable part of the mapping.
        unsafe {
            self.base.as_ptr().add(front).write_bytes(GUARD_BYTE, start - front);
            self.base.as_ptr().add(start + length).write_bytes(GUARD_BYTE, end - start - length);
        }
    }

    fn guard_bytes(&self) -> (&[u8], &[u8]) {
        let (front, end) = (self.front_start(), self.mapped - page_bytes());
        let (start, length) = (self.start(), self.length);
        // SAFETY: both ranges lie in the readable part of the mapping.
        unsafe {
            let base = self.base.as_ptr();
            (
                std::slice::from_raw_parts(base.add(front), start - front),
                std::slice::from_raw_parts(base.add(start + length), end - start - length),
            )
        }
    }

    /// Offset of the data in the mapping.
    fn start(&self) -> usize {
        let end = self.mapped - page_bytes();
        (end - self.length) / ALIGNMENT * ALIGNMENT
    }

    fn front_start(&self) -> usize {
        page_bytes().max(self.start().saturating_sub(FRONT_BYTES))
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        faults::forget(self.base.as_ptr() as usize);
        // SAFETY: our own mapping, which nobody uses any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.mapped) };
    }
}

/// A fresh mapping that nobody can touch yet. What follows its first page starts at a multiple of `unit`,
/// which is one of the page's.
fn map_aligned(bytes: usize, unit: usize) -> io::Result<NonNull<u8>> {
    let page = page_bytes();
    let more = unit - page;
    let all = bytes.checked_add(more).ok_or(io::ErrorKind::OutOfMemory)?;
    // SAFETY: a private mapping at an address of the system's choice, of which both ends are given back:
    // whole pages that nobody has used.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let start = libc::mmap(std::ptr::null_mut(), all, libc::PROT_NONE, flags, -1, 0);
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = start.cast::<u8>();
        let before = (start as usize + page).next_multiple_of(unit) - page - start as usize;
        for (at, length) in [(0, before), (before + bytes, more - before)] {
            if length > 0 {
                libc::munmap(start.add(at).cast(), length);
            }
        }
        NonNull::new(start.add(before)).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }
}

/// A size for people: `4.0 TiB`.
pub(super) fn readable(bytes: u64) -> String {
    let mut size = bytes as f64;
    let mut units = ["bytes", "KiB", "MiB", "GiB", "TiB"].into_iter();
    let mut unit = units.next().unwrap_or_default();
    for larger in units {
        if size < 1024.0 {
            break;
        }
        (size, unit) = (size / 1024.0, larger);
    }
    if unit == "bytes" { format!("{bytes} bytes") } else { format!("{size:.1} {unit}") }
}

/// Size of a page in bytes.
pub(super) fn page_bytes() -> usize {
    static PAGE: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    // SAFETY: asks for a number.
    *PAGE.get_or_init(|| usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096))
}

#[cfg(test)]
mod tests {
    use super::{ALIGNMENT, Breach, LARGE, LARGE_PAGE, Region, page_bytes, readable};

    #[test]
    fn data_is_aligned_and_ends_at_the_guard_page() {
        for length in [0, 1, 4, 63, 64, 4096, 4097, 100_000, 200_000, (2 << 20) - 3, 5_000_000] {
            let region = Region::new(length, "t").unwrap();
            let address = region.address() as usize;
            assert_eq!(address % ALIGNMENT, 0);
            let slack = (page_bytes() - (address + length) % page_bytes()) % page_bytes();
            assert!(slack < ALIGNMENT, "{length}: {slack} bytes before the guard page");
            assert_eq!(region.breach(), None);
            let behind = (address + length).next_multiple_of(page_bytes());
            assert!(length < LARGE || behind.is_multiple_of(LARGE_PAGE), "{length}: {behind:x}");
        }
    }

    #[test]
    fn writes_beside_the_data_are_found() {
        let mut region = Region::new(100, "t").unwrap();
        region.poison();
        assert_eq!(region.breach(), None);
        // SAFETY: the guard bytes belong to the mapping.
        unsafe { region.address().add(103).write(1) };
        assert_eq!(region.breach(), Some(Breach::Behind(3)));
        unsafe { region.address().sub(5).write(1) };
        assert_eq!(region.breach(), Some(Breach::Before(5)));
        region.reuse(64, "u");
        assert_eq!(region.breach(), None);
    }

    #[test]
    fn sizes_are_readable() {
        let texts = [0, 1023, 1024, 1536 << 20, 4 << 40, u64::MAX].map(readable);
        assert_eq!(texts, ["0 bytes", "1023 bytes", "1.0 KiB", "1.5 GiB", "4.0 TiB", "16777216.0 TiB"]);
    }

    #[test]
    fn sparse_memory_is_there_where_it_is_asked_for() {
        let length = (1 << 40) - 60;
        let mut region = Region::sparse(length, &[0..0, 10_000..20_000, length - 8..length], "t").unwrap();
        region.poison_part(10_000..20_000);
        region.poison_part(length - 8..length);
        // SAFETY: inside of the parts.
        let [first, last] = [10_000, length - 1].map(|at| unsafe { region.address().add(at).read() });
        assert_eq!((first, last, region.breach()), (0xff, 0xff, None));
        // SAFETY: the guard bytes belong to the mapping.
        unsafe { region.address().add(length).write(1) };
        assert_eq!(region.breach(), Some(Breach::Behind(0)));
    }

    #[test]
    fn too_much_memory_is_an_error() {
        assert!(Region::new(usize::MAX - 100, "t").is_err());
        assert!(Region::new(1 << 60, "t").is_err());
    }
}
