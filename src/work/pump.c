/* pump.c - take tasks that may run, and decide what comes of a run.
 *
 * From: room.c (ready tasks).  To: load.c and worker.c, whose threads run them; then settle.c.
 *
 *      take          load.c              (a thread runs it)        finish
 *    -------> held ----------> to be run ------------------> outcome -------> settle.c */
#include "work/inside.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mutant.h"
#include "base/random.h"
#include "store/quick.h"

enum {
    LOG_BYTES = 512,
    /* What is kept of a task's attempts before the last: one that may be tried for ever does not fill the store, nor do
     * those that fail once each and then are done. */
    KEPT_ERRORS = 32,
    KEPT_ERROR_MS = 24 * 3600 * 1000,
};

void kl__pump_log(const kl__pump *pump, kl_log_level level, const char *format, ...)
{
    char text[LOG_BYTES];
    if (!pump->opts.log)
        return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    pump->opts.log(pump->opts.log_ctx, level, text);
}

int64_t kl__pump_now(kl__pump *pump)
{
    int64_t now_ms = pump->clock_set ? pump->opts.local_ms(pump->opts.local_ctx) + pump->clock_offset_ms : 0;
    if (now_ms > pump->now_ms)
        pump->now_ms = now_ms;
    return pump->now_ms;
}

kl_rc kl__pump_open(const kl__pump_opts *opts, kl__pump **ret_pump)
{
    kl__pump *pump = kl__alloc_zeroed(1, sizeof *pump);
    if (!pump)
        return kl__fail_memory();
    pump->opts = *opts;
    pump->queue = opts->queue;
    pump->random = opts->seed;
    pump->descriptor = kl__queue_descriptor(opts->queue);
    pump->room = kl__room_open();
    pump->accused_others = kl__alloc_zeroed(1, sizeof *pump->accused_others);
    pump->stubs = kl__alloc_zeroed(KL_LOOK_STUBS, sizeof *pump->stubs);
    pump->looks = kl__looks_open();
    pump->settles = kl__settles_open();
    pump->paused = kl__keyset_open();
    pump->tokens = -1;
    pump->given = opts->shards ? kl__alloc(sizeof *pump->given) : NULL;
    kl_rc rc = KL_OK;
    if (!pump->room || !pump->accused_others || !pump->stubs || !pump->looks || !pump->settles || !pump->paused ||
        (opts->shards && !pump->given))
        rc = kl__fail_memory();
    if (rc == KL_OK && opts->shards)
        rc = kl_shards_parse(opts->shards_layout ? opts->shards_layout : &kl__newest_layout(pump->descriptor)->layout,
                             kl_str(opts->shards), pump->given);
    if (rc != KL_OK) {
        kl__pump_close(pump);
        return rc;
    }
    *ret_pump = pump;
    return KL_OK;
}

void kl__pump_close(kl__pump *pump)
{
    if (!pump)
        return;
    KL_ASSERT(pump->running == 0);
    kl__partitions_close(pump);
    kl__gates_free(pump);
    kl__room_close(pump->room);
    kl__free(pump->accused_others);
    kl__settles_free(pump->settles);
    kl__keyset_free(pump->paused);
    kl__held_free_blocks(pump);
    kl__cancelled_free(&pump->cancelled);
    kl__free(pump->given);
    kl__free(pump->stubs);
    kl__free(pump->looks);
    kl__descriptor_release(pump->descriptor);
    kl__free(pump);
}

/* --- Take --- */

/* Tasks that have become due since the last time. */
static void wake_windows(kl__pump *pump)
{
    for (kl__partition *partition = pump->partitions; partition; partition = partition->next)
        for (kl__window *window = partition->windows; window; window = window->next)
            if (window->lanes && kl__lanes_next_due(window->lanes) <= pump->now_ms)
                kl__window_ready(window);
}

/* When the queue's rate lets something start that it does not let start now. */
static int64_t next_token(const kl__pump *pump)
{
    const kl_queue_opts *settings = &pump->descriptor->settings;
    if (settings->rate == KL_FOREVER || pump->tokens < 0 || pump->tokens >= 1 || !kl__pump_startable(pump) ||
        pump->shard_count == 0)
        return KL_NEVER;
    double per_ms = (double)settings->rate * (double)pump->shard_count / (double)pump->all_shards / 1000;
    return pump->tokens_ms + (int64_t)((1 - pump->tokens) / per_ms) + 1;
}

/* --- Accused tasks, one at a time (P6) --- */

/* When the one that runs has run for so long that it is not likely to end the process any more. */
static int64_t accused_until(const kl__pump *pump)
{
    bool others = pump->accused && pump->accused_others->count > 0;
    return others ? pump->accused->started_ms + pump->descriptor->settings.lease_ms : KL_NEVER;
}

/* Some of the others come forward, of which one will be the next; wake() looks whether they can. */
static void release_accused(kl__pump *pump)
{
    pump->accused = NULL;
    kl__room_unshelve(pump->accused_others, KL_LOAD_MAX);
}

/* Whether another one keeps it waiting. */
static bool waits_for_accused(kl__pump *pump, kl__held *held)
{
    if (!held->accused)
        return false;
    if (pump->accused) {
        kl__room_shelve(pump->accused_others, held);
        return true;
    }
    pump->accused = held;
    return false;
}

/* What may be started since time has passed. */
static void wake(kl__pump *pump)
{
    int64_t before_ms = pump->now_ms;
    if (kl__pump_now(pump) != before_ms)
        wake_windows(pump);
    bool is_free = !pump->accused || pump->now_ms >= accused_until(pump);
    if (is_free && pump->accused_others->count > 0)
        release_accused(pump);
}

int64_t kl__pump_next_due(kl__pump *pump)
{
    int64_t next = next_token(pump), accused_ms = accused_until(pump);
    next = accused_ms < next ? accused_ms : next;
    for (kl__partition *partition = pump->partitions; partition; partition = partition->next) {
        for (kl__window *window = partition->windows; window; window = window->next) {
            int64_t due = window->lanes ? kl__lanes_next_due(window->lanes) : KL_NEVER;
            next = due < next ? due : next;
        }
    }
    return next;
}

/* How many the queue's rate lets start now; -1 tokens: the bucket has never been used and is full. */
static size_t allowed_by_rate(kl__pump *pump, size_t max)
{
    const kl_queue_opts *settings = &pump->descriptor->settings;
    if (settings->rate == KL_FOREVER || pump->all_shards == 0)
        return max;
    double share = (double)pump->shard_count / (double)pump->all_shards;
    double burst = (double)settings->burst * share < 1 ? 1 : (double)settings->burst * share;
    double gained = (double)(pump->now_ms - pump->tokens_ms) * (double)settings->rate * share / 1000;
    pump->tokens = pump->tokens < 0 || pump->tokens + gained > burst ? burst : pump->tokens + gained;
    pump->tokens_ms = pump->now_ms;
    return pump->tokens < (double)max ? (size_t)pump->tokens : max;
}

static size_t allowed(kl__pump *pump, size_t max)
{
    const kl_queue_opts *settings = &pump->descriptor->settings;
    if (pump->stopping || pump->descriptor->paused || pump->opts.handler_count == 0)
        return 0;
    size_t most = allowed_by_rate(pump, max);
    if (settings->concurrency != KL_FOREVER) {
        uint64_t permits = kl__partitions_permits(pump);
        uint64_t free = permits > pump->running ? permits - pump->running : 0;
        most = free < most ? (size_t)free : most;
    }
    pump->limited = max > 0 && most == 0;
    return most;
}

bool kl__held_lease_holds(const kl__held *held, int64_t local_ms)
{
    return KL_MUTANT(lease_ignored) || kl__owners_holds(held->window->partition->owners, local_ms);
}

size_t kl__pump_take(kl__pump *pump, kl__held **ret_held, size_t max)
{
    size_t count = 0;
    kl__held *held;
    kl__room *room;
    wake(pump);
    max = allowed(pump, max);
    int64_t local_ms = max ? pump->opts.local_ms(pump->opts.local_ctx) : 0;
    while (count < max && (room = pump->capacities ? kl__capacity_next(pump) : pump->room) &&
           (held = kl__room_take(room))) {
        if (!kl__held_lease_holds(held,
                                  local_ms)) { /* P4: the next beat gets the lease back, or tells that it is lost */
            kl__room_put_back(held);
            held->window->lapsed = pump->beat_now = true;
            kl__window_clear_room(held->window);
            continue;
        }
        if (waits_for_accused(pump, held))
            continue;
        held->state = KL_HELD_RUNNING;
        held->started_ms = pump->now_ms;
        held->window->out++;
        if (pump->capacities)
            held->window->partition->capacity->running++;
        ret_held[count++] = held;
    }
    pump->running += count;
    if (pump->tokens >= 0)
        pump->tokens -= (double)count;
    return count;
}

uint64_t kl__pump_ready(kl__pump *pump)
{
    wake(pump);
    uint64_t ready = kl__pump_startable(pump);
    return ready && allowed(pump, 1) ? ready : 0;
}

/* It is no longer with a thread. False: its window is lost, and it is gone. */
static bool come_back(kl__pump *pump, kl__held *held)
{
    kl__window *window = held->window;
    pump->running--;
    window->out--;
    if (pump->accused == held)
        release_accused(pump);
    if (pump->capacities && !KL_MUTANT(capacity_leaks))
        window->partition->capacity->running--;
    if (!window->lost)
        return true;
    pump->counts.refused++;
    kl__held_delete(pump, held);
    kl__window_free_if_done(window);
    return false;
}

/* The rate is for those that are run. */
bool kl__pump_come_back_unrun(kl__pump *pump, kl__held *held)
{
    if (pump->tokens >= 0)
        pump->tokens++;
    return come_back(pump, held);
}

void kl__pump_untake(kl__pump *pump, kl__held *held) { kl__pump_give_up(pump, held, 0); }

/* --- Outcomes --- */

void kl__pump_settle_later(kl__pump *pump, kl__held *held, kl_outcome outcome, int64_t keep_ms)
{
    kl__window *window = held->window;
    held->state = KL_HELD_FINISHED;
    held->outcome = (uint8_t)outcome;
    held->keep_ms = held->traceless ? 0 : keep_ms;
    held->next = NULL;
    *(window->finished_last ? &window->finished_last->next : &window->finished) = held;
    window->finished_last = held;
    pump->finished++;
}

/* One that was cancelled ends so: it may leave the window, and who reads it again does not know. */
void kl__pump_give_up(kl__pump *pump, kl__held *held, int64_t keep_ms)
{
    kl__window *window = held->window;
    if (!kl__pump_come_back_unrun(pump, held))
        return;
    if (held->marked) /* the start that was written down is taken back */
        held->lane.mark.attempts -= !KL_MUTANT(stop_costs);
    if (atomic_load(&held->cancel)) {
        kl__lanes_end(window->lanes, &held->lane, pump->now_ms);
        kl__pump_settle_later(pump, held, KL_CANCELLED, kl__pump_keep_ms(pump, KL_CANCELLED, keep_ms));
    } else if (held->marked) {
        kl__pump_settle_later(pump, held, KL_RETRY, 0);
        return;
    } else {
        kl__window_put_back(held);
    }
    kl__window_ready(window);
}

/* Keeps what the run said. When there is no memory for it, the outcome goes without. */
void kl__held_keep_text(kl__held *held, kl_bytes error, kl_bytes result)
{
    kl__free(held->text); /* of an earlier attempt */
    held->text = NULL;
    if (error.len > KL_ERROR_BYTES_MAX)
        error.len = KL_ERROR_BYTES_MAX;
    if (error.len + result.len == 0 || !(held->text = kl__alloc(sizeof *held->text + error.len + result.len)))
        return;
    char *bytes = held->text->bytes;
    if (error.len)
        memcpy(bytes, error.data, error.len);
    if (result.len)
        memcpy(bytes + error.len, result.data, result.len);
    held->text->error = (kl_bytes){bytes, error.len};
    held->text->result = (kl_bytes){bytes + error.len, result.len};
}

/* base, doubled for each attempt after the first, up to max; then half of it fixed and half at random. */
static int64_t back_off(kl__pump *pump, uint32_t attempts)
{
    const kl_queue_opts *settings = &pump->descriptor->settings;
    int64_t wait_ms = settings->backoff_base_ms;
    for (uint32_t i = 1; i < attempts && wait_ms < settings->backoff_max_ms; i++)
        wait_ms *= 2;
    if (wait_ms > settings->backoff_max_ms)
        wait_ms = settings->backoff_max_ms;
    return wait_ms / 2 + (int64_t)kl__random_below(&pump->random, (uint64_t)(wait_ms / 2) + 1);
}

static int64_t keep_ms_of(int64_t setting) { return setting == KL_NO_WAIT ? 0 : setting; }

int64_t kl__pump_keep_ms(const kl__pump *pump, kl_outcome outcome, int64_t asked_ms)
{
    const kl_queue_opts *settings = &pump->descriptor->settings;
    int64_t queue_ms = keep_ms_of(outcome == KL_DEAD ? settings->keep_dead_ms : settings->keep_done_ms);
    return asked_ms > queue_ms ? asked_ms : queue_ms;
}

/* How long the error of an attempt is kept whose task is not finished. When it is, the store keeps with it what is
 * there. */
static int64_t keep_error_ms(const kl__pump *pump, const kl__held *held, int64_t asked_ms)
{
    return held->text && held->text->error.len ? kl__pump_keep_ms(pump, KL_DEAD, asked_ms) : 0;
}

/* Where the queue's policy holds the key, the task stays, with all its attempts used up: that is how every later owner
 * knows. */
void kl__pump_end_dead(kl__pump *pump, kl__held *held, uint32_t attempts_max, int64_t asked_ms)
{
    kl_head_policy policy = pump->descriptor->settings.head_policy;
    uint16_t made = held->made ? held->made : held->lane.mark.attempts;
    if (policy == KL_HEAD_CONTINUE || !held->key_hash) {
        held->lane.mark.attempts = made;
        kl__lanes_end(held->window->lanes, &held->lane, pump->now_ms);
        kl__pump_settle_later(pump, held, KL_DEAD, kl__pump_keep_ms(pump, KL_DEAD, asked_ms));
        return;
    }
    held->made = made;
    if (held->lane.mark.attempts < attempts_max)
        held->lane.mark.attempts = (uint16_t)attempts_max;
    held->halted = true;
    held->draining = policy == KL_HEAD_DRAIN;
    held->retry_ms = pump->now_ms; /* 0 is for starts that are written down before there is an outcome */
    kl__pump_settle_later(pump, held, KL_RETRY, keep_error_ms(pump, held, asked_ms));
}

void kl__pump_finish(kl__pump *pump, kl__held *held, const kl__verdict *verdict)
{
    if (!come_back(pump, held))
        return;
    uint32_t max = verdict->attempts_max ? verdict->attempts_max : (uint32_t)pump->descriptor->settings.attempts_max;
    kl_outcome outcome = verdict->outcome;
    kl__window *window = held->window;
    held->accused = held->untold = false;
    if (!held->marked && held->lane.mark.attempts < KL_ATTEMPTS_MAX)
        held->lane.mark.attempts++;
    if (outcome != KL_DONE && atomic_load(&held->cancel))
        outcome = KL_CANCELLED;
    else if (outcome == KL_CANCELLED || (outcome == KL_RETRY && held->lane.mark.attempts >= max))
        outcome = KL_DEAD;
    kl_bytes result = verdict->result;
    if (outcome == KL_RETRY)
        result.len = 0;
    kl__held_keep_text(held, verdict->error, result);
    if (outcome == KL_DEAD) {
        kl__pump_end_dead(pump, held, max, verdict->keep_ms);
    } else if (outcome == KL_RETRY) {
        int64_t wait_ms =
            verdict->retry_after_ms >= 0 ? verdict->retry_after_ms : back_off(pump, held->lane.mark.attempts);
        held->retry_ms = pump->now_ms + wait_ms;
        int64_t keep_ms = held->lane.mark.attempts <= KEPT_ERRORS ? keep_error_ms(pump, held, verdict->keep_ms) : 0;
        kl__pump_settle_later(pump, held, KL_RETRY, keep_ms < KEPT_ERROR_MS ? keep_ms : KEPT_ERROR_MS);
    } else {
        kl__lanes_end(window->lanes, &held->lane, pump->now_ms);
        kl__pump_settle_later(pump, held, outcome, kl__pump_keep_ms(pump, outcome, verdict->keep_ms));
    }
    if (pump->left_out && outcome != KL_RETRY)
        kl__window_shorter(window, held->key_hash, held->lane.mark.priority);
    kl__window_ready(window);
}

/* --- The end, and what is told --- */

static void clear_room(kl__pump *pump, kl__room *room)
{
    kl__held *held;
    while ((held = kl__room_take(room))) {
        held->state = KL_HELD_LINE;
        kl__lanes_untake(held->window->lanes, &held->lane, held->retry_line, pump->now_ms);
    }
}

void kl__pump_stop(kl__pump *pump)
{
    pump->stopping = pump->beat_now = true;
    for (kl__shelf *shelf = kl__room_shelves(pump->room); shelf; shelf = shelf->next)
        kl__room_unshelve(shelf, SIZE_MAX);
    release_accused(pump);
    kl__room_unshelve(pump->accused_others, SIZE_MAX);
    for (kl__partition *partition = pump->partitions; partition; partition = partition->next)
        clear_room(pump, partition->room);
}

/* A store that is away must not hold up the end: when no beat came through for a whole lease, nothing is left to give
 * back, and no outcome would count. Nor must one that answers and refuses outcomes for so long: others run those
 * tasks. */
bool kl__pump_gone(const kl__pump *pump)
{
    int64_t local_ms = pump->opts.local_ms(pump->opts.local_ctx), lease_ms = kl__partitions_lease_ms(pump);
    bool away = local_ms - pump->owners_ms >= lease_ms;
    bool refused = pump->finished > 0 && pump->unsettled_ms && local_ms - pump->unsettled_ms >= lease_ms;
    for (const kl__partition *partition = pump->partitions; !refused && partition; partition = partition->next)
        if (!partition->gone && (!away || kl__owners_holds(partition->owners, local_ms)))
            return false;
    return pump->stopping && pump->running == 0;
}

/* While two hands for each thread are ready, more is left in the store for a while: what is read far ahead has left the
 * processor's caches when its turn comes. But from time to time in any case, however full memory is: something more
 * urgent, or of another group, may have come, and what is due. */
bool kl__pump_wants_look(kl__pump *pump)
{
    uint64_t enough = (uint64_t)KL_LOAD_MAX * 2 * (uint64_t)pump->opts.concurrency;
    bool is_time = pump->opts.local_ms(pump->opts.local_ctx) - pump->looked_ms >= KL_LOOK_EVERY_MS;
    return !pump->looking && !pump->stopping &&
           ((is_time && !KL_MUTANT(full_blind)) || kl__pump_has_space(pump, enough) || pump->grouped ||
            pump->prioritized);
}

/* Nothing ready, running or to be sent in the window, nothing to be read, and nothing that waits for a retry. */
static bool window_is_empty(kl__window *window)
{
    kl__lane_counts counts = {0};
    if (window->lanes)
        counts = kl__lanes_counts(window->lanes);
    if (window->out || window->finished || !window->retry_read || counts.keys[KL_LANE_READY] ||
        counts.keys[KL_LANE_RETRYING] || counts.keys[KL_LANE_RUNNING] || counts.keys[KL_LANE_DELAYED])
        return false; /* DELAYED: without a key, and to be tried again; what waits for its first time is not in memory */
    for (int i = 0; i < KL_LINES; i++) {
        const kl__cursor *cursor = window->cursors[i];
        if (cursor && (cursor->siding || (!cursor->ended && i + KL_PRIORITY_MIN != KL_LINE_RETRY)))
            return false;
    }
    return !kl__window_wants_side(window);
}

/* Tasks wait in shards that could be and are not owned here, and their number has changed within a lease: whoever owns
 * them is at work, or has died and will be replaced. */
static bool others_are_busy(kl__pump *pump)
{
    enum { GRACE_MS = 2000 };
    uint64_t elsewhere = 0;
    for (kl__partition *partition = pump->partitions; partition; partition = partition->next) {
        uint64_t waiting = partition->counts.ready + partition->counts.retry;
        if (partition->window_count == partition->allowed_count || kl__partition_is_away(partition))
            continue;
        if (!partition->counts_known)
            return true; /* the next look counts */
        elsewhere += waiting;
    }
    if (elsewhere != pump->elsewhere)
        pump->elsewhere_ms = pump->now_ms;
    pump->elsewhere = elsewhere;
    return elsewhere > 0 && pump->now_ms - pump->elsewhere_ms < pump->descriptor->settings.lease_ms + GRACE_MS;
}

/* Older layouts have changed since they were looked at: the next look may let something of the newer ones on. While one
 * of them is away nobody can look. */
static bool gates_are_behind(const kl__pump *pump)
{
    int64_t changed_ms = pump->ended_ms > pump->elsewhere_ms ? pump->ended_ms : pump->elsewhere_ms;
    bool behind = false, away = pump->away > 0;
    for (const kl__partition *partition = pump->partitions; partition; partition = partition->next) {
        behind |= !kl__gate_looked(partition->gate, changed_ms);
        away |= kl__partition_is_away(partition);
    }
    return behind && !away;
}

bool kl__pump_empty(kl__pump *pump)
{
    pump->counts_wanted = true;
    if (pump->running || pump->finished || pump->looking || pump->owners_ms == 0 || pump->counts.looks == 0)
        return false;
    if (pump->descriptor->paused)
        return true;
    if (pump->more || kl__pump_startable(pump))
        return false;
    for (kl__partition *partition = pump->partitions; partition; partition = partition->next) {
        if (kl__partition_is_away(partition))
            continue;
        if (partition->unfenced && partition->unfenced_rc != KL_EDAMAGED)
            return false; /* nor is it known what waits in shards that it cannot use yet */
        if (kl__gate_shut(partition->gate) || partition->counted_ms <= pump->ended_ms)
            return false; /* something may wait of a priority that was not in use when that was asked */
        for (kl__window *window = partition->windows; window; window = window->next)
            if (!window_is_empty(window))
                return false;
    }
    return !others_are_busy(pump) && !gates_are_behind(pump);
}

bool kl__pump_unwanted(const kl__held *held) { return atomic_load(&held->cancel) || atomic_load(&held->window->lost); }

bool kl__pump_may_start(const kl__held *held, int64_t local_ms)
{
    return !kl__pump_unwanted(held) && (KL_MUTANT(hand_unchecked) || kl__held_lease_holds(held, local_ms));
}

void kl__pump_tell(kl__pump *pump, kl__held *held, kl__progress *progress)
{
    (void)pump;
    held->progress = progress;
}

kl__pump_counts kl__pump_counted(const kl__pump *pump) { return pump->counts; }
uint64_t kl__pump_held(const kl__pump *pump) { return pump->held + pump->blocked; }
uint64_t kl__pump_running(const kl__pump *pump) { return pump->running; }
uint64_t kl__pump_unserved(const kl__pump *pump) { return pump->unserved; }
uint64_t kl__pump_shards(const kl__pump *pump) { return pump->shard_count; }

void kl__pump_blocked_keys(const kl__pump *pump, void (*visit)(void *ctx, uint32_t partition, uint64_t keys), void *ctx)
{
    for (const kl__partition *partition = pump->partitions; partition; partition = partition->next) {
        uint64_t keys = 0;
        for (const kl__window *window = partition->windows; window; window = window->next) {
            kl__lane_counts counts = window->lanes ? kl__lanes_counts(window->lanes) : (kl__lane_counts){0};
            keys += counts.keys[KL_LANE_RETRYING] + counts.keys[KL_LANE_PAUSED] + counts.keys[KL_LANE_HALTED];
        }
        visit(ctx, partition->index, keys);
    }
}
