/* look.c - read the lines of owned shards into their windows.
 *
 * From: worker.c (memory has room, or something was appended).  To: window.c (stub by stub).
 *
 * One look is one scan call per store, for as many lines as need reading. A window's retry line is read first and to
 * its end, because those tasks hold their keys; then the due line, so that it is known which keys have tasks there that
 * come first. Then come the ready lines that are known to be in use, each from where the last look ended, a less urgent
 * one not before the others have come to their ends; and the due line, from its first task again every DUE_EVERY_MS,
 * because a task can be put into its middle. A task that is settled while that is under way may be among what it shows,
 * and must not be run again.
 *
 * A side look reads a ready line again from the first task that was left out of some key whose line has become short,
 * beside the ordinary one: neither holds the other up, nor what is less urgent. When it has come to where the ordinary
 * one is, the keys it was for have nothing left out any more. */
#include <string.h>

#include "base/mutant.h"
#include "store/quick.h"
#include "work/inside.h"

enum {
    SCANS_MAX = 512,
    WINDOW_SCANS = 2 * KL_LINES, /* of one window, at most */
    PASSES_MAX = 64,             /* of one look, in which more urgent lines are read on */
    LINE_STUBS = 16,             /* that are read of a line, at least */
    DUE_EVERY_MS = 20,
    DUE_REST_MS = 1000,
    COUNTS_EVERY_MS = 20,
    LINES_EVERY_MS = 50,  /* where lines are told without counting, for each worker that shares the queue, */
    LINES_REST_MS = 200,  /* so that all together ask about as often as one would */
    COUNT_REST_MS = 5000, /* where a store counts slowly, */
    COUNT_SLOW_MS = 100,  /* and from so long a rest on, ticks count, so that looks are not held up */
    SIDE_KEYS = 128,      /* left out, for each ms that passes between two searches among them */
    SIDE_REST_MS = 1000
};

_Static_assert(KL_LOOK_STUBS / SCANS_MAX >= LINE_STUBS, "every line that is read gets some room");

typedef enum look_kind { LOOK_ON, LOOK_SIDE } look_kind;

struct look {
    kl__window *window;
    kl__cursor *cursor; /* NULL: the due line */
    look_kind kind;
    bool spoiled; /* what it shows counts for nothing, nor do other lines of the window */
};

struct looks {
    kl_store *store;
    size_t count;
    struct look each[SCANS_MAX];
    kl_scan scans[SCANS_MAX];
};

/* --- What to read --- */

static void plan(struct looks *looks, kl__window *window, int32_t line, look_kind kind)
{
    kl__cursor *cursor = line == KL_LINE_DUE ? NULL : kl__window_cursor(window, line);
    if (looks->count == SCANS_MAX || (line != KL_LINE_DUE && !cursor))
        return;
    const kl_stub *after = !cursor             ? (window->due_under_way ? &window->due_last : NULL)
                           : kind == LOOK_SIDE ? &cursor->side
                                               : (cursor->any ? &cursor->last : NULL);
    looks->each[looks->count] = (struct look){window, cursor, kind, false};
    looks->scans[looks->count++] =
        (kl_scan){.place = window->place, .line = line, .until_ms = window->pump->now_ms, .after = after};
    window->out++; /* it must not be freed while the store is asked */
    window->due_asked |= line == KL_LINE_DUE;
    if (kind == LOOK_ON && line <= KL_PRIORITY_MAX)
        window->lines_read |= 1u << (line - KL_PRIORITY_MIN);
}

static bool has_room(const kl__window *window, int32_t line)
{
    return window->pump->grouped || (line < window->least_urgent && window->held) || !kl__window_full(window, line);
}

/* Whether tasks of this key could be held now. */
static bool is_wanted(kl__window *window, int32_t line, const kl__skip *skip)
{
    kl__pump *pump = window->pump;
    bool keyed = skip->key < KL_SKIP_KEYLESS;
    kl__lane *lane = keyed ? kl__window_lane(window, skip->key) : NULL;
    kl__lane_task *head = lane ? kl__lane_head(lane) : NULL;
    if (keyed && kl__gate_closed(window->partition->gate, skip->key))
        return false;
    if (keyed && kl__window_due_before(window, skip->key, line, skip->floor, skip->from))
        return false;
    if (lane && kl__lane_tasks(lane) > kl__key_max(pump) / 4)
        return false;
    if (head && (kl__held_of(head)->blocked || kl__held_of(head)->retry_line)) /* it may fail again */
        return false;
    if (lane && kl__lane_tasks(lane) > 0 && kl__keyset_has(pump->paused, skip->key))
        return false;
    if (!kl__window_full(window, INT32_MAX))
        return true;
    kl__group *group = pump->grouped ? kl__room_group(window->partition->room, skip->group) : NULL;
    return group && group->held < (kl__group_min(pump, group) + 1) / 2;
}

bool kl__window_wants_side(kl__window *window)
{
    for (int i = 0; i < KL_LINES; i++) {
        const kl__cursor *cursor = window->cursors[i];
        for (uint32_t s = 0; cursor && s < cursor->skips.capacity; s++)
            if (cursor->skips.slots[s].key && is_wanted(window, i + KL_PRIORITY_MIN, &cursor->skips.slots[s]))
                return true;
    }
    return false;
}

/* When to search again. */
static void rest_side(const kl__pump *pump, kl__cursor *cursor)
{
    uint64_t least_ms = pump->left_out / SIDE_KEYS;
    uint64_t rest_ms = cursor->wanting ? least_ms : 2 * cursor->side_rest_ms + least_ms;
    cursor->side_rest_ms = rest_ms < SIDE_REST_MS ? rest_ms : SIDE_REST_MS;
    cursor->side_ms = pump->now_ms + (int64_t)cursor->side_rest_ms;
}

/* Begins a side look if some key that was left out could be held now. Asking that of every key costs time too: it is
 * paid for with credit that each look adds to, and where no line has become short it is done the less often the more
 * keys there are and the more often none was found: keys that fail for ever are searched for nothing. */
static void begin_side(kl__window *window, int32_t line, kl__cursor *cursor)
{
    kl__pump *pump = window->pump;
    uint64_t cost = 1 + cursor->skips.count / 8, from = UINT64_MAX;
    if (cursor->siding || cursor->skips.count == 0 || pump->side_credit < cost)
        return;
    if (!cursor->side_wanted && pump->now_ms < cursor->side_ms)
        return;
    cursor->side_wanted = false;
    pump->side_credit -= cost;
    for (uint32_t i = 0; i < cursor->skips.capacity; i++) {
        kl__skip *skip = &cursor->skips.slots[i];
        if (skip->key == 0 || !is_wanted(window, line, skip))
            continue;
        skip->wanting = true;
        cursor->wanting++;
        from = skip->from < from ? skip->from : from;
    }
    rest_side(pump, cursor);
    if (cursor->wanting == 0)
        return;
    cursor->siding = true;
    cursor->side = (kl_stub){.position = from - 1, .priority = 0};
    pump->counts.side_looks++;
}

static void plan_ready(struct looks *looks, kl__window *window, int32_t line)
{
    kl__cursor *cursor = window->cursors[line - KL_PRIORITY_MIN];
    if (cursor)
        begin_side(window, line, cursor);
    if (cursor && cursor->siding)
        plan(looks, window, line, LOOK_SIDE);
    if (KL_MUTANT(side_alone) && cursor && cursor->siding) {
        window->lines_read |= 1u << (line - KL_PRIORITY_MIN); /* or what is less urgent would wait, too */
        return;
    }
    if (has_room(window, line) && !(KL_MUTANT(first_page) && cursor && cursor->any))
        plan(looks, window, line, LOOK_ON);
}

/* Less urgent tasks than those of the line are held: the look does not end before more of the line, or of those behind
 * it, was read. */
static bool holds_others(const kl__window *window, int32_t line)
{
    return window->held > 0 && line < window->least_urgent;
}

/* The ready lines, up to the first that has not come to its end: of those behind it nothing would be admitted. */
static void plan_lines(struct looks *looks, kl__window *window)
{
    uint32_t lines = kl__window_lines(window);
    for (int i = 0; window->pump->left_out > 0 && i < KL_LANE_PRIORITIES; i++)
        if (window->cursors[i] && window->cursors[i]->skips.count > 0)
            lines |= 1u << i; /* also when it has become empty: lines behind it wait for the entry to go */
    for (; lines; lines &= lines - 1) {
        int index = __builtin_ctz(lines);
        bool on = !window->cursors[index] || window->cursors[index]->ended;
        plan_ready(looks, window, index + KL_PRIORITY_MIN);
        if (on || KL_MUTANT(lines_unread))
            continue;
        window->behind = holds_others(window, index + KL_PRIORITY_MIN);
        return;
    }
}

static void plan_due(struct looks *looks, kl__window *window)
{
    if (!window->due_under_way)
        window->due_looked_ms = window->pump->now_ms;
    plan(looks, window, KL_LINE_DUE, LOOK_ON);
}

static void plan_window(struct looks *looks, kl__window *window)
{
    int64_t now_ms = window->pump->now_ms;
    bool on = window->behind;
    window->behind = window->went_on = false;
    window->lines_read = 0;
    if (on) {
        plan_lines(looks, window);
        return;
    }
    if (window->leaving || window->lost || kl__gate_shut(window->partition->gate))
        return;
    if (!window->retry_read && !KL_MUTANT(retry_line_late)) {
        plan(looks, window, KL_LINE_RETRY, LOOK_ON);
        return;
    }
    if (!window->due_read && !KL_MUTANT(due_unread)) {
        plan_due(looks, window);
        return;
    }
    plan_lines(looks, window);
    /* Last, so that it is known what stands before its tasks. */
    if (window->due_under_way || now_ms >= window->due_again_ms)
        plan_due(looks, window);
    if (KL_MUTANT(retry_line_late) && !window->retry_read && window->cursors[-KL_PRIORITY_MIN] &&
        window->cursors[-KL_PRIORITY_MIN]->ended)
        plan(looks, window, KL_LINE_RETRY, LOOK_ON);
}

/* What it holds may be started: it was looked at. */
static void catch_up(kl__window *window)
{
    window->unlooked &= window->leaving;
    kl__window_ready(window);
}

/* Windows of one store, all or those that are behind, as many as one scan call takes, from shard `from` of all its
 * partitions on; false: there are more. Partitions may come and go between two calls: what is passed over is come to by
 * the next look. */
static bool plan_store(kl__pump *pump, struct looks *looks, bool behind, uint64_t *from)
{
    uint64_t first = 0; /* shard of the partition */
    looks->count = 0;
    for (kl__partition *partition = pump->partitions; partition; partition = partition->next) {
        uint64_t shards = kl_layout_shards(&partition->layout);
        if (partition->store != looks->store)
            continue;
        for (uint64_t shard = *from > first ? *from - first : 0; shard < shards; shard++) {
            kl__window *window = partition->by_shard[shard];
            if (!window || (behind && !window->behind))
                continue;
            if (looks->count + WINDOW_SCANS > SCANS_MAX) {
                *from = first + shard;
                return false;
            }
            size_t before = looks->count;
            window->behind = behind;
            plan_window(looks, window);
            if (looks->count == before) /* it has no room for anything */
                kl__window_yield_due(window);
            if (looks->count == before && window->unlooked)
                catch_up(window);
        }
        first += shards;
    }
    return true;
}

/* --- What was read --- */

/* Lets the processor fetch the places and lanes of stubs that come later: where there are many keys, they are in no
 * cache. */
static void prefetch(const kl__window *window, const kl_scan *scan, size_t at)
{
    enum { AHEAD = 8, FAR_AHEAD = 2 * AHEAD };
    if (window->lanes && at + FAR_AHEAD < scan->count) {
        kl__held_prefetch(window, scan->stubs[at + AHEAD].position);
        kl__lanes_prefetch(window->lanes, (uint32_t)scan->stubs[at + FAR_AHEAD].key_hash);
        kl__lanes_prefetch_lane(window->lanes, (uint32_t)scan->stubs[at + AHEAD].key_hash);
    }
}

/* How many of the stubs were admitted or left out; the rest must be read again. */
static size_t admit(struct look *look, const kl_scan *scan)
{
    bool side = look->kind == LOOK_SIDE;
    size_t i = 0;
    while (i < scan->count) {
        const kl_stub *stub = &scan->stubs[i];
        prefetch(look->window, scan, i);
        if (side && (look->cursor->wanting == 0 || stub->position > look->cursor->last.position))
            break;
        if (!kl__window_admit(look->window, scan->line, stub, side))
            break;
        i++;
    }
    return i;
}

/* Everything of the keys it was for has been read: they have no more left out. */
static void end_side(kl__pump *pump, kl__cursor *cursor, bool caught_up)
{
    for (uint32_t i = 0; cursor->wanting > 0 && i < cursor->skips.capacity;) {
        kl__skip *skip = &cursor->skips.slots[i];
        if (skip->key == 0 || !skip->wanting) {
            i++;
            continue;
        }
        cursor->wanting--;
        skip->wanting = false;
        if (!caught_up)
            continue;
        pump->left_out--;
        if (skip->floor > cursor->floor && !KL_MUTANT(floor_lost))
            cursor->floor = skip->floor; /* what the ordinary look reads next of this key comes behind what is held */
        kl__skips_remove(&cursor->skips, skip); /* another may have taken its place: look at it again */
    }
    cursor->siding = false;
}

static void apply_side(struct look *look, const kl_scan *scan, size_t admitted)
{
    kl__cursor *cursor = look->cursor;
    bool whole = admitted == scan->count;
    if (admitted > 0)
        cursor->side = scan->stubs[admitted - 1];
    if (cursor->wanting == 0) {
        cursor->siding = false;
    } else if (whole && scan->count < scan->max) {
        end_side(look->window->pump, cursor, true);
    } else if (!whole) { /* past the ordinary look's place, or no room */
        end_side(look->window->pump, cursor, scan->stubs[admitted].position > cursor->last.position);
    }
}

static void apply_on(struct look *look, const kl_scan *scan, size_t admitted)
{
    kl__cursor *cursor = look->cursor;
    kl__window *window = look->window;
    if (admitted > 0) {
        cursor->last = scan->stubs[admitted - 1];
        cursor->any = true;
    }
    cursor->ended = admitted == scan->count && scan->count < scan->max;
    window->went_on |= admitted == scan->count;
    window->behind |= !cursor->ended && holds_others(window, scan->line);
    if (cursor->ended && cursor->old == 0)
        cursor->old = cursor->any ? cursor->last.position : 1;
    if (scan->line == KL_LINE_RETRY && cursor->ended)
        window->retry_read = true;
    window->pump->more |= !cursor->ended || scan->line == KL_LINE_RETRY;
    window->pump->eager |= admitted == scan->count && (scan->count == scan->max || scan->line == KL_LINE_RETRY);
}

static void apply_due(struct look *look, const kl_scan *scan, size_t admitted)
{
    kl__window *window = look->window;
    int64_t now_ms = window->pump->now_ms, took_ms = now_ms - window->due_looked_ms;
    window->due_clear = !window->due_under_way && scan->count == 0;
    window->due_under_way = admitted == scan->count && scan->count == scan->max;
    if (window->due_under_way)
        window->due_last = scan->stubs[admitted - 1];
    else if (window->due_read || window->due_clear) /* one that takes long, because its keys are blocked, has to rest */
        window->due_again_ms = now_ms + (took_ms < DUE_REST_MS ? took_ms : DUE_REST_MS) + DUE_EVERY_MS;
    window->pump->more |= window->due_under_way || !window->due_read;
    window->pump->eager |= window->due_under_way || !window->due_read;
    /* Without memory for what is left out it was not read: it is begun again, and what was known before counts too. */
    if (!window->due_under_way && (admitted == scan->count || window->due_leaving.count == KL_SKIPS_MAX))
        kl__window_end_due(window);
}

static void apply(struct look *look, const kl_scan *scan)
{
    kl__window *window = look->window;
    size_t admitted;
    if (!look->cursor)
        window->due_partly = window->due_under_way || scan->count == scan->max;
    admitted = admit(look, scan);
    if (look->kind == LOOK_SIDE)
        apply_side(look, scan, admitted);
    else if (look->cursor)
        apply_on(look, scan, admitted);
    else
        apply_due(look, scan, admitted);
    window->pump->more |= look->cursor && look->cursor->siding;
}

/* What is due comes last. Where that is spoiled, all lines are read once more, and until then nothing is started: what
 * is in memory could pass what is not. */
static void apply_or_pass(struct look *look, const kl_scan *scan)
{
    kl__window *window = look->window;
    if (window->lost)
        return;
    look->spoiled = window->due_spoiled;
    if (!look->spoiled) {
        apply(look, scan);
    } else if (!window->unlooked) {
        window->unlooked = window->pump->more = window->pump->eager = true;
        kl__window_clear_room(window);
    }
    if (!look->cursor)
        kl__window_end_due_look(window);
}

/* Only now that all its lines were applied: a task of one may come before those of another. */
static void release(const struct look *look)
{
    kl__window *window = look->window;
    window->out--;
    if (window->lost) {
        kl__window_free_if_done(window);
        return;
    }
    kl__window_yield_due(window);
    if (!look->spoiled)
        catch_up(window);
}

static void give_up(struct looks *looks)
{
    for (size_t i = 0; i < looks->count; i++) {
        looks->each[i].window->out--;
        if (!looks->each[i].cursor)
            kl__window_end_due_look(looks->each[i].window);
        kl__window_free_if_done(looks->each[i].window);
    }
}

static size_t stubs_of(kl_store *store) { return kl__store_is_far(store) ? KL_LOOK_STUBS : KL_LOOK_NEAR; }

static kl_rc look_at(kl__pump *pump, struct looks *looks)
{
    if (looks->count == 0)
        return KL_OK;
    size_t each = stubs_of(looks->store) / looks->count;
    if (each < LINE_STUBS)
        each = LINE_STUBS;
    for (size_t i = 0; i < looks->count; i++) {
        looks->scans[i].stubs = pump->stubs + i * each;
        looks->scans[i].max = each;
    }
    kl__pump_leave(pump);
    kl_rc rc = kl_store_scan(looks->store, looks->scans, looks->count);
    kl__pump_enter(pump);
    if (rc != KL_OK) {
        give_up(looks);
        return rc;
    }
    for (size_t i = 0; i < looks->count; i++)
        apply_or_pass(&looks->each[i], &looks->scans[i]);
    for (size_t i = 0; i < looks->count; i++)
        release(&looks->each[i]);
    return KL_OK;
}

static kl_rc look_at_all(kl__pump *pump, struct looks *looks, bool behind)
{
    uint64_t from = 0;
    bool all = false;
    kl_rc rc = KL_OK;
    while (!all && rc == KL_OK) {
        all = plan_store(pump, looks, behind, &from);
        rc = look_at(pump, looks);
    }
    return rc;
}

/* Whether lines of some window are to be read on, and could be; `last`: then what it holds of less urgent ones
 * leaves. */
static bool is_behind(const kl__pump *pump, const kl_store *store, bool last)
{
    bool any = false;
    for (kl__partition *partition = pump->partitions; partition; partition = partition->next) {
        for (kl__window *window = partition->store == store ? partition->windows : NULL; window;
             window = window->next) {
            window->behind &= window->went_on;
            if (window->behind && last)
                kl__window_yield(window);
            any |= window->behind;
        }
    }
    return any;
}

static kl_rc look_at_store(kl__pump *pump, struct looks *looks, kl_store *store)
{
    kl_rc rc = KL_OK;
    looks->store = store;
    pump->side_credit += stubs_of(store) / 8;
    if (pump->side_credit > KL_SKIPS_MAX)
        pump->side_credit = KL_SKIPS_MAX;
    for (int pass = 0; rc == KL_OK && (pass == 0 || is_behind(pump, store, pass == PASSES_MAX)) && pass < PASSES_MAX;
         pass++)
        rc = look_at_all(pump, looks, pass > 0);
    return rc;
}

static bool is_time_to_count(const kl__pump *pump, const kl__partition *partition, bool quick)
{
    int64_t lines_ms = LINES_EVERY_MS * (int64_t)kl__pump_sharers(pump);
    int64_t rest_ms = !quick ? COUNTS_EVERY_MS : lines_ms < LINES_REST_MS ? lines_ms : LINES_REST_MS;
    if (partition->count_rest_ms > rest_ms)
        rest_ms = partition->count_rest_ms;
    return !partition->counted_ms || pump->now_ms - partition->counted_ms >= rest_ms;
}

/* Which lines are in use; and what waits, where somebody wants to know or there is no quicker way. */
static kl_rc count_partition(kl__pump *pump, kl__partition *partition)
{
    kl_store *store = partition->store;
    bool quick = !pump->counts_wanted && kl__store_has_lines(store);
    if (!is_time_to_count(pump, partition, quick))
        return KL_OK;
    kl_counts counts = {0};
    kl_place place = {partition->number, KL_ALL_SHARDS};
    int64_t began_ms = pump->opts.local_ms(pump->opts.local_ctx), asked_ms = pump->now_ms;
    kl__pump_leave(pump);
    kl_rc rc = quick ? kl__store_lines(store, place.partition, &counts.priorities)
                     : kl_store_counts(store, place, NULL, &counts);
    kl__pump_enter(pump);
    if (rc != KL_OK)
        return rc;
    int64_t took_ms = pump->opts.local_ms(pump->opts.local_ctx) - began_ms;
    partition->count_rest_ms = 20 * took_ms < COUNT_REST_MS ? 20 * took_ms : COUNT_REST_MS;
    partition->counted_ms = asked_ms;
    partition->counts_known |= !quick;
    if (!quick)
        partition->counts = counts;
    partition->priorities = counts.priorities;
    return KL_OK;
}

static kl_rc count_all(kl__pump *pump, bool slow)
{
    kl_rc first = KL_OK;
    for (kl__partition *partition = pump->partitions; partition; partition = partition->next) {
        bool is_slow = partition->counted_ms && partition->count_rest_ms >= COUNT_SLOW_MS;
        kl_rc rc = is_slow == slow ? count_partition(pump, partition) : KL_OK;
        first = first != KL_OK ? first : rc;
    }
    pump->prioritized = false;
    for (kl__partition *partition = pump->partitions; partition; partition = partition->next)
        pump->prioritized |= (partition->priorities & (partition->priorities - 1)) != 0;
    return first;
}

kl_rc kl__pump_count(kl__pump *pump) { return count_all(pump, true); }

static bool seen_before(kl__pump *pump, const kl__partition *partition)
{
    for (kl__partition *before = pump->partitions; before != partition; before = before->next)
        if (before->store == partition->store)
            return true;
    return false;
}

kl_rc kl__pump_look(kl__pump *pump, uint64_t *ret_ready)
{
    kl_rc rc, first;
    *ret_ready = kl__pump_startable(pump);
    if (pump->looking || pump->stopping)
        return KL_OK;
    pump->looking = true;
    pump->more = pump->eager = false;
    pump->counts.looks++;
    pump->looked_ms = pump->opts.local_ms(pump->opts.local_ctx);
    kl__pump_now(pump);
    first = count_all(pump, false);
    for (kl__partition *partition = pump->partitions; partition; partition = partition->next) {
        if (seen_before(pump, partition))
            continue;
        rc = look_at_store(pump, pump->looks, partition->store);
        first = first != KL_OK ? first : rc;
    }
    pump->side_wanted = false;
    pump->looking = false;
    *ret_ready = kl__pump_startable(pump);
    return first;
}

struct looks *kl__looks_open(void) { return kl__alloc(sizeof(struct looks)); }
