/* test_disk_keep.c - what came of a task is kept, and what cannot be read is kept aside, whatever the journal's bytes
 * say. */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "disk_rig.h"
#include "store/disk/disk.h"
#include "store/dispatch.h"

enum { FILLERS = 2000, TRIED = 30 };

/* Writes over the first place of the first segment where the text stands. */
static void spoil_text(const struct rig *rig, const char *text)
{
    static char bytes[RIG_SEGMENT];
    char path[sizeof rig->journal + 32];
    snprintf(path, sizeof path, "%s/%016x.seg", rig->journal, 1);
    FILE *file = fopen(path, "r+b");
    REQUIRE(file);
    size_t got = fread(bytes, 1, sizeof bytes, file);
    const char *found = memmem(bytes, got, text, strlen(text));
    CHECK(found && fseek(file, found - bytes, SEEK_SET) == 0 && fputc('!', file) == '!');
    fclose(file);
}

static void settle(struct rig *rig, uint64_t number, int64_t keep_ms)
{
    kl_settled settled = {.id = rig_id(number), .attempts = 1, .keep_ms = keep_ms, .result = kl_str("result")};
    kl_settle batch = {.place = rig_place(rig, number), .tasks = &settled, .count = 1};
    CHECK_OK(rig_set_positions(rig, batch.place, &settled, 1));
    CHECK_OK(kl_store_settle(rig->store, &batch, 1));
}

static kl_rc read_task(struct rig *rig, uint64_t number, kl_task *ret_task)
{
    kl_task_id id = rig_id(number);
    size_t count;
    *ret_task = (kl_task){.state = KL_TASK_UNKNOWN};
    return read_some(rig->store, rig_place(rig, number), &id, 1, &rig->arena, ret_task, &count);
}

static void check_result(const kl_task *task)
{
    CHECK_INT(task->state, KL_TASK_DONE);
    CHECK(task->result.len == 6 && memcmp(task->result.data, "result", 6) == 0);
}

/* ---- Damage ---- */

static void append_spoiled(struct rig *rig)
{
    kl_entry entry = {.place = rig_place(rig, 1), .id = rig_id(1), .payload = kl_str("a payload to be spoiled")};
    CHECK_OK(kl_store_append(rig->store, &entry, 1, NULL));
    CHECK(rig_reopen(rig)); /* what was appended is not in memory any more */
    spoil_text(rig, "a payload to be spoiled");
}

static bool is_there(const struct rig *rig, const char *name)
{
    char path[WORKDIR_BYTES + 64];
    struct stat status;
    snprintf(path, sizeof path, "%s/%s", rig->data, name);
    return stat(path, &status) == 0;
}

static bool has_no_first(void *ctx) { return !is_there(ctx, "journal/0000000000000001.seg"); }

/* Nothing in the first segment is needed any more. */
static void check_kept_aside(struct rig *rig)
{
    rig_append(rig, 2, FILLERS, 200);
    rig_settle(rig, 2, FILLERS);
    CHECK(rig_await(has_no_first, rig, "the first segment leaves the journal"));
    CHECK(is_there(rig, "quarantine/0000000000000001.seg-1"));
}

TEST(what_came_of_a_task_whose_bytes_are_damaged_is_kept)
{
    struct rig rig;
    kl_task task;
    REQUIRE(rig_begin(&rig, RIG_SEGMENT));
    append_spoiled(&rig);
    settle(&rig, 1, 1000000);
    CHECK_OK(read_task(&rig, 1, &task));
    check_result(&task);
    CHECK(task.entry.payload.len == 0 && task.error.len > 0);
    check_kept_aside(&rig);
    rig_end(&rig);
}

TEST(a_segment_of_a_task_that_could_not_be_read_is_kept_aside_when_the_task_is_cancelled)
{
    struct rig rig;
    kl_task task;
    REQUIRE(rig_begin(&rig, RIG_SEGMENT));
    append_spoiled(&rig);
    CHECK_INT(read_task(&rig, 1, &task), KL_EDAMAGED);
    settle(&rig, 1, 0);
    check_kept_aside(&rig);
    rig_end(&rig);
}

/* ---- A journal that cannot be read for a while ---- */

static atomic_bool is_unreadable;
static atomic_uint refused;

static ssize_t refuse_to_read(kl__vfs *vfs, kl__file *file, void *bytes, size_t count, uint64_t offset)
{
    if (!atomic_load(&is_unreadable))
        return kl__vfs_system.read(vfs, file, bytes, count, offset);
    atomic_fetch_add(&refused, 1);
    return -EIO;
}

/* Each task that is to be kept makes the store try again. */
static bool was_tried_often(void *ctx)
{
    static uint64_t number = 1;
    rig_append(ctx, ++number, 1, 10);
    settle(ctx, number, 1000000);
    return atomic_load(&refused) >= TRIED;
}

static bool is_told(void *ctx)
{
    kl_task task;
    return read_task(ctx, 1, &task) == KL_OK;
}

TEST(what_came_of_a_task_waits_as_long_as_the_journal_cannot_be_read)
{
    struct rig rig;
    kl_task task;
    kl__vfs vfs = kl__vfs_system;
    vfs.read = refuse_to_read;
    REQUIRE(rig_begin(&rig, RIG_SEGMENT));
    rig_close(&rig);
    CHECK_OK(kl__disk_open_on(&vfs, rig.data, &rig.opts, &rig.store));
    CHECK_OK(kl_store_partition(rig.store, "rig", 1, &rig.partition));
    rig_append(&rig, 1, 1, 10);
    atomic_store(&is_unreadable, true);
    settle(&rig, 1, 1000000);
    CHECK(rig_await(was_tried_often, &rig, "the journal is read again and again"));
    CHECK_INT(read_task(&rig, 1, &task), KL_EBUSY);
    CHECK_CONTAINS(kl_error_text(), "could not be read");
    atomic_store(&is_unreadable, false);
    CHECK(rig_await(is_told, &rig, "the disk can be read, and the outcome is kept"));
    CHECK_OK(read_task(&rig, 1, &task));
    check_result(&task);
    CHECK_INT(task.entry.payload.len, 10);
    rig_end(&rig);
}

/* ---- Much that has expired ---- */

static _Atomic(int64_t) clock_ms;

static int64_t read_clock(void *ctx)
{
    (void)ctx;
    return atomic_load(&clock_ms);
}

static void keep_shard(struct rig *rig, kl_settled *settled, uint64_t shard, uint64_t end, int64_t keep_ms)
{
    kl_settle batch = {.place = rig_place(rig, shard), .tasks = settled};
    for (uint64_t number = shard; number < end; number += RIG_SHARDS)
        settled[batch.count++] = (kl_settled){.id = rig_id(number), .attempts = 1, .keep_ms = keep_ms};
    CHECK_OK(rig_set_positions(rig, batch.place, settled, batch.count));
    CHECK_OK(kl_store_settle(rig->store, &batch, 1));
}

static void check_counts(struct rig *rig, bool behind, uint64_t done)
{
    kl_counts counts;
    CHECK_OK(kl_store_counts(rig->store, (kl_place){rig->partition, KL_ALL_SHARDS}, NULL, &counts));
    CHECK_INT(counts.finished_behind, behind);
    CHECK_INT(counts.done, done);
}

TEST(counts_do_not_wait_until_all_that_has_expired_is_forgotten)
{
    enum { TASKS = 12000, AT_ONCE = 10000, KEEP_MS = 1000 };
    struct rig rig;
    kl_task task;
    size_t count;
    kl_settled *settled = calloc(TASKS, sizeof *settled);
    REQUIRE(rig_begin(&rig, 16 * RIG_SEGMENT) && settled);
    rig_close(&rig);
    atomic_store(&clock_ms, 1000000);
    rig.opts.now_ms = read_clock;
    CHECK(workdir_remove(rig.data)); /* a store that has only ever known this clock */
    CHECK_OK(rig_open(&rig));
    REQUIRE(rig.store);
    rig_append(&rig, 0, TASKS, 10);
    for (uint64_t shard = 0; shard < RIG_SHARDS; shard++)
        keep_shard(&rig, settled, shard, TASKS, KEEP_MS);
    check_counts(&rig, false, TASKS);
    kl__keeper_stop(rig.store->self); /* it would forget them, too */
    atomic_fetch_add(&clock_ms, KEEP_MS);
    for (int i = 0; i < 2; i++)
        check_counts(&rig, true, TASKS - AT_ONCE);
    kl_find find = {.partition = rig.partition, .max = 1};
    CHECK_OK(kl_store_find(rig.store, &find, &rig.arena, &task, &count));
    CHECK_INT(count, 0);
    check_counts(&rig, false, 0);
    free(settled);
    rig_end(&rig);
}
