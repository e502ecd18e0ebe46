/* owners_permits.c - how many tasks of a queue with a limit each worker may run.
 *
 * From: owners.c.  To: nothing; it only reads the record.
 *
 * Water is poured over the workers: each gets in proportion to the groups that it owns, and no more than it wants while
 * another wants more. What does not divide goes one by one to those that still want, beginning with another of them in
 * each turn: so with fewer permits than workers each has one from time to time. When all have what they want, the rest
 * is spread likewise for what may come.
 *
 * The sum of what this says to all workers in one turn is `max` at most. That is for speed only: what keeps the limit
 * is that a worker is granted no more than what the others do not hold (owners.c). */
#include "work/owners_inside.h"

struct pool {
    const kl__owners_record *record;
    uint64_t share[KL_OWNERS_WORKERS_MAX + 1];
    bool full[KL_OWNERS_WORKERS_MAX + 1]; /* gets no more */
    uint64_t rest;
};

/* A worker that owns nothing yet has tasks that end, or none. */
static uint64_t weight(const kl__record_worker *worker) { return worker->held ? worker->held : worker->wants > 0; }

static uint64_t open_weight(const struct pool *pool)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < pool->record->worker_count; i++)
        sum += pool->full[i] ? 0 : weight(&pool->record->workers[i]);
    return sum;
}

static uint64_t part(uint64_t rest, uint64_t weight_of_one, uint64_t weight_of_all)
{
    return (uint64_t)((unsigned __int128)rest * weight_of_one / weight_of_all);
}

/* Fills those who want no more than their part, until there are none; true: somebody still wants. */
static bool fill_modest(struct pool *pool)
{
    for (bool again = true; again;) {
        uint64_t all = open_weight(pool), rest = pool->rest;
        again = false;
        if (all == 0)
            return false;
        for (size_t i = 0; i < pool->record->worker_count; i++) {
            const kl__record_worker *worker = &pool->record->workers[i];
            if (pool->full[i] || worker->wants > part(rest, weight(worker), all))
                continue;
            pool->share[i] = worker->wants;
            pool->rest -= worker->wants;
            pool->full[i] = again = true;
        }
    }
    return true;
}

/* Gives each that is not full its part of the rest, and what does not divide one by one, from the turn's first on. */
static void divide(struct pool *pool, uint64_t turn)
{
    uint64_t all = open_weight(pool), rest = pool->rest;
    size_t count = pool->record->worker_count;
    for (size_t i = 0; all > 0 && i < count; i++) {
        uint64_t more = pool->full[i] ? 0 : part(rest, weight(&pool->record->workers[i]), all);
        pool->share[i] += more;
        pool->rest -= more;
    }
    size_t open = 0, at = 0;
    for (size_t i = 0; i < count; i++)
        open += !pool->full[i] && weight(&pool->record->workers[i]) > 0;
    for (size_t i = 0; open > 0 && i < count; i++) {
        if (pool->full[i] || weight(&pool->record->workers[i]) == 0)
            continue;
        pool->share[i] += (at + open - turn % open) % open < pool->rest;
        at++;
    }
}

uint64_t kl__owners_permits(const kl__owners_record *record, uint32_t me, uint64_t max, uint64_t turn)
{
    struct pool pool = {.record = record, .rest = max};
    if (!fill_modest(&pool))
        memset(pool.full, 0, sizeof pool.full);
    divide(&pool, turn);
    return pool.share[me];
}
