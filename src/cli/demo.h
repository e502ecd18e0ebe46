/* demo.h - the demo's parts: the work (demo_work.c), and the two ways to show it (demo_view.c, demo_text.c).
 *
 * The work runs on the executor's threads and measures itself. Whoever shows it takes a look, which is a copy of all
 * figures at one moment, and never touches the work. */
#ifndef KL_CLI_DEMO_H
#define KL_CLI_DEMO_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "keyline/exec.h"

enum {
    KL_DEMO_KEYS = 50,
    KL_DEMO_TASKS = 40, /* of each key */
    KL_DEMO_TOTAL = KL_DEMO_KEYS * KL_DEMO_TASKS,
    KL_DEMO_OTHERS = KL_DEMO_KEYS - 1,
    KL_DEMO_BAD_KEY = 12, /* counted from 0: c-13 */
    KL_DEMO_BAD_TASK = 2, /* counted from 0: its third */
    KL_DEMO_NAME_BYTES = 8,
};

#define KL_DEMO_ERROR "payment gateway says 503"

typedef struct kl__demo_opts {
    int64_t seconds;
    int64_t seed;
    int64_t plain;
} kl__demo_opts;

/* --- The watch: is a key's order kept? --- */

typedef struct kl__demo_watch {
    _Atomic uint32_t inside; /* tasks of the key that are running; more than one is an overlap */
    _Atomic uint32_t ended;  /* tasks of the key that have ended, and so the number of the next */
    _Atomic uint32_t order_violations;
    _Atomic uint32_t overlaps;
} kl__demo_watch;

/* A task enters at the start of each attempt and leaves at its end; it ends once. */
void kl__demo_watch_enter(kl__demo_watch *watch, uint32_t number);
void kl__demo_watch_leave(kl__demo_watch *watch);
void kl__demo_watch_end(kl__demo_watch *watch);

/* --- The work --- */

typedef struct kl__demo kl__demo;

/* What the failing key goes through, in this order. */
typedef enum kl__demo_phase {
    KL_DEMO_CALM,     /* its task has not failed yet */
    KL_DEMO_BLOCKED,  /* it fails, and is retried again and again */
    KL_DEMO_RELEASED, /* the gateway is back, and the key was told to go on at once */
    KL_DEMO_FLOWING,  /* the task has ended, and the tasks that waited behind it run */
} kl__demo_phase;

typedef enum kl__demo_state { KL_DEMO_WAITING, KL_DEMO_RUNNING, KL_DEMO_RETRYING, KL_DEMO_DONE } kl__demo_state;

typedef struct kl__demo_cell {
    kl__demo_state state;
    uint32_t ended;
} kl__demo_cell;

typedef struct kl__demo_look {
    int64_t elapsed_ms;
    bool over; /* every task has ended */
    uint32_t done, dead, given_up;
    uint32_t per_second; /* tasks that ended in the last second */
    uint32_t retries;
    uint32_t order_violations, overlaps;
    uint32_t held; /* other keys that have tasks and are neither running nor in line for a thread */
    uint32_t held_most;

    kl__demo_phase phase;
    uint32_t failures;    /* attempts of the failing task that failed */
    int64_t due_in_ms;    /* retrying: until its next attempt */
    int64_t released_ms;  /* when the gateway came back, 0: not yet */
    int64_t blocked_ms;   /* how long the failing key was, or has been, blocked */
    uint32_t others_then; /* tasks of other keys that ended in that time */
    double rate_then;     /* the same per second */
    double rate_later;    /* and from then on, until the other keys were done */
    int64_t pause_ms;     /* the longest that any other key went without a task ending, in that time */

    kl__demo_cell cells[KL_DEMO_KEYS];
} kl__demo_look;

/* Opens the executor and hands over all tasks. Returns an exit status; unless that is KL_EXIT_OK it has complained. */
int kl__demo_start(const kl__demo_opts *opts, kl__demo **ret_demo);
int64_t kl__demo_threads(const kl__demo *demo);
const char *kl__demo_name(const kl__demo *demo, int key);

/* One thread looks, and by looking steers: it brings the gateway back when it is time. */
void kl__demo_look_at(kl__demo *demo, kl__demo_look *ret_look);

/* Waits for all tasks, or gives up those that have not run. */
kl_rc kl__demo_drain(kl__demo *demo);
void kl__demo_abort(kl__demo *demo);
void kl__demo_close(kl__demo *demo); /* NULL is fine */

/* --- Plain lines, and the summary --- */

typedef struct kl__demo_teller {
    kl__demo_phase phase; /* told so far */
    uint32_t failures;
    int64_t next_milestone_ms;
} kl__demo_teller;

void kl__demo_tell_start(const kl__demo *demo, const kl__demo_opts *opts);
void kl__demo_tell(kl__demo_teller *teller, const kl__demo_look *look);
enum { KL_DEMO_STOP_LINES = 5, KL_DEMO_SUMMARY_LINES = 15 }; /* with the shell's next */

void kl__demo_tell_stop(const kl__demo_look *look);
void kl__demo_tell_summary(const kl__demo_look *look);

/* --- The live view --- */

typedef struct kl__demo_view {
    int columns, rows; /* of the terminal, at the last frame */
    bool colour, utf8;
} kl__demo_view;

/* False: standard output is not a terminal on which the view can be drawn, and plain lines are the thing. */
bool kl__demo_view_open(kl__demo_view *ret_view);
void kl__demo_view_draw(kl__demo_view *view, const kl__demo *demo, const kl__demo_look *look);

/* Gives the cursor back. The last frame stays above if it fits on the screen with the lines that are to follow. */
void kl__demo_view_close(const kl__demo_view *view, int lines);

#endif
