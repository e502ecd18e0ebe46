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

typedef struct kl__pg_plan {
    kl__pg_spot *spots; /* by place, then by entry */
    uint32_t *at;       /* of each entry: which of the places, from 1 */
    kl_place *places;   /* in order, each once */
    size_t place_count;
} kl__pg_plan;

enum { KL_PG_DRAW = 256 }; /* entries for each number that is drawn from the sequence */

/* The line as the schema numbers it. */
static inline int kl__pg_line_of(const kl_entry *entry)
{
    return entry->due_ms > 0 ? KL_PG_DUE : entry->priority - KL_PRIORITY_MIN;
}

/* The statement that appends, and its parameters; to be freed, also after a failure. */
#define KL_PG_APPEND "SELECT $S.append($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14)"
kl_rc kl__pg_append_args(const kl_append *append, kl__pg_args *args);

/* KL_ESEALED as the caller is told it; the server's list is the thread's sentence. */
kl_rc kl__pg_append_sealed(const kl_append *append);

/* Appends by COPY. Only with a token: without one, entries that wait already would have to be left out. KL_ESEALED: the
 * sentence is the server's list. */
kl_rc kl__pg_append_copy(kl__pg *pg, const kl_append *append, const kl__pg_plan *plan);

#endif
