//! The C runtime that is linked into this process.

use std::ffi::c_void;

/// The C runtime as a relocatable object for the architecture that Tilescribe was built for, so that
/// `compile` can link artifacts without a C compiler. It needs the C library's threads.
pub const RUNTIME_OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/runtime.o"));

/// The most threads that share a loop, as in `runtime.c`.
pub const MAXIMAL_THREADS: u32 = 256;

/// A part of a parallel loop: context, begin, end, number of the thread.
pub type Body = unsafe extern "C" fn(*mut c_void, i64, i64, i64);

/// A strand: context, number.
type Strand = unsafe extern "C" fn(*mut c_void, i64);

unsafe extern "C" {
    fn tilescribe_parallel_for(body: Body, context: *mut c_void, count: i64, threads: i64);
    fn tilescribe_side_by_side(run: Strand, context: *mut c_void, strands: i64);
    fn tilescribe_set_threads(threads: i64);
    fn tilescribe_threads() -> i64;
    fn tilescribe_shutdown();
    fn tilescribe_use_tiles() -> i32;
}

/// The address that kernels in this process call.
pub(crate) fn parallel_for_address() -> *const u8 {
    let function: unsafe extern "C" fn(Body, *mut c_void, i64, i64) = tilescribe_parallel_for;
    function as *const u8
}

/// Sets the number of threads that kernels in this process use, the calling thread included; 0 stands for the
/// processors that it may run on, and more than 256 for 256. A kernel never uses more than its target has
/// cores.
pub fn set_threads(threads: usize) {
    // SAFETY: takes any number
    unsafe { tilescribe_set_threads(i64::try_from(threads).unwrap_or(i64::MAX)) }
}

/// The number of threads that kernels in this process use.
pub fn threads() -> usize {
    // SAFETY: reads a number
    usize::try_from(unsafe { tilescribe_threads() }).unwrap_or(1)
}

/// Asks the system to let this process use the processor's tile registers: it does not always, and never
/// unasked.
pub(crate) fn use_tiles() -> bool {
    // SAFETY: a question to the system
    unsafe { tilescribe_use_tiles() != 0 }
}

/// Ends the threads of the pool, as before a fork; the next parallel loop starts them again.
pub fn shutdown_threads() {
    // SAFETY: waits for a running loop first
    unsafe { tilescribe_shutdown() }
}

/// Runs `body(begin, end, thread)` over parts of `0..count` on at most `threads` threads of the pool.
pub fn parallel_for<F: Fn(i64, i64, i64) + Sync>(count: i64, threads: i64, body: F) {
    unsafe extern "C" fn call<F: Fn(i64, i64, i64) + Sync>(context: *mut c_void, begin: i64, end: i64, thread: i64) {
        // SAFETY: the context is the closure, which outlives the loop and may be shared
        let body = unsafe { &*context.cast_const().cast::<F>() };
        body(begin, end, thread);
    }
    // SAFETY: the call returns only when no thread uses the context any more; a panic in `body` aborts at the
    // C boundary
    unsafe { tilescribe_parallel_for(call::<F>, (&raw const body).cast_mut().cast(), count, threads) }
}

/// Runs `strand(number)` for `0..strands`, each on one thread at a time, at the same time where the pool is
/// free: in the loops that they start, threads take part that have nothing else to do.
pub fn side_by_side<F: Fn(i64) + Sync>(strands: i64, strand: F) {
    unsafe extern "C" fn call<F: Fn(i64) + Sync>(context: *mut c_void, number: i64) {
        // SAFETY: the context is the closure, which outlives the strands and may be shared
        let strand = unsafe { &*context.cast_const().cast::<F>() };
        strand(number);
    }
    // SAFETY: the call returns only when no thread uses the context any more; a panic in `strand` aborts at
    // the C boundary
    unsafe { tilescribe_side_by_side(call::<F>, (&raw const strand).cast_mut().cast(), strands) }
}
