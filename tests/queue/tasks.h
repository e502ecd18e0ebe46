/* tasks.h - what tests of producers share: all tasks of a queue as the stores show them, outcomes without a worker, and
 * a store that stops in the middle of somebody's call.
 *
 * Nothing here uses what it is to test: lines are scanned, one by one. */
#ifndef TESTS_QUEUE_TASKS_H
#define TESTS_QUEUE_TASKS_H

#include "queue/inside.h"
#include "queue/put.h"
#include "queue/support.h"
#include "store/lossy.h"

struct tasks {
    kl_task *tasks;
    size_t count;
};

/* Everything that waits: by layout, partition, shard and line, in the lines' order. */
struct tasks scan_tasks(kl_queue *queue, kl_arena *arena);

/* Moves everything that waits into the newest layout, as workers would what is delayed: stored there, then gone
 * here. */
void move_tasks(kl_queue *queue);

/* Gives everything that waits this outcome; how many there were. */
size_t settle_tasks(kl_queue *queue, kl_outcome outcome, int64_t keep_ms, const char *error);

static inline bool same_bytes(kl_bytes bytes, const char *text)
{
    return bytes.len == strlen(text) && memcmp(bytes.data, text, bytes.len) == 0;
}

/* Nobody waits: what is slept is added up. */
extern _Atomic int64_t slept_ms;
void sleep_not(int64_t ms);

/* --- A producer that is stopped --- */

/* A store in memory, seen directly (`inner`) and through a wire (`wire`) that somebody can cut after so many calls. */
struct cut {
    kl_store *inner, *wire;
    struct lossy lossy;
    _Atomic int64_t clock_ms;
    _Atomic int armed;
    int calls;                    /* made by way of the wire since it was armed */
    int after;                    /* so many calls are made; */
    bool reply_lost;              /* the last one's answer is lost too */
    bool goes_on;                 /* nothing is cut: */
    void (*meanwhile)(void *ctx); /* this happens after the call, and then it goes on */
    void *ctx;
};

bool cut_open(struct cut *cut);
void cut_close(struct cut *cut);
void cut_arm(struct cut *cut, int after);
bool cut_disarm(struct cut *cut); /* true: it has happened */

#endif
