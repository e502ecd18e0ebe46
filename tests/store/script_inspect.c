/* script_inspect.c - looks at a damaged store: it may hold things back, but what it shows must be right. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "script.h"
#include "store/calls.h"

enum { PAGE = 50 };

struct look {
    struct subject *subject;
    const struct script *script;
    const struct model *model;
    struct inspection found;
};

static bool wrong(struct look *look, const char *format, ...) KL_PRINTF(2, 3);

static bool wrong(struct look *look, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(look->subject->why, sizeof look->subject->why, format, arguments);
    va_end(arguments);
    return false;
}

/* The only failure that a damaged store may answer with. */
static bool refused(struct look *look, const char *name, kl_rc rc)
{
    if (rc != KL_EDAMAGED)
        return wrong(look, "%s returned %s: %s", name, kl_rc_name(rc), kl_error_text());
    look->found.refused++;
    return true;
}

static bool same(kl_bytes a, kl_bytes b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}

static const struct model_task *known_task(const struct look *look, uint32_t number)
{
    static const struct model_task none;
    return number < look->model->task_count ? &look->model->tasks[number] : &none;
}

/* ---- Tasks ---- */

static bool check_bytes(struct look *look, uint32_t number, const kl_task *task)
{
    const kl_entry *made = &look->script->tasks[number].entry, *entry = &task->entry;
    bool right = memcmp(&entry->place, &made->place, sizeof made->place) == 0 &&
                 kl_id_compare(&entry->id, &made->id) == 0 && memcmp(&entry->job, &made->job, sizeof made->job) == 0 &&
                 entry->due_ms == made->due_ms && entry->priority == made->priority && entry->group == made->group &&
                 same(entry->key, made->key) && same(entry->kind, made->kind) && same(entry->headers, made->headers) &&
                 same(entry->payload, made->payload);
    return right ? true : wrong(look, "task %u is shown with bytes that were never appended", number);
}

static bool check_task(struct look *look, uint32_t number, const kl_task *task)
{
    const struct model_task *known = known_task(look, number);
    const struct script_item *items = look->script->items;
    if (task->state != known->state)
        return wrong(look, "task %u is shown in state %d instead of %d", number, (int)task->state, known->state);
    if (!check_bytes(look, number, task))
        return false;
    bool right = task->attempts == known->attempts;
    if (known->state == KL_TASK_WAITING)
        right = right && task->not_before_ms == known->not_before_ms &&
                (!known->position || task->position == known->position);
    else
        right = right && task->finished_ms == known->finished_ms &&
                same(task->error, known->error == NO_ITEM ? kl_str("") : items[known->error].error) &&
                same(task->result, known->result == NO_ITEM ? kl_str("") : items[known->result].result);
    return right ? true : wrong(look, "task %u is shown with a fate that is not its own", number);
}

static bool read_one(struct look *look, uint32_t number)
{
    const kl_entry *made = &look->script->tasks[number].entry;
    const struct model_task *known = known_task(look, number);
    kl_arena arena = {0};
    kl_task task;
    size_t count = 0;
    bool ok = true;
    kl_rc rc = read_some(look->subject->store, made->place, &made->id, 1, &arena, &task, &count);
    if (rc != KL_OK)
        ok = refused(look, "read", rc);
    else if (task.state == KL_TASK_UNKNOWN)
        look->found.missing += known->state != KL_TASK_UNKNOWN && !known->maybe_gone;
    else
        ok = check_task(look, number, &task);
    kl_arena_free(&arena);
    return ok;
}

/* ---- What scan, find and list show ---- */

static bool check_stub(struct look *look, int32_t line, const kl_stub *stub)
{
    if (script_is_nobody(&stub->id))
        return true; /* the look before this one was interrupted */
    uint32_t number = script_find(look->script, &stub->id);
    if (number == SCRIPT_TASKS_MAX)
        return wrong(look, "a task waits that was never made");
    const struct model_task *known = known_task(look, number);
    if (known->state != KL_TASK_WAITING || known->tried != (line == KL_LINE_RETRY) ||
        known->attempts != stub->attempts || known->not_before_ms != stub->due_ms ||
        stub->group != look->script->tasks[number].entry.group ||
        (known->position && known->position != stub->position))
        return wrong(look, "task %u is shown in line %d, and should not be, or not so", number, line);
    return true;
}

static bool scan_line(struct look *look, kl_place place, int32_t line)
{
    kl_stub stubs[PAGE], last;
    size_t count = PAGE;
    bool first = true;
    while (count == PAGE) {
        kl_scan scan = {.place = place, .line = line, .until_ms = KL_ID_MS_MAX, .max = PAGE};
        scan.after = first ? NULL : &last;
        kl_rc rc = scan_one(look->subject->store, &scan, stubs, &count);
        if (rc != KL_OK)
            return refused(look, "scan", rc);
        for (size_t i = 0; i < count; i++)
            if (!check_stub(look, line, &stubs[i]))
                return false;
        first = false;
        if (count)
            last = stubs[count - 1];
    }
    return true;
}

static bool find_all(struct look *look)
{
    kl_task tasks[PAGE];
    size_t count = 0;
    kl_arena arena = {0};
    kl_find find = {.max = PAGE};
    kl_rc rc = kl_store_find(look->subject->store, &find, &arena, tasks, &count);
    bool ok = rc == KL_OK ? true : refused(look, "find", rc);
    for (size_t i = 0; ok && rc == KL_OK && i < count; i++) {
        uint32_t number = script_find(look->script, &tasks[i].entry.id);
        ok = number == SCRIPT_TASKS_MAX ? wrong(look, "a task is found that was never made")
                                        : check_task(look, number, &tasks[i]);
    }
    kl_arena_free(&arena);
    return ok;
}

static bool check_record(struct look *look, const kl_record *record, bool seen[SCRIPT_RECORDS])
{
    for (uint32_t i = 0; i < SCRIPT_RECORDS; i++) {
        const struct model_record *known = &look->model->records[i];
        if (!same(record->name, script_record_name(i)))
            continue;
        seen[i] = true;
        bool right = model_record_there(look->model, i) && same(record->value, known->value) &&
                     record->expires_ms == known->expires_ms && (!known->version || record->version == known->version);
        return right ? true : wrong(look, "record %u is shown, and should not be, or not so", i);
    }
    return wrong(look, "a record is listed that was never made");
}

static bool list_records(struct look *look)
{
    kl_record records[SCRIPT_RECORDS + 1];
    bool seen[SCRIPT_RECORDS] = {false};
    size_t count = 0;
    kl_arena arena = {0};
    kl_rc rc = kl_store_list(look->subject->store, kl_str(""), kl_str(""), SCRIPT_RECORDS + 1, &arena, records, &count);
    bool ok = rc == KL_OK ? true : refused(look, "list", rc);
    for (size_t i = 0; ok && rc == KL_OK && i < count; i++)
        ok = check_record(look, &records[i], seen);
    for (uint32_t i = 0; i < SCRIPT_RECORDS; i++)
        look->found.missing += rc == KL_OK && !seen[i] && model_record_there(look->model, i);
    kl_arena_free(&arena);
    return ok;
}

bool subject_inspect(struct subject *subject, const struct model *model, struct inspection *ret_found)
{
    struct look look = {.subject = subject, .script = subject->script, .model = model};
    bool ok = true;
    subject->why[0] = '\0';
    for (uint32_t place = 0; ok && place < SCRIPT_PLACES; place++)
        for (int32_t line = KL_PRIORITY_MIN; ok && line <= KL_LINE_RETRY; line++)
            ok = !model->partitions[place / SCRIPT_SHARDS] || scan_line(&look, subject->script->places[place], line);
    for (uint32_t i = 0; ok && i < subject->script->task_count; i++)
        ok = !model->partitions[subject->script->tasks[i].place / SCRIPT_SHARDS] || read_one(&look, i);
    ok = ok && find_all(&look) && list_records(&look);
    *ret_found = look.found;
    return ok;
}
