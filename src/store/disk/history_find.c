/* history_find.c - the reading side: tasks by id, by job, by search; counts; and the check of the whole file.
 *
 * From: the disk engine, any thread.  To: history_db.c (SQLite), history_segments.c (the search index).
 *
 * A call reads in one transaction on a connection of its own, so what it sees is of one moment. A search walks the
 * segments from the newest, intersects the sets of its terms in each, and reads the tasks of what is left until the
 * page is full. Time and the place to go on from are ranges of numbers (H3). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/disk/history_inside.h"

/* ---- Connections ---- */

void kl__history_stay(kl__history *history, kl__in_place_fn *in_place, void *ctx)
{
    history->in_place = in_place;
    history->in_place_ctx = ctx;
}

static kl_rc open_reader(kl__history *history, kl__hdb **ret_db)
{
    if (history->in_place && !history->in_place(history->in_place_ctx))
        return kl__fail(KL_ESYSTEM, "%s, or its directory, was removed, moved or replaced while it was open",
                        history->path);
    return kl__hdb_open(history->path, history->vfs, false, ret_db);
}

/* An idle connection, or a new one, or the next that gets free. */
static kl_rc take_reader(kl__history *history, kl__hdb **ret_db)
{
    pthread_mutex_lock(&history->pool_mutex);
    while (!history->idle && history->readers == KL_HISTORY_READERS)
        pthread_cond_wait(&history->pool_free, &history->pool_mutex);
    kl__hdb *db = history->idle;
    if (db)
        history->idle = db->next;
    else
        history->readers++;
    pthread_mutex_unlock(&history->pool_mutex);
    if (db) {
        *ret_db = db;
        return KL_OK;
    }
    kl_rc rc = open_reader(history, ret_db);
    if (rc == KL_OK)
        return KL_OK;
    pthread_mutex_lock(&history->pool_mutex);
    history->readers--;
    pthread_cond_signal(&history->pool_free);
    pthread_mutex_unlock(&history->pool_mutex);
    return rc;
}

static void give_reader(kl__history *history, kl__hdb *db)
{
    pthread_mutex_lock(&history->pool_mutex);
    db->next = history->idle;
    history->idle = db;
    pthread_cond_signal(&history->pool_free);
    pthread_mutex_unlock(&history->pool_mutex);
}

static kl_rc begin(kl__history *history, kl__hdb **ret_db)
{
    KL_TRY(take_reader(history, ret_db));
    kl_rc rc = kl__hdb_do(*ret_db, KL_SQL_BEGIN_READ);
    if (rc == KL_OK)
        return KL_OK;
    rc = kl__hdb_end(*ret_db, rc);
    give_reader(history, *ret_db);
    return rc;
}

static kl_rc end(kl__history *history, kl__hdb *db, kl_rc rc)
{
    rc = kl__hdb_end(db, rc);
    give_reader(history, db);
    return rc;
}

/* ---- Rows ---- */

/* A task as it lies in the row; its bytes are gone with the next step. */
struct row {
    kl_task task;
    int64_t number, expires_ms, checksum;
    uint32_t errors;
};

static bool get_id(sqlite3_stmt *statement, int column, bool may_be_none, kl_task_id *ret_id)
{
    kl_bytes bytes = kl__hdb_bytes(statement, column);
    memset(ret_id, 0, sizeof *ret_id);
    if (bytes.len != sizeof ret_id->bytes)
        return may_be_none && bytes.len == 0;
    memcpy(ret_id->bytes, bytes.data, bytes.len);
    return true;
}

/* False: what is there was not written like this. */
static bool get_row(sqlite3_stmt *statement, struct row *ret_row)
{
    struct row row = {.number = sqlite3_column_int64(statement, 0)};
    kl_entry *entry = &row.task.entry;
    bool ok = get_id(statement, 3, false, &entry->id) && get_id(statement, 12, true, &entry->job);
    entry->place.partition = (uint32_t)sqlite3_column_int64(statement, 1);
    entry->place.shard = (uint32_t)sqlite3_column_int64(statement, 2);
    row.task.state = (kl_task_state)sqlite3_column_int(statement, 4);
    row.task.attempts = (uint32_t)sqlite3_column_int64(statement, 5);
    row.errors = (uint32_t)sqlite3_column_int64(statement, 6);
    row.task.finished_ms = sqlite3_column_int64(statement, 7);
    row.expires_ms = sqlite3_column_int64(statement, 8);
    entry->priority = sqlite3_column_int(statement, 9);
    entry->due_ms = sqlite3_column_int64(statement, 10);
    entry->group = (uint16_t)sqlite3_column_int(statement, 11);
    entry->key = kl__hdb_bytes(statement, 13);
    entry->kind = kl__hdb_bytes(statement, 14);
    row.task.result = kl__hdb_bytes(statement, 15);
    entry->headers = kl__hdb_bytes(statement, 16);
    entry->payload = kl__hdb_bytes(statement, 17);
    row.checksum = sqlite3_column_int64(statement, 18);
    row.task.position = (uint64_t)row.number;
    *ret_row = row;
    return ok && row.checksum == kl__history_sum_task(&row.task, row.errors, row.expires_ms);
}

bool kl__hdb_get_task(sqlite3_stmt *statement, kl_task *ret_task, uint32_t *ret_errors, int64_t *ret_expires_ms)
{
    struct row row;
    bool is_sound = get_row(statement, &row);
    *ret_task = row.task;
    *ret_errors = row.errors;
    *ret_expires_ms = row.expires_ms;
    return is_sound;
}

static kl_rc fail_task(kl__hdb *db, const kl_task_id *id)
{
    char text[KL_ID_TEXT_BYTES], what[KL_ID_TEXT_BYTES + 8];
    kl_id_print(id, text);
    memcpy(what, "task ", 5);
    memcpy(what + 5, text, sizeof text);
    return kl__hdb_damaged(db, what);
}

bool kl__hdb_attempt_is_sound(sqlite3_stmt *statement, uint32_t partition, const kl_task_id *id)
{
    return sqlite3_column_int64(statement, 2) ==
           kl__history_sum_attempt(partition, id, sqlite3_column_int64(statement, 0),
                                   sqlite3_column_int64(statement, 1), kl__hdb_bytes(statement, 3));
}

static void bind_task(sqlite3_stmt *statement, const kl_task *task)
{
    sqlite3_bind_int64(statement, 1, task->entry.place.partition);
    kl__hdb_bind_bytes(statement, 2, (kl_bytes){task->entry.id.bytes, sizeof task->entry.id.bytes});
    sqlite3_bind_int64(statement, 3, (int64_t)task->position);
}

/* A sound row is the last error only if none behind it was lost: all that the task's row counts must be there. */
static kl_rc check_errors(kl__hdb *db, const kl_task *task, uint32_t errors, int64_t last_attempt)
{
    sqlite3_stmt *statement;
    bool row;
    KL_TRY(kl__hdb_use(db, KL_SQL_COUNT_ERRORS, &statement));
    bind_task(statement, task);
    KL_TRY(kl__hdb_step(db, statement, &row));
    bool are_all = sqlite3_column_int64(statement, 0) == errors && sqlite3_column_int64(statement, 1) == last_attempt;
    sqlite3_reset(statement);
    return are_all ? KL_OK : fail_task(db, &task->entry.id);
}

static kl_rc load_error(kl__hdb *db, kl_arena *arena, uint32_t errors, kl_task *task)
{
    sqlite3_stmt *statement;
    bool found;
    KL_TRY(kl__hdb_use(db, KL_SQL_LAST_ERROR, &statement));
    bind_task(statement, task);
    KL_TRY(kl__hdb_step(db, statement, &found));
    if (!found || !kl__hdb_attempt_is_sound(statement, task->entry.place.partition, &task->entry.id))
        return fail_task(db, &task->entry.id);
    KL_TRY(check_errors(db, task, errors, sqlite3_column_int64(statement, 0)));
    return kl_arena_copy(arena, kl__hdb_bytes(statement, 3), &task->error) ? KL_OK : kl__fail_memory();
}

static bool copy(kl_arena *arena, kl_bytes *bytes)
{
    kl_bytes from = *bytes;
    *bytes = (kl_bytes){0};
    return !from.len || kl_arena_copy(arena, from, bytes);
}

/* Copies the row's task into the arena, with its last error. */
static kl_rc load(kl__hdb *db, const struct row *row, kl_arena *arena, kl_task *ret_task)
{
    kl_task task = row->task;
    if (!copy(arena, &task.entry.key) || !copy(arena, &task.entry.kind) || !copy(arena, &task.result) ||
        !copy(arena, &task.entry.headers) || !copy(arena, &task.entry.payload))
        return kl__fail_memory();
    if (row->errors)
        KL_TRY(load_error(db, arena, row->errors, &task));
    *ret_task = task;
    return KL_OK;
}

/* ---- By id, by job, counts ---- */

static kl_rc read_one(kl__hdb *db, uint32_t partition, const kl_task_id *id, kl_arena *arena, kl_task *task)
{
    sqlite3_stmt *statement;
    bool found;
    struct row row;
    KL_TRY(kl__hdb_use(db, KL_SQL_TASK_BY_ID, &statement));
    sqlite3_bind_int64(statement, 1, partition);
    kl__hdb_bind_bytes(statement, 2, (kl_bytes){id->bytes, sizeof id->bytes});
    KL_TRY(kl__hdb_step(db, statement, &found));
    if (!found)
        return KL_OK;
    return get_row(statement, &row) ? load(db, &row, arena, task) : fail_task(db, id);
}

kl_rc kl__history_read(kl__history *history, const kl_ref *refs, size_t count, kl_arena *arena, kl_task *tasks,
                       size_t *ret_read)
{
    kl__hdb *db;
    size_t read = 0;
    *ret_read = 0;
    KL_TRY(begin(history, &db));
    kl_rc rc = KL_OK;
    while (read < count && rc == KL_OK) {
        if (tasks[read].state == KL_TASK_UNKNOWN)
            rc = read_one(db, refs[read].place.partition, &refs[read].id, arena, &tasks[read]);
        read += rc == KL_OK;
    }
    *ret_read = read;
    return end(history, db, rc);
}

static kl_rc load_listed(kl__hdb *db, sqlite3_stmt *list, kl_arena *arena, kl_task *ret_tasks, size_t *ret_count)
{
    size_t count = 0;
    struct row row;
    for (bool found;; count++) {
        KL_TRY(kl__hdb_step(db, list, &found));
        if (!found)
            break;
        if (!get_row(list, &row))
            return fail_task(db, &row.task.entry.id);
        KL_TRY(load(db, &row, arena, &ret_tasks[count]));
    }
    *ret_count = count;
    return KL_OK;
}

kl_rc kl__history_results(kl__history *history, kl_place place, const kl_task_id *job, const kl_task_id *after,
                          size_t max, kl_arena *arena, kl_task *ret_tasks, size_t *ret_count)
{
    kl__hdb *db;
    sqlite3_stmt *statement;
    KL_TRY(begin(history, &db));
    kl_rc rc = kl__hdb_use(db, KL_SQL_TASKS_OF_JOB, &statement);
    if (rc == KL_OK) {
        kl__hdb_bind_bytes(statement, 1, (kl_bytes){job->bytes, sizeof job->bytes});
        sqlite3_bind_int64(statement, 2, place.partition);
        sqlite3_bind_int64(statement, 3, place.shard);
        sqlite3_bind_blob(statement, 4, after ? after->bytes : (const void *)"", after ? sizeof after->bytes : 0,
                          SQLITE_STATIC);
        sqlite3_bind_int64(statement, 5, (int64_t)max);
        rc = load_listed(db, statement, arena, ret_tasks, ret_count);
    }
    return end(history, db, rc);
}

static kl_rc get_counts(kl__hdb *db, uint32_t partition, uint64_t *counts)
{
    sqlite3_stmt *statement;
    KL_TRY(kl__hdb_use(db, KL_SQL_GET_COUNTS, &statement));
    sqlite3_bind_int64(statement, 1, partition);
    for (bool found;;) {
        KL_TRY(kl__hdb_step(db, statement, &found));
        if (!found)
            return KL_OK;
        int64_t state = sqlite3_column_int64(statement, 0);
        if (state >= KL_TASK_DONE && state <= KL_TASK_CANCELLED)
            counts[state] = (uint64_t)sqlite3_column_int64(statement, 1);
    }
}

/* Walks over the job's part of tasks_by_job, which has the states, and reads no task. */
static kl_rc count_job(kl__hdb *db, uint32_t partition, const kl_task_id *job, uint64_t *counts)
{
    sqlite3_stmt *statement;
    bool found;
    KL_TRY(kl__hdb_use(db, KL_SQL_COUNT_JOB, &statement));
    kl__hdb_bind_bytes(statement, 1, (kl_bytes){job->bytes, sizeof job->bytes});
    sqlite3_bind_int64(statement, 2, partition);
    KL_TRY(kl__hdb_step(db, statement, &found));
    for (int state = KL_TASK_DONE; state <= KL_TASK_CANCELLED; state++)
        counts[state] = (uint64_t)sqlite3_column_int64(statement, state - KL_TASK_DONE);
    return KL_OK;
}

kl_rc kl__history_counts(kl__history *history, uint32_t partition, const kl_task_id *job, uint64_t *ret_done,
                         uint64_t *ret_dead, uint64_t *ret_cancelled)
{
    uint64_t counts[KL_TASK_CANCELLED + 1] = {0};
    kl__hdb *db;
    KL_TRY(begin(history, &db));
    KL_TRY(end(history, db, job ? count_job(db, partition, job, counts) : get_counts(db, partition, counts)));
    *ret_done = counts[KL_TASK_DONE];
    *ret_dead = counts[KL_TASK_DEAD];
    *ret_cancelled = counts[KL_TASK_CANCELLED];
    return KL_OK;
}

/* ---- Search ---- */

struct search {
    kl__hdb *db;
    const kl_find *find;
    uint64_t terms[KL_HISTORY_TERMS_MAX];
    size_t terms_count;
    int64_t low, high; /* numbers of documents to look at */
    kl_arena *arena;
    kl_task *tasks;
    size_t count;
    uint64_t bits[KL_HISTORY_WORDS], other[KL_HISTORY_WORDS];
};

static const kl_task_id no_id;

/* The terms in the order in which they are likely to be rare. */
static kl_rc list_terms(struct search *search)
{
    const kl_find *find = search->find;
    kl_bytes words = find->words;
    if (find->key.len)
        search->terms[search->terms_count++] = kl__term(KL_TERM_KEY, find->key);
    if (memcmp(&find->job, &no_id, sizeof no_id) != 0)
        search->terms[search->terms_count++] = kl__term(KL_TERM_JOB, (kl_bytes){find->job.bytes, sizeof no_id.bytes});
    size_t words_count = 0;
    for (uint64_t term; kl__term_word(&words, &term);) {
        if (words_count++ == KL_HISTORY_WORDS_MAX)
            return kl__fail(KL_EINVAL, "a search takes at most %d words; leave some out", KL_HISTORY_WORDS_MAX);
        search->terms[search->terms_count++] = term;
    }
    if (find->kind.len)
        search->terms[search->terms_count++] = kl__term(KL_TERM_KIND, find->kind);
    if (find->state != KL_TASK_UNKNOWN)
        search->terms[search->terms_count++] = kl__term_number(KL_TERM_STATE, find->state);
    if (find->partition)
        search->terms[search->terms_count++] = kl__term_number(KL_TERM_PARTITION, find->partition);
    return KL_OK;
}

/* The number of the last task that finished before `ms`; 0: none did. */
static kl_rc last_before(kl__hdb *db, int64_t ms, int64_t *ret_number)
{
    int64_t low = 0, high = INT64_MAX, found = 0; /* low: before; above high: not before */
    while (low < high) {
        int64_t middle = high - (high - low) / 2;
        sqlite3_stmt *statement;
        bool row;
        KL_TRY(kl__hdb_use(db, KL_SQL_TASK_UNTIL, &statement));
        sqlite3_bind_int64(statement, 1, middle);
        KL_TRY(kl__hdb_step(db, statement, &row));
        int64_t number = row ? sqlite3_column_int64(statement, 0) : 0;
        if (!row || number <= low) {
            low = middle;
        } else if (sqlite3_column_int64(statement, 1) < ms) {
            found = number;
            low = middle;
        } else {
            high = number - 1;
        }
        sqlite3_reset(statement);
    }
    *ret_number = found;
    return KL_OK;
}

/* The highest number behind find->after. */
static kl_rc go_on(kl__hdb *db, const kl_task *after, int64_t *ret_high)
{
    sqlite3_stmt *statement;
    bool kept;
    KL_TRY(kl__hdb_use(db, KL_SQL_WHERE_TASK, &statement));
    sqlite3_bind_int64(statement, 1, after->entry.place.partition);
    kl__hdb_bind_bytes(statement, 2, (kl_bytes){after->entry.id.bytes, sizeof after->entry.id.bytes});
    KL_TRY(kl__hdb_step(db, statement, &kept));
    if (kept && sqlite3_column_int64(statement, 3) == after->finished_ms) {
        int64_t errors = sqlite3_column_int64(statement, 1);
        *ret_high = sqlite3_column_int64(statement, 0) - (errors ? errors : 1);
        sqlite3_reset(statement);
        return KL_OK;
    }
    sqlite3_reset(statement);
    /* It is gone, or was finished anew. Its own number counts if it can be one of that time. */
    int64_t low, high, number = after->position > INT64_MAX ? 0 : (int64_t)after->position;
    KL_TRY(last_before(db, after->finished_ms, &low));
    KL_TRY(last_before(db, after->finished_ms < INT64_MAX ? after->finished_ms + 1 : INT64_MAX, &high));
    *ret_high = number > low && number <= high ? number - 1 : high;
    return KL_OK;
}

static kl_rc bound(struct search *search)
{
    const kl_find *find = search->find;
    int64_t high;
    search->low = 1;
    search->high = INT64_MAX;
    if (find->from_ms) {
        KL_TRY(last_before(search->db, find->from_ms, &search->low));
        search->low++;
    }
    if (find->until_ms)
        KL_TRY(last_before(search->db, find->until_ms, &search->high));
    if (find->after) {
        KL_TRY(go_on(search->db, find->after, &high));
        if (high < search->high)
            search->high = high;
    }
    return KL_OK;
}

/* The segment's documents that have all terms. */
static kl_rc intersect(struct search *search, const kl__term_segment *segment, bool *ret_any)
{
    bool any = true;
    memset(search->bits, 0xff, sizeof search->bits);
    for (size_t i = 0; i < search->terms_count && any; i++) {
        KL_TRY(kl__term_segment_term(search->db, segment, search->terms[i], search->other, &any));
        if (!any)
            break;
        uint64_t left = 0;
        for (size_t word = 0; word < KL_HISTORY_WORDS; word++)
            left |= search->bits[word] &= search->other[word];
        any = left != 0;
    }
    *ret_any = any;
    return KL_OK;
}

/* Different keys may have the same hash. */
static bool is_asked(const kl_find *find, const kl_task *task)
{
    return (!find->key.len || kl__bytes_equal(find->key, task->entry.key)) &&
           (!find->kind.len || kl__bytes_equal(find->kind, task->entry.kind)) &&
           (!memcmp(&find->job, &no_id, sizeof no_id) || !memcmp(&find->job, &task->entry.job, sizeof no_id)) &&
           (!find->state || find->state == task->state) &&
           (!find->partition || find->partition == task->entry.place.partition);
}

/* Adds the task of the document to the page, and goes on below all its documents. */
static kl_rc take(struct search *search, int64_t number)
{
    sqlite3_stmt *statement;
    bool found;
    struct row row;
    kl__hdb *db = search->db;
    KL_TRY(kl__hdb_use(db, KL_SQL_TASK_AT, &statement));
    sqlite3_bind_int64(statement, 1, number);
    KL_TRY(kl__hdb_step(db, statement, &found));
    if (!found)
        return kl__hdb_damaged(db, "its search index names a task that is not there");
    if (!get_row(statement, &row))
        return fail_task(db, &row.task.entry.id);
    int64_t docs = row.errors ? row.errors : 1;
    if (number <= row.number - docs)
        return kl__hdb_damaged(db, "its search index names a task that is not there");
    search->high = row.number - docs;
    if (!is_asked(search->find, &row.task))
        return KL_OK;
    KL_TRY(load(db, &row, search->arena, &search->tasks[search->count]));
    search->count++;
    return KL_OK;
}

/* Adds the tasks of the documents whose bits are set, from the last on. */
static kl_rc take_all(struct search *search, const kl__term_segment *segment)
{
    const uint8_t *numbers;
    KL_TRY(kl__term_segment_blobs(search->db, segment, search->other, &numbers));
    for (uint32_t word = (segment->docs + 63) / 64; word-- > 0;) {
        uint64_t left = search->bits[word] & ~search->other[word];
        if (word == segment->docs / 64 && segment->docs % 64)
            left &= (UINT64_C(1) << segment->docs % 64) - 1;
        while (left && search->count < search->find->max) {
            uint32_t bit = 63 - (uint32_t)__builtin_clzll(left);
            int64_t number = kl__term_segment_number(segment, numbers, word * 64 + bit);
            left &= ~(UINT64_C(1) << bit);
            if (number < search->low)
                return KL_OK;
            if (number <= search->high)
                KL_TRY(take(search, number));
        }
    }
    return KL_OK;
}

static kl_rc walk(struct search *search)
{
    sqlite3_stmt *list;
    bool more, any;
    KL_TRY(list_terms(search));
    KL_TRY(bound(search));
    KL_TRY(kl__hdb_use(search->db, KL_SQL_SEGMENTS_DOWN, &list));
    sqlite3_bind_int64(list, 1, search->high);
    while (search->count < search->find->max) {
        KL_TRY(kl__hdb_step(search->db, list, &more));
        if (!more)
            return KL_OK;
        kl__term_segment segment = kl__term_segment_row(list);
        if (segment.last < search->low)
            return KL_OK;
        KL_TRY(intersect(search, &segment, &any));
        if (any)
            KL_TRY(take_all(search, &segment));
    }
    return KL_OK;
}

kl_rc kl__history_find(kl__history *history, const kl_find *find, kl_arena *arena, kl_task *ret_tasks,
                       size_t *ret_count)
{
    struct search search = {.find = find, .arena = arena, .tasks = ret_tasks};
    KL_TRY(begin(history, &search.db));
    KL_TRY(end(history, search.db, walk(&search)));
    *ret_count = search.count;
    return KL_OK;
}

/* ---- Check ---- */

/* SQLite's words are for those who know its format. */
static kl_rc fail_check(kl__hdb *db, const char *text)
{
    char what[80] = "SQLite's own check finds it in disorder";
    const char *page = strstr(text, "age ");
    if (page && page[4] >= '1' && page[4] <= '9')
        snprintf(what, sizeof what, "SQLite's own check finds its page %lld in disorder", strtoll(page + 4, NULL, 10));
    return kl__hdb_damaged(db, what);
}

static kl_rc check_sqlite(kl__hdb *db)
{
    sqlite3_stmt *statement;
    bool found;
    KL_TRY(kl__hdb_use(db, KL_SQL_SQLITE_CHECK, &statement));
    KL_TRY(kl__hdb_step(db, statement, &found));
    const char *text = found ? (const char *)sqlite3_column_text(statement, 0) : NULL;
    return text && strcmp(text, "ok") == 0 ? KL_OK : fail_check(db, text ? text : "");
}

/* What the tasks add up to. */
struct totals {
    int64_t tasks, weighted, docs, errors;
    uint64_t numbers; /* of documents */
    uint64_t blamed;  /* numbers of the tasks, once for each error */
};

static kl_rc check_tasks(kl__hdb *db, struct totals *totals)
{
    sqlite3_stmt *statement;
    struct row row;
    int64_t last_ms = INT64_MIN;
    KL_TRY(kl__hdb_use(db, KL_SQL_TASKS_ALL, &statement));
    for (bool found;;) {
        KL_TRY(kl__hdb_step(db, statement, &found));
        if (!found)
            return KL_OK;
        if (!get_row(statement, &row) || row.task.finished_ms < last_ms)
            return fail_task(db, &row.task.entry.id);
        last_ms = row.task.finished_ms;
        totals->tasks++;
        totals->weighted += (int64_t)row.task.entry.place.partition * 8 + row.task.state;
        uint32_t docs = row.errors ? row.errors : 1;
        totals->docs += docs;
        totals->errors += row.errors;
        totals->blamed += (uint64_t)row.number * row.errors;
        for (uint32_t i = 0; i < docs; i++)
            totals->numbers += (uint64_t)row.number - i;
    }
}

static kl_rc check_attempts(kl__hdb *db, const struct totals *totals)
{
    sqlite3_stmt *statement;
    kl_task_id id;
    int64_t errors = 0;
    uint64_t blamed = 0;
    KL_TRY(kl__hdb_use(db, KL_SQL_ATTEMPTS_ALL, &statement));
    for (bool found;;) {
        KL_TRY(kl__hdb_step(db, statement, &found));
        if (!found)
            break;
        if (!get_id(statement, 5, false, &id) ||
            !kl__hdb_attempt_is_sound(statement, (uint32_t)sqlite3_column_int64(statement, 4), &id))
            return fail_task(db, &id);
        errors += sqlite3_column_int64(statement, 6) != 0;
        blamed += (uint64_t)sqlite3_column_int64(statement, 6);
    }
    bool same = errors == totals->errors && blamed == totals->blamed;
    return same ? KL_OK : kl__hdb_damaged(db, "its errors are not those of its tasks");
}

static kl_rc check_counts(kl__hdb *db, const struct totals *totals)
{
    sqlite3_stmt *statement;
    bool found;
    KL_TRY(kl__hdb_use(db, KL_SQL_ALL_COUNTS, &statement));
    KL_TRY(kl__hdb_step(db, statement, &found));
    if (sqlite3_column_int64(statement, 0) != totals->tasks || sqlite3_column_int64(statement, 1) != totals->weighted ||
        sqlite3_column_int64(statement, 2) < 0)
        return kl__hdb_damaged(db, "its counts are not those of its tasks");
    return KL_OK;
}

static kl_rc check_segments(kl__hdb *db, const struct totals *totals)
{
    sqlite3_stmt *statement;
    int64_t docs = 0, above = INT64_MAX;
    uint64_t numbers = 0;
    KL_TRY(kl__hdb_use(db, KL_SQL_SEGMENTS_DOWN, &statement));
    sqlite3_bind_int64(statement, 1, INT64_MAX);
    for (bool found;;) {
        KL_TRY(kl__hdb_step(db, statement, &found));
        if (!found)
            break;
        kl__term_segment segment = kl__term_segment_row(statement);
        if (segment.last >= above)
            return kl__hdb_damaged(db, "its search index");
        above = segment.first;
        docs += segment.live;
        KL_TRY(kl__term_segment_check(db, &segment, &numbers));
    }
    bool same = docs == totals->docs && numbers == totals->numbers;
    return same ? KL_OK : kl__hdb_damaged(db, "its search index is not that of its tasks");
}

kl_rc kl__hdb_check(kl__hdb *db)
{
    struct totals totals = {0};
    KL_TRY(check_sqlite(db));
    KL_TRY(check_tasks(db, &totals));
    KL_TRY(check_attempts(db, &totals));
    KL_TRY(check_counts(db, &totals));
    return check_segments(db, &totals);
}

kl_rc kl__history_check(kl__history *history)
{
    kl__hdb *db;
    KL_TRY(begin(history, &db));
    return end(history, db, kl__hdb_check(db));
}

kl_rc kl__history_has_names(kl__history *history, bool *ret_any)
{
    sqlite3_stmt *statement;
    pthread_mutex_lock(&history->write_mutex);
    kl_rc rc = kl__hdb_use(history->writer, KL_SQL_ANY_NAME, &statement);
    if (rc == KL_OK)
        rc = kl__hdb_step(history->writer, statement, ret_any);
    if (rc == KL_OK)
        sqlite3_reset(statement);
    pthread_mutex_unlock(&history->write_mutex);
    return rc;
}
