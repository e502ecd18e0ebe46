/* tally.c - see tally.h. */
#include "tally.h"

#include <time.h>

#include "harness.h"

enum { PATIENCE_SECONDS = 60 };

void tally_add(struct tally *tally, int64_t number)
{
    pthread_mutex_lock(&tally->mutex);
    tally->value += number;
    pthread_cond_broadcast(&tally->changed);
    pthread_mutex_unlock(&tally->mutex);
}

bool tally_await(struct tally *tally, int64_t number)
{
    struct timespec until;
    int error = 0;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PATIENCE_SECONDS;
    pthread_mutex_lock(&tally->mutex);
    while (tally->value < number && !error)
        error = pthread_cond_timedwait(&tally->changed, &tally->mutex, &until);
    int64_t value = tally->value;
    pthread_mutex_unlock(&tally->mutex);
    if (value < number)
        test_fail(__FILE__, __LINE__, "a tally came to %" PRId64 ", expected %" PRId64, value, number);
    return value >= number;
}

int64_t tally_read(struct tally *tally)
{
    pthread_mutex_lock(&tally->mutex);
    int64_t value = tally->value;
    pthread_mutex_unlock(&tally->mutex);
    return value;
}
