/* The runtime of compiled kernels: a pool of threads. The same code serves measuring and deployment. */
#ifndef TILESCRIBE_RUNTIME_H
#define TILESCRIBE_RUNTIME_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Part of a parallel loop: iterations begin..end (exclusive), by the thread with the number `thread`. */
typedef void (*tilescribe_body)(void *context, int64_t begin, int64_t end, int64_t thread);

/* Runs the iterations 0..count, in any order and at the same time, and returns when all are done. The caller takes part as thread 0.
 * At most `threads` threads take part, and their numbers are below it, whatever the size of the pool.
 * Safe to call from several threads of the process: while one call has the pool, others run serially as thread 0.
 * A body that calls it again runs that inner loop serially too. */
void tilescribe_parallel_for(tilescribe_body body, void *context, int64_t count, int64_t threads);

/* The most threads that a loop has, and the most strands that run side by side. */
enum { TILESCRIBE_MAX_THREADS = 256, TILESCRIBE_MAX_STRANDS = 8 };

typedef void (*tilescribe_strand)(void *context, int64_t strand);

/* Runs the strands 0..strands, in any order and at the same time, and returns when all are done. Each runs on one thread; in loops that it
 * starts, threads that have nothing else to do take part, with numbers that count from 0 in each loop. Strands run in turn where another
 * call has the pool, where another pool runs the loops of the calling thread, or where there are more than TILESCRIBE_MAX_STRANDS. */
void tilescribe_side_by_side(tilescribe_strand run, void *context, int64_t strands);

/* Sets the size of the pool, the caller included, to 1..256. Threads start with the next parallel loop.
 * 0 stands for the processors that this process may run on, which is also what an unset pool has. */
void tilescribe_set_threads(int64_t threads);

/* The same for the loops that the calling thread starts from now on, and for no others: the pool grows as needed. */
void tilescribe_use_threads(int64_t threads);

/* What runs loops, as `tilescribe_parallel_for` does: thread numbers are below `threads`, and no two parts that go on at the same time have
 * the same. */
typedef void (*tilescribe_pool)(tilescribe_body body, void *context, int64_t count, int64_t threads);

/* Has loops that the calling thread starts from now on run by another pool; NULL: by the own one. */
void tilescribe_use_pool(tilescribe_pool other);

/* The own pool, for callers that want so many threads of it, whatever was said for loops of this thread. */
void tilescribe_lend_pool(tilescribe_body body, void *context, int64_t count, int64_t threads);

/* Whether each thread of the pool, from the next loop on, stays on a processor of its own, beginning with the one behind the caller's;
 * not where there are more threads than processors. The caller stays where it is. */
void tilescribe_pin(int pin);

/* Asks the system to let this process use the processor's tile registers; 0 where it does not, or there are none. */
int tilescribe_use_tiles(void);

/* The size of the pool, the caller included. */
int64_t tilescribe_threads(void);

/* What happened from `begin` to `end`, in nanoseconds of CLOCK_MONOTONIC. */
struct tilescribe_event {
    uint64_t begin, end;
    uint32_t call; /* of the network */
    uint16_t thread;
    uint16_t what; /* enum tilescribe_activity */
};

enum tilescribe_activity {
    TILESCRIBE_CALL = 0, /* a call as a whole, by the thread that makes it: the caller, 0, unless it is in a strand */
    TILESCRIBE_LOOP = 1, /* a thread's part of a parallel loop */
    TILESCRIBE_WAIT = 2, /* whoever started the loop, for the others to end theirs */
    TILESCRIBE_FORK = 3, /* all strands of a fork, by its first call */
};

/* Room for events. `written` counts all of them, those for which there was no room, too. */
struct tilescribe_trace {
    struct tilescribe_event *event;
    uint64_t room;
    uint64_t written; /* atomically */
};

/* Loops that the calling thread starts from now on write what they do, as a call of the network. NULL: they write nothing. */
void tilescribe_trace_loops(struct tilescribe_trace *trace, uint32_t call);

/* Writes an event of that call, if its loops are written down, that began at `begin` and ends now. */
void tilescribe_put_event(uint64_t begin, enum tilescribe_activity what);

uint64_t tilescribe_now_ns(void);

/* Ends the threads of the pool; the next parallel loop starts them again. Call it before the code is unloaded. */
void tilescribe_shutdown(void);

#ifdef __cplusplus
}
#endif
#endif
