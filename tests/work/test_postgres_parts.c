/* test_postgres_parts.c - partitions on PostgreSQL: their number changes under load, they are named in SQL, and they lie in
 * several databases. */
#include <libpq-fe.h>

#include "change.h"
#include "store/pg_server.h"

static void drop(const char *schema)
{
    char sql[128];
    snprintf(sql, sizeof sql, "DROP SCHEMA IF EXISTS %s CASCADE", schema);
    pg_server_run(sql);
}

TEST(order_per_key_survives_growing_and_shrinking_under_load_on_postgres)
{
    struct rig rig = {.store = NULL};
    char url[PG_URL_BYTES], schema[64];
    REQUIRE(pg_server_new_schema(url, schema) == KL_OK);
    REQUIRE(kl_store_open(url, NULL, &rig.store) == KL_OK);
    CHECK_INT(kl_queue_open(rig.store, "orders", CHANGE_OPTS, &rig.queue), KL_OK);
    if (rig.queue)
        change_under_load(&rig, 50);
    rig_close(&rig);
    drop(schema);
}

/* --- Two databases --- */

enum { DATABASE_KEYS = 12, EACH = 5 };

struct two {
    kl_store *store;
    kl_queue *queue;
    char url[PG_URL_BYTES], schema[64], other[PG_URL_BYTES + 32];
};

static bool open_two(struct two *two)
{
    const char *stores[] = {"", two->other};
    kl_queue_opts opts = {.size = sizeof opts, .partitions = 2, .stores = stores, .store_count = 2};
    *two = (struct two){.store = NULL};
    if (pg_server_new_schema(two->url, two->schema) != KL_OK)
        return false;
    pg_server_run("CREATE DATABASE second");
    snprintf(two->other, sizeof two->other, "%s&dbname=second", two->url);
    return kl_store_open(two->url, NULL, &two->store) == KL_OK &&
           kl_queue_open(two->store, "orders", &opts, &two->queue) == KL_OK;
}

static void close_two(struct two *two)
{
    kl_queue_close(two->queue);
    kl_store_close(two->store);
    drop(two->schema);
    pg_server_run("DROP DATABASE second WITH (FORCE)");
}

/* Each key's first tasks through the library, its last one in SQL. */
static void put_in_both(struct two *two)
{
    char sql[256];
    put_numbers(two->queue, "key-", DATABASE_KEYS, EACH - 1);
    for (int key = 0; key < DATABASE_KEYS; key++) {
        snprintf(sql, sizeof sql, "SELECT %s.put('orders', '%d %d', key => 'key-%d')", two->schema, key, EACH - 1, key);
        pg_server_run(sql);
    }
}

/* In this database, or the one that is named. */
static long long tasks_in(const char *database, const char *schema)
{
    char sql[128], plain[PG_URL_BYTES], url[PG_URL_BYTES + 32] = "";
    if (pg_server_url(plain) == KL_OK)
        snprintf(url, sizeof url, "%s%c%s%s", plain, strchr(plain, '?') ? '&' : '?', database ? "dbname=" : "",
                 database ? database : "");
    snprintf(sql, sizeof sql, "SELECT count(*) FROM %s.tasks", schema);
    PGconn *conn = PQconnectdb(url);
    PGresult *rows = PQexec(conn, sql);
    long long number = PQntuples(rows) == 1 ? atoll(PQgetvalue(rows, 0, 0)) : -1;
    if (number < 0)
        test_fail(__FILE__, __LINE__, "%s", PQerrorMessage(conn));
    PQclear(rows);
    PQfinish(conn);
    return number;
}

TEST(partitions_in_two_databases_are_one_queue)
{
    static struct order order;
    struct two two;
    memset(&order, 0, sizeof order);
    REQUIRE(open_two(&two));
    put_in_both(&two);
    long long here = tasks_in(NULL, two.schema), there = tasks_in("second", two.schema);
    CHECK(here > 0);
    CHECK(there > 0);
    CHECK_INT(here + there, DATABASE_KEYS * (EACH - 1)); /* what was put in SQL is in the inbox */
    kl_worker *worker = start_worker(
        two.queue, &(struct start){.fn = order_handle, .ctx = &order, .concurrency = 4, .until_empty = true});
    CHECK_INT(kl_worker_wait(worker, KL_FOREVER), KL_OK);
    kl_worker_close(worker);
    order_check(&order, DATABASE_KEYS, EACH);
    close_two(&two);
}
