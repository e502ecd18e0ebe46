/* spy.c - the engine that only notes. */
#include "store/spy.h"

#include <stdlib.h>

struct spy spy;

static kl_rc note(void)
{
    spy.calls++;
    return spy.rc == KL_OK ? KL_OK : kl__fail(spy.rc, "the engine said so");
}

static kl_rc spy_open(const char *where, const kl_store_opts *opts, void **ret_self)
{
    if (spy.rc != KL_OK)
        return kl__fail(spy.rc, "the engine would not open");
    snprintf(spy.where, sizeof spy.where, "%s", where);
    spy.opts = *opts;
    *ret_self = &spy;
    return KL_OK;
}

static void spy_close(void *self)
{
    (void)self;
    spy.closed++;
}

static kl_rc spy_now(void *self, int64_t *ret_ms)
{
    (void)self;
    *ret_ms = 4711;
    return note();
}

static kl_rc spy_partition(void *self, const char *name, uint32_t shard_prefix_len, uint32_t *ret_partition)
{
    (void)self, (void)shard_prefix_len;
    if (spy.rc != KL_OK)
        return kl__fail(spy.rc, "no partition");
    *ret_partition = (uint32_t)strtoul(name + 1, NULL, 10); /* p7 is 7 */
    return KL_OK;
}

static kl_rc spy_append(void *self, const kl_append *append)
{
    (void)self;
    spy.append = *append;
    return note();
}

static kl_rc spy_scan(void *self, kl_scan *scans, size_t count)
{
    (void)self;
    for (size_t i = 0; i < count; i++) {
        scans[i].count = scans[i].max < 3 ? scans[i].max : 3;
        memset(scans[i].stubs, 0, scans[i].count * sizeof *scans[i].stubs);
    }
    return note();
}

static kl_rc give_tasks(kl_task *ret_tasks, size_t count, size_t *ret_count)
{
    memset(ret_tasks, 0, count * sizeof *ret_tasks);
    for (size_t i = 0; i < count; i++)
        ret_tasks[i].entry.payload = kl_str("1234567890");
    *ret_count = count;
    return note();
}

static kl_rc spy_read(void *self, const kl_ref *refs, size_t count, kl_arena *arena, kl_task *ret_tasks,
                      size_t *ret_count)
{
    (void)self, (void)refs, (void)arena;
    return give_tasks(ret_tasks, count, ret_count);
}

static kl_rc spy_settle(void *self, kl_settle *batches, size_t count)
{
    (void)self;
    for (size_t i = 0; i < count; i++)
        batches[i].rc = i == 0 ? spy.rc : KL_OK;
    return note();
}

static kl_rc spy_fence(void *self, kl_fence *fences, size_t count)
{
    (void)self;
    for (size_t i = 0; i < count; i++)
        fences[i].rc = i == 0 ? spy.rc : KL_OK;
    return note();
}

static kl_rc spy_counts(void *self, kl_place place, const kl_task_id *job, kl_counts *ret_counts)
{
    (void)self, (void)place, (void)job;
    *ret_counts = (kl_counts){0};
    return note();
}

static kl_rc spy_wait(void *self, uint32_t partition, int64_t wait_ms, uint64_t *seen)
{
    (void)self, (void)partition, (void)seen;
    spy.wait_ms = wait_ms;
    return note();
}

static kl_rc spy_results(void *self, kl_place place, const kl_task_id *job, const kl_task_id *after, size_t max,
                         kl_arena *arena, kl_task *ret_tasks, size_t *ret_count)
{
    (void)self, (void)place, (void)job, (void)after, (void)arena;
    return give_tasks(ret_tasks, max < 2 ? max : 2, ret_count);
}

static kl_rc spy_find(void *self, const kl_find *find, kl_arena *arena, kl_task *ret_tasks, size_t *ret_count)
{
    (void)self, (void)arena;
    return give_tasks(ret_tasks, find->max < 2 ? find->max : 2, ret_count);
}

static kl_rc spy_forget(void *self, kl_place place, const kl_task_id *ids, size_t count)
{
    (void)self, (void)place, (void)ids, (void)count;
    return note();
}

static kl_rc spy_get(void *self, const kl_bytes *names, size_t count, kl_arena *arena, kl_record *ret_records)
{
    (void)self, (void)arena;
    for (size_t i = 0; i < count; i++)
        ret_records[i] = (kl_record){.name = names[i], .value = kl_str("abc")};
    return note();
}

static kl_rc spy_put(void *self, kl_write *writes, size_t count)
{
    (void)self;
    for (size_t i = 0; i < count; i++)
        writes[i].rc = i == 0 ? spy.rc : KL_OK;
    return note();
}

static kl_rc spy_list(void *self, kl_bytes prefix, kl_bytes after, size_t max, kl_arena *arena, kl_record *ret_records,
                      size_t *ret_count)
{
    (void)self, (void)prefix, (void)after, (void)max, (void)arena;
    ret_records[0] = (kl_record){.name = kl_str("n"), .value = kl_str("abc")};
    *ret_count = 1;
    return note();
}

const kl_engine spy_engine = {
    .size = sizeof(kl_engine),
    .scheme = "spy",
    .usage = "spy:",
    .can = KL_STORE_SHARED,
    .open = spy_open,
    .close = spy_close,
    .now = spy_now,
    .partition = spy_partition,
    .append = spy_append,
    .scan = spy_scan,
    .read = spy_read,
    .settle = spy_settle,
    .fence = spy_fence,
    .counts = spy_counts,
    .wait = spy_wait,
    .results = spy_results,
    .find = spy_find,
    .forget = spy_forget,
    .get = spy_get,
    .put = spy_put,
    .list = spy_list,
};

kl_store *open_spy(const kl_store_opts *opts)
{
    kl_store *store = NULL;
    uint32_t one = 0, two = 0;
    memset(&spy, 0, sizeof spy);
    CHECK_INT(kl_store_open_engine(&spy_engine, "", opts, &store), KL_OK);
    CHECK_INT(kl_store_partition(store, "p1", 1, &one), KL_OK);
    CHECK_INT(kl_store_partition(store, "p2", 2, &two), KL_OK);
    CHECK(one == 1 && two == 2);
    return store;
}

kl_task_id id_of(uint8_t first, uint8_t second) { return (kl_task_id){{first, second, 3}}; }

kl_entry entry_of(uint32_t partition, uint32_t shard)
{
    kl_entry entry = {.place = {partition, shard}};
    entry.id = partition == 1 ? id_of((uint8_t)(shard << 4), 0) : id_of((uint8_t)shard, 0);
    return entry;
}

kl_bytes sized(size_t len)
{
    static char zeros[KL_PAYLOAD_BYTES_MAX + 2];
    CHECK(len <= sizeof zeros);
    return (kl_bytes){zeros, len};
}

void note_end(void *ctx, kl_rc rc, const char *error)
{
    struct end *end = ctx;
    end->count++;
    end->rc = rc;
    snprintf(end->error, sizeof end->error, "%s", error);
}
