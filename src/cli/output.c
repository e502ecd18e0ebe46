/* output.c - tables for people, lines of JSON for machines. See output.h.
 *
 * A table's columns are as wide as its widest cell, so lines wait until there are many of them or the list ends; then
 * widths only grow. JSON goes out at once. */
#include "cli/output.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#include "base/base.h"
#include "cli/config.h"
#include "queue/json.h"

enum { LINES_MAX = 500 };

struct kl__out_line {
    kl__out_line *next;
    const char *cells[]; /* one for each column */
};

kl__cell kl__cell_bytes_or_none(kl_bytes bytes) { return bytes.len ? kl__cell_bytes(bytes) : kl__cell_none(); }

kl__cell kl__cell_id_or_none(const kl_task_id *id)
{
    static const kl_task_id none;
    return memcmp(id, &none, sizeof none) == 0 ? kl__cell_none() : kl__cell_id(id);
}

bool kl__call_json(const kl__call *call) { return call->config && call->config->json; }

/* ---- Texts for people ---- */

/* Bytes of the character that begins here and may be shown, 0: none. */
static size_t shown_length(const unsigned char *at, size_t left)
{
    size_t length = *at < 0x80 ? 1 : *at < 0xc2 ? 0 : *at < 0xe0 ? 2 : *at < 0xf0 ? 3 : *at < 0xf5 ? 4 : 0;
    if (length == 0 || length > left || *at < ' ' || *at == 127)
        return 0;
    for (size_t i = 1; i < length; i++)
        if ((at[i] & 0xc0) != 0x80)
            return 0;
    bool control = (*at == 0xc2 && at[1] < 0xa0) || (*at == 0xe0 && at[1] < 0xa0) || (*at == 0xed && at[1] >= 0xa0) ||
                   (*at == 0xf0 && at[1] < 0x90) || (*at == 0xf4 && at[1] >= 0x90);
    bool turns = *at == 0xe2 && ((at[1] == 0x80 && at[2] >= 0xa8 && at[2] <= 0xae) ||
                                 (at[1] == 0x81 && at[2] >= 0xa6 && at[2] <= 0xa9)); /* line ends, writing direction */
    return control || turns ? 0 : length;
}

const char *kl__out_harmless(kl_bytes bytes, kl_arena *arena)
{
    const unsigned char *at = bytes.data;
    char *text = kl_arena_alloc(arena, bytes.len * 4 + 1), *to = text;
    if (!text)
        return NULL;
    for (size_t i = 0; i < bytes.len;) {
        size_t length = shown_length(at + i, bytes.len - i);
        if (length) {
            memcpy(to, at + i, length);
            to += length;
            i += length;
        } else if (at[i] == '\n' || at[i] == '\t') {
            *to++ = '\\';
            *to++ = at[i++] == '\n' ? 'n' : 't';
        } else {
            to += snprintf(to, 5, "\\x%02x", at[i++]);
        }
    }
    *to = '\0';
    return text;
}

size_t kl__out_width(const char *text)
{
    size_t width = 0;
    for (; *text; text++)
        width += ((unsigned char)*text & 0xc0) != 0x80;
    return width;
}

static const char *json_text(const kl__cell *cell, kl_arena *arena)
{
    kl_bytes text = {0};
    size_t length = cell->json ? json_dumpb(cell->json, NULL, 0, JSON_COMPACT | JSON_ENCODE_ANY) : 0;
    char *buffer = kl_arena_alloc(arena, length + 1);
    if (!buffer || json_dumpb(cell->json, buffer, length, JSON_COMPACT | JSON_ENCODE_ANY) != length)
        return NULL;
    text = (kl_bytes){buffer, length};
    return kl__out_harmless(text, arena);
}

/* NULL: out of memory. */
static const char *cell_text(const kl__cell *cell, kl_arena *arena)
{
    char buffer[64] = "";
    switch (cell->kind) {
    case KL_CELL_NONE:
        return "";
    case KL_CELL_ABSENT:
        return "none";
    case KL_CELL_BYTES:
        return kl__out_harmless(cell->bytes, arena);
    case KL_CELL_JSON:
        return json_text(cell, arena);
    case KL_CELL_NUMBER:
        snprintf(buffer, sizeof buffer, "%" PRId64, cell->number);
        break;
    case KL_CELL_FLAG:
        return cell->number ? "yes" : "no";
    case KL_CELL_TIME:
        kl__time_print(cell->number, buffer);
        break;
    case KL_CELL_DURATION:
        kl__duration_print(cell->number, buffer);
        break;
    case KL_CELL_ID:
        kl_id_print(&cell->id, buffer);
        break;
    }
    kl_bytes copy;
    return kl_arena_copy(arena, kl_str(buffer), &copy) ? copy.data : NULL;
}

/* Cuts a text down to what a table has room for. */
static const char *cut_short(const char *text, kl_arena *arena)
{
    if (!text || kl__out_width(text) <= KL_CELL_WIDTH_MAX)
        return text;
    const char *end = text;
    for (size_t width = 0; width < KL_CELL_WIDTH_MAX - 3; end++)
        width += ((unsigned char)end[1] & 0xc0) != 0x80;
    return kl__format(arena, "%.*s...", (int)(end - text), text);
}

static void print_title(const char *name)
{
    size_t length = strlen(name);
    if (length > 3 && strcmp(name + length - 3, "_ms") == 0)
        length -= 3;
    for (size_t i = 0; i < length; i++)
        putchar(name[i] == '_' ? ' ' : toupper((unsigned char)name[i]));
}

static size_t title_width(const char *name)
{
    size_t length = strlen(name);
    return length > 3 && strcmp(name + length - 3, "_ms") == 0 ? length - 3 : length;
}

/* ---- Colours ---- */

static const char *colour_of(const char *text)
{
    static const struct {
        const char *text, *colour;
    } colours[] = {{"done", "\33[32m"},   {"finished", "\33[32m"},  {"running", "\33[36m"},
                   {"dead", "\33[31m"},   {"cancelled", "\33[33m"}, {"paused", "\33[33m"},
                   {"halted", "\33[31m"}, {"retry", "\33[33m"},     {"retrying", "\33[33m"}};
    for (size_t i = 0; i < sizeof colours / sizeof colours[0]; i++)
        if (strcmp(colours[i].text, text) == 0)
            return colours[i].colour;
    return NULL;
}

static void print_cell(const kl__out *out, size_t column, const char *text)
{
    const char *colour = out->colour && out->columns[column].flags & KL_COLUMN_STATE ? colour_of(text) : NULL;
    printf("%s%s%s", colour ? colour : "", text, colour ? "\33[0m" : "");
}

/* ---- Tables ---- */

static bool is_shown(const kl__out *out, size_t column) { return !(out->columns[column].flags & KL_COLUMN_MACHINE); }

static bool is_last(const kl__out *out, size_t column)
{
    for (size_t i = column + 1; i < out->count; i++)
        if (is_shown(out, i))
            return false;
    return true;
}

static void pad(size_t count) { printf("%*s", (int)count, ""); }

static void print_titles(kl__out *out)
{
    fputs(out->colour ? "\33[1m" : "", stdout);
    for (size_t i = 0; i < out->count; i++) {
        if (!is_shown(out, i))
            continue;
        size_t gap = out->widths[i] - title_width(out->columns[i].name);
        if (out->columns[i].flags & KL_COLUMN_RIGHT)
            pad(gap);
        print_title(out->columns[i].name);
        if (!is_last(out, i))
            pad(2 + (out->columns[i].flags & KL_COLUMN_RIGHT ? 0 : gap));
    }
    puts(out->colour ? "\33[0m" : "");
    out->titled = true;
}

static void print_line(const kl__out *out, const kl__out_line *line)
{
    for (size_t i = 0; i < out->count; i++) {
        if (!is_shown(out, i))
            continue;
        size_t gap = out->widths[i] - kl__out_width(line->cells[i]);
        if (out->columns[i].flags & KL_COLUMN_RIGHT)
            pad(gap);
        print_cell(out, i, line->cells[i]);
        if (!is_last(out, i))
            pad(2 + (out->columns[i].flags & KL_COLUMN_RIGHT ? 0 : gap));
    }
    putchar('\n');
}

static void print_waiting(kl__out *out)
{
    if (out->first && !out->titled)
        print_titles(out);
    for (const kl__out_line *line = out->first; line; line = line->next)
        print_line(out, line);
    out->first = NULL;
    out->last = &out->first;
    out->waiting = 0;
    kl_arena_reset(&out->arena);
}

static void add_line(kl__out *out, const kl__cell *cells)
{
    kl__out_line *line = kl_arena_alloc(&out->arena, sizeof *line + out->count * sizeof line->cells[0]);
    if (!line) {
        out->failed = true;
        return;
    }
    line->next = NULL;
    for (size_t i = 0; i < out->count; i++) {
        const char *text = is_shown(out, i) ? cell_text(&cells[i], &out->arena) : "";
        line->cells[i] = out->columns[i].flags & KL_COLUMN_WHOLE ? text : cut_short(text, &out->arena);
        if (!line->cells[i]) {
            out->failed = true;
            return;
        }
        size_t width = kl__out_width(line->cells[i]);
        out->widths[i] = width > out->widths[i] ? width : out->widths[i];
    }
    *out->last = line;
    out->last = &line->next;
    if (++out->waiting == LINES_MAX)
        print_waiting(out);
}

/* ---- JSON ---- */

/* NULL: out of memory. What the cell holds is taken over. */
static json_t *cell_json(const kl__cell *cell)
{
    char text[64];
    switch (cell->kind) {
    case KL_CELL_NONE:
    case KL_CELL_ABSENT:
        return json_null();
    case KL_CELL_BYTES:
        return kl__json_bytes_value(cell->bytes);
    case KL_CELL_JSON:
        return json_incref(cell->json);
    case KL_CELL_FLAG:
        return json_boolean(cell->number);
    case KL_CELL_TIME:
        kl__time_print(cell->number, text);
        return json_string(text);
    case KL_CELL_ID:
        kl_id_print(&cell->id, text);
        return json_string(text);
    default:
        return json_integer(cell->number);
    }
}

static bool print_json(const kl__column *columns, size_t count, const kl__cell *cells)
{
    json_t *object = kl__json_object();
    bool made = object != NULL;
    for (size_t i = 0; i < count && made; i++)
        made = kl__json_set(object, columns[i].name, cell_json(&cells[i]));
    if (made)
        made = json_dumpf(object, stdout, JSON_COMPACT) == 0 || ferror(stdout);
    if (made)
        putchar('\n');
    json_decref(object);
    return made;
}

/* ---- Lists and things ---- */

static size_t count_columns(const kl__column *columns)
{
    size_t count = 0;
    while (columns[count].name)
        count++;
    KL_ASSERT(count <= KL_COLUMNS_MAX);
    return count;
}

static void free_cells(const kl__cell *cells, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (cells[i].kind == KL_CELL_JSON)
            json_decref(cells[i].json);
}

void kl__out_begin(kl__out *out, const kl__call *call, const kl__column *columns)
{
    *out = (kl__out){.columns = columns, .count = count_columns(columns), .json = kl__call_json(call)};
    out->colour = !out->json && kl__config_colour(call->config);
    out->last = &out->first;
    for (size_t i = 0; i < out->count; i++)
        out->widths[i] = title_width(columns[i].name);
}

void kl__out_row(kl__out *out, const kl__cell *cells)
{
    if (out->failed)
        ;
    else if (out->json)
        out->failed = !print_json(out->columns, out->count, cells);
    else
        add_line(out, cells);
    free_cells(cells, out->count);
}

int kl__out_end(kl__out *out)
{
    if (!out->failed && !out->json)
        print_waiting(out);
    kl_arena_free(&out->arena);
    return out->failed ? kl__fail_call(kl__fail_memory()) : KL_EXIT_OK;
}

static bool print_thing(const kl__out *out, const kl__cell *cells, kl_arena *arena)
{
    size_t width = 0;
    for (size_t i = 0; i < out->count; i++)
        if (is_shown(out, i) && title_width(out->columns[i].name) > width)
            width = title_width(out->columns[i].name);
    for (size_t i = 0; i < out->count; i++) {
        const char *text = is_shown(out, i) ? cell_text(&cells[i], arena) : "";
        if (!text)
            return false;
        if (!*text)
            continue;
        for (size_t j = 0; j < title_width(out->columns[i].name); j++)
            putchar(out->columns[i].name[j] == '_' ? ' ' : out->columns[i].name[j]);
        pad(2 + width - title_width(out->columns[i].name));
        print_cell(out, i, text);
        putchar('\n');
    }
    return true;
}

int kl__out_thing(const kl__call *call, const kl__column *columns, const kl__cell *cells)
{
    kl__out out;
    kl__out_begin(&out, call, columns);
    bool made = out.json ? print_json(columns, out.count, cells) : print_thing(&out, cells, &out.arena);
    free_cells(cells, out.count);
    kl_arena_free(&out.arena);
    return made ? KL_EXIT_OK : kl__fail_call(kl__fail_memory());
}

int kl__out_done(const kl__call *call, const kl__column *columns, const kl__cell *cells, const char *format, ...)
{
    if (kl__call_json(call))
        return kl__out_thing(call, columns, cells);
    free_cells(cells, count_columns(columns));
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
    return KL_EXIT_OK;
}

void kl__out_note(const kl__call *call, const char *format, ...)
{
    va_list arguments;
    if (kl__call_json(call))
        return;
    fflush(stdout);
    fputs("keyline: ", stderr);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
}
