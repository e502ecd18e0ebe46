/* script_run.c - makes one call of a script to a store, and checks what the call itself answers. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "script.h"
#include "store/calls.h"

enum { SEGMENT_BYTES = 64 << 10, CALL_ITEMS_MAX = 64 };

static kl_rc wrong(struct subject *subject, const char *format, ...) KL_PRINTF(2, 3);

static kl_rc wrong(struct subject *subject, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(subject->why, sizeof subject->why, format, arguments);
    va_end(arguments);
    return KL_EINVAL;
}

/* What the store refused for reasons of its own is the caller's to judge; that it called the input wrong is a
 * defect. */
static kl_rc refused(struct subject *subject, const char *name, kl_rc rc)
{
    if (rc == KL_EINVAL || rc == KL_ESTALE || rc == KL_ECONFLICT || rc == KL_ESEALED)
        return wrong(subject, "%s returned %s: %s", name, kl_rc_name(rc), kl_error_text());
    return rc;
}

static int64_t read_clock(void *ctx) { return atomic_load((_Atomic int64_t *)ctx); }

/* A partition that is there refuses another length; one that was lost would be made anew. */
static kl_rc find_partition(struct subject *subject, uint32_t partition)
{
    uint32_t number = 0;
    kl_rc rc = kl_store_partition(subject->store, script_partition_name(partition), 2, &number);
    if (rc == KL_EINVAL)
        rc = kl_store_partition(subject->store, script_partition_name(partition), 1, &number);
    else if (rc == KL_OK)
        rc = KL_EDEAD;
    if (rc == KL_OK && number != partition + 1)
        rc = KL_EDEAD;
    return rc == KL_EDEAD ? kl__fail(rc, "partition %u is not there, or has another number", partition) : rc;
}

kl_rc subject_open(struct subject *subject)
{
    kl_store_opts opts = {.size = sizeof opts,
                          .now_ms = read_clock,
                          .now_ctx = &subject->clock_ms,
                          .segment_bytes = SEGMENT_BYTES,
                          .history_rows_max = SCRIPT_HISTORY_ROWS};
    if (atomic_load(&subject->clock_ms) == 0)
        atomic_store(&subject->clock_ms, SCRIPT_START_MS);
    subject->store = NULL;
    kl_rc rc = subject->open(subject->ctx, &opts, &subject->store);
    for (uint32_t i = 0; rc == KL_OK && i < SCRIPT_PARTITIONS; i++)
        if (subject->partitions[i])
            rc = find_partition(subject, i);
    return rc;
}

void subject_close(struct subject *subject)
{
    kl_store_close(subject->store);
    subject->store = NULL;
}

/* The position under which a task waits; 0 when it does not. */
static kl_rc learn_position(struct subject *subject, uint32_t number, uint64_t *ret_position)
{
    const kl_entry *entry = &subject->script->tasks[number].entry;
    kl_arena arena = {0};
    kl_task task;
    size_t count = 0;
    kl_rc rc = read_some(subject->store, entry->place, &entry->id, 1, &arena, &task, &count);
    if (rc == KL_OK)
        *ret_position = task.state == KL_TASK_WAITING ? task.position : 0;
    kl_arena_free(&arena);
    return rc;
}

static kl_rc call_append(struct subject *subject, struct model *after, const struct script_call *call)
{
    kl_entry entries[CALL_ITEMS_MAX];
    KL_ASSERT(call->count <= CALL_ITEMS_MAX);
    for (uint32_t i = 0; i < call->count; i++)
        entries[i] = subject->script->tasks[call->first + i].entry;
    kl_rc rc = kl_store_append(subject->store, entries, call->count, call->has_token ? &call->token : NULL);
    if (rc != KL_OK)
        return refused(subject, "append", rc);
    for (uint32_t i = 0; !call->repeat && i < call->count; i++) {
        uint64_t position = 0;
        rc = learn_position(subject, call->first + i, &position);
        if (rc == KL_OK && !position)
            return wrong(subject, "task %u does not wait after its append", call->first + i);
        after->tasks[call->first + i].position = position; /* 0 when it could not be read: learned later */
    }
    return KL_OK;
}

static kl_rc fill_settled(struct subject *subject, const struct model *before, struct model *after, uint32_t number,
                          kl_settled *ret_settled)
{
    const struct script_item *item = &subject->script->items[number];
    uint64_t position = before->tasks[item->task].position;
    if (!position) {
        kl_rc rc = learn_position(subject, item->task, &position);
        if (rc != KL_OK)
            return rc;
        after->tasks[item->task].position = position;
    }
    *ret_settled = (kl_settled){.id = subject->script->tasks[item->task].entry.id,
                                .position = position ? position : 1,
                                .outcome = item->outcome,
                                .attempts = item->attempts,
                                .due_ms = item->due_ms,
                                .keep_ms = item->keep_ms,
                                .error = item->error,
                                .result = item->result};
    return KL_OK;
}

static kl_rc call_settle(struct subject *subject, const struct model *before, struct model *after,
                         const struct script_call *call)
{
    kl_settle batches[SCRIPT_STEPS_MAX];
    kl_settled settled[SCRIPT_STEPS_MAX][CALL_ITEMS_MAX];
    kl_rc expected = KL_OK;
    for (uint32_t i = 0; i < call->step_count; i++) {
        const struct script_step *step = &call->steps[i];
        for (uint32_t j = 0; j < step->items; j++) {
            kl_rc rc = fill_settled(subject, before, after, step->first_item + j, &settled[i][j]);
            if (rc != KL_OK)
                return rc;
        }
        batches[i] = (kl_settle){subject->script->places[step->place], step->epoch, settled[i], step->items, KL_EDEAD};
        if (step->stale && expected == KL_OK)
            expected = KL_ESTALE;
    }
    kl_rc rc = kl_store_settle(subject->store, batches, call->step_count);
    if (rc != KL_OK && rc != KL_ESTALE)
        return refused(subject, "settle", rc);
    if (rc != expected)
        return wrong(subject, "settle returned %s, not %s", kl_rc_name(rc), kl_rc_name(expected));
    for (uint32_t i = 0; i < call->step_count; i++)
        if (batches[i].rc != (call->steps[i].stale ? KL_ESTALE : KL_OK))
            return wrong(subject, "batch %u of a settle says %s", i, kl_rc_name(batches[i].rc));
    return KL_OK;
}

static kl_rc call_fence(struct subject *subject, const struct script_call *call)
{
    kl_fence fences[SCRIPT_STEPS_MAX];
    for (uint32_t i = 0; i < call->step_count; i++)
        fences[i] = (kl_fence){.place = subject->script->places[call->steps[i].place],
                               .epoch = call->steps[i].epoch,
                               .seal = call->steps[i].seal,
                               .rc = KL_EDEAD};
    kl_rc rc = kl_store_fence(subject->store, fences, call->step_count);
    if (rc != KL_OK && rc != KL_ESTALE)
        return refused(subject, "fence", rc);
    for (uint32_t i = 0; i < call->step_count; i++)
        if (fences[i].rc != (call->steps[i].stale ? KL_ESTALE : KL_OK))
            return wrong(subject, "fence %u at epoch %" PRIu64 " says %s", i, call->steps[i].epoch,
                         kl_rc_name(fences[i].rc));
    return KL_OK;
}

/* A version that is never there. */
static uint64_t stale_version(uint64_t version) { return version ? version + 1000003 : 77; }

static kl_rc call_put(struct subject *subject, const struct model *before, struct model *after,
                      const struct script_call *call)
{
    kl_write writes[SCRIPT_STEPS_MAX];
    for (uint32_t i = 0; i < call->step_count; i++) {
        const struct script_step *step = &call->steps[i];
        uint64_t version = model_record_there(before, step->record) ? before->records[step->record].version : 0;
        writes[i] = (kl_write){.name = script_record_name(step->record),
                               .version = step->stale ? stale_version(version) : version,
                               .remove = step->remove,
                               .value = step->value,
                               .expires_ms = step->expires_ms,
                               .rc = KL_EDEAD};
    }
    kl_rc rc = kl_store_put(subject->store, writes, call->step_count);
    if (rc != KL_OK && rc != KL_ECONFLICT)
        return refused(subject, "put", rc);
    for (uint32_t i = 0; i < call->step_count; i++) {
        const struct script_step *step = &call->steps[i];
        if (writes[i].rc != (step->stale ? KL_ECONFLICT : KL_OK))
            return wrong(subject, "write %u of record %u at version %" PRIu64 " says %s", i, step->record,
                         writes[i].version, kl_rc_name(writes[i].rc));
        if (!step->stale && !step->remove != (writes[i].new_version != 0))
            return wrong(subject, "write %u of record %u has new version %" PRIu64, i, step->record,
                         writes[i].new_version);
        if (!step->stale)
            after->records[step->record].version = writes[i].new_version;
    }
    return KL_OK;
}

static kl_rc call_forget(struct subject *subject, const struct script_call *call)
{
    kl_task_id ids[SCRIPT_STEPS_MAX];
    for (uint32_t i = 0; i < call->step_count; i++)
        ids[i] = subject->script->tasks[call->steps[i].task].entry.id;
    kl_rc rc = kl_store_forget(subject->store, subject->script->places[call->steps[0].place], ids, call->step_count);
    return rc == KL_OK ? rc : refused(subject, "forget", rc);
}

static kl_rc call_partition(struct subject *subject, const struct script_call *call)
{
    uint32_t number = 0;
    kl_rc rc = kl_store_partition(subject->store, script_partition_name(call->first), 1, &number);
    if (rc != KL_OK)
        return refused(subject, "partition", rc);
    subject->partitions[call->first] = true;
    return number == call->first + 1 ? KL_OK : wrong(subject, "partition %u got number %u", call->first, number);
}

kl_rc subject_call(struct subject *subject, const struct model *before, struct model *after,
                   const struct script_call *call)
{
    atomic_store(&subject->clock_ms, call->now_ms);
    switch (call->kind) {
    case CALL_PARTITION:
        return call_partition(subject, call);
    case CALL_APPEND:
        return call_append(subject, after, call);
    case CALL_SETTLE:
        return call_settle(subject, before, after, call);
    case CALL_FENCE:
        return call_fence(subject, call);
    case CALL_PUT:
        return call_put(subject, before, after, call);
    case CALL_FORGET:
        return call_forget(subject, call);
    case CALL_REOPEN:
        subject_close(subject);
        memcpy(subject->partitions, before->partitions, sizeof subject->partitions);
        return subject_open(subject);
    }
    return wrong(subject, "no such call");
}
