/* test_s3_bounds.c - the S3 engine and what it may take: requests to the first task, archives that are read, memory of
 * a process that only looks, rounds of an append that was split. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/clock.h"
#include "harness.h"
#include "keyline/keyline.h"
#include "keyline/store.h"
#include "store/check_rc.h"
#include "store/dispatch.h"
#include "store/fault_proxy.h"
#include "store/s3/s3.h"
#include "store/s3_bucket.h"
#include "store/s3_server.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

enum { PATIENCE_MS = 60000, SHARDS = 16 };

static kl__s3 *inside(kl_store *store) { return store->self; }

/* The same place, reached through a proxy. */
static struct fault_proxy *watch_url(const char *url, char watched[S3_URL_BYTES])
{
    char endpoint[S3_URL_BYTES];
    CHECK_OK(s3_server_endpoint(endpoint));
    struct fault_proxy *proxy = fault_proxy_start(atoi(strrchr(endpoint, ':') + 1), test_seed(), 0);
    CHECK(proxy);
    snprintf(watched, S3_URL_BYTES, "%.*s?endpoint=http://127.0.0.1:%d&settle_ms=0", (int)strcspn(url, "?"), url,
             proxy ? fault_proxy_port(proxy) : 0);
    return proxy;
}

/* ---- What is kept ---- */

/* A shard that has had a checkpoint, so that there may be archives. */
static void put_checkpoint(struct bucket *bucket, const char *partition, unsigned shard)
{
    char name[64];
    snprintf(name, sizeof name, "index/%s/%x.json", partition, shard);
    CHECK_INT(bucket_ask(bucket, KL_S3_PUT, name,
                         "{\"keyline\":1,\"at\":1,\"nonce\":\"1\",\"journal\":\"1\",\"epoch\":\"0\",\"first\":\"0\","
                         "\"tail\":\"0\",\"sealed\":false,\"tokens_to\":\"0\",\"swept\":\"0\",\"tasks_swept\":\"0\","
                         "\"items\":[],\"tokens\":[],\"forgotten\":[]}"),
              200);
}

static kl_outcome note_run(kl_work *work, void *ctx)
{
    (void)work;
    atomic_fetch_add((atomic_int *)ctx, 1);
    return KL_DONE;
}

/* One of them stands in another line than the ordinary one. */
TEST(a_worker_begins_without_reading_what_is_kept)
{
    static atomic_int runs;
    struct bucket bucket;
    char url[S3_URL_BYTES], watched[S3_URL_BYTES], name[80];
    kl_store *stores[2] = {NULL};
    kl_queue *queues[2] = {NULL};
    kl_worker *worker = NULL;
    kl_put puts[2] = {{.key = kl_str("a"), .payload = kl_str("x")},
                      {.key = kl_str("b"), .payload = kl_str("x"), .priority = KL_PRIORITY_MAX}};
    if (!s3_server_new_url(url) || !bucket_open(&bucket, url))
        return;
    for (unsigned i = 0; i < SHARDS; i++) {
        put_checkpoint(&bucket, "kept", i);
        snprintf(name, sizeof name, "done/kept/%x/0000000000000001-9794777012345.json", i);
        CHECK_INT(bucket_ask(&bucket, KL_S3_PUT, name, "not to be read"), 200);
    }
    struct fault_proxy *proxy = watch_url(url, watched);
    for (int i = 0; i < 2; i++) {
        CHECK_OK(kl_store_open(i ? watched : url, NULL, &stores[i]));
        CHECK_OK(kl_queue_open(stores[i], "kept", NULL, &queues[i]));
    }
    CHECK_OK(kl_queue_put(queues[0], puts, COUNT(puts), (kl_bytes){0}, NULL));
    REQUIRE(!test_failed());
    fault_proxy_watch(proxy, "GET ", "done"); /* listings, too */
    kl_handler any = {.fn = note_run, .ctx = &runs};
    kl_worker_queue served = {.queue = queues[1], .handlers = &any, .handler_count = 1};
    kl_worker_opts opts = {.size = sizeof opts, .concurrency = 2};
    CHECK_OK(kl_worker_start(&served, 1, &opts, &worker));
    int64_t until_ns = kl__monotonic_ns() + (int64_t)PATIENCE_MS * 1000000;
    while (atomic_load(&runs) < 2 && kl__monotonic_ns() < until_ns)
        sched_yield();
    CHECK_INT(atomic_load(&runs), 2);
    CHECK_INT(fault_proxy_watched(proxy), 0);
    kl_worker_close(worker);
    for (int i = 0; i < 2; i++) {
        kl_queue_close(queues[i]);
        kl_store_close(stores[i]);
    }
    fault_proxy_stop(proxy);
    bucket_close(&bucket);
}

static void put_archive(struct bucket *bucket, unsigned number)
{
    char name[80], body[400];
    snprintf(name, sizeof name, "done/p/0/%016x-9794777012345.json", number);
    snprintf(body, sizeof body,
             "{\"keyline\":1,\"items\":[{\"kept\":\"%x\",\"state\":\"done\",\"attempts\":1,\"finished_ms\":1,"
             "\"expires_ms\":9794777012345,\"task\":{\"id\":\"0190b5a0-0000-7000-8000-%012x\"},\"errors\":[]}]}",
             number << 16, number);
    CHECK_INT(bucket_ask(bucket, KL_S3_PUT, name, body), 200);
}

/* However many there are: a count is told of some of them, and says so; who looks for tasks reads all. */
TEST(counts_do_not_read_archives_without_end)
{
    enum { ARCHIVES = 9, READ = 6 };
    struct bucket bucket;
    char url[S3_URL_BYTES];
    kl_store *store = NULL;
    kl_counts counts;
    kl_arena arena = {0};
    kl_task found[ARCHIVES + 1];
    size_t count = 0;
    kl_place all = {.shard = KL_ALL_SHARDS};
    if (!s3_server_new_url(url) || !bucket_open(&bucket, url))
        return;
    CHECK_OK(kl_store_open(url, NULL, &store));
    REQUIRE(store);
    CHECK_OK(kl_store_partition(store, "p", 1, &all.partition));
    put_checkpoint(&bucket, "p", 0);
    for (unsigned i = 0; i < ARCHIVES; i++)
        put_archive(&bucket, i + 1);
    kl__memory_enter(inside(store)->memory);
    kl__s3_shard *shard = kl__s3_shard_make(inside(store), (kl_place){all.partition, 0});
    kl__memory_leave(inside(store)->memory);
    CHECK_OK(kl__s3_refresh(inside(store), &shard, 1, false));
    CHECK_OK(kl__s3_load_kept(inside(store), &shard, 1, 2 + READ)); /* two listings */
    CHECK_OK(kl_store_counts(store, all, NULL, &counts));
    CHECK_INT(counts.done, READ);
    CHECK(counts.at_least);
    kl_find find = {.partition = all.partition, .max = COUNT(found)};
    CHECK_OK(kl_store_find(store, &find, &arena, found, &count));
    CHECK_INT(count, ARCHIVES);
    CHECK_OK(kl_store_counts(store, all, NULL, &counts));
    CHECK_INT(counts.done, ARCHIVES);
    kl_arena_free(&arena);
    kl_store_close(store);
    bucket_close(&bucket);
}

struct loading {
    kl__s3 *s3;
    kl__s3_shard *shard;
};

static void *load_all(void *ctx)
{
    struct loading *loading = ctx;
    CHECK_OK(kl__s3_load_kept(loading->s3, &loading->shard, 1, SIZE_MAX));
    return NULL;
}

TEST(archives_of_a_shard_that_is_cleared_while_they_are_read_are_read_again)
{
    struct bucket bucket;
    char url[S3_URL_BYTES], watched[S3_URL_BYTES];
    kl_store *store = NULL;
    kl_place place = {0};
    pthread_t thread;
    if (!s3_server_new_url(url) || !bucket_open(&bucket, url))
        return;
    struct fault_proxy *proxy = watch_url(url, watched);
    CHECK_OK(kl_store_open(watched, NULL, &store));
    REQUIRE(proxy && store);
    CHECK_OK(kl_store_partition(store, "p", 1, &place.partition));
    put_checkpoint(&bucket, "p", 0);
    put_archive(&bucket, 1);
    kl__memory_enter(inside(store)->memory);
    struct loading loading = {inside(store), kl__s3_shard_make(inside(store), place)};
    kl__memory_leave(inside(store)->memory);
    CHECK_OK(kl__s3_refresh(loading.s3, &loading.shard, 1, false));
    fault_proxy_hold(proxy, "GET ", "dead"); /* those in done/ have been listed with them */
    REQUIRE(pthread_create(&thread, NULL, load_all, &loading) == 0);
    int64_t until_ns = kl__monotonic_ns() + (int64_t)PATIENCE_MS * 1000000;
    while (fault_proxy_held(proxy) < 1 && kl__monotonic_ns() < until_ns)
        sched_yield();
    kl__memory_enter(loading.s3->memory);
    kl__s3_shard_clear(loading.s3, loading.shard);
    kl__memory_leave(loading.s3->memory);
    fault_proxy_let_go(proxy);
    pthread_join(thread, NULL);
    CHECK_INT(loading.shard->kept, KL_S3_KEPT_NONE);
    kl_store_close(store);
    fault_proxy_stop(proxy);
    bucket_close(&bucket);
}

/* ---- Memory ---- */

TEST(records_that_nobody_uses_are_forgotten_and_found_again)
{
    enum { RECORDS = 20 };
    char url[S3_URL_BYTES], names[RECORDS][16];
    kl_store *store = NULL;
    kl_write writes[RECORDS];
    kl_record records[RECORDS + 1];
    kl_arena arena = {0};
    size_t count = 0;
    if (!s3_server_new_url(url))
        return;
    CHECK_OK(kl_store_open(url, NULL, &store));
    REQUIRE(store);
    for (int i = 0; i < RECORDS; i++) {
        snprintf(names[i], sizeof names[i], "x/%02d", i);
        writes[i] = (kl_write){.name = kl_str(names[i]), .value = kl_str(names[i])};
    }
    CHECK_OK(kl_store_put(store, writes, RECORDS));
    CHECK_INT(kl__s3_records_forget(inside(store), PATIENCE_MS), RECORDS);
    CHECK_INT(kl__s3_records_forget(inside(store), 0), 0);
    CHECK_OK(kl_store_list(store, kl_str("x/"), (kl_bytes){0}, COUNT(records), &arena, records, &count));
    CHECK_INT(count, RECORDS);
    CHECK(count == RECORDS && records[7].version == writes[7].new_version);
    CHECK(count == RECORDS && kl__bytes_equal(records[7].value, kl_str(names[7])));
    CHECK_INT(kl__s3_records_forget(inside(store), 0), 0);
    kl_write change = {.name = kl_str(names[3]), .version = writes[3].new_version, .value = kl_str("new")};
    CHECK_OK(kl_store_put(store, &change, 1));
    CHECK_INT(kl__s3_records_forget(inside(store), 0), 0);
    change.value = kl_str("newer");
    CHECK_RC(kl_store_put(store, &change, 1), KL_ECONFLICT); /* it is no longer at that version */
    CHECK_OK(kl_store_get(store, &change.name, 1, &arena, records));
    CHECK(kl__bytes_equal(records[0].value, kl_str("new")));
    kl_arena_free(&arena);
    kl_store_close(store);
}

/* One process owns a shard, and another looks at it. */
struct looked_at {
    kl_store *owner, *looker;
    kl_place place;
    kl_idgen *ids;
};

static bool looked_at_open(struct looked_at *at)
{
    char url[S3_URL_BYTES];
    kl_fence fence = {.epoch = 1};
    *at = (struct looked_at){0};
    if (!s3_server_new_url(url))
        return false;
    strcat(url, "&settle_ms=0");
    CHECK_OK(kl_store_open(url, NULL, &at->owner));
    CHECK_OK(kl_store_open(url, NULL, &at->looker));
    if (!at->owner || !at->looker)
        return false;
    CHECK_OK(kl_store_partition(at->owner, "p", 1, &at->place.partition));
    CHECK_OK(kl_store_partition(at->looker, "p", 1, &at->place.partition));
    CHECK_OK(kl_idgen_open(&(kl_layout){1, 1}, NULL, &at->ids));
    fence.place = at->place;
    CHECK_OK(kl_store_fence(at->owner, &fence, 1));
    return !test_failed();
}

static void looked_at_close(struct looked_at *at)
{
    kl_store_close(at->looker);
    kl_store_close(at->owner);
    kl_idgen_close(at->ids);
}

/* An object of so many tasks, each settled by itself. */
static void put_and_settle(const struct looked_at *at, size_t count, int64_t keep_ms)
{
    kl_entry *entries = kl__alloc_zeroed(count, sizeof *entries);
    kl_stub *stubs = kl__alloc_zeroed(count, sizeof *stubs);
    kl_scan scan = {.place = at->place, .stubs = stubs, .max = count};
    for (size_t i = 0; i < count; i++) {
        entries[i] = (kl_entry){.place = at->place, .payload = kl_str("x")};
        CHECK_OK(kl_idgen_next(at->ids, 0, 0, &entries[i].id));
    }
    CHECK_OK(kl_store_append(at->owner, entries, count, NULL));
    CHECK_OK(kl_store_scan(at->owner, &scan, 1));
    CHECK_INT(scan.count, count);
    for (size_t i = 0; i < scan.count; i++) {
        kl_settled task = {.id = stubs[i].id, .position = stubs[i].position, .attempts = 1, .keep_ms = keep_ms};
        kl_settle batch = {.place = at->place, .epoch = 1, .tasks = &task, .count = 1};
        CHECK_OK(kl_store_settle(at->owner, &batch, 1));
    }
    kl__free(entries);
    kl__free(stubs);
}

static size_t count_nodes(const kl__tree_node *node)
{
    return node ? 1 + count_nodes(node->left) + count_nodes(node->right) : 0;
}

/* Objects and finished tasks of the shard that the looker has in memory. */
static size_t remembered(const struct looked_at *at)
{
    kl__s3 *s3 = inside(at->looker);
    kl__memory_enter(s3->memory);
    const kl__memory_shard *lines = kl__memory_shard_of(s3->memory, at->place);
    size_t count = count_nodes(kl__s3_shard_of(s3, at->place)->objects) + (lines ? count_nodes(lines->finished) : 0);
    kl__memory_leave(s3->memory);
    return count;
}

static void wait_for_memory(const struct looked_at *at, size_t most)
{
    int64_t until_ns = kl__monotonic_ns() + (int64_t)PATIENCE_MS * 1000000;
    while (remembered(at) > most && kl__monotonic_ns() < until_ns) {
        kl__s3_upkeep_wake(inside(at->looker));
        sched_yield();
    }
    CHECK(remembered(at) <= most);
}

TEST(who_only_looks_does_not_remember_what_was_settled)
{
    enum { OBJECTS = 30 };
    struct looked_at at;
    kl_counts counts;
    if (!looked_at_open(&at))
        return;
    kl_place all = {at.place.partition, KL_ALL_SHARDS};
    for (int i = 0; i < OBJECTS; i++) {
        put_and_settle(&at, 1, 0);
        CHECK_OK(kl_store_counts(at.looker, at.place, NULL, &counts));
    }
    CHECK_INT(counts.ready, 0);
    wait_for_memory(&at, 1);
    put_and_settle(&at, 1, 0);
    kl_entry last = {.place = at.place, .payload = kl_str("x")};
    CHECK_OK(kl_idgen_next(at.ids, 0, 0, &last.id));
    CHECK_OK(kl_store_append(at.owner, &last, 1, NULL));
    CHECK_OK(kl_store_counts(at.looker, at.place, NULL, &counts));
    CHECK_INT(counts.ready, 1);
    CHECK_OK(kl_store_counts(at.looker, all, NULL, &counts));
    CHECK_INT(counts.ready, 1);
    looked_at_close(&at);
}

TEST(who_only_looks_does_not_remember_what_is_kept)
{
    enum { TASKS = 4 * KL_S3_CHECKPOINT };
    struct looked_at at;
    kl_counts counts;
    if (!looked_at_open(&at))
        return;
    CHECK_OK(kl_store_counts(at.looker, at.place, NULL, &counts));
    put_and_settle(&at, TASKS, 3600000);
    CHECK_OK(kl_store_counts(at.looker, at.place, NULL, &counts));
    CHECK(remembered(&at) >= TASKS);
    wait_for_memory(&at, TASKS / 2);
    CHECK_OK(kl_store_counts(at.looker, (kl_place){at.place.partition, KL_ALL_SHARDS}, NULL, &counts));
    CHECK_INT(counts.done, TASKS);
    looked_at_close(&at);
}

struct reading {
    kl__s3 *s3;
    kl__s3_more more;
};

static void *read_on(void *ctx)
{
    struct reading *reading = ctx;
    CHECK_OK(kl__s3_extend(reading->s3, &reading->more, 1));
    return NULL;
}

/* What a shard reads again it does not take for new. */
TEST(tokens_of_a_log_that_is_read_again_do_not_push_out_younger_ones)
{
    static const char object[] =
        "{\"keyline\":1,\"at\":%d,\"nonce\":\"%d\",\"appends\":[{\"token\":\"%032d\",\"tasks\":"
        "[{\"id\":\"0190b5a0-0000-7000-8000-%012d\",\"payload\":\"x\"}]}]}";
    struct bucket bucket;
    char url[S3_URL_BYTES], name[64], body[400];
    kl_store *store = NULL;
    kl_stub stubs[4];
    kl_scan scan = {.stubs = stubs, .max = COUNT(stubs)};
    if (!s3_server_new_url(url) || !bucket_open(&bucket, url))
        return;
    CHECK_OK(kl_store_open(url, NULL, &store));
    REQUIRE(store);
    CHECK_OK(kl_store_partition(store, "p", 1, &scan.place.partition));
    CHECK_INT(bucket_ask(&bucket, KL_S3_PUT, "index/p/0.json",
                         "{\"keyline\":1,\"at\":1,\"nonce\":\"1\",\"journal\":\"0\",\"epoch\":\"0\",\"first\":\"0\","
                         "\"tail\":\"2\",\"sealed\":false,\"tokens_to\":\"2\",\"swept\":\"0\",\"tasks_swept\":\"0\","
                         "\"items\":[],\"tokens\":[{\"token\":\"00000000000000000000000000000002\",\"number\":\"2\","
                         "\"at\":2}],\"forgotten\":[]}"),
              200);
    for (int i = 1; i <= 3; i++) {
        snprintf(name, sizeof name, "tasks/p/0/%016d.json", i);
        snprintf(body, sizeof body, object, i, i, i, i);
        CHECK_INT(bucket_ask(&bucket, KL_S3_PUT, name, body), 200);
    }
    CHECK_OK(kl_store_scan(store, &scan, 1));
    CHECK_INT(scan.count, 3);
    kl__memory_enter(inside(store)->memory);
    const kl__s3_shard *shard = kl__s3_shard_of(inside(store), scan.place);
    CHECK_INT(shard->token_count, 2);
    CHECK(shard->oldest_token && shard->oldest_token->number == 2);
    CHECK(shard->newest_token && shard->newest_token->number == 3);
    kl__memory_leave(inside(store)->memory);
    kl_store_close(store);
    bucket_close(&bucket);
}

/* Two of them are asked for together. The first is held: other requests are answered meanwhile, but none for a
 * third. */
TEST(large_objects_are_read_a_few_at_a_time)
{
    enum { OBJECTS = 12 };
    struct looked_at at;
    char url[S3_URL_BYTES], watched[S3_URL_BYTES];
    kl_store *store = NULL;
    kl_place place = {0};
    pthread_t thread;
    if (!looked_at_open(&at))
        return;
    for (int i = 0; i < OBJECTS; i++) {
        kl_entry entry = {.place = at.place, .payload = kl_str("x")};
        CHECK_OK(kl_idgen_next(at.ids, 0, 0, &entry.id));
        CHECK_OK(kl_store_append(at.owner, &entry, 1, NULL));
    }
    snprintf(url, sizeof url, "s3://%s/%s", inside(at.owner)->site.bucket, inside(at.owner)->prefix);
    struct fault_proxy *proxy = watch_url(url, watched);
    CHECK_OK(kl_store_open(watched, NULL, &store));
    REQUIRE(store);
    CHECK_OK(kl_store_partition(store, "p", 1, &place.partition));
    kl__memory_enter(inside(store)->memory);
    struct reading reading = {inside(store), {.shard = kl__s3_shard_make(inside(store), place), .want = OBJECTS}};
    kl__s3_shard *shard = reading.more.shard;
    shard->partition->object_bytes = 30 << 20;
    kl__memory_leave(inside(store)->memory);
    CHECK_OK(kl__s3_refresh(inside(store), &shard, 1, false));
    CHECK_OK(kl__s3_find_tail(inside(store), shard));
    fault_proxy_watch(proxy, "GET ", "/tasks/p/0/");
    fault_proxy_hold(proxy, "GET ", "/tasks/p/0/0000000000000001");
    REQUIRE(pthread_create(&thread, NULL, read_on, &reading) == 0);
    int64_t until_ns = kl__monotonic_ns() + (int64_t)PATIENCE_MS * 1000000;
    while ((fault_proxy_held(proxy) < 1 || fault_proxy_watched(proxy) < 1) && kl__monotonic_ns() < until_ns)
        sched_yield();
    for (int i = 0; i < OBJECTS; i++)
        CHECK_OK(kl__s3_pulse(inside(store), 0));
    CHECK_INT(fault_proxy_watched(proxy), 1);
    fault_proxy_let_go(proxy);
    pthread_join(thread, NULL);
    CHECK_INT(shard->taken, OBJECTS);
    kl_store_close(store);
    fault_proxy_stop(proxy);
    looked_at_close(&at);
}

/* ---- Rounds ---- */

/* On a slow machine what is held may be given up before all are there. */
static void note_appended(void *ctx, kl_rc rc, const char *error)
{
    (void)error;
    CHECK(rc == KL_OK || rc == KL_EBUSY);
    atomic_fetch_add((atomic_int *)ctx, 1);
}

static void append_later(kl_store *store, kl_idgen *ids, kl_place place, const kl_token *token, atomic_int *done)
{
    kl_entry entry = {.place = place, .payload = kl_str("x")};
    CHECK_OK(kl_idgen_next(ids, place.shard, 0, &entry.id));
    CHECK_OK(kl_store_append_async(store, &entry, 1, token, note_appended, done));
}

/* An append that met a seal is made shard by shard, under one token (queue/parts.c). The first append here, into
 * another partition, is a round by itself, while the others come. */
TEST(parts_of_a_split_append_are_put_together)
{
    static atomic_int done;
    static const kl_token token = {{1}};
    char url[S3_URL_BYTES], watched[S3_URL_BYTES];
    kl_store *store = NULL;
    kl_idgen *ids = NULL;
    kl_place place = {0}, other = {0};
    if (!s3_server_new_url(url))
        return;
    struct fault_proxy *proxy = watch_url(url, watched);
    CHECK_OK(kl_store_open(watched, NULL, &store));
    REQUIRE(proxy && store);
    CHECK_OK(kl_store_partition(store, "p", 1, &place.partition));
    CHECK_OK(kl_store_partition(store, "q", 1, &other.partition));
    CHECK_OK(kl_idgen_open(&(kl_layout){1, 1}, NULL, &ids));
    fault_proxy_hold(proxy, "PUT ", "/tasks/p/");
    pthread_mutex_lock(&inside(store)->round_mutex);
    append_later(store, ids, other, NULL, &done);
    for (place.shard = 0; place.shard < SHARDS; place.shard++)
        append_later(store, ids, place, &token, &done);
    pthread_mutex_unlock(&inside(store)->round_mutex);
    int64_t until_ns = kl__monotonic_ns() + (int64_t)PATIENCE_MS * 1000000;
    while (fault_proxy_held(proxy) < SHARDS && kl__monotonic_ns() < until_ns)
        sched_yield();
    CHECK(fault_proxy_held(proxy) >= SHARDS);
    fault_proxy_let_go(proxy);
    while (atomic_load(&done) < SHARDS + 1 && kl__monotonic_ns() < until_ns)
        sched_yield();
    CHECK_INT(atomic_load(&done), SHARDS + 1);
    kl_store_close(store);
    fault_proxy_stop(proxy);
    kl_idgen_close(ids);
}
