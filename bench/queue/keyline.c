/* keyline.c - the cycle: put durably, run what does nothing, settle durably; and what the other modes share. */
#include "keyline.h"

#include <pthread.h>

const char program[] = "bench-queue";

void open_place(struct place *place, const struct settings *settings)
{
    char url[4200];
    snprintf(url, sizeof url, "disk:%s", path_in(settings, "keyline"));
    kl_queue_opts opts = {.size = sizeof opts, .attempts_max = KL_ATTEMPTS_MAX};
    MUST_KL(kl_store_open(url, NULL, &place->store));
    MUST_KL(kl_queue_open(place->store, "bench", &opts, &place->queue));
}

void close_place(struct place *place)
{
    kl_queue_close(place->queue);
    kl_store_close(place->store);
}

kl_outcome run_noop(kl_work *work, void *ctx)
{
    (void)work;
    (void)ctx;
    return KL_DONE;
}

kl_worker *start_worker(kl_queue *queue, kl_handler_fn *handler, void *ctx, long threads)
{
    kl_handler any = {.fn = handler, .ctx = ctx};
    kl_worker_queue served = {.queue = queue, .handlers = &any, .handler_count = 1};
    kl_worker_opts opts = {.size = sizeof opts, .concurrency = threads};
    kl_worker *worker;
    MUST_KL(kl_worker_start(&served, 1, &opts, &worker));
    return worker;
}

/* --- Producers --- */

struct turn make_turn(const char *prefix, size_t keys)
{
    struct turn made = {calloc(keys + GROUP_MAX, sizeof *made.tasks), calloc(keys, sizeof *made.names), keys};
    MUST(made.tasks && made.names);
    for (size_t i = 0; i < keys; i++)
        snprintf(made.names[i], sizeof made.names[i], "%s-%06zu", prefix, i);
    for (size_t i = 0; i < keys + GROUP_MAX; i++)
        made.tasks[i] = (kl_put){.key = kl_str(made.names[i % keys]), .payload = {payload, sizeof payload}};
    return made;
}

void free_turn(struct turn *turn)
{
    free(turn->tasks);
    free(turn->names);
}

static void put_group(kl_queue *queue, const struct turn *turn, size_t *at, long group)
{
    MUST_KL(kl_queue_put(queue, turn->tasks + *at, (size_t)group, (kl_bytes){0}, NULL));
    *at = (*at + (size_t)group) % turn->keys;
}

void put_tasks(kl_queue *queue, const struct turn *turn, size_t *at, long count, long group)
{
    for (; count > 0; count -= group)
        put_group(queue, turn, at, count < group ? count : group);
}

struct producer {
    pthread_t thread;
    kl_queue *queue;
    const struct turn *turn;
    size_t at;
    long group;
    int64_t until_ns, put;
};

static void *run_producer(void *context)
{
    struct producer *producer = context;
    while (now_ns() < producer->until_ns) {
        put_group(producer->queue, producer->turn, &producer->at, producer->group);
        producer->put += producer->group;
    }
    return NULL;
}

int64_t produce(kl_queue *queue, const struct settings *settings, const struct turn *turn)
{
    struct producer producers[PRODUCERS];
    int64_t put = 0, until_ns = now_ns() + settings->ms * 1000000;
    for (size_t i = 0; i < PRODUCERS; i++) {
        producers[i] = (struct producer){.queue = queue,
                                         .turn = turn,
                                         .at = i * turn->keys / PRODUCERS,
                                         .group = settings->group,
                                         .until_ns = until_ns};
        MUST(pthread_create(&producers[i].thread, NULL, run_producer, &producers[i]) == 0);
    }
    for (size_t i = 0; i < PRODUCERS; i++) {
        MUST(pthread_join(producers[i].thread, NULL) == 0);
        put += producers[i].put;
    }
    return put;
}

void await_done(kl_worker *worker, int64_t done)
{
    enum { POLL_US = 500 };
    while ((int64_t)kl_worker_show(worker).done < done)
        sleep_us(POLL_US);
}

/* --- The cycle --- */

void run_cycle(const struct settings *settings)
{
    struct place place;
    size_t at = 0;
    open_place(&place, settings);
    struct turn tasks = make_turn("key", KEYS);
    kl_worker *worker = start_worker(place.queue, run_noop, NULL, settings->threads);
    put_tasks(place.queue, &tasks, &at, settings->warm + KEYS, WARM_GROUP); /* once over all keys at least */
    await_done(worker, settings->warm + KEYS);

    int64_t begin_ns = now_ns(), begin_cpu_ns = cpu_ns();
    int64_t put = produce(place.queue, settings, &tasks);
    int64_t put_ns = now_ns() - begin_ns;
    await_done(worker, settings->warm + KEYS + put);
    int64_t took_ns = now_ns() - begin_ns;
    printf("tasks/s %.0f cpu_ns %.0f put_share %.3f\n", (double)put * 1e9 / (double)took_ns,
           (double)(cpu_ns() - begin_cpu_ns) / (double)put, (double)put_ns / (double)took_ns);
    kl_worker_close(worker);
    close_place(&place);
    free_turn(&tasks);
}

const struct mode modes[] = {{"cycle", run_cycle},
                             {"fill", run_fill},
                             {"start", run_start},
                             {"failing", run_failing},
                             {"processes", run_processes},
                             {"workers", run_workers},
                             {0}};
