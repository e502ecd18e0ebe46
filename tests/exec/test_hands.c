/* test_hands.c - threads take several tasks at once, and that must not show (src/exec/hand.h).
 *
 * A clock that stands still makes every task look short, so hands are as large as they get. */
#include <stdlib.h>

#include "base/random.h"
#include "exec/support.h"

/* Submits tasks of keys "0", "1", ... in one batch while the only thread is held, and lets it take them all. */
struct hand_task {
    kl_task_fn *fn;
    void *ctx;
};

static void deal(kl_exec *exec, const struct hand_task *tasks, size_t count, kl_exec_id *ret_ids)
{
    static struct gate gate; /* the dealer may leave it after we have returned */
    kl_exec_task batch[KL_HAND_MAX];
    char keys[KL_HAND_MAX][4];
    gate = (struct gate)GATE;
    submit(exec, "dealer", hold, &gate, NULL);
    gate_await(&gate, 1);
    for (size_t i = 0; i < count; i++) {
        snprintf(keys[i], sizeof keys[i], "%zu", i);
        batch[i] = (kl_exec_task){kl_str(keys[i]), tasks[i].fn, tasks[i].ctx, NULL};
    }
    CHECK_INT(kl_exec_submit_batch(exec, batch, count, ret_ids, NULL), KL_OK);
    gate_open(&gate);
}

TEST(what_waits_behind_a_blocked_task_in_a_hand_can_be_seen_and_steered_as_if_there_were_no_hand)
{
    struct gate block = GATE;
    kl_exec_id ids[10];
    uint64_t count = 0;
    kl_exec *exec = open_frozen(OPTS(.threads = 1, .on_failure = note_end, .on_failure_ctx = "f"));
    REQUIRE(exec != NULL);
    grow_hands(exec);
    deal(exec,
         (struct hand_task[]){{note, "0"},
                              {hold, &block},
                              {note, "2"},
                              {note, "3"},
                              {note, "4"},
                              {note, "5"},
                              {note, "6"},
                              {note, "7"},
                              {note, "8"},
                              {note, "9"}},
         10, ids);
    gate_await(&block, 1);
    kl_exec_status status;
    CHECK_INT(kl_exec_status_of(exec, ids[0], &status), KL_ENOTFOUND);
    CHECK_INT(info_of(exec, "0").state, KL_KEY_IDLE);
    CHECK_INT(status_of(exec, ids[1]).state, KL_EXEC_RUNNING);
    CHECK_INT(info_of(exec, "1").state, KL_KEY_RUNNING);
    for (int i = 2; i < 10; i++) {
        char key[] = {(char)('0' + i), '\0'};
        CHECK_INT(status_of(exec, ids[i]).state, KL_EXEC_WAITING);
        CHECK_INT(status_of(exec, ids[i]).attempts, 0);
        CHECK_INT(info_of(exec, key).state, KL_KEY_READY);
    }
    CHECK_INT(kl_exec_cancel(exec, ids[3]), KL_OK);
    CHECK_INT(kl_exec_key_pause(exec, kl_str("4")), KL_OK);
    CHECK_INT(kl_exec_key_skip(exec, kl_str("5")), KL_OK);
    CHECK_INT(kl_exec_key_drain(exec, kl_str("6"), &count), KL_OK);
    CHECK_INT(count, 1);
    CHECK_STR(journal_text(), "0 f=KL_ECANCELLED/0 f=KL_ECANCELLED/0 f=KL_ECANCELLED/0");
    gate_open(&block);
    journal_await(8);
    submit_note(exec, "last", "last");
    CHECK_INT(kl_exec_barrier(exec, kl_str("last"), KL_FOREVER), KL_OK);
    for (const char *ran = "2789"; *ran; ran++)
        CHECK_CONTAINS(journal_text(), ((char[]){' ', *ran, '\0'}));
    CHECK(!strstr(journal_text(), " 4"));
    CHECK_INT(info_of(exec, "4").state, KL_KEY_PAUSED);
    kl_exec_close(exec);
}

TEST(a_hand_that_cannot_be_recalled_is_run_by_its_thread_and_is_the_last)
{
    struct gate block = GATE;
    kl_exec *exec = open_frozen(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    grow_hands(exec);
    CHECK(atomic_load(&exec->hand_most) > 1);
    deal(exec, (struct hand_task[]){{hold, &block}, {note, "1"}, {note, "2"}, {note, "3"}}, 4, NULL);
    gate_await(&block, 1);
    atomic_store(&membarrier_fails, true);               /* a sandbox has closed around the process */
    CHECK_INT(info_of(exec, "2").state, KL_KEY_RUNNING); /* in hand, and it stays there */
    CHECK_INT(kl_exec_key_pause(exec, kl_str("2")), KL_OK);
    gate_open(&block);
    AWAIT(tasks_live(exec) == 0);
    CHECK_STR(journal_text(), "1 2 3");
    CHECK_INT(atomic_load(&exec->hand_most), 1);
    deal(exec, (struct hand_task[]){{note, "4"}, {note, "5"}, {note, "6"}, {note, "7"}}, 4, NULL);
    journal_await(6); /* that of the paused key is still to come */
    CHECK_STR(journal_text(), "1 2 3 4 5 7");
    atomic_store(&membarrier_fails, false);
    kl_exec_close(exec);
}

TEST(without_membarrier_hands_are_of_one_task)
{
    atomic_store(&membarrier_fails, true);
    kl_exec *exec = open_frozen(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    CHECK_INT(atomic_load(&exec->hand_most), 1);
    grow_hands(exec);
    pthread_mutex_lock(&exec->shards[0].mutex);
    CHECK_INT(exec->threads[0].hand_size, 1);
    pthread_mutex_unlock(&exec->shards[0].mutex);
    atomic_store(&membarrier_fails, false);
    kl_exec_close(exec);
}

TEST(a_hand_that_nobody_looks_at_is_cut_short_by_a_pause_of_each_of_its_keys)
{
    for (int paused = 1; paused < 6; paused++) {
        struct gate block = GATE;
        char key[] = {(char)('0' + paused), '\0'};
        kl_exec *exec = open_frozen(OPTS(.threads = 1));
        REQUIRE(exec != NULL);
        grow_hands(exec);
        deal(exec,
             (struct hand_task[]){
                 {hold, &block}, {note, "1"}, {note, "2"}, {note, "3"}, {note, "4"}, {note, "5"}, {note, "6"}},
             7, NULL);
        gate_await(&block, 1);
        CHECK_INT(kl_exec_key_pause(exec, kl_str(key)), KL_OK);
        gate_open(&block);
        journal_await(5);
        submit_note(exec, "last", "last");
        CHECK_INT(kl_exec_barrier(exec, kl_str("last"), KL_FOREVER), KL_OK);
        CHECK(!strstr(journal_text(), key));
        CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
        CHECK_CONTAINS(journal_text(), key);
        kl_exec_close(exec);
    }
}

static kl_outcome submit_high(kl_run *run, void *exec)
{
    (void)run;
    submit(exec, "high", note, "high", TASK(.priority = -1));
    journal_add("urges");
    return KL_DONE;
}

TEST(a_high_priority_overtakes_what_waits_in_a_hand)
{
    struct gate block = GATE;
    kl_exec *exec = open_frozen(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    grow_hands(exec);
    deal(exec, (struct hand_task[]){{note, "0"}, {hold, &block}, {note, "2"}, {note, "3"}, {note, "4"}}, 5, NULL);
    gate_await(&block, 1);
    submit(exec, "high", note, "high", TASK(.priority = -1));
    submit(exec, "low", note, "low", TASK(.priority = 1));
    gate_open(&block);
    journal_await(6);
    CHECK(strncmp(journal_text(), "0 high ", 7) == 0);
    CHECK_CONTAINS(journal_text(), " low");
    CHECK_STR(journal_text() + strlen(journal_text()) - 4, " low");
    kl_exec_close(exec);
}

TEST(a_high_priority_that_a_task_of_a_hand_submits_overtakes_the_rest_of_the_hand)
{
    kl_exec *exec = open_frozen(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    grow_hands(exec);
    deal(exec, (struct hand_task[]){{note, "0"}, {submit_high, exec}, {note, "2"}, {note, "3"}, {note, "4"}}, 5, NULL);
    journal_await(6);
    CHECK(strncmp(journal_text(), "0 urges high ", 13) == 0);
    kl_exec_close(exec);
}

TEST(tasks_of_a_hand_that_fail_or_end_their_thread_do_not_touch_the_others)
{
    static const char *const plans[] = {"d", "x", "rd", "ed", "kx", "d"};
    uint64_t random = test_seed();
    for (uint64_t round = 0; round < test_ops(300) && !test_failed(); round++) {
        struct script scripts[KL_HAND_MAX];
        struct hand_task tasks[KL_HAND_MAX];
        char names[KL_HAND_MAX][8];
        int expected = 0;
        kl_exec *exec = open_exec(OPTS(.threads = 1 + (int64_t)(round % 2)));
        REQUIRE(exec != NULL);
        grow_hands(exec);
        for (int i = 0; i < KL_HAND_MAX; i++) {
            snprintf(names[i], sizeof names[i], "<%d>", i);
            scripts[i] = (struct script){.name = names[i], .plan = plans[kl__random_below(&random, COUNT(plans))]};
            if (strchr(scripts[i].plan, 'e') && kl__random_below(&random, 4))
                scripts[i].plan = "d"; /* few of those: starting threads takes long */
            scripts[i].after_ms = 1;
            tasks[i] = (struct hand_task){play, &scripts[i]};
            expected += (int)strlen(scripts[i].plan);
        }
        deal(exec, tasks, KL_HAND_MAX, NULL);
        CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
        journal_await(expected);
        for (int i = 0; i < KL_HAND_MAX; i++) {
            size_t times = 0;
            for (const char *at = journal_text(); (at = strstr(at, names[i])); at++)
                times++;
            CHECK_INT(times, strlen(scripts[i].plan));
        }
        kl_exec_close(exec);
    }
}

static kl_outcome cancel_and_return(kl_run *run, void *name)
{
    (void)run;
    pthread_cancel(pthread_self());
    journal_add("%s", (const char *)name);
    return KL_DONE;
}

static kl_outcome heed_cancel(kl_run *run, void *name)
{
    pthread_testcancel();
    journal_add("%s%u", (const char *)name, (unsigned)kl_run_attempt(run));
    return KL_DONE;
}

TEST(a_task_that_has_its_thread_cancelled_and_returns_costs_no_other_an_attempt)
{
    kl_exec *exec = open_frozen(OPTS(.threads = 1, .attempts_max = 1, .on_failure = note_end, .on_failure_ctx = "f"));
    REQUIRE(exec != NULL);
    grow_hands(exec);
    deal(exec,
         (struct hand_task[]){{note, "0"}, {cancel_and_return, "cancels"}, {heed_cancel, "a"}, {heed_cancel, "b"}}, 4,
         NULL);
    journal_await(4);
    CHECK_STR(journal_text(), "0 cancels a1 b1");
    kl_exec_close(exec);
}

static kl_outcome leave_cancelability(kl_run *run, void *outcome)
{
    kl_run_retry_after(run, 0);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
    return kl_run_attempt(run) == 1 ? *(const kl_outcome *)outcome : KL_DONE;
}

static kl_outcome tell_cancelability(kl_run *run, void *ctx)
{
    int state, type;
    (void)run, (void)ctx;
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state);
    pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &type);
    bool is_default = state == PTHREAD_CANCEL_ENABLE && type == PTHREAD_CANCEL_DEFERRED;
    journal_add("%s", is_default ? "default" : "another's");
    return KL_DONE;
}

/* In the report, too. */
static void leave_it_in_report(void *ctx, const kl_exec_end *end)
{
    (void)ctx, (void)end;
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
}

TEST(how_a_task_lets_itself_be_cancelled_is_not_the_affair_of_those_that_are_taken_next)
{
    static kl_outcome outcomes[] = {KL_DONE, KL_RETRY, KL_DEAD};
    kl_exec *exec = open_frozen(OPTS(.threads = 1, .on_failure = leave_it_in_report));
    REQUIRE(exec != NULL);
    for (size_t i = 0; i < COUNT(outcomes); i++) {
        journal_clear();
        submit(exec, "last", leave_cancelability, &outcomes[i], NULL);
        AWAIT(tasks_live(exec) == 0);
        submit(exec, "next", tell_cancelability, NULL, NULL);
        journal_await(1);
        CHECK_STR(journal_text(), "default");
    }
    kl_exec_close(exec);
}

static atomic_int asynchronous_looks;

static void look_at_type(void)
{
    int type;
    pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &type);
    atomic_fetch_add(&asynchronous_looks, type == PTHREAD_CANCEL_ASYNCHRONOUS);
    pthread_setcanceltype(type, NULL);
}

static kl_outcome leave_type(kl_run *run, void *outcome)
{
    kl_run_retry_after(run, 0);
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
    return kl_run_attempt(run) == 1 ? *(const kl_outcome *)outcome : KL_DONE;
}

/* A thread that is ended in the middle of that may hold the shard's mutex. */
TEST(the_executors_own_work_is_not_done_with_the_type_that_a_task_has_left_asynchronous)
{
    static kl_outcome outcomes[] = {KL_DONE, KL_RETRY, KL_DEAD};
    kl_exec *exec = open_frozen(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    atomic_store(&asynchronous_looks, 0);
    atomic_store(&on_clock, look_at_type);
    for (size_t i = 0; i < COUNT(outcomes); i++) {
        submit(exec, "k", leave_type, &outcomes[i], NULL);
        AWAIT(tasks_live(exec) == 0);
    }
    CHECK_INT(atomic_load(&asynchronous_looks), 0);
    atomic_store(&on_clock, NULL);
    kl_exec_close(exec);
}

TEST(what_a_report_changes_of_how_the_thread_is_cancelled_is_not_the_next_tasks_affair)
{
    struct gate gate = GATE;
    kl_exec *exec = open_frozen(OPTS(.threads = 1, .on_failure = leave_it_in_report));
    REQUIRE(exec != NULL);
    submit(exec, "held", hold, &gate, NULL);
    gate_await(&gate, 1);
    submit(exec, "late", nothing, NULL, TASK(.deadline_ms = 10));
    submit(exec, "next", tell_cancelability, NULL, NULL);
    pass_ms(exec, 10);
    gate_open(&gate);
    journal_await(1);
    CHECK_STR(journal_text(), "default");
    kl_exec_close(exec);
}

static kl_outcome have_it_cancelled_later(kl_run *run, void *ctx)
{
    (void)run, (void)ctx;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
    pthread_cancel(pthread_self());
    return KL_DONE;
}

TEST(a_task_whose_thread_may_be_cancelled_at_any_moment_costs_no_other_its_run)
{
    kl_exec *exec = open_frozen(OPTS(.threads = 1, .attempts_max = 1, .on_failure = note_end, .on_failure_ctx = "f"));
    REQUIRE(exec != NULL);
    submit(exec, "a", have_it_cancelled_later, NULL, NULL);
    submit_note(exec, "b", "b");
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    CHECK_STR(journal_text(), "b");
    kl_exec_close(exec);
}

/* --- A task that blocks, blocks nobody else --- */

enum { ROUND_KEYS = 40 };

struct blocked_round {
    struct tally ran;
    int64_t others; /* how many must have run before the blocked one may go on */
};

static kl_outcome wait_for_others(kl_run *run, void *ctx)
{
    struct blocked_round *round = ctx;
    (void)run;
    tally_await(&round->ran, round->others);
    return KL_DONE;
}

/* Each key has several tasks, so that keys whose first task was done in the hand must go on elsewhere as well. */
static void block_at_random(kl_exec *exec, uint64_t *random)
{
    struct blocked_round round = {TALLY, 0};
    kl_exec_task batch[3 * ROUND_KEYS];
    char keys[ROUND_KEYS][8];
    size_t count = 1 + kl__random_below(random, ROUND_KEYS), depth = 1 + kl__random_below(random, 3), at = 0;
    size_t blocked = kl__random_below(random, count);
    for (size_t d = 0; d < depth; d++) {
        for (size_t i = 0; i < count; i++) {
            if (d > 0 && i == blocked)
                continue;
            snprintf(keys[i], sizeof keys[i], "%zu", i);
            kl_bytes key = kl__random_below(random, 8) ? kl_str(keys[i]) : kl_str("");
            batch[at++] = i == blocked ? (kl_exec_task){key, wait_for_others, &round, NULL}
                                       : (kl_exec_task){key, add_one, &round.ran, NULL};
        }
    }
    round.others = (int64_t)at - 1;
    CHECK_INT(kl_exec_submit_batch(exec, batch, at, NULL, NULL), KL_OK);
    tally_await(&round.ran, round.others);
    AWAIT(tasks_live(exec) == 0);
}

TEST(a_task_that_blocks_after_many_short_ones_blocks_nobody_else)
{
    uint64_t random = test_seed();
    for (int64_t threads = 2; threads <= 4; threads++) {
        kl_exec *exec = open_frozen(OPTS(.threads = threads));
        REQUIRE(exec != NULL);
        grow_hands(exec);
        for (uint64_t i = 0; i < test_ops(1500) && !test_failed(); i++)
            block_at_random(exec, &random);
        kl_exec_close(exec);
        if (test_failed())
            return;
    }
}

TEST(a_task_that_blocks_after_many_short_ones_blocks_nobody_else_by_the_real_clock)
{
    uint64_t random = test_seed();
    struct tally ran = TALLY;
    kl_exec *exec = open_exec(OPTS(.threads = 2));
    REQUIRE(exec != NULL);
    for (uint64_t i = 0; i < test_ops(300) && !test_failed(); i++) {
        kl_exec_task batch[256];
        char keys[256][8];
        for (int t = 0; t < 256; t++) {
            snprintf(keys[t], sizeof keys[t], "n%d", t);
            batch[t] = (kl_exec_task){kl_str(keys[t]), nothing, &ran, NULL};
        }
        CHECK_INT(kl_exec_submit_batch(exec, batch, COUNT(batch), NULL, NULL), KL_OK);
        block_at_random(exec, &random);
    }
    kl_exec_close(exec);
}

/* While one thread is busy with short tasks, another that has nothing to do looks after it. If that one gets up for a
 * task of its own, somebody else must look after both. */
TEST(as_many_tasks_block_at_once_as_there_are_threads_after_a_burst_of_short_ones)
{
    enum { THREADS = 3 };
    kl_exec *exec = open_frozen(OPTS(.threads = THREADS));
    REQUIRE(exec != NULL);
    grow_hands(exec);
    for (uint64_t i = 0; i < 20 + test_ops(200) && !test_failed(); i++) {
        struct gate gate = GATE;
        kl_exec_task burst[48], pair[2] = {{kl_str("a"), hold, &gate, NULL}, {kl_str("b"), hold, &gate, NULL}};
        char keys[COUNT(burst)][8];
        for (size_t t = 0; t < COUNT(burst); t++) {
            snprintf(keys[t], sizeof keys[t], "n%zu", t);
            burst[t] = (kl_exec_task){kl_str(keys[t]), nothing, NULL, NULL};
        }
        for (int n = 0; n < 8; n++)
            CHECK_INT(kl_exec_submit_batch(exec, burst, COUNT(burst), NULL, NULL), KL_OK);
        CHECK_INT(kl_exec_submit_batch(exec, pair, 2, NULL, NULL), KL_OK);
        if (i % 2)
            gate_await(&gate, 1);
        submit(exec, "c", hold, &gate, NULL);
        gate_await(&gate, THREADS);
        gate_open(&gate);
        AWAIT(tasks_live(exec) == 0);
    }
    kl_exec_close(exec);
}

TEST(a_batch_that_comes_while_all_threads_sleep_wakes_as_many_as_it_needs)
{
    enum { THREADS = 4 };
    kl_exec *exec = open_frozen(OPTS(.threads = THREADS));
    REQUIRE(exec != NULL);
    for (int i = 0; i < 20; i++) {
        struct gate gate = GATE;
        kl_exec_task batch[THREADS];
        for (int t = 0; t < THREADS; t++)
            batch[t] = (kl_exec_task){{&"abcd"[t], 1}, hold, &gate, NULL};
        AWAIT(atomic_load(&exec->idle_count) == THREADS);
        CHECK_INT(kl_exec_submit_batch(exec, batch, THREADS, NULL, NULL), KL_OK);
        gate_await(&gate, THREADS); /* all at the same time */
        gate_open(&gate);
        AWAIT(tasks_live(exec) == 0);
        if (test_failed())
            break;
    }
    kl_exec_close(exec);
}

/* The narrowest moment: the other thread goes to sleep after this one has seen that nobody is idle, and before its hand
 * can be seen. Whoever looks last must notice. */
static struct {
    kl_exec *exec;
    struct gate other; /* where the other thread waits */
} narrow;

static void let_the_other_fall_asleep(kl__lane_task **tasks, uint32_t count)
{
    kl_bytes key = kl__lane_task_key(tasks[0]);
    if (count < 2 || key.len != strlen("first") || memcmp(key.data, "first", key.len) != 0)
        return;
    atomic_store(&on_take, NULL);
    gate_open(&narrow.other);
    AWAIT(atomic_load(&narrow.exec->idle_count) > 0);
    pthread_mutex_lock(&narrow.exec->park_mutex); /* it has looked around and sleeps */
    pthread_mutex_unlock(&narrow.exec->park_mutex);
    journal_add("asleep");
}

static void find_key(kl_exec *exec, bool same_shard, char key[static 16])
{
    uint64_t hash;
    kl__shard *first = kl__exec_shard_of(exec, kl_str("first"), &hash);
    for (int i = 0;; i++) {
        snprintf(key, 16, "%d", i);
        if ((kl__exec_shard_of(exec, kl_str(key), &hash) == first) == same_shard)
            return;
    }
}

TEST(a_thread_that_falls_asleep_while_a_hand_is_filled_still_takes_it_back)
{
    struct blocked_round round = {TALLY, 1};
    char elsewhere[16], second[16];
    kl_exec *exec = open_frozen(OPTS(.threads = 2, .shards = 2));
    REQUIRE(exec != NULL);
    find_key(exec, false, elsewhere);
    find_key(exec, true, second);
    grow_hands(exec);
    narrow.exec = exec;
    narrow.other = (struct gate)GATE;
    submit(exec, elsewhere, hold, &narrow.other, NULL);
    gate_await(&narrow.other, 1);
    AWAIT(atomic_load(&exec->idle_count) == 1);
    atomic_store(&on_take, let_the_other_fall_asleep);
    kl_exec_task batch[] = {{kl_str("first"), wait_for_others, &round, NULL},
                            {kl_str(second), add_one, &round.ran, NULL}};
    CHECK_INT(kl_exec_submit_batch(exec, batch, 2, NULL, NULL), KL_OK);
    tally_await(&round.ran, 1);
    CHECK_STR(journal_text(), "asleep"); /* else this test did not happen */
    atomic_store(&on_take, NULL);
    kl_exec_close(exec);
}

static void wait_for_zero(void *exec) { journal_add("%s", kl_rc_name(kl_exec_barrier(exec, kl_str("0"), 300))); }

TEST(a_barrier_that_waits_already_is_reached_although_the_next_in_hand_blocks)
{
    static struct gate dealer;
    struct gate block = GATE;
    struct helper helper;
    dealer = (struct gate)GATE;
    kl_exec *exec = open_frozen(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    grow_hands(exec);
    submit(exec, "dealer", hold, &dealer, NULL);
    gate_await(&dealer, 1);
    submit(exec, "0", note, "zero", NULL);
    submit(exec, "1", hold, &block, NULL);
    atomic_store(&barriers_waiting, 0);
    helper_start(&helper, wait_for_zero, exec);
    AWAIT(atomic_load(&barriers_waiting) == 1);
    gate_open(&dealer);
    gate_await(&block, 1);
    helper_join(&helper);
    CHECK_STR(journal_text(), "zero KL_OK");
    gate_open(&block);
    kl_exec_close(exec);
}

TEST(what_is_done_gives_its_place_back_although_the_next_in_hand_blocks)
{
    struct gate block = GATE;
    kl_exec *exec = open_frozen(OPTS(.threads = 1, .shard_capacity = 8, .submit_timeout_ms = 50));
    REQUIRE(exec != NULL);
    grow_hands(exec);
    deal(exec, (struct hand_task[]){{note, "0"}, {note, "1"}, {note, "2"}, {hold, &block}}, 4, NULL);
    gate_await(&block, 1);
    CHECK_STR(journal_text(), "0 1 2");
    for (int i = 0; i < 7; i++) /* one runs, so there is room for seven */
        CHECK_INT(kl_exec_submit(exec, kl_str("k"), nothing, NULL, NULL, NULL), KL_OK);
    gate_open(&block);
    kl_exec_close(exec);
}

/* To look costs a barrier in every thread, so it is not done while one comes by again and again. */
static void take_places_in_hand(const char *key)
{
    struct gate block = GATE;
    const kl_exec_task_opts *at_once = TASK(.submit_timeout_ms = KL_NO_WAIT);
    kl_exec *exec = open_frozen(OPTS(.threads = 1, .shard_capacity = 8));
    REQUIRE(exec != NULL);
    grow_hands(exec);
    deal(exec, (struct hand_task[]){{note, "0"}, {note, "1"}, {note, "2"}, {hold, &block}}, 4, NULL);
    gate_await(&block, 1);
    for (int i = 0; i < 4; i++)
        submit(exec, key, nothing, NULL, at_once);
    CHECK_INT(kl_exec_submit(exec, kl_str(key), nothing, NULL, at_once, NULL), KL_EFULL);
    pass_ms(exec, KL_EXEC_LOOK_NS / MS);
    for (int i = 0; i < 3; i++)
        submit(exec, key, nothing, NULL, at_once);
    CHECK_INT(kl_exec_submit(exec, kl_str(key), nothing, NULL, at_once, NULL), KL_EFULL);
    gate_open(&block);
    kl_exec_close(exec);
}

TEST(who_does_not_wait_gets_the_place_of_what_is_done_in_hand_once_no_thread_has_come_by_for_a_while)
{
    take_places_in_hand("k");
}

TEST(a_task_without_a_key_gets_the_place_of_what_is_done_in_hand_too) { take_places_in_hand(""); }

struct recall {
    kl_exec *exec;
    struct gate elsewhere;
    int waits;
};

/* The second wait comes after the recall. */
static void free_the_other_thread(void *ctx)
{
    struct recall *recall = ctx;
    if (++recall->waits == 2) {
        gate_open(&recall->elsewhere);
        AWAIT(kl__inbox_length(&recall->exec->shards[0].inbox) == 1);
    }
}

TEST(what_a_waiting_submit_recalls_from_a_hand_is_offered_to_other_threads)
{
    struct gate dealer = GATE, block = GATE;
    struct recall recall = {.elsewhere = GATE};
    char keys[7][8]; /* five of one shard and two of the other */
    uint64_t hash;
    kl_exec *exec = recall.exec =
        open_frozen(OPTS(.shards = 2, .threads = 2, .shard_capacity = 4, .submit_timeout_ms = PATIENCE_MS));
    REQUIRE(exec != NULL);
    for (int i = 0, n = 0; n < 7; i++) {
        snprintf(keys[n], sizeof keys[n], "k%d", i % 1000);
        n += kl__exec_shard_of(exec, kl_str(keys[n]), &hash)->index == (n >= 5);
    }
    grow_hands(exec);
    submit(exec, keys[5], hold, &recall.elsewhere, NULL);
    gate_await(&recall.elsewhere, 1);
    submit(exec, keys[6], hold, &dealer, NULL);
    gate_await(&dealer, 1);
    submit(exec, keys[0], hold, &block, NULL);
    for (int i = 1; i < 4; i++)
        submit_note(exec, keys[i], "recalled");
    gate_open(&dealer);
    gate_await(&block, 1);
    own_time = (struct own_time){
        .is_on = true, .now_ns = kl__deadline_ns(3600000), .meanwhile = free_the_other_thread, .ctx = &recall};
    CHECK_INT(kl_exec_submit(exec, kl_str(keys[4]), nothing, NULL, NULL, NULL), KL_OK);
    own_time.is_on = false;
    gate_open(&block);
    kl_exec_close(exec);
}

static _Atomic(int) ran_before;

static kl_outcome count_before(kl_run *run, void *ctx)
{
    (void)run, (void)ctx;
    atomic_fetch_add(&ran_before, 1);
    return KL_DONE;
}

static kl_outcome tell_before(kl_run *run, void *ctx)
{
    (void)run, (void)ctx;
    journal_add("%d", atomic_load(&ran_before));
    return KL_DONE;
}

/* It cannot be run as one of many, but its turn is its turn. */
TEST(a_task_with_a_report_has_its_turn_among_short_ones)
{
    enum { KEYS = 100, EACH = 20, BEFORE = 30 };
    static struct gate dealer;
    dealer = (struct gate)GATE;
    atomic_store(&ran_before, 0);
    kl_exec *exec = open_frozen(OPTS(.threads = 1, .shard_capacity = 4 * KEYS * EACH));
    REQUIRE(exec != NULL);
    grow_hands(exec);
    submit(exec, "dealer", hold, &dealer, NULL);
    gate_await(&dealer, 1);
    for (int i = 0; i < KEYS * EACH; i++) {
        char key[16];
        if (i == BEFORE)
            submit(exec, "reported", tell_before, NULL, TASK(.end = note_end, .end_ctx = "end"));
        snprintf(key, sizeof key, "%d", i % KEYS);
        submit(exec, key, count_before, NULL, NULL);
    }
    gate_open(&dealer);
    AWAIT(tasks_live(exec) == 0);
    CHECK_STR(journal_text(), "30 end=KL_OK/1");
    kl_exec_close(exec);
}

static _Atomic(uint64_t) taken_in_all;

static void count_taken(kl__lane_task **tasks, uint32_t count)
{
    (void)tasks;
    atomic_fetch_add(&taken_in_all, count);
}

TEST(where_all_tasks_are_taken_alone_hands_are_small)
{
    enum { KEYS = 100, EACH = 5 };
    static struct gate dealer;
    dealer = (struct gate)GATE;
    atomic_store(&taken_in_all, 0);
    kl_exec *exec = open_frozen(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    grow_hands(exec);
    submit(exec, "dealer", hold, &dealer, NULL);
    gate_await(&dealer, 1);
    for (int i = 0; i < KEYS * EACH; i++) {
        char key[16];
        snprintf(key, sizeof key, "%d", i % KEYS);
        submit(exec, key, nothing, NULL, TASK(.deadline_ms = PATIENCE_MS));
    }
    atomic_store(&on_take, count_taken);
    gate_open(&dealer);
    AWAIT(tasks_live(exec) == 0);
    atomic_store(&on_take, NULL);
    CHECK(atomic_load(&taken_in_all) < 2 * KEYS * EACH); /* each once, and every other one in vain */
    kl_exec_close(exec);
}

TEST(a_deadline_that_passes_while_the_task_before_it_in_a_hand_runs_is_kept)
{
    struct gate gate = GATE, slow = GATE;
    kl_exec *exec = open_frozen(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    submit(exec, "short", hold, &gate, NULL); /* after it, the thread takes two at once */
    gate_await(&gate, 1);
    submit(exec, "slow", hold, &slow, NULL);
    submit(exec, "late", note, "ran", TASK(.deadline_ms = 10, .end = note_end, .end_ctx = "late"));
    gate_open(&gate);
    gate_await(&slow, 1);
    pass_ms(exec, 20);
    gate_open(&slow);
    CHECK_INT(kl_exec_drain(exec, KL_FOREVER), KL_OK);
    CHECK_STR(journal_text(), "late=KL_ETIMEDOUT/0");
    kl_exec_close(exec);
}

/* --- How many, and how long they took --- */

static void note_taken(kl__lane_task **tasks, uint32_t count)
{
    (void)tasks;
    journal_add("%u", count);
}

/* Lets the only thread take the tasks, and waits until they have ended. The journal gets how many it took each time. */
static void take_noting(kl_exec *exec, const kl_exec_task *tasks, size_t count)
{
    struct gate dealer = GATE;
    submit(exec, "dealer", hold, &dealer, NULL);
    gate_await(&dealer, 1);
    CHECK_INT(kl_exec_submit_batch(exec, tasks, count, NULL, NULL), KL_OK);
    atomic_store(&on_take, note_taken);
    gate_open(&dealer);
    AWAIT(tasks_live(exec) == 0);
    atomic_store(&on_take, NULL);
}

static kl_outcome take_100_ms(kl_run *run, void *ctx)
{
    (void)run;
    pass_ms(ctx, 100);
    return KL_DONE;
}

TEST(after_one_that_took_long_tasks_are_taken_one_by_one_until_they_have_proved_to_be_short)
{
    enum { KEYS = 10 };
    char keys[KEYS][4];
    kl_exec_task tasks[2 * KEYS];
    kl_exec *exec = open_frozen(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    grow_hands(exec);
    for (int i = 0; i < 2 * KEYS; i++) {
        snprintf(keys[i % KEYS], sizeof keys[0], "%d", i % KEYS);
        tasks[i] = (kl_exec_task){kl_str(keys[i % KEYS]), i == 3 ? take_100_ms : nothing, exec, NULL};
    }
    take_noting(exec, tasks, COUNT(tasks));
    CHECK_STR(journal_text(), "10 1 2 4 3");
    kl_exec_close(exec);
}

TEST(after_one_that_is_taken_alone_hands_grow_again)
{
    char keys[9][4];
    kl_exec_task tasks[9];
    const kl_exec_task_opts *alone = TASK(.deadline_ms = PATIENCE_MS);
    kl_exec *exec = open_frozen(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    grow_hands(exec);
    for (int i = 0; i < 9; i++) {
        snprintf(keys[i], sizeof keys[0], "%d", i);
        tasks[i] = (kl_exec_task){kl_str(keys[i]), nothing, NULL, i == 1 ? alone : NULL};
    }
    take_noting(exec, tasks, COUNT(tasks));
    CHECK_STR(journal_text(), "9 1 2 4 1");
    kl_exec_close(exec);
}

/* Runs that took more than the one and up to the other, of all that there were. */
static void check_runs(kl_exec *exec, uint64_t short_ones, uint64_t of_50_to_100_ms)
{
    enum { TO_100_MS = 6 };
    kl__shard *shard = &exec->shards[0];
    pthread_mutex_lock(&shard->mutex);
    CHECK_INT(kl__run_bucket_ns(TO_100_MS), 100 * MS);
    CHECK_INT(shard->runs.count[0], short_ones);
    CHECK_INT(shard->runs.count[TO_100_MS], of_50_to_100_ms);
    pthread_mutex_unlock(&shard->mutex);
}

TEST(of_the_tasks_of_a_hand_the_one_that_took_long_is_told_from_the_others)
{
    kl_exec *exec = open_frozen(OPTS(.threads = 1));
    REQUIRE(exec != NULL);
    grow_hands(exec);
    check_runs(exec, 8, 0);
    deal(exec, (struct hand_task[]){{nothing, NULL}, {take_100_ms, exec}, {nothing, NULL}, {nothing, NULL}}, 4, NULL);
    AWAIT(tasks_live(exec) == 0);
    check_runs(exec, 8 + 1 + 3, 1);
    kl_exec_close(exec);
}

static kl_exec *report_exec;

static void report_for_60_ms(void *ctx, const kl_exec_end *end)
{
    (void)ctx, (void)end;
    pass_ms(report_exec, 60);
}

TEST(how_long_a_task_of_a_hand_is_reported_is_not_the_next_ones_time)
{
    struct script dead = {.name = "t", .plan = "x"};
    kl_exec *exec = report_exec = open_frozen(OPTS(.threads = 1, .on_failure = report_for_60_ms));
    REQUIRE(exec != NULL);
    grow_hands(exec);
    deal(exec, (struct hand_task[]){{nothing, NULL}, {play, &dead}, {nothing, NULL}}, 3, NULL);
    AWAIT(tasks_live(exec) == 0);
    check_runs(exec, 8 + 1 + 3, 0);
    kl_exec_close(exec);
}
