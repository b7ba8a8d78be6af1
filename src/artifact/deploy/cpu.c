/* A deployed network on CPUs.
 *
 * Nothing in this file needs more than the baseline of its instruction set, so that a machine that lacks what the kernels need
 * gets an error. */

#include "model.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { WORKSPACE_ALIGNMENT = 4096 };

/* The pool of threads belongs to the library; it ends with the last of its models. */
static pthread_mutex_t counting_models = PTHREAD_MUTEX_INITIALIZER;
static uint64_t live_models;

/* ---- Models ---- */

static void release(struct model *model)
{
    release_weights(model->weights);
    unmap_pages(model->arena, model->arena_bytes);
    unmap_pages(model->workspace, model->workspace_bytes);
    free(model->address);
    free(model->moved);
    free_extents(model->extents);
    free_states(model->states);
    pthread_mutex_destroy(&model->turn);
    free(model);
}

void tilescribe_destroy(struct model *model)
{
    if (model == NULL)
        return;
    release(model);
    pthread_mutex_lock(&counting_models);
    if (--live_models == 0)
        tilescribe_shutdown(); /* so that the library can be unloaded */
    pthread_mutex_unlock(&counting_models);
}

/* Addresses that stay as they are until other extents are set. */
static void bind(struct model *model)
{
    for (uint64_t i = 0; i < tilescribe_network.arguments; i++) {
        const struct argument *argument = &arguments_of(model)[i];
        switch ((enum space)argument->space) {
        case SPACE_WEIGHTS: model->address[i] = (void *)(model->weights + argument->offset); break;
        case SPACE_ARENA: model->address[i] = model->arena + argument->offset; break;
        case SPACE_BLOCK: model->address[i] = model->arena + model->extents->offset[argument->index] + argument->offset; break;
        case SPACE_PARAMETERS: model->address[i] = (char *)model->extents->parameter + argument->offset; break;
        case SPACE_UNUSED: case SPACE_INPUT: case SPACE_OUTPUT: case SPACE_STATE: case SPACE_NEXT_STATE:
            break; /* these change with each run */
        }
    }
}

/* Makes the arena at least this large, and everything in it known. */
static enum status place(struct model *model, uint64_t arena_bytes)
{
    if (model->arena == NULL || model->arena_bytes < arena_bytes) {
        unmap_pages(model->arena, model->arena_bytes);
        model->arena_bytes = arena_bytes;
        model->arena = map_large_pages(arena_bytes);
        if (model->arena == NULL)
            return STATUS_OUT_OF_MEMORY;
    }
    bind(model);
    return STATUS_OK;
}

/* Makes the model ready for runs of the extents that were computed. */
static enum status settle(struct model *model)
{
    enum status status = place(model, model->extents->arena_bytes);
    if (status == STATUS_OK && model->states != NULL)
        status = fit_states(model->states, model->extents);
    if (status != STATUS_OK)
        model->extents->are_set = 0;
    return status;
}

/* The most arguments that a call has. */
static uint64_t most_arguments(void)
{
    uint64_t most = 0;
    for (uint64_t i = 0; i < tilescribe_network.calls; i++)
        if (tilescribe_network.call[i].arguments > most)
            most = tilescribe_network.call[i].arguments;
    return most;
}

/* The most strands that a fork has. */
static uint64_t most_strands(void)
{
    uint64_t most = 1;
    for (uint64_t i = 0; i < tilescribe_network.forks; i++)
        if (tilescribe_network.fork[i].strands > most)
            most = tilescribe_network.fork[i].strands;
    return most;
}

/* The most that a kernel wants, for so many threads; more than there is, if that cannot be said. */
static uint64_t most_workspace(int64_t threads)
{
    uint64_t most = 0;
    for (uint64_t i = 0; i < tilescribe_network.tasks; i++) {
        const struct scratch *scratch = &tilescribe_kernels.scratch[i];
        uint64_t bytes;
        if (__builtin_mul_overflow(scratch->thread_bytes, (uint64_t)threads, &bytes) || __builtin_add_overflow(bytes, scratch->shared_bytes, &bytes))
            return UINT64_MAX / 2;
        if (bytes > most)
            most = bytes;
    }
    return most;
}

int tilescribe_create(const char *weights, int threads, struct model **out)
{
    if (out == NULL || weights == NULL || threads < 0)
        return STATUS_BAD_ARGUMENT;
    *out = NULL;
    if (tilescribe_missing_feature() != NULL)
        return STATUS_UNSUPPORTED_MACHINE;
    struct model *model = calloc(1, sizeof *model);
    if (model == NULL)
        return STATUS_OUT_OF_MEMORY;
    /* no loop has more threads than this, so no kernel finds less workspace than it needs */
    int64_t most_threads = TILESCRIBE_MAX_THREADS;
    model->threads = threads == 0 ? tilescribe_threads() : threads < most_threads ? threads : most_threads;
    uint64_t strands = model->threads > 1 ? most_strands() : 1;
    /* strands begin where vectors may, and share no cache line */
    model->strand_bytes = (most_workspace(model->threads) + WORKSPACE_ALIGNMENT - 1) / WORKSPACE_ALIGNMENT * WORKSPACE_ALIGNMENT;
    model->workspace_bytes = model->strand_bytes <= UINT64_MAX / 2 / strands ? model->strand_bytes * strands : UINT64_MAX / 2;
    model->takes_turns = model->threads <= 1;
    pthread_mutex_init(&model->turn, NULL);
    enum status status = hold_weights(weights, &model->weights);
    if (status == STATUS_OK) {
        /* the most that kernels want at any extents: no run may need all of it */
        uint64_t workspace = model->workspace_bytes;
        model->workspace = tilescribe_network.extents != NULL ? map_pages(workspace, MAP_NORESERVE) : map_large_pages(workspace);
        model->address = calloc(tilescribe_network.arguments + 1, sizeof *model->address);
        model->most_arguments = most_arguments();
        model->moved = calloc(model->most_arguments * strands + 1, sizeof *model->moved);
        if (model->workspace == NULL || model->address == NULL || model->moved == NULL)
            status = STATUS_OUT_OF_MEMORY;
    }
    if (status == STATUS_OK && tilescribe_network.states > 0) {
        model->states = new_states();
        status = model->states == NULL ? STATUS_OUT_OF_MEMORY : STATUS_OK;
    }
    if (status == STATUS_OK && tilescribe_network.extents != NULL) {
        model->extents = new_extents();
        status = model->extents == NULL ? STATUS_OUT_OF_MEMORY : compute_fixed_extents(model->extents);
        if (status == STATUS_OK && model->extents->are_set)
            status = settle(model);
    } else if (status == STATUS_OK) {
        status = place(model, tilescribe_network.arena_bytes);
        if (status == STATUS_OK && model->states != NULL)
            status = fit_states(model->states, NULL);
    }
    if (status != STATUS_OK) {
        release(model);
        return status;
    }
    pthread_mutex_lock(&counting_models);
    live_models++;
    pthread_mutex_unlock(&counting_models);
    *out = model;
    return STATUS_OK;
}

/* ---- Running ---- */

/* Whether extents are set. Those that were, before states grew, are computed anew. */
static enum status check_extents(struct model *model)
{
    if (model->extents == NULL || model->extents->are_set)
        return STATUS_OK;
    enum status status = compute_extents_anew(model->extents);
    return status == STATUS_OK ? settle(model) : status;
}

static int arrays_are_given(const struct model *model, const void *const *inputs, void *const *outputs)
{
    const struct network *network = &tilescribe_network;
    const struct run_extents *extents = model->extents;
    return all_given(network->input, extents ? extents->input_bytes : NULL, network->inputs, inputs) &&
           all_given(network->output, extents ? extents->output_bytes : NULL, network->outputs, (const void *const *)outputs);
}

/* Addresses that change with each run. */
static void bind_run(struct model *model, const void *const *inputs, void *const *outputs)
{
    for (uint64_t i = 0; i < tilescribe_network.arguments; i++) {
        const struct argument *argument = &arguments_of(model)[i];
        if (argument->space == SPACE_INPUT)
            model->address[i] = (unsigned char *)inputs[argument->index] + argument->offset;
        else if (argument->space == SPACE_OUTPUT)
            model->address[i] = (unsigned char *)outputs[argument->index] + argument->offset;
        else if (argument->space == SPACE_STATE || argument->space == SPACE_NEXT_STATE)
            model->address[i] = state_memory(model->states, argument) + argument->offset;
    }
}

/* Runs all calls. What is counted on the way says what those behind it are given. */
static enum status run_all(struct model *model, const void *const *inputs, void *const *outputs)
{
    const struct network *network = &tilescribe_network;
    uint64_t first = 0, countings = network->extents != NULL ? network->extents->countings : 0;
    for (uint64_t i = 0; i < countings; i++) {
        const struct counting *counting = &network->extents->counting[i];
        run_forks(model, first, counting->call + 1);
        int64_t found;
        memcpy(&found, model->address[counting->argument], sizeof found);
        enum status status = count_results(model->extents, i, found);
        if (status != STATUS_OK)
            return status;
        bind(model);
        bind_run(model, inputs, outputs);
        first = counting->call + 1;
    }
    run_forks(model, first, network->calls);
    return STATUS_OK;
}

int tilescribe_run(struct model *model, const void *const *inputs, void *const *outputs)
{
    if (model == NULL)
        return STATUS_BAD_ARGUMENT;
    pthread_mutex_lock(&model->turn);
    enum status status = check_extents(model);
    if (status == STATUS_OK && !arrays_are_given(model, inputs, outputs))
        status = STATUS_BAD_ARGUMENT;
    if (status != STATUS_OK) {
        pthread_mutex_unlock(&model->turn);
        return status;
    }
    tilescribe_use_threads(model->threads);
    tilescribe_use_pool(model->pool);
    bind_run(model, inputs, outputs);
    if (model->poisons) /* no call needs anything of before */
        poison_arena(model->extents, model->arena, model->arena_bytes, tilescribe_network.calls);
    status = run_all(model, inputs, outputs);
    if (model->trace.event != NULL)
        *model->traced = model->trace.written;
    if (status == STATUS_OK && model->states != NULL)
        advance_states(model->states, model->extents);
    pthread_mutex_unlock(&model->turn);
    return status;
}

int tilescribe_profile(struct model *model, uint64_t *nanoseconds)
{
    if (model == NULL)
        return STATUS_BAD_ARGUMENT;
    pthread_mutex_lock(&model->turn);
    model->spent = nanoseconds;
    pthread_mutex_unlock(&model->turn);
    return STATUS_OK;
}

int tilescribe_share_threads(struct model *model, tilescribe_pool pool)
{
    if (model == NULL)
        return STATUS_BAD_ARGUMENT;
    pthread_mutex_lock(&model->turn);
    model->pool = pool;
    pthread_mutex_unlock(&model->turn);
    return STATUS_OK;
}

tilescribe_pool tilescribe_own_threads(void)
{
    return tilescribe_lend_pool;
}

int tilescribe_pin_threads(int pin)
{
    tilescribe_pin(pin);
    return STATUS_OK;
}

int tilescribe_end_threads(void)
{
    tilescribe_shutdown();
    return STATUS_OK;
}

int tilescribe_poison(struct model *model, int poison)
{
    if (model == NULL)
        return STATUS_BAD_ARGUMENT;
    pthread_mutex_lock(&model->turn);
    model->poisons = poison != 0;
    pthread_mutex_unlock(&model->turn);
    return STATUS_OK;
}

int tilescribe_time_cold(struct model *model, int cold)
{
    static const unsigned char byte;
    if (model == NULL || (cold != 0 && !flush_from_caches(&byte, 1)))
        return STATUS_BAD_ARGUMENT;
    pthread_mutex_lock(&model->turn);
    model->is_cold = cold != 0;
    pthread_mutex_unlock(&model->turn);
    return STATUS_OK;
}

int tilescribe_take_turns(struct model *model, int turns)
{
    if (model == NULL)
        return STATUS_BAD_ARGUMENT;
    pthread_mutex_lock(&model->turn);
    model->takes_turns = turns != 0 || model->threads <= 1;
    pthread_mutex_unlock(&model->turn);
    return STATUS_OK;
}

int tilescribe_trace(struct model *model, struct tilescribe_event *events, uint64_t room, uint64_t *written)
{
    if (model == NULL || (events != NULL && written == NULL))
        return STATUS_BAD_ARGUMENT;
    pthread_mutex_lock(&model->turn);
    model->trace = (struct tilescribe_trace){.event = events, .room = room};
    model->traced = written;
    pthread_mutex_unlock(&model->turn);
    return STATUS_OK;
}

/* ---- Extents ---- */

int tilescribe_set_extents(struct model *model, const int64_t *const *shapes)
{
    if (model == NULL || model->extents == NULL)
        return STATUS_BAD_ARGUMENT;
    pthread_mutex_lock(&model->turn);
    int changed = 0;
    enum status status = compute_extents(model->extents, shapes, &changed);
    if (status == STATUS_OK && changed)
        status = settle(model);
    if (status != STATUS_OK)
        model->extents->are_set = model->extents->were_set = 0;
    pthread_mutex_unlock(&model->turn);
    return status;
}

int tilescribe_output_shape(struct model *model, size_t number, int64_t *shape)
{
    if (model == NULL || model->extents == NULL || shape == NULL || number >= tilescribe_network.outputs)
        return STATUS_BAD_ARGUMENT;
    pthread_mutex_lock(&model->turn);
    enum status status = check_extents(model);
    if (status == STATUS_OK)
        status = copy_output_shape(model->extents, number, shape);
    pthread_mutex_unlock(&model->turn);
    return status;
}

/* ---- States ---- */

int tilescribe_reset(struct model *model)
{
    if (model == NULL || model->states == NULL)
        return STATUS_BAD_ARGUMENT;
    pthread_mutex_lock(&model->turn);
    reset_states(model->states, model->extents);
    pthread_mutex_unlock(&model->turn);
    return STATUS_OK;
}

int tilescribe_rewind(struct model *model, int64_t rows)
{
    if (model == NULL || model->states == NULL)
        return STATUS_BAD_ARGUMENT;
    pthread_mutex_lock(&model->turn);
    enum status status = rewind_states(model->states, model->extents, rows);
    pthread_mutex_unlock(&model->turn);
    return status;
}

int tilescribe_state_shape(struct model *model, size_t number, int64_t *shape)
{
    if (model == NULL || model->states == NULL || shape == NULL || number >= tilescribe_network.states)
        return STATUS_BAD_ARGUMENT;
    pthread_mutex_lock(&model->turn);
    memcpy(shape, model->states->held[number].shape, tilescribe_network.state[number].about.rank * sizeof *shape);
    pthread_mutex_unlock(&model->turn);
    return STATUS_OK;
}

int tilescribe_get_state(struct model *model, size_t number, void *data)
{
    if (model == NULL || model->states == NULL || number >= tilescribe_network.states)
        return STATUS_BAD_ARGUMENT;
    pthread_mutex_lock(&model->turn);
    enum status status = read_state(model->states, number, data);
    pthread_mutex_unlock(&model->turn);
    return status;
}

int tilescribe_set_state(struct model *model, size_t number, const int64_t *shape, const void *data)
{
    if (model == NULL || model->states == NULL || number >= tilescribe_network.states)
        return STATUS_BAD_ARGUMENT;
    pthread_mutex_lock(&model->turn);
    enum status status = write_state(model->states, model->extents, number, shape, data);
    pthread_mutex_unlock(&model->turn);
    return status;
}

const char *tilescribe_message(struct model *model)
{
    return model == NULL || model->extents == NULL ? "" : model->extents->message;
}

const char *tilescribe_error_string(int status)
{
    if (status == STATUS_UNSUPPORTED_MACHINE)
        return "this processor lacks instructions that the network was compiled for";
    return common_error_string(status);
}
