/* keytable.c - splitting and joining buckets. */
#include "lanes/keytable.h"

static uint32_t segment_of(uint32_t index) { return 32 - (uint32_t)__builtin_clz(index) - KL_KEYTABLE_FIRST_BITS; }

void kl__keytable_init(kl__keytable *table)
{
    *table = (kl__keytable){.buckets = KL_KEYTABLE_FIRST, .mask = KL_KEYTABLE_FIRST - 1};
}

void kl__keytable_close(kl__keytable *table)
{
    for (int i = 1; i < KL_KEYTABLE_SEGMENTS; i++)
        kl__free(table->segments[i]);
}

/* Brings one more bucket into use. Without memory for its segment the table stays as it is: chains get longer. */
void kl__keytable_grow(kl__keytable *table)
{
    uint32_t index = table->buckets;
    if ((index & (index - 1)) == 0) { /* the first bucket of a new segment */
        uint32_t segment = segment_of(index);
        if (segment >= KL_KEYTABLE_SEGMENTS)
            return;
        if (!table->segments[segment])
            table->segments[segment] = kl__alloc_zeroed(index, sizeof(kl__keytable_bucket));
        if (!table->segments[segment])
            return;
        table->mask = 2 * index - 1;
    }
    kl__keytable_bucket *from = kl__keytable_at(table, index & (table->mask >> 1));
    kl__keytable_bucket *to = kl__keytable_at(table, index);
    kl__keytable_entry *next, *entry = from->first;
    table->buckets++;
    *from = *to = (kl__keytable_bucket){0};
    for (; entry; entry = next) {
        next = entry->next;
        kl__keytable_push((entry->hash & table->mask) == index ? to : from, entry);
    }
}

/* Joins the last bucket to the one it was split from, and frees its segment if it was the segment's first. */
static void join(kl__keytable *table)
{
    uint32_t index = --table->buckets;
    kl__keytable_bucket *from = kl__keytable_at(table, index);
    kl__keytable_bucket *to = kl__keytable_at(table, index & (table->mask >> 1));
    for (kl__keytable_entry *next, *entry = from->first; entry; entry = next) {
        next = entry->next;
        kl__keytable_push(to, entry);
    }
    *from = (kl__keytable_bucket){0};
    if ((index & (index - 1)) == 0) {
        uint32_t segment = segment_of(index);
        kl__free(table->segments[segment]);
        table->segments[segment] = NULL;
        table->mask = index - 1;
    }
}

/* Several at a time, so that buckets leave as fast as the entries that they were made for. */
void kl__keytable_shrink(kl__keytable *table)
{
    for (int i = 0; i < 4 && table->buckets > KL_KEYTABLE_FIRST; i++)
        join(table);
}
