/* job_cancel.c - jobs that are to end: cancel, remove, and what workers have to know of them.
 *
 * From: kl_job_cancel, work/control.c (remove); workers, before they start tasks of jobs.  To: records, job_results.c.
 *
 * Tasks that wait are not looked for by a cancel: they may be many, and only the owner of a shard may settle. A mark
 * says that they are cancelled, and the owners act on it when each task's turn comes. The mark outlives the job by
 * keep_ms, for tasks that wait longer than anybody thought. When a job is removed, the owners are asked to end them,
 * too.
 *
 * A job is removed by the version that its marks were made for: an add or rerun meanwhile makes it begin anew, with a
 * mark for what came.
 *
 * A mark holds for the runs up to the one that it names (JB3), so marks are never taken back. */
#include <stdlib.h>

#include "queue/job.h"

enum {
    MARKS_AT_ONCE = 256,
    MARK_TRIES = 16,
    FORGET_AT_ONCE = 1000,
};

/* --- Marks --- */

static kl_rc parse_mark(const kl_record *record, kl__cancelled *ret_mark)
{
    kl__json from;
    kl_rc rc = kl__json_parse(record->value, record->name.data, &from);
    if (rc != KL_OK)
        return rc;
    *ret_mark = (kl__cancelled){
        .job = kl__json_id(&from, "job"),
        .run = kl__json_int(&from, "run", 1, INT64_MAX),
        .removed = kl__json_bool(&from, "removed"),
    };
    rc = from.rc;
    kl__json_free(&from);
    return rc;
}

static kl_rc read_mark(kl_queue *queue, kl_bytes name, kl__cancelled *ret_mark, uint64_t *ret_version)
{
    kl_arena arena = {0};
    kl_record record;
    kl_rc rc = kl__record_get(queue->store, name, &arena, &record);
    *ret_mark = (kl__cancelled){.run = 0};
    if (rc == KL_OK && record.version != 0)
        rc = parse_mark(&record, ret_mark);
    if (rc == KL_OK)
        *ret_version = record.version;
    kl_arena_free(&arena);
    return rc;
}

kl_rc kl__cancel_read(kl_queue *queue, const kl_task_id *job, kl__cancelled *ret_mark)
{
    char buffer[KL_RECORD_NAME_BYTES];
    uint64_t version;
    return read_mark(queue, kl__job_record_name(queue, "cancel", job, buffer), ret_mark, &version);
}

static kl_rc write_mark(kl_queue *queue, kl_bytes name, uint64_t version, const kl__cancelled *mark, int64_t expires_ms)
{
    json_t *to = kl__json_object();
    bool made = kl__json_set_id(to, "job", &mark->job) && kl__json_set_int(to, "run", mark->run) &&
                kl__json_set_bool(to, "removed", mark->removed);
    kl_rc rc = made ? kl__record_write(queue->store, name, version, to, expires_ms, NULL) : kl__fail_memory();
    json_decref(to);
    return rc;
}

/* Marks what is not marked so already. */
static kl_rc set_mark(kl_queue *queue, const kl__job *job, bool removed)
{
    char buffer[KL_RECORD_NAME_BYTES];
    kl_bytes name = kl__job_record_name(queue, "cancel", &job->id, buffer);
    kl_rc rc = KL_ECONFLICT;
    for (int i = 0; i < MARK_TRIES && rc == KL_ECONFLICT; i++) {
        kl__cancelled mark;
        uint64_t version;
        rc = read_mark(queue, name, &mark, &version);
        if (rc != KL_OK || (mark.run >= job->run && mark.removed >= removed))
            break;
        mark = (kl__cancelled){job->id, job->run, removed || mark.removed};
        rc = write_mark(queue, name, version, &mark, job->expires_ms + job->keep_ms);
    }
    return rc == KL_ECONFLICT ? kl__fail(KL_EBUSY, "many cancel the job at once; call again") : rc;
}

kl_rc kl_job_cancel(kl_queue *queue, const kl_task_id *job)
{
    kl_arena arena = {0};
    kl__job record;
    if (!queue || !job)
        return kl__fail(KL_EINVAL, "an argument is NULL; pass the queue and the job's id");
    kl_rc rc = kl__job_read(queue, job, &arena, &record);
    if (rc == KL_OK)
        rc = set_mark(queue, &record, false);
    kl_arena_free(&arena);
    return rc;
}

/* --- What workers ask --- */

static bool make_room(kl__cancelled_set *set, size_t room)
{
    if (room <= set->room)
        return true;
    size_t more = room > 2 * set->room ? room : 2 * set->room;
    kl__cancelled *jobs = kl__alloc_zeroed(more, sizeof *jobs);
    if (!jobs)
        return false;
    if (set->count > 0)
        memcpy(jobs, set->jobs, set->count * sizeof *jobs);
    kl__free(set->jobs);
    set->jobs = jobs;
    set->room = more;
    return true;
}

/* Names end with the ids, so marks come in their order. */
static kl_rc add_marks(const kl_record *records, size_t count, kl__cancelled_set *set)
{
    if (!make_room(set, set->count + count))
        return kl__fail_memory();
    for (size_t i = 0; i < count; i++) {
        kl_rc rc = parse_mark(&records[i], &set->jobs[set->count]);
        if (rc != KL_OK)
            return rc;
        set->count++;
    }
    return KL_OK;
}

static kl_rc list_marks(kl_queue *queue, kl_bytes prefix, kl__cancelled_set *set)
{
    char buffer[KL_RECORD_NAME_BYTES];
    kl_record records[MARKS_AT_ONCE];
    kl_bytes after = {"", 0};
    kl_arena arena = {0};
    size_t count;
    kl_rc rc;
    do {
        kl_arena_reset(&arena);
        rc = kl_store_list(queue->store, prefix, after, MARKS_AT_ONCE, &arena, records, &count);
        if (rc == KL_OK)
            rc = add_marks(records, count, set);
        if (rc == KL_OK && count > 0) {
            after = (kl_bytes){buffer, records[count - 1].name.len};
            memcpy(buffer, records[count - 1].name.data, after.len);
        }
    } while (rc == KL_OK && count == MARKS_AT_ONCE);
    kl_arena_free(&arena);
    return rc;
}

kl_rc kl__jobs_cancelled(kl_queue *queue, kl__cancelled_set *set)
{
    char buffer[KL_RECORD_NAME_BYTES];
    kl__cancelled_set fresh = {0};
    kl_rc rc = list_marks(queue, kl__record_name(buffer, sizeof buffer, "cancel", queue->name, ""), &fresh);
    if (rc != KL_OK) {
        kl__cancelled_free(&fresh);
        return rc;
    }
    kl__cancelled_free(set);
    *set = fresh;
    return KL_OK;
}

void kl__cancelled_free(kl__cancelled_set *set)
{
    kl__free(set->jobs);
    *set = (kl__cancelled_set){0};
}

static int compare_job(const void *id, const void *cancelled)
{
    return kl_id_compare(id, &((const kl__cancelled *)cancelled)->job);
}

const kl__cancelled *kl__cancelled_find(const kl__cancelled_set *set, const kl_task_id *job)
{
    return set->count ? bsearch(job, set->jobs, set->count, sizeof *set->jobs, compare_job) : NULL;
}

/* --- Remove --- */

static kl_rc forget_all(kl_queue *queue, const kl__job *job)
{
    kl__merged *rows = kl__alloc_zeroed(FORGET_AT_ONCE, sizeof *rows);
    if (!rows)
        return kl__fail_memory();
    kl__descriptor *descriptor = kl__queue_descriptor(queue);
    kl_arena arena = {0};
    kl__job_page page = {.rows = rows, .max = FORGET_AT_ONCE};
    kl_task_id last;
    kl_rc rc = KL_OK;
    for (const kl_task_id *after = NULL; rc == KL_OK && !page.ended; after = &last) {
        kl_arena_reset(&arena);
        rc = kl__job_page_read(descriptor, job, after, &arena, &page);
        if (rc == KL_OK)
            rc = kl__merged_forget(rows, page.count);
        if (rc == KL_OK && page.count > 0)
            last = rows[page.count - 1].task.entry.id;
    }
    kl_arena_free(&arena);
    kl__descriptor_release(descriptor);
    kl__free(rows);
    return rc;
}

static kl_rc remove_mark(kl_queue *queue, const kl_task_id *job)
{
    char buffer[KL_RECORD_NAME_BYTES];
    kl__cancelled mark;
    uint64_t version;
    kl_bytes name = kl__job_record_name(queue, "cancel", job, buffer);
    kl_rc rc = read_mark(queue, name, &mark, &version);
    return rc == KL_OK && version != 0 ? kl__record_remove(queue->store, name, version) : rc;
}

/* What cannot be reached now ends when its turn comes, because of the mark. */
static kl_rc sweep_waiting(kl_queue *queue, const kl_task_id *job, kl__job_sweep_fn *sweep)
{
    kl_rc rc = sweep(queue, job);
    return rc == KL_ETIMEDOUT || rc == KL_ESTALE || kl_rc_class(rc) == KL_CLASS_RETRY ? KL_OK : rc;
}

/* All that the job owns, its record last. KL_ECONFLICT: somebody added to it or put it again meanwhile. */
static kl_rc try_to_remove(kl_queue *queue, const kl_task_id *job, kl__job_sweep_fn *sweep, kl_arena *arena)
{
    char buffer[KL_RECORD_NAME_BYTES];
    kl__job record;
    kl_job_info info;
    kl_rc rc = kl__job_read(queue, job, arena, &record);
    if (rc == KL_OK)
        rc = kl_job_show(queue, job, arena, &info);
    if (rc == KL_OK)
        rc = set_mark(queue, &record, true);
    if (rc == KL_OK && info.waiting > 0)
        rc = sweep_waiting(queue, job, sweep);
    if (rc == KL_OK)
        rc = forget_all(queue, &record);
    if (rc == KL_OK)
        rc = kl__idempotency_forget(queue, record.idempotency, job);
    if (rc == KL_OK)
        rc = kl__record_remove(queue->store, kl__job_record_name(queue, "job", job, buffer), record.version);
    return rc == KL_OK && info.waiting == 0 ? remove_mark(queue, job) : rc;
}

/* The mark stays, until it expires, where tasks may still wait, and where this ends before it is removed too. */
kl_rc kl__job_remove(kl_queue *queue, const kl_task_id *job, kl__job_sweep_fn *sweep)
{
    kl_arena arena = {0};
    kl_rc rc = KL_ECONFLICT;
    for (int i = 0; i < MARK_TRIES && rc == KL_ECONFLICT; i++) {
        rc = try_to_remove(queue, job, sweep, &arena);
        if (rc == KL_ENOTFOUND && i > 0)
            rc = KL_OK; /* by somebody else, meanwhile */
    }
    kl_arena_free(&arena);
    return rc == KL_ECONFLICT ? kl__fail(KL_EBUSY, "others change the job all the time; call again") : rc;
}
