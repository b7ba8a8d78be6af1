/* Runs a compiled network once: weights and one f32 input from files, the first output to standard output. */
#include <stdio.h>
#include <stdlib.h>

#include "net.h"

static int fail(int status)
{
    const char *missing = net_missing_feature();
    fprintf(stderr, "%s%s%s\n", net_error_string(status), missing ? ": " : "", missing ? missing : "");
    return status;
}

int main(int count, char **arguments)
{
    if (count != 3)
        return 100;
    net_model *model;
    int status = net_create(arguments[1], 2, &model);
    if (status != NET_OK)
        return fail(status);
    void *input = malloc(net_inputs(NULL)->bytes), *output = malloc(net_outputs(NULL)->bytes);
    FILE *file = fopen(arguments[2], "rb");
    if (!input || !output || !file || fread(input, 1, net_inputs(NULL)->bytes, file) != net_inputs(NULL)->bytes)
        return 101;
    status = net_run(model, (const void *const *)&input, &output);
    if (status != NET_OK)
        return fail(status);
    fwrite(output, 1, net_outputs(NULL)->bytes, stdout);
    net_destroy(model);
    return 0;
}
