/* demo_text.c - the demo in plain lines, one per event worth reading, and the summary that ends both views. */
#include "cli/demo.h"

#include <stdarg.h>
#include <stdio.h>

enum { MILESTONE_MS = 1000 };

#define BAD "c-13"

static double seconds(int64_t ms) { return (double)ms / 1000; }

/* A line with its time in front, out at once: somebody may be reading through a pipe. */
static void KL_PRINTF(2, 3) line(const kl__demo_look *look, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    printf("%5.1f s  ", seconds(look->elapsed_ms));
    vprintf(format, arguments);
    putchar('\n');
    va_end(arguments);
    fflush(stdout);
}

void kl__demo_tell_start(const kl__demo *demo, const kl__demo_opts *opts)
{
    printf("Keyline demo: %d customers, %s to %s, %d tasks each, %lld threads (--seed %lld).\n", KL_DEMO_KEYS,
           kl__demo_name(demo, 0), kl__demo_name(demo, KL_DEMO_KEYS - 1), KL_DEMO_TASKS,
           (long long)kl__demo_threads(demo), (long long)opts->seed);
    printf("Each customer's tasks run in order. Task %d of " BAD " will keep failing; see who waits for it.\n\n",
           KL_DEMO_BAD_TASK + 1);
    fflush(stdout);
}

/* Retries may come faster than lines should: what is told is the latest failure. */
static void tell_failure(const kl__demo_look *look)
{
    if (look->cells[KL_DEMO_BAD_KEY].state == KL_DEMO_RETRYING)
        line(look, BAD " task %d failed (attempt %u): " KL_DEMO_ERROR "; retrying in %lld ms, %d other keys go on",
             KL_DEMO_BAD_TASK + 1, look->failures, (long long)look->due_in_ms, KL_DEMO_OTHERS);
    else
        line(look, BAD " task %d failed (attempt %u): " KL_DEMO_ERROR "; %d other keys go on", KL_DEMO_BAD_TASK + 1,
             look->failures, KL_DEMO_OTHERS);
}

static void tell_milestone(const kl__demo_look *look)
{
    const kl__demo_cell *bad = &look->cells[KL_DEMO_BAD_KEY];
    if (look->phase == KL_DEMO_CALM)
        line(look, "%u of %d tasks done", look->done, KL_DEMO_TOTAL);
    else if (look->phase == KL_DEMO_FLOWING)
        line(look, "%u of %d tasks done, " BAD " goes on in order: %u of its %d", look->done, KL_DEMO_TOTAL, bad->ended,
             KL_DEMO_TASKS);
    else if (bad->state == KL_DEMO_RETRYING)
        line(look, "%u of %d tasks done, " BAD " waits (retry in %lld ms), keys waiting behind it: %u", look->done,
             KL_DEMO_TOTAL, (long long)look->due_in_ms, look->held);
    else
        line(look, "%u of %d tasks done, " BAD " tries again, keys waiting behind it: %u", look->done, KL_DEMO_TOTAL,
             look->held);
}

static void tell_phase(const kl__demo_look *look)
{
    unsigned left = KL_DEMO_TASKS - KL_DEMO_BAD_TASK - 1;
    if (look->phase == KL_DEMO_RELEASED)
        line(look, "release: the gateway is back, and " BAD " is told to go on, after %u failed attempt%s in %.1f s",
             look->failures, look->failures == 1 ? "" : "s", seconds(look->blocked_ms));
    else if (look->phase == KL_DEMO_FLOWING && look->dead)
        line(look, BAD " task %d failed for good (attempt %u); its other %u tasks follow in order",
             KL_DEMO_BAD_TASK + 1, look->failures, left);
    else if (look->phase == KL_DEMO_FLOWING)
        line(look, BAD " task %d done (attempt %u); the %u tasks behind it follow in order", KL_DEMO_BAD_TASK + 1,
             look->failures + 1, left);
}

void kl__demo_tell(kl__demo_teller *teller, const kl__demo_look *look)
{
    if (look->failures > teller->failures) {
        teller->failures = look->failures;
        tell_failure(look);
    }
    /* A phase may be too short for a look to fall into it; then its successor was still preceded by it. */
    bool skipped = look->phase == KL_DEMO_FLOWING && teller->phase == KL_DEMO_BLOCKED && look->released_ms > 0;
    if (skipped) {
        kl__demo_look earlier = *look;
        earlier.phase = KL_DEMO_RELEASED;
        earlier.elapsed_ms = look->released_ms;
        tell_phase(&earlier);
    }
    if (look->phase > teller->phase) {
        teller->phase = look->phase;
        tell_phase(look);
    }
    if (teller->next_milestone_ms == 0)
        teller->next_milestone_ms = MILESTONE_MS;
    if (look->elapsed_ms >= teller->next_milestone_ms && !look->over) {
        teller->next_milestone_ms = (look->elapsed_ms / MILESTONE_MS + 1) * MILESTONE_MS;
        tell_milestone(look);
    }
}

/* What ends the live view fits the narrowest terminal that has one: lines below 60 columns. */

void kl__demo_tell_stop(const kl__demo_look *look)
{
    unsigned lost = KL_DEMO_TOTAL - look->done - look->dead - look->given_up;
    printf("\nStopped after %.1f s: %u of %d done, %u given up.\n", seconds(look->elapsed_ms), look->done,
           KL_DEMO_TOTAL, look->given_up);
    if (look->dead || lost)
        printf("%u failed for good, and %u were lost without a report.\n", look->dead, lost);
    printf("Order violations: %u. Overlaps: %u.\n", look->order_violations, look->overlaps);
    printf("Run `keyline demo` again to see it to its end.\n");
}

void kl__demo_tell_summary(const kl__demo_look *look)
{
    printf("\nSummary\n");
    printf("  tasks done             %u of %d in %.1f s\n", look->done, KL_DEMO_TOTAL, seconds(look->elapsed_ms));
    printf("  order violations       %u\n", look->order_violations);
    printf("  overlaps               %u\n", look->overlaps);
    printf("  retries                %u\n", look->retries);
    printf("  " BAD " was blocked for   %.1f s, until %s\n", seconds(look->blocked_ms),
           look->dead ? "its task was dead" : "that was done");
    printf("  keys waiting behind it %u\n", look->held_most);
    printf("  the others meanwhile   %u tasks, %.0f/s", look->others_then, look->rate_then);
    if (look->rate_later > 0)
        printf("; later %.0f/s", look->rate_later);
    printf("\n  their longest pause    %.2f s between two tasks of a key\n", seconds(look->pause_ms));
    printf("\nNext\n"
           "  README.md              a program of your own, in 23 lines\n"
           "  include/keyline/exec.h the manual, call by call\n"
           "  make test              every promise above, tested\n");
}
