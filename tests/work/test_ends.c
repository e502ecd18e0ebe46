/* test_ends.c - workers that end by themselves, schedules, metrics, and a process that runs out of memory. */
#include "base/base.h"
#include "keyline/cron.h"
#include "keyline/job.h"
#include "support.h"

static void run_until_empty(struct rig *rig, struct runs *runs, const char *kind)
{
    kl_worker *worker =
        start_worker(rig->queue, &(struct start){.fn = runs_handle, .ctx = runs, .kind = kind, .until_empty = true});
    CHECK_INT(kl_worker_wait(worker, WAIT_MS), KL_OK);
    kl_worker_close(worker);
}

TEST(a_worker_until_empty_ends_with_halted_paused_delayed_and_unserved_tasks_left)
{
    struct rig rig;
    struct runs runs;
    kl_queue_opts opts = {.size = sizeof opts, .head_policy = KL_HEAD_HALT};
    if (!rig_open(&rig, RIG_MEMORY, &opts))
        return;
    runs_init(&runs);
    kl_put puts[] = {{.key = kl_str("halted"), .kind = kl_str("a"), .payload = kl_str("dead")},
                     {.key = kl_str("halted"), .kind = kl_str("a"), .payload = kl_str("done")},
                     {.key = kl_str("paused"), .kind = kl_str("a"), .payload = kl_str("done")},
                     {.key = kl_str("paused"), .kind = kl_str("a"), .payload = kl_str("done")},
                     {.key = kl_str("unserved"), .kind = kl_str("b"), .payload = kl_str("done")},
                     {.kind = kl_str("b"), .payload = kl_str("done")},
                     {.kind = kl_str("a"), .payload = kl_str("done"), .delay_ms = 3600000},
                     {.key = kl_str("free"), .kind = kl_str("a"), .payload = kl_str("done free")}};
    CHECK_INT(kl_key_pause(rig.queue, kl_str("paused")), KL_OK);
    CHECK_INT(kl_queue_put(rig.queue, puts, 8, (kl_bytes){0}, NULL), KL_OK);
    run_until_empty(&rig, &runs, "a");
    CHECK_INT(runs_of(&runs, "done free"), 1);
    CHECK_INT(runs_of(&runs, "done"), 0);
    CHECK_INT(rig_waiting(&rig), 7);
    runs_free(&runs);
    rig_close(&rig);
}

TEST(a_worker_until_empty_waits_for_retries)
{
    struct rig rig;
    struct runs runs;
    kl_queue_opts opts = {.size = sizeof opts, .attempts_max = 3, .backoff_base_ms = 150};
    if (!rig_open(&rig, RIG_MEMORY, &opts))
        return;
    runs_init(&runs);
    put_task(rig.queue, "k", "fail");
    put_task(rig.queue, "k", "done");
    run_until_empty(&rig, &runs, NULL);
    CHECK_INT(runs_of(&runs, "fail"), 3);
    CHECK_INT(runs_of(&runs, "done"), 1);
    CHECK_INT(rig_waiting(&rig), 0);
    runs_free(&runs);
    rig_close(&rig);
}

TEST(a_worker_until_empty_waits_for_retries_of_tasks_without_a_key)
{
    struct rig rig;
    struct runs runs;
    kl_queue_opts opts = {.size = sizeof opts, .attempts_max = 2, .backoff_base_ms = 1500};
    if (!rig_open(&rig, RIG_MEMORY, &opts))
        return;
    runs_init(&runs);
    put_task(rig.queue, NULL, "fail");
    run_until_empty(&rig, &runs, NULL);
    CHECK_INT(runs_of(&runs, "fail"), 2);
    CHECK_INT(rig_waiting(&rig), 0);
    runs_free(&runs);
    rig_close(&rig);
}

TEST(a_worker_until_empty_of_a_paused_queue_ends)
{
    struct rig rig;
    struct runs runs;
    if (!rig_open(&rig, RIG_MEMORY, NULL))
        return;
    runs_init(&runs);
    put_task(rig.queue, "k", "done");
    CHECK_INT(kl_queue_pause(rig.queue), KL_OK);
    run_until_empty(&rig, &runs, NULL);
    CHECK_INT(runs_count(&runs), 0);
    CHECK_INT(rig_waiting(&rig), 1);
    runs_free(&runs);
    rig_close(&rig);
}

TEST(a_worker_until_empty_of_an_empty_queue_ends)
{
    struct rig rig;
    struct runs runs;
    if (!rig_open(&rig, RIG_DISK, NULL))
        return;
    runs_init(&runs);
    run_until_empty(&rig, &runs, NULL);
    CHECK_INT(runs_count(&runs), 0);
    runs_free(&runs);
    rig_close(&rig);
}

/* --- Schedules --- */

TEST(a_schedule_fires_once_for_two_workers)
{
    struct rig rig;
    struct runs runs;
    kl_queue_opts opts = {.size = sizeof opts, .lease_ms = 3600000}; /* the clock is moved by minutes */
    if (!rig_open(&rig, RIG_MEMORY_CLOCK, &opts))
        return;
    runs_init(&runs);
    kl_cron cron = {.size = sizeof cron, .name = "tidy", .when = "* * * * *", .task = {.payload = kl_str("done tick")}};
    CHECK_INT(kl_cron_add(rig.queue, &cron), KL_OK);
    kl_worker *first = start_worker(rig.queue, &(struct start){.fn = runs_handle, .ctx = &runs});
    kl_worker *second = start_worker(rig.queue, &(struct start){.fn = runs_handle, .ctx = &runs});
    await_shards(first, 8);
    await_shards(second, 8);
    for (size_t minute = 1; minute <= 3; minute++) {
        rig.now_ms += 60000;
        runs_wait(&runs, minute);
        await_waiting(&rig, 0);
        CHECK_INT(runs_count(&runs), minute);
    }
    drain_and_close(first);
    drain_and_close(second);
    CHECK_INT(runs_count(&runs), 3);
    runs_free(&runs);
    rig_close(&rig);
}

/* --- Metrics --- */

/* Every line is a comment or a name, labels in braces and a number; every family is told of before its first sample. */
static void check_metrics(const char *text)
{
    char family[64] = "", name[64], labels[128];
    unsigned long long value;
    size_t samples = 0;
    for (const char *line = text; *line;) {
        const char *end = strchr(line, '\n');
        char copy[256];
        REQUIRE(end && (size_t)(end - line) < sizeof copy);
        memcpy(copy, line, (size_t)(end - line));
        copy[end - line] = 0;
        line = end + 1;
        if (sscanf(copy, "# TYPE %63s", family) == 1 || strncmp(copy, "# HELP ", 7) == 0)
            continue;
        int used = 0;
        int fields = sscanf(copy, "%63[a-z_]{%127[^}]} %llu%n", name, labels, &value, &used);
        CHECK_INT(fields, 3);
        CHECK_INT(used, strlen(copy));
        CHECK_STR(name, family);
        CHECK_CONTAINS(labels, "queue=\"orders\"");
        samples++;
    }
    CHECK(samples >= 7);
}

TEST(metrics_are_well_formed_and_count)
{
    struct rig rig;
    struct runs runs;
    kl_arena arena = {0};
    kl_bytes text = {0};
    if (!rig_open(&rig, RIG_MEMORY, NULL))
        return;
    runs_init(&runs);
    for (int i = 0; i < 5; i++)
        put_task(rig.queue, "k", "done");
    put_task(rig.queue, "k", "dead");
    kl_worker *worker = start_worker(rig.queue, &(struct start){.fn = runs_handle, .ctx = &runs});
    await_waiting(&rig, 0);
    await_done(worker, 5);
    await_held(worker, 0);
    CHECK_INT(kl_worker_metrics(worker, &arena, &text), KL_OK);
    const char *metrics = text.data;
    CHECK_INT(strlen(metrics), text.len);
    check_metrics(metrics);
    CHECK_CONTAINS(metrics, "keyline_worker_settled_total{queue=\"orders\",outcome=\"done\"} 5\n");
    CHECK_CONTAINS(metrics, "keyline_worker_settled_total{queue=\"orders\",outcome=\"dead\"} 1\n");
    CHECK_CONTAINS(metrics, "keyline_worker_started_total{queue=\"orders\"} 6\n");
    CHECK_CONTAINS(metrics, "keyline_worker_shards{queue=\"orders\"} 16\n");
    drain_and_close(worker);
    kl_arena_free(&arena);
    runs_free(&runs);
    rig_close(&rig);
}

/* --- Out of memory --- */

static void ignore(void *ctx, kl_log_level level, const char *text)
{
    (void)ctx;
    (void)level;
    (void)text;
}

enum { TASKS = 40 };

/* Allocates nothing itself. */
static bool all_ended(void *ctx)
{
    kl_worker_info info = kl_worker_show(ctx);
    return info.done + info.dead == TASKS;
}

/* The n-th allocation fails, once, wherever that is: nothing is lost and everything ends. */
TEST(a_worker_survives_any_one_failed_allocation)
{
    uint64_t step = 1 + 1000 / (test_rounds(80) + 1), failed = 0;
    bool calm = false;
    for (uint64_t n = 1; !calm && n < 100000; n += step) {
        struct rig rig;
        struct runs runs;
        kl_worker *worker = NULL;
        if (!rig_open(&rig, RIG_MEMORY, NULL))
            return;
        runs_init(&runs);
        char key[16];
        for (int i = 0; i < TASKS; i++) {
            snprintf(key, sizeof key, "k%d", i % 7);
            put_task(rig.queue, key, i == 3 ? "retry" : i == 5 ? "dead" : "done");
        }
        kl_handler handler = {.fn = runs_handle, .ctx = &runs};
        kl_worker_queue served = {.queue = rig.queue, .handlers = &handler, .handler_count = 1};
        kl_worker_opts opts = {.size = sizeof opts, .concurrency = 2, .log = ignore};
        kl__alloc_fail_at(n);
        kl_rc rc = kl_worker_start(&served, 1, &opts, &worker);
        if (rc == KL_OK) {
            await_condition("all tasks have ended", all_ended, worker);
        } else {
            failed++;
            CHECK_INT(rc, KL_ENOMEM);
            CHECK_CONTAINS(kl_error_text(), "memory");
        }
        calm = kl__alloc_fail_at(0) < n;
        drain_and_close(worker);
        if (rc == KL_OK) {
            CHECK(runs_count(&runs) >= TASKS + 7);
            CHECK_INT(rig_waiting(&rig), 0);
        }
        if (rc != KL_OK) { /* what could not be started leaves nothing in the way */
            worker = start_worker(rig.queue, &(struct start){.fn = runs_handle, .ctx = &runs});
            await_waiting(&rig, 0);
            drain_and_close(worker);
        }
        runs_free(&runs);
        rig_close(&rig);
        if (test_failed())
            fprintf(stderr, "# allocation %" PRIu64 "\n", n);
        if (test_failed())
            return;
    }
    CHECK(failed > 0);
}

/* --- Jobs that are removed --- */

/* A running task, one behind it, one of another key, one that is delayed, and one of no job. */
static void remove_a_job(bool with_worker)
{
    struct rig rig;
    struct runs runs;
    kl_put tasks[] = {{.key = kl_str("k"), .payload = kl_str("hold first")},
                      {.key = kl_str("k"), .payload = kl_str("done second")},
                      {.key = kl_str("other"), .payload = kl_str("hold other")},
                      {.key = kl_str("later"), .payload = kl_str("done later"), .delay_ms = 3600000}};
    kl_job_spec spec = {.size = sizeof spec, .tasks = tasks, .count = 4};
    kl_queue_opts opts = {.size = sizeof opts, .keep_done_ms = 3600000, .partitions = 2};
    kl_job_answer answer;
    kl_arena arena = {0};
    kl_queue_info info = {0};
    if (!rig_open(&rig, RIG_MEMORY, &opts))
        return;
    runs_init(&runs);
    CHECK_INT(kl_job_submit(rig.queue, &spec, &answer, NULL), KL_OK);
    kl_worker *worker = NULL;
    if (with_worker)
        worker = start_worker(rig.queue, &(struct start){.fn = runs_handle, .ctx = &runs, .concurrency = 2});
    if (with_worker)
        runs_wait(&runs, 2);
    kl_task_id stays = put_task(rig.queue, "k", "done stays");
    CHECK_INT(kl_job_remove(rig.queue, &answer.job), KL_OK);
    CHECK_INT(rig_waiting(&rig), with_worker ? 3 : 1);
    CHECK_INT(kl_job_remove(rig.queue, &answer.job), KL_ENOTFOUND);
    runs_open(&runs, true);
    if (!with_worker)
        worker = start_worker(rig.queue, &(struct start){.fn = runs_handle, .ctx = &runs});
    await_state(rig.queue, &stays, KL_TASK_DONE);
    await_waiting(&rig, 0);
    CHECK_INT(runs_of(&runs, "done second"), 0);
    drain_and_close(worker);
    CHECK_INT(kl_queue_show(rig.queue, &arena, &info), KL_OK);
    CHECK(info.counts.done == 1 && info.counts.cancelled == 0);
    kl_arena_free(&arena);
    runs_free(&runs);
    rig_close(&rig);
}

TEST(a_removed_job_leaves_nothing_that_waits_or_is_kept) { remove_a_job(true); }
TEST(a_removed_job_leaves_nothing_without_a_worker_either) { remove_a_job(false); }

/* --- Permits --- */

/* Holds `count` tasks of different keys in shards from `first` on, eight of them. */
static void put_holds(kl_queue *queue, uint32_t first, int count)
{
    const kl_layout layout = {1, 1};
    char key[16];
    for (int i = 0; count > 0; i++) {
        snprintf(key, sizeof key, "key %d", i);
        if (kl_shard_of(&layout, kl_str(key)) - first >= 8)
            continue;
        put_task(queue, key, "hold");
        count--;
    }
}

static bool nothing_runs(void *ctx)
{
    struct runs *runs = ctx;
    pthread_mutex_lock(&runs->mutex);
    bool nothing = runs->running == 0;
    pthread_mutex_unlock(&runs->mutex);
    return nothing;
}

/* The lease is so long that no beat comes by itself. */
TEST(an_idle_worker_gives_its_permits_to_a_busy_one_at_once)
{
    struct rig rig;
    struct runs runs;
    kl_queue_opts opts = {.size = sizeof opts, .concurrency = 2, .lease_ms = 3600000};
    if (!rig_open(&rig, RIG_MEMORY, &opts))
        return;
    runs_init(&runs);
    kl_worker *low = start_worker(rig.queue, &(struct start){.fn = runs_handle, .ctx = &runs, .shards = "0-7"});
    kl_worker *high = start_worker(rig.queue, &(struct start){.fn = runs_handle, .ctx = &runs, .shards = "8-f"});
    await_shards(low, 8);
    await_shards(high, 8);
    for (size_t round = 0; round < 4; round++) {
        put_holds(rig.queue, round % 2 ? 8 : 0, 3);
        runs_wait(&runs, 3 * round + 2);
        runs_open(&runs, true);
        runs_wait(&runs, 3 * round + 3);
        await_condition("nobody has anything to do", nothing_runs, &runs);
        runs_open(&runs, false);
    }
    CHECK_INT(runs.most, 2);
    drain_and_close(low);
    drain_and_close(high);
    runs_free(&runs);
    rig_close(&rig);
}
