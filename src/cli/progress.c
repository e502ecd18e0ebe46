/* progress.c - see progress.h. */
#include "cli/progress.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "base/clock.h"

enum { BAR_CELLS = 30 };

#define BAR_NS  INT64_C(100000000)
#define LINE_NS INT64_C(2000000000)

void kl__progress_begin(kl__progress *progress, int64_t wish)
{
    const char *term = getenv("TERM");
    bool terminal = isatty(STDERR_FILENO) && term && *term && strcmp(term, "dumb") != 0;
    int64_t now = kl__monotonic_ns();
    *progress =
        (kl__progress){.bar = wish >= 0 && terminal, .lines = wish >= 0 && !terminal, .begun_ns = now, .told_ns = now};
}

static void draw_bar(uint64_t done, double rate, double share)
{
    char bar[BAR_CELLS + 1];
    int full = (int)(share * BAR_CELLS);
    memset(bar, '#', sizeof bar);
    memset(bar + full, '.', (size_t)(BAR_CELLS - full));
    bar[BAR_CELLS] = '\0';
    if (share > 0)
        fprintf(stderr, "\r[%s] %3.0f %%  %" PRIu64 " task%s, %.0f/s\33[K", bar, share * 100, done, kl__plural(done),
                rate);
    else
        fprintf(stderr, "\r%" PRIu64 " task%s, %.0f/s\33[K", done, kl__plural(done), rate);
}

void kl__progress_tell(kl__progress *progress, uint64_t done, uint64_t part, uint64_t whole)
{
    int64_t now = kl__monotonic_ns();
    if ((!progress->bar && !progress->lines) || now - progress->told_ns < (progress->bar ? BAR_NS : LINE_NS))
        return;
    progress->told_ns = now;
    double rate = (double)done * 1e9 / (double)(now - progress->begun_ns + 1);
    double share = whole ? (double)part / (double)whole : 0;
    share = share > 1 ? 1 : share;
    if (progress->bar) {
        draw_bar(done, rate, share);
        progress->drawn = true;
    } else if (whole) {
        fprintf(stderr, "keyline: %" PRIu64 " task%s, %.0f/s, %.0f %%\n", done, kl__plural(done), rate, share * 100);
    } else {
        fprintf(stderr, "keyline: %" PRIu64 " task%s, %.0f/s\n", done, kl__plural(done), rate);
    }
}

void kl__progress_clear(kl__progress *progress)
{
    if (progress->drawn)
        fputs("\r\33[K", stderr);
    progress->drawn = false;
}
