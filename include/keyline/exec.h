/* exec.h - the in-process executor: tasks of one key run one at a time and in order, keys run in parallel.
 *
 *     kl_exec *exec;
 *     if (kl_exec_open(NULL, &exec) != KL_OK ||
 *         kl_exec_submit(exec, kl_str("customer-7"), charge, invoice, NULL, NULL) != KL_OK ||
 *         kl_exec_drain(exec, KL_FOREVER) != KL_OK)
 *         fprintf(stderr, "%s\n", kl_error_text());
 *     kl_exec_close(exec);
 *
 * Promises
 *   - A task whose submit returned KL_OK ends exactly once: it is run until it is done, or it is reported (dead, timed
 *     out, cancelled). Nothing is dropped in silence, whatever stop races with whatever submit.
 *   - Tasks of one key never overlap, and start in the order (priority, due time, position). A task that is to be
 *     retried holds its key until it ends; it holds no thread and no other key. Position is the order of submission:
 *     calls of one thread keep their order, calls of several threads are ordered as they happen to arrive.
 *   - Memory is bounded: a shard has shard_capacity places, and a task takes one until it ends. Of the tasks that
 *     cannot run, because their key is blocked or they are not due, a quarter as many as there are places (at least
 *     one) take none. At most 96 bytes for each place, and up to 43 KiB for each shard, are taken when it is opened.
 *     Beyond that, a task with a delay, a deadline, a report of its own or an error text takes about 96 bytes while it
 *     lives, and the text; a key takes about 200 while it has tasks, and its length if that is over 38. Some 1,300 keys
 *     of each shard may keep theirs to be used again.
 *   - A blocked key blocks nobody. A key is blocked from when a task of it has to wait for a retry, or it is paused,
 *     until one of its tasks is done or it has none left. One more task of a blocked key is taken only while those of
 *     blocked keys in the shard, with those of its own key counted twice, are fewer than a quarter of the places, or
 *     there are none. One more that is not due is taken while all that cannot run, likewise, are fewer than half. With
 *     the 128 places that are the default: a blocked key may have 16 tasks; while it has them, a second one may have 8
 *     and a third 4. Delayed tasks, each of another key or of none, may be 64. With 32 that take no place, the shard
 *     holds 160 tasks at most. A submit beyond that gets KL_EFULL at once, and the shard's other keys go on. What was
 *     in line before it had to wait stays, so only keys that fill the shard first and then fail, or many failing keys
 *     or tasks without one, of which each comes only once, can still take all of it. Threads that submit at the same
 *     moment may each add one task too many.
 *
 * Every function is safe from any thread, also from inside a task, unless it says otherwise. Times are milliseconds.
 * KL_EINVAL: the executor, or a pointer to what is to be read or set, is NULL where nothing says that it may be. A
 * kl_run is never NULL. What is passed is copied, unless it is a context: those are only handed on, and must last until
 * they cannot be any more, a task's and that of its report until it has ended, the executor's until it is closed. After
 * fork the child has none of the threads: it must not use the executor, not even to close it. */
#ifndef KEYLINE_EXEC_H
#define KEYLINE_EXEC_H

#include <stdbool.h>
#include <stdint.h>

#include "keyline/bytes.h"
#include "keyline/error.h"
#include "keyline/log.h"
#include "keyline/task.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KL_EXEC_SHARDS_MAX         256
#define KL_EXEC_THREADS_MAX        1024
#define KL_EXEC_SHARD_CAPACITY_MAX (1 << 24)
#define KL_EXEC_PLACES_MAX         (1 << 26) /* shards times capacity: about 6 GB */
#define KL_EXEC_ATTEMPTS_MAX       10000
#define KL_EXEC_WAIT_MS_MAX        (INT64_C(100) * 365 * 24 * 3600 * 1000) /* a century: sums with a clock never overflow */
#define KL_EXEC_ERROR_BYTES        256 /* what is kept of an attempt's error text, terminator included */

typedef struct kl_exec kl_exec;
typedef struct kl_run kl_run; /* one attempt of one task, valid while its function runs */
typedef uint64_t kl_exec_id;  /* a submitted task; never 0, and not used again for at least 2^36 tasks of its shard */

/* A task's function. It runs on one of the executor's threads and may block, submit (also to its own key), or end its
 * thread: an attempt that ends in pthread_exit or cancellation counts as KL_RETRY, and the thread is replaced. What it
 * changes of its thread, such as the signal mask, it puts back: other tasks run there next. Only the cancellation state
 * and type are put back for it, before the thread takes more tasks: short ones are taken up to 64 at a time. One that
 * sets the type to asynchronous sets it back before it returns or calls the executor, whose work is not to be ended in
 * its middle. */
typedef kl_outcome kl_task_fn(kl_run *run, void *ctx);

/* How a task ended. Pointers last until the callback returns. */
typedef struct kl_exec_end {
    kl_exec_id id;
    kl_bytes key;
    kl_task_fn *fn;
    void *ctx;
    kl_outcome outcome; /* KL_DONE, KL_DEAD or KL_CANCELLED */
    kl_rc rc;           /* KL_OK: done. KL_EDEAD: said so, or attempts used up. KL_ETIMEDOUT: its deadline passed.
                         * KL_ECANCELLED: cancelled, skipped or drained away; also if it was running and did not end
                         * as done. KL_ECLOSED: given up by a stop. */
    uint32_t attempts;  /* how often it was started; 0 = never ran */
    uint32_t shard;
    const char *error; /* the last attempt's text, or ""; of one that ended its thread, that it did */
} kl_exec_end;

/* Called once when a task ends, with no mutex held; if the task has run, before the next task of its key starts.
 * Several threads may call it at once: the executor's, and those that cancel or stop. It may call anything but must
 * return: like the two functions below, it must not end its thread. */
typedef void kl_end_fn(void *ctx, const kl_exec_end *end);

/* The delay before the attempt after `attempt` (1 = the first has failed), or a negative number to give up now.
 * `random` is fresh each time, for jitter. Several threads may call it at once. */
typedef int64_t kl_retry_fn(void *ctx, uint32_t attempt, uint64_t random);

/* Settings. Zero in a field means its default; start from {.size = sizeof(kl_exec_opts)}. Each number can also come
 * from the environment (kl_exec_opts_from_env). */
typedef struct kl_exec_opts {
    size_t size;
    int64_t shards;            /* KEYLINE_EXEC_SHARDS: 4 */
    int64_t threads;           /* KEYLINE_EXEC_THREADS: the cores this process may use */
    int64_t shard_capacity;    /* KEYLINE_EXEC_SHARD_CAPACITY: 128 places per shard (above: who takes one) */
    int64_t submit_timeout_ms; /* KEYLINE_EXEC_SUBMIT_TIMEOUT: 100 ms; KL_NO_WAIT and KL_FOREVER are allowed */
    int64_t attempts_max;      /* KEYLINE_EXEC_ATTEMPTS_MAX: 8 */
    int64_t backoff_base_ms;   /* KEYLINE_EXEC_BACKOFF_BASE: 100 ms, doubled after each failure, with jitter */
    int64_t backoff_max_ms;    /* KEYLINE_EXEC_BACKOFF_MAX: 20 s, or the base if that is more */
    kl_retry_fn *retry;        /* instead of the doubling back-off */
    void *retry_ctx;
    kl_end_fn *on_failure; /* sees every task that did not end as KL_DONE */
    void *on_failure_ctx;
    kl_log_fn *log; /* NULL: silence */
    void *log_ctx;
} kl_exec_opts;

/* Fills the fields whose KEYLINE_EXEC_* variable is set and leaves the others. Counts are whole numbers; durations take
 * a unit (250ms, 5s, 2m, 1h, 1d; a bare number is milliseconds), and the submit timeout also `none` and `forever`.
 * KL_EINVAL: a value is not of that form or out of range, or a KEYLINE_EXEC_ variable is unknown; the sentence names
 * it, and nothing is filled in. Not to be called while another thread changes the environment. */
KL_API KL_MUST_USE kl_rc kl_exec_opts_from_env(kl_exec_opts *opts);

/* Opens an executor and starts its threads. NULL options: all defaults; the environment is not read. The threads have
 * the caller's signal mask, so a signal that is for others is blocked around this call. KL_EINVAL: a setting is out of
 * range, or shards times capacity is. KL_ENOMEM. KL_ESYSTEM: a thread could not be started. */
KL_API KL_MUST_USE kl_rc kl_exec_open(const kl_exec_opts *opts, kl_exec **ret_exec);

/* Settings of one task. NULL or zero: defaults. */
typedef struct kl_exec_task_opts {
    size_t size;
    int64_t priority;     /* KL_PRIORITY_MIN..KL_PRIORITY_MAX, 0 */
    int64_t attempts_max; /* the executor's */
    int64_t delay_ms;     /* not before this long from now: it joins its key's line when it is due */
    int64_t deadline_ms;  /* this long from now it is over: a waiting task then ends as KL_DEAD with KL_ETIMEDOUT, and
                                * one that fails does at once, if its next attempt would be due later. A running one is
                                * asked to stop (kl_run_cancelled): returning KL_DONE it is done, late as it is, and
                                * else it ends like the waiting one. While every thread is busy, a waiting one is told
                                * when the first comes by; it is not run late */
    int64_t submit_timeout_ms; /* the executor's; if it is set here, the submit waits for a blocked key as well */
    kl_end_fn *end;            /* this task's own report, whatever the outcome; called before on_failure */
    void *end_ctx;
} kl_exec_task_opts;

/* Hands over one task. No key (length 0): no order asked. ret_id may be NULL. Waits while the shard is full, and not in
 * turn: a newer submit may get the place that comes free; never longer than the timeout, for key and room together.
 * Inside a task or a report of the same executor it never waits, because the waiter might be what everybody waits for.
 * KL_EINVAL: fn is NULL, the key is too long, an option is out of range. KL_EFULL: no room in time, or its key is
 * blocked, or the task delayed, and there are enough of those (see above): that is said at once, since waiting would
 * hold up the caller's other keys, unless the task's own options say how long to wait, or the executor's timeout is
 * KL_FOREVER. kl_exec_last_full() has the figures. KL_ECLOSED: the executor has been stopped. KL_ENOMEM. In each case
 * nothing was taken. */
KL_API KL_MUST_USE kl_rc kl_exec_submit(kl_exec *exec, kl_bytes key, kl_task_fn *fn, void *ctx,
                                        const kl_exec_task_opts *opts, kl_exec_id *ret_id);

typedef struct kl_exec_task {
    kl_bytes key;
    kl_task_fn *fn;
    void *ctx;
    const kl_exec_task_opts *opts;
} kl_exec_task;

/* Hands over many tasks at once, several times cheaper than one by one. ret_ids (or NULL) gets one id per task, 0 for a
 * task that was not taken; ret_taken (or NULL) gets how many were. Unlike elsewhere, both are also set on failure: what
 * was not taken is the end of its shards' or keys' share, so for each key the tasks taken are its first ones, in order.
 * KL_EINVAL: some task is not valid, and none was taken (or a pointer is NULL, and neither is set). KL_EFULL,
 * KL_ECLOSED, KL_ENOMEM: as for submit, for those not taken; whoever waits, the call waits no longer than for one of
 * them. When only blocked keys are refused, the tasks of all others are taken, unless more than 64 keys are. */
KL_API KL_MUST_USE kl_rc kl_exec_submit_batch(kl_exec *exec, const kl_exec_task *tasks, size_t count,
                                              kl_exec_id *ret_ids, size_t *ret_taken);

/* Which shard was full at this thread's last KL_EFULL, and how full; zeros before the first. */
typedef struct kl_exec_full {
    uint32_t shard;
    uint32_t length; /* places taken: fewer than tasks, when some that cannot run take none; if blocked, as last seen */
    uint32_t capacity;
    bool blocked; /* there was room, but not for more that cannot run: the key is blocked or the task delayed */
} kl_exec_full;

KL_API kl_exec_full kl_exec_last_full(void);

/* Waits until everything submitted for the key before this call has ended; also while the executor is stopping.
 * KL_ETIMEDOUT: not within wait_ms (0 looks once). KL_EBUSY: called inside a task or a report, which would wait for
 * itself. KL_EINVAL: no key, or too long a one, or wait_ms is negative. KL_ENOMEM. */
KL_API KL_MUST_USE kl_rc kl_exec_barrier(kl_exec *exec, kl_bytes key, int64_t wait_ms);

/* Cancels a task. KL_OK: it will not run (again); it has been reported as cancelled. KL_EBUSY: it is running, or a
 * thread has taken it and is about to; it has been asked to stop (kl_run_cancelled) and will not be retried.
 * KL_ENOTFOUND: it has ended, if only just and is being reported, or there never was one. KL_ENOMEM: it could not be
 * looked for. */
KL_API KL_MUST_USE kl_rc kl_exec_cancel(kl_exec *exec, kl_exec_id id);

typedef enum kl_exec_state {
    KL_EXEC_WAITING,  /* in its key's line */
    KL_EXEC_DELAYED,  /* not due yet */
    KL_EXEC_RUNNING,  /* an attempt is under way */
    KL_EXEC_RETRYING, /* failed, to be run again when due */
} kl_exec_state;

typedef struct kl_exec_status {
    kl_exec_state state;
    uint32_t attempts; /* started so far */
    int64_t due_in_ms; /* delayed or retrying: until it may start */
    bool stop_asked;   /* running: cancelled or past its deadline */
} kl_exec_status;

/* KL_ENOTFOUND: the task has ended, if only just and is being reported, or there never was one. KL_ENOMEM: it could not
 * be looked for. */
KL_API KL_MUST_USE kl_rc kl_exec_status_of(kl_exec *exec, kl_exec_id id, kl_exec_status *ret_status);

/* One key. */
typedef enum kl_key_state {
    KL_KEY_IDLE,     /* has no tasks */
    KL_KEY_READY,    /* waits for a free thread */
    KL_KEY_RUNNING,  /* a task of it runs, or has ended and is just being reported */
    KL_KEY_RETRYING, /* its first task failed and is due again later */
    KL_KEY_DELAYED,  /* none of its tasks is due yet */
    KL_KEY_PAUSED,   /* somebody paused it */
    KL_KEY_HALTED,   /* its first task failed for good and somebody must act; the executor itself never halts a key */
} kl_key_state;

typedef struct kl_key_info {
    kl_key_state state;
    uint64_t tasks;    /* live tasks of the key, those running or being reported included */
    int64_t due_in_ms; /* retrying or delayed: until it is ready */
} kl_key_info;

/* Why does this key wait? KL_EINVAL: no key, or too long a one. KL_ENOMEM. */
KL_API KL_MUST_USE kl_rc kl_exec_key_show(kl_exec *exec, kl_bytes key, kl_key_info *ret_info);

/* From the return of pause until resume no task of the key is taken to run; one that runs, or was just taken, goes on,
 * and the key shows as running until it has. Resume also makes a retrying key ready at once. Skip ends the key's first
 * task as cancelled (KL_EBUSY: it is running; KL_ENOTFOUND: there is none). Drain ends all of the key's tasks that are
 * not running as cancelled, and says how many (ret_count may be NULL). A drain of the executor resumes every key, and
 * then none can be paused (KL_ECLOSED). All: KL_EINVAL and KL_ENOMEM as for show. */
KL_API KL_MUST_USE kl_rc kl_exec_key_pause(kl_exec *exec, kl_bytes key);
KL_API KL_MUST_USE kl_rc kl_exec_key_resume(kl_exec *exec, kl_bytes key);
KL_API KL_MUST_USE kl_rc kl_exec_key_skip(kl_exec *exec, kl_bytes key);
KL_API KL_MUST_USE kl_rc kl_exec_key_drain(kl_exec *exec, kl_bytes key, uint64_t *ret_count);

/* Inside a task's function. */
KL_API kl_exec_id kl_run_id(const kl_run *run);
KL_API kl_bytes kl_run_key(const kl_run *run);     /* lasts as long as the run */
KL_API uint32_t kl_run_attempt(const kl_run *run); /* 1 for the first */
KL_API bool kl_run_cancelled(const kl_run *run);   /* cancelled, past its deadline, or aborted: better return */
KL_API void kl_run_error(kl_run *run, const char *format, ...) KL_PRINTF(2, 3); /* why it fails, for the report */
KL_API void kl_run_retry_after(kl_run *run, int64_t delay_ms); /* instead of the back-off, if KL_RETRY is returned */

/* Stops taking tasks and waits until all that were taken have ended, with their retries, in order. When wait_ms passes
 * first, the rest is given up as by kl_exec_abort and KL_ETIMEDOUT is returned once running tasks have returned. Called
 * inside a task or a report it starts the drain and returns KL_EBUSY at once. KL_ECLOSED: all have ended, but some were
 * given up by an abort, or by another drain whose time had passed. KL_EINVAL: wait_ms is negative, and nothing has been
 * stopped. Any number of calls, from any threads, is fine. */
KL_API KL_MUST_USE kl_rc kl_exec_drain(kl_exec *exec, int64_t wait_ms);

/* Stops taking tasks, ends those not running as KL_CANCELLED with rc KL_ECLOSED, asks the running ones to stop, and
 * waits for them (inside a task or a report: does not wait and returns KL_EBUSY). No retry follows. */
KL_API kl_rc kl_exec_abort(kl_exec *exec);

/* Aborts unless everything has ended, also where a drain was begun inside a task, then frees everything. No other call
 * may be under way or follow. Not from inside a task or a report. NULL is fine. */
KL_API void kl_exec_close(kl_exec *exec);

/* Metrics in Prometheus text, labelled by shard. Writes at most size bytes with a terminator, and says the length of
 * the whole text without it: call again with more room when ret_length >= size. KL_ENOMEM. */
KL_API KL_MUST_USE kl_rc kl_exec_metrics(kl_exec *exec, char *buffer, size_t size, size_t *ret_length);

#ifdef __cplusplus
}
#endif
#endif
