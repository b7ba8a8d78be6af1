/* A model on a CPU, and the calls of a run. */

#ifndef TILESCRIBE_MODEL_H
#define TILESCRIBE_MODEL_H

#include "cpu.h"

#include <pthread.h>

#include "../../runtime/runtime.h"

struct model {
    const unsigned char *weights;
    unsigned char *arena, *workspace; /* of the last, a part for each strand */
    uint64_t arena_bytes, workspace_bytes, strand_bytes;
    int64_t threads; /* that runs use, the caller's included */
    tilescribe_pool pool; /* whose threads they are; NULL: the library's own */
    int poisons; /* whether what of the arena is free is filled before each call */
    int is_cold; /* whether each call is made once before the run that is timed, and its weights are in memory then */
    int takes_turns; /* whether strands run one after the other */
    void **address; /* of every argument; those of inputs and outputs change with each run */
    void **moved; /* room for the addresses of one call in each strand, in an iteration */
    uint64_t most_arguments; /* of a call: so many addresses are in a strand's room */
    struct run_extents *extents; /* NULL: all are fixed */
    struct states *states; /* NULL: it keeps none */
    uint64_t *spent; /* by call, in nanoseconds; NULL: nobody asks */
    struct tilescribe_trace trace; /* without events: nobody asks */
    uint64_t *traced; /* where the caller reads how many events there are */
    pthread_mutex_t turn; /* whose calls come one after the other; other models run meanwhile */
};

/* The arguments of all calls, where they are at the extents that are set. */
const struct argument *arguments_of(const struct model *model);

/* Runs the calls `at` to `end`, which are outside of all regions, those of forks strand by strand. */
void run_forks(struct model *model, uint64_t at, uint64_t end);

#endif
