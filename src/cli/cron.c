/* cron.c - `keyline cron`: schedules, each putting a task at its times. */
#include <string.h>

#include "base/base.h"
#include "cli/cli.h"
#include "cli/config.h"
#include "cli/output.h"
#include "cli/tasks_in.h"
#include "keyline/cron.h"

typedef struct cron_opts {
    const char *queue, *name, *when, *payload, *zone;
    int64_t catch_up, paused;
    kl__task_opts task;
} cron_opts;

enum { CRONS_MAX = 100 };

static const kl__column done_columns[] = {{"queue", 0}, {"schedule", 0}, {"done", 0}, {NULL, 0}};

static int say_done(kl__call *call, const char *done)
{
    const cron_opts *opts = call->values;
    return kl__out_done(call, done_columns,
                        (kl__cell[]){kl__cell_text(opts->queue), kl__cell_text(opts->name), kl__cell_text(done)},
                        "schedule %s of %s %s", opts->name, opts->queue, done);
}

/* ---- add ---- */

static kl_rc is_there(kl_queue *queue, const char *name, bool *ret_there)
{
    kl_cron crons[CRONS_MAX];
    char after[KL_CRON_NAME_MAX + 1] = "";
    size_t count = CRONS_MAX;
    kl_rc rc = KL_OK;
    *ret_there = false;
    while (rc == KL_OK && count == CRONS_MAX && !*ret_there) {
        kl_arena arena = {0};
        rc = kl_cron_list(queue, after, CRONS_MAX, &arena, crons, &count);
        for (size_t i = 0; rc == KL_OK && i < count; i++)
            *ret_there |= strcmp(crons[i].name, name) == 0;
        if (rc == KL_OK && count > 0)
            snprintf(after, sizeof after, "%s", crons[count - 1].name);
        kl_arena_free(&arena);
    }
    return rc;
}

static int run_add(kl__call *call)
{
    const cron_opts *opts = call->values;
    kl_cron cron = {.size = sizeof cron,
                    .name = opts->name,
                    .when = opts->when,
                    .zone = opts->zone,
                    .catch_up = (kl_catch_up)opts->catch_up,
                    .paused = opts->paused};
    kl_queue *queue;
    if (!kl__task_fill(&opts->task, &call->arena, &cron.task))
        return KL_EXIT_USAGE;
    if (opts->payload && strcmp(opts->payload, "-") == 0) {
        if (!kl__payload_read(&call->arena, &cron.task.payload))
            return KL_EXIT_USAGE;
    } else {
        cron.task.payload = kl_str(opts->payload);
    }
    int status = kl__call_open(call, opts->queue, &queue);
    if (status != KL_EXIT_OK)
        return status;
    bool there;
    kl_rc rc = is_there(queue, opts->name, &there);
    if (rc == KL_OK)
        rc = kl_cron_add(queue, &cron);
    return rc == KL_OK ? say_done(call, there ? "changed" : "added") : kl__fail_given(rc);
}

/* ---- ls ---- */

static const char *catch_up_name(kl_catch_up catch_up)
{
    static const char *const names[] = {"one", "none", "one", "all"};
    return names[catch_up <= KL_CATCH_UP_ALL ? catch_up : 0];
}

static void list_one(kl__out *out, const kl_cron *cron)
{
    kl__out_row(out,
                (kl__cell[]){kl__cell_text(cron->name), kl__cell_text(cron->paused ? "paused" : "active"),
                             kl__cell_text(cron->when), kl__cell_text(cron->zone && *cron->zone ? cron->zone : "UTC"),
                             kl__cell_time(cron->next_ms), kl__cell_time(cron->last_ms),
                             kl__cell_bytes_or_none(cron->task.kind), kl__cell_bytes_or_none(cron->task.key),
                             kl__cell_text(catch_up_name(cron->catch_up)), kl__cell_bytes(cron->task.payload)});
}

static int run_ls(kl__call *call)
{
    static const kl__column columns[] = {{"schedule", KL_COLUMN_WHOLE},
                                         {"state", KL_COLUMN_STATE},
                                         {"when", 0},
                                         {"zone", 0},
                                         {"next", KL_COLUMN_WHOLE},
                                         {"last", KL_COLUMN_WHOLE},
                                         {"kind", 0},
                                         {"key", 0},
                                         {"catch_up", KL_COLUMN_MACHINE},
                                         {"payload", 0},
                                         {NULL, 0}};
    const cron_opts *opts = call->values;
    kl_cron crons[CRONS_MAX];
    char after[KL_CRON_NAME_MAX + 1] = "";
    size_t count = CRONS_MAX;
    kl_queue *queue;
    kl__out out;
    kl_rc rc = KL_OK;
    int status = kl__call_find(call, opts->queue, &queue);
    if (status != KL_EXIT_OK)
        return status;
    kl__out_begin(&out, call, columns);
    while (rc == KL_OK && count == CRONS_MAX) {
        kl_arena arena = {0};
        rc = kl_cron_list(queue, after, CRONS_MAX, &arena, crons, &count);
        for (size_t i = 0; rc == KL_OK && i < count; i++)
            list_one(&out, &crons[i]);
        if (rc == KL_OK && count > 0)
            snprintf(after, sizeof after, "%s", crons[count - 1].name);
        kl_arena_free(&arena);
    }
    status = kl__out_end(&out);
    return rc == KL_OK ? status : kl__fail_call(rc);
}

/* ---- pause, resume, run, rm ---- */

static int set_paused(kl__call *call, bool paused)
{
    const cron_opts *opts = call->values;
    kl_queue *queue;
    int status = kl__call_find(call, opts->queue, &queue);
    if (status != KL_EXIT_OK)
        return status;
    kl_rc rc = kl_cron_pause(queue, opts->name, paused);
    return rc == KL_OK ? say_done(call, paused ? "paused" : "resumed") : kl__fail_given(rc);
}

static int run_pause(kl__call *call) { return set_paused(call, true); }
static int run_resume(kl__call *call) { return set_paused(call, false); }

static int run_run(kl__call *call)
{
    static const kl__column columns[] = {{"id", 0}, {"queue", 0}, {"schedule", 0}, {NULL, 0}};
    const cron_opts *opts = call->values;
    kl_queue *queue;
    kl_task_id id;
    char text[KL_ID_TEXT_BYTES];
    int status = kl__call_find(call, opts->queue, &queue);
    if (status != KL_EXIT_OK)
        return status;
    kl_rc rc = kl_cron_run(queue, opts->name, &id);
    if (rc != KL_OK)
        return kl__fail_given(rc);
    kl_id_print(&id, text);
    return kl__out_done(call, columns,
                        (kl__cell[]){kl__cell_id(&id), kl__cell_text(opts->queue), kl__cell_text(opts->name)}, "%s",
                        text);
}

static int run_rm(kl__call *call)
{
    const cron_opts *opts = call->values;
    kl_queue *queue;
    int status = kl__call_find(call, opts->queue, &queue);
    if (status != KL_EXIT_OK)
        return status;
    kl_rc rc = kl_cron_remove(queue, opts->name);
    return rc == KL_OK ? say_done(call, "removed") : kl__fail_given(rc);
}

/* ---- Tables ---- */

static const kl__argument add_arguments[] = {
    {"QUEUE", offsetof(cron_opts, queue), KL_NEEDED, "the queue, which is made when there is none"},
    {"NAME", offsetof(cron_opts, name), KL_NEEDED, "the schedule's name"},
    {"WHEN", offsetof(cron_opts, when), KL_NEEDED, "when: minute hour day-of-month month day-of-week, in one word"},
    {"PAYLOAD", offsetof(cron_opts, payload), KL_OPTIONAL, "what the handler gets; - reads it from the standard input"},
    {NULL, 0, 0, NULL},
};

static const kl__argument queue_argument[] = {
    {"QUEUE", offsetof(cron_opts, queue), KL_NEEDED, "the queue"},
    {NULL, 0, 0, NULL},
};

static const kl__argument name_arguments[] = {
    {"QUEUE", offsetof(cron_opts, queue), KL_NEEDED, "the queue"},
    {"NAME", offsetof(cron_opts, name), KL_NEEDED, "the schedule's name"},
    {NULL, 0, 0, NULL},
};

static const kl__option add_options[] = {
    {"--zone", "ZONE", "the time zone, such as Europe/Zurich (UTC)", offsetof(cron_opts, zone), 0, 0},
    {"--catch-up", "none|one|all", "how many tasks make up for times that were missed (one)",
     offsetof(cron_opts, catch_up), 0, 0},
    {"--paused", NULL, "do not begin yet", offsetof(cron_opts, paused), 0, 0},
    KL__TASK_OPTIONS(cron_opts),
    {NULL, NULL, NULL, 0, 0, 0},
};

#define CRON_COMMAND(variable, name_, summary_, about_, arguments_, options_, run_)                                    \
    static const kl__command variable = {.name = (name_),                                                              \
                                         .summary = (summary_),                                                        \
                                         .about = (about_),                                                            \
                                         .arguments = (arguments_),                                                    \
                                         .options = (options_),                                                        \
                                         .values_size = sizeof(cron_opts),                                             \
                                         .takes = KL_TAKES_JSON | KL_TAKES_STORE,                                      \
                                         .run = (run_)}

CRON_COMMAND(add, "add", "add a schedule, or change it",
             "Adds a schedule, or changes the one of that name. Fields take lists, ranges, steps and names;\n"
             "@hourly, @daily, @weekly, @monthly and @yearly stand for five fields.\n"
             "\n"
             "  keyline cron add reports nightly '0 3 * * *' --zone Europe/Zurich --kind report\n",
             add_arguments, add_options, run_add);
CRON_COMMAND(ls, "ls", "list the schedules of a queue", "Lists schedules with when they fire next and fired last.\n",
             queue_argument, NULL, run_ls);
CRON_COMMAND(pause_it, "pause", "let a schedule rest", "Lets a schedule put no tasks until it is resumed.\n",
             name_arguments, NULL, run_pause);
CRON_COMMAND(resume, "resume", "let a schedule go on", "Lets a paused schedule go on.\n", name_arguments, NULL,
             run_resume);
CRON_COMMAND(run_now, "run", "put a schedule's task now", "Puts the schedule's task now, beside its times.\n",
             name_arguments, NULL, run_run);
CRON_COMMAND(rm, "rm", "remove a schedule", "Removes a schedule. Tasks that it has put stay.\n", name_arguments, NULL,
             run_rm);

static const kl__command *const subs[] = {&add, &ls, &pause_it, &resume, &run_now, &rm, NULL};

const kl__command kl__cron_command = {
    .name = "cron",
    .summary = "add, list, pause, run and remove schedules",
    .about = "Manages schedules: a task put at the times that five fields say.\n",
    .subs = subs,
};
