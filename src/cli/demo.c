/* demo.c - `keyline demo`: 50 keys at work, one of which keeps failing.
 *
 * This thread looks at the work a few dozen times a second and shows what it sees; the executor's threads do the rest.
 * It sleeps in sigtimedwait, so that signals are read here, in order, and no handler and no other thread sees them. */
#include "cli/demo.h"
#include "cli/cli.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LOOK_MS = 20, LOOKS_PER_FRAME = 5, SECONDS_DEFAULT = 10 };

const char kl__demo_about[] =
    "Runs 40 tasks for each of 50 customers on the in-process executor and shows, live, that\n"
    "each customer's tasks run in order, that a customer whose task keeps failing blocks\n"
    "nobody else, and how its tasks follow in order once it is released. Every figure is\n"
    "measured. Exits with 1 if a task ran out of order.\n"
    "\n"
    "Prints plain lines when the output is not a terminal of 60 by 20 or more. NO_COLOR\n"
    "turns colours off. KEYLINE_EXEC_* settings are honoured, such as KEYLINE_EXEC_THREADS.\n";

const kl__option kl__demo_options[] = {
    {"--seconds", "N", "take about N seconds, from 1 to 60 (10)", offsetof(kl__demo_opts, seconds), 1, 60},
    {"--seed", "N", "choose the tasks' durations by N (by the clock)", offsetof(kl__demo_opts, seed), 1, INT32_MAX},
    {"--plain", NULL, "print plain lines, also on a terminal", offsetof(kl__demo_opts, plain), 0, 0},
    {0},
};

struct show {
    kl__demo *demo;
    bool live;
    kl__demo_view view;
    kl__demo_teller teller;
    sigset_t signals;
};

/* The signals that end or suspend the show, unless whoever started it wants them ignored. Threads inherit the mask. */
static void hold_signals(sigset_t *ret_signals)
{
    static const int ours[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP};
    sigemptyset(ret_signals);
    for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++) {
        struct sigaction action;
        if (sigaction(ours[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN)
            sigaddset(ret_signals, ours[i]);
    }
    sigprocmask(SIG_BLOCK, ret_signals, NULL);
}

/* Returns the signal that came, or 0. */
static int wait_a_little(const sigset_t *signals)
{
    int signal = sigtimedwait(signals, NULL, &(struct timespec){.tv_nsec = LOOK_MS * 1000000L});
    return signal > 0 ? signal : 0;
}

static void update(struct show *show, const kl__demo_look *look, int round)
{
    if (!show->live)
        kl__demo_tell(&show->teller, look);
    else if (round % LOOKS_PER_FRAME == 0 || look->over)
        kl__demo_view_draw(&show->view, show->demo, look);
}

/* Ctrl-Z: the shell gets its cursor back, and the show goes on when it is told to. */
static void suspend(struct show *show)
{
    if (show->live)
        kl__demo_view_close(&show->view, 1);
    raise(SIGSTOP);
    if (show->live)
        show->live = kl__demo_view_open(&show->view);
}

/* Shows the work until all of it has ended or a signal comes, and returns that signal or 0. */
static int watch(struct show *show, kl__demo_look *ret_look)
{
    int signal = 0;
    for (int round = 0; signal == 0; round++) {
        kl__demo_look_at(show->demo, ret_look);
        update(show, ret_look, round);
        if (ret_look->over)
            break;
        signal = wait_a_little(&show->signals);
        if (signal == SIGTSTP) {
            suspend(show);
            signal = 0;
        }
    }
    return signal;
}

static int judge(const kl__demo_look *look)
{
    if (look->order_violations || look->overlaps || look->held_most || !look->over) {
        kl__complain("this should not have happened; please report it with the lines above");
        return KL_EXIT_FAILURE;
    }
    return KL_EXIT_OK;
}

static int play(struct show *show)
{
    kl__demo_look look;
    int signal = watch(show, &look);
    if (signal)
        kl__demo_abort(show->demo);
    else if (kl__demo_drain(show->demo) != KL_OK)
        kl__complain("%s", kl_error_text());
    kl__demo_look_at(show->demo, &look);
    if (show->live)
        kl__demo_view_close(&show->view, signal ? KL_DEMO_STOP_LINES : KL_DEMO_SUMMARY_LINES);
    if (signal)
        kl__demo_tell_stop(&look);
    else
        kl__demo_tell_summary(&look);
    fflush(stdout);
    int status = judge(&look);
    return signal && status == KL_EXIT_OK ? KL_EXIT_SIGNAL + signal : status;
}

int kl__demo_command(int argc, char **argv)
{
    kl__demo_opts opts = {.seconds = SECONDS_DEFAULT, .seed = (int64_t)time(NULL) % INT32_MAX};
    struct show show = {.live = false};
    if (!kl__options_parse(kl__demo_options, argc, argv, &opts))
        return KL_EXIT_USAGE;
    hold_signals(&show.signals);
    int status = kl__demo_start(&opts, &show.demo);
    if (status != KL_EXIT_OK)
        return status;
    show.live = !opts.plain && kl__demo_view_open(&show.view);
    if (!show.live)
        kl__demo_tell_start(show.demo, &opts);
    status = play(&show);
    kl__demo_close(show.demo);
    return status;
}
