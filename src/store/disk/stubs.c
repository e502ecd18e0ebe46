/* stubs.c - slots in slabs, and a table of ids over them.
 *
 * The table is cut into STRIPES by the id's hash. Each is an open-addressed array of slot numbers that grows by
 * half when it is three quarters full: no call ever moves more than a 256th of the table, and half of it is used. The
 * top four bits of an element are bits of the hash, so that 15 of 16 strangers on the way are passed without looking at
 * their slots, which would each be a cache miss.
 *
 * B1  Every slot in use is in the table once, between the home of its hash and the next empty element.
 * B2  Elements that were removed are GONE until their stripe is built anew; GONE and used ones together are at most
 *     LOAD of the stripe. */
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
    STRIPE_MIN = 16,
    AHEAD = 16,  /* how far to fetch before a slot is looked at */
    GUESSES = 4, /* elements that are looked at for the one whose slot is to be fetched */
    TAG_SHIFT = KL_SLOT_BITS,
};

#define EMPTY       UINT32_C(0)
#define GONE        (UINT32_C(1) << TAG_SHIFT) /* slot 0 is never given out, so this is no element */
#define SLOT_OF(e)  ((e) & (uint32_t)KL_SLOTS_MAX)
#define LOAD(bytes) ((bytes) / 4 * 3)

struct stripe {
    uint32_t *elements;
    uint32_t capacity, used, gone;
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
static uint32_t tag_of(uint64_t hash) { return (uint32_t)(hash >> 8 & 15) << TAG_SHIFT; }
static uint32_t home_of(const struct stripe *stripe, uint64_t hash)
{
    return (uint32_t)(((hash >> 32) * stripe->capacity) >> 32);
}
static uint32_t next_of(const struct stripe *stripe, uint32_t at) { return at + 1 == stripe->capacity ? 0 : at + 1; }

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
        kl__free(stubs->stripes[i].elements);
    kl__free(stubs);
}

static bool is_element(uint32_t element) { return SLOT_OF(element) != 0; }

/* Puts an element behind its home; there is room. */
static void place(struct stripe *stripe, uint64_t hash, uint32_t slot)
{
    uint32_t at = home_of(stripe, hash);
    while (is_element(stripe->elements[at]))
        at = next_of(stripe, at);
    if (stripe->elements[at] == GONE)
        stripe->gone--;
    stripe->elements[at] = tag_of(hash) | slot;
    stripe->used++;
}

/* Makes room for one more: without the gone elements, and larger by half unless those were many. */
static bool rebuild(kl__stubs *stubs, struct stripe *old)
{
    struct stripe new = {.capacity = old->capacity};
    if (new.capacity == 0)
        new.capacity = STRIPE_MIN;
    else if (old->used >= LOAD(old->capacity) / 8 * 7)
        new.capacity += new.capacity / 2;
    else if (old->used < old->capacity / 4 && new.capacity > STRIPE_MIN * 2)
        new.capacity /= 2;
    new.elements = kl__alloc_zeroed(new.capacity, sizeof(*new.elements));
    if (!new.elements)
        return false;
    for (uint32_t i = 0; i < old->capacity; i++) {
        uint32_t ahead = i + AHEAD < old->capacity ? old->elements[i + AHEAD] : EMPTY;
        if (is_element(ahead))
            kl__fetch(kl__stubs_slot(stubs, SLOT_OF(ahead)));
        if (is_element(old->elements[i]))
            place(&new, hash_of(&kl__stubs_slot(stubs, SLOT_OF(old->elements[i]))->id), SLOT_OF(old->elements[i]));
    }
    kl__free(old->elements);
    *old = new;
    return true;
}

static uint32_t *find(const kl__stubs *stubs, uint32_t partition, const kl_task_id *id, uint64_t hash)
{
    const struct stripe *stripe = stripe_of(stubs, hash);
    if (!stripe->capacity)
        return NULL;
    for (uint32_t at = home_of(stripe, hash); stripe->elements[at] != EMPTY; at = next_of(stripe, at)) {
        uint32_t element = stripe->elements[at];
        if (!is_element(element) || (element & ~(uint32_t)KL_SLOTS_MAX) != tag_of(hash))
            continue;
        const kl__slot *slot = kl__stubs_slot(stubs, SLOT_OF(element));
        if (memcmp(&slot->id, id, sizeof *id) == 0 && slot->partition == partition)
            return &stripe->elements[at];
    }
    return NULL;
}

uint32_t kl__stubs_find(const kl__stubs *stubs, uint32_t partition, const kl_task_id *id)
{
    const uint32_t *element = find(stubs, partition, id, hash_of(id));
    return element ? SLOT_OF(*element) : KL_SLOT_NONE;
}

void kl__stubs_prefetch(const kl__stubs *stubs, const kl_task_id *id)
{
    uint64_t hash = hash_of(id);
    const struct stripe *stripe = stripe_of(stubs, hash);
    if (stripe->capacity)
        kl__fetch(&stripe->elements[home_of(stripe, hash)]);
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
    if (!stripe->capacity)
        return;
    for (uint32_t at = home_of(stripe, hash), i = 0; i < GUESSES && stripe->elements[at] != EMPTY; i++) {
        uint32_t element = stripe->elements[at];
        if (is_element(element) && (element & ~(uint32_t)KL_SLOTS_MAX) == tag_of(hash)) {
            kl__stubs_prefetch_number(stubs, SLOT_OF(element));
            return;
        }
        at = next_of(stripe, at);
    }
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
    if (stripe->used + stripe->gone >= LOAD(stripe->capacity) && !rebuild(stubs, stripe))
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

/* In front of an empty element nobody passes by, so neither this one nor those gone before it need a mark. */
static void take_out(struct stripe *stripe, uint32_t at)
{
    stripe->used--;
    stripe->gone++;
    stripe->elements[at] = GONE;
    if (stripe->elements[next_of(stripe, at)] != EMPTY)
        return;
    for (; stripe->elements[at] == GONE; at = at ? at - 1 : stripe->capacity - 1) {
        stripe->elements[at] = EMPTY;
        stripe->gone--;
    }
}

void kl__stubs_remove(kl__stubs *stubs, uint32_t slot)
{
    kl__slot *gone = kl__stubs_slot(stubs, slot);
    uint64_t hash = hash_of(&gone->id);
    struct stripe *stripe = stripe_of(stubs, hash);
    uint32_t *element = find(stubs, gone->partition, &gone->id, hash);
    KL_ASSERT(element && SLOT_OF(*element) == slot);
    take_out(stripe, (uint32_t)(element - stripe->elements));
    gone->segment = stubs->free_first;
    stubs->free_first = slot;
    atomic_store_explicit(&stubs->count, stubs->count - 1, memory_order_relaxed);
}

uint64_t kl__stubs_count(const kl__stubs *stubs) { return atomic_load_explicit(&stubs->count, memory_order_relaxed); }
