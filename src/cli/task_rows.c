/* task_rows.c - see task_rows.h. */
#include "cli/task_rows.h"

#include <inttypes.h>
#include <string.h>

#include "base/base.h"
#include "cli/config.h"
#include "queue/inside.h"
#include "queue/json.h"
#include "work/why.h"

const kl__column kl__waiting_columns[] = {
    {"id", KL_COLUMN_WHOLE},
    {"state", KL_COLUMN_STATE},
    {"key", 0},
    {"kind", 0},
    {"priority", KL_COLUMN_RIGHT},
    {"attempts", KL_COLUMN_RIGHT},
    {"due", KL_COLUMN_WHOLE},
    {"finished", KL_COLUMN_MACHINE},
    {"error", KL_COLUMN_MACHINE},
    {"payload", 0},
    {"partition", KL_COLUMN_MACHINE},
    {"result", KL_COLUMN_MACHINE},
    {"job", KL_COLUMN_MACHINE},
    {"job_state", KL_COLUMN_MACHINE},
    {"why", KL_COLUMN_MACHINE},
    {NULL, 0},
};

const kl__column kl__finished_columns[] = {
    {"id", KL_COLUMN_WHOLE},
    {"state", KL_COLUMN_STATE},
    {"key", 0},
    {"kind", 0},
    {"priority", KL_COLUMN_MACHINE},
    {"attempts", KL_COLUMN_RIGHT},
    {"due", KL_COLUMN_MACHINE},
    {"finished", KL_COLUMN_WHOLE},
    {"error", 0},
    {"payload", 0},
    {"partition", KL_COLUMN_MACHINE},
    {"result", 0},
    {"job", KL_COLUMN_MACHINE},
    {"job_state", KL_COLUMN_MACHINE},
    {"why", KL_COLUMN_MACHINE},
    {NULL, 0},
};

/* ---- Tasks of jobs that are no more ---- */

static bool waits_for_job(const kl_found *found)
{
    static const kl_task_id none;
    return found->task.state == KL_TASK_WAITING && memcmp(&found->task.entry.job, &none, sizeof none) != 0;
}

/* "cancelled" or "removed": the task waits, and will not be started because its job is so. Else NULL. */
static const char *job_state(const kl_found *found, const kl__cancelled *mark)
{
    if (!waits_for_job(found) || !mark || mark->run < found->extra.job_run)
        return NULL;
    return mark->removed ? "removed" : "cancelled";
}

static kl__cell state_cell(kl__out *out, const kl_found *found, const char *job, kl_why why)
{
    const char *state = kl__task_state_name(&found->task), *more = NULL;
    if (job)
        more = kl__format(&out->arena, "job %s", job);
    else if (why == KL_WHY_KIND)
        more = "no worker for its kind";
    else if (why == KL_WHY_HALTED || why == KL_WHY_PAUSED)
        more = kl__why_name(why);
    const char *text = more && !out->json ? kl__format(&out->arena, "%s, %s", state, more) : NULL;
    return kl__cell_text(text ? text : state);
}

static kl__cell why_cell(kl_why why)
{
    bool told = why == KL_WHY_KIND || why == KL_WHY_NO_WORKER || why == KL_WHY_HALTED || why == KL_WHY_PAUSED ||
                why == KL_WHY_QUEUE_PAUSED;
    return told ? kl__cell_text(kl__why_name(why)) : kl__cell_none();
}

static kl__cell text_or_none(const char *text) { return text ? kl__cell_text(text) : kl__cell_none(); }

void kl__task_row(kl__out *out, const kl_found *found, const kl__cancelled_set *marks, kl_why why)
{
    const kl_task *task = &found->task;
    const kl_entry *entry = &task->entry;
    const char *job = job_state(found, marks ? kl__cancelled_find(marks, &entry->job) : NULL);
    kl__out_row(out, (kl__cell[]){kl__cell_id(&entry->id), state_cell(out, found, job, why),
                                  kl__cell_bytes_or_none(entry->key), kl__cell_bytes_or_none(entry->kind),
                                  kl__cell_number(entry->priority), kl__cell_number(task->attempts),
                                  kl__cell_time(task->not_before_ms), kl__cell_time(task->finished_ms),
                                  kl__cell_bytes_or_none(task->error), kl__cell_bytes(entry->payload),
                                  kl__cell_text(found->partition), kl__cell_bytes_or_none(task->result),
                                  kl__cell_id_or_none(&entry->job), text_or_none(job), why_cell(why)});
}

/* ---- One task ---- */

static const kl__column thing_columns[] = {
    {"id", 0},       {"queue", 0},    {"partition", 0},    {"state", KL_COLUMN_STATE}, {"key", 0},    {"kind", 0},
    {"priority", 0}, {"attempts", 0}, {"attempts_max", 0}, {"timeout_ms", 0},          {"made", 0},   {"due", 0},
    {"why", 0},      {"finished", 0}, {"job", 0},          {"job_state", 0},           {"origin", 0}, {"unique", 0},
    {"group", 0},    {"headers", 0},  {"tags", 0},         {"traceparent", 0},         {"error", 0},  {"result", 0},
    {"payload", 0},  {NULL, 0},
};

static kl__cell headers_cell(const kl_task_extra *extra)
{
    if (extra->header_count == 0)
        return kl__cell_none();
    json_t *headers = kl__json_array();
    for (size_t i = 0; i < extra->header_count && headers; i++) {
        json_t *header = kl__json_object();
        bool made = kl__json_set_bytes(header, "name", extra->headers[i].name) &&
                    kl__json_set_bytes(header, "value", extra->headers[i].value);
        if (kl__json_append(headers, header) && made)
            continue;
        json_decref(headers);
        headers = NULL;
    }
    return kl__cell_json(headers);
}

static kl__cell tags_cell(const kl_task_extra *extra)
{
    if (extra->tag_count == 0)
        return kl__cell_none();
    json_t *tags = kl__json_array();
    for (size_t i = 0; i < extra->tag_count && tags; i++) {
        if (kl__json_append(tags, kl__json_bytes_value(extra->tags[i])))
            continue;
        json_decref(tags);
        tags = NULL;
    }
    return kl__cell_json(tags);
}

static kl__cell number_or_none(int64_t number) { return number ? kl__cell_number(number) : kl__cell_none(); }

static kl__cell duration_or_none(int64_t ms) { return ms ? kl__cell_duration(ms) : kl__cell_none(); }

/* A sentence that says what to do; NULL: nothing is known. */
static const char *reason_of(kl_why why)
{
    switch (why) {
    case KL_WHY_PAUSED:
        return "its key is paused; `key resume` lets it go on";
    case KL_WHY_HALTED:
        return "it failed for good and halts its key; `key retry`, `key skip` or `key drain` lets that go on";
    case KL_WHY_RETRYING:
        return "it failed and is tried again when it is due; `retry` tries it now";
    case KL_WHY_DELAYED:
        return "it is not due yet";
    case KL_WHY_QUEUE_PAUSED:
        return "the queue is paused; `queue resume` lets it go on";
    case KL_WHY_NO_WORKER:
        return "no worker owns its shard; start one";
    case KL_WHY_KIND:
        return "no worker has a handler for its kind; start one that has";
    case KL_WHY_PARTITION: /* the records do not tell which tasks run */
        return "unless it runs: its worker runs as many tasks of its partition as it may at a time; wait, or raise "
               "--per-partition";
    default:
        return NULL;
    }
}

/* Others of its key before it are told where nothing holds it up that somebody must act on. */
static kl_rc find_reason(kl__call *call, kl_queue *queue, const kl_found *found, const char **ret_reason)
{
    static const kl_task_id none;
    char text[KL_ID_TEXT_BYTES];
    kl_task_id first;
    kl_why why;
    kl_rc rc = kl__tasks_why(queue, found, 1, &why);
    if (rc == KL_OK)
        rc = kl__task_behind(queue, found, &first);
    if (rc != KL_OK)
        return rc;
    *ret_reason = reason_of(why);
    bool free = why == KL_WHY_READY || why == KL_WHY_KIND || why == KL_WHY_PARTITION;
    if (free && memcmp(&first, &none, sizeof none) != 0) {
        kl_id_print(&first, text);
        *ret_reason =
            kl__format(&call->arena, "tasks of its key come before it, first %s; `key show` says why that waits", text);
    }
    return KL_OK;
}

int kl__task_thing(kl__call *call, kl_queue *queue, const kl_found *found)
{
    const char *reason = NULL;
    kl__cancelled mark = {.run = 0};
    kl_rc rc = waits_for_job(found) ? kl__cancel_read(queue, &found->task.entry.job, &mark) : KL_OK;
    if (rc == KL_OK)
        rc = find_reason(call, queue, found, &reason);
    if (rc != KL_OK)
        return kl__fail_call(rc);
    const kl_task *task = &found->task;
    const kl_entry *entry = &task->entry;
    const kl_task_extra *extra = &found->extra;
    return kl__out_thing(call, thing_columns,
                         (kl__cell[]){kl__cell_id(&entry->id),
                                      kl__cell_text(found->queue),
                                      kl__cell_text(found->partition),
                                      kl__cell_text(kl__task_state_name(task)),
                                      kl__cell_bytes_or_none(entry->key),
                                      kl__cell_bytes_or_none(entry->kind),
                                      kl__cell_number(entry->priority),
                                      kl__cell_number(task->attempts),
                                      number_or_none(extra->attempts_max),
                                      duration_or_none(extra->timeout_ms),
                                      kl__cell_time(found->made_ms),
                                      kl__cell_time(task->not_before_ms),
                                      text_or_none(reason),
                                      kl__cell_time(task->finished_ms),
                                      kl__cell_id_or_none(&entry->job),
                                      text_or_none(job_state(found, mark.run ? &mark : NULL)),
                                      kl__cell_id_or_none(&extra->origin),
                                      kl__cell_bytes_or_none(extra->unique),
                                      kl__cell_bytes_or_none(extra->group),
                                      headers_cell(extra),
                                      tags_cell(extra),
                                      kl__cell_bytes_or_none(extra->traceparent),
                                      kl__cell_bytes_or_none(task->error),
                                      kl__cell_bytes_or_none(task->result),
                                      kl__cell_bytes(entry->payload)});
}

/* ---- Choosing ---- */

bool kl__id_read(const char *what, const char *text, kl_task_id *ret_id)
{
    if (kl_id_parse(kl_str(text), ret_id) == KL_OK)
        return true;
    kl__complain("%s is '%s', which is no id: %s", what, text, kl_error_text());
    return false;
}

bool kl__filter_fill(const kl__filter_opts *opts, kl_finished *ret_which)
{
    *ret_which = (kl_finished){.key = kl_str(opts->key),
                               .kind = kl_str(opts->kind),
                               .words = kl_str(opts->words),
                               .from_ms = opts->from_ms,
                               .until_ms = opts->until_ms};
    return !opts->job || kl__id_read("--job", opts->job, &ret_which->job);
}

bool kl__filter_is_set(const kl__filter_opts *opts)
{
    return opts->key || opts->kind || opts->words || opts->job || opts->from_ms || opts->until_ms;
}

void kl__tell_more(const kl__call *call, int64_t limit)
{
    fflush(stdout);
    if (kl__call_json(call))
        fprintf(stderr, "{\"more\": true, \"limit\": %" PRId64 "}\n", limit);
    else
        fprintf(stderr, "keyline: there are more than these %" PRId64 "; see more of them with --limit\n", limit);
}

/* ---- Listing ---- */

/* Reads which jobs are cancelled when the first task comes for which that matters. */
static kl_rc read_marks(kl_queue *queue, const kl_found *found, size_t count, bool *read, kl__cancelled_set *marks)
{
    bool wanted = false;
    for (size_t i = 0; i < count && !*read; i++)
        wanted |= waits_for_job(&found[i]);
    *read |= wanted;
    return wanted ? kl__jobs_cancelled(queue, marks) : KL_OK;
}

/* Whether a task stands behind the cursor. A page may be empty and not the last. */
static kl_rc look_behind(kl__page_fn *page, void *ctx, kl_bytes cursor, kl_arena arenas[2], size_t pages,
                         bool *ret_more)
{
    kl_found found;
    size_t count = 0;
    kl_rc rc = KL_OK;
    while (rc == KL_OK && cursor.len && count == 0) {
        kl_arena *arena = &arenas[pages++ % 2];
        kl_arena_reset(arena);
        rc = page(ctx, 1, &cursor, arena, &found, &count);
    }
    *ret_more = rc == KL_OK && count > 0;
    return rc;
}

int kl__list_tasks(kl__call *call, kl_queue *queue, const kl__column *columns, int64_t limit, kl__page_fn *page,
                   void *ctx)
{
    kl_found found[KL_LIST_PAGE];
    kl_why why[KL_LIST_PAGE];
    kl_arena arenas[2] = {{0}, {0}}; /* the cursor that is asked with lies in the one that is not written to */
    kl_bytes cursor = {0};
    kl__out out;
    kl_rc rc;
    int64_t listed = 0;
    size_t pages = 0;
    bool marks_read = false, has_more = false;
    kl__cancelled_set marks = {0};
    kl__out_begin(&out, call, columns);
    do {
        size_t count = 0, max = limit - listed < KL_LIST_PAGE ? (size_t)(limit - listed) : KL_LIST_PAGE;
        kl_arena *arena = &arenas[pages++ % 2];
        kl_arena_reset(arena);
        rc = page(ctx, max, &cursor, arena, found, &count);
        if (rc == KL_OK)
            rc = read_marks(queue, found, count, &marks_read, &marks);
        if (rc == KL_OK)
            rc = kl__tasks_why(queue, found, count, why);
        for (size_t i = 0; rc == KL_OK && i < count; i++, listed++)
            kl__task_row(&out, &found[i], &marks, why[i]);
    } while (rc == KL_OK && cursor.len && listed < limit);
    int status = kl__out_end(&out);
    if (rc == KL_OK)
        rc = look_behind(page, ctx, cursor, arenas, pages, &has_more);
    if (has_more)
        kl__tell_more(call, limit);
    kl__cancelled_free(&marks);
    kl_arena_free(&arenas[0]);
    kl_arena_free(&arenas[1]);
    return rc == KL_OK ? status : kl__fail_given(rc);
}

struct finished_list {
    kl_queue *queue;
    kl_finished which;
};

static kl_rc finished_page(void *ctx, size_t max, kl_bytes *cursor, kl_arena *arena, kl_found *ret_found,
                           size_t *ret_count)
{
    struct finished_list *list = ctx;
    list->which.max = max;
    list->which.cursor = *cursor;
    return kl_queue_finished(list->queue, &list->which, arena, ret_found, ret_count, cursor);
}

int kl__finished_list(kl__call *call, kl_queue *queue, const kl_finished *which, int64_t limit)
{
    struct finished_list list = {queue, *which};
    return kl__list_tasks(call, queue, kl__finished_columns, limit, finished_page, &list);
}
