/* test_dispatch.c - what stands above every engine: URLs, options and argument checks.
 *
 * Checks run against an engine that only notes what reaches it: an invalid call must not (D1). */
#include <pthread.h>
#include <stdatomic.h>

#include "store/calls.h"
#include "store/quick.h"
#include "store/spy.h"

/* --- URLs and options --- */

static void check_url(const char *url, const char *suggestion)
{
    kl_store *store = NULL;
    CHECK_INT(kl_store_open(url, NULL, &store), KL_EINVAL);
    CHECK(!store);
    CHECK_CONTAINS(kl_error_text(), "memory:");
    CHECK_CONTAINS(kl_error_text(), "disk:PATH");
    if (suggestion)
        CHECK_CONTAINS(kl_error_text(), suggestion);
    else
        CHECK(!strstr(kl_error_text(), "did you mean"));
}

TEST(a_url_that_names_no_store_is_answered_with_those_that_there_are)
{
    check_url(NULL, NULL);
    check_url("", NULL);
    check_url(":", NULL);
    check_url("mysql://host/db", NULL);
    check_url("a scheme that is far too long to be taken for anything:x", NULL);
    check_url("dsk:/var/keyline", "did you mean disk:/var/keyline?");
    check_url("DISK:x", "did you mean disk:x?");
    check_url("disks:x", "did you mean disk:x?");
    check_url("memory", "did you mean memory:?");
    check_url("memroy:", "did you mean memory:?");
    check_url("./data", "did you mean disk:./data?");
    check_url("/var/lib/keyline:2", "did you mean disk:/var/lib/keyline:2?");
}

TEST(a_memory_store_opens_by_its_url_and_takes_nothing_behind_the_colon)
{
    kl_store *store = NULL;
    REQUIRE(kl_store_open("memory:", NULL, &store) == KL_OK);
    CHECK_STR(kl_store_info_of(store).scheme, "memory");
    CHECK(kl_store_info_of(store).can & KL_STORE_ATOMIC_APPEND);
    kl_store_close(store);
    CHECK_INT(kl_store_open("memory:x", NULL, &store), KL_EINVAL);
    CHECK_CONTAINS(kl_error_text(), "\"x\"");
    CHECK_INT(kl_store_open("memory:", NULL, NULL), KL_EINVAL);
}

TEST(closing_no_store_is_fine) { kl_store_close(NULL); }

TEST(options_are_completed_before_the_engine_sees_them)
{
    kl_store *store = open_spy(NULL);
    CHECK_INT(spy.opts.size, sizeof(kl_store_opts));
    CHECK_INT(spy.opts.segment_bytes, 64 << 20);
    CHECK_INT(spy.opts.history_rows_max, 10000000);
    CHECK_INT(spy.opts.history_ms_max, INT64_C(31622400000)); /* as long as a queue may ask for */
    REQUIRE(spy.opts.now_ms);
    CHECK(spy.opts.now_ms(spy.opts.now_ctx) > INT64_C(1600000000000));
    kl_store_close(store);
    CHECK_INT(spy.closed, 1);
    store = open_spy(OPTS(.segment_bytes = 64 << 10, .history_rows_max = 1, .history_ms_max = KL_ID_MS_MAX));
    CHECK_INT(spy.opts.segment_bytes, 64 << 10);
    CHECK_INT(spy.opts.history_rows_max, 1);
    CHECK_INT(spy.opts.history_ms_max, KL_ID_MS_MAX);
    kl_store_close(store);
}

static void check_opts(const kl_store_opts *opts, const char *part)
{
    kl_store *store = NULL;
    memset(&spy, 0, sizeof spy);
    CHECK_INT(kl_store_open_engine(&spy_engine, "", opts, &store), KL_EINVAL);
    CHECK_CONTAINS(kl_error_text(), part);
    CHECK(!store && !spy.opts.size);
}

TEST(options_out_of_range_are_refused_with_the_range)
{
    check_opts(OPTS(.segment_bytes = (64 << 10) - 1), "segment_bytes is 65535; it must be from 65536 to 1073741824");
    check_opts(OPTS(.segment_bytes = (1 << 30) + 1), "segment_bytes");
    check_opts(OPTS(.history_rows_max = -1), "history_rows_max is -1");
    check_opts(OPTS(.history_ms_max = -1), "history_ms_max is -1");
    check_opts(OPTS(.history_ms_max = INT64_MAX), "history_ms_max");
    check_opts(&(kl_store_opts){.segment_bytes = 1 << 20}, "start from {.size = sizeof(kl_store_opts)}");
    check_opts(&(kl_store_opts){.size = sizeof(kl_store_opts) + 8}, "older than its header");
}

TEST(options_of_an_older_header_are_accepted_without_the_fields_it_does_not_know)
{
    kl_store *store = open_spy(&(kl_store_opts){
        .size = offsetof(kl_store_opts, history_rows_max), .segment_bytes = 1 << 20, .history_rows_max = -5});
    CHECK_INT(spy.opts.size, sizeof(kl_store_opts));
    CHECK_INT(spy.opts.segment_bytes, 1 << 20);
    CHECK_INT(spy.opts.history_rows_max, 10000000);
    kl_store_close(store);
}

TEST(an_engine_of_ones_own_is_checked_and_told_where)
{
    kl_store *store = NULL;
    kl_engine engine = spy_engine;
    memset(&spy, 0, sizeof spy);
    CHECK_INT(kl_store_open_engine(&engine, "some/where", NULL, &store), KL_OK);
    CHECK_STR(spy.where, "some/where");
    CHECK_STR(kl_store_info_of(store).scheme, "spy");
    CHECK_INT(kl_store_info_of(store).can, KL_STORE_SHARED);
    kl_store_close(store);
    CHECK_INT(kl_store_open_engine(&engine, NULL, NULL, &store), KL_OK);
    CHECK_STR(spy.where, "");
    kl_store_close(store);
    store = NULL;
    CHECK_INT(kl_store_open_engine(NULL, "", NULL, &store), KL_EINVAL);
    engine.list = NULL;
    CHECK_INT(kl_store_open_engine(&engine, "", NULL, &store), KL_EINVAL);
    CHECK_CONTAINS(kl_error_text(), "'spy' lacks a function");
    engine = spy_engine;
    engine.size += sizeof(void *);
    CHECK_INT(kl_store_open_engine(&engine, "", NULL, &store), KL_EINVAL);
    engine.size = offsetof(kl_engine, list);
    CHECK_INT(kl_store_open_engine(&engine, "", NULL, &store), KL_EINVAL);
    engine = spy_engine;
    engine.scheme = "a \"label\"";
    CHECK_INT(kl_store_open_engine(&engine, "", NULL, &store), KL_EINVAL);
    spy.rc = KL_EDAMAGED;
    CHECK_INT(kl_store_open_engine(&spy_engine, "", NULL, &store), KL_EDAMAGED);
    CHECK_STR(kl_error_text(), "the engine would not open");
    CHECK(!store);
}

static kl_rc never_there(void *self, int64_t *ret_ms, uint64_t *ret_news)
{
    (void)self, (void)ret_ms, (void)ret_news;
    test_fail(__FILE__, __LINE__, "what stands behind the engine's size was called");
    return KL_EINVAL;
}

/* What was appended since it was built is not there, whatever stands in its place. */
TEST(an_engine_of_an_older_header_has_what_it_was_built_with)
{
    kl_store *store = NULL;
    kl_engine engine = spy_engine;
    int64_t ms;
    uint64_t news;
    memset(&spy, 0, sizeof spy);
    engine.size = offsetof(kl_engine, take_in);
    engine.pulse = never_there;
    REQUIRE(kl_store_open_engine(&engine, "", NULL, &store) == KL_OK);
    CHECK_STR(kl_store_info_of(store).scheme, "spy");
    CHECK(!kl__store_has_lines(store));
    CHECK_INT(kl__store_pulse(store, &ms, &news), KL_OK);
    kl_store_close(store);
}

TEST(a_store_that_cannot_have_memory_is_not_opened)
{
    kl_store *store = NULL;
    kl__alloc_fail_at(1);
    CHECK_INT(kl_store_open("memory:", NULL, &store), KL_ENOMEM);
    kl__alloc_fail_at(2);
    CHECK_INT(kl_store_open("memory:", NULL, &store), KL_ENOMEM);
    kl__alloc_fail_at(0);
    CHECK(!store);
}

/* --- Argument checks --- */

TEST(a_call_without_a_store_is_refused)
{
    int64_t ms;
    uint32_t partition;
    kl_counts counts;
    uint64_t seen = 0;
    size_t count;
    kl_place place = {1, 0};
    kl_bytes text;
    REFUSED(kl_store_now(NULL, &ms), "the store is NULL");
    REFUSED(kl_store_partition(NULL, "p1", 1, &partition), "the store is NULL");
    REFUSED(kl_store_append(NULL, NULL, 0, NULL), "the store is NULL");
    REFUSED(kl_store_append_async(NULL, NULL, 0, NULL, NULL, NULL), "the store is NULL");
    REFUSED(kl_store_scan(NULL, NULL, 0), "the store is NULL");
    REFUSED(kl_store_read(NULL, NULL, 0, NULL, NULL, &count), "the store is NULL");
    REFUSED(kl_store_settle(NULL, NULL, 0), "the store is NULL");
    REFUSED(kl_store_fence(NULL, NULL, 0), "the store is NULL");
    REFUSED(kl_store_counts(NULL, place, NULL, &counts), "the store is NULL");
    REFUSED(kl_store_wait(NULL, 1, 0, &seen), "the store is NULL");
    REFUSED(kl_store_results(NULL, place, NULL, NULL, 1, NULL, NULL, &count), "the store is NULL");
    REFUSED(kl_store_find(NULL, NULL, NULL, NULL, &count), "the store is NULL");
    REFUSED(kl_store_forget(NULL, place, NULL, 0), "the store is NULL");
    REFUSED(kl_store_get(NULL, NULL, 0, NULL, NULL), "the store is NULL");
    REFUSED(kl_store_put(NULL, NULL, 0), "the store is NULL");
    REFUSED(kl_store_list(NULL, kl_str(""), kl_str(""), 1, NULL, NULL, &count), "the store is NULL");
    REFUSED(kl_store_metrics(NULL, NULL, &text), "needs a store");
}

TEST(now_comes_from_the_engine)
{
    int64_t ms = 0;
    kl_store *store = open_spy(NULL);
    TAKEN(kl_store_now(store, &ms));
    CHECK_INT(ms, 4711);
    REFUSED(kl_store_now(store, NULL), "ret_ms is NULL");
    kl_store_close(store);
}

TEST(a_partition_needs_a_name_and_a_possible_prefix_length)
{
    char longest[KL_PARTITION_BYTES_MAX + 2];
    uint32_t partition = 99;
    kl_store *store = open_spy(NULL);
    REFUSED(kl_store_partition(store, NULL, 1, &partition), "no name");
    REFUSED(kl_store_partition(store, "", 1, &partition), "no name");
    REFUSED(kl_store_partition(store, "p3", 0, &partition), "shard_prefix_len is 0; it must be from 1 to 4");
    REFUSED(kl_store_partition(store, "p3", 5, &partition), "shard_prefix_len is 5");
    REFUSED(kl_store_partition(store, "p3", 1, NULL), "ret_partition is NULL");
    memset(longest, '3', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    REFUSED(kl_store_partition(store, longest, 1, &partition), "has 129 bytes; it may have up to 128");
    CHECK_INT(partition, 99);
    spy.rc = KL_ESYSTEM;
    CHECK_INT(kl_store_partition(store, "p3", 1, &partition), KL_ESYSTEM);
    CHECK_INT(partition, 99);
    kl_store_close(store);
}

TEST(partitions_of_any_number_are_known_once_they_were_asked_for)
{
    static const uint32_t numbers[] = {3, 4, 5, 63, 64, 1000, 65535, 65536};
    uint32_t partition;
    char name[16];
    kl_store *store = open_spy(NULL);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        kl_entry entry = entry_of(numbers[i], 255);
        REFUSED(kl_store_append(store, &entry, 1, NULL), "call kl_store_partition first");
        snprintf(name, sizeof name, "p%u", numbers[i]);
        CHECK_INT(kl_store_partition(store, name, 2, &partition), KL_OK);
        CHECK_INT(partition, numbers[i]);
        TAKEN(kl_store_append(store, &entry, 1, NULL));
    }
    kl_store_close(store);
}

TEST(a_partition_that_cannot_be_remembered_is_not_given_out)
{
    uint32_t partition = 99;
    kl_store *store = open_spy(NULL);
    kl__alloc_fail_at(1);
    CHECK_INT(kl_store_partition(store, "p4", 1, &partition), KL_ENOMEM);
    kl__alloc_fail_at(0);
    CHECK_INT(partition, 99);
    CHECK_INT(kl_store_partition(store, "p4", 1, &partition), KL_OK);
    CHECK_INT(partition, 4);
    kl_store_close(store);
}

/* Two entries of which the second is changed. */
#define SECOND(field, value)                                                                                           \
    (entries[0] = entry_of(1, 3), entries[1] = entry_of(1, 4), entries[1].field = (value), entries)

TEST(an_append_is_refused_for_any_bad_entry_and_the_sentence_names_it)
{
    kl_entry entries[2];
    kl_store *store = open_spy(NULL);
    REFUSED(kl_store_append(store, NULL, 1, NULL), "1 entries, but the pointer is NULL");
    REFUSED(kl_store_append(store, entries, KL_BATCH_MAX + 1, NULL), "65537 entries are too many for one call; pass at "
                                                                     "most 65536");
    REFUSED(kl_store_append(store, SECOND(place.partition, 7), 2, NULL),
            "entry 1: partition 7 is not known to this store; call kl_store_partition first");
    REFUSED(kl_store_append(store, SECOND(place.partition, 0), 2, NULL), "entry 1: partition 0");
    REFUSED(kl_store_append(store, SECOND(place.shard, 16), 2, NULL),
            "entry 1: shard 16 is none of partition 1, which has shards 0 to 15");
    REFUSED(kl_store_append(store, SECOND(place.shard, KL_ALL_SHARDS), 2, NULL), "entry 1: KL_ALL_SHARDS is for");
    REFUSED(kl_store_append(store, SECOND(place.shard, 5), 2, NULL),
            "entry 1: its id 40000300-0000-0000-0000-000000000000 does not begin with its shard, 5");
    REFUSED(kl_store_append(store, SECOND(priority, 16), 2, NULL),
            "entry 1: priority is 16; it must be from -16 to 15");
    REFUSED(kl_store_append(store, SECOND(priority, -17), 2, NULL), "entry 1: priority is -17");
    REFUSED(kl_store_append(store, SECOND(due_ms, -1), 2, NULL),
            "entry 1: due_ms is -1; it must be from 0 to 17592186044415");
    REFUSED(kl_store_append(store, SECOND(due_ms, KL_ID_MS_MAX + 1), 2, NULL), "entry 1: due_ms is 17592186044416");
    REFUSED(kl_store_append(store, SECOND(key, sized(513)), 2, NULL), "entry 1: key.len is 513; it may be up to 512");
    REFUSED(kl_store_append(store, SECOND(kind, sized(256)), 2, NULL), "entry 1: kind.len is 256");
    REFUSED(kl_store_append(store, SECOND(headers, sized(65536)), 2, NULL), "entry 1: headers.len is 65536");
    REFUSED(kl_store_append(store, SECOND(payload, sized((1 << 20) + 1)), 2, NULL), "entry 1: payload.len is 1048577");
    REFUSED(kl_store_append(store, SECOND(payload, ((kl_bytes){NULL, 5})), 2, NULL),
            "entry 1: payload.len is 5, but payload.data is NULL");
    REFUSED(kl_store_append(store, SECOND(key.len, SIZE_MAX), 2, NULL), "entry 1: key.len");
    kl_store_close(store);
}

TEST(entries_at_every_limit_are_taken)
{
    kl_store *store = open_spy(NULL);
    kl_entry entry = entry_of(2, 255);
    entry.priority = KL_PRIORITY_MIN;
    entry.due_ms = KL_ID_MS_MAX;
    entry.key = sized(KL_KEY_BYTES_MAX);
    entry.kind = sized(KL_KIND_BYTES_MAX);
    entry.headers = sized(KL_HEADERS_BYTES_MAX);
    entry.payload = sized(KL_PAYLOAD_BYTES_MAX);
    TAKEN(kl_store_append(store, &entry, 1, &(kl_token){{7}}));
    CHECK_INT(spy.append.bytes, KL_KEY_BYTES_MAX + KL_KIND_BYTES_MAX + KL_HEADERS_BYTES_MAX + KL_PAYLOAD_BYTES_MAX);
    CHECK_INT(spy.append.count, 1);
    CHECK_INT(spy.append.token->bytes[0], 7);
    CHECK(!spy.append.done);
    entry = entry_of(1, 0);
    entry.priority = KL_PRIORITY_MAX;
    entry.payload = (kl_bytes){NULL, 0};
    TAKEN(kl_store_append(store, &entry, 1, NULL));
    kl_store_close(store);
}

TEST(an_append_of_too_many_bytes_is_refused_at_the_entry_that_is_too_much)
{
    kl_entry entries[9];
    kl_store *store = open_spy(NULL);
    for (int i = 0; i < 9; i++) {
        entries[i] = entry_of(1, 1);
        entries[i].payload = sized(KL_PAYLOAD_BYTES_MAX);
    }
    TAKEN(kl_store_append(store, entries, 8, NULL));
    entries[8].payload = sized(1);
    REFUSED(
        kl_store_append(store, entries, 9, NULL),
        "entry 8: with it the call has 8388609 bytes of keys, kinds, headers and payloads, and one call takes up to "
        "8388608");
    kl_store_close(store);
}

TEST(an_asynchronous_append_hands_its_end_to_the_engine)
{
    struct end end = {0, KL_ESYSTEM, "x"};
    kl_entry entry = entry_of(1, 1);
    kl_store *store = open_spy(NULL);
    TAKEN(kl_store_append_async(store, &entry, 1, NULL, note_end, &end));
    CHECK(spy.append.done == note_end && spy.append.ctx == &end);
    CHECK_INT(end.count, 0);
    REFUSED(kl_store_append_async(store, &entry, 1, NULL, NULL, NULL), "done is NULL");
    entry.priority = 99;
    REFUSED(kl_store_append_async(store, &entry, 1, NULL, note_end, &end), "entry 0: priority");
    CHECK_INT(end.count, 0);
    NOTHING(kl_store_append_async(store, NULL, 0, NULL, note_end, &end)); /* and its end is told all the same */
    CHECK_INT(end.count, 1);
    CHECK_INT(end.rc, KL_OK);
    CHECK_STR(end.error, "");
    kl_store_close(store);
}

TEST(a_scan_needs_a_shard_a_line_and_room)
{
    kl_stub stubs[4];
    size_t count;
    kl_store *store = open_spy(NULL);
    REFUSED(kl_store_scan(store, NULL, 1), "1 scans, but the pointer is NULL");
    NOTHING(kl_store_scan(store, NULL, 0));
    REFUSED(scan_one(store, &(kl_scan){.place = {9, 0}, .max = 1}, stubs, &count), "partition 9 is not known");
    REFUSED(scan_one(store, &(kl_scan){.place = {1, 16}, .max = 1}, stubs, &count), "shard 16");
    REFUSED(scan_one(store, &(kl_scan){.place = {1, KL_ALL_SHARDS}, .max = 1}, stubs, &count), "KL_ALL_SHARDS");
    REFUSED(scan_one(store, &(kl_scan){.place = {1, 0}, .line = -17, .max = 1}, stubs, &count), "no line -17");
    REFUSED(scan_one(store, &(kl_scan){.place = {1, 0}, .line = 18, .max = 1}, stubs, &count), "no line 18");
    REFUSED(scan_one(store, &(kl_scan){.place = {1, 0}, .max = 0}, stubs, &count),
            "max is 0; it must be from 1 to 65536");
    REFUSED(scan_one(store, &(kl_scan){.place = {1, 0}, .max = 65537}, stubs, &count), "max is 65537");
    REFUSED(scan_one(store, &(kl_scan){.place = {1, 0}, .max = 1}, NULL, &count), "NULL");
    kl_scan scans[] = {{.stubs = stubs, .place = {1, 0}, .max = 1}, {.stubs = stubs, .place = {1, 99}, .max = 1}};
    REFUSED(kl_store_scan(store, scans, 2), "scan 1: shard 99");
    TAKEN(scan_one(store, &(kl_scan){.place = {1, 0}, .line = KL_PRIORITY_MIN, .max = 4}, stubs, &count));
    CHECK_INT(count, 3);
    TAKEN(scan_one(store, &(kl_scan){.place = {1, 15}, .line = KL_LINE_RETRY, .max = 1}, stubs, &count));
    kl_store_close(store);
}

TEST(ids_that_are_read_or_forgotten_belong_to_their_shard)
{
    kl_task_id ids[] = {id_of(0x30, 0), id_of(0x31, 0), id_of(0x40, 0)};
    kl_task tasks[3];
    size_t count = 99;
    kl_arena arena = {0};
    kl_place place = {1, 3};
    kl_store *store = open_spy(NULL);
    TAKEN(read_some(store, place, ids, 2, &arena, tasks, &count));
    CHECK_INT(count, 2);
    REFUSED(read_some(store, place, ids, 3, &arena, tasks, &count), "task 2: its id 4000");
    REFUSED(read_some(store, (kl_place){2, 256}, ids, 1, &arena, tasks, &count), "shards 0 to 255");
    REFUSED(read_some(store, (kl_place){1, KL_ALL_SHARDS}, ids, 1, &arena, tasks, &count), "KL_ALL_SHARDS");
    REFUSED(kl_store_read(store, NULL, 1, &arena, tasks, &count), "1 refs, but the pointer is NULL");
    REFUSED(kl_store_read(store, &(kl_ref){.id = ids[0]}, 65537, &arena, tasks, &count), "65537 refs");
    REFUSED(read_some(store, place, ids, 1, NULL, tasks, &count), "the arena is NULL");
    REFUSED(read_some(store, place, ids, 1, &arena, NULL, &count), "ret_tasks is NULL");
    REFUSED(read_some(store, place, ids, 1, &arena, tasks, NULL), "ret_count is NULL");
    NOTHING(read_some(store, place, NULL, 0, NULL, NULL, &count));
    CHECK_INT(count, 0);
    TAKEN(kl_store_forget(store, place, ids, 2));
    REFUSED(kl_store_forget(store, place, ids, 3), "task 2: its id");
    REFUSED(kl_store_forget(store, (kl_place){3, 0}, ids, 1), "partition 3 is not known");
    REFUSED(kl_store_forget(store, place, NULL, 1), "pointer is NULL");
    NOTHING(kl_store_forget(store, place, NULL, 0));
    kl_store_close(store);
}

/* Settles one good batch and one with this task in second place. */
TEST(a_read_that_fails_says_how_many_were_read_only_when_one_is_damaged)
{
    kl_task_id ids[] = {id_of(0x30, 0), id_of(0x31, 0)};
    static const kl_rc failures[] = {KL_EFULL, KL_EBUSY, KL_ESYSTEM, KL_ENOMEM, KL_ECLOSED};
    kl_task tasks[2];
    size_t count;
    kl_arena arena = {0};
    kl_store *store = open_spy(NULL);
    for (size_t i = 0; i < sizeof failures / sizeof failures[0]; i++) {
        count = 99;
        spy.rc = failures[i];
        CHECK_INT(read_some(store, (kl_place){1, 3}, ids, 2, &arena, tasks, &count), failures[i]);
        CHECK_INT(count, 99);
    }
    spy.rc = KL_EDAMAGED;
    CHECK_INT(read_some(store, (kl_place){1, 3}, ids, 2, &arena, tasks, &count), KL_EDAMAGED);
    CHECK_INT(count, 2);
    kl_store_close(store);
}

static kl_rc settle_second(kl_store *store, kl_settled settled)
{
    kl_settled good = {.id = id_of(0x30, 1), .position = 1, .attempts = 1}, tasks[] = {good, settled};
    kl_settle batches[] = {{.place = {1, 3}, .tasks = &good, .count = 1},
                           {.place = {1, 3}, .tasks = tasks, .count = 2}};
    kl_rc rc = kl_store_settle(store, batches, 2);
    if (rc != KL_OK)
        CHECK(batches[0].rc == rc && batches[1].rc == rc);
    return rc;
}

TEST(a_settle_is_refused_for_any_bad_task_and_every_batch_says_so)
{
    kl_store *store = open_spy(NULL);
    TAKEN(settle_second(store, SETTLED(.outcome = KL_CANCELLED, .attempts = KL_ATTEMPTS_MAX, .due_ms = KL_ID_MS_MAX,
                                       .keep_ms = KL_ID_MS_MAX, .error = sized(KL_ERROR_BYTES_MAX),
                                       .result = sized(KL_RESULT_BYTES_MAX))));
    REFUSED(settle_second(store, SETTLED(.outcome = (kl_outcome)4)), "task 1 of batch 1: 4 is no outcome");
    REFUSED(settle_second(store, SETTLED(.outcome = (kl_outcome)-1)), "task 1 of batch 1: -1 is no outcome");
    REFUSED(settle_second(store, SETTLED(.attempts = 65536)),
            "task 1 of batch 1: attempts is 65536; it must be from 0 to 65535");
    REFUSED(settle_second(store, SETTLED(.due_ms = -1)), "task 1 of batch 1: due_ms is -1");
    REFUSED(settle_second(store, SETTLED(.due_ms = KL_ID_MS_MAX + 1)), "task 1 of batch 1: due_ms");
    REFUSED(settle_second(store, SETTLED(.keep_ms = -1)), "task 1 of batch 1: keep_ms is -1");
    REFUSED(settle_second(store, SETTLED(.keep_ms = INT64_MAX)), "task 1 of batch 1: keep_ms");
    REFUSED(settle_second(store, SETTLED(.error = sized(4097))),
            "task 1 of batch 1: error.len is 4097; it may be up to 4096");
    REFUSED(settle_second(store, SETTLED(.result = sized((1 << 20) + 1))), "task 1 of batch 1: result.len is 1048577");
    REFUSED(settle_second(store, SETTLED(.error = {NULL, 3})), "error.len is 3, but error.data is NULL");
    kl_settled elsewhere = {.id = id_of(0x40, 0), .position = 2};
    REFUSED(settle_second(store, elsewhere), "task 1 of batch 1: its id 4000");
    kl_store_close(store);
}

TEST(a_settle_needs_good_batches)
{
    static kl_settled many[KL_BATCH_MAX];
    kl_settled one = SETTLED(.outcome = KL_DONE);
    kl_store *store = open_spy(NULL);
    REFUSED(kl_store_settle(store, NULL, 1), "1 batches, but the pointer is NULL");
    REFUSED(kl_store_settle(store, &(kl_settle){.place = {1, 3}}, KL_BATCH_MAX + 1), "65537 batches");
    REFUSED(kl_store_settle(store, &(kl_settle){.place = {5, 3}, .tasks = &one, .count = 1}, 1),
            "batch 0: partition 5");
    REFUSED(kl_store_settle(store, &(kl_settle){.place = {1, 16}, .tasks = &one, .count = 1}, 1), "batch 0: shard 16");
    REFUSED(kl_store_settle(store, &(kl_settle){.place = {1, KL_ALL_SHARDS}, .tasks = &one, .count = 1}, 1),
            "batch 0: KL_ALL_SHARDS");
    REFUSED(
        kl_store_settle(store, &(kl_settle){.place = {1, 3}, .epoch = KL_EPOCH_MAX + 1, .tasks = &one, .count = 1}, 1),
        "batch 0: epoch is 9223372036854775808; it must be from 0 to 9223372036854775807");
    REFUSED(kl_store_settle(store, &(kl_settle){.place = {1, 3}, .count = 2}, 1), "batch 0: there should be 2 tasks");
    for (int i = 0; i < KL_BATCH_MAX; i++)
        many[i] = one;
    kl_settle two[] = {{.place = {1, 3}, .tasks = many, .count = KL_BATCH_MAX}, {.place = {1, 3}, .tasks = &one}};
    TAKEN(kl_store_settle(store, two, 2)); /* an empty batch is a batch */
    two[1].count = 1;
    REFUSED(kl_store_settle(store, two, 2), "batch 1: with its 1 task the call has more than 65536");
    two[1].count = SIZE_MAX;
    REFUSED(kl_store_settle(store, two, 2), "batch 1: with its");
    for (int i = 0; i < 9; i++)
        many[i].result = sized(i < 8 ? KL_RESULT_BYTES_MAX : 1);
    two[0].count = 9;
    REFUSED(kl_store_settle(store, two, 1),
            "task 8 of batch 0: with it the call has 8388609 bytes of errors and results");
    NOTHING(kl_store_settle(store, NULL, 0));
    kl_store_close(store);
}

TEST(a_fence_needs_a_shard_and_an_epoch)
{
    kl_fence fences[] = {{.place = {1, 3}, .epoch = 1}, {.place = {1, 3}, .epoch = KL_EPOCH_MAX}};
    kl_store *store = open_spy(NULL);
    TAKEN(kl_store_fence(store, fences, 2));
    fences[1].epoch = 0;
    REFUSED(kl_store_fence(store, fences, 2), "fence 1: epoch is 0; it must be from 1 to 9223372036854775807");
    CHECK(fences[0].rc == KL_EINVAL && fences[1].rc == KL_EINVAL);
    fences[1].epoch = KL_EPOCH_MAX + 1;
    REFUSED(kl_store_fence(store, fences, 2), "fence 1: epoch is 9223372036854775808");
    fences[1] = (kl_fence){.place = {1, KL_ALL_SHARDS}, .epoch = 1};
    REFUSED(kl_store_fence(store, fences, 2), "fence 1: KL_ALL_SHARDS");
    fences[1] = (kl_fence){.place = {3, 0}, .epoch = 1};
    REFUSED(kl_store_fence(store, fences, 2), "fence 1: partition 3");
    REFUSED(kl_store_fence(store, NULL, 2), "2 fences, but the pointer is NULL");
    REFUSED(kl_store_fence(store, fences, 65537), "65537 fences");
    NOTHING(kl_store_fence(store, NULL, 0));
    kl_store_close(store);
}

TEST(a_seal_needs_an_engine_that_can_and_no_epoch)
{
    kl_engine sealing = spy_engine;
    kl_fence fences[] = {{.place = {1, 3}, .epoch = 1}, {.place = {1, 4}, .seal = true}};
    kl_store *store = open_spy(NULL);
    REFUSED(kl_store_fence(store, fences, 2), "fence 1: a store of engine 'spy' cannot seal shards");
    CHECK(fences[0].rc == KL_EINVAL && fences[1].rc == KL_EINVAL);
    TAKEN(kl_store_fence(store, fences, 1));
    kl_store_close(store);
    sealing.can |= KL_STORE_SEAL;
    uint32_t partition;
    REQUIRE(kl_store_open_engine(&sealing, "", NULL, &store) == KL_OK);
    REQUIRE(kl_store_partition(store, "p1", 1, &partition) == KL_OK && partition == 1);
    TAKEN(kl_store_fence(store, fences, 2));
    fences[1].epoch = KL_EPOCH_MAX;
    TAKEN(kl_store_fence(store, fences, 2));
    fences[1].epoch = KL_EPOCH_MAX + 1;
    REFUSED(kl_store_fence(store, fences, 2), "it must be from 0 to 9223372036854775807");
    fences[0].epoch = 0;
    REFUSED(kl_store_fence(store, fences, 1), "fence 0: epoch is 0; it must be from 1");
    kl_store_close(store);
}

TEST(counts_of_a_job_are_of_all_shards)
{
    kl_counts counts;
    kl_task_id job = id_of(0x30, 1), none = {{0}};
    kl_store *store = open_spy(NULL);
    TAKEN(kl_store_counts(store, (kl_place){1, KL_ALL_SHARDS}, &job, &counts));
    REFUSED(kl_store_counts(store, (kl_place){1, 15}, &job, &counts), "pass KL_ALL_SHARDS, not 15");
    REFUSED(kl_store_counts(store, (kl_place){1, KL_ALL_SHARDS}, &none, &counts), "pass NULL to count all tasks");
    REFUSED(kl_store_counts(store, (kl_place){4, KL_ALL_SHARDS}, &job, &counts), "partition 4 is not known");
    kl_store_close(store);
}

TEST(counts_may_be_of_all_shards)
{
    kl_counts counts;
    kl_store *store = open_spy(NULL);
    TAKEN(kl_store_counts(store, (kl_place){1, KL_ALL_SHARDS}, NULL, &counts));
    TAKEN(kl_store_counts(store, (kl_place){1, 15}, NULL, &counts));
    REFUSED(kl_store_counts(store, (kl_place){1, 16}, NULL, &counts), "shard 16");
    REFUSED(kl_store_counts(store, (kl_place){4, KL_ALL_SHARDS}, NULL, &counts), "partition 4 is not known");
    REFUSED(kl_store_counts(store, (kl_place){1, 0}, NULL, NULL), "ret_counts is NULL");
    kl_store_close(store);
}

TEST(a_wait_that_is_over_before_it_began_is_none)
{
    uint64_t seen = 0;
    kl_store *store = open_spy(NULL);
    TAKEN(kl_store_wait(store, 1, -5, &seen));
    CHECK_INT(spy.wait_ms, 0);
    TAKEN(kl_store_wait(store, 1, INT64_MAX, &seen));
    CHECK_INT(spy.wait_ms, INT64_MAX);
    REFUSED(kl_store_wait(store, 4, 0, &seen), "partition 4 is not known");
    REFUSED(kl_store_wait(store, 1, 0, NULL), "seen is NULL");
    kl_store_close(store);
}

TEST(results_need_a_job)
{
    kl_task_id job = id_of(1, 1), none = {{0}};
    kl_task tasks[2];
    size_t count;
    kl_arena arena = {0};
    kl_place place = {1, 0};
    kl_store *store = open_spy(NULL);
    TAKEN(kl_store_results(store, place, &job, NULL, 2, &arena, tasks, &count));
    REFUSED(kl_store_results(store, place, NULL, NULL, 2, &arena, tasks, &count), "the job's id is NULL");
    REFUSED(kl_store_results(store, place, &none, NULL, 2, &arena, tasks, &count), "all zero");
    REFUSED(kl_store_results(store, (kl_place){1, KL_ALL_SHARDS}, &job, NULL, 2, &arena, tasks, &count),
            "KL_ALL_SHARDS");
    REFUSED(kl_store_results(store, place, &job, NULL, 0, &arena, tasks, &count), "max is 0");
    REFUSED(kl_store_results(store, place, &job, NULL, 65537, &arena, tasks, &count), "max is 65537");
    REFUSED(kl_store_results(store, place, &job, NULL, 2, NULL, tasks, &count), "the arena is NULL");
    REFUSED(kl_store_results(store, place, &job, NULL, 2, &arena, NULL, &count), "NULL");
    REFUSED(kl_store_results(store, place, &job, NULL, 2, &arena, tasks, NULL), "NULL");
    kl_store_close(store);
}

TEST(find_refuses_what_no_finished_task_can_be)
{
    kl_task tasks[2];
    size_t count;
    kl_arena arena = {0};
    kl_store *store = open_spy(NULL);
    TAKEN(kl_store_find(store, &(kl_find){.max = 2}, &arena, tasks, &count));
    TAKEN(kl_store_find(store, &(kl_find){.partition = 2, .state = KL_TASK_CANCELLED, .words = kl_str("a"), .max = 1},
                        &arena, tasks, &count));
    REFUSED(kl_store_find(store, NULL, &arena, tasks, &count), "the kl_find is NULL");
    REFUSED(kl_store_find(store, &(kl_find){.partition = 4, .max = 2}, &arena, tasks, &count),
            "partition 4 is not known");
    REFUSED(kl_store_find(store, &(kl_find){.state = KL_TASK_WAITING, .max = 2}, &arena, tasks, &count), "state is 1");
    REFUSED(kl_store_find(store, &(kl_find){.state = (kl_task_state)5, .max = 2}, &arena, tasks, &count), "state is 5");
    REFUSED(kl_store_find(store, &(kl_find){.key = sized(513), .max = 2}, &arena, tasks, &count), "key.len is 513");
    REFUSED(kl_store_find(store, &(kl_find){.kind = sized(256), .max = 2}, &arena, tasks, &count), "kind.len is 256");
    REFUSED(kl_store_find(store, &(kl_find){.words = sized(4097), .max = 2}, &arena, tasks, &count),
            "words.len is 4097");
    REFUSED(kl_store_find(store, &(kl_find){.words = kl_str(" ?! "), .max = 2}, &arena, tasks, &count),
            "no letter or digit");
    REFUSED(kl_store_find(store, &(kl_find){.max = 0}, &arena, tasks, &count), "max is 0");
    REFUSED(kl_store_find(store, &(kl_find){.max = 65537}, &arena, tasks, &count), "max is 65537");
    REFUSED(kl_store_find(store, &(kl_find){.max = 2}, NULL, tasks, &count), "the arena is NULL");
    REFUSED(kl_store_find(store, &(kl_find){.max = 2}, &arena, NULL, &count), "NULL");
    REFUSED(kl_store_find(store, &(kl_find){.max = 2}, &arena, tasks, NULL), "NULL");
    kl_store_close(store);
}

TEST(records_need_names_and_values_that_fit)
{
    kl_bytes names[] = {kl_str("a"), kl_str("")};
    kl_record records[2];
    kl_arena arena = {0};
    kl_store *store = open_spy(NULL);
    TAKEN(kl_store_get(store, names, 1, &arena, records));
    REFUSED(kl_store_get(store, names, 2, &arena, records), "record 1: its name is empty");
    names[1] = sized(513);
    REFUSED(kl_store_get(store, names, 2, &arena, records), "record 1: name.len is 513; it may be up to 512");
    REFUSED(kl_store_get(store, NULL, 1, &arena, records), "1 names, but the pointer is NULL");
    REFUSED(kl_store_get(store, names, 65537, &arena, records), "65537 names");
    REFUSED(kl_store_get(store, names, 1, NULL, records), "the arena is NULL");
    REFUSED(kl_store_get(store, names, 1, &arena, NULL), "ret_records is NULL");
    NOTHING(kl_store_get(store, NULL, 0, NULL, NULL));

    kl_write writes[] = {{.name = kl_str("a")},
                         {.name = sized(KL_RECORD_NAME_MAX), .value = sized(KL_RECORD_BYTES_MAX)}};
    TAKEN(kl_store_put(store, writes, 2));
    writes[1].value = sized(KL_RECORD_BYTES_MAX + 1);
    REFUSED(kl_store_put(store, writes, 2), "write 1: value.len is 262145; it may be up to 262144");
    CHECK(writes[0].rc == KL_EINVAL && writes[1].rc == KL_EINVAL);
    writes[1].remove = true; /* whose value nobody looks at */
    TAKEN(kl_store_put(store, writes, 2));
    writes[1] = (kl_write){.name = kl_str("b"), .expires_ms = -1};
    REFUSED(kl_store_put(store, writes, 2), "write 1: expires_ms is -1");
    writes[1] = (kl_write){.name = kl_str("")};
    REFUSED(kl_store_put(store, writes, 2), "write 1: its name is empty");
    REFUSED(kl_store_put(store, NULL, 2), "2 writes, but the pointer is NULL");
    REFUSED(kl_store_put(store, writes, 65537), "65537 writes");
    NOTHING(kl_store_put(store, NULL, 0));
    kl_store_close(store);
}

TEST(a_put_of_too_many_bytes_is_refused_at_the_write_that_is_too_much)
{
    kl_write writes[33];
    kl_store *store = open_spy(NULL);
    for (int i = 0; i < 33; i++)
        writes[i] = (kl_write){.name = kl_str("a"), .value = sized(KL_RECORD_BYTES_MAX)};
    TAKEN(kl_store_put(store, writes, 31));
    REFUSED(kl_store_put(store, writes, 33), "write 31: with it the call has 8388640 bytes of names and values");
    kl_store_close(store);
}

TEST(a_list_needs_room_and_names_that_fit)
{
    kl_record records[2];
    size_t count;
    kl_arena arena = {0};
    kl_bytes none = {NULL, 0};
    kl_store *store = open_spy(NULL);
    TAKEN(kl_store_list(store, none, none, 2, &arena, records, &count));
    REFUSED(kl_store_list(store, sized(513), none, 2, &arena, records, &count), "prefix.len is 513");
    REFUSED(kl_store_list(store, none, sized(513), 2, &arena, records, &count), "after.len is 513");
    REFUSED(kl_store_list(store, none, none, 0, &arena, records, &count), "max is 0");
    REFUSED(kl_store_list(store, none, none, 65537, &arena, records, &count), "max is 65537");
    REFUSED(kl_store_list(store, none, none, 2, NULL, records, &count), "the arena is NULL");
    REFUSED(kl_store_list(store, none, none, 2, &arena, NULL, &count), "NULL");
    REFUSED(kl_store_list(store, none, none, 2, &arena, records, NULL), "NULL");
    kl_store_close(store);
}

/* --- Threads that are cancelled --- */

static atomic_bool was_made, has_returned;

static kl_rc append_when_cancelled(void *self, const kl_append *append)
{
    (void)self, (void)append;
    pthread_cancel(pthread_self());
    pthread_testcancel();
    atomic_store(&was_made, true);
    return KL_OK;
}

static void *append_once(void *ctx)
{
    kl_entry entry = entry_of(1, 3);
    CHECK_INT(kl_store_append(ctx, &entry, 1, NULL), KL_OK);
    atomic_store(&has_returned, true);
    pthread_testcancel();
    return NULL;
}

/* An engine holds mutexes over system calls, and whoever is cancelled in one would keep them. */
TEST(a_thread_that_is_cancelled_in_a_call_ends_when_the_call_has_returned)
{
    pthread_t thread;
    void *end = NULL;
    kl_store *store = open_spy(NULL);
    kl_engine engine = *store->engine;
    engine.append = append_when_cancelled;
    store->engine = &engine;
    REQUIRE(pthread_create(&thread, NULL, append_once, store) == 0);
    pthread_join(thread, &end);
    CHECK(atomic_load(&was_made) && atomic_load(&has_returned));
    CHECK(end == PTHREAD_CANCELED);
    kl_store_close(store);
}
