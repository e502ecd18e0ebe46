/* conformance_order.c - S1 and S2: what was appended is shown, in order, line by line and piece by piece. */
#include <stdlib.h>

#include "base/hash.h"
#include "base/random.h"
#include "store/calls.h"
#include "store/conformance.h"

CLAIM(a_line_is_empty_before_anything_is_appended)
{
    for (int32_t line = KL_PRIORITY_MIN; line <= KL_LINE_RETRY; line++)
        CHECK_LINE(t, order_place(t, 3), line, NULL, 0);
}

CLAIM(tasks_stand_in_the_order_of_their_appends)
{
    kl_task_id ids[300];
    append_many(t, order_place(t, 7), ids, COUNT(ids));
    BOTH_LIVES(t)
    CHECK_LINE(t, order_place(t, 7), 0, ids, COUNT(ids));
}

CLAIM(the_order_is_that_of_appends_and_not_of_ids)
{
    kl_entry entries[50];
    kl_task_id reversed[50];
    for (int i = 0; i < 50; i++)
        entries[i] = make_entry(t, order_place(t, 1), NULL, "x");
    for (int i = 0; i < 50; i++) {
        reversed[i] = entries[49 - i].id;
        append(t, &entries[49 - i], 1);
    }
    BOTH_LIVES(t)
    CHECK_LINE(t, order_place(t, 1), 0, reversed, 50);
}

/* The tasks of one shard, picked from entries in their order. */
static void check_picked(struct trial *t, kl_place place, const kl_entry *entries, size_t count)
{
    kl_task_id *ids = malloc((count + 1) * sizeof *ids);
    size_t picked = 0;
    for (size_t i = 0; ids && i < count; i++)
        if (entries[i].place.partition == place.partition && entries[i].place.shard == place.shard)
            ids[picked++] = entries[i].id;
    CHECK_LINE(t, place, 0, ids, picked);
    free(ids);
}

static void check_all_picked(struct trial *t, const kl_entry *entries, size_t count)
{
    for (uint32_t shard = 0; shard < 16; shard++)
        check_picked(t, order_place(t, shard), entries, count);
    for (uint32_t shard = 0; shard < 256; shard++)
        check_picked(t, bill_place(t, shard), entries, count);
}

/* Entries for both partitions and all of their shards, in random order. */
static void make_mixed(struct trial *t, uint64_t *random, kl_entry *ret_entries, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        kl_place place = kl__random_below(random, 2) ? order_place(t, (uint32_t)kl__random_below(random, 16))
                                                     : bill_place(t, (uint32_t)kl__random_below(random, 256));
        ret_entries[i] = make_entry(t, place, kl__random_below(random, 2) ? "a" : NULL, "mixed");
    }
}

CLAIM(entries_of_one_call_keep_their_order_in_each_of_its_shards)
{
    static kl_entry entries[2000];
    uint64_t random = test_seed();
    make_mixed(t, &random, entries, COUNT(entries));
    append(t, entries, COUNT(entries));
    BOTH_LIVES(t)
    check_all_picked(t, entries, COUNT(entries));
}

CLAIM(calls_of_one_thread_keep_their_order_in_each_of_their_shards)
{
    static kl_entry entries[2000];
    uint64_t random = test_seed();
    make_mixed(t, &random, entries, COUNT(entries));
    for (size_t at = 0, count; at < COUNT(entries); at += count) {
        count = 1 + kl__random_below(&random, 40);
        count = count < COUNT(entries) - at ? count : COUNT(entries) - at;
        append(t, entries + at, count);
    }
    BOTH_LIVES(t)
    check_all_picked(t, entries, COUNT(entries));
}

CLAIM(tasks_of_other_shards_and_partitions_are_not_shown)
{
    kl_task_id order = append_one(t, order_place(t, 5), "order"), bill = append_one(t, bill_place(t, 5), "bill");
    CHECK_LINE(t, order_place(t, 5), 0, &order, 1);
    CHECK_LINE(t, bill_place(t, 5), 0, &bill, 1);
    CHECK_LINE(t, order_place(t, 4), 0, NULL, 0);
    CHECK_LINE(t, bill_place(t, 0x50), 0, NULL, 0);
}

CLAIM(positions_are_not_used_again)
{
    uint64_t last = 0;
    kl_place place = order_place(t, 9);
    for (int round = 0; round < 4; round++) {
        kl_task_id id = append_one(t, place, "one at a time");
        kl_settled done = outcome_of(t, place, &id, KL_DONE);
        CHECK(done.position > last);
        last = done.position;
        CHECK_OK(settle(t, place, 0, &done, 1));
        if (round % 2)
            (void)next_life(t);
    }
}

/* ---- Stubs ---- */

static void check_stub(struct trial *t, const kl_entry *entry, int32_t line)
{
    kl_stub stub = {0};
    CHECK_INT(find_stub(t, entry->place, &entry->id, &stub), line);
    CHECK(stub.position > 0);
    CHECK_INT(stub.due_ms, entry->due_ms);
    CHECK_INT(stub.bytes, entry->key.len + entry->kind.len + entry->headers.len + entry->payload.len);
    CHECK_INT(stub.attempts, 0);
    CHECK_INT(stub.priority, entry->priority);
    uint64_t hash = entry->key.len ? kl__hash(entry->key, KL_SEED_LANE) : 0;
    if (entry->key.len && hash == 0)
        hash = 1;
    CHECK(stub.key_hash == (can(t, KL_STORE_KEY_HASH) ? hash : 0));
    CHECK_INT(stub.group, can(t, KL_STORE_GROUP) ? entry->group : 0);
}

CLAIM(a_stub_tells_all_but_the_bytes)
{
    kl_entry entries[4] = {
        make_entry(t, order_place(t, 0), "customer-7", "payload"),
        make_entry(t, order_place(t, 15), NULL, NULL),
        make_entry(t, bill_place(t, 255), "k", "delayed"),
        make_entry(t, bill_place(t, 16), "urgent", "first"),
    };
    entries[0].kind = kl_str("mail");
    entries[0].headers = kl_str("a: b\n");
    entries[2].due_ms = START_MS + 5000;
    entries[2].priority = 3;
    entries[3].priority = KL_PRIORITY_MIN;
    entries[1].group = UINT16_MAX;
    entries[2].group = 1;
    entries[3].group = 0x8000;
    append(t, entries, COUNT(entries));
    BOTH_LIVES(t)
    {
        check_stub(t, &entries[0], 0);
        check_stub(t, &entries[1], 0);
        check_stub(t, &entries[2], KL_LINE_DUE);
        check_stub(t, &entries[3], KL_PRIORITY_MIN);
    }
}

CLAIM(tasks_of_one_key_share_a_hash_and_others_do_not)
{
    kl_entry entries[3] = {make_entry(t, order_place(t, 0), "a", "1"), make_entry(t, order_place(t, 0), "a", "2"),
                           make_entry(t, order_place(t, 0), "b", "3")};
    append(t, entries, COUNT(entries));
    kl_stub stubs[3];
    for (int i = 0; i < 3; i++)
        stubs[i] = stub_of(t, entries[i].place, &entries[i].id);
    CHECK(stubs[0].key_hash == stubs[1].key_hash);
    CHECK(stubs[0].key_hash != stubs[2].key_hash || !can(t, KL_STORE_KEY_HASH));
}

CLAIM(a_task_keeps_its_group_through_its_tries_and_its_end)
{
    enum { TASKS = 4 };
    static const uint16_t groups[TASKS] = {0, 1, 0xa5c3, UINT16_MAX};
    kl_entry entries[TASKS];
    for (int i = 0; i < TASKS; i++) {
        entries[i] = make_entry(t, order_place(t, 2), i % 2 ? "k" : NULL, "x");
        entries[i].group = groups[i];
    }
    append(t, entries, TASKS);
    for (int i = 0; i < TASKS; i++) {
        kl_settled retry = outcome_of(t, entries[i].place, &entries[i].id, KL_RETRY);
        CHECK_OK(settle(t, entries[i].place, 0, &retry, 1));
    }
    BOTH_LIVES(t)
    for (int i = 0; i < TASKS; i++) {
        CHECK_INT(stub_of(t, entries[i].place, &entries[i].id).group, can(t, KL_STORE_GROUP) ? groups[i] : 0);
        CHECK_INT(read_one(t, entries[i].place, &entries[i].id).entry.group, groups[i]);
    }
    for (int i = 0; i < TASKS; i++)
        finish(t, entries[i].place, &entries[i].id, i % 2 ? KL_DONE : KL_DEAD, KEEP_MS, NULL, NULL);
    BOTH_LIVES(t)
    for (int i = 0; i < TASKS; i++) {
        kl_task task = read_one(t, entries[i].place, &entries[i].id);
        CHECK(task.state == KL_TASK_DONE || task.state == KL_TASK_DEAD);
        CHECK_INT(task.entry.group, groups[i]);
    }
}

/* ---- In pieces ---- */

CLAIM(a_line_read_in_pieces_is_the_same_line)
{
    kl_task_id ids[100];
    kl_place place = order_place(t, 2);
    append_many(t, place, ids, COUNT(ids));
    static const size_t pieces[] = {1, 2, 7, 50, 99, 100, 101};
    for (size_t i = 0; i < COUNT(pieces); i++) {
        size_t count;
        kl_stub *stubs = scan_pieces(t, &(kl_scan){.place = place}, pieces[i], &count);
        CHECK_INT(count, COUNT(ids));
        for (size_t j = 0; j < count && j < COUNT(ids); j++)
            CHECK_ID(stubs[j].id, ids[j]);
    }
}

CLAIM(a_scan_shows_as_many_as_asked_while_the_line_goes_on)
{
    kl_task_id ids[10];
    kl_stub stubs[10];
    size_t count = 0;
    append_many(t, order_place(t, 2), ids, COUNT(ids));
    CHECK_OK(scan_one(t->store, &(kl_scan){.place = order_place(t, 2), .max = 4}, stubs, &count));
    REQUIRE(count == 4);
    CHECK_ID(stubs[3].id, ids[3]);
    kl_scan rest = {.place = order_place(t, 2), .after = &stubs[3], .max = 10};
    CHECK_OK(scan_one(t->store, &rest, stubs + 4, &count));
    CHECK_INT(count, 6);
    rest.after = &stubs[9];
    CHECK_OK(scan_one(t->store, &rest, stubs, &count));
    CHECK_INT(count, 0);
}

/* Settles the fifth task of a line of ten, and its neighbours, while the line is read behind it. */
static void check_gone_after(struct trial *t, kl_place place, int32_t line, const kl_task_id *ids)
{
    kl_scan scan = {.place = place, .line = line, .until_ms = KL_ID_MS_MAX, .max = 5};
    kl_stub stubs[10];
    kl_settled done[3];
    size_t count = 0;
    CHECK_OK(scan_one(t->store, &scan, stubs, &count));
    REQUIRE(count == 5);
    for (int i = 0; i < 3; i++)
        done[i] = outcome_of(t, place, &ids[3 + i], KL_DONE);
    CHECK_OK(settle(t, place, 0, done, COUNT(done)));
    scan.after = &stubs[4];
    scan.max = 10;
    BOTH_LIVES(t)
    {
        kl_stub rest[10];
        CHECK_OK(scan_one(t->store, &scan, rest, &count));
        CHECK_INT(count, 4);
        for (size_t i = 0; i < count && i < 4; i++)
            CHECK_ID(rest[i].id, ids[6 + i]);
    }
}

CLAIM(a_ready_line_goes_on_behind_a_task_that_is_gone)
{
    kl_task_id ids[10];
    append_many(t, order_place(t, 2), ids, COUNT(ids));
    check_gone_after(t, order_place(t, 2), 0, ids);
}

CLAIM(the_due_line_goes_on_behind_a_task_that_is_gone)
{
    kl_entry entries[10];
    kl_task_id ids[10];
    for (int i = 0; i < 10; i++) {
        entries[i] = make_entry(t, order_place(t, 2), "k", "later");
        entries[i].due_ms = START_MS + i / 3; /* with ties around the one that goes */
        ids[i] = entries[i].id;
    }
    append(t, entries, COUNT(entries));
    check_gone_after(t, order_place(t, 2), KL_LINE_DUE, ids);
}

CLAIM(the_retry_line_goes_on_behind_a_task_that_is_gone)
{
    kl_task_id ids[10];
    kl_settled retries[10];
    kl_place place = order_place(t, 2);
    append_many(t, place, ids, COUNT(ids));
    for (int i = 0; i < 10; i++) {
        retries[i] = outcome_of(t, place, &ids[i], KL_RETRY);
        retries[i].due_ms = START_MS + 100 - 7 * i; /* which does not order this line */
    }
    CHECK_OK(settle(t, place, 0, retries, COUNT(retries)));
    check_gone_after(t, place, KL_LINE_RETRY, ids);
}

CLAIM(a_task_that_moved_to_the_retry_line_can_still_be_read_behind)
{
    kl_task_id ids[6];
    kl_stub stubs[6];
    size_t count = 0;
    kl_scan scan = {.place = order_place(t, 2), .max = 3};
    append_many(t, scan.place, ids, COUNT(ids));
    CHECK_OK(scan_one(t->store, &scan, stubs, &count));
    REQUIRE(count == 3);
    kl_settled retry = next_attempt(&stubs[2], KL_RETRY);
    CHECK_OK(settle(t, scan.place, 0, &retry, 1));
    scan.after = &stubs[2];
    CHECK_OK(scan_one(t->store, &scan, stubs + 3, &count));
    REQUIRE(count == 3);
    for (int i = 3; i < 6; i++)
        CHECK_ID(stubs[i].id, ids[i]);
}

CLAIM(a_task_appended_while_a_line_is_read_is_shown_later)
{
    kl_task_id ids[21];
    kl_place place = order_place(t, 2);
    append_many(t, place, ids, 20);
    size_t count, got, seen = 0;
    kl_stub stubs[30];
    kl_scan scan = {.place = place, .max = 10};
    CHECK_OK(scan_one(t->store, &scan, stubs, &count));
    REQUIRE(count == 10);
    ids[20] = append_one(t, place, "meanwhile");
    scan.after = &stubs[9];
    scan.max = 20;
    CHECK_OK(scan_one(t->store, &scan, stubs + 10, &got));
    REQUIRE(got == 10 || got == 11);
    for (size_t i = 0; i < 10 + got; i++, seen++)
        CHECK_ID(stubs[i].id, ids[i]);
    CHECK_INT(seen, 10 + got);
    CHECK_LINE(t, place, 0, ids, 21);
}

/* ---- The due line ---- */

CLAIM(delayed_tasks_stand_by_due_time_and_then_by_position)
{
    static const int64_t due[] = {500, 100, 300, 100, 1, 300, 100, KL_ID_MS_MAX - START_MS};
    static const int order[] = {4, 1, 3, 6, 2, 5, 0, 7};
    kl_entry entries[COUNT(due)];
    kl_task_id ids[COUNT(due)];
    for (size_t i = 0; i < COUNT(due); i++) {
        entries[i] = make_entry(t, bill_place(t, 77), "k", "later");
        entries[i].due_ms = START_MS + due[i];
        append(t, &entries[i], 1);
    }
    for (size_t i = 0; i < COUNT(due); i++)
        ids[i] = entries[order[i]].id;
    BOTH_LIVES(t)
    {
        CHECK_LINE(t, bill_place(t, 77), KL_LINE_DUE, ids, COUNT(ids));
        CHECK_LINE(t, bill_place(t, 77), 0, NULL, 0);
        size_t count;
        kl_scan scan = {.place = bill_place(t, 77), .line = KL_LINE_DUE, .until_ms = KL_ID_MS_MAX};
        kl_stub *stubs = scan_pieces(t, &scan, 2, &count); /* pieces end between ties */
        REQUIRE(count == COUNT(ids));
        for (size_t i = 0; i < count; i++)
            CHECK_ID(stubs[i].id, ids[i]);
    }
}

CLAIM(the_due_line_ends_at_the_time_asked_for)
{
    kl_entry entries[5];
    for (int i = 0; i < 5; i++) {
        entries[i] = make_entry(t, order_place(t, 2), "k", "later");
        entries[i].due_ms = START_MS + 10 * i;
    }
    append(t, entries, COUNT(entries));
    static const struct {
        int64_t until;
        size_t shown;
    } cases[] = {{-1, 0}, {0, 1}, {9, 1}, {10, 2}, {19, 2}, {40, 5}, {1000, 5}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        kl_scan scan = {.place = order_place(t, 2), .line = KL_LINE_DUE, .until_ms = START_MS + cases[i].until};
        size_t count;
        kl_stub *stubs = scan_pieces(t, &scan, 2, &count);
        CHECK_INT(count, cases[i].shown);
        for (size_t j = 0; j < count && j < 5; j++)
            CHECK_ID(stubs[j].id, entries[j].id);
    }
}

CLAIM(a_delayed_task_stays_in_the_due_line_when_it_is_due)
{
    kl_entry entry = make_entry(t, order_place(t, 2), "k", "long since due");
    entry.due_ms = 1;
    append(t, &entry, 1);
    CHECK_LINE(t, entry.place, KL_LINE_DUE, &entry.id, 1);
    CHECK_LINE(t, entry.place, 0, NULL, 0);
}

/* ---- Priorities ---- */

CLAIM(each_priority_has_a_line_of_its_own)
{
    kl_task_id ids[32][3];
    kl_place place = order_place(t, 2);
    for (int round = 0; round < 3; round++)
        for (int p = 0; p < 32; p++) {
            kl_entry entry = make_entry(t, place, "k", "x");
            entry.priority = KL_PRIORITY_MIN + p;
            ids[p][round] = entry.id;
            append(t, &entry, 1);
        }
    BOTH_LIVES(t)
    for (int p = 0; p < 32; p++)
        CHECK_LINE(t, place, KL_PRIORITY_MIN + p, ids[p], 3);
}

CLAIM(a_delayed_task_with_a_priority_stands_in_the_due_line_alone)
{
    kl_entry entry = make_entry(t, order_place(t, 2), "k", "x");
    entry.priority = -4;
    entry.due_ms = START_MS + 1;
    append(t, &entry, 1);
    BOTH_LIVES(t)
    {
        CHECK_INT(line_of(t, entry.place, &entry.id), KL_LINE_DUE);
        CHECK_INT(stub_of(t, entry.place, &entry.id).priority, -4);
    }
}

/* ---- As much as fits ---- */

CLAIM(a_call_takes_and_shows_as_many_tasks_as_the_limit_says)
{
    kl_entry *entries = malloc(KL_BATCH_MAX * sizeof *entries);
    kl_stub *stubs = malloc(KL_BATCH_MAX * sizeof *stubs);
    size_t count = 0, wrong = 0;
    if (entries && stubs) {
        for (size_t i = 0; i < KL_BATCH_MAX; i++)
            entries[i] = make_entry(t, order_place(t, 11), NULL, "x");
        append(t, entries, KL_BATCH_MAX);
        kl_scan scan = {.place = order_place(t, 11), .max = KL_BATCH_MAX};
        CHECK_OK(scan_one(t->store, &scan, stubs, &count));
        CHECK_INT(count, KL_BATCH_MAX);
        for (size_t i = 0; i < count; i++)
            wrong += !same_id(&stubs[i].id, &entries[i].id) || (i && stubs[i].position <= stubs[i - 1].position);
    }
    CHECK_INT(wrong, 0);
    free(entries);
    free(stubs);
}
