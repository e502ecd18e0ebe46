/* toml.c - reads keyline.toml, in one pass from the first byte to the last.
 *
 * From: config.c.  See toml.h for what is understood.
 *
 * T1  What is accepted here every TOML 1.0 reader accepts, with the same values.
 * T2  Every refusal names line and column, and says what is allowed there. */
#include "cli/toml.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

enum { NUMBER_BYTES = 32 };

/* The name in front of a `=`, or in a header. */
struct path {
    const char *parts[KL_TOML_DEPTH_MAX];
    int depth;
    int line, column;
};

struct header {
    struct header *next;
    struct path path;
};

struct reader {
    const char *file;
    kl_arena *arena;
    const char *at, *end;
    const char *line_start;
    int line;
    struct path table; /* in which keys now stand */
    struct header *headers;
    kl__toml_item *first, **last;
    size_t count;
};

static int column_of(const struct reader *reader, const char *at) { return (int)(at - reader->line_start) + 1; }

static kl_rc refuse_at(const struct reader *reader, int line, int column, const char *format, va_list arguments)
{
    char sentence[400];
    vsnprintf(sentence, sizeof sentence, format, arguments);
    return kl__fail(KL_EINVAL, "%s:%d:%d: %s", reader->file, line, column, sentence);
}

/* At the place that the reader has come to. */
KL_PRINTF(2, 3) static kl_rc refuse(const struct reader *reader, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    kl_rc rc = refuse_at(reader, reader->line, column_of(reader, reader->at), format, arguments);
    va_end(arguments);
    return rc;
}

/* At a key or header that was read before. */
KL_PRINTF(3, 4)
static kl_rc refuse_path(const struct reader *reader, const struct path *path, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    kl_rc rc = refuse_at(reader, path->line, path->column, format, arguments);
    va_end(arguments);
    return rc;
}

/* ---- Bytes ---- */

static int peek(const struct reader *reader) { return reader->at < reader->end ? (unsigned char)*reader->at : -1; }

static int peek_after(const struct reader *reader, int distance)
{
    return reader->end - reader->at > distance ? (unsigned char)reader->at[distance] : -1;
}

static bool takes(struct reader *reader, char wanted)
{
    if (peek(reader) != wanted)
        return false;
    reader->at++;
    return true;
}

static void skip_blanks(struct reader *reader)
{
    while (peek(reader) == ' ' || peek(reader) == '\t')
        reader->at++;
}

static bool is_control(int byte) { return (byte >= 0 && byte < ' ' && byte != '\t') || byte == 127; }

/* False: there is none here. */
static bool take_newline(struct reader *reader)
{
    if (peek(reader) == '\r' && peek_after(reader, 1) == '\n')
        reader->at++;
    if (!takes(reader, '\n'))
        return false;
    reader->line++;
    reader->line_start = reader->at;
    return true;
}

static kl_rc skip_comment(struct reader *reader)
{
    if (!takes(reader, '#'))
        return KL_OK;
    while (reader->at < reader->end && peek(reader) != '\n') {
        if (peek(reader) == '\r' && peek_after(reader, 1) == '\n')
            break;
        if (is_control(peek(reader)))
            return refuse(reader, "a control character in a comment; take it out");
        reader->at++;
    }
    return KL_OK;
}

/* What follows a header or a value: nothing but a comment. */
static kl_rc end_line(struct reader *reader)
{
    skip_blanks(reader);
    kl_rc rc = skip_comment(reader);
    if (rc != KL_OK || reader->at == reader->end || take_newline(reader))
        return rc;
    return refuse(reader, "only a comment may follow on this line; begin a new one");
}

/* Blanks, comments and lines' ends, between the items of an array. */
static kl_rc skip_space(struct reader *reader)
{
    for (;;) {
        skip_blanks(reader);
        kl_rc rc = skip_comment(reader);
        if (rc != KL_OK)
            return rc;
        if (!take_newline(reader))
            return KL_OK;
    }
}

/* ---- UTF-8 ---- */

static int put_utf8(uint32_t code, char *to)
{
    if (code < 0x80) {
        to[0] = (char)code;
        return 1;
    }
    int length = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (int i = length - 1; i > 0; i--, code >>= 6)
        to[i] = (char)(0x80 | (code & 0x3f));
    static const uint8_t heads[] = {0, 0, 0xc0, 0xe0, 0xf0};
    to[0] = (char)(heads[length] | code);
    return length;
}

/* Bytes of the character at `at`, 0 when it is none. */
static int utf8_length(const uint8_t *at, const uint8_t *end)
{
    int length = *at < 0x80 ? 1 : *at < 0xc2 ? 0 : *at < 0xe0 ? 2 : *at < 0xf0 ? 3 : *at < 0xf5 ? 4 : 0;
    if (length == 0 || end - at < length)
        return 0;
    for (int i = 1; i < length; i++)
        if ((at[i] & 0xc0) != 0x80)
            return 0;
    bool too_long = (at[0] == 0xe0 && at[1] < 0xa0) || (at[0] == 0xf0 && at[1] < 0x90);
    bool no_character = (at[0] == 0xed && at[1] >= 0xa0) || (at[0] == 0xf4 && at[1] >= 0x90);
    return too_long || no_character ? 0 : length;
}

static kl_rc check_utf8(struct reader *reader)
{
    struct reader look = *reader;
    while (look.at < look.end) {
        int length = utf8_length((const uint8_t *)look.at, (const uint8_t *)look.end);
        if (length == 0)
            return refuse(&look, "this is not UTF-8; save the file in that encoding");
        look.at += length;
        if (look.at[-1] == '\n') {
            look.line++;
            look.line_start = look.at;
        }
    }
    return KL_OK;
}

/* ---- Strings ---- */

static kl_rc take_code(struct reader *reader, int digits, char **to)
{
    char text[9] = {0};
    for (int i = 0; i < digits; i++) {
        int byte = peek_after(reader, i);
        if (byte < 0 || !strchr("0123456789abcdefABCDEF", byte) || byte == 0)
            return refuse(reader, "\\%c takes %d hex digits", digits == 4 ? 'u' : 'U', digits);
        text[i] = (char)byte;
    }
    uint32_t code = (uint32_t)strtoul(text, NULL, 16);
    if (code == 0 || code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
        return refuse(reader, "\\%c%s is no character that may stand here", digits == 4 ? 'u' : 'U', text);
    reader->at += digits;
    *to += put_utf8(code, *to);
    return KL_OK;
}

static kl_rc take_escape(struct reader *reader, char **to)
{
    static const char names[] = "btnfr\"\\", values[] = "\b\t\n\f\r\"\\";
    int byte = peek(reader);
    const char *name = byte > 0 ? strchr(names, byte) : NULL;
    if (name) {
        reader->at++;
        *(*to)++ = values[name - names];
        return KL_OK;
    }
    if (byte != 'u' && byte != 'U')
        return refuse(reader, "after a backslash there are b t n f r \" \\ u and U; or write '...', which takes "
                              "backslashes as they are");
    reader->at++;
    return take_code(reader, byte == 'u' ? 4 : 8, to);
}

/* Behind the opening quote, up to and with the closing one. What is made is never longer than what stands there. */
static kl_rc take_string(struct reader *reader, char quote, const char **ret_text)
{
    const char *close = memchr(reader->at, '\n', (size_t)(reader->end - reader->at));
    size_t room = (size_t)((close ? close : reader->end) - reader->at) + 1;
    char *text = kl_arena_alloc(reader->arena, room), *to = text;
    if (!text)
        return kl__fail_memory();
    while (peek(reader) != quote) {
        int byte = peek(reader);
        if (byte < 0 || byte == '\n' || byte == '\r')
            return refuse(reader, "the string does not end on its line; close it with %c", quote);
        if (is_control(byte))
            return refuse(reader, "a control character in a string; write it as \\u%04x between \" and \"", byte);
        reader->at++;
        if (byte != '\\' || quote == '\'') {
            *to++ = (char)byte;
            continue;
        }
        kl_rc rc = take_escape(reader, &to);
        if (rc != KL_OK)
            return rc;
    }
    reader->at++;
    *to = '\0';
    *ret_text = text;
    return KL_OK;
}

static kl_rc take_value_string(struct reader *reader, const char **ret_text)
{
    char quote = *reader->at;
    if (peek_after(reader, 1) == quote && peek_after(reader, 2) == quote)
        return refuse(reader,
                      "strings over several lines are not understood here; write one line, with \\n for its ends");
    reader->at++;
    return take_string(reader, quote, ret_text);
}

/* ---- Keys ---- */

static bool is_bare(int byte)
{
    return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') || (byte >= '0' && byte <= '9') ||
           byte == '_' || byte == '-';
}

static kl_rc take_part(struct reader *reader, const char **ret_part)
{
    int byte = peek(reader);
    if (byte == '"' || byte == '\'') {
        reader->at++;
        return take_string(reader, (char)byte, ret_part);
    }
    const char *start = reader->at;
    while (is_bare(peek(reader)))
        reader->at++;
    if (reader->at == start)
        return refuse(reader, "a key is expected here: letters, digits, _ and -, or a string in quotes");
    kl_bytes copy;
    if (!kl_arena_copy(reader->arena, (kl_bytes){start, (size_t)(reader->at - start)}, &copy))
        return kl__fail_memory();
    *ret_part = copy.data;
    return KL_OK;
}

/* Adds the parts that stand here to what is in `path` already. */
static kl_rc take_path(struct reader *reader, struct path *path)
{
    path->line = reader->line;
    path->column = column_of(reader, reader->at);
    do {
        if (path->depth == KL_TOML_DEPTH_MAX)
            return refuse(reader, "a key has at most %d parts; there is no setting so deep", KL_TOML_DEPTH_MAX);
        skip_blanks(reader);
        kl_rc rc = take_part(reader, &path->parts[path->depth]);
        if (rc != KL_OK)
            return rc;
        path->depth++;
        skip_blanks(reader);
    } while (takes(reader, '.'));
    return KL_OK;
}

/* Whether the first `depth` parts are the same. */
static bool begins_alike(const char *const *a, const char *const *b, int depth)
{
    for (int i = 0; i < depth; i++)
        if (strcmp(a[i], b[i]) != 0)
            return false;
    return true;
}

/* ---- Headers ---- */

static kl_rc check_header(const struct reader *reader, const struct path *path)
{
    for (const struct header *header = reader->headers; header; header = header->next)
        if (header->path.depth == path->depth && begins_alike(header->path.parts, path->parts, path->depth))
            return refuse_path(reader, path, "this table was begun on line %d already; put its keys there",
                               header->path.line);
    for (const kl__toml_item *item = reader->first; item; item = item->next) {
        if (item->depth <= path->depth && begins_alike(item->path, path->parts, item->depth))
            return refuse_path(reader, path, "'%s' was given a value on line %d and cannot be a table too",
                               item->path[item->depth - 1], item->line);
        if (item->depth > path->depth && item->table_depth < path->depth &&
            begins_alike(item->path, path->parts, path->depth))
            return refuse_path(reader, path, "this table was made by a dotted key on line %d; put its keys there",
                               item->line);
    }
    return KL_OK;
}

static kl_rc take_header(struct reader *reader)
{
    struct header *header = kl_arena_alloc(reader->arena, sizeof *header);
    if (!header)
        return kl__fail_memory();
    *header = (struct header){.next = reader->headers};
    reader->at++;
    if (peek(reader) == '[')
        return refuse(reader, "arrays of tables are not understood here; write [table] or [table.sub]");
    skip_blanks(reader);
    kl_rc rc = take_path(reader, &header->path);
    if (rc != KL_OK)
        return rc;
    if (!takes(reader, ']'))
        return refuse(reader, "the table's name ends with ]");
    rc = check_header(reader, &header->path);
    if (rc != KL_OK)
        return rc;
    reader->headers = header;
    reader->table = header->path;
    return end_line(reader);
}

/* ---- Values ---- */

static kl_rc take_number(struct reader *reader, int64_t *ret_number)
{
    char text[NUMBER_BYTES];
    size_t length = 0;
    const char *at = reader->at;
    if (*at == '+' || *at == '-')
        text[length++] = *at++;
    const char *digits = at;
    for (; at < reader->end && ((*at >= '0' && *at <= '9') || *at == '_'); at++) {
        bool between =
            *at != '_' || (at > digits && at[-1] != '_' && at + 1 < reader->end && at[1] >= '0' && at[1] <= '9');
        if (!between)
            return refuse(reader, "in a number, _ stands between two digits");
        if (*at != '_' && length < sizeof text - 1)
            text[length++] = *at;
    }
    bool ends_here = at == reader->end || strchr(" \t\r\n#,]", *at);
    if (at == digits || !ends_here)
        return refuse(reader,
                      "only decimal whole numbers are understood here; put durations and times in quotes, such as "
                      "\"5s\"");
    if (*digits == '0' && at > digits + 1)
        return refuse(reader, "a number does not begin with 0");
    text[length] = '\0';
    char *rest;
    long long number = strtoll(text, &rest, 10);
    if (length > 20 || (number == INT64_MAX && strcmp(text + (*text == '+'), "9223372036854775807") != 0) ||
        (number == INT64_MIN && strcmp(text, "-9223372036854775808") != 0))
        return refuse(reader, "the number is too large");
    reader->at = at;
    *ret_number = number;
    return KL_OK;
}

static kl_rc take_list(struct reader *reader, kl__toml_item *item)
{
    size_t room = 0;
    reader->at++;
    for (;;) {
        kl_rc rc = skip_space(reader);
        if (rc != KL_OK)
            return rc;
        if (takes(reader, ']'))
            return KL_OK;
        if (peek(reader) != '"' && peek(reader) != '\'')
            return refuse(reader, "arrays hold strings only here: [\"a\", \"b\"]");
        if (item->count == KL_TOML_LIST_MAX)
            return refuse(reader, "an array has at most %d items", KL_TOML_LIST_MAX);
        if (item->count == room) {
            room = room ? room * 2 : 8;
            const char **list = kl_arena_alloc(reader->arena, room * sizeof *list);
            if (!list)
                return kl__fail_memory();
            if (item->count)
                memcpy(list, item->list, item->count * sizeof *list);
            item->list = list;
        }
        rc = take_value_string(reader, &item->list[item->count]);
        if (rc == KL_OK)
            rc = skip_space(reader);
        if (rc != KL_OK)
            return rc;
        item->count++;
        if (!takes(reader, ',') && peek(reader) != ']')
            return refuse(reader, "a comma or ] is expected here");
    }
}

static bool takes_word(struct reader *reader, const char *word)
{
    size_t length = strlen(word);
    if ((size_t)(reader->end - reader->at) < length || memcmp(reader->at, word, length) != 0 ||
        is_bare(peek_after(reader, (int)length)))
        return false;
    reader->at += length;
    return true;
}

static kl_rc take_value(struct reader *reader, kl__toml_item *item)
{
    int byte = peek(reader);
    item->value_column = column_of(reader, reader->at);
    if (byte == '"' || byte == '\'') {
        item->kind = KL_TOML_STRING;
        return take_value_string(reader, &item->string);
    }
    if (byte == '[') {
        item->kind = KL_TOML_LIST;
        return take_list(reader, item);
    }
    if (byte == '+' || byte == '-' || (byte >= '0' && byte <= '9')) {
        item->kind = KL_TOML_NUMBER;
        return take_number(reader, &item->number);
    }
    item->kind = KL_TOML_BOOL;
    item->number = takes_word(reader, "true");
    if (item->number || takes_word(reader, "false"))
        return KL_OK;
    if (byte == '{')
        return refuse(reader, "inline tables are not understood here; write [table] on a line of its own");
    return refuse(reader,
                  "a value is expected here: a string in quotes, a whole number, true, false, or [\"a\", \"b\"]");
}

/* ---- Keys with values ---- */

static kl_rc check_key(const struct reader *reader, const struct path *path)
{
    for (const kl__toml_item *item = reader->first; item; item = item->next) {
        int depth = item->depth < path->depth ? item->depth : path->depth;
        if (!begins_alike(item->path, path->parts, depth))
            continue;
        if (item->depth == path->depth)
            return refuse_path(reader, path, "'%s' was given on line %d already; keep one of the two",
                               path->parts[depth - 1], item->line);
        return refuse_path(reader, path, "'%s' cannot be a value and a table; the other is on line %d",
                           path->parts[depth - 1], item->line);
    }
    for (const struct header *header = reader->headers; header; header = header->next) {
        int depth = header->path.depth < path->depth ? header->path.depth : path->depth;
        if (header->path.depth > reader->table.depth && begins_alike(header->path.parts, path->parts, depth))
            return refuse_path(reader, path, "'%s' is the table that was begun on line %d; put its keys there",
                               path->parts[depth - 1], header->path.line);
    }
    return KL_OK;
}

static kl_rc take_key(struct reader *reader)
{
    kl__toml_item *item = kl_arena_alloc(reader->arena, sizeof *item);
    if (!item)
        return kl__fail_memory();
    if (reader->count++ == KL_TOML_KEYS_MAX)
        return refuse(reader, "there are more than %d keys; no file of settings is so long", KL_TOML_KEYS_MAX);
    struct path path = reader->table;
    kl_rc rc = take_path(reader, &path);
    if (rc == KL_OK && !takes(reader, '='))
        rc = refuse(reader, "a key is followed by = and its value");
    if (rc == KL_OK)
        rc = check_key(reader, &path);
    if (rc != KL_OK)
        return rc;
    *item = (kl__toml_item){
        .depth = path.depth, .line = path.line, .column = path.column, .table_depth = reader->table.depth};
    memcpy(item->path, path.parts, sizeof item->path);
    skip_blanks(reader);
    rc = take_value(reader, item);
    if (rc == KL_OK)
        rc = end_line(reader);
    if (rc != KL_OK)
        return rc;
    *reader->last = item;
    reader->last = &item->next;
    return KL_OK;
}

kl_rc kl__toml_parse(kl_bytes text, const char *file, kl_arena *arena, kl__toml_item **ret_items)
{
    static const char mark[] = "\xef\xbb\xbf"; /* some editors put it in front of UTF-8 */
    struct reader reader = {.file = file, .arena = arena, .line = 1};
    reader.at = reader.line_start = text.len ? text.data : "";
    reader.end = reader.at + text.len;
    reader.last = &reader.first;
    if (text.len > KL_TOML_BYTES_MAX)
        return kl__fail(KL_EINVAL, "%s has %zu bytes; a file of settings has at most %d", file, text.len,
                        KL_TOML_BYTES_MAX);
    kl_rc rc = check_utf8(&reader);
    if (rc == KL_OK && text.len >= 3 && memcmp(reader.at, mark, 3) == 0)
        reader.line_start = reader.at += 3;
    while (rc == KL_OK && reader.at < reader.end) {
        skip_blanks(&reader);
        if (peek(&reader) == '[')
            rc = take_header(&reader);
        else if (reader.at == reader.end || strchr("#\r\n", peek(&reader)))
            rc = end_line(&reader);
        else
            rc = take_key(&reader);
    }
    if (rc == KL_OK)
        *ret_items = reader.first;
    return rc;
}
