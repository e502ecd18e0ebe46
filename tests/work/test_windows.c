/* test_windows.c - long lines, blocked keys and floods: what is held in memory hides nothing, and stays bounded. */
#include "support.h"

enum { WINDOW_LEAST = 1024 };

static uint64_t long_line(uint64_t normal)
{
    const char *asked = getenv("KL_TEST_OPS");
    return asked ? strtoull(asked, NULL, 10) : test_ops(normal);
}

/* Counts what is held now and then, while others work. */
struct watch {
    kl_worker *worker;
    uint64_t most, done;
};

static bool others_are_done(void *ctx)
{
    struct watch *watch = ctx;
    kl_worker_info info = kl_worker_show(watch->worker);
    watch->most = info.held > watch->most ? info.held : watch->most;
    return info.done >= watch->done;
}

static void put_line(kl_queue *queue, const char *key, const char *payload, uint64_t count)
{
    enum { BATCH = 5000 };
    kl_put *puts = calloc(BATCH, sizeof *puts);
    for (uint64_t done = 0; done < count;) {
        size_t some = count - done < BATCH ? (size_t)(count - done) : BATCH;
        for (size_t i = 0; i < some; i++)
            puts[i] = (kl_put){.key = kl_str(key), .payload = kl_str(payload)};
        if (kl_queue_put(queue, puts, some, (kl_bytes){0}, NULL) != KL_OK)
            test_fail(__FILE__, __LINE__, "put: %s", kl_error_text());
        done += some;
    }
    free(puts);
}

TEST(a_halted_key_with_a_long_line_hides_no_other)
{
    struct rig rig;
    struct runs runs;
    kl_queue_opts opts = {.size = sizeof opts, .head_policy = KL_HEAD_HALT};
    uint64_t line = long_line(1000000);
    if (!rig_open(&rig, RIG_MEMORY, &opts))
        return;
    runs_init(&runs);
    put_task(rig.queue, "halted", "dead");
    put_line(rig.queue, "halted", "done", line);
    char key[24];
    for (int i = 0; i < 500; i++) {
        snprintf(key, sizeof key, "other-%d", i);
        put_task(rig.queue, key, "done other");
    }
    kl_worker *worker =
        start_worker(rig.queue, &(struct start){.fn = runs_handle, .ctx = &runs, .window_max = WINDOW_LEAST});
    struct watch watch = {.worker = worker, .done = 500};
    await_condition("the others are done", others_are_done, &watch);
    CHECK(watch.most <= WINDOW_LEAST);
    CHECK_INT(runs_of(&runs, "done"), 0);
    CHECK_INT(runs_of(&runs, "dead"), 1);
    CHECK_INT(rig_waiting(&rig), line + 1);
    await_why(&rig, "halted", KL_WHY_HALTED);
    drain_and_close(worker);
    runs_free(&runs);
    rig_close(&rig);
}

/* The same line, but nothing halts it: it is run in order, in pieces. */
TEST(a_long_line_is_run_through_the_smallest_window)
{
    static struct order order;
    struct rig rig;
    int line = (int)long_line(20000);
    memset(&order, 0, sizeof order);
    if (!rig_open(&rig, RIG_MEMORY, NULL))
        return;
    put_numbers(rig.queue, "key-", 1, line);
    put_numbers(rig.queue, "key-", 1, 0);
    kl_worker *worker =
        start_worker(rig.queue, &(struct start){.fn = order_handle, .ctx = &order, .window_max = WINDOW_LEAST});
    struct watch watch = {.worker = worker, .done = (uint64_t)line};
    await_condition("the line is done", others_are_done, &watch);
    CHECK(watch.most <= WINDOW_LEAST);
    order_check(&order, 1, line);
    drain_and_close(worker);
    rig_close(&rig);
}

/* Every tenth key fails for ever; its tasks are in back-off nearly all the time. */
TEST(keys_that_fail_for_ever_hold_up_none_of_the_others)
{
    enum { KEYS = 5000, EACH = 4 };
    struct rig rig;
    struct runs runs;
    kl_queue_opts opts = {.size = sizeof opts, .attempts_max = 1000, .backoff_base_ms = 600000};
    if (!rig_open(&rig, RIG_MEMORY, &opts))
        return;
    runs_init(&runs);
    char(*keys)[24] = calloc(KEYS, sizeof *keys);
    kl_put *puts = calloc(KEYS, sizeof *puts);
    for (int round = 0; round < EACH; round++) {
        for (int i = 0; i < KEYS; i++) {
            snprintf(keys[i], sizeof keys[i], "key-%d", i);
            puts[i] = (kl_put){.key = kl_str(keys[i]), .payload = kl_str(i % 10 ? "done" : "fail")};
        }
        CHECK_INT(kl_queue_put(rig.queue, puts, KEYS, (kl_bytes){0}, NULL), KL_OK);
    }
    kl_worker *worker =
        start_worker(rig.queue, &(struct start){.fn = runs_handle, .ctx = &runs, .window_max = WINDOW_LEAST});
    await_done(worker, KEYS / 10 * 9 * EACH);
    await_waiting(&rig, KEYS / 10 * EACH);
    CHECK_INT(kl_worker_show(worker).retried, KEYS / 10);
    CHECK_INT(runs_of(&runs, "fail"), KEYS / 10);
    await_held(worker, KEYS / 10);
    drain_and_close(worker);
    free(keys);
    free(puts);
    runs_free(&runs);
    rig_close(&rig);
}

/* What crashes leave behind: tasks that were started, and of which nothing else is known. */
static void mark_started(struct rig *rig, const kl_task_id *ids, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        kl_arena arena = {0};
        kl_found found;
        CHECK_INT(kl_queue_task(rig->queue, &ids[i], &arena, &found), KL_OK);
        kl_settled started = {.id = ids[i], .position = found.task.position, .outcome = KL_RETRY, .attempts = 1};
        kl_settle settle = {.place = found.task.entry.place, .tasks = &started, .count = 1};
        CHECK_INT(kl_store_settle(rig->store, &settle, 1), KL_OK);
        kl_arena_free(&arena);
    }
}

/* They cannot leave memory, so the room that they take must not count while their key is halted. */
TEST(started_tasks_behind_a_halted_one_take_no_room_of_others)
{
    enum { STARTED = WINDOW_LEAST };
    static kl_task_id ids[STARTED];
    struct rig rig;
    struct runs runs;
    kl_queue_opts opts = {.size = sizeof opts, .head_policy = KL_HEAD_HALT, .attempts_max = 1};
    if (!rig_open(&rig, RIG_MEMORY, &opts))
        return;
    runs_init(&runs);
    for (int i = 0; i < STARTED; i++)
        ids[i] = put_task(rig.queue, "halted", "done");
    mark_started(&rig, ids, STARTED);
    for (int i = 0; i < 100; i++) {
        char key[24];
        snprintf(key, sizeof key, "other-%d", i);
        put_task(rig.queue, key, "done");
    }
    kl_worker *worker =
        start_worker(rig.queue, &(struct start){.fn = runs_handle, .ctx = &runs, .window_max = WINDOW_LEAST});
    await_done(worker, 100);
    await_why(&rig, "halted", KL_WHY_HALTED);
    CHECK_INT(rig_waiting(&rig), STARTED);
    drain_and_close(worker);
    runs_free(&runs);
    rig_close(&rig);
}

/* More halted keys than the window has places: who takes over must still come to the others. */
TEST(more_halted_keys_than_memory_has_places_hide_no_other)
{
    enum { KEYS = 20000 };
    struct rig rig;
    struct runs runs;
    kl_queue_opts opts = {.size = sizeof opts, .head_policy = KL_HEAD_HALT, .attempts_max = 1};
    if (!rig_open(&rig, RIG_MEMORY, &opts))
        return;
    runs_init(&runs);
    char(*keys)[24] = calloc(KEYS, sizeof *keys);
    kl_put *puts = calloc(KEYS, sizeof *puts);
    for (int i = 0; i < KEYS; i++) {
        snprintf(keys[i], sizeof keys[i], "key-%d", i);
        puts[i] = (kl_put){.key = kl_str(keys[i]), .payload = kl_str("dead")};
    }
    for (int i = 0; i < KEYS; i += 10000)
        CHECK_INT(kl_queue_put(rig.queue, puts + i, 10000, (kl_bytes){0}, NULL), KL_OK);
    const struct start small = {.fn = runs_handle, .ctx = &runs, .window_max = WINDOW_LEAST};
    kl_worker *worker = start_worker(rig.queue, &small);
    runs_wait(&runs, KEYS);
    drain_and_close(worker);
    CHECK_INT(rig_waiting(&rig), KEYS);
    for (int i = 0; i < 100; i++) {
        snprintf(keys[i], sizeof keys[i], "other-%d", i);
        put_task(rig.queue, keys[i], "done");
    }
    worker = start_worker(rig.queue, &small);
    await_done(worker, 100);
    drain_and_close(worker);
    free(keys);
    free(puts);
    runs_free(&runs);
    rig_close(&rig);
}

/* --- Groups --- */

static void put_flood(kl_queue *queue, const char *group, uint64_t count, int keys)
{
    enum { BATCH = 5000 };
    kl_put *puts = calloc(BATCH, sizeof *puts);
    char(*names)[24] = calloc(BATCH, sizeof *names);
    for (uint64_t done = 0; done < count;) {
        size_t some = count - done < BATCH ? (size_t)(count - done) : BATCH;
        for (size_t i = 0; i < some; i++) {
            snprintf(names[i], sizeof names[i], "%s-%d", group, (int)((done + i) % (uint64_t)keys));
            puts[i] = (kl_put){.key = kl_str(names[i]), .payload = kl_str("hold"), .group = kl_str(group)};
        }
        if (kl_queue_put(queue, puts, some, (kl_bytes){0}, NULL) != KL_OK)
            test_fail(__FILE__, __LINE__, "put: %s", kl_error_text());
        done += some;
    }
    free(puts);
    free(names);
}

static bool is_still(void *ctx)
{
    struct watch *watch = ctx;
    uint64_t held = kl_worker_show(watch->worker).held;
    bool same = held == watch->most && held > 0;
    watch->done = same ? watch->done + 1 : 0;
    watch->most = held;
    return watch->done > 100; /* looks in a row */
}

/* Every group has a place in a full window, and many groups together no more than a second window. */
TEST(many_groups_take_no_more_memory_than_their_number_and_the_window)
{
    enum { GROUPS = 3000, EACH = 10 };
    struct rig rig;
    struct runs runs;
    if (!rig_open(&rig, RIG_MEMORY, NULL))
        return;
    runs_init(&runs);
    kl_put *puts = calloc(GROUPS, sizeof *puts);
    char(*names)[24] = calloc(GROUPS, sizeof *names);
    for (int i = 0; i < GROUPS; i++) {
        snprintf(names[i], sizeof names[i], "group-%d", i);
        puts[i] = (kl_put){.payload = kl_str("hold"), .group = kl_str(names[i])};
    }
    for (int i = 0; i < EACH; i++)
        CHECK_INT(kl_queue_put(rig.queue, puts, GROUPS, (kl_bytes){0}, NULL), KL_OK);
    kl_worker *worker = start_worker(
        rig.queue, &(struct start){.fn = runs_handle, .ctx = &runs, .window_max = WINDOW_LEAST, .concurrency = 2});
    runs_wait(&runs, 2);
    struct watch watch = {.worker = worker};
    await_condition("the groups fill the window", is_still, &watch);
    CHECK(watch.most >= GROUPS - 200 && watch.most <= WINDOW_LEAST + GROUPS); /* some share 16 bits with another */
    runs_open(&runs, true);
    await_done(worker, GROUPS * EACH);
    drain_and_close(worker);
    free(puts);
    free(names);
    runs_free(&runs);
    rig_close(&rig);
}

/* All threads are held by the flood. The other group's task is seen; then the flood's go on one by one, until it
 * starts. */
static void flood(rig_kind kind, uint64_t count, int keys, int64_t window_max)
{
    enum { THREADS = 4 };
    struct rig rig;
    struct runs runs;
    if (!rig_open(&rig, kind, NULL))
        return;
    runs_init(&runs);
    put_flood(rig.queue, "flood", count, keys);
    kl_worker *worker = start_worker(
        rig.queue, &(struct start){.fn = runs_handle, .ctx = &runs, .window_max = window_max, .concurrency = THREADS});
    runs_wait(&runs, THREADS);
    struct watch watch = {.worker = worker};
    await_condition("the flood fills the window", is_still, &watch);
    uint64_t held = watch.most;
    kl_put single = {.key = kl_str("single"), .payload = kl_str("done single"), .group = kl_str("other")};
    put_as(rig.queue, &single);
    await_held(worker, held + 1);
    size_t before = runs_count(&runs);
    for (int i = 0; i < 200 && runs_of(&runs, "done single") == 0; i++) {
        size_t started = runs_count(&runs);
        runs_let_one(&runs);
        runs_wait(&runs, started + 1);
    }
    int first = runs_first(&runs, "done single");
    CHECK(first >= 0 && (size_t)first - before <= 2 * 2 + THREADS); /* two groups take turns; hands of one task each */
    kl_rc rc = kl_worker_drain(worker, 0);
    CHECK(rc == KL_ETIMEDOUT || rc == KL_OK);
    runs_open(&runs, true);
    drain_and_close(worker);
    runs_free(&runs);
    rig_close(&rig);
}

TEST(a_group_that_floods_the_queue_delays_another_s_single_task_by_one_round)
{
    flood(RIG_MEMORY, long_line(1000000), 10000, WINDOW_LEAST);
}

TEST(a_flood_smaller_than_the_window_delays_another_group_by_one_round) { flood(RIG_MEMORY, 20000, 2000, 0); }
