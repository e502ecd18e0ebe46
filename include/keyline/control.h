/* control.h - steering what waits and runs: single tasks and single keys, wherever their worker is.
 *
 * A task's shard has one owner, and only the owner may settle. So these calls leave a request in the store, which the
 * owner carries out and answers; when no worker owns the shard, the call takes it for a moment and acts itself. Requests
 * wait up to KL_CONTROL_WAIT_MS; KL_ETIMEDOUT: no answer by then, and it may still be carried out. All may be repeated. */
#ifndef KEYLINE_CONTROL_H
#define KEYLINE_CONTROL_H

#include "keyline/queue.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KL_CONTROL_WAIT_MS 30000

/* Ends a waiting task as cancelled; asks a running one to stop, after which it ends as cancelled unless it is done.
 * KL_ENOTFOUND: it has ended or never was. ret_running: whether it was running. */
KL_API KL_MUST_USE kl_rc kl_task_cancel(kl_queue *queue, const kl_task_id *id, bool *ret_running);

/* Lets a waiting task be tried now, with all its attempts before it, instead of when its back-off or delay is over. A dead
 * or otherwise finished task is put again, as by kl_dead_retry. */
KL_API KL_MUST_USE kl_rc kl_task_retry(kl_queue *queue, const kl_task_id *id, kl_task_id *ret_id);

/* Puts a task that waits, or is finished and kept, into another queue, and ends it here. KL_EBUSY: it is running. */
KL_API KL_MUST_USE kl_rc kl_task_move(kl_queue *queue, const kl_task_id *id, kl_queue *to, kl_task_id *ret_id);

/* Ends all waiting tasks of the queue as cancelled, those that run excepted; *ret_count says how many. */
KL_API KL_MUST_USE kl_rc kl_queue_purge(kl_queue *queue, uint64_t *ret_count);

/* Why a key, or a task at the head of its key, does not run right now. */
typedef enum kl_why {
    KL_WHY_IDLE,        /* no task of it waits */
    KL_WHY_READY,       /* nothing is in its way: it waits for a free thread */
    KL_WHY_RUNNING,     /* its first task runs */
    KL_WHY_RETRYING,    /* its first task failed and is tried again at until_ms */
    KL_WHY_DELAYED,     /* its first task is not due before until_ms */
    KL_WHY_PAUSED,      /* somebody paused the key */
    KL_WHY_HALTED,      /* its first task failed for good and somebody must act */
    KL_WHY_QUEUE_PAUSED,
    KL_WHY_KIND,        /* no worker has a handler for the kind of its first task */
    KL_WHY_LAYOUT,      /* tasks of it in an older layout come first */
    KL_WHY_RATE,        /* the queue's rate or concurrency is used up */
    KL_WHY_NO_WORKER,   /* no worker owns its shard */
} kl_why;

typedef struct kl_key_status {
    kl_bytes key;
    kl_why why;
    const char *reason; /* a sentence for people that says what to do */
    uint64_t waiting;   /* tasks of the key, the running one included; at least, if more */
    bool at_least;
    int64_t until_ms;   /* RETRYING, DELAYED */
    kl_task_id head;    /* its first task; all zero: none */
    uint32_t attempts;  /* of that */
    const char *error;  /* of its last attempt, or "" */
    const char *owner;  /* the worker that owns the shard, or "" */
    int64_t running_ms; /* RUNNING: for so long */
    int percent;        /* RUNNING: progress, or -1 */
    const char *progress;
} kl_key_status;

/* KL_EINVAL: no key, or too long a one. */
KL_API KL_MUST_USE kl_rc kl_key_show(kl_queue *queue, kl_bytes key, kl_arena *arena, kl_key_status *ret_status);

/* Keys with waiting tasks, longest lines first among the first look_max tasks that wait (0: 100,000). */
KL_API KL_MUST_USE kl_rc kl_key_list(kl_queue *queue, size_t look_max, size_t max, kl_arena *arena,
                                     kl_key_status *ret_keys, size_t *ret_count);

/* A paused key starts no tasks until it is resumed, whoever owns its shard. Resume also wakes a halted or retrying key,
 * giving its first task all attempts again. */
KL_API KL_MUST_USE kl_rc kl_key_pause(kl_queue *queue, kl_bytes key);
KL_API KL_MUST_USE kl_rc kl_key_resume(kl_queue *queue, kl_bytes key);

/* Tries the key's first task again now, with all attempts; ends its first task as cancelled; ends all of its tasks that
 * are not running as cancelled (dead: as dead letters). KL_ENOTFOUND: there is none. KL_EBUSY: the first is running. */
KL_API KL_MUST_USE kl_rc kl_key_retry(kl_queue *queue, kl_bytes key);
KL_API KL_MUST_USE kl_rc kl_key_skip(kl_queue *queue, kl_bytes key, kl_task_id *ret_id);
KL_API KL_MUST_USE kl_rc kl_key_drain(kl_queue *queue, kl_bytes key, bool dead, uint64_t *ret_count);

/* A worker of the queue, as it last told. */
typedef struct kl_worker_status {
    const char *name;
    uint64_t shards, running, concurrency;
    int64_t seen_ms; /* on the store's clock */
} kl_worker_status;

KL_API KL_MUST_USE kl_rc kl_queue_workers(kl_queue *queue, size_t max, kl_arena *arena, kl_worker_status *ret_workers,
                                          size_t *ret_count);

#ifdef __cplusplus
}
#endif
#endif
