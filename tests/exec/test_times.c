/* test_times.c - nothing is early, and nothing is started late: delays, retries and deadlines to the nanosecond. */
#include "exec/support.h"

enum { PART_NS = 9 * MS / 10 };

/* Looks at the deadlines as a thread does that comes by. */
static void come_by(kl_exec *exec)
{
    kl__shard *shard = &exec->shards[0];
    pthread_mutex_lock(&shard->mutex);
    kl__shard_expire(shard, kl__exec_now_ns(exec));
    kl__shard_offer(shard);
    pthread_mutex_unlock(&shard->mutex);
}

TEST(a_delayed_task_does_not_start_in_the_millisecond_before_its_time)
{
    kl_exec *exec = open_frozen(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    pass_ns(exec, PART_NS);
    kl_exec_id id = submit(exec, "k", note, "due", TASK(.delay_ms = 2));
    CHECK_INT(status_of(exec, id).due_in_ms, 2);
    pass_ns(exec, 2 * MS - 1);
    CHECK_INT(status_of(exec, id).state, KL_EXEC_DELAYED);
    pass_ns(exec, MS);
    journal_await(1);
    CHECK_STR(journal_text(), "due");
    kl_exec_close(exec);
}

TEST(a_retry_does_not_start_in_the_millisecond_before_its_time)
{
    struct script script = {.name = "t", .plan = "rd", .after_ms = 2};
    kl_exec *exec = open_frozen(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    pass_ns(exec, PART_NS);
    kl_exec_id id = submit_script(exec, "k", &script, NULL);
    await_state(exec, id, KL_EXEC_RETRYING);
    pass_ns(exec, 2 * MS - 1);
    CHECK_INT(status_of(exec, id).state, KL_EXEC_RETRYING);
    pass_ns(exec, MS);
    journal_await(2);
    kl_exec_close(exec);
}

TEST(a_deadline_does_not_pass_in_the_millisecond_before_its_time)
{
    kl_exec *exec = open_frozen(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    REQUIRE(kl_exec_key_pause(exec, kl_str("k")) == KL_OK);
    pass_ns(exec, PART_NS);
    submit(exec, "k", note, "never", TASK(.deadline_ms = 1, .end = note_end, .end_ctx = "end"));
    CHECK_INT(info_of(exec, "k").tasks, 1); /* it has come in */
    pass_ns(exec, MS - 1);
    come_by(exec);
    CHECK_INT(info_of(exec, "k").tasks, 1);
    CHECK_STR(journal_text(), "");
    pass_ns(exec, MS);
    journal_await(1);
    CHECK_STR(journal_text(), "end=KL_ETIMEDOUT/0");
    kl_exec_close(exec);
}

/* A submit that waited for room may publish its task when the deadline has passed, and a thread see it then that has
 * looked for such just before. */
TEST(a_task_that_comes_in_after_its_deadline_is_not_started)
{
    struct gate gate = GATE;
    kl__lane_task *tasks[KL_HAND_MAX];
    kl_exec *exec = open_frozen(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    submit(exec, "held", hold, &gate, NULL);
    gate_await(&gate, 1);
    submit(exec, "k", note, "late", TASK(.deadline_ms = 5, .end = note_end, .end_ctx = "end"));
    pass_ms(exec, 5);
    kl__shard *shard = &exec->shards[0];
    int64_t now_ns = kl__exec_now_ns(exec);
    pthread_mutex_lock(&shard->mutex);
    CHECK_INT(kl__shard_start(shard, tasks, KL_HAND_MAX, &now_ns), 0);
    kl__shard_offer(shard);
    pthread_mutex_unlock(&shard->mutex);
    CHECK_STR(journal_text(), "end=KL_ETIMEDOUT/0");
    gate_open(&gate);
    kl_exec_close(exec);
}

static kl_exec *slow_exec;

static void report_slowly(void *ctx, const kl_exec_end *end)
{
    pass_ms(slow_exec, 50);
    note_end(ctx, end);
}

TEST(a_deadline_that_passes_while_another_is_reported_counts)
{
    struct gate gate = GATE;
    slow_exec = open_frozen(OPTS(.threads = 1));
    REQUIRE(slow_exec != NULL);
    submit(slow_exec, "held", hold, &gate, NULL);
    gate_await(&gate, 1);
    submit(slow_exec, "x", note, "x runs", TASK(.deadline_ms = 10, .end = report_slowly, .end_ctx = "x"));
    submit(slow_exec, "y", note, "y runs", TASK(.deadline_ms = 30, .end = note_end, .end_ctx = "y"));
    pass_ms(slow_exec, 10);
    gate_open(&gate);
    journal_await(2);
    CHECK_STR(journal_text(), "x=KL_ETIMEDOUT/0 y=KL_ETIMEDOUT/0");
    kl_exec_close(slow_exec);
}

/* Its deadline passes when it has been taken, and then its thread ends before it has been started. */
static void end_thread_too_late(kl__lane_task **tasks, uint32_t count)
{
    (void)tasks;
    if (count != 1 || !slow_exec)
        return;
    kl_exec *exec = slow_exec;
    slow_exec = NULL;
    pass_ms(exec, 50);
    kl__shard_expire(&exec->shards[0],
                     kl__exec_now_ns(exec)); /* as another thread does that comes by; the mutex is held */
    pthread_cancel(pthread_self());
}

TEST(a_task_that_was_taken_in_time_and_not_started_is_not_started_late)
{
    kl_exec *exec = slow_exec = open_frozen(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    atomic_store(&on_take, end_thread_too_late);
    submit(exec, "k", note, "late", TASK(.deadline_ms = 10, .end = note_end, .end_ctx = "end"));
    journal_await(1);
    AWAIT(tasks_live(exec) == 0);
    atomic_store(&on_take, NULL);
    CHECK_STR(journal_text(), "end=KL_ETIMEDOUT/0");
    kl_exec_close(exec);
}
