/* blocks.c - a table of blocks, each at the place that its number gives it; see blocks.h. */
#include "store/disk/blocks.h"

#include <string.h>
#include <sys/mman.h>

#include "base/base.h"

enum { BLOCKS = 256 };

/* With its mutex, also its bytes. */
struct block {
    pthread_mutex_t mutex;
    uint64_t segment, number; /* the number is that in its segment; 0, 0: none, for there is no segment 0 */
    size_t bytes;             /* as many as the file had there */
};

struct kl__blocks {
    struct block blocks[BLOCKS];
    char bytes[BLOCKS][KL_BLOCK_BYTES];
};

kl__blocks *kl__blocks_open(void)
{
    kl__blocks *blocks =
        mmap(NULL, sizeof *blocks, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (blocks == MAP_FAILED)
        return NULL;
    for (int i = 0; i < BLOCKS; i++)
        pthread_mutex_init(&blocks->blocks[i].mutex, NULL);
    return blocks;
}

void kl__blocks_close(kl__blocks *blocks)
{
    if (!blocks)
        return;
    for (int i = 0; i < BLOCKS; i++)
        pthread_mutex_destroy(&blocks->blocks[i].mutex);
    munmap(blocks, sizeof *blocks);
}

static void load_block(kl__vfs *vfs, const kl__segment *segment, uint64_t number, struct block *block, char *bytes)
{
    uint64_t begin = number * KL_BLOCK_BYTES, end = segment->end;
    size_t most = end - begin < KL_BLOCK_BYTES ? (size_t)(end - begin) : KL_BLOCK_BYTES;
    block->segment = block->number = 0;
    if (end <= begin || kl__vfs_read(vfs, segment->file, bytes, most, begin, &block->bytes) != 0)
        return;
    block->segment = segment->number;
    block->number = number;
}

static bool holds(const struct block *block, const kl__segment *segment, uint64_t number, size_t bytes)
{
    return block->segment == segment->number && block->number == number && bytes <= block->bytes;
}

bool kl__blocks_copy(kl__blocks *blocks, kl__vfs *vfs, const kl__segment *segment, uint64_t offset, size_t count,
                     bool load, void *ret_bytes)
{
    uint64_t number = offset / KL_BLOCK_BYTES;
    size_t in_block = offset % KL_BLOCK_BYTES, place = number % BLOCKS;
    struct block *block = &blocks->blocks[place];
    if (in_block + count > KL_BLOCK_BYTES)
        return false;
    pthread_mutex_lock(&block->mutex);
    bool is_here = holds(block, segment, number, in_block + count);
    if (!is_here && load) {
        load_block(vfs, segment, number, block, blocks->bytes[place]);
        is_here = holds(block, segment, number, in_block + count);
    }
    if (is_here)
        memcpy(ret_bytes, blocks->bytes[place] + in_block, count);
    pthread_mutex_unlock(&block->mutex);
    return is_here;
}
