/* Runs a network that keeps a state [batch, past, 4], and looks at it from outside. */
#include <stdlib.h>
#include <string.h>

#include "net.h"

int main(int count, char **arguments)
{
    net_model *model;
    if (count != 2 || net_create(arguments[1], 1, &model) != NET_OK)
        return 100;
    if (NET_STATES != 1 || net_state(0) == NULL || net_state(1) != NULL || strcmp(net_state(0)->name, "past") != 0)
        return 101;
    float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, state[12] = {0};
    int64_t own[3] = {1, 2, 4}, shape[3] = {0};
    const int64_t *shapes[NET_INPUTS] = {own};
    const void *input = x;
    if (net_set_extents(model, shapes) != NET_OK)
        return 102;
    int64_t result[4];
    if (net_outputs(NULL)->rank > 4 || net_output_shape(model, 0, result) != NET_OK)
        return 103;
    void *output = calloc(1 << 16, 1);
    if (net_run(model, &input, &output) != NET_OK || net_state_shape(model, 0, shape) != NET_OK)
        return 104;
    if (shape[0] != 1 || shape[1] != 2 || shape[2] != 4 || net_get_state(model, 0, state) != NET_OK || memcmp(state, x, sizeof x) != 0)
        return 105;
    /* once more at the same extents, then back by a row */
    if (net_run(model, &input, &output) != NET_OK || net_rewind(model, 3) != NET_OK || net_rewind(model, 4) != NET_BAD_ARGUMENT)
        return 106;
    if (net_get_state(model, 0, state) != NET_OK || memcmp(state, x, sizeof x) != 0 || memcmp(state + 8, x, 4 * sizeof *x) != 0)
        return 107;
    if (net_reset(model) != NET_OK || net_state_shape(model, 0, shape) != NET_OK || shape[1] != 0)
        return 108;
    int64_t given[3] = {1, 2, 4};
    if (net_set_state(model, 0, given, x) != NET_OK || net_set_state(model, 0, given, NULL) != NET_BAD_ARGUMENT)
        return 109;
    if (net_set_state(model, 1, given, x) != NET_BAD_ARGUMENT || net_reset(NULL) != NET_BAD_ARGUMENT)
        return 110;
    if (net_run(model, &input, &output) != NET_OK || net_state_shape(model, 0, shape) != NET_OK || shape[1] != 4)
        return 111;
    free(output);
    net_destroy(model);
    return 0;
}
