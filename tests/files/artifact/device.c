/* Runs a network on a GPU, once from the host's memory and once on what the device holds then, and compares: weights, the number of the
 * GPU, and a file for each input from the command line, all outputs to standard output. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net.h"

enum { MOST = 16 };

static int fail(int status)
{
    const char *missing = net_missing_feature();
    fprintf(stderr, "%s%s%s\n", net_error_string(status), missing ? ": " : "", missing ? missing : "");
    return status < 1000 ? status : 50;
}

static void *read_file(const char *path, size_t bytes)
{
    void *data = malloc(bytes + 1);
    FILE *file = fopen(path, "rb");
    if (file == NULL || fread(data, 1, bytes + 1, file) != bytes)
        exit(60);
    fclose(file);
    return data;
}

int main(int count, char **arguments)
{
    size_t inputs, outputs;
    const net_tensor *input = net_inputs(&inputs), *output = net_outputs(&outputs);
    if (inputs > MOST || outputs > MOST || count != 3 + (int)inputs)
        return 61;
    net_model *model;
    int status = net_create(arguments[1], atoi(arguments[2]), &model);
    if (status != NET_OK)
        return model == NULL ? fail(status) : 62;
    void *from[MOST], *to[MOST];
    for (size_t i = 0; i < inputs; i++)
        from[i] = read_file(arguments[3 + i], input[i].bytes);
    for (size_t i = 0; i < outputs; i++)
        to[i] = malloc(output[i].bytes + 1);
    status = net_run(model, (const void *const *)from, to);

    /* again, on the inputs that are there: into outputs that are not, and from there to the host by the driver itself */
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    int (*set)(unsigned long long, unsigned char, size_t) = NULL;
    int (*get)(void *, unsigned long long, size_t) = NULL;
    *(void **)&set = driver ? dlsym(driver, "cuMemsetD8_v2") : NULL;
    *(void **)&get = driver ? dlsym(driver, "cuMemcpyDtoH_v2") : NULL;
    if (set == NULL || get == NULL || net_device_input(model, inputs) != NULL || net_device_output(model, outputs) != NULL)
        return 63;
    for (size_t i = 0; i < outputs && status == NET_OK; i++)
        set((unsigned long long)net_device_output(model, i), 0, output[i].bytes);
    if (status == NET_OK)
        status = net_launch(model, NULL);
    if (status == NET_OK)
        status = net_wait(model);
    for (size_t i = 0; i < outputs && status == NET_OK; i++) {
        void *again = malloc(output[i].bytes + 1);
        get(again, (unsigned long long)net_device_output(model, i), output[i].bytes);
        if (memcmp(again, to[i], output[i].bytes) != 0)
            return 64;
        free(again);
    }

    for (size_t i = 0; i < outputs && status == NET_OK; i++)
        fwrite(to[i], 1, output[i].bytes, stdout);
    for (size_t i = 0; i < inputs; i++)
        free(from[i]);
    for (size_t i = 0; i < outputs; i++)
        free(to[i]);
    net_destroy(model);
    return status == NET_OK ? 0 : fail(status);
}
