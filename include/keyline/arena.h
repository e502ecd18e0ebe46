/* arena.h - memory for answers of unknown size: filled by a call, owned by the caller, given back all at once.
 *
 *     kl_arena arena = {0};
 *     if (kl_store_read(store, refs, count, &arena, tasks, &read) == KL_OK)
 *         ... tasks[0].entry.payload lies in the arena ...
 *     kl_arena_free(&arena);
 *
 * An arena is used by one thread at a time. */
#ifndef KEYLINE_ARENA_H
#define KEYLINE_ARENA_H

#include <stddef.h>

#include "keyline/bytes.h"
#include "keyline/error.h"

#ifdef __cplusplus
extern "C" {
#endif

/* All zero is an empty arena. The fields are the arena's own. */
typedef struct kl_arena {
    void *blocks;
    size_t used; /* of the newest block */
} kl_arena;

/* `size` bytes, aligned for any type, that last until the arena is reset or freed. NULL: out of memory. */
KL_API void *kl_arena_alloc(kl_arena *arena, size_t size);

/* A copy of the bytes, followed by a zero byte so that text can be printed. False: out of memory. */
KL_API KL_MUST_USE int kl_arena_copy(kl_arena *arena, kl_bytes bytes, kl_bytes *ret_copy);

/* Forgets what was allocated and keeps one block for the next use. */
KL_API void kl_arena_reset(kl_arena *arena);

/* Gives everything back. The arena is empty again. NULL is fine. */
KL_API void kl_arena_free(kl_arena *arena);

#ifdef __cplusplus
}
#endif
#endif
