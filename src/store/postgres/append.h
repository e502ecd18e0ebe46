/* append.h - what both ways of appending share: which entries make a row.
 *
 * Entries of one line of a shard share a row, up to KL_PG_ROW_BYTES. A position names a number that is drawn, and a place
 * among the up to 256 entries that share it (sql_tables.c); a row's entries share one number. Entries get their places in
 * the order of the call, and where a row would become too large, its line goes on with the next number. */
#ifndef KL_STORE_POSTGRES_APPEND_H
#define KL_STORE_POSTGRES_APPEND_H

#include "store/postgres/postgres.h"

enum {
    KL_PG_COPY_MIN = 512,   /* from so many entries on COPY is worth its round trips */
    KL_PG_DRAW = 256,       /* entries for each number that is drawn from the sequence */
    KL_PG_ROW_BYTES = 3900, /* of its entries: two rows fit into a page; move_left_over (sql_upkeep.c) knows it, too */
    KL_PG_ENTRY_BYTES = 32, /* beside its key and so on */
};

/* An entry: where it goes. */
typedef struct kl__pg_spot {
    kl_place place;
    int line; /* as the schema numbers it */
    uint32_t entry;
    uint32_t group; /* those of one place and line */
} kl__pg_spot;

/* A row: spots that follow one another. */
typedef struct kl__pg_row {
    uint32_t at;   /* which of the places, from 1 */
    uint32_t draw; /* which of the numbers, from 1 */
    uint32_t first, count;
} kl__pg_row;

typedef struct kl__pg_plan {
    kl__pg_spot *spots; /* by place, line, entry */
    uint32_t *draws;    /* of each entry, from 1, */
    uint8_t *ats;       /* and its place among those that share it */
    kl_place *places;   /* in order, each once */
    size_t place_count;
    kl__pg_row *rows;
    size_t row_count;
    uint32_t draw_count;
} kl__pg_plan;

/* Some goes to a NULL array when it is empty. */
typedef enum kl__pg_part { KL_PG_KEYS, KL_PG_KINDS, KL_PG_HEADERS, KL_PG_PAYLOADS, KL_PG_PARTS } kl__pg_part;

static inline kl_bytes kl__pg_part_of(const kl_entry *entry, kl__pg_part part)
{
    return part == KL_PG_KEYS      ? entry->key
           : part == KL_PG_KINDS   ? entry->kind
           : part == KL_PG_HEADERS ? entry->headers
                                   : entry->payload;
}

static inline size_t kl__pg_entry_bytes(const kl_entry *entry)
{
    return entry->key.len + entry->kind.len + entry->headers.len + entry->payload.len;
}

/* Of a row's only entry, if it is too large to be shown by scans; else 0. */
static inline int64_t kl__pg_large_bytes(const kl_entry *entry)
{
    size_t bytes = kl__pg_entry_bytes(entry);
    return bytes > KL_PG_ROW_BYTES ? (int64_t)bytes : 0;
}

/* The statements that append, one behind the other in one transaction, and their parameters; to be freed, also after a
 * failure. The first says whether anything is appended; it leaves what it drew in settings of the transaction, because a
 * statement of its own is quicker with large arrays than a function. early: it is committed without waiting for the
 * disk, and KL_PG_FLUSH follows. */
#define KL_PG_OPEN "SELECT $S.append_open($1,$2,$3,$4,$5,$6,$7)"
#define KL_PG_APPEND                                                                                                   \
    "WITH d AS MATERIALIZED (SELECT pg_catalog.current_setting('keyline.drawn')::bigint[] AS drawn,"                   \
    " pg_catalog.current_setting('keyline.skips')::int[] AS skips)"                                                    \
    " INSERT INTO $S.entries (partition, slot, last, segment, number, due_ms, priority, bytes, ats, ids, jobs, "       \
    "groups,"                                                                                                          \
    " keys, kinds, headers, payloads)"                                                                                 \
    " SELECT a.p, a.s * 64 + a.line, (d.drawn[1 + a.draw] * 256 + pg_catalog.get_byte($10, a.first + a.number - 2))"   \
    " * 256 + CASE WHEN a.line = 32 THEN 0 ELSE d.drawn[1] * 64 END + a.line,"                                         \
    " CASE WHEN a.line = 32 THEN 0 ELSE d.drawn[1] END, a.number, a.due, a.priority, a.bytes,"                         \
    " pg_catalog.substr($10, a.first, a.number), $11[a.first : a.first + a.number - 1],"                               \
    " $12[a.first : a.first + a.number - 1], $13[a.first : a.first + a.number - 1],"                                   \
    " $14[a.first : a.first + a.number - 1], $15[a.first : a.first + a.number - 1],"                                   \
    " $16[a.first : a.first + a.number - 1], $17[a.first : a.first + a.number - 1]"                                    \
    " FROM d, ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2), pg_catalog.unnest($3), pg_catalog.unnest($4),"  \
    " pg_catalog.unnest($5), pg_catalog.unnest($6), pg_catalog.unnest($7), pg_catalog.unnest($8),"                     \
    " pg_catalog.unnest($9)) WITH ORDINALITY"                                                                          \
    " AS a(p, s, line, draw, first, number, due, priority, bytes, n)"                                                  \
    " WHERE d.drawn <> '{}' AND NOT a.n::int OPERATOR(pg_catalog.=) ANY (d.skips)"
#define KL_PG_FLUSH "SELECT $S.flush()"
typedef struct kl__pg_appending {
    kl__pg_args open, rows;
} kl__pg_appending;

kl_rc kl__pg_append_args(const kl_append *append, bool early, kl__pg_appending *args);
void kl__pg_append_args_free(kl__pg_appending *args);

/* append_group.c: an append with a token, together with those of other threads, or alone. */
kl_rc kl__pg_append_grouped(kl__pg *pg, const kl_append *append);

/* By itself. flushes: it may have been made before and not be on disk yet. */
kl_rc kl__pg_append_alone(kl__pg *pg, const kl_append *append, bool flushes);

/* Several calls in one: all of them or none. KL_EBUSY: one of the tokens is known, so nothing was done; or nobody knows. */
kl_rc kl__pg_append_together(kl__pg *pg, const kl_append *whole, const kl_token *tokens, size_t token_count);

/* KL_ESEALED as the caller is told it; the server's list is the thread's sentence. */
kl_rc kl__pg_append_sealed(const kl_append *append);

/* Appends by COPY. Only with a token: without one, entries that wait already would have to be left out. KL_ESEALED: the
 * sentence is the server's list. */
kl_rc kl__pg_append_copy(kl__pg *pg, const kl_append *append, const kl__pg_plan *plan);

#endif
