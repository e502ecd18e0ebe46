/* test_tasks.c - the life of one task: attempts, back-off, cancel, deadline, status and the reports of its end. */
#include <errno.h>

#include "exec/support.h"

/* --- Outcomes and reports --- */

static void check_end(const char *plan, int64_t attempts_max, const char *expected)
{
    struct script script = {.name = "t", .plan = plan, .after_ms = 1, .tell_attempts = true};
    kl_exec *exec = open_frozen(OPTS(.threads = 1, .on_failure = note_end, .on_failure_ctx = "failure"));
    REQUIRE(exec != NULL);
    kl_exec_id id =
        submit_script(exec, "k", &script, TASK(.attempts_max = attempts_max, .end = note_end, .end_ctx = "end"));
    kl_exec_status status;
    int64_t until = patience();
    while (kl_exec_status_of(exec, id, &status) == KL_OK && still(until))
        if (status.state == KL_EXEC_RETRYING)
            pass_ms(exec, 1);
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    CHECK_STR(journal_text(), expected);
    kl_exec_close(exec);
}

TEST(a_task_that_is_done_is_reported_to_its_owner_and_to_nobody_else) { check_end("d", 0, "t1 end=KL_OK/1"); }

TEST(a_task_that_says_dead_is_not_retried) { check_end("x", 0, "t1 end=KL_EDEAD/1 failure=KL_EDEAD/1"); }

TEST(a_task_that_says_cancelled_is_taken_as_dead) { check_end("c", 0, "t1 end=KL_EDEAD/1 failure=KL_EDEAD/1"); }

TEST(a_task_is_retried_until_it_is_done) { check_end("rrd", 0, "t1 t2 t3 end=KL_OK/3"); }

TEST(a_task_is_retried_as_often_as_its_attempts_allow)
{
    check_end("r", 3, "t1 t2 t3 end=KL_EDEAD/3 failure=KL_EDEAD/3");
    check_end("r", 1, "t1 end=KL_EDEAD/1 failure=KL_EDEAD/1");
    check_end("r", 0, "t1 t2 t3 t4 t5 t6 t7 t8 end=KL_EDEAD/8 failure=KL_EDEAD/8"); /* the executor's default */
}

TEST(an_attempt_that_ends_its_thread_counts_as_a_retry)
{
    check_end("ed", 0, "t1 t2 end=KL_OK/2");
    check_end("kd", 0, "t1 t2 end=KL_OK/2");
    check_end("ekrx", 0, "t1 t2 t3 t4 end=KL_EDEAD/4 failure=KL_EDEAD/4");
    check_end("e", 2, "t1 t2 end=KL_EDEAD/2(the task ended its thread) failure=KL_EDEAD/2(the task ended its thread)");
}

static kl_outcome fail_with_numbers(kl_run *run, void *ctx)
{
    kl_run_error(run, "replaced");
    kl_run_error(run, "attempt %u of %s", kl_run_attempt(run), (const char *)ctx);
    return kl_run_attempt(run) < 3 ? KL_RETRY : KL_DEAD;
}

struct seen {
    int count;
    kl_exec_end end;
    char key[64], error[2 * KL_EXEC_ERROR_BYTES];
};

static void keep_end(void *ctx, const kl_exec_end *end)
{
    struct seen *seen = ctx;
    seen->count++;
    seen->end = *end;
    memcpy(seen->key, end->key.data, end->key.len < sizeof seen->key ? end->key.len : 0);
    snprintf(seen->error, sizeof seen->error, "%s", end->error);
}

static int64_t at_once(void *ctx, uint32_t attempt, uint64_t random)
{
    (void)ctx, (void)attempt, (void)random;
    return 0;
}

TEST(the_error_handler_sees_final_failures_with_attempts_and_the_last_error)
{
    struct seen seen = {0};
    kl_exec *exec = open_exec(OPTS(.shards = 4, .retry = at_once, .on_failure = keep_end, .on_failure_ctx = &seen));
    REQUIRE(exec != NULL);
    kl_exec_id id = submit(exec, "the key", fail_with_numbers, "it", NULL);
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    uint64_t hash;
    uint32_t shard = kl__exec_shard_of(exec, kl_str("the key"), &hash)->index;
    CHECK_INT(seen.count, 1);
    CHECK(seen.end.id == id && seen.end.fn == fail_with_numbers && strcmp(seen.end.ctx, "it") == 0);
    CHECK_INT(seen.end.outcome, KL_DEAD);
    CHECK_INT(seen.end.rc, KL_EDEAD);
    CHECK_INT(seen.end.attempts, 3);
    CHECK_INT(seen.end.shard, shard);
    CHECK_STR(seen.key, "the key");
    CHECK_STR(seen.error, "attempt 3 of it");
    kl_exec_close(exec);
}

static kl_outcome return_anything(kl_run *run, void *ctx)
{
    (void)run, (void)ctx;
    return (kl_outcome)42;
}

TEST(what_is_no_outcome_is_taken_as_dead_with_a_text_that_says_so)
{
    struct seen seen = {0};
    kl_exec *exec = open_exec(OPTS(.on_failure = keep_end, .on_failure_ctx = &seen));
    REQUIRE(exec != NULL);
    submit(exec, "k", return_anything, NULL, NULL);
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    CHECK_INT(seen.end.outcome, KL_DEAD);
    CHECK_CONTAINS(seen.error, "returned 42");
    kl_exec_close(exec);
}

static kl_outcome fail_at_length(kl_run *run, void *ctx)
{
    (void)ctx;
    kl_run_error(run, "%0*d", 2 * KL_EXEC_ERROR_BYTES, 7);
    return KL_DEAD;
}

TEST(an_error_text_is_kept_up_to_its_limit)
{
    struct seen seen = {0};
    kl_exec *exec = open_exec(OPTS(.on_failure = keep_end, .on_failure_ctx = &seen));
    REQUIRE(exec != NULL);
    submit(exec, "k", fail_at_length, NULL, NULL);
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    CHECK_INT(strlen(seen.error), KL_EXEC_ERROR_BYTES - 1);
    kl_exec_close(exec);
}

static kl_outcome fail_first_with_text(kl_run *run, void *ctx)
{
    (void)ctx;
    if (kl_run_attempt(run) == 1)
        kl_run_error(run, "first");
    kl_run_retry_after(run, 10);
    return KL_RETRY;
}

TEST(the_error_in_a_report_is_the_last_attempts_and_not_an_earlier_ones)
{
    kl_exec *exec = open_frozen(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    kl_exec_id id = submit(exec, "k", fail_first_with_text, NULL, TASK(.end = note_end, .end_ctx = "end"));
    await_state(exec, id, KL_EXEC_RETRYING);
    pass_ms(exec, 10);
    AWAIT(status_of(exec, id).state == KL_EXEC_RETRYING && status_of(exec, id).attempts == 2);
    CHECK_INT(kl_exec_cancel(exec, id), KL_OK);
    CHECK_STR(journal_text(), "end=KL_ECANCELLED/2");
    kl_exec_close(exec);
}

TEST(the_text_of_a_retry_is_kept_for_a_report_from_elsewhere)
{
    struct script script = {.name = "t", .plan = "r", .after_ms = 10, .error = "no luck"};
    kl_exec *exec = open_frozen(OPTS(.threads = 1, .on_failure = note_end, .on_failure_ctx = "failure"));
    REQUIRE(exec != NULL);
    kl_exec_id id = submit_script(exec, "k", &script, NULL);
    await_state(exec, id, KL_EXEC_RETRYING);
    CHECK_INT(kl_exec_cancel(exec, id), KL_OK);
    CHECK_STR(journal_text(), "t failure=KL_ECANCELLED/1(no luck)");
    kl_exec_close(exec);
}

static void look_around(void *ctx, const kl_exec_end *end)
{
    kl_exec *exec = ctx;
    char text[1 << 14];
    size_t length;
    kl_key_info info;
    kl_exec_status status;
    CHECK_INT(kl_exec_key_show(exec, end->key, &info), KL_OK);
    CHECK_INT(info.tasks, 2); /* this one and the next, which has not started */
    CHECK_INT(kl_exec_status_of(exec, end->id, &status), KL_ENOTFOUND); /* it has ended, in whatever way */
    CHECK_INT(kl_exec_cancel(exec, end->id), KL_ENOTFOUND);
    CHECK_INT(kl_exec_metrics(exec, text, sizeof text, &length), KL_OK);
    CHECK_INT(kl_exec_submit(exec, kl_str("another"), note, "another", NULL, NULL), KL_OK);
    journal_add("end");
}

TEST(a_report_comes_before_the_next_task_of_the_key_and_with_no_lock_held)
{
    struct gate gate = GATE;
    kl_exec *exec = open_exec(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    submit(exec, "k", hold, &gate, TASK(.end = look_around, .end_ctx = exec));
    submit_note(exec, "k", "next");
    gate_open(&gate);
    journal_await(3);
    CHECK(strcmp(journal_text(), "end another next") == 0 || strcmp(journal_text(), "end next another") == 0);
    kl_exec_close(exec);
}

static kl_outcome hold_and_die(kl_run *run, void *gate)
{
    hold(run, gate);
    return KL_DEAD;
}

TEST(a_task_that_failed_for_good_has_ended_when_it_is_reported)
{
    struct gate gate = GATE;
    kl_exec *exec = open_exec(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    submit(exec, "k", hold_and_die, &gate, TASK(.end = look_around, .end_ctx = exec));
    submit_note(exec, "k", "next");
    gate_open(&gate);
    journal_await(3);
    kl_exec_close(exec);
}

/* --- Back-off --- */

static kl_outcome always_retry(kl_run *run, void *ctx)
{
    (void)run, (void)ctx;
    return KL_RETRY;
}

TEST(back_off_doubles_from_its_base_to_its_limit_with_jitter_of_up_to_half)
{
    enum { KEYS = 40 };
    kl_exec_id ids[KEYS];
    kl_exec *exec = open_frozen(OPTS(.threads = 1, .attempts_max = 12));
    REQUIRE(exec != NULL);
    for (int i = 0; i < KEYS; i++) {
        char key[8];
        snprintf(key, sizeof key, "%d", i);
        ids[i] = submit(exec, key, always_retry, NULL, NULL);
    }
    int64_t full = 100;
    for (uint32_t attempt = 1; attempt < 12; attempt++) {
        int64_t least = INT64_MAX, most = 0;
        for (int i = 0; i < KEYS; i++) {
            AWAIT(status_of(exec, ids[i]).state == KL_EXEC_RETRYING && status_of(exec, ids[i]).attempts == attempt);
            int64_t due = status_of(exec, ids[i]).due_in_ms;
            least = due < least ? due : least;
            most = due > most ? due : most;
        }
        CHECK(least >= full / 2 && most <= full);
        CHECK(most - least >= full / 8); /* 40 draws that all fall within a quarter of the range: 1 in 10^23 */
        pass_ms(exec, full);
        full = full * 2 < 20000 ? full * 2 : 20000;
    }
    kl_exec_close(exec);
}

struct policy {
    uint32_t attempts[8];
    uint64_t random[8];
    int calls;
};

static int64_t own_policy(void *ctx, uint32_t attempt, uint64_t random)
{
    struct policy *policy = ctx;
    policy->attempts[policy->calls] = attempt;
    policy->random[policy->calls++] = random;
    return attempt < 3 ? (int64_t)attempt * 1000 : -1;
}

TEST(a_retry_policy_of_ones_own_chooses_the_delay_and_when_to_give_up)
{
    struct policy policy = {.calls = 0};
    kl_exec *exec = open_frozen(OPTS(.threads = 1, .retry = own_policy, .retry_ctx = &policy));
    REQUIRE(exec != NULL);
    kl_exec_id id = submit(exec, "k", always_retry, NULL, TASK(.end = note_end, .end_ctx = "end"));
    for (uint32_t attempt = 1; attempt < 3; attempt++) {
        AWAIT(status_of(exec, id).state == KL_EXEC_RETRYING && status_of(exec, id).attempts == attempt);
        CHECK_INT(status_of(exec, id).due_in_ms, attempt * 1000);
        pass_ms(exec, attempt * 1000);
    }
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    CHECK_STR(journal_text(), "end=KL_EDEAD/3");
    CHECK_INT(policy.calls, 3);
    CHECK(policy.attempts[0] == 1 && policy.attempts[1] == 2 && policy.attempts[2] == 3);
    CHECK(policy.random[0] != policy.random[1] && policy.random[1] != policy.random[2]);
    kl_exec_close(exec);
}

TEST(a_policy_is_not_asked_when_no_attempt_is_left)
{
    struct policy policy = {.calls = 0};
    kl_exec *exec = open_frozen(OPTS(.threads = 1, .retry = own_policy, .retry_ctx = &policy));
    REQUIRE(exec != NULL);
    submit(exec, "k", always_retry, NULL, TASK(.attempts_max = 1));
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    CHECK_INT(policy.calls, 0);
    kl_exec_close(exec);
}

static kl_outcome retry_after(kl_run *run, void *ctx)
{
    static const int64_t delays[] = {7, 0, -5, INT64_MAX};
    (void)ctx;
    kl_run_retry_after(run, delays[kl_run_attempt(run) - 1]);
    return KL_RETRY;
}

TEST(a_task_says_after_how_long_to_retry)
{
    kl_exec *exec = open_frozen(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    kl_exec_id id = submit(exec, "k", retry_after, NULL, NULL);
    AWAIT(status_of(exec, id).state == KL_EXEC_RETRYING);
    CHECK_INT(status_of(exec, id).due_in_ms, 7);
    pass_ms(exec, 7); /* 0 and less than 0 are at once; more than a century is a century */
    AWAIT(status_of(exec, id).attempts == 4 && status_of(exec, id).state == KL_EXEC_RETRYING);
    CHECK_INT(status_of(exec, id).due_in_ms, KL_EXEC_WAIT_MS_MAX);
    kl_exec_close(exec);
}

static kl_outcome after_then_policy(kl_run *run, void *ctx)
{
    (void)ctx;
    if (kl_run_attempt(run) == 1)
        kl_run_retry_after(run, 7);
    return KL_RETRY;
}

TEST(retry_after_counts_for_one_attempt_only)
{
    struct policy policy = {.calls = 0};
    kl_exec *exec = open_frozen(OPTS(.threads = 1, .retry = own_policy, .retry_ctx = &policy));
    REQUIRE(exec != NULL);
    kl_exec_id id = submit(exec, "k", after_then_policy, NULL, NULL);
    AWAIT(status_of(exec, id).state == KL_EXEC_RETRYING);
    CHECK_INT(status_of(exec, id).due_in_ms, 7);
    pass_ms(exec, 7);
    AWAIT(status_of(exec, id).attempts == 2 && status_of(exec, id).state == KL_EXEC_RETRYING);
    CHECK_INT(status_of(exec, id).due_in_ms, 2000);
    kl_exec_close(exec);
}

static kl_outcome says_much_and_is_done(kl_run *run, void *ctx)
{
    (void)ctx;
    kl_run_error(run, "nobody else's");
    kl_run_retry_after(run, 5000);
    return KL_DONE;
}

static void note_error(void *ctx, const kl_exec_end *end)
{
    (void)ctx;
    journal_add("error=%s.", end->error);
}

TEST(what_a_task_says_that_is_done_does_not_count_for_the_next_one_of_the_thread)
{
    struct policy policy = {.calls = 0};
    kl_exec *exec = open_frozen(OPTS(.threads = 1, .retry = own_policy, .retry_ctx = &policy));
    REQUIRE(exec != NULL);
    submit(exec, "ann", says_much_and_is_done, NULL, NULL);
    CHECK_INT(kl_exec_barrier(exec, kl_str("ann"), KL_FOREVER), KL_OK);
    kl_exec_id id = submit(exec, "bob", always_retry, NULL, TASK(.attempts_max = 2, .end = note_error));
    AWAIT(status_of(exec, id).state == KL_EXEC_RETRYING);
    CHECK_INT(status_of(exec, id).due_in_ms, 1000);
    submit(exec, "ann", says_much_and_is_done, NULL, NULL);
    CHECK_INT(kl_exec_barrier(exec, kl_str("ann"), KL_FOREVER), KL_OK);
    pass_ms(exec, 1000);
    journal_await(1);
    CHECK_STR(journal_text(), "error=.");
    kl_exec_close(exec);
}

TEST(with_the_real_clock_a_retry_and_a_delay_and_a_deadline_come_by_themselves)
{
    struct script script = {.name = "t", .plan = "rd", .after_ms = 2};
    kl_exec *exec = open_exec(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    REQUIRE(kl_exec_key_pause(exec, kl_str("paused")) == KL_OK);
    submit_script(exec, "k", &script, NULL);
    submit(exec, "d", note, "delayed", TASK(.delay_ms = 10));
    submit(exec, "paused", note, "never", TASK(.deadline_ms = 20, .end = note_end, .end_ctx = "end"));
    journal_await(4); /* in whatever order */
    CHECK_CONTAINS(journal_text(), "t ");
    CHECK_CONTAINS(journal_text(), "delayed");
    CHECK_CONTAINS(journal_text(), "end=KL_ETIMEDOUT/0");
    kl_exec_close(exec);
}

/* --- Cancel --- */

TEST(a_waiting_task_that_is_cancelled_never_runs_and_is_reported)
{
    struct gate gate = GATE;
    kl_exec *exec = open_exec(OPTS(.threads = 1, .on_failure = note_end, .on_failure_ctx = "failure"));
    REQUIRE(exec != NULL);
    submit(exec, "k", hold, &gate, NULL);
    gate_await(&gate, 1);
    kl_exec_id waiting = submit(exec, "k", note, "cancelled", TASK(.end = note_end, .end_ctx = "end"));
    submit_note(exec, "k", "next");
    CHECK_INT(status_of(exec, waiting).state, KL_EXEC_WAITING);
    CHECK_INT(kl_exec_cancel(exec, waiting), KL_OK);
    CHECK_STR(journal_text(), "end=KL_ECANCELLED/0 failure=KL_ECANCELLED/0"); /* when cancel returns */
    CHECK_INT(kl_exec_cancel(exec, waiting), KL_ENOTFOUND);
    gate_open(&gate);
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    CHECK_STR(journal_text(), "end=KL_ECANCELLED/0 failure=KL_ECANCELLED/0 next");
    kl_exec_close(exec);
}

TEST(delayed_and_retrying_tasks_can_be_cancelled)
{
    struct script script = {.name = "t", .plan = "r", .after_ms = 100};
    kl_exec *exec = open_frozen(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    kl_exec_id delayed = submit(exec, "d", note, "never", TASK(.delay_ms = 10, .end = note_end, .end_ctx = "delayed"));
    kl_exec_id retrying = submit_script(exec, "r", &script, TASK(.end = note_end, .end_ctx = "retrying"));
    await_state(exec, retrying, KL_EXEC_RETRYING);
    submit_note(exec, "r", "next");
    CHECK_INT(kl_exec_cancel(exec, delayed), KL_OK);
    CHECK_INT(kl_exec_cancel(exec, retrying), KL_OK);
    CHECK_INT(info_of(exec, "d").state, KL_KEY_IDLE);
    journal_await(4); /* its key goes on at once */
    CHECK_STR(journal_text(), "t delayed=KL_ECANCELLED/0 retrying=KL_ECANCELLED/1 next");
    kl_exec_close(exec);
}

TEST(a_running_task_that_is_cancelled_is_asked_to_stop_and_not_retried)
{
    struct gate gate = GATE;
    struct script script = {.name = "t", .plan = "r", .gate = &gate, .heed = true};
    kl_exec *exec = open_frozen(OPTS(.threads = 1, .on_failure = note_end, .on_failure_ctx = "failure"));
    REQUIRE(exec != NULL);
    kl_exec_id id = submit_script(exec, "k", &script, NULL);
    gate_await(&gate, 1);
    CHECK(!status_of(exec, id).stop_asked);
    CHECK_INT(kl_exec_cancel(exec, id), KL_EBUSY);
    CHECK(status_of(exec, id).stop_asked);
    CHECK_INT(kl_exec_cancel(exec, id), KL_EBUSY);
    gate_open(&gate);
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    CHECK_STR(journal_text(), "t t! failure=KL_ECANCELLED/1");
    kl_exec_close(exec);
}

static struct {
    kl_exec *exec;
    kl_exec_id id;
} failed;

static void cancel_failed(void)
{
    kl_exec_status status;
    journal_add("%s", kl_rc_name(kl_exec_cancel(failed.exec, failed.id)));
    journal_add("%s", kl_rc_name(kl_exec_status_of(failed.exec, failed.id, &status)));
}

/* Else the one who cancels it would be told that it is running, and the report that nobody has cancelled it. */
TEST(a_task_of_which_it_is_decided_that_it_has_failed_can_no_longer_be_cancelled)
{
    struct gate gate = GATE;
    struct script dead = {.name = "t", .plan = "x", .gate = &gate};
    kl_exec *exec = failed.exec = open_exec(OPTS(.threads = 1, .on_failure = note_end, .on_failure_ctx = "end"));
    REQUIRE(exec != NULL);
    failed.id = submit_script(exec, "k", &dead, NULL);
    atomic_store(&on_report, cancel_failed);
    gate_open(&gate);
    journal_await(4);
    atomic_store(&on_report, NULL);
    CHECK_STR(journal_text(), "t KL_ENOTFOUND KL_ENOTFOUND end=KL_EDEAD/1");
    kl_exec_close(exec);
}

TEST(a_running_task_that_is_done_in_spite_of_a_cancel_is_done)
{
    struct gate gate = GATE;
    kl_exec *exec = open_exec(OPTS(.threads = 1, .on_failure = note_end, .on_failure_ctx = "failure"));
    REQUIRE(exec != NULL);
    kl_exec_id id = submit(exec, "k", hold, &gate, TASK(.end = note_end, .end_ctx = "end"));
    gate_await(&gate, 1);
    CHECK_INT(kl_exec_cancel(exec, id), KL_EBUSY);
    gate_open(&gate);
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    CHECK_STR(journal_text(), "end=KL_OK/1");
    kl_exec_close(exec);
}

static kl_outcome cancel_itself(kl_run *run, void *exec)
{
    CHECK_INT(kl_exec_cancel(exec, kl_run_id(run)), KL_EBUSY);
    CHECK(kl_run_cancelled(run));
    return KL_RETRY;
}

TEST(a_task_may_cancel_itself)
{
    kl_exec *exec = open_exec(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    submit(exec, "k", cancel_itself, exec, TASK(.end = note_end, .end_ctx = "end"));
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    CHECK_STR(journal_text(), "end=KL_ECANCELLED/1");
    kl_exec_close(exec);
}

/* What ends a retrying task must report it before its key goes on. The report waits a little for the next task, which
 * must not come; when it does not, nothing more is needed than that time. */
static void next_must_wait(void *ctx, const kl_exec_end *end)
{
    int64_t until = kl__deadline_ns(20);
    (void)end;
    while (!strstr(journal_text(), "next") && still(until))
        ;
    journal_add("%s", (const char *)ctx);
}

static void end_while_retrying(kl_exec *exec, kl_exec_id id, int how)
{
    switch (how) {
    case 0:
        CHECK_INT(kl_exec_cancel(exec, id), KL_OK);
        break;
    case 1:
        CHECK_INT(kl_exec_key_skip(exec, kl_str("k")), KL_OK);
        break;
    default:
        pass_ms(exec, 150); /* its deadline */
    }
}

TEST(a_retrying_task_that_is_ended_from_outside_is_reported_before_the_next_of_its_key_starts)
{
    for (int how = 0; how < 3; how++) {
        struct script again = {.name = "t", .plan = "r", .after_ms = 100};
        kl_exec *exec = open_frozen(OPTS(.threads = 2));
        REQUIRE(exec != NULL);
        kl_exec_id id = submit_script(exec, "k", &again,
                                      TASK(.deadline_ms = how == 2 ? 150 : 0, .end = next_must_wait, .end_ctx = "end"));
        await_state(exec, id, KL_EXEC_RETRYING);
        submit_note(exec, "k", "next");
        end_while_retrying(exec, id, how);
        journal_await(3);
        CHECK_STR(journal_text(), "t end next");
        kl_exec_close(exec);
    }
}

/* --- Deadline --- */

TEST(a_waiting_task_ends_as_timed_out_at_its_deadline)
{
    struct gate gate = GATE;
    kl_exec *exec = open_frozen(OPTS(.threads = 2, .on_failure = note_end, .on_failure_ctx = "failure"));
    REQUIRE(exec != NULL);
    submit(exec, "k", hold, &gate, NULL);
    gate_await(&gate, 1);
    kl_exec_id id = submit(exec, "k", note, "never", TASK(.deadline_ms = 10, .end = note_end, .end_ctx = "end"));
    submit_note(exec, "k", "next");
    CHECK_INT(status_of(exec, id).state, KL_EXEC_WAITING);
    pass_ms(exec, 9);
    CHECK_INT(status_of(exec, id).state, KL_EXEC_WAITING);
    pass_ms(exec, 1);
    journal_await(2); /* while its key still runs something else */
    gate_open(&gate);
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    CHECK_STR(journal_text(), "end=KL_ETIMEDOUT/0 failure=KL_ETIMEDOUT/0 next");
    kl_exec_close(exec);
}

TEST(a_task_whose_deadline_passed_while_all_threads_were_busy_does_not_start)
{
    struct gate gate = GATE;
    kl_exec *exec = open_frozen(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    submit(exec, "busy", hold, &gate, NULL);
    gate_await(&gate, 1);
    submit(exec, "k", note, "never", TASK(.deadline_ms = 10, .end = note_end, .end_ctx = "end"));
    pass_ms(exec, 20);
    gate_open(&gate);
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    CHECK_STR(journal_text(), "end=KL_ETIMEDOUT/0");
    kl_exec_close(exec);
}

TEST(paused_delayed_and_retrying_tasks_end_at_their_deadlines_too)
{
    struct script script = {.name = "t", .plan = "r", .after_ms = 5};
    kl_exec *exec = open_frozen(OPTS(.threads = 1, .on_failure = note_end, .on_failure_ctx = "failure"));
    REQUIRE(exec != NULL);
    REQUIRE(kl_exec_key_pause(exec, kl_str("p")) == KL_OK);
    submit(exec, "p", note, "never", TASK(.deadline_ms = 10));
    pass_ms(exec, 10);
    journal_await(1);
    CHECK_STR(journal_text(), "failure=KL_ETIMEDOUT/0");

    journal_clear();
    submit(exec, "d", note, "never", TASK(.deadline_ms = 10, .delay_ms = 20));
    pass_ms(exec, 10);
    journal_await(1);
    CHECK_STR(journal_text(), "failure=KL_ETIMEDOUT/0");

    journal_clear();
    kl_exec_id id = submit_script(exec, "r", &script, TASK(.deadline_ms = 7)); /* the second retry would be too late */
    await_state(exec, id, KL_EXEC_RETRYING);
    pass_ms(exec, 5);
    journal_await(3);
    CHECK_STR(journal_text(), "t t failure=KL_ETIMEDOUT/2");
    await_gone(exec, id);

    journal_clear();
    kl_exec_id held = submit_script(exec, "h", &script, TASK(.deadline_ms = 7));
    await_state(exec, held, KL_EXEC_RETRYING);
    REQUIRE(kl_exec_key_pause(exec, kl_str("h")) == KL_OK); /* so that it is still held when its deadline comes */
    pass_ms(exec, 7);
    journal_await(2);
    CHECK_STR(journal_text(), "t failure=KL_ETIMEDOUT/1");
    kl_exec_close(exec);
}

TEST(a_running_task_past_its_deadline_is_asked_to_stop_and_not_retried)
{
    struct gate gate = GATE;
    struct script script = {.name = "t", .plan = "r", .gate = &gate, .heed = true};
    kl_exec *exec = open_frozen(OPTS(.threads = 2, .on_failure = note_end, .on_failure_ctx = "failure"));
    REQUIRE(exec != NULL);
    kl_exec_id id = submit_script(exec, "k", &script, TASK(.deadline_ms = 10));
    gate_await(&gate, 1);
    CHECK(!status_of(exec, id).stop_asked);
    pass_ms(exec, 10);
    AWAIT(status_of(exec, id).stop_asked);
    gate_open(&gate);
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    CHECK_STR(journal_text(), "t t! failure=KL_ETIMEDOUT/1");
    kl_exec_close(exec);
}

/* The task itself sees it, even when every thread is busy with such tasks. */
TEST(a_running_task_sees_its_deadline_pass_with_no_thread_to_spare)
{
    struct gate gate = GATE;
    struct script script = {.name = "t", .plan = "x", .gate = &gate, .heed = true};
    kl_exec *exec = open_frozen(OPTS(.threads = 1, .on_failure = note_end, .on_failure_ctx = "failure"));
    REQUIRE(exec != NULL);
    kl_exec_id id = submit_script(exec, "k", &script, TASK(.deadline_ms = 10));
    gate_await(&gate, 1);
    pass_ms(exec, 10);
    CHECK(status_of(exec, id).stop_asked);
    gate_open(&gate);
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    CHECK_STR(journal_text(), "t t! failure=KL_ETIMEDOUT/1");
    kl_exec_close(exec);
}

TEST(a_task_that_is_done_in_spite_of_its_deadline_is_done)
{
    struct gate gate = GATE;
    kl_exec *exec = open_frozen(OPTS(.threads = 2));
    REQUIRE(exec != NULL);
    kl_exec_id id = submit(exec, "k", hold, &gate, TASK(.deadline_ms = 10, .end = note_end, .end_ctx = "end"));
    gate_await(&gate, 1);
    pass_ms(exec, 10);
    AWAIT(status_of(exec, id).stop_asked);
    gate_open(&gate);
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    CHECK_STR(journal_text(), "end=KL_OK/1");
    kl_exec_close(exec);
}

TEST(many_deadlines_end_in_their_order)
{
    struct gate gate = GATE;
    static char names[20][8];
    static const int order[] = {13, 2, 19, 7, 0, 11, 5, 17, 3, 8, 15, 1, 10, 18, 6, 12, 4, 16, 9, 14};
    kl_exec *exec = open_frozen(OPTS(.threads = 2));
    REQUIRE(exec != NULL);
    submit(exec, "k", hold, &gate, NULL);
    gate_await(&gate, 1);
    for (size_t i = 0; i < COUNT(order); i++) {
        snprintf(names[i], sizeof names[i], "%d", order[i]);
        submit(exec, "k", nothing, NULL, TASK(.deadline_ms = 10 + 10 * order[i], .end = note_end, .end_ctx = names[i]));
    }
    for (int i = 0; i < 20; i++) {
        char expected[32];
        journal_clear();
        pass_ms(exec, 10);
        journal_await(1);
        snprintf(expected, sizeof expected, "%d=KL_ETIMEDOUT/0", i);
        CHECK_STR(journal_text(), expected);
    }
    gate_open(&gate);
    kl_exec_close(exec);
}

/* --- Status --- */

TEST(a_status_tells_state_attempts_and_when_it_is_due)
{
    struct gate gate = GATE;
    struct script script = {.name = "t", .plan = "rd", .after_ms = 30};
    kl_exec *exec = open_frozen(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    kl_exec_id id = submit_script(exec, "k", &script, TASK(.delay_ms = 50));
    kl_exec_status status = status_of(exec, id);
    CHECK(status.state == KL_EXEC_DELAYED && status.attempts == 0 && status.due_in_ms == 50 && !status.stop_asked);
    pass_ms(exec, 50);
    await_state(exec, id, KL_EXEC_RETRYING);
    status = status_of(exec, id);
    CHECK(status.attempts == 1 && status.due_in_ms == 30);
    submit(exec, "busy", hold, &gate, NULL);
    gate_await(&gate, 1);
    kl_exec_id next = submit_note(exec, "k", "next");
    status = status_of(exec, next);
    CHECK(status.state == KL_EXEC_WAITING && status.attempts == 0 && status.due_in_ms == 0);
    script.gate = &gate;
    gate_open(&gate);
    kl_exec_close(exec);
}

TEST(a_task_whose_retry_or_delay_is_over_waits_in_line_for_a_thread)
{
    struct gate gate = GATE;
    struct script script = {.name = "t", .plan = "rd", .after_ms = 30};
    kl_exec *exec = open_frozen(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    kl_exec_id retrying = submit_script(exec, "r", &script, NULL);
    await_state(exec, retrying, KL_EXEC_RETRYING);
    submit(exec, "busy", hold, &gate, NULL);
    gate_await(&gate, 1);
    kl_exec_id delayed = submit(exec, "d", note, "d", TASK(.delay_ms = 30));
    CHECK_INT(status_of(exec, delayed).state, KL_EXEC_DELAYED);
    pass_ms(exec, 30);
    CHECK_INT(info_of(exec, "d").state, KL_KEY_READY);
    CHECK_INT(info_of(exec, "r").state, KL_KEY_READY);
    CHECK_INT(status_of(exec, delayed).state, KL_EXEC_WAITING);
    gate_open(&gate);
    kl_exec_close(exec);
}

TEST(a_running_task_has_at_least_one_attempt)
{
    kl_exec_status status;
    kl_exec *exec = open_exec(OPTS(.threads = 2));
    REQUIRE(exec != NULL);
    for (uint64_t i = 0; i < test_ops(3000); i++) {
        kl_exec_id id = submit(exec, "k", nothing, NULL, NULL);
        int64_t until = patience();
        while (kl_exec_status_of(exec, id, &status) == KL_OK && still(until))
            CHECK(status.state != KL_EXEC_RUNNING || status.attempts == 1);
    }
    kl_exec_close(exec);
}

TEST(a_running_task_that_was_cancelled_is_cancelled_although_its_deadline_passes_then)
{
    struct gate gate = GATE;
    struct script script = {.name = "t", .plan = "r", .gate = &gate};
    kl_exec *exec = open_frozen(OPTS(.threads = 2));
    REQUIRE(exec != NULL);
    kl_exec_id id = submit_script(exec, "k", &script, TASK(.deadline_ms = 10, .end = note_end, .end_ctx = "t"));
    gate_await(&gate, 1);
    CHECK_INT(kl_exec_cancel(exec, id), KL_EBUSY);
    pass_ms(exec, 20);
    AWAIT(atomic_load(&exec->shards[0].next_due) == KL_NEVER); /* the other thread has seen it pass */
    gate_open(&gate);
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    CHECK_STR(journal_text(), "t t=KL_ECANCELLED/1");
    kl_exec_close(exec);
}

/* --- Threads that end --- */

TEST(a_thread_that_ended_is_replaced_even_when_no_thread_can_be_had_for_a_while)
{
    struct script script = {.name = "t", .plan = "ed", .after_ms = 1};
    kl_exec *exec = open_exec(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    fail_threads(0, 2, EAGAIN);
    submit_script(exec, "k", &script, NULL);
    journal_await(2);
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    fail_threads(0, 0, 0);
    CHECK_STR(journal_text(), "t t");
    kl_exec_close(exec);
}

/* One thread takes both and runs the first; nobody else has seen the second, whose time must not be missed for that. */
TEST(a_deadline_in_a_batch_is_kept_while_the_task_before_it_runs)
{
    struct gate gate = GATE;
    kl_exec *exec = open_exec(OPTS(.threads = 2));
    REQUIRE(exec);
    journal_clear();
    kl_exec_task tasks[] = {
        {.key = kl_str("k"), .fn = hold, .ctx = &gate},
        {.key = kl_str("k"), .fn = nothing, .opts = TASK(.deadline_ms = 20, .end = note_end, .end_ctx = "late")}};
    CHECK_INT(kl_exec_submit_batch(exec, tasks, COUNT(tasks), NULL, NULL), KL_OK);
    journal_await(1);
    CHECK_CONTAINS(journal_text(), "late=KL_ETIMEDOUT");
    gate_open(&gate);
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    kl_exec_close(exec);
}
