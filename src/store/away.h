/* away.h - what an engine tells while its server does not answer, and when it does again.
 *
 * An engine tries for some time before a call fails, and callers make many calls at once; so the engine tells, once for
 * all of them (told.h), from the first try on. */
#ifndef KL_STORE_AWAY_H
#define KL_STORE_AWAY_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/told.h"
#include "keyline/store.h"

typedef struct kl__away {
    const kl__told_words *words;
    kl_log_fn *log;
    void *log_ctx;
    atomic_bool failing; /* told.failing, for those who look without the mutex */
    pthread_mutex_t mutex;
    kl__told told;
} kl__away;

void kl__away_open(kl__away *away, const kl__told_words *words, const kl_store_opts *opts);
void kl__away_close(kl__away *away);

/* The server was asked, and did not answer, or would have nobody. Any thread. */
void kl__away_failed(kl__away *away, kl_rc rc, const char *sentence);
void kl__away_answered(kl__away *away);

/* The server answered. Any thread. */
static inline void kl__away_worked(kl__away *away)
{
    if (atomic_load_explicit(&away->failing, memory_order_relaxed))
        kl__away_answered(away);
}

/* The log was told that it does not answer, and not yet that it does again: nobody else need tell it. */
static inline bool kl__away_is_told(kl__away *away)
{
    return away->log && atomic_load_explicit(&away->failing, memory_order_relaxed);
}

#endif
