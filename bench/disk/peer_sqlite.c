/* peer_sqlite.c - a table of tasks in SQLite: a group is inserted in one transaction and deleted in another.
 *
 * WAL and synchronous = FULL: every commit is synced. The table is the leanest that serves: the primary key is the
 * order of a shard, and there is no other index. Statements are prepared once. */
#include <sqlite3.h>

#include "bench.h"

static sqlite3 *db;
static sqlite3_stmt *begin, *commit, *insert, *delete;
static int64_t position; /* of the group's first task */

#define MUST_SQLITE(call) MUST_SAYING((call) == SQLITE_OK, sqlite3_errmsg(db))

static sqlite3_stmt *prepare(const char *sql)
{
    sqlite3_stmt *statement;
    MUST_SQLITE(sqlite3_prepare_v3(db, sql, -1, SQLITE_PREPARE_PERSISTENT, &statement, NULL));
    return statement;
}

static void step(sqlite3_stmt *statement)
{
    MUST_SAYING(sqlite3_step(statement) == SQLITE_DONE, sqlite3_errmsg(db));
    MUST_SQLITE(sqlite3_reset(statement));
}

static void open_sqlite(const struct settings *settings)
{
    MUST_SQLITE(sqlite3_open(path_in(settings, "tasks.db"), &db));
    MUST_SQLITE(sqlite3_exec(db,
                             "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;"
                             "CREATE TABLE IF NOT EXISTS tasks (shard INTEGER, position INTEGER, payload BLOB,"
                             " PRIMARY KEY (shard, position)) WITHOUT ROWID",
                             NULL, NULL, NULL));
    begin = prepare("BEGIN IMMEDIATE");
    commit = prepare("COMMIT");
    insert = prepare("INSERT INTO tasks VALUES (?1, ?2, ?3)");
    delete = prepare("DELETE FROM tasks WHERE shard = ?1 AND position = ?2");
    position = now_ns(); /* goes up from run to run */
}

static void bind_task(sqlite3_stmt *statement, size_t i)
{
    MUST_SQLITE(sqlite3_bind_int64(statement, 1, (sqlite3_int64)(i % SHARDS)));
    MUST_SQLITE(sqlite3_bind_int64(statement, 2, position + (int64_t)i));
}

static void append_sqlite(size_t count)
{
    step(begin);
    for (size_t i = 0; i < count; i++) {
        bind_task(insert, i);
        MUST_SQLITE(sqlite3_bind_blob(insert, 3, payload, sizeof payload, SQLITE_STATIC));
        step(insert);
    }
    step(commit);
}

static void settle_sqlite(size_t count)
{
    step(begin);
    for (size_t i = 0; i < count; i++) {
        bind_task(delete, i);
        step(delete);
        MUST_SAYING(sqlite3_changes(db) == 1, "the task is not there");
    }
    step(commit);
    position += (int64_t)count;
}

static void close_sqlite(void)
{
    sqlite3_finalize(begin);
    sqlite3_finalize(commit);
    sqlite3_finalize(insert);
    sqlite3_finalize(delete);
    MUST_SQLITE(sqlite3_close(db));
}

static const struct mode modes[] = {{0}};

const struct side side = {.name = "sqlite",
                          .open = open_sqlite,
                          .append = append_sqlite,
                          .settle = settle_sqlite,
                          .close = close_sqlite,
                          .modes = modes};
