/* arena.h - what the library itself asks of an arena, beyond keyline/arena.h. */
#ifndef KL_ARENA_H
#define KL_ARENA_H

#include <stdbool.h>

#include "keyline/arena.h"

/* Whether a piece lies in the arena; by its first byte. */
bool kl__arena_holds(const kl_arena *arena, const void *piece);

#endif
