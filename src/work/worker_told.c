/* worker_told.c - what a worker tells when its store fails.
 *
 * From: whatever calls the store.  To: the application's log.
 *
 * A call that fails is made again several times a second, by several threads. Each sentence is told now and then (told.h),
 * and when all goes well again after more than a moment, that is told too. */
#include <stdio.h>

#include "work/worker_inside.h"

void kl__worker_failed(kl_worker *worker, kl__doing doing)
{
    int64_t now_ns = kl__monotonic_ns();
    if (!worker->failing)
        worker->failing_ns = now_ns;
    worker->failing |= 1u << doing;
    if (kl__told_anew(worker->told, kl_str(kl_error_text()), now_ns))
        kl__worker_log(worker, KL_LOG_ERROR, kl_error_text());
}

void kl__worker_recovered(kl_worker *worker, kl__doing doing)
{
    char text[80];
    int64_t lasted_ms = (kl__monotonic_ns() - worker->failing_ns) / 1000000;
    worker->failing &= ~(1u << doing);
    if (worker->failing || lasted_ms < KL_TOLD_FIRST_MS)
        return;
    snprintf(text, sizeof text, "what failed works again, after %.1f s", (double)lasted_ms / 1000);
    kl__worker_log(worker, KL_LOG_WARN, text);
    for (int i = 0; i < KL_TOLD_MAX; i++)
        worker->told[i].until_ns = 0; /* when it fails once more, that is news */
}
