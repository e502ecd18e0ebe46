/* layout.h - what the files about layouts, shard sets and ids share. */
#ifndef KL_LAYOUT_H
#define KL_LAYOUT_H

#include <stdbool.h>

#include "keyline/layout.h"

enum { KL_QUOTE_BYTES = 40 };

static inline bool kl__layout_valid(const kl_layout *layout)
{
    return layout->partitions - 1 < KL_PARTITIONS_MAX && layout->shard_prefix_len - 1 < KL_SHARD_PREFIX_LEN_MAX;
}

/* Bits of a shard's number. */
static inline uint32_t kl__shard_bits(const kl_layout *layout) { return 4 * layout->shard_prefix_len; }

/* The value of a hex digit in either case, or -1. */
static inline int kl__hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Input from outside in a form fit for a sentence: in quotes, cut when long, '?' for what does not print. Returns its
 * argument. */
const char *kl__quote(kl_bytes text, char ret_quoted[KL_QUOTE_BYTES]);

/* kl_shard_parse for a name that stands at this column of a longer text. */
kl_rc kl__shard_parse_at(const kl_layout *layout, kl_bytes name, size_t column, uint32_t *ret_shard);

#endif
