/*
 * A preloaded library that lies about the time of day, and about the steady clocks if asked.
 *
 * What it adds stands in the file that LOCKKEEPER_CLOCK_SHIM names, mapped and read at every call, so that a test moves the clock
 * of a running process. Without the file the clocks are true. Only calls of the C library are changed: a program that is linked
 * statically, or calls the kernel itself, sees the true time. Sleeps and timers of the kernel are true, too.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct lie {
    int64_t offset_ns;   /* added since since_ns */
    int64_t since_ns;    /* on the raw clock */
    int64_t rate_ppb;    /* gained each second after it */
};

struct control {
    int64_t turn;        /* odd while it is being written */
    struct lie wall;     /* CLOCK_REALTIME, gettimeofday, time, CLOCK_TAI */
    struct lie steady;   /* CLOCK_MONOTONIC, CLOCK_MONOTONIC_RAW, CLOCK_BOOTTIME */
};

static const struct control *control;
static const struct control none;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("LOCKKEEPER_CLOCK_SHIM");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *page = mmap(NULL, sizeof(struct control), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (page != MAP_FAILED) control = page;
}

static int64_t truth(clockid_t clock, int *failed) {
    struct timespec at = {0, 0};
    *failed = (int)syscall(SYS_clock_gettime, clock, &at);
    return (int64_t)at.tv_sec * 1000000000 + at.tv_nsec;
}

static struct lie told(int steady) {
    const volatile struct control *now = control ? control : &none;
    for (;;) {
        int64_t turn = now->turn;
        __sync_synchronize();
        struct lie lie = {
            steady ? now->steady.offset_ns : now->wall.offset_ns,
            steady ? now->steady.since_ns : now->wall.since_ns,
            steady ? now->steady.rate_ppb : now->wall.rate_ppb,
        };
        __sync_synchronize();
        if (!(turn & 1) && now->turn == turn) return lie;
    }
}

/* Nanoseconds of a clock, as we tell them. */
static int64_t reading(clockid_t clock, int *failed) {
    int64_t at = truth(clock, failed);
    int steady = clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_RAW || clock == CLOCK_MONOTONIC_COARSE || clock == CLOCK_BOOTTIME;
    int wall = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI;
    if (*failed || !(steady || wall)) return at;
    struct lie lie = told(steady);
    int ignored;
    int64_t passed = lie.rate_ppb ? truth(CLOCK_MONOTONIC_RAW, &ignored) - lie.since_ns : 0;
    at += lie.offset_ns + (int64_t)((__int128)passed * lie.rate_ppb / 1000000000);
    return at < 0 ? 0 : at;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    int failed;
    int64_t ns = reading(clock, &failed);
    if (failed) return -1;
    at->tv_sec = ns / 1000000000;
    at->tv_nsec = ns % 1000000000;
    return 0;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    int failed;
    int64_t ns = reading(CLOCK_REALTIME, &failed);
    (void)zone;
    if (at) {
        at->tv_sec = ns / 1000000000;
        at->tv_usec = ns % 1000000000 / 1000;
    }
    return failed ? -1 : 0;
}

time_t time(time_t *at) {
    int failed;
    time_t seconds = reading(CLOCK_REALTIME, &failed) / 1000000000;
    if (at) *at = seconds;
    return seconds;
}
