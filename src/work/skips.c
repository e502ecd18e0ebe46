/* skips.c - keys of which a window has left tasks out. Linear probing; removal closes the gap. */
#include "work/skips.h"

#include <string.h>

#include "base/base.h"

static uint64_t mix(uint64_t key) { return key * 0x9e3779b97f4a7c15u; }
static uint8_t tag_of(uint64_t key) { return (uint8_t)(mix(key) >> 56 | 0x80); }

static uint32_t home(const kl__skips *skips, uint64_t key)
{
    return (uint32_t)(mix(key) >> 32) & (skips->capacity - 1);
}

kl__skip *kl__skips_find(const kl__skips *skips, uint64_t key)
{
    if (skips->count == 0)
        return NULL;
    uint8_t tag = tag_of(key);
    for (uint32_t i = home(skips, key); skips->tags[i] != 0; i = (i + 1) & (skips->capacity - 1))
        if (skips->tags[i] == tag && skips->slots[i].key == key)
            return &skips->slots[i];
    return NULL;
}

/* Where an entry for the key goes, which it has the tag of from now on. */
static kl__skip *place_for(const kl__skips *skips, uint64_t key)
{
    uint32_t i = home(skips, key);
    while (skips->tags[i] != 0)
        i = (i + 1) & (skips->capacity - 1);
    skips->tags[i] = tag_of(key);
    return &skips->slots[i];
}

static bool grow(kl__skips *skips)
{
    kl__skips bigger = {.capacity = skips->capacity ? skips->capacity * 2 : 16, .count = skips->count};
    bigger.slots = kl__alloc_zeroed(bigger.capacity, sizeof *bigger.slots + sizeof *bigger.tags);
    if (!bigger.slots)
        return false;
    bigger.tags = (uint8_t *)(bigger.slots + bigger.capacity);
    for (uint32_t i = 0; i < skips->capacity; i++)
        if (skips->slots[i].key != 0)
            *place_for(&bigger, skips->slots[i].key) = skips->slots[i];
    kl__free(skips->slots);
    *skips = bigger;
    return true;
}

kl__skip *kl__skips_add(kl__skips *skips, uint64_t key)
{
    KL_ASSERT(key != 0);
    if (skips->count == KL_SKIPS_MAX)
        return NULL;
    if ((uint64_t)skips->count * 2 >= skips->capacity && !grow(skips))
        return NULL;
    kl__skip *skip = place_for(skips, key);
    *skip = (kl__skip){.key = key};
    skips->count++;
    return skip;
}

void kl__skips_remove(kl__skips *skips, kl__skip *skip)
{
    uint32_t mask = skips->capacity - 1, hole = (uint32_t)(skip - skips->slots);
    for (uint32_t i = (hole + 1) & mask; skips->tags[i] != 0; i = (i + 1) & mask) {
        if (((i - home(skips, skips->slots[i].key)) & mask) < ((i - hole) & mask))
            continue; /* stands between its home and the hole: must stay behind it */
        skips->slots[hole] = skips->slots[i];
        skips->tags[hole] = skips->tags[i];
        hole = i;
    }
    skips->slots[hole].key = 0;
    skips->tags[hole] = 0;
    skips->count--;
}

void kl__skips_free(kl__skips *skips)
{
    kl__free(skips->slots);
    memset(skips, 0, sizeof *skips);
}
