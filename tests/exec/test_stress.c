/* test_stress.c - everything at once: producers, outcomes of all kinds, threads that end, cancels, pauses, and a stop.
 *
 * Checked for each job: it starts only while its key is free of others, from the first start of one job to its end;
 * jobs of one producer and key start in order; and each job that was taken ends exactly once, and is reported exactly
 * once if it was not done. A third of the jobs have no report of their own, because only those go through hands. At the
 * end nothing counts as delayed any more. */
#include <sched.h>
#include <stdlib.h>

#include "base/random.h"
#include "exec/support.h"

enum { STRESS_KEYS = 9, STRESS_PRODUCERS = 3, STEER_EVERY = 64 };

enum job_kind { PLAIN, REPORTED, WILD }; /* WILD: with a priority or a delay, so in no promised order */

struct job {
    struct stress *stress;
    int producer, key; /* key 0: none */
    enum job_kind kind;
    uint64_t number, dice;
    _Atomic(kl_exec_id) id;
    atomic_bool taken;
    atomic_int starts, ends, failures;
};

struct stress {
    kl_exec *exec;
    uint64_t each;
    struct job *jobs[STRESS_PRODUCERS];
    _Atomic(struct job *) holder[STRESS_KEYS]; /* started and not ended */
    _Atomic(uint64_t) next[STRESS_PRODUCERS][STRESS_KEYS];
    atomic_int running_producers, next_producer;
    uint64_t random;
};

static const char *const stress_keys[STRESS_KEYS] = {
    "", "a", "b", "c", "d", "customer-1234", "e", "a key of more than forty bytes, so that it is kept apart", "f"};

static void release(struct job *job)
{
    struct job *expected = job;
    CHECK_INT(atomic_fetch_add(&job->ends, 1), 0);
    if (job->key && atomic_load(&job->starts) > 0)
        CHECK(atomic_compare_exchange_strong(&job->stress->holder[job->key], &expected, NULL));
}

static kl_outcome run_job(kl_run *run, void *ctx)
{
    struct job *job = ctx;
    struct stress *s = job->stress;
    struct job *before = job->key ? atomic_exchange(&s->holder[job->key], job) : NULL;
    int start = atomic_fetch_add(&job->starts, 1) + 1;
    CHECK_INT(start, kl_run_attempt(run));
    CHECK(!before || (before == job && start > 1));
    CHECK_INT(atomic_load(&job->ends), 0);
    if (start == 1 && job->key && job->kind != WILD) /* some in between may have been cancelled */
        CHECK(atomic_exchange(&s->next[job->producer][job->key], job->number + 1) <= job->number);
    uint64_t dice = (job->dice + (uint64_t)start * 7919) % 1000;
    kl_run_retry_after(run, (int64_t)(dice % 3));
    if (dice < 2)
        pthread_exit(NULL);
    if (dice % 100 == 7)
        pthread_cancel(pthread_self()); /* which ends its thread in the next task, before that has begun */
    if (dice < 60) {
        if (dice % 2)
            kl_run_error(run, "attempt %d", start);
        return KL_RETRY;
    }
    if (dice < 80)
        return KL_DEAD;
    if (job->kind == PLAIN)
        release(job);
    return KL_DONE;
}

static void end_job(void *ctx, const kl_exec_end *end)
{
    struct job *job = ctx;
    CHECK(job == end->ctx && end->fn == run_job && job->kind != PLAIN);
    CHECK_INT(end->attempts, atomic_load(&job->starts));
    release(job);
}

static void fail_job(void *ctx, const kl_exec_end *end)
{
    struct job *job = end->ctx;
    (void)ctx;
    CHECK(end->outcome != KL_DONE && end->rc != KL_OK);
    CHECK_INT(atomic_fetch_add(&job->failures, 1), 0);
    if (job->kind == PLAIN)
        release(job);
}

static void make_job(struct stress *s, int producer, uint64_t number, uint64_t *random, kl_exec_task *ret_task,
                     kl_exec_task_opts *opts)
{
    struct job *job = &s->jobs[producer][number];
    *opts = (kl_exec_task_opts){.size = sizeof *opts, .attempts_max = 4};
    job->stress = s;
    job->producer = producer;
    job->number = number;
    job->key = (int)kl__random_below(random, STRESS_KEYS);
    job->dice = kl__random_next(random);
    job->kind = (enum job_kind)kl__random_below(random, 3);
    if (job->kind != PLAIN) {
        opts->end = end_job;
        opts->end_ctx = job;
    }
    if (job->kind == WILD) {
        opts->priority = (int64_t)kl__random_below(random, 3) - 1;
        opts->delay_ms = (int64_t)kl__random_below(random, 3);
        opts->deadline_ms = kl__random_below(random, 4) ? 0 : 1 + (int64_t)kl__random_below(random, 5);
    }
    *ret_task = (kl_exec_task){kl_str(stress_keys[job->key]), run_job, job, opts};
}

/* Any call that steers, at a random task or key. */
static void steer(struct stress *s, uint64_t *random)
{
    kl_bytes key = kl_str(stress_keys[1 + kl__random_below(random, STRESS_KEYS - 1)]);
    struct job *job = &s->jobs[kl__random_below(random, STRESS_PRODUCERS)][kl__random_below(random, s->each)];
    kl_key_info info;
    kl_exec_status status;
    char text[4096];
    size_t length;
    kl_rc rc = KL_OK;
    switch (kl__random_below(random, 12)) {
    case 0:
        rc = kl_exec_key_pause(s->exec, key);
        break;
    case 1:
        rc = kl_exec_key_skip(s->exec, key);
        break;
    case 2:
        rc = kl__random_below(random, 8) ? KL_OK : kl_exec_key_drain(s->exec, key, NULL);
        break;
    case 3:
        rc = kl_exec_barrier(s->exec, key, (int64_t)kl__random_below(random, 2));
        break;
    case 4:
        rc = kl_exec_metrics(s->exec, text, sizeof text, &length);
        break;
    case 5:
    case 6:
        rc = kl_exec_key_show(s->exec, key, &info);
        break;
    case 7:
    case 8:
        rc = kl_exec_cancel(s->exec, atomic_load(&job->id));
        break;
    case 9:
        rc = kl_exec_status_of(s->exec, atomic_load(&job->id), &status);
        break;
    default:
        for (int i = 1; i < STRESS_KEYS; i++)
            rc = kl_exec_key_resume(s->exec, kl_str(stress_keys[i]));
    }
    CHECK(rc == KL_OK || rc == KL_EBUSY || rc == KL_ENOTFOUND || rc == KL_ETIMEDOUT || rc == KL_EFULL ||
          rc == KL_ECLOSED);
}

static void stress_produce(void *ctx)
{
    enum { BATCH_MAX = 12 };
    struct stress *s = ctx;
    int producer = atomic_fetch_add(&s->next_producer, 1);
    uint64_t random = s->random + (uint64_t)producer, number = 0;
    kl_rc rc = KL_OK;
    while (number < s->each && rc != KL_ECLOSED && !test_failed()) {
        kl_exec_task tasks[BATCH_MAX];
        kl_exec_task_opts opts[BATCH_MAX];
        kl_exec_id ids[BATCH_MAX] = {0};
        uint64_t count = kl__random_below(&random, 4) ? 1 : 1 + kl__random_below(&random, BATCH_MAX);
        count = count < s->each - number ? count : s->each - number;
        for (uint64_t i = 0; i < count; i++)
            make_job(s, producer, number + i, &random, &tasks[i], &opts[i]);
        if (count == 1)
            rc = kl_exec_submit(s->exec, tasks[0].key, run_job, tasks[0].ctx, tasks[0].opts, ids);
        else
            rc = kl_exec_submit_batch(s->exec, tasks, count, ids, NULL);
        CHECK(rc == KL_OK || rc == KL_EFULL || rc == KL_ECLOSED);
        bool refused[STRESS_KEYS] = {false};
        for (uint64_t i = 0; i < count; i++, number++) {
            int key = s->jobs[producer][number].key;
            CHECK(!(key && ids[i] && refused[key])); /* of each key a batch is taken from its beginning */
            refused[key] |= ids[i] == 0;
            atomic_store(&s->jobs[producer][number].id, ids[i]);
            atomic_store(&s->jobs[producer][number].taken, ids[i] != 0);
        }
        if (kl__random_below(&random, STEER_EVERY) < count || rc == KL_EFULL)
            steer(s, &random);
    }
    atomic_fetch_sub(&s->running_producers, 1);
}

static void check_jobs(struct stress *s)
{
    for (int p = 0; p < STRESS_PRODUCERS; p++) {
        for (uint64_t i = 0; i < s->each; i++) {
            struct job *job = &s->jobs[p][i];
            if (!atomic_load(&job->taken)) {
                CHECK(atomic_load(&job->starts) == 0 && atomic_load(&job->ends) == 0);
                continue;
            }
            CHECK_INT(atomic_load(&job->ends), 1);
            CHECK(atomic_load(&job->failures) <= 1 && atomic_load(&job->starts) <= 4);
        }
    }
}

static void stress_round(uint64_t seed, uint64_t each, bool frozen)
{
    struct stress *s = calloc(1, sizeof *s);
    struct helper producers[STRESS_PRODUCERS];
    uint64_t random = seed;
    s->each = each;
    s->random = kl__random_next(&random);
    kl_exec_opts opts =
        OPTS(.threads = 1 + (int64_t)kl__random_below(&random, 4), .shards = 1 + (int64_t)kl__random_below(&random, 3),
             .shard_capacity = 1 + (int64_t)kl__random_below(&random, 100), .submit_timeout_ms = 1,
             .on_failure = fail_job);
    s->exec = frozen ? open_frozen(opts) : open_exec(opts);
    REQUIRE(s->exec != NULL);
    for (int i = 0; i < STRESS_PRODUCERS; i++)
        s->jobs[i] = calloc(each, sizeof *s->jobs[i]);
    atomic_store(&s->running_producers, STRESS_PRODUCERS);
    for (int i = 0; i < STRESS_PRODUCERS; i++)
        helper_start(&producers[i], stress_produce, s);
    uint64_t mode = kl__random_below(&random, 5);
    if (mode > 0 || frozen) /* else the stop races with the producers */
        while (atomic_load(&s->running_producers) > 0) {
            if (frozen)
                pass_ms(s->exec, 1);
            sched_yield();
        }
    if (frozen && mode == 1)
        mode = 2; /* nobody moves the clock during a drain */
    if (mode == 1)
        CHECK_INT(kl_exec_drain(s->exec, KL_FOREVER), KL_OK);
    else if (mode == 2)
        CHECK_INT(kl_exec_abort(s->exec), KL_OK);
    else if (mode < 4)
        (void)!kl_exec_drain(s->exec, mode == 3 ? 2 : 0);
    for (int i = 0; i < STRESS_PRODUCERS; i++)
        helper_join(&producers[i]); /* before close: no call may be under way */
    CHECK_INT(kl_exec_abort(s->exec), KL_OK);
    for (uint32_t i = 0; i < s->exec->shard_count; i++) /* or else what is submitted is stamped for ever */
        CHECK_INT(atomic_load(&s->exec->shards[i].delayed), 0);
    kl_exec_close(s->exec);
    check_jobs(s);
    for (int i = 0; i < STRESS_PRODUCERS; i++)
        free(s->jobs[i]);
    free(s);
}

TEST(everything_at_once_keeps_every_promise)
{
    uint64_t seed = test_seed();
    for (uint64_t round = 0; round < 20 && !test_failed(); round++)
        stress_round(seed + round, 1 + test_ops(1500), false);
}

TEST(everything_at_once_keeps_every_promise_with_the_largest_hands)
{
    uint64_t seed = test_seed();
    for (uint64_t round = 0; round < 20 && !test_failed(); round++)
        stress_round(seed + 1000 + round, 1 + test_ops(1500), true);
}
