/* test_reports.c - reports that take their time: what one of them waits for may be what others are to run. */
#include "exec/support.h"

static kl_outcome open_it(kl_run *run, void *gate)
{
    (void)run;
    gate_open(gate);
    return KL_DONE;
}

static void wait_in_report(void *gate, const kl_exec_end *end)
{
    (void)end;
    gate_pass(gate);
}

/* Both deadlines have passed when a thread comes by. The first task's key can go on once that is reported, and the
 * report of the second waits for that. */
TEST(a_key_whose_task_timed_out_goes_on_while_another_ones_is_reported)
{
    struct gate gate = GATE;
    struct script again = {.name = "t", .plan = "r", .after_ms = 5};
    kl_exec *exec = open_frozen(OPTS(.threads = 2));
    REQUIRE(exec != NULL);
    kl_exec_id first = submit_script(exec, "a", &again, TASK(.deadline_ms = 10));
    await_state(exec, first, KL_EXEC_RETRYING);
    submit(exec, "a", open_it, &gate, NULL);
    REQUIRE(kl_exec_key_pause(exec, kl_str("b")) == KL_OK);
    submit(exec, "b", nothing, NULL, TASK(.deadline_ms = 11, .end = wait_in_report, .end_ctx = &gate));
    CHECK_INT(info_of(exec, "b").tasks, 1); /* it has come in */
    pass_ms(exec, 20);
    AWAIT(tasks_live(exec) == 0);
    kl_exec_close(exec);
}
