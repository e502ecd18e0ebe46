/* hand.h - pumps driven by hand: no threads, and a clock that stands until a test moves it.
 *
 * Each pump is a process of its own, with its own handle of the queue. One that is not driven any more stands still;
 * after a lease it is as good as dead, and others take its shards unclean. */
#ifndef TESTS_WORK_HAND_H
#define TESTS_WORK_HAND_H

#include <stdatomic.h>

#include "harness.h"
#include "keyline/control.h"
#include "keyline/keyline.h"
#include "work/inside.h"

enum { HAND_PUMPS_MAX = 16, HAND_RUNS_MAX = 64, HAND_STEP_MS = 110, HAND_SHARDS = 16 };

struct hand;

struct hand_pump {
    struct hand *hand;
    kl_queue *queue;
    kl__pump *pump;
    kl_handler handler;
    kl__held *running[HAND_RUNS_MAX];
    size_t running_count;
    kl_arena arena;
};

struct hand {
    _Atomic(int64_t) now_ms;
    kl_store *memory, *store; /* what is put and asked goes to the first; pumps go to the second, if there is one */
    kl_queue *queue;          /* "q" */
    struct hand_pump pumps[HAND_PUMPS_MAX];
    size_t pump_count;
};

bool hand_open(struct hand *hand, const kl_queue_opts *opts); /* false: the test has failed */
void hand_close(struct hand *hand);

/* kind: that it runs; NULL: all. */
struct hand_pump *hand_pump(struct hand *hand, const char *kind);

/* Time moves on by step_ms before each. */
void hand_beats(struct hand_pump *pump, int count, int64_t step_ms);
void hand_looks(struct hand_pump *pump);
void hand_own(struct hand_pump *pump); /* beats until it has all shards of one partition, and looks */

/* Starts one task; "": there is none that may be. Valid until the pump is closed. */
const char *hand_start(struct hand_pump *pump);
kl__held *hand_running(const struct hand_pump *pump, size_t number); /* the latest is 0 */
void hand_end(struct hand_pump *pump, kl__held *held, kl_outcome outcome);
void hand_settle(struct hand_pump *pump);

/* A key of this shard of a queue of one partition and 16 shards, another one for each number. */
void hand_key(uint32_t shard, int number, char ret_key[32]);

kl_task_id hand_put(struct hand *hand, const char *key, const char *payload, int priority);
uint64_t hand_waiting(struct hand *hand);

#endif
