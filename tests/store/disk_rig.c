/* disk_rig.c - see disk_rig.h. */
#include "disk_rig.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"

static const kl_layout layout = {1, 1};

bool rig_begin(struct rig *rig, int64_t segment_bytes)
{
    memset(rig, 0, sizeof *rig);
    if (!workdir_make(rig->dir)) {
        test_fail(__FILE__, __LINE__, "no directory can be made");
        return false;
    }
    snprintf(rig->data, sizeof rig->data, "%s/data", rig->dir);
    snprintf(rig->journal, sizeof rig->journal, "%s/journal", rig->data);
    snprintf(rig->url, sizeof rig->url, "disk:%s", rig->data);
    rig->opts = (kl_store_opts){.size = sizeof rig->opts, .segment_bytes = segment_bytes, .no_socket = true};
    CHECK_OK(rig_open(rig));
    return rig->store != NULL;
}

kl_rc rig_open(struct rig *rig)
{
    kl_rc rc = kl_store_open(rig->url, &rig->opts, &rig->store);
    if (rc != KL_OK)
        rig->store = NULL;
    return rc == KL_OK ? kl_store_partition(rig->store, "rig", layout.shard_prefix_len, &rig->partition) : rc;
}

void rig_close(struct rig *rig)
{
    kl_store_close(rig->store);
    rig->store = NULL;
}

bool rig_reopen(struct rig *rig)
{
    rig_close(rig);
    CHECK_OK(rig_open(rig));
    return rig->store != NULL;
}

void rig_end(struct rig *rig)
{
    rig_close(rig);
    kl_arena_free(&rig->arena);
    if (rig->dir[0] && !workdir_remove(rig->dir))
        test_fail(__FILE__, __LINE__, "%s cannot be removed", rig->dir);
}

/* ---- Tasks ---- */

kl_place rig_place(const struct rig *rig, uint64_t number)
{
    return (kl_place){rig->partition, (uint32_t)(number % RIG_SHARDS)};
}

kl_task_id rig_id(uint64_t number)
{
    kl_id_parts parts = {.shard = (uint32_t)(number % RIG_SHARDS), .ms = (int64_t)number + 1, .random = 5};
    kl_task_id id = {{0}};
    CHECK_OK(kl_id_pack(&layout, &parts, &id));
    return id;
}

uint64_t rig_number(const kl_task_id *id) { return (uint64_t)kl_id_ms(&layout, id) - 1; }

static char bytes[KL_PAYLOAD_BYTES_MAX + 256];
static pthread_once_t bytes_made = PTHREAD_ONCE_INIT;

static void make_bytes(void)
{
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (char)(i * 7 + i / 251);
}

/* Payloads begin at different places of the same bytes. */
kl_entry rig_entry(const struct rig *rig, uint64_t number, size_t size)
{
    pthread_once(&bytes_made, make_bytes);
    return (kl_entry){.place = rig_place(rig, number),
                      .id = rig_id(number),
                      .group = (uint16_t)(number * 40503 >> 3),
                      .key = {bytes + number % 100, 8},
                      .kind = {"rig", 3},
                      .payload = {bytes + number % 256, size}};
}

void rig_append_due(struct rig *rig, uint64_t first, uint64_t count, size_t size, int64_t due_ms)
{
    kl_entry *entries = calloc(RIG_BATCH, sizeof *entries);
    size_t batch = size > 4096 ? 4 : RIG_BATCH;
    for (uint64_t done = 0; entries && done < count; done += batch) {
        size_t part = count - done < batch ? (size_t)(count - done) : batch;
        for (size_t i = 0; i < part; i++) {
            entries[i] = rig_entry(rig, first + done + i, size);
            entries[i].due_ms = due_ms;
        }
        CHECK_OK(kl_store_append(rig->store, entries, part, NULL));
    }
    free(entries);
}

void rig_append(struct rig *rig, uint64_t first, uint64_t count, size_t size)
{
    rig_append_due(rig, first, count, size, 0);
}

static int by_id(const void *a, const void *b)
{
    return memcmp(&(*(kl_settled *const *)a)->id, &(*(kl_settled *const *)b)->id, sizeof(kl_task_id));
}

static void set_position(kl_settled **sorted, size_t count, const kl_stub *stub)
{
    kl_settled wanted = {.id = stub->id}, *key = &wanted;
    kl_settled **found = bsearch(&key, sorted, count, sizeof(*sorted), by_id);
    if (found)
        (*found)->position = stub->position;
}

static kl_rc set_by_line(const struct rig *rig, kl_scan scan, kl_settled **sorted, size_t count)
{
    kl_stub stubs[256], last;
    scan.stubs = stubs;
    scan.max = sizeof stubs / sizeof *stubs;
    scan.until_ms = INT64_MAX;
    do {
        kl_rc rc = kl_store_scan(rig->store, &scan, 1);
        if (rc != KL_OK)
            return rc;
        for (size_t i = 0; i < scan.count; i++)
            set_position(sorted, count, &stubs[i]);
        if (scan.count)
            last = stubs[scan.count - 1];
        scan.after = &last;
    } while (scan.count == scan.max);
    return KL_OK;
}

kl_rc rig_set_positions(const struct rig *rig, kl_place place, kl_settled *settled, size_t count)
{
    kl_settled **sorted = calloc(count + 1, sizeof(*sorted));
    kl_rc rc = sorted ? KL_OK : KL_ENOMEM;
    for (size_t i = 0; sorted && i < count; i++)
        sorted[i] = &settled[i];
    if (sorted)
        qsort(sorted, count, sizeof(*sorted), by_id);
    for (int32_t line = KL_PRIORITY_MIN; rc == KL_OK && line <= KL_LINE_RETRY; line++)
        rc = set_by_line(rig, (kl_scan){.place = place, .line = line}, sorted, count);
    free(sorted);
    return rc;
}

/* Those of one shard. */
static void settle_shard(struct rig *rig, uint32_t shard, const uint64_t *numbers, size_t count, kl_settled *settled)
{
    kl_settle batch = {.place = {rig->partition, shard}, .tasks = settled};
    for (size_t i = 0; i < count; i++)
        if (numbers[i] % RIG_SHARDS == shard)
            settled[batch.count++] = (kl_settled){.id = rig_id(numbers[i]), .outcome = KL_DONE, .attempts = 1};
    if (batch.count) {
        CHECK_OK(rig_set_positions(rig, batch.place, settled, batch.count));
        CHECK_OK(kl_store_settle(rig->store, &batch, 1));
    }
}

void rig_settle_some(struct rig *rig, const uint64_t *numbers, size_t count)
{
    kl_settled *settled = calloc(RIG_BATCH * RIG_SHARDS, sizeof *settled);
    for (size_t done = 0, part; settled && done < count; done += part) {
        part = count - done < RIG_BATCH * RIG_SHARDS ? count - done : RIG_BATCH * RIG_SHARDS;
        for (uint32_t shard = 0; shard < RIG_SHARDS; shard++)
            settle_shard(rig, shard, numbers + done, part, settled);
    }
    free(settled);
}

void rig_settle(struct rig *rig, uint64_t first, uint64_t count)
{
    uint64_t *numbers = calloc(count + 1, sizeof *numbers);
    for (uint64_t i = 0; numbers && i < count; i++)
        numbers[i] = first + i;
    if (numbers)
        rig_settle_some(rig, numbers, count);
    free(numbers);
}

/* ---- Looking ---- */

uint64_t rig_waiting(struct rig *rig)
{
    uint64_t waiting = 0;
    for (uint32_t shard = 0; shard < RIG_SHARDS; shard++) {
        kl_counts counts = {0};
        CHECK_OK(kl_store_counts(rig->store, (kl_place){rig->partition, shard}, NULL, &counts));
        waiting += counts.ready + counts.due + counts.retry;
    }
    return waiting;
}

bool rig_is_whole(struct rig *rig, uint64_t number, size_t size)
{
    kl_entry expected = rig_entry(rig, number, size);
    kl_task task;
    size_t count;
    kl_arena_reset(&rig->arena);
    if (read_some(rig->store, expected.place, &expected.id, 1, &rig->arena, &task, &count) != KL_OK || count != 1)
        return false;
    return task.state == KL_TASK_WAITING && task.entry.group == expected.group && task.entry.payload.len == size &&
           (size == 0 || memcmp(task.entry.payload.data, expected.payload.data, size) == 0) &&
           task.entry.key.len == 8 && memcmp(task.entry.key.data, expected.key.data, 8) == 0;
}

bool rig_await(bool (*holds)(void *ctx), void *ctx, const char *what)
{
    int64_t until_ns = kl__deadline_ns(RIG_PATIENCE_S * 1000);
    struct timespec moment = {.tv_nsec = 2000000};
    while (!holds(ctx)) {
        if (kl__monotonic_ns() > until_ns) {
            test_fail(__FILE__, __LINE__, "%s: it does not come about", what);
            return false;
        }
        nanosleep(&moment, NULL);
    }
    return true;
}
