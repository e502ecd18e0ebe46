/* test_order.c - the order of a key's tasks, step by step: a pump that is driven by hand, by a clock that goes on when
 * it is told to. What chance makes of it, the simulator shows (tests/sim). */
#include "harness.h"
#include "work/inside.h"

enum { LEASE_MS = 3600000, SHARDS = 16, MANY = 65536 };

struct hand {
    int64_t now_ms;
    kl_store *store;
    kl_queue *queue;
    kl__pump *pump;
};

static int64_t now_of(void *ctx) { return ((const struct hand *)ctx)->now_ms; }

static void hand_open(struct hand *hand)
{
    *hand = (struct hand){.now_ms = INT64_C(1800000000000)};
    kl_store_opts store_opts = {.size = sizeof store_opts, .now_ms = now_of, .now_ctx = hand};
    kl_queue_opts queue_opts = {.size = sizeof queue_opts, .lease_ms = LEASE_MS};
    REQUIRE(kl_store_open("memory:", &store_opts, &hand->store) == KL_OK);
    REQUIRE(kl_queue_open(hand->store, "q", &queue_opts, &hand->queue) == KL_OK);
}

static void hand_start(struct hand *hand, int64_t window_max)
{
    static const kl_handler handler = {.kind = NULL};
    kl__pump_opts opts = {.queue = hand->queue,
                          .worker = {{1}},
                          .worker_name = "by hand",
                          .handlers = &handler,
                          .handler_count = 1,
                          .window_max = window_max,
                          .concurrency = 1,
                          .seed = 1,
                          .local_ms = now_of,
                          .local_ctx = hand};
    REQUIRE(kl__pump_open(&opts, &hand->pump) == KL_OK);
    for (int i = 0; i < 20 && kl__pump_shards(hand->pump) < SHARDS; i++) {
        hand->now_ms += 200;
        REQUIRE(kl__pump_beat(hand->pump) == KL_OK);
    }
    REQUIRE(kl__pump_shards(hand->pump) == SHARDS);
    hand->now_ms += 200;
    REQUIRE(kl__pump_beat(hand->pump) == KL_OK); /* it knows that nothing of what is due was moved */
}

static void hand_close(struct hand *hand)
{
    kl__pump_close(hand->pump);
    kl_queue_close(hand->queue);
    kl_store_close(hand->store);
}

static void put(struct hand *hand, const char *key, int64_t priority, int64_t delay_ms, int count)
{
    kl_put one = {.key = kl_str(key), .payload = kl_str("x"), .priority = priority, .delay_ms = delay_ms};
    kl_put_result result;
    for (int i = 0; i < count; i++)
        REQUIRE(kl_queue_put(hand->queue, &one, 1, (kl_bytes){0}, &result) == KL_OK);
}

static void look(struct hand *hand)
{
    uint64_t ready;
    CHECK_INT(kl__pump_look(hand->pump, &ready), KL_OK);
}

/* A window's lines are read one after the other, and which are in use is asked for every 20 ms. */
static void look_at_all(struct hand *hand)
{
    for (int i = 0; i < 8; i++) {
        hand->now_ms += 50;
        look(hand);
    }
}

static kl__held *take(struct hand *hand)
{
    kl__held *held = NULL;
    return kl__pump_take(hand->pump, &held, 1) == 1 ? held : NULL;
}

static void finish(struct hand *hand, kl__held *held)
{
    kl__verdict verdict = {.outcome = KL_DONE};
    kl__pump_finish(hand->pump, held, &verdict);
}

static void settle(struct hand *hand)
{
    uint64_t sent;
    while (kl__pump_has_finished(hand->pump))
        CHECK_INT(kl__pump_settle(hand->pump, &sent), KL_OK);
}

/* Of the next so many tasks; KL_PRIORITY_MAX + 1: there are not so many, or they differ. */
static int priority_of_next(struct hand *hand, int count)
{
    int priority = KL_PRIORITY_MAX + 1;
    for (int i = 0; i < count; i++) {
        kl__held *held = take(hand);
        if (!held)
            return KL_PRIORITY_MAX + 1;
        bool same = i == 0 || held->lane.mark.priority == priority;
        priority = same ? held->lane.mark.priority : KL_PRIORITY_MAX + 1;
        finish(hand, held);
    }
    return priority;
}

TEST(a_worker_whose_memory_is_full_looks_for_what_is_more_urgent)
{
    struct hand hand;
    char key[16];
    hand_open(&hand);
    hand_start(&hand, KL_WINDOW_MIN);
    for (int i = 0; i < KL_WINDOW_MIN * 2; i++) {
        snprintf(key, sizeof key, "k%d", i);
        put(&hand, key, 0, 0, 2);
    }
    look_at_all(&hand);
    CHECK(kl__pump_held(hand.pump) >= KL_WINDOW_MIN);
    put(&hand, "k0", -5, 0, 1);
    hand.now_ms += 20;
    CHECK(kl__pump_wants_look(hand.pump));
    look(&hand);
    CHECK_INT(priority_of_next(&hand, 1), -5);
    hand_close(&hand);
}

TEST(a_worker_looks_on_while_its_idea_of_the_store_s_clock_stands_still)
{
    struct hand hand;
    char key[16];
    hand_open(&hand);
    hand_start(&hand, KL_WINDOW_MIN);
    for (int i = 0; i < KL_WINDOW_MIN * 2; i++) {
        snprintf(key, sizeof key, "k%d", i);
        put(&hand, key, 0, 0, 2);
    }
    look_at_all(&hand);
    CHECK(!kl__pump_wants_look(hand.pump));
    hand.pump->clock_offset_ms -= 60000; /* as after an answer that was late */
    hand.now_ms += 20;
    CHECK(kl__pump_wants_look(hand.pump));
    hand_close(&hand);
}

/* More of them than one scan shows. */
TEST(one_look_reads_all_that_is_more_urgent_than_what_is_held)
{
    struct hand hand;
    hand_open(&hand);
    hand_start(&hand, MANY);
    put(&hand, "k", 0, 0, 3);
    put(&hand, "k", -2, 0, 1);
    look_at_all(&hand);
    put(&hand, "k", -2, 0, 900);
    hand.now_ms += 50;
    look(&hand);
    CHECK_INT(priority_of_next(&hand, 901), -2);
    CHECK_INT(priority_of_next(&hand, 3), 0);
    hand_close(&hand);
}

TEST(a_task_that_is_given_back_waits_for_a_more_urgent_one_that_had_no_room_meanwhile)
{
    struct hand hand;
    hand_open(&hand);
    hand_start(&hand, KL_WINDOW_MIN * SHARDS);
    put(&hand, "k", 0, 0, 40); /* 16 are held, and no more of the key */
    look_at_all(&hand);
    kl__held *held = take(&hand);
    REQUIRE(held);
    put(&hand, "k", -2, 0, 1);
    hand.now_ms += 50;
    look(&hand);
    kl__pump_untake(hand.pump, held);
    kl__held *next = take(&hand);
    if (next) {
        CHECK_INT(next->lane.mark.priority, -2);
        finish(&hand, next);
    } else {
        look_at_all(&hand);
        CHECK_INT(priority_of_next(&hand, 1), -2);
    }
    look_at_all(&hand);
    CHECK_INT(priority_of_next(&hand, 1), 0);
    hand_close(&hand);
}

/* The due line is in order of time, and not of urgency, and is read in pieces. */
TEST(due_tasks_of_a_key_wait_until_it_is_known_which_is_the_most_urgent)
{
    enum { DUE = 500 };
    struct hand hand;
    hand_open(&hand);
    put(&hand, "k", -1, 1000, DUE);
    put(&hand, "k", -3, 2000, 1);
    hand.now_ms += 3000;
    hand_start(&hand, MANY);
    kl__held *held = NULL;
    for (int i = 0; i < 100 && !(held = take(&hand)); i++) {
        hand.now_ms += 50;
        look(&hand);
    }
    REQUIRE(held);
    CHECK_INT(held->lane.mark.priority, -3);
    finish(&hand, held);
    for (int i = 0; i < DUE; i++) {
        for (int tries = 0; tries < 100 && !(held = take(&hand)); tries++)
            look_at_all(&hand);
        REQUIRE(held);
        finish(&hand, held);
    }
    hand_close(&hand);
}

static const kl_layout one_partition = {1, 1};

static kl__window *window_of(const struct hand *hand, const char *key)
{
    return hand->pump->partitions->by_shard[kl_shard_of(&one_partition, kl_str(key))];
}

static bool is_at_end(const struct hand *hand, const char *key, int32_t line)
{
    const kl__window *window = window_of(hand, key);
    return window->cursors[line - KL_PRIORITY_MIN] && window->cursors[line - KL_PRIORITY_MIN]->ended;
}

/* Line -2 takes several looks, which read nothing behind it but the due line; the last of them comes to its end. */
TEST(a_due_task_waits_for_lines_before_its_own_that_its_look_has_passed_over)
{
    enum { URGENT = 300 };
    struct hand hand;
    hand_open(&hand);
    hand_start(&hand, MANY);
    put(&hand, "k", -1, 0, 1);
    look_at_all(&hand);
    CHECK_INT(priority_of_next(&hand, 1), -1);
    settle(&hand); /* nothing is held that would have it read on in one look */
    put(&hand, "k", 0, 10, 1);
    put(&hand, "k", -2, 0, URGENT);
    hand.now_ms += 2000; /* the first reading of the due line has rested */
    look(&hand);
    CHECK(!is_at_end(&hand, "k", -2));
    put(&hand, "k", -1, 0, 1);
    for (int i = 0; i < 100 && !is_at_end(&hand, "k", -2); i++) {
        hand.now_ms += 50;
        look(&hand);
    }
    CHECK_INT(priority_of_next(&hand, URGENT), -2);
    kl__held *early = take(&hand);
    CHECK(!early);
    if (early)
        finish(&hand, early);
    look_at_all(&hand);
    CHECK_INT(priority_of_next(&hand, 1), -1);
    look_at_all(&hand);
    CHECK_INT(priority_of_next(&hand, 1), 0);
    hand_close(&hand);
}

/* The other keys of "k"'s shard, one after the other. */
static void next_key(int *number, char *key, size_t room)
{
    do
        snprintf(key, room, "other-%d", (*number)++);
    while (kl_shard_of(&one_partition, kl_str(key)) != kl_shard_of(&one_partition, kl_str("k")));
}

TEST(a_task_that_is_given_back_waits_for_more_urgent_ones_that_could_not_be_read_meanwhile)
{
    enum { URGENT = 100 };
    struct hand hand;
    char key[24];
    int number = 0, urgent = 0;
    hand_open(&hand);
    hand_start(&hand, KL_WINDOW_MIN * SHARDS);
    put(&hand, "k", 0, 0, 1);
    look_at_all(&hand);
    kl__held *held = take(&hand);
    REQUIRE(held);
    for (int i = 0; i < URGENT; i++) {
        next_key(&number, key, sizeof key);
        put(&hand, key, -2, 0, 1);
    }
    put(&hand, "k", -2, 0, 1); /* for which there is no room */
    look_at_all(&hand);
    CHECK(kl__pump_held(hand.pump) < URGENT);
    kl__pump_untake(hand.pump, held);
    for (int looks = 0; looks < 20 && urgent <= URGENT; looks++) {
        for (; urgent <= URGENT && (held = take(&hand)); urgent++) {
            CHECK_INT(held->lane.mark.priority, -2);
            finish(&hand, held);
        }
        settle(&hand);
        look_at_all(&hand);
    }
    CHECK_INT(urgent, URGENT + 1);
    CHECK_INT(priority_of_next(&hand, 1), 0);
    hand_close(&hand);
}

/* The drain has passed their line, and not come to those that are held. */
TEST(tasks_that_are_stored_while_their_key_is_drained_go_before_less_urgent_ones_that_are_left)
{
    for (int64_t delay_ms = 0; delay_ms <= 10; delay_ms += 10) {
        struct hand hand;
        hand_open(&hand);
        hand_start(&hand, MANY);
        put(&hand, "k", 2, 0, 2);
        look_at_all(&hand);
        window_of(&hand, "k")->sweeping = true;
        window_of(&hand, "k")->swept_key = kl__key_hash(kl_str("k"));
        put(&hand, "k", -1, delay_ms, 1);
        hand.now_ms += 2000;
        look_at_all(&hand);
        kl__held *early = take(&hand);
        CHECK(!early);
        if (early)
            finish(&hand, early);
        window_of(&hand, "k")->sweeping = false;
        look_at_all(&hand);
        CHECK_INT(priority_of_next(&hand, 1), -1);
        look_at_all(&hand);
        CHECK_INT(priority_of_next(&hand, 2), 2);
        hand_close(&hand);
    }
}

TEST(a_shard_that_is_kept_after_all_is_looked_at_before_its_tasks_are_started)
{
    struct hand hand;
    hand_open(&hand);
    hand_start(&hand, MANY);
    put(&hand, "k", 0, 0, 2);
    look_at_all(&hand);
    for (kl__window *window = hand.pump->partitions->windows; window; window = window->next) {
        window->leaving = window->unlooked = true; /* as when somebody else is to have it */
        kl__window_clear_room(window);
    }
    put(&hand, "k", -2, 0, 1);
    look_at_all(&hand); /* which passes it over */
    hand.pump->beat_now = true;
    REQUIRE(kl__pump_beat(hand.pump) == KL_OK);
    CHECK(!hand.pump->partitions->windows->leaving);
    CHECK(!take(&hand));
    look_at_all(&hand);
    CHECK_INT(priority_of_next(&hand, 1), -2);
    hand_close(&hand);
}

static struct hand *swept;

/* While a look is under way, before it learns what the store has answered. */
static void sweep_meanwhile(void *ctx)
{
    struct hand *hand = swept;
    kl__window *window = window_of(ctx, "k");
    uint64_t count;
    if (!hand || !window->due_asked)
        return;
    swept = NULL;
    CHECK_INT(kl__window_sweep(window, (kl__sweep_of){.key_hash = 1}, KL_CANCELLED, "", &count), KL_OK);
}

TEST(a_task_waits_for_due_ones_of_its_key_though_their_reading_counts_for_nothing)
{
    struct hand hand;
    hand_open(&hand);
    hand_start(&hand, MANY);
    put(&hand, "k", -1, 1000, 1);
    look_at_all(&hand);
    hand.now_ms += 1000;
    put(&hand, "k", 0, 0, 1);
    hand.pump->opts.enter = sweep_meanwhile;
    hand.pump->opts.mutex_ctx = swept = &hand;
    look(&hand);
    CHECK(!swept);
    CHECK(!take(&hand));
    look(&hand);
    CHECK_INT(priority_of_next(&hand, 1), -1);
    CHECK_INT(priority_of_next(&hand, 1), 0);
    hand_close(&hand);
}

/* Takes all that there is to be taken; of the key's tasks, in which order their priorities came: one hex digit each. */
static int order_of(struct hand *hand, const char *key)
{
    int order = 0;
    kl__held *held;
    for (int i = 0; i < 8; i++) {
        while ((held = take(hand))) {
            if (held->key_hash == kl__key_hash(kl_str(key)))
                order = order << 4 | held->lane.mark.priority;
            finish(hand, held);
        }
        settle(hand);
        look_at_all(hand);
    }
    return order;
}

/* Another one for each number, all in one shard. */
static void name_key(int number, char ret_key[32])
{
    kl_layout layout = {1, 1};
    int tries = 0;
    do
        snprintf(ret_key, 32, "key-%d-%d", number, tries++);
    while (kl_shard_of(&layout, kl_str(ret_key)) != 0);
}

static void put_fillers(struct hand *hand, int first, int count, int64_t priority)
{
    char key[32];
    for (int i = first; i < first + count; i++) {
        name_key(i, key);
        put(hand, key, priority, 0, 1);
    }
}

/* While a task runs, more urgent ones fill the memory, and its line makes room for them: what is as urgent as they are
 * is not read any more. Then it waits again: before the next look, or after it. */
TEST(a_task_that_is_given_back_to_a_full_memory_waits_for_more_urgent_ones_of_its_key)
{
    for (int late = 0; late <= 1; late++) {
        struct hand hand;
        char key[32];
        name_key(0, key);
        hand_open(&hand);
        hand_start(&hand, KL_WINDOW_MIN);
        put(&hand, key, 2, 0, 1);
        look_at_all(&hand);
        kl__held *given_back = take(&hand);
        REQUIRE(given_back);
        put_fillers(&hand, 1, KL_WINDOW_MIN, 2);
        look_at_all(&hand);
        put_fillers(&hand, 1 + KL_WINDOW_MIN, KL_WINDOW_MIN - 1, 1);
        look_at_all(&hand);
        CHECK_INT(kl__pump_held(hand.pump), KL_WINDOW_MIN);
        if (!late)
            kl__pump_untake(hand.pump, given_back);
        put(&hand, key, 1, 0, 1);
        look_at_all(&hand);
        if (late)
            kl__pump_untake(hand.pump, given_back);
        CHECK_INT(order_of(&hand, key), 0x12);
        hand_close(&hand);
    }
}
