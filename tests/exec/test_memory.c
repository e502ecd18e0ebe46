/* test_memory.c - memory: none is lost, idle keys give theirs back, and every allocation may fail. */
#include <stdlib.h>

#include "exec/support.h"

static void long_key(char key[static KL_KEY_BYTES_MAX + 1], int number, int length)
{
    snprintf(key, KL_KEY_BYTES_MAX + 1, "%0*d", length, number);
}

TEST(an_executor_gives_back_all_its_memory)
{
    int64_t before = live_pieces();
    struct script again = {.name = "t", .plan = "r", .after_ms = 100000, .error = "text"};
    char key[KL_KEY_BYTES_MAX + 1];
    kl_exec *exec = open_exec(OPTS(.threads = 2, .shards = 2));
    REQUIRE(exec != NULL);
    for (int i = 0; i < 60; i++) {
        long_key(key, i, 1 + i * 8);
        submit_script(exec, key, &again, i % 2 ? TASK(.deadline_ms = 100000, .end = note_end, .end_ctx = "e") : NULL);
        if (i % 3 == 0)
            CHECK_INT(kl_exec_key_pause(exec, kl_str(key)), KL_OK);
    }
    (void)!kl_exec_barrier(exec, kl_str(key), 0);
    kl_exec_close(exec);
    CHECK_INT(live_pieces(), before);
}

static int64_t bytes_to_open(int64_t shards, int64_t capacity)
{
    int64_t before = bytes_taken();
    kl_exec *exec = open_exec(OPTS(.threads = 1, .shards = shards, .shard_capacity = capacity));
    int64_t bytes = bytes_taken() - before;
    kl_exec_close(exec);
    return bytes;
}

/* Where the ring is nearly twice as large as the capacity a place takes the most. */
TEST(a_shard_and_its_places_take_no_more_memory_than_exec_h_says)
{
    static const int64_t capacities[] = {1, 2, 5, 128, 1024, 1025, 65537};
    for (size_t i = 0; i < COUNT(capacities); i++) {
        int64_t shard = bytes_to_open(3, capacities[i]) - bytes_to_open(2, capacities[i]);
        CHECK(shard > 0 && shard <= 96 * capacities[i] + INT64_C(43) * 1024);
    }
}

TEST(a_refused_task_gives_back_what_it_needed)
{
    struct gate gate = GATE;
    char key[KL_KEY_BYTES_MAX + 1];
    kl_exec_task_opts opts = {.size = sizeof opts, .deadline_ms = 1000000, .end = note_end, .end_ctx = "e"};
    kl_exec_task batch[] = {{{key, 200}, nothing, NULL, &opts}, {{key, 200}, nothing, NULL, &opts}};
    kl_exec *exec = open_exec(OPTS(.threads = 1, .shard_capacity = 1, .submit_timeout_ms = KL_NO_WAIT));
    REQUIRE(exec != NULL);
    long_key(key, 7, 200);
    submit(exec, "k", hold, &gate, NULL);
    gate_await(&gate, 1);
    int64_t before = live_pieces();
    CHECK_INT(kl_exec_submit(exec, kl_str(key), nothing, NULL, &opts, NULL), KL_EFULL);
    CHECK_INT(kl_exec_submit_batch(exec, batch, 2, NULL, NULL), KL_EFULL);
    CHECK_INT(live_pieces(), before);
    gate_open(&gate);
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    before = live_pieces();
    CHECK_INT(kl_exec_submit(exec, kl_str(key), nothing, NULL, &opts, NULL), KL_ECLOSED);
    CHECK_INT(kl_exec_submit_batch(exec, batch, 2, NULL, NULL), KL_ECLOSED);
    CHECK_INT(live_pieces(), before);
    kl_exec_close(exec);
}

TEST(an_idle_key_costs_nothing)
{
    enum { KEYS = 20000, RESTING_MAX = 2 * 1024 + 256 + 64 }; /* what rests, spare lanes, and the table's segments */
    struct tally ran = TALLY;
    char key[KL_KEY_BYTES_MAX + 1];
    kl_exec *exec = open_exec(OPTS(.threads = 2, .shards = 1, .submit_timeout_ms = KL_FOREVER));
    REQUIRE(exec != NULL);
    int64_t before = live_pieces();
    for (int i = 0; i < KEYS; i++) {
        long_key(key, i, 60);
        submit(exec, key, add_one, &ran, NULL);
    }
    tally_await(&ran, KEYS);
    AWAIT(tasks_live(exec) == 0);
    CHECK(live_pieces() - before <= RESTING_MAX);
    kl_exec_close(exec);
}

TEST(a_plain_submit_allocates_nothing)
{
    static const char *const keys[] = {"a", "b", "a key of just thirty-eight bytes, see?", ""};
    kl_exec *exec = open_exec(OPTS(.threads = 2, .submit_timeout_ms = KL_FOREVER));
    REQUIRE(exec != NULL);
    for (size_t i = 0; i < COUNT(keys); i++)
        submit(exec, keys[i], nothing, NULL, NULL);
    AWAIT(tasks_live(exec) == 0); /* the keys have their lanes now */
    kl__alloc_fail_at(0);
    for (int i = 0; i < 2000; i++) {
        submit(exec, keys[i % 4], nothing, NULL, TASK(.priority = i % 3));
        kl_exec_task batch[] = {{kl_str(keys[0]), nothing, NULL, NULL}, {kl_str(keys[1]), nothing, NULL, NULL}};
        CHECK_INT(kl_exec_submit_batch(exec, batch, 2, NULL, NULL), KL_OK);
    }
    AWAIT(tasks_live(exec) == 0);
    CHECK_INT(kl__alloc_fail_at(0), 0);
    kl_exec_close(exec);
}

/* --- Every allocation fails once --- */

struct sweep {
    kl_exec *exec;
    struct tally ended;
    int64_t taken;
    int refused; /* calls that returned KL_ENOMEM */
};

static void count_end(void *ctx, const kl_exec_end *end)
{
    struct sweep *s = ctx;
    CHECK(end->rc == KL_OK || end->rc == KL_EDEAD || end->rc == KL_ECLOSED || end->rc == KL_ECANCELLED);
    tally_add(&s->ended, 1);
}

/* The one task without a report of its own counts itself when it runs. */
static void keep_failure(void *ctx, const kl_exec_end *end)
{
    (void)ctx;
    if (end->fn == add_one)
        tally_add(end->ctx, 1);
    CHECK(end->error[0] == '\0' || strcmp(end->error, "no luck") == 0 || strstr(end->error, "ended its thread"));
}

/* Ok or out of memory, nothing else. */
static bool allowed(struct sweep *s, kl_rc rc)
{
    CHECK(rc == KL_OK || rc == KL_ENOMEM);
    if (rc == KL_ENOMEM) {
        s->refused++;
        CHECK_CONTAINS(kl_error_text(), "memory");
    }
    return rc == KL_OK;
}

static void sweep_submit(struct sweep *s, const char *key, kl_task_fn *fn, void *ctx, int64_t delay_ms)
{
    kl_exec_task_opts opts = {
        .size = sizeof opts, .delay_ms = delay_ms, .deadline_ms = 1000000, .end = count_end, .end_ctx = s};
    kl_exec_id id;
    s->taken += allowed(s, kl_exec_submit(s->exec, kl_str(key), fn, ctx, &opts, &id));
}

static void sweep_batch(struct sweep *s, const char *key)
{
    enum { TASKS = 70 };
    kl_exec_task_opts opts = {.size = sizeof opts, .end = count_end, .end_ctx = s};
    kl_exec_task batch[TASKS];
    kl_exec_id ids[TASKS];
    size_t taken = 0, given = 0;
    bool refused = false;
    for (int i = 0; i < TASKS; i++)
        batch[i] = (kl_exec_task){kl_str(key), nothing, NULL, &opts};
    bool all = allowed(s, kl_exec_submit_batch(s->exec, batch, TASKS, ids, &taken));
    CHECK(all == (taken == TASKS));
    for (int i = 0; i < TASKS; i++) {
        given += ids[i] != 0;
        CHECK(!(ids[i] && refused));
        refused |= ids[i] == 0;
    }
    CHECK_INT(given, taken);
    s->taken += (int64_t)taken;
}

static void sweep_control(struct sweep *s, const char *key)
{
    char text[256];
    size_t length;
    kl_key_info info;
    kl_exec_status status;
    uint64_t count;
    kl_exec_id id;
    kl_exec_task_opts opts = {.size = sizeof opts, .end = count_end, .end_ctx = s};
    allowed(s, kl_exec_key_pause(s->exec, kl_str("a paused key that is so long that it has to be allocated")));
    allowed(s, kl_exec_key_pause(s->exec, kl_str("paused")));
    if (allowed(s, kl_exec_submit(s->exec, kl_str("paused"), nothing, NULL, &opts, &id))) {
        s->taken++;
        kl_rc rc = kl_exec_status_of(s->exec, id, &status); /* gone, if the pause failed */
        CHECK(rc == KL_OK || rc == KL_ENOTFOUND || rc == KL_ENOMEM);
        rc = kl_exec_cancel(s->exec, id);
        CHECK(rc == KL_OK || rc == KL_EBUSY || rc == KL_ENOTFOUND || rc == KL_ENOMEM);
    }
    allowed(s, kl_exec_metrics(s->exec, text, sizeof text, &length));
    allowed(s, kl_exec_key_show(s->exec, kl_str(key), &info));
    allowed(s, kl_exec_key_drain(s->exec, kl_str("paused"), &count));
    allowed(s, kl_exec_key_resume(s->exec, kl_str("paused")));
    kl_rc rc = kl_exec_key_skip(s->exec, kl_str("paused"));
    CHECK(rc == KL_ENOTFOUND || rc == KL_ENOMEM);
    allowed(s, kl_exec_barrier(s->exec, kl_str(key), PATIENCE_MS));
}

/* Everything that allocates, with the n-th allocation failing. False: there was no n-th. */
static bool sweep_once(uint64_t n)
{
    struct sweep s = {.ended = TALLY};
    struct script again = {.name = "t", .plan = "rd", .after_ms = 1, .error = "no luck"};
    struct script dead = {.name = "t", .plan = "rx", .after_ms = 1, .error = "no luck"};
    kl_exec_opts opts = OPTS(.threads = 2, .shards = 2, .shard_capacity = 200, .on_failure = keep_failure);
    int64_t before = live_pieces();
    char key[KL_KEY_BYTES_MAX + 1];
    kl__alloc_fail_at(n);
    if (allowed(&s, kl_exec_open(&opts, &s.exec))) {
        for (int i = 0; i < 6; i++) {
            long_key(key, i, 36 + i);
            sweep_submit(&s, key, nothing, NULL, i == 3 ? 1 : 0);
        }
        sweep_submit(&s, "again", play, &again, 0);
        sweep_submit(&s, "dead", play, &dead, 0);
        s.taken += allowed(&s, kl_exec_submit(s.exec, kl_str("plain"), add_one, &s.ended, NULL, NULL));
        sweep_batch(&s, key);
        sweep_control(&s, key);
        if (n % 2)
            CHECK_INT(kl_exec_drain(s.exec, PATIENCE_MS), KL_OK);
        kl_exec_close(s.exec);
    }
    uint64_t allocated = kl__alloc_fail_at(0);
    CHECK_INT(tally_read(&s.ended), s.taken);
    CHECK_INT(live_pieces(), before);
    CHECK(s.refused <= 1);
    return allocated >= n;
}

TEST(every_allocation_may_fail_and_nothing_taken_is_lost)
{
    uint64_t n = 1;
    journal_clear();
    while (sweep_once(n) && !test_failed() && n < 10000)
        n++;
    printf("# %" PRIu64 " allocations\n", n - 1);
    CHECK(n > 100);
}

/* Memory is gone for good: what was taken runs, a key at a time, and a stop ends it all the same. */
TEST(without_any_memory_tasks_run_and_stops_end)
{
    enum { KEYS = 100 };
    for (int aborted = 0; aborted <= 1; aborted++) {
        struct gate gate = GATE;
        struct tally ran = TALLY;
        struct sweep s = {.ended = TALLY};
        kl_exec *exec = open_exec(OPTS(.shards = 2, .on_failure = count_end, .on_failure_ctx = &s));
        REQUIRE(exec != NULL);
        kl__alloc_fail_all(true);
        if (aborted)
            submit(exec, "first", hold, &gate, NULL);
        for (int i = 0; i < KEYS; i++) {
            char key[16];
            snprintf(key, sizeof key, "key-%d", i);
            submit(exec, key, add_one, &ran, NULL);
        }
        if (aborted) {
            gate_await(&gate, 1);
            gate_open(&gate);
            CHECK_INT(kl_exec_abort(exec), KL_OK);
        } else {
            CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
            CHECK_INT(tally_read(&ran), KEYS);
        }
        CHECK_INT(tally_read(&ran) + tally_read(&s.ended), KEYS);
        kl__alloc_fail_all(false);
        kl__alloc_fail_at(0);
        kl_exec_close(exec);
    }
}

/* The keys are of a length that finds no room in the task. Their bytes are allocated by the submit, before there is no
 * memory any more. */
static void run_without_memory(bool aborted, size_t key_len)
{
    enum { KEYS = 100 };
    struct gate gate = GATE;
    struct tally ran = TALLY;
    struct sweep s = {.ended = TALLY};
    kl_exec *exec = open_exec(OPTS(.shards = 2, .threads = 1, .on_failure = count_end, .on_failure_ctx = &s));
    REQUIRE(exec != NULL);
    submit(exec, "first", hold, &gate, NULL);
    gate_await(&gate, 1);
    for (int i = 0; i < KEYS; i++) {
        char key[KL_KEY_BYTES_MAX + 1];
        snprintf(key, sizeof key, "%0*d", (int)key_len, i);
        submit(exec, key, add_one, &ran, NULL);
    }
    kl__alloc_fail_all(true);
    gate_open(&gate);
    if (aborted) {
        CHECK_INT(kl_exec_abort(exec), KL_OK);
    } else {
        CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
        CHECK_INT(tally_read(&ran), KEYS);
    }
    CHECK_INT(tally_read(&ran) + tally_read(&s.ended), KEYS);
    kl__alloc_fail_all(false);
    kl__alloc_fail_at(0);
    kl_exec_close(exec);
}

TEST(without_any_memory_tasks_with_long_keys_run)
{
    run_without_memory(false, 39);
    run_without_memory(false, 60);
}

TEST(without_any_memory_tasks_with_long_keys_are_given_up) { run_without_memory(true, 60); }

TEST(a_batch_that_was_taken_in_part_without_memory_for_the_rest_says_so)
{
    const char *first = "a key that has no room in a task, number 1",
               *second = "a key that has no room in a task, number 2";
    size_t taken = 0;
    kl_exec *exec = open_exec(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    kl_exec_task batch[] = {{kl_str(first), nothing, NULL, NULL}, {kl_str(second), nothing, NULL, NULL}};
    kl__alloc_fail_at(2);
    CHECK_INT(kl_exec_submit_batch(exec, batch, 2, NULL, &taken), KL_ENOMEM);
    kl__alloc_fail_at(0);
    CHECK_INT(taken, 1);
    CHECK_CONTAINS(kl_error_text(), "1 of 2 tasks were taken");
    kl_exec_close(exec);
}
