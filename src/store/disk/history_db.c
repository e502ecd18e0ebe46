/* history_db.c - SQLite under the history: the schema, connections, statements and what its errors mean.
 *
 * From: history.c, history_find.c, history_segments.c.  To: libsqlite3.
 *
 * The file is in WAL mode: readers see the state of their BEGIN and never wait for the writer, nor it for them. A
 * commit is synced before it returns (synchronous = FULL). The log is moved into the file when it is over WAL_PAGES;
 * readers that overlap one another without end could keep it from starting over, so at WAL_PAGES_MAX the writer waits
 * for them. Only a foreign program that keeps a transaction open can make it longer. */
#include "store/disk/history_inside.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    WAL_PAGES = 8192,              /* of 4 KiB: 32 MiB */
    WAL_PAGES_MAX = 4 * WAL_PAGES, /* 128 MiB */
    BUSY_MS = 5000,                /* how long a foreign writer is waited for */
    BUSY_STEP_MS = 10,
    RESTART_BUSY_MS = 100,    /* how long readers are, before the log starts over */
    ROW_BYTES_MAX = 16 << 20, /* a payload, a result, headers and small things; or a block of the index */
};

#define STRING_(x) #x
#define STRING(x)  STRING_(x)

#define UUID(column)                                                                                                   \
    "lower(substr(hex(" column "), 1, 8) || '-' || substr(hex(" column "), 9, 4) || '-' || substr(hex(" column         \
    "), 13, 4) || '-' || substr(hex(" column "), 17, 4) || '-' || substr(hex(" column "), 21))"
#define TIME(column) "strftime('%Y-%m-%d %H:%M:%f', " column " / 1000.0, 'unixepoch')"

#define TASK_ID      UUID("t.id")
#define TASK_JOB     UUID("t.job")
#define ATTEMPT_ID   UUID("a.id")
#define FINISHED     TIME("t.finished_ms")
#define EXPIRES      TIME("t.expires_ms")
#define DUE          TIME("t.due_ms")
#define TRIED        TIME("a.finished_ms")
#define OURS         STRING(KL_HISTORY_APPLICATION_ID)

/* history.c describes the tables. */
static const char schema[] =
    "PRAGMA application_id = " OURS ";"
    "PRAGMA user_version = 1;"
    "CREATE TABLE progress(one INTEGER PRIMARY KEY CHECK(one = 1), position INTEGER NOT NULL,"
    " last_number INTEGER NOT NULL, settled_number INTEGER NOT NULL, last_ms INTEGER NOT NULL,"
    " last_segment INTEGER NOT NULL, commits INTEGER NOT NULL, checksum INTEGER NOT NULL);"
    "INSERT INTO progress VALUES(1, 0, 0, 0, 0, 0, 0, 0);"
    "CREATE TABLE partitions(number INTEGER PRIMARY KEY, name TEXT NOT NULL);"
    "CREATE TABLE counts(partition INTEGER NOT NULL, state INTEGER NOT NULL, tasks INTEGER NOT NULL,"
    " PRIMARY KEY(partition, state)) WITHOUT ROWID;"
    "CREATE TABLE tasks(number INTEGER PRIMARY KEY, partition INTEGER NOT NULL, shard INTEGER NOT NULL,"
    " id BLOB NOT NULL, state INTEGER NOT NULL, attempts INTEGER NOT NULL, errors INTEGER NOT NULL,"
    " finished_ms INTEGER NOT NULL, expires_ms INTEGER NOT NULL, priority INTEGER NOT NULL, due_ms INTEGER NOT NULL,"
    " group_hash INTEGER NOT NULL, job BLOB, key, kind, result BLOB, headers BLOB, payload BLOB, checksum INTEGER NOT "
    "NULL);"
    "CREATE UNIQUE INDEX tasks_by_id ON tasks(partition, id);"
    "CREATE INDEX tasks_by_expiry ON tasks(expires_ms);"
    "CREATE INDEX tasks_by_job ON tasks(job, partition, shard, id, state) WHERE job IS NOT NULL;"
    "CREATE TABLE attempts(partition INTEGER NOT NULL, id BLOB NOT NULL, number INTEGER NOT NULL,"
    " attempt INTEGER NOT NULL, finished_ms INTEGER NOT NULL, expires_ms INTEGER, checksum INTEGER NOT NULL,"
    " error NOT NULL, PRIMARY KEY(partition, id, number, attempt)) WITHOUT ROWID;"
    "CREATE INDEX attempts_by_expiry ON attempts(expires_ms) WHERE number = 0;"
    "CREATE TABLE segments(first INTEGER PRIMARY KEY, last INTEGER NOT NULL, segment INTEGER NOT NULL,"
    " docs INTEGER NOT NULL, postings INTEGER NOT NULL, live INTEGER NOT NULL, dead BLOB, numbers BLOB);"
    "CREATE TABLE blocks(block INTEGER PRIMARY KEY, body BLOB NOT NULL);"
    "CREATE VIEW tasks_view AS SELECT t.number AS number, coalesce(p.name, t.partition) AS partition,"
    " t.shard AS shard, " TASK_ID " AS id, CASE t.state WHEN 2 THEN 'done' WHEN 3 THEN 'dead' WHEN 4 THEN"
    " 'cancelled' ELSE t.state END AS state, t.attempts AS attempts, " FINISHED " AS finished, " EXPIRES " AS expires,"
    " t.priority AS priority, CASE WHEN t.due_ms > 0 THEN " DUE " END AS due,"
    " t.group_hash AS group_hash,"
    " CASE WHEN t.job IS NOT NULL THEN " TASK_JOB " END AS job, t.key AS key, t.kind AS kind,"
    " CASE WHEN t.errors > 0 THEN (SELECT a.error FROM attempts a WHERE a.partition = t.partition AND a.id = t.id AND"
    " a.number = t.number ORDER BY a.attempt DESC LIMIT 1) END AS error, t.result AS result, t.headers AS headers,"
    " t.payload AS payload FROM tasks t LEFT JOIN partitions p ON p.number = t.partition;"
    "CREATE VIEW attempts_view AS SELECT coalesce(p.name, a.partition) AS partition, " ATTEMPT_ID " AS id,"
    " a.attempt AS attempt, " TRIED " AS finished, a.error AS error FROM attempts a"
    " LEFT JOIN partitions p ON p.number = a.partition;";

static const char *const statement_texts[KL_SQL_COUNT] = {
#define SQL_TEXT(name, text) text,
    KL_HISTORY_SQL(SQL_TEXT)
#undef SQL_TEXT
};

_Static_assert(KL_TASK_DONE == 2 && KL_TASK_DEAD == 3 && KL_TASK_CANCELLED == 4, "states are stored as numbers");
_Static_assert(KL_HISTORY_VERSION == 1, "the schema sets user_version");

/* ---- Errors ---- */

kl_rc kl__hdb_damaged(kl__hdb *db, const char *what)
{
    return kl__fail(KL_EDAMAGED, "%s is damaged (%s)" KL_HISTORY_ADVICE, db->path, what);
}

static kl_rc fail_system(kl__hdb *db, int sqlite_rc)
{
    int number = sqlite3_system_errno(db->sqlite);
    char reason[128];
    const char *text = number ? strerror_r(number, reason, sizeof reason) : sqlite3_errmsg(db->sqlite);
    bool may_not = (sqlite_rc & 0xff) == SQLITE_READONLY && sqlite_rc != SQLITE_READONLY_DBMOVED;
    if (may_not || number == EACCES || number == EPERM || number == EROFS)
        return kl__fail(
            KL_ESYSTEM,
            "%s cannot be opened to be written (%s): this user must be able to write it, what stands beside "
            "it (history.db-wal, history.db-shm) and the directory; nothing was changed",
            db->path, sqlite3_errmsg(db->sqlite));
    return kl__fail(KL_ESYSTEM, "%s cannot be read or written: %s (%s); nothing was changed", db->path, text,
                    sqlite3_errmsg(db->sqlite));
}

kl_rc kl__hdb_fail(kl__hdb *db, int sqlite_rc)
{
    if (sqlite_rc == SQLITE_IOERR_NOMEM || !db->sqlite)
        return kl__fail_memory();
    switch (sqlite_rc & 0xff) {
    case SQLITE_NOMEM:
        return kl__fail_memory();
    case SQLITE_FULL:
        return kl__fail(KL_EFULL, "there is no room on the disk for %s; make some and call again", db->path);
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return kl__fail(KL_EBUSY, "another program is writing to %s; end its transaction and call again", db->path);
    case SQLITE_NOTADB:
    case SQLITE_CORRUPT:
    case SQLITE_TOOBIG: /* a length in it that nobody wrote */
    case SQLITE_ERROR:  /* a table that is not as we made it */
    case SQLITE_SCHEMA:
    case SQLITE_CONSTRAINT:
    case SQLITE_MISMATCH:
        return kl__hdb_damaged(db, sqlite3_errmsg(db->sqlite));
    default:
        return fail_system(db, sqlite_rc);
    }
}

/* ---- Statements ---- */

kl_rc kl__hdb_use(kl__hdb *db, kl__sql which, sqlite3_stmt **ret_statement)
{
    sqlite3_stmt **statement = &db->statements[which];
    if (*statement) {
        sqlite3_reset(*statement);
    } else {
        int rc = sqlite3_prepare_v3(db->sqlite, statement_texts[which], -1, SQLITE_PREPARE_PERSISTENT, statement, NULL);
        if (rc != SQLITE_OK)
            return kl__hdb_fail(db, rc);
    }
    *ret_statement = *statement;
    return KL_OK;
}

kl_rc kl__hdb_step(kl__hdb *db, sqlite3_stmt *statement, bool *ret_row)
{
    int rc = sqlite3_step(statement);
    if (rc != SQLITE_ROW && rc != SQLITE_DONE)
        return kl__hdb_fail(db, rc);
    *ret_row = rc == SQLITE_ROW;
    return KL_OK;
}

kl_rc kl__hdb_run(kl__hdb *db, sqlite3_stmt *statement)
{
    int rc = sqlite3_step(statement);
    if (rc != SQLITE_DONE)
        return kl__hdb_fail(db, rc);
    sqlite3_reset(statement);
    return KL_OK;
}

kl_rc kl__hdb_do(kl__hdb *db, kl__sql which)
{
    sqlite3_stmt *statement = NULL;
    KL_TRY(kl__hdb_use(db, which, &statement));
    return kl__hdb_run(db, statement);
}

static void reset_all(kl__hdb *db)
{
    for (int i = 0; i < KL_SQL_COUNT; i++)
        sqlite3_reset(db->statements[i]); /* NULL is fine */
}

kl_rc kl__hdb_end(kl__hdb *db, kl_rc rc)
{
    reset_all(db);
    if (rc == KL_OK)
        rc = kl__hdb_do(db, KL_SQL_COMMIT);
    if (rc == KL_OK)
        return KL_OK;
    reset_all(db);
    /* Some errors have rolled back already. One that stops even this leaves the transaction to the next call's BEGIN,
     * which fails, and to this again. */
    if (!sqlite3_get_autocommit(db->sqlite)) {
        char sentence[512];
        snprintf(sentence, sizeof sentence, "%s", kl_error_text());
        if (sqlite3_exec(db->sqlite, "ROLLBACK", NULL, NULL, NULL) != SQLITE_OK)
            reset_all(db);
        kl__fail(rc, "%s", sentence);
    }
    return rc;
}

/* ---- Values ---- */

/* Well enough formed for other tools to take it as text. */
static bool is_utf8(kl_bytes bytes)
{
    const uint8_t *at = bytes.data, *end = at + bytes.len;
    while (at < end) {
        int more = *at < 0x80 ? 0 : *at < 0xc2 ? -1 : *at < 0xe0 ? 1 : *at < 0xf0 ? 2 : *at < 0xf5 ? 3 : -1;
        if (!*at || more < 0 || end - at <= more)
            return false;
        if ((*at == 0xe0 && at[1] < 0xa0) || (*at == 0xed && at[1] > 0x9f) || (*at == 0xf0 && at[1] < 0x90) ||
            (*at == 0xf4 && at[1] > 0x8f))
            return false;
        for (at++; more > 0; more--, at++)
            if ((*at & 0xc0) != 0x80)
                return false;
    }
    return true;
}

void kl__hdb_bind_bytes(sqlite3_stmt *statement, int index, kl_bytes bytes)
{
    int rc = bytes.len ? sqlite3_bind_blob(statement, index, bytes.data, (int)bytes.len, SQLITE_STATIC)
                       : sqlite3_bind_null(statement, index);
    KL_ASSERT(rc == SQLITE_OK); /* static bytes take no memory, and limits are kept */
}

void kl__hdb_bind_text(sqlite3_stmt *statement, int index, kl_bytes bytes)
{
    if (!bytes.len || !is_utf8(bytes)) {
        kl__hdb_bind_bytes(statement, index, bytes);
        return;
    }
    int rc = sqlite3_bind_text(statement, index, bytes.data, (int)bytes.len, SQLITE_STATIC);
    KL_ASSERT(rc == SQLITE_OK);
}

void kl__hdb_bind_id(sqlite3_stmt *statement, int index, const kl_task_id *id)
{
    kl__hdb_bind_bytes(statement, index, (kl_bytes){id->bytes, kl__id_is_none(id) ? 0 : sizeof id->bytes});
}

kl_bytes kl__hdb_bytes(sqlite3_stmt *statement, int column)
{
    /* SQLite wants the pointer asked for first. */
    const void *data = sqlite3_column_blob(statement, column);
    return (kl_bytes){data, data ? (size_t)sqlite3_column_bytes(statement, column) : 0};
}

/* ---- Another program's transaction ---- */

static int wait_for_other(void *ctx, int tries)
{
    kl__hdb *db = ctx;
    atomic_store(&db->is_held, true);
    if (tries * BUSY_STEP_MS >= db->busy_ms)
        return 0;
    sqlite3_sleep(BUSY_STEP_MS);
    return 1;
}

bool kl__hdb_take_turn(kl__hdb *db, pthread_mutex_t *mutex, bool hasty)
{
    if (!hasty)
        pthread_mutex_lock(mutex);
    while (hasty && pthread_mutex_trylock(mutex) != 0) {
        if (atomic_load(&db->is_held))
            return false;
        sqlite3_sleep(1);
    }
    db->busy_ms = hasty ? 0 : BUSY_MS;
    return true;
}

/* ---- Connections ---- */

static kl_rc execute(kl__hdb *db, const char *sql)
{
    int rc = sqlite3_exec(db->sqlite, sql, NULL, NULL, NULL);
    return rc == SQLITE_OK ? KL_OK : kl__hdb_fail(db, rc);
}

/* The one number that a statement returns. */
static kl_rc ask(kl__hdb *db, const char *sql, int64_t *ret_value)
{
    sqlite3_stmt *statement;
    int rc = sqlite3_prepare_v2(db->sqlite, sql, -1, &statement, NULL);
    if (rc != SQLITE_OK)
        return kl__hdb_fail(db, rc);
    rc = sqlite3_step(statement);
    *ret_value = rc == SQLITE_ROW ? sqlite3_column_int64(statement, 0) : 0;
    rc = sqlite3_finalize(statement);
    return rc == SQLITE_OK ? KL_OK : kl__hdb_fail(db, rc);
}

/* In one transaction, so that a crash leaves all of it or an empty file. */
static kl_rc make(kl__hdb *db)
{
    KL_TRY(execute(db, "BEGIN IMMEDIATE"));
    return kl__hdb_end(db, execute(db, schema));
}

static int64_t count_in_schema(const char *word)
{
    int64_t count = 0;
    for (const char *at = schema; (at = strstr(at, word)) != NULL; at += strlen(word))
        count++;
    return count;
}

/* SQLite keeps what made a table, index or view word for word: each of ours must be among theirs. Tables and indexes
 * were made together, before there was anything in them, so they begin at the first pages: one that began in the middle
 * of another would be believed. Further ones are no concern of ours, but begin at pages of their own. */
static kl_rc check_schema(kl__hdb *db)
{
    int64_t all = count_in_schema("CREATE "), trees = all - count_in_schema("CREATE VIEW "), found[5] = {0};
    sqlite3_stmt *statement;
    const char *sql = "SELECT count(*) FILTER (WHERE instr(?1, sql || ';') > 0), count(page), count(DISTINCT page),"
                      " min(page), max(page) FROM (SELECT sql, nullif(rootpage, 0) AS page FROM sqlite_schema)";
    int rc = sqlite3_prepare_v2(db->sqlite, sql, -1, &statement, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_text(statement, 1, schema, sizeof schema - 1, SQLITE_STATIC);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(statement);
    for (int i = 0; rc == SQLITE_ROW && i < 5; i++)
        found[i] = sqlite3_column_int64(statement, i);
    rc = sqlite3_finalize(statement);
    if (rc != SQLITE_OK)
        return kl__hdb_fail(db, rc);
    bool ours_alone = found[1] == trees && found[3] == 2 && found[4] == trees + 1;
    if (found[0] == all && found[1] == found[2] && (ours_alone || found[1] > trees))
        return KL_OK;
    return kl__hdb_damaged(db, "a table is missing, or not as this version makes it");
}

kl_rc kl__hdb_recognise(kl__hdb *db, bool *ret_is_new)
{
    int64_t application = 0, version = 0, tables = 0;
    KL_TRY(ask(db, "PRAGMA application_id", &application));
    KL_TRY(ask(db, "PRAGMA user_version", &version));
    KL_TRY(ask(db, "SELECT count(*) FROM sqlite_schema", &tables));
    *ret_is_new = !application && !version && !tables;
    if (*ret_is_new)
        return KL_OK;
    if (application != KL_HISTORY_APPLICATION_ID)
        return kl__fail(KL_EDAMAGED,
                        "%s is a database of another program (application_id %lld, not %d): move it elsewhere",
                        db->path, (long long)application, KL_HISTORY_APPLICATION_ID);
    if (version > KL_HISTORY_VERSION)
        return kl__fail(KL_EDAMAGED,
                        "%s was written by a newer Keyline (its version %lld, this one knows up to %d): use that one",
                        db->path, (long long)version, KL_HISTORY_VERSION);
    if (version < 1)
        return kl__hdb_damaged(db, "it has no version");
    return check_schema(db);
}

/* A file with a write version that SQLite does not know is opened to be read, without a word. */
kl_rc kl__hdb_check_version(kl__hdb *db)
{
    enum { AT = 18, HIGHEST = 2 };
    uint8_t version = 0;
    sqlite3_file *file = NULL;
    int rc = sqlite3_file_control(db->sqlite, "main", SQLITE_FCNTL_FILE_POINTER, &file);
    if (rc == SQLITE_OK && file && file->pMethods)
        rc = file->pMethods->xRead(file, &version, 1, AT);
    if (rc != SQLITE_OK && rc != SQLITE_IOERR_SHORT_READ)
        return kl__hdb_fail(db, rc);
    return version <= HIGHEST ? KL_OK : kl__hdb_damaged(db, "its header, so that it cannot be written");
}

static int note_wal(void *ctx, sqlite3 *sqlite, const char *name, int pages)
{
    (void)sqlite, (void)name;
    kl__hdb *db = ctx;
    db->wal_pages = pages;
    return SQLITE_OK;
}

static kl_rc use_wal(kl__hdb *db)
{
    sqlite3_stmt *statement;
    int rc = sqlite3_prepare_v2(db->sqlite, "PRAGMA journal_mode = WAL", -1, &statement, NULL);
    if (rc != SQLITE_OK)
        return kl__hdb_fail(db, rc);
    rc = sqlite3_step(statement);
    const unsigned char *mode = rc == SQLITE_ROW ? sqlite3_column_text(statement, 0) : NULL;
    bool wal = mode && strcmp((const char *)mode, "wal") == 0;
    rc = sqlite3_finalize(statement);
    if (rc != SQLITE_OK)
        return kl__hdb_fail(db, rc);
    if (!wal)
        return kl__fail(KL_ESYSTEM, "%s cannot be used in WAL mode here: put the data on a local disk", db->path);
    return KL_OK;
}

static kl_rc prepare_writer(kl__hdb *db)
{
    int64_t pages;
    KL_TRY(ask(db, "PRAGMA page_count", &pages)); /* the first look at the file: it may be anything */
    KL_TRY(execute(db, "PRAGMA page_size = 4096"));
    KL_TRY(use_wal(db));
    KL_TRY(execute(db, "PRAGMA synchronous = FULL; PRAGMA secure_delete = OFF; PRAGMA cache_size = -65536;"
                       "PRAGMA journal_size_limit = 67108864; PRAGMA temp_store = MEMORY"));
    sqlite3_wal_hook(db->sqlite, note_wal, db);
    bool is_new;
    KL_TRY(kl__hdb_recognise(db, &is_new));
    return is_new ? make(db) : kl__hdb_check_version(db);
}

static kl_rc prepare_connection(kl__hdb *db, bool writer)
{
    sqlite3_extended_result_codes(db->sqlite, 1);
    db->busy_ms = BUSY_MS;
    sqlite3_busy_handler(db->sqlite, wait_for_other, db);
    sqlite3_limit(db->sqlite, SQLITE_LIMIT_LENGTH, ROW_BYTES_MAX);
    if (writer)
        return prepare_writer(db);
    return execute(db, "PRAGMA cache_size = -16384; PRAGMA query_only = ON; PRAGMA temp_store = MEMORY");
}

/* SQLite would let everybody read it, and gives the files beside it the same mode. What fails here fails there. */
static void make_file(const char *path)
{
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file >= 0)
        close(file);
}

kl_rc kl__hdb_open(const char *path, const char *vfs, bool writer, kl__hdb **ret_db)
{
    kl__hdb *db = kl__alloc_zeroed(1, sizeof *db);
    if (!db)
        return kl__fail_memory();
    db->path = path;
    if (writer && !vfs)
        make_file(path);
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | (writer ? SQLITE_OPEN_CREATE : 0);
    int open_rc = sqlite3_open_v2(path, &db->sqlite, flags, vfs);
    kl_rc rc = open_rc == SQLITE_OK ? prepare_connection(db, writer) : kl__hdb_fail(db, open_rc);
    if (rc != KL_OK) {
        kl__hdb_close(db);
        return rc;
    }
    *ret_db = db;
    return KL_OK;
}

/* The path as SQLite reads it back from a URI. */
static char *write_uri(const char *path, const char *query)
{
    size_t room = sizeof "file://" + 3 * strlen(path) + strlen(query);
    char *uri = kl__alloc(room);
    if (!uri)
        return NULL;
    char *at = uri + sprintf(uri, *path == '/' ? "file://" : "file:");
    for (; *path; path++)
        at += sprintf(at, strchr("%?#", *path) ? "%%%02x" : "%c", *path);
    strcpy(at, query);
    return uri;
}

static kl_rc prepare_look(kl__hdb *db)
{
    sqlite3_extended_result_codes(db->sqlite, 1);
    sqlite3_limit(db->sqlite, SQLITE_LIMIT_LENGTH, ROW_BYTES_MAX);
    sqlite3_db_config(db->sqlite, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
    return execute(db, "PRAGMA locking_mode = EXCLUSIVE; PRAGMA query_only = ON; PRAGMA temp_store = MEMORY");
}

/* Without a log the file is all there is, and is declared to be so. With one, exclusive mode keeps the log's index in
 * memory; a layer that takes no locks does for a file that is open for reading. */
kl_rc kl__hdb_look(const char *path, const char *vfs, bool has_wal, kl__hdb **ret_db)
{
    char *uri = write_uri(path, has_wal ? "" : "?immutable=1");
    kl__hdb *db = kl__alloc_zeroed(1, sizeof *db);
    if (!uri || !db) {
        kl__free(uri);
        kl__free(db);
        return kl__fail_memory();
    }
    db->path = path;
    int flags = SQLITE_OPEN_READONLY | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_URI;
    int open_rc = sqlite3_open_v2(uri, &db->sqlite, flags, has_wal && !vfs ? "unix-none" : vfs);
    kl__free(uri);
    kl_rc rc = open_rc == SQLITE_OK ? prepare_look(db) : kl__hdb_fail(db, open_rc);
    if (rc != KL_OK) {
        kl__hdb_close(db);
        return rc;
    }
    *ret_db = db;
    return KL_OK;
}

void kl__hdb_close(kl__hdb *db)
{
    if (!db)
        return;
    for (int i = 0; i < KL_SQL_COUNT; i++)
        sqlite3_finalize(db->statements[i]);
    int rc = sqlite3_close(db->sqlite);
    KL_ASSERT(rc == SQLITE_OK); /* all statements are gone */
    kl__free(db);
}

void kl__history_leave_log(kl__history *history)
{
    sqlite3_db_config(history->writer->sqlite, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
}

void kl__hdb_checkpoint(kl__hdb *db)
{
    /* What fails here is durable in the log, and is tried again after the next commit. */
    if (db->wal_pages >= WAL_PAGES_MAX) {
        sqlite3_busy_timeout(db->sqlite, RESTART_BUSY_MS);
        sqlite3_wal_checkpoint_v2(db->sqlite, NULL, SQLITE_CHECKPOINT_RESTART, NULL, NULL);
        sqlite3_busy_handler(db->sqlite, wait_for_other, db);
    } else if (db->wal_pages >= WAL_PAGES) {
        sqlite3_wal_checkpoint_v2(db->sqlite, NULL, SQLITE_CHECKPOINT_PASSIVE, NULL, NULL);
    }
}
