/* doctor_history.c - examines history.db without changing it; see doctor_history.h. */
#include "store/disk/doctor_history.h"

#include <stdio.h>
#include <string.h>

#include "store/disk/history_inside.h"

/* Names first, then numbers of partitions that only tasks name. */
static kl_rc list_partitions(kl__hdb *db, kl__history_name_fn *named, void *ctx)
{
    static const char sql[] = "SELECT number, name FROM partitions UNION ALL SELECT DISTINCT partition, '' FROM counts "
                              "WHERE partition NOT IN (SELECT number FROM partitions)";
    sqlite3_stmt *statement;
    int rc = sqlite3_prepare_v2(db->sqlite, sql, -1, &statement, NULL);
    if (rc != SQLITE_OK)
        return kl__hdb_fail(db, rc);
    while ((rc = sqlite3_step(statement)) == SQLITE_ROW) {
        int64_t number = sqlite3_column_int64(statement, 0);
        const char *name = (const char *)sqlite3_column_text(statement, 1);
        if (number > 0 && number <= UINT32_MAX)
            named(ctx, (uint32_t)number, name ? name : "");
    }
    kl_rc result = rc == SQLITE_DONE ? KL_OK : kl__hdb_fail(db, rc);
    sqlite3_finalize(statement);
    return result;
}

static kl_rc count_tasks(kl__hdb *db, uint64_t *ret_tasks)
{
    sqlite3_stmt *statement;
    bool row;
    KL_TRY(kl__hdb_use(db, KL_SQL_GET_TOTAL, &statement));
    KL_TRY(kl__hdb_step(db, statement, &row));
    *ret_tasks = row ? (uint64_t)sqlite3_column_int64(statement, 0) : 0;
    return KL_OK;
}

static kl_rc read_all(kl__hdb *db, kl__history_name_fn *named, void *ctx, kl__history_report *report)
{
    bool is_new;
    KL_TRY(kl__hdb_recognise(db, &is_new));
    if (is_new)
        return KL_OK;
    int64_t settled;
    KL_TRY(kl__hdb_progress(db, &report->position, &report->commits, &settled));
    KL_TRY(count_tasks(db, &report->tasks));
    report->tasks_known = true;
    KL_TRY(kl__hdb_check_version(db));
    KL_TRY(list_partitions(db, named, ctx));
    return kl__hdb_check(db);
}

static int64_t ask(kl__hdb *db, const char *sql)
{
    sqlite3_stmt *statement;
    int64_t value = 0;
    if (sqlite3_prepare_v2(db->sqlite, sql, -1, &statement, NULL) != SQLITE_OK)
        return 0;
    if (sqlite3_step(statement) == SQLITE_ROW)
        value = sqlite3_column_int64(statement, 0);
    sqlite3_finalize(statement);
    return value;
}

static bool is_newer(kl__hdb *db)
{
    return ask(db, "PRAGMA application_id") == KL_HISTORY_APPLICATION_ID &&
           ask(db, "PRAGMA user_version") > KL_HISTORY_VERSION;
}

kl_rc kl__history_examine(const char *path, const char *sqlite_vfs, bool has_wal, kl__history_name_fn *named, void *ctx,
                          kl__history_report *ret_report)
{
    kl__hdb *db;
    memset(ret_report, 0, sizeof *ret_report);
    KL_TRY(kl__hdb_look(path, sqlite_vfs, has_wal, &db));
    kl_rc rc = kl__hdb_do(db, KL_SQL_BEGIN_READ);
    if (rc == KL_OK)
        rc = kl__hdb_end(db, read_all(db, named, ctx, ret_report));
    if (rc == KL_EDAMAGED) {
        snprintf(ret_report->text, sizeof ret_report->text, "%s", kl_error_text());
        char *advice = strstr(ret_report->text, KL_HISTORY_ADVICE); /* the doctor is there */
        if (advice)
            *advice = 0;
        ret_report->health = is_newer(db) ? KL_HISTORY_NEWER : KL_HISTORY_DAMAGED;
        rc = KL_OK;
    }
    kl__hdb_close(db);
    return rc;
}

static kl_rc count_each(kl__hdb *db, kl__history_next_fn *next, void *ctx, uint64_t *ret_count)
{
    uint32_t partition;
    kl_task_id id;
    while (next(ctx, &partition, &id)) {
        sqlite3_stmt *statement;
        bool row;
        KL_TRY(kl__hdb_use(db, KL_SQL_WHERE_TASK, &statement));
        sqlite3_bind_int64(statement, 1, partition);
        sqlite3_bind_blob(statement, 2, &id, sizeof id, SQLITE_TRANSIENT);
        KL_TRY(kl__hdb_step(db, statement, &row));
        *ret_count += row;
    }
    return KL_OK;
}

kl_rc kl__history_count_of(const char *path, const char *sqlite_vfs, bool has_wal, kl__history_next_fn *next, void *ctx,
                           uint64_t *ret_count)
{
    kl__hdb *db;
    *ret_count = 0;
    KL_TRY(kl__hdb_look(path, sqlite_vfs, has_wal, &db));
    kl_rc rc = kl__hdb_do(db, KL_SQL_BEGIN_READ);
    if (rc == KL_OK)
        rc = kl__hdb_end(db, count_each(db, next, ctx, ret_count));
    kl__hdb_close(db);
    return rc;
}
