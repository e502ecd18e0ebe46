/* test_suspects.c - what is left of a worker that ended with tasks under way; tasks that are ended without a run. */
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "store/lossy.h"
#include "work/hand.h"

enum { LEASE_MS = 1000 };

static const kl_queue_opts quick = {.size = sizeof quick, .lease_ms = LEASE_MS};

/* A process of its own that takes over from one that stands still. */
static struct hand_pump *take_over(struct hand *hand)
{
    hand->now_ms += 2 * LEASE_MS;
    struct hand_pump *pump = hand_pump(hand, NULL);
    hand_own(pump);
    return pump;
}

/* --- Order --- */

TEST(a_suspect_start_is_written_after_the_outcomes_that_came_before_it_in_its_key)
{
    struct hand hand;
    if (!hand_open(&hand, &quick))
        return;
    hand_put(&hand, "k", "late", 0);
    hand_own(hand_pump(&hand, NULL));
    struct hand_pump *second = take_over(&hand);
    hand_put(&hand, "k", "urgent", -1);
    hand_looks(second);
    CHECK_STR(hand_start(second), "urgent");
    hand_end(second, hand_running(second, 0), KL_DONE); /* and it is not settled yet */
    CHECK_STR(hand_start(second), "late");
    struct hand_pump *third = take_over(&hand);
    CHECK_STR(hand_start(third), "late");
    hand_end(third, hand_running(third, 0), KL_DONE);
    CHECK_STR(hand_start(third), "");
    hand_close(&hand);
}

TEST(what_becomes_due_right_after_a_shard_was_taken_is_looked_for_at_once)
{
    struct hand hand;
    if (!hand_open(&hand, NULL))
        return;
    struct hand_pump *pump = hand_pump(&hand, NULL);
    hand_own(pump);
    kl_put due = {.payload = kl_str("due"), .delay_ms = 1};
    CHECK_INT(kl_queue_put(hand.queue, &due, 1, (kl_bytes){0}, NULL), KL_OK);
    hand_looks(pump);
    CHECK_STR(hand_start(pump), "due");
    hand_close(&hand);
}

/* It was admitted while nothing of its priority waited, and is in memory when a part of what comes before it is
 * read. */
TEST(a_due_task_in_memory_waits_for_the_rest_of_a_line_of_its_priority)
{
    enum { OTHERS = 400 };
    struct hand hand;
    char key[32];
    if (!hand_open(&hand, NULL))
        return;
    hand.now_ms += 2 * 3600000; /* ids come earlier than what is due */
    struct hand_pump *pump = hand_pump(&hand, NULL);
    hand_own(pump);
    hand_key(3, 0, key);
    kl_put due = {.key = kl_str(key), .payload = kl_str("second"), .priority = -2, .delay_ms = 1};
    CHECK_INT(kl_queue_put(hand.queue, &due, 1, (kl_bytes){0}, NULL), KL_OK);
    hand_looks(pump);
    CHECK_INT(kl__pump_ready(pump->pump), 1);
    for (int i = 1; i <= OTHERS; i++) {
        char other[32];
        hand_key(3, i, other);
        hand_put(&hand, other, "other", -2);
    }
    hand_put(&hand, key, "first", -2);
    const char *payload = "other";
    for (int i = 0; i < 10 * OTHERS && (strcmp(payload, "other") == 0 || !*payload); i++) {
        uint64_t ready;
        hand.now_ms += 25;
        CHECK_INT(kl__pump_look(pump->pump, &ready), KL_OK);
        hand_beats(pump, 1, 1);
        payload = hand_start(pump);
        if (*payload)
            hand_end(pump, hand_running(pump, 0), KL_DONE);
        hand_settle(pump);
    }
    CHECK_STR(payload, "first");
    hand_close(&hand);
}

/* --- Guilt --- */

/* Runs what there is until the guilty one is started, and then stands still; true: that was not started. */
static bool work_until_poisoned(struct hand_pump *pump)
{
    for (;;) {
        const char *payload = hand_start(pump);
        if (strcmp(payload, "poison") == 0)
            return false;
        if (payload[0])
            continue; /* others run beside it */
        if (pump->running_count == 0)
            return true;
        hand_end(pump, hand_running(pump, 0), KL_DONE);
        hand_settle(pump);
    }
}

TEST(a_task_that_ends_its_worker_takes_none_of_those_beside_it_to_the_dead_letters)
{
    enum { INNOCENT = 5, ATTEMPTS = 3, WORKERS_MAX = 12 };
    struct hand hand;
    kl_queue_opts opts = {.size = sizeof opts, .lease_ms = LEASE_MS, .attempts_max = ATTEMPTS};
    if (!hand_open(&hand, &opts))
        return;
    for (int i = 0; i <= INNOCENT; i++) {
        char key[] = {(char)('a' + i), '\0'};
        hand_put(&hand, key, i == 0 ? "poison" : "innocent", i == 0 ? 1 : 0); /* last, so that all run when it starts */
    }
    uint64_t deaths = 0, done = 0, dead = 0;
    for (bool over = false; !over && deaths < WORKERS_MAX;) {
        struct hand_pump *pump = take_over(&hand);
        over = work_until_poisoned(pump);
        hand_settle(pump);
        done += kl__pump_counted(pump->pump).done;
        dead += kl__pump_counted(pump->pump).dead;
        deaths += !over;
    }
    CHECK_INT(done, INNOCENT);
    CHECK_INT(dead, 1);
    CHECK_INT(deaths, ATTEMPTS + 1);
    CHECK_INT(hand_waiting(&hand), 0);
    hand_close(&hand);
}

TEST(what_ran_beside_a_guilty_task_waits_no_longer_than_a_lease_for_one_that_takes_long)
{
    struct hand hand;
    if (!hand_open(&hand, &quick))
        return;
    hand_put(&hand, "a", "one", 0);
    hand_put(&hand, "b", "two", 0);
    for (int i = 0; i < 2; i++) { /* the second one writes its starts down */
        struct hand_pump *pump = take_over(&hand);
        CHECK(hand_start(pump)[0]);
        CHECK(hand_start(pump)[0]);
    }
    struct hand_pump *last = take_over(&hand);
    CHECK(hand_start(last)[0]);
    CHECK_STR(hand_start(last), "");
    CHECK_INT(kl__pump_next_due(last->pump), hand_running(last, 0)->started_ms + LEASE_MS);
    hand_beats(last, LEASE_MS / HAND_STEP_MS + 1, HAND_STEP_MS);
    CHECK(hand_start(last)[0]);
    CHECK_INT(last->running_count, 2);
    hand_close(&hand);
}

/* --- Ended without a run --- */

TEST(a_task_that_was_cancelled_when_it_was_taken_ends_so_though_it_is_not_run)
{
    struct hand hand;
    kl__held *held;
    if (!hand_open(&hand, NULL))
        return;
    hand_put(&hand, "k", "one", 0);
    struct hand_pump *pump = hand_pump(&hand, NULL);
    hand_own(pump);
    CHECK_INT(kl__pump_take(pump->pump, &held, 1), 1);
    atomic_store(&held->cancel, true); /* as a request says: it runs, and is cancelled */
    kl__pump_untake(pump->pump, held);
    hand_settle(pump);
    CHECK_INT(kl__pump_counted(pump->pump).cancelled, 1);
    CHECK_INT(hand_waiting(&hand), 0);
    hand_close(&hand);
}

struct skipper {
    kl_queue *queue;
    kl_rc rc;
    kl_task_id id;
    atomic_bool over;
};

static void *skip(void *ctx)
{
    struct skipper *skipper = ctx;
    skipper->rc = kl_key_skip(skipper->queue, kl_str("k"), NULL, &skipper->id);
    atomic_store(&skipper->over, true);
    return NULL;
}

/* Skips the first task of "k", which the pump is to carry out. */
static struct skipper skip_by(struct hand_pump *pump)
{
    struct skipper skipper = {.queue = pump->hand->queue};
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, skip, &skipper) == 0);
    while (!atomic_load(&skipper.over)) {
        struct timespec pause = {.tv_nsec = 1000000};
        pump->hand->now_ms += HAND_STEP_MS;
        (void)kl__pump_beat(pump->pump);
        nanosleep(&pause, NULL); /* between two looks */
    }
    pthread_join(thread, NULL);
    return skipper;
}

TEST(a_skip_passes_over_a_task_that_has_ended_and_is_not_settled_yet)
{
    struct hand hand;
    if (!hand_open(&hand, NULL))
        return;
    hand_put(&hand, "k", "one", 0);
    struct hand_pump *pump = hand_pump(&hand, NULL);
    hand_own(pump);
    CHECK_STR(hand_start(pump), "one");
    hand_end(pump, hand_running(pump, 0), KL_DONE);
    kl_task_id second = hand_put(&hand, "k", "two", 0);
    struct skipper skipper = skip_by(pump);
    CHECK_INT(skipper.rc, KL_OK);
    CHECK(kl_id_compare(&skipper.id, &second) == 0);
    CHECK_INT(hand_waiting(&hand), 0);
    hand_close(&hand);
}

/* A store that refuses answers for some time. */
struct mute {
    struct lossy lossy; /* first: the engine's self */
    int refusals;       /* left */
};

static kl_rc put_records(void *self, kl_write *writes, size_t count)
{
    struct mute *mute = self;
    bool is_answer = memmem(writes->value.data, writes->value.len, "answered", 8) != NULL;
    if (is_answer && mute->refusals > 0) {
        mute->refusals--;
        return kl__fail(KL_ESYSTEM, "it could not be written");
    }
    return kl_store_put(mute->lossy.inner, writes, count);
}

TEST(a_skip_whose_answer_could_not_be_written_skips_no_second_task)
{
    struct hand hand;
    struct mute mute = {.refusals = 3};
    if (!hand_open(&hand, NULL))
        return;
    CHECK_INT(lossy_open(&mute.lossy, hand.memory, 1, &hand.store), KL_OK);
    mute.lossy.replies_lost = mute.lossy.requests_lost = 0;
    mute.lossy.engine.put = put_records;
    kl_task_id first = hand_put(&hand, "k", "one", 0);
    for (int i = 0; i < 5; i++)
        hand_put(&hand, "k", "more", 0);
    struct hand_pump *pump = hand_pump(&hand, NULL);
    hand_own(pump);
    struct skipper skipper = skip_by(pump);
    CHECK_INT(skipper.rc, KL_OK);
    CHECK_INT(mute.refusals, 0);
    CHECK(kl_id_compare(&skipper.id, &first) == 0);
    CHECK_INT(hand_waiting(&hand), 5);
    kl_store *store = hand.store;
    hand_close(&hand);
    kl_store_close(store);
}

TEST(a_halted_task_that_is_skipped_keeps_the_number_of_attempts_that_were_made)
{
    struct hand hand;
    kl_arena arena = {0};
    kl_found found = {0};
    kl_queue_opts opts = {.size = sizeof opts, .head_policy = KL_HEAD_HALT, .attempts_max = 7, .keep_done_ms = 3600000};
    if (!hand_open(&hand, &opts))
        return;
    kl_task_id id = hand_put(&hand, "k", "one", 0);
    struct hand_pump *pump = hand_pump(&hand, NULL);
    hand_own(pump);
    CHECK_STR(hand_start(pump), "one");
    hand_end(pump, hand_running(pump, 0), KL_DEAD);
    hand_settle(pump);
    CHECK_INT(skip_by(pump).rc, KL_OK);
    CHECK_INT(kl_queue_task(hand.queue, &id, &arena, &found), KL_OK);
    CHECK_INT(found.task.state, KL_TASK_CANCELLED);
    CHECK_INT(found.task.attempts, 1);
    kl_arena_free(&arena);
    hand_close(&hand);
}

/* Each owner vanishes. The second runs it until it has no more attempts, and the third does not know how it ended. */
TEST(a_task_that_ended_its_last_worker_halts_its_key_once_and_its_error_says_so)
{
    struct hand hand;
    kl_arena arena = {0};
    kl_found found = {0};
    kl_queue_opts opts = {.size = sizeof opts, .lease_ms = LEASE_MS, .head_policy = KL_HEAD_HALT, .attempts_max = 1};
    if (!hand_open(&hand, &opts))
        return;
    kl_task_id id = hand_put(&hand, "k", "poison", 0);
    hand_own(hand_pump(&hand, NULL));
    CHECK_STR(hand_start(take_over(&hand)), "poison");
    for (int i = 0; i < 3; i++) {
        struct hand_pump *pump = take_over(&hand);
        CHECK_STR(hand_start(pump), "");
        hand_settle(pump);
        CHECK_INT(kl__pump_counted(pump->pump).halted, i == 0);
        hand_looks(pump);
        CHECK_STR(hand_start(pump), "");
    }
    opts = (kl_queue_opts){.size = sizeof opts, .head_policy = KL_HEAD_CONTINUE};
    CHECK_INT(kl_queue_alter(hand.queue, &opts), KL_OK);
    struct hand_pump *last = take_over(&hand);
    CHECK_STR(hand_start(last), "");
    hand_settle(last);
    CHECK_INT(kl_queue_task(hand.queue, &id, &arena, &found), KL_OK);
    CHECK_INT(found.task.state, KL_TASK_DEAD);
    CHECK_INT(found.task.attempts, 1);
    static const char error[] = "its attempts are used up; the last ended its worker";
    CHECK(found.task.error.len == sizeof error - 1 && memcmp(found.task.error.data, error, sizeof error - 1) == 0);
    kl_arena_free(&arena);
    hand_close(&hand);
}

/* It halted its key and said why; its owner vanishes, and so do those after it. */
TEST(the_error_that_halted_a_key_outlives_owners_that_vanish)
{
    struct hand hand;
    kl_arena arena = {0};
    kl_found found = {0};
    kl_queue_opts opts = {
        .size = sizeof opts, .lease_ms = LEASE_MS, .head_policy = KL_HEAD_HALT, .keep_done_ms = 3600000};
    if (!hand_open(&hand, &opts))
        return;
    kl_task_id id = hand_put(&hand, "k", "one", 0);
    struct hand_pump *pump = hand_pump(&hand, NULL);
    hand_own(pump);
    CHECK_STR(hand_start(pump), "one");
    kl__held *held = hand_running(pump, 0);
    pump->running_count--;
    kl__pump_finish(pump->pump, held, &(kl__verdict){.outcome = KL_DEAD, .error = kl_str("said")});
    hand_settle(pump);
    for (int i = 0; i < 2; i++) {
        pump = take_over(&hand);
        CHECK_STR(hand_start(pump), "");
        hand_settle(pump);
        CHECK_INT(kl__pump_counted(pump->pump).halted, 0);
    }
    CHECK_INT(skip_by(pump).rc, KL_OK);
    CHECK_INT(kl_queue_task(hand.queue, &id, &arena, &found), KL_OK);
    CHECK_INT(found.task.state, KL_TASK_CANCELLED);
    CHECK(found.task.error.len == 4 && memcmp(found.task.error.data, "said", 4) == 0);
    kl_arena_free(&arena);
    hand_close(&hand);
}

/* --- Without memory --- */

/* With the n-th allocation of the looks refused; false: it was never reached. */
static bool look_short_of_memory(uint64_t n)
{
    struct hand hand;
    if (!hand_open(&hand, NULL))
        return false;
    kl_put delayed = {.key = kl_str("k"), .payload = kl_str("delayed"), .delay_ms = 1};
    CHECK_INT(kl_queue_put(hand.queue, &delayed, 1, (kl_bytes){0}, NULL), KL_OK);
    hand.now_ms += LEASE_MS;
    hand_put(&hand, "k", "behind", 0);
    struct hand_pump *pump = hand_pump(&hand, NULL);
    hand_beats(pump, 4, HAND_STEP_MS);
    kl__alloc_fail_at(n);
    for (int i = 0; i < 3; i++) {
        uint64_t ready;
        kl_rc rc = kl__pump_look(pump->pump, &ready);
        CHECK(rc == KL_OK || rc == KL_ENOMEM);
    }
    uint64_t made = kl__alloc_fail_at(0);
    hand_looks(pump);
    CHECK_STR(hand_start(pump), "delayed");
    hand_close(&hand);
    return made >= n;
}

TEST(a_task_that_was_due_first_starts_first_whatever_memory_there_is)
{
    uint64_t n = 1;
    while (look_short_of_memory(n) && !test_failed())
        n++;
    CHECK(n > 3);
}
