/* Constants where a network finds them that is larger than the caches: in memory. So a call can be timed by itself as it runs among the
 * others, which have taken its constants' place in the caches by the time that it is its turn again. */

#include "deploy.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

/* The shortest line of any cache there is. */
enum { LINE = 64 };

int flush_from_caches(const unsigned char *from, uint64_t bytes)
{
#if defined(__x86_64__)
    const unsigned char *line = from - (uintptr_t)from % LINE;
    for (; line < from + bytes; line += LINE)
        _mm_clflush(line);
    _mm_mfence();
    return 1;
#else
    (void)from, (void)bytes;
    return 0;
#endif
}
