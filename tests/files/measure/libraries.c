/* Stands for NVIDIA's libraries: functions whose results tell whether all arguments arrived. */

#include <stddef.h>

int cuInit(unsigned flags) { return (int)flags + 1000; }

int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned of_x, unsigned of_y, unsigned of_z, unsigned shared, void *stream,
                   void **parameters, void **extra) {
    const size_t all[] = {(size_t)function, x, y, z, of_x, of_y, of_z, shared, (size_t)stream, (size_t)parameters, (size_t)extra};
    size_t sum = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) sum += (i + 1) * all[i];
    return (int)sum;
}

int cublasSetStream_v2(void *handle, void *stream) { return 2000 + 10 * (int)(size_t)handle + (int)(size_t)stream; }

int curandGenerateNormal(void *generator, float *values, size_t count, float mean, float deviation) {
    *values = 1;
    return (int)((float)(3000 + 100 * (int)(size_t)generator + 10 * (int)count) + 4 * mean + 4 * deviation);
}
