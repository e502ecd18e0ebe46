/* history_salvage.c - copies what can be read of a damaged history.db into a new one.
 *
 * From: doctor_repair.c.  To: history.c, which adds the tasks as if they had just been finished.
 *
 * Tasks are read in the order of their numbers. Where a page cannot be read, the next number is tried, and the next:
 * one by one at first, then in steps of a part of what was passed over, for what is lost may be one task or millions;
 * the first number that can be read again is then found by bisection. A task is taken when its checksum is right, with
 * those of its errors of which theirs is. Where others are lost, and the last may be among them, LOST_ERROR stands in
 * its place, so that neither an earlier one nor none at all is shown for it.
 *
 * A file that has lost its end, or whose header is damaged, is refused by SQLite as a whole, though its pages are there.
 * So the header is read as it was made, with as many pages as the file has; and tables are taken for ours by the
 * checksums of what is in them, whatever stands beside them.
 *
 * The new file's numbers are its own. Its tasks are ahead of its position (history.h) until all are there, so that what
 * the journal has still takes their place. */
#include <string.h>

#include "store/disk/doctor_history.h"
#include "store/disk/history_inside.h"

enum {
    ROWS_MAX = 4096,     /* tasks and errors that are added at once, */
    BYTES_MAX = 8 << 20, /* or about so many bytes */
    STEP_OF = 64,        /* a step is this part of what was passed over */
};

#define NUMBER_MAX (INT64_C(1) << 62)
#define LOST_ERROR "This error is lost: history.db was damaged."
#define ERRORS_OF                                                                                                      \
    "SELECT attempt, finished_ms, checksum, error, expires_ms FROM attempts WHERE partition = ?1 AND id = ?2 AND "     \
    "number = ?3 ORDER BY attempt"
#define ORPHANS "SELECT attempt, finished_ms, checksum, error, expires_ms, partition, id FROM attempts WHERE number = 0"

/* SQLite's calls for one file, of which reading shows the header as it was made. */
struct mended {
    sqlite3_io_methods methods; /* first: what the file points to */
    const sqlite3_io_methods *own;
};

struct salvage {
    kl__hdb *from;
    struct mended mended;
    kl__history *to;
    sqlite3_stmt *errors; /* ERRORS_OF; NULL: they cannot be read */
    kl_arena arena;
    kl__history_row *rows;
    kl_entry *entries;
    size_t count, bytes;
    int64_t position, settled_number; /* of the old file; 0: not known */
    bool is_ahead;                    /* what comes now is ahead of that */
    bool has_holes;                   /* something could not be read */
    kl__history_saved saved;
};

/* ---- Adding ---- */

static kl_rc flush(struct salvage *s)
{
    if (!s->count)
        return KL_OK;
    kl_rc rc = kl__history_add(s->to, s->rows, s->count, kl__history_position(s->to));
    s->count = s->bytes = 0;
    kl_arena_reset(&s->arena);
    return rc;
}

/* All that was settled by the old file's position is there. If some is not, the new one begins before the first, and
 * gets from the journal what that still has. */
static kl_rc go_ahead(struct salvage *s)
{
    if (s->is_ahead)
        return KL_OK;
    s->is_ahead = true;
    KL_TRY(flush(s));
    return s->has_holes || !s->position ? KL_OK : kl__history_add(s->to, NULL, 0, (uint64_t)s->position);
}

static kl_rc copy(struct salvage *s, kl_bytes *bytes)
{
    s->bytes += bytes->len;
    return kl_arena_copy(&s->arena, *bytes, bytes) ? KL_OK : kl__fail_memory();
}

static kl_rc put_row(struct salvage *s, const kl__history_row *row, const kl_entry *entry)
{
    kl__history_row *its = &s->rows[s->count];
    s->entries[s->count] = *entry;
    *its = *row;
    its->entry = &s->entries[s->count++];
    KL_TRY(copy(s, &its->result));
    return copy(s, &its->error);
}

/* An error of a retry, or (last) of the task's end, which goes with its row. False: it is not as it was written. */
static bool get_error(sqlite3_stmt *statement, const kl_entry *entry, kl__history_row *ret_row)
{
    int64_t attempt = sqlite3_column_int64(statement, 0);
    kl_bytes error = kl__hdb_bytes(statement, 3);
    if (!kl__hdb_attempt_is_sound(statement, entry->place.partition, &entry->id) || attempt < 0 ||
        attempt > KL_ATTEMPTS_MAX + 1 || !error.len || error.len > KL_ERROR_BYTES_MAX)
        return false;
    *ret_row = (kl__history_row){.outcome = KL_RETRY,
                                 .attempts = (uint32_t)(attempt > KL_ATTEMPTS_MAX ? KL_ATTEMPTS_MAX : attempt),
                                 .finished_ms = sqlite3_column_int64(statement, 1),
                                 .expires_ms = sqlite3_column_int64(statement, 4),
                                 .error = error};
    return true;
}

/* Those of retries before the row of the task, for which there is room then, and the last one in it. What cannot be
 * read is left out. There may be more than are added at once: what was added waits for its task. `lost`: of as many as
 * there were. */
static kl_rc take_errors(struct salvage *s, int64_t number, kl__history_row *task, uint32_t *lost)
{
    const kl_entry *entry = task->entry;
    if (!s->errors)
        return KL_OK;
    sqlite3_reset(s->errors);
    sqlite3_bind_int64(s->errors, 1, entry->place.partition);
    kl__hdb_bind_bytes(s->errors, 2, (kl_bytes){entry->id.bytes, sizeof entry->id.bytes});
    sqlite3_bind_int64(s->errors, 3, number);
    while (sqlite3_step(s->errors) == SQLITE_ROW && !task->error.len) {
        kl__history_row error;
        if (!get_error(s->errors, entry, &error))
            continue;
        *lost -= *lost > 0;
        if (s->count + 1 == ROWS_MAX || s->bytes >= BYTES_MAX)
            KL_TRY(flush(s));
        error.ahead = true;
        if (sqlite3_column_type(s->errors, 4) != SQLITE_NULL) {
            KL_TRY(put_row(s, &error, entry));
        } else {
            task->error = error.error;
            KL_TRY(copy(s, &task->error));
        }
    }
    sqlite3_reset(s->errors);
    return KL_OK;
}

static void note_lost_errors(struct salvage *s, uint32_t lost, kl__history_row *task)
{
    s->has_holes = true;
    s->saved.lacking_errors++;
    s->saved.lost_errors += lost;
    if (!task->error.len)
        task->error = kl_str(LOST_ERROR);
}

static bool keeps_limits(const kl_task *task)
{
    const kl_entry *entry = &task->entry;
    return task->state >= KL_TASK_DONE && task->state <= KL_TASK_CANCELLED && task->attempts <= KL_ATTEMPTS_MAX &&
           entry->key.len <= KL_KEY_BYTES_MAX && entry->kind.len <= KL_KIND_BYTES_MAX &&
           entry->headers.len <= KL_HEADERS_BYTES_MAX && entry->payload.len <= KL_PAYLOAD_BYTES_MAX &&
           task->result.len <= KL_RESULT_BYTES_MAX;
}

static kl_rc take_task(struct salvage *s, kl_task *task, uint32_t errors, int64_t expires_ms)
{
    uint32_t lost = errors;
    kl_entry *entry = &task->entry;
    int64_t number = (int64_t)task->position;
    kl_outcome outcome = task->state == KL_TASK_DONE ? KL_DONE : task->state == KL_TASK_DEAD ? KL_DEAD : KL_CANCELLED;
    kl__history_row row = {.entry = entry,
                           .outcome = outcome,
                           .ahead = true,
                           .attempts = task->attempts,
                           .finished_ms = task->finished_ms,
                           .expires_ms = expires_ms,
                           .result = task->result};
    if (s->count >= ROWS_MAX / 2 || s->bytes >= BYTES_MAX)
        KL_TRY(flush(s));
    if (number > s->settled_number)
        KL_TRY(go_ahead(s));
    if (errors)
        KL_TRY(take_errors(s, number, &row, &lost));
    if (lost)
        note_lost_errors(s, lost, &row);
    kl_bytes *parts[] = {&entry->key, &entry->kind, &entry->headers, &entry->payload};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        KL_TRY(copy(s, parts[i]));
    s->saved.tasks++;
    return put_row(s, &row, entry);
}

/* ---- Finding ---- */

static bool is_damage(kl_rc rc) { return rc == KL_EDAMAGED || rc == KL_ESYSTEM; }

/* The first task from a number on; *ret_row false: there is none. KL_EDAMAGED: that cannot be read. */
static kl_rc look_at(struct salvage *s, int64_t number, sqlite3_stmt **ret_statement, bool *ret_row)
{
    KL_TRY(kl__hdb_use(s->from, KL_SQL_TASK_AT, ret_statement));
    sqlite3_bind_int64(*ret_statement, 1, number);
    KL_TRY(kl__hdb_step(s->from, *ret_statement, ret_row));
    return *ret_row && sqlite3_column_int64(*ret_statement, 0) < number ? KL_EDAMAGED : KL_OK;
}

static bool can_read(struct salvage *s, int64_t number)
{
    sqlite3_stmt *statement = NULL;
    bool row;
    kl_rc rc = look_at(s, number, &statement, &row);
    sqlite3_reset(statement);
    return rc == KL_OK;
}

/* From a number that cannot be read to the next from which there is something, or nothing more. False: none can. */
static bool pass_over(struct salvage *s, int64_t *number)
{
    int64_t first = *number, bad, good = first;
    s->has_holes = true;
    do {
        bad = good;
        good += 1 + (good - first) / STEP_OF;
    } while (good < NUMBER_MAX && !can_read(s, good));
    if (good >= NUMBER_MAX)
        return false;
    while (good - bad > 1) {
        int64_t middle = bad + (good - bad) / 2;
        if (can_read(s, middle))
            good = middle;
        else
            bad = middle;
    }
    *number = good;
    return true;
}

static kl_rc take_tasks(struct salvage *s)
{
    for (int64_t number = 1;;) {
        sqlite3_stmt *statement;
        bool row;
        kl_task task;
        uint32_t errors;
        int64_t expires_ms;
        kl_rc rc = look_at(s, number, &statement, &row);
        if (rc == KL_OK && !row)
            return KL_OK;
        if (rc == KL_OK) {
            bool is_sound = kl__hdb_get_task(statement, &task, &errors, &expires_ms);
            number = (int64_t)task.position + 1;
            if (is_sound && keeps_limits(&task))
                rc = take_task(s, &task, errors, expires_ms);
            else
                s->has_holes = true;
            if (rc != KL_OK)
                return rc;
        } else if (!is_damage(rc)) {
            return rc;
        } else if (!pass_over(s, &number)) {
            return KL_OK;
        }
    }
}

/* Errors of tasks that are not finished, as far as they can be read. How many there were is not counted anywhere. */
static kl_rc take_orphans(struct salvage *s)
{
    sqlite3_stmt *statement;
    kl_rc rc = KL_OK;
    int step = sqlite3_prepare_v2(s->from->sqlite, ORPHANS, -1, &statement, NULL);
    s->saved.may_lack_errors = step != SQLITE_OK;
    if (step != SQLITE_OK)
        return KL_OK;
    while (rc == KL_OK && (step = sqlite3_step(statement)) == SQLITE_ROW) {
        kl_entry entry = {.place = {.partition = (uint32_t)sqlite3_column_int64(statement, 5)}};
        kl_bytes id = kl__hdb_bytes(statement, 6);
        kl__history_row row;
        bool is_sound = id.len == sizeof entry.id.bytes;
        if (is_sound)
            memcpy(entry.id.bytes, id.data, id.len);
        is_sound = is_sound && get_error(statement, &entry, &row);
        s->saved.may_lack_errors |= !is_sound;
        if (!is_sound)
            continue;
        row.ahead = true;
        if (s->count == ROWS_MAX || s->bytes >= BYTES_MAX)
            rc = flush(s);
        if (rc == KL_OK)
            rc = put_row(s, &row, &entry);
    }
    s->saved.may_lack_errors |= rc == KL_OK && step != SQLITE_DONE;
    sqlite3_finalize(statement);
    return rc;
}

/* ---- The header ---- */

/* What is the same in every file that we make; and for the number of its pages 0, so that SQLite counts them. */
static const struct {
    uint8_t at, length;
    char bytes[17];
} header_parts[] = {
    {0, 16, "SQLite format 3"},
    {16, 2, "\x10"},               /* bytes of a page: 4096 */
    {18, 6, "\2\2\0\x40\x20\x20"}, /* WAL; no bytes left out of a page; fractions of it */
    {28, 4, ""},                   /* pages */
    {44, 4, "\0\0\0\4"},           /* format of the tables */
    {52, 8, "\0\0\0\0\0\0\0\1"},   /* no pages for vacuuming; UTF-8 */
};

static int read_mended(sqlite3_file *file, void *bytes, int count, sqlite3_int64 offset)
{
    const struct mended *mended = (const void *)file->pMethods;
    int rc = mended->own->xRead(file, bytes, count, offset);
    if (rc != SQLITE_OK && rc != SQLITE_IOERR_SHORT_READ)
        return rc;
    for (size_t part = 0; part < sizeof header_parts / sizeof header_parts[0]; part++)
        for (int i = 0; i < header_parts[part].length; i++) {
            sqlite3_int64 at = header_parts[part].at + i - offset;
            if (at >= 0 && at < count)
                ((char *)bytes)[at] = header_parts[part].bytes[i];
        }
    return rc;
}

/* Before anything but the page size was read. */
static kl_rc mend_header(struct salvage *s)
{
    sqlite3_file *file = NULL;
    int rc = sqlite3_file_control(s->from->sqlite, "main", SQLITE_FCNTL_FILE_POINTER, &file);
    if (rc != SQLITE_OK)
        return kl__hdb_fail(s->from, rc);
    s->mended.own = file->pMethods;
    s->mended.methods = *file->pMethods;
    if (s->mended.methods.iVersion > 2)
        s->mended.methods.iVersion = 2; /* from 3 on the file may be read without a call */
    s->mended.methods.xRead = read_mended;
    file->pMethods = &s->mended.methods;
    /* A view that cannot be understood does not keep the tables from being read. */
    rc = sqlite3_exec(s->from->sqlite, "PRAGMA writable_schema = ON", NULL, NULL, NULL);
    return rc == SQLITE_OK ? KL_OK : kl__hdb_fail(s->from, rc);
}

/* ---- All of it ---- */

static kl_rc read_all(struct salvage *s)
{
    uint64_t position, commits;
    sqlite3_stmt *tasks;
    KL_TRY(kl__hdb_use(s->from, KL_SQL_TASK_AT, &tasks)); /* is there a table of them? */
    if (kl__hdb_progress(s->from, &position, &commits, &s->settled_number) == KL_OK)
        s->position = (int64_t)position;
    if (sqlite3_prepare_v2(s->from->sqlite, ERRORS_OF, -1, &s->errors, NULL) == SQLITE_NOMEM)
        return kl__fail_memory();
    KL_TRY(take_tasks(s));
    KL_TRY(go_ahead(s));
    KL_TRY(take_orphans(s));
    return flush(s);
}

static kl_rc salvage(struct salvage *s)
{
    s->rows = kl__alloc(ROWS_MAX * sizeof *s->rows);
    s->entries = kl__alloc(ROWS_MAX * sizeof *s->entries);
    if (!s->rows || !s->entries)
        return kl__fail_memory();
    kl_rc rc = mend_header(s);
    if (rc == KL_OK)
        rc = kl__hdb_do(s->from, KL_SQL_BEGIN_READ);
    if (rc == KL_OK)
        rc = read_all(s);
    sqlite3_finalize(s->errors);
    return kl__hdb_end(s->from, rc);
}

kl_rc kl__history_salvage(const char *path, const char *sqlite_vfs, bool has_wal, kl__history *to,
                          kl__history_saved *ret_saved)
{
    struct salvage s = {.to = to, .saved = {.may_lack_errors = true}}; /* until they were looked at */
    memset(ret_saved, 0, sizeof *ret_saved);
    KL_TRY(kl__hdb_look(path, sqlite_vfs, has_wal, &s.from));
    kl_rc rc = salvage(&s);
    kl__hdb_close(s.from);
    kl__free(s.rows);
    kl__free(s.entries);
    kl_arena_free(&s.arena);
    *ret_saved = s.saved;
    return rc == KL_EDAMAGED ? KL_OK : rc; /* whatever it was, no more of it can be read */
}
