/* Runs a compiled network from C: every f32 input counts up from 0 to 1, every other one is zero. Prints the
 * first values of each output.
 *
 * The network is called `net` here, as in `tilescribe compile ... --name net`: the name is the prefix of all
 * functions. See Makefile for how it is built. */
#include <stdio.h>
#include <stdlib.h>

#include "net.h"

static int fail(int status)
{
    const char *missing = net_missing_feature();
    fprintf(stderr, "error: %s%s%s\n", net_error_string(status), missing ? ": " : "", missing ? missing : "");
    return 1;
}

int main(int count, char **arguments)
{
    net_model *model;
    int status = net_create(count > 1 ? arguments[1] : "net/weights.safetensors", 0, &model);
    if (status != NET_OK)
        return fail(status);

    void *inputs[NET_INPUTS], *outputs[NET_OUTPUTS];
    for (size_t number = 0; number < NET_INPUTS; number++) {
        const net_tensor *tensor = &net_inputs(NULL)[number];
        inputs[number] = calloc(1, tensor->bytes);
        if (!inputs[number])
            return fail(NET_OUT_OF_MEMORY);
        size_t elements = tensor->type == NET_F32 ? tensor->bytes / sizeof(float) : 0;
        for (size_t at = 0; at < elements; at++)
            ((float *)inputs[number])[at] = (float)at / (float)elements;
    }
    for (size_t number = 0; number < NET_OUTPUTS; number++) {
        outputs[number] = malloc(net_outputs(NULL)[number].bytes);
        if (!outputs[number])
            return fail(NET_OUT_OF_MEMORY);
    }

    status = net_run(model, (const void *const *)inputs, outputs);
    if (status != NET_OK)
        return fail(status);
    for (size_t number = 0; number < NET_OUTPUTS; number++) {
        const net_tensor *tensor = &net_outputs(NULL)[number];
        printf("%s:", tensor->name);
        size_t elements = tensor->type == NET_F32 ? tensor->bytes / sizeof(float) : 0;
        for (size_t at = 0; at < elements && at < 4; at++)
            printf(" %g", ((float *)outputs[number])[at]);
        printf(" (%zu bytes)\n", (size_t)tensor->bytes);
    }

    net_destroy(model);
    for (size_t number = 0; number < NET_INPUTS; number++)
        free(inputs[number]);
    for (size_t number = 0; number < NET_OUTPUTS; number++)
        free(outputs[number]);
    return 0;
}
