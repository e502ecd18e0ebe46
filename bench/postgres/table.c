/* table.c - the bare table: INSERT ... unnest by two threads, and two more that delete what they take by SKIP LOCKED. No
 * order, no leases, no retries: the least that a queue in PostgreSQL can be. Statements are prepared, values binary.
 *
 * It is shown at its best: empty when a run begins, without the dead rows of the run before, and always read by its index
 * (what is planned on an empty table may read all of it each time). */
#include <arpa/inet.h>

#include "bench.h"

static PGconn *open_connection(const struct load *load)
{
    PGconn *conn = PQconnectdb(load->settings->url);
    MUST(PQstatus(conn) == CONNECTION_OK, PQerrorMessage(conn));
    return conn;
}

static void run(PGconn *conn, const char *sql)
{
    PGresult *rows = PQexec(conn, sql);
    MUST(PQresultStatus(rows) == PGRES_COMMAND_OK || PQresultStatus(rows) == PGRES_TUPLES_OK, PQerrorMessage(conn));
    PQclear(rows);
}

/* An array of bytea in binary. */
struct array {
    char *bytes;
    size_t used;
};

static void add_word(struct array *array, uint32_t word)
{
    word = htonl(word);
    memcpy(array->bytes + array->used, &word, 4);
    array->used += 4;
}

static void begin_array(struct array *array, long count)
{
    array->used = 0;
    add_word(array, 1);
    add_word(array, 0);
    add_word(array, 17); /* bytea */
    add_word(array, (uint32_t)count);
    add_word(array, 1);
}

static void add_bytes(struct array *array, const char *bytes, size_t length)
{
    add_word(array, (uint32_t)length);
    memcpy(array->bytes + array->used, bytes, length);
    array->used += length;
}

static void *produce(void *ctx)
{
    struct load *load = ctx;
    long group = load->settings->group;
    PGconn *conn = open_connection(load);
    struct array keys = {malloc((size_t)group * 20 + 20), 0}, values = {malloc((size_t)group * 210 + 20), 0};
    unsigned long number = (unsigned long)now_ns();
    const Oid types[2] = {1001, 1001};
    MUST(keys.bytes && values.bytes, "memory");
    PQclear(PQprepare(conn, "put", "INSERT INTO bench_table (key, payload) SELECT * FROM unnest($1, $2)", 2, types));
    while (goes_on(load)) {
        char key[KEY_BYTES + 1], bytes[PAYLOAD_BYTES];
        stamp(bytes);
        begin_array(&keys, group);
        begin_array(&values, group);
        for (long i = 0; i < group; i++) {
            make_key(key, number++);
            add_bytes(&keys, key, KEY_BYTES);
            add_bytes(&values, bytes, PAYLOAD_BYTES);
        }
        PGresult *rows = PQexecPrepared(conn, "put", 2, (const char *const[]){keys.bytes, values.bytes},
                                        (const int[]){(int)keys.used, (int)values.used}, (const int[]){1, 1}, 1);
        MUST(PQresultStatus(rows) == PGRES_COMMAND_OK, PQerrorMessage(conn));
        PQclear(rows);
        atomic_fetch_add(&load->put, group);
    }
    free(keys.bytes);
    free(values.bytes);
    PQfinish(conn);
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
        for (int i = 0; i < PQntuples(rows); i++)
            note_latency(load, PQgetvalue(rows, i, 1));
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
              " IDENTITY PRIMARY KEY, key bytea, payload bytea); TRUNCATE bench_table");
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
