/* The run-time library: what no loop nest computes well, because it sorts, or stores at places that depend on data,
 * or that go on from run to run.
 *
 * `graph/library.rs` says what each routine does, and is what it is compared with. */

#include "deploy.h"

#include <string.h>

/* As `workload/dtype.rs` numbers them. */
enum type {
    TYPE_F32 = 0, TYPE_F16 = 1, TYPE_BF16 = 2, TYPE_I8 = 3, TYPE_U8 = 4, TYPE_I32 = 5, TYPE_I64 = 6, TYPE_BOOL = 7,
    TYPE_I16 = 8, TYPE_U16 = 9, TYPE_U32 = 10, TYPE_U64 = 11, TYPE_F64 = 12,
};

/* ---- The greatest or least ---- */

/* A number whose order is that of the floats with these bits: a NaN is above all of them, and both zeros are one. */
static int64_t order_of_float(uint64_t bits, uint64_t sign, uint64_t infinity)
{
    uint64_t size = bits & (sign - 1);
    if (size > infinity)
        return INT64_MAX;
    return bits & sign ? -(int64_t)size : (int64_t)size;
}

/* A number whose order is that of the elements of a type. */
static int64_t key(const void *data, int64_t at, enum type type)
{
    switch (type) {
    case TYPE_F32: return order_of_float(((const uint32_t *)data)[at], 0x80000000u, 0x7f800000u);
    case TYPE_F16: return order_of_float(((const uint16_t *)data)[at], 0x8000u, 0x7c00u);
    case TYPE_BF16: return order_of_float(((const uint16_t *)data)[at], 0x8000u, 0x7f80u);
    case TYPE_I8: return ((const int8_t *)data)[at];
    case TYPE_I32: return ((const int32_t *)data)[at];
    case TYPE_I64: return ((const int64_t *)data)[at];
    case TYPE_I16: return ((const int16_t *)data)[at];
    case TYPE_U16: return ((const uint16_t *)data)[at];
    case TYPE_U32: return ((const uint32_t *)data)[at];
    case TYPE_U64: return (int64_t)(((const uint64_t *)data)[at] ^ 1ull << 63); /* 0 becomes the least */
    case TYPE_F64: return order_of_float(((const uint64_t *)data)[at], 1ull << 63, 0x7ffull << 52);
    case TYPE_U8: case TYPE_BOOL: break;
    }
    return ((const uint8_t *)data)[at];
}

/* One row: where its elements are, and the places that are kept of it, `stride` apart. */
struct row {
    const void *data;
    int64_t first, stride;
    int64_t *place;
    int largest;
    enum type type;
};

/* Whether the element at place `a` comes before the one at place `b`. */
static int precedes(const struct row *row, int64_t a, int64_t b)
{
    int64_t x = key(row->data, row->first + a * row->stride, row->type);
    int64_t y = key(row->data, row->first + b * row->stride, row->type);
    if (x != y)
        return row->largest ? x > y : x < y;
    return a < b;
}

/* Lets the place at `at` sink in a heap of `count` whose root comes last of all. */
static void sink(const struct row *row, int64_t at, int64_t count)
{
    int64_t *place = row->place, own = place[at * row->stride];
    for (;;) {
        int64_t child = 2 * at + 1;
        if (child >= count)
            break;
        if (child + 1 < count && precedes(row, place[child * row->stride], place[(child + 1) * row->stride]))
            child++;
        if (!precedes(row, own, place[child * row->stride]))
            break;
        place[at * row->stride] = place[child * row->stride];
        at = child;
    }
    place[at * row->stride] = own;
}

/* The places of the `count` foremost of `extent` elements, in order: a heap of the best so far, whose worst is at the root. */
static void top_of_row(const struct row *row, int64_t extent, int64_t count)
{
    int64_t *place = row->place, stride = row->stride;
    for (int64_t i = 0; i < count; i++)
        place[i * stride] = i;
    for (int64_t i = count / 2; i-- > 0;)
        sink(row, i, count);
    for (int64_t i = count; i < extent; i++)
        if (precedes(row, i, place[0])) {
            place[0] = i;
            sink(row, 0, count);
        }
    for (int64_t end = count - 1; end > 0; end--) {
        int64_t last = place[end * stride];
        place[end * stride] = place[0];
        place[0] = last;
        sink(row, 0, end);
    }
}

static int64_t size_of(enum type type)
{
    switch (type) {
    case TYPE_F32: case TYPE_I32: case TYPE_U32: return 4;
    case TYPE_F16: case TYPE_BF16: case TYPE_I16: case TYPE_U16: return 2;
    case TYPE_I64: case TYPE_U64: case TYPE_F64: return 8;
    case TYPE_I8: case TYPE_U8: case TYPE_BOOL: break;
    }
    return 1;
}

static void top_k(const int64_t *parameter, const void *data, void *values, int64_t *places)
{
    int64_t outer = parameter[0], extent = parameter[1], inner = parameter[2], count = parameter[3];
    enum type type = (enum type)parameter[5];
    int64_t size = size_of(type);
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < inner; i++) {
            int64_t to = o * count * inner + i;
            struct row row = {data, o * extent * inner + i, inner, places + to, parameter[4] != 0, type};
            top_of_row(&row, extent, count);
            for (int64_t k = 0; k < count; k++) {
                int64_t from = row.first + row.place[k * inner] * inner;
                memcpy((char *)values + (to + k * inner) * size, (const char *)data + from * size, (size_t)size);
            }
        }
}

/* ---- Scattering ---- */

enum reduction { REPLACE = 0, ADD = 1, MULTIPLY = 2, MAXIMUM = 3, MINIMUM = 4 };

/* Combines a block of an integer type; arithmetic is that of the unsigned type, which wraps. */
#define INTEGERS(name, type, unsigned_type)                                                                      \
    static void name(void *into, const void *update, int64_t count, enum reduction reduction)                    \
    {                                                                                                            \
        type *a = into;                                                                                          \
        const type *b = update;                                                                                  \
        for (int64_t i = 0; i < count; i++)                                                                      \
            switch (reduction) {                                                                                 \
            case ADD: a[i] = (type)((unsigned_type)a[i] + (unsigned_type)b[i]); break;                           \
            case MULTIPLY: a[i] = (type)((uint64_t)(unsigned_type)a[i] * (uint64_t)(unsigned_type)b[i]); break;  \
            case MAXIMUM: a[i] = a[i] > b[i] ? a[i] : b[i]; break;                                               \
            case MINIMUM: a[i] = a[i] < b[i] ? a[i] : b[i]; break;                                               \
            case REPLACE: a[i] = b[i]; break;                                                                    \
            }                                                                                                    \
    }

INTEGERS(combine_i8, int8_t, uint8_t)
INTEGERS(combine_u8, uint8_t, uint8_t)
INTEGERS(combine_i32, int32_t, uint32_t)
INTEGERS(combine_i64, int64_t, uint64_t)

INTEGERS(combine_i16, int16_t, uint16_t)
INTEGERS(combine_u16, uint16_t, uint16_t)
INTEGERS(combine_u32, uint32_t, uint32_t)
INTEGERS(combine_u64, uint64_t, uint64_t)

/* A NaN stays one. */
#define FLOATS(name, type)                                                                                       \
    static void name(void *into, const void *update, int64_t count, enum reduction reduction)                    \
    {                                                                                                            \
        type *a = into;                                                                                          \
        const type *b = update;                                                                                  \
        for (int64_t i = 0; i < count; i++)                                                                      \
            switch (reduction) {                                                                                 \
            case ADD: a[i] += b[i]; break;                                                                       \
            case MULTIPLY: a[i] *= b[i]; break;                                                                  \
            case MAXIMUM: a[i] = a[i] != a[i] || a[i] > b[i] ? a[i] : b[i]; break;                               \
            case MINIMUM: a[i] = a[i] != a[i] || a[i] < b[i] ? a[i] : b[i]; break;                               \
            case REPLACE: a[i] = b[i]; break;                                                                    \
            }                                                                                                    \
    }

FLOATS(combine_f32, float)
FLOATS(combine_f64, double)

static void scatter(const int64_t *parameter, const void *data, const int64_t *place, const void *update, void *result)
{
    int64_t blocks = parameter[0], block = parameter[1], updates = parameter[2], size = parameter[5];
    enum reduction reduction = (enum reduction)parameter[3];
    int64_t length = block * size;
    memcpy(result, data, (size_t)(blocks * length));
    for (int64_t i = 0; i < updates; i++) {
        char *into = (char *)result + place[i] * length;
        const char *from = (const char *)update + i * length;
        if (place[i] < 0 || place[i] >= blocks)
            continue; /* whoever computes places wraps them */
        if (reduction == REPLACE)
            memcpy(into, from, (size_t)length);
        else
            switch ((enum type)parameter[4]) {
            case TYPE_F32: combine_f32(into, from, block, reduction); break;
            case TYPE_I8: combine_i8(into, from, block, reduction); break;
            case TYPE_I32: combine_i32(into, from, block, reduction); break;
            case TYPE_I64: combine_i64(into, from, block, reduction); break;
            case TYPE_I16: combine_i16(into, from, block, reduction); break;
            case TYPE_U16: combine_u16(into, from, block, reduction); break;
            case TYPE_U32: combine_u32(into, from, block, reduction); break;
            case TYPE_U64: combine_u64(into, from, block, reduction); break;
            case TYPE_F64: combine_f64(into, from, block, reduction); break;
            case TYPE_U8: case TYPE_BOOL: case TYPE_F16: case TYPE_BF16:
                combine_u8(into, from, block, reduction); /* import converts what has 16 bits */
                break;
            }
    }
}

/* ---- Appending ---- */

/* Puts rows behind those that are there. What is there is in the same memory before and after. */
static void append(const int64_t *parameter, const void *added, void *data)
{
    int64_t outer = parameter[0], first = parameter[1], rows = parameter[2], capacity = parameter[3];
    int64_t row = parameter[4] * parameter[5];
    if (first < 0 || rows < 0 || rows > capacity - first)
        return; /* extents that are refused before anything runs */
    for (int64_t i = 0; i < outer; i++)
        memcpy((char *)data + (i * capacity + first) * row, (const char *)added + i * rows * row, (size_t)(rows * row));
}

void tilescribe_library(const struct routine *routine, void *const *arguments, const int64_t *sizes)
{
    int64_t parameter[6];
    memcpy(parameter, routine->parameter, sizeof parameter);
    for (uint64_t i = 0; i < routine->sizes; i++)
        parameter[i] = sizes[i];
    switch ((enum routine_kind)routine->kind) {
    case ROUTINE_TOP_K: top_k(parameter, arguments[0], arguments[1], arguments[2]); break;
    case ROUTINE_SCATTER: scatter(parameter, arguments[0], arguments[1], arguments[2], arguments[3]); break;
    case ROUTINE_APPEND: append(parameter, arguments[1], arguments[2]); break;
    }
}
