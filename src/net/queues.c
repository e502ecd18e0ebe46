/* queues.c - queues that are open, by name, and their claims. See N1 and N2 in server.h. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/wait.h"
#include "net/server.h"
#include "queue/inside.h"

/* CLAIMS_REST_MS: claims that nobody uses for so long are ended. */
enum { CLAIMS_REST_MS = 20000, DRAIN_STEP_NS = 20000000 };

static kl__open_queue **bucket_of(kl__api *api, const char *name)
{
    return &api->queues[XXH64(name, strlen(name), 0) % KL_QUEUE_BUCKETS];
}

static kl__open_queue *find(kl__api *api, const char *name)
{
    kl__open_queue *open = *bucket_of(api, name);
    while (open && strcmp(open->name, name) != 0)
        open = open->next;
    return open;
}

kl__open_queue *kl__queues_known(kl__api *api, const char *name)
{
    pthread_mutex_lock(&api->queues_mutex);
    kl__open_queue *open = find(api, name);
    if (open)
        open->users++;
    pthread_mutex_unlock(&api->queues_mutex);
    return open;
}

/* Two may open the same at once: the second one's is closed again. */
static kl__open_queue *enter(kl__api *api, kl__open_queue *fresh)
{
    pthread_mutex_lock(&api->queues_mutex);
    kl__open_queue *open = find(api, fresh->name), **bucket = bucket_of(api, fresh->name);
    if (!open) {
        open = fresh;
        open->users = 1; /* the table's */
        open->next = *bucket;
        *bucket = open;
    }
    open->users++;
    pthread_mutex_unlock(&api->queues_mutex);
    if (open != fresh) {
        kl_queue_close(fresh->queue);
        kl__free(fresh);
    }
    return open;
}

kl_rc kl__queues_open(kl__api *api, const char *name, bool make, kl__open_queue **ret_open)
{
    kl__open_queue *open = kl__queues_known(api, name);
    if (open) {
        *ret_open = open;
        return KL_OK;
    }
    open = kl__alloc_zeroed(1, sizeof *open);
    if (!open)
        return kl__fail_memory();
    kl_rc rc =
        make ? kl_queue_open(api->store, name, NULL, &open->queue) : kl_queue_find(api->store, name, &open->queue);
    if (rc != KL_OK) {
        kl__free(open);
        return rc;
    }
    open->api = api;
    open->metrics = kl__metrics_queue(api->metrics, name);
    snprintf(open->name, sizeof open->name, "%s", name);
    *ret_open = enter(api, open);
    return KL_OK;
}

bool kl__queues_apart(const kl__open_queue *open)
{
    bool apart = false;
    kl__descriptor *descriptor = kl__queue_descriptor(open->queue);
    for (size_t i = 0; i < descriptor->layout_count; i++)
        apart |= descriptor->layouts[i].urls && !descriptor->layouts[i].drained;
    kl__descriptor_release(descriptor);
    return apart;
}

/* Nobody uses it any more. Ending its claims may block, and whoever left last may be a thread of theirs: the keeper
 * ends it, or close. */
void kl__queues_leave(kl__open_queue *open)
{
    if (!open)
        return;
    kl__api *api = open->api;
    pthread_mutex_lock(&api->queues_mutex);
    if (--open->users == 0) {
        open->next = api->left_queues;
        api->left_queues = open;
    }
    pthread_mutex_unlock(&api->queues_mutex);
}

static void end_left(kl__api *api)
{
    pthread_mutex_lock(&api->queues_mutex);
    kl__open_queue *left = api->left_queues;
    api->left_queues = NULL;
    pthread_mutex_unlock(&api->queues_mutex);
    while (left) {
        kl__open_queue *next = left->next;
        kl__claims_close(left->claims);
        kl_queue_close(left->queue);
        kl__free(left);
        left = next;
    }
}

void kl__queues_hold(kl__open_queue *open)
{
    pthread_mutex_lock(&open->api->queues_mutex);
    open->users++;
    open->claims_users++;
    pthread_mutex_unlock(&open->api->queues_mutex);
}

void kl__queues_let_go(kl__open_queue *open)
{
    kl__queues_claims_leave(open);
    kl__queues_leave(open);
}

void kl__queues_forget(kl__open_queue *open)
{
    kl__api *api = open->api;
    pthread_mutex_lock(&api->queues_mutex);
    bool listed = !open->removed;
    kl__open_queue **at = bucket_of(api, open->name);
    while (listed && *at != open)
        at = &(*at)->next;
    if (listed)
        *at = open->next;
    open->removed = true;
    pthread_mutex_unlock(&api->queues_mutex);
    if (listed)
        kl__queues_leave(open);
}

/* ---- Claims ---- */

static kl_rc start(kl__open_queue *open, kl__claims **ret_claims)
{
    kl__api *api = open->api;
    kl__claims_opts opts = {.queue = open->queue, .name = api->worker_name, .server = api->name};
    opts.ended = kl__metrics_ended;
    opts.lapsed = kl__metrics_lapsed;
    opts.told_ctx = open->metrics;
    opts.log = api->opts.log;
    opts.log_ctx = api->opts.log_ctx;
    return kl__claims_open(&opts, ret_claims);
}

kl__claims *kl__queues_claims_known(kl__open_queue *open)
{
    pthread_mutex_lock(&open->api->queues_mutex);
    kl__claims *claims = open->claims;
    if (claims)
        open->claims_users++;
    pthread_mutex_unlock(&open->api->queues_mutex);
    return claims;
}

/* Queues start theirs independently of one another; of one queue one thread does, and the others are not kept
 * waiting. */
enum turn { TURN_THERE, TURN_STOPPING, TURN_PARKED, TURN_START };

static enum turn take_turn(kl__open_queue *open, kl__exchange *exchange, kl__handler_fn *again)
{
    kl__api *api = open->api;
    if (atomic_load(&api->stopping))
        return TURN_STOPPING;
    if (open->claims) {
        open->claims_users++;
        return TURN_THERE;
    }
    if (open->starting) {
        exchange->handler = again;
        exchange->next = open->waiting;
        open->waiting = exchange;
        return TURN_PARKED;
    }
    open->starting = true;
    api->starting++;
    return TURN_START;
}

/* With what came of it, NULL when that failed: those that waited go on, and try it themselves then. */
static void end_turn(kl__open_queue *open, kl__claims *claims)
{
    kl__api *api = open->api;
    pthread_mutex_lock(&api->queues_mutex);
    open->claims = claims;
    open->claims_users += claims != NULL;
    open->starting = false;
    kl__exchange *waiting = open->waiting;
    open->waiting = NULL;
    if (--api->starting == 0)
        pthread_cond_broadcast(&api->queues_changed);
    pthread_mutex_unlock(&api->queues_mutex);
    while (waiting) {
        kl__exchange *next = waiting->next;
        kl__pool_push(api->pool, waiting, waiting->handler);
        waiting = next;
    }
}

kl_rc kl__queues_claims(kl__open_queue *open, kl__exchange *exchange, kl__handler_fn *again, kl__claims **ret_claims)
{
    kl__api *api = open->api;
    kl__claims *claims = NULL;
    pthread_mutex_lock(&api->queues_mutex);
    enum turn turn = take_turn(open, exchange, again);
    if (turn == TURN_THERE)
        claims = open->claims;
    pthread_mutex_unlock(&api->queues_mutex);
    if (turn == TURN_STOPPING)
        return kl__fail(KL_ECLOSED, "the server is stopping; claim from another one");
    kl_rc rc = turn == TURN_START ? start(open, &claims) : KL_OK;
    if (turn == TURN_START)
        end_turn(open, rc == KL_OK ? claims : NULL);
    if (rc == KL_OK)
        *ret_claims = claims;
    return rc;
}

void kl__queues_claims_leave(kl__open_queue *open)
{
    pthread_mutex_lock(&open->api->queues_mutex);
    open->claims_users--;
    pthread_mutex_unlock(&open->api->queues_mutex);
}

static void end_claims(kl__api *api, kl__claims *claims, int64_t wait_ms)
{
    if (claims && kl__claims_drain(claims, wait_ms) != KL_OK)
        api->opts.log(api->opts.log_ctx, KL_LOG_WARN, kl_error_text());
    kl__claims_close(claims);
}

/* Takes away the claims of a queue of this bucket that nobody has used for a while; NULL: there are none. */
static kl__claims *take_idle(kl__api *api, size_t bucket)
{
    kl__claims *claims = NULL;
    pthread_mutex_lock(&api->queues_mutex);
    for (kl__open_queue *open = api->queues[bucket]; open && !claims; open = open->next) {
        if (!open->claims || open->claims_users > 0)
            continue;
        kl__claims_counts counts = kl__claims_counted(open->claims);
        if (counts.idle_ms < CLAIMS_REST_MS)
            continue;
        kl__metrics_leave(open->metrics, &counts);
        claims = open->claims;
        open->claims = NULL;
    }
    pthread_mutex_unlock(&api->queues_mutex);
    return claims;
}

void kl__queues_release(kl__open_queue *open)
{
    kl__api *api = open->api;
    pthread_mutex_lock(&api->queues_mutex);
    kl__claims_counts counts = {0};
    if (open->claims && open->claims_users == 0)
        counts = kl__claims_counted(open->claims);
    bool idle = open->claims && open->claims_users == 0 && counts.running == 0;
    kl__claims *claims = idle ? open->claims : NULL;
    if (idle)
        kl__metrics_leave(open->metrics, &counts);
    if (idle)
        open->claims = NULL;
    pthread_mutex_unlock(&api->queues_mutex);
    end_claims(api, claims, 5000);
}

void kl__queues_rest(kl__api *api)
{
    end_left(api);
    for (size_t i = 0; i < KL_QUEUE_BUCKETS; i++)
        end_claims(api, take_idle(api, i), 5000);
}

/* All that are open, each to be left. NULL: there are none, or no memory. */
static kl__open_queue **hold_all(kl__api *api, size_t *ret_count)
{
    size_t count = 0;
    pthread_mutex_lock(&api->queues_mutex);
    for (size_t i = 0; i < KL_QUEUE_BUCKETS; i++)
        for (kl__open_queue *open = api->queues[i]; open; open = open->next)
            count++;
    kl__open_queue **all = kl__alloc_zeroed(count + 1, sizeof(kl__open_queue *));
    for (size_t i = 0, at = 0; all && i < KL_QUEUE_BUCKETS; i++)
        for (kl__open_queue *open = api->queues[i]; open; open = open->next) {
            open->users++;
            all[at++] = open;
        }
    pthread_mutex_unlock(&api->queues_mutex);
    *ret_count = all ? count : 0;
    return all;
}

/* Tells all claims to give out nothing more; returns how many tasks are still claimed. */
static uint64_t stop_all(kl__open_queue **all, size_t count)
{
    uint64_t running = 0;
    for (size_t i = 0; i < count; i++) {
        kl__claims *claims = kl__queues_claims_known(all[i]);
        if (!claims)
            continue;
        kl__claims_stop(claims);
        running += kl__claims_counted(claims).running;
        kl__queues_claims_leave(all[i]);
    }
    return running;
}

/* All begin to settle what is left and to give their shards back; then they are waited for together. */
static void release_all(kl__open_queue **all, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        kl__claims *claims = kl__queues_claims_known(all[i]);
        if (!claims)
            continue;
        kl__claims_release(claims);
        kl__queues_claims_leave(all[i]);
    }
}

static int64_t left_ms(int64_t until_ns)
{
    int64_t left_ns = until_ns - kl__monotonic_ns();
    return left_ns > 0 ? left_ns / 1000000 : 0;
}

static void await_all(kl__api *api, kl__open_queue **all, size_t count, int64_t until_ns)
{
    for (size_t i = 0; i < count; i++) {
        kl__claims *claims = kl__queues_claims_known(all[i]);
        if (!claims)
            continue;
        if (kl__claims_await(claims, left_ms(until_ns)) != KL_OK)
            api->opts.log(api->opts.log_ctx, KL_LOG_WARN, kl_error_text());
        kl__queues_claims_leave(all[i]);
    }
}

static void await_starting(kl__api *api, int64_t until_ns)
{
    pthread_mutex_lock(&api->queues_mutex);
    while (api->starting > 0 && kl__cond_wait(&api->queues_changed, &api->queues_mutex, until_ns))
        continue;
    pthread_mutex_unlock(&api->queues_mutex);
}

void kl__queues_drain(kl__api *api, int64_t wait_ms, int64_t end_ms)
{
    size_t count;
    int64_t until_ns = kl__deadline_ns(wait_ms);
    await_starting(api, kl__deadline_ns(wait_ms + end_ms));
    kl__open_queue **all = hold_all(api, &count);
    while (stop_all(all, count) > 0 && kl__monotonic_ns() < until_ns && !atomic_load(&api->hurried))
        nanosleep(&(struct timespec){.tv_nsec = DRAIN_STEP_NS}, NULL);
    release_all(all, count);
    await_all(api, all, count, kl__deadline_ns(end_ms));
    for (size_t i = 0; i < count; i++)
        kl__queues_leave(all[i]);
    kl__free(all);
}

void kl__queues_close(kl__api *api)
{
    for (size_t i = 0; i < KL_QUEUE_BUCKETS; i++)
        while (api->queues[i])
            kl__queues_forget(api->queues[i]);
    end_left(api);
}
