/* test_control.c - steering tasks and keys, with a worker running and with none. */
#include <string.h>
#include <time.h>

#include "keyline/job.h"
#include "store/lossy.h"
#include "support.h"

/* Each claim is made twice: once a worker owns the shards, once nobody does and the caller stands in. */
struct stage {
    struct rig rig;
    struct runs runs;
    kl_worker *worker; /* NULL: none */
};

static bool stage_open(struct stage *stage, bool with_worker)
{
    kl_queue_opts opts = {.size = sizeof opts, .keep_done_ms = 3600000, .backoff_base_ms = 600000};
    stage->worker = NULL;
    if (!rig_open(&stage->rig, RIG_MEMORY, &opts))
        return false;
    runs_init(&stage->runs);
    if (with_worker) {
        stage->worker = start_worker(stage->rig.queue, &(struct start){.fn = runs_handle, .ctx = &stage->runs});
        await_shards(stage->worker, 16);
    }
    return true;
}

static void stage_close(struct stage *stage)
{
    runs_open(&stage->runs, true);
    drain_and_close(stage->worker);
    runs_free(&stage->runs);
    rig_close(&stage->rig);
}

static kl_key_status show(struct stage *stage, const char *key)
{
    static kl_arena arenas[1];
    kl_key_status status = {.why = (kl_why)-1};
    if (kl_key_show(stage->rig.queue, kl_str(key), &arenas[0], &status) != KL_OK)
        test_fail(__FILE__, __LINE__, "show: %s", kl_error_text());
    kl_arena_free(&arenas[0]);
    status.key = (kl_bytes){0};
    status.error = status.owner = status.progress = NULL;
    return status;
}

/* A key whose first task is in back-off, or, with no worker, one that was just put. */
static void begin_line(struct stage *stage, kl_task_id ret_ids[3])
{
    ret_ids[0] = put_task(stage->rig.queue, "k", "fail first");
    ret_ids[1] = put_task(stage->rig.queue, "k", "done second");
    ret_ids[2] = put_task(stage->rig.queue, "k", "done third");
    if (stage->worker)
        await_why(&stage->rig, "k", KL_WHY_RETRYING);
}

static void cancel_waiting(bool with_worker)
{
    struct stage stage;
    kl_task_id ids[3];
    bool running = true;
    if (!stage_open(&stage, with_worker))
        return;
    begin_line(&stage, ids);
    CHECK_INT(kl_task_cancel(stage.rig.queue, &ids[1], &running), KL_OK);
    CHECK(!running);
    await_state(stage.rig.queue, &ids[1], KL_TASK_CANCELLED);
    CHECK_INT(kl_task_cancel(stage.rig.queue, &ids[1], &running), KL_ENOTFOUND);
    kl_task_id unknown = ids[1];
    unknown.bytes[15] ^= 1;
    CHECK_INT(kl_task_cancel(stage.rig.queue, &unknown, &running), KL_ENOTFOUND);
    await_waiting(&stage.rig, 2);
    CHECK_INT(kl_task_cancel(stage.rig.queue, &ids[0], &running), KL_OK);
    if (with_worker)
        runs_wait_for(&stage.runs, "done third", 1);
    await_state(stage.rig.queue, &ids[0], KL_TASK_CANCELLED);
    CHECK_INT(runs_of(&stage.runs, "done second"), 0);
    stage_close(&stage);
}

TEST(a_waiting_task_is_cancelled_by_its_worker) { cancel_waiting(true); }
TEST(a_waiting_task_is_cancelled_without_a_worker) { cancel_waiting(false); }

static atomic_bool settle_held, settle_may_go;

/* The first one takes until whoever is answered too early has been seen, or nobody was for a while. */
static kl_rc settle_slowly(void *self, kl_settle *batches, size_t count)
{
    enum { LOOKS = 500 };
    const struct lossy *slow = self;
    struct timespec pause = {.tv_nsec = 1000000};
    atomic_store(&settle_held, true);
    for (int i = 0; i < LOOKS && !atomic_load(&settle_may_go); i++)
        nanosleep(&pause, NULL);
    return kl_store_settle(slow->inner, batches, count);
}

static bool is_held(void *ctx) { return atomic_load((atomic_bool *)ctx); }

TEST(what_was_asked_for_is_durable_when_it_is_answered_though_other_shards_are_being_settled)
{
    struct rig rig;
    struct runs runs;
    struct lossy slow;
    kl_store *store = NULL;
    kl_queue *queue = NULL;
    kl_arena arena = {0};
    kl_found found = {0};
    bool running = true;
    kl_queue_opts opts = {.size = sizeof opts, .keep_done_ms = 3600000};
    if (!rig_open(&rig, RIG_MEMORY, &opts))
        return;
    runs_init(&runs);
    atomic_store(&settle_held, false);
    atomic_store(&settle_may_go, false);
    REQUIRE(lossy_open(&slow, rig.store, 1, &store) == KL_OK);
    slow.replies_lost = slow.requests_lost = 0;
    slow.engine.settle = settle_slowly;
    REQUIRE(kl_queue_find(store, "orders", &queue) == KL_OK);
    const kl_layout layout = {1, 1};
    CHECK(kl_shard_of(&layout, kl_str("k")) != kl_shard_of(&layout, kl_str("other")));
    CHECK_INT(kl_key_pause(queue, kl_str("k")), KL_OK);
    kl_task_id id = put_task(queue, "k", "done");
    kl_worker *worker = start_worker(queue, &(struct start){.fn = runs_handle, .ctx = &runs});
    await_shards(worker, 16);
    put_task(queue, "other", "done");
    await_condition("a settle is under way", is_held, &settle_held);
    CHECK_INT(kl_task_cancel(queue, &id, &running), KL_OK);
    CHECK_INT(kl_queue_task(rig.queue, &id, &arena, &found), KL_OK);
    CHECK_INT(found.task.state, KL_TASK_CANCELLED);
    atomic_store(&settle_may_go, true);
    drain_and_close(worker);
    kl_arena_free(&arena);
    kl_queue_close(queue);
    kl_store_close(store);
    runs_free(&runs);
    rig_close(&rig);
}

TEST(a_running_task_is_asked_to_stop_and_ends_as_cancelled)
{
    struct stage stage;
    bool running = false;
    if (!stage_open(&stage, true))
        return;
    kl_task_id id = put_task(stage.rig.queue, "k", "stuck");
    put_task(stage.rig.queue, "k", "done");
    runs_wait_for(&stage.runs, "stuck", 1);
    CHECK_INT(kl_task_cancel(stage.rig.queue, &id, &running), KL_OK);
    CHECK(running);
    await_state(stage.rig.queue, &id, KL_TASK_CANCELLED);
    runs_wait_for(&stage.runs, "done", 1);
    CHECK_INT(runs_of(&stage.runs, "stuck"), 1);
    stage_close(&stage);
}

/* The task "probe" hears that the worker gives up; the other one ends after that. */
struct ender {
    atomic_int running;
    atomic_bool given_up;
    kl_outcome says;
};

static kl_outcome end_when_given_up(kl_work *work, void *ctx)
{
    struct ender *ender = ctx;
    struct timespec pause = {.tv_nsec = 1000000};
    bool probes = kl_work_payload(work).len == strlen("probe");
    atomic_fetch_add(&ender->running, 1);
    while (probes ? !kl_work_cancelled(work) : !atomic_load(&ender->given_up))
        nanosleep(&pause, NULL);
    if (probes)
        atomic_store(&ender->given_up, true);
    return probes ? KL_RETRY : ender->says;
}

static bool both_run(void *ctx) { return atomic_load(&((struct ender *)ctx)->running) == 2; }

static void end_while_closing(bool cancelled, kl_outcome says, kl_task_state state)
{
    struct rig rig;
    struct ender ender = {.says = says};
    kl_arena arena = {0};
    kl_found found = {0};
    kl_queue_opts opts = {.size = sizeof opts, .keep_done_ms = 3600000};
    bool running = false;
    if (!rig_open(&rig, RIG_MEMORY, &opts))
        return;
    kl_task_id probe = put_task(rig.queue, "probe", "probe"), id = put_task(rig.queue, "k", "k");
    kl_worker *worker = start_worker(rig.queue, &(struct start){.fn = end_when_given_up, .ctx = &ender});
    await_condition("both run", both_run, &ender);
    if (cancelled)
        CHECK_INT(kl_task_cancel(rig.queue, &id, &running), KL_OK);
    CHECK(running == cancelled);
    kl_worker_close(worker);
    CHECK_INT(kl_queue_task(rig.queue, &probe, &arena, &found), KL_OK);
    CHECK_INT(found.task.state, KL_TASK_WAITING);
    CHECK_INT(kl_queue_task(rig.queue, &id, &arena, &found), KL_OK);
    CHECK_INT(found.task.state, state);
    kl_arena_free(&arena);
    rig_close(&rig);
}

TEST(a_cancelled_task_ends_as_cancelled_though_its_worker_closes)
{
    end_while_closing(true, KL_RETRY, KL_TASK_CANCELLED);
}
TEST(a_task_that_is_dead_is_dead_though_its_worker_closes) { end_while_closing(false, KL_DEAD, KL_TASK_DEAD); }
TEST(a_task_that_is_given_up_waits_again) { end_while_closing(false, KL_RETRY, KL_TASK_WAITING); }

TEST(a_running_task_that_is_done_all_the_same_stays_done)
{
    struct stage stage;
    bool running = false;
    if (!stage_open(&stage, true))
        return;
    kl_task_id id = put_task(stage.rig.queue, "k", "finish");
    runs_wait_for(&stage.runs, "finish", 1);
    CHECK_INT(kl_task_cancel(stage.rig.queue, &id, &running), KL_OK);
    CHECK(running);
    await_state(stage.rig.queue, &id, KL_TASK_DONE);
    stage_close(&stage);
}

TEST(a_worker_that_is_stopping_is_asked_as_before_while_something_runs)
{
    struct stage stage;
    bool running = false;
    if (!stage_open(&stage, true))
        return;
    kl_task_id id = put_task(stage.rig.queue, "k", "stuck"), behind = put_task(stage.rig.queue, "k", "done");
    runs_wait_for(&stage.runs, "stuck", 1);
    CHECK_INT(kl_worker_drain(stage.worker, 20), KL_ETIMEDOUT);
    CHECK_INT(show(&stage, "k").why, KL_WHY_RUNNING);
    CHECK_INT(kl_task_cancel(stage.rig.queue, &behind, &running), KL_OK);
    CHECK(!running);
    CHECK_INT(kl_task_cancel(stage.rig.queue, &id, &running), KL_OK);
    CHECK(running);
    CHECK_INT(kl_worker_drain(stage.worker, WAIT_MS), KL_OK);
    await_state(stage.rig.queue, &id, KL_TASK_CANCELLED);
    CHECK_INT(runs_count(&stage.runs), 1);
    stage_close(&stage);
}

static bool has_retried(void *ctx) { return kl_worker_show(ctx).retried == 1; }

TEST(a_task_without_a_key_is_tried_at_once_when_that_is_asked_for)
{
    struct stage stage;
    kl_task_id again;
    if (!stage_open(&stage, true))
        return;
    kl_task_id id = put_task(stage.rig.queue, NULL, "fail");
    await_condition("it has failed", has_retried, stage.worker);
    CHECK_INT(kl_task_retry(stage.rig.queue, &id, &again), KL_OK);
    runs_wait_for(&stage.runs, "fail", 2);
    CHECK_INT(stage.runs.list[1].attempt, 1);
    stage_close(&stage);
}

static void retry_waiting(bool with_worker)
{
    struct stage stage;
    kl_task_id ids[3], id;
    if (!stage_open(&stage, with_worker))
        return;
    begin_line(&stage, ids);
    CHECK_INT(kl_task_retry(stage.rig.queue, &ids[0], &id), KL_OK);
    CHECK(memcmp(&id, &ids[0], sizeof id) == 0);
    if (with_worker) {
        runs_wait_for(&stage.runs, "fail first", 2);
        CHECK_INT(stage.runs.list[1].attempt, 1); /* with all attempts before it */
        await_why(&stage.rig, "k", KL_WHY_RETRYING);
        CHECK_INT(kl_key_retry(stage.rig.queue, kl_str("k"), NULL), KL_OK);
        runs_wait_for(&stage.runs, "fail first", 3);
    }
    kl_put later = {.key = kl_str("later"), .payload = kl_str("done later"), .delay_ms = 3600000};
    kl_task_id delayed = put_as(stage.rig.queue, &later);
    await_why(&stage.rig, "later", KL_WHY_DELAYED);
    CHECK_INT(kl_task_retry(stage.rig.queue, &delayed, &id), KL_OK);
    if (with_worker)
        runs_wait_for(&stage.runs, "done later", 1);
    else
        CHECK(show(&stage, "later").why != KL_WHY_DELAYED);
    CHECK_INT(runs_of(&stage.runs, "done second"), 0);
    stage_close(&stage);
}

TEST(a_task_that_waits_for_its_time_is_tried_now_by_its_worker) { retry_waiting(true); }
TEST(a_task_that_waits_for_its_time_is_made_ready_without_a_worker) { retry_waiting(false); }

/* Whoever is told that it is tried now must not wait for a second run. */
TEST(a_running_task_is_not_said_to_be_tried_again)
{
    struct stage stage;
    kl_task_id again;
    if (!stage_open(&stage, true))
        return;
    kl_task_id id = put_task(stage.rig.queue, "k", "hold");
    runs_wait_for(&stage.runs, "hold", 1);
    CHECK_INT(kl_task_retry(stage.rig.queue, &id, &again), KL_EBUSY);
    CHECK_CONTAINS(kl_error_text(), "running already");
    CHECK_INT(kl_key_retry(stage.rig.queue, kl_str("k"), NULL), KL_EBUSY);
    stage_close(&stage);
}

TEST(a_key_is_resumed_while_its_first_task_runs)
{
    struct stage stage;
    if (!stage_open(&stage, true))
        return;
    put_task(stage.rig.queue, "k", "hold");
    put_task(stage.rig.queue, "k", "done behind");
    runs_wait_for(&stage.runs, "hold", 1);
    CHECK_INT(kl_key_pause(stage.rig.queue, kl_str("k")), KL_OK);
    CHECK_INT(kl_key_resume(stage.rig.queue, kl_str("k")), KL_OK);
    runs_open(&stage.runs, true);
    runs_wait_for(&stage.runs, "done behind", 1);
    stage_close(&stage);
}

/* Order inside a key is (priority, due time, position). */
static void retry_delayed_behind(bool with_worker)
{
    struct stage stage;
    kl_task_id id;
    if (!stage_open(&stage, with_worker))
        return;
    put_task(stage.rig.queue, "k", "hold first");
    if (with_worker)
        runs_wait_for(&stage.runs, "hold first", 1);
    put_task(stage.rig.queue, "k", "done second");
    kl_put later = {.key = kl_str("k"), .payload = kl_str("done later"), .delay_ms = 3600000};
    kl_put urgent = {.key = kl_str("k"), .payload = kl_str("done urgent"), .delay_ms = 3600000, .priority = -1};
    kl_task_id delayed = put_as(stage.rig.queue, &later), first = put_as(stage.rig.queue, &urgent);
    CHECK_INT(kl_task_retry(stage.rig.queue, &delayed, &id), KL_EBUSY);
    CHECK_CONTAINS(kl_error_text(), "other tasks of its key come before it");
    CHECK_INT(kl_task_retry(stage.rig.queue, &first, &id), KL_OK);
    runs_open(&stage.runs, true);
    if (!stage.worker)
        stage.worker = start_worker(stage.rig.queue, &(struct start){.fn = runs_handle, .ctx = &stage.runs});
    runs_wait(&stage.runs, 3);
    await_why(&stage.rig, "k", KL_WHY_DELAYED);
    CHECK(runs_first(&stage.runs, "done urgent") < runs_first(&stage.runs, "done second"));
    CHECK_INT(runs_of(&stage.runs, "done later"), 0);
    CHECK_INT(kl_task_retry(stage.rig.queue, &delayed, &id), KL_OK);
    runs_wait_for(&stage.runs, "done later", 1);
    stage_close(&stage);
}

TEST(a_delayed_task_that_is_tried_now_passes_nobody_of_its_key) { retry_delayed_behind(true); }
TEST(without_a_worker_a_delayed_task_that_is_tried_now_passes_nobody_either) { retry_delayed_behind(false); }

TEST(a_finished_task_is_put_again)
{
    struct stage stage;
    kl_task_id id = {{0}}, again = {{0}};
    if (!stage_open(&stage, true))
        return;
    id = put_task(stage.rig.queue, "k", "dead");
    await_state(stage.rig.queue, &id, KL_TASK_DEAD);
    CHECK_INT(kl_task_retry(stage.rig.queue, &id, &again), KL_OK);
    CHECK(memcmp(&id, &again, sizeof id) != 0);
    runs_wait_for(&stage.runs, "dead", 2);
    stage_close(&stage);
}

static void move(bool with_worker)
{
    struct stage stage;
    kl_task_id ids[3], moved;
    kl_queue *to;
    kl_arena arena = {0};
    kl_found found;
    if (!stage_open(&stage, with_worker))
        return;
    REQUIRE(kl_queue_open(stage.rig.store, "elsewhere", NULL, &to) == KL_OK);
    begin_line(&stage, ids);
    CHECK_INT(kl_task_move(stage.rig.queue, &ids[1], to, &moved), KL_OK);
    CHECK_INT(kl_queue_task(to, &moved, &arena, &found), KL_OK);
    CHECK(found.task.entry.payload.len == 11 && memcmp(found.task.entry.payload.data, "done second", 11) == 0);
    await_state(stage.rig.queue, &ids[1], KL_TASK_UNKNOWN);
    await_waiting(&stage.rig, 2);
    if (with_worker) {
        kl_task_id held = put_task(stage.rig.queue, "held", "hold");
        runs_wait_for(&stage.runs, "hold", 1);
        CHECK_INT(kl_task_move(stage.rig.queue, &held, to, &moved), KL_EBUSY);
    }
    kl_arena_free(&arena);
    kl_queue_close(to);
    stage_close(&stage);
}

/* --- Keys --- */

static void skip_and_drain(bool with_worker)
{
    struct stage stage;
    kl_task_id ids[3], skipped;
    uint64_t count = 0;
    if (!stage_open(&stage, with_worker))
        return;
    begin_line(&stage, ids);
    CHECK_INT(kl_key_skip(stage.rig.queue, kl_str("nobody"), NULL, &skipped), KL_ENOTFOUND);
    CHECK_INT(kl_key_skip(stage.rig.queue, kl_str("k"), NULL, &skipped), KL_OK);
    CHECK(memcmp(&skipped, &ids[0], sizeof skipped) == 0);
    await_state(stage.rig.queue, &ids[0], KL_TASK_CANCELLED);
    if (with_worker)
        runs_wait_for(&stage.runs, "done third", 1);
    CHECK_INT(kl_key_drain(stage.rig.queue, kl_str("nobody"), NULL, false, &count), KL_ENOTFOUND);
    CHECK_INT(kl_key_drain(stage.rig.queue, (kl_bytes){0}, NULL, false, &count), KL_EINVAL);
    if (!with_worker) {
        CHECK_INT(kl_key_drain(stage.rig.queue, kl_str("k"), NULL, true, &count), KL_OK);
        CHECK_INT(count, 2);
        await_state(stage.rig.queue, &ids[2], KL_TASK_DEAD);
    }
    await_waiting(&stage.rig, 0);
    stage_close(&stage);
}

TEST(a_key_is_skipped_by_its_worker) { skip_and_drain(true); }
TEST(a_key_is_skipped_and_drained_without_a_worker) { skip_and_drain(false); }

TEST(a_key_whose_first_task_runs_is_not_skipped)
{
    struct stage stage;
    kl_task_id skipped;
    if (!stage_open(&stage, true))
        return;
    put_task(stage.rig.queue, "k", "hold");
    put_task(stage.rig.queue, "k", "done");
    runs_wait_for(&stage.runs, "hold", 1);
    CHECK_INT(kl_key_skip(stage.rig.queue, kl_str("k"), NULL, &skipped), KL_EBUSY);
    CHECK_INT(show(&stage, "k").why, KL_WHY_RUNNING);
    uint64_t count = 0;
    CHECK_INT(kl_key_drain(stage.rig.queue, kl_str("k"), NULL, false, &count), KL_OK);
    CHECK_INT(count, 1);
    runs_open(&stage.runs, true);
    await_waiting(&stage.rig, 0);
    CHECK_INT(runs_of(&stage.runs, "done"), 0);
    stage_close(&stage);
}

static void check_head(struct rig *rig, const char *key, const kl_task_id *head)
{
    kl_arena arena = {0};
    kl_key_status status = {0};
    CHECK_INT(kl_key_show(rig->queue, kl_str(key), &arena, &status), KL_OK);
    CHECK(memcmp(&status.head, head, sizeof *head) == 0);
    kl_arena_free(&arena);
}

TEST(a_paused_key_starts_nothing_while_others_run_and_goes_on_when_resumed)
{
    enum { LINE = 300 };
    struct stage stage;
    if (!stage_open(&stage, true))
        return;
    put_task(stage.rig.queue, "k", "hold k");
    runs_wait_for(&stage.runs, "hold k", 1);
    for (int i = 0; i < LINE; i++)
        put_task(stage.rig.queue, "k", "done k");
    CHECK_INT(kl_key_pause(stage.rig.queue, kl_str("k")), KL_OK);
    CHECK_INT(kl_key_pause(stage.rig.queue, kl_str("before")), KL_OK); /* with nothing there */
    CHECK_INT(kl_key_pause(stage.rig.queue, kl_str("before")), KL_OK);
    await_why(&stage.rig, "before", KL_WHY_PAUSED); /* the worker knows */
    put_task(stage.rig.queue, "other", "done other");
    runs_wait_for(&stage.runs, "done other", 1);
    kl_task_id first = put_task(stage.rig.queue, "before", "done before");
    await_why(&stage.rig, "before", KL_WHY_PAUSED);
    check_head(&stage.rig, "before", &first);
    runs_open(&stage.runs, true);
    await_why(&stage.rig, "k", KL_WHY_PAUSED);
    await_waiting(&stage.rig, LINE + 1);
    CHECK_INT(runs_of(&stage.runs, "done k"), 0);
    CHECK_INT(kl_key_resume(stage.rig.queue, kl_str("k")), KL_OK);
    runs_wait_for(&stage.runs, "done k", LINE);
    CHECK_INT(runs_of(&stage.runs, "done before"), 0);
    CHECK_INT(kl_key_resume(stage.rig.queue, kl_str("before")), KL_OK);
    runs_wait_for(&stage.runs, "done before", 1);
    CHECK_INT(kl_key_resume(stage.rig.queue, kl_str("never paused")), KL_OK);
    stage_close(&stage);
}

TEST(a_key_paused_without_a_worker_is_paused_for_the_one_that_comes)
{
    struct stage stage;
    if (!stage_open(&stage, false))
        return;
    put_task(stage.rig.queue, "k", "done k");
    put_task(stage.rig.queue, "other", "done other");
    CHECK_INT(kl_key_pause(stage.rig.queue, kl_str("k")), KL_OK);
    stage.worker = start_worker(stage.rig.queue, &(struct start){.fn = runs_handle, .ctx = &stage.runs});
    runs_wait_for(&stage.runs, "done other", 1);
    await_why(&stage.rig, "k", KL_WHY_PAUSED);
    CHECK_INT(runs_of(&stage.runs, "done k"), 0);
    CHECK_INT(kl_key_resume(stage.rig.queue, kl_str("k")), KL_OK);
    runs_wait_for(&stage.runs, "done k", 1);
    stage_close(&stage);
}

TEST(a_paused_queue_takes_tasks_and_starts_none)
{
    struct stage stage;
    if (!stage_open(&stage, true))
        return;
    kl_put later = {.key = kl_str("later"), .payload = kl_str("done"), .delay_ms = 3600000};
    put_as(stage.rig.queue, &later);
    CHECK_INT(kl_queue_pause(stage.rig.queue), KL_OK);
    await_why(&stage.rig, "later", KL_WHY_QUEUE_PAUSED); /* the worker knows */
    put_task(stage.rig.queue, "k", "done k");
    await_why(&stage.rig, "k", KL_WHY_QUEUE_PAUSED);
    CHECK_INT(runs_count(&stage.runs), 0);
    CHECK_INT(kl_queue_resume(stage.rig.queue), KL_OK);
    runs_wait_for(&stage.runs, "done k", 1);
    stage_close(&stage);
}

static void show_keys(bool with_worker)
{
    struct stage stage;
    kl_task_id ids[3];
    kl_arena arena = {0};
    kl_key_status keys[4];
    size_t count = 0;
    if (!stage_open(&stage, with_worker))
        return;
    begin_line(&stage, ids);
    CHECK_INT(show(&stage, "k").why, with_worker ? KL_WHY_RETRYING : KL_WHY_NO_WORKER);
    CHECK_INT(show(&stage, "k").waiting, 3);
    kl_task_id head = show(&stage, "k").head;
    CHECK(memcmp(&head, &ids[0], sizeof head) == 0);
    CHECK_INT(show(&stage, "nobody").why, KL_WHY_IDLE);
    kl_put later = {.key = kl_str("later"), .payload = kl_str("done"), .delay_ms = 3600000};
    put_as(stage.rig.queue, &later);
    CHECK_INT(show(&stage, "later").why, KL_WHY_DELAYED);
    CHECK_INT(kl_key_list(stage.rig.queue, KL_KEYS_BY_DEPTH, 0, 4, &arena, keys, &count), KL_OK);
    CHECK_INT(count, 2);
    CHECK(keys[0].key.len == 1 && keys[0].waiting == 3);
    CHECK(keys[1].key.len == 5 && keys[1].why == KL_WHY_DELAYED);
    if (with_worker)
        CHECK_INT(keys[0].why, KL_WHY_RETRYING);
    kl_arena_free(&arena);
    stage_close(&stage);
}

TEST(keys_are_shown_and_listed_by_their_worker) { show_keys(true); }
TEST(keys_are_shown_and_listed_without_a_worker) { show_keys(false); }

static kl_bytes listed_first(struct stage *stage, kl_key_order order, kl_arena *arena)
{
    kl_key_status keys[4] = {{.why = KL_WHY_IDLE}};
    size_t count = 0;
    CHECK_INT(kl_key_list(stage->rig.queue, order, 0, 4, arena, keys, &count), KL_OK);
    CHECK_INT(count, 4);
    for (size_t i = 0; i < count; i++)
        CHECK(keys[i].oldest_ms > 0);
    return keys[0].key;
}

/* Puts tasks without a key until the clock that ids are made with has moved on. */
static void pass_time(struct stage *stage, const kl_task_id *before)
{
    kl_layout layout = {.partitions = 1, .shard_prefix_len = 1};
    kl_task_id id;
    do
        id = put_task(stage->rig.queue, "", "done");
    while (kl_id_ms(&layout, &id) <= kl_id_ms(&layout, before));
}

TEST(keys_are_listed_by_depth_age_or_state)
{
    struct stage stage;
    kl_arena arena = {0};
    if (!stage_open(&stage, false))
        return;
    kl_task_id first = put_task(stage.rig.queue, "first", "done");
    pass_time(&stage, &first);
    put_task(stage.rig.queue, "deep", "done");
    put_task(stage.rig.queue, "deep", "done");
    put_task(stage.rig.queue, "held", "done");
    kl_put later = {.key = kl_str("later"), .payload = kl_str("done"), .delay_ms = 3600000};
    put_as(stage.rig.queue, &later);
    CHECK_STR(listed_first(&stage, KL_KEYS_UNSET, &arena).data, "deep");
    CHECK_STR(listed_first(&stage, KL_KEYS_BY_DEPTH, &arena).data, "deep");
    CHECK_STR(listed_first(&stage, KL_KEYS_BY_AGE, &arena).data, "first");
    CHECK_STR(listed_first(&stage, KL_KEYS_BY_STATE, &arena).data, "later");
    CHECK_INT(kl_key_pause(stage.rig.queue, kl_str("held")), KL_OK);
    CHECK_STR(listed_first(&stage, KL_KEYS_BY_STATE, &arena).data, "held");
    kl_arena_free(&arena);
    stage_close(&stage);
}

static kl_why listed_why(struct stage *stage, const char *key)
{
    kl_key_status keys[4];
    size_t count = 0;
    kl_arena arena = {0};
    kl_why why = KL_WHY_IDLE;
    CHECK_INT(kl_key_list(stage->rig.queue, KL_KEYS_BY_DEPTH, 0, 4, &arena, keys, &count), KL_OK);
    for (size_t i = 0; i < count; i++)
        if (keys[i].key.len == strlen(key) && memcmp(keys[i].key.data, key, keys[i].key.len) == 0)
            why = keys[i].why;
    kl_arena_free(&arena);
    return why;
}

TEST(a_listed_key_waits_for_what_the_records_tell)
{
    struct stage stage;
    kl_put strange = {.key = kl_str("k"), .kind = kl_str("strange"), .payload = kl_str("done")};
    if (!stage_open(&stage, false))
        return;
    put_as(stage.rig.queue, &strange);
    CHECK_INT(listed_why(&stage, "k"), KL_WHY_NO_WORKER);
    stage.worker = start_worker(stage.rig.queue,
                                &(struct start){.fn = runs_handle, .ctx = &stage.runs, .kind = "usual", .name = "a"});
    await_shards(stage.worker, 16);
    CHECK_INT(listed_why(&stage, "k"), KL_WHY_KIND);
    CHECK_INT(kl_queue_pause(stage.rig.queue), KL_OK);
    CHECK_INT(listed_why(&stage, "k"), KL_WHY_QUEUE_PAUSED);
    CHECK_INT(kl_key_pause(stage.rig.queue, kl_str("k")), KL_OK);
    CHECK_INT(listed_why(&stage, "k"), KL_WHY_PAUSED);
    stage_close(&stage);
}

/* --- Whole queues --- */

static void purge(bool with_worker)
{
    enum { KEYS = 300, EACH = 20 };
    struct stage stage;
    uint64_t count = 0;
    if (!stage_open(&stage, false))
        return;
    put_numbers(stage.rig.queue, "k", KEYS, EACH);
    kl_put later = {.payload = kl_str("done"), .delay_ms = 3600000};
    put_as(stage.rig.queue, &later);
    if (with_worker) {
        CHECK_INT(kl_queue_pause(stage.rig.queue), KL_OK);
        stage.worker = start_worker(stage.rig.queue, &(struct start){.fn = runs_handle, .ctx = &stage.runs});
        await_shards(stage.worker, 16);
        await_held(stage.worker, KEYS * EACH);
    }
    CHECK_INT(kl_queue_purge(stage.rig.queue, &count), KL_OK);
    CHECK_INT(count, KEYS * EACH + 1);
    await_waiting(&stage.rig, 0);
    CHECK_INT(runs_count(&stage.runs), 0);
    CHECK_INT(kl_queue_resume(stage.rig.queue), KL_OK);
    if (with_worker) {
        put_task(stage.rig.queue, "k1", "done after");
        runs_wait_for(&stage.runs, "done after", 1);
    }
    stage_close(&stage);
}

TEST(a_queue_is_purged_by_its_worker) { purge(true); }
TEST(a_queue_is_purged_without_a_worker) { purge(false); }
TEST(a_task_is_moved_by_its_worker) { move(true); }

TEST(a_task_is_moved_to_another_queue_only)
{
    struct stage stage;
    kl_task_id moved;
    if (!stage_open(&stage, false))
        return;
    kl_task_id id = put_task(stage.rig.queue, "k", "done");
    CHECK_INT(kl_task_move(stage.rig.queue, &id, stage.rig.queue, &moved), KL_EINVAL);
    CHECK_INT(kl_task_move(stage.rig.queue, &id, NULL, &moved), KL_EINVAL);
    CHECK_INT(rig_waiting(&stage.rig), 1);
    stage_close(&stage);
}

TEST(a_task_is_moved_without_a_worker) { move(false); }

TEST(a_queue_without_workers_says_so)
{
    struct stage stage;
    kl_arena arena = {0};
    kl_worker_status workers[2];
    size_t count = 7;
    if (!stage_open(&stage, false))
        return;
    CHECK_INT(kl_queue_workers(stage.rig.queue, 2, &arena, workers, &count), KL_OK);
    CHECK_INT(count, 0);
    kl_arena_free(&arena);
    stage_close(&stage);
}

/* --- Jobs --- */

TEST(waiting_tasks_of_a_cancelled_job_end_as_cancelled)
{
    enum { TASKS = 200 };
    struct stage stage;
    kl_job_answer answer;
    kl_put puts[TASKS];
    if (!stage_open(&stage, true))
        return;
    put_task(stage.rig.queue, "k", "hold");
    runs_wait_for(&stage.runs, "hold", 1);
    for (int i = 0; i < TASKS; i++)
        puts[i] = (kl_put){.key = kl_str("k"), .payload = kl_str("done of the job")};
    kl_job_spec spec = {.size = sizeof spec, .tasks = puts, .count = TASKS};
    CHECK_INT(kl_job_submit(stage.rig.queue, &spec, &answer, NULL), KL_OK);
    put_task(stage.rig.queue, "k", "done behind");
    CHECK_INT(kl_job_cancel(stage.rig.queue, &answer.job), KL_OK);
    put_task(stage.rig.queue, "other", "done other"); /* run by a worker that has ticked */
    runs_wait_for(&stage.runs, "done other", 1);
    await_why(&stage.rig, "k", KL_WHY_RUNNING);
    await_why(&stage.rig, "k", KL_WHY_RUNNING);
    runs_open(&stage.runs, true);
    runs_wait_for(&stage.runs, "done behind", 1);
    await_waiting(&stage.rig, 0);
    CHECK_INT(runs_of(&stage.runs, "done of the job"), 0);
    CHECK_INT(kl_worker_show(stage.worker).cancelled, TASKS);
    stage_close(&stage);
}

static uint64_t cancelled_of(kl_queue *queue, const kl_task_id *job)
{
    kl_arena arena = {0};
    kl_job_info info = {0};
    CHECK_INT(kl_job_show(queue, job, &arena, &info), KL_OK);
    uint64_t cancelled = info.waiting + info.done + info.dead == 0 ? info.cancelled : 0;
    kl_arena_free(&arena);
    return cancelled;
}

/* Nothing else of the queue is kept, so what is there is there because the job says so. */
static void end_unrun(bool with_worker)
{
    enum { TASKS = 40 };
    struct stage stage;
    kl_job_answer answer = {0};
    kl_put puts[TASKS];
    kl_task_id skipped;
    uint64_t drained = 0, purged = 0;
    kl_queue_opts opts = {.size = sizeof opts, .keep_done_ms = KL_NO_WAIT};
    if (!stage_open(&stage, false))
        return;
    CHECK_INT(kl_queue_alter(stage.rig.queue, &opts), KL_OK);
    CHECK_INT(kl_queue_pause(stage.rig.queue), KL_OK);
    if (with_worker) {
        stage.worker = start_worker(stage.rig.queue, &(struct start){.fn = runs_handle, .ctx = &stage.runs});
        await_shards(stage.worker, 16);
    }
    for (int i = 0; i < TASKS; i++)
        puts[i] = (kl_put){.key = kl_str(i % 2 ? "k" : "l"), .payload = kl_str("done of the job")};
    kl_job_spec spec = {.size = sizeof spec, .tasks = puts, .count = TASKS};
    CHECK_INT(kl_job_submit(stage.rig.queue, &spec, &answer, NULL), KL_OK);
    CHECK_INT(kl_key_skip(stage.rig.queue, kl_str("k"), NULL, &skipped), KL_OK);
    CHECK_INT(kl_key_drain(stage.rig.queue, kl_str("k"), NULL, false, &drained), KL_OK);
    CHECK_INT(kl_queue_purge(stage.rig.queue, &purged), KL_OK);
    CHECK_INT(drained + 1, TASKS / 2);
    CHECK_INT(purged, TASKS / 2);
    await_waiting(&stage.rig, 0);
    CHECK_INT(cancelled_of(stage.rig.queue, &answer.job), TASKS);
    stage_close(&stage);
}

TEST(tasks_of_a_job_that_are_ended_unrun_are_kept_by_their_worker_as_the_job_says) { end_unrun(true); }
TEST(tasks_of_a_job_that_are_ended_unrun_are_kept_without_a_worker_as_the_job_says) { end_unrun(false); }
