/* Calls functions of NVIDIA's libraries from several threads at once, each twice, and prints what they return: the same for all. */

#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { THREADS = 8, CALLS = 4 };

int cuInit(unsigned flags);
int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned of_x, unsigned of_y, unsigned of_z, unsigned shared, void *stream,
                   void **parameters, void **extra);
int cublasSetStream_v2(void *handle, void *stream);
int curandGenerateNormal(void *generator, float *values, size_t count, float mean, float deviation);
int tilescribe_has_driver(void);

static pthread_barrier_t begin;
static int results[THREADS][2][CALLS];

static void *call(void *of_thread) {
    int(*all)[CALLS] = of_thread;
    for (int i = 0; i < 2; i++) {
        float value = 0;
        pthread_barrier_wait(&begin);
        all[i][0] = cuInit(3);
        all[i][1] = cuLaunchKernel((void *)1, 2, 3, 4, 5, 6, 7, 8, (void *)9, (void **)10, (void **)11);
        all[i][2] = cublasSetStream_v2((void *)1, (void *)2);
        all[i][3] = curandGenerateNormal((void *)1, &value, 2, 0.5f, 0.25f);
    }
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    pthread_barrier_init(&begin, NULL, THREADS);
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, call, results[i]);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < 2 * THREADS; i++)
        if (memcmp(results[i / 2][i % 2], results[0][0], sizeof results[0][0]) != 0) return 1;
    printf("%d:", tilescribe_has_driver());
    for (int i = 0; i < CALLS; i++) printf(" %d", results[0][0][i]);
    printf("\n");
    return 0;
}
