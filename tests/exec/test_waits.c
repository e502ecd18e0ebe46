/* test_waits.c - how long a submit or a batch waits for room, and for whose, and a drain for the end: in a time of the
 * test's own, so that a wait takes exactly as long as it says. */
#include <stdlib.h>

#include "exec/support.h"

enum { LOOK_MS = KL_EXEC_LOOK_NS / MS };

/* Starts the thread's own time, later than any that it has seen. */
static int64_t start_own_time(struct own_time settings)
{
    own_time = settings;
    own_time.now_ns = kl__monotonic_ns() + INT64_C(3600000) * MS;
    own_time.is_on = true;
    return own_time.now_ns;
}

/* Milliseconds since then. */
static int64_t end_own_time(int64_t start_ns)
{
    int64_t ms = (own_time.now_ns - start_ns) / MS;
    own_time.is_on = false;
    return ms;
}

struct text {
    char bytes[16];
};

/* Some key of this shard. */
static struct text key_in(kl_exec *exec, uint32_t shard)
{
    struct text key;
    uint64_t hash;
    int i = 0;
    do
        snprintf(key.bytes, sizeof key.bytes, "k%d", i++);
    while (kl__exec_shard_of(exec, kl_str(key.bytes), &hash)->index != shard);
    return key;
}

/* Takes a shard's only place, and a thread, until the gate is opened. */
static void occupy(kl_exec *exec, uint32_t shard, struct gate *gate)
{
    submit(exec, key_in(exec, shard).bytes, hold, gate, NULL);
    gate_await(gate, 1);
}

static kl_exec *open_narrow(int64_t shards)
{
    return open_frozen(OPTS(.shards = shards, .threads = shards, .shard_capacity = 1, .submit_timeout_ms = 100));
}

/* What a function leaves on the stack is what the next one finds there. */
static __attribute__((noinline)) void dirty_stack(void)
{
    volatile int64_t words[8192];
    for (size_t i = 0; i < COUNT(words); i++)
        words[i] = 1;
}

TEST(a_batch_waits_for_all_shards_that_are_full_together_as_long_as_for_one)
{
    struct gate gates[3] = {GATE, GATE, GATE};
    struct text keys[3];
    kl_exec_task batch[3];
    kl_exec_id ids[3] = {1, 1, 1};
    size_t taken = 1;
    kl_exec *exec = open_narrow(3);
    REQUIRE(exec != NULL);
    for (uint32_t i = 0; i < 3; i++) {
        occupy(exec, i, &gates[i]);
        keys[i] = key_in(exec, i);
        batch[i] = (kl_exec_task){kl_str(keys[i].bytes), nothing, NULL, NULL};
    }
    dirty_stack();
    int64_t start_ns = start_own_time((struct own_time){0});
    CHECK_INT(kl_exec_submit_batch(exec, batch, 3, ids, &taken), KL_EFULL);
    CHECK_INT(end_own_time(start_ns), 100);
    CHECK_INT(taken, 0);
    for (int i = 0; i < 3; i++) {
        CHECK_INT(ids[i], 0);
        gate_open(&gates[i]);
    }
    kl_exec_close(exec);
}

TEST(who_waits_for_room_does_not_yield_beyond_his_time)
{
    struct gate gate = GATE;
    kl_exec *exec = open_narrow(1);
    REQUIRE(exec != NULL);
    occupy(exec, 0, &gate);
    int64_t start_ns = start_own_time((struct own_time){.yield_ns = 3 * MS / 10});
    CHECK_INT(kl_exec_submit(exec, kl_str("k"), nothing, NULL, TASK(.submit_timeout_ms = 1), NULL), KL_EFULL);
    CHECK_INT(own_time.yields, 4);
    CHECK_INT(end_own_time(start_ns), 1);
    gate_open(&gate);
    kl_exec_close(exec);
}

struct room {
    kl_exec *exec;
    struct gate gates[3];
};

/* Makes room in a shard for which nobody waits. */
static void make_room_elsewhere(void *ctx)
{
    struct room *room = ctx;
    own_time.meanwhile = NULL;
    uint32_t i = 0;
    while (room->exec->shards[i].waiting > 0)
        i++;
    gate_open(&room->gates[i]);
    AWAIT(kl__inbox_length(&room->exec->shards[i].inbox) == 0);
}

TEST(a_task_without_a_key_that_waits_for_room_finds_it_in_any_shard)
{
    struct room room = {.gates = {GATE, GATE, GATE}};
    kl_exec *exec = room.exec = open_narrow(3);
    REQUIRE(exec != NULL);
    for (uint32_t i = 0; i < 3; i++)
        occupy(exec, i, &room.gates[i]);
    int64_t start_ns = start_own_time((struct own_time){.meanwhile = make_room_elsewhere, .ctx = &room});
    CHECK_INT(kl_exec_submit(exec, kl_str(""), nothing, NULL, NULL, NULL), KL_OK);
    CHECK_INT(end_own_time(start_ns), LOOK_MS);
    for (int i = 0; i < 3; i++)
        gate_open(&room.gates[i]);
    kl_exec_close(exec);
}

TEST(a_task_without_a_key_finds_the_only_shard_with_room_wherever_it_starts_to_look)
{
    struct gate gates[3] = {GATE, GATE, GATE};
    kl_exec *exec = open_narrow(3);
    REQUIRE(exec != NULL);
    occupy(exec, 0, &gates[0]);
    occupy(exec, 2, &gates[2]);
    for (uint32_t start = 0; start < 3; start++) {
        atomic_store(&exec->next_shard, start);
        CHECK_INT(kl_exec_submit(exec, kl_str(""), nothing, NULL, TASK(.submit_timeout_ms = KL_NO_WAIT), NULL), KL_OK);
        AWAIT(tasks_live(exec) == 2);
    }
    gate_open(&gates[0]);
    gate_open(&gates[2]);
    kl_exec_close(exec);
}

/* While a shard has delayed tasks, everything that is submitted there is stamped and looked at before each take. */
TEST(a_delayed_task_counts_where_it_goes_and_nowhere_once_it_is_refused)
{
    struct gate gate = GATE;
    kl_exec *exec = open_narrow(2);
    const kl_exec_task_opts *later = TASK(.delay_ms = 1000, .submit_timeout_ms = KL_NO_WAIT);
    REQUIRE(exec != NULL);
    occupy(exec, 0, &gate);
    atomic_store(&exec->next_shard, 0);
    kl_exec_id id = submit(exec, "", nothing, NULL, later);
    CHECK_INT(atomic_load(&exec->shards[0].delayed), 0);
    CHECK_INT(atomic_load(&exec->shards[1].delayed), 1);
    CHECK_INT(kl_exec_cancel(exec, id), KL_OK);
    CHECK_INT(atomic_load(&exec->shards[1].delayed), 0);
    CHECK_INT(kl_exec_submit(exec, kl_str(key_in(exec, 0).bytes), nothing, NULL, later, NULL), KL_EFULL);
    CHECK_INT(atomic_load(&exec->shards[0].delayed), 0);
    gate_open(&gate);
    kl_exec_close(exec);
}

/* --- Looking again --- */

static void free_one_place(void *ctx)
{
    struct room *room = ctx;
    own_time.meanwhile = NULL;
    gate_open(&room->gates[0]);
    gate_await(&room->gates[1], 1);
}

/* Nobody is called for one place of four. */
TEST(who_waits_for_room_looks_for_a_single_place_himself)
{
    struct room room = {.gates = {GATE, GATE}};
    kl_exec *exec = open_frozen(OPTS(.threads = 1, .shard_capacity = 4, .submit_timeout_ms = 100));
    REQUIRE(exec != NULL);
    submit(exec, "a", hold, &room.gates[0], NULL);
    submit(exec, "b", hold, &room.gates[1], NULL);
    submit(exec, "c", nothing, NULL, NULL);
    submit(exec, "d", nothing, NULL, NULL);
    gate_await(&room.gates[0], 1);
    int64_t start_ns = start_own_time((struct own_time){.meanwhile = free_one_place, .ctx = &room});
    CHECK_INT(kl_exec_submit(exec, kl_str("e"), nothing, NULL, NULL, NULL), KL_OK);
    CHECK_INT(end_own_time(start_ns), LOOK_MS);
    gate_open(&room.gates[1]);
    kl_exec_close(exec);
}

enum { CAPACITY = 32, EIGHTH = CAPACITY / 8 };

static void let_run(void *ctx)
{
    struct room *room = ctx;
    own_time.meanwhile = NULL;
    gate_open(&room->gates[0]);
    journal_await(1);
    CHECK_INT(kl_exec_key_resume(room->exec, kl_str(key_in(room->exec, 0).bytes)), KL_OK);
    AWAIT(tasks_live(room->exec) == 0);
}

/* He has looked into the inbox, where a task of another key was, and all that others know of it is what he told
 * them. */
TEST(who_waits_for_a_blocked_key_keeps_nobody_elses_task_and_looks_again_soon)
{
    struct room room = {.gates = {GATE}};
    kl_exec *exec = room.exec = open_frozen(OPTS(.shards = 2, .threads = 1, .shard_capacity = CAPACITY));
    REQUIRE(exec != NULL);
    struct text key = key_in(exec, 0);
    char other[16] = "";
    do
        snprintf(other + strlen(other), 2, "x");
    while (kl__exec_shard_of(exec, kl_str(other), &(uint64_t){0})->index != 0);
    CHECK_INT(kl_exec_key_pause(exec, kl_str(key.bytes)), KL_OK);
    occupy(exec, 1, &room.gates[0]);
    for (int i = 0; i < EIGHTH; i++)
        submit(exec, key.bytes, nothing, NULL, NULL);
    submit_note(exec, other, "other");
    int64_t start_ns = start_own_time((struct own_time){.meanwhile = let_run, .ctx = &room});
    CHECK_INT(kl_exec_submit(exec, kl_str(key.bytes), nothing, NULL, TASK(.submit_timeout_ms = 100), NULL), KL_OK);
    CHECK_INT(end_own_time(start_ns), LOOK_MS);
    CHECK_STR(journal_text(), "other");
    kl_exec_close(exec);
}

TEST(a_delayed_task_without_a_key_waits_for_no_shard_while_another_has_room)
{
    kl_exec *exec = open_frozen(OPTS(.shards = 2, .shard_capacity = 2));
    REQUIRE(exec != NULL);
    const kl_exec_task_opts *later = TASK(.delay_ms = 1000, .submit_timeout_ms = 100);
    submit(exec, key_in(exec, 0).bytes, nothing, NULL, later); /* as many as may, here */
    atomic_store(&exec->next_shard, 0);
    int64_t start_ns = start_own_time((struct own_time){0});
    CHECK_INT(kl_exec_submit(exec, kl_str(""), nothing, NULL, later, NULL), KL_OK);
    CHECK_INT(end_own_time(start_ns), 0);
    atomic_store(&exec->next_shard, 0);
    start_ns = start_own_time((struct own_time){0});
    CHECK_INT(kl_exec_submit(exec, kl_str(""), nothing, NULL, later, NULL), KL_EFULL);
    CHECK_INT(end_own_time(start_ns), 100);
    kl_exec_close(exec);
}

/* Of the shards the one for which nobody waits: what is delayed there becomes due. */
static void let_due_run(void *ctx)
{
    own_time.meanwhile = NULL;
    pass_ms(ctx, 50);
    AWAIT(tasks_live(ctx) == 1);
}

TEST(a_delayed_task_without_a_key_that_waits_finds_a_share_in_any_shard)
{
    for (uint32_t due = 0; due < 2; due++) {
        kl_exec *exec = open_frozen(OPTS(.shards = 2, .shard_capacity = 2));
        REQUIRE(exec != NULL);
        for (uint32_t i = 0; i < 2; i++)
            submit(exec, key_in(exec, i).bytes, nothing, NULL, TASK(.delay_ms = i == due ? 50 : 1000));
        atomic_store(&exec->next_shard, 0);
        int64_t start_ns = start_own_time((struct own_time){.meanwhile = let_due_run, .ctx = exec});
        CHECK_INT(
            kl_exec_submit(exec, kl_str(""), nothing, NULL, TASK(.delay_ms = 1000, .submit_timeout_ms = 100), NULL),
            KL_OK);
        CHECK_INT(end_own_time(start_ns), LOOK_MS);
        kl_exec_close(exec);
    }
}

/* One shard has no room, and the other none for more that is delayed. */
TEST(a_delayed_task_without_a_key_that_waits_for_room_takes_no_more_than_the_share_of_such)
{
    struct gate gate = GATE;
    kl_exec *exec = open_frozen(OPTS(.shards = 2, .shard_capacity = 2));
    REQUIRE(exec != NULL);
    struct text full = key_in(exec, 0), half = key_in(exec, 1);
    submit(exec, full.bytes, hold, &gate, NULL);
    submit(exec, full.bytes, nothing, NULL, NULL);
    submit(exec, half.bytes, nothing, NULL, TASK(.delay_ms = 1000));
    for (int i = 0; i < 2; i++) {
        atomic_store(&exec->next_shard, 0);
        int64_t start_ns = start_own_time((struct own_time){0});
        CHECK_INT(
            kl_exec_submit(exec, kl_str(""), nothing, NULL, TASK(.delay_ms = 1000, .submit_timeout_ms = 100), NULL),
            KL_EFULL);
        CHECK_INT(end_own_time(start_ns), 100);
    }
    CHECK_INT(tasks_live(exec), 3);
    gate_open(&gate);
    kl_exec_close(exec);
}

static void resume_and_run(void *ctx)
{
    own_time.meanwhile = NULL;
    CHECK_INT(kl_exec_key_resume(ctx, kl_str("k")), KL_OK);
    AWAIT(tasks_live(ctx) == 0);
}

/* Once by itself and once in a batch. */
TEST(where_submits_wait_for_ever_they_do_so_for_a_key_that_was_refused_to_others)
{
    kl_exec *exec = open_frozen(OPTS(.threads = 1, .shard_capacity = CAPACITY, .submit_timeout_ms = KL_FOREVER));
    REQUIRE(exec != NULL);
    for (int batch = 0; batch < 2; batch++) {
        kl_exec_task task = {kl_str("k"), nothing, NULL, NULL};
        const kl_exec_task_opts *at_once = TASK(.submit_timeout_ms = KL_NO_WAIT);
        CHECK_INT(kl_exec_key_pause(exec, task.key), KL_OK);
        for (int i = 0; i < EIGHTH; i++)
            submit(exec, "k", nothing, NULL, at_once);
        CHECK_INT(kl_exec_submit(exec, task.key, nothing, NULL, at_once, NULL), KL_EFULL);
        int64_t start_ns = start_own_time((struct own_time){.meanwhile = resume_and_run, .ctx = exec});
        CHECK_INT(batch ? kl_exec_submit_batch(exec, &task, 1, NULL, NULL)
                        : kl_exec_submit(exec, task.key, nothing, NULL, NULL, NULL),
                  KL_OK);
        CHECK_INT(end_own_time(start_ns), LOOK_MS);
        AWAIT(tasks_live(exec) == 0);
    }
    kl_exec_close(exec);
}

TEST(a_refusal_tells_how_many_places_are_taken)
{
    struct gate gate = GATE;
    kl_exec *exec = open_frozen(OPTS(.threads = 1, .shard_capacity = CAPACITY));
    REQUIRE(exec != NULL);
    occupy(exec, 0, &gate);
    submit(exec, "other", nothing, NULL, NULL);
    CHECK_INT(kl_exec_key_pause(exec, kl_str("k")), KL_OK);
    for (int i = 0; i < EIGHTH; i++)
        submit(exec, "k", nothing, NULL, NULL);
    CHECK_INT(kl_exec_submit(exec, kl_str("k"), nothing, NULL, NULL, NULL), KL_EFULL);
    CHECK_INT(kl_exec_last_full().length, 2); /* those of the blocked key take none */
    gate_open(&gate);
    kl_exec_close(exec);
}

/* --- A wait for the key, and then for room --- */

struct blocked_then_full {
    kl_exec *exec;
    int64_t start_ns, at_ms; /* when the key is not blocked any more */
};

static int fill_up(kl_exec *exec)
{
    int taken = 0;
    while (kl_exec_submit(exec, kl_str("other"), nothing, NULL, TASK(.submit_timeout_ms = KL_NO_WAIT), NULL) == KL_OK)
        taken++;
    return taken;
}

static void unblock_and_fill(void *ctx)
{
    struct blocked_then_full *b = ctx;
    if ((own_time.now_ns - b->start_ns) / MS < b->at_ms)
        return;
    own_time.meanwhile = NULL;
    CHECK_INT(kl_exec_key_drain(b->exec, kl_str("blocked"), NULL), KL_OK);
    CHECK_INT(kl_exec_key_resume(b->exec, kl_str("blocked")), KL_OK);
    fill_up(b->exec);
    journal_add("full");
}

TEST(who_has_waited_for_a_blocked_key_waits_for_room_only_for_the_rest_of_his_time)
{
    struct gate gate = GATE;
    const kl_exec_task_opts *at_once = TASK(.submit_timeout_ms = KL_NO_WAIT);
    kl_exec *exec = open_frozen(OPTS(.threads = 1, .shard_capacity = 16));
    REQUIRE(exec != NULL);
    submit(exec, "held", hold, &gate, NULL);
    gate_await(&gate, 1);
    CHECK_INT(kl_exec_key_pause(exec, kl_str("blocked")), KL_OK);
    while (kl_exec_submit(exec, kl_str("blocked"), nothing, NULL, at_once, NULL) == KL_OK)
        ;
    CHECK(kl_exec_last_full().blocked);
    CHECK(fill_up(exec) > 0);
    struct blocked_then_full b = {.exec = exec, .at_ms = 350};
    b.start_ns = start_own_time((struct own_time){.meanwhile = unblock_and_fill, .ctx = &b});
    CHECK_INT(kl_exec_submit(exec, kl_str("blocked"), nothing, NULL, TASK(.submit_timeout_ms = 400), NULL), KL_EFULL);
    CHECK_INT(end_own_time(b.start_ns), 400);
    CHECK_STR(journal_text(), "full"); /* else it has not waited twice */
    CHECK(!kl_exec_last_full().blocked);
    gate_open(&gate);
    kl_exec_close(exec);
}

/* --- Being woken --- */

/* Who waits looks up from time to time, by a clock that is an hour ahead here. */
static void submit_for_ever(void *exec)
{
    start_own_time((struct own_time){.waits_really = true});
    kl_rc rc = kl_exec_submit(exec, kl_str("w"), nothing, NULL, TASK(.submit_timeout_ms = KL_FOREVER), NULL);
    journal_add("%s", kl_rc_name(rc));
}

static bool somebody_waits(kl__shard *shard)
{
    pthread_mutex_lock(&shard->mutex);
    bool waits = shard->waiting > 0;
    pthread_mutex_unlock(&shard->mutex);
    return waits;
}

TEST(who_waits_for_room_is_woken_when_the_last_task_ends)
{
    struct gate gate = GATE;
    struct helper waiter;
    kl_exec *exec = open_exec(OPTS(.threads = 1, .shard_capacity = 1));
    REQUIRE(exec != NULL);
    submit(exec, "k", hold, &gate, NULL);
    gate_await(&gate, 1);
    helper_start(&waiter, submit_for_ever, exec);
    AWAIT(somebody_waits(&exec->shards[0]));
    gate_open(&gate);
    journal_await(1);
    CHECK_STR(journal_text(), "KL_OK");
    CHECK_INT(kl_exec_abort(exec), KL_OK);
    helper_join(&waiter); /* before close: no call may be under way */
    kl_exec_close(exec);
}

/* --- The end --- */

struct last_task {
    kl_exec *exec;
    struct gate gate;
};

static void end_last_task(void *ctx)
{
    struct last_task *last = ctx;
    gate_open(&last->gate);
    AWAIT(kl__exec_all_ended(last->exec));
}

TEST(a_drain_whose_last_task_ends_just_as_its_time_passes_has_given_up_nothing)
{
    struct last_task last = {.exec = open_frozen(OPTS(.threads = 1)), .gate = GATE};
    REQUIRE(last.exec != NULL);
    submit(last.exec, "k", hold, &last.gate, NULL);
    gate_await(&last.gate, 1);
    start_own_time((struct own_time){.meanwhile = end_last_task, .ctx = &last});
    CHECK_INT(kl_exec_drain(last.exec, 50), KL_OK);
    own_time.is_on = false;
    kl_exec_close(last.exec);
}
