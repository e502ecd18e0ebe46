/* test_idempotency.c - a submit that is repeated: every way from the claim to the answer, and a crash at every call. */
#include <pthread.h>

#include "queue/job_support.h"

static kl_job_spec spec_of(const kl_put *tasks, size_t count, const char *key)
{
    return (kl_job_spec){
        .size = sizeof(kl_job_spec), .tasks = tasks, .count = count, .name = key, .idempotency_key = kl_str(key)};
}

static void pass(struct rig *rig, int64_t ms) { atomic_fetch_add(&rig->clock_ms, ms); }

CLAIM(a_repeat_gets_the_first_answer)
{
    kl_queue *queue = OPEN(rig->store, "orders");
    REQUIRE(queue);
    kl_job_spec spec = spec_of(make_puts(rig, 20, 5, 0), 20, "k");
    kl_job_answer first, again;
    int64_t retry_ms = 7;
    CHECK_INT(kl_job_submit(queue, &spec, &first, &retry_ms), KL_OK);
    CHECK(!first.replayed && first.tasks == 20 && retry_ms == 0);
    CHECK_INT(kl_job_submit(queue, &spec, &again, NULL), KL_OK);
    CHECK(again.replayed && again.tasks == 20 && kl_id_compare(&first.job, &again.job) == 0);
    CHECK_EACH_ONCE(queue, &first.job, 20);
    CHECK_INT(jobs_named(queue, "k"), 1);
    kl_queue_close(queue);
}

CLAIM(another_request_under_the_same_key_is_refused)
{
    kl_queue *queue = OPEN(rig->store, "orders");
    REQUIRE(queue);
    kl_put *tasks = make_puts(rig, 3, 0, 0);
    kl_job_spec spec = spec_of(tasks, 3, "k");
    kl_job_answer answer;
    int64_t retry_ms;
    CHECK_INT(kl_job_submit(queue, &spec, &answer, NULL), KL_OK);
    tasks[2].payload = kl_str("other");
    CHECK_FAILS(kl_job_submit(queue, &spec, &answer, &retry_ms), KL_EMISMATCH, "used for another submit");
    CHECK_INT(retry_ms, 0);
    spec.scope = "another application";
    CHECK_INT(kl_job_submit(queue, &spec, &answer, NULL), KL_OK);
    CHECK(!answer.replayed);
    kl_queue_close(queue);
}

CLAIM(the_callers_own_fingerprint_decides)
{
    kl_queue *queue = OPEN(rig->store, "orders");
    REQUIRE(queue);
    kl_put *tasks = make_puts(rig, 2, 0, 0);
    kl_job_spec spec = spec_of(tasks, 2, "k");
    kl_job_answer answer;
    spec.fingerprint = kl_str("body 1");
    CHECK_INT(kl_job_submit(queue, &spec, &answer, NULL), KL_OK);
    tasks[0].priority = 3;
    CHECK_INT(kl_job_submit(queue, &spec, &answer, NULL), KL_OK);
    CHECK(answer.replayed);
    spec.fingerprint = kl_str("body 2");
    CHECK_FAILS(kl_job_submit(queue, &spec, &answer, NULL), KL_EMISMATCH, "used for another submit");
    kl_queue_close(queue);
}

CLAIM(a_repeat_with_a_delay_is_the_same_however_late_it_comes)
{
    kl_queue *queue = OPEN(rig->store, "orders");
    REQUIRE(queue);
    kl_job_spec spec = spec_of(make_puts(rig, 2, 0, 0), 2, "k");
    kl_job_answer first, again;
    int64_t now_ms = atomic_load(&rig->clock_ms);
    spec.delay_ms = 60000;
    CHECK_INT(kl_job_submit(queue, &spec, &first, NULL), KL_OK);
    pass(rig, 5000);
    CHECK_INT(kl_job_submit(queue, &spec, &again, NULL), KL_OK);
    CHECK(again.replayed && kl_id_compare(&first.job, &again.job) == 0);
    CHECK_INT(show_job(queue, &first.job, &rig->arena).due_ms, now_ms + 60000);
    spec.delay_ms = 60001;
    CHECK_FAILS(kl_job_submit(queue, &spec, &again, NULL), KL_EMISMATCH, "used for another submit");
    spec.due_ms = 1;
    CHECK_FAILS(kl_job_submit(queue, &spec, &again, NULL), KL_EINVAL, "both delay_ms");
    spec.due_ms = 0;
    spec.delay_ms = -1;
    CHECK_FAILS(kl_job_submit(queue, &spec, &again, NULL), KL_EINVAL, "delay_ms is -1");
    kl_queue_close(queue);
}

CLAIM(an_answer_is_forgotten_after_its_time)
{
    kl_queue *queue = OPEN(rig->store, "orders");
    REQUIRE(queue);
    kl_job_spec spec = spec_of(make_puts(rig, 2, 0, 0), 2, "k");
    kl_job_answer first, again;
    spec.answer_ms = 5000;
    CHECK_INT(kl_job_submit(queue, &spec, &first, NULL), KL_OK);
    pass(rig, 4999);
    CHECK_INT(kl_job_submit(queue, &spec, &again, NULL), KL_OK);
    CHECK(again.replayed);
    pass(rig, 2);
    CHECK_INT(kl_job_submit(queue, &spec, &again, NULL), KL_OK);
    CHECK(!again.replayed && kl_id_compare(&first.job, &again.job) != 0);
    kl_queue_close(queue);
}

/* --- Crashes --- */

struct crash {
    struct rig *rig;
    kl_queue *queue; /* of whoever comes later */
    struct ending ending;
    kl_store *store;
    kl_queue *dying; /* of the one who crashes */
    bool done_first;
    bool settle_between; /* half of what was put is finished before somebody takes over */
    int64_t wait_ms;     /* how long until then */
};

/* Submits a job whose store ends at its n-th call. False: it was submitted before that. */
static bool crash_at(struct crash *crash, uint64_t n, kl_put *tasks, size_t count)
{
    char key[32];
    kl_job_answer answer, again;
    int64_t retry_ms = 0;
    snprintf(key, sizeof key, "%d-%d-%llu", crash->done_first, crash->settle_between, (unsigned long long)n);
    kl_job_spec spec = spec_of(tasks, count, key);
    ending_arm(&crash->ending, n, crash->done_first);
    kl_rc rc = kl_job_submit(crash->dying, &spec, &answer, NULL);
    ending_arm(&crash->ending, 0, false);
    if (rc == KL_OK)
        return false;
    kl_rc at_once = kl_job_submit(crash->queue, &spec, &again, &retry_ms);
    CHECK(at_once == KL_OK || (at_once == KL_EBUSY && retry_ms > 0 && retry_ms <= 1000));
    if (crash->settle_between)
        settle_any(crash->queue, KL_DONE, count / 2);
    pass(crash->rig, crash->wait_ms);
    CHECK_INT(kl_job_submit(crash->queue, &spec, &answer, &retry_ms), KL_OK);
    CHECK_INT(retry_ms, 0);
    CHECK_INT(answer.tasks, count);
    CHECK_INT(jobs_named(crash->queue, key), 1);
    CHECK_EACH_ONCE(crash->queue, &answer.job, count);
    CHECK_INT(kl_job_submit(crash->queue, &spec, &again, NULL), KL_OK);
    CHECK(again.replayed && again.tasks == count && kl_id_compare(&answer.job, &again.job) == 0);
    settle_any(crash->queue, KL_DONE, SIZE_MAX);
    return true;
}

static void crash_everywhere(struct rig *rig, struct crash crash, size_t count, size_t bytes, uint64_t calls_min)
{
    crash.rig = rig;
    crash.queue = OPEN(rig->store, "orders", .partitions = 2);
    REQUIRE(crash.queue);
    REQUIRE(ending_open(&crash.ending, rig->store, &crash.store) == KL_OK);
    crash.dying = OPEN(crash.store, "orders");
    REQUIRE(crash.dying);
    kl_put *tasks = make_puts(rig, count, 4, bytes);
    uint64_t n = 1;
    while (n < 100 && !test_failed() && crash_at(&crash, n, tasks, count))
        n++;
    CHECK(n > calls_min && n < 100);
    kl_queue_close(crash.dying);
    kl_store_close(crash.store);
    kl_queue_close(crash.queue);
}

CLAIM(a_crash_before_any_call_leaves_one_job)
{
    crash_everywhere(rig, (struct crash){.wait_ms = KL_JOB_LEASE_MS}, 9, 0, 6);
}

CLAIM(a_crash_behind_any_call_leaves_one_job)
{
    crash_everywhere(rig, (struct crash){.wait_ms = KL_JOB_LEASE_MS, .done_first = true}, 9, 0, 6);
}

CLAIM(what_finished_before_a_takeover_is_not_put_again)
{
    crash_everywhere(rig, (struct crash){.wait_ms = 15 * 60000, .done_first = true, .settle_between = true}, 9, 0, 6);
}

CLAIM_IN_MEMORY(a_crash_between_batches_leaves_one_job)
{
    crash_everywhere(rig, (struct crash){.wait_ms = 15 * 60000, .done_first = true, .settle_between = true}, 18, 900000,
                     9);
}

CLAIM(a_claim_whose_owner_lives_is_left_alone_until_its_lease_is_over)
{
    struct ending ending;
    kl_store *store;
    kl_queue *queue = OPEN(rig->store, "orders");
    REQUIRE(queue && ending_open(&ending, rig->store, &store) == KL_OK);
    kl_queue *dying = OPEN(store, "orders");
    REQUIRE(dying);
    kl_job_spec spec = spec_of(make_puts(rig, 3, 0, 0), 3, "k");
    kl_job_answer answer;
    int64_t retry_ms = 0;
    ending_arm(&ending, 4, false); /* get, now, claim; the job's record is not written */
    CHECK_INT(kl_job_submit(dying, &spec, &answer, NULL), KL_ESYSTEM);
    CHECK_FAILS(kl_job_submit(queue, &spec, &answer, &retry_ms), KL_EBUSY, "still under way");
    CHECK_INT(retry_ms, 1000);
    pass(rig, KL_JOB_LEASE_MS - 200);
    CHECK_INT(kl_job_submit(queue, &spec, &answer, &retry_ms), KL_EBUSY);
    CHECK_INT(retry_ms, 200);
    pass(rig, 200);
    CHECK_INT(kl_job_submit(queue, &spec, &answer, &retry_ms), KL_OK);
    CHECK(!answer.replayed);
    CHECK_EACH_ONCE(queue, &answer.job, 3);
    kl_queue_close(dying);
    kl_store_close(store);
    kl_queue_close(queue);
}

CLAIM(a_takeover_finds_what_was_put_into_an_older_layout)
{
    struct ending ending;
    kl_store *store;
    kl_queue *queue = OPEN(rig->store, "orders", .shard_prefix_len = 2);
    REQUIRE(queue && ending_open(&ending, rig->store, &store) == KL_OK);
    for (uint64_t n = 5; n <= 6; n++) { /* the tasks were not put; they were, and the job is not complete */
        char key[32];
        kl_job_answer answer;
        kl_queue *dying = OPEN(store, "orders");
        REQUIRE(dying);
        snprintf(key, sizeof key, "%llu", (unsigned long long)n);
        kl_job_spec spec = spec_of(make_puts(rig, 40, n == 5 ? 0 : 9, 0), 40, key);
        ending_arm(&ending, n, false);
        CHECK_INT(kl_job_submit(dying, &spec, &answer, NULL), KL_ESYSTEM);
        ending_arm(&ending, 0, false);
        kl_queue_close(dying);
        kl_queue_opts other = {.size = sizeof other, .shard_prefix_len = n == 5 ? 1 : 3, .partitions = 2};
        CHECK_INT(kl_queue_alter(queue, &other), KL_OK);
        pass(rig, 15 * 60000);
        CHECK_INT(kl_job_submit(queue, &spec, &answer, NULL), KL_OK);
        CHECK_EACH_ONCE(queue, &answer.job, 40);
        CHECK_INT(settle_any(queue, KL_DONE, SIZE_MAX), 40);
    }
    kl_store_close(store);
    kl_queue_close(queue);
}

/* One call fails, and the store goes on: whoever repeats the submit need not wait for the lease. */
CLAIM(a_submit_that_fails_gives_its_claim_back)
{
    struct ending ending;
    kl_store *store;
    REQUIRE(ending_open(&ending, rig->store, &store) == KL_OK);
    kl_queue *queue = OPEN(store, "orders");
    REQUIRE(queue);
    kl_put *tasks = make_puts(rig, 4, 2, 0);
    kl_rc rc = KL_ESYSTEM;
    uint64_t n = 4; /* behind get, now and claim */
    for (; n < 100 && rc != KL_OK && !test_failed(); n++) {
        char key[32];
        kl_job_answer answer, again;
        snprintf(key, sizeof key, "%llu", (unsigned long long)n);
        kl_job_spec spec = spec_of(tasks, 4, key);
        ending.recovers = true;
        ending_arm(&ending, n, n % 2);
        rc = kl_job_submit(queue, &spec, &answer, NULL);
        ending_arm(&ending, 0, false);
        CHECK_INT(kl_job_submit(queue, &spec, &again, NULL), KL_OK);
        CHECK_EACH_ONCE(queue, &again.job, 4);
        CHECK_INT(jobs_named(queue, key), 1);
    }
    CHECK(n > 7 && n < 100);
    kl_queue_close(queue);
    kl_store_close(store);
}

CLAIM(tasks_added_before_a_takeover_are_none_of_the_answer)
{
    struct ending ending;
    kl_store *store;
    kl_job_info jobs[1];
    kl_job_answer answer, again;
    size_t count;
    kl_queue *queue = OPEN(rig->store, "orders");
    REQUIRE(queue && ending_open(&ending, rig->store, &store) == KL_OK);
    kl_queue *dying = OPEN(store, "orders");
    REQUIRE(dying);
    kl_put *tasks = make_puts(rig, 5, 0, 0);
    kl_job_spec spec = spec_of(tasks, 3, "k");
    ending_arm(&ending, 6, false); /* get, now, claim, record, tasks; not that it is complete */
    CHECK_INT(kl_job_submit(dying, &spec, &answer, NULL), KL_ESYSTEM);
    CHECK_INT(kl_job_list(queue, NULL, 1, &rig->arena, jobs, &count), KL_OK);
    REQUIRE(count == 1);
    CHECK_INT(kl_job_add(queue, &jobs[0].id, tasks + 3, 2, (kl_bytes){0}, NULL), KL_OK);
    pass(rig, KL_JOB_LEASE_MS);
    CHECK_INT(kl_job_submit(queue, &spec, &answer, NULL), KL_OK);
    CHECK_INT(answer.tasks, 3);
    CHECK_INT(kl_job_submit(queue, &spec, &again, NULL), KL_OK);
    CHECK(again.replayed && again.tasks == 3);
    CHECK_EACH_ONCE(queue, &answer.job, 5);
    CHECK_INT(show_job(queue, &answer.job, &rig->arena).tasks, 5);
    kl_queue_close(dying);
    kl_store_close(store);
    kl_queue_close(queue);
}

/* --- Races --- */

enum { RACERS = 4 };

struct racer {
    kl_queue *queue;
    const kl_job_spec *spec;
    pthread_barrier_t *start;
    kl_job_answer answer;
    kl_rc rc;
};

static void *race(void *ctx)
{
    struct racer *racer = ctx;
    pthread_barrier_wait(racer->start);
    do
        racer->rc = kl_job_submit(racer->queue, racer->spec, &racer->answer, NULL);
    while (racer->rc == KL_EBUSY);
    return NULL;
}

CLAIM(of_racing_submitters_one_makes_the_job)
{
    kl_queue *queue = OPEN(rig->store, "orders");
    REQUIRE(queue);
    kl_put *tasks = make_puts(rig, 50, 7, 0);
    for (uint64_t round = 0; round < test_rounds(20) && !test_failed(); round++) {
        char key[32];
        struct racer racers[RACERS];
        pthread_t threads[RACERS];
        pthread_barrier_t start;
        snprintf(key, sizeof key, "race-%llu", (unsigned long long)round);
        kl_job_spec spec = spec_of(tasks, 50, key);
        int first = 0;
        pthread_barrier_init(&start, NULL, RACERS);
        for (int i = 0; i < RACERS; i++) {
            racers[i] = (struct racer){.queue = queue, .spec = &spec, .start = &start};
            REQUIRE(pthread_create(&threads[i], NULL, race, &racers[i]) == 0);
        }
        for (int i = 0; i < RACERS; i++) {
            pthread_join(threads[i], NULL);
            CHECK_INT(racers[i].rc, KL_OK);
            first += !racers[i].answer.replayed;
            CHECK(kl_id_compare(&racers[i].answer.job, &racers[0].answer.job) == 0);
        }
        pthread_barrier_destroy(&start);
        CHECK_INT(first, 1);
        CHECK_INT(jobs_named(queue, key), 1);
        CHECK_EACH_ONCE(queue, &racers[0].answer.job, 50);
    }
    kl_queue_close(queue);
}
