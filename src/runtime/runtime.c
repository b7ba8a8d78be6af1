/* A fork-join pool. Workers spin for a short while after a loop, since the next kernel usually follows at once, then sleep on a futex.
 *
 * One word, `state`, holds the number of the loop, whether it is open, and how many workers are inside. A worker enters an open loop by
 * adding itself; whoever opened the loop closes it when no iteration is left to claim, and waits only for workers that are inside. So a
 * worker that wakes up late, or never gets a processor, delays nobody.
 *
 * There is one loop at a time, but where strands run side by side: these are the iterations of the first loop, and each opens loops of
 * its own. Who waits, or has found no strand to run, joins the loops of others.
 */
#define _GNU_SOURCE
#include "runtime.h"

#include <errno.h>
#include <linux/futex.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MAX_THREADS = TILESCRIBE_MAX_THREADS, MAX_STRANDS = TILESCRIBE_MAX_STRANDS, CACHE_LINE = 64 };
enum { PAUSES_PER_CLOCK_READ = 32, CHUNKS_PER_THREAD = 8 };

/* How long a thread waits awake, in nanoseconds: some times the cost of a wake-up by the kernel. */
static const int64_t SPIN_NS = 40000;

/* state: | loop number, 32 bits | open, 1 bit | workers inside, 31 bits | */
static const uint64_t OPEN = UINT64_C(1) << 31;
static const uint64_t INSIDE = (UINT64_C(1) << 31) - 1;

/* Written by whoever opens it, before that. */
struct loop {
    _Alignas(CACHE_LINE) _Atomic uint64_t state;
    /* what whoever opened it waits on, asleep: 1 while that is so */
    _Alignas(CACHE_LINE) _Atomic uint32_t opener_sleeps;

    _Alignas(CACHE_LINE) tilescribe_body body;
    void *context;
    int64_t chunk, threads;
    struct tilescribe_trace *trace; /* NULL: nobody asks */
    uint32_t call;
    _Atomic int64_t entered; /* threads, in the loop of a strand */
    struct {
        _Alignas(CACHE_LINE) _Atomic int64_t next;
        int64_t end;
    } shares[MAX_THREADS]; /* a part of the loop for each thread */
};

static struct {
    struct loop loops[1 + MAX_STRANDS]; /* the caller's, then those of its strands */
    _Atomic int64_t used;             /* of these; 0 stands for the caller's alone */

    /* what sleeping workers wait on: changes with every loop */
    _Alignas(CACHE_LINE) _Atomic uint32_t bell;
    _Atomic uint32_t sleepers;

    /* held by the caller of a loop, and while the pool changes */
    _Alignas(CACHE_LINE) _Atomic bool busy;
    _Atomic bool stopping;
    _Atomic int64_t wanted; /* 0: not set */
    int64_t started;        /* workers that run, besides the caller */
    pthread_t workers[MAX_THREADS];
    cpu_set_t processors;   /* that workers may run on */
    int barred;             /* the one of these that they keep off; -1: none */
    _Atomic bool is_pinned;  /* each worker has a processor of its own */
    _Atomic bool is_crowded; /* there are more threads than processors for them */
} pool;

/* What the thread itself asked for; 0: nothing, and the pool's own number counts. */
static _Thread_local int64_t wanted_here;

static _Thread_local struct tilescribe_trace *trace_here;
static _Thread_local uint32_t call_here;

/* The number of a worker; 0: a caller. */
static _Thread_local int64_t number_here;

/* The loop that a strand, which runs on this thread, opens; NULL: there is none, or what runs is part of a loop. */
static _Thread_local struct loop *loop_here;

/* Whose threads run the loops of this thread; NULL: the pool's own. */
static _Thread_local tilescribe_pool pool_here;

static pthread_once_t fork_handler = PTHREAD_ONCE_INIT;

static void futex_wait(_Atomic uint32_t *word, uint32_t expected) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int number) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, number, NULL, NULL, 0);
}

static int64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

uint64_t tilescribe_now_ns(void) {
    return (uint64_t)now_ns();
}

void tilescribe_trace_loops(struct tilescribe_trace *trace, uint32_t call) {
    trace_here = trace;
    call_here = call;
}

static void put_event(struct tilescribe_trace *trace, uint32_t call, uint64_t begin, int64_t thread, enum tilescribe_activity what) {
    uint64_t at = __atomic_fetch_add(&trace->written, 1, __ATOMIC_RELAXED);
    if (at < trace->room) {
        trace->event[at] = (struct tilescribe_event){begin, tilescribe_now_ns(), call, (uint16_t)thread, (uint16_t)what};
    }
}

void tilescribe_put_event(uint64_t begin, enum tilescribe_activity what) {
    if (trace_here != NULL) {
        put_event(trace_here, call_here, begin, number_here, what);
    }
}

int tilescribe_use_tiles(void) {
#if defined(__x86_64__) && defined(SYS_arch_prctl)
    /* Linux saves them only for processes that asked (Documentation/arch/x86/xstate.rst) */
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
#else
    return 0;
#endif
}

static void pause_briefly(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t processors(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        return CPU_COUNT(&set);
    }
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? online : 1;
}

static int64_t minimum(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Claims and runs iterations until none is left: first those of the thread's own share, which is the same part of every loop, so that it finds in its
 * caches what it wrote in the loop before; then what others have left of theirs. Whether there were any. */
static bool work(struct loop *loop, int64_t thread) {
    struct loop *outer = loop_here;
    loop_here = NULL;
    bool found = false;
    for (int64_t i = 0; i < loop->threads; i++) {
        int64_t share = (thread + i) % loop->threads;
        int64_t end = loop->shares[share].end;
        for (;;) {
            int64_t begin = atomic_fetch_add_explicit(&loop->shares[share].next, loop->chunk, memory_order_relaxed);
            if (begin >= end) {
                break;
            }
            found = true;
            loop->body(loop->context, begin, minimum(begin + loop->chunk, end), thread);
        }
    }
    loop_here = outer;
    return found;
}

/* The same, and writes down when. */
static bool work_and_tell(struct loop *loop, int64_t thread) {
    struct tilescribe_trace *trace = loop->trace;
    if (trace == NULL) {
        return work(loop, thread);
    }
    uint64_t begin = tilescribe_now_ns();
    bool found = work(loop, thread);
    if (found) {
        put_event(trace, loop->call, begin, number_here, TILESCRIBE_LOOP);
    }
    return found;
}

/* The number of a thread in a loop: its own, or in the loop of a strand, which any thread may have opened, as many as came before. */
static int64_t number_in(struct loop *loop) {
    return loop == &pool.loops[0] ? number_here : atomic_fetch_add_explicit(&loop->entered, 1, memory_order_relaxed);
}

/* Enters a loop, if it is open. */
static bool enter(struct loop *loop) {
    uint64_t state = atomic_load_explicit(&loop->state, memory_order_acquire);
    while (state & OPEN) {
        if (atomic_compare_exchange_weak_explicit(&loop->state, &state, state + 1, memory_order_acquire, memory_order_acquire)) {
            return true;
        }
    }
    return false;
}

static void leave(struct loop *loop) {
    uint64_t before = atomic_fetch_sub(&loop->state, 1);
    /* the last one out of a closed loop wakes a sleeping opener */
    if ((before & INSIDE) == 1 && !(before & OPEN) && atomic_load(&loop->opener_sleeps)) {
        atomic_store(&loop->opener_sleeps, 0);
        futex_wake(&loop->opener_sleeps, 1);
    }
}

/* Joins the loops that are open, from this one on. Whether anything was left to do in them. */
static bool join(int64_t from) {
    bool found = false;
    int64_t used = atomic_load_explicit(&pool.used, memory_order_acquire);
    for (int64_t i = from; i < (used > 1 ? used : 1); i++) {
        struct loop *loop = &pool.loops[i];
        if (enter(loop)) {
            int64_t number = number_in(loop);
            if (number < loop->threads) {
                found |= work_and_tell(loop, number);
            }
            leave(loop);
        }
    }
    return found;
}

/* How long to wait awake: where others need the processor, not at all. */
static int64_t patience(void) {
    return atomic_load_explicit(&pool.is_crowded, memory_order_relaxed) ? 0 : SPIN_NS;
}

/* Returns when the bell has another value than `seen`, or the pool stops. */
static void wait_for_bell(uint32_t seen) {
    int64_t limit = now_ns() + patience();
    do {
        for (int i = 0; i < PAUSES_PER_CLOCK_READ; i++) {
            if (atomic_load_explicit(&pool.bell, memory_order_acquire) != seen) {
                return;
            }
            pause_briefly();
        }
    } while (now_ns() < limit);
    atomic_fetch_add(&pool.sleepers, 1);
    while (atomic_load(&pool.bell) == seen) {
        futex_wait(&pool.bell, seen);
    }
    atomic_fetch_sub(&pool.sleepers, 1);
}

static void *worker(void *number) {
    number_here = (int64_t)(intptr_t)number;
    uint32_t seen = 0;
    while (!atomic_load(&pool.stopping)) {
        /* the bell is read before the loop is: a loop that opens in between rings it again */
        uint32_t bell = atomic_load(&pool.bell);
        if (bell == seen) {
            wait_for_bell(seen);
            continue;
        }
        seen = bell;
        while (join(0)) {
        }
    }
    return NULL;
}

/* Bars workers from the caller's processor. Linux wakes a thread on the processor of the one that woke it if it takes the others to be busy, which it does
 * with idle ones of virtual machines that the host gave away: the two share one processor then, for milliseconds. The caller holds `busy`. */
static void keep_workers_off_this_processor(void) {
    int here = sched_getcpu();
    bool is_caller = number_here == 0;
    if (!is_caller || atomic_load(&pool.is_pinned) || atomic_load(&pool.is_crowded) || here == pool.barred || here < 0 || here >= CPU_SETSIZE) {
        return;
    }
    pool.barred = here;
    cpu_set_t others = pool.processors;
    CPU_CLR(here, &others);
    if (CPU_COUNT(&others) == 0) {
        return;
    }
    for (int64_t i = 0; i < pool.started; i++) {
        /* refused where the system has taken these processors away since: it places the thread as it likes then */
        pthread_setaffinity_np(pool.workers[i], sizeof others, &others);
    }
}

/* The caller holds `busy`, or runs a strand of whoever does. */
static void ring(void) {
    atomic_fetch_add(&pool.bell, 1);
    if (atomic_load(&pool.sleepers) > 0) {
        keep_workers_off_this_processor();
        futex_wake(&pool.bell, INT_MAX);
    }
}

/* The caller holds `busy`. */
static void stop_workers(void) {
    atomic_store(&pool.stopping, true);
    ring();
    for (int64_t i = 0; i < pool.started; i++) {
        pthread_join(pool.workers[i], NULL);
    }
    pool.started = 0;
    atomic_store(&pool.stopping, false);
}

/* In the child of a fork only the forking thread lives on: the pool is empty there. */
static void forget_workers(void) {
    pool.started = 0;
    for (int i = 0; i <= MAX_STRANDS; i++) {
        atomic_store(&pool.loops[i].state, 0);
        atomic_store(&pool.loops[i].opener_sleeps, 0);
    }
    atomic_store(&pool.used, 0);
    atomic_store(&pool.bell, 0);
    atomic_store(&pool.sleepers, 0);
    atomic_store(&pool.stopping, false);
    atomic_store(&pool.busy, false);
}

static void install_fork_handler(void) {
    pthread_atfork(NULL, NULL, forget_workers);
}

/* The processor that stands so many places behind another in a set, which goes on from its start. */
static int processor_behind(const cpu_set_t *set, int here, int64_t places) {
    int found = here;
    for (int64_t left = places % CPU_COUNT(set); left > 0; left -= CPU_ISSET(found, set) ? 1 : 0) {
        found = (found + 1) % CPU_SETSIZE;
    }
    return found;
}

/* The caller holds `busy`, and has a processor for each worker. */
static void pin_workers(void) {
    int here = sched_getcpu();
    for (int64_t i = 0; i < pool.started && here >= 0 && here < CPU_SETSIZE; i++) {
        cpu_set_t own;
        CPU_ZERO(&own);
        CPU_SET(processor_behind(&pool.processors, here, i + 1), &own);
        pthread_setaffinity_np(pool.workers[i], sizeof own, &own);
    }
}

/* The caller holds `busy`. Fewer threads than asked for are no error: loops are complete with any number. */
static void start_workers(int64_t number) {
    pthread_once(&fork_handler, install_fork_handler);
    if (pool.started > number) {
        stop_workers();
    }
    if (pool.started == 0) {
        /* workers start with having seen 0 */
        atomic_store(&pool.bell, 0);
        if (sched_getaffinity(0, sizeof pool.processors, &pool.processors) != 0) {
            CPU_ZERO(&pool.processors);
        }
    }
    int there = CPU_COUNT(&pool.processors);
    bool is_crowded = there > 0 && number >= there;
    if (is_crowded && (pool.barred >= 0 || atomic_load(&pool.is_pinned))) {
        /* then a processor less is a loss */
        for (int64_t i = 0; i < pool.started; i++) {
            pthread_setaffinity_np(pool.workers[i], sizeof pool.processors, &pool.processors);
        }
        pool.barred = -1;
    }
    atomic_store(&pool.is_crowded, is_crowded);
    while (pool.started < number) {
        void *thread = (void *)(intptr_t)(pool.started + 1);
        if (pthread_create(&pool.workers[pool.started], NULL, worker, thread) != 0) {
            break;
        }
        pool.started++;
        pool.barred = -1;
    }
    if (there > 0 && !is_crowded && atomic_load(&pool.is_pinned)) {
        pin_workers();
    }
}

/* Returns when nobody is inside of a closed loop any more. Where strands run side by side, there may be something to do meanwhile. */
static void wait_for_workers(struct loop *loop) {
    int64_t limit = now_ns() + patience();
    for (;;) {
        for (int i = 0; i < PAUSES_PER_CLOCK_READ; i++) {
            if (!(atomic_load_explicit(&loop->state, memory_order_acquire) & INSIDE)) {
                return;
            }
            pause_briefly();
        }
        if (join(1)) {
            limit = now_ns() + patience();
        } else if (now_ns() >= limit) {
            break;
        }
    }
    for (;;) {
        atomic_store(&loop->opener_sleeps, 1);
        if (!(atomic_load(&loop->state) & INSIDE)) {
            atomic_store(&loop->opener_sleeps, 0);
            return;
        }
        futex_wait(&loop->opener_sleeps, 1);
    }
}

/* A loop that another pool runs, and that is written down. */
struct told_loop {
    tilescribe_body body;
    void *context;
    struct tilescribe_trace *trace;
    uint32_t call;
};

static void tell_part(void *told, int64_t begin, int64_t end, int64_t thread) {
    struct told_loop *loop = told;
    uint64_t since = tilescribe_now_ns();
    loop->body(loop->context, begin, end, thread);
    put_event(loop->trace, loop->call, since, thread, TILESCRIBE_LOOP);
}

static void run_loop(tilescribe_body body, void *context, int64_t count, int64_t threads);

void tilescribe_parallel_for(tilescribe_body body, void *context, int64_t count, int64_t threads) {
    threads = minimum(minimum(threads, wanted_here != 0 ? wanted_here : tilescribe_threads()), count);
    if (pool_here == NULL || threads <= 1) {
        run_loop(body, context, count, threads);
    } else if (trace_here == NULL) {
        pool_here(body, context, count, threads);
    } else {
        struct told_loop told = {body, context, trace_here, call_here};
        pool_here(tell_part, &told, count, threads);
    }
}

void tilescribe_lend_pool(tilescribe_body body, void *context, int64_t count, int64_t threads) {
    int64_t wanted = wanted_here;
    struct tilescribe_trace *trace = trace_here;
    wanted_here = minimum(threads, MAX_THREADS);
    trace_here = NULL;
    run_loop(body, context, count, minimum(wanted_here, count));
    wanted_here = wanted;
    trace_here = trace;
}

/* Opens a loop, takes part in it, and returns when it is done. */
static void run_open(struct loop *loop, tilescribe_body body, void *context, int64_t count, int64_t threads) {
    loop->body = body;
    loop->context = context;
    loop->threads = threads;
    loop->trace = trace_here;
    loop->call = call_here;
    int64_t chunk = count / (threads * CHUNKS_PER_THREAD);
    loop->chunk = chunk > 1 ? chunk : 1;
    for (int64_t thread = 0; thread < threads; thread++) {
        /* the first shares are longer by one iteration where they differ */
        int64_t begin = thread * (count / threads) + minimum(thread, count % threads);
        loop->shares[thread].end = begin + count / threads + (thread < count % threads ? 1 : 0);
        atomic_store_explicit(&loop->shares[thread].next, begin, memory_order_relaxed);
    }
    atomic_store_explicit(&loop->entered, 1, memory_order_relaxed);

    uint64_t number = (atomic_load_explicit(&loop->state, memory_order_relaxed) >> 32) + 1;
    atomic_store_explicit(&loop->state, number << 32 | OPEN, memory_order_release);
    ring();
    work_and_tell(loop, 0);
    atomic_fetch_and(&loop->state, ~OPEN);
    uint64_t waits_since = loop->trace != NULL ? tilescribe_now_ns() : 0;
    wait_for_workers(loop);
    if (loop->trace != NULL) {
        put_event(loop->trace, loop->call, waits_since, number_here, TILESCRIBE_WAIT);
    }
}

/* Takes the pool, if it is free, and makes sure that it has its threads. */
static bool take_pool(void) {
    if (atomic_exchange(&pool.busy, true)) {
        return false;
    }
    int64_t size = wanted_here != 0 ? wanted_here : tilescribe_threads();
    /* the pool keeps its size when a loop needs fewer threads, or other threads ask for more */
    if (wanted_here != 0 ? pool.started < size - 1 : pool.started != size - 1) {
        start_workers(size - 1);
    }
    return true;
}

/* On the pool's own threads, of which there are not more than the calling thread wants, nor than iterations. */
static void run_loop(tilescribe_body body, void *context, int64_t count, int64_t threads) {
    if (count <= 0) {
        return;
    }
    if (threads <= 1) {
        body(context, 0, count, 0);
    } else if (loop_here != NULL) {
        run_open(loop_here, body, context, count, threads);
    } else if (take_pool()) {
        run_open(&pool.loops[0], body, context, count, threads);
        atomic_store(&pool.busy, false);
    } else {
        body(context, 0, count, 0);
    }
}

/* Strands, and what was said for loops of whoever runs them. */
struct strands {
    tilescribe_strand run;
    void *context;
    int64_t wanted;
    struct tilescribe_trace *trace;
};

/* Runs strands on one of the pool's threads. */
static void run_strands(void *strands, int64_t begin, int64_t end, int64_t thread) {
    (void)thread;
    struct strands *all = strands;
    int64_t wanted = wanted_here;
    struct tilescribe_trace *trace = trace_here;
    uint32_t call = call_here;
    wanted_here = all->wanted;
    for (int64_t strand = begin; strand < end; strand++) {
        tilescribe_trace_loops(all->trace, call);
        loop_here = &pool.loops[1 + strand];
        all->run(all->context, strand);
        loop_here = NULL;
    }
    tilescribe_trace_loops(trace, call);
    wanted_here = wanted;
}

void tilescribe_side_by_side(tilescribe_strand run, void *context, int64_t strands) {
    int64_t threads = minimum(wanted_here != 0 ? wanted_here : tilescribe_threads(), strands);
    if (threads <= 1 || strands > MAX_STRANDS || pool_here != NULL || loop_here != NULL || !take_pool()) {
        for (int64_t strand = 0; strand < strands; strand++) {
            run(context, strand);
        }
        return;
    }
    struct strands all = {run, context, wanted_here, trace_here};
    atomic_store_explicit(&pool.used, 1 + strands, memory_order_release);
    run_open(&pool.loops[0], run_strands, &all, strands, threads);
    atomic_store_explicit(&pool.used, 0, memory_order_release);
    atomic_store(&pool.busy, false);
}

void tilescribe_set_threads(int64_t threads) {
    if (threads < 0) {
        threads = 0;
    }
    atomic_store(&pool.wanted, minimum(threads, MAX_THREADS));
}

int64_t tilescribe_threads(void) {
    int64_t wanted = atomic_load_explicit(&pool.wanted, memory_order_relaxed);
    if (wanted == 0) {
        wanted = minimum(processors(), MAX_THREADS);
        int64_t unset = 0;
        atomic_compare_exchange_strong(&pool.wanted, &unset, wanted);
    }
    return wanted;
}

void tilescribe_use_threads(int64_t threads) {
    wanted_here = threads > 0 ? minimum(threads, MAX_THREADS) : tilescribe_threads();
}

void tilescribe_pin(int pin) {
    /* threads that start anew may run where they like */
    tilescribe_shutdown();
    atomic_store(&pool.is_pinned, pin != 0);
}

void tilescribe_use_pool(tilescribe_pool other) {
    pool_here = other;
}

void tilescribe_shutdown(void) {
    while (atomic_exchange(&pool.busy, true)) {
        sched_yield();
    }
    if (pool.started > 0) {
        stop_workers();
    }
    atomic_store(&pool.busy, false);
}
