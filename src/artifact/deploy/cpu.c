/* A deployed network on CPUs.
 *
 * Nothing in this file needs more than the baseline of its instruction set, so that a machine that lacks what the kernels need
 * gets an error. */

#include "deploy.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "../../runtime/runtime.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

/* The kernels, and what they need; written by `tables.rs`. */
struct kernels {
    uint64_t workspace_bytes; /* the most that a kernel wants, for all its threads */
    uint64_t features;
    const char *const *feature; /* LLVM's names */
    void (*const *kernel)(void *const *arguments, void *workspace); /* by task */
};

extern const struct kernels tilescribe_kernels;

struct model {
    const unsigned char *weights;
    unsigned char *arena, *workspace;
    uint64_t arena_bytes;
    int threads;
    void **address; /* of every argument; those of inputs and outputs change with each run */
    void **moved; /* room for the addresses of one call, in an iteration */
    struct run_extents *extents; /* NULL: all are fixed */
    struct states *states; /* NULL: it keeps none */
    uint64_t *spent; /* by call, in nanoseconds; NULL: nobody asks */
    pthread_mutex_t turn; /* whose calls come one after the other; other models run meanwhile */
};

/* The pool of threads belongs to the library; it ends with the last of its models. */
static pthread_mutex_t counting_models = PTHREAD_MUTEX_INITIALIZER;
static uint64_t live_models;

/* ---- Which instructions the machine has ---- */

#if defined(__x86_64__)

enum word { L1C, L1D, L7B, L7C, L7D, L71A, L71D, LD1A, X1C, X1D, X8B, L14B, WORDS };
/* What the operating system must save for the feature to be usable. */
enum saved { PLAIN = 0, YMM = 0x6, ZMM = 0xe6, TILES = 0x60000 };

/* LLVM's names, and where cpuid answers (Intel and AMD manuals, instruction CPUID). */
static const struct { const char *name; uint8_t word, bit; uint32_t state; } known[] = {
    {"64bit", X1D, 29, PLAIN}, {"adx", L7B, 19, PLAIN}, {"aes", L1C, 25, PLAIN},
    {"amx-bf16", L7D, 22, TILES}, {"amx-complex", L71D, 8, TILES}, {"amx-fp16", L71A, 21, TILES},
    {"amx-int8", L7D, 25, TILES}, {"amx-tile", L7D, 24, TILES}, {"avx", L1C, 28, YMM},
    {"avx2", L7B, 5, YMM}, {"avx512bf16", L71A, 5, ZMM}, {"avx512bitalg", L7C, 12, ZMM},
    {"avx512bw", L7B, 30, ZMM}, {"avx512cd", L7B, 28, ZMM}, {"avx512dq", L7B, 17, ZMM},
    {"avx512f", L7B, 16, ZMM}, {"avx512fp16", L7D, 23, ZMM}, {"avx512ifma", L7B, 21, ZMM},
    {"avx512vbmi", L7C, 1, ZMM}, {"avx512vbmi2", L7C, 6, ZMM}, {"avx512vl", L7B, 31, ZMM},
    {"avx512vnni", L7C, 11, ZMM}, {"avx512vp2intersect", L7D, 8, ZMM}, {"avx512vpopcntdq", L7C, 14, ZMM},
    {"avxifma", L71A, 23, YMM}, {"avxneconvert", L71D, 5, YMM}, {"avxvnni", L71A, 4, YMM},
    {"avxvnniint16", L71D, 10, YMM}, {"avxvnniint8", L71D, 4, YMM}, {"bmi", L7B, 3, PLAIN},
    {"bmi2", L7B, 8, PLAIN}, {"cldemote", L7C, 25, PLAIN}, {"clflushopt", L7B, 23, PLAIN},
    {"clwb", L7B, 24, PLAIN}, {"clzero", X8B, 0, PLAIN}, {"cmov", L1D, 15, PLAIN},
    {"cmpccxadd", L71A, 7, PLAIN}, {"crc32", L1C, 20, PLAIN}, {"cx16", L1C, 13, PLAIN},
    {"cx8", L1D, 8, PLAIN}, {"enqcmd", L7C, 29, PLAIN}, {"f16c", L1C, 29, YMM},
    {"fma", L1C, 12, YMM}, {"fma4", X1C, 16, YMM}, {"fsgsbase", L7B, 0, PLAIN},
    {"fxsr", L1D, 24, PLAIN}, {"gfni", L7C, 8, PLAIN}, {"hreset", L71A, 22, PLAIN},
    {"invpcid", L7B, 10, PLAIN}, {"lwp", X1C, 15, PLAIN}, {"lzcnt", X1C, 5, PLAIN},
    {"mmx", L1D, 23, PLAIN}, {"movbe", L1C, 22, PLAIN}, {"movdir64b", L7C, 28, PLAIN},
    {"movdiri", L7C, 27, PLAIN}, {"mwaitx", X1C, 29, PLAIN}, {"pclmul", L1C, 1, PLAIN},
    {"pconfig", L7D, 18, PLAIN}, {"pku", L7C, 4, PLAIN}, {"popcnt", L1C, 23, PLAIN},
    {"prefetchi", L71D, 14, PLAIN}, {"prfchw", X1C, 8, PLAIN}, {"ptwrite", L14B, 4, PLAIN},
    {"rdpid", L7C, 22, PLAIN}, {"rdpru", X8B, 4, PLAIN}, {"rdrnd", L1C, 30, PLAIN},
    {"rdseed", L7B, 18, PLAIN}, {"rtm", L7B, 11, PLAIN}, {"sahf", X1C, 0, PLAIN},
    {"serialize", L7D, 14, PLAIN}, {"sgx", L7B, 2, PLAIN}, {"sha", L7B, 29, PLAIN},
    {"sha512", L71A, 0, YMM}, {"shstk", L7C, 7, PLAIN}, {"sm3", L71A, 1, YMM},
    {"sm4", L71A, 2, YMM}, {"sse", L1D, 25, PLAIN}, {"sse2", L1D, 26, PLAIN},
    {"sse3", L1C, 0, PLAIN}, {"sse4.1", L1C, 19, PLAIN}, {"sse4.2", L1C, 20, PLAIN},
    {"sse4a", X1C, 6, PLAIN}, {"ssse3", L1C, 9, PLAIN}, {"tbm", X1C, 21, PLAIN},
    {"tsxldtrk", L7D, 16, PLAIN}, {"uintr", L7D, 5, PLAIN}, {"vaes", L7C, 9, YMM},
    {"vpclmulqdq", L7C, 10, YMM}, {"waitpkg", L7C, 5, PLAIN}, {"wbnoinvd", X8B, 9, PLAIN},
    {"xop", X1C, 11, YMM}, {"xsave", L1C, 27, PLAIN}, {"xsavec", LD1A, 1, PLAIN},
    {"xsaveopt", LD1A, 0, PLAIN}, {"xsaves", LD1A, 3, PLAIN},
};

static void ask(uint32_t leaf, uint32_t subleaf, uint32_t out[4])
{
    memset(out, 0, 4 * sizeof *out);
    if (__get_cpuid_max(leaf & 0x80000000u, NULL) >= leaf)
        __cpuid_count(leaf, subleaf, out[0], out[1], out[2], out[3]);
}

static int has_feature(const char *name)
{
    uint32_t word[WORDS], r[4], saved = 0;
    ask(1, 0, r), word[L1C] = r[2], word[L1D] = r[3];
    if (word[L1C] >> 27 & 1) {
        uint32_t high;
        __asm__("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
    }
    ask(7, 0, r), word[L7B] = r[1], word[L7C] = r[2], word[L7D] = r[3];
    uint32_t subleaves = r[0];
    ask(7, 1, r), word[L71A] = subleaves ? r[0] : 0, word[L71D] = subleaves ? r[3] : 0;
    ask(0xd, 1, r), word[LD1A] = r[0];
    ask(0x80000001u, 0, r), word[X1C] = r[2], word[X1D] = r[3];
    ask(0x80000008u, 0, r), word[X8B] = r[1];
    ask(0x14, 0, r), word[L14B] = r[1];
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].name, name) == 0)
            return (word[known[i].word] >> known[i].bit & 1) && (saved & known[i].state) == known[i].state;
    return 0; /* nothing is known about it, so nothing may be hoped */
}

#elif defined(__aarch64__)

/* LLVM's names, and bits of the kernel's AT_HWCAP. */
static const struct { const char *name; uint8_t bit; } known[] = {
    {"fp-armv8", 0}, {"neon", 1}, {"aes", 3}, {"sha2", 6}, {"crc", 7}, {"lse", 8}, {"fullfp16", 10},
    {"rdm", 12}, {"jsconv", 13}, {"complxnum", 14}, {"rcpc", 15}, {"sha3", 17}, {"dotprod", 20}, {"sve", 22},
};

static int has_feature(const char *name)
{
    unsigned long capabilities = getauxval(AT_HWCAP);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].name, name) == 0)
            return capabilities >> known[i].bit & 1;
    return 0;
}

#else

static int has_feature(const char *name)
{
    (void)name;
    return 0;
}

#endif

/* The first feature that the kernels need and this machine lacks, or NULL. */
const char *tilescribe_missing_feature(void)
{
    for (uint64_t i = 0; i < tilescribe_kernels.features; i++)
        if (!has_feature(tilescribe_kernels.feature[i]))
            return tilescribe_kernels.feature[i];
    return NULL;
}

/* ---- Models ---- */

static void release(struct model *model)
{
    unmap_weights(model->weights);
    unmap_pages(model->arena, model->arena_bytes);
    unmap_pages(model->workspace, tilescribe_kernels.workspace_bytes);
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

/* The arguments of all calls, where they are at the extents that are set. */
static const struct argument *arguments_of(const struct model *model)
{
    return model->extents != NULL ? model->extents->argument : tilescribe_network.argument;
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
        model->arena = map_pages(arena_bytes, 0);
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
    model->threads = threads;
    pthread_mutex_init(&model->turn, NULL);
    enum status status = map_weights(weights, &model->weights);
    if (status == STATUS_OK) {
        /* the most that kernels want at any extents: no run may need all of it */
        model->workspace = map_pages(tilescribe_kernels.workspace_bytes, tilescribe_network.extents != NULL ? MAP_NORESERVE : 0);
        model->address = calloc(tilescribe_network.arguments + 1, sizeof *model->address);
        model->moved = calloc(most_arguments() + 1, sizeof *model->moved);
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

static void *address_in(struct model *model, uint64_t argument, uint64_t iteration)
{
    const struct argument *about = &arguments_of(model)[argument];
    uint64_t place = iteration + about->phase;
    if (about->period != 0)
        place %= about->period;
    return (unsigned char *)model->address[argument] + about->step * (int64_t)place;
}

static uint64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static void run_call(struct model *model, const struct call *call, uint64_t iteration)
{
    uint64_t started = model->spent != NULL ? now_ns() : 0;
    void **arguments = model->address + call->first;
    if (call->moving) {
        for (uint64_t i = 0; i < call->arguments; i++)
            model->moved[i] = address_in(model, call->first + i, iteration);
        arguments = model->moved;
    }
    /* numbers that a run says come behind everything else */
    if (call->routine != 0)
        tilescribe_library(&tilescribe_network.routine[call->routine - 1], arguments, arguments[call->arguments - 1]);
    else
        tilescribe_kernels.kernel[call->task](arguments, model->workspace);
    if (model->spent != NULL)
        model->spent[call - tilescribe_network.call] += now_ns() - started;
}

/* How often the calls of a repetition run in this run. */
static uint64_t count_of(const struct model *model, const struct region *region)
{
    return model->extents != NULL ? (uint64_t)model->extents->count[region - tilescribe_network.region] : region->count;
}

/* Runs the calls `at` to `end`, in an iteration of a repetition around them; the regions that start among them are those before
 * `last`. */
static void run_calls(struct model *model, uint64_t at, uint64_t end, const struct region *region, const struct region *last, uint64_t iteration)
{
    while (at < end) {
        if (region == last || region->first != at) {
            run_call(model, &tilescribe_network.call[at++], iteration);
            continue;
        }
        const struct region *own = region++, *inner = region;
        while (region != last && region->first < own->end)
            region++;
        if (own->is_choice) {
            uint64_t chosen = (uint64_t)model->extents->count[own - tilescribe_network.region];
            run_call(model, &tilescribe_network.call[own->first + chosen], iteration);
        } else if (own->count != 0) {
            uint64_t count = count_of(model, own);
            for (uint64_t i = 0; i < count; i++)
                run_calls(model, own->first, own->end, inner, region, i);
        } else {
            const unsigned char *condition = address_in(model, own->condition, iteration);
            if ((*condition != 0) == own->wanted)
                run_calls(model, own->first, own->end, inner, region, iteration);
        }
        at = own->end;
    }
}

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
    const struct region *region = network->region, *last = network->region + network->regions;
    uint64_t first = 0, countings = network->extents != NULL ? network->extents->countings : 0;
    for (uint64_t i = 0; i < countings; i++) {
        const struct counting *counting = &network->extents->counting[i];
        while (region != last && region->first < first)
            region++;
        run_calls(model, first, counting->call + 1, region, last, 0);
        int64_t found;
        memcpy(&found, model->address[counting->argument], sizeof found);
        enum status status = count_results(model->extents, i, found);
        if (status != STATUS_OK)
            return status;
        bind(model);
        bind_run(model, inputs, outputs);
        first = counting->call + 1;
    }
    while (region != last && region->first < first)
        region++;
    run_calls(model, first, network->calls, region, last, 0);
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
    bind_run(model, inputs, outputs);
    status = run_all(model, inputs, outputs);
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
