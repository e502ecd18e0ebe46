/* job.c - a job's record, and what can be seen of it: show, list; and adding tasks to it.
 *
 * From: kl_job_show, kl_job_list, kl_job_add; the other files about jobs.  To: records, put.c, the stores' counts.
 *
 * The record says how many tasks a job has, stores count the finished ones that are kept, and what is left waits. So an
 * add is counted before its tasks are put, once for each token: a caller that repeats a failed add makes it true. What
 * is moved to another queue, or purged, is counted out when it is gone. */
#include "queue/job.h"

#include <stdio.h>

#include "base/compare.h"
#include "base/random.h"
#include "queue/put.h"

enum {
    ADDS_MAX = 64, /* adds that the record remembers; older ones have a record each */
    ADD_DIGITS = 16,
    ADD_TRIES = 64,
    SEED_ADD = 9,
};

/* --- The record --- */

kl_bytes kl__job_record_name(const kl_queue *queue, const char *kind, const kl_task_id *id,
                             char buffer[KL_RECORD_NAME_BYTES])
{
    char text[KL_ID_TEXT_BYTES];
    kl_id_print(id, text);
    return kl__record_name(buffer, KL_RECORD_NAME_BYTES, kind, queue->name, text);
}

void kl__nonce(char ret_nonce[KL_NONCE_BYTES])
{
    snprintf(ret_nonce, KL_NONCE_BYTES, "%016llx", (unsigned long long)kl__random_seed());
}

static kl_rc parse_job(const kl_record *record, kl__json *from, kl_arena *arena, kl__job *ret_job)
{
    *ret_job = (kl__job){
        .id = kl__json_id(from, "id"),
        .version = record->version,
        .name = kl__json_bytes_or(from, "name", arena, (kl_bytes){"", 0}).data,
        .idempotency = kl__json_text_or(from, "idempotency", arena, ""),
        .layout = (uint64_t)kl__json_int(from, "layout", 1, INT64_MAX),
        .shard_prefix_len = (uint32_t)kl__json_int(from, "shard_prefix_len", 1, KL_SHARD_PREFIX_LEN_MAX),
        .tasks = (uint64_t)kl__json_int(from, "tasks", 0, INT64_MAX),
        .complete = kl__json_bool(from, "complete"),
        .run = kl__json_int(from, "run", 1, INT64_MAX),
        .created_ms = kl__json_int(from, "created_ms", 0, KL_ID_MS_MAX),
        .due_ms = kl__json_int_or(from, "due_ms", 0, KL_ID_MS_MAX, 0),
        .keep_ms = kl__json_int(from, "keep_ms", 1, KL_ID_MS_MAX),
        .expires_ms = record->expires_ms,
        .run_ms = kl__json_int(from, "run_ms", 0, KL_ID_MS_MAX),
        .shift_ms = kl__json_int_or(from, "shift_ms", 0, KL_ID_MS_MAX, 0),
        .rerun_until_ms = kl__json_int_or(from, "rerun_until_ms", 0, INT64_MAX, 0),
        .rerun_layout = (uint64_t)kl__json_int_or(from, "rerun_layout", 1, INT64_MAX, 0),
        .rerun_prefix_len = (uint32_t)kl__json_int_or(from, "rerun_prefix_len", 1, KL_SHARD_PREFIX_LEN_MAX, 0),
        .failed_only = kl__json_bool_or(from, "failed_only", false),
        .nonce = kl__json_text_or(from, "nonce", arena, ""),
        .adds = kl__json_text_or(from, "adds", arena, ""),
    };
    return from->rc;
}

static kl_rc parse_record(const kl_record *record, kl_arena *arena, kl__job *ret_job)
{
    kl__json from;
    kl_rc rc = kl__json_parse(record->value, record->name.data, &from);
    if (rc != KL_OK)
        return rc;
    rc = parse_job(record, &from, arena, ret_job);
    kl__json_free(&from);
    return rc;
}

kl_rc kl__job_read(kl_queue *queue, const kl_task_id *id, kl_arena *arena, kl__job *ret_job)
{
    char buffer[KL_RECORD_NAME_BYTES], text[KL_ID_TEXT_BYTES];
    kl_record record;
    kl_rc rc = kl__record_get(queue->store, kl__job_record_name(queue, "job", id, buffer), arena, &record);
    if (rc != KL_OK)
        return rc;
    if (record.version != 0)
        return parse_record(&record, arena, ret_job);
    kl_id_print(id, text);
    return kl__fail(KL_ENOTFOUND, "the queue %s has no job %s, or not any more; list its jobs to see those that it has",
                    queue->name, text);
}

static bool set_job(json_t *to, const kl__job *job)
{
    bool made = kl__json_set_id(to, "id", &job->id) && kl__json_set_int(to, "layout", (int64_t)job->layout) &&
                kl__json_set_int(to, "shard_prefix_len", job->shard_prefix_len) &&
                kl__json_set_int(to, "tasks", (int64_t)job->tasks) &&
                kl__json_set_bool(to, "complete", job->complete) && kl__json_set_int(to, "run", job->run) &&
                kl__json_set_int(to, "created_ms", job->created_ms) && kl__json_set_int(to, "keep_ms", job->keep_ms) &&
                kl__json_set_int(to, "run_ms", job->run_ms);
    if (made && *job->name)
        made = kl__json_set_bytes(to, "name", kl_str(job->name));
    if (made && *job->idempotency)
        made = kl__json_set_text(to, "idempotency", job->idempotency);
    if (made && *job->adds)
        made = kl__json_set_text(to, "adds", job->adds);
    if (made && job->due_ms)
        made = kl__json_set_int(to, "due_ms", job->due_ms);
    if (made && job->shift_ms)
        made = kl__json_set_int(to, "shift_ms", job->shift_ms);
    if (made && job->rerun_until_ms)
        made = kl__json_set_int(to, "rerun_until_ms", job->rerun_until_ms) &&
               kl__json_set_int(to, "rerun_layout", (int64_t)job->rerun_layout) &&
               kl__json_set_int(to, "rerun_prefix_len", job->rerun_prefix_len) &&
               kl__json_set_bool(to, "failed_only", job->failed_only) && kl__json_set_text(to, "nonce", job->nonce);
    return made;
}

kl_rc kl__job_write(kl_queue *queue, kl__job *job)
{
    char buffer[KL_RECORD_NAME_BYTES];
    kl_bytes name = kl__job_record_name(queue, "job", &job->id, buffer);
    json_t *value = kl__json_object();
    kl_rc rc = set_job(value, job)
                   ? kl__record_write(queue->store, name, job->version, value, job->expires_ms, &job->version)
                   : kl__fail_memory();
    json_decref(value);
    return rc;
}

/* --- Progress --- */

static kl_rc add_counts(const kl__queue_layout *layout, const kl_task_id *job, kl_job_info *info, bool *behind)
{
    for (uint32_t i = 0; i < layout->layout.partitions; i++) {
        kl_counts counts;
        kl_place all = {kl__layout_number(layout, i), KL_ALL_SHARDS};
        kl_rc rc;
        KL_ASK(rc, kl_store_counts(layout->stores[i], all, job, &counts));
        if (rc != KL_OK)
            return rc;
        info->done += counts.done;
        info->dead += counts.dead;
        info->cancelled += counts.cancelled;
        *behind |= counts.finished_behind;
    }
    return KL_OK;
}

static kl_rc count_tasks(const kl__descriptor *descriptor, const kl__job *job, kl_job_info *info, bool *ret_behind)
{
    kl_rc rc = KL_OK;
    *ret_behind = false;
    for (size_t i = 0; rc == KL_OK && i < descriptor->layout_count; i++)
        if (descriptor->layouts[i].number >= job->layout)
            rc = add_counts(&descriptor->layouts[i], &job->id, info, ret_behind);
    uint64_t finished = info->done + info->dead + info->cancelled;
    info->waiting = info->tasks > finished ? info->tasks - finished : 0;
    return rc;
}

static kl_job_state state_of(const kl__job *job, const kl__cancelled *mark, const kl_job_info *info)
{
    if (mark->run >= job->run)
        return KL_JOB_CANCELLED;
    return job->complete && job->rerun_until_ms == 0 && info->waiting == 0 ? KL_JOB_FINISHED : KL_JOB_RUNNING;
}

/* The job with its progress; text lies where the job's does. *ret_behind: a store has not counted all that finished. */
static kl_rc tell(kl_queue *queue, const kl__descriptor *descriptor, const kl__job *job, kl_job_info *ret_info,
                  bool *ret_behind)
{
    kl__cancelled mark;
    kl_job_info info = {
        .id = job->id,
        .name = job->name,
        .tasks = job->tasks,
        .run = (uint64_t)job->run,
        .created_ms = job->created_ms,
        .due_ms = job->due_ms,
    };
    kl_rc rc = kl__cancel_read(queue, &job->id, &mark);
    if (rc == KL_OK)
        rc = count_tasks(descriptor, job, &info, ret_behind);
    if (rc != KL_OK)
        return rc;
    info.state = state_of(job, &mark, &info);
    *ret_info = info;
    return KL_OK;
}

kl_rc kl__job_tell(kl_queue *queue, const kl__job *job, kl_job_info *ret_info, bool *ret_behind)
{
    kl_rc rc = kl__queue_refresh(queue);
    if (rc != KL_OK)
        return rc;
    kl__descriptor *descriptor = kl__queue_descriptor(queue);
    rc = tell(queue, descriptor, job, ret_info, ret_behind);
    kl__descriptor_release(descriptor);
    return rc;
}

/* Keeps a job that has tasks waiting. That it fails is no reason not to show the job: the next one to look tries
 * again. */
static void keep_alive(kl_queue *queue, kl__job *job)
{
    int64_t now_ms;
    if (kl_store_now(queue->store, &now_ms) != KL_OK || job->expires_ms - now_ms > job->keep_ms / 2)
        return;
    job->expires_ms = now_ms + job->keep_ms;
    if (kl__job_write(queue, job) != KL_OK)
        return;
}

kl_rc kl_job_show(kl_queue *queue, const kl_task_id *job, kl_arena *arena, kl_job_info *ret_info)
{
    kl__job record;
    bool behind;
    if (!queue || !job || !arena || !ret_info)
        return kl__fail(KL_EINVAL,
                        "an argument is NULL; pass the queue, the job's id, an arena and room for the answer");
    kl_rc rc = kl__job_read(queue, job, arena, &record);
    if (rc == KL_OK)
        rc = kl__job_tell(queue, &record, ret_info, &behind);
    if (rc == KL_OK && ret_info->waiting > 0)
        keep_alive(queue, &record);
    return rc;
}

/* --- List --- */

static kl_rc tell_all(kl_queue *queue, const kl_record *records, size_t count, kl_arena *arena, kl_job_info *ret_jobs)
{
    kl__descriptor *descriptor = kl__queue_descriptor(queue);
    kl_rc rc = KL_OK;
    for (size_t i = 0; rc == KL_OK && i < count; i++) {
        kl__job job;
        bool behind;
        rc = parse_record(&records[i], arena, &job);
        if (rc == KL_OK)
            rc = tell(queue, descriptor, &job, &ret_jobs[i], &behind);
    }
    kl__descriptor_release(descriptor);
    return rc;
}

static kl_rc list_records(kl_queue *queue, const kl_task_id *after, size_t max, kl_arena *arena, kl_record *records,
                          size_t *ret_count)
{
    char prefix_buffer[KL_RECORD_NAME_BYTES], after_buffer[KL_RECORD_NAME_BYTES];
    kl_bytes prefix = kl__record_name(prefix_buffer, sizeof prefix_buffer, "job", queue->name, "");
    kl_bytes behind = {"", 0};
    if (after)
        behind = kl__job_record_name(queue, "job", after, after_buffer);
    return kl_store_list(queue->store, prefix, behind, max, arena, records, ret_count);
}

kl_rc kl_job_list(kl_queue *queue, const kl_task_id *after, size_t max, kl_arena *arena, kl_job_info *ret_jobs,
                  size_t *ret_count)
{
    size_t count = 0;
    if (!queue || !arena || !ret_jobs || !ret_count)
        return kl__fail(KL_EINVAL, "an argument is NULL; only `after` may be");
    if (max < 1 || max > KL_JOB_PAGE_MAX)
        return kl__fail(KL_EINVAL, "max is %zu; ask for 1 to %d jobs at a time", max, KL_JOB_PAGE_MAX);
    kl_record *records = kl__alloc_zeroed(max, sizeof *records);
    if (!records)
        return kl__fail_memory();
    kl_rc rc = kl__queue_refresh(queue);
    if (rc == KL_OK)
        rc = list_records(queue, after, max, arena, records, &count);
    if (rc == KL_OK)
        rc = tell_all(queue, records, count, arena, ret_jobs);
    kl__free(records);
    if (rc == KL_OK)
        *ret_count = count;
    return rc;
}

/* --- Leave --- */

static kl_rc try_to_leave(kl_queue *queue, const kl_task_id *id, uint64_t count, kl_arena *arena)
{
    kl__job job;
    kl_rc rc = kl__job_read(queue, id, arena, &job);
    if (rc != KL_OK)
        return rc == KL_ENOTFOUND ? KL_OK : rc; /* nobody waits for it */
    job.tasks -= count < job.tasks ? count : job.tasks;
    return kl__job_write(queue, &job);
}

kl_rc kl__job_leave(kl_queue *queue, const kl_task_id *id, uint64_t count)
{
    kl_arena arena = {0};
    kl_rc rc = KL_ECONFLICT;
    for (int i = 0; i < ADD_TRIES && rc == KL_ECONFLICT; i++) {
        kl_arena_reset(&arena);
        rc = try_to_leave(queue, id, count, &arena);
    }
    kl_arena_free(&arena);
    return rc == KL_ECONFLICT ? kl__fail(KL_EBUSY, "tasks have left their job, and its record changes again and again: "
                                                   "it counts them as waiting")
                              : rc;
}

/* --- Add --- */

static kl_rc check_added(const kl_put *tasks, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (!kl__id_is_none(&tasks[i].job) || tasks[i].keep_ms != 0 || tasks[i].job_run != 0 || tasks[i].queue ||
            tasks[i].unique.len > 0)
            return kl__fail(KL_EINVAL,
                            "task %zu of %zu has a queue, unique, job, job_run or keep_ms of its own; leave them out, "
                            "for they are the job's",
                            i + 1, count);
    }
    return KL_OK;
}

static kl_rc refuse_cancelled(kl_queue *queue, const kl__job *job)
{
    kl__cancelled mark;
    kl_rc rc = kl__cancel_read(queue, &job->id, &mark);
    if (rc == KL_OK && mark.run >= job->run)
        rc = kl__fail(KL_ECLOSED, "the job was cancelled and takes no more tasks; submit a new one, or rerun it first");
    return rc;
}

/* An add as the record remembers it: so many hex digits of its token's hash, whose first bit says whether it has
 * one. */
struct add {
    char hash[ADD_DIGITS + 1];
    const kl_put *tasks;
    size_t count;
    kl_bytes token;
    kl_put *puts; /* the tasks with what they have from the job */
    bool counted; /* by this call */
};

static void name_add(struct add *add)
{
    bool named = add->token.len > 0;
    uint64_t hash = (named ? kl__hash(add->token, SEED_ADD) : kl__random_seed()) >> 1 | (uint64_t)named << 63;
    snprintf(add->hash, sizeof add->hash, "%016llx", (unsigned long long)hash);
}

/* Only who has a token can repeat an add. */
static bool has_token(const char *hash) { return *hash >= '8'; }

static const char *find_add(const char *adds, const struct add *add)
{
    for (; strlen(adds) >= ADD_DIGITS; adds += ADD_DIGITS)
        if (memcmp(adds, add->hash, ADD_DIGITS) == 0)
            return adds;
    return NULL;
}

/* The record of an add that its job's has no more room for: "added/QUEUE/JOB-HASH". */
static kl_bytes added_name(const kl_queue *queue, const kl__job *job, const char *hash,
                           char buffer[KL_RECORD_NAME_BYTES])
{
    char text[KL_ID_TEXT_BYTES + 1 + ADD_DIGITS];
    kl_id_print(&job->id, text);
    snprintf(text + KL_ID_TEXT_BYTES - 1, sizeof text - (KL_ID_TEXT_BYTES - 1), "-%.*s", ADD_DIGITS, hash);
    return kl__record_name(buffer, KL_RECORD_NAME_BYTES, "added", queue->name, text);
}

static bool is_full(const kl__job *job) { return strlen(job->adds) >= (size_t)ADDS_MAX * ADD_DIGITS; }

static kl_rc is_counted(kl_queue *queue, const kl__job *job, const struct add *add, kl_arena *arena, bool *ret_counted)
{
    char buffer[KL_RECORD_NAME_BYTES];
    kl_record record = {.version = 0};
    kl_rc rc = KL_OK;
    *ret_counted = find_add(job->adds, add) != NULL;
    if (!*ret_counted && has_token(add->hash) && is_full(job)) {
        rc = kl__record_get(queue->store, added_name(queue, job, add->hash, buffer), arena, &record);
        *ret_counted = rc == KL_OK && record.version > 0;
    }
    return rc;
}

/* Before the oldest add leaves the job's record it gets its own, for as long as its token may be known. */
static kl_rc keep_oldest(kl_queue *queue, const kl__job *job, int64_t now_ms)
{
    char buffer[KL_RECORD_NAME_BYTES];
    if (!is_full(job))
        return KL_OK;
    const char *oldest = job->adds + (size_t)(ADDS_MAX - 1) * ADD_DIGITS;
    if (!has_token(oldest))
        return KL_OK;
    kl_bytes name = added_name(queue, job, oldest, buffer);
    kl_rc rc = kl__record_put(queue->store, name, 0, kl_str("{}"), now_ms + KL_PUT_TOKEN_MS, NULL);
    return rc == KL_ECONFLICT ? KL_OK : rc; /* it has one, of somebody who was as far */
}

/* The job must last as long as the latest of its tasks. */
static void extend(kl__job *job, const struct add *add, int64_t now_ms)
{
    int64_t last_ms = now_ms;
    for (size_t i = 0; i < add->count; i++) {
        const kl_put *task = &add->tasks[i];
        int64_t due_ms = task->due_ms ? task->due_ms : now_ms + task->delay_ms;
        last_ms = due_ms > last_ms ? due_ms : last_ms;
    }
    if (last_ms + job->keep_ms > job->expires_ms)
        job->expires_ms = last_ms + job->keep_ms;
}

/* Counts the add and remembers it, the newest first, instead of the oldest when there are many. */
static kl_rc count_add(kl_queue *queue, const kl__job *job, const struct add *add)
{
    char adds[ADDS_MAX * ADD_DIGITS + 1];
    int64_t now_ms;
    kl_rc rc;
    KL_ASK(rc, kl_store_now(queue->store, &now_ms));
    if (rc == KL_OK)
        rc = keep_oldest(queue, job, now_ms);
    if (rc != KL_OK)
        return rc;
    snprintf(adds, sizeof adds, "%s%s", add->hash, job->adds);
    kl__job grown = *job;
    grown.adds = adds;
    grown.tasks += add->count;
    extend(&grown, add, now_ms);
    return kl__job_write(queue, &grown);
}

static kl_rc take_out(kl_queue *queue, const kl_task_id *id, const struct add *add, kl_arena *arena)
{
    char adds[ADDS_MAX * ADD_DIGITS + 1];
    kl__job job;
    kl_rc rc = kl__job_read(queue, id, arena, &job);
    const char *at = rc == KL_OK ? find_add(job.adds, add) : NULL;
    if (!at || job.tasks < add->count)
        return rc;
    snprintf(adds, sizeof adds, "%.*s%s", (int)(at - job.adds), job.adds, at + ADD_DIGITS);
    job.adds = adds;
    job.tasks -= add->count;
    return kl__job_write(queue, &job);
}

/* Tasks that were refused are none of the job's. Failing that, the job shows too many. The sentence stays. */
static kl_rc uncount_add(kl_queue *queue, const kl_task_id *id, const struct add *add, kl_rc refused)
{
    char why[512];
    kl_arena arena = {0};
    snprintf(why, sizeof why, "%s", kl_error_text());
    kl_rc rc = KL_ECONFLICT;
    for (int i = 0; i < ADD_TRIES && rc == KL_ECONFLICT; i++)
        rc = take_out(queue, id, add, &arena);
    kl_arena_free(&arena);
    return kl__fail(refused, "%s", why);
}

static void fill_puts(const kl__job *job, struct add *add)
{
    for (size_t i = 0; i < add->count; i++) {
        kl_put *put = &add->puts[i];
        *put = add->tasks[i];
        put->job = job->id;
        put->job_run = job->run;
        put->keep_ms = job->keep_ms;
        if (put->due_ms == 0 && put->delay_ms == 0)
            put->due_ms = job->due_ms;
    }
}

static kl_rc check_room(const kl__job *job, const struct add *add)
{
    if (job->tasks + add->count <= KL_JOB_TASKS_MAX)
        return KL_OK;
    return kl__fail(KL_EINVAL,
                    "the job has %llu tasks, and %zu more are too many: one has up to %d; submit another job",
                    (unsigned long long)job->tasks, add->count, KL_JOB_TASKS_MAX);
}

/* Tasks are checked before they are counted, and counted before they are put. KL_ECONFLICT: the record was changed. */
static kl_rc try_add(kl_queue *queue, const kl_task_id *id, struct add *add, kl_arena *arena)
{
    kl__job job;
    bool counted;
    kl_rc rc = kl__job_read(queue, id, arena, &job);
    if (rc == KL_OK)
        rc = refuse_cancelled(queue, &job);
    if (rc != KL_OK)
        return rc;
    fill_puts(&job, add);
    rc = kl__put_check_call(queue, add->puts, add->count, add->token);
    if (rc == KL_OK)
        rc = is_counted(queue, &job, add, arena, &counted);
    if (rc == KL_OK && !counted)
        rc = check_room(&job, add);
    if (rc == KL_OK && !counted) {
        rc = count_add(queue, &job, add);
        add->counted = rc == KL_OK;
    }
    return rc;
}

static kl_rc carry_out(kl_queue *queue, const kl_task_id *id, struct add *add, kl_put_result *ret_results)
{
    kl_arena arena = {0};
    kl_rc rc = KL_ECONFLICT;
    for (int i = 0; i < ADD_TRIES && rc == KL_ECONFLICT; i++) {
        kl_arena_reset(&arena);
        rc = try_add(queue, id, add, &arena);
    }
    kl_arena_free(&arena);
    if (rc != KL_OK)
        return rc == KL_ECONFLICT ? kl__fail(KL_EBUSY, "many add to the job at once; call again") : rc;
    rc = kl_queue_put(queue, add->puts, add->count, add->token, ret_results);
    return kl_rc_class(rc) == KL_CLASS_FIX && add->counted ? uncount_add(queue, id, add, rc) : rc;
}

kl_rc kl_job_add(kl_queue *queue, const kl_task_id *job, const kl_put *tasks, size_t count, kl_bytes token,
                 kl_put_result *ret_results)
{
    struct add add = {.tasks = tasks, .count = count, .token = token};
    if (!queue || !job || (count > 0 && !tasks) || (token.len > 0 && !token.data))
        return kl__fail(KL_EINVAL,
                        "an argument is NULL; pass the queue, the job's id, the tasks and the token's bytes");
    if (count > KL_PUT_MAX)
        return kl__fail(KL_EINVAL, "there are %zu tasks; one call takes up to %d", count, KL_PUT_MAX);
    kl_rc rc = check_added(tasks, count);
    if (rc != KL_OK)
        return rc;
    name_add(&add);
    add.puts = kl__alloc_zeroed(count ? count : 1, sizeof *add.puts);
    rc = add.puts ? carry_out(queue, job, &add, ret_results) : kl__fail_memory();
    kl__free(add.puts);
    return rc;
}
