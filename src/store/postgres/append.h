/* append.h - what both ways of appending share: which entry goes where. */
#ifndef KL_STORE_POSTGRES_APPEND_H
#define KL_STORE_POSTGRES_APPEND_H

#include "store/postgres/postgres.h"

/* From so many entries on COPY is worth its round trips; DESIGN: fewer bytes of WAL a task. */
enum { KL_PG_COPY_MIN = 64 };

typedef struct kl__pg_spot {
    kl_place place;
    uint32_t entry;
} kl__pg_spot;

/* Where an entry goes: to which of the places (from 1), and as which of its entries (from 1). */
typedef struct kl__pg_ranked {
    uint32_t at, rank;
} kl__pg_ranked;

typedef struct kl__pg_plan {
    kl__pg_spot *spots;    /* by place, then by entry */
    kl__pg_ranked *ranked; /* of each entry */
    kl_place *places;      /* in order (P4) */
    uint32_t *counts;      /* of their entries */
    size_t place_count;
} kl__pg_plan;

/* The line as the schema numbers it. */
static inline int kl__pg_line_of(const kl_entry *entry)
{
    return entry->due_ms > 0 ? KL_PG_DUE : entry->priority - KL_PRIORITY_MIN;
}

/* Appends by COPY. Only with a token: without one, entries that wait already would have to be left out. KL_ESEALED: the
 * sentence is the server's list. */
kl_rc kl__pg_append_copy(kl__pg *pg, const kl_append *append, const kl__pg_plan *plan);

#endif
