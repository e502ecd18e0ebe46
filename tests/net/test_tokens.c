/* test_tokens.c - tokens: their file, whom they let in, and what they are for. */
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "harness.h"
#include "net/tokens_file.h"

#define HASH "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08" /* of "test" */

struct place {
    char dir[64], path[96];
};

static struct place make_place(void)
{
    struct place place = {.dir = "/tmp/keyline-tokens-XXXXXX"};
    if (!mkdtemp(place.dir))
        test_fail(__FILE__, __LINE__, "no directory for the test");
    snprintf(place.path, sizeof place.path, "%s/tokens", place.dir);
    return place;
}

static void leave_place(const struct place *place)
{
    unlink(place->path);
    rmdir(place->dir);
}

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    if (!file || fputs(text, file) < 0 || fclose(file) != 0)
        test_fail(__FILE__, __LINE__, "%s cannot be written", path);
}

static kl_rc parse(const char *text, kl__token_set *set) { return kl__token_set_parse("file", kl_str(text), set); }

TEST(a_file_of_tokens_is_read)
{
    kl__token_set set;
    REQUIRE(parse("# people\n\nshop operate orders,mail* " HASH "\n\t grafana  read\t* " HASH "\r\nroot admin * " HASH,
                  &set) == KL_OK);
    REQUIRE(set.count == 3);
    CHECK_STR(set.lines[0].token.name, "shop");
    CHECK_INT(set.lines[0].token.role, KL_ROLE_OPERATE);
    CHECK_STR(set.lines[0].token.scope, "orders,mail*");
    CHECK_INT(set.lines[0].hash[0], 0x9f);
    CHECK_INT(set.lines[0].hash[31], 0x08);
    CHECK_INT(set.lines[1].token.role, KL_ROLE_READ);
    CHECK_STR(set.lines[2].token.scope, "*");
    kl_arena_free(&set.arena);
}

TEST(a_line_that_is_wrong_is_named)
{
    static const struct {
        const char *text, *sentence;
    } rows[] = {
        {"shop operate *", "file:1: a line is NAME ROLE QUEUES SHA256"},
        {"# x\nshop operate * " HASH " more", "file:2: a line is"},
        {"shop anyone * " HASH, "file:1: its role"},
        {"shop Admin * " HASH, "file:1: its role"},
        {"sh/op admin * " HASH, "file:1: its name"},
        {"shop admin ,a " HASH, "file:1: its queues"},
        {"shop admin a, " HASH, "file:1: its queues"},
        {"shop admin a,,b " HASH, "file:1: its queues"},
        {"shop admin a*b " HASH, "file:1: its queues"},
        {"shop admin ** " HASH, "file:1: its queues"},
        {"shop admin a/b " HASH, "file:1: its queues"},
        {"shop admin * abc", "file:1: its last word"},
        {"shop admin * " HASH "00", "file:1: its last word"},
        {"shop admin * zf86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", "file:1: its last word"},
        {"a admin * " HASH "\n\na read * " HASH, "file:3: its name stands on an earlier line"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        kl__token_set set;
        if (parse(rows[i].text, &set) != KL_EINVAL)
            test_fail(__FILE__, __LINE__, "accepted: %s", rows[i].text);
        CHECK_CONTAINS(kl_error_text(), rows[i].sentence);
    }
}

TEST(a_zero_byte_in_a_file_of_tokens_is_refused)
{
    kl__token_set set;
    CHECK_INT(kl__token_set_parse("file", (kl_bytes){"a admin * \0" HASH, 10 + 1 + 64}, &set), KL_EINVAL);
    CHECK_CONTAINS(kl_error_text(), "file:1: it has a zero byte");
}

TEST(scopes_say_which_queues)
{
    static const struct {
        const char *scope, *queue;
        bool may;
    } rows[] = {
        {"*", "orders", true},
        {"orders", "orders", true},
        {"orders", "order", false},
        {"orders", "orders2", false},
        {"mail*", "mail", true},
        {"mail*", "mail-eu", true},
        {"mail*", "mai", false},
        {"orders,mail*", "mail9", true},
        {"orders,mail*", "orders", true},
        {"orders,mail*", "x", false},
        {"a,*", "x", true},
        {"a,b", "a,b", false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (kl__token_may(rows[i].scope, rows[i].queue) != rows[i].may)
            test_fail(__FILE__, __LINE__, "%s for %s is judged wrongly", rows[i].scope, rows[i].queue);
    }
    CHECK(kl__token_may(NULL, "orders") && kl__token_may_all(NULL));
    CHECK(kl__token_may_all("a,*"));
    CHECK(!kl__token_may_all("a*,b"));
}

TEST(a_token_that_was_added_is_known_until_it_is_removed)
{
    struct place place = make_place();
    char first[KL_TOKEN_BYTES], second[KL_TOKEN_BYTES];
    kl__access *tokens;
    kl__token token;
    struct stat about;
    REQUIRE(kl__access_add(place.path, &(kl__token){"shop", KL_ROLE_OPERATE, "orders"}, first) == KL_OK);
    REQUIRE(stat(place.path, &about) == 0);
    CHECK_INT(about.st_mode & 0777, 0600);
    CHECK_INT(strlen(first), KL_TOKEN_BYTES - 1);
    REQUIRE(kl__access_open(place.path, &tokens) == KL_OK);
    REQUIRE(kl__access_check(tokens, kl_str(first), &token));
    CHECK_STR(token.name, "shop");
    CHECK_INT(token.role, KL_ROLE_OPERATE);
    CHECK_STR(token.scope, "orders");

    REQUIRE(kl__access_add(place.path, &(kl__token){"root", KL_ROLE_ADMIN, "*"}, second) == KL_OK);
    CHECK(strcmp(first, second) != 0);
    CHECK(!kl__access_check(tokens, kl_str(second), &token));
    REQUIRE(kl__access_reload(tokens) == KL_OK);
    CHECK(kl__access_check(tokens, kl_str(second), &token));
    CHECK_INT(kl__access_add(place.path, &(kl__token){"root", KL_ROLE_READ, "*"}, second), KL_ECONFLICT);

    CHECK_INT(kl__access_remove(place.path, "nobody"), KL_ENOTFOUND);
    REQUIRE(kl__access_remove(place.path, "shop") == KL_OK);
    REQUIRE(kl__access_reload(tokens) == KL_OK);
    CHECK(!kl__access_check(tokens, kl_str(first), &token));
    REQUIRE(kl__access_at(tokens, 0, &token));
    CHECK_STR(token.name, "root");
    CHECK(!kl__access_at(tokens, 1, &token));
    CHECK_INT(kl__access_remove(place.path, "root"), KL_EINVAL);
    kl__access_close(tokens);
    leave_place(&place);
}

TEST(without_a_file_no_token_is_needed)
{
    kl__access *tokens;
    kl__token token;
    REQUIRE(kl__access_open(NULL, &tokens) == KL_OK);
    CHECK(!kl__access_any(tokens) && !kl__access_any(NULL));
    CHECK(!kl__access_check(tokens, kl_str("x"), &token));
    CHECK_INT(kl__access_reload(tokens), KL_OK);
    kl__access_close(tokens);
}

TEST(what_a_reload_replaced_stays_readable)
{
    struct place place = make_place();
    kl__access *tokens;
    kl__token before, token;
    write_file(place.path, "shop read * " HASH "\n");
    REQUIRE(kl__access_open(place.path, &tokens) == KL_OK);
    REQUIRE(kl__access_check(tokens, kl_str("test"), &before));
    REQUIRE(kl__access_reload(tokens) == KL_OK);
    REQUIRE(kl__access_check(tokens, kl_str("test"), &token));
    CHECK(token.name == before.name);
    write_file(place.path, "other read * " HASH "\n");
    REQUIRE(kl__access_reload(tokens) == KL_OK);
    REQUIRE(kl__access_check(tokens, kl_str("test"), &token));
    CHECK_STR(token.name, "other");
    CHECK_STR(before.name, "shop");
    kl__access_close(tokens);
    leave_place(&place);
}

TEST(what_is_not_the_whole_token_is_nobodys)
{
    struct place place = make_place();
    kl__access *tokens;
    kl__token token;
    write_file(place.path, "shop read * " HASH "\n");
    REQUIRE(kl__access_open(place.path, &tokens) == KL_OK);
    CHECK(kl__access_check(tokens, kl_str("test"), &token));
    CHECK(!kl__access_check(tokens, kl_str(""), &token));
    CHECK(!kl__access_check(tokens, kl_str("tes"), &token));
    CHECK(!kl__access_check(tokens, kl_str("testt"), &token));
    CHECK(!kl__access_check(tokens, kl_str(HASH), &token));
    CHECK(!kl__access_check(tokens, (kl_bytes){"test\0", 5}, &token));
    kl__access_close(tokens);
    leave_place(&place);
}

TEST(a_file_that_others_can_write_to_or_without_tokens_is_refused_and_the_old_ones_stay)
{
    struct place place = make_place();
    kl__access *tokens;
    kl__token token;
    CHECK_INT(kl__access_open(place.path, &tokens), KL_ESYSTEM);
    write_file(place.path, "# nobody\n");
    CHECK_INT(kl__access_open(place.path, &tokens), KL_EINVAL);
    CHECK_CONTAINS(kl_error_text(), "no token in it");
    write_file(place.path, "shop read * " HASH "\n");
    chmod(place.path, 0620);
    CHECK_INT(kl__access_open(place.path, &tokens), KL_EINVAL);
    CHECK_CONTAINS(kl_error_text(), "chmod go-w");
    chmod(place.path, 0644);
    REQUIRE(kl__access_open(place.path, &tokens) == KL_OK);
    write_file(place.path, "shop read\n");
    CHECK_INT(kl__access_reload(tokens), KL_EINVAL);
    CHECK(kl__access_check(tokens, kl_str("test"), &token));
    kl__access_close(tokens);
    leave_place(&place);
}

TEST(whoever_could_read_a_file_of_tokens_can_after_a_change)
{
    struct place place = make_place();
    char text[KL_TOKEN_BYTES];
    struct stat about;
    write_file(place.path, "shop read * " HASH "\n");
    chmod(place.path, 0644);
    if (geteuid() == 0)
        REQUIRE(chown(place.path, 0, 2) == 0);
    REQUIRE(kl__access_add(place.path, &(kl__token){"a", KL_ROLE_READ, "*"}, text) == KL_OK);
    REQUIRE(stat(place.path, &about) == 0);
    CHECK_INT(about.st_mode & 07777, 0644);
    CHECK(geteuid() != 0 || about.st_gid == 2);
    chmod(place.path, 0640);
    REQUIRE(kl__access_remove(place.path, "shop") == KL_OK);
    REQUIRE(stat(place.path, &about) == 0);
    CHECK_INT(about.st_mode & 07777, 0640);
    CHECK(geteuid() != 0 || about.st_gid == 2);
    leave_place(&place);
}

TEST(comments_of_a_file_of_tokens_stay)
{
    struct place place = make_place();
    char text[KL_TOKEN_BYTES], line[256] = "";
    write_file(place.path, "# ours");
    REQUIRE(kl__access_add(place.path, &(kl__token){"a", KL_ROLE_READ, "*"}, text) == KL_OK);
    REQUIRE(kl__access_add(place.path, &(kl__token){"ab", KL_ROLE_READ, "*"}, text) == KL_OK);
    REQUIRE(kl__access_remove(place.path, "a") == KL_OK);
    FILE *file = fopen(place.path, "r");
    REQUIRE(file && fgets(line, sizeof line, file));
    CHECK_STR(line, "# ours\n");
    REQUIRE(fgets(line, sizeof line, file));
    CHECK_INT(strncmp(line, "ab read * ", 10), 0);
    CHECK(!fgets(line, sizeof line, file));
    fclose(file);
    leave_place(&place);
}
