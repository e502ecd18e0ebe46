/* random.c - where seeds come from. */
#include "base/random.h"

#include <sys/random.h>

#include "base/clock.h"

uint64_t kl__random_seed(void)
{
    uint64_t seed;
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) == (ssize_t)sizeof seed)
        return seed;
    seed = (uint64_t)kl__monotonic_ns() ^ (uint64_t)(uintptr_t)&seed;
    return kl__random_next(&seed);
}
