//! Last words: when a kernel touches a guard page or writes to an argument that it may only read, the worker
//! dies of a segmentation fault. Before it does, it says which buffer that was.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A watched mapping. `start` of 0 marks a free slot.
struct Slot {
    start: AtomicUsize,
    bytes: AtomicUsize,
    /// The first 16 characters of the buffer's name.
    name: [AtomicU64; 2],
}

const SLOTS: usize = 512;

static WATCHED: [Slot; SLOTS] =
    [const { Slot { start: AtomicUsize::new(0), bytes: AtomicUsize::new(0), name: [const { AtomicU64::new(0) }; 2] } };
        SLOTS];

/// Remembers a mapping, or gives one that is known another name. Does nothing when all slots are taken: then
/// a fault is reported without a name.
pub(super) fn watch(start: usize, bytes: usize, name: &str) {
    let known = WATCHED.iter().find(|slot| slot.start.load(Ordering::Relaxed) == start);
    let take = |slot: &&Slot| slot.start.compare_exchange(0, start, Ordering::Relaxed, Ordering::Relaxed).is_ok();
    let Some(slot) = known.or_else(|| WATCHED.iter().find(take)) else { return };
    let mut text = [0; 16];
    let length = name.len().min(16);
    text[..length].copy_from_slice(&name.as_bytes()[..length]);
    for (half, part) in slot.name.iter().zip(text.as_chunks::<8>().0) {
        half.store(u64::from_ne_bytes(*part), Ordering::Relaxed);
    }
    slot.bytes.store(bytes, Ordering::Relaxed);
}

pub(super) fn forget(start: usize) {
    if let Some(slot) = WATCHED.iter().find(|slot| slot.start.load(Ordering::Relaxed) == start) {
        slot.start.store(0, Ordering::Relaxed);
    }
}

/// From now on, a fault at a watched mapping leaves a line on the standard error.
pub(super) fn report_faults() {
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: the handler only reads atomics and calls `write`; reset before it runs, so that the fault
        // that follows its return kills the process as it would have.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_fault as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESETHAND;
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        }
    }
}

extern "C" fn on_fault(_signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the system passes a valid record.
    let address = unsafe { (*info).si_addr() } as usize;
    for slot in &WATCHED {
        let start = slot.start.load(Ordering::Relaxed);
        if start != 0 && (start..start + slot.bytes.load(Ordering::Relaxed)).contains(&address) {
            let mut text = [0; 16];
            for (part, half) in text.as_chunks_mut::<8>().0.iter_mut().zip(&slot.name) {
                *part = half.load(Ordering::Relaxed).to_ne_bytes();
            }
            let length = text.iter().position(|b| *b == 0).unwrap_or(text.len());
            say(b"fault at the guard page of, or a forbidden write to, ");
            say(&text[..length]);
            say(b"\n");
            return;
        }
    }
}

/// Writes without allocating or locking.
fn say(text: &[u8]) {
    // SAFETY: the bytes are valid for the call.
    unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
}
