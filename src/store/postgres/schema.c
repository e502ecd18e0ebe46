/* schema.c - the schema is made on first use, and checked at every opening.
 *
 * Steps are numbered from 1. `meta` says how many have been applied; those that are missing are applied in one
 * transaction, under an advisory lock, so that of several processes that come first one does it and the others wait.
 *
 * Between releases a step is changed where it stands, and its number does not tell. So `meta` has a hash of each that
 * was applied, too, and where that is another one the schema is refused: calls would fail later, or worse. Blanks do
 * not count, because the texts are made by the compiler. */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>

#include "base/hash.h"
#include "store/postgres/postgres.h"
#include "store/postgres/sql.h"

static const char *const step_1[] = {kl__pg_sql_tables,
                                     kl__pg_sql_tasks,
                                     kl__pg_sql_settle,
                                     kl__pg_sql_records,
                                     kl__pg_sql_upkeep,
                                     kl__pg_sql_paths,
                                     NULL};
static const char *const step_2[] = {kl__pg_sql_inbox, kl__pg_sql_paths, NULL};
static const char *const *const steps[KL_PG_VERSION] = {step_1, step_2};

enum { STEPS_BYTES = 17 * KL_PG_VERSION + 1 };

static uint64_t hash_of(const char *const *part)
{
    uint64_t hash = 0;
    for (; *part; part++)
        for (const char *at = *part, *end; *at; at = end) {
            while (isspace((unsigned char)*at))
                at++;
            for (end = at; *end && !isspace((unsigned char)*end); end++)
                ;
            hash = kl__hash((kl_bytes){at, (size_t)(end - at)}, hash);
        }
    return hash;
}

/* The hashes of the first `count` steps. */
static void list_steps(int count, char ret_text[STEPS_BYTES])
{
    char *to = ret_text;
    KL_ASSERT(count <= KL_PG_VERSION);
    *to = '\0';
    for (int i = 0; i < count; i++)
        to += sprintf(to, "%s%016" PRIx64, i ? " " : "", hash_of(steps[i]));
}

static kl_rc refuse(const PGconn *conn, const PGresult *rows)
{
    const char *text = PQerrorMessage(conn), *state = PQresultErrorField(rows, PG_DIAG_SQLSTATE);
    if (state && strcmp(state, "42501") == 0)
        return kl__fail(KL_ESYSTEM,
                        "the schema of the store is not to be made or read: %.*s; to make it, GRANT CREATE ON DATABASE "
                        "to this user, or call `keyline migrate` as another; to use one that is there, GRANT the role "
                        "that owns it to this user",
                        (int)strcspn(text, "\n"), text);
    if (state && strcmp(state, "25006") == 0)
        return kl__pg_fail_read_only(text);
    if (strstr(text, "statement pooling mode"))
        return kl__fail(KL_EINVAL,
                        "the pooler works in statement mode, and a store needs transactions: set its pool_mode to "
                        "transaction, or name the server itself in the URL");
    if (PQstatus(conn) != CONNECTION_OK)
        return kl__fail(KL_EBUSY, "the connection was lost while the schema was looked at (%.*s); try again",
                        (int)strcspn(text, "\n"), text);
    return kl__fail(KL_ESYSTEM, "the schema of the store is not to be made or read: %.*s", (int)strcspn(text, "\n"),
                    text);
}

static kl_rc run(kl__pg *pg, PGconn *conn, const char *sql)
{
    PGresult *rows = kl__pg_run(pg, conn, sql);
    bool no_memory = !rows && PQstatus(conn) == CONNECTION_OK;
    kl_rc rc = no_memory ? kl__fail_memory() : kl__pg_is_good(rows) ? KL_OK : refuse(conn, rows);
    PQclear(rows);
    return rc;
}

/* A number, or `none` where the answer is NULL or no row. */
static kl_rc ask_number(kl__pg *pg, PGconn *conn, const char *sql, int none, int *ret_number)
{
    char *text = kl__pg_expand(pg, sql);
    if (!text)
        return kl__fail_memory();
    PGresult *rows = PQexecParams(conn, text, 0, NULL, NULL, NULL, NULL, 1);
    kl_rc rc = KL_OK;
    if (PQresultStatus(rows) != PGRES_TUPLES_OK)
        rc = refuse(conn, rows);
    else
        *ret_number = PQntuples(rows) == 0 || PQgetisnull(rows, 0, 0) ? none : (int)kl__pg_get_int(rows, 0, 0);
    PQclear(rows);
    kl__free(text);
    return rc;
}

/* What an earlier build made may have no column for the hashes. */
static kl_rc check_steps(kl__pg *pg, PGconn *conn, int version)
{
    char text[STEPS_BYTES], sql[STEPS_BYTES + 256];
    int same = 0;
    list_steps(version, text);
    snprintf(
        sql, sizeof sql,
        "SELECT pg_catalog.count(*)::int FROM $S.meta m WHERE pg_catalog.to_jsonb(m) OPERATOR(pg_catalog.->>) 'steps'"
        " OPERATOR(pg_catalog.=) '%s'",
        text);
    kl_rc rc = ask_number(pg, conn, sql, 0, &same);
    if (rc == KL_OK && !same)
        rc =
            kl__fail(KL_EINVAL,
                     "the schema %s was made by another build, with other tables or functions than this one needs; use "
                     "that build, name a new schema in the URL (schema=...), or give up what is in it (DROP SCHEMA %s "
                     "CASCADE)",
                     pg->schema, pg->schema);
    return rc;
}

/* How many steps have been applied; 0: there is no schema. KL_EINVAL: they were other steps. The catalogue is read as a
 * table, because a session that once looked for the name in vain may go on to believe so behind the advisory lock. */
static kl_rc read_version(kl__pg *pg, PGconn *conn, int *ret_version)
{
    int there = 0;
    kl_rc rc = ask_number(pg, conn,
                          "SELECT pg_catalog.count(*)::int FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n"
                          " ON n.oid = c.relnamespace WHERE n.nspname = $C AND c.relname = 'meta'",
                          0, &there);
    *ret_version = 0;
    if (rc == KL_OK && there)
        rc = ask_number(pg, conn, "SELECT version FROM $S.meta", 0, ret_version);
    bool is_known = *ret_version > 0 && *ret_version <= KL_PG_VERSION;
    return rc == KL_OK && is_known ? check_steps(pg, conn, *ret_version) : rc;
}

/* CREATE SCHEMA IF NOT EXISTS wants the right to make one also where it is there already. */
static kl_rc make_schema(kl__pg *pg, PGconn *conn)
{
    int there = 0;
    kl_rc rc = ask_number(
        pg, conn, "SELECT pg_catalog.count(*)::int FROM pg_catalog.pg_namespace n WHERE n.nspname = $C", 0, &there);
    return rc == KL_OK && !there ? run(pg, conn, "CREATE SCHEMA $S") : rc;
}

static kl_rc apply_step(kl__pg *pg, PGconn *conn, int step)
{
    kl_rc rc = KL_OK;
    for (const char *const *part = steps[step]; rc == KL_OK && *part; part++)
        rc = run(pg, conn, *part);
    return rc;
}

static kl_rc apply_missing(kl__pg *pg, PGconn *conn)
{
    char text[STEPS_BYTES], sql[STEPS_BYTES + 80];
    int version = 0;
    kl_rc rc = run(pg, conn, "SELECT pg_catalog.pg_advisory_xact_lock($L, 1)");
    if (rc == KL_OK)
        rc = read_version(pg, conn, &version);
    if (rc == KL_OK && version == 0)
        rc = make_schema(pg, conn);
    if (rc == KL_OK && version == 0)
        rc = run(
            pg, conn,
            "CREATE TABLE $S.meta (only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row), version int NOT NULL,"
            " steps text NOT NULL);"
            "INSERT INTO $S.meta (version, steps) VALUES (0, '')");
    for (int step = version; rc == KL_OK && step < KL_PG_VERSION; step++)
        rc = apply_step(pg, conn, step);
    list_steps(KL_PG_VERSION, text);
    snprintf(sql, sizeof sql, "UPDATE $S.meta SET version = %d, steps = '%s' WHERE version < %d", KL_PG_VERSION, text,
             KL_PG_VERSION);
    return rc == KL_OK ? run(pg, conn, sql) : rc;
}

static kl_rc migrate(kl__pg *pg, PGconn *conn)
{
    kl_rc rc = run(pg, conn, "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL search_path = pg_catalog, pg_temp");
    if (rc == KL_OK)
        rc = apply_missing(pg, conn);
    if (rc == KL_OK)
        rc = run(pg, conn, "COMMIT");
    if (rc == KL_OK)
        kl__pg_log(pg, KL_LOG_INFO, "the schema %s is at version %d", pg->schema, KL_PG_VERSION);
    return rc; /* else the connection is closed, which takes everything back */
}

static kl_rc check(kl__pg *pg, PGconn *conn, int *ret_version)
{
    if (PQserverVersion(conn) < KL_PG_SERVER_MIN)
        return kl__fail(KL_EINVAL, "the server is PostgreSQL %d; it must be 13 or newer",
                        PQserverVersion(conn) / 10000);
    kl_rc rc = read_version(pg, conn, ret_version);
    if (rc == KL_OK && *ret_version > KL_PG_VERSION)
        rc = kl__fail(KL_EINVAL,
                      "the schema %s is at version %d, and this release knows %d; use the release that made it, or a "
                      "newer one",
                      pg->schema, *ret_version, KL_PG_VERSION);
    return rc;
}

kl_rc kl__pg_schema_migrate(kl__pg *pg, bool only_look, int *ret_before, int *ret_after)
{
    PGconn *conn;
    int version = 0;
    kl_rc rc = kl__pg_connect(pg, &conn);
    if (rc != KL_OK)
        return rc;
    rc = check(pg, conn, &version);
    *ret_before = *ret_after = version;
    if (rc == KL_OK && version < KL_PG_VERSION && !only_look) {
        rc = migrate(pg, conn);
        *ret_after = KL_PG_VERSION;
    }
    kl__pg_disconnect(pg, conn);
    return rc;
}

kl_rc kl__pg_schema_open(kl__pg *pg)
{
    int before, after;
    kl_rc rc = kl__pg_schema_migrate(pg, !pg->may_migrate, &before, &after);
    if (rc == KL_OK && after < KL_PG_VERSION)
        rc = kl__fail(KL_EINVAL,
                      "the schema %s is at version %d, this release needs %d, and the URL says migrate=off; call "
                      "`keyline migrate` first",
                      pg->schema, before, KL_PG_VERSION);
    return rc;
}
