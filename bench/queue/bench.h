/* bench.h - what the programs of this benchmark share: options, clocks, percentiles.
 *
 * Each program offers modes, and each mode prints one line of figures: name value name value. `run` makes them in turns
 * and compares. */
#ifndef BENCH_QUEUE_H
#define BENCH_QUEUE_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PRODUCERS = 2, KEYS = 1000, PAYLOAD_BYTES = 200, GROUP_MAX = 4096, WARM_GROUP = 1024 };

struct settings {
    const char *dir;
    long group;     /* tasks put at once */
    long ms;        /* how long tasks are put */
    long warm;      /* tasks before that */
    long threads;   /* of all workers together; 0: the worker's default */
    long tasks;     /* fill: of the hot key; failing: good tasks */
    long failing;   /* failing: keys that fail for ever, */
    long fresh;     /* 1: by the queue's policy, 0: the handler puts retries off for long */
    long rate;      /* start: tasks a second */
    long processes; /* processes, workers: how many work */
    long sleep_us;  /* what a task takes: start: of the hot key; processes, workers: any */
    long paused;    /* fill: 1: the hot key is paused, too */
};

struct mode {
    const char *name;
    void (*run)(const struct settings *settings);
};

/* Each program has them, up to one without a name. */
extern const struct mode modes[];
extern const char program[];

/* The bytes a task carries. They do not compress to nothing, should the disk try. */
extern unsigned char payload[PAYLOAD_BYTES];

/* The path of a file in the settings' directory; lasts until the next call. */
const char *path_in(const struct settings *settings, const char *name);

/* Prints the latencies' p50 and p99; sorts them. */
void print_percentiles(int64_t *ns, size_t count);

/* Processor time of this process, in the kernel too. */
int64_t cpu_ns(void);

void sleep_us(int64_t us);

/* A benchmark has nobody to report to: what must not fail ends it. */
#define MUST_SAYING(condition, text)                                                                                   \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s: line %d of %s: %s failed: %s\n", program, __LINE__, __FILE__, #condition, (text));    \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)
#define MUST(condition) MUST_SAYING(condition, strerror(errno))

static inline int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* For functions that take no const context; whoever gets it back changes nothing. */
static inline void *unconst(const struct settings *settings)
{
    union {
        const struct settings *given;
        void *taken;
    } pointer = {.given = settings};
    return pointer.taken;
}

#endif
