/* line.c - sorted blocks of slot numbers.
 *
 * W1  No block is empty; inside a block and from block to block elements ascend by (order, position).
 * W2  count is the sum of the blocks' elements. */
#include "store/disk/line.h"

#include <string.h>

#include "base/base.h"

static kl__line_block *block_at(const kl__line *line, size_t index) { return line->blocks[line->first + index]; }

/* Is the element behind (order, position), or equal when `or_equal`? */
static bool is_behind(const kl__line_block *block, size_t index, const kl__line_ties *ties, uint64_t order,
                      uint64_t position, bool or_equal)
{
    if (block->order[index] != order)
        return block->order[index] > order;
    uint64_t its = ties->position(ties->ctx, block->slot[index]);
    return or_equal ? its >= position : its > position;
}

/* The first element behind (order, position), or not before it when `or_equal`; block == used when there is none. */
static kl__line_at search(const kl__line *line, const kl__line_ties *ties, uint64_t order, uint64_t position,
                          bool or_equal)
{
    size_t low = 0, high = line->used;
    while (low < high) { /* the first block whose last element is behind */
        size_t middle = (low + high) / 2;
        const kl__line_block *block = block_at(line, middle);
        if (is_behind(block, (size_t)block->end - 1, ties, order, position, or_equal))
            high = middle;
        else
            low = middle + 1;
    }
    kl__line_at at = {.block = low, .index = 0};
    if (low == line->used)
        return at;
    const kl__line_block *block = block_at(line, at.block);
    low = block->begin;
    high = (size_t)block->end - 1;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (is_behind(block, middle, ties, order, position, or_equal))
            high = middle;
        else
            low = middle + 1;
    }
    at.index = low;
    return at;
}

/* Makes room for one more block pointer at the end. */
static bool reserve_block(kl__line *line)
{
    if (line->first + line->used < line->capacity)
        return true;
    if (line->first > line->capacity / 2) {
        memmove(line->blocks, line->blocks + line->first, line->used * sizeof(*line->blocks));
        line->first = 0;
        return true;
    }
    size_t capacity = line->capacity ? line->capacity * 2 : 4;
    kl__line_block **blocks = kl__alloc(capacity * sizeof(*blocks));
    if (!blocks)
        return false;
    if (line->used)
        memcpy(blocks, line->blocks + line->first, line->used * sizeof(*blocks));
    kl__free(line->blocks);
    line->blocks = blocks;
    line->first = 0;
    line->capacity = capacity;
    return true;
}

/* A new empty block before block `index`; its elements will begin at `begin`. */
static kl__line_block *insert_block(kl__line *line, size_t index, size_t begin)
{
    if (!reserve_block(line))
        return NULL;
    kl__line_block *block = kl__alloc(sizeof *block);
    if (!block)
        return NULL;
    block->begin = block->end = (uint16_t)begin;
    kl__line_block **at = line->blocks + line->first + index;
    memmove(at + 1, at, (line->used - index) * sizeof(*at));
    *at = block;
    line->used++;
    return block;
}

static void move_elements(kl__line_block *to, size_t to_index, const kl__line_block *from, size_t from_index,
                          size_t count)
{
    memmove(to->order + to_index, from->order + from_index, count * sizeof(to->order[0]));
    memmove(to->slot + to_index, from->slot + from_index, count * sizeof(to->slot[0]));
}

/* Halves a full block. */
static bool split(kl__line *line, size_t index)
{
    kl__line_block *upper = insert_block(line, index + 1, 0);
    if (!upper)
        return false;
    kl__line_block *lower = block_at(line, index);
    size_t half = KL_LINE_BLOCK / 2;
    move_elements(upper, 0, lower, half, KL_LINE_BLOCK - half);
    upper->end = (uint16_t)(KL_LINE_BLOCK - half);
    lower->end = (uint16_t)half;
    return true;
}

/* Opens a gap at `index` of a block that is not full, and returns where it is. */
static size_t open_gap(kl__line_block *block, size_t index)
{
    size_t before = index - block->begin, behind = block->end - index;
    if (block->begin > 0 && (before < behind || block->end == KL_LINE_BLOCK)) {
        move_elements(block, (size_t)block->begin - 1, block, block->begin, before);
        block->begin--;
        return index - 1;
    }
    move_elements(block, index + 1, block, index, behind);
    block->end++;
    return index;
}

static void put(kl__line *line, kl__line_block *block, size_t index, uint64_t order, uint32_t slot)
{
    block->order[index] = order;
    block->slot[index] = slot;
    line->count++;
}

/* Behind all others, which is where nearly everything goes. */
static bool push(kl__line *line, uint64_t order, uint32_t slot)
{
    kl__line_block *block = line->used ? block_at(line, line->used - 1) : NULL;
    if (!block || block->end == KL_LINE_BLOCK)
        block = insert_block(line, line->used, 0);
    if (!block)
        return false;
    put(line, block, block->end++, order, slot);
    return true;
}

bool kl__line_insert(kl__line *line, const kl__line_ties *ties, uint64_t order, uint64_t position, uint32_t slot)
{
    kl__line_block *block = line->used ? block_at(line, line->used - 1) : NULL;
    if (!block || block->order[block->end - 1] < order)
        return push(line, order, slot);
    kl__line_at at = search(line, ties, order, position, false);
    if (at.block == line->used)
        return push(line, order, slot);
    block = block_at(line, at.block);
    if (block->end - block->begin == KL_LINE_BLOCK) {
        if (!split(line, at.block))
            return false;
        at = search(line, ties, order, position, false);
        if (at.block == line->used)
            return push(line, order, slot);
        block = block_at(line, at.block);
    }
    put(line, block, open_gap(block, at.index), order, slot);
    return true;
}

static void drop_block(kl__line *line, size_t index)
{
    kl__line_block **at = line->blocks + line->first + index;
    kl__free(*at);
    if (index == 0)
        line->first++;
    else
        memmove(at, at + 1, (line->used - index - 1) * sizeof(*at));
    line->used--;
}

/* Joins a block with the next when both are nearly empty, so that stragglers do not keep a block each. */
static void join_next(kl__line *line, size_t index)
{
    if (index + 1 >= line->used)
        return;
    kl__line_block *block = block_at(line, index), *next = block_at(line, index + 1);
    size_t count = (size_t)block->end - block->begin, more = (size_t)next->end - next->begin;
    if (count + more > KL_LINE_BLOCK / 4)
        return;
    move_elements(block, 0, block, block->begin, count);
    move_elements(block, count, next, next->begin, more);
    block->begin = 0;
    block->end = (uint16_t)(count + more);
    drop_block(line, index + 1);
}

void kl__line_remove(kl__line *line, const kl__line_ties *ties, uint64_t order, uint64_t position)
{
    kl__line_at at = search(line, ties, order, position, true);
    KL_ASSERT(at.block < line->used);
    kl__line_block *block = block_at(line, at.block);
    KL_ASSERT(block->order[at.index] == order);
    size_t before = at.index - block->begin, behind = (size_t)block->end - at.index - 1;
    if (before <= behind) {
        move_elements(block, (size_t)block->begin + 1, block, block->begin, before);
        block->begin++;
    } else {
        move_elements(block, at.index, block, at.index + 1, behind);
        block->end--;
    }
    line->count--;
    if (block->begin == block->end)
        drop_block(line, at.block);
    else if (block->end - block->begin < KL_LINE_BLOCK / 8)
        join_next(line, at.block);
}

bool kl__line_first(const kl__line *line, kl__line_at *ret_at)
{
    if (!line->used)
        return false;
    ret_at->block = 0;
    ret_at->index = block_at(line, 0)->begin;
    return true;
}

bool kl__line_after(const kl__line *line, const kl__line_ties *ties, uint64_t order, uint64_t position,
                    kl__line_at *ret_at)
{
    *ret_at = search(line, ties, order, position, false);
    return ret_at->block < line->used;
}

bool kl__line_next(const kl__line *line, kl__line_at *at)
{
    if (++at->index < block_at(line, at->block)->end)
        return true;
    if (++at->block == line->used)
        return false;
    at->index = block_at(line, at->block)->begin;
    return true;
}

void kl__line_free(kl__line *line)
{
    for (size_t i = 0; i < line->used; i++)
        kl__free(block_at(line, i));
    kl__free(line->blocks);
    memset(line, 0, sizeof *line);
}
