/* test_disk_blocks.c - blocks of segments that were read not long ago: what they give is what the file held, or
 * nothing. */
#include <string.h>

#include "harness.h"
#include "store/disk/blocks.h"

enum { RECORD = 272, FILE_BYTES = 40 << 20, AROUND = 16 << 20 }; /* so far apart two blocks have one place */

/* A file system with one file, every byte of which says where it stands and what was written there last. */
static struct {
    kl__vfs vfs;
    unsigned reads, version;
    int error;
    uint64_t size, end; /* of the file, and of what is written in it */
} files;

static unsigned char byte_at(uint64_t offset)
{
    return (unsigned char)((offset + files.version) * 0x9e3779b97f4a7c15u >> 56);
}

static ssize_t read_file(kl__vfs *vfs, kl__file *file, void *bytes, size_t count, uint64_t offset)
{
    (void)vfs;
    (void)file;
    files.reads++;
    if (files.error)
        return files.error;
    size_t i = 0;
    for (; i < count && offset + i < files.size; i++)
        ((unsigned char *)bytes)[i] = byte_at(offset + i);
    return (ssize_t)i;
}

static kl__blocks *begin(void)
{
    memset(&files, 0, sizeof files);
    files.vfs.read = read_file;
    files.size = files.end = FILE_BYTES;
    return kl__blocks_open();
}

static bool copy(kl__blocks *blocks, uint64_t segment, uint64_t offset, bool load, unsigned char *ret_bytes)
{
    kl__segment its = {.number = segment, .end = files.end};
    return kl__blocks_copy(blocks, &files.vfs, &its, offset, RECORD, load, ret_bytes);
}

/* What is given is what the file holds. */
static bool is_true_at(kl__blocks *blocks, uint64_t segment, uint64_t offset, bool load)
{
    unsigned char bytes[RECORD];
    if (!copy(blocks, segment, offset, load, bytes))
        return false;
    for (size_t i = 0; i < RECORD; i++)
        if (bytes[i] != byte_at(offset + i))
            return false;
    return true;
}

TEST(all_tasks_of_a_block_are_read_with_one_call)
{
    kl__blocks *blocks = begin();
    REQUIRE(blocks);
    for (uint64_t at = 0; at + RECORD <= KL_BLOCK_BYTES; at += RECORD)
        CHECK(is_true_at(blocks, 3, KL_BLOCK_BYTES + at, at == 0));
    CHECK_INT(files.reads, 1);
    CHECK(is_true_at(blocks, 3, UINT64_C(2) * KL_BLOCK_BYTES, true)); /* the next one has a place of its own */
    CHECK(is_true_at(blocks, 3, KL_BLOCK_BYTES, false));
    CHECK_INT(files.reads, 2);
    kl__blocks_close(blocks);
}

TEST(nothing_is_read_for_one_task_alone)
{
    unsigned char bytes[RECORD];
    kl__blocks *blocks = begin();
    REQUIRE(blocks);
    CHECK(!copy(blocks, 3, 0, false, bytes));
    CHECK_INT(files.reads, 0);
    kl__blocks_close(blocks);
}

TEST(a_block_is_not_taken_for_that_of_another_segment_or_another_place)
{
    unsigned char bytes[RECORD];
    kl__blocks *blocks = begin();
    REQUIRE(blocks);
    CHECK(is_true_at(blocks, 3, 0, true));
    files.version++; /* the file is used again, under another number */
    CHECK(!copy(blocks, 4, 0, false, bytes));
    CHECK(is_true_at(blocks, 4, 0, true));
    CHECK(!copy(blocks, 3, 0, false, bytes)); /* its place was taken */
    CHECK(!copy(blocks, 4, AROUND, false, bytes));
    CHECK(is_true_at(blocks, 4, AROUND, true));
    CHECK(!copy(blocks, 4, 0, false, bytes));
    kl__blocks_close(blocks);
}

TEST(what_stands_in_two_blocks_or_behind_the_end_is_not_given)
{
    unsigned char bytes[RECORD];
    kl__blocks *blocks = begin();
    REQUIRE(blocks);
    CHECK(!copy(blocks, 3, KL_BLOCK_BYTES - RECORD + 1, true, bytes));
    CHECK(is_true_at(blocks, 3, KL_BLOCK_BYTES - RECORD, true));
    CHECK(is_true_at(blocks, 3, FILE_BYTES - RECORD, true));
    files.size = FILE_BYTES / 2 + RECORD;
    CHECK(is_true_at(blocks, 5, FILE_BYTES / 2, true));
    CHECK(!copy(blocks, 5, FILE_BYTES / 2 + 1, true, bytes));
    kl__blocks_close(blocks);
}

TEST(a_block_that_could_not_be_read_is_read_again)
{
    unsigned char bytes[RECORD];
    kl__blocks *blocks = begin();
    REQUIRE(blocks);
    CHECK(is_true_at(blocks, 3, 0, true));
    files.error = -EIO;
    CHECK(!copy(blocks, 3, AROUND, true, bytes));
    CHECK(!copy(blocks, 3, 0, false, bytes)); /* the place may hold anything now */
    files.error = 0;
    CHECK(is_true_at(blocks, 3, AROUND, true));
    kl__blocks_close(blocks);
}

/* The file was in use before, and whole records of that time may stand where the next ones will. */
TEST(what_stands_behind_the_end_of_the_journal_is_never_given)
{
    unsigned char bytes[RECORD];
    kl__blocks *blocks = begin();
    REQUIRE(blocks);
    files.end = KL_BLOCK_BYTES + 2 * RECORD;
    CHECK(is_true_at(blocks, 3, KL_BLOCK_BYTES, true));
    CHECK(!copy(blocks, 3, KL_BLOCK_BYTES + 2 * RECORD, true, bytes));
    CHECK(!copy(blocks, 3, UINT64_C(2) * KL_BLOCK_BYTES, true, bytes));
    files.version++;
    files.end += RECORD;
    CHECK(!copy(blocks, 3, KL_BLOCK_BYTES + 2 * RECORD, false, bytes));
    CHECK(is_true_at(blocks, 3, KL_BLOCK_BYTES + 2 * RECORD, true));
    kl__blocks_close(blocks);
}
