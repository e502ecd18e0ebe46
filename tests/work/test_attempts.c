/* test_attempts.c - attempts, time-outs, results, and tasks that end their worker. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support.h"

static kl_found find(struct rig *rig, const kl_task_id *id, kl_arena *arena)
{
    kl_found found = {0};
    if (kl_queue_task(rig->queue, id, arena, &found) != KL_OK)
        test_fail(__FILE__, __LINE__, "task: %s", kl_error_text());
    return found;
}

static bool is(kl_bytes bytes, const char *text)
{
    return bytes.len == strlen(text) && memcmp(bytes.data, text, bytes.len) == 0;
}

TEST(a_task_is_retried_until_its_attempts_are_used_up_and_then_is_dead_with_its_error)
{
    struct rig rig;
    struct runs runs;
    kl_arena arena = {0};
    kl_queue_opts opts = {.size = sizeof opts, .attempts_max = 4, .backoff_base_ms = 1, .keep_done_ms = 3600000};
    if (!rig_open(&rig, RIG_DISK, &opts))
        return;
    runs_init(&runs);
    kl_task_id four = put_task(rig.queue, "a", "fail");
    kl_put twice = {.key = kl_str("b"), .payload = kl_str("retry two"), .attempts_max = 2};
    kl_task_id two = put_as(rig.queue, &twice);
    kl_task_id at_once = put_task(rig.queue, "c", "dead");
    kl_task_id result = put_task(rig.queue, "d", "result 42");
    kl_worker *worker = start_worker(rig.queue, &(struct start){.fn = runs_handle, .ctx = &runs, .until_empty = true});
    CHECK_INT(kl_worker_wait(worker, WAIT_MS), KL_OK);
    kl_worker_close(worker);
    CHECK_INT(runs_of(&runs, "fail"), 4);
    CHECK_INT(runs_of(&runs, "retry two"), 2);
    CHECK_INT(runs_of(&runs, "dead"), 1);
    for (uint32_t i = 0, attempt = 0; i < runs.count; i++)
        if (strcmp(runs.list[i].payload, "fail") == 0)
            CHECK_INT(runs.list[i].attempt, ++attempt);
    kl_found found = find(&rig, &four, &arena);
    CHECK_INT(found.task.state, KL_TASK_DEAD);
    CHECK_INT(found.task.attempts, 4);
    CHECK(is(found.task.error, "failed as told: fail"));
    found = find(&rig, &two, &arena);
    CHECK_INT(found.task.state, KL_TASK_DEAD);
    CHECK_INT(found.task.attempts, 2);
    found = find(&rig, &at_once, &arena);
    CHECK_INT(found.task.state, KL_TASK_DEAD);
    CHECK_INT(found.task.attempts, 1);
    CHECK(is(found.task.error, "dead as told: dead"));
    found = find(&rig, &result, &arena);
    CHECK_INT(found.task.state, KL_TASK_DONE);
    CHECK(is(found.task.result, "result 42"));
    kl_arena_free(&arena);
    runs_free(&runs);
    rig_close(&rig);
}

static kl_outcome fail_each_time_otherwise(kl_work *work, void *ctx)
{
    (void)ctx;
    if (kl_work_attempt(work) == 3 && kl_work_key(work).len == 1)
        return KL_DONE;
    kl_work_error(work, "cause%u", kl_work_attempt(work));
    return KL_RETRY;
}

static size_t dead_for(kl_queue *queue, const char *words)
{
    kl_arena arena = {0};
    kl_found found[4];
    kl_bytes cursor = {0};
    size_t count = 0;
    kl_finished which = {.state = KL_TASK_DEAD, .words = kl_str(words), .max = 4};
    CHECK_INT(kl_queue_finished(queue, &which, &arena, found, &count, &cursor), KL_OK);
    kl_arena_free(&arena);
    return count;
}

TEST(a_dead_letter_is_found_by_the_errors_of_its_first_32_attempts_and_of_the_last)
{
    struct rig rig;
    kl_queue_opts opts = {.size = sizeof opts, .attempts_max = 40, .backoff_base_ms = 1, .backoff_max_ms = 1};
    for (rig_kind kind = RIG_MEMORY; kind <= RIG_DISK; kind++) {
        if (!rig_open(&rig, kind, &opts))
            return;
        put_task(rig.queue, "ends dead", "x");
        put_task(rig.queue, "k", "ends well");
        kl_worker *worker =
            start_worker(rig.queue, &(struct start){.fn = fail_each_time_otherwise, .until_empty = true});
        CHECK_INT(kl_worker_wait(worker, WAIT_MS), KL_OK);
        kl_worker_close(worker);
        CHECK_INT(dead_for(rig.queue, "cause1"), 1);
        CHECK_INT(dead_for(rig.queue, "cause32"), 1);
        CHECK_INT(dead_for(rig.queue, "cause33"), 0);
        CHECK_INT(dead_for(rig.queue, "cause40"), 1);
        rig_close(&rig);
    }
}

TEST(done_tasks_are_not_kept_unless_that_is_asked_for)
{
    struct rig rig;
    struct runs runs;
    kl_arena arena = {0};
    kl_found found;
    if (!rig_open(&rig, RIG_MEMORY, NULL))
        return;
    runs_init(&runs);
    kl_task_id gone = put_task(rig.queue, "a", "done");
    kl_put put = {.payload = kl_str("done kept"), .keep_ms = 60000};
    kl_task_id kept = put_as(rig.queue, &put);
    kl_worker *worker = start_worker(rig.queue, &(struct start){.fn = runs_handle, .ctx = &runs, .until_empty = true});
    CHECK_INT(kl_worker_wait(worker, WAIT_MS), KL_OK);
    kl_worker_close(worker);
    CHECK_INT(kl_queue_task(rig.queue, &gone, &arena, &found), KL_ENOTFOUND);
    CHECK_INT(find(&rig, &kept, &arena).task.state, KL_TASK_DONE);
    kl_arena_free(&arena);
    runs_free(&runs);
    rig_close(&rig);
}

TEST(a_task_that_runs_too_long_is_told_so_and_tried_again)
{
    struct rig rig;
    struct runs runs;
    kl_arena arena = {0};
    kl_queue_opts opts = {.size = sizeof opts, .attempts_max = 2, .backoff_base_ms = 1};
    if (!rig_open(&rig, RIG_MEMORY, &opts))
        return;
    runs_init(&runs);
    kl_put put = {.key = kl_str("k"), .payload = kl_str("stuck"), .timeout_ms = 20};
    kl_task_id id = put_as(rig.queue, &put);
    put_task(rig.queue, "k", "done");
    kl_worker *worker = start_worker(rig.queue, &(struct start){.fn = runs_handle, .ctx = &runs, .until_empty = true});
    CHECK_INT(kl_worker_wait(worker, WAIT_MS), KL_OK);
    kl_worker_close(worker);
    CHECK_INT(runs_of(&runs, "stuck"), 2);
    CHECK_INT(runs_of(&runs, "done"), 1);
    kl_found found = find(&rig, &id, &arena);
    CHECK_INT(found.task.state, KL_TASK_DEAD);
    CHECK(is(found.task.error, "it ran longer than 20 ms"));
    kl_arena_free(&arena);
    runs_free(&runs);
    rig_close(&rig);
}

static kl_outcome tell_progress(kl_work *work, void *ctx)
{
    kl_work_progress(work, 42, "nearly half");
    CHECK_STR(kl_work_queue(work), "orders");
    CHECK_INT(kl_work_timeout_ms(work), KL_FOREVER);
    return runs_handle(work, ctx);
}

static bool shows_progress(void *ctx)
{
    struct rig *rig = ctx;
    kl_arena arena = {0};
    kl_key_status status = {.progress = ""};
    kl_rc rc = kl_key_show(rig->queue, kl_str("k"), &arena, &status);
    bool shown = rc == KL_OK && status.why == KL_WHY_RUNNING && status.percent == 42 &&
                 strcmp(status.progress, "nearly half") == 0 && status.running_ms >= 0;
    kl_arena_free(&arena);
    return shown;
}

TEST(progress_is_shown_while_a_task_runs)
{
    struct rig rig;
    struct runs runs;
    if (!rig_open(&rig, RIG_MEMORY, NULL))
        return;
    runs_init(&runs);
    put_task(rig.queue, "k", "hold");
    kl_worker *worker = start_worker(rig.queue, &(struct start){.fn = tell_progress, .ctx = &runs});
    runs_wait_for(&runs, "hold", 1);
    await_condition("its progress is shown", shows_progress, &rig);
    runs_open(&runs, true);
    await_why(&rig, "k", KL_WHY_IDLE);
    drain_and_close(worker);
    runs_free(&runs);
    rig_close(&rig);
}

static kl_outcome return_anything(kl_work *work, void *ctx)
{
    (void)ctx;
    return kl_work_key(work).len > 0 ? (kl_outcome)-1 : KL_DONE;
}

TEST(what_is_no_outcome_counts_as_a_failure_and_holds_up_nobody)
{
    struct rig rig;
    kl_arena arena = {0};
    if (!rig_open(&rig, RIG_MEMORY,
                  &(kl_queue_opts){.size = sizeof(kl_queue_opts), .attempts_max = 2, .backoff_base_ms = 1}))
        return;
    kl_task_id id = put_task(rig.queue, "k", "odd");
    put_task(rig.queue, NULL, "fine");
    kl_worker *worker = start_worker(rig.queue, &(struct start){.fn = return_anything});
    await_waiting(&rig, 0);
    CHECK_INT(kl_worker_drain(worker, WAIT_MS), KL_OK);
    CHECK_INT(kl_worker_show(worker).done, 1);
    kl_worker_close(worker);
    kl_found found = find(&rig, &id, &arena);
    CHECK_INT(found.task.state, KL_TASK_DEAD);
    CHECK_INT(found.task.attempts, 2);
    CHECK(is(found.task.error, "its handler returned -1, which is no outcome"));
    kl_arena_free(&arena);
    rig_close(&rig);
}

/* --- Stops --- */

TEST(a_drain_waits_for_what_runs_and_starts_nothing_more)
{
    struct rig rig;
    struct runs runs;
    if (!rig_open(&rig, RIG_MEMORY, NULL))
        return;
    runs_init(&runs);
    put_task(rig.queue, "k", "hold");
    put_task(rig.queue, "k", "done");
    kl_worker *worker = start_worker(rig.queue, &(struct start){.fn = runs_handle, .ctx = &runs});
    runs_wait_for(&runs, "hold", 1);
    CHECK_INT(kl_worker_drain(worker, 0), KL_ETIMEDOUT);
    CHECK_INT(kl_worker_drain(worker, 20), KL_ETIMEDOUT);
    runs_open(&runs, true);
    CHECK_INT(kl_worker_drain(worker, WAIT_MS), KL_OK);
    kl_worker_close(worker);
    CHECK_INT(runs_count(&runs), 1);
    CHECK_INT(rig_waiting(&rig), 1);
    runs_free(&runs);
    rig_close(&rig);
}

static void stop_amidst(rig_kind kind, bool by_close)
{
    struct rig rig;
    struct runs runs;
    kl_arena arena = {0};
    if (!rig_open(&rig, kind, NULL))
        return;
    runs_init(&runs);
    kl_task_id id = put_task(rig.queue, "k", "stuck");
    kl_worker *worker =
        start_worker(rig.queue, &(struct start){.fn = runs_handle, .ctx = &runs, .stop_ms = by_close ? 0 : 10});
    runs_wait_for(&runs, "stuck", 1);
    if (!by_close)
        CHECK_INT(kl_worker_drain(worker, WAIT_MS), KL_OK);
    kl_worker_close(worker);
    CHECK_INT(find(&rig, &id, &arena).task.attempts, 0);
    worker = start_worker(rig.queue, &(struct start){.fn = runs_handle, .ctx = &runs, .stop_ms = KL_NO_WAIT});
    runs_wait_for(&runs, "stuck", 2);
    CHECK_INT(runs.list[1].attempt, 1);
    drain_and_close(worker);
    CHECK_INT(find(&rig, &id, &arena).task.attempts, 0);
    kl_arena_free(&arena);
    runs_free(&runs);
    rig_close(&rig);
}

TEST(a_drain_gives_up_on_what_only_ends_when_cancelled_and_that_costs_no_attempt) { stop_amidst(RIG_MEMORY, false); }
TEST(a_close_in_the_middle_of_a_task_costs_no_attempt) { stop_amidst(RIG_DISK, true); }

/* --- Poison --- */

struct poison {
    int pipe;
};

static kl_outcome end_process(kl_work *work, void *ctx)
{
    struct poison *poison = ctx;
    if (kl_work_payload(work).len < 6 || memcmp(kl_work_payload(work).data, "poison", 6) != 0)
        return KL_DONE;
    if (write(poison->pipe, "x", 1) != 1)
        return KL_DEAD;
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

static int64_t shifted_now(void *ctx)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000 + *(int64_t *)ctx;
}

/* One life of a worker process. Its store's clock is ahead by shift_ms, so that the lease of the last one is over. When
 * somebody asks about the key before, its shard is taken and given back without running anything. */
static void live(const char *url, int64_t shift_ms, int pipe, bool asked)
{
    kl_store *store;
    kl_queue *queue;
    kl_worker *worker;
    kl_store_opts opts = {.size = sizeof opts, .now_ms = shifted_now, .now_ctx = &shift_ms};
    struct poison poison = {pipe};
    kl_handler handler = {.fn = end_process, .ctx = &poison};
    alarm(60); /* whatever goes wrong, it does not stay */
    if (kl_store_open(url, &opts, &store) != KL_OK || kl_queue_open(store, "orders", NULL, &queue) != KL_OK)
        _exit(2);
    kl_arena arena = {0};
    kl_key_status status;
    if (asked && kl_key_show(queue, kl_str("k"), &arena, &status) != KL_OK)
        _exit(4);
    kl_arena_free(&arena);
    kl_worker_queue served = {.queue = queue, .handlers = &handler, .handler_count = 1};
    kl_worker_opts wopts = {.size = sizeof wopts, .concurrency = 2, .until_empty = true};
    if (kl_worker_start(&served, 1, &wopts, &worker) != KL_OK || kl_worker_wait(worker, WAIT_MS) != KL_OK)
        _exit(3);
    kl_worker_close(worker);
    kl_queue_close(queue);
    kl_store_close(store);
    _exit(0);
}

static void end_workers(bool asked)
{
    enum { ATTEMPTS = 3, LIVES = 8 };
    char dir[WORKDIR_BYTES], url[WORKDIR_BYTES + 8];
    kl_queue_opts opts = {.size = sizeof opts, .attempts_max = ATTEMPTS, .backoff_base_ms = 1, .lease_ms = 2000};
    kl_store *store;
    kl_queue *queue;
    kl_arena arena = {0};
    kl_found found = {0};
    kl_queue_info info = {0};
    int fds[2], lives = 0, status = 1;
    REQUIRE(workdir_make(dir) && pipe(fds) == 0);
    snprintf(url, sizeof url, "disk:%s", dir);
    REQUIRE(kl_store_open(url, NULL, &store) == KL_OK && kl_queue_open(store, "orders", &opts, &queue) == KL_OK);
    put_task(queue, "k", "fine");
    kl_task_id id = put_task(queue, "k", "poison");
    put_task(queue, "k", "fine too");
    put_task(queue, "other", "fine");
    kl_queue_close(queue);
    kl_store_close(store);
    while (status != 0 && lives < LIVES) {
        pid_t pid = fork();
        REQUIRE(pid >= 0);
        if (pid == 0)
            live(url, lives * 10000, fds[1], asked);
        REQUIRE(waitpid(pid, &status, 0) == pid);
        CHECK(status == 0 || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
        lives++;
    }
    close(fds[1]);
    char runs[LIVES + 1];
    CHECK_INT(status, 0);
    ssize_t ran = read(fds[0], runs, sizeof runs);
    CHECK(ran >= ATTEMPTS && ran <= ATTEMPTS + 1);
    close(fds[0]);
    REQUIRE(kl_store_open(url, NULL, &store) == KL_OK && kl_queue_open(store, "orders", NULL, &queue) == KL_OK);
    CHECK_INT(kl_queue_task(queue, &id, &arena, &found), KL_OK);
    CHECK_INT(found.task.state, KL_TASK_DEAD);
    CHECK_INT(kl_queue_show(queue, &arena, &info), KL_OK);
    CHECK_INT(info.counts.ready + info.counts.retry + info.counts.due, 0);
    kl_arena_free(&arena);
    kl_queue_close(queue);
    kl_store_close(store);
    CHECK(workdir_remove(dir));
}

TEST(a_task_that_ends_its_worker_runs_out_of_attempts_and_its_key_goes_on) { end_workers(false); }
TEST(a_task_that_ends_its_worker_runs_out_of_attempts_though_others_have_its_shard_in_between) { end_workers(true); }
