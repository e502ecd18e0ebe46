/* conformance_lossy.c - S5 and S6 where several change one thing: a lost reply is told from a lost race.
 *
 * First that lossy.c does what it says. Then threads count in one record, each writing by version. A put whose reply
 * was lost may have been overwritten by the time it is repeated, and is then refused: its own number in the value says
 * whether it had been written. That is why values that must be told apart carry something unique. */
#include <stdlib.h>

#include "store/conformance.h"
#include "store/lossy.h"

static bool open_lossy(struct trial *t, struct lossy *lossy, kl_store **ret_store)
{
    uint32_t partition;
    bool opened = lossy_open(lossy, t->store, test_seed(), ret_store) == KL_OK;
    CHECK(opened);
    while (opened && kl_store_partition(*ret_store, "orders", 1, &partition) == LOSSY_RC)
        ;
    return opened;
}

CLAIM(a_call_whose_reply_is_lost_was_made_and_one_whose_request_is_lost_was_not)
{
    struct lossy lossy;
    kl_store *store;
    REQUIRE(open_lossy(t, &lossy, &store));
    kl_entry entries[2] = {make_entry(t, order_place(t, 3), "k", "x"), make_entry(t, order_place(t, 3), "k", "x")};
    kl_write writes[2] = {{.name = kl_str("made"), .value = kl_str("1")},
                          {.name = kl_str("lost"), .value = kl_str("1")}};
    kl_fence fences[2] = {{.place = order_place(t, 3), .epoch = 5}, {.place = order_place(t, 3), .epoch = 9}};
    for (int i = 0; i < 2; i++) {
        lossy.replies_lost = i == 0 ? 100 : 0;
        lossy.requests_lost = i == 0 ? 0 : 100;
        CHECK_RC(kl_store_append(store, &entries[i], 1, NULL), LOSSY_RC);
        CHECK_RC(kl_store_put(store, &writes[i], 1), LOSSY_RC);
        CHECK_INT(writes[i].rc, LOSSY_RC);
        CHECK_RC(kl_store_fence(store, &fences[i], 1), LOSSY_RC);
        CHECK_INT(fences[i].rc, LOSSY_RC);
    }
    CHECK_INT(kl_rc_class(LOSSY_RC), KL_CLASS_RETRY);
    CHECK_LINE(t, order_place(t, 3), 0, &entries[0].id, 1);
    CHECK(get_record(t, "made").version != 0 && get_record(t, "lost").version == 0);
    CHECK_RC(fence(t, order_place(t, 3), 4), KL_ESTALE);
    CHECK_OK(fence(t, order_place(t, 3), 6));
    kl_store_close(store);
}

CLAIM(a_seal_whose_reply_is_lost_holds_and_one_whose_request_is_lost_does_not)
{
    struct lossy lossy;
    kl_store *store;
    kl_place sealed = order_place(t, 3), open = order_place(t, 4);
    if (!can(t, KL_STORE_SEAL))
        return;
    REQUIRE(open_lossy(t, &lossy, &store));
    kl_entry entry = make_entry(t, sealed, "k", "before"), late = make_entry(t, sealed, "k", "late");
    kl_token token = make_token();
    CHECK_OK(kl_store_append(t->store, &entry, 1, &token));
    kl_fence fences[2] = {{.place = sealed, .seal = true}, {.place = open, .seal = true}};
    for (int i = 0; i < 2; i++) {
        lossy.replies_lost = i == 0 ? 100 : 0;
        lossy.requests_lost = i == 0 ? 0 : 100;
        CHECK_RC(kl_store_fence(store, &fences[i], 1), LOSSY_RC);
        CHECK_INT(fences[i].rc, LOSSY_RC);
    }
    kl_task_id id = append_one(t, open, "x");
    CHECK_RC(kl_store_append(t->store, &late, 1, NULL), KL_ESEALED);
    CHECK_OK(kl_store_append(t->store, &entry, 1, &token));
    lossy.requests_lost = 0;
    CHECK_OK(kl_store_fence(store, fences, 2)); /* the repeat */
    CHECK(fences[0].rc == KL_OK && fences[1].rc == KL_OK);
    kl_store_close(store);
    BOTH_LIVES(t)
    {
        CHECK_RC(kl_store_append(t->store, &late, 1, NULL), KL_ESEALED);
        CHECK_OK(kl_store_append(t->store, &entry, 1, &token));
        CHECK_LINE(t, sealed, 0, &entry.id, 1);
        CHECK_LINE(t, open, 0, &id, 1);
    }
}

/* ---- Counting in one record ---- */

enum { COUNTERS = 4 };

struct counting {
    kl_store *store;
    uint64_t each;
    atomic_int next;
    _Atomic uint64_t refused_repeats; /* puts that had been made, lost their reply and were overwritten */
};

/* The value: how often all have counted, and how often each. */
struct tallies {
    uint64_t total, own[COUNTERS];
};

static bool read_tallies(struct counting *counting, kl_arena *arena, struct tallies *ret_tallies, uint64_t *ret_version)
{
    kl_bytes name = kl_str("counter");
    kl_record record = {0};
    kl_rc rc;
    do {
        rc = kl_store_get(counting->store, &name, 1, arena, &record);
    } while (rc == LOSSY_RC);
    CHECK_OK(rc);
    *ret_tallies = (struct tallies){0};
    *ret_version = record.version;
    CHECK(record.version == 0 || record.value.len == sizeof *ret_tallies);
    if (record.version && record.value.len == sizeof *ret_tallies)
        memcpy(ret_tallies, record.value.data, sizeof *ret_tallies);
    return rc == KL_OK;
}

static kl_rc write_tallies(struct counting *counting, const struct tallies *tallies, uint64_t version,
                           bool *ret_repeated)
{
    kl_write write = {.name = kl_str("counter"), .version = version, .value = {tallies, sizeof *tallies}};
    kl_rc rc = kl_store_put(counting->store, &write, 1);
    for (*ret_repeated = false; rc == LOSSY_RC; *ret_repeated = true)
        rc = kl_store_put(counting->store, &write, 1);
    return rc;
}

static void *count_up(void *ctx)
{
    struct counting *counting = ctx;
    int self = atomic_fetch_add(&counting->next, 1);
    kl_arena arena = {0};
    uint64_t made = 0, version;
    struct tallies tallies;
    bool repeated = false;
    while (!test_failed() && read_tallies(counting, &arena, &tallies, &version)) {
        CHECK(tallies.own[self] == made || (repeated && tallies.own[self] == made + 1));
        if (tallies.own[self] > made)
            atomic_fetch_add(&counting->refused_repeats, 1);
        made = tallies.own[self];
        if (made == counting->each)
            break;
        tallies.total++;
        tallies.own[self]++;
        kl_rc rc = write_tallies(counting, &tallies, version, &repeated);
        CHECK(rc == KL_OK || rc == KL_ECONFLICT);
        made += rc == KL_OK;
        repeated = repeated && rc != KL_OK;
        kl_arena_reset(&arena);
    }
    kl_arena_free(&arena);
    return NULL;
}

CLAIM(threads_count_right_in_one_record_although_replies_are_lost)
{
    struct lossy lossy;
    struct counting counting = {.each = test_ops(400) + 10};
    pthread_t threads[COUNTERS];
    REQUIRE(open_lossy(t, &lossy, &counting.store));
    for (int i = 0; i < COUNTERS; i++)
        if (pthread_create(&threads[i], NULL, count_up, &counting) != 0)
            abort();
    for (int i = 0; i < COUNTERS; i++)
        pthread_join(threads[i], NULL);
    kl_store_close(counting.store);
    CHECK(atomic_load(&lossy.lost_replies) > 0);
    BOTH_LIVES(t)
    {
        struct tallies tallies;
        kl_record record = get_record(t, "counter");
        REQUIRE(record.value.len == sizeof tallies);
        memcpy(&tallies, record.value.data, sizeof tallies);
        CHECK_INT(tallies.total, COUNTERS * counting.each);
        for (int i = 0; i < COUNTERS; i++)
            CHECK_INT(tallies.own[i], counting.each);
    }
}

/* ---- Appending without waiting ---- */

enum { TOLD = 1000 };

struct told {
    struct tally *tally;
    _Atomic int rc;
    atomic_int calls;
};

static void tell(void *ctx, kl_rc rc, const char *error)
{
    struct told *told = ctx;
    CHECK((rc == KL_OK) == (*error == '\0'));
    atomic_store(&told->rc, rc);
    atomic_fetch_add(&told->calls, 1);
    tally_add(told->tally, 1);
}

CLAIM(appends_without_waiting_are_repeated_by_their_tokens_until_each_is_stored_once)
{
    static kl_entry entries[TOLD];
    static kl_token tokens[TOLD];
    static struct told told[TOLD];
    struct lossy lossy;
    kl_store *store;
    REQUIRE(open_lossy(t, &lossy, &store));
    for (int i = 0; i < TOLD; i++) {
        entries[i] = make_entry(t, order_place(t, 3), "k", "x");
        tokens[i] = make_token();
        atomic_store(&told[i].rc, LOSSY_RC);
    }
    for (int left = TOLD; left > 0 && !test_failed();) {
        struct tally tally = TALLY;
        int64_t taken = 0;
        for (int i = 0; i < TOLD; i++) {
            if (atomic_load(&told[i].rc) == KL_OK)
                continue;
            told[i].tally = &tally;
            atomic_store(&told[i].calls, 0);
            kl_rc rc = kl_store_append_async(store, &entries[i], 1, &tokens[i], tell, &told[i]);
            CHECK(rc == KL_OK || rc == LOSSY_RC);
            taken += rc == KL_OK;
        }
        tally_await(&tally, taken);
        left = 0;
        for (int i = 0; i < TOLD; i++) {
            CHECK(atomic_load(&told[i].calls) <= 1);
            left += atomic_load(&told[i].rc) != KL_OK;
        }
    }
    kl_store_close(store);
    CHECK(atomic_load(&lossy.lost_replies) > 0 && atomic_load(&lossy.lost_requests) > 0);
    BOTH_LIVES(t)
    {
        CHECK_INT(counts_of(t, order_place(t, 3)).ready, TOLD);
        for (int i = 0; i < TOLD; i++)
            CHECK_INT(state_of(t, order_place(t, 3), &entries[i].id), KL_TASK_WAITING);
    }
}
