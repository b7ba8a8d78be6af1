/* Kernels for CPUs. */

#ifndef TILESCRIBE_CPU_H
#define TILESCRIBE_CPU_H

#include "deploy.h"

/* The kernels, and what they need; written by `tables.rs`. */
struct kernels {
    uint64_t workspace_bytes; /* the most that a kernel wants, for all its threads */
    uint64_t features;
    const char *const *feature; /* LLVM's names */
    void (*const *kernel)(void *const *arguments, void *workspace); /* by task */
};

extern const struct kernels tilescribe_kernels;

#endif
