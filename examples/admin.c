/* admin.c - what operators do: ask why a key waits, skip its first task, change the layout of a live queue.
 *
 *     cc admin.c $(pkg-config --cflags --libs keyline) -o admin && ./admin
 *
 * The layout is changed while tasks wait: those of before run first, key by key, so the order of each key is kept. */
#include <keyline/keyline.h>
#include <stdio.h>
#include <stdlib.h>

/* Says what went wrong and what to do about it. */
static void must(kl_rc rc)
{
    if (rc == KL_OK)
        return;
    fprintf(stderr, "%s\n", kl_error_text());
    exit(1);
}

static kl_outcome print(kl_work *work, void *ctx)
{
    kl_bytes payload = kl_work_payload(work);
    (void)ctx;
    printf("ran %.*s\n", (int)payload.len, (const char *)payload.data);
    return KL_DONE;
}

/* A worker that ends by itself when nothing is left to do. */
static void work(kl_queue *queue)
{
    kl_handler handler = {.fn = print};
    kl_worker_queue served = {.queue = queue, .handlers = &handler, .handler_count = 1};
    kl_worker_opts opts = {.size = sizeof opts, .until_empty = true};
    kl_worker *worker;
    must(kl_worker_start(&served, 1, &opts, &worker));
    must(kl_worker_wait(worker, KL_FOREVER));
    kl_worker_close(worker);
}

static void put(kl_queue *queue, kl_bytes key, const char *payload)
{
    kl_put task = {.key = key, .payload = kl_str(payload)};
    must(kl_queue_put(queue, &task, 1, (kl_bytes){0}, NULL));
}

static void show_key(kl_queue *queue, kl_bytes key, kl_arena *arena)
{
    kl_key_status status;
    must(kl_key_show(queue, key, arena, &status));
    printf("%.*s: %d waiting; %s\n", (int)key.len, (const char *)key.data, (int)status.waiting, status.reason);
}

/* Tasks put from now on go to four partitions instead of one. */
static void change_layout(kl_queue *queue, kl_arena *arena)
{
    kl_queue_opts opts = {.size = sizeof opts, .partitions = 4};
    kl_queue_info info;
    must(kl_queue_alter(queue, &opts));
    must(kl_queue_show(queue, arena, &info));
    printf("layout %d; older ones that hold tasks: %d\n", (int)info.layout_number, (int)info.layouts_draining);
}

int main(void)
{
    kl_bytes key = kl_str("customer-7");
    kl_arena arena = {0};
    kl_task_id skipped;
    kl_store *store;
    kl_queue *queue;
    must(kl_store_open("memory:", NULL, &store));
    must(kl_queue_open(store, "invoices", NULL, &queue));
    put(queue, key, "invoice 1");
    put(queue, key, "invoice 2");
    must(kl_key_pause(queue, key));
    show_key(queue, key, &arena);
    must(kl_key_skip(queue, key, NULL, &skipped)); /* ends invoice 1 as cancelled */
    change_layout(queue, &arena);
    put(queue, key, "invoice 3");
    must(kl_key_resume(queue, key));
    show_key(queue, key, &arena);
    work(queue);
    kl_arena_free(&arena);
    kl_queue_close(queue);
    kl_store_close(store);
    return 0;
}
