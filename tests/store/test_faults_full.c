/* test_faults_full.c - a disk that is full, and one fault at a place where its effect is known: the store says what
 * there is to say, goes on where it can, and gives back what it need not keep.
 *
 * test_faults.c looks for what nobody thought of; what it or others have found is here. */
#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/base.h"
#include "base/clock.h"
#include "faultvfs.h"
#include "harness.h"
#include "recording.h"
#include "store/calls.h"
#include "store/disk/disk.h"
#include "store/dispatch.h"

enum { PATIENCE_MS = 60000 };

/* ---- A full disk ---- */

enum { FULL_TASKS = 4000, FULL_PAYLOAD = 400 };

struct full_disk {
    simdisk *disk;
    struct sim_store store;
    kl_store *handle;
    kl_place place;
    kl_task_id ids[FULL_TASKS];
    uint64_t positions[FULL_TASKS];
    uint32_t count, settled;
    uint32_t straggler; /* every so manieth task is due at the end of time; 0: none */
    kl_log_fn *log;
    void *log_ctx;
};

static kl_rc append_one(struct full_disk *full)
{
    static const kl_layout layout = {1, 1};
    static const char payload[FULL_PAYLOAD];
    kl_id_parts parts = {.shard = full->place.shard, .sequence = full->count, .ms = SCRIPT_START_MS};
    kl_entry entry = {.place = full->place, .payload = {payload, sizeof payload}};
    if (full->straggler && full->count % full->straggler == 0)
        entry.due_ms = KL_ID_MS_MAX;
    KL_ASSERT(full->count < FULL_TASKS);
    kl_rc rc = kl_id_pack(&layout, &parts, &entry.id);
    if (rc == KL_OK)
        rc = kl_store_append(full->handle, &entry, 1, NULL);
    if (rc == KL_OK)
        full->ids[full->count++] = entry.id;
    return rc;
}

static kl_rc settle_one(struct full_disk *full, int64_t keep_ms)
{
    kl_stub stub;
    size_t count = 0;
    kl_scan scan = {.place = full->place, .max = 1};
    kl_rc rc = scan_one(full->handle, &scan, &stub, &count);
    if (rc != KL_OK || count == 0)
        return rc == KL_OK ? KL_ENOTFOUND : rc;
    kl_settled settled = {.id = stub.id, .position = stub.position, .attempts = 1, .keep_ms = keep_ms};
    kl_settle batch = {.place = full->place, .tasks = &settled, .count = 1};
    rc = kl_store_settle(full->handle, &batch, 1);
    full->settled += rc == KL_OK;
    return rc;
}

static uint64_t waiting(struct full_disk *full)
{
    kl_counts counts = {0};
    kl_rc rc = kl_store_counts(full->handle, full->place, NULL, &counts);
    CHECK_INT(rc, KL_OK);
    return counts.ready;
}

static bool open_full(struct full_disk *full)
{
    kl_store_opts opts = {.size = sizeof opts, .segment_bytes = 64 << 10, .log = full->log, .log_ctx = full->log_ctx};
    uint32_t partition = 0;
    kl_rc rc = kl__disk_open_on(full->store.vfs, RECORDING_PATH, &opts, &full->handle);
    if (rc == KL_OK)
        rc = kl_store_partition(full->handle, "orders", 1, &partition);
    if (rc != KL_OK)
        test_fail(__FILE__, __LINE__, "%s: %s", kl_rc_name(rc), kl_error_text());
    full->place = (kl_place){partition, 0};
    return rc == KL_OK;
}

static bool fill(struct full_disk *full)
{
    simdisk_capacity(full->disk, simdisk_used(full->disk) + (400 << 10));
    kl_rc rc;
    do
        rc = append_one(full);
    while (rc == KL_OK);
    CHECK_STR(kl_rc_name(rc), "KL_EFULL");
    CHECK(full->count > 100);
    return rc == KL_EFULL;
}

/* Space is given back by the store's own thread: until it has been, appends are refused, and then they are not. */
static void await_room(struct full_disk *full)
{
    int64_t until = kl__deadline_ns(PATIENCE_MS);
    kl_rc rc = append_one(full);
    while (rc == KL_EFULL && kl__monotonic_ns() < until) {
        sched_yield();
        rc = append_one(full);
    }
    CHECK_STR(kl_rc_name(rc), "KL_OK");
}

static struct full_disk *begin_on(simdisk *disk)
{
    struct full_disk *full = calloc(1, sizeof *full);
    KL_ASSERT(full);
    full->disk = disk;
    full->store = sim_store_on(simdisk_vfs(disk));
    return full;
}

static struct full_disk *begin_full(void) { return begin_on(simdisk_new()); }

static void end_full(struct full_disk *full)
{
    kl_store_close(full->handle);
    sim_store_end(&full->store);
    simdisk_free(full->disk);
    free(full);
}

/* Power is lost, and nothing that was not synced is found. */
static struct full_disk *lose_unsynced(struct full_disk *full)
{
    simdisk *found = simdisk_image(full->disk, SIM_NOTHING, 1);
    end_full(full);
    return begin_on(found);
}

TEST(a_full_disk_refuses_tasks_and_accepts_what_came_of_them_until_there_is_room_again)
{
    struct full_disk *full = begin_full();
    if (open_full(full) && fill(full)) {
        uint32_t there = full->count;
        CHECK_INT(append_one(full), KL_EFULL);
        CHECK_INT(waiting(full), there);
        kl_rc rc = KL_OK;
        while (rc == KL_OK && full->settled < there)
            rc = settle_one(full, 0);
        CHECK_STR(kl_rc_name(rc), "KL_OK");
        CHECK_INT(waiting(full), 0);
        await_room(full);
        CHECK_INT(waiting(full), 1);
    }
    end_full(full);
}

/* A few tasks that stay must not keep the segments in which all others are settled. */
TEST(a_full_disk_is_worked_off_around_tasks_that_are_due_much_later)
{
    struct full_disk *full = begin_full();
    full->straggler = 50;
    if (open_full(full) && fill(full)) {
        uint64_t there = waiting(full);
        kl_rc rc = KL_OK;
        while (rc == KL_OK && full->settled < there)
            rc = settle_one(full, 0);
        CHECK_STR(kl_rc_name(rc), "KL_OK");
        CHECK_INT(waiting(full), 0);
        await_room(full);
    }
    end_full(full);
}

TEST(a_full_disk_accepts_tasks_again_when_it_grows_and_has_lost_none)
{
    struct full_disk *full = begin_full();
    if (open_full(full) && fill(full)) {
        for (int i = 0; i < 50; i++)
            CHECK_STR(kl_rc_name(settle_one(full, 1000000)), "KL_OK");
        simdisk_capacity(full->disk, simdisk_used(full->disk) + (4 << 20));
        await_room(full);
        uint32_t there = full->count - full->settled;
        CHECK_INT(waiting(full), there);
        full = lose_unsynced(full);
        if (open_full(full)) {
            kl_counts counts = {0};
            CHECK_INT(waiting(full), there);
            CHECK_INT(kl_store_counts(full->handle, (kl_place){full->place.partition, KL_ALL_SHARDS}, NULL, &counts),
                      KL_OK);
            CHECK_INT(counts.done, 50);
        }
    }
    end_full(full);
}

/* Finished tasks that are shown; false: not all yet. */
static bool count_done(struct full_disk *full, uint64_t *ret_done)
{
    kl_counts counts = {0};
    kl_rc rc = kl_store_counts(full->handle, (kl_place){full->place.partition, KL_ALL_SHARDS}, NULL, &counts);
    CHECK_STR(kl_rc_name(rc), "KL_OK");
    CHECK_INT(counts.ready, full->count - full->settled);
    *ret_done = counts.done;
    return !counts.finished_behind;
}

static kl_rc find_done(struct full_disk *full)
{
    kl_task found[4];
    size_t count;
    kl_arena arena = {0};
    kl_find find = {.partition = full->place.partition, .max = 4};
    kl_rc rc = kl_store_find(full->handle, &find, &arena, found, &count);
    kl_arena_free(&arena);
    return rc;
}

TEST(history_that_cannot_be_written_catches_up_by_itself_when_it_can)
{
    struct full_disk *full = begin_full();
    sim_store_end(&full->store);
    faultvfs *faults = faultvfs_new(simdisk_vfs(full->disk));
    full->store = sim_store_on(faultvfs_vfs(faults));
    uint64_t done = 0;
    if (open_full(full)) {
        for (int i = 0; i < 20; i++)
            CHECK_STR(kl_rc_name(append_one(full)), "KL_OK");
        CHECK_STR(kl_rc_name(settle_one(full, 1000000)), "KL_OK");
        CHECK(count_done(full, &done));
        CHECK_INT(done, 1);
        faultvfs_set(faults,
                     &(vfs_fault){.kinds = FAULT_WRITE, .at = 1, .lasting = true, .error = ENOSPC, .only = "history"});
        for (int i = 1; i < 20; i++)
            CHECK_STR(kl_rc_name(settle_one(full, 1000000)), "KL_OK");
        CHECK(!count_done(full, &done)); /* what waits is known all the same */
        CHECK_INT(done, 1);
        CHECK_STR(kl_rc_name(find_done(full)), "KL_EFULL");
        faultvfs_set(faults, NULL);
        int64_t until = kl__deadline_ns(PATIENCE_MS);
        while (!count_done(full, &done) && kl__monotonic_ns() < until)
            sched_yield();
        CHECK_INT(done, 20);
    }
    kl_store_close(full->handle);
    full->handle = NULL;
    end_full(full);
    faultvfs_free(faults);
}

struct asking {
    kl_store *store;
    kl_place place;
    _Atomic(int) answers;
};

static void ask_store(void *ctx, kl_log_level level, const char *text)
{
    struct asking *asking = ctx;
    kl_stub stub;
    kl_scan scan = {.place = asking->place, .max = 1, .stubs = &stub};
    if (level == KL_LOG_ERROR && strstr(text, "history.db is behind"))
        asking->answers += kl_store_scan(asking->store, &scan, 1) == KL_OK;
}

/* Where it is told of with a mutex held, this hangs. */
TEST(the_log_is_told_that_history_is_behind_while_the_store_answers)
{
    struct full_disk *full = begin_full();
    struct asking asking = {0};
    sim_store_end(&full->store);
    faultvfs *faults = faultvfs_new(simdisk_vfs(full->disk));
    full->store = sim_store_on(faultvfs_vfs(faults));
    full->log = ask_store;
    full->log_ctx = &asking;
    uint64_t done = 0;
    if (open_full(full)) {
        asking.store = full->handle;
        asking.place = full->place;
        CHECK_INT(append_one(full), KL_OK);
        faultvfs_set(faults,
                     &(vfs_fault){.kinds = FAULT_WRITE, .at = 1, .lasting = true, .error = ENOSPC, .only = "history"});
        CHECK_INT(settle_one(full, 1000000), KL_OK);
        CHECK(!count_done(full, &done));
    }
    kl_store_close(full->handle);
    full->handle = NULL;
    CHECK_INT(atomic_load(&asking.answers), 1);
    end_full(full);
    faultvfs_free(faults);
}

/* The disk is full, and the next write of the journal finds no room, once: as when an outcome stands in a group with a
 * task that is too large for what is left. */
static void find_no_room(faultvfs *faults)
{
    faultvfs_set(faults, &(vfs_fault){.kinds = FAULT_WRITE, .at = 1, .error = ENOSPC, .only = ".seg"});
}

TEST(what_a_full_disk_accepts_is_not_refused_with_the_tasks_beside_it)
{
    struct full_disk *full = begin_full();
    sim_store_end(&full->store);
    faultvfs *faults = faultvfs_new(simdisk_vfs(full->disk));
    full->store = sim_store_on(faultvfs_vfs(faults));
    if (open_full(full) && fill(full)) {
        kl_fence fence = {.place = full->place, .epoch = 1};
        kl_write write = {.name = {"name", 4}, .value = {"value", 5}};
        find_no_room(faults);
        CHECK_STR(kl_rc_name(settle_one(full, 0)), "KL_OK");
        CHECK_INT(faultvfs_hits(faults, NULL, 0), 1);
        find_no_room(faults);
        CHECK_STR(kl_rc_name(kl_store_put(full->handle, &write, 1)), "KL_OK");
        CHECK_INT(faultvfs_hits(faults, NULL, 0), 1);
        find_no_room(faults);
        CHECK_STR(kl_rc_name(kl_store_fence(full->handle, &fence, 1)), "KL_OK");
        CHECK_INT(faultvfs_hits(faults, NULL, 0), 1);
    }
    kl_store_close(full->handle);
    full->handle = NULL;
    end_full(full);
    faultvfs_free(faults);
}

static kl_rc append_large(struct full_disk *full)
{
    static const char payload[100 << 10]; /* more than a segment */
    kl_entry entry = {.place = full->place, .id = {{0, 1}}, .payload = {payload, sizeof payload}};
    return kl_store_append(full->handle, &entry, 1, NULL);
}

TEST(a_batch_for_which_no_segment_can_be_enlarged_is_refused_until_there_is_room)
{
    struct full_disk *full = begin_full();
    sim_store_end(&full->store);
    faultvfs *faults = faultvfs_new(simdisk_vfs(full->disk));
    full->store = sim_store_on(faultvfs_vfs(faults));
    if (open_full(full)) {
        CHECK_STR(kl_rc_name(append_one(full)), "KL_OK");
        faultvfs_set(faults, &(vfs_fault){.kinds = FAULT_TRUNCATE, .at = 1, .error = ENOSPC});
        CHECK_STR(kl_rc_name(append_large(full)), "KL_EFULL");
        CHECK_INT(faultvfs_hits(faults, NULL, 0), 1);
        CHECK_STR(kl_rc_name(append_one(full)), "KL_OK");
        CHECK_STR(kl_rc_name(settle_one(full, 0)), "KL_OK");
        CHECK_STR(kl_rc_name(append_large(full)), "KL_OK");
        CHECK_INT(waiting(full), 2);
        kl_store_close(full->handle);
        full->handle = NULL;
        if (open_full(full))
            CHECK_INT(waiting(full), 2);
    }
    kl_store_close(full->handle);
    full->handle = NULL;
    end_full(full);
    faultvfs_free(faults);
}

TEST(a_full_disk_can_be_opened_and_worked_off)
{
    struct full_disk *full = begin_full();
    if (open_full(full) && fill(full)) {
        uint32_t there = full->count;
        kl_store_close(full->handle);
        full->handle = NULL;
        if (open_full(full)) {
            CHECK_INT(waiting(full), there);
            kl_rc rc = KL_OK;
            while (rc == KL_OK && full->settled < there)
                rc = settle_one(full, 0);
            CHECK_STR(kl_rc_name(rc), "KL_OK");
            await_room(full);
        }
    }
    end_full(full);
}

static bool has_next(struct full_disk *full)
{
    return atomic_load(&((kl__disk *)full->handle->self)->segments.has_next);
}

/* Of those that are there, without the next. */
static uint64_t first_segment(struct full_disk *full, size_t *ret_count)
{
    kl__state *state = &((kl__disk *)full->handle->self)->state;
    pthread_mutex_lock(&state->mutex);
    uint64_t first = state->first_segment;
    *ret_count = state->segment_count;
    pthread_mutex_unlock(&state->mutex);
    return first;
}

static void await_next(struct full_disk *full)
{
    int64_t until = kl__deadline_ns(PATIENCE_MS);
    while (!has_next(full) && kl__monotonic_ns() < until)
        sched_yield();
    CHECK(has_next(full));
}

/* There is room for the next segment, and none for a spare, which upkeep would like to have while the journal is brisk.
 * To try means to take what room there is from everybody else for a moment. */
TEST(a_spare_for_which_there_is_no_room_is_tried_once_for_each_segment)
{
    struct full_disk *full = begin_full();
    sim_store_end(&full->store);
    faultvfs *faults = faultvfs_new(simdisk_vfs(full->disk));
    full->store = sim_store_on(faultvfs_vfs(faults));
    full->straggler = FULL_TASKS; /* the first, which upkeep is going to copy */
    if (open_full(full)) {
        size_t count = 0;
        for (int i = 0; i < 10; i++)
            CHECK_STR(kl_rc_name(append_one(full)), "KL_OK");
        await_next(full);
        faultvfs_set(faults, &(vfs_fault){.kinds = FAULT_CREATE,
                                          .at = 2, /* the first is to be the segment behind the next */
                                          .lasting = true,
                                          .error = ENOSPC,
                                          .only = "/journal/spare"});
        while (first_segment(full, &count) == 1 && count == 1)
            CHECK_STR(kl_rc_name(append_one(full)), "KL_OK");
        while (full->settled + 1 < full->count && !test_failed())
            CHECK_STR(kl_rc_name(settle_one(full, 0)), "KL_OK");
        await_next(full);
        int64_t until = kl__deadline_ns(PATIENCE_MS);
        while (first_segment(full, &count) == 1 && kl__monotonic_ns() < until)
            sched_yield(); /* until the journal is not brisk any more, and the straggler was copied */
        CHECK(first_segment(full, &count) > 1);
        CHECK(faultvfs_hits(faults, NULL, 0) <= 1);
    }
    kl_store_close(full->handle);
    full->handle = NULL;
    end_full(full);
    faultvfs_free(faults);
}

/* ---- What is tried again in a while ---- */

/* Not more than once a second. Counted before the clock is read: another one may come in between. */
static bool is_now_and_then(_Atomic(int) *failed, int64_t began_ns)
{
    int count = atomic_load(failed);
    return count <= (kl__monotonic_ns() - began_ns) / 1000000000 + 1;
}

static void count_copies(void *ctx, kl_log_level level, const char *text)
{
    if (level == KL_LOG_WARN && strstr(text, "could not be copied"))
        atomic_fetch_add((_Atomic(int) *)ctx, 1);
}

/* A disk may take long to fail, and whoever reads its log wants to read other things, too. */
TEST(copying_of_a_segment_that_cannot_be_read_is_tried_again_in_a_while)
{
    struct full_disk *full = begin_full();
    _Atomic(int) failed = 0;
    sim_store_end(&full->store);
    faultvfs *faults = faultvfs_new(simdisk_vfs(full->disk));
    full->store = sim_store_on(faultvfs_vfs(faults));
    full->straggler = FULL_TASKS; /* the first, which upkeep is going to copy */
    full->log = count_copies;
    full->log_ctx = &failed;
    if (open_full(full)) {
        int64_t began_ns = kl__monotonic_ns();
        kl_rc rc = append_one(full);
        faultvfs_set(faults, &(vfs_fault){.kinds = FAULT_READ, .at = 1, .lasting = true, .error = EIO, .only = ".seg"});
        while (rc == KL_OK && full->count < FULL_TASKS / 2)
            rc = append_one(full) == KL_OK ? settle_one(full, 0) : KL_ESYSTEM;
        CHECK_STR(kl_rc_name(rc), "KL_OK");
        CHECK(is_now_and_then(&failed, began_ns));
    }
    kl_store_close(full->handle);
    full->handle = NULL;
    end_full(full);
    faultvfs_free(faults);
}

static void count_removals(void *ctx, kl_log_level level, const char *text)
{
    if (level == KL_LOG_ERROR && strstr(text, "could not be removed"))
        atomic_fetch_add((_Atomic(int) *)ctx, 1);
}

TEST(a_segment_that_cannot_be_removed_is_tried_again_in_a_while)
{
    struct full_disk *full = begin_full();
    _Atomic(int) failed = 0;
    sim_store_end(&full->store);
    faultvfs *faults = faultvfs_new(simdisk_vfs(full->disk));
    full->store = sim_store_on(faultvfs_vfs(faults));
    full->log = count_removals;
    full->log_ctx = &failed;
    if (open_full(full)) {
        int64_t began_ns = kl__monotonic_ns();
        kl_rc rc = KL_OK;
        faultvfs_set(faults,
                     &(vfs_fault){.kinds = FAULT_UNLINK, .at = 1, .lasting = true, .error = EIO, .only = ".seg"});
        while (rc == KL_OK && full->count < FULL_TASKS / 4)
            rc = append_one(full);
        while (rc == KL_OK && full->settled < full->count)
            rc = settle_one(full, 0);
        while (rc == KL_OK && full->count < FULL_TASKS / 2)
            rc = append_one(full) == KL_OK ? settle_one(full, 0) : KL_ESYSTEM;
        CHECK_STR(kl_rc_name(rc), "KL_OK");
        CHECK(is_now_and_then(&failed, began_ns));
    }
    kl_store_close(full->handle);
    full->handle = NULL;
    end_full(full);
    faultvfs_free(faults);
}

static void count_next(void *ctx, kl_log_level level, const char *text)
{
    if (level == KL_LOG_ERROR && strstr(text, "could not be prepared"))
        atomic_fetch_add((_Atomic(int) *)ctx, 1);
}

TEST(a_next_segment_that_cannot_be_made_is_tried_again_in_a_while)
{
    struct full_disk *full = begin_full();
    _Atomic(int) failed = 0;
    sim_store_end(&full->store);
    faultvfs *faults = faultvfs_new(simdisk_vfs(full->disk));
    full->store = sim_store_on(faultvfs_vfs(faults));
    full->straggler = FULL_TASKS; /* the first, which upkeep is going to copy, and waits for */
    full->log = count_next;
    full->log_ctx = &failed;
    if (open_full(full)) {
        size_t count = 0;
        for (int i = 0; i < 10; i++)
            CHECK_STR(kl_rc_name(append_one(full)), "KL_OK");
        await_next(full);
        int64_t began_ns = kl__monotonic_ns();
        faultvfs_set(
            faults,
            &(vfs_fault){.kinds = FAULT_CREATE, .at = 1, .lasting = true, .error = EIO, .only = "/journal/spare"});
        while (first_segment(full, &count) == 1 && count == 1)
            CHECK_STR(kl_rc_name(append_one(full)), "KL_OK");
        while (full->settled + 1 < full->count && !test_failed())
            CHECK_STR(kl_rc_name(settle_one(full, 0)), "KL_OK");
        int64_t until = kl__deadline_ns(PATIENCE_MS);
        while (first_segment(full, &count) == 1 && kl__monotonic_ns() < until)
            sched_yield(); /* until the journal is not brisk any more, and the straggler was copied */
        CHECK(is_now_and_then(&failed, began_ns));
    }
    kl_store_close(full->handle);
    full->handle = NULL;
    end_full(full);
    faultvfs_free(faults);
}

/* ---- What is said of a failure ---- */

struct following {
    struct full_disk *full;
    kl_entry entry;
    kl_token token;
    int told;
};

/* Whoever is told of it makes calls of his own, which fail for reasons of their own. */
static void be_told(void *ctx, kl_rc rc, const char *error)
{
    struct following *following = ctx;
    CHECK_STR(kl_rc_name(rc), "KL_ESYSTEM");
    CHECK_CONTAINS(error, "syncing the journal failed");
    CHECK_INT(kl_store_now(following->full->handle, NULL), KL_EINVAL);
    following->told++;
}

static void follow_twice(void *ctx, kl__file *under)
{
    (void)under;
    struct following *following = ctx;
    for (int i = 0; i < 2; i++)
        CHECK_INT(kl_store_append_async(following->full->handle, &following->entry, 1, &following->token, be_told, ctx),
                  KL_OK);
}

TEST(repeats_of_an_append_that_fails_and_its_caller_are_told_the_same)
{
    struct full_disk *full = begin_full();
    sim_store_end(&full->store);
    faultvfs *faults = faultvfs_new(simdisk_vfs(full->disk));
    full->store = sim_store_on(faultvfs_vfs(faults));
    if (open_full(full)) {
        struct following following = {.full = full, .entry = {.place = full->place, .id = {{0, 1}}}, .token = {{1}}};
        faultvfs_set(faults, &(vfs_fault){.kinds = FAULT_SYNC,
                                          .at = 1,
                                          .error = EIO,
                                          .only = "/journal/",
                                          .sync_failed = follow_twice,
                                          .ctx = &following});
        CHECK_INT(kl_store_append(full->handle, &following.entry, 1, &following.token), KL_ESYSTEM);
        CHECK_CONTAINS(kl_error_text(), "syncing the journal failed");
        CHECK_INT(following.told, 2);
    }
    kl_store_close(full->handle);
    full->handle = NULL;
    end_full(full);
    faultvfs_free(faults);
}

/* ---- Going to the next segment ---- */

/* One task, settled, so that the first segment is there for nothing but its partition; then a task that is larger than
 * what is left of it, while sync `at` of the journal fails. Upkeep comes at once. False: no sync failed. */
static bool fail_the_roll(struct full_disk *full, uint64_t at)
{
    static const kl_layout layout = {1, 1};
    static const char payload[100 << 10];
    kl_id_parts parts = {.sequence = 1, .ms = SCRIPT_START_MS};
    kl_entry entry = {.payload = {payload, sizeof payload}};
    faultvfs *faults = faultvfs_new(simdisk_vfs(full->disk));
    sim_store_end(&full->store);
    full->store = sim_store_on(faultvfs_vfs(faults));
    bool failed = false;
    if (open_full(full)) {
        CHECK_INT(append_one(full), KL_OK);
        CHECK_INT(settle_one(full, 0), KL_OK);
        CHECK_INT(kl_id_pack(&layout, &parts, &entry.id), KL_OK);
        entry.place = full->place;
        faultvfs_set(faults, &(vfs_fault){.kinds = FAULT_SYNC, .at = at, .error = EIO, .only = "/journal/"});
        failed = kl_store_append(full->handle, &entry, 1, NULL) != KL_OK;
        kl__segments_drop(&((kl__disk *)full->handle->self)->segments);
    }
    simdisk *found = simdisk_image(full->disk, SIM_NOTHING, 1);
    kl_store_close(full->handle);
    full->handle = NULL;
    sim_store_end(&full->store);
    faultvfs_free(faults);
    simdisk_free(full->disk);
    full->disk = found;
    full->store = sim_store_on(simdisk_vfs(found));
    return failed;
}

TEST(a_segment_goes_only_when_the_next_durably_names_the_partitions)
{
    bool failed = true;
    uint64_t at = 1;
    for (; failed && !test_failed(); at++) {
        struct full_disk *full = begin_full();
        failed = fail_the_roll(full, at);
        kl_rc rc = kl__disk_open_on(full->store.vfs, RECORDING_PATH, NULL, &full->handle);
        CHECK_INT(rc, KL_OK);
        uint32_t partition;
        if (rc == KL_OK)
            CHECK_INT(kl_store_partition(full->handle, "orders", 2, &partition), KL_EINVAL);
        end_full(full);
    }
    CHECK(at > 4); /* the next segment's header, its first frame, the task: each has failed once */
}

/* ---- Removing a segment ---- */

/* Tasks come and go until the fault has come, and through some segments behind it; at least one segment is filled. */
static void churn(struct full_disk *full, faultvfs *faults)
{
    enum { BEHIND = 800, MOST = FULL_TASKS - BEHIND };
    kl_rc rc = KL_OK;
    while (rc == KL_OK && full->count < MOST && !faultvfs_hits(faults, NULL, 0))
        rc = append_one(full) == KL_OK ? settle_one(full, 0) : KL_ESYSTEM;
    CHECK(faultvfs_hits(faults, NULL, 0) == 1);
    for (int i = 0; i < BEHIND && rc == KL_OK; i++)
        rc = append_one(full) == KL_OK ? settle_one(full, 0) : KL_ESYSTEM;
    if (rc != KL_OK)
        test_fail(__FILE__, __LINE__, "task %u: %s", full->count, kl_error_text());
    CHECK_INT(append_one(full), KL_OK);
}

/* Fault `at` of these kinds comes once; then power is lost. */
static void fail_a_removal(unsigned kinds, uint64_t at)
{
    struct full_disk *full = begin_full();
    faultvfs *faults = faultvfs_new(simdisk_vfs(full->disk));
    sim_store_end(&full->store);
    full->store = sim_store_on(faultvfs_vfs(faults));
    if (open_full(full)) {
        faultvfs_set(faults, &(vfs_fault){.kinds = kinds, .at = at, .error = EIO, .only = "/journal"});
        churn(full, faults);
    }
    simdisk *found = simdisk_image(full->disk, SIM_NOTHING, 1);
    end_full(full);
    faultvfs_free(faults);
    full = begin_on(found);
    if (open_full(full))
        CHECK_INT(waiting(full), 1);
    end_full(full);
}

TEST(one_error_while_a_segment_is_removed_does_not_end_the_store)
{
    for (uint64_t at = 1; at <= 6 && !test_failed(); at++) {
        fail_a_removal(FAULT_RENAME | FAULT_UNLINK, at);
        fail_a_removal(FAULT_SYNC_DIR, at);
    }
}
