/* peer_sqlite.c - the same cycle on a table in SQLite.
 *
 * WAL and synchronous = FULL: every commit is synced. A producer inserts its group in one transaction. The worker takes
 * the oldest tasks, up to TAKE_MAX in one transaction, reads them, runs them, and deletes them as a range: the cheapest
 * way that SQLite has. Writers take turns by a mutex, because SQLite's own waiting sleeps for milliseconds. There are
 * no shards, owners or retries. */
#include <pthread.h>
#include <sqlite3.h>

#include "bench.h"

enum { TAKE_MAX = 4096, KEY_BYTES = 32 };

const char program[] = "bench-queue-sqlite";

static char keys[KEYS][KEY_BYTES];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int64_t waiting, settled; /* tasks; guarded by the mutex */
static int over;

struct connection {
    sqlite3 *db;
    sqlite3_stmt *begin, *commit, *insert, *take, *remove;
};

#define MUST_SQLITE(connection, call) MUST_SAYING((call) == SQLITE_OK, sqlite3_errmsg((connection)->db))

static sqlite3_stmt *prepare(struct connection *to, const char *sql)
{
    sqlite3_stmt *statement;
    MUST_SQLITE(to, sqlite3_prepare_v3(to->db, sql, -1, SQLITE_PREPARE_PERSISTENT, &statement, NULL));
    return statement;
}

static void step(struct connection *to, sqlite3_stmt *statement)
{
    MUST_SAYING(sqlite3_step(statement) == SQLITE_DONE, sqlite3_errmsg(to->db));
    MUST_SQLITE(to, sqlite3_reset(statement));
}

static void open_connection(struct connection *to, const struct settings *settings)
{
    MUST_SQLITE(to, sqlite3_open(path_in(settings, "tasks.db"), &to->db));
    MUST_SQLITE(to, sqlite3_busy_timeout(to->db, 10000));
    MUST_SQLITE(to, sqlite3_exec(to->db,
                                 "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;"
                                 "CREATE TABLE IF NOT EXISTS tasks (id INTEGER PRIMARY KEY, key TEXT, payload BLOB)",
                                 NULL, NULL, NULL));
    to->begin = prepare(to, "BEGIN IMMEDIATE");
    to->commit = prepare(to, "COMMIT");
    to->insert = prepare(to, "INSERT INTO tasks (key, payload) VALUES (?1, ?2)");
    to->take = prepare(to, "SELECT id, key, payload FROM tasks ORDER BY id LIMIT ?1");
    to->remove = prepare(to, "DELETE FROM tasks WHERE id <= ?1");
}

static void close_connection(struct connection *to)
{
    sqlite3_finalize(to->begin);
    sqlite3_finalize(to->commit);
    sqlite3_finalize(to->insert);
    sqlite3_finalize(to->take);
    sqlite3_finalize(to->remove);
    MUST_SQLITE(to, sqlite3_close(to->db));
}

static void put_group(struct connection *to, size_t *at, long group)
{
    pthread_mutex_lock(&mutex);
    step(to, to->begin);
    for (long i = 0; i < group; i++, *at = (*at + 1) % KEYS) {
        MUST_SQLITE(to, sqlite3_bind_text(to->insert, 1, keys[*at], -1, SQLITE_STATIC));
        MUST_SQLITE(to, sqlite3_bind_blob(to->insert, 2, payload, sizeof payload, SQLITE_STATIC));
        step(to, to->insert);
    }
    step(to, to->commit);
    waiting += group;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}

static volatile unsigned char seen; /* of each payload, so that it is really read */

/* Reads and runs the oldest tasks; returns how many, and the last one's number. */
static int64_t run_oldest(struct connection *from, int64_t *ret_last)
{
    int64_t count = 0;
    int rc;
    MUST_SQLITE(from, sqlite3_bind_int(from->take, 1, TAKE_MAX));
    while ((rc = sqlite3_step(from->take)) == SQLITE_ROW) {
        *ret_last = sqlite3_column_int64(from->take, 0);
        MUST_SAYING(sqlite3_column_bytes(from->take, 2) == PAYLOAD_BYTES, "a payload has another length");
        seen = *(const unsigned char *)sqlite3_column_blob(from->take, 2);
        count++;
    }
    MUST_SAYING(rc == SQLITE_DONE, sqlite3_errmsg(from->db));
    MUST_SQLITE(from, sqlite3_reset(from->take));
    return count;
}

static void *run_worker(void *context)
{
    struct connection from;
    open_connection(&from, context);
    pthread_mutex_lock(&mutex);
    for (;;) {
        int64_t last = 0;
        while (waiting == 0 && !over)
            pthread_cond_wait(&changed, &mutex);
        if (waiting == 0)
            break;
        step(&from, from.begin);
        int64_t count = run_oldest(&from, &last);
        MUST_SQLITE(&from, sqlite3_bind_int64(from.remove, 1, last));
        step(&from, from.remove);
        step(&from, from.commit);
        waiting -= count;
        settled += count;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&mutex); /* for the producers */
        pthread_mutex_lock(&mutex);
    }
    pthread_mutex_unlock(&mutex);
    close_connection(&from);
    return NULL;
}

struct producer {
    pthread_t thread;
    const struct settings *settings;
    size_t at;
    int64_t until_ns, put;
};

static void *run_producer(void *context)
{
    struct producer *producer = context;
    struct connection to;
    open_connection(&to, producer->settings);
    while (now_ns() < producer->until_ns) {
        put_group(&to, &producer->at, producer->settings->group);
        producer->put += producer->settings->group;
    }
    close_connection(&to);
    return NULL;
}

static int64_t produce(const struct settings *settings)
{
    struct producer producers[PRODUCERS];
    int64_t put = 0, until_ns = now_ns() + settings->ms * 1000000;
    for (size_t i = 0; i < PRODUCERS; i++) {
        producers[i] = (struct producer){.settings = settings, .at = i * KEYS / PRODUCERS, .until_ns = until_ns};
        MUST(pthread_create(&producers[i].thread, NULL, run_producer, &producers[i]) == 0);
    }
    for (size_t i = 0; i < PRODUCERS; i++) {
        MUST(pthread_join(producers[i].thread, NULL) == 0);
        put += producers[i].put;
    }
    return put;
}

static void await_settled(int64_t count)
{
    pthread_mutex_lock(&mutex);
    while (settled < count)
        pthread_cond_wait(&changed, &mutex);
    pthread_mutex_unlock(&mutex);
}

static void run_cycle(const struct settings *settings)
{
    pthread_t worker;
    struct connection first;
    size_t at = 0;
    int64_t warm = 0;
    for (size_t i = 0; i < KEYS; i++)
        snprintf(keys[i], sizeof keys[i], "key-%06zu", i);
    open_connection(&first, settings);
    MUST(pthread_create(&worker, NULL, run_worker, unconst(settings)) == 0);
    for (; warm < settings->warm + KEYS; warm += WARM_GROUP)
        put_group(&first, &at, WARM_GROUP);
    await_settled(warm);

    int64_t begin_ns = now_ns(), begin_cpu_ns = cpu_ns();
    int64_t put = produce(settings);
    int64_t put_ns = now_ns() - begin_ns;
    await_settled(warm + put);
    int64_t took_ns = now_ns() - begin_ns;
    printf("tasks/s %.0f cpu_ns %.0f put_share %.3f\n", (double)put * 1e9 / (double)took_ns,
           (double)(cpu_ns() - begin_cpu_ns) / (double)put, (double)put_ns / (double)took_ns);
    pthread_mutex_lock(&mutex);
    over = 1;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
    MUST(pthread_join(worker, NULL) == 0);
    close_connection(&first);
}

const struct mode modes[] = {{"cycle", run_cycle}, {0}};
