/* arena.c - memory for answers: a chain of blocks, of which only the newest is filled.
 *
 *     blocks -> newest (used bytes of it are taken) -> older -> older
 *
 * Blocks double, so a long answer takes few of them, up to 1 MiB, so that little is taken in vain. What would not fit
 * into the next block gets one of its own behind the newest, which goes on being filled.
 *
 * A1  `used` is at most the newest block's size, and 0 when there is none.
 * A2  Every piece begins at a multiple of the strictest alignment. */
#include "base/arena.h"

#include "base/base.h"

enum { PIECE_ALIGN = alignof(max_align_t), BLOCK_MIN = 4 << 10, BLOCK_MAX = 1 << 20 };

struct block {
    struct block *next;
    size_t size; /* of bytes */
    alignas(PIECE_ALIGN) unsigned char bytes[];
};

_Static_assert(offsetof(struct block, bytes) % PIECE_ALIGN == 0, "A2 for the first piece");

static struct block *make_block(size_t size)
{
    size_t whole;
    if (__builtin_add_overflow(size, sizeof(struct block), &whole))
        return NULL;
    struct block *block = kl__alloc(whole);
    if (block)
        block->size = size;
    return block;
}

static size_t next_size(const struct block *newest)
{
    if (!newest)
        return BLOCK_MIN;
    return newest->size < BLOCK_MAX / 2 ? newest->size * 2 : BLOCK_MAX;
}

static void *alloc_apart(kl_arena *arena, size_t size)
{
    struct block *block = make_block(size), *newest = arena->blocks;
    if (!block)
        return NULL;
    if (newest) {
        block->next = newest->next;
        newest->next = block;
    } else {
        block->next = NULL;
        arena->blocks = block;
        arena->used = size;
    }
    return block->bytes;
}

void *kl_arena_alloc(kl_arena *arena, size_t size)
{
    struct block *newest = arena->blocks;
    size_t taken;
    if (__builtin_add_overflow(size ? size : 1, (size_t)PIECE_ALIGN - 1, &taken))
        return NULL;
    taken &= ~((size_t)PIECE_ALIGN - 1);
    if (!newest || taken > newest->size - arena->used) {
        if (taken > next_size(newest))
            return alloc_apart(arena, taken);
        struct block *block = make_block(next_size(newest));
        if (!block)
            return NULL;
        block->next = newest;
        arena->blocks = newest = block;
        arena->used = 0;
    }
    void *piece = newest->bytes + arena->used;
    arena->used += taken;
    return piece;
}

int kl_arena_copy(kl_arena *arena, kl_bytes bytes, kl_bytes *ret_copy)
{
    size_t size;
    if (__builtin_add_overflow(bytes.len, 1, &size))
        return false;
    char *copy = kl_arena_alloc(arena, size);
    if (!copy)
        return false;
    if (bytes.len > 0)
        memcpy(copy, bytes.data, bytes.len);
    copy[bytes.len] = '\0';
    *ret_copy = (kl_bytes){copy, bytes.len};
    return true;
}

bool kl__arena_holds(const kl_arena *arena, const void *piece)
{
    uintptr_t at = (uintptr_t)piece;
    for (const struct block *block = arena->blocks; block; block = block->next)
        if (at >= (uintptr_t)block->bytes && at - (uintptr_t)block->bytes < block->size)
            return true;
    return false;
}

/* The largest is kept: a caller that reads answers of one size in turn soon allocates nothing. */
void kl_arena_reset(kl_arena *arena)
{
    struct block *kept = arena->blocks;
    for (struct block *block = kept ? kept->next : NULL, *next; block; block = next) {
        next = block->next;
        struct block *smaller = block->size > kept->size ? kept : block;
        kept = smaller == block ? kept : block;
        kl__free(smaller);
    }
    if (kept)
        kept->next = NULL;
    arena->blocks = kept;
    arena->used = 0;
}

void kl_arena_free(kl_arena *arena)
{
    if (!arena)
        return;
    for (struct block *block = arena->blocks, *next; block; block = next) {
        next = block->next;
        kl__free(block);
    }
    *arena = (kl_arena){0};
}
