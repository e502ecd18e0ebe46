/* keytable.h - from a key to its lane: a hash table that grows and shrinks one bucket at a time.
 *
 * Linear hashing: with b buckets in use, the bucket of a hash is its low bits, one bit fewer when that bucket is not in
 * use yet. Growing splits one bucket in two and shrinking joins two, so no call ever rehashes the whole. Buckets live
 * in segments that never move: the first holds 1,024, each further one as many as all before it. Chains run through the
 * lanes themselves. Each bucket counts the hashes on its chain by their top bits: who looks for a key that has no lane
 * hardly ever touches one of others, which with many keys is in no cache. */
#ifndef KL_KEYTABLE_H
#define KL_KEYTABLE_H

#include "base/base.h"

enum { KL_KEYTABLE_FIRST_BITS = 10, KL_KEYTABLE_FIRST = 1 << KL_KEYTABLE_FIRST_BITS, KL_KEYTABLE_SEGMENTS = 22 };

typedef struct kl__keytable_entry {
    struct kl__keytable_entry *next;
    uint32_t hash;
    uint32_t tasks; /* for the lane, in what would be padding */
} kl__keytable_entry;

/* A count that has come to 3 may be too low, and stays until the chain is empty. */
typedef struct kl__keytable_bucket {
    kl__keytable_entry *first;
    uint64_t counts; /* thirty-two, of two bits each */
} kl__keytable_bucket;

typedef struct kl__keytable {
    kl__keytable_bucket *segments[KL_KEYTABLE_SEGMENTS];
    uint32_t buckets; /* in use */
    uint32_t mask;    /* the smallest 2^n - 1 that reaches all of them */
    uint32_t entries;
    kl__keytable_bucket first[KL_KEYTABLE_FIRST];
} kl__keytable;

void kl__keytable_init(kl__keytable *table);
void kl__keytable_close(kl__keytable *table); /* the entries are the caller's */
void kl__keytable_grow(kl__keytable *table);
void kl__keytable_shrink(kl__keytable *table);

static inline kl__keytable_bucket *kl__keytable_at(const kl__keytable *table, uint32_t index)
{
    if (KL_LIKELY(index < KL_KEYTABLE_FIRST))
        return (kl__keytable_bucket *)&table->first[index];
    uint32_t top = 31 - (uint32_t)__builtin_clz(index); /* segment n starts at bucket 1024 << (n - 1) */
    return &table->segments[top + 1 - KL_KEYTABLE_FIRST_BITS][index - (1u << top)];
}

/* On whose chain entries of this hash are. */
static inline kl__keytable_bucket *kl__keytable_bucket_of(const kl__keytable *table, uint32_t hash)
{
    uint32_t index = hash & table->mask;
    return kl__keytable_at(table, index < table->buckets ? index : index & (table->mask >> 1));
}

static inline uint32_t kl__keytable_shift(uint32_t hash) { return hash >> 27 << 1; }
static inline uint64_t kl__keytable_count(const kl__keytable_bucket *bucket, uint32_t hash)
{
    return bucket->counts >> kl__keytable_shift(hash) & 3;
}

/* The first entry that may be of this hash; NULL: there is none. */
static inline kl__keytable_entry *kl__keytable_first(const kl__keytable *table, uint32_t hash)
{
    const kl__keytable_bucket *bucket = kl__keytable_bucket_of(table, hash);
    return kl__keytable_count(bucket, hash) ? bucket->first : NULL;
}

static inline void kl__keytable_push(kl__keytable_bucket *bucket, kl__keytable_entry *entry)
{
    bucket->counts += (uint64_t)(kl__keytable_count(bucket, entry->hash) < 3) << kl__keytable_shift(entry->hash);
    entry->next = bucket->first;
    bucket->first = entry;
}

static inline void kl__keytable_insert(kl__keytable *table, kl__keytable_entry *entry)
{
    if (KL_UNLIKELY(++table->entries > table->buckets))
        kl__keytable_grow(table);
    kl__keytable_push(kl__keytable_bucket_of(table, entry->hash), entry);
}

/* The entry must be in the table. */
static inline void kl__keytable_remove(kl__keytable *table, kl__keytable_entry *entry)
{
    kl__keytable_bucket *bucket = kl__keytable_bucket_of(table, entry->hash);
    kl__keytable_entry **link = &bucket->first;
    while (*link != entry)
        link = &(*link)->next;
    *link = entry->next;
    bucket->counts -= (uint64_t)(kl__keytable_count(bucket, entry->hash) < 3) << kl__keytable_shift(entry->hash);
    if (!bucket->first)
        bucket->counts = 0;
    if (KL_UNLIKELY(--table->entries < table->buckets / 4))
        kl__keytable_shrink(table);
}

#endif
