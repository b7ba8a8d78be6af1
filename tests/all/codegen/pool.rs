//! The thread pool of the C runtime.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tilescribe::codegen::{RUNTIME_OBJECT, parallel_for, set_threads, shutdown_threads, side_by_side, threads};

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

/// Strands of loops, of which the last ends long after the others: every iteration once, whatever joins in.
fn strands_cover(strands: i64, loops: i64) {
    let hits: Vec<AtomicI64> = (0..strands * loops * 64).map(|_| AtomicI64::new(0)).collect();
    side_by_side(strands, |strand| {
        for number in 0..loops * if strand + 1 == strands { 1 } else { strand % 2 } {
            let inside: [AtomicBool; 8] = Default::default();
            parallel_for(64, 3, |begin, end, thread| {
                // no two parts that go on at the same time have one number
                assert!((0..3).contains(&thread) && !inside[thread as usize].swap(true, Ordering::SeqCst));
                for i in begin..end {
                    hits[((strand * loops + number) * 64 + i) as usize].fetch_add(1, Ordering::Relaxed);
                }
                inside[thread as usize].store(false, Ordering::SeqCst);
            });
        }
    });
    for (at, hit) in (0_i64..).zip(&hits) {
        let strand = at / (loops * 64);
        let runs = strand + 1 == strands || strand % 2 == 1;
        assert_eq!(hit.load(Ordering::Relaxed), i64::from(runs), "strand {strand} of {strands}");
    }
}

#[test]
fn strands_run_side_by_side() {
    for size in [1, 2, 3, 8, 2] {
        set_threads(size);
        for strands in [0, 1, 2, 3, 8, 9, 20] {
            for _ in 0..20 {
                strands_cover(strands, 5);
                covers(100, 8);
            }
        }
        shutdown_threads();
    }
    // several callers: the strands of one have the pool
    thread::scope(|scope| {
        for caller in 0..3 {
            scope.spawn(move || (0..100).for_each(|_| strands_cover(2 + caller, 4)));
        }
        scope.spawn(|| (0..500).for_each(|_| covers(33, 4)));
    });
    set_threads(0);
}

#[test]
fn who_has_no_strand_joins_the_loops_of_others() {
    set_threads(2);
    let threads = Mutex::new(std::collections::HashSet::new());
    let start = Instant::now();
    // again and again: while another test has the pool, strands run in turn
    while threads.lock().unwrap().len() < 2 && start.elapsed() < Duration::from_secs(30) {
        set_threads(2);
        side_by_side(2, |strand| {
            for _ in 0..20 * strand {
                parallel_for(8, 2, |_, _, _| {
                    threads.lock().unwrap().insert(thread::current().id());
                    thread::sleep(Duration::from_micros(50));
                });
            }
        });
    }
    assert_eq!(threads.lock().unwrap().len(), 2);
    set_threads(0);
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
    assert_eq!(sum.load(Ordering::Relaxed), (0..40).sum::<i64>());
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
        let right = sum.load(Ordering::Relaxed) == (0..100).sum::<i64>();
        // SAFETY: ends the child without running anything of the parent's
        unsafe { libc::_exit(if right { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: waits for the child above
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
}

/// The processors that the calling thread may run on.
fn own_processors() -> Vec<usize> {
    // SAFETY: a set of processors is plain bits, which the call fills
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set), 0);
        set
    };
    // SAFETY: numbers within the set
    (0..libc::CPU_SETSIZE as usize).filter(|number| unsafe { libc::CPU_ISSET(*number, &set) }).collect()
}

fn run_on(processor: usize) {
    // SAFETY: as above
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(processor, &mut set);
        assert_eq!(libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set), 0);
    }
}

/// In a process whose pool nobody else uses.
fn woken_workers_keep_off_the_callers_processor() -> bool {
    let all = own_processors();
    set_threads(2);
    covers(64, 2);
    all.iter().all(|here| {
        // the worker falls asleep meanwhile
        thread::sleep(Duration::from_millis(20));
        run_on(*here);
        let (came, allowed) = (AtomicBool::new(false), Mutex::new(None));
        let patience = Instant::now() + Duration::from_secs(10);
        parallel_for(2, 2, |_, _, thread| match thread {
            0 => {
                while !came.load(Ordering::Acquire) && Instant::now() < patience {
                    std::hint::spin_loop();
                }
            }
            _ => {
                *allowed.lock().unwrap() = Some(own_processors());
                came.store(true, Ordering::Release);
            }
        });
        let others: Vec<usize> = all.iter().copied().filter(|number| number != here).collect();
        allowed.into_inner().unwrap() == Some(if others.is_empty() { all.clone() } else { others })
    })
}

#[test]
fn a_worker_that_is_woken_does_not_share_the_callers_processor() {
    // SAFETY: the child uses nothing that another thread of this process may have locked but the allocator,
    // which the C library makes fit for this
    let child = unsafe { libc::fork() };
    if child == 0 {
        let right = woken_workers_keep_off_the_callers_processor();
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
