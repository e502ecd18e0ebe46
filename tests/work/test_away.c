/* test_away.c - what a worker does for some partitions while others cannot be reached, or are not known yet, and for a
 * key that is drained while an outcome of it is on its way. */
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "store/lossy.h"
#include "store/quick.h"
#include "work/hand.h"
#include "work/owners_inside.h"

/* --- Draining --- */

struct drainer {
    kl_queue *queue;
    uint64_t count;
    kl_rc rc;
    atomic_bool over;
};

static void *drain(void *ctx)
{
    struct drainer *drainer = ctx;
    drainer->rc = kl_key_drain(drainer->queue, kl_str("k"), NULL, false, &drainer->count);
    atomic_store(&drainer->over, true);
    return NULL;
}

TEST(a_task_that_failed_and_is_not_settled_yet_is_drained_with_its_key)
{
    struct hand hand;
    pthread_t thread;
    if (!hand_open(&hand, &(kl_queue_opts){.size = sizeof(kl_queue_opts), .lease_ms = 3600000}))
        return;
    hand_put(&hand, "k", "first", 0);
    hand_put(&hand, "k", "second", 0);
    struct hand_pump *pump = hand_pump(&hand, NULL);
    hand_own(pump);
    CHECK_STR(hand_start(pump), "first");
    hand_end(pump, hand_running(pump, 0), KL_RETRY); /* and it is not settled yet */
    struct drainer drainer = {.queue = hand.queue};
    REQUIRE(pthread_create(&thread, NULL, drain, &drainer) == 0);
    while (!atomic_load(&drainer.over)) {
        struct timespec pause = {.tv_nsec = 1000000};
        hand.now_ms += HAND_STEP_MS;
        CHECK_INT(kl__pump_tick(pump->pump), KL_OK);
        nanosleep(&pause, NULL); /* between two looks */
    }
    pthread_join(thread, NULL);
    CHECK_INT(drainer.rc, KL_OK);
    CHECK_INT(drainer.count, 2);
    CHECK_INT(hand_waiting(&hand), 0);
    hand_close(&hand);
}

/* --- A store is away --- */

struct skipper {
    kl_queue *queue;
    const char *key;
    kl_rc rc;
    atomic_bool over;
};

static void *skip(void *ctx)
{
    struct skipper *skipper = ctx;
    kl_task_id ignored;
    skipper->rc = kl_key_skip(skipper->queue, kl_str(skipper->key), NULL, &ignored);
    atomic_store(&skipper->over, true);
    return NULL;
}

static kl__partition *partition_at(const struct hand_pump *pump, uint32_t index)
{
    kl__partition *partition = pump->pump->partitions;
    while (partition->index != index)
        partition = partition->next;
    return partition;
}

TEST(requests_are_carried_out_while_the_store_of_a_partition_before_is_away)
{
    struct hand hand;
    struct lossy lossy;
    kl_store *away;
    kl_queue_opts opts = {.size = sizeof opts, .partitions = 2, .lease_ms = 3600000};
    kl_layout layout = {2, 1};
    char key[] = "a";
    if (!hand_open(&hand, &opts))
        return;
    REQUIRE(lossy_open(&lossy, hand.memory, 1, &away) == KL_OK);
    while (kl_partition_of(&layout, kl_str(key)) != 1)
        key[0]++;
    hand_put(&hand, key, "one", 0);
    struct hand_pump *pump = hand_pump(&hand, NULL);
    hand_beats(pump, 4, HAND_STEP_MS);
    hand_looks(pump);
    CHECK_INT(kl__pump_shards(pump->pump), 2 * HAND_SHARDS);
    struct skipper skipper = {.queue = hand.queue, .key = key};
    pthread_t thread;
    partition_at(pump, 0)->store = away;
    lossy.down = true;
    REQUIRE(pthread_create(&thread, NULL, skip, &skipper) == 0);
    while (!atomic_load(&skipper.over)) {
        struct timespec pause = {.tv_nsec = 1000000};
        hand.now_ms += HAND_STEP_MS;
        CHECK_INT(kl__pump_tick(pump->pump), LOSSY_RC);
        nanosleep(&pause, NULL); /* between two looks */
    }
    pthread_join(thread, NULL);
    CHECK_INT(skipper.rc, KL_OK);
    CHECK_INT(hand_waiting(&hand), 0);
    partition_at(pump, 0)->store = hand.memory;
    hand_close(&hand);
    kl_store_close(away);
}

TEST(a_worker_that_starts_while_a_partition_of_an_older_layout_is_away_owns_the_others)
{
    struct hand hand;
    struct lossy lossy;
    kl_store *away;
    kl_queue_opts opts = {.size = sizeof opts, .partitions = 1}, wider = {.size = sizeof wider, .partitions = 2};
    if (!hand_open(&hand, &opts))
        return;
    REQUIRE(lossy_open(&lossy, hand.memory, 1, &away) == KL_OK);
    hand_put(&hand, "k", "one", 0);
    CHECK_INT(kl_queue_alter(hand.queue, &wider), KL_OK);
    struct hand_pump *pump = hand_pump(&hand, NULL);
    kl_store **older = &pump->pump->descriptor->layouts[0].stores[0];
    CHECK_INT(pump->pump->descriptor->layout_count, 2);
    uint32_t number;
    lossy.replies_lost = lossy.requests_lost = 0;
    CHECK_INT(kl_store_partition(away, "q", 1, &number), KL_OK);
    *older = away;
    lossy.down = true;
    for (int i = 0; i < 4; i++) {
        hand.now_ms += HAND_STEP_MS;
        CHECK_INT(kl__pump_beat(pump->pump), LOSSY_RC);
    }
    CHECK_INT(kl__pump_shards(pump->pump), 2 * HAND_SHARDS);
    *older = hand.memory;
    hand_close(&hand);
    kl_store_close(away);
}

/* --- What is told of it --- */

struct told {
    int away, none, back;
};

static void count_told(void *ctx, kl_log_level level, const char *text)
{
    struct told *told = ctx;
    (void)level;
    told->away += strstr(text, "is not worked on until its store answers") != NULL;
    told->none += strstr(text, "neither are the others, because the queue's concurrency is shared out there") != NULL;
    told->back += strstr(text, "the stores of all partitions answer") != NULL;
}

/* Three partitions, of which the last two lie in stores that can be taken away; the last has never answered. */
struct apart {
    struct hand hand;
    struct lossy lossy[2];
    kl_store *stores[2];
    struct hand_pump *pump;
    kl__queue_layout *layout;
    struct told told;
};

static bool apart_open(struct apart *apart)
{
    kl_queue_opts opts = {.size = sizeof opts, .partitions = 3, .lease_ms = 3600000};
    *apart = (struct apart){0};
    if (!hand_open(&apart->hand, &opts))
        return false;
    apart->pump = hand_pump(&apart->hand, NULL);
    kl__pump *pump = apart->pump->pump;
    pump->opts.log = count_told;
    pump->opts.log_ctx = &apart->told;
    apart->layout = &pump->descriptor->layouts[0];
    for (size_t i = 0; i < 2; i++) {
        uint32_t number;
        struct lossy *lossy = &apart->lossy[i];
        CHECK_INT(lossy_open(lossy, apart->hand.memory, i + 1, &apart->stores[i]), KL_OK);
        lossy->replies_lost = lossy->requests_lost = 0;
        CHECK_INT(kl_store_partition(apart->stores[i], i == 0 ? "q__p1" : "q__p2", 1, &number), KL_OK);
        apart->layout->stores[i + 1] = apart->stores[i];
    }
    apart->lossy[1].down = true;
    atomic_store(&apart->layout->numbers[2], KL_PARTITION_AWAY);
    CHECK_INT(kl__partitions_sync(pump), KL_OK);
    CHECK_INT(apart->told.away, 1);
    return true;
}

static void apart_close(struct apart *apart)
{
    for (size_t i = 0; i < 2; i++)
        apart->layout->stores[i + 1] = apart->hand.memory;
    hand_close(&apart->hand);
    for (size_t i = 0; i < 2; i++)
        kl_store_close(apart->stores[i]);
}

TEST(that_all_partitions_answer_is_told_once_they_do)
{
    struct apart apart;
    if (!apart_open(&apart))
        return;
    kl__pump *pump = apart.pump->pump;
    CHECK_INT(kl__partitions_sync(pump), KL_OK);
    CHECK_INT(apart.told.back, 0);
    apart.lossy[1].down = false;
    CHECK_INT(kl__partitions_sync(pump), KL_OK);
    CHECK_INT(kl__partitions_sync(pump), KL_OK);
    CHECK_INT(apart.told.away, 1);
    CHECK_INT(apart.told.none, 0);
    CHECK_INT(apart.told.back, 1);
    apart_close(&apart);
}

TEST(a_worker_that_stops_does_not_tell_that_all_partitions_answer)
{
    struct apart apart;
    if (!apart_open(&apart))
        return;
    kl__pump_stop(apart.pump->pump);
    CHECK_INT(kl__partitions_sync(apart.pump->pump), KL_OK);
    CHECK_INT(apart.told.back, 0);
    apart_close(&apart);
}

TEST(that_all_partitions_answer_is_not_told_while_one_that_is_worked_on_does_not)
{
    struct apart apart;
    if (!apart_open(&apart))
        return;
    kl__pump *pump = apart.pump->pump;
    apart.lossy[1].down = false;
    apart.lossy[0].down = apart.lossy[0].tells = true;
    CHECK_INT(kl__partitions_sync(pump), KL_OK);
    CHECK_INT(apart.told.back, 0);
    apart.lossy[0].down = apart.lossy[0].tells = false;
    CHECK_INT(kl__partitions_sync(pump), KL_OK);
    CHECK_INT(apart.told.back, 1);
    apart_close(&apart);
}

/* Neither partition lies in the store with the queue's record, so the first of them shares out the limit. */
TEST(a_queue_whose_limit_is_shared_out_in_a_store_that_is_away_says_that_nothing_runs)
{
    struct hand hand;
    struct lossy lossy;
    kl_store *away;
    struct told told = {0};
    kl_queue_opts opts = {.size = sizeof opts, .partitions = 2, .lease_ms = 3600000, .concurrency = 4};
    if (!hand_open(&hand, &opts))
        return;
    CHECK_INT(lossy_open(&lossy, hand.memory, 1, &away), KL_OK);
    kl__pump *pump = hand_pump(&hand, NULL)->pump;
    kl__queue_layout *layout = &pump->descriptor->layouts[0];
    pump->opts.log = count_told;
    pump->opts.log_ctx = &told;
    layout->stores[0] = layout->stores[1] = away;
    lossy.down = true;
    atomic_store(&layout->numbers[0], KL_PARTITION_AWAY);
    CHECK_INT(kl__partitions_sync(pump), KL_OK);
    CHECK_INT(told.none, 1);
    layout->stores[0] = layout->stores[1] = hand.memory;
    hand_close(&hand);
    kl_store_close(away);
}

/* --- A layout that not all have heard of --- */

enum { LIMIT = 4 };

static size_t start_all(struct hand_pump *pump)
{
    size_t count = 0;
    while (hand_start(pump)[0])
        count++;
    return count;
}

static void beat_in_turn(struct hand_pump **pumps, size_t count, int rounds)
{
    for (int i = 0; i < rounds; i++) {
        for (size_t p = 0; p < count; p++) {
            pumps[p]->pump->beat_now = true;
            hand_beats(pumps[p], 1, HAND_STEP_MS);
            hand_looks(pumps[p]);
        }
    }
}

static uint64_t running(struct hand_pump **pumps, size_t count)
{
    uint64_t sum = 0;
    for (size_t p = 0; p < count; p++)
        sum += kl__pump_running(pumps[p]->pump);
    return sum;
}

/* Whoever hears of it first stands alone in its record for a while. */
TEST(a_change_of_the_layout_lets_no_more_tasks_run_than_may)
{
    struct hand hand;
    kl_queue_opts opts = {.size = sizeof opts, .lease_ms = 600000, .concurrency = LIMIT};
    if (!hand_open(&hand, &opts))
        return;
    for (int i = 0; i < 200; i++)
        hand_put(&hand, "", "x", 0);
    struct hand_pump *pumps[] = {hand_pump(&hand, NULL), hand_pump(&hand, NULL)};
    beat_in_turn(pumps, 2, 12);
    CHECK_INT(start_all(pumps[0]), LIMIT / 2);
    CHECK_INT(start_all(pumps[1]), LIMIT / 2);
    for (int64_t partitions = 2; partitions <= 4; partitions++) {
        kl_queue_opts wider = {.size = sizeof wider, .partitions = partitions};
        CHECK_INT(kl_queue_alter(hand.queue, &wider), KL_OK);
        for (int i = 0; i < 200; i++)
            hand_put(&hand, "", "x", 0);
        beat_in_turn(pumps, 1, 3);
        start_all(pumps[0]);
        CHECK_INT(running(pumps, 2), LIMIT);
        beat_in_turn(pumps, 2, 6);
        start_all(pumps[0]);
        start_all(pumps[1]);
        CHECK_INT(running(pumps, 2), LIMIT);
        while (pumps[0]->running_count > 0)
            hand_end(pumps[0], hand_running(pumps[0], 0), KL_DONE);
        start_all(pumps[0]);
        CHECK(running(pumps, 2) <= LIMIT);
        beat_in_turn(pumps, 2, 6);
        start_all(pumps[0]);
        start_all(pumps[1]);
        CHECK_INT(running(pumps, 2), LIMIT);
    }
    hand_close(&hand);
}

/* --- Permits of one who stops, or cannot be heard --- */

/* Two partitions, and tasks of the second alone. */
static bool open_with_limit(struct hand *hand, struct hand_pump *pumps[2])
{
    enum { TASKS = 200 };
    kl_queue_opts opts = {.size = sizeof opts, .partitions = 2, .lease_ms = 600000, .concurrency = LIMIT};
    if (!hand_open(hand, &opts))
        return false;
    for (int i = 0; i < TASKS; i++) {
        kl_put put = {.payload = kl_str("x"), .partition = "q__p1"};
        kl_put_result result;
        CHECK_INT(kl_queue_put(hand->queue, &put, 1, (kl_bytes){0}, &result), KL_OK);
    }
    for (int i = 0; i < 2; i++)
        pumps[i] = hand_pump(hand, NULL);
    beat_in_turn(pumps, 2, 12);
    CHECK_INT(start_all(pumps[0]), LIMIT / 2);
    CHECK_INT(start_all(pumps[1]), LIMIT / 2);
    return true;
}

TEST(what_a_worker_that_stops_still_runs_counts_for_the_queues_limit)
{
    struct hand hand;
    struct hand_pump *pumps[2];
    if (!open_with_limit(&hand, pumps))
        return;
    kl__pump_stop(pumps[0]->pump);
    for (int i = 0; i < 12; i++) {
        hand_beats(pumps[0], 1, HAND_STEP_MS);
        beat_in_turn(&pumps[1], 1, 1);
        start_all(pumps[1]);
        CHECK_INT(running(pumps, 2), LIMIT);
    }
    while (pumps[0]->running_count > 0)
        hand_end(pumps[0], hand_running(pumps[0], 0), KL_DONE);
    hand_settle(pumps[0]);
    hand_beats(pumps[0], 3, HAND_STEP_MS);
    CHECK(kl__pump_gone(pumps[0]->pump));
    beat_in_turn(&pumps[1], 1, 4);
    start_all(pumps[1]);
    CHECK_INT(running(pumps, 2), LIMIT);
    hand_close(&hand);
}

/* Its lease of the other partition holds. */
TEST(a_worker_that_is_not_heard_where_the_limit_is_shared_out_starts_nothing_more)
{
    struct hand hand;
    struct hand_pump *pumps[2];
    struct lossy lossy;
    kl_store *away;
    if (!open_with_limit(&hand, pumps))
        return;
    REQUIRE(lossy_open(&lossy, hand.memory, 1, &away) == KL_OK);
    kl__owners *unheard = partition_at(pumps[0], 0)->owners;
    unheard->store = away;
    lossy.down = true;
    for (int i = 0; i < 12; i++) {
        hand.now_ms += 100000;
        CHECK_INT(kl__pump_tick(pumps[0]->pump), KL_OK);
        pumps[0]->pump->beat_now = true;
        CHECK_INT(kl__pump_keep(pumps[0]->pump), LOSSY_RC);
        beat_in_turn(&pumps[1], 1, 1);
    }
    while (pumps[0]->running_count > 0)
        hand_end(pumps[0], hand_running(pumps[0], 0), KL_DONE);
    CHECK_INT(start_all(pumps[0]), 0);
    start_all(pumps[1]);
    CHECK_INT(running(pumps, 2), LIMIT);
    unheard->store = hand.memory;
    hand_close(&hand);
    kl_store_close(away);
}
