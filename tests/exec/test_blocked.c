/* test_blocked.c - what keys that cannot run may take up of a shard, so that the others go on. */
#include "base/random.h"
#include "exec/submit.h"
#include "exec/support.h"

enum { CAPACITY = 64, EIGHTH = CAPACITY / 8, QUARTER = CAPACITY / 4, HALF = CAPACITY / 2 };

/* Submits to the key until it is refused. Returns how many were taken. */
static int submit_until_refused(kl_exec *exec, const char *key, const kl_exec_task_opts *opts)
{
    int taken = 0;
    kl_rc rc;
    while ((rc = kl_exec_submit(exec, kl_str(key), nothing, NULL, opts, NULL)) == KL_OK)
        taken++;
    CHECK_INT(rc, KL_EFULL);
    return taken;
}

static kl_exec *open_small(void)
{
    return open_frozen(OPTS(.shard_capacity = CAPACITY, .attempts_max = 3, .backoff_base_ms = 50));
}

/* A key whose first task has failed and waits for its retry, which time alone brings. */
static void block_by_failing(kl_exec *exec, const char *key, struct script *script)
{
    await_state(exec, submit_script(exec, key, script, NULL), KL_EXEC_RETRYING);
}

TEST(one_failing_key_of_a_hundred_does_not_stop_a_producer_that_submits_to_all_of_them)
{
    enum { KEYS = 100, ROUNDS = 200 };
    struct tally tally = TALLY;
    struct script failing = {.name = "x", .plan = "r"};
    int refused = 0;
    kl_exec *exec = open_frozen(OPTS(.shard_capacity = 128, .submit_timeout_ms = PATIENCE_MS));
    REQUIRE(exec != NULL);
    for (int round = 0; round < ROUNDS && !test_failed(); round++) {
        for (int i = 1; i < KEYS; i++) {
            char key[16];
            snprintf(key, sizeof key, "good-%d", i);
            submit(exec, key, add_one, &tally, NULL);
        }
        refused += kl_exec_submit(exec, kl_str("bad"), play, &failing, NULL, NULL) != KL_OK;
    }
    tally_await(&tally, (KEYS - 1) * ROUNDS);
    CHECK_INT(refused, ROUNDS - 16); /* at once: with the patience above, this test would not end */
    CHECK_INT(info_of(exec, "bad").tasks, 16);
    kl_exec_close(exec);
}

TEST(a_paused_key_is_refused_beyond_an_eighth_of_the_shard_and_the_sentence_says_why)
{
    struct tally tally = TALLY;
    kl_exec *exec = open_small();
    REQUIRE(exec != NULL);
    CHECK_INT(kl_exec_key_pause(exec, kl_str("pau\nsed")), KL_OK);
    CHECK_INT(submit_until_refused(exec, "pau\nsed", NULL), EIGHTH);
    CHECK_CONTAINS(kl_error_text(), "key 'pau\\x0ased' is blocked");
    CHECK_CONTAINS(kl_error_text(), "a quarter of 64 places");
    kl_exec_full full = kl_exec_last_full();
    CHECK(full.blocked && full.shard == 0 && full.capacity == CAPACITY && full.length < CAPACITY);
    for (int i = 0; i < 10 * CAPACITY; i++)
        submit(exec, "other", add_one, &tally, TASK(.submit_timeout_ms = PATIENCE_MS));
    tally_await(&tally, 10 * CAPACITY);
    CHECK_INT(kl_exec_key_resume(exec, kl_str("pau\nsed")), KL_OK);
    AWAIT(tasks_live(exec) == 0);
    for (int i = 0; i < 10 * CAPACITY; i++)
        submit(exec, "pau\nsed", add_one, &tally, TASK(.submit_timeout_ms = PATIENCE_MS));
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    kl_exec_close(exec);
}

TEST(delayed_tasks_of_a_paused_key_count_for_its_share)
{
    kl_exec *exec = open_small();
    REQUIRE(exec != NULL);
    CHECK_INT(kl_exec_key_pause(exec, kl_str("k")), KL_OK);
    submit(exec, "k", nothing, NULL, NULL);
    for (int i = 2; i < EIGHTH; i++)
        submit(exec, "k", nothing, NULL, TASK(.delay_ms = 100000));
    CHECK_INT(submit_until_refused(exec, "k", NULL), 1);
    CHECK_INT(kl_exec_key_resume(exec, kl_str("k")), KL_OK);
    kl_exec_close(exec);
}

TEST(each_further_blocked_key_finds_room_in_the_quarter_that_they_share)
{
    kl_exec *exec = open_small();
    REQUIRE(exec != NULL);
    CHECK_INT(kl_exec_key_pause(exec, kl_str("a")), KL_OK);
    CHECK_INT(kl_exec_key_pause(exec, kl_str("b")), KL_OK);
    CHECK_INT(kl_exec_key_pause(exec, kl_str("c")), KL_OK);
    CHECK_INT(submit_until_refused(exec, "a", NULL), EIGHTH);
    CHECK_INT(submit_until_refused(exec, "b", NULL), EIGHTH / 2);
    CHECK_INT(submit_until_refused(exec, "c", NULL), EIGHTH / 4);
    CHECK_INT(submit_until_refused(exec, "a", NULL), 0);
    CHECK_INT(kl_exec_key_drain(exec, kl_str("a"), NULL), KL_OK);
    CHECK(submit_until_refused(exec, "b", NULL) > 0);
    kl_exec_close(exec);
}

TEST(the_example_that_exec_h_works_out_is_right)
{
    static const char *const keys[] = {"a", "b", "c"};
    static const int taken[] = {16, 8, 4};
    kl_exec *exec = open_frozen(OPTS(.shards = 1, .shard_capacity = 128, .submit_timeout_ms = KL_NO_WAIT));
    REQUIRE(exec != NULL);
    for (size_t i = 0; i < COUNT(keys); i++) {
        CHECK_INT(kl_exec_key_pause(exec, kl_str(keys[i])), KL_OK);
        CHECK_INT(submit_until_refused(exec, keys[i], NULL), taken[i]);
    }
    CHECK_INT(kl_exec_last_full().length, 0); /* places: those 28 take none */
    for (size_t i = 0; i < COUNT(keys); i++)
        CHECK_INT(kl_exec_key_drain(exec, kl_str(keys[i]), NULL), KL_OK);
    CHECK_INT(submit_until_refused(exec, "", TASK(.delay_ms = 50)), 64);
    kl_exec_close(exec);
}

TEST(a_key_that_keeps_failing_is_bounded_also_while_it_runs_until_a_task_of_it_is_done)
{
    struct gate gate = GATE;
    struct script dead = {.name = "x", .plan = "rx"}, slow = {.name = "y", .plan = "d", .gate = &gate};
    kl_exec *exec = open_small();
    REQUIRE(exec != NULL);
    block_by_failing(exec, "k", &dead);
    submit_script(exec, "k", &slow, NULL);
    CHECK_INT(submit_until_refused(exec, "k", NULL), EIGHTH - 2);
    pass_ms(exec, 50);
    gate_await(&gate, 1); /* the first is dead, the second runs */
    CHECK_INT(submit_until_refused(exec, "k", NULL), 1);
    CHECK_CONTAINS(kl_error_text(), "has failed");
    gate_open(&gate);
    AWAIT(tasks_live(exec) == 0);
    CHECK_INT(info_of(exec, "k").state, KL_KEY_IDLE);
    CHECK(!kl__lane_has_signs(exec->shards[0].signs, (uint32_t)kl__hash_local(kl_str("k"))));
    kl_exec_close(exec);
}

TEST(delayed_tasks_take_up_no_more_than_half_of_a_shard)
{
    struct tally tally = TALLY;
    kl_exec *exec = open_small();
    REQUIRE(exec != NULL);
    for (int i = 0; i < HALF; i++) {
        char key[16];
        snprintf(key, sizeof key, "later-%d", i);
        submit(exec, key, add_one, &tally, TASK(.delay_ms = 50));
    }
    CHECK_INT(submit_until_refused(exec, "one more", TASK(.delay_ms = 50)), 0);
    for (int i = 0; i < 2; i++) { /* the second time for the same reason */
        CHECK_CONTAINS(kl_error_text(), "all that they may of shard 0, half of its 64 places");
        CHECK_INT(submit_until_refused(exec, "one more", TASK(.delay_ms = 50)), 0);
    }
    CHECK_INT(kl_exec_submit(exec, (kl_bytes){NULL, 0}, add_one, &tally, TASK(.delay_ms = 50), NULL), KL_EFULL);
    for (int i = 0; i < 10 * CAPACITY; i++)
        submit(exec, "later-1", add_one, &tally,
               TASK(.submit_timeout_ms = PATIENCE_MS)); /* and its key is not blocked */
    tally_await(&tally, 10 * CAPACITY);
    pass_ms(exec, 50);
    tally_await(&tally, 10 * CAPACITY + HALF);
    kl_exec_close(exec);
}

TEST(a_key_that_has_filled_its_shard_before_it_fails_leaves_a_quarter_to_others)
{
    struct gate gate = GATE;
    struct script script = {.name = "x", .plan = "r", .gate = &gate};
    struct tally tally = TALLY;
    kl_exec *exec = open_small();
    REQUIRE(exec != NULL);
    submit_script(exec, "bad", &script, NULL);
    gate_await(&gate, 1);
    for (int i = 1; i < CAPACITY; i++)
        submit(exec, "bad", nothing, NULL, NULL);
    CHECK_INT(kl_exec_submit(exec, kl_str("good"), add_one, &tally, TASK(.submit_timeout_ms = KL_NO_WAIT), NULL),
              KL_EFULL);
    CHECK(!kl_exec_last_full().blocked);
    gate_open(&gate);
    for (int i = 0; i < 10 * CAPACITY; i++)
        submit(exec, "good", add_one, &tally, TASK(.submit_timeout_ms = PATIENCE_MS));
    tally_await(&tally, 10 * CAPACITY);
    CHECK_INT(submit_until_refused(exec, "bad", NULL), 0);
    CHECK_INT(info_of(exec, "bad").tasks, CAPACITY);
    kl_exec_close(exec);
}

TEST(tasks_without_a_key_that_wait_for_a_retry_are_lent_places_too)
{
    struct gate gate = GATE;
    struct script failing = {.name = "x", .plan = "r"};
    kl_exec *exec = open_small();
    REQUIRE(exec != NULL);
    for (int i = 0; i < QUARTER; i++)
        await_state(exec, submit_script(exec, "", &failing, NULL), KL_EXEC_RETRYING);
    CHECK_INT(places_taken(exec), 0);
    CHECK_INT(tasks_live(exec), QUARTER);
    for (int i = 0; i < CAPACITY; i++)
        submit(exec, "k", hold, &gate, NULL);
    gate_open(&gate);
    kl_exec_close(exec);
}

/* What a batch has of a key that is blocked: tasks that are taken are its first, and the others are not held up. */
TEST(a_batch_goes_on_past_a_key_that_is_refused)
{
    enum { TASKS = 200 };
    kl_exec_task tasks[TASKS];
    kl_exec_id ids[TASKS];
    size_t taken;
    struct tally tally = TALLY;
    kl_exec *exec = open_frozen(OPTS(.shard_capacity = 1024));
    REQUIRE(exec != NULL);
    CHECK_INT(kl_exec_key_pause(exec, kl_str("paused")), KL_OK);
    for (int i = 0; i < 100; i++)
        submit(exec, "paused", nothing, NULL, NULL);
    for (int i = 0; i < TASKS; i++)
        tasks[i] = (kl_exec_task){kl_str(i % 3 ? "good" : "paused"), add_one, &tally, NULL};
    CHECK_INT(kl_exec_submit_batch(exec, tasks, TASKS, ids, &taken), KL_EFULL);
    CHECK(kl_exec_last_full().blocked);
    for (int i = 0; i < TASKS; i++)
        CHECK_INT(ids[i] != 0, i % 3 != 0 || i / 3 < 28); /* 128 is an eighth */
    CHECK_INT(taken, 133 + 28);
    tally_await(&tally, 133);
    kl_exec_close(exec);
}

static void submit_for_ever(void *exec)
{
    kl_rc rc = kl_exec_submit(exec, kl_str("k"), note, "late", TASK(.submit_timeout_ms = KL_FOREVER), NULL);
    journal_add("%s", kl_rc_name(rc));
}

struct burst {
    kl_exec *exec;
    kl_rc rc;
    size_t taken;
};

static void submit_burst(void *ctx)
{
    enum { BURST = 4 * CAPACITY };
    struct burst *burst = ctx;
    kl_exec_task batch[BURST];
    for (int i = 0; i < BURST; i++)
        batch[i] = (kl_exec_task){kl_str("bad"), nothing, NULL, NULL};
    burst->rc = kl_exec_submit_batch(burst->exec, batch, BURST, NULL, &burst->taken);
}

TEST(a_batch_that_waits_for_room_takes_no_more_of_it_for_a_key_that_has_failed_meanwhile)
{
    struct gate gate = GATE;
    struct tally tally = TALLY;
    struct helper helper;
    struct script failing = {.name = "x", .plan = "r", .gate = &gate};
    kl_exec *exec =
        open_frozen(OPTS(.shard_capacity = CAPACITY, .backoff_base_ms = 50, .submit_timeout_ms = PATIENCE_MS));
    struct burst burst = {.exec = exec};
    REQUIRE(exec != NULL);
    submit_script(exec, "bad", &failing, NULL);
    gate_await(&gate, 1);
    helper_start(&helper, submit_burst, &burst);
    AWAIT(places_taken(exec) == CAPACITY);
    gate_open(&gate);
    helper_join(&helper);
    CHECK_INT(burst.rc, KL_EFULL);
    CHECK(burst.taken <= CAPACITY);
    for (int i = 0; i < 10 * CAPACITY; i++)
        submit(exec, "good", add_one, &tally, NULL);
    tally_await(&tally, 10 * CAPACITY);
    kl_exec_close(exec);
}

enum { BATCH_KEYS = 6, BATCHES = 500, BATCH_SIZE = 160 };

static const char *const batch_keys[BATCH_KEYS] = {"a", "b", "c", "d", "e", "f"};
static _Atomic(int) batchers;

static kl_outcome fail_now_and_then(kl_run *run, void *ctx)
{
    (void)ctx;
    kl_run_retry_after(run, 0);
    return kl_run_id(run) % 3 == 0 && kl_run_attempt(run) < 3 ? KL_RETRY : KL_DONE;
}

/* What was taken of each key must be its first tasks. Of every other batch the first part has options, the rest has
 * none. */
static void submit_batches(void *exec)
{
    static const kl_exec_task_opts options = {.size = sizeof options, .attempts_max = 5};
    uint64_t random = test_seed();
    for (int i = 0; i < BATCHES; i++) {
        kl_exec_task batch[BATCH_SIZE];
        kl_exec_id ids[BATCH_SIZE];
        size_t keys[BATCH_SIZE], taken;
        bool is_over[BATCH_KEYS] = {false};
        for (size_t j = 0; j < BATCH_SIZE; j++) {
            keys[j] = kl__random_below(&random, BATCH_KEYS);
            bool is_plain = i % 2 || j >= BATCH_SIZE / 2;
            batch[j] = (kl_exec_task){kl_str(batch_keys[keys[j]]), fail_now_and_then, NULL, is_plain ? NULL : &options};
        }
        kl_rc rc = kl_exec_submit_batch(exec, batch, BATCH_SIZE, ids, &taken);
        CHECK(rc == KL_OK || rc == KL_EFULL);
        for (size_t j = 0; j < BATCH_SIZE; j++) {
            CHECK(!ids[j] || !is_over[keys[j]]);
            is_over[keys[j]] |= !ids[j];
        }
    }
    atomic_fetch_sub(&batchers, 1);
}

TEST(of_each_key_of_a_batch_the_first_tasks_are_taken_whenever_keys_fail)
{
    struct helper helpers[2];
    for (int capacity = 2; capacity <= 32; capacity *= 2) {
        kl_exec *exec = open_exec(OPTS(.shards = 2, .threads = 2, .shard_capacity = capacity, .submit_timeout_ms = 1));
        REQUIRE(exec != NULL);
        atomic_store(&batchers, 2);
        for (int i = 0; i < 2; i++)
            helper_start(&helpers[i], submit_batches, exec);
        for (int i = 0; atomic_load(&batchers) > 0; i++) {
            kl_bytes key = kl_str(batch_keys[i % BATCH_KEYS]);
            CHECK_INT(kl_exec_key_pause(exec, key), KL_OK);
            CHECK_INT(kl_exec_key_resume(exec, key), KL_OK);
        }
        for (int i = 0; i < 2; i++)
            helper_join(&helpers[i]);
        kl_exec_close(exec);
    }
}

TEST(who_waits_for_ever_waits_for_a_blocked_key_until_it_runs_or_the_executor_stops)
{
    struct helper helper;
    kl_exec *exec = open_small();
    REQUIRE(exec != NULL);
    CHECK_INT(kl_exec_key_pause(exec, kl_str("k")), KL_OK);
    CHECK_INT(submit_until_refused(exec, "k", NULL), EIGHTH);
    helper_start(&helper, submit_for_ever, exec);
    CHECK_INT(kl_exec_key_resume(exec, kl_str("k")), KL_OK);
    helper_join(&helper);
    journal_await(2);
    CHECK_CONTAINS(journal_text(), "KL_OK");
    CHECK_INT(kl_exec_key_pause(exec, kl_str("k")), KL_OK);
    AWAIT(tasks_live(exec) == 0);
    CHECK_INT(submit_until_refused(exec, "k", NULL), EIGHTH);
    helper_start(&helper, submit_for_ever, exec);
    CHECK_INT(kl_exec_abort(exec), KL_OK);
    helper_join(&helper);
    CHECK_CONTAINS(journal_text(), "KL_ECLOSED");
    kl_exec_close(exec);
}

static void submit_in_time(void *exec)
{
    kl_rc rc = kl_exec_submit(exec, kl_str("k"), note, "in time", TASK(.submit_timeout_ms = PATIENCE_MS), NULL);
    journal_add("%s", kl_rc_name(rc));
}

TEST(a_task_that_says_how_long_to_wait_waits_for_a_blocked_key_too)
{
    struct helper helper;
    kl_exec *exec = open_small();
    REQUIRE(exec != NULL);
    CHECK_INT(kl_exec_key_pause(exec, kl_str("k")), KL_OK);
    CHECK_INT(submit_until_refused(exec, "k", NULL), EIGHTH);
    CHECK_INT(submit_until_refused(exec, "k", TASK(.submit_timeout_ms = 5)), 0);
    CHECK(kl_exec_last_full().blocked);
    helper_start(&helper, submit_in_time, exec);
    CHECK_INT(kl_exec_key_resume(exec, kl_str("k")), KL_OK);
    helper_join(&helper);
    journal_await(2);
    CHECK_CONTAINS(journal_text(), "KL_OK");
    CHECK_CONTAINS(journal_text(), "in time");
    kl_exec_close(exec);
}

TEST(who_is_refused_again_waits_for_nobody_until_the_shard_is_relieved_of_something)
{
    struct script failing = {.name = "x", .plan = "r"};
    kl_exec *exec = open_small();
    REQUIRE(exec != NULL);
    block_by_failing(exec, "a", &failing);
    CHECK_INT(kl_exec_key_pause(exec, kl_str("b")), KL_OK);
    submit(exec, "b", nothing, NULL, NULL);
    submit(exec, "b", nothing, NULL, NULL);
    CHECK(submit_until_refused(exec, "a", NULL) > 0);
    pthread_mutex_lock(&exec->shards[0].mutex); /* as a thread that settles has it */
    CHECK_INT(submit_until_refused(exec, "a", NULL), 0);
    CHECK_INT(submit_until_refused(exec, "a", TASK(.delay_ms = 50)), 0);
    pthread_mutex_unlock(&exec->shards[0].mutex);
    CHECK_CONTAINS(kl_error_text(), "key 'a' is blocked");
    CHECK_INT(kl__shard_full_count(&exec->shards[0]), 3);
    CHECK_INT(kl_exec_key_drain(exec, kl_str("b"), NULL), KL_OK);
    CHECK_INT(submit_until_refused(exec, "a", NULL), 1);
    kl_exec_close(exec);
}

TEST(who_is_admitted_again_waits_for_nobody_until_another_key_is_blocked)
{
    struct gate gate = GATE;
    struct script failing = {.name = "x", .plan = "r", .gate = &gate};
    kl_exec *exec = open_small();
    REQUIRE(exec != NULL);
    kl_exec_id id = submit_script(exec, "b", &failing, NULL);
    gate_await(&gate, 1);
    for (int i = 1; i < EIGHTH; i++)
        submit(exec, "b", nothing, NULL, NULL);
    CHECK_INT(kl_exec_key_pause(exec, kl_str("a")), KL_OK);
    submit(exec, "a", nothing, NULL, NULL);
    pthread_mutex_lock(&exec->shards[0].mutex); /* as a thread that settles has it */
    submit(exec, "a", nothing, NULL, NULL);
    submit(exec, "a", nothing, NULL, NULL);
    pthread_mutex_unlock(&exec->shards[0].mutex);
    gate_open(&gate);
    await_state(exec, id, KL_EXEC_RETRYING);
    CHECK_INT(submit_until_refused(exec, "a", NULL), 1); /* its 4 and the 12 of both make a quarter */
    kl_exec_close(exec);
}

TEST(a_batch_with_a_key_that_is_refused_again_waits_for_nobody_either)
{
    struct script failing = {.name = "x", .plan = "r"};
    kl_exec_id ids[4];
    size_t taken;
    kl_exec *exec = open_small();
    REQUIRE(exec != NULL);
    block_by_failing(exec, "a", &failing);
    CHECK(submit_until_refused(exec, "a", NULL) > 0);
    kl_exec_task tasks[] = {{kl_str("a"), note, "a1", NULL},
                            {kl_str("b"), note, "b1", NULL},
                            {kl_str("a"), note, "a2", NULL},
                            {kl_str("b"), note, "b2", NULL}};
    pthread_mutex_lock(&exec->shards[0].mutex);
    CHECK_INT(kl_exec_submit_batch(exec, tasks, COUNT(tasks), ids, &taken), KL_EFULL);
    pthread_mutex_unlock(&exec->shards[0].mutex);
    CHECK_CONTAINS(kl_error_text(), "key 'a' is blocked");
    CHECK(kl_exec_last_full().blocked && taken == 2);
    CHECK(!ids[0] && ids[1] && !ids[2] && ids[3]);
    CHECK_INT(kl__shard_full_count(&exec->shards[0]), 2); /* once for all that the batch had of the key */
    journal_await(3);
    CHECK_STR(journal_text(), "x b1 b2");
    kl_exec_close(exec);
}

TEST(many_keys_that_were_refused_do_not_make_each_other_forgotten)
{
    enum { KEYS = 24 };
    kl_exec *exec = open_frozen(OPTS(.shards = 1, .shard_capacity = 128, .submit_timeout_ms = KL_NO_WAIT));
    REQUIRE(exec != NULL);
    char keys[KEYS][16];
    for (int i = 0; i < KEYS; i++) {
        snprintf(keys[i], sizeof keys[i], "paused-%d", i);
        CHECK_INT(kl_exec_key_pause(exec, kl_str(keys[i])), KL_OK);
    }
    for (int pass = 0; pass < 2; pass++) /* what one leaves, the first could take */
        for (int i = 0; i < KEYS; i++)
            submit_until_refused(exec, keys[i], NULL);
    pthread_mutex_lock(&exec->shards[0].mutex);
    for (int i = 0; i < KEYS; i++)
        CHECK_INT(submit_until_refused(exec, keys[i], NULL), 0);
    pthread_mutex_unlock(&exec->shards[0].mutex);
    kl_exec_close(exec);
}

/* Each way in which a key of two tasks may be relieved of them makes room for one more of another. */
static void cancel_both(kl_exec *exec, const kl_exec_id *ids)
{
    CHECK_INT(kl_exec_cancel(exec, ids[0]), KL_OK);
    CHECK_INT(kl_exec_cancel(exec, ids[1]), KL_OK);
}

static void skip_both(kl_exec *exec, const kl_exec_id *ids)
{
    (void)ids;
    CHECK_INT(kl_exec_key_skip(exec, kl_str("b")), KL_OK);
    CHECK_INT(kl_exec_key_skip(exec, kl_str("b")), KL_OK);
}

static void resume_both(kl_exec *exec, const kl_exec_id *ids)
{
    (void)ids;
    CHECK_INT(kl_exec_key_resume(exec, kl_str("b")), KL_OK);
    AWAIT(info_of(exec, "b").state == KL_KEY_IDLE);
}

static void expire_both(kl_exec *exec, const kl_exec_id *ids)
{
    (void)ids;
    pass_ms(exec, 20);
    AWAIT(info_of(exec, "b").tasks == 0);
}

TEST(a_refusal_ends_when_another_key_is_relieved_in_whatever_way)
{
    static void (*const ways[])(kl_exec *, const kl_exec_id *) = {cancel_both, skip_both, resume_both, expire_both};
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        struct script failing = {.name = "x", .plan = "r"};
        kl_exec *exec = open_small();
        REQUIRE(exec != NULL);
        block_by_failing(exec, "a", &failing);
        CHECK_INT(kl_exec_key_pause(exec, kl_str("b")), KL_OK);
        kl_exec_id ids[2];
        for (int j = 0; j < 2; j++)
            ids[j] = submit(exec, "b", nothing, NULL, TASK(.deadline_ms = 20));
        CHECK(submit_until_refused(exec, "a", NULL) > 0);
        CHECK_INT(submit_until_refused(exec, "a", NULL), 0);
        ways[i](exec, ids);
        CHECK_INT(submit_until_refused(exec, "a", NULL), 1);
        kl_exec_close(exec);
    }
}

static void drain_for_ever(void *exec) { journal_add("%s", kl_rc_name(kl_exec_drain(exec, KL_FOREVER))); }

TEST(an_executor_that_has_been_stopped_says_so_also_to_a_blocked_key)
{
    struct helper helper;
    struct script failing = {.name = "x", .plan = "r"};
    kl_exec *exec = open_small();
    REQUIRE(exec != NULL);
    block_by_failing(exec, "k", &failing);
    CHECK_INT(submit_until_refused(exec, "k", NULL), EIGHTH - 1);
    helper_start(&helper, drain_for_ever, exec);
    AWAIT(kl_exec_submit(exec, kl_str("other"), nothing, NULL, NULL, NULL) == KL_ECLOSED);
    CHECK_INT(kl_exec_submit(exec, kl_str("k"), nothing, NULL, NULL, NULL), KL_ECLOSED);
    CHECK_INT(kl_exec_abort(exec), KL_OK);
    helper_join(&helper);
    CHECK_CONTAINS(journal_text(), "KL_ECLOSED");
    kl_exec_close(exec);
}

TEST(a_blocked_key_takes_nobodys_place_in_the_smallest_shards_either)
{
    for (int capacity = 1; capacity <= 3; capacity++) {
        struct tally tally = TALLY;
        kl_exec *exec = open_frozen(OPTS(.shard_capacity = capacity));
        REQUIRE(exec != NULL);
        CHECK_INT(kl_exec_key_pause(exec, kl_str("paused")), KL_OK);
        CHECK_INT(submit_until_refused(exec, "paused", NULL), 1);
        CHECK_INT(places_taken(exec), 0);
        for (int i = 0; i < 10; i++)
            submit(exec, "other", add_one, &tally, TASK(.submit_timeout_ms = PATIENCE_MS));
        tally_await(&tally, 10);
        kl_exec_close(exec);
    }
}

/* The n-th key of those that this shard has. */
static const char *key_of_shard(kl_exec *exec, const kl__shard *shard, int n)
{
    static char key[16];
    uint64_t hash;
    for (int i = 0;; i++) {
        snprintf(key, sizeof key, "key-%d", i);
        if (kl__exec_shard_of(exec, kl_str(key), &hash) == shard && n-- == 0)
            return key;
    }
}

TEST(a_delayed_task_without_a_key_goes_to_no_shard_that_has_its_half_of_such)
{
    struct gate gate = GATE;
    kl_exec *exec = open_frozen(OPTS(.shards = 2, .shard_capacity = 8, .submit_timeout_ms = KL_NO_WAIT));
    REQUIRE(exec != NULL);
    for (int i = 0; i < 8; i++)
        submit(exec, key_of_shard(exec, &exec->shards[0], 0), hold, &gate, NULL);
    for (int i = 0; i < 4; i++)
        submit(exec, key_of_shard(exec, &exec->shards[1], i), nothing, NULL, TASK(.delay_ms = 50));
    for (int i = 0; i < 2; i++) /* it looks at the shards in turn, and begins with each once */
        CHECK_INT(kl_exec_submit(exec, (kl_bytes){NULL, 0}, nothing, NULL, TASK(.delay_ms = 50), NULL), KL_EFULL);
    CHECK_INT(tasks_live(exec), 12);
    submit(exec, "", nothing, NULL, NULL);
    gate_open(&gate);
    kl_exec_close(exec);
}

TEST(tasks_that_are_due_do_not_count_as_not_due_while_every_thread_is_busy)
{
    struct gate gate = GATE;
    kl_exec *exec = open_frozen(OPTS(.threads = 1, .shard_capacity = CAPACITY, .submit_timeout_ms = KL_NO_WAIT));
    REQUIRE(exec != NULL);
    submit(exec, "busy", hold, &gate, NULL);
    gate_await(&gate, 1);
    for (int i = 0; i < HALF; i++) {
        char key[16];
        snprintf(key, sizeof key, "later-%d", i);
        submit(exec, key, nothing, NULL, TASK(.delay_ms = 50));
    }
    CHECK_INT(info_of(exec, "later-0").state, KL_KEY_DELAYED);
    pass_ms(exec, 1000);
    CHECK_INT(kl_exec_submit(exec, kl_str("new"), nothing, NULL, TASK(.delay_ms = 50), NULL), KL_OK);
    gate_open(&gate);
    kl_exec_close(exec);
}

TEST(a_key_of_which_a_task_is_done_is_not_blocked_although_the_next_in_hand_blocks)
{
    static struct gate dealer, block;
    static struct script script = {.name = "x", .plan = "rd"};
    dealer = (struct gate)GATE, block = (struct gate)GATE;
    kl_exec *exec = open_frozen(OPTS(.threads = 1, .shard_capacity = CAPACITY, .submit_timeout_ms = KL_NO_WAIT));
    REQUIRE(exec != NULL);
    for (int i = 0; i < 8; i++) {
        submit(exec, "", nothing, NULL, NULL);
        AWAIT(tasks_live(exec) == 0);
    }
    block_by_failing(exec, "k", &script);
    CHECK_INT(submit_until_refused(exec, "k", NULL), EIGHTH - 1);
    submit(exec, "dealer", hold, &dealer, NULL);
    gate_await(&dealer, 1);
    CHECK_INT(kl_exec_key_resume(exec, kl_str("k")), KL_OK); /* ready at once */
    submit(exec, "blocker", hold, &block, NULL);
    CHECK_INT(info_of(exec, "blocker").state, KL_KEY_READY); /* in the lanes, behind k */
    gate_open(&dealer);
    gate_await(&block, 1);
    CHECK_STR(journal_text(), "x x"); /* k's first is done */
    CHECK_INT(kl_exec_submit(exec, kl_str("k"), nothing, NULL, NULL, NULL), KL_OK);
    gate_open(&block);
    kl_exec_close(exec);
}

TEST(others_are_not_taken_one_by_one_while_a_task_with_a_priority_or_a_delay_waits_for_its_retry)
{
    struct script urgent = {.name = "u", .plan = "r"}, late = {.name = "l", .plan = "r"};
    kl_exec *exec = open_small();
    REQUIRE(exec != NULL);
    kl__shard *shard = &exec->shards[0];
    await_state(exec, submit_script(exec, "urgent", &urgent, TASK(.priority = -1)), KL_EXEC_RETRYING);
    kl_exec_id id = submit_script(exec, "late", &late, TASK(.delay_ms = 10));
    CHECK_INT(atomic_load(&shard->delayed), 1);
    pass_ms(exec, 20);
    await_state(exec, id, KL_EXEC_RETRYING);
    pthread_mutex_lock(&shard->mutex);
    CHECK(!kl__lanes_prioritized(shard->lanes));
    pthread_mutex_unlock(&shard->mutex);
    CHECK_INT(atomic_load(&shard->delayed), 0);
    kl_exec_close(exec);
}

TEST(a_task_without_a_key_needs_no_care_although_a_blocked_key_has_its_signs)
{
    kl_exec *exec = open_small();
    REQUIRE(exec != NULL);
    const kl__shard *shard = &exec->shards[0];
    for (int i = 0; i < 100000 && !kl__lane_has_signs(shard->signs, 0); i++) {
        char key[16];
        snprintf(key, sizeof key, "key-%d", i);
        CHECK_INT(kl_exec_key_pause(exec, kl_str(key)), KL_OK);
    }
    CHECK(kl__lane_has_signs(shard->signs, 0));
    kl__order order;
    CHECK_INT(kl__order_prepare(exec, &(kl_exec_task){.fn = nothing}, &order), KL_OK);
    CHECK(!order.careful);
    kl__order_drop(&order);
    submit(exec, "", nothing, NULL, NULL);
    AWAIT(tasks_live(exec) == 0);
    kl_exec_close(exec);
}
