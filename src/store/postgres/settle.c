/* settle.c - how tasks end: outcomes under a shard's epoch, and fences.
 *
 * From: store.c.  To: sql_settle.c.
 *
 * All batches of a call are one transaction, up to KL_PG_SHARDS_MAX of them; more are several, one after the other,
 * which the contract allows: each batch is whole for itself.
 *
 * Where all tasks are known from a scan and none is to be tried again, their positions are all that is sent, and of
 * those that are kept what the run left (settle_sure). That is done once: when no answer comes, everything is compared,
 * because it may have been done. */
#include <stdlib.h>

#include "store/postgres/seen.h"

/* --- What settles and fences share: places under an epoch, in order of places --- */

struct claim {
    kl_place place;
    uint32_t index; /* in the call */
    uint64_t epoch;
    uint64_t fenced; /* what it was compared with */
    bool seals;      /* then it is never stale */
    kl_rc *rc;
};

typedef kl_rc ask_fn(kl__pg *pg, const struct claim *claims, size_t count, void *ctx, PGresult **ret_rows);

static int by_place(const void *a, const void *b)
{
    const struct claim *x = a, *y = b;
    int order = kl__pg_place_compare(x->place, y->place);
    return order ? order : (x->index > y->index) - (x->index < y->index);
}

static void add_claims(kl__pg_args *args, const struct claim *claims, size_t count)
{
    kl__pg_array(args, KL_PG_INT4, count);
    for (size_t i = 0; i < count; i++)
        kl__pg_add_int(args, KL_PG_INT4, claims[i].place.partition);
    kl__pg_array(args, KL_PG_INT4, count);
    for (size_t i = 0; i < count; i++)
        kl__pg_add_int(args, KL_PG_INT4, claims[i].place.shard);
    kl__pg_array(args, KL_PG_INT8, count);
    for (size_t i = 0; i < count; i++)
        kl__pg_add_int(args, KL_PG_INT8, (int64_t)claims[i].epoch);
}

/* The answer is what each was compared with. */
static kl_rc make_part(kl__pg *pg, struct claim *claims, size_t count, ask_fn *ask, void *ctx)
{
    PGresult *rows = NULL;
    kl_rc rc = ask(pg, claims, count, ctx, &rows);
    for (size_t i = 0; i < count; i++) {
        if (rc == KL_OK)
            claims[i].fenced = (uint64_t)kl__pg_get_element_int(rows, 0, 0, i);
        *claims[i].rc = rc != KL_OK ? rc : claims[i].seals || claims[i].epoch >= claims[i].fenced ? KL_OK : KL_ESTALE;
    }
    PQclear(rows);
    return rc;
}

/* The first of the call that was refused. */
static kl_rc refuse_stale(const struct claim *claims, size_t count, const char *what)
{
    const struct claim *first = NULL;
    for (size_t i = 0; i < count; i++)
        if (*claims[i].rc != KL_OK && (!first || claims[i].index < first->index))
            first = &claims[i];
    if (!first)
        return KL_OK;
    return kl__fail(KL_ESTALE,
                    "%s %u: shard %u of partition %u is fenced at epoch %llu, above %llu; another owner has taken it "
                    "over, so drop what was taken from it",
                    what, first->index, first->place.shard, first->place.partition, (unsigned long long)first->fenced,
                    (unsigned long long)first->epoch);
}

static kl_rc make_claims(kl__pg *pg, struct claim *claims, size_t count, ask_fn *ask, void *ctx, const char *what)
{
    kl_rc rc = KL_OK;
    qsort(claims, count, sizeof *claims, by_place);
    for (size_t at = 0, part; at < count; at += part) {
        part = count - at < KL_PG_SHARDS_MAX ? count - at : KL_PG_SHARDS_MAX;
        if (rc == KL_OK)
            rc = make_part(pg, claims + at, part, ask, ctx);
        else
            for (size_t i = at; i < at + part; i++)
                *claims[i].rc = rc;
    }
    return rc == KL_OK ? refuse_stale(claims, count, what) : rc;
}

/* --- Settle --- */

/* A task of the call; `at` is its batch among the sorted ones, from 1. */
struct outcome {
    const kl_settled *settled;
    kl_place place;
    uint32_t at, number, round;
};

struct work {
    struct outcome *outcomes;
    size_t count;
    uint32_t last_round;
    size_t kept;
    bool retries; /* some are to be tried again */
};

static bool is_kept(const kl_settled *settled) { return settled->outcome != KL_RETRY && settled->keep_ms > 0; }

static int by_task(const void *a, const void *b)
{
    const struct outcome *x = a, *y = b;
    int order = kl__pg_place_compare(x->place, y->place);
    if (order == 0)
        order = (x->settled->position > y->settled->position) - (x->settled->position < y->settled->position);
    return order ? order : (x->number > y->number) - (x->number < y->number);
}

static int by_number(const void *a, const void *b)
{
    const struct outcome *x = a, *y = b;
    return (x->number > y->number) - (x->number < y->number);
}

/* A task that stands there again is settled in the next round. */
static void set_rounds(struct work *work)
{
    struct outcome *outcomes = work->outcomes;
    qsort(outcomes, work->count, sizeof *outcomes, by_task);
    for (size_t i = 1; i < work->count; i++)
        if (outcomes[i].settled->position == outcomes[i - 1].settled->position &&
            kl__pg_place_compare(outcomes[i].place, outcomes[i - 1].place) == 0) {
            outcomes[i].round = outcomes[i - 1].round + 1;
            work->last_round = outcomes[i].round > work->last_round ? outcomes[i].round : work->last_round;
        }
    qsort(outcomes, work->count, sizeof *outcomes, by_number);
}

static kl_rc make_work(const kl_settle *batches, const struct claim *claims, size_t count, struct work *work)
{
    size_t tasks = 0;
    for (size_t i = 0; i < count; i++)
        tasks += batches[claims[i].index].count;
    work->outcomes = kl__alloc_zeroed(tasks + 1, sizeof *work->outcomes);
    if (!work->outcomes)
        return kl__fail_memory();
    for (size_t i = 0; i < count; i++) {
        const kl_settle *batch = &batches[claims[i].index];
        for (size_t j = 0; j < batch->count; j++, work->count++) {
            work->outcomes[work->count] =
                (struct outcome){&batch->tasks[j], batch->place, (uint32_t)i + 1, (uint32_t)work->count, 0};
            work->kept += is_kept(&batch->tasks[j]);
            work->retries |= batch->tasks[j].outcome == KL_RETRY;
        }
    }
    return KL_OK;
}

static void add_tasks(kl__pg_args *args, const struct work *work)
{
    kl__pg_array(args, KL_PG_INT4, work->count);
    for (size_t i = 0; i < work->count; i++)
        kl__pg_add_int(args, KL_PG_INT4, work->outcomes[i].at);
    kl__pg_array(args, KL_PG_INT4, work->count);
    for (size_t i = 0; i < work->count; i++)
        kl__pg_add_int(args, KL_PG_INT4, work->outcomes[i].round);
    kl__pg_array(args, KL_PG_UUID, work->count);
    for (size_t i = 0; i < work->count; i++)
        kl__pg_add_uuid(args, &work->outcomes[i].settled->id);
    kl__pg_array(args, KL_PG_INT8, work->count);
    for (size_t i = 0; i < work->count; i++)
        kl__pg_add_int(args, KL_PG_INT8, (int64_t)work->outcomes[i].settled->position);
    kl__pg_array(args, KL_PG_INT4, work->count);
    for (size_t i = 0; i < work->count; i++)
        kl__pg_add_int(args, KL_PG_INT4, work->outcomes[i].settled->outcome);
    kl__pg_array(args, KL_PG_INT4, work->count);
    for (size_t i = 0; i < work->count; i++)
        kl__pg_add_int(args, KL_PG_INT4, work->outcomes[i].settled->attempts);
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* What only some outcomes have. Where none does, the arrays are empty, which gives NULLs. */
static void add_left(kl__pg_args *args, const struct work *work, int64_t keep_ms_max)
{
    size_t count = work->kept > 0 || work->retries ? work->count : 0;
    kl__pg_array(args, KL_PG_INT8, count);
    for (size_t i = 0; i < count; i++)
        kl__pg_add_int(args, KL_PG_INT8, work->outcomes[i].settled->due_ms);
    kl__pg_array(args, KL_PG_INT8, count);
    for (size_t i = 0; i < count; i++)
        kl__pg_add_int(args, KL_PG_INT8, least(work->outcomes[i].settled->keep_ms, keep_ms_max));
    kl__pg_array(args, KL_PG_BYTEA, count);
    for (size_t i = 0; i < count; i++) {
        const kl_settled *settled = work->outcomes[i].settled;
        kl__pg_add_bytes_or_null(args, settled->keep_ms > 0 ? settled->error : (kl_bytes){NULL, 0});
    }
    kl__pg_array(args, KL_PG_BYTEA, count);
    for (size_t i = 0; i < count; i++) {
        const kl_settled *settled = work->outcomes[i].settled;
        kl__pg_add_bytes_or_null(args, settled->keep_ms > 0 ? settled->result : (kl_bytes){NULL, 0});
    }
}

/* --- Settle, every task compared --- */

static kl_rc ask_compared(kl__pg *pg, const struct claim *claims, size_t count, struct work *work, PGresult **ret_rows)
{
    kl__pg_args args = {0};
    set_rounds(work);
    add_claims(&args, claims, count);
    add_tasks(&args, work);
    add_left(&args, work, pg->opts.history_ms_max);
    kl__pg_int(&args, KL_PG_INT4, work->last_round);
    kl_rc rc = kl__pg_ask(
        pg, &(kl__pg_call){"SELECT $S.settle($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14)", &args, true}, ret_rows);
    kl__pg_args_free(&args);
    return rc;
}

/* --- Settle, of tasks that are known --- */

static uint32_t segment_of(const struct outcome *outcome) { return outcome->settled->position >> 6 & 3; }

static int by_segment(const void *a, const void *b)
{
    const struct outcome *x = a, *y = b;
    if (x->at != y->at)
        return x->at < y->at ? -1 : 1;
    if (segment_of(x) != segment_of(y))
        return segment_of(x) < segment_of(y) ? -1 : 1;
    return (x->settled->position > y->settled->position) - (x->settled->position < y->settled->position);
}

/* Where the run of outcomes of one batch and segment ends that begins at `first`. */
static size_t end_of_run(const struct work *work, size_t first)
{
    const struct outcome *outcomes = work->outcomes;
    size_t end = first + 1;
    while (end < work->count && outcomes[end].at == outcomes[first].at &&
           segment_of(&outcomes[end]) == segment_of(&outcomes[first]))
        end++;
    return end;
}

static void add_runs(kl__pg_args *args, const struct work *work)
{
    size_t runs = 0;
    for (size_t i = 0; i < work->count; i = end_of_run(work, i))
        runs++;
    kl__pg_array(args, KL_PG_INT4, runs);
    for (size_t i = 0; i < work->count; i = end_of_run(work, i))
        kl__pg_add_int(args, KL_PG_INT4, work->outcomes[i].at);
    kl__pg_array(args, KL_PG_INT2, runs);
    for (size_t i = 0; i < work->count; i = end_of_run(work, i))
        kl__pg_add_int(args, KL_PG_INT2, segment_of(&work->outcomes[i]));
    kl__pg_array(args, KL_PG_INT4, runs);
    for (size_t i = 0; i < work->count; i = end_of_run(work, i))
        kl__pg_add_int(args, KL_PG_INT4, (int64_t)i + 1);
    kl__pg_array(args, KL_PG_INT4, runs);
    for (size_t i = 0; i < work->count; i = end_of_run(work, i))
        kl__pg_add_int(args, KL_PG_INT4, (int64_t)(end_of_run(work, i) - i));
    kl__pg_array(args, KL_PG_INT8, work->count);
    for (size_t i = 0; i < work->count; i++)
        kl__pg_add_int(args, KL_PG_INT8, (int64_t)work->outcomes[i].settled->position);
}

/* States of finished tasks as the schema numbers them. */
static int state_of(kl_outcome outcome) { return outcome == KL_DONE ? 2 : outcome == KL_DEAD ? 3 : 4; }

static void add_kept(kl__pg_args *args, const struct work *work, int64_t keep_ms_max)
{
    const struct outcome *outcomes = work->outcomes, *end = outcomes + work->count, *each;
#define EACH_KEPT                                                                                                      \
    for (each = outcomes; each < end; each++)                                                                          \
        if (is_kept(each->settled))
    kl__pg_array(args, KL_PG_INT4, work->kept);
    EACH_KEPT kl__pg_add_int(args, KL_PG_INT4, each->at);
    kl__pg_array(args, KL_PG_INT8, work->kept);
    EACH_KEPT kl__pg_add_int(args, KL_PG_INT8, (int64_t)each->settled->position);
    kl__pg_array(args, KL_PG_INT2, work->kept);
    EACH_KEPT kl__pg_add_int(args, KL_PG_INT2, state_of(each->settled->outcome));
    kl__pg_array(args, KL_PG_INT4, work->kept);
    EACH_KEPT kl__pg_add_int(args, KL_PG_INT4, each->settled->attempts);
    kl__pg_array(args, KL_PG_INT8, work->kept);
    EACH_KEPT kl__pg_add_int(args, KL_PG_INT8, least(each->settled->keep_ms, keep_ms_max));
    kl__pg_array(args, KL_PG_BYTEA, work->kept);
    EACH_KEPT kl__pg_add_bytes_or_null(args, each->settled->error);
    kl__pg_array(args, KL_PG_BYTEA, work->kept);
    EACH_KEPT kl__pg_add_bytes_or_null(args, each->settled->result);
#undef EACH_KEPT
}

/* *ret_rows stays NULL where it was not done, or nobody knows: then everything is to be compared. */
static kl_rc ask_sure(kl__pg *pg, const struct claim *claims, size_t count, struct work *work, PGresult **ret_rows)
{
    kl__pg_args args = {0};
    PGresult *rows = NULL;
    qsort(work->outcomes, work->count, sizeof *work->outcomes, by_segment);
    add_claims(&args, claims, count);
    add_runs(&args, work);
    add_kept(&args, work, pg->opts.history_ms_max);
    kl_rc rc = kl__pg_ask(
        pg, &(kl__pg_call){"SELECT $S.settle_sure($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14,$15)", &args, false},
        &rows);
    kl__pg_args_free(&args);
    if (rc == KL_OK && PQgetisnull(rows, 0, 0))
        PQclear(rows);
    else if (rc == KL_OK)
        *ret_rows = rows;
    return rc == KL_EBUSY ? KL_OK : rc;
}

struct settling {
    const kl_settle *batches;
    bool sure; /* every task was shown by a scan, and has not been settled since */
};

static kl_rc ask_settle(kl__pg *pg, const struct claim *claims, size_t count, void *ctx, PGresult **ret_rows)
{
    const struct settling *settling = ctx;
    struct work work = {0};
    PGresult *rows = NULL;
    kl_rc rc = make_work(settling->batches, claims, count, &work);
    if (rc == KL_OK && settling->sure && !work.retries && work.count > 0)
        rc = ask_sure(pg, claims, count, &work, &rows);
    if (rc == KL_OK && !rows)
        rc = ask_compared(pg, claims, count, &work, &rows);
    kl__free(work.outcomes);
    if (rc == KL_OK)
        *ret_rows = rows;
    return rc;
}

kl_rc kl__pg_settle(void *self, kl_settle *batches, size_t count)
{
    kl__pg *pg = self;
    struct settling settling = {batches, kl__pg_seen_take(pg->seen, batches, count)};
    struct claim *claims = kl__alloc_zeroed(count, sizeof *claims);
    kl_rc rc = claims ? KL_OK : kl__fail_memory();
    atomic_store_explicit(&pg->settles, true, memory_order_relaxed);
    for (size_t i = 0; i < count; i++) {
        batches[i].rc = rc;
        if (claims)
            claims[i] = (struct claim){batches[i].place, (uint32_t)i, batches[i].epoch, 0, false, &batches[i].rc};
    }
    if (rc == KL_OK)
        rc = make_claims(pg, claims, count, ask_settle, &settling, "batch");
    kl__free(claims);
    return rc;
}

/* --- Fences --- */

static kl_rc ask_fence(kl__pg *pg, const struct claim *claims, size_t count, void *ctx, PGresult **ret_rows)
{
    kl__pg_args args = {0};
    (void)ctx;
    add_claims(&args, claims, count);
    kl__pg_array(&args, KL_PG_BOOL, count);
    for (size_t i = 0; i < count; i++)
        kl__pg_add_int(&args, KL_PG_BOOL, claims[i].seals);
    kl_rc rc = kl__pg_ask(pg, &(kl__pg_call){"SELECT $S.fence($1,$2,$3,$4)", &args, true}, ret_rows);
    kl__pg_args_free(&args);
    return rc;
}

kl_rc kl__pg_fence(void *self, kl_fence *fences, size_t count)
{
    struct claim *claims = kl__alloc_zeroed(count, sizeof *claims);
    kl_rc rc = claims ? KL_OK : kl__fail_memory();
    for (size_t i = 0; i < count; i++) {
        fences[i].rc = rc;
        if (claims)
            claims[i] = (struct claim){fences[i].place, (uint32_t)i, fences[i].epoch, 0, fences[i].seal, &fences[i].rc};
    }
    if (rc == KL_OK)
        rc = make_claims(self, claims, count, ask_fence, NULL, "fence");
    kl__free(claims);
    return rc;
}
