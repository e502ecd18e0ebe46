/* recent.c - see recent.h. */
#include "store/disk/recent.h"

#include <string.h>
#include <sys/mman.h>

enum { RING = 8 << 20 }; /* 30,000 tasks of 200 bytes; taken from the system page by page as it is filled */

struct kl__recent {
    uint64_t segment;
    uint64_t from, to; /* the bytes of the segment that are here, to - from <= RING; headers of frames are not */
    char ring[RING];   /* the byte at offset o is ring[o % RING] */
};

kl__recent *kl__recent_open(void)
{
    void *memory =
        mmap(NULL, sizeof(kl__recent), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

void kl__recent_close(kl__recent *recent)
{
    if (recent)
        munmap(recent, sizeof *recent);
}

void kl__recent_add(kl__recent *recent, uint64_t segment, uint64_t offset, const void *bytes, size_t count)
{
    if (segment != recent->segment || offset < recent->to)
        recent->from = offset;
    recent->segment = segment;
    recent->to = offset + count;
    if (recent->to - recent->from > RING)
        recent->from = recent->to - RING;
    size_t skipped = count > RING ? count - RING : 0, at = (offset + skipped) % RING;
    size_t first = count - skipped < RING - at ? count - skipped : RING - at;
    memcpy(recent->ring + at, (const char *)bytes + skipped, first);
    memcpy(recent->ring, (const char *)bytes + skipped + first, count - skipped - first);
}

bool kl__recent_copy(const kl__recent *recent, uint64_t segment, uint64_t offset, void *ret_bytes, size_t count)
{
    if (segment != recent->segment || offset < recent->from || offset + count > recent->to)
        return false;
    size_t at = offset % RING, first = count < RING - at ? count : RING - at;
    memcpy(ret_bytes, recent->ring + at, first);
    memcpy((char *)ret_bytes + first, recent->ring, count - first);
    return true;
}
