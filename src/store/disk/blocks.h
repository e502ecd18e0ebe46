/* blocks.h - parts of segments that were read not long ago.
 *
 * A worker that is behind reads the tasks of one shard, and those of other shards, which it comes to soon, stand in
 * between. So where several are wanted of a block, all of it is read, once: a call for some hundred tasks instead of
 * one for each.
 *
 * Blocks are taken from the system as they are filled for the first time, 16 MiB at most. A later one takes the place
 * of the one that stands as many blocks before it. Any thread may call these.
 *
 * K1  What copy gives is what the journal holds there. Behind the end of the segment, as it was when the block was
 *     read, its file may hold whole records of what it was used for before: nothing of that is kept.
 * K2  Whoever wants a record checks its CRC, and reads it from its file where that is wrong. */
#ifndef KL_STORE_BLOCKS_H
#define KL_STORE_BLOCKS_H

#include "store/disk/state.h"
#include "store/disk/vfs.h"

enum { KL_BLOCK_BYTES = 64 << 10 };

typedef struct kl__blocks kl__blocks;

kl__blocks *kl__blocks_open(void); /* NULL: no memory */
void kl__blocks_close(kl__blocks *blocks);

/* The bytes of the segment at `offset`, whose file is open. False: their block is not here, or was read before they
 * were written, and `load` was not asked for, or it cannot be read, or they stand in two blocks. */
bool kl__blocks_copy(kl__blocks *blocks, kl__vfs *vfs, const kl__segment *segment, uint64_t offset, size_t count,
                     bool load, void *ret_bytes);

#endif
