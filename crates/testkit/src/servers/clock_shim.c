/*
 * A preloaded library that lies about the time of day, and about the steady clocks if asked.
 *
 * What it adds stands in the file that LOCKKEEPER_CLOCK_SHIM names, mapped and read at every call,
 * so that a test moves the clock of a running process. Without the file the clocks are true. Only
 * calls of the C library are changed: a program that is linked statically, or calls the kernel
 * itself, sees the true time. Sleeps and timers of the kernel are true, too: a wait until some time
 * by a clock of ours is one until that time by the true clock. Waiting threads of a JVM are made of
 * such waits.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct lie {
    int64_t offset_ns;   /* added since since_ns */
    int64_t since_ns;    /* on the clock itself; of the steady ones, on the raw clock */
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
    int steady = clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_RAW
        || clock == CLOCK_MONOTONIC_COARSE || clock == CLOCK_BOOTTIME;
    int wall = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI;
    if (*failed || !(steady || wall)) return at;
    struct lie lie = told(steady);
    int ignored;
    /* The time of day by one reading: else what passes between two makes it go back. */
    int64_t is = steady && lie.rate_ppb ? truth(CLOCK_MONOTONIC_RAW, &ignored) : at;
    int64_t passed = is - lie.since_ns;
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

typedef int (*timed_wait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);

/*
 * The C library's own. Without its version the linker may find one for programs of another century.
 */
static timed_wait waits(void) {
    static timed_wait found;
    if (!found) {
        void *at = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
        if (!at) at = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.17");
        if (!at) at = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
        found = (timed_wait)at;
    }
    return found;
}

static int64_t apart(int64_t a, int64_t b) { return a < b ? b - a : a - b; }

int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex,
        const struct timespec *restrict until) {
    int failed;
    int64_t end = (int64_t)until->tv_sec * 1000000000 + until->tv_nsec;
    int64_t steady = reading(CLOCK_MONOTONIC, &failed), wall = reading(CLOCK_REALTIME, &failed);
    /* Decades lie between the two clocks. */
    clockid_t clock = apart(end, steady) < apart(end, wall) ? CLOCK_MONOTONIC : CLOCK_REALTIME;
    int64_t is = truth(clock, &failed), says = clock == CLOCK_MONOTONIC ? steady : wall;
    int64_t lie = says - is;
    if (until->tv_sec < 0 || until->tv_sec > INT64_MAX / 1000000000 - 1
        || apart(lie, 0) < 1000000) return waits()(cond, mutex, until);
    end -= lie;
    if (end < 0) end = 0;
    struct timespec true_end = {end / 1000000000, end % 1000000000};
    return waits()(cond, mutex, &true_end);
}
