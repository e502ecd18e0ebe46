/* test_order.c - which task starts next: order inside a key, priorities, delays, turns, and threads that share work. */
#include "exec/support.h"

/* Holds the only thread while a test lines tasks up. */
static kl_exec *open_held(struct gate *gate, bool frozen)
{
    kl_exec *exec = frozen ? open_frozen(OPTS(.threads = 1)) : open_exec(OPTS(.threads = 1));
    if (exec) {
        submit(exec, "held", hold, gate, NULL);
        gate_await(gate, 1);
    }
    return exec;
}

static void expect_journal(kl_exec *exec, struct gate *gate, const char *expected)
{
    gate_open(gate);
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    CHECK_STR(journal_text(), expected);
    kl_exec_close(exec);
}

TEST(tasks_of_one_key_start_in_the_order_of_submission)
{
    struct gate gate = GATE;
    kl_exec *exec = open_held(&gate, false);
    REQUIRE(exec != NULL);
    static const char *const names[] = {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"};
    for (int i = 0; i < 10; i++)
        submit_note(exec, "k", names[i]);
    expect_journal(exec, &gate, "0 1 2 3 4 5 6 7 8 9");
}

TEST(tasks_of_one_key_start_in_the_order_of_their_priorities)
{
    struct gate gate = GATE;
    kl_exec *exec = open_held(&gate, false);
    REQUIRE(exec != NULL);
    submit(exec, "k", note, "lowest", TASK(.priority = KL_PRIORITY_MAX));
    submit(exec, "k", note, "low", TASK(.priority = 1));
    submit_note(exec, "k", "normal");
    submit(exec, "k", note, "high", TASK(.priority = -1));
    submit(exec, "k", note, "highest", TASK(.priority = KL_PRIORITY_MIN));
    submit(exec, "k", note, "high2", TASK(.priority = -1));
    submit_note(exec, "k", "normal2");
    expect_journal(exec, &gate, "highest high high2 normal normal2 low lowest");
}

TEST(between_keys_of_one_shard_priorities_are_strict)
{
    struct gate gate = GATE;
    kl_exec *exec = open_held(&gate, false);
    REQUIRE(exec != NULL);
    submit(exec, "a", note, "a9", TASK(.priority = 9));
    submit(exec, "b", note, "b9", TASK(.priority = 9));
    submit(exec, "c", note, "c0", NULL);
    submit(exec, "d", note, "d-3", TASK(.priority = -3));
    submit(exec, "d", note, "d0", NULL);
    submit(exec, "e", note, "e-3", TASK(.priority = -3));
    submit(exec, "", note, "x-9", TASK(.priority = -9));
    submit(exec, "", note, "x15", TASK(.priority = 15));
    expect_journal(exec, &gate, "x-9 d-3 e-3 c0 d0 a9 b9 x15");
}

/* A high priority that comes while low ones wait starts next, whoever submits it. */
static void urge(kl_exec *exec) { submit(exec, "high", note, "high", TASK(.priority = -5)); }

static kl_outcome urge_inside(kl_run *run, void *exec)
{
    (void)run;
    journal_add("urges");
    urge(exec);
    return KL_DONE;
}

TEST(a_high_priority_starts_before_low_ones_that_wait)
{
    struct gate gate = GATE;
    kl_exec *exec = open_held(&gate, false);
    REQUIRE(exec != NULL);
    submit(exec, "a", note, "a", TASK(.priority = 3));
    submit(exec, "b", note, "b", TASK(.priority = 3));
    submit_note(exec, "c", "c");
    urge(exec);
    expect_journal(exec, &gate, "high c a b");
}

TEST(a_high_priority_that_a_task_submits_starts_before_low_ones_that_wait)
{
    struct gate gate = GATE;
    kl_exec *exec = open_held(&gate, false);
    REQUIRE(exec != NULL);
    submit(exec, "a", urge_inside, exec, NULL);
    submit_note(exec, "b", "b");
    submit_note(exec, "c", "c");
    submit_note(exec, "a", "a");
    gate_open(&gate);
    journal_await(5);
    CHECK(strncmp(journal_text(), "urges high ", strlen("urges high ")) == 0);
    kl_exec_close(exec);
}

TEST(what_has_no_priority_starts_before_low_ones_that_wait_in_line_already)
{
    struct gate gate = GATE, low = GATE;
    kl_exec *exec = open_held(&gate, true);
    REQUIRE(exec != NULL);
    submit(exec, "a", hold, &low, TASK(.priority = 5));
    submit(exec, "b", note, "low", TASK(.priority = 5));
    gate_open(&gate);
    gate_await(&low, 1);
    submit_note(exec, "c", "normal");
    expect_journal(exec, &low, "normal low");
}

/* The line has left the inbox and is ready; what came after it must not wait there until the line is at its end. */
TEST(a_long_line_of_one_key_does_not_keep_the_others_in_the_inbox)
{
    struct gate gate = GATE, first = GATE;
    kl_exec *exec = open_held(&gate, true);
    REQUIRE(exec != NULL);
    submit(exec, "a", hold, &first, NULL);
    submit_note(exec, "a", "a1");
    submit_note(exec, "a", "a2");
    gate_open(&gate);
    gate_await(&first, 1);
    submit_note(exec, "b", "b1");
    pass_ms(exec, 2);
    expect_journal(exec, &first, "a1 b1 a2");
}

/* --- Time --- */

static pthread_t test_thread;
static struct gate slow_clock;

static void keep_old_time(void)
{
    if (pthread_equal(pthread_self(), test_thread))
        return;
    atomic_store(&on_clock, NULL); /* once */
    gate_pass(&slow_clock);
}

/* A thread reads the clock and is slow to get at the shard; meanwhile others put tasks in line at a later time. */
TEST(a_thread_that_comes_with_an_old_time_does_not_put_new_tasks_before_old_ones)
{
    struct gate gate = GATE;
    slow_clock = (struct gate)GATE;
    test_thread = pthread_self();
    kl_exec *exec = open_held(&gate, true);
    REQUIRE(exec != NULL);
    submit_note(exec, "k", "1");
    atomic_store(&on_clock, keep_old_time);
    gate_open(&gate);
    gate_await(&slow_clock, 1);
    pass_ms(exec, 5);
    CHECK_INT(info_of(exec, "k").tasks, 1); /* 1 is in line now, 5 ms after the time that the thread has read */
    submit_note(exec, "k", "2");
    submit(exec, "urgent", nothing, NULL, TASK(.priority = 1)); /* makes it look at 2 before it takes 1 */
    gate_open(&slow_clock);
    journal_await(2);
    CHECK_STR(journal_text(), "1 2");
    atomic_store(&on_clock, NULL);
    kl_exec_close(exec);
}

TEST(a_thread_that_comes_with_an_old_time_starts_what_was_due_before_a_task_was_submitted_first)
{
    struct gate gate = GATE;
    slow_clock = (struct gate)GATE;
    test_thread = pthread_self();
    kl_exec *exec = open_held(&gate, true);
    REQUIRE(exec != NULL);
    atomic_store(&on_clock, keep_old_time);
    gate_open(&gate);
    gate_await(&slow_clock, 1);
    submit(exec, "k", note, "due", TASK(.delay_ms = 5));
    pass_ms(exec, 10);
    submit_note(exec, "k", "later");
    gate_open(&slow_clock);
    journal_await(2);
    CHECK_STR(journal_text(), "due later");
    atomic_store(&on_clock, NULL);
    kl_exec_close(exec);
}

static void submit_in_a_while(void *ctx, const kl_exec_end *end)
{
    (void)end;
    submit(ctx, "k", note, "due", TASK(.delay_ms = 5));
    pass_ms(ctx, 30);
    submit_note(ctx, "k", "later");
}

TEST(what_became_due_while_a_deadline_is_reported_starts_before_what_is_submitted_then)
{
    struct gate gate = GATE;
    kl_exec *exec = open_held(&gate, true);
    REQUIRE(exec != NULL);
    submit(exec, "x", nothing, NULL, TASK(.deadline_ms = 10, .end = submit_in_a_while, .end_ctx = exec));
    pass_ms(exec, 10);
    gate_open(&gate);
    journal_await(2);
    CHECK_STR(journal_text(), "due later");
    kl_exec_close(exec);
}

/* --- Delays --- */

TEST(a_delayed_task_does_not_start_before_it_is_due)
{
    kl_exec *exec = open_frozen(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    kl_exec_id id = submit(exec, "k", note, "late", TASK(.delay_ms = 100));
    CHECK_INT(status_of(exec, id).state, KL_EXEC_DELAYED);
    CHECK_INT(status_of(exec, id).due_in_ms, 100);
    CHECK_INT(info_of(exec, "k").state, KL_KEY_DELAYED);
    CHECK_INT(info_of(exec, "k").due_in_ms, 100);
    pass_ms(exec, 99);
    CHECK_INT(status_of(exec, id).due_in_ms, 1);
    submit_note(exec, "k", "early");
    journal_await(1);
    await_key(exec, "k", KL_KEY_DELAYED);
    CHECK_STR(journal_text(), "early");
    pass_ms(exec, 1);
    journal_await(2);
    CHECK_STR(journal_text(), "early late");
    kl_exec_close(exec);
}

TEST(a_delayed_task_takes_its_place_in_line_when_it_is_due)
{
    struct gate first = GATE, second = GATE;
    kl_exec *exec = open_frozen(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    submit(exec, "k", hold, &first, NULL);
    gate_await(&first, 1);
    submit(exec, "k", note, "due5", TASK(.delay_ms = 5));
    submit(exec, "k", note, "due3", TASK(.delay_ms = 3));
    submit(exec, "k", note, "due9", TASK(.delay_ms = 9));
    submit_note(exec, "k", "now");
    CHECK_INT(info_of(exec, "k").tasks, 5); /* all are seen at this moment */
    submit(exec, "k", hold, &second, NULL);
    gate_open(&first);
    gate_await(&second, 1); /* "now" has run */
    pass_ms(exec, 6);
    submit_note(exec, "k", "after6");
    CHECK_INT(info_of(exec, "k").tasks, 5);
    pass_ms(exec, 4);
    gate_open(&second);
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    CHECK_STR(journal_text(), "now due3 due5 after6 due9");
    kl_exec_close(exec);
}

/* As the test before, but nothing looks at the tasks between their submits and the moment when all are due. */
TEST(a_delayed_task_stands_behind_what_was_submitted_before_it_was_due)
{
    struct gate gate = GATE;
    kl_exec *exec = open_held(&gate, true);
    REQUIRE(exec != NULL);
    submit(exec, "k", note, "due10", TASK(.delay_ms = 10));
    pass_ms(exec, 5);
    submit_note(exec, "k", "at5");
    pass_ms(exec, 10);
    submit_note(exec, "k", "at15");
    pass_ms(exec, 5);
    expect_journal(exec, &gate, "at5 due10 at15");
}

/* Likewise, when it has been seen and the others have not, however many they are. */
static void check_seen_before(int others)
{
    struct gate first = GATE, second = GATE;
    kl_exec *exec = open_held(&first, true);
    REQUIRE(exec != NULL);
    submit(exec, "k", note, "due1", TASK(.delay_ms = 1));
    submit(exec, "second", hold, &second, NULL);
    gate_open(&first);
    gate_await(&second, 1);
    for (int i = 0; i < others; i++)
        submit(exec, "other", nothing, NULL, NULL);
    submit_note(exec, "k", "at0");
    pass_ms(exec, 1);
    expect_journal(exec, &second, "at0 due1");
}

TEST(a_delayed_task_that_was_seen_stands_behind_what_was_not_and_was_submitted_before_it_was_due)
{
    check_seen_before(0);
    check_seen_before(500);
}

TEST(two_delayed_tasks_of_a_key_start_in_the_order_in_which_they_are_due)
{
    struct gate gate = GATE;
    kl_exec *exec = open_held(&gate, true);
    REQUIRE(exec != NULL);
    submit(exec, "k", note, "due10", TASK(.delay_ms = 10));
    submit(exec, "k", note, "due5", TASK(.delay_ms = 5));
    pass_ms(exec, 20);
    expect_journal(exec, &gate, "due5 due10");
}

TEST(a_delayed_priority_counts_from_when_it_is_due)
{
    struct gate first = GATE, second = GATE;
    kl_exec *exec = open_held(&first, true);
    REQUIRE(exec != NULL);
    submit(exec, "k", note, "high", TASK(.priority = -5, .delay_ms = 10));
    submit_note(exec, "k", "a");
    submit(exec, "k", hold, &second, NULL);
    submit_note(exec, "k", "b");
    gate_open(&first);
    gate_await(&second, 1);
    pass_ms(exec, 10);
    expect_journal(exec, &second, "a high b");
}

/* --- Retries --- */

TEST(a_retrying_task_holds_its_key_even_against_a_higher_priority)
{
    struct script again = {.name = "again", .plan = "rrd", .after_ms = 10};
    kl_exec *exec = open_frozen(OPTS(.threads = 2));
    REQUIRE(exec != NULL);
    submit_script(exec, "k", &again, TASK(.priority = 5));
    await_key(exec, "k", KL_KEY_RETRYING);
    submit(exec, "k", note, "high", TASK(.priority = -16));
    submit_note(exec, "other", "other");
    journal_await(2);
    await_key(exec, "other", KL_KEY_IDLE);
    CHECK_STR(journal_text(), "again other");
    pass_ms(exec, 10);
    journal_await(3);
    await_key(exec, "k", KL_KEY_RETRYING);
    CHECK_STR(journal_text(), "again other again");
    pass_ms(exec, 10);
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    CHECK_STR(journal_text(), "again other again again high");
    kl_exec_close(exec);
}

TEST(a_retry_parks_the_key_and_not_a_thread)
{
    struct script again = {.name = "again", .plan = "rd", .after_ms = 1000};
    struct tally ran = TALLY;
    kl_exec *exec = open_frozen(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    kl_exec_id id = submit_script(exec, "k", &again, NULL);
    await_state(exec, id, KL_EXEC_RETRYING);
    for (int i = 0; i < 100; i++) {
        char key[8];
        snprintf(key, sizeof key, "%d", i);
        submit(exec, key, add_one, &ran, NULL); /* all on the one thread there is */
    }
    tally_await(&ran, 100);
    CHECK_INT(status_of(exec, id).state, KL_EXEC_RETRYING);
    CHECK_INT(status_of(exec, id).due_in_ms, 1000);
    kl_exec_close(exec);
}

TEST(a_task_without_a_key_that_retries_holds_nobody)
{
    struct script again = {.name = "again", .plan = "rd", .after_ms = 10};
    kl_exec *exec = open_frozen(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    kl_exec_id id = submit_script(exec, "", &again, NULL);
    await_state(exec, id, KL_EXEC_RETRYING);
    submit_note(exec, "", "other");
    journal_await(2);
    pass_ms(exec, 10);
    journal_await(3);
    CHECK_STR(journal_text(), "again other again");
    kl_exec_close(exec);
}

/* --- Threads --- */

static bool same_shard(kl_exec *exec, const char *a, const char *b)
{
    uint64_t hash;
    return kl__exec_shard_of(exec, kl_str(a), &hash) == kl__exec_shard_of(exec, kl_str(b), &hash);
}

TEST(threads_take_ready_keys_from_any_shard_so_that_uneven_hashing_idles_no_core)
{
    enum { THREADS = 4 };
    struct gate gate = GATE;
    char key[16];
    int found = 0;
    kl_exec *exec = open_exec(OPTS(.threads = THREADS, .shards = 8));
    REQUIRE(exec != NULL);
    for (int i = 0; found < THREADS; i++) {
        snprintf(key, sizeof key, "%d", i);
        if (same_shard(exec, key, "one")) {
            submit(exec, key, hold, &gate, NULL);
            found++;
        }
    }
    gate_await(&gate, THREADS); /* all threads run tasks of one shard at the same time */
    gate_open(&gate);
    kl_exec_close(exec);
}

TEST(more_threads_than_shards_and_more_shards_than_threads_both_work)
{
    static const int sizes[][2] = {{1, 8}, {8, 1}, {256, 2}, {3, 5}};
    for (size_t i = 0; i < COUNT(sizes); i++) {
        struct tally ran = TALLY;
        kl_exec *exec = open_exec(
            OPTS(.shards = sizes[i][0], .threads = sizes[i][1], .shard_capacity = 8, .submit_timeout_ms = KL_FOREVER));
        REQUIRE(exec != NULL);
        for (int t = 0; t < 500; t++) {
            char key[8];
            snprintf(key, sizeof key, "%d", t);
            submit(exec, key, add_one, &ran, NULL);
        }
        CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
        CHECK_INT(tally_read(&ran), 500);
        kl_exec_close(exec);
    }
}

/* A thread must not stay with one shard for ever: the tasks of the busy shard feed themselves until the other has
 * run. */
struct feeder {
    kl_exec *exec;
    _Atomic(bool) over;
};

static kl_outcome feed(kl_run *run, void *ctx)
{
    struct feeder *feeder = ctx;
    if (!atomic_load(&feeder->over))
        CHECK_INT(kl_exec_submit(feeder->exec, kl_run_key(run), feed, feeder, NULL, NULL), KL_OK);
    return KL_DONE;
}

static kl_outcome stop_feeding(kl_run *run, void *ctx)
{
    (void)run;
    atomic_store(&((struct feeder *)ctx)->over, true);
    return KL_DONE;
}

/* A key of the shard with this number, other than `not`. */
static void find_key(kl_exec *exec, uint32_t shard, const char * not, char ret_key[16])
{
    uint64_t hash;
    int i = 0;
    do
        snprintf(ret_key, 16, "%d", i++);
    while (kl__exec_shard_of(exec, kl_str(ret_key), &hash)->index != shard || strcmp(ret_key, not ) == 0);
}

TEST(a_shard_that_never_runs_dry_starves_no_other_shard)
{
    struct feeder feeder = {NULL, false};
    char busy[16], busy_too[16], other[16];
    kl_exec *exec = open_frozen(OPTS(.threads = 1, .shards = 2)); /* time does not end the visit either */
    REQUIRE(exec != NULL);
    feeder.exec = exec;
    find_key(exec, 0, "", busy); /* where the thread looks first */
    find_key(exec, 0, busy, busy_too);
    find_key(exec, 1, "", other);
    submit(exec, busy, feed, &feeder, NULL);
    submit(exec, busy_too, feed, &feeder, NULL);
    submit(exec, other, stop_feeding, &feeder, NULL);
    AWAIT(atomic_load(&feeder.over));
    atomic_store(&feeder.over, true);
    kl_exec_close(exec);
}

static kl_outcome note_and_take_2_ms(kl_run *run, void *exec)
{
    (void)run;
    journal_add("long");
    pass_ms(exec, 2);
    return KL_DONE;
}

TEST(a_shard_of_long_tasks_keeps_its_thread_from_another_for_one_of_them_only)
{
    struct gate gate = GATE;
    char busy[16], other[16];
    kl_exec *exec = open_frozen(OPTS(.threads = 1, .shards = 2));
    REQUIRE(exec != NULL);
    find_key(exec, 0, "", busy);
    find_key(exec, 1, "", other);
    submit(exec, busy, hold, &gate, NULL);
    gate_await(&gate, 1);
    for (int i = 0; i < 3; i++)
        submit(exec, busy, note_and_take_2_ms, exec, NULL);
    submit_note(exec, other, "other");
    gate_open(&gate);
    journal_await(4);
    CHECK_STR(journal_text(), "long other long long");
    kl_exec_close(exec);
}

/* The thread that knew when the delayed task is due is kept busy; another must have an eye on the clock. */
TEST(a_delayed_task_starts_when_it_is_due_although_the_thread_that_waited_for_it_is_busy)
{
    struct gate gate = GATE;
    kl_exec *exec = open_exec(OPTS(.threads = 2));
    REQUIRE(exec != NULL);
    AWAIT(atomic_load(&exec->idle_count) == 2);
    submit(exec, "later", note, "later", TASK(.delay_ms = 50));
    AWAIT(atomic_load(&exec->idle_count) == 2);
    submit(exec, "busy", hold, &gate, NULL);
    gate_await(&gate, 1);
    journal_await(1); /* in vain if nobody looks before the gate opens */
    gate_open(&gate);
    kl_exec_close(exec);
}

TEST(a_task_without_a_key_may_say_so_by_a_null_pointer)
{
    kl_exec *exec = open_exec(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    CHECK_INT(kl_exec_submit(exec, kl_str(NULL), note, "keyless", NULL, NULL), KL_OK);
    CHECK_INT(kl_exec_submit(exec, (kl_bytes){NULL, 5}, note, "broken", NULL, NULL), KL_EINVAL);
    CHECK_CONTAINS(kl_error_text(), "no bytes");
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    CHECK_STR(journal_text(), "keyless");
    kl_exec_close(exec);
}

TEST(a_deadline_is_kept_however_much_stands_before_it_in_the_inbox)
{
    enum { BEFORE = 600 };
    struct gate gate = GATE;
    kl_exec *exec = open_frozen(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    submit(exec, "head", hold, &gate, NULL);
    gate_await(&gate, 1);
    submit_note(exec, "k", "first");
    for (int i = 1; i < BEFORE; i++)
        submit(exec, "k", nothing, NULL, NULL);
    submit(exec, "late", nothing, NULL, TASK(.deadline_ms = 5, .end = note_end, .end_ctx = "late"));
    pass_ms(exec, 10);
    gate_open(&gate);
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    CHECK_STR(journal_text(), "late=KL_ETIMEDOUT/0 first");
    kl_exec_close(exec);
}
