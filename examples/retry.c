/* retry.c - attempts, dead letters, and putting them back.
 *
 *     cc retry.c $(pkg-config --cflags --libs keyline) -o retry && ./retry
 *
 * A charge fails while the bank is closed. After three attempts it is a dead letter, its key goes on (that is the
 * default policy), and when the bank is open again it is put back at the end of its key's line. */
#include <keyline/keyline.h>
#include <stdio.h>
#include <stdlib.h>

static bool bank_is_open; /* set while no worker runs */

/* Says what went wrong and what to do about it. */
static void must(kl_rc rc)
{
    if (rc == KL_OK)
        return;
    fprintf(stderr, "%s\n", kl_error_text());
    exit(1);
}

static kl_outcome charge(kl_work *work, void *ctx)
{
    kl_bytes payload = kl_work_payload(work);
    bool fails = memcmp(payload.data, "charge", 6) == 0 && !bank_is_open;
    (void)ctx;
    printf("%.*s, attempt %u: %s\n", (int)payload.len, (const char *)payload.data, (unsigned)kl_work_attempt(work),
           fails ? "failed" : "done");
    if (fails)
        kl_work_error(work, "the bank is closed");
    return fails ? KL_RETRY : KL_DONE;
}

/* A worker that ends by itself when nothing is left to do. */
static void work(kl_queue *queue)
{
    kl_handler handler = {.fn = charge};
    kl_worker_queue served = {.queue = queue, .handlers = &handler, .handler_count = 1};
    kl_worker_opts opts = {.size = sizeof opts, .until_empty = true};
    kl_worker *worker;
    must(kl_worker_start(&served, 1, &opts, &worker));
    must(kl_worker_wait(worker, KL_FOREVER));
    kl_worker_close(worker);
}

/* Dead letters are kept with their error, for 30 days unless the queue says otherwise. */
static void show_dead(kl_queue *queue)
{
    kl_finished which = {.state = KL_TASK_DEAD, .max = 10};
    kl_found found[10];
    size_t count;
    kl_bytes cursor;
    kl_arena arena = {0};
    must(kl_queue_finished(queue, &which, &arena, found, &count, &cursor));
    for (size_t i = 0; i < count; i++)
        printf("dead: %.*s after %u attempts: %.*s\n", (int)found[i].task.entry.payload.len,
               (const char *)found[i].task.entry.payload.data, (unsigned)found[i].task.attempts,
               (int)found[i].task.error.len, (const char *)found[i].task.error.data);
    kl_arena_free(&arena);
}

int main(void)
{
    kl_queue_opts opts = {.size = sizeof opts, .attempts_max = 3, .backoff_base_ms = 5};
    kl_put tasks[] = {{.key = kl_str("customer-7"), .payload = kl_str("charge 12.00")},
                      {.key = kl_str("customer-7"), .payload = kl_str("send a receipt")}};
    kl_redrive all_dead = {.max = 0};
    kl_account account;
    kl_store *store;
    kl_queue *queue;
    must(kl_store_open("memory:", NULL, &store));
    must(kl_queue_open(store, "payments", &opts, &queue));
    must(kl_queue_put(queue, tasks, 2, (kl_bytes){0}, NULL));
    work(queue);
    show_dead(queue);
    must(kl_dead_retry(queue, &all_dead, &account));
    printf("put back: %d\n", (int)account.done);
    bank_is_open = true;
    work(queue);
    kl_queue_close(queue);
    kl_store_close(store);
    return 0;
}
