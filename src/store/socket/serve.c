/* serve.c - makes the calls that come over a socket: reads a request, calls the store, writes the answer.
 *
 * From: server.c, on the connection's thread.  To: the public calls of store.h, which check what a client says as they
 * check any caller.
 *
 * Each call has a function that reads its request from `in`, calls the store and writes the answer to serving->out. It
 * returns the call's rc. `in` that is bad or not at its end before the store is called means a client that does not
 * speak this protocol: the call is refused (W2). */
#include "store/socket/serve.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"

/* A wait is cut into pieces of this length, between which the server may stop or find that the client has gone. */
enum { WAIT_PIECE_MS = 100, TALLIES_MAX = 16 };

static kl_rc refuse(void)
{
    return kl__fail(KL_EINVAL, "the request that came over the socket cannot be read; both sides must be of the same "
                               "release of Keyline");
}

/* Zeroed memory for `count` items that lasts until the answer is written. Never NULL for none. */
static void *take(kl__serving *serving, size_t count, size_t size)
{
    void *memory = kl_arena_alloc(&serving->arena, count * size);
    if (memory)
        memset(memory, 0, count * size);
    return memory;
}

/* ---- Telling what was done ---- */

/* What one call did, by partition and code. */
struct tally {
    size_t count;
    kl__made made[TALLIES_MAX];
};

static void tell(const kl__serving *serving, const kl__made *made)
{
    if (serving->made)
        serving->made(serving->made_ctx, serving->whose, made);
}

static void tell_all(const kl__serving *serving, struct tally *tally)
{
    for (size_t i = 0; i < tally->count; i++)
        tell(serving, &tally->made[i]);
    tally->count = 0;
}

/* More partitions than there is room for are told in several pieces. */
static void add_up(const kl__serving *serving, struct tally *tally, const kl__made *more)
{
    for (size_t i = 0; i < tally->count; i++)
        if (tally->made[i].partition == more->partition && tally->made[i].rc == more->rc) {
            tally->made[i].count += more->count;
            return;
        }
    if (tally->count == TALLIES_MAX)
        tell_all(serving, tally);
    tally->made[tally->count++] = *more;
}

static void tell_append(const kl__serving *serving, const kl_entry *entries, size_t count, kl_rc rc)
{
    struct tally tally = {0};
    for (size_t i = 0; serving->made && i < count; i++)
        add_up(serving, &tally, &(kl__made){KL_MADE_APPEND, entries[i].place.partition, .count = 1, .rc = rc});
    tell_all(serving, &tally);
}

/* Of an item: its own code, or where the call failed before it came to any, the call's. */
static kl_rc code_of(kl_rc own, kl_rc rc) { return own == KL_OK && rc != KL_ESTALE && rc != KL_ECONFLICT ? rc : own; }

static void tell_settle(const kl__serving *serving, const kl_settle *batches, size_t count, kl_rc rc)
{
    struct tally tally = {0};
    for (size_t i = 0; serving->made && i < count; i++)
        add_up(serving, &tally,
               &(kl__made){KL_MADE_SETTLE, batches[i].place.partition, .count = batches[i].count,
                           .rc = code_of(batches[i].rc, rc)});
    tell_all(serving, &tally);
}

static void tell_fence(const kl__serving *serving, const kl_fence *fences, size_t count, kl_rc rc)
{
    struct tally tally = {0};
    for (size_t i = 0; serving->made && i < count; i++)
        add_up(serving, &tally,
               &(kl__made){KL_MADE_FENCE, fences[i].place.partition, .count = 1, .rc = code_of(fences[i].rc, rc)});
    tell_all(serving, &tally);
}

static void tell_records(const kl__serving *serving, const kl_write *writes, size_t count, kl_rc rc)
{
    for (size_t i = 0; serving->made && i < count; i++)
        tell(serving, &(kl__made){KL_MADE_RECORD, .name = writes[i].name, .count = !writes[i].remove,
                                  .rc = code_of(writes[i].rc, rc)});
}

/* ---- Small ones ---- */

static kl_rc serve_hello(kl__serving *serving, kl__in *in)
{
    uint32_t magic = kl__in_u32(in);
    if (!kl__in_done(in) || magic != KL_WIRE_MAGIC)
        return refuse();
    kl__out_u32(&serving->out, kl_store_info_of(serving->store).can);
    kl__out_u32(&serving->out, (uint32_t)getpid());
    kl__out_u32(&serving->out, KL_BATCH_MAX);
    kl__out_u32(&serving->out, KL_BATCH_BYTES_MAX);
    kl__out_u64(&serving->out, serving->identity);
    return KL_OK;
}

static kl_rc serve_now(kl__serving *serving, kl__in *in)
{
    int64_t ms = 0;
    if (!kl__in_done(in))
        return refuse();
    kl_rc rc = kl_store_now(serving->store, &ms);
    kl__out_u64(&serving->out, (uint64_t)ms);
    return rc;
}

static kl_rc serve_partition(kl__serving *serving, kl__in *in)
{
    char name[KL_PARTITION_BYTES_MAX + 1] = "";
    kl_bytes bytes = kl__in_bytes(in, KL_PARTITION_BYTES_MAX);
    uint32_t shard_prefix_len = kl__in_u32(in), partition = 0;
    if (!kl__in_done(in) || (bytes.len && memchr(bytes.data, 0, bytes.len)))
        return refuse();
    kl__put_raw((uint8_t *)name, bytes.data, bytes.len);
    kl_rc rc = kl_store_partition(serving->store, name, shard_prefix_len, &partition);
    kl__out_u32(&serving->out, partition);
    tell(serving, &(kl__made){KL_MADE_PARTITION, partition, kl_str(name), .rc = rc});
    return rc;
}

static kl_rc serve_counts(kl__serving *serving, kl__in *in)
{
    kl_counts counts = {0};
    kl_place place = kl__in_place(in);
    bool of_job = kl__in_flag(in);
    kl_task_id job = kl__in_id(in);
    if (!kl__in_done(in))
        return refuse();
    kl_rc rc = kl_store_counts(serving->store, place, of_job ? &job : NULL, &counts);
    kl__out *out = &serving->out;
    kl__out_u64(out, counts.ready);
    kl__out_u64(out, counts.due);
    kl__out_u64(out, counts.retry);
    kl__out_u32(out, counts.priorities);
    kl__out_u64(out, (uint64_t)counts.oldest_id_ms);
    kl__out_u64(out, counts.done);
    kl__out_u64(out, counts.dead);
    kl__out_u64(out, counts.cancelled);
    kl__out_u8(out, counts.at_least);
    kl__out_u8(out, counts.finished_behind);
    return rc;
}

/* A client sends nothing while it waits for an answer: whatever can be read is its end. */
static bool has_gone(const kl__serving *serving)
{
    struct pollfd client = {.fd = serving->fd, .events = POLLIN | POLLRDHUP};
    return poll(&client, 1, 0) > 0;
}

/* The number by which a store knows what a caller has seen counts from the store's opening, so another holder's may
 * happen to be the same. Each server adds a salt of its own: what another one gave is then seen to be old. */
static kl_rc serve_wait(kl__serving *serving, kl__in *in)
{
    uint32_t partition = kl__in_u32(in);
    int64_t wait_ms = (int64_t)kl__in_u64(in);
    uint64_t given = kl__in_u64(in), old = given ? given - serving->salt : 0, seen = old;
    if (!kl__in_done(in))
        return refuse();
    int64_t until_ns = kl__deadline_ns(wait_ms > 0 ? wait_ms : 0);
    kl_rc rc;
    do {
        int64_t left_ms = (until_ns - kl__monotonic_ns() + 999999) / 1000000;
        rc = kl_store_wait(serving->store, partition, left_ms < WAIT_PIECE_MS ? left_ms : WAIT_PIECE_MS, &seen);
    } while (rc == KL_OK && seen == old && kl__monotonic_ns() < until_ns && !atomic_load(serving->stopping) &&
             !has_gone(serving));
    kl__out_u64(&serving->out, seen + serving->salt);
    return rc;
}

/* ---- Tasks ---- */

static kl_rc serve_append(kl__serving *serving, kl__in *in)
{
    kl_token token = {{0}};
    bool has_token = kl__in_flag(in);
    const uint8_t *bytes = kl__in_raw(in, sizeof token.bytes);
    size_t count = kl__in_count(in, KL_BATCH_MAX, KL_WIRE_ENTRY);
    kl_entry *entries = take(serving, count, sizeof *entries);
    if (!entries)
        return kl__fail_memory();
    for (size_t i = 0; i < count; i++)
        entries[i] = kl__in_entry(in);
    if (!kl__in_done(in))
        return refuse();
    memcpy(token.bytes, bytes, sizeof token.bytes);
    kl_rc rc = kl_store_append(serving->store, entries, count, has_token ? &token : NULL);
    tell_append(serving, entries, count, rc);
    return rc;
}

static bool read_scans(kl__in *in, kl_scan *scans, kl_stub *afters, size_t count, size_t *ret_stubs)
{
    size_t sum = 0;
    for (size_t i = 0; i < count; i++) {
        scans[i].place = kl__in_place(in);
        scans[i].line = (int32_t)kl__in_u32(in);
        scans[i].until_ms = (int64_t)kl__in_u64(in);
        scans[i].max = kl__in_u32(in);
        scans[i].after = kl__in_flag(in) ? &afters[i] : NULL;
        afters[i] = kl__in_stub(in);
        sum += scans[i].max; /* 65,536 of them are below 2^48 */
    }
    *ret_stubs = sum;
    return kl__in_done(in) && sum <= KL_STUBS_MAX;
}

static kl_rc serve_scan(kl__serving *serving, kl__in *in)
{
    size_t stub_count, count = kl__in_count(in, KL_BATCH_MAX, 25 + KL_WIRE_STUB);
    kl_scan *scans = take(serving, count, sizeof *scans);
    kl_stub *afters = take(serving, count, sizeof *afters);
    if (!scans || !afters)
        return kl__fail_memory();
    if (!read_scans(in, scans, afters, count, &stub_count))
        return refuse();
    kl_stub *stubs = kl_arena_alloc(&serving->arena, stub_count * sizeof *stubs);
    if (!stubs)
        return kl__fail_memory();
    for (size_t i = 0; i < count; stubs += scans[i++].max)
        scans[i].stubs = stubs;
    kl_rc rc = kl_store_scan(serving->store, scans, count);
    for (size_t i = 0; rc == KL_OK && i < count; i++) {
        kl__out_u32(&serving->out, (uint32_t)scans[i].count);
        for (size_t j = 0; j < scans[i].count; j++)
            kl__out_stub(&serving->out, &scans[i].stubs[j]);
    }
    return rc;
}

static kl_rc serve_read(kl__serving *serving, kl__in *in)
{
    size_t read = 0, count = kl__in_count(in, KL_BATCH_MAX, KL_WIRE_REF);
    kl_ref *refs = take(serving, count, sizeof *refs);
    kl_task *tasks = take(serving, count, sizeof *tasks);
    if (!refs || !tasks)
        return kl__fail_memory();
    for (size_t i = 0; i < count; i++)
        refs[i] = kl__in_ref(in);
    if (!kl__in_done(in))
        return refuse();
    kl_rc rc = kl_store_read(serving->store, refs, count, &serving->arena, tasks, &read);
    kl__out_u32(&serving->out, (uint32_t)read);
    for (size_t i = 0; i < read; i++)
        kl__out_task(&serving->out, &tasks[i]);
    return rc;
}

/* The tasks of all batches, which lie one behind the other. */
static bool read_batches(kl__in *in, kl_settle *batches, size_t count, kl_settled *tasks, size_t task_count)
{
    size_t used = 0;
    for (size_t i = 0; i < count; i++) {
        batches[i].place = kl__in_place(in);
        batches[i].epoch = kl__in_u64(in);
        batches[i].count = kl__in_count(in, task_count - used, KL_WIRE_SETTLED);
        batches[i].tasks = tasks + used;
        for (size_t j = 0; j < batches[i].count; j++)
            tasks[used++] = kl__in_settled(in);
    }
    return kl__in_done(in) && used == task_count;
}

static kl_rc serve_settle(kl__serving *serving, kl__in *in)
{
    size_t count = kl__in_count(in, KL_BATCH_MAX, 20), task_count = kl__in_count(in, KL_BATCH_MAX, KL_WIRE_SETTLED);
    kl_settle *batches = take(serving, count, sizeof *batches);
    kl_settled *tasks = take(serving, task_count, sizeof *tasks);
    if (!batches || !tasks)
        return kl__fail_memory();
    if (!read_batches(in, batches, count, tasks, task_count))
        return refuse();
    kl_rc rc = kl_store_settle(serving->store, batches, count);
    for (size_t i = 0; i < count; i++)
        kl__out_u32(&serving->out, (uint32_t)batches[i].rc);
    tell_settle(serving, batches, count, rc);
    return rc;
}

static kl_rc serve_fence(kl__serving *serving, kl__in *in)
{
    size_t count = kl__in_count(in, KL_BATCH_MAX, 17);
    kl_fence *fences = take(serving, count, sizeof *fences);
    if (!fences)
        return kl__fail_memory();
    for (size_t i = 0; i < count; i++) {
        fences[i].place = kl__in_place(in);
        fences[i].epoch = kl__in_u64(in);
        fences[i].seal = kl__in_flag(in);
    }
    if (!kl__in_done(in))
        return refuse();
    kl_rc rc = kl_store_fence(serving->store, fences, count);
    for (size_t i = 0; i < count; i++)
        kl__out_u32(&serving->out, (uint32_t)fences[i].rc);
    tell_fence(serving, fences, count, rc);
    return rc;
}

/* ---- What is finished ---- */

/* Answers that come in parts (W3): how many are wanted, and where count and `more` stand in the answer. */
struct parts {
    size_t max, count, head;
    bool full;
};

static void begin_parts(kl__serving *serving, struct parts *parts)
{
    parts->head = serving->out.length;
    kl__out_u32(&serving->out, 0);
    kl__out_u8(&serving->out, 0);
}

static size_t next_part(const struct parts *parts)
{
    size_t left = parts->max - parts->count;
    return left < KL_PART_ITEMS ? left : KL_PART_ITEMS;
}

/* Is the answer long enough? Asked before each item. */
static bool is_full(kl__serving *serving, struct parts *parts)
{
    parts->full = serving->out.length > KL_BATCH_BYTES_MAX;
    return parts->full;
}

static void end_parts(kl__serving *serving, const struct parts *parts)
{
    if (serving->out.failed)
        return;
    uint8_t *at = serving->out.bytes + parts->head;
    at = KL_PUT(at, uint32_t, parts->count);
    KL_PUT(at, uint8_t, parts->full);
}

/* Writes what fits. True: there may be more to ask for. */
static bool put_tasks(kl__serving *serving, struct parts *parts, const kl_task *tasks, size_t count, size_t asked)
{
    for (size_t i = 0; i < count; i++) {
        if (is_full(serving, parts))
            return false;
        kl__out_task(&serving->out, &tasks[i]);
        parts->count++;
    }
    return count == asked && parts->count < parts->max && !is_full(serving, parts);
}

static kl_rc serve_results(kl__serving *serving, kl__in *in)
{
    kl_task tasks[KL_PART_ITEMS];
    struct parts parts = {0};
    kl_place place = kl__in_place(in);
    kl_task_id job = kl__in_id(in);
    bool behind = kl__in_flag(in);
    kl_task_id after = kl__in_id(in);
    parts.max = kl__in_u32(in);
    if (!kl__in_done(in) || parts.max < 1 || parts.max > KL_BATCH_MAX)
        return refuse();
    kl_rc rc;
    size_t count, asked;
    bool go_on;
    begin_parts(serving, &parts);
    do {
        kl_arena_reset(&serving->arena);
        count = 0;
        asked = next_part(&parts);
        rc = kl_store_results(serving->store, place, &job, behind ? &after : NULL, asked, &serving->arena, tasks,
                              &count);
        go_on = rc == KL_OK && put_tasks(serving, &parts, tasks, count, asked);
        if (go_on) {
            after = tasks[count - 1].entry.id;
            behind = true;
        }
    } while (go_on);
    end_parts(serving, &parts);
    return rc;
}

static bool read_find(kl__in *in, kl_find *find, kl_task *after)
{
    find->partition = kl__in_u32(in);
    uint32_t state = kl__in_u32(in);
    find->state = (kl_task_state)state;
    find->job = kl__in_id(in);
    find->from_ms = (int64_t)kl__in_u64(in);
    find->until_ms = (int64_t)kl__in_u64(in);
    find->max = kl__in_u32(in);
    find->after = kl__in_flag(in) ? after : NULL;
    after->entry.place = kl__in_place(in);
    after->entry.id = kl__in_id(in);
    after->position = kl__in_u64(in);
    after->finished_ms = (int64_t)kl__in_u64(in);
    find->key = kl__in_bytes(in, KL_KEY_BYTES_MAX);
    find->kind = kl__in_bytes(in, KL_KIND_BYTES_MAX);
    find->words = kl__in_bytes(in, KL_ERROR_BYTES_MAX);
    return kl__in_done(in) && state <= KL_TASK_CANCELLED && find->max >= 1 && find->max <= KL_BATCH_MAX;
}

static kl_rc serve_find(kl__serving *serving, kl__in *in)
{
    kl_task tasks[KL_PART_ITEMS], after = {.position = 0};
    kl_find find = {.partition = 0};
    if (!read_find(in, &find, &after))
        return refuse();
    struct parts parts = {.max = find.max};
    kl_rc rc;
    size_t count;
    bool go_on;
    begin_parts(serving, &parts);
    do {
        kl_arena_reset(&serving->arena);
        count = 0;
        find.max = next_part(&parts);
        rc = kl_store_find(serving->store, &find, &serving->arena, tasks, &count);
        go_on = rc == KL_OK && put_tasks(serving, &parts, tasks, count, find.max);
        if (go_on) {
            after = tasks[count - 1];
            find.after = &after;
        }
    } while (go_on);
    end_parts(serving, &parts);
    return rc;
}

static kl_rc serve_forget(kl__serving *serving, kl__in *in)
{
    kl_place place = kl__in_place(in);
    size_t count = kl__in_count(in, KL_BATCH_MAX, KL_WIRE_ID);
    kl_task_id *ids = take(serving, count, sizeof *ids);
    if (!ids)
        return kl__fail_memory();
    for (size_t i = 0; i < count; i++)
        ids[i] = kl__in_id(in);
    if (!kl__in_done(in))
        return refuse();
    kl_rc rc = kl_store_forget(serving->store, place, ids, count);
    tell(serving, &(kl__made){KL_MADE_FORGET, place.partition, .count = count, .rc = rc});
    return rc;
}

/* ---- Records ---- */

/* As many as fit; the client asks for the rest. The names lie in the frame, so the arena can be emptied in between. */
static kl_rc get_parts(kl__serving *serving, const kl_bytes *names, struct parts *parts)
{
    kl_record records[KL_PART_ITEMS];
    kl_arena arena = {0};
    kl_rc rc = KL_OK;
    while (rc == KL_OK && parts->count < parts->max && !is_full(serving, parts)) {
        size_t asked = next_part(parts);
        kl_arena_reset(&arena);
        rc = kl_store_get(serving->store, names + parts->count, asked, &arena, records);
        for (size_t i = 0; rc == KL_OK && i < asked && !is_full(serving, parts); i++, parts->count++)
            kl__out_record(&serving->out, &records[i], false);
    }
    kl_arena_free(&arena);
    return rc;
}

static kl_rc serve_get(kl__serving *serving, kl__in *in)
{
    struct parts parts = {.max = kl__in_count(in, KL_BATCH_MAX, 4), .head = serving->out.length};
    kl_bytes *names = take(serving, parts.max, sizeof *names);
    if (!names)
        return kl__fail_memory();
    for (size_t i = 0; i < parts.max; i++)
        names[i] = kl__in_bytes(in, KL_RECORD_NAME_MAX);
    if (!kl__in_done(in))
        return refuse();
    kl__out_u32(&serving->out, 0);
    kl_rc rc = get_parts(serving, names, &parts);
    if (!serving->out.failed)
        KL_PUT(serving->out.bytes + parts.head, uint32_t, parts.count);
    return rc;
}

static kl_rc serve_put(kl__serving *serving, kl__in *in)
{
    size_t count = kl__in_count(in, KL_BATCH_MAX, 25);
    kl_write *writes = take(serving, count, sizeof *writes);
    if (!writes)
        return kl__fail_memory();
    for (size_t i = 0; i < count; i++) {
        writes[i].version = kl__in_u64(in);
        writes[i].expires_ms = (int64_t)kl__in_u64(in);
        writes[i].remove = kl__in_flag(in);
        writes[i].name = kl__in_bytes(in, KL_RECORD_NAME_MAX);
        writes[i].value = kl__in_bytes(in, KL_RECORD_BYTES_MAX);
    }
    if (!kl__in_done(in))
        return refuse();
    kl_rc rc = kl_store_put(serving->store, writes, count);
    for (size_t i = 0; i < count; i++) {
        kl__out_u32(&serving->out, (uint32_t)writes[i].rc);
        kl__out_u64(&serving->out, writes[i].new_version);
    }
    tell_records(serving, writes, count, rc);
    return rc;
}

static kl_rc serve_list(kl__serving *serving, kl__in *in)
{
    kl_record records[KL_PART_ITEMS];
    char last[KL_RECORD_NAME_MAX];
    struct parts parts = {0};
    kl_bytes prefix = kl__in_bytes(in, KL_RECORD_NAME_MAX), after = kl__in_bytes(in, KL_RECORD_NAME_MAX);
    parts.max = kl__in_u32(in);
    if (!kl__in_done(in) || parts.max < 1 || parts.max > KL_BATCH_MAX)
        return refuse();
    kl_rc rc;
    size_t count, asked;
    begin_parts(serving, &parts);
    do {
        kl_arena_reset(&serving->arena);
        count = 0;
        asked = next_part(&parts);
        rc = kl_store_list(serving->store, prefix, after, asked, &serving->arena, records, &count);
        for (size_t i = 0; rc == KL_OK && i < count && !is_full(serving, &parts); i++, parts.count++)
            kl__out_record(&serving->out, &records[i], true);
        if (rc == KL_OK && count) {
            after = (kl_bytes){last, records[count - 1].name.len};
            memcpy(last, records[count - 1].name.data, after.len);
        }
    } while (rc == KL_OK && count == asked && parts.count < parts.max && !is_full(serving, &parts));
    end_parts(serving, &parts);
    return rc;
}

/* ---- Any ---- */

struct service {
    kl_rc (*serve)(kl__serving *serving, kl__in *in);
    bool always; /* it answers whatever its rc is */
};

static const struct service services[KL_WIRE_CALLS] = {
    [KL_WIRE_HELLO] = {serve_hello, false},
    [KL_WIRE_NOW] = {serve_now, false},
    [KL_WIRE_PARTITION] = {serve_partition, false},
    [KL_WIRE_APPEND] = {serve_append, false},
    [KL_WIRE_SCAN] = {serve_scan, false},
    [KL_WIRE_READ] = {serve_read, true},
    [KL_WIRE_SETTLE] = {serve_settle, true},
    [KL_WIRE_FENCE] = {serve_fence, true},
    [KL_WIRE_COUNTS] = {serve_counts, false},
    [KL_WIRE_WAIT] = {serve_wait, false},
    [KL_WIRE_RESULTS] = {serve_results, false},
    [KL_WIRE_FIND] = {serve_find, false},
    [KL_WIRE_FORGET] = {serve_forget, false},
    [KL_WIRE_GET] = {serve_get, false},
    [KL_WIRE_PUT] = {serve_put, true},
    [KL_WIRE_LIST] = {serve_list, false},
};

static kl_rc serve_any(kl__serving *serving, const kl__frame *request)
{
    kl__in in = kl__frame_body(request);
    uint8_t call = kl__frame_call(request), version = kl__frame_version(request);
    if (version != KL_WIRE_VERSION)
        return kl__fail(KL_EINVAL,
                        "the process that has the store open speaks version %d of the socket's protocol, and this one "
                        "version %u; run the same release of Keyline for both",
                        KL_WIRE_VERSION, version);
    return call < KL_WIRE_CALLS ? services[call].serve(serving, &in) : refuse();
}

/* An answer that is too long for a frame or for memory, after a call that was made: KL_ENOMEM would say that nothing
 * was changed, so the connection is ended instead, and the client knows that it does not know. The frame stays
 * failed. */
void kl__serve(kl__serving *serving, const kl__frame *request)
{
    uint8_t call = kl__frame_call(request);
    kl__out_answer(&serving->out, (kl__wire_call)call, kl__frame_number(request));
    size_t empty = serving->out.length;
    kl_rc rc = serve_any(serving, request);
    bool answered = rc == KL_OK || (serving->out.length > empty && services[call].always);
    kl__out_finish(&serving->out, rc, answered ? KL_ANSWERED : KL_ANSWER_NONE, kl_error_text());
    kl_arena_free(&serving->arena); /* an idle connection keeps little */
}

void kl__serve_not(kl__serving *serving, const kl__frame *request)
{
    kl__out_answer(&serving->out, (kl__wire_call)kl__frame_call(request), kl__frame_number(request));
    kl__out_finish(&serving->out, KL_ECLOSED, KL_ANSWER_NOT, "the store is being closed; the call was not made");
}
