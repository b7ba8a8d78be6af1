/* A driver of NVIDIA GPUs for machines without one: everything that an artifact asks of libcuda.so.1, held to the driver's rules.
 *
 * Addresses on the device are no addresses of the host, memory lies between zones that nobody may write, and starts as NaN. Kernels are
 * not executed as PTX: what is started by a name that ends in `_0` runs as the function of that name, without the `_0`, in the library
 * that STAND_IN names; the rest of a task's launches are only checked. Whoever breaks a rule ends the process with status 90, who
 * leaves something behind with 91.
 *
 * GPUS         compute capability and shared memory of each device: "9.0:232448 8.6:101376"
 * FAIL         function that returns an error, and the error: "cuMemAlloc_v2:2"
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned long long address;

enum { OK, INVALID_VALUE = 1, NO_DEVICE = 100, INVALID_IMAGE = 200, INVALID_CONTEXT = 201, NOT_FOUND = 500 };
enum { MOST = 4096, ZONE = 256, POISON = 0xff, MOST_PARAMETERS = 64 };
static const address AWAY = 1ull << 60; /* what addresses of the device are shifted by */

#define REQUIRE(holds, ...) \
    do { \
        if (!(holds)) { \
            fprintf(stderr, "%s: ", __func__); \
            fprintf(stderr, __VA_ARGS__); \
            fprintf(stderr, "\n"); \
            _exit(90); \
        } \
    } while (0)

/* Every function starts with this. */
#define ENTER() \
    do { \
        const char *fail = getenv("FAIL"); \
        size_t length = strlen(__func__); \
        if (fail != NULL && strncmp(fail, __func__, length) == 0 && fail[length] == ':') \
            return atoi(fail + length + 1); \
    } while (0)
#define ENTER_CONTEXT() \
    ENTER(); \
    REQUIRE(current > 0, "no context is current")

struct function {
    char name[64];
    const struct module *module;
    int parameters, shared_bytes;
    unsigned most_threads;
    unsigned alignment[MOST_PARAMETERS];
    void (*stand_in)(void *const *, void *);
};

struct module {
    char *text;
    struct function *function[16];
    int functions;
};

struct node {
    struct function *function;
    address parameter[MOST_PARAMETERS];
};

struct graph {
    struct node *node;
    int nodes;
};

struct stream {
    struct graph *captured; /* while calls are recorded */
    int is_busy;
};

static struct { unsigned char *start; size_t bytes; } memory[MOST];
static int retained, current, alive; /* alive: modules, streams, graphs and their copies, and memory */
static int device_in_use;

__attribute__((destructor)) static void leave(void)
{
    if (retained != 0 || current != 0 || alive != 0) {
        fprintf(stderr, "left behind: %d contexts, %d current, %d objects\n", retained, current, alive);
        _exit(91);
    }
}

/* The host's address of so many bytes on the device, or the end of the process. */
static unsigned char *host(address at, size_t bytes)
{
    for (int i = 0; i < MOST; i++) {
        address start = (address)(uintptr_t)memory[i].start;
        if (start != 0 && at - AWAY >= start && at - AWAY + bytes <= start + memory[i].bytes)
            return (unsigned char *)(uintptr_t)(at - AWAY);
    }
    REQUIRE(0, "no memory of %zu bytes at %llx", bytes, at);
}

int cuInit(unsigned flags)
{
    ENTER();
    REQUIRE(flags == 0, "flags");
    return getenv("GPUS") == NULL || *getenv("GPUS") == 0 ? NO_DEVICE : OK;
}

int cuGetErrorString(int error, const char **text)
{
    static char message[64];
    snprintf(message, sizeof message, "the driver says %d", error);
    *text = message;
    return OK;
}

int cuDeviceGetCount(int *count)
{
    ENTER();
    *count = 1;
    for (const char *c = getenv("GPUS"); *c != 0; c++)
        *count += *c == ' ';
    return OK;
}

int cuDeviceGet(int *device, int ordinal)
{
    ENTER();
    int count;
    if (cuDeviceGetCount(&count) != OK || ordinal >= count)
        return INVALID_VALUE;
    *device = ordinal;
    return OK;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    ENTER();
    const char *text = getenv("GPUS");
    for (int i = 0; i < device; i++)
        text = strchr(text, ' ') + 1;
    int major, minor, shared_bytes;
    REQUIRE(sscanf(text, "%d.%d:%d", &major, &minor, &shared_bytes) == 3, "GPUS");
    switch (attribute) {
    case 75: *value = major; return OK;
    case 76: *value = minor; return OK;
    case 97: *value = shared_bytes; return OK;
    default: REQUIRE(0, "attribute %d", attribute);
    }
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
    ENTER();
    retained++;
    *context = (void *)(uintptr_t)(device + 1);
    return OK;
}

int cuDevicePrimaryCtxRelease_v2(int device)
{
    (void)device;
    REQUIRE(retained-- > 0, "released too often");
    return OK;
}

int cuCtxPushCurrent_v2(void *context)
{
    ENTER();
    REQUIRE(context != NULL && retained > 0, "no context");
    current++;
    device_in_use = (int)(uintptr_t)context - 1;
    return OK;
}

int cuCtxPopCurrent_v2(void **context)
{
    REQUIRE(current-- > 0, "popped too often");
    *context = NULL;
    return OK;
}

int cuModuleLoadData(struct module **out, const char *text)
{
    ENTER_CONTEXT();
    int major, minor, of = 0;
    char suffix = ' ';
    const char *target = strstr(text, ".target sm_");
    if (strstr(text, ".version") == NULL || target == NULL || sscanf(target, ".target sm_%d%c", &of, &suffix) < 1)
        return INVALID_IMAGE;
    cuDeviceGetAttribute(&major, 75, device_in_use);
    cuDeviceGetAttribute(&minor, 76, device_in_use);
    /* sm_90a is for that generation alone */
    REQUIRE(suffix == 'a' ? of == 10 * major + minor : of <= 10 * major + minor, "PTX for sm_%d%c", of, suffix);
    *out = calloc(1, sizeof **out);
    (*out)->text = strdup(text);
    alive++;
    return OK;
}

int cuModuleUnload(struct module *module)
{
    for (int i = 0; i < module->functions; i++)
        free(module->function[i]);
    free(module->text);
    free(module);
    alive--;
    return OK;
}

int cuModuleGetFunction(struct function **out, struct module *module, const char *name)
{
    ENTER_CONTEXT();
    char wanted[128];
    snprintf(wanted, sizeof wanted, ".entry %s(", name);
    const char *text = strstr(module->text, wanted);
    if (text == NULL)
        return NOT_FOUND;
    struct function *function = calloc(1, sizeof *function);
    REQUIRE(strlen(name) < sizeof function->name && module->functions < 16, "%s", name);
    strcpy(function->name, name);
    function->module = module;
    /* `.param .u64 .ptr .global .align 16 NAME_param_3,` up to the parenthesis */
    const char *end = strchr(text, ')');
    for (const char *at = text; (at = strstr(at, ".align ")) != NULL && at < end; at++) {
        REQUIRE(function->parameters < MOST_PARAMETERS, "parameters");
        function->alignment[function->parameters++] = (unsigned)atoi(at + strlen(".align "));
    }
    const char *most = strstr(end, ".maxntid ");
    REQUIRE(most != NULL, "%s without .maxntid", name);
    function->most_threads = (unsigned)atoi(most + strlen(".maxntid "));
    char *number = strrchr(strcpy(wanted, name), '_');
    if (strcmp(number, "_0") == 0) {
        *number = 0;
        void *library = dlopen(getenv("STAND_IN"), RTLD_NOW);
        REQUIRE(library != NULL, "%s", dlerror());
        *(void **)&function->stand_in = dlsym(library, wanted);
        REQUIRE(function->stand_in != NULL, "nothing stands in for %s", wanted);
    }
    module->function[module->functions++] = function;
    *out = function;
    return OK;
}

int cuFuncSetAttribute(struct function *function, int attribute, int value)
{
    ENTER_CONTEXT();
    int most;
    cuDeviceGetAttribute(&most, 97, device_in_use);
    if (attribute != 8 || value > most)
        return INVALID_VALUE;
    function->shared_bytes = value;
    return OK;
}

int cuMemAlloc_v2(address *out, size_t bytes)
{
    ENTER_CONTEXT();
    if (bytes == 0)
        return INVALID_VALUE;
    int i = 0;
    while (memory[i].start != NULL)
        REQUIRE(++i < MOST, "memory");
    unsigned char *whole = aligned_alloc(ZONE, (bytes + 3 * ZONE) / ZONE * ZONE);
    memset(whole, POISON, bytes + 2 * ZONE);
    memory[i].start = whole + ZONE;
    memory[i].bytes = bytes;
    alive++;
    *out = (address)(uintptr_t)memory[i].start + AWAY;
    return OK;
}

int cuMemFree_v2(address at)
{
    unsigned char *start = host(at, 1);
    for (int i = 0; i < MOST; i++) {
        if (memory[i].start != start)
            continue;
        for (size_t k = 0; k < ZONE; k++)
            REQUIRE(start[-1 - (long)k] == POISON && start[memory[i].bytes + k] == POISON, "something wrote beside the memory");
        free(start - ZONE);
        memory[i].start = NULL;
        alive--;
        return OK;
    }
    return INVALID_VALUE;
}

int cuMemcpyHtoD_v2(address to, const void *from, size_t bytes)
{
    ENTER_CONTEXT();
    memcpy(host(to, bytes), from, bytes);
    return OK;
}

int cuMemcpyHtoDAsync_v2(address to, const void *from, size_t bytes, struct stream *stream)
{
    ENTER_CONTEXT();
    REQUIRE(stream->captured == NULL, "a copy is recorded");
    stream->is_busy = 1;
    memcpy(host(to, bytes), from, bytes);
    return OK;
}

int cuMemcpyDtoHAsync_v2(void *to, address from, size_t bytes, struct stream *stream)
{
    ENTER_CONTEXT();
    REQUIRE(stream->captured == NULL, "a copy is recorded");
    stream->is_busy = 1;
    memcpy(to, host(from, bytes), bytes);
    return OK;
}

int cuMemcpyDtoH_v2(void *to, address from, size_t bytes)
{
    memcpy(to, host(from, bytes), bytes);
    return OK;
}

int cuMemsetD8_v2(address to, unsigned char value, size_t bytes)
{
    memset(host(to, bytes), value, bytes);
    return OK;
}

int cuStreamCreate(struct stream **stream, unsigned flags)
{
    ENTER_CONTEXT();
    REQUIRE(flags == 1, "a stream that waits for the default one");
    *stream = calloc(1, sizeof **stream);
    alive++;
    return OK;
}

int cuStreamDestroy_v2(struct stream *stream)
{
    REQUIRE(stream->captured == NULL && !stream->is_busy, "in use");
    free(stream);
    alive--;
    return OK;
}

int cuStreamSynchronize(struct stream *stream)
{
    REQUIRE(current > 0, "no context is current");
    stream->is_busy = 0;
    ENTER();
    return OK;
}

int cuStreamBeginCapture_v2(struct stream *stream, int mode)
{
    ENTER_CONTEXT();
    REQUIRE(mode == 1 && stream->captured == NULL, "mode %d", mode);
    stream->captured = calloc(1, sizeof *stream->captured);
    alive++;
    return OK;
}

int cuStreamEndCapture(struct stream *stream, struct graph **graph)
{
    const char *fail = getenv("FAIL");
    REQUIRE(stream->captured != NULL, "nothing is recorded");
    *graph = stream->captured;
    stream->captured = NULL;
    if (fail != NULL && strncmp(fail, "cuLaunchKernel", 14) == 0) {
        /* what failed while it was recorded is no graph */
        free((*graph)->node);
        free(*graph);
        *graph = NULL;
        alive--;
        return INVALID_VALUE;
    }
    return OK;
}

static struct graph *copied(const struct graph *graph)
{
    struct graph *copy = malloc(sizeof *copy);
    *copy = *graph;
    copy->node = malloc(graph->nodes * sizeof *copy->node + 1);
    memcpy(copy->node, graph->node, graph->nodes * sizeof *copy->node);
    alive++;
    return copy;
}

int cuGraphInstantiateWithFlags(struct graph **executable, struct graph *graph, address flags)
{
    ENTER_CONTEXT();
    REQUIRE(flags == 0, "flags");
    *executable = copied(graph);
    return OK;
}

int cuGraphDestroy(struct graph *graph)
{
    free(graph->node);
    free(graph);
    alive--;
    return OK;
}

int cuGraphExecDestroy(struct graph *executable)
{
    return cuGraphDestroy(executable);
}

int cuLaunchKernel(struct function *function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned threads_y, unsigned threads_z,
                   unsigned shared_bytes, struct stream *stream, void **parameters, void **extra)
{
    ENTER_CONTEXT();
    REQUIRE(x > 0 && y == 1 && z == 1 && threads > 0 && threads <= 1024 && threads_y == 1 && threads_z == 1 && extra == NULL, "shape");
    REQUIRE(threads <= function->most_threads, "%u threads of %u", threads, function->most_threads);
    REQUIRE((int)shared_bytes <= function->shared_bytes, "%u bytes of shared memory", shared_bytes);
    REQUIRE(stream->captured != NULL, "a launch that is not recorded");
    struct graph *graph = stream->captured;
    graph->node = realloc(graph->node, (graph->nodes + 1) * sizeof *graph->node);
    struct node *node = &graph->node[graph->nodes++];
    node->function = function;
    for (int i = 0; i < function->parameters; i++) {
        node->parameter[i] = *(address *)parameters[i];
        REQUIRE(node->parameter[i] % function->alignment[i] == 0, "parameter %d of %s is not aligned to %u", i, function->name,
                function->alignment[i]);
    }
    return OK;
}

int cuGraphLaunch(struct graph *executable, struct stream *stream)
{
    ENTER_CONTEXT();
    stream->is_busy = 1;
    for (int i = 0; i < executable->nodes; i++) {
        const struct node *node = &executable->node[i];
        if (node->function->stand_in == NULL)
            continue;
        void *arguments[MOST_PARAMETERS];
        int count = node->function->parameters - 1;
        for (int k = 0; k < count; k++)
            arguments[k] = node->parameter[k] == 0 ? NULL : host(node->parameter[k], 1);
        host(node->parameter[count], 1); /* the workspace */
        static unsigned char workspace[1 << 20] __attribute__((aligned(64)));
        node->function->stand_in(arguments, workspace);
    }
    return OK;
}
