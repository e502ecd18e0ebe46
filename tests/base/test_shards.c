/* test_shards.c - sets of shards are read, refused, shared out and printed as shards.h says. */
#include <stdlib.h>

#include "base/random.h"
#include "harness.h"
#include "keyline/shards.h"

enum { TEXT_BYTES = 262144 }; /* the longest list is 218,454 characters: with 4 digits, every third shard left out */

static kl_layout digits(uint32_t prefix_len) { return (kl_layout){1, prefix_len}; }

static const char *print(const kl_shards *set)
{
    static char text[TEXT_BYTES];
    CHECK(kl_shards_print(set, text, sizeof text) < sizeof text);
    return text;
}

TEST(lists_and_ranges_are_read_and_printed_in_order)
{
    static const struct {
        uint32_t prefix_len, count;
        const char *text, *canonical;
    } good[] = {
        {1, 1, "a", "a"},
        {1, 10, "0,1,8-f", "0-1,8-f"},
        {1, 16, "0-f", "0-f"},
        {1, 16, "8-f,0-7", "0-f"},
        {1, 2, "f,0", "0,f"},
        {1, 4, "1-3,2,2-4,3", "1-4"},
        {1, 1, "3-3", "3"},
        {1, 3, " a , c-d\t", "a,c-d"},
        {1, 2, "B,D", "b,d"},
        {1, 0, "none", "none"},
        {1, 0, " none ", "none"},
        {2, 64, "00-3f", "00-3f"},
        {2, 3, "3f-40,ff", "3f-40,ff"},
        {3, 4096, "000-fff", "000-fff"},
        {4, 65536, "0000-ffff", "0000-ffff"},
        {4, 3, "ffff,0000,7FFF", "0000,7fff,ffff"},
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        kl_layout layout = digits(good[i].prefix_len);
        static kl_shards set;
        CHECK_INT(kl_shards_parse(&layout, kl_str(good[i].text), &set), KL_OK);
        CHECK_INT(kl_shards_count(&set), good[i].count);
        CHECK_STR(print(&set), good[i].canonical);
    }
}

TEST(a_wrong_list_is_refused_by_piece_and_column)
{
    static const struct {
        uint32_t prefix_len;
        const char *text, *where, *advice;
    } wrong[] = {
        {1, "", "\"\" at column 1 is empty", "as in \"0,8-f\""},
        {2, "  ", "\"\" at column 1 is empty", "as in \"00,80-ff\""},
        {1, ",", "\"\" at column 1", "take out the comma"},
        {1, "0,,1", "\"\" at column 3", "take out the comma"},
        {1, "0,1,", "\"\" at column 5", "take out the comma"},
        {1, "0, ,1", "\"\" at column 3", "take out the comma"},
        {2, "00-3f,4", "\"4\" at column 7 has 1 digit, but this queue's shards have 2", "write 2 hex digits, 00 to ff"},
        {1, "00-3f", "\"00\" at column 1 has 2 digits, but this queue's shards have 1", "write 1 hex digit, 0 to f"},
        {4, "0000,  123", "\"123\" at column 8", "write 4 hex digits, 0000 to ffff"},
        {2, "00-3", "\"3\" at column 4", "write 2 hex digits"},
        {2, "01,3f-00", "\"3f-00\" at column 4 runs backwards", "write \"00-3f\""},
        {1, "-3", "\"\" at column 1 is empty", "write 1 hex digit"},
        {1, "0,3-", "\"\" at column 5 is empty", "write 1 hex digit"},
        {1, "-", "\"\" at column 1 is empty", "write 1 hex digit"},
        {1, "0-3-5", "\"3-5\" at column 3 is not a hex number", "write 1 hex digit"},
        {1, "0 - 3", "\"0 \" at column 1 is not a hex number", "write 1 hex digit"},
        {1, "0;1", "\"0;1\" at column 1 is not a hex number", "write 1 hex digit"},
        {1, "0,none", "\"none\" at column 3 is not a hex number", "write 1 hex digit"},
        {1, "a,g", "\"g\" at column 3 is not a hex number", "write 1 hex digit, 0 to f"},
        {1, "0,\x01", "\"?\" at column 3", "write 1 hex digit"},
        {1, "0..3", "\"0..3\" at column 1", "write 1 hex digit"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        kl_layout layout = digits(wrong[i].prefix_len);
        static kl_shards set;
        kl_shards_all(&layout, &set);
        CHECK_INT(kl_shards_parse(&layout, kl_str(wrong[i].text), &set), KL_EINVAL);
        CHECK_CONTAINS(kl_error_text(), wrong[i].where);
        CHECK_CONTAINS(kl_error_text(), wrong[i].advice);
        CHECK_INT(kl_shards_count(&set), kl_layout_shards(&layout));
    }
}

TEST(text_is_read_to_its_length_and_no_further)
{
    kl_layout layout = digits(1);
    kl_shards set;
    CHECK_INT(kl_shards_parse(&layout, (kl_bytes){"0-3,f", 3}, &set), KL_OK);
    CHECK_STR(print(&set), "0-3");
    CHECK_INT(kl_shards_parse(&layout, (kl_bytes){NULL, 0}, &set), KL_EINVAL);
    CHECK_INT(kl_shards_parse(&layout, (kl_bytes){"0\0", 2}, &set), KL_EINVAL);
    CHECK_INT(kl_shards_parse(&layout, (kl_bytes){"  0", 1}, &set), KL_EINVAL);
    CHECK_CONTAINS(kl_error_text(), "is empty");
}

/* Whether count, contains and next tell the same about the set. */
static void check_agreement(const kl_shards *set)
{
    uint32_t count = 0, shards = kl_layout_shards(&set->layout);
    int64_t next = kl_shards_next(set, 0);
    for (uint32_t shard = 0; shard < shards; shard++) {
        bool in = kl_shards_contains(set, shard);
        count += in;
        CHECK(in == (next == shard));
        if (in)
            next = kl_shards_next(set, (int64_t)shard + 1);
    }
    CHECK_INT(next, -1);
    CHECK_INT(count, kl_shards_count(set));
}

TEST(any_set_survives_printing_and_reading)
{
    uint64_t random = test_seed();
    static kl_shards set, back;
    for (uint64_t round = 0; round < test_ops(400) + 8; round++) {
        kl_layout layout = digits(1 + (uint32_t)(round % 4));
        uint64_t density = 1 + kl__random_below(&random, 8);
        kl_shards_none(&layout, &set);
        for (uint32_t shard = 0; shard < kl_layout_shards(&layout); shard++)
            if (kl__random_below(&random, 9) < density)
                set.bits[shard / 64] |= UINT64_C(1) << (shard % 64);
        check_agreement(&set);
        REQUIRE(kl_shards_parse(&layout, kl_str(print(&set)), &back) == KL_OK);
        CHECK(memcmp(&set, &back, sizeof set) == 0);
    }
}

TEST(the_longest_list_is_as_long_as_computed)
{
    static kl_shards set;
    kl_layout layout = digits(4);
    kl_shards_none(&layout, &set);
    for (uint32_t shard = 0; shard < KL_SHARDS_MAX; shard++)
        if (shard % 3 != 2)
            set.bits[shard / 64] |= UINT64_C(1) << (shard % 64);
    CHECK_INT(kl_shards_print(&set, NULL, 0), 21845 * 10 + 4);
}

TEST(printing_never_writes_past_the_room_it_has)
{
    kl_layout layout = digits(1);
    kl_shards set;
    CHECK_INT(kl_shards_parse(&layout, kl_str("0-3,8,a-f"), &set), KL_OK);
    for (size_t size = 0; size <= 12; size++) {
        char text[16] = "###############";
        CHECK_INT(kl_shards_print(&set, text, size), 9);
        if (size > 0)
            CHECK_INT(strlen(text), size > 9 ? 9 : size - 1);
        CHECK(strncmp(text, "0-3,8,a-f", size > 0 ? strlen(text) : 0) == 0);
        CHECK(text[size > 9 ? 10 : size] == '#');
    }
}

TEST(a_number_that_is_no_shard_is_in_no_set)
{
    kl_layout layout = digits(1);
    kl_shards set;
    kl_shards_all(&layout, &set);
    CHECK(kl_shards_contains(&set, 15));
    CHECK(!kl_shards_contains(&set, 16));
    CHECK(!kl_shards_contains(&set, UINT32_MAX));
    CHECK_INT(kl_shards_next(&set, 16), -1);
    CHECK_INT(kl_shards_next(&set, INT64_MAX), -1);
    CHECK_INT(kl_shards_next(&set, -5), 0);
}

/* Every shard is in the slice of exactly one of n workers, and no worker gets two more than another. */
static void check_slices(const kl_layout *layout, int64_t n)
{
    static kl_shards slice;
    uint32_t shards = kl_layout_shards(layout), least = shards, most = 0;
    int64_t expected = 0; /* slices are ranges in the order of workers, so the next shard tells all */
    for (int64_t worker = 0; worker < n; worker++) {
        REQUIRE(kl_shards_slice(layout, worker, n, &slice) == KL_OK);
        uint32_t count = kl_shards_count(&slice);
        least = count < least ? count : least;
        most = count > most ? count : most;
        for (int64_t shard = kl_shards_next(&slice, 0); shard >= 0; shard = kl_shards_next(&slice, shard + 1))
            CHECK_INT(shard, expected++);
    }
    CHECK_INT(expected, shards);
    CHECK(most - least <= 1);
}

TEST(slices_cover_every_shard_exactly_once)
{
    for (uint32_t len = 1; len <= 4; len++) {
        kl_layout layout = digits(len);
        for (int64_t n = 1; n <= (int64_t)test_ops(300); n++)
            check_slices(&layout, n);
        check_slices(&layout, 17);
        check_slices(&layout, 257);
    }
    kl_layout layout = digits(3);
    check_slices(&layout, 4095);
    check_slices(&layout, 4096);
    check_slices(&layout, 4097);
}

TEST(with_more_workers_than_shards_some_get_none)
{
    kl_layout layout = digits(1);
    kl_shards slice;
    uint32_t idle = 0;
    for (int64_t worker = 0; worker < 20; worker++) {
        CHECK_INT(kl_shards_slice(&layout, worker, 20, &slice), KL_OK);
        idle += kl_shards_count(&slice) == 0;
    }
    CHECK_INT(idle, 4);
    CHECK_INT(kl_shards_slice(&layout, 0, KL_SLICE_WORKERS_MAX, &slice), KL_OK);
    CHECK_STR(print(&slice), "none");
}

TEST(a_slice_for_no_such_worker_is_refused)
{
    kl_layout layout = digits(2);
    kl_shards slice;
    CHECK_INT(kl_shards_slice(&layout, 1, 4, &slice), KL_OK);
    CHECK_STR(print(&slice), "40-7f");
    CHECK_INT(kl_shards_slice(&layout, 4, 4, &slice), KL_EINVAL);
    CHECK_CONTAINS(kl_error_text(), "no worker 4 of 4: workers are counted from 0, write 0 to 3");
    CHECK_INT(kl_shards_slice(&layout, -1, 4, &slice), KL_EINVAL);
    CHECK_INT(kl_shards_slice(&layout, 0, 0, &slice), KL_EINVAL);
    CHECK_CONTAINS(kl_error_text(), "write 1 to 65536");
    CHECK_INT(kl_shards_slice(&layout, 0, INT64_MAX, &slice), KL_EINVAL);
    CHECK_STR(print(&slice), "40-7f");
}
