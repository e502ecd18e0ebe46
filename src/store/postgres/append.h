/* append.h - which entries make a row, and how they are appended.
 *
 * Entries of one line of a shard share a row, up to KL_PG_ROW_BYTES. A position names a number that is drawn, and a
 * place among the up to 256 entries that share it (sql_tables.c); a row's entries share one number. Entries get their
 * places in the order of the call, and where a row would become too large, its line goes on with the next number. */
#ifndef KL_STORE_POSTGRES_APPEND_H
#define KL_STORE_POSTGRES_APPEND_H

#include "store/postgres/postgres.h"

enum {
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

/* The statement that appends: it tells the first number that it drew, NULL if a token was known. And its parameters, to
 * be freed, also after a failure. early: it is committed without waiting for the disk, and KL_PG_FLUSH follows. */
#define KL_PG_APPEND "SELECT $S.append($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14,$15,$16,$17,$18,$19)"
#define KL_PG_FLUSH  "SELECT $S.flush()"

kl_rc kl__pg_append_args(const kl_append *append, bool early, kl__pg_args *args);

/* append_group.c: an append with a token, together with those of other threads, or alone. */
kl_rc kl__pg_append_grouped(kl__pg *pg, const kl_append *append);

/* By itself. flushes: it may have been made before and not be on disk yet. */
kl_rc kl__pg_append_alone(kl__pg *pg, const kl_append *append, bool flushes);

/* Several calls in one: all of them or none. KL_EBUSY: one of the tokens is known, so nothing was done; or nobody
 * knows. */
kl_rc kl__pg_append_together(kl__pg *pg, const kl_append *whole, const kl_token *tokens, size_t token_count);

/* KL_ESEALED as the caller is told it: which entry. */
kl_rc kl__pg_append_sealed(kl__pg *pg, const kl_append *append);

#endif
