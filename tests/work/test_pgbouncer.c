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

static bool open_queues(struct bed *bed)
{
    bool good = true;
    for (int i = 0; good && i < 2; i++)
        good = kl_store_open(bed->url, NULL, &bed->stores[i]) == KL_OK &&
               kl_queue_open(bed->stores[i], "orders", NULL, &bed->queues[i]) == KL_OK;
    if (!good)
        test_fail(__FILE__, __LINE__, "no queue: %s", kl_error_text());
    return good;
}

static bool open_bed(struct bed *bed)
{
    char direct[PG_URL_BYTES];
    *bed = (struct bed){.stores = {NULL}};
    if (pg_server_new_schema(direct, bed->schema) != KL_OK || pg_bouncer_url(CONNECTIONS, bed->pooler) != KL_OK)
        return false;
    snprintf(bed->url, sizeof bed->url, "%.300s&schema=%s", bed->pooler, bed->schema);
    return open_queues(bed);
}

static void close_queues(struct bed *bed)
{
    for (int i = 0; i < 2; i++) {
        kl_queue_close(bed->queues[i]);
        kl_store_close(bed->stores[i]);
    }
}

static void close_bed(struct bed *bed)
{
    char sql[128];
    close_queues(bed);
    snprintf(sql, sizeof sql, "DROP SCHEMA IF EXISTS %s CASCADE", bed->schema);
    pg_server_run(sql);
}

static bool all_done(void *ctx)
{
    const struct order *order = ctx;
    return atomic_load(&order->done) >= ALL;
}

static void run_in_order(struct bed *bed)
{
    static struct order order;
    order = (struct order){.seed = test_seed(), .retry_every = 10};
    struct start start = {.fn = order_handle, .ctx = &order, .concurrency = 2};
    kl_worker *first = start_worker(bed->queues[0], &start), *second = start_worker(bed->queues[1], &start);
    put_numbers(bed->queues[0], "k", KEYS, EACH);
    CHECK(await_condition("everything is done", all_done, &order));
    order_check(&order, KEYS, EACH);
    drain_and_close(first);
    drain_and_close(second);
}

TEST(workers_behind_a_pooler_run_everything_in_order)
{
    struct bed bed;
    REQUIRE(open_bed(&bed));
    run_in_order(&bed);
    close_bed(&bed);
}

static void run_in_database(const char *plain, const char *database)
{
    struct bed bed = {.stores = {NULL}};
    struct runs runs;
    char sql[128];
    snprintf(bed.url, sizeof bed.url, "%.300s&dbname=%s", plain, database);
    REQUIRE(open_queues(&bed));
    run_in_order(&bed);
    runs_init(&runs);
    kl_worker *worker = start_worker(bed.queues[0], &(struct start){.fn = runs_handle, .ctx = &runs});
    PGconn *app = PQconnectdb(bed.url);
    snprintf(sql, sizeof sql, "SELECT keyline.put('orders', 'done', key => 'a')");
    PGresult *rows = PQexec(app, sql);
    CHECK_INT(PQresultStatus(rows), PGRES_TUPLES_OK);
    PQclear(rows);
    CHECK(runs_wait(&runs, 1));
    PQfinish(app);
    drain_and_close(worker);
    runs_free(&runs);
    close_queues(&bed);
}

TEST(a_database_with_another_isolation_level_by_default_is_used_with_the_one_that_is_needed)
{
    static const char *const levels[] = {"serializable", "repeatable read"};
    char pooler[PG_URL_BYTES], direct[PG_URL_BYTES], sql[128];
    REQUIRE(pg_server_url(direct) == KL_OK && pg_bouncer_url(CONNECTIONS, pooler) == KL_OK);
    for (int i = 0; i < 2; i++) {
        snprintf(sql, sizeof sql, "CREATE DATABASE strict_%d", i);
        pg_server_run(sql);
        snprintf(sql, sizeof sql, "ALTER DATABASE strict_%d SET default_transaction_isolation = '%s'", i, levels[i]);
        pg_server_run(sql);
        snprintf(sql, sizeof sql, "strict_%d", i);
        run_in_database(i == 0 ? direct : pooler, sql);
        run_in_database(i == 0 ? pooler : direct, sql);
        snprintf(sql, sizeof sql, "DROP DATABASE strict_%d WITH (FORCE)", i);
        pg_server_run(sql);
    }
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

/* One with a unique is put by itself, and the others by the statements that take them out. */
static void take_in_in_order(struct bed *bed, int tasks)
{
    struct runs runs;
    char sql[256];
    runs_init(&runs);
    snprintf(sql, sizeof sql,
             "SELECT %s.put('orders', 'done ' || n, key => 'a', unique_key => CASE WHEN n %% 2 = 0 THEN n::text END)"
             " FROM generate_series(1, %d) n",
             bed->schema, tasks);
    pg_server_run(sql);
    struct start start = {.fn = runs_handle, .ctx = &runs};
    kl_worker *first = start_worker(bed->queues[0], &start), *second = start_worker(bed->queues[1], &start);
    CHECK(runs_wait(&runs, (size_t)tasks));
    for (int i = 1; i <= tasks; i++) {
        snprintf(sql, sizeof sql, "done %d", i);
        CHECK_INT(runs_first(&runs, sql), i - 1);
    }
    drain_and_close(first);
    drain_and_close(second);
    CHECK_INT(runs_count(&runs), tasks);
    runs_free(&runs);
}

TEST(one_connection_to_the_server_is_enough_to_take_in_what_is_put_in_sql)
{
    struct bed bed = {.stores = {NULL}};
    char direct[PG_URL_BYTES];
    REQUIRE(pg_server_new_schema(direct, bed.schema) == KL_OK && pg_bouncer_url(CONNECTIONS, bed.pooler) == KL_OK);
    snprintf(bed.url, sizeof bed.url, "%.300s&dbname=single&schema=%s", bed.pooler, bed.schema);
    REQUIRE(open_queues(&bed));
    take_in_in_order(&bed, 6);
    close_bed(&bed);
}

static void set_limit(const char *sql)
{
    pg_server_run(sql);
    pg_server_run("SELECT pg_reload_conf()");
}

/* That they lie elsewhere than their keys say is written into the queue's record before the first of them is taken in.
 * The server does not end a take-in that waits for ever. */
TEST(one_connection_to_the_server_is_enough_for_tasks_whose_partition_is_named)
{
    enum { TASKS = 4 };
    struct bed bed = {.stores = {NULL}};
    struct runs runs;
    char direct[PG_URL_BYTES], sql[256];
    REQUIRE(pg_server_new_schema(direct, bed.schema) == KL_OK && pg_bouncer_url(CONNECTIONS, bed.pooler) == KL_OK);
    snprintf(bed.url, sizeof bed.url, "%.300s&dbname=single&schema=%s", bed.pooler, bed.schema);
    REQUIRE(open_queues(&bed));
    CHECK_INT(kl_queue_alter(bed.queues[0], &(kl_queue_opts){.size = sizeof(kl_queue_opts), .partitions = 2}), KL_OK);
    snprintf(sql, sizeof sql,
             "SELECT %s.put('orders', 'done', key => n::text, partition => 'orders__p1') FROM generate_series(1, %d) n",
             bed.schema, TASKS);
    pg_server_run(sql);
    set_limit("ALTER SYSTEM SET idle_in_transaction_session_timeout = '1h'");
    runs_init(&runs);
    kl_worker *worker = start_worker(bed.queues[0], &(struct start){.fn = runs_handle, .ctx = &runs});
    CHECK(runs_wait(&runs, TASKS));
    set_limit("ALTER SYSTEM RESET idle_in_transaction_session_timeout");
    drain_and_close(worker);
    runs_free(&runs);
    close_bed(&bed);
}

TEST(two_workers_take_in_each_task_once_and_in_order_those_that_are_put_alone_too)
{
    struct bed bed = {.stores = {NULL}};
    REQUIRE(pg_server_new_schema(bed.url, bed.schema) == KL_OK && open_queues(&bed));
    take_in_in_order(&bed, 200);
    close_bed(&bed);
}

/* --- What is told of it --- */

struct lines {
    pthread_mutex_t mutex;
    int heard, deaf, lost;
};

static void note(void *ctx, kl_log_level level, const char *text)
{
    struct lines *lines = ctx;
    (void)level;
    pthread_mutex_lock(&lines->mutex);
    lines->heard += strstr(text, "heard of by LISTEN") != NULL;
    lines->deaf += strstr(text, "LISTEN does not work here") != NULL;
    lines->lost += strstr(text, "the connection that listens is lost") != NULL;
    pthread_mutex_unlock(&lines->mutex);
}

struct told {
    struct lines *lines;
    const int *count;
    kl_store *store;
    uint32_t partition;
};

/* Waits for tasks meanwhile: for nobody it would not listen. */
static bool is_told(void *ctx)
{
    const struct told *told = ctx;
    uint64_t seen = 0;
    CHECK_INT(kl_store_wait(told->store, told->partition, 1, &seen), KL_OK);
    pthread_mutex_lock(&told->lines->mutex);
    bool yes = *told->count > 0;
    pthread_mutex_unlock(&told->lines->mutex);
    return yes;
}

/* Opens a store, waits for tasks until the line was told that `count` counts, and closes it. */
static void wait_until_told(const char *url, struct lines *lines, const int *count, void (*disturb)(void))
{
    kl_store_opts opts = {.size = sizeof opts, .log = note, .log_ctx = lines};
    kl_store *store = NULL;
    uint32_t partition;
    CHECK_INT(kl_store_open(url, &opts, &store), KL_OK);
    REQUIRE(store);
    CHECK_INT(kl_store_partition(store, "orders", 1, &partition), KL_OK);
    if (disturb) {
        await_condition("it listens", is_told, &(struct told){lines, &lines->heard, store, partition});
        disturb();
    }
    await_condition("it is told", is_told, &(struct told){lines, count, store, partition});
    kl_store_close(store);
}

/* All but the session that says so. */
static void end_listeners(void)
{
    pg_server_run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query ~ 'pg_notify.*proof|LISTEN'"
                  " AND pid <> pg_backend_pid()");
}

TEST(that_listen_does_not_work_is_told_once_and_only_behind_a_pooler)
{
    struct bed bed;
    struct lines direct = {.mutex = PTHREAD_MUTEX_INITIALIZER}, pooled = direct, lost = direct;
    char url[PG_URL_BYTES];
    REQUIRE(open_bed(&bed));
    REQUIRE(pg_server_url(url) == KL_OK);
    size_t length = strlen(url);
    snprintf(url + length, sizeof url - length, "%cschema=%s", strchr(url, '?') ? '&' : '?', bed.schema);
    wait_until_told(url, &direct, &direct.heard, NULL);
    CHECK(direct.heard == 1 && direct.deaf == 0 && direct.lost == 0);
    wait_until_told(bed.url, &pooled, &pooled.deaf, NULL);
    CHECK(pooled.heard == 0 && pooled.deaf == 1 && pooled.lost == 0);
    wait_until_told(url, &lost, &lost.lost, end_listeners);
    CHECK(lost.deaf == 0 && lost.lost == 1);
    close_bed(&bed);
}
