/* control.h - steering what waits and runs: single tasks and single keys, wherever their worker is.
 *
 * A task's shard has one owner, and only the owner may settle. So these calls leave a request in the store, which
 * the owner carries out and answers within about a tenth of a second; when no worker owns the shard, the call takes
 * it for a moment and acts itself.
 *
 * Every function is safe from any thread. Nothing is kept of the caller's memory after a call returns. What is returned
 * lies in the caller's arrays and arena, keys too, and lasts as long as those; sentences that say why are constant. Of
 * pointers, `partition`, ret_running, ret_id and ret_count of what was done (not of a list) may be NULL, and no other.
 *
 * Errors of every call, beside those of queue.h and those that it names: KL_ETIMEDOUT: no answer within
 * KL_CONTROL_WAIT_MS, and it may still be carried out. KL_EBUSY: the store is, and likewise; call again. All may be
 * repeated, but a skip that was carried out after all is then a second one. A worker that has lost the shard does not
 * answer: whoever has it does. */
#ifndef KEYLINE_CONTROL_H
#define KEYLINE_CONTROL_H

#include "keyline/queue.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KL_CONTROL_WAIT_MS 30000

/* Ends a waiting task as cancelled; asks a running one to stop, after which it ends as cancelled unless it is done.
 * KL_ENOTFOUND: it has ended or never was. ret_running (or NULL): whether it was running; then only its worker knows
 * that it is to stop, and when that loses the shard before the task ends, it is run again. */
KL_API KL_MUST_USE kl_rc kl_task_cancel(kl_queue *queue, const kl_task_id *id, bool *ret_running);

/* Lets a waiting task be tried now, with all its attempts before it, instead of when its back-off or delay is over. It
 * passes nobody: one that waits in line stays where it is. A dead or otherwise finished task, also one that ends
 * meanwhile, is put again, as by kl_dead_retry. ret_id (or NULL): the same, or the new id of one that was put again.
 * KL_EBUSY: it is running, or it is delayed and others of its key come before it, by (priority, due time, position).
 * KL_ENOTFOUND: it is not known, or no longer kept. */
KL_API KL_MUST_USE kl_rc kl_task_retry(kl_queue *queue, const kl_task_id *id, kl_task_id *ret_id);

/* Puts a task that waits, or is finished and kept, into another queue, and ends it here; it leaves its unique behind,
 * and its job, which then has a task less. ret_id (or NULL): its id there. It is put there first. KL_EBUSY: it is
 * running here, and KL_ENOTFOUND: it has ended here, or is not known; what was put there is taken back, unless the
 * sentence says that it was not: because it runs there already, or an earlier call has put it. After any other failure
 * it may be in both; a repeat within an hour puts it no second time. KL_EINVAL: `to` is NULL, or its own queue. */
KL_API KL_MUST_USE kl_rc kl_task_move(kl_queue *queue, const kl_task_id *id, kl_queue *to, kl_task_id *ret_id);

/* Ends all waiting tasks of the queue as cancelled, those that run excepted, shard by shard; *ret_count (or NULL) says
 * how many. After a failure some may have been ended. */
KL_API KL_MUST_USE kl_rc kl_queue_purge(kl_queue *queue, uint64_t *ret_count);

/* Why a key, or a task at the head of its key, does not run right now. */
typedef enum kl_why {
    KL_WHY_IDLE,     /* no task of it waits */
    KL_WHY_READY,    /* nothing is in its way: it waits for a free thread */
    KL_WHY_RUNNING,  /* its first task runs */
    KL_WHY_RETRYING, /* its first task failed and is tried again at until_ms */
    KL_WHY_DELAYED,  /* its first task is not due before until_ms */
    KL_WHY_PAUSED,   /* somebody paused the key */
    KL_WHY_HALTED,   /* its first task failed for good and somebody must act */
    KL_WHY_QUEUE_PAUSED,
    KL_WHY_KIND,      /* no worker has a handler for the kind of its first task */
    KL_WHY_LAYOUT,    /* tasks of it in an older layout come first */
    KL_WHY_RATE,      /* the queue's rate or concurrency is used up */
    KL_WHY_NO_WORKER, /* no worker owns its shard */
    KL_WHY_PARTITION, /* its worker runs as many tasks of its partition as it may (per_partition) */
} kl_why;

typedef struct kl_key_status {
    kl_bytes key;
    const char *partition; /* where this is so: "orders__p1", */
    uint64_t layout;       /* of this layout; in lists of keys NULL and 0 */
    kl_why why;
    const char *reason; /* a sentence for people that says what to do */
    uint64_t waiting;   /* tasks of the key there, the running one included; at least, if more */
    bool at_least;
    int64_t until_ms;   /* RETRYING, DELAYED */
    kl_task_id head;    /* its first task; all zero: none */
    int64_t oldest_ms;  /* when the oldest of its tasks was put, by its id; only in lists, else 0 */
    uint32_t attempts;  /* of that; in lists a halted one counts as having used all that it had */
    const char *error;  /* of its last attempt, or "" */
    const char *owner;  /* the worker that owns the shard, or "" */
    int64_t running_ms; /* RUNNING: for so long */
    int percent;        /* RUNNING: progress, or -1 */
    const char *progress;
} kl_key_status;

/* Why the key waits, asked of the owner of its shard in the oldest layout that holds something of it; only `waiting`
 * counts its tasks everywhere. KL_EINVAL: no key, or too long a one. */
KL_API KL_MUST_USE kl_rc kl_key_show(kl_queue *queue, kl_bytes key, kl_arena *arena, kl_key_status *ret_status);

/* The same of each partition and layout in which tasks of the key wait, the oldest layout first; where none does, of
 * the one that its next would go to. Tasks that were put into a partition by name (kl_put.partition) are a line of
 * their own there, beside the key's others. partition: only of this one; NULL: all. Up to max, 1 or more, for which
 * ret_places has room. KL_EINVAL: no key, too long a one, or no such partition. */
KL_API KL_MUST_USE kl_rc kl_key_places(kl_queue *queue, kl_bytes key, const char *partition, size_t max,
                                       kl_arena *arena, kl_key_status *ret_places, size_t *ret_count);

/* Which keys come first in a list. */
typedef enum kl_key_order {
    KL_KEYS_UNSET,    /* as BY_DEPTH */
    KL_KEYS_BY_DEPTH, /* the longest lines */
    KL_KEYS_BY_AGE,   /* those with the oldest tasks */
    KL_KEYS_BY_STATE, /* those that are held up: halted, paused, of a kind that nobody runs, retrying, delayed, then the
                       * rest; of each the longest lines */
} kl_key_order;

/* Keys with waiting tasks, in this order, among the first look_max tasks that wait (0: 100,000); max 1..1,000, and
 * ret_keys has room for so many. No worker is asked: `why` is what the store's records tell, so READY may be running,
 * held by an older layout, or by a rate; and reason, error, owner and progress are empty. */
KL_API KL_MUST_USE kl_rc kl_key_list(kl_queue *queue, kl_key_order order, size_t look_max, size_t max, kl_arena *arena,
                                     kl_key_status *ret_keys, size_t *ret_count);

/* A paused key starts no tasks until it is resumed, in any partition and whoever owns its shard; what runs goes on.
 * Resume also tries the key's first task now, if it is halted or retrying, with all attempts again, in each partition.
 * Workers hear of a pause within a tenth of a second. KL_EINVAL: no key, or too long a one. */
KL_API KL_MUST_USE kl_rc kl_key_pause(kl_queue *queue, kl_bytes key);
KL_API KL_MUST_USE kl_rc kl_key_resume(kl_queue *queue, kl_bytes key);

/* Retry tries the key's first task again now, with all attempts; KL_EBUSY: it is running. Skip ends it as cancelled;
 * *ret_id (or NULL) says which it was, and KL_EBUSY that it is running. Drain ends all of its tasks that are not
 * running as cancelled (dead: as dead letters; what has failed before keeps its own error), in all layouts; *ret_count
 * (or NULL) says how many: fewer, where the store failed meanwhile and some were ended at a second go.
 *
 * partition: only there; NULL: wherever the key has tasks. In several partitions it has several first tasks: retry
 * tries each of them, and skip is KL_EINVAL until one partition is named. KL_ENOTFOUND: none waits. KL_EINVAL: no key,
 * too long a one, or no such partition. */
KL_API KL_MUST_USE kl_rc kl_key_retry(kl_queue *queue, kl_bytes key, const char *partition);
KL_API KL_MUST_USE kl_rc kl_key_skip(kl_queue *queue, kl_bytes key, const char *partition, kl_task_id *ret_id);
KL_API KL_MUST_USE kl_rc kl_key_drain(kl_queue *queue, kl_bytes key, const char *partition, bool dead,
                                      uint64_t *ret_count);

/* A worker of the queue, as it last told. */
typedef struct kl_worker_status {
    const char *name;
    uint64_t shards, running, concurrency;
    int64_t seen_ms; /* on the store's clock */
} kl_worker_status;

/* Workers that are alive, by name, up to max, for which ret_workers has room; shards are those of all partitions
 * together. Workers of one name count as one. */
KL_API KL_MUST_USE kl_rc kl_queue_workers(kl_queue *queue, size_t max, kl_arena *arena, kl_worker_status *ret_workers,
                                          size_t *ret_count);

#ifdef __cplusplus
}
#endif
#endif
