/* queue.c - a queue on disk: put tasks, work them off, in order per key and in parallel across keys.
 *
 *     cc queue.c $(pkg-config --cflags --libs keyline) -o queue && ./queue
 *
 * What is put is in ./keyline-data when kl_queue_put returns, and any process that opens the directory can put, work or
 * look. Tasks of one key never overlap, so a customer's tasks may use its memory without a mutex. */
#include <keyline/keyline.h>
#include <stdio.h>
#include <stdlib.h>

enum { CUSTOMERS = 3, STEPS = 4, TASKS = CUSTOMERS * STEPS, STORY_BYTES = 80 };

struct customer {
    const char *name;
    char story[STORY_BYTES];
    size_t used;
};

/* Says what went wrong and what to do about it. */
static void must(kl_rc rc)
{
    if (rc == KL_OK)
        return;
    fprintf(stderr, "%s\n", kl_error_text());
    exit(1);
}

/* Bob's second step fails once. His later steps wait for it; Ann and Eve wait for nobody. */
static kl_outcome step(kl_work *work, void *ctx)
{
    struct customer *customer = ctx;
    kl_bytes key = kl_work_key(work), payload = kl_work_payload(work);
    while (strlen(customer->name) != key.len || memcmp(customer->name, key.data, key.len) != 0)
        customer++;
    bool fails = strcmp(customer->name, "bob") == 0 && *(const char *)payload.data == '2' && kl_work_attempt(work) == 1;
    customer->used += (size_t)snprintf(customer->story + customer->used, STORY_BYTES - customer->used, " %.*s%s",
                                       (int)payload.len, (const char *)payload.data, fails ? "(failed)" : "");
    return fails ? KL_RETRY : KL_DONE;
}

/* All in one call, which is durable when it returns, whole or not at all. */
static void put(kl_queue *queue, const struct customer *customers)
{
    static const char *const steps[STEPS] = {"1", "2", "3", "4"};
    kl_put tasks[TASKS];
    for (int i = 0; i < TASKS; i++)
        tasks[i] = (kl_put){.key = kl_str(customers[i % CUSTOMERS].name), .payload = kl_str(steps[i / CUSTOMERS])};
    must(kl_queue_put(queue, tasks, TASKS, (kl_bytes){0}, NULL));
}

int main(int argc, char **argv)
{
    struct customer customers[CUSTOMERS] = {{.name = "ann"}, {.name = "bob"}, {.name = "eve"}};
    kl_queue_opts opts = {.size = sizeof opts, .backoff_base_ms = 5};
    kl_handler handler = {.fn = step, .ctx = customers};
    kl_worker_opts worker_opts = {.size = sizeof worker_opts, .concurrency = 3, .until_empty = true};
    kl_store *store;
    kl_queue *queue;
    kl_worker *worker;
    must(kl_store_open(argc > 1 ? argv[1] : "disk:", NULL, &store));
    must(kl_queue_open(store, "steps", &opts, &queue));
    put(queue, customers);
    kl_worker_queue served = {.queue = queue, .handlers = &handler, .handler_count = 1};
    must(kl_worker_start(&served, 1, &worker_opts, &worker));
    must(kl_worker_wait(worker, KL_FOREVER)); /* it ends by itself when nothing is left to do */
    kl_worker_close(worker);
    for (int i = 0; i < CUSTOMERS; i++)
        printf("%s:%s\n", customers[i].name, customers[i].story);
    kl_queue_close(queue);
    kl_store_close(store);
    return 0;
}
