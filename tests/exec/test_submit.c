/* test_submit.c - handing tasks over: keys, room, batches, ids, barriers, and submits from inside tasks. */
#include <stdlib.h>

#include "base/random.h"
#include "exec/support.h"

/* --- Keys --- */

static kl_outcome note_key(kl_run *run, void *ctx)
{
    kl_bytes key = kl_run_key(run), *expected = ctx;
    journal_add("%s", key.len == expected->len && memcmp(key.data, expected->data, key.len) == 0 ? "same" : "other");
    return KL_DONE;
}

TEST(a_key_may_have_up_to_512_bytes_of_any_kind_and_is_copied)
{
    static const size_t lengths[] = {1, 2, 7, 8, 9, 16, 17, 37, 38, 39, 40, 41, 64, 100, 511, 512};
    kl_exec *exec = open_exec(OPTS(.shards = 4));
    REQUIRE(exec != NULL);
    static char kept[COUNT(lengths)][KL_KEY_BYTES_MAX];
    kl_bytes expected[COUNT(lengths)];
    for (size_t i = 0; i < COUNT(lengths); i++) {
        char lent[KL_KEY_BYTES_MAX];
        for (size_t c = 0; c < lengths[i]; c++)
            lent[c] = kept[i][c] = (char)(c * 7 + i); /* zeros and bytes above 127 among them */
        expected[i] = (kl_bytes){kept[i], lengths[i]};
        CHECK_INT(kl_exec_submit(exec, (kl_bytes){lent, lengths[i]}, note_key, &expected[i], NULL, NULL), KL_OK);
        memset(lent, 'x', sizeof lent);
    }
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    journal_await(COUNT(lengths));
    CHECK(!strstr(journal_text(), "other"));
    kl_exec_close(exec);
}

TEST(a_key_of_513_bytes_is_refused_by_every_call)
{
    static const char bytes[KL_KEY_BYTES_MAX + 1] = "too long";
    kl_bytes key = {bytes, sizeof bytes};
    kl_key_info info;
    kl_exec *exec = open_exec(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    CHECK_INT(kl_exec_submit(exec, key, nothing, NULL, NULL, NULL), KL_EINVAL);
    CHECK_CONTAINS(kl_error_text(), "513");
    CHECK_INT(kl_exec_submit_batch(exec, &(kl_exec_task){key, nothing, NULL, NULL}, 1, NULL, NULL), KL_EINVAL);
    CHECK_INT(kl_exec_barrier(exec, key, 0), KL_EINVAL);
    CHECK_INT(kl_exec_key_show(exec, key, &info), KL_EINVAL);
    CHECK_INT(kl_exec_key_pause(exec, key), KL_EINVAL);
    CHECK_INT(kl_exec_key_resume(exec, key), KL_EINVAL);
    CHECK_INT(kl_exec_key_skip(exec, key), KL_EINVAL);
    CHECK_INT(kl_exec_key_drain(exec, key, NULL), KL_EINVAL);
    kl_exec_close(exec);
}

TEST(long_keys_that_differ_only_in_their_last_byte_are_different_keys)
{
    char a[KL_KEY_BYTES_MAX + 1], b[KL_KEY_BYTES_MAX + 1];
    static const size_t lengths[] = {9, 16, 38, 39, 40, 41, 512};
    kl_exec *exec = open_exec(OPTS(.threads = 2));
    REQUIRE(exec != NULL);
    for (size_t i = 0; i < COUNT(lengths); i++) {
        struct gate gate = GATE;
        memset(a, 'k', sizeof a);
        memset(b, 'k', sizeof b);
        a[lengths[i]] = b[lengths[i]] = '\0';
        b[lengths[i] - 1] = 'l';
        submit(exec, a, hold, &gate, NULL);
        submit(exec, b, hold, &gate, NULL);
        gate_await(&gate, 2); /* both run at once */
        gate_open(&gate);
        CHECK_INT(kl_exec_barrier(exec, kl_str(a), KL_FOREVER), KL_OK);
        CHECK_INT(kl_exec_barrier(exec, kl_str(b), KL_FOREVER), KL_OK);
    }
    kl_exec_close(exec);
}

TEST(tasks_without_a_key_ask_for_no_order_and_run_at_once_beside_each_other)
{
    struct gate gate = GATE;
    kl_exec *exec = open_exec(OPTS(.threads = 4, .shards = 2));
    REQUIRE(exec != NULL);
    for (int i = 0; i < 4; i++)
        submit(exec, "", hold, &gate, NULL);
    gate_await(&gate, 4);
    gate_open(&gate);
    kl_exec_close(exec);
}

TEST(calls_about_one_key_need_a_key)
{
    kl_key_info info;
    kl_exec *exec = open_exec(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    CHECK_INT(kl_exec_barrier(exec, kl_str(""), 0), KL_EINVAL);
    CHECK_INT(kl_exec_key_show(exec, kl_str(""), &info), KL_EINVAL);
    CHECK_INT(kl_exec_key_pause(exec, kl_str("")), KL_EINVAL);
    CHECK_INT(kl_exec_key_resume(exec, kl_str("")), KL_EINVAL);
    CHECK_INT(kl_exec_key_skip(exec, kl_str("")), KL_EINVAL);
    CHECK_INT(kl_exec_key_drain(exec, kl_str(""), NULL), KL_EINVAL);
    kl_exec_close(exec);
}

TEST(a_task_needs_a_function)
{
    kl_exec_id ids[2] = {7, 7};
    size_t taken = 7;
    kl_exec *exec = open_exec(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    CHECK_INT(kl_exec_submit(exec, kl_str("k"), NULL, NULL, NULL, &ids[0]), KL_EINVAL);
    CHECK_CONTAINS(kl_error_text(), "function");
    CHECK_INT(ids[0], 7);
    kl_exec_task tasks[] = {{kl_str("k"), note, "a", NULL}, {kl_str("k"), NULL, NULL, NULL}};
    CHECK_INT(kl_exec_submit_batch(exec, tasks, 2, ids, &taken), KL_EINVAL);
    CHECK_CONTAINS(kl_error_text(), "task 2 of 2: it has no function");
    CHECK(taken == 0 && ids[0] == 0 && ids[1] == 0);
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    CHECK_STR(journal_text(), "");
    kl_exec_close(exec);
}

/* --- Room --- */

/* One thread that waits at the gate, and a shard of `capacity` filled up with notes. */
static void fill_up(kl_exec *exec, struct gate *gate, int capacity)
{
    submit(exec, "head", hold, gate, NULL);
    gate_await(gate, 1);
    for (int i = 1; i < capacity; i++)
        submit_note(exec, "k", "n");
}

TEST(a_full_shard_refuses_with_its_number_length_and_capacity)
{
    struct gate gate = GATE;
    kl_exec_id id = 5;
    kl_exec *exec = open_exec(OPTS(.threads = 1, .shard_capacity = 5, .submit_timeout_ms = KL_NO_WAIT));
    REQUIRE(exec != NULL);
    fill_up(exec, &gate, 5);
    CHECK_INT(kl_exec_submit(exec, kl_str("k"), note, "n", NULL, &id), KL_EFULL);
    CHECK_INT(kl_rc_class(KL_EFULL), KL_CLASS_RETRY);
    CHECK_INT(id, 5);
    kl_exec_full full = kl_exec_last_full();
    CHECK_INT(full.shard, 0);
    CHECK_INT(full.length, 5);
    CHECK_INT(full.capacity, 5);
    CHECK_CONTAINS(kl_error_text(), "5 of 5");
    gate_open(&gate);
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    CHECK_STR(journal_text(), "n n n n");
    kl_exec_close(exec);
}

TEST(a_capacity_of_three_counts_running_and_retrying_and_delayed_tasks_but_one)
{
    struct gate gate = GATE;
    struct script again = {.name = "again", .plan = "rd", .after_ms = 50};
    kl_exec *exec = open_frozen(OPTS(.threads = 1, .shard_capacity = 3, .submit_timeout_ms = KL_NO_WAIT));
    REQUIRE(exec != NULL);
    submit(exec, "d", note, "delayed", TASK(.delay_ms = 50));
    kl_exec_id retrying = submit_script(exec, "r", &again, NULL);
    await_state(exec, retrying, KL_EXEC_RETRYING);
    submit(exec, "g", hold, &gate, NULL);
    gate_await(&gate, 1);
    submit_note(exec, "k", "n"); /* of two that cannot run, one was lent its place */
    CHECK_INT(kl_exec_submit(exec, kl_str("k"), note, "n", NULL, NULL), KL_EFULL);
    CHECK_INT(kl_exec_last_full().length, 3);
    gate_open(&gate);
    AWAIT(places_taken(exec) == 1);
    submit_note(exec, "k", "n");
    kl_exec_close(exec);
}

/* Submits notes of one key until the shard is full. Returns how many it took. */
static int fill_with_notes(kl_exec *exec)
{
    int taken = 0;
    kl_rc rc;
    while ((rc = kl_exec_submit(exec, kl_str("k"), nothing, NULL, NULL, NULL)) == KL_OK)
        taken++;
    CHECK_INT(rc, KL_EFULL);
    CHECK_INT(kl_exec_last_full().length, kl_exec_last_full().capacity);
    return taken;
}

enum { PLACES = 8, QUARTER = 2, FAILING = 3 };

/* With one thread: FAILING keys that wait for their retry, and then a task that keeps the thread. */
static void park_and_hold(kl_exec *exec, struct script *again, struct gate *gate)
{
    static const char *const keys[FAILING] = {"a", "b", "c"};
    for (int i = 0; i < FAILING; i++)
        await_state(exec, submit_script(exec, keys[i], again, NULL), KL_EXEC_RETRYING);
    submit(exec, "g", hold, gate, NULL);
    gate_await(gate, 1);
}

TEST(tasks_that_wait_for_a_retry_take_no_place_up_to_a_quarter)
{
    struct gate first = GATE, second = GATE;
    struct script again = {.name = "x", .plan = "rd", .after_ms = 50};
    kl_exec *exec = open_frozen(OPTS(.threads = 1, .shard_capacity = PLACES, .submit_timeout_ms = KL_NO_WAIT));
    REQUIRE(exec != NULL);
    park_and_hold(exec, &again, &first);
    CHECK_INT(fill_with_notes(exec), PLACES - 1 - (FAILING - QUARTER));
    CHECK_INT(places_taken(exec), PLACES);
    gate_open(&first);
    AWAIT(places_taken(exec) == FAILING - QUARTER);
    pass_ms(exec, 50);
    AWAIT(tasks_live(exec) == 0);
    CHECK_STR(journal_text(), "x x x x x x");
    submit(exec, "g", hold, &second, NULL); /* what was lent has come back: no more than the capacity is taken */
    gate_await(&second, 1);
    CHECK_INT(fill_with_notes(exec), PLACES - 1);
    gate_open(&second);
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    kl_exec_close(exec);
}

TEST(the_end_of_a_task_whose_place_was_lent_frees_none)
{
    struct gate gate = GATE;
    struct script again = {.name = "x", .plan = "r", .after_ms = 50};
    kl_exec *exec = open_frozen(OPTS(.threads = 1, .shard_capacity = 4, .submit_timeout_ms = KL_NO_WAIT));
    REQUIRE(exec != NULL);
    kl_exec_id id = submit_script(exec, "a", &again, NULL);
    await_state(exec, id, KL_EXEC_RETRYING);
    submit(exec, "g", hold, &gate, NULL);
    gate_await(&gate, 1);
    CHECK_INT(fill_with_notes(exec), 3); /* five live tasks: as many as there may be */
    CHECK_INT(kl_exec_cancel(exec, id), KL_OK);
    CHECK_INT(places_taken(exec), 4); /* its end frees no place: it had none */
    CHECK_INT(kl_exec_submit(exec, kl_str("k"), nothing, NULL, NULL, NULL), KL_EFULL);
    gate_open(&gate);
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    kl_exec_close(exec);
}

static void submit_and_note(void *ctx)
{
    kl_rc rc = kl_exec_submit(ctx, kl_str("w"), note, "late", TASK(.submit_timeout_ms = 2000), NULL);
    journal_add("%s", kl_rc_name(rc));
}

static bool somebody_waits_for_room(kl_exec *exec)
{
    bool waits = false;
    for (uint32_t i = 0; i < exec->shard_count; i++) {
        pthread_mutex_lock(&exec->shards[i].mutex);
        waits |= exec->shards[i].waiting > 0;
        pthread_mutex_unlock(&exec->shards[i].mutex);
    }
    return waits;
}

TEST(a_submit_that_waits_for_room_goes_on_when_a_task_is_parked)
{
    struct gate gate = GATE;
    struct script again = {.name = "x", .plan = "rd", .gate = &gate, .after_ms = 50};
    struct helper helper;
    kl_exec *exec = open_frozen(OPTS(.threads = 1, .shard_capacity = 4, .submit_timeout_ms = KL_FOREVER));
    REQUIRE(exec != NULL);
    submit_script(exec, "k", &again, NULL);
    gate_await(&gate, 1);
    for (int i = 1; i < 4; i++)
        submit_note(exec, "k", "n"); /* behind it: they cannot run */
    helper_start(&helper, submit_and_note, exec);
    AWAIT(somebody_waits_for_room(exec));
    gate_open(&gate);
    helper_join(&helper);
    journal_await(3);
    pass_ms(exec, 50);
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    kl_exec_close(exec);
}

TEST(a_submit_waits_for_room_and_goes_on_when_there_is_some)
{
    struct gate gate = GATE;
    struct helper producer;
    kl_exec *exec = open_exec(OPTS(.threads = 1, .shard_capacity = 4));
    REQUIRE(exec != NULL);
    fill_up(exec, &gate, 4);
    helper_start(&producer, submit_and_note, exec);
    AWAIT(somebody_waits_for_room(exec));
    gate_open(&gate);
    helper_join(&producer);
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    CHECK_CONTAINS(journal_text(), "KL_OK");
    CHECK_CONTAINS(journal_text(), "late");
    kl_exec_close(exec);
}

/* One place is free while the next task blocks: whoever waits must get that place, also when the task that blocks waits
 * for exactly that. */
TEST(a_submit_that_waits_gets_the_first_place_that_is_free)
{
    struct gate first = GATE, second = GATE;
    struct helper producer;
    kl_exec *exec = open_exec(OPTS(.threads = 1, .shard_capacity = 4));
    REQUIRE(exec != NULL);
    submit(exec, "a", hold, &first, NULL);
    submit(exec, "b", hold, &second, NULL);
    submit(exec, "c", nothing, NULL, NULL);
    submit(exec, "d", nothing, NULL, NULL);
    gate_await(&first, 1);
    helper_start(&producer, submit_and_note, exec);
    AWAIT(somebody_waits_for_room(exec));
    gate_open(&first);
    gate_await(&second, 1);
    journal_await(1);
    CHECK_STR(journal_text(), "KL_OK");
    gate_open(&second);
    helper_join(&producer);
    kl_exec_close(exec);
}

TEST(a_submit_that_waits_in_vain_says_full)
{
    struct gate gate = GATE;
    kl_exec *exec = open_exec(OPTS(.threads = 1, .shard_capacity = 2, .submit_timeout_ms = 1));
    REQUIRE(exec != NULL);
    fill_up(exec, &gate, 2);
    CHECK_INT(kl_exec_submit(exec, kl_str("k"), note, "n", NULL, NULL), KL_EFULL);
    CHECK_INT(kl_exec_submit(exec, kl_str("k"), note, "n", TASK(.submit_timeout_ms = 2), NULL), KL_EFULL);
    CHECK_INT(kl_exec_submit(exec, kl_str("k"), note, "n", TASK(.submit_timeout_ms = KL_NO_WAIT), NULL), KL_EFULL);
    gate_open(&gate);
    kl_exec_close(exec);
}

static kl_outcome submit_when_full(kl_run *run, void *ctx)
{
    /* It would wait for ever if it waited. */
    kl_rc rc = kl_exec_submit(ctx, kl_run_key(run), note, "n", TASK(.submit_timeout_ms = KL_FOREVER), NULL);
    journal_add("%s", kl_rc_name(rc));
    kl_exec_task batch[] = {{kl_str("x"), note, "n", TASK(.submit_timeout_ms = KL_FOREVER)}};
    journal_add("%s", kl_rc_name(kl_exec_submit_batch(ctx, batch, 1, NULL, NULL)));
    return KL_DONE;
}

TEST(a_submit_inside_a_task_never_waits_for_room)
{
    kl_exec *exec = open_exec(OPTS(.threads = 1, .shard_capacity = 1));
    REQUIRE(exec != NULL);
    submit(exec, "k", submit_when_full, exec, NULL);
    journal_await(2);
    CHECK_STR(journal_text(), "KL_EFULL KL_EFULL");
    kl_exec_close(exec);
}

static void submit_in_report(void *ctx, const kl_exec_end *end)
{
    kl_rc rc = kl_exec_submit(ctx, end->key, nothing, NULL, TASK(.submit_timeout_ms = KL_FOREVER), NULL);
    journal_add("%s", kl_rc_name(rc));
    journal_add("%s", kl_rc_name(kl_exec_barrier(ctx, end->key, KL_FOREVER)));
}

TEST(a_submit_or_a_barrier_inside_a_report_never_waits_whoever_reports)
{
    kl_exec *exec = open_exec(OPTS(.threads = 1, .shard_capacity = 1));
    REQUIRE(exec != NULL);
    submit(exec, "k", nothing, NULL, TASK(.end = submit_in_report, .end_ctx = exec));
    journal_await(2);
    AWAIT(tasks_live(exec) == 0);
    kl_exec_id id =
        submit(exec, "k", nothing, NULL, TASK(.delay_ms = 1000000, .end = submit_in_report, .end_ctx = exec));
    CHECK_INT(kl_exec_cancel(exec, id), KL_OK); /* reports on this thread */
    const char *text = journal_text();
    CHECK(strcmp(text, "KL_EFULL KL_EBUSY KL_EFULL KL_EBUSY") == 0 ||
          strcmp(text, "KL_EFULL KL_EBUSY KL_OK KL_EBUSY") == 0); /* its place was lent already */
    kl_exec_close(exec);
}

static kl_outcome submit_to_own_key(kl_run *run, void *ctx)
{
    char key[64] = {0};
    memcpy(key, kl_run_key(run).data, kl_run_key(run).len);
    submit(ctx, key, note, "after", NULL);
    journal_add("during");
    return KL_DONE;
}

TEST(a_task_that_submits_to_its_own_key_does_not_wedge_the_shard)
{
    kl_exec *exec = open_exec(OPTS(.threads = 1, .shard_capacity = 2));
    REQUIRE(exec != NULL);
    for (int i = 0; i < 3; i++) {
        journal_clear();
        submit(exec, "own", submit_to_own_key, exec, NULL);
        journal_await(2);
        CHECK_STR(journal_text(), "during after");
        CHECK_INT(kl_exec_barrier(exec, kl_str("own"), KL_FOREVER), KL_OK);
    }
    kl_exec_close(exec);
}

struct chain {
    kl_exec *exec;
    int left;
    struct tally *over;
};

static kl_outcome go_on(kl_run *run, void *ctx)
{
    struct chain *chain = ctx;
    if (--chain->left > 0)
        CHECK_INT(kl_exec_submit(chain->exec, kl_run_key(run), go_on, chain, NULL, NULL), KL_OK);
    else
        tally_add(chain->over, 1);
    return KL_DONE;
}

TEST(tasks_that_submit_their_successors_to_their_own_keys_go_on_for_long)
{
    enum { CHAINS = 8 };
    struct tally over = TALLY;
    struct chain chains[CHAINS];
    kl_exec *exec = open_exec(OPTS(.threads = 3, .shards = 2, .shard_capacity = 2 * CHAINS));
    REQUIRE(exec != NULL);
    for (int i = 0; i < CHAINS; i++) {
        char key[8];
        snprintf(key, sizeof key, "c%d", i);
        chains[i] = (struct chain){exec, (int)test_ops(20000), &over};
        submit(exec, key, go_on, &chains[i], NULL);
    }
    tally_await(&over, CHAINS);
    kl_exec_close(exec);
}

TEST(a_task_without_a_key_finds_a_shard_with_room)
{
    struct gate gate = GATE;
    kl_exec *exec = open_exec(OPTS(.threads = 1, .shards = 4, .shard_capacity = 2, .submit_timeout_ms = KL_NO_WAIT));
    REQUIRE(exec != NULL);
    submit(exec, "k", hold, &gate, NULL); /* the shard of k has one place left, the others have two */
    gate_await(&gate, 1);
    submit(exec, "k", nothing, NULL, NULL);
    for (int i = 0; i < 6; i++)
        submit_note(exec, "", "free");
    CHECK_INT(kl_exec_submit(exec, kl_str(""), note, "free", NULL, NULL), KL_EFULL);
    gate_open(&gate);
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    CHECK_STR(journal_text(), "free free free free free free");
    kl_exec_close(exec);
}

TEST(a_batch_without_keys_finds_room_in_all_shards)
{
    struct gate gate = GATE;
    kl_exec_id ids[8];
    kl_exec_task batch[8];
    size_t taken = 0;
    kl_exec *exec = open_exec(OPTS(.threads = 1, .shards = 4, .shard_capacity = 2, .submit_timeout_ms = KL_NO_WAIT));
    REQUIRE(exec != NULL);
    submit(exec, "k", hold, &gate, NULL);
    gate_await(&gate, 1);
    for (int i = 0; i < 8; i++)
        batch[i] = (kl_exec_task){kl_str(""), note, "free", NULL};
    CHECK_INT(kl_exec_submit_batch(exec, batch, 8, ids, &taken), KL_EFULL);
    CHECK_INT(taken, 7);
    int zeros = 0;
    for (int i = 0; i < 8; i++)
        zeros += ids[i] == 0;
    CHECK_INT(zeros, 1);
    gate_open(&gate);
    kl_exec_close(exec);
}

/* --- Batches --- */

enum { BATCH_TASKS = 300, BATCH_KEYS = 7 };

/* A batch of notes A0 B0 ... A1 B1 ..., each letter a key. If the last one is long, each chunk is made into orders, else
 * they are plain. */
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
        journal_clear();
        memset(ids, 0, sizeof ids);
        CHECK_INT(kl_exec_submit_batch(exec, batch, BATCH_TASKS, ids, NULL), KL_OK);
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
    kl_exec_task batch[TASKS];
    kl_exec_id ids[TASKS];
    kl_exec *exec = open_exec(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    for (size_t p = 0; p < COUNT(places); p++)
        for (size_t count = places[p] + 1; count <= TASKS; count++) {
            size_t taken = 7;
            memset(ids, 7, sizeof ids);
            for (size_t i = 0; i < count; i++)
                batch[i] = (kl_exec_task){kl_str("k"), i == places[p] ? NULL : note, "ran", NULL};
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

/* --- Ids --- */

TEST(ids_are_never_zero_and_never_used_again)
{
    enum { TASKS = 1000 };
    static kl_exec_id ids[TASKS];
    kl_exec *exec = open_exec(OPTS(.threads = 2, .shards = 3, .shard_capacity = 4, .submit_timeout_ms = KL_FOREVER));
    REQUIRE(exec != NULL);
    for (int i = 0; i < TASKS; i++) {
        char key[8];
        snprintf(key, sizeof key, "%d", i % 5);
        ids[i] = submit(exec, key, nothing, NULL, NULL);
        CHECK(ids[i] != 0);
    }
    for (int i = 0; i < TASKS; i++)
        for (int j = 0; j < i; j++)
            if (ids[i] == ids[j])
                test_fail(__FILE__, __LINE__, "tasks %d and %d have the same id", j, i);
    kl_exec_close(exec);
}

static kl_outcome tell_id(kl_run *run, void *ctx)
{
    *(kl_exec_id *)ctx = kl_run_id(run);
    return KL_DONE;
}

TEST(a_run_knows_its_tasks_id)
{
    kl_exec_id told = 0;
    kl_exec *exec = open_exec(OPTS(.threads = 1, .shards = 4));
    REQUIRE(exec != NULL);
    kl_exec_id id = submit(exec, "k", tell_id, &told, NULL);
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    CHECK(told == id);
    kl_exec_close(exec);
}

TEST(an_id_is_not_found_once_its_task_has_ended_even_when_its_memory_is_used_again)
{
    kl_exec_status status;
    kl_exec *exec = open_exec(OPTS(.threads = 1, .shard_capacity = 1, .submit_timeout_ms = KL_FOREVER));
    REQUIRE(exec != NULL);
    kl_exec_id old = submit(exec, "k", nothing, NULL, NULL);
    await_gone(exec, old);
    struct gate gate = GATE;
    kl_exec_id new = submit(exec, "k", hold, &gate, NULL); /* the only place there is */
    gate_await(&gate, 1);
    CHECK_INT(kl_exec_status_of(exec, old, &status), KL_ENOTFOUND);
    CHECK_INT(kl_exec_cancel(exec, old), KL_ENOTFOUND);
    CHECK_INT(status_of(exec, new).state, KL_EXEC_RUNNING);
    static const kl_exec_id never[] = {0, 1, 2, UINT64_MAX, UINT64_MAX - 1, UINT64_C(1) << 63};
    for (size_t i = 0; i < COUNT(never); i++) {
        if (never[i] == new)
            continue;
        CHECK_INT(kl_exec_status_of(exec, never[i], &status), KL_ENOTFOUND);
        CHECK_INT(kl_exec_cancel(exec, never[i]), KL_ENOTFOUND);
    }
    CHECK(!status_of(exec, new).stop_asked);
    gate_open(&gate);
    kl_exec_close(exec);
}

/* --- Barriers --- */

struct barrier_call {
    kl_exec *exec;
    const char *key;
};

static void wait_at_barrier(void *ctx)
{
    struct barrier_call *call = ctx;
    kl_rc rc = kl_exec_barrier(call->exec, kl_str(call->key), KL_FOREVER);
    journal_add("barrier:%s", kl_rc_name(rc));
}

TEST(a_barrier_waits_for_everything_before_it_and_for_nothing_after_it)
{
    struct gate before = GATE, after = GATE;
    struct helper helper;
    kl_exec *exec = open_frozen(OPTS(.threads = 2));
    REQUIRE(exec != NULL);
    struct barrier_call call = {exec, "k"};
    struct script again = {.name = "a", .plan = "rd", .after_ms = 10};
    submit(exec, "k", hold, &before, NULL);
    submit_script(exec, "k", &again, NULL); /* its retries belong to it */
    submit(exec, "k", note, "delayed", TASK(.delay_ms = 100));
    submit(exec, "k", note, "low", TASK(.priority = 9));
    gate_await(&before, 1);
    atomic_store(&barriers_waiting, 0);
    helper_start(&helper, wait_at_barrier, &call);
    AWAIT(atomic_load(&barriers_waiting) == 1);
    submit(exec, "k", hold, &after, TASK(.priority = 15));
    gate_open(&before);
    await_key(exec, "k", KL_KEY_RETRYING);
    pass_ms(exec, 10);
    journal_await(3);
    CHECK_STR(journal_text(), "a a low");
    gate_await(&after, 1); /* what came after the barrier runs while the barrier waits for the delayed one */
    CHECK_STR(journal_text(), "a a low");
    gate_open(&after);
    await_key(exec, "k", KL_KEY_DELAYED);
    CHECK_STR(journal_text(), "a a low");
    pass_ms(exec, 100);
    helper_join(&helper);
    CHECK_STR(journal_text(), "a a low delayed barrier:KL_OK");
    kl_exec_close(exec);
}

TEST(a_barrier_returns_when_what_was_before_it_was_cancelled)
{
    struct helper helper;
    kl_exec *exec = open_exec(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    struct barrier_call call = {exec, "k"};
    REQUIRE(kl_exec_key_pause(exec, kl_str("k")) == KL_OK);
    kl_exec_id a = submit_note(exec, "k", "a");
    submit_note(exec, "k", "b");
    atomic_store(&barriers_waiting, 0);
    helper_start(&helper, wait_at_barrier, &call);
    AWAIT(atomic_load(&barriers_waiting) == 1);
    CHECK_INT(kl_exec_cancel(exec, a), KL_OK);
    CHECK_STR(journal_text(), "");
    CHECK_INT(kl_exec_key_drain(exec, kl_str("k"), NULL), KL_OK);
    helper_join(&helper);
    CHECK_STR(journal_text(), "barrier:KL_OK");
    kl_exec_close(exec);
}

TEST(a_barrier_of_one_key_does_not_wait_for_another)
{
    struct gate gate = GATE;
    kl_exec *exec = open_exec(OPTS(.threads = 2));
    REQUIRE(exec != NULL);
    submit(exec, "other", hold, &gate, NULL);
    submit_note(exec, "k", "k");
    CHECK_INT(kl_exec_barrier(exec, kl_str("k"), KL_FOREVER), KL_OK);
    CHECK_STR(journal_text(), "k");
    gate_open(&gate);
    kl_exec_close(exec);
}

TEST(a_barrier_says_when_it_waited_in_vain)
{
    struct gate gate = GATE;
    kl_exec *exec = open_exec(OPTS(.threads = 2));
    REQUIRE(exec != NULL);
    submit(exec, "k", hold, &gate, NULL);
    CHECK_INT(kl_exec_barrier(exec, kl_str("k"), 0), KL_ETIMEDOUT);
    CHECK_INT(kl_exec_barrier(exec, kl_str("k"), 1), KL_ETIMEDOUT);
    gate_open(&gate);
    CHECK_INT(kl_exec_barrier(exec, kl_str("k"), KL_FOREVER), KL_OK);
    kl_exec_close(exec);
}

TEST(a_barrier_that_looks_once_finds_an_idle_key_idle)
{
    kl_exec *exec = open_exec(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    for (int i = 0; i < 100; i++)
        CHECK_INT(kl_exec_barrier(exec, kl_str("never used"), 0), KL_OK);
    submit(exec, "k", nothing, NULL, NULL);
    CHECK_INT(kl_exec_barrier(exec, kl_str("k"), KL_FOREVER), KL_OK);
    CHECK_INT(kl_exec_barrier(exec, kl_str("k"), 0), KL_OK);
    kl_exec_close(exec);
}

TEST(a_barrier_needs_no_free_thread)
{
    struct gate gate = GATE;
    kl_exec *exec = open_exec(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    submit_note(exec, "k", "k");
    CHECK_INT(kl_exec_barrier(exec, kl_str("k"), KL_FOREVER), KL_OK);
    submit(exec, "other", hold, &gate, NULL); /* keeps the only thread until the barrier has returned */
    gate_await(&gate, 1);
    CHECK_INT(kl_exec_barrier(exec, kl_str("k"), 1000), KL_OK);
    gate_open(&gate);
    kl_exec_close(exec);
}

TEST(a_barrier_takes_no_place)
{
    struct gate gate = GATE;
    kl_exec *exec = open_exec(OPTS(.threads = 1, .shard_capacity = 2));
    REQUIRE(exec != NULL);
    fill_up(exec, &gate, 2);
    CHECK_INT(kl_exec_barrier(exec, kl_str("idle"), 0), KL_OK);
    CHECK_INT(kl_exec_barrier(exec, kl_str("k"), 1), KL_ETIMEDOUT);
    CHECK_INT(tasks_live(exec), 2);
    gate_open(&gate);
    CHECK_INT(kl_exec_barrier(exec, kl_str("k"), KL_FOREVER), KL_OK);
    kl_exec_close(exec);
}

static kl_outcome wait_inside(kl_run *run, void *ctx)
{
    journal_add("%s", kl_rc_name(kl_exec_barrier(ctx, kl_run_key(run), KL_FOREVER)));
    journal_add("%s", kl_rc_name(kl_exec_barrier(ctx, kl_str("other"), 0)));
    return KL_DONE;
}

TEST(a_barrier_inside_a_task_is_refused)
{
    kl_exec *exec = open_exec(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    submit(exec, "k", wait_inside, exec, NULL);
    journal_await(2);
    CHECK_STR(journal_text(), "KL_EBUSY KL_EBUSY");
    kl_exec_close(exec);
}

static kl_outcome wait_for_another(kl_run *run, void *ctx)
{
    (void)run;
    journal_add("%s", kl_rc_name(kl_exec_barrier(ctx, kl_str("there"), KL_FOREVER)));
    return KL_DONE;
}

TEST(a_task_may_wait_at_a_barrier_of_another_executor)
{
    kl_exec *here = open_exec(OPTS(.threads = 1)), *there = open_exec(OPTS(.threads = 1));
    REQUIRE(here && there);
    submit_note(there, "there", "there");
    submit(here, "here", wait_for_another, there, NULL);
    journal_await(2);
    CHECK_STR(journal_text(), "there KL_OK");
    kl_exec_close(here);
    kl_exec_close(there);
}

static void drain_it(void *exec) { CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK); }

TEST(a_barrier_also_waits_while_the_executor_is_stopping)
{
    struct gate gate = GATE;
    struct helper helper, drainer;
    kl_exec *exec = open_exec(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    struct barrier_call call = {exec, "k"};
    submit(exec, "k", hold, &gate, NULL);
    gate_await(&gate, 1);
    helper_start(&drainer, drain_it, exec);
    AWAIT(kl_exec_submit(exec, kl_str("x"), nothing, NULL, NULL, NULL) == KL_ECLOSED);
    atomic_store(&barriers_waiting, 0);
    helper_start(&helper, wait_at_barrier, &call);
    AWAIT(atomic_load(&barriers_waiting) == 1);
    CHECK_STR(journal_text(), "");
    gate_open(&gate);
    helper_join(&helper);
    helper_join(&drainer);
    CHECK_STR(journal_text(), "barrier:KL_OK");
    CHECK_INT(kl_exec_barrier(exec, kl_str("k"), 0), KL_OK);
    kl_exec_close(exec);
}

TEST(many_barriers_of_one_key_each_wait_for_their_own_past)
{
    enum { BARRIERS = 6 };
    struct helper helpers[BARRIERS];
    struct gate gates[BARRIERS];
    kl_exec *exec = open_exec(OPTS(.threads = 2));
    REQUIRE(exec != NULL);
    struct barrier_call call = {exec, "k"};
    atomic_store(&barriers_waiting, 0);
    for (int i = 0; i < BARRIERS; i++) {
        gates[i] = (struct gate)GATE;
        submit(exec, "k", hold, &gates[i], NULL);
        helper_start(&helpers[i], wait_at_barrier, &call);
        AWAIT(atomic_load(&barriers_waiting) == i + 1);
    }
    for (int i = 0; i < BARRIERS; i++) {
        gate_open(&gates[i]);
        helper_join(&helpers[i]); /* not before its own gate was opened: the next one's is shut */
        CHECK_INT(strlen(journal_text()), (i + 1) * strlen("barrier:KL_OK ") - 1);
    }
    kl_exec_close(exec);
}

/* --- Concurrent submits --- */

struct producer {
    kl_exec *exec;
    int number;
    uint64_t tasks;
    struct helper helper;
};

enum { PRODUCERS = 4, SHARED_KEYS = 3 };

static _Atomic(uint64_t) expected_next[PRODUCERS][SHARED_KEYS];
static atomic_int inside[SHARED_KEYS];

static kl_outcome check_turn(kl_run *run, void *ctx)
{
    uintptr_t packed = (uintptr_t)ctx;
    int key = *(const char *)kl_run_key(run).data - 'a';
    CHECK_INT(atomic_fetch_add(&inside[key], 1), 0);
    CHECK_INT(packed >> 8, atomic_fetch_add(&expected_next[packed & 255][key], 1));
    atomic_fetch_sub(&inside[key], 1);
    return KL_DONE;
}

static void produce(void *ctx)
{
    struct producer *producer = ctx;
    uint64_t next[SHARED_KEYS] = {0};
    static const char *const keys[SHARED_KEYS] = {"a", "b", "c"};
    for (uint64_t i = 0; i < producer->tasks && !test_failed(); i++) {
        uint64_t key = i * 7 % SHARED_KEYS;
        void *packed = (void *)(uintptr_t)(next[key] << 8 | (unsigned)producer->number);
        if (i % 16 == 0) {
            kl_exec_task batch[] = {
                {kl_str(keys[key]), check_turn, packed, NULL},
                {kl_str(keys[key]), check_turn, (void *)((uintptr_t)packed + 256), NULL},
            };
            CHECK_INT(kl_exec_submit_batch(producer->exec, batch, 2, NULL, NULL), KL_OK);
            next[key] += 2;
        } else {
            CHECK_INT(kl_exec_submit(producer->exec, kl_str(keys[key]), check_turn, packed, NULL, NULL), KL_OK);
            next[key]++;
        }
    }
}

TEST(concurrent_submits_for_one_key_are_safe_and_each_threads_own_keep_their_order)
{
    struct producer producers[PRODUCERS];
    kl_exec *exec = open_exec(OPTS(.threads = 3, .shards = 2, .shard_capacity = 64, .submit_timeout_ms = KL_FOREVER));
    REQUIRE(exec != NULL);
    memset(expected_next, 0, sizeof expected_next);
    for (int i = 0; i < PRODUCERS; i++) {
        producers[i] = (struct producer){.exec = exec, .number = i, .tasks = test_ops(40000)};
        helper_start(&producers[i].helper, produce, &producers[i]);
    }
    for (int i = 0; i < PRODUCERS; i++)
        helper_join(&producers[i].helper);
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    kl_exec_close(exec);
}
