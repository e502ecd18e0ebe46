/* stubs.c - slots in slabs, and a table of ids over them.
 *
 * The table is cut into STRIPES by the id's hash, and no call ever moves more than one of them. A stripe is an array of
 * buckets, each a cache line with room for twelve elements. An element is a slot number and a tag, a byte of the hash,
 * so that strangers are passed without looking at their slots, which would each be a cache miss. One whose bucket is
 * full goes into the next that is not, and every bucket on its way counts it: a search ends at the first bucket that
 * nobody has passed, and what is removed leaves no trace.
 *
 * B1  Every slot in use is in the table once, in the home bucket of its hash or behind it.
 * B2  `passed` of a bucket is the number of elements whose home is that bucket or one before it, and that stand
 *     behind. */
#include "store/disk/stubs.h"

#include <stdatomic.h>
#include <string.h>

#include "base/base.h"
#include "base/fetch.h"

enum {
    SLAB_BITS = 15,
    SLAB = 1 << SLAB_BITS, /* slots; 1.8 MiB */
    SLABS_MAX = 1 << (KL_SLOT_BITS - SLAB_BITS),
    STRIPES = 256,
    BUCKET = 12, /* elements */
    FEW = 4,     /* buckets of a stripe, which keeps at least so many once it has them */
    MANY = 256,  /* from then on it grows by a quarter instead of a half, to save memory */
    AHEAD = 16,  /* how far to fetch before a slot is looked at */
    FREE = 0,    /* the tag of a free element, and of no other */
};

#define MOST(buckets)  ((buckets)*BUCKET / 8 * 7) /* elements that so many buckets take before there must be more, */
#define LEAST(buckets) ((buckets)*BUCKET / 8)     /* and fewer than these are moved into half as many */

struct bucket {
    uint32_t slots[BUCKET];
    uint8_t tags[BUCKET];
    uint32_t passed;
};
_Static_assert(sizeof(struct bucket) == KL_CACHE_LINE,
               "an element is found with one cache miss, and its slot with another");

struct stripe {
    struct bucket *buckets;
    uint32_t capacity; /* buckets */
    uint32_t used;     /* elements */
};

struct kl__stubs {
    kl__slot *slabs[SLABS_MAX];
    uint32_t slots;          /* that were ever given out, the unused slot 0 included */
    uint32_t free_first;     /* a list through `segment` */
    _Atomic(uint64_t) count; /* changed by one at a time, read by any */
    struct stripe stripes[STRIPES];
};

static uint64_t hash_of(const kl_task_id *id)
{
    uint64_t low, high;
    memcpy(&low, id->bytes, 8);
    memcpy(&high, id->bytes + 8, 8);
    uint64_t hash = (low ^ (high << 32 | high >> 32)) * 0x9e3779b97f4a7c15u;
    hash = (hash ^ (hash >> 32)) * 0xd6e8feb86659fd93u;
    return hash ^ (hash >> 32);
}

/* Stripe, tag and home are taken from different bits. */
static struct stripe *stripe_of(const kl__stubs *stubs, uint64_t hash)
{
    return (struct stripe *)&stubs->stripes[hash & (STRIPES - 1)];
}
static uint8_t tag_of(uint64_t hash)
{
    uint8_t tag = (uint8_t)(hash >> 8);
    return tag == FREE ? 1 : tag;
}
static struct bucket *home_of(const struct stripe *stripe, uint64_t hash)
{
    return &stripe->buckets[((hash >> 32) * stripe->capacity) >> 32];
}
static struct bucket *next_of(const struct stripe *stripe, struct bucket *bucket)
{
    return bucket + 1 == stripe->buckets + stripe->capacity ? stripe->buckets : bucket + 1;
}

kl__slot *kl__stubs_slot(const kl__stubs *stubs, uint32_t slot)
{
    return &stubs->slabs[slot >> SLAB_BITS][slot & (SLAB - 1)];
}

kl__stubs *kl__stubs_open(void)
{
    kl__stubs *stubs = kl__alloc_zeroed(1, sizeof *stubs);
    if (stubs)
        stubs->slots = 1;
    return stubs;
}

void kl__stubs_close(kl__stubs *stubs)
{
    if (!stubs)
        return;
    for (size_t i = 0; i < SLABS_MAX; i++)
        kl__free(stubs->slabs[i]);
    for (size_t i = 0; i < STRIPES; i++)
        kl__free(stubs->stripes[i].buckets);
    kl__free(stubs);
}

/* The top bit of each byte that is the tag. */
static uint64_t equal_bytes(uint64_t bytes, uint8_t tag)
{
    const uint64_t ones = UINT64_C(0x0101010101010101), rests = ones * 0x7f;
    uint64_t differ = bytes ^ ones * tag;
    return ~(((differ & rests) + rests) | differ | rests);
}

/* The elements with that tag: bit 8 * n is the n-th, and bit 8 * n + 1 the eighth behind it. */
static uint64_t tagged(const struct bucket *bucket, uint8_t tag)
{
    uint64_t low;
    uint32_t high;
    memcpy(&low, bucket->tags, sizeof low);
    memcpy(&high, bucket->tags + sizeof low, sizeof high);
    return equal_bytes(low, tag) >> 7 | (equal_bytes(high, tag) & UINT32_MAX) >> 6;
}
static uint32_t first_of(uint64_t elements)
{
    uint32_t bit = (uint32_t)__builtin_ctzll(elements);
    return bit / 8 + bit % 8 * 8;
}

/* Puts an element into its home or behind it; there is room. */
static void place(struct stripe *stripe, uint64_t hash, uint32_t slot)
{
    struct bucket *bucket = home_of(stripe, hash);
    uint64_t free;
    for (; !(free = tagged(bucket, FREE)); bucket = next_of(stripe, bucket))
        bucket->passed++;
    bucket->slots[first_of(free)] = slot;
    bucket->tags[first_of(free)] = tag_of(hash);
    stripe->used++;
}

static uint32_t slot_at(const struct stripe *stripe, uint32_t element)
{
    return stripe->buckets[element / BUCKET].slots[element % BUCKET];
}

/* Into so many buckets; false: out of memory, nothing changed. */
static bool rebuild(const kl__stubs *stubs, struct stripe *old, uint32_t capacity)
{
    struct stripe new = {.capacity = capacity};
    new.buckets = kl__alloc_aligned(KL_CACHE_LINE, capacity, sizeof *new.buckets);
    if (!new.buckets)
        return false;
    for (uint32_t i = 0, end = old->capacity * BUCKET; i < end; i++) {
        uint32_t slot = slot_at(old, i), ahead = i + AHEAD < end ? slot_at(old, i + AHEAD) : KL_SLOT_NONE;
        if (ahead != KL_SLOT_NONE)
            kl__fetch(kl__stubs_slot(stubs, ahead));
        if (slot != KL_SLOT_NONE)
            place(&new, hash_of(&kl__stubs_slot(stubs, slot)->id), slot);
    }
    kl__free_large(old->buckets, old->capacity * sizeof *old->buckets);
    *old = new;
    return true;
}

/* Where an element is; no bucket: it is not there. */
struct found {
    struct bucket *bucket;
    uint32_t element;
};

static struct found find(const kl__stubs *stubs, uint32_t partition, const kl_task_id *id, uint64_t hash)
{
    const struct stripe *stripe = stripe_of(stubs, hash);
    uint8_t tag = tag_of(hash);
    struct bucket *bucket = stripe->capacity ? home_of(stripe, hash) : NULL;
    for (uint32_t i = 0; i < stripe->capacity; i++) { /* every bucket may have been passed */
        for (uint64_t alike = tagged(bucket, tag); alike; alike &= alike - 1) {
            const kl__slot *slot = kl__stubs_slot(stubs, bucket->slots[first_of(alike)]);
            if (memcmp(&slot->id, id, sizeof *id) == 0 && slot->partition == partition)
                return (struct found){bucket, first_of(alike)};
        }
        if (bucket->passed == 0)
            break;
        bucket = next_of(stripe, bucket);
    }
    return (struct found){0};
}

uint32_t kl__stubs_find(const kl__stubs *stubs, uint32_t partition, const kl_task_id *id)
{
    struct found found = find(stubs, partition, id, hash_of(id));
    return found.bucket ? found.bucket->slots[found.element] : KL_SLOT_NONE;
}

void kl__stubs_prefetch(const kl__stubs *stubs, const kl_task_id *id)
{
    uint64_t hash = hash_of(id);
    const struct stripe *stripe = stripe_of(stubs, hash);
    if (stripe->capacity)
        kl__fetch(home_of(stripe, hash));
}

void kl__stubs_prefetch_number(const kl__stubs *stubs, uint32_t slot)
{
    const kl__slot *ahead = kl__stubs_slot(stubs, slot);
    kl__fetch(ahead);
    kl__fetch((const char *)(ahead + 1) - 1);
}

void kl__stubs_prefetch_slot(const kl__stubs *stubs, const kl_task_id *id)
{
    uint64_t hash = hash_of(id);
    const struct stripe *stripe = stripe_of(stubs, hash);
    const struct bucket *home = stripe->capacity ? home_of(stripe, hash) : NULL;
    uint64_t alike = home ? tagged(home, tag_of(hash)) : 0;
    if (alike)
        kl__stubs_prefetch_number(stubs, home->slots[first_of(alike)]);
}

static uint32_t take_slot(kl__stubs *stubs)
{
    uint32_t slot = stubs->free_first;
    if (slot != KL_SLOT_NONE) {
        stubs->free_first = kl__stubs_slot(stubs, slot)->segment;
        if (stubs->free_first != KL_SLOT_NONE)
            kl__stubs_prefetch_number(stubs, stubs->free_first); /* most adds are followed by another */
        return slot;
    }
    if (stubs->slots > KL_SLOTS_MAX)
        return KL_SLOT_NONE;
    kl__slot **slab = &stubs->slabs[stubs->slots >> SLAB_BITS];
    if (!*slab)
        *slab = kl__alloc(SLAB * sizeof(**slab));
    if (!*slab)
        return KL_SLOT_NONE;
    return stubs->slots++;
}

uint32_t kl__stubs_add(kl__stubs *stubs, uint32_t partition, const kl_task_id *id)
{
    uint64_t hash = hash_of(id);
    struct stripe *stripe = stripe_of(stubs, hash);
    if (stripe->used >= MOST(stripe->capacity) &&
        !rebuild(stubs, stripe, stripe->capacity + stripe->capacity / (stripe->capacity < MANY ? 2 : 4) + 1))
        return KL_SLOT_NONE;
    uint32_t slot = take_slot(stubs);
    if (slot == KL_SLOT_NONE)
        return KL_SLOT_NONE;
    kl__stubs_slot(stubs, slot)->id = *id;
    kl__stubs_slot(stubs, slot)->partition = (uint16_t)partition;
    place(stripe, hash, slot);
    atomic_store_explicit(&stubs->count, stubs->count + 1, memory_order_relaxed);
    return slot;
}

static void take_out(struct stripe *stripe, struct bucket *home, struct found found)
{
    for (struct bucket *bucket = home; bucket != found.bucket; bucket = next_of(stripe, bucket))
        bucket->passed--;
    found.bucket->slots[found.element] = KL_SLOT_NONE;
    found.bucket->tags[found.element] = FREE;
    stripe->used--;
}

void kl__stubs_remove(kl__stubs *stubs, uint32_t slot)
{
    kl__slot *gone = kl__stubs_slot(stubs, slot);
    uint64_t hash = hash_of(&gone->id);
    struct stripe *stripe = stripe_of(stubs, hash);
    struct found found = find(stubs, gone->partition, &gone->id, hash);
    KL_ASSERT(found.bucket && found.bucket->slots[found.element] == slot);
    take_out(stripe, home_of(stripe, hash), found);
    if (stripe->used < LEAST(stripe->capacity) && stripe->capacity >= 2 * FEW)
        (void)rebuild(stubs, stripe, stripe->capacity / 2); /* without memory it stays as it is */
    gone->partition = 0;                                    /* no partition has that number */
    gone->segment = stubs->free_first;
    stubs->free_first = slot;
    atomic_store_explicit(&stubs->count, stubs->count - 1, memory_order_relaxed);
}

kl__slot *kl__stubs_next(const kl__stubs *stubs, uint32_t *number, uint32_t end)
{
    while (*number < end && *number < stubs->slots) {
        kl__slot *slot = kl__stubs_slot(stubs, (*number)++);
        if (slot->partition)
            return slot;
    }
    return NULL;
}

uint32_t kl__stubs_end(const kl__stubs *stubs) { return stubs->slots; }

uint64_t kl__stubs_count(const kl__stubs *stubs) { return atomic_load_explicit(&stubs->count, memory_order_relaxed); }
