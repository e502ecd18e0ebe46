/* claims.c - open, drain and close the claims of a queue; and their thread.
 *
 * From: worker.c (a worker without threads that run tasks).  To: claims_give.c, claims_say.c.
 *
 * The thread does what nobody else comes along for: it ends leases and asks whose time is over, serves asks for which
 * something became ready after they had come, reads where that takes long, and tells of outcomes while the settler is
 * at the next ones. It waits in the worker's `ready`, as a thread that has nothing to run. */
#include <stdio.h>
#include <string.h>

#include "base/wait.h"
#include "work/claims_inside.h"

enum {
    RUNNING_MAX = 100000,
    RUNNING_MOST = 1 << 24,
    KIND_MS = 10000,
    IDLE_MS = 1000,
    HASTY_MS = 5,
    LEASE_WAIT_MS = 5,
    END_MS = 5000
};

/* --- The thread --- */

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* As an idle thread of a worker does: what is left to be read is read, or the scout is asked to. */
static bool read_more(kl__claims *claims)
{
    kl__pump *pump = claims->pump;
    uint64_t ready = 0;
    if (claims->serving)
        return false;
    if ((pump->more || pump->side_wanted) && kl__pump_wants_look(pump) && kl__pump_look(pump, &ready) == KL_OK && ready)
        return true;
    claims->worker->look_now |= pump->more || pump->side_wanted;
    pthread_cond_signal(&claims->worker->scout);
    return false;
}

/* When there is something to do for asks, if nobody says so before. */
static int64_t next_for_asks(kl__claims *claims, int64_t now_ns)
{
    kl__pump *pump = claims->pump;
    int64_t due_ms = kl__pump_next_due(pump), until_ns = claims->ask_until_ns;
    if (due_ms != KL_NEVER)
        until_ns = least(until_ns, kl__claims_until_ns(now_ns, due_ms > pump->now_ms ? due_ms - pump->now_ms : 1));
    if (claims->hasty)
        until_ns = least(until_ns, kl__claims_until_ns(now_ns, HASTY_MS));
    if (kl__pump_ready(pump)) /* and nothing was given out: the lease is over, somebody serves, or the store failed */
        until_ns = least(until_ns, kl__claims_until_ns(now_ns, LEASE_WAIT_MS));
    return until_ns;
}

static void wait(kl__claims *claims)
{
    kl_worker *worker = claims->worker;
    bool asked = claims->first && !claims->ending;
    if (asked && !kl__pump_ready(claims->pump) && read_more(claims))
        return;
    int64_t now_ns = kl__monotonic_ns(), until_ns = kl__claims_until_ns(now_ns, least(IDLE_MS, claims->kind_ms));
    if (claims->running)
        until_ns = least(until_ns, claims->heap[0]->until_ns);
    asked = claims->first && !claims->ending;
    if (asked)
        until_ns = least(until_ns, next_for_asks(claims, now_ns));
    if (claims->closed || claims->answered)
        return;
    worker->idle += asked;
    claims->wait_until_ns = until_ns;
    kl__cond_wait(&worker->ready, &worker->mutex, until_ns);
    claims->wait_until_ns = 0;
    worker->idle -= asked;
}

static void *run(void *context)
{
    kl__claims *claims = context;
    pthread_mutex_lock(&claims->worker->mutex);
    while (!claims->closed) {
        int64_t now_ns = kl__monotonic_ns();
        kl__claims_expire(claims, now_ns);
        kl__claims_sweep(claims, now_ns);
        kl__claims_deliver(claims);
        kl__claims_look(claims);
        bool served = kl__claims_serve(claims);
        kl__claims_time_out(claims, now_ns);
        if (!served)
            wait(claims);
    }
    pthread_mutex_unlock(&claims->worker->mutex);
    return NULL;
}

/* --- Opening --- */

static kl_rc check(const kl__claims_opts *opts)
{
    const char *server = opts->server ? opts->server : "";
    size_t length = strlen(server);
    if (!opts->queue)
        return kl__fail(KL_EINVAL, "the queue is NULL; open it first");
    if (length > 22 || strspn(server, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz") != length)
        return kl__fail(KL_EINVAL, "the server's name '%.40s' is for tokens; give it up to 22 letters and digits",
                        server);
    if (opts->running_max < 0 || opts->running_max > RUNNING_MOST)
        return kl__fail(KL_EINVAL, "running_max is %lld; give it 1 to %d", (long long)opts->running_max, RUNNING_MOST);
    return KL_OK;
}

static void ended(void *context, uint32_t partition, kl_outcome outcome)
{
    const kl__claims *claims = context;
    claims->ended(claims->told_ctx, partition, outcome);
}

static kl_rc start(kl__claims *claims, const kl__claims_opts *opts)
{
    kl__giver giver = {kl__claims_wanted, kl__claims_settled, opts->ended ? ended : NULL, kl__claims_after, claims};
    kl_worker_opts worker = {.size = sizeof worker,
                             .name = opts->name,
                             .window_max = opts->window_max,
                             .log = opts->log,
                             .log_ctx = opts->log_ctx};
    kl_rc rc = kl__token_refill(claims);
    if (rc == KL_OK)
        rc = kl__worker_start_giving(opts->queue, &worker, (int64_t)claims->running_max, &giver, &claims->worker);
    if (rc != KL_OK)
        return rc;
    pthread_mutex_lock(&claims->worker->mutex);
    claims->pump = claims->worker->served[0].pump;
    int error = pthread_create(&claims->thread, NULL, run, claims);
    claims->started = error == 0;
    pthread_mutex_unlock(&claims->worker->mutex);
    if (error != 0)
        return kl__fail(KL_ESYSTEM, "a thread could not be started (%s)", strerror(error));
    return KL_OK;
}

kl_rc kl__claims_open(const kl__claims_opts *opts, kl__claims **ret_claims)
{
    kl_rc rc = check(opts);
    if (rc != KL_OK)
        return rc;
    kl__claims *claims = kl__alloc_zeroed(1, sizeof *claims);
    if (!claims)
        return kl__fail_memory();
    snprintf(claims->server, sizeof claims->server, "%s", opts->server ? opts->server : "");
    claims->ended = opts->ended;
    claims->lapsed = opts->lapsed;
    claims->told_ctx = opts->told_ctx;
    claims->running_max = opts->running_max ? (uint64_t)opts->running_max : RUNNING_MAX;
    claims->kind_ms = opts->kind_ms > 0 ? opts->kind_ms : KIND_MS;
    claims->far = kl__store_is_far(opts->queue->store);
    claims->ask_until_ns = KL_NEVER;
    claims->began_ns = claims->busy_ns = kl__monotonic_ns();
    rc = start(claims, opts);
    if (rc != KL_OK) {
        kl__claims_close(claims);
        return rc;
    }
    *ret_claims = claims;
    return KL_OK;
}

/* --- The end --- */

/* Gives out nothing more; whoever is just serving gives back what it loads. */
static void begin_end(kl__claims *claims, kl_rc rc)
{
    kl_worker *worker = claims->worker;
    claims->ending = true;
    kl__worker_stop(worker);
    while (claims->serving)
        kl__cond_wait(&worker->changed, &worker->mutex, kl__deadline_ns(IDLE_MS));
    kl__claims_answer_all(claims, rc);
}

void kl__claims_stop(kl__claims *claims)
{
    pthread_mutex_lock(&claims->worker->mutex);
    begin_end(claims, KL_OK);
    pthread_mutex_unlock(&claims->worker->mutex);
}

void kl__claims_release(kl__claims *claims)
{
    pthread_mutex_lock(&claims->worker->mutex);
    begin_end(claims, KL_OK);
    kl__claims_release_all(claims);
    pthread_mutex_unlock(&claims->worker->mutex);
}

kl_rc kl__claims_await(kl__claims *claims, int64_t wait_ms) { return kl_worker_wait(claims->worker, wait_ms); }

kl_rc kl__claims_drain(kl__claims *claims, int64_t wait_ms)
{
    kl_worker *worker = claims->worker;
    int64_t until_ns = kl__deadline_ns(wait_ms < 0 ? 0 : wait_ms);
    pthread_mutex_lock(&worker->mutex);
    begin_end(claims, KL_OK);
    while (claims->running && kl__monotonic_ns() < until_ns)
        kl__cond_wait(&worker->changed, &worker->mutex, until_ns);
    kl__claims_release_all(claims);
    pthread_mutex_unlock(&worker->mutex);
    return kl__claims_await(claims, END_MS);
}

/* Says of which nobody knows whether their outcomes became durable. */
static void answer_closed(kl__claims *claims)
{
    while (claims->waiting) {
        kl__claim_says *says = claims->waiting;
        claims->waiting = says->next;
        says->answer(says, kl__fail(KL_ECLOSED, "the queue's claims were closed before it was durable"));
    }
}

static void stop(kl__claims *claims)
{
    kl_worker *worker = claims->worker;
    pthread_mutex_lock(&worker->mutex);
    begin_end(claims, KL_ECLOSED);
    kl__claims_release_all(claims);
    claims->closed = true;
    pthread_cond_broadcast(&worker->ready);
    pthread_mutex_unlock(&worker->mutex);
    if (claims->started)
        pthread_join(claims->thread, NULL);
}

void kl__claims_close(kl__claims *claims)
{
    if (!claims)
        return;
    if (claims->worker) {
        stop(claims);
        pthread_mutex_lock(&claims->worker->mutex);
        kl__claims_deliver(claims);
        pthread_mutex_unlock(&claims->worker->mutex);
        kl_worker_close(claims->worker);
    }
    answer_closed(claims);
    for (size_t i = 0; i < claims->block_count; i++)
        kl__free(claims->blocks[i]);
    kl__free(claims->blocks);
    kl__free(claims->heap);
    kl__claims_free_names(claims);
    kl_arena_free(&claims->batch.arena);
    kl__free(claims);
}

/* --- What it tells --- */

kl__claims_counts kl__claims_counted(kl__claims *claims)
{
    kl_worker *worker = claims->worker;
    pthread_mutex_lock(&worker->mutex);
    bool busy = claims->running || claims->first;
    kl__claims_counts counts = {.running = claims->running,
                                .asks = claims->ask_count,
                                .given = claims->given,
                                .expired = claims->expired,
                                .stale = claims->stale,
                                .shards = kl__pump_shards(claims->pump),
                                .idle_ms = busy ? 0 : (kl__monotonic_ns() - claims->busy_ns) / 1000000,
                                .pump = kl__pump_counted(claims->pump)};
    pthread_mutex_unlock(&worker->mutex);
    return counts;
}

void kl__claims_blocked_keys(kl__claims *claims, void (*visit)(void *ctx, uint32_t partition, uint64_t keys), void *ctx)
{
    pthread_mutex_lock(&claims->worker->mutex);
    kl__pump_blocked_keys(claims->pump, visit, ctx);
    pthread_mutex_unlock(&claims->worker->mutex);
}
