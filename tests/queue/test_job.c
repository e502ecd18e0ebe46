/* test_job.c - jobs from submit to remove: progress, lists, adding, running again, cancelling. */
#include "queue/job_support.h"

static void pass(struct rig *rig, int64_t ms) { atomic_fetch_add(&rig->clock_ms, ms); }

CLAIM(a_job_shows_how_far_it_is)
{
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 2);
    REQUIRE(queue);
    kl_job_spec spec = {.size = sizeof spec, .name = "bills \xc3\xa9", .tasks = make_puts(rig, 12, 5, 0), .count = 12};
    kl_job_answer answer;
    CHECK_INT(kl_job_submit(queue, &spec, &answer, NULL), KL_OK);
    CHECK(!answer.replayed && answer.tasks == 12);
    kl_job_info info = show_job(queue, &answer.job, &rig->arena);
    CHECK_STR(info.name, "bills \xc3\xa9");
    CHECK(info.state == KL_JOB_RUNNING && info.tasks == 12 && info.waiting == 12 && info.run == 1);
    CHECK_INT(info.created_ms, atomic_load(&rig->clock_ms));
    CHECK_INT(settle_any(queue, KL_DONE, 5), 5);
    CHECK_INT(settle_any(queue, KL_DEAD, 4), 4);
    CHECK_INT(settle_any(queue, KL_CANCELLED, 2), 2);
    info = show_job(queue, &answer.job, &rig->arena);
    CHECK(info.done == 5 && info.dead == 4 && info.cancelled == 2 && info.waiting == 1 && info.tasks == 12);
    CHECK_INT(info.state, KL_JOB_RUNNING);
    CHECK_INT(settle_any(queue, KL_DONE, 1), 1);
    CHECK_INT(show_job(queue, &answer.job, &rig->arena).state, KL_JOB_FINISHED);
    kl_queue_close(queue);
}

CLAIM(a_large_job_is_put_in_batches)
{
    enum { TASKS = 2 * KL_PUT_MAX + 77 };
    kl_queue *queue = OPEN(rig->store, "orders");
    REQUIRE(queue);
    kl_task_id job = submit_job(queue, make_puts(rig, TASKS, 900, 0), TASKS);
    kl_job_info info = show_job(queue, &job, &rig->arena);
    CHECK_INT(info.waiting, TASKS);
    CHECK_INT(settle_any(queue, KL_DONE, SIZE_MAX), TASKS);
    CHECK_INT(show_job(queue, &job, &rig->arena).done, TASKS);
    kl_queue_close(queue);
}

CLAIM_IN_MEMORY(tasks_of_one_key_keep_the_order_of_the_job)
{
    kl_queue *queue = OPEN(rig->store, "orders", .shard_prefix_len = 4);
    REQUIRE(queue);
    kl_found found[KL_JOB_PAGE_MAX];
    kl_bytes cursor = {"", 0};
    size_t count = 0, next = 0;
    /* With four digits of shard the sequence has 12 bits, and runs over into the next millisecond. */
    kl_task_id job = submit_job(queue, make_puts(rig, 6000, 1, 0), 6000);
    CHECK_INT(settle_any(queue, KL_DONE, SIZE_MAX), 6000);
    do {
        CHECK_INT(kl_job_results(queue, &job, cursor, KL_JOB_PAGE_MAX, &rig->arena, found, &count, &cursor, NULL),
                  KL_OK);
        for (size_t i = 0; i < count; i++)
            CHECK_INT(index_of(&found[i].task), next++);
    } while (cursor.len > 0 && !test_failed());
    CHECK_INT(next, 6000);
    kl_queue_close(queue);
}

CLAIM(jobs_are_listed_in_the_order_of_their_submits)
{
    kl_queue *queue = OPEN(rig->store, "orders"), *other = OPEN(rig->store, "orders2");
    kl_job_info jobs[3];
    kl_task_id ids[5];
    size_t count;
    REQUIRE(queue && other);
    submit_job(other, NULL, 0);
    for (size_t i = 0; i < 5; i++) {
        pass(rig, 1);
        ids[i] = submit_job(queue, make_puts(rig, i, 0, 0), i);
    }
    CHECK_INT(kl_job_list(queue, NULL, 3, &rig->arena, jobs, &count), KL_OK);
    REQUIRE(count == 3);
    for (size_t i = 0; i < 3; i++)
        CHECK(kl_id_compare(&jobs[i].id, &ids[i]) == 0 && jobs[i].tasks == i);
    CHECK_INT(jobs[0].state, KL_JOB_FINISHED); /* it has none */
    CHECK_INT(kl_job_list(queue, &jobs[2].id, 3, &rig->arena, jobs, &count), KL_OK);
    CHECK(count == 2 && kl_id_compare(&jobs[1].id, &ids[4]) == 0);
    kl_queue_close(other);
    kl_queue_close(queue);
}

CLAIM(tasks_can_be_added_until_the_job_is_cancelled)
{
    kl_queue *queue = OPEN(rig->store, "orders");
    REQUIRE(queue);
    kl_put *tasks = make_puts(rig, 10, 3, 0);
    kl_task_id job = submit_job(queue, tasks, 4), nobody = {{1}};
    kl_put_result first[6], again[6];
    CHECK_INT(kl_job_add(queue, &job, tasks + 4, 6, kl_str("token"), first), KL_OK);
    CHECK_INT(kl_job_add(queue, &job, tasks + 4, 6, kl_str("token"), again), KL_OK);
    CHECK(kl_id_compare(&first[5].id, &again[5].id) == 0);
    CHECK_EACH_ONCE(queue, &job, 10);
    CHECK_INT(show_job(queue, &job, &rig->arena).tasks, 10);
    CHECK_INT(kl_job_add(queue, &nobody, tasks, 1, (kl_bytes){0}, NULL), KL_ENOTFOUND);
    CHECK_INT(kl_job_cancel(queue, &job), KL_OK);
    CHECK_FAILS(kl_job_add(queue, &job, tasks, 1, (kl_bytes){0}, NULL), KL_ECLOSED, "cancelled");
    CHECK_EACH_ONCE(queue, &job, 10);
    kl_queue_close(queue);
}

/* Every call of the store that an add makes fails once, done or not; then many others add, and it is made again. */
CLAIM_IN_MEMORY(a_job_has_no_more_tasks_than_it_may)
{
    kl_queue *queue = OPEN(rig->store, "orders");
    char name[80] = "job/orders/", text[512];
    REQUIRE(queue);
    kl_put *tasks = make_puts(rig, 2, 0, 0);
    kl_task_id job = submit_job(queue, NULL, 0);
    kl_id_print(&job, name + strlen(name));
    const char *record = record_text(rig, name), *count = record ? strstr(record, "\"tasks\":") : NULL;
    REQUIRE(count);
    const char *behind = strpbrk(count, ",}");
    snprintf(text, sizeof text, "%.*s\"tasks\":%d%s", (int)(count - record), record, KL_JOB_TASKS_MAX - 1, behind);
    set_record(rig, name, text);
    CHECK_FAILS(kl_job_add(queue, &job, tasks, 2, (kl_bytes){0}, NULL), KL_EINVAL, "2 more are too many");
    CHECK_INT(kl_job_add(queue, &job, tasks, 1, kl_str("t"), NULL), KL_OK);
    CHECK_INT(kl_job_add(queue, &job, tasks, 1, kl_str("t"), NULL), KL_OK); /* a repeat: it is counted */
    CHECK_FAILS(kl_job_add(queue, &job, tasks, 1, (kl_bytes){0}, NULL), KL_EINVAL, "submit another job");
    CHECK_INT(show_job(queue, &job, &rig->arena).tasks, KL_JOB_TASKS_MAX);
    kl_queue_close(queue);
}

CLAIM_IN_MEMORY(an_add_that_is_repeated_after_many_others_counts_once)
{
    enum { OTHERS = 130 };
    kl_queue *queue = OPEN(rig->store, "orders");
    struct ending ending;
    kl_store *store;
    REQUIRE(queue && ending_open(&ending, rig->store, &store) == KL_OK);
    kl_queue *fragile = OPEN(store, "orders");
    REQUIRE(fragile);
    kl_put *tasks = make_puts(rig, 3 + OTHERS, 3, 0);
    kl_rc rc = KL_ESYSTEM;
    for (uint64_t n = 2; rc != KL_OK && !test_failed(); n++) {
        char token[32], other[48];
        kl_task_id job = submit_job(queue, tasks, 1);
        snprintf(token, sizeof token, "token-%llu", (unsigned long long)n);
        ending_arm(&ending, n / 2, n % 2);
        rc = kl_job_add(fragile, &job, tasks + 1, 2, kl_str(token), NULL);
        ending_arm(&ending, 0, false);
        for (size_t i = 0; i < OTHERS; i++) {
            snprintf(other, sizeof other, "%s-%zu", token, i);
            CHECK_INT(kl_job_add(queue, &job, tasks + 3 + i, 1, i % 2 ? kl_str(other) : (kl_bytes){0}, NULL), KL_OK);
        }
        pass(rig, 11000); /* a claim that was left is taken over */
        CHECK_INT(kl_job_add(queue, &job, tasks + 1, 2, kl_str(token), NULL), KL_OK);
        CHECK_INT(show_job(queue, &job, &rig->arena).tasks, 3 + OTHERS);
        CHECK_EACH_ONCE(queue, &job, 3 + OTHERS);
    }
    kl_queue_close(fragile);
    kl_store_close(store);
    kl_queue_close(queue);
}

CLAIM(a_scheduled_job_is_due_when_it_says)
{
    kl_queue *queue = OPEN(rig->store, "orders");
    REQUIRE(queue);
    kl_put *tasks = make_puts(rig, 3, 0, 0);
    int64_t now_ms = atomic_load(&rig->clock_ms), due_ms = now_ms + 30 * INT64_C(86400000);
    tasks[1].due_ms = now_ms + 5000;
    tasks[2].delay_ms = 7000;
    kl_job_spec spec = {.size = sizeof spec, .tasks = tasks, .count = 3, .due_ms = due_ms};
    kl_job_answer answer;
    CHECK_INT(kl_job_submit(queue, &spec, &answer, NULL), KL_OK);
    pass(rig, 20 * INT64_C(86400000)); /* longer than it is kept, but it is not due yet */
    kl_job_info info = show_job(queue, &answer.job, &rig->arena);
    CHECK(info.due_ms == due_ms && info.waiting == 3 && info.state == KL_JOB_RUNNING);
    CHECK_INT(settle_any(queue, KL_DONE, SIZE_MAX), 3);
    kl_found found[3];
    size_t count;
    kl_bytes cursor;
    CHECK_INT(kl_job_results(queue, &answer.job, (kl_bytes){0}, 3, &rig->arena, found, &count, &cursor, NULL), KL_OK);
    REQUIRE(count == 3);
    const int64_t dues[] = {due_ms, now_ms + 5000, now_ms + 7000};
    for (size_t i = 0; i < 3; i++)
        CHECK_INT(found[i].task.entry.due_ms, dues[index_of(&found[i].task)]);
    kl_queue_close(queue);
}

CLAIM(a_job_is_forgotten_after_its_time_unless_tasks_wait_and_somebody_looks)
{
    kl_queue *queue = OPEN(rig->store, "orders");
    REQUIRE(queue);
    kl_job_info info;
    kl_put *tasks = make_puts(rig, 1, 0, 0);
    kl_job_spec spec = {.size = sizeof spec, .tasks = tasks, .count = 1, .keep_ms = 10000};
    kl_job_answer watched, unwatched;
    CHECK_INT(kl_job_submit(queue, &spec, &watched, NULL), KL_OK);
    CHECK_INT(kl_job_submit(queue, &spec, &unwatched, NULL), KL_OK);
    pass(rig, 8000);
    show_job(queue, &watched.job, &rig->arena);
    pass(rig, 8000);
    CHECK_INT(show_job(queue, &watched.job, &rig->arena).waiting, 1);
    CHECK_FAILS(kl_job_show(queue, &unwatched.job, &rig->arena, &info), KL_ENOTFOUND, "has no job");
    kl_queue_close(queue);
}

/* --- Again --- */

CLAIM(a_rerun_puts_all_finished_tasks_again)
{
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 2);
    REQUIRE(queue);
    uint64_t count = 0;
    kl_task_id job = submit_job(queue, make_puts(rig, 30, 7, 0), 30);
    CHECK_INT(settle_any(queue, KL_DONE, 20), 20);
    pass(rig, 1000);
    CHECK_INT(kl_job_rerun(queue, &job, false, &count), KL_OK);
    CHECK_INT(count, 20);
    CHECK_EACH_ONCE(queue, &job, 30);
    kl_job_info info = show_job(queue, &job, &rig->arena);
    CHECK(info.run == 2 && info.waiting == 30 && info.done == 0 && info.tasks == 30);
    CHECK_INT(settle_any(queue, KL_DONE, SIZE_MAX), 30);
    CHECK_INT(kl_job_rerun(queue, &job, true, &count), KL_OK);
    CHECK_INT(count, 0);
    CHECK_INT(kl_job_rerun(queue, &job, false, &count), KL_OK); /* in the same millisecond as the last */
    CHECK_INT(count, 30);
    CHECK_EACH_ONCE(queue, &job, 30);
    CHECK_INT(show_job(queue, &job, &rig->arena).waiting, 30);
    kl_queue_close(queue);
}

CLAIM(a_rerun_of_what_failed_leaves_what_is_done)
{
    kl_queue *queue = OPEN(rig->store, "orders");
    REQUIRE(queue);
    uint64_t count = 0;
    kl_put *tasks = make_puts(rig, 30, 7, 0);
    kl_bytes tag = kl_str("urgent");
    for (size_t i = 0; i < 30; i++) {
        tasks[i].kind = kl_str("bill");
        tasks[i].priority = 3;
        tasks[i].tags = &tag;
        tasks[i].tag_count = 1;
    }
    kl_task_id job = submit_job(queue, tasks, 30);
    CHECK_INT(settle_any(queue, KL_DONE, 11), 11);
    CHECK_INT(settle_any(queue, KL_DEAD, 12), 12);
    CHECK_INT(settle_any(queue, KL_CANCELLED, 7), 7);
    CHECK_INT(kl_job_rerun(queue, &job, true, &count), KL_OK);
    CHECK_INT(count, 19);
    CHECK_EACH_ONCE(queue, &job, 30);
    kl_job_info info = show_job(queue, &job, &rig->arena);
    CHECK(info.done == 11 && info.dead == 0 && info.cancelled == 0 && info.waiting == 19);
    CHECK_INT(settle_any(queue, KL_DEAD, SIZE_MAX), 19);
    kl_found found[30];
    kl_bytes cursor;
    size_t rows, repeated = 0;
    CHECK_INT(kl_job_results(queue, &job, (kl_bytes){0}, 30, &rig->arena, found, &rows, &cursor, NULL), KL_OK);
    CHECK_INT(rows, 30);
    for (size_t i = 0; i < rows; i++) {
        static const kl_task_id none;
        repeated += kl_id_compare(&found[i].extra.origin, &none) != 0;
        CHECK(found[i].task.entry.priority == 3 && found[i].task.entry.kind.len == 4 && found[i].extra.tag_count == 1);
    }
    CHECK_INT(repeated, 19);
    kl_queue_close(queue);
}

CLAIM(a_rerun_goes_to_the_newest_layout)
{
    kl_queue *queue = OPEN(rig->store, "orders", .shard_prefix_len = 2);
    REQUIRE(queue);
    uint64_t count = 0;
    kl_task_id job = submit_job(queue, make_puts(rig, 200, 0, 0), 200);
    CHECK_INT(settle_any(queue, KL_DONE, SIZE_MAX), 200);
    kl_queue_opts other = {.size = sizeof other, .shard_prefix_len = 1, .partitions = 3};
    CHECK_INT(kl_queue_alter(queue, &other), KL_OK);
    CHECK_INT(kl_job_rerun(queue, &job, false, &count), KL_OK);
    CHECK_INT(count, 200);
    CHECK_EACH_ONCE(queue, &job, 200);
    kl_queue_close(queue);
}

/* --- The end --- */

static const kl__cancelled *marked(kl_queue *queue, kl__cancelled_set *set, const kl_task_id *job)
{
    CHECK_INT(kl__jobs_cancelled(queue, set), KL_OK);
    return kl__cancelled_find(set, job);
}

CLAIM(workers_learn_of_cancelled_jobs)
{
    enum { JOBS = 300 };
    kl_queue *queue = OPEN(rig->store, "orders");
    REQUIRE(queue);
    kl__cancelled_set set = {0};
    kl_task_id ids[JOBS];
    CHECK(!marked(queue, &set, &(kl_task_id){{9}}));
    for (size_t i = 0; i < JOBS; i++)
        ids[i] = submit_job(queue, NULL, 0);
    for (size_t i = 0; i < JOBS; i += 1 + (i == 7)) /* all but one */
        CHECK_INT(kl_job_cancel(queue, &ids[i]), KL_OK);
    CHECK_INT(kl_job_cancel(queue, &ids[0]), KL_OK);
    CHECK_INT(kl__jobs_cancelled(queue, &set), KL_OK);
    CHECK_INT(set.count, JOBS - 1);
    for (size_t i = 0; i < JOBS; i++) {
        const kl__cancelled *mark = kl__cancelled_find(&set, &ids[i]);
        CHECK(i == 8 ? !mark : mark && mark->run == 1 && !mark->removed);
    }
    CHECK_INT(show_job(queue, &ids[0], &rig->arena).state, KL_JOB_CANCELLED);
    kl__cancelled_free(&set);
    kl_queue_close(queue);
}

CLAIM(a_removed_job_leaves_only_a_mark_for_what_still_waits)
{
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 2);
    REQUIRE(queue);
    kl__cancelled_set set = {0};
    kl_job_info info;
    uint32_t seen[20];
    kl_job_spec spec = {.size = sizeof spec, .tasks = make_puts(rig, 20, 6, 0), .count = 20};
    kl_job_answer answer, again;
    spec.idempotency_key = kl_str("k");
    CHECK_INT(kl_job_submit(queue, &spec, &answer, NULL), KL_OK);
    CHECK_INT(settle_any(queue, KL_DONE, 15), 15);
    CHECK_INT(remove_job(queue, &answer.job), KL_OK);
    CHECK_INT(kl_job_show(queue, &answer.job, &rig->arena, &info), KL_ENOTFOUND);
    CHECK_INT(see_tasks(queue, &answer.job, seen, 20), 5);
    const kl__cancelled *mark = marked(queue, &set, &answer.job);
    CHECK(mark && mark->removed);
    CHECK_INT(remove_job(queue, &answer.job), KL_ENOTFOUND);
    CHECK_INT(kl_job_submit(queue, &spec, &again, NULL), KL_OK);
    CHECK(!again.replayed && kl_id_compare(&answer.job, &again.job) != 0);
    CHECK_INT(settle_any(queue, KL_DONE, SIZE_MAX), 25);
    CHECK_INT(remove_job(queue, &again.job), KL_OK);
    CHECK(!marked(queue, &set, &again.job)); /* nothing of it waits */
    kl__cancelled_free(&set);
    kl_queue_close(queue);
}

CLAIM(a_remove_that_crashes_anywhere_can_be_repeated)
{
    struct ending ending;
    kl_store *store;
    kl_queue *queue = OPEN(rig->store, "orders");
    REQUIRE(queue && ending_open(&ending, rig->store, &store) == KL_OK);
    kl_queue *dying = OPEN(store, "orders");
    REQUIRE(dying);
    kl_rc rc = KL_ESYSTEM;
    uint64_t n = 1;
    for (; n < 100 && rc != KL_OK && !test_failed(); n++) {
        uint32_t seen[6];
        kl_job_info info;
        kl_task_id job = submit_job(queue, make_puts(rig, 6, 2, 0), 6);
        CHECK_INT(settle_any(queue, KL_DONE, SIZE_MAX), 6);
        ending_arm(&ending, n, n % 2);
        rc = remove_job(dying, &job);
        ending_arm(&ending, 0, false);
        kl_rc repeated = rc == KL_OK ? KL_ENOTFOUND : remove_job(queue, &job);
        CHECK(repeated == KL_OK || repeated == KL_ENOTFOUND);
        CHECK_INT(kl_job_show(queue, &job, &rig->arena, &info), KL_ENOTFOUND);
        CHECK_INT(see_tasks(queue, &job, seen, 6), 0);
    }
    CHECK(n > 8 && n < 100);
    kl_queue_close(dying);
    kl_store_close(store);
    kl_queue_close(queue);
}

CLAIM(a_job_without_a_key_that_fails_half_way_is_cancelled)
{
    struct ending ending;
    kl_store *store;
    kl_job_info jobs[1];
    size_t count;
    REQUIRE(ending_open(&ending, rig->store, &store) == KL_OK);
    kl_queue *queue = OPEN(store, "orders");
    REQUIRE(queue);
    kl_job_spec spec = {.size = sizeof spec, .tasks = make_puts(rig, 3, 0, 0), .count = 3};
    kl_job_answer answer;
    kl_task_id nobody = {{7}};
    ending.recovers = true;
    ending_arm(&ending, 3, false); /* now, the record; not the tasks */
    CHECK_FAILS(kl_job_submit(queue, &spec, &answer, NULL), KL_ESYSTEM, "gone; what was put of the job is cancelled");
    ending_arm(&ending, 0, false);
    CHECK_INT(kl_job_list(queue, NULL, 1, &rig->arena, jobs, &count), KL_OK);
    CHECK_INT(count, 1);
    CHECK_INT(jobs[0].state, KL_JOB_CANCELLED);
    CHECK_INT(kl_job_cancel(queue, &nobody), KL_ENOTFOUND);
    kl_queue_close(queue);
    kl_store_close(store);
}

CLAIM(a_job_that_is_not_valid_stores_nothing)
{
    kl_queue *queue = OPEN(rig->store, "orders"), *other = OPEN(rig->store, "bills");
    REQUIRE(queue && other);
    kl_job_info jobs[1];
    kl_job_answer answer;
    size_t count;
    char name[KL_JOB_NAME_MAX + 2];
    kl_put *tasks = make_puts(rig, 3, 0, 0);
    kl_job_spec spec = {.size = sizeof spec, .tasks = tasks, .count = 3, .idempotency_key = kl_str("k")};
    memset(name, 'n', sizeof name);
    name[sizeof name - 1] = '\0';
#define REFUSED(change, part)                                                                                          \
    do {                                                                                                               \
        kl_put saved = tasks[2];                                                                                       \
        kl_job_spec saved_spec = spec;                                                                                 \
        change;                                                                                                        \
        CHECK_FAILS(kl_job_submit(queue, &spec, &answer, NULL), KL_EINVAL, part);                                      \
        tasks[2] = saved;                                                                                              \
        spec = saved_spec;                                                                                             \
    } while (0)
    REFUSED(tasks[2].queue = other, "task 3 of the job: it is for another queue");
    REFUSED(tasks[2].unique = kl_str("u"), "idempotency key");
    REFUSED(tasks[2].keep_ms = 1, "keep_ms");
    REFUSED(tasks[2].priority = KL_PRIORITY_MAX + 1, "priority");
    REFUSED(tasks[2].payload = ((kl_bytes){NULL, 3}), "payload");
    REFUSED(tasks[2].partition = "orders__p7", "no partition orders__p7");
    REFUSED((tasks[2].due_ms = 1, tasks[2].delay_ms = 1), "due_ms");
    REFUSED(tasks[2].tag_count = KL_TAGS_MAX + 1, "tags");
    REFUSED(spec.size = 8, "sizeof(kl_job_spec)");
    REFUSED(spec.name = name, "name");
    REFUSED(spec.count = KL_JOB_TASKS_MAX + 1, "up to 1000000");
    REFUSED(spec.keep_ms = -1, "keep_ms");
#undef REFUSED
    CHECK_INT(kl_job_list(queue, NULL, 1, &rig->arena, jobs, &count), KL_OK);
    CHECK_INT(count, 0);
    CHECK_INT(kl_job_submit(queue, &spec, &answer, NULL), KL_OK); /* and the key is free */
    CHECK(!answer.replayed);
    kl_queue_close(other);
    kl_queue_close(queue);
}
