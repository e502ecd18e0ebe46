/* bench.h - what the sides of this benchmark share.
 *
 * A side puts tasks of 200 B over 1,000 keys from two threads for some time, in calls of `group`, runs them as they
 * come, and ends when all have been run and settled. It prints one line: name value name value.
 *
 * Before that it does the same for WARM_MS without counting, because every session plans its statements once; longer,
 * and equally long, where workers are processes of their own. */
#ifndef BENCH_POSTGRES_H
#define BENCH_POSTGRES_H

#include <libpq-fe.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    PRODUCERS = 2,
    CONSUMERS = 2,
    KEYS = 1000,
    PAYLOAD_BYTES = 200,
    KEY_BYTES = 12,
    GROUP_MAX = 10000,
    WARM_MS = 700,
    WARM_ALL_MS = 3500, /* each process has sessions of its own, and however many there are, segments turn as often */
    TELL_MS = 10        /* how often a worker says how far it is */
};

/* Whether finished tasks are kept, and how they come: by puts, or each call as a job. Those that are kept have a
 * result. */
enum kept { KEPT_NOT, KEPT_TASKS, KEPT_JOBS };

struct settings {
    const char *url;
    long group; /* tasks in a call */
    long ms;    /* how long tasks are put */
    long most;  /* tasks; 0: no limit */
    long rate;  /* tasks a second; 0: as fast as it goes */

    /* Keyline alone. */
    char queue[32];
    char put_sql[128]; /* puts a group of tasks; "": kl_queue_put does */
    long partitions;
    long processes; /* that work; 0: the one that puts */
    long handlers;  /* at once, in all of them together */
    long lease_ms;  /* 0: the usual one; else the first of the processes is killed after a quarter of the time */
    enum kept kept;
};

extern const char payload[PAYLOAD_BYTES + 1];

static inline int64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

enum { PROCESSES_MAX = 16, LATENCIES_MAX = 1 << 20 };

struct latencies {
    atomic_long count;
    int64_t ns[LATENCIES_MAX];
};

/* Producers count here what they put. Processes that were forked share it. */
struct load {
    const struct settings *settings;
    int64_t began_ns;
    long ms;    /* of this part: the warming, or what is measured */
    double wal; /* where the server's log ended then, in bytes */
    atomic_long put, run;
    atomic_long done[PROCESSES_MAX], shards[PROCESSES_MAX]; /* of each process that works */
    atomic_int ends;
    struct latencies picked_up, settled;
};

/* Puts begin now, and nothing was put before. */
void begin(struct load *load, long ms);

/* False: it is time to stop. */
int goes_on(struct load *load);
void make_key(char key[KEY_BYTES + 1], unsigned long number);

/* Latencies, from put to run and to when it is settled durably, of tasks whose payload begins with the time. */
void stamp(char bytes[PAYLOAD_BYTES]);
int64_t stamp_of(const void *bytes);
void note_latency(struct latencies *latencies, int64_t put_ns);

/* Waits until everything that was put has been run. */
void await_run(struct load *load);

/* The same, and prints. */
void finish(struct load *load, int64_t put_ns);

PGconn *open_connection(const struct load *load);

/* Puts groups of tasks by a statement: $1 are their keys, $2 their payloads. */
void produce_sql(struct load *load, const char *sql);

void run_keyline(struct load *load);
void run_table(struct load *load);

#define MUST(condition, text)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "bench-postgres: %s:%d: %s: %s\n", __FILE__, __LINE__, #condition, (text));                \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

#endif
