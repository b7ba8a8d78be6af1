/* Runs a compiled network for several numbers of rows, one after the other: weights from a file, one f32 input with so many rows
 * from the front of another. Outputs go to standard output; extents that are refused are told on standard error. */
#include <stdio.h>
#include <stdlib.h>

#include "net.h"

int main(int count, char **arguments)
{
    if (count < 4)
        return 100;
    net_model *model;
    if (net_create(arguments[1], 2, &model) != NET_OK)
        return 101;
    const net_tensor *in = net_inputs(NULL), *out = net_outputs(NULL);
    /* rows may be less than the table says, columns may not */
    if (net_input_least(0)[0] >= in->shape[0] || net_input_least(0)[1] != in->shape[1] || net_output_least(1) != NULL)
        return 102;
    void *input = malloc(in->bytes), *output = malloc(out->bytes);
    FILE *file = fopen(arguments[2], "rb");
    if (!input || !output || !file || fread(input, 1, in->bytes, file) != in->bytes)
        return 103;
    int64_t shape[2] = {0, in->shape[1]}, result[2];
    const int64_t *shapes[NET_INPUTS] = {shape};
    if (net_run(model, (const void *const *)&input, &output) != NET_NO_EXTENTS || net_output_shape(model, 0, result) != NET_NO_EXTENTS)
        return 104;
    for (int i = 3; i < count; i++) {
        shape[0] = atoi(arguments[i]);
        int status = net_set_extents(model, shapes);
        if (status == NET_BAD_EXTENTS) {
            fprintf(stderr, "%s: %s\n", net_error_string(status), net_message(model));
            if (net_run(model, (const void *const *)&input, &output) != NET_NO_EXTENTS)
                return 105;
            continue;
        }
        /* nothing is needed where there is nothing */
        const void *given = shape[0] == 0 ? NULL : input;
        void *taken = shape[0] == 0 ? NULL : output;
        if (status != NET_OK || *net_message(model) || net_output_shape(model, 0, result) != NET_OK || result[0] != shape[0])
            return 106;
        if (net_run(model, &given, &taken) != NET_OK)
            return 107;
        fwrite(output, sizeof(float), (size_t)(result[0] * result[1]), stdout);
    }
    if (net_set_extents(model, NULL) != NET_BAD_ARGUMENT || net_set_extents(NULL, shapes) != NET_BAD_ARGUMENT)
        return 108;
    net_destroy(model);
    return 0;
}
