/* compare.h - which of two byte strings comes first, and whether an id is one. */
#ifndef KL_COMPARE_H
#define KL_COMPARE_H

#include <stdbool.h>
#include <string.h>

#include "keyline/bytes.h"
#include "keyline/id.h"

/* Like memcmp; of two that begin alike the shorter comes first. */
static inline int kl__bytes_compare(kl_bytes a, kl_bytes b)
{
    size_t common = a.len < b.len ? a.len : b.len;
    int order = common ? memcmp(a.data, b.data, common) : 0;
    return order ? order : (a.len > b.len) - (a.len < b.len);
}

static inline bool kl__bytes_equal(kl_bytes a, kl_bytes b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}

/* All zero: no job. */
static inline bool kl__id_is_none(const kl_task_id *id)
{
    static const kl_task_id none;
    return memcmp(id, &none, sizeof none) == 0;
}

#endif
