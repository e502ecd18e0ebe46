/* steer.c - `keyline cancel`, `retry`, `move` and `purge`: waiting and running tasks, wherever their worker is.
 *
 * Each of several ids is dealt with on its own: one that cannot be is told, the others go on, and the exit status is
 * that of the first that could not. */
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "cli/cli.h"
#include "cli/config.h"
#include "cli/output.h"
#include "cli/task_rows.h"
#include "keyline/control.h"

typedef struct steer_opts {
    const char *queue, *to;
    kl__texts ids;
    int64_t yes;
} steer_opts;

static const kl__column columns[] = {{"id", 0}, {"queue", 0}, {"done", 0}, {"new_id", 0}, {NULL, 0}};

struct steering {
    kl__call *call;
    const steer_opts *opts;
    kl_queue *queue, *to;
};

static int say_done(const struct steering *steering, const kl_task_id *id, const char *done, const kl_task_id *new_id)
{
    static const kl_task_id none;
    char text[KL_ID_TEXT_BYTES], new_text[KL_ID_TEXT_BYTES] = "";
    const kl_task_id *other = new_id && memcmp(new_id, id, sizeof *id) != 0 ? new_id : &none;
    kl_id_print(id, text);
    if (other != &none)
        kl_id_print(other, new_text);
    return kl__out_done(steering->call, columns,
                        (kl__cell[]){kl__cell_id(id), kl__cell_text(steering->opts->queue), kl__cell_text(done),
                                     kl__cell_id_or_none(other)},
                        "%s %s%s%s", text, done, *new_text ? " as " : "", new_text);
}

/* ---- One task ---- */

typedef int steer_fn(struct steering *steering, const kl_task_id *id);

static int cancel_one(struct steering *steering, const kl_task_id *id)
{
    bool running;
    kl_rc rc = kl_task_cancel(steering->queue, id, &running);
    return rc == KL_OK ? say_done(steering, id, running ? "asked to stop" : "cancelled", NULL) : kl__fail_call(rc);
}

static int retry_one(struct steering *steering, const kl_task_id *id)
{
    kl_task_id new_id = *id;
    kl_rc rc = kl_task_retry(steering->queue, id, &new_id);
    if (rc != KL_OK)
        return kl__fail_call(rc);
    bool again = memcmp(&new_id, id, sizeof new_id) != 0;
    return say_done(steering, id, again ? "put again" : "due now", &new_id);
}

/* The queue to move to is made on first use: not for a task that is not there. */
static int open_target(struct steering *steering, const kl_task_id *id)
{
    kl_found found;
    if (steering->to)
        return KL_EXIT_OK;
    kl_rc rc = kl_queue_task(steering->queue, id, &steering->call->arena, &found);
    return rc == KL_OK ? kl__call_open(steering->call, steering->opts->to, &steering->to) : kl__fail_call(rc);
}

static int move_one(struct steering *steering, const kl_task_id *id)
{
    kl_task_id new_id = *id;
    int status = open_target(steering, id);
    if (status != KL_EXIT_OK)
        return status;
    kl_rc rc = kl_task_move(steering->queue, id, steering->to, &new_id);
    if (rc != KL_OK)
        return kl__fail_call(rc);
    const char *done = kl__format(&steering->call->arena, "moved to %s", steering->opts->to);
    return done ? say_done(steering, id, done, &new_id) : KL_EXIT_AGAIN;
}

static int steer(struct steering *steering, steer_fn *one)
{
    const kl__texts *ids = &steering->opts->ids;
    kl_task_id id;
    int status = KL_EXIT_OK;
    for (size_t i = 0; i < ids->count; i++)
        if (!kl__id_read("the task", ids->items[i], &id))
            return KL_EXIT_USAGE;
    status = kl__call_find(steering->call, steering->opts->queue, &steering->queue);
    if (status != KL_EXIT_OK)
        return status;
    for (size_t i = 0; i < ids->count; i++) {
        if (!kl__id_read("the task", ids->items[i], &id))
            return KL_EXIT_USAGE;
        int came = one(steering, &id);
        status = status == KL_EXIT_OK ? came : status;
    }
    return status;
}

static int run_cancel(kl__call *call)
{
    return steer(&(struct steering){.call = call, .opts = call->values}, cancel_one);
}
static int run_retry(kl__call *call)
{
    return steer(&(struct steering){.call = call, .opts = call->values}, retry_one);
}

static int run_move(kl__call *call)
{
    const steer_opts *opts = call->values;
    if (!opts->to) {
        kl__complain("move needs the queue to move to: --to QUEUE");
        return KL_EXIT_USAGE;
    }
    if (strcmp(opts->queue, opts->to) == 0) {
        kl__complain("the tasks are in %s already; name another queue with --to", opts->to);
        return KL_EXIT_USAGE;
    }
    return steer(&(struct steering){.call = call, .opts = opts}, move_one);
}

/* ---- purge ---- */

/* Asks on a terminal; elsewhere --yes must have been said. */
static bool is_meant(const kl__call *call, const char *queue)
{
    char answer[16] = "";
    if (kl__call_json(call) || !isatty(STDIN_FILENO) || !isatty(STDERR_FILENO)) {
        kl__complain("purge ends all waiting tasks of %s for good; say --yes if that is meant", queue);
        return false;
    }
    fprintf(stderr, "End all waiting tasks of %s for good? [y/N] ", queue);
    if (fgets(answer, sizeof answer, stdin) && (answer[0] == 'y' || answer[0] == 'Y'))
        return true;
    kl__complain("nothing was purged");
    return false;
}

static int run_purge(kl__call *call)
{
    static const kl__column purge_columns[] = {{"queue", 0}, {"cancelled", 0}, {NULL, 0}};
    const steer_opts *opts = call->values;
    kl_queue *queue;
    uint64_t count;
    int status = kl__call_find(call, opts->queue, &queue);
    if (status != KL_EXIT_OK)
        return status;
    if (!opts->yes && !is_meant(call, opts->queue))
        return KL_EXIT_USAGE;
    kl_rc rc = kl_queue_purge(queue, &count);
    if (rc != KL_OK)
        return kl__fail_call(rc);
    return kl__out_done(call, purge_columns, (kl__cell[]){kl__cell_text(opts->queue), kl__cell_number((int64_t)count)},
                        "%" PRIu64 " waiting task%s of %s cancelled", count, kl__plural(count), opts->queue);
}

/* ---- Tables ---- */

static const kl__argument id_arguments[] = {
    {"QUEUE", offsetof(steer_opts, queue), KL_NEEDED, "the queue"},
    {"ID", offsetof(steer_opts, ids), KL_SEVERAL, "the tasks' ids"},
    {NULL, 0, 0, NULL},
};

static const kl__argument queue_argument[] = {
    {"QUEUE", offsetof(steer_opts, queue), KL_NEEDED, "the queue"},
    {NULL, 0, 0, NULL},
};

static const kl__option move_options[] = {
    {"--to", "QUEUE", "where to; it is made when there is none", offsetof(steer_opts, to), 0, 0},
    {NULL, NULL, NULL, 0, 0, 0},
};

static const kl__option purge_options[] = {
    {"--yes", NULL, "do not ask", offsetof(steer_opts, yes), 0, 0},
    {NULL, NULL, NULL, 0, 0, 0},
};

const kl__command kl__cancel_command = {
    .name = "cancel",
    .summary = "end waiting tasks, and stop running ones",
    .about = "Ends waiting tasks as cancelled. A running one is asked to stop, and ends as cancelled unless\n"
             "it is done by then. Exits with 3 when a task has ended or never was.\n",
    .arguments = id_arguments,
    .values_size = sizeof(steer_opts),
    .takes = KL_TAKES_JSON | KL_TAKES_STORE,
    .run = run_cancel,
};

const kl__command kl__retry_command = {
    .name = "retry",
    .summary = "try tasks now that wait for later, or again",
    .about = "Lets a waiting task be tried now, with all its attempts before it, instead of when its back-off\n"
             "or delay is over. It passes nobody: tasks of its key that come before it are run first. A dead or\n"
             "otherwise finished one that is kept is put again with a new id. Exits with 75 when a task is\n"
             "running, or is delayed and others of its key come before it.\n",
    .arguments = id_arguments,
    .values_size = sizeof(steer_opts),
    .takes = KL_TAKES_JSON | KL_TAKES_STORE,
    .run = run_retry,
};

const kl__command kl__move_command = {
    .name = "move",
    .summary = "put tasks into another queue",
    .about = "Puts tasks that wait, or are finished and kept, into another queue, and ends them here. Exits\n"
             "with 75 when one is running, and with 3 when one has ended. One that begins to run while it is\n"
             "moved stays; if its copy runs by then as well, it is run in both queues, and that is said.\n"
             "\n"
             "  keyline move orders 5f1f1a32-0b7c-8d00-8a2b-3c4d5e6f7a8b --to orders-slow\n",
    .arguments = id_arguments,
    .options = move_options,
    .values_size = sizeof(steer_opts),
    .takes = KL_TAKES_JSON | KL_TAKES_STORE,
    .run = run_move,
};

const kl__command kl__purge_command = {
    .name = "purge",
    .summary = "end all waiting tasks of a queue",
    .about = "Ends all waiting tasks of a queue as cancelled; those that run go on. Asks before it does, where\n"
             "there is somebody to ask.\n",
    .arguments = queue_argument,
    .options = purge_options,
    .values_size = sizeof(steer_opts),
    .takes = KL_TAKES_JSON | KL_TAKES_STORE,
    .run = run_purge,
};
