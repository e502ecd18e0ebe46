/* conformance_append.c - S5 of appends: tokens, appends without waiting, and what may not be appended at all. */
#include <stdlib.h>

#include "store/conformance.h"

/* ---- Tokens ---- */

CLAIM(an_append_repeated_with_its_token_is_stored_once)
{
    kl_entry entries[3];
    kl_task_id ids[3];
    kl_token token = make_token();
    for (int i = 0; i < 3; i++) {
        entries[i] = make_entry(t, order_place(t, 4), "k", "x");
        ids[i] = entries[i].id;
    }
    CHECK_OK(kl_store_append(t->store, entries, COUNT(entries), &token));
    for (int repeat = 0; repeat < 4; repeat++) {
        CHECK_OK(kl_store_append(t->store, entries, COUNT(entries), &token));
        CHECK_LINE(t, order_place(t, 4), 0, ids, COUNT(ids));
        CHECK_INT(counts_of(t, order_place(t, 4)).ready, COUNT(ids));
        if (repeat == 1)
            (void)next_life(t);
    }
}

CLAIM(a_repeated_append_does_not_bring_settled_tasks_back)
{
    kl_entry entry = make_entry(t, order_place(t, 4), "k", "x");
    kl_token token = make_token();
    CHECK_OK(kl_store_append(t->store, &entry, 1, &token));
    finish(t, entry.place, &entry.id, KL_DONE, 0, NULL, NULL);
    BOTH_LIVES(t)
    {
        CHECK_OK(kl_store_append(t->store, &entry, 1, &token));
        CHECK_INT(line_of(t, entry.place, &entry.id), NOWHERE);
        CHECK_INT(counts_of(t, whole(t->orders)).ready, 0);
    }
}

CLAIM(a_repeated_append_leaves_a_tried_task_as_it_is)
{
    kl_entry entry = make_entry(t, order_place(t, 4), "k", "x");
    kl_token token = make_token();
    CHECK_OK(kl_store_append(t->store, &entry, 1, &token));
    kl_settled retry = outcome_of(t, entry.place, &entry.id, KL_RETRY);
    CHECK_OK(settle(t, entry.place, 0, &retry, 1));
    CHECK_OK(kl_store_append(t->store, &entry, 1, &token));
    CHECK_INT(line_of(t, entry.place, &entry.id), KL_LINE_RETRY);
    CHECK_INT(stub_of(t, entry.place, &entry.id).attempts, 1);
}

CLAIM(the_same_work_under_another_token_is_new_work)
{
    kl_task_id ids[3];
    for (int i = 0; i < 3; i++) {
        kl_entry entry = make_entry(t, order_place(t, 4), "k", "same");
        kl_token token = make_token();
        ids[i] = entry.id;
        CHECK_OK(kl_store_append(t->store, &entry, 1, i < 2 ? &token : NULL));
    }
    CHECK_LINE(t, order_place(t, 4), 0, ids, COUNT(ids));
}

CLAIM(tokens_that_differ_in_one_bit_differ)
{
    kl_token token = make_token();
    kl_task_id ids[129];
    for (size_t i = 0; i < COUNT(ids); i++) {
        kl_token other = token;
        if (i < 128)
            other.bytes[i / 8] ^= (uint8_t)(1u << i % 8);
        kl_entry entry = make_entry(t, order_place(t, 4), NULL, "x");
        ids[i] = entry.id;
        CHECK_OK(kl_store_append(t->store, &entry, 1, &other));
    }
    CHECK_LINE(t, order_place(t, 4), 0, ids, COUNT(ids));
}

CLAIM(the_token_of_a_refused_append_is_not_spent)
{
    kl_entry entry = make_entry(t, order_place(t, 4), "k", "x");
    kl_token token = make_token();
    entry.priority = KL_PRIORITY_MAX + 1;
    CHECK_REFUSED(kl_store_append(t->store, &entry, 1, &token));
    entry.priority = 0;
    CHECK_OK(kl_store_append(t->store, &entry, 1, &token));
    CHECK_LINE(t, entry.place, 0, &entry.id, 1);
}

/* ---- Without waiting ---- */

/* What one asynchronous append was told. */
struct told {
    struct tally *tally;
    atomic_int calls;
    kl_rc rc;
    char error[200];
};

static void tell(void *ctx, kl_rc rc, const char *error)
{
    struct told *told = ctx;
    told->rc = rc;
    snprintf(told->error, sizeof told->error, "%s", error ? error : "(null)");
    atomic_fetch_add(&told->calls, 1);
    tally_add(told->tally, 1);
}

static void check_told(const struct told *told, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        CHECK_INT(atomic_load(&told[i].calls), 1);
        CHECK_INT(told[i].rc, KL_OK);
        CHECK_STR(told[i].error, "");
    }
}

CLAIM(appends_without_waiting_keep_their_order_and_are_told_of_once)
{
    static struct told told[1000];
    static kl_task_id ids[COUNT(told)];
    struct tally tally = TALLY;
    memset(told, 0, sizeof told);
    for (size_t i = 0; i < COUNT(told); i++) {
        kl_entry entry = make_entry(t, order_place(t, 4), "k", "x");
        ids[i] = entry.id;
        told[i].tally = &tally;
        CHECK_OK(kl_store_append_async(t->store, &entry, 1, NULL, tell, &told[i]));
    }
    REQUIRE(tally_await(&tally, COUNT(told)));
    check_told(told, COUNT(told));
    BOTH_LIVES(t)
    CHECK_LINE(t, order_place(t, 4), 0, ids, COUNT(ids));
    CHECK_INT(tally_read(&tally), COUNT(told));
}

CLAIM(calls_that_wait_and_calls_that_do_not_keep_their_order)
{
    struct told told[60];
    kl_task_id ids[COUNT(told)];
    struct tally tally = TALLY;
    memset(told, 0, sizeof told);
    for (size_t i = 0; i < COUNT(told); i++) {
        kl_entry entry = make_entry(t, order_place(t, 4), "k", "x");
        ids[i] = entry.id;
        told[i].tally = &tally;
        if (i % 7 == 6)
            CHECK_OK(kl_store_append(t->store, &entry, 1, NULL));
        else
            CHECK_OK(kl_store_append_async(t->store, &entry, 1, NULL, tell, &told[i]));
    }
    REQUIRE(tally_await(&tally, 52));
    CHECK_LINE(t, order_place(t, 4), 0, ids, COUNT(ids));
}

CLAIM(an_append_without_waiting_copies_what_it_was_given)
{
    char key[] = "key-one", payload[] = "payload-one";
    struct tally tally = TALLY;
    struct told told = {.tally = &tally};
    kl_entry entry = make_entry(t, order_place(t, 4), key, payload);
    kl_task_id id = entry.id;
    kl_token token = make_token();
    CHECK_OK(kl_store_append_async(t->store, &entry, 1, &token, tell, &told));
    memset(key, '-', sizeof key);
    memset(payload, '-', sizeof payload);
    memset(&entry, 0xff, sizeof entry);
    memset(&token, 0xff, sizeof token);
    REQUIRE(tally_await(&tally, 1));
    kl_task task = read_one(t, order_place(t, 4), &id);
    CHECK_BYTES(task.entry.key, kl_str("key-one"));
    CHECK_BYTES(task.entry.payload, kl_str("payload-one"));
}

CLAIM(a_repeat_is_recognised_while_the_first_is_under_way)
{
    struct tally tally = TALLY;
    struct told told[20];
    memset(told, 0, sizeof told);
    kl_entry entries[5];
    kl_task_id ids[5];
    for (size_t i = 0; i < COUNT(entries); i++) {
        entries[i] = make_entry(t, order_place(t, 4), "k", "x");
        ids[i] = entries[i].id;
        kl_token token = make_token();
        for (size_t repeat = 0; repeat < 4; repeat++) {
            told[4 * i + repeat].tally = &tally;
            CHECK_OK(kl_store_append_async(t->store, &entries[i], 1, &token, tell, &told[4 * i + repeat]));
        }
        CHECK_OK(kl_store_append(t->store, &entries[i], 1, &token));
    }
    REQUIRE(tally_await(&tally, COUNT(told)));
    check_told(told, COUNT(told));
    CHECK_LINE(t, order_place(t, 4), 0, ids, COUNT(ids));
}

static void count_told(void *ctx, kl_rc rc, const char *error)
{
    CHECK_INT(rc, KL_OK);
    CHECK_STR(error, "");
    tally_add(ctx, 1);
}

CLAIM(a_token_is_remembered_through_thousands_of_others)
{
    kl_entry first = make_entry(t, order_place(t, 1), "k", "first");
    kl_token token = make_token();
    CHECK_OK(kl_store_append(t->store, &first, 1, &token));
    finish(t, first.place, &first.id, KL_DONE, 0, NULL, NULL);
    int64_t others = (int64_t)test_ops(20000);
    struct tally tally = TALLY;
    for (int64_t i = 0; i < others; i++) {
        kl_entry entry = make_entry(t, order_place(t, 2), NULL, "x");
        kl_token other = make_token();
        CHECK_OK(kl_store_append_async(t->store, &entry, 1, &other, count_told, &tally));
    }
    REQUIRE(tally_await(&tally, others));
    BOTH_LIVES(t)
    {
        CHECK_OK(kl_store_append(t->store, &first, 1, &token));
        CHECK_LINE(t, first.place, 0, NULL, 0);
        CHECK_INT(counts_of(t, order_place(t, 2)).ready, others);
    }
}

CLAIM(appends_under_way_are_completed_before_close_returns)
{
    static struct told told[500];
    static kl_task_id ids[COUNT(told)];
    struct tally tally = TALLY;
    memset(told, 0, sizeof told);
    for (size_t i = 0; i < COUNT(told); i++) {
        kl_entry entry = make_entry(t, order_place(t, 4), "k", "x");
        ids[i] = entry.id;
        told[i].tally = &tally;
        CHECK_OK(kl_store_append_async(t->store, &entry, 1, NULL, tell, &told[i]));
    }
    if (next_life(t))
        CHECK_LINE(t, order_place(t, 4), 0, ids, COUNT(ids));
    else
        CHECK(start_over(t));
    CHECK_INT(tally_read(&tally), COUNT(told));
    check_told(told, COUNT(told));
}

/* Appends one task after the other, each from the report of the one before. */
struct chain {
    struct trial *t;
    kl_task_id ids[50];
    size_t appended;
    struct tally tally;
};

static void append_next(void *ctx, kl_rc rc, const char *error)
{
    struct chain *chain = ctx;
    CHECK_INT(rc, KL_OK);
    CHECK_STR(error, "");
    if (chain->appended < COUNT(chain->ids)) {
        kl_entry entry = make_entry(chain->t, order_place(chain->t, 4), "k", "next");
        chain->ids[chain->appended++] = entry.id;
        CHECK_OK(kl_store_append_async(chain->t->store, &entry, 1, NULL, append_next, chain));
    }
    tally_add(&chain->tally, 1);
}

CLAIM(a_report_may_append_more)
{
    struct chain chain = {.t = t, .tally = TALLY};
    append_next(&chain, KL_OK, "");
    REQUIRE(tally_await(&chain.tally, COUNT(chain.ids) + 1));
    CHECK_LINE(t, order_place(t, 4), 0, chain.ids, COUNT(chain.ids));
}

/* ---- What is refused ---- */

static char long_bytes[KL_PAYLOAD_BYTES_MAX + 1];

static kl_bytes long_text(size_t len)
{
    memset(long_bytes, 'x', sizeof long_bytes);
    return (kl_bytes){long_bytes, len};
}

static void never(void *ctx, kl_rc rc, const char *error)
{
    (void)ctx;
    test_fail(__FILE__, __LINE__, "a refused append was reported: %s (%s)", kl_rc_name(rc), error);
}

/* Refused alone, behind good entries, and without waiting; nothing is stored each time. */
static void check_refused_entry(struct trial *t, kl_entry bad)
{
    kl_entry entries[3] = {make_entry(t, order_place(t, 0), "k", "good"), make_entry(t, bill_place(t, 0), "k", "good"),
                           bad};
    CHECK_REFUSED(kl_store_append(t->store, &bad, 1, NULL));
    CHECK_REFUSED(kl_store_append(t->store, entries, 3, NULL));
    CHECK_REFUSED(kl_store_append_async(t->store, entries, 3, NULL, never, NULL));
    CHECK_INT(counts_of(t, whole(t->orders)).ready + counts_of(t, whole(t->bills)).ready, 0);
    CHECK_INT(counts_of(t, whole(t->orders)).due + counts_of(t, whole(t->bills)).due, 0);
}

CLAIM(an_entry_for_no_place_is_refused)
{
    kl_entry bad = make_entry(t, order_place(t, 4), "k", "x");
    bad.place.partition = 0;
    check_refused_entry(t, bad);
    bad.place.partition = t->orders + t->bills + 1;
    check_refused_entry(t, bad);
    bad.place = order_place(t, 16);
    check_refused_entry(t, bad);
    bad.place = order_place(t, KL_ALL_SHARDS);
    check_refused_entry(t, bad);
    bad = make_entry(t, bill_place(t, 255), "k", "x");
    bad.place.shard = 256;
    check_refused_entry(t, bad);
}

CLAIM(an_id_that_does_not_begin_with_its_shard_is_refused)
{
    kl_entry bad = make_entry(t, order_place(t, 4), "k", "x");
    bad.place.shard = 5;
    check_refused_entry(t, bad);
    bad = make_entry(t, bill_place(t, 0x45), "k", "x");
    bad.place.shard = 0x44;
    check_refused_entry(t, bad);
}

CLAIM(an_entry_out_of_range_is_refused)
{
    kl_entry good = make_entry(t, order_place(t, 4), "k", "x"), bad = good;
    bad.priority = KL_PRIORITY_MIN - 1;
    check_refused_entry(t, bad);
    bad.priority = KL_PRIORITY_MAX + 1;
    check_refused_entry(t, bad);
    bad = good;
    bad.due_ms = -1;
    check_refused_entry(t, bad);
    bad.due_ms = KL_ID_MS_MAX + 1;
    check_refused_entry(t, bad);
}

CLAIM(an_entry_with_too_long_a_part_is_refused)
{
    kl_entry good = make_entry(t, order_place(t, 4), "k", "x"), bad = good;
    bad.key = long_text(KL_KEY_BYTES_MAX + 1);
    check_refused_entry(t, bad);
    bad = good;
    bad.kind = long_text(KL_KIND_BYTES_MAX + 1);
    check_refused_entry(t, bad);
    bad = good;
    bad.headers = long_text(KL_HEADERS_BYTES_MAX + 1);
    check_refused_entry(t, bad);
    bad = good;
    bad.payload = long_text(KL_PAYLOAD_BYTES_MAX + 1);
    check_refused_entry(t, bad);
}

CLAIM(an_append_of_too_many_entries_is_refused)
{
    kl_entry *entries = malloc((KL_BATCH_MAX + 1) * sizeof *entries);
    REQUIRE(entries);
    for (size_t i = 0; i <= KL_BATCH_MAX; i++)
        entries[i] = make_entry(t, order_place(t, 4), NULL, "x");
    CHECK_REFUSED(kl_store_append(t->store, entries, KL_BATCH_MAX + 1, NULL));
    CHECK_INT(counts_of(t, order_place(t, 4)).ready, 0);
    free(entries);
}

CLAIM(an_append_takes_as_many_bytes_as_the_limit_says_and_no_more)
{
    kl_entry entries[9];
    for (int i = 0; i < 9; i++) {
        entries[i] = make_entry(t, order_place(t, 4), NULL, NULL);
        entries[i].payload = long_text(KL_PAYLOAD_BYTES_MAX);
    }
    entries[8].payload = kl_str("x");
    CHECK_REFUSED(kl_store_append(t->store, entries, 9, NULL));
    CHECK_INT(counts_of(t, order_place(t, 4)).ready, 0);
    CHECK_OK(kl_store_append(t->store, entries, 8, NULL));
    CHECK_INT(counts_of(t, order_place(t, 4)).ready, 8);
}

CLAIM(the_sentence_names_the_entry_that_is_refused)
{
    static kl_entry entries[1300];
    for (size_t i = 0; i < COUNT(entries); i++)
        entries[i] = make_entry(t, order_place(t, 4), NULL, "x");
    entries[1234].priority = 99;
    CHECK_REFUSED(kl_store_append(t->store, entries, COUNT(entries), NULL));
    CHECK_CONTAINS(kl_error_text(), "1234");
    CHECK_INT(counts_of(t, order_place(t, 4)).ready, 0);
}
