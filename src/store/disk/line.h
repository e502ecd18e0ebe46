/* line.h - a line of waiting tasks: numbers of slots, sorted, in blocks.
 *
 * Each element is an order (a position, or a due time) and a slot number; equal orders are told apart by the slot's own
 * position, which the line asks for. Adding at the end and taking from the front, which is what queues do, move
 * nothing; anything else moves part of one block. An element takes 12 bytes and a block's share.
 *
 * Rejected: a linked list (a scan cannot go on behind a task that is gone), a tree (three times the memory). */
#ifndef KL_STORE_LINE_H
#define KL_STORE_LINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "keyline/error.h"

enum { KL_LINE_BLOCK = 256 };

/* Elements begin .. end are in use, in ascending order. */
typedef struct kl__line_block {
    uint64_t order[KL_LINE_BLOCK];
    uint32_t slot[KL_LINE_BLOCK];
    uint16_t begin, end;
} kl__line_block;

typedef struct kl__line {
    kl__line_block **blocks; /* blocks[first .. first + used), none empty, room for `capacity` */
    size_t first, used, capacity;
    uint64_t count;
} kl__line;

/* The position of the task in a slot. */
typedef uint64_t kl__position_fn(const void *ctx, uint32_t slot);

/* What equal orders are told apart by. */
typedef struct kl__line_ties {
    kl__position_fn *position;
    const void *ctx;
} kl__line_ties;

/* Where an element is. Valid until the line changes. */
typedef struct kl__line_at {
    size_t block; /* counted from `first` */
    size_t index; /* in the block */
} kl__line_at;

/* False: out of memory, nothing changed. */
bool kl__line_insert(kl__line *line, const kl__line_ties *ties, uint64_t order, uint64_t position, uint32_t slot);

/* The element must be in the line. */
void kl__line_remove(kl__line *line, const kl__line_ties *ties, uint64_t order, uint64_t position);

/* The first element behind (order, position). False: there is none. */
bool kl__line_after(const kl__line *line, const kl__line_ties *ties, uint64_t order, uint64_t position,
                    kl__line_at *ret_at);
bool kl__line_first(const kl__line *line, kl__line_at *ret_at);
bool kl__line_next(const kl__line *line, kl__line_at *at);

static inline uint32_t kl__line_slot(const kl__line *line, const kl__line_at *at)
{
    return line->blocks[line->first + at->block]->slot[at->index];
}

static inline uint64_t kl__line_order(const kl__line *line, const kl__line_at *at)
{
    return line->blocks[line->first + at->block]->order[at->index];
}

void kl__line_free(kl__line *line);

#endif
