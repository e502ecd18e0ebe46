/* job.c - many tasks submitted together, twice by mistake, and their results in order.
 *
 *     cc job.c $(pkg-config --cflags --libs keyline) -o job && ./job
 *
 * The second submit has the first one's idempotency key, as after a lost reply: it puts nothing and gets the same
 * answer. */
#include <keyline/keyline.h>
#include <stdio.h>
#include <stdlib.h>

enum { INVOICES = 4, PAGE = 3 };

/* Says what went wrong and what to do about it. */
static void must(kl_rc rc)
{
    if (rc == KL_OK)
        return;
    fprintf(stderr, "%s\n", kl_error_text());
    exit(1);
}

static kl_outcome print_invoice(kl_work *work, void *ctx)
{
    char result[64];
    kl_bytes payload = kl_work_payload(work);
    (void)ctx;
    snprintf(result, sizeof result, "%.*s.pdf", (int)payload.len, (const char *)payload.data);
    return kl_work_result(work, kl_str(result)) == KL_OK ? KL_DONE : KL_RETRY;
}

/* A worker that ends by itself when nothing is left to do. */
static void work(kl_queue *queue)
{
    kl_handler handler = {.kind = "print", .fn = print_invoice};
    kl_worker_queue served = {.queue = queue, .handlers = &handler, .handler_count = 1};
    kl_worker_opts opts = {.size = sizeof opts, .until_empty = true};
    kl_worker *worker;
    must(kl_worker_start(&served, 1, &opts, &worker));
    must(kl_worker_wait(worker, KL_FOREVER));
    kl_worker_close(worker);
}

static kl_task_id submit(kl_queue *queue)
{
    static const char *const invoices[INVOICES] = {"invoice-1", "invoice-2", "invoice-3", "invoice-4"};
    kl_put tasks[INVOICES];
    kl_job_spec spec = {.size = sizeof spec, .tasks = tasks, .count = INVOICES, .idempotency_key = kl_str("2026-11")};
    kl_job_answer answer;
    for (int i = 0; i < INVOICES; i++)
        tasks[i] = (kl_put){.key = kl_str("customer-7"), .kind = kl_str("print"), .payload = kl_str(invoices[i])};
    must(kl_job_submit(queue, &spec, &answer, NULL));
    printf("submitted: %d tasks%s\n", (int)answer.tasks, answer.replayed ? ", the answer of before" : "");
    return answer.job;
}

/* Page by page, in the order of the tasks' ids: by shard, and inside a shard as they were submitted. */
static void show_results(kl_queue *queue, const kl_task_id *job, kl_arena *arena)
{
    kl_bytes cursor = {0};
    do {
        kl_found found[PAGE];
        size_t count;
        must(kl_job_results(queue, job, cursor, PAGE, arena, found, &count, &cursor, NULL));
        for (size_t i = 0; i < count; i++)
            printf("%.*s\n", (int)found[i].task.result.len, (const char *)found[i].task.result.data);
    } while (cursor.len > 0);
}

int main(void)
{
    kl_arena arena = {0};
    kl_job_info info;
    kl_store *store;
    kl_queue *queue;
    must(kl_store_open("memory:", NULL, &store));
    must(kl_queue_open(store, "invoices", NULL, &queue));
    kl_task_id first = submit(queue), second = submit(queue);
    work(queue);
    must(kl_job_show(queue, &second, &arena, &info));
    printf("one job: %s; %d of %d done\n", memcmp(&first, &second, sizeof first) == 0 ? "yes" : "no", (int)info.done,
           (int)info.tasks);
    show_results(queue, &first, &arena);
    kl_arena_free(&arena);
    kl_queue_close(queue);
    kl_store_close(store);
    return 0;
}
