/* Faults for a process that is started with this library preloaded.
 *
 * TILESCRIBE_FULL=FILE: while FILE exists, what would be written into files whose path contains the first line of
 * FILE fails as on a full disk.
 * TILESCRIBE_CLOCK=SECONDS: the clock is wrong by so much. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int is_full(int fd) {
    const char *marker = getenv("TILESCRIBE_FULL");
    if (!marker || access(marker, F_OK) != 0) return 0;
    char part[256] = "", link[64], path[4096];
    int file = open(marker, O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        ssize_t length = read(file, part, sizeof part - 1);
        part[length > 0 ? length : 0] = 0;
        part[strcspn(part, "\n")] = 0;
        close(file);
    }
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return strstr(path, part) != NULL;
}

#define FULL(fd) do { if (is_full(fd)) { errno = ENOSPC; return -1; } } while (0)

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { FULL(fd); return REAL(pwrite)(fd, data, size, at); }
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) { FULL(fd); return REAL(pwrite64)(fd, data, size, at); }
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at) { FULL(fd); return REAL(pwritev)(fd, parts, count, at); }
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t at) { FULL(fd); return REAL(pwritev64)(fd, parts, count, at); }
int fallocate(int fd, int mode, off_t at, off_t size) { FULL(fd); return REAL(fallocate)(fd, mode, at, size); }
int posix_fallocate(int fd, off_t at, off_t size) { return is_full(fd) ? ENOSPC : REAL(posix_fallocate)(fd, at, size); }

static long shift(void) {
    const char *seconds = getenv("TILESCRIBE_CLOCK");
    return seconds ? atol(seconds) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = REAL(clock_gettime)(clock, now);
    if (result == 0 && clock == CLOCK_REALTIME) now->tv_sec += shift();
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    int result = REAL(gettimeofday)(now, zone);
    if (result == 0) now->tv_sec += shift();
    return result;
}

time_t time(time_t *where) {
    time_t now = REAL(time)(NULL) + shift();
    if (where) *where = now;
    return now;
}
