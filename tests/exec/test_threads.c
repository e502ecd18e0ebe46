/* test_threads.c - an executor's threads: which shards they serve first, and who takes the place of those that end. */
#include <signal.h>

#include "exec/support.h"

/* --- Homes --- */

static void check_homes(int64_t threads, int64_t shards)
{
    uint32_t next = 0, most = (uint32_t)((shards + threads - 1) / threads);
    kl_exec *exec = open_exec(OPTS(.threads = threads, .shards = shards, .shard_capacity = 1));
    REQUIRE(exec != NULL);
    for (uint32_t i = 0; i < exec->thread_count; i++) {
        const kl__exec_thread *thread = &exec->threads[i];
        CHECK_INT(thread->home, next);
        CHECK(thread->homes <= most && thread->homes + 1 >= most);
        next += thread->homes;
    }
    CHECK_INT(next, shards);
    kl_exec_close(exec);
}

TEST(every_shard_is_at_home_with_one_thread_and_all_threads_have_as_many)
{
    check_homes(1, 4);
    check_homes(2, 4);
    check_homes(3, 8);
    check_homes(5, 3);
}

TEST(two_executors_do_not_back_off_in_step)
{
    kl_exec *one = open_exec(OPTS(.threads = 1)), *other = open_exec(OPTS(.threads = 1));
    REQUIRE(one && other);
    CHECK(atomic_load(&one->random) != atomic_load(&other->random));
    kl_exec_close(one);
    kl_exec_close(other);
}

/* --- Waking --- */

static void await_asleep(kl_exec *exec)
{
    AWAIT(atomic_load(&exec->idle_count) == exec->thread_count);
    pthread_mutex_lock(&exec->park_mutex); /* they have looked around and sleep */
    pthread_mutex_unlock(&exec->park_mutex);
}

/* Its only thread sleeps, and as far as it knows another one is about whose tasks are short: that one may be stuck. */
static kl_exec *open_asleep(void)
{
    kl_exec *exec = open_frozen(OPTS(.threads = 1));
    if (!exec)
        return NULL;
    await_asleep(exec);
    atomic_fetch_add(&exec->brisk_count, 1);
    return exec;
}

static void close_asleep(kl_exec *exec)
{
    atomic_fetch_sub(&exec->brisk_count, 1);
    kl_exec_close(exec);
}

TEST(what_comes_wakes_a_thread_while_nobody_watches_one_whose_tasks_are_short)
{
    kl_exec *exec = open_asleep();
    REQUIRE(exec != NULL);
    submit_note(exec, "k", "run");
    journal_await(1);
    close_asleep(exec);
}

static atomic_int looks;

static void count_look(void) { atomic_fetch_add(&looks, 1); }

TEST(a_backlog_wakes_a_thread_though_one_is_about_whose_tasks_are_short)
{
    kl_exec *exec = open_asleep();
    REQUIRE(exec != NULL);
    atomic_store(&exec->watched, true); /* by somebody who takes his time */
    kl__exec_announce(exec, 1);
    CHECK_INT(atomic_load(&exec->idle_count), 1);
    atomic_store(&looks, 0);
    atomic_store(&on_clock, count_look);
    kl__exec_announce(exec, 1024);
    AWAIT(atomic_load(&looks) > 0); /* who is awake looks at the clock */
    atomic_store(&on_clock, NULL);
    close_asleep(exec);
}

TEST(nobody_relies_on_a_thread_that_sleeps)
{
    kl_exec *exec = open_frozen(OPTS(.threads = 2));
    REQUIRE(exec != NULL);
    grow_hands(exec);
    await_asleep(exec);
    CHECK_INT(atomic_load(&exec->brisk_count), 0);
    kl_exec_close(exec);
}

TEST(who_watches_a_thread_that_ends_no_task_sleeps_on_and_others_are_woken_again)
{
    kl_exec *exec = open_asleep();
    REQUIRE(exec != NULL);
    kl__exec_wake_one(exec); /* to watch */
    await_asleep(exec);
    AWAIT(!atomic_load(&exec->watched));
    CHECK_INT(atomic_load(&exec->idle_count), 1);
    close_asleep(exec);
}

/* Both sleep, and were not woken when it became known that something will be due: somebody was to see to that who is
 * busy now. Whoever gets up makes the other look at the clock. */
TEST(of_two_threads_that_did_not_know_what_is_due_next_one_does_when_the_other_gets_up)
{
    struct gate gate = GATE;
    kl_exec *exec = open_exec(OPTS(.threads = 2));
    REQUIRE(exec != NULL);
    await_asleep(exec);
    atomic_fetch_add(&exec->brisk_count, 1);
    atomic_store(&exec->watched, true);
    submit(exec, "later", note, "later", TASK(.delay_ms = 50));
    CHECK_INT(info_of(exec, "later").state, KL_KEY_DELAYED); /* now it is known */
    atomic_store(&exec->watched, false);
    atomic_fetch_sub(&exec->brisk_count, 1);
    submit(exec, "busy", hold, &gate, NULL);
    journal_await(1); /* in vain if nobody looks before the gate opens */
    gate_open(&gate);
    kl_exec_close(exec);
}

/* The thread has looked whether everything has ended, then all is shut and whoever sleeps is woken, then it falls
 * asleep. */
static struct {
    pthread_t closer;
    atomic_int reads;
    atomic_bool has_joined;
} falling;

static void note_falling_join(pthread_t id)
{
    (void)id;
    atomic_store(&falling.has_joined, true);
}

static void stop_before_sleep(void)
{
    enum { DEAR_NS = 1000 * MS, AHEAD = 3600 }; /* so far that no yield before was so dear that it still counts */
    if (pthread_equal(pthread_self(), falling.closer))
        return;
    int reads = atomic_fetch_add(&falling.reads, 1) + 1;
    if (reads == 1) /* its next yield is dear, and the one after that it leaves out and sleeps */
        own_time = (struct own_time){
            .is_on = true, .now_ns = kl__monotonic_ns() + AHEAD * INT64_C(1000) * MS, .yield_ns = DEAR_NS};
    if (reads != 2)
        return;
    own_time.is_on = false;
    own_time.yield_ns = 0;
    AWAIT(atomic_load(&falling.has_joined));
    own_time.is_on = true;
}

TEST(close_returns_although_a_thread_falls_asleep_meanwhile)
{
    kl_exec *exec = open_frozen(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    await_asleep(exec);
    falling.closer = pthread_self();
    atomic_store(&falling.reads, 0);
    atomic_store(&falling.has_joined, false);
    atomic_store(&on_join, note_falling_join);
    atomic_store(&on_clock, stop_before_sleep);
    kl__exec_wake_one(exec);
    AWAIT(atomic_load(&falling.reads) == 2);
    kl_exec_close(exec);
    atomic_store(&on_clock, NULL);
    atomic_store(&on_join, NULL);
}

/* --- Threads that end --- */

static bool is_blocked(int signal)
{
    sigset_t set;
    pthread_sigmask(SIG_SETMASK, NULL, &set);
    return sigismember(&set, signal);
}

/* The first attempt changes its thread's mask and is ended before it can put it back. */
static kl_outcome end_in_between(kl_run *run, void *ctx)
{
    (void)ctx;
    if (kl_run_attempt(run) > 1) {
        journal_add("%d%d", is_blocked(SIGUSR1), is_blocked(SIGUSR2));
        return KL_DONE;
    }
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    pthread_sigmask(SIG_SETMASK, &set, NULL);
    kl_run_retry_after(run, 0);
    pthread_exit(NULL);
}

TEST(a_thread_in_the_place_of_one_that_ended_has_the_signal_mask_of_who_opened_the_executor)
{
    sigset_t set, before;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &set, &before);
    kl_exec *exec = open_exec(OPTS(.threads = 1));
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    REQUIRE(exec != NULL);
    submit(exec, "k", end_in_between, NULL, NULL);
    journal_await(1);
    CHECK_STR(journal_text(), "10");
    kl_exec_close(exec);
}

static atomic_int detached;

static void count_detached(pthread_t id)
{
    (void)id;
    atomic_fetch_add(&detached, 1);
}

TEST(a_thread_that_ended_is_detached_because_nobody_joins_it)
{
    struct script ends = {.name = "t", .plan = "ed", .after_ms = 1};
    kl_exec *exec = open_exec(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    atomic_store(&detached, 0);
    atomic_store(&on_detach, count_detached);
    submit_script(exec, "k", &ends, NULL);
    journal_await(2);
    atomic_store(&on_detach, NULL);
    CHECK_INT(atomic_load(&detached), 1);
    kl_exec_close(exec);
}

static pthread_key_t own_key;

/* Called by the thread when it has been replaced. */
static void note_inside(void *exec) { journal_add("%d", kl__is_inside(exec)); }

static kl_outcome end_with_own_value(kl_run *run, void *exec)
{
    if (kl_run_attempt(run) > 1)
        return KL_DONE;
    pthread_setspecific(own_key, exec);
    kl_run_retry_after(run, 0);
    pthread_exit(NULL);
}

TEST(a_thread_that_was_replaced_is_not_inside_the_executor_any_more)
{
    kl_exec *exec = open_exec(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    REQUIRE(pthread_key_create(&own_key, note_inside) == 0);
    submit(exec, "k", end_with_own_value, exec, NULL);
    journal_await(1);
    CHECK_STR(journal_text(), "0");
    pthread_key_delete(own_key);
    kl_exec_close(exec);
}

static kl_outcome cancel_and_retry(kl_run *run, void *ctx)
{
    (void)ctx;
    journal_add("t%u", (unsigned)kl_run_attempt(run));
    if (kl_run_attempt(run) > 1)
        return KL_DONE;
    pthread_cancel(pthread_self());
    return KL_RETRY;
}

/* As one that writes a line. */
static int64_t test_cancel(void *ctx, uint32_t attempt, uint64_t random)
{
    (void)ctx, (void)random;
    journal_add("policy%u", (unsigned)attempt);
    pthread_testcancel();
    return 0;
}

TEST(a_thread_that_its_task_had_cancelled_does_not_end_in_the_retry_policy)
{
    kl_exec *exec = open_exec(OPTS(.threads = 1, .retry = test_cancel));
    REQUIRE(exec != NULL);
    submit(exec, "k", cancel_and_retry, NULL, NULL);
    journal_await(3);
    CHECK_STR(journal_text(), "t1 policy1 t2");
    kl_exec_close(exec);
}
