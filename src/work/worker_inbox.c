/* worker_inbox.c - a thread that takes in what was left in the stores by other means, such as SQL.
 *
 * From: the stores that have an inbox (KL_STORE_INBOX).  To: the same stores, as tasks that the scout finds.
 *
 * It asks for one queue after the other, and when there was nothing it waits in the store for the first of them: that
 * ends as soon as something is left there, for whichever queue. What comes between the two is found a little later. Of
 * several processes one takes in at a time; the others find nothing and ask again later. */
#include "work/worker_inside.h"

enum { WAIT_MS = 100, ASK_MS = 20, FAILED_MS = 250 };

static bool has_inbox(const kl__served *served)
{
    return (kl_store_info_of(served->queue->store).can & KL_STORE_INBOX) != 0;
}

bool kl__worker_has_inbox(const kl_worker *worker)
{
    for (size_t i = 0; i < worker->served_count; i++)
        if (has_inbox(&worker->served[i]))
            return true;
    return false;
}

/* The mutex is held, and left meanwhile. */
static kl_rc take_in(kl_worker *worker, kl_queue *queue, int64_t wait_ms, size_t *ret_count)
{
    pthread_mutex_unlock(&worker->mutex);
    kl_rc rc = kl__queue_take_in(queue, wait_ms, worker->opts.log, worker->opts.log_ctx, ret_count);
    pthread_mutex_lock(&worker->mutex);
    if (rc != KL_OK)
        kl__worker_failed(worker, KL_DOING_TAKE_IN, rc);
    return rc;
}

/* Every queue once; with `waits` it waits at the first of them. */
static bool take_all(kl_worker *worker, bool waits, size_t *ret_count)
{
    bool good = true;
    *ret_count = 0;
    for (size_t i = 0; i < worker->served_count && !worker->closing; i++) {
        size_t count = 0;
        if (!has_inbox(&worker->served[i]))
            continue;
        good &= take_in(worker, worker->served[i].queue, waits ? WAIT_MS : 0, &count) == KL_OK;
        waits = false;
        *ret_count += count;
    }
    if (good)
        kl__worker_worked(worker, KL_DOING_TAKE_IN);
    return good;
}

void *kl__worker_inbox(void *context)
{
    kl_worker *worker = context;
    pthread_mutex_lock(&worker->mutex);
    for (size_t count = 0; !worker->closing && !worker->stopping;) {
        bool good = take_all(worker, count == 0, &count);
        if (count > 0) {
            worker->look_now = true;
            pthread_cond_signal(&worker->scout);
        } else if (!worker->closing && !worker->stopping) {
            kl__worker_wait(worker, &worker->changed, good ? ASK_MS : FAILED_MS);
        }
    }
    pthread_mutex_unlock(&worker->mutex);
    return NULL;
}
