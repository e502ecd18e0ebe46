/* job.c - `keyline job`: many tasks submitted together, with progress and results. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "base/clock.h"
#include "cli/cli.h"
#include "cli/config.h"
#include "cli/output.h"
#include "cli/task_rows.h"
#include "cli/tasks_in.h"
#include "keyline/job.h"

typedef struct job_opts {
    const char *queue, *id, *file, *name, *idempotency_key, *scope, *after;
    int64_t in_ms, at_ms, keep_ms, limit, failed;
    kl__task_opts task;
} job_opts;

enum { JOBS_PAGE = 100 };

/* ---- submit ---- */

struct collection {
    kl_put *tasks; /* from malloc: it grows */
    size_t count, room;
};

static bool grow(struct collection *collection)
{
    size_t room = collection->room ? collection->room * 2 : 1024;
    kl_put *tasks = realloc(collection->tasks, room * sizeof *tasks);
    if (!tasks)
        return kl__fail_call(kl__fail_memory()) == KL_EXIT_OK;
    collection->tasks = tasks;
    collection->room = room;
    return true;
}

/* What a file holds is no word of the command line: 1, as for `push --file`. */
static int refuse_line(kl__call *call, const kl__lines *lines, const char *why)
{
    bool asks = *why && why[strlen(why) - 1] == '?';
    const char *sentence = kl__format(&call->arena, "line %" PRIu64 " of %s: %s%s Nothing was submitted", lines->number,
                                      lines->name, why, asks ? "" : ".");
    kl__complain_of(KL_EINVAL, KL_EXIT_FAILURE, sentence ? sentence : why);
    return KL_EXIT_FAILURE;
}

/* All tasks of the file, or none: a job is submitted whole. KL_EXIT_OK, or it has complained. */
static int collect(kl__call *call, kl__lines *lines, const kl_put *base, struct collection *collection)
{
    char why[KL_LINE_ERROR_BYTES];
    int64_t now_ms = kl__wall_ms();
    kl_bytes line;
    int more;
    while ((more = kl__lines_next(lines, &line)) > 0) {
        if (collection->count == KL_JOB_TASKS_MAX) {
            kl__complain("%s has more than %d tasks; submit several jobs", lines->name, KL_JOB_TASKS_MAX);
            return KL_EXIT_USAGE;
        }
        if (collection->count == collection->room && !grow(collection))
            return KL_EXIT_AGAIN;
        kl_put *task = &collection->tasks[collection->count];
        *task = *base;
        if (!kl__task_read(line, now_ms, &call->arena, task, why)) {
            return refuse_line(call, lines, why);
        }
        collection->count++;
    }
    return more == 0 ? KL_EXIT_OK : KL_EXIT_FAILURE;
}

static int submit(kl__call *call, kl_queue *queue, const job_opts *opts, const struct collection *collection)
{
    static const kl__column columns[] = {{"job", 0}, {"queue", 0}, {"tasks", 0}, {"replayed", 0}, {NULL, 0}};
    char id[KL_ID_TEXT_BYTES];
    int64_t retry_ms = 0;
    kl_job_answer answer;
    kl_job_spec spec = {
        .size = sizeof spec,
        .name = opts->name,
        .tasks = collection->tasks,
        .count = collection->count,
        .due_ms = opts->at_ms > 0 ? opts->at_ms : 0,
        .delay_ms = opts->at_ms < 0 ? -opts->at_ms : opts->in_ms,
        .keep_ms = opts->keep_ms,
        .scope = opts->scope,
        .idempotency_key = kl_str(opts->idempotency_key),
    };
    kl_rc rc = kl_job_submit(queue, &spec, &answer, &retry_ms);
    if (rc != KL_OK)
        return kl__fail_given(rc);
    kl_id_print(&answer.job, id);
    int status = kl__out_done(call, columns,
                              (kl__cell[]){kl__cell_id(&answer.job), kl__cell_text(opts->queue),
                                           kl__cell_number((int64_t)answer.tasks), kl__cell_flag(answer.replayed)},
                              "%s", id);
    if (answer.replayed)
        kl__out_note(call, "it was submitted before, and nothing was stored");
    else if (isatty(STDERR_FILENO))
        kl__out_note(call, "%" PRIu64 " task%s", answer.tasks,
                     answer.tasks == 1 ? " was submitted" : "s were submitted");
    return status;
}

static int run_submit(kl__call *call)
{
    const job_opts *opts = call->values;
    struct collection collection = {0};
    kl__lines lines;
    kl_put base;
    kl_queue *queue;
    if (opts->in_ms && opts->at_ms) {
        kl__complain("--in and --at both say when; keep one of the two");
        return KL_EXIT_USAGE;
    }
    if (!kl__task_fill(&opts->task, &call->arena, &base) || !kl__lines_open(&lines, opts->file ? opts->file : "-"))
        return KL_EXIT_USAGE;
    int status = collect(call, &lines, &base, &collection);
    kl__lines_close(&lines);
    if (status == KL_EXIT_OK)
        status = kl__call_open(call, opts->queue, &queue);
    if (status == KL_EXIT_OK)
        status = submit(call, queue, opts, &collection);
    free(collection.tasks);
    return status;
}

/* ---- ls and show ---- */

static const kl__column columns_of_job[] = {
    {"job", KL_COLUMN_WHOLE},       {"name", 0},
    {"state", KL_COLUMN_STATE},     {"tasks", KL_COLUMN_RIGHT},
    {"done", KL_COLUMN_RIGHT},      {"dead", KL_COLUMN_RIGHT},
    {"cancelled", KL_COLUMN_RIGHT}, {"waiting", KL_COLUMN_RIGHT},
    {"run", KL_COLUMN_RIGHT},       {"created", KL_COLUMN_WHOLE},
    {"due", KL_COLUMN_WHOLE},       {NULL, 0},
};

enum { JOB_COLUMNS = 11 };

static const char *state_name(kl_job_state state)
{
    static const char *const names[] = {"running", "finished", "cancelled"};
    return names[state <= KL_JOB_CANCELLED ? state : 0];
}

static void fill_cells(const kl_job_info *info, kl__cell cells[JOB_COLUMNS])
{
    const kl__cell filled[JOB_COLUMNS] = {
        kl__cell_id(&info->id),
        kl__cell_bytes_or_none(kl_str(info->name)),
        kl__cell_text(state_name(info->state)),
        kl__cell_number((int64_t)info->tasks),
        kl__cell_number((int64_t)info->done),
        kl__cell_number((int64_t)info->dead),
        kl__cell_number((int64_t)info->cancelled),
        kl__cell_number((int64_t)info->waiting),
        kl__cell_number((int64_t)info->run),
        kl__cell_time(info->created_ms),
        kl__cell_time(info->due_ms),
    };
    memcpy(cells, filled, sizeof filled);
}

static int run_ls(kl__call *call)
{
    const job_opts *opts = call->values;
    kl_job_info jobs[JOBS_PAGE];
    kl__cell cells[JOB_COLUMNS];
    kl_task_id after = {{0}};
    int64_t limit = opts->limit ? opts->limit : KL_LIST_STANDARD, listed = 0;
    kl_queue *queue;
    kl__out out;
    int status = kl__call_find(call, opts->queue, &queue);
    if (status != KL_EXIT_OK)
        return status;
    kl_rc rc = KL_OK;
    size_t count = JOBS_PAGE, max = JOBS_PAGE;
    kl__out_begin(&out, call, columns_of_job);
    while (rc == KL_OK && count == max && listed < limit) {
        kl_arena arena = {0};
        max = limit - listed < JOBS_PAGE ? (size_t)(limit - listed) : JOBS_PAGE;
        rc = kl_job_list(queue, listed ? &after : NULL, max, &arena, jobs, &count);
        for (size_t i = 0; rc == KL_OK && i < count; i++, listed++) {
            fill_cells(&jobs[i], cells);
            kl__out_row(&out, cells);
            after = jobs[i].id;
        }
        kl_arena_free(&arena);
    }
    status = kl__out_end(&out);
    if (rc == KL_OK && listed == limit && count == max) {
        rc = kl_job_list(queue, &after, 1, &call->arena, jobs, &count);
        if (rc == KL_OK && count > 0)
            kl__tell_more(call, limit);
    }
    return rc == KL_OK ? status : kl__fail_call(rc);
}

/* Finds the queue and reads the job's id. */
static int begin(kl__call *call, kl_queue **ret_queue, kl_task_id *ret_id)
{
    const job_opts *opts = call->values;
    if (!kl__id_read("the job", opts->id, ret_id))
        return KL_EXIT_USAGE;
    return kl__call_find(call, opts->queue, ret_queue);
}

static int run_show(kl__call *call)
{
    kl_queue *queue;
    kl_task_id id;
    kl_job_info info;
    kl__cell cells[JOB_COLUMNS];
    int status = begin(call, &queue, &id);
    if (status != KL_EXIT_OK)
        return status;
    kl_rc rc = kl_job_show(queue, &id, &call->arena, &info);
    if (rc != KL_OK)
        return kl__fail_call(rc);
    fill_cells(&info, cells);
    return kl__out_thing(call, columns_of_job, cells);
}

/* ---- results ---- */

static int run_results(kl__call *call)
{
    const job_opts *opts = call->values;
    kl_found found[KL_LIST_PAGE];
    char cursor[KL_JOB_CURSOR_MAX + 1];
    int64_t limit = opts->limit ? opts->limit : KL_LIST_STANDARD, listed = 0;
    kl_queue *queue;
    kl_task_id id;
    kl__out out;
    if (opts->after && strlen(opts->after) > KL_JOB_CURSOR_MAX) {
        kl__complain("--after is too long for a cursor; give it what the last call printed, or a task's id");
        return KL_EXIT_USAGE;
    }
    int status = begin(call, &queue, &id);
    if (status != KL_EXIT_OK)
        return status;
    kl_rc rc;
    snprintf(cursor, sizeof cursor, "%s", opts->after ? opts->after : "");
    kl__out_begin(&out, call, kl__finished_columns);
    do {
        size_t count, max = limit - listed < KL_LIST_PAGE ? (size_t)(limit - listed) : KL_LIST_PAGE;
        kl_bytes next = {0};
        kl_arena arena = {0};
        rc = kl_job_results(queue, &id, kl_str(cursor), max, &arena, found, &count, &next, NULL);
        for (size_t i = 0; rc == KL_OK && i < count; i++, listed++)
            kl__task_row(&out, &found[i], NULL, KL_WHY_IDLE);
        if (rc == KL_OK)
            snprintf(cursor, sizeof cursor, "%.*s", (int)next.len, next.len ? (const char *)next.data : "");
        kl_arena_free(&arena);
    } while (rc == KL_OK && *cursor && listed < limit);
    status = kl__out_end(&out);
    fflush(stdout);
    if (rc == KL_OK && *cursor)
        fprintf(stderr,
                kl__call_json(call) ? "{\"after\":\"%s\"}\n" : "keyline: there are more; go on with --after %s\n",
                cursor);
    return rc == KL_OK ? status : kl__fail_given(rc);
}

/* ---- rerun, cancel, rm ---- */

static int say_done(kl__call *call, const char *done, int64_t tasks)
{
    static const kl__column columns[] = {{"job", 0}, {"done", 0}, {"tasks", 0}, {NULL, 0}};
    const job_opts *opts = call->values;
    kl__cell cells[] = {kl__cell_text(opts->id), kl__cell_text(done),
                        tasks < 0 ? kl__cell_none() : kl__cell_number(tasks)};
    if (tasks < 0)
        return kl__out_done(call, columns, cells, "job %s %s", opts->id, done);
    return kl__out_done(call, columns, cells, "job %s %s: %" PRId64 " task%s", opts->id, done, tasks,
                        kl__plural((uint64_t)tasks));
}

static int run_rerun(kl__call *call)
{
    const job_opts *opts = call->values;
    kl_queue *queue;
    kl_task_id id;
    uint64_t count;
    int status = begin(call, &queue, &id);
    if (status != KL_EXIT_OK)
        return status;
    kl_rc rc = kl_job_rerun(queue, &id, opts->failed, &count);
    if (rc != KL_OK)
        return kl__fail_call(rc);
    return say_done(call, count == 0 && opts->failed ? "has nothing that failed" : "runs again", (int64_t)count);
}

static int act(kl__call *call, kl_rc (*action)(kl_queue *queue, const kl_task_id *job), const char *done)
{
    kl_queue *queue;
    kl_task_id id;
    int status = begin(call, &queue, &id);
    if (status != KL_EXIT_OK)
        return status;
    kl_rc rc = action(queue, &id);
    return rc == KL_OK ? say_done(call, done, -1) : kl__fail_call(rc);
}

static int run_cancel(kl__call *call) { return act(call, kl_job_cancel, "cancelled"); }
static int run_rm(kl__call *call) { return act(call, kl_job_remove, "removed"); }

/* ---- Tables ---- */

static const kl__argument queue_argument[] = {
    {"QUEUE", offsetof(job_opts, queue), KL_NEEDED, "the queue"},
    {NULL, 0, 0, NULL},
};

static const kl__argument id_arguments[] = {
    {"QUEUE", offsetof(job_opts, queue), KL_NEEDED, "the queue"},
    {"ID", offsetof(job_opts, id), KL_NEEDED, "the job's id"},
    {NULL, 0, 0, NULL},
};

static const kl__option submit_options[] = {
    {"--file", "FILE", "the tasks, a JSON object on each line, as for push; - is the standard input (-)",
     offsetof(job_opts, file), 0, 0},
    {"--name", "NAME", "a name for people", offsetof(job_opts, name), 0, 0},
    {"--idempotency-key", "TEXT", "a repeat with the same one gets the first answer",
     offsetof(job_opts, idempotency_key), 0, 0},
    {"--scope", "TEXT", "who asks, so that two may use one idempotency key", offsetof(job_opts, scope), 0, 0},
    {"--in", "DURATION", "start no task before so long from now", offsetof(job_opts, in_ms), 1, INT64_C(315360000000)},
    {"--at", "TIME", "start no task before this time", offsetof(job_opts, at_ms), KL_TIME_AS_SAID, 0},
    {"--keep", "DURATION", "how long it and its finished tasks are kept (7d)", offsetof(job_opts, keep_ms), 1,
     INT64_C(31536000000)},
    KL__TASK_OPTIONS(job_opts),
    {NULL, NULL, NULL, 0, 0, 0},
};

static const kl__option ls_options[] = {
    {"--limit", "N", "no more than so many (100)", offsetof(job_opts, limit), 1, KL_LIST_MAX},
    {NULL, NULL, NULL, 0, 0, 0},
};

static const kl__option results_options[] = {
    {"--limit", "N", "no more than so many (100)", offsetof(job_opts, limit), 1, KL_LIST_MAX},
    {"--after", "CURSOR", "go on where the last call ended, or behind this task's id", offsetof(job_opts, after), 0, 0},
    {NULL, NULL, NULL, 0, 0, 0},
};

static const kl__option rerun_options[] = {
    {"--failed", NULL, "only tasks that are dead or cancelled", offsetof(job_opts, failed), 0, 0},
    {NULL, NULL, NULL, 0, 0, 0},
};

#define JOB_COMMAND(variable, name_, summary_, about_, arguments_, options_, run_)                                     \
    static const kl__command variable = {.name = (name_),                                                              \
                                         .summary = (summary_),                                                        \
                                         .about = (about_),                                                            \
                                         .arguments = (arguments_),                                                    \
                                         .options = (options_),                                                        \
                                         .values_size = sizeof(job_opts),                                              \
                                         .takes = KL_TAKES_JSON | KL_TAKES_STORE,                                      \
                                         .run = (run_)}

JOB_COMMAND(submit_it, "submit", "submit many tasks as one job",
            "Submits the tasks of a file as one job, whole or not at all, and prints its id.\n"
            "\n"
            "  keyline job submit invoices --file tasks.ndjson --idempotency-key invoices-2026-11\n",
            queue_argument, submit_options, run_submit);
JOB_COMMAND(ls, "ls", "list the jobs of a queue", "Lists jobs with their progress.\n", queue_argument, ls_options,
            run_ls);
JOB_COMMAND(show, "show", "show a job's progress", "Shows a job's progress.\n", id_arguments, NULL, run_show);
JOB_COMMAND(results, "results", "list a job's finished tasks",
            "Lists a job's finished tasks in the order of their ids. Where there are more than --limit,\n"
            "standard error tells the cursor to go on from; with --json as {\"after\": \"...\"} on a line of\n"
            "its own.\n",
            id_arguments, results_options, run_results);
JOB_COMMAND(rerun, "rerun", "run a job's tasks again",
            "Puts the job's finished tasks again, in the order of their ids; the old results are forgotten.\n"
            "A task that ran again before has a later id than those that did not, and comes behind them.\n",
            id_arguments, rerun_options, run_rerun);
JOB_COMMAND(cancel, "cancel", "start no more of a job's tasks",
            "Lets none of the job's waiting tasks be started. Running ones go on.\n", id_arguments, NULL, run_cancel);
JOB_COMMAND(rm, "rm", "remove a job with all it owns",
            "Removes a job with its results and the answer kept for repeats. Its waiting tasks are ended,\n"
            "delayed ones too. Where a worker does not answer they are not started either, and end when\n"
            "their turn comes; until then they are counted, and `ls` and `show` say that their job is\n"
            "removed. Tasks that run meanwhile go on. Nothing is kept of any of them.\n",
            id_arguments, NULL, run_rm);

static const kl__command *const subs[] = {&submit_it, &ls, &show, &results, &rerun, &cancel, &rm, NULL};

const kl__command kl__job_command = {
    .name = "job",
    .summary = "submit, list, show, rerun, cancel and remove jobs",
    .about = "Manages jobs: many tasks submitted together.\n",
    .subs = subs,
};
