/* test_heads.c - what happens when the first task of a key fails for good: continue, halt, drain; and what operators
 * do. */
#include "support.h"

static bool open_with(struct rig *rig, rig_kind kind, kl_head_policy policy)
{
    kl_queue_opts opts = {
        .size = sizeof opts, .head_policy = policy, .attempts_max = 2, .backoff_base_ms = 1, .keep_done_ms = 3600000};
    return rig_open(rig, kind, &opts);
}

static kl_key_status show(struct rig *rig, const char *key, kl_arena *arena)
{
    kl_key_status status = {.error = "", .reason = "", .owner = ""};
    if (kl_key_show(rig->queue, kl_str(key), arena, &status) != KL_OK)
        test_fail(__FILE__, __LINE__, "show: %s", kl_error_text());
    return status;
}

TEST(continue_makes_the_head_a_dead_letter_and_the_key_goes_on)
{
    struct rig rig;
    struct runs runs;
    if (!open_with(&rig, RIG_MEMORY, KL_HEAD_CONTINUE))
        return;
    runs_init(&runs);
    kl_task_id dead = put_task(rig.queue, "k", "dead");
    kl_task_id tired = put_task(rig.queue, "k", "retry");
    put_task(rig.queue, "k", "done");
    kl_worker *worker = start_worker(rig.queue, &(struct start){.fn = runs_handle, .ctx = &runs, .until_empty = true});
    CHECK_INT(kl_worker_wait(worker, WAIT_MS), KL_OK);
    kl_worker_info info = kl_worker_show(worker);
    CHECK_INT(info.dead, 2);
    CHECK_INT(info.done, 1);
    CHECK_INT(info.retried, 1);
    kl_worker_close(worker);
    await_state(rig.queue, &dead, KL_TASK_DEAD);
    await_state(rig.queue, &tired, KL_TASK_DEAD);
    CHECK_INT(runs_of(&runs, "retry"), 2);
    CHECK_INT(rig_waiting(&rig), 0);
    runs_free(&runs);
    rig_close(&rig);
}

/* A halted key, and the worker that found it so; then perhaps another that takes over. */
static kl_worker *halt(struct rig *rig, struct runs *runs, kl_task_id *ret_head, bool takeover)
{
    *ret_head = put_task(rig->queue, "k", "dead");
    put_task(rig->queue, "k", "done second");
    put_task(rig->queue, "k", "done third");
    put_task(rig->queue, "free", "done free");
    const struct start start = {.fn = runs_handle, .ctx = runs, .name = takeover ? "first" : "only"};
    kl_worker *worker = start_worker(rig->queue, &start);
    runs_wait_for(runs, "done free", 1);
    await_why(rig, "k", KL_WHY_HALTED);
    if (!takeover)
        return worker;
    kl_worker *other = start_worker(rig->queue, &(struct start){.fn = runs_handle, .ctx = runs, .name = "other"});
    drain_and_close(worker);
    await_shards(other, 16);
    await_why(rig, "k", KL_WHY_HALTED);
    return other;
}

static void halts(rig_kind kind, bool takeover)
{
    struct rig rig;
    struct runs runs;
    kl_arena arena = {0};
    kl_task_id head;
    if (!open_with(&rig, kind, KL_HEAD_HALT))
        return;
    runs_init(&runs);
    kl_worker *worker = halt(&rig, &runs, &head, takeover);
    kl_key_status status = show(&rig, "k", &arena);
    CHECK_INT(status.why, KL_WHY_HALTED);
    CHECK_CONTAINS(status.reason, "key skip");
    CHECK(status.error[0] != 0);
    CHECK_STR(status.owner, takeover ? "other" : "only");
    CHECK_INT(status.waiting, 3);
    CHECK_INT(status.attempts, takeover ? 2 : 1); /* all count as used, which is what the next owner knows it by */
    CHECK(memcmp(&status.head, &head, sizeof head) == 0);
    CHECK_INT(runs_of(&runs, "dead"), 1);
    CHECK_INT(runs_of(&runs, "done second"), 0);
    CHECK_INT(kl_key_retry(rig.queue, kl_str("k"), NULL), KL_OK);
    runs_wait_for(&runs, "dead", 2);
    await_why(&rig, "k", KL_WHY_HALTED);
    kl_task_id skipped;
    CHECK_INT(kl_key_skip(rig.queue, kl_str("k"), NULL, &skipped), KL_OK);
    CHECK(memcmp(&skipped, &head, sizeof head) == 0);
    runs_wait_for(&runs, "done third", 1);
    CHECK(runs_first(&runs, "done second") < runs_first(&runs, "done third"));
    await_state(rig.queue, &head, KL_TASK_CANCELLED);
    await_waiting(&rig, 0);
    drain_and_close(worker);
    kl_arena_free(&arena);
    runs_free(&runs);
    rig_close(&rig);
}

TEST(halt_stops_the_key_until_somebody_acts) { halts(RIG_MEMORY, false); }
TEST(a_halted_key_stays_halted_when_another_worker_takes_over) { halts(RIG_MEMORY, true); }
TEST(a_halted_key_on_disk_stays_halted_when_another_worker_takes_over) { halts(RIG_DISK, true); }

TEST(a_halted_key_can_be_drained)
{
    for (int dead = 0; dead < 2; dead++) {
        struct rig rig;
        struct runs runs;
        kl_task_id head;
        kl_arena arena = {0};
        kl_found found;
        uint64_t count = 0;
        if (!open_with(&rig, RIG_MEMORY, KL_HEAD_HALT))
            return;
        runs_init(&runs);
        kl_worker *worker = halt(&rig, &runs, &head, false);
        CHECK_INT(kl_key_drain(rig.queue, kl_str("k"), NULL, dead == 1, &count), KL_OK);
        CHECK_INT(count, 3);
        await_waiting(&rig, 0);
        await_state(rig.queue, &head, dead ? KL_TASK_DEAD : KL_TASK_CANCELLED);
        CHECK_INT(kl_queue_task(rig.queue, &head, &arena, &found), KL_OK);
        CHECK_INT(found.task.attempts, 1);
        CHECK(found.task.error.len == 18 && memcmp(found.task.error.data, "dead as told: dead", 18) == 0);
        kl_arena_free(&arena);
        put_task(rig.queue, "k", "done again");
        runs_wait_for(&runs, "done again", 1);
        CHECK_INT(runs_of(&runs, "done second"), 0);
        drain_and_close(worker);
        runs_free(&runs);
        rig_close(&rig);
    }
}

static void alter(struct rig *rig, kl_queue_opts opts)
{
    opts.size = sizeof opts;
    CHECK_INT(kl_queue_alter(rig->queue, &opts), KL_OK);
}

enum way { BY_CONTINUE, BY_DRAIN, BY_SKIP, BY_DRAINING_IT, WAYS };

static void end_halted(struct rig *rig, enum way way)
{
    uint64_t count = 0;
    switch (way) {
    case BY_CONTINUE:
        alter(rig, (kl_queue_opts){.head_policy = KL_HEAD_CONTINUE});
        break;
    case BY_DRAIN:
        alter(rig, (kl_queue_opts){.head_policy = KL_HEAD_DRAIN});
        break;
    case BY_SKIP:
        CHECK_INT(kl_key_skip(rig->queue, kl_str("k"), NULL, NULL), KL_OK);
        break;
    default:
        CHECK_INT(kl_key_drain(rig->queue, kl_str("k"), NULL, true, &count), KL_OK);
        break;
    }
}

TEST(the_error_that_halted_a_key_is_kept_whoever_owns_it_when_it_ends)
{
    for (int i = 0; i < 2 * WAYS; i++) {
        struct rig rig;
        struct runs runs;
        kl_arena arena = {0};
        kl_found found;
        kl_task_id head;
        enum way way = (enum way)(i / 2);
        if (!open_with(&rig, i % 2 ? RIG_DISK : RIG_MEMORY, KL_HEAD_HALT))
            return;
        runs_init(&runs);
        kl_worker *worker = halt(&rig, &runs, &head, true);
        CHECK_INT(kl_worker_show(worker).halted, 0); /* it was before */
        end_halted(&rig, way);
        await_waiting(&rig, 0);
        await_state(rig.queue, &head, way == BY_SKIP ? KL_TASK_CANCELLED : KL_TASK_DEAD);
        CHECK_INT(kl_queue_task(rig.queue, &head, &arena, &found), KL_OK);
        CHECK_INT(found.task.error.len, 18);
        CHECK(found.task.error.len == 18 && memcmp(found.task.error.data, "dead as told: dead", 18) == 0);
        drain_and_close(worker);
        kl_arena_free(&arena);
        runs_free(&runs);
        rig_close(&rig);
    }
}

TEST(a_halted_key_goes_on_when_the_policy_is_altered_to_continue)
{
    struct rig rig;
    struct runs runs;
    kl_arena arena = {0};
    kl_found found;
    kl_task_id head;
    if (!open_with(&rig, RIG_MEMORY, KL_HEAD_HALT))
        return;
    runs_init(&runs);
    kl_worker *worker = halt(&rig, &runs, &head, false);
    alter(&rig, (kl_queue_opts){.head_policy = KL_HEAD_CONTINUE});
    runs_wait_for(&runs, "done third", 1);
    await_waiting(&rig, 0);
    await_state(rig.queue, &head, KL_TASK_DEAD);
    CHECK_INT(kl_queue_task(rig.queue, &head, &arena, &found), KL_OK);
    CHECK_INT(found.task.attempts, 1);
    CHECK(found.task.error.len == 18 && memcmp(found.task.error.data, "dead as told: dead", 18) == 0);
    CHECK_INT(runs_of(&runs, "dead"), 1);
    CHECK(runs_first(&runs, "done second") < runs_first(&runs, "done third"));
    drain_and_close(worker);
    kl_arena_free(&arena);
    runs_free(&runs);
    rig_close(&rig);
}

TEST(a_halted_key_is_drained_when_the_policy_is_altered_to_drain)
{
    struct rig rig;
    struct runs runs;
    kl_arena arena = {0};
    kl_found found;
    kl_task_id head;
    if (!open_with(&rig, RIG_MEMORY, KL_HEAD_HALT))
        return;
    runs_init(&runs);
    kl_worker *worker = halt(&rig, &runs, &head, false);
    alter(&rig, (kl_queue_opts){.head_policy = KL_HEAD_DRAIN});
    await_waiting(&rig, 0);
    await_state(rig.queue, &head, KL_TASK_DEAD);
    CHECK_INT(kl_queue_task(rig.queue, &head, &arena, &found), KL_OK);
    CHECK_INT(found.task.attempts, 1);
    CHECK(found.task.error.len == 18 && memcmp(found.task.error.data, "dead as told: dead", 18) == 0);
    CHECK_INT(runs_of(&runs, "done second"), 0);
    CHECK_INT(kl_worker_show(worker).dead, 3);
    drain_and_close(worker);
    kl_arena_free(&arena);
    runs_free(&runs);
    rig_close(&rig);
}

TEST(the_first_task_of_a_halted_key_is_tried_again_when_more_attempts_are_allowed)
{
    struct rig rig;
    struct runs runs;
    kl_task_id head;
    if (!open_with(&rig, RIG_MEMORY, KL_HEAD_HALT))
        return;
    runs_init(&runs);
    kl_worker *worker = halt(&rig, &runs, &head, false);
    alter(&rig, (kl_queue_opts){.attempts_max = 5});
    runs_wait_for(&runs, "dead", 2);
    await_why(&rig, "k", KL_WHY_HALTED);
    CHECK_INT(runs_of(&runs, "done second"), 0);
    drain_and_close(worker);
    runs_free(&runs);
    rig_close(&rig);
}

/* One of its own limit stays halted, and counts as halted once; lists say the same of it as the worker. */
TEST(a_halted_task_with_a_limit_of_its_own_stays_halted_when_the_queue_allows_more)
{
    struct rig rig;
    struct runs runs;
    kl_arena arena = {0};
    kl_key_status listed[2];
    size_t count = 0;
    if (!open_with(&rig, RIG_MEMORY, KL_HEAD_HALT))
        return;
    runs_init(&runs);
    put_as(rig.queue, &(kl_put){.key = kl_str("own"), .payload = kl_str("retry own"), .attempts_max = 1});
    put_task(rig.queue, "k", "retry");
    kl_worker *worker = start_worker(rig.queue, &(struct start){.fn = runs_handle, .ctx = &runs});
    await_why(&rig, "own", KL_WHY_HALTED);
    await_why(&rig, "k", KL_WHY_HALTED);
    alter(&rig, (kl_queue_opts){.attempts_max = 3});
    runs_wait_for(&runs, "retry", 3);
    await_why(&rig, "k", KL_WHY_HALTED);
    await_why(&rig, "own", KL_WHY_HALTED);
    CHECK_INT(runs_of(&runs, "retry own"), 1);
    CHECK_INT(kl_worker_show(worker).halted, 3);
    CHECK_INT(kl_key_list(rig.queue, KL_KEYS_BY_STATE, 0, 2, &arena, listed, &count), KL_OK);
    CHECK_INT(count, 2);
    for (size_t i = 0; i < count; i++)
        CHECK_INT(listed[i].why, KL_WHY_HALTED);
    drain_and_close(worker);
    kl_arena_free(&arena);
    runs_free(&runs);
    rig_close(&rig);
}

TEST(a_halted_key_that_was_also_paused_goes_on_when_it_is_resumed)
{
    for (int round = 0; round < 3; round++) {
        struct rig rig;
        struct runs runs;
        kl_task_id head;
        if (!open_with(&rig, RIG_MEMORY, KL_HEAD_HALT))
            return;
        runs_init(&runs);
        kl_worker *worker = halt(&rig, &runs, &head, false);
        CHECK_INT(kl_key_pause(rig.queue, kl_str("k")), KL_OK);
        await_why(&rig, "k", KL_WHY_PAUSED);
        CHECK_INT(kl_key_resume(rig.queue, kl_str("k")), KL_OK);
        runs_wait_for(&runs, "dead", 2);
        await_why(&rig, "k", KL_WHY_HALTED);
        CHECK_INT(runs_of(&runs, "done second"), 0);
        drain_and_close(worker);
        runs_free(&runs);
        rig_close(&rig);
    }
}

/* Dead letters of one key are shown as they stood in line, the last one first. */
static void check_order(struct rig *rig, size_t expected)
{
    enum { PAGE = 1000 };
    static kl_found found[PAGE];
    kl_arena arena = {0};
    kl_finished which = {.state = KL_TASK_DEAD, .max = PAGE};
    kl_task_id before = {{0}};
    size_t count, all = 0, turned = 0;
    do {
        REQUIRE(kl_queue_finished(rig->queue, &which, &arena, found, &count, &which.cursor) == KL_OK);
        for (size_t i = 0; i < count; i++, all++) {
            const kl_task *task = &found[i].task;
            turned += all > 0 && memcmp(&task->entry.id, &before, sizeof before) >= 0;
            CHECK(task->attempts <= 1);
            before = task->entry.id;
        }
    } while (which.cursor.len > 0);
    CHECK_INT(all, expected);
    CHECK_INT(turned, 0);
    kl_arena_free(&arena);
}

static void drains(rig_kind kind)
{
    enum { LINE = 2000 };
    struct rig rig;
    struct runs runs;
    kl_arena arena = {0};
    kl_queue_info info = {0};
    if (!open_with(&rig, kind, KL_HEAD_DRAIN))
        return;
    runs_init(&runs);
    kl_task_id head = put_task(rig.queue, "k", "dead"), last = head;
    for (int i = 0; i < LINE; i++)
        last = put_task(rig.queue, "k", "done");
    put_task(rig.queue, "free", "done free");
    kl_worker *worker = start_worker(rig.queue, &(struct start){.fn = runs_handle, .ctx = &runs, .window_max = 1024});
    await_waiting(&rig, 0);
    CHECK_INT(kl_worker_drain(worker, WAIT_MS), KL_OK);
    CHECK_INT(kl_worker_show(worker).dead, LINE + 1);
    kl_worker_close(worker);
    CHECK_INT(runs_of(&runs, "done"), 0);
    CHECK_INT(runs_of(&runs, "done free"), 1);
    await_state(rig.queue, &last, KL_TASK_DEAD);
    await_state(rig.queue, &head, KL_TASK_DEAD);
    CHECK_INT(kl_queue_show(rig.queue, &arena, &info), KL_OK);
    CHECK_INT(info.counts.dead, LINE + 1);
    check_order(&rig, LINE + 1);
    kl_arena_free(&arena);
    runs_free(&runs);
    rig_close(&rig);
}

TEST(drain_sends_the_rest_of_the_line_after_the_head) { drains(RIG_MEMORY); }
TEST(drain_works_on_disk) { drains(RIG_DISK); }

/* Its first tasks are in memory and the others are not. */
TEST(tasks_of_a_key_that_is_drained_stay_in_order_among_the_dead_letters)
{
    enum { LINE = 2000 };
    struct rig rig;
    struct runs runs;
    uint64_t count = 0;
    if (!open_with(&rig, RIG_DISK, KL_HEAD_HALT))
        return;
    runs_init(&runs);
    put_task(rig.queue, "k", "dead");
    for (int i = 0; i < LINE; i++)
        put_task(rig.queue, "k", "done");
    kl_worker *worker = start_worker(rig.queue, &(struct start){.fn = runs_handle, .ctx = &runs, .window_max = 1024});
    await_why(&rig, "k", KL_WHY_HALTED);
    CHECK_INT(kl_key_drain(rig.queue, kl_str("k"), NULL, true, &count), KL_OK);
    CHECK_INT(count, LINE + 1);
    check_order(&rig, LINE + 1);
    drain_and_close(worker);
    runs_free(&runs);
    rig_close(&rig);
}

/* The first owner ends between the head's failure and the draining of its line; the second goes on with it. */
TEST(a_line_that_is_to_be_drained_is_drained_by_the_next_owner)
{
    enum { ROUNDS = 5, LINE = 1500 };
    for (int round = 0; round < ROUNDS; round++) {
        struct rig rig;
        struct runs runs;
        if (!open_with(&rig, RIG_MEMORY, KL_HEAD_DRAIN))
            return;
        runs_init(&runs);
        put_task(rig.queue, "k", "dead");
        for (int i = 0; i < LINE / ROUNDS; i++)
            put_task(rig.queue, "k", "done");
        kl_worker *worker = start_worker(rig.queue, &(struct start){.fn = runs_handle, .ctx = &runs});
        runs_wait_for(&runs, "dead", 1);
        drain_and_close(worker); /* at whatever it is doing */
        worker = start_worker(rig.queue, &(struct start){.fn = runs_handle, .ctx = &runs});
        await_waiting(&rig, 0);
        CHECK_INT(runs_of(&runs, "dead"), 1);
        CHECK_INT(runs_of(&runs, "done"), 0);
        drain_and_close(worker);
        runs_free(&runs);
        rig_close(&rig);
    }
}
