/* task_why.c - why tasks that are due are not started, as far as the records of their owners tell.
 *
 * From: the program's lists.  To: owners.c.  No worker is asked, so a task that nothing is known of may be running. */
#include <string.h>

#include "queue/inside.h"
#include "work/ask.h"
#include "work/owners.h"
#include "work/why.h"

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

kl_rc kl__tasks_why(kl_queue *queue, const kl_found *found, size_t count, kl_why *ret_why)
{
    struct lookup lookup = {found, count, ret_why};
    kl_arena arena = {0};
    int64_t now_ms = 0;
    size_t due = 0;
    kl_rc rc = count ? kl_store_now(queue->store, &now_ms) : KL_OK;
    for (size_t i = 0; rc == KL_OK && i < count; i++) {
        bool waits = found[i].task.state == KL_TASK_WAITING && found[i].task.not_before_ms <= now_ms;
        ret_why[i] = waits ? KL_WHY_READY : KL_WHY_IDLE;
        due += waits;
    }
    if (rc == KL_OK && due > 0)
        rc = kl__queue_owners(queue, &arena, look_at, &lookup);
    kl_arena_free(&arena);
    return rc;
}
