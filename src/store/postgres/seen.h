/* seen.h - what scans have shown of tasks that wait: where they stand, who they are, and their bytes.
 *
 * A scan of this engine brings whole rows, so the owner of a shard need not ask for its tasks again: read finds them
 * here when its caller says that he owns them (kl_ref.owned). And settle knows from here that a task is there and was
 * not settled before, as long as nobody else has taken the shard over, which its fence tells.
 *
 * A scan may have shown what was committed early (append.c), and a crash of the server may have taken that back.
 * Whoever finds a connection broken cannot know, so everything is forgotten then. The settle that finds it broken
 * itself may still name positions that are not there: those mean nothing to anybody (G1 of sql_tables.c).
 *
 * N1  A task stands here only from a scan that showed it until a settle of this handle names it, or a connection
 *     breaks.
 * N2  There are KL_PG_SEEN_MAX tasks at most; a newer one takes the place of an older one. Of their bytes
 *     KL_PG_SEEN_BYTES are kept at most, those that came last; of the others the place and the id. */
#ifndef KL_STORE_POSTGRES_SEEN_H
#define KL_STORE_POSTGRES_SEEN_H

#include "store/postgres/postgres.h"
#include "store/postgres/row.h"

enum {
    KL_PG_SEEN_MAX = 1 << 17, /* 48 B each: twice as many as a worker holds */
    KL_PG_SEEN_BYTES = 64 << 20,
};

/* Columns of what the schema's function `scan` shows. */
enum {
    KL_PG_SHOWN_SCAN,
    KL_PG_SHOWN_LAST,
    KL_PG_SHOWN_DUE,
    KL_PG_SHOWN_ATTEMPTS,
    KL_PG_SHOWN_PRIORITY,
    KL_PG_SHOWN_BYTES, /* not NULL: the row is cut behind its key */
    KL_PG_SHOWN_NUMBER,
    KL_PG_SHOWN_JOBS,
    KL_PG_SHOWN_GROUPS,
    KL_PG_SHOWN_TASKS,
    KL_PG_SHOWN_HIDDEN,
};

typedef struct kl__pg_shown kl__pg_shown; /* an answer of a scan */

/* Task `at`, from 0, of a row of such an answer, which the scan has found to be whole. */
static inline kl__pg_packed kl__pg_shown_task(const PGresult *rows, int row, size_t at)
{
    kl__pg_packed packed = {.at = 0};
    bool whole = kl__pg_unpack(kl__pg_get_bytes(rows, row, KL_PG_SHOWN_TASKS),
                               (size_t)kl__pg_get_int(rows, row, KL_PG_SHOWN_NUMBER), at, &packed);
    KL_ASSERT(whole);
    return packed;
}

/* NULL: no memory. Every function below may be called from any thread; NULL as `seen` is fine and knows nothing. */
kl__pg_seen *kl__pg_seen_open(void);
void kl__pg_seen_close(kl__pg_seen *seen);

/* The answer is kept from now on, and others wait until the end. NULL: there is no memory for it, and it stays the
 * caller's. */
kl__pg_shown *kl__pg_seen_begin(kl__pg_seen *seen, PGresult *rows);

/* A task of the answer: number `at`, from 0, of a row. */
void kl__pg_seen_add(kl__pg_seen *seen, kl__pg_shown *shown, int row, size_t at, kl_place place, const kl_stub *stub);
void kl__pg_seen_end(kl__pg_seen *seen, kl__pg_shown *shown);

/* Copies tasks into the arena, from the first on as many as are here with their bytes. */
kl_rc kl__pg_seen_read(kl__pg_seen *seen, const kl_ref *refs, size_t count, kl_arena *arena, kl_task *ret_tasks,
                       size_t *ret_count);

/* Nothing is known any more. */
void kl__pg_seen_clear(kl__pg_seen *seen);

/* Somebody settles these tasks: they go. True: all of them were here. */
bool kl__pg_seen_take(kl__pg_seen *seen, const kl_settle *batches, size_t count);

#endif
