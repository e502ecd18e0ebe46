/* test_holes.c - a place that was claimed and is not published yet: what stands behind it is out of sight, but neither
 * forgotten nor waited for without end. The test itself is the producer that was interrupted there. */
#include "exec/submit.h"
#include "exec/support.h"

static uint64_t claim_hole(kl_exec *exec)
{
    uint64_t number = 0, count = 0;
    CHECK_INT(kl__inbox_claim(&exec->shards[0].inbox, 1, &number, &count), KL_OK);
    return number;
}

/* The producer goes on, but has not told anybody yet. */
static void fill_hole(kl_exec *exec, uint64_t number, kl_task_fn *fn, void *ctx)
{
    kl_bytes key = kl_str("hole");
    kl__place_fill(&exec->shards[0], &(kl_exec_task){key, fn, ctx, NULL}, exec->mark, (uint32_t)kl__hash_local(key),
                   number, NULL);
}

TEST(an_urgent_task_behind_a_hole_is_the_next_once_the_hole_is_filled)
{
    struct gate first = GATE, second = GATE;
    kl_exec *exec = open_frozen(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    submit(exec, "held", hold, &first, NULL);
    gate_await(&first, 1);
    submit(exec, "a", hold, &second, NULL);
    submit_note(exec, "b", "b");
    uint64_t number = claim_hole(exec);
    submit(exec, "high", note, "high", TASK(.priority = KL_PRIORITY_MIN));
    gate_open(&first);
    gate_await(&second, 1); /* all before the hole has come in */
    fill_hole(exec, number, note, "hole");
    gate_open(&second);
    journal_await(3);
    CHECK_STR(journal_text(), "high b hole");
    kl_exec_close(exec);
}

static const char long_key[] = "a key of more than thirty-eight bytes, as can be counted";

/* Returns how many were taken. */
static int submit_until_refused(kl_exec *exec, const char *key, const kl_exec_task_opts *opts)
{
    int taken = 0;
    while (kl_exec_submit(exec, kl_str(key), nothing, NULL, opts, NULL) == KL_OK)
        taken++;
    return taken;
}

static void look_once(void *exec) { journal_add("%s", kl_rc_name(kl_exec_barrier(exec, kl_str("k"), 0))); }

TEST(a_barrier_waits_no_longer_than_it_may_for_a_place_that_is_not_published)
{
    struct helper helper;
    kl_exec *exec = open_exec(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    uint64_t number = claim_hole(exec);
    submit_note(exec, "k", "behind");
    helper_start(&helper, look_once, exec);
    journal_await(1);
    CHECK_STR(journal_text(), "KL_ETIMEDOUT");
    fill_hole(exec, number, nothing, NULL);
    helper_join(&helper);
    kl_exec_close(exec);
}

/* Between publishing and the look at who sleeps there is no full barrier, but there is one in the claim. */
TEST(a_claimed_place_is_work_before_it_is_published)
{
    kl_exec *exec = open_frozen(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    kl__shard *shard = &exec->shards[0];
    CHECK(!kl__shard_has_work(shard, kl__exec_now_ms(exec)));
    uint64_t number = claim_hole(exec);
    CHECK(kl__shard_has_work(shard, kl__exec_now_ms(exec)));
    fill_hole(exec, number, nothing, NULL);
    kl_exec_close(exec);
}

/* --- Keys --- */

/* A call about key "k", of which a task stands behind the hole; it looks at the clock each time that it looks for the
 * task. */
static struct {
    kl_exec *exec;
    void (*call)(kl_exec *exec);
    pthread_t caller;
    atomic_int looks;
    atomic_bool is_over;
} behind;

static void count_look(void)
{
    if (pthread_equal(pthread_self(), behind.caller))
        atomic_fetch_add(&behind.looks, 1);
}

static void make_call(void *ctx)
{
    (void)ctx;
    behind.caller = pthread_self();
    atomic_store(&on_clock, count_look);
    behind.call(behind.exec);
    atomic_store(&behind.is_over, true);
}

static void call_before_hole_is_filled(void (*call)(kl_exec *exec), const char *expected)
{
    enum { AGAIN = 8 };
    struct gate gate = GATE;
    struct helper helper;
    kl_exec *exec = open_frozen(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    submit(exec, "held", hold, &gate, NULL);
    gate_await(&gate, 1);
    uint64_t number = claim_hole(exec);
    submit(exec, "k", note, "ran", TASK(.end = note_end, .end_ctx = "k"));
    behind.exec = exec;
    behind.call = call;
    atomic_store(&behind.looks, 0);
    atomic_store(&behind.is_over, false);
    helper_start(&helper, make_call, NULL);
    AWAIT(atomic_load(&behind.is_over) || atomic_load(&behind.looks) >= AGAIN);
    fill_hole(exec, number, nothing, NULL);
    helper_join(&helper);
    atomic_store(&on_clock, NULL);
    gate_open(&gate);
    AWAIT(tasks_live(exec) == 0);
    CHECK_STR(journal_text(), expected);
    kl_exec_close(exec);
}

static void drain_key(kl_exec *exec)
{
    uint64_t count = 0;
    CHECK_INT(kl_exec_key_drain(exec, kl_str("k"), &count), KL_OK);
    journal_add("%d", (int)count);
}

static void skip_key(kl_exec *exec) { journal_add("%s", kl_rc_name(kl_exec_key_skip(exec, kl_str("k")))); }
static void show_key(kl_exec *exec) { journal_add("%d", (int)info_of(exec, "k").tasks); }

TEST(draining_skipping_and_showing_a_key_see_its_task_behind_a_hole)
{
    call_before_hole_is_filled(drain_key, "k=KL_ECANCELLED/0 1");
    call_before_hole_is_filled(skip_key, "k=KL_ECANCELLED/0 KL_OK");
    call_before_hole_is_filled(show_key, "1 ran k=KL_OK/1");
}

/* --- What others do meanwhile --- */

/* What stands behind the hole cannot be drained, and counts all the same. */
TEST(behind_a_hole_too_a_blocked_key_has_no_more_than_its_share)
{
    enum { CAPACITY = 64, EIGHTH = CAPACITY / 8, HALF = CAPACITY / 2 };
    kl_exec *exec = open_frozen(OPTS(.threads = 1, .shard_capacity = CAPACITY, .submit_timeout_ms = KL_NO_WAIT));
    REQUIRE(exec != NULL);
    CHECK_INT(kl_exec_key_pause(exec, kl_str("a")), KL_OK);
    CHECK_INT(kl_exec_key_pause(exec, kl_str(long_key)), KL_OK);
    uint64_t number = claim_hole(exec);
    CHECK_INT(submit_until_refused(exec, "a", NULL), EIGHTH);
    CHECK(kl_exec_last_full().blocked);
    CHECK_INT(submit_until_refused(exec, long_key, NULL), EIGHTH / 2);
    CHECK(kl_exec_last_full().blocked);
    CHECK_INT(submit_until_refused(exec, "", TASK(.delay_ms = 50)), HALF - EIGHTH - EIGHTH / 2);
    CHECK_INT(submit_until_refused(exec, "a", NULL), 0);
    CHECK(kl_exec_last_full().blocked);
    fill_hole(exec, number, nothing, NULL);
    CHECK_INT(info_of(exec, "a").tasks, EIGHTH);
    kl_exec_close(exec);
}

/* Others may have drained more by the time that a producer tells of its task. */
TEST(telling_of_a_task_that_has_been_taken_already_wakes_nobody)
{
    kl_exec *exec = open_exec(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    submit_note(exec, "k", "k");
    submit_note(exec, "k", "k");
    journal_await(2);
    AWAIT(atomic_load(&exec->idle_count) == 1);
    pthread_mutex_lock(&exec->park_mutex); /* it has looked around and sleeps */
    pthread_mutex_unlock(&exec->park_mutex);
    atomic_fetch_add(&exec->brisk_count, 1); /* as if another thread were about that sees what comes */
    atomic_store(&exec->watched, true);
    kl__place_announce(&exec->shards[0], 0, false);
    CHECK_INT(atomic_load(&exec->idle_count), 1);
    atomic_fetch_sub(&exec->brisk_count, 1);
    atomic_store(&exec->watched, false);
    kl_exec_close(exec);
}
