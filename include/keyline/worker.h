/* worker.h - workers: take shards of queues, run their tasks, settle what came of them.
 *
 *     static kl_outcome charge(kl_work *work, void *ctx) { ... kl_work_payload(work) ... return KL_DONE; }
 *
 *     kl_handler handlers[] = {{.kind = "charge", .fn = charge}};
 *     kl_worker_queue served = {.queue = orders, .handlers = handlers, .handler_count = 1};
 *     kl_worker *worker;
 *     if (kl_worker_start(&served, 1, NULL, &worker) != KL_OK || kl_worker_drain(worker, KL_FOREVER) != KL_OK)
 *         fprintf(stderr, "%s\n", kl_error_text());
 *     kl_worker_close(worker);
 *
 * Promises
 *   W1  Tasks of one key never overlap while this worker's lease holds, and start in the order (priority, due time,
 *       position), as of the worker's last look: what is put, or becomes due, after that may be passed by a task of its
 *       key that was there before (docs/queue.md, "Known limits", says for how long). A task that is to be retried
 *       holds its key until it ends, and no other key.
 *   W2  A task is run at least once. After a crash the tasks of a key that were not settled are run again, in order,
 *       beginning with the first of them.
 *   W3  What a worker says of a task counts only while it owns the task's shard.
 *   W4  A task that ends its process every time runs out of attempts all the same, and those that ran beside it do not
 *       (docs/queue.md, "Attempts"); a drain or a stop costs none.
 *   W5  Memory is bounded by window_max for each queue, however many tasks wait, and by what cannot be left out: of
 *       each key that failed, or whose first task is of a kind that nobody serves, that task, up to some 700 bytes;
 *       tasks without a key of such kinds that had a delay or were tried, some 200 bytes each; as many tasks again as
 *       window_max, or one for each group where there are more; and, of each key with tasks that were read and found no
 *       room, where these begin: some 100 bytes in each line of its shard, for up to 1,048,576 keys in each
 *       (docs/queue.md).
 *
 * Any number of workers, in any number of processes where the store allows it, share the shards of a queue.
 *
 * Functions of kl_worker are safe from any thread, except close, which must be the last; a handler must not wait for
 * its own worker. Functions of kl_work are for the handler that it was passed to, on its thread. */
#ifndef KEYLINE_WORKER_H
#define KEYLINE_WORKER_H

#include "keyline/exec.h"
#include "keyline/queue.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KL_WORKER_QUEUES_MAX  64
#define KL_WORKER_THREADS_MAX 1024
#define KL_HANDLERS_MAX       256

typedef struct kl_worker kl_worker;
typedef struct kl_work kl_work; /* one attempt of one task, valid while its handler runs */

/* Runs on one of the worker's threads; may block. Whatever it does may be done again: tasks are run at least once. It
 * must look at kl_work_cancelled itself if it takes long: nothing stops a thread. KL_CANCELLED is taken as KL_DEAD,
 * what is no outcome as KL_RETRY. */
typedef kl_outcome kl_handler_fn(kl_work *work, void *ctx);

typedef struct kl_handler {
    const char *kind; /* exactly this kind; NULL: every kind that no other handler is for, and none */
    kl_handler_fn *fn;
    void *ctx;
} kl_handler;

/* A queue to be served. */
typedef struct kl_worker_queue {
    kl_queue *queue;
    const kl_handler *handlers; /* tasks of other kinds are left to other workers, and shown as waiting for one */
    size_t handler_count;
    int64_t weight;        /* 1: its share of the threads when all queues have work */
    int64_t min;           /* 0: threads that are kept for it alone */
    const char *shards;    /* "00-3f", "0,1,8-f": only these shards of each partition; NULL: any */
    int64_t slice, slices; /* or only the part number `slice` (from 0) of `slices` equal ones; slices 0: any */
    int64_t per_partition; /* 0: no limit; else at most so many of each of its partitions' tasks run here at a time */
} kl_worker_queue;

/* Zero in a field means its default; start from {.size = sizeof(kl_worker_opts)}. */
typedef struct kl_worker_opts {
    size_t size;
    const char *name;    /* for people: host and pid */
    int64_t concurrency; /* threads: the cores this process may use */
    int64_t window_max;  /* tasks of a queue held in memory, but see W5: 65,536; 1,024..16,777,216 */
    int64_t stop_ms;     /* how long a drain lets running tasks go on before it gives them up: KL_FOREVER */
    bool until_empty;    /* drains by itself once no task of its queues waits, or runs, that it could run */
    kl_log_fn *log;
    void *log_ctx;
} kl_worker_opts;

/* Starts a worker, which is the caller's, to be closed. The queues and what handlers' ctx point to must outlive it; all
 * else is copied. KL_EINVAL: a setting is out of range, the minimums exceed the concurrency or what per_partition lets
 * run, one kind has two handlers, one queue is named twice, or `shards` are none of its layout. KL_ENOMEM. KL_ESYSTEM:
 * no more threads. What fails later, such as a store that is away, is tried again; `log` is told at once, then at
 * intervals that double up to five minutes, and when it works again: that of the store where it knows of it first, else
 * the worker's. Where queues were opened with several kl_stores, these are hasty from then on (kl_store_opts), so that
 * a database that is away holds up only its own queues; not so a bucket (s3:), whose calls try for up to 20 s each. */
KL_API KL_MUST_USE kl_rc kl_worker_start(const kl_worker_queue *queues, size_t count, const kl_worker_opts *opts,
                                         kl_worker **ret_worker);

/* Starts no more tasks, lets the running ones end (stop_ms), settles everything, and gives the shards back at once. A
 * store that cannot be reached, that is silent, or that refuses outcomes, is tried for as long as the queue's lease;
 * then others take the shards by themselves. Calls of the store that have waited for its server for so long fail then
 * with KL_EBUSY, also those of other threads that use the same kl_store. Waits for that up to wait_ms, 0: not at all;
 * KL_ETIMEDOUT: not yet, call again or close. What was given up is run again by the next owner and costs no attempt.
 * May be repeated. */
KL_API KL_MUST_USE kl_rc kl_worker_drain(kl_worker *worker, int64_t wait_ms);

/* With until_empty: waits until nothing was left to do and it has drained by itself. Without, until somebody drains it.
 * KL_ETIMEDOUT: not within wait_ms. */
KL_API KL_MUST_USE kl_rc kl_worker_wait(kl_worker *worker, int64_t wait_ms);

/* Ends it, draining first if that was not done; running handlers are asked to stop and waited for. A store that is
 * silent is waited for as for kl_worker_drain, but up to five seconds. NULL is fine. */
KL_API void kl_worker_close(kl_worker *worker);

typedef struct kl_worker_info {
    uint64_t shards; /* owned now */
    uint64_t held;   /* tasks in memory */
    uint64_t running;
    uint64_t started, done, retried, dead, cancelled; /* since the start */
    uint64_t halted;   /* failed for good and hold their keys until somebody acts, since the start */
    uint64_t unserved; /* tasks of its shards whose kind it has no handler for, of those that it has read */
    uint64_t refused;  /* outcomes that came too late: another worker owns the shard */
    int64_t broken_ms; /* so long has a store failed for good (KL_CLASS_FATAL) and taken no outcome, or 0 */
} kl_worker_info;

/* Counters, as of now. */
KL_API kl_worker_info kl_worker_show(kl_worker *worker);

/* Counters in Prometheus text, in the arena, with a zero byte behind. KL_ENOMEM. */
KL_API KL_MUST_USE kl_rc kl_worker_metrics(kl_worker *worker, kl_arena *arena, kl_bytes *ret_text);

/* Inside a handler. None of these fails, but for kl_work_result. What is returned belongs to the worker and lasts until
 * the handler returns. */
KL_API kl_task_id kl_work_id(const kl_work *work);
KL_API const char *kl_work_queue(const kl_work *work);
KL_API const char *kl_work_partition(const kl_work *work); /* its name, "orders__p1"; in each layout the same */
KL_API uint64_t kl_work_layout(const kl_work *work);       /* the number of the layout that the task lies in, from 1 */
KL_API kl_bytes kl_work_key(const kl_work *work);
KL_API kl_bytes kl_work_kind(const kl_work *work);
KL_API kl_bytes kl_work_payload(const kl_work *work);
KL_API const kl_task *kl_work_task(const kl_work *work);
KL_API const kl_task_extra *kl_work_extra(const kl_work *work);
KL_API uint32_t kl_work_attempt(const kl_work *work); /* 1 for the first */

/* Milliseconds until the attempt has run for as long as it may, 0 when it has; KL_FOREVER: no limit. */
KL_API int64_t kl_work_timeout_ms(const kl_work *work);

/* It was cancelled or timed out, the worker is giving up, or the shard is lost: better return. KL_DONE counts
 * all the same, unless the shard is lost. */
KL_API bool kl_work_cancelled(const kl_work *work);

/* Why it fails; kept up to KL_ERROR_BYTES_MAX, the last call's. */
KL_API void kl_work_error(kl_work *work, const char *format, ...) KL_PRINTF(2, 3);

/* What the run returned: copied, the last call's. It is kept when the task is, and not of an attempt that is to be
 * repeated. KL_EINVAL: over KL_RESULT_BYTES_MAX. KL_ENOMEM. */
KL_API KL_MUST_USE kl_rc kl_work_result(kl_work *work, kl_bytes result);

/* How long to wait instead of the back-off, if KL_RETRY is returned. */
KL_API void kl_work_retry_after(kl_work *work, int64_t delay_ms);

/* Shown while it runs (kl_key_show); -1: no figure. The text is copied, up to 79 bytes of it. */
KL_API void kl_work_progress(kl_work *work, int percent, const char *text);

#ifdef __cplusplus
}
#endif
#endif
