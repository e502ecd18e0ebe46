/* recent.c - see recent.h.
 *
 * Bytes are numbered through from segment to segment: number = base of the segment + offset in it. The byte with
 * number n is ring[n % size]. Numbers that nobody has are left out, so that no base is below 0. */
#include "store/disk/recent.h"

#include <string.h>
#include <sys/mman.h>

#include "base/fetch.h"

enum { PIECES = 8 }; /* segments are usually as large as the ring */

/* What is here of one segment. */
struct piece {
    uint64_t segment;
    uint64_t base;
    uint64_t from, to; /* numbers, headers of frames in between included */
};

struct kl__recent {
    struct piece pieces[PIECES]; /* the newest is `newest` */
    uint32_t newest;
    size_t size;
    char ring[];
};

kl__recent *kl__recent_open(size_t size)
{
    kl__recent *recent =
        mmap(NULL, sizeof *recent + size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (recent == MAP_FAILED)
        return NULL;
    recent->size = size;
    return recent;
}

void kl__recent_close(kl__recent *recent)
{
    if (recent)
        munmap(recent, sizeof *recent + recent->size);
}

/* The piece that goes on at this offset. */
static struct piece *piece_at(kl__recent *recent, uint64_t segment, uint64_t offset)
{
    struct piece *newest = &recent->pieces[recent->newest];
    if (segment == newest->segment && newest->base + offset >= newest->to)
        return newest;
    uint64_t number = newest->to > offset ? newest->to : offset;
    for (size_t i = 0; i < PIECES; i++)
        if (recent->pieces[i].segment == segment)
            recent->pieces[i] = (struct piece){0}; /* written anew */
    recent->newest = (recent->newest + 1) % PIECES;
    newest = &recent->pieces[recent->newest];
    *newest = (struct piece){segment, number - offset, number, number};
    return newest;
}

void kl__recent_claim(kl__recent *recent, uint64_t segment, uint64_t offset, size_t count)
{
    struct piece *piece = piece_at(recent, segment, offset);
    piece->to = piece->base + offset + count;
}

void kl__recent_fill(kl__recent *recent, const void *bytes, size_t count)
{
    size_t skipped = count > recent->size ? count - recent->size : 0;
    uint64_t from = recent->pieces[recent->newest].to - count;
    size_t at = (size_t)((from + skipped) % recent->size), rest = recent->size - at;
    size_t first = count - skipped < rest ? count - skipped : rest;
    memcpy(recent->ring + at, (const char *)bytes + skipped, first);
    memcpy(recent->ring, (const char *)bytes + skipped + first, count - skipped - first);
}

static const struct piece *find_piece(const kl__recent *recent, uint64_t segment)
{
    for (uint32_t i = 0; i < PIECES; i++) {
        const struct piece *piece = &recent->pieces[(recent->newest + PIECES - i) % PIECES];
        if (piece->segment == segment)
            return piece;
    }
    return NULL;
}

/* Where in the ring it stands; false: nowhere. */
static bool find_bytes(const kl__recent *recent, uint64_t segment, uint64_t offset, size_t count, size_t *ret_at)
{
    const struct piece *piece = find_piece(recent, segment);
    if (!piece)
        return false;
    uint64_t number = piece->base + offset, end = recent->pieces[recent->newest].to;
    if (number < piece->from || number + count > piece->to || end - number > recent->size)
        return false;
    *ret_at = (size_t)(number % recent->size);
    return true;
}

void kl__recent_prefetch(const kl__recent *recent, uint64_t segment, uint64_t offset, size_t count)
{
    enum { LINE = 64, MOST = 512 };
    size_t at;
    if (!find_bytes(recent, segment, offset, count, &at))
        return;
    for (size_t i = 0; i < count && i < MOST && at + i < recent->size; i += LINE)
        kl__fetch(recent->ring + at + i);
}

bool kl__recent_copy(const kl__recent *recent, uint64_t segment, uint64_t offset, void *ret_bytes, size_t count)
{
    size_t at;
    if (!find_bytes(recent, segment, offset, count, &at))
        return false;
    size_t rest = recent->size - at, first = count < rest ? count : rest;
    memcpy(ret_bytes, recent->ring + at, first);
    memcpy((char *)ret_bytes + first, recent->ring, count - first);
    return true;
}
