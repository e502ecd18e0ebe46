/* test_queue.c - queues are opened, shown, listed, altered, paused and removed as queue.h says. */
#include <pthread.h>
#include <stdlib.h>

#include "base/random.h"
#include "queue/inside.h"
#include "queue/support.h"
#include "store/lossy.h"

static kl_queue_info show(struct rig *rig, kl_queue *queue)
{
    kl_queue_info info = {0};
    CHECK_INT(kl_queue_show(queue, &rig->arena, &info), KL_OK);
    return info;
}

/* --- Opening --- */

CLAIM(a_queue_is_made_with_defaults)
{
    kl_queue *queue = open_queue(__FILE__, __LINE__, rig->store, "orders", NULL);
    REQUIRE(queue);
    kl_queue_info info = show(rig, queue);
    CHECK_STR(info.name, "orders");
    CHECK_INT(info.settings.partitions, 1);
    CHECK_INT(info.settings.shard_prefix_len, 1);
    CHECK_INT(info.settings.attempts_max, 8);
    CHECK_INT(info.settings.backoff_base_ms, 1000);
    CHECK_INT(info.settings.backoff_max_ms, 600000);
    CHECK_INT(info.settings.timeout_ms, KL_FOREVER);
    CHECK_INT(info.settings.lease_ms, 10000);
    CHECK_INT(info.settings.head_policy, KL_HEAD_CONTINUE);
    CHECK_INT(info.settings.keep_done_ms, KL_NO_WAIT);
    CHECK_INT(info.settings.keep_dead_ms, INT64_C(30) * 24 * 3600 * 1000);
    CHECK_INT(info.settings.rate, KL_FOREVER);
    CHECK_INT(info.settings.burst, KL_FOREVER);
    CHECK_INT(info.settings.concurrency, KL_FOREVER);
    CHECK_INT(info.settings.store_count, 0);
    CHECK_STR(info.settings.origin, "");
    CHECK_INT(info.layout_number, 1);
    CHECK_INT(info.created_ms, atomic_load(&rig->clock_ms));
    CHECK(!info.paused);
    kl_queue_close(queue);
}

CLAIM(what_is_stated_stands_in_the_record)
{
    kl_queue *first =
        OPEN(rig->store, "orders", .partitions = 3, .shard_prefix_len = 2, .attempts_max = 5, .backoff_base_ms = 10,
             .backoff_max_ms = 20, .timeout_ms = 30, .lease_ms = 1000, .head_policy = KL_HEAD_DRAIN, .keep_done_ms = 40,
             .keep_dead_ms = 50, .rate = 60, .burst = 70, .concurrency = 80, .origin = "\xff\"quotes\"");
    REQUIRE(first);
    kl_queue_close(first);
    if (rig->disk)
        rig_reopen(rig);
    kl_queue *queue = OPEN(rig->store, "orders", .attempts_max = 99); /* only its layout is compared */
    REQUIRE(queue);
    kl_queue_opts settings = show(rig, queue).settings;
    CHECK_INT(settings.partitions, 3);
    CHECK_INT(settings.shard_prefix_len, 2);
    CHECK_INT(settings.attempts_max, 5);
    CHECK_INT(settings.backoff_base_ms, 10);
    CHECK_INT(settings.backoff_max_ms, 20);
    CHECK_INT(settings.timeout_ms, 30);
    CHECK_INT(settings.lease_ms, 1000);
    CHECK_INT(settings.head_policy, KL_HEAD_DRAIN);
    CHECK_INT(settings.keep_done_ms, 40);
    CHECK_INT(settings.keep_dead_ms, 50);
    CHECK_INT(settings.rate, 60);
    CHECK_INT(settings.burst, 70);
    CHECK_INT(settings.concurrency, 80);
    CHECK_STR(settings.origin, "\xff\"quotes\"");
    kl_queue_close(queue);
}

CLAIM_IN_MEMORY(a_bad_name_is_refused_with_its_reason)
{
    static const struct {
        const char *name, *reason;
    } bad[] = {
        {NULL, "is NULL"},
        {"", "is empty"},
        {"-orders", "does not begin with a letter or digit"},
        {".orders", "does not begin with a letter or digit"},
        {"a__p1", "has __p in it"},
        {"a/b", "has other characters"},
        {"a@2", "has other characters"},
        {"a b", "has other characters"},
        {"\xc3\xa4", "does not begin with"},
        {"x234567890123456789012345678901234567890123456789012345678901234x", "is longer than 64 bytes"},
    };
    kl_queue *queue = NULL;
    for (size_t i = 0; i < COUNT(bad); i++) {
        CHECK_FAILS(kl_queue_open(rig->store, bad[i].name, NULL, &queue), KL_EINVAL, bad[i].reason);
        CHECK_FAILS(kl_queue_find(rig->store, bad[i].name, &queue), KL_EINVAL, bad[i].reason);
        CHECK(!queue);
    }
}

CLAIM_IN_MEMORY(a_name_may_have_all_that_is_allowed_and_64_bytes)
{
    static const char *const good[] = {"a", "0", "A.b_c-D9", "a__q1",
                                       "x23456789012345678901234567890123456789012345678901234567890123x"};
    for (size_t i = 0; i < COUNT(good); i++)
        kl_queue_close(OPEN(rig->store, good[i], .partitions = KL_PARTITIONS_MAX));
}

#define BAD(field, value, part)                                                                                        \
    do {                                                                                                               \
        kl_queue_opts opts_ = {.size = sizeof opts_, .field = value};                                                  \
        CHECK_FAILS(kl_queue_open(rig->store, "bad", &opts_, &queue), KL_EINVAL, #field " is " part);                  \
        CHECK_FAILS(kl_queue_alter(there, &opts_), KL_EINVAL, #field " is " part);                                     \
    } while (0)

#define DURATION_MAX (INT64_C(366) * 24 * 3600 * 1000)

CLAIM_IN_MEMORY(a_setting_out_of_its_range_is_refused_and_named)
{
    kl_queue *queue = NULL, *there = OPEN(rig->store, "there", .partitions = 1);
    REQUIRE(there);
    BAD(partitions, -1, "-1; it must be from 1 to 1024");
    BAD(partitions, KL_PARTITIONS_MAX + 1, "1025");
    BAD(shard_prefix_len, -1, "-1; it must be from 1 to 4");
    BAD(shard_prefix_len, 5, "5");
    BAD(attempts_max, -1, "-1");
    BAD(attempts_max, KL_ATTEMPTS_MAX + 1, "65536");
    BAD(backoff_base_ms, -1, "-1");
    BAD(backoff_base_ms, DURATION_MAX + 1, "");
    BAD(backoff_max_ms, -1, "-1");
    BAD(backoff_max_ms, KL_FOREVER, "");
    BAD(timeout_ms, -1, "-1; it must be from 1 to 31622400000, or KL_FOREVER for no limit");
    BAD(timeout_ms, DURATION_MAX + 1, "");
    BAD(lease_ms, 999, "999; it must be from 1000 to 3600000");
    BAD(lease_ms, 3600001, "3600001");
    BAD(keep_done_ms, -2, "-2; it must be from 1 to 31622400000, or KL_NO_WAIT for not at all");
    BAD(keep_done_ms, KL_FOREVER, "");
    BAD(keep_dead_ms, -1, "-1");
    BAD(keep_dead_ms, DURATION_MAX + 1, "");
    BAD(rate, -1, "-1");
    BAD(rate, 1000000001, "1000000001");
    BAD(burst, -1, "-1");
    BAD(burst, 1000000001, "1000000001");
    BAD(concurrency, -1, "-1");
    BAD(concurrency, 1000000001, "1000000001");
    BAD(head_policy, (kl_head_policy)4, "4; it must be KL_HEAD_CONTINUE");
    BAD(store_count, 1, "1 and stores is NULL");
    CHECK(!queue);
    CHECK(!record_text(rig, "queue/bad"));
    kl_queue_close(there);
}

CLAIM_IN_MEMORY(settings_that_do_not_go_together_are_refused)
{
    static const char *const urls[] = {"", ""};
    static const char *const holes[] = {NULL};
    char origin[202];
    kl_queue *queue = NULL;
    memset(origin, 'o', sizeof origin - 1), origin[201] = '\0';
    kl_queue_opts backoff = {.size = sizeof backoff, .backoff_base_ms = 600001};
    kl_queue_opts stores = {.size = sizeof stores, .partitions = 3, .stores = urls, .store_count = 2};
    kl_queue_opts hole = {.size = sizeof hole, .stores = holes, .store_count = 1};
    kl_queue_opts unsized = {.partitions = 1}, larger = {.size = sizeof larger + 8};
    kl_queue_opts wordy = {.size = sizeof wordy, .origin = origin};
    CHECK_FAILS(kl_queue_open(rig->store, "bad", &backoff, &queue), KL_EINVAL, "is above backoff_max_ms (600000)");
    CHECK_FAILS(kl_queue_open(rig->store, "bad", &stores, &queue), KL_EINVAL, "partitions is 3 and store_count is 2");
    CHECK_FAILS(kl_queue_open(rig->store, "bad", &hole, &queue), KL_EINVAL, "stores[0] is NULL");
    CHECK_FAILS(kl_queue_open(rig->store, "bad", &unsized, &queue), KL_EINVAL, "start from {.size");
    CHECK_FAILS(kl_queue_open(rig->store, "bad", &larger, &queue), KL_EINVAL, "older than its header");
    CHECK_FAILS(kl_queue_open(rig->store, "bad", &wordy, &queue), KL_EINVAL, "origin has 201 bytes");
    CHECK_FAILS(kl_queue_open(NULL, "bad", NULL, &queue), KL_EINVAL, "the store is NULL");
    CHECK_FAILS(kl_queue_open(rig->store, "bad", NULL, NULL), KL_EINVAL, "ret_queue is NULL");
    CHECK(!queue);
    CHECK(!record_text(rig, "queue/bad"));
}

CLAIM_IN_MEMORY(options_of_an_older_caller_are_shorter)
{
    kl_queue_opts opts = {.size = offsetof(kl_queue_opts, attempts_max), .partitions = 2, .attempts_max = 77};
    kl_queue *queue = NULL;
    CHECK_INT(kl_queue_open(rig->store, "orders", &opts, &queue), KL_OK);
    REQUIRE(queue);
    CHECK_INT(show(rig, queue).settings.partitions, 2);
    CHECK_INT(show(rig, queue).settings.attempts_max, 8);
    kl_queue_close(queue);
}

CLAIM(another_layout_than_is_there_is_an_error_that_names_both_sides)
{
    static const char *const elsewhere[] = {"", "", "", "memory:"};
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 4, .origin = "keyline.toml line 3"), *other = NULL;
    kl_queue *plain = OPEN(rig->store, "plain", .shard_prefix_len = 2);
    kl_queue_opts two = {.size = sizeof two, .partitions = 2, .origin = "--partitions"};
    kl_queue_opts four = {.size = sizeof four, .partitions = 4, .stores = elsewhere, .store_count = 4};
    kl_queue_opts longer = {.size = sizeof longer, .shard_prefix_len = 1};
    CHECK_INT(kl_queue_open(rig->store, "orders", &two, &other), KL_EMISMATCH);
    CHECK_STR(kl_error_text(),
              "queue orders has 4 partitions (made so by keyline.toml line 3), and --partitions says 2; "
              "leave it out, or change the queue with `keyline queue alter`");
    CHECK_INT(kl_queue_open(rig->store, "plain", &longer, &other), KL_EMISMATCH);
    CHECK_STR(kl_error_text(), "queue plain has a shard_prefix_len of 2, and this call says 1; "
                               "leave it out, or change the queue with `keyline queue alter`");
    longer.shard_prefix_len = 2, two.origin = "KEYLINE_PARTITIONS";
    kl_queue *bare = OPEN(rig->store, "bare", .rate = 5);
    CHECK_FAILS(kl_queue_open(rig->store, "bare", &two, &other), KL_EMISMATCH,
                "queue bare has 1 partition (the default), and KEYLINE_PARTITIONS says 2");
    CHECK_FAILS(kl_queue_open(rig->store, "bare", &longer, &other), KL_EMISMATCH,
                "queue bare has a shard_prefix_len of 1 (the default), and this call says 2");
    kl_queue_close(bare);
    CHECK_FAILS(kl_queue_open(rig->store, "orders", &four, &other), KL_EMISMATCH,
                "partition 3 of queue orders lies in the queue's own store (made so by keyline.toml line 3), and this "
                "call says another: a store of memory; leave it out");
    four.store_count = 3, four.partitions = 0;
    CHECK_FAILS(kl_queue_open(rig->store, "orders", &four, &other), KL_EMISMATCH, "and this call names 3 stores");
    CHECK(!other);
    kl_queue_close(plain);
    kl_queue_close(queue);
}

CLAIM(each_number_of_a_layout_has_its_own_origin)
{
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 2, .origin = "--partitions"), *other = NULL;
    kl_queue_opts three = {.size = sizeof three, .partitions = 3, .origin = "KEYLINE_PARTITIONS"};
    kl_queue_opts longer = {.size = sizeof longer, .shard_prefix_len = 3, .origin = "KEYLINE_SHARD_PREFIX_LEN"};
    kl_queue_opts altered = {.size = sizeof altered, .shard_prefix_len = 2, .origin = "--shard-prefix-len"};
    CHECK_FAILS(kl_queue_open(rig->store, "orders", &three, &other), KL_EMISMATCH,
                "queue orders has 2 partitions (made so by --partitions), and KEYLINE_PARTITIONS says 3");
    CHECK_FAILS(kl_queue_open(rig->store, "orders", &longer, &other), KL_EMISMATCH,
                "queue orders has a shard_prefix_len of 1 (the default), and KEYLINE_SHARD_PREFIX_LEN says 3");
    CHECK_INT(kl_queue_alter(queue, &altered), KL_OK);
    CHECK_FAILS(kl_queue_open(rig->store, "orders", &three, &other), KL_EMISMATCH,
                "queue orders has 2 partitions (made so by --partitions), and KEYLINE_PARTITIONS says 3");
    CHECK_FAILS(
        kl_queue_open(rig->store, "orders", &longer, &other), KL_EMISMATCH,
        "queue orders has a shard_prefix_len of 2 (made so by --shard-prefix-len), and KEYLINE_SHARD_PREFIX_LEN");
    CHECK(!other);
    kl_queue_close(queue);
}

/* It was written by a version that told only who stated the layout. */
CLAIM(a_record_without_origins_of_its_numbers_goes_by_that_of_the_layout)
{
    static const char record[] =
        "{\"format\": 1, \"created_ms\": 1, \"settings\": {}, \"layouts\": [{\"number\": 1, \"partitions\": 2, "
        "\"shard_prefix_len\": 1, \"origin\": \"--partitions\"}]}";
    kl_queue *other = NULL;
    kl_queue_opts three = {.size = sizeof three, .partitions = 3};
    kl_queue_opts longer = {.size = sizeof longer, .shard_prefix_len = 2};
    set_record(rig, "queue/orders", record);
    CHECK_FAILS(kl_queue_open(rig->store, "orders", &three, &other), KL_EMISMATCH,
                "queue orders has 2 partitions (made so by --partitions)");
    CHECK_FAILS(kl_queue_open(rig->store, "orders", &longer, &other), KL_EMISMATCH,
                "queue orders has a shard_prefix_len of 1 (the default)");
    CHECK(!other);
}

CLAIM(find_makes_nothing)
{
    kl_queue *queue = NULL;
    CHECK_FAILS(kl_queue_find(rig->store, "orders", &queue), KL_ENOTFOUND, "there is no queue orders");
    CHECK(!record_text(rig, "queue/orders"));
    kl_queue *made = OPEN(rig->store, "orders", .partitions = 2);
    CHECK_INT(kl_queue_find(rig->store, "orders", &queue), KL_OK);
    REQUIRE(queue);
    CHECK_INT(show(rig, queue).settings.partitions, 2);
    kl_queue_close(queue);
    kl_queue_close(made);
    kl_queue_close(NULL);
}

CLAIM(a_queue_of_a_thousand_partitions_is_fine)
{
    kl_queue *queue = OPEN(rig->store, "wide", .partitions = 1000);
    REQUIRE(queue);
    kl__descriptor *descriptor = kl__queue_descriptor(queue);
    const kl__queue_layout *layout = kl__newest_layout(descriptor);
    for (uint32_t i = 1; i < 1000; i++)
        if (layout->numbers[i] == 0 || layout->numbers[i] == layout->numbers[i - 1])
            test_fail(__FILE__, __LINE__, "partition %u has number %u", i, layout->numbers[i]);
    kl__descriptor_release(descriptor);
    CHECK_INT(show(rig, queue).counts.ready, 0);
    kl_queue_close(queue);
}

/* --- Two at once --- */

enum { OPENERS = 4 };

struct opener {
    kl_store *store;
    pthread_barrier_t *barrier;
    int64_t partitions;
    char name[16];
    kl_rc rc;
    kl_queue *queue;
};

static void *open_at_once(void *ctx)
{
    struct opener *opener = ctx;
    kl_queue_opts opts = {.size = sizeof opts, .partitions = opener->partitions, .attempts_max = opener->partitions};
    pthread_barrier_wait(opener->barrier);
    opener->rc = kl_queue_open(opener->store, opener->name, &opts, &opener->queue);
    return NULL;
}

static void race(struct opener *openers, kl_store *store, const char *name, bool alike)
{
    pthread_t threads[OPENERS];
    pthread_barrier_t barrier;
    pthread_barrier_init(&barrier, NULL, OPENERS);
    for (int i = 0; i < OPENERS; i++) {
        openers[i] = (struct opener){.store = store, .barrier = &barrier, .partitions = alike ? 2 : i + 1};
        snprintf(openers[i].name, sizeof openers[i].name, "%s", name);
        pthread_create(&threads[i], NULL, open_at_once, &openers[i]);
    }
    for (int i = 0; i < OPENERS; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&barrier);
}

CLAIM(openers_at_the_same_time_make_one_queue)
{
    struct opener openers[OPENERS];
    for (uint64_t round = 0; round < test_rounds(20); round++) {
        char name[16];
        snprintf(name, sizeof name, "race%d", (int)round);
        race(openers, rig->store, name, true);
        for (int i = 0; i < OPENERS; i++) {
            CHECK_INT(openers[i].rc, KL_OK);
            REQUIRE(openers[i].queue);
            CHECK_INT(show(rig, openers[i].queue).settings.partitions, 2);
            kl_queue_close(openers[i].queue);
        }
    }
}

CLAIM(openers_with_different_layouts_agree_on_the_winner)
{
    struct opener openers[OPENERS];
    for (uint64_t round = 0; round < test_rounds(20); round++) {
        char name[16];
        int won = 0;
        snprintf(name, sizeof name, "race%d", (int)round);
        race(openers, rig->store, name, false);
        kl_queue *there = NULL;
        CHECK_INT(kl_queue_find(rig->store, name, &there), KL_OK);
        REQUIRE(there);
        int64_t partitions = show(rig, there).settings.partitions;
        for (int i = 0; i < OPENERS; i++) {
            won += openers[i].rc == KL_OK;
            CHECK_INT(openers[i].rc, openers[i].partitions == partitions ? KL_OK : KL_EMISMATCH);
            kl_queue_close(openers[i].queue);
        }
        CHECK_INT(won, 1);
        kl_queue_close(there);
    }
}

/* --- Listing --- */

CLAIM(queues_are_listed_by_name_in_pieces)
{
    enum { QUEUES = 150 };
    const char *names[QUEUES + 1];
    char name[8];
    size_t count = 99;
    CHECK_INT(kl_queue_list(rig->store, "", 1, &rig->arena, names, &count), KL_OK);
    CHECK_INT(count, 0);
    for (int i = 0; i < QUEUES; i++) {
        snprintf(name, sizeof name, "q%03d", i);
        kl_queue_close(OPEN(rig->store, name, .partitions = 1));
    }
    set_record(rig, "queuf/other", "{}");
    CHECK_INT(kl_queue_list(rig->store, NULL, QUEUES + 1, &rig->arena, names, &count), KL_OK);
    CHECK_INT(count, QUEUES);
    CHECK_STR(names[0], "q000");
    CHECK_STR(names[QUEUES - 1], "q149");
    CHECK_INT(kl_queue_list(rig->store, "q070", 70, &rig->arena, names, &count), KL_OK);
    CHECK_INT(count, 70);
    CHECK_STR(names[0], "q071");
    CHECK_STR(names[69], "q140");
    CHECK_INT(kl_queue_list(rig->store, "q149", 1, &rig->arena, names, &count), KL_OK);
    CHECK_INT(count, 0);
    CHECK_FAILS(kl_queue_list(rig->store, "", 0, &rig->arena, names, &count), KL_EINVAL, "max is 0");
    CHECK_FAILS(kl_queue_list(rig->store, "a/b", 1, &rig->arena, names, &count), KL_EINVAL, "other characters");
}

/* --- Pausing and altering settings --- */

CLAIM(pause_and_resume_are_seen_by_every_handle)
{
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 1), *other = OPEN(rig->store, "orders", .partitions = 1);
    REQUIRE(queue && other);
    CHECK_INT(kl_queue_pause(queue), KL_OK);
    CHECK_INT(kl_queue_pause(other), KL_OK);
    CHECK(show(rig, other).paused);
    CHECK_INT(kl_queue_resume(other), KL_OK);
    CHECK(!show(rig, queue).paused);
    kl_queue_close(other);
    kl_queue_close(queue);
}

static void alter(kl_queue *queue, kl_queue_opts opts)
{
    opts.size = sizeof opts;
    CHECK_INT(kl_queue_alter(queue, &opts), KL_OK);
}

CLAIM(alter_changes_what_is_stated_and_nothing_else)
{
    kl_queue *queue = OPEN(rig->store, "orders", .attempts_max = 3, .timeout_ms = 500, .rate = 10);
    REQUIRE(queue);
    CHECK_INT(show(rig, queue).settings.burst, 10);
    alter(queue, (kl_queue_opts){.timeout_ms = KL_FOREVER, .rate = 20, .head_policy = KL_HEAD_HALT});
    kl_queue_opts settings = show(rig, queue).settings;
    CHECK_INT(settings.attempts_max, 3);
    CHECK_INT(settings.timeout_ms, KL_FOREVER);
    CHECK_INT(settings.rate, 20);
    CHECK_INT(settings.burst, 20); /* nobody stated it: a second's worth */
    CHECK_INT(settings.head_policy, KL_HEAD_HALT);
    alter(queue, (kl_queue_opts){.burst = 5});
    alter(queue, (kl_queue_opts){.rate = 30});
    CHECK_INT(show(rig, queue).settings.burst, 5);
    CHECK_INT(show(rig, queue).layout_number, 1);
    kl_queue_opts high = {.size = sizeof high, .backoff_base_ms = 700000};
    CHECK_FAILS(kl_queue_alter(queue, &high), KL_EINVAL, "backoff_base_ms (700000) is above backoff_max_ms (600000)");
    CHECK_FAILS(kl_queue_alter(queue, NULL), KL_EINVAL, "opts is NULL");
    CHECK_FAILS(kl_queue_alter(NULL, &high), KL_EINVAL, "the queue is NULL");
    kl_queue_close(queue);
}

CLAIM(an_alter_that_changes_nothing_writes_nothing)
{
    kl_queue *queue = OPEN(rig->store, "orders", .attempts_max = 3);
    REQUIRE(queue);
    kl__descriptor *before = kl__queue_descriptor(queue);
    alter(queue, (kl_queue_opts){.attempts_max = 3, .partitions = 1});
    CHECK_INT(kl_queue_resume(queue), KL_OK);
    kl__descriptor *after = kl__queue_descriptor(queue);
    CHECK_INT(after->version, before->version);
    kl__descriptor_release(after);
    kl__descriptor_release(before);
    kl_queue_close(queue);
}

struct altering {
    kl_queue *queue;
    pthread_barrier_t *barrier;
    kl_queue_opts opts;
    kl_rc rc;
};

static void *alter_at_once(void *ctx)
{
    struct altering *altering = ctx;
    pthread_barrier_wait(altering->barrier);
    altering->rc = kl_queue_alter(altering->queue, &altering->opts);
    return NULL;
}

CLAIM(changes_at_the_same_time_are_all_made)
{
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 1), *other = OPEN(rig->store, "orders", .partitions = 1);
    REQUIRE(queue && other);
    for (int round = 1; round <= (int)test_rounds(20); round++) {
        pthread_barrier_t barrier;
        pthread_t thread;
        pthread_barrier_init(&barrier, NULL, 2);
        struct altering first = {other, &barrier, {.size = sizeof first.opts, .attempts_max = round}, KL_OK};
        struct altering second = {queue, &barrier, {.size = sizeof first.opts, .rate = round}, KL_OK};
        pthread_create(&thread, NULL, alter_at_once, &first);
        alter_at_once(&second);
        pthread_join(thread, NULL);
        pthread_barrier_destroy(&barrier);
        CHECK_INT(first.rc, KL_OK);
        CHECK_INT(second.rc, KL_OK);
        kl_queue_opts settings = show(rig, queue).settings;
        CHECK_INT(settings.attempts_max, round);
        CHECK_INT(settings.rate, round);
    }
    kl_queue_close(other);
    kl_queue_close(queue);
}

static kl_rc always_conflict(kl__descriptor *draft, void *ctx)
{
    (void)draft;
    ++*(int *)ctx;
    return KL_ECONFLICT;
}

CLAIM_IN_MEMORY(a_change_gives_up_after_so_many_conflicts)
{
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 1);
    REQUIRE(queue);
    int calls = 0;
    CHECK_FAILS(kl__queue_change(queue, always_conflict, &calls), KL_EBUSY, "was changed by others 32 times");
    CHECK_INT(calls, 32);
    kl_queue_close(queue);
}

/* --- The record --- */

CLAIM(unknown_fields_of_the_record_are_kept)
{
    set_record(rig, "queue/orders",
               "{\"format\":1,\"created_ms\":5,\"colour\":\"red\",\"settings\":{\"attempts_max\":4,\"mood\":[1]},"
               "\"layouts\":[{\"number\":7,\"partitions\":2,\"shard_prefix_len\":1,\"smell\":{\"x\":1}}]}");
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 2);
    REQUIRE(queue);
    kl_queue_info info = show(rig, queue);
    CHECK_INT(info.layout_number, 7);
    CHECK_INT(info.settings.attempts_max, 4);
    CHECK_INT(info.settings.lease_ms, 10000); /* missing: its default */
    CHECK_INT(kl_queue_pause(queue), KL_OK);
    alter(queue, (kl_queue_opts){.partitions = 3});
    const char *text = record_text(rig, "queue/orders");
    CHECK_CONTAINS(text, "\"colour\":\"red\"");
    CHECK_CONTAINS(text, "\"mood\":[1]");
    CHECK_CONTAINS(text, "\"smell\":{\"x\":1}");
    CHECK_CONTAINS(text, "\"paused\":true");
    kl_queue_close(queue);
}

#define HEAD   "{\"format\":1,\"created_ms\":5,\"settings\":{},\"layouts\":"
#define LAYOUT "\"partitions\":2,\"shard_prefix_len\":1"

CLAIM_IN_MEMORY(a_damaged_record_is_a_clear_error)
{
    static const struct {
        const char *value, *part;
    } damages[] = {
        {"", "the record queue/orders is damaged: "},
        {"{\"format\":1", "the record queue/orders is damaged: "},
        {"[]", "it is no JSON object"},
        {"{}", "its field format is missing"},
        {"{\"format\":\"1\"}", "its field format is no whole number"},
        {"{\"format\":1}", "its field created_ms is missing"},
        {"{\"format\":1,\"created_ms\":-1,\"settings\":{}}", "its field created_ms is -1, not from 0 to"},
        {"{\"format\":1,\"created_ms\":1,\"settings\":3}", "its field settings is no object"},
        {"{\"format\":1,\"created_ms\":1,\"settings\":{\"rate\":0}}", "its field rate is 0, not from 1 to 1000000000"},
        {"{\"format\":1,\"created_ms\":1,\"settings\":{\"lease_ms\":\"none\"}}",
         "its field lease_ms is no whole number"},
        {"{\"format\":1,\"created_ms\":1,\"settings\":{\"head_policy\":\"run\"}}", "its field head_policy is neither"},
        {"{\"format\":1,\"created_ms\":1,\"paused\":1,\"settings\":{}}", "its field paused is neither true nor false"},
        {HEAD "{}}", "its field layouts is no list"},
        {HEAD "[]}", "its field layouts is empty"},
        {HEAD "[1]}", "is no object"},
        {HEAD "[{\"number\":0," LAYOUT "}]}", "its field number is 0"},
        {HEAD "[{\"number\":1,\"partitions\":0,\"shard_prefix_len\":1}]}", "its field partitions is 0"},
        {HEAD "[{\"number\":1,\"partitions\":1,\"shard_prefix_len\":5}]}", "its field shard_prefix_len is 5"},
        {HEAD "[{\"number\":2," LAYOUT "},{\"number\":2," LAYOUT "}]}", "its field number is 2, not from 3"},
        {HEAD "[{\"number\":1," LAYOUT ",\"drained\":true}]}",
         "its field drained is true of a layout that is not sealed"},
        {HEAD "[{\"number\":1," LAYOUT ",\"stores\":[0,0]}]}", "its field stores is missing"},
        {HEAD "[{\"number\":1," LAYOUT ",\"stores\":[0]}],\"stores\":[]}", "names another number of stores"},
        {HEAD "[{\"number\":1," LAYOUT ",\"stores\":[0,1]}],\"stores\":[]}", "its field stores is 1, not from 0 to 0"},
        {HEAD "[{\"number\":1," LAYOUT ",\"stores\":[0,1]}],\"stores\":[7]}", "its field stores is no text"},
    };
    kl_queue *queue = NULL;
    for (size_t i = 0; i < COUNT(damages); i++) {
        set_record(rig, "queue/orders", damages[i].value);
        CHECK_FAILS(kl_queue_open(rig->store, "orders", NULL, &queue), KL_EDAMAGED, damages[i].part);
        CHECK_CONTAINS(kl_error_text(), "the record queue/orders is damaged");
        CHECK(!queue);
    }
    set_record(rig, "queue/orders", "{\"format\":2}");
    CHECK_FAILS(kl_queue_open(rig->store, "orders", NULL, &queue), KL_EINVAL, "has format 2");
}

CLAIM_IN_MEMORY(a_record_damaged_later_leaves_what_is_known)
{
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 2);
    REQUIRE(queue);
    set_record(rig, "queue/orders", "{");
    CHECK_INT(kl__queue_refresh(queue), KL_EDAMAGED);
    CHECK_INT(kl_queue_pause(queue), KL_EDAMAGED);
    kl__descriptor *descriptor = kl__queue_descriptor(queue);
    CHECK_INT(descriptor->settings.partitions, 2);
    kl__descriptor_release(descriptor);
    kl_queue_close(queue);
}

/* --- Removing --- */

static void append_task(kl_queue *queue, const char *key)
{
    kl__descriptor *descriptor = kl__queue_descriptor(queue);
    const kl__queue_layout *layout = kl__newest_layout(descriptor);
    uint32_t partition = kl_partition_of(&layout->layout, kl_str(key));
    kl_entry entry = {.key = kl_str(key)};
    entry.place = (kl_place){layout->numbers[partition], kl_shard_of(&layout->layout, entry.key)};
    CHECK_INT(kl_idgen_next(layout->idgen, entry.place.shard, kl_lane_of(entry.key), &entry.id), KL_OK);
    CHECK_INT(kl_store_append(layout->stores[partition], &entry, 1, NULL), KL_OK);
    kl__descriptor_release(descriptor);
}

/* Ends what waits in the newest layout as done, and keeps it. */
static void settle_all(kl_queue *queue)
{
    kl__descriptor *descriptor = kl__queue_descriptor(queue);
    const kl__queue_layout *layout = kl__newest_layout(descriptor);
    for (uint32_t p = 0; p < layout->layout.partitions; p++) {
        for (uint32_t s = 0; s < kl_layout_shards(&layout->layout); s++) {
            kl_stub stubs[64];
            kl_settled settled[64];
            kl_scan scan = {.place = {layout->numbers[p], s}, .stubs = stubs, .max = 64};
            CHECK_INT(kl_store_scan(layout->stores[p], &scan, 1), KL_OK);
            for (size_t i = 0; i < scan.count; i++)
                settled[i] =
                    (kl_settled){.id = stubs[i].id, .position = stubs[i].position, .attempts = 1, .keep_ms = 60000};
            kl_settle batch = {.place = scan.place, .tasks = settled, .count = scan.count};
            if (scan.count > 0 && kl_store_settle(layout->stores[p], &batch, 1) != KL_OK)
                test_fail(__FILE__, __LINE__, "%s", kl_error_text());
        }
    }
    kl__descriptor_release(descriptor);
}

CLAIM(counts_are_those_of_all_partitions)
{
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 3);
    REQUIRE(queue);
    char key[8];
    for (int i = 0; i < 100; i++) {
        snprintf(key, sizeof key, "k%d", i);
        append_task(queue, key);
    }
    kl_counts counts = show(rig, queue).counts;
    CHECK_INT(counts.ready, 100);
    CHECK_INT(counts.priorities, 1 << -KL_PRIORITY_MIN);
    CHECK(counts.oldest_id_ms > 0);
    settle_all(queue);
    counts = show(rig, queue).counts;
    CHECK_INT(counts.ready, 0);
    CHECK_INT(counts.done, 100);
    kl_queue_close(queue);
}

CLAIM(a_queue_that_holds_tasks_is_not_removed)
{
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 2);
    REQUIRE(queue);
    append_task(queue, "a");
    append_task(queue, "b");
    CHECK_FAILS(kl_queue_remove(queue), KL_EBUSY, "queue orders holds 2 tasks");
    CHECK(record_text(rig, "queue/orders"));
    kl_queue_close(queue);
}

CLAIM(a_queue_with_a_live_worker_is_not_removed)
{
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 2);
    REQUIRE(queue);
    set_record(rig, "owners/orders__p1",
               "{\"workers\":[{\"name\":\"old\",\"expires_ms\":5},"
               "{\"name\":\"host:7\",\"expires_ms\":1700000009000}]}");
    CHECK_FAILS(kl_queue_remove(queue), KL_EBUSY, "the worker host:7 serves queue orders; stop it, or wait 9000 ms");
    atomic_store(&rig->clock_ms, INT64_C(1700000009000));
    CHECK_INT(kl_queue_remove(queue), KL_OK);
    CHECK(!record_text(rig, "owners/orders__p1"));
    kl_queue_close(queue);
}

CLAIM(removing_takes_everything_of_this_queue_and_nothing_of_others)
{
    static const char *const own[] = {"pause/orders/1",  "unique/orders/1",      "token/orders/1", "job/orders/1",
                                      "cancel/orders/1", "idempotency/orders/1", "cron/orders/x",  "cron/orders/y",
                                      "ask/orders/3/9",  "ask/orders__p1/3/9",   "owners/orders"};
    static const char *const others[] = {"queue/orders2", "cron/orders2/x", "ask/orders2/3/9", "pause/order/1"};
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 2);
    REQUIRE(queue);
    char key[8];
    for (int i = 0; i < 200; i++) {
        snprintf(key, sizeof key, "k%d", i);
        append_task(queue, key);
    }
    settle_all(queue);
    CHECK_INT(show(rig, queue).counts.done, 200);
    for (size_t i = 0; i < COUNT(own); i++)
        set_record(rig, own[i], "{\"workers\":[]}");
    for (size_t i = 0; i < COUNT(others); i++)
        set_record(rig, others[i], "{}");
    kl__descriptor *descriptor = kl__queue_descriptor(queue);
    uint32_t numbers[2] = {descriptor->layouts[0].numbers[0], descriptor->layouts[0].numbers[1]};
    kl__descriptor_release(descriptor);
    CHECK_INT(kl_queue_remove(queue), KL_OK);
    CHECK_INT(kl_queue_remove(queue), KL_OK); /* a repeat */
    CHECK_INT(kl__queue_refresh(queue), KL_ENOTFOUND);
    CHECK_FAILS(kl_queue_pause(queue), KL_ENOTFOUND, "there is no queue orders");
    CHECK(!record_text(rig, "queue/orders"));
    for (size_t i = 0; i < COUNT(own); i++)
        if (record_text(rig, own[i]))
            test_fail(__FILE__, __LINE__, "%s is still there", own[i]);
    for (size_t i = 0; i < COUNT(others); i++)
        if (!record_text(rig, others[i]))
            test_fail(__FILE__, __LINE__, "%s is gone", others[i]);
    for (int i = 0; i < 2; i++) {
        kl_counts counts = {0};
        CHECK_INT(kl_store_counts(rig->store, (kl_place){numbers[i], KL_ALL_SHARDS}, NULL, &counts), KL_OK);
        CHECK_INT(counts.done, 0);
    }
    kl_queue_close(queue);
}

CLAIM(who_still_has_a_removed_queue_open_is_told_so_or_finds_the_one_made_since)
{
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 2), *elsewhere = OPEN(rig->store, "orders");
    kl_put put = {.key = kl_str("k"), .payload = kl_str("p")};
    REQUIRE(queue && elsewhere);
    CHECK_INT(kl_queue_remove(queue), KL_OK);
    kl_queue_close(queue);
    CHECK_FAILS(kl_queue_put(elsewhere, &put, 1, (kl_bytes){0}, NULL), KL_ENOTFOUND, "there is no queue orders");
    kl_queue *anew = OPEN(rig->store, "orders", .shard_prefix_len = 2);
    REQUIRE(anew);
    CHECK_INT(kl_queue_put(elsewhere, &put, 1, (kl_bytes){0}, NULL), KL_OK);
    CHECK_INT(show(rig, anew).counts.ready, 1);
    kl_queue_close(elsewhere);
    kl_queue_close(anew);
}

CLAIM(a_queue_made_again_begins_with_partitions_of_its_own)
{
    for (int round = 1; round <= 3; round++) {
        kl_queue *queue = OPEN(rig->store, "orders", .shard_prefix_len = round);
        REQUIRE(queue);
        CHECK_INT(show(rig, queue).layout_number, 2 * round - 1);
        alter(queue, (kl_queue_opts){.partitions = 2});
        append_task(queue, "a");
        settle_all(queue);
        CHECK_INT(show(rig, queue).counts.done, 1);
        CHECK_INT(kl_queue_remove(queue), KL_OK);
        kl_queue_close(queue);
    }
}

/* --- Faults --- */

/* Opens, alters, shows and removes a queue. */
static kl_rc open_and_alter(kl_store *store, const char *name, const char *const *urls)
{
    kl_queue_opts first = {.size = sizeof first, .partitions = 2, .stores = urls, .store_count = 2, .origin = "a"};
    kl_queue_opts second = {.size = sizeof second, .shard_prefix_len = 2, .rate = 5, .origin = "\xfe"};
    kl_queue *queue = NULL;
    kl_arena arena = {0};
    kl_queue_info info;
    kl_rc rc = kl_queue_open(store, name, &first, &queue);
    if (rc == KL_OK)
        rc = kl_queue_alter(queue, &second);
    if (rc == KL_OK)
        rc = kl_queue_show(queue, &arena, &info);
    if (rc == KL_OK)
        CHECK_INT(info.settings.rate, 5);
    if (rc == KL_OK)
        rc = kl_queue_remove(queue);
    kl_queue_close(queue);
    kl_arena_free(&arena);
    return rc;
}

CLAIM_IN_MEMORY(every_failed_allocation_is_reported_and_leaves_a_queue_that_can_be_used)
{
    static const char *const urls[] = {"", "memory:"};
    char name[16];
    uint64_t n = 0;
    kl_rc rc;
    CHECK_INT(open_and_alter(rig->store, "warm", urls), KL_OK);
    do {
        n++;
        snprintf(name, sizeof name, "sweep%d", (int)n);
        kl__alloc_fail_at(n);
        rc = open_and_alter(rig->store, name, urls);
        kl__alloc_fail_at(0);
        if (rc != KL_OK && rc != KL_ENOMEM) {
            test_fail(__FILE__, __LINE__, "allocation %d: %s: %s", (int)n, kl_rc_name(rc), kl_error_text());
            return;
        }
        /* What the failed call left can be opened by a call without a layout in mind, altered and removed. */
        kl_queue *queue = NULL;
        CHECK_INT(kl_queue_open(rig->store, name, NULL, &queue), KL_OK);
        REQUIRE(queue);
        alter(queue, (kl_queue_opts){.attempts_max = 3});
        CHECK_INT(kl_queue_remove(queue), KL_OK);
        kl_queue_close(queue);
    } while (rc != KL_OK);
    CHECK(n > 50);
}

static kl_rc patiently(kl_rc rc, int *tries)
{
    CHECK(rc == KL_OK || rc == LOSSY_RC);
    return rc == LOSSY_RC && ++*tries < 1000 ? LOSSY_RC : KL_OK;
}

CLAIM(lost_replies_are_made_good_by_calling_again)
{
    uint64_t seed = test_seed();
    struct lossy lossy;
    kl_store *store = NULL;
    kl_arena arena = {0};
    CHECK_INT(lossy_open(&lossy, rig->store, seed, &store), KL_OK);
    REQUIRE(store);
    lossy.replies_lost = 2, lossy.requests_lost = 1; /* a removal is some fifty calls, repeated from the first */
    for (uint64_t round = 0; round < test_rounds(30); round++) {
        kl_queue_opts made = {.size = sizeof made, .partitions = 2, .attempts_max = 7};
        kl_queue_opts altered = {.size = sizeof altered, .partitions = 3, .rate = 9};
        kl_queue *queue = NULL;
        kl_queue_info info = {0};
        int tries = 0;
        while (patiently(kl_queue_open(store, "orders", &made, &queue), &tries) != KL_OK)
            ;
        REQUIRE(queue);
        while (patiently(kl_queue_alter(queue, &altered), &tries) != KL_OK)
            ;
        while (patiently(kl_queue_pause(queue), &tries) != KL_OK)
            ;
        while (patiently(kl_queue_show(queue, &arena, &info), &tries) != KL_OK)
            ;
        CHECK_INT(info.layout_number, 2 * (round + 1)); /* one layout for all repeats */
        CHECK_INT(info.settings.attempts_max, 7);
        CHECK_INT(info.settings.rate, 9);
        CHECK(info.paused);
        while (patiently(kl_queue_remove(queue), &tries) != KL_OK)
            ;
        CHECK(!record_text(rig, "queue/orders"));
        kl_queue_close(queue);
    }
    CHECK(atomic_load(&lossy.lost_replies) + atomic_load(&lossy.lost_requests) > 0);
    kl_arena_free(&arena);
    kl_store_close(store);
}
