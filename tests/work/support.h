/* support.h - what tests of whole workers share: a queue on a store, handlers that do as a task's payload says and
 * remember what ran, and ways to wait for it.
 *
 * Payloads are a verb and anything behind it: "done 7", "retry", "fail", "dead", "hold 3", "stuck". */
#ifndef TESTS_WORK_SUPPORT_H
#define TESTS_WORK_SUPPORT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/clock.h"
#include "harness.h"
#include "keyline/control.h"
#include "keyline/keyline.h"
#include "keyline/queue.h"
#include "keyline/worker.h"
#include "store/workdir.h"

enum { WAIT_MS = 60000, RUN_TEXT_BYTES = 48 };

/* --- A queue on a store --- */

struct rig {
    kl_store *store;
    kl_queue *queue;
    char dir[WORKDIR_BYTES]; /* "": there is none */
    _Atomic(int64_t) now_ms; /* the store's clock, if it was asked for */
};

typedef enum rig_kind { RIG_MEMORY, RIG_DISK, RIG_MEMORY_CLOCK, RIG_DISK_CLOCK } rig_kind;

/* A queue "orders". False: it could not be made, and the test has failed. */
bool rig_open(struct rig *rig, rig_kind kind, const kl_queue_opts *opts);
void rig_close(struct rig *rig);
uint64_t rig_waiting(struct rig *rig); /* tasks in all lines */

/* --- Putting --- */

kl_task_id put_task(kl_queue *queue, const char *key, const char *payload);
kl_task_id put_as(kl_queue *queue, const kl_put *put);

/* `each` tasks for each of `keys` keys, "KEY NUMBER" the payload, round and round; the key is prefix and number. */
void put_numbers(kl_queue *queue, const char *prefix, int keys, int each);

/* --- Handlers --- */

struct run {
    char key[RUN_TEXT_BYTES], payload[RUN_TEXT_BYTES], kind[RUN_TEXT_BYTES];
    kl_task_id id;
    uint32_t attempt;
};

/* What ran, in the order of starts. */
struct runs {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct run *list;
    size_t count, room;
    int running, most; /* now, and the most at once */
    bool open;         /* "hold" goes on */
    uint64_t tickets;  /* "hold": so many may go on, one by one */
    size_t ended;
};

void runs_init(struct runs *runs);
void runs_free(struct runs *runs);

/* The handler; ctx is the runs. done: KL_DONE. retry: tried again after 1 ms. fail: tried again after the queue's
 * back-off. dead: KL_DEAD with an error. hold: waits until the runs are opened, or it is cancelled (then KL_RETRY).
 * stuck: only ends when it is cancelled. finish: likewise, but KL_DONE then. result: KL_DONE with the payload as
 * result. */
kl_outcome runs_handle(kl_work *work, void *ctx);

void runs_open(struct runs *runs, bool open);
void runs_let_one(struct runs *runs);
size_t runs_count(struct runs *runs);
size_t runs_of(struct runs *runs, const char *payload); /* how often it was started */
int runs_first(struct runs *runs, const char *payload); /* its place in the order of starts; -1: never */
bool runs_wait(struct runs *runs, size_t count); /* for so many starts; false, and the test fails: they never came */
bool runs_wait_for(struct runs *runs, const char *payload, size_t times);

/* Handler for put_numbers: order, overlap, and now and then a retry. */
enum { ORDER_KEYS_MAX = 10000 };
struct order {
    atomic_int running[ORDER_KEYS_MAX];
    atomic_int next[ORDER_KEYS_MAX];
    atomic_ullong runs, done;
    atomic_bool overlap, disorder;
    int retry_every; /* about every n-th run is to be tried again; 0: none */
    uint64_t seed;
};

kl_outcome order_handle(kl_work *work, void *ctx);
void order_check(const struct order *order, int keys, int each);

/* --- Workers --- */

struct start {
    kl_handler_fn *fn;
    void *ctx;
    const char *kind, *name, *shards;
    int64_t concurrency, per_partition, window_max, slice, slices, stop_ms;
    bool until_empty;
};

/* NULL: it did not start, and the test has failed. */
kl_worker *start_worker(kl_queue *queue, const struct start *start);
kl_worker *start_worker_of_two(kl_queue *first, kl_queue *second, const struct start *start);
void drain_and_close(kl_worker *worker);

/* Waits until a condition holds, looking at it again and again. False, and the test fails: it never did. */
typedef bool condition_fn(void *ctx);
bool await_condition(const char *what, condition_fn *holds, void *ctx);

bool await_shards(kl_worker *worker, uint64_t count);
bool await_done(kl_worker *worker, uint64_t count);
bool await_held(kl_worker *worker, uint64_t count);
bool await_waiting(struct rig *rig, uint64_t count);
bool await_why(struct rig *rig, const char *key, kl_why why); /* what kl_key_show says */
bool await_state(kl_queue *queue, const kl_task_id *id, kl_task_state state);

#endif
