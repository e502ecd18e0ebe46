/* serve_demo.c - a small load: a thread that puts, and a worker that runs. See serve_demo.h. */
#include "cli/serve_demo.h"

#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include "base/base.h"
#include "base/random.h"
#include "base/wait.h"
#include "cli/cli.h"

enum { KEYS = 12, PUT_MS = 50, RUN_MIN_US = 20000, RUN_MORE_US = 200000, FAILS_ONE_IN = 8, FAILING_KEY = 3 };

struct kl__serve_demo {
    kl_queue *queue;
    kl_worker *worker;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    bool started, ends;
};

static kl_outcome run(kl_work *work, void *ctx)
{
    (void)ctx;
    uint64_t random = kl__random_seed();
    usleep(RUN_MIN_US + (useconds_t)kl__random_below(&random, RUN_MORE_US));
    kl_bytes key = kl_work_key(work);
    const char *text = key.data;
    if (text[key.len - 1] != '0' + FAILING_KEY || kl__random_below(&random, FAILS_ONE_IN) != 0)
        return KL_DONE;
    kl_work_error(work, "the payment service is down");
    return KL_RETRY;
}

static void put_one(kl__serve_demo *demo, uint64_t *random)
{
    char key[32], payload[64];
    snprintf(key, sizeof key, "customer-%d", (int)kl__random_below(random, KEYS));
    snprintf(payload, sizeof payload, "charge %d.%02d", (int)kl__random_below(random, 100),
             (int)kl__random_below(random, 100));
    kl_put task = {.key = kl_str(key), .kind = kl_str("charge"), .payload = kl_str(payload)};
    if (kl_queue_put(demo->queue, &task, 1, (kl_bytes){0}, NULL) != KL_OK)
        kl__complain("demo: %s", kl_error_text());
}

static void *put(void *context)
{
    kl__serve_demo *demo = context;
    uint64_t random = kl__random_seed();
    pthread_mutex_lock(&demo->mutex);
    while (!demo->ends) {
        pthread_mutex_unlock(&demo->mutex);
        put_one(demo, &random);
        pthread_mutex_lock(&demo->mutex);
        if (!demo->ends)
            kl__cond_wait(&demo->wake, &demo->mutex, kl__deadline_ns(PUT_MS));
    }
    pthread_mutex_unlock(&demo->mutex);
    return NULL;
}

static kl_rc start(kl__serve_demo *demo, kl_store *store)
{
    kl_queue_opts opts = {.size = sizeof opts, .keep_done_ms = 600000};
    kl_handler handler = {.fn = run};
    kl_rc rc = kl_queue_open(store, "demo", &opts, &demo->queue);
    if (rc != KL_OK)
        return rc;
    kl_worker_queue served = {.queue = demo->queue, .handlers = &handler, .handler_count = 1};
    kl_worker_opts worker = {.size = sizeof worker, .concurrency = 8, .stop_ms = 2000};
    rc = kl_worker_start(&served, 1, &worker, &demo->worker);
    if (rc != KL_OK)
        return rc;
    demo->started = pthread_create(&demo->thread, NULL, put, demo) == 0;
    return demo->started ? KL_OK : kl__fail(KL_ESYSTEM, "no thread could be started; see ulimit -u");
}

kl_rc kl__serve_demo_start(kl_store *store, kl__serve_demo **ret_demo)
{
    kl__serve_demo *demo = kl__alloc_zeroed(1, sizeof *demo);
    if (!demo)
        return kl__fail_memory();
    pthread_mutex_init(&demo->mutex, NULL);
    kl__cond_init(&demo->wake);
    kl_rc rc = start(demo, store);
    if (rc == KL_OK)
        *ret_demo = demo;
    else
        kl__serve_demo_stop(demo);
    return rc;
}

void kl__serve_demo_stop(kl__serve_demo *demo)
{
    if (!demo)
        return;
    pthread_mutex_lock(&demo->mutex);
    demo->ends = true;
    pthread_cond_signal(&demo->wake);
    pthread_mutex_unlock(&demo->mutex);
    if (demo->started)
        pthread_join(demo->thread, NULL);
    if (demo->worker && kl_worker_drain(demo->worker, 3000) != KL_OK)
        kl__complain("demo: %s", kl_error_text());
    kl_worker_close(demo->worker);
    kl_queue_close(demo->queue);
    pthread_cond_destroy(&demo->wake);
    pthread_mutex_destroy(&demo->mutex);
    kl__free(demo);
}
