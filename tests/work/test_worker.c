/* test_worker.c - whole workers with their threads: order, priorities, delays. */
#include "base/random.h"
#include "support.h"

static void run_all(rig_kind kind, int keys, int each, int retry_every)
{
    static struct order order;
    struct rig rig;
    kl_queue_opts opts = {.size = sizeof opts, .attempts_max = 50};
    memset(&order, 0, sizeof order);
    order.retry_every = retry_every;
    order.seed = test_seed();
    if (!rig_open(&rig, kind, &opts))
        return;
    put_numbers(rig.queue, "key-", keys, each);
    kl_worker *worker =
        start_worker(rig.queue, &(struct start){.fn = order_handle, .ctx = &order, .until_empty = true});
    if (worker) {
        CHECK_INT(kl_worker_wait(worker, WAIT_MS), KL_OK);
        kl_worker_info told = kl_worker_show(worker);
        CHECK_INT(told.done, keys * each);
        CHECK_INT(told.held, 0);
        CHECK_INT(told.shards, 0);
        kl_worker_close(worker);
    }
    order_check(&order, keys, each);
    CHECK_INT(rig_waiting(&rig), 0);
    rig_close(&rig);
}

TEST(tasks_of_a_key_run_in_order_and_never_overlap) { run_all(RIG_MEMORY, 64, 500, 0); }
TEST(many_keys_run_in_order) { run_all(RIG_MEMORY, 10000, 3, 0); }
TEST(a_task_that_is_retried_holds_its_key_and_no_other) { run_all(RIG_MEMORY, 64, 100, 7); }
TEST(one_key_with_many_tasks_runs_them_in_order) { run_all(RIG_MEMORY, 1, 20000, 0); }
TEST(one_key_with_many_tasks_and_retries_runs_them_in_order) { run_all(RIG_MEMORY, 1, 1500, 10); }
TEST(order_holds_on_disk_too) { run_all(RIG_DISK, 300, 30, 20); }

/* --- Priorities --- */

/* Puts tasks while the only thread is held, so that all are in memory before the first is chosen. */
struct prioritized {
    const char *key, *payload;
    int64_t priority;
};

static void run_prioritized(const struct prioritized *tasks, size_t count, const char *const *expected)
{
    struct rig rig;
    struct runs runs;
    if (!rig_open(&rig, RIG_MEMORY, NULL))
        return;
    runs_init(&runs);
    kl_worker *worker = start_worker(rig.queue, &(struct start){.fn = runs_handle, .ctx = &runs, .concurrency = 1});
    put_task(rig.queue, "other", "hold");
    runs_wait_for(&runs, "hold", 1);
    for (size_t i = 0; i < count; i++) {
        kl_put put = {.key = kl_str(tasks[i].key), .payload = kl_str(tasks[i].payload), .priority = tasks[i].priority};
        put_as(rig.queue, &put);
    }
    await_held(worker, count + 1);
    runs_open(&runs, true);
    if (runs_wait(&runs, count + 1))
        for (size_t i = 0; i < count; i++)
            CHECK_STR(runs.list[i + 1].payload, expected[i]);
    drain_and_close(worker);
    runs_free(&runs);
    rig_close(&rig);
}

TEST(lower_priorities_run_first)
{
    static const struct prioritized tasks[] = {{"a", "done 9", 9},   {"b", "done 0", 0}, {"c", "done -16", -16},
                                               {"d", "done 15", 15}, {"e", "done 5", 5}, {"f", "done -3", -3}};
    static const char *const expected[] = {"done -16", "done -3", "done 0", "done 5", "done 9", "done 15"};
    run_prioritized(tasks, 6, expected);
}

TEST(an_urgent_task_overtakes_those_of_its_key_that_wait)
{
    static const struct prioritized tasks[] = {{"k", "done 5", 5}, {"k", "done 5 b", 5}, {"k", "done -3", -3},
                                               {"k", "done 0", 0}, {"k", "done 5 c", 5}, {"k", "done -3 b", -3}};
    static const char *const expected[] = {"done -3", "done -3 b", "done 0", "done 5", "done 5 b", "done 5 c"};
    run_prioritized(tasks, 6, expected);
}

/* --- Delays --- */

TEST(a_delayed_task_is_not_run_before_it_is_due_and_then_joins_its_line)
{
    struct rig rig;
    struct runs runs;
    if (!rig_open(&rig, RIG_MEMORY_CLOCK, NULL))
        return;
    runs_init(&runs);
    int64_t now_ms = rig.now_ms;
    kl_put later = {.key = kl_str("k"), .payload = kl_str("done later"), .delay_ms = 60000};
    put_as(rig.queue, &later);
    kl_put keyless = {.payload = kl_str("done keyless"), .delay_ms = 60000};
    put_as(rig.queue, &keyless);
    kl_worker *worker = start_worker(rig.queue, &(struct start){.fn = runs_handle, .ctx = &runs});
    put_task(rig.queue, "k", "done first");
    runs_wait_for(&runs, "done first", 1);
    await_waiting(&rig, 2);
    CHECK_INT(runs_count(&runs), 1);
    await_why(&rig, "k", KL_WHY_DELAYED);
    rig.now_ms = now_ms + 60001;
    runs_wait_for(&runs, "done later", 1);
    runs_wait_for(&runs, "done keyless", 1);
    await_waiting(&rig, 0); /* the jump has ended the lease: where a beat sees that first, they are run again */
    drain_and_close(worker);
    runs_free(&runs);
    rig_close(&rig);
}

/* It stands behind what was put before its time and ahead of what came after. Ids are made by the machine's clock, so
 * this is on the real one. */
TEST(a_task_that_has_become_due_stands_where_its_time_says)
{
    struct rig rig;
    struct runs runs;
    if (!rig_open(&rig, RIG_MEMORY, NULL))
        return;
    runs_init(&runs);
    kl_worker *worker = start_worker(rig.queue, &(struct start){.fn = runs_handle, .ctx = &runs});
    put_task(rig.queue, "k", "hold");
    runs_wait_for(&runs, "hold", 1);
    kl_put delayed = {.key = kl_str("k"), .payload = kl_str("done due"), .delay_ms = 400};
    put_as(rig.queue, &delayed);
    put_task(rig.queue, "k", "done before");
    await_held(worker, 3); /* it is due, */
    int64_t due_ms = kl__wall_ms();
    for (struct timespec ids = {0}; (int64_t)ids.tv_sec * 1000 + ids.tv_nsec / 1000000 <= due_ms;)
        clock_gettime(CLOCK_REALTIME_COARSE, &ids); /* and ids say so, too */
    put_task(rig.queue, "k", "done after");
    await_held(worker, 4);
    runs_open(&runs, true);
    runs_wait(&runs, 4);
    CHECK_INT(runs_first(&runs, "done before"), 1);
    CHECK_INT(runs_first(&runs, "done due"), 2);
    CHECK_INT(runs_first(&runs, "done after"), 3);
    drain_and_close(worker);
    runs_free(&runs);
    rig_close(&rig);
}

/* --- Order in what waits when a worker starts --- */

struct line {
    atomic_int last[16], wrong;
};

/* Payloads are "KEY PLACE", places in the order in which tasks are to run. */
static kl_outcome line_handle(kl_work *work, void *ctx)
{
    struct line *line = ctx;
    int key = -1, place = -1;
    sscanf(kl_work_payload(work).data, "%d %d", &key, &place);
    line->wrong += place < atomic_exchange(&line->last[key], place);
    return KL_DONE;
}

static void run_line(struct rig *rig, int count)
{
    static struct line line;
    memset(&line, 0, sizeof line);
    kl_worker *worker = start_worker(
        rig->queue, &(struct start){.fn = line_handle, .ctx = &line, .window_max = 1024, .until_empty = true});
    if (worker) {
        CHECK_INT(kl_worker_wait(worker, WAIT_MS), KL_OK);
        CHECK_INT(kl_worker_show(worker).done, count);
        kl_worker_close(worker);
    }
    CHECK_INT(line.wrong, 0);
    CHECK_INT(rig_waiting(rig), 0);
}

/* More than a window holds, and than one look reads of a line. */
TEST(the_less_urgent_tasks_of_a_key_wait_for_those_that_were_not_read_yet)
{
    enum { KEYS = 12, EACH = 1000, PRIORITIES = 5 };
    struct rig rig;
    uint64_t seed = test_seed();
    if (!rig_open(&rig, RIG_MEMORY, NULL))
        return;
    for (int i = 0; i < EACH * KEYS; i++) {
        char key[24], payload[24];
        int priority = (int)(kl__random_next(&seed) % PRIORITIES);
        snprintf(key, sizeof key, "k%d", i % KEYS);
        snprintf(payload, sizeof payload, "%d %d", i % KEYS, priority * EACH + i / KEYS);
        kl_put put = {.key = kl_str(key), .payload = kl_str(payload), .priority = priority - 2};
        put_as(rig.queue, &put);
    }
    run_line(&rig, EACH * KEYS);
    rig_close(&rig);
}

TEST(a_task_that_is_due_when_a_worker_starts_is_not_passed_by_later_ones_of_its_key)
{
    struct rig rig;
    if (!rig_open(&rig, RIG_MEMORY, NULL))
        return;
    static const struct {
        int place;
        int64_t due_ago_ms; /* 0: none */
        int64_t priority;
    } puts[] = {{2, 0, 0}, {1, 5000, 0}, {3, 0, 0}, {0, 1000, -5}, {5, 3000, 3}, {4, 0, 1}};
    enum { KEYS = 12, EACH = sizeof puts / sizeof puts[0] };
    int64_t now_ms = kl__wall_ms();
    for (int i = 0; i < EACH * KEYS; i++) {
        char key[24], payload[24];
        int64_t ago_ms = puts[i / KEYS].due_ago_ms;
        snprintf(key, sizeof key, "k%d", i % KEYS);
        snprintf(payload, sizeof payload, "%d %d", i % KEYS, puts[i / KEYS].place);
        kl_put put = {.key = kl_str(key),
                      .payload = kl_str(payload),
                      .due_ms = ago_ms ? now_ms - ago_ms : 0,
                      .priority = puts[i / KEYS].priority};
        put_as(rig.queue, &put);
    }
    run_line(&rig, EACH * KEYS);
    rig_close(&rig);
}

/* --- Threads --- */

TEST(tasks_without_a_key_run_side_by_side)
{
    struct rig rig;
    struct runs runs;
    if (!rig_open(&rig, RIG_MEMORY, NULL))
        return;
    runs_init(&runs);
    for (int i = 0; i < 12; i++)
        put_task(rig.queue, NULL, "hold");
    kl_worker *worker = start_worker(rig.queue, &(struct start){.fn = runs_handle, .ctx = &runs, .concurrency = 4});
    runs_wait(&runs, 4);
    runs_open(&runs, true);
    runs_wait(&runs, 12);
    CHECK_INT(runs.most, 4);
    drain_and_close(worker);
    CHECK_INT(rig_waiting(&rig), 0);
    runs_free(&runs);
    rig_close(&rig);
}

TEST(a_long_task_holds_up_nobody_in_its_thread_s_hand)
{
    struct rig rig;
    struct runs runs;
    if (!rig_open(&rig, RIG_MEMORY, NULL))
        return;
    runs_init(&runs);
    kl_worker *worker = start_worker(rig.queue, &(struct start){.fn = runs_handle, .ctx = &runs, .concurrency = 2});
    char key[16];
    for (int i = 0; i < 2000; i++) { /* quick ones make the hands large */
        snprintf(key, sizeof key, "k%d", i);
        put_task(rig.queue, key, i == 1500 ? "hold" : "done");
    }
    runs_wait_for(&runs, "done", 1999);
    await_waiting(&rig, 1);
    runs_open(&runs, true);
    drain_and_close(worker);
    CHECK_INT(rig_waiting(&rig), 0);
    runs_free(&runs);
    rig_close(&rig);
}
