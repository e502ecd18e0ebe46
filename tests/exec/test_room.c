/* test_room.c - places: when a shard is full, who waits for room and who gets it, and submits from inside tasks. */
#include "exec/support.h"

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
