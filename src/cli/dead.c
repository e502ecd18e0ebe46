/* dead.c - `keyline dead`: list dead letters, put them back, into another queue, or forget them. */
#include <inttypes.h>
#include <signal.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/config.h"
#include "cli/progress.h"
#include "cli/task_rows.h"

typedef struct dead_opts {
    const char *queue, *id, *to;
    int64_t limit, max, rate, all, progress;
    kl__filter_opts filter;
} dead_opts;

static const kl__argument arguments[] = {
    {"QUEUE", offsetof(dead_opts, queue), KL_NEEDED, "the queue whose dead letters are meant"},
    {NULL, 0, 0, NULL},
};

/* ---- Listing ---- */

static int run_ls(kl__call *call)
{
    const dead_opts *opts = call->values;
    kl_finished which;
    kl_queue *queue;
    if (!kl__filter_fill(&opts->filter, &which))
        return KL_EXIT_USAGE;
    which.state = KL_TASK_DEAD;
    int status = kl__call_find(call, opts->queue, &queue);
    if (status != KL_EXIT_OK)
        return status;
    return kl__finished_list(call, queue, &which, opts->limit ? opts->limit : KL_LIST_STANDARD);
}

/* ---- Acting ---- */

/* The first signal ends it in good order, with an account of what was done; the second has its usual effect. */
static volatile sig_atomic_t stopped_by;

static void note_signal(int number) { stopped_by = number; }

static void hear_signals(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = note_signal, .sa_flags = SA_RESTART | (int)SA_RESETHAND}, old;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (sigaction(numbers[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN)
            sigaction(numbers[i], &action, NULL);
}

typedef kl_rc redrive_fn(kl_queue *queue, const kl_redrive *which, kl_account *ret_account);

static bool tell(void *ctx, const kl_account *account)
{
    kl__progress_tell(ctx, account->done, 0, 0);
    return stopped_by == 0;
}

static int tell_account(kl__call *call, const dead_opts *opts, const kl_account *account, const char *done)
{
    static const kl__column columns[] = {{"queue", 0},  {"seen", 0},  {"done", 0},
                                         {"failed", 0}, {"error", 0}, {NULL, 0}};
    kl__cell cells[] = {kl__cell_text(opts->queue), kl__cell_number((int64_t)account->seen),
                        kl__cell_number((int64_t)account->done), kl__cell_number((int64_t)account->failed),
                        kl__cell_bytes_or_none(kl_str(account->error))};
    int status = kl__out_done(call, columns, cells, "%" PRIu64 " dead letter%s of %s %s", account->done,
                              kl__plural(account->done), opts->queue, done);
    if (account->failed && status == KL_EXIT_OK) {
        const char *sentence =
            kl__format(&call->arena, "%" PRIu64 " could not be; the first: %s", account->failed, account->error);
        kl__complain_of(KL_EDEAD, KL_EXIT_FAILURE, sentence ? sentence : account->error);
        return KL_EXIT_FAILURE;
    }
    return status;
}

static int act(kl__call *call, redrive_fn *redrive, const char *done)
{
    const dead_opts *opts = call->values;
    kl__progress progress;
    kl_redrive which = {.max = (uint64_t)opts->max, .rate = opts->rate, .told = tell, .told_ctx = &progress};
    kl_queue *queue;
    kl_account account;
    if (!kl__filter_fill(&opts->filter, &which.which) || (opts->id && !kl__id_read("--id", opts->id, &which.id)))
        return KL_EXIT_USAGE;
    int status = kl__call_find(call, opts->queue, &queue);
    if (status == KL_EXIT_OK && opts->to)
        status = kl__call_open(call, opts->to, &which.to);
    if (status != KL_EXIT_OK)
        return status;
    kl__progress_begin(&progress, kl__call_json(call) && !opts->progress ? -1 : opts->progress);
    hear_signals();
    kl_rc rc = redrive(queue, &which, &account);
    kl__progress_clear(&progress);
    status = kl__fail_given(rc);
    if (rc == KL_OK || account.done > 0) { /* what was done before it failed is told, too */
        int told = tell_account(call, opts, &account, done);
        status = rc == KL_OK ? told : status;
    }
    return stopped_by ? KL_EXIT_SIGNAL + stopped_by : status;
}

static int run_retry(kl__call *call) { return act(call, kl_dead_retry, "put back"); }

static int run_move(kl__call *call)
{
    const dead_opts *opts = call->values;
    if (!opts->to) {
        kl__complain("dead move needs the queue to move to: --to QUEUE");
        return KL_EXIT_USAGE;
    }
    if (strcmp(opts->queue, opts->to) == 0) {
        kl__complain("the dead letters are of %s already; `keyline dead retry %s` puts them back", opts->to, opts->to);
        return KL_EXIT_USAGE;
    }
    return act(call, kl_dead_move, kl__format(&call->arena, "moved to %s", opts->to));
}

/* What is forgotten is gone, so nobody forgets everything by leaving something out. */
static int run_purge(kl__call *call)
{
    const dead_opts *opts = call->values;
    if (!opts->all && !opts->id && !kl__filter_is_set(&opts->filter)) {
        kl__complain("dead purge forgets for good; say which with --id, --key and others, or --all");
        return KL_EXIT_USAGE;
    }
    return act(call, kl_dead_purge, "purged");
}

/* ---- Tables ---- */

#define ACT_OPTIONS                                                                                                    \
    KL__FILTER_OPTIONS(dead_opts), {"--id", "ID", "only this one", offsetof(dead_opts, id), 0, 0},                     \
        {"--max", "N", "no more than so many", offsetof(dead_opts, max), 1, INT64_MAX},                                \
        {"--rate", "N", "so many in a second", offsetof(dead_opts, rate), 1, 1000000},                                 \
    {                                                                                                                  \
        "--[no-]progress", NULL, "show how far it is", offsetof(dead_opts, progress), 0, 0                             \
    }

static const kl__option ls_options[] = {
    KL__FILTER_OPTIONS(dead_opts),
    {"--limit", "N", "no more than so many (100)", offsetof(dead_opts, limit), 1, KL_LIST_MAX},
    {NULL, NULL, NULL, 0, 0, 0},
};

static const kl__option retry_options[] = {ACT_OPTIONS, {NULL, NULL, NULL, 0, 0, 0}};

static const kl__option move_options[] = {
    {"--to", "QUEUE", "where to; it is made when there is none", offsetof(dead_opts, to), 0, 0},
    ACT_OPTIONS,
    {NULL, NULL, NULL, 0, 0, 0},
};

static const kl__option purge_options[] = {
    ACT_OPTIONS,
    {"--all", NULL, "all of them", offsetof(dead_opts, all), 0, 0},
    {NULL, NULL, NULL, 0, 0, 0},
};

enum { PLAIN = KL_TAKES_JSON | KL_TAKES_STORE };

static const kl__command ls = {
    .name = "ls",
    .summary = "list dead letters, the latest first",
    .about = "Lists tasks that failed for good, the latest first, with their errors.\n",
    .arguments = arguments,
    .options = ls_options,
    .values_size = sizeof(dead_opts),
    .takes = PLAIN,
    .run = run_ls,
};

static const kl__command retry = {
    .name = "retry",
    .summary = "put dead letters back into their queue",
    .about = "Puts dead letters back at the end of their keys' lines, with all their attempts before them:\n"
             "those that the options say, or all.\n",
    .arguments = arguments,
    .options = retry_options,
    .values_size = sizeof(dead_opts),
    .takes = PLAIN,
    .run = run_retry,
};

static const kl__command move = {
    .name = "move",
    .summary = "put dead letters into another queue",
    .about = "Puts dead letters into another queue: those that the options say, or all.\n",
    .arguments = arguments,
    .options = move_options,
    .values_size = sizeof(dead_opts),
    .takes = PLAIN,
    .run = run_move,
};

static const kl__command purge = {
    .name = "purge",
    .summary = "forget dead letters",
    .about = "Forgets dead letters for good: those that the options say, or --all.\n",
    .arguments = arguments,
    .options = purge_options,
    .values_size = sizeof(dead_opts),
    .takes = PLAIN,
    .run = run_purge,
};

static const kl__command *const subs[] = {&ls, &retry, &move, &purge, NULL};

const kl__command kl__dead_command = {
    .name = "dead",
    .summary = "list, retry, move and purge dead letters",
    .about = "Deals with dead letters: tasks that failed for good.\n",
    .subs = subs,
};
