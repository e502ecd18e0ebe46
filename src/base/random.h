/* random.h - small, fast, seedable randomness for jitter, random ids and tests. Not for secrets. */
#ifndef KL_RANDOM_H
#define KL_RANDOM_H

#include <stdint.h>

/* One step of SplitMix64: any seed is a good seed. */
static inline uint64_t kl__random_next(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* A number in [0, bound), without the bias of a remainder. */
static inline uint64_t kl__random_below(uint64_t *state, uint64_t bound)
{
    return (uint64_t)(((unsigned __int128)kl__random_next(state) * bound) >> 64);
}

/* A seed from the kernel; never fails (falls back to clock and address when the kernel has none to give). */
uint64_t kl__random_seed(void);

#endif
