/* layout.h - where a task goes: from its key to a partition, a shard and a lane.
 *
 *     kl_layout layout;
 *     if (kl_layout_init(4, 2, &layout) != KL_OK) ...         4 partitions of 256 shards
 *     uint32_t shard = kl_shard_of(&layout, kl_str("customer-7"));
 *
 * The layout is a property of the queue: producers and workers read it from the queue's record and never choose their
 * own. The rules are the same in every language; docs/routing.md states them, tests/vectors/routing.txt proves them.
 *
 * Every function here is safe from any thread and allocates nothing. */
#ifndef KEYLINE_LAYOUT_H
#define KEYLINE_LAYOUT_H

#include <stdint.h>

#include "keyline/bytes.h"
#include "keyline/error.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KL_PARTITIONS_MAX       1024
#define KL_SHARD_PREFIX_LEN_MAX 4
#define KL_SHARDS_MAX           65536 /* 16 ^ KL_SHARD_PREFIX_LEN_MAX */
#define KL_SHARD_NAME_BYTES     5     /* the longest shard name, terminator included */
#define KL_LANE_MAX             0xffffffu

/* A value: copy it freely. Made by kl_layout_init; the functions below stop the program on one that was not. */
typedef struct kl_layout {
    uint32_t partitions;       /* 1..KL_PARTITIONS_MAX */
    uint32_t shard_prefix_len; /* hex digits of a shard's name: 1..KL_SHARD_PREFIX_LEN_MAX */
} kl_layout;

/* KL_EINVAL: a number is out of range; the sentence says what it would have meant. */
KL_API KL_MUST_USE kl_rc kl_layout_init(int64_t partitions, int64_t shard_prefix_len, kl_layout *ret_layout);

/* Shards of one partition: 16, 256, 4096 or 65536. */
KL_API uint32_t kl_layout_shards(const kl_layout *layout);

/* The key's partition and its shard. They are independent of one another: every partition gets keys of every shard.
 *
 * The key must have at least one byte. A task without a key asks for no order and may go anywhere, so the caller picks
 * (at random, or in turn); hashing "no key" would pile all such tasks into a single shard. An empty key therefore stops
 * the program at once instead of skewing a queue unseen. */
KL_API uint32_t kl_partition_of(const kl_layout *layout, kl_bytes key);
KL_API uint32_t kl_shard_of(const kl_layout *layout, kl_bytes key);

/* The lane that a task's id carries: 1..KL_LANE_MAX, or 0 for no key. Tasks of one key share a lane; tasks that share a
 * lane need not share a key. */
KL_API uint32_t kl_lane_of(kl_bytes key);

/* A shard's name: its number in hex, lower case, with as many digits as the layout says (0..f, 00..ff, ...). The shard
 * must be one of the layout's. */
KL_API void kl_shard_name(const kl_layout *layout, uint32_t shard, char ret_name[KL_SHARD_NAME_BYTES]);

/* Reads a shard's name, in lower or upper case. KL_EINVAL: it has too few or too many digits for this layout, or a
 * character that is no hex digit. */
KL_API KL_MUST_USE kl_rc kl_shard_parse(const kl_layout *layout, kl_bytes name, uint32_t *ret_shard);

/* The name of a partition: partition 0 bears the queue's own name, the others are name__p1, name__p2, ... Names are
 * only ever made, never taken apart. Writes at most size bytes, terminator included. KL_EINVAL: no such partition in
 * the layout, an empty queue name, or too little room; then ret_name is as it was. */
KL_API KL_MUST_USE kl_rc kl_partition_name(const kl_layout *layout, const char *queue, uint32_t partition, size_t size,
                                           char *ret_name);

#ifdef __cplusplus
}
#endif
#endif
