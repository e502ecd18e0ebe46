/* test_pg_upkeep.c - what is settled is cleared away, and nothing else (sql_upkeep.c). Part of
 * test-conformance-postgres. */
#include <stdlib.h>

#include "store/calls.h"
#include "store/pg_server.h"
#include "store/pg_trial.h"

/* Clears away as the store's own thread does, but without waiting for anything to become old or large. */
static void tidy(const struct trial *t)
{
    char sql[256];
    snprintf(sql, sizeof sql, "SELECT %s.upkeep_segments(0, 0, 0); SELECT %s.upkeep(100, 100, 1000)", schema_of(t),
             schema_of(t));
    pg_server_run(sql);
}

static bool rows_become(const struct trial *t, long long entries, long long settled)
{
    tidy(t);
    return rows_of(t, "tasks") == entries && rows_of(t, "settled") == settled;
}

CLAIM(a_segment_is_emptied_when_all_of_it_is_settled)
{
    kl_task_id ids[40];
    append_many(t, order_place(t, 4), ids, COUNT(ids));
    for (size_t i = 0; i < COUNT(ids); i++)
        finish(t, order_place(t, 4), &ids[i], KL_DONE, 0, NULL, NULL);
    AWAIT(rows_become(t, 0, 0));
    for (int i = 1; i <= 2; i++) {
        char sql[256];
        snprintf(sql, sizeof sql, "SELECT pg_relation_size('%s.entries_%d') + pg_relation_size('%s.settled_%d')",
                 schema_of(t), i, schema_of(t), i);
        CHECK_INT(pg_server_number(sql), 0);
    }
}

/* Fills more than 1 MB, and settles all but `left`. */
static void fill_and_settle(struct trial *t, size_t left, kl_task_id *ret_last)
{
    enum { TASKS = 800, BATCH = 100 };
    static char payload[2001];
    static kl_stub stubs[TASKS];
    static kl_settled done[TASKS];
    kl_entry entries[BATCH];
    size_t count = 0;
    memset(payload, 'x', sizeof payload - 1);
    for (size_t i = 0; i < TASKS; i += BATCH) {
        kl_token token = make_token();
        for (size_t j = 0; j < BATCH; j++)
            entries[j] = make_entry(t, order_place(t, 4), "k", payload);
        CHECK_OK(kl_store_append(t->store, entries, BATCH, &token));
    }
    CHECK_OK(scan_one(t->store, &(kl_scan){.place = order_place(t, 4), .max = TASKS}, stubs, &count));
    REQUIRE(count == TASKS);
    for (size_t i = 0; i < TASKS; i++)
        done[i] = next_attempt(&stubs[i], KL_DONE);
    CHECK_OK(settle(t, order_place(t, 4), 0, done, TASKS - left));
    *ret_last = stubs[TASKS - 1].id;
}

/* With one from before a lock was waited for, what was put meanwhile would be taken for settled. */
CLAIM(nothing_is_cleared_away_with_an_old_snapshot)
{
    static const char *const calls[] = {"upkeep(100, 100, 1000)", "upkeep_segments(0, 0, 0)", "upkeep_last(0)",
                                        "upkeep_tokens(0)", "inbox_look('\\x61', 0)"};
    PGconn *conn = pg_server_connect();
    for (size_t i = 0; i < COUNT(calls); i++) {
        char sql[192];
        snprintf(sql, sizeof sql, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1; SELECT %s.%s", schema_of(t),
                 calls[i]);
        PQclear(PQexec(conn, sql));
        CHECK_CONTAINS(PQerrorMessage(conn), "needs the isolation level read committed");
        PQclear(PQexec(conn, "ROLLBACK"));
    }
    PQfinish(conn);
}

CLAIM(whoever_worked_and_ends_empties_what_is_all_settled)
{
    kl_task_id last;
    fill_and_settle(t, 0, &last);
    CHECK(rows_of(t, "entries") > 0);
    REQUIRE(next_life(t));
    CHECK_INT(rows_of(t, "entries"), 0);
    CHECK_INT(rows_of(t, "settled"), 0);
    fill_and_settle(t, 1, &last);
    REQUIRE(next_life(t));
    CHECK(rows_of(t, "entries") > 0);
    CHECK_LINE(t, order_place(t, 4), 0, &last, 1);
}

/* Appends wait from the first try to the last. */
CLAIM(whoever_ends_does_not_try_again_and_again_to_empty_the_segment_that_is_in_use)
{
    kl_task_id ids[20];
    char sql[256];
    PGconn *reader = pg_server_connect();
    append_many(t, order_place(t, 4), ids, COUNT(ids));
    for (size_t i = 0; i < COUNT(ids); i++)
        finish(t, order_place(t, 4), &ids[i], KL_DONE, 0, NULL, NULL);
    snprintf(sql, sizeof sql, "BEGIN; SELECT count(*) FROM %s.entries", schema_of(t));
    PQclear(PQexec(reader, sql));
    run_there(t, "CREATE SEQUENCE $S.pauses MINVALUE 0");
    run_there(t, "DO $x$ BEGIN EXECUTE replace(pg_get_functiondef('$S.empty_tables'::regproc), 'pg_sleep(0.05)',"
                 " 'nextval(''$S.pauses'')'); END $x$");
    run_there(t, "SELECT $S.upkeep_last(1)");
    CHECK_INT(number_there(t, "SELECT last_value + is_called::int FROM $S.pauses"), 0);
    CHECK_INT(number_there(t, "SELECT $S.empty_tables(ARRAY['entries_1'], 3)::int"), 0);
    CHECK_INT(number_there(t, "SELECT last_value + is_called::int FROM $S.pauses"), 2);
    PQfinish(reader);
    run_there(t, "SELECT $S.upkeep_last(1)");
    AWAIT(rows_become(t, 0, 0));
}

CLAIM(what_is_left_over_in_a_segment_moves_and_keeps_its_place_in_line)
{
    kl_task_id ids[40], left[3];
    append_many(t, order_place(t, 4), ids, COUNT(ids));
    for (size_t i = 0; i < COUNT(ids); i++)
        if (i % 13 != 1)
            finish(t, order_place(t, 4), &ids[i], KL_DONE, 0, NULL, NULL);
        else
            left[i / 13] = ids[i];
    AWAIT(rows_become(t, COUNT(left), 0));
    CHECK_INT(rows_of(t, "entries_0"), COUNT(left));
    CHECK_LINE(t, order_place(t, 4), 0, left, COUNT(left));
    BOTH_LIVES(t)
    CHECK_INT(read_one(t, order_place(t, 4), &left[1]).state, KL_TASK_WAITING);
    finish(t, order_place(t, 4), &left[1], KL_DEAD, 1000, "no", NULL);
    CHECK_INT(read_one(t, order_place(t, 4), &left[1]).state, KL_TASK_DEAD);
    append_many(t, order_place(t, 4), ids, 1);
    left[1] = left[2];
    left[2] = ids[0];
    CHECK_LINE(t, order_place(t, 4), 0, left, COUNT(left));
    for (size_t i = 0; i < COUNT(left); i++)
        finish(t, order_place(t, 4), &left[i], KL_DONE, 0, NULL, NULL);
    AWAIT(rows_become(t, 0, 0));
}

CLAIM(whoever_reads_a_segment_for_long_delays_its_emptying_and_nothing_else)
{
    char sql[256];
    kl_task_id ids[20], more[5];
    PGconn *reader = pg_server_connect();
    append_many(t, order_place(t, 4), ids, COUNT(ids));
    snprintf(sql, sizeof sql, "BEGIN; SELECT count(*) FROM %s.entries", schema_of(t));
    PQclear(PQexec(reader, sql));
    for (size_t i = 0; i < COUNT(ids); i++)
        finish(t, order_place(t, 4), &ids[i], KL_DONE, 0, NULL, NULL);
    for (int i = 0; i < 3; i++)
        tidy(t);
    CHECK_INT(rows_of(t, "tasks"), COUNT(ids));
    append_many(t, order_place(t, 4), more, COUNT(more));
    CHECK_LINE(t, order_place(t, 4), 0, more, COUNT(more));
    PQfinish(reader);
    AWAIT(rows_become(t, COUNT(more), 0));
}

/* As settles of one task each leave it. Compared one with another, this would take minutes. */
CLAIM(many_small_settles_are_cleared_away_in_bounded_time)
{
    enum { ROWS = 30000, PATIENCE = 30 };
    char sql[1024];
    kl_counts counts;
    kl_task_id id;
    append_many(t, order_place(t, 4), &id, 1); /* moves to segment 0 */
    snprintf(
        sql, sizeof sql,
        "INSERT INTO %s.entries (partition, slot, last, number, tasks, segment)"
        " SELECT %u, 4 * 64 + 16, (n::bigint << 24) + 80, 1, %s.pack(0, md5(n::text)::uuid, NULL, NULL, NULL, NULL),"
        " 1 FROM generate_series(1, %d) n;"
        "INSERT INTO %s.settled (partition, shard, first, last, segment, positions)"
        " SELECT partition, 4, last, last, 1, ARRAY[last] FROM %s.entries_1 WHERE last & 16777215 = 80;"
        "ANALYZE %s.entries_1, %s.settled_1",
        schema_of(t), t->orders, schema_of(t), ROWS, schema_of(t), schema_of(t), schema_of(t), schema_of(t));
    pg_server_run(sql);
    snprintf(sql, sizeof sql, "SET statement_timeout = '%ds'", PATIENCE);
    pg_server_run(sql);
    snprintf(sql, sizeof sql, "SELECT ready FROM %s.counts(%u, 0, 255, false)", schema_of(t), t->orders);
    CHECK_INT(pg_server_number(sql), 1);
    AWAIT(rows_become(t, 1, 0));
    CHECK_INT(rows_of(t, "entries_0"), 1);
    pg_server_run("RESET statement_timeout");
    CHECK_OK(kl_store_counts(t->store, order_place(t, 4), NULL, &counts));
    CHECK_INT(counts.ready, 1);
}

/* A segment without rows stays closed, and in use the other one. */
static bool all_go(const struct trial *t)
{
    char sql[128];
    snprintf(sql, sizeof sql, "SELECT %s.upkeep_segments(0, 0, 1)", schema_of(t));
    pg_server_run(sql);
    return rows_of(t, "tasks") == 0 && rows_of(t, "settled") == 0;
}

/* An append that read long ago which segment is in use comes when that has been emptied. */
CLAIM(an_append_that_comes_late_does_not_keep_its_segment_from_being_emptied_again)
{
    char sql[512];
    kl_task_id ids[5], late_id = make_id(t, order_place(t, 9), kl_str(NULL));
    char hex[2 * sizeof late_id.bytes + 1];
    size_t count = 0;
    PGconn *late = pg_server_connect();
    append_many(t, order_place(t, 4), ids, COUNT(ids));
    snprintf(sql, sizeof sql, "BEGIN; SELECT unnest(%s.append_begin(NULL, ARRAY[%u], ARRAY[9], 1))", schema_of(t),
             t->orders);
    PGresult *drawn = PQexec(late, sql);
    REQUIRE(PQntuples(drawn) == 2);
    long long segment = strtoll(PQgetvalue(drawn, 0, 0), NULL, 10), number = strtoll(PQgetvalue(drawn, 1, 0), NULL, 10);
    PQclear(drawn);
    for (size_t i = 0; i < COUNT(ids); i++)
        finish(t, order_place(t, 4), &ids[i], KL_DONE, 0, NULL, NULL);
    AWAIT(all_go(t));
    for (size_t i = 0; i < sizeof late_id.bytes; i++)
        snprintf(hex + 2 * i, 3, "%02x", late_id.bytes[i]);
    snprintf(sql, sizeof sql,
             "INSERT INTO %s.entries (partition, slot, last, number, tasks, segment)"
             " VALUES (%u, 9 * 64 + 16, %lld, 1, %s.pack(0, '%s', NULL, NULL, NULL, NULL), %lld); COMMIT",
             schema_of(t), t->orders, number * 65536 + segment * 64 + 16, schema_of(t), hex, segment);
    PQclear(PQexec(late, sql));
    PQfinish(late);
    CHECK_INT(rows_of(t, "tasks"), 1);
    kl_stub *stubs = scan_line(t, order_place(t, 9), 0, &count);
    REQUIRE(count == 1);
    kl_settled done = next_attempt(&stubs[0], KL_DONE);
    CHECK_OK(settle(t, order_place(t, 9), 0, &done, 1));
    AWAIT(all_go(t));
}

/* Of a table that is published, rows are deleted or changed only where others can tell which they were. */
CLAIM(what_is_settled_is_cleared_away_also_where_all_tables_are_published)
{
    kl_task_id ids[20];
    CHECK_INT(
        number_there(t, "SELECT count(*) FROM pg_class c WHERE c.relnamespace = '$S'::regnamespace"
                        " AND c.relkind = 'r' AND c.relpersistence = 'p' AND c.relreplident = 'd'"
                        " AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)"
                        " AND c.relname !~ '^((entries|settled)_[12]|tokens_.|test_clock)$'"), /* those are truncated */
        0);
    append_many(t, order_place(t, 4), ids, COUNT(ids));
    run_there(t, "SELECT $S.move_left_over(1, 10)");
    run_there(t, "CREATE PUBLICATION all_tables FOR ALL TABLES");
    for (size_t i = 0; i < COUNT(ids); i++)
        finish(t, order_place(t, 4), &ids[i], i % 2 ? KL_DONE : KL_DEAD, 1000, NULL, NULL);
    AWAIT(rows_become(t, 0, 0));
    run_there(t, "DROP PUBLICATION all_tables");
}

CLAIM(what_a_task_lacks_is_empty_also_where_backslashes_are_read_as_they_once_were)
{
    run_there(t, "SET standard_conforming_strings = off");
    CHECK_INT(number_there(t, "SELECT octet_length($S.pack(0, md5('')::uuid, NULL, NULL, NULL, NULL))"), 25);
    run_there(t, "RESET standard_conforming_strings");
}

/* ---- What is settled and is not there ---- */

/* Takes a task back, as the end of the log that a crash took with it. */
static void take_back(const struct trial *t, uint64_t position)
{
    char sql[128];
    snprintf(sql, sizeof sql, "DELETE FROM $S.entries WHERE last = %llu", (unsigned long long)position);
    run_there(t, sql);
}

/* A worker had it from a scan, and ran it. */
CLAIM(a_settled_position_that_is_not_there_stands_for_no_task_that_waits)
{
    kl_place place = order_place(t, 4);
    kl_task_id lost = append_one(t, place, "x");
    kl_stub stub = stub_of(t, place, &lost);
    kl_settled done = next_attempt(&stub, KL_DONE);
    take_back(t, stub.position);
    kl_task_id waits = append_one(t, place, "x");
    CHECK_OK(settle(t, place, 0, &done, 1));
    CHECK_INT(rows_of(t, "settled"), 1);
    run_there(t, "SELECT $S.upkeep_last(0)");
    CHECK_LINE(t, place, 0, &waits, 1);
    for (int i = 0; i < 4; i++) {
        tidy(t);
        CHECK_LINE(t, place, 0, &waits, 1);
    }
    finish(t, place, &waits, KL_DONE, 0, NULL, NULL);
    AWAIT(rows_become(t, 0, 0));
}

/* Ends all sessions of the trial's store that there are; it opens others. */
static void cut_and_wait(const struct trial *t)
{
    char sql[256];
    long long now_us = pg_server_number("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint");
    run_there(t, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '$S'");
    snprintf(sql, sizeof sql,
             "SELECT count(*) FROM pg_stat_activity WHERE application_name = '$S'"
             " AND extract(epoch FROM backend_start) * 1000000 < %lld",
             now_us);
    AWAIT(number_there(t, sql) == 0);
}

CLAIM(when_a_connection_was_lost_it_is_looked_whether_tasks_are_there_that_are_settled)
{
    int64_t now_ms;
    kl_place place = order_place(t, 4);
    kl_task_id lost = append_one(t, place, "x");
    kl_stub stub = stub_of(t, place, &lost);
    kl_settled done = next_attempt(&stub, KL_DONE);
    take_back(t, stub.position);
    cut_and_wait(t);
    CHECK_OK(kl_store_now(t->store, &now_ms));
    CHECK_OK(settle(t, place, 0, &done, 1));
    CHECK_INT(rows_of(t, "settled"), 0);
}

/* ---- What is read while tasks move, or end ---- */

/* Somebody who asks the store and is held up inside a function of the schema. */
struct asking {
    struct trial *t;
    kl_place place;
    bool counts; /* else the ready line is scanned */
    kl_stub stubs[8];
    size_t count;
    kl_counts counted;
    kl_rc rc;
};

enum { HOLD = 7777 };

static void *ask_once(void *ctx)
{
    struct asking *asking = ctx;
    kl_scan scan = {.place = asking->place, .stubs = asking->stubs, .max = COUNT(asking->stubs)};
    asking->rc = asking->counts ? kl_store_counts(asking->t->store, asking->place, NULL, &asking->counted)
                                : kl_store_scan(asking->t->store, &scan, 1);
    asking->count = scan.count;
    return NULL;
}

/* The function waits for an advisory lock before its query, or no longer does. */
static void set_hold(const struct trial *t, const char *function, bool holds)
{
    char sql[1024], with[] = "BEGIN PERFORM pg_catalog.pg_advisory_xact_lock(7777);", without[] = "BEGIN";
    snprintf(sql, sizeof sql, "DO $x$ BEGIN EXECUTE replace(pg_get_functiondef('$S.%s'::regproc), '%s', '%s'); END $x$",
             function, holds ? without : with, holds ? with : without);
    run_there(t, sql);
}

/* Asks; when the function is reached, and the query around it has begun, the statement is made; then it goes on. */
static void ask_meanwhile(struct asking *asking, const char *function, const char *statement)
{
    char sql[128];
    pthread_t thread;
    PGconn *holder = pg_server_connect();
    set_hold(asking->t, function, true);
    snprintf(sql, sizeof sql, "SELECT pg_advisory_lock(%d)", HOLD);
    PQclear(PQexec(holder, sql));
    REQUIRE(pthread_create(&thread, NULL, ask_once, asking) == 0);
    snprintf(sql, sizeof sql,
             "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = %d AND NOT granted", HOLD);
    AWAIT(pg_server_number(sql) == 1);
    run_there(asking->t, statement);
    PQfinish(holder);
    pthread_join(thread, NULL);
    set_hold(asking->t, function, false);
    CHECK_OK(asking->rc);
}

static void check_shown(const struct asking *asking, const kl_task_id *ids, size_t count)
{
    CHECK_INT(asking->count, count);
    for (size_t i = 0; i < count && i < asking->count; i++)
        CHECK_ID(asking->stubs[i].id, ids[i]);
}

CLAIM(a_scan_shows_tasks_that_move_to_segment_0_meanwhile)
{
    kl_task_id ids[4];
    struct asking asking = {.t = t, .place = order_place(t, 4)};
    append_many(t, asking.place, ids, COUNT(ids));
    finish(t, asking.place, &ids[0], KL_DONE, 0, NULL, NULL);
    ask_meanwhile(&asking, "gone", "SELECT $S.move_left_over(1, 100)");
    CHECK_INT(rows_of(t, "entries_0"), 3);
    check_shown(&asking, ids + 1, 3);
    CHECK_LINE(t, asking.place, 0, ids + 1, 3);
}

CLAIM(a_scan_does_not_show_settled_tasks_that_are_cleared_away_meanwhile)
{
    kl_task_id ids[3];
    struct asking asking = {.t = t, .place = order_place(t, 4)};
    append_many(t, asking.place, ids, COUNT(ids));
    run_there(t, "SELECT $S.move_left_over(1, 100)");
    finish(t, asking.place, &ids[0], KL_DONE, 0, NULL, NULL);
    CHECK_INT(rows_of(t, "settled_0"), 1);
    ask_meanwhile(&asking, "gone", "SELECT $S.upkeep(100, 100, 1000)");
    CHECK_INT(rows_of(t, "settled_0"), 0);
    check_shown(&asking, ids + 1, 2);
}

/* Its row in `retries` is made as a settle makes it. */
CLAIM(a_task_is_counted_though_it_goes_to_the_retry_line_meanwhile)
{
    char sql[256];
    struct asking asking = {.t = t, .place = order_place(t, 4), .counts = true};
    kl_task_id id = append_one(t, asking.place, "x");
    kl_stub stub = stub_of(t, asking.place, &id);
    snprintf(sql, sizeof sql, "INSERT INTO $S.retries VALUES (%u, 4, %llu, 1, 0)", t->orders,
             (unsigned long long)stub.position);
    ask_meanwhile(&asking, "live", sql);
    CHECK_INT(asking.counted.ready + asking.counted.retry, 1);
}

/* ---- What is left over, where it is much ---- */

/* Rows carry the bytes of all their tasks; sorted once for each task, those would be written to temporary files. */
CLAIM(left_overs_are_found_and_moved_without_sorting_what_tasks_carry)
{
    enum { TASKS = 4000, BATCH = 100, LEFT = 150, AT_ONCE = 100 };
    static char payload[201];
    static kl_stub stubs[TASKS];
    static kl_settled done[TASKS];
    static kl_task_id left[LEFT];
    kl_entry entries[BATCH];
    kl_place place = order_place(t, 4);
    size_t count = 0;
    memset(payload, 'x', sizeof payload - 1);
    for (size_t i = 0; i < TASKS; i += BATCH) {
        kl_token token = make_token();
        for (size_t j = 0; j < BATCH; j++)
            entries[j] = make_entry(t, place, "k", payload);
        CHECK_OK(kl_store_append(t->store, entries, BATCH, &token));
    }
    CHECK_OK(scan_one(t->store, &(kl_scan){.place = place, .max = TASKS}, stubs, &count));
    REQUIRE(count == TASKS);
    size_t done_count = 0, left_count = 0;
    for (size_t i = 0; i < TASKS; i++) /* every second of the last ones is left */
        if (i < TASKS - 2 * LEFT || i % 2)
            done[done_count++] = next_attempt(&stubs[i], KL_DONE);
        else
            left[left_count++] = stubs[i].id;
    CHECK_OK(settle(t, place, 0, done, done_count));
    pg_server_run("SET temp_file_limit = 0");
    char sql[128];
    snprintf(sql, sizeof sql, "SELECT $S.move_left_over(1, %d)", AT_ONCE);
    long long moved = number_there(t, sql);
    CHECK(moved >= AT_ONCE && moved < LEFT);
    CHECK_LINE(t, place, 0, left, LEFT);
    CHECK_INT(moved + number_there(t, sql), LEFT);
    CHECK_INT(number_there(t, sql), 0);
    pg_server_run("RESET temp_file_limit");
    CHECK_INT(rows_of(t, "entries_0"), LEFT);
    CHECK_LINE(t, place, 0, left, LEFT);
}

/* Moves ten, or fails when more rows are read than ten for each and those that move. */
static long long move_ten(const struct trial *t)
{
    run_there(
        t, "DO $x$ DECLARE before bigint := $S.rows_read(); BEGIN"
           " PERFORM setval('$S.moved', $S.move_left_over(1, 10));"
           " IF $S.rows_read() - before > 120 THEN RAISE '% rows were read', $S.rows_read() - before; END IF; END $x$");
    return number_there(t, "SELECT last_value FROM $S.moved");
}

/* A segment may have millions of rows: one that is read through takes many rounds. */
CLAIM(a_round_that_moves_left_overs_reads_few_rows_and_the_next_goes_on_behind_them)
{
    enum { ROWS = 3000, LEFT = 150, LATE = 20 };
    char sql[640];
    snprintf(
        sql, sizeof sql,
        "CREATE FUNCTION $S.rows_read() RETURNS bigint LANGUAGE sql AS 'SELECT sum(pg_stat_get_xact_tuples_returned(c))"
        " FROM unnest(ARRAY[''$S.entries_1'', ''$S.entries_1_place'']::regclass[]) AS c';"
        "CREATE SEQUENCE $S.moved MINVALUE 0;"
        "INSERT INTO $S.entries (partition, slot, last, number, tasks, segment)"
        " SELECT %u, 4 * 64 + 16, (n::bigint << 24) + 80, 1, $S.pack(0, md5(n::text)::uuid, NULL, NULL, NULL, NULL),"
        " 1 FROM generate_series(1, %d) n;"
        "INSERT INTO $S.settled (partition, shard, first, last, segment, positions)"
        " SELECT partition, 4, last, last, 1, ARRAY[last] FROM $S.entries_1 ORDER BY last LIMIT %d",
        t->orders, ROWS, ROWS - LEFT);
    run_there(t, sql);
    for (int row = 100; row < ROWS - LEFT; row += 100)
        CHECK_INT(move_ten(t), 0);
    for (int moved = 0; moved < LEFT; moved += 10)
        CHECK_INT(move_ten(t), 10);
    CHECK_INT(move_ten(t), 0);
    snprintf(sql, sizeof sql, "DELETE FROM $S.settled_1 WHERE last < %d::bigint << 24", LATE + 1);
    run_there(t, sql);
    CHECK_INT(move_ten(t) + move_ten(t), LATE); /* from the beginning again */
    CHECK_INT(rows_of(t, "entries_0"), LEFT + LATE);
}
