/* Kernels for CPUs. */

#ifndef TILESCRIBE_CPU_H
#define TILESCRIBE_CPU_H

#include "deploy.h"

/* The workspace that a kernel wants. */
struct scratch {
    uint64_t shared_bytes, thread_bytes; /* once, and for each thread */
};

/* The kernels, and what they need; written by `tables.rs`. */
struct kernels {
    uint64_t features;
    const char *const *feature; /* LLVM's names */
    void (*const *kernel)(void *const *arguments, void *workspace); /* by task */
    const struct scratch *scratch; /* by task */
};

extern const struct kernels tilescribe_kernels;

#endif
