/* test_share.c - several workers of one queue: restrictions, even shares, hand-over, takeover, limits. */
#include <time.h>

#include "support.h"
#include "work/owners.h"

/* --- Who may take what --- */

TEST(a_worker_takes_only_the_shards_it_may)
{
    static const struct {
        const char *shards;
        int64_t slice, slices;
        uint64_t expected;
    } cases[] = {{"0,1,8-f", 0, 0, 10}, {"3", 0, 0, 1}, {"0-7", 0, 0, 8}, {NULL, 1, 3, 5}, {NULL, 0, 16, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct rig rig;
        struct runs runs;
        if (!rig_open(&rig, RIG_MEMORY, NULL))
            return;
        runs_init(&runs);
        char key[16];
        uint64_t there = 0;
        for (int k = 0; k < 200; k++) {
            snprintf(key, sizeof key, "k%d", k);
            put_task(rig.queue, key, "done");
        }
        kl_worker *worker = start_worker(rig.queue, &(struct start){.fn = runs_handle,
                                                                    .ctx = &runs,
                                                                    .shards = cases[i].shards,
                                                                    .slice = cases[i].slice,
                                                                    .slices = cases[i].slices});
        await_shards(worker, cases[i].expected);
        kl_layout layout = {.partitions = 1, .shard_prefix_len = 1};
        kl_shards allowed;
        if (cases[i].shards)
            CHECK_INT(kl_shards_parse(&layout, kl_str(cases[i].shards), &allowed), KL_OK);
        else
            CHECK_INT(kl_shards_slice(&layout, cases[i].slice, cases[i].slices, &allowed), KL_OK);
        for (int k = 0; k < 200; k++) {
            snprintf(key, sizeof key, "k%d", k);
            there += kl_shards_contains(&allowed, kl_shard_of(&layout, kl_str(key)));
        }
        await_done(worker, there);
        drain_and_close(worker);
        CHECK_INT(runs_count(&runs), there);
        CHECK_INT(rig_waiting(&rig), 200 - there);
        runs_free(&runs);
        rig_close(&rig);
    }
}

/* With every loop over them that is one inside another it takes longer than a lease, for ever. */
TEST(as_many_shards_as_there_may_be_are_taken_worked_on_and_given_back)
{
    struct rig rig;
    struct runs runs;
    kl_queue_opts opts = {.size = sizeof opts, .shard_prefix_len = 4};
    if (!rig_open(&rig, RIG_MEMORY, &opts))
        return;
    runs_init(&runs);
    put_numbers(rig.queue, "k", 100, 10);
    kl_worker *worker = start_worker(rig.queue, &(struct start){.fn = runs_handle, .ctx = &runs, .until_empty = true});
    runs_wait(&runs, 1000);
    await_waiting(&rig, 0);
    drain_and_close(worker);
    CHECK_INT(runs_count(&runs), 1000);
    runs_free(&runs);
    rig_close(&rig);
}

/* --- Sharing and handing over --- */

TEST(two_workers_share_the_shards_evenly_and_hand_over_at_once)
{
    struct rig rig;
    struct runs runs;
    kl_queue_opts opts = {.size = sizeof opts, .lease_ms = 3600000}; /* nothing here waits for a lease */
    if (!rig_open(&rig, RIG_MEMORY, &opts))
        return;
    runs_init(&runs);
    kl_worker *first = start_worker(rig.queue, &(struct start){.fn = runs_handle, .ctx = &runs, .name = "first"});
    await_shards(first, 16);
    kl_worker *second = start_worker(rig.queue, &(struct start){.fn = runs_handle, .ctx = &runs, .name = "second"});
    await_shards(first, 8);
    await_shards(second, 8);
    kl_arena arena = {0};
    kl_worker_status workers[4];
    size_t count = 0;
    CHECK_INT(kl_queue_workers(rig.queue, 4, &arena, workers, &count), KL_OK);
    CHECK_INT(count, 2);
    for (size_t i = 0; i < count; i++)
        CHECK_INT(workers[i].concurrency, 4);
    kl_arena_free(&arena);
    drain_and_close(first);
    await_shards(second, 16);
    drain_and_close(second);
    runs_free(&runs);
    rig_close(&rig);
}

/* Order through many hand-overs: a worker comes, another goes, all the time. */
static void come_and_go(rig_kind kind)
{
    enum { KEYS = 100, EACH = 60 };
    static struct order order;
    struct rig rig;
    kl_queue_opts opts = {.size = sizeof opts, .attempts_max = 50};
    memset(&order, 0, sizeof order);
    order.retry_every = 10;
    order.seed = test_seed();
    if (!rig_open(&rig, kind, &opts))
        return;
    const struct start start = {.fn = order_handle, .ctx = &order, .concurrency = 2};
    kl_worker *workers[2] = {start_worker(rig.queue, &start), start_worker(rig.queue, &start)};
    put_numbers(rig.queue, "key-", KEYS, EACH);
    for (int i = 0; i < 6; i++) {
        drain_and_close(workers[i % 2]);
        workers[i % 2] = start_worker(rig.queue, &start);
    }
    await_waiting(&rig, 0);
    for (int i = 0; i < 2; i++)
        drain_and_close(workers[i]);
    order_check(&order, KEYS, EACH);
    CHECK_INT(order.done, KEYS * EACH);
    rig_close(&rig);
}

TEST(order_survives_workers_that_come_and_go) { come_and_go(RIG_MEMORY); }
TEST(order_on_disk_survives_workers_that_come_and_go) { come_and_go(RIG_DISK); }

/* A worker that died: it took everything and is not heard of again. */
static void die_with_all(struct rig *rig, int64_t lease_ms)
{
    kl__owners_opts opts = {.store = rig->store,
                            .name = "orders",
                            .layout = {.partitions = 1, .shard_prefix_len = 1},
                            .worker_name = "dead",
                            .lease_ms = lease_ms,
                            .seed = 7,
                            .concurrency = 1,
                            .worker = {{1, 2, 3}}};
    kl__owners *owners = NULL;
    kl__owners_change change;
    kl_shards_all(&opts.layout, &opts.allowed);
    REQUIRE(kl_store_partition(rig->store, "orders", 1, &opts.partition) == KL_OK);
    REQUIRE(kl__owners_open(&opts, &owners) == KL_OK);
    kl__owners_report report = {.permits_max = UINT64_MAX, .permits_most = UINT64_MAX};
    CHECK_INT(kl__owners_beat(owners, &report, &change), KL_OK);
    CHECK_INT(change.taken_count, 16);
    kl__owners_close(owners);
}

TEST(the_shards_of_a_dead_worker_are_taken_when_its_lease_is_over_on_the_store_s_clock)
{
    struct rig rig;
    struct runs runs;
    kl_queue_opts opts = {.size = sizeof opts, .lease_ms = 3600000};
    kl_worker_status workers[4];
    kl_arena arena = {0};
    size_t count = 0;
    if (!rig_open(&rig, RIG_MEMORY_CLOCK, &opts))
        return;
    runs_init(&runs);
    die_with_all(&rig, 3600000);
    put_task(rig.queue, "k", "done");
    kl_worker *worker = start_worker(rig.queue, &(struct start){.fn = runs_handle, .ctx = &runs, .name = "alive"});
    rig.now_ms += 3600000 - 1000;
    struct rig *look = &rig;
    for (count = 0; count < 2;) /* it has made itself known, and has nothing */
        CHECK_INT(kl_queue_workers(look->queue, 4, &arena, workers, &count), KL_OK);
    CHECK_INT(kl_worker_show(worker).shards, 0);
    CHECK_INT(runs_count(&runs), 0);
    rig.now_ms += 2000;
    await_shards(worker, 16);
    runs_wait(&runs, 1);
    await_waiting(&rig, 0);
    drain_and_close(worker);
    kl_arena_free(&arena);
    runs_free(&runs);
    rig_close(&rig);
}

/* --- Limits of the queue --- */

TEST(no_more_tasks_run_at_once_than_the_queue_allows_over_two_workers)
{
    enum { LIMIT = 3, TASKS = 60 };
    struct rig rig;
    struct runs runs;
    kl_queue_opts opts = {.size = sizeof opts, .concurrency = LIMIT, .lease_ms = 1000};
    if (!rig_open(&rig, RIG_MEMORY, &opts))
        return;
    runs_init(&runs);
    char key[16];
    for (int i = 0; i < TASKS; i++) {
        snprintf(key, sizeof key, "k%d", i);
        put_task(rig.queue, key, "hold");
    }
    kl_worker *first = start_worker(rig.queue, &(struct start){.fn = runs_handle, .ctx = &runs, .concurrency = 8});
    kl_worker *second = start_worker(rig.queue, &(struct start){.fn = runs_handle, .ctx = &runs, .concurrency = 8});
    runs_wait(&runs, LIMIT);
    for (int i = 0; i < TASKS - LIMIT; i++) {
        runs_let_one(&runs);
        runs_wait(&runs, (size_t)(LIMIT + i + 1));
    }
    runs_open(&runs, true);
    await_waiting(&rig, 0);
    CHECK_INT(runs.most, LIMIT);
    drain_and_close(first);
    drain_and_close(second);
    runs_free(&runs);
    rig_close(&rig);
}

TEST(tasks_start_no_faster_than_the_queue_s_rate)
{
    enum { RATE = 200, BURST = 10, TASKS = 110, BACKLOG = 2000 };
    struct rig rig;
    struct runs runs;
    kl_queue_opts opts = {.size = sizeof opts, .rate = RATE, .burst = BURST};
    if (!rig_open(&rig, RIG_MEMORY, &opts))
        return;
    runs_init(&runs);
    put_numbers(rig.queue, "k", BACKLOG, 1);
    kl_worker *worker =
        start_worker(rig.queue, &(struct start){.fn = runs_handle, .ctx = &runs, .window_max = 1024, .concurrency = 2});
    runs_wait(&runs, 1);
    int64_t began_ns = kl__monotonic_ns();
    runs_wait(&runs, TASKS);
    int64_t took_ms = (kl__monotonic_ns() - began_ns) / 1000000;
    CHECK(took_ms >= (TASKS - 1 - BURST) * 1000 / RATE * 9 / 10);
    CHECK(took_ms < 5000); /* half a second is right; a thread that sleeps through its tokens takes a minute */
    drain_and_close(worker);
    runs_free(&runs);
    rig_close(&rig);
}

/* The store's clock stands still: there are no more tokens than the first ones. */
TEST(tasks_that_are_not_run_do_not_use_up_the_rate)
{
    enum { UNSERVED = 50, SERVED = 5 };
    struct rig rig;
    struct runs runs;
    kl_queue_opts opts = {.size = sizeof opts, .rate = 1, .burst = SERVED + 1, .lease_ms = 3600000};
    char key[16];
    if (!rig_open(&rig, RIG_MEMORY_CLOCK, &opts))
        return;
    runs_init(&runs);
    for (int i = 0; i < UNSERVED + SERVED; i++) {
        snprintf(key, sizeof key, "k%d", i);
        put_as(
            rig.queue,
            &(kl_put){.key = kl_str(key), .kind = kl_str(i < UNSERVED ? "other" : "mine"), .payload = kl_str("done")});
    }
    kl_worker *worker =
        start_worker(rig.queue, &(struct start){.fn = runs_handle, .ctx = &runs, .kind = "mine", .concurrency = 1});
    runs_wait(&runs, SERVED);
    drain_and_close(worker);
    runs_free(&runs);
    rig_close(&rig);
}

/* --- Several queues --- */

enum { BACKLOG = 20000, LEAD = 8000, LATE = 2000 };

/* One thread runs all: which queue's, in their order. When one is LEAD ahead it waits. */
struct turns {
    kl_worker *worker;
    atomic_int count;
    atomic_bool open;
    char of[BACKLOG + LATE];
};

static kl_outcome take_turn(kl_work *work, void *ctx)
{
    struct turns *turns = ctx;
    struct timespec pause = {.tv_nsec = 1000000};
    while (atomic_load(&turns->count) == LEAD && !atomic_load(&turns->open))
        nanosleep(&pause, NULL);
    turns->of[atomic_load(&turns->count)] = kl_work_queue(work)[0];
    atomic_fetch_add(&turns->count, 1);
    return KL_DONE;
}

static bool has_lead(void *ctx) { return atomic_load(&((struct turns *)ctx)->count) == LEAD; }

static bool holds_late(void *ctx)
{
    kl_arena arena = {0};
    kl_bytes text = {0};
    char line[80];
    snprintf(line, sizeof line, "keyline_worker_held{queue=\"late\"} %d\n", LATE);
    bool holds = kl_worker_metrics(((struct turns *)ctx)->worker, &arena, &text) == KL_OK && strstr(text.data, line);
    kl_arena_free(&arena);
    return holds;
}

static bool has_run_late(void *ctx)
{
    struct turns *turns = ctx;
    size_t late = 0;
    for (int i = 0, count = atomic_load(&turns->count); i < count; i++)
        late += turns->of[i] == 'l';
    return late == LATE;
}

TEST(a_queue_that_had_nothing_to_run_does_not_make_up_for_it)
{
    static struct turns turns;
    struct rig rig;
    kl_queue *late = NULL;
    if (!rig_open(&rig, RIG_MEMORY, NULL))
        return;
    memset(&turns, 0, sizeof turns);
    REQUIRE(kl_queue_open(rig.store, "late", NULL, &late) == KL_OK);
    put_numbers(rig.queue, "k", BACKLOG, 1);
    kl_handler handler = {.fn = take_turn, .ctx = &turns};
    kl_worker_queue served[] = {{.queue = rig.queue, .handlers = &handler, .handler_count = 1},
                                {.queue = late, .handlers = &handler, .handler_count = 1}};
    kl_worker_opts opts = {.size = sizeof opts, .concurrency = 1};
    REQUIRE(kl_worker_start(served, 2, &opts, &turns.worker) == KL_OK);
    await_condition("one is ahead", has_lead, &turns);
    put_numbers(late, "k", LATE, 1);
    await_condition("the late ones are held", holds_late, &turns);
    atomic_store(&turns.open, true);
    await_condition("the late ones have run", has_run_late, &turns);
    drain_and_close(turns.worker);
    int last = 0, between = 0;
    for (int i = 0; i < BACKLOG + LATE; i++)
        last = turns.of[i] == 'l' ? i : last;
    for (int i = LEAD; i < last; i++)
        between += turns.of[i] == 'o';
    CHECK(between >= LATE / 2);
    CHECK(between <= LATE * 2);
    kl_queue_close(late);
    rig_close(&rig);
}
