/* Extents that are known when a network runs: what follows from those of its inputs, and whether they are admissible.
 *
 * The rules are those of `Symbols::values` in `graph/symbol.rs`, and so are the words of the messages. */

#include "deploy.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Blocks start at multiples of this many bytes, as in `memory.rs`. */
static const uint64_t ALIGNMENT = 64;

/* ---- Formulas ---- */

/* As `tables/extents.rs` numbers them. */
enum operation {
    PUSH_CONSTANT = 0, PUSH_SYMBOL = 1,
    FLOOR_DIVIDE = 2, MODULO = 3, SCALE = 4, /* the top, by the operand */
    ADD = 5, MULTIPLY = 6, QUOTIENT = 7, MINIMUM = 8, MAXIMUM = 9, /* the two on top */
};

static int64_t floor_quotient(int64_t x, int64_t y)
{
    return x / y - (x % y < 0);
}

/* Applies an operation to two numbers; returns 0 where the result has no value, or one that leaves 64 bits. */
static int combine(enum operation operation, int64_t x, int64_t y, int64_t *result)
{
    switch (operation) {
    case ADD: return !__builtin_add_overflow(x, y, result);
    case SCALE: case MULTIPLY: return !__builtin_mul_overflow(x, y, result);
    case MINIMUM: *result = x < y ? x : y; return 1;
    case MAXIMUM: *result = x > y ? x : y; return 1;
    case FLOOR_DIVIDE: case QUOTIENT: case MODULO: break;
    case PUSH_CONSTANT: case PUSH_SYMBOL: return 0;
    }
    if (y <= 0)
        return 0;
    int64_t quotient = floor_quotient(x, y);
    *result = operation == MODULO ? x - quotient * y : quotient;
    return 1;
}

/* Computes a formula; returns 0 where it has no value. */
static int evaluate(const struct run_extents *extents, struct formula formula, int64_t *result)
{
    int64_t *top = extents->stack; /* behind the last number */
    for (uint64_t i = formula.first; i < formula.end; i++) {
        struct instruction own = tilescribe_network.extents->instruction[i];
        switch ((enum operation)own.operation) {
        case PUSH_CONSTANT: *top++ = own.operand; break;
        case PUSH_SYMBOL: *top++ = extents->value[own.operand]; break;
        case FLOOR_DIVIDE: case MODULO: case SCALE:
            if (!combine((enum operation)own.operation, top[-1], own.operand, &top[-1]))
                return 0;
            break;
        case ADD: case MULTIPLY: case QUOTIENT: case MINIMUM: case MAXIMUM:
            if (!combine((enum operation)own.operation, top[-2], top[-1], &top[-2]))
                return 0;
            top--;
            break;
        }
    }
    *result = top[-1];
    return 1;
}

/* ---- Checks ---- */

enum status refuse(struct run_extents *extents, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(extents->message, sizeof extents->message, format, arguments);
    va_end(arguments);
    return STATUS_BAD_EXTENTS;
}

static enum status refuse_symbol(struct run_extents *extents, const struct symbol *symbol, int64_t value)
{
    long long found = value, low = symbol->low, high = symbol->high;
    char steps[48] = "";
    if (symbol->multiple != 1)
        snprintf(steps, sizeof steps, " in steps of %lld", (long long)symbol->multiple);
    if (symbol->input >= 0)
        return refuse(extents, "axis %llu of input %s, %s, is %lld; the network takes %lld to %lld%s", (unsigned long long)symbol->axis,
                      tilescribe_network.input[symbol->input].name, symbol->name, found, low, high, steps);
    return refuse(extents, "%s is %lld; the network takes %lld to %lld%s", symbol->name, found, low, high, steps);
}

static enum status set_symbol(struct run_extents *extents, uint64_t number, int64_t value)
{
    const struct symbol *symbol = &tilescribe_network.extents->symbol[number];
    if (value < symbol->low || value > symbol->high || value % symbol->multiple != 0)
        return refuse_symbol(extents, symbol, value);
    extents->value[number] = value;
    return STATUS_OK;
}

static enum status compute_symbols(struct run_extents *extents, const int64_t *const *shapes)
{
    for (uint64_t i = 0; i < tilescribe_network.extents->symbols; i++) {
        const struct symbol *symbol = &tilescribe_network.extents->symbol[i];
        int64_t value = -1;
        if (symbol->input >= 0)
            value = shapes[symbol->input][symbol->axis];
        else if (symbol->state >= 0)
            value = extents->rows[symbol->state];
        else if (!evaluate(extents, symbol->formula, &value))
            value = -1;
        enum status status = set_symbol(extents, i, value);
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

/* Computes symbols again that depend on what was counted last; what was counted before stays. */
static enum status compute_symbols_again(struct run_extents *extents, int64_t counting)
{
    enum status status = STATUS_OK;
    for (uint64_t i = 0; status == STATUS_OK && i < tilescribe_network.extents->symbols; i++) {
        const struct symbol *symbol = &tilescribe_network.extents->symbol[i];
        int is_counted = symbol->counting >= 0 && symbol->counting <= counting;
        int64_t value = -1;
        if (symbol->input < 0 && symbol->state < 0 && !is_counted)
            status = set_symbol(extents, i, evaluate(extents, symbol->formula, &value) ? value : -1);
    }
    return status;
}

static enum status check_inputs(struct run_extents *extents, const int64_t *const *shapes)
{
    uint64_t at = 0;
    for (uint64_t i = 0; i < tilescribe_network.inputs; i++) {
        const struct tensor *input = &tilescribe_network.input[i];
        for (uint32_t axis = 0; axis < input->rank; axis++, at++) {
            int64_t expected = -1;
            if (!evaluate(extents, tilescribe_network.extents->input[at].formula, &expected) || expected != shapes[i][axis])
                return refuse(extents, "axis %u of input %s is %lld; it has to be %lld", axis, input->name, (long long)shapes[i][axis],
                              (long long)expected);
            extents->input[at] = expected;
        }
    }
    return STATUS_OK;
}

/* Checks what is known since a result was counted; -1: since extents are set. */
static enum status check_requirements(struct run_extents *extents, int64_t counting)
{
    for (uint64_t i = 0; i < tilescribe_network.extents->requirements; i++) {
        const struct requirement *requirement = &tilescribe_network.extents->requirement[i];
        int64_t value = -1;
        if (requirement->counting != counting)
            continue;
        if (!evaluate(extents, requirement->formula, &value) || value < 0)
            return refuse(extents, "the extents do not fit together: %s", requirement->what);
    }
    return STATUS_OK;
}

/* Computes numbers that kernels and memory were made for, within these ranges. */
static enum status compute_numbers(struct run_extents *extents, const struct number *number, uint64_t count, const char *what, int64_t *value)
{
    for (uint64_t i = 0; i < count; i++)
        if (!evaluate(extents, number[i].formula, &value[i]) || value[i] < number[i].low || value[i] > number[i].high)
            return refuse(extents, "the extents do not fit together: %s is out of %lld to %lld", what, (long long)number[i].low,
                          (long long)number[i].high);
    return STATUS_OK;
}

/* How far numbers are from a point: their ratios multiplied, whichever way they are greater than 1. */
static double distance(const int64_t *number, const int64_t *point, uint64_t numbers)
{
    double apart = 1;
    for (uint64_t i = 0; i < numbers; i++) {
        double x = number[i] > 1 ? (double)number[i] : 1, y = point[i] > 1 ? (double)point[i] : 1;
        apart *= x > y ? x / y : y / x;
    }
    return apart;
}

/* Takes the calls that were made for the nearest extents; see `RegionKind::Nearest` in `graph/mod.rs`. */
static void compute_choices(struct run_extents *extents)
{
    const struct extents *table = tilescribe_network.extents;
    const int64_t *point = table->point;
    const uint64_t *variant = table->variant;
    for (uint64_t i = 0; i < table->choices; i++) {
        const struct choice *choice = &table->choice[i];
        double least = 0;
        for (uint64_t j = 0; j < choice->points; j++, variant++, point += choice->numbers) {
            double apart = distance(extents->parameter + choice->first_number, point, choice->numbers);
            if (j == 0 || apart < least) {
                least = apart;
                extents->count[choice->region] = (int64_t)*variant;
            }
        }
    }
}

/* ---- Sizes ---- */

/* Multiplies; what cannot be represented stays at the greatest number. */
static uint64_t times(uint64_t x, uint64_t y)
{
    uint64_t product;
    return __builtin_mul_overflow(x, y, &product) ? UINT64_MAX : product;
}

/* An array has less than half of the address space. */
static int is_too_large(uint64_t bytes)
{
    return bytes > INT64_MAX;
}

static enum status compute_bytes(struct run_extents *extents, const struct tensor *tensor, uint64_t count, const int64_t *extent, uint64_t *bytes)
{
    for (uint64_t i = 0; i < count; i++) {
        uint64_t elements = 1;
        uint64_t most = 1;
        for (uint32_t axis = 0; axis < tensor[i].rank; axis++, extent++) {
            elements = times(elements, (uint64_t)*extent);
            most = times(most, (uint64_t)tensor[i].shape[axis]);
        }
        bytes[i] = most == 0 ? 0 : times(elements, tensor[i].bytes / most);
        if (is_too_large(bytes[i]))
            return refuse(extents, "%s would be too large", tensor[i].name);
    }
    return STATUS_OK;
}

/* Puts each block above all that it must not meet: no two of them share bytes, however large they are. */
static enum status place_blocks(struct run_extents *extents, int64_t *extent)
{
    const struct extents *table = tilescribe_network.extents;
    uint64_t *bytes = extents->block_bytes;
    const struct number *number = table->block_extent;
    extents->arena_bytes = 0;
    for (uint64_t i = 0; i < table->blocks; i++) {
        const struct block *block = &table->block[i];
        enum status status = compute_numbers(extents, number, block->rank, "an intermediate's extent", extent);
        if (status != STATUS_OK)
            return status;
        number += block->rank;
        bytes[i] = block->element_bytes;
        for (uint64_t axis = 0; axis < block->rank; axis++)
            bytes[i] = times(bytes[i], (uint64_t)extent[axis]);
        uint64_t offset = 0;
        for (uint64_t j = block->first_below; j < block->end_below; j++) {
            uint64_t other = table->below[j], end = extents->offset[other] + bytes[other];
            offset = end > offset ? end : offset;
        }
        offset = (offset + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        if (is_too_large(bytes[i]) || is_too_large(offset + bytes[i]))
            return refuse(extents, "intermediates would be too large");
        extents->offset[i] = offset;
        if (offset + bytes[i] > extents->arena_bytes)
            extents->arena_bytes = offset + bytes[i];
    }
    return STATUS_OK;
}

static uint64_t ranks(const struct tensor *tensor, uint64_t count)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < count; i++)
        sum += tensor[i].rank;
    return sum;
}

static uint64_t ranks_of_states(void)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < tilescribe_network.states; i++)
        sum += tilescribe_network.state[i].about.rank;
    return sum;
}

/* Moves arguments to where they are in this run. */
static enum status compute_shifts(struct run_extents *extents)
{
    const struct extents *table = tilescribe_network.extents;
    enum status status = compute_numbers(extents, table->shift_number, 2 * table->shifts, "a part of a tensor", extents->shift);
    for (uint64_t i = 0; status == STATUS_OK && i < table->shifts; i++) {
        const struct shift *shift = &table->shift[i];
        struct argument *argument = &extents->argument[shift->argument];
        /* no larger than planned, so it fits */
        argument->offset = (uint64_t)(shift->base + extents->shift[2 * i] * shift->element_bytes);
        argument->step = extents->shift[2 * i + 1] * shift->element_bytes;
    }
    return status;
}

static enum status compute_blocks(struct run_extents *extents)
{
    const struct extents *table = tilescribe_network.extents;
    uint64_t most = 0;
    for (uint64_t i = 0; i < table->blocks; i++)
        if (table->block[i].rank > most)
            most = table->block[i].rank;
    int64_t *extent = calloc(most + 1, sizeof *extent);
    enum status status = extent != NULL ? place_blocks(extents, extent) : STATUS_OUT_OF_MEMORY;
    free(extent);
    return status;
}

/* ---- All together ---- */

static int is_set(const struct run_extents *extents, const int64_t *const *shapes)
{
    const int64_t *extent = extents->input;
    for (uint64_t i = 0; i < tilescribe_network.inputs; i++)
        for (uint32_t axis = 0; axis < tilescribe_network.input[i].rank; axis++)
            if (*extent++ != shapes[i][axis])
                return 0;
    return extents->are_set;
}

static int shapes_are_given(const int64_t *const *shapes)
{
    for (uint64_t i = 0; i < tilescribe_network.inputs; i++)
        if (tilescribe_network.input[i].rank > 0 && (shapes == NULL || shapes[i] == NULL))
            return 0;
    return 1;
}

/* Computes what calls are given, and where they find it. */
static enum status compute_calls(struct run_extents *extents)
{
    const struct network *network = &tilescribe_network;
    const struct extents *table = network->extents;
    enum status status = compute_numbers(extents, table->parameter, table->parameters, "a kernel's number", extents->parameter);
    if (status == STATUS_OK)
        status = compute_numbers(extents, table->count, network->regions, "a number of iterations", extents->count);
    if (status == STATUS_OK)
        compute_choices(extents);
    return status == STATUS_OK ? compute_shifts(extents) : status;
}

static enum status compute_outputs(struct run_extents *extents, const struct number *number)
{
    uint64_t count = ranks(tilescribe_network.output, tilescribe_network.outputs);
    return compute_numbers(extents, number, count, "an output's extent", extents->output);
}

/* Computes everything that depends on the extents of inputs and on the rows of states. */
static enum status compute_all(struct run_extents *extents, const int64_t *const *shapes)
{
    const struct network *network = &tilescribe_network;
    const struct extents *table = network->extents;
    extents->are_set = 0;
    extents->message[0] = 0;
    enum status status = compute_symbols(extents, shapes);
    if (status == STATUS_OK)
        status = check_inputs(extents, shapes);
    if (status == STATUS_OK)
        status = check_requirements(extents, -1);
    if (status == STATUS_OK)
        status = compute_outputs(extents, table->room);
    if (status == STATUS_OK)
        status = compute_numbers(extents, table->state, ranks_of_states(), "a state's extent", extents->state);
    if (status == STATUS_OK)
        status = compute_numbers(extents, table->grown, network->states, "a state's number of rows", extents->grown);
    if (status == STATUS_OK)
        status = compute_calls(extents);
    if (status == STATUS_OK)
        status = compute_bytes(extents, network->input, network->inputs, extents->input, extents->input_bytes);
    if (status == STATUS_OK)
        status = compute_bytes(extents, network->output, network->outputs, extents->output, extents->output_bytes);
    if (status == STATUS_OK)
        status = compute_blocks(extents);
    extents->are_set = status == STATUS_OK;
    return status;
}

enum status compute_extents(struct run_extents *extents, const int64_t *const *shapes, int *changed)
{
    *changed = 0;
    if (!shapes_are_given(shapes)) {
        extents->are_set = 0;
        return STATUS_BAD_ARGUMENT;
    }
    /* outputs are as large as they can be again before anything is counted */
    if (tilescribe_network.extents->countings == 0 && is_set(extents, shapes))
        return STATUS_OK;
    enum status status = compute_all(extents, shapes);
    *changed = extents->were_set = status == STATUS_OK;
    return status;
}

enum status compute_fixed_extents(struct run_extents *extents)
{
    const struct network *network = &tilescribe_network;
    for (uint64_t i = 0; i < network->extents->symbols; i++)
        if (network->extents->symbol[i].input >= 0)
            return STATUS_OK;
    const int64_t **shapes = calloc(network->inputs + 1, sizeof *shapes);
    if (shapes == NULL)
        return STATUS_OUT_OF_MEMORY;
    for (uint64_t i = 0; i < network->inputs; i++)
        shapes[i] = network->input[i].shape;
    enum status status = compute_all(extents, shapes);
    extents->were_set = status == STATUS_OK;
    free(shapes);
    return status;
}

enum status count_results(struct run_extents *extents, uint64_t counting, int64_t found)
{
    const struct network *network = &tilescribe_network;
    const struct extents *table = network->extents;
    enum status status = set_symbol(extents, table->counting[counting].symbol, found);
    if (status == STATUS_OK)
        status = compute_symbols_again(extents, (int64_t)counting);
    if (status == STATUS_OK)
        status = check_requirements(extents, (int64_t)counting);
    if (status == STATUS_OK)
        status = compute_outputs(extents, counting + 1 == table->countings ? table->output : table->room);
    if (status == STATUS_OK)
        status = compute_numbers(extents, table->grown, network->states, "a state's number of rows", extents->grown);
    return status == STATUS_OK ? compute_calls(extents) : status;
}

enum status compute_extents_anew(struct run_extents *extents)
{
    if (!extents->were_set)
        return STATUS_NO_EXTENTS;
    const int64_t **shapes = calloc(tilescribe_network.inputs + 1, sizeof *shapes);
    if (shapes == NULL)
        return STATUS_OUT_OF_MEMORY;
    const int64_t *extent = extents->input;
    for (uint64_t i = 0; i < tilescribe_network.inputs; i++) {
        shapes[i] = extent;
        extent += tilescribe_network.input[i].rank;
    }
    enum status status = compute_all(extents, shapes);
    free(shapes);
    return status;
}

enum status copy_output_shape(const struct run_extents *extents, uint64_t output, int64_t *shape)
{
    if (!extents->are_set)
        return STATUS_NO_EXTENTS;
    const int64_t *extent = extents->output + ranks(tilescribe_network.output, output);
    for (uint32_t axis = 0; axis < tilescribe_network.output[output].rank; axis++)
        shape[axis] = extent[axis];
    return STATUS_OK;
}

struct run_extents *new_extents(void)
{
    const struct network *network = &tilescribe_network;
    const struct extents *table = network->extents;
    struct run_extents *extents = calloc(1, sizeof *extents);
    if (extents == NULL)
        return NULL;
    extents->input = calloc(ranks(network->input, network->inputs) + 1, sizeof *extents->input);
    extents->output = calloc(ranks(network->output, network->outputs) + 1, sizeof *extents->output);
    extents->input_bytes = calloc(network->inputs + 1, sizeof *extents->input_bytes);
    extents->output_bytes = calloc(network->outputs + 1, sizeof *extents->output_bytes);
    extents->rows = calloc(network->states + 1, sizeof *extents->rows);
    extents->state = calloc(ranks_of_states() + 1, sizeof *extents->state);
    extents->grown = calloc(network->states + 1, sizeof *extents->grown);
    extents->value = calloc(table->symbols + 1, sizeof *extents->value);
    extents->parameter = calloc(table->parameters + 1, sizeof *extents->parameter);
    extents->offset = calloc(table->blocks + 1, sizeof *extents->offset);
    extents->block_bytes = calloc(table->blocks + 1, sizeof *extents->block_bytes);
    extents->stack = calloc(table->stack + 1, sizeof *extents->stack);
    extents->count = calloc(network->regions + 1, sizeof *extents->count);
    extents->shift = calloc(2 * table->shifts + 1, sizeof *extents->shift);
    extents->argument = calloc(network->arguments + 1, sizeof *extents->argument);
    if (extents->argument != NULL)
        memcpy(extents->argument, network->argument, network->arguments * sizeof *extents->argument);
    if (extents->input && extents->output && extents->input_bytes && extents->output_bytes && extents->rows && extents->state &&
        extents->grown && extents->value && extents->parameter && extents->offset && extents->block_bytes && extents->stack &&
        extents->count && extents->shift && extents->argument)
        return extents;
    free_extents(extents);
    return NULL;
}

void free_extents(struct run_extents *extents)
{
    if (extents == NULL)
        return;
    free(extents->input);
    free(extents->output);
    free(extents->input_bytes);
    free(extents->output_bytes);
    free(extents->rows);
    free(extents->state);
    free(extents->grown);
    free(extents->value);
    free(extents->parameter);
    free(extents->offset);
    free(extents->block_bytes);
    free(extents->stack);
    free(extents->count);
    free(extents->shift);
    free(extents->argument);
    free(extents);
}

const int64_t *tilescribe_input_least(size_t number)
{
    const struct extents *table = tilescribe_network.extents;
    if (table == NULL || number >= tilescribe_network.inputs)
        return NULL;
    return table->input_least + ranks(tilescribe_network.input, number);
}

const int64_t *tilescribe_output_least(size_t number)
{
    const struct extents *table = tilescribe_network.extents;
    if (table == NULL || number >= tilescribe_network.outputs)
        return NULL;
    return table->output_least + ranks(tilescribe_network.output, number);
}
