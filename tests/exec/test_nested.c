/* test_nested.c - a report of one executor inside a task of another: what must not wait for itself does not. */
#include "exec/support.h"

struct nested {
    kl_exec *outer, *inner;
    kl_exec_id inner_id;
};

/* The inner executor's report, inside the outer one's only task. */
static void ask_outer(void *ctx, const kl_exec_end *end)
{
    struct nested *nested = ctx;
    (void)end;
    kl_rc rc = kl_exec_barrier(nested->outer, kl_str("own"), 0);
    journal_add("%s", kl_rc_name(rc));
    own_time = (struct own_time){.is_on = true, .now_ns = kl__monotonic_ns()};
    int64_t start_ns = own_time.now_ns;
    journal_add("%s", kl_rc_name(kl_exec_submit(nested->outer, kl_str("k"), nothing, NULL,
                                                TASK(.submit_timeout_ms = 100), NULL)));
    journal_add("%d", (int)((own_time.now_ns - start_ns) / MS));
    own_time.is_on = false;
    if (rc == KL_EBUSY) /* else it would wait for ever */
        journal_add("%s", kl_rc_name(kl_exec_drain(nested->outer, 0)));
}

static kl_outcome cancel_inner(kl_run *run, void *ctx)
{
    struct nested *nested = ctx;
    (void)run;
    journal_add("%s", kl_rc_name(kl_exec_cancel(nested->inner, nested->inner_id)));
    return KL_DONE;
}

TEST(a_report_of_another_executor_inside_a_task_does_not_wait_for_that_task)
{
    struct gate gate = GATE;
    struct nested nested = {.inner = open_exec(OPTS(.threads = 1)),
                            .outer = open_exec(OPTS(.threads = 1, .shard_capacity = 1))};
    REQUIRE(nested.inner && nested.outer);
    submit(nested.inner, "held", hold, &gate, NULL);
    gate_await(&gate, 1);
    nested.inner_id = submit(nested.inner, "k", nothing, NULL, TASK(.end = ask_outer, .end_ctx = &nested));
    submit(nested.outer, "own", cancel_inner, &nested, NULL);
    journal_await(5);
    CHECK_STR(journal_text(), "KL_EBUSY KL_EFULL 0 KL_EBUSY KL_OK");
    gate_open(&gate);
    kl_exec_close(nested.outer);
    kl_exec_close(nested.inner);
}

static void wait_for_outer(void *ctx, const kl_exec_end *end)
{
    struct nested *nested = ctx;
    (void)end;
    journal_add("%s", kl_rc_name(kl_exec_barrier(nested->outer, kl_str("other"), KL_FOREVER)));
}

TEST(a_report_outside_of_any_task_may_wait_for_another_executor)
{
    struct gate gate = GATE;
    struct nested nested = {.inner = open_exec(OPTS(.threads = 1)), .outer = open_exec(OPTS(.threads = 1))};
    REQUIRE(nested.inner && nested.outer);
    submit(nested.inner, "held", hold, &gate, NULL);
    gate_await(&gate, 1);
    nested.inner_id = submit(nested.inner, "k", nothing, NULL, TASK(.end = wait_for_outer, .end_ctx = &nested));
    submit_note(nested.outer, "other", "other");
    CHECK_INT(kl_exec_cancel(nested.inner, nested.inner_id), KL_OK);
    CHECK_STR(journal_text(), "other KL_OK");
    gate_open(&gate);
    kl_exec_close(nested.outer);
    kl_exec_close(nested.inner);
}
