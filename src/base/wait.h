/* wait.h - condition variables on the monotonic clock, whose waits cannot be cancelled: whoever waits holds a mutex that
 * others need, so the thread must come back and release it. */
#ifndef KL_WAIT_H
#define KL_WAIT_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"

static inline void kl__cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attributes);
    pthread_condattr_destroy(&attributes);
}

/* Waits for a signal until the monotonic clock shows until_ns (KL_NEVER: for ever). False: it does. */
static inline bool kl__cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex, int64_t until_ns)
{
    int state, error = 0;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
    if (until_ns == KL_NEVER) {
        pthread_cond_wait(cond, mutex);
    } else {
        struct timespec until = {.tv_sec = until_ns / 1000000000, .tv_nsec = until_ns % 1000000000};
        error = pthread_cond_timedwait(cond, mutex, &until);
    }
    pthread_setcancelstate(state, NULL);
    return error == 0;
}

#endif
