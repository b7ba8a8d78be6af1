/* What a model keeps from one run to the next.
 *
 * A state that is replaced has two arrays, which runs read and write in turn. One that grows along an axis has a single array, with room
 * for all rows that it can ever have: a run writes its new rows behind those that are there (`append` in `library.c`), and nothing else
 * moves. Outside, states are dense arrays of the shape that the input has. */

#include "deploy.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static int grows(const struct state *state)
{
    return state->axis >= 0;
}

const struct tensor *tilescribe_state(size_t number)
{
    return number < tilescribe_network.states ? &tilescribe_network.state[number].about : NULL;
}

/* ---- Memory ---- */

static void release(const struct state *state, struct held *held)
{
    unmap_pages(held->memory[0], held->bytes);
    if (!grows(state))
        unmap_pages(held->memory[1], held->bytes);
    held->memory[0] = held->memory[1] = NULL;
    held->bytes = 0;
}

/* Bytes of a state of this shape, with room along the axis on which it grows; 0 where they cannot be counted. */
static int count_bytes(const struct state *state, const int64_t *shape, uint64_t *bytes)
{
    *bytes = state->element_bytes;
    for (uint64_t axis = 0; axis < state->about.rank; axis++) {
        int64_t extent = (int64_t)axis == state->axis ? state->capacity : shape[axis];
        if (extent < 0 || __builtin_mul_overflow(*bytes, (uint64_t)extent, bytes) || *bytes > INT64_MAX)
            return 0;
    }
    return 1;
}

/* Makes room for a state of this shape, all of it zero where it is not what it was. */
static enum status make_room(const struct state *state, struct held *held, const int64_t *shape)
{
    uint64_t bytes;
    if (!count_bytes(state, shape, &bytes))
        return STATUS_OUT_OF_MEMORY;
    if (held->memory[0] == NULL || held->bytes != bytes) {
        release(state, held);
        held->bytes = bytes;
        /* rows that are never written take no memory */
        held->memory[0] = map_pages(bytes, MAP_NORESERVE);
        held->memory[1] = grows(state) ? held->memory[0] : map_pages(bytes, 0);
        if (held->memory[0] == NULL || held->memory[1] == NULL) {
            release(state, held);
            return STATUS_OUT_OF_MEMORY;
        }
    }
    memcpy(held->shape, shape, state->about.rank * sizeof *shape);
    return STATUS_OK;
}

struct states *new_states(void)
{
    const struct network *network = &tilescribe_network;
    struct states *states = calloc(1, sizeof *states);
    if (states == NULL)
        return NULL;
    states->are_fresh = 1;
    states->held = calloc(network->states + 1, sizeof *states->held);
    for (uint64_t i = 0; states->held != NULL && i < network->states; i++) {
        const struct state *state = &network->state[i];
        struct held *held = &states->held[i];
        held->shape = calloc(state->about.rank + 1, sizeof *held->shape);
        if (held->shape == NULL) {
            free_states(states);
            return NULL;
        }
        memcpy(held->shape, state->about.shape, state->about.rank * sizeof *held->shape);
        if (grows(state))
            held->shape[state->axis] = 0;
    }
    if (states->held == NULL) {
        free(states);
        return NULL;
    }
    return states;
}

void free_states(struct states *states)
{
    if (states == NULL)
        return;
    for (uint64_t i = 0; i < tilescribe_network.states; i++) {
        release(&tilescribe_network.state[i], &states->held[i]);
        free(states->held[i].shape);
    }
    free(states->held);
    free(states);
}

enum status fit_states(struct states *states, struct run_extents *extents)
{
    const int64_t *wanted = extents != NULL ? extents->state : NULL;
    for (uint64_t i = 0; i < tilescribe_network.states; i++) {
        const struct state *state = &tilescribe_network.state[i];
        struct held *held = &states->held[i];
        for (uint64_t axis = 0; wanted != NULL && axis < state->about.rank; axis++)
            if (wanted[axis] != held->shape[axis] && (!states->are_fresh || (int64_t)axis == state->axis))
                return refuse(extents, "axis %llu of state %s is %lld; inputs of these extents want %lld: reset the states first",
                              (unsigned long long)axis, state->about.name, (long long)held->shape[axis], (long long)wanted[axis]);
        enum status status = make_room(state, held, wanted != NULL ? wanted : held->shape);
        if (status != STATUS_OK)
            return status;
        if (wanted != NULL)
            wanted += state->about.rank;
    }
    return STATUS_OK;
}

unsigned char *state_memory(const struct states *states, const struct argument *argument)
{
    const struct held *held = &states->held[argument->index];
    return held->memory[argument->space == SPACE_STATE ? held->current : 1 - held->current];
}

/* ---- From run to run ---- */

/* Sets how many rows a state has, on which extents may depend. */
static void set_rows(struct states *states, struct run_extents *extents, uint64_t number, int64_t rows)
{
    states->held[number].shape[tilescribe_network.state[number].axis] = rows;
    if (extents != NULL && extents->rows[number] != rows) {
        extents->rows[number] = rows;
        extents->are_set = 0;
    }
}

void advance_states(struct states *states, struct run_extents *extents)
{
    states->are_fresh = 0;
    for (uint64_t i = 0; i < tilescribe_network.states; i++) {
        if (grows(&tilescribe_network.state[i]))
            set_rows(states, extents, i, extents->grown[i]);
        else
            states->held[i].current = 1 - states->held[i].current;
    }
}

void reset_states(struct states *states, struct run_extents *extents)
{
    for (uint64_t i = 0; i < tilescribe_network.states; i++) {
        struct held *held = &states->held[i];
        if (grows(&tilescribe_network.state[i]))
            set_rows(states, extents, i, 0);
        else if (held->memory[0] != NULL)
            memset(held->memory[held->current], 0, held->bytes);
    }
    states->are_fresh = 1;
}

enum status rewind_states(struct states *states, struct run_extents *extents, int64_t rows)
{
    for (uint64_t i = 0; i < tilescribe_network.states; i++) {
        const struct state *state = &tilescribe_network.state[i];
        /* what was replaced is gone */
        if (!grows(state) || rows < 0 || rows > states->held[i].shape[state->axis])
            return STATUS_BAD_ARGUMENT;
    }
    for (uint64_t i = 0; i < tilescribe_network.states; i++)
        set_rows(states, extents, i, rows);
    return STATUS_OK;
}

/* ---- In and out ---- */

/* How a state lies in memory: so many parts of so many bytes, which are `stride` bytes apart. */
struct layout {
    uint64_t parts, bytes, stride;
};

static struct layout layout_of(const struct state *state, const int64_t *shape)
{
    struct layout layout = {1, state->element_bytes, state->element_bytes};
    for (uint64_t axis = 0; axis < state->about.rank; axis++) {
        if ((int64_t)axis < state->axis) {
            layout.parts *= (uint64_t)shape[axis];
        } else {
            layout.bytes *= (uint64_t)shape[axis];
            layout.stride *= (uint64_t)((int64_t)axis == state->axis ? state->capacity : shape[axis]);
        }
    }
    return layout;
}

enum status read_state(const struct states *states, uint64_t number, void *data)
{
    const struct state *state = &tilescribe_network.state[number];
    const struct held *held = &states->held[number];
    struct layout layout = layout_of(state, held->shape);
    if (layout.parts * layout.bytes == 0)
        return STATUS_OK;
    if (data == NULL)
        return STATUS_BAD_ARGUMENT;
    if (held->memory[0] == NULL)
        return STATUS_NO_EXTENTS;
    for (uint64_t i = 0; i < layout.parts; i++)
        memcpy((char *)data + i * layout.bytes, held->memory[held->current] + i * layout.stride, layout.bytes);
    return STATUS_OK;
}

enum status write_state(struct states *states, struct run_extents *extents, uint64_t number, const int64_t *shape, const void *data)
{
    const struct state *state = &tilescribe_network.state[number];
    struct held *held = &states->held[number];
    if (state->about.rank > 0 && shape == NULL)
        return STATUS_BAD_ARGUMENT;
    for (uint64_t axis = 0; axis < state->about.rank; axis++) {
        int is_open = extents != NULL && shape[axis] >= 0 && shape[axis] <= state->about.shape[axis];
        if (!is_open && shape[axis] != state->about.shape[axis])
            return STATUS_BAD_ARGUMENT;
    }
    /* nothing is changed before everything is known to be right */
    struct layout layout = layout_of(state, shape);
    if (layout.parts * layout.bytes > 0 && data == NULL)
        return STATUS_BAD_ARGUMENT;
    enum status status = make_room(state, held, shape);
    if (status != STATUS_OK)
        return status;
    for (uint64_t i = 0; layout.bytes > 0 && i < layout.parts; i++)
        memcpy(held->memory[held->current] + i * layout.stride, (const char *)data + i * layout.bytes, layout.bytes);
    states->are_fresh = 0;
    if (grows(state))
        set_rows(states, extents, number, shape[state->axis]);
    return STATUS_OK;
}
