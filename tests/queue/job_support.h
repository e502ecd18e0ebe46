/* job_support.h - what tests of jobs share: settling without a worker, counting what is there, a store that ends. */
#ifndef TESTS_QUEUE_JOB_SUPPORT_H
#define TESTS_QUEUE_JOB_SUPPORT_H

#include "keyline/job.h"
#include "queue/job.h"
#include "queue/support.h"

enum { JOB_KEEP_MS = 3600 * 1000 };

/* `count` tasks in the arena with payloads "0", "1", ... of at least `bytes` bytes, over `keys` keys (0: none). */
kl_put *make_puts(struct rig *rig, size_t count, size_t keys, size_t bytes);

/* Which of them this is. */
size_t index_of(const kl_task *task);

/* A job of these tasks, without an idempotency key. */
kl_task_id submit_job(kl_queue *queue, const kl_put *tasks, size_t count);

/* Removes it while nobody can be asked to end what waits of it. */
kl_rc remove_job(kl_queue *queue, const kl_task_id *job);

/* Settles up to `max` waiting tasks of the queue, kept for JOB_KEEP_MS; says how many. */
size_t settle_any(kl_queue *queue, kl_outcome outcome, size_t max);

/* How often task i of the job is there, waiting or kept: seen[i]. Says how many there are in all. */
size_t see_tasks(kl_queue *queue, const kl_task_id *job, uint32_t *seen, size_t count);

/* Every one of these is there once, and nothing else is. */
#define CHECK_EACH_ONCE(queue, job, count) check_each_once(__FILE__, __LINE__, queue, job, count)
void check_each_once(const char *file, int line, kl_queue *queue, const kl_task_id *job, size_t count);

kl_job_info show_job(kl_queue *queue, const kl_task_id *job, kl_arena *arena);

/* Jobs of the queue that bear this name. */
size_t jobs_named(kl_queue *queue, const char *name);

/* A store over another one that is gone from its n-th call on: as a process that crashes there would see it. */
struct ending {
    kl_engine engine;
    kl_store *inner;
    uint64_t calls;  /* since it was armed */
    uint64_t end_at; /* this call and all after it fail; 0: none does */
    bool done_first; /* that call is still carried out, only its reply is lost */
    bool recovers;   /* only that one call fails */
};

kl_rc ending_open(struct ending *ending, kl_store *inner, kl_store **ret_store);
void ending_arm(struct ending *ending, uint64_t end_at, bool done_first);

#endif
