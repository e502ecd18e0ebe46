/* inbox.h - how a submitted task reaches its shard, and how its memory comes back.
 *
 * A ring of slots, one per place of the shard's capacity (rounded up to a power of two), and a fixed set of tasks. Two
 * counters run forever: `tail` numbers the places that were claimed, `freed` those that were given back. A producer may
 * claim number n while n < freed + capacity: that one comparison is the capacity limit, and it also promises that slot
 * n holds a free task, because
 *
 *        slot n:   free task  --fill, publish-->  published  --drain-->  done with  --give back-->  free task
 *                  producer n                     the shard's owner                 the shard's owner
 *
 * the c-th task that is given back, whichever it is, is put into slot c + capacity for the producer with that number.
 * So a submit is one compare-and-swap and no allocation, and producers meet the owner nowhere else.
 *
 * Nearly always a task is given back when it ends. But a task that waits for its retry may have another given back in
 * its stead (shard.c, lend): then `freed` is ahead of `ended`, which numbers the tasks that have ended, until one that
 * ends is kept. Neither passes `drained`, so the slot that is written has been done with.
 *
 * Producers write `tail` and `limit`, which is what they last saw of freed + capacity; the owner writes `freed`,
 * `ended` and `drained`. The owner is whoever holds the shard's mutex. A claimed slot is published at once; until then,
 * later ones wait behind it. One bit of a published slot tells odd from even rounds of the ring, so that the owner does
 * not take a slot that it is done with for a new one. */
#ifndef KL_INBOX_H
#define KL_INBOX_H

#include <stdatomic.h>

#include "base/base.h"
#include "base/fetch.h"

enum { KL_INBOX_INDEX_BITS = 24, KL_INBOX_AHEAD = 8, KL_INBOX_DRAIN_AHEAD = 24, KL_INBOX_SLOTS_AHEAD = 64 };

/* A slot: bit 63 = published, bit 62 = in an odd round, bits 24..55 = the key's hash, bits 0..23 = which task. */
#define KL_INBOX_PUBLISHED  (UINT64_C(1) << 63)
#define KL_INBOX_ODD_ROUND  (UINT64_C(1) << 62)
#define KL_INBOX_INDEX_MASK ((UINT64_C(1) << KL_INBOX_INDEX_BITS) - 1)
#define KL_INBOX_CLOSED     (UINT64_C(1) << 63) /* in tail */
#define KL_INBOX_COUNT_MASK (~KL_INBOX_CLOSED)

typedef struct kl__inbox {
    alignas(KL_CACHE_LINE) _Atomic(uint64_t) *slots; /* this line never changes */
    uint64_t mask;
    uint64_t capacity;
    alignas(KL_CACHE_LINE) _Atomic(uint64_t) tail;
    _Atomic(uint64_t) limit;
    alignas(KL_CACHE_LINE) _Atomic(uint64_t) freed;
    _Atomic(uint64_t) ended; /* this and the next are written by the owner only */
    _Atomic(uint64_t) drained;
} kl__inbox;

KL_MUST_USE kl_rc kl__inbox_open(kl__inbox *inbox, uint32_t capacity);
void kl__inbox_close(kl__inbox *inbox);

static inline uint64_t kl__inbox_claimed(kl__inbox *inbox) { return atomic_load(&inbox->tail) & KL_INBOX_COUNT_MASK; }

/* How many places are taken. */
static inline uint64_t kl__inbox_length(kl__inbox *inbox)
{
    uint64_t freed = atomic_load_explicit(&inbox->freed, memory_order_acquire); /* first: it never passes tail */
    return kl__inbox_claimed(inbox) - freed;
}

/* No claim succeeds from now on. */
static inline void kl__inbox_shut(kl__inbox *inbox) { atomic_fetch_or(&inbox->tail, KL_INBOX_CLOSED); }

static inline bool kl__inbox_is_shut(kl__inbox *inbox) { return atomic_load(&inbox->tail) & KL_INBOX_CLOSED; }

/* Claims up to `wanted` numbers, the first of which is *ret_first; *ret_count says how many. KL_EFULL: none is free.
 * KL_ECLOSED. Neither records a sentence: the caller may want to wait. */
static inline kl_rc kl__inbox_claim(kl__inbox *inbox, uint64_t wanted, uint64_t *ret_first, uint64_t *ret_count)
{
    kl__fetch_to_write(&inbox->tail);
    uint64_t tail = atomic_load_explicit(&inbox->tail, memory_order_relaxed), limit, count;
    do {
        if (KL_UNLIKELY(tail & KL_INBOX_CLOSED))
            return KL_ECLOSED;
        limit = atomic_load_explicit(&inbox->limit, memory_order_acquire);
        if (KL_UNLIKELY(tail >= limit)) {
            limit = atomic_load_explicit(&inbox->freed, memory_order_acquire) + inbox->capacity;
            if (tail >= limit)
                return KL_EFULL;
            atomic_store_explicit(&inbox->limit, limit, memory_order_release);
        }
        count = limit - tail < wanted ? limit - tail : wanted;
    } while (!atomic_compare_exchange_weak(&inbox->tail, &tail, tail + count));
    *ret_first = tail;
    *ret_count = count;
    return KL_OK;
}

static inline _Atomic(uint64_t) *kl__inbox_slot(const kl__inbox *inbox, uint64_t number)
{
    return &inbox->slots[number & inbox->mask];
}

/* The free task that comes with a claimed number; for a number not claimed, a task that it may come with. */
static inline uint32_t kl__inbox_free_task(kl__inbox *inbox, uint64_t number)
{
    return (uint32_t)(atomic_load_explicit(kl__inbox_slot(inbox, number), memory_order_relaxed) & KL_INBOX_INDEX_MASK);
}

/* What the top bits of a published slot are in this number's round. */
static inline uint64_t kl__inbox_round(const kl__inbox *inbox, uint64_t number)
{
    return KL_INBOX_PUBLISHED | (number & (inbox->mask + 1) ? KL_INBOX_ODD_ROUND : 0);
}

static inline void kl__inbox_publish(kl__inbox *inbox, uint64_t number, uint32_t task, uint32_t hash)
{
    atomic_store_explicit(kl__inbox_slot(inbox, number),
                          kl__inbox_round(inbox, number) | (uint64_t)hash << KL_INBOX_INDEX_BITS | task,
                          memory_order_release);
}

/* How many slots are done with: the number of the next to drain. */
static inline uint64_t kl__inbox_drained(kl__inbox *inbox)
{
    return atomic_load_explicit(&inbox->drained, memory_order_relaxed);
}

/* The slot of a number that is not done with, or 0 when it is not published. */
static inline uint64_t kl__inbox_peek(kl__inbox *inbox, uint64_t number)
{
    uint64_t slot = atomic_load_explicit(kl__inbox_slot(inbox, number), memory_order_acquire);
    return (slot & (KL_INBOX_PUBLISHED | KL_INBOX_ODD_ROUND)) == kl__inbox_round(inbox, number) ? slot : 0;
}

static inline bool kl__inbox_has_next(kl__inbox *inbox) { return kl__inbox_peek(inbox, kl__inbox_drained(inbox)) != 0; }

/* A task that the owner will drain soon after this number, to be fetched into the cache; its slot has been fetched
 * before. */
static inline uint32_t kl__inbox_ahead(kl__inbox *inbox, uint64_t number)
{
    kl__fetch_to_write(kl__inbox_slot(inbox, number + KL_INBOX_SLOTS_AHEAD));
    return kl__inbox_free_task(inbox, number + KL_INBOX_DRAIN_AHEAD);
}

/* Whether places were claimed that are not drained yet. */
static inline bool kl__inbox_waiting(kl__inbox *inbox)
{
    return kl__inbox_claimed(inbox) != atomic_load(&inbox->drained);
}

/* The slots below this number are done with. */
static inline void kl__inbox_pop(kl__inbox *inbox, uint64_t number)
{
    atomic_store_explicit(&inbox->drained, number, memory_order_relaxed);
}

/* A task is given back, as number `freed` of all that ever were: its memory is free for another once the owner stores
 * the new number in `freed`. */
static inline void kl__inbox_give_back(kl__inbox *inbox, uint64_t freed, uint32_t task)
{
    atomic_store_explicit(kl__inbox_slot(inbox, freed + inbox->capacity), task, memory_order_relaxed);
}

#endif
