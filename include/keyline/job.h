/* job.h - jobs: many tasks submitted together, with progress, results in order, and a submit that can be repeated.
 *
 *     kl_job_spec spec = {.size = sizeof spec, .tasks = tasks, .count = 1000,
 *                         .idempotency_key = kl_str("invoices-2026-11")};
 *     kl_job_answer answer;
 *     if (kl_job_submit(queue, &spec, &answer, NULL) != KL_OK) ...
 *
 * A job belongs to a queue. Its tasks are kept when they are finished, for keep_ms, and so is the job itself: it is
 * forgotten keep_ms after the last due time that was known when it was submitted, added to, put again or last shown
 * with tasks still waiting.
 *
 * Every function is safe from any thread. Nothing is kept of the caller's memory after a call returns; answers lie
 * in the caller's arrays and arena. Errors of every call, beside those that it names: those of queue.h, and
 * KL_ENOTFOUND where a job is named that is not known in the queue, or no longer. */
#ifndef KEYLINE_JOB_H
#define KEYLINE_JOB_H

#include "keyline/queue.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KL_JOB_NAME_MAX        128
#define KL_JOB_TASKS_MAX       1000000
#define KL_JOB_PAGE_MAX        1000 /* jobs or results in one answer */
#define KL_JOB_CURSOR_MAX      4096 /* bytes of a cursor's text */
#define KL_JOB_SCOPE_MAX       256
#define KL_IDEMPOTENCY_KEY_MAX 256

/* Zero in a field means its default; start from {.size = sizeof(kl_job_spec)}. */
typedef struct kl_job_spec {
    size_t size;
    const char *name; /* for people: UTF-8; NULL: none */
    const kl_put *tasks;
    size_t count;             /* 0 is fine: tasks may be added */
    int64_t due_ms;           /* scheduled: tasks without a due time of their own are not started before; or */
    int64_t keep_ms;          /* 7 days: how long it and its finished tasks are kept */
    const char *scope;        /* idempotency: who asks, so that two applications may use one key; NULL: "" */
    kl_bytes idempotency_key; /* empty: every submit is a new job */
    kl_bytes fingerprint;     /* what was asked: any bytes, hashed with SHA-256; empty: made from all of the above */
    int64_t answer_ms;        /* 24 h: how long the answer is kept for repeats */
    int64_t delay_ms;         /* instead of due_ms: so long from the first call; the same in each repeat */
} kl_job_spec;

/* The answer, the same for every repeat. */
typedef struct kl_job_answer {
    kl_task_id job;
    uint64_t tasks;
    bool replayed; /* this is a repeat, and nothing was done */
} kl_job_answer;

/* Submits a job. Tasks must be of this queue, without a unique, a job or a keep_ms of their own: the idempotency key
 * keeps a whole job from being put twice.
 *
 * With an idempotency key the first call does it, and a repeat within answer_ms gets its answer (replayed), whether or
 * not the first caller got one. A first caller that died is taken over by the next repeat after at most 30 s, and the
 * job keeps its id; nothing is stored twice. Without a key, a job that could be submitted only in part is cancelled
 * when the store still lets us.
 *
 * KL_EINVAL: a limit or option (the sentence names the task); nothing was stored. KL_EMISMATCH: the key was used for
 * something else; nothing was stored. KL_EBUSY: the first call is still under way; ret_retry_ms (may be NULL) says
 * when to ask again, and is 0 for every other answer. KL_ECLOSED: the job was removed meanwhile. */
KL_API KL_MUST_USE kl_rc kl_job_submit(kl_queue *queue, const kl_job_spec *spec, kl_job_answer *ret_answer,
                                       int64_t *ret_retry_ms);

/* Adds tasks, up to KL_PUT_MAX, of which the same holds as of submitted ones; token and ret_results as for
 * kl_queue_put. They count as the job's from the beginning of the call: after any failure but KL_EINVAL and
 * KL_EMISMATCH, repeat it with its token, or the job waits for tasks that never come. A repeat counts once for as long
 * as its token is known (an hour), whatever was added meanwhile. KL_EINVAL: also where the job would have more than
 * KL_JOB_TASKS_MAX. KL_ECLOSED: the job was cancelled. */
KL_API KL_MUST_USE kl_rc kl_job_add(kl_queue *queue, const kl_task_id *job, const kl_put *tasks, size_t count,
                                    kl_bytes token, kl_put_result *ret_results);

typedef enum kl_job_state {
    KL_JOB_RUNNING,
    KL_JOB_FINISHED, /* none of its tasks waits or runs */
    KL_JOB_CANCELLED,
} kl_job_state;

typedef struct kl_job_info {
    kl_task_id id;
    const char *name; /* "": none */
    kl_job_state state;
    uint64_t tasks;                 /* submitted and added, without those that were moved to another queue or purged */
    uint64_t done, dead, cancelled; /* finished and still kept */
    uint64_t waiting;               /* all others: a task that finished longer than keep_ms ago counts here */
    uint64_t run;                   /* 1, and one more for each rerun */
    int64_t created_ms, due_ms;
} kl_job_info;

/* Text lies in the arena. */
KL_API KL_MUST_USE kl_rc kl_job_show(kl_queue *queue, const kl_task_id *job, kl_arena *arena, kl_job_info *ret_info);

/* Jobs in the order in which they were submitted, behind `after` (NULL: from the first); max 1..KL_JOB_PAGE_MAX. Fewer
 * than max: that is all. */
KL_API KL_MUST_USE kl_rc kl_job_list(kl_queue *queue, const kl_task_id *after, size_t max, kl_arena *arena,
                                     kl_job_info *ret_jobs, size_t *ret_count);

/* Finished tasks of a job in the order of their ids, across all shards. cursor: empty, what the last call returned, or
 * the 36 characters of a task's id to go on behind it. max: 1..KL_JOB_PAGE_MAX; there may be fewer where they are
 * large, and there is more as long as ret_cursor is not empty. Cursor and texts lie in the arena. ret_read (or NULL):
 * rows that the store has read for this. What finishes behind the cursor while a listing goes on is not shown by it.
 * KL_EINVAL: not a cursor of this job. */
KL_API KL_MUST_USE kl_rc kl_job_results(kl_queue *queue, const kl_task_id *job, kl_bytes cursor, size_t max,
                                        kl_arena *arena, kl_found *ret_found, size_t *ret_count, kl_bytes *ret_cursor,
                                        uint64_t *ret_read);

/* Puts the job's finished tasks again, all or only those that are dead or cancelled: with the same key, payload and
 * options, a new id, and no due time. Each old result is forgotten when its task has been put. A rerun that was broken
 * off is completed by the next call, which then does nothing else; nothing is put twice. A cancelled job goes on with
 * what was put again; its older tasks stay cancelled. Where nothing is to be put again of a job that is not cancelled,
 * nothing is done, and the run stays what it is. *ret_count (or NULL): tasks put by this call. KL_EBUSY: another rerun
 * is under way, or the job is still being submitted. */
KL_API KL_MUST_USE kl_rc kl_job_rerun(kl_queue *queue, const kl_task_id *job, bool failed_only, uint64_t *ret_count);

/* None of its waiting tasks will be started; they end as cancelled when their turn comes. Running ones go on. May
 * be repeated. */
KL_API KL_MUST_USE kl_rc kl_job_cancel(kl_queue *queue, const kl_task_id *job);

/* Removes the job with all it owns: results, waiting tasks, delayed ones included, and the answer kept for repeats. The
 * owners of the shards are asked to end what waits, as by kl_queue_purge (control.h); what they cannot be asked for,
 * because one does not answer, will not be started and ends when its turn comes. A task that is running goes on.
 * Nothing is kept of any of them. */
KL_API KL_MUST_USE kl_rc kl_job_remove(kl_queue *queue, const kl_task_id *job);

#ifdef __cplusplus
}
#endif
#endif
