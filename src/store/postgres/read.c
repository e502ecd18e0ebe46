/* read.c - tasks whole: read, results, find, forget.
 *
 * Rows of all three have the same columns. Words are looked for here and not in the database: an error is bytes, and
 * what a word is does not depend on any locale. */
#include "store/postgres/seen.h"
#include "store/words.h"

enum {
    TASK_AT,
    TASK_STATE,
    TASK_PARTITION,
    TASK_SHARD,
    TASK_ID,
    TASK_POSITION,
    TASK_ATTEMPTS,
    TASK_NOT_BEFORE,
    TASK_FINISHED,
    TASK_JOB,
    TASK_DUE,
    TASK_GROUP,
    TASK_PRIORITY,
    TASK_KEY,
    TASK_KIND,
    TASK_HEADERS,
    TASK_PAYLOAD,
    TASK_ERROR,
    TASK_RESULT,
    TASK_ERRORS, /* find alone */
    WORDED_PAGE = 64,
};

static bool copy(const PGresult *rows, int row, int column, kl_arena *arena, kl_bytes *ret_copy)
{
    kl_bytes bytes = kl__pg_get_bytes(rows, row, column);
    *ret_copy = (kl_bytes){"", 0};
    return bytes.len == 0 || kl_arena_copy(arena, bytes, ret_copy);
}

static kl_rc take_task(const PGresult *rows, int row, kl_arena *arena, kl_task *ret_task)
{
    kl_task task = {
        .entry = {.place = {(uint32_t)kl__pg_get_int(rows, row, TASK_PARTITION),
                            (uint32_t)kl__pg_get_int(rows, row, TASK_SHARD)},
                  .id = kl__pg_get_id(rows, row, TASK_ID),
                  .job = kl__pg_get_id(rows, row, TASK_JOB),
                  .due_ms = kl__pg_get_int(rows, row, TASK_DUE),
                  .priority = (int32_t)kl__pg_get_int(rows, row, TASK_PRIORITY),
                  .group = (uint16_t)kl__pg_get_int(rows, row, TASK_GROUP)},
        .state = (kl_task_state)kl__pg_get_int(rows, row, TASK_STATE),
        .attempts = (uint32_t)kl__pg_get_int(rows, row, TASK_ATTEMPTS),
        .position = (uint64_t)kl__pg_get_int(rows, row, TASK_POSITION),
        .not_before_ms = kl__pg_get_int(rows, row, TASK_NOT_BEFORE),
        .finished_ms = kl__pg_get_int(rows, row, TASK_FINISHED),
    };
    bool copied = copy(rows, row, TASK_KEY, arena, &task.entry.key) &&
                  copy(rows, row, TASK_KIND, arena, &task.entry.kind) &&
                  copy(rows, row, TASK_HEADERS, arena, &task.entry.headers) &&
                  copy(rows, row, TASK_PAYLOAD, arena, &task.entry.payload) &&
                  copy(rows, row, TASK_ERROR, arena, &task.error) && copy(rows, row, TASK_RESULT, arena, &task.result);
    if (!copied)
        return kl__fail_memory();
    *ret_task = task;
    return KL_OK;
}

static kl_rc take_tasks(const PGresult *rows, kl_arena *arena, kl_task *ret_tasks, size_t *ret_count)
{
    kl_rc rc = KL_OK;
    int count = PQntuples(rows);
    for (int row = 0; rc == KL_OK && row < count; row++)
        rc = take_task(rows, row, arena, &ret_tasks[row]);
    if (rc == KL_OK)
        *ret_count = (size_t)count;
    return rc;
}

/* --- Read --- */

static void add_refs(kl__pg_args *args, const kl_ref *refs, size_t count)
{
    kl__pg_array(args, KL_PG_INT4, count);
    for (size_t i = 0; i < count; i++)
        kl__pg_add_int(args, KL_PG_INT4, refs[i].place.partition);
    kl__pg_array(args, KL_PG_INT4, count);
    for (size_t i = 0; i < count; i++)
        kl__pg_add_int(args, KL_PG_INT4, refs[i].place.shard);
    kl__pg_array(args, KL_PG_INT8, count);
    for (size_t i = 0; i < count; i++)
        kl__pg_add_int(args, KL_PG_INT8, (int64_t)refs[i].position);
    kl__pg_array(args, KL_PG_UUID, count);
    for (size_t i = 0; i < count; i++)
        kl__pg_add_uuid(args, &refs[i].id);
}

/* Few enough, with positions, that they fit into one answer whatever they are. */
static bool are_likely_waiting(const kl_ref *refs, size_t count)
{
    enum { FEW = 64 };
    for (size_t i = 0; i < count; i++)
        if (refs[i].position == 0)
            return false;
    return count <= FEW;
}

/* What a worker asks for: tasks that wait, and whose positions it knows. *ret_all: those were all. */
static kl_rc read_waiting(kl__pg *pg, const kl_ref *refs, size_t count, kl_arena *arena, kl_task *ret_tasks,
                          bool *ret_all)
{
    kl__pg_args args = {0};
    PGresult *rows = NULL;
    size_t taken = 0;
    add_refs(&args, refs, count);
    kl_rc rc = kl__pg_ask(pg, &(kl__pg_call){"SELECT * FROM $S.read_waiting($1,$2,$3,$4)", &args, true}, &rows);
    kl__pg_args_free(&args);
    if (rc != KL_OK)
        return rc;
    *ret_all = (size_t)PQntuples(rows) == count;
    if (*ret_all)
        rc = take_tasks(rows, arena, ret_tasks, &taken);
    PQclear(rows);
    return rc;
}

kl_rc kl__pg_read(void *self, const kl_ref *refs, size_t count, kl_arena *arena, kl_task *ret_tasks, size_t *ret_count)
{
    kl__pg *pg = self;
    kl__pg_args args = {0};
    PGresult *rows = NULL;
    bool all = false;
    size_t known = 0;
    kl_rc rc = refs[0].owned ? kl__pg_seen_read(pg->seen, refs, count, arena, ret_tasks, &known) : KL_OK;
    if (rc != KL_OK || known > 0) {
        *ret_count = known;
        return rc;
    }
    rc = are_likely_waiting(refs, count) ? read_waiting(self, refs, count, arena, ret_tasks, &all) : KL_OK;
    if (rc == KL_OK && all)
        *ret_count = count;
    if (rc != KL_OK || all)
        return rc;
    add_refs(&args, refs, count);
    kl__pg_int(&args, KL_PG_INT8, KL_BATCH_BYTES_MAX);
    rc = kl__pg_ask(self, &(kl__pg_call){"SELECT * FROM $S.read($1,$2,$3,$4,$5)", &args, true}, &rows);
    kl__pg_args_free(&args);
    if (rc == KL_OK) {
        KL_ASSERT((size_t)PQntuples(rows) <= count);
        rc = take_tasks(rows, arena, ret_tasks, ret_count);
        PQclear(rows);
    }
    return rc;
}

/* --- What is finished and kept --- */

kl_rc kl__pg_results(void *self, kl_place place, const kl_task_id *job, const kl_task_id *after, size_t max,
                     kl_arena *arena, kl_task *ret_tasks, size_t *ret_count)
{
    kl__pg_args args = {0};
    PGresult *rows = NULL;
    kl__pg_int(&args, KL_PG_INT4, place.partition);
    kl__pg_int(&args, KL_PG_INT4, place.shard);
    kl__pg_uuid(&args, job);
    kl__pg_uuid(&args, after);
    kl__pg_int(&args, KL_PG_INT4, (int64_t)max);
    kl_rc rc = kl__pg_ask(self, &(kl__pg_call){"SELECT * FROM $S.results($1,$2,$3,$4,$5)", &args, true}, &rows);
    kl__pg_args_free(&args);
    if (rc == KL_OK) {
        rc = take_tasks(rows, arena, ret_tasks, ret_count);
        PQclear(rows);
    }
    return rc;
}

kl_rc kl__pg_forget(void *self, kl_place place, const kl_task_id *ids, size_t count)
{
    kl__pg_args args = {0};
    kl__pg_int(&args, KL_PG_INT4, place.partition);
    kl__pg_int(&args, KL_PG_INT4, place.shard);
    kl__pg_array(&args, KL_PG_UUID, count);
    for (size_t i = 0; i < count; i++)
        kl__pg_add_uuid(&args, &ids[i]);
    kl_rc rc = kl__pg_do(self, &(kl__pg_call){"SELECT $S.forget($1,$2,$3)", &args, true});
    kl__pg_args_free(&args);
    return rc;
}

/* --- Words --- */

static bool an_error_has(const PGresult *rows, int row, kl_bytes words)
{
    kl_bytes rest = kl__pg_get_elements(rows, row, TASK_ERRORS);
    for (size_t left = kl__pg_get_length(rows, row, TASK_ERRORS); left > 0; left--)
        if (kl__has_words(kl__pg_next_element(&rest), words))
            return true;
    return false;
}

/* --- Find --- */

/* Where a page goes on: behind the last row of the one before. */
struct cursor {
    bool set;
    int64_t finished_ms;
    kl_place place;
    kl_task_id id;
};

static void add_or_null(kl__pg_args *args, kl__pg_type type, int64_t value)
{
    if (value != 0)
        kl__pg_int(args, type, value);
    else
        kl__pg_null(args, type);
}

static void add_bytes_or_null(kl__pg_args *args, kl_bytes bytes)
{
    if (bytes.len > 0)
        kl__pg_bytes(args, bytes);
    else
        kl__pg_null(args, KL_PG_BYTEA);
}

static kl_rc ask_page(kl__pg *pg, const kl_find *find, const struct cursor *after, size_t max, PGresult **ret_rows)
{
    kl__pg_args args = {0};
    add_or_null(&args, KL_PG_INT4, find->partition);
    add_or_null(&args, KL_PG_INT4, find->state);
    add_bytes_or_null(&args, find->key);
    add_bytes_or_null(&args, find->kind);
    kl__pg_uuid(&args, kl__id_is_none(&find->job) ? NULL : &find->job);
    kl__pg_int(&args, KL_PG_INT8, find->from_ms);
    kl__pg_int(&args, KL_PG_INT8, find->until_ms ? find->until_ms : INT64_MAX);
    kl__pg_int(&args, KL_PG_INT8, after->finished_ms);
    kl__pg_int(&args, KL_PG_INT4, after->place.partition);
    kl__pg_int(&args, KL_PG_INT4, after->place.shard);
    kl__pg_uuid(&args, after->set ? &after->id : NULL);
    kl__pg_int(&args, KL_PG_BOOL, find->words.len > 0);
    kl__pg_int(&args, KL_PG_INT4, (int64_t)max);
    kl_rc rc = kl__pg_ask(
        pg, &(kl__pg_call){"SELECT * FROM $S.find($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13)", &args, true}, ret_rows);
    kl__pg_args_free(&args);
    return rc;
}

/* Takes what matches off a page, up to max tasks in all, and moves the cursor. */
static kl_rc take_page(const PGresult *rows, const kl_find *find, kl_arena *arena, struct cursor *after,
                       kl_task *ret_tasks, size_t *count)
{
    kl_rc rc = KL_OK;
    for (int row = 0; rc == KL_OK && row < PQntuples(rows) && *count < find->max; row++) {
        *after = (struct cursor){
            true,
            kl__pg_get_int(rows, row, TASK_FINISHED),
            {(uint32_t)kl__pg_get_int(rows, row, TASK_PARTITION), (uint32_t)kl__pg_get_int(rows, row, TASK_SHARD)},
            kl__pg_get_id(rows, row, TASK_ID)};
        if (find->words.len == 0 || an_error_has(rows, row, find->words))
            rc = take_task(rows, row, arena, &ret_tasks[(*count)++]);
    }
    return rc;
}

kl_rc kl__pg_find(void *self, const kl_find *find, kl_arena *arena, kl_task *ret_tasks, size_t *ret_count)
{
    struct cursor after = {0};
    size_t count = 0, page = find->words.len > 0 && find->max < WORDED_PAGE ? WORDED_PAGE : find->max;
    bool ends = false;
    kl_rc rc = KL_OK;
    if (find->after)
        after = (struct cursor){true, find->after->finished_ms, find->after->entry.place, find->after->entry.id};
    while (rc == KL_OK && !ends && count < find->max) {
        PGresult *rows = NULL;
        rc = ask_page(self, find, &after, page, &rows);
        if (rc == KL_OK) {
            ends = (size_t)PQntuples(rows) < page;
            rc = take_page(rows, find, arena, &after, ret_tasks, &count);
            PQclear(rows);
        }
    }
    if (rc == KL_OK)
        *ret_count = count;
    return rc;
}
