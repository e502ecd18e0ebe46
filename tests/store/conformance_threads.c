/* conformance_threads.c - everything at once: producers, owners, fences, and threads that change one record.
 *
 * An id says who made it and which one it is: the lane is the producer, the milliseconds count its tasks. So the owners
 * need not read a task to know whether it comes in order. */
#include <sched.h>
#include <stdlib.h>

#include "base/random.h"
#include "store/calls.h"
#include "store/conformance.h"

enum { PRODUCERS = 8, OWNERS = 4, SHARDS = 16, APPEND_MAX = 8, PIECE = 64, PATIENT_MS = 1 };

static const kl_layout layout = {1, 1};

struct traffic {
    struct trial *t;
    uint64_t each; /* tasks of a producer */
    uint64_t seed;
    atomic_int next_producer, next_owner;
    _Atomic uint64_t done, retried, refused;
    atomic_uchar *ends; /* of each task: how often it was done */
    _Atomic uint64_t epochs[SHARDS];
};

/* ---- Producers ---- */

static void told_of_append(void *ctx, kl_rc rc, const char *error)
{
    if (rc != KL_OK)
        test_fail(__FILE__, __LINE__, "an append failed: %s", error);
    tally_add(ctx, 1);
}

static kl_entry make_numbered(const struct traffic *traffic, int producer, uint64_t number, uint64_t *random)
{
    kl_id_parts parts = {.shard = (uint32_t)kl__random_below(random, SHARDS),
                         .ms = START_MS + (int64_t)number,
                         .lane = (uint32_t)producer + 1};
    kl_entry entry = {.place = order_place(traffic->t, parts.shard), .payload = kl_str("traffic")};
    CHECK_OK(kl_id_pack(&layout, &parts, &entry.id));
    return entry;
}

static void *produce(void *ctx)
{
    struct traffic *traffic = ctx;
    int producer = atomic_fetch_add(&traffic->next_producer, 1);
    uint64_t random = traffic->seed + (uint64_t)producer, count;
    int64_t under_way = 0;
    struct tally told = TALLY;
    for (uint64_t at = 0; at < traffic->each; at += count) {
        kl_entry entries[APPEND_MAX];
        count = 1 + kl__random_below(&random, APPEND_MAX);
        count = count < traffic->each - at ? count : traffic->each - at;
        for (uint64_t i = 0; i < count; i++)
            entries[i] = make_numbered(traffic, producer, at + i, &random);
        kl_token token = make_token();
        if (kl__random_below(&random, 2)) {
            CHECK_OK(kl_store_append(traffic->t->store, entries, count, &token));
        } else {
            CHECK_OK(kl_store_append_async(traffic->t->store, entries, count, &token, told_of_append, &told));
            under_way++;
        }
    }
    tally_await(&told, under_way);
    return NULL;
}

/* ---- Owners ---- */

/* What an owner knows of one shard: the last task of each producer that it settled off the ready line. */
struct shard_view {
    int64_t settled[PRODUCERS];
};

static size_t number_of(const struct traffic *traffic, const kl_task_id *id, int *ret_producer)
{
    kl_id_parts parts = kl_id_unpack(&layout, id);
    *ret_producer = (int)parts.lane - 1;
    return (size_t)*ret_producer * traffic->each + (size_t)(parts.ms - START_MS);
}

/* The piece continues each producer's numbers; what a settled piece showed is never shown again. */
static void check_order(const struct traffic *traffic, const struct shard_view *view, const kl_stub *stubs,
                        size_t count)
{
    int64_t last[PRODUCERS];
    memcpy(last, view->settled, sizeof last);
    for (size_t i = 0; i < count; i++) {
        int producer;
        int64_t number = (int64_t)number_of(traffic, &stubs[i].id, &producer);
        CHECK(producer >= 0 && producer < PRODUCERS && number > last[producer]);
        if (producer >= 0 && producer < PRODUCERS)
            last[producer] = number;
        CHECK(i == 0 || stubs[i].position > stubs[i - 1].position);
    }
}

static void note_settled(struct traffic *traffic, struct shard_view *view, const kl_settled *tasks, size_t count,
                         int32_t line)
{
    for (size_t i = 0; i < count; i++) {
        int producer;
        size_t number = number_of(traffic, &tasks[i].id, &producer);
        if (line != KL_LINE_RETRY)
            view->settled[producer] = (int64_t)number;
        if (tasks[i].outcome == KL_RETRY) {
            atomic_fetch_add(&traffic->retried, 1);
            continue;
        }
        CHECK_INT(atomic_fetch_add(&traffic->ends[number], 1), 0);
        atomic_fetch_add(&traffic->done, 1);
    }
}

/* Reads a piece of a line and settles all of it: some are to be tried again. */
static void serve_line(struct traffic *traffic, uint32_t shard, int32_t line, struct shard_view *view, uint64_t *random)
{
    kl_stub stubs[PIECE];
    kl_settled tasks[PIECE];
    size_t count = 0;
    uint64_t epoch = atomic_load(&traffic->epochs[shard]);
    kl_scan scan = {.place = order_place(traffic->t, shard), .line = line, .max = PIECE};
    CHECK_OK(scan_one(traffic->t->store, &scan, stubs, &count));
    if (line != KL_LINE_RETRY)
        check_order(traffic, view, stubs, count);
    for (size_t i = 0; i < count; i++)
        tasks[i] = next_attempt(&stubs[i], kl__random_below(random, 5) ? KL_DONE : KL_RETRY);
    if (count == 0)
        return;
    kl_rc rc = settle(traffic->t, scan.place, epoch, tasks, count);
    if (rc == KL_OK)
        note_settled(traffic, view, tasks, count, line);
    else if (rc == KL_ESTALE)
        atomic_fetch_add(&traffic->refused, 1);
    else
        test_fail(__FILE__, __LINE__, "a settle failed: %s", kl_error_text());
}

static bool over(const struct traffic *traffic)
{
    return atomic_load(&traffic->done) >= PRODUCERS * traffic->each || test_failed();
}

static void *own(void *ctx)
{
    struct traffic *traffic = ctx;
    int owner = atomic_fetch_add(&traffic->next_owner, 1);
    uint64_t random = traffic->seed * 31 + (uint64_t)owner, seen = 0;
    struct shard_view views[SHARDS / OWNERS];
    memset(views, 0xff, sizeof views); /* -1: none settled */
    while (!over(traffic)) {
        for (uint32_t i = 0; i < SHARDS / OWNERS; i++) {
            uint32_t shard = (uint32_t)owner + i * OWNERS;
            serve_line(traffic, shard, KL_LINE_RETRY, &views[i], &random);
            serve_line(traffic, shard, 0, &views[i], &random);
        }
        CHECK_OK(kl_store_wait(traffic->t->store, traffic->t->orders, PATIENT_MS, &seen));
    }
    return NULL;
}

/* ---- Fences ---- */

/* Fences shards one after the other; owners learn of the epoch only afterwards, so some of their settles come too late.
 * A settle below the fence is then refused for sure. */
static void *raise_fences(void *ctx)
{
    struct traffic *traffic = ctx;
    uint64_t random = traffic->seed * 17;
    while (!over(traffic)) {
        uint32_t shard = (uint32_t)kl__random_below(&random, SHARDS);
        kl_place place = order_place(traffic->t, shard);
        uint64_t epoch = atomic_load(&traffic->epochs[shard]) + 1;
        CHECK_OK(fence(traffic->t, place, epoch));
        kl_stub stub;
        size_t count = 0;
        CHECK_OK(scan_one(traffic->t->store, &(kl_scan){.place = place, .max = 1}, &stub, &count));
        if (count) {
            kl_settled stale = next_attempt(&stub, KL_DONE);
            CHECK_RC(settle(traffic->t, place, epoch - 1, &stale, 1), KL_ESTALE);
        }
        atomic_store(&traffic->epochs[shard], epoch);
        for (uint64_t i = kl__random_below(&random, 64); i > 0; i--)
            sched_yield();
    }
    return NULL;
}

static void check_all_done(struct traffic *traffic)
{
    uint64_t tasks = PRODUCERS * traffic->each, missing = 0;
    for (uint64_t i = 0; i < tasks; i++)
        missing += atomic_load(&traffic->ends[i]) != 1;
    CHECK_INT(missing, 0);
    BOTH_LIVES(traffic->t)
    {
        kl_counts counts = counts_of(traffic->t, whole(traffic->t->orders));
        CHECK(counts.ready == 0 && counts.due == 0 && counts.retry == 0 && counts.priorities == 0);
        for (uint32_t shard = 0; shard < SHARDS; shard++) {
            CHECK_LINE(traffic->t, order_place(traffic->t, shard), 0, NULL, 0);
            CHECK_LINE(traffic->t, order_place(traffic->t, shard), KL_LINE_RETRY, NULL, 0);
        }
    }
}

static void join(pthread_t *threads, int count)
{
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
}

CLAIM(nothing_is_lost_or_doubled_while_producers_owners_and_fences_race)
{
    struct traffic traffic = {.t = t, .each = test_ops(2000) + 10, .seed = test_seed()};
    pthread_t threads[PRODUCERS + OWNERS + 1];
    traffic.ends = calloc(PRODUCERS * traffic.each, sizeof *traffic.ends);
    REQUIRE(traffic.ends);
    for (int i = 0; i < PRODUCERS + OWNERS + 1; i++)
        if (pthread_create(&threads[i], NULL,
                           i < PRODUCERS            ? produce
                           : i < PRODUCERS + OWNERS ? own
                                                    : raise_fences,
                           &traffic) != 0)
            abort();
    join(threads, PRODUCERS + OWNERS + 1);
    check_all_done(&traffic);
    CHECK(atomic_load(&traffic.retried) > 0);
    free(traffic.ends);
}

/* ---- A fence against a settle ---- */

enum { RACE_TASKS = 40, RACE_ROUNDS = 50 };

struct race {
    struct trial *t;
    kl_place place;
    uint64_t epoch;
    kl_stub stubs[RACE_TASKS];
};

static void *settle_on(void *ctx)
{
    struct race *race = ctx;
    kl_rc rc = KL_OK;
    for (int i = 0; rc == KL_OK && i < RACE_TASKS; i++) {
        kl_settled done = next_attempt(&race->stubs[i], KL_DONE);
        rc = settle(race->t, race->place, race->epoch, &done, 1);
        CHECK(rc == KL_OK || rc == KL_ESTALE);
    }
    return NULL;
}

CLAIM(what_a_scan_shows_behind_a_fence_is_not_settled_by_stale_owners)
{
    struct race race = {.t = t, .place = order_place(t, 3)};
    for (uint64_t round = 1; round <= RACE_ROUNDS; round++) {
        kl_entry entries[RACE_TASKS];
        size_t count = 0, before = 0, after = 0;
        pthread_t thread;
        for (int i = 0; i < RACE_TASKS; i++)
            entries[i] = make_entry(t, race.place, NULL, "x");
        append(t, entries, RACE_TASKS);
        CHECK_OK(scan_one(t->store, &(kl_scan){.place = race.place, .max = RACE_TASKS}, race.stubs, &count));
        REQUIRE(count == RACE_TASKS);
        race.epoch = round - 1;
        REQUIRE(pthread_create(&thread, NULL, settle_on, &race) == 0);
        for (uint64_t i = 0; i < round; i++)
            sched_yield();
        CHECK_OK(fence(t, race.place, round));
        kl_stub *shown = scan_line(t, race.place, 0, &before);
        pthread_join(thread, NULL);
        (void)scan_line(t, race.place, 0, &after);
        CHECK_INT(after, before);
        kl_settled rest[RACE_TASKS];
        for (size_t i = 0; i < before && i < RACE_TASKS; i++)
            rest[i] = next_attempt(&shown[i], KL_DONE);
        CHECK_OK(settle(t, race.place, round, rest, before));
    }
}

/* ---- Records and partitions ---- */

enum { COUNTERS = 8 };

struct counting {
    struct trial *t;
    uint64_t each;
    uint32_t partitions[COUNTERS][4];
    atomic_int next;
};

static void *count_up(void *ctx)
{
    struct counting *counting = ctx;
    kl_arena arena = {0};
    int self = atomic_fetch_add(&counting->next, 1);
    for (uint64_t made = 0; made < counting->each && !test_failed();) {
        kl_record record;
        kl_bytes name = kl_str("counter");
        char value[48];
        CHECK_OK(kl_store_get(counting->t->store, &name, 1, &arena, &record));
        uint64_t total = record.version ? strtoull(record.value.data, NULL, 10) : 0;
        snprintf(value, sizeof value, "%" PRIu64 " by %d, its %" PRIu64, total + 1, self, made);
        kl_write write = {.name = name, .version = record.version, .value = kl_str(value)};
        kl_rc rc = kl_store_put(counting->t->store, &write, 1);
        CHECK(rc == KL_OK || rc == KL_ECONFLICT);
        made += rc == KL_OK;
        kl_arena_reset(&arena);
    }
    kl_arena_free(&arena);
    return NULL;
}

CLAIM(threads_that_write_one_record_by_its_version_lose_no_update)
{
    struct counting counting = {.t = t, .each = test_ops(500) + 10};
    pthread_t threads[COUNTERS];
    for (int i = 0; i < COUNTERS; i++)
        if (pthread_create(&threads[i], NULL, count_up, &counting) != 0)
            abort();
    join(threads, COUNTERS);
    BOTH_LIVES(t)
    {
        kl_record record = get_record(t, "counter");
        REQUIRE(record.version);
        CHECK_INT(strtoull(record.value.data, NULL, 10), COUNTERS * counting.each);
    }
}

static void *ask_for_partitions(void *ctx)
{
    struct counting *counting = ctx;
    uint32_t *numbers = counting->partitions[atomic_fetch_add(&counting->next, 1)];
    static const char *const names[] = {"w", "x", "y", "z"};
    for (int i = 0; i < 4; i++)
        CHECK_OK(kl_store_partition(counting->t->store, names[i], 1, &numbers[i]));
    return NULL;
}

CLAIM(threads_that_make_one_partition_get_one_number)
{
    struct counting counting = {.t = t};
    pthread_t threads[COUNTERS];
    for (int i = 0; i < COUNTERS; i++)
        if (pthread_create(&threads[i], NULL, ask_for_partitions, &counting) != 0)
            abort();
    join(threads, COUNTERS);
    for (int i = 0; i < 4; i++) {
        CHECK(counting.partitions[0][i] > 0);
        for (int j = 1; j < COUNTERS; j++)
            CHECK_INT(counting.partitions[j][i], counting.partitions[0][i]);
        for (int j = 0; j < i; j++)
            CHECK(counting.partitions[0][i] != counting.partitions[0][j]);
    }
}
