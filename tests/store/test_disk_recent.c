/* test_disk_recent.c - the ring of the journal's last bytes: what it gives is what was written, or nothing. */
#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "store/disk/recent.h"

enum { FRAME = 300000, HEADER = 64, FRAMES = 200, PROBE = 272, RING = 8 << 20 };

/* Every offset of every segment has a byte of its own. */
static unsigned char byte_at(uint64_t segment, uint64_t offset)
{
    return (unsigned char)((segment * 31 + offset) * 0x9e3779b97f4a7c15u >> 56);
}

static void add_frame(kl__recent *recent, uint64_t segment, uint64_t offset)
{
    static unsigned char bytes[FRAME];
    for (size_t i = 0; i < FRAME; i++)
        bytes[i] = byte_at(segment, offset + i);
    kl__recent_claim(recent, segment, offset, FRAME);
    kl__recent_fill(recent, bytes, FRAME);
}

static bool is_true_at(const kl__recent *recent, uint64_t segment, uint64_t offset)
{
    unsigned char bytes[PROBE];
    if (!kl__recent_copy(recent, segment, offset, bytes, sizeof bytes))
        return false;
    for (size_t i = 0; i < sizeof bytes; i++)
        if (bytes[i] != byte_at(segment, offset + i))
            return false;
    return true;
}

TEST(the_last_bytes_of_the_journal_are_given_as_they_were_written)
{
    kl__recent *recent = kl__recent_open(RING);
    REQUIRE(recent);
    uint64_t offset = 4096;
    for (int i = 0; i < FRAMES; i++, offset += FRAME + HEADER) { /* several times around */
        add_frame(recent, 7, offset);
        for (uint64_t at = 0; at + PROBE <= FRAME; at += 4 * PROBE)
            CHECK(is_true_at(recent, 7, offset + at));
        if (i > 0)
            CHECK(is_true_at(recent, 7, offset - HEADER - PROBE)); /* the end of the frame before */
    }
    kl__recent_close(recent);
}

TEST(bytes_that_are_not_there_any_more_are_not_made_up)
{
    unsigned char bytes[PROBE];
    kl__recent *recent = kl__recent_open(RING);
    REQUIRE(recent);
    CHECK(!kl__recent_copy(recent, 0, 0, bytes, sizeof bytes));
    uint64_t offset = 4096;
    for (int i = 0; i < FRAMES; i++, offset += FRAME + HEADER)
        add_frame(recent, 7, offset);
    CHECK(!kl__recent_copy(recent, 7, 4096, bytes, sizeof bytes));                        /* overwritten */
    CHECK(!kl__recent_copy(recent, 7, offset - HEADER - PROBE + 1, bytes, sizeof bytes)); /* not written yet */
    CHECK(!kl__recent_copy(recent, 8, offset - HEADER - PROBE, bytes, sizeof bytes));     /* of another segment */
    add_frame(recent, 8, 4096);
    CHECK(is_true_at(recent, 8, 4096));
    CHECK(is_true_at(recent, 7, offset - HEADER - PROBE)); /* the segment before is not forgotten */
    CHECK(!kl__recent_copy(recent, 8, 4095, bytes, sizeof bytes));
    CHECK(!kl__recent_copy(recent, 8, 4096 + FRAME - PROBE + 1, bytes, sizeof bytes));
    for (int i = 1; i < FRAMES; i++)
        add_frame(recent, 8, 4096 + (uint64_t)i * (FRAME + HEADER));
    CHECK(!kl__recent_copy(recent, 7, offset - HEADER - PROBE, bytes, sizeof bytes));
    kl__recent_close(recent);
}

TEST(many_short_segments_are_told_apart)
{
    unsigned char bytes[PROBE];
    kl__recent *recent = kl__recent_open(RING);
    REQUIRE(recent);
    for (uint64_t segment = 1; segment <= 40; segment++) {
        add_frame(recent, segment, 8192 - 100 * segment); /* each begins elsewhere */
        CHECK(is_true_at(recent, segment, 8192 - 100 * segment));
        if (segment > 1) {
            CHECK(is_true_at(recent, segment - 1, 8192 - 100 * (segment - 1) + FRAME - PROBE));
            CHECK(!kl__recent_copy(recent, segment - 1, 8192 - 100 * segment, bytes, sizeof bytes)); /* before it */
        }
    }
    CHECK(!kl__recent_copy(recent, 1, 8192 - 100, bytes, sizeof bytes));
    kl__recent_close(recent);
}

TEST(a_segment_that_is_written_anew_gives_what_it_holds_now)
{
    unsigned char bytes[PROBE];
    kl__recent *recent = kl__recent_open(RING);
    REQUIRE(recent);
    add_frame(recent, 5, 4096);
    add_frame(recent, 5, 4096 + FRAME);
    add_frame(recent, 5, 4096);
    CHECK(is_true_at(recent, 5, 4096));
    CHECK(!kl__recent_copy(recent, 5, 4096 + FRAME, bytes, sizeof bytes));
    kl__recent_close(recent);
}

TEST(a_frame_larger_than_the_ring_leaves_its_end)
{
    enum { LARGE = 20 << 20 };
    kl__recent *recent = kl__recent_open(RING);
    unsigned char *large = malloc(LARGE);
    REQUIRE(recent && large);
    for (size_t i = 0; i < LARGE; i++)
        large[i] = byte_at(3, 4096 + i);
    kl__recent_claim(recent, 3, 4096, LARGE);
    kl__recent_fill(recent, large, LARGE);
    CHECK(is_true_at(recent, 3, 4096 + LARGE - PROBE));
    CHECK(is_true_at(recent, 3, 4096 + LARGE - (1 << 20)));
    CHECK(!is_true_at(recent, 3, 4096));
    free(large);
    kl__recent_close(recent);
}
