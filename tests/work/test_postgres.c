/* test_postgres.c - tasks that applications put in SQL, inside their own transactions, on a real server.
 *
 * Each test has a schema of its own. Where the order of things matters, tasks are taken in by hand and compared with
 * what stands in the lines; elsewhere a worker runs them. */
#include <libpq-fe.h>

#include "queue/inside.h"
#include "store/pg_server.h"
#include "work/support.h"

struct bed {
    kl_store *store;
    kl_queue *queue;
    char url[PG_URL_BYTES], schema[64];
    struct runs runs;
    kl_worker *worker;
};

static bool open_bed(struct bed *bed, const kl_queue_opts *opts)
{
    *bed = (struct bed){.store = NULL};
    runs_init(&bed->runs);
    bool good = pg_server_new_schema(bed->url, bed->schema) == KL_OK &&
                kl_store_open(bed->url, NULL, &bed->store) == KL_OK &&
                kl_queue_open(bed->store, "orders", opts, &bed->queue) == KL_OK;
    if (!good)
        test_fail(__FILE__, __LINE__, "no queue: %s", kl_error_text());
    return good;
}

static bool work(struct bed *bed)
{
    bed->worker = start_worker(bed->queue, &(struct start){.fn = runs_handle, .ctx = &bed->runs, .concurrency = 4});
    return bed->worker != NULL;
}

static void close_bed(struct bed *bed)
{
    char sql[128];
    kl_worker_close(bed->worker);
    kl_queue_close(bed->queue);
    kl_store_close(bed->store);
    snprintf(sql, sizeof sql, "DROP SCHEMA IF EXISTS %s CASCADE", bed->schema);
    pg_server_run(sql);
    runs_free(&bed->runs);
}

/* --- An application --- */

static PGconn *connect_app(const struct bed *bed)
{
    char url[PG_URL_BYTES], sql[128];
    PGconn *app = pg_server_url(url) == KL_OK ? PQconnectdb(url) : NULL;
    snprintf(sql, sizeof sql, "SET search_path = %s, public", bed->schema);
    PQclear(PQexec(app, sql));
    CHECK(PQstatus(app) == CONNECTION_OK);
    return app;
}

__attribute__((format(printf, 2, 3))) static void say(PGconn *app, const char *format, ...)
{
    char sql[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sql, sizeof sql, format, arguments);
    va_end(arguments);
    PGresult *rows = PQexec(app, sql);
    ExecStatusType status = PQresultStatus(rows);
    if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK)
        test_fail(__FILE__, __LINE__, "%s: %s", sql, PQerrorMessage(app));
    PQclear(rows);
}

static void refuse(PGconn *app, const char *sql, const char *says)
{
    PGresult *rows = PQexec(app, sql);
    CHECK_INT(PQresultStatus(rows), PGRES_FATAL_ERROR);
    CHECK_CONTAINS(PQerrorMessage(app), says);
    PQclear(rows);
}

static long long in_inbox(const struct bed *bed)
{
    char sql[128];
    snprintf(sql, sizeof sql, "SELECT count(*) FROM %s.inbox", bed->schema);
    return pg_server_number(sql);
}

/* --- What was taken in --- */

static void take_in_all(struct bed *bed)
{
    size_t count = 1;
    while (count > 0) {
        kl_rc rc = kl__queue_take_in(bed->queue, 0, NULL, NULL, &count);
        if (rc != KL_OK)
            test_fail(__FILE__, __LINE__, "nothing is taken in: %s", kl_error_text());
        if (rc != KL_OK)
            return;
    }
}

/* The payloads of a key's waiting tasks in their order, each with a space behind it. */
static void line_of(struct bed *bed, const char *key, char ret_line[256])
{
    kl_found found[64];
    kl_arena arena = {0};
    kl_waiting which = {.key = kl_str(key), .max = 64};
    size_t count = 0, used = 0;
    *ret_line = '\0';
    do {
        CHECK_INT(kl_queue_waiting(bed->queue, &which, &arena, found, &count, &which.cursor), KL_OK);
        for (size_t i = 0; i < count; i++) {
            kl_bytes payload = found[i].task.entry.payload;
            used +=
                (size_t)snprintf(ret_line + used, 256 - used, "%.*s ", (int)payload.len, (const char *)payload.data);
        }
    } while (which.cursor.len > 0);
    kl_arena_free(&arena);
}

#define CHECK_KEY(bed, key, expected)                                                                                  \
    do {                                                                                                               \
        char line_[256];                                                                                               \
        line_of(bed, key, line_);                                                                                      \
        CHECK_STR(line_, expected);                                                                                    \
    } while (0)

/* --- Claims --- */

TEST(tasks_of_a_transaction_run_once_it_is_committed)
{
    struct bed bed;
    REQUIRE(open_bed(&bed, NULL));
    PGconn *app = connect_app(&bed);
    if (work(&bed)) {
        say(app, "BEGIN; SELECT put('orders', 'done 1', key => 'a'); SELECT put('orders', 'done 2', key => 'a')");
        say(app, "SELECT put('orders', 'done 3', key => 'b'); COMMIT");
        CHECK(runs_wait(&bed.runs, 3));
        CHECK(runs_first(&bed.runs, "done 1") < runs_first(&bed.runs, "done 2"));
        CHECK_INT(in_inbox(&bed), 0);
    }
    PQfinish(app);
    close_bed(&bed);
}

static uint64_t ready_of(const struct bed *bed)
{
    kl_arena arena = {0};
    kl_queue_info info = {0};
    CHECK_INT(kl_queue_show(bed->queue, &arena, &info), KL_OK);
    kl_arena_free(&arena);
    return info.counts.ready;
}

TEST(what_is_put_in_sql_and_not_taken_in_yet_is_shown_as_waiting)
{
    struct bed bed;
    REQUIRE(open_bed(&bed, NULL));
    PGconn *app = connect_app(&bed);
    say(app, "SELECT put('orders', '1', key => 'a')");
    CHECK_INT(ready_of(&bed), 1);
    say(app, "BEGIN; SELECT put('orders', '3', key => 'a')");
    CHECK_INT(ready_of(&bed), 1);
    say(app, "COMMIT");
    CHECK_INT(ready_of(&bed), 2);
    PQfinish(app);
    close_bed(&bed);
}

/* put() lets nothing through that is no task; but whoever owns the schema may write there. */
TEST(what_was_refused_when_it_was_taken_in_is_shown_with_what_to_do)
{
    struct bed bed;
    kl_arena arena = {0};
    kl_queue_info info;
    REQUIRE(open_bed(&bed, NULL));
    PGconn *app = connect_app(&bed);
    CHECK_INT(kl_queue_show(bed.queue, &arena, &info), KL_OK);
    CHECK_INT(info.refused, 0);
    CHECK_STR(info.refused_why, "");
    say(app, "INSERT INTO inbox (queue, options) VALUES ('orders', '{\"priority\": 99}'), ('orders', '{\"tags\": 1}')");
    say(app, "SELECT put('orders', '1', key => 'a')");
    take_in_all(&bed);
    CHECK_INT(kl_queue_show(bed.queue, &arena, &info), KL_OK);
    CHECK_INT(info.refused, 2);
    CHECK_CONTAINS(info.refused_why, "priority");
    CHECK_CONTAINS(info.refused_why, ".inbox SET refused = NULL WHERE number = 1, or DELETE it");
    CHECK_INT(info.counts.ready, 1);
    kl_arena_free(&arena);
    PQfinish(app);
    close_bed(&bed);
}

/* As the functions of the schema ask. */
TEST(a_queue_s_rows_are_found_by_the_index)
{
    struct bed bed;
    char plan[1024] = "";
    REQUIRE(open_bed(&bed, NULL));
    PGconn *app = connect_app(&bed);
    say(app, "SET enable_seqscan = off; SET enable_bitmapscan = off");
    PGresult *rows =
        PQexec(app, "EXPLAIN SELECT FROM inbox WHERE queue = convert_from('\\x61', 'UTF8') AND number > 7");
    for (int i = 0; i < PQntuples(rows); i++)
        strncat(plan, PQgetvalue(rows, i, 0), sizeof plan - strlen(plan) - 1);
    CHECK_CONTAINS(plan, "Index Cond: ((queue = ");
    PQclear(rows);
    PQfinish(app);
    close_bed(&bed);
}

TEST(what_is_not_taken_in_is_a_task_for_who_removes_or_purges_its_queue)
{
    struct bed bed;
    uint64_t purged = 0, drained = 0;
    REQUIRE(open_bed(&bed, NULL));
    PGconn *app = connect_app(&bed);
    say(app, "SELECT put('orders', 'done 1', key => 'a'); SELECT put('orders', 'done 2', key => 'b')");
    CHECK_INT(kl_queue_remove(bed.queue), KL_EBUSY);
    CHECK_INT(kl_key_drain(bed.queue, kl_str("a"), NULL, false, &drained), KL_OK);
    CHECK_INT(drained, 1);
    say(app, "SELECT put('orders', 'done 3', key => 'a')");
    CHECK_INT(kl_queue_purge(bed.queue, &purged), KL_OK);
    CHECK_INT(purged, 2);
    CHECK_INT(in_inbox(&bed), 0);
    PQfinish(app);
    close_bed(&bed);
}

TEST(a_queue_is_not_removed_while_a_transaction_that_puts_into_it_is_open)
{
    struct bed bed;
    REQUIRE(open_bed(&bed, NULL));
    PGconn *app = connect_app(&bed);
    say(app, "BEGIN; SELECT put('orders', 'done 1', key => 'a')");
    CHECK_INT(kl_queue_remove(bed.queue), KL_EBUSY);
    CHECK_CONTAINS(kl_error_text(), "a transaction puts tasks");
    say(app, "COMMIT");
    CHECK_INT(kl_queue_remove(bed.queue), KL_EBUSY);
    say(app, "DELETE FROM inbox");
    CHECK_INT(kl_queue_remove(bed.queue), KL_OK);
    refuse(app, "SELECT put('orders', 'done 2')", "there is no queue 'orders'");
    PQfinish(app);
    close_bed(&bed);
}

TEST(a_transaction_that_sees_a_queue_as_it_is_no_more_puts_nothing_into_it)
{
    struct bed bed;
    REQUIRE(open_bed(&bed, NULL));
    PGconn *app = connect_app(&bed);
    say(app, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1");
    CHECK_INT(kl_queue_remove(bed.queue), KL_OK);
    refuse(app, "SELECT put('orders', 'done 1')", "could not serialize access");
    say(app, "ROLLBACK");
    CHECK_INT(in_inbox(&bed), 0);
    refuse(app, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT put('orders', 'done 2')", "there is no queue 'orders'");
    PQfinish(app);
    close_bed(&bed);
}

TEST(one_transaction_that_puts_with_a_snapshot_does_not_wait_for_another)
{
    struct bed bed;
    REQUIRE(open_bed(&bed, NULL));
    PGconn *first = connect_app(&bed), *second = connect_app(&bed);
    say(first, "BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT put('orders', 'done 1', key => 'a')");
    say(second, "BEGIN ISOLATION LEVEL REPEATABLE READ; SET LOCAL lock_timeout = '1s'");
    say(second, "SELECT put('orders', 'done 2', key => 'b'); COMMIT");
    kl_queue_opts other = {.size = sizeof other, .attempts_max = 3};
    CHECK_INT(kl_queue_alter(bed.queue, &other), KL_OK); /* nor does the queue's record */
    say(first, "COMMIT");
    take_in_all(&bed);
    CHECK_KEY(&bed, "a", "done 1 ");
    CHECK_KEY(&bed, "b", "done 2 ");
    PQfinish(first);
    PQfinish(second);
    close_bed(&bed);
}

/* As on a standby, where nothing is to be repeated in vain. */
TEST(a_database_that_takes_no_writes_says_so)
{
    struct bed bed;
    char url[PG_URL_BYTES + 80];
    kl_store *store = NULL;
    kl_queue *queue = NULL;
    kl_put task = {.payload = kl_str("done")};
    kl_put_result result;
    REQUIRE(open_bed(&bed, NULL));
    snprintf(url, sizeof url, "%s&options=-c%%20default_transaction_read_only%%3Don", bed.url);
    REQUIRE(kl_store_open(url, NULL, &store) == KL_OK && kl_queue_open(store, "orders", NULL, &queue) == KL_OK);
    CHECK_INT(kl_queue_put(queue, &task, 1, (kl_bytes){0}, &result), KL_EBUSY);
    CHECK_CONTAINS(kl_error_text(), "nothing was done");
    kl_queue_close(queue);
    kl_store_close(store);
    close_bed(&bed);
}

TEST(what_was_rolled_back_is_never_taken_in)
{
    struct bed bed;
    REQUIRE(open_bed(&bed, NULL));
    PGconn *app = connect_app(&bed);
    say(app, "BEGIN; SELECT put('orders', '1', key => 'a'); ROLLBACK");
    say(app, "BEGIN; SELECT put('orders', '2', key => 'a'); SAVEPOINT s; SELECT put('orders', '3', key => 'a')");
    say(app, "ROLLBACK TO s; SELECT put('orders', '4', key => 'a'); COMMIT");
    take_in_all(&bed);
    CHECK_KEY(&bed, "a", "2 4 ");
    PQfinish(app);
    close_bed(&bed);
}

TEST(order_is_that_of_calls_and_of_transactions_that_follow_one_another)
{
    struct bed bed;
    REQUIRE(open_bed(&bed, NULL));
    PGconn *first = connect_app(&bed), *second = connect_app(&bed);
    say(first, "BEGIN; SELECT put('orders', '1', key => 'a'); SELECT put('orders', '2', key => 'a')");
    say(second, "BEGIN; SELECT 1");
    say(first, "SELECT put_many('orders', ARRAY['3', '4', 'x', '5'], ARRAY['a', 'a', 'b', 'a']); COMMIT");
    say(second, "SELECT put('orders', '6', key => 'a'); COMMIT");
    say(first, "SELECT put('orders', '7', key => 'a')");
    take_in_all(&bed);
    say(second, "SELECT put('orders', '8', key => 'a')");
    take_in_all(&bed);
    CHECK_KEY(&bed, "a", "1 2 3 4 5 6 7 8 ");
    CHECK_KEY(&bed, "b", "x ");
    PQfinish(first);
    PQfinish(second);
    close_bed(&bed);
}

/* test_postgres_held.c has one for a minute. */
TEST(a_transaction_that_stays_open_delays_its_own_tasks_only)
{
    enum { OTHERS = 50 };
    struct bed bed;
    REQUIRE(open_bed(&bed, NULL));
    PGconn *slow = connect_app(&bed), *quick = connect_app(&bed);
    if (work(&bed)) {
        say(slow, "BEGIN; SELECT put('orders', 'done first', key => 'a')");
        for (int i = 0; i < OTHERS; i++)
            say(quick, "SELECT put('orders', 'done', key => '%s')", i % 2 ? "a" : "b");
        CHECK(runs_wait(&bed.runs, OTHERS));
        CHECK_INT(runs_of(&bed.runs, "done first"), 0);
        say(slow, "SELECT put('orders', 'done second', key => 'a'); COMMIT");
        CHECK(runs_wait(&bed.runs, OTHERS + 2));
        CHECK(runs_first(&bed.runs, "done first") < runs_first(&bed.runs, "done second"));
    }
    PQfinish(slow);
    PQfinish(quick);
    close_bed(&bed);
}

/* Where a process that has read everything begins the next time. */
static long long low_of(const struct bed *bed)
{
    char sql[160];
    snprintf(sql, sizeof sql, "SELECT low_next FROM %s.inbox_look('orders', 0)", bed->schema);
    return pg_server_number(sql);
}

/* A snapshot keeps what was deleted, and who reads would pass all of it each time. */
TEST(what_was_taken_in_is_not_read_again_while_a_snapshot_is_held)
{
    struct bed bed;
    REQUIRE(open_bed(&bed, NULL));
    PGconn *reader = connect_app(&bed), *app = connect_app(&bed);
    say(reader, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM inbox");
    say(app, "SELECT put_many('orders', array_fill('x'::text, ARRAY[3000]))");
    CHECK_INT(low_of(&bed), 1);
    take_in_all(&bed);
    CHECK_INT(low_of(&bed), 3000);
    say(app, "SELECT put('orders', 'y', key => 'k')");
    take_in_all(&bed);
    CHECK_KEY(&bed, "k", "y ");
    PQfinish(reader);
    PQfinish(app);
    close_bed(&bed);
}

/* I3 of sql_inbox.c: whoever has not committed yet is behind that place, however far others have come. */
TEST(reading_begins_at_no_later_place_than_a_transaction_that_is_open)
{
    struct bed bed;
    REQUIRE(open_bed(&bed, NULL));
    PGconn *slow = connect_app(&bed), *quick = connect_app(&bed);
    say(quick, "SELECT setval('inbox_number_seq', 40000)");
    say(slow, "BEGIN; SAVEPOINT s; SELECT put('orders', 'first', key => 'a'); RELEASE s");
    say(quick, "SELECT setval('inbox_number_seq', 90000); SELECT put('orders', 'second', key => 'b')");
    take_in_all(&bed);
    CHECK_KEY(&bed, "b", "second ");
    CHECK(low_of(&bed) > 1 && low_of(&bed) <= 40001);
    say(slow, "COMMIT");
    take_in_all(&bed);
    CHECK_KEY(&bed, "a", "first ");
    CHECK_INT(low_of(&bed), 90001);
    PQfinish(slow);
    PQfinish(quick);
    close_bed(&bed);
}

/* As when another server takes its place that has not heard of the last ones. */
TEST(numbers_that_go_back_are_taken_in_all_the_same)
{
    struct bed bed;
    REQUIRE(open_bed(&bed, NULL));
    PGconn *app = connect_app(&bed);
    say(app, "SELECT setval('inbox_number_seq', 90000); SELECT put('orders', '1', key => 'a')");
    take_in_all(&bed);
    say(app, "SELECT setval('inbox_number_seq', 5000); SELECT put('orders', '2', key => 'a')");
    take_in_all(&bed);
    CHECK_KEY(&bed, "a", "1 2 ");
    PQfinish(app);
    close_bed(&bed);
}

TEST(a_task_put_in_sql_is_like_one_that_the_library_put)
{
    struct bed bed;
    kl_found found[2];
    size_t count = 0;
    kl_arena arena = {0};
    REQUIRE(open_bed(&bed, NULL));
    PGconn *app = connect_app(&bed);
    say(app, "SELECT put('orders', '{\"a\":1}'::jsonb, key => 'schl\xc3\xbcssel', kind => 'mail', priority => -3,"
             " attempts_max => 5, timeout => '2 s', group_name => 'g', traceparent => '00-1', tags => ARRAY['x', 'y'],"
             " headers => '{\"h\": \"v\"}', keep => '1 hour')");
    say(app, "SELECT put('orders', '\\x00ff'::bytea, delay => '1 day')");
    take_in_all(&bed);
    kl_waiting which = {.key = kl_str("schl\xc3\xbcssel"), .max = 2};
    CHECK_INT(kl_queue_waiting(bed.queue, &which, &arena, found, &count, &which.cursor), KL_OK);
    if (count == 1) {
        CHECK_STR(found[0].task.entry.kind.data, "mail");
        CHECK_STR(found[0].task.entry.payload.data, "{\"a\": 1}");
        CHECK_INT(found[0].task.entry.priority, -3);
        CHECK_INT(found[0].extra.attempts_max, 5);
        CHECK_INT(found[0].extra.timeout_ms, 2000);
        CHECK_INT(found[0].extra.keep_ms, 3600000);
        CHECK_INT(found[0].extra.tag_count, 2);
        CHECK_INT(found[0].extra.header_count, 1);
        CHECK_INT(found[0].extra.group.len, 1);
    }
    CHECK_INT(count, 1);
    which = (kl_waiting){.due = true, .max = 2};
    CHECK_INT(kl_queue_waiting(bed.queue, &which, &arena, found, &count, &which.cursor), KL_OK);
    CHECK(count == 1 && found[0].task.entry.payload.len == 2);
    kl_arena_free(&arena);
    PQfinish(app);
    close_bed(&bed);
}

TEST(what_is_no_task_is_refused_in_the_application_s_transaction)
{
    static const char *const cases[][2] = {
        {"SELECT put('none', 'x')", "there is no queue 'none'"},
        {"SELECT put(NULL, 'x')", "there is no queue NULL"},
        {"SELECT put('orders', NULL)", "task 1: its payload is NULL; pass one, or an empty text"},
        {"SELECT put('orders', NULL::jsonb)", "its payload is NULL"},
        {"SELECT put('orders', NULL::bytea)", "its payload is NULL"},
        {"SELECT put_many('orders', ARRAY['x', NULL])", "task 2: its payload is NULL"},
        {"SELECT put_many('orders', ARRAY['1'::jsonb, NULL])", "task 2: its payload is NULL"},
        {"SELECT put_many('orders', ARRAY['x'::bytea, NULL])", "task 2: its payload is NULL"},
        {"SELECT put('orders', 'x', key => repeat('k', 513))", "its key has more than 512 bytes"},
        {"SELECT put('orders', 'x', priority => 16)", "priority is 16"},
        {"SELECT put('orders', 'x', delay => '1 s', due => now())", "not both"},
        {"SELECT put('orders', 'x', tags => ARRAY[''])", "tags must be"},
        {"SELECT put('orders', 'x', headers => '{\"a\": null}')", "headers must be"},
        {"SELECT put('orders', 'x', due => 'infinity')", "due is infinity; name a time"},
        {"SELECT put('orders', 'x', unique_for => '1 s')", "unique_key (unique)"},
        {"SELECT put('orders', 'x', partition => 'orders__p1')", "has no partition orders__p1; it has 1: orders"},
        {"SELECT put_many('orders', ARRAY['x', 'y'], ARRAY['k'])", "not as many keys"},
        {"SELECT put_many('orders', ARRAY['x'], options => ARRAY['{\"prio\": 1}'::jsonb])", "prio is no option"},
        {"SELECT put_many('orders', ARRAY['x'], options => ARRAY['{\"priority\": 3.0}'::jsonb])", "priority is 3.0"},
        {"SELECT put_many('orders', ARRAY['x'], options => ARRAY['{\"delay_ms\": 1.5}'::jsonb])", "delay_ms is 1.5"},
    };
    struct bed bed;
    REQUIRE(open_bed(&bed, NULL));
    PGconn *app = connect_app(&bed);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        refuse(app, cases[i][0], cases[i][1]);
    CHECK_INT(in_inbox(&bed), 0);
    PQfinish(app);
    close_bed(&bed);
}

TEST(an_empty_payload_is_one_and_no_payloads_are_no_tasks)
{
    struct bed bed;
    REQUIRE(open_bed(&bed, NULL));
    PGconn *app = connect_app(&bed);
    say(app, "SELECT put('orders', ''), put('orders', ''::bytea), put('orders', 'null'::jsonb)");
    say(app, "SELECT put_many('orders', array_agg(x)) FROM (SELECT 'x' AS x WHERE false) AS nothing");
    CHECK_INT(in_inbox(&bed), 3);
    PQfinish(app);
    close_bed(&bed);
}

/* As step 1 left it. */
TEST(a_schema_that_lacks_a_step_gets_it_when_it_is_opened)
{
    struct bed bed;
    kl_store *store = NULL;
    REQUIRE(open_bed(&bed, NULL));
    PGconn *app = connect_app(&bed);
    say(app, "UPDATE meta SET version = 1, steps = split_part(steps, ' ', 1); DROP TABLE inbox");
    say(app,
        "DO $$ DECLARE f record; BEGIN"
        " FOR f IN SELECT p.oid::regprocedure AS it FROM pg_proc p WHERE p.pronamespace = '%s'::regnamespace"
        " AND p.proname ~ '^(put|put_rows|put_many|inbox_.*|check_.*|refuse_queue|ms_of)$'"
        " LOOP EXECUTE format('DROP FUNCTION %%s', f.it); END LOOP; END $$",
        bed.schema);
    refuse(app, "SELECT put('orders', 'x')", "does not exist");
    CHECK_INT(kl_store_open(bed.url, NULL, &store), KL_OK);
    refuse(app, "SELECT put('orders', 'x', unique_key => '')", "1 to 256 bytes");
    refuse(app, "SELECT put('orders', 'x', unique_key => 'u', unique_for => '0s')", "unique_ms is 0");
    refuse(app, "SELECT put('orders', NULL)", "its payload is NULL");
    say(app, "SELECT put('orders', 'x')");
    CHECK_INT(in_inbox(&bed), 1);
    kl_store_close(store);
    PQfinish(app);
    close_bed(&bed);
}

TEST(a_mixed_batch_goes_to_its_queues_in_one_call)
{
    struct bed bed;
    kl_queue *bills = NULL;
    kl_arena arena = {0};
    kl_queue_info info;
    size_t count = 0;
    REQUIRE(open_bed(&bed, &(kl_queue_opts){.size = sizeof(kl_queue_opts), .partitions = 3}));
    CHECK_INT(kl_queue_open(bed.store, "bills", NULL, &bills), KL_OK);
    PGconn *app = connect_app(&bed);
    say(app,
        "SELECT put_many('orders', ARRAY['1', '2', '3'], ARRAY['a', 'a', NULL], queues => ARRAY[NULL, NULL, 'bills'])");
    take_in_all(&bed);
    CHECK_INT(kl__queue_take_in(bills, 0, NULL, NULL, &count), KL_OK);
    CHECK_INT(count, 1);
    CHECK_KEY(&bed, "a", "1 2 ");
    CHECK_INT(kl_queue_show(bills, &arena, &info), KL_OK);
    CHECK_INT(info.counts.ready, 1);
    kl_arena_free(&arena);
    PQfinish(app);
    kl_queue_close(bills);
    close_bed(&bed);
}

static void check_partition(struct bed *bed, const char *key, const char *partition)
{
    kl_found found[2];
    kl_arena arena = {0};
    kl_waiting which = {.key = kl_str(key), .max = 2};
    size_t count = 0;
    CHECK_INT(kl_queue_waiting(bed->queue, &which, &arena, found, &count, &which.cursor), KL_OK);
    CHECK_INT(count, 1);
    if (count == 1)
        CHECK_STR(found[0].partition, partition);
    kl_arena_free(&arena);
}

TEST(a_task_goes_to_the_partition_that_is_named_in_sql)
{
    struct bed bed;
    REQUIRE(open_bed(&bed, &(kl_queue_opts){.size = sizeof(kl_queue_opts), .partitions = 3}));
    PGconn *app = connect_app(&bed);
    say(app, "SELECT put('orders', 'x', key => 'zero', partition => 'orders')");
    say(app, "SELECT put('orders', 'x', key => 'one', partition => 'orders__p1')");
    say(app, "SELECT put_many('orders', ARRAY['{}'::jsonb], ARRAY['two'],"
             " options => ARRAY['{\"partition\": \"orders__p2\"}'::jsonb])");
    refuse(app, "SELECT put('orders', 'x', partition => 'orders__p3')",
           "it has 3: orders, and orders__p1 to orders__p2");
    refuse(app, "SELECT put('orders__p3', 'x')",
           "the queue orders has no partition orders__p3; it has 3: orders, and orders__p1 to orders__p2");
    refuse(app, "SELECT put('orders__p2', 'x')",
           "'orders__p2' is a partition of the queue orders; name the queue, and the partition beside it: partition => "
           "'orders__p2'");
    refuse(app, "SELECT put('bills__p1', 'x')", "a partition of the queue bills, and there is none");
    refuse(app, "SELECT put_many('orders', ARRAY['x', 'x'], queues => ARRAY[NULL, 'orders__p1'])",
           "in put_many the option partition");
    take_in_all(&bed);
    check_partition(&bed, "zero", "orders");
    check_partition(&bed, "one", "orders__p1");
    check_partition(&bed, "two", "orders__p2");
    PQfinish(app);
    close_bed(&bed);
}

/* With a worker and with none: the owner of the shard answers, or whoever asks. */
static void steer_named(bool with_worker)
{
    struct bed bed;
    kl_arena arena = {0};
    kl_key_status places[4];
    kl_task_id skipped;
    uint64_t drained = 0;
    size_t count = 0;
    REQUIRE(open_bed(&bed, &(kl_queue_opts){.size = sizeof(kl_queue_opts), .partitions = 3}));
    PGconn *app = connect_app(&bed);
    CHECK_INT(kl_key_pause(bed.queue, kl_str("k")), KL_OK); /* so that nothing of it runs meanwhile */
    for (int i = 0; i < 3; i++)
        say(app, "SELECT put('orders', 'done', key => 'k', partition => '%s')", i < 2 ? "orders__p1" : "orders__p2");
    take_in_all(&bed);
    if (with_worker && work(&bed))
        await_shards(bed.worker, 48);
    CHECK_INT(kl_key_places(bed.queue, kl_str("k"), NULL, 4, &arena, places, &count), KL_OK);
    CHECK_INT(count, 2);
    for (size_t i = 0; i < 2 && count == 2; i++) {
        CHECK_STR(places[i].partition, i == 0 ? "orders__p1" : "orders__p2");
        CHECK_INT(places[i].waiting, 2 - i);
        CHECK_INT(places[i].why, KL_WHY_PAUSED);
    }
    CHECK_INT(kl_key_skip(bed.queue, kl_str("k"), NULL, &skipped), KL_EINVAL);
    CHECK_INT(kl_key_skip(bed.queue, kl_str("k"), "orders__p2", &skipped), KL_OK);
    CHECK_INT(kl_key_drain(bed.queue, kl_str("k"), NULL, false, &drained), KL_OK);
    CHECK_INT(drained, 2);
    kl_arena_free(&arena);
    PQfinish(app);
    close_bed(&bed);
}

TEST(a_key_whose_partition_was_named_in_sql_is_found_there)
{
    steer_named(false);
    steer_named(true);
}

TEST(a_task_whose_partition_has_gone_goes_where_its_key_says)
{
    struct bed bed;
    REQUIRE(open_bed(&bed, &(kl_queue_opts){.size = sizeof(kl_queue_opts), .partitions = 3}));
    PGconn *app = connect_app(&bed);
    say(app, "SELECT put('orders', 'x', key => 'a', partition => 'orders__p2')");
    CHECK_INT(kl_queue_alter(bed.queue, &(kl_queue_opts){.size = sizeof(kl_queue_opts), .partitions = 1}), KL_OK);
    take_in_all(&bed);
    check_partition(&bed, "a", "orders");
    CHECK_INT(in_inbox(&bed), 0);
    PQfinish(app);
    close_bed(&bed);
}

/* Until nothing is left: in how many calls. */
static int calls_to_take_in(struct bed *bed)
{
    size_t count = 1;
    int calls = 0;
    for (; count > 0; calls++)
        if (kl__queue_take_in(bed->queue, 0, NULL, NULL, &count) != KL_OK) {
            test_fail(__FILE__, __LINE__, "nothing is taken in: %s", kl_error_text());
            break;
        }
    return calls;
}

/* 10 MB of headers, or of keys and kinds; a call takes up to 8 MiB. */
TEST(tasks_with_large_headers_or_keys_are_taken_in_many_at_a_time)
{
    struct bed bed;
    REQUIRE(open_bed(&bed, NULL));
    PGconn *app = connect_app(&bed);
    say(app,
        "SELECT put_many('orders', array_agg('x'::text), options => array_agg("
        "jsonb_build_object('headers', jsonb_build_object('h', repeat('x', 50000))))) FROM generate_series(1, 200)");
    CHECK(calls_to_take_in(&bed) <= 5);
    CHECK_INT(in_inbox(&bed), 0);
    say(app, "SELECT put_many('orders', array_agg(repeat('x', 350)), keys => array_agg(repeat('k', 500) || n),"
             " kinds => array_agg(repeat('d', 250))) FROM generate_series(1, 9000) n");
    CHECK(calls_to_take_in(&bed) <= 5);
    CHECK_INT(in_inbox(&bed), 0);
    PQfinish(app);
    close_bed(&bed);
}

TEST(a_task_whose_partition_has_gone_is_taken_in_beside_many_others)
{
    enum { TASKS = 300 };
    struct bed bed;
    kl_arena arena = {0};
    kl_queue_info info;
    REQUIRE(open_bed(&bed, &(kl_queue_opts){.size = sizeof(kl_queue_opts), .partitions = 3}));
    PGconn *app = connect_app(&bed);
    say(app,
        "SELECT put_many('orders', array_agg('x'::text), options => array_agg(CASE n WHEN 201 THEN"
        " jsonb_build_object('partition', 'orders__p2') END)) FROM generate_series(1, %d) n",
        TASKS);
    CHECK_INT(kl_queue_alter(bed.queue, &(kl_queue_opts){.size = sizeof(kl_queue_opts), .partitions = 1}), KL_OK);
    CHECK(calls_to_take_in(&bed) <= 20); /* halves of halves: before it, and it alone, and behind it */
    CHECK_INT(in_inbox(&bed), 0);
    CHECK_INT(kl_queue_show(bed.queue, &arena, &info), KL_OK);
    CHECK_INT(info.counts.ready, TASKS);
    kl_arena_free(&arena);
    PQfinish(app);
    close_bed(&bed);
}

TEST(a_unique_in_sql_is_one_task_and_keeps_its_place)
{
    struct bed bed;
    REQUIRE(open_bed(&bed, NULL));
    PGconn *app = connect_app(&bed);
    say(app, "SELECT put('orders', '1', key => 'a')");
    for (int i = 0; i < 3; i++)
        say(app, "SELECT put('orders', '2', key => 'a', unique_key => 'u', unique_for => '1 hour')");
    say(app, "SELECT put('orders', '3', key => 'a')");
    take_in_all(&bed);
    CHECK_KEY(&bed, "a", "1 2 3 ");
    CHECK_INT(in_inbox(&bed), 0);
    PQfinish(app);
    close_bed(&bed);
}

TEST(what_was_put_before_the_layout_changed_is_taken_into_the_new_one)
{
    struct bed bed;
    kl_queue *other = NULL;
    REQUIRE(open_bed(&bed, NULL));
    CHECK_INT(kl_queue_open(bed.store, "orders", NULL, &other), KL_OK); /* which does not hear of it */
    PGconn *app = connect_app(&bed);
    say(app, "SELECT put('orders', '1', key => 'a')");
    take_in_all(&bed);
    say(app, "SELECT put('orders', '2', key => 'a')");
    CHECK_INT(kl_queue_alter(other, &(kl_queue_opts){.size = sizeof(kl_queue_opts), .partitions = 4}), KL_OK);
    take_in_all(&bed);
    CHECK_KEY(&bed, "a", "1 2 ");
    PQfinish(app);
    kl_queue_close(other);
    close_bed(&bed);
}

/* Another role, that may use the schema and none of its tables. */
TEST(an_application_needs_no_table_of_the_schema)
{
    struct bed bed;
    REQUIRE(open_bed(&bed, NULL));
    PGconn *app = connect_app(&bed);
    say(app, "CREATE ROLE %s_app; GRANT USAGE ON SCHEMA %s TO %s_app", bed.schema, bed.schema, bed.schema);
    say(app, "SET ROLE %s_app", bed.schema);
    say(app, "SELECT put('orders', '1', key => 'a')");
    refuse(app, "SELECT count(*) FROM entries", "permission denied");
    refuse(app, "SELECT inbox_end('orders', ARRAY[1::bigint], NULL)", "permission denied");
    say(app, "RESET ROLE; REVOKE ALL ON SCHEMA %s FROM %s_app; DROP ROLE %s_app", bed.schema, bed.schema, bed.schema);
    take_in_all(&bed);
    CHECK_KEY(&bed, "a", "1 ");
    PQfinish(app);
    close_bed(&bed);
}

/* So nothing that others put into the schema `public` is called in place of PostgreSQL's own. */
TEST(functions_of_the_schema_do_not_depend_on_the_search_path)
{
    struct bed bed;
    char sql[512];
    REQUIRE(open_bed(&bed, NULL));
    snprintf(sql, sizeof sql,
             "SELECT count(*) FROM pg_proc WHERE pronamespace = '%s'::regnamespace"
             " AND NOT coalesce('search_path=pg_catalog, pg_temp' = ANY (proconfig), false)",
             bed.schema);
    CHECK_INT(pg_server_number(sql), 0);
    close_bed(&bed);
}

/* The server answers, and the worker keeps its shards; but no outcome can be sent. */
TEST(a_worker_whose_outcomes_are_refused_ends_after_a_lease_and_the_next_one_runs_the_task)
{
    struct bed bed;
    REQUIRE(open_bed(&bed, &(kl_queue_opts){.size = sizeof(kl_queue_opts), .lease_ms = 1000}));
    PGconn *app = connect_app(&bed);
    say(app, "ALTER FUNCTION settle RENAME TO settle_away; ALTER FUNCTION settle_sure RENAME TO settle_sure_away");
    REQUIRE(work(&bed));
    put_task(bed.queue, "k", "done");
    runs_wait(&bed.runs, 1);
    CHECK_INT(kl_worker_drain(bed.worker, WAIT_MS), KL_OK);
    kl_worker_close(bed.worker);
    say(app, "ALTER FUNCTION settle_away RENAME TO settle; ALTER FUNCTION settle_sure_away RENAME TO settle_sure");
    REQUIRE(work(&bed));
    runs_wait(&bed.runs, 2);
    CHECK_INT(kl_worker_drain(bed.worker, WAIT_MS), KL_OK);
    PQfinish(app);
    close_bed(&bed);
}

/* --- Several at once, and lost connections --- */

struct taker {
    struct bed *bed;
    pthread_t thread;
    atomic_bool *stops;
    kl_store *store;
    kl_queue *queue;
};

static void *take_on(void *ctx)
{
    struct taker *taker = ctx;
    size_t count = 0;
    kl_rc rc = KL_OK;
    while (!atomic_load(taker->stops) || count > 0 || rc == KL_EBUSY)
        rc = kl__queue_take_in(taker->queue, 0, NULL, NULL, &count);
    return NULL;
}

static bool start_taker(struct taker *taker, struct bed *bed, atomic_bool *stops)
{
    *taker = (struct taker){.bed = bed, .stops = stops};
    bool good = kl_store_open(bed->url, NULL, &taker->store) == KL_OK &&
                kl_queue_open(taker->store, "orders", NULL, &taker->queue) == KL_OK &&
                pthread_create(&taker->thread, NULL, take_on, taker) == 0;
    CHECK(good);
    return good;
}

static bool inbox_is_empty(void *bed) { return in_inbox(bed) == 0; }

/* A task with a unique is put on a second connection while the first is held. */
TEST(several_who_take_in_over_one_handle_do_not_wait_for_one_another_s_connections)
{
    enum { TAKERS = 4, TASKS = 25 };
    struct bed bed;
    struct taker takers[TAKERS];
    kl_store *store = NULL;
    atomic_bool stops = false;
    size_t started = 0;
    char name[16];
    REQUIRE(open_bed(&bed, NULL));
    PGconn *app = connect_app(&bed);
    snprintf(bed.url + strlen(bed.url), sizeof bed.url - strlen(bed.url), "&pool=2");
    REQUIRE(kl_store_open(bed.url, NULL, &store) == KL_OK);
    for (; started < TAKERS; started++) {
        takers[started] = (struct taker){.bed = &bed, .stops = &stops};
        snprintf(name, sizeof name, "queue-%zu", started);
        REQUIRE(kl_queue_open(store, name, NULL, &takers[started].queue) == KL_OK);
        for (int i = 0; i < TASKS; i++)
            say(app, "SELECT put('%s', 'x', unique_key => '%d')", name, i);
    }
    for (size_t i = 0; i < started; i++)
        REQUIRE(pthread_create(&takers[i].thread, NULL, take_on, &takers[i]) == 0);
    REQUIRE(await_condition("all are taken in", inbox_is_empty, &bed)); /* else they wait for ever */
    atomic_store(&stops, true);
    for (size_t i = 0; i < started; i++) {
        pthread_join(takers[i].thread, NULL);
        kl_queue_close(takers[i].queue);
    }
    PQfinish(app);
    kl_store_close(store);
    close_bed(&bed);
}

TEST(several_who_take_in_while_connections_are_cut_double_nothing)
{
    enum { TAKERS = 3, TASKS = 60, KEYS = 5 };
    struct bed bed;
    struct taker takers[TAKERS];
    atomic_bool stops = false;
    char cut[256], expected[256] = "";
    size_t started = 0;
    REQUIRE(open_bed(&bed, NULL));
    PGconn *app = connect_app(&bed);
    snprintf(cut, sizeof cut, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '%s'",
             bed.schema);
    while (started < TAKERS && start_taker(&takers[started], &bed, &stops))
        started++;
    for (int i = 0; i < TASKS; i++) {
        for (int key = 0; key < KEYS; key++)
            say(app, "SELECT put('orders', '%d', key => 'k%d')", i, key);
        snprintf(expected + strlen(expected), sizeof expected - strlen(expected), "%d ", i);
        if (i % 10 == 5)
            pg_server_run(cut);
    }
    atomic_store(&stops, true);
    for (size_t i = 0; i < started; i++) {
        pthread_join(takers[i].thread, NULL);
        kl_queue_close(takers[i].queue);
        kl_store_close(takers[i].store);
    }
    take_in_all(&bed);
    for (int key = 0; key < KEYS; key++) {
        char name[8];
        snprintf(name, sizeof name, "k%d", key);
        CHECK_KEY(&bed, name, expected);
    }
    PQfinish(app);
    close_bed(&bed);
}
