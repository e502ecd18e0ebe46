/* order.c - the order of a key's tasks: what a worker knows of it, and what it must not pass over.
 *
 * From: store.c (what scans and counts have shown), worker.c (looks), oracle.c (starts).
 *
 * A task sorts before another of its key by (priority, due time, position). The owner can keep to that as far as it can
 * know, which is judged by when it looked, and not by what it says that it has seen:
 *
 *   ready lines  what was stored before the last look that ended well was begun, or before the shard was taken. Of a line
 *                other than the ordinary one, if that look knew that it is in use: the owner asks for that from time to
 *                time (look.c), and until then it cannot know.
 *   due line     what was stored and due when its last whole reading was begun, or when the shard was taken; the line is
 *                read from time to time as well. In an older layout its tasks are not run but moved, and come later.
 *
 * Where a task that has a due time stands among those that have none depends on when these were made, by the producers'
 * clocks. The one that starts is judged by the time that the worker gave it; others by when they were stored, in worlds
 * whose clocks are true. */
#include "sim/world.h"

#include <string.h>

/* --- What a worker knows --- */

static bool is_looking(const struct sim_process *process)
{
    return process->looker && process->world->current == process->looker;
}

void order_look_begins(struct sim_process *process)
{
    struct world *world = process->world;
    process->looker = world->current;
    process->look_began = world->entry_count;
    for (const kl__partition *each = process->pump->partitions; each; each = each->next)
        process->lines_asked[each->number] = each->priorities;
}

void order_counted(struct sim_process *process, uint32_t partition, uint32_t priorities)
{
    if (is_looking(process))
        process->lines_asked[partition] = priorities;
}

void order_scanned(struct sim_process *process, const kl_scan *scans, size_t count)
{
    struct world *world = process->world;
    for (size_t i = 0; i < count && is_looking(process); i++) {
        struct sim_owner *owner = oracle_owner(world, scans[i].place);
        if (scans[i].line != KL_LINE_DUE || owner->process != process->number)
            continue;
        if (!scans[i].after)
            owner->reading = (struct sim_reading){.begun = true, .stored = world->entry_count};
        if (!scans[i].after)
            owner->reading.until_ms = scans[i].until_ms;
        owner->reading.ended = owner->reading.begun && scans[i].count < scans[i].max;
    }
}

/* What was read is in memory now, and so are those that come behind it: out of the way. */
void order_look_ends(struct sim_process *process, kl_rc rc)
{
    struct world *world = process->world;
    process->looker = NULL;
    if (rc == KL_OK) {
        process->looked = process->look_began;
        memcpy(process->lines, process->lines_asked, sizeof process->lines);
    }
    for (uint32_t i = 0; i < SIM_PARTITIONS_MAX; i++) {
        struct sim_partition *partition = world->partitions[i];
        for (uint32_t shard = 0; partition && shard < kl_layout_shards(&partition->layout); shard++) {
            struct sim_owner *owner = &partition->owners[shard];
            if (owner->process != process->number || !owner->reading.ended)
                continue;
            if (rc == KL_OK)
                owner->read = owner->reading;
            owner->reading = (struct sim_reading){.begun = false};
        }
    }
}

void order_taken_over(const struct sim_process *process, struct sim_owner *owner)
{
    owner->taken = process->world->entry_count;
    owner->reading = (struct sim_reading){.begun = false};
    owner->read = (struct sim_reading){.stored = owner->taken, .until_ms = process->pump ? process->pump->now_ms : 0};
}

static bool is_known(const struct sim_process *process, const struct sim_entry *entry, uint64_t epoch)
{
    const struct world *world = process->world;
    const struct sim_owner *owner = oracle_owner(world, entry->place);
    if (owner->process != process->number || owner->epoch != epoch)
        return false;
    if (entry->due)
        return entry->layout == world->layouts && entry->sequence <= owner->read.stored &&
               entry->due_ms <= owner->read.until_ms;
    uint32_t in_use = process->lines[entry->place.partition] | 1u << -KL_PRIORITY_MIN;
    return (entry->sequence <= process->looked || entry->sequence <= owner->taken) &&
           (in_use >> (entry->task->priority - KL_PRIORITY_MIN) & 1);
}

/* --- What comes first --- */

static bool is_ahead(const struct sim_entry *entry, const struct sim_process *process, uint64_t epoch)
{
    return entry->finished_by == process->number && entry->finished_epoch == epoch && entry->final;
}

/* It has ended in the worker's memory without a run, and that is still to be settled: cancelled, drained, used up. */
static bool has_outcome(kl__window *window, const struct sim_entry *entry)
{
    const kl__held *held = kl__window_find(window, &entry->id, 0);
    return held && held->state == KL_HELD_FINISHED && held->outcome != KL_RETRY;
}

static void overtakes(const struct sim_process *process, kl__window *window, const struct sim_entry *entry,
                      const struct sim_entry *other, const char *why)
{
    struct world *world = process->world;
    if (entry->place.partition == other->place.partition && has_outcome(window, other))
        return;
    sim_break(world, "I3", entry->task, "p%u starts task %llu of key %u although task %llu %s", process->number,
              (unsigned long long)entry->task->number, entry->task->key, (unsigned long long)other->task->number, why);
}

/* Whether load may find that it is not to be run any more. */
bool order_ends_unrun(const struct world *world, const struct sim_entry *entry)
{
    return oracle_may_be_cancelled(world, entry->task) || entry->starts + entry->extra > world->plan.attempts_max ||
           entry->attempts >= world->plan.attempts_max;
}

/* A task that was tried and has not ended. After a crash there may be several of a key: then only the first holds it,
 * and the others stand in line. */
static bool holds_key(const struct world *world, const struct sim_entry *entry, const struct sim_process *process,
                      uint64_t epoch)
{
    const struct sim_key *key = &world->keys[entry->task->key];
    if (entry->settled_by == process->number && entry->settled_epoch == epoch)
        return true;
    for (const struct sim_entry *other = key->waiting; other; other = other->next_of_key)
        if (other != entry && other->retry_line)
            return false;
    return key->tried_epoch != epoch;
}

/* Neither was tried before. ms: when the one that starts became ready, as its worker sees it. */
static bool comes_first(const struct world *world, const struct sim_entry *other, const struct sim_entry *entry,
                        int64_t ms)
{
    if (other->task->priority != entry->task->priority)
        return other->task->priority < entry->task->priority;
    if (!other->due && !entry->due)
        return other->sequence < entry->sequence;
    if (other->due && entry->due)
        return other->due_ms < entry->due_ms || (other->due_ms == entry->due_ms && other->sequence < entry->sequence);
    return other->due ? other->due_ms < ms : world->plan.true_clocks && other->stored_ms < entry->due_ms;
}

/* Of a kind that the worker does not serve: it holds its key, and is only looked at again. */
static bool is_set_aside(const struct sim_process *process, const struct sim_entry *entry)
{
    return entry->task->rare && !process->all_kinds;
}

static void check_against(struct sim_process *process, const struct sim_entry *entry, const struct sim_entry *other,
                          const kl__held *held)
{
    struct world *world = process->world;
    kl__window *window = held->window;
    uint64_t epoch = window->epoch;
    const struct sim_owner *owner = oracle_owner(world, other->place);
    bool here = entry->place.partition == other->place.partition && other->taken_epoch == epoch;
    if (other->taken_by == process->number && here && !other->running && order_ends_unrun(world, other))
        return; /* it is just being ended, together with others that are loaded */
    if (other->taken_by == process->number && here)
        overtakes(process, window, entry, other, "of the key runs in the same process");
    else if (other->taken_by != SIM_NOBODY && other->taken_by != process->number &&
             !world->processes[other->taken_by]->dead && owner->process == other->taken_by &&
             owner->epoch == other->taken_epoch && owner->expires_ms > world->now_ms)
        overtakes(process, window, entry, other, "runs in a process whose lease holds");
    else if (other->layout < entry->layout)
        overtakes(process, window, entry, other, "waits in an older layout");
    if (other->layout != entry->layout || is_ahead(other, process, epoch))
        return;
    if (other->finished_by == process->number && other->finished_epoch == epoch)
        overtakes(process, window, entry, other, "is to be tried again first");
    else if (other->retry_line && !entry->retry_line && holds_key(world, other, process, epoch))
        overtakes(process, window, entry, other, "was tried before and holds the key");
    else if (!other->due && !entry->due && other->task->priority == entry->task->priority &&
             other->sequence < entry->sequence && other->retry_line >= entry->retry_line)
        overtakes(process, window, entry, other, "comes before it in their line");
    else if (!other->retry_line && !entry->retry_line && comes_first(world, other, entry, held->lane.due_ms) &&
             is_known(process, other, epoch) && !is_set_aside(process, entry))
        overtakes(process, window, entry, other, "comes first");
}

void order_check(struct sim_process *process, const struct sim_entry *entry, const kl__held *held)
{
    uint32_t key = entry->task->key;
    for (const struct sim_entry *other = key ? process->world->keys[key].waiting : NULL; other;
         other = other->next_of_key)
        if (other != entry)
            check_against(process, entry, other, held);
}
