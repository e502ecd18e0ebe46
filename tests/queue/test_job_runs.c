/* test_job_runs.c - runs of a job are told apart by what its tasks carry: a rerun that crashes, a job that is cancelled
 * and goes on. */
#include "base/compare.h"
#include "queue/job_support.h"
#include "queue/tasks.h"

static void pass(struct rig *rig, int64_t ms) { atomic_fetch_add(&rig->clock_ms, ms); }

CLAIM(a_task_of_a_job_carries_its_run_and_how_long_it_is_kept)
{
    kl_queue *queue = OPEN(rig->store, "orders");
    kl_found found[4];
    kl_bytes cursor;
    size_t count;
    REQUIRE(queue);
    kl_put *tasks = make_puts(rig, 4, 0, 0);
    kl_job_spec spec = {.size = sizeof spec, .tasks = tasks, .count = 2, .keep_ms = 12345000};
    kl_job_answer answer;
    CHECK_INT(kl_job_submit(queue, &spec, &answer, NULL), KL_OK);
    for (int run = 1; run <= 2; run++) {
        if (run == 1)
            CHECK_INT(kl_job_add(queue, &answer.job, tasks + 2, 2, (kl_bytes){0}, NULL), KL_OK);
        else
            CHECK_INT(kl_job_rerun(queue, &answer.job, false, NULL), KL_OK);
        CHECK_INT(settle_any(queue, KL_DONE, SIZE_MAX), 4);
        CHECK_INT(kl_job_results(queue, &answer.job, (kl_bytes){0}, 4, &rig->arena, found, &count, &cursor, NULL),
                  KL_OK);
        CHECK_INT(count, 4);
        for (size_t i = 0; i < count; i++) {
            CHECK_INT(found[i].extra.job_run, run);
            CHECK_INT(found[i].extra.keep_ms, 12345000);
        }
    }
    kl_queue_close(queue);
}

/* A rerun whose store ends at its n-th call; then some of what it put finishes, and another one goes on. */
static bool crash_at(struct rig *rig, kl_queue *queue, kl_queue *dying, struct ending *ending, uint64_t n)
{
    enum { TASKS = 12 };
    kl_task_id job = submit_job(queue, make_puts(rig, TASKS, 3, 0), TASKS);
    CHECK_INT(settle_any(queue, KL_DEAD, SIZE_MAX), TASKS);
    ending_arm(ending, n, n % 2);
    kl_rc rc = kl_job_rerun(dying, &job, true, NULL);
    ending_arm(ending, 0, false);
    kl_job_info before = show_job(queue, &job, &rig->arena);
    size_t settled = settle_any(queue, KL_DEAD, TASKS / 2);
    pass(rig, 15 * 60000);
    if (rc != KL_OK && before.run == 2) {
        CHECK_INT(kl_job_rerun(queue, &job, false, NULL), KL_OK);
        kl_job_info after = show_job(queue, &job, &rig->arena);
        if (after.run == 2)
            CHECK_INT(after.dead, settled); /* they have had their turn in this run */
        else
            CHECK_INT(after.run, 3); /* only the reply to its last write was lost: it had ended */
        CHECK_EACH_ONCE(queue, &job, TASKS);
    }
    settle_any(queue, KL_DONE, SIZE_MAX);
    return rc != KL_OK;
}

CLAIM(a_rerun_that_crashes_anywhere_is_completed_by_the_next)
{
    struct ending ending;
    kl_store *store;
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 2);
    REQUIRE(queue && ending_open(&ending, rig->store, &store) == KL_OK);
    kl_queue *dying = OPEN(store, "orders");
    REQUIRE(dying);
    uint64_t n = 1;
    while (n < 200 && !test_failed() && crash_at(rig, queue, dying, &ending, n))
        n++;
    CHECK(n > 10 && n < 200);
    kl_queue_close(dying);
    kl_store_close(store);
    kl_queue_close(queue);
}

/* A third of them is done; the others are put again. */
CLAIM(tasks_of_a_key_run_again_in_the_order_of_their_job)
{
    enum { TASKS = 60, KEYS = 4 };
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 2);
    REQUIRE(queue);
    kl_task_id job = submit_job(queue, make_puts(rig, TASKS, KEYS, 0), TASKS);
    CHECK_INT(settle_any(queue, KL_DONE, TASKS / 3), TASKS / 3);
    CHECK_INT(settle_any(queue, KL_DEAD, TASKS), TASKS - TASKS / 3);
    uint64_t put = 0;
    CHECK_INT(kl_job_rerun(queue, &job, true, &put), KL_OK);
    CHECK_INT(put, TASKS - TASKS / 3);
    struct tasks waiting = scan_tasks(queue, &rig->arena);
    CHECK_INT(waiting.count, put);
    for (size_t i = 0; i < waiting.count; i++)
        for (size_t j = 0; j < i; j++) {
            kl_bytes a = waiting.tasks[j].entry.key, b = waiting.tasks[i].entry.key;
            bool same = a.len == b.len && memcmp(a.data, b.data, a.len) == 0;
            CHECK(!same || index_of(&waiting.tasks[j]) < index_of(&waiting.tasks[i]));
        }
    kl_queue_close(queue);
}

CLAIM(two_reruns_do_not_run_at_once)
{
    struct ending ending;
    kl_store *store;
    kl_queue *queue = OPEN(rig->store, "orders");
    REQUIRE(queue && ending_open(&ending, rig->store, &store) == KL_OK);
    kl_queue *dying = OPEN(store, "orders");
    REQUIRE(dying);
    kl_task_id job = submit_job(queue, make_puts(rig, 5, 0, 0), 5);
    CHECK_INT(settle_any(queue, KL_DONE, SIZE_MAX), 5);
    ending_arm(&ending, 8, false); /* refresh, job, now, refresh, mark, counts, lease */
    CHECK_INT(kl_job_rerun(dying, &job, false, NULL), KL_ESYSTEM);
    CHECK_FAILS(kl_job_rerun(queue, &job, false, NULL), KL_EBUSY, "another rerun");
    CHECK_INT(show_job(queue, &job, &rig->arena).state, KL_JOB_RUNNING);
    pass(rig, KL_JOB_LEASE_MS);
    CHECK_INT(kl_job_rerun(queue, &job, false, NULL), KL_OK);
    CHECK_INT(show_job(queue, &job, &rig->arena).run, 2);
    CHECK_EACH_ONCE(queue, &job, 5);
    kl_queue_close(dying);
    kl_store_close(store);
    kl_queue_close(queue);
}

CLAIM(a_cancelled_job_goes_on_with_what_is_put_again)
{
    kl_queue *queue = OPEN(rig->store, "orders");
    REQUIRE(queue);
    kl__cancelled_set set = {0};
    kl_task_id job = submit_job(queue, make_puts(rig, 10, 0, 0), 10);
    CHECK_INT(settle_any(queue, KL_CANCELLED, 4), 4);
    CHECK_INT(kl_job_cancel(queue, &job), KL_OK);
    CHECK_INT(show_job(queue, &job, &rig->arena).state, KL_JOB_CANCELLED);
    CHECK_INT(kl_job_rerun(queue, &job, true, NULL), KL_OK);
    CHECK_INT(show_job(queue, &job, &rig->arena).state, KL_JOB_RUNNING);
    CHECK_INT(kl__jobs_cancelled(queue, &set), KL_OK);
    const kl__cancelled *mark = kl__cancelled_find(&set, &job);
    REQUIRE(mark);
    CHECK_INT(settle_any(queue, KL_DONE, SIZE_MAX), 10);
    kl_found found[10];
    kl_bytes cursor;
    size_t count, again = 0;
    CHECK_INT(kl_job_results(queue, &job, (kl_bytes){0}, 10, &rig->arena, found, &count, &cursor, NULL), KL_OK);
    for (size_t i = 0; i < count; i++)
        again += found[i].extra.job_run > mark->run;
    CHECK_INT(again, 4);
    kl__cancelled_free(&set);
    kl_queue_close(queue);
}

CLAIM(a_rerun_of_nothing_is_no_run)
{
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 2);
    uint64_t put = 7;
    REQUIRE(queue);
    kl_task_id job = submit_job(queue, make_puts(rig, 3, 0, 0), 3);
    CHECK_INT(kl_job_rerun(queue, &job, false, &put), KL_OK); /* nothing is finished */
    CHECK_INT(put, 0);
    CHECK_INT(settle_any(queue, KL_DONE, SIZE_MAX), 3);
    CHECK_INT(kl_job_rerun(queue, &job, true, &put), KL_OK); /* nothing has failed */
    CHECK(put == 0 && show_job(queue, &job, &rig->arena).run == 1);
    CHECK_INT(kl_job_rerun(queue, &job, false, &put), KL_OK);
    CHECK(put == 3 && show_job(queue, &job, &rig->arena).run == 2);
    kl_queue_close(queue);
}

/* Three tasks, of which one is done and two are dead. */
static kl_task_id two_letters(struct rig *rig, kl_queue *queue)
{
    kl_task_id job = submit_job(queue, make_puts(rig, 3, 0, 0), 3);
    CHECK_INT(settle_any(queue, KL_DONE, 1), 1);
    CHECK_INT(settle_any(queue, KL_DEAD, SIZE_MAX), 2);
    CHECK_INT(show_job(queue, &job, &rig->arena).state, KL_JOB_FINISHED);
    return job;
}

CLAIM(a_job_does_not_wait_for_letters_that_were_moved_or_purged)
{
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 2), *other = OPEN(rig->store, "other");
    kl_account account;
    REQUIRE(queue && other);
    kl_task_id job = two_letters(rig, queue);
    CHECK_INT(kl_dead_move(queue, &(kl_redrive){.to = other, .max = 1}, &account), KL_OK);
    CHECK_INT(account.done, 1);
    kl_job_info info = show_job(queue, &job, &rig->arena);
    CHECK(info.state == KL_JOB_FINISHED && info.tasks == 2 && info.dead == 1 && info.waiting == 0);
    CHECK_INT(kl_dead_purge(queue, &(kl_redrive){.max = 0}, &account), KL_OK);
    info = show_job(queue, &job, &rig->arena);
    CHECK(info.state == KL_JOB_FINISHED && info.tasks == 1 && info.dead == 0 && info.waiting == 0);
    struct tasks there = scan_tasks(other, &rig->arena);
    REQUIRE(there.count == 1);
    kl_task_extra extra;
    REQUIRE(kl__envelope_decode(there.tasks[0].entry.headers, &rig->arena, &extra) == KL_OK);
    CHECK(kl__id_is_none(&there.tasks[0].entry.job) && extra.job_run == 0 && extra.keep_ms == 0);
    kl_queue_close(other);
    kl_queue_close(queue);
}

CLAIM(a_job_waits_for_letters_that_were_put_back)
{
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 2);
    kl_account account;
    REQUIRE(queue);
    kl_task_id job = two_letters(rig, queue);
    CHECK_INT(kl_dead_retry(queue, &(kl_redrive){.max = 0}, &account), KL_OK);
    kl_job_info info = show_job(queue, &job, &rig->arena);
    CHECK(info.state == KL_JOB_RUNNING && info.tasks == 3 && info.waiting == 2);
    kl_queue_close(queue);
}
