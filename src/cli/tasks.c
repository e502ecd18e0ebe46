/* tasks.c - `keyline ls` and `keyline show`: what waits in a queue, and what is kept of it. */
#include <string.h>

#include "base/base.h"
#include "cli/cli.h"
#include "cli/config.h"
#include "cli/task_rows.h"

/* ---- ls ---- */

typedef struct ls_opts {
    const char *queue;
    int64_t state, limit;
    kl__filter_opts filter;
} ls_opts;

/* As the option's choices are numbered, from 1. */
enum { WAITING = 1, READY, DUE, RETRY, DONE, DEAD, CANCELLED, FINISHED };

struct waiting_list {
    kl_queue *queue;
    kl_waiting which;
};

static kl_rc waiting_page(void *ctx, size_t max, kl_bytes *cursor, kl_arena *arena, kl_found *ret_found,
                          size_t *ret_count)
{
    struct waiting_list *list = ctx;
    list->which.max = max;
    list->which.cursor = *cursor;
    return kl_queue_waiting(list->queue, &list->which, arena, ret_found, ret_count, cursor);
}

static int list_waiting(kl__call *call, kl_queue *queue, const ls_opts *opts, int64_t limit)
{
    struct waiting_list list = {queue,
                                {.key = kl_str(opts->filter.key),
                                 .due = opts->state == DUE,
                                 .retry = opts->state == RETRY,
                                 .ready = opts->state == READY}};
    return kl__list_tasks(call, queue, kl__waiting_columns, limit, waiting_page, &list);
}

static bool check_waiting(const ls_opts *opts)
{
    kl__filter_opts others = opts->filter;
    others.key = NULL;
    if (!kl__filter_is_set(&others))
        return true;
    kl__complain(
        "waiting tasks are chosen by --key alone; add --state done, dead, cancelled or finished to use the rest");
    return false;
}

static int list_finished(kl__call *call, kl_queue *queue, const ls_opts *opts, int64_t limit)
{
    kl_finished which;
    if (!kl__filter_fill(&opts->filter, &which))
        return KL_EXIT_USAGE;
    which.state = opts->state == DONE        ? KL_TASK_DONE
                  : opts->state == DEAD      ? KL_TASK_DEAD
                  : opts->state == CANCELLED ? KL_TASK_CANCELLED
                                             : KL_TASK_UNKNOWN;
    return kl__finished_list(call, queue, &which, limit);
}

static int run_ls(kl__call *call)
{
    const ls_opts *opts = call->values;
    kl_queue *queue;
    int64_t limit = opts->limit ? opts->limit : KL_LIST_STANDARD;
    bool finished = opts->state >= DONE;
    if (!finished && !check_waiting(opts))
        return KL_EXIT_USAGE;
    int status = kl__call_find(call, opts->queue, &queue);
    if (status != KL_EXIT_OK)
        return status;
    return finished ? list_finished(call, queue, opts, limit) : list_waiting(call, queue, opts, limit);
}

static const kl__argument ls_arguments[] = {
    {"QUEUE", offsetof(ls_opts, queue), KL_NEEDED, "the queue"},
    {NULL, 0, 0, NULL},
};

static const kl__option ls_options[] = {
    {"--state", "waiting|ready|due|retry|done|dead|cancelled|finished", "only tasks that are so (waiting)",
     offsetof(ls_opts, state), 0, 0},
    KL__FILTER_OPTIONS(ls_opts),
    {"--limit", "N", "no more than so many (100)", offsetof(ls_opts, limit), 1, KL_LIST_MAX},
    {NULL, NULL, NULL, 0, 0, 0},
};

const kl__command kl__ls_command = {
    .name = "ls",
    .summary = "list the tasks of a queue",
    .about = "Lists tasks that wait, shard by shard in the order of their lines, or tasks that are finished\n"
             "and kept, the latest first.\n",
    .arguments = ls_arguments,
    .options = ls_options,
    .values_size = sizeof(ls_opts),
    .takes = KL_TAKES_JSON | KL_TAKES_STORE,
    .run = run_ls,
};

/* ---- show ---- */

typedef struct show_opts {
    const char *queue, *id;
} show_opts;

static int run_show(kl__call *call)
{
    const show_opts *opts = call->values;
    kl_task_id id;
    kl_queue *queue;
    kl_found found;
    if (!kl__id_read("the task", opts->id, &id))
        return KL_EXIT_USAGE;
    int status = kl__call_find(call, opts->queue, &queue);
    if (status != KL_EXIT_OK)
        return status;
    kl_rc rc = kl_queue_task(queue, &id, &call->arena, &found);
    return rc == KL_OK ? kl__task_thing(call, queue, &found) : kl__fail_call(rc);
}

static const kl__argument show_arguments[] = {
    {"QUEUE", offsetof(show_opts, queue), KL_NEEDED, "the queue"},
    {"ID", offsetof(show_opts, id), KL_NEEDED, "the task's id"},
    {NULL, 0, 0, NULL},
};

const kl__command kl__show_command = {
    .name = "show",
    .summary = "show everything about one task",
    .about = "Shows a task that waits, or is finished and kept. Exits with 3 when there is none of that id.\n",
    .arguments = show_arguments,
    .values_size = sizeof(show_opts),
    .takes = KL_TAKES_JSON | KL_TAKES_STORE,
    .run = run_show,
};
