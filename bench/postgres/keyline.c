/* keyline.c - Keyline's side: kl_queue_put from two threads, and a worker in the same process. Keys are strictly serial. */
#include "keyline/keyline.h"
#include "bench.h"
#include "keyline/queue.h"
#include "keyline/worker.h"

struct side {
    struct load *load;
    kl_queue *queue;
};

static kl_outcome handle(kl_work *work, void *ctx)
{
    struct load *load = ctx;
    note_latency(kl_work_payload(work).data);
    atomic_fetch_add(&load->run, 1);
    return KL_DONE;
}

static void *produce(void *ctx)
{
    struct side *side = ctx;
    long group = side->load->settings->group;
    kl_put *tasks = calloc((size_t)group, sizeof *tasks);
    char(*keys)[KEY_BYTES + 1] = calloc((size_t)group, sizeof *keys);
    char bytes[PAYLOAD_BYTES];
    unsigned long number = (unsigned long)now_ns();
    MUST(tasks && keys, "memory");
    while (goes_on(side->load)) {
        stamp(bytes);
        for (long i = 0; i < group; i++) {
            make_key(keys[i], number++);
            tasks[i] = (kl_put){.key = kl_str(keys[i]), .payload = {bytes, PAYLOAD_BYTES}};
        }
        MUST(kl_queue_put(side->queue, tasks, (size_t)group, (kl_bytes){0}, NULL) == KL_OK, kl_error_text());
        atomic_fetch_add(&side->load->put, group);
    }
    free(tasks);
    free(keys);
    return NULL;
}

void run_keyline(struct load *load)
{
    kl_store *store;
    struct side side = {.load = load};
    kl_worker *worker;
    pthread_t threads[PRODUCERS];
    kl_handler handler = {.fn = handle, .ctx = load};
    MUST(kl_store_open(load->settings->url, NULL, &store) == KL_OK, kl_error_text());
    MUST(kl_queue_open(store, "bench", NULL, &side.queue) == KL_OK, kl_error_text());
    kl_worker_queue served = {.queue = side.queue, .handlers = &handler, .handler_count = 1};
    kl_worker_opts opts = {.size = sizeof opts, .concurrency = CONSUMERS};
    MUST(kl_worker_start(&served, 1, &opts, &worker) == KL_OK, kl_error_text());
    while (kl_worker_show(worker).shards < 16)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    load->began_ns = now_ns();
    for (int i = 0; i < PRODUCERS; i++)
        MUST(pthread_create(&threads[i], NULL, produce, &side) == 0, "no thread");
    for (int i = 0; i < PRODUCERS; i++)
        pthread_join(threads[i], NULL);
    int64_t put_ns = now_ns() - load->began_ns;
    while (kl_worker_show(worker).done < (uint64_t)atomic_load(&load->put)) /* settled, and not only run */
        nanosleep(&(struct timespec){0, 200000}, NULL);
    finish(load, put_ns);
    kl_worker_close(worker);
    kl_queue_close(side.queue);
    kl_store_close(store);
}
