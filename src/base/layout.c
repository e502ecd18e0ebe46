/* layout.c - from a key to a partition, a shard and a lane, and what those are called.
 *
 * Each level hashes the key with a seed of its own and uses the hash's top bits. One hash cut into pieces, or a weak
 * hash with a prefix byte per level, ties shard to partition: with FNV-1a half of the (partition, shard) cells stay
 * empty at 4x4, and whoever doubles the partitions gains nothing (tests/base/test_layout.c shows it). */
#include "base/layout.h"

#include <stdio.h>

#include "base/base.h"
#include "base/hash.h"

_Static_assert(KL_SHARDS_MAX == 1 << (4 * KL_SHARD_PREFIX_LEN_MAX), "four bits a digit");
_Static_assert(KL_SHARD_NAME_BYTES == KL_SHARD_PREFIX_LEN_MAX + 1, "a name is its digits and a terminator");

static kl_rc check_prefix_len(int64_t len)
{
    if (len < 1)
        return kl__fail(
            KL_EINVAL,
            "shard_prefix_len is %lld, but a shard's name needs a digit: write 1 (16 shards a partition) to "
            "4 (65536)",
            (long long)len);
    if (len > KL_SHARD_PREFIX_LEN_MAX)
        return kl__fail(KL_EINVAL,
                        "shard_prefix_len is %lld, but beyond 4 digits (65536 shards a partition) a worker would spend "
                        "its time on empty shards: write 1 to 4, and more partitions for more room",
                        (long long)len);
    return KL_OK;
}

kl_rc kl_layout_init(int64_t partitions, int64_t shard_prefix_len, kl_layout *ret_layout)
{
    if (partitions < 1 || partitions > KL_PARTITIONS_MAX)
        return kl__fail(KL_EINVAL,
                        "partitions is %lld: write 1 (the queue as it is) to %d; each partition is a queue of its own "
                        "that somebody must own and read",
                        (long long)partitions, KL_PARTITIONS_MAX);
    kl_rc rc = check_prefix_len(shard_prefix_len);
    if (rc != KL_OK)
        return rc;
    *ret_layout = (kl_layout){(uint32_t)partitions, (uint32_t)shard_prefix_len};
    return KL_OK;
}

uint32_t kl_layout_shards(const kl_layout *layout)
{
    KL_ASSERT(kl__layout_valid(layout));
    return UINT32_C(1) << kl__shard_bits(layout);
}

uint32_t kl_partition_of(const kl_layout *layout, kl_bytes key)
{
    KL_ASSERT(kl__layout_valid(layout));
    KL_ASSERT(key.len > 0);
    return kl__hash_scale(kl__hash(key, KL_SEED_PARTITION), layout->partitions);
}

uint32_t kl_shard_of(const kl_layout *layout, kl_bytes key)
{
    KL_ASSERT(kl__layout_valid(layout));
    KL_ASSERT(key.len > 0);
    return (uint32_t)(kl__hash(key, KL_SEED_SHARD) >> (64 - kl__shard_bits(layout)));
}

uint32_t kl_lane_of(kl_bytes key)
{
    if (key.len == 0)
        return 0;
    uint32_t lane = (uint32_t)(kl__hash(key, KL_SEED_LANE) >> 40);
    return lane ? lane : 1;
}

const char *kl__quote(kl_bytes text, char ret_quoted[KL_QUOTE_BYTES])
{
    enum { SHOWN_MAX = KL_QUOTE_BYTES - 6 }; /* two quotes, three dots, a terminator */
    size_t shown = text.len <= SHOWN_MAX ? text.len : SHOWN_MAX;
    char *out = ret_quoted;
    *out++ = '"';
    for (size_t i = 0; i < shown; i++) {
        char c = ((const char *)text.data)[i];
        bool prints = c >= ' ' && c <= '~';
        *out++ = (char)(prints ? c : '?');
    }
    strcpy(out, shown < text.len ? "...\"" : "\"");
    return ret_quoted;
}

void kl_shard_name(const kl_layout *layout, uint32_t shard, char ret_name[KL_SHARD_NAME_BYTES])
{
    KL_ASSERT(shard < kl_layout_shards(layout));
    for (uint32_t i = layout->shard_prefix_len; i > 0; i--, shard >>= 4)
        ret_name[i - 1] = "0123456789abcdef"[shard & 15];
    ret_name[layout->shard_prefix_len] = '\0';
}

static kl_rc fail_name(const kl_layout *layout, kl_bytes name, size_t column, const char *why)
{
    char quoted[KL_QUOTE_BYTES], last[KL_SHARD_NAME_BYTES];
    kl_shard_name(layout, kl_layout_shards(layout) - 1, last);
    return kl__fail(KL_EINVAL, "the shard %s at column %zu %s: write %u hex digit%s, %.*s to %s",
                    kl__quote(name, quoted), column, why, layout->shard_prefix_len,
                    layout->shard_prefix_len == 1 ? "" : "s", (int)layout->shard_prefix_len, "0000", last);
}

kl_rc kl__shard_parse_at(const kl_layout *layout, kl_bytes name, size_t column, uint32_t *ret_shard)
{
    KL_ASSERT(kl__layout_valid(layout));
    uint32_t shard = 0;
    if (name.len == 0)
        return fail_name(layout, name, column, "is empty");
    for (size_t i = 0; i < name.len; i++) {
        int digit = kl__hex_digit(((const char *)name.data)[i]);
        if (digit < 0)
            return fail_name(layout, name, column, "is not a hex number");
        shard = shard << 4 | (uint32_t)digit;
    }
    if (name.len != layout->shard_prefix_len) {
        char why[80];
        snprintf(why, sizeof why, "has %zu digit%s, but this queue's shards have %u", name.len,
                 name.len == 1 ? "" : "s", layout->shard_prefix_len);
        return fail_name(layout, name, column, why);
    }
    *ret_shard = shard;
    return KL_OK;
}

kl_rc kl_shard_parse(const kl_layout *layout, kl_bytes name, uint32_t *ret_shard)
{
    return kl__shard_parse_at(layout, name, 1, ret_shard);
}

kl_rc kl_partition_name(const kl_layout *layout, const char *queue, uint32_t partition, size_t size, char *ret_name)
{
    KL_ASSERT(kl__layout_valid(layout));
    char suffix[16] = "";
    if (!queue || !*queue)
        return kl__fail(KL_EINVAL, "the queue has no name: give it one, its partitions are named after it");
    if (partition >= layout->partitions)
        return kl__fail(KL_EINVAL, "there is no partition %u: this queue has %u, counted from 0", partition,
                        layout->partitions);
    if (partition > 0)
        snprintf(suffix, sizeof suffix, "__p%u", partition);
    size_t queue_len = strlen(queue), suffix_len = strlen(suffix);
    if (queue_len >= size || suffix_len >= size - queue_len)
        return kl__fail(KL_EINVAL,
                        "the partition's name takes %zu bytes with its terminator: make room for them, not %zu",
                        queue_len + suffix_len + 1, size);
    memcpy(ret_name, queue, queue_len);
    memcpy(ret_name + queue_len, suffix, suffix_len + 1);
    return KL_OK;
}
