/* test_postgres_held.c - transactions that put tasks and stay open for a minute, beside others that come and go.
 *
 * One sits idle and is committed, one is in the middle of a statement and is rolled back. It sleeps nearly all the
 * time, and stands in a program of its own so that others run meanwhile. KL_TEST_HOLD_MS: another time than a
 * minute. */
#include <libpq-fe.h>
#include <stdarg.h>
#include <time.h>

#include "store/pg_server.h"
#include "work/support.h"

enum { HOLD_MS = 60000, ROUNDS = 10, EACH = 20 };

struct bed {
    kl_store *store;
    kl_queue *queue;
    char schema[64];
    struct runs runs;
    kl_worker *worker;
    PGconn *committed, *rolled_back, *quick;
};

static int64_t hold_ms(void)
{
    const char *asked = getenv("KL_TEST_HOLD_MS");
    return asked ? atoll(asked) : HOLD_MS;
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

static PGconn *connect_app(const struct bed *bed)
{
    PGconn *app = pg_server_connect();
    say(app, "SET search_path = %s, public", bed->schema);
    return app;
}

static bool open_bed(struct bed *bed)
{
    char url[PG_URL_BYTES];
    *bed = (struct bed){.store = NULL};
    runs_init(&bed->runs);
    bool good = pg_server_new_schema(url, bed->schema) == KL_OK && kl_store_open(url, NULL, &bed->store) == KL_OK &&
                kl_queue_open(bed->store, "orders", NULL, &bed->queue) == KL_OK;
    if (!good)
        test_fail(__FILE__, __LINE__, "no queue: %s", kl_error_text());
    else
        bed->worker = start_worker(bed->queue, &(struct start){.fn = runs_handle, .ctx = &bed->runs});
    return bed->worker != NULL;
}

static void close_bed(struct bed *bed)
{
    char sql[128];
    PQfinish(bed->committed);
    PQfinish(bed->rolled_back);
    PQfinish(bed->quick);
    kl_worker_close(bed->worker);
    kl_queue_close(bed->queue);
    kl_store_close(bed->store);
    snprintf(sql, sizeof sql, "DROP SCHEMA IF EXISTS %s CASCADE", bed->schema);
    pg_server_run(sql);
    runs_free(&bed->runs);
}

/* Those that are committed: rows of others are not seen. */
static long long in_inbox(const struct bed *bed)
{
    char sql[128];
    snprintf(sql, sizeof sql, "SELECT count(*) FROM %s.inbox", bed->schema);
    return pg_server_number(sql);
}

static bool all_ended(void *ctx)
{
    struct bed *bed = ctx;
    return in_inbox(bed) == 0 && rig_waiting(&(struct rig){.store = bed->store, .queue = bed->queue}) == 0;
}

/* To the key of the open transactions and to others, in SQL and through the library; all of it is run and settled. */
static void put_and_end(struct bed *bed, int round)
{
    char payload[32], key[16];
    size_t before = runs_count(&bed->runs);
    for (int i = 0; i < EACH; i++) {
        say(bed->quick, "SELECT put('orders', 'done same %d', key => 'same')", round * EACH + i);
        say(bed->quick, "SELECT put('orders', 'done', key => 'sql-%d')", i);
        snprintf(key, sizeof key, "own-%d", i);
        put_task(bed->queue, key, "done");
    }
    runs_wait(&bed->runs, before + 3 * (size_t)EACH);
    await_condition("all that was put beside the open transactions has ended", all_ended, bed);
    for (int i = 0; i < EACH; i++) {
        snprintf(payload, sizeof payload, "done same %d", round * EACH + i);
        CHECK_INT(runs_of(&bed->runs, payload), 1);
    }
}

/* How many of the two are still open; for how long at least is in the server's words. */
static long long still_open(const struct bed *bed, int64_t for_ms)
{
    char sql[256];
    snprintf(sql, sizeof sql,
             "SELECT count(*) FROM pg_stat_activity WHERE pid IN (%d, %d) AND "
             "clock_timestamp() - xact_start >= interval '%lld ms'",
             PQbackendPID(bed->committed), PQbackendPID(bed->rolled_back), (long long)for_ms);
    return pg_server_number(sql);
}

static void begin(struct bed *bed, int64_t ms)
{
    say(bed->committed, "BEGIN; SELECT put('orders', 'done held 0', key => 'same')");
    say(bed->committed, "SELECT put_many('orders', ARRAY['done held 1', 'done alone'], keys => ARRAY['same', 'held'])");
    say(bed->rolled_back, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT put('orders', 'done never', key => 'same')");
    say(bed->rolled_back, "SELECT put('orders', 'done never', key => 'held')");
    char sleep[64];
    snprintf(sleep, sizeof sleep, "SELECT pg_sleep(%lld.%03lld)", (long long)ms / 1000, (long long)ms % 1000);
    CHECK(PQsendQuery(bed->rolled_back, sleep) == 1);
}

static void check_same_key(struct bed *bed)
{
    char payload[32];
    int last = -1;
    for (int i = 0; i < ROUNDS * EACH; i++) {
        snprintf(payload, sizeof payload, "done same %d", i);
        int place = runs_first(&bed->runs, payload);
        CHECK(place > last);
        last = place;
    }
    static const char *const after[] = {"done held 0", "done held 1", "done held 2", "done after"};
    for (size_t i = 0; i < sizeof after / sizeof after[0]; i++) {
        int place = runs_first(&bed->runs, after[i]);
        CHECK(place > last);
        CHECK_INT(runs_of(&bed->runs, after[i]), 1);
        last = place;
    }
}

TEST(transactions_held_open_for_a_minute_hold_up_nobody_and_run_once_they_are_committed)
{
    struct bed bed;
    int64_t ms = hold_ms();
    if (!open_bed(&bed))
        return;
    bed.committed = connect_app(&bed);
    bed.rolled_back = connect_app(&bed);
    bed.quick = connect_app(&bed);
    begin(&bed, ms);
    for (int round = 0; round < ROUNDS && !test_failed(); round++) {
        struct timespec part = {ms / ROUNDS / 1000, ms / ROUNDS % 1000 * 1000000};
        put_and_end(&bed, round);
        nanosleep(&part, NULL); /* it is what this is about */
    }
    size_t others = runs_count(&bed.runs);
    CHECK_INT(others, 3 * ROUNDS * EACH);
    CHECK_INT(still_open(&bed, ms), 2); /* and everything else has ended */
    PGresult *rows;
    while ((rows = PQgetResult(bed.rolled_back)))
        PQclear(rows);
    say(bed.rolled_back, "SELECT put('orders', 'done never', key => 'same'); ROLLBACK");
    say(bed.committed, "SELECT put('orders', 'done held 2', key => 'same'); COMMIT");
    say(bed.quick, "SELECT put('orders', 'done after', key => 'same')");
    runs_wait(&bed.runs, others + 5);
    await_condition("all has ended", all_ended, &bed);
    check_same_key(&bed);
    CHECK_INT(runs_of(&bed.runs, "done alone"), 1);
    CHECK_INT(runs_of(&bed.runs, "done never"), 0);
    CHECK_INT(runs_count(&bed.runs), others + 5);
    close_bed(&bed);
}
