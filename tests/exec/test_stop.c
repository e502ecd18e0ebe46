/* test_stop.c - drain, drain with a deadline, abort, close: from everywhere, and against everything. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "exec/support.h"

static void open_gate(void *gate) { gate_open(gate); }
static void abort_it(void *exec) { kl_exec_abort(exec); }

static void count_end(void *ctx, const kl_exec_end *end)
{
    (void)end;
    tally_add(ctx, 1);
}

/* --- Drain --- */

TEST(drain_runs_everything_that_was_taken_in_order)
{
    struct gate gate = GATE;
    struct helper opener;
    kl_exec *exec = open_exec(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    submit(exec, "k", hold, &gate, NULL);
    static const char *const names[] = {"1", "2", "3", "4"};
    for (int i = 0; i < 4; i++)
        submit_note(exec, "k", names[i]);
    helper_start(&opener, open_gate, &gate);
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    CHECK_STR(journal_text(), "1 2 3 4");
    helper_join(&opener);
    kl_exec_close(exec);
}

TEST(after_a_stop_nothing_is_taken)
{
    for (int aborted = 0; aborted < 2; aborted++) {
        kl_exec_id id = 3, ids[2] = {3, 3};
        size_t taken = 3;
        kl_exec *exec = open_exec(OPTS(.threads = 1));
        REQUIRE(exec != NULL);
        CHECK_INT(aborted ? kl_exec_abort(exec) : kl_exec_drain(exec, KL_FOREVER), KL_OK);
        CHECK_INT(kl_exec_submit(exec, kl_str("k"), nothing, NULL, NULL, &id), KL_ECLOSED);
        CHECK_INT(kl_exec_submit(exec, kl_str(""), nothing, NULL, NULL, &id), KL_ECLOSED);
        CHECK_INT(id, 3);
        CHECK_INT(kl_rc_class(KL_ECLOSED), KL_CLASS_FATAL);
        kl_exec_task batch[] = {{kl_str("k"), nothing, NULL, NULL}, {kl_str(""), nothing, NULL, NULL}};
        CHECK_INT(kl_exec_submit_batch(exec, batch, 2, ids, &taken), KL_ECLOSED);
        CHECK(taken == 0 && ids[0] == 0 && ids[1] == 0);
        CHECK_INT(info_of(exec, "k").state, KL_KEY_IDLE);
        kl_exec_close(exec);
    }
}

TEST(stopping_again_is_fine_in_any_order)
{
    kl_exec *exec = open_exec(OPTS(.threads = 2));
    REQUIRE(exec != NULL);
    submit_note(exec, "k", "k");
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    CHECK_INT(kl_exec_drain(exec, 0), KL_OK);
    CHECK_INT(kl_exec_abort(exec), KL_OK);
    CHECK_INT(kl_exec_abort(exec), KL_OK);
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    CHECK_STR(journal_text(), "k");
    kl_exec_close(exec);
}

TEST(a_drain_or_a_barrier_with_a_negative_wait_is_refused_and_starts_nothing)
{
    static const int64_t wrong[] = {KL_NO_WAIT, -5, INT64_MIN};
    kl_exec *exec = open_exec(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    for (size_t i = 0; i < COUNT(wrong); i++) {
        CHECK_INT(kl_exec_drain(exec, wrong[i]), KL_EINVAL);
        CHECK_CONTAINS(kl_error_text(), "kl_exec_drain: wait_ms is -");
        CHECK_CONTAINS(kl_error_text(), "it must be 0 (do not wait), a number of milliseconds or KL_FOREVER");
        CHECK_INT(kl_exec_barrier(exec, kl_str("k"), wrong[i]), KL_EINVAL);
        CHECK_CONTAINS(kl_error_text(), "kl_exec_barrier: wait_ms is -");
        submit_note(exec, "k", "taken");
    }
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    CHECK_STR(journal_text(), "taken taken taken");
    kl_exec_close(exec);
}

TEST(drain_waits_for_retries_and_delays)
{
    struct script again = {.name = "again", .plan = "rrd", .after_ms = 2};
    kl_exec *exec = open_exec(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    submit_script(exec, "k", &again, NULL);
    submit_note(exec, "k", "next");
    submit(exec, "d", note, "delayed", TASK(.delay_ms = 30));
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    journal_await(5);
    CHECK_CONTAINS(journal_text(), "delayed"); /* when, is a matter of time */
    const char *third = journal_text();
    for (int i = 0; i < 3 && (third = strstr(third, "again")); i++)
        third++;
    CHECK(third && strstr(third, "next"));
    kl_exec_close(exec);
}

TEST(drain_resumes_paused_keys_and_none_can_be_paused_then)
{
    struct script again = {.name = "again", .plan = "rd", .after_ms = 100000};
    kl_exec *exec = open_exec(OPTS(.threads = 2));
    REQUIRE(exec != NULL);
    submit_script(exec, "retrying", &again, NULL);
    await_key(exec, "retrying", KL_KEY_RETRYING);
    CHECK_INT(kl_exec_key_pause(exec, kl_str("retrying")), KL_OK);
    CHECK_INT(kl_exec_key_pause(exec, kl_str("k")), KL_OK);
    CHECK_INT(kl_exec_key_pause(exec, kl_str("empty")), KL_OK);
    submit_note(exec, "k", "k");
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    CHECK_INT(kl_exec_key_pause(exec, kl_str("k")), KL_ECLOSED);
    CHECK(strcmp(journal_text(), "again again k") == 0 || strcmp(journal_text(), "again k again") == 0);
    kl_exec_close(exec);
}

TEST(a_drain_that_takes_too_long_gives_up_and_reports_the_rest)
{
    kl_exec *exec = open_exec(OPTS(.threads = 1, .on_failure = note_end, .on_failure_ctx = "failure"));
    REQUIRE(exec != NULL);
    submit(exec, "d", note, "never", TASK(.delay_ms = 1000000));
    REQUIRE(kl_exec_key_pause(exec, kl_str("p")) == KL_OK);
    CHECK_INT(kl_exec_drain(exec, 1), KL_ETIMEDOUT);
    CHECK_STR(journal_text(), "failure=KL_ECLOSED/0");
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_ECLOSED); /* now everything has ended, but not by itself */
    CHECK_CONTAINS(kl_error_text(), "1 task was given up");
    kl_exec_close(exec);
}

static kl_outcome until_asked(kl_run *run, void *ctx)
{
    int64_t until = patience();
    gate_open(ctx);
    while (!kl_run_cancelled(run) && still(until))
        ;
    journal_add("%s", kl_run_cancelled(run) ? "asked" : "not asked");
    return KL_RETRY;
}

TEST(a_drain_that_takes_too_long_returns_once_running_tasks_have)
{
    struct gate started = GATE;
    kl_exec *exec = open_exec(OPTS(.threads = 1, .on_failure = note_end, .on_failure_ctx = "failure"));
    REQUIRE(exec != NULL);
    submit(exec, "k", until_asked, &started, NULL);
    gate_pass(&started);
    CHECK_INT(kl_exec_drain(exec, 1), KL_ETIMEDOUT);
    CHECK_STR(journal_text(), "asked failure=KL_ECLOSED/1");
    kl_exec_close(exec);
}

TEST(a_drain_of_no_time_gives_up_what_has_not_ended)
{
    struct tally failures = TALLY;
    kl_exec *exec = open_exec(OPTS(.threads = 1, .on_failure = count_end, .on_failure_ctx = &failures));
    REQUIRE(exec != NULL);
    submit(exec, "d", note, "never", TASK(.delay_ms = 1000000));
    CHECK_INT(kl_exec_drain(exec, 0), KL_ETIMEDOUT);
    CHECK_INT(tally_read(&failures), 1);
    kl_exec_close(exec);
}

/* --- Abort --- */

static void drain_and_note(void *exec) { journal_add("%s", kl_rc_name(kl_exec_drain(exec, KL_FOREVER))); }

/* The running task's plan is `plan`, and another one may wait behind it. */
static void abort_a_drain(const char *plan, bool waits, const char *expected)
{
    struct gate gate = GATE;
    struct script runs = {.name = "t", .plan = plan, .gate = &gate};
    struct helper helper;
    kl_exec *exec = open_exec(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    submit_script(exec, "k", &runs, NULL);
    gate_await(&gate, 1);
    if (waits)
        submit_note(exec, "k", "never");
    helper_start(&helper, drain_and_note, exec);
    AWAIT(atomic_load(&exec->phase) == KL_EXEC_DRAINING);
    struct helper aborter;
    helper_start(&aborter, abort_it, exec);
    AWAIT(atomic_load(&exec->phase) == KL_EXEC_ABORTING);
    gate_open(&gate);
    helper_join(&aborter);
    helper_join(&helper);
    CHECK_STR(journal_text(), expected);
    kl_exec_close(exec);
}

TEST(a_drain_says_when_an_abort_has_given_up_what_it_waited_for)
{
    abort_a_drain("d", true, "t KL_ECLOSED");
    abort_a_drain("r", false, "t KL_ECLOSED");
    abort_a_drain("d", false, "t KL_OK"); /* then nothing was given up */
}

enum { PLACES = 8, SPARE = 2 };

/* A shard that is full while its spare places are lent: one task waits for its retry, one key is paused, one task runs
 * and the others stand behind it. Returns the id of the last, which lives in spare memory. */
static kl_exec_id fill_beyond(kl_exec *exec, struct script *failing, struct gate *gate)
{
    kl_exec_id last = 0;
    await_state(exec, submit_script(exec, "bad", failing, NULL), KL_EXEC_RETRYING);
    CHECK_INT(kl_exec_key_pause(exec, kl_str("paused")), KL_OK);
    submit_note(exec, "paused", "p");
    CHECK_INT(info_of(exec, "paused").tasks, 1);
    CHECK_INT(places_taken(exec), 0);
    submit(exec, "line", hold, gate, NULL);
    gate_await(gate, 1);
    for (int i = 1; i < PLACES; i++)
        last = submit_note(exec, "line", "n");
    CHECK_INT(kl_exec_submit(exec, kl_str("line"), nothing, NULL, NULL, NULL), KL_EFULL);
    CHECK_INT(tasks_live(exec), PLACES + SPARE);
    return last;
}

static kl_exec *open_to_fill(void)
{
    return open_frozen(OPTS(.threads = 1, .shard_capacity = PLACES, .submit_timeout_ms = KL_NO_WAIT,
                            .on_failure = note_end, .on_failure_ctx = "f"));
}

TEST(a_task_in_spare_memory_has_an_id_like_any_other)
{
    struct gate gate = GATE;
    struct script failing = {.name = "x", .plan = "rd", .after_ms = 50};
    kl_exec *exec = open_to_fill();
    REQUIRE(exec != NULL);
    kl_exec_id last = fill_beyond(exec, &failing, &gate);
    CHECK((last & ((UINT64_C(1) << exec->index_bits) - 1)) > PLACES);
    CHECK_INT(status_of(exec, last).state, KL_EXEC_WAITING);
    CHECK_INT(kl_exec_cancel(exec, last), KL_OK);
    CHECK_INT(kl_exec_cancel(exec, last), KL_ENOTFOUND);
    CHECK_STR(journal_text(), "x f=KL_ECANCELLED/0");
    gate_open(&gate);
    kl_exec_close(exec);
}

TEST(a_drain_while_places_are_lent_runs_everything)
{
    struct gate gate = GATE;
    struct script failing = {.name = "x", .plan = "rd", .after_ms = 50};
    kl_exec *exec = open_to_fill();
    REQUIRE(exec != NULL);
    fill_beyond(exec, &failing, &gate);
    struct helper helper;
    helper_start(&helper, drain_and_note, exec);
    gate_open(&gate);
    journal_await(1 + 1 + PLACES - 1); /* the failed attempt, the paused key and the line */
    pass_ms(exec, 50);
    helper_join(&helper);
    CHECK_CONTAINS(journal_text(), "x KL_OK");
    CHECK_INT(tasks_live(exec), 0);
    kl_exec_close(exec); /* asserts that nothing is lent any more */
}

TEST(an_abort_while_places_are_lent_reports_everything)
{
    struct gate gate = GATE;
    struct script failing = {.name = "x", .plan = "rd", .after_ms = 50};
    struct helper aborter;
    kl_exec *exec = open_to_fill();
    REQUIRE(exec != NULL);
    fill_beyond(exec, &failing, &gate);
    helper_start(&aborter, abort_it, exec);
    journal_await(1 + PLACES + SPARE - 1); /* all but the one that runs */
    gate_open(&gate);
    helper_join(&aborter);
    CHECK_INT(atomic_load(&exec->given_up), PLACES + SPARE - 1);
    kl_exec_close(exec);
}

TEST(abort_reports_what_never_ran_and_asks_the_running_to_stop)
{
    struct gate gate = GATE;
    struct helper aborter;
    struct script again = {.name = "again", .plan = "r", .after_ms = 100000, .error = "no luck"};
    struct script running = {.name = "running", .plan = "r", .gate = &gate, .heed = true};
    kl_exec *exec = open_exec(OPTS(.threads = 2, .shards = 3, .on_failure = note_end, .on_failure_ctx = "f"));
    REQUIRE(exec != NULL);
    submit_script(exec, "retrying", &again, NULL);
    await_key(exec, "retrying", KL_KEY_RETRYING);
    REQUIRE(kl_exec_key_pause(exec, kl_str("paused")) == KL_OK);
    submit(exec, "paused", note, "never", TASK(.end = note_end, .end_ctx = "paused"));
    submit(exec, "delayed", note, "never", TASK(.delay_ms = 100000, .end = note_end, .end_ctx = "delayed"));
    submit_script(exec, "running", &running, TASK(.end = note_end, .end_ctx = "running"));
    submit(exec, "running", note, "never", TASK(.end = note_end, .end_ctx = "waiting"));
    gate_await(&gate, 1);
    journal_clear();
    helper_start(&aborter, abort_it, exec);
    journal_await(7); /* all but the running one have been reported while it runs */
    const char *text = journal_text();
    CHECK(!strstr(text, "never") && !strstr(text, "running"));
    CHECK_CONTAINS(text, "paused=KL_ECLOSED/0 f=KL_ECLOSED/0");
    CHECK_CONTAINS(text, "delayed=KL_ECLOSED/0 f=KL_ECLOSED/0");
    CHECK_CONTAINS(text, "waiting=KL_ECLOSED/0 f=KL_ECLOSED/0");
    CHECK_CONTAINS(text, "f=KL_ECLOSED/1(no luck)");
    journal_clear();
    gate_open(&gate);
    helper_join(&aborter);
    CHECK_STR(journal_text(), "running running! running=KL_ECLOSED/1 f=KL_ECLOSED/1");
    kl_exec_close(exec);
}

/* Threads are awake while something is due. */
TEST(a_deadline_that_passes_while_an_abort_waits_for_the_task_keeps_no_thread_awake)
{
    struct gate gate = GATE;
    struct helper aborter;
    kl_exec *exec = open_frozen(OPTS(.threads = 2));
    REQUIRE(exec != NULL);
    submit(exec, "k", hold, &gate, TASK(.deadline_ms = 10));
    gate_await(&gate, 1);
    helper_start(&aborter, abort_it, exec);
    AWAIT(kl__inbox_is_shut(&exec->shards[0].inbox));
    pass_ms(exec, 10);
    AWAIT(atomic_load(&exec->shards[0].next_due) == KL_NEVER);
    gate_open(&gate);
    helper_join(&aborter);
    kl_exec_close(exec);
}

/* The abort is at one shard when a task of another sees that it should stop, and returns. The report waits a little for
 * the next task of that key, which must not come. */
static void wait_for_never(void *ctx, const kl_exec_end *end)
{
    int64_t until = kl__deadline_ns(20);
    (void)ctx, (void)end;
    while (!strstr(journal_text(), "never") && still(until))
        ;
}

TEST(nothing_starts_once_an_abort_has_begun)
{
    struct gate started = GATE;
    char first[16] = "", second[16] = "";
    uint64_t hash;
    kl_exec *exec = open_exec(OPTS(.threads = 2, .shards = 2));
    REQUIRE(exec != NULL);
    for (int i = 0; !first[0] || !second[0]; i++) {
        char key[16];
        snprintf(key, sizeof key, "%d", i);
        memcpy(kl__exec_shard_of(exec, kl_str(key), &hash)->index == 0 ? first : second, key, sizeof key);
    }
    REQUIRE(kl_exec_key_pause(exec, kl_str(first)) == KL_OK);
    submit(exec, first, nothing, NULL, TASK(.end = wait_for_never));
    submit(exec, second, until_asked, &started, NULL);
    submit(exec, second, note, "never", TASK(.end = note_end, .end_ctx = "waiting"));
    gate_pass(&started);
    CHECK_INT(kl_exec_abort(exec), KL_OK);
    CHECK_CONTAINS(journal_text(), "asked");
    CHECK_CONTAINS(journal_text(), "waiting=KL_ECLOSED/0");
    CHECK(!strstr(journal_text(), "never"));
    kl_exec_close(exec);
}

static atomic_int arrived;

static kl_outcome meet(kl_run *run, void *ctx)
{
    (void)run, (void)ctx;
    atomic_fetch_add(&arrived, 1);
    while (atomic_load(&arrived) < 2)
        ;
    return KL_DONE;
}

/* The last tasks of two shards end at the same moment: one of the two threads must notice that all have. */
TEST(a_drain_returns_when_the_last_tasks_of_two_shards_end_together)
{
    for (uint64_t i = 0; i < 20 + test_ops(2000) && !test_failed(); i++) {
        kl_exec *exec = open_exec(OPTS(.threads = 2, .shards = 2));
        REQUIRE(exec != NULL);
        atomic_store(&arrived, 0);
        submit(exec, "", meet, NULL, NULL); /* without keys they go to different shards */
        submit(exec, "", meet, NULL, NULL);
        CHECK_INT(kl_exec_drain(exec, 30000), KL_OK);
        kl_exec_close(exec);
    }
}

static void drain_patiently(void *exec) { CHECK_INT(kl_exec_drain(exec, PATIENCE_MS), KL_OK); }

TEST(a_drain_returns_when_its_last_task_is_cancelled_while_all_threads_sleep)
{
    struct helper drainer;
    kl_exec *exec = open_frozen(OPTS(.threads = 2));
    REQUIRE(exec != NULL);
    kl_exec_id id = submit(exec, "k", nothing, NULL, TASK(.delay_ms = 1000));
    helper_start(&drainer, drain_patiently, exec);
    AWAIT(kl__inbox_is_shut(&exec->shards[0].inbox) && atomic_load(&exec->idle_count) == 2);
    CHECK_INT(kl_exec_cancel(exec, id), KL_OK);
    helper_join(&drainer);
    kl_exec_close(exec);
}

static void close_it(void *exec)
{
    kl_exec_close(exec);
    journal_add("closed");
}

TEST(close_returns_when_the_last_task_ends_while_the_other_thread_sleeps)
{
    uint64_t rounds = test_ops(20);
    for (uint64_t round = 0; round < rounds; round++) {
        struct gate gate = GATE;
        struct helper closer;
        kl_exec *exec = open_exec(OPTS(.threads = 2));
        REQUIRE(exec != NULL);
        journal_clear();
        submit(exec, "k", hold, &gate, NULL);
        gate_await(&gate, 1);
        helper_start(&closer, close_it, exec);
        AWAIT(kl__inbox_is_shut(&exec->shards[0].inbox) && atomic_load(&exec->idle_count) == 1);
        gate_open(&gate);
        journal_await(1);
        if (test_failed())
            return; /* to join would be to wait for ever */
        helper_join(&closer);
    }
}

TEST(a_task_that_is_done_during_an_abort_is_done_and_one_that_is_dead_is_dead)
{
    struct gate gate = GATE;
    struct script done = {.name = "d", .plan = "d", .gate = &gate}, dead = {.name = "x", .plan = "x", .gate = &gate};
    struct helper aborter;
    kl_exec *exec = open_exec(OPTS(.threads = 2));
    REQUIRE(exec != NULL);
    submit_script(exec, "d", &done, TASK(.end = note_end, .end_ctx = "done"));
    submit_script(exec, "x", &dead, TASK(.end = note_end, .end_ctx = "dead"));
    gate_await(&gate, 2);
    helper_start(&aborter, abort_it, exec);
    AWAIT(kl_exec_submit(exec, kl_str("k"), nothing, NULL, NULL, NULL) == KL_ECLOSED);
    gate_open(&gate);
    helper_join(&aborter);
    CHECK_CONTAINS(journal_text(), "done=KL_OK/1");
    CHECK_CONTAINS(journal_text(), "dead=KL_EDEAD/1");
    kl_exec_close(exec);
}

TEST(close_aborts_what_was_not_stopped_with_paused_keys_and_all)
{
    struct tally ends = TALLY;
    kl_exec *exec = open_exec(OPTS(.threads = 2, .shards = 2));
    REQUIRE(exec != NULL);
    for (int i = 0; i < 40; i++) {
        char key[8];
        snprintf(key, sizeof key, "%d", i);
        REQUIRE(kl_exec_key_pause(exec, kl_str(key)) == KL_OK);
        if (i % 2)
            submit(exec, key, nothing, NULL, TASK(.end = count_end, .end_ctx = &ends));
    }
    kl_exec_close(exec);
    CHECK_INT(tally_read(&ends), 20);
}

TEST(close_right_after_open_is_fine)
{
    for (int i = 0; i < 50; i++) {
        kl_exec *exec = open_exec(OPTS(.threads = 1 + i % 4, .shards = 1 + i % 3));
        REQUIRE(exec != NULL);
        kl_exec_close(exec);
    }
}

/* --- From inside tasks and reports --- */

static kl_outcome drain_inside(kl_run *run, void *exec)
{
    (void)run;
    journal_add("%s", kl_rc_name(kl_exec_drain(exec, KL_FOREVER)));
    return KL_DONE;
}

static kl_outcome abort_inside(kl_run *run, void *exec)
{
    journal_add("%s", kl_rc_name(kl_exec_abort(exec)));
    journal_add("%s", kl_run_cancelled(run) ? "asked" : "not asked");
    return KL_DONE;
}

TEST(a_drain_inside_a_task_starts_the_drain_and_returns_at_once)
{
    kl_exec *exec = open_exec(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    submit(exec, "k", drain_inside, exec, NULL);
    (void)!kl_exec_submit(exec, kl_str("k"), nothing, NULL, NULL, NULL);
    journal_await(1);
    CHECK_STR(journal_text(), "KL_EBUSY");
    CHECK_INT(kl_exec_submit(exec, kl_str("k"), nothing, NULL, NULL, NULL), KL_ECLOSED);
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    kl_exec_close(exec);
}

TEST(an_abort_inside_a_task_starts_the_abort_and_returns_at_once)
{
    struct gate gate = GATE;
    kl_exec *exec = open_exec(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    submit(exec, "first", hold, &gate, NULL);
    submit(exec, "k", abort_inside, exec, NULL);
    submit(exec, "k", note, "never", TASK(.end = note_end, .end_ctx = "next"));
    gate_open(&gate);
    journal_await(3);
    CHECK_STR(journal_text(), "next=KL_ECLOSED/0 KL_EBUSY asked");
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_ECLOSED);
    kl_exec_close(exec);
}

static void stop_in_report(void *exec, const kl_exec_end *end)
{
    (void)end;
    journal_add("%s", kl_rc_name(kl_exec_drain(exec, KL_FOREVER)));
}

TEST(a_drain_inside_a_tasks_report_does_not_wait_for_that_task)
{
    kl_exec *exec = open_exec(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    submit(exec, "k", nothing, NULL, TASK(.end = stop_in_report, .end_ctx = exec));
    journal_await(1);
    CHECK_STR(journal_text(), "KL_EBUSY");
    kl_exec_close(exec);
}

/* The same for a report that comes on a thread of the caller's own, who cancels the task. In a child, because it would
 * wait for ever. */
static int drain_in_own_report(void)
{
    kl_exec *exec = open_exec(OPTS(.threads = 1));
    alarm(2);
    kl_exec_id id = submit(exec, "k", nothing, NULL, TASK(.delay_ms = 1000000, .end = stop_in_report, .end_ctx = exec));
    if (kl_exec_cancel(exec, id) != KL_OK || strcmp(journal_text(), "KL_EBUSY") != 0)
        return 2;
    kl_exec_close(exec);
    return 0;
}

static int run_in_child(int (*run)(void))
{
    int status = -1;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0)
        _exit(run());
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    return status;
}

TEST(a_drain_inside_the_report_of_a_cancel_does_not_wait_for_that_task)
{
    CHECK_INT(run_in_child(drain_in_own_report), 0);
}

/* --- Races --- */

enum { SUBMITTERS = 3, STOPPERS = 3 };

struct race {
    kl_exec *exec;
    struct gate start;
    _Atomic(uint64_t) taken, ended;
    atomic_int mode; /* which stops the stoppers use */
    atomic_int stopper;
};

static void count_race_end(void *ctx, const kl_exec_end *end)
{
    struct race *race = ctx;
    CHECK(end->rc == KL_OK || end->rc == KL_ECLOSED);
    CHECK_INT(end->attempts, end->rc == KL_OK);
    atomic_fetch_add(&race->ended, 1);
}

static void race_submits(void *ctx)
{
    struct race *race = ctx;
    static const char *const keys[] = {"a", "b", "", "a key that is longer than what a task keeps inside"};
    kl_exec_task_opts opts = {.size = sizeof opts, .end = count_race_end, .end_ctx = race};
    kl_rc rc = KL_OK;
    gate_pass(&race->start);
    for (uint64_t i = 0; rc == KL_OK || rc == KL_EFULL; i++) {
        kl_exec_task batch[3];
        size_t taken = 0;
        for (int j = 0; j < 3; j++)
            batch[j] = (kl_exec_task){kl_str(keys[(i + (uint64_t)j) % COUNT(keys)]), nothing, NULL, &opts};
        if (i % 2) {
            rc = kl_exec_submit_batch(race->exec, batch, 3, NULL, &taken);
            atomic_fetch_add(&race->taken, taken);
        } else {
            rc = kl_exec_submit(race->exec, batch[0].key, nothing, NULL, &opts, NULL);
            atomic_fetch_add(&race->taken, rc == KL_OK);
        }
    }
    CHECK_INT(rc, KL_ECLOSED);
}

static void race_stop(void *ctx)
{
    struct race *race = ctx;
    int mode = (atomic_load(&race->mode) >> (2 * atomic_fetch_add(&race->stopper, 1))) & 3;
    gate_pass(&race->start);
    AWAIT(atomic_load(&race->taken) > 20);
    kl_rc rc = mode == 0 ? kl_exec_abort(race->exec) : kl_exec_drain(race->exec, mode == 1 ? KL_FOREVER : mode - 2);
    CHECK(rc == KL_OK || (mode > 0 && rc == KL_ECLOSED) || (mode > 1 && rc == KL_ETIMEDOUT));
    CHECK(kl__exec_all_ended(race->exec)); /* each of them returns after the end, not before */
}

TEST(every_submit_that_returned_ok_is_run_or_reported_exactly_once_whatever_stops)
{
    uint64_t rounds = test_ops(300);
    for (uint64_t round = 0; round < rounds && !test_failed(); round++) {
        struct race race = {.start = GATE};
        struct helper helpers[SUBMITTERS + STOPPERS];
        atomic_store(&race.mode, (int)(round * 13 % 64));
        race.exec = open_exec(OPTS(.threads = 2, .shards = 2, .shard_capacity = 8, .submit_timeout_ms = KL_FOREVER));
        REQUIRE(race.exec != NULL);
        for (int i = 0; i < SUBMITTERS + STOPPERS; i++)
            helper_start(&helpers[i], i < SUBMITTERS ? race_submits : race_stop, &race);
        gate_open(&race.start);
        for (int i = 0; i < SUBMITTERS + STOPPERS; i++)
            helper_join(&helpers[i]);
        CHECK_INT(atomic_load(&race.ended), atomic_load(&race.taken));
        kl_exec_close(race.exec);
    }
}

/* Who waits for room looks up every few milliseconds, by a clock that is an hour ahead here. */
static void submit_for_ever(void *exec)
{
    own_time = (struct own_time){.is_on = true, .waits_really = true, .now_ns = kl__deadline_ns(3600000)};
    kl_rc rc = kl_exec_submit(exec, kl_str("w"), nothing, NULL, TASK(.submit_timeout_ms = KL_FOREVER), NULL);
    journal_add("%s", kl_rc_name(rc));
}

static uint32_t count_waiting(kl__shard *shard)
{
    pthread_mutex_lock(&shard->mutex);
    uint32_t waiting = shard->waiting;
    pthread_mutex_unlock(&shard->mutex);
    return waiting;
}

TEST(a_stop_wakes_those_who_wait_for_room)
{
    struct gate gate = GATE;
    struct helper waiter, stopper;
    kl_exec *exec = open_exec(OPTS(.threads = 1, .shard_capacity = 1));
    REQUIRE(exec != NULL);
    submit(exec, "k", hold, &gate, NULL);
    gate_await(&gate, 1);
    helper_start(&waiter, submit_for_ever, exec);
    AWAIT(count_waiting(&exec->shards[0]) == 1);
    helper_start(&stopper, abort_it, exec);
    journal_await(1); /* before the running task ends */
    CHECK_STR(journal_text(), "KL_ECLOSED");
    gate_open(&gate);
    helper_join(&waiter);
    helper_join(&stopper);
    kl_exec_close(exec);
}

/* --- A task that ends its thread, and close --- */

static struct {
    pthread_mutex_t mutex;
    pthread_t detached, joined;
    bool has_joined;
} replaced = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static bool somebody_joins(void)
{
    pthread_mutex_lock(&replaced.mutex);
    bool joins = replaced.has_joined;
    pthread_mutex_unlock(&replaced.mutex);
    return joins;
}

/* Gives whoever closes the executor the time to get at joining this very thread, which it must not do. A short limit,
 * because usually nobody comes. */
static void note_detach(pthread_t id)
{
    int64_t until = kl__deadline_ns(50);
    pthread_mutex_lock(&replaced.mutex);
    replaced.detached = id;
    pthread_mutex_unlock(&replaced.mutex);
    while (!somebody_joins() && still(until))
        ;
}

static void note_join(pthread_t id)
{
    pthread_mutex_lock(&replaced.mutex);
    replaced.joined = id;
    replaced.has_joined = true;
    pthread_mutex_unlock(&replaced.mutex);
}

/* In a child, because a mistake here leaves a thread behind that uses freed memory. */
static int close_while_replacing(void)
{
    struct script ends = {.name = "t", .plan = "e"};
    kl_exec *exec = open_exec(OPTS(.threads = 1));
    atomic_store(&on_detach, note_detach);
    atomic_store(&on_join, note_join);
    submit_script(exec, "k", &ends, TASK(.attempts_max = 1)); /* its end is all that the drain waits for */
    if (kl_exec_drain(exec, KL_FOREVER) != KL_OK)
        return 2;
    kl_exec_close(exec);
    return replaced.has_joined && pthread_equal(replaced.detached, replaced.joined) ? 3 : test_failed() ? 4 : 0;
}

static kl_outcome cancels_its_thread_and_is_done(kl_run *run, void *ctx)
{
    (void)run, (void)ctx;
    pthread_cancel(pthread_self());
    return KL_DONE;
}

static int close_after_a_cancel(void)
{
    kl_exec *exec = open_exec(OPTS(.threads = 1));
    atomic_store(&on_detach, note_detach);
    atomic_store(&on_join, note_join);
    submit(exec, "k", cancels_its_thread_and_is_done, NULL, TASK(.end = note_end, .end_ctx = "end"));
    if (kl_exec_drain(exec, KL_FOREVER) != KL_OK)
        return 2;
    kl_exec_close(exec);
    return pthread_equal(replaced.detached, replaced.joined) ? 3 : test_failed() ? 4 : 0;
}

TEST(close_does_not_join_a_thread_that_its_last_task_had_cancelled)
{
    CHECK_INT(run_in_child(close_after_a_cancel), 0);
}

TEST(close_does_not_join_a_thread_that_is_being_replaced) { CHECK_INT(run_in_child(close_while_replacing), 0); }

struct closer {
    kl_exec *exec;
    struct gate begin;
    atomic_bool has_closed;
};

static void close_at_gate(void *ctx)
{
    struct closer *closer = ctx;
    gate_pass(&closer->begin);
    kl_exec_close(closer->exec);
    atomic_store(&closer->has_closed, true);
}

TEST(close_returns_although_no_thread_can_be_had_for_one_that_the_last_task_has_ended)
{
    struct script ends = {.name = "t", .plan = "e"};
    struct closer closer = {.exec = open_exec(OPTS(.threads = 1)), .begin = GATE};
    struct helper helper;
    REQUIRE(closer.exec != NULL);
    helper_start(&helper, close_at_gate, &closer);
    fail_threads(0, INT_MAX, EAGAIN);
    submit_script(closer.exec, "k", &ends, TASK(.attempts_max = 1));
    CHECK_INT(kl_exec_drain(closer.exec, KL_FOREVER), KL_OK);
    gate_open(&closer.begin);
    AWAIT(atomic_load(&closer.has_closed));
    fail_threads(0, 0, 0);
    helper_join(&helper);
}

/* --- A log that ends its thread, as one that is cancelled while it writes --- */

static void end_thread(void *ctx, kl_log_level level, const char *line)
{
    (void)ctx, (void)level;
    journal_add("%.8s", line);
    pthread_exit(NULL);
}

static void drain_for_a_moment(void *exec) { CHECK(kl_exec_drain(exec, 1) != KL_OK); }

TEST(a_drain_whose_thread_ends_as_it_is_logged_has_stopped_the_executor)
{
    struct helper helper;
    kl_exec *exec = open_exec(OPTS(.threads = 1, .log = end_thread));
    REQUIRE(exec != NULL);
    helper_start(&helper, drain_for_a_moment, exec);
    helper_join(&helper);
    CHECK_STR(journal_text(), "draining");
    CHECK_INT(kl_exec_submit(exec, kl_str("k"), nothing, NULL, NULL, NULL), KL_ECLOSED);
    kl_exec_close(exec);
}
