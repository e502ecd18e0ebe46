/* settle.c - how tasks end: outcomes under a shard's epoch, and fences.
 *
 * From: store.c.  To: sql_settle.c.
 *
 * All batches of a call are one transaction, up to KL_PG_SHARDS_MAX of them; more are several, one after the other,
 * which the contract allows: each batch is whole for itself. */
#include <stdlib.h>

#include "store/postgres/postgres.h"

/* One item of a call, in order of places. */
struct sorted {
    kl_place place;
    uint32_t index;
};

static int by_place(const void *a, const void *b)
{
    const struct sorted *x = a, *y = b;
    int order = kl__pg_place_compare(x->place, y->place);
    return order ? order : (x->index > y->index) - (x->index < y->index);
}

static void add_places(kl__pg_args *args, const struct sorted *sorted, size_t count)
{
    kl__pg_array(args, KL_PG_INT4, count);
    for (size_t i = 0; i < count; i++)
        kl__pg_add_int(args, KL_PG_INT4, sorted[i].place.partition);
    kl__pg_array(args, KL_PG_INT4, count);
    for (size_t i = 0; i < count; i++)
        kl__pg_add_int(args, KL_PG_INT4, sorted[i].place.shard);
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
    bool leaves; /* something beside the positions: retries, and what is kept */
};

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

static kl_rc make_work(const kl_settle *batches, const struct sorted *sorted, size_t count, struct work *work)
{
    size_t tasks = 0;
    for (size_t i = 0; i < count; i++)
        tasks += batches[sorted[i].index].count;
    work->outcomes = kl__alloc_zeroed(tasks + 1, sizeof *work->outcomes);
    if (!work->outcomes)
        return kl__fail_memory();
    for (size_t i = 0; i < count; i++) {
        const kl_settle *batch = &batches[sorted[i].index];
        for (size_t j = 0; j < batch->count; j++, work->count++) {
            work->outcomes[work->count] =
                (struct outcome){&batch->tasks[j], batch->place, (uint32_t)i + 1, (uint32_t)work->count, 0};
            work->leaves |= batch->tasks[j].outcome == KL_RETRY || batch->tasks[j].keep_ms > 0;
        }
    }
    set_rounds(work);
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

/* What only some outcomes have. Where none does, the arrays are empty, which gives NULLs. */
static void add_left(kl__pg_args *args, const struct work *work, int64_t keep_ms_max)
{
    size_t count = work->leaves ? work->count : 0;
    kl__pg_array(args, KL_PG_INT8, count);
    for (size_t i = 0; i < count; i++)
        kl__pg_add_int(args, KL_PG_INT8, work->outcomes[i].settled->due_ms);
    kl__pg_array(args, KL_PG_INT8, count);
    for (size_t i = 0; i < count; i++) {
        int64_t keep_ms = work->outcomes[i].settled->keep_ms;
        kl__pg_add_int(args, KL_PG_INT8, keep_ms < keep_ms_max ? keep_ms : keep_ms_max);
    }
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

static kl_rc ask_settle(kl__pg *pg, const kl_settle *batches, const struct sorted *sorted, size_t count,
                        const struct work *work, PGresult **ret_rows)
{
    kl__pg_args args = {0};
    add_places(&args, sorted, count);
    kl__pg_array(&args, KL_PG_INT8, count);
    for (size_t i = 0; i < count; i++)
        kl__pg_add_int(&args, KL_PG_INT8, (int64_t)batches[sorted[i].index].epoch);
    add_tasks(&args, work);
    add_left(&args, work, pg->opts.history_ms_max);
    kl__pg_int(&args, KL_PG_INT4, work->last_round);
    kl__pg_int(&args, KL_PG_BOOL, work->leaves);
    kl_rc rc = kl__pg_ask(
        pg, &(kl__pg_call){"SELECT $S.settle($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14,$15)", &args, true},
        ret_rows);
    kl__pg_args_free(&args);
    return rc;
}

/* What a stale batch was compared with, for the sentence. */
static kl_rc settle_part(kl__pg *pg, kl_settle *batches, const struct sorted *sorted, size_t count, uint64_t *fenced)
{
    struct work work = {0};
    PGresult *rows = NULL;
    kl_rc rc = make_work(batches, sorted, count, &work);
    if (rc == KL_OK)
        rc = ask_settle(pg, batches, sorted, count, &work, &rows);
    for (size_t i = 0; i < count; i++) {
        kl_settle *batch = &batches[sorted[i].index];
        if (rc == KL_OK)
            fenced[sorted[i].index] = (uint64_t)kl__pg_get_element_int(rows, 0, 0, i);
        batch->rc = rc != KL_OK ? rc : batch->epoch >= fenced[sorted[i].index] ? KL_OK : KL_ESTALE;
    }
    PQclear(rows);
    kl__free(work.outcomes);
    return rc;
}

static kl_rc settle_sorted(kl__pg *pg, kl_settle *batches, const struct sorted *sorted, size_t count, uint64_t *fenced)
{
    kl_rc rc = KL_OK;
    for (size_t at = 0, part; at < count; at += part) {
        part = count - at < KL_PG_SHARDS_MAX ? count - at : KL_PG_SHARDS_MAX;
        if (rc == KL_OK)
            rc = settle_part(pg, batches, sorted + at, part, fenced);
        else
            for (size_t i = at; i < at + part; i++)
                batches[sorted[i].index].rc = rc;
    }
    for (size_t i = 0; rc == KL_OK && i < count; i++)
        if (batches[i].rc != KL_OK)
            rc = kl__fail(KL_ESTALE,
                          "batch %zu: shard %u of partition %u is fenced at epoch %llu, above %llu; another owner has "
                          "taken it over, so drop what was taken from it",
                          i, batches[i].place.shard, batches[i].place.partition, (unsigned long long)fenced[i],
                          (unsigned long long)batches[i].epoch);
    return rc;
}

kl_rc kl__pg_settle(void *self, kl_settle *batches, size_t count)
{
    struct sorted *sorted = kl__alloc_zeroed(count, sizeof *sorted);
    uint64_t *fenced = kl__alloc_zeroed(count, sizeof *fenced);
    kl_rc rc = KL_OK;
    if (sorted && fenced) {
        for (size_t i = 0; i < count; i++)
            sorted[i] = (struct sorted){batches[i].place, (uint32_t)i};
        qsort(sorted, count, sizeof *sorted, by_place);
        rc = settle_sorted(self, batches, sorted, count, fenced);
    } else {
        rc = kl__fail_memory();
        for (size_t i = 0; i < count; i++)
            batches[i].rc = rc;
    }
    kl__free(sorted);
    kl__free(fenced);
    return rc;
}

/* --- Fences --- */

static kl_rc fence_part(kl__pg *pg, kl_fence *fences, const struct sorted *sorted, size_t count, uint64_t *fenced)
{
    kl__pg_args args = {0};
    PGresult *rows = NULL;
    add_places(&args, sorted, count);
    kl__pg_array(&args, KL_PG_INT8, count);
    for (size_t i = 0; i < count; i++)
        kl__pg_add_int(&args, KL_PG_INT8, (int64_t)fences[sorted[i].index].epoch);
    kl__pg_array(&args, KL_PG_BOOL, count);
    for (size_t i = 0; i < count; i++)
        kl__pg_add_int(&args, KL_PG_BOOL, fences[sorted[i].index].seal);
    kl_rc rc = kl__pg_ask(pg, &(kl__pg_call){"SELECT $S.fence($1,$2,$3,$4)", &args, true}, &rows);
    for (size_t i = 0; i < count; i++) {
        kl_fence *fence = &fences[sorted[i].index];
        if (rc == KL_OK)
            fenced[sorted[i].index] = (uint64_t)kl__pg_get_element_int(rows, 0, 0, i);
        fence->rc = rc != KL_OK ? rc : fence->seal || fence->epoch >= fenced[sorted[i].index] ? KL_OK : KL_ESTALE;
    }
    PQclear(rows);
    kl__pg_args_free(&args);
    return rc;
}

static kl_rc fence_sorted(kl__pg *pg, kl_fence *fences, const struct sorted *sorted, size_t count, uint64_t *fenced)
{
    kl_rc rc = KL_OK;
    for (size_t at = 0, part; at < count; at += part) {
        part = count - at < KL_PG_SHARDS_MAX ? count - at : KL_PG_SHARDS_MAX;
        if (rc == KL_OK)
            rc = fence_part(pg, fences, sorted + at, part, fenced);
        else
            for (size_t i = at; i < at + part; i++)
                fences[sorted[i].index].rc = rc;
    }
    for (size_t i = 0; rc == KL_OK && i < count; i++)
        if (fences[i].rc != KL_OK)
            rc = kl__fail(KL_ESTALE,
                          "fence %zu: shard %u of partition %u is fenced at epoch %llu already, above %llu; another "
                          "owner has taken it over",
                          i, fences[i].place.shard, fences[i].place.partition, (unsigned long long)fenced[i],
                          (unsigned long long)fences[i].epoch);
    return rc;
}

kl_rc kl__pg_fence(void *self, kl_fence *fences, size_t count)
{
    struct sorted *sorted = kl__alloc_zeroed(count, sizeof *sorted);
    uint64_t *fenced = kl__alloc_zeroed(count, sizeof *fenced);
    kl_rc rc = KL_OK;
    if (sorted && fenced) {
        for (size_t i = 0; i < count; i++)
            sorted[i] = (struct sorted){fences[i].place, (uint32_t)i};
        qsort(sorted, count, sizeof *sorted, by_place);
        rc = fence_sorted(self, fences, sorted, count, fenced);
    } else {
        rc = kl__fail_memory();
        for (size_t i = 0; i < count; i++)
            fences[i].rc = rc;
    }
    kl__free(sorted);
    kl__free(fenced);
    return rc;
}
