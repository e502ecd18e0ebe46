/* test_lanes.c - what the lanes promise, one claim at a time. The model test beside it covers their combinations. */
#include "lanes/lanes.h"

#include <stdlib.h>

#include "harness.h"
#include "lanes/keytable.h"

enum { TASKS_MAX = 64 };

/* Lanes with tasks that have names, and a clock. */
struct stage {
    kl__lanes *lanes;
    int64_t now_ms;
    uint64_t position;
    int count;
    struct actor {
        kl__lane_task task;
        const char *name;
    } actors[TASKS_MAX];
};

static void stage_open(struct stage *s)
{
    *s = (struct stage){.lanes = kl__lanes_open(), .now_ms = 1000};
    CHECK(s->lanes != NULL);
}

static void stage_close(struct stage *s)
{
    CHECK(kl__lanes_valid(s->lanes));
    kl__lanes_close(s->lanes);
}

static kl__lane_key key_of(const char *text)
{
    uint32_t hash = 17;
    for (const char *c = text; *c; c++)
        hash = hash * 31 + (unsigned char)*c;
    return (kl__lane_key){kl_str(text), hash};
}

static kl__lane_task *add(struct stage *s, const char *key, const char *name, int priority, int64_t delay_ms)
{
    struct actor *actor = &s->actors[s->count++];
    kl__lane_key lane_key = key_of(key);
    *actor = (struct actor){.name = name};
    actor->task.due_ms = s->now_ms + delay_ms;
    actor->task.position = ++s->position;
    actor->task.mark.priority = (int8_t)priority;
    kl__lane *lane = kl__lanes_lane(s->lanes, lane_key.bytes, lane_key.hash);
    CHECK(lane != NULL);
    kl__lanes_add(s->lanes, lane, &actor->task, s->now_ms);
    CHECK(kl__lanes_valid(s->lanes));
    return &actor->task;
}

static const char *name_of(const kl__lane_task *task)
{
    return task ? KL_CONTAINER((kl__lane_task *)(uintptr_t)task, struct actor, task)->name : "nothing";
}

static kl__lane_task *take(struct stage *s)
{
    kl__lane_task *task = NULL;
    uint32_t count = kl__lanes_take(s->lanes, &task, 1, s->now_ms);
    CHECK(count <= 1 && (count == 1) == (task != NULL));
    CHECK(kl__lanes_valid(s->lanes));
    return task;
}

static void end(struct stage *s, kl__lane_task *task)
{
    kl__lanes_end(s->lanes, task, s->now_ms);
    CHECK(kl__lanes_valid(s->lanes));
}

/* Takes and ends tasks one by one until none is left, and compares their names. */
static void expect(struct stage *s, const char *expected)
{
    char text[512] = "";
    for (kl__lane_task *task; (task = take(s));) {
        size_t length = strlen(text);
        snprintf(text + length, sizeof text - length, "%s%s", length ? " " : "", name_of(task));
        end(s, task);
    }
    CHECK_STR(text, expected);
}

static kl__lane_info show(struct stage *s, const char *key)
{
    kl__lane_key lane_key = key_of(key);
    return kl__lanes_show(s->lanes, &lane_key);
}

static void pause_key(struct stage *s, const char *key)
{
    kl__lane_key lane_key = key_of(key);
    CHECK_INT(kl__lanes_pause(s->lanes, &lane_key, s->now_ms), KL_OK);
}

static void resume_key(struct stage *s, const char *key)
{
    kl__lane_key lane_key = key_of(key);
    kl__lanes_resume(s->lanes, &lane_key, s->now_ms);
    CHECK(kl__lanes_valid(s->lanes));
}

/* --- Order --- */

TEST(a_key_runs_its_tasks_by_priority_then_due_then_position)
{
    struct stage s;
    stage_open(&s);
    add(&s, "k", "late", 0, 0);
    add(&s, "k", "low", 3, -50);
    add(&s, "k", "later", 0, 0);
    add(&s, "k", "early", 0, -10);
    add(&s, "k", "high", -3, 0);
    add(&s, "k", "earliest", 0, -20);
    add(&s, "k", "high2", -3, 0);
    expect(&s, "high high2 earliest early late later low");
    stage_close(&s);
}

TEST(a_key_runs_one_task_at_a_time_and_others_run_beside_it)
{
    struct stage s;
    stage_open(&s);
    add(&s, "a", "a1", 0, 0);
    add(&s, "a", "a2", -9, 100000);
    add(&s, "b", "b1", 0, 0);
    add(&s, "a", "a3", 0, 0);
    kl__lane_task *a = take(&s), *b = take(&s);
    CHECK_STR(name_of(a), "a1");
    CHECK_STR(name_of(b), "b1");
    CHECK(take(&s) == NULL);
    end(&s, b);
    CHECK(take(&s) == NULL);
    end(&s, a);
    CHECK_STR(name_of(take(&s)), "a3");
    stage_close(&s);
}

TEST(one_take_gives_tasks_of_different_keys)
{
    struct stage s;
    kl__lane_task *tasks[8];
    stage_open(&s);
    add(&s, "a", "a1", 0, 0);
    add(&s, "a", "a2", 0, 0);
    add(&s, "b", "b1", 0, 0);
    add(&s, "c", "c1", 0, 0);
    CHECK_INT(kl__lanes_take(s.lanes, tasks, 2, s.now_ms), 2);
    CHECK_INT(kl__lanes_take(s.lanes, tasks + 2, 6, s.now_ms), 1);
    CHECK_STR(name_of(tasks[0]), "a1");
    CHECK_STR(name_of(tasks[1]), "b1");
    CHECK_STR(name_of(tasks[2]), "c1");
    for (int i = 0; i < 3; i++)
        end(&s, tasks[i]);
    expect(&s, "a2");
    stage_close(&s);
}

TEST(ready_keys_of_one_priority_take_turns)
{
    struct stage s;
    stage_open(&s);
    add(&s, "a", "a1", 0, 0);
    add(&s, "a", "a2", 0, 0);
    add(&s, "a", "a3", 0, 0);
    add(&s, "b", "b1", 0, 0);
    add(&s, "b", "b2", 0, 0);
    add(&s, "c", "c1", 0, 0);
    expect(&s, "a1 b1 c1 a2 b2 a3");
    stage_close(&s);
}

TEST(priorities_between_keys_are_strict)
{
    struct stage s;
    stage_open(&s);
    add(&s, "low", "low1", 15, 0);
    add(&s, "mid", "mid1", 0, 0);
    add(&s, "mid", "mid2", 0, 0);
    add(&s, "high", "high1", -16, 0);
    add(&s, "high", "high2", -16, 0);
    add(&s, "low", "low-but-first", -1, 0);
    expect(&s, "high1 high2 low-but-first mid1 mid2 low1");
    stage_close(&s);
}

TEST(tasks_without_a_key_run_beside_each_other_in_order_of_priority)
{
    struct stage s;
    stage_open(&s);
    add(&s, "", "one", 0, 0);
    add(&s, "", "two", 0, 0);
    add(&s, "", "high", -1, 0);
    CHECK_STR(name_of(take(&s)), "high");
    CHECK_STR(name_of(take(&s)), "one");
    CHECK_STR(name_of(take(&s)), "two"); /* though none has ended */
    stage_close(&s);
}

/* --- Time --- */

TEST(a_delayed_task_joins_the_line_when_it_is_due)
{
    struct stage s;
    stage_open(&s);
    add(&s, "k", "due20", 0, 20);
    add(&s, "k", "due10", 0, 10);
    CHECK(take(&s) == NULL);
    CHECK_INT(kl__lanes_next_due(s.lanes), 1010);
    s.now_ms += 15;
    add(&s, "k", "at15", 0, 0);
    s.now_ms += 10;
    expect(&s, "due10 at15 due20");
    CHECK_INT(kl__lanes_next_due(s.lanes), KL_NEVER);
    stage_close(&s);
}

TEST(a_delayed_task_of_high_priority_passes_the_line_when_it_is_due)
{
    struct stage s;
    stage_open(&s);
    add(&s, "k", "high", -1, 10);
    add(&s, "k", "1", 0, 0);
    add(&s, "k", "2", 0, 0);
    end(&s, take(&s));
    s.now_ms += 10;
    expect(&s, "high 2");
    stage_close(&s);
}

TEST(a_retrying_task_holds_its_key_even_against_a_higher_priority)
{
    struct stage s;
    stage_open(&s);
    add(&s, "k", "first", 5, 0);
    kl__lane_task *first = take(&s);
    kl__lanes_retry(s.lanes, first, s.now_ms + 10, s.now_ms);
    add(&s, "k", "high", -16, -100);
    add(&s, "other", "other", 15, 0);
    expect(&s, "other");
    s.now_ms += 10;
    expect(&s, "first high");
    stage_close(&s);
}

TEST(time_does_not_run_backwards)
{
    struct stage s;
    stage_open(&s);
    add(&s, "k", "due10", 0, 10);
    s.now_ms += 10;
    CHECK(take(&s) != NULL);
    s.now_ms -= 10;
    add(&s, "j", "due10 too", 0, 10);
    CHECK_STR(name_of(take(&s)), "due10 too");
    stage_close(&s);
}

/* --- One key --- */

TEST(why_a_key_waits_is_told_in_every_state)
{
    struct stage s;
    stage_open(&s);
    CHECK_INT(show(&s, "k").state, KL_LANE_IDLE);
    CHECK(show(&s, "k").head == NULL);
    kl__lane_task *task = add(&s, "k", "k1", 0, 20);
    CHECK_INT(show(&s, "k").state, KL_LANE_DELAYED);
    CHECK_INT(show(&s, "k").until_ms, 1020);
    CHECK_INT(show(&s, "k").tasks, 1);
    kl__lane_task *now = add(&s, "k", "k0", 0, 0);
    CHECK_INT(show(&s, "k").state, KL_LANE_READY);
    CHECK(show(&s, "k").head == now && show(&s, "k").tasks == 2);
    CHECK(take(&s) == now);
    CHECK_INT(show(&s, "k").state, KL_LANE_RUNNING);
    CHECK_INT(show(&s, "k").until_ms, KL_NEVER);
    kl__lanes_retry(s.lanes, now, s.now_ms + 5, s.now_ms);
    CHECK_INT(show(&s, "k").state, KL_LANE_RETRYING);
    CHECK_INT(show(&s, "k").until_ms, 1005);
    pause_key(&s, "k");
    CHECK_INT(show(&s, "k").state, KL_LANE_PAUSED);
    resume_key(&s, "k");
    CHECK_INT(show(&s, "k").state, KL_LANE_READY); /* at once */
    CHECK(take(&s) == now);
    kl__lanes_halt(s.lanes, now, s.now_ms);
    CHECK_INT(show(&s, "k").state, KL_LANE_HALTED);
    resume_key(&s, "k");
    CHECK(take(&s) == now);
    end(&s, now);
    s.now_ms += 20;
    CHECK(take(&s) == task);
    end(&s, task);
    CHECK_INT(show(&s, "k").state, KL_LANE_IDLE);
    stage_close(&s);
}

static void visit_one(void *ctx, const kl__lane_info *info)
{
    char *text = ctx;
    size_t length = strlen(text);
    snprintf(text + length, 64 - length, "%.*s%d ", (int)info->key.len, (const char *)info->key.data, (int)info->state);
}

TEST(counts_and_each_tell_of_every_key_that_is_not_idle)
{
    struct stage s;
    char text[64] = "";
    stage_open(&s);
    add(&s, "i", "idle", 0, 0);
    end(&s, take(&s));
    add(&s, "r", "running", 0, 0);
    CHECK(take(&s) != NULL);
    add(&s, "d", "delayed", 0, 5);
    add(&s, "y", "ready", 0, 0);
    add(&s, "y", "ready", 0, 0);
    pause_key(&s, "p");
    kl__lane_counts counts = kl__lanes_counts(s.lanes);
    CHECK_INT(counts.tasks, 4);
    CHECK_INT(counts.running, 1);
    CHECK_INT(counts.keys[KL_LANE_RUNNING], 1);
    CHECK_INT(counts.keys[KL_LANE_DELAYED], 1);
    CHECK_INT(counts.keys[KL_LANE_READY], 1);
    CHECK_INT(counts.keys[KL_LANE_PAUSED], 1);
    CHECK_INT(counts.keys[KL_LANE_RETRYING] + counts.keys[KL_LANE_HALTED], 0);
    kl__lanes_each(s.lanes, visit_one, text);
    CHECK_INT(strlen(text), strlen("r2 d4 y1 p5 "));
    CHECK_CONTAINS(text, "r2 ");
    CHECK_CONTAINS(text, "d4 ");
    CHECK_CONTAINS(text, "y1 ");
    CHECK_CONTAINS(text, "p5 ");
    stage_close(&s);
}

TEST(a_paused_key_holds_nobody_and_starts_nothing)
{
    struct stage s;
    stage_open(&s);
    pause_key(&s, "p");
    add(&s, "p", "p1", -16, 0);
    add(&s, "o", "o1", 15, 0);
    expect(&s, "o1");
    CHECK(!kl__lanes_ready(s.lanes));
    resume_key(&s, "p");
    expect(&s, "p1");
    stage_close(&s);
}

TEST(a_key_that_is_paused_or_resumed_counts_as_a_change_also_when_it_has_no_tasks)
{
    struct stage s;
    stage_open(&s);
    const kl__lane_signs *signs = kl__lanes_signs(s.lanes);
    uint64_t changes = atomic_load(&signs->changes);
    pause_key(&s, "p");
    CHECK_INT(atomic_load(&signs->changes), changes + 1);
    resume_key(&s, "p");
    CHECK_INT(atomic_load(&signs->changes), changes + 2);
    stage_close(&s);
}

TEST(skip_withdraws_the_first_task_and_says_when_that_is_running)
{
    struct stage s;
    bool running = true;
    kl__lane_key key = key_of("k");
    stage_open(&s);
    CHECK(kl__lanes_skip(s.lanes, &key, s.now_ms, &running) == NULL);
    CHECK(!running);
    add(&s, "k", "1", 0, 0);
    add(&s, "k", "0", -1, 0);
    add(&s, "k", "2", 0, 50);
    kl__lane_task *skipped = kl__lanes_skip(s.lanes, &key, s.now_ms, &running);
    CHECK_STR(name_of(skipped), "0");
    CHECK_INT(show(&s, "k").tasks, 3); /* until it is ended */
    end(&s, skipped);
    kl__lane_task *one = take(&s);
    CHECK(kl__lanes_skip(s.lanes, &key, s.now_ms, &running) == NULL);
    CHECK(running);
    kl__lanes_halt(s.lanes, one, s.now_ms);
    CHECK(kl__lanes_skip(s.lanes, &key, s.now_ms, &running) == one); /* a halted key goes on */
    end(&s, one);
    CHECK_INT(show(&s, "k").state, KL_LANE_DELAYED);
    skipped = kl__lanes_skip(s.lanes, &key, s.now_ms, &running);
    CHECK_STR(name_of(skipped), "2");
    end(&s, skipped);
    CHECK_INT(show(&s, "k").state, KL_LANE_IDLE);
    stage_close(&s);
}

TEST(drain_withdraws_everything_but_the_running_task_in_order)
{
    struct stage s;
    char text[64] = "";
    kl__lane_key key = key_of("k");
    stage_open(&s);
    add(&s, "k", "running", 0, 0);
    kl__lane_task *running = take(&s);
    add(&s, "k", "2", 0, 0);
    add(&s, "k", "later", 0, 9);
    add(&s, "k", "1", -1, 0);
    add(&s, "o", "other", 0, 0);
    for (kl__lane_task *task = kl__lanes_drain(s.lanes, &key, s.now_ms), *next; task; task = next) {
        next = task->next;
        strcat(strcat(text, name_of(task)), " ");
        end(&s, task);
    }
    CHECK_STR(text, "1 2 later ");
    CHECK_INT(show(&s, "k").tasks, 1);
    end(&s, running);
    expect(&s, "other");
    CHECK_INT(kl__lanes_counts(s.lanes).tasks, 0);
    stage_close(&s);
}

TEST(drain_all_withdraws_from_every_key_and_from_the_crowd)
{
    struct stage s;
    uint64_t count = 0;
    stage_open(&s);
    add(&s, "a", "a", 0, 0);
    add(&s, "", "x", 0, 0);
    add(&s, "", "y", 0, 50);
    pause_key(&s, "p");
    add(&s, "p", "p", 0, 0);
    add(&s, "b", "b", 3, 0);
    for (kl__lane_task *task = kl__lanes_drain_all(s.lanes, s.now_ms), *next; task; task = next, count++) {
        next = task->next;
        end(&s, task);
    }
    CHECK_INT(count, 5);
    CHECK_INT(kl__lanes_counts(s.lanes).tasks, 0);
    CHECK(!kl__lanes_ready(s.lanes));
    stage_close(&s);
}

static void count_reached(kl__lane_barrier *barrier) { barrier->waits = 77; }

TEST(a_barrier_is_reached_when_all_tasks_before_it_have_ended)
{
    struct stage s;
    kl__lane_barrier barrier = {.reached = count_reached}, forgotten = {.reached = count_reached};
    kl__lane_key key = key_of("k");
    stage_open(&s);
    barrier.position = forgotten.position = 100;
    CHECK(!kl__lanes_await(s.lanes, &key, &barrier)); /* nothing to wait for */
    add(&s, "k", "1", 0, 0);
    add(&s, "k", "later", 0, 10);
    CHECK(kl__lanes_await(s.lanes, &key, &barrier));
    CHECK(kl__lanes_await(s.lanes, &key, &forgotten));
    s.position = 100;
    add(&s, "k", "after", -1, 0);
    expect(&s, "after 1");
    CHECK(barrier.waits != 77);
    kl__lanes_forget(s.lanes, &key, &forgotten);
    s.now_ms += 10;
    expect(&s, "later");
    CHECK_INT(barrier.waits, 77);
    CHECK(forgotten.waits != 77);
    kl__lanes_forget(s.lanes, &key, &barrier); /* fine */
    stage_close(&s);
}

TEST(an_untaken_task_is_back_in_its_place)
{
    struct stage s;
    stage_open(&s);
    add(&s, "k", "1", 0, 0);
    add(&s, "k", "2", 0, 0);
    kl__lane_task *one = take(&s);
    kl__lanes_untake(s.lanes, one, false, s.now_ms);
    add(&s, "k", "0", -1, 0);
    expect(&s, "0 1 2"); /* never started: a higher priority goes before it */
    add(&s, "k", "3", 0, 0);
    kl__lane_task *three = take(&s);
    kl__lanes_untake(s.lanes, three, true, s.now_ms);
    add(&s, "k", "high", -1, 0);
    expect(&s, "3 high"); /* started before: it holds its key */
    stage_close(&s);
}

TEST(a_key_whose_task_was_not_run_after_all_has_its_turn_again)
{
    struct stage s;
    stage_open(&s);
    add(&s, "a", "a", 0, 0);
    add(&s, "b", "b", 0, 0);
    add(&s, "", "none", 0, 0);
    add(&s, "c", "c", 0, 0);
    kl__lane_task *taken[3];
    CHECK_INT(kl__lanes_take(s.lanes, taken, 3, s.now_ms), 3);
    for (int i = 3; i-- > 0;)
        kl__lanes_untake(s.lanes, taken[i], false, s.now_ms);
    expect(&s, "a b none c");
    stage_close(&s);
}

/* --- Memory --- */

static void run_once(struct stage *s, int number)
{
    char key[64];
    snprintf(key, sizeof key, "a key that is longer than what a lane keeps inside: %d", number);
    s->count = 0;
    add(s, key, "t", 0, 0);
    end(s, take(s));
}

TEST(where_few_lanes_rest_idle_keys_leave_sooner)
{
    enum { KEYS = 1000 };
    struct stage s;
    stage_open(&s);
    kl__lanes_rest_few(s.lanes);
    for (int i = 0; i < KEYS; i++)
        run_once(&s, i);
    kl__alloc_fail_at(0);
    for (int i = KEYS - 250; i < KEYS; i++)
        run_once(&s, i);
    CHECK_INT(kl__alloc_fail_at(0), 0);
    run_once(&s, KEYS - 300);
    CHECK_INT(kl__alloc_fail_at(0), 1); /* its bytes were given back; the lane is a spare one */
    stage_close(&s);
}

TEST(an_idle_key_costs_nothing_but_a_few_that_were_busy_last_rest)
{
    enum { KEYS = 6000, RESTING = 1000 };
    struct stage s;
    stage_open(&s);
    for (int i = 0; i < KEYS; i++) {
        struct stage *stage = &s;
        char key[64];
        kl__lane_task task = {.due_ms = s.now_ms, .position = ++s.position}, *taken = NULL;
        snprintf(key, sizeof key, "a key that is longer than what a lane keeps inside: %d", i);
        kl__lane_key lane_key = key_of(key);
        kl__lane *lane = kl__lanes_lane(stage->lanes, lane_key.bytes, lane_key.hash);
        CHECK(lane != NULL);
        kl__lanes_add(stage->lanes, lane, &task, s.now_ms);
        CHECK_INT(kl__lanes_take(stage->lanes, &taken, 1, s.now_ms), 1);
        kl__lanes_end(stage->lanes, &task, s.now_ms);
    }
    kl__lane_counts counts = kl__lanes_counts(s.lanes);
    CHECK(counts.keys[KL_LANE_IDLE] <= 1025); /* the lanes that are left; the crowd may count as one */
    kl__alloc_fail_at(0);
    for (int i = KEYS - RESTING; i < KEYS; i++)
        run_once(&s, i);
    CHECK_INT(kl__alloc_fail_at(0), 0); /* those that were busy a moment ago need no new memory */
    run_once(&s, 0);
    CHECK_INT(kl__alloc_fail_at(0), 1); /* the others have given their bytes back; the lane is a spare one */
    stage_close(&s);
}

TEST(a_lane_that_cannot_be_made_changes_nothing)
{
    struct stage s;
    kl__lane_key key = key_of("a key that is longer than what a lane keeps inside of itself");
    stage_open(&s);
    pause_key(&s, "p"); /* has the one that was made at the start */
    for (uint64_t n = 1; n <= 2; n++) {
        kl__alloc_fail_at(n);
        CHECK(kl__lanes_lane(s.lanes, key.bytes, key.hash) == NULL);
        kl__alloc_fail_at(n);
        CHECK_INT(kl__lanes_pause(s.lanes, &key, s.now_ms), KL_ENOMEM);
        kl__alloc_fail_at(0);
        CHECK(kl__lanes_valid(s.lanes));
        CHECK_INT(kl__lanes_show(s.lanes, &key).state, KL_LANE_IDLE);
    }
    for (uint64_t n = 1; n <= 2; n++) {
        kl__alloc_fail_at(n);
        CHECK(kl__lanes_open() == NULL);
    }
    kl__alloc_fail_at(0);
    kl__lanes_close(NULL);
    stage_close(&s);
}

TEST(without_memory_lanes_of_idle_keys_are_used_again)
{
    struct stage s;
    stage_open(&s);
    kl__alloc_fail_all(true);
    for (int i = 0; i < 3; i++) {
        char key[] = {'k', (char)('0' + i), '\0'};
        kl__lane_task *task = add(&s, key, key, 0, 0);
        kl__lane_key other = key_of("other");
        CHECK(kl__lanes_lane(s.lanes, other.bytes, other.hash) == NULL);
        CHECK(take(&s) == task);
        end(&s, task);
    }
    kl__alloc_fail_all(false);
    kl__alloc_fail_at(0);
    stage_close(&s);
}

/* The lanes of paused keys stay; when all are resumed at once most of them are freed, while the table is walked. */
TEST(thousands_of_paused_keys_can_be_resumed_at_once)
{
    enum { KEYS = 5000 };
    struct stage s;
    stage_open(&s);
    for (int i = 0; i < KEYS; i++) {
        char key[16];
        snprintf(key, sizeof key, "%d", i);
        pause_key(&s, key);
        if (i % 2)
            resume_key(&s, key); /* half of them rest already */
        if (i > 100)
            continue;
        CHECK(kl__lanes_valid(s.lanes));
    }
    CHECK_INT(kl__lanes_counts(s.lanes).keys[KL_LANE_PAUSED], KEYS / 2);
    kl__lanes_resume_all(s.lanes, s.now_ms);
    CHECK(kl__lanes_valid(s.lanes));
    CHECK_INT(kl__lanes_counts(s.lanes).keys[KL_LANE_PAUSED], 0);
    CHECK(kl__lanes_counts(s.lanes).keys[KL_LANE_IDLE] <= 1025);
    stage_close(&s);
}

TEST(a_key_is_found_among_many_whatever_its_length_and_hash)
{
    enum { KEYS = 3000 };
    struct stage s;
    stage_open(&s);
    for (int i = 0; i < KEYS; i++) {
        char key[KL_KEY_BYTES_MAX + 1];
        snprintf(key, sizeof key, "%0*d", 1 + i % 60, i);
        kl__lane_key lane_key = {kl_str(key), (uint32_t)i % 7}; /* all in seven chains */
        CHECK_INT(kl__lanes_pause(s.lanes, &lane_key, s.now_ms), KL_OK);
    }
    for (int i = 0; i < KEYS; i++) {
        char key[KL_KEY_BYTES_MAX + 1];
        snprintf(key, sizeof key, "%0*d", 1 + i % 60, i);
        kl__lane_key lane_key = {kl_str(key), (uint32_t)i % 7};
        CHECK_INT(kl__lanes_show(s.lanes, &lane_key).state, KL_LANE_PAUSED);
        if (i % 3 == 0)
            kl__lanes_resume(s.lanes, &lane_key, s.now_ms);
    }
    CHECK_INT(kl__lanes_counts(s.lanes).keys[KL_LANE_PAUSED], KEYS - KEYS / 3);
    stage_close(&s);
}

TEST(a_table_of_keys_has_a_bucket_for_each_of_them_and_gives_those_back_that_it_does_not_need)
{
    enum { KEYS = 10000 };
    static kl__keytable table;
    kl__keytable_entry *entries = calloc(KEYS, sizeof *entries);
    REQUIRE(entries);
    kl__keytable_init(&table);
    for (uint32_t i = 0; i < KEYS; i++) {
        entries[i].hash = i * 0x9e3779b1u;
        kl__keytable_insert(&table, &entries[i]);
        CHECK(table.buckets >= table.entries);
    }
    for (uint32_t i = 0; i < KEYS; i++)
        kl__keytable_remove(&table, &entries[i]);
    CHECK_INT(table.buckets, KL_KEYTABLE_FIRST);
    kl__keytable_close(&table);
    free(entries);
}
