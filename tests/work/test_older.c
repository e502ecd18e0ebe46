/* test_older.c - older layouts with many shards, step by step: how many calls a look at them takes, tasks that cannot
 * be moved, and those behind them. */
#include "store/lossy.h"
#include "work/hand.h"

/* The store that pumps go to. */
struct watched {
    struct lossy lossy; /* first: the engine's self */
    uint64_t calls;     /* scans and counts */
    kl_task_id damaged; /* as a read finds it */
};

static kl_rc watch_scan(void *self, kl_scan *scans, size_t count)
{
    struct watched *watched = self;
    watched->calls++;
    return kl_store_scan(watched->lossy.inner, scans, count);
}

static kl_rc watch_counts(void *self, kl_place place, const kl_task_id *job, kl_counts *ret_counts)
{
    struct watched *watched = self;
    watched->calls++;
    return kl_store_counts(watched->lossy.inner, place, job, ret_counts);
}

static kl_rc watch_read(void *self, const kl_ref *refs, size_t count, kl_arena *arena, kl_task *ret_tasks,
                        size_t *ret_count)
{
    struct watched *watched = self;
    size_t good = 0;
    while (good < count && kl_id_compare(&refs[good].id, &watched->damaged) != 0)
        good++;
    *ret_count = 0;
    kl_rc rc = good > 0 ? kl_store_read(watched->lossy.inner, refs, good, arena, ret_tasks, ret_count) : KL_OK;
    return rc == KL_OK && good < count ? kl__fail(KL_EDAMAGED, "it is damaged") : rc;
}

static bool open_watched(struct hand *hand, struct watched *watched, const kl_queue_opts *opts)
{
    *watched = (struct watched){.calls = 0};
    if (!hand_open(hand, opts))
        return false;
    CHECK_INT(lossy_open(&watched->lossy, hand->memory, 1, &hand->store), KL_OK);
    watched->lossy.replies_lost = watched->lossy.requests_lost = 0;
    watched->lossy.engine.scan = watch_scan;
    watched->lossy.engine.counts = watch_counts;
    watched->lossy.engine.read = watch_read;
    return true;
}

static void close_watched(struct hand *hand)
{
    kl_store *store = hand->store;
    hand_close(hand);
    kl_store_close(store);
}

static kl_task_id put_later(struct hand *hand, const char *key)
{
    kl_put task = {.key = kl_str(key), .payload = kl_str(key), .delay_ms = 7200 * 1000};
    kl_put_result result = {.duplicate = false};
    CHECK_INT(kl_queue_put(hand->queue, &task, 1, (kl_bytes){0}, &result), KL_OK);
    return result.id;
}

static void widen(struct hand *hand, int64_t partitions)
{
    kl_queue_opts opts = {.size = sizeof opts, .partitions = partitions};
    CHECK_INT(kl_queue_alter(hand->queue, &opts), KL_OK);
}

static uint64_t waiting_in(struct hand *hand, size_t index)
{
    kl__descriptor *descriptor = kl__queue_descriptor(hand->queue);
    kl_counts counts = {0};
    CHECK_INT(kl__layout_count(&descriptor->layouts[index], &counts), KL_OK);
    kl__descriptor_release(descriptor);
    return kl__counts_waiting(&counts);
}

/* Three layouts of 256 shards, the first two with one task each that stays. */
TEST(a_look_at_older_layouts_takes_few_calls_however_many_shards_they_have)
{
    enum { SHARDS = 256, BEATS = 5 };
    struct hand hand;
    struct watched watched;
    const kl_queue_opts opts = {.size = sizeof opts, .shard_prefix_len = 2, .lease_ms = 3600000};
    if (!open_watched(&hand, &watched, &opts))
        return;
    hand_put(&hand, "a", "first", 0);
    widen(&hand, 2);
    hand_put(&hand, "b", "second", 0);
    widen(&hand, 3);
    struct hand_pump *pump = hand_pump(&hand, NULL);
    hand_beats(pump, 6, HAND_STEP_MS);
    CHECK_INT(kl__pump_shards(pump->pump), 6 * SHARDS);
    watched.calls = 0;
    hand_beats(pump, BEATS, HAND_STEP_MS);
    CHECK(watched.calls / BEATS < SHARDS / 2);
    close_watched(&hand);
}

static void move_all_but(int damaged)
{
    enum { KEYS = 64 };
    struct hand hand;
    struct watched watched;
    char key[16];
    const kl_queue_opts opts = {.size = sizeof opts, .lease_ms = 3600000};
    if (!open_watched(&hand, &watched, &opts))
        return;
    for (int i = 0; i < KEYS; i++) {
        snprintf(key, sizeof key, "key-%d", i);
        kl_task_id id = put_later(&hand, key);
        watched.damaged = i == damaged ? id : watched.damaged;
    }
    widen(&hand, 2);
    struct hand_pump *pump = hand_pump(&hand, NULL);
    kl_rc rc = KL_OK;
    for (int i = 0; i < 8; i++) {
        hand.now_ms += HAND_STEP_MS;
        rc = kl__pump_beat(pump->pump);
    }
    CHECK_INT(rc, KL_EDAMAGED);
    CHECK_INT(waiting_in(&hand, 1), KEYS - 1);
    CHECK_INT(waiting_in(&hand, 0), 1);
    close_watched(&hand);
}

TEST(a_delayed_task_that_is_damaged_keeps_no_other_from_being_moved)
{
    for (int damaged = 0; damaged < 8; damaged++) /* in several shards, whichever comes first */
        move_all_but(damaged);
}

static void put_due(struct hand *hand, int number, const char *kind, int64_t delay_ms)
{
    char key[32];
    hand_key(3, number, key);
    kl_put task = {.key = kl_str(key), .kind = kl_str(kind), .delay_ms = delay_ms};
    CHECK_INT(kl_queue_put(hand->queue, &task, 1, (kl_bytes){0}, NULL), KL_OK);
}

/* So many keys wait for a worker that runs their kind, and their first tasks are in memory. */
static void hold_unserved(struct hand_pump *pump, uint64_t count)
{
    for (int i = 0; i < 1000 && kl__pump_unserved(pump->pump) < count; i++) {
        hand_looks(pump);
        while (kl__pump_ready(pump->pump) > 0)
            CHECK_STR(hand_start(pump), "");
        hand_beats(pump, 1, HAND_STEP_MS);
    }
    CHECK_INT(kl__pump_unserved(pump->pump), count);
}

TEST(delayed_tasks_that_nobody_runs_keep_none_behind_them_from_being_moved)
{
    enum { BLOCKED = 600, LATER = 3 };
    struct hand hand;
    const kl_queue_opts opts = {.size = sizeof opts, .lease_ms = 3600000};
    if (!hand_open(&hand, &opts))
        return;
    for (int i = 0; i < BLOCKED; i++)
        put_due(&hand, i, "rare", 1000);
    struct hand_pump *pump = hand_pump(&hand, "common");
    hand_own(pump);
    hold_unserved(pump, BLOCKED);
    for (int i = 0; i < LATER; i++)
        put_due(&hand, BLOCKED + i, "common", 7200 * 1000);
    widen(&hand, 2);
    hand_beats(pump, 8, HAND_STEP_MS);
    CHECK_INT(waiting_in(&hand, 0), BLOCKED);
    CHECK_INT(waiting_in(&hand, 1), LATER);
    hand_close(&hand);
}

/* What of the older layout is not moved: it waits for a worker of its kind, or is damaged. */
static void leave_behind(const char *key, const char *kind, bool damaged)
{
    struct hand hand;
    struct watched watched;
    const kl_queue_opts opts = {.size = sizeof opts, .lease_ms = 3600000};
    kl_put stays = {.key = kl_str(key), .kind = kl_str(kind), .delay_ms = 1000},
           goes = {.kind = kl_str("common"), .payload = kl_str("it goes"), .delay_ms = 1000};
    kl_put_result result = {.duplicate = false};
    if (!open_watched(&hand, &watched, &opts))
        return;
    CHECK_INT(kl_queue_put(hand.queue, &stays, 1, (kl_bytes){0}, &result), KL_OK);
    if (damaged)
        watched.damaged = result.id;
    struct hand_pump *pump = hand_pump(&hand, "common");
    if (!damaged) {
        hand_own(pump);
        hold_unserved(pump, 1);
    }
    widen(&hand, 2);
    CHECK_INT(kl_queue_put(hand.queue, &goes, 1, (kl_bytes){0}, NULL), KL_OK);
    for (int i = 0; i < 20; i++) {
        hand.now_ms += HAND_STEP_MS;
        (void)kl__pump_beat(pump->pump);
    }
    hand_looks(pump);
    CHECK_INT(waiting_in(&hand, 0), 1);
    CHECK_STR(hand_start(pump), "it goes");
    close_watched(&hand);
}

TEST(a_delayed_task_that_stays_in_an_older_layout_holds_up_no_task_without_a_key)
{
    leave_behind("a key", "rare", false);
    leave_behind("", "rare", false);
    leave_behind("a key", "common", true);
    leave_behind("", "common", true);
}

/* What waits in the newer layout for what has just ended in the older one is not let on before the next looks. */
TEST(a_worker_is_not_out_of_work_while_a_key_waits_for_a_look_at_older_layouts)
{
    struct hand hand;
    const kl_queue_opts opts = {.size = sizeof opts, .lease_ms = 3600000};
    if (!hand_open(&hand, &opts))
        return;
    hand_put(&hand, "a key", "first", 0);
    struct hand_pump *pump = hand_pump(&hand, NULL);
    hand_own(pump);
    widen(&hand, 2);
    hand_put(&hand, "a key", "second", 0);
    hand_beats(pump, 8, HAND_STEP_MS);
    hand_looks(pump);
    CHECK_STR(hand_start(pump), "first");
    CHECK_STR(hand_start(pump), "");
    CHECK(!kl__pump_empty(pump->pump));
    hand_end(pump, hand_running(pump, 0), KL_DONE);
    hand_settle(pump);
    hand_looks(pump);
    CHECK_STR(hand_start(pump), "");
    CHECK(!kl__pump_empty(pump->pump));
    hand_beats(pump, 4, HAND_STEP_MS);
    hand_looks(pump);
    CHECK_STR(hand_start(pump), "second");
    hand_end(pump, hand_running(pump, 0), KL_DONE);
    hand_settle(pump);
    hand_beats(pump, 4, HAND_STEP_MS);
    hand_looks(pump);
    CHECK(kl__pump_empty(pump->pump));
    hand_close(&hand);
}

/* Whichever allocation fails, the next beats go on from there. */
TEST(a_look_at_older_layouts_survives_that_there_is_no_memory)
{
    struct hand hand;
    const kl_queue_opts opts = {.size = sizeof opts, .lease_ms = 3600000};
    char key[32];
    bool failed = true;
    if (!hand_open(&hand, &opts))
        return;
    for (int i = 0; i < 100; i++) {
        snprintf(key, sizeof key, "key-%d", i);
        hand_put(&hand, key, "old", 0);
    }
    widen(&hand, 2);
    struct hand_pump *pump = hand_pump(&hand, NULL);
    hand_beats(pump, 6, HAND_STEP_MS);
    for (uint64_t n = 1; failed && n < 10000; n++) {
        hand.now_ms += HAND_STEP_MS;
        kl__alloc_fail_at(n);
        (void)kl__pump_beat(pump->pump);
        failed = kl__alloc_fail_at(0) >= n;
        hand_beats(pump, 2, HAND_STEP_MS);
    }
    CHECK(!failed);
    CHECK_INT(kl__pump_shards(pump->pump), 3 * HAND_SHARDS);
    hand_close(&hand);
}
