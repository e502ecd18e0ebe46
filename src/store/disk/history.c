/* history.c - history.db: what is finished and kept, and how it is added and forgotten.
 *
 * From: keep.c.  To: history_db.c (SQLite), history_segments.c (the search index).
 *
 * The file, version 1 (user_version; application_id "KLhi"). Times are milliseconds since 1970, ids 16 bytes, states as
 * in task.h: 2 done, 3 dead, 4 cancelled. `sqlite3 history.db 'select * from tasks_view order by number desc limit 10'`
 * shows the latest tasks in words.
 *
 *   tasks        one row for each task, in the order of finishing
 *     number       ascending; a task with n > 1 errors takes n numbers, and this is the last
 *     partition, shard, id, state, attempts, priority, due_ms
 *     group_hash   whom it was for; 0: nobody in particular
 *     errors       how many of its attempts' errors are kept
 *     finished_ms  never below the row before
 *     expires_ms   when it may be forgotten
 *     job          NULL: none
 *     key, kind    text, or a blob where it is not UTF-8; NULL: empty
 *     result, headers, payload     blobs; NULL: empty
 *     checksum     over all of these but number
 *   tasks_by_id, tasks_by_expiry, tasks_by_job     indexes; the last has all that counting a job's tasks takes
 *   attempts     one row for each error, the last attempt's too: partition, id, attempt, finished_ms, checksum, and
 *     number       of its task, with which it goes; 0: that is not finished, whatever else of its id is kept
 *     error        text, or a blob where it is not UTF-8
 *     expires_ms   when it goes if its task never finishes; NULL: it came with the row of its task
 *   counts       how many tasks there are of each partition and state
 *   partitions   number and name
 *   progress     one row: the journal's position (H1), the last number, time and segment that were given, how many
 *                transactions there were, checksum, and
 *     settled_number   tasks above it are ahead of the position, and may be added again
 *   segments, blocks     the search index (history_segments.c)
 *     first, last  numbers of the first and last document; segment: its name in blocks
 *     docs, live   documents, and those of them that have not been removed
 *     dead         which have been; NULL: none
 *     numbers      of the documents; NULL: they run on from first
 *   tasks_view, attempts_view    the same for people: names, uuids, dates
 *
 * Searching needs no index by time: number order is time order, so a time is found by bisection. Free pages are used
 * again; the file never shrinks by itself (VACUUM does that, when Keyline is stopped). */
#include "store/disk/history.h"

#include <endian.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "store/disk/history_inside.h"

enum { COUNTS_CACHED = 64 }; /* (partition, state) pairs whose changes are gathered before they are written */

/* A write transaction. */
struct change {
    int64_t position, last_number, settled_number, last_ms;
    int64_t commits;      /* transactions, this one included */
    int64_t began_number; /* last_number when it began */
    int64_t final_number; /* last_number after the last row that is not ahead */
    bool any_ahead;
    bool changed; /* else there is nothing to write and sync */
    bool pending; /* there are errors of tasks that are not finished */
    struct count {
        uint32_t partition;
        int state;
        int64_t tasks;
    } counts[COUNTS_CACHED];
    size_t counts_used;
    int64_t *removed; /* numbers of documents */
    size_t removed_count, removed_room;
};

/* ---- Checksums ---- */

static uint64_t sum_numbers(const int64_t *numbers, size_t count)
{
    uint64_t wire[16];
    KL_ASSERT(count <= sizeof wire / sizeof wire[0]);
    for (size_t i = 0; i < count; i++)
        wire[i] = htole64((uint64_t)numbers[i]);
    return kl__hash((kl_bytes){wire, count * sizeof wire[0]}, 0);
}

uint32_t kl__history_sum_attempt(uint32_t partition, const kl_task_id *id, int64_t attempt, int64_t finished_ms,
                                 kl_bytes error)
{
    int64_t numbers[] = {partition, attempt, finished_ms};
    uint64_t sum = sum_numbers(numbers, sizeof numbers / sizeof numbers[0]);
    sum = kl__hash((kl_bytes){id->bytes, sizeof id->bytes}, sum);
    return (uint32_t)kl__hash(error, sum);
}

uint32_t kl__history_sum_task(const kl_task *task, uint32_t errors, int64_t expires_ms)
{
    const kl_entry *entry = &task->entry;
    int64_t numbers[] = {entry->place.partition,
                         entry->place.shard,
                         entry->priority,
                         entry->due_ms,
                         entry->group,
                         task->state,
                         task->attempts,
                         errors,
                         expires_ms,
                         task->finished_ms};
    uint64_t sum = sum_numbers(numbers, sizeof numbers / sizeof numbers[0]);
    sum = kl__hash((kl_bytes){entry->id.bytes, sizeof entry->id.bytes}, sum);
    sum = kl__hash((kl_bytes){entry->job.bytes, sizeof entry->job.bytes}, sum);
    sum = kl__hash(entry->key, sum);
    sum = kl__hash(entry->kind, sum);
    sum = kl__hash(task->result, sum);
    sum = kl__hash(entry->headers, sum);
    return (uint32_t)kl__hash(entry->payload, sum);
}

/* 0 for the row of a new file. */
static uint32_t sum_progress(const struct change *change, int64_t last_segment)
{
    static const int64_t zero[6];
    int64_t numbers[] = {change->position, change->last_number, change->settled_number,
                         change->last_ms,  last_segment,        change->commits};
    return (uint32_t)(sum_numbers(numbers, 6) ^ sum_numbers(zero, 6));
}

/* ---- Open and close ---- */

static char *copy_path(const char *path)
{
    /* SQLite would take this for a URI. */
    const char *prefix = strncmp(path, "file:", 5) == 0 ? "./" : "";
    size_t len = strlen(prefix) + strlen(path) + 1;
    char *copy = kl__alloc(len);
    if (copy) {
        strcpy(copy, prefix);
        strcat(copy, path);
    }
    return copy;
}

static kl_rc read_progress(kl__hdb *db, struct change *change, int64_t *ret_last_segment)
{
    sqlite3_stmt *statement;
    bool row;
    KL_TRY(kl__hdb_use(db, KL_SQL_GET_PROGRESS, &statement));
    KL_TRY(kl__hdb_step(db, statement, &row));
    if (!row)
        return kl__hdb_damaged(db, "its table progress is empty");
    change->position = sqlite3_column_int64(statement, 0);
    change->last_number = sqlite3_column_int64(statement, 1);
    change->settled_number = sqlite3_column_int64(statement, 2);
    change->last_ms = sqlite3_column_int64(statement, 3);
    *ret_last_segment = sqlite3_column_int64(statement, 4);
    change->commits = sqlite3_column_int64(statement, 5);
    int64_t checksum = sqlite3_column_int64(statement, 6);
    change->began_number = change->last_number;
    sqlite3_reset(statement);
    if (checksum != sum_progress(change, *ret_last_segment))
        return kl__hdb_damaged(db, "its table progress");
    return KL_OK;
}

kl_rc kl__hdb_progress(kl__hdb *db, uint64_t *ret_position, uint64_t *ret_commits, int64_t *ret_settled)
{
    struct change change = {0};
    int64_t last_segment;
    KL_TRY(read_progress(db, &change, &last_segment));
    *ret_position = (uint64_t)change.position;
    *ret_commits = (uint64_t)change.commits;
    *ret_settled = change.settled_number;
    return KL_OK;
}

static kl_rc load_progress(kl__history *history, struct change *change)
{
    int64_t last_segment;
    KL_TRY(read_progress(history->writer, change, &last_segment));
    kl__index_start(&history->index, change->last_number + 1, last_segment);
    return KL_OK;
}

static kl_rc open_parts(kl__history *history, const char *path, const char *sqlite_vfs)
{
    history->path = copy_path(path);
    history->vfs = sqlite_vfs ? copy_path(sqlite_vfs) : NULL;
    if (!history->path || (sqlite_vfs && !history->vfs))
        return kl__fail_memory();
    KL_TRY(kl__hdb_open(history->path, history->vfs, true, &history->writer));
    struct change change = {0};
    KL_TRY(load_progress(history, &change));
    history->position = (uint64_t)change.position;
    history->commits = (uint64_t)change.commits;
    return KL_OK;
}

kl_rc kl__history_open(const char *path, const char *sqlite_vfs, int64_t rows_max, int64_t ms_max,
                       kl__history **ret_history)
{
    KL_ASSERT(rows_max >= 0 && ms_max >= 0);
    kl__history *history = kl__alloc_zeroed(1, sizeof *history);
    if (!history)
        return kl__fail_memory();
    history->rows_max = rows_max;
    history->ms_max = ms_max;
    pthread_mutex_init(&history->write_mutex, NULL);
    pthread_mutex_init(&history->pool_mutex, NULL);
    pthread_cond_init(&history->pool_free, NULL);
    kl_rc rc = open_parts(history, path, sqlite_vfs);
    if (rc != KL_OK) {
        kl__history_close(history);
        return rc;
    }
    *ret_history = history;
    return KL_OK;
}

void kl__history_close(kl__history *history)
{
    if (!history)
        return;
    for (kl__hdb *next, *reader = history->idle; reader; reader = next) {
        next = reader->next;
        kl__hdb_close(reader);
        history->readers--;
    }
    KL_ASSERT(history->readers == 0); /* else a call is under way */
    kl__hdb_close(history->writer);   /* last: it moves the log into the file */
    kl__index_free(&history->index);
    pthread_cond_destroy(&history->pool_free);
    pthread_mutex_destroy(&history->pool_mutex);
    pthread_mutex_destroy(&history->write_mutex);
    kl__free(history->vfs);
    kl__free(history->path);
    kl__free(history);
}

uint64_t kl__history_position(const kl__history *history) { return atomic_load(&history->position); }

bool kl__history_is_held(const kl__history *history) { return atomic_load(&history->writer->is_held); }

uint64_t kl__history_commits(const kl__history *history) { return atomic_load(&history->commits); }

/* ---- Transactions ---- */

static kl_rc begin_taken(kl__history *history, struct change *change)
{
    KL_TRY(kl__hdb_do(history->writer, KL_SQL_BEGIN_WRITE));
    atomic_store(&history->writer->is_held, false);
    return load_progress(history, change);
}

/* Takes the writer, until end. */
static kl_rc begin(kl__history *history, struct change *change)
{
    (void)kl__hdb_take_turn(history->writer, &history->write_mutex, false);
    return begin_taken(history, change);
}

static kl_rc write_counts(kl__hdb *db, struct change *change)
{
    sqlite3_stmt *statement;
    for (size_t i = 0; i < change->counts_used; i++) {
        KL_TRY(kl__hdb_use(db, KL_SQL_ADD_COUNT, &statement));
        sqlite3_bind_int64(statement, 1, change->counts[i].partition);
        sqlite3_bind_int64(statement, 2, change->counts[i].state);
        sqlite3_bind_int64(statement, 3, change->counts[i].tasks);
        KL_TRY(kl__hdb_run(db, statement));
    }
    change->counts_used = 0;
    return KL_OK;
}

static kl_rc count(kl__hdb *db, struct change *change, uint32_t partition, int state, int tasks)
{
    for (size_t i = 0; i < change->counts_used; i++)
        if (change->counts[i].partition == partition && change->counts[i].state == state) {
            change->counts[i].tasks += tasks;
            return KL_OK;
        }
    if (change->counts_used == COUNTS_CACHED)
        KL_TRY(write_counts(db, change));
    change->counts[change->counts_used++] = (struct count){partition, state, tasks};
    return KL_OK;
}

static int ascending(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Tells the search index what is gone. */
static kl_rc write_removed(kl__history *history, struct change *change)
{
    if (!change->removed_count)
        return KL_OK;
    qsort(change->removed, change->removed_count, sizeof change->removed[0], ascending);
    KL_TRY(kl__index_remove(&history->index, history->writer, change->removed, change->removed_count));
    change->removed_count = 0;
    return KL_OK;
}

static kl_rc write_change(kl__history *history, struct change *change)
{
    sqlite3_stmt *statement;
    kl__hdb *db = history->writer;
    KL_TRY(kl__index_write(&history->index, db));
    KL_TRY(write_removed(history, change));
    KL_TRY(kl__index_settle(&history->index, db));
    KL_TRY(write_counts(db, change));
    KL_TRY(kl__hdb_use(db, KL_SQL_SET_PROGRESS, &statement));
    sqlite3_bind_int64(statement, 1, change->position);
    sqlite3_bind_int64(statement, 2, change->last_number);
    sqlite3_bind_int64(statement, 3, change->settled_number);
    sqlite3_bind_int64(statement, 4, change->last_ms);
    sqlite3_bind_int64(statement, 5, history->index.last_segment);
    sqlite3_bind_int64(statement, 6, ++change->commits);
    sqlite3_bind_int64(statement, 7, sum_progress(change, history->index.last_segment));
    return kl__hdb_run(db, statement);
}

/* Commits when rc is KL_OK, else takes everything back. */
static kl_rc end(kl__history *history, struct change *change, kl_rc rc)
{
    if (rc == KL_OK && change->changed)
        rc = write_change(history, change);
    rc = kl__hdb_end(history->writer, rc);
    if (rc == KL_OK) {
        atomic_store(&history->position, (uint64_t)change->position);
        atomic_store(&history->commits, (uint64_t)change->commits);
        kl__hdb_checkpoint(history->writer);
    }
    pthread_mutex_unlock(&history->write_mutex);
    kl__free(change->removed);
    return rc;
}

kl_rc kl__history_set_commits(kl__history *history, uint64_t commits)
{
    struct change change = {0};
    kl_rc rc = begin(history, &change);
    change.commits = (int64_t)commits - 1; /* and this one */
    change.changed = true;
    return end(history, &change, rc);
}

/* ---- Forgetting ---- */

static kl_rc note_removed(struct change *change, int64_t number)
{
    if (change->removed_count == change->removed_room) {
        size_t room = change->removed_room ? 2 * change->removed_room : 256;
        int64_t *removed = kl__alloc_zeroed(room, sizeof *removed);
        if (!removed)
            return kl__fail_memory();
        if (change->removed_count)
            memcpy(removed, change->removed, change->removed_count * sizeof *removed);
        kl__free(change->removed);
        change->removed = removed;
        change->removed_room = room;
    }
    change->removed[change->removed_count++] = number;
    return KL_OK;
}

static uint32_t docs_of(uint32_t errors) { return errors ? errors : 1; }

static kl_rc drop_attempts(kl__hdb *db, uint32_t partition, kl_bytes id, int64_t number)
{
    sqlite3_stmt *statement;
    KL_TRY(kl__hdb_use(db, KL_SQL_DROP_ATTEMPTS, &statement));
    sqlite3_bind_int64(statement, 1, partition);
    kl__hdb_bind_bytes(statement, 2, id);
    sqlite3_bind_int64(statement, 3, number);
    return kl__hdb_run(db, statement);
}

static kl_rc drop(kl__history *history, struct change *change, int64_t number)
{
    sqlite3_stmt *about, *statement;
    bool row;
    kl__hdb *db = history->writer;
    change->changed = true;
    KL_TRY(kl__hdb_use(db, KL_SQL_ABOUT_TASK, &about));
    sqlite3_bind_int64(about, 1, number);
    KL_TRY(kl__hdb_step(db, about, &row));
    if (!row)
        return kl__hdb_damaged(db, "an index names a task that is not there");
    uint32_t partition = (uint32_t)sqlite3_column_int64(about, 0), errors = (uint32_t)sqlite3_column_int64(about, 2);
    if (errors > KL_ATTEMPTS_MAX + 1)
        return kl__hdb_damaged(db, "a task's count of errors");
    KL_TRY(count(db, change, partition, sqlite3_column_int(about, 3), -1));
    if (errors)
        KL_TRY(drop_attempts(db, partition, kl__hdb_bytes(about, 1), number));
    sqlite3_reset(about);
    for (uint32_t i = 0; i < docs_of(errors); i++)
        KL_TRY(note_removed(change, number - i));
    KL_TRY(kl__hdb_use(db, KL_SQL_DROP_TASK, &statement));
    sqlite3_bind_int64(statement, 1, number);
    return kl__hdb_run(db, statement);
}

/* 0: the task is not kept. */
static kl_rc number_of(kl__hdb *db, uint32_t partition, const kl_task_id *id, int64_t *ret_number)
{
    sqlite3_stmt *statement;
    bool row;
    KL_TRY(kl__hdb_use(db, KL_SQL_WHERE_TASK, &statement));
    sqlite3_bind_int64(statement, 1, partition);
    kl__hdb_bind_bytes(statement, 2, (kl_bytes){id->bytes, sizeof id->bytes});
    KL_TRY(kl__hdb_step(db, statement, &row));
    *ret_number = row ? sqlite3_column_int64(statement, 0) : 0;
    sqlite3_reset(statement);
    return KL_OK;
}

/* Drops the task of this id when it is kept. */
static kl_rc drop_id(kl__history *history, struct change *change, uint32_t partition, const kl_task_id *id)
{
    int64_t number;
    KL_TRY(number_of(history->writer, partition, id, &number));
    return number ? drop(history, change, number) : KL_OK;
}

kl_rc kl__history_forget(kl__history *history, kl_place place, const kl_task_id *ids, size_t count)
{
    struct change change = {0};
    kl_rc rc = begin(history, &change);
    for (size_t i = 0; i < count && rc == KL_OK; i++)
        rc = drop_id(history, &change, place.partition, &ids[i]);
    return end(history, &change, rc);
}

/* Drops up to max of the tasks that a statement names in the order of a time of theirs, up to until_ms. They are listed
 * first: dropping changes what it walks over. */
static kl_rc drop_listed(kl__history *history, struct change *change, kl__sql which, int64_t until_ms, size_t max,
                         size_t *trimmed)
{
    sqlite3_stmt *list;
    if (!max)
        return KL_OK;
    KL_TRY(kl__hdb_use(history->writer, which, &list));
    sqlite3_bind_int64(list, 1, (int64_t)max);
    int64_t *numbers = kl__alloc_zeroed(max, sizeof *numbers);
    if (!numbers)
        return kl__fail_memory();
    size_t count = 0;
    bool row = true;
    kl_rc rc = KL_OK;
    while (count < max && (rc = kl__hdb_step(history->writer, list, &row)) == KL_OK && row &&
           sqlite3_column_int64(list, 1) <= until_ms)
        numbers[count++] = sqlite3_column_int64(list, 0);
    sqlite3_reset(list);
    for (size_t i = 0; i < count && rc == KL_OK; i++)
        rc = drop(history, change, numbers[i]);
    kl__free(numbers);
    *trimmed += count;
    return rc;
}

static kl_rc trim_over(kl__history *history, struct change *change, size_t max, size_t *trimmed)
{
    sqlite3_stmt *statement;
    bool row;
    kl__hdb *db = history->writer;
    KL_TRY(kl__hdb_use(db, KL_SQL_GET_TOTAL, &statement));
    KL_TRY(kl__hdb_step(db, statement, &row));
    int64_t over = sqlite3_column_int64(statement, 0) - history->rows_max;
    sqlite3_reset(statement);
    if (over <= 0)
        return KL_OK;
    return drop_listed(history, change, KL_SQL_TASKS_FIRST, INT64_MAX, over < (int64_t)max ? (size_t)over : max,
                       trimmed);
}

static kl_rc trim_expired(kl__history *history, struct change *change, int64_t now_ms, size_t max, size_t *trimmed)
{
    sqlite3_stmt *statement;
    kl__hdb *db = history->writer;
    /* What came under a longer ms_max expires later than this one says. Tasks stand in the order in which they were
     * finished (H3), so the first are the oldest. */
    KL_TRY(drop_listed(history, change, KL_SQL_TASKS_FIRST, now_ms - history->ms_max, max - *trimmed, trimmed));
    KL_TRY(drop_listed(history, change, KL_SQL_TASKS_EXPIRED, now_ms, max - *trimmed, trimmed));
    if (*trimmed < max) {
        KL_TRY(kl__hdb_use(db, KL_SQL_DROP_ORPHANS, &statement));
        sqlite3_bind_int64(statement, 1, now_ms);
        sqlite3_bind_int64(statement, 2, (int64_t)(max - *trimmed));
        KL_TRY(kl__hdb_run(db, statement));
        size_t orphans = (size_t)sqlite3_changes64(db->sqlite);
        change->changed |= orphans > 0;
        *trimmed += orphans;
    }
    return KL_OK;
}

/* Errors of unfinished tasks stand in no order of time, so what they got under a longer ms_max is put right: once. */
static kl_rc age_orphans(kl__history *history, struct change *change)
{
    sqlite3_stmt *statement;
    if (atomic_load(&history->has_aged))
        return KL_OK;
    KL_TRY(kl__hdb_use(history->writer, KL_SQL_AGE_ORPHANS, &statement));
    sqlite3_bind_int64(statement, 1, history->ms_max);
    KL_TRY(kl__hdb_run(history->writer, statement));
    change->changed |= sqlite3_changes64(history->writer->sqlite) > 0;
    return KL_OK;
}

kl_rc kl__history_trim(kl__history *history, int64_t now_ms, size_t max, bool hasty, size_t *ret_trimmed)
{
    struct change change = {0};
    size_t trimmed = 0;
    if (max > KL_BATCH_MAX)
        max = KL_BATCH_MAX;
    if (!kl__hdb_take_turn(history->writer, &history->write_mutex, hasty))
        return kl__hdb_fail(history->writer, SQLITE_BUSY);
    kl_rc rc = begin_taken(history, &change);
    if (rc == KL_OK)
        rc = trim_over(history, &change, max, &trimmed);
    if (rc == KL_OK)
        rc = age_orphans(history, &change);
    if (rc == KL_OK)
        rc = trim_expired(history, &change, now_ms, max, &trimmed);
    rc = end(history, &change, rc);
    if (rc != KL_OK)
        return rc;
    atomic_store(&history->has_aged, true);
    *ret_trimmed = trimmed;
    return KL_OK;
}

/* ---- Adding ---- */

/* Number 0: of a task that is not finished. */
static kl_rc add_attempt(kl__hdb *db, const kl__history_row *row, int64_t attempt, int64_t number)
{
    sqlite3_stmt *statement;
    const kl_entry *entry = row->entry;
    KL_TRY(kl__hdb_use(db, KL_SQL_ADD_ATTEMPT, &statement));
    sqlite3_bind_int64(statement, 1, entry->place.partition);
    kl__hdb_bind_bytes(statement, 2, (kl_bytes){entry->id.bytes, sizeof entry->id.bytes});
    sqlite3_bind_int64(statement, 3, number);
    sqlite3_bind_int64(statement, 4, attempt);
    sqlite3_bind_int64(statement, 5, row->finished_ms);
    if (number)
        sqlite3_bind_null(statement, 6);
    else
        sqlite3_bind_int64(statement, 6, row->expires_ms);
    sqlite3_bind_int64(
        statement, 7,
        kl__history_sum_attempt(entry->place.partition, &entry->id, attempt, row->finished_ms, row->error));
    kl__hdb_bind_text(statement, 8, row->error);
    return kl__hdb_run(db, statement);
}

/* One document: what is true of the task, and the words of one of its errors. */
static kl_rc index_doc(kl__history *history, struct change *change, const kl_task *task, kl_bytes error)
{
    kl__index *index = &history->index;
    const kl_entry *entry = &task->entry;
    KL_TRY(kl__index_doc(index, history->writer));
    KL_TRY(kl__index_term(index, kl__term_number(KL_TERM_PARTITION, entry->place.partition)));
    KL_TRY(kl__index_term(index, kl__term_number(KL_TERM_STATE, task->state)));
    if (entry->key.len)
        KL_TRY(kl__index_term(index, kl__term(KL_TERM_KEY, entry->key)));
    if (entry->kind.len)
        KL_TRY(kl__index_term(index, kl__term(KL_TERM_KIND, entry->kind)));
    if (!kl__id_is_none(&entry->job))
        KL_TRY(kl__index_term(index, kl__term(KL_TERM_JOB, (kl_bytes){entry->job.bytes, sizeof entry->job.bytes})));
    for (uint64_t term; kl__term_word(&error, &term);)
        KL_TRY(kl__index_term(index, term));
    change->last_number++;
    return KL_OK;
}

/* How many errors of the task's retries there are, and the last one's attempt. */
static kl_rc count_pending(kl__hdb *db, const kl_entry *entry, uint32_t *ret_errors, int64_t *ret_last)
{
    sqlite3_stmt *statement;
    bool row;
    KL_TRY(kl__hdb_use(db, KL_SQL_COUNT_PENDING, &statement));
    sqlite3_bind_int64(statement, 1, entry->place.partition);
    kl__hdb_bind_bytes(statement, 2, (kl_bytes){entry->id.bytes, sizeof entry->id.bytes});
    KL_TRY(kl__hdb_step(db, statement, &row));
    *ret_errors = (uint32_t)sqlite3_column_int64(statement, 0);
    *ret_last = sqlite3_column_int64(statement, 1);
    sqlite3_reset(statement);
    return KL_OK;
}

/* Makes the errors of the task's retries its own. */
static kl_rc adopt(kl__history *history, struct change *change, const kl_task *task, int64_t number)
{
    sqlite3_stmt *statement;
    bool row;
    kl__hdb *db = history->writer;
    kl_bytes id = {task->entry.id.bytes, sizeof task->entry.id.bytes};
    KL_TRY(kl__hdb_use(db, KL_SQL_PENDING, &statement));
    sqlite3_bind_int64(statement, 1, task->entry.place.partition);
    kl__hdb_bind_bytes(statement, 2, id);
    for (;;) {
        KL_TRY(kl__hdb_step(db, statement, &row));
        if (!row)
            break;
        KL_TRY(index_doc(history, change, task, kl__hdb_bytes(statement, 0)));
    }
    KL_TRY(kl__hdb_use(db, KL_SQL_ADOPT, &statement));
    sqlite3_bind_int64(statement, 1, task->entry.place.partition);
    kl__hdb_bind_bytes(statement, 2, id);
    sqlite3_bind_int64(statement, 3, number);
    return kl__hdb_run(db, statement);
}

/* Drops a row that was added ahead of the position and is now added again. The errors of the task's retries came
 * before it and are not added again, so they wait for it as they did then. */
static kl_rc take_back(kl__history *history, struct change *change, const kl_entry *entry)
{
    sqlite3_stmt *statement;
    int64_t number;
    kl__hdb *db = history->writer;
    KL_TRY(number_of(db, entry->place.partition, &entry->id, &number));
    if (number <= change->settled_number || number > change->began_number)
        return KL_OK;
    KL_TRY(kl__hdb_use(db, KL_SQL_RELEASE, &statement));
    sqlite3_bind_int64(statement, 1, entry->place.partition);
    kl__hdb_bind_bytes(statement, 2, (kl_bytes){entry->id.bytes, sizeof entry->id.bytes});
    sqlite3_bind_int64(statement, 3, number);
    KL_TRY(kl__hdb_run(db, statement));
    change->pending |= sqlite3_changes64(db->sqlite) > 0;
    return drop(history, change, number);
}

/* Returns what SQLite said: SQLITE_CONSTRAINT means that the task is there already. */
static int insert_task(sqlite3_stmt *statement, const kl_task *task, int64_t number, uint32_t errors,
                       int64_t expires_ms)
{
    const kl_entry *entry = &task->entry;
    int at = 1;
    sqlite3_bind_int64(statement, at++, number);
    sqlite3_bind_int64(statement, at++, entry->place.partition);
    sqlite3_bind_int64(statement, at++, entry->place.shard);
    kl__hdb_bind_bytes(statement, at++, (kl_bytes){entry->id.bytes, sizeof entry->id.bytes});
    sqlite3_bind_int64(statement, at++, task->state);
    sqlite3_bind_int64(statement, at++, task->attempts);
    sqlite3_bind_int64(statement, at++, errors);
    sqlite3_bind_int64(statement, at++, task->finished_ms);
    sqlite3_bind_int64(statement, at++, expires_ms);
    sqlite3_bind_int64(statement, at++, entry->priority);
    sqlite3_bind_int64(statement, at++, entry->due_ms);
    sqlite3_bind_int64(statement, at++, entry->group);
    kl__hdb_bind_id(statement, at++, &entry->job);
    kl__hdb_bind_text(statement, at++, entry->key);
    kl__hdb_bind_text(statement, at++, entry->kind);
    kl__hdb_bind_bytes(statement, at++, task->result);
    kl__hdb_bind_bytes(statement, at++, entry->headers);
    kl__hdb_bind_bytes(statement, at++, entry->payload);
    sqlite3_bind_int64(statement, at++, kl__history_sum_task(task, errors, expires_ms));
    int rc = sqlite3_step(statement);
    sqlite3_reset(statement);
    return rc;
}

/* An earlier row of the same task gives way, out of a search index that knows it. */
static kl_rc write_task(kl__history *history, struct change *change, const kl_task *task, int64_t number,
                        uint32_t errors, int64_t expires_ms)
{
    sqlite3_stmt *statement;
    kl__hdb *db = history->writer;
    KL_TRY(kl__hdb_use(db, KL_SQL_ADD_TASK, &statement));
    int rc = insert_task(statement, task, number, errors, expires_ms);
    if (rc == SQLITE_CONSTRAINT_UNIQUE) {
        KL_TRY(kl__index_write(&history->index, db));
        KL_TRY(drop_id(history, change, task->entry.place.partition, &task->entry.id));
        KL_TRY(write_removed(history, change));
        rc = insert_task(statement, task, number, errors, expires_ms);
    }
    return rc == SQLITE_DONE ? count(db, change, task->entry.place.partition, task->state, 1) : kl__hdb_fail(db, rc);
}

static kl_task_state state_of(kl_outcome outcome)
{
    return outcome == KL_DONE ? KL_TASK_DONE : outcome == KL_DEAD ? KL_TASK_DEAD : KL_TASK_CANCELLED;
}

static void check_limits(const kl__history_row *row)
{
    const kl_entry *entry = row->entry;
    KL_ASSERT(row->error.len <= KL_ERROR_BYTES_MAX && row->attempts <= KL_ATTEMPTS_MAX);
    if (row->outcome == KL_RETRY)
        return;
    KL_ASSERT(entry->key.len <= KL_KEY_BYTES_MAX && entry->kind.len <= KL_KIND_BYTES_MAX);
    KL_ASSERT(entry->headers.len <= KL_HEADERS_BYTES_MAX && entry->payload.len <= KL_PAYLOAD_BYTES_MAX);
    KL_ASSERT(row->result.len <= KL_RESULT_BYTES_MAX);
}

static kl_rc add_task(kl__history *history, struct change *change, const kl__history_row *row)
{
    kl__hdb *db = history->writer;
    if (change->last_ms < row->finished_ms)
        change->last_ms = row->finished_ms;
    kl_task task = {.entry = *row->entry,
                    .state = state_of(row->outcome),
                    .attempts = row->attempts,
                    .finished_ms = change->last_ms,
                    .result = row->result};
    uint32_t pending = 0;
    int64_t last = 0;
    if (change->began_number > change->settled_number)
        KL_TRY(take_back(history, change, row->entry));
    if (change->pending)
        KL_TRY(count_pending(db, row->entry, &pending, &last));
    uint32_t errors = pending + (row->error.len > 0);
    int64_t number = change->last_number + docs_of(errors);
    KL_TRY(write_task(history, change, &task, number, errors, row->expires_ms));
    if (pending)
        KL_TRY(adopt(history, change, &task, number));
    if (row->error.len)
        KL_TRY(add_attempt(db, row, !pending || last < row->attempts ? row->attempts : last + 1, number));
    return row->error.len || !pending ? index_doc(history, change, &task, row->error) : KL_OK;
}

static kl_rc add_row(kl__history *history, struct change *change, const kl__history_row *row)
{
    check_limits(row);
    if (row->outcome != KL_RETRY) {
        KL_TRY(add_task(history, change, row));
    } else if (row->error.len) {
        change->pending = true;
        KL_TRY(add_attempt(history->writer, row, row->attempts, 0));
    }
    if (row->ahead)
        change->any_ahead = true;
    else
        change->final_number = change->last_number;
    return KL_OK;
}

static void move(struct change *change, int64_t position)
{
    if (change->position == position)
        return; /* so every row is ahead */
    change->position = position;
    if (!change->any_ahead)
        change->settled_number = change->last_number;
    else if (change->final_number > change->settled_number)
        change->settled_number = change->final_number;
}

static kl_rc any_pending(kl__hdb *db, bool *ret_pending)
{
    sqlite3_stmt *statement;
    KL_TRY(kl__hdb_use(db, KL_SQL_ANY_PENDING, &statement));
    KL_TRY(kl__hdb_step(db, statement, ret_pending));
    sqlite3_reset(statement);
    return KL_OK;
}

kl_rc kl__history_add(kl__history *history, const kl__history_row *rows, size_t count, uint64_t position)
{
    struct change change = {.changed = true};
    kl_rc rc = begin(history, &change);
    if (rc == KL_OK)
        rc = any_pending(history->writer, &change.pending);
    for (size_t i = 0; i < count && rc == KL_OK; i++)
        rc = add_row(history, &change, &rows[i]);
    if (rc == KL_OK)
        move(&change, (int64_t)position);
    return end(history, &change, rc);
}

static kl_rc is_named(kl__hdb *db, uint32_t partition, const char *name, bool *ret_same)
{
    sqlite3_stmt *statement;
    bool row;
    KL_TRY(kl__hdb_use(db, KL_SQL_GET_NAME, &statement));
    sqlite3_bind_int64(statement, 1, partition);
    KL_TRY(kl__hdb_step(db, statement, &row));
    kl_bytes there = row ? kl__hdb_bytes(statement, 0) : (kl_bytes){0};
    *ret_same = row && there.len == strlen(name) && memcmp(there.data, name, there.len) == 0;
    sqlite3_reset(statement);
    return KL_OK;
}

kl_rc kl__history_name(kl__history *history, uint32_t partition, const char *name)
{
    bool same = false;
    pthread_mutex_lock(&history->write_mutex);
    kl_rc look_rc = is_named(history->writer, partition, name, &same);
    pthread_mutex_unlock(&history->write_mutex);
    if (look_rc != KL_OK || same)
        return look_rc;
    struct change change = {.changed = true};
    sqlite3_stmt *statement;
    kl_rc rc = begin(history, &change);
    if (rc == KL_OK)
        rc = kl__hdb_use(history->writer, KL_SQL_SET_NAME, &statement);
    if (rc == KL_OK) {
        sqlite3_bind_int64(statement, 1, partition);
        kl__hdb_bind_text(statement, 2, kl_str(name));
        rc = kl__hdb_run(history->writer, statement);
    }
    return end(history, &change, rc);
}
