/* test_job_faults.c - jobs where things fail: replies lost at random, memory that runs out anywhere, partitions in
 * several stores, and threads that put, add and alter at once. */
#include <pthread.h>
#include <stdlib.h>

#include "base/random.h"
#include "queue/job_support.h"
#include "queue/tasks.h"

#define NO_TOKEN ((kl_bytes){"", 0})

static kl_job_spec spec_of(const kl_put *tasks, size_t count, const char *key)
{
    return (kl_job_spec){
        .size = sizeof(kl_job_spec), .tasks = tasks, .count = count, .name = key, .idempotency_key = kl_str(key)};
}

/* --- Lost replies --- */

enum { REPEATS_MAX = 400 };

/* The clock goes on between two tries, so that leases and claims of lost calls end. */
#define UNTIL_OK(rig, call)                                                                                            \
    do {                                                                                                               \
        kl_rc rc_ = KL_EBUSY;                                                                                          \
        for (int i_ = 0; i_ < REPEATS_MAX && kl_rc_class(rc_) == KL_CLASS_RETRY; i_++) {                               \
            rc_ = (call);                                                                                              \
            atomic_fetch_add(&(rig)->clock_ms, KL_JOB_LEASE_MS / 3);                                                   \
        }                                                                                                              \
        CHECK_INT(rc_, KL_OK);                                                                                         \
    } while (0)

static void change_layout(struct rig *rig, kl_queue *queue, uint64_t *random)
{
    kl_queue_opts opts = {
        .size = sizeof opts,
        .partitions = 1 + (int64_t)(kl__random_next(random) % 3),
        .shard_prefix_len = 1 + (int64_t)(kl__random_next(random) % 2),
    };
    kl_rc rc = KL_EBUSY;
    for (int i = 0; i < REPEATS_MAX && rc == KL_EBUSY && !strstr(kl_error_text(), "layouts of this queue"); i++)
        rc = kl_queue_alter(queue, &opts);
    (void)rig;
}

static void live_through_losses(struct rig *rig, kl_queue *queue, kl_queue *lossy, uint64_t *random, uint64_t round)
{
    enum { TASKS = 20, FIRST = 12 };
    char key[32], token[32];
    kl_job_answer answer = {.tasks = 0}, again = {.tasks = 0};
    snprintf(key, sizeof key, "key-%llu", (unsigned long long)round);
    snprintf(token, sizeof token, "token-%llu", (unsigned long long)round);
    kl_put *tasks = make_puts(rig, TASKS, 1 + kl__random_next(random) % 6, 0);
    kl_job_spec spec = spec_of(tasks, FIRST, key);
    UNTIL_OK(rig, kl_job_submit(lossy, &spec, &answer, NULL));
    if (kl__random_next(random) % 4 == 0)
        change_layout(rig, lossy, random);
    UNTIL_OK(rig, kl_job_submit(lossy, &spec, &again, NULL));
    CHECK(kl_id_compare(&answer.job, &again.job) == 0);
    UNTIL_OK(rig, kl_job_add(lossy, &answer.job, tasks + FIRST, TASKS - FIRST, kl_str(token), NULL));
    CHECK_INT(show_job(queue, &answer.job, &rig->arena).tasks, TASKS);
    CHECK_EACH_ONCE(queue, &answer.job, TASKS);
    CHECK_INT(settle_any(queue, KL_DEAD, SIZE_MAX), TASKS);
    UNTIL_OK(rig, kl_job_rerun(lossy, &answer.job, false, NULL));
    UNTIL_OK(rig, kl_job_rerun(lossy, &answer.job, true, NULL)); /* nothing is finished, or the first was not */
    CHECK_EACH_ONCE(queue, &answer.job, TASKS);
    CHECK_INT(settle_any(queue, KL_DONE, SIZE_MAX), TASKS);
    kl_rc rc = KL_EBUSY;
    for (int i = 0; i < REPEATS_MAX && rc == KL_EBUSY; i++)
        rc = remove_job(lossy, &answer.job);
    CHECK(rc == KL_OK || rc == KL_ENOTFOUND); /* the reply to its last write was lost */
    CHECK_INT(jobs_named(queue, key), 0);
}

CLAIM(jobs_live_through_replies_lost_at_random)
{
    uint64_t random = test_seed(), rounds = test_rounds(10);
    struct lossy lossy;
    kl_store *store;
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 2);
    REQUIRE(queue && lossy_open(&lossy, rig->store, random, &store) == KL_OK);
    kl_queue *unlucky = NULL;
    for (int i = 0; i < REPEATS_MAX && !unlucky; i++)
        (void)!kl_queue_find(store, "orders", &unlucky);
    REQUIRE(unlucky);
    kl__queue_sleep_by(sleep_not);
    for (uint64_t i = 0; i < rounds && !test_failed(); i++)
        live_through_losses(rig, queue, unlucky, &random, i);
    kl__queue_sleep_by(NULL);
    CHECK(atomic_load(&lossy.lost_replies) > 0 && atomic_load(&lossy.lost_requests) > 0);
    kl_queue_close(unlucky);
    kl_store_close(store);
    kl_queue_close(queue);
}

/* --- Memory --- */

/* A whole life of a job in which the n-th allocation fails; each call is made again until it goes well. */
static bool live_without_memory(struct rig *rig, kl_queue *queue, uint64_t n)
{
    enum { TASKS = 6, FIRST = 4 };
    char key[32];
    snprintf(key, sizeof key, "key-%llu", (unsigned long long)n);
    kl_put *tasks = make_puts(rig, TASKS, 2, 0);
    kl_job_spec spec = spec_of(tasks, FIRST, key);
    kl_job_answer answer = {.tasks = 0};
    kl_found found[TASKS];
    kl_job_info info = {.tasks = 0};
    kl_bytes cursor;
    size_t count = 0;
    kl__alloc_fail_at(n);
    UNTIL_OK(rig, kl_job_submit(queue, &spec, &answer, NULL));
    UNTIL_OK(rig, kl_job_add(queue, &answer.job, tasks + FIRST, TASKS - FIRST, kl_str(key), NULL));
    UNTIL_OK(rig, kl_job_show(queue, &answer.job, &rig->arena, &info));
    bool hit = kl__alloc_fail_at(0) >= n;
    CHECK_INT(info.tasks, TASKS);
    CHECK_EACH_ONCE(queue, &answer.job, TASKS);
    CHECK_INT(settle_any(queue, KL_DONE, SIZE_MAX), TASKS);
    kl__alloc_fail_at(n);
    UNTIL_OK(rig, kl_job_results(queue, &answer.job, NO_TOKEN, TASKS, &rig->arena, found, &count, &cursor, NULL));
    CHECK_INT(count, TASKS);
    UNTIL_OK(rig, kl_job_rerun(queue, &answer.job, false, NULL));
    UNTIL_OK(rig, kl_job_cancel(queue, &answer.job));
    hit |= kl__alloc_fail_at(0) >= n;
    CHECK_EACH_ONCE(queue, &answer.job, TASKS);
    CHECK_INT(settle_any(queue, KL_CANCELLED, SIZE_MAX), TASKS);
    kl__alloc_fail_at(n);
    kl_rc rc = KL_ENOMEM;
    while (rc == KL_ENOMEM)
        rc = remove_job(queue, &answer.job);
    hit |= kl__alloc_fail_at(0) >= n;
    CHECK(rc == KL_OK || rc == KL_ENOTFOUND);
    return hit;
}

CLAIM_IN_MEMORY(jobs_survive_a_lack_of_memory_anywhere)
{
    kl_queue *queue = OPEN(rig->store, "orders");
    REQUIRE(queue);
    uint64_t n = 1, step = test_rounds(10) == 10 ? 1 : 7;
    while (n < 5000 && !test_failed() && live_without_memory(rig, queue, n))
        n += step;
    CHECK(n > 100 && n < 5000);
    kl_queue_close(queue);
}

/* --- Several stores --- */

static void in_two_stores(struct rig *rig, const char *const *urls, const char *const *other_urls)
{
    enum { TASKS = 60 };
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 3, .stores = urls, .store_count = 3);
    kl_found found[TASKS];
    kl_bytes cursor;
    size_t count = 0;
    uint64_t again = 0;
    kl_account account;
    REQUIRE(queue);
    kl_task_id job = submit_job(queue, make_puts(rig, TASKS, 17, 0), TASKS);
    CHECK_EACH_ONCE(queue, &job, TASKS);
    CHECK_INT(settle_any(queue, KL_DEAD, TASKS / 2), TASKS / 2);
    kl_queue_opts moved = {.size = sizeof moved, .partitions = 4, .stores = other_urls, .store_count = 4};
    CHECK_INT(kl_queue_alter(queue, &moved), KL_OK);
    kl_redrive some = {.max = 7};
    CHECK_INT(kl_dead_retry(queue, &some, &account), KL_OK);
    CHECK_INT(account.done, 7);
    CHECK_INT(kl_job_rerun(queue, &job, true, &again), KL_OK);
    CHECK_INT(again, TASKS / 2 - 7);
    CHECK_EACH_ONCE(queue, &job, TASKS);
    CHECK_INT(settle_any(queue, KL_DONE, SIZE_MAX), TASKS);
    CHECK_INT(kl_job_results(queue, &job, NO_TOKEN, TASKS, &rig->arena, found, &count, &cursor, NULL), KL_OK);
    CHECK_INT(count, TASKS);
    for (size_t i = 1; i < count; i++)
        CHECK(kl_id_compare(&found[i - 1].task.entry.id, &found[i].task.entry.id) < 0);
    CHECK_INT(show_job(queue, &job, &rig->arena).state, KL_JOB_FINISHED);
    CHECK_INT(remove_job(queue, &job), KL_OK);
    CHECK_INT(kl_queue_remove(queue), KL_OK);
    kl_queue_close(queue);
}

CLAIM_IN_MEMORY(a_job_may_lie_in_several_stores_in_memory)
{
    const char *urls[] = {"", "memory:", ""}, *others[] = {"memory:", "", "memory:", ""};
    in_two_stores(rig, urls, others);
}

CLAIM_IN_MEMORY(a_job_may_lie_in_several_stores_on_disk)
{
    char url[WORKDIR_BYTES + 16];
    snprintf(url, sizeof url, "disk:%s/other", rig->path);
    const char *urls[] = {"", url, url}, *others[] = {url, "", "memory:", url};
    in_two_stores(rig, urls, others);
}

/* --- Threads --- */

enum { PRODUCERS = 4, KEYS = 5 };

struct crowd {
    kl_store *store;
    uint64_t rounds;
    uint64_t seed;
    _Atomic uint64_t put;
    _Atomic int running;
    kl_task_id job;
};

struct member {
    struct crowd *crowd;
    uint64_t number;
};

/* Each has a handle of its own, as another process would. Payloads of a key ascend for each producer. */
static void *produce(void *ctx)
{
    const struct member *member = ctx;
    struct crowd *crowd = member->crowd;
    kl_queue *queue = NULL;
    char key[16], payload[32], token[32];
    CHECK_INT(kl_queue_find(crowd->store, "orders", &queue), KL_OK);
    for (uint64_t i = 0; queue && i < crowd->rounds; i++) {
        snprintf(key, sizeof key, "key-%llu", (unsigned long long)(i % KEYS));
        snprintf(payload, sizeof payload, "%llu-%llu", (unsigned long long)member->number, (unsigned long long)i);
        snprintf(token, sizeof token, "%llu/%llu", (unsigned long long)member->number, (unsigned long long)i);
        kl_put task = {.key = kl_str(key), .payload = kl_str(payload)};
        kl_rc rc = KL_EBUSY;
        for (int tries = 0; tries < REPEATS_MAX && rc == KL_EBUSY; tries++)
            rc = member->number == 0
                     ? kl_job_add(queue, &crowd->job, &task, 1, kl_str(token), NULL)
                     : kl_queue_put(queue, &task, 1, member->number == 1 ? kl_str(token) : NO_TOKEN, NULL);
        if (rc != KL_OK)
            test_fail(__FILE__, __LINE__, "a put fails: %s", kl_error_text());
        atomic_fetch_add(&crowd->put, rc == KL_OK);
    }
    kl_queue_close(queue);
    atomic_fetch_sub(&crowd->running, 1);
    return NULL;
}

/* Until the producers have ended, or there are as many layouts as there may be. */
static void *alter_meanwhile(void *ctx)
{
    struct crowd *crowd = ctx;
    kl_queue *queue = NULL;
    uint64_t random = crowd->seed;
    kl_rc rc = kl_queue_find(crowd->store, "orders", &queue);
    while (rc == KL_OK && atomic_load(&crowd->running) > 0) {
        kl_queue_opts opts = {
            .size = sizeof opts,
            .partitions = 1 + (int64_t)(kl__random_next(&random) % 4),
            .shard_prefix_len = 1 + (int64_t)(kl__random_next(&random) % 2),
        };
        rc = kl_queue_alter(queue, &opts);
    }
    CHECK(rc == KL_OK || rc == KL_EBUSY);
    kl_queue_close(queue);
    return NULL;
}

static bool parse_payload(const kl_task *task, unsigned long long *ret_producer, unsigned long long *ret_number)
{
    char text[32] = "";
    memcpy(text, task->entry.payload.data, task->entry.payload.len < 31 ? task->entry.payload.len : 31);
    return sscanf(text, "%llu-%llu", ret_producer, ret_number) == 2;
}

/* Every task is there once, and those of one producer and key stand in its order, layout by layout. */
static void check_crowd(struct crowd *crowd, struct rig *rig, kl_queue *queue)
{
    struct tasks tasks = scan_tasks(queue, &rig->arena);
    uint64_t *next = calloc(PRODUCERS * KEYS, sizeof *next);
    CHECK_INT(tasks.count, atomic_load(&crowd->put));
    for (size_t i = 0; i < tasks.count; i++) {
        unsigned long long producer, number;
        if (!parse_payload(&tasks.tasks[i], &producer, &number) || producer >= PRODUCERS) {
            test_fail(__FILE__, __LINE__, "a payload that nobody put");
            continue;
        }
        uint64_t *line = &next[producer * KEYS + number % KEYS];
        if (number / KEYS != *line)
            test_fail(__FILE__, __LINE__, "producer %llu, key %llu: %llu where %llu should be", producer, number % KEYS,
                      number / KEYS, (unsigned long long)*line);
        *line = number / KEYS + 1;
    }
    free(next);
}

CLAIM(threads_put_add_and_alter_at_once)
{
    struct crowd crowd = {.store = rig->store, .rounds = test_rounds(300), .seed = test_seed()};
    struct member members[PRODUCERS];
    pthread_t threads[PRODUCERS + 1];
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 2);
    REQUIRE(queue);
    crowd.job = submit_job(queue, NULL, 0);
    atomic_store(&crowd.running, PRODUCERS);
    for (uint64_t i = 0; i < PRODUCERS; i++) {
        members[i] = (struct member){&crowd, i};
        CHECK_INT(pthread_create(&threads[i], NULL, produce, &members[i]), 0);
    }
    CHECK_INT(pthread_create(&threads[PRODUCERS], NULL, alter_meanwhile, &crowd), 0);
    for (int i = 0; i <= PRODUCERS; i++)
        pthread_join(threads[i], NULL);
    CHECK_INT(kl__queue_refresh(queue), KL_OK);
    check_crowd(&crowd, rig, queue);
    CHECK_INT(show_job(queue, &crowd.job, &rig->arena).tasks, crowd.rounds);
    kl_queue_close(queue);
}
