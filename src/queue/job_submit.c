/* job_submit.c - putting the tasks of a job: in batches, under ids that a repeat makes again.
 *
 * From: kl_job_submit, idempotency.c, job_rerun.c.  To: put.c's append, the stores.
 *
 *     check all tasks -> record of the job -> batch, batch, ... -> record: complete
 *
 * The id of task i follows from the job alone: its sequence starts at a random place in the lower half, at the
 * job's time, plus i. So ids of one job differ, and ascend in its order, in every layout
 * (JB2). Batches end at the same tasks on every repeat, and so their tokens are the same.
 *
 * Two things keep a repeat from putting a task twice: the store knows the tokens of the last ten minutes (kl_token),
 * and after that (careful) what waits or is kept is looked for before each batch. */
#include <stdio.h>

#include "base/clock.h"
#include "base/compare.h"
#include "base/layout.h"
#include "base/mutant.h"
#include "base/random.h"
#include "queue/job.h"
#include "queue/put.h"

enum {
    SEED_TASKS = 6,
    SEED_SPREAD = 7,
    LAYOUT_TRIES = 8, /* layouts that may be opened one after the other meanwhile */
    WRITE_TRIES = 16,
    SEQUENCE_BITS = 28,  /* together with the shard's */
    ENVELOPE_ROOM = 256, /* numbers, ids and lengths of an envelope, at most */
    FIELD_ROOM = 8,      /* number and lengths of one of its fields */
    KEEP_MS = 7 * 86400 * 1000,
    ANSWER_MS = 86400 * 1000,
};

/* --- Places --- */

uint32_t kl__job_shard(const kl_layout *layout, kl_bytes key, uint64_t spread)
{
    return key.len > 0 ? kl_shard_of(layout, key) : kl__hash_scale(spread, kl_layout_shards(layout));
}

/* Partition and shard of a task without a key come from different halves of its spread. */
static kl_rc place(const kl_queue *queue, const kl__queue_layout *in, kl__job_task *task)
{
    kl_bytes key = task->entry.key;
    uint32_t partition =
        key.len > 0 ? kl_partition_of(&in->layout, key) : kl__hash_scale(task->spread << 32, in->layout.partitions);
    kl_rc rc = task->partition ? kl__layout_partition_find(queue, &in->layout, task->partition, &partition) : KL_OK;
    if (rc != KL_OK)
        return rc;
    task->by_name = key.len > 0 && partition != kl_partition_of(&in->layout, key);
    task->entry.place = (kl_place){kl__layout_number(in, partition), kl_id_shard(&in->layout, &task->entry.id)};
    task->store = in->stores[partition];
    return KL_OK;
}

/* In an older layout a task may name a partition that there was not: then it is not there. */
static kl_rc place_all(const kl_queue *queue, const kl__queue_layout *in, bool newest, kl__job_task *tasks,
                       size_t count)
{
    kl_rc rc = KL_OK;
    for (size_t i = 0; rc == KL_OK && i < count; i++) {
        if (tasks[i].stored)
            continue;
        rc = place(queue, in, &tasks[i]);
        if (rc == KL_EINVAL && !newest) {
            tasks[i].store = NULL;
            rc = KL_OK;
        }
    }
    return rc;
}

/* --- Looking before putting --- */

struct known {
    kl_ref *refs;
    size_t *indexes;
    kl_task *found;
};

/* Marks those of one store that it knows. */
static kl_rc mark_in_store(kl_store *store, kl__job_task *tasks, size_t count, struct known *known)
{
    size_t asked = 0, done = 0, read = 0;
    for (size_t i = 0; i < count; i++)
        if (!tasks[i].stored && tasks[i].store == store) {
            known->refs[asked] = (kl_ref){.place = tasks[i].entry.place, .id = tasks[i].entry.id};
            known->indexes[asked++] = i;
        }
    kl_rc rc = KL_OK;
    kl_arena arena = {0};
    for (; rc == KL_OK && done < asked; done += read) {
        kl_arena_reset(&arena);
        KL_ASK(rc, kl_store_read(store, known->refs + done, asked - done, &arena, known->found, &read));
        for (size_t i = 0; rc == KL_OK && i < read; i++)
            tasks[known->indexes[done + i]].stored = known->found[i].state != KL_TASK_UNKNOWN;
    }
    kl_arena_free(&arena);
    return rc;
}

/* Several partitions may lie in one store; each store is asked once. */
static bool first_of_store(const kl__queue_layout *in, uint32_t partition)
{
    for (uint32_t i = 0; i < partition; i++)
        if (in->stores[i] == in->stores[partition])
            return false;
    return true;
}

static kl_rc mark_known(const kl__queue_layout *in, kl__job_task *tasks, size_t count)
{
    struct known known = {
        kl__alloc_zeroed(count, sizeof *known.refs),
        kl__alloc_zeroed(count, sizeof *known.indexes),
        kl__alloc_zeroed(count, sizeof *known.found),
    };
    kl_rc rc = known.refs && known.indexes && known.found ? KL_OK : kl__fail_memory();
    for (uint32_t i = 0; rc == KL_OK && i < in->layout.partitions; i++)
        if (first_of_store(in, i))
            rc = mark_in_store(in->stores[i], tasks, count, &known);
    kl__free(known.refs);
    kl__free(known.indexes);
    kl__free(known.found);
    return rc;
}

/* Marks those that workers have moved here: they know neither a task's spread nor the partition that it named. */
static kl_rc mark_moved(const kl__queue_layout *in, kl__job_task *tasks, size_t count)
{
    bool any = false;
    for (size_t i = 0; i < count; i++) {
        kl__job_task *task = &tasks[i];
        uint32_t partition = kl__move_partition(&in->layout, &task->entry);
        task->store = task->entry.due_ms > 0 ? in->stores[partition] : NULL;
        task->entry.place = (kl_place){kl__layout_number(in, partition), kl_id_shard(&in->layout, &task->entry.id)};
        any |= task->store && !task->stored;
    }
    return any ? mark_known(in, tasks, count) : KL_OK;
}

/* --- Putting --- */

static size_t entry_bytes(const kl_entry *entry)
{
    return entry->key.len + entry->kind.len + entry->headers.len + entry->payload.len;
}

/* The store's tasks from *next on that fit into one append; *next goes behind them. */
static size_t gather(kl_store *store, const kl__job_task *tasks, size_t count, kl_entry *gathered, size_t *next)
{
    size_t found = 0, bytes = 0;
    for (; *next < count; ++*next) {
        const kl__job_task *task = &tasks[*next];
        if (task->stored || task->store != store)
            continue;
        bytes += entry_bytes(&task->entry);
        if (found > 0 && bytes > KL_BATCH_BYTES_MAX)
            break;
        gathered[found++] = task->entry;
    }
    return found;
}

/* Of the store's tasks that were gathered and have met a seal, those that are there all the same. */
static kl_rc append_parts(kl_store *store, kl__job_task *tasks, kl__put_range range, const kl_entry *gathered,
                          size_t found, uint64_t *put)
{
    kl_token token = kl__queue_token(gathered, found);
    bool *stored = kl__alloc_zeroed(found, sizeof *stored);
    size_t next = 0;
    kl_rc rc = stored ? kl__append_parts(store, gathered, found, &token, stored) : kl__fail_memory();
    for (size_t i = range.from; stored && i < range.to; i++) {
        if (tasks[i].stored || tasks[i].store != store)
            continue;
        tasks[i].stored = stored[next++];
        *put += tasks[i].stored;
    }
    kl__free(stored);
    return rc;
}

/* One append, or several where they are large. */
static kl_rc append_to(kl_store *store, kl__job_task *tasks, size_t count, kl_entry *gathered, uint64_t *put)
{
    kl_rc rc = KL_OK;
    for (size_t from = 0, next = 0; rc == KL_OK && next < count; from = next) {
        size_t found = gather(store, tasks, count, gathered, &next);
        rc = found > 0 ? kl__queue_append(store, gathered, found) : KL_OK;
        if (rc == KL_ESEALED) {
            rc = append_parts(store, tasks, (kl__put_range){from, next}, gathered, found, put);
            continue;
        }
        for (size_t i = from; rc == KL_OK && i < next; i++)
            tasks[i].stored |= tasks[i].store == store;
        if (rc == KL_OK)
            *put += found;
    }
    return rc;
}

static kl_rc append_all(const kl__queue_layout *in, kl__job_task *tasks, size_t count, uint64_t *put)
{
    kl_entry *gathered = kl__alloc_zeroed(count, sizeof *gathered);
    kl_rc rc = gathered ? KL_OK : kl__fail_memory();
    for (uint32_t i = 0; rc == KL_OK && i < in->layout.partitions; i++)
        if (first_of_store(in, i))
            rc = append_to(in->stores[i], tasks, count, gathered, put);
    kl__free(gathered);
    return rc;
}

/* As workers move what is delayed, so that it is known again. */
static void move_ids(const kl_layout *from, const kl_layout *to, kl__job_task *tasks, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        kl_entry *entry = &tasks[i].entry;
        if (!tasks[i].stored)
            entry->id = kl__id_moved(from, to, kl__move_shard(from, to, entry), &entry->id);
    }
}

/* Q4 */
static kl_rc mark_by_name(kl_queue *queue, const kl__queue_layout *layout, const kl__job_task *tasks, size_t count)
{
    bool by_name = false;
    kl_rc rc = KL_OK;
    for (size_t i = 0; i < count; i++)
        by_name |= tasks[i].by_name && !tasks[i].stored;
    if (by_name)
        KL_ASK(rc, kl__queue_mark_by_name(queue, layout));
    return rc;
}

/* From the layout that the ids were made with to the one that tasks are put into, one by one: somebody else may have
 * put some of the tasks into any of them, under the ids that they have on this way. What an older one knows is not put
 * again. */
static kl_rc put_in_newest(kl_queue *queue, const kl__descriptor *descriptor, kl__job_task *tasks, size_t count,
                           uint64_t first, kl__job_made *made, bool careful, uint64_t *put)
{
    const kl__queue_layout *newest = kl__put_layout(descriptor);
    kl_rc rc = KL_OK;
    if (newest->number < made->number)
        return kl__fail(KL_ESEALED, "this process does not know layout %llu of the queue %s yet",
                        (unsigned long long)made->number, queue->name);
    for (size_t i = 0; rc == KL_OK && i < descriptor->layout_count; i++) {
        const kl__queue_layout *layout = &descriptor->layouts[i];
        if (layout->number < made->number || layout->number > newest->number)
            continue;
        if (layout->number > made->number)
            move_ids(&made->layout, &layout->layout, tasks, count);
        *made = (kl__job_made){layout->number, layout->layout};
        bool look = (layout != newest || careful) && !KL_MUTANT(submit_blind);
        rc = look && layout->number > first ? mark_moved(layout, tasks, count) : KL_OK;
        if (rc == KL_OK)
            rc = place_all(queue, layout, layout == newest, tasks, count);
        if (rc == KL_OK && look)
            rc = mark_known(layout, tasks, count);
    }
    if (rc == KL_OK)
        rc = mark_by_name(queue, newest, tasks, count);
    return rc == KL_OK ? append_all(newest, tasks, count, put) : rc;
}

kl_rc kl__job_put(kl_queue *queue, kl__job_task *tasks, size_t count, kl__job_made made, bool careful,
                  uint64_t *ret_put)
{
    uint64_t put = 0, first = made.number;
    kl_rc rc = count > 0 ? KL_ESEALED : KL_OK;
    for (int i = 0; i < LAYOUT_TRIES && rc == KL_ESEALED; i++) {
        rc = i > 0 ? kl__queue_seal(queue) : KL_OK;
        if (rc != KL_OK)
            return rc;
        kl__descriptor *descriptor = kl__queue_descriptor(queue);
        rc = put_in_newest(queue, descriptor, tasks, count, first, &made, careful, &put);
        kl__descriptor_release(descriptor);
    }
    if (rc == KL_ESEALED)
        return kl__fail(KL_EBUSY, "the layout of the queue %s changes again and again; call again later", queue->name);
    if (rc == KL_OK)
        *ret_put = put;
    return rc;
}

/* --- Checking --- */

static kl_rc refuse(size_t index, const char *why)
{
    return kl__fail(KL_EINVAL, "task %zu of the job: %s", index + 1, why);
}

/* At most so many bytes are its envelope's. */
static size_t envelope_bound(const kl_put *task)
{
    size_t bound = ENVELOPE_ROOM + task->group.len + task->traceparent.len;
    for (size_t i = 0; i < task->header_count; i++)
        bound += task->headers[i].name.len + task->headers[i].value.len + FIELD_ROOM;
    for (size_t i = 0; i < task->tag_count; i++)
        bound += task->tags[i].len + FIELD_ROOM;
    return bound;
}

static kl_rc check_owned(const kl_queue *queue, const kl_put *task, size_t i)
{
    if (task->queue && task->queue != queue)
        return refuse(i, "it is for another queue; submit a job for each queue");
    if (task->unique.len > 0 || task->unique_ms != 0)
        return refuse(i, "it has a unique; leave that out and give the job an idempotency key");
    if (!kl__id_is_none(&task->job) || task->keep_ms != 0 || task->job_run != 0)
        return refuse(i, "it has a job, job_run or keep_ms of its own; leave them 0: they are the job's");
    return KL_OK;
}

static kl_rc refuse_again(size_t i)
{
    char why[512];
    snprintf(why, sizeof why, "%s", kl_error_text());
    return refuse(i, why);
}

static kl_rc check_task(const kl_queue *queue, const kl_put *task, size_t i)
{
    kl_rc rc = check_owned(queue, task, i);
    if (rc != KL_OK)
        return rc;
    if (kl__put_check(task) != KL_OK)
        return refuse_again(i);
    if (envelope_bound(task) > KL_HEADERS_BYTES_MAX)
        return refuse(i, "its headers and tags together are too large; put what is large into the payload");
    return KL_OK;
}

static kl_rc check_named(kl_queue *queue, const kl_put *task)
{
    uint32_t partition;
    if (!task->partition)
        return KL_OK;
    kl__descriptor *descriptor = kl__queue_descriptor(queue);
    kl_rc rc = kl__layout_partition_find(queue, &kl__put_layout(descriptor)->layout, task->partition, &partition);
    kl__descriptor_release(descriptor);
    return rc;
}

static kl_rc check_tasks(kl_queue *queue, const kl_put *tasks, size_t count)
{
    kl_rc rc = KL_OK;
    for (size_t i = 0; rc == KL_OK && i < count; i++) {
        rc = check_task(queue, &tasks[i], i);
        if (rc == KL_OK && check_named(queue, &tasks[i]) != KL_OK)
            rc = refuse_again(i);
    }
    return rc;
}

static kl_rc check_spec(const kl_queue *queue, const kl_job_spec *spec)
{
    if (!queue || !spec)
        return kl__fail(KL_EINVAL, "an argument is NULL; pass the queue, the spec and room for the answer");
    if (spec->size != sizeof *spec)
        return kl__fail(KL_EINVAL, "kl_job_spec.size is %zu; set it to sizeof(kl_job_spec)", spec->size);
    if (spec->count > KL_JOB_TASKS_MAX || (spec->count > 0 && !spec->tasks))
        return kl__fail(KL_EINVAL, "the job has %zu tasks; pass that many, and up to %d", spec->count,
                        KL_JOB_TASKS_MAX);
    if (spec->name && strlen(spec->name) > KL_JOB_NAME_MAX)
        return kl__fail(KL_EINVAL, "the job's name has %zu bytes; it may have up to %d", strlen(spec->name),
                        KL_JOB_NAME_MAX);
    if (spec->scope && strlen(spec->scope) > KL_JOB_SCOPE_MAX)
        return kl__fail(KL_EINVAL, "the scope has %zu bytes; it may have up to %d", strlen(spec->scope),
                        KL_JOB_SCOPE_MAX);
    if (spec->idempotency_key.len > KL_IDEMPOTENCY_KEY_MAX ||
        (spec->idempotency_key.len > 0 && !spec->idempotency_key.data))
        return kl__fail(KL_EINVAL, "the idempotency key has %zu bytes; pass at most %d", spec->idempotency_key.len,
                        KL_IDEMPOTENCY_KEY_MAX);
    if (spec->fingerprint.len > 0 && !spec->fingerprint.data)
        return kl__fail(KL_EINVAL, "the fingerprint has %zu bytes, but the pointer to them is NULL; pass the bytes",
                        spec->fingerprint.len);
    if (spec->due_ms < 0 || spec->due_ms > KL_ID_MS_MAX || spec->keep_ms < 0 || spec->keep_ms > KL_ID_MS_MAX ||
        spec->answer_ms < 0 || spec->answer_ms > KL_ID_MS_MAX)
        return kl__fail(KL_EINVAL, "due_ms, keep_ms and answer_ms are milliseconds from 0 to %lld",
                        (long long)KL_ID_MS_MAX);
    if (spec->delay_ms < 0 || spec->delay_ms > KL_DELAY_MS_MAX)
        return kl__fail(KL_EINVAL, "delay_ms is %lld; it is milliseconds from 0 to %lld", (long long)spec->delay_ms,
                        (long long)KL_DELAY_MS_MAX);
    if (spec->delay_ms > 0 && spec->due_ms > 0)
        return kl__fail(KL_EINVAL, "the job has both delay_ms (%lld) and due_ms (%lld); set one of them",
                        (long long)spec->delay_ms, (long long)spec->due_ms);
    return KL_OK;
}

/* --- Batches --- */

static size_t bytes_bound(const kl_put *task)
{
    return task->key.len + task->kind.len + task->payload.len + envelope_bound(task);
}

/* Where the batch ends that begins here: the same on every repeat. */
static size_t batch_end(const kl_job_spec *spec, size_t from)
{
    size_t to = from, bytes = 0;
    while (to < spec->count && to - from < KL_PUT_MAX) {
        bytes += bytes_bound(&spec->tasks[to]);
        if (bytes > KL_BATCH_BYTES_MAX && to > from)
            break;
        to++;
    }
    return to;
}

/* When a task is due: delays count from the job's time, so that a repeat says the same. */
static int64_t due_of(const kl__job *job, const kl_put *task)
{
    if (task->delay_ms > 0)
        return job->created_ms + task->delay_ms;
    return task->due_ms ? task->due_ms : job->due_ms;
}

/* JB2. A sequence that runs over goes on in the next ms. */
static kl_rc id_of(const kl__job *job, size_t index, const kl_layout *layout, kl_bytes key, uint64_t spread,
                   kl_task_id *ret_id)
{
    uint32_t bits = SEQUENCE_BITS - kl__shard_bits(layout);
    uint64_t seed = kl__hash((kl_bytes){job->id.bytes, sizeof job->id.bytes}, SEED_TASKS);
    uint64_t start = (seed >> 32) & ((UINT64_C(1) << (bits - 1)) - 1);
    uint64_t number = start + index;
    kl_id_parts parts = {
        .shard = kl__job_shard(layout, key, spread),
        .sequence = (uint32_t)(number & ((UINT64_C(1) << bits) - 1)),
        .ms = job->created_ms + (int64_t)(number >> bits),
        .lane = kl_lane_of(key),
        .random = (uint32_t)(seed + index) & KL_ID_RANDOM_MAX,
    };
    return kl_id_pack(layout, &parts, ret_id);
}

static kl_rc make_task(const kl__job *job, const kl_put *put, size_t index, const kl_layout *layout, kl_arena *arena,
                       kl__job_task *ret_task)
{
    uint64_t state = kl__hash((kl_bytes){job->id.bytes, sizeof job->id.bytes}, SEED_SPREAD) + index;
    kl_task_extra extra = {
        .attempts_max = (uint32_t)put->attempts_max,
        .timeout_ms = put->timeout_ms,
        .group = put->group,
        .traceparent = put->traceparent,
        .headers = kl__unconst(put->headers), /* only read */
        .header_count = put->header_count,
        .tags = kl__unconst(put->tags),
        .tag_count = put->tag_count,
        .keep_ms = job->keep_ms,
        .job_run = job->run,
    };
    *ret_task = (kl__job_task){.spread = kl__random_next(&state), .partition = put->partition};
    ret_task->entry = (kl_entry){
        .job = job->id,
        .due_ms = due_of(job, put),
        .priority = (int32_t)put->priority,
        .group = kl__group_hash(put->group),
        .key = put->key,
        .kind = put->kind,
        .payload = put->payload,
    };
    kl_rc rc = kl__envelope_encode(&extra, arena, &ret_task->entry.headers);
    return rc == KL_OK ? id_of(job, index, layout, put->key, ret_task->spread, &ret_task->entry.id) : rc;
}

static kl_rc put_batch(const kl__submit *submit, const kl__job *job, size_t from, size_t to)
{
    kl__job_made made = {job->layout, {1, job->shard_prefix_len}};
    kl_arena arena = {0};
    uint64_t put;
    kl__job_task *tasks = kl__alloc_zeroed(to - from, sizeof *tasks);
    kl_rc rc = tasks ? KL_OK : kl__fail_memory();
    for (size_t i = from; rc == KL_OK && i < to; i++)
        rc = make_task(job, &submit->spec.tasks[i], i, &made.layout, &arena, &tasks[i - from]);
    if (rc == KL_OK)
        rc = kl__job_put(submit->queue, tasks, to - from, made, submit->careful, &put);
    kl__free(tasks);
    kl_arena_free(&arena);
    return rc;
}

/* --- The job --- */

kl_rc kl__job_begin(const kl__submit *submit, kl__job *ret_job)
{
    const kl_layout layout = {1, 1}; /* job.h: whatever the queue's is */
    uint64_t random = kl__random_seed();
    kl_id_parts parts = {
        .ms = submit->now_ms,
        .sequence = (uint32_t)(random >> 40),
        .random = (uint32_t)random & KL_ID_RANDOM_MAX,
    };
    kl__descriptor *descriptor = kl__queue_descriptor(submit->queue);
    const kl__queue_layout *newest = kl__put_layout(descriptor);
    *ret_job = (kl__job){
        .layout = newest->number,
        .shard_prefix_len = newest->layout.shard_prefix_len,
        .created_ms = submit->now_ms,
        .tasks = submit->spec.count,
        .idempotency = "",
    };
    kl__descriptor_release(descriptor);
    return kl_id_pack(&layout, &parts, &ret_job->id);
}

/* What follows from the spec and the job's time, the same for whoever continues it. */
static void fill(const kl_job_spec *spec, kl__job *job)
{
    int64_t last_ms = job->created_ms;
    job->version = 0;
    job->name = spec->name ? spec->name : "";
    job->nonce = job->adds = "";
    job->run = 1;
    job->run_ms = job->created_ms;
    job->due_ms = spec->delay_ms ? job->created_ms + spec->delay_ms : spec->due_ms;
    job->keep_ms = spec->keep_ms;
    for (size_t i = 0; i < spec->count; i++) {
        int64_t due_ms = due_of(job, &spec->tasks[i]);
        last_ms = due_ms > last_ms ? due_ms : last_ms;
    }
    if (job->due_ms > last_ms)
        last_ms = job->due_ms;
    job->expires_ms = last_ms + job->keep_ms;
}

static kl_rc fail_removed(void)
{
    return kl__fail(KL_ECLOSED, "the job was removed while it was submitted; submit it again if it is still wanted");
}

/* A record that is there already was written by whoever began this job. */
static kl_rc write_first(kl_queue *queue, kl__job *job, kl_arena *arena)
{
    kl_rc rc = kl__job_write(queue, job);
    if (rc == KL_ECONFLICT)
        rc = kl__job_read(queue, &job->id, arena, job);
    return rc == KL_ENOTFOUND ? fail_removed() : rc;
}

static kl_rc write_complete(kl_queue *queue, kl__job *job, kl_arena *arena)
{
    kl_rc rc = KL_ECONFLICT;
    for (int i = 0; i < WRITE_TRIES && rc == KL_ECONFLICT && !job->complete; i++) {
        job->complete = true;
        rc = kl__job_write(queue, job);
        if (rc != KL_ECONFLICT)
            break;
        rc = kl__job_read(queue, &job->id, arena, job);
        if (rc == KL_ENOTFOUND)
            return fail_removed();
        if (rc == KL_OK && !job->complete)
            rc = KL_ECONFLICT;
    }
    return rc == KL_ECONFLICT ? kl__fail(KL_EBUSY, "the job's record changes again and again; call again later") : rc;
}

kl_rc kl__job_put_all(kl__submit *submit, kl__job *job, kl_arena *arena)
{
    fill(&submit->spec, job);
    kl_rc rc = write_first(submit->queue, job, arena);
    if (rc != KL_OK || job->complete)
        return rc;
    int64_t held_ns = kl__monotonic_ns();
    while (rc == KL_OK && submit->put < submit->spec.count) {
        size_t to = batch_end(&submit->spec, submit->put);
        submit->careful |= kl__monotonic_ns() - held_ns > KL_JOB_LOOK_MS * INT64_C(1000000);
        rc = put_batch(submit, job, submit->put, to);
        if (rc != KL_OK)
            return rc;
        submit->put = to;
        held_ns = kl__monotonic_ns();
        if (to < submit->spec.count && submit->renew)
            rc = submit->renew(submit);
    }
    return rc == KL_OK ? write_complete(submit->queue, job, arena) : rc;
}

/* A part of the tasks may have been put, and the next submit is another job. The sentence stays. */
static kl_rc give_up(kl_queue *queue, const kl_task_id *job, kl_rc rc)
{
    char why[512];
    snprintf(why, sizeof why, "%s", kl_error_text());
    kl_rc cancelled = kl_job_cancel(queue, job);
    return kl__fail(rc, "%s%s", why, cancelled == KL_OK ? "; what was put of the job is cancelled" : "");
}

static kl_rc submit_new(kl__submit *submit, kl_job_answer *ret_answer)
{
    kl_arena arena = {0};
    kl__job job;
    kl_rc rc;
    KL_ASK(rc, kl_store_now(submit->queue->store, &submit->now_ms));
    if (rc == KL_OK)
        rc = kl__job_begin(submit, &job);
    if (rc == KL_OK) {
        rc = kl__job_put_all(submit, &job, &arena);
        if (rc != KL_OK)
            rc = give_up(submit->queue, &job.id, rc);
    }
    kl_arena_free(&arena);
    if (rc == KL_OK)
        *ret_answer = (kl_job_answer){.job = job.id, .tasks = submit->spec.count};
    return rc;
}

kl_rc kl_job_submit(kl_queue *queue, const kl_job_spec *spec, kl_job_answer *ret_answer, int64_t *ret_retry_ms)
{
    int64_t retry_ms = 0;
    kl_rc rc = check_spec(queue, spec);
    if (rc == KL_OK && !ret_answer)
        rc = kl__fail(KL_EINVAL, "ret_answer is NULL; pass room for the answer");
    if (rc == KL_OK)
        rc = check_tasks(queue, spec->tasks, spec->count);
    if (rc == KL_OK) {
        kl__submit submit = {.queue = queue, .spec = *spec};
        submit.spec.keep_ms = spec->keep_ms ? spec->keep_ms : KEEP_MS;
        submit.spec.answer_ms = spec->answer_ms ? spec->answer_ms : ANSWER_MS;
        rc = spec->idempotency_key.len > 0 ? kl__idempotent_submit(&submit, ret_answer, &retry_ms)
                                           : submit_new(&submit, ret_answer);
    }
    if (ret_retry_ms)
        *ret_retry_ms = retry_ms;
    return rc;
}
