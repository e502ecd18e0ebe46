/* inbox.c - tasks that were put in SQL are taken in: read, placed by the caller, appended and deleted.
 *
 * From: queue/take_in.c.  To: sql_inbox.c, append.c.
 *
 *     BEGIN; inbox_read   -> rows, unless another process is at it
 *     (the callback)      -> entries with ids and places
 *     append; inbox_end; COMMIT
 *
 * One transaction, so a task is in the inbox or in its line, whatever fails. It is short: the shards' locks are taken
 * once the entries are known. The callback may call the store, and so use a second connection: of the threads that
 * share a handle one takes in at a time, or else all of them could have one and wait for another. */
#include <stdio.h>

#include "base/clock.h"
#include "base/compare.h"
#include "base/wait.h"
#include "store/postgres/append.h"

enum { INBOX_NUMBER, INBOX_KEY, INBOX_KIND, INBOX_PAYLOAD, INBOX_OPTIONS };
enum { WHOLE_MS = 60000, WHOLE_TIMES = 100 };

/* --- Where reading begins (I3 of sql_inbox.c) ---
 *
 * Numbers go back when the server has crashed, or another has taken its place: then connections are lost, and all is
 * read again. A pooler may keep that from us, so all is read now and then in any case, the more seldom the longer it
 * takes. */

struct kl__pg_low {
    kl__pg_low *next;
    int64_t number;   /* no row is below; 0: not known */
    int64_t whole_ns; /* when all was last read, and how long that took */
    int64_t took_ns;
    char queue[];
};

/* NULL: no memory; then it begins at 0. With the mutex held. */
static kl__pg_low *find_low(kl__pg *pg, kl_bytes queue)
{
    for (kl__pg_low *low = pg->lows; low; low = low->next)
        if (kl__bytes_equal(kl_str(low->queue), queue))
            return low;
    kl__pg_low *low = kl__alloc_zeroed(1, sizeof *low + queue.len + 1);
    if (low) {
        memcpy(low->queue, queue.data, queue.len);
        low->next = pg->lows;
        pg->lows = low;
    }
    return low;
}

static int64_t low_number(kl__pg *pg, kl_bytes queue, uint64_t *ret_lost)
{
    pthread_mutex_lock(&pg->mutex);
    const kl__pg_low *low = find_low(pg, queue);
    int64_t number = low ? low->number : 0;
    int64_t rest_ns = low && low->took_ns > WHOLE_MS * INT64_C(1000000) / WHOLE_TIMES ? WHOLE_TIMES * low->took_ns
                                                                                      : WHOLE_MS * INT64_C(1000000);
    if (low && kl__monotonic_ns() - low->whole_ns > rest_ns)
        number = 0;
    *ret_lost = pg->lost;
    pthread_mutex_unlock(&pg->mutex);
    return number;
}

/* Unless connections were lost meanwhile. */
static void set_low(kl__pg *pg, kl_bytes queue, int64_t number, uint64_t lost, int64_t whole_took_ns)
{
    pthread_mutex_lock(&pg->mutex);
    kl__pg_low *low = find_low(pg, queue);
    if (low && lost == pg->lost) {
        low->number = number;
        if (whole_took_ns) {
            low->whole_ns = kl__monotonic_ns();
            low->took_ns = whole_took_ns;
        }
    }
    pthread_mutex_unlock(&pg->mutex);
}

void kl__pg_lows_forget(kl__pg *pg)
{
    pthread_mutex_lock(&pg->mutex);
    pg->lost++;
    for (kl__pg_low *low = pg->lows; low; low = low->next)
        low->number = 0;
    pthread_mutex_unlock(&pg->mutex);
}

void kl__pg_lows_free(kl__pg *pg)
{
    while (pg->lows) {
        kl__pg_low *low = pg->lows;
        pg->lows = low->next;
        kl__free(low);
    }
}

/* --- Taking in --- */

struct moving {
    kl__pg *pg;
    kl_bytes queue;
    size_t max;
    kl_take_fn *take;
    void *ctx;
    size_t shown;
    kl_rc rc;         /* what went wrong on this side */
    kl_append append; /* what the callback wants appended */
};

static PGresult *ask(const struct moving *moving, PGconn *conn, const char *sql, const kl__pg_args *args)
{
    char *text = args->failed ? NULL : kl__pg_expand(moving->pg, sql);
    PGresult *rows = text ? kl__pg_exec(conn, text, args) : NULL;
    kl__free(text);
    return rows;
}

static PGresult *ask_once(const struct moving *moving, PGconn *conn, const char *sql, kl__pg_args *args)
{
    PGresult *rows = ask(moving, conn, sql, args);
    kl__pg_args_free(args);
    return rows;
}

static PGresult *read_rows(const struct moving *moving, PGconn *conn)
{
    kl__pg_args args = {0};
    uint64_t lost;
    kl__pg_bytes(&args, moving->queue);
    kl__pg_int(&args, KL_PG_INT8, low_number(moving->pg, moving->queue, &lost));
    kl__pg_int(&args, KL_PG_INT4, (int64_t)moving->max);
    kl__pg_int(&args, KL_PG_INT8, KL_BATCH_BYTES_MAX / 2);
    return ask_once(moving, conn, "SELECT * FROM $S.inbox_read($1,$2,$3,$4)", &args);
}

static kl_rc show(struct moving *moving, const PGresult *rows, kl_taken *ret_taken)
{
    size_t count = (size_t)PQntuples(rows);
    kl_handed *handed = kl__alloc_zeroed(count, sizeof *handed);
    if (!handed)
        return kl__fail_memory();
    for (size_t i = 0; i < count; i++)
        handed[i] = (kl_handed){.number = (uint64_t)kl__pg_get_int(rows, (int)i, INBOX_NUMBER),
                                .key = kl__pg_get_bytes(rows, (int)i, INBOX_KEY),
                                .kind = kl__pg_get_bytes(rows, (int)i, INBOX_KIND),
                                .payload = kl__pg_get_bytes(rows, (int)i, INBOX_PAYLOAD),
                                .options = kl__pg_get_bytes(rows, (int)i, INBOX_OPTIONS)};
    moving->shown = count;
    kl_rc rc = moving->take(moving->ctx, handed, count, ret_taken);
    kl__free(handed);
    return rc;
}

/* A token, so that nothing is compared with what waits. */
static PGresult *append_taken(struct moving *moving, PGconn *conn, const kl_taken *taken)
{
    kl_token token;
    kl__pg_args args = {0};
    PGresult *rows = NULL;
    memcpy(token.bytes, taken->entries[0].id.bytes, sizeof token.bytes);
    moving->append = (kl_append){.entries = taken->entries, .count = taken->entry_count, .token = &token};
    moving->rc = kl__pg_append_args(&moving->append, false, &args);
    moving->append.token = NULL;
    if (moving->rc == KL_OK)
        rows = ask(moving, conn, KL_PG_APPEND, &args);
    kl__pg_args_free(&args);
    return moving->rc == KL_OK ? rows : PQexec(conn, "ROLLBACK");
}

static PGresult *end_rows(const struct moving *moving, PGconn *conn, const PGresult *shown, const kl_taken *taken)
{
    kl__pg_args args = {0};
    kl__pg_bytes(&args, moving->queue);
    kl__pg_array(&args, KL_PG_INT8, taken->count);
    for (size_t i = 0; i < taken->count; i++) {
        size_t row = taken->which ? taken->which[i] : i;
        kl__pg_add_int(&args, KL_PG_INT8, kl__pg_get_int(shown, (int)row, INBOX_NUMBER));
    }
    if (taken->refused)
        kl__pg_bytes(&args, kl_str(taken->refused));
    else
        kl__pg_null(&args, KL_PG_BYTEA);
    return ask_once(moving, conn, "SELECT $S.inbox_end($1,$2,$3)", &args);
}

/* The answer of the first statement that failed, or of the last one. */
static PGresult *apply(struct moving *moving, PGconn *conn, const PGresult *shown, const kl_taken *taken)
{
    PGresult *rows = NULL;
    if (taken->entry_count > 0) {
        rows = append_taken(moving, conn, taken);
        if (moving->rc != KL_OK || !kl__pg_is_good(rows))
            return rows;
        KL_ASSERT(!PQgetisnull(rows, 0, 0)); /* the token is new, so they were appended */
        PQclear(rows);
    }
    rows = end_rows(moving, conn, shown, taken);
    if (!kl__pg_is_good(rows))
        return rows;
    PQclear(rows);
    return PQexec(conn, "COMMIT");
}

static PGresult *move(PGconn *conn, void *ctx)
{
    struct moving *moving = ctx;
    kl_taken taken = {0};
    moving->shown = 0;
    PGresult *rows = PQexec(conn, "BEGIN ISOLATION LEVEL READ COMMITTED");
    if (!kl__pg_is_good(rows))
        return rows;
    PQclear(rows);
    PGresult *shown = read_rows(moving, conn);
    if (!kl__pg_is_good(shown))
        return shown;
    moving->rc = PQntuples(shown) > 0 ? show(moving, shown, &taken) : KL_OK;
    rows = moving->rc == KL_OK && taken.count > 0 ? apply(moving, conn, shown, &taken) : PQexec(conn, "ROLLBACK");
    PQclear(shown);
    return rows;
}

/* One batch, if there is one. */
static kl_rc move_batch(struct moving *moving)
{
    PGresult *rows = NULL;
    pthread_mutex_lock(&moving->pg->taking);
    kl_rc rc = kl__pg_send(moving->pg, move, moving, true, &rows);
    pthread_mutex_unlock(&moving->pg->taking);
    if (rc == KL_OK) {
        PQclear(rows);
        return moving->rc;
    }
    if (rc == KL_ESEALED)
        return kl__pg_append_sealed(moving->pg, &moving->append);
    return rc;
}

/* Is there something? And where to begin the next time. */
static kl_rc look(kl__pg *pg, const void *ctx, bool *ret_yes)
{
    const kl_bytes *queue = ctx;
    kl__pg_args args = {0};
    PGresult *rows = NULL;
    uint64_t lost;
    int64_t low = low_number(pg, *queue, &lost), from_ns = kl__monotonic_ns();
    kl__pg_bytes(&args, *queue);
    kl__pg_int(&args, KL_PG_INT8, low);
    kl_rc rc = kl__pg_ask(pg, &(kl__pg_call){"SELECT * FROM $S.inbox_look($1,$2)", &args, true}, &rows);
    kl__pg_args_free(&args);
    if (rc == KL_OK) {
        *ret_yes = kl__pg_get_int(rows, 0, 0) != 0;
        set_low(pg, *queue, kl__pg_get_int(rows, 0, 1), lost, low == 0 ? kl__monotonic_ns() - from_ns : 0);
        PQclear(rows);
    }
    return rc;
}

kl_rc kl__pg_take_in(void *self, const char *queue, int64_t wait_ms, size_t max, kl_take_fn *take, void *ctx,
                     size_t *ret_count)
{
    struct moving moving = {.pg = self, .queue = kl_str(queue), .max = max, .take = take, .ctx = ctx};
    bool there = false;
    kl_rc rc = kl__pg_wait_until(self, KL_PG_INBOX, wait_ms, look, &moving.queue, &there);
    if (rc == KL_OK && there)
        rc = move_batch(&moving);
    if (rc == KL_OK)
        *ret_count = moving.shown;
    return rc;
}

kl_rc kl__pg_left(void *self, const char *queue, uint64_t *ret_count)
{
    kl__pg_args args = {0};
    PGresult *rows = NULL;
    kl__pg_bytes(&args, kl_str(queue));
    kl_rc rc = kl__pg_ask(self, &(kl__pg_call){"SELECT $S.inbox_count($1)", &args, true}, &rows);
    kl__pg_args_free(&args);
    if (rc == KL_OK) {
        *ret_count = (uint64_t)kl__pg_get_int(rows, 0, 0);
        PQclear(rows);
    }
    return rc;
}

/* --- What was refused --- */

static kl_rc explain(const kl__pg *pg, int64_t number, kl_bytes sentence, kl_arena *arena, const char **ret_why)
{
    static const char format[] =
        "row %lld of %s.inbox: %.*s; set it right and UPDATE %s.inbox SET refused = NULL WHERE "
        "number = %lld, or DELETE it";
    size_t size = sizeof format + 2 * sizeof pg->schema + sentence.len + 40; /* two numbers */
    char *text = kl_arena_alloc(arena, size);
    if (!text)
        return kl__fail_memory();
    snprintf(text, size, format, (long long)number, pg->schema, (int)sentence.len, (const char *)sentence.data,
             pg->schema, (long long)number);
    *ret_why = text;
    return KL_OK;
}

kl_rc kl__pg_refused(void *self, const char *queue, kl_arena *arena, uint64_t *ret_count, const char **ret_why)
{
    kl__pg_args args = {0};
    PGresult *rows = NULL;
    kl__pg_bytes(&args, kl_str(queue));
    kl_rc rc =
        kl__pg_ask(self,
                   &(kl__pg_call){"SELECT pg_catalog.count(*) OVER (), i.number,"
                                  " pg_catalog.convert_to(i.refused, 'UTF8') FROM $S.inbox i"
                                  " WHERE i.queue = pg_catalog.convert_from($1, 'UTF8') AND i.refused IS NOT NULL"
                                  " ORDER BY i.number LIMIT 1",
                                  &args, true},
                   &rows);
    kl__pg_args_free(&args);
    if (rc != KL_OK)
        return rc;
    if (PQntuples(rows) > 0) {
        *ret_count = (uint64_t)kl__pg_get_int(rows, 0, 0);
        rc = explain(self, kl__pg_get_int(rows, 0, 1), kl__pg_get_bytes(rows, 0, 2), arena, ret_why);
    }
    PQclear(rows);
    return rc;
}
