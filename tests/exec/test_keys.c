/* test_keys.c - one key: why it waits, pause, resume, skip and drain. */
#include "exec/support.h"

TEST(every_reason_why_a_key_waits_is_told)
{
    struct gate gate = GATE;
    struct script again = {.name = "again", .plan = "rd", .after_ms = 70};
    kl_exec *exec = open_frozen(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    kl_key_info info = info_of(exec, "k");
    CHECK(info.state == KL_KEY_IDLE && info.tasks == 0 && info.due_in_ms == 0);

    submit_script(exec, "retrying", &again, NULL);
    await_key(exec, "retrying", KL_KEY_RETRYING);
    submit_note(exec, "retrying", "behind");
    info = info_of(exec, "retrying");
    CHECK(info.tasks == 2 && info.due_in_ms == 70);

    submit(exec, "running", hold, &gate, NULL);
    gate_await(&gate, 1);
    submit_note(exec, "running", "behind");
    info = info_of(exec, "running");
    CHECK(info.state == KL_KEY_RUNNING && info.tasks == 2 && info.due_in_ms == 0);

    submit_note(exec, "ready", "ready");
    submit(exec, "ready", note, "later", TASK(.delay_ms = 5));
    info = info_of(exec, "ready");
    CHECK(info.state == KL_KEY_READY && info.tasks == 2 && info.due_in_ms == 0);

    submit(exec, "delayed", note, "later", TASK(.delay_ms = 50));
    submit(exec, "delayed", note, "sooner", TASK(.delay_ms = 20));
    info = info_of(exec, "delayed");
    CHECK(info.state == KL_KEY_DELAYED && info.tasks == 2 && info.due_in_ms == 20);

    CHECK_INT(kl_exec_key_pause(exec, kl_str("paused")), KL_OK);
    submit_note(exec, "paused", "paused");
    info = info_of(exec, "paused");
    CHECK(info.state == KL_KEY_PAUSED && info.tasks == 1 && info.due_in_ms == 0);
    gate_open(&gate);
    kl_exec_close(exec);
}

TEST(a_paused_key_starts_nothing_until_it_is_resumed)
{
    kl_exec *exec = open_exec(OPTS(.threads = 2));
    REQUIRE(exec != NULL);
    CHECK_INT(kl_exec_key_pause(exec, kl_str("k")), KL_OK);
    CHECK_INT(kl_exec_key_pause(exec, kl_str("k")), KL_OK); /* twice is once */
    submit_note(exec, "k", "1");
    submit(exec, "k", note, "0", TASK(.priority = -1));
    for (int i = 0; i < 50; i++)
        submit_note(exec, "other", "o");
    CHECK_INT(kl_exec_barrier(exec, kl_str("other"), KL_FOREVER), KL_OK);
    CHECK(!strpbrk(journal_text(), "01"));
    CHECK_INT(info_of(exec, "k").state, KL_KEY_PAUSED);
    CHECK_INT(kl_exec_key_resume(exec, kl_str("k")), KL_OK);
    CHECK_INT(kl_exec_barrier(exec, kl_str("k"), KL_FOREVER), KL_OK);
    CHECK_CONTAINS(journal_text(), "o 0 1");
    CHECK_INT(info_of(exec, "k").state, KL_KEY_IDLE);
    kl_exec_close(exec);
}

TEST(a_pause_lets_the_running_task_go_on_and_stops_the_next)
{
    struct gate gate = GATE;
    kl_exec *exec = open_exec(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    submit(exec, "k", hold, &gate, NULL);
    submit_note(exec, "k", "next");
    gate_await(&gate, 1);
    CHECK_INT(kl_exec_key_pause(exec, kl_str("k")), KL_OK);
    CHECK_INT(info_of(exec, "k").state, KL_KEY_RUNNING);
    gate_open(&gate);
    await_key(exec, "k", KL_KEY_PAUSED);
    submit_note(exec, "other", "other");
    journal_await(1);
    CHECK_INT(kl_exec_key_resume(exec, kl_str("k")), KL_OK);
    journal_await(2);
    CHECK_STR(journal_text(), "other next");
    kl_exec_close(exec);
}

TEST(resume_makes_a_retrying_key_ready_at_once)
{
    struct script again = {.name = "again", .plan = "rd", .after_ms = 100000};
    kl_exec *exec = open_frozen(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    submit_script(exec, "k", &again, NULL);
    await_key(exec, "k", KL_KEY_RETRYING);
    CHECK_INT(kl_exec_key_resume(exec, kl_str("k")), KL_OK);
    journal_await(2);
    CHECK_STR(journal_text(), "again again");
    CHECK_INT(kl_exec_key_resume(exec, kl_str("never used")), KL_OK);
    kl_exec_close(exec);
}

TEST(resume_does_not_make_a_delayed_task_due)
{
    kl_exec *exec = open_frozen(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    kl_exec_id id = submit(exec, "k", note, "later", TASK(.delay_ms = 100));
    CHECK_INT(kl_exec_key_resume(exec, kl_str("k")), KL_OK);
    CHECK_INT(status_of(exec, id).state, KL_EXEC_DELAYED);
    kl_exec_close(exec);
}

TEST(skip_ends_the_keys_first_task_as_cancelled)
{
    struct script again = {.name = "again", .plan = "r", .after_ms = 100};
    kl_exec *exec = open_frozen(OPTS(.threads = 1, .on_failure = note_end, .on_failure_ctx = "failure"));
    REQUIRE(exec != NULL);
    CHECK_INT(kl_exec_key_skip(exec, kl_str("k")), KL_ENOTFOUND);
    submit_script(exec, "k", &again, TASK(.end = note_end, .end_ctx = "first"));
    await_key(exec, "k", KL_KEY_RETRYING);
    submit(exec, "k", note, "second", TASK(.priority = -3));
    CHECK_INT(kl_exec_key_skip(exec, kl_str("k")), KL_OK);
    journal_await(4);
    CHECK_STR(journal_text(), "again first=KL_ECANCELLED/1 failure=KL_ECANCELLED/1 second");
    kl_exec_close(exec);
}

TEST(skip_takes_the_first_by_priority_also_of_a_paused_or_delayed_key)
{
    kl_exec *exec = open_frozen(OPTS(.threads = 1, .on_failure = note_end, .on_failure_ctx = "failure"));
    REQUIRE(exec != NULL);
    REQUIRE(kl_exec_key_pause(exec, kl_str("k")) == KL_OK);
    submit_note(exec, "k", "normal");
    submit(exec, "k", note, "high", TASK(.priority = -3, .end = note_end, .end_ctx = "high"));
    CHECK_INT(kl_exec_key_skip(exec, kl_str("k")), KL_OK);
    CHECK_STR(journal_text(), "high=KL_ECANCELLED/0 failure=KL_ECANCELLED/0");
    CHECK_INT(info_of(exec, "k").tasks, 1);
    journal_clear();
    submit(exec, "d", note, "d20", TASK(.delay_ms = 20, .end = note_end, .end_ctx = "d20"));
    submit(exec, "d", note, "d10", TASK(.delay_ms = 10, .end = note_end, .end_ctx = "d10"));
    CHECK_INT(kl_exec_key_skip(exec, kl_str("d")), KL_OK);
    CHECK_STR(journal_text(), "d10=KL_ECANCELLED/0 failure=KL_ECANCELLED/0");
    kl_exec_close(exec);
}

TEST(skip_and_drain_leave_the_running_task_alone)
{
    struct gate gate = GATE;
    uint64_t count = 99;
    kl_exec *exec = open_frozen(OPTS(.threads = 1, .on_failure = note_end, .on_failure_ctx = "failure"));
    REQUIRE(exec != NULL);
    kl_exec_id id = submit(exec, "k", hold, &gate, TASK(.end = note_end, .end_ctx = "running"));
    gate_await(&gate, 1);
    CHECK_INT(kl_exec_key_skip(exec, kl_str("k")), KL_EBUSY);
    submit(exec, "k", note, "a", TASK(.end = note_end, .end_ctx = "a"));
    submit(exec, "k", note, "b", TASK(.end = note_end, .end_ctx = "b", .delay_ms = 10));
    submit(exec, "k", note, "c", TASK(.end = note_end, .end_ctx = "c", .priority = -2));
    submit_note(exec, "other", "other");
    CHECK_INT(kl_exec_key_drain(exec, kl_str("k"), &count), KL_OK);
    CHECK_INT(count, 3);
    CHECK_STR(journal_text(), "c=KL_ECANCELLED/0 failure=KL_ECANCELLED/0 a=KL_ECANCELLED/0 failure=KL_ECANCELLED/0 "
                              "b=KL_ECANCELLED/0 failure=KL_ECANCELLED/0"); /* in order, when drain returns */
    CHECK(!status_of(exec, id).stop_asked);
    CHECK_INT(info_of(exec, "k").tasks, 1);
    CHECK_INT(kl_exec_key_drain(exec, kl_str("k"), NULL), KL_OK);
    CHECK_INT(kl_exec_key_drain(exec, kl_str("never used"), &count), KL_OK);
    CHECK_INT(count, 0);
    journal_clear();
    gate_open(&gate);
    journal_await(2);
    CHECK_STR(journal_text(), "running=KL_OK/1 other");
    kl_exec_close(exec);
}

TEST(drain_of_a_key_takes_its_retrying_task_and_new_tasks_run)
{
    struct script again = {.name = "again", .plan = "r", .after_ms = 100};
    uint64_t count = 0;
    kl_exec *exec = open_frozen(OPTS(.threads = 1, .on_failure = note_end, .on_failure_ctx = "failure"));
    REQUIRE(exec != NULL);
    submit_script(exec, "k", &again, NULL);
    await_key(exec, "k", KL_KEY_RETRYING);
    CHECK_INT(kl_exec_key_drain(exec, kl_str("k"), &count), KL_OK);
    CHECK_INT(count, 1);
    submit_note(exec, "k", "new");
    journal_await(3);
    CHECK_STR(journal_text(), "again failure=KL_ECANCELLED/1 new");
    kl_exec_close(exec);
}

TEST(draining_a_paused_key_leaves_it_paused)
{
    kl_exec *exec = open_exec(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    REQUIRE(kl_exec_key_pause(exec, kl_str("k")) == KL_OK);
    submit_note(exec, "k", "never");
    CHECK_INT(kl_exec_key_drain(exec, kl_str("k"), NULL), KL_OK);
    CHECK_INT(info_of(exec, "k").state, KL_KEY_PAUSED);
    submit_note(exec, "k", "once resumed");
    CHECK_INT(info_of(exec, "k").state, KL_KEY_PAUSED);
    kl_exec_close(exec);
}

static void wait_in_report(void *gate, const kl_exec_end *end)
{
    (void)end;
    gate_pass(gate);
}

static void drain_key(void *exec) { CHECK_INT(kl_exec_key_drain(exec, kl_str("k"), NULL), KL_OK); }
static void cancel_all(void *exec) { CHECK_INT(kl_exec_abort(exec), KL_OK); }

TEST(a_key_whose_tasks_are_just_being_reported_shows_as_running)
{
    static void (*const ways[])(void *) = {drain_key, cancel_all};
    for (size_t i = 0; i < COUNT(ways); i++) {
        struct gate gate = GATE;
        struct helper helper;
        kl_exec *exec = open_exec(OPTS(.threads = 1));
        REQUIRE(exec != NULL);
        for (int task = 0; task < 2; task++)
            submit(exec, "k", nothing, NULL, TASK(.delay_ms = 100000, .end = wait_in_report, .end_ctx = &gate));
        helper_start(&helper, ways[i], exec);
        gate_await(&gate, 1);
        kl_key_info info = info_of(exec, "k");
        CHECK_INT(info.state, KL_KEY_RUNNING);
        CHECK(info.tasks == 2 && info.due_in_ms == 0);
        gate_open(&gate);
        helper_join(&helper);
        info = info_of(exec, "k");
        CHECK(info.state == KL_KEY_IDLE && info.tasks == 0);
        kl_exec_close(exec);
    }
}

static kl_outcome steer_own_key(kl_run *run, void *exec)
{
    kl_bytes key = kl_run_key(run);
    uint64_t count = 0;
    kl_key_info info;
    CHECK_INT(kl_exec_key_show(exec, key, &info), KL_OK);
    CHECK_INT(info.state, KL_KEY_RUNNING);
    CHECK_INT(kl_exec_key_skip(exec, key), KL_EBUSY);
    CHECK_INT(kl_exec_key_pause(exec, key), KL_OK);
    CHECK_INT(kl_exec_submit(exec, key, note, "never", NULL, NULL), KL_OK);
    CHECK_INT(kl_exec_key_drain(exec, key, &count), KL_OK);
    CHECK_INT(count, 1);
    CHECK_INT(kl_exec_submit(exec, key, note, "after", NULL, NULL), KL_OK);
    CHECK_INT(kl_exec_key_resume(exec, key), KL_OK);
    return KL_DONE;
}

TEST(a_task_may_steer_its_own_key)
{
    kl_exec *exec = open_exec(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    submit(exec, "k", steer_own_key, exec, NULL);
    journal_await(1);
    CHECK_STR(journal_text(), "after");
    kl_exec_close(exec);
}

/* --- Races --- */

enum { STEERED_KEYS = 4 };

struct steered {
    kl_exec *exec;
    atomic_bool paused[STEERED_KEYS]; /* pause has returned and nothing ran then; resume has not been called */
    _Atomic(uint64_t) ran, ended;
    atomic_bool over;
};

static kl_outcome check_pause(kl_run *run, void *ctx)
{
    struct steered *s = ctx;
    CHECK(!atomic_load(&s->paused[*(const char *)kl_run_key(run).data - 'a']));
    atomic_fetch_add(&s->ran, 1);
    return KL_DONE;
}

static void feed_steered(void *ctx)
{
    struct steered *s = ctx;
    static const char *const keys[STEERED_KEYS] = {"a", "b", "c", "d"};
    for (uint64_t i = 0; !atomic_load(&s->over); i++)
        (void)!kl_exec_submit(s->exec, kl_str(keys[i % STEERED_KEYS]), check_pause, s, NULL, NULL);
}

/* What was running when pause returned goes on; after it nothing starts, hands or not. */
TEST(no_task_starts_between_pause_and_resume_while_hands_are_in_use)
{
    struct steered s = {0};
    struct helper feeder;
    kl_exec *exec = s.exec = open_frozen(OPTS(.threads = 2, .shard_capacity = 256, .submit_timeout_ms = 1));
    REQUIRE(exec != NULL);
    helper_start(&feeder, feed_steered, &s);
    for (uint64_t i = 0; i < test_ops(2000) && !test_failed(); i++) {
        char key[] = {(char)('a' + i % STEERED_KEYS), '\0'};
        CHECK_INT(kl_exec_key_pause(exec, kl_str(key)), KL_OK);
        await_key(exec, key, KL_KEY_PAUSED); /* not RUNNING */
        atomic_store(&s.paused[i % STEERED_KEYS], true);
        for (int looks = 0; looks < 20; looks++)
            CHECK_INT(info_of(exec, key).state, KL_KEY_PAUSED);
        if (i % 2) {
            uint64_t tasks = info_of(exec, key).tasks, drained = 0;
            CHECK_INT(kl_exec_key_drain(exec, kl_str(key), &drained), KL_OK);
            CHECK(drained >= tasks); /* more may have come, none has left */
        }
        atomic_store(&s.paused[i % STEERED_KEYS], false);
        CHECK_INT(kl_exec_key_resume(exec, kl_str(key)), KL_OK);
    }
    atomic_store(&s.over, true);
    helper_join(&feeder);
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    kl_exec_close(exec);
}

static void submit_one_by_one(void *ctx)
{
    struct steered *s = ctx;
    while (!atomic_load(&s->over)) {
        uint64_t ended = atomic_load(&s->ended);
        if (kl_exec_submit(s->exec, kl_str("a"), check_pause, s, NULL, NULL) != KL_OK)
            continue;
        AWAIT(atomic_load(&s->ran) > ended); /* stuck for ever if the key went idle at the wrong moment */
        atomic_store(&s->ended, atomic_load(&s->ran));
    }
}

/* solid_queue #689: admission and release raced, and the job was stuck. */
TEST(a_task_that_arrives_while_its_key_goes_idle_is_not_stuck)
{
    struct steered s = {0};
    struct helper one;
    s.exec = open_exec(OPTS(.threads = 2));
    REQUIRE(s.exec != NULL);
    helper_start(&one, submit_one_by_one, &s);
    AWAIT(atomic_load(&s.ran) >= test_ops(10000));
    atomic_store(&s.over, true);
    helper_join(&one);
    kl_exec_close(s.exec);
}
