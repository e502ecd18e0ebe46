/* top.c - `keyline top`: what happens in a store, drawn anew every second until somebody has seen enough.
 *
 * A frame is composed in memory, cut to the terminal's size and written at once. It is drawn on the alternate screen,
 * so that the terminal is afterwards as it was. */
#include "cli/top.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "base/base.h"
#include "base/clock.h"
#include "cli/config.h"
#include "cli/output.h"

typedef struct top_opts {
    int64_t once, every_ms;
} top_opts;

enum { EVERY_MS = 1000 };

/* ---- The terminal ---- */

static volatile sig_atomic_t caught;  /* a signal that ends it; 0: none. It is never forgotten */
static volatile sig_atomic_t resized; /* since the last frame was begun */

static void catch_signal(int number)
{
    if (number == SIGWINCH)
        resized = 1;
    else
        caught = number;
}

struct screen {
    struct termios before;
    bool changed, colour;
};

static void open_screen(struct screen *screen, const kl__config *config)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGWINCH};
    struct sigaction action = {.sa_handler = catch_signal}; /* without SA_RESTART: a sign interrupts the wait */
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        sigaction(numbers[i], &action, NULL);
    screen->colour = kl__config_colour(config);
    screen->changed = tcgetattr(STDIN_FILENO, &screen->before) == 0;
    if (screen->changed) {
        struct termios raw = screen->before;
        raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
        tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    }
    fputs("\33[?1049h\33[?25l", stdout);
}

static void close_screen(const struct screen *screen)
{
    fputs("\33[?25h\33[?1049l", stdout);
    fflush(stdout);
    if (screen->changed)
        tcsetattr(STDIN_FILENO, TCSANOW, &screen->before);
}

/* The line, cut to so many columns. */
static void draw_line(const char *line, size_t length, size_t columns, bool colour)
{
    bool title = length && *line == '\1';
    size_t end = title, shown = 0;
    for (; end < length; end++) {
        bool begins = ((unsigned char)line[end] & 0xc0) != 0x80;
        if (begins && shown == columns)
            break;
        shown += begins;
    }
    printf("%s%.*s%s\33[K", title && colour ? "\33[1m" : "", (int)(end - title), line + title,
           title && colour ? "\33[0m" : "");
}

static void draw(const char *text, bool colour)
{
    struct winsize size = {.ws_row = 24, .ws_col = 80};
    (void)ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
    size_t rows = size.ws_row ? size.ws_row : 24, columns = (size.ws_col ? size.ws_col : 80) - 1u;
    fputs("\33[H", stdout);
    for (size_t row = 0; *text && row + 1 < rows; row++) {
        size_t length = strcspn(text, "\n");
        draw_line(text, length, columns, colour);
        fputs("\r\n", stdout);
        text += length + (text[length] == '\n');
    }
    fputs("q quits\33[K\33[J", stdout);
    fflush(stdout);
}

/* True: somebody has seen enough. */
static bool wait_for_key(int64_t wait_ms)
{
    int64_t until_ns = kl__deadline_ns(wait_ms);
    for (;;) {
        struct pollfd keyboard = {.fd = STDIN_FILENO, .events = POLLIN};
        int64_t left_ms = (until_ns - kl__monotonic_ns()) / 1000000;
        char key;
        if (caught)
            return true;
        if (resized || left_ms <= 0)
            return false;
        if (poll(&keyboard, 1, (int)left_ms) > 0 && (read(STDIN_FILENO, &key, 1) <= 0 || key == 'q' || key == 'Q'))
            return true;
    }
}

/* ---- Looks ---- */

static kl_rc draw_look(const kl__call *call, const kl__top *top, const struct screen *screen)
{
    char *text = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    if (!out)
        return kl__fail_memory();
    kl__top_print(top, call->config->values[KL_SET_STORE].text, out);
    bool made = fclose(out) == 0 && text;
    if (made)
        draw(text, screen->colour);
    free(text);
    return made ? KL_OK : kl__fail_memory();
}

/* The store cannot be looked at now; the next look is tried as ever. */
static kl_rc draw_trouble(const struct screen *screen)
{
    char *text = NULL;
    if (asprintf(&text, "keyline: %s\n", kl_error_text()) < 0)
        return kl__fail_memory();
    draw(text, screen->colour);
    free(text);
    return KL_OK;
}

static int print_look(const kl__call *call, const kl__top *top)
{
    const char *store = call->config->values[KL_SET_STORE].text;
    char *text = NULL;
    size_t length = 0;
    if (kl__call_json(call))
        return kl__top_print_json(top, store);
    FILE *out = open_memstream(&text, &length);
    if (!out)
        return kl__fail_call(kl__fail_memory());
    kl__top_print(top, store, out);
    int status = fclose(out) == 0 && text ? KL_EXIT_OK : kl__fail_call(kl__fail_memory());
    for (size_t i = 0; status == KL_EXIT_OK && i < length; i++)
        if (text[i] != '\1')
            putchar(text[i]);
    free(text);
    return status;
}

static void swap(kl__top **a, kl__top **b)
{
    kl__top *spare = *a;
    *a = *b;
    *b = spare;
}

/* On a terminal. */
static kl_rc watch(const kl__call *call, kl__top *now, kl__top *before, int64_t every_ms)
{
    struct screen screen;
    kl_rc rc = KL_OK;
    bool has_before = false;
    open_screen(&screen, call->config);
    do {
        resized = 0;
        rc = kl__top_look(call->store, has_before ? before : NULL, now);
        if (rc == KL_EBUSY) {
            rc = draw_trouble(&screen);
            continue;
        }
        if (rc == KL_OK)
            rc = draw_look(call, now, &screen);
        if (has_before)
            kl_arena_free(&before->arena);
        has_before = rc == KL_OK;
        swap(&now, &before);
    } while (rc == KL_OK && !wait_for_key(every_ms));
    if (has_before)
        kl_arena_free(&before->arena);
    close_screen(&screen);
    return rc;
}

/* Elsewhere: once, or again and again when that was asked for. */
static int print_looks(const kl__call *call, kl__top *now, kl__top *before, const top_opts *opts)
{
    const struct timespec pause = {opts->every_ms / 1000, opts->every_ms % 1000 * 1000000};
    bool has_before = false;
    for (;;) {
        kl_rc rc = kl__top_look(call->store, has_before ? before : NULL, now);
        int status = rc == KL_OK ? print_look(call, now) : kl__fail_call(rc);
        if (has_before)
            kl_arena_free(&before->arena);
        has_before = rc == KL_OK;
        swap(&now, &before);
        bool fails = status != KL_EXIT_OK && rc != KL_EBUSY; /* what is busy now may not be so at the next look */
        if (fails || opts->once || !opts->every_ms || fflush(stdout) != 0 || ferror(stdout)) {
            if (has_before)
                kl_arena_free(&before->arena);
            return status;
        }
        nanosleep(&pause, NULL);
    }
}

static int run_top(kl__call *call)
{
    const top_opts *opts = call->values;
    const char *term = getenv("TERM");
    bool terminal = isatty(STDOUT_FILENO) && isatty(STDIN_FILENO) && term && *term && strcmp(term, "dumb") != 0;
    int status = kl__call_store(call);
    if (status != KL_EXIT_OK)
        return status;
    kl__top *now = kl_arena_alloc(&call->arena, sizeof *now), *before = kl_arena_alloc(&call->arena, sizeof *before);
    if (!now || !before)
        return kl__fail_call(kl__fail_memory());
    if (opts->once || !terminal || kl__call_json(call))
        return print_looks(call, now, before, opts);
    kl_rc rc = watch(call, now, before, opts->every_ms ? opts->every_ms : EVERY_MS);
    if (rc != KL_OK)
        return kl__fail_call(rc);
    return caught ? KL_EXIT_SIGNAL + caught : KL_EXIT_OK;
}

static const kl__option options[] = {
    {"--once", NULL, "print one look and end, also on a terminal", offsetof(top_opts, once), 0, 0},
    {"--every", "DURATION", "how often to look (1s); where there is no terminal: print look after look",
     offsetof(top_opts, every_ms), 100, INT64_C(3600000)},
    {NULL, NULL, NULL, 0, 0, 0},
};

const kl__command kl__top_command = {
    .name = "top",
    .summary = "watch queues, workers and the longest lines",
    .about = "Shows the queues with what waits in them and how that changes, the workers with their shards and\n"
             "running tasks, and the keys with the longest lines, until q is pressed. Where\n"
             "there is no terminal, or with --once, one look is printed; with --json each is a line.\n"
             "\n"
             "FINISHED/S counts finished tasks that are kept: dead letters, and others as the queue says.\n",
    .options = options,
    .values_size = sizeof(top_opts),
    .takes = KL_TAKES_JSON | KL_TAKES_STORE,
    .run = run_top,
};
