/* The calls of a run: in order, again and again or under a condition in regions, and at the same time in the strands of forks. */

#include "model.h"

#include <stddef.h>

const struct argument *arguments_of(const struct model *model)
{
    return model->extents != NULL ? model->extents->argument : tilescribe_network.argument;
}

/* What calls that run one after the other have to themselves. */
struct strand {
    struct model *model;
    unsigned char *workspace;
    void **moved;
};

static void *address_in(struct model *model, uint64_t argument, uint64_t iteration)
{
    const struct argument *about = &arguments_of(model)[argument];
    uint64_t place = iteration + about->phase;
    if (about->period != 0)
        place %= about->period;
    return (unsigned char *)model->address[argument] + about->step * (int64_t)place;
}

/* Where the next argument in the weights begins, or they end: an argument is no longer, wherever it moves. */
static const unsigned char *end_of_weights(const struct model *model, uint64_t argument)
{
    uint64_t from = arguments_of(model)[argument].offset, end = tilescribe_network.weights_bytes;
    for (uint64_t i = 0; i < tilescribe_network.arguments; i++) {
        const struct argument *other = &arguments_of(model)[i];
        if (other->space == SPACE_WEIGHTS && other->offset > from && other->offset < end)
            end = other->offset;
    }
    return model->weights + end;
}

static void compute(const struct strand *strand, const struct call *call, void **arguments)
{
    /* numbers that a run says come behind everything else */
    if (call->routine != 0)
        tilescribe_library(&tilescribe_network.routine[call->routine - 1], arguments, arguments[call->arguments - 1]);
    else
        tilescribe_kernels.kernel[call->task](arguments, strand->workspace);
}

static void do_nothing(void *context, int64_t begin, int64_t end, int64_t thread)
{
    (void)context, (void)begin, (void)end, (void)thread;
}

/* Makes a call, which no plan lets write over what it reads, and takes its weights out of the caches again. What it computes with is
 * in the caches then, and the threads are awake. */
static void prepare_cold(const struct strand *strand, const struct call *call, void **arguments)
{
    const struct model *model = strand->model;
    tilescribe_trace_loops(NULL, 0);
    compute(strand, call, arguments);
    for (uint64_t i = 0; i < call->arguments; i++) {
        if (arguments_of(model)[call->first + i].space != SPACE_WEIGHTS)
            continue;
        const unsigned char *from = arguments[i], *end = end_of_weights(model, call->first + i);
        if (from < end)
            flush_from_caches(from, (uint64_t)(end - from));
    }
    tilescribe_parallel_for(do_nothing, NULL, model->threads, model->threads);
}

/* The trace that this run writes, if it writes one. */
static struct tilescribe_trace *trace_of(struct model *model)
{
    return model->trace.event != NULL ? &model->trace : NULL;
}

static void run_call(const struct strand *strand, const struct call *call, uint64_t iteration)
{
    struct model *model = strand->model;
    uint64_t number = (uint64_t)(call - tilescribe_network.call);
    if (model->poisons)
        poison_arena(model->extents, model->arena, model->arena_bytes, number);
    void **arguments = model->address + call->first;
    if (call->moving) {
        for (uint64_t i = 0; i < call->arguments; i++)
            strand->moved[i] = address_in(model, call->first + i, iteration);
        arguments = strand->moved;
    }
    if (model->is_cold)
        prepare_cold(strand, call, arguments);
    tilescribe_trace_loops(trace_of(model), (uint32_t)number);
    uint64_t started = model->spent != NULL || model->trace.event != NULL ? tilescribe_now_ns() : 0;
    compute(strand, call, arguments);
    if (model->spent != NULL)
        model->spent[number] += tilescribe_now_ns() - started;
    tilescribe_put_event(started, TILESCRIBE_CALL);
}

static int holds(const struct strand *strand, const struct region *region, uint64_t iteration)
{
    const unsigned char *condition = address_in(strand->model, region->condition, iteration);
    return *condition != 0;
}

/* How often the calls of a repetition run in this run. */
static uint64_t count_of(const struct model *model, const struct region *region)
{
    return model->extents != NULL ? (uint64_t)model->extents->count[region - tilescribe_network.region] : region->count;
}

/* Runs the calls `at` to `end`, in an iteration of a repetition around them; the regions that start among them are those before
 * `last`. */
static void run_calls(const struct strand *strand, uint64_t at, uint64_t end, const struct region *region, const struct region *last, uint64_t iteration)
{
    struct model *model = strand->model;
    while (at < end) {
        if (region == last || region->first != at) {
            run_call(strand, &tilescribe_network.call[at++], iteration);
            continue;
        }
        const struct region *own = region++, *inner = region;
        while (region != last && region->first < own->end)
            region++;
        if (own->is_choice) {
            uint64_t chosen = (uint64_t)model->extents->count[own - tilescribe_network.region];
            run_call(strand, &tilescribe_network.call[own->first + chosen], iteration);
        } else if (own->count != 0) {
            uint64_t count = count_of(model, own);
            for (uint64_t i = 0; i < count; i++) {
                /* states are in the half of their memory that they were in two iterations before */
                if (own->ends && (count - i) % 2 == 0 && !holds(strand, own, i))
                    break;
                run_calls(strand, own->first, own->end, inner, region, i);
            }
        } else if ((uint64_t)holds(strand, own, iteration) == own->wanted) {
            run_calls(strand, own->first, own->end, inner, region, iteration);
        }
        at = own->end;
    }
}

/* Runs calls outside of all regions, as one strand. */
static void run_strand(struct model *model, int64_t number, uint64_t at, uint64_t end)
{
    uint64_t place = (uint64_t)number;
    struct strand strand = {model, model->workspace + place * model->strand_bytes, model->moved + place * model->most_arguments};
    const struct region *region = tilescribe_network.region, *last = region + tilescribe_network.regions;
    while (region != last && region->first < at)
        region++;
    run_calls(&strand, at, end, region, last, 0);
}

/* A fork in a run. */
struct running {
    struct model *model;
    const struct fork *fork;
};

static void run_strand_of(void *context, int64_t number)
{
    const struct running *running = context;
    const struct range *strand = &tilescribe_network.strand[running->fork->first + (uint64_t)number];
    run_strand(running->model, running->model->takes_turns ? 0 : number, strand->first, strand->end);
}

/* Runs the strands of a fork: at the same time, unless they take turns or something is done about each call by itself. */
static void run_fork(struct model *model, const struct fork *fork)
{
    struct running running = {model, fork};
    uint64_t first = tilescribe_network.strand[fork->first].first;
    int takes_turns = model->takes_turns || model->spent != NULL || model->poisons || model->is_cold;
    uint64_t started = model->trace.event != NULL ? tilescribe_now_ns() : 0;
    for (uint64_t i = 0; takes_turns && i < fork->strands; i++)
        run_strand_of(&running, (int64_t)i);
    if (!takes_turns)
        tilescribe_side_by_side(run_strand_of, &running, (int64_t)fork->strands);
    tilescribe_trace_loops(trace_of(model), (uint32_t)first);
    tilescribe_put_event(started, TILESCRIBE_FORK);
}

void run_forks(struct model *model, uint64_t at, uint64_t end)
{
    for (uint64_t i = 0; i < tilescribe_network.forks; i++) {
        const struct fork *fork = &tilescribe_network.fork[i];
        const struct range *strand = &tilescribe_network.strand[fork->first];
        uint64_t first = strand[0].first, behind = strand[fork->strands - 1].end;
        if (first < at || behind > end)
            continue;
        run_strand(model, 0, at, first);
        run_fork(model, fork);
        at = behind;
    }
    run_strand(model, 0, at, end);
}
