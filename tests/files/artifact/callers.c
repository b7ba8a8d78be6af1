/* Runs a network on a pool of this program's own, and on threads that are bound to processors. Calls two networks from four threads then: two that share a model of the first, and two with a model each of the second, on 2 and on 16
 * threads, one of them on the threads of the first network's library. Arguments are weights and all inputs of either. What each caller computes has to be the same every time; outputs of the
 * first and of the second go to standard output. */
#define _GNU_SOURCE
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net.h"
#include "other.h"

enum { ROUNDS = 300, MANY = 16, ALL = 256 };

static int64_t loops;

/* A pool of one thread, which takes the iterations in an odd order, as if it were all that there may be. */
static void own_pool(void (*body)(void *context, int64_t begin, int64_t end, int64_t thread), void *context, int64_t count, int64_t threads)
{
    loops++;
    for (int64_t i = count; i-- > 0;)
        body(context, i, i + 1, threads - 1 - i % threads);
}

#define CALLER(name, NAME)                                                                                                             \
    static unsigned char *name##_expected[NAME##_OUTPUTS];                                                                             \
    static void *name##_input[NAME##_INPUTS];                                                                                          \
                                                                                                                                       \
    /* Whether all went well, as an address. */                                                                                        \
    static void *name##_call(void *model)                                                                                              \
    {                                                                                                                                  \
        void *output[NAME##_OUTPUTS];                                                                                                  \
        for (size_t i = 0; i < NAME##_OUTPUTS; i++)                                                                                    \
            output[i] = malloc(name##_outputs(NULL)[i].bytes);                                                                         \
        int is_right = 1;                                                                                                              \
        for (int round = 0; round < ROUNDS && is_right; round++) {                                                                     \
            is_right = name##_run(model, (const void *const *)name##_input, output) == NAME##_OK;                                      \
            for (size_t i = 0; i < NAME##_OUTPUTS; i++)                                                                                \
                is_right = is_right && memcmp(output[i], name##_expected[i], name##_outputs(NULL)[i].bytes) == 0;                      \
        }                                                                                                                              \
        for (size_t i = 0; i < NAME##_OUTPUTS; i++)                                                                                    \
            free(output[i]);                                                                                                           \
        return is_right ? model : NULL;                                                                                                \
    }                                                                                                                                  \
                                                                                                                                       \
    /* Reads all inputs, and computes what is expected, on one thread. */                                                              \
    static int name##_prepare(const char *weights, const char *inputs)                                                                 \
    {                                                                                                                                  \
        FILE *file = fopen(inputs, "rb");                                                                                              \
        for (size_t i = 0; i < NAME##_INPUTS; i++) {                                                                                   \
            size_t bytes = name##_inputs(NULL)[i].bytes;                                                                               \
            name##_input[i] = malloc(bytes);                                                                                           \
            if (!file || fread(name##_input[i], 1, bytes, file) != bytes)                                                              \
                return 0;                                                                                                              \
        }                                                                                                                              \
        fclose(file);                                                                                                                  \
        for (size_t i = 0; i < NAME##_OUTPUTS; i++)                                                                                    \
            name##_expected[i] = malloc(name##_outputs(NULL)[i].bytes);                                                                \
        name##_model *model;                                                                                                           \
        if (name##_create(weights, 1, &model) != NAME##_OK ||                                                                          \
            name##_run(model, (const void *const *)name##_input, (void *const *)name##_expected) != NAME##_OK)                         \
            return 0;                                                                                                                  \
        name##_destroy(model);                                                                                                         \
        return 1;                                                                                                                      \
    }

CALLER(net, NET)
CALLER(other, OTHER)

/* How many threads of this process may run on one processor only. */
static int bound_threads(void)
{
    int found = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *task; tasks != NULL && (task = readdir(tasks)) != NULL;) {
        cpu_set_t set;
        if (atoi(task->d_name) > 0 && sched_getaffinity(atoi(task->d_name), sizeof set, &set) == 0)
            found += CPU_COUNT(&set) == 1;
    }
    closedir(tasks);
    return found;
}

/* Whether threads are bound where they shall be, and there are processors for them. */
static int pins(net_model *model)
{
    cpu_set_t set;
    int processors = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
    if (net_pin_threads(1) != NET_OK || net_call(model) == NULL || (processors >= 2 && bound_threads() != 1))
        return 0;
    /* they start anew */
    return net_pin_threads(0) == NET_OK && (processors < 3 || (net_call(model) != NULL && bound_threads() == 0));
}

int main(int count, char **arguments)
{
    if (count != 5 || !net_prepare(arguments[1], arguments[2]) || !other_prepare(arguments[3], arguments[4]))
        return 100;
    net_model *shared, *many;
    other_model *own[2];
    if (net_create(arguments[1], 2, &shared) != NET_OK || other_create(arguments[3], 2, &own[0]) != OTHER_OK ||
        other_create(arguments[3], MANY, &own[1]) != OTHER_OK)
        return 101;
    if (net_create(arguments[1], ALL, &many) != NET_OK || net_share_threads(many, own_pool) != NET_OK || net_call(many) == NULL || loops == 0)
        return 110;
    if (net_share_threads(many, NULL) != NET_OK || net_call(many) == NULL || net_share_threads(NULL, own_pool) != NET_BAD_ARGUMENT)
        return 111;
    net_destroy(many);
    if (!pins(shared))
        return 114;
    loops = 0;
    if (other_share_threads(own[0], net_own_threads()) != OTHER_OK)
        return 112;
    pthread_t caller[4];
    for (int i = 0; i < 4; i++)
        if (pthread_create(&caller[i], NULL, i < 2 ? net_call : other_call, i < 2 ? (void *)shared : (void *)own[i - 2]) != 0)
            return 102;
    for (int i = 0; i < 4; i++) {
        void *result;
        if (pthread_join(caller[i], &result) != 0 || result == NULL)
            return 103 + i;
    }
    net_destroy(shared);
    /* they start again */
    if (other_call(own[0]) == NULL || loops != 0 || net_end_threads() != NET_OK || other_call(own[0]) == NULL)
        return 113;
    other_destroy(own[0]);
    other_destroy(own[1]);
    for (size_t i = 0; i < NET_OUTPUTS; i++)
        fwrite(net_expected[i], 1, net_outputs(NULL)[i].bytes, stdout);
    for (size_t i = 0; i < OTHER_OUTPUTS; i++)
        fwrite(other_expected[i], 1, other_outputs(NULL)[i].bytes, stdout);
    return 0;
}
