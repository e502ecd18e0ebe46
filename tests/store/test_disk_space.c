/* test_disk_space.c - the disk holds at most twice what is live, and two segments (G2 of segments.h), whatever stays.
 *
 * What is live is reckoned here, from the format: upkeep runs behind the calls, so the bound is waited for. */
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/random.h"
#include "base/wait.h"
#include "disk_rig.h"
#include "store/disk/disk.h"
#include "store/disk/format.h"
#include "store/disk/segments.h"
#include "store/disk/state.h"
#include "store/dispatch.h"

enum { BYTES = 200, SEGMENT = RIG_SEGMENT, PER_SEGMENT = SEGMENT / 280 };

static uint64_t task_bytes(size_t payload, bool is_due)
{
    return kl__round8(sizeof(kl__entry_record) + (is_due ? 8 : 0) + 8 + 3 + payload);
}

struct bound {
    struct rig *rig;
    uint64_t live;
};

static bool is_within(void *ctx)
{
    const struct bound *bound = ctx;
    return workdir_files(bound->rig->journal, "").bytes <= 2 * bound->live + 2 * SEGMENT;
}

static void check_bound(struct rig *rig, uint64_t live, const char *what)
{
    struct bound bound = {rig, live};
    if (!rig_await(is_within, &bound, what))
        printf("# %llu bytes are live, %llu on disk\n", (unsigned long long)live,
               (unsigned long long)workdir_files(rig->journal, "").bytes);
}

/* Every stub has the group that its task was appended with. */
static void check_groups(struct rig *rig)
{
    for (uint32_t shard = 0; shard < RIG_SHARDS; shard++) {
        static kl_stub stubs[RIG_BATCH];
        kl_scan scan = {.place = {rig->partition, shard}, .max = RIG_BATCH};
        size_t count = 0;
        CHECK_OK(scan_one(rig->store, &scan, stubs, &count));
        for (size_t i = 0; i < count; i++)
            CHECK_INT(stubs[i].group, rig_entry(rig, rig_number(&stubs[i].id), 0).group);
    }
}

/* Within the bound, everything is still there, and so it is after a restart. */
static void check_stragglers(struct rig *rig, const uint64_t *numbers, size_t count)
{
    check_bound(rig, count * task_bytes(BYTES, false), "the stragglers are copied");
    for (int life = 0; life < 2 && rig->store; life++) {
        CHECK_INT(rig_waiting(rig), count);
        check_groups(rig);
        for (size_t i = 0; i < count; i += 1 + count / 100)
            CHECK(rig_is_whole(rig, numbers[i], BYTES));
        if (life == 0)
            rig_reopen(rig);
    }
}

/* Appends `count` tasks and settles those that do not stay. */
static size_t leave_behind(struct rig *rig, uint64_t count, bool (*stays)(uint64_t number, void *ctx), void *ctx,
                           uint64_t *ret_stayed)
{
    uint64_t *settled = calloc(count, sizeof *settled);
    size_t stayed = 0, gone = 0;
    for (uint64_t i = 0; settled && i < count; i++)
        if (stays(i, ctx))
            ret_stayed[stayed++] = i;
        else
            settled[gone++] = i;
    rig_append(rig, 0, count, BYTES);
    if (settled)
        rig_settle_some(rig, settled, gone);
    free(settled);
    return stayed;
}

TEST(when_all_is_settled_two_segments_are_left)
{
    struct rig rig;
    REQUIRE(rig_begin(&rig, SEGMENT));
    rig_append(&rig, 0, 20 * PER_SEGMENT, BYTES);
    CHECK(workdir_files(rig.journal, "").bytes >= 20 * SEGMENT);
    rig_settle(&rig, 0, 20 * PER_SEGMENT);
    check_bound(&rig, 0, "what is settled is dropped");
    CHECK(rig_reopen(&rig));
    CHECK_INT(rig_waiting(&rig), 0);
    rig_end(&rig);
}

static bool is_one_of_a_segment(uint64_t number, void *ctx)
{
    (void)ctx;
    return number % PER_SEGMENT == PER_SEGMENT / 2;
}

TEST(one_straggler_in_each_segment_does_not_keep_it)
{
    struct rig rig;
    uint64_t stayed[64];
    REQUIRE(rig_begin(&rig, SEGMENT));
    size_t count = leave_behind(&rig, 50 * PER_SEGMENT, is_one_of_a_segment, NULL, stayed);
    CHECK_INT(count, 50);
    check_stragglers(&rig, stayed, count);
    rig_end(&rig);
}

static bool is_one_of_ten(uint64_t number, void *ctx)
{
    (void)number;
    return kl__random_below(ctx, 10) == 0;
}

TEST(one_task_in_ten_may_stay)
{
    struct rig rig;
    uint64_t random = test_seed(), *stayed = calloc(40 * PER_SEGMENT, sizeof *stayed);
    REQUIRE(rig_begin(&rig, SEGMENT) && stayed);
    size_t count = leave_behind(&rig, 40 * PER_SEGMENT, is_one_of_ten, &random, stayed);
    CHECK(count > 2 * PER_SEGMENT);
    check_stragglers(&rig, stayed, count);
    free(stayed);
    rig_end(&rig);
}

TEST(delayed_tasks_stay_while_others_pass)
{
    enum { DELAYED = 3 * PER_SEGMENT, ROUNDS = 8 };
    struct rig rig;
    int64_t due_ms = KL_ID_MS_MAX - 1;
    REQUIRE(rig_begin(&rig, SEGMENT));
    rig_append_due(&rig, 0, DELAYED, BYTES, due_ms);
    for (uint64_t i = 0; i < ROUNDS && !test_failed(); i++) {
        uint64_t first = DELAYED + i * 2 * PER_SEGMENT;
        rig_append(&rig, first, 2 * PER_SEGMENT, BYTES);
        rig_settle(&rig, first, 2 * PER_SEGMENT);
        check_bound(&rig, DELAYED * task_bytes(BYTES, true), "what passed is dropped");
    }
    for (int life = 0; life < 2 && rig.store; life++) {
        CHECK_INT(rig_waiting(&rig), DELAYED);
        for (uint64_t i = 0; i < DELAYED; i += 100)
            CHECK(rig_is_whole(&rig, i, BYTES));
        rig_reopen(&rig);
    }
    rig_end(&rig);
}

/* Once history has them, with their errors, the journal needs neither tasks nor outcomes; retried ones stay. */
TEST(what_is_kept_leaves_the_journal_for_history)
{
    enum { COUNT = 8 * PER_SEGMENT, RETRIED = COUNT / 64 };
    struct rig rig;
    kl_counts counts;
    REQUIRE(rig_begin(&rig, SEGMENT));
    rig_append(&rig, 0, COUNT, BYTES);
    for (uint32_t shard = 0; shard < RIG_SHARDS; shard++) {
        kl_settled settled[COUNT / RIG_SHARDS + 1];
        kl_settle batch = {.place = {rig.partition, shard}, .tasks = settled};
        for (uint64_t number = shard; number < COUNT; number += RIG_SHARDS)
            settled[batch.count++] = (kl_settled){.id = rig_id(number),
                                                  .outcome = number < RETRIED ? KL_RETRY : KL_DEAD,
                                                  .attempts = 1,
                                                  .keep_ms = 100000000,
                                                  .error = {"it broke", 8}};
        CHECK_OK(rig_set_positions(&rig, batch.place, settled, batch.count));
        CHECK_OK(kl_store_settle(rig.store, &batch, 1));
    }
    check_bound(&rig, RETRIED * (task_bytes(BYTES, false) + KL_MOVED_MORE), "what history has is dropped");
    for (int life = 0; life < 2 && rig.store; life++) {
        CHECK_OK(kl_store_counts(rig.store, (kl_place){rig.partition, KL_ALL_SHARDS}, NULL, &counts));
        CHECK_INT(counts.dead, COUNT - RETRIED);
        CHECK_INT(counts.retry, RETRIED);
        rig_reopen(&rig);
    }
    rig_end(&rig);
}

/* ---- Records and tokens ---- */

TEST(a_record_that_is_written_over_and_over_takes_the_room_of_one)
{
    enum { WRITES = 10000, VALUE = 1500 };
    struct rig rig;
    char value[VALUE];
    uint64_t version = 0, count = test_ops(WRITES);
    kl_bytes name = {"counter", 7};
    kl_record record;
    REQUIRE(rig_begin(&rig, SEGMENT));
    memset(value, 'v', sizeof value);
    for (uint64_t i = 0; i < count && !test_failed(); i++) {
        kl_write write = {.name = name, .version = version, .value = {value, sizeof value}};
        memcpy(value, &i, sizeof i);
        CHECK_OK(kl_store_put(rig.store, &write, 1));
        version = write.new_version;
    }
    check_bound(&rig, kl__round8(sizeof(kl__write_record) + name.len + VALUE), "old versions are dropped");
    for (int life = 0; life < 2 && rig.store; life++) {
        CHECK_OK(kl_store_get(rig.store, &name, 1, &rig.arena, &record));
        CHECK_INT(record.version, version);
        CHECK(record.value.len == VALUE && memcmp(record.value.data, value, VALUE) == 0);
        rig_reopen(&rig);
    }
    rig_end(&rig);
}

static void count_ended(void *ctx, kl_rc rc, const char *error)
{
    if (rc != KL_OK)
        test_fail(__FILE__, __LINE__, "an asynchronous append failed: %s", error);
    atomic_fetch_add((_Atomic uint64_t *)ctx, 1);
}

struct ended {
    _Atomic uint64_t count;
    uint64_t expected;
};

static bool have_ended(void *ctx)
{
    struct ended *ended = ctx;
    return atomic_load(&ended->count) == ended->expected;
}

static kl_token token_of(uint64_t number)
{
    kl_token token = {{0}};
    uint64_t words[2] = {number * 0x9e3779b97f4a7c15u, number};
    memcpy(token.bytes, words, sizeof token.bytes);
    return token;
}

/* What is live only ever becomes more, and each segment that is copied is followed by another that is written. */
TEST(stragglers_are_copied_for_as_long_as_a_record_is_written_over)
{
    enum { SEGMENTS = 60, VALUE = 4000, EACH = SEGMENT / VALUE };
    static char value[VALUE];
    struct rig rig;
    uint64_t version = 0;
    REQUIRE(rig_begin(&rig, SEGMENT));
    for (uint64_t i = 0; i < SEGMENTS * EACH && !test_failed(); i++) {
        kl_write write = {.name = {"counter", 7}, .version = version, .value = {value, sizeof value}};
        CHECK_OK(kl_store_put(rig.store, &write, 1));
        version = write.new_version;
        if (i % EACH == 0)
            rig_append(&rig, i / EACH, 1, BYTES);
    }
    check_bound(&rig, SEGMENTS * task_bytes(BYTES, false) + VALUE, "the stragglers are copied");
    CHECK_INT(rig_waiting(&rig), SEGMENTS);
    rig_end(&rig);
}

/* More tokens than are remembered: the forgotten ones are live no more, the last ones are known after a restart. */
TEST(tokens_take_the_room_of_those_that_are_remembered)
{
    struct rig rig;
    uint64_t tokens = test_ops(100000), kept = tokens < KL_TOKENS_KEPT ? tokens : KL_TOKENS_KEPT;
    struct ended ended = {.expected = tokens};
    REQUIRE(rig_begin(&rig, SEGMENT));
    for (uint64_t i = 0; i < tokens; i++) {
        kl_entry entry = rig_entry(&rig, i, 40);
        kl_token token = token_of(i);
        CHECK_OK(kl_store_append_async(rig.store, &entry, 1, &token, count_ended, &ended.count));
    }
    REQUIRE(rig_await(have_ended, &ended, "all are appended"));
    rig_settle(&rig, 0, tokens);
    check_bound(&rig, kept * sizeof(kl__token_record), "what is settled is dropped");
    for (int life = 0; life < 2 && rig.store; life++) {
        for (uint64_t i = tokens - 1; i > tokens - kept && i > tokens - 300; i--) {
            kl_entry entry = rig_entry(&rig, i, 40);
            kl_token token = token_of(i);
            CHECK_OK(kl_store_append(rig.store, &entry, 1, &token));
        }
        CHECK_INT(rig_waiting(&rig), 0); /* each was recognised */
        rig_reopen(&rig);
    }
    rig_end(&rig);
}

/* A record, a fence, a seal, a token and a partition of long ago, while tasks pass. */
TEST(what_was_written_once_does_not_keep_its_segment)
{
    enum { SHARD = 3, EPOCH = 5, PASSING = 5 };
    struct rig rig;
    kl_write write = {.name = {"once", 4}, .value = {"written", 7}};
    kl_fence fence = {.epoch = EPOCH}, seal = {.seal = true};
    kl_record record;
    uint32_t other = 0;
    REQUIRE(rig_begin(&rig, SEGMENT));
    CHECK_OK(kl_store_partition(rig.store, "other", 1, &other));
    fence.place = (kl_place){other, SHARD};
    seal.place = (kl_place){other, SHARD + 1};
    kl_entry entry = rig_entry(&rig, 1, BYTES);
    kl_token token = token_of(1);
    CHECK_OK(kl_store_put(rig.store, &write, 1));
    CHECK_OK(kl_store_fence(rig.store, &fence, 1));
    CHECK_OK(kl_store_fence(rig.store, &seal, 1));
    CHECK_OK(kl_store_append(rig.store, &entry, 1, &token));
    rig_settle(&rig, 1, 1);
    for (uint64_t i = 1; i <= PASSING && !test_failed(); i++) {
        rig_append(&rig, i * PER_SEGMENT, PER_SEGMENT / 2, BYTES);
        rig_settle(&rig, i * PER_SEGMENT, PER_SEGMENT / 2);
        check_bound(&rig, 256, "what was written once is copied");
    }
    for (int life = 0; life < 2 && rig.store; life++) {
        kl_settled nobody = {.id = rig_id(16 * 1000000 + SHARD), .position = 1, .attempts = 1};
        kl_settle late = {.place = fence.place, .epoch = EPOCH - 1, .tasks = &nobody, .count = 1};
        CHECK_OK(kl_store_partition(rig.store, "other", 1, &other));
        CHECK_INT(kl_store_settle(rig.store, &late, 1), KL_ESTALE);
        kl_entry refused = {.place = seal.place, .id = rig_id(16 * 1000000 + SHARD + 1)};
        CHECK_INT(kl_store_append(rig.store, &refused, 1, NULL), KL_ESEALED);
        CHECK_OK(kl_store_get(rig.store, &write.name, 1, &rig.arena, &record));
        CHECK_INT(record.version, write.new_version);
        CHECK_OK(kl_store_append(rig.store, &entry, 1, &token));
        CHECK_INT(rig_waiting(&rig), 0);
        rig_reopen(&rig);
    }
    rig_end(&rig);
}

/* Not two of these fit into a segment, so that copying them wins nothing; and nothing is lost by it. */
TEST(tasks_of_half_a_segment_can_stay)
{
    enum { SMALL = 64 << 10, LARGE = SMALL / 2 - 200, COUNT = 12 };
    struct rig rig;
    REQUIRE(rig_begin(&rig, SMALL));
    for (uint64_t i = 0; i < COUNT; i++)
        rig_append(&rig, i, 1, LARGE);
    for (uint64_t i = 0; i < 200; i++) {
        rig_append(&rig, 100 + i, 1, 1000);
        rig_settle(&rig, 100 + i, 1);
    }
    for (int life = 0; life < 2 && rig.store; life++) {
        for (uint64_t i = 0; i < COUNT; i++)
            CHECK(rig_is_whole(&rig, i, LARGE));
        CHECK_INT(rig_waiting(&rig), COUNT);
        rig_reopen(&rig);
    }
    rig_end(&rig);
}

/* ---- What stays while the journal is brisk ---- */

/* Segments in memory, of which the last is being written, with a spare beside them. */
struct brisk {
    kl__state state;
    kl__segments segments;
    kl__segment its[32];
};

static void brisk_begin(struct brisk *brisk)
{
    memset(brisk, 0, sizeof *brisk);
    CHECK_OK(kl__state_open(&brisk->state));
    brisk->segments.state = &brisk->state;
    brisk->segments.segment_bytes = SEGMENT;
    brisk->segments.has_spare = brisk->segments.has_next = true;
}

static void brisk_end(struct brisk *brisk)
{
    for (size_t i = 0; i < brisk->state.segment_count; i++)
        kl__free(brisk->state.segments[i]->part_live);
    kl__state_close(&brisk->state);
}

static void brisk_add(struct brisk *brisk, size_t count, uint64_t live)
{
    for (size_t i = 0; i < count; i++) {
        size_t number = brisk->state.segment_count + 1;
        kl__segment *its = &brisk->its[number];
        *its = (kl__segment){.number = number, .bytes = SEGMENT, .live = live};
        CHECK(kl__state_add_segment(&brisk->state, its));
        brisk->state.live += live;
        brisk->state.described = number;
    }
}

static bool brisk_drops(const struct brisk *brisk) { return kl__segments_need_upkeep(&brisk->segments); }

TEST(files_that_are_kept_and_those_that_wait_to_be_copied_are_within_the_bound_together)
{
    for (size_t gathered = 0; gathered <= KL_PATIENCE_SEGMENTS; gathered++) {
        for (size_t kept = 1; kept <= KL_PATIENCE_SEGMENTS + 1; kept++) {
            struct brisk brisk;
            brisk_begin(&brisk);
            brisk_add(&brisk, kept, 0);
            brisk_add(&brisk, 6, SEGMENT / 2); /* twice what is live */
            brisk_add(&brisk, gathered, 1);
            brisk_add(&brisk, 1, 0);
            uint64_t live = brisk.state.live - gathered;
            CHECK_INT(brisk_drops(&brisk), brisk.state.closed_bytes > 2 * live + KL_PATIENCE_SEGMENTS * SEGMENT);
            brisk_end(&brisk);
        }
    }
}

TEST(a_damaged_segment_is_put_aside_and_not_kept_to_be_used_again)
{
    struct brisk brisk;
    brisk_begin(&brisk);
    brisk_add(&brisk, 2, 0);
    brisk_add(&brisk, 1, 0);
    CHECK(!brisk_drops(&brisk));
    brisk.its[1].is_damaged = true;
    CHECK(brisk_drops(&brisk));
    brisk_end(&brisk);
}

/* ---- While it is written briskly ---- */

enum { BRISK_SEGMENTS = 2 + KL_PATIENCE_SEGMENTS + 1 /* the spare */, LOAD_ROUNDS = 150, LOAD_TASKS = PER_SEGMENT / 2 };

struct load {
    struct rig *rig;
    uint64_t live, most;
    bool was_late; /* it was within the bound only when it was not brisk any more */
};

/* Upkeep runs behind the calls, but it must not wait until writing slows down. */
static bool is_within_briskly(void *ctx)
{
    struct load *load = ctx;
    const kl__segments *segments = &((kl__disk *)load->rig->store->self)->segments;
    bool was_brisk = kl__segments_are_brisk(segments);
    uint64_t bytes = workdir_files(load->rig->journal, "").bytes;
    bool is_within = bytes <= 2 * load->live + BRISK_SEGMENTS * SEGMENT;
    load->most = bytes > load->most ? bytes : load->most;
    load->was_late |= !is_within && !was_brisk;
    return is_within;
}

/* Settles come `late` rounds behind; of each round a task stays for good. */
static void check_load(uint64_t late)
{
    struct rig rig;
    REQUIRE(rig_begin(&rig, SEGMENT));
    struct load load = {.rig = &rig};
    int64_t longest_ns = 0;
    for (uint64_t round = 0; round < LOAD_ROUNDS && !test_failed(); round++) {
        int64_t before_ns = kl__monotonic_ns();
        rig_append(&rig, round * LOAD_TASKS, LOAD_TASKS, BYTES);
        if (round >= late)
            rig_settle(&rig, (round - late) * LOAD_TASKS + 1, LOAD_TASKS - 1);
        int64_t took_ns = kl__monotonic_ns() - before_ns;
        longest_ns = took_ns > longest_ns ? took_ns : longest_ns;
        uint64_t whole = round < late ? round + 1 : late; /* rounds */
        load.live = (whole * LOAD_TASKS + round + 1 - whole) * task_bytes(BYTES, false);
        rig_await(is_within_briskly, &load, "what is settled is dropped, or kept for later");
    }
    bool is_slow = longest_ns > KL_BRISK_MS * INT64_C(1000000) / 4; /* of such a machine nothing is promised */
    CHECK(!load.was_late || is_slow);
    CHECK(load.most > 2 * SEGMENT);
    check_bound(&rig, load.live, "when it is over, two are left");
    rig_end(&rig);
}

TEST(under_load_four_segments_more_and_the_spare_are_on_the_disk_at_most)
{
    check_load(0);
    check_load(6);
}

/* ---- A spare that is being made ---- */

/* The machine's file system, where a spare takes long to be made; the next segment does not. */
static struct {
    _Atomic(kl__disk *) disk;
    atomic_bool is_held, goes_on, took_too_long;
} spare;

static int hold_spare(kl__vfs *vfs, const char *path, kl__open_mode mode, kl__file **ret_file)
{
    int64_t until_ns = kl__deadline_ns(RIG_PATIENCE_S * 1000);
    kl__disk *disk = atomic_load(&spare.disk);
    bool is_spare =
        disk && mode == KL_OPEN_CREATE && strstr(path, "/journal/spare") && atomic_load(&disk->segments.has_next);
    if (is_spare)
        atomic_store(&spare.is_held, true);
    while (is_spare && !atomic_load(&spare.goes_on) && !atomic_load(&spare.took_too_long)) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        if (kl__monotonic_ns() > until_ns)
            atomic_store(&spare.took_too_long, true);
    }
    return kl__vfs_system.open(vfs, path, mode, ret_file);
}

static uint64_t last_segment(void)
{
    kl__state *state = &atomic_load(&spare.disk)->state;
    pthread_mutex_lock(&state->mutex);
    uint64_t last = state->first_segment + state->segment_count - 1;
    pthread_mutex_unlock(&state->mutex);
    return last;
}

TEST(whoever_goes_on_to_the_next_segment_does_not_wait_for_a_spare_that_is_being_made)
{
    enum { FEW = 8 }; /* far less than a segment, and enough that the next one is wanted */
    struct rig rig;
    kl__vfs vfs = kl__vfs_system;
    uint64_t number = 0;
    vfs.open = hold_spare;
    memset(&spare, 0, sizeof spare);
    REQUIRE(rig_begin(&rig, SEGMENT));
    rig_close(&rig);
    CHECK_OK(kl__disk_open_on(&vfs, rig.data, &rig.opts, &rig.store));
    REQUIRE(rig.store);
    CHECK_OK(kl_store_partition(rig.store, "rig", 1, &rig.partition));
    atomic_store(&spare.disk, rig.store->self);
    kl__segments *segments = &atomic_load(&spare.disk)->segments;
    for (; !atomic_load(&spare.is_held) && !test_failed(); number += FEW) {
        for (uint64_t i = 0; i < FEW; i++)
            rig_append(&rig, number + i, 1, 4000);
        while (!atomic_load(&spare.is_held) && kl__segments_are_brisk(segments)) /* it is made soon after a roll */
            sched_yield();
    }
    /* On a machine so slow that the next was taken meanwhile, nothing is shown. */
    bool is_there = atomic_load(&segments->has_next);
    for (uint64_t last = last_segment(); is_there && last_segment() == last && !test_failed(); number++)
        rig_append(&rig, number, 1, 4000);
    CHECK(!atomic_load(&spare.took_too_long));
    atomic_store(&spare.goes_on, true);
    CHECK_INT(rig_waiting(&rig), number);
    rig_end(&rig);
}

/* ---- A next segment for which there is no file or memory just now ---- */

static atomic_int wanting; /* a negative errno: what no file of the journal can be opened for, or no directory synced */

static int open_wanting(kl__vfs *vfs, const char *path, kl__open_mode mode, kl__file **ret_file)
{
    int error = strstr(path, "/journal/") ? atomic_load(&wanting) : 0;
    return error ? error : kl__vfs_system.open(vfs, path, mode, ret_file);
}

static int sync_dir_wanting(kl__vfs *vfs, const char *path)
{
    int error = strstr(path, "/journal") ? atomic_load(&wanting) : 0;
    return error ? error : kl__vfs_system.sync_dir(vfs, path);
}

/* Appends until that is refused. Returns how many were not. */
static uint64_t append_until_refused(struct rig *rig, uint64_t first, kl_rc expected)
{
    enum { MOST = 1000 };
    kl_rc rc = KL_OK;
    uint64_t count = 0;
    for (; rc == KL_OK && count < MOST; count += rc == KL_OK) {
        kl_entry entry = rig_entry(rig, first + count, 4000);
        rc = kl_store_append(rig->store, &entry, 1, NULL);
    }
    CHECK_INT(rc, expected);
    return count;
}

static void check_want(kl__vfs *vfs, int error, kl_rc expected)
{
    struct rig rig;
    REQUIRE(rig_begin(&rig, SEGMENT));
    rig_close(&rig);
    CHECK_OK(kl__disk_open_on(vfs, rig.data, &rig.opts, &rig.store));
    REQUIRE(rig.store);
    CHECK_OK(kl_store_partition(rig.store, "rig", 1, &rig.partition));
    uint64_t count = 0;
    for (int round = 0; round < 3 && !test_failed(); round++) {
        atomic_store(&wanting, error);
        count += append_until_refused(&rig, count, expected);
        atomic_store(&wanting, 0);
        rig_append(&rig, count++, 1, 4000);
    }
    CHECK(rig_reopen(&rig));
    CHECK_INT(rig_waiting(&rig), count);
    rig_end(&rig);
}

TEST(files_or_memory_that_are_used_up_for_a_while_end_no_store)
{
    kl__vfs vfs = kl__vfs_system;
    vfs.open = open_wanting;
    check_want(&vfs, -EMFILE, KL_EBUSY);
    check_want(&vfs, -ENFILE, KL_EBUSY);
    check_want(&vfs, -ENOMEM, KL_ENOMEM);
    vfs = kl__vfs_system;
    vfs.sync_dir = sync_dir_wanting; /* which opens it; the new file has its name already */
    check_want(&vfs, -EMFILE, KL_EBUSY);
}

enum { LARGE = 40 };

static kl_rc append_large(struct rig *rig)
{
    kl_entry entries[LARGE];
    for (uint64_t i = 0; i < LARGE; i++)
        entries[i] = rig_entry(rig, i, SEGMENT / LARGE);
    return kl_store_append(rig->store, entries, LARGE, NULL);
}

/* The n-th allocation of a batch that goes to the next segment is refused. False: it has fewer, or another thread's
 * is. */
static bool append_without(uint64_t n)
{
    struct rig rig;
    if (!rig_begin(&rig, SEGMENT))
        return false;
    rig_append(&rig, LARGE, 1, 10);
    kl__alloc_fail_at(n);
    kl_rc rc = append_large(&rig);
    kl__alloc_fail_at(0);
    if (rc == KL_ENOMEM)
        CHECK_OK(append_large(&rig));
    else if (rc != KL_OK) /* it is written, and memory does not know */
        CHECK_CONTAINS(kl_error_text(), "taking up what was written failed");
    if (rc == KL_ENOMEM || rc == KL_OK)
        CHECK_INT(rig_waiting(&rig), LARGE + 1);
    rig_end(&rig);
    return rc != KL_OK;
}

TEST(memory_that_is_refused_before_anything_is_written_ends_no_store)
{
    enum { ALLOCATIONS = 12 };
    int refused = 0;
    for (uint64_t n = 1; n <= ALLOCATIONS && !test_failed(); n++)
        refused += append_without(n);
    CHECK(refused > 0);
}

/* ---- The next segment, taken as soon as it is there ---- */

/* A file system on which everything is done at once, and nothing is kept. */
static int open_nothing(kl__vfs *vfs, const char *path, kl__open_mode mode, kl__file **ret_file)
{
    (void)vfs, (void)path, (void)mode;
    *ret_file = NULL;
    return 0;
}

static int size_nothing(kl__vfs *vfs, kl__file *file, uint64_t *ret_size)
{
    (void)vfs, (void)file;
    *ret_size = SEGMENT;
    return 0;
}

static ssize_t write_nothing(kl__vfs *vfs, kl__file *file, const void *bytes, size_t count, uint64_t offset)
{
    (void)vfs, (void)file, (void)bytes, (void)offset;
    return (ssize_t)count;
}

static int sync_nothing(kl__vfs *vfs, kl__file *file)
{
    (void)vfs, (void)file;
    return 0;
}

static int rename_nothing(kl__vfs *vfs, const char *from, const char *to)
{
    (void)vfs, (void)from, (void)to;
    return 0;
}

static int sync_no_directory(kl__vfs *vfs, const char *path)
{
    (void)vfs, (void)path;
    return 0;
}

static kl__vfs nothing = {.open = open_nothing,
                          .size = size_nothing,
                          .write = write_nothing,
                          .sync = sync_nothing,
                          .rename = rename_nothing,
                          .sync_dir = sync_no_directory};

/* Who prepares them, as upkeep does, and how many it is to have prepared, and has. */
struct preparing {
    kl__segments *segments;
    _Atomic(uint64_t) wanted, prepared;
    uint64_t end;
};

static void *prepare_each(void *ctx)
{
    struct preparing *preparing = ctx;
    for (uint64_t number = 1; number <= preparing->end; number++) {
        while (atomic_load(&preparing->wanted) < number)
            sched_yield();
        CHECK_INT(kl__segments_prepare(preparing->segments), 0);
        atomic_store(&preparing->prepared, number);
    }
    return NULL;
}

/* Those before it are gone by then. */
static void roll_and_drop(kl__segments *segments)
{
    kl__state *state = segments->state;
    while (!atomic_load(&segments->next))
        sched_yield();
    CHECK_OK(kl__segments_roll(segments, SEGMENT / 2, true));
    pthread_mutex_lock(&state->mutex);
    while (state->segment_count > 1)
        kl__segment_free(kl__state_drop_segment(state));
    pthread_mutex_unlock(&state->mutex);
}

/* Else nobody would prepare the one behind it ahead, and a disk that is full by then has no room for outcomes (G3). */
TEST(a_next_segment_that_is_taken_while_it_is_being_announced_is_not_taken_for_one_that_is_there)
{
    static kl__segments segments;
    kl__state state;
    struct preparing preparing = {.segments = &segments, .end = test_ops(20000)};
    pthread_t thread;
    memset(&segments, 0, sizeof segments);
    CHECK_OK(kl__state_open(&state));
    segments.vfs = &nothing;
    segments.state = &state;
    segments.segment_bytes = SEGMENT;
    segments.next_number = 1;
    pthread_mutex_init(&segments.files, NULL);
    pthread_mutex_init(&segments.mutex, NULL);
    pthread_cond_init(&segments.changed, NULL);
    REQUIRE(pthread_create(&thread, NULL, prepare_each, &preparing) == 0);
    for (uint64_t number = 1; number <= preparing.end; number++) {
        atomic_store(&preparing.wanted, number);
        roll_and_drop(&segments);
        while (atomic_load(&preparing.prepared) < number)
            sched_yield();
        CHECK(!atomic_load(&segments.has_next));
    }
    pthread_join(thread, NULL);
    kl__segment_free(segments.active);
    pthread_cond_destroy(&segments.changed);
    pthread_mutex_destroy(&segments.mutex);
    pthread_mutex_destroy(&segments.files);
    kl__state_close(&state);
}
