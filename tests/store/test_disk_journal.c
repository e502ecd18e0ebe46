/* test_disk_journal.c - groups of calls: who shares a commit, in which order, and what an exclusive write sees. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/cores.h"
#include "base/random.h"
#include "base/wait.h"
#include "disk_rig.h"
#include "store/disk/journal.h"

enum { THREADS = 8, CALLS = 3000, RECORDS_MAX = 5, SEGMENT = 256 << 10, ASYNC_CALLS = 5000 };

/* A journal without the engine above it. Every record is a WRITE of its own name, so that what is applied can be
 * counted. */
struct bench {
    char dir[WORKDIR_BYTES];
    kl__state state;
    kl__segments segments;
    kl__journal *journal;
    _Atomic uint64_t records; /* acknowledged */
    uint64_t calls_each;
    _Atomic bool ends;
};

/* The machine's file system, with what is synced counted. */
static _Atomic uint64_t syncs;

static int count_sync(kl__vfs *vfs, kl__file *file)
{
    atomic_fetch_add(&syncs, 1);
    return kl__vfs_system.sync(vfs, file);
}

static kl__vfs counting;

static int64_t now_ms(void *ctx)
{
    (void)ctx;
    return 1000;
}

static bool bench_begin(struct bench *bench)
{
    memset(bench, 0, sizeof *bench);
    if (!workdir_make(bench->dir))
        return false;
    counting = kl__vfs_system;
    counting.sync = count_sync;
    atomic_store(&syncs, 0);
    kl__segments *segments = &bench->segments;
    *segments = (kl__segments){
        .vfs = &counting, .journal = 1, .segment_bytes = SEGMENT, .state = &bench->state, .next_number = 1};
    snprintf(segments->dir, sizeof segments->dir, "%s", bench->dir);
    pthread_mutex_init(&segments->files, NULL);
    pthread_mutex_init(&segments->mutex, NULL);
    pthread_cond_init(&segments->changed, NULL);
    CHECK_OK(kl__state_open(&bench->state));
    CHECK_OK(kl__journal_open(&bench->state, segments, now_ms, NULL, 0, 0, &bench->journal));
    bench->calls_each = test_ops(CALLS);
    return bench->journal != NULL;
}

static void bench_end(struct bench *bench)
{
    kl__journal_close(bench->journal);
    kl__segments_close(&bench->segments);
    kl__state_close(&bench->state);
    CHECK(workdir_remove(bench->dir));
}

static size_t write_bytes(void) { return kl__round8(sizeof(kl__write_record) + 8); }

/* The record's name is its sequence number. */
static uint32_t put_write(char *at, uint64_t sequence)
{
    kl__write_record *write = (kl__write_record *)(void *)at;
    *write = (kl__write_record){
        .header = {.sequence = sequence, .type = KL_RECORD_WRITE}, .version = sequence, .name_bytes = 8};
    memcpy(write + 1, &sequence, 8);
    return kl__record_seal(&write->header, (char *)(write + 1) + 8);
}

static kl_rc reserve(struct bench *bench, size_t records, kl__commit *call)
{
    return kl__journal_reserve(bench->journal, records * write_bytes(), records, call);
}

static void publish(struct bench *bench, size_t records, kl__commit *call)
{
    uint64_t sum = 0;
    char *at = call->bytes;
    for (size_t i = 0; i < records; i++, at += write_bytes())
        sum += put_write(at, call->sequence + i);
    kl__journal_publish(bench->journal, call, sum);
}

static bool is_applied(struct bench *bench, uint64_t sequence)
{
    pthread_mutex_lock(&bench->state.mutex);
    bool found = kl__records_find(&bench->state.records, (kl_bytes){&sequence, 8}) != NULL;
    pthread_mutex_unlock(&bench->state.mutex);
    return found;
}

/* ---- Many threads ---- */

static void *call_often(void *ctx)
{
    struct bench *bench = ctx;
    uint64_t random = kl__random_seed(), last = 0;
    for (uint64_t i = 0; i < bench->calls_each && !test_failed(); i++) {
        kl__commit call = {.done = NULL};
        size_t records = 1 + kl__random_below(&random, RECORDS_MAX);
        CHECK_OK(reserve(bench, records, &call));
        uint64_t first = call.sequence;
        CHECK(first > last); /* J3 */
        last = first + records - 1;
        publish(bench, records, &call);
        CHECK_OK(kl__journal_wait(bench->journal, &call));
        CHECK(is_applied(bench, first) && is_applied(bench, last)); /* J1 */
        atomic_fetch_add(&bench->records, records);
    }
    return NULL;
}

/* What was acknowledged is applied, each number was given once, and commits were shared. */
TEST(calls_of_many_threads_share_commits)
{
    struct bench bench;
    pthread_t threads[THREADS];
    REQUIRE(bench_begin(&bench));
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, call_often, &bench) == 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    CHECK_INT(bench.state.records.count, bench.records);
    for (uint64_t sequence = 1; sequence <= bench.records; sequence += 1 + bench.records / 1000)
        CHECK(is_applied(&bench, sequence));
    CHECK(syncs < bench.calls_each * THREADS);
    bench_end(&bench);
}

/* ---- Exclusive ---- */

/* Everything with a lower number is applied, and nothing else: as many records as there are numbers below. */
static size_t fill_one(void *ctx, char *bytes, uint64_t sequence, size_t *ret_bytes, uint64_t *ret_sum)
{
    struct bench *bench = ctx;
    pthread_mutex_lock(&bench->state.mutex);
    CHECK_INT(bench->state.records.count, sequence - 1);
    pthread_mutex_unlock(&bench->state.mutex);
    *ret_sum = put_write(bytes, sequence);
    *ret_bytes = write_bytes();
    return 1;
}

static void *exclude_often(void *ctx)
{
    struct bench *bench = ctx;
    while (!atomic_load(&bench->ends)) {
        CHECK_OK(kl__journal_exclusive(bench->journal, fill_one, bench));
        atomic_fetch_add(&bench->records, 1);
    }
    return NULL;
}

TEST(an_exclusive_write_sees_all_before_it_applied_and_nothing_under_way)
{
    struct bench bench;
    pthread_t threads[THREADS], excluder;
    REQUIRE(bench_begin(&bench));
    CHECK(pthread_create(&excluder, NULL, exclude_often, &bench) == 0);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, call_often, &bench) == 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    atomic_store(&bench.ends, true);
    pthread_join(excluder, NULL);
    CHECK_INT(bench.state.records.count, bench.records);
    bench_end(&bench);
}

/* Some of them rest now and then, so that the others wait for them in vain. */
static void *call_until_it_ends(void *ctx)
{
    struct bench *bench = ctx;
    uint64_t random = kl__random_seed();
    while (!atomic_load(&bench->ends) && !test_failed()) {
        kl__commit call = {.done = NULL};
        CHECK_OK(reserve(bench, 1, &call));
        publish(bench, 1, &call);
        CHECK_OK(kl__journal_wait(bench->journal, &call));
        atomic_fetch_add(&bench->records, 1);
        if (kl__random_below(&random, 20) == 0)
            kl__nap(1000000);
    }
    return NULL;
}

TEST(an_exclusive_write_has_its_turn_beside_a_crowd_that_never_stops)
{
    enum { CROWD_A_CORE = 4, CROWD_MAX = 64, TURNS = 100 };
    struct bench bench;
    pthread_t threads[CROWD_MAX];
    int crowd = kl__cores() * CROWD_A_CORE < CROWD_MAX ? kl__cores() * CROWD_A_CORE : CROWD_MAX;
    REQUIRE(bench_begin(&bench));
    for (int i = 0; i < crowd; i++)
        CHECK(pthread_create(&threads[i], NULL, call_until_it_ends, &bench) == 0);
    for (int turn = 0; turn < TURNS; turn++) {
        CHECK_OK(kl__journal_exclusive(bench.journal, fill_one, &bench));
        atomic_fetch_add(&bench.records, 1);
    }
    atomic_store(&bench.ends, true);
    for (int i = 0; i < crowd; i++)
        pthread_join(threads[i], NULL);
    CHECK_INT(bench.state.records.count, bench.records);
    bench_end(&bench);
}

static size_t fill_nothing(void *ctx, char *bytes, uint64_t sequence, size_t *ret_bytes, uint64_t *ret_sum)
{
    (void)bytes, (void)sequence, (void)ret_bytes, (void)ret_sum;
    ++*(int *)ctx;
    return 0;
}

TEST(an_exclusive_write_of_nothing_writes_nothing)
{
    struct bench bench;
    int times = 0;
    REQUIRE(bench_begin(&bench));
    CHECK_OK(kl__journal_exclusive(bench.journal, fill_nothing, &times));
    CHECK_INT(times, 1);
    CHECK_INT(syncs, 0);
    bench_end(&bench);
}

/* ---- Asynchronous ---- */

/* The calls of one thread, told in their order. */
struct told {
    struct bench *bench;
    _Atomic uint64_t count;
    uint64_t last; /* sequence number */
};

struct asked {
    struct told *told;
    uint64_t sequence;
};

static void be_told(void *ctx, kl_rc rc, const char *error)
{
    struct asked *asked = ctx;
    CHECK_INT(rc, KL_OK);
    CHECK_STR(error, "");
    CHECK(asked->sequence > asked->told->last);
    CHECK(is_applied(asked->told->bench, asked->sequence));
    asked->told->last = asked->sequence;
    atomic_fetch_add(&asked->told->count, 1);
    free(asked);
}

static void ask(struct told *told)
{
    kl__commit *call = kl__alloc_zeroed(1, sizeof *call);
    struct asked *asked = calloc(1, sizeof *asked);
    call->done = be_told;
    call->ctx = asked;
    asked->told = told;
    CHECK_OK(reserve(told->bench, 1, call));
    asked->sequence = call->sequence;
    publish(told->bench, 1, call);
}

static void *ask_often(void *ctx)
{
    for (uint64_t i = 0, calls = test_ops(ASYNC_CALLS); i < calls; i++)
        ask(ctx);
    return NULL;
}

/* With others that wait, so that the lead changes hands; close completes what is under way. */
TEST(asynchronous_calls_are_told_in_order_each_once)
{
    struct bench bench;
    struct told told[2] = {{.bench = &bench}, {.bench = &bench}};
    pthread_t threads[4];
    REQUIRE(bench_begin(&bench));
    for (int i = 0; i < 2; i++) {
        CHECK(pthread_create(&threads[i], NULL, ask_often, &told[i]) == 0);
        CHECK(pthread_create(&threads[2 + i], NULL, call_often, &bench) == 0);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    bench_end(&bench);
    for (int i = 0; i < 2; i++)
        CHECK_INT(told[i].count, test_ops(ASYNC_CALLS));
}
