/* conformance.c - what the claims share: the life of a trial, and short ways to append, look and settle. */
#include "store/conformance.h"

#include <sched.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/layout.h"
#include "base/random.h"
#include "base/wait.h"
#include "store/calls.h"

enum { SMALL_SEGMENT_BYTES = 64 << 10 };

/* ---- The life of a trial ---- */

static int64_t read_clock(void *ctx)
{
    struct trial *t = ctx;
    return atomic_load(&t->clock_ms);
}

static bool find_partitions(struct trial *t)
{
    kl_rc rc = kl_store_partition(t->store, "orders", 1, &t->orders);
    if (rc == KL_OK)
        rc = kl_store_partition(t->store, "bills", 2, &t->bills);
    if (rc != KL_OK)
        test_fail(__FILE__, __LINE__, "the partitions are not to be had: %s", kl_error_text());
    return rc == KL_OK;
}

static bool open_trial(struct trial *t)
{
    if (subject.open(&t->opts, &t->place, &t->store) == KL_OK)
        return find_partitions(t);
    test_fail(__FILE__, __LINE__, "%s does not open: %s", subject.name, kl_error_text());
    t->store = NULL;
    t->place = NULL;
    return false;
}

static void end_trial(struct trial *t)
{
    kl_store_close(t->store);
    subject.destroy(t->place);
    t->store = NULL;
    t->place = NULL;
}

void run_trial(void (*claim)(struct trial *t))
{
    struct trial t = {.clock_ms = START_MS};
    t.opts = (kl_store_opts){.size = sizeof t.opts, .segment_bytes = SMALL_SEGMENT_BYTES};
    if (subject.clocked) {
        t.opts.now_ms = read_clock;
        t.opts.now_ctx = &t;
    }
    if (open_trial(&t))
        claim(&t);
    end_trial(&t);
    kl_arena_free(&t.arena);
}

bool next_life(struct trial *t)
{
    if (!subject.reopen)
        return false;
    kl_store_close(t->store);
    t->store = NULL;
    uint32_t orders = t->orders, bills = t->bills;
    if (subject.reopen(t->place, &t->opts, &t->store) == KL_OK && find_partitions(t)) {
        CHECK_INT(t->orders, orders);
        CHECK_INT(t->bills, bills);
        return true;
    }
    test_fail(__FILE__, __LINE__, "%s does not open again: %s", subject.name, kl_error_text());
    /* The claim has failed, and goes on with a new store. */
    if (!start_over(t))
        abort();
    return false;
}

bool start_over(struct trial *t)
{
    end_trial(t);
    return open_trial(t);
}

bool can(const struct trial *t, uint32_t what) { return (kl_store_info_of(t->store).can & what) != 0; }

/* ---- Checks ---- */

static const char no_error[] = "no call has failed yet";

void forget_error(void) { (void)kl__fail(KL_EINVAL, "%s", no_error); }

bool new_error(void) { return *kl_error_text() && strcmp(kl_error_text(), no_error) != 0; }

bool same_bytes(kl_bytes a, kl_bytes b) { return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0); }

void check_bytes(kl_bytes actual, kl_bytes expected, const char *what, const char *file, int at)
{
    char quoted[2][KL_QUOTE_BYTES];
    if (!same_bytes(actual, expected))
        test_fail(file, at, "%s is %zu bytes %s, expected %zu %s", what, actual.len, kl__quote(actual, quoted[0]),
                  expected.len, kl__quote(expected, quoted[1]));
}

bool same_id(const kl_task_id *a, const kl_task_id *b) { return kl_id_compare(a, b) == 0; }

int64_t patience(void) { return kl__deadline_ns(PATIENCE_MS); }

bool still(int64_t until_ns)
{
    sched_yield();
    return kl__monotonic_ns() < until_ns;
}

/* ---- Making tasks ---- */

kl_place order_place(const struct trial *t, uint32_t shard) { return (kl_place){t->orders, shard}; }
kl_place bill_place(const struct trial *t, uint32_t shard) { return (kl_place){t->bills, shard}; }
kl_place whole(uint32_t partition) { return (kl_place){partition, KL_ALL_SHARDS}; }

static _Atomic uint64_t numbers; /* of ids and tokens, so that no two are the same */

kl_task_id make_id(const struct trial *t, kl_place place, kl_bytes key)
{
    uint64_t number = atomic_fetch_add(&numbers, 1);
    kl_layout layout = {1, place.partition == t->bills ? 2 : 1};
    kl_id_parts parts = {
        .shard = place.shard,
        .ms = START_MS + (int64_t)(number >> 8),
        .sequence = (uint32_t)(number & 0xff),
        .lane = key.len ? kl_lane_of(key) : 0,
    };
    kl_task_id id = {{0}};
    CHECK_OK(kl_id_pack(&layout, &parts, &id));
    return id;
}

kl_token make_token(void)
{
    kl_token token = {{0}};
    uint64_t number = atomic_fetch_add(&numbers, 1);
    for (int i = 0; i < 2; i++) {
        uint64_t half = kl__random_next(&number);
        memcpy(token.bytes + 8 * i, &half, sizeof half);
    }
    return token;
}

kl_entry make_entry(const struct trial *t, kl_place place, const char *key, const char *payload)
{
    kl_entry entry = {.place = place, .key = kl_str(key), .payload = kl_str(payload)};
    entry.id = make_id(t, place, entry.key);
    return entry;
}

void append(struct trial *t, const kl_entry *entries, size_t count)
{
    CHECK_OK(kl_store_append(t->store, entries, count, NULL));
}

kl_task_id append_one(struct trial *t, kl_place place, const char *payload)
{
    kl_entry entry = make_entry(t, place, "key", payload);
    append(t, &entry, 1);
    return entry.id;
}

void append_many(struct trial *t, kl_place place, kl_task_id *ret_ids, size_t count)
{
    for (size_t i = 0; i < count; i++)
        ret_ids[i] = append_one(t, place, "payload");
}

/* ---- Looking ---- */

static void *take(struct trial *t, size_t size)
{
    void *memory = kl_arena_alloc(&t->arena, size);
    if (!memory)
        abort();
    return memory;
}

kl_stub *scan_pieces(struct trial *t, const kl_scan *scan, size_t piece, size_t *ret_count)
{
    size_t room = 64 > piece ? 64 : piece, count = 0, got;
    kl_stub *stubs = take(t, room * sizeof *stubs);
    do {
        if (room - count < piece) {
            kl_stub *more = take(t, (room = 2 * room + piece) * sizeof *stubs);
            stubs = memcpy(more, stubs, count * sizeof *stubs);
        }
        kl_scan next = *scan;
        next.max = piece;
        if (count)
            next.after = &stubs[count - 1];
        got = SIZE_MAX;
        CHECK_OK(scan_one(t->store, &next, stubs + count, &got));
        if (got > piece) {
            test_fail(__FILE__, __LINE__, "a scan of at most %zu showed %zu", piece, got);
            got = 0;
        }
        count += got;
    } while (got == piece);
    *ret_count = count;
    return stubs;
}

kl_stub *scan_line(struct trial *t, kl_place place, int32_t line, size_t *ret_count)
{
    return scan_pieces(t, &(kl_scan){.place = place, .line = line, .until_ms = KL_ID_MS_MAX}, 1000, ret_count);
}

void check_line(struct trial *t, kl_place place, int32_t line, const kl_task_id *ids, size_t count, const char *file,
                int at)
{
    size_t shown;
    kl_stub *stubs = scan_line(t, place, line, &shown);
    if (shown != count)
        test_fail(file, at, "line %d shows %zu tasks, expected %zu", line, shown, count);
    for (size_t i = 0; i < shown && i < count; i++) {
        if (!same_id(&stubs[i].id, &ids[i]))
            test_fail(file, at, "line %d shows another task at %zu", line, i);
        if (stubs[i].position == 0 || (i && line != KL_LINE_DUE && stubs[i].position <= stubs[i - 1].position))
            test_fail(file, at, "the position at %zu of line %d is not above those before", i, line);
    }
}

int32_t find_stub(struct trial *t, kl_place place, const kl_task_id *id, kl_stub *ret_stub)
{
    int32_t found = NOWHERE;
    for (int32_t line = KL_PRIORITY_MIN; line <= KL_LINE_RETRY; line++) {
        size_t count;
        kl_stub *stubs = scan_line(t, place, line, &count);
        for (size_t i = 0; i < count; i++) {
            if (!same_id(&stubs[i].id, id))
                continue;
            if (found != NOWHERE)
                test_fail(__FILE__, __LINE__, "the task stands in line %d and in line %d", found, line);
            found = line;
            *ret_stub = stubs[i];
        }
    }
    return found;
}

kl_stub stub_of(struct trial *t, kl_place place, const kl_task_id *id)
{
    kl_stub stub = {.id = *id, .position = UINT64_MAX};
    CHECK(find_stub(t, place, id, &stub) != NOWHERE);
    return stub;
}

int32_t line_of(struct trial *t, kl_place place, const kl_task_id *id)
{
    kl_stub stub;
    return find_stub(t, place, id, &stub);
}

kl_task read_one(struct trial *t, kl_place place, const kl_task_id *id)
{
    kl_task task = {0};
    size_t count = 0;
    CHECK_OK(read_some(t->store, place, id, 1, &t->arena, &task, &count));
    CHECK_INT(count, 1);
    return task;
}

kl_task_state state_of(struct trial *t, kl_place place, const kl_task_id *id) { return read_one(t, place, id).state; }

kl_counts counts_of(struct trial *t, kl_place place)
{
    kl_counts counts = {0};
    CHECK_OK(kl_store_counts(t->store, place, NULL, &counts));
    return counts;
}

kl_counts job_counts_of(struct trial *t, uint32_t partition, const kl_task_id *job)
{
    kl_counts counts = {.ready = 1, .due = 1, .retry = 1, .priorities = 1};
    CHECK_OK(kl_store_counts(t->store, whole(partition), job, &counts));
    CHECK(counts.ready == 0 && counts.due == 0 && counts.retry == 0 && counts.priorities == 0);
    return counts;
}

void check_entry(const kl_entry *actual, const kl_entry *expected, const char *file, int at)
{
    if (actual->place.partition != expected->place.partition || actual->place.shard != expected->place.shard)
        test_fail(file, at, "the place is another");
    if (!same_id(&actual->id, &expected->id) || !same_id(&actual->job, &expected->job))
        test_fail(file, at, "the id or the job is another");
    if (actual->due_ms != expected->due_ms || actual->priority != expected->priority)
        test_fail(file, at, "due_ms is %" PRId64 " and the priority %d, expected %" PRId64 " and %d", actual->due_ms,
                  actual->priority, expected->due_ms, expected->priority);
    if (actual->group != expected->group)
        test_fail(file, at, "the group is %u, expected %u", actual->group, expected->group);
    if (!same_bytes(actual->key, expected->key) || !same_bytes(actual->kind, expected->kind))
        test_fail(file, at, "the key or the kind is another");
    if (!same_bytes(actual->headers, expected->headers) || !same_bytes(actual->payload, expected->payload))
        test_fail(file, at, "the headers or the payload are other bytes");
}

/* ---- Settling ---- */

kl_settled next_attempt(const kl_stub *stub, kl_outcome outcome)
{
    return (kl_settled){
        .id = stub->id, .position = stub->position, .outcome = outcome, .attempts = stub->attempts + 1u};
}

kl_settled outcome_of(struct trial *t, kl_place place, const kl_task_id *id, kl_outcome outcome)
{
    kl_stub stub = stub_of(t, place, id);
    return next_attempt(&stub, outcome);
}

kl_rc settle(struct trial *t, kl_place place, uint64_t epoch, const kl_settled *tasks, size_t count)
{
    kl_settle batch = {.place = place, .epoch = epoch, .tasks = tasks, .count = count, .rc = KL_EDEAD};
    kl_rc rc = kl_store_settle(t->store, &batch, 1);
    CHECK_INT(rc, batch.rc);
    return rc;
}

void finish(struct trial *t, kl_place place, const kl_task_id *id, kl_outcome outcome, int64_t keep_ms,
            const char *error, const char *result)
{
    kl_settled settled = outcome_of(t, place, id, outcome);
    settled.keep_ms = keep_ms;
    settled.error = kl_str(error);
    settled.result = kl_str(result);
    CHECK_OK(settle(t, place, 0, &settled, 1));
}

kl_rc fence(struct trial *t, kl_place place, uint64_t epoch)
{
    kl_fence one = {.place = place, .epoch = epoch, .rc = KL_EDEAD};
    kl_rc rc = kl_store_fence(t->store, &one, 1);
    CHECK_INT(rc, one.rc);
    return rc;
}

kl_rc seal(struct trial *t, kl_place place, uint64_t epoch)
{
    kl_fence one = {.place = place, .epoch = epoch, .seal = true, .rc = KL_EDEAD};
    kl_rc rc = kl_store_fence(t->store, &one, 1);
    CHECK_INT(rc, one.rc);
    return rc;
}

/* ---- Records ---- */

kl_record get_record(struct trial *t, const char *name)
{
    kl_record record = {.version = UINT64_MAX};
    kl_bytes bytes = kl_str(name);
    CHECK_OK(kl_store_get(t->store, &bytes, 1, &t->arena, &record));
    return record;
}

kl_rc put_record(struct trial *t, const char *name, uint64_t version, const char *value, uint64_t *ret_version)
{
    kl_write write = {.name = kl_str(name), .version = version, .value = kl_str(value), .rc = KL_EDEAD};
    kl_rc rc = kl_store_put(t->store, &write, 1);
    CHECK_INT(rc, write.rc);
    if (rc == KL_OK && ret_version)
        *ret_version = write.new_version;
    return rc;
}
