/* before.c - what of a key comes before a task, and is not in memory.
 *
 * From: window.c (a stub that is to be admitted, a task that comes back unrun).
 *
 * The order of a key is (priority, due time, position). Something that comes before a task may be missing for four
 * reasons: its line was not read to its end, or not by the look under way; it was left out of its ready line (the
 * skips); it is due and was left out; or it is due and stands further behind in a due line that is read in pieces. */
#include "base/mutant.h"
#include "work/inside.h"

uint32_t kl__window_lines(const kl__window *window) { return window->partition->priorities | 1u << -KL_PRIORITY_MIN; }

/* The look under way does not read this line on: that it was read to its end once says nothing of what came since. */
static bool is_passed_over(const kl__window *window, int32_t line)
{
    return !(window->lines_read >> (line - KL_PRIORITY_MIN) & 1);
}

/* A line that is more urgent than this one is in use, and was not read to its end. */
static bool unended_before(const kl__window *window, int32_t line)
{
    uint32_t lines = kl__window_lines(window) & ((1u << (line - KL_PRIORITY_MIN)) - 1);
    if (KL_MUTANT(lines_unread))
        return false;
    for (; lines; lines &= lines - 1) {
        const kl__cursor *cursor = window->cursors[__builtin_ctz(lines)];
        if (!cursor || !cursor->ended)
            return true;
    }
    return false;
}

/* The same, or the look under way passes one over. */
bool kl__window_unread_before(const kl__window *window, int32_t line)
{
    uint32_t lines = kl__window_lines(window) & ((1u << (line - KL_PRIORITY_MIN)) - 1);
    return ((lines & ~window->lines_read) && !KL_MUTANT(lines_unread)) || unended_before(window, line);
}

/* Tasks of the key stand, left out, in a line that comes before this one. */
bool kl__window_left_out_before(const kl__window *window, int32_t line, uint64_t key)
{
    for (int32_t before = KL_PRIORITY_MIN; before < line; before++) {
        const kl__cursor *cursor = window->cursors[before - KL_PRIORITY_MIN];
        if (cursor && kl__skips_find(&cursor->skips, key))
            return true;
    }
    return false;
}

/* Tasks of the key that come before this one of the due line are left out of their lines, or may not have been read
 * yet. */
static bool earlier_unread(const kl__window *window, const kl_stub *stub)
{
    if (kl__window_unread_before(window, stub->priority) ||
        kl__window_left_out_before(window, stub->priority, stub->key_hash))
        return true;
    uint32_t lines = kl__window_lines(window);
    const kl__cursor *cursor = window->cursors[stub->priority - KL_PRIORITY_MIN];
    const kl__skip *skip = cursor ? kl__skips_find(&cursor->skips, stub->key_hash) : NULL;
    if (skip && (skip->floor < stub->due_ms || (skip->floor == stub->due_ms && skip->from < stub->position)))
        return true;
    return (lines >> (stub->priority - KL_PRIORITY_MIN) & 1) &&
           (!cursor || ((!cursor->ended || is_passed_over(window, stub->priority)) && cursor->floor <= stub->due_ms));
}

static bool is_before(const kl__skip *skip, int32_t line, int64_t ms, uint64_t position)
{
    if (!skip || skip->priority != line)
        return skip && skip->priority < line;
    return skip->floor < ms || (skip->floor == ms && skip->from < position);
}

bool kl__window_due_before(const kl__window *window, uint64_t key_hash, int32_t line, int64_t ms, uint64_t position)
{
    if (KL_LIKELY(window->due_left.count + window->due_leaving.count == 0))
        return false;
    return is_before(kl__skips_find(&window->due_left, key_hash), line, ms, position) ||
           is_before(kl__skips_find(&window->due_leaving, key_hash), line, ms, position);
}

/* Remembers that a task of the due line is left out. False: no room for that. */
bool kl__window_note_due(kl__window *window, uint64_t key_hash, const kl__lane_task *task)
{
    kl__skips *skips = window->due_asked || window->due_under_way ? &window->due_leaving : &window->due_left;
    kl__skip *skip = kl__skips_find(skips, key_hash);
    if (skip && is_before(skip, task->mark.priority, task->due_ms, task->position))
        return true;
    if (!skip && !(skip = kl__skips_add(skips, key_hash)))
        return false;
    skip->priority = task->mark.priority;
    skip->floor = task->due_ms;
    skip->from = task->position;
    return true;
}

void kl__window_end_due(kl__window *window)
{
    kl__skips_free(&window->due_left);
    window->due_left = window->due_leaving;
    window->due_leaving = (kl__skips){0};
    window->due_read = true;
}

/* Others of the due line that come before this one are left out, in this reading or, as far as it has not shown them
 * yet, in the one before: there it was known which was the first, and so how urgent they are. In a first one nothing is
 * known. */
static bool earlier_due(const kl__window *window, const kl_stub *stub)
{
    const kl__skip *left = kl__skips_find(&window->due_left, stub->key_hash);
    bool later = window->due_partly && (!window->due_read || (left && left->priority < stub->priority));
    return (later && !KL_MUTANT(due_piecemeal)) || is_before(kl__skips_find(&window->due_leaving, stub->key_hash),
                                                             stub->priority, stub->due_ms, stub->position);
}

bool kl__window_unread_due(const kl__window *window, const kl_stub *stub)
{
    return earlier_unread(window, stub) || earlier_due(window, stub);
}

/* Something of its key that comes before it was left out meanwhile, or a line before its own was not read, or not to
 * its end. */
bool kl__window_is_passed(const kl__held *held)
{
    const kl__window *window = held->window;
    const kl__lane_task *task = &held->lane;
    return held->key_hash && !held->retry_line &&
           (kl__window_left_out_before(window, task->mark.priority, held->key_hash) ||
            kl__window_unread_before(window, task->mark.priority) ||
            kl__window_due_before(window, held->key_hash, task->mark.priority, task->due_ms, task->position));
}
