/* test_s3_bucket.c - the S3 engine and what others do in its bucket: removed records, objects of a newer release,
 * archives, tasks of another system, and servers whose clock is wrong. */
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/base.h"
#include "base/clock.h"
#include "base/random.h"
#include "harness.h"
#include "keyline/keyline.h"
#include "keyline/store.h"
#include "queue/inside.h"
#include "store/check_rc.h"
#include "store/dispatch.h"
#include "store/fault_proxy.h"
#include "store/s3/clock.h"
#include "store/s3/s3.h"
#include "store/s3_bucket.h"
#include "store/s3_server.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

enum { PATIENCE_NS_MS = 60000 };

static const kl_layout layout = {1, 1};

static kl_rc list_records(kl_store *store, const char *prefix, size_t max, size_t *ret_count)
{
    kl_arena arena = {0};
    kl_record *records = kl__alloc_zeroed(max, sizeof *records);
    kl_rc rc = kl_store_list(store, kl_str(prefix), (kl_bytes){0}, max, &arena, records, ret_count);
    kl__free(records);
    kl_arena_free(&arena);
    return rc;
}

/* Whoever lists again and again, as workers do, is answered from memory while a look may be so old. */
static void check_polling(kl_store *store)
{
    kl__s3 *s3 = store->self;
    size_t count = 0;
    for (int i = 0; i < 2; i++)
        CHECK_OK(list_records(store, "x/", 1000, &count));
    s3->pulse_age_ms = PATIENCE_NS_MS;
    CHECK_OK(list_records(store, "x/", 1000, &count));
    uint64_t before = kl__s3_http_bill(s3->http).requests[KL_S3_LIST];
    for (int i = 0; i < 10; i++)
        CHECK_OK(list_records(store, "x/", 1000, &count));
    CHECK_INT(count, 300);
    CHECK_INT(kl__s3_http_bill(s3->http).requests[KL_S3_LIST] - before, 0);
}

TEST(records_behind_many_removed_ones_are_listed)
{
    enum { REMOVED = 1200, LIVE = 300 };
    static char names[REMOVED + LIVE][96];
    static kl__s3_request requests[REMOVED + LIVE];
    struct bucket bucket;
    char url[S3_URL_BYTES];
    kl_store *store = NULL;
    size_t count = 0;
    if (!s3_server_new_url(url) || !bucket_open(&bucket, url))
        return;
    for (int i = 0; i < REMOVED + LIVE; i++) {
        static const char gone[] = "{\"keyline\":1,\"version\":\"1\",\"removed\":true,\"value\":\"\"}";
        static const char here[] = "{\"keyline\":1,\"version\":\"2\",\"value\":\"v\"}";
        snprintf(names[i], sizeof names[i], "%s/records/x/%05d", bucket.prefix, i);
        requests[i] = (kl__s3_request){.kind = KL_S3_PUT, .name = names[i], .body = kl_str(i < REMOVED ? gone : here)};
    }
    CHECK_OK(kl__s3_send(bucket.http, requests, REMOVED + LIVE));
    for (int i = 0; i < REMOVED + LIVE; i++)
        kl__s3_request_free(&requests[i]);
    CHECK_OK(kl_store_open(url, NULL, &store));
    CHECK_OK(list_records(store, "x/", 100, &count));
    CHECK_INT(count, 100);
    CHECK_OK(list_records(store, "x/", REMOVED + LIVE, &count));
    CHECK_INT(count, LIVE);
    CHECK_OK(list_records(store, "x/014", 1000, &count));
    CHECK_INT(count, 100);
    check_polling(store);
    kl_store_close(store);
    bucket_close(&bucket);
}

TEST(a_prefix_may_have_characters_that_listings_escape)
{
    char where[S3_URL_BYTES], url[S3_URL_BYTES];
    kl_store *store = NULL;
    kl_write write = {.name = kl_str("a"), .value = kl_str("v")};
    size_t count = 0;
    if (!s3_server_new_url(where))
        return;
    snprintf(url, sizeof url, "%.*s&<x>%s", (int)strcspn(where, "?"), where, strchr(where, '?'));
    CHECK_OK(kl_store_open(url, NULL, &store));
    CHECK_OK(kl_store_put(store, &write, 1));
    kl_store_close(store);
    CHECK_OK(kl_store_open(url, NULL, &store));
    CHECK_OK(list_records(store, "", 10, &count));
    CHECK_INT(count, 1);
    kl_store_close(store);
}

/* ---- What is not understood, and what is older ---- */

static kl_entry an_entry(uint32_t partition, kl_idgen *ids, const char *payload)
{
    kl_entry entry = {.place = {partition, 0}, .payload = kl_str(payload)};
    CHECK_OK(kl_idgen_next(ids, 0, 0, &entry.id));
    return entry;
}

static size_t waiting_in(kl_store *store, uint32_t partition, kl_stub *ret_stubs, size_t max)
{
    kl_scan scan = {.place = {partition, 0}, .stubs = ret_stubs, .max = max};
    CHECK_OK(kl_store_scan(store, &scan, 1));
    return scan.count;
}

static void end_task(kl_store *store, uint32_t partition, const kl_stub *stub, kl_outcome outcome, int64_t keep_ms)
{
    kl_settled task = {
        .id = stub->id, .position = stub->position, .attempts = 1, .outcome = outcome, .keep_ms = keep_ms};
    kl_settle batch = {.place = {partition, 0}, .epoch = 1, .tasks = &task, .count = 1};
    CHECK_OK(kl_store_settle(store, &batch, 1));
}

static kl_store *open_owned(const char *url, uint32_t *ret_partition)
{
    kl_store *store = NULL;
    kl_fence fence = {.epoch = 1};
    CHECK_OK(kl_store_open(url, NULL, &store));
    if (!store)
        return NULL;
    CHECK_OK(kl_store_partition(store, "p", 1, ret_partition));
    fence.place.partition = *ret_partition;
    CHECK_OK(kl_store_fence(store, &fence, 1));
    return store;
}

TEST(task_objects_that_cannot_be_understood_are_kept_for_a_release_that_can)
{
    static const char later[] = "{\"keyline\":2}";
    static const char same[] = "{\"keyline\":1,\"at\":1,\"nonce\":\"1\",\"appends\":[{\"tasks\":[{\"id\":"
                               "\"0190b5a0-0000-7000-8000-000000000001\",\"payload\":\"late\"}]}]}";
    struct bucket bucket;
    char url[S3_URL_BYTES];
    kl_idgen *ids = NULL;
    uint32_t partition;
    kl_stub stubs[4];
    if (!s3_server_new_url(url) || !bucket_open(&bucket, url))
        return;
    strcat(url, "&settle_ms=0&checkpoint=1&grace_ms=0");
    kl_store *store = open_owned(url, &partition);
    REQUIRE(store);
    CHECK_OK(kl_idgen_open(&layout, NULL, &ids));
    kl_entry first = an_entry(partition, ids, "1"), third = an_entry(partition, ids, "3"),
             last = an_entry(partition, ids, "4");
    CHECK_OK(kl_store_append(store, &first, 1, NULL));
    CHECK_INT(bucket_ask(&bucket, KL_S3_PUT, "tasks/p/0/0000000000000002.json", later), 200);
    CHECK_OK(kl_store_append(store, &third, 1, NULL));
    CHECK_OK(kl_store_append(store, &last, 1, NULL));
    CHECK_INT(waiting_in(store, partition, stubs, COUNT(stubs)), 3);
    end_task(store, partition, &stubs[0], KL_DONE, 0);
    end_task(store, partition, &stubs[1], KL_DONE, 0);
    bucket_wait(&bucket, "tasks/p/0/0000000000000003.json", false);
    CHECK(bucket_has(&bucket, "tasks/p/0/0000000000000002.json"));
    kl_store_close(store);
    CHECK_INT(bucket_ask(&bucket, KL_S3_PUT, "tasks/p/0/0000000000000002.json", same), 200);
    store = open_owned(url, &partition);
    REQUIRE(store);
    CHECK_INT(waiting_in(store, partition, stubs, COUNT(stubs)), 2);
    CHECK_INT(stubs[0].position >> 16, 2);
    kl_store_close(store);
    kl_idgen_close(ids);
    bucket_close(&bucket);
}

/* What a later release writes, or one that knows other values. */
TEST(a_journal_object_with_an_item_that_is_not_understood_stops_its_shard)
{
    static const char *const items[] = {
        "{\"moved\":\"10000\"}", "\"1.0-\\u0020x\"",
        "{\"kept\":\"10000\",\"state\":\"postponed\",\"attempts\":1,\"finished_ms\":1,\"expires_ms\":9,\"task\":{}}"};
    for (size_t i = 0; i < COUNT(items); i++) {
        struct bucket bucket;
        char url[S3_URL_BYTES], body[400];
        kl_store *other = NULL;
        uint32_t partition;
        kl_stub stub;
        if (!s3_server_new_url(url) || !bucket_open(&bucket, url))
            return;
        kl_store *store = open_owned(url, &partition);
        REQUIRE(store);
        snprintf(body, sizeof body, "{\"keyline\":1,\"at\":1,\"nonce\":\"1\",\"epoch\":\"1\",\"items\":[%s]}",
                 items[i]);
        CHECK_INT(bucket_ask(&bucket, KL_S3_PUT, "journal/p/0/0000000000000002.json", body), 200);
        CHECK_OK(kl_store_open(url, NULL, &other));
        CHECK_OK(kl_store_partition(other, "p", 1, &partition));
        kl_scan scan = {.place = {partition, 0}, .stubs = &stub, .max = 1};
        CHECK_RC(kl_store_scan(other, &scan, 1), KL_EDAMAGED);
        CHECK_CONTAINS(kl_error_text(), "Update keyline");
        CHECK_RC(kl_store_scan(other, &scan, 1), KL_EDAMAGED);
        kl_store_close(other);
        kl_store_close(store);
        bucket_close(&bucket);
    }
}

static kl_rc settle_both(kl_store *store, uint32_t partition, const kl_stub *stubs, kl_rc ret_rcs[2])
{
    kl_settled tasks[2];
    kl_settle batches[2];
    for (uint32_t i = 0; i < 2; i++) {
        tasks[i] = (kl_settled){.id = stubs[i].id, .position = stubs[i].position, .attempts = 1, .outcome = KL_DONE};
        batches[i] = (kl_settle){.place = {partition, i}, .epoch = 1, .tasks = &tasks[i], .count = 1};
    }
    kl_rc rc = kl_store_settle(store, batches, 2);
    for (int i = 0; i < 2; i++)
        ret_rcs[i] = batches[i].rc;
    return rc;
}

/* The first shard's journal gets an object that nobody understands; all is asked of it and of the second together. */
static void check_beside_damaged(kl_store *store, uint32_t partition, bool journal)
{
    kl_stub stubs[2];
    kl_scan scans[2] = {{.place = {partition, 0}, .stubs = &stubs[0], .max = 1},
                        {.place = {partition, 1}, .stubs = &stubs[1], .max = 1}};
    kl_fence fences[2] = {{.place = {partition, 0}, .epoch = 3}, {.place = {partition, 1}, .epoch = 3}};
    kl_arena arena = {0};
    kl_task tasks[2];
    kl_counts counts;
    size_t count = 0;
    CHECK_OK(kl_store_scan(store, scans, 2));
    CHECK_INT(scans[0].count, 0);
    CHECK_INT(scans[1].count, 1);
    CHECK_RC(kl_store_scan(store, scans, 1), KL_EDAMAGED);
    CHECK_CONTAINS(kl_error_text(), journal ? "journal/p/0" : "index/p/0.json");
    CHECK_RC(kl_store_fence(store, fences, 2), KL_EDAMAGED);
    CHECK_INT(fences[0].rc, KL_EDAMAGED);
    CHECK_INT(fences[1].rc, KL_OK);
    kl_ref refs[2] = {{.place = {partition, 1}, .id = stubs[1].id}, {.place = {partition, 0}}};
    CHECK_OK(kl_store_read(store, refs, 2, &arena, tasks, &count)); /* it stops before the second */
    CHECK_INT(count, 1);
    CHECK_RC(kl_store_read(store, &refs[1], 1, &arena, tasks, &count), KL_EDAMAGED);
    CHECK_INT(count, 0);
    CHECK_OK(kl_store_counts(store, (kl_place){partition, KL_ALL_SHARDS}, NULL, &counts));
    CHECK_INT(counts.ready, 1);
    CHECK(counts.at_least);
    kl_arena_free(&arena);
}

static void damage(const char *name, const char *body)
{
    struct bucket bucket;
    char url[S3_URL_BYTES];
    kl_idgen *ids = NULL;
    kl_store *other = NULL;
    kl_stub stubs[2];
    kl_rc rcs[2];
    uint32_t partition;
    if (!s3_server_new_url(url) || !bucket_open(&bucket, url))
        return;
    strcat(url, "&settle_ms=0");
    kl_store *store = open_owned(url, &partition);
    REQUIRE(store);
    CHECK_OK(kl_idgen_open(&layout, NULL, &ids));
    for (uint32_t i = 0; i < 2; i++) {
        kl_entry entry = {.place = {partition, i}, .payload = kl_str("x")};
        kl_fence fence = {.place = {partition, i}, .epoch = 1};
        kl_scan scan = {.place = {partition, i}, .stubs = &stubs[i], .max = 1};
        CHECK_OK(kl_idgen_next(ids, i, 0, &entry.id));
        CHECK_OK(kl_store_append(store, &entry, 1, NULL));
        CHECK_OK(kl_store_append(store, &entry, 1, NULL)); /* a repeat, which is passed over */
        CHECK_OK(kl_store_fence(store, &fence, 1));
        CHECK_OK(kl_store_scan(store, &scan, 1));
    }
    CHECK_INT(bucket_ask(&bucket, KL_S3_PUT, name, body), 200);
    CHECK_OK(kl_store_open(url, NULL, &other));
    CHECK_OK(kl_store_partition(other, "p", 1, &partition));
    check_beside_damaged(other, partition, strstr(name, "journal"));
    if (strstr(name, "journal")) { /* its owner finds out when it writes there */
        CHECK_RC(settle_both(store, partition, stubs, rcs), KL_EDAMAGED);
        CHECK_INT(rcs[0], KL_EDAMAGED);
        CHECK_INT(rcs[1], KL_ESTALE); /* the other one has fenced it */
    }
    kl_store_close(other);
    kl_store_close(store);
    kl_idgen_close(ids);
    bucket_close(&bucket);
}

TEST(a_damaged_journal_object_stops_its_shard_and_no_other)
{
    damage("journal/p/0/0000000000000002.json", "{\"keyline\":2}");
}

TEST(a_damaged_checkpoint_stops_its_shard_and_no_other) { damage("index/p/0.json", "{\"keyline\":1}"); }

enum { LONG_LINE = 100 }; /* objects: more than may stay in memory without use */

static bool is_loaded(kl__s3 *s3, uint32_t partition)
{
    kl__memory_enter(s3->memory);
    const kl__s3_shard *shard = kl__s3_shard_of(s3, (kl_place){partition, 0});
    bool loaded = shard && shard->loaded;
    kl__memory_leave(s3->memory);
    return loaded;
}

static kl_task_state state_of(kl_store *store, uint32_t partition, const kl_task_id *id)
{
    kl_ref ref = {.place = {partition, 0}, .id = *id};
    kl_arena arena = {0};
    kl_task task = {0};
    size_t count = 0;
    CHECK_OK(kl_store_read(store, &ref, 1, &arena, &task, &count));
    CHECK_INT(count, 1);
    kl_arena_free(&arena);
    return task.state;
}

TEST(what_was_read_of_a_shard_to_find_one_task_does_not_stay_in_memory)
{
    char url[S3_URL_BYTES];
    kl_idgen *ids = NULL;
    uint32_t partition;
    kl_store *store = NULL;
    if (!s3_server_new_url(url))
        return;
    strcat(url, "&grace_ms=0");
    CHECK_OK(kl_store_open(url, NULL, &store));
    REQUIRE(store);
    CHECK_OK(kl_store_partition(store, "p", 1, &partition));
    CHECK_OK(kl_idgen_open(&layout, NULL, &ids));
    kl_entry last = {.payload = {"", 0}}, never = an_entry(partition, ids, "never");
    for (int i = 0; i < LONG_LINE; i++) {
        last = an_entry(partition, ids, "x");
        CHECK_OK(kl_store_append(store, &last, 1, NULL));
    }
    CHECK_INT(state_of(store, partition, &never.id), KL_TASK_UNKNOWN);
    int64_t until_ns = kl__monotonic_ns() + (int64_t)PATIENCE_NS_MS * 1000000;
    do
        kl__s3_upkeep_wake(store->self);
    while (is_loaded(store->self, partition) && kl__monotonic_ns() < until_ns);
    CHECK(!is_loaded(store->self, partition));
    CHECK_INT(state_of(store, partition, &last.id), KL_TASK_WAITING);
    kl_store_close(store);
    kl_idgen_close(ids);
}

/* A log that one process has written, and another that has read none of it. */
struct long_line {
    kl_idgen *ids;
    kl_store *writer, *reader;
    kl_place place; /* as the reader knows it */
    kl_task_id made[LONG_LINE];
};

static bool long_line_open(struct long_line *line, const int64_t due_ms[LONG_LINE])
{
    char url[S3_URL_BYTES];
    uint32_t partition = 0;
    if (!s3_server_new_url(url))
        return false;
    CHECK_OK(kl_idgen_open(&layout, NULL, &line->ids));
    CHECK_OK(kl_store_open(url, NULL, &line->writer));
    CHECK_OK(kl_store_open(url, NULL, &line->reader));
    if (!line->writer || !line->reader)
        return false;
    CHECK_OK(kl_store_partition(line->writer, "p", 1, &partition));
    for (int i = 0; i < LONG_LINE; i++) {
        kl_entry entry = an_entry(partition, line->ids, "x");
        entry.due_ms = due_ms[i];
        CHECK_OK(kl_store_append(line->writer, &entry, 1, NULL));
        line->made[i] = entry.id;
    }
    CHECK_OK(kl_store_partition(line->reader, "p", 1, &line->place.partition));
    return true;
}

static void long_line_close(struct long_line *line)
{
    kl_store_close(line->reader);
    kl_store_close(line->writer);
    kl_idgen_close(line->ids);
}

TEST(the_due_line_of_a_long_log_is_shown_in_its_order)
{
    enum { SHOWN = 4, FIRST_DUE_MS = 1000000 };
    struct long_line line = {0};
    kl_stub stubs[SHOWN];
    int64_t due_ms[LONG_LINE];
    for (int i = 0; i < LONG_LINE; i++)
        due_ms[i] = FIRST_DUE_MS + LONG_LINE - i; /* the last is the first */
    if (!long_line_open(&line, due_ms))
        return;
    kl_scan scan = {
        .place = line.place, .line = KL_LINE_DUE, .until_ms = FIRST_DUE_MS + LONG_LINE, .stubs = stubs, .max = SHOWN};
    CHECK_OK(kl_store_scan(line.reader, &scan, 1));
    CHECK_INT(scan.count, SHOWN);
    for (size_t i = 0; i < scan.count; i++)
        CHECK(kl_id_compare(&stubs[i].id, &line.made[LONG_LINE - 1 - i]) == 0);
    long_line_close(&line);
}

/* A worker asks for all lines at once. */
TEST(what_is_ready_does_not_wait_until_a_long_log_is_read_for_one_delayed_task)
{
    enum { SHOWN = 4, DUE_MS = 1000 };
    struct long_line line = {0};
    kl_stub stubs[2][SHOWN];
    int64_t due_ms[LONG_LINE] = {[LONG_LINE - 1] = DUE_MS};
    if (!long_line_open(&line, due_ms))
        return;
    kl_scan scans[2] = {{.place = line.place, .stubs = stubs[0], .max = SHOWN},
                        {.place = line.place, .line = KL_LINE_DUE, .until_ms = DUE_MS, .stubs = stubs[1], .max = 1}};
    kl__s3 *s3 = line.reader->self;
    uint64_t before = kl__s3_http_bill(s3->http).requests[KL_S3_GET];
    CHECK_OK(kl_store_scan(line.reader, scans, 2));
    CHECK_INT(scans[0].count, SHOWN);
    CHECK_INT(scans[1].count, 0);
    CHECK(kl__s3_http_bill(s3->http).requests[KL_S3_GET] - before < LONG_LINE / 2);
    kl__memory_enter(s3->memory);
    kl__s3_shard_of(s3, scans[0].place)->due_ns -= INT64_C(1000000) * KL_S3_DUE_MS; /* as if it were that long ago */
    kl__memory_leave(s3->memory);
    before = kl__s3_http_bill(s3->http).requests[KL_S3_GET];
    CHECK_OK(kl_store_scan(line.reader, scans, 2)); /* a piece of the log */
    CHECK_INT(scans[0].count, SHOWN);
    CHECK_INT(scans[1].count, 0);
    CHECK(kl__s3_http_bill(s3->http).requests[KL_S3_GET] - before < LONG_LINE);
    CHECK_OK(kl_store_scan(line.reader, scans, 2)); /* and the rest */
    CHECK_INT(scans[0].count, SHOWN);
    CHECK_INT(scans[1].count, 1);
    long_line_close(&line);
}

/* ---- Marks of lines ---- */

static kl_entry a_later_entry(uint32_t partition, kl_idgen *ids)
{
    kl_entry entry = an_entry(partition, ids, "later");
    entry.due_ms = kl__wall_ms() + 3600000;
    return entry;
}

/* Three of an earlier hour: of a line that is empty, of one that has a younger mark, and one as it was named before. */
TEST(marks_of_lines_are_taken_away_when_they_say_nothing_any_more)
{
    struct bucket bucket;
    char url[S3_URL_BYTES], young[64], superseded[64];
    unsigned due = KL_LINE_DUE - KL_PRIORITY_MIN;
    kl_idgen *ids = NULL;
    uint32_t partition;
    kl_stub stub;
    if (!s3_server_new_url(url) || !bucket_open(&bucket, url))
        return;
    snprintf(superseded, sizeof superseded, "special/p/0/%u-400000", due);
    snprintf(young, sizeof young, "special/p/0/%u-%lld", due, (long long)(kl__wall_ms() / KL_S3_MARK_MS));
    CHECK_INT(bucket_ask(&bucket, KL_S3_PUT, superseded, "{}"), 200);
    CHECK_INT(bucket_ask(&bucket, KL_S3_PUT, "special/p/0/2-400000", "{}"), 200);
    CHECK_INT(bucket_ask(&bucket, KL_S3_PUT, "special/p/0/3", "{}"), 200);
    kl_store *store = open_owned(url, &partition);
    REQUIRE(store);
    CHECK_OK(kl_idgen_open(&layout, NULL, &ids));
    kl_entry later = a_later_entry(partition, ids), ready = an_entry(partition, ids, "x");
    CHECK_OK(kl_store_append(store, &later, 1, NULL));
    CHECK_OK(kl_store_append(store, &ready, 1, NULL));
    CHECK_OK(kl__s3_pulse(store->self, 0));
    CHECK_INT(waiting_in(store, partition, &stub, 1), 1);
    int64_t until_ns = kl__monotonic_ns() + (int64_t)PATIENCE_NS_MS * 1000000;
    while (bucket_has(&bucket, "special/p/0/3") && !test_failed() && kl__monotonic_ns() < until_ns)
        kl__s3_upkeep_wake(store->self);
    CHECK(!bucket_has(&bucket, "special/p/0/2-400000"));
    CHECK(!bucket_has(&bucket, superseded));
    CHECK(bucket_has(&bucket, young)); /* there is a task in its line */
    kl_store_close(store);
    kl_idgen_close(ids);
    bucket_close(&bucket);
}

/* Nobody reads a long log for a line that only another shard has. */
TEST(a_mark_is_of_its_shard_alone)
{
    char url[S3_URL_BYTES];
    kl_idgen *ids = NULL;
    kl_store *store = NULL, *other = NULL;
    uint32_t partition;
    kl_stub stub;
    if (!s3_server_new_url(url))
        return;
    CHECK_OK(kl_store_open(url, NULL, &store));
    REQUIRE(store);
    CHECK_OK(kl_store_partition(store, "p", 1, &partition));
    CHECK_OK(kl_idgen_open(&layout, NULL, &ids));
    kl_entry urgent = {.place = {partition, 1}, .priority = KL_PRIORITY_MAX, .payload = kl_str("x")};
    CHECK_OK(kl_idgen_next(ids, 1, 0, &urgent.id));
    CHECK_OK(kl_store_append(store, &urgent, 1, NULL));
    for (int i = 0; i < LONG_LINE; i++) {
        kl_entry entry = an_entry(partition, ids, "x");
        CHECK_OK(kl_store_append(store, &entry, 1, NULL));
    }
    CHECK_OK(kl_store_open(url, NULL, &other));
    CHECK_OK(kl_store_partition(other, "p", 1, &partition));
    for (uint32_t shard = 0; shard < 2; shard++) {
        kl_scan scan = {.place = {partition, shard}, .line = KL_PRIORITY_MAX, .stubs = &stub, .max = 1};
        CHECK_OK(kl_store_scan(other, &scan, 1));
        CHECK_INT(scan.count, shard);
    }
    CHECK(kl__s3_http_bill(((kl__s3 *)other->self)->http).requests[KL_S3_GET] < LONG_LINE / 2);
    kl_store_close(other);
    kl_store_close(store);
    kl_idgen_close(ids);
}

TEST(an_archive_does_not_hide_what_came_later)
{
    struct bucket bucket;
    char url[S3_URL_BYTES];
    kl_idgen *ids = NULL;
    uint32_t partition;
    kl_stub stub;
    kl_task found[2];
    kl_arena arena = {0};
    size_t count = 0;
    if (!s3_server_new_url(url) || !bucket_open(&bucket, url))
        return;
    strcat(url, "&settle_ms=0&checkpoint=2");
    kl_store *store = open_owned(url, &partition);
    REQUIRE(store);
    CHECK_OK(kl_idgen_open(&layout, NULL, &ids));
    kl_entry entry = an_entry(partition, ids, "x");
    CHECK_OK(kl_store_append(store, &entry, 1, NULL));
    CHECK_INT(waiting_in(store, partition, &stub, 1), 1);
    end_task(store, partition, &stub, KL_DEAD, 3600000);
    bucket_wait(&bucket, "index/p/0.json", true);
    CHECK_OK(kl_store_forget(store, entry.place, &entry.id, 1));
    CHECK_OK(kl_store_append(store, &entry, 1, NULL));
    CHECK_INT(waiting_in(store, partition, &stub, 1), 1);
    end_task(store, partition, &stub, KL_DONE, 3600000);
    kl_store *other = NULL;
    CHECK_OK(kl_store_open(url, NULL, &other)); /* while the journal still has it */
    CHECK_OK(kl_store_partition(other, "p", 1, &partition));
    kl_find find = {.partition = partition, .max = COUNT(found)};
    CHECK_OK(kl_store_find(other, &find, &arena, found, &count));
    CHECK_INT(count, 1);
    CHECK_INT(found[0].state, KL_TASK_DONE);
    kl_arena_free(&arena);
    kl_store_close(other);
    kl_store_close(store);
    kl_idgen_close(ids);
    bucket_close(&bucket);
}

TEST(archives_that_have_expired_are_not_read)
{
    struct bucket bucket;
    char url[S3_URL_BYTES];
    uint32_t partition;
    kl_task found[2];
    kl_arena arena = {0};
    size_t count = 0;
    if (!s3_server_new_url(url) || !bucket_open(&bucket, url))
        return;
    CHECK_INT(
        bucket_ask(&bucket, KL_S3_PUT, "index/p/0.json",
                   "{\"keyline\":1,\"at\":1,\"nonce\":\"1\",\"journal\":\"1\",\"epoch\":\"0\",\"first\":\"0\",\"tail\":"
                   "\"0\",\"sealed\":false,\"tokens_to\":\"0\",\"swept\":\"0\",\"tasks_swept\":\"0\",\"items\":[],"
                   "\"tokens\":[],\"forgotten\":[]}"),
        200);
    CHECK_INT(bucket_ask(&bucket, KL_S3_PUT, "done/p/0/0000000000000001-1794777012345.json", "not to be read"), 200);
    kl_store *store = open_owned(url, &partition);
    REQUIRE(store);
    kl_find find = {.partition = partition, .max = COUNT(found)};
    CHECK_OK(kl_store_find(store, &find, &arena, found, &count));
    CHECK_INT(count, 0);
    CHECK_INT(bucket_ask(&bucket, KL_S3_PUT, "done/p/0/0000000000000001-9794777012345.json", "to be read"), 200);
    kl_store_close(store);
    store = open_owned(url, &partition);
    CHECK_RC(kl_store_find(store, &find, &arena, found, &count), KL_EDAMAGED);
    kl_store_close(store);
    kl_arena_free(&arena);
    bucket_close(&bucket);
}

/* Whoever is told to call again calls with the same scan. */
TEST(a_scan_stays_as_it_was_asked)
{
    char url[S3_URL_BYTES];
    kl_idgen *ids = NULL;
    uint32_t partition;
    kl_stub stubs[2], after;
    if (!s3_server_new_url(url))
        return;
    kl_store *store = open_owned(url, &partition);
    REQUIRE(store);
    CHECK_OK(kl_idgen_open(&layout, NULL, &ids));
    for (int i = 0; i < 2; i++) {
        kl_entry entry = an_entry(partition, ids, "x");
        CHECK_OK(kl_store_append(store, &entry, 1, NULL));
    }
    CHECK_INT(waiting_in(store, partition, stubs, COUNT(stubs)), 2);
    after = stubs[0];
    kl_scan scan = {.place = {partition, 0}, .after = &after, .stubs = stubs, .max = COUNT(stubs)};
    for (int i = 0; i < 2; i++) {
        CHECK_OK(kl_store_scan(store, &scan, 1));
        CHECK(scan.after == &after);
        CHECK_INT(scan.count, 1);
    }
    kl_store_close(store);
    kl_idgen_close(ids);
}

/* ---- Clocks ---- */

TEST(one_server_with_a_wrong_clock_does_not_set_ours)
{
    struct fault_proxy *server = fault_proxy_fake(FAKE_DATES);
    char host[64];
    kl__s3_http *http = NULL;
    REQUIRE(server);
    snprintf(host, sizeof host, "127.0.0.1:%d", fault_proxy_port(server));
    kl__s3_site site = {.scheme = (char *)"http",
                        .host = host,
                        .region = (char *)"us-east-1",
                        .bucket = (char *)"bucket",
                        .path_style = true,
                        .access_key = (char *)"keyline",
                        .secret_key = (char *)"keyline-test-secret"};
    CHECK_OK(kl__s3_http_open(&site, &http));
    for (int i = 0; http && i < 10; i++) {
        kl__s3_request request = {.kind = KL_S3_GET, .name = "x"};
        CHECK_OK(kl__s3_send(http, &request, 1));
        kl__s3_request_free(&request);
    }
    int64_t wrong_ms = http ? kl__s3_http_now(http) - kl__wall_ms() : 0;
    CHECK(wrong_ms > -60000 && wrong_ms < 60000);
    CHECK(http && kl__s3_http_jumped(http) > 0); /* but whoever relies on it looks again */
    kl__s3_http_close(http);
    fault_proxy_stop(server);
}

TEST(a_first_date_that_is_far_ahead_counts_once_a_second_one_agrees)
{
    enum { AHEAD_MS = 3600000 };
    kl__s3_clock clock = {0};
    kl__s3_clock_learn(&clock, kl__wall_ms() + AHEAD_MS);
    CHECK(kl__s3_clock_now(&clock) < kl__wall_ms() + AHEAD_MS / 2);
    CHECK(kl__s3_clock_now(&clock) > kl__wall_ms() - AHEAD_MS);
    kl__s3_clock_learn(&clock, kl__wall_ms() + AHEAD_MS);
    CHECK(kl__s3_clock_now(&clock) > kl__wall_ms() + AHEAD_MS / 2);
}

/* ---- Tasks of an object-per-task system ---- */

enum { LEFT = 40 };

/* Puts objects as such a system names them, signed and all; in one shard, or in any. */
static void leave_tasks(const char *url, bool one_shard)
{
    struct bucket bucket;
    if (!bucket_open(&bucket, url))
        return;
    for (int i = 0; i < LEFT; i++) {
        char name[200], body[32];
        uint64_t random = (uint64_t)i;
        unsigned first = (unsigned)kl__random_next(&random);
        first = one_shard ? first >> 4 | 7u << 28 : first;
        snprintf(name, sizeof name, "tasks/%x/%08x-0000-4000-8000-%012d.json", first >> 28, first, i);
        snprintf(body, sizeof body, "{\"n\":%d}", i);
        CHECK_INT(bucket_ask(&bucket, KL_S3_PUT, name, body), 200);
    }
    bucket_close(&bucket);
}

struct seen {
    atomic_int runs, times[LEFT];
};

static kl_outcome see(kl_work *work, void *ctx)
{
    struct seen *seen = ctx;
    int number = -1;
    kl_bytes payload = kl_work_payload(work);
    if (payload.len > 5 && sscanf(payload.data, "{\"n\":%d}", &number) == 1 && number >= 0 && number < LEFT)
        atomic_fetch_add(&seen->times[number], 1);
    atomic_fetch_add(&seen->runs, 1);
    return KL_DONE;
}

static uint64_t ready_of(kl_store *store, const char *name)
{
    kl_counts counts = {0};
    uint32_t partition = 0;
    CHECK_OK(kl_store_partition(store, name, 1, &partition));
    CHECK_OK(kl_store_counts(store, (kl_place){partition, KL_ALL_SHARDS}, NULL, &counts));
    return counts.ready;
}

static uint64_t ready_of_all(kl_store *store, uint32_t partitions)
{
    uint64_t ready = ready_of(store, "old");
    for (uint32_t i = 1; i < partitions; i++) {
        char name[32];
        snprintf(name, sizeof name, "old__p%u", i);
        ready += ready_of(store, name);
    }
    return ready;
}

/* The first one has taken them in but not deleted them when the second one finds them. */
static void take_in_twice(uint32_t partitions)
{
    kl_queue_opts opts = {.size = sizeof opts, .partitions = partitions};
    char url[S3_URL_BYTES], endpoint[S3_URL_BYTES], urls[2][S3_URL_BYTES + 64];
    kl_store *stores[2] = {NULL};
    kl_queue *queues[2] = {NULL};
    size_t count = 0;
    if (!s3_server_new_url(url) || s3_server_endpoint(endpoint) != KL_OK)
        return;
    struct fault_proxy *proxy = fault_proxy_start(atoi(strrchr(endpoint, ':') + 1), test_seed(), 0);
    REQUIRE(proxy);
    leave_tasks(url, true);
    fault_proxy_refuse_deletes(proxy);
    snprintf(urls[0], sizeof urls[0], "%.*sendpoint=http://127.0.0.1:%d&import=old",
             (int)(strstr(url, "endpoint=") - url), url, fault_proxy_port(proxy));
    snprintf(urls[1], sizeof urls[1], "%s&import=old", url);
    for (int i = 0; i < 2; i++) {
        CHECK_OK(kl_store_open(urls[i], NULL, &stores[i]));
        CHECK_OK(kl_queue_open(stores[i], "old", &opts, &queues[i]));
    }
    CHECK(kl__queue_take_in(queues[0], 0, NULL, NULL, &count) != KL_OK);
    CHECK_INT(ready_of_all(stores[1], partitions), LEFT);
    CHECK(partitions == 1 || ready_of(stores[1], "old") < LEFT); /* they are spread */
    CHECK_OK(kl__queue_take_in(queues[1], 0, NULL, NULL, &count));
    CHECK_INT(count, LEFT);
    CHECK_INT(ready_of_all(stores[1], partitions), LEFT);
    for (int i = 0; i < 2; i++) {
        kl_queue_close(queues[i]);
        kl_store_close(stores[i]);
    }
    fault_proxy_stop(proxy);
}

TEST(tasks_that_two_processes_take_in_are_there_once) { take_in_twice(1); }

TEST(tasks_that_two_processes_take_into_several_partitions_are_there_once) { take_in_twice(3); }

TEST(tasks_that_an_object_per_task_system_left_are_run_once)
{
    char url[S3_URL_BYTES];
    kl_store *store = NULL;
    kl_queue *queue = NULL;
    kl_worker *worker = NULL;
    static struct seen seen;
    if (!s3_server_new_url(url))
        return;
    leave_tasks(url, false);
    strcat(url, "&import=old&poll_ms=100&settle_ms=0");
    CHECK_OK(kl_store_open(url, NULL, &store));
    CHECK_OK(kl_queue_open(store, "old", NULL, &queue));
    kl_handler any = {.fn = see, .ctx = &seen};
    kl_worker_queue served = {.queue = queue, .handlers = &any, .handler_count = 1};
    kl_worker_opts opts = {.size = sizeof opts, .concurrency = 2};
    CHECK_OK(kl_worker_start(&served, 1, &opts, &worker));
    int64_t until_ns = kl__monotonic_ns() + (int64_t)PATIENCE_NS_MS * 1000000;
    while (atomic_load(&seen.runs) < LEFT && kl__monotonic_ns() < until_ns)
        sched_yield();
    kl_worker_close(worker);
    for (int i = 0; i < LEFT; i++)
        CHECK_INT(atomic_load(&seen.times[i]), 1);
    kl_queue_close(queue);
    kl_store_close(store);
}
