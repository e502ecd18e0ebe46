/* append_copy.c - many entries at once: by COPY, which puts several rows into one record of the log.
 *
 *     BEGIN; append_begin (locks, token)    -> the segment, and numbers that make positions
 *     COPY entries FROM STDIN                rows in binary
 *     pg_notify; COMMIT; flush
 *
 * Four round trips instead of one, and some bytes less of the log. The shards' locks are held meanwhile, as in any append,
 * so others wait for those of the same shards as long as this takes; but they do not wait for the disk (append.c). Any
 * failure closes the connection or rolls back, which takes everything back, except when COMMIT was sent and no answer came:
 * then the call is repeated, and its token tells. */
#include <stdio.h>

#include "base/text.h"
#include "store/postgres/append.h"

enum { COLUMNS = 11 };

struct copying {
    kl__pg *pg;
    const kl_append *append;
    const kl__pg_plan *plan;
    char *begin, *end; /* statements */
    bool delayed;      /* some go to segment 0 */
    bool no_memory;
};

/* --- Statements --- */

#define FLUSH                                                                                                          \
    "BEGIN; SET LOCAL synchronous_commit = on; SELECT pg_catalog.pg_logical_emit_message(true, 'keyline', ''); COMMIT"

/* Short numbers, so text will do. */
static void write_places(kl__text *text, const kl__pg_plan *plan)
{
    for (size_t i = 0; i < plan->place_count; i++)
        kl__text_put(text, "%s%u", i ? "," : "'{", plan->places[i].partition);
    for (size_t i = 0; i < plan->place_count; i++)
        kl__text_put(text, "%s%u", i ? "," : "}','{", plan->places[i].shard);
    kl__text_put(text, "}'");
}

static void write_begin(kl__text *text, const struct copying *copying)
{
    kl__text_put(text, "BEGIN ISOLATION LEVEL READ COMMITTED; SELECT pg_catalog.unnest(\"%s\".append_begin('{",
                 copying->pg->schema);
    for (size_t i = 0; i < sizeof copying->append->token->bytes; i++)
        kl__text_put(text, "%02x", copying->append->token->bytes[i]);
    kl__text_put(text, "}',");
    write_places(text, copying->plan);
    kl__text_put(text, ",%u))", copying->plan->draw_count);
}

static void write_end(kl__text *text, const struct copying *copying)
{
    const kl_place *places = copying->plan->places;
    for (size_t i = 0; i < copying->plan->place_count; i++)
        if (i == 0 || places[i].partition != places[i - 1].partition)
            kl__text_put(text, "SELECT pg_catalog.pg_notify('%s','%u');", copying->pg->schema, places[i].partition);
    kl__text_put(text, "SELECT \"%s\".commit_early(); COMMIT; " FLUSH, copying->pg->schema);
}

/* Written twice: to be measured, and into what was measured. */
static char *make_text(const struct copying *copying, void (*write)(kl__text *, const struct copying *))
{
    kl__text text = {0};
    write(&text, copying);
    text = (kl__text){kl__alloc(text.length + 1), text.length + 1, 0};
    if (text.buffer)
        write(&text, copying);
    return text.buffer;
}

/* --- Rows --- */

/* An array as a column of a row: its length stands before it. */
static void begin_array(kl__pg_args *stream, kl__pg_type type, size_t count, size_t bytes)
{
    int64_t head[] = {20 + 4 * (int64_t)count + (int64_t)bytes, 1, 1, kl__pg_type_oid(type), (int64_t)count, 1};
    for (size_t i = 0; i < sizeof head / sizeof head[0]; i++) {
        unsigned char word[4];
        for (int b = 0; b < 4; b++)
            word[b] = (unsigned char)((uint64_t)head[i] >> (24 - 8 * b));
        kl__pg_add_raw(stream, word, sizeof word);
    }
}

/* The entry that stands at number `i` of the row. */
static const kl_entry *entry_of(const struct copying *copying, const kl__pg_row *row, size_t i)
{
    return &copying->append->entries[copying->plan->spots[row->first + i].entry];
}

static void add_jobs(kl__pg_args *stream, const struct copying *copying, const kl__pg_row *row)
{
    size_t jobs = 0;
    for (size_t i = 0; i < row->count; i++)
        jobs += !kl__id_is_none(&entry_of(copying, row, i)->job);
    if (jobs == 0) {
        kl__pg_add_null(stream);
        return;
    }
    begin_array(stream, KL_PG_UUID, row->count, 16 * jobs);
    for (size_t i = 0; i < row->count; i++)
        if (kl__id_is_none(&entry_of(copying, row, i)->job))
            kl__pg_add_null(stream);
        else
            kl__pg_add_uuid(stream, &entry_of(copying, row, i)->job);
}

static void add_groups(kl__pg_args *stream, const struct copying *copying, const kl__pg_row *row)
{
    size_t groups = 0;
    for (size_t i = 0; i < row->count; i++)
        groups += entry_of(copying, row, i)->group != 0;
    if (groups == 0) {
        kl__pg_add_null(stream);
        return;
    }
    begin_array(stream, KL_PG_INT2, row->count, 2 * groups);
    for (size_t i = 0; i < row->count; i++)
        kl__pg_add_int_or_null(stream, KL_PG_INT2, entry_of(copying, row, i)->group);
}

static void add_row(kl__pg_args *stream, const struct copying *copying, const kl__pg_row *row, int64_t number,
                    int64_t segment)
{
    static const char columns[2] = {0, COLUMNS};
    const kl__pg_plan *plan = copying->plan;
    const kl__pg_spot *spot = &plan->spots[row->first], *last = spot + row->count - 1;
    const kl_entry *entry = entry_of(copying, row, 0);
    bool due = spot->line == KL_PG_DUE;
    segment = due ? 0 : segment;
    kl__pg_add_raw(stream, columns, sizeof columns);
    kl__pg_add_int(stream, KL_PG_INT8, (number * 256 + plan->ats[last->entry]) * 256 + segment * 64 + spot->line);
    kl__pg_add_int_or_null(stream, KL_PG_INT8, entry->due_ms);
    kl__pg_add_int(stream, KL_PG_INT4, spot->place.partition);
    kl__pg_add_int(stream, KL_PG_INT4, spot->place.shard * 64 + (uint32_t)spot->line);
    kl__pg_add_int_or_null(stream, KL_PG_INT4, kl__pg_large_bytes(entry));
    kl__pg_add_int(stream, KL_PG_INT2, segment);
    kl__pg_add_int(stream, KL_PG_INT2, row->count);
    kl__pg_add_int_or_null(stream, KL_PG_INT2, due ? entry->priority : 0);
    add_jobs(stream, copying, row);
    add_groups(stream, copying, row);
    kl__pg_add_tasks(stream, copying->append, plan, row);
}

/* `drawn`: a row for the segment, then one for each number. */
static void make_rows(struct copying *copying, const PGresult *drawn, kl__pg_args *stream)
{
    static const char head[19] = "PGCOPY\n\377\r\n", tail[2] = {-1, -1};
    const kl__pg_plan *plan = copying->plan;
    int64_t segment = kl__pg_get_text_int(drawn, 0, 0);
    kl__pg_bytes(stream, (kl_bytes){head, sizeof head});
    for (size_t i = 0; i < plan->row_count; i++) {
        add_row(stream, copying, &plan->rows[i], kl__pg_get_text_int(drawn, (int)plan->rows[i].draw, 0), segment);
        copying->delayed |= plan->spots[plan->rows[i].first].line == KL_PG_DUE;
    }
    kl__pg_add_raw(stream, tail, sizeof tail);
}

/* --- The call --- */

/* Into the one table, or, where there are several, through the one that stands for all. */
static PGresult *copy_rows(PGconn *conn, const struct copying *copying, int segment, const kl__pg_args *stream)
{
    char sql[KL_PG_SCHEMA_BYTES + 64], number[16] = "";
    if (!copying->delayed)
        snprintf(number, sizeof number, "_%d", segment);
    snprintf(sql, sizeof sql, "COPY \"%s\".entries%s FROM STDIN (FORMAT binary)", copying->pg->schema, number);
    PGresult *rows = PQexec(conn, sql);
    if (PQresultStatus(rows) != PGRES_COPY_IN)
        return rows;
    PQclear(rows);
    if (PQputCopyData(conn, stream->bytes, (int)stream->used) != 1 || PQputCopyEnd(conn, NULL) != 1)
        return NULL;
    rows = PQgetResult(conn);
    for (PGresult *more; (more = PQgetResult(conn));)
        PQclear(more);
    return rows;
}

/* The answer of the last statement that was made: it says what came of the call. */
static PGresult *send_all(PGconn *conn, void *ctx)
{
    struct copying *copying = ctx;
    kl__pg_args stream = {0};
    PGresult *rows = PQexec(conn, copying->begin);
    if (!kl__pg_is_good(rows))
        return rows;
    if (PQntuples(rows) == 0) { /* the token is known */
        PQclear(rows);
        return PQexec(conn, "ROLLBACK; " FLUSH); /* the first may have been lost before its own */
    }
    KL_ASSERT((size_t)PQntuples(rows) == 1 + (size_t)copying->plan->draw_count);
    int segment = (int)kl__pg_get_text_int(rows, 0, 0);
    make_rows(copying, rows, &stream);
    PQclear(rows);
    copying->no_memory = stream.failed;
    rows = stream.failed ? PQexec(conn, "ROLLBACK") : copy_rows(conn, copying, segment, &stream);
    kl__pg_args_free(&stream);
    if (copying->no_memory || !kl__pg_is_good(rows))
        return rows;
    PQclear(rows);
    return PQexec(conn, copying->end);
}

kl_rc kl__pg_append_copy(kl__pg *pg, const kl_append *append, const kl__pg_plan *plan)
{
    struct copying copying = {.pg = pg, .append = append, .plan = plan};
    PGresult *rows = NULL;
    copying.begin = make_text(&copying, write_begin);
    copying.end = make_text(&copying, write_end);
    kl_rc rc = copying.begin && copying.end ? kl__pg_send(pg, send_all, &copying, true, &rows) : kl__fail_memory();
    if (rc == KL_OK)
        PQclear(rows);
    kl__free(copying.begin);
    kl__free(copying.end);
    return rc == KL_OK && copying.no_memory ? kl__fail_memory() : rc;
}
