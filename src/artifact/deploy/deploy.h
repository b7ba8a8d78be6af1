/* A deployed network beside its kernels: the functions that its header declares, and the tables that they read.
 *
 * The network itself is data, written by `tables.rs`: which kernels to call, and where their arguments are. The names of the
 * functions are hidden in the shared object; it exports them under the network's own name. */

#ifndef TILESCRIBE_DEPLOY_H
#define TILESCRIBE_DEPLOY_H

#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>

/* As in the header that `header.rs` writes. */
enum status {
    STATUS_OK = 0,
    STATUS_UNSUPPORTED_MACHINE = 1,
    STATUS_CANNOT_READ_WEIGHTS = 2,
    STATUS_FOREIGN_WEIGHTS = 3,
    STATUS_OUT_OF_MEMORY = 4,
    STATUS_BAD_ARGUMENT = 5,
    STATUS_DRIVER = 1000, /* and what the driver of a GPU returned */
};

struct tensor {
    const char *name;
    const int64_t *shape;
    uint64_t bytes;
    uint32_t rank;
    uint32_t type;
};

/* Where an argument of a call is. */
enum space { SPACE_UNUSED = 0, SPACE_INPUT = 1, SPACE_OUTPUT = 2, SPACE_WEIGHTS = 3, SPACE_ARENA = 4 };

struct argument {
    uint32_t space;
    uint32_t index; /* of the input or output */
    uint64_t offset; /* in bytes */
    /* In each iteration of the repetition around it an argument is `step` bytes further, from the place of iteration `phase`; after
     * `period` iterations, if that is not 0, it is where it was. */
    int64_t step;
    uint64_t period, phase;
};

struct call {
    uint64_t task;
    uint64_t arguments; /* their number */
    uint64_t first; /* the first of them */
    uint64_t moving; /* whether any of them moves */
    uint64_t routine; /* 0: the task's kernel; else the routine with the number before */
};

/* Calls that run again and again, or under a condition; regions lie apart or inside of one another, outer ones first. */
struct region {
    uint64_t first, end; /* calls */
    uint64_t count; /* of iterations; 0: a condition */
    uint64_t condition; /* the argument that holds it */
    uint64_t wanted; /* the value at which the calls run */
};

/* What no kernel computes; `graph/library.rs` says what each routine does. */
enum routine_kind { ROUTINE_TOP_K = 0, ROUTINE_SCATTER = 1 };

struct routine {
    uint64_t kind;
    int64_t parameter[6]; /* in the order of `routine_numbers` in `tables/mod.rs` */
};

struct network {
    const char *weights_id; /* 64 hexadecimal digits */
    uint64_t weights_bytes;
    uint64_t arena_bytes;
    uint64_t inputs, outputs, calls, arguments, tasks, regions;
    const struct tensor *input, *output;
    const struct call *call;
    const struct argument *argument; /* of all calls, one after the other; then the conditions of regions */
    const struct region *region;
    const struct routine *routine;
};

extern const struct network tilescribe_network;

/* Maps the weights, read only and shared: they stay in the page cache, once for all processes. */
enum status map_weights(const char *path, const unsigned char **weights);
void unmap_weights(const unsigned char *weights);

/* Whether there is an array for each tensor that has elements. */
int all_given(const struct tensor *tensor, uint64_t count, const void *const *arrays);

/* Runs a routine on its inputs, then outputs. */
void tilescribe_library(const struct routine *routine, void *const *arguments);

/* What a status means that is not a back end's own. */
const char *common_error_string(int status);

/* What every library exports; `place` is a number of threads, or that of a GPU. */
struct model;
int tilescribe_create(const char *weights, int place, struct model **model);
int tilescribe_run(struct model *model, const void *const *inputs, void *const *outputs);
void tilescribe_destroy(struct model *model);
const struct tensor *tilescribe_inputs(size_t *count);
const struct tensor *tilescribe_outputs(size_t *count);
const char *tilescribe_missing_feature(void);
const char *tilescribe_error_string(int status);

#endif
