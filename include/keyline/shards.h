/* shards.h - sets of shards: what a worker may take.
 *
 *     kl_shards mine;
 *     if (kl_shards_parse(&layout, kl_str("00-3f,80"), &mine) != KL_OK) ...
 *     for (int64_t shard = kl_shards_next(&mine, 0); shard >= 0; shard = kl_shards_next(&mine, shard + 1)) ...
 *
 * A set is a plain value of 8 KiB without pointers: copy it, throw it away. Any number of threads may read one set;
 * making one allocates nothing and can be done in any thread. */
#ifndef KEYLINE_SHARDS_H
#define KEYLINE_SHARDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "keyline/bytes.h"
#include "keyline/error.h"
#include "keyline/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KL_SLICE_WORKERS_MAX 65536 /* as many as there can be shards: more could only idle */

typedef struct kl_shards {
    kl_layout layout;
    uint64_t bits[KL_SHARDS_MAX / 64]; /* shard s is bit s % 64 of word s / 64 */
} kl_shards;

/* No shard, and every shard, of a partition with this layout. */
KL_API void kl_shards_none(const kl_layout *layout, kl_shards *ret_shards);
KL_API void kl_shards_all(const kl_layout *layout, kl_shards *ret_shards);

/* Reads a list of shards and ranges, both ends included: `a`, `0,1,8-f`, `00-3f`. Blanks around a comma and shards
 * named twice are fine; `none` is the empty set. KL_EINVAL: a name with the wrong number of digits for the layout, a
 * range that runs backwards, an empty item, or anything else; the sentence quotes the piece, gives its column
 * (counted in bytes from 1) and says what to write. */
KL_API KL_MUST_USE kl_rc kl_shards_parse(const kl_layout *layout, kl_bytes text, kl_shards *ret_shards);

/* The share of worker number `worker` (from 0) out of `workers`: of S shards those from S * worker / workers, rounded
 * down, to before S * (worker + 1) / workers, rounded down; docs/routing.md says it for other languages. The shares of
 * workers 0 .. workers-1 cover every shard exactly once; with more workers than shards some get none.
 * KL_EINVAL: no such worker, or more than KL_SLICE_WORKERS_MAX. */
KL_API KL_MUST_USE kl_rc kl_shards_slice(const kl_layout *layout, int64_t worker, int64_t workers,
                                         kl_shards *ret_shards);

KL_API uint32_t kl_shards_count(const kl_shards *shards);

/* False also for a number that is no shard of the layout. */
KL_API bool kl_shards_contains(const kl_shards *shards, uint32_t shard);

/* The first shard of the set that is `from` or above, or -1 when there is none. */
KL_API int64_t kl_shards_next(const kl_shards *shards, int64_t from);

/* The set as text that kl_shards_parse reads back: ascending, neighbours joined into ranges, `none` when empty. Writes
 * at most size bytes, always with a terminator unless size is 0, and returns the length of the whole text without it:
 * call again with more room when that is size or more. */
KL_API size_t kl_shards_print(const kl_shards *shards, char *buffer, size_t size);

#ifdef __cplusplus
}
#endif
#endif
