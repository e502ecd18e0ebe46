/* pool.c - connections to the server, and what its errors mean.
 *
 * A call borrows a connection for one statement. There are as many as are used at once, up to `pool_max`; whoever finds
 * none waits for one to be given back. One that broke is closed, and the next call opens another. Where there are a few
 * already, a call waits a moment before it opens one more: a session that is used now and then costs the server more
 * than one that is used all the time, because what it has planned and keeps is no longer in the processor's caches.
 *
 * What is not known: when a connection is lost between the statement and its answer, it may have been committed. A call
 * that may be repeated (S5) is made again on another connection, for up to KL_PG_PATIENCE_MS; another fails with
 * KL_EBUSY, and its caller decides. A transaction that the server took back itself (a deadlock with somebody else's
 * statements, say) is always made again. */
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/wait.h"
#include "store/postgres/seen.h"

enum {
    PAUSE_MIN_MS = 5,
    READ_ONLY_TRIES = 1, /* more on another connection */
    PAUSE_MAX_MS = 250,
    LOG_BYTES = 512,
    TEXT_MAX = 300,
    FEW = 2,          /* connections that are made at once; */
    PATIENT_MS = 3,   /* before there are more, it is waited so long for one of them */
    REST_MIN_MS = 50, /* between two tries of all calls together to get a connection, up to PAUSE_MAX_MS */
    GONE_TIMES = 4    /* times as long as a connection was waited for in vain nobody else tries */
};

void kl__pg_log(const kl__pg *pg, kl_log_level level, const char *format, ...)
{
    char text[LOG_BYTES];
    va_list arguments;
    if (!pg->opts.log)
        return;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    pg->opts.log(pg->opts.log_ctx, level, text);
}

int kl__pg_length(const char *text)
{
    size_t length = strcspn(text, "\n");
    return (int)(length < TEXT_MAX ? length : TEXT_MAX);
}

/* --- Connections --- */

/* An idle connection that has something to say has usually been closed by the server, which says why before the end. */
static bool still_good(PGconn *conn)
{
    struct pollfd ready = {.fd = PQsocket(conn), .events = POLLIN};
    bool good = PQstatus(conn) == CONNECTION_OK;
    while (good && poll(&ready, 1, 0) > 0)
        good = PQconsumeInput(conn) == 1 && PQstatus(conn) == CONNECTION_OK;
    return good;
}

/* A pooler shows another process than the one that a statement runs in. */
bool kl__pg_is_direct(PGconn *conn)
{
    PGresult *rows = PQexec(conn, "SELECT pg_catalog.pg_backend_pid()");
    bool direct = PQresultStatus(rows) == PGRES_TUPLES_OK && kl__pg_get_text_int(rows, 0, 0) == PQbackendPID(conn);
    PQclear(rows);
    return direct;
}

/* The database, or the user, may have another default than the level that the schema's functions need. */
static bool is_strict(PGconn *conn)
{
    PGresult *rows = PQexec(conn, "SHOW default_transaction_isolation");
    bool strict = PQntuples(rows) == 1 && strcmp(PQgetvalue(rows, 0, 0), "read committed") != 0;
    PQclear(rows);
    return strict;
}

/* False: it did not work, and each transaction has to say it. */
static bool set_level(PGconn *conn)
{
    PGresult *rows = PQexec(conn, "SET default_transaction_isolation = 'read committed'");
    bool set = kl__pg_is_good(rows);
    PQclear(rows);
    return set;
}

/* What the pool has to know of a new one. */
static void look_at(kl__pg *pg, PGconn *conn)
{
    bool direct = kl__pg_is_direct(conn), strict = is_strict(conn);
    if (strict && direct)
        strict = !set_level(conn);
    pthread_mutex_lock(&pg->mutex);
    kl__pg_link *link = kl__pg_link_of(pg, conn);
    if (link) {
        link->direct = direct;
        link->strict = strict;
    }
    pthread_mutex_unlock(&pg->mutex);
}

/* Whether the server has crashed is not known, so what it has shown counts no more. NULL: there was no connection. */
static void give_up(kl__pg *pg, PGconn *conn)
{
    if (conn) {
        kl__pg_seen_clear(pg->seen);
        kl__pg_lows_forget(pg);
    }
    kl__pg_disconnect(pg, conn);
    pthread_mutex_lock(&pg->mutex);
    pg->open_count--;
    pthread_cond_signal(&pg->given);
    pthread_mutex_unlock(&pg->mutex);
}

/* Nobody listens on it; but behind a pooler somebody else may have, on the same session. */
static void drop_notices(PGconn *conn)
{
    for (PGnotify *notice; (notice = PQnotifies(conn));)
        PQfreemem(notice);
}

static void give_back(kl__pg *pg, PGconn *conn)
{
    drop_notices(conn);
    if (PQstatus(conn) != CONNECTION_OK || PQtransactionStatus(conn) != PQTRANS_IDLE) {
        give_up(pg, conn);
        return;
    }
    pthread_mutex_lock(&pg->mutex);
    kl__pg_link *link = kl__pg_link_of(pg, conn);
    if (link)
        link->since_ns = 0;
    pg->idle[pg->idle_count++] = conn;
    pthread_cond_signal(&pg->given);
    pthread_mutex_unlock(&pg->mutex);
}

/* Whether the connection knows the statement; the mutex is held. */
static bool knows(kl__pg *pg, const PGconn *conn, const char *sql)
{
    const kl__pg_link *link = kl__pg_link_of(pg, conn);
    for (int number = 0; link && number < KL_PG_STATEMENTS && pg->statements[number]; number++)
        if (pg->statements[number] == sql)
            return (link->prepared >> number & 1) != 0;
    return false;
}

/* The one that was given back last, or the last of those that know the statement: what a session has planned and keeps
 * in memory costs as much as hundreds of calls. */
static PGconn *choose_idle(kl__pg *pg, const char *sql)
{
    uint32_t at = pg->idle_count - 1;
    for (uint32_t i = pg->idle_count; sql && i-- > 0;)
        if (knows(pg, pg->idle[i], sql)) {
            at = i;
            break;
        }
    PGconn *conn = pg->idle[at];
    pg->idle_count--;
    memmove(&pg->idle[at], &pg->idle[at + 1], (pg->idle_count - at) * sizeof pg->idle[0]);
    kl__pg_link *link = kl__pg_link_of(pg, conn);
    if (link)
        link->since_ns = kl__monotonic_ns();
    return conn;
}

/* *ret_conn NULL: there is room for a new one, which counts already. KL_EBUSY: there is not, and calls were cut since
 * began_ns: who waited behind them does not wait for the next ones. */
static kl_rc take_idle(kl__pg *pg, const char *sql, int64_t began_ns, PGconn **ret_conn)
{
    *ret_conn = NULL;
    pthread_mutex_lock(&pg->mutex);
    int64_t until_ns = pg->idle_count == 0 ? kl__deadline_ns(PATIENT_MS) : 0;
    while (pg->idle_count == 0 && pg->open_count >= FEW && kl__cond_wait(&pg->given, &pg->mutex, until_ns))
        ;
    while (pg->idle_count == 0 && pg->open_count >= pg->pool_max && atomic_load(&pg->cut_ns) < began_ns)
        kl__cond_wait(&pg->given, &pg->mutex, KL_NEVER);
    bool has_room = pg->open_count<pg->pool_max, has_idle = pg->idle_count> 0;
    if (has_idle)
        *ret_conn = choose_idle(pg, sql);
    else if (has_room)
        pg->open_count++;
    pthread_mutex_unlock(&pg->mutex);
    if (has_idle || has_room)
        return KL_OK;
    return kl__fail(KL_EBUSY, "the database answers none of the calls that are under way; make this one again");
}

/* A server that is away is not asked by every call of every thread. While there is no connection to be had, one of them
 * tries, and then rests; the others are told what it was told. */
static kl_rc take_turn(kl__pg *pg)
{
    char why[KL_PG_WHY_BYTES];
    int64_t now_ns = kl__monotonic_ns();
    pthread_mutex_lock(&pg->mutex);
    bool rests = pg->rest_ms && now_ns < pg->try_ns;
    if (pg->rest_ms && !rests)
        pg->try_ns = now_ns + pg->rest_ms * INT64_C(1000000);
    memcpy(why, pg->gone_why, sizeof why);
    pthread_mutex_unlock(&pg->mutex);
    return rests ? kl__fail(KL_EBUSY, "%s", why) : KL_OK;
}

/* Processes that lost their server at the same time do not come back at the same time. */
static void end_turn(kl__pg *pg, kl_rc rc)
{
    int64_t now_ns = kl__monotonic_ns();
    pthread_mutex_lock(&pg->mutex);
    int64_t next_ms = pg->rest_ms ? 2 * pg->rest_ms : REST_MIN_MS;
    pg->rest_ms = rc != KL_EBUSY ? 0 : next_ms < PAUSE_MAX_MS ? next_ms : PAUSE_MAX_MS;
    if (pg->rest_ms) {
        int64_t half_ns = pg->rest_ms * 500000;
        pg->try_ns = now_ns + half_ns + now_ns % half_ns;
        snprintf(pg->gone_why, sizeof pg->gone_why, "%s", kl_error_text());
    }
    pthread_mutex_unlock(&pg->mutex);
}

static kl_rc borrow(kl__pg *pg, const char *sql, int64_t began_ns, PGconn **ret_conn)
{
    PGconn *conn;
    kl_rc rc;
    while ((rc = take_idle(pg, sql, began_ns, &conn)) == KL_OK && conn && !still_good(conn))
        give_up(pg, conn);
    if (rc != KL_OK || conn) {
        *ret_conn = conn;
        return rc;
    }
    rc = take_turn(pg);
    if (rc == KL_OK) {
        rc = kl__pg_connect(pg, &conn);
        end_turn(pg, rc);
    }
    if (rc != KL_OK) {
        give_up(pg, NULL);
        return rc;
    }
    rc = kl__pg_names_check(pg, conn);
    if (rc != KL_OK) {
        give_up(pg, conn);
        return rc;
    }
    look_at(pg, conn);
    *ret_conn = conn;
    return KL_OK;
}

void kl__pg_pool_close(kl__pg *pg)
{
    while (pg->idle_count > 0)
        kl__pg_disconnect(pg, pg->idle[--pg->idle_count]);
}

/* --- Text --- */

/* A number for the schema in the two-part advisory locks, which all applications of a database share: FNV-1a. */
static int32_t lock_number(const char *schema)
{
    uint32_t hash = 2166136261u;
    for (const char *at = schema; *at; at++)
        hash = (hash ^ (unsigned char)*at) * 16777619u;
    return (int32_t)(hash ^ 0x6b657966u);
}

char *kl__pg_expand(const kl__pg *pg, const char *sql)
{
    char values[3][KL_PG_SCHEMA_BYTES + 4];
    static const char names[] = "SCL";
    snprintf(values[0], sizeof values[0], "\"%s\"", pg->schema);
    snprintf(values[1], sizeof values[1], "'%s'", pg->schema);
    snprintf(values[2], sizeof values[2], "(%d)", lock_number(pg->schema));
    size_t room = strlen(sql) + 1;
    for (const char *at = sql; (at = strchr(at, '$')); at++)
        room += sizeof values[0];
    char *text = kl__alloc(room), *to = text;
    for (const char *at = sql; text && *at;) {
        const char *name = *at == '$' && at[1] ? strchr(names, at[1]) : NULL;
        if (name) {
            to = stpcpy(to, values[name - names]);
            at += 2;
        } else {
            *to++ = *at++;
        }
    }
    if (text)
        *to = '\0';
    return text;
}

PGresult *kl__pg_run(const kl__pg *pg, PGconn *conn, const char *sql)
{
    char *text = kl__pg_expand(pg, sql);
    PGresult *rows = text ? PQexec(conn, text) : NULL;
    kl__free(text);
    return rows;
}

/* --- Errors --- */

/* UNPREPARED: what was prepared is not there, or is out of date. READ_ONLY: the server has become a standby, perhaps.
 * Nothing was done in either case; another connection knows better. MISSING: a part of the schema is not there, so it
 * may be made anew, and a new connection looks at it (names.c). */
enum fate { FAILED, LOST, TAKEN_BACK, UNPREPARED, READ_ONLY, MISSING };

static bool begins(const char *text, const char *with) { return strncmp(text, with, strlen(with)) == 0; }

/* A standby says so of a table that is not logged, which appends read, by the code that is UNPREPARED otherwise. */
static bool is_unlogged(const PGresult *rows, const char *state)
{
    const char *by = rows ? PQresultErrorField(rows, PG_DIAG_SOURCE_FUNCTION) : NULL;
    return begins(state, "0A000") && by && strcmp(by, "get_relation_info") == 0;
}

static enum fate fate_of(const PGconn *conn, const char *state)
{
    if (begins(state, "40001") || begins(state, "40P01") || begins(state, "55P03") || begins(state, "57014"))
        return TAKEN_BACK;
    if (begins(state, "26000") || begins(state, "42P05") || begins(state, "0A000"))
        return UNPREPARED;
    if (begins(state, "25006"))
        return READ_ONLY;
    if (begins(state, "3F000") || begins(state, "42P01") || begins(state, "42883"))
        return MISSING;
    return PQstatus(conn) != CONNECTION_OK || begins(state, "08") || begins(state, "57P") ? LOST : FAILED;
}

static kl_rc code_of(const char *state)
{
    static const struct {
        const char *state;
        kl_rc rc;
    } codes[] = {{"KL001", KL_ESEALED}, {"KL002", KL_EINVAL}, {"KL003", KL_EBUSY}, {"53100", KL_EFULL},
                 {"53200", KL_ENOMEM},  {"53300", KL_EBUSY},  {"53400", KL_EBUSY}};
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
        if (begins(state, codes[i].state))
            return codes[i].rc;
    return KL_ESYSTEM;
}

kl_rc kl__pg_fail_read_only(const char *text)
{
    return kl__fail(KL_EBUSY,
                    "the database takes no writes (%.*s), and nothing was done: name the primary and not a standby, or "
                    "take default_transaction_read_only from this user",
                    kl__pg_length(text), text);
}

static kl_rc refuse(const PGconn *conn, const PGresult *rows, const char *state, enum fate fate)
{
    const char *text = rows ? PQresultErrorField(rows, PG_DIAG_MESSAGE_PRIMARY) : NULL;
    if (!text)
        text = PQerrorMessage(conn);
    if (fate == TAKEN_BACK || fate == UNPREPARED)
        return kl__fail(KL_EBUSY, "the database took the call back: %.*s; make it again", kl__pg_length(text), text);
    if (fate == READ_ONLY)
        return kl__pg_fail_read_only(text);
    if (fate == LOST)
        return kl__fail(KL_EBUSY,
                        "the connection to the database was lost (%.*s), and whether the call had its effect is not "
                        "known; make it again",
                        kl__pg_length(text), text);
    kl_rc rc = code_of(state);
    if (rc == KL_ESEALED || begins(state, "KL003"))
        return kl__fail(rc, "%s", text);
    const char *remedy = begins(state, "42501") ? "; GRANT the role that owns the schema to this user" : "";
    return kl__fail(rc, "the database refused (%s): %.*s%s", state, kl__pg_length(text), text, remedy);
}

/* --- Calls --- */

/* NULL, without an answer to say more, is a failure of the connection. */
static kl_rc judge(const PGconn *conn, const PGresult *rows, enum fate *ret_fate)
{
    if (kl__pg_is_good(rows))
        return KL_OK;
    const char *state = rows ? PQresultErrorField(rows, PG_DIAG_SQLSTATE) : NULL;
    *ret_fate = is_unlogged(rows, state ? state : "08") ? READ_ONLY : fate_of(conn, state ? state : "08");
    return refuse(conn, rows, state ? state : "08", *ret_fate);
}

static void tell_lost(kl__pg *pg, const PGconn *conn)
{
    char text[TEXT_MAX + 64];
    snprintf(text, sizeof text, "the connection was lost: %.*s", kl__pg_length(PQerrorMessage(conn)),
             PQerrorMessage(conn));
    kl__away_failed(&pg->away, KL_EBUSY, text);
}

/* Who has other stores to see to is not held up by one that is away: when it has been for some time, a call tries now
 * and then, and the others fail at once. */
static kl_rc check_gone(kl__pg *pg, int64_t *until_ns)
{
    char why[KL_PG_WHY_BYTES];
    int64_t now_ns = kl__monotonic_ns(), hasty_ns = KL_PG_HASTY_MS * INT64_C(1000000);
    pthread_mutex_lock(&pg->mutex);
    int64_t gone_ns = pg->gone_ns, again_ns = pg->again_ns;
    bool silent = pg->silent;
    memcpy(why, pg->gone_why, sizeof why);
    pthread_mutex_unlock(&pg->mutex);
    *until_ns = (gone_ns ? gone_ns : now_ns) + hasty_ns;
    bool rests = gone_ns && now_ns >= *until_ns && now_ns < again_ns;
    return silent || rests ? kl__fail(KL_EBUSY, "%s", why) : KL_OK;
}

static void note_gone(kl__pg *pg, bool gone, int64_t began_ns)
{
    int64_t now_ns = kl__monotonic_ns(), rest_ns = GONE_TIMES * (now_ns - began_ns);
    int64_t least_ns = PAUSE_MAX_MS * INT64_C(1000000);
    pthread_mutex_lock(&pg->mutex);
    pg->gone_ns = !gone ? 0 : pg->gone_ns ? pg->gone_ns : began_ns;
    pg->again_ns = now_ns + (rest_ns > least_ns ? rest_ns : least_ns);
    if (gone)
        snprintf(pg->gone_why, sizeof pg->gone_why, "%s", kl_error_text());
    pthread_mutex_unlock(&pg->mutex);
}

static kl_rc try_once(kl__pg *pg, const char *sql, kl__pg_send_fn *send, void *ctx, enum fate *ret_fate,
                      PGresult **ret_rows)
{
    PGconn *conn = NULL;
    int64_t began_ns = kl__monotonic_ns();
    kl_rc rc = borrow(pg, sql, began_ns, &conn);
    if (atomic_load(&pg->hasty))
        note_gone(pg, rc == KL_EBUSY, began_ns);
    if (rc != KL_OK) {
        *ret_fate = rc == KL_EBUSY ? TAKEN_BACK : FAILED; /* nothing was sent */
        kl__away_failed(&pg->away, rc, kl_error_text());
        return rc;
    }
    PGresult *rows = send(conn, ctx);
    rc = judge(conn, rows, ret_fate);
    if (rc != KL_OK && *ret_fate == LOST)
        tell_lost(pg, conn);
    else
        kl__away_worked(&pg->away);
    if (rc == KL_OK)
        *ret_rows = rows;
    else
        PQclear(rows);
    if (rc != KL_OK && *ret_fate != FAILED && *ret_fate != TAKEN_BACK)
        give_up(pg, conn);
    else
        give_back(pg, conn);
    return rc;
}

/* On a connection that knows the statement `sql`, if there is one; NULL: on any. */
static kl_rc send_it(kl__pg *pg, const char *sql, kl__pg_send_fn *send, void *ctx, bool repeats, PGresult **ret_rows)
{
    int64_t began_ns = kl__monotonic_ns(), until_ns = kl__deadline_ns(KL_PG_PATIENCE_MS);
    int pause_ms = PAUSE_MIN_MS;
    kl_rc gone = kl__pg_names_hold(pg);
    if (gone == KL_OK && atomic_load(&pg->hasty))
        gone = check_gone(pg, &until_ns);
    if (gone != KL_OK)
        return gone;
    for (int tries = 0;; tries++) {
        enum fate fate = FAILED;
        kl_rc rc = try_once(pg, sql, send, ctx, &fate, ret_rows);
        bool again = rc != KL_OK && (fate == TAKEN_BACK || fate == UNPREPARED || (fate == LOST && repeats) ||
                                     (fate == READ_ONLY && tries < READ_ONLY_TRIES));
        bool ends = atomic_load(&pg->closing) || atomic_load(&pg->cut_ns) >= began_ns;
        if (!again || ends || kl__monotonic_ns() >= until_ns)
            return rc;
        poll(NULL, 0, pause_ms);
        pause_ms = 2 * pause_ms < PAUSE_MAX_MS ? 2 * pause_ms : PAUSE_MAX_MS;
    }
}

kl_rc kl__pg_send(kl__pg *pg, kl__pg_send_fn *send, void *ctx, bool repeats, PGresult **ret_rows)
{
    return send_it(pg, NULL, send, ctx, repeats, ret_rows);
}

struct statement {
    const char *sql; /* as the call has it */
    char *text;      /* with the schema's name in it */
    const kl__pg_args *args;
    char name[16]; /* by which the connection knows it; empty: it is sent as text */
    bool strict;   /* as in kl__pg_link */
};

struct batch {
    kl__pg *pg;
    struct statement steps[2]; /* each a transaction */
    size_t count;
};

/* Values of a statement as libpq takes them. */
struct values {
    const char *values[KL_PG_ARGS_MAX];
    int formats[KL_PG_ARGS_MAX];
};

static void set_values(const kl__pg_args *args, struct values *values)
{
    for (int i = 0; i < args->count; i++) {
        values->values[i] = args->lengths[i] < 0 ? NULL : args->bytes + args->offsets[i];
        values->formats[i] = 1;
    }
}

PGresult *kl__pg_exec(PGconn *conn, const char *sql, const kl__pg_args *args)
{
    struct values values;
    set_values(args, &values);
    return PQexecParams(conn, sql, args->count, args->types, values.values, args->lengths, values.formats, 1);
}

/* The statement's number, by its text's address: each call has its own. -1: there are too many, or a pooler. Says what
 * the connection is, too. */
static int number_of(kl__pg *pg, const PGconn *conn, struct statement *statement, bool *ret_known)
{
    const char *sql = statement->sql;
    int number = 0;
    pthread_mutex_lock(&pg->mutex);
    kl__pg_link *link = kl__pg_link_of(pg, conn);
    while (number < KL_PG_STATEMENTS && pg->statements[number] && pg->statements[number] != sql)
        number++;
    bool usable = link && link->direct && number < KL_PG_STATEMENTS;
    if (usable) {
        pg->statements[number] = sql;
        *ret_known = (link->prepared >> number & 1) != 0;
        link->prepared |= UINT64_C(1) << number;
    }
    statement->strict = link && link->strict;
    pthread_mutex_unlock(&pg->mutex);
    return usable ? number : -1;
}

/* Sees to it that the connection knows the statement. Returns the answer of a failure; else NULL. */
static PGresult *prepare(kl__pg *pg, PGconn *conn, struct statement *statement)
{
    bool known = true;
    int number = number_of(pg, conn, statement, &known);
    statement->name[0] = 0;
    if (number >= 0)
        snprintf(statement->name, sizeof statement->name, "kl%d", number);
    if (number < 0 || known)
        return NULL;
    PGresult *rows = PQprepare(conn, statement->name, statement->text, statement->args->count, statement->args->types);
    if (PQresultStatus(rows) != PGRES_COMMAND_OK)
        return rows;
    PQclear(rows);
    return NULL;
}

static PGresult *make_statement(PGconn *conn, const struct statement *statement)
{
    const kl__pg_args *args = statement->args;
    struct values values;
    if (!*statement->name)
        return kl__pg_exec(conn, statement->text, args);
    set_values(args, &values);
    return PQexecPrepared(conn, statement->name, args->count, values.values, args->lengths, values.formats, 1);
}

/* Into the pipeline. */
static bool send_statement(PGconn *conn, const struct statement *statement)
{
    const kl__pg_args *args = statement->args;
    struct values values;
    set_values(args, &values);
    return *statement->name ? PQsendQueryPrepared(conn, statement->name, args->count, values.values, args->lengths,
                                                  values.formats, 1)
                            : PQsendQueryParams(conn, statement->text, args->count, args->types, values.values,
                                                args->lengths, values.formats, 1);
}

/* What is sent up to a sync is one transaction, whose level may be said before it has a snapshot. Without LOCAL, which
 * warns outside of BEGIN and COMMIT: it ends with the transaction all the same. */
static bool send_level(PGconn *conn)
{
    return PQsendQueryParams(conn, "SET transaction_isolation = 'read committed'", 0, NULL, NULL, NULL, NULL, 1);
}

static bool send_batch(PGconn *conn, const struct batch *batch)
{
    for (size_t i = 0; i < batch->count; i++)
        if ((batch->steps[i].strict && !send_level(conn)) || !send_statement(conn, &batch->steps[i]) ||
            !PQpipelineSync(conn))
            return false;
    return true;
}

/* Of two answers the first. But what was done, and then was not ended as it should, is not taken back, and whether it
 * counts is not known: NULL, as when the connection is lost. */
static PGresult *choose_answer(PGresult *first, PGresult *next)
{
    bool half = kl__pg_is_good(first) && !kl__pg_is_good(next);
    PQclear(next);
    if (!half)
        return first;
    PQclear(first);
    return NULL;
}

/* Takes answers up to the end of a transaction: the last one, or the first that is a failure. NULL: the connection
 * failed without a word. */
static PGresult *take_answers(PGconn *conn)
{
    PGresult *rows = NULL;
    for (int ends = 0; ends < 2;) { /* one behind each answer; more are the end of everything */
        PGresult *next = PQgetResult(conn);
        bool is_sync = PQresultStatus(next) == PGRES_PIPELINE_SYNC;
        ends = next ? 0 : ends + 1;
        if (!is_sync) {
            if (rows && (!next || !kl__pg_is_good(rows))) {
                PQclear(next);
                continue;
            }
            PQclear(rows);
            rows = next;
            continue;
        }
        PQclear(next);
        return rows;
    }
    return rows;
}

/* One round trip. */
static PGresult *make_batch(PGconn *conn, const struct batch *batch)
{
    PGresult *rows = NULL;
    if (!PQenterPipelineMode(conn))
        return NULL;
    if (send_batch(conn, batch)) {
        rows = take_answers(conn);
        rows = rows && batch->count > 1 ? choose_answer(rows, take_answers(conn)) : rows;
    }
    if (PQexitPipelineMode(conn))
        return rows;
    PQclear(rows);
    return NULL;
}

static PGresult *send_steps(PGconn *conn, void *ctx)
{
    struct batch *batch = ctx;
    PGresult *rows = NULL;
    for (size_t i = 0; !rows && i < batch->count; i++)
        rows = prepare(batch->pg, conn, &batch->steps[i]);
    if (rows)
        return rows;
    bool single = batch->count == 1 && !batch->steps[0].strict;
    return single ? make_statement(conn, &batch->steps[0]) : make_batch(conn, batch);
}

kl_rc kl__pg_ask_then(kl__pg *pg, const kl__pg_call *call, const kl__pg_step *then, PGresult **ret_rows)
{
    struct batch batch = {.pg = pg, .count = then ? 2 : 1};
    bool good = true;
    for (size_t i = 0; i < batch.count; i++) {
        struct statement *statement = &batch.steps[i];
        *statement =
            (struct statement){.sql = i == 0 ? call->sql : then->sql, .args = i == 0 ? call->args : then->args};
        statement->text = statement->args->failed ? NULL : kl__pg_expand(pg, statement->sql);
        good = good && statement->text;
    }
    kl_rc rc = good ? send_it(pg, call->sql, send_steps, &batch, call->repeats, ret_rows) : kl__fail_memory();
    for (size_t i = 0; i < batch.count; i++)
        kl__free(batch.steps[i].text);
    return rc;
}

kl_rc kl__pg_ask(kl__pg *pg, const kl__pg_call *call, PGresult **ret_rows)
{
    return kl__pg_ask_then(pg, call, NULL, ret_rows);
}

kl_rc kl__pg_do(kl__pg *pg, const kl__pg_call *call)
{
    PGresult *rows = NULL;
    kl_rc rc = kl__pg_ask(pg, call, &rows);
    if (rc == KL_OK)
        PQclear(rows);
    return rc;
}
