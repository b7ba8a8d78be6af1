/* A deployed network on NVIDIA GPUs.
 *
 * The driver is found when the first model is created, and assembles the kernels, which are in the library as PTX. A model keeps its
 * constants, intermediates, inputs and outputs on the device, at addresses that never change: all calls are recorded once as a graph,
 * and a run starts that graph. */

#include "deploy.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- The driver: as much of its interface as is used (NVIDIA, CUDA Driver API) ---- */

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;

enum {
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
    CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,
    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
    CU_STREAM_NON_BLOCKING = 1,
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1,
};

#define DRIVER(X) \
    X(cuInit, (unsigned flags)) \
    X(cuGetErrorString, (CUresult error, const char **text)) \
    X(cuDeviceGetCount, (int *count)) \
    X(cuDeviceGet, (CUdevice * device, int ordinal)) \
    X(cuDeviceGetAttribute, (int *value, int attribute, CUdevice device)) \
    X(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device)) \
    X(cuDevicePrimaryCtxRelease_v2, (CUdevice device)) \
    X(cuCtxPushCurrent_v2, (CUcontext context)) \
    X(cuCtxPopCurrent_v2, (CUcontext * context)) \
    X(cuModuleLoadData, (CUmodule * module, const void *image)) \
    X(cuModuleUnload, (CUmodule module)) \
    X(cuModuleGetFunction, (CUfunction * function, CUmodule module, const char *name)) \
    X(cuFuncSetAttribute, (CUfunction function, int attribute, int value)) \
    X(cuMemAlloc_v2, (CUdeviceptr * address, size_t bytes)) \
    X(cuMemFree_v2, (CUdeviceptr address)) \
    X(cuMemcpyHtoD_v2, (CUdeviceptr to, const void *from, size_t bytes)) \
    X(cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void *from, size_t bytes, CUstream stream)) \
    X(cuMemcpyDtoHAsync_v2, (void *to, CUdeviceptr from, size_t bytes, CUstream stream)) \
    X(cuStreamCreate, (CUstream * stream, unsigned flags)) \
    X(cuStreamDestroy_v2, (CUstream stream)) \
    X(cuStreamSynchronize, (CUstream stream)) \
    X(cuStreamBeginCapture_v2, (CUstream stream, int mode)) \
    X(cuStreamEndCapture, (CUstream stream, CUgraph * graph)) \
    X(cuLaunchKernel, (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, \
                       unsigned block_z, unsigned shared_bytes, CUstream stream, void **parameters, void **extra)) \
    X(cuGraphInstantiateWithFlags, (CUgraphExec * executable, CUgraph graph, unsigned long long flags)) \
    X(cuGraphDestroy, (CUgraph graph)) \
    X(cuGraphLaunch, (CUgraphExec executable, CUstream stream)) \
    X(cuGraphExecDestroy, (CUgraphExec executable))

#define POINTER(name, parameters) CUresult(*name) parameters;
static struct { DRIVER(POINTER) } driver;

static pthread_once_t opened = PTHREAD_ONCE_INIT;
/* What the machine lacks of a driver, or NULL. */
static const char *lacking;

static void open_driver(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        lacking = "the NVIDIA driver (libcuda.so.1)";
        return;
    }
#define FIND(name, parameters) \
    if ((*(void **)&driver.name = dlsym(library, #name)) == NULL) { \
        lacking = "a newer NVIDIA driver (" #name ")"; \
        return; \
    }
    DRIVER(FIND)
    if (driver.cuInit(0) != 0)
        lacking = "a GPU that the NVIDIA driver can use";
}

static int status_of(CUresult result)
{
    switch (result) {
    case 0: return STATUS_OK;
    case CUDA_ERROR_OUT_OF_MEMORY: return STATUS_OUT_OF_MEMORY;
    default: return STATUS_DRIVER + result;
    }
}

/* Leaves the function where the driver refuses. */
#define TRY(call) \
    do { \
        int status_ = status_of(driver.call); \
        if (status_ != STATUS_OK) \
            return status_; \
    } while (0)

/* ---- Kernels, written by `tables.rs` ---- */

/* A grid of blocks to start; its function takes the addresses of a call's arguments, and of the workspace. */
struct launch {
    const char *symbol;
    uint32_t blocks, threads;
    uint64_t shared_bytes;
};

/* A task's kernels. */
struct module {
    const char *ptx;
    uint64_t first, launches; /* of the generation's launches */
};

/* The kernels for GPUs of one generation, and of those that understand it. */
struct generation {
    uint32_t major, minor;
    uint64_t is_specific; /* no other generation understands it */
    uint64_t shared_bytes; /* the most that a block wants */
    uint64_t workspace_bytes;
    uint64_t launches;
    const struct module *module; /* by task */
    const struct launch *launch;
};

struct kernels {
    uint64_t generations;
    const struct generation *generation; /* newest first */
};

extern const struct kernels tilescribe_kernels;

static CUresult fitting(CUdevice device, const struct generation **found)
{
    int major, minor, shared_bytes;
    CUresult result = driver.cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    if (result == 0)
        result = driver.cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
    if (result == 0)
        result = driver.cuDeviceGetAttribute(&shared_bytes, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, device);
    *found = NULL;
    for (uint64_t i = 0; result == 0 && i < tilescribe_kernels.generations && *found == NULL; i++) {
        const struct generation *generation = &tilescribe_kernels.generation[i];
        int is_older = generation->major < (uint32_t)major || (generation->major == (uint32_t)major && generation->minor <= (uint32_t)minor);
        int is_same = generation->major == (uint32_t)major && generation->minor == (uint32_t)minor;
        if ((generation->is_specific ? is_same : is_older) && generation->shared_bytes <= (uint64_t)shared_bytes)
            *found = generation;
    }
    return result;
}

const char *tilescribe_missing_feature(void)
{
    static _Thread_local char text[64];
    pthread_once(&opened, open_driver);
    if (lacking != NULL)
        return lacking;
    int count = 0;
    if (driver.cuDeviceGetCount(&count) != 0)
        count = 0;
    for (int i = 0; i < count; i++) {
        CUdevice device;
        const struct generation *found;
        if (driver.cuDeviceGet(&device, i) == 0 && fitting(device, &found) == 0 && found != NULL)
            return NULL;
    }
    const struct generation *oldest = &tilescribe_kernels.generation[tilescribe_kernels.generations - 1];
    snprintf(text, sizeof text, "a GPU of compute capability %u.%u%s", oldest->major, oldest->minor, oldest->is_specific ? "a" : "");
    return text;
}

/* ---- Models ---- */

struct model {
    CUdevice device;
    CUcontext context;
    CUstream stream;
    const struct generation *kernels;
    CUmodule *module; /* by task */
    CUfunction *function; /* by launch */
    CUdeviceptr weights, memory;
    CUdeviceptr arena, workspace; /* inside of the memory, as all inputs and outputs */
    CUdeviceptr *input, *output;
    CUgraphExec recorded;
    pthread_mutex_t turn; /* runs use the same memory */
};

/* What every part of a model's memory is aligned to, in bytes: kernels expect 16, and lines of the cache have 128. */
enum { ALIGNMENT = 256 };

static uint64_t aligned(uint64_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static int open_device(struct model *model, int ordinal)
{
    int count = 0;
    TRY(cuDeviceGetCount(&count));
    if (ordinal >= count)
        return STATUS_UNSUPPORTED_MACHINE;
    TRY(cuDeviceGet(&model->device, ordinal));
    int status = status_of(fitting(model->device, &model->kernels));
    if (status != STATUS_OK)
        return status;
    if (model->kernels == NULL)
        return STATUS_UNSUPPORTED_MACHINE;
    TRY(cuDevicePrimaryCtxRetain(&model->context, model->device));
    return STATUS_OK;
}

/* From here on, the model's context is the current one. */

static int load_kernels(struct model *model)
{
    const struct generation *kernels = model->kernels;
    TRY(cuStreamCreate(&model->stream, CU_STREAM_NON_BLOCKING));
    for (uint64_t task = 0; task < tilescribe_network.tasks; task++) {
        const struct module *module = &kernels->module[task];
        TRY(cuModuleLoadData(&model->module[task], module->ptx));
        for (uint64_t i = module->first; i < module->first + module->launches; i++) {
            const struct launch *launch = &kernels->launch[i];
            TRY(cuModuleGetFunction(&model->function[i], model->module[task], launch->symbol));
            TRY(cuFuncSetAttribute(model->function[i], CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)launch->shared_bytes));
        }
    }
    return STATUS_OK;
}

/* Gives the tensors their places, one behind the other. */
static uint64_t place(const struct tensor *tensor, uint64_t count, CUdeviceptr *address, uint64_t offset)
{
    for (uint64_t i = 0; i < count; i++) {
        address[i] = offset;
        offset += aligned(tensor[i].bytes);
    }
    return offset;
}

static int fill_memory(struct model *model, const unsigned char *weights)
{
    const struct network *network = &tilescribe_network;
    TRY(cuMemAlloc_v2(&model->weights, network->weights_bytes));
    TRY(cuMemcpyHtoD_v2(model->weights, weights, network->weights_bytes));
    uint64_t workspace = aligned(network->arena_bytes);
    uint64_t inputs = workspace + aligned(model->kernels->workspace_bytes);
    uint64_t outputs = place(network->input, network->inputs, model->input, inputs);
    uint64_t end = place(network->output, network->outputs, model->output, outputs);
    TRY(cuMemAlloc_v2(&model->memory, end + ALIGNMENT));
    model->arena = model->memory;
    model->workspace = model->memory + workspace;
    for (uint64_t i = 0; i < network->inputs; i++)
        model->input[i] += model->memory;
    for (uint64_t i = 0; i < network->outputs; i++)
        model->output[i] += model->memory;
    return STATUS_OK;
}

static CUdeviceptr address_of(const struct model *model, const struct argument *argument)
{
    switch ((enum space)argument->space) {
    case SPACE_INPUT: return model->input[argument->index] + argument->offset;
    case SPACE_OUTPUT: return model->output[argument->index] + argument->offset;
    case SPACE_WEIGHTS: return model->weights + argument->offset;
    case SPACE_ARENA: return model->arena + argument->offset;
    case SPACE_BLOCK: case SPACE_PARAMETERS: case SPACE_STATE: case SPACE_NEXT_STATE:
        /* no GPU runs networks whose extents are not all fixed, or that keep states */
    case SPACE_UNUSED: break;
    }
    return 0;
}

/* Starts all kernels of the network; `address` and `parameter` have room for the most arguments of a call, and one more. */
static CUresult start_calls(struct model *model, CUdeviceptr *address, void **parameter)
{
    const struct network *network = &tilescribe_network;
    const struct argument *argument = network->argument;
    for (uint64_t i = 0; i < network->calls; i++) {
        const struct call *call = &network->call[i];
        const struct module *module = &model->kernels->module[call->task];
        for (uint64_t k = 0; k < call->arguments; k++)
            address[k] = address_of(model, argument++);
        address[call->arguments] = model->workspace;
        for (uint64_t k = 0; k <= call->arguments; k++)
            parameter[k] = &address[k];
        for (uint64_t k = module->first; k < module->first + module->launches; k++) {
            const struct launch *launch = &model->kernels->launch[k];
            CUresult result = driver.cuLaunchKernel(model->function[k], launch->blocks, 1, 1, launch->threads, 1, 1,
                                                    (unsigned)launch->shared_bytes, model->stream, parameter, NULL);
            if (result != 0)
                return result;
        }
    }
    return 0;
}

static int record_calls(struct model *model)
{
    uint64_t most = 0;
    for (uint64_t i = 0; i < tilescribe_network.calls; i++)
        if (tilescribe_network.call[i].arguments > most)
            most = tilescribe_network.call[i].arguments;
    CUdeviceptr *address = calloc(most + 1, sizeof *address);
    void **parameter = calloc(most + 1, sizeof *parameter);
    CUresult result = address == NULL || parameter == NULL ? CUDA_ERROR_OUT_OF_MEMORY : 0;
    if (result == 0)
        result = driver.cuStreamBeginCapture_v2(model->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    CUgraph graph = NULL;
    if (result == 0) {
        result = start_calls(model, address, parameter);
        CUresult ended = driver.cuStreamEndCapture(model->stream, &graph);
        result = result == 0 ? ended : result;
    }
    free(address);
    free(parameter);
    if (result == 0)
        result = driver.cuGraphInstantiateWithFlags(&model->recorded, graph, 0);
    if (graph != NULL)
        driver.cuGraphDestroy(graph);
    return status_of(result);
}

/* Gives back what there is of a model. */
static void release(struct model *model)
{
    if (model->context != NULL && driver.cuCtxPushCurrent_v2(model->context) == 0) {
        if (model->stream != NULL)
            driver.cuStreamSynchronize(model->stream);
        if (model->recorded != NULL)
            driver.cuGraphExecDestroy(model->recorded);
        for (uint64_t task = 0; model->module != NULL && task < tilescribe_network.tasks; task++)
            if (model->module[task] != NULL)
                driver.cuModuleUnload(model->module[task]);
        if (model->memory != 0)
            driver.cuMemFree_v2(model->memory);
        if (model->weights != 0)
            driver.cuMemFree_v2(model->weights);
        if (model->stream != NULL)
            driver.cuStreamDestroy_v2(model->stream);
        CUcontext own;
        driver.cuCtxPopCurrent_v2(&own);
    }
    if (model->context != NULL)
        driver.cuDevicePrimaryCtxRelease_v2(model->device);
    free(model->module);
    free(model->function);
    free(model->input);
    free(model->output);
    pthread_mutex_destroy(&model->turn);
    free(model);
}

static int fill(struct model *model, const char *path)
{
    const unsigned char *weights = NULL;
    int status = map_weights(path, &weights);
    if (status != STATUS_OK)
        return status;
    status = status_of(driver.cuCtxPushCurrent_v2(model->context));
    if (status == STATUS_OK) {
        status = load_kernels(model);
        if (status == STATUS_OK)
            status = fill_memory(model, weights);
        if (status == STATUS_OK)
            status = record_calls(model);
        CUcontext own;
        driver.cuCtxPopCurrent_v2(&own);
    }
    unmap_weights(weights);
    return status;
}

int tilescribe_create(const char *weights, int device, struct model **out)
{
    if (out == NULL || weights == NULL || device < 0)
        return STATUS_BAD_ARGUMENT;
    *out = NULL;
    pthread_once(&opened, open_driver);
    if (lacking != NULL)
        return STATUS_UNSUPPORTED_MACHINE;
    struct model *model = calloc(1, sizeof *model);
    if (model == NULL)
        return STATUS_OUT_OF_MEMORY;
    pthread_mutex_init(&model->turn, NULL);
    int status = open_device(model, device);
    if (status == STATUS_OK) {
        model->module = calloc(tilescribe_network.tasks + 1, sizeof *model->module);
        model->function = calloc(model->kernels->launches + 1, sizeof *model->function);
        model->input = calloc(tilescribe_network.inputs + 1, sizeof *model->input);
        model->output = calloc(tilescribe_network.outputs + 1, sizeof *model->output);
        int is_there = model->module != NULL && model->function != NULL && model->input != NULL && model->output != NULL;
        status = is_there ? fill(model, weights) : STATUS_OUT_OF_MEMORY;
    }
    if (status != STATUS_OK) {
        release(model);
        return status;
    }
    *out = model;
    return STATUS_OK;
}

void tilescribe_destroy(struct model *model)
{
    if (model != NULL)
        release(model);
}

/* ---- Runs ---- */

static CUresult copy_and_run(struct model *model, const void *const *inputs, void *const *outputs)
{
    const struct network *network = &tilescribe_network;
    CUresult result = 0;
    for (uint64_t i = 0; result == 0 && i < network->inputs; i++)
        if (network->input[i].bytes > 0)
            result = driver.cuMemcpyHtoDAsync_v2(model->input[i], inputs[i], network->input[i].bytes, model->stream);
    if (result == 0)
        result = driver.cuGraphLaunch(model->recorded, model->stream);
    for (uint64_t i = 0; result == 0 && i < network->outputs; i++)
        if (network->output[i].bytes > 0)
            result = driver.cuMemcpyDtoHAsync_v2(outputs[i], model->output[i], network->output[i].bytes, model->stream);
    /* whatever has been started uses the caller's arrays */
    CUresult finished = driver.cuStreamSynchronize(model->stream);
    return result == 0 ? finished : result;
}

int tilescribe_run(struct model *model, const void *const *inputs, void *const *outputs)
{
    const struct network *network = &tilescribe_network;
    if (model == NULL || !all_given(network->input, NULL, network->inputs, inputs) ||
        !all_given(network->output, NULL, network->outputs, (const void *const *)outputs))
        return STATUS_BAD_ARGUMENT;
    pthread_mutex_lock(&model->turn);
    CUresult result = driver.cuCtxPushCurrent_v2(model->context);
    if (result == 0) {
        result = copy_and_run(model, inputs, outputs);
        CUcontext own;
        driver.cuCtxPopCurrent_v2(&own);
    }
    pthread_mutex_unlock(&model->turn);
    return status_of(result);
}

void *tilescribe_device_input(struct model *model, size_t number)
{
    return model == NULL || number >= tilescribe_network.inputs ? NULL : (void *)(uintptr_t)model->input[number];
}

void *tilescribe_device_output(struct model *model, size_t number)
{
    return model == NULL || number >= tilescribe_network.outputs ? NULL : (void *)(uintptr_t)model->output[number];
}

int tilescribe_launch(struct model *model, void *stream)
{
    if (model == NULL)
        return STATUS_BAD_ARGUMENT;
    TRY(cuCtxPushCurrent_v2(model->context));
    CUresult result = driver.cuGraphLaunch(model->recorded, stream == NULL ? model->stream : stream);
    CUcontext own;
    driver.cuCtxPopCurrent_v2(&own);
    return status_of(result);
}

int tilescribe_wait(struct model *model)
{
    if (model == NULL)
        return STATUS_BAD_ARGUMENT;
    TRY(cuCtxPushCurrent_v2(model->context));
    CUresult result = driver.cuStreamSynchronize(model->stream);
    CUcontext own;
    driver.cuCtxPopCurrent_v2(&own);
    return status_of(result);
}

const char *tilescribe_error_string(int status)
{
    const char *text = NULL;
    if (status == STATUS_UNSUPPORTED_MACHINE)
        return "there is no such GPU, or none that the network was compiled for";
    if (status > STATUS_DRIVER && driver.cuGetErrorString != NULL && driver.cuGetErrorString(status - STATUS_DRIVER, &text) == 0 && text != NULL)
        return text;
    return common_error_string(status);
}
