/* window.c - the part of one shard's lines that is in memory.
 *
 * From: look.c (stubs read from the store).  To: room.c (tasks that may run).
 *
 * inside.h tells how what is held is kept from hiding what is not. Lanes know keys by their hash here: two keys of one
 * shard with the same 64 bits would run one after the other, which is in order too. */
#include <string.h>

#include "base/mutant.h"
#include "work/inside.h"

uint64_t kl__window_max(const kl__pump *pump)
{
    uint64_t share = (uint64_t)pump->opts.window_max / (pump->shard_count ? pump->shard_count : 1);
    return share > KL_WINDOW_MIN ? share : KL_WINDOW_MIN;
}

uint64_t kl__key_max(const kl__pump *pump)
{
    uint64_t quarter = kl__window_max(pump) / 4;
    return quarter < KL_KEY_MAX ? quarter : KL_KEY_MAX;
}

/* Tasks that are more urgent than what fills it find a quarter more room. */
bool kl__window_full(const kl__window *window, int32_t line)
{
    const kl__pump *pump = window->pump;
    const kl__capacity *capacity = window->partition->capacity;
    uint64_t extra = line < window->least_urgent ? 4 : 0, max = kl__window_max(pump),
             all = (uint64_t)pump->opts.window_max, held = pump->held;
    if (capacity) {
        all /= pump->capacity_count;
        held = capacity->held;
    }
    return window->held >= max + (extra ? max / extra : 0) || held >= all + (extra ? all / extra : 0);
}

kl__window *kl__window_open(kl__partition *partition, uint32_t shard, uint64_t epoch, bool clean)
{
    kl__window *window = kl__alloc_zeroed(1, sizeof *window);
    if (!window)
        return NULL;
    window->pump = partition->pump;
    window->partition = partition;
    window->place = (kl_place){partition->number, shard};
    window->epoch = epoch;
    window->opened = partition->pump->refreshes;
    window->suspect = !clean;
    window->next = partition->windows;
    window->link = &partition->windows;
    if (window->next)
        window->next->link = &window->next;
    partition->windows = partition->by_shard[shard] = window;
    partition->window_count++;
    partition->windows_alive++;
    partition->pump->shard_count++;
    return window;
}

bool kl__window_is_suspect(const kl__window *window)
{
    if (!window->suspect)
        return false;
    uint32_t lines = kl__window_lines(window);
    for (int i = 0; i < KL_LANE_PRIORITIES; i++) {
        const kl__cursor *cursor = window->cursors[i];
        if ((lines >> i & 1) && (!cursor || cursor->old == 0 || cursor->skips.count > 0))
            return true; /* some of it is not in memory */
    }
    for (uint32_t i = 0; i < window->table_capacity; i++)
        if (window->table[i].held && window->table[i].held->suspect)
            return true;
    return !window->retry_read || !window->due_clear;
}

kl__cursor *kl__window_cursor(kl__window *window, int32_t line)
{
    kl__cursor **cursor = &window->cursors[line - KL_PRIORITY_MIN];
    if (!*cursor)
        *cursor = kl__alloc_zeroed(1, sizeof **cursor);
    return *cursor;
}

kl__lane *kl__window_lane(kl__window *window, uint64_t key_hash)
{
    kl__lane_key key = kl__lane_key_of(&key_hash);
    return window->lanes && key_hash ? kl__lanes_find(window->lanes, &key) : NULL;
}

/* --- Counting --- */

static void count_held(kl__held *held, int by)
{
    kl__pump *pump = held->window->pump;
    held->window->held += (uint64_t)(int64_t)by;
    pump->held += (uint64_t)(int64_t)by;
    held->group->held += (uint64_t)(int64_t)by;
    if (pump->capacities)
        held->window->partition->capacity->held += (uint64_t)(int64_t)by;
}

static void count_blocked(kl__held *held, int by)
{
    held->window->blocked += (uint64_t)(int64_t)by;
    held->window->pump->blocked += (uint64_t)(int64_t)by;
}

static void set_blocked(kl__held *held, kl__blocked why)
{
    if ((held->blocked != KL_BLOCKED_NOT) != (why != KL_BLOCKED_NOT)) {
        count_held(held, why == KL_BLOCKED_NOT ? 1 : -1);
        count_blocked(held, why == KL_BLOCKED_NOT ? -1 : 1);
    }
    held->window->pump->unserved += why == KL_BLOCKED_KIND;
    held->window->pump->unserved -= held->blocked == KL_BLOCKED_KIND;
    held->blocked = (uint8_t)why;
}

/* --- Admitting --- */

static bool is_swept(const kl__window *window, const kl_stub *stub)
{
    return window->sweeping && (window->swept_key == 0 || window->swept_key == stub->key_hash);
}

/* `lane` is the key's; NULL: it has none. */
static bool key_is_blocked(const kl__window *window, kl__lane *lane, uint64_t key_hash)
{
    kl__lane_task *head = lane ? kl__lane_head(lane) : NULL;
    return (head && kl__held_of(head)->blocked != KL_BLOCKED_NOT) ||
           (lane && kl__lane_tasks(lane) > 0 && kl__keyset_has(window->pump->paused, key_hash));
}

/* A held task that is in no lane yet; NULL: no memory. */
static kl__held *hold(kl__window *window, const kl_stub *stub)
{
    kl__pump *pump = window->pump;
    if (!window->lanes) {
        if (!(window->lanes = kl__lanes_open()))
            return NULL;
        kl__lanes_rest_few(window->lanes); /* a worker has one for each shard, and all of them share its caches */
    }
    kl__group *group = kl__room_group(window->partition->room, stub->group);
    kl__held *held = group ? kl__held_new(pump) : NULL;
    if (!held)
        return NULL;
    held->id = stub->id;
    held->key_hash = stub->key_hash;
    held->window = window;
    held->group = group;
    held->lane.position = stub->position;
    held->lane.mark = (kl__lane_mark){.priority = stub->priority, .attempts = stub->attempts};
    if (kl__held_enter(window, held))
        return held;
    kl__held_delete(pump, held);
    return NULL;
}

kl__held *kl__window_hold(kl__window *window, const kl_stub *stub)
{
    kl__held *held = hold(window, stub);
    if (held)
        count_held(held, 1);
    return held;
}

static void let_go(kl__held *held)
{
    held->window->due_held -= held->key_hash && held->lane.mark.kind == KL_HELD_FROM_DUE;
    kl__held_forget(held->window, held);
    kl__held_delete(held->window->pump, held);
}

/* Lines before its own are read from now on, however full memory is. */
static void note_urgency(const kl__held *held)
{
    kl__window *window = held->window;
    if (window->held == 0 || held->lane.mark.priority > window->least_urgent)
        window->least_urgent = held->lane.mark.priority;
}

/* Puts a held task into its key's lane. False: no memory, and it is let go. */
static bool join_lane(kl__held *held, bool started)
{
    kl__window *window = held->window;
    kl__lane_key key = kl__lane_key_of(&held->key_hash);
    int64_t now_ms = window->pump->now_ms;
    kl__lane *lane = kl__lanes_lane(window->lanes, key.bytes, key.hash);
    bool paused = held->key_hash && !KL_MUTANT(pause_forgotten) && kl__keyset_has(window->pump->paused, held->key_hash);
    if (!lane || (paused && kl__lanes_pause(window->lanes, &key, now_ms) != KL_OK)) {
        let_go(held);
        return false;
    }
    if (started)
        kl__lanes_hold(window->lanes, lane, &held->lane, now_ms);
    else
        kl__lanes_add(window->lanes, lane, &held->lane, now_ms);
    note_urgency(held);
    count_held(held, 1);
    if (paused)
        set_blocked(held, KL_BLOCKED_PAUSED);
    return true;
}

/* It comes before the task of its key that waits for a thread: that one goes back into line. NULL: so does any. */
static void overtake(const kl__window *window, kl__lane *lane, const kl__lane_task *task)
{
    kl__lane_task *head = kl__lane_head(lane);
    kl__held *first = head ? kl__held_of(head) : NULL;
    if (!first || first->state != KL_HELD_ROOM || first->retry_line || (task && !kl__lane_task_before(task, head)))
        return;
    kl__room_remove(first);
    first->state = KL_HELD_LINE;
    kl__lanes_untake(window->lanes, head, false, window->pump->now_ms);
}

static void evict_after(kl__window *window, kl__lane *lane, const kl__lane_task *first);

/* A task is left out: those of its key that come behind it leave the window. */
static bool evict_behind(kl__window *window, uint64_t key_hash, const kl__lane_task *task)
{
    kl__lane *lane = kl__window_lane(window, key_hash);
    if (!lane)
        return false;
    overtake(window, lane, task);
    if (!kl__lane_has_after(lane, task))
        return false;
    evict_after(window, lane, task);
    return true;
}

/* Tried before, and not finished: it holds its key. There is no limit: without knowing all of them nothing else of the
 * shard may be run. */
static bool admit_started(kl__window *window, const kl_stub *stub)
{
    kl__pump *pump = window->pump;
    kl__held *held = hold(window, stub);
    if (!held)
        return false;
    held->retry_line = true;
    held->suspect = window->suspect;
    held->untold = window->suspect && stub->attempts > 0 && stub->due_ms == 0;
    held->accused = held->untold && !pump->opts.wanted &&
                    stub->attempts < pump->descriptor->settings.attempts_max; /* else it is halted, or dead */
    kl__lane *lane = kl__window_lane(window, stub->key_hash);
    if (lane)
        overtake(window, lane, NULL);
    bool holds = !lane || !kl__lane_head(lane); /* else it is run right behind the one that does, as it was before */
    bool behind = key_is_blocked(window, lane, stub->key_hash);
    held->lane.due_ms = holds ? stub->due_ms : 0;
    if (!join_lane(held, true))
        return false;
    if (held->blocked == KL_BLOCKED_NOT && (behind || held->lane.due_ms > pump->now_ms))
        set_blocked(held, behind ? KL_BLOCKED_BEHIND : KL_BLOCKED_RETRY);
    return true;
}

/* It stays in its line, to be shown again by the next look at that. False: there is no room to remember it, and from
 * here on the line is not read. */
static bool leave_due(kl__window *window, const kl_stub *stub)
{
    kl__lane_task task = {.due_ms = stub->due_ms, .position = stub->position, .mark = {.priority = stub->priority}};
    if (!stub->key_hash)
        return true;
    if (!kl__window_note_due(window, stub->key_hash, &task))
        return false;
    evict_behind(window, stub->key_hash, &task);
    return true;
}

static bool admit_due(kl__window *window, const kl_stub *stub)
{
    if (window->partition->layout_number != kl__put_layout(window->pump->descriptor)->number &&
        !KL_MUTANT(due_run_here))
        return true; /* older.c moves it */
    if (!kl__window_keeps_due(window) && !KL_MUTANT(due_run_here))
        return leave_due(window, stub); /* it is not known yet whether the owner before has moved it */
    if (!stub->key_hash && kl__gate_moves(window->partition->gate, &stub->id))
        return true; /* it may have a copy in an older layout still, of a move that was broken off */
    if (kl__gate_closed(window->partition->gate, stub->key_hash) ||
        key_is_blocked(window, kl__window_lane(window, stub->key_hash), stub->key_hash) ||
        (stub->key_hash && kl__window_unread_due(window, stub)) || kl__window_full(window, stub->priority))
        return leave_due(window, stub);
    kl__held *held = hold(window, stub);
    if (!held)
        return leave_due(window, stub);
    held->suspect = window->suspect;
    held->lane.due_ms = stub->due_ms;
    held->lane.mark.kind = KL_HELD_FROM_DUE;
    window->due_held += stub->key_hash != 0;
    if (!join_lane(held, false))
        return leave_due(window, stub);
    if (stub->key_hash)
        overtake(window, held->lane.lane, &held->lane);
    return true;
}

/* Tasks with a key that are less urgent leave the window: the line that comes before theirs could not be read on. */
static void make_room(kl__window *window, int32_t line)
{
    kl__lane_task urgent = {.due_ms = INT64_MIN, .mark = {.priority = (int8_t)line}};
    bool again = true;
    window->least_urgent = (int8_t)line;
    while (again) { /* who leaves moves others in the table */
        again = false;
        for (uint32_t i = 0; i < window->table_capacity; i++) {
            kl__held *held = window->table[i].held;
            bool waits = held && (held->state == KL_HELD_LINE || held->state == KL_HELD_ROOM) && !held->blocked;
            if (waits && held->key_hash && !held->retry_line && held->lane.mark.priority > line)
                again |= evict_behind(window, held->key_hash, &urgent);
        }
    }
}

void kl__window_yield(kl__window *window)
{
    uint32_t lines = kl__window_lines(window);
    for (; lines; lines &= lines - 1) {
        const kl__cursor *cursor = window->cursors[__builtin_ctz(lines)];
        if (cursor && cursor->ended)
            continue;
        make_room(window, __builtin_ctz(lines) + KL_PRIORITY_MIN);
        return;
    }
}

/* The line had come to its end, or was not known to be in use, when they were admitted. */
static void leave_unread(kl__window *window, int32_t line, const kl__cursor *cursor)
{
    kl__lane_task read = {.due_ms = cursor ? cursor->floor : INT64_MIN,
                          .position = cursor ? cursor->last.position : 0,
                          .mark = {.priority = (int8_t)line}};
    bool again = true;
    while (again) { /* who leaves moves others in the table */
        again = false;
        for (uint32_t i = 0; i < window->table_capacity; i++) {
            kl__held *held = window->table[i].held;
            bool waits = held && (held->state == KL_HELD_LINE || held->state == KL_HELD_ROOM) && !held->blocked;
            bool due = waits && held->key_hash && !held->retry_line && held->lane.mark.kind == KL_HELD_FROM_DUE;
            if (due && held->lane.mark.priority == line && kl__lane_task_before(&read, &held->lane))
                again |= evict_behind(window, held->key_hash, &read);
        }
    }
}

void kl__window_yield_due(kl__window *window)
{
    uint32_t lines = window->due_held > 0 ? kl__window_lines(window) : 0;
    for (; lines; lines &= lines - 1) {
        const kl__cursor *cursor = window->cursors[__builtin_ctz(lines)];
        if (!cursor || !cursor->ended)
            leave_unread(window, __builtin_ctz(lines) + KL_PRIORITY_MIN, cursor);
    }
}

typedef enum verdict { ADMIT, LEAVE_OUT, STOP } verdict;

static verdict judge(kl__window *window, int32_t line, const kl_stub *stub, uint64_t key, int64_t ms)
{
    kl__pump *pump = window->pump;
    if (is_swept(window, stub))
        return window->swept_key ? LEAVE_OUT : STOP;
    if (stub->key_hash && kl__window_unread_before(window, line))
        return STOP;
    if (kl__gate_closed(window->partition->gate, stub->key_hash) || kl__window_left_out_before(window, line, key))
        return LEAVE_OUT;
    if (stub->key_hash) {
        if (kl__window_due_before(window, stub->key_hash, line, ms, stub->position))
            return LEAVE_OUT;
        kl__lane *lane = kl__window_lane(window, stub->key_hash);
        if (lane && (key_is_blocked(window, lane, stub->key_hash) || kl__lane_tasks(lane) >= kl__key_max(pump)))
            return LEAVE_OUT;
    }
    if (!kl__window_full(window, line))
        return ADMIT;
    if (!pump->grouped)
        return STOP;
    kl__group *group = kl__room_group(window->partition->room, stub->group);
    return !group ? STOP : group->held < kl__group_min(pump, group) ? ADMIT : LEAVE_OUT;
}

/* The side look that is under way is not for this key any more. */
static void stop_wanting(kl__cursor *cursor, kl__skip *skip)
{
    cursor->wanting -= skip->wanting;
    skip->wanting = false;
}

/* Remembers that tasks of the key are left out from this one on. False: no room for that either. */
static bool leave_out(kl__window *window, kl__cursor *cursor, kl__skip *skip, const kl_stub *stub, uint64_t key,
                      int64_t ms)
{
    kl__lane_task task = {.due_ms = ms, .position = stub->position, .mark = {.priority = stub->priority}};
    if (skip)
        stop_wanting(cursor, skip);
    if (KL_MUTANT(skip_forgotten))
        return true;
    if (!skip) {
        if (!(skip = kl__skips_add(&cursor->skips, key)))
            return false;
        window->pump->left_out++;
    }
    skip->floor = ms;
    skip->from = stub->position;
    skip->group = stub->group;
    if (stub->key_hash)
        evict_behind(window, stub->key_hash, &task);
    return true;
}

/* When it came, in a form that never goes back along the line, so that the order of positions is kept. */
static int64_t time_of(const kl__window *window, const kl_stub *stub, int64_t floor)
{
    int64_t ms = kl_id_ms(&window->partition->layout, &stub->id);
    if (ms > window->pump->now_ms)
        ms = window->pump->now_ms;
    return ms > floor ? ms : floor;
}

static bool admit_ready(kl__window *window, int32_t line, const kl_stub *stub, bool side)
{
    kl__cursor *cursor = kl__window_cursor(window, line);
    if (!cursor)
        return false;
    if (line < window->least_urgent && kl__window_full(window, line))
        make_room(window, line);
    uint64_t key = stub->key_hash ? stub->key_hash : KL_SKIP_KEYLESS | stub->group;
    kl__skip *skip = kl__skips_find(&cursor->skips, key);
    if (side ? !skip || !skip->wanting || stub->position < skip->from : skip != NULL)
        return true;
    int64_t ms = time_of(window, stub, side ? skip->floor : cursor->floor);
    switch (judge(window, line, stub, key, ms)) {
    case STOP:
        return false;
    case LEAVE_OUT:
        return leave_out(window, cursor, skip, stub, key, ms);
    case ADMIT:
        break;
    }
    kl__held *held = hold(window, stub);
    if (!held)
        return false;
    held->suspect = window->suspect && (cursor->old == 0 || stub->position <= cursor->old);
    held->lane.due_ms = *(side ? &skip->floor : &cursor->floor) = ms;
    if (!join_lane(held, false))
        return false;
    if (side)
        skip->from = stub->position + 1;
    if (stub->key_hash)
        overtake(window, held->lane.lane, &held->lane);
    return true;
}

bool kl__window_admit(kl__window *window, int32_t line, const kl_stub *stub, bool side)
{
    window->pump->grouped |= stub->group != 0;
    if (kl__held_at(window, stub->position))
        return true;
    if (line == KL_LINE_DUE && kl__keyset_has(window->due_ended, stub->position))
        return true;
    if (line == KL_LINE_RETRY)
        return !is_swept(window, stub) && admit_started(window, stub);
    if (line == KL_LINE_DUE)
        return is_swept(window, stub) ? leave_due(window, stub) : admit_due(window, stub);
    return admit_ready(window, line, stub, side);
}

/* --- Ready, blocked, gone --- */

void kl__window_ready(kl__window *window)
{
    kl__lane_task *tasks[64];
    uint32_t count;
    kl__pump *pump = window->pump;
    if (!window->lanes || window->leaving || window->unlooked || window->lapsed || window->lost || pump->stopping)
        return;
    if ((KL_MUTANT(halt_holds_shard) && kl__lanes_counts(window->lanes).keys[KL_LANE_HALTED] > 0) ||
        (KL_MUTANT(pause_holds_shard) && kl__lanes_counts(window->lanes).keys[KL_LANE_PAUSED] > 0))
        return;
    while ((count = kl__lanes_take(window->lanes, tasks, 64, pump->now_ms)) > 0) {
        for (uint32_t i = 0; i < count; i++) {
            kl__held *held = kl__held_of(tasks[i]);
            set_blocked(held, KL_BLOCKED_NOT);
            kl__room_put(held);
        }
    }
}

void kl__window_shorter(kl__window *window, uint64_t key_hash, int32_t priority)
{
    kl__cursor *cursor = window->cursors[priority - KL_PRIORITY_MIN];
    if (!key_hash || !cursor || !kl__skips_find(&cursor->skips, key_hash))
        return;
    kl__lane *lane = kl__window_lane(window, key_hash);
    if (!lane || kl__lane_tasks(lane) <= kl__key_max(window->pump) / 4)
        window->pump->side_wanted = cursor->side_wanted = true;
}

/* A task that leaves the window without having run, to be read again. */
static void evict(kl__held *held)
{
    kl__window *window = held->window;
    bool due = held->lane.mark.kind == KL_HELD_FROM_DUE;
    kl__cursor *cursor =
        due || held->retry_line ? NULL : kl__window_cursor(window, held->lane.mark.priority); /* NULL: no entry */
    kl__skip *skip = cursor ? kl__skips_find(&cursor->skips, held->key_hash) : NULL;
    if (cursor && !skip && (skip = kl__skips_add(&cursor->skips, held->key_hash))) {
        *skip = (kl__skip){.key = held->key_hash, .from = UINT64_MAX, .floor = held->lane.due_ms};
        window->pump->left_out++;
    }
    bool noted = due ? kl__window_note_due(window, held->key_hash, &held->lane) : skip != NULL;
    if (held->retry_line || !noted) { /* it holds its key too, or there is no room to remember it */
        kl__lanes_add(window->lanes, held->lane.lane, &held->lane, window->pump->now_ms);
        set_blocked(held, KL_BLOCKED_BEHIND); /* or the room that it takes would be nobody's until its key goes on */
        return;
    }
    if (skip)
        stop_wanting(cursor, skip); /* what it reads next would overtake this one */
    if (skip && held->lane.position < skip->from && !KL_MUTANT(evict_from)) {
        skip->from = held->lane.position;
        skip->group = held->group->number;
        if (held->lane.due_ms < skip->floor)
            skip->floor = held->lane.due_ms;
    }
    set_blocked(held, KL_BLOCKED_NOT);
    count_held(held, -1);
    let_go(held);
}

/* `first`: only what comes after it; NULL: all. */
static void evict_after(kl__window *window, kl__lane *lane, const kl__lane_task *first)
{
    kl__lane_task *next, *task = kl__lanes_evict(window->lanes, lane);
    for (; task; task = next) {
        next = task->next;
        if (first && !kl__lane_task_before(first, task))
            kl__lanes_add(window->lanes, lane, task, window->pump->now_ms);
        else
            evict(kl__held_of(task));
    }
}

void kl__window_evict(kl__window *window, kl__lane *lane) { evict_after(window, lane, NULL); }

void kl__window_block(kl__window *window, kl__held *held, kl__blocked why)
{
    set_blocked(held, why);
    if (held->key_hash)
        kl__window_evict(window, held->lane.lane);
}

void kl__window_put_back(kl__held *held)
{
    kl__window *window = held->window;
    kl__lane_task first = {.due_ms = INT64_MIN, .mark = {.priority = held->lane.mark.priority}};
    held->state = KL_HELD_LINE;
    kl__lanes_untake(window->lanes, &held->lane, held->retry_line, window->pump->now_ms);
    note_urgency(held); /* it may have been made room for while it was out */
    if (kl__window_is_passed(held))
        evict_after(window, held->lane.lane, &first);
}

static void leave_aside(kl__held *held)
{
    *(held->prev ? &held->prev->next : &held->window->aside) = held->next;
    if (held->next)
        held->next->prev = held->prev;
}

bool kl__window_serve(kl__window *window, kl__held *held)
{
    kl__pump *pump = window->pump;
    kl__lane_key key = kl__lane_key_of(&held->key_hash);
    if (held->key_hash) {
        if (!kl__keyset_has(pump->paused, held->key_hash))
            kl__lanes_resume(window->lanes, &key, pump->now_ms);
        return true;
    }
    kl__lane *lane = kl__lanes_lane(window->lanes, key.bytes, key.hash);
    if (!lane)
        return false;
    leave_aside(held);
    set_blocked(held, KL_BLOCKED_NOT);
    held->state = KL_HELD_LINE;
    if (held->retry_line)
        kl__lanes_hold(window->lanes, lane, &held->lane, pump->now_ms);
    else
        kl__lanes_add(window->lanes, lane, &held->lane, pump->now_ms);
    return true;
}

/* Out of lane or room. */
static void take_away(kl__held *held)
{
    kl__window *window = held->window;
    int64_t now_ms = window->pump->now_ms;
    switch ((kl__held_state)held->state) {
    case KL_HELD_LINE:
        kl__lanes_withdraw(window->lanes, &held->lane, now_ms);
        kl__lanes_end(window->lanes, &held->lane, now_ms);
        break;
    case KL_HELD_ROOM:
        kl__room_remove(held);
        kl__lanes_end(window->lanes, &held->lane, now_ms);
        break;
    case KL_HELD_ASIDE:
        leave_aside(held);
        break;
    default:
        KL_ASSERT(!"only a task that waits can be taken away");
    }
}

void kl__window_clear_room(kl__window *window)
{
    for (uint32_t i = 0; i < window->table_capacity; i++) {
        kl__held *held = window->table[i].held;
        if (!held || held->state != KL_HELD_ROOM)
            continue;
        kl__room_remove(held);
        held->state = KL_HELD_LINE;
        kl__lanes_untake(window->lanes, &held->lane, held->retry_line, window->pump->now_ms);
    }
}

void kl__window_remove(kl__window *window, kl__held *held)
{
    take_away(held);
    set_blocked(held, KL_BLOCKED_NOT);
    count_held(held, -1);
    let_go(held);
    kl__window_ready(window);
}

void kl__window_release(kl__held *held)
{
    set_blocked(held, KL_BLOCKED_NOT);
    count_held(held, -1);
    let_go(held);
}

void kl__window_pass(kl__held *held)
{
    kl__window *window = held->window;
    window->passed++;
    window->pump->unserved++;
    kl__window_release(held);
    kl__window_ready(window);
}

void kl__window_withdraw(kl__held *held) { take_away(held); }

void kl__window_due_ended(kl__window *window, uint64_t position)
{
    if (!window->due_asked)
        return;
    if (!window->due_ended)
        window->due_ended = kl__keyset_open();
    window->due_spoiled |= !window->due_ended || !kl__keyset_add(window->due_ended, position);
}

void kl__window_end_due_look(kl__window *window)
{
    kl__keyset_free(window->due_ended);
    window->due_ended = NULL;
    window->due_asked = window->due_spoiled = false;
}

kl__held *kl__window_find(kl__window *window, const kl_task_id *id, uint64_t position)
{
    kl__held *held = position ? kl__held_at(window, position) : NULL;
    if (held)
        return memcmp(&held->id, id, sizeof *id) == 0 ? held : NULL;
    for (uint32_t i = 0; i < window->table_capacity; i++)
        if (window->table[i].held && memcmp(&window->table[i].held->id, id, sizeof *id) == 0)
            return window->table[i].held;
    return NULL;
}

/* --- The end --- */

static void free_window(kl__window *window)
{
    window->partition->windows_alive--;
    kl__lanes_close(window->lanes);
    for (int i = 0; i < KL_LINES; i++) {
        if (window->cursors[i]) {
            window->pump->left_out -= window->cursors[i]->skips.count;
            kl__skips_free(&window->cursors[i]->skips);
        }
        kl__free(window->cursors[i]);
    }
    kl__keyset_free(window->due_ended);
    kl__skips_free(&window->due_left);
    kl__skips_free(&window->due_leaving);
    kl__free(window->table);
    kl__free(window);
}

void kl__window_free_if_done(kl__window *window)
{
    if (window->lost && window->out == 0)
        free_window(window);
}

/* What runs, and what a settle under way has, stays until it comes back. */
static bool is_out(const kl__held *held)
{
    return held->state == KL_HELD_RUNNING || (held->state == KL_HELD_FINISHED && held->sending);
}

void kl__window_drop(kl__window *window)
{
    kl__pump *pump = window->pump;
    *window->link = window->next;
    if (window->next)
        window->next->link = window->link;
    window->partition->by_shard[window->place.shard] = NULL;
    window->partition->window_count--;
    pump->shard_count--;
    pump->unserved -= window->passed;
    window->passed = 0;
    window->lost = true;
    for (uint32_t i = 0; i < window->table_capacity; i++) {
        kl__held *held = window->table[i].held;
        if (!held)
            continue;
        set_blocked(held, KL_BLOCKED_NOT);
        count_held(held, -1);
        if (held->state == KL_HELD_ROOM)
            kl__room_remove(held);
        if (held->state == KL_HELD_FINISHED && !held->sending)
            pump->finished--;
        if (!is_out(held))
            kl__held_delete(pump, held);
    }
    if (window->table)
        memset(window->table, 0, window->table_capacity * sizeof *window->table);
    window->table_count = 0;
    window->finished = window->finished_last = window->aside = NULL;
    kl__window_free_if_done(window);
}
