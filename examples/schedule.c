/* schedule.c - tasks that are put at the times that five fields say.
 *
 *     cc schedule.c $(pkg-config --cflags --libs keyline) -o schedule && ./schedule
 *
 * Any worker of the queue fires what is due, each time once. Here the schedule is asked when it would fire around the
 * night in which Zurich's clocks go forward, and is then run at once instead of waiting for it. */
#include <keyline/keyline.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static const char when[] = "30 2 * * *", zone[] = "Europe/Zurich";

/* Says what went wrong and what to do about it. */
static void must(kl_rc rc)
{
    if (rc == KL_OK)
        return;
    fprintf(stderr, "%s\n", kl_error_text());
    exit(1);
}

/* On March 29, 2026 there is no half past two: it fires at the first moment after the step, 3:00 in Zurich. */
static void show_times(void)
{
    int64_t at_ms = INT64_C(1774656000000); /* 2026-03-28 00:00 UTC */
    for (int i = 0; i < 3; i++) {
        char text[32];
        must(kl_cron_next(when, zone, at_ms, &at_ms));
        time_t seconds = (time_t)(at_ms / 1000);
        strftime(text, sizeof text, "%Y-%m-%d %H:%M", gmtime(&seconds));
        printf("fires at %s UTC\n", text);
    }
}

/* Which schedule put a task, and for which time, stands in its headers. */
static kl_outcome report(kl_work *work, void *ctx)
{
    const kl_task_extra *extra = kl_work_extra(work);
    (void)ctx;
    for (size_t i = 0; i < extra->header_count; i++)
        if (extra->headers[i].name.len == 16 && memcmp(extra->headers[i].name.data, "keyline-schedule", 16) == 0)
            printf("report for the schedule %.*s\n", (int)extra->headers[i].value.len,
                   (const char *)extra->headers[i].value.data);
    return KL_DONE;
}

/* A worker that ends by itself when nothing is left to do. */
static void work(kl_queue *queue)
{
    kl_handler handler = {.kind = "report", .fn = report};
    kl_worker_queue served = {.queue = queue, .handlers = &handler, .handler_count = 1};
    kl_worker_opts opts = {.size = sizeof opts, .until_empty = true};
    kl_worker *worker;
    must(kl_worker_start(&served, 1, &opts, &worker));
    must(kl_worker_wait(worker, KL_FOREVER));
    kl_worker_close(worker);
}

int main(void)
{
    kl_cron nightly = {.size = sizeof nightly, .name = "nightly", .when = when, .zone = zone};
    kl_store *store;
    kl_queue *queue;
    nightly.task.kind = kl_str("report");
    show_times();
    must(kl_store_open("memory:", NULL, &store));
    must(kl_queue_open(store, "reports", NULL, &queue));
    must(kl_cron_add(queue, &nightly)); /* a program may do so each time it starts: what is the same stays as it is */
    must(kl_cron_run(queue, "nightly", NULL));
    work(queue);
    kl_queue_close(queue);
    kl_store_close(store);
    return 0;
}
