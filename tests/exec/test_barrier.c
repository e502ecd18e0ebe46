/* test_barrier.c - barriers: what they wait for, and what not. */
#include "exec/support.h"

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
    submit(exec, "head", hold, &gate, NULL);
    gate_await(&gate, 1);
    submit_note(exec, "k", "n");
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
