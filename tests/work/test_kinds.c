/* test_kinds.c - handlers by kind, several queues in one worker, and settings that are refused. */
#include <stdlib.h>

#include "support.h"

static kl_task_id put_kind(kl_queue *queue, const char *key, const char *kind, const char *payload)
{
    kl_put put = {.key = kl_str(key ? key : ""), .kind = kl_str(kind), .payload = kl_str(payload)};
    return put_as(queue, &put);
}

TEST(each_kind_goes_to_its_handler_and_the_rest_to_the_one_for_all)
{
    struct rig rig;
    struct runs runs[3];
    if (!rig_open(&rig, RIG_MEMORY, NULL))
        return;
    kl_handler handlers[3];
    for (int i = 0; i < 3; i++) {
        runs_init(&runs[i]);
        handlers[i] = (kl_handler){.kind = i == 0   ? "mail"
                                           : i == 1 ? "bill"
                                                    : NULL,
                                   .fn = runs_handle,
                                   .ctx = &runs[i]};
    }
    char key[16];
    for (int i = 0; i < 300; i++) {
        snprintf(key, sizeof key, "k%d", i % 20);
        put_kind(rig.queue, key, i % 3 == 0 ? "mail" : i % 3 == 1 ? "bill" : i % 2 ? "mai" : "", "done");
    }
    kl_worker_queue served = {.queue = rig.queue, .handlers = handlers, .handler_count = 3};
    kl_worker_opts opts = {.size = sizeof opts, .until_empty = true};
    kl_worker *worker;
    REQUIRE(kl_worker_start(&served, 1, &opts, &worker) == KL_OK);
    CHECK_INT(kl_worker_wait(worker, WAIT_MS), KL_OK);
    kl_worker_close(worker);
    for (int i = 0; i < 3; i++) {
        CHECK_INT(runs[i].count, 100);
        runs_free(&runs[i]);
    }
    rig_close(&rig);
}

static bool has_unserved(void *ctx) { return kl_worker_show(ctx).unserved == 2; }

TEST(a_kind_that_nobody_serves_waits_visibly_and_holds_up_only_its_key)
{
    struct rig rig;
    struct runs runs;
    kl_arena arena = {0};
    kl_key_status status = {.reason = ""};
    kl_queue_opts opts = {.size = sizeof opts, .lease_ms = 1000}; /* shards go round once a lease */
    if (!rig_open(&rig, RIG_MEMORY, &opts))
        return;
    runs_init(&runs);
    put_kind(rig.queue, "k", "unknown", "done unknown");
    put_kind(rig.queue, "k", "known", "done behind");
    put_kind(rig.queue, NULL, "unknown", "done unknown");
    put_kind(rig.queue, "other", "known", "done other");
    put_kind(rig.queue, NULL, "known", "done keyless");
    kl_worker *worker =
        start_worker(rig.queue, &(struct start){.fn = runs_handle, .ctx = &runs, .kind = "known", .name = "a"});
    runs_wait(&runs, 2);
    await_why(&rig, "k", KL_WHY_KIND);
    CHECK_INT(kl_key_show(rig.queue, kl_str("k"), &arena, &status), KL_OK);
    CHECK_CONTAINS(status.reason, "kind");
    CHECK_INT(status.waiting, 2);
    await_condition("two tasks wait for a handler", has_unserved, worker);
    CHECK_INT(runs_count(&runs), 2);
    kl_worker *other = start_worker(rig.queue, &(struct start){.fn = runs_handle, .ctx = &runs, .kind = "unknown"});
    runs_wait(&runs, 5);
    CHECK(runs_first(&runs, "done unknown") < runs_first(&runs, "done behind"));
    await_waiting(&rig, 0);
    drain_and_close(worker);
    drain_and_close(other);
    kl_arena_free(&arena);
    runs_free(&runs);
    rig_close(&rig);
}

enum { TWO_KINDS = 100 };

static bool has_met_both(void *ctx) { return kl_worker_show(ctx).unserved == 2 * TWO_KINDS; }

/* Nobody serves the one that is met last; whoever serves the other is told of it all the same. */
TEST(of_several_kinds_that_a_worker_does_not_serve_each_goes_to_one_that_does)
{
    struct rig rig;
    struct runs runs;
    kl_queue_opts opts = {.size = sizeof opts, .lease_ms = 1000};
    if (!rig_open(&rig, RIG_MEMORY, &opts))
        return;
    runs_init(&runs);
    for (int i = 0; i < 2 * TWO_KINDS; i++) {
        char key[16];
        snprintf(key, sizeof key, "%d", i);
        put_kind(rig.queue, key, i < TWO_KINDS ? "served" : "unserved", "done");
    }
    kl_worker *worker = start_worker(rig.queue, &(struct start){.fn = runs_handle, .ctx = &runs, .kind = "other"});
    await_condition("it has met both kinds", has_met_both, worker);
    kl_worker *serves = start_worker(rig.queue, &(struct start){.fn = runs_handle, .ctx = &runs, .kind = "served"});
    runs_wait(&runs, TWO_KINDS);
    await_waiting(&rig, TWO_KINDS);
    drain_and_close(worker);
    drain_and_close(serves);
    runs_free(&runs);
    rig_close(&rig);
}

enum { UNSERVED = 5000 };

static bool has_met_all(void *ctx) { return kl_worker_show(ctx).unserved == UNSERVED; }

/* There is nothing to remember of them: this worker never runs them, and the next one reads them again. */
TEST(tasks_without_a_key_of_a_kind_that_nobody_serves_take_no_memory)
{
    struct rig rig;
    struct runs runs;
    kl_queue_opts opts = {.size = sizeof opts, .lease_ms = 1000};
    if (!rig_open(&rig, RIG_MEMORY, &opts))
        return;
    runs_init(&runs);
    kl_put *puts = calloc(UNSERVED, sizeof *puts);
    for (int i = 0; i < UNSERVED; i++)
        puts[i] = (kl_put){.kind = kl_str("unknown"), .payload = kl_str("done unknown")};
    CHECK_INT(kl_queue_put(rig.queue, puts, UNSERVED - 1, (kl_bytes){0}, NULL), KL_OK);
    kl_task_id id = put_as(rig.queue, &puts[0]);
    const struct start known = {.fn = runs_handle, .ctx = &runs, .kind = "known", .window_max = 1024};
    kl_worker *worker = start_worker(rig.queue, &known);
    await_condition("it has met them all", has_met_all, worker);
    CHECK_INT(kl_worker_show(worker).held, 0);
    put_kind(rig.queue, NULL, "known", "done known"); /* what comes behind them is not held up */
    runs_wait(&runs, 1);
    bool running;
    CHECK_INT(kl_task_cancel(rig.queue, &id, &running), KL_OK); /* and one of them can be steered */
    await_waiting(&rig, UNSERVED - 1);
    kl_worker *other = start_worker(rig.queue, &(struct start){.fn = runs_handle, .ctx = &runs, .kind = "unknown"});
    await_waiting(&rig, 0);
    CHECK_INT(runs_of(&runs, "done unknown"), UNSERVED - 1);
    drain_and_close(worker);
    drain_and_close(other);
    free(puts);
    runs_free(&runs);
    rig_close(&rig);
}

TEST(workers_of_different_kinds_finish_a_queue_of_both)
{
    enum { TASKS = 400 };
    struct rig rig;
    struct runs runs;
    kl_queue_opts opts = {.size = sizeof opts, .lease_ms = 1000};
    if (!rig_open(&rig, RIG_MEMORY, &opts))
        return;
    runs_init(&runs);
    char key[16];
    for (int i = 0; i < TASKS; i++) {
        snprintf(key, sizeof key, "k%d", i % 40);
        put_kind(rig.queue, key, (i / 200 + i) % 2 ? "a" : "b", "done");
    }
    kl_worker *a = start_worker(rig.queue, &(struct start){.fn = runs_handle, .ctx = &runs, .kind = "a"});
    kl_worker *b = start_worker(rig.queue, &(struct start){.fn = runs_handle, .ctx = &runs, .kind = "b"});
    runs_wait(&runs, TASKS);
    await_waiting(&rig, 0);
    CHECK_INT(runs_count(&runs), TASKS);
    drain_and_close(a);
    drain_and_close(b);
    runs_free(&runs);
    rig_close(&rig);
}

/* --- Several queues --- */

/* Nothing ends before both queues are in memory. */
struct shares {
    pthread_mutex_t mutex;
    pthread_cond_t opened;
    bool open;
    unsigned all, first, first_of_3000;
};

static kl_outcome count_share(kl_work *work, void *ctx)
{
    struct shares *shares = ctx;
    pthread_mutex_lock(&shares->mutex);
    while (!shares->open)
        pthread_cond_wait(&shares->opened, &shares->mutex);
    shares->first += strcmp(kl_work_queue(work), "orders") == 0;
    if (++shares->all == 3000)
        shares->first_of_3000 = shares->first;
    pthread_mutex_unlock(&shares->mutex);
    return KL_DONE;
}

TEST(queues_share_a_worker_by_weight)
{
    struct rig rig;
    kl_queue *bills;
    struct shares shares = {.mutex = PTHREAD_MUTEX_INITIALIZER, .opened = PTHREAD_COND_INITIALIZER};
    if (!rig_open(&rig, RIG_MEMORY, NULL))
        return;
    REQUIRE(kl_queue_open(rig.store, "bills", NULL, &bills) == KL_OK);
    put_numbers(rig.queue, "o", 2000, 3);
    put_numbers(bills, "b", 2000, 3);
    kl_handler handler = {.fn = count_share, .ctx = &shares};
    kl_worker_queue served[] = {{.queue = rig.queue, .handlers = &handler, .handler_count = 1, .weight = 2},
                                {.queue = bills, .handlers = &handler, .handler_count = 1, .weight = 1}};
    kl_worker_opts opts = {.size = sizeof opts, .concurrency = 3, .until_empty = true};
    kl_worker *worker;
    REQUIRE(kl_worker_start(served, 2, &opts, &worker) == KL_OK);
    await_held(worker, 12000);
    pthread_mutex_lock(&shares.mutex);
    shares.open = true;
    pthread_cond_broadcast(&shares.opened);
    pthread_mutex_unlock(&shares.mutex);
    CHECK_INT(kl_worker_wait(worker, WAIT_MS), KL_OK);
    kl_worker_close(worker);
    CHECK_INT(shares.all, 12000);

    if (shares.first_of_3000 < 1700 || shares.first_of_3000 > 2300)
        test_fail(__FILE__, __LINE__, "%u of 3000 instead of about 2000", shares.first_of_3000);
    kl_queue_close(bills);
    rig_close(&rig);
}

TEST(a_queue_s_minimum_is_kept_free_for_it)
{
    struct rig rig;
    kl_queue *urgent;
    struct runs slow, quick;
    if (!rig_open(&rig, RIG_MEMORY, NULL))
        return;
    REQUIRE(kl_queue_open(rig.store, "urgent", NULL, &urgent) == KL_OK);
    runs_init(&slow);
    runs_init(&quick);
    for (int i = 0; i < 50; i++)
        put_task(rig.queue, NULL, "hold");
    kl_handler slow_handler = {.fn = runs_handle, .ctx = &slow}, quick_handler = {.fn = runs_handle, .ctx = &quick};
    kl_worker_queue served[] = {{.queue = rig.queue, .handlers = &slow_handler, .handler_count = 1, .weight = 1000},
                                {.queue = urgent, .handlers = &quick_handler, .handler_count = 1, .min = 2}};
    kl_worker_opts opts = {.size = sizeof opts, .concurrency = 4};
    kl_worker *worker;
    REQUIRE(kl_worker_start(served, 2, &opts, &worker) == KL_OK);
    runs_wait(&slow, 2);
    for (int i = 0; i < 2; i++)
        put_task(urgent, NULL, "hold");
    runs_wait(&quick, 2); /* though the other queue would take all it can get */
    CHECK_INT(slow.most, 2);
    runs_open(&quick, true);
    runs_open(&slow, true);
    runs_wait(&slow, 50);
    CHECK(slow.most <= 4);
    drain_and_close(worker);
    runs_free(&slow);
    runs_free(&quick);
    kl_queue_close(urgent);
    rig_close(&rig);
}

/* --- Refusals --- */

static void refuse(const kl_worker_queue *queues, size_t count, const kl_worker_opts *opts, const char *sentence)
{
    kl_worker *worker = NULL;
    CHECK_INT(kl_worker_start(queues, count, opts, &worker), KL_EINVAL);
    CHECK(worker == NULL);
    CHECK_CONTAINS(kl_error_text(), sentence);
    kl_worker_close(worker);
}

TEST(impossible_settings_are_refused_at_the_start)
{
    struct rig rig;
    kl_queue *bills;
    if (!rig_open(&rig, RIG_MEMORY, NULL))
        return;
    REQUIRE(kl_queue_open(rig.store, "bills", NULL, &bills) == KL_OK);
    kl_handler handlers[] = {{.kind = "a", .fn = runs_handle}, {.kind = "a", .fn = runs_handle}, {.kind = "b"}};
    kl_worker_queue two[] = {{.queue = rig.queue, .handlers = handlers, .handler_count = 1, .min = 3},
                             {.queue = bills, .handlers = handlers, .handler_count = 1, .min = 2}};
    kl_worker_opts opts = {.size = sizeof opts, .concurrency = 4};
    refuse(two, 2, &opts, "minimums come to 5 and the concurrency is 4");
    two[0].min = 2;
    two[1].min = 2;
    opts.concurrency = 4;
    two[0].min = 4;
    two[1].min = 0;
    refuse(two, 2, &opts, "bills has no minimum: it would never run");
    two[0].min = 0;
    two[1].queue = rig.queue;
    refuse(two, 2, &opts, "orders is named twice");
    kl_worker_queue one = {.queue = rig.queue, .handlers = handlers, .handler_count = 2};
    refuse(&one, 1, &opts, "two handlers for kind a");
    one = (kl_worker_queue){.queue = rig.queue, .handlers = &handlers[2], .handler_count = 1};
    refuse(&one, 1, &opts, "no function");
    one = (kl_worker_queue){.queue = rig.queue, .handlers = handlers};
    refuse(&one, 1, &opts, "0 handlers; give it 1");
    one = (kl_worker_queue){.queue = rig.queue, .handlers = handlers, .handler_count = 1, .shards = "0-zz"};
    refuse(&one, 1, &opts, "zz");
    one.shards = "";
    refuse(&one, 1, &opts, "");
    one.shards = "0-3";
    one.slices = 2;
    refuse(&one, 1, &opts, "both shards and a slice");
    one.shards = NULL;
    one.slice = 2;
    refuse(&one, 1, &opts, "workers are counted from 0");
    one.slice = -1;
    refuse(&one, 1, &opts, "workers are counted from 0");
    one.slice = one.slices = 0;
    one.weight = -1;
    refuse(&one, 1, &opts, "weight is -1");
    one.weight = 0;
    one.queue = NULL;
    refuse(&one, 1, &opts, "NULL");
    one.queue = rig.queue;
    refuse(&one, 0, &opts, "0 queues");
    refuse(&one, 1, &(kl_worker_opts){.size = sizeof opts, .window_max = 10}, "window_max is 10");
    refuse(&one, 1, &(kl_worker_opts){.size = sizeof opts, .concurrency = 2000}, "concurrency is 2000");
    refuse(&one, 1, &(kl_worker_opts){.size = sizeof opts, .stop_ms = -7}, "stop_ms is -7");
    refuse(&one, 1, &(kl_worker_opts){0}, "sizeof(kl_worker_opts)");
    kl_queue_close(bills);
    rig_close(&rig);
}
