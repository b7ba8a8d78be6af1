/* What deployed networks do alike on all machines. */

#include "deploy.h"

int all_given(const struct tensor *tensor, const uint64_t *bytes, uint64_t count, const void *const *arrays)
{
    if (arrays == NULL)
        return count == 0;
    for (uint64_t i = 0; i < count; i++)
        if (arrays[i] == NULL && (bytes == NULL ? tensor[i].bytes : bytes[i]) > 0)
            return 0;
    return 1;
}

const struct tensor *tilescribe_inputs(size_t *count)
{
    if (count != NULL)
        *count = tilescribe_network.inputs;
    return tilescribe_network.input;
}

const struct tensor *tilescribe_outputs(size_t *count)
{
    if (count != NULL)
        *count = tilescribe_network.outputs;
    return tilescribe_network.output;
}

const char *common_error_string(int status)
{
    switch (status) {
    case STATUS_OK: return "success";
    case STATUS_CANNOT_READ_WEIGHTS: return "the weights file cannot be read";
    case STATUS_FOREIGN_WEIGHTS: return "the weights file does not belong to this library";
    case STATUS_OUT_OF_MEMORY: return "out of memory";
    case STATUS_BAD_ARGUMENT: return "an argument is missing or out of range";
    case STATUS_NO_EXTENTS: return "the extents of the inputs are not set";
    case STATUS_BAD_EXTENTS: return "the network does not take inputs of these extents";
    default: return "unknown status";
    }
}
