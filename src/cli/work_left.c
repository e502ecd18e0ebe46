/* work_left.c - what `keyline work --until-empty` leaves behind, and why, as far as the store tells.
 *
 * A worker ends when nothing is left that it could run. What it could not run must not look like done: a kind without a
 * command, shards that it was told to leave alone, a time that is still to come. */
#include <string.h>

#include "cli/config.h"
#include "cli/output.h"
#include "cli/work.h"
#include "keyline/control.h"

enum {
    LOOK_TASKS = 200, /* of a queue, to find a kind that nobody here runs */
    LOOK_KEYS = 200,  /* those that are held up come first */
};

static bool is_run(const kl_worker_queue *queue, kl_bytes kind)
{
    for (size_t i = 0; i < queue->handler_count; i++) {
        const char *own = queue->handlers[i].kind;
        if (!own || (strlen(own) == kind.len && (!kind.len || memcmp(own, kind.data, kind.len) == 0)))
            return true;
    }
    return false;
}

/* The kinds among what waits that this worker has no command for: the first with a name, "" if there is none, and
 * whether there are tasks without a kind. */
static void find_unserved(const kl_worker_queue *queue, kl_arena *arena, kl_bytes *ret_kind, bool *ret_without)
{
    *ret_kind = (kl_bytes){"", 0};
    *ret_without = false;
    kl_found *found = kl_arena_alloc(arena, LOOK_TASKS * sizeof *found);
    kl_waiting which = {.max = LOOK_TASKS};
    kl_bytes cursor;
    size_t count = 0;
    if (!found || kl_queue_waiting(queue->queue, &which, arena, found, &count, &cursor) != KL_OK)
        return;
    for (size_t i = 0; i < count; i++) {
        kl_bytes kind = found[i].task.entry.kind;
        if (is_run(queue, kind))
            continue;
        if (kind.len && !ret_kind->len)
            *ret_kind = kind;
        *ret_without |= kind.len == 0;
    }
}

static const char *add(kl_arena *arena, const char *reasons, const char *reason)
{
    return reasons ? kl__format(arena, "%s%s%s", reasons, *reasons ? "; " : "", reason) : NULL;
}

/* Keys that somebody must let go on. */
static const char *add_keys(const kl_worker_queue *queue, kl_arena *arena, const char *reasons)
{
    kl_key_status *keys = kl_arena_alloc(arena, LOOK_KEYS * sizeof *keys);
    size_t count = 0, halted = 0, paused = 0;
    if (!keys || kl_key_list(queue->queue, KL_KEYS_BY_STATE, 0, LOOK_KEYS, arena, keys, &count) != KL_OK)
        return reasons;
    for (size_t i = 0; i < count; i++) {
        halted += keys[i].why == KL_WHY_HALTED;
        paused += keys[i].why == KL_WHY_PAUSED;
    }
    if (halted)
        reasons = add(arena, reasons, halted == 1 ? "a key is halted" : "some keys are halted");
    if (paused)
        reasons = add(arena, reasons, paused == 1 ? "a key is paused" : "some keys are paused");
    return reasons;
}

/* "": none but what is away. */
static const char *reasons_of(const kl_worker_queue *queue, const kl_queue_info *info, uint64_t left, kl_arena *arena)
{
    const char *reasons = "";
    kl_bytes kind;
    bool without;
    find_unserved(queue, arena, &kind, &without);
    const char *shown = kind.len ? kl__out_harmless(kind, arena) : NULL;
    if (shown)
        reasons = kl__format(arena, "there is no --kind for '%s'", shown);
    if (without)
        reasons = add(arena, reasons, "there is no command for tasks without a kind");
    if (queue->shards || queue->slices)
        reasons = add(arena, reasons, "this worker was to leave some shards alone");
    if (info->counts.due)
        reasons = add(arena, reasons, left == 1 ? "it is not due yet" : "some are not due yet");
    if (info->paused)
        reasons = add(arena, reasons, "the queue is paused");
    reasons = add_keys(queue, arena, reasons);
    if ((!reasons || !*reasons) && !*info->away)
        reasons = kl__format(
            arena,
            left == 1 ? "another worker has it, or `keyline key ls %s --by state` tells what holds it up"
                      : "other workers have them, or `keyline key ls %s --by state` tells what holds them up",
            info->name);
    return reasons ? reasons : "";
}

bool kl__work_left(const kl_worker_queue *queue, kl_arena *arena, uint64_t *ret_left, const char **ret_why,
                   const char **ret_away)
{
    kl_queue_info info;
    *ret_left = 0;
    *ret_why = *ret_away = NULL;
    if (kl_queue_show(queue->queue, arena, &info) != KL_OK) {
        *ret_away = kl__format(arena, "what is left cannot be told, so run this again: %s", kl_error_text());
        return false;
    }
    uint64_t left = *ret_left = info.counts.ready + info.counts.due + info.counts.retry;
    if (*info.away)
        *ret_away =
            kl__format(arena, "nothing was run of what is away (%s); run this again when it answers", info.away);
    const char *reasons = left > 0 ? reasons_of(queue, &info, left, arena) : "";
    if (left > 0 && (*reasons || !*ret_away))
        *ret_why = kl__format(arena, "%llu task%s in %s: %s", (unsigned long long)left, left == 1 ? " stays" : "s stay",
                              info.name, reasons);
    return true;
}
