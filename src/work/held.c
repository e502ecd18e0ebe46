/* held.c - tasks in memory: their memory, and a window's table of them by position. */
#include <string.h>

#include "base/fetch.h"
#include "work/inside.h"

enum { HELD_BLOCK = 64, TABLE_FIRST = 16 };

/* Blocks are never given back before the pump is closed: what was needed once is needed again. */
struct held_block {
    struct held_block *next;
    kl__held held[HELD_BLOCK];
};

static bool add_block(kl__pump *pump)
{
    struct held_block *block = kl__alloc(sizeof *block);
    if (!block)
        return false;
    block->next = pump->held_blocks;
    pump->held_blocks = block;
    for (int i = 0; i < HELD_BLOCK; i++) {
        block->held[i].next = pump->free_held;
        pump->free_held = &block->held[i];
    }
    return true;
}

kl__held *kl__held_new(kl__pump *pump)
{
    if (!pump->free_held && !add_block(pump))
        return NULL;
    kl__held *held = pump->free_held;
    pump->free_held = held->next;
    memset(held, 0, sizeof *held);
    return held;
}

void kl__held_delete(kl__pump *pump, kl__held *held)
{
    if (held->waiter) /* what was to be told of it never will be */
        pump->opts.settled(pump->opts.giver, held->waiter, KL_ESTALE);
    kl__free(held->text);
    held->text = NULL;
    held->next = pump->free_held;
    pump->free_held = held;
}

void kl__held_free_blocks(kl__pump *pump)
{
    while (pump->held_blocks) {
        struct held_block *block = pump->held_blocks;
        pump->held_blocks = block->next;
        kl__free(block);
    }
}

/* --- The table: linear probing over positions --- */

static uint32_t home(const kl__window *window, uint64_t position)
{
    return (uint32_t)((position * 0x9e3779b97f4a7c15u) >> 32) & (window->table_capacity - 1);
}

static void insert(kl__window *window, kl__held *held)
{
    uint32_t i = home(window, held->lane.position);
    while (window->table[i].held)
        i = (i + 1) & (window->table_capacity - 1);
    window->table[i] = (kl__held_place){held->lane.position, held};
}

static bool grow(kl__window *window)
{
    kl__held_place *old = window->table;
    uint32_t capacity = window->table_capacity;
    kl__held_place *table = kl__alloc_zeroed(capacity ? (size_t)capacity * 2 : TABLE_FIRST, sizeof *table);
    if (!table)
        return false;
    window->table = table;
    window->table_capacity = capacity ? capacity * 2 : TABLE_FIRST;
    for (uint32_t i = 0; i < capacity; i++)
        if (old[i].held)
            insert(window, old[i].held);
    kl__free(old);
    return true;
}

bool kl__held_enter(kl__window *window, kl__held *held)
{
    if ((uint64_t)window->table_count * 2 >= window->table_capacity && !grow(window))
        return false;
    insert(window, held);
    window->table_count++;
    return true;
}

void kl__held_prefetch(const kl__window *window, uint64_t position)
{
    if (window->table_capacity)
        kl__fetch(&window->table[home(window, position)]);
}

kl__held *kl__held_at(const kl__window *window, uint64_t position)
{
    if (window->table_count == 0)
        return NULL;
    for (uint32_t i = home(window, position); window->table[i].held; i = (i + 1) & (window->table_capacity - 1))
        if (window->table[i].position == position)
            return window->table[i].held;
    return NULL;
}

void kl__held_forget(kl__window *window, kl__held *held)
{
    uint32_t mask = window->table_capacity - 1, hole = home(window, held->lane.position);
    while (window->table[hole].held != held)
        hole = (hole + 1) & mask;
    for (uint32_t i = (hole + 1) & mask; window->table[i].held; i = (i + 1) & mask) {
        if (((i - home(window, window->table[i].position)) & mask) < ((i - hole) & mask))
            continue;
        window->table[hole] = window->table[i];
        hole = i;
    }
    window->table[hole].held = NULL;
    window->table_count--;
}
