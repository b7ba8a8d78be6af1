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
    STATUS_NO_EXTENTS = 6,
    STATUS_BAD_EXTENTS = 7,
    STATUS_DRIVER = 1000, /* and what the driver of a GPU returned */
};

struct tensor {
    const char *name;
    const int64_t *shape;
    uint64_t bytes;
    uint32_t rank;
    uint32_t type;
};

/* Where an argument of a call is. Offsets into the arena are from its start, or from a block of it where these move with the extents
 * of a run. */
enum space {
    SPACE_UNUSED = 0, SPACE_INPUT = 1, SPACE_OUTPUT = 2, SPACE_WEIGHTS = 3, SPACE_ARENA = 4, SPACE_BLOCK = 5, SPACE_PARAMETERS = 6,
    SPACE_STATE = 7, SPACE_NEXT_STATE = 8, /* as a run finds it, and as it leaves it */
};

struct argument {
    uint32_t space;
    uint32_t index; /* of the input, output, block or state */
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
    uint64_t count; /* of iterations, at most; 0: a condition or a choice */
    uint64_t condition; /* the argument that holds it, if there is one */
    uint64_t wanted; /* the value at which the calls run */
    uint64_t is_choice; /* whether one of the calls runs, and only that */
    uint64_t ends; /* whether the iterations that are left are without effect once the condition is false */
};

/* Calls, of which some may run at the same time. */
struct range {
    uint64_t first, end;
};

/* Neighbouring ranges of calls, in order, each a strand: none needs anything of another. A region lies in a strand as a whole, or apart. */
struct fork {
    uint64_t first, strands; /* in `strand` */
};

/* What no kernel computes; `graph/library.rs` says what each routine does. */
enum routine_kind {
    ROUTINE_TOP_K = 0, ROUTINE_SCATTER = 1, ROUTINE_APPEND = 2, ROUTINE_NON_ZERO = 3, ROUTINE_UNIQUE = 4,
    ROUTINE_NON_MAX_SUPPRESSION = 5, ROUTINE_COPY = 6, ROUTINE_READ = 7,
};

struct routine {
    uint64_t kind;
    uint64_t sizes; /* how many of the parameters a run says: the first ones */
    int64_t parameter[6]; /* in the order of `routine_numbers` in `tables/mod.rs` */
};

/* ---- Extents that are known when a network runs; `graph/symbol.rs` says what they mean ---- */

/* A formula is computed on a stack, one instruction after the other; what is left is its value. */
struct instruction {
    int64_t operation, operand; /* which one it is says `extents.c` */
};

struct formula {
    uint64_t first, end; /* instructions */
};

struct symbol {
    const char *name;
    int64_t low, high, multiple; /* it is a multiple of the last */
    int64_t input; /* whose extent it is, if it is an input's: else -1 */
    uint64_t axis;
    int64_t state; /* whose rows it counts, if it does: else -1; with neither, it is computed from symbols before */
    int64_t counting; /* what finds it while the network runs: else -1; what is computed is the most of it, then */
    struct formula formula;
};

/* A number that has to be in a range. */
struct number {
    struct formula formula;
    int64_t low, high;
};

struct requirement {
    const char *what;
    struct formula formula; /* has to be at least 0 */
    int64_t counting; /* the last that it depends on; -1: none */
};

/* An intermediate. Blocks are sorted such that each lies above others that come before it. */
struct block {
    uint64_t rank, element_bytes;
    uint64_t first_below, end_below; /* in `below`: those that it must not meet, and lies above of */
};

/* An argument whose offset and step change with the extents. */
struct shift {
    uint64_t argument;
    int64_t base; /* in bytes: where the offset counts from */
    int64_t element_bytes;
};

/* A region of which one call runs. */
struct choice {
    uint64_t region;
    uint64_t first_number; /* of its first call, among those of all */
    uint64_t numbers;
    uint64_t points;
};

/* A call outside of all regions that counts what it finds. */
struct counting {
    uint64_t call;
    uint64_t symbol;
    uint64_t argument; /* that holds the count, in 64 bits */
};

struct extents {
    uint64_t symbols, requirements, blocks, parameters, shifts, choices, countings;
    uint64_t stack; /* numbers that a formula has on its stack at most */
    const struct symbol *symbol;
    const struct requirement *requirement;
    const struct number *input, *output; /* the extents of all inputs, and of all outputs, one after the other */
    const struct number *room; /* of all outputs, what their extents are at most before anything is counted */
    const struct number *state; /* the same of states, as a run finds them */
    const struct number *grown; /* by state: its rows after a run; 0 where it is replaced */
    const int64_t *input_least, *output_least; /* the same at least */
    const struct block *block;
    const struct number *block_extent; /* of all blocks, one after the other */
    const uint64_t *below;
    const struct number *parameter; /* of all calls, one after the other */
    const struct number *count; /* by region; 0: a condition */
    const struct shift *shift;
    const struct number *shift_number; /* offset and step of each, in elements */
    const struct instruction *instruction;
    const struct choice *choice;
    const int64_t *point; /* the numbers of all points of all choices, one after the other */
    const uint64_t *variant; /* by point: which call of the region was made for it */
    const struct counting *counting; /* in the order of their calls */
};

/* What a model keeps from one run to the next. */
struct state {
    struct tensor about; /* that of the input, as a run finds it */
    uint64_t element_bytes;
    int64_t axis; /* along which it grows; -1: it is replaced */
    int64_t capacity; /* rows that there is room for; strides never change */
};

/* An intermediate, and the calls that need it. */
struct life {
    uint64_t block; /* its number in `struct extents`, counted from 1; 0: it stays where it is */
    uint64_t offset, bytes; /* in the arena; of a block a run says both */
    uint64_t first, last;
};

struct network {
    const char *weights_id; /* 64 hexadecimal digits */
    uint64_t weights_bytes;
    uint64_t arena_bytes;
    uint64_t inputs, outputs, calls, arguments, tasks, regions, states, lives, forks;
    const struct tensor *input, *output;
    const struct call *call;
    const struct argument *argument; /* of all calls, one after the other; then the conditions of regions */
    const struct region *region;
    const struct routine *routine;
    const struct extents *extents; /* NULL: all are fixed */
    const struct state *state;
    const struct life *life;
    const struct fork *fork; /* in the order of their calls */
    const struct range *strand;
};

extern const struct network tilescribe_network;

/* Maps the file of weights, read only and shared: it stays in the page cache, once for all processes. */
enum status map_weights(const char *path, const unsigned char **weights);
void unmap_weights(const unsigned char *weights);

/* The weights for one more model of the library: there once for all of them, in large pages, unless `tilescribe_share_weights` said that
 * they are to be a mapping of the file. */
enum status hold_weights(const char *path, const unsigned char **weights);
void release_weights(const unsigned char *weights);

/* Whether there is an array for each tensor that has elements. `bytes` says how large each of them is in this run; NULL: as in the
 * table. */
int all_given(const struct tensor *tensor, const uint64_t *bytes, uint64_t count, const void *const *arrays);

/* What a model knows of the extents that were set, and everything that follows from them. */
struct run_extents {
    int are_set;
    int were_set; /* whether `input` holds extents that fitted, whatever has become of states since then */
    int64_t *input, *output; /* the extents of all, one after the other; of outputs, at most, until everything is counted */
    uint64_t *input_bytes, *output_bytes;
    int64_t *rows; /* by state: how many it has along the axis on which it grows */
    int64_t *state, *grown; /* as in the tables */
    int64_t *value; /* by symbol */
    int64_t *parameter; /* of all calls, one after the other */
    int64_t *count; /* of iterations, by region; of a choice, which of its calls runs */
    int64_t *shift; /* offset and step of each */
    struct argument *argument; /* those of the network, where they are in this run */
    uint64_t *offset, *block_bytes; /* of the blocks in the arena */
    uint64_t arena_bytes;
    int64_t *stack;
    char message[512];
};

/* NULL where there is no memory. */
struct run_extents *new_extents(void);
void free_extents(struct run_extents *extents);

/* Checks the extents of all inputs and computes everything that depends on them; where they are those that are set, it has nothing to
 * do. After a failure none are set, and the message says why. */
enum status compute_extents(struct run_extents *extents, const int64_t *const *shapes, int *changed);

/* The same for a network whose inputs are all fixed; does nothing for others. */
enum status compute_fixed_extents(struct run_extents *extents);

/* Takes what a call has counted, and computes again what depends on it. */
enum status count_results(struct run_extents *extents, uint64_t counting, int64_t found);

/* The same after states have grown, for inputs of the extents that were set last. */
enum status compute_extents_anew(struct run_extents *extents);

/* The extents of an output, if any are set. */
enum status copy_output_shape(const struct run_extents *extents, uint64_t output, int64_t *shape);

/* Says why extents are refused, and returns STATUS_BAD_EXTENTS. */
enum status refuse(struct run_extents *extents, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- States; `state.c` ---- */

/* The states of a model. */
struct held {
    unsigned char *memory[2]; /* one where rows are appended; else what a run reads, and what it writes, in turn */
    uint64_t bytes; /* of either */
    int current;
    int64_t *shape; /* as the next run finds it */
};

struct states {
    struct held *held;
    int are_fresh; /* nothing but zeros and no rows: they take any extents */
};

/* NULL where there is no memory. */
struct states *new_states(void);
void free_states(struct states *states);

/* Makes the states ready for runs of extents that were computed; NULL: all are fixed. */
enum status fit_states(struct states *states, struct run_extents *extents);

/* Where an argument in a state is. */
unsigned char *state_memory(const struct states *states, const struct argument *argument);

/* What a run has left is what the next one finds. */
void advance_states(struct states *states, struct run_extents *extents);

void reset_states(struct states *states, struct run_extents *extents);
enum status rewind_states(struct states *states, struct run_extents *extents, int64_t rows);
enum status read_state(const struct states *states, uint64_t number, void *data);
enum status write_state(struct states *states, struct run_extents *extents, uint64_t number, const int64_t *shape, const void *data);

/* Runs a routine on its inputs, then outputs; `sizes` are those that a run says. */
void tilescribe_library(const struct routine *routine, void *const *arguments, const int64_t *sizes);

/* Fresh pages, which cost nothing until they are written; NULL where there are none. Large ones, where the kernel has some, for what is
 * written whole. */
unsigned char *map_pages(uint64_t bytes, int flags);
unsigned char *map_large_pages(uint64_t bytes);
void unmap_pages(unsigned char *pages, uint64_t bytes);

/* Fills what of an arena holds no intermediate that this call needs with a pattern; `extents` are those of the run, or NULL. */
void poison_arena(const struct run_extents *extents, unsigned char *arena, uint64_t arena_bytes, uint64_t call);

/* Takes bytes out of all caches, so that they are read from memory next; whether the machine can. */
int flush_from_caches(const unsigned char *from, uint64_t bytes);

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

/* What libraries for CPUs export: runs add the time of each call to an array, or write what every thread does, until the array is NULL;
 * whether weights that are loaded from now on are a mapping of their file; whether runs poison what of the arena is free; whether they
 * time each call by itself, its weights in memory; and whether strands run one after the other. */
int tilescribe_profile(struct model *model, uint64_t *nanoseconds);
struct tilescribe_event;
int tilescribe_trace(struct model *model, struct tilescribe_event *events, uint64_t room, uint64_t *written);
int tilescribe_share_weights(int share);
int tilescribe_poison(struct model *model, int poison);
int tilescribe_time_cold(struct model *model, int cold);
int tilescribe_take_turns(struct model *model, int turns);

/* And threads: whose threads run the loops of a model, the library's own as others take them, their end, and whether each stays on
 * a processor of its own; `runtime.h` has the type. */
typedef void (*tilescribe_pool)(void (*body)(void *context, int64_t begin, int64_t end, int64_t thread), void *context, int64_t count,
                                int64_t threads);
int tilescribe_share_threads(struct model *model, tilescribe_pool pool);
tilescribe_pool tilescribe_own_threads(void);
int tilescribe_end_threads(void);
int tilescribe_pin_threads(int pin);

/* What libraries of networks export whose extents are not all fixed. */
int tilescribe_set_extents(struct model *model, const int64_t *const *shapes);
int tilescribe_output_shape(struct model *model, size_t number, int64_t *shape);
const char *tilescribe_message(struct model *model);
const int64_t *tilescribe_input_least(size_t number);
const int64_t *tilescribe_output_least(size_t number);

/* What libraries of networks export that keep states. */
const struct tensor *tilescribe_state(size_t number);
int tilescribe_reset(struct model *model);
int tilescribe_rewind(struct model *model, int64_t rows);
int tilescribe_state_shape(struct model *model, size_t number, int64_t *shape);
int tilescribe_get_state(struct model *model, size_t number, void *data);
int tilescribe_set_state(struct model *model, size_t number, const int64_t *shape, const void *data);

#endif
