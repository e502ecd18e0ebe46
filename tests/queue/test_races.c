/* test_races.c - what others do between two steps of a call: layouts that change, claims that are taken over, jobs that
 * grow while they are removed. Each is made to happen at a known call, by the wire of tasks.h or a store that ends. */
#include "queue/cron.h"
#include "queue/job_support.h"
#include "queue/tasks.h"

#define NO_TOKEN ((kl_bytes){"", 0})

static kl_rc alter_to(kl_queue *queue, int64_t partitions, int64_t shard_prefix_len)
{
    kl_queue_opts opts = {.size = sizeof opts, .partitions = partitions, .shard_prefix_len = shard_prefix_len};
    return kl_queue_alter(queue, &opts);
}

static void pass(struct rig *rig, int64_t ms) { atomic_fetch_add(&rig->clock_ms, ms); }

/* --- Layouts --- */

static kl_rc add_layout(kl__descriptor *draft, void *ctx)
{
    (void)ctx;
    return kl__draft_layout(draft, (kl_layout){3, 1}, NULL, "test");
}

static void put_and_seal(void *ctx)
{
    kl_queue **queues = ctx; /* one that knows the old layout only, and one that knows both */
    kl_put task = {.key = kl_str("a"), .payload = kl_str("late")};
    CHECK_INT(kl_queue_put(queues[0], &task, 1, NO_TOKEN, NULL), KL_OK);
    CHECK_INT(kl__queue_seal(queues[1]), KL_OK);
}

/* Q3. */
TEST(a_layout_that_was_counted_before_it_was_sealed_is_not_drained)
{
    struct cut cut;
    REQUIRE(cut_open(&cut));
    kl_queue *old = OPEN(cut.inner, "orders"), *both = OPEN(cut.inner, "orders");
    REQUIRE(old && both);
    CHECK_INT(kl__queue_change(both, add_layout, NULL), KL_OK); /* and its sealing is still to come */
    kl_queue *worker = OPEN(cut.wire, "orders");
    REQUIRE(worker);
    kl_queue *queues[] = {old, both};
    cut.goes_on = true;
    cut.meanwhile = put_and_seal;
    cut.ctx = queues;
    cut_arm(&cut, 2); /* the record, the count */
    CHECK(kl__queue_drained(worker, 1) != KL_OK);
    cut_disarm(&cut);
    CHECK_INT(kl__queue_refresh(worker), KL_OK);
    kl__descriptor *descriptor = kl__queue_descriptor(worker);
    CHECK(!descriptor->layouts[0].drained);
    kl__descriptor_release(descriptor);
    kl_queue_close(worker);
    kl_queue_close(both);
    kl_queue_close(old);
    cut_close(&cut);
}

CLAIM(looks_know_the_layout_that_another_process_opened)
{
    kl_queue *queue = OPEN(rig->store, "orders"), *other = OPEN(rig->store, "orders");
    REQUIRE(queue && other);
    CHECK_INT(alter_to(other, 2, 2), KL_OK);
    kl_put tasks[] = {{.key = kl_str("a"), .payload = kl_str("1")}, {.key = kl_str("b"), .payload = kl_str("2")}};
    kl_put_result results[2];
    kl_found found[4];
    size_t count;
    kl_bytes cursor;
    CHECK_INT(kl_queue_put(other, tasks, 2, NO_TOKEN, results), KL_OK);
    kl_waiting waiting = {.max = 4};
    CHECK_INT(kl_queue_task(queue, &results[0].id, &rig->arena, &found[0]), KL_OK);
    CHECK_INT(alter_to(other, 3, 1), KL_OK);
    CHECK_INT(kl_queue_put(other, tasks, 2, NO_TOKEN, results), KL_OK);
    CHECK_INT(kl_queue_waiting(queue, &waiting, &rig->arena, found, &count, &cursor), KL_OK);
    CHECK_INT(count, 4);
    CHECK_INT(settle_tasks(other, KL_DEAD, JOB_KEEP_MS, "no"), 4);
    CHECK_INT(alter_to(other, 4, 1), KL_OK);
    CHECK_INT(kl_queue_put(other, tasks, 1, NO_TOKEN, results), KL_OK);
    CHECK_INT(settle_tasks(other, KL_DEAD, JOB_KEEP_MS, "no"), 1);
    kl_finished finished = {.max = 4};
    CHECK_INT(kl_queue_finished(queue, &finished, &rig->arena, found, &count, &cursor), KL_OK);
    CHECK_INT(count, 4);
    CHECK_INT(alter_to(other, 5, 1), KL_OK);
    CHECK_INT(kl_queue_put(other, tasks, 1, NO_TOKEN, results), KL_OK);
    CHECK_INT(settle_tasks(other, KL_DEAD, JOB_KEEP_MS, "no"), 1);
    kl_redrive all = {.max = 0};
    kl_account account;
    CHECK_INT(kl_dead_retry(queue, &all, &account), KL_OK);
    CHECK_INT(account.done, 6);
    kl_queue_close(other);
    kl_queue_close(queue);
}

/* --- Jobs that are taken over --- */

static kl_job_spec spec_of(const kl_put *tasks, size_t count, const char *key)
{
    return (kl_job_spec){
        .size = sizeof(kl_job_spec), .tasks = tasks, .count = count, .name = key, .idempotency_key = kl_str(key)};
}

/* A submit that dies at its n-th call, taken over by a process that knows none of the layouts opened since. */
static bool take_over_stale(struct rig *rig, uint64_t n)
{
    enum { TASKS = 12 };
    struct ending ending;
    kl_store *wire;
    char name[32];
    snprintf(name, sizeof name, "q%llu", (unsigned long long)n);
    kl_queue *stale = OPEN(rig->store, name);
    if (!stale || ending_open(&ending, rig->store, &wire) != KL_OK)
        return false;
    kl_queue *dying = OPEN(wire, name);
    CHECK_INT(alter_to(dying, 2, 2), KL_OK);
    kl_job_spec spec = spec_of(make_puts(rig, TASKS, 5, 0), TASKS, "k");
    kl_job_answer answer = {.tasks = 0};
    ending_arm(&ending, n, n % 2);
    kl_rc rc = kl_job_submit(dying, &spec, &answer, NULL);
    ending_arm(&ending, 0, false);
    CHECK(settle_any(dying, KL_DONE, 5) <= 5);
    pass(rig, 15 * 60000); /* tokens are forgotten */
    CHECK_INT(kl_job_submit(stale, &spec, &answer, NULL), KL_OK);
    CHECK_EACH_ONCE(stale, &answer.job, TASKS);
    kl_queue_close(dying);
    kl_store_close(wire);
    kl_queue_close(stale);
    return rc != KL_OK;
}

CLAIM_IN_MEMORY(a_job_is_taken_over_by_a_process_that_does_not_know_its_layout)
{
    uint64_t n = 1;
    while (n < 100 && !test_failed() && take_over_stale(rig, n))
        n++;
    CHECK(n > 5 && n < 100);
}

/* A submit that dies at its n-th call; what it has put is delayed, and is moved to a newer layout before it is taken
 * over. */
static bool take_over_moved(struct rig *rig, uint64_t n, bool done_first)
{
    enum { TASKS = 12 };
    struct ending ending;
    kl_store *wire;
    char name[32];
    snprintf(name, sizeof name, "q%llu-%d", (unsigned long long)n, done_first);
    kl_queue *queue = OPEN(rig->store, name, .partitions = 2);
    if (!queue || ending_open(&ending, rig->store, &wire) != KL_OK)
        return false;
    kl_queue *dying = OPEN(wire, name);
    kl_put *puts = make_puts(rig, TASKS, 0, 0);
    for (size_t i = 0; i < TASKS; i++) {
        puts[i].delay_ms = 7200 * 1000;
        puts[i].key = kl_str(i % 2 ? "a" : "");
        puts[i].partition = i % 4 < 2 ? NULL : name; /* the first */
    }
    kl_job_spec spec = spec_of(puts, TASKS, "k");
    kl_job_answer answer = {.tasks = 0};
    ending_arm(&ending, n, done_first);
    kl_rc rc = kl_job_submit(dying, &spec, &answer, NULL);
    ending_arm(&ending, 0, false);
    for (int64_t digits = 2; digits > 0; digits--) {
        CHECK_INT(alter_to(queue, 1 + digits, digits), KL_OK);
        move_tasks(queue);
    }
    CHECK(settle_any(queue, KL_DONE, 5) <= 5);
    pass(rig, 15 * 60000); /* tokens are forgotten */
    CHECK_INT(kl_job_submit(queue, &spec, &answer, NULL), KL_OK);
    CHECK_EACH_ONCE(queue, &answer.job, TASKS);
    kl_queue_close(dying);
    kl_store_close(wire);
    kl_queue_close(queue);
    return rc != KL_OK;
}

CLAIM_IN_MEMORY(a_job_that_is_taken_over_puts_nothing_again_that_was_moved)
{
    uint64_t n = 1;
    while (n < 100 && !test_failed() && take_over_moved(rig, n, false) && take_over_moved(rig, n, true))
        n++;
    CHECK(n > 5 && n < 100);
}

struct meanwhile {
    kl_queue *queue;
    int64_t partitions, shard_prefix_len;
    kl_rc rc;
};

static void alter_now(void *ctx)
{
    struct meanwhile *meanwhile = ctx;
    meanwhile->rc = alter_to(meanwhile->queue, meanwhile->partitions, meanwhile->shard_prefix_len);
}

/* Begun in layout 1, put in layout 2 because that was opened meanwhile, not committed; then there is a layout 3. */
TEST(a_job_that_moved_with_its_queue_is_found_by_whoever_goes_on)
{
    enum { TASKS = 9 };
    bool moved = false;
    for (int after = 1; after < 40 && !test_failed(); after++) {
        struct cut cut;
        struct rig rig = {.disk = false};
        REQUIRE(cut_open(&cut));
        kl_queue *other = OPEN(cut.inner, "orders"), *dying = OPEN(cut.wire, "orders");
        struct meanwhile meanwhile = {.queue = other, .partitions = 2, .shard_prefix_len = 2};
        kl_job_spec spec = spec_of(make_puts(&rig, TASKS, 0, 0), TASKS, "k");
        kl_job_answer answer = {.tasks = 0};
        cut.goes_on = true;
        cut.meanwhile = alter_now;
        cut.ctx = &meanwhile;
        cut_arm(&cut, after);
        kl_rc rc = kl_job_submit(dying, &spec, &answer, NULL);
        bool happened = cut_disarm(&cut);
        CHECK_INT(rc, KL_OK);
        /* As if the answer had never been written. */
        struct tasks there = scan_tasks(other, &rig.arena);
        CHECK_INT(there.count, TASKS);
        kl_arena arena = {0};
        kl_record record;
        size_t count = 0;
        CHECK_INT(kl_store_list(cut.inner, kl_str("idempotency/orders/"), NO_TOKEN, 1, &arena, &record, &count), KL_OK);
        REQUIRE(count == 1);
        json_t *claim = json_loadb(record.value.data, record.value.len, 0, NULL);
        json_object_set_new(claim, "state", json_string("claimed"));
        json_object_set_new(claim, "until_ms", json_integer(0));
        json_object_set_new(claim, "put", json_integer(0));
        CHECK_INT(kl__record_write(cut.inner, record.name, record.version, claim, record.expires_ms, NULL), KL_OK);
        json_decref(claim);
        kl__job job;
        CHECK_INT(kl__job_read(other, &answer.job, &arena, &job), KL_OK);
        moved |= happened && job.layout == 1 && there.tasks[0].entry.place.partition > 1;
        job.complete = false;
        CHECK_INT(kl__job_write(other, &job), KL_OK);
        CHECK_INT(alter_to(other, 1, 1), KL_OK);
        CHECK_INT(settle_any(other, KL_DONE, 4), 4);
        atomic_fetch_add(&cut.clock_ms, 15 * 60000);
        CHECK_INT(kl_job_submit(other, &spec, &answer, NULL), KL_OK);
        CHECK_EACH_ONCE(other, &answer.job, TASKS);
        kl_arena_free(&arena);
        kl_arena_free(&rig.arena);
        kl_queue_close(dying);
        kl_queue_close(other);
        cut_close(&cut);
        if (!happened)
            break;
    }
    CHECK(moved);
}

/* --- Adds --- */

CLAIM(a_token_that_was_used_for_other_tasks_changes_nothing_about_the_job)
{
    kl_queue *queue = OPEN(rig->store, "orders");
    REQUIRE(queue);
    kl_put *tasks = make_puts(rig, 3, 0, 0);
    kl_task_id job = submit_job(queue, NULL, 0);
    CHECK_INT(kl_job_add(queue, &job, tasks, 1, kl_str("t"), NULL), KL_OK);
    CHECK_FAILS(kl_job_add(queue, &job, tasks, 3, kl_str("t"), NULL), KL_EMISMATCH, "used for another call");
    CHECK_INT(show_job(queue, &job, &rig->arena).tasks, 1);
    CHECK_INT(kl_job_add(queue, &job, tasks + 1, 2, kl_str("u"), NULL), KL_OK);
    CHECK_INT(show_job(queue, &job, &rig->arena).tasks, 3);
    CHECK_EACH_ONCE(queue, &job, 3);
    kl_queue_close(queue);
}

CLAIM_IN_MEMORY(a_repeated_add_is_counted_once_however_many_came_between)
{
    kl_queue *queue = OPEN(rig->store, "orders");
    REQUIRE(queue);
    kl_put *tasks = make_puts(rig, 101, 0, 0);
    kl_task_id job = submit_job(queue, NULL, 0);
    CHECK_INT(kl_job_add(queue, &job, tasks, 1, kl_str("first"), NULL), KL_OK);
    for (int i = 1; i <= 100; i++)
        CHECK_INT(kl_job_add(queue, &job, tasks + i, 1, NO_TOKEN, NULL), KL_OK);
    CHECK_INT(kl_job_add(queue, &job, tasks, 1, kl_str("first"), NULL), KL_OK);
    CHECK_INT(show_job(queue, &job, &rig->arena).tasks, 101);
    CHECK_EACH_ONCE(queue, &job, 101);
    kl_queue_close(queue);
}

CLAIM(tasks_that_are_refused_are_refused_before_they_are_counted)
{
    kl_queue *queue = OPEN(rig->store, "orders");
    REQUIRE(queue);
    kl_task_id job = submit_job(queue, NULL, 0);
    const char *before = record_text(rig, "job/orders"); /* there is none of that name */
    kl_put bad[] = {{.priority = KL_PRIORITY_MAX + 1},
                    {.delay_ms = INT64_MAX},
                    {.partition = "orders__p9"},
                    {.tag_count = 1},
                    {.unique_ms = 5}};
    for (size_t i = 0; i < COUNT(bad); i++)
        CHECK_FAILS(kl_job_add(queue, &job, &bad[i], 1, kl_str("t"), NULL), KL_EINVAL, "task 1 of 1");
    CHECK(!before);
    CHECK_INT(show_job(queue, &job, &rig->arena).tasks, 0);
    kl_queue_close(queue);
}

static void add_now(void *ctx)
{
    struct meanwhile *meanwhile = ctx;
    kl_arena arena = {0};
    kl_job_info jobs[1];
    size_t count;
    kl_put task = {.payload = kl_str("0")};
    if (kl_job_list(meanwhile->queue, NULL, 1, &arena, jobs, &count) == KL_OK && count == 1)
        meanwhile->rc = kl_job_add(meanwhile->queue, &jobs[0].id, &task, 1, NO_TOKEN, NULL);
    kl_arena_free(&arena);
}

/* Whatever was added to a job that is removed is cancelled, or was refused. */
TEST(a_task_added_while_its_job_is_removed_is_not_started)
{
    bool added = false, refused = false;
    for (int after = 1; after < 60; after++) {
        struct cut cut;
        REQUIRE(cut_open(&cut));
        kl_queue *queue = OPEN(cut.inner, "orders"), *removing = OPEN(cut.wire, "orders");
        struct meanwhile meanwhile = {.queue = queue, .rc = KL_ENOTFOUND};
        kl__cancelled_set set = {0};
        kl_task_id job = submit_job(queue, NULL, 0);
        cut.goes_on = true;
        cut.meanwhile = add_now;
        cut.ctx = &meanwhile;
        cut_arm(&cut, after);
        CHECK_INT(remove_job(removing, &job), KL_OK);
        bool happened = cut_disarm(&cut);
        CHECK_INT(kl__jobs_cancelled(queue, &set), KL_OK);
        if (meanwhile.rc == KL_OK)
            CHECK(kl__cancelled_find(&set, &job));
        added |= meanwhile.rc == KL_OK;
        refused |= meanwhile.rc == KL_ECLOSED;
        kl__cancelled_free(&set);
        kl_queue_close(removing);
        kl_queue_close(queue);
        cut_close(&cut);
        if (!happened)
            break;
    }
    CHECK(added && refused);
}

/* --- Reruns --- */

CLAIM_IN_MEMORY(a_job_of_large_tasks_is_put_again)
{
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 2);
    REQUIRE(queue);
    kl_task_id job = submit_job(queue, make_puts(rig, 20, 3, KL_PAYLOAD_BYTES_MAX), 20);
    uint64_t count = 0;
    CHECK_INT(settle_any(queue, KL_DEAD, SIZE_MAX), 20);
    CHECK_INT(kl_job_rerun(queue, &job, true, &count), KL_OK);
    CHECK_INT(count, 20);
    CHECK_EACH_ONCE(queue, &job, 20);
    kl_queue_close(queue);
}

CLAIM_IN_MEMORY(a_task_whose_envelope_is_full_is_put_again_without_its_origin)
{
    static char large[KL_HEADERS_BYTES_MAX];
    kl_queue *queue = OPEN(rig->store, "orders");
    REQUIRE(queue);
    memset(large, 'x', sizeof large);
    kl_task_id job = submit_job(queue, NULL, 0);
    kl_put task = {.payload = kl_str("0"), .traceparent = {large, KL_HEADERS_BYTES_MAX - 20}};
    kl_rc rc = KL_EINVAL;
    for (; rc == KL_EINVAL && task.traceparent.len > 0; task.traceparent.len--)
        rc = kl_job_add(queue, &job, &task, 1, NO_TOKEN, NULL);
    CHECK_INT(rc, KL_OK);
    CHECK_INT(settle_any(queue, KL_DEAD, SIZE_MAX), 1);
    CHECK_INT(kl_job_rerun(queue, &job, true, NULL), KL_OK);
    CHECK_EACH_ONCE(queue, &job, 1);
    kl_queue_close(queue);
}

struct rerunning {
    struct cut *cut;
    kl_queue *queue;
    kl_task_id job;
    kl_rc rc;
};

/* The first one's lease is over, and another one takes its run and holds it. */
static void take_run(void *ctx)
{
    struct rerunning *rerunning = ctx;
    kl_arena arena = {0};
    kl__job job;
    atomic_fetch_add(&rerunning->cut->clock_ms, KL_JOB_LEASE_MS + 1);
    rerunning->rc = kl__job_read(rerunning->queue, &rerunning->job, &arena, &job);
    if (rerunning->rc == KL_OK && job.rerun_until_ms > 0) {
        job.rerun_until_ms += 10 * KL_JOB_LEASE_MS;
        job.nonce = "another";
        rerunning->rc = kl__job_write(rerunning->queue, &job);
    } else {
        rerunning->rc = KL_ENOTFOUND;
    }
    kl_arena_free(&arena);
}

TEST(a_rerun_that_was_taken_over_leaves_the_lease_to_its_new_owner)
{
    enum { TASKS = 1001 }; /* a page and one */
    int taken = 0;
    for (int after = 4; after < 100; after += 8) {
        struct cut cut;
        struct rig rig = {.disk = false};
        REQUIRE(cut_open(&cut));
        kl_queue *queue = OPEN(cut.inner, "orders"), *slow = OPEN(cut.wire, "orders");
        struct rerunning rerunning = {&cut, queue, submit_job(queue, make_puts(&rig, TASKS, 0, 0), TASKS),
                                      KL_ENOTFOUND};
        CHECK_INT(settle_any(queue, KL_DONE, SIZE_MAX), TASKS);
        cut.goes_on = true;
        cut.meanwhile = take_run;
        cut.ctx = &rerunning;
        cut_arm(&cut, after);
        kl_rc rc = kl_job_rerun(slow, &rerunning.job, false, NULL);
        bool happened = cut_disarm(&cut);
        if (rerunning.rc == KL_OK) {
            kl__job job;
            CHECK_INT(rc, KL_EBUSY);
            CHECK_INT(kl__job_read(queue, &rerunning.job, &rig.arena, &job), KL_OK);
            CHECK_STR(job.nonce, "another");
            CHECK(job.rerun_until_ms > atomic_load(&cut.clock_ms));
            taken++;
        }
        kl_arena_free(&rig.arena);
        kl_queue_close(slow);
        kl_queue_close(queue);
        cut_close(&cut);
        if (!happened)
            break;
    }
    CHECK(taken > 3);
}

/* --- Tokens and uniques --- */

CLAIM(a_token_names_one_call_also_when_that_has_ended)
{
    kl_queue *queue = OPEN(rig->store, "orders");
    REQUIRE(queue);
    kl_put first = {.key = kl_str("a")}, other = {.key = kl_str("b")};
    CHECK_INT(kl_queue_put(queue, &first, 1, kl_str("t"), NULL), KL_OK);
    CHECK_FAILS(kl_queue_put(queue, &other, 1, kl_str("t"), NULL), KL_EMISMATCH, "used for another call");
    CHECK_INT(scan_tasks(queue, &rig->arena).count, 1);
    kl_queue_close(queue);
}

/* The first producer stored its tasks and died; the layout was changed, and the store has forgotten the append. */
static bool take_over_sealed(int after)
{
    struct cut cut;
    kl_arena arena = {0};
    if (!cut_open(&cut))
        return false;
    kl_queue *queue = OPEN(cut.inner, "orders"), *dying = OPEN(cut.wire, "orders");
    kl_put tasks[] = {{.key = kl_str("a")}, {.key = kl_str("b")}, {.payload = kl_str("c")}};
    cut_arm(&cut, after);
    kl_rc rc = kl_queue_put(dying, tasks, 3, kl_str("t"), NULL);
    cut_disarm(&cut);
    CHECK_INT(alter_to(queue, 3, 2), KL_OK);
    atomic_fetch_add(&cut.clock_ms, 15 * 60000);
    CHECK_INT(kl_queue_put(queue, tasks, 3, kl_str("t"), NULL), KL_OK);
    CHECK_INT(scan_tasks(queue, &arena).count, 3);
    kl_arena_free(&arena);
    kl_queue_close(dying);
    kl_queue_close(queue);
    cut_close(&cut);
    return rc != KL_OK;
}

TEST(a_token_that_is_taken_over_in_a_newer_layout_stores_nothing_twice)
{
    kl__queue_sleep_by(sleep_not);
    int after = 0;
    while (after < 40 && !test_failed() && take_over_sealed(after))
        after++;
    CHECK(after > 3 && after < 40);
    kl__queue_sleep_by(NULL);
}

static size_t settle_first(kl_queue *queue, kl_arena *arena)
{
    struct tasks there = scan_tasks(queue, arena);
    if (there.count == 0)
        return 0;
    kl_settled done = {.id = there.tasks[0].entry.id,
                       .position = there.tasks[0].position,
                       .outcome = KL_DONE,
                       .attempts = 1}; /* and not kept */
    kl_settle batch = {.place = there.tasks[0].entry.place, .tasks = &done, .count = 1};
    CHECK_INT(kl_store_settle(queue->store, &batch, 1), KL_OK);
    return 1;
}

/* One of the tasks has a unique, and so is stored on its own, before the others. */
static bool take_over_begun(int after)
{
    struct cut cut;
    kl_arena arena = {0};
    if (!cut_open(&cut))
        return false;
    kl_queue *queue = OPEN(cut.inner, "orders"), *dying = OPEN(cut.wire, "orders");
    kl_put tasks[] = {{.key = kl_str("a")}, {.key = kl_str("b"), .unique = kl_str("u")}, {.payload = kl_str("c")}};
    cut_arm(&cut, after);
    kl_rc rc = kl_queue_put(dying, tasks, 3, kl_str("t"), NULL);
    cut_disarm(&cut);
    size_t stored = scan_tasks(queue, &arena).count, done = stored == 3 ? settle_first(queue, &arena) : 0;
    atomic_fetch_add(&cut.clock_ms, 15 * 60000);
    CHECK_INT(kl_queue_put(queue, tasks, 3, kl_str("t"), NULL), KL_OK);
    CHECK_INT(scan_tasks(queue, &arena).count + done, 3);
    kl_arena_free(&arena);
    kl_queue_close(dying);
    kl_queue_close(queue);
    cut_close(&cut);
    return rc != KL_OK;
}

TEST(a_token_that_is_taken_over_when_some_of_its_tasks_have_ended_stores_nothing_twice)
{
    kl__queue_sleep_by(sleep_not);
    int after = 0;
    while (after < 60 && !test_failed() && take_over_begun(after))
        after++;
    CHECK(after > 5 && after < 60);
    kl__queue_sleep_by(NULL);
}

/* --- Schedules --- */

CLAIM(a_scheduled_task_is_kept_as_long_as_its_schedule_says)
{
    kl_queue *queue = OPEN(rig->store, "orders");
    REQUIRE(queue);
    kl_cron cron = {.size = sizeof cron, .name = "n", .when = "* * * * *", .task = {.keep_ms = 777000}};
    int64_t next_ms;
    CHECK_INT(kl_cron_add(queue, &cron), KL_OK);
    pass(rig, 60000);
    CHECK_INT(kl__cron_fire(queue, &next_ms), KL_OK);
    struct tasks tasks = scan_tasks(queue, &rig->arena);
    REQUIRE(tasks.count == 1);
    kl_task_extra extra;
    CHECK_INT(kl__envelope_decode(tasks.tasks[0].entry.headers, &rig->arena, &extra), KL_OK);
    CHECK_INT(extra.keep_ms, 777000);
    kl_queue_close(queue);
}
