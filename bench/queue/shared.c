/* shared.c - a store that is far away, simulated: one memory store, and a round trip before each call takes effect.
 *
 * From: processes.c, for workers that share it without being processes of their own.  To: the memory store.
 *
 * Such a store has room for everybody, as a database on its own machine has; what is measured is what workers that
 * share it do to each other. */
#include "shared.h"

#include "bench.h"

enum { ROUND_TRIP_US = 500 };

static kl_store *inner; /* the memory store of the process */

static void travel(void) { sleep_us(ROUND_TRIP_US); }

static kl_rc open_far(const char *where, const kl_store_opts *opts, void **ret_self)
{
    (void)where;
    (void)opts;
    *ret_self = inner;
    return KL_OK;
}

static void close_far(void *self) { (void)self; }

static kl_rc now(void *self, int64_t *ret_ms)
{
    travel();
    return kl_store_now(self, ret_ms);
}

static kl_rc partition(void *self, const char *name, uint32_t shard_prefix_len, uint32_t *ret_partition)
{
    travel();
    return kl_store_partition(self, name, shard_prefix_len, ret_partition);
}

static kl_rc append(void *self, const kl_append *entries)
{
    travel();
    kl_rc rc = kl_store_append(self, entries->entries, entries->count, entries->token);
    if (entries->done && rc == KL_OK)
        entries->done(entries->ctx, KL_OK, "");
    return rc;
}

static kl_rc scan(void *self, kl_scan *scans, size_t count)
{
    travel();
    return kl_store_scan(self, scans, count);
}

static kl_rc read_tasks(void *self, const kl_ref *refs, size_t count, kl_arena *arena, kl_task *ret_tasks,
                        size_t *ret_count)
{
    travel();
    return kl_store_read(self, refs, count, arena, ret_tasks, ret_count);
}

static kl_rc settle(void *self, kl_settle *batches, size_t count)
{
    travel();
    return kl_store_settle(self, batches, count);
}

static kl_rc fence(void *self, kl_fence *fences, size_t count)
{
    travel();
    return kl_store_fence(self, fences, count);
}

static kl_rc counts(void *self, kl_place place, const kl_task_id *job, kl_counts *ret_counts)
{
    travel();
    return kl_store_counts(self, place, job, ret_counts);
}

static kl_rc wait_for_work(void *self, uint32_t number, int64_t wait_ms, uint64_t *seen)
{
    travel();
    return kl_store_wait(self, number, wait_ms, seen);
}

static kl_rc results(void *self, kl_place place, const kl_task_id *job, const kl_task_id *after, size_t max,
                     kl_arena *arena, kl_task *ret_tasks, size_t *ret_count)
{
    travel();
    return kl_store_results(self, place, job, after, max, arena, ret_tasks, ret_count);
}

static kl_rc find(void *self, const kl_find *what, kl_arena *arena, kl_task *ret_tasks, size_t *ret_count)
{
    travel();
    return kl_store_find(self, what, arena, ret_tasks, ret_count);
}

static kl_rc forget(void *self, kl_place place, const kl_task_id *ids, size_t count)
{
    travel();
    return kl_store_forget(self, place, ids, count);
}

static kl_rc get(void *self, const kl_bytes *names, size_t count, kl_arena *arena, kl_record *ret_records)
{
    travel();
    return kl_store_get(self, names, count, arena, ret_records);
}

static kl_rc put(void *self, kl_write *writes, size_t count)
{
    travel();
    return kl_store_put(self, writes, count);
}

static kl_rc list(void *self, kl_bytes prefix, kl_bytes after, size_t max, kl_arena *arena, kl_record *ret_records,
                  size_t *ret_count)
{
    travel();
    return kl_store_list(self, prefix, after, max, arena, ret_records, ret_count);
}

static const kl_engine far = {
    .size = sizeof(kl_engine),
    .scheme = "far",
    .usage = "far:",
    .can = KL_STORE_ATOMIC_APPEND | KL_STORE_KEY_HASH | KL_STORE_WAIT | KL_STORE_ORDERED | KL_STORE_GROUP |
           KL_STORE_SEAL | KL_STORE_SHARED,
    .open = open_far,
    .close = close_far,
    .now = now,
    .partition = partition,
    .append = append,
    .scan = scan,
    .read = read_tasks,
    .settle = settle,
    .fence = fence,
    .counts = counts,
    .wait = wait_for_work,
    .results = results,
    .find = find,
    .forget = forget,
    .get = get,
    .put = put,
    .list = list,
};

kl_rc open_inner(kl_store **ret_store)
{
    kl_rc rc = kl_store_open("memory:", NULL, &inner);
    if (rc == KL_OK)
        *ret_store = inner;
    return rc;
}

kl_rc open_far_store(kl_store **ret_store) { return kl_store_open_engine(&far, "", NULL, ret_store); }
