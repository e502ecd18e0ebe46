/* script_view.c - looks at everything a store holds, by every call that shows something, and compares it with models.
 *
 * What does not depend on a model is checked while looking: the bytes of each task, the order of each line, that
 * counts, scan, read, find and results agree, and that nothing is there that was never made. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/hash.h"
#include "base/random.h"
#include "script.h"
#include "store/calls.h"

enum { SCAN_MAX = 97, FIND_MAX = 50, READ_BATCH = 64, UNKNOWN_SAMPLES = 8 };

struct seen_task {
    uint8_t state;
    bool tried;
    uint32_t attempts;
    uint64_t position;
    int64_t not_before_ms, finished_ms;
    kl_bytes error, result; /* in the arena */
};

struct seen_record {
    bool there;
    kl_bytes value;
    uint64_t version;
    int64_t expires_ms;
};

struct view {
    struct subject *subject;
    const struct script *script;
    kl_arena arena;
    uint64_t random;
    bool partitions[SCRIPT_PARTITIONS];
    struct seen_task tasks[SCRIPT_TASKS_MAX];
    struct seen_record records[SCRIPT_RECORDS];
};

static bool wrong(struct view *view, const char *format, ...) KL_PRINTF(2, 3);

static bool wrong(struct view *view, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(view->subject->why, sizeof view->subject->why, format, arguments);
    va_end(arguments);
    return false;
}

/* A call that shows things failed. */
static bool failed(struct view *view, const char *name, kl_rc rc)
{
    return wrong(view, "%s returned %s: %s", name, kl_rc_name(rc), kl_error_text());
}

static bool same(kl_bytes a, kl_bytes b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}

/* ---- Tasks ---- */

static bool check_entry(struct view *view, uint32_t number, const kl_entry *entry)
{
    const kl_entry *made = &view->script->tasks[number].entry;
    const char *what = entry->place.partition != made->place.partition || entry->place.shard != made->place.shard
                           ? "place"
                       : kl_id_compare(&entry->id, &made->id) != 0               ? "id"
                       : memcmp(&entry->job, &made->job, sizeof entry->job) != 0 ? "job"
                       : entry->due_ms != made->due_ms                           ? "due time"
                       : entry->priority != made->priority                       ? "priority"
                       : entry->group != made->group                             ? "group"
                       : !same(entry->key, made->key)                            ? "key"
                       : !same(entry->kind, made->kind)                          ? "kind"
                       : !same(entry->headers, made->headers)                    ? "headers"
                       : !same(entry->payload, made->payload)                    ? "payload"
                                                                                 : NULL;
    return what ? wrong(view, "the %s of task %u is not what was appended", what, number) : true;
}

static uint64_t hash_key(kl_bytes key)
{
    if (key.len == 0)
        return 0;
    uint64_t hash = kl__hash(key, KL_SEED_LANE);
    return hash ? hash : 1;
}

static bool check_stub(struct view *view, uint32_t number, int32_t line, const kl_stub *stub)
{
    const kl_entry *made = &view->script->tasks[number].entry;
    size_t bytes = made->key.len + made->kind.len + made->headers.len + made->payload.len;
    int32_t first = made->due_ms ? (int32_t)KL_LINE_DUE : made->priority;
    if (line != KL_LINE_RETRY && line != first)
        return wrong(view, "task %u stands in line %d instead of %d", number, line, first);
    if (stub->bytes != bytes || stub->priority != made->priority || stub->key_hash != hash_key(made->key) ||
        stub->group != made->group)
        return wrong(view, "the stub of task %u does not fit its task", number);
    if (line == KL_LINE_DUE && stub->due_ms != made->due_ms)
        return wrong(view, "task %u is due at %" PRId64 " instead of %" PRId64, number, stub->due_ms, made->due_ms);
    if (stub->position == 0)
        return wrong(view, "task %u has no position", number);
    return true;
}

static bool see_stub(struct view *view, kl_place place, int32_t line, const kl_stub *stub, const kl_stub *last)
{
    char text[KL_ID_TEXT_BYTES];
    if (script_is_nobody(&stub->id))
        return true; /* the look before this one was interrupted */
    kl_id_print(&stub->id, text);
    uint32_t number = script_find(view->script, &stub->id);
    if (number == SCRIPT_TASKS_MAX)
        return wrong(view, "task %s waits and was never made", text);
    const kl_place *made = &view->script->tasks[number].entry.place;
    if (made->partition != place.partition || made->shard != place.shard)
        return wrong(view, "task %u waits in a place that is not its own", number);
    if (last && (line == KL_LINE_DUE && last->due_ms != stub->due_ms ? last->due_ms > stub->due_ms
                                                                     : last->position >= stub->position))
        return wrong(view, "task %u is shown behind one that follows it", number);
    struct seen_task *task = &view->tasks[number];
    if (task->state != KL_TASK_UNKNOWN)
        return wrong(view, "task %u waits twice", number);
    *task = (struct seen_task){.state = KL_TASK_WAITING,
                               .tried = line == KL_LINE_RETRY,
                               .attempts = stub->attempts,
                               .position = stub->position,
                               .not_before_ms = stub->due_ms};
    return check_stub(view, number, line, stub);
}

static bool see_line(struct view *view, kl_place place, int32_t line, uint64_t *total)
{
    kl_stub stubs[SCAN_MAX], last;
    bool first = true;
    size_t max = 1 + (size_t)kl__random_below(&view->random, SCAN_MAX), count = max;
    while (count == max) {
        kl_scan scan = {
            .place = place, .line = line, .until_ms = KL_ID_MS_MAX, .max = max, .after = first ? NULL : &last};
        kl_rc rc = scan_one(view->subject->store, &scan, stubs, &count);
        if (rc != KL_OK)
            return failed(view, "scan", rc);
        for (size_t i = 0; i < count; i++, first = false) {
            if (!see_stub(view, place, line, &stubs[i], first ? NULL : &last))
                return false;
            last = stubs[i];
        }
        *total += count;
    }
    return true;
}

static bool see_place(struct view *view, kl_place place, kl_counts *sum)
{
    kl_counts counts;
    kl_rc rc = kl_store_counts(view->subject->store, place, NULL, &counts);
    if (rc != KL_OK)
        return failed(view, "counts", rc);
    uint64_t ready = 0, due = 0, retry = 0;
    for (int32_t line = KL_PRIORITY_MIN; line <= KL_PRIORITY_MAX; line++) {
        uint64_t here = 0;
        bool told = counts.priorities >> (line - KL_PRIORITY_MIN) & 1;
        if ((told || kl__random_below(&view->random, 8) == 0) && !see_line(view, place, line, &here))
            return false;
        if (told != (here > 0))
            return wrong(view, "counts say of line %d that it is %s", line, told ? "not empty" : "empty");
        ready += here;
    }
    if (!see_line(view, place, KL_LINE_DUE, &due) || !see_line(view, place, KL_LINE_RETRY, &retry))
        return false;
    if (ready != counts.ready || due != counts.due || retry != counts.retry)
        return wrong(view,
                     "scan shows %" PRIu64 " ready, %" PRIu64 " due, %" PRIu64 " to retry; counts say %" PRIu64
                     ", %" PRIu64 ", %" PRIu64,
                     ready, due, retry, counts.ready, counts.due, counts.retry);
    sum->ready += ready;
    sum->due += due;
    sum->retry += retry;
    return true;
}

/* A task as read, against what scan or find have shown of it. */
static bool check_read(struct view *view, uint32_t number, const kl_task *task)
{
    const struct seen_task *seen = &view->tasks[number];
    if (task->state != seen->state)
        return wrong(view, "task %u is read in state %d, and shown in %d", number, (int)task->state, (int)seen->state);
    if (task->state == KL_TASK_UNKNOWN)
        return true;
    if (!check_entry(view, number, &task->entry))
        return false;
    if (task->attempts != seen->attempts)
        return wrong(view, "task %u is read with %u attempts, and shown with %u", number, task->attempts,
                     seen->attempts);
    if (task->state == KL_TASK_WAITING) {
        if (task->position != seen->position || task->not_before_ms != seen->not_before_ms)
            return wrong(view, "task %u is read with another position or time than shown", number);
        return true;
    }
    if (task->finished_ms != seen->finished_ms || !same(task->error, seen->error) || !same(task->result, seen->result))
        return wrong(view, "finished task %u is read with another end than found", number);
    return true;
}

/* Reads `count` tasks of one place. */
static bool read_tasks(struct view *view, kl_place place, const uint32_t *numbers, size_t count)
{
    kl_task_id ids[READ_BATCH];
    kl_task tasks[READ_BATCH];
    kl_arena arena = {0};
    bool ok = true;
    for (size_t i = 0; i < count; i++)
        ids[i] = view->script->tasks[numbers[i]].entry.id;
    for (size_t done = 0, got = 0; ok && done < count; done += got, got = 0) {
        kl_rc rc = read_some(view->subject->store, place, ids + done, count - done, &arena, tasks, &got);
        for (size_t i = 0; ok && rc == KL_OK && i < got; i++)
            ok = check_read(view, numbers[done + i], &tasks[i]);
        if (ok && rc != KL_OK)
            ok = failed(view, "read", rc);
        else if (ok && got == 0)
            ok = wrong(view, "read stopped at task %u without a reason", numbers[done]);
    }
    kl_arena_free(&arena);
    return ok;
}

/* Everything that is there, and a few that are not. */
static bool read_place(struct view *view, uint32_t place)
{
    uint32_t numbers[READ_BATCH];
    size_t count = 0;
    for (uint32_t i = 0; i < view->script->task_count; i++) {
        if (view->script->tasks[i].place != place)
            continue;
        bool known = view->tasks[i].state != KL_TASK_UNKNOWN;
        if (known || kl__random_below(&view->random, view->script->task_count) < UNKNOWN_SAMPLES)
            numbers[count++] = i;
        if (count == READ_BATCH) {
            if (!read_tasks(view, view->script->places[place], numbers, count))
                return false;
            count = 0;
        }
    }
    return count == 0 || read_tasks(view, view->script->places[place], numbers, count);
}

/* ---- What is finished ---- */

static bool see_finished(struct view *view, const kl_task *task)
{
    char text[KL_ID_TEXT_BYTES];
    kl_id_print(&task->entry.id, text);
    uint32_t number = script_find(view->script, &task->entry.id);
    if (number == SCRIPT_TASKS_MAX)
        return wrong(view, "task %s is found and was never made", text);
    struct seen_task *seen = &view->tasks[number];
    if (seen->state != KL_TASK_UNKNOWN)
        return wrong(view, "task %u is found in state %d, and is shown in %d already", number, (int)task->state,
                     (int)seen->state);
    if (task->state <= KL_TASK_WAITING || task->state > KL_TASK_CANCELLED)
        return wrong(view, "task %u is found in state %d", number, (int)task->state);
    *seen = (struct seen_task){.state = (uint8_t)task->state,
                               .attempts = task->attempts,
                               .finished_ms = task->finished_ms,
                               .error = task->error,
                               .result = task->result};
    return check_entry(view, number, &task->entry);
}

static bool find_all(struct view *view, uint64_t counts[KL_TASK_CANCELLED + 1][SCRIPT_PARTITIONS])
{
    kl_task tasks[FIND_MAX], last;
    size_t max = 5 + (size_t)kl__random_below(&view->random, FIND_MAX - 5), count = max;
    bool first = true;
    while (count == max) {
        kl_find find = {.max = max, .after = first ? NULL : &last};
        kl_rc rc = kl_store_find(view->subject->store, &find, &view->arena, tasks, &count);
        if (rc != KL_OK)
            return failed(view, "find", rc);
        for (size_t i = 0; i < count; i++, first = false) {
            if (!see_finished(view, &tasks[i]))
                return false;
            if (!first && tasks[i].finished_ms > last.finished_ms)
                return wrong(view, "find shows a later task behind an earlier one");
            counts[tasks[i].state][tasks[i].entry.place.partition - 1]++;
            last = tasks[i];
        }
    }
    return true;
}

/* The finished tasks of one job in one place, in order of their ids. */
static bool check_results(struct view *view, uint32_t place, uint32_t job)
{
    kl_task tasks[FIND_MAX];
    kl_arena arena = {0};
    size_t count = 0, expected = 0;
    const kl_task_id *id = &view->script->jobs[job];
    kl_rc rc =
        kl_store_results(view->subject->store, view->script->places[place], id, NULL, FIND_MAX, &arena, tasks, &count);
    bool ok = rc == KL_OK ? true : failed(view, "results", rc);
    for (uint32_t i = 0; i < view->script->task_count; i++)
        expected += view->script->tasks[i].place == place && view->tasks[i].state > KL_TASK_WAITING &&
                    memcmp(&view->script->tasks[i].entry.job, id, sizeof *id) == 0;
    if (ok && rc == KL_OK && count != (expected < FIND_MAX ? expected : FIND_MAX))
        ok = wrong(view, "results shows %zu tasks of a job, find %zu", count, expected);
    for (size_t i = 0; ok && rc == KL_OK && i < count; i++) {
        uint32_t number = script_find(view->script, &tasks[i].entry.id);
        if (number == SCRIPT_TASKS_MAX || memcmp(&tasks[i].entry.job, id, sizeof *id) != 0)
            ok = wrong(view, "results shows a task that is not of its job");
        else if (i > 0 && kl_id_compare(&tasks[i - 1].entry.id, &tasks[i].entry.id) >= 0)
            ok = wrong(view, "results are out of order");
        else
            ok = check_read(view, number, &tasks[i]);
    }
    kl_arena_free(&arena);
    return ok;
}

/* How many of one job's tasks ended in each way, against what find has shown. */
static bool check_job_counts(struct view *view, uint32_t partition, uint32_t job)
{
    kl_counts counts;
    uint64_t ends[KL_TASK_CANCELLED + 1] = {0};
    const kl_task_id *id = &view->script->jobs[job];
    kl_rc rc = kl_store_counts(view->subject->store, (kl_place){partition + 1, KL_ALL_SHARDS}, id, &counts);
    if (rc != KL_OK)
        return failed(view, "counts", rc);
    for (uint32_t i = 0; i < view->script->task_count; i++)
        if (view->script->tasks[i].place / SCRIPT_SHARDS == partition &&
            memcmp(&view->script->tasks[i].entry.job, id, sizeof *id) == 0)
            ends[view->tasks[i].state]++;
    if (counts.done != ends[KL_TASK_DONE] || counts.dead != ends[KL_TASK_DEAD] ||
        counts.cancelled != ends[KL_TASK_CANCELLED])
        return wrong(view,
                     "job %u counts %" PRIu64 " done, %" PRIu64 " dead, %" PRIu64 " cancelled in partition %u; find "
                     "shows %" PRIu64 ", %" PRIu64 ", %" PRIu64,
                     job, counts.done, counts.dead, counts.cancelled, partition, ends[KL_TASK_DONE], ends[KL_TASK_DEAD],
                     ends[KL_TASK_CANCELLED]);
    return true;
}

static bool check_counts(struct view *view, uint32_t partition, const kl_counts *sum, const uint64_t finished[3])
{
    kl_counts all;
    kl_rc rc = kl_store_counts(view->subject->store, (kl_place){partition + 1, KL_ALL_SHARDS}, NULL, &all);
    if (rc != KL_OK)
        return failed(view, "counts", rc);
    if (all.ready != sum->ready || all.due != sum->due || all.retry != sum->retry)
        return wrong(view, "partition %u counts %" PRIu64 " tasks, its shards %" PRIu64, partition,
                     all.ready + all.due + all.retry, sum->ready + sum->due + sum->retry);
    if (all.done != finished[0] || all.dead != finished[1] || all.cancelled != finished[2])
        return wrong(view,
                     "partition %u counts %" PRIu64 " done, %" PRIu64 " dead, %" PRIu64
                     " cancelled; find shows %" PRIu64 ", %" PRIu64 ", %" PRIu64,
                     partition, all.done, all.dead, all.cancelled, finished[0], finished[1], finished[2]);
    return true;
}

/* ---- Records ---- */

static bool see_record(struct view *view, const kl_record *record)
{
    for (uint32_t i = 0; i < SCRIPT_RECORDS; i++)
        if (same(record->name, script_record_name(i))) {
            if (view->records[i].there || record->version == 0)
                return wrong(view, "record %u is listed twice, or without a version", i);
            view->records[i] = (struct seen_record){true, record->value, record->version, record->expires_ms};
            return true;
        }
    return wrong(view, "record %.*s was never made", (int)record->name.len, (const char *)record->name.data);
}

static bool see_records(struct view *view)
{
    kl_record records[SCRIPT_RECORDS + 1];
    size_t max = 1 + (size_t)kl__random_below(&view->random, SCRIPT_RECORDS), count = max;
    kl_bytes after = {0};
    while (count == max) {
        kl_rc rc = kl_store_list(view->subject->store, kl_str(""), after, max, &view->arena, records, &count);
        if (rc != KL_OK)
            return failed(view, "list", rc);
        for (size_t i = 0; i < count; i++)
            if (!see_record(view, &records[i]))
                return false;
        if (count)
            after = records[count - 1].name;
    }
    kl_bytes names[SCRIPT_RECORDS];
    for (uint32_t i = 0; i < SCRIPT_RECORDS; i++)
        names[i] = script_record_name(i);
    kl_rc rc = kl_store_get(view->subject->store, names, SCRIPT_RECORDS, &view->arena, records);
    if (rc != KL_OK)
        return failed(view, "get", rc);
    for (uint32_t i = 0; i < SCRIPT_RECORDS; i++) {
        const struct seen_record *seen = &view->records[i];
        if (records[i].version != seen->version || (seen->there && !same(records[i].value, seen->value)))
            return wrong(view, "get and list disagree about record %u", i);
    }
    return true;
}

/* ---- All of it ---- */

static bool look(struct view *view)
{
    uint64_t finished[KL_TASK_CANCELLED + 1][SCRIPT_PARTITIONS] = {{0}};
    kl_counts sums[SCRIPT_PARTITIONS] = {{0}};
    for (uint32_t p = 0; p < SCRIPT_PARTITIONS; p++) {
        kl_counts counts;
        kl_rc rc = kl_store_counts(view->subject->store, (kl_place){p + 1, KL_ALL_SHARDS}, NULL, &counts);
        view->partitions[p] = rc == KL_OK;
        if (rc != KL_OK && rc != KL_EINVAL)
            return failed(view, "counts", rc);
        for (uint32_t s = 0; rc == KL_OK && s < SCRIPT_SHARDS; s++)
            if (!see_place(view, view->script->places[p * SCRIPT_SHARDS + s], &sums[p]))
                return false;
    }
    if (!find_all(view, finished))
        return false;
    for (uint32_t p = 0; p < SCRIPT_PARTITIONS; p++) {
        uint64_t ends[3] = {finished[KL_TASK_DONE][p], finished[KL_TASK_DEAD][p], finished[KL_TASK_CANCELLED][p]};
        if (view->partitions[p] && (!check_counts(view, p, &sums[p], ends) ||
                                    !check_job_counts(view, p, (uint32_t)kl__random_below(&view->random, SCRIPT_JOBS))))
            return false;
        for (uint32_t s = 0; view->partitions[p] && s < SCRIPT_SHARDS; s++)
            if (!read_place(view, p * SCRIPT_SHARDS + s) ||
                !check_results(view, p * SCRIPT_SHARDS + s, (uint32_t)kl__random_below(&view->random, SCRIPT_JOBS)))
                return false;
    }
    return see_records(view);
}

static bool compare_finished(struct view *view, const struct model *model, uint32_t number)
{
    const struct model_task *known = &model->tasks[number];
    const struct seen_task *seen = &view->tasks[number];
    const struct script_item *items = view->script->items;
    kl_bytes error = known->error == NO_ITEM ? (kl_bytes){0} : items[known->error].error;
    kl_bytes result = known->result == NO_ITEM ? (kl_bytes){0} : items[known->result].result;
    if (seen->state == KL_TASK_UNKNOWN && known->maybe_gone)
        return true;
    if (seen->attempts != known->attempts || seen->finished_ms != known->finished_ms)
        return wrong(view, "task %u finished at %" PRId64 " after %u attempts, not at %" PRId64 " after %u", number,
                     seen->finished_ms, seen->attempts, known->finished_ms, known->attempts);
    if (!same(seen->error, error))
        return wrong(view, "task %u has another error (%zu bytes, not %zu)", number, seen->error.len, error.len);
    return same(seen->result, result) ? true : wrong(view, "task %u has another result", number);
}

static bool compare_task(struct view *view, const struct model *model, uint32_t number)
{
    static const struct model_task none;
    const struct model_task *known = number < model->task_count ? &model->tasks[number] : &none;
    const struct seen_task *seen = &view->tasks[number];
    if (seen->state != known->state && !(seen->state == KL_TASK_UNKNOWN && known->maybe_gone))
        return wrong(view, "task %u is in state %d instead of %d", number, seen->state, known->state);
    if (known->state > KL_TASK_WAITING)
        return compare_finished(view, model, number);
    if (known->state == KL_TASK_UNKNOWN)
        return true;
    if (seen->tried != known->tried || seen->attempts != known->attempts || seen->not_before_ms != known->not_before_ms)
        return wrong(view, "task %u waits with %u attempts%s until %" PRId64 ", not with %u%s until %" PRId64, number,
                     seen->attempts, seen->tried ? " (tried)" : "", seen->not_before_ms, known->attempts,
                     known->tried ? " (tried)" : "", known->not_before_ms);
    if (known->position && seen->position != known->position)
        return wrong(view, "task %u has position %" PRIu64 " instead of %" PRIu64, number, seen->position,
                     known->position);
    return true;
}

static bool compare_record(struct view *view, const struct model *model, uint32_t number)
{
    const struct model_record *known = &model->records[number];
    const struct seen_record *seen = &view->records[number];
    bool there = model_record_there(model, number);
    if (seen->there != there)
        return wrong(view, "record %u is %sthere", number, there ? "not " : "");
    if (!there)
        return true;
    if (!same(seen->value, known->value) || seen->expires_ms != known->expires_ms)
        return wrong(view, "record %u has another value or time", number);
    if (known->version && seen->version != known->version)
        return wrong(view, "record %u has version %" PRIu64 " instead of %" PRIu64, number, seen->version,
                     known->version);
    return true;
}

/* Positions ascend in the order of appends, which is that of the tasks' numbers. */
static bool check_positions(struct view *view)
{
    uint64_t last[SCRIPT_PLACES] = {0};
    for (uint32_t i = 0; i < view->script->task_count; i++) {
        if (view->tasks[i].state != KL_TASK_WAITING)
            continue;
        uint64_t *before = &last[view->script->tasks[i].place];
        if (view->tasks[i].position <= *before)
            return wrong(view, "task %u has a position below one that was appended earlier", i);
        *before = view->tasks[i].position;
    }
    return true;
}

/* A settle of nobody: refused exactly when the shard is fenced above its epoch. */
static bool settle_nobody(struct view *view, uint32_t place, uint64_t epoch, kl_rc expected)
{
    static const kl_layout layout = {1, 1};
    kl_id_parts parts = {.shard = view->script->places[place].shard, .sequence = SCRIPT_TASKS_MAX, .ms = 1};
    kl_settled nobody = {.position = 1, .attempts = 1};
    kl_rc rc = kl_id_pack(&layout, &parts, &nobody.id);
    KL_ASSERT(rc == KL_OK);
    kl_settle batch = {.place = view->script->places[place], .epoch = epoch, .tasks = &nobody, .count = 1};
    rc = kl_store_settle(view->subject->store, &batch, 1);
    if (rc == expected)
        return true;
    return wrong(view, "a settle of place %u at epoch %" PRIu64 " returned %s instead of %s", place, epoch,
                 kl_rc_name(rc), kl_rc_name(expected));
}

static bool compare_fences(struct view *view, const struct model *model)
{
    for (uint32_t i = 0; i < SCRIPT_PLACES; i++) {
        if (!model->partitions[i / SCRIPT_SHARDS])
            continue;
        if (model->epochs[i] && !settle_nobody(view, i, model->epochs[i] - 1, KL_ESTALE))
            return false;
        if (!settle_nobody(view, i, model->epochs[i], KL_OK))
            return false;
    }
    return true;
}

/* Settles what compare_open has appended. */
static bool settle_open(struct view *view, const struct model *model, const kl_entry *entries, size_t count)
{
    kl_ref refs[SCRIPT_PLACES];
    kl_task tasks[SCRIPT_PLACES];
    kl_settled settled[SCRIPT_PLACES];
    kl_settle batches[SCRIPT_PLACES];
    size_t got = 0;
    for (size_t i = 0; i < count; i++)
        refs[i] = (kl_ref){.place = entries[i].place, .id = entries[i].id};
    kl_rc rc = kl_store_read(view->subject->store, refs, count, &view->arena, tasks, &got);
    if (rc != KL_OK || got != count)
        return failed(view, "read", rc);
    for (size_t i = 0; i < count; i++) {
        uint32_t place = (entries[i].place.partition - 1) * SCRIPT_SHARDS + 1;
        settled[i] = (kl_settled){.id = entries[i].id, .position = tasks[i].position, .attempts = 1};
        batches[i] = (kl_settle){entries[i].place, model->epochs[place], &settled[i], 1, KL_OK};
    }
    rc = kl_store_settle(view->subject->store, batches, count);
    return rc == KL_OK ? true : failed(view, "settle", rc);
}

/* The places that are not sealed take tasks. On a full disk they are refused for that reason, which is looked at
 * last. */
static bool compare_open(struct view *view, const struct model *model)
{
    kl_entry entries[SCRIPT_PLACES];
    size_t count = 0;
    for (uint32_t i = 0; i < SCRIPT_PLACES; i++)
        if (model->partitions[i / SCRIPT_SHARDS] && script_can_be_sealed(i) && !model->seals[i])
            entries[count++] = (kl_entry){.place = view->script->places[i], .id = script_nobody(view->script, i)};
    kl_rc rc = count ? kl_store_append(view->subject->store, entries, count, NULL) : KL_EFULL;
    if (rc == KL_EFULL)
        return true;
    if (rc != KL_OK)
        return wrong(view, "an append to shards that are not sealed returned %s: %s", kl_rc_name(rc), kl_error_text());
    return settle_open(view, model, entries, count);
}

static bool compare_seals(struct view *view, const struct model *model)
{
    for (uint32_t i = 0; i < SCRIPT_PLACES; i++) {
        if (!model->partitions[i / SCRIPT_SHARDS] || !model->seals[i])
            continue;
        kl_entry entry = {.place = view->script->places[i], .id = script_nobody(view->script, i)};
        kl_rc rc = kl_store_append(view->subject->store, &entry, 1, NULL);
        if (rc != KL_ESEALED)
            return wrong(view, "place %u is sealed, but an append returned %s", i, kl_rc_name(rc));
    }
    return compare_open(view, model);
}

static bool compare(struct view *view, const struct model *model)
{
    for (uint32_t i = 0; i < SCRIPT_PARTITIONS; i++)
        if (view->partitions[i] != model->partitions[i])
            return wrong(view, "partition %u is %sthere", i, model->partitions[i] ? "not " : "");
    for (uint32_t i = 0; i < view->script->task_count; i++)
        if (!compare_task(view, model, i))
            return false;
    for (uint32_t i = 0; i < SCRIPT_RECORDS; i++)
        if (!compare_record(view, model, i))
            return false;
    return compare_fences(view, model) && compare_seals(view, model);
}

static struct view *open_view(struct subject *subject, uint64_t random)
{
    struct view *view = calloc(1, sizeof *view);
    KL_ASSERT(view);
    view->subject = subject;
    view->script = subject->script;
    view->random = random;
    subject->why[0] = '\0';
    return view;
}

static void close_view(struct view *view)
{
    kl_arena_free(&view->arena);
    free(view);
}

int subject_compare(struct subject *subject, const struct model *models, int count, uint64_t random)
{
    struct view *view = open_view(subject, random);
    int found = -1;
    if (look(view) && check_positions(view))
        for (int i = 0; found < 0 && i < count; i++)
            if (compare(view, &models[i]))
                found = i;
    close_view(view);
    return found;
}
