/* worker.c - start, drain and close a worker.
 *
 * A worker is a pump for each of its queues, threads that run tasks (worker_thread.c), and four that keep it going
 * (worker_keep.c).
 *
 *      start ---> works ---> stopping: starts nothing, lets tasks end, settles, gives shards back ---> ended ---> close
 *                   +-- until_empty: by itself, when nothing is left */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cores.h"
#include "base/random.h"
#include "base/wait.h"
#include "store/quick.h"
#include "work/worker_inside.h"

enum {
    WINDOW_DEFAULT = 65536,
    WINDOW_LEAST = 1024,
    WINDOW_MOST = 1 << 24,
    WEIGHT_MAX = 1000000,
    GIVE_UP_MS = 5000, /* closing, once nothing runs any more: a store that fails must not hold up the end */
    CUT_MS = 5000      /* a call that takes longer, when everything has ended, is nobody's */
};

/* --- What the other files use --- */

static void leave(void *ctx) { pthread_mutex_unlock(&((kl_worker *)ctx)->mutex); }
static void enter(void *ctx) { pthread_mutex_lock(&((kl_worker *)ctx)->mutex); }

void kl__worker_log(const kl_worker *worker, kl_log_level level, const char *text)
{
    if (worker->opts.log)
        worker->opts.log(worker->opts.log_ctx, level, text);
}

static struct timespec moment(int64_t ns)
{
    return (struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
}

void kl__worker_wait(kl_worker *worker, pthread_cond_t *condition, int64_t wait_ms)
{
    struct timespec until = moment(kl__deadline_ns(wait_ms));
    pthread_cond_timedwait(condition, &worker->mutex, &until);
}

void kl__worker_wake(kl_worker *worker, uint64_t ready)
{
    if (ready == 0 || worker->idle == 0)
        return;
    ready = (ready - 1) / worker->worth + 1;
    if (ready < worker->idle)
        for (uint64_t i = 0; i < ready; i++)
            pthread_cond_signal(&worker->ready);
    else
        pthread_cond_broadcast(&worker->ready);
}

void kl__worker_tell_giver(kl_worker *worker)
{
    if (worker->giver.after)
        worker->giver.after(worker->giver.ctx);
}

void kl__worker_stop(kl_worker *worker)
{
    if (worker->stopping)
        return;
    worker->stopping = true;
    worker->stopping_ns = kl__monotonic_ns();
    for (size_t i = 0; i < worker->served_count; i++)
        kl__pump_stop(worker->served[i].pump);
    kl__worker_take_back(worker, true);
    pthread_cond_broadcast(&worker->ready);
    pthread_cond_broadcast(&worker->scout);
    pthread_cond_broadcast(&worker->all_run);
    pthread_cond_broadcast(&worker->changed);
}

/* --- Checking what is asked for --- */

static kl_rc check_range(const char *name, int64_t value, int64_t min, int64_t max)
{
    if (value >= min && value <= max)
        return KL_OK;
    return kl__fail(KL_EINVAL, "%s is %lld; give it %lld to %lld", name, (long long)value, (long long)min,
                    (long long)max);
}

static kl_rc complete_opts(const kl_worker_opts *given, kl_worker_opts *opts)
{
    *opts = (kl_worker_opts){.size = sizeof *opts};
    if (given && (given->size == 0 || given->size > sizeof *opts))
        return kl__fail(KL_EINVAL, "the options' size is %zu; set it to sizeof(kl_worker_opts)", given->size);
    if (given)
        memcpy(opts, given, given->size);
    int cores = kl__cores();
    if (!opts->concurrency)
        opts->concurrency = cores < KL_WORKER_THREADS_MAX ? cores : KL_WORKER_THREADS_MAX;
    opts->window_max = opts->window_max ? opts->window_max : WINDOW_DEFAULT;
    opts->stop_ms = opts->stop_ms == KL_NO_WAIT ? 0 : opts->stop_ms ? opts->stop_ms : KL_FOREVER;
    kl_rc rc = check_range("concurrency", opts->concurrency, 1, KL_WORKER_THREADS_MAX);
    if (rc == KL_OK)
        rc = check_range("window_max", opts->window_max, WINDOW_LEAST, WINDOW_MOST);
    if (rc == KL_OK)
        rc = check_range("stop_ms", opts->stop_ms, 0, KL_FOREVER);
    return rc;
}

static kl_rc check_handlers(const kl_worker_queue *queue)
{
    const char *name = queue->queue->name;
    if (queue->handler_count < 1 || queue->handler_count > KL_HANDLERS_MAX || !queue->handlers)
        return kl__fail(KL_EINVAL, "queue %s has %zu handlers; give it 1 to %d", name, queue->handler_count,
                        KL_HANDLERS_MAX);
    for (size_t i = 0; i < queue->handler_count; i++) {
        const char *kind = queue->handlers[i].kind;
        if (!queue->handlers[i].fn)
            return kl__fail(KL_EINVAL, "handler %zu of queue %s has no function", i, name);
        if (kind && strlen(kind) > KL_KIND_BYTES_MAX)
            return kl__fail(KL_EINVAL, "the kind '%.40s...' has %zu bytes; kinds have up to %d", kind, strlen(kind),
                            KL_KIND_BYTES_MAX);
        for (size_t j = 0; j < i; j++) {
            const char *other = queue->handlers[j].kind;
            if ((!kind && !other) || (kind && other && strcmp(kind, other) == 0))
                return kl__fail(KL_EINVAL, "queue %s has two handlers for %s%s; leave one out", name,
                                kind ? "kind " : "all other kinds", kind ? kind : "");
        }
    }
    return KL_OK;
}

/* As the queue's layout is now; it may change, and then the minimum is as much as can be had. */
static kl_rc check_per_partition(const kl_worker_queue *queue)
{
    kl__descriptor *descriptor = kl__queue_descriptor(queue->queue);
    int64_t partitions = kl__newest_layout(descriptor)->layout.partitions;
    kl__descriptor_release(descriptor);
    int64_t all = partitions * queue->per_partition;
    if (queue->per_partition == 0 || queue->min <= all)
        return KL_OK;
    return kl__fail(KL_EINVAL,
                    "queue %s is to have at least %lld threads, and its %lld partition%s with %lld each come to %lld; "
                    "lower the minimum or raise the limit per partition",
                    queue->queue->name, (long long)queue->min, (long long)partitions, partitions == 1 ? "" : "s",
                    (long long)queue->per_partition, (long long)all);
}

static kl_rc check_queue(const kl_worker_queue *queues, size_t index, int64_t *minimums)
{
    const kl_worker_queue *queue = &queues[index];
    if (!queue->queue)
        return kl__fail(KL_EINVAL, "queue number %zu is NULL; open it first", index);
    for (size_t i = 0; i < index; i++)
        if (strcmp(queues[i].queue->name, queue->queue->name) == 0 && queues[i].queue->store == queue->queue->store)
            return kl__fail(KL_EINVAL, "queue %s is named twice; name it once, with all its handlers",
                            queue->queue->name);
    if (queue->shards && queue->slices)
        return kl__fail(KL_EINVAL, "queue %s has both shards and a slice; choose one", queue->queue->name);
    kl_rc rc = check_range("weight", queue->weight, 0, WEIGHT_MAX);
    if (rc == KL_OK)
        rc = check_range("min", queue->min, 0, KL_WORKER_THREADS_MAX);
    if (rc == KL_OK)
        rc = check_range("per_partition", queue->per_partition, 0, KL_WORKER_THREADS_MAX);
    if (rc == KL_OK)
        rc = check_per_partition(queue);
    if (rc == KL_OK)
        rc = check_handlers(queue);
    *minimums += queue->min;
    return rc;
}

static kl_rc check_queues(const kl_worker_queue *queues, size_t count, const kl_worker_opts *opts)
{
    int64_t minimums = 0;
    if (!queues || count == 0 || count > KL_WORKER_QUEUES_MAX)
        return kl__fail(KL_EINVAL, "a worker of %zu queues was asked for; give it 1 to %d", count,
                        KL_WORKER_QUEUES_MAX);
    for (size_t i = 0; i < count; i++) {
        kl_rc rc = check_queue(queues, i, &minimums);
        if (rc != KL_OK)
            return rc;
    }
    if (minimums > opts->concurrency)
        return kl__fail(KL_EINVAL,
                        "the queues' minimums come to %lld and the concurrency is %lld; lower the former or raise the "
                        "latter",
                        (long long)minimums, (long long)opts->concurrency);
    if (minimums == opts->concurrency)
        for (size_t i = 0; i < count; i++)
            if (queues[i].min == 0)
                return kl__fail(
                    KL_EINVAL,
                    "all %lld threads are kept for other queues, and %s has no minimum: it would never run; "
                    "give it one, or raise the concurrency",
                    (long long)opts->concurrency, queues[i].queue->name);
    return KL_OK;
}

/* --- Start --- */

static kl_rc init_sync(kl_worker *worker)
{
    pthread_condattr_t attributes;
    if (pthread_condattr_init(&attributes) != 0)
        return kl__fail(KL_ESYSTEM, "a condition variable could not be made; the system is short of memory");
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&worker->mutex, NULL);
    pthread_cond_init(&worker->ready, &attributes);
    pthread_cond_init(&worker->scout, &attributes);
    pthread_cond_init(&worker->outcomes, &attributes);
    pthread_cond_init(&worker->all_run, &attributes);
    pthread_cond_init(&worker->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    return KL_OK;
}

static void free_handlers(kl__served *served)
{
    for (size_t i = 0; served->handlers && i < served->handler_count; i++)
        kl__free((char *)served->handlers[i].kind);
    kl__free(served->handlers);
}

static char *copy_text(const char *text)
{
    char *copy = kl__alloc(strlen(text) + 1);
    if (copy)
        memcpy(copy, text, strlen(text) + 1);
    return copy;
}

static kl_rc copy_handlers(kl__served *served, const kl_worker_queue *queue)
{
    served->handler_count = queue->handler_count;
    served->handlers = kl__alloc_zeroed(queue->handler_count + 1, sizeof *served->handlers);
    if (!served->handlers)
        return kl__fail_memory();
    for (size_t i = 0; i < queue->handler_count; i++) {
        const kl_handler *handler = &queue->handlers[i];
        served->handlers[i] = (kl_handler){NULL, handler->fn, handler->ctx};
        if (handler->kind && !(served->handlers[i].kind = copy_text(handler->kind)))
            return kl__fail_memory();
    }
    return KL_OK;
}

static kl_rc open_served(kl_worker *worker, kl__served *served, const kl_worker_queue *queue, const kl_task_id *id)
{
    served->queue = queue->queue;
    served->weight = queue->weight ? queue->weight : 1;
    served->min = queue->min;
    kl_rc rc = copy_handlers(served, queue);
    if (rc != KL_OK)
        return rc;
    kl__pump_opts opts = {.queue = queue->queue,
                          .worker = *id,
                          .worker_name = worker->name,
                          .handlers = served->handlers,
                          .handler_count = served->handler_count,
                          .shards = queue->shards,
                          .slice = queue->slice,
                          .slices = queue->slices,
                          .window_max = worker->opts.window_max,
                          .concurrency = worker->opts.concurrency,
                          .per_partition = queue->per_partition,
                          .seed = kl__random_seed(),
                          .local_ms = kl__local_ms,
                          .leave = leave,
                          .enter = enter,
                          .mutex_ctx = worker,
                          .wanted = worker->giver.wanted,
                          .settled = worker->giver.settled,
                          .ended = worker->giver.ended,
                          .giver = worker->giver.ctx,
                          .log = worker->opts.log,
                          .log_ctx = worker->opts.log_ctx};
    rc = kl__pump_open(&opts, &served->pump);
    if (rc != KL_OK)
        return rc;
    pthread_mutex_lock(&worker->mutex);
    rc = kl__partitions_sync(served->pump); /* so that a wrong list of shards is told at once */
    pthread_mutex_unlock(&worker->mutex);
    return rc;
}

static kl_rc start_thread(pthread_t *id, void *(*run)(void *), void *context, bool *started)
{
    int error = pthread_create(id, NULL, run, context);
    if (error != 0)
        return kl__fail(KL_ESYSTEM, "a thread could not be started (%s); lower the concurrency", strerror(error));
    *started = true;
    return KL_OK;
}

static kl_rc start_threads(kl_worker *worker)
{
    kl_rc rc = start_thread(&worker->beat_id, kl__worker_beat, worker, &worker->beat_started);
    if (rc == KL_OK)
        rc = start_thread(&worker->tick_id, kl__worker_tick, worker, &worker->tick_started);
    if (rc == KL_OK)
        rc = start_thread(&worker->scout_id, kl__worker_scout, worker, &worker->scout_started);
    if (rc == KL_OK)
        rc = start_thread(&worker->settler_id, kl__worker_settler, worker, &worker->settler_started);
    if (rc == KL_OK && kl__worker_has_inbox(worker))
        rc = start_thread(&worker->inbox_id, kl__worker_inbox, worker, &worker->inbox_started);
    for (size_t i = 0; i < worker->thread_count && rc == KL_OK; i++) {
        kl__thread *thread = &worker->threads[i];
        thread->worker = worker;
        thread->hand_size = 1;
        rc = start_thread(&thread->id, kl__worker_thread, thread, &thread->started);
    }
    return rc;
}

static void name_worker(kl_worker *worker)
{
    char host[65] = "localhost";
    if (worker->opts.name) {
        snprintf(worker->name, sizeof worker->name, "%s", worker->opts.name);
    } else {
        gethostname(host, sizeof host - 1);
        snprintf(worker->name, sizeof worker->name, "%s:%ld", host, (long)getpid());
    }
    worker->opts.name = worker->name;
}

static kl_rc build(kl_worker *worker, const kl_worker_queue *queues, size_t count)
{
    uint64_t random[2] = {kl__random_seed(), kl__random_seed()};
    kl_task_id id;
    kl_rc rc = KL_OK;
    memcpy(&id, random, sizeof id);
    worker->served = kl__alloc_zeroed(count, sizeof *worker->served);
    size_t threads = worker->giver.wanted ? 0 : (size_t)worker->opts.concurrency;
    worker->threads = kl__alloc_zeroed(threads + 1, sizeof *worker->threads);
    if (!worker->served || !worker->threads)
        return kl__fail_memory();
    worker->thread_count = threads;
    worker->worth = 1;
    for (size_t i = 0; i < count && rc == KL_OK; i++) {
        worker->served_count++;
        rc = open_served(worker, &worker->served[i], &queues[i], &id);
    }
    return rc;
}

/* One thread calls the stores of all queues in turn, so where they are several none may let it wait for long. */
static kl_rc hasten_stores(const kl_worker *worker)
{
    const kl_store *first = worker->served[0].queue->store;
    bool several = false;
    kl_rc rc = KL_OK;
    for (size_t i = 1; i < worker->served_count; i++)
        several |= worker->served[i].queue->store != first;
    for (size_t i = 0; several && rc == KL_OK && i < worker->served_count; i++)
        rc = kl__store_hasten(worker->served[i].queue->store);
    return rc;
}

/* Options and queues have been checked. */
static kl_rc start(const kl_worker_queue *queues, size_t count, const kl_worker_opts *complete, const kl__giver *giver,
                   kl_worker **ret_worker)
{
    kl_rc rc;
    kl_worker *worker = kl__alloc_zeroed(1, sizeof *worker);
    if (!worker)
        return kl__fail_memory();
    worker->opts = *complete;
    worker->giver = *giver;
    if ((rc = init_sync(worker)) != KL_OK) {
        kl__free(worker);
        return rc;
    }
    name_worker(worker);
    rc = build(worker, queues, count);
    if (rc == KL_OK)
        rc = hasten_stores(worker);
    if (rc == KL_OK)
        rc = start_threads(worker);
    if (rc != KL_OK) {
        kl_worker_close(worker);
        return rc;
    }
    *ret_worker = worker;
    return KL_OK;
}

kl_rc kl_worker_start(const kl_worker_queue *queues, size_t count, const kl_worker_opts *opts, kl_worker **ret_worker)
{
    kl_worker_opts complete;
    kl_rc rc = complete_opts(opts, &complete);
    if (rc == KL_OK)
        rc = check_queues(queues, count, &complete);
    return rc == KL_OK ? start(queues, count, &complete, &(kl__giver){0}, ret_worker) : rc;
}

/* Stands where a handler is needed: tasks of all kinds may be given out. */
static kl_outcome not_run_here(kl_work *work, void *ctx)
{
    (void)work, (void)ctx;
    KL_ASSERT(!"tasks that are given out are not run");
    return KL_RETRY;
}

kl_rc kl__worker_start_giving(kl_queue *queue, const kl_worker_opts *opts, int64_t running_max, const kl__giver *giver,
                              kl_worker **ret_worker)
{
    kl_worker_opts complete;
    kl_handler any = {.fn = not_run_here};
    kl_worker_queue served = {.queue = queue, .handlers = &any, .handler_count = 1};
    kl_rc rc = complete_opts(opts, &complete);
    if (rc == KL_OK)
        rc = check_queues(&served, 1, &complete);
    if (rc != KL_OK)
        return rc;
    complete.concurrency = running_max;
    return start(&served, 1, &complete, giver, ret_worker);
}

/* --- The end --- */

/* A server that is silent must not hold up the end: calls that have waited for it for so long fail. The mutex is
 * held. */
static void cut_calls(const kl_worker *worker, int64_t wait_ms)
{
    for (size_t i = 0; i < worker->served_count; i++) {
        const kl__pump *pump = worker->served[i].pump;
        if (!pump)
            continue;
        kl__store_cut(pump->queue->store, wait_ms);
        for (const kl__partition *each = pump->partitions; each; each = each->next)
            if (each->store != pump->queue->store)
                kl__store_cut(each->store, wait_ms);
    }
}

/* So long a worker that stops tries to reach its stores. */
static int64_t lease_ms(const kl_worker *worker)
{
    int64_t most_ms = 0;
    for (size_t i = 0; i < worker->served_count; i++) {
        int64_t ms = worker->served[i].pump->descriptor->settings.lease_ms;
        most_ms = ms > most_ms ? ms : most_ms;
    }
    return most_ms;
}

static kl_rc wait_for_end(kl_worker *worker, int64_t wait_ms)
{
    int64_t deadline_ns = kl__deadline_ns(wait_ms < 0 ? 0 : wait_ms);
    while (!worker->ended) {
        int64_t until_ns = kl__deadline_ns(KL_RETRY_MS);
        if (worker->stopping)
            cut_calls(worker, lease_ms(worker));
        if (kl__monotonic_ns() >= deadline_ns)
            return kl__fail(KL_ETIMEDOUT, "the worker has not ended after %lld ms; wait again, or close it",
                            (long long)wait_ms);
        kl__cond_wait(&worker->changed, &worker->mutex,
                      worker->stopping && until_ns < deadline_ns ? until_ns : deadline_ns);
    }
    return KL_OK;
}

kl_rc kl_worker_drain(kl_worker *worker, int64_t wait_ms)
{
    pthread_mutex_lock(&worker->mutex);
    kl__worker_stop(worker);
    kl_rc rc = wait_for_end(worker, wait_ms);
    pthread_mutex_unlock(&worker->mutex);
    return rc;
}

kl_rc kl_worker_wait(kl_worker *worker, int64_t wait_ms)
{
    pthread_mutex_lock(&worker->mutex);
    kl_rc rc = wait_for_end(worker, wait_ms);
    pthread_mutex_unlock(&worker->mutex);
    return rc;
}

static void join(kl_worker *worker, pthread_t thread)
{
    struct timespec until;
    do {
        pthread_mutex_lock(&worker->mutex);
        cut_calls(worker, CUT_MS);
        pthread_mutex_unlock(&worker->mutex);
        clock_gettime(CLOCK_REALTIME, &until);
        until = moment(until.tv_sec * INT64_C(1000000000) + until.tv_nsec + KL_RETRY_MS * INT64_C(1000000));
    } while (pthread_timedjoin_np(thread, NULL, &until) == ETIMEDOUT);
}

static void end_threads(kl_worker *worker)
{
    pthread_mutex_lock(&worker->mutex);
    worker->closing = true;
    pthread_cond_broadcast(&worker->ready);
    pthread_cond_broadcast(&worker->scout);
    pthread_cond_broadcast(&worker->outcomes);
    pthread_cond_broadcast(&worker->all_run);
    pthread_cond_broadcast(&worker->changed);
    pthread_mutex_unlock(&worker->mutex);
    for (size_t i = 0; i < worker->thread_count; i++)
        if (worker->threads[i].started)
            join(worker, worker->threads[i].id);
    if (worker->scout_started)
        join(worker, worker->scout_id);
    if (worker->settler_started)
        join(worker, worker->settler_id);
    if (worker->tick_started)
        join(worker, worker->tick_id);
    if (worker->beat_started)
        join(worker, worker->beat_id);
    if (worker->inbox_started)
        join(worker, worker->inbox_id);
}

/* Gives running handlers a sign to stop, and waits until everything is settled and given back, if the store lets it. */
static void end_work(kl_worker *worker)
{
    pthread_mutex_lock(&worker->mutex);
    kl__worker_stop(worker);
    atomic_store(&worker->abandoning, true);
    bool running = true;
    while (running && !worker->ended) {
        running = false;
        for (size_t i = 0; i < worker->served_count; i++)
            running |= kl__pump_running(worker->served[i].pump) > 0;
        if (running)
            kl__worker_wait(worker, &worker->changed, KL_RETRY_MS);
        cut_calls(worker, GIVE_UP_MS); /* loading what runs may be one */
    }
    if (wait_for_end(worker, GIVE_UP_MS) != KL_OK)
        kl__worker_log(worker, KL_LOG_WARN,
                       "the shards could not be given back; others take them when the lease is over");
    pthread_mutex_unlock(&worker->mutex);
}

void kl_worker_close(kl_worker *worker)
{
    if (!worker)
        return;
    bool all_run = worker->thread_count == 0 || worker->threads[worker->thread_count - 1].started;
    if (worker->beat_started && worker->tick_started && worker->scout_started && worker->settler_started && all_run)
        end_work(worker);
    end_threads(worker);
    for (size_t i = 0; i < worker->served_count; i++) {
        kl__pump_close(worker->served[i].pump);
        free_handlers(&worker->served[i]);
    }
    for (size_t i = 0; i < worker->thread_count; i++) {
        kl_arena_free(&worker->threads[i].arena);
        kl__free(worker->threads[i].work.error);
    }
    kl__free(worker->served);
    kl__free(worker->threads);
    pthread_cond_destroy(&worker->ready);
    pthread_cond_destroy(&worker->scout);
    pthread_cond_destroy(&worker->outcomes);
    pthread_cond_destroy(&worker->all_run);
    pthread_cond_destroy(&worker->changed);
    pthread_mutex_destroy(&worker->mutex);
    kl__free(worker);
}

/* --- What it tells --- */

kl_worker_info kl_worker_show(kl_worker *worker)
{
    kl_worker_info info = {0};
    pthread_mutex_lock(&worker->mutex);
    for (size_t i = 0; i < worker->served_count; i++) {
        kl__pump *pump = worker->served[i].pump;
        kl__pump_counts counts = kl__pump_counted(pump);
        info.shards += kl__pump_shards(pump);
        info.held += kl__pump_held(pump);
        info.running += kl__pump_running(pump);
        info.started += counts.started;
        info.done += counts.done;
        info.retried += counts.retried;
        info.dead += counts.dead;
        info.halted += counts.halted;
        info.cancelled += counts.cancelled;
        info.unserved += kl__pump_unserved(pump);
        info.refused += counts.refused;
    }
    if (worker->broken_ns)
        info.broken_ms = (kl__monotonic_ns() - worker->broken_ns) / 1000000;
    pthread_mutex_unlock(&worker->mutex);
    return info;
}
