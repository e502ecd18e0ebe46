/* table.c - the bare table: INSERT ... unnest by two threads (sql.c), and two more that delete what they take by SKIP
 * LOCKED. No order, no leases, no retries: the least that a queue in PostgreSQL can be. Statements are prepared, values
 * binary.
 *
 * It is shown at its best: empty when a run begins, without the dead rows of the run before, and always read by its
 * index (what is planned on an empty table may read all of it each time). */
#include "bench.h"

static void run(PGconn *conn, const char *sql)
{
    PGresult *rows = PQexec(conn, sql);
    MUST(PQresultStatus(rows) == PGRES_COMMAND_OK || PQresultStatus(rows) == PGRES_TUPLES_OK, PQerrorMessage(conn));
    PQclear(rows);
}

static void *produce(void *ctx)
{
    produce_sql(ctx, "INSERT INTO bench_table (key, payload) SELECT * FROM unnest($1, $2)");
    return NULL;
}

static atomic_int ends;

static void *consume(void *ctx)
{
    struct load *load = ctx;
    PGconn *conn = open_connection(load);
    char sql[300];
    snprintf(sql, sizeof sql,
             "DELETE FROM bench_table WHERE id = ANY (ARRAY(SELECT id FROM bench_table ORDER BY id LIMIT %ld"
             " FOR UPDATE SKIP LOCKED)) RETURNING key, payload",
             load->settings->group);
    run(conn, "SET enable_seqscan = off");
    PQclear(PQprepare(conn, "take", sql, 0, NULL));
    while (!atomic_load(&ends)) {
        PGresult *rows = PQexecPrepared(conn, "take", 0, NULL, NULL, NULL, 1);
        MUST(PQresultStatus(rows) == PGRES_TUPLES_OK, PQerrorMessage(conn));
        for (int i = 0; i < PQntuples(rows); i++) { /* what it has got is deleted durably */
            note_latency(&load->picked_up, stamp_of(PQgetvalue(rows, i, 1)));
            note_latency(&load->settled, stamp_of(PQgetvalue(rows, i, 1)));
        }
        atomic_fetch_add(&load->run, PQntuples(rows));
        if (PQntuples(rows) == 0)
            nanosleep(&(struct timespec){0, 1000000}, NULL);
        PQclear(rows);
    }
    PQfinish(conn);
    return NULL;
}

static int64_t put_all(struct load *load, long ms)
{
    pthread_t producers[PRODUCERS];
    begin(load, ms);
    for (int i = 0; i < PRODUCERS; i++)
        MUST(pthread_create(&producers[i], NULL, produce, load) == 0, "no thread");
    for (int i = 0; i < PRODUCERS; i++)
        pthread_join(producers[i], NULL);
    return now_ns() - load->began_ns;
}

void run_table(struct load *load)
{
    pthread_t consumers[CONSUMERS];
    PGconn *conn = open_connection(load);
    run(conn, "SET client_min_messages = error; CREATE TABLE IF NOT EXISTS bench_table (id bigint GENERATED ALWAYS AS"
              " IDENTITY PRIMARY KEY, key text, payload bytea); TRUNCATE bench_table");
    PQfinish(conn);
    for (int i = 0; i < CONSUMERS; i++)
        MUST(pthread_create(&consumers[i], NULL, consume, load) == 0, "no thread");
    put_all(load, WARM_MS);
    await_run(load);
    finish(load, put_all(load, load->settings->ms));
    atomic_store(&ends, 1);
    for (int i = 0; i < CONSUMERS; i++)
        pthread_join(consumers[i], NULL);
}
