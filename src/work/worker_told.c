/* worker_told.c - what a worker tells when its store fails.
 *
 * From: whatever calls the store.  To: the application's log.
 *
 * A call that fails is made again several times a second, by several threads: that is told now and then, for all of
 * them (told.h). It works again when everything that failed has worked. A store that tells of itself that its server
 * does not answer (away.h) is left to do so. */
#include "store/quick.h"
#include "work/worker_inside.h"

static const kl__told_words words = {"the store fails", "the store works again"};

static bool is_told(const kl_worker *worker)
{
    for (size_t i = 0; i < worker->served_count; i++) {
        if (kl__store_is_away(worker->served[i].queue->store))
            return true;
        for (const kl__partition *each = worker->served[i].pump->partitions; each; each = each->next)
            if (kl__store_is_away(each->store))
                return true;
    }
    return false;
}

void kl__worker_failed(kl_worker *worker, kl__doing doing, kl_rc rc)
{
    char text[KL_TOLD_BYTES];
    if (is_told(worker))
        return;
    worker->failing |= 1u << doing;
    if (kl_rc_class(rc) == KL_CLASS_FATAL && worker->broken_ns == 0)
        worker->broken_ns = kl__monotonic_ns();
    if (kl__told_failure(&worker->told, &words, rc, kl_error_text(), kl__monotonic_ns(), text))
        kl__worker_log(worker, KL_LOG_ERROR, text);
}

/* Who stops no longer does what failed, which proves nothing. */
void kl__worker_recovered(kl_worker *worker, kl__doing doing)
{
    char text[KL_TOLD_BYTES];
    if (worker->stopping)
        return;
    worker->failing &= ~(1u << doing);
    if (worker->failing == 0 || doing == KL_DOING_SETTLE)
        worker->broken_ns = 0;
    if (worker->failing == 0 && kl__told_success(&worker->told, &words, kl__monotonic_ns(), text))
        kl__worker_log(worker, KL_LOG_WARN, text);
}
