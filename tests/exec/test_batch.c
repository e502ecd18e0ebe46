/* test_batch.c - batches: order, ids, and what is taken when not all is. Those of blocked keys are in
 * test_blocked.c. */
#include "base/random.h"
#include "exec/support.h"

enum { BATCH_TASKS = 300, BATCH_KEYS = 7 };

/* A batch of notes A0 B0 ... A1 B1 ..., each letter a key. If the last one is long, each chunk is made into orders,
 * else they are plain. */
static void make_batch(const char *last_key, kl_exec_task *ret_batch)
{
    static char names[BATCH_TASKS][16];
    const char *keys[BATCH_KEYS] = {"a", "b", "c", "d", "e", "f", last_key};
    for (int i = 0; i < BATCH_TASKS; i++) {
        snprintf(names[i], sizeof names[i], "%c%d", 'A' + i % BATCH_KEYS, i / BATCH_KEYS);
        ret_batch[i] = (kl_exec_task){kl_str(keys[i % BATCH_KEYS]), note, names[i], NULL};
    }
}

static void check_each_ran_once_in_order(void)
{
    int next[BATCH_KEYS] = {0}, words = 0;
    for (const char *at = journal_text(); *at; words++) {
        int key = at[0] - 'A', number = atoi(at + 1);
        CHECK_INT(number, next[key]++);
        at += strcspn(at, " ");
        at += *at == ' ';
    }
    CHECK_INT(words, BATCH_TASKS);
}

static void check_batch_order(const char *last_key)
{
    kl_exec_task batch[BATCH_TASKS];
    kl_exec_id ids[BATCH_TASKS];
    size_t taken = 0;
    struct gate gate = GATE;
    kl_exec *exec = open_exec(OPTS(.threads = 2, .shards = 3));
    REQUIRE(exec != NULL);
    make_batch(last_key, batch);
    for (int i = 0; i < 2; i++)
        submit(exec, "", hold, &gate, NULL);
    gate_await(&gate, 2);
    CHECK_INT(kl_exec_submit_batch(exec, batch, BATCH_TASKS, ids, &taken), KL_OK);
    CHECK_INT(taken, BATCH_TASKS);
    for (int i = 0; i < BATCH_TASKS; i++)
        CHECK_INT(status_of(exec, ids[i]).state, KL_EXEC_WAITING);
    gate_open(&gate);
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    check_each_ran_once_in_order();
    kl_exec_close(exec);
}

TEST(a_batch_runs_in_order_for_each_key_and_gives_an_id_for_each_task)
{
    check_batch_order("a key of more than thirty-eight bytes, by far");
}

TEST(a_plain_batch_runs_in_order_for_each_key_and_gives_an_id_for_each_task) { check_batch_order("g"); }

TEST(what_a_plain_batch_waits_for_room_with_follows_what_found_some_at_once)
{
    kl_exec_task batch[BATCH_TASKS];
    kl_exec_id ids[BATCH_TASKS];
    make_batch("g", batch);
    for (int capacity = 1; capacity <= 64; capacity *= 2) {
        kl_exec *exec =
            open_exec(OPTS(.threads = 2, .shards = 3, .shard_capacity = capacity, .submit_timeout_ms = KL_FOREVER));
        REQUIRE(exec != NULL);
        size_t taken = 0;
        journal_clear();
        memset(ids, 0, sizeof ids);
        CHECK_INT(kl_exec_submit_batch(exec, batch, BATCH_TASKS, ids, &taken), KL_OK);
        CHECK_INT(taken, BATCH_TASKS);
        for (int i = 0; i < BATCH_TASKS; i++)
            CHECK(ids[i] != 0);
        CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
        check_each_ran_once_in_order();
        kl_exec_close(exec);
    }
}

TEST(a_wrong_task_has_its_batch_refused_whole_wherever_it_stands)
{
    enum { TASKS = 200 };
    static const size_t places[] = {0, 63, 64, 127, 128, TASKS - 1}; /* at the borders of chunks */
    const kl_exec_task_opts *right = TASK(.priority = 1);
    kl_exec_task batch[TASKS];
    kl_exec_id ids[TASKS];
    kl_exec *exec = open_exec(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    for (size_t p = 0; p < COUNT(places); p++)
        for (size_t count = places[p] + 1; count <= TASKS; count++) {
            size_t taken = 7;
            memset(ids, 7, sizeof ids);
            for (size_t i = 0; i < count; i++)
                batch[i] = (kl_exec_task){kl_str("k"), i == places[p] ? NULL : note, "ran", count % 2 ? right : NULL};
            CHECK_INT(kl_exec_submit_batch(exec, batch, count, ids, &taken), KL_EINVAL);
            CHECK_INT(taken, 0);
            for (size_t i = 0; i < count; i++)
                CHECK_INT(ids[i], 0);
            CHECK_INT(kl_exec_submit_batch(exec, batch, count, NULL, NULL), KL_EINVAL);
        }
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    CHECK_STR(journal_text(), "");
    kl_exec_close(exec);
}

TEST(an_empty_batch_is_fine)
{
    size_t taken = 9;
    kl_exec *exec = open_exec(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    CHECK_INT(kl_exec_submit_batch(exec, NULL, 0, NULL, &taken), KL_OK);
    CHECK_INT(taken, 0);
    kl_exec_close(exec);
}

/* What a batch has taken of each key is its beginning, whatever was full. */
static void check_part(bool plain)
{
    enum { TASKS = 200, KEYS = 11, SHARDS = 3, CAPACITY = 20 };
    uint64_t random = test_seed();
    struct gate gate = GATE;
    static char names[TASKS][16];
    kl_exec_task batch[TASKS];
    kl_exec_id ids[TASKS];
    int key_of[TASKS];
    size_t taken = 0;
    const kl_exec_task_opts *timed = TASK(.deadline_ms = 100000);
    kl_exec *exec =
        open_exec(OPTS(.threads = 1, .shards = SHARDS, .shard_capacity = CAPACITY, .submit_timeout_ms = KL_NO_WAIT));
    REQUIRE(exec != NULL);
    submit(exec, "gate", hold, &gate, NULL);
    gate_await(&gate, 1);
    static char keys[KEYS][48];
    for (int k = 0; k < KEYS; k++)
        snprintf(keys[k], sizeof keys[k], plain || k % 2 ? "key %d" : "a key that is too long to be kept inside, %d",
                 k);
    for (int i = 0; i < TASKS; i++) {
        key_of[i] = (int)kl__random_below(&random, KEYS);
        snprintf(names[i], sizeof names[i], "%d", i);
        batch[i] = (kl_exec_task){kl_str(keys[key_of[i]]), note, names[i], plain || i % 3 ? NULL : timed};
    }
    memset(ids, 7, sizeof ids);
    CHECK_INT(kl_exec_submit_batch(exec, batch, TASKS, ids, &taken), KL_EFULL);
    CHECK_INT(kl_exec_last_full().capacity, CAPACITY);
    CHECK(taken >= CAPACITY - 1 && taken < SHARDS * CAPACITY);
    size_t given = 0;
    bool refused[KEYS] = {false};
    for (int i = 0; i < TASKS; i++) {
        given += ids[i] != 0;
        CHECK(!(ids[i] && refused[key_of[i]]));
        refused[key_of[i]] |= ids[i] == 0;
    }
    CHECK_INT(given, taken);
    gate_open(&gate);
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    int last[KEYS], ran = 0;
    memset(last, -1, sizeof last);
    for (const char *at = journal_text(); *at; ran++) {
        int i = atoi(at);
        CHECK(ids[i] != 0 && i > last[key_of[i]]);
        last[key_of[i]] = i;
        at += strcspn(at, " ");
        at += *at == ' ';
    }
    CHECK_INT(ran, taken);
    kl_exec_close(exec);
}

TEST(a_batch_that_is_taken_in_part_keeps_a_prefix_of_each_key) { check_part(false); }

TEST(a_plain_batch_that_is_taken_in_part_keeps_a_prefix_of_each_key) { check_part(true); }
