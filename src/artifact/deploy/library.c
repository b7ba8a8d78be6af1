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

/* ---- What is not zero ---- */

static int is_zero(const unsigned char *element, enum type type)
{
    uint64_t bits = 0;
    int64_t size = size_of(type);
    memcpy(&bits, element, (size_t)size); /* the first bytes: numbers are little-endian on every machine that has kernels */
    switch (type) {
    case TYPE_F32: return (bits & 0x7fffffffu) == 0;
    case TYPE_F16: case TYPE_BF16: return (bits & 0x7fffu) == 0;
    case TYPE_F64: return bits << 1 == 0;
    case TYPE_I8: case TYPE_U8: case TYPE_BOOL: case TYPE_I16: case TYPE_U16: case TYPE_I32: case TYPE_U32: case TYPE_I64: case TYPE_U64:
        break;
    }
    return bits == 0;
}

static void non_zero(const int64_t *parameter, const void *data, int64_t *places, int64_t *count)
{
    enum type type = (enum type)parameter[1];
    int64_t size = size_of(type), found = 0;
    for (int64_t i = 0; i < parameter[0]; i++)
        if (!is_zero((const unsigned char *)data + i * size, type))
            places[found++] = i;
    *count = found;
}

/* ---- Kinds of rows ---- */

/* Rows of `length` elements each. */
struct rows {
    const void *data;
    int64_t length;
    enum type type;
};

/* The order of two rows by their elements: negative, 0 or positive. */
static int order_of_rows(const struct rows *rows, int64_t a, int64_t b)
{
    for (int64_t i = 0; i < rows->length; i++) {
        int64_t x = key(rows->data, a * rows->length + i, rows->type);
        int64_t y = key(rows->data, b * rows->length + i, rows->type);
        if (x != y)
            return x < y ? -1 : 1;
    }
    return 0;
}

static int row_precedes(const struct rows *rows, int64_t a, int64_t b)
{
    int order = order_of_rows(rows, a, b);
    return order != 0 ? order < 0 : a < b;
}

/* Lets the row at `at` sink in a heap of `count` whose root comes last of all. */
static void sink_row(const struct rows *rows, int64_t *heap, int64_t at, int64_t count)
{
    int64_t own = heap[at];
    for (int64_t child = 2 * at + 1; child < count; child = 2 * at + 1) {
        if (child + 1 < count && row_precedes(rows, heap[child], heap[child + 1]))
            child++;
        if (!row_precedes(rows, own, heap[child]))
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = own;
}

static void sort_rows(const struct rows *rows, int64_t *order, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        order[i] = i;
    for (int64_t i = count / 2; i-- > 0;)
        sink_row(rows, order, i, count);
    for (int64_t end = count - 1; end > 0; end--) {
        int64_t last = order[end];
        order[end] = order[0];
        order[0] = last;
        sink_row(rows, order, 0, end);
    }
}

/* Numbers kinds in the order of their first rows: `kind` holds that row, and `counts` is by that row. */
static int64_t number_kinds(int64_t rows, int64_t *first, int64_t *kind, int64_t *counts)
{
    int64_t kinds = 0;
    for (int64_t i = 0; i < rows; i++) {
        if (kind[i] != i) {
            kind[i] = kind[kind[i]]; /* the first row has its number by now */
            continue;
        }
        first[kinds] = i;
        counts[kinds] = counts[i]; /* no number exceeds a row's, so nothing is lost */
        kind[i] = kinds++;
    }
    return kinds;
}

static void unique(const int64_t *parameter, const void *data, int64_t *first, int64_t *kind, int64_t *counts, int64_t *number)
{
    int64_t count = parameter[0], kinds = 0;
    struct rows rows = {data, parameter[1], (enum type)parameter[3]};
    int is_sorted = parameter[2] != 0;
    sort_rows(&rows, first, count);
    for (int64_t i = 0, end; i < count; i = end) {
        int64_t own = first[i]; /* of equal rows the first comes first */
        for (end = i; end < count && order_of_rows(&rows, own, first[end]) == 0; end++)
            kind[first[end]] = is_sorted ? kinds : own;
        if (is_sorted)
            first[kinds] = own;
        counts[is_sorted ? kinds : own] = end - i;
        kinds++;
    }
    *number = is_sorted ? kinds : number_kinds(count, first, kind, counts);
}

/* ---- Boxes without those that overlap better ones ---- */

/* Lower and upper ends along two axes. */
struct box {
    float low[2], high[2];
};

static struct box box_of(const float *place, int centred)
{
    struct box box;
    for (int d = 0; d < 2; d++) {
        float x = place[d], y = place[d + 2];
        box.low[d] = centred ? x - y / 2 : x < y ? x : y;
        box.high[d] = centred ? x + y / 2 : x < y ? y : x;
    }
    return box;
}

static float area_of(const struct box *box)
{
    return (box->high[0] - box->low[0]) * (box->high[1] - box->low[1]);
}

static int overlaps(const struct box *x, const struct box *y, float tolerated)
{
    float common = 1;
    for (int d = 0; d < 2; d++) {
        float low = x->low[d] > y->low[d] ? x->low[d] : y->low[d], high = x->high[d] < y->high[d] ? x->high[d] : y->high[d];
        if (!(high > low))
            return 0;
        common *= high - low;
    }
    float first = area_of(x), second = area_of(y);
    return first > 0 && second > 0 && common / (first + second - common) > tolerated;
}

static int score_precedes(const float *score, int64_t a, int64_t b)
{
    return score[a] != score[b] ? score[a] > score[b] : a < b;
}

/* Lets the box at `at` sink in a heap of `count` whose root has the best score. */
static void sink_score(const float *score, int64_t *heap, int64_t at, int64_t count)
{
    int64_t own = heap[at];
    for (int64_t child = 2 * at + 1; child < count; child = 2 * at + 1) {
        if (child + 1 < count && score_precedes(score, heap[child + 1], heap[child]))
            child++;
        if (!score_precedes(score, heap[child], own))
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = own;
}

/* Puts the boxes that are kept of one class behind `selected`, and returns their number. */
static int64_t suppress(const int64_t *parameter, const float *boxes, const float *score, int64_t most, float tolerated, float least,
                        int64_t *selected, int64_t *heap)
{
    int64_t candidates = 0, kept = 0;
    for (int64_t i = 0; i < parameter[2]; i++)
        if (score[i] > least)
            heap[candidates++] = i;
    for (int64_t i = candidates / 2; i-- > 0;)
        sink_score(score, heap, i, candidates);
    while (candidates > 0 && kept < most) {
        int64_t best = heap[0];
        heap[0] = heap[--candidates];
        sink_score(score, heap, 0, candidates);
        struct box own = box_of(boxes + 4 * best, parameter[4] != 0);
        int is_free = 1;
        for (int64_t i = 0; is_free && i < kept; i++) {
            struct box other = box_of(boxes + 4 * selected[3 * i + 2], parameter[4] != 0);
            is_free = !overlaps(&own, &other, tolerated);
        }
        if (is_free)
            selected[3 * kept++ + 2] = best;
    }
    return kept;
}

static void non_max_suppression(const int64_t *parameter, void *const *arguments)
{
    const float *boxes = arguments[0], *scores = arguments[1], *tolerated = arguments[3], *least = arguments[4];
    int64_t most = *(const int64_t *)arguments[2], *selected = arguments[5], *heap = arguments[6], *count = arguments[7];
    if (most > parameter[3])
        most = parameter[3];
    *count = 0;
    for (int64_t batch = 0; batch < parameter[0]; batch++)
        for (int64_t class = 0; class < parameter[1]; class++) {
            int64_t *own = selected + 3 * *count;
            int64_t kept = suppress(parameter, boxes + batch * parameter[2] * 4, scores + (batch * parameter[1] + class) * parameter[2], most,
                                    *tolerated, *least, own, heap);
            for (int64_t i = 0; i < kept; i++) {
                own[3 * i] = batch;
                own[3 * i + 1] = class;
            }
            *count += kept;
        }
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
    case ROUTINE_NON_ZERO: non_zero(parameter, arguments[0], arguments[1], arguments[2]); break;
    case ROUTINE_UNIQUE: unique(parameter, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4]); break;
    case ROUTINE_READ: memcpy(arguments[1], arguments[0], sizeof(int64_t)); break;
    case ROUTINE_COPY: memcpy(arguments[1], arguments[0], (size_t)(parameter[0] * parameter[1])); break;
    case ROUTINE_NON_MAX_SUPPRESSION: non_max_suppression(parameter, arguments); break;
    }
}
