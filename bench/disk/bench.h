/* bench.h - one workload on files, and the sides that carry it.
 *
 * A side keeps tasks of 200 bytes in a directory: it makes a group of them durable, then makes durable that they are
 * done. bench.c drives every side alike; each is a program of its own, so that none links another's library. */
#ifndef BENCH_DISK_H
#define BENCH_DISK_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PAIRS_MAX = 8, SHARDS = 16, PAYLOAD_BYTES = 200, GROUP_MAX = 4096, WARM_GROUP = 1024 };

struct settings {
    const char *dir;
    long group;        /* tasks appended at once, and settled at once */
    long ms;           /* how long to measure */
    long warm;         /* tasks appended and settled before that, in groups of WARM_GROUP */
    long append_bytes; /* raw: of a group's append, and of its settle */
    long settle_bytes;
    long grow;    /* raw: 1: into a file that grows; 0: one that was written before */
    long threads; /* keyline threads */
    long window;  /* keyline async: appends under way at once */
    long tasks;   /* keyline backlog, open */
    long rounds;  /* keyline backlog */
    long pairs;   /* beside: so many threads append, and as many settle; 0: one does both in turn */
};

/* Another measurement that a side offers. */
struct mode {
    const char *name;
    void (*run)(const struct settings *settings);
};

struct side {
    const char *name;
    void (*open)(const struct settings *settings);
    /* Each pair of threads has tasks of its own: `pair` says which it is. With one thread there is pair 0 only. */
    void (*prepare)(int pair, size_t count); /* what a caller would have at hand. NULL: nothing */
    void (*append)(int pair, size_t count);  /* durable on return */
    void (*settle)(int pair, size_t count);  /* the first tasks that are not settled yet; durable on return */
    void (*report)(void);                    /* prints more figures; NULL: none */
    void (*close)(void);
    const struct mode *modes; /* up to one without a name */
    bool takes_turns;         /* append and settle are for one thread */
};

/* Each program has one. */
extern const struct side side;

/* Prints the latencies' p50 and p99; sorts them. */
void print_percentiles(int64_t *ns, size_t count);

/* The path of a file in the settings' directory; lasts until the next call. */
const char *path_in(const struct settings *settings, const char *name);

/* The bytes a task carries. They do not compress to nothing, should the disk try. */
extern unsigned char payload[PAYLOAD_BYTES];

/* A benchmark has nobody to report to: what must not fail ends it. */
#define MUST_SAYING(condition, text)                                                                                   \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "bench-disk: line %d of %s: %s failed: %s\n", __LINE__, __FILE__, #condition, (text));     \
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

#endif
