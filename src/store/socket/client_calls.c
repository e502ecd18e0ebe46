/* client_calls.c - the calls of an engine, as requests and answers.
 *
 * From: shared.c.  To: client.c.
 *
 * Each call takes a link, writes its request, has it made, reads the answer into the caller's arrays and arena, and
 * gives the link back. What is larger than a frame goes in several. Which calls may be made twice, unseen by the
 * caller, is decided here, in each (N3). */
#include "base/clock.h"
#include "store/socket/client.h"

/* ---- Parts ---- */

/* Ends a call of whose answer nothing is left over. */
static kl_rc finish(kl__client *client, kl__link *link, kl_rc rc, const kl__in *in)
{
    if (rc == KL_OK && !kl__in_done(in))
        rc = kl__link_refuse(client, link);
    kl__link_give(client, link);
    return rc;
}

static bool copy(kl_arena *arena, kl_bytes *bytes) { return bytes->len == 0 || kl_arena_copy(arena, *bytes, bytes); }

/* From the frame to the arena. */
static bool copy_task(kl_arena *arena, kl_task *task)
{
    kl_entry *entry = &task->entry;
    return copy(arena, &entry->key) && copy(arena, &entry->kind) && copy(arena, &entry->headers) &&
           copy(arena, &entry->payload) && copy(arena, &task->error) && copy(arena, &task->result);
}

static kl_rc read_tasks(kl__client *client, kl__link *link, kl__in *in, kl_arena *arena, kl_task *tasks, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        tasks[i] = kl__in_task(in);
        if (!in->bad && !copy_task(arena, &tasks[i]))
            return kl__fail_memory();
    }
    return kl__in_done(in) ? KL_OK : kl__link_refuse(client, link);
}

/* ---- Small ones ---- */

kl_rc kl__client_now(void *self, int64_t *ret_ms)
{
    kl__link *link;
    kl__in in;
    bool answered;
    kl_rc rc = kl__link_take(self, KL_WIRE_NOW, &link);
    if (rc != KL_OK)
        return rc;
    rc = kl__link_call(self, link, true, &in, &answered);
    int64_t ms = rc == KL_OK ? (int64_t)kl__in_u64(&in) : 0;
    rc = finish(self, link, rc, &in);
    if (rc == KL_OK)
        *ret_ms = ms;
    return rc;
}

static void note_partition(kl__client *client, uint32_t partition)
{
    uint32_t highest = atomic_load(&client->partitions);
    while (highest < partition && !atomic_compare_exchange_weak(&client->partitions, &highest, partition))
        continue;
}

kl_rc kl__client_partition(void *self, const char *name, uint32_t shard_prefix_len, uint32_t *ret_partition)
{
    kl__link *link;
    kl__in in;
    bool answered;
    kl_rc rc = kl__link_take(self, KL_WIRE_PARTITION, &link);
    if (rc != KL_OK)
        return rc;
    kl__out_bytes(&link->request, kl_str(name));
    kl__out_u32(&link->request, shard_prefix_len);
    rc = kl__link_call(self, link, true, &in, &answered);
    uint32_t partition = rc == KL_OK ? kl__in_u32(&in) : 0;
    rc = finish(self, link, rc, &in);
    if (rc != KL_OK)
        return rc;
    note_partition(self, partition);
    *ret_partition = partition;
    return KL_OK;
}

static kl_counts read_counts(kl__in *in)
{
    kl_counts counts = {.ready = kl__in_u64(in)};
    counts.due = kl__in_u64(in);
    counts.retry = kl__in_u64(in);
    counts.priorities = kl__in_u32(in);
    counts.oldest_id_ms = (int64_t)kl__in_u64(in);
    counts.done = kl__in_u64(in);
    counts.dead = kl__in_u64(in);
    counts.cancelled = kl__in_u64(in);
    counts.at_least = kl__in_flag(in);
    counts.finished_behind = kl__in_flag(in);
    return counts;
}

kl_rc kl__client_counts(void *self, kl_place place, const kl_task_id *job, kl_counts *ret_counts)
{
    kl__link *link;
    kl__in in;
    bool answered;
    kl_counts counts;
    kl_rc rc = kl__link_take(self, KL_WIRE_COUNTS, &link);
    if (rc != KL_OK)
        return rc;
    kl__out_place(&link->request, place);
    kl__out_u8(&link->request, job != NULL);
    kl__out_id(&link->request, job);
    rc = kl__link_call(self, link, true, &in, &answered);
    if (rc == KL_OK)
        counts = read_counts(&in);
    rc = finish(self, link, rc, &in);
    if (rc == KL_OK)
        *ret_counts = counts;
    return rc;
}

kl_rc kl__client_wait(void *self, uint32_t partition, int64_t wait_ms, uint64_t *seen)
{
    kl__link *link;
    kl__in in;
    bool answered;
    kl_rc rc = kl__link_take(self, KL_WIRE_WAIT, &link);
    if (rc != KL_OK)
        return rc;
    kl__out_u32(&link->request, partition);
    kl__out_u64(&link->request, (uint64_t)wait_ms);
    kl__out_u64(&link->request, *seen);
    rc = kl__link_call(self, link, true, &in, &answered);
    uint64_t now_seen = rc == KL_OK ? kl__in_u64(&in) : 0;
    rc = finish(self, link, rc, &in);
    if (rc == KL_OK)
        *seen = now_seen;
    return rc;
}

/* ---- Tasks ---- */

/* Without a token a repeat would be stored again if the task was finished in between: then it is not repeated. */
kl_rc kl__client_append(void *self, const kl_append *append)
{
    kl__link *link;
    kl__in in;
    bool answered;
    kl_rc rc = kl__link_take(self, KL_WIRE_APPEND, &link);
    if (rc != KL_OK)
        return rc;
    kl__out *out = &link->request;
    kl__out_u8(out, append->token != NULL);
    kl__out_id(out, (const kl_task_id *)(const void *)append->token);
    kl__out_u32(out, (uint32_t)append->count);
    for (size_t i = 0; i < append->count; i++)
        kl__out_entry(out, &append->entries[i]);
    rc = kl__link_call(self, link, append->token != NULL, &in, &answered);
    rc = finish(self, link, rc, &in);
    if (append->done && rc == KL_OK)
        append->done(append->ctx, KL_OK, ""); /* it has ended at once; a failure is known at once too, and refused */
    return rc;
}

static kl_rc read_stubs(kl__client *client, kl__link *link, kl__in *in, kl_scan *scans, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        scans[i].count = kl__in_count(in, scans[i].max, KL_WIRE_STUB);
        for (size_t j = 0; j < scans[i].count; j++)
            scans[i].stubs[j] = kl__in_stub(in);
    }
    return kl__in_done(in) ? KL_OK : kl__link_refuse(client, link);
}

/* How many of the scans fit into one frame: at least one does. */
static size_t scans_that_fit(const kl_scan *scans, size_t count)
{
    size_t fit = 0, stubs = 0;
    while (fit < count && stubs + scans[fit].max <= KL_STUBS_MAX)
        stubs += scans[fit++].max;
    return fit;
}

static kl_rc scan_some(kl__client *client, kl_scan *scans, size_t count)
{
    kl__link *link;
    kl__in in;
    bool answered;
    kl_rc rc = kl__link_take(client, KL_WIRE_SCAN, &link);
    if (rc != KL_OK)
        return rc;
    kl__out *out = &link->request;
    kl__out_u32(out, (uint32_t)count);
    for (size_t i = 0; i < count; i++) {
        const kl_scan *scan = &scans[i];
        kl__out_place(out, scan->place);
        kl__out_u32(out, (uint32_t)scan->line);
        kl__out_u64(out, (uint64_t)scan->until_ms);
        kl__out_u32(out, (uint32_t)scan->max);
        kl__out_u8(out, scan->after != NULL);
        kl__out_stub(out, scan->after ? scan->after : &(kl_stub){.position = 0});
    }
    rc = kl__link_call(client, link, true, &in, &answered);
    if (rc == KL_OK)
        rc = read_stubs(client, link, &in, scans, count);
    return finish(client, link, rc, &in);
}

kl_rc kl__client_scan(void *self, kl_scan *scans, size_t count)
{
    kl_rc rc = KL_OK;
    for (size_t done = 0, some; rc == KL_OK && done < count; done += some) {
        some = scans_that_fit(scans + done, count - done);
        rc = scan_some(self, scans + done, some);
    }
    return rc;
}

/* With KL_EDAMAGED there is an answer too: what was read before the damage. Its sentence must outlive the reading. */
kl_rc kl__client_read(void *self, const kl_ref *refs, size_t count, kl_arena *arena, kl_task *ret_tasks,
                      size_t *ret_count)
{
    kl__link *link;
    kl__in in;
    bool answered;
    kl_rc rc = kl__link_take(self, KL_WIRE_READ, &link);
    if (rc != KL_OK)
        return rc;
    kl__out_u32(&link->request, (uint32_t)count);
    for (size_t i = 0; i < count; i++)
        kl__out_ref(&link->request, &refs[i]);
    rc = kl__link_call(self, link, true, &in, &answered);
    if (answered && (rc == KL_OK || rc == KL_EDAMAGED)) {
        size_t read = kl__in_count(&in, count, KL_WIRE_TASK);
        kl_rc failed = read_tasks(self, link, &in, arena, ret_tasks, read);
        if (failed == KL_OK)
            *ret_count = read;
        else
            rc = failed;
    }
    kl__link_give(self, link);
    return rc;
}

/* A call that was not answered batch by batch says the same of each. */
static kl_rc same_for_all(kl_settle *batches, size_t count, kl_rc rc)
{
    for (size_t i = 0; i < count; i++)
        batches[i].rc = rc;
    return rc;
}

kl_rc kl__client_settle(void *self, kl_settle *batches, size_t count)
{
    kl__link *link;
    kl__in in;
    bool answered;
    size_t tasks = 0;
    kl_rc rc = kl__link_take(self, KL_WIRE_SETTLE, &link);
    if (rc != KL_OK)
        return same_for_all(batches, count, rc);
    for (size_t i = 0; i < count; i++)
        tasks += batches[i].count;
    kl__out *out = &link->request;
    kl__out_u32(out, (uint32_t)count);
    kl__out_u32(out, (uint32_t)tasks);
    for (size_t i = 0; i < count; i++) {
        kl__out_place(out, batches[i].place);
        kl__out_u64(out, batches[i].epoch);
        kl__out_u32(out, (uint32_t)batches[i].count);
        for (size_t j = 0; j < batches[i].count; j++)
            kl__out_settled(out, &batches[i].tasks[j]);
    }
    rc = kl__link_call(self, link, true, &in, &answered);
    if (!answered)
        rc = same_for_all(batches, count, rc);
    for (size_t i = 0; answered && i < count; i++)
        batches[i].rc = kl__in_rc(&in);
    if (answered && !kl__in_done(&in))
        rc = same_for_all(batches, count, kl__link_refuse(self, link));
    kl__link_give(self, link);
    return rc;
}

kl_rc kl__client_fence(void *self, kl_fence *fences, size_t count)
{
    kl__link *link = NULL;
    kl__in in;
    bool answered = false;
    kl_rc rc = kl__link_take(self, KL_WIRE_FENCE, &link);
    if (rc == KL_OK) {
        kl__out_u32(&link->request, (uint32_t)count);
        for (size_t i = 0; i < count; i++) {
            kl__out_place(&link->request, fences[i].place);
            kl__out_u64(&link->request, fences[i].epoch);
            kl__out_u8(&link->request, fences[i].seal);
        }
        rc = kl__link_call(self, link, true, &in, &answered);
    }
    for (size_t i = 0; i < count; i++)
        fences[i].rc = answered ? kl__in_rc(&in) : rc;
    if (answered && !kl__in_done(&in))
        rc = kl__link_refuse(self, link);
    kl__link_give(self, link);
    return rc;
}

/* ---- What is finished ---- */

/* One part of an answer. *ret_more: there may be another. */
static kl_rc read_part(kl__client *client, kl__link *link, size_t max, kl_arena *arena, kl_task *tasks,
                       size_t *ret_count, bool *ret_more)
{
    kl__in in;
    bool answered;
    kl_rc rc = kl__link_call(client, link, true, &in, &answered);
    if (rc == KL_OK) {
        uint32_t count = kl__in_u32(&in);
        *ret_more = kl__in_flag(&in) && count > 0;
        in.bad |= count > max || count > kl__in_left(&in) / KL_WIRE_TASK;
        rc = in.bad ? kl__link_refuse(client, link) : read_tasks(client, link, &in, arena, tasks, count);
        *ret_count = count;
    }
    return rc;
}

kl_rc kl__client_results(void *self, kl_place place, const kl_task_id *job, const kl_task_id *after, size_t max,
                         kl_arena *arena, kl_task *ret_tasks, size_t *ret_count)
{
    size_t count = 0, some = 0;
    bool more = true;
    kl_rc rc = KL_OK;
    for (; rc == KL_OK && more && count < max; count += rc == KL_OK ? some : 0) {
        kl__link *link;
        rc = kl__link_take(self, KL_WIRE_RESULTS, &link);
        if (rc != KL_OK)
            break;
        const kl_task_id *behind = count ? &ret_tasks[count - 1].entry.id : after;
        kl__out_place(&link->request, place);
        kl__out_id(&link->request, job);
        kl__out_u8(&link->request, behind != NULL);
        kl__out_id(&link->request, behind);
        kl__out_u32(&link->request, (uint32_t)(max - count));
        rc = read_part(self, link, max - count, arena, ret_tasks + count, &some, &more);
        kl__link_give(self, link);
    }
    if (rc == KL_OK)
        *ret_count = count;
    return rc;
}

static void write_find(kl__out *out, const kl_find *find, const kl_task *after, size_t max)
{
    kl__out_u32(out, find->partition);
    kl__out_u32(out, (uint32_t)find->state);
    kl__out_id(out, &find->job);
    kl__out_u64(out, (uint64_t)find->from_ms);
    kl__out_u64(out, (uint64_t)find->until_ms);
    kl__out_u32(out, (uint32_t)max);
    kl__out_u8(out, after != NULL);
    kl__out_place(out, after ? after->entry.place : (kl_place){0});
    kl__out_id(out, after ? &after->entry.id : NULL);
    kl__out_u64(out, after ? after->position : 0);
    kl__out_u64(out, after ? (uint64_t)after->finished_ms : 0);
    kl__out_bytes(out, find->key);
    kl__out_bytes(out, find->kind);
    kl__out_bytes(out, find->words);
}

kl_rc kl__client_find(void *self, const kl_find *find, kl_arena *arena, kl_task *ret_tasks, size_t *ret_count)
{
    size_t count = 0, some = 0;
    bool more = true;
    kl_rc rc = KL_OK;
    for (; rc == KL_OK && more && count < find->max; count += rc == KL_OK ? some : 0) {
        kl__link *link;
        rc = kl__link_take(self, KL_WIRE_FIND, &link);
        if (rc != KL_OK)
            break;
        write_find(&link->request, find, count ? &ret_tasks[count - 1] : find->after, find->max - count);
        rc = read_part(self, link, find->max - count, arena, ret_tasks + count, &some, &more);
        kl__link_give(self, link);
    }
    if (rc == KL_OK)
        *ret_count = count;
    return rc;
}

kl_rc kl__client_forget(void *self, kl_place place, const kl_task_id *ids, size_t count)
{
    kl__link *link;
    kl__in in;
    bool answered;
    kl_rc rc = kl__link_take(self, KL_WIRE_FORGET, &link);
    if (rc != KL_OK)
        return rc;
    kl__out_place(&link->request, place);
    kl__out_u32(&link->request, (uint32_t)count);
    for (size_t i = 0; i < count; i++)
        kl__out_id(&link->request, &ids[i]);
    rc = kl__link_call(self, link, true, &in, &answered);
    return finish(self, link, rc, &in);
}

/* ---- Records ---- */

/* A name that there is none of is the caller's own, as an engine gives it. */
static bool copy_got(kl_arena *arena, kl_bytes name, kl_record *record)
{
    record->name = name;
    return record->version == 0 || (kl_arena_copy(arena, name, &record->name) && copy(arena, &record->value));
}

/* As many as the server found room for. */
static kl_rc get_some(kl__client *client, const kl_bytes *names, size_t count, kl_arena *arena, kl_record *records,
                      size_t *ret_count)
{
    kl__link *link;
    kl__in in;
    bool answered;
    kl_rc rc = kl__link_take(client, KL_WIRE_GET, &link);
    if (rc != KL_OK)
        return rc;
    kl__out_u32(&link->request, (uint32_t)count);
    for (size_t i = 0; i < count; i++)
        kl__out_bytes(&link->request, names[i]);
    rc = kl__link_call(client, link, true, &in, &answered);
    size_t got = rc == KL_OK ? kl__in_count(&in, count, KL_WIRE_RECORD) : 0;
    if (rc == KL_OK && got == 0)
        rc = kl__link_refuse(client, link);
    for (size_t i = 0; rc == KL_OK && i < got; i++) {
        records[i] = kl__in_record(&in);
        if (!in.bad && !copy_got(arena, names[i], &records[i]))
            rc = kl__fail_memory();
    }
    *ret_count = got;
    return finish(client, link, rc, &in);
}

/* Names may be 32 MiB together, which no frame takes. */
kl_rc kl__client_get(void *self, const kl_bytes *names, size_t count, kl_arena *arena, kl_record *ret_records)
{
    kl_rc rc = KL_OK;
    for (size_t done = 0, got; rc == KL_OK && done < count; done += rc == KL_OK ? got : 0) {
        size_t some = 0, bytes = 0;
        while (done + some < count && bytes + names[done + some].len <= KL_BATCH_BYTES_MAX)
            bytes += names[done + some++].len;
        rc = get_some(self, names + done, some, arena, ret_records + done, &got);
    }
    return rc;
}

/* Writes of one name depend on one another, so only a write that is alone is repeated. */
kl_rc kl__client_put(void *self, kl_write *writes, size_t count)
{
    kl__link *link = NULL;
    kl__in in;
    bool answered = false;
    kl_rc rc = kl__link_take(self, KL_WIRE_PUT, &link);
    if (rc == KL_OK) {
        kl__out *out = &link->request;
        kl__out_u32(out, (uint32_t)count);
        for (size_t i = 0; i < count; i++) {
            kl__out_u64(out, writes[i].version);
            kl__out_u64(out, (uint64_t)writes[i].expires_ms);
            kl__out_u8(out, writes[i].remove);
            kl__out_bytes(out, writes[i].name);
            kl__out_bytes(out, writes[i].remove ? (kl_bytes){NULL, 0} : writes[i].value);
        }
        rc = kl__link_call(self, link, count == 1, &in, &answered);
    }
    for (size_t i = 0; i < count; i++) {
        writes[i].rc = answered ? kl__in_rc(&in) : rc;
        uint64_t version = answered ? kl__in_u64(&in) : 0;
        if (answered && writes[i].rc == KL_OK)
            writes[i].new_version = version;
    }
    if (answered && !kl__in_done(&in))
        rc = kl__link_refuse(self, link);
    kl__link_give(self, link);
    return rc;
}

static kl_rc list_some(kl__client *client, kl_bytes prefix, kl_bytes after, size_t max, kl_arena *arena,
                       kl_record *records, size_t *ret_count, bool *ret_more)
{
    kl__link *link;
    kl__in in;
    bool answered;
    kl_rc rc = kl__link_take(client, KL_WIRE_LIST, &link);
    if (rc != KL_OK)
        return rc;
    kl__out_bytes(&link->request, prefix);
    kl__out_bytes(&link->request, after);
    kl__out_u32(&link->request, (uint32_t)max);
    rc = kl__link_call(client, link, true, &in, &answered);
    uint32_t count = rc == KL_OK ? kl__in_u32(&in) : 0;
    *ret_more = rc == KL_OK && kl__in_flag(&in) && count > 0;
    if (rc == KL_OK && (count > max || count > kl__in_left(&in) / KL_WIRE_RECORD))
        rc = kl__link_refuse(client, link);
    for (size_t i = 0; rc == KL_OK && i < count; i++) {
        records[i] = kl__in_record(&in);
        if (!in.bad && (!copy(arena, &records[i].name) || !copy(arena, &records[i].value)))
            rc = kl__fail_memory();
    }
    *ret_count = count;
    return finish(client, link, rc, &in);
}

kl_rc kl__client_list(void *self, kl_bytes prefix, kl_bytes after, size_t max, kl_arena *arena, kl_record *ret_records,
                      size_t *ret_count)
{
    size_t count = 0, some = 0;
    bool more = true;
    kl_rc rc = KL_OK;
    while (rc == KL_OK && more && count < max) {
        rc = list_some(self, prefix, count ? ret_records[count - 1].name : after, max - count, arena,
                       ret_records + count, &some, &more);
        count += rc == KL_OK ? some : 0;
    }
    if (rc == KL_OK)
        *ret_count = count;
    return rc;
}
