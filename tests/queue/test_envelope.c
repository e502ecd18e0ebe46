/* test_envelope.c - what a task carries: every field comes back, and no bytes make the reader stumble. */
#include <stdlib.h>

#include "base/compare.h"
#include "base/random.h"
#include "harness.h"
#include "queue/envelope.h"

static bool same(const kl_task_extra *a, const kl_task_extra *b)
{
    bool equal = a->attempts_max == b->attempts_max && a->timeout_ms == b->timeout_ms &&
                 kl__bytes_equal(a->unique, b->unique) && kl__bytes_equal(a->group, b->group) &&
                 kl__bytes_equal(a->traceparent, b->traceparent) && a->header_count == b->header_count &&
                 a->tag_count == b->tag_count && kl_id_compare(&a->origin, &b->origin) == 0;
    for (size_t i = 0; equal && i < a->header_count; i++)
        equal = kl__bytes_equal(a->headers[i].name, b->headers[i].name) &&
                kl__bytes_equal(a->headers[i].value, b->headers[i].value);
    for (size_t i = 0; equal && i < a->tag_count; i++)
        equal = kl__bytes_equal(a->tags[i], b->tags[i]);
    return equal;
}

static kl_header some_headers[] = {{{"a", 1}, {"1", 1}}, {{"empty", 5}, {"", 0}}, {{"nul\0s", 5}, {"\0\xff", 2}}};
static kl_bytes some_tags[] = {{"red", 3}, {"blue", 4}};

static kl_task_extra full_extra(void)
{
    return (kl_task_extra){
        .attempts_max = KL_ATTEMPTS_MAX,
        .timeout_ms = KL_FOREVER,
        .unique = kl_str("invoice-7"),
        .group = kl_str("customer-9"),
        .traceparent = kl_str("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        .headers = some_headers,
        .header_count = 3,
        .tags = some_tags,
        .tag_count = 2,
        .origin = {{1, 2, 3, 4, 5, 6, 0x87, 8, 0x89, 10, 11, 12, 13, 14, 15, 16}},
    };
}

TEST(nothing_to_carry_takes_no_bytes)
{
    kl_arena arena = {0};
    kl_task_extra none = {0}, back;
    kl_bytes bytes = {"x", 1};
    CHECK_INT(kl__envelope_encode(&none, &arena, &bytes), KL_OK);
    CHECK_INT(bytes.len, 0);
    CHECK_INT(kl__envelope_decode(bytes, &arena, &back), KL_OK);
    CHECK(same(&none, &back));
    CHECK(!arena.blocks);
    kl_arena_free(&arena);
}

TEST(every_field_of_an_envelope_comes_back)
{
    kl_arena arena = {0};
    kl_task_extra extra = full_extra(), back;
    kl_bytes bytes;
    REQUIRE(kl__envelope_encode(&extra, &arena, &bytes) == KL_OK);
    REQUIRE(kl__envelope_decode(bytes, &arena, &back) == KL_OK);
    CHECK(same(&extra, &back));
    kl_arena_free(&arena);
}

TEST(an_envelope_s_bytes_are_what_the_table_says)
{
    kl_arena arena = {0};
    kl_task_extra extra = {.attempts_max = 300, .headers = some_headers, .header_count = 1};
    static const uint8_t expected[] = {1, 2, 0xac, 0x02, 6, 3, 1, 'a', '1'};
    kl_bytes bytes;
    REQUIRE(kl__envelope_encode(&extra, &arena, &bytes) == KL_OK);
    CHECK(kl__bytes_equal(bytes, (kl_bytes){expected, sizeof expected}));
    kl_arena_free(&arena);
}

TEST(fields_of_newer_programs_are_passed_over)
{
    kl_arena arena = {0};
    static const uint8_t bytes[] = {200, 3, 'x', 'y', 'z', 4, 1, 'g', 255, 0};
    kl_task_extra extra;
    REQUIRE(kl__envelope_decode((kl_bytes){bytes, sizeof bytes}, &arena, &extra) == KL_OK);
    CHECK_INT(extra.group.len, 1);
    kl_arena_free(&arena);
}

TEST(what_is_no_envelope_is_refused)
{
    static const struct {
        const char *bytes;
        size_t len;
    } wrong[] = {
        {"\x00\x00", 2},             /* number 0 */
        {"\x04", 1},                 /* no length */
        {"\x04\x05g", 3},            /* cut off */
        {"\x04\x81\x00g", 4},        /* a length that is longer than it need be */
        {"\x04\x01g\x04\x01g", 6},   /* a group twice */
        {"\x04\x00", 2},             /* an empty group is none */
        {"\x01\x01\x00", 3},         /* no attempts */
        {"\x01\x03\x80\x80\x04", 5}, /* 65,536 attempts */
        {"\x01\x02\x01\x01", 4},     /* bytes behind the number */
        {"\x08\x01x", 3},            /* no id */
        {"\x06\x01\x05", 3},         /* a name that is longer than its field */
        {"\x02\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f", 12},
    };
    kl_arena arena = {0};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        kl_task_extra extra;
        kl_rc rc = kl__envelope_decode((kl_bytes){wrong[i].bytes, wrong[i].len}, &arena, &extra);
        if (rc != KL_EDAMAGED)
            test_fail(__FILE__, __LINE__, "case %zu: %s", i, kl_rc_name(rc));
    }
    kl_arena_free(&arena);
}

TEST(an_envelope_over_the_limit_is_refused)
{
    static char value[KL_HEADERS_BYTES_MAX];
    kl_header headers[] = {{{"h", 1}, {value, sizeof value - 6}}};
    kl_task_extra extra = {.headers = headers, .header_count = 1}, back;
    kl_arena arena = {0};
    kl_bytes bytes;
    CHECK_INT(kl__envelope_encode(&extra, &arena, &bytes), KL_OK);
    CHECK_INT(bytes.len, KL_HEADERS_BYTES_MAX);
    CHECK_INT(kl__envelope_decode(bytes, &arena, &back), KL_OK);
    headers[0].value.len++;
    CHECK_INT(kl__envelope_encode(&extra, &arena, &bytes), KL_EINVAL);
    CHECK_CONTAINS(kl_error_text(), "65536 bytes");
    kl_arena_free(&arena);
}

/* In memory of exactly its length, where a sanitizer sees what is read beyond. What is read can be written again. */
static void decode_exactly(const uint8_t *bytes, size_t length)
{
    kl_arena arena = {0};
    uint8_t *copy = malloc(length ? length : 1);
    kl_task_extra extra, back;
    kl_bytes again;
    memcpy(copy, bytes, length);
    kl_rc rc = kl__envelope_decode((kl_bytes){copy, length}, &arena, &extra);
    CHECK(rc == KL_OK || rc == KL_EDAMAGED);
    if (rc == KL_OK) {
        CHECK_INT(kl__envelope_encode(&extra, &arena, &again), KL_OK);
        CHECK(again.len <= length);
        CHECK_INT(kl__envelope_decode(again, &arena, &back), KL_OK);
        CHECK(same(&extra, &back));
    }
    free(copy);
    kl_arena_free(&arena);
}

TEST(no_bytes_make_the_reader_of_envelopes_stumble)
{
    uint64_t random = test_seed();
    kl_arena arena = {0};
    kl_task_extra extra = full_extra();
    kl_bytes whole;
    uint8_t bytes[512];
    REQUIRE(kl__envelope_encode(&extra, &arena, &whole) == KL_OK && whole.len <= sizeof bytes);
    for (size_t length = 0; length <= whole.len; length++)
        decode_exactly(whole.data, length);
    for (uint64_t i = 0; i < test_ops(20000); i++) {
        size_t length = kl__random_below(&random, 64);
        bool random_bytes = i % 2;
        if (!random_bytes) {
            length = whole.len;
            memcpy(bytes, whole.data, length);
        }
        for (size_t j = 0; random_bytes && j < length; j++)
            bytes[j] = (uint8_t)kl__random_below(&random, kl__random_below(&random, 2) ? 10 : 256);
        for (int j = 0; !random_bytes && j < 3; j++)
            bytes[kl__random_below(&random, length)] = (uint8_t)kl__random_next(&random);
        decode_exactly(bytes, length);
    }
    kl_arena_free(&arena);
}

TEST(a_repeated_envelope_keeps_what_it_does_not_know_and_names_its_origin)
{
    static const uint8_t old[] = {200, 1, 'x', 4, 1, 'g', 8, 16, 1, 1, 1, 1, 1, 1, 0x81, 1, 0x81, 1, 1, 1, 1, 1, 1, 1};
    kl_task_id origin = {{7, 7, 7, 7, 7, 7, 0x87, 7, 0x87, 7, 7, 7, 7, 7, 7, 7}};
    kl_arena arena = {0};
    kl_bytes bytes;
    kl_task_extra extra;
    REQUIRE(kl__envelope_repeat((kl_bytes){old, sizeof old}, &origin, KL_LEAVES_NOTHING, &arena, &bytes) == KL_OK);
    CHECK_INT(bytes.len, sizeof old);
    CHECK(memcmp(bytes.data, old, 6) == 0);
    REQUIRE(kl__envelope_decode(bytes, &arena, &extra) == KL_OK);
    CHECK(kl_id_compare(&extra.origin, &origin) == 0);
    CHECK_INT(kl__envelope_repeat((kl_bytes){"\x00", 1}, &origin, KL_LEAVES_NOTHING, &arena, &bytes), KL_EDAMAGED);
    kl_arena_free(&arena);
}
