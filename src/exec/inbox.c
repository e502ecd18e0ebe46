/* inbox.c - making the ring. */
#include "exec/inbox.h"

kl_rc kl__inbox_open(kl__inbox *inbox, uint32_t capacity)
{
    uint64_t size = 1;
    while (size < capacity)
        size *= 2;
    *inbox = (kl__inbox){.mask = size - 1, .capacity = capacity};
    inbox->slots = kl__alloc_aligned(KL_CACHE_LINE, size, sizeof inbox->slots[0]);
    if (!inbox->slots)
        return kl__fail_memory();
    atomic_init(&inbox->limit, capacity);
    for (uint32_t i = 0; i < capacity; i++)
        atomic_init(&inbox->slots[i], i);
    return KL_OK;
}

void kl__inbox_close(kl__inbox *inbox) { kl__free((void *)inbox->slots); }
