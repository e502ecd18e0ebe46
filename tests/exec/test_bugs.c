/* test_bugs.c - bugs that other task queues really had, each by the name of whoever had it. */
#include <stdlib.h>

#include "exec/support.h"

static int64_t at_once(void *ctx, uint32_t attempt, uint64_t random)
{
    (void)ctx, (void)attempt, (void)random;
    return 0;
}

static void open_gate(void *gate) { gate_open(gate); }

/* --- shardqueue --- */

TEST(shardqueue_a_panic_does_not_kill_its_shard_for_ever)
{
    struct script ends[] = {{.name = "exit", .plan = "e"}, {.name = "cancel", .plan = "k"}};
    kl_exec *exec = open_exec(OPTS(.threads = 1, .retry = at_once));
    REQUIRE(exec != NULL);
    for (int i = 0; i < 6; i++)
        submit_script(exec, "k", &ends[i % 2], TASK(.attempts_max = 1 + i / 2));
    submit_note(exec, "k", "same");
    submit_note(exec, "other", "other");
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    journal_await(2 * (1 + 2 + 3) + 2);
    CHECK_CONTAINS(journal_text(), "cancel same");
    CHECK_CONTAINS(journal_text(), "other");
    kl_exec_close(exec);
}

TEST(shardqueue_a_stop_during_a_back_off_does_not_drop_the_queue)
{
    struct script again = {.name = "again", .plan = "rd", .after_ms = 5};
    kl_exec *exec = open_exec(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    submit_script(exec, "k", &again, NULL);
    submit_note(exec, "k", "second");
    submit_note(exec, "k", "third");
    journal_await(1);
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    CHECK_STR(journal_text(), "again again second third");
    kl_exec_close(exec);
}

TEST(shardqueue_drained_jobs_get_their_retries_and_the_error_handler)
{
    struct gate gate = GATE;
    struct helper opener;
    struct script again = {.name = "again", .plan = "rrd", .after_ms = 1};
    struct script dead = {.name = "dead", .plan = "rx", .after_ms = 1, .error = "why"};
    kl_exec *exec = open_exec(OPTS(.threads = 1, .on_failure = note_end, .on_failure_ctx = "handler"));
    REQUIRE(exec != NULL);
    submit(exec, "k", hold, &gate, NULL);
    submit_script(exec, "k", &again, NULL);
    submit_script(exec, "k", &dead, NULL);
    gate_await(&gate, 1);
    helper_start(&opener, open_gate, &gate);
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    helper_join(&opener);
    CHECK_STR(journal_text(), "again again again dead dead handler=KL_EDEAD/2(why)");
    kl_exec_close(exec);
}

struct stop_race {
    kl_exec *exec;
    atomic_bool over; /* the drain has returned */
    _Atomic(uint64_t) taken, ran;
};

static kl_outcome check_not_over(kl_run *run, void *ctx)
{
    struct stop_race *race = ctx;
    (void)run;
    CHECK(!atomic_load(&race->over));
    atomic_fetch_add(&race->ran, 1);
    return KL_DONE;
}

static void submit_until_closed(void *ctx)
{
    struct stop_race *race = ctx;
    kl_rc rc;
    while ((rc = kl_exec_submit(race->exec, kl_str("k"), check_not_over, race, NULL, NULL)) != KL_ECLOSED)
        atomic_fetch_add(&race->taken, rc == KL_OK);
}

TEST(shardqueue_a_submit_that_races_stop_enqueues_nothing_after_the_drain)
{
    for (uint64_t i = 0; i < test_ops(300) && !test_failed(); i++) {
        struct stop_race race = {0};
        struct helper helpers[2];
        race.exec = open_exec(OPTS(.threads = 2, .shard_capacity = 16));
        REQUIRE(race.exec != NULL);
        helper_start(&helpers[0], submit_until_closed, &race);
        helper_start(&helpers[1], submit_until_closed, &race);
        AWAIT(atomic_load(&race.taken) > 0);
        CHECK_INT(kl_exec_drain(race.exec, KL_FOREVER), KL_OK);
        atomic_store(&race.over, true);
        helper_join(&helpers[0]);
        helper_join(&helpers[1]);
        CHECK_INT(atomic_load(&race.ran), atomic_load(&race.taken));
        kl_exec_close(race.exec);
    }
}

TEST(shardqueue_a_retry_does_not_sleep_on_the_shards_thread)
{
    struct script again = {.name = "again", .plan = "rd", .after_ms = 1000000};
    kl_exec *exec = open_exec(OPTS(.threads = 1, .shards = 1));
    REQUIRE(exec != NULL);
    submit_script(exec, "k", &again, NULL);
    submit_note(exec, "other", "other"); /* the same shard, the same thread */
    journal_await(2);
    CHECK_STR(journal_text(), "again other");
    kl_exec_close(exec);
}

struct unsynchronized {
    kl_exec *exec;
    uint64_t sum; /* guarded by nothing but the order of its key */
    uint64_t each;
};

static kl_outcome add_unguarded(kl_run *run, void *ctx)
{
    (void)run;
    ((struct unsynchronized *)ctx)->sum++;
    return KL_DONE;
}

static void submit_unguarded(void *ctx)
{
    struct unsynchronized *shared = ctx;
    for (uint64_t i = 0; i < shared->each; i++)
        CHECK_INT(kl_exec_submit(shared->exec, kl_str("k"), add_unguarded, shared, NULL, NULL), KL_OK);
}

TEST(shardqueue_concurrent_submits_of_one_key_are_supported)
{
    struct unsynchronized shared = {.each = test_ops(30000)};
    struct helper helpers[4];
    kl_exec *exec = shared.exec = open_exec(OPTS(.threads = 3, .submit_timeout_ms = KL_FOREVER));
    REQUIRE(exec != NULL);
    for (int i = 0; i < 4; i++)
        helper_start(&helpers[i], submit_unguarded, &shared);
    for (int i = 0; i < 4; i++)
        helper_join(&helpers[i]);
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    CHECK_INT(shared.sum, 4 * shared.each);
    kl_exec_close(exec);
}

static void check_shard(void *ctx, const kl_exec_end *end)
{
    kl_exec *exec = *(kl_exec **)ctx;
    uint64_t hash;
    CHECK(end->shard < exec->shard_count);
    CHECK_INT(end->shard, kl__exec_shard_of(exec, end->key, &hash)->index);
}

TEST(shardqueue_routing_is_never_negative)
{
    static const int64_t counts[] = {1, 2, 3, 4, 7, 16, 100, 255, 256};
    uint32_t high = 0;
    for (size_t c = 0; c < COUNT(counts); c++) {
        kl_exec *exec = open_exec(OPTS(.shards = counts[c], .shard_capacity = 128, .submit_timeout_ms = KL_FOREVER));
        REQUIRE(exec != NULL);
        uint64_t used = 0;
        static bool seen[KL_EXEC_SHARDS_MAX];
        memset(seen, 0, sizeof seen);
        for (int i = 0; i < 4000; i++) {
            char key[16];
            uint64_t hash;
            snprintf(key, sizeof key, "key %d", i);
            kl__shard *shard = kl__exec_shard_of(exec, kl_str(key), &hash);
            high += hash >> 31 & 1;
            REQUIRE(shard >= exec->shards && shard < exec->shards + counts[c]);
            used += !seen[shard->index];
            seen[shard->index] = true;
            if (i < 500)
                submit(exec, key, nothing, NULL, TASK(.end = check_shard, .end_ctx = &exec));
        }
        CHECK_INT(used, counts[c]);
        CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
        kl_exec_close(exec);
    }
    CHECK(high > 10000); /* hashes that would be negative as an int were among them */
}

/* --- Peers --- */

TEST(pg_boss_849_one_stuck_key_starves_nobody)
{
    struct gate gate = GATE;
    struct tally ran = TALLY;
    kl_exec *exec = open_exec(OPTS(.threads = 2));
    REQUIRE(exec != NULL);
    submit(exec, "stuck", hold, &gate, NULL);
    gate_await(&gate, 1);
    for (int i = 0; i < 500; i++)
        submit(exec, "stuck", nothing, NULL, TASK(.priority = -16)); /* many, and more important than all others */
    for (int i = 0; i < 500; i++) {
        char key[8];
        snprintf(key, sizeof key, "%d", i);
        submit(exec, key, add_one, &ran, TASK(.priority = 15));
    }
    tally_await(&ran, 500);
    CHECK_INT(info_of(exec, "stuck").tasks, 501);
    gate_open(&gate);
    kl_exec_close(exec);
}

TEST(bullmq_a_retried_job_holds_its_group)
{
    struct script again = {.name = "again", .plan = "rrrd"};
    kl_exec *exec = open_exec(OPTS(.threads = 2, .backoff_base_ms = 1, .backoff_max_ms = 2));
    REQUIRE(exec != NULL);
    submit_script(exec, "group", &again, NULL);
    for (int i = 0; i < 5; i++)
        submit_note(exec, "group", "next");
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    CHECK_STR(journal_text(), "again again again again next next next next next");
    kl_exec_close(exec);
}

static atomic_int in_key[8];

static kl_outcome check_alone(kl_run *run, void *ctx)
{
    int key = *(const char *)kl_run_key(run).data - '0';
    CHECK_INT(atomic_fetch_add(&in_key[key], 1), 0);
    for (volatile int i = 0; i < 50; i++)
        ;
    atomic_fetch_sub(&in_key[key], 1);
    tally_add(ctx, 1);
    return KL_DONE;
}

TEST(graphile_worker_621_a_batch_keeps_its_keys_serial)
{
    enum { TASKS = 512 };
    struct tally ran = TALLY;
    kl_exec *exec = open_exec(OPTS(.threads = 4));
    REQUIRE(exec != NULL);
    for (int round = 0; round < 20; round++) {
        kl_exec_task batch[TASKS];
        for (int i = 0; i < TASKS; i++)
            batch[i] = (kl_exec_task){{&"01234567"[i * 5 % 8], 1}, check_alone, &ran, NULL};
        CHECK_INT(kl_exec_submit_batch(exec, batch, TASKS, NULL, NULL), KL_OK);
        tally_await(&ran, (round + 1) * TASKS);
    }
    kl_exec_close(exec);
}

TEST(activepieces_15130_the_attempts_of_a_poison_job_are_counted)
{
    struct script poison = {.name = "poison", .plan = "e", .tell_attempts = true};
    kl_exec *exec = open_exec(OPTS(.threads = 2, .retry = at_once, .on_failure = note_end, .on_failure_ctx = "dead"));
    REQUIRE(exec != NULL);
    submit_script(exec, "k", &poison, TASK(.attempts_max = 4));
    submit_note(exec, "k", "next");
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    CHECK_STR(journal_text(), "poison1 poison2 poison3 poison4 dead=KL_EDEAD/4(the task ended its thread) next");
    kl_exec_close(exec);
}

TEST(hatchet_1164_tasks_of_one_millisecond_keep_their_order)
{
    enum { TASKS = 1000 };
    static char names[TASKS][8];
    char *expected = calloc(TASKS, 8);
    kl_exec *exec = open_frozen(OPTS(.threads = 3, .shard_capacity = TASKS)); /* the time stands still */
    REQUIRE(exec && expected);
    for (int i = 0; i < TASKS; i++) {
        snprintf(names[i], sizeof names[i], "%d", i);
        submit_note(exec, "k", names[i]);
        strcat(strcat(expected, i ? " " : ""), names[i]);
    }
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    CHECK_STR(journal_text(), expected);
    free(expected);
    kl_exec_close(exec);
}

static kl_outcome outlive_cancel(kl_run *run, void *ctx)
{
    gate_pass(ctx);
    journal_add("%s", kl_run_cancelled(run) ? "stopped" : "went on");
    return KL_RETRY;
}

/* river #1302: the old worker of a rescued job overwrote its result. Here a task that is running is never given to
 * another thread, whatever its deadline says, and its end is reported once. */
TEST(river_1302_a_task_past_its_deadline_is_ended_by_its_own_thread_and_once)
{
    struct gate gate = GATE;
    kl_exec *exec = open_frozen(OPTS(.threads = 2, .on_failure = note_end, .on_failure_ctx = "end"));
    REQUIRE(exec != NULL);
    kl_exec_id id = submit(exec, "k", outlive_cancel, &gate, TASK(.deadline_ms = 10));
    submit_note(exec, "k", "next");
    gate_await(&gate, 1);
    pass_ms(exec, 10);
    AWAIT(status_of(exec, id).stop_asked);
    CHECK_STR(journal_text(), "");
    CHECK_INT(info_of(exec, "k").state, KL_KEY_RUNNING);
    gate_open(&gate);
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    CHECK_STR(journal_text(), "stopped end=KL_ETIMEDOUT/1 next");
    kl_exec_close(exec);
}
