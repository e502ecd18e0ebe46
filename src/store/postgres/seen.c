/* seen.c - what scans have shown: a table of tasks by position, whose bytes lie in the answers of the server.
 *
 * From: scan.c.  To: read.c, settle.c.
 *
 * A position is given once in the whole store, so it is the key. Eight places make a bucket; where one is full, the
 * lowest position goes. A bucket's positions stand together, apart from the rest: whoever looks for one touches a line
 * of the processor's cache, and not six. An answer stays as long as a task of the table lies in it. */
#include "store/postgres/seen.h"

enum { BUCKET = 8, BUCKETS = KL_PG_SEEN_MAX / BUCKET };

struct kl__pg_shown {
    PGresult *rows; /* NULL: there was too much, and it was freed */
    kl__pg_shown *older, *newer;
    size_t tasks; /* that refer to it; one more while it is filled */
    size_t bytes;
};

struct task {
    kl_task_id id;
    kl_place place;
    kl__pg_shown *shown; /* NULL: without its bytes */
    uint32_t row, at;
};

_Static_assert(sizeof(struct task) + sizeof(uint64_t) == 48, "KL_PG_SEEN_MAX says so");

struct kl__pg_seen {
    pthread_mutex_t mutex;
    kl__pg_shown *oldest, *newest; /* that have their rows */
    size_t bytes;
    uint64_t positions[BUCKETS][BUCKET]; /* 0: none */
    struct task tasks[BUCKETS][BUCKET];
};

kl__pg_seen *kl__pg_seen_open(void)
{
    kl__pg_seen *seen = kl__alloc_zeroed(1, sizeof *seen);
    if (seen)
        pthread_mutex_init(&seen->mutex, NULL);
    return seen;
}

/* --- Answers --- */

static void free_rows(kl__pg_seen *seen, kl__pg_shown *shown)
{
    if (!shown->rows)
        return;
    *(shown->older ? &shown->older->newer : &seen->oldest) = shown->newer;
    *(shown->newer ? &shown->newer->older : &seen->newest) = shown->older;
    seen->bytes -= shown->bytes;
    PQclear(shown->rows);
    shown->rows = NULL;
}

static void release(kl__pg_seen *seen, kl__pg_shown *shown)
{
    if (!shown || --shown->tasks > 0)
        return;
    free_rows(seen, shown);
    kl__free(shown);
}

/* Number `at` of the whole table. */
static uint64_t *position_at(kl__pg_seen *seen, size_t at) { return &seen->positions[at / BUCKET][at % BUCKET]; }
static struct task *task_at(kl__pg_seen *seen, size_t at) { return &seen->tasks[at / BUCKET][at % BUCKET]; }

static void forget(kl__pg_seen *seen, size_t at)
{
    kl__pg_shown *shown = task_at(seen, at)->shown;
    *position_at(seen, at) = 0;
    *task_at(seen, at) = (struct task){.shown = NULL};
    release(seen, shown);
}

kl__pg_shown *kl__pg_seen_begin(kl__pg_seen *seen, PGresult *rows)
{
    kl__pg_shown *shown = seen ? kl__alloc(sizeof *shown) : NULL;
    if (!shown)
        return NULL;
    pthread_mutex_lock(&seen->mutex);
    *shown = (kl__pg_shown){.rows = rows, .older = seen->newest, .tasks = 1, .bytes = PQresultMemorySize(rows)};
    *(seen->newest ? &seen->newest->newer : &seen->oldest) = shown;
    seen->newest = shown;
    seen->bytes += shown->bytes;
    return shown;
}

void kl__pg_seen_end(kl__pg_seen *seen, kl__pg_shown *shown)
{
    release(seen, shown);
    while (seen->bytes > KL_PG_SEEN_BYTES)
        free_rows(seen, seen->oldest);
    pthread_mutex_unlock(&seen->mutex);
}

void kl__pg_seen_clear(kl__pg_seen *seen)
{
    if (!seen)
        return;
    pthread_mutex_lock(&seen->mutex);
    for (size_t at = 0; at < KL_PG_SEEN_MAX; at++)
        if (*position_at(seen, at))
            forget(seen, at);
    pthread_mutex_unlock(&seen->mutex);
}

void kl__pg_seen_close(kl__pg_seen *seen)
{
    if (!seen)
        return;
    kl__pg_seen_clear(seen);
    pthread_mutex_destroy(&seen->mutex);
    kl__free(seen);
}

/* --- Tasks --- */

/* Where its bucket begins. */
static size_t bucket_of(uint64_t position)
{
    return BUCKET * ((position >> 8) * UINT64_C(0x9e3779b97f4a7c15) >> 32 & (BUCKETS - 1));
}

/* KL_PG_SEEN_MAX: it is not there. */
static size_t find(kl__pg_seen *seen, kl_place place, const kl_task_id *id, uint64_t position)
{
    for (size_t at = bucket_of(position), end = at + BUCKET; at < end; at++) {
        const struct task *task = task_at(seen, at);
        if (*position_at(seen, at) == position && kl__pg_place_compare(task->place, place) == 0 &&
            memcmp(&task->id, id, sizeof *id) == 0)
            return at;
    }
    return KL_PG_SEEN_MAX;
}

/* Where a task of this position goes: its own place, a free one, or that of the lowest position. */
static size_t place_for(kl__pg_seen *seen, uint64_t position)
{
    size_t best = bucket_of(position);
    for (size_t at = best, end = at + BUCKET; at < end; at++) {
        if (*position_at(seen, at) == position)
            return at;
        if (*position_at(seen, at) < *position_at(seen, best))
            best = at;
    }
    return best;
}

void kl__pg_seen_add(kl__pg_seen *seen, kl__pg_shown *shown, int row, size_t at, kl_place place, const kl_stub *stub)
{
    size_t place_at = place_for(seen, stub->position);
    if (*position_at(seen, place_at))
        forget(seen, place_at);
    bool whole = PQgetisnull(shown->rows, row, KL_PG_SHOWN_BYTES);
    shown->tasks += whole;
    *position_at(seen, place_at) = stub->position;
    *task_at(seen, place_at) = (struct task){stub->id, place, whole ? shown : NULL, (uint32_t)row, (uint32_t)at};
}

bool kl__pg_seen_take(kl__pg_seen *seen, const kl_settle *batches, size_t count)
{
    bool all = seen != NULL;
    if (!seen)
        return false;
    pthread_mutex_lock(&seen->mutex);
    for (size_t b = 0; b < count; b++)
        for (size_t i = 0; i < batches[b].count; i++) {
            const kl_settled *settled = &batches[b].tasks[i];
            size_t at = find(seen, batches[b].place, &settled->id, settled->position);
            if (at < KL_PG_SEEN_MAX)
                forget(seen, at);
            all &= at < KL_PG_SEEN_MAX;
        }
    pthread_mutex_unlock(&seen->mutex);
    return all;
}

/* --- Reading --- */

/* Element `at` of an array; empty where the array is NULL. */
static kl_bytes element(const PGresult *rows, int row, int column, size_t at)
{
    kl_bytes rest = kl__pg_get_elements(rows, row, column), found = {"", 0};
    for (size_t i = 0; rest.len > 0 && i <= at; i++)
        found = kl__pg_next_element(&rest);
    return found;
}

static bool copy(kl_bytes bytes, kl_arena *arena, kl_bytes *ret_copy)
{
    *ret_copy = (kl_bytes){"", 0};
    return bytes.len == 0 || kl_arena_copy(arena, bytes, ret_copy);
}

static bool copy_task(const struct task *task, uint64_t position, kl_arena *arena, kl_task *ret_task)
{
    const PGresult *rows = task->shown->rows;
    int row = (int)task->row, line = (int)(position & 63);
    kl_bytes job = element(rows, row, KL_PG_SHOWN_JOBS, task->at);
    kl_bytes group = element(rows, row, KL_PG_SHOWN_GROUPS, task->at);
    const unsigned char *digits = group.data;
    kl__pg_packed packed = kl__pg_shown_task(rows, row, task->at);
    *ret_task = (kl_task){
        .entry = {.place = task->place,
                  .id = task->id,
                  .due_ms = kl__pg_get_int(rows, row, KL_PG_SHOWN_DUE),
                  .priority = line == KL_PG_DUE ? (int32_t)kl__pg_get_int(rows, row, KL_PG_SHOWN_PRIORITY)
                                                : line + KL_PRIORITY_MIN,
                  .group = group.len == 2 ? (uint16_t)(digits[0] << 8 | digits[1]) : 0},
        .state = KL_TASK_WAITING,
        .position = position,
        .not_before_ms = kl__pg_get_int(rows, row, KL_PG_SHOWN_DUE),
    };
    if (job.len == sizeof ret_task->entry.job)
        memcpy(&ret_task->entry.job, job.data, job.len);
    return copy(packed.key, arena, &ret_task->entry.key) && copy(packed.kind, arena, &ret_task->entry.kind) &&
           copy(packed.headers, arena, &ret_task->entry.headers) &&
           copy(packed.payload, arena, &ret_task->entry.payload);
}

kl_rc kl__pg_seen_read(kl__pg_seen *seen, const kl_ref *refs, size_t count, kl_arena *arena, kl_task *ret_tasks,
                       size_t *ret_count)
{
    size_t done = 0, bytes = 0;
    bool copied = true;
    *ret_count = 0;
    if (!seen)
        return KL_OK;
    pthread_mutex_lock(&seen->mutex);
    for (; copied && done < count && refs[done].owned && bytes < KL_BATCH_BYTES_MAX / 2; done++) {
        size_t at = find(seen, refs[done].place, &refs[done].id, refs[done].position);
        struct task *task = at < KL_PG_SEEN_MAX ? task_at(seen, at) : NULL;
        if (!task || !task->shown || !task->shown->rows)
            break;
        copied = copy_task(task, refs[done].position, arena, &ret_tasks[done]);
        const kl_entry *entry = &ret_tasks[done].entry;
        bytes += entry->key.len + entry->kind.len + entry->headers.len + entry->payload.len;
        kl__pg_shown *shown = task->shown;
        task->shown = NULL; /* who runs it again asks again */
        release(seen, shown);
    }
    pthread_mutex_unlock(&seen->mutex);
    *ret_count = copied ? done : 0;
    return copied ? KL_OK : kl__fail_memory();
}
