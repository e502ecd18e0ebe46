/* bench.h - one workload and the sides that carry it.
 *
 * A side is a way to run tasks of many keys in order. The workload (bench.c) knows nothing else about it; the peers in
 * other languages (peer_go.go, peer_asio.cpp) repeat the workload as closely as their language allows. */
#ifndef BENCH_EXEC_H
#define BENCH_EXEC_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "keyline/exec.h"

enum { SHARDS = 4, KEYS = 1000, PRODUCERS = 2, BATCH_MAX = 64 };

struct settings {
    long capacity;  /* tasks a shard */
    long batch;     /* tasks a submit, 1..BATCH_MAX */
    long threads;   /* 0: the side's own choice */
    long ms;        /* how long the producers go on */
    long rate;      /* tasks/s of all producers together; 0: as fast as possible */
    long keys;      /* how many, at most KEYS; 0, for memory only: each task has its own */
    long failing;   /* how many more have one task, which asks for a retry each time */
    long knocking;  /* 1: one task of ten is for one of those, and refused once they have their share */
    long healthy;   /* 1: none of those fails after all: the same work, to measure the others by */
    long one_shard; /* 1: only keys of one and the same shard */
    long work;      /* steps of computing in a task; 0: it only counts itself */
};

struct side {
    const char *name;
    void *(*open)(const struct settings *settings);
    void (*submit)(void *queue, kl_bytes key, kl_task_fn *fn, void *ctx); /* waits for room */
    void (*submit_batch)(void *queue, const kl_exec_task *tasks, size_t count);
    kl_exec_task (*knock)(void *queue, size_t failing_key); /* a task for a failing key, which may be refused */
    void (*finish)(void *queue);                            /* returns when every task has run, and frees the queue */
};

extern const struct side keyline_side, mutex_side;

/* Moves the keys that share the first one's shard to the front and returns how many there are. */
size_t keyline_same_shard(kl_bytes *keys, size_t count);

/* Prints how much memory a queued task takes when the tasks have so many keys (memory.c). */
void measure_memory(size_t key_count);

/* A benchmark has nobody to report to: what must not fail ends it. */
#define MUST(condition)                                                                                                \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "bench-exec: line %d of %s: %s failed: %s\n", __LINE__, __FILE__, #condition,              \
                    kl_error_text());                                                                                  \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static inline int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

#endif
