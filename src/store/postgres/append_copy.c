/* append_copy.c - many entries at once: by COPY, which writes a page of rows as one record of the log.
 *
 *     BEGIN; append_begin (token, counters)    -> what to add to each place's ranks
 *     COPY entries FROM STDIN                   rows in binary
 *     pg_notify; COMMIT
 *
 * Four round trips instead of one. The counters' rows are taken meanwhile, as in any append, so others wait for those
 * of the same shards as long as this takes. Any failure closes the connection or rolls back, which takes everything
 * back, except when COMMIT was sent and no answer came: then the call is repeated, and its token tells. */
#include <stdio.h>

#include "base/text.h"
#include "store/postgres/append.h"

enum { COLUMNS = 12 };

struct copying {
    kl__pg *pg;
    const kl_append *append;
    const kl__pg_plan *plan;
    char *begin, *end; /* statements */
    bool no_memory;
};

/* --- Statements --- */

/* Two of the three columns of places are given by name; all are short numbers, so text will do. */
static void write_places(kl__text *text, const kl__pg_plan *plan)
{
    for (size_t i = 0; i < plan->place_count; i++)
        kl__text_put(text, "%s%u", i ? "," : "'{", plan->places[i].partition);
    for (size_t i = 0; i < plan->place_count; i++)
        kl__text_put(text, "%s%u", i ? "," : "}','{", plan->places[i].shard);
    for (size_t i = 0; i < plan->place_count; i++)
        kl__text_put(text, "%s%u", i ? "," : "}','{", plan->counts[i]);
    kl__text_put(text, "}'");
}

static void write_begin(kl__text *text, const struct copying *copying)
{
    kl__text_put(text, "BEGIN ISOLATION LEVEL READ COMMITTED; SELECT unnest(\"%s\".append_begin('",
                 copying->pg->schema);
    for (size_t i = 0; i < sizeof copying->append->token->bytes; i++)
        kl__text_put(text, "%02x", copying->append->token->bytes[i]);
    kl__text_put(text, "',");
    write_places(text, copying->plan);
    kl__text_put(text, "))");
}

static void write_end(kl__text *text, const struct copying *copying)
{
    const kl_place *places = copying->plan->places;
    for (size_t i = 0; i < copying->plan->place_count; i++)
        if (i == 0 || places[i].partition != places[i - 1].partition)
            kl__text_put(text, "SELECT pg_notify('%s','%u');", copying->pg->schema, places[i].partition);
    kl__text_put(text, "COMMIT");
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

static void add_int_or_null(kl__pg_args *stream, kl__pg_type type, int64_t value)
{
    if (value != 0)
        kl__pg_add_int(stream, type, value);
    else
        kl__pg_add_null(stream);
}

static void add_row(kl__pg_args *stream, const kl_entry *entry, int64_t number)
{
    static const char columns[2] = {0, COLUMNS};
    int line = kl__pg_line_of(entry);
    kl__pg_add_raw(stream, columns, sizeof columns);
    kl__pg_add_int(stream, KL_PG_INT4, entry->place.partition);
    kl__pg_add_int(stream, KL_PG_INT4, entry->place.shard * 64 + (uint32_t)line);
    kl__pg_add_int(stream, KL_PG_INT8, number * 64 + line);
    kl__pg_add_uuid(stream, &entry->id);
    if (kl__id_is_none(&entry->job))
        kl__pg_add_null(stream);
    else
        kl__pg_add_uuid(stream, &entry->job);
    add_int_or_null(stream, KL_PG_INT8, entry->due_ms);
    add_int_or_null(stream, KL_PG_INT2, entry->group);
    add_int_or_null(stream, KL_PG_INT2, entry->due_ms > 0 ? entry->priority : 0);
    kl__pg_add_bytes_or_null(stream, entry->key);
    kl__pg_add_bytes_or_null(stream, entry->kind);
    kl__pg_add_bytes_or_null(stream, entry->headers);
    kl__pg_add_bytes_or_null(stream, entry->payload);
}

/* `bases` has a row for each place: its counter, with these entries in it. */
static void make_rows(const struct copying *copying, const PGresult *bases, kl__pg_args *stream)
{
    static const char head[19] = "PGCOPY\n\377\r\n", tail[2] = {-1, -1};
    const kl__pg_plan *plan = copying->plan;
    kl__pg_bytes(stream, (kl_bytes){head, sizeof head});
    for (size_t i = 0; i < copying->append->count; i++) {
        kl__pg_ranked ranked = plan->ranked[i];
        int64_t base = kl__pg_get_text_int(bases, (int)ranked.at - 1, 0) - plan->counts[ranked.at - 1];
        add_row(stream, &copying->append->entries[i], base + ranked.rank);
    }
    kl__pg_add_raw(stream, tail, sizeof tail);
}

/* --- The call --- */

static bool is_good(const PGresult *rows)
{
    ExecStatusType status = PQresultStatus(rows);
    return status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK;
}

static PGresult *copy_rows(PGconn *conn, const kl__pg *pg, const kl__pg_args *stream)
{
    char sql[KL_PG_SCHEMA_BYTES + 64];
    snprintf(sql, sizeof sql, "COPY \"%s\".entries FROM STDIN (FORMAT binary)", pg->schema);
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
    if (!is_good(rows))
        return rows;
    if (PQntuples(rows) == 0) { /* the token is known */
        PQclear(rows);
        return PQexec(conn, "ROLLBACK");
    }
    KL_ASSERT((size_t)PQntuples(rows) == copying->plan->place_count);
    make_rows(copying, rows, &stream);
    PQclear(rows);
    copying->no_memory = stream.failed;
    rows = stream.failed ? PQexec(conn, "ROLLBACK") : copy_rows(conn, copying->pg, &stream);
    kl__pg_args_free(&stream);
    if (copying->no_memory || !is_good(rows))
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
