/* hash.h - XXH64 with a seed per level, so that partition, shard and lane of a key are independent of one another. */
#ifndef KL_HASH_H
#define KL_HASH_H

#include <stdint.h>

#include "keyline/bytes.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { KL_SEED_PARTITION = 1, KL_SEED_SHARD = 2, KL_SEED_LANE = 3 };

static inline uint64_t kl__hash(kl_bytes key, uint64_t seed) { return XXH64(key.data, key.len, seed); }

/* By which stores tell keys apart: never 0, which means no key. */
static inline uint64_t kl__key_hash(kl_bytes key)
{
    uint64_t hash = key.len ? kl__hash(key, KL_SEED_LANE) : 0;
    return key.len && hash == 0 ? 1 : hash;
}

/* A hash that never leaves the process: XXH3, which is cheaper for short keys. What it does with long ones stays apart,
 * so that the rest can be inlined. */
static __attribute__((noinline, unused)) uint64_t kl__hash_local_long(kl_bytes key)
{
    return XXH3_64bits(key.data, key.len);
}

static inline __attribute__((always_inline, flatten)) uint64_t kl__hash_local(kl_bytes key)
{
    return key.len <= 16 ? XXH3_64bits(key.data, key.len) : kl__hash_local_long(key);
}

/* Maps a hash evenly onto [0, count): the high 64 bits of hash * count. Uses the hash's high bits. */
static inline uint32_t kl__hash_scale(uint64_t hash, uint32_t count)
{
    return (uint32_t)(((unsigned __int128)hash * count) >> 64);
}

#endif
