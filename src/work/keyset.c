/* keyset.c - a set of key hashes: linear probing, grows, never shrinks. */
#include <stdlib.h>

#include "base/base.h"
#include "work/inside.h"

struct kl__keyset {
    uint64_t *slots; /* 0: empty */
    uint64_t capacity, count;
};

kl__keyset *kl__keyset_open(void) { return kl__alloc_zeroed(1, sizeof(kl__keyset)); }

void kl__keyset_free(kl__keyset *set)
{
    if (!set)
        return;
    kl__free(set->slots);
    kl__free(set);
}

static uint64_t place_for(const uint64_t *slots, uint64_t capacity, uint64_t key_hash)
{
    uint64_t i = (key_hash * 0x9e3779b97f4a7c15u >> 32) & (capacity - 1);
    while (slots[i] != 0 && slots[i] != key_hash)
        i = (i + 1) & (capacity - 1);
    return i;
}

static bool grow(kl__keyset *set)
{
    uint64_t capacity = set->capacity ? set->capacity * 2 : 16;
    uint64_t *slots = kl__alloc_zeroed(capacity, sizeof *slots);
    if (!slots)
        return false;
    for (uint64_t i = 0; i < set->capacity; i++)
        if (set->slots[i])
            slots[place_for(slots, capacity, set->slots[i])] = set->slots[i];
    kl__free(set->slots);
    set->slots = slots;
    set->capacity = capacity;
    return true;
}

bool kl__keyset_add(kl__keyset *set, uint64_t key_hash)
{
    KL_ASSERT(key_hash != 0);
    if (set->count * 2 >= set->capacity && !grow(set))
        return false;
    uint64_t i = place_for(set->slots, set->capacity, key_hash);
    set->count += set->slots[i] == 0;
    set->slots[i] = key_hash;
    return true;
}

bool kl__keyset_has(const kl__keyset *set, uint64_t key_hash)
{
    return set && set->count && set->slots[place_for(set->slots, set->capacity, key_hash)] == key_hash;
}

uint64_t kl__keyset_count(const kl__keyset *set) { return set ? set->count : 0; }
uint64_t kl__keyset_capacity(const kl__keyset *set) { return set ? set->capacity : 0; }
uint64_t kl__keyset_at(const kl__keyset *set, uint64_t index) { return set->slots[index]; }

/* Names end in the 16 hex digits of the key's hash. Of a page only the last name is kept. */
kl_rc kl__keyset_read_paused(kl__keyset *set, const kl_queue *queue, kl_arena *arena)
{
    enum { PAGE = 256, PAUSED_MAX = 1000000 };
    char name[KL_RECORD_NAME_BYTES], last[KL_RECORD_NAME_BYTES];
    kl_bytes prefix = kl__record_name(name, sizeof name, "pause", queue->name, ""), after = {0};
    kl_record records[PAGE];
    size_t count = PAGE;
    while (count == PAGE && kl__keyset_count(set) < PAUSED_MAX) {
        kl_arena_reset(arena);
        kl_rc rc = kl_store_list(queue->store, prefix, after, PAGE, arena, records, &count);
        if (rc != KL_OK)
            return rc;
        for (size_t i = 0; i < count; i++) {
            uint64_t key_hash = strtoull((const char *)records[i].name.data + prefix.len, NULL, 16);
            if (key_hash && !kl__keyset_add(set, key_hash))
                return kl__fail_memory();
        }
        if (count) {
            after = (kl_bytes){last, records[count - 1].name.len};
            memcpy(last, records[count - 1].name.data, after.len);
        }
    }
    if (count == PAGE)
        return kl__fail(KL_EFULL, "more than %d keys are paused, and changes are not seen; resume some", PAUSED_MAX);
    return KL_OK;
}
