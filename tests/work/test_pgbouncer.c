/* test_pgbouncer.c - the PostgreSQL engine behind PgBouncer in transaction mode, where a session is nobody's own.
 *
 * There are fewer connections to the server than clients use, so every transaction may find itself on another one. */
#include "store/pg_server.h"
#include "work/support.h"

enum { CONNECTIONS = 3, KEYS = 20, EACH = 15, ALL = KEYS * EACH };

struct bed {
    char pooler[PG_URL_BYTES], url[PG_URL_BYTES], schema[64];
    kl_store *stores[2];
    kl_queue *queues[2];
};

static bool open_bed(struct bed *bed)
{
    char direct[PG_URL_BYTES];
    *bed = (struct bed){.stores = {NULL}};
    bool good = pg_server_new_schema(direct, bed->schema) == KL_OK && pg_bouncer_url(CONNECTIONS, bed->pooler) == KL_OK;
    if (good)
        snprintf(bed->url, sizeof bed->url, "%.300s&schema=%s", bed->pooler, bed->schema);
    for (int i = 0; good && i < 2; i++)
        good = kl_store_open(bed->url, NULL, &bed->stores[i]) == KL_OK &&
               kl_queue_open(bed->stores[i], "orders", NULL, &bed->queues[i]) == KL_OK;
    if (!good)
        test_fail(__FILE__, __LINE__, "no queue: %s", kl_error_text());
    return good;
}

static void close_bed(struct bed *bed)
{
    char sql[128];
    for (int i = 0; i < 2; i++) {
        kl_queue_close(bed->queues[i]);
        kl_store_close(bed->stores[i]);
    }
    snprintf(sql, sizeof sql, "DROP SCHEMA IF EXISTS %s CASCADE", bed->schema);
    pg_server_run(sql);
}

static bool all_done(void *ctx)
{
    const struct order *order = ctx;
    return atomic_load(&order->done) >= ALL;
}

/* The batch is large enough for COPY. */
TEST(workers_behind_a_pooler_run_everything_in_order)
{
    static struct order order;
    struct bed bed;
    order = (struct order){.seed = test_seed(), .retry_every = 10};
    REQUIRE(open_bed(&bed));
    struct start start = {.fn = order_handle, .ctx = &order, .concurrency = 2};
    kl_worker *first = start_worker(bed.queues[0], &start), *second = start_worker(bed.queues[1], &start);
    put_numbers(bed.queues[0], "k", KEYS, EACH);
    CHECK(await_condition("everything is done", all_done, &order));
    order_check(&order, KEYS, EACH);
    drain_and_close(first);
    drain_and_close(second);
    close_bed(&bed);
}

TEST(tasks_put_in_sql_come_through_a_pooler)
{
    struct bed bed;
    struct runs runs;
    char sql[256];
    REQUIRE(open_bed(&bed));
    runs_init(&runs);
    kl_worker *worker = start_worker(bed.queues[0], &(struct start){.fn = runs_handle, .ctx = &runs});
    PGconn *app = PQconnectdb(bed.pooler);
    for (int i = 1; i <= 5; i++) {
        snprintf(sql, sizeof sql, "BEGIN; SELECT %s.put('orders', 'done %d', key => 'a'); COMMIT", bed.schema, i);
        PGresult *rows = PQexec(app, sql);
        CHECK_INT(PQresultStatus(rows), PGRES_COMMAND_OK);
        PQclear(rows);
    }
    CHECK(runs_wait(&runs, 5));
    CHECK(runs_first(&runs, "done 1") < runs_first(&runs, "done 5"));
    PQfinish(app);
    drain_and_close(worker);
    close_bed(&bed);
    runs_free(&runs);
}
