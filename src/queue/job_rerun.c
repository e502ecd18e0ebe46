/* job_rerun.c - a job's finished tasks once more.
 *
 * From: kl_job_rerun.  To: job_results.c (what is finished), job_submit.c (putting it), kl_store_forget.
 *
 *     record: run + 1, lease -> page: put, then forget -> page ... -> record: no rerun under way
 *
 * A task that is put again has the id of its old result, later by the same shift as all of this run's. So new ids
 * follow from old ones (JB2), differ from one another, and keep their order; and since each run is later than the one
 * before, none is used twice. A crash between putting and forgetting leaves both: whoever goes on finds the new task,
 * waiting or kept, and only forgets the old one.
 *
 * What this run has put may finish while pages are still read. It carries the run, and is passed over. */
#include <stdio.h>

#include "base/clock.h"
#include "queue/job.h"
#include "queue/put.h"

enum {
    PAGE_ROWS = 1000,
    BEGIN_TRIES = 16,
    SEED_AGAIN = 8,
};

struct rerun {
    kl_queue *queue;
    kl__job job;
    kl_arena *arena;  /* of the job's texts */
    kl__merged *rows; /* PAGE_ROWS each */
    kl__job_task *tasks;
    bool careful;    /* somebody began this run before, or may have taken it over: look before each page */
    int64_t held_ns; /* when the lease was last written */
    uint64_t put;
    char nonce[KL_NONCE_BYTES];
};

/* --- The record --- */

static void begin_run(struct rerun *rerun, bool failed_only, int64_t now_ms)
{
    kl__job *job = &rerun->job;
    kl__descriptor *descriptor = kl__queue_descriptor(rerun->queue);
    const kl__queue_layout *newest = kl__put_layout(descriptor);
    job->shift_ms = now_ms > job->run_ms ? now_ms - job->run_ms : 1;
    job->run_ms += job->shift_ms;
    job->run++;
    job->failed_only = failed_only;
    job->rerun_layout = newest->number;
    job->rerun_prefix_len = newest->layout.shard_prefix_len;
    kl__descriptor_release(descriptor);
}

static kl_rc write_lease(struct rerun *rerun, int64_t now_ms)
{
    rerun->job.rerun_until_ms = now_ms + KL_JOB_LEASE_MS;
    rerun->job.nonce = rerun->nonce;
    if (now_ms + rerun->job.keep_ms > rerun->job.expires_ms)
        rerun->job.expires_ms = now_ms + rerun->job.keep_ms;
    rerun->held_ns = kl__monotonic_ns();
    return kl__job_write(rerun->queue, &rerun->job);
}

/* A submit that can be taken over looks for its tasks by their ids, so they must not be put under others before. */
static kl_rc check_free(const kl__job *job, int64_t now_ms)
{
    if (!job->complete && *job->idempotency)
        return kl__fail(KL_EBUSY, "the job is still being submitted; repeat its submit, and rerun it then");
    if (job->rerun_until_ms > now_ms)
        return kl__fail(KL_EBUSY, "another rerun of the job is under way; call again in %lld ms",
                        (long long)(job->rerun_until_ms - now_ms));
    return KL_OK;
}

/* Whether there is anything to be done by a new run: a cancelled job goes on in it, whatever it puts. What the stores
 * have not counted may be there. */
static kl_rc look_for_any(struct rerun *rerun, bool failed_only, bool *ret_any)
{
    kl_job_info info;
    bool behind;
    kl_rc rc = kl__job_tell(rerun->queue, &rerun->job, &info, &behind);
    if (rc != KL_OK)
        return rc;
    uint64_t wanted = info.dead + info.cancelled + (failed_only ? 0 : info.done);
    *ret_any = wanted > 0 || behind || info.state == KL_JOB_CANCELLED;
    return KL_OK;
}

/* *ret_begun: false where nothing is to be put again. */
static kl_rc try_to_begin(struct rerun *rerun, const kl_task_id *id, bool failed_only, bool *ret_begun)
{
    int64_t now_ms;
    kl_rc rc = kl__job_read(rerun->queue, id, rerun->arena, &rerun->job);
    if (rc == KL_OK)
        KL_ASK(rc, kl_store_now(rerun->queue->store, &now_ms));
    if (rc == KL_OK)
        rc = check_free(&rerun->job, now_ms);
    if (rc != KL_OK)
        return rc;
    rerun->careful = *ret_begun = rerun->job.rerun_until_ms != 0;
    if (!rerun->careful) {
        rc = look_for_any(rerun, failed_only, ret_begun);
        if (rc != KL_OK || !*ret_begun)
            return rc;
        begin_run(rerun, failed_only, now_ms);
    }
    return write_lease(rerun, now_ms);
}

/* The record has changed: still ours, when somebody only prolonged it. */
static kl_rc read_again(struct rerun *rerun)
{
    kl_rc rc = kl__job_read(rerun->queue, &rerun->job.id, rerun->arena, &rerun->job);
    if (rc == KL_OK && strcmp(rerun->job.nonce, rerun->nonce) != 0)
        rc = kl__fail(KL_EBUSY, "somebody else goes on with this rerun, because it took too long; nothing is lost");
    return rc;
}

/* Prolongs the lease, or says that the rerun has ended. */
static kl_rc write_on(struct rerun *rerun, bool ended)
{
    kl_rc rc = KL_ECONFLICT;
    for (int i = 0; i < BEGIN_TRIES && rc == KL_ECONFLICT; i++) {
        int64_t now_ms;
        rc = i > 0 ? read_again(rerun) : KL_OK;
        if (rc == KL_OK)
            KL_ASK(rc, kl_store_now(rerun->queue->store, &now_ms));
        if (rc != KL_OK)
            return rc;
        if (!ended) {
            rc = write_lease(rerun, now_ms);
            continue;
        }
        rerun->job.rerun_until_ms = 0;
        rc = kl__job_write(rerun->queue, &rerun->job);
    }
    return rc == KL_ECONFLICT ? kl__fail(KL_EBUSY, "the job's record changes again and again; call again") : rc;
}

/* --- Tasks --- */

/* A task that was put into another partition than its key's goes there again. */
static kl_rc keep_partition(const struct rerun *rerun, const kl__merged *row, kl_arena *arena, kl__job_task *task)
{
    char name[KL_PARTITION_NAME_BYTES];
    kl_bytes copy;
    kl_bytes key = row->task.entry.key;
    if (row->layout->number != rerun->job.rerun_layout || key.len == 0 ||
        kl_partition_of(&row->layout->layout, key) == row->partition)
        return KL_OK;
    kl_rc rc = kl_partition_name(&row->layout->layout, rerun->queue->name, row->partition, sizeof name, name);
    if (rc == KL_OK && !kl_arena_copy(arena, kl_str(name), &copy))
        rc = kl__fail_memory();
    if (rc == KL_OK)
        task->partition = copy.data;
    return rc;
}

static kl_rc shift_id(const struct rerun *rerun, const kl__merged *row, const kl_layout *to, kl__job_task *task)
{
    const kl_task_id *old = &row->task.entry.id;
    uint32_t shard = kl__job_shard(to, row->task.entry.key, task->spread);
    kl_task_id moved = kl__id_moved(&row->layout->layout, to, shard, old);
    kl_id_parts parts = kl_id_unpack(to, &moved);
    parts.ms += rerun->job.shift_ms;
    return kl_id_pack(to, &parts, &task->entry.id);
}

static kl_rc make_task(const struct rerun *rerun, const kl__merged *row, kl_task_extra *extra, kl_arena *arena,
                       kl__job_task *ret_task)
{
    const kl_layout to = {1, rerun->job.rerun_prefix_len};
    const kl_task_id *old = &row->task.entry.id;
    *ret_task = (kl__job_task){
        .entry = row->task.entry,
        .spread = kl__hash((kl_bytes){old->bytes, sizeof old->bytes}, SEED_AGAIN),
    };
    ret_task->entry.due_ms = 0;
    extra->job_run = rerun->job.run;
    extra->keep_ms = rerun->job.keep_ms;
    extra->origin = *old;
    kl_rc rc = kl__envelope_encode(extra, arena, &ret_task->entry.headers);
    if (rc == KL_EINVAL) { /* rather without its origin than not at all */
        extra->origin = (kl_task_id){{0}};
        rc = kl__envelope_encode(extra, arena, &ret_task->entry.headers);
    }
    if (rc == KL_OK)
        rc = keep_partition(rerun, row, arena, ret_task);
    return rc == KL_OK ? shift_id(rerun, row, &to, ret_task) : rc;
}

static bool is_wanted(const struct rerun *rerun, const kl__merged *row, const kl_task_extra *extra)
{
    return extra->job_run < rerun->job.run && !(rerun->job.failed_only && row->task.state == KL_TASK_DONE);
}

/* Puts what is wanted of the page's rows, and forgets it. */
static kl_rc put_page(struct rerun *rerun, size_t count, kl_arena *arena)
{
    kl__job_made made = {rerun->job.rerun_layout, {1, rerun->job.rerun_prefix_len}};
    size_t wanted = 0;
    uint64_t put = 0;
    kl_rc rc = KL_OK;
    for (size_t i = 0; rc == KL_OK && i < count; i++) {
        kl_task_extra extra;
        rc = kl__envelope_decode(rerun->rows[i].task.entry.headers, arena, &extra);
        if (rc == KL_OK && is_wanted(rerun, &rerun->rows[i], &extra))
            rc = make_task(rerun, &rerun->rows[i], &extra, arena, &rerun->tasks[wanted++]);
        else
            rerun->rows[i].layout = NULL; /* not to be forgotten */
    }
    rerun->careful |= kl__monotonic_ns() - rerun->held_ns > KL_JOB_LOOK_MS * INT64_C(1000000);
    if (rc == KL_OK)
        rc = kl__job_put(rerun->queue, rerun->tasks, wanted, made, rerun->careful, &put);
    if (rc == KL_OK)
        rerun->put += put;
    return rc == KL_OK ? kl__merged_forget(rerun->rows, count) : rc;
}

static kl_rc put_pages(struct rerun *rerun)
{
    kl__descriptor *descriptor = kl__queue_descriptor(rerun->queue);
    kl__job_page page = {.rows = rerun->rows, .max = PAGE_ROWS};
    kl_arena arena = {0};
    kl_task_id last;
    const kl_task_id *after = NULL;
    kl_rc rc = KL_OK;
    while (rc == KL_OK && !page.ended) {
        kl_arena_reset(&arena);
        rc = kl__job_page_read(descriptor, &rerun->job, after, &arena, &page);
        if (rc == KL_OK && page.count > 0) {
            last = rerun->rows[page.count - 1].task.entry.id;
            after = &last;
            rc = put_page(rerun, page.count, &arena);
        }
        if (rc == KL_OK && !page.ended)
            rc = write_on(rerun, false);
    }
    kl_arena_free(&arena);
    kl__descriptor_release(descriptor);
    return rc;
}

/* The next call may go on at once, unless somebody else has taken the run over. The sentence of what went wrong stays.
 */
static kl_rc give_back(struct rerun *rerun, kl_rc rc)
{
    char why[512];
    if (strcmp(rerun->job.nonce, rerun->nonce) != 0)
        return rc;
    snprintf(why, sizeof why, "%s", kl_error_text());
    rerun->job.rerun_until_ms = 1; /* under way, and its lease is over */
    kl_rc given = kl__job_write(rerun->queue, &rerun->job);
    return kl__fail(rc, "%s%s", why, given == KL_OK ? "" : "; a repeat goes on with it in 30 s");
}

static kl_rc carry_out(struct rerun *rerun, const kl_task_id *job, bool failed_only)
{
    bool begun = false;
    kl_rc rc = kl__queue_refresh(rerun->queue);
    for (int i = 0; rc == KL_OK && i < BEGIN_TRIES; i++) {
        rc = try_to_begin(rerun, job, failed_only, &begun);
        if (rc != KL_ECONFLICT)
            break;
        rc = i + 1 < BEGIN_TRIES ? KL_OK : kl__fail(KL_EBUSY, "the job's record changes again and again; call again");
    }
    if (rc != KL_OK || !begun)
        return rc;
    rc = put_pages(rerun);
    return rc == KL_OK ? write_on(rerun, true) : give_back(rerun, rc);
}

kl_rc kl_job_rerun(kl_queue *queue, const kl_task_id *job, bool failed_only, uint64_t *ret_count)
{
    kl_arena arena = {0};
    struct rerun rerun = {.queue = queue, .arena = &arena};
    if (!queue || !job)
        return kl__fail(KL_EINVAL, "an argument is NULL; pass the queue and the job's id");
    kl__nonce(rerun.nonce);
    rerun.rows = kl__alloc_zeroed(PAGE_ROWS, sizeof *rerun.rows);
    rerun.tasks = kl__alloc_zeroed(PAGE_ROWS, sizeof *rerun.tasks);
    kl_rc rc = rerun.rows && rerun.tasks ? carry_out(&rerun, job, failed_only) : kl__fail_memory();
    kl__free(rerun.rows);
    kl__free(rerun.tasks);
    kl_arena_free(&arena);
    if (rc == KL_OK && ret_count)
        *ret_count = rerun.put;
    return rc;
}
