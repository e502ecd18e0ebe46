/* test_capacity.c - at most so many tasks of each partition at once in one worker. */
#include "support.h"
#include "work/why.h"

enum { PARTITIONS = 4, LIMIT = 3 };

/* What runs, by partition. */
struct counted {
    struct runs runs;
    struct order order;
    atomic_int running[PARTITIONS], most[PARTITIONS];
};

static void counted_init(struct counted *counted)
{
    memset(counted, 0, sizeof *counted);
    runs_init(&counted->runs);
}

static uint32_t partition_of(const char *key, uint32_t partitions)
{
    kl_layout layout = {.partitions = partitions, .shard_prefix_len = 1};
    return kl_partition_of(&layout, kl_str(key));
}

static void enter(struct counted *counted, uint32_t partition)
{
    int now = atomic_fetch_add(&counted->running[partition], 1) + 1, most = counted->most[partition];
    while (now > most && !atomic_compare_exchange_weak(&counted->most[partition], &most, now))
        ;
}

static uint32_t partition_of_work(kl_work *work)
{
    const char *number = strstr(kl_work_partition(work), "__p");
    return number ? (uint32_t)atoi(number + 3) : 0;
}

static kl_outcome run_counted(kl_work *work, void *ctx)
{
    struct counted *counted = ctx;
    uint32_t partition = partition_of_work(work);
    enter(counted, partition);
    kl_outcome outcome = runs_handle(work, &counted->runs);
    atomic_fetch_sub(&counted->running[partition], 1);
    return outcome;
}

static kl_outcome order_counted(kl_work *work, void *ctx)
{
    struct counted *counted = ctx;
    uint32_t partition = partition_of_work(work);
    const struct timespec pause = {.tv_nsec = 50000}; /* in which others would come, if they might */
    enter(counted, partition);
    nanosleep(&pause, NULL);
    kl_outcome outcome = order_handle(work, &counted->order);
    atomic_fetch_sub(&counted->running[partition], 1);
    return outcome;
}

/* `each` tasks for each partition, of keys of their own. */
static void put_each(kl_queue *queue, const char *prefix, int each, const char *payload)
{
    int left[PARTITIONS], sum = each * PARTITIONS;
    char key[32];
    for (int i = 0; i < PARTITIONS; i++)
        left[i] = each;
    for (int i = 0; sum > 0; i++) {
        snprintf(key, sizeof key, "%s-%d", prefix, i);
        uint32_t partition = partition_of(key, PARTITIONS);
        if (left[partition] == 0)
            continue;
        put_as(queue, &(kl_put){.key = kl_str(key), .kind = kl_str("work"), .payload = kl_str(payload)});
        left[partition]--;
        sum--;
    }
}

static bool all_run(void *ctx)
{
    struct counted *counted = ctx;
    for (int i = 0; i < PARTITIONS; i++)
        if (counted->running[i] != LIMIT)
            return false;
    return true;
}

/* Nothing was lost of what each partition may run: so many of each run at once, and no more. */
static void check_whole(struct rig *rig, struct counted *counted)
{
    put_each(rig->queue, "whole", 2 * LIMIT, "hold");
    await_condition("every partition runs as many as it may", all_run, counted);
    runs_open(&counted->runs, true);
    await_waiting(rig, 0);
    for (int i = 0; i < PARTITIONS; i++)
        CHECK_INT(counted->most[i], LIMIT);
}

/* --- What is promised --- */

static void keep_to_limit(rig_kind kind)
{
    enum { KEYS = 200, EACH = 40 };
    static struct counted counted;
    struct rig rig;
    kl_queue_opts opts = {.size = sizeof opts, .partitions = PARTITIONS, .attempts_max = 50};
    counted_init(&counted);
    counted.order.retry_every = 10;
    counted.order.seed = test_seed();
    if (!rig_open(&rig, kind, &opts))
        return;
    kl_worker *worker = start_worker(
        rig.queue, &(struct start){.fn = order_counted, .ctx = &counted, .concurrency = 16, .per_partition = LIMIT});
    put_numbers(rig.queue, "key-", KEYS, EACH);
    await_waiting(&rig, 0);
    drain_and_close(worker);
    order_check(&counted.order, KEYS, EACH);
    CHECK_INT(counted.order.done, KEYS * EACH);
    for (int i = 0; i < PARTITIONS; i++)
        CHECK(counted.most[i] <= LIMIT);
    runs_free(&counted.runs);
    rig_close(&rig);
}

TEST(no_more_tasks_of_a_partition_run_at_once_than_may_and_all_are_run_in_order) { keep_to_limit(RIG_MEMORY); }
TEST(no_more_tasks_of_a_partition_on_disk_run_at_once_than_may_and_all_are_run_in_order) { keep_to_limit(RIG_DISK); }

TEST(whatever_becomes_of_tasks_a_partition_can_run_as_many_afterwards)
{
    enum { EACH = 30 };
    static struct counted counted;
    struct rig rig;
    kl_queue_opts opts = {.size = sizeof opts, .partitions = PARTITIONS, .attempts_max = 3, .backoff_base_ms = 1};
    counted_init(&counted);
    if (!rig_open(&rig, RIG_MEMORY, &opts))
        return;
    kl_worker *worker = start_worker(
        rig.queue,
        &(struct start){.fn = run_counted, .ctx = &counted, .kind = "work", .concurrency = 16, .per_partition = LIMIT});
    put_each(rig.queue, "done", EACH, "done");
    put_each(rig.queue, "retry", EACH, "retry");
    put_each(rig.queue, "dead", EACH, "dead");
    char key[32];
    for (int i = 0; i < EACH;
         i++) { /* some time out, some are cancelled while they run, some are of no kind that is run */
        snprintf(key, sizeof key, "late-%d", i);
        put_as(rig.queue, &(kl_put){.key = kl_str(key),
                                    .kind = kl_str("work"),
                                    .payload = kl_str("stuck"),
                                    .timeout_ms = 1,
                                    .attempts_max = 1});
        snprintf(key, sizeof key, "other-%d", i);
        put_as(rig.queue, &(kl_put){.key = kl_str(key), .kind = kl_str("other"), .payload = kl_str("done")});
    }
    await_waiting(&rig, EACH); /* of the other kind */
    kl_task_id stuck =
        put_as(rig.queue, &(kl_put){.key = kl_str("k"), .kind = kl_str("work"), .payload = kl_str("stuck 2")});
    runs_wait_for(&counted.runs, "stuck 2", 1);
    bool running = false;
    CHECK_INT(kl_task_cancel(rig.queue, &stuck, &running), KL_OK);
    CHECK(running);
    await_waiting(&rig, EACH);
    for (int i = 0; i < EACH; i++) {
        snprintf(key, sizeof key, "other-%d", i);
        kl_task_id skipped;
        CHECK_INT(kl_key_skip(rig.queue, kl_str(key), NULL, &skipped), KL_OK);
    }
    await_waiting(&rig, 0);
    check_whole(&rig, &counted);
    drain_and_close(worker);
    runs_free(&counted.runs);
    rig_close(&rig);
}

/* Half of the memory, shared out, is less than a task for each. */
TEST(more_partitions_than_a_worker_has_memory_for_are_served_all_the_same)
{
    enum { MANY = 600, TASKS = 50 };
    static struct counted counted;
    struct rig rig;
    kl_queue_opts opts = {.size = sizeof opts, .partitions = MANY};
    counted_init(&counted);
    if (!rig_open(&rig, RIG_MEMORY, &opts))
        return;
    kl_worker *worker = start_worker(
        rig.queue, &(struct start){.fn = runs_handle, .ctx = &counted.runs, .per_partition = 1, .window_max = 1024});
    put_numbers(rig.queue, "done-", TASKS, 1);
    await_waiting(&rig, 0);
    drain_and_close(worker);
    CHECK_INT(runs_count(&counted.runs), TASKS);
    runs_free(&counted.runs);
    rig_close(&rig);
}

struct waiting {
    struct rig *rig;
    kl_task_id id;
};

static bool task_says_why(void *ctx)
{
    const struct waiting *waiting = ctx;
    kl_arena arena = {0};
    kl_found found;
    kl_why why = KL_WHY_IDLE;
    CHECK_INT(kl_queue_task(waiting->rig->queue, &waiting->id, &arena, &found), KL_OK);
    CHECK_INT(kl__tasks_why(waiting->rig->queue, &found, 1, &why), KL_OK);
    kl_arena_free(&arena);
    return why == KL_WHY_PARTITION;
}

/* What waits for the one partition is far more than the worker has memory for. */
TEST(a_partition_at_its_limit_holds_up_no_other_and_its_tasks_say_why_they_wait)
{
    enum { SLOW = 3000, QUICK = 3000 };
    static struct counted counted;
    struct rig rig;
    kl_queue_opts opts = {.size = sizeof opts, .partitions = 2, .lease_ms = 1000};
    counted_init(&counted);
    if (!rig_open(&rig, RIG_MEMORY, &opts))
        return;
    char key[32], last[32] = "";
    struct waiting waiting = {.rig = &rig};
    int slow = 0, quick = 0;
    for (int i = 0; slow < SLOW; i++) {
        snprintf(key, sizeof key, "slow-%d", i);
        if (partition_of(key, 2) != 0)
            continue;
        waiting.id = put_task(rig.queue, key, "hold");
        memcpy(last, key, sizeof last);
        slow++;
    }
    for (int i = 0; quick < QUICK; i++) {
        snprintf(key, sizeof key, "quick-%d", i);
        if (partition_of(key, 2) != 1)
            continue;
        put_task(rig.queue, key, "done");
        quick++;
    }
    kl_worker *worker = start_worker(
        rig.queue,
        &(struct start){.fn = run_counted, .ctx = &counted, .concurrency = 4, .window_max = 1024, .per_partition = 2});
    await_waiting(&rig, SLOW);
    CHECK_INT(counted.running[0], 2);
    CHECK_INT(counted.most[0], 2);
    await_why(&rig, last, KL_WHY_PARTITION);
    await_condition("the record tells why the task waits", task_says_why, &waiting);
    runs_open(&counted.runs, true);
    await_waiting(&rig, 0);
    CHECK_INT(counted.most[0], 2);
    CHECK_INT(runs_count(&counted.runs), SLOW + QUICK);
    drain_and_close(worker);
    runs_free(&counted.runs);
    rig_close(&rig);
}

TEST(when_a_task_ends_the_next_of_its_partition_starts)
{
    enum { TASKS = 100 };
    struct rig rig;
    struct runs runs;
    char key[32];
    if (!rig_open(&rig, RIG_MEMORY, NULL))
        return;
    runs_init(&runs);
    for (int i = 0; i < TASKS; i++) {
        snprintf(key, sizeof key, "k%d", i);
        put_task(rig.queue, key, "hold");
    }
    kl_worker *worker =
        start_worker(rig.queue, &(struct start){.fn = runs_handle, .ctx = &runs, .concurrency = 4, .per_partition = 1});
    runs_wait(&runs, 1);
    for (int i = 1; i < TASKS; i++) {
        runs_let_one(&runs);
        runs_wait(&runs, (size_t)i + 1);
    }
    runs_open(&runs, true);
    await_waiting(&rig, 0);
    CHECK_INT(runs.most, 1);
    drain_and_close(worker);
    runs_free(&runs);
    rig_close(&rig);
}

TEST(of_what_waits_for_a_partition_the_most_urgent_is_run_next)
{
    struct rig rig;
    struct runs runs;
    if (!rig_open(&rig, RIG_MEMORY, NULL))
        return;
    runs_init(&runs);
    put_task(rig.queue, "first", "hold 0");
    kl_worker *worker =
        start_worker(rig.queue, &(struct start){.fn = runs_handle, .ctx = &runs, .concurrency = 4, .per_partition = 1});
    runs_wait(&runs, 1);
    put_as(rig.queue, &(kl_put){.key = kl_str("later"), .payload = kl_str("hold 2"), .priority = 5});
    await_why(&rig, "later", KL_WHY_PARTITION);
    put_as(rig.queue, &(kl_put){.key = kl_str("urgent"), .payload = kl_str("hold 1"), .priority = -5});
    await_why(&rig, "urgent", KL_WHY_PARTITION);
    await_held(worker, 3);
    runs_open(&runs, true);
    await_waiting(&rig, 0);
    CHECK(runs_first(&runs, "hold 1") < runs_first(&runs, "hold 2"));
    CHECK_INT(runs.most, 1);
    drain_and_close(worker);
    runs_free(&runs);
    rig_close(&rig);
}

TEST(partitions_in_other_stores_have_the_same_limit)
{
    static struct counted counted;
    struct rig rig;
    char dir[WORKDIR_BYTES], url[WORKDIR_BYTES + 8];
    counted_init(&counted);
    if (!rig_open(&rig, RIG_DISK, NULL))
        return;
    REQUIRE(workdir_make(dir));
    snprintf(url, sizeof url, "disk:%s", dir);
    const char *stores[PARTITIONS] = {"", url, "", url};
    kl_queue_opts opts = {.size = sizeof opts, .partitions = PARTITIONS, .stores = stores, .store_count = PARTITIONS};
    kl_queue_close(rig.queue);
    rig.queue = NULL;
    CHECK_INT(kl_queue_open(rig.store, "spread", &opts, &rig.queue), KL_OK);
    if (rig.queue) {
        kl_worker *worker = start_worker(
            rig.queue, &(struct start){.fn = run_counted, .ctx = &counted, .concurrency = 16, .per_partition = LIMIT});
        put_each(rig.queue, "done", 100, "done");
        await_waiting(&rig, 0);
        check_whole(&rig, &counted);
        drain_and_close(worker);
    }
    runs_free(&counted.runs);
    rig_close(&rig);
    workdir_remove(dir);
}

/* --- What is refused --- */

TEST(a_limit_below_the_queue_s_minimum_is_refused)
{
    struct rig rig;
    struct runs runs;
    kl_queue_opts opts = {.size = sizeof opts, .partitions = 2};
    if (!rig_open(&rig, RIG_MEMORY, &opts))
        return;
    runs_init(&runs);
    kl_handler handler = {.fn = runs_handle, .ctx = &runs};
    kl_worker_queue served = {
        .queue = rig.queue, .handlers = &handler, .handler_count = 1, .min = 5, .per_partition = 2};
    kl_worker_opts worker_opts = {.size = sizeof worker_opts, .concurrency = 8};
    kl_worker *worker = NULL;
    CHECK_INT(kl_worker_start(&served, 1, &worker_opts, &worker), KL_EINVAL);
    CHECK_CONTAINS(kl_error_text(),
                   "queue orders is to have at least 5 threads, and its 2 partitions with 2 each come to 4");
    served.per_partition = -1;
    CHECK_INT(kl_worker_start(&served, 1, &worker_opts, &worker), KL_EINVAL);
    CHECK_CONTAINS(kl_error_text(), "per_partition is -1");
    served.per_partition = 0;
    CHECK_INT(kl_worker_start(&served, 1, &worker_opts, &worker), KL_OK);
    drain_and_close(worker);
    runs_free(&runs);
    rig_close(&rig);
}
