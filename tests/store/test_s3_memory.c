/* test_s3_memory.c - the S3 engine when memory runs out: any one allocation fails, and what was asked is asked again.
 *
 * A script does a little of everything, and each of its calls again when it says that there was no memory. Whatever
 * failed, another process finds afterwards what the script says. Which allocation fails is drawn, because there are
 * thousands of them: the seed is printed. */
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/clock.h"
#include "base/random.h"
#include "harness.h"
#include "keyline/keyline.h"
#include "keyline/store.h"
#include "store/check_rc.h"
#include "store/dispatch.h"
#include "store/s3/s3.h"
#include "store/s3_server.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

enum { TASKS = 6, TRIES = 8, ROUNDS = 40, FAR_MS = 3600000 };

static const kl_layout layout = {1, 1};

/* Says what may be said for want of memory, or nothing. */
#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        kl_rc rc_ = KL_EBUSY;                                                                                          \
        for (int tries_ = 0; tries_ < TRIES && rc_ != KL_OK; tries_++) {                                               \
            rc_ = (call);                                                                                              \
            if (rc_ != KL_OK && rc_ != KL_ENOMEM && rc_ != KL_EBUSY && rc_ != KL_ESYSTEM)                              \
                test_fail(__FILE__, __LINE__, "%d: %s", rc_, kl_error_text());                                         \
        }                                                                                                              \
        CHECK_INT(rc_, KL_OK);                                                                                         \
    } while (0)

struct script {
    kl_store *store;
    uint32_t partition;
    kl_entry entries[TASKS]; /* 0 to 3 in shard 0, the others in shard 1; the last is due later */
    kl_stub stubs[4];
};

static void make_entries(struct script *script, kl_idgen *ids)
{
    for (uint32_t i = 0; i < TASKS; i++) {
        kl_entry *entry = &script->entries[i];
        *entry = (kl_entry){.place = {script->partition, i < 4 ? 0 : 1}, .key = kl_str("k"), .payload = kl_str("x")};
        entry->due_ms = i == TASKS - 1 ? kl__wall_ms() + FAR_MS : 0;
        CHECK_OK(kl_idgen_next(ids, entry->place.shard, 1, &entry->id));
    }
}

static kl_rc scan_first(struct script *script)
{
    kl_scan scans[2] = {{.place = {script->partition, 0}, .stubs = script->stubs, .max = 3},
                        {.place = {script->partition, 1}, .stubs = &script->stubs[3], .max = 1}};
    kl_rc rc = kl_store_scan(script->store, scans, 2);
    CHECK(rc != KL_OK || (scans[0].count == 3 && scans[1].count == 1));
    return rc;
}

/* The first is done and kept, the second is to be tried again, the third is done without a trace. */
static kl_rc settle_some(const struct script *script)
{
    kl_settled tasks[3];
    for (size_t i = 0; i < COUNT(tasks); i++)
        tasks[i] = (kl_settled){.id = script->stubs[i].id, .position = script->stubs[i].position, .attempts = 1};
    tasks[0].outcome = KL_DONE;
    tasks[0].keep_ms = FAR_MS;
    tasks[0].result = kl_str("result");
    tasks[1].outcome = KL_RETRY;
    tasks[1].due_ms = 1;
    tasks[1].keep_ms = FAR_MS;
    tasks[1].error = kl_str("error");
    tasks[2].outcome = KL_DONE;
    kl_settle batch = {.place = {script->partition, 0}, .epoch = 1, .tasks = tasks, .count = COUNT(tasks)};
    return kl_store_settle(script->store, &batch, 1);
}

static kl_rc read_one(const struct script *script)
{
    kl_ref ref = {.place = script->entries[4].place, .id = script->entries[4].id};
    kl_arena arena = {0};
    kl_task task;
    size_t count = 0;
    kl_rc rc = kl_store_read(script->store, &ref, 1, &arena, &task, &count);
    CHECK(rc != KL_OK || (count == 1 && task.state == KL_TASK_WAITING));
    kl_arena_free(&arena);
    return rc;
}

/* A record, which may be there from a try that seemed to fail. */
static kl_rc put_record(const struct script *script)
{
    kl_write write = {.name = kl_str("r"), .value = kl_str("value")};
    return kl_store_put(script->store, &write, 1);
}

static kl_rc list_records(const struct script *script)
{
    kl_arena arena = {0};
    kl_record records[4];
    size_t count = 0;
    kl_rc rc = kl_store_list(script->store, kl_str("r"), (kl_bytes){0}, COUNT(records), &arena, records, &count);
    CHECK(rc != KL_OK || (count == 1 && kl__bytes_equal(records[0].value, kl_str("value"))));
    kl_arena_free(&arena);
    return rc;
}

static kl_rc find_kept(const struct script *script)
{
    kl_arena arena = {0};
    kl_task tasks[4];
    size_t count = 0;
    kl_find find = {.partition = script->partition, .max = COUNT(tasks)};
    kl_rc rc = kl_store_find(script->store, &find, &arena, tasks, &count);
    CHECK(rc != KL_OK || (count == 1 && tasks[0].state == KL_TASK_DONE));
    kl_arena_free(&arena);
    return rc;
}

static void run(struct script *script, const char *url, kl_idgen *ids)
{
    kl_token token = {{7}};
    TRY(kl_store_open(url, NULL, &script->store));
    REQUIRE(script->store);
    TRY(kl_store_partition(script->store, "p", 1, &script->partition));
    make_entries(script, ids);
    kl_fence fences[2] = {{.place = {script->partition, 0}, .epoch = 1}, {.place = {script->partition, 1}, .epoch = 1}};
    TRY(kl_store_append(script->store, script->entries, TASKS, &token));
    TRY(kl_store_fence(script->store, fences, 2));
    TRY(scan_first(script));
    TRY(settle_some(script));
    TRY(kl__s3_checkpoint(script->store->self, kl__s3_shard_of(script->store->self, fences[0].place)));
    TRY(read_one(script));
    TRY(put_record(script));
    TRY(list_records(script));
    TRY(find_kept(script));
    kl_store_close(script->store);
}

/* Whoever opens it now finds what the script has left. */
static void check(struct script *script, const char *url)
{
    kl_counts counts = {0};
    script->store = NULL;
    CHECK_OK(kl_store_open(url, NULL, &script->store));
    REQUIRE(script->store);
    CHECK_OK(kl_store_partition(script->store, "p", 1, &script->partition));
    CHECK_OK(kl_store_counts(script->store, (kl_place){script->partition, KL_ALL_SHARDS}, NULL, &counts));
    CHECK_INT(counts.ready, 2);
    CHECK_INT(counts.due, 1);
    CHECK_INT(counts.retry, 1);
    CHECK_OK(find_kept(script));
    CHECK_OK(list_records(script));
    kl_store_close(script->store);
}

TEST(whatever_allocation_fails_the_bucket_has_what_was_said_in_the_end)
{
    char url[S3_URL_BYTES];
    struct script script = {0};
    kl_idgen *ids = NULL;
    uint64_t random = test_seed(), all = 0;
    CHECK_OK(kl_idgen_open(&layout, NULL, &ids));
    for (uint64_t i = 0; i < test_rounds(ROUNDS) && !test_failed(); i++) {
        if (!s3_server_new_url(url))
            return;
        strcat(url, "&settle_ms=0");
        uint64_t n = i == 0 ? 0 : 1 + kl__random_below(&random, all);
        kl__alloc_fail_at(n);
        run(&script, url, ids);
        uint64_t made = kl__alloc_fail_at(0);
        all = i == 0 ? made : all;
        check(&script, url);
    }
    kl_idgen_close(ids);
}

/* Applies the object again until there is memory for it; the n-th allocation fails. False: there were not so many. */
static bool apply_starved(kl__s3 *s3, kl__s3_shard *shard, const char *body, uint64_t n)
{
    kl__s3_text text = {.data = (char *)body, .len = strlen(body)};
    kl__alloc_fail_at(n);
    kl_rc rc = kl__s3_apply_tasks(s3, shard, 2, &text);
    bool failed = kl__alloc_fail_at(0) >= n;
    if (rc != KL_OK)
        rc = kl__s3_apply_tasks(s3, shard, 2, &text);
    CHECK_OK(rc);
    return failed;
}

/* The second object has the task of the first again, with no token to tell. */
TEST(a_repeat_is_noted_whatever_allocation_fails)
{
    static const char body[] = "{\"keyline\":1,\"at\":1,\"nonce\":\"1\",\"appends\":[{\"tasks\":[{\"id\":"
                               "\"0190b5a0-0000-7000-8000-000000000001\",\"payload\":\"x\"}]}]}";
    char url[S3_URL_BYTES];
    kl_store *store = NULL;
    kl_place place = {0};
    bool failed = true;
    if (!s3_server_new_url(url))
        return;
    CHECK_OK(kl_store_open(url, NULL, &store));
    REQUIRE(store);
    CHECK_OK(kl_store_partition(store, "p", 1, &place.partition));
    kl__s3 *s3 = store->self;
    kl__memory_enter(s3->memory);
    kl__s3_shard *shard = kl__s3_shard_make(s3, place);
    for (uint64_t n = 1; failed && !test_failed(); n++) {
        kl__s3_text text = {.data = (char *)body, .len = strlen(body)};
        kl__s3_shard_clear(s3, shard);
        CHECK_OK(kl__s3_apply_tasks(s3, shard, 1, &text));
        failed = apply_starved(s3, shard, body, n);
        CHECK(shard->repeat_count > 0);
        CHECK(kl__s3_object_of(shard, 2)->live == 0);
    }
    kl__memory_leave(s3->memory);
    kl_store_close(store);
}
