//! Constants as a network finds them: as far away as all that ran since the last run has moved them.
//!
//! Constants are copied so often that the copies together are as large as what the network reads from one run
//! of a task to the next, and every run takes the next copy: where that is beyond the caches of a core, they
//! come from the last one; where it is beyond that one, too, from memory.

use rayon::iter::ParallelIterator;
use rayon::slice::ParallelSliceMut;

use super::memory::Region;
use crate::target::Cpu;

/// Constants of fewer bytes are there before they are missed.
const LEAST_BYTES: usize = 1 << 16;
/// What is so many times the last cache is beyond it.
const BEYOND_LAST: u64 = 2;
/// The same of the cores' own caches. More, since the last one is not theirs alone: what lies in it is as far
/// away as others let it be.
const BEYOND_OWN: u64 = 8;
/// The memory of copies grows by this part of what is to be read in between.
const SIZES: usize = 8;
/// Where a copy of a constant begins: at a page.
const ALIGNMENT: usize = 4096;

/// How many bytes have to be read from one run to the next, at most, for constants to be as far away as they
/// are where a network reads `read_between`: what is beyond a cache does not have to be further.
///
/// Kernels that run in turn move one another's constants: of two or more, each is moved by its own copies
/// half of the way.
pub(super) fn bytes_between(read_between: u64, cpu: &Cpu, kernels: usize) -> u64 {
    let own = cpu.l2_bytes.saturating_mul(cpu.cores.into());
    let last = cpu.l3_bytes.max(own);
    let (cache, beyond) = if read_between > last { (last, BEYOND_LAST) } else { (own, BEYOND_OWN) };
    read_between.min(cache.saturating_mul(beyond)).div_ceil(if kernels > 1 { 2 } else { 1 })
}

/// Copies of a kernel's constants.
pub(super) struct Copies {
    region: Region,
    /// Of a constant: which argument it is, and where it lies in a copy.
    places: Vec<(usize, usize)>,
    copy_bytes: usize,
    count: usize,
    next: usize,
}

impl Copies {
    /// Of constants, each with the number of its argument, where so many bytes of constants are read from one
    /// run to the next; `None` where they are few.
    ///
    /// # Errors
    /// Those of `memory`, which gives memory for the copies.
    pub(super) fn new<E>(
        constants: &[(usize, &[u8])],
        between: usize,
        memory: impl FnOnce(usize) -> Result<Region, E>,
    ) -> Result<Option<Copies>, E> {
        let bytes: usize = constants.iter().map(|(_, bytes)| bytes.len()).sum();
        if bytes < LEAST_BYTES {
            return Ok(None);
        }
        let mut copy_bytes = 0;
        let mut places = Vec::with_capacity(constants.len());
        for (argument, bytes) in constants {
            places.push((*argument, copy_bytes));
            copy_bytes += bytes.len().next_multiple_of(ALIGNMENT);
        }
        // of about the same size for all kernels of a network, so that the memory is used again
        let step = between.div_ceil(SIZES).max(1);
        let room = (between.div_ceil(bytes) + 1).saturating_mul(copy_bytes).next_multiple_of(step);
        let count = room / copy_bytes;
        let mut region = memory(room)?;
        region.bytes_mut().par_chunks_exact_mut(copy_bytes).for_each(|copy| {
            for ((_, bytes), (_, at)) in constants.iter().zip(&places) {
                copy[*at..at + bytes.len()].copy_from_slice(bytes);
            }
        });
        Ok(Some(Copies { region, places, copy_bytes, count, next: 0 }))
    }

    /// Its memory, for others.
    pub(super) fn into_region(self) -> Region {
        self.region
    }

    /// Puts the next copy among the arguments of a kernel.
    pub(super) fn turn(&mut self, addresses: &mut [*mut u8]) {
        let first = self.next * self.copy_bytes;
        self.next = (self.next + 1) % self.count;
        for (argument, at) in &self.places {
            if let Some(address) = addresses.get_mut(*argument) {
                *address = self.region.address().wrapping_add(first + at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::{Target, avx512};

    #[test]
    fn constants_are_moved_beyond_the_cache_that_they_leave_and_no_further() {
        let Target::Cpu(cpu) = avx512() else { panic!("a CPU") };
        let own = cpu.l2_bytes * u64::from(cpu.cores);
        let few = own + 1;
        assert_eq!(bytes_between(few, &cpu, 1), few);
        assert_eq!(bytes_between(cpu.l3_bytes, &cpu, 1), cpu.l3_bytes.min(BEYOND_OWN * own));
        assert_eq!(bytes_between(cpu.l3_bytes + 1, &cpu, 1), cpu.l3_bytes + 1);
        assert_eq!(bytes_between(u64::MAX, &cpu, 1), BEYOND_LAST * cpu.l3_bytes);
        assert_eq!(bytes_between(u64::MAX, &cpu, 5), cpu.l3_bytes);
    }

    #[test]
    fn every_turn_brings_the_same_constants_from_another_place() {
        let (first, second) = (vec![1; LEAST_BYTES], vec![2; 100]);
        let memory = |bytes| Region::new(bytes, "constants");
        let mut copies = Copies::new(&[(2, &first), (0, &second)], 1 << 19, memory).unwrap().expect("enough of them");
        let mut seen = Vec::new();
        for _ in 0..copies.count {
            let mut addresses = [std::ptr::null_mut(); 3];
            copies.turn(&mut addresses);
            // SAFETY: both lie in the region that `copies` holds.
            let [a, b] = unsafe {
                [(addresses[2], first.len()), (addresses[0], second.len())]
                    .map(|(at, length)| std::slice::from_raw_parts(at.cast_const(), length))
            };
            assert!(a == first && b == second && addresses[1].is_null());
            assert!(!seen.contains(&addresses[2]));
            seen.push(addresses[2]);
        }
        assert!(seen.len() * (first.len() + second.len()) >= 1 << 19);
        let mut addresses = [std::ptr::null_mut(); 3];
        copies.turn(&mut addresses);
        assert_eq!(addresses[2], seen[0]);
        assert!(Copies::new(&[(0, &second)], 1 << 19, memory).unwrap().is_none());
    }
}
