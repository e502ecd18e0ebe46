/* task_why.c - why tasks are not started, as far as records tell.
 *
 * From: the program's lists. To: owners.c, keyset.c, queue/look.c. No worker is asked, so a task that nothing is known
 * of may be running. Which reason is told first is as in ask.c, which knows more. */
#include "work/why.h"

#include <string.h>

#include "base/compare.h"
#include "work/ask.h"
#include "work/inside.h"

struct lookup {
    const kl_found *found;
    size_t count;
    kl_why *why;
};

static kl_why why_of(const kl__ownership *ownership, const kl_entry *entry)
{
    const kl__owner *owner = kl__ownership_of(ownership, entry->place.shard);
    if (!owner || strcmp(owner->name, KL_OPERATOR_NAME) == 0)
        return KL_WHY_NO_WORKER;
    if (!kl__ownership_serves(ownership, kl__owners_kind(entry->kind)))
        return KL_WHY_KIND;
    return owner->full ? KL_WHY_PARTITION : KL_WHY_READY;
}

static kl_rc look_at(void *ctx, const char *partition, uint64_t layout_number, const kl_layout *layout,
                     const kl__ownership *ownership)
{
    const struct lookup *lookup = ctx;
    (void)layout;
    for (size_t i = 0; i < lookup->count; i++)
        if (lookup->why[i] == KL_WHY_READY && lookup->found[i].layout == layout_number &&
            strcmp(lookup->found[i].partition, partition) == 0)
            lookup->why[i] = why_of(ownership, &lookup->found[i].task.entry);
    return KL_OK;
}

kl_why kl__found_why(const kl_found *found, const kl__descriptor *descriptor, const kl__keyset *paused, int64_t now_ms)
{
    const kl_queue_opts *settings = &descriptor->settings;
    const kl_task *task = &found->task;
    uint32_t attempts_max = found->extra.attempts_max;
    attempts_max = attempts_max ? attempts_max : (uint32_t)settings->attempts_max;
    if (task->state != KL_TASK_WAITING)
        return KL_WHY_IDLE;
    if (task->entry.key.len > 0 && kl__keyset_has(paused, kl__key_hash(task->entry.key)))
        return KL_WHY_PAUSED;
    if (task->not_before_ms > now_ms && task->attempts > 0)
        return KL_WHY_RETRYING; /* also when a lower limit was set since: it is looked at when its time comes */
    if (settings->head_policy == KL_HEAD_HALT && task->attempts > 0 && task->attempts >= attempts_max)
        return KL_WHY_HALTED;
    if (descriptor->paused)
        return KL_WHY_QUEUE_PAUSED;
    return task->not_before_ms > now_ms ? KL_WHY_DELAYED : KL_WHY_READY;
}

kl_rc kl__tasks_why(kl_queue *queue, const kl_found *found, size_t count, kl_why *ret_why)
{
    struct lookup lookup = {found, count, ret_why};
    kl_arena arena = {0};
    int64_t now_ms = 0;
    size_t ready = 0;
    if (count == 0)
        return KL_OK;
    kl__keyset *paused = kl__keyset_open();
    kl_rc rc = paused ? kl__keyset_read_paused(paused, queue, &arena) : kl__fail_memory();
    if (rc == KL_OK)
        rc = kl_store_now(queue->store, &now_ms);
    if (rc == KL_OK)
        rc = kl__queue_refresh(queue);
    kl__descriptor *descriptor = kl__queue_descriptor(queue);
    for (size_t i = 0; rc == KL_OK && i < count; i++) {
        ret_why[i] = kl__found_why(&found[i], descriptor, paused, now_ms);
        ready += ret_why[i] == KL_WHY_READY;
    }
    kl__descriptor_release(descriptor);
    if (rc == KL_OK && ready > 0)
        rc = kl__queue_owners(queue, &arena, look_at, &lookup);
    kl__keyset_free(paused);
    kl_arena_free(&arena);
    return rc;
}

/* --- What stands before a task --- */

static kl_rc find_first(kl_queue *queue, kl__source source, const kl_found *found, kl_task_id *ret_first)
{
    kl_arena arena = {0};
    kl_found first;
    size_t count;
    bool more;
    kl_rc rc = kl__look_key(queue, source, found->task.entry.key, 1, &arena, &first, &count, &more);
    if (rc == KL_OK && count > 0 && kl_id_compare(&first.task.entry.id, &found->task.entry.id) != 0)
        *ret_first = first.task.entry.id;
    kl_arena_free(&arena);
    return rc;
}

/* In its own layout in its partition alone; in older ones wherever the key has tasks. */
static kl_rc look_before(kl_queue *queue, const kl__queue_layout *layout, const kl_found *found, kl_task_id *ret_first)
{
    uint32_t only = kl_partition_of(&layout->layout, found->task.entry.key);
    bool own = layout->number == found->layout, all = !own && layout->by_name;
    kl_rc rc = own ? kl__layout_partition_find(queue, &layout->layout, found->partition, &only) : KL_OK;
    for (uint32_t p = 0; rc == KL_OK && p < layout->layout.partitions && kl__id_is_none(ret_first); p++)
        if (all || p == only)
            rc = find_first(queue, (kl__source){layout, p}, found, ret_first);
    return rc;
}

kl_rc kl__task_behind(kl_queue *queue, const kl_found *found, kl_task_id *ret_first)
{
    kl_task_id first = {{0}};
    kl_rc rc = KL_OK;
    if (found->task.state == KL_TASK_WAITING && found->task.attempts == 0 && found->task.entry.key.len > 0) {
        kl__descriptor *descriptor = kl__queue_descriptor(queue);
        for (size_t i = 0; rc == KL_OK && i < descriptor->layout_count && kl__id_is_none(&first); i++)
            if (descriptor->layouts[i].number <= found->layout && !descriptor->layouts[i].drained)
                rc = look_before(queue, &descriptor->layouts[i], found, &first);
        kl__descriptor_release(descriptor);
    }
    if (rc == KL_OK)
        *ret_first = first;
    return rc;
}
