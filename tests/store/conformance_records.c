/* conformance_records.c - records: written by whoever knows what is there, listed by name, gone when they expire. */
#include <stdlib.h>

#include "base/random.h"
#include "store/conformance.h"

#define WRITE(...) ((kl_write){.rc = KL_EDEAD, __VA_ARGS__})

static void check_record(struct trial *t, const char *name, const char *value, uint64_t version, const char *file,
                         int at)
{
    kl_record record = get_record(t, name);
    if (record.version != version)
        test_fail(file, at, "%s has version %" PRIu64 ", expected %" PRIu64, name, record.version, version);
    if (version && (!same_bytes(record.value, kl_str(value)) || !same_bytes(record.name, kl_str(name))))
        test_fail(file, at, "%s has another name or value", name);
}

#define CHECK_RECORD(t, name, value, version) check_record(t, name, value, version, __FILE__, __LINE__)
#define CHECK_ABSENT(t, name)                 check_record(t, name, NULL, 0, __FILE__, __LINE__)

CLAIM(a_record_that_is_not_there_has_version_0) { CHECK_ABSENT(t, "nobody"); }

CLAIM(a_record_is_made_when_there_is_none)
{
    uint64_t version = 0;
    CHECK_OK(put_record(t, "a", 0, "one", &version));
    CHECK(version != 0);
    BOTH_LIVES(t)
    {
        CHECK_RECORD(t, "a", "one", version);
        CHECK_INT(get_record(t, "a").expires_ms, 0);
        CHECK_RC(put_record(t, "a", 0, "other", NULL), KL_ECONFLICT);
        CHECK_RECORD(t, "a", "one", version);
    }
}

CLAIM(a_record_is_written_by_whoever_knows_its_version)
{
    uint64_t first = 0, second = 0;
    CHECK_OK(put_record(t, "a", 0, "one", &first));
    CHECK_OK(put_record(t, "a", first, "two", &second));
    CHECK(second != 0 && second != first);
    BOTH_LIVES(t)
    {
        CHECK_RECORD(t, "a", "two", second);
        CHECK_RC(put_record(t, "a", first, "three", NULL), KL_ECONFLICT);
        CHECK_RC(put_record(t, "a", second + 1000, "three", NULL), KL_ECONFLICT);
        CHECK_RC(put_record(t, "b", first, "none there", NULL), KL_ECONFLICT);
        CHECK_RECORD(t, "a", "two", second);
        CHECK_ABSENT(t, "b");
    }
}

CLAIM(a_write_that_is_repeated_changes_nothing)
{
    uint64_t first = 0, second = 0, again = 0;
    CHECK_OK(put_record(t, "a", 0, "one", &first));
    for (int repeat = 0; repeat < 2; repeat++) {
        CHECK_OK(put_record(t, "a", 0, "one", &again));
        CHECK(again == first);
        CHECK_RECORD(t, "a", "one", first);
        if (repeat == 0)
            (void)next_life(t);
    }
    CHECK_OK(put_record(t, "a", first, "two", &second));
    BOTH_LIVES(t)
    {
        CHECK_OK(put_record(t, "a", first, "two", &again));
        CHECK(again == second);
        CHECK_RECORD(t, "a", "two", second);
        CHECK_RC(put_record(t, "a", 0, "one", NULL), KL_ECONFLICT); /* no repeat any more: it is overwritten */
    }
}

CLAIM(a_write_of_the_same_value_by_its_version_is_a_new_version)
{
    uint64_t first = 0, second = 0;
    CHECK_OK(put_record(t, "a", 0, "same", &first));
    CHECK_OK(put_record(t, "a", first, "same", &second));
    CHECK(second != 0);
    CHECK_RECORD(t, "a", "same", second);
}

CLAIM(a_record_is_removed_by_whoever_knows_its_version)
{
    uint64_t version = 0;
    CHECK_OK(put_record(t, "a", 0, "one", &version));
    kl_write wrong = WRITE(.name = kl_str("a"), .version = version + 1000, .remove = true);
    CHECK_RC(kl_store_put(t->store, &wrong, 1), KL_ECONFLICT);
    CHECK_INT(wrong.rc, KL_ECONFLICT);
    kl_write none = WRITE(.name = kl_str("a"), .version = 0, .remove = true);
    CHECK_RC(kl_store_put(t->store, &none, 1), KL_ECONFLICT);
    CHECK_RECORD(t, "a", "one", version);
    kl_write right = WRITE(.name = kl_str("a"), .version = version, .remove = true, .new_version = 77);
    BOTH_LIVES(t) /* the second time as a repeat */
    {
        CHECK_OK(kl_store_put(t->store, &right, 1));
        CHECK_INT(right.rc, KL_OK);
        CHECK_INT(right.new_version, 0);
        CHECK_ABSENT(t, "a");
    }
}

CLAIM(removing_what_is_not_there_is_fine)
{
    kl_write writes[2] = {WRITE(.name = kl_str("nobody"), .remove = true),
                          WRITE(.name = kl_str("nobody"), .version = 3, .remove = true)};
    CHECK_OK(kl_store_put(t->store, writes, 2));
    CHECK(writes[0].rc == KL_OK && writes[1].rc == KL_OK);
    CHECK_ABSENT(t, "nobody");
}

CLAIM(a_version_is_never_used_again)
{
    uint64_t versions[12], last = 0;
    for (size_t i = 0; i < COUNT(versions); i++) {
        char value[16];
        snprintf(value, sizeof value, "%zu", i);
        CHECK_OK(put_record(t, "a", last, value, &versions[i]));
        last = versions[i];
        for (size_t j = 0; j < i; j++)
            CHECK(versions[j] != versions[i]);
        if (i % 3 == 2) {
            kl_write gone = WRITE(.name = kl_str("a"), .version = last, .remove = true);
            CHECK_OK(kl_store_put(t->store, &gone, 1));
            last = 0;
        }
        if (i % 6 == 2)
            (void)next_life(t);
    }
    for (size_t i = 0; i + 1 < COUNT(versions); i++)
        CHECK_RC(put_record(t, "a", versions[i], "stale", NULL), KL_ECONFLICT);
}

CLAIM(each_write_of_a_call_is_judged_on_its_own_and_in_order)
{
    uint64_t a = 0, b = 0;
    CHECK_OK(put_record(t, "a", 0, "a", &a));
    CHECK_OK(put_record(t, "b", 0, "b", &b));
    kl_write writes[] = {
        WRITE(.name = kl_str("new"), .value = kl_str("1")),
        WRITE(.name = kl_str("a"), .version = a + 1000, .value = kl_str("wrong")),
        WRITE(.name = kl_str("new"), .value = kl_str("2")), /* it is there by now */
        WRITE(.name = kl_str("new"), .value = kl_str("1")), /* its repeat */
        WRITE(.name = kl_str("b"), .version = b, .remove = true),
        WRITE(.name = kl_str("b"), .value = kl_str("again")),
        WRITE(.name = kl_str("a"), .version = a, .value = kl_str("right")),
    };
    static const kl_rc expected[] = {KL_OK, KL_ECONFLICT, KL_ECONFLICT, KL_OK, KL_OK, KL_OK, KL_OK};
    CHECK_RC(kl_store_put(t->store, writes, COUNT(writes)), KL_ECONFLICT);
    for (size_t i = 0; i < COUNT(writes); i++)
        CHECK_INT(writes[i].rc, expected[i]);
    CHECK(writes[3].new_version == writes[0].new_version);
    CHECK_INT(writes[4].new_version, 0);
    BOTH_LIVES(t)
    {
        CHECK_RECORD(t, "new", "1", writes[0].new_version);
        CHECK_RECORD(t, "a", "right", writes[6].new_version);
        CHECK_RECORD(t, "b", "again", writes[5].new_version);
    }
}

CLAIM(several_records_are_read_at_once)
{
    uint64_t a = 0, c = 0;
    CHECK_OK(put_record(t, "a", 0, "A", &a));
    CHECK_OK(put_record(t, "c", 0, "C", &c));
    kl_bytes names[] = {kl_str("c"), kl_str("b"), kl_str("a"), kl_str("c")};
    kl_record records[4];
    CHECK_OK(kl_store_get(t->store, names, COUNT(names), &t->arena, records));
    CHECK(records[0].version == c && records[3].version == c);
    CHECK(records[1].version == 0 && records[2].version == a);
    CHECK_BYTES(records[0].value, kl_str("C"));
    CHECK_BYTES(records[2].value, kl_str("A"));
    CHECK_BYTES(records[3].name, kl_str("c"));
}

CLAIM(values_are_bytes_and_may_be_empty_or_as_long_as_the_limit)
{
    char *bytes = malloc(KL_RECORD_BYTES_MAX);
    REQUIRE(bytes);
    for (size_t i = 0; i < KL_RECORD_BYTES_MAX; i++)
        bytes[i] = (char)(i * 7);
    char name[KL_RECORD_NAME_MAX];
    memset(name, 0xff, sizeof name);
    name[3] = '\0';
    kl_write writes[3] = {WRITE(.name = kl_str("empty")),
                          WRITE(.name = {name, sizeof name}, .value = {bytes, KL_RECORD_BYTES_MAX}),
                          WRITE(.name = {"\0", 1}, .value = {"\0", 1})};
    CHECK_OK(kl_store_put(t->store, writes, COUNT(writes)));
    BOTH_LIVES(t)
    for (size_t i = 0; i < COUNT(writes); i++) {
        kl_record record = {0};
        CHECK_OK(kl_store_get(t->store, &writes[i].name, 1, &t->arena, &record));
        CHECK(record.version != 0 && record.version == writes[i].new_version);
        CHECK_BYTES(record.name, writes[i].name);
        CHECK_BYTES(record.value, writes[i].value);
    }
    free(bytes);
}

/* ---- Lists ---- */

static int by_name(const void *a, const void *b)
{
    const kl_bytes *x = a, *y = b;
    size_t shared = x->len < y->len ? x->len : y->len;
    int order = memcmp(x->data, y->data, shared);
    return order ? order : (x->len > y->len) - (x->len < y->len);
}

/* Lists in pages and compares with the sorted names. */
static void check_list(struct trial *t, kl_bytes prefix, const kl_bytes *names, size_t count, size_t page)
{
    kl_record *records = malloc(page * sizeof *records);
    kl_bytes after = {0};
    size_t at = 0, got = 0;
    REQUIRE(records);
    do {
        CHECK_OK(kl_store_list(t->store, prefix, after, page, &t->arena, records, &got));
        for (size_t i = 0; i < got && i < page; i++, at++) {
            if (at < count)
                CHECK_BYTES(records[i].name, names[at]);
            CHECK(records[i].version != 0);
            CHECK_BYTES(records[i].value, records[i].name);
            after = records[i].name;
        }
    } while (got && got <= page && at <= count);
    CHECK_INT(at, count);
    free(records);
}

CLAIM(records_are_listed_by_name_in_the_order_of_bytes)
{
    kl_bytes names[] = {kl_str("b"),         kl_str("a"),        kl_str("ab"),     kl_str("a/1"), kl_str("a/10"),
                        kl_str("a/2"),       kl_str("B"),        kl_str("\xff"),   {"a\0b", 3},   {"a\0", 2},
                        kl_str("a\xff\xff"), kl_str("\xff\xff"), kl_str("a/\xc3"), kl_str("zzz"), kl_str("a0")};
    for (size_t i = 0; i < COUNT(names); i++) {
        kl_write write = WRITE(.name = names[i], .value = names[i]);
        CHECK_OK(kl_store_put(t->store, &write, 1));
    }
    qsort(names, COUNT(names), sizeof *names, by_name);
    static const char *const prefixes[] = {"", "a", "a/", "a/1", "\xff", "c", "zzz", "zzzz"};
    BOTH_LIVES(t)
    for (size_t i = 0; i < COUNT(prefixes); i++) {
        kl_bytes matching[COUNT(names)];
        size_t count = 0, length = strlen(prefixes[i]);
        for (size_t j = 0; j < COUNT(names); j++)
            if (names[j].len >= length && memcmp(names[j].data, prefixes[i], length) == 0)
                matching[count++] = names[j];
        check_list(t, kl_str(prefixes[i]), matching, count, 100);
        check_list(t, kl_str(prefixes[i]), matching, count, 1);
        check_list(t, kl_str(prefixes[i]), matching, count, 3);
    }
}

CLAIM(a_list_goes_on_behind_a_name_that_is_not_there)
{
    CHECK_OK(put_record(t, "m", 0, "not asked for", NULL));
    CHECK_OK(put_record(t, "n/1", 0, "n/1", NULL));
    CHECK_OK(put_record(t, "n/3", 0, "n/3", NULL));
    kl_record records[4];
    size_t count = 0;
    CHECK_OK(kl_store_list(t->store, kl_str("n/"), kl_str("n/2"), 4, &t->arena, records, &count));
    REQUIRE(count == 1);
    CHECK_BYTES(records[0].name, kl_str("n/3"));
    CHECK_OK(kl_store_list(t->store, kl_str("n/"), kl_str("n/3"), 4, &t->arena, records, &count));
    CHECK_INT(count, 0);
    CHECK_OK(kl_store_list(t->store, kl_str("n/"), kl_str("a"), 4, &t->arena, records, &count));
    CHECK_INT(count, 2);
}

CLAIM(hundreds_of_records_are_written_and_listed)
{
    enum { RECORDS = 700 };
    static char texts[RECORDS][16];
    static kl_write writes[RECORDS];
    static kl_bytes names[RECORDS];
    uint64_t random = test_seed();
    for (size_t i = 0; i < RECORDS; i++) {
        snprintf(texts[i], sizeof texts[i], "r/%05u.%zu", (unsigned)kl__random_below(&random, 100000), i);
        names[i] = kl_str(texts[i]);
        writes[i] = WRITE(.name = names[i], .value = names[i]);
    }
    CHECK_OK(kl_store_put(t->store, writes, RECORDS));
    qsort(names, RECORDS, sizeof *names, by_name);
    BOTH_LIVES(t)
    check_list(t, kl_str("r/"), names, RECORDS, 64);
}

/* ---- Expiry ---- */

CLOCK_CLAIM(an_expired_record_is_not_there)
{
    kl_write writes[2] = {WRITE(.name = kl_str("e/1"), .value = kl_str("x"), .expires_ms = START_MS + 1000),
                          WRITE(.name = kl_str("e/2"), .value = kl_str("y"), .expires_ms = START_MS + 2000)};
    kl_record records[3];
    size_t count = 0;
    CHECK_OK(kl_store_put(t->store, writes, 2));
    atomic_store(&t->clock_ms, START_MS + 999);
    BOTH_LIVES(t)
    {
        CHECK_RECORD(t, "e/1", "x", writes[0].new_version);
        CHECK_INT(get_record(t, "e/1").expires_ms, START_MS + 1000);
        CHECK_OK(kl_store_list(t->store, kl_str("e/"), (kl_bytes){0}, 3, &t->arena, records, &count));
        CHECK_INT(count, 2);
    }
    atomic_store(&t->clock_ms, START_MS + 1001);
    BOTH_LIVES(t)
    {
        CHECK_ABSENT(t, "e/1");
        CHECK_RECORD(t, "e/2", "y", writes[1].new_version);
        CHECK_OK(kl_store_list(t->store, kl_str("e/"), (kl_bytes){0}, 3, &t->arena, records, &count));
        REQUIRE(count == 1);
        CHECK_BYTES(records[0].name, kl_str("e/2"));
        CHECK_INT(records[0].expires_ms, START_MS + 2000);
    }
}

CLOCK_CLAIM(a_page_of_a_list_is_full_although_records_expired)
{
    char texts[20][8];
    kl_record records[5];
    size_t count = 0;
    for (int i = 0; i < 20; i++) {
        snprintf(texts[i], sizeof texts[i], "e/%02d", i);
        kl_write write = WRITE(.name = kl_str(texts[i]), .expires_ms = i < 12 ? START_MS + 10 : 0);
        CHECK_OK(kl_store_put(t->store, &write, 1));
    }
    atomic_store(&t->clock_ms, START_MS + 11);
    CHECK_OK(kl_store_list(t->store, kl_str("e/"), (kl_bytes){0}, 5, &t->arena, records, &count));
    REQUIRE(count == 5);
    for (int i = 0; i < 5; i++)
        CHECK_BYTES(records[i].name, kl_str(texts[12 + i]));
}

CLOCK_CLAIM(an_expired_record_gives_way_to_a_new_one)
{
    uint64_t version = 0;
    kl_write old = WRITE(.name = kl_str("lease"), .value = kl_str("mine"), .expires_ms = START_MS + 10);
    CHECK_OK(kl_store_put(t->store, &old, 1));
    CHECK_RC(put_record(t, "lease", 0, "yours", NULL), KL_ECONFLICT);
    atomic_store(&t->clock_ms, START_MS + 11);
    CHECK_OK(put_record(t, "lease", 0, "yours", &version));
    CHECK(version != old.new_version);
    BOTH_LIVES(t)
    {
        CHECK_RECORD(t, "lease", "yours", version);
        CHECK_INT(get_record(t, "lease").expires_ms, 0);
        CHECK_RC(put_record(t, "lease", old.new_version, "mine still", NULL), KL_ECONFLICT);
    }
}

CLOCK_CLAIM(removing_an_expired_record_is_fine)
{
    kl_write lease = WRITE(.name = kl_str("lease"), .value = kl_str("mine"), .expires_ms = START_MS + 10);
    CHECK_OK(kl_store_put(t->store, &lease, 1));
    atomic_store(&t->clock_ms, START_MS + 11);
    kl_write gone = WRITE(.name = kl_str("lease"), .version = lease.new_version, .remove = true);
    CHECK_OK(kl_store_put(t->store, &gone, 1));
    CHECK_ABSENT(t, "lease");
}

CLOCK_CLAIM(a_write_moves_the_time_of_expiry)
{
    kl_write lease = WRITE(.name = kl_str("lease"), .value = kl_str("1"), .expires_ms = START_MS + 10);
    CHECK_OK(kl_store_put(t->store, &lease, 1));
    lease = WRITE(.name = kl_str("lease"), .value = kl_str("2"), .version = lease.new_version,
                  .expires_ms = START_MS + 100);
    CHECK_OK(kl_store_put(t->store, &lease, 1));
    atomic_store(&t->clock_ms, START_MS + 50);
    BOTH_LIVES(t)
    CHECK_RECORD(t, "lease", "2", lease.new_version);
    lease = WRITE(.name = kl_str("lease"), .value = kl_str("3"), .version = lease.new_version);
    CHECK_OK(kl_store_put(t->store, &lease, 1));
    atomic_store(&t->clock_ms, START_MS + 1000);
    BOTH_LIVES(t)
    CHECK_RECORD(t, "lease", "3", lease.new_version);
}

/* ---- What is refused ---- */

CLAIM(a_record_out_of_its_limits_is_refused)
{
    char *bytes = calloc(1, KL_RECORD_BYTES_MAX + 1);
    REQUIRE(bytes);
    memset(bytes, 'n', KL_RECORD_NAME_MAX + 1);
    kl_bytes long_name = {bytes, KL_RECORD_NAME_MAX + 1}, no_name = {0};
    kl_write writes[2] = {WRITE(.name = kl_str("good")), WRITE(.name = long_name)};
    kl_record record;
    size_t count;
    CHECK_REFUSED(kl_store_put(t->store, writes, 2));
    writes[1] = WRITE(.name = no_name);
    CHECK_REFUSED(kl_store_put(t->store, writes, 2));
    writes[1] = WRITE(.name = kl_str("big"), .value = {bytes, KL_RECORD_BYTES_MAX + 1});
    CHECK_REFUSED(kl_store_put(t->store, writes, 2));
    writes[1] = WRITE(.name = kl_str("early"), .expires_ms = -1);
    CHECK_REFUSED(kl_store_put(t->store, writes, 2));
    CHECK_REFUSED(kl_store_get(t->store, &long_name, 1, &t->arena, &record));
    CHECK_REFUSED(kl_store_get(t->store, &no_name, 1, &t->arena, &record));
    CHECK_REFUSED(kl_store_list(t->store, long_name, no_name, 1, &t->arena, &record, &count));
    CHECK_REFUSED(kl_store_list(t->store, no_name, long_name, 1, &t->arena, &record, &count));
    CHECK_REFUSED(kl_store_list(t->store, no_name, no_name, 0, &t->arena, &record, &count));
    CHECK_REFUSED(kl_store_list(t->store, no_name, no_name, KL_BATCH_MAX + 1, &t->arena, &record, &count));
    CHECK_ABSENT(t, "good");
    free(bytes);
}
