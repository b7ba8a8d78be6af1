/* What deployed networks do alike on all machines. */

#include "deploy.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum status map_weights(const char *path, const unsigned char **weights)
{
    static const char prefix[] = "{\"__metadata__\":{\"id\":\"";
    uint64_t bytes = tilescribe_network.weights_bytes;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return STATUS_CANNOT_READ_WEIGHTS;
    struct stat about;
    void *mapped = MAP_FAILED;
    int known_size = fstat(file, &about) == 0;
    if (known_size && (uint64_t)about.st_size == bytes)
        mapped = mmap(NULL, bytes, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (!known_size)
        return STATUS_CANNOT_READ_WEIGHTS;
    if ((uint64_t)about.st_size != bytes)
        return STATUS_FOREIGN_WEIGHTS;
    if (mapped == MAP_FAILED)
        return STATUS_OUT_OF_MEMORY;
    const char *id = (const char *)mapped + 8 + sizeof prefix - 1;
    /* no weights file is shorter than this: the sizes agree, and ours holds an id */
    if (memcmp((const char *)mapped + 8, prefix, sizeof prefix - 1) != 0 || memcmp(id, tilescribe_network.weights_id, 64) != 0) {
        munmap(mapped, bytes);
        return STATUS_FOREIGN_WEIGHTS;
    }
    *weights = mapped;
    return STATUS_OK;
}

void unmap_weights(const unsigned char *weights)
{
    if (weights != NULL)
        munmap((void *)weights, tilescribe_network.weights_bytes);
}

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
