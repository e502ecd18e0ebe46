/* test_disk_memory.c - what a waiting task takes in memory, and what happens when there is none: of a run of all calls,
 * each allocation in turn is refused. Nothing may crash, nothing may be acknowledged that is not there afterwards. */
#include <malloc.h>
#include <stdlib.h>

#include "disk_rig.h"

/* ---- Per waiting task ---- */

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

#if !defined(SANITIZED) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
static uint64_t taken(void)
{
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

TEST(a_waiting_task_takes_no_more_than_80_bytes_of_memory)
{
    enum { TASKS = 500000, BYTES_MAX = 80 };
    struct rig rig;
    uint64_t before = taken();
    REQUIRE(rig_begin(&rig, 64 << 20));
    rig_append(&rig, 0, TASKS, 200);
    for (int life = 0; life < 2 && rig.store; life++) {
        uint64_t each = (taken() - before) / TASKS;
        CHECK_INT(rig_waiting(&rig), TASKS);
        CHECK(each > 0);
        if (each > BYTES_MAX)
            test_fail(__FILE__, __LINE__, "a waiting task takes %llu bytes in life %d", (unsigned long long)each, life);
        rig_reopen(&rig);
    }
    rig_end(&rig);
}
#endif

/* ---- Without memory ---- */

enum { FIRST = 0, TOKENED = 16, LATER = 32, LARGE = 48, SETTLED = 5, LARGE_BYTES = 40 << 10 };

/* What was attempted, and what was acknowledged. */
struct witness {
    bool partition, first, tokened, later, large, done, retry, dead, fence, value;
    bool later_asked;
    uint64_t version;
};

static void be_told(void *ctx, kl_rc rc, const char *error)
{
    (void)error;
    ((struct witness *)ctx)->later = rc == KL_OK;
}

static kl_token token(void) { return (kl_token){{1, 2, 3}}; }

static void append_all(struct rig *rig, struct witness *seen)
{
    kl_entry entries[3];
    kl_token named = token();
    for (uint64_t i = 0; i < 3; i++)
        entries[i] = rig_entry(rig, FIRST + i, 100);
    entries[2].due_ms = 5;
    seen->first = kl_store_append(rig->store, entries, 3, NULL) == KL_OK;
    for (uint64_t i = 0; i < 3; i++)
        entries[i] = rig_entry(rig, TOKENED + i, 100);
    seen->tokened = kl_store_append(rig->store, entries, 3, &named) == KL_OK;
    entries[0] = rig_entry(rig, LATER, 100);
    named.bytes[0]++;
    seen->later_asked = kl_store_append_async(rig->store, entries, 1, &named, be_told, seen) == KL_OK;
    for (uint64_t i = 0; i < 3; i++) /* over into new segments */
        entries[i] = rig_entry(rig, LARGE + i, LARGE_BYTES);
    seen->large = kl_store_append(rig->store, entries, 3, NULL) == KL_OK;
}

static bool settle(struct rig *rig, uint64_t number, kl_outcome outcome)
{
    kl_settled settled = {
        .id = rig_id(number), .outcome = outcome, .attempts = 1, .keep_ms = 1000000000, .error = {"memory", 6}};
    kl_settle batch = {.place = rig_place(rig, number), .epoch = 1, .tasks = &settled, .count = 1};
    return rig_set_positions(rig, batch.place, &settled, 1) == KL_OK && kl_store_settle(rig->store, &batch, 1) == KL_OK;
}

static void look_all(struct rig *rig)
{
    kl_stub stubs[8];
    kl_task tasks[8];
    kl_counts counts;
    kl_record records[4];
    kl_bytes name = {"record", 6}, none = {0};
    kl_scan scan = {.place = rig_place(rig, FIRST), .line = 0, .max = 8};
    kl_find find = {.partition = rig->partition, .max = 8};
    kl_task_id id = rig_id(FIRST), job = {{1}};
    size_t count;
    uint64_t seen = 0;
    (void)!scan_one(rig->store, &scan, stubs, &count);
    (void)!read_some(rig->store, rig_place(rig, FIRST), &id, 1, &rig->arena, tasks, &count);
    (void)!kl_store_counts(rig->store, (kl_place){rig->partition, KL_ALL_SHARDS}, NULL, &counts);
    (void)!kl_store_results(rig->store, rig_place(rig, FIRST), &job, NULL, 8, &rig->arena, tasks, &count);
    (void)!kl_store_find(rig->store, &find, &rig->arena, tasks, &count);
    (void)!kl_store_forget(rig->store, rig_place(rig, FIRST), &job, 1);
    (void)!kl_store_get(rig->store, &name, 1, &rig->arena, records);
    (void)!kl_store_list(rig->store, none, none, 4, &rig->arena, records, &count);
    (void)!kl_store_wait(rig->store, rig->partition, 0, &seen);
    (void)!kl_store_metrics(rig->store, &rig->arena, &none);
}

static void run_script(struct rig *rig, struct witness *seen)
{
    kl_write write = {.name = {"record", 6}, .value = {"value", 5}};
    kl_fence fence = {.place = rig_place(rig, FIRST), .epoch = 1};
    *seen = (struct witness){0};
    if (kl_store_open(rig->url, &rig->opts, &rig->store) != KL_OK) {
        rig->store = NULL;
        return;
    }
    seen->partition = kl_store_partition(rig->store, "rig", 1, &rig->partition) == KL_OK;
    if (seen->partition) {
        append_all(rig, seen);
        seen->fence = kl_store_fence(rig->store, &fence, 1) == KL_OK;
        seen->done = settle(rig, FIRST, KL_DONE);
        seen->retry = settle(rig, FIRST + 1, KL_RETRY);
        seen->dead = settle(rig, FIRST + 2, KL_DEAD);
        seen->value = kl_store_put(rig->store, &write, 1) == KL_OK;
        seen->version = write.new_version;
        look_all(rig);
    }
    rig_close(rig);
}

static kl_task state_of(struct rig *rig, uint64_t number)
{
    kl_task_id id = rig_id(number);
    kl_task task = {.state = KL_TASK_UNKNOWN};
    size_t count;
    CHECK_OK(read_some(rig->store, rig_place(rig, number), &id, 1, &rig->arena, &task, &count));
    return task;
}

/* All of an append is there, or, when it was not acknowledged, perhaps nothing. */
static void check_append(struct rig *rig, uint64_t first, uint64_t count, size_t bytes, bool acknowledged)
{
    bool is_there = rig_is_whole(rig, first, bytes);
    CHECK(is_there || !acknowledged);
    for (uint64_t i = 1; i < count; i++)
        CHECK_INT(rig_is_whole(rig, first + i, bytes), is_there);
}

static void check_settled(struct rig *rig, uint64_t number, kl_task_state state, bool acknowledged)
{
    kl_task task = state_of(rig, number);
    if (acknowledged)
        CHECK_INT(task.state, state);
    else
        CHECK(task.state == state || task.state == KL_TASK_WAITING || task.state == KL_TASK_UNKNOWN);
    if (task.state == state)
        CHECK(task.error.len == 6 && memcmp(task.error.data, "memory", 6) == 0);
}

static void check_script(struct rig *rig, const struct witness *seen)
{
    kl_bytes name = {"record", 6};
    kl_record record;
    kl_entry entries[3];
    kl_token named = token();
    CHECK_OK(kl_store_get(rig->store, &name, 1, &rig->arena, &record));
    CHECK(!seen->value || record.version == seen->version);
    if (seen->fence) {
        kl_settled nobody = {.id = rig_id(1 << 20), .position = 1, .attempts = 1};
        kl_settle late = {.place = rig_place(rig, FIRST), .tasks = &nobody, .count = 1};
        CHECK_INT(kl_store_settle(rig->store, &late, 1), KL_ESTALE);
    }
    for (uint64_t i = 0; i < 3; i++)
        entries[i] = rig_entry(rig, TOKENED + i, 100);
    uint64_t before = rig_waiting(rig);
    CHECK_OK(kl_store_append(rig->store, entries, 3, &named)); /* a repeat, when it was acknowledged */
    CHECK(!seen->tokened || rig_waiting(rig) == before);
    check_append(rig, TOKENED, 3, 100, true);
    check_append(rig, LATER, 1, 100, seen->later);
    check_append(rig, LARGE, 3, LARGE_BYTES, seen->large);
    check_settled(rig, FIRST, KL_TASK_DONE, seen->done && seen->first);
    check_settled(rig, FIRST + 2, KL_TASK_DEAD, seen->dead && seen->first);
    kl_task retried = state_of(rig, FIRST + 1);
    CHECK(!seen->first || retried.state == KL_TASK_WAITING);
    CHECK(!(seen->first && seen->retry) || retried.attempts == 1);
}

/* One run in a new directory, in which the n-th allocation fails. Returns how many there were. */
static uint64_t run_without(struct rig *rig, uint64_t n)
{
    struct witness seen;
    kl__alloc_fail_at(n);
    run_script(rig, &seen);
    uint64_t allocations = kl__alloc_fail_at(0);
    CHECK(!seen.later || seen.later_asked);
    CHECK_OK(rig_open(rig));
    if (rig->store) {
        check_script(rig, &seen);
        rig_close(rig);
    }
    if (test_failed())
        printf("# it was allocation %llu that failed\n", (unsigned long long)n);
    kl_arena_free(&rig->arena);
    CHECK(workdir_remove(rig->data));
    return allocations;
}

TEST(a_refused_allocation_loses_nothing_and_acknowledges_nothing_false)
{
    struct rig rig;
    uint64_t step = test_ops(10) < 10 ? 7 : 1;
    REQUIRE(rig_begin(&rig, 64 << 10));
    rig_close(&rig);
    CHECK(workdir_remove(rig.data));
    uint64_t allocations = run_without(&rig, UINT64_MAX); /* none fails */
    CHECK(allocations > 20);
    for (uint64_t n = 1; n <= allocations && !test_failed(); n += step)
        run_without(&rig, n);
    rig_end(&rig);
}
