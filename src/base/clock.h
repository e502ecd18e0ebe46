/* clock.h - the one way to ask for the time, so that a test can give its own.
 *
 * Time is passed in below the executor; only the layers that own threads hold a kl__clock. */
#ifndef KL_CLOCK_H
#define KL_CLOCK_H

#include <stdint.h>
#include <time.h>

#define KL_NEVER INT64_MAX

typedef struct kl__clock {
    int64_t (*now_ns)(void *ctx);
    void *ctx;
} kl__clock;

static inline int64_t kl__monotonic_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* The moment `wait_ms` from now; KL_NEVER when that is KL_FOREVER or beyond all clocks. */
static inline int64_t kl__deadline_ns(int64_t wait_ms)
{
    int64_t now = kl__monotonic_ns();
    return wait_ms < (KL_NEVER - now) / 1000000 ? now + wait_ms * 1000000 : KL_NEVER;
}

static inline int64_t kl__wall_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

#endif
