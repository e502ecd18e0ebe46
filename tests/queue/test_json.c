/* test_json.c - records' values: what is set is read back (J1), and damage is named. */
#include "base/random.h"
#include "queue/json.h"
#include "queue/record.h"
#include "queue/support.h"

static kl__json parse(const char *text)
{
    kl__json from = {0};
    CHECK_INT(kl__json_parse(kl_str(text), "test/x", &from), KL_OK);
    return from;
}

static void check_bytes(kl_bytes bytes, kl_arena *arena)
{
    json_t *to = kl__json_object();
    kl_bytes text = {0};
    kl__json from = {0};
    CHECK(kl__json_set_bytes(to, "b", bytes));
    CHECK_INT(kl__json_print(to, arena, &text), KL_OK);
    CHECK_INT(strlen(text.data), text.len);
    CHECK_INT(kl__json_parse(text, "test/x", &from), KL_OK);
    kl_bytes back = kl__json_bytes(&from, "b", arena);
    CHECK_INT(from.rc, KL_OK);
    CHECK_INT(back.len, bytes.len);
    CHECK(bytes.len == 0 || (back.len == bytes.len && memcmp(back.data, bytes.data, bytes.len) == 0));
    CHECK_INT(((const char *)back.data)[back.len], 0);
    kl__json_free(&from);
    json_decref(to);
}

TEST(any_bytes_are_read_back_as_they_were)
{
    uint64_t random = test_seed();
    kl_arena arena = {0};
    unsigned char bytes[300];
    for (uint64_t i = 0; i < test_ops(3000); i++) {
        size_t length = kl__random_below(&random, 1 + i % sizeof bytes);
        uint64_t span = i % 3 == 0 ? 256 : i % 3 == 1 ? 127 : 4; /* of any value, of text, of few values around 0 */
        for (size_t j = 0; j < length; j++)
            bytes[j] = (unsigned char)(kl__random_below(&random, span) + (span == 127));
        check_bytes((kl_bytes){bytes, length}, &arena);
        kl_arena_reset(&arena);
    }
    kl_arena_free(&arena);
}

TEST(text_stands_as_text_and_other_bytes_as_base64)
{
    static const struct {
        const char *bytes;
        size_t length;
        const char *printed;
    } cases[] = {
        {"", 0, "\"\""},
        {"a\"b\\\n", 5, "\"a\\\"b\\\\\\n\""},
        {"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80", 9, "\"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\""},
        {"\xf4\x8f\xbf\xbf", 4, "\"\xf4\x8f\xbf\xbf\""},
        {"a\0b", 3, "{\"base64\":\"YQBi\"}"},
        {"\xff", 1, "{\"base64\":\"/w==\"}"},
        {"\xc3", 1, "{\"base64\":\"ww==\"}"},                 /* cut off */
        {"\xc0\xaf", 2, "{\"base64\":\"wK8=\"}"},             /* longer than need be */
        {"\xe0\x80\xaf", 3, "{\"base64\":\"4ICv\"}"},         /* likewise */
        {"\xed\xa0\x80", 3, "{\"base64\":\"7aCA\"}"},         /* half of a pair */
        {"\xf4\x90\x80\x80", 4, "{\"base64\":\"9JCAgA==\"}"}, /* beyond the last character */
        {"\x80", 1, "{\"base64\":\"gA==\"}"},
    };
    kl_arena arena = {0};
    for (size_t i = 0; i < COUNT(cases); i++) {
        char expected[64];
        json_t *to = kl__json_object();
        kl_bytes text = {"", 0};
        CHECK(kl__json_set_bytes(to, "b", (kl_bytes){cases[i].bytes, cases[i].length}));
        CHECK_INT(kl__json_print(to, &arena, &text), KL_OK);
        snprintf(expected, sizeof expected, "{\"b\":%s}", cases[i].printed);
        CHECK_STR((const char *)text.data, expected);
        json_decref(to);
    }
    kl_arena_free(&arena);
}

TEST(every_kind_of_field_is_read_back)
{
    kl_arena arena = {0};
    kl_bytes text;
    kl_task_id id;
    CHECK_INT(kl_id_pack(&(kl_layout){1, 1}, &(kl_id_parts){.shard = 3, .ms = 5, .lane = 7}, &id), KL_OK);
    json_t *to = kl__json_object();
    CHECK(kl__json_set_int(to, "min", INT64_MIN) && kl__json_set_int(to, "max", INT64_MAX) &&
          kl__json_set_bool(to, "yes", true) && kl__json_set_bool(to, "no", false) &&
          kl__json_set_text(to, "text", "\xfftext") && kl__json_set_id(to, "id", &id));
    CHECK_INT(kl__json_print(to, &arena, &text), KL_OK);
    kl__json from = parse(text.data);
    CHECK(kl__json_int(&from, "min", INT64_MIN, 0) == INT64_MIN);
    CHECK(kl__json_int_or(&from, "max", 0, INT64_MAX, 1) == INT64_MAX);
    CHECK(kl__json_bool(&from, "yes") && !kl__json_bool_or(&from, "no", true));
    CHECK_STR(kl__json_text(&from, "text", &arena), "\xfftext");
    kl_task_id back = kl__json_id(&from, "id");
    CHECK(kl_id_compare(&back, &id) == 0);
    CHECK_INT(kl__json_int_or(&from, "none", 1, 2, 77), 77);
    CHECK(kl__json_bool_or(&from, "none", true));
    CHECK_STR(kl__json_text_or(&from, "none", &arena, "so"), "so");
    CHECK_INT(kl__json_bytes_or(&from, "none", &arena, kl_str("abc")).len, 3);
    back = kl__json_id_or(&from, "none", id);
    CHECK(kl_id_compare(&back, &id) == 0);
    CHECK_INT(from.rc, KL_OK);
    kl__json_free(&from);
    kl__json_free(&from);
    json_decref(to);
    kl_arena_free(&arena);
}

#define DAMAGED(text, call, sentence)                                                                                  \
    do {                                                                                                               \
        kl__json from = parse(text);                                                                                   \
        (void)(call);                                                                                                  \
        CHECK_INT(from.rc, KL_EDAMAGED);                                                                               \
        CHECK_CONTAINS(kl_error_text(), "the record test/x is damaged: its field f " sentence);                        \
        kl__json_free(&from);                                                                                          \
    } while (0)

TEST(a_field_of_another_type_or_out_of_range_is_named)
{
    kl_arena arena = {0};
    DAMAGED("{}", kl__json_int(&from, "f", 0, 1), "is missing");
    DAMAGED("{\"f\":null}", kl__json_int(&from, "f", 0, 1), "is missing");
    DAMAGED("{\"f\":1.5}", kl__json_int(&from, "f", 0, 1), "is no whole number");
    DAMAGED("{\"f\":2}", kl__json_int(&from, "f", 0, 1), "is 2, not from 0 to 1");
    DAMAGED("{\"f\":-1}", kl__json_int_or(&from, "f", 0, 1, 0), "is -1, not from 0 to 1");
    DAMAGED("{\"f\":1}", kl__json_bool(&from, "f"), "is neither true nor false");
    DAMAGED("{}", kl__json_bool(&from, "f"), "is missing");
    DAMAGED("{\"f\":1}", kl__json_bytes(&from, "f", &arena), "is no text");
    DAMAGED("{\"f\":{}}", kl__json_bytes(&from, "f", &arena), "is no text");
    DAMAGED("{\"f\":{\"base64\":1}}", kl__json_bytes(&from, "f", &arena), "is no base64");
    DAMAGED("{\"f\":{\"base64\":\"abc\"}}", kl__json_bytes(&from, "f", &arena), "is no base64");
    DAMAGED("{\"f\":{\"base64\":\"ab?=\"}}", kl__json_bytes(&from, "f", &arena), "is no base64");
    DAMAGED("{\"f\":{\"base64\":\"YQBi\"}}", kl__json_text(&from, "f", &arena), "has a zero byte in it");
    DAMAGED("{\"f\":\"x\"}", kl__json_id(&from, "f"), "is no id");
    DAMAGED("{\"f\":7}", kl__json_id(&from, "f"), "is no id");
    DAMAGED("{\"f\":7}", kl__json_array_of(&from, "f", 3), "is no list");
    DAMAGED("{\"f\":[1,2]}", kl__json_array_of(&from, "f", 1), "has too many items");
    DAMAGED("{\"f\":7}", kl__json_inner(&from, "f").rc, "is no object");
    kl_arena_free(&arena);
}

TEST(the_first_failure_of_several_is_the_one_that_is_told)
{
    kl__json from = parse("{\"a\":9,\"b\":9}");
    CHECK_INT(kl__json_int(&from, "a", 1, 2), 1);
    CHECK_INT(kl__json_int(&from, "b", 3, 4), 3);
    CHECK_CONTAINS(kl_error_text(), "its field a is 9");
    kl__json_free(&from);
}

TEST(text_that_is_no_json_object_is_damaged)
{
    static const char *const bad[] = {"", "{", "[]", "7", "{\"a\":1,\"a\":2}", "{}x", "{\"a\":\"\xff\"}"};
    kl__json from = {0};
    for (size_t i = 0; i < COUNT(bad); i++)
        CHECK_FAILS(kl__json_parse(kl_str(bad[i]), "test/x", &from), KL_EDAMAGED, "the record test/x is damaged");
    CHECK(!from.object);
}

/* --- Records --- */

CLAIM(a_record_is_written_only_over_the_version_that_was_read)
{
    char buffer[KL_RECORD_NAME_BYTES];
    kl_bytes name = kl__record_name(buffer, sizeof buffer, "job", "orders", "7");
    CHECK_STR(buffer, "job/orders/7");
    uint64_t first = 0, second = 0;
    kl_record record;
    kl__json value;
    CHECK_INT(kl__record_read(rig->store, name, &rig->arena, &value, &record), KL_ENOTFOUND);
    CHECK_INT(kl__record_put(rig->store, name, 0, kl_str("{\"a\":1}"), 0, &first), KL_OK);
    CHECK_INT(kl__record_put(rig->store, name, 0, kl_str("{\"a\":2}"), 0, &second), KL_ECONFLICT);
    CHECK_INT(kl__record_put(rig->store, name, first, kl_str("{\"a\":2}"), 0, &second), KL_OK);
    CHECK_INT(kl__record_remove(rig->store, name, first), KL_ECONFLICT);
    CHECK_INT(kl__record_read(rig->store, name, &rig->arena, &value, &record), KL_OK);
    CHECK_INT(record.version, second);
    CHECK_STR((const char *)record.name.data, "job/orders/7");
    CHECK_INT(kl__json_int(&value, "a", 2, 2), 2);
    kl__json_free(&value);
    CHECK_INT(kl__record_remove(rig->store, name, second), KL_OK);
    CHECK_INT(kl__record_remove(rig->store, name, second), KL_OK);
    CHECK_INT(kl__record_get(rig->store, name, &rig->arena, &record), KL_OK);
    CHECK_INT(record.version, 0);
}

CLAIM(clearing_takes_all_records_of_the_prefix_and_no_others)
{
    char name[32];
    for (int i = 0; i < 600; i++) {
        snprintf(name, sizeof name, "cron/a/%d", i);
        set_record(rig, name, "{}");
    }
    set_record(rig, "cron/ab/1", "{}");
    CHECK_INT(kl__records_clear(rig->store, kl_str("cron/a/")), KL_OK);
    kl_record records[2];
    size_t count = 0;
    CHECK_INT(kl_store_list(rig->store, kl_str("cron/"), kl_str(""), 2, &rig->arena, records, &count), KL_OK);
    CHECK_INT(count, 1);
    CHECK(record_text(rig, "cron/ab/1"));
}

/* --- What somebody sent --- */

TEST(what_is_wrong_with_json_that_was_sent_is_the_senders_to_correct)
{
    kl__json from;
    REQUIRE(kl__json_parse_given(kl_str("{\"max\": 0, \"id\": \"x\"}"), 8, "the body", &from) == KL_OK);
    CHECK_INT(kl__json_int(&from, "max", 1, 9), 1);
    kl__json_id(&from, "id");
    CHECK_INT(from.rc, KL_EINVAL);
    CHECK_STR(kl_error_text(), "the body: \"max\" is 0, not from 1 to 9; correct it"); /* the first, whatever follows */
    kl__json_free(&from);
}

TEST(json_that_was_sent_is_one_object_without_doubles)
{
    static const struct {
        const char *text, *sentence;
    } cases[] = {
        {"", "the body is no JSON"},         {"[1]", "the body is not one JSON object"},
        {"{\"a\":1,\"a\":2}", "duplicate"},  {"{} {}", "the body is no JSON"},
        {"{\"a\":}", "the body is no JSON"}, {"7", "the body is not one JSON object"},
    };
    kl__json from;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        CHECK_INT(kl__json_parse_given(kl_str(cases[i].text), 8, "the body", &from), KL_EINVAL);
        CHECK_CONTAINS(kl_error_text(), cases[i].sentence);
    }
}

TEST(depth_counts_what_is_open_and_not_what_stands_in_texts)
{
    CHECK(!kl__json_is_deeper(kl_str("{\"a\":[[],[{}]]}"), 4));
    CHECK(kl__json_is_deeper(kl_str("{\"a\":[[],[{}]]}"), 3));
    CHECK(!kl__json_is_deeper(kl_str("{\"[[[[\\\"[[[[\":\"{{{{\\\\\"}"), 1));
    CHECK(kl__json_is_deeper(kl_str("]]]]{{"), 1));
    CHECK(!kl__json_is_deeper(kl_str("\"\\"), 0));
}
