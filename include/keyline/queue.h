/* queue.h - queues: what an application names. Opened on a store, filled by producers, emptied by workers (worker.h).
 *
 *     kl_queue *orders;
 *     kl_put task = {.key = kl_str("customer-7"), .payload = kl_str("charge 12.00")};
 *     if (kl_queue_open(store, "orders", NULL, &orders) != KL_OK ||
 *         kl_queue_put(orders, &task, 1, (kl_bytes){0}, NULL) != KL_OK)
 *         fprintf(stderr, "%s\n", kl_error_text());
 *
 * A queue is one or more partitions, and each partition 16^shard_prefix_len shards. A key belongs to one shard of one
 * partition, so its tasks stand in one line. What a queue is like stands in its record in the store and is the same for
 * everybody; nobody who opens it can have another layout.
 *
 * Every function is safe from any thread, except close and remove. Nothing is kept of the caller's memory after a call
 * returns; what is returned lies in the caller's arrays, and its texts and bytes in the caller's arena. Times are
 * milliseconds; what is judged by a clock is judged by the store's.
 *
 * Errors of every call, beside those that it names: KL_EINVAL: an argument is not valid, and the sentence says which
 * and how it should be; nothing was done. KL_ENOMEM. KL_ENOTFOUND: the queue was removed. KL_EBUSY: the store, or
 * others who change the same records, do not let it just now; call again. KL_EDAMAGED: a record of the queue, or a
 * task, is damaged, and the sentence names it. KL_ESYSTEM, KL_EFULL: as from the store. */
#ifndef KEYLINE_QUEUE_H
#define KEYLINE_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "keyline/store.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KL_QUEUE_NAME_MAX   64    /* letters, digits, '.', '_' and '-', beginning with a letter or digit; no "__p" */
#define KL_QUEUE_STORES_MAX 16    /* stores that partitions of one queue may lie in, beside its own */
#define KL_PUT_MAX          10000 /* tasks in one put */
#define KL_GROUP_BYTES_MAX  128
#define KL_UNIQUE_BYTES_MAX 256
#define KL_TAGS_MAX         16
#define KL_TAG_BYTES_MAX    64
#define KL_HEADERS_MAX      64 /* headers of one task */

typedef struct kl_queue kl_queue;

/* What happens when the first task of a key fails for good. */
typedef enum kl_head_policy {
    KL_HEAD_UNSET,    /* in options: not stated */
    KL_HEAD_CONTINUE, /* it becomes a dead letter, and the key goes on */
    KL_HEAD_HALT,     /* the key stops until somebody acts (kl_key_retry, kl_key_skip, kl_key_drain) */
    KL_HEAD_DRAIN,    /* the rest of the key's line follows it to the dead letters */
} kl_head_policy;

/* What a queue is like. Zero in a field means: not stated. Start from {.size = sizeof(kl_queue_opts)}. Opening
 * states what a queue that does not exist yet shall be like, and what layout is expected of one that does; altering
 * states what is to be changed. */
typedef struct kl_queue_opts {
    size_t size;
    int64_t partitions;         /* 1; 1..KL_PARTITIONS_MAX */
    int64_t shard_prefix_len;   /* 1; 1..4 */
    int64_t attempts_max;       /* 8: how often a task is started before it is dead; 1..KL_ATTEMPTS_MAX */
    int64_t backoff_base_ms;    /* 1 s before the second attempt, doubled each time, with jitter of half of it */
    int64_t backoff_max_ms;     /* 10 min */
    int64_t timeout_ms;         /* none: how long one attempt may run; KL_FOREVER: none */
    int64_t lease_ms;           /* 10 s, on S3 30 s: a worker not heard of for so long loses its shards; 1 s..1 h */
    kl_head_policy head_policy; /* KL_HEAD_CONTINUE */
    int64_t keep_done_ms;       /* not at all: how long done and cancelled tasks are kept; KL_NO_WAIT: not at all */
    int64_t keep_dead_ms;       /* 30 days: how long dead letters are kept */
    int64_t rate;               /* no limit: tasks started per second by all workers together; KL_FOREVER: no limit */
    int64_t burst;              /* 1 s worth of the rate: how many may start at once after a quiet time */
    int64_t concurrency;        /* no limit: tasks running at once in all workers together; KL_FOREVER: no limit */
    const char *const *stores;  /* the URL of the store of each partition, "" for the queue's own; NULL: all there. A
                                   relative disk:PATH counts from the current directory and is kept absolute */
    size_t store_count;         /* of those: 0, or as many as partitions */
    const char *origin;         /* who states it, for error sentences: "--partitions", "keyline.toml line 3"; copied */
} kl_queue_opts;

/* What a queue is like now, every field set; strings last as long as the arena. */
typedef struct kl_queue_info {
    const char *name;
    kl_queue_opts settings;
    bool paused;
    uint64_t layout_number; /* counts changes of the layout, from 1; goes on where a removed queue of the name ended */
    uint64_t layouts_draining; /* older layouts that still hold tasks */
    int64_t created_ms;
    kl_counts counts; /* of all partitions and layouts together; finished_behind also where some of an older layout in
                       * which nothing waits any more could not be asked, and at_least where others could not: */
    const char *away; /* these, and why: "orders__p1: the database is not to be reached; ...", of an older layout also
                       * "orders__p1 of layout 1: ..."; "": there are none */
    uint64_t refused; /* tasks that were put in SQL and cannot be taken in, and stay in the inbox; not in counts */
    const char *refused_why; /* of the first, with what to do; "": there is none */
} kl_queue_info;

/* Opens a queue, which is made when there is none of that name; then it is like opts say, the rest being defaults.
 * opts NULL: nothing is stated. Of a queue that is there, only the layout is compared with what opts state; settings
 * are left as they are (kl_queue_alter). Partitions that lie in other stores have those opened too, once in a
 * process. The queue is the caller's, to be closed; the store must outlive it. KL_EINVAL: a bad name or setting.
 * KL_EMISMATCH: the queue exists with another layout than was stated: the sentence names both and where each came
 * from. As from kl_store_open, where another store has to be opened. */
KL_API KL_MUST_USE kl_rc kl_queue_open(kl_store *store, const char *name, const kl_queue_opts *opts,
                                       kl_queue **ret_queue);

/* The same, but KL_ENOTFOUND when there is none of that name; nothing is made. */
KL_API KL_MUST_USE kl_rc kl_queue_find(kl_store *store, const char *name, kl_queue **ret_queue);

/* Gives the handle's memory back; the queue stays in its store. No other call may be under way or follow, and workers
 * on it must have been closed. NULL is fine. */
KL_API void kl_queue_close(kl_queue *queue);

/* What the queue is like, read anew from its record, with what waits and is kept counted in every partition. */
KL_API KL_MUST_USE kl_rc kl_queue_show(kl_queue *queue, kl_arena *arena, kl_queue_info *ret_info);

/* Names of queues in the store, in order, behind `after` (NULL or "": from the first), at most max (1 or more).
 * ret_names: room for max; the names lie in the arena. */
KL_API KL_MUST_USE kl_rc kl_queue_list(kl_store *store, const char *after, size_t max, kl_arena *arena,
                                       const char **ret_names, size_t *ret_count);

/* Changes what opts state. A new number of partitions or shards opens a new layout at once: tasks put from now on go
 * there, those of the old one are finished first, key by key, so that order per key survives. KL_EBUSY: 15 older
 * layouts still hold tasks, or something that is kept of finished ones (dead letters, results). KL_EINVAL: a bad
 * setting, or a store that cannot do it (it says why). May be repeated after any failure. */
KL_API KL_MUST_USE kl_rc kl_queue_alter(kl_queue *queue, const kl_queue_opts *opts);

/* A paused queue takes tasks and starts none; what runs goes on. Workers see it within about a tenth of a second. Both
 * may be repeated. */
KL_API KL_MUST_USE kl_rc kl_queue_pause(kl_queue *queue);
KL_API KL_MUST_USE kl_rc kl_queue_resume(kl_queue *queue);

/* Removes a queue that is empty and has no worker, with its schedules, its records and what is kept of its tasks. Stop
 * its producers first: a put under way meanwhile is lost with it, later ones get KL_ENOTFOUND. May be repeated, also
 * after a failure. KL_EBUSY: it holds tasks (the sentence says how many), or somebody works on it. On KL_OK the handle
 * can only be closed. */
KL_API KL_MUST_USE kl_rc kl_queue_remove(kl_queue *queue);

/* ---- Producers ---- */

typedef struct kl_header {
    kl_bytes name, value;
} kl_header;

/* A task to be put. Zero in a field means its default. */
typedef struct kl_put {
    kl_queue *queue;       /* NULL: the one that put is called with; else another one, for mixed batches */
    const char *partition; /* the name of one of its partitions, "orders__p1"; NULL: as the key says. A key has its
                            * order within a partition, so name the same for all of its tasks */
    kl_bytes key;          /* up to KL_KEY_BYTES_MAX; none: no order asked */
    kl_bytes kind;
    kl_bytes payload;
    int64_t priority;     /* lower runs first: KL_PRIORITY_MIN..KL_PRIORITY_MAX */
    int64_t delay_ms;     /* not before so long from now; or */
    int64_t due_ms;       /* not before this time of the store's clock */
    int64_t attempts_max; /* the queue's */
    int64_t timeout_ms;   /* the queue's */
    kl_bytes unique;      /* no second task with the same of these within unique_ms */
    int64_t unique_ms;    /* 1 h */
    kl_bytes group;       /* whom it is for: groups get equal shares of the queue's workers */
    kl_bytes traceparent; /* kept with the task and handed to its handler */
    const kl_header *headers;
    size_t header_count;
    const kl_bytes *tags;
    size_t tag_count;
    kl_task_id job;  /* all zero: none (job.h) */
    int64_t job_run; /* which run of its job it belongs to; job.c sets it */
    int64_t keep_ms; /* how long it is kept when it is finished, however it ended; 0: as the queue says */
} kl_put;

/* What became of one. */
typedef struct kl_put_result {
    kl_task_id id;  /* of this task, or of the earlier one that has its unique */
    bool duplicate; /* it was there already: nothing was stored */
} kl_put_result;

/* Puts tasks; durable when it returns KL_OK. Tasks of a call that lie in one store are stored together or not at all
 * where the engine can (KL_STORE_ATOMIC_APPEND), but those with a unique each on their own, before the others.
 * token: any bytes that name this call (up to KL_UNIQUE_BYTES_MAX, empty: none): the same call made again within an
 * hour, by whatever process, stores nothing and returns the first one's results; its traceparents may differ, and no
 * more. ret_results: NULL, or room for one per
 * task. One call takes up to KL_PUT_MAX tasks with KL_BATCH_BYTES_MAX of keys, kinds, headers and payloads together.
 * KL_EINVAL: a limit or option; nothing was stored, and the sentence names the task and what to do. KL_EMISMATCH: the
 * token was used for another call, whose tasks differed in whatever it was. KL_EFULL, KL_ESYSTEM, KL_EBUSY: as from the
 * store, or somebody else puts the same unique or token just now; making the call again with its token is safe, and
 * without one may store tasks twice. */
KL_API KL_MUST_USE kl_rc kl_queue_put(kl_queue *queue, const kl_put *tasks, size_t count, kl_bytes token,
                                      kl_put_result *ret_results);

/* ---- Looking ---- */

/* What a task carries beside what its entry says. */
typedef struct kl_task_extra {
    uint32_t attempts_max; /* 0: the queue's */
    int64_t timeout_ms;    /* 0: the queue's */
    kl_bytes unique, group, traceparent;
    kl_header *headers;
    size_t header_count;
    kl_bytes *tags;
    size_t tag_count;
    kl_task_id origin; /* the dead letter or finished task that it repeats; all zero: none */
    int64_t keep_ms;   /* as kl_put.keep_ms, 0: the queue's */
    int64_t job_run;   /* as kl_put.job_run */
} kl_task_extra;

/* A task with the place where it was found. */
typedef struct kl_found {
    kl_task task;
    kl_task_extra extra;
    const char *queue;
    const char *partition; /* its name, "orders__p1", */
    uint64_t layout;       /* and the number of the layout */
    int64_t made_ms;       /* when it was put, by its id */
} kl_found;

/* One task by its id, waiting or finished; also by the id that it had before the layout was changed. KL_ENOTFOUND: no
 * such task in the queue, or finished and no longer kept. */
KL_API KL_MUST_USE kl_rc kl_queue_task(kl_queue *queue, const kl_task_id *id, kl_arena *arena, kl_found *ret_found);

/* Which waiting tasks to list; zero in a field means any. */
typedef struct kl_waiting {
    kl_bytes key;
    bool due, retry, ready; /* only these lines; none set: all */
    size_t max;             /* 1..1000 */
    size_t look_max;        /* stop after looking at so many: 100,000 */
    kl_bytes cursor;        /* where the last list ended; empty: from the first */
} kl_waiting;

/* Waiting tasks, shard by shard in the order of their lines, the oldest layout first; running ones are among them.
 * ret_found: room for which->max. There may be fewer, down to none, with more to come: ret_cursor is empty only at the
 * end. KL_EINVAL: also for what is no cursor of this list. */
KL_API KL_MUST_USE kl_rc kl_queue_waiting(kl_queue *queue, const kl_waiting *which, kl_arena *arena,
                                          kl_found *ret_found, size_t *ret_count, kl_bytes *ret_cursor);

/* Which finished tasks to list, the latest first. */
typedef struct kl_finished {
    kl_task_state state; /* KL_TASK_UNKNOWN: any */
    kl_bytes key, kind, words;
    kl_task_id job;
    int64_t from_ms, until_ms;
    size_t max; /* 1..1000 */
    kl_bytes cursor;
} kl_finished;

/* Finished tasks of all partitions and layouts in one list. ret_found and ret_cursor as for kl_queue_waiting. */
KL_API KL_MUST_USE kl_rc kl_queue_finished(kl_queue *queue, const kl_finished *which, kl_arena *arena,
                                           kl_found *ret_found, size_t *ret_count, kl_bytes *ret_cursor);

/* ---- Dead letters ---- */

/* What was done. */
typedef struct kl_account {
    uint64_t seen;   /* that fit the filter */
    uint64_t done;   /* retried, moved or purged */
    uint64_t failed; /* could not be; `error` says why for the first */
    char error[256];
    kl_task_id last; /* the new id of the last one that was put again; all zero: none was */
} kl_account;

/* Told now and then of what has been done; false: stop here. */
typedef bool kl_account_fn(void *ctx, const kl_account *account);

typedef struct kl_redrive {
    kl_finished which;   /* its max and cursor are ignored; state KL_TASK_UNKNOWN means dead */
    kl_task_id id;       /* only this one; all zero: all that fit */
    uint64_t max;        /* no more than so many; 0: all */
    int64_t rate;        /* tasks per second; 0: as fast as it goes */
    kl_queue *to;        /* move: where to */
    kl_account_fn *told; /* NULL: nobody */
    void *told_ctx;
} kl_redrive;

/* Puts dead letters back at the end of their keys' lines, the oldest first, with all their attempts before them;
 * into another queue; or forgets them. What was put into a partition by name is put back into that one, while the queue
 * has it. What was put back is forgotten as a dead letter. What is moved leaves its unique behind, and what is moved or
 * purged its job, which then has so many tasks less. Only what had died when the call began is looked at. A repeat
 * after a failure doubles nothing that was put back within the last ten minutes. `told` is called on the caller's
 * thread.
 *
 * Returns KL_OK with an account also when some failed. *ret_account is set whatever is returned: it says what was done
 * before a failure, too. KL_EBUSY: the store did not let some be put back, and what died after them waits for them;
 * call again. KL_ENOTFOUND: the one task that `id` names is no dead letter of the queue. KL_EINVAL: move without `to`,
 * or to the same queue; the others with one. */
KL_API KL_MUST_USE kl_rc kl_dead_retry(kl_queue *queue, const kl_redrive *which, kl_account *ret_account);
KL_API KL_MUST_USE kl_rc kl_dead_move(kl_queue *queue, const kl_redrive *which, kl_account *ret_account);
KL_API KL_MUST_USE kl_rc kl_dead_purge(kl_queue *queue, const kl_redrive *which, kl_account *ret_account);

#ifdef __cplusplus
}
#endif
#endif
