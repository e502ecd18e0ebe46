/* peer_sqlite.c - a table of tasks in SQLite: a group is inserted in one transaction and deleted in another.
 *
 * WAL and synchronous = FULL: every commit is synced. The table is the leanest that serves: the primary key is the
 * order of a shard, and there is no other index. Statements are prepared once.
 *
 * Where threads append and settle beside one another, each has a connection. SQLite lets one of them write at a time;
 * they wait for each other at a mutex, because a connection that finds the database taken sleeps, and for longer than a
 * transaction lasts. */
#include <pthread.h>
#include <sqlite3.h>

#include "bench.h"

struct connection {
    sqlite3 *db;
    sqlite3_stmt *begin, *commit, *insert, *delete;
};

static struct pair {
    struct connection first, second, *appending, *settling;
    int64_t appended, settled; /* positions: of the first task that is not yet */
} pairs[PAIRS_MAX];

static pthread_mutex_t writing = PTHREAD_MUTEX_INITIALIZER;

#define MUST_SQLITE(connection, call) MUST_SAYING((call) == SQLITE_OK, sqlite3_errmsg((connection)->db))

static sqlite3_stmt *prepare(struct connection *connection, const char *sql)
{
    sqlite3_stmt *statement;
    MUST_SQLITE(connection, sqlite3_prepare_v3(connection->db, sql, -1, SQLITE_PREPARE_PERSISTENT, &statement, NULL));
    return statement;
}

static void step(struct connection *connection, sqlite3_stmt *statement)
{
    MUST_SAYING(sqlite3_step(statement) == SQLITE_DONE, sqlite3_errmsg(connection->db));
    MUST_SQLITE(connection, sqlite3_reset(statement));
}

static void open_connection(struct connection *connection, const struct settings *settings)
{
    MUST_SQLITE(connection, sqlite3_open(path_in(settings, "tasks.db"), &connection->db));
    MUST_SQLITE(connection,
                sqlite3_exec(connection->db,
                             "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;"
                             "CREATE TABLE IF NOT EXISTS tasks (shard INTEGER, position INTEGER, payload BLOB,"
                             " PRIMARY KEY (shard, position)) WITHOUT ROWID",
                             NULL, NULL, NULL));
    connection->begin = prepare(connection, "BEGIN IMMEDIATE");
    connection->commit = prepare(connection, "COMMIT");
    connection->insert = prepare(connection, "INSERT INTO tasks VALUES (?1, ?2, ?3)");
    connection->delete = prepare(connection, "DELETE FROM tasks WHERE shard = ?1 AND position = ?2");
}

static void open_sqlite(const struct settings *settings)
{
    for (int i = 0; i == 0 || i < settings->pairs; i++) {
        struct pair *pair = &pairs[i];
        pair->appending = pair->settling = &pair->first;
        open_connection(&pair->first, settings);
        if (settings->pairs) {
            pair->settling = &pair->second;
            open_connection(&pair->second, settings);
        }
        pair->appended = pair->settled = ((int64_t)i << 60) + now_ns(); /* goes up from run to run */
    }
}

static void begin(struct connection *connection)
{
    pthread_mutex_lock(&writing);
    step(connection, connection->begin);
}

static void commit(struct connection *connection)
{
    step(connection, connection->commit);
    pthread_mutex_unlock(&writing);
}

static void bind_task(struct connection *connection, sqlite3_stmt *statement, int64_t position)
{
    MUST_SQLITE(connection, sqlite3_bind_int64(statement, 1, position % SHARDS));
    MUST_SQLITE(connection, sqlite3_bind_int64(statement, 2, position));
}

static void append_sqlite(int index, size_t count)
{
    struct pair *pair = &pairs[index];
    struct connection *appending = pair->appending;
    begin(appending);
    for (int64_t end = pair->appended + (int64_t)count; pair->appended < end; pair->appended++) {
        bind_task(appending, appending->insert, pair->appended);
        MUST_SQLITE(appending, sqlite3_bind_blob(appending->insert, 3, payload, sizeof payload, SQLITE_STATIC));
        step(appending, appending->insert);
    }
    commit(appending);
}

static void settle_sqlite(int index, size_t count)
{
    struct pair *pair = &pairs[index];
    struct connection *settling = pair->settling;
    begin(settling);
    for (int64_t end = pair->settled + (int64_t)count; pair->settled < end; pair->settled++) {
        bind_task(settling, settling->delete, pair->settled);
        step(settling, settling->delete);
        MUST_SAYING(sqlite3_changes(settling->db) == 1, "the task is not there");
    }
    commit(settling);
}

static void close_connection(struct connection *connection)
{
    sqlite3_finalize(connection->begin);
    sqlite3_finalize(connection->commit);
    sqlite3_finalize(connection->insert);
    sqlite3_finalize(connection->delete);
    MUST_SQLITE(connection, sqlite3_close(connection->db));
}

static void close_sqlite(void)
{
    for (int i = 0; i < PAIRS_MAX && pairs[i].appending; i++) {
        close_connection(pairs[i].appending);
        if (pairs[i].settling != pairs[i].appending)
            close_connection(pairs[i].settling);
    }
}

static const struct mode modes[] = {{0}};

const struct side side = {.name = "sqlite",
                          .open = open_sqlite,
                          .append = append_sqlite,
                          .settle = settle_sqlite,
                          .close = close_sqlite,
                          .modes = modes};
