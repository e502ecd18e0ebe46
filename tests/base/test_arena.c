/* test_arena.c - memory for answers. */
#include <stdlib.h>

#include "base/base.h"
#include "base/random.h"
#include "harness.h"
#include "keyline/arena.h"

static bool aligned(const void *piece) { return (uintptr_t)piece % alignof(max_align_t) == 0; }

TEST(pieces_of_an_arena_are_aligned_and_do_not_overlap)
{
    enum { PIECES = 400 };
    static unsigned char *pieces[PIECES];
    static size_t sizes[PIECES];
    uint64_t random = test_seed();
    kl_arena arena = {0};
    for (int i = 0; i < PIECES; i++) {
        sizes[i] = (size_t)(kl__random_below(&random, 20) == 0 ? kl__random_below(&random, 300000)
                                                               : kl__random_below(&random, 900));
        pieces[i] = kl_arena_alloc(&arena, sizes[i]);
        REQUIRE(pieces[i] && aligned(pieces[i]));
        memset(pieces[i], i & 255, sizes[i]);
    }
    for (int i = 0; i < PIECES; i++)
        for (size_t j = 0; j < sizes[i]; j++)
            REQUIRE(pieces[i][j] == (i & 255));
    kl_arena_free(&arena);
}

TEST(a_copy_has_the_bytes_and_a_zero_behind_them)
{
    kl_arena arena = {0};
    kl_bytes copy = {0};
    char text[] = "an answer";
    REQUIRE(kl_arena_copy(&arena, kl_str(text), &copy));
    text[0] = '#';
    CHECK_INT(copy.len, 9);
    CHECK_STR(copy.data, "an answer");
    REQUIRE(kl_arena_copy(&arena, (kl_bytes){NULL, 0}, &copy));
    CHECK_INT(copy.len, 0);
    CHECK_STR(copy.data, "");
    kl_arena_free(&arena);
}

TEST(nothing_is_a_piece_of_its_own_too)
{
    kl_arena arena = {0};
    void *first = kl_arena_alloc(&arena, 0), *second = kl_arena_alloc(&arena, 0);
    CHECK(first && second && first != second);
    kl_arena_free(&arena);
}

TEST(a_large_piece_leaves_the_room_beside_it_to_small_ones)
{
    kl_arena arena = {0};
    kl__alloc_fail_at(0);
    CHECK(kl_arena_alloc(&arena, 16));
    CHECK(kl_arena_alloc(&arena, 3 << 20));
    CHECK_INT(kl__alloc_fail_at(0), 2);
    CHECK(kl_arena_alloc(&arena, 16));
    CHECK_INT(kl__alloc_fail_at(0), 0);
    kl_arena_free(&arena);
}

TEST(a_large_piece_may_come_first)
{
    kl_arena arena = {0};
    unsigned char *large = kl_arena_alloc(&arena, 100000), *small = kl_arena_alloc(&arena, 16);
    REQUIRE(large && small);
    memset(large, 1, 100000);
    memset(small, 2, 16);
    CHECK_INT(large[99999], 1);
    kl_arena_free(&arena);
}

TEST(a_reset_arena_needs_no_new_memory_for_an_answer_of_the_same_size)
{
    kl_arena arena = {0};
    REQUIRE(kl_arena_alloc(&arena, 40));
    REQUIRE(kl_arena_alloc(&arena, 200000));
    kl_arena_reset(&arena);
    kl__alloc_fail_at(0);
    unsigned char *piece = kl_arena_alloc(&arena, 200000);
    REQUIRE(piece);
    memset(piece, 1, 200000);
    CHECK_INT(kl__alloc_fail_at(0), 0);
    kl_arena_reset(&arena);
    kl_arena_free(&arena);
}

TEST(an_empty_arena_may_be_reset_and_freed_again_and_again)
{
    kl_arena arena = {0};
    kl_arena_reset(&arena);
    kl_arena_free(&arena);
    REQUIRE(kl_arena_alloc(&arena, 10));
    kl_arena_free(&arena);
    kl_arena_free(&arena);
    kl_arena_free(NULL);
    CHECK(!arena.blocks && arena.used == 0);
}

TEST(an_arena_without_memory_says_so_and_keeps_what_it_has)
{
    kl_arena arena = {0};
    kl_bytes copy = {"untouched", 9};
    kl__alloc_fail_at(1);
    CHECK(!kl_arena_alloc(&arena, 10));
    kl__alloc_fail_at(0);
    char *kept = kl_arena_alloc(&arena, 10);
    REQUIRE(kept);
    strcpy(kept, "kept");
    kl__alloc_fail_at(1);
    CHECK(!kl_arena_copy(&arena, (kl_bytes){kept, 4 << 10}, &copy)); /* refused before a byte is read */
    kl__alloc_fail_at(1);
    CHECK(!kl_arena_alloc(&arena, 1 << 20));
    kl__alloc_fail_at(0);
    CHECK_STR(copy.data, "untouched");
    CHECK_STR(kept, "kept");
    CHECK(kl_arena_alloc(&arena, 1 << 20));
    kl_arena_free(&arena);
}

TEST(a_piece_that_is_larger_than_all_memory_is_refused)
{
    kl_arena arena = {0};
    kl_bytes copy = {NULL, 0};
    CHECK(!kl_arena_alloc(&arena, SIZE_MAX));
    CHECK(!kl_arena_alloc(&arena, SIZE_MAX - 20));
    CHECK(!kl_arena_copy(&arena, (kl_bytes){"", SIZE_MAX}, &copy));
    CHECK(kl_arena_alloc(&arena, 1));
    kl_arena_free(&arena);
}
