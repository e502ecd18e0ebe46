/* test_pg_append.c - appends of several threads on one handle, which become one transaction where they come at the same
 * time (append_group.c); and which lines a partition uses. Part of test-conformance-postgres. */
#include <stdio.h>
#include <stdlib.h>

#include "store/conformance.h"
#include "store/pg_trial.h"
#include "store/quick.h"

enum { THREADS = 6, EACH = 30 };

/* A thread that appends to one shard, now and then twice under one token. */
struct appender {
    struct trial *t;
    kl_place place;
    kl_task_id ids[EACH];
    kl_rc rcs[EACH], again[EACH];
    size_t wrong_texts; /* refusals that do not name the shard */
    pthread_t thread;
};

static void *append_all(void *ctx)
{
    struct appender *appender = ctx;
    char name[32];
    snprintf(name, sizeof name, "shard %u of", appender->place.shard);
    for (int i = 0; i < EACH; i++) {
        kl_token token = make_token();
        kl_entry entries[3];
        size_t count = i % 3 == 2 ? 3 : 1;
        for (size_t j = 0; j < count; j++)
            entries[j] = make_entry(appender->t, appender->place, "k", "x");
        appender->ids[i] = entries[0].id;
        appender->rcs[i] = kl_store_append(appender->t->store, entries, count, &token);
        if (appender->rcs[i] != KL_OK && !strstr(kl_error_text(), name))
            appender->wrong_texts++;
        appender->again[i] =
            i % 5 == 0 ? kl_store_append(appender->t->store, entries, count, &token) : appender->rcs[i];
    }
    return NULL;
}

static void append_at_once(struct trial *t, struct appender *appenders)
{
    for (uint32_t i = 0; i < THREADS; i++) {
        appenders[i] = (struct appender){.t = t, .place = order_place(t, i / 2)};
        if (pthread_create(&appenders[i].thread, NULL, append_all, &appenders[i]) != 0)
            abort();
    }
    for (uint32_t i = 0; i < THREADS; i++)
        pthread_join(appenders[i].thread, NULL);
}

/* The positions of a thread's tasks ascend as it made its calls. */
static void check_order(struct trial *t, const struct appender *appender)
{
    uint64_t last = 0;
    for (int i = 0; i < EACH; i++) {
        kl_stub stub = stub_of(t, appender->place, &appender->ids[i]);
        CHECK(stub.position > last);
        last = stub.position;
    }
}

CLAIM(appends_of_threads_at_once_are_each_stored_once_and_in_order)
{
    static struct appender appenders[THREADS];
    append_at_once(t, appenders);
    for (uint32_t i = 0; i < THREADS; i++) {
        for (int j = 0; j < EACH; j++) {
            CHECK_OK(appenders[i].rcs[j]);
            CHECK_OK(appenders[i].again[j]);
        }
        check_order(t, &appenders[i]);
    }
    CHECK_INT(counts_of(t, whole(t->orders)).ready, THREADS * (EACH / 3 * 5));
}

CLAIM(a_sealed_shard_refuses_its_own_appends_and_no_others_that_come_with_them)
{
    static struct appender appenders[THREADS];
    CHECK_OK(seal(t, order_place(t, 1), 0));
    append_at_once(t, appenders);
    for (uint32_t i = 0; i < THREADS; i++)
        for (int j = 0; j < EACH; j++) {
            CHECK_INT(appenders[i].rcs[j], i / 2 == 1 ? KL_ESEALED : KL_OK);
            CHECK_INT(appenders[i].again[j], appenders[i].rcs[j]);
        }
    CHECK_INT(appenders[2].wrong_texts + appenders[3].wrong_texts, 0);
    CHECK_INT(counts_of(t, whole(t->orders)).ready, (THREADS - 2) * (EACH / 3 * 5));
}

/* Of 256 shards, more than a sentence has room for. */
CLAIM(of_many_sealed_shards_the_first_entry_for_one_is_named)
{
    enum { FIRST = 100, SHARDS = 256 };
    kl_entry entries[SHARDS - FIRST + 1];
    kl_token token = make_token();
    for (uint32_t i = FIRST; i < SHARDS; i++) {
        CHECK_OK(seal(t, bill_place(t, i), 0));
        entries[i - FIRST + 1] = make_entry(t, bill_place(t, i), "k", "x");
    }
    entries[0] = make_entry(t, bill_place(t, 0), "k", "x");
    entries[1] = make_entry(t, bill_place(t, SHARDS - 1), "k", "x");
    CHECK_RC(kl_store_append(t->store, entries, COUNT(entries), &token), KL_ESEALED);
    CHECK_CONTAINS(kl_error_text(), "entry 1: shard 255 of");
    CHECK_RC(kl_store_append(t->store, entries, COUNT(entries), NULL), KL_ESEALED);
    CHECK_CONTAINS(kl_error_text(), "entry 1: shard 255 of");
}

/* Waiting for the disk is cancelled, once. */
static void cancel_flush(const struct trial *t, bool cancels)
{
    run_there(t, "CREATE SEQUENCE IF NOT EXISTS $S.test_flushes; ALTER SEQUENCE $S.test_flushes RESTART");
    run_there(t, cancels
                     ? "DO $x$ BEGIN EXECUTE replace(pg_get_functiondef('$S.flush'::regproc), 'BEGIN', 'BEGIN"
                       " IF nextval(''$S.test_flushes'') = 1 THEN RAISE USING ERRCODE = ''57014''; END IF;'); END $x$"
                     : "DO $x$ BEGIN EXECUTE replace(pg_get_functiondef('$S.flush'::regproc),"
                       " 'IF nextval(''$S.test_flushes'') = 1 THEN RAISE USING ERRCODE = ''57014''; END IF;', ''); END"
                       " $x$; DROP SEQUENCE $S.test_flushes");
}

/* Somebody else draws a number, too, and it is noticed: so the next call is committed early. */
static void share(struct trial *t)
{
    run_there(t, "SELECT nextval('$S.positions')");
    append_one(t, order_place(t, 5), "x");
}

/* It is committed, so that it may have been run by the time that it would be made again. */
CLAIM(what_is_committed_and_not_known_to_be_on_disk_is_made_again_only_under_its_token)
{
    enum { BATCH = 20 };
    kl_entry entries[2 * BATCH];
    kl_token token = make_token();
    for (size_t i = 0; i < COUNT(entries); i++)
        entries[i] = make_entry(t, order_place(t, 4), "k", "x");
    cancel_flush(t, true);
    share(t);
    CHECK_RC(kl_store_append(t->store, entries, BATCH, NULL), KL_EBUSY);
    CHECK_INT(number_there(t, "SELECT last_value FROM $S.test_flushes"), 1);
    run_there(t, "ALTER SEQUENCE $S.test_flushes RESTART");
    share(t);
    CHECK_OK(kl_store_append(t->store, entries + BATCH, BATCH, &token));
    CHECK(number_there(t, "SELECT last_value FROM $S.test_flushes") > 1);
    cancel_flush(t, false);
    CHECK_INT(counts_of(t, order_place(t, 4)).ready, 2 * BATCH);
}

/* A call so large that its rows get several numbers. */
CLAIM(a_line_that_fills_rows_keeps_its_order_beside_others)
{
    enum { LINES = 3, TASKS = 300 };
    static kl_entry entries[TASKS];
    static kl_task_id ids[LINES][TASKS];
    static char bytes[1000];
    size_t counts[LINES] = {0};
    kl_token token = make_token();
    memset(bytes, 'x', sizeof bytes - 1);
    for (uint32_t i = 0; i < TASKS; i++) {
        uint32_t line = i % 7 == 0 ? 1 : i % 11 == 0 ? 2 : 0;
        entries[i] = make_entry(t, order_place(t, line), "k", line == 0 ? bytes : "x");
        ids[line][counts[line]++] = entries[i].id;
    }
    CHECK_OK(kl_store_append(t->store, entries, TASKS, &token));
    for (uint32_t line = 0; line < LINES; line++)
        CHECK_LINE(t, order_place(t, line), 0, ids[line], counts[line]);
}

CLAIM(the_largest_append_is_stored_whole_and_once)
{
    static kl_entry entries[KL_BATCH_MAX];
    kl_token token = make_token();
    kl_task_id job = make_id(t, order_place(t, 0), kl_str(NULL));
    for (uint32_t i = 0; i < KL_BATCH_MAX; i++) {
        entries[i] = make_entry(t, order_place(t, i % 16), "k", "x");
        entries[i].group = (uint16_t)(i % 1000);
        if (i % 2)
            entries[i].job = job;
    }
    for (int repeat = 0; repeat < 2; repeat++)
        CHECK_OK(kl_store_append(t->store, entries, KL_BATCH_MAX, &token));
    CHECK_INT(rows_of(t, "tasks"), KL_BATCH_MAX);
    for (size_t i = 1; i < KL_BATCH_MAX; i += KL_BATCH_MAX / 8) {
        kl_task task = read_one(t, entries[i].place, &entries[i].id);
        CHECK_INT(task.state, KL_TASK_WAITING);
        CHECK_ENTRY(&task.entry, &entries[i]);
    }
}

CLAIM(lines_in_use_are_told_without_counting)
{
    uint32_t lines = 1;
    CHECK(kl__store_has_lines(t->store));
    CHECK_OK(kl__store_lines(t->store, t->orders, &lines));
    CHECK_INT(lines, 0);
    kl_entry entries[] = {make_entry(t, order_place(t, 3), "k", "x"), make_entry(t, order_place(t, 15), "k", "x"),
                          make_entry(t, order_place(t, 7), "k", "x"), make_entry(t, bill_place(t, 0), "k", "x")};
    entries[0].priority = KL_PRIORITY_MIN;
    entries[1].priority = KL_PRIORITY_MAX;
    entries[2].due_ms = START_MS;
    append(t, entries, COUNT(entries));
    CHECK_OK(kl__store_lines(t->store, t->orders, &lines));
    CHECK_INT(lines, UINT32_C(1) | UINT32_C(1) << (KL_PRIORITY_MAX - KL_PRIORITY_MIN));
    CHECK_OK(kl__store_lines(t->store, t->bills, &lines));
    CHECK_INT(lines, UINT32_C(1) << -KL_PRIORITY_MIN);
    CHECK_REFUSED(kl__store_lines(t->store, 99, &lines));
}
