/* pump.h - one queue's way through a worker: scan -> lanes -> run -> settle. Without threads and with no clock of its
 * own, so that a simulator can drive it; worker.c drives it with threads.
 *
 * All functions are called with the worker's mutex held. Those that call the store leave it meanwhile (opts.leave and
 * opts.enter), so another thread may be inside the pump then. */
#ifndef KL_PUMP_H
#define KL_PUMP_H

#include "keyline/worker.h"
#include "queue/inside.h"

typedef struct kl__pump kl__pump;
typedef struct kl__held kl__held; /* a task in memory */
typedef struct kl__gate kl__gate;
typedef struct kl__keyset kl__keyset;
typedef struct kl__verdict_text kl__verdict_text;

typedef struct kl__pump_opts {
    kl_queue *queue;
    kl_task_id worker; /* 16 random bytes that name the worker */
    const char *worker_name;
    const kl_handler *handlers;     /* only their kinds matter here; must outlive the pump */
    size_t handler_count;           /* 0: runs nothing, only carries out requests */
    const char *shards;             /* that may be taken; NULL: all */
    const kl_layout *shards_layout; /* for which they are named; NULL: the newest */
    const char *partition;          /* only this one, by its name in the store; NULL: all */
    int64_t slice, slices;
    int64_t window_max;
    int64_t concurrency;
    int64_t per_partition; /* tasks of one partition that run at a time; 0: no limit */
    uint64_t seed;
    int64_t (*local_ms)(void *ctx); /* a clock that runs evenly, whatever it shows */
    void *local_ctx;
    void (*leave)(void *ctx); /* NULL: there is no mutex */
    void (*enter)(void *ctx);
    void *mutex_ctx;
    /* Where tasks are given out and not run here (claims.c), with the mutex held: whether somebody wants a task of this
     * kind now, else it is kept by its kind; and, of a finished task with a waiter, what came of settling it, true: the
     * waiter need not be told again. NULL: all are run; nobody waits. */
    bool (*wanted)(void *ctx, kl__held *held, kl_bytes kind);
    bool (*settled)(void *ctx, void *waiter, kl_rc rc);
    void (*ended)(void *ctx, uint32_t partition,
                  kl_outcome outcome); /* of every outcome that is durable; NULL: nobody counts */
    void *giver;
    kl_log_fn *log;
    void *log_ctx;
} kl__pump_opts;

typedef struct kl__pump_counts {
    uint64_t started, done, retried, halted, dead, cancelled, refused, unserved, side_looks, looks;
} kl__pump_counts;

/* What a handler tells while it runs. */
typedef struct kl__progress {
    int percent; /* -1: nothing */
    char text[80];
} kl__progress;

kl_rc kl__pump_open(const kl__pump_opts *opts, kl__pump **ret_pump);
void kl__pump_close(kl__pump *pump); /* nothing may be running; NULL is fine */

/* Ownership and everything that is looked at from time to time: the queue's record, paused keys, cancelled jobs, older
 * layouts, schedules, requests. To be called every kl__pump_beat_ms, and at once when something is to be given back. */
kl_rc kl__pump_beat(kl__pump *pump);

/* Its two halves, for two threads: everything that is looked at, and ownership. */
kl_rc kl__pump_tick(kl__pump *pump);
kl_rc kl__pump_keep(kl__pump *pump);
int64_t kl__pump_beat_ms(const kl__pump *pump);

/* Reads more tasks of the owned shards into memory. *ret_ready: how many are ready to run now. */
kl_rc kl__pump_look(kl__pump *pump, uint64_t *ret_ready);
bool kl__pump_wants_look(kl__pump *pump); /* memory has room, and the store may have more */

/* Takes up to max tasks that may run now, in their order. Each must be followed by finish or untake. */
size_t kl__pump_take(kl__pump *pump, kl__held **ret_held, size_t max);
uint64_t kl__pump_ready(kl__pump *pump);   /* tasks that take would give now, limits left aside */
int64_t kl__pump_next_due(kl__pump *pump); /* when something becomes ready by itself, on the store's clock; KL_NEVER */

/* Reads taken tasks from the store, and makes the starts of suspect ones durable. Fills ret_tasks and ret_extras for
 * those that are to be run and moves them to the front of held; the others (no attempts left, cancelled, unserved,
 * gone, lost) have been dealt with. KL_OK, or the store's error: then all were untaken. */
kl_rc kl__pump_load(kl__pump *pump, kl__held **held, size_t count, kl_arena *arena, kl_task *ret_tasks,
                    kl_task_extra *ret_extras, const kl_handler **ret_handlers, size_t *ret_run);

/* To be asked right before each start, whoever holds the mutex: time may have passed since the task was loaded, and
 * more than anybody thought if the process was stopped. False: it must be untaken (P4). */
bool kl__pump_may_start(const kl__held *held, int64_t local_ms);

/* What came of a run. */
typedef struct kl__verdict {
    kl_outcome outcome;
    int64_t retry_after_ms; /* RETRY: -1: as the queue's back-off says */
    kl_bytes error, result;
    uint32_t attempts_max; /* 0: the queue's */
    int64_t keep_ms;       /* 0: as the queue says */
} kl__verdict;

void kl__pump_finish(kl__pump *pump, kl__held *held, const kl__verdict *verdict);
/* Was not run: costs no attempt. If it was cancelled meanwhile it ends so. keep_ms: how long the task itself says that
 * it is to be kept, where it has been read. */
void kl__pump_untake(kl__pump *pump, kl__held *held);
void kl__pump_give_up(kl__pump *pump, kl__held *held, int64_t keep_ms);

/* For those who give tasks out, all with the kind's hash by kl__owners_kind. Tasks of a kind that nobody wants are kept
 * on its shelf (room.c), up to KL_SHELF_MAX of them; more are set aside, and so is the whole shelf by `unserve`, as
 * where there is no handler. `serve` brings up to max of those back (kind 0: of all kinds) and says how many. */
typedef struct kl__shelf kl__shelf;
void kl__pump_unserve(kl__pump *pump, kl__shelf *shelf);
size_t kl__pump_serve(kl__pump *pump, uint16_t kind, size_t max);

/* Sends outcomes to the store, if there are any and no settle is under way. *ret_sent: how many. */
kl_rc kl__pump_settle(kl__pump *pump, uint64_t *ret_sent);
bool kl__pump_has_finished(const kl__pump *pump); /* outcomes wait to be sent */

/* Starts nothing more; beats then give back what is idle. Gone: every shard has been given back, or
 * its lease is over and the store could not be told. */
void kl__pump_stop(kl__pump *pump);
bool kl__pump_gone(const kl__pump *pump);

/* Nothing that this worker could run waits or runs, as of the last look; delayed tasks, halted and paused keys, kinds
 * without a handler, and everything of a paused queue left aside. */
bool kl__pump_empty(kl__pump *pump);

/* True: the run should end (cancelled, or the shard is lost). */
bool kl__pump_unwanted(const kl__held *held);
void kl__pump_tell(kl__pump *pump, kl__held *held, kl__progress *progress); /* NULL: ended */

kl__pump_counts kl__pump_counted(const kl__pump *pump);
uint64_t kl__pump_held(const kl__pump *pump);
uint64_t kl__pump_running(const kl__pump *pump);
uint64_t kl__pump_unserved(const kl__pump *pump); /* held or passed */
uint64_t kl__pump_shards(const kl__pump *pump);
/* Those in memory that are retrying, paused or halted, for each partition (by its place in its layout) that has shards
 * here. */
void kl__pump_blocked_keys(const kl__pump *pump, void (*visit)(void *ctx, uint32_t partition, uint64_t keys),
                           void *ctx);

#endif
