/* pool.c - threads for handlers that may block. See server.h. */
#include "base/base.h"
#include "base/wait.h"
#include "net/server.h"

struct kl__pool {
    pthread_mutex_t mutex;
    pthread_cond_t pushed;
    kl__exchange *first, **last;
    bool closing;
    size_t count;
    pthread_t threads[];
};

kl_rc kl__exchange_open(kl__exchange *exchange)
{
    if (exchange->open || !kl__route_has_queue(exchange->route))
        return KL_OK;
    kl_rc rc = kl__queues_open(exchange->api, kl__part_text(exchange, 0), exchange->route->flags & KL_ROUTE_OPENS,
                               &exchange->open);
    if (rc == KL_OK)
        exchange->queue = exchange->open->queue;
    return rc;
}

/* The queue that the route names, which may have to be read from the store first. False: it has answered. */
static bool open_queue(kl__exchange *exchange)
{
    if (exchange->route->flags & KL_ROUTE_OPENS)
        return true; /* only when the body is found to be right */
    kl_rc rc = kl__exchange_open(exchange);
    if (rc != KL_OK)
        kl__reply_rc(exchange, rc);
    return rc == KL_OK;
}

static kl__exchange *pop(struct kl__pool *pool)
{
    pthread_mutex_lock(&pool->mutex);
    while (!pool->first && !pool->closing)
        kl__cond_wait(&pool->pushed, &pool->mutex, KL_NEVER);
    kl__exchange *exchange = pool->first;
    if (exchange)
        pool->first = exchange->next;
    if (!pool->first)
        pool->last = &pool->first;
    pthread_mutex_unlock(&pool->mutex);
    return exchange;
}

static void *serve(void *context)
{
    kl__exchange *exchange;
    while ((exchange = pop(context)) != NULL)
        if (open_queue(exchange))
            exchange->handler(exchange);
    return NULL;
}

void kl__pool_push(struct kl__pool *pool, kl__exchange *exchange, kl__handler_fn *handler)
{
    exchange->handler = handler;
    exchange->next = NULL;
    pthread_mutex_lock(&pool->mutex);
    *pool->last = exchange;
    pool->last = &exchange->next;
    pthread_cond_signal(&pool->pushed);
    pthread_mutex_unlock(&pool->mutex);
}

kl_rc kl__pool_open(size_t threads, struct kl__pool **ret_pool)
{
    struct kl__pool *pool = kl__alloc_zeroed(1, sizeof *pool + threads * sizeof *pool->threads);
    if (!pool)
        return kl__fail_memory();
    pthread_mutex_init(&pool->mutex, NULL);
    kl__cond_init(&pool->pushed);
    pool->last = &pool->first;
    while (pool->count < threads && pthread_create(&pool->threads[pool->count], NULL, serve, pool) == 0)
        pool->count++;
    if (pool->count < threads) {
        kl__pool_close(pool);
        return kl__fail(KL_ESYSTEM, "no thread for the API could be started; see ulimit -u");
    }
    *ret_pool = pool;
    return KL_OK;
}

void kl__pool_close(struct kl__pool *pool)
{
    if (!pool)
        return;
    pthread_mutex_lock(&pool->mutex);
    pool->closing = true;
    pthread_cond_broadcast(&pool->pushed);
    pthread_mutex_unlock(&pool->mutex);
    for (size_t i = 0; i < pool->count; i++)
        pthread_join(pool->threads[i], NULL);
    pthread_cond_destroy(&pool->pushed);
    pthread_mutex_destroy(&pool->mutex);
    kl__free(pool);
}
