/* Whether every call finds what it reads: memory that the plan takes to be free is filled, so that what a call should not have read shows
 * in its outputs. */

#include "deploy.h"

#include <string.h>

/* A NaN as a float of any width, and -1 or the greatest number as an integer. */
enum { PATTERN = 0xff };

void poison_arena(const struct run_extents *extents, unsigned char *arena, uint64_t arena_bytes, uint64_t call)
{
    const struct network *network = &tilescribe_network;
    for (uint64_t at = 0, end; at < arena_bytes; at = end) {
        int is_free = 1;
        end = arena_bytes;
        for (uint64_t i = 0; i < network->lives; i++) {
            const struct life *life = &network->life[i];
            if (call < life->first || call > life->last)
                continue;
            int is_block = life->block != 0 && extents != NULL;
            uint64_t start = is_block ? extents->offset[life->block - 1] : life->offset;
            uint64_t behind = start + (is_block ? extents->block_bytes[life->block - 1] : life->bytes);
            if (start <= at && at < behind) {
                is_free = 0;
                end = behind;
                break;
            }
            if (start > at && start < end)
                end = start;
        }
        if (is_free)
            memset(arena + at, PATTERN, end - at);
    }
}
