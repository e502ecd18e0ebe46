/* wait.h - condition variables on the monotonic clock, whose waits cannot be cancelled: whoever waits holds a mutex
 * that others need, so the thread must come back and release it. The same for whatever else must come to its end. And
 * yielding, while it is cheap, and spinning. */
#ifndef KL_WAIT_H
#define KL_WAIT_H

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"

/* The thread is not cancelled until the second call, which is given what the first returned. Pairs may be nested. */
static inline int kl__cancel_off(void)
{
    int state;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
    return state;
}

static inline void kl__cancel_again(int state) { pthread_setcancelstate(state, NULL); }

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
    int state = kl__cancel_off(), error = 0;
    if (until_ns == KL_NEVER) {
        pthread_cond_wait(cond, mutex);
    } else {
        struct timespec until = {.tv_sec = until_ns / 1000000000, .tv_nsec = until_ns % 1000000000};
        error = pthread_cond_timedwait(cond, mutex, &until);
    }
    kl__cancel_again(state);
    return error == 0;
}

/* Lets other threads have the core. False: better sleep. On a machine that is busy with something else, that gets the
 * core for a whole slice of time, however soon there is work here; a thread that sleeps gets it back when it is woken.
 * So after a yield of more than dear_ns there are none for a while: until *dear_until_ns, at first 0. */
static inline bool kl__yield(int64_t dear_ns, int64_t *dear_until_ns)
{
    enum { HEED_TIMES = 4 };
    int64_t start_ns = kl__monotonic_ns();
    if (start_ns < *dear_until_ns)
        return false;
    sched_yield();
    int64_t end_ns = kl__monotonic_ns(), took_ns = end_ns - start_ns;
    if (took_ns > dear_ns)
        *dear_until_ns = end_ns + HEED_TIMES * took_ns;
    return true;
}

/* Tells the processor that this is a loop which waits. */
static inline void kl__relax(void)
{
#if defined __x86_64__ || defined __i386__
    __builtin_ia32_pause();
#elif defined __aarch64__
    __asm__ volatile("yield");
#endif
}

/* Sleeps for so long, less than a second; not to be cancelled either. */
static inline void kl__nap(int64_t ns)
{
    int state = kl__cancel_off();
    nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
    kl__cancel_again(state);
}

#endif
