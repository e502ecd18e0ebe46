/* test_lease.c - a lease that is changed while workers run, and what is asked of one whose lease is over, or
 * of a task that ends. */
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "work/hand.h"
#include "work/owners_rig.h"

enum { SHORT_MS = 1000, USUAL_MS = 10000, LONG_MS = 60000, STEP_MS = 100 };

static void set_lease(struct hand *hand, int64_t lease_ms)
{
    kl_queue_opts opts = {.size = sizeof opts, .lease_ms = lease_ms};
    CHECK_INT(kl_queue_alter(hand->queue, &opts), KL_OK);
}

static uint64_t epoch_of(const struct hand_pump *pump)
{
    const kl__window *window = pump->pump->partitions->windows;
    return window ? window->epoch : 0;
}

TEST(a_lease_that_is_raised_or_lowered_loses_no_shard_and_no_outcome)
{
    struct hand hand;
    kl_queue_opts opts = {.size = sizeof opts, .lease_ms = SHORT_MS};
    const int64_t leases[] = {LONG_MS, SHORT_MS, 3 * SHORT_MS, LONG_MS, 2 * SHORT_MS};
    if (!hand_open(&hand, &opts))
        return;
    struct hand_pump *pump = hand_pump(&hand, NULL);
    hand_put(&hand, "k", "one", 0);
    hand_own(pump);
    CHECK_STR(hand_start(pump), "one");
    uint64_t epoch = epoch_of(pump);
    for (size_t i = 0; i < sizeof leases / sizeof leases[0]; i++) {
        set_lease(&hand, leases[i]);
        hand_beats(pump, 2 * LONG_MS / STEP_MS, STEP_MS);
        CHECK_INT(epoch_of(pump), epoch);
    }
    hand_end(pump, hand_running(pump, 0), KL_DONE);
    hand_settle(pump);
    CHECK_INT(kl__pump_counted(pump->pump).done, 1);
    CHECK_INT(kl__pump_counted(pump->pump).refused, 0);
    hand_close(&hand);
}

TEST(a_lowered_lease_lets_others_take_over_as_soon)
{
    struct hand hand;
    kl_queue_opts opts = {.size = sizeof opts, .lease_ms = LONG_MS};
    if (!hand_open(&hand, &opts))
        return;
    struct hand_pump *dies = hand_pump(&hand, NULL), *lives = hand_pump(&hand, NULL);
    hand_own(dies);
    set_lease(&hand, SHORT_MS);
    hand_beats(dies, 2, STEP_MS);
    hand_beats(lives, (SHORT_MS + SHORT_MS / 2) / STEP_MS, STEP_MS);
    CHECK_INT(kl__pump_shards(lives->pump), HAND_SHARDS);
    hand_close(&hand);
}

TEST(a_lease_is_shorter_before_the_record_says_so)
{
    struct rig rig;
    struct member member;
    rig_open_lossy(&rig, 1, test_seed());
    rig.lossy.replies_lost = rig.lossy.requests_lost = 0;
    kl__owners_opts opts = rig_opts(&rig, "w");
    opts.lease_ms = LONG_MS;
    rig_join(&rig, &member, &opts);
    member_beat(&member);
    CHECK(kl__owners_holds(member.owners, rig.now_ms + LONG_MS / 2));
    rig.lossy.replies_lost = 100; /* it may be written, and nobody here knows */
    member.report.lease_ms = SHORT_MS;
    member_beat(&member);
    CHECK_INT(member.rc, LOSSY_RC);
    CHECK(kl__owners_holds(member.owners, rig.now_ms + SHORT_MS / 2));
    CHECK(!kl__owners_holds(member.owners, rig.now_ms + SHORT_MS));
    CHECK_INT(kl__owners_lease_ms(member.owners), LONG_MS); /* nothing else is told yet */
    member_die(&member);
    rig_close(&rig);
}

/* --- Requests --- */

struct canceller {
    kl_queue *queue;
    kl_task_id id;
    kl_rc rc;
    bool running;
    atomic_bool over;
};

static void *cancel(void *ctx)
{
    struct canceller *canceller = ctx;
    canceller->rc = kl_task_cancel(canceller->queue, &canceller->id, &canceller->running);
    atomic_store(&canceller->over, true);
    return NULL;
}

static size_t requests(struct hand *hand)
{
    kl_record records[4];
    kl_arena arena = {0};
    size_t count = 0;
    CHECK_INT(kl_store_list(hand->memory, kl_str("ask/"), (kl_bytes){0}, 4, &arena, records, &count), KL_OK);
    kl_arena_free(&arena);
    return count;
}

static void rest(void)
{
    struct timespec pause = {.tv_nsec = 1000000};
    nanosleep(&pause, NULL); /* between two looks */
}

/* It stands still for longer than its lease, and then looks at requests before it learns who has the shard. */
TEST(a_stale_owner_leaves_a_request_to_the_next_one)
{
    struct hand hand;
    kl_queue_opts opts = {.size = sizeof opts, .lease_ms = SHORT_MS};
    if (!hand_open(&hand, &opts))
        return;
    struct canceller canceller = {.queue = hand.queue, .id = hand_put(&hand, "k", "one", 0)};
    struct hand_pump *stale = hand_pump(&hand, NULL), *owner = hand_pump(&hand, NULL);
    pthread_t thread;
    hand_own(stale);
    hand.now_ms += 2 * SHORT_MS;
    hand_own(owner);
    REQUIRE(pthread_create(&thread, NULL, cancel, &canceller) == 0);
    while (requests(&hand) == 0)
        rest();
    CHECK_INT(kl__pump_tick(stale->pump), KL_OK);
    CHECK_STR(hand_start(stale), "");
    while (!atomic_load(&canceller.over)) {
        hand_beats(owner, 1, HAND_STEP_MS);
        rest();
    }
    pthread_join(thread, NULL);
    CHECK_INT(canceller.rc, KL_OK);
    CHECK(!canceller.running);
    CHECK_STR(hand_start(owner), "");
    CHECK_INT(hand_waiting(&hand), 0);
    hand_close(&hand);
}

/* Its lease holds by its own clock, but the shard was fenced above it: its settle is refused. */
TEST(a_request_whose_settle_is_refused_is_not_answered)
{
    struct hand hand;
    if (!hand_open(&hand, NULL))
        return;
    struct canceller canceller = {.queue = hand.queue, .id = hand_put(&hand, "k", "one", 0)};
    struct hand_pump *stale = hand_pump(&hand, NULL);
    pthread_t thread;
    hand_own(stale);
    for (uint32_t shard = 0; shard < HAND_SHARDS; shard++) {
        kl_fence fence = {.place = {stale->pump->partitions->number, shard}, .epoch = epoch_of(stale) + 1};
        CHECK_INT(kl_store_fence(hand.memory, &fence, 1), KL_OK);
    }
    REQUIRE(pthread_create(&thread, NULL, cancel, &canceller) == 0);
    while (requests(&hand) == 0)
        rest();
    hand.now_ms += HAND_STEP_MS;
    CHECK_INT(kl__pump_tick(stale->pump), KL_OK);
    CHECK_INT(kl__pump_counted(stale->pump).refused, 1);
    CHECK(!atomic_load(&canceller.over));
    CHECK_INT(requests(&hand), 1);
    struct hand_pump *next = hand_pump(&hand, NULL);
    hand.now_ms += USUAL_MS;
    hand_own(next);
    while (!atomic_load(&canceller.over)) {
        hand_beats(next, 1, HAND_STEP_MS);
        rest();
    }
    pthread_join(thread, NULL);
    CHECK_INT(canceller.rc, KL_OK);
    CHECK_INT(hand_waiting(&hand), 0);
    hand_close(&hand);
}

struct retrier {
    kl_queue *queue;
    kl_task_id id, again;
    kl_rc rc;
    atomic_bool over;
};

static void *retry(void *ctx)
{
    struct retrier *retrier = ctx;
    retrier->rc = kl_task_retry(retrier->queue, &retrier->id, &retrier->again);
    atomic_store(&retrier->over, true);
    return NULL;
}

TEST(a_task_that_ends_before_its_owner_is_asked_to_try_it_again_is_put_again_if_it_is_kept)
{
    for (int kept = 0; kept < 2; kept++) {
        struct hand hand;
        kl_queue_opts opts = {.size = sizeof opts, .keep_done_ms = kept ? 3600000 : 0};
        if (!hand_open(&hand, &opts))
            return;
        struct retrier retrier = {.queue = hand.queue, .id = hand_put(&hand, "k", "one", 0)};
        struct hand_pump *pump = hand_pump(&hand, NULL);
        pthread_t thread;
        hand_own(pump);
        CHECK_STR(hand_start(pump), "one");
        REQUIRE(pthread_create(&thread, NULL, retry, &retrier) == 0);
        while (requests(&hand) == 0)
            rest();
        hand_end(pump, hand_running(pump, 0), KL_DONE);
        hand_settle(pump);
        while (!atomic_load(&retrier.over)) {
            hand_beats(pump, 1, HAND_STEP_MS);
            rest();
        }
        pthread_join(thread, NULL);
        CHECK_INT(retrier.rc, kept ? KL_OK : KL_ENOTFOUND);
        CHECK_INT(hand_waiting(&hand), kept);
        CHECK(!kept || memcmp(&retrier.again, &retrier.id, sizeof retrier.id) != 0);
        hand_close(&hand);
    }
}
