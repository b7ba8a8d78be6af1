/* Pages, and the weights in them.
 *
 * A network reads its weights once a run, and few of the small pages that they lie in are known to the processor by then: each costs a
 * walk through the page tables. So they are copied into memory of which the kernel makes large pages where it may (2 MiB on x86-64 and
 * AArch64); files of most file systems cannot have these. A copy belongs to one process. Where many run the same network, one that is
 * shared may be worth more: a mapping of the file. */

#include "deploy.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LARGE_PAGE = 2 << 20 };

unsigned char *map_pages(uint64_t bytes, int flags)
{
    void *pages = mmap(NULL, bytes + (bytes == 0), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    return pages == MAP_FAILED ? NULL : pages;
}

void unmap_pages(unsigned char *pages, uint64_t bytes)
{
    if (pages != NULL)
        munmap(pages, bytes + (bytes == 0));
}

unsigned char *map_large_pages(uint64_t bytes)
{
    if (bytes < LARGE_PAGE || bytes > SIZE_MAX - LARGE_PAGE)
        return map_pages(bytes, 0);
    unsigned char *pages = map_pages(bytes + LARGE_PAGE, 0);
    if (pages == NULL)
        return NULL;
    /* what lies before the first and behind the last of the pages is given back */
    uint64_t before = -(uintptr_t)pages % LARGE_PAGE;
    if (before > 0)
        munmap(pages, before);
    /* the length is rounded up to a page by the kernel, and the start of what is left must be one */
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), end = (before + bytes + page - 1) / page * page;
    if (end < bytes + LARGE_PAGE)
        munmap(pages + end, bytes + LARGE_PAGE - end);
    /* small pages do as well where it says no */
    madvise(pages + before, bytes, MADV_HUGEPAGE);
    return pages + before;
}

/* Opens the weights, if they belong to this library. */
static enum status open_weights(const char *path, int *opened)
{
    static const char prefix[] = "{\"__metadata__\":{\"id\":\"";
    enum { BEFORE = 8, PREFIX = sizeof prefix - 1, ID = 64 };
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return STATUS_CANNOT_READ_WEIGHTS;
    struct stat about;
    char start[BEFORE + PREFIX + ID];
    enum status status = STATUS_OK;
    if (fstat(file, &about) != 0)
        status = STATUS_CANNOT_READ_WEIGHTS;
    /* no weights file is shorter than this: where sizes agree, it holds an id */
    else if ((uint64_t)about.st_size != tilescribe_network.weights_bytes || pread(file, start, sizeof start, 0) != (ssize_t)sizeof start ||
             memcmp(start + BEFORE, prefix, PREFIX) != 0 || memcmp(start + BEFORE + PREFIX, tilescribe_network.weights_id, ID) != 0)
        status = STATUS_FOREIGN_WEIGHTS;
    if (status == STATUS_OK)
        *opened = file;
    else
        close(file);
    return status;
}

static enum status map_file(int file, unsigned char **weights)
{
    void *mapped = mmap(NULL, tilescribe_network.weights_bytes, PROT_READ, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED)
        return STATUS_OUT_OF_MEMORY;
    *weights = mapped;
    return STATUS_OK;
}

/* A part of a file, and where it goes. */
struct part {
    int file;
    uint64_t from, bytes;
    unsigned char *to;
    pthread_t reader;
    int is_read; /* by a thread of its own */
    enum status status;
};

static void *read_part(void *argument)
{
    struct part *part = argument;
    part->status = STATUS_OK;
    for (uint64_t done = 0; done < part->bytes;) {
        ssize_t got = pread(part->file, part->to + done, part->bytes - done, (off_t)(part->from + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            part->status = STATUS_CANNOT_READ_WEIGHTS;
            break;
        }
        done += (uint64_t)got;
    }
    return NULL;
}

/* Reads a file in parts, side by side: what takes most of the time is that the kernel clears the pages. */
static enum status read_file(int file, unsigned char *to, uint64_t bytes)
{
    enum { PARTS = 4 };
    struct part parts[PARTS];
    uint64_t size = bytes / PARTS / LARGE_PAGE * LARGE_PAGE;
    for (int at = 0; at < PARTS; at++) {
        uint64_t from = (uint64_t)at * size;
        parts[at] = (struct part){.file = file, .from = from, .bytes = at + 1 < PARTS ? size : bytes - from, .to = to + from};
        parts[at].is_read = at + 1 < PARTS && size > 0 && pthread_create(&parts[at].reader, NULL, read_part, &parts[at]) == 0;
    }
    enum status status = STATUS_OK;
    for (int at = PARTS; at-- > 0;) {
        if (parts[at].is_read)
            pthread_join(parts[at].reader, NULL);
        else
            read_part(&parts[at]);
        if (parts[at].status != STATUS_OK)
            status = parts[at].status;
    }
    return status;
}

static enum status copy_file(int file, unsigned char **weights)
{
    uint64_t bytes = tilescribe_network.weights_bytes;
    unsigned char *copy = map_large_pages(bytes);
    if (copy == NULL)
        return STATUS_OUT_OF_MEMORY;
    enum status status = read_file(file, copy, bytes);
    if (status != STATUS_OK) {
        unmap_pages(copy, bytes);
        return status;
    }
    /* nothing writes to them from here on */
    mprotect(copy, bytes, PROT_READ);
    *weights = copy;
    return STATUS_OK;
}

enum status map_weights(const char *path, const unsigned char **weights)
{
    int file;
    unsigned char *mapped = NULL;
    enum status status = open_weights(path, &file);
    if (status != STATUS_OK)
        return status;
    status = map_file(file, &mapped);
    close(file);
    *weights = mapped;
    return status;
}

void unmap_weights(const unsigned char *weights)
{
    unmap_pages((unsigned char *)weights, tilescribe_network.weights_bytes);
}

/* ---- Weights that all models of the library share ---- */

static struct {
    pthread_mutex_t turn;
    unsigned char *weights;
    uint64_t models;
    int are_mapped; /* those that are loaded from now on: the file itself */
} shared = {.turn = PTHREAD_MUTEX_INITIALIZER};

int tilescribe_share_weights(int share)
{
    pthread_mutex_lock(&shared.turn);
    shared.are_mapped = share != 0;
    pthread_mutex_unlock(&shared.turn);
    return STATUS_OK;
}

enum status hold_weights(const char *path, const unsigned char **weights)
{
    int file;
    enum status status = open_weights(path, &file);
    if (status != STATUS_OK)
        return status;
    pthread_mutex_lock(&shared.turn);
    if (shared.models == 0)
        status = shared.are_mapped ? map_file(file, &shared.weights) : copy_file(file, &shared.weights);
    if (status == STATUS_OK) {
        shared.models++;
        *weights = shared.weights;
    }
    pthread_mutex_unlock(&shared.turn);
    close(file);
    return status;
}

void release_weights(const unsigned char *weights)
{
    if (weights == NULL)
        return;
    pthread_mutex_lock(&shared.turn);
    if (--shared.models == 0) {
        unmap_weights(shared.weights);
        shared.weights = NULL;
    }
    pthread_mutex_unlock(&shared.turn);
}
