/* test_parse.c - the reader of requests alone: which it refuses, and that it does not matter how bytes were split. */
#include <stdlib.h>

#include "framing.h"
#include "harness.h"

/* As vector says when `split` bytes come first. The copy has no byte to spare, so that a sanitizer sees a step too
 * far. */
static void check_split(const struct framing_vector *vector, size_t split)
{
    char *bytes = malloc(vector->len);
    if (!bytes)
        return;
    memcpy(bytes, vector->bytes, vector->len);
    struct framing_result result = framing_read(bytes, vector->len, split);
    if (result.status != vector->status)
        test_fail(__FILE__, __LINE__, "%s, split at %zu: status is %d, expected %d", vector->name, split, result.status,
                  vector->status);
    else if (result.status == 0 && (result.body.len != vector->body_len || result.used != vector->len - vector->rest ||
                                    memcmp(result.body.data, vector->body, vector->body_len) != 0))
        test_fail(__FILE__, __LINE__, "%s, split at %zu: a body of %zu bytes of %zu used", vector->name, split,
                  result.body.len, result.used);
    free(bytes);
}

TEST(what_can_be_read_in_two_ways_is_refused_wherever_it_is_split)
{
    size_t refused = 0;
    for (size_t i = 0; i < framing_count; i++) {
        refused += framing_vectors[i].status != 0;
        for (size_t split = 0; split <= framing_vectors[i].len; split++)
            check_split(&framing_vectors[i], split);
    }
    CHECK(refused >= 60);
}

TEST(a_request_that_lacks_its_end_is_not_complete)
{
    for (size_t i = 0; i < framing_count; i++) {
        const struct framing_vector *vector = &framing_vectors[i];
        size_t whole = vector->len - vector->rest;
        for (size_t len = 0; vector->status == 0 && len < whole; len++) {
            char *bytes = malloc(len + 1);
            if (!bytes)
                return;
            memcpy(bytes, vector->bytes, len);
            if (framing_read(bytes, len, 0).status != -1)
                test_fail(__FILE__, __LINE__, "%s: %zu bytes of %zu are not -1", vector->name, len, whole);
            free(bytes);
        }
    }
}

static bool is(kl_bytes bytes, const char *text)
{
    return bytes.len == strlen(text) && memcmp(bytes.data, text, bytes.len) == 0;
}

static struct framing_result read_text(char *text) { return framing_read(text, strlen(text), 0); }

TEST(a_head_is_taken_apart)
{
    char text[] = "PATCH /v1/queues/a%2Fb?x=1&y HTTP/1.1\r\nHost: here:1\r\nX-Thing:\t a b \t\r\nConnection: Upgrade, "
                  "CLOSE\r\nExpect: 100-Continue\r\nContent-Length: 0\r\n\r\n";
    struct framing_result result = read_text(text);
    const kl__head *head = &result.head;
    REQUIRE(result.status == 0);
    CHECK_INT(head->method, KL_METHOD_PATCH);
    CHECK(is(head->target, "/v1/queues/a%2Fb?x=1&y"));
    CHECK(is(head->path, "/v1/queues/a%2Fb"));
    CHECK(is(head->query, "x=1&y"));
    CHECK_INT(head->field_count, 5);
    CHECK(is(head->fields[1].name, "x-thing"));
    CHECK(is(kl__head_field(head, "x-thing"), "a b"));
    CHECK_INT(kl__head_field(head, "x-other").len, 0);
    CHECK(!head->keep_alive);
    CHECK(head->expects_continue);
    CHECK(!head->chunked);
    CHECK_INT(head->content_length, 0);
    CHECK_INT(head->minor, 1);
}

TEST(a_whole_address_has_the_path_behind_its_name)
{
    static const struct {
        const char *target, *path, *query;
    } rows[] = {{"http://x/a/b?c=d", "/a/b", "c=d"},
                {"http://x/a?u=http://y/", "/a", "u=http://y/"},
                {"https://x/", "/", ""},
                {"http://x", "/", ""},
                {"Http://x?c", "/", "c"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char text[128];
        snprintf(text, sizeof text, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", rows[i].target);
        struct framing_result result = read_text(text);
        CHECK_INT(result.status, 0);
        CHECK(is(result.head.path, rows[i].path));
        CHECK(result.head.query.len == strlen(rows[i].query));
        CHECK(result.head.query.len == 0 || is(result.head.query, rows[i].query));
    }
}

TEST(a_connection_is_kept_unless_the_version_or_a_word_says_otherwise)
{
    static const struct {
        const char *text;
        bool kept;
    } rows[] = {
        {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", true},
        {"GET / HTTP/1.1\r\nHost: x\r\nConnection: keep-alive\r\n\r\n", true},
        {"GET / HTTP/1.1\r\nHost: x\r\nConnection: closed\r\n\r\n", true},
        {"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", false},
        {"GET / HTTP/1.1\r\nHost: x\r\nConnection: a ,\tClose\t,b\r\n\r\n", false},
        {"GET / HTTP/1.1\r\nHost: x\r\nConnection: ,,\r\nConnection: close\r\n\r\n", false},
        {"GET / HTTP/1.0\r\n\r\n", false},
        {"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char text[128];
        snprintf(text, sizeof text, "%s", rows[i].text);
        struct framing_result result = read_text(text);
        CHECK_INT(result.status, 0);
        CHECK_INT(result.head.keep_alive, rows[i].kept);
    }
}

TEST(a_query_gives_names_and_values_without_escapes)
{
    char text[] = "a=1&&b+c=%41%2f+%00&d&=e&f=";
    static const struct {
        const char *name, *value;
        size_t value_len;
    } rows[] = {{"a", "1", 1}, {"b c", "A/ \0", 4}, {"d", "", 0}, {"", "e", 1}, {"f", "", 0}};
    kl_bytes query = kl_str(text), name, value;
    bool bad;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        REQUIRE(kl__query_next(&query, &name, &value, &bad));
        CHECK(!bad);
        CHECK(is(name, rows[i].name));
        CHECK(value.len == rows[i].value_len && memcmp(value.data, rows[i].value, value.len) == 0);
    }
    CHECK(!kl__query_next(&query, &name, &value, &bad));
    CHECK(!bad);
    query = (kl_bytes){0};
    CHECK(!kl__query_next(&query, &name, &value, &bad));
    CHECK(!bad);
}

TEST(an_escape_that_is_wrong_is_told)
{
    static const char *const texts[] = {"%", "%4", "a%4", "%4g", "%g4", "a%%41", "%-1", "% 1"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        char text[16];
        snprintf(text, sizeof text, "%s", texts[i]);
        kl_bytes part = kl_str(text), name, value;
        bool bad;
        CHECK(!kl__path_unescape(&part));
        snprintf(text, sizeof text, "%s", texts[i]);
        part = kl_str(text);
        CHECK(!kl__query_next(&part, &name, &value, &bad));
        CHECK(bad);
    }
}

TEST(a_part_of_a_path_may_hold_any_byte)
{
    char text[] = "a%2F%00+%ff";
    kl_bytes part = kl_str(text);
    CHECK(kl__path_unescape(&part));
    CHECK(part.len == 5 && memcmp(part.data, "a/\0+\xff", 5) == 0);
}
