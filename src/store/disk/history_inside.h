/* history_inside.h - what the files of the history share: connections, statements, segments.
 *
 *      history.c            adds, trims, forgets: the one writer
 *      history_find.c       reads, results, find, counts, check: the readers
 *      history_segments.c   the search index
 *      history_join.c       and how it is kept small
 *      history_salvage.c    reads a damaged file
 *      history_db.c         SQLite: schema, connections, statements, errors */
#ifndef KL_STORE_HISTORY_INSIDE_H
#define KL_STORE_HISTORY_INSIDE_H

#include <pthread.h>
#include <sqlite3.h>
#include <stdatomic.h>

#include "base/compare.h"
#include "store/disk/history.h"

enum {
    KL_HISTORY_VERSION = 1,
    KL_HISTORY_READERS = 4,      /* connections for reading; further readers wait for one */
    KL_HISTORY_DOCS_MAX = 65536, /* of a segment: a place in it fits two bytes */
    KL_HISTORY_WORDS = KL_HISTORY_DOCS_MAX / 64,
    KL_HISTORY_POSTINGS_PER_DOC = 16, /* on average, in a full segment */
    KL_HISTORY_SUM_BYTES = 4,
    KL_HISTORY_TERMS_MAX = KL_HISTORY_WORDS_MAX + 5, /* of one search: partition, state, key, kind, job, and words */
};

/* How sentences about damage end. */
#define KL_HISTORY_ADVICE         ": `keyline doctor` says what can be saved"

#define KL_HISTORY_APPLICATION_ID 0x4b4c6869 /* "KLhi" */

#define KL_TRY(expression)                                                                                             \
    do {                                                                                                               \
        kl_rc try_rc_ = (expression);                                                                                  \
        if (try_rc_ != KL_OK)                                                                                          \
            return try_rc_;                                                                                            \
    } while (0)

/* The columns of a task in the order in which history_find.c reads them. */
#define KL_TASK_COLUMNS                                                                                                \
    "number, partition, shard, id, state, attempts, errors, finished_ms, expires_ms, priority, due_ms, group_hash, "   \
    "job, "                                                                                                            \
    "key, kind, result, headers, payload, checksum"

#define KL_SEGMENT_COLUMNS "first, last, segment, docs, postings, live"

/* Every statement, prepared once on each connection that uses it. */
#define KL_HISTORY_SQL(X)                                                                                              \
    X(BEGIN_READ, "BEGIN")                                                                                             \
    X(BEGIN_WRITE, "BEGIN IMMEDIATE")                                                                                  \
    X(COMMIT, "COMMIT")                                                                                                \
    X(ROLLBACK, "ROLLBACK")                                                                                            \
    X(GET_PROGRESS,                                                                                                    \
      "SELECT position, last_number, settled_number, last_ms, last_segment, commits, checksum FROM progress")          \
    X(SET_PROGRESS,                                                                                                    \
      "UPDATE progress SET position = ?1, last_number = ?2, settled_number = ?3, last_ms = ?4, last_segment = ?5, "    \
      "commits = ?6, checksum = ?7")                                                                                   \
    X(GET_NAME, "SELECT name FROM partitions WHERE number = ?1")                                                       \
    X(ANY_NAME, "SELECT 1 FROM partitions LIMIT 1")                                                                    \
    X(SET_NAME, "INSERT OR REPLACE INTO partitions(number, name) VALUES(?1, ?2)")                                      \
    X(ADD_COUNT, "INSERT INTO counts(partition, state, tasks) VALUES(?1, ?2, ?3) "                                     \
                 "ON CONFLICT(partition, state) DO UPDATE SET tasks = tasks + excluded.tasks")                         \
    X(GET_COUNTS, "SELECT state, tasks FROM counts WHERE partition = ?1")                                              \
    X(COUNT_JOB, "SELECT coalesce(sum(state = 2), 0), coalesce(sum(state = 3), 0), coalesce(sum(state = 4), 0) "       \
                 "FROM tasks INDEXED BY tasks_by_job WHERE job = ?1 AND partition = ?2")                               \
    X(GET_TOTAL, "SELECT total(tasks) FROM counts")                                                                    \
    X(ADD_TASK, "INSERT INTO tasks(" KL_TASK_COLUMNS ") "                                                              \
                "VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16,?17,?18,?19)")                          \
    X(DROP_TASK, "DELETE FROM tasks WHERE number = ?1")                                                                \
    X(WHERE_TASK, "SELECT number, errors, state, finished_ms FROM tasks WHERE partition = ?1 AND id = ?2")             \
    X(ABOUT_TASK, "SELECT partition, id, errors, state FROM tasks WHERE number = ?1")                                  \
    X(TASK_BY_ID, "SELECT " KL_TASK_COLUMNS " FROM tasks WHERE partition = ?1 AND id = ?2")                            \
    X(TASK_AT, "SELECT " KL_TASK_COLUMNS " FROM tasks WHERE number >= ?1 ORDER BY number LIMIT 1")                     \
    X(TASKS_ALL, "SELECT " KL_TASK_COLUMNS " FROM tasks ORDER BY number")                                              \
    X(TASK_UNTIL, "SELECT number, finished_ms FROM tasks WHERE number <= ?1 ORDER BY number DESC LIMIT 1")             \
    X(TASKS_OF_JOB, "SELECT " KL_TASK_COLUMNS " FROM tasks INDEXED BY tasks_by_job "                                   \
                    "WHERE job = ?1 AND partition = ?2 AND shard = ?3 AND id > ?4 ORDER BY id LIMIT ?5")               \
    X(TASKS_FIRST, "SELECT number, finished_ms FROM tasks ORDER BY number LIMIT ?1")                                   \
    X(TASKS_EXPIRED, "SELECT number, expires_ms FROM tasks INDEXED BY tasks_by_expiry ORDER BY expires_ms LIMIT ?1")   \
    X(ADD_ATTEMPT,                                                                                                     \
      "INSERT OR REPLACE INTO attempts(partition, id, number, attempt, finished_ms, expires_ms, checksum, error) "     \
      "VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)")                                                                        \
    X(ANY_PENDING, "SELECT 1 FROM attempts INDEXED BY attempts_by_expiry WHERE number = 0 LIMIT 1")                    \
    X(COUNT_PENDING, "SELECT count(*), max(attempt) FROM attempts WHERE partition = ?1 AND id = ?2 AND number = 0")    \
    X(PENDING, "SELECT error FROM attempts WHERE partition = ?1 AND id = ?2 AND number = 0 ORDER BY attempt")          \
    X(ADOPT, "UPDATE attempts SET number = ?3 WHERE partition = ?1 AND id = ?2 AND number = 0")                        \
    X(RELEASE, "UPDATE OR IGNORE attempts SET number = 0 WHERE partition = ?1 AND id = ?2 AND number = ?3 "            \
               "AND expires_ms IS NOT NULL")                                                                           \
    X(DROP_ATTEMPTS, "DELETE FROM attempts WHERE partition = ?1 AND id = ?2 AND number = ?3")                          \
    X(AGE_ORPHANS, "UPDATE attempts INDEXED BY attempts_by_expiry SET expires_ms = finished_ms + ?1 "                  \
                   "WHERE number = 0 AND expires_ms > finished_ms + ?1")                                               \
    X(DROP_ORPHANS, "DELETE FROM attempts WHERE (partition, id, number, attempt) IN (SELECT partition, id, number, "   \
                    "attempt FROM attempts INDEXED BY attempts_by_expiry WHERE number = 0 AND expires_ms <= ?1 "       \
                    "ORDER BY expires_ms LIMIT ?2)")                                                                   \
    X(LAST_ERROR, "SELECT attempt, finished_ms, checksum, error FROM attempts WHERE partition = ?1 AND id = ?2 "       \
                  "AND number = ?3 ORDER BY attempt DESC LIMIT 1")                                                     \
    X(COUNT_ERRORS, "SELECT count(DISTINCT attempt), max(attempt) FROM attempts WHERE partition = ?1 AND id = ?2 "     \
                    "AND number = ?3")                                                                                 \
    X(ATTEMPTS_ALL, "SELECT attempt, finished_ms, checksum, error, partition, id, number FROM attempts")               \
    X(ADD_SEGMENT, "INSERT INTO segments(" KL_SEGMENT_COLUMNS ", numbers) VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7)")         \
    X(DROP_SEGMENT, "DELETE FROM segments WHERE first = ?1")                                                           \
    X(SEGMENTS_DOWN, "SELECT " KL_SEGMENT_COLUMNS " FROM segments WHERE first <= ?1 ORDER BY first DESC")              \
    X(SEGMENTS_UP, "SELECT " KL_SEGMENT_COLUMNS " FROM segments WHERE first > ?1 ORDER BY first LIMIT 1")              \
    X(SEGMENT_BLOBS, "SELECT dead, numbers FROM segments WHERE first = ?1")                                            \
    X(SET_DEAD, "UPDATE segments SET live = ?2, dead = ?3 WHERE first = ?1")                                           \
    X(ADD_BLOCK, "INSERT INTO blocks(block, body) VALUES(?1, ?2)")                                                     \
    X(DROP_BLOCKS, "DELETE FROM blocks WHERE block BETWEEN ?1 AND ?2")                                                 \
    X(BLOCKS, "SELECT body, block FROM blocks WHERE block BETWEEN ?1 AND ?2 ORDER BY block")                           \
    X(BLOCK, "SELECT body FROM blocks WHERE block BETWEEN ?1 AND ?2 ORDER BY block DESC LIMIT 1")                      \
    X(SQLITE_CHECK, "PRAGMA integrity_check(1)")                                                                       \
    X(ALL_COUNTS, "SELECT coalesce(sum(tasks), 0), coalesce(sum(tasks * (partition * 8 + state)), 0), "                \
                  "coalesce(min(tasks), 0) FROM counts")

typedef enum kl__sql {
#define KL_SQL_ENUM(name, text) KL_SQL_##name,
    KL_HISTORY_SQL(KL_SQL_ENUM)
#undef KL_SQL_ENUM
        KL_SQL_COUNT
} kl__sql;

/* ---- history_db.c ---- */

/* A connection, used by one thread at a time. */
typedef struct kl__hdb {
    sqlite3 *sqlite;
    const char *path;
    int wal_pages;         /* after the last commit */
    int busy_ms;           /* how long another program's transaction is waited for */
    _Atomic(bool) is_held; /* by such a one, when that was last tried */
    struct kl__hdb *next;
    sqlite3_stmt *statements[KL_SQL_COUNT];
} kl__hdb;

/* The writer makes the file and the tables when they are not there. */
kl_rc kl__hdb_open(const char *path, const char *vfs, bool writer, kl__hdb **ret_db);
void kl__hdb_close(kl__hdb *db); /* NULL is fine */

/* Opens the file to be read while nobody else has it open, and changes nothing on disk. has_wal: a log stands beside
 * it. */
kl_rc kl__hdb_look(const char *path, const char *vfs, bool has_wal, kl__hdb **ret_db);

/* Is it ours, of a version that we know, with the tables that we make? *ret_is_new: there is nothing in it yet. */
kl_rc kl__hdb_recognise(kl__hdb *db, bool *ret_is_new);
kl_rc kl__hdb_check_version(kl__hdb *db); /* KL_EDAMAGED: it can only be read */

/* What SQLite just said, as a code and a sentence. */
kl_rc kl__hdb_fail(kl__hdb *db, int sqlite_rc);
kl_rc kl__hdb_damaged(kl__hdb *db, const char *what);

/* The statement, reset: the caller binds all its parameters. */
kl_rc kl__hdb_use(kl__hdb *db, kl__sql which, sqlite3_stmt **ret_statement);
kl_rc kl__hdb_step(kl__hdb *db, sqlite3_stmt *statement, bool *ret_row);
kl_rc kl__hdb_run(kl__hdb *db, sqlite3_stmt *statement); /* a statement that returns no rows */
kl_rc kl__hdb_do(kl__hdb *db, kl__sql which);            /* and one without parameters */

/* Ends the transaction: commits when rc is KL_OK, else, or when that fails, rolls back. No statement stays under
 * way. */
kl_rc kl__hdb_end(kl__hdb *db, kl_rc rc);

/* Takes the mutex over a writer. Hasty: another program's transaction is not waited for, nor whoever does wait for one:
 * false. */
bool kl__hdb_take_turn(kl__hdb *db, pthread_mutex_t *mutex, bool hasty);

/* Moves the log into the file when it has grown long. */
void kl__hdb_checkpoint(kl__hdb *db);

/* Bytes that outlive the statement's run; none are NULL. Text is for people: it is text unless it is not UTF-8. */
void kl__hdb_bind_bytes(sqlite3_stmt *statement, int index, kl_bytes bytes);
void kl__hdb_bind_text(sqlite3_stmt *statement, int index, kl_bytes bytes);
void kl__hdb_bind_id(sqlite3_stmt *statement, int index, const kl_task_id *id); /* all zero: NULL */
kl_bytes kl__hdb_bytes(sqlite3_stmt *statement, int column);

/* ---- history_segments.c ---- */

typedef enum kl__term_kind {
    KL_TERM_PARTITION = 1,
    KL_TERM_STATE,
    KL_TERM_KEY,
    KL_TERM_KIND,
    KL_TERM_JOB,
    KL_TERM_WORD,
} kl__term_kind;

uint64_t kl__term(kl__term_kind kind, kl_bytes bytes);
uint64_t kl__term_number(kl__term_kind kind, uint32_t number);

/* The term of the first word in *text, which is moved behind it. False: there is none. */
bool kl__term_word(kl_bytes *text, uint64_t *ret_term);

typedef struct kl__term_segment {
    int64_t first, last; /* numbers */
    int64_t segment;
    uint32_t docs, postings, live;
} kl__term_segment;

typedef struct kl__posting {
    uint64_t term;
    uint32_t doc;
} kl__posting;

/* A segment that is being made. Documents are numbered on from `first`. */
typedef struct kl__index {
    kl__posting *items, *spare;
    size_t count, room;
    uint32_t docs;
    int64_t first;
    int64_t last_segment; /* the last segment's name */
} kl__index;

void kl__index_start(kl__index *index, int64_t first, int64_t last_segment);
void kl__index_free(kl__index *index);
/* Begins a document; a full segment is written first. */
kl_rc kl__index_doc(kl__index *index, kl__hdb *db);
kl_rc kl__index_term(kl__index *index, uint64_t term);
kl_rc kl__index_write(kl__index *index, kl__hdb *db); /* nothing when it is empty */
/* The same with `last` as the last number, and the numbers (put by kl__term_segment_put_number); NULL: they run on from
 * `first`. */
kl_rc kl__index_write_as(kl__index *index, kl__hdb *db, int64_t last, uint8_t *numbers);

kl__term_segment kl__term_segment_row(sqlite3_stmt *statement);
/* Sets the bits of the documents that have the term. */
kl_rc kl__term_segment_term(kl__hdb *db, const kl__term_segment *segment, uint64_t term, uint64_t *ret_bits,
                            bool *ret_any);
/* The bits of those taken out, and all numbers (NULL: they run on from `first`), valid until the next call. */
kl_rc kl__term_segment_blobs(kl__hdb *db, const kl__term_segment *segment, uint64_t *ret_dead,
                             const uint8_t **ret_numbers);
int64_t kl__term_segment_number(const kl__term_segment *segment, const uint8_t *numbers, uint32_t doc);
void kl__term_segment_put_number(uint8_t *numbers, uint32_t doc, uint32_t number_less_first);
/* Adds the postings of documents that are not dead to the index, at their new places. */
kl_rc kl__term_segment_take(kl__hdb *db, const kl__term_segment *segment, kl__index *index, const uint64_t *dead,
                            const uint32_t *places);
kl_rc kl__term_segment_set_dead(kl__hdb *db, const kl__term_segment *segment,
                                const uint64_t *dead); /* segment->live is theirs */
kl_rc kl__term_segment_drop(kl__hdb *db, const kl__term_segment *segment);
bool kl__term_segment_is_sound(const kl__term_segment *segment);
kl_rc kl__term_segment_damaged(kl__hdb *db);
/* Reads all of it, and adds the numbers of the live documents to *sum. KL_EDAMAGED: it is not as it was written. */
kl_rc kl__term_segment_check(kl__hdb *db, const kl__term_segment *segment, uint64_t *sum);

/* ---- history_join.c ---- */

/* Joins the many small segments of late into fewer. The index must have been written. */
kl_rc kl__index_settle(kl__index *index, kl__hdb *db);
/* Takes documents out of their segments, in ascending order; then joins segments of which little is left. */
kl_rc kl__index_remove(kl__index *index, kl__hdb *db, const int64_t *numbers, size_t count);

/* ---- history_find.c ---- */

kl_rc kl__hdb_check(kl__hdb *db); /* kl__history_check on a connection, in a transaction */

/* A task of the row, KL_TASK_COLUMNS, whose bytes are gone with the next step; and an error's, as ATTEMPTS_ALL begins.
 * False: it is not as it was written. */
bool kl__hdb_get_task(sqlite3_stmt *statement, kl_task *ret_task, uint32_t *ret_errors, int64_t *ret_expires_ms);
bool kl__hdb_attempt_is_sound(sqlite3_stmt *statement, uint32_t partition, const kl_task_id *id);

/* ---- history.c ---- */

/* kl__history_position and kl__history_commits, as they stand in the file; and the number above which tasks are
 * ahead. */
kl_rc kl__hdb_progress(kl__hdb *db, uint64_t *ret_position, uint64_t *ret_commits, int64_t *ret_settled);

struct kl__history {
    char *path;
    char *vfs; /* NULL: SQLite's own */
    int64_t rows_max, ms_max;
    _Atomic(uint64_t) position;
    _Atomic(uint64_t) commits; /* transactions */
    _Atomic(bool) has_aged;    /* no error of an unfinished task is kept longer than ms_max */

    kl__in_place_fn *in_place; /* NULL: nobody else is there to change it */
    void *in_place_ctx;

    pthread_mutex_t write_mutex; /* over the next two */
    kl__hdb *writer;
    kl__index index;

    pthread_mutex_t pool_mutex; /* over the next three */
    pthread_cond_t pool_free;
    kl__hdb *idle;
    int readers; /* opened */
};

/* One attempt's checksum, and one task's. */
uint32_t kl__history_sum_attempt(uint32_t partition, const kl_task_id *id, int64_t attempt, int64_t finished_ms,
                                 kl_bytes error);
uint32_t kl__history_sum_task(const kl_task *task, uint32_t errors, int64_t expires_ms);

#endif
