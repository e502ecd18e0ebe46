/* test_toml.c - the part of TOML that keyline.toml is written in: what is read, what is refused and where. */
#include "cli/toml.h"
#include "harness.h"

static kl_rc parse_bytes(const char *text, size_t length, kl_arena *arena, kl__toml_item **ret_items)
{
    return kl__toml_parse((kl_bytes){text, length}, "f", arena, ret_items);
}

TEST(every_kind_of_value_is_read)
{
    static const char text[] = "# a comment\n"
                               "a = \"b\\t\\\"\\u00e9\" # another\r\n"
                               "'quoted key' = 'c:\\d'\n"
                               "n = -1_000\n"
                               "max = +9223372036854775807\n"
                               "yes = true\n"
                               "no=false\n"
                               "[ worker . 'sub' ]\n"
                               "x.y = [ 'a', # first\n  \"b\",\n]\n"
                               "none = []\n";
    kl_arena arena = {0};
    kl__toml_item *item = NULL;
    REQUIRE(parse_bytes(text, sizeof text - 1, &arena, &item) == KL_OK);
    CHECK_STR(item->path[0], "a");
    CHECK_STR(item->string, "b\t\"\xc3\xa9");
    CHECK_INT(item->line, 2);
    CHECK_INT(item->value_column, 5);
    item = item->next;
    CHECK_STR(item->path[0], "quoted key");
    CHECK_STR(item->string, "c:\\d");
    item = item->next;
    CHECK_INT(item->number, -1000);
    item = item->next;
    CHECK_INT(item->number, INT64_MAX);
    item = item->next;
    CHECK_INT(item->kind, KL_TOML_BOOL);
    CHECK_INT(item->number, 1);
    item = item->next;
    CHECK_INT(item->number, 0);
    item = item->next;
    CHECK_INT(item->depth, 4);
    CHECK_STR(item->path[1], "sub");
    CHECK_STR(item->path[3], "y");
    CHECK_INT(item->count, 2);
    CHECK_STR(item->list[1], "b");
    CHECK_INT(item->line, 9);
    item = item->next;
    CHECK_INT(item->line, 12);
    CHECK_INT(item->count, 0);
    CHECK(item->next == NULL);
    kl_arena_free(&arena);
}

TEST(a_file_may_be_empty)
{
    static const char *const texts[] = {"", "\n", "# only a comment", " \t", "\xef\xbb\xbf", "[table]"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        kl_arena arena = {0};
        kl__toml_item *items = (kl__toml_item *)&arena;
        CHECK_INT(parse_bytes(texts[i], strlen(texts[i]), &arena, &items), KL_OK);
        CHECK(items == NULL);
        kl_arena_free(&arena);
    }
}

TEST(what_is_not_understood_is_refused_by_line_and_column)
{
    static const struct {
        const char *text, *sentence;
    } cases[] = {
        {"a", "f:1:2: a key is followed by ="},
        {"a =", "f:1:4: a value is expected"},
        {"= 1", "f:1:1: a key is expected"},
        {"\n  a = 1 b", "f:2:9: only a comment"},
        {"a = 1.5", "f:1:5: only decimal whole numbers"},
        {"a = 1e3", "f:1:5: only decimal whole numbers"},
        {"a = 0x1f", "f:1:5: only decimal whole numbers"},
        {"a = 2026-11-15", "f:1:5: only decimal whole numbers"},
        {"a = 012", "f:1:5: a number does not begin with 0"},
        {"a = 1__0", "f:1:5: in a number"},
        {"a = 1_", "f:1:5: in a number"},
        {"a = 9223372036854775808", "f:1:5: the number is too large"},
        {"a = inf", "f:1:5: a value is expected"},
        {"a = truely", "f:1:5: a value is expected"},
        {"a = \"\"\"b\"\"\"", "f:1:5: strings over several lines"},
        {"a = '''b'''", "f:1:5: strings over several lines"},
        {"a = \"b", "f:1:7: the string does not end on its line"},
        {"a = 'b\n'", "f:1:7: the string does not end on its line"},
        {"a = \"\\q\"", "f:1:7: after a backslash"},
        {"a = \"\\u00g0\"", "f:1:8: \\u takes 4 hex digits"},
        {"a = \"\\ud800\"", "f:1:8: \\ud800 is no character"},
        {"a = \"\\u0000\"", "f:1:8: \\u0000 is no character"},
        {"a = \"\x01\"", "f:1:6: a control character"},
        {"# \x01", "f:1:3: a control character"},
        {"a = {b = 1}", "f:1:5: inline tables"},
        {"[[a]]", "f:1:2: arrays of tables"},
        {"[a", "f:1:3: the table's name ends with ]"},
        {"[]", "f:1:2: a key is expected"},
        {"a = [1, 2]", "f:1:6: arrays hold strings only"},
        {"a = [['b']]", "f:1:6: arrays hold strings only"},
        {"a = ['b' 'c']", "f:1:10: a comma or ]"},
        {"a = ['b'", "f:1:9: a comma or ]"},
        {"a = 1\na = 2", "f:2:1: 'a' was given on line 1 already"},
        {"a = 1\na.b = 2", "f:2:1: 'a' cannot be a value and a table"},
        {"a.b = 1\na = 2", "f:2:1: 'a' cannot be a value and a table"},
        {"a = 1\n[a]", "f:2:2: 'a' was given a value on line 1"},
        {"[a]\n[b]\n[a]", "f:3:2: this table was begun on line 1"},
        {"a.b.c = 1\n[a.b]", "f:2:2: this table was made by a dotted key on line 1"},
        {"[a.b]\n[a]\nb.c = 1", "f:3:1: 'b' is the table that was begun on line 1"},
        {"[a.b.c]\n[a]\nb = 1", "f:3:1: 'b' is the table that was begun on line 1"},
        {"a.b.c.d.e.f.g.h.i = 1", "f:1:17: a key has at most 8 parts"},
        {"a = '\xff'", "f:1:6: this is not UTF-8"},
        {"\n\xc3(", "f:2:1: this is not UTF-8"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        kl_arena arena = {0};
        kl__toml_item *items = NULL;
        CHECK_INT(parse_bytes(cases[i].text, strlen(cases[i].text), &arena, &items), KL_EINVAL);
        if (strncmp(kl_error_text(), cases[i].sentence, strlen(cases[i].sentence)) != 0)
            test_fail(__FILE__, __LINE__, "%s: \"%s\", not \"%s\"", cases[i].text, kl_error_text(), cases[i].sentence);
        kl_arena_free(&arena);
    }
}

TEST(a_zero_byte_ends_nothing)
{
    kl_arena arena = {0};
    kl__toml_item *items = NULL;
    CHECK_INT(parse_bytes("a = 1\n\0", 7, &arena, &items), KL_EINVAL);
    CHECK_INT(parse_bytes("a = '\0'", 7, &arena, &items), KL_EINVAL);
    kl_arena_free(&arena);
}

TEST(too_much_is_refused)
{
    static char text[KL_TOML_BYTES_MAX + 2];
    kl_arena arena = {0};
    kl__toml_item *items = NULL;
    memset(text, '\n', sizeof text);
    CHECK_INT(parse_bytes(text, KL_TOML_BYTES_MAX, &arena, &items), KL_OK);
    CHECK_INT(parse_bytes(text, KL_TOML_BYTES_MAX + 1, &arena, &items), KL_EINVAL);
    int length = 0;
    for (int i = 0; i <= KL_TOML_KEYS_MAX; i++)
        length += snprintf(text + length, 32, "a%d = 1\n", i);
    CHECK_INT(parse_bytes(text, (size_t)length, &arena, &items), KL_EINVAL);
    CHECK_CONTAINS(kl_error_text(), "more than 1000 keys");
    kl_arena_free(&arena);
}

/* ---- Random texts ---- */

static uint64_t next(uint64_t *state)
{
    return (*state = *state * UINT64_C(6364136223846793005) + 1442695040888963407) >> 33;
}

/* Pieces rather than bytes: so that most texts go far before they are refused. */
static size_t make_text(uint64_t *state, char *text, size_t room)
{
    static const char *const pieces[] = {
        "a", "b",    "\"c\"", "'d'", ".",           " = ",      "1",     "-2",      "true",      "[",
        "]", "\n",   "\n",    "# e", "\"\\u00e9\"", ",",        "[a]\n", "[a.b]\n", "\\",        "\"",
        "'", "\r\n", "\t",    "0",   "_",           "\xc3\xa9", "\xff",  "{",       "a = 'x'\n", "b = ['y', 'z']\n"};
    size_t length = 0, count = next(state) % 24;
    for (size_t i = 0; i < count; i++) {
        const char *piece = pieces[next(state) % (sizeof pieces / sizeof pieces[0])];
        if (length + strlen(piece) > room)
            break;
        memcpy(text + length, piece, strlen(piece));
        length += strlen(piece);
    }
    return length;
}

static void print_value(FILE *out, const kl__toml_item *item)
{
    if (item->kind == KL_TOML_NUMBER)
        fprintf(out, "%" PRId64 "\n", item->number);
    else if (item->kind == KL_TOML_BOOL)
        fputs(item->number ? "true\n" : "false\n", out);
    else
        fputs("'x'\n", out);
}

/* What was read, written with full keys and no tables, is read as the same keys. */
static void check_again(const kl__toml_item *items)
{
    char again[8192];
    FILE *out = fmemopen(again, sizeof again, "w");
    size_t count = 0, count_again = 0;
    for (const kl__toml_item *item = items; item; item = item->next, count++) {
        for (int i = 0; i < item->depth; i++) {
            fputs(i ? ".\"" : "\"", out);
            for (const char *at = item->path[i]; *at; at++)
                fprintf(out, *(const unsigned char *)at < ' ' ? "\\u%04x" : strchr("\"\\", *at) ? "\\%c" : "%c", *at);
            fputs("\"", out);
        }
        fputs(" = ", out);
        print_value(out, item);
    }
    long length = ftell(out);
    fclose(out);
    kl_arena arena = {0};
    kl__toml_item *read = NULL;
    if (parse_bytes(again, (size_t)length, &arena, &read) != KL_OK)
        test_fail(__FILE__, __LINE__, "written again as %.*s it is refused: %s", (int)length, again, kl_error_text());
    for (; read; read = read->next)
        count_again++;
    CHECK_INT(count_again, count);
    kl_arena_free(&arena);
}

TEST(random_texts_are_read_or_refused_with_a_place)
{
    uint64_t state = test_seed(), rounds = test_ops(200000), accepted = 0;
    for (uint64_t i = 0; i < rounds && !test_failed(); i++) {
        char text[512];
        size_t length = make_text(&state, text, sizeof text);
        kl_arena arena = {0};
        kl__toml_item *items = NULL;
        kl_rc rc = parse_bytes(text, length, &arena, &items);
        int line = 0, column = 0;
        if (rc == KL_OK)
            check_again(items);
        else if (rc != KL_EINVAL || sscanf(kl_error_text(), "f:%d:%d: ", &line, &column) != 2 || line < 1 || column < 1)
            test_fail(__FILE__, __LINE__, "%.*s: %d %s", (int)length, text, rc, kl_error_text());
        accepted += rc == KL_OK && items;
        kl_arena_free(&arena);
    }
    CHECK(accepted > rounds / 1000);
}
