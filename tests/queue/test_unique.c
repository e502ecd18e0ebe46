/* test_unique.c - uniques and tokens: stored once and always under the same id, whoever dies, sleeps or races. */
#include <pthread.h>

#include "queue/tasks.h"

enum { CLAIM_MS = 10 * 1000, HOUR_MS = 3600 * 1000 };

static kl_bytes none(void) { return (kl_bytes){NULL, 0}; }

static kl_rc put_unique(kl_queue *queue, const char *unique, const char *key, kl_put_result *ret_result)
{
    kl_put task = {.key = kl_str(key), .unique = kl_str(unique), .payload = kl_str("p")};
    return kl_queue_put(queue, &task, 1, none(), ret_result);
}

static bool same_id(const kl_task_id *a, const kl_task_id *b) { return kl_id_compare(a, b) == 0; }

/* --- In peace --- */

CLAIM(a_second_task_with_the_same_unique_is_a_duplicate_until_the_window_ends)
{
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 2);
    kl_put_result first, second, third, other;
    REQUIRE(queue);
    CHECK_INT(put_unique(queue, "u", "k", &first), KL_OK);
    CHECK(!first.duplicate);
    atomic_fetch_add(&rig->clock_ms, HOUR_MS - 1);
    CHECK_INT(put_unique(queue, "u", "other key", &second), KL_OK);
    CHECK(second.duplicate && same_id(&first.id, &second.id));
    CHECK_INT(put_unique(queue, "v", "k", &other), KL_OK);
    CHECK(!other.duplicate);
    atomic_fetch_add(&rig->clock_ms, 1);
    CHECK_INT(put_unique(queue, "u", "k", &third), KL_OK);
    CHECK(!third.duplicate && !same_id(&first.id, &third.id));
    CHECK_INT(scan_tasks(queue, &rig->arena).count, 3);
    kl_queue_close(queue);
}

CLAIM_IN_MEMORY(a_window_is_as_long_as_the_task_says)
{
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 1);
    kl_put task = {.unique = kl_str("u"), .unique_ms = 50};
    kl_put_result result;
    REQUIRE(queue);
    CHECK_INT(kl_queue_put(queue, &task, 1, none(), NULL), KL_OK);
    atomic_fetch_add(&rig->clock_ms, 49);
    CHECK_INT(kl_queue_put(queue, &task, 1, none(), &result), KL_OK);
    CHECK(result.duplicate);
    atomic_fetch_add(&rig->clock_ms, 1);
    CHECK_INT(kl_queue_put(queue, &task, 1, none(), &result), KL_OK);
    CHECK(!result.duplicate);
    kl_queue_close(queue);
}

CLAIM(uniques_of_one_call_go_first_and_each_on_its_own)
{
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 2);
    kl_queue *mail = OPEN(rig->store, "mail", .partitions = 1);
    REQUIRE(queue && mail);
    kl_put tasks[] = {{.key = kl_str("k"), .payload = kl_str("1")},
                      {.key = kl_str("k"), .unique = kl_str("u"), .payload = kl_str("2")},
                      {.key = kl_str("k"), .unique = kl_str("u"), .payload = kl_str("3")},
                      {.queue = mail, .unique = kl_str("u"), .payload = kl_str("4")}};
    kl_put_result results[4];
    CHECK_INT(kl_queue_put(queue, tasks, 4, none(), results), KL_OK);
    CHECK(!results[0].duplicate && !results[1].duplicate && results[2].duplicate && !results[3].duplicate);
    CHECK(same_id(&results[1].id, &results[2].id));
    struct tasks stored = scan_tasks(queue, &rig->arena);
    REQUIRE(stored.count == 2);
    CHECK(same_bytes(stored.tasks[0].entry.payload, "2") && same_bytes(stored.tasks[1].entry.payload, "1"));
    CHECK_INT(scan_tasks(mail, &rig->arena).count, 1);
    kl_queue_close(queue);
    kl_queue_close(mail);
}

CLAIM(a_call_that_is_made_again_with_its_token_stores_nothing)
{
    static kl_put tasks[KL_PUT_MAX];
    static kl_put_result first[KL_PUT_MAX], second[KL_PUT_MAX];
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 2);
    REQUIRE(queue);
    for (int i = 0; i < KL_PUT_MAX; i++)
        tasks[i] = (kl_put){.key = kl_str(i % 2 ? "k" : ""), .unique = kl_str(i == 7 || i == 9 ? "u" : "")};
    CHECK_INT(kl_queue_put(queue, tasks, KL_PUT_MAX, kl_str("\xff token"), first), KL_OK);
    CHECK(first[9].duplicate);
    CHECK_INT(kl_queue_put(queue, tasks, KL_PUT_MAX, kl_str("\xff token"), second), KL_OK);
    for (int i = 0; i < KL_PUT_MAX && !test_failed(); i++) {
        CHECK(first[i].duplicate == (i == 9) && second[i].duplicate);
        CHECK(same_id(&first[i].id, &second[i].id));
    }
    CHECK_INT(scan_tasks(queue, &rig->arena).count, KL_PUT_MAX - 1);
    CHECK_FAILS(kl_queue_put(queue, tasks, 3, kl_str("\xff token"), NULL), KL_EMISMATCH,
                "another call, with 10000 tasks");
    kl_arena_reset(&rig->arena);
    atomic_fetch_add(&rig->clock_ms, HOUR_MS);
    CHECK_INT(kl_queue_put(queue, tasks, 3, kl_str("\xff token"), second), KL_OK);
    CHECK(!second[0].duplicate);
    kl_queue_close(queue);
}

CLAIM_IN_MEMORY(a_call_with_other_options_is_another_call)
{
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 1);
    kl_header header = {kl_str("h"), kl_str("1")}, other_header = {kl_str("h"), kl_str("2")};
    kl_bytes tag = kl_str("red");
    REQUIRE(queue);
    const kl_put task = {.key = kl_str("k"), .headers = &header, .header_count = 1};
    kl_put others[] = {task, task, task, task, task, task, task, task, task, task};
    others[0].priority = 1;
    others[1].delay_ms = 1000;
    others[2].due_ms = 1;
    others[3].attempts_max = 3;
    others[4].timeout_ms = 1000;
    others[5].unique = kl_str("u");
    others[6].group = kl_str("g");
    others[7].headers = &other_header;
    others[8].tags = &tag;
    others[8].tag_count = 1;
    others[9].keep_ms = 1000;
    CHECK_INT(kl_queue_put(queue, &task, 1, kl_str("t"), NULL), KL_OK);
    for (size_t i = 0; i < COUNT(others); i++)
        CHECK_FAILS(kl_queue_put(queue, &others[i], 1, kl_str("t"), NULL), KL_EMISMATCH, "other options");
    kl_put traced = task; /* whoever makes a call again is in another trace */
    traced.traceparent = kl_str("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    CHECK_INT(kl_queue_put(queue, &traced, 1, kl_str("t"), NULL), KL_OK);
    CHECK_INT(scan_tasks(queue, &rig->arena).count, 1);
    kl_queue_close(queue);
}

/* The record of a token as it was written when it knew "where" only. The hashes must stay what they are. */
CLAIM_IN_MEMORY(a_token_that_was_written_before_options_were_hashed_is_believed)
{
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 1);
    kl_put task = {.key = kl_str("k"), .kind = kl_str("charge"), .payload = kl_str("p"), .priority = 1};
    kl_record records[1];
    kl_put_result first, second;
    size_t count;
    char value[1024];
    REQUIRE(queue);
    CHECK_INT(kl_queue_put(queue, &task, 1, kl_str("t"), &first), KL_OK);
    REQUIRE(kl_store_list(rig->store, kl_str("token/orders/"), none(), 1, &rig->arena, records, &count) == KL_OK);
    REQUIRE(count == 1);
    const char *text = records[0].value.data, *options = strstr(text, ",\"options\":");
    REQUIRE(options);
    CHECK_CONTAINS(text, "\"where\":1156218082377384021");
    CHECK_CONTAINS(text, "\"options\":8458993062678530049");
    snprintf(value, sizeof value, "%.*s%s", (int)(options - text), text, options + strcspn(options + 1, ",}") + 1);
    kl_write write = {.name = records[0].name, .version = records[0].version, .expires_ms = records[0].expires_ms};
    write.value = kl_str(value);
    CHECK_INT(kl_store_put(rig->store, &write, 1), KL_OK);
    task.priority = 2;
    CHECK_INT(kl_queue_put(queue, &task, 1, kl_str("t"), &second), KL_OK);
    CHECK(second.duplicate && same_id(&first.id, &second.id));
    task.payload = kl_str("q");
    CHECK_FAILS(kl_queue_put(queue, &task, 1, kl_str("t"), &second), KL_EMISMATCH, "other keys");
    kl_queue_close(queue);
}

/* --- Crashes --- */

/* What is put in these tests: one task with a unique, or a call with a token whose second task has a unique. */
enum how { UNIQUE, TOKEN, BOTH, HOWS };

static size_t count_of(enum how how) { return how == UNIQUE ? 1 : 3; }

static kl_rc put_how(kl_queue *queue, enum how how, kl_put_result *ret_results)
{
    kl_put tasks[3] = {{.key = kl_str("a")}, {.key = kl_str("b")}, {.payload = kl_str("no key")}};
    if (how == UNIQUE)
        tasks[0].unique = kl_str("u");
    if (how == BOTH)
        tasks[1].unique = kl_str("u");
    return kl_queue_put(queue, tasks, count_of(how), how == UNIQUE ? none() : kl_str("t"), ret_results);
}

static bool same_results(const kl_put_result *a, const kl_put_result *b, size_t count)
{
    bool same = true;
    for (size_t i = 0; i < count; i++)
        same = same && same_id(&a[i].id, &b[i].id);
    return same;
}

/* What is stored is what the results name. */
static void check_stored(kl_queue *queue, const kl_put_result *results, size_t count)
{
    kl_arena arena = {0};
    struct tasks stored = scan_tasks(queue, &arena);
    CHECK_INT(stored.count, count);
    for (size_t i = 0; i < count; i++) {
        size_t found = 0;
        for (size_t j = 0; j < stored.count; j++)
            found += same_id(&stored.tasks[j].entry.id, &results[i].id);
        CHECK_INT(found, 1);
    }
    kl_arena_free(&arena);
}

/* The first producer dies after so many calls; others come at once, and when the claim is old. False: it lives. */
static bool die_after(int calls, bool reply_lost, enum how how)
{
    struct cut cut;
    kl_queue *dying, *other;
    kl_put_result first[3], second[3], third[3];
    bool died = false;
    if (!cut_open(&cut))
        return false;
    cut.reply_lost = reply_lost;
    dying = OPEN(cut.wire, "orders", .partitions = 2);
    other = OPEN(cut.inner, "orders", .partitions = 0);
    if (dying && other) {
        cut_arm(&cut, calls);
        kl_rc first_rc = put_how(dying, how, first);
        died = cut_disarm(&cut);
        CHECK(first_rc == KL_OK || (died && first_rc == KL_EBUSY));
        kl_rc rc = put_how(other, how, second);
        CHECK(rc == KL_OK || (died && rc == KL_EBUSY));
        atomic_fetch_add(&cut.clock_ms, CLAIM_MS);
        CHECK_INT(put_how(other, how, third), KL_OK);
        CHECK(rc != KL_OK || same_results(second, third, count_of(how)));
        CHECK(first_rc != KL_OK || same_results(first, third, count_of(how)));
        check_stored(other, third, count_of(how));
        CHECK_INT(put_how(other, how, second), KL_OK);
        CHECK(second[0].duplicate && same_results(second, third, count_of(how)));
        check_stored(other, third, count_of(how));
    }
    kl_queue_close(dying);
    kl_queue_close(other);
    cut_close(&cut);
    return died;
}

TEST(a_producer_that_dies_at_any_call_leaves_one_copy_under_one_id)
{
    kl__queue_sleep_by(sleep_not);
    for (int how = 0; how < HOWS; how++)
        for (int lost = 0; lost < 2; lost++) {
            int calls = lost;
            while (die_after(calls, lost, (enum how)how) && !test_failed() && calls < 100)
                calls++;
            CHECK(calls >= 4 && calls < 100); /* now, get, put, append, put at least */
            if (test_failed())
                printf("# how %d, lost %d, after %d calls\n", how, lost, calls);
        }
    kl__queue_sleep_by(NULL);
}

/* --- Sleepers --- */

/* What happens while the first producer sleeps: another one finds its claim old, and perhaps a worker is quick and the
 * layout is changed. */
struct meanwhile {
    struct cut *cut;
    kl_queue *other;
    enum how how;
    bool settle_before, alter, settle_after;
    kl_rc rc;
    kl_put_result results[3];
    size_t settled;
};

static void happen(void *ctx)
{
    struct meanwhile *meanwhile = ctx;
    kl_queue_opts opts = {.size = sizeof opts, .partitions = 3, .shard_prefix_len = 2};
    atomic_fetch_add(&meanwhile->cut->clock_ms, CLAIM_MS);
    if (meanwhile->settle_before)
        meanwhile->settled += settle_tasks(meanwhile->other, KL_DONE, 0, NULL);
    if (meanwhile->alter)
        CHECK_INT(kl_queue_alter(meanwhile->other, &opts), KL_OK);
    meanwhile->rc = put_how(meanwhile->other, meanwhile->how, meanwhile->results);
    if (meanwhile->settle_after)
        meanwhile->settled += settle_tasks(meanwhile->other, KL_DONE, 0, NULL);
}

static bool sleep_after(int calls, enum how how, int variant)
{
    struct cut cut;
    kl_put_result first[3];
    bool slept = false;
    if (!cut_open(&cut))
        return false;
    kl_queue *sleeper = OPEN(cut.wire, "orders", .partitions = 2), *other = OPEN(cut.inner, "orders", .partitions = 0);
    struct meanwhile meanwhile = {
        .cut = &cut,
        .other = other,
        .how = how,
        .settle_before = variant & 1,
        .alter = variant & 2,
        .settle_after = variant & 4,
    };
    if (sleeper && other) {
        cut.goes_on = true;
        cut.meanwhile = happen;
        cut.ctx = &meanwhile;
        cut_arm(&cut, calls);
        CHECK_INT(put_how(sleeper, how, first), KL_OK);
        slept = cut_disarm(&cut);
        if (slept) {
            CHECK_INT(meanwhile.rc, KL_OK);
            CHECK(same_results(first, meanwhile.results, count_of(how)));
            kl_arena arena = {0};
            CHECK_INT(scan_tasks(other, &arena).count + meanwhile.settled, count_of(how));
            kl_arena_free(&arena);
        }
    }
    kl_queue_close(sleeper);
    kl_queue_close(other);
    cut_close(&cut);
    return slept;
}

TEST(a_producer_that_sleeps_at_any_call_stores_no_second_copy)
{
    kl__queue_sleep_by(sleep_not);
    for (int how = 0; how < HOWS; how++)
        for (int variant = 0; variant < 8; variant++) {
            int calls = 1;
            while (sleep_after(calls, (enum how)how, variant) && !test_failed() && calls < 100)
                calls++;
            CHECK(calls >= 5 && calls < 100);
            if (test_failed()) {
                printf("# how %d, variant %d, after %d calls\n", how, variant, calls);
                return;
            }
        }
    kl__queue_sleep_by(NULL);
}

/* --- A store that appends shard by shard --- */

static int parts_left; /* so many shards get their entries; those behind are not reached */

/* Each shard knows the token by itself. */
static kl_rc append_apart(void *self, const kl_append *append)
{
    const struct lossy *apart = self;
    KL_ASSERT(!append->done);
    for (size_t i = 0; i < append->count; i++) {
        kl_token of_shard = *append->token;
        of_shard.bytes[0] ^= (uint8_t)append->entries[i].place.shard;
        if (parts_left-- <= 0)
            return kl__fail(KL_EBUSY, "the rest could not be reached");
        kl_rc rc = kl_store_append(apart->inner, &append->entries[i], 1, &of_shard);
        if (rc != KL_OK)
            return rc;
    }
    return KL_OK;
}

static kl_rc put_apart(kl_queue *queue, int parts)
{
    kl_put tasks[3] = {{.key = kl_str("a")}, {.key = kl_str("b")}, {.key = kl_str("c")}};
    kl_put_result results[3];
    parts_left = parts;
    return kl_queue_put(queue, tasks, 3, kl_str("t"), results);
}

CLAIM_IN_MEMORY(what_was_stored_in_part_and_is_done_is_not_stored_again)
{
    struct lossy apart;
    kl_store *store = NULL;
    REQUIRE(lossy_open(&apart, rig->store, 1, &store) == KL_OK);
    apart.replies_lost = apart.requests_lost = 0;
    apart.engine.can &= ~(uint32_t)KL_STORE_ATOMIC_APPEND;
    apart.engine.append = append_apart;
    kl_queue *queue = OPEN(store, "orders", .partitions = 1);
    REQUIRE(queue);
    kl__queue_sleep_by(sleep_not);
    CHECK_INT(put_apart(queue, 1), KL_EBUSY);
    CHECK_INT(settle_tasks(queue, KL_DONE, 0, NULL), 1);
    CHECK_INT(put_apart(queue, 2), KL_EBUSY); /* the first again, of which nothing is kept, and the second */
    CHECK_INT(put_apart(queue, 3), KL_OK);
    struct tasks stored = scan_tasks(queue, &rig->arena);
    CHECK_INT(stored.count, 2);
    for (size_t i = 0; i < stored.count; i++)
        CHECK(!same_bytes(stored.tasks[i].entry.key, "a"));
    kl__queue_sleep_by(NULL);
    kl_queue_close(queue);
    kl_store_close(store);
}

/* --- Others who are at it --- */

/* The record as it is when the producer ended between its append and its last write. */
static void leave_claim(struct rig *rig)
{
    kl_record records[1];
    size_t count;
    char value[1024];
    REQUIRE(kl_store_list(rig->store, kl_str("unique/orders/"), none(), 1, &rig->arena, records, &count) == KL_OK);
    REQUIRE(count == 1);
    const char *from = records[0].value.data, *text = strstr(from, "stored");
    REQUIRE(text);
    kl_write write = {.name = records[0].name, .version = records[0].version, .expires_ms = records[0].expires_ms};
    snprintf(value, sizeof value, "%.*sclaimed%s", (int)(text - from), from, text + strlen("stored"));
    write.value = kl_str(value);
    CHECK_INT(kl_store_put(rig->store, &write, 1), KL_OK);
}

CLAIM_IN_MEMORY(a_claim_of_somebody_who_is_at_it_is_waited_for)
{
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 1);
    kl_put_result first, second;
    REQUIRE(queue);
    kl__queue_sleep_by(sleep_not);
    CHECK_INT(put_unique(queue, "u", "k", &first), KL_OK);
    leave_claim(rig);
    CHECK_INT(settle_tasks(queue, KL_DONE, 0, NULL), 1);
    atomic_store(&slept_ms, 0);
    CHECK_FAILS(put_unique(queue, "u", "k", &second), KL_EBUSY, "after 10 s it is taken over");
    CHECK(atomic_load(&slept_ms) > 500 && atomic_load(&slept_ms) < 2000);
    CHECK_FAILS(put_unique(queue, "u", "another key", &second), KL_EBUSY, "taken over");
    atomic_fetch_add(&rig->clock_ms, CLAIM_MS);
    CHECK_INT(put_unique(queue, "u", "another key", &second), KL_OK);
    CHECK(!second.duplicate && !same_id(&first.id, &second.id));
    CHECK_INT(put_unique(queue, "u", "k", &first), KL_OK);
    CHECK(first.duplicate && same_id(&first.id, &second.id));
    kl__queue_sleep_by(NULL);
    kl_queue_close(queue);
}

CLAIM_IN_MEMORY(a_unique_whose_producer_ended_after_its_append_is_not_stored_under_another_key)
{
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 2);
    kl_put_result first, second;
    REQUIRE(queue);
    CHECK_INT(put_unique(queue, "u", "k", &first), KL_OK);
    leave_claim(rig);
    atomic_fetch_add(&rig->clock_ms, CLAIM_MS);
    CHECK_INT(put_unique(queue, "u", "another key", &second), KL_OK);
    CHECK(second.duplicate && same_id(&first.id, &second.id));
    CHECK_INT(scan_tasks(queue, &rig->arena).count, 1);
    CHECK_INT(settle_tasks(queue, KL_DONE, 0, NULL), 1); /* and nothing is kept: now only the record knows it */
    CHECK_INT(put_unique(queue, "u", "another key", &second), KL_OK);
    CHECK(second.duplicate && same_id(&first.id, &second.id));
    CHECK_INT(scan_tasks(queue, &rig->arena).count, 0);
    kl_queue_close(queue);
}

static kl_rc read_nothing(void *self, const kl_ref *refs, size_t count, kl_arena *arena, kl_task *ret_tasks,
                          size_t *ret_count)
{
    (void)self, (void)refs, (void)count, (void)arena, (void)ret_tasks, (void)ret_count;
    return kl__fail(KL_EBUSY, "not just now");
}

CLAIM_IN_MEMORY(a_claim_for_another_key_is_not_taken_over_before_its_task_was_looked_for)
{
    struct lossy blind;
    kl_store *store = NULL;
    kl_put_result first, second;
    REQUIRE(lossy_open(&blind, rig->store, 1, &store) == KL_OK);
    blind.replies_lost = blind.requests_lost = 0;
    kl_queue *queue = OPEN(store, "orders", .partitions = 1);
    REQUIRE(queue);
    CHECK_INT(put_unique(queue, "u", "k", &first), KL_OK);
    leave_claim(rig);
    atomic_fetch_add(&rig->clock_ms, CLAIM_MS);
    kl__queue_sleep_by(sleep_not);
    blind.engine.read = read_nothing;
    CHECK_FAILS(put_unique(queue, "u", "another key", &second), KL_EBUSY, "not just now");
    kl_queue *direct = OPEN(rig->store, "orders", .partitions = 1);
    CHECK_INT(scan_tasks(direct, &rig->arena).count, 1);
    kl__queue_sleep_by(NULL);
    kl_queue_close(direct);
    kl_queue_close(queue);
    kl_store_close(store);
}

/* --- Races --- */

enum { RACERS = 4, ROUNDS = 200 };

struct racer {
    kl_store *store;
    kl_put_result results[ROUNDS];
    size_t firsts;
};

static void *race(void *ctx)
{
    struct racer *racer = ctx;
    kl_queue *queue = NULL;
    CHECK_INT(kl_queue_find(racer->store, "orders", &queue), KL_OK);
    for (int i = 0; queue && i < ROUNDS; i++) {
        char unique[16];
        snprintf(unique, sizeof unique, "%d", i);
        kl_put task = {.key = kl_str("k"), .unique = kl_str(i % 2 ? unique : "")};
        kl_rc rc;
        do
            rc = kl_queue_put(queue, &task, 1, kl_str(i % 2 ? "" : unique), &racer->results[i]);
        while (rc == KL_EBUSY);
        CHECK_INT(rc, KL_OK);
        racer->firsts += !racer->results[i].duplicate;
    }
    kl_queue_close(queue);
    return NULL;
}

CLAIM(of_producers_that_race_one_stores_and_all_get_its_id)
{
    static struct racer racers[RACERS];
    pthread_t threads[RACERS];
    size_t firsts = 0;
    kl_queue *queue = OPEN(rig->store, "orders", .partitions = 1);
    REQUIRE(queue);
    for (int i = 0; i < RACERS; i++) {
        racers[i] = (struct racer){.store = rig->store};
        REQUIRE(pthread_create(&threads[i], NULL, race, &racers[i]) == 0);
    }
    for (int i = 0; i < RACERS; i++) {
        pthread_join(threads[i], NULL);
        firsts += racers[i].firsts;
        CHECK(same_results(racers[0].results, racers[i].results, ROUNDS));
    }
    CHECK_INT(firsts, ROUNDS);
    check_stored(queue, racers[0].results, ROUNDS);
    kl_queue_close(queue);
}
