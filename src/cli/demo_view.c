/* demo_view.c - the demo's live view: a cell per key in a grid, figures above, the failing key's story below.
 *
 *     c-12 ▸ ━━━╸────      a running key, with its share of tasks done
 *     c-13 ↻ #6 0.4s       a key that waits for its sixth retry, due in 0.4 s
 *
 * A frame is composed in memory, cut to the terminal's width, and written at once from the upper left corner. Nothing
 * is written in the last column, where terminals disagree about wrapping. States differ by their mark and not only by
 * their colour. */
#include "cli/demo.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum {
    COLUMNS_MIN = 60,
    ROWS_MIN = 20,
    COLUMNS_USED_MAX = 100, /* wider looks torn */
    CELL_COLUMNS_MIN = 15,  /* `c-13 ↻ #6 0.4s` and a space */
    GRID_COLUMNS_MAX = 5,
    CELL_LABEL = 7, /* name, mark and spaces before the bar */
    TEXT_LINES = 6, /* title, two of figures, two of story, legend */
    BLANK_LINES = 3,
    FRAME_BYTES = 32768, /* 24 lines of 100 columns, each column with its colour, is below 30000 */
    PIECE_BYTES = 160,
};

enum style { PLAIN, BOLD, DIM, CYAN, GREEN, ALARM };

static const char *const escapes[] = {"", "\33[1m", "\33[2m", "\33[36m", "\33[32m", "\33[1;33m"};

struct sheet {
    const kl__demo_view *view;
    int room; /* columns left in this line */
    size_t used;
    char text[FRAME_BYTES];
};

/* --- Writing on the sheet --- */

static void append(struct sheet *sheet, const char *bytes, size_t length)
{
    if (length > FRAME_BYTES - sheet->used)
        length = FRAME_BYTES - sheet->used;
    memcpy(sheet->text + sheet->used, bytes, length);
    sheet->used += length;
}

static void append_text(struct sheet *sheet, const char *text) { append(sheet, text, strlen(text)); }

static void begin_style(struct sheet *sheet, enum style style)
{
    if (sheet->view->colour)
        append_text(sheet, escapes[style]);
}

static void end_style(struct sheet *sheet, enum style style)
{
    if (sheet->view->colour && style != PLAIN)
        append_text(sheet, "\33[0m");
}

/* ASCII only: one byte is one column. */
static void KL_PRINTF(3, 4) put(struct sheet *sheet, enum style style, const char *format, ...)
{
    char piece[PIECE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(piece, sizeof piece, format, arguments);
    va_end(arguments);
    length = length < PIECE_BYTES ? length : PIECE_BYTES - 1;
    length = length < sheet->room ? length : sheet->room;
    if (length <= 0)
        return;
    begin_style(sheet, style);
    append(sheet, piece, (size_t)length);
    end_style(sheet, style);
    sheet->room -= length;
}

/* A sign of one column, `count` times. */
static void put_sign(struct sheet *sheet, enum style style, const char *utf8, const char *ascii, int count)
{
    if (count > sheet->room)
        count = sheet->room;
    if (count <= 0)
        return;
    begin_style(sheet, style);
    for (int i = 0; i < count; i++)
        append_text(sheet, sheet->view->utf8 ? utf8 : ascii);
    end_style(sheet, style);
    sheet->room -= count;
}

static int usable_columns(const kl__demo_view *view)
{
    return (view->columns < COLUMNS_USED_MAX ? view->columns : COLUMNS_USED_MAX) - 1;
}

static void end_line(struct sheet *sheet)
{
    append_text(sheet, "\33[K\r\n");
    sheet->room = usable_columns(sheet->view);
}

/* --- The grid --- */

static void put_mark(struct sheet *sheet, kl__demo_state state)
{
    switch (state) {
    case KL_DEMO_WAITING:
        put_sign(sheet, DIM, "·", ".", 1);
        break;
    case KL_DEMO_RUNNING:
        put_sign(sheet, CYAN, "▸", ">", 1);
        break;
    case KL_DEMO_RETRYING:
        put_sign(sheet, ALARM, "↻", "!", 1);
        break;
    case KL_DEMO_DONE:
        put_sign(sheet, GREEN, "✓", "+", 1);
        break;
    }
}

static void put_bar(struct sheet *sheet, enum style style, uint32_t part, uint32_t whole, int width)
{
    int halves = (int)((uint64_t)part * 2 * (unsigned)width / whole);
    put_sign(sheet, style, "━", "#", halves / 2);
    put_sign(sheet, style, "╸", "-", halves % 2);
    put_sign(sheet, DIM, "─", ".", width - (halves + 1) / 2);
}

/* Instead of its bar, a failing key has the number of its next retry and when that is due. */
static void put_retry(struct sheet *sheet, const kl__demo_cell *cell, const kl__demo_look *look, int width)
{
    char text[PIECE_BYTES];
    if (cell->state == KL_DEMO_RETRYING)
        snprintf(text, sizeof text, "#%u %.1fs", look->failures, (double)look->due_in_ms / 1000);
    else
        snprintf(text, sizeof text, "#%u %s", look->failures, cell->state == KL_DEMO_RUNNING ? "runs" : "due");
    put(sheet, ALARM, "%-*.*s", width, width, text);
}

/* `width` columns, and a space that the last cell of a line does without. */
static void put_cell(struct sheet *sheet, const kl__demo *demo, int key, const kl__demo_look *look, int width)
{
    static const enum style name_styles[] = {PLAIN, BOLD, ALARM, PLAIN};
    const kl__demo_cell *cell = &look->cells[key];
    bool failing = key == KL_DEMO_BAD_KEY && look->phase == KL_DEMO_BLOCKED;
    put(sheet, failing ? ALARM : name_styles[cell->state], "%s", kl__demo_name(demo, key));
    put(sheet, PLAIN, " ");
    put_mark(sheet, failing ? KL_DEMO_RETRYING : cell->state);
    put(sheet, PLAIN, " ");
    if (failing)
        put_retry(sheet, cell, look, width - CELL_LABEL);
    else
        put_bar(sheet, cell->state == KL_DEMO_DONE ? GREEN : CYAN, cell->ended, KL_DEMO_TASKS, width - CELL_LABEL);
    put(sheet, PLAIN, " ");
}

static int grid_columns(const kl__demo_view *view)
{
    int columns = (usable_columns(view) + 1) / CELL_COLUMNS_MIN;
    return columns < GRID_COLUMNS_MAX ? columns : GRID_COLUMNS_MAX;
}

static int grid_rows(const kl__demo_view *view) { return (KL_DEMO_KEYS + grid_columns(view) - 1) / grid_columns(view); }

/* Keys go down the columns, so that neighbours in number are neighbours in place. */
static void put_grid(struct sheet *sheet, const kl__demo *demo, const kl__demo_look *look)
{
    int columns = grid_columns(sheet->view), rows = grid_rows(sheet->view);
    int width = (usable_columns(sheet->view) + 1) / columns - 1;
    for (int row = 0; row < rows; row++) {
        for (int column = 0; column < columns; column++) {
            int key = column * rows + row;
            if (key < KL_DEMO_KEYS)
                put_cell(sheet, demo, key, look, width);
        }
        end_line(sheet);
    }
}

/* --- Figures, story, legend --- */

static void put_title(struct sheet *sheet, const kl__demo *demo, const kl__demo_look *look)
{
    char time[PIECE_BYTES];
    int length = snprintf(time, sizeof time, "%.1f s", (double)look->elapsed_ms / 1000);
    put(sheet, BOLD, "Keyline");
    put(sheet, PLAIN, "  %d customers, %d tasks each, %lld threads", KL_DEMO_KEYS, KL_DEMO_TASKS,
        (long long)kl__demo_threads(demo));
    put(sheet, PLAIN, "%*s", sheet->room - length, "");
    put(sheet, BOLD, "%s", time);
    end_line(sheet);
}

static void put_figures(struct sheet *sheet, const kl__demo_look *look)
{
    put(sheet, BOLD, "%4u", look->done);
    put(sheet, PLAIN, " of %d tasks done  %4u/s  ", KL_DEMO_TOTAL, look->per_second);
    put(sheet, look->retries ? ALARM : PLAIN, "%2u retries", look->retries);
    put(sheet, PLAIN, "   ");
    put_bar(sheet, CYAN, look->done, KL_DEMO_TOTAL, sheet->room);
    end_line(sheet);
    put(sheet, look->order_violations ? ALARM : GREEN, "order violations: %u", look->order_violations);
    put(sheet, look->overlaps ? ALARM : GREEN, "   overlaps: %u", look->overlaps);
    put(sheet, look->held ? ALARM : GREEN, "   keys %sbehind c-13: %u", sheet->room > 35 ? "waiting " : "", look->held);
    end_line(sheet);
}

static void put_trouble(struct sheet *sheet, const kl__demo_look *look)
{
    put(sheet, ALARM, "c-13");
    put(sheet, PLAIN, " task %d: " KL_DEMO_ERROR ". ", KL_DEMO_BAD_TASK + 1);
    if (look->cells[KL_DEMO_BAD_KEY].state == KL_DEMO_RETRYING)
        put(sheet, PLAIN, "Retry %u in %.1f s.", look->failures, (double)look->due_in_ms / 1000);
    else
        put(sheet, PLAIN, "Retry %u is due.", look->failures);
    end_line(sheet);
    put(sheet, PLAIN, "Blocked for %.1f s. The %d others did %u tasks meanwhile.", (double)look->blocked_ms / 1000,
        KL_DEMO_OTHERS, look->others_then);
    end_line(sheet);
}

static void put_story(struct sheet *sheet, const kl__demo_look *look)
{
    double blocked_s = (double)look->blocked_ms / 1000;
    if (look->phase == KL_DEMO_BLOCKED) {
        put_trouble(sheet, look);
        return;
    }
    if (look->phase == KL_DEMO_CALM)
        put(sheet, DIM, "Task %d of c-13 is going to fail. See who waits for it.", KL_DEMO_BAD_TASK + 1);
    else if (look->dead)
        put(sheet, ALARM, "c-13 task %d failed for good after %.1f s.", KL_DEMO_BAD_TASK + 1, blocked_s);
    else
        put(sheet, GREEN, "Release: the gateway is back after %.1f s, and c-13 goes on.", blocked_s);
    end_line(sheet);
    if (look->over && !look->order_violations && !look->overlaps)
        put(sheet, PLAIN, "All tasks of all keys have run in order.");
    else if (look->phase != KL_DEMO_CALM)
        put(sheet, PLAIN, "It has done %u of %d tasks. Others: %.0f/s then, %.0f/s since.",
            look->cells[KL_DEMO_BAD_KEY].ended, KL_DEMO_TASKS, look->rate_then, look->rate_later);
    end_line(sheet);
}

static void put_legend(struct sheet *sheet)
{
    static const struct {
        kl__demo_state state;
        const char *text;
    } entries[] = {{KL_DEMO_RUNNING, "running"},
                   {KL_DEMO_WAITING, "waits for a thread"},
                   {KL_DEMO_RETRYING, "retry, due in"},
                   {KL_DEMO_DONE, "done"}};
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        put_mark(sheet, entries[i].state);
        put(sheet, DIM, " %s  ", entries[i].text);
    }
    append_text(sheet, "\33[K");
}

/* --- The terminal --- */

static void measure(kl__demo_view *view)
{
    struct winsize size = {0};
    bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col && size.ws_row;
    view->columns = known ? size.ws_col : 80;
    view->rows = known ? size.ws_row : 24;
}

static bool is_large_enough(const kl__demo_view *view)
{
    return view->columns >= COLUMNS_MIN && view->rows >= ROWS_MIN;
}

/* What the locale's variables say, and not setlocale: the terminal's encoding does not depend on which locales are
 * installed here. */
static bool speaks_utf8(void)
{
    static const char *const variables[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    for (int i = 0; i < 3; i++) {
        const char *value = getenv(variables[i]);
        if (value && *value)
            return strcasestr(value, "utf-8") || strcasestr(value, "utf8");
    }
    return false;
}

bool kl__demo_view_open(kl__demo_view *ret_view)
{
    const char *term = getenv("TERM"), *no_color = getenv("NO_COLOR");
    kl__demo_view view = {.colour = !no_color || !*no_color, .utf8 = speaks_utf8()};
    measure(&view);
    if (!isatty(STDOUT_FILENO) || !term || !*term || strcmp(term, "dumb") == 0 || !is_large_enough(&view))
        return false;
    /* What is on the screen moves up and away instead of being overwritten. */
    for (int i = 0; i < view.rows; i++)
        putchar('\n');
    fputs("\33[?25l", stdout);
    *ret_view = view;
    return true;
}

static bool is_airy(const kl__demo_view *view) { return view->rows >= grid_rows(view) + TEXT_LINES + BLANK_LINES; }

static void put_frame(struct sheet *sheet, const kl__demo *demo, const kl__demo_look *look)
{
    bool airy = is_airy(sheet->view);
    put_title(sheet, demo, look);
    put_figures(sheet, look);
    if (airy)
        end_line(sheet);
    put_grid(sheet, demo, look);
    if (airy)
        end_line(sheet);
    put_story(sheet, look);
    if (airy)
        end_line(sheet);
    put_legend(sheet);
}

void kl__demo_view_draw(kl__demo_view *view, const kl__demo *demo, const kl__demo_look *look)
{
    struct sheet sheet = {.view = view};
    measure(view);
    sheet.room = usable_columns(view);
    append_text(&sheet, "\33[H");
    if (is_large_enough(view))
        put_frame(&sheet, demo, look);
    else
        put(&sheet, PLAIN, "%u of %d done; this needs %d by %d", look->done, KL_DEMO_TOTAL, COLUMNS_MIN, ROWS_MIN);
    append_text(&sheet, "\33[J");
    fwrite(sheet.text, 1, sheet.used, stdout);
    fflush(stdout);
}

void kl__demo_view_close(const kl__demo_view *view, int lines)
{
    int frame = grid_rows(view) + TEXT_LINES + (is_airy(view) ? BLANK_LINES : 0);
    fputs(frame + lines < view->rows ? "\r\n" : "\33[H\33[J", stdout);
    fputs("\33[?25h", stdout);
    fflush(stdout);
}
