/* Runs kernels that were compiled for another machine: KERNEL(name) of kernels.inc, one after the other.
 *
 * Standard input holds for each kernel: the number of its arguments, the bytes of its workspace, and for each argument its bytes, all as 64-bit
 * numbers, and its content. Standard output takes the contents of all arguments behind the run. Buffers end where a page begins
 * that nobody may touch. The name of each kernel goes to the standard error before it runs.
 */
#define _GNU_SOURCE
#include "runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef void kernel(void *const *arguments, void *workspace);

#define KERNEL(name) kernel name, name##_setup;
#include "kernels.inc"
#undef KERNEL

static const struct { kernel *run, *setup; } kernels[] = {
#define KERNEL(name) {name, name##_setup},
#include "kernels.inc"
};

enum { MOST_ARGUMENTS = 64, LINE = 64 };

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static void take(void *to, size_t bytes)
{
    if (fread(to, 1, bytes, stdin) != bytes)
        fail("the input is too short");
}

static uint64_t number(void)
{
    uint64_t value;
    take(&value, sizeof value);
    return value;
}

static size_t pages(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

static unsigned char *allocate(size_t bytes)
{
    size_t size = pages(bytes + 1), page = pages(1);
    unsigned char *start = mmap(NULL, size + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED || mprotect(start + size, page, PROT_NONE) != 0)
        fail("no memory");
    return start + size - bytes;
}

static void release(unsigned char *buffer, size_t bytes)
{
    munmap(buffer + bytes - pages(bytes + 1), pages(bytes + 1) + pages(1));
}

static void run(size_t at)
{
    uint64_t count = number(), workspace_bytes = (number() + LINE - 1) / LINE * LINE, bytes[MOST_ARGUMENTS];
    void *arguments[MOST_ARGUMENTS];
    if (count > MOST_ARGUMENTS)
        fail("too many arguments");
    for (uint64_t i = 0; i < count; i++) {
        bytes[i] = number();
        arguments[i] = allocate(bytes[i]);
        take(arguments[i], bytes[i]);
    }
    unsigned char *workspace = allocate(workspace_bytes);
    memset(workspace, 0xff, workspace_bytes);
    fprintf(stderr, "kernel %zu\n", at);
    kernels[at].setup(arguments, workspace);
    kernels[at].run(arguments, workspace);
    for (uint64_t i = 0; i < count; i++) {
        if (fwrite(arguments[i], 1, bytes[i], stdout) != bytes[i])
            fail("cannot write");
        release(arguments[i], bytes[i]);
    }
    release(workspace, workspace_bytes);
}

int main(void)
{
    tilescribe_set_threads(2);
    for (size_t at = 0; at < sizeof kernels / sizeof *kernels; at++)
        run(at);
    tilescribe_shutdown();
    return fflush(stdout) == 0 ? 0 : 1;
}
