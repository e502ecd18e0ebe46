/* bench.h - what the sides of this benchmark share.
 *
 * A side puts tasks of 200 B over 1,000 keys from two threads for some time, in calls of `group`, runs them as they come,
 * and ends when all have been run and settled. It prints one line: name value name value. */
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

enum { PRODUCERS = 2, CONSUMERS = 2, KEYS = 1000, PAYLOAD_BYTES = 200, KEY_BYTES = 12, GROUP_MAX = 10000 };

struct settings {
    const char *url;
    long group; /* tasks in a call */
    long ms;    /* how long tasks are put */
    long most;  /* tasks; 0: no limit */
    long rate;  /* tasks a second; 0: as fast as it goes */
};

extern const char payload[PAYLOAD_BYTES + 1];

static inline int64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* Producers count here what they put; false: it is time to stop. */
struct load {
    const struct settings *settings;
    int64_t began_ns;
    atomic_long put, run;
};

int goes_on(struct load *load);
void make_key(char key[KEY_BYTES + 1], unsigned long number);

/* Latency from put to run, of tasks whose payload begins with the time. */
void stamp(char bytes[PAYLOAD_BYTES]);
void note_latency(const void *bytes);

/* Waits for everything that was put, and prints. */
void finish(struct load *load, int64_t put_ns);

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
