/* job.h - what the files about jobs share: the job's record, its marks, the merge of its results, the ids of its tasks.
 *
 * Reading order: job.c (record, show, list, add) -> job_submit.c (putting tasks) -> idempotency.c (the claim around it)
 * -> job_results.c (the merge) -> job_rerun.c -> job_cancel.c (cancel, remove, what workers ask).
 *
 * Records of a job, in the queue's own store:
 *
 *     job/QUEUE/ID             what kl__job says
 *     added/QUEUE/ID-HASH      an add that is counted, of which the job's record has no more room to say so (job.c)
 *     cancel/QUEUE/ID          {"run": n, "removed": false}: tasks of run n and before are not to be started
 *     idempotency/QUEUE/HASH   idempotency.c
 *
 * A job's id is made like a task's of a layout with 16 shards, in shard 0, whatever layout the queue has: so ids of
 * jobs sort by time, and a change of the layout changes nothing about that.
 *
 * JB1  The record of a job is written before its first task and removed after its last result.
 * JB2  The id of a task of a job follows from the job's id and the task's place in it; that of a task that is put again
 *      from its old id and the run. A repeat makes the same ids.
 * JB3  Tasks of a cancelled run are told from later ones by the run that they carry, so a worker that has not heard of
 *      a rerun yet does no harm to it. */
#ifndef KL_QUEUE_JOB_H
#define KL_QUEUE_JOB_H

#include "keyline/job.h"
#include "queue/inside.h"
#include "queue/record.h"

enum {
    KL_JOB_LEASE_MS = 30000, /* of a submit or rerun under way: not heard of for so long, it has died */
    KL_JOB_LOOK_MS = 5000,   /* who was held up for so long looks before it puts: somebody may have taken over */
    KL_SHA256_BYTES = 32,
    KL_SHA256_TEXT_BYTES = 2 * KL_SHA256_BYTES + 1,
};

/* --- job.c: the record --- */

typedef struct kl__job {
    kl_task_id id;
    uint64_t version;        /* of the record; 0: not written yet */
    const char *name;        /* "": none; lies in the arena */
    const char *idempotency; /* the name of its idempotency record; "": none; lies in the arena */
    uint64_t layout;         /* number of the newest layout when it was submitted: no task of it lies in an older one */
    uint32_t shard_prefix_len; /* of that */
    uint64_t tasks;            /* submitted and added, without those that have left it */
    const char *adds;          /* the latest adds that are counted in it (job.c); lies in the arena */
    bool complete;             /* all of them were put */
    int64_t run;               /* from 1 */
    int64_t created_ms, due_ms, keep_ms, expires_ms;

    /* A rerun */
    int64_t run_ms;            /* when the latest run began */
    int64_t shift_ms;          /* by how much ids of the latest run are later than what they repeat */
    int64_t rerun_until_ms;    /* under way: its lease; 0: none is */
    uint64_t rerun_layout;     /* of the one under way: the newest when it began, */
    uint32_t rerun_prefix_len; /* and its shard_prefix_len */
    bool failed_only;          /* of the one under way */
    const char *nonce;         /* whose it is; "" or in the arena */
} kl__job;

/* KL_ENOTFOUND, with a sentence. */
kl_rc kl__job_read(kl_queue *queue, const kl_task_id *id, kl_arena *arena, kl__job *ret_job);

/* Writes if the version is still the one in the job, and sets the new one. KL_ECONFLICT: it is not. */
kl_rc kl__job_write(kl_queue *queue, kl__job *job);

/* The job with its progress, as of now; text lies where the job's does. *ret_behind: more may have finished. */
kl_rc kl__job_tell(kl_queue *queue, const kl__job *job, kl_job_info *ret_info, bool *ret_behind);

/* So many of its tasks were moved elsewhere or purged, and are the job's no more. A job that is gone is fine. */
kl_rc kl__job_leave(kl_queue *queue, const kl_task_id *id, uint64_t count);

/* The name of a record about this job: "job/orders/0019...". */
kl_bytes kl__job_record_name(const kl_queue *queue, const char *kind, const kl_task_id *id,
                             char buffer[KL_RECORD_NAME_BYTES]);

/* 16 hex digits that nobody else has. */
enum { KL_NONCE_BYTES = 17 };
void kl__nonce(char ret_nonce[KL_NONCE_BYTES]);

/* --- job_submit.c --- */

/* What a submit asks for, checked and complete. */
typedef struct kl__submit {
    kl_queue *queue;
    kl_job_spec spec; /* every field set but keys and pointers */
    int64_t now_ms;   /* when it began, on the store's clock */
    bool careful;     /* somebody may have put some of these tasks already: look before each batch */
    size_t put;       /* tasks that are known to have been put, a whole number of batches */
    void *claim;      /* of idempotency.c */
    kl_rc (*renew)(struct kl__submit *submit); /* called after each batch but the last; NULL: nobody */
} kl__submit;

/* A new job for the submit: its id and what the ids of its tasks follow from. */
kl_rc kl__job_begin(const kl__submit *submit, kl__job *ret_job);

/* Writes the record unless it is there, puts the tasks from submit->put on, and writes that it is complete. Fills in
 * the rest of the job. KL_ECONFLICT only from renew. KL_ECLOSED: it was removed meanwhile. */
kl_rc kl__job_put_all(kl__submit *submit, kl__job *job, kl_arena *arena);

/* A task of a job on its way into a store. */
typedef struct kl__job_task {
    kl_entry entry;        /* id and bytes set; the place is chosen by the call */
    uint64_t spread;       /* decides where it goes when it has no key; the same on a repeat */
    const char *partition; /* the name of the one it must go to; NULL: as key or spread say */
    bool by_name;          /* that is not its key's, in the layout where it is being placed */
    kl_store *store;       /* set by the call */
    bool stored;           /* likewise */
} kl__job_task;

/* The layout that ids were made with; of it the shard_prefix_len counts. */
typedef struct kl__job_made {
    uint64_t number;
    kl_layout layout;
} kl__job_made;

/* The shard that a task of this key or spread has in a layout. */
uint32_t kl__job_shard(const kl_layout *layout, kl_bytes key, uint64_t spread);

/* Puts tasks whose ids were made with `made`. careful: those that are known under these ids, waiting or kept, are left
 * out. When that layout is no longer the newest, they get the ids that they have in the newest, layout by layout, and
 * what older ones took before they were sealed is left out. *ret_put: how many were put now. */
kl_rc kl__job_put(kl_queue *queue, kl__job_task *tasks, size_t count, kl__job_made made, bool careful,
                  uint64_t *ret_put);

/* --- idempotency.c --- */

kl_rc kl__idempotent_submit(kl__submit *submit, kl_job_answer *ret_answer, int64_t *ret_retry_ms);

/* Removes the record of this name if it is this job's. */
kl_rc kl__idempotency_forget(kl_queue *queue, const char *name, const kl_task_id *job);

/* --- job_results.c: all finished tasks of a job in the order of their ids --- */

/* A finished task, and where it was found. */
typedef struct kl__merged {
    kl_task task;
    const kl__queue_layout *layout;
    uint32_t partition; /* of the layout */
} kl__merged;

typedef struct kl__job_page {
    kl__merged *rows; /* room for max */
    size_t max;
    size_t count;  /* set by the call: may be fewer than max where they are large */
    bool ended;    /* likewise: there are no more behind these */
    uint64_t read; /* likewise: rows that stores have read for it */
} kl__job_page;

/* Fills a page with what comes behind `after` (NULL: from the first). Rows point into the descriptor, bytes into the
 * arena. */
kl_rc kl__job_page_read(const kl__descriptor *descriptor, const kl__job *job, const kl_task_id *after, kl_arena *arena,
                        kl__job_page *page);

/* Forgets the tasks in their stores, and where they were. Rows without a layout are passed over. */
kl_rc kl__merged_forget(kl__merged *rows, size_t count);

/* --- job_cancel.c --- */

/* kl_job_remove, with somebody who has the job's waiting tasks ended by the owners of their shards (work/control.c). */
typedef kl_rc kl__job_sweep_fn(kl_queue *queue, const kl_task_id *job);
KL_MUST_USE kl_rc kl__job_remove(kl_queue *queue, const kl_task_id *job, kl__job_sweep_fn *sweep);

/* What `cancel/QUEUE/` says of one job. */
typedef struct kl__cancelled {
    kl_task_id job;
    int64_t run;  /* tasks of this run and before are cancelled */
    bool removed; /* nothing is to be kept of any of its tasks */
} kl__cancelled;

/* Cancelled jobs of a queue, sorted by id; all zero is an empty one. For one thread at a time. */
typedef struct kl__cancelled_set {
    kl__cancelled *jobs;
    size_t count, room;
} kl__cancelled_set;

/* Reads the marks anew; on failure the set is as it was. */
kl_rc kl__jobs_cancelled(kl_queue *queue, kl__cancelled_set *set);
void kl__cancelled_free(kl__cancelled_set *set);

/* What is known of this job; NULL: it is not cancelled. A task of it is to be settled as cancelled, instead of being
 * started, when its extra.job_run is not above the mark's run; and nothing is kept of any if the mark says removed. */
const kl__cancelled *kl__cancelled_find(const kl__cancelled_set *set, const kl_task_id *job);

/* The mark in the store; ret_mark->run is 0 when there is none. */
kl_rc kl__cancel_read(kl_queue *queue, const kl_task_id *job, kl__cancelled *ret_mark);

#endif
