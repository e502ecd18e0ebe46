/* worker_told.c - what a worker tells when its store fails.
 *
 * From: whatever calls the store.  To: the application's log.
 *
 * A call that fails is made again several times a second, by several threads. Each sentence is told when it is new, and
 * then at intervals that double up to a minute; and when all goes well again after more than a moment, that is told too. */
#include <stdio.h>

#include "base/hash.h"
#include "work/worker_inside.h"

enum { FIRST_MS = 1000, LONGEST_MS = 60000 };

/* A sentence that has not come for as long as it was kept back is new. */
bool kl__told_anew(kl__told told[KL_TOLD_MAX], kl_bytes sentence, int64_t now_ns)
{
    uint64_t hash = kl__hash(sentence, 0);
    kl__told *slot = &told[0];
    for (int i = 0; i < KL_TOLD_MAX && slot->sentence != hash; i++)
        if (told[i].sentence == hash || told[i].until_ns < slot->until_ns)
            slot = &told[i];
    bool known = slot->sentence == hash && slot->rest_ns > 0;
    if (known && now_ns < slot->until_ns)
        return false;
    int64_t rest_ns =
        known && now_ns - slot->until_ns <= slot->rest_ns ? 2 * slot->rest_ns : FIRST_MS * INT64_C(1000000);
    rest_ns = rest_ns < LONGEST_MS * INT64_C(1000000) ? rest_ns : LONGEST_MS * INT64_C(1000000);
    *slot = (kl__told){hash, now_ns + rest_ns, rest_ns};
    return true;
}

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
    if (worker->failing || lasted_ms < FIRST_MS)
        return;
    snprintf(text, sizeof text, "what failed works again, after %.1f s", (double)lasted_ms / 1000);
    kl__worker_log(worker, KL_LOG_WARN, text);
    for (int i = 0; i < KL_TOLD_MAX; i++)
        worker->told[i].until_ns = 0; /* when it fails once more, that is news */
}
