/* away.c - see away.h. */
#include "store/away.h"

#include "base/clock.h"

void kl__away_open(kl__away *away, const kl__told_words *words, const kl_store_opts *opts)
{
    *away = (kl__away){.words = words, .log = opts->log, .log_ctx = opts->log_ctx};
    pthread_mutex_init(&away->mutex, NULL);
}

void kl__away_close(kl__away *away) { pthread_mutex_destroy(&away->mutex); }

/* Whoever logs does so without the mutex: a log may be slow. */
static void tell(const kl__away *away, kl_log_level level, const char *text)
{
    if (away->log)
        away->log(away->log_ctx, level, text);
}

void kl__away_failed(kl__away *away, kl_rc rc, const char *sentence)
{
    char text[KL_TOLD_BYTES];
    pthread_mutex_lock(&away->mutex);
    bool anew = kl__told_failure(&away->told, away->words, rc, sentence, kl__monotonic_ns(), text);
    atomic_store(&away->failing, true);
    pthread_mutex_unlock(&away->mutex);
    if (anew)
        tell(away, KL_LOG_ERROR, text);
}

void kl__away_answered(kl__away *away)
{
    char text[KL_TOLD_BYTES];
    pthread_mutex_lock(&away->mutex);
    bool ended = kl__told_success(&away->told, away->words, kl__monotonic_ns(), text);
    atomic_store(&away->failing, away->told.failing);
    pthread_mutex_unlock(&away->mutex);
    if (ended)
        tell(away, KL_LOG_WARN, text);
}
