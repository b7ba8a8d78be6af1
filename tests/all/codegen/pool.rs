//! The thread pool of the C runtime.

use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;

use tilescribe::codegen::{RUNTIME_OBJECT, parallel_for, set_threads, shutdown_threads, threads};

/// Every iteration once, thread numbers in range.
fn covers(count: i64, limit: i64) {
    let hits: Vec<AtomicI64> = (0..count).map(|_| AtomicI64::new(0)).collect();
    parallel_for(count, limit, |begin, end, thread| {
        assert!((0..limit.max(1)).contains(&thread) && begin < end);
        for i in begin..end {
            hits[i as usize].fetch_add(1, Ordering::Relaxed);
        }
    });
    assert!(hits.iter().all(|hit| hit.load(Ordering::Relaxed) == 1));
}

#[test]
fn every_iteration_runs_once_whatever_the_pool_does_meanwhile() {
    for size in [1, 2, 3, 8, 2] {
        set_threads(size);
        assert_eq!(threads(), size);
        for count in [0, 1, 2, 3, 7, 64, 1000] {
            for limit in [1, 2, 5] {
                for _ in 0..20 {
                    covers(count, limit);
                }
            }
        }
        shutdown_threads();
    }
    // several callers: one has the pool, the others run alone; and one changes it
    thread::scope(|scope| {
        for caller in 0..4 {
            scope.spawn(move || {
                for round in 0..200 {
                    covers(17 + caller, 4);
                    if caller == 0 && round % 10 == 0 {
                        set_threads(1 + round % 5);
                    }
                    if caller == 1 && round % 50 == 0 {
                        shutdown_threads();
                    }
                }
            });
        }
    });
    set_threads(0);
    assert!(threads() >= 1);
    covers(100, 64);
}

#[test]
fn an_inner_loop_runs_serially() {
    let sum = AtomicI64::new(0);
    parallel_for(8, 4, |begin, end, _| {
        for i in begin..end {
            parallel_for(5, 4, |b, e, thread| {
                assert_eq!(thread, 0);
                sum.fetch_add((b..e).map(|j| i * 5 + j).sum(), Ordering::Relaxed);
            });
        }
    });
    assert_eq!(sum.load(Ordering::Relaxed), (0..40).sum());
}

#[test]
fn a_forked_child_has_a_pool_of_its_own() {
    set_threads(3);
    covers(64, 3);
    // SAFETY: the child computes, touches no lock of this process, and ends at once
    let child = unsafe { libc::fork() };
    if child == 0 {
        let sum = AtomicI64::new(0);
        parallel_for(100, 3, |begin, end, _| {
            sum.fetch_add((begin..end).sum(), Ordering::Relaxed);
        });
        let right = sum.load(Ordering::Relaxed) == (0..100).sum();
        // SAFETY: ends the child without running anything of the parent's
        unsafe { libc::_exit(if right { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: waits for the child above
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
}

#[test]
fn the_runtime_is_at_hand_as_an_object() {
    assert_eq!(&RUNTIME_OBJECT[..4], b"\x7fELF");
    let name = b"tilescribe_parallel_for\0";
    assert!(RUNTIME_OBJECT.windows(name.len()).any(|window| window == name));
}
